/* tidemill plan: the plan of a training step without training, and what is told about it. */
#include "base/change.h"
#include "comm/comm.h"
#include "planner/plan_internal.h"
#include "planner/start.h"
#include "planner/planner.h"
#include "report/report.h"

#include "io/io.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SIMULATED_RUNS = 3 };

const char *tm_plan_engine_name(tm_op_engine engine, bool has_device) {
    return engine == TM_ENGINE_CPU && !has_device ? "compute" : tm_engine_name(engine);
}

/* ---- refusing ------------------------------------------------------------------------------------------------ */

tm_status plan_refuse(const planning *g, const char *limit, tm_plan_change change, const char *what) {
    char end[160] = "; no smaller batch or shorter rows fit either: it takes a larger machine";
    g->out->fits = false;
    g->out->limit = limit;
    g->out->change = change;
    if (change.key)
        snprintf(end, sizeof end, "; the smallest change that fits: --set %s=%" PRIu64, change.key, change.value);
    tm_error_clear();
    tm_status rc = tm_fail(TM_EBUDGET, "%s%s", what, end);
    if (change.key) tm_change_advise("%s=%" PRIu64, change.key, change.value);
    return rc;
}

/* ---- time, bytes, wear --------------------------------------------------------------------------------------- */

static void count_bytes(tm_plan_report *out, const tm_plan_info *info) {
    for (int k = 0; k < TM_KINDS; k++) {
        out->read_bytes[k] = info->read_bytes[k];
        out->write_bytes[k] = info->write_bytes[k];
        out->read_bytes_per_step += info->read_bytes[k];
        out->write_bytes_per_step += info->write_bytes[k];
    }
    out->resident_bytes = info->resident_bytes;
    out->window_bytes = info->window_bytes;
    out->operations = info->ops;
}

static void count_wear(const planning *g, const tm_sim_result *r) {
    tm_plan_report *out = g->out;
    uint32_t ranks = out->ranks / out->nodes;
    double each = (double)out->write_bytes_per_step * ranks;
    out->n_paths = r->n_paths;
    for (uint32_t i = 0; i < r->n_paths; i++)
        out->path_tb_written_per_1000_steps[i] = (double)r->write_bytes[i] * ranks * 1000 * 1e-12;
    out->tbw = g->args->tbw > 0 ? g->args->tbw : g->machine.disk.tbw;
    out->tb_written_per_1000_steps = each * 1000 * 1e-12;
    if (out->tbw > 0 && each > 0) out->drive_days = out->tbw * 1e12 / each * out->seconds_per_step / 86400;
}

/* A page that draws itself, at any width, or SVG. */
static tm_status draw_timeline(const char *path, const tm_timeline *t) {
    tm_buf step = {0};
    tm_json_writer w;
    if (!tm_ends_with(path, ".html")) return tm_timeline_write(path, t);
    tm_jw_init(&w, &step, 0);
    w.ascii = true;
    tm_status rc = tm_timeline_json(&w, t);
    rc = tm_first(rc, tm_jw_end(&w));
    if (rc == TM_OK) rc = tm_report_step_write(path, t->title, t->subtitle, &step);
    tm_buf_free(&step);
    return rc;
}

static tm_status draw(const planning *g, const tm_plan *plan, const tm_sim_result *r, tm_op_name_fn name, void *ctx) {
    char title[160], a[32], subtitle[256];
    tm_trace *trace;
    snprintf(title, sizeof title, "%.1f M parameters, host %s, update %s, activations %s",
             (double)g->out->parameters * 1e-6, tm_format_size(g->out->host_peak_bytes, a, sizeof a), g->out->update,
             g->out->activations);
    snprintf(subtitle, sizeof subtitle, "%.3f s a step, bound by %s; %s", r->seconds, g->out->bottleneck,
             g->out->seconds_basis);
    if (g->args->timeline)
        TM_TRY(draw_timeline(g->args->timeline, &(tm_timeline){.plan = plan,
                                                               .result = r,
                                                               .machine = &g->machine,
                                                               .title = title,
                                                               .subtitle = subtitle,
                                                               .name = name,
                                                               .ctx = ctx}));
    if (!g->args->trace) return TM_OK;
    TM_TRY(tm_trace_open(&trace, g->args->trace));
    tm_status rc =
        tm_trace_add(trace, &(tm_trace_step){.plan = plan, .step = 1, .simulated = r->span, .name = name, .ctx = ctx});
    if (rc == TM_OK) return tm_trace_commit(trace);
    tm_trace_abandon(trace);
    return rc;
}

tm_status plan_time(const planning *g, const tm_plan *plan, const tm_sim_opts *sim, tm_op_name_fn name, void *ctx) {
    tm_plan_report *out = g->out;
    tm_sim_opts o = *sim;
    tm_sim_result r;
    count_bytes(out, tm_plan_get_info(plan));
    o.runs = SIMULATED_RUNS;
    o.timeline = g->args->timeline || g->args->trace;
    tm_link *link = NULL;
    TM_TRY(tm_link_create(&link, plan, plan)); /* a step's first reads begin during the step before */
    out->proof_seconds += tm_link_proof_seconds(link);
    out->planning_seconds = (double)(tm_now_ns() - g->from_ns) * 1e-9;
    o.link = link;
    tm_status rc = tm_simulate(&r, plan, &o);
    tm_link_free(link);
    TM_TRY(rc);
    out->seconds_per_step = r.seconds;
    memcpy(out->busy_seconds, r.busy, sizeof out->busy_seconds);
    memcpy(out->wait_seconds, r.wait, sizeof out->wait_seconds);
    out->bottleneck = tm_plan_engine_name(r.bottleneck, out->has_device);
    if (r.seconds > 0) out->tokens_per_second = out->tokens_per_step / r.seconds;
    out->run_steps = g->s->cfg->total_steps;
    out->run_seconds = r.seconds * (double)out->run_steps; /* steps alone */
    count_wear(g, &r);
    rc = draw(g, plan, &r, name, ctx);
    tm_sim_free(&r);
    return rc;
}

void plan_lengths(const planning *g, const job_shape *shape, const run_load *load) {
    tm_plan_report *out = g->out;
    out->micro_batches = shape->micro_batches;
    out->rows = shape->rows;
    out->seq = shape->seq;
    out->tokens_per_step = load->tokens;
    out->padded_tokens_per_step = load->padded;
    snprintf(out->rows_basis, sizeof out->rows_basis, "%s", g->s->rows_basis);
}

/* ---- one job -------------------------------------------------------------------------------------------------- */

static void basis(const planning *g, const job_costs *costs) {
    char *out = g->out->seconds_basis;
    size_t cap = sizeof g->out->seconds_basis;
    job_costs_basis measured = job_costs_measured(costs);
    if (g->hardware)
        snprintf(out, cap, "hardware file %s", g->machine.name);
    else if (measured == JOB_COSTS_NONE)
        snprintf(out, cap, "nominal rates");
    else
        snprintf(out, cap, "%s on this machine, disk %s", measured == JOB_COSTS_ALL ? "measured" : "partly measured",
                 g->machine.measured ? "measured" : "at nominal rates (tidemill tune io PATH measures it)");
    static const char *const there[] = {[JOB_COSTS_NONE] = "at the processor's rates",
                                        [JOB_COSTS_SOME] = "partly measured",
                                        [JOB_COSTS_ALL] = "measured"};
    size_t n = strlen(out);
    if (g->job->tiers.traits.own_processors && !g->hardware)
        snprintf(out + n, cap - n, "; the device's operations %s", there[job_costs_device_measured(costs)]);
}

/* Does the job fit with smaller micro-batches? */
static bool fits(void *ctx, uint32_t rows, uint32_t seq) {
    const planning *g = ctx;
    session *s = g->s;
    tm_job *job = NULL;
    planner_choice c = {0};
    pass_opts way[RUN_MAX_WAYS];
    job_shape shape = {.micro_batches = g->out->micro_batches, .rows = rows, .seq = seq};
    job_opts o = g->job->opts;
    if (s->comm && !s->imagined) return false; /* ranks may differ in what they would ask */
    tm_status rc = job_open(&job, &o);
    if (rc == TM_OK)
        rc = job_start(&(planner_ask){.job = job, .name = "training step", .way = way, .n = run_ways(s, &shape, way)},
                       &c);
    planner_drop(&c);
    job_close(job);
    bool fit = rc == TM_OK && plan_reference_fits(g, &shape);
    tm_error_clear();
    return fit;
}

static tm_status refuse_device(planning *g, const job_shape *shape, uint64_t least) {
    char text[sizeof tm_error_get()->text];
    tm_plan_change none = {NULL, 0};
    if (g->machine.gpus > 0) return plan_refuse_gpu(g, least, g->only_fits ? none : plan_smaller_batch(shape, fits, g));
    snprintf(text, sizeof text, "%s", tm_error_get()->text);
    tm_error_clear();
    return plan_refuse(g, "device", (tm_plan_change){"memory.device_budget", least}, text);
}

static tm_status refuse(planning *g, const job_shape *shape, const job_refusal *r) {
    char text[sizeof tm_error_get()->text];
    if (r->limit == JOB_LIMIT_DEVICE) return refuse_device(g, shape, r->bytes);
    uint64_t have = g->hardware ? g->rank.host_bytes : tm_mem_available_bytes();
    tm_plan_change change = {"memory.host_budget", g->out->minimum_host_bytes}, none = {NULL, 0};
    snprintf(text, sizeof text, "%s", tm_error_get()->text);
    tm_error_clear();
    if (r->limit == JOB_LIMIT_MICRO_BATCHES) { /* the text says it */
        g->out->limit = "host";
        g->out->change = (tm_plan_change){"gradient_accumulation_steps", r->most_micro_batches};
        tm_status rc = tm_fail(TM_EBUDGET, "%s", text);
        tm_change_advise("gradient_accumulation_steps=%u", r->most_micro_batches);
        return rc;
    }
    if (change.value > have) change = g->only_fits ? none : plan_smaller_batch(shape, fits, g);
    return plan_refuse(g, "host", change, text);
}

/* What this rank sends in a step. */
static void count_links(const planning *g) {
    uint32_t n = 0;
    const tm_plan_op *op = tm_plan_ops(g->plans.step, &n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes[2];
        if (op[i].engine != TM_ENGINE_COMM) continue;
        job_comm_bytes(g->job, &op[i].op, bytes);
        g->out->link_bytes_per_step += bytes[0];
        g->out->network_bytes_per_step += bytes[1];
    }
}

static void describe(const planning *g, const pass_opts *way) {
    const tm_job *job = g->job;
    const tm_plan_info *info = tm_plan_get_info(g->plans.step);
    tm_plan_report *out = g->out;
    out->fits = true;
    out->decoded_bytes = frozen_decoded(job, job->held_share).decoded;
    /* the import may need more than the step */
    out->host_peak_bytes = job_planned_peak(job);
    out->shared_window_bytes = job->account.needs.shared;
    out->device_peak_bytes = info->device_bytes + plan_driver_bytes(g);
    out->disk_bytes = (job_disk_bytes(job, info, g->s->cfg->memory.slots) + session_data_disk(g->s)) *
                          (g->s->comm ? tm_comm_node_size(g->s->comm) : 1) +
                      frozen_own_bytes(job);
    out->update = pass_update_name(way);
    out->activations = pass_activations_name(job, way);
    out->order = way->stage_wise ? "stage" : "unit";
    out->proof_seconds = job->account.needs.proof_seconds;
    plan_describe_gpus(g);
    count_links(g);
}

/* The ranks of a node share it. Compute that was timed is a rank's already. */
static void share_node(planning *g) {
    double n = g->s->comm ? tm_comm_node_size(g->s->comm) : 1;
    g->rank = g->machine;
    g->rank.disk.read_bps /= n;
    g->rank.disk.write_bps /= n;
    for (uint32_t i = 0; i < g->rank.n_paths; i++) {
        g->rank.path[i].rates.read_bps /= n;
        g->rank.path[i].rates.write_bps /= n;
    }
    if (!g->hardware) return;
    g->rank.host_bytes = (uint64_t)((double)g->rank.host_bytes / n);
    g->rank.cpu_flops_fp32 /= n;
    g->rank.cpu_flops_bf16 /= n;
    g->rank.cpu_bps /= n;
}

job_opts plan_limits(const planning *g, job_opts o) {
    o.config_only = o.plan_only = true;
    o.no_walk = g->s->imagined; /* its operations are those of all ranks together */
    if (!g->hardware) return o;
    if (g->machine.disk.read_bps <= 0) o.n_paths = 0;
    bool given = g->s->cfg->memory.host_kind == TM_BUDGET_BYTES;
    if (given && o.host_bytes > g->rank.host_bytes)
        tm_warn_once("plan.host_budget", "memory.host_budget is more than a rank of %s has; planned with what it has",
                     g->machine.name);
    o.host_bytes = given ? tm_min_u64(o.host_bytes, g->rank.host_bytes) : g->rank.host_bytes / 5 * 4;
    return o;
}

/* Ranks hold different numbers of tiles, and so the first one's least budgets need not be enough for the others. All of
 * them have agreed on `rc`. */
static tm_status least_of_all(const planning *g, tm_status rc, const planner_choice *c) {
    tm_plan_report *out = g->out;
    struct tm_comm *comm = g->s->comm;
    uint64_t most[] = {c->minimum_host_bytes, out->has_device ? c->minimum_device_bytes : 0};
    if (rc != TM_OK && rc != TM_EBUDGET) return rc;
    if (comm) {
        tm_error why = *tm_error_get();
        tm_error_clear();
        TM_TRY(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, TM_COMM_MAX, most, TM_COUNT(most)));
        tm_error_set(&why);
    }
    out->minimum_host_bytes = most[0];
    out->minimum_device_bytes = most[1];
    return rc;
}

/* What a disk's profile does not know goes into the file at nominal rates, as into this plan. */
static tm_status save_hardware(const planning *g, const job_opts *o, const job_costs *costs) {
    tm_machine m = g->machine;
    if (!g->args->save_hardware) return TM_OK;
    if (g->s->comm)
        return tm_fail(TM_EINPUT, "--save-hardware is of one rank: rates between ranks are not measured; run it "
                                  "without mpirun, and add \"ranks_per_node\" and \"link\" to the file");
    if (o->n_paths == 0) m.disk.read_bps = 0;
    if (o->n_paths > 0 && !m.measured)
        tm_log(TM_LOG_WARN, "%s: the disk is at nominal rates; 'tidemill tune io %s' measures it",
               g->args->save_hardware, o->paths[0]);
    m.h2d_bps = g->rank.h2d_bps;
    m.d2h_bps = g->rank.d2h_bps;
    TM_TRY(job_costs_rates(costs, &m));
    return tm_machine_save(g->args->save_hardware, &m);
}

static tm_status whole_run(planning *g, job_costs *costs) {
    tm_plan_report *out = g->out;
    run_forecast f;
    TM_TRY(plan_reference_seconds(g, &out->reference_seconds));
    TM_TRY(run_forecast_make(&(run_rates){.s = g->s,
                                          .job = g->job,
                                          .plans = &g->plans,
                                          .machine = &g->rank,
                                          .cost = job_cost,
                                          .ctx = costs,
                                          .step_seconds = out->seconds_per_step,
                                          .imports = true},
                             &f));
    out->run_steps = f.steps;
    out->run_seconds = f.steps > 0 ? f.seconds + out->reference_seconds : f.seconds;
    out->run_read_bytes = (uint64_t)f.read_bytes;
    out->run_write_bytes = (uint64_t)(f.write_bytes + f.model_bytes);
    out->run_evaluations = f.evaluations;
    out->run_commits = f.commits;
    out->run_models = f.checkpoints + 1;
    return TM_OK;
}

static tm_status plan_job(planning *g) {
    session *s = g->s;
    tm_plan_report *out = g->out;
    share_node(g);
    if (!g->hardware) TM_TRY(session_find_device(s, true));
    TM_TRY(session_find_peers(s));
    job_opts o = plan_limits(g, session_job_options(s));
    job_costs *costs = NULL;
    pass_opts way[RUN_MAX_WAYS];
    job_shape shape = session_step_shape(s);
    run_more more = {s, &g->plans};
    planner_choice c = {0};
    tm_status rc;
    out->host_budget_bytes = o.host_bytes;
    if (!g->hardware) TM_GO(session_machine(&o, &g->machine));
    share_node(g);
    out->has_device = o.device_bytes > 0;
    out->device_budget_bytes =
        o.device_bytes == TM_DEVICE_UNLIMITED ? UINT64_MAX : o.device_bytes + plan_driver_bytes(g);
    TM_GO(job_open(&g->job, &o));
    out->parameters = tm_model_parameters(g->job->model);
    out->learning = tm_model_learning_parameters(g->job->model);
    TM_GO(plan_disk_least(g, &o));
    run_load load = run_step_load(s, tm_model_get_config(g->job->model));
    plan_lengths(g, &shape, &load);
    const job_costs_ask ask = {.shape = &shape,
                               .load = &load.load,
                               .mode = g->hardware           ? JOB_COSTS_NOMINAL
                                       : g->args->no_measure ? JOB_COSTS_PROFILE
                                                             : JOB_COSTS_MEASURE};
    const planner_ask step = {.job = g->job,
                              .name = "training step",
                              .way = way,
                              .n = run_ways(s, &shape, way),
                              .more = run_compile_more,
                              .ctx = &more};
    rc = least_of_all(g, planner_count(&step, &c), &c);
    if (rc == TM_EBUDGET) rc = run_blame_tasks(s, refuse(g, &shape, &c.refusal));
    if (rc != TM_OK) goto done;
    TM_GO(job_costs_open(&costs, g->job, &ask, &g->rank));
    out->timing_disturbed = job_costs_disturbed(costs);
    TM_GO(save_hardware(g, &o, costs));
    job_use_costs(g->job, &g->rank, job_cost, costs);
    g->from_ns = tm_now_ns(); /* measuring was not planning */
    rc = job_start(&step, &c);
    g->plans.step = c.plan;
    c.plan = NULL;
    rc = plan_reference_room(g, rc, &c);
    rc = least_of_all(g, rc, &c);
    if (out->minimum_device_bytes) out->minimum_device_bytes += plan_driver_bytes(g);
    if (rc == TM_EBUDGET) rc = run_blame_tasks(s, refuse(g, &shape, &c.refusal));
    if (rc != TM_OK) goto done;
    describe(g, &way[c.way]);
    basis(g, costs);
    TM_GO(plan_time(g, g->plans.step, &(tm_sim_opts){.machine = &g->rank, .cost = job_cost, .ctx = costs}, job_op_name,
                    g->job));
    TM_GO(whole_run(g, costs));
    rc = plan_disk(g, &o);
done:
    planner_drop(&c);
    job_costs_close(costs);
    return rc;
}

/* ---- one run ------------------------------------------------------------------------------------------------- */

static void clear(tm_plan_report *out) {
    *out = (tm_plan_report){.limit = "",
                            .bottleneck = "",
                            .update = "",
                            .activations = "",
                            .order = "",
                            .strategy = "",
                            .nodes = 1,
                            .ranks = 1};
}

/* Under mpirun for these ranks; a hardware file has its own. */
tm_status plan_open(planning *g) {
    session *s = g->s;
    g->hardware = g->args->hardware != NULL;
    clear(g->out);
    if (g->hardware) {
        TM_TRY(tm_machine_load_with(g->args->hardware, g->args->set_hardware, g->args->n_set_hardware, &g->machine));
        TM_TRY(session_imagine_ranks(s, g->machine.nodes * g->machine.ranks_per_node, g->machine.ranks_per_node));
    } else {
        TM_TRY(session_open_ranks(s));
    }
    if (s->comm) g->out->rank = s->ranks.rank;
    bool dry_run = g->args->train.dry_run;
    TM_TRY(session_load_config(s, !dry_run));
    if (!g->hardware) TM_TRY(session_check_budget(s->cfg));
    TM_TRY(plan_take_gpus(g));
    TM_TRY(session_prepare(s, true));
    return dry_run && !s->train ? tm_fail(TM_EINPUT, "%s: %s", s->cfg->model, s->rows_basis) : TM_OK;
}

static tm_status fill_autos(const planning *g) {
    tm_buf text = {0};
    bool any;
    tm_status rc = tm_config_autos(g->s->cfg, &text, &any);
    if (rc == TM_OK && any && text.len < sizeof g->out->autos) memcpy(g->out->autos, text.data, text.len + 1);
    tm_buf_free(&text);
    return rc;
}

static void drop_job(planning *g) {
    job_close(g->job);
    g->job = NULL;
    run_plans_free(&g->plans);
}

tm_status plan_once(planning *g) {
    session *s = g->s;
    uint32_t rank = g->out->rank;
    clear(g->out);
    g->out->rank = rank;
    drop_job(g);
    TM_TRY(fill_autos(g));
    TM_TRY(session_set_strategy(s));
    if (s->comm) {
        g->out->ranks = s->ranks.ranks;
        g->out->nodes = tm_comm_nodes(s->comm);
        g->out->strategy = session_strategy(s);
    }
    g->from_ns = tm_now_ns();
    return plan_job(g);
}

void plan_close(planning *g) {
    drop_job(g);
    session_close(g->s);
}

tm_status tm_plan_run(const tm_plan_args *args, tm_plan_report *out) {
    session s = {.args = &args->train};
    planning g = {.args = args, .s = &s, .out = out};
    tm_status rc = plan_open(&g);
    if (rc == TM_OK) rc = plan_once(&g);
    session_end_all(&s, rc, false);
    plan_close(&g);
    session_close_ranks(&s);
    return rc;
}

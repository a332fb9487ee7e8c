/* tidemill bench step: how well a step's halves overlap on this machine.
 *
 *   real      the plan as it is trained with
 *   I/O       the same plan and transfers, exchanges between ranks among them; operations do nothing
 *   compute   the same plan and operations; transfers take no time and move nothing
 *
 * Real and I/O steps alternate in one executor; the compute steps follow in one whose disk is stubbed, on whatever its
 * frames hold. Steps are linked as in training, and the time of a step is from the end of the one before to its own. */
#include "comm/comm.h"
#include "io/io.h"
#include "kernels/kernels.h"
#include "offload/sim/sim.h"
#include "planner/cost.h"
#include "planner/start.h"
#include "planner/run.h"
#include "infer/infer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, MAX_STEPS = 1000, RUNS = 3, VALUES = 997 };
typedef enum mode { REAL, IO_ALONE, COMPUTE_ALONE, MODES } mode;

/* Stretches of a step. With clipping no update can be read for before the norm is known, and every one is over when
 * backward begins (F) or the step ends (U): what one stretch has too much of, another cannot take. */
typedef enum stretch { FORWARD, BACKWARD, AFTER_NORM, STRETCHES } stretch;

typedef struct bench {
    const tm_step_bench_args *args;
    tm_step_bench *out;
    session s;
    tm_job *job;
    tm_plan *plan, *first_plan;
    tm_machine machine;
    job_costs *costs;
    tm_link *link, *first_link;
    job_shape shape;
    mode mode;
    uint32_t steps;
    double *seconds[MODES], *part[MODES][STRETCHES];
    uint32_t n[MODES];
    double *comm, comm_of_run;    /* seconds of exchanges: of REAL steps, of the latest run */
    uint64_t began_ns[STRETCHES]; /* of the running step; 0: has not begun */
    tm_status ended;              /* of the runs whose transfers are done */
    tm_error error;
} bench;

/* ---- data and operations ------------------------------------------------------------------------------------- */

/* Rows as long as the configuration has them; ids that differ. */
static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    bench *b = ctx;
    (void)batch;
    uint32_t n = b->shape.rows * b->shape.seq, vocabulary = tm_model_get_config(b->job->model)->vocab_size;
    for (uint32_t i = 0; i < to->capacity; i++) {
        to->ids[i] = i < n ? (int32_t)((i * 31 + mb * 17) % (vocabulary < VALUES ? vocabulary : VALUES)) : 0;
        to->mask[i] = i < n;
        to->labels[i] = i < n && (i + 1) % b->shape.seq
                            ? (int32_t)(((i + 1) * 31 + mb * 17) % (vocabulary < VALUES ? vocabulary : VALUES))
                            : -100;
    }
    if (to->completion) memset(to->completion, 1, to->capacity);
    if (to->desirable) memset(to->desirable, 1, to->rows);
    for (uint32_t r = 0; to->reference && r < to->rows; r++) to->reference[r] = -1;
    *out = (job_batch){.rows = b->shape.rows,
                       .samples = b->shape.rows / b->job->objective->rows,
                       .seq = b->shape.seq,
                       .tokens = shape_tokens(&b->shape),
                       .mask_tokens = n,
                       .label_tokens = n - b->shape.rows};
    b->job->step.labels = (uint64_t)b->job->ranks.ranks * b->shape.micro_batches * out->label_tokens;
    b->job->step.samples = (uint64_t)b->job->ranks.ranks * b->shape.micro_batches * out->samples;
    b->job->step.tokens = (uint64_t)b->job->ranks.ranks * b->shape.micro_batches * n;
    return TM_OK;
}

static tm_status ended(bench *b, const tm_op *op, tm_status rc) {
    if (op->code == OP_NORM) b->began_ns[AFTER_NORM] = tm_now_ns();
    return rc;
}

/* Without transfers the values are of no sense: that they are not finite changes nothing. */
static tm_status run_op(void *ctx, const tm_op *op, void *const *operand) {
    bench *b = ctx;
    tm_job *job = b->job;
    TM_TRY(job_check_stop(job));
    if (op->code == OP_BACKWARD && !b->began_ns[BACKWARD]) b->began_ns[BACKWARD] = tm_now_ns();
    if (b->mode == IO_ALONE) return ended(b, op, TM_OK);
    tm_status rc = ended(b, op, job_run_op(job, op, operand));
    if (b->mode != COMPUTE_ALONE) return rc;
    if (rc == TM_EIO) {
        tm_error_clear();
        rc = TM_OK;
    }
    if (op->code == OP_OBJECTIVE || op->code == OP_NORM) {
        op_call c = op_call_of(job, op);
        c.operand = operand;
        step_frame *f = op_operand(&c, OPERAND_STEP);
        f->finite = job->step.result.finite = true;
        f->clip = job->step.result.clip = 1;
    }
    job->step.nonfinite = job->step.device_nonfinite = 0;
    return rc;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* What a first step of update F leaves behind: the real plan then finds gradients to apply. */
static tm_status compile_first(void *ctx, const tm_job *job, job_account *account, const pass_opts *way) {
    bench *b = ctx;
    tm_program *p;
    pass_opts first = *way;
    first.update = UPDATE_NONE;
    tm_plan_free(b->first_plan);
    b->first_plan = NULL;
    if (!way->park) return TM_OK;
    TM_TRY(build_pass(&p, job, "first step", &first));
    tm_status rc = job_compile_in(job, account, p, true, &b->first_plan);
    tm_program_free(p);
    return rc;
}

static tm_status check_paths(bench *b, job_opts *o) {
    char own[4096];
    snprintf(own, sizeof own, "%s/offload", b->s.cfg->output_dir);
    if (b->args->offload_path && o->n_paths > 0) {
        o->paths = &b->args->offload_path;
        o->n_paths = 1;
        memset(o->path_kinds, 0, sizeof o->path_kinds);
    }
    for (uint32_t i = 0; i < o->n_paths; i++)
        if (strcmp(o->paths[i], own) == 0)
            return tm_fail(
                TM_EINPUT,
                "the configuration names no offload path; give --offload-path DIR (output_dir is left alone)");
    return TM_OK;
}

static void say_basis(bench *b) {
    job_costs_basis basis = job_costs_measured(b->costs);
    snprintf(b->out->basis, sizeof b->out->basis, "operations %s, disk %s",
             basis == JOB_COSTS_ALL    ? "measured"
             : basis == JOB_COSTS_SOME ? "partly measured"
                                       : "at nominal rates",
             b->machine.measured ? "measured" : "at nominal rates");
}

/* What timing the operations took does not count as the step's. */
static void forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "we");
    if (!f) return;
    (void)fputs("5", f);
    (void)fclose(f);
}

/* Nothing here measures what lies between ranks. */
static tm_status take_links(bench *b) {
    tm_machine m;
    if (!b->args->hardware) return TM_OK;
    TM_TRY(tm_machine_load(b->args->hardware, &m));
    b->machine.ranks_per_node = m.ranks_per_node;
    b->machine.link_bps = m.link_bps;
    b->machine.link_latency = m.link_latency;
    b->machine.network_bps = m.network_bps;
    b->machine.network_latency = m.network_latency;
    return TM_OK;
}

static tm_status open_job(bench *b) {
    session *s = &b->s;
    pass_opts way[RUN_MAX_WAYS];
    s->cfg->data.train = NULL; /* rows are made up */
    s->cfg->commit_steps = 0;
    s->cfg->keep_state = false;
    TM_TRY(session_prepare(s, true));
    TM_TRY(session_make_base(s));
    b->shape = session_step_shape(s);
    job_opts o = session_job_options(s);
    o.run_name = "bench";
    o.home = o.of = "";
    TM_TRY(check_paths(b, &o));
    TM_TRY(session_machine(&o, &b->machine));
    TM_TRY(take_links(b));
    TM_TRY(job_open(&b->job, &o));
    TM_TRY(tm_config_resolve_model(s->cfg, tm_model_get_config(b->job->model)->hidden_size));
    b->job->sinks.fill = fill;
    b->job->sinks.fill_ctx = b;
    b->job->step.max_grad_norm = s->cfg->max_grad_norm;
    const job_costs_ask costs = {.shape = &b->shape,
                                 .mode = b->args->no_measure ? JOB_COSTS_PROFILE : JOB_COSTS_MEASURE};
    TM_TRY(job_costs_open(&b->costs, b->job, &costs, &b->machine));
    say_basis(b);
    forget_peak();
    job_use_costs(b->job, &b->machine, job_cost, b->costs);
    uint32_t n = run_ways(s, &b->shape, way);
    planner_choice c;
    const planner_ask ask = {
        .job = b->job, .name = "training step", .way = way, .n = n, .more = compile_first, .ctx = b};
    tm_status rc = job_start(&ask, &c);
    b->plan = c.plan;
    c.plan = NULL;
    planner_drop(&c);
    TM_TRY(rc);
    b->out->update = pass_update_name(&way[c.way]);
    b->out->activations = pass_activations_name(b->job, &way[c.way]);
    b->out->order = way[c.way].stage_wise ? "stage" : "unit";
    TM_TRY(tm_link_create(&b->link, b->plan, b->plan));
    return b->first_plan ? tm_link_create(&b->first_link, b->first_plan, b->plan) : TM_OK;
}

/* ---- prediction ---------------------------------------------------------------------------------------------- */

/* Exchanges are transfers; so are copies, which the simulator knows. */
static double seconds_of(void *ctx, const tm_op *op) {
    const bench *b = ctx;
    bool transfer = op->engine == TM_ENGINE_COMM;
    if (b->mode != REAL && transfer != (b->mode == IO_ALONE)) return 0;
    return job_cost(b->costs, op);
}

static tm_status predict(bench *b, mode m, double *seconds) {
    tm_sim_result r;
    b->mode = m;
    TM_TRY(tm_simulate(&r, b->plan,
                       &(tm_sim_opts){.machine = &b->machine,
                                      .cost = seconds_of,
                                      .ctx = b,
                                      .runs = RUNS,
                                      .link = b->link,
                                      .no_disk = m == COMPUTE_ALONE}));
    *seconds = r.seconds;
    tm_sim_free(&r);
    return TM_OK;
}

/* A product has two in backward, and so has attention's each. */
static double model_flops(const bench *b) {
    const tm_model *m = b->job->model;
    double forward = 0;
    for (uint32_t u = 0; u < tm_model_units(m); u++)
        for (uint32_t s = 0; s < tm_model_unit(m, u)->n_stages; s++)
            forward += job_stage_work(m, u, s, false, &b->shape).flops;
    return 3 * forward * b->shape.micro_batches;
}

static void describe(bench *b) {
    tm_step_bench *out = b->out;
    const tm_job *job = b->job;
    const tm_plan_info *info = tm_plan_get_info(b->plan);
    out->parameters = tm_model_parameters(job->model);
    out->tokens = (uint64_t)b->shape.micro_batches * b->shape.rows * b->shape.seq;
    out->resident_bytes = info->resident_bytes;
    out->window_bytes = info->window_bytes;
    out->planned_peak_bytes = job_planned_peak(job);
    for (int k = 0; k < TM_KINDS; k++) {
        out->read_bytes += info->read_bytes[k];
        out->write_bytes += info->write_bytes[k];
    }
    out->model_flops = model_flops(b);
    uint32_t n;
    const tm_plan_op *op = tm_plan_ops(b->plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        const tm_op *o = &op[i].op;
        bool backward = o->code == OP_BACKWARD, kept = backward && o->flags & OP_KEPT_LOGITS;
        if (op[i].engine != TM_ENGINE_CPU || (o->code != OP_FORWARD && !backward)) continue;
        op_args a = op_args_of(o);
        double flops = job_stage_work(job->model, a.stage.unit, a.stage.stage, backward, &b->shape).flops;
        out->flops += kept ? flops * 2 / 3 : flops; /* one product of the head's three less */
    }
}

/* ---- running ------------------------------------------------------------------------------------------------- */

/* Counted bytes are the planned ones, or the figures would be of something else. */
static void run_ended(void *ctx, const tm_run_stats *s) {
    bench *b = ctx;
    b->comm_of_run = (double)s->comm_ns * 1e-9;
    const tm_plan_info *info = tm_plan_get_info(s->plan);
    for (int k = 0; k < TM_KINDS; k++) {
        bool same = s->read_bytes[k] == info->read_bytes[k] && s->write_bytes[k] == info->write_bytes[k];
        if (same || b->mode == COMPUTE_ALONE || b->ended != TM_OK) continue;
        b->ended = tm_fail(TM_EBUG, "%s: %llu bytes read and %llu written, planned were %llu and %llu",
                           tm_kind_name((tm_kind)k), (unsigned long long)s->read_bytes[k],
                           (unsigned long long)s->write_bytes[k], (unsigned long long)info->read_bytes[k],
                           (unsigned long long)info->write_bytes[k]);
        b->error = *tm_error_get();
        tm_error_clear();
    }
}

/* A stretch that did not begin has no time, and the one before it lasts on. */
static void note_step(bench *b, mode m, uint64_t begin, uint64_t end) {
    uint32_t i = b->n[m]++;
    b->seconds[m][i] = (double)(end - begin) * 1e-9;
    for (int s = STRETCHES - 1; s >= 0; s--) {
        uint64_t from = s == FORWARD ? begin : b->began_ns[s] ? b->began_ns[s] : end;
        b->part[m][s][i] = (double)(end - from) * 1e-9;
        end = from;
    }
}

/* `n` steps that count after one that does not. */
static tm_status run_steps(bench *b, mode m, uint32_t n) {
    tm_exec *e = b->job->tiers.exec;
    uint64_t before = 0;
    b->mode = m;
    b->job->comm.stub = m == COMPUTE_ALONE;
    if (b->s.comm) TM_TRY(tm_comm_barrier(b->s.comm, TM_COMM_WORLD));
    for (uint32_t i = 0; i <= n; i++) {
        memset(b->began_ns, 0, sizeof b->began_ns);
        tm_exec_announce(e, b->plan, b->link);
        TM_TRY(tm_exec_run(e, b->plan, run_op, b));
        uint64_t now = tm_now_ns();
        if (i > 0) note_step(b, m, before, now);
        if (i > 0 && m == REAL) b->comm[b->n[m] - 1] = b->comm_of_run;
        before = now;
    }
    return tm_exec_settle(e);
}

static tm_status reopen_without_disk(bench *b) {
    tm_job *job = b->job;
    tm_exec_close(job->tiers.exec);
    job->tiers.exec = NULL;
    return tm_exec_open(&job->tiers.exec, &(tm_exec_opts){.slab_bytes = job->account.limits.slab_bytes,
                                                          .store = job->tiers.store,
                                                          .stub_disk = true,
                                                          .unregistered = true,
                                                          .device = job->tiers.device,
                                                          .shared = job_shared_frames(job),
                                                          .shared_bytes = job->account.needs.shared,
                                                          .comm = job_exec_comm(job)});
}

static tm_status run_all(bench *b) {
    tm_job *job = b->job;
    job->step.number = 1;
    job->step.learning_rate = 1e-6;
    tm_exec_on_done(job->tiers.exec, run_ended, b);
    b->mode = REAL; /* the last prediction's is another */
    if (b->first_plan) TM_TRY(tm_exec_run(job->tiers.exec, b->first_plan, run_op, b));
    TM_TRY(tm_exec_settle(job->tiers.exec));
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t n = half ? b->steps / 2 : b->steps - b->steps / 2;
        if (n == 0) continue;
        TM_TRY(run_steps(b, REAL, n));
        TM_TRY(run_steps(b, IO_ALONE, n));
    }
    b->out->peak_bytes = job_host_peak(job);
    b->out->peak_flops = tm_kernels_peak_flops();
    TM_TRY(reopen_without_disk(b));
    TM_TRY(run_steps(b, COMPUTE_ALONE, b->steps));
    if (b->ended != TM_OK) tm_error_set(&b->error);
    return b->ended;
}

static void bench_close(bench *b) {
    for (int m = 0; m < MODES; m++) {
        tm_free(b->seconds[m]);
        for (int s = 0; s < STRETCHES; s++) tm_free(b->part[m][s]);
    }
    tm_free(b->comm);
    job_close(b->job); /* its executor may hold a link */
    tm_plan_free(b->plan);
    tm_plan_free(b->first_plan);
    if (session_undo_base(&b->s) != TM_OK) tm_log(TM_LOG_WARN, "%s", tm_error_get()->text);
    session_close(&b->s);
    tm_link_free(b->link);
    tm_link_free(b->first_link);
    session_close_ranks(&b->s);
    job_costs_close(b->costs);
}

static tm_status room(bench *b) {
    size_t n = b->steps + 1, bytes = n * sizeof(double);
    if (!(b->comm = tm_calloc(n, sizeof(double)))) return tm_nomem(bytes);
    for (int m = 0; m < MODES; m++) {
        if (!(b->seconds[m] = tm_calloc(n, sizeof(double)))) return tm_nomem(bytes);
        for (int s = 0; s < STRETCHES; s++)
            if (!(b->part[m][s] = tm_calloc(n, sizeof(double)))) return tm_nomem(bytes);
    }
    return TM_OK;
}

tm_status tm_step_bench_run(const tm_step_bench_args *args, tm_step_bench *out) {
    bench b = {.args = args, .out = out, .s.args = &args->train, .steps = args->steps ? args->steps : STEPS};
    tm_status rc;
    *out = (tm_step_bench){.update = "", .activations = "", .order = ""};
    TM_ASSERT(b.steps <= MAX_STEPS);
    TM_GO(room(&b));
    tm_stop_catch();
    TM_GO(session_open_ranks(&b.s));
    out->ranks = b.s.comm ? b.s.ranks.ranks : 1;
    out->rank = b.s.ranks.rank;
    TM_GO(session_load_config(&b.s, true));
    TM_GO(session_find_device(&b.s, false));
    TM_GO(session_set_strategy(&b.s));
    TM_GO(session_agree(&b.s, session_find_peers(&b.s)));
    TM_GO(open_job(&b));
    describe(&b);
    TM_GO(predict(&b, REAL, &out->predicted_seconds));
    TM_GO(predict(&b, IO_ALONE, &out->predicted_io_seconds));
    TM_GO(predict(&b, COMPUTE_ALONE, &out->predicted_compute_seconds));
    TM_GO(run_all(&b));
    out->step_seconds = tm_median(b.seconds[REAL], b.n[REAL]);
    out->comm_seconds = tm_median(b.comm, b.n[REAL]);
    out->io_seconds = tm_median(b.seconds[IO_ALONE], b.n[IO_ALONE]);
    out->compute_seconds = tm_median(b.seconds[COMPUTE_ALONE], b.n[COMPUTE_ALONE]);
    for (int s = 0; s < STRETCHES; s++)
        out->bound_seconds += fmax(tm_median(b.part[IO_ALONE][s], b.n[IO_ALONE]),
                                   tm_median(b.part[COMPUTE_ALONE][s], b.n[COMPUTE_ALONE]));
done:
    session_end_all(&b.s, rc, false);
    bench_close(&b);
    return rc;
}

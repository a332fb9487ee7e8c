/* Seconds of a job's operations: one table of stages, a few numbers an element, and where each of them comes from. */
#include "planner/cost_table_internal.h"
#include "job/job.h"
#include "planner/start.h"

#include "comm/comm.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Token rows that are timed; more of them take proportionally longer. */
enum { MEASURED_TOKENS = 1024, SEQ_GRAIN = 64, LABEL_GRAIN = 16 };
/* Of timing: at most; of the run that it is for; and less than this is not worth while. */
static const double MEASURE_SECONDS = 10, MEASURE_PART = 0.05, MEASURE_LEAST = 0.5;
static const uint64_t MEASURE_RESERVE = 48 << 20;
/* An operation that takes so long is timed once. Two times of another that differ by no more are about the same. */
static const double LONG_ENOUGH = 0.5, ABOUT_THE_SAME = 1.1;

/* ---- work ---------------------------------------------------------------------------------------------------- */

job_load job_shape_load(const tm_model_config *c, const job_shape *shape) {
    job_load load = tm_model_load(c, shape->rows, shape->seq, shape_tokens(shape));
    if (shape->labels) load.labels = shape->labels;
    return load;
}

job_work job_stage_work(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, const job_shape *shape) {
    return job_load_work(m, unit, stage, backward, job_shape_load(tm_model_get_config(m), shape));
}

job_work job_load_work(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, job_load load) {
    return tm_stage_work(m, unit, stage, backward, &load);
}

static double nominal(const cost_source *s, job_work w) {
    if (s->is_gpu) return cost_gpu_seconds(w, s->flops_per_second, s->bytes_per_second);
    return w.flops / s->flops_per_second + w.bytes / s->bytes_per_second;
}

static cost_bound bound_of(const cost_source *s, job_work w) {
    return w.flops / s->flops_per_second > w.bytes / s->bytes_per_second ? COST_BY_FLOPS : COST_BY_BYTES;
}

/* ---- the profile --------------------------------------------------------------------------------------------- */

void cost_cpu_name(char out[49]) {
    snprintf(out, 49, "cpu");
#if defined(__x86_64__)
    unsigned r[12];
    if (__get_cpuid(0x80000002, &r[0], &r[1], &r[2], &r[3]) && __get_cpuid(0x80000003, &r[4], &r[5], &r[6], &r[7]) &&
        __get_cpuid(0x80000004, &r[8], &r[9], &r[10], &r[11])) {
        memcpy(out, r, sizeof r);
        out[48] = 0;
    }
#endif
    for (size_t n = strlen(out); n > 0 && out[n - 1] == ' '; n--) out[n - 1] = 0;
}

static tm_status open_profile(job_costs *c) {
    char cpu[49], backend[320];
    cost_cpu_name(cpu);
    snprintf(backend, sizeof backend, "%s cpu=%s", tm_kernels_describe(), cpu);
    return tm_profile_open(&c->side[COST_HOST].profile, backend);
}

static const char *type_name(const tm_job *job) {
    return job->dtype == TM_F32 ? "f32" : job->dtype == TM_BF16 ? "bf16" : "f16";
}

void cost_stage_key(const job_costs *c, const tm_op *op, char *buf, size_t cap) {
    op_args a = op_args_of(op);
    const tm_unit *u = tm_model_unit(c->job->model, a.stage.unit);
    const tm_stage *s = &u->stage[a.stage.stage];
    const char *kind = u->kind == TM_UNIT_EMBED ? "embed" : u->kind == TM_UNIT_HEAD ? "head" : "block";
    char signature[160], labels[16] = "";
    tm_stage_signature(s, signature, sizeof signature);
    if (u->kind == TM_UNIT_HEAD && c->timed.labels) snprintf(labels, sizeof labels, " l%u", c->timed.labels);
    tm_packed_type packing = s->n_parts ? c->job->part[s->part[0]].packed.packing : TM_PACKED_NOT;
    snprintf(buf, cap, "%s %s.%u.%s %s r%u s%u%s %s%s%s", op->code == OP_FORWARD ? "forward" : "backward", kind,
             a.stage.stage, s->name, signature, c->timed.rows, c->timed.seq, labels, type_name(c->job),
             packing ? " of " : "", packing ? tm_packing_of(packing)->name : "");
}

static bool may_time(const job_costs *c) {
    return tm_stop_signal() == 0 && c->mode == JOB_COSTS_MEASURE && tm_now_ns() - c->began_ns < c->limit_ns;
}

static bool time_here(job_costs *c, const tm_op *op, double *seconds) {
    cost_timing t = {.seconds = 0};
    if (!cost_measure(c->job, op, &c->timed, c->budget, &t)) return false;
    c->timed_seconds += t.spent;
    if (t.disturbed) c->disturbed_seconds += t.spent;
    *seconds = t.seconds;
    return true;
}

/* Without room for it, once is what there is. */
static void note_timed(job_costs *c, const tm_op *op, const char *key, double seconds) {
    if (seconds >= LONG_ENOUGH) return;
    if (tm_grow(&c->just_timed, &c->cap_just_timed, c->n_just_timed + 1, sizeof *c->just_timed) != TM_OK) {
        tm_error_clear();
        return;
    }
    cost_timed *t = &c->just_timed[c->n_just_timed++];
    *t = (cost_timed){.op = *op, .seconds = seconds};
    snprintf(t->key, sizeof t->key, "%s", key);
}

static void put_known(job_costs *c, cost_side side, const char *key, double seconds) {
    if (tm_profile_put(c->side[side].profile, key, seconds) != TM_OK) tm_error_clear(); /* it is known for now */
}

static bool measure(job_costs *c, const tm_op *op, const char *key, double *seconds) {
    cost_side side = cost_side_of(c, op);
    if (!may_time(c)) return false;
    if (side == COST_DEVICE && c->job->ranks.ranks > 1) return false; /* ranks may share it */
    tm_phase_step(&c->timing);
    if (side == COST_DEVICE ? !cost_device_measure(c, op, seconds) : !time_here(c, op, seconds)) return false;
    if (side == COST_HOST) note_timed(c, op, key, *seconds);
    put_known(c, side, key, *seconds);
    return true;
}

/* Those of the host, when some time has passed. Where both are about the same the mean counts, else the least. */
static void measure_again(job_costs *c) {
    for (size_t i = 0; i < c->n_just_timed && may_time(c); i++) {
        const cost_timed *t = &c->just_timed[i];
        double again;
        tm_phase_step(&c->timing);
        if (!time_here(c, &t->op, &again)) continue;
        double least = fmin(again, t->seconds), most = fmax(again, t->seconds);
        put_known(c, COST_HOST, t->key, most > ABOUT_THE_SAME * least ? least : (least + most) / 2);
    }
}

/* Seconds of `op` as it is timed, from the best source there is. What is not known takes as many times what the rates
 * say as those of its sort that are: products may be ten times as fast as the rates, and memory no faster. */
static double resolve(job_costs *c, const tm_op *op, const char *key, double by_rates, cost_bound b) {
    double seconds;
    cost_source *s = &c->side[cost_side_of(c, op)];
    if (c->mode == JOB_COSTS_NOMINAL) return by_rates;
    s->asked++;
    if (!s->profile || (!tm_profile_get(s->profile, key, &seconds) && !measure(c, op, key, &seconds)))
        return s->known_nominal[b] > 0 ? by_rates * s->known_seconds[b] / s->known_nominal[b] : by_rates;
    s->known++;
    s->known_seconds[b] += seconds;
    s->known_nominal[b] += by_rates;
    return seconds;
}

/* ---- filling the table --------------------------------------------------------------------------------------- */

/* For each stage the first that is alike. Few differ, so that each is compared with few. */
static tm_status find_alike(job_costs *c) {
    const tm_model *m = c->job->model;
    cost_stage *distinct = tm_malloc((c->stages + 1) * sizeof *distinct);
    uint32_t n = 0;
    c->alike = tm_malloc((c->stages + 1) * sizeof *c->alike);
    for (uint32_t u = 0; distinct && c->alike && u < tm_model_units(m); u++)
        for (uint32_t s = 0; s < tm_model_unit(m, u)->n_stages; s++) {
            uint32_t i = 0;
            const tm_stage *stage = &tm_model_unit(m, u)->stage[s];
            while (i < n && !tm_stage_alike(&tm_model_unit(m, distinct[i].unit)->stage[distinct[i].stage], stage)) i++;
            if (i == n) distinct[n++] = (cost_stage){u, s};
            c->alike[c->first[u] + s] = distinct[i];
        }
    tm_free(distinct);
    return distinct && c->alike ? TM_OK : tm_nomem(c->stages * sizeof *distinct);
}

double cost_scaled(double seconds, job_work from, job_work to) {
    if (from.flops > 0) return seconds * to.flops / from.flops;
    return from.bytes > 0 ? seconds * to.bytes / from.bytes : seconds;
}

static void fill_stage(job_costs *c, uint32_t unit, uint32_t stage, bool backward) {
    const tm_model *m = c->job->model;
    char key[COST_KEY];
    uint32_t u = c->alike[c->first[unit] + stage].unit, s = c->alike[c->first[unit] + stage].stage;
    double *out = &c->stage[backward][c->first[unit] + stage];
    if (backward && !tm_model_unit(m, unit)->stage[stage].has_backward) return; /* it takes none */
    if (u != unit || s != stage) {
        job_work have = job_load_work(m, u, s, backward, c->load);
        *out = cost_scaled(c->stage[backward][c->first[u] + s], have, job_load_work(m, unit, stage, backward, c->load));
        return;
    }
    tm_op op = op_make(c->job, backward ? OP_BACKWARD : OP_FORWARD, (op_args){.stage = {.unit = unit, .stage = stage}});
    job_work load = job_load_work(m, unit, stage, backward, c->load);
    const cost_source *side = &c->side[c->stage_side];
    job_work timed = side->is_gpu ? load : job_stage_work(m, unit, stage, backward, &c->timed);
    cost_stage_key(c, &op, key, sizeof key);
    *out = cost_scaled(resolve(c, &op, key, nominal(side, timed), bound_of(side, timed)), timed, load);
}

/* Tiles are alike; the largest part that learns has a full one wherever there is one. */
static uint32_t largest_part(const job_costs *c) {
    uint32_t part = 0;
    while (!c->job->part[part].learns && part + 1 < tm_model_parts(c->job->model)) part++;
    for (uint32_t p = part + 1; p < tm_model_parts(c->job->model); p++)
        if (c->job->part[p].learns && c->job->part[p].elements > c->job->part[part].elements) part = p;
    return part;
}

cost_tile cost_tile_of(const tm_op *op) {
    const op_row *row = op_row_of(op->code);
    switch (row ? (op_cost)row->cost : OP_COST_LITTLE) {
    case OP_COST_FINISH:
        return COST_FINISH;
    case OP_COST_UPDATE:
        return op->engine == TM_ENGINE_DEVICE ? COST_UPDATE_THERE : COST_UPDATE;
    case OP_COST_SUMS:
        return op_args_of(op).sums.pass == 0 ? COST_SUMS_0 : COST_SUMS_1;
    case OP_COST_DECODE:
        return COST_DECODE;
    default:
        return COST_TILES;
    }
}

cost_side cost_side_of(const job_costs *c, const tm_op *op) {
    const op_row *row = op_row_of(op->code);
    if (row && row->place == OP_ON_DEVICE) return c->stage_side;
    return cost_tile_of(op) == COST_UPDATE_THERE ? COST_DEVICE : COST_HOST;
}

/* The largest that is decoded speaks for all; NULL: nothing is. */
static const frozen_piece *largest_piece(const job_costs *c) {
    const frozen_piece *most = NULL;
    for (uint32_t i = 0; i < c->job->n_frozen; i++) {
        const frozen_piece *f = &c->job->frozen[i];
        if (!c->job->part[f->part].in_place && (!most || f->n > most->n)) most = f;
    }
    return most;
}

static double decode_key(const job_costs *c, char *buf, size_t cap) {
    const frozen_piece *f = largest_piece(c);
    snprintf(buf, cap, "decode %s n%llu %s", f ? tm_fmt_get((tm_fmt)f->fmt)->name : "",
             f ? (unsigned long long)f->n : 1, type_name(c->job));
    return f ? (double)f->n : 1;
}

double cost_tile_key(const job_costs *c, cost_tile which, char *buf, size_t cap) {
    if (which == COST_DECODE) return decode_key(c, buf, cap);
    static const char *const sums[] = {[COST_SUMS_0] = " sums 0", [COST_SUMS_1] = " sums 1", [COST_TILES] = NULL};
    double n = (double)tm_min_u64(c->job->part[largest_part(c)].elements, TM_TILE_ELEMENTS);
    snprintf(buf, cap, "%s%s n%.0f %s", which == COST_FINISH ? "finish" : c->job->update->name,
             sums[which] ? sums[which] : "", n, type_name(c->job));
    return n;
}

double cost_tile_bytes(const job_costs *c, cost_tile which) {
    double width = (double)tm_dtype_bytes(c->job->dtype), state = 4 + state_bytes_per_parameter(c->job);
    switch (which) {
    case COST_UPDATE:
    case COST_UPDATE_THERE:
        return 2 * state + width;
    case COST_SUMS_0: /* by rows, then by columns */
        return 2 * width + (passes_read_weights(c->job, 0) ? 4 : 0);
    case COST_SUMS_1:
        return width;
    case COST_DECODE:
        return 2 + width;
    default:
        return 4 + width;
    }
}

static void fill_tile(job_costs *c, cost_tile which, const tm_op *op) {
    char key[64];
    double n = cost_tile_key(c, which, key, sizeof key), rate = c->side[cost_side_of(c, op)].bytes_per_second;
    c->tile[which] = resolve(c, op, key, n * cost_tile_bytes(c, which) / rate, COST_BY_BYTES) / n;
}

static void fill_decode(job_costs *c) {
    const frozen_piece *f = largest_piece(c);
    if (!f) return;
    uint32_t piece = (uint32_t)(f - c->job->frozen);
    tm_op decode = op_make(c->job, OP_DECODE, (op_args){.decode = {.part = f->part, .piece = piece}});
    fill_tile(c, COST_DECODE, &decode);
}

static void fill_tiles(job_costs *c) {
    uint32_t part = largest_part(c);
    tm_op finish = op_make(c->job, OP_FINISH, (op_args){.finish = {.part = part}});
    fill_tile(c, COST_FINISH, &finish);
    fill_decode(c);
    if (!c->job->optimizer) return;
    tm_op update = op_make(c->job, OP_UPDATE, (op_args){.update = {.part = part}});
    fill_tile(c, COST_UPDATE, &update);
    if (c->stage_side == COST_DEVICE && c->job->tiers.update_tier == TM_TIER_EITHER) {
        tm_op there = op_make(c->job, OP_UPDATE, (op_args){.update = {.part = part}});
        there.engine = TM_ENGINE_DEVICE; /* as if all state that it uses were held there */
        there.tier = TM_TIER_DEVICE;
        fill_tile(c, COST_UPDATE_THERE, &there);
    }
    for (uint32_t k = 0; k + 1 < c->job->update->passes; k++) {
        tm_op sums = op_make(c->job, OP_SUMS, (op_args){.sums = {.part = part, .pass = k}});
        fill_tile(c, k ? COST_SUMS_1 : COST_SUMS_0, &sums);
    }
}

static void fill_table(job_costs *c) {
    const tm_model *m = c->job->model;
    for (int i = 0; i < COST_SIDES; i++) {
        cost_source *s = &c->side[i];
        s->asked = s->known = 0;
        memset(s->known_seconds, 0, sizeof s->known_seconds);
        memset(s->known_nominal, 0, sizeof s->known_nominal);
    }
    for (int b = 0; b < 2; b++)
        for (uint32_t u = 0; u < tm_model_units(m); u++)
            for (uint32_t s = 0; s < tm_model_unit(m, u)->n_stages; s++) fill_stage(c, u, s, b);
    fill_tiles(c);
}

static tm_status make_table(job_costs *c) {
    const tm_model *m = c->job->model;
    uint32_t units = tm_model_units(m), n = 0;
    c->first = tm_malloc(sizeof *c->first * (units + 1));
    if (!c->first) return tm_nomem(sizeof *c->first * units);
    for (uint32_t u = 0; u < units; u++) {
        c->first[u] = n;
        n += tm_model_unit(m, u)->n_stages;
    }
    c->stages = n;
    TM_TRY(find_alike(c));
    for (int b = 0; b < 2; b++)
        if (!(c->stage[b] = tm_calloc(n + 1, sizeof **c->stage))) return tm_nomem(n * sizeof **c->stage);
    fill_table(c);
    measure_again(c);
    if (c->n_just_timed > 0) fill_table(c); /* from the profile */
    tm_free(c->just_timed);
    c->just_timed = NULL;
    c->n_just_timed = c->cap_just_timed = 0;
    return TM_OK;
}

/* As many of its tokens have a label as in the mean, or about; 0: nearly all. */
static uint32_t timed_labels(const job_shape *t, job_load load) {
    double used = (double)t->rows * t->seq, n = used * load.labels / load.tokens;
    n = n < LABEL_GRAIN ? ceil(n) : LABEL_GRAIN * round(n / LABEL_GRAIN);
    return n < used ? (uint32_t)fmax(n, 1) : 0;
}

/* What the most of it is like: a micro-batch of the mean number of tokens. Products take so much, and so much more a
 * token; timed at the mean, the first part is right as well. */
static job_shape timed_shape(const job_shape *shape, job_load load) {
    job_shape t = {.micro_batches = 1, .rows = shape->rows, .seq = shape->seq};
    if (load.rows >= 1 && load.tokens < shape_tokens(shape)) {
        t.rows = (uint32_t)(load.rows + 0.5);
        t.seq = (uint32_t)tm_min_u64(tm_round_up((uint64_t)(load.tokens / t.rows), SEQ_GRAIN), shape->seq);
    }
    if (t.seq > MEASURED_TOKENS) t.seq = MEASURED_TOKENS;
    if ((uint64_t)t.rows * t.seq > MEASURED_TOKENS) t.rows = MEASURED_TOKENS / t.seq;
    if (load.tokens > 0) t.labels = timed_labels(&t, load);
    return t;
}

/* Timing takes what the budget leaves beside the program itself, while no frame exists yet. */
static uint64_t timing_budget(const tm_job *job, uint32_t tokens) {
    uint64_t have = tm_min_u64(job->opts.host_bytes, tm_mem_available_bytes() / 2);
    uint64_t taken = tm_max_u64(MEASURE_RESERVE, planner_fixed_bytes(job, tokens));
    return have > taken ? have - taken : 0;
}

/* Forward and backward of a step by the rates. */
static double step_by_rates(const job_costs *c) {
    const tm_model *m = c->job->model;
    double sum = 0;
    for (int b = 0; b < 2; b++)
        for (uint32_t u = 0; u < tm_model_units(m); u++)
            for (uint32_t s = 0; s < tm_model_unit(m, u)->n_stages; s++)
                sum += nominal(&c->side[c->stage_side], job_load_work(m, u, s, b, c->load));
    return sum * c->shape.micro_batches;
}

static double timing_seconds(const job_costs *c, const job_costs_ask *ask) {
    if (ask->mode != JOB_COSTS_MEASURE) return 0;
    if (!ask->run) return MEASURE_SECONDS;
    double part = MEASURE_PART * ask->steps * step_by_rates(c);
    return part < MEASURE_LEAST ? 0 : fmin(part, MEASURE_SECONDS);
}

/* Where no hardware file says otherwise, and never less for a start than the thread of src/comm needs. */
static const double LINK_RATE = 2e9, LINK_LATENCY = 30e-6;

/* The ranks of a node share its network. */
static void set_links(job_costs *c, const tm_machine *m) {
    double network = m->network_bps / (m->ranks_per_node ? m->ranks_per_node : 1);
    c->comm_bytes_per_second[0] = m->link_bps > 0 ? m->link_bps : LINK_RATE;
    c->comm_bytes_per_second[1] = network > 0 ? network : c->comm_bytes_per_second[0];
    c->comm_latency[0] = fmax(m->link_latency, LINK_LATENCY);
    c->comm_latency[1] = fmax(m->network_latency, LINK_LATENCY);
    if (m->gpus > 0 && c->job->ranks.peers) /* no thread of ours: a round for each doubling of the ranks */
        c->comm_latency[0] = m->link_latency * ceil(log2(c->job->ranks.ranks));
}

/* A GPU that no file describes is as fast as the processor, until its operations were timed. */
static void set_rates(job_costs *c, const tm_machine *m) {
    bool narrow = c->job->dtype == TM_BF16; /* fp16: widened on a processor */
    for (int s = 0; s < COST_SIDES; s++) {
        c->side[s].flops_per_second = narrow ? m->cpu_flops_bf16 : m->cpu_flops_fp32;
        c->side[s].bytes_per_second = m->cpu_bps;
    }
    if (m->gpus == 0 || c->stage_side != COST_DEVICE) return;
    c->side[COST_DEVICE].flops_per_second = c->job->dtype == TM_F32 ? m->gpu_flops_fp32 : m->gpu_flops_bf16;
    c->side[COST_DEVICE].bytes_per_second = m->gpu_bps;
    c->side[COST_DEVICE].is_gpu = true;
}

static tm_status save(const job_costs *c) {
    for (int s = 0; s < COST_SIDES; s++)
        if (c->side[s].profile) TM_TRY(tm_profile_save(c->side[s].profile));
    return TM_OK;
}

tm_status job_costs_open(job_costs **out, tm_job *job, const job_costs_ask *ask, tm_machine *machine) {
    tm_status rc = TM_OK;
    job_costs_mode mode = ask->mode;
    job_costs *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    c->job = job;
    c->shape = *ask->shape;
    c->load = ask->load ? *ask->load : job_shape_load(tm_model_get_config(job->model), ask->shape);
    c->timed = timed_shape(ask->shape, c->load);
    c->mode = mode;
    c->stage_side = job->tiers.traits.own_processors ? COST_DEVICE : COST_HOST;
    set_rates(c, machine);
    if (job->opts.device_bps) machine->h2d_bps = machine->d2h_bps = (double)job->opts.device_bps;
    set_links(c, machine);
    if (job->ranks.ranks > 1 && !(c->exchanges = tm_calloc(COST_EXCHANGES, sizeof *c->exchanges)))
        TM_GO(tm_nomem(COST_EXCHANGES * sizeof *c->exchanges));
    c->budget = timing_budget(job, shape_tokens(ask->shape));
    c->limit_ns = (uint64_t)(1e9 * timing_seconds(c, ask));
    c->began_ns = tm_now_ns();
    if (mode != JOB_COSTS_NOMINAL) TM_GO(open_profile(c));
    if (mode != JOB_COSTS_NOMINAL && c->stage_side == COST_DEVICE) TM_GO(cost_device_open(c, machine));
    tm_phase_begin(&c->timing, "timing operations", "operations", 0);
    rc = make_table(c);
    tm_phase_end(&c->timing);
    TM_GO(rc);
    cost_device_leave(c);
    if (mode == JOB_COSTS_MEASURE && save(c) != TM_OK) {
        tm_log(TM_LOG_WARN, "%s; what was timed is not kept", tm_error_get()->text);
        tm_error_clear();
    }
    *out = c;
done:
    if (rc != TM_OK) job_costs_close(c);
    return rc;
}

void job_costs_close(job_costs *c) {
    if (!c) return;
    cost_device_leave(c);
    for (int s = 0; s < COST_SIDES; s++) tm_profile_close(c->side[s].profile);
    tm_free(c->first);
    tm_free(c->exchanges);
    tm_free(c->alike);
    tm_free(c->just_timed);
    for (int b = 0; b < 2; b++) {
        tm_free(c->stage[b]);
        tm_free(c->observed[b]);
    }
    tm_free(c);
}

static job_costs_basis measured(const cost_source *s) {
    return s->known == 0 ? JOB_COSTS_NONE : s->known < s->asked ? JOB_COSTS_SOME : JOB_COSTS_ALL;
}

job_costs_basis job_costs_measured(const job_costs *c) {
    return measured(&c->side[COST_HOST]);
}

double job_costs_disturbed(const job_costs *c) {
    return c->timed_seconds > 0 ? c->disturbed_seconds / c->timed_seconds : 0;
}

job_costs_basis job_costs_device_measured(const job_costs *c) {
    return measured(&c->side[COST_DEVICE]);
}

/* ---- looking up ---------------------------------------------------------------------------------------------- */

/* What passes over values once and does next to nothing with them goes as fast as memory: the rounding of gradients,
 * which is timed on this machine, or where a hardware file says it all takes what that says. */
static double memory_rate(const job_costs *c) {
    if (c->stage_side == COST_DEVICE) return c->side[COST_HOST].bytes_per_second;
    return (sizeof(float) + (double)tm_dtype_bytes(c->job->dtype)) / c->tile[COST_FINISH];
}

/* MPI's sums of what it is handed: a ring sends 2 (n - 1) / n of it. Over several nodes it is as slow as its slowest
 * link, whichever rank has that; of a node one rank sends to the next node, and has the network to itself. */
static double ring_seconds(const job_costs *c, double handed) {
    double n = tm_comm_size(c->job->ranks.comm), bytes = 2 * handed * (n - 1) / n;
    double near = c->comm_latency[0] + bytes / c->comm_bytes_per_second[0];
    if (tm_comm_nodes(c->job->ranks.comm) < 2) return near;
    return fmax(near,
                c->comm_latency[1] + bytes / (c->comm_bytes_per_second[1] * tm_comm_node_size(c->job->ranks.comm)));
}

/* What this rank sends on each link, both at once, and a start. Into memory that its node shares it copies its slice
 * (read and written), between two meetings. */
static double comm_seconds(const job_costs *c, const tm_op *op) {
    const job_ranks *r = &c->job->ranks;
    uint64_t bytes[2], copied = job_comm_copied(c->job, op);
    job_comm_bytes(c->job, op, bytes);
    if (op->code == OP_REDUCE && r->mpi_sums) return ring_seconds(c, (double)(bytes[0] + bytes[1]));
    double near = c->comm_latency[0] + (double)bytes[0] / c->comm_bytes_per_second[0];
    if (copied) near += c->comm_latency[0] + 2 * (double)copied / memory_rate(c);
    double far = bytes[1] ? c->comm_latency[1] + (double)bytes[1] / c->comm_bytes_per_second[1] : 0;
    return fmax(near, far);
}

static double known_comm_seconds(const job_costs *c, const tm_op *op) {
    struct cost_known *k = &c->exchanges[(op->arg[0] * 31 + op->arg[1] * 7 + op->code) % COST_EXCHANGES];
    if (k->code == op->code && memcmp(k->arg, op->arg, sizeof k->arg) == 0) return k->seconds;
    *k = (struct cost_known){.code = op->code, .seconds = comm_seconds(c, op)};
    memcpy(k->arg, op->arg, sizeof k->arg);
    return k->seconds;
}

/* The log-likelihoods of all micro-batches: a logarithm and a sum a token, one thread. */
static const double TOKEN_SECONDS = 20e-9;

double job_cost(void *costs, const tm_op *op) {
    const job_costs *c = costs;
    const op_row *row = op_row_of(op->code);
    op_args a = op_args_of(op);
    bool backward = op->code == OP_BACKWARD;
    switch (row ? (op_cost)row->cost : OP_COST_LITTLE) {
    case OP_COST_STAGE:
        return c->stage[backward][c->first[a.stage.unit] + a.stage.stage] /
               (backward && op->flags & OP_KEPT_LOGITS ? COST_WITHOUT_KEPT_LOGITS : 1);
    case OP_COST_FINISH:
    case OP_COST_UPDATE:
    case OP_COST_SUMS:
    case OP_COST_DECODE:
        return c->tile[cost_tile_of(op)] * op_amount(c->job, op);
    case OP_COST_TOKENS:
        return c->load.tokens * TOKEN_SECONDS * op_amount(c->job, op);
    case OP_COST_BYTES:
        return op_amount(c->job, op) / c->side[COST_HOST].bytes_per_second;
    case OP_COST_LINKS:
        return known_comm_seconds(c, op);
    default:
        return 1e-6;
    }
}

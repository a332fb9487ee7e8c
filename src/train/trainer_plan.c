/* Which way the step is run: candidates from the configuration, the choice, and the plans beside it. */
#include "comm/comm.h"
#include "offload/machine/machine.h"
#include "planner/start.h"
#include "step/elastic.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

uint64_t trainer_host_bytes(const tm_config *c) {
    if (c->memory.host_kind == TM_BUDGET_BYTES) return c->memory.host_bytes;
    if (c->memory.host_kind == TM_BUDGET_UNLIMITED) return UINT64_MAX;
    return tm_mem_available_bytes() / 5 * 4;
}

/* A budget that cannot be had is a mistake, or of another machine. */
tm_status trainer_check_budget(const tm_config *c) {
    char want[32], have[32];
    uint64_t bytes = c->memory.host_bytes, total = tm_mem_total_bytes(), available = tm_mem_available_bytes();
    if (c->memory.host_kind != TM_BUDGET_BYTES) return TM_OK;
    tm_format_size(bytes, want, sizeof want);
    if (bytes > total)
        return tm_fail(TM_EINPUT,
                       "memory.host_budget %s (%llu bytes) is more than there is: this machine, or the cgroup of this "
                       "process, has %s (%llu bytes); give less, or leave it out for 80%% of what is available",
                       want, (unsigned long long)bytes, tm_format_size(total, have, sizeof have),
                       (unsigned long long)total);
    if (bytes > available)
        tm_warn_once("memory.host_budget", "memory.host_budget %s is more than is available now, %s", want,
                     tm_format_size(available, have, sizeof have));
    return TM_OK;
}

static void pin(const tm_config *c, bool pinned[TM_KINDS]) {
    bool params = c->param_place == TM_PLACE_NONE || c->param_place == TM_PLACE_CPU;
    bool optimizer = c->optimizer_place == TM_PLACE_NONE || c->optimizer_place == TM_PLACE_CPU;
    pinned[TM_KIND_WEIGHT_HI] = params;
    pinned[TM_KIND_WEIGHT_LO] = pinned[TM_KIND_EXP_AVG] = pinned[TM_KIND_EXP_AVG_SQ] = pinned[TM_KIND_GRAD] = optimizer;
    pinned[TM_KIND_ACTIVATION] = params && optimizer;
}

/* ---- DeepSpeed's knobs, as bounds of the planner ------------------------------------------------------------- */

/* Elements as bytes; what is not given bounds nothing. */
static uint64_t bytes_of(uint64_t elements, uint64_t each) {
    return elements >= UINT64_MAX / each ? UINT64_MAX : elements * each;
}

/* The look-ahead is one number for everything that is read. Bounds above its own are none. */
static uint64_t window_bound(const tm_config *c) {
    enum { OPTIMIZER_BYTES = 12, SWAP_BYTES = 4 }; /* a parameter: read by its update; of one fp32 buffer */
    uint64_t width = tm_dtype_bytes(c->precision), sub_groups = UINT64_MAX;
    uint64_t window = bytes_of(c->knobs.prefetch_bucket_size, width);
    window = tm_min_u64(window, bytes_of(c->knobs.param_buffers, width));
    window = tm_min_u64(window, bytes_of(c->knobs.sub_group_size, OPTIMIZER_BYTES));
    window = tm_min_u64(window, bytes_of(c->knobs.max_live_parameters, width) / 2);
    if (c->knobs.optimizer_buffer_count != TM_AUTO_ELEMENTS)
        sub_groups = bytes_of(c->knobs.optimizer_buffer_count, bytes_of(c->zero.sub_group_size, SWAP_BYTES));
    return tm_min_u64(window, sub_groups);
}

static void bound(const tm_config *c, job_opts *o) {
    uint64_t width = tm_dtype_bytes(c->precision), window = window_bound(c);
    uint64_t live = bytes_of(c->knobs.max_live_parameters, width);
    uint64_t kept = bytes_of(c->knobs.max_in_cpu, width);
    if (live != UINT64_MAX) kept = tm_min_u64(kept, live - tm_min_u64(window, live / 2));
    if (kept != UINT64_MAX) o->max_resident_bytes[TM_KIND_WEIGHT_HI] = tm_max_u64(kept, 1);
    if (window < 512 * TM_MIB) o->window_mib = (uint32_t)tm_max_u64((window + TM_MIB - 1) / TM_MIB, 1);
    o->no_read_ahead = c->knobs.no_pipeline_read;
    o->no_write_behind = c->knobs.no_pipeline_write;
    o->no_pin_memory = c->knobs.no_pin_memory;
    bool host_only = c->optimizer_place == TM_PLACE_CPU || c->param_place == TM_PLACE_CPU;
    o->host_share = c->knobs.update_ratio >= 0 ? c->knobs.update_ratio : host_only ? 1 : 0;
    if (c->knobs.param_persistence_threshold != TM_AUTO_ELEMENTS)
        o->persist_elements = c->knobs.param_persistence_threshold;
}

/* ---- ways of running a step ---------------------------------------------------------------------------------- */

/* Update B can neither clip nor skip: it is no choice where gradients are clipped or may overflow. Sums over whole
 * tensors need all gradients parked. */
static bool update_is_open(const tm_config *c, pass_update u) {
    static const tm_update name[] = {TM_UPDATE_AUTO, TM_UPDATE_U, TM_UPDATE_F, TM_UPDATE_B};
    if (c->optimizer->passes > 1) return u == UPDATE_AFTER;
    if (c->memory.update != TM_UPDATE_AUTO) return c->memory.update == name[u];
    return u != UPDATE_WITHIN || (c->max_grad_norm <= 0 && c->precision != TM_F16);
}

static bool keep_is_open(tm_activations a, uint32_t quarters) {
    if (a == TM_ACT_RECOMPUTE) return quarters == 0;
    return a == TM_ACT_AUTO || quarters >= PASS_KEEP_ALL;
}

uint32_t trainer_ways(const trainer *t, const job_shape *shape, pass_opts out[TRAINER_MAX_WAYS]) {
    const tm_config *c = t->cfg;
    uint32_t n = 0,
             most = t->args->replay_every > 0 ? PASS_KEEP_ALL : PASS_KEEP_LOGITS; /* replayed, they need a copy */
    for (pass_update u = UPDATE_AFTER; u <= UPDATE_WITHIN; u++) {
        for (uint32_t keep = 0; keep <= most; keep++)
            for (int stage_wise = 0; stage_wise < (shape->micro_batches > 1 ? 2 : 1); stage_wise++) {
                for (int overlap = 0; overlap < (c->world_size > 1 && !c->knobs.no_overlap ? 2 : 1); overlap++) {
                    if (!update_is_open(c, u) || !keep_is_open(c->memory.activations, keep)) continue;
                    out[n++] = (pass_opts){.shape = *shape,
                                           .backward = true,
                                           .update = u,
                                           .park = u == UPDATE_BEFORE,
                                           .keep_quarters = keep,
                                           .no_spill = c->memory.activations == TM_ACT_KEEP,
                                           .stage_wise = stage_wise,
                                           .overlap = overlap};
                }
            }
    }
    return n;
}

/* The largest micro-batch. Of a file that was read in part it may be any. */
static job_shape shape_of(const tm_config *c, data_file *f, uint32_t rows, uint64_t steps) {
    tm_batch_limits lim;
    if (data_part(f) < 1)
        return (job_shape){.micro_batches = c->accumulation_steps, .rows = rows, .seq = c->data.seq_len};
    tm_dataset_limits(data_set(f), 0, steps, &lim);
    return (job_shape){.micro_batches = c->accumulation_steps, .rows = lim.rows, .seq = lim.seq, .tokens = lim.tokens};
}

static job_shape eval_shape(const trainer *t) {
    return shape_of(t->cfg, t->eval, t->cfg->eval_batch_size, tm_dataset_steps_per_epoch(data_set(t->eval)));
}

/* Of a file that was read in part, the index of what is beyond as well. */
static uint64_t data_bytes(data_file *f) {
    enum { INDEX_BYTES = 16 }; /* a sample */
    double beyond = (double)tm_dataset_get_counts(data_set(f))->samples * (1 / data_part(f) - 1);
    return tm_dataset_memory_bytes(data_set(f)) + (uint64_t)beyond * INDEX_BYTES;
}

static tm_status mark_no_decay(trainer *t) {
    const tm_strings *list = &t->cfg->no_decay;
    uint32_t n = tm_model_tensors(t->job->model);
    if (list->n == 0) return TM_OK;
    t->job->step.no_decay = tm_calloc(n + 1, sizeof *t->job->step.no_decay);
    if (!t->job->step.no_decay) return tm_nomem(n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < list->n; k++)
            if (strstr(tm_model_tensor(t->job->model, i)->name, list->item[k])) t->job->step.no_decay[i] = true;
    return TM_OK;
}

static tm_status compile(trainer *t, tm_program *p, tm_plan **plan) {
    tm_status rc = job_compile(t->job, p, plan);
    tm_program_free(p);
    return rc;
}

/* Update F needs two more plans: for a step that finds nothing pending, and for whoever looks at the state in between.
 */
static tm_status compile_folded(trainer *t, const pass_opts *way) {
    tm_program *p;
    tm_plan_free(t->first_plan);
    tm_plan_free(t->drain_plan);
    t->first_plan = t->drain_plan = NULL;
    pass_opts first = *way;
    first.update = UPDATE_NONE;
    TM_TRY(build_pass(&p, t->job, "first step", &first));
    TM_TRY(compile(t, p, &t->first_plan));
    TM_TRY(build_drain(&p, t->job));
    return compile(t, p, &t->drain_plan);
}

/* What is left on the heap of a tokenizer that was read, or takes to be written down again from a GGUF file: about
 * twice tokenizer.json, measured with 49 k words; of a GGUF file's an allowance. */
static uint64_t text_bytes(const tm_config *c) {
    enum { OF_GGUF_MIB = 10 };
    tm_file *f;
    uint64_t bytes = tm_path_is_dir(c->model) ? 0 : OF_GGUF_MIB * TM_MIB;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/tokenizer.json", c->model);
    if (n > 0 && (size_t)n < sizeof path && tm_file_open(&f, path) == TM_OK) {
        bytes = 2 * tm_file_size(f);
        tm_file_close(f);
    }
    tm_error_clear();
    return bytes;
}

static bool in_files(tm_place place) {
    return place == TM_PLACE_NVME || place == TM_PLACE_AUTO;
}

static const tm_strings *paths_of(const tm_config *c) {
    static const tm_strings none;
    bool param = in_files(c->param_place), optimizer = in_files(c->optimizer_place);
    if (param && optimizer) return &c->all_paths;
    return param ? &c->param_paths : optimizer ? &c->optimizer_paths : &none;
}

/* Where both places are files, parameters lie in the paths of one block, what the update needs in those of the other:
 * masters, moments, gradients. Temporaries of activations are neither's: they go wherever there is a disk. */
static uint32_t kinds_of(unsigned is_for) {
    enum { PARAM = 1 << TM_KIND_WEIGHT_HI, TEMPORARY = 1 << TM_KIND_ACTIVATION };
    enum { UPDATE = 1 << TM_KIND_WEIGHT_LO | 1 << TM_KIND_EXP_AVG | 1 << TM_KIND_EXP_AVG_SQ | 1 << TM_KIND_GRAD };
    return TEMPORARY | (is_for & TM_PATH_PARAM ? PARAM : 0) | (is_for & TM_PATH_OPTIMIZER ? UPDATE : 0);
}

void trainer_set_paths(const tm_config *c, job_opts *o) {
    const tm_strings *paths = paths_of(c);
    o->paths = paths->item;
    o->n_paths = paths->n;
    if (paths == &c->all_paths)
        for (uint32_t i = 0; i < paths->n && i < TM_MACHINE_PATHS; i++) o->path_kinds[i] = kinds_of(c->all_for[i]);
}

tm_status trainer_machine(const job_opts *o, tm_machine *out) {
    TM_TRY(tm_machine_of(o->paths, o->n_paths, out));
    for (uint32_t i = 0; i < out->n_paths; i++) out->path[i].kinds = o->path_kinds[i];
    return TM_OK;
}

/* The configuration's, else those that `tune` found for this disk, else the engine's own. Speed only. */
static void set_requests(const tm_config *c, job_opts *o) {
    tm_disk disk;
    if (c->aio.given) {
        o->io.queue_depth = c->aio.queue_depth;
        o->io.block_bytes = (uint32_t)c->aio.block_bytes;
        o->io.single_submit = c->aio.single_submit;
        o->io.no_overlap_events = !c->aio.overlap_events;
    } else if (o->n_paths > 0 && tm_profile_get_disk(o->paths[0], &disk)) {
        o->io.queue_depth = disk.queue_depth;
        o->io.block_bytes = disk.block_bytes;
    }
}

job_opts trainer_job_options(const trainer *t) {
    const tm_config *c = t->cfg;
    job_opts o = {.model = c->model,
                  .dtype = c->precision,
                  .optimizer = true,
                  .update = c->optimizer,
                  .update_opts = c->optim,
                  .init_random = c->init_random,
                  .seed = c->seed,
                  .host_bytes = trainer_host_bytes(c),
                  .device = trainer_device(t),
                  .device_bytes = t->device_bytes ? t->device_bytes : c->memory.device_bytes,
                  .device_bps = c->memory.device_bandwidth,
                  .slots = c->memory.slots,
                  .allow_tmpfs = c->memory.allow_tmpfs,
                  .cache_none = c->memory.cache_none,
                  .no_hold = c->memory.cache_none,
                  .spread = c->memory.spread,
                  .order_seed = t->args->order_seed ? t->args->order_seed + t->ranks.rank : 0,
                  .commits = trainer_commits(t),
                  .home = t->home,
                  .run_name = t->run_name,
                  .key = *t->key ? t->key : NULL,
                  .of = t->here,
                  .resume = t->old.other ? NULL : t->commit,
                  .ranks = t->ranks,
                  .io = {.engine = c->memory.io_engine, .threads = c->aio.threads}};
    trainer_set_paths(c, &o);
    set_requests(c, &o);
    pin(c, o.pinned);
    bound(c, &o);
    if (!c->init_random) o.other_bytes += text_bytes(c);
    if (t->train) o.other_bytes += data_bytes(t->train);
    if (t->eval) {
        job_shape shape = eval_shape(t);
        o.other_bytes += data_bytes(t->eval);
        o.other_tokens = shape_tokens(&shape);
    }
    return o;
}

job_shape trainer_step_shape(const trainer *t) {
    const tm_config *c = t->cfg;
    if (t->train) return shape_of(c, t->train, c->micro_batch_size, (uint64_t)c->total_steps);
    return (job_shape){.micro_batches = c->accumulation_steps, .rows = c->micro_batch_size, .seq = c->data.seq_len};
}

/* Evenly over the run; a sample costs a microsecond a row. */
enum { SAMPLED_STEPS = 4096 };

trainer_load trainer_step_load(const trainer *t, const tm_model_config *m) {
    job_shape largest = trainer_step_shape(t);
    uint64_t ranks = t->comm ? t->ranks.ranks : 1, steps = (uint64_t)t->cfg->total_steps;
    trainer_load out = {.load = job_shape_load(m, &largest)};
    out.tokens = (double)ranks * largest.micro_batches * largest.rows * largest.seq;
    out.padded = (double)ranks * largest.micro_batches * shape_tokens(&largest);
    if (!t->train || steps == 0) return out;
    uint64_t n = tm_min_u64(steps, SAMPLED_STEPS);
    trainer_load sum = {.tokens = 0};
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < largest.micro_batches; k++)
            for (uint32_t r = 0; r < ranks; r++) {
                tm_batch_shape b;
                tm_dataset_shape(data_set(t->train), i * steps / n, k, r, &b);
                sum.tokens += (double)b.mask_tokens;
                sum.padded += b.tokens;
                if (r != t->ranks.rank) continue;
                job_load one = job_shape_load(m, &(job_shape){.rows = b.rows, .seq = b.seq, .tokens = b.tokens});
                sum.load.rows += one.rows;
                sum.load.tokens += b.tokens;
                sum.load.pairs += one.pairs;
            }
    double batches = (double)n * largest.micro_batches;
    out.load = (job_load){sum.load.rows / batches, sum.load.tokens / batches, sum.load.pairs / batches};
    out.tokens = sum.tokens / (double)n;
    out.padded = sum.padded / (double)n;
    return out;
}

static void say_plan(const trainer *t, const pass_opts *way) {
    const tm_plan_info *info = tm_plan_get_info(t->plan);
    const tm_io_opts *io = &t->job->opts.io;
    char a[32], b[32], d[32], of[32], requests[64] = "";
    if (io->queue_depth)
        snprintf(requests, sizeof requests, " (%u x %s)", io->queue_depth,
                 tm_format_size(io->block_bytes, of, sizeof of));
    tm_log(TM_LOG_INFO,
           "plan: %s resident of %s frames, %s on disk, update %s, activations %s, %u operations, engine %s%s",
           tm_format_size(info->resident_bytes, a, sizeof a), tm_format_size(info->slab_bytes, b, sizeof b),
           tm_format_size(tm_store_disk_bytes(t->job->store), d, sizeof d), pass_update_name(way),
           pass_activations_name(t->job, way), info->ops, tm_store_engine(t->job->store), requests);
}

static tm_status say_autos(const trainer *t) {
    tm_buf text = {0};
    bool any;
    tm_status rc = tm_config_autos(t->cfg, &text, &any);
    if (rc == TM_OK && any) tm_log(TM_LOG_INFO, "\"auto\" is %s; null: the planner decides", text.data);
    tm_buf_free(&text);
    return rc;
}

static tm_status compile_evaluation(trainer *t) {
    tm_program *p;
    job_shape shape = eval_shape(t);
    tm_plan_free(t->eval_plan);
    t->eval_plan = NULL;
    TM_TRY(build_pass(&p, t->job, "evaluation", &(pass_opts){.shape = shape, .loss = true}));
    return compile(t, p, &t->eval_plan);
}

/* Everything beside the step itself, with the way of running it that was chosen. */
tm_status trainer_compile_more(void *ctx, tm_job *job, const pass_opts *way) {
    trainer *t = ctx;
    (void)job;
    t->way = *way;
    t->folded = way->update == UPDATE_BEFORE;
    if (t->folded) TM_TRY(compile_folded(t, way));
    return t->eval ? compile_evaluation(t) : TM_OK;
}

/* ---- choices that were forced -------------------------------------------------------------------------------- */

/* The least budget of the job if `activations`, `update` were left to the planner. */
static tm_status minimum_without(const trainer *t, const job_opts *o, bool activations, bool update, uint64_t *host) {
    tm_config c = *t->cfg;
    trainer open = *t;
    pass_opts way[TRAINER_MAX_WAYS];
    uint64_t least[TRAINER_MAX_WAYS], plans[TRAINER_MAX_WAYS];
    job_shape shape = trainer_step_shape(t);
    if (activations) c.memory.activations = TM_ACT_AUTO;
    if (update) c.memory.update = TM_UPDATE_AUTO;
    open.cfg = &c;
    way_list ways = {.way = way, .n = trainer_ways(&open, &shape, way), .least = least, .plans = plans};
    TM_TRY(job_minimum(t->job, o, &ways));
    *host = ways.minimum == UINT64_MAX ? UINT64_MAX : ways.minimum + t->job->fixed_bytes;
    return TM_OK;
}

/* The same of all ranks: what the most demanding one takes, and whether each has it. They have agreed on a refusal. */
static tm_status enough_without(trainer *t, const job_opts *o, unsigned without, uint64_t *host, bool *enough) {
    uint64_t most = 0, all;
    tm_status rc = minimum_without(t, o, without & 1, without & 2, &most);
    all = rc == TM_OK && most <= o->host_bytes;
    *host = most;
    *enough = all;
    if (!t->comm) return rc;
    tm_error_clear(); /* then nothing is advised */
    TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_MAX, host, 1));
    TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_MIN, &all, 1));
    *enough = all;
    return TM_OK;
}

/* A refusal names what it takes; where a forced choice is the reason, the smallest change may be to leave it out. */
static tm_status refuse_forced(trainer *t, const job_opts *o) {
    static const char *const name[] = {"", "memory.activations", "memory.update",
                                       "memory.activations and memory.update"};
    unsigned forced =
        (t->cfg->memory.activations != TM_ACT_AUTO ? 1 : 0) | (t->cfg->memory.update != TM_UPDATE_AUTO ? 2 : 0);
    tm_error why = *tm_error_get();
    char room[32];
    if (job_refused_device() || (t->comm && !t->agreed)) return TM_EBUDGET; /* not of the host; not known to all */
    tm_error_clear();
    for (unsigned without = 1; without <= forced; without++) {
        uint64_t host;
        bool enough;
        if ((without & forced) != without) continue;
        TM_TRY(enough_without(t, o, without, &host, &enough));
        if (enough)
            return tm_fail(TM_EBUDGET, "%s; or leave out %s, then %llu bytes (%s) are enough", why.text, name[without],
                           (unsigned long long)host, tm_format_size(host, room, sizeof room));
    }
    tm_error_set(&why);
    return TM_EBUDGET;
}

tm_status trainer_open_job(trainer *t) {
    tm_config *c = t->cfg;
    job_opts o = trainer_job_options(t);
    TM_TRY(job_open(&t->job, &o));
    o.other_bytes += trainer_replay_bytes(t);
    if (t->old.other) {
        TM_TRY(job_agree(t->job, elastic_open(&t->elastic, t->job->model, t->old.directory, t->old.ranks)));
        o.elastic = t->elastic;
    }
    TM_TRY(trainer_watch_open(t, &o));
    TM_TRY(tm_config_resolve_model(c, tm_model_get_config(t->job->model)->hidden_size));
    TM_TRY(mark_no_decay(t));
    t->job->fill = trainer_fill;
    t->job->fill_ctx = t;
    t->job->step.max_grad_norm = c->max_grad_norm;
    pass_opts way[TRAINER_MAX_WAYS];
    job_shape shape = trainer_step_shape(t);
    uint32_t n = trainer_ways(t, &shape, way), chosen;
    tm_status rc = job_start(t->job, &o, "training step", way, n, &t->plan, &chosen, &t->minimum_host_bytes,
                             trainer_compile_more, t);
    if (rc == TM_EBUDGET) return refuse_forced(t, &o);
    if (rc != TM_OK) return rc;
    if (!t->args->quiet) say_plan(t, &way[chosen]);
    return t->args->quiet || !trainer_speaks(t) ? TM_OK : say_autos(t);
}

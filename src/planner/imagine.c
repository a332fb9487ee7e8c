/* One rank of an imagined machine with GPUs: every way of sharing the work between its device, its host memory and its
 * disks is compiled and simulated, and the fastest that fits is reported. Nothing here runs. */
#include "planner/imagine_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A tile of a shard: larger where there would be more of them than this. */
enum { MOST_TILES = 2048 };
/* What a rank takes beside frames: the program, MPI and the device's driver; the device's context and libraries. */
static const uint64_t HOST_FIXED = 512 << 20, DEVICE_FIXED = 1 << 30;

/* ---- the rank ------------------------------------------------------------------------------------------------ */

static void share_node(imagine *x) {
    const tm_machine *node = &x->g->machine;
    double n = node->ranks_per_node;
    x->rank = *node;
    x->per_node = node->ranks_per_node;
    x->ranks = node->nodes * node->ranks_per_node;
    x->rank.host_bytes /= node->ranks_per_node;
    x->rank.cpu_flops_fp32 /= n;
    x->rank.cpu_flops_bf16 /= n;
    x->rank.cpu_bps /= n;
    x->rank.disk.read_bps /= n;
    x->rank.disk.write_bps /= n;
    x->rank.disk.bytes /= node->ranks_per_node;
    /* A budget is of the arena; the file's memory is all that the device has, the driver's part included. */
    const tm_config *c = x->g->s->cfg;
    if (c->memory.device_given && c->memory.device_bytes != TM_DEVICE_UNLIMITED)
        x->rank.gpu_bytes = tm_min_u64(x->rank.gpu_bytes, c->memory.device_bytes + DEVICE_FIXED);
}

/* The strategy; where none is named and zero_optimization.stage is 0 (its default), zero3. */
static const char *share_state(imagine *x) {
    const tm_config *c = x->g->s->cfg;
    tm_strategy s = c->zero_stage == 0 && !c->strategy_given ? TM_STRATEGY_ZERO3 : c->strategy;
    x->state_ranks = s == TM_STRATEGY_DDP ? 1 : s == TM_STRATEGY_HSDP ? x->per_node : x->ranks;
    x->weight_ranks = s == TM_STRATEGY_ZERO1 || s == TM_STRATEGY_ZERO2 ? 1 : x->state_ranks;
    x->second_ranks = s == TM_STRATEGY_HPZ ? x->per_node : 0;
    return x->ranks > 1 ? tm_strategy_rows[s].name : "";
}

/* ---- units --------------------------------------------------------------------------------------------------- */

static void unit_work(const imagine *x, uint32_t unit, imagine_unit *u) {
    double flops = x->dtype == TM_F32 ? x->rank.gpu_flops_fp32 : x->rank.gpu_flops_bf16;
    for (uint32_t s = 0; s < tm_model_unit(x->m, unit)->n_stages; s++)
        for (int b = 0; b < 2; b++) {
            job_work w = job_load_work(x->m, unit, s, b, x->load);
            u->seconds[b] += fmax(w.flops / flops, w.bytes / x->rank.gpu_bps) + STAGE_LAUNCH_SECONDS;
        }
}

static void unit_memory(const imagine *x, const tm_unit *m, imagine_unit *u) {
    uint64_t T = shape_tokens(&x->shape), grads = 0;
    u->boundary = m->slot[1].bytes * T;
    for (uint32_t s = 2; s < TM_MAX_SLOTS; s++) {
        u->kept += m->slot[s].bytes * T;
        grads += m->slot[s].grad_bytes * T;
    }
    u->forward = u->kept;
    u->backward = u->kept + grads;
    if (m->kind == TM_UNIT_HEAD)
        u->backward += T * x->gpu.sizes.vocab_block * (sizeof(float) + tm_dtype_bytes(x->dtype));
}

/* Parts that the unit uses and another owns: tied, all of them or none. */
static void unit_parts(const imagine *x, uint32_t unit, imagine_unit *u) {
    const tm_unit *m = tm_model_unit(x->m, unit);
    u->owner = unit;
    for (uint32_t p = 0; p < m->n_parts; p++) u->elements += tm_model_part(x->m, m->first_part + p)->elements;
    for (uint32_t s = 0; s < m->n_stages && m->kind == TM_UNIT_HEAD; s++)
        for (uint32_t i = 0; i < m->stage[s].n_parts; i++) {
            uint32_t owner = tm_model_part(x->m, m->stage[s].part[i])->unit;
            if (owner != unit) u->owner = owner; /* its own norm goes with the owner's */
        }
    u->shard = (u->elements + x->state_ranks - 1) / x->state_ranks;
    if (u->shard < IMAGINE_LEAST_SHARD) u->shard = IMAGINE_LEAST_SHARD;
}

static tm_status make_units(imagine *x) {
    uint64_t tiles = 0;
    x->units = tm_model_units(x->m);
    x->unit = tm_calloc(x->units, sizeof *x->unit);
    if (!x->unit) return tm_nomem(x->units * sizeof *x->unit);
    for (uint32_t u = 0; u < x->units; u++) {
        unit_parts(x, u, &x->unit[u]);
        unit_memory(x, tm_model_unit(x->m, u), &x->unit[u]);
        unit_work(x, u, &x->unit[u]);
        tiles += x->unit[u].shard / TM_TILE_ELEMENTS + 1;
    }
    for (x->grain = TM_TILE_ELEMENTS; tiles > MOST_TILES; tiles = tiles / 2 + x->units / 2) x->grain *= 2;
    return TM_OK;
}

/* ---- state --------------------------------------------------------------------------------------------------- */

static uint64_t optimizer_bytes(const imagine *x, uint32_t k, uint64_t n) {
    const tm_config *c = x->g->s->cfg;
    return tm_optim_state_bytes(c->optimizer, &c->optim, k, &(tm_optim_shape){1, 0, n});
}

bool plan_device_updates(const tm_config *c) {
    tm_device_traits gpu;
    bool known = tm_device_known("cuda", &gpu) == TM_OK;
    tm_error_clear();
    return known && job_device_updates(&gpu, c->optimizer->name, c->precision);
}

/* As states.c has them: codes of 8 bits lie beside the magnitudes of their blocks. Small tensors, which stay in 32
 * bits, do not count here. */
uint64_t imagine_state_bytes(const imagine *x, tm_kind kind, uint64_t n) {
    uint32_t k = kind == TM_KIND_EXP_AVG ? 0 : 1;
    switch (kind) {
    case TM_KIND_WEIGHT_LO:
        return n * (x->dtype == TM_F32 ? 0 : x->dtype == TM_BF16 ? 2 : 4);
    case TM_KIND_EXP_AVG:
    case TM_KIND_EXP_AVG_SQ:
        return optimizer_bytes(x, k, n) + optimizer_bytes(x, k + 2, n);
    default:
        return n * tm_dtype_bytes(x->dtype);
    }
}

uint64_t imagine_master_bytes(const imagine *x, uint64_t n) {
    return imagine_state_bytes(x, TM_KIND_WEIGHT_LO, n) + imagine_state_bytes(x, TM_KIND_EXP_AVG, n) +
           imagine_state_bytes(x, TM_KIND_EXP_AVG_SQ, n);
}

/* ---- trying -------------------------------------------------------------------------------------------------- */

/* What came of the ways that were tried; UINT64_MAX: none got so far. */
typedef struct tries {
    bool found;
    imagine_way best;
    double seconds;
    uint64_t least_host, least_device; /* host: of the frames */
    uint64_t slab, device;             /* the budgets of frames */
    bool first;                        /* one that fits is enough */
} tries;

static tm_status compile(imagine *x, uint64_t slab, tm_plan **plan, uint64_t *minimum) {
    job_opts o = session_job_options(x->g->s);
    bool disk = o.n_paths > 0 && x->rank.disk.read_bps > 0;
    tm_plan_opts po = {
        .slab_bytes = slab, .choose_residency = true, .cache = !o.cache_none, .spill = disk, .unproved = true};
    tm_program *p;
    TM_TRY(imagine_build(x, &p));
    for (int k = 0; k < TM_KINDS; k++) po.pinned[k] = !disk || o.pinned[k];
    if (x->way.place == IMAGINE_WEIGHTS_ON)
        po.pinned[TM_KIND_WEIGHT_HI] = po.pinned[TM_KIND_WEIGHT_LO]; /* a master's */
    tm_status rc = tm_plan_compile(plan, x->layout, p, &po, minimum);
    tm_program_free(p);
    return rc;
}

static tm_status try_way(imagine *x, const imagine_way *way, tries *t, bool *fits) {
    tm_plan *plan = NULL;
    tm_sim_result r;
    uint64_t minimum = 0;
    x->way = *way;
    *fits = false;
    tm_status rc = compile(x, t->slab, &plan, &minimum);
    if (rc == TM_EBUDGET) {
        tm_error_clear();
        t->least_host = tm_min_u64(t->least_host, minimum);
        return TM_OK;
    }
    TM_TRY(rc);
    uint64_t device = tm_plan_get_info(plan)->device_bytes;
    t->least_host = tm_min_u64(t->least_host, minimum);
    t->least_device = tm_min_u64(t->least_device, device);
    *fits = device <= t->device;
    if (!*fits) goto done;
    if (t->first) {
        t->found = true;
        goto done;
    }
    TM_GO(tm_simulate(&r, plan, &(tm_sim_opts){.machine = &x->rank, .cost = imagine_cost, .ctx = x, .runs = 2}));
    if (!t->found || r.seconds < t->seconds) {
        t->found = true;
        t->best = *way;
        t->seconds = r.seconds;
    }
    tm_sim_free(&r);
done:
    tm_plan_free(plan);
    return rc;
}

/* Weights or all state on a device that has not even room for them need not be compiled. */
static bool hopeless(const imagine *x, imagine_place place, uint64_t device) {
    uint64_t held = 0, w = tm_dtype_bytes(x->dtype);
    for (uint32_t u = 0; u < x->units && place != IMAGINE_ON_HOST; u++) {
        held += (x->weight_ranks == 1 ? x->unit[u].elements : x->unit[u].shard) * w;
        if (place == IMAGINE_ALL_ON) held += imagine_master_bytes(x, x->unit[u].shard);
    }
    return held > device;
}

/* Shared optimizer state with whole weights on every rank: they stay on the device. */
static bool possible(const imagine *x, imagine_place place) {
    const tm_config *c = x->g->s->cfg;
    bool weights_on = c->param_place == TM_PLACE_NONE, all_on = weights_on && c->optimizer_place == TM_PLACE_NONE;
    if (place == IMAGINE_ALL_ON && !plan_device_updates(c)) return false;
    if (x->g->exact && place != (all_on ? IMAGINE_ALL_ON : weights_on ? IMAGINE_WEIGHTS_ON : IMAGINE_ON_HOST))
        return false;
    return place != IMAGINE_ON_HOST || x->weight_ranks == x->state_ranks;
}

static bool wanted(const tm_config *c, imagine_act act) {
    switch (c->memory.activations) {
    case TM_ACT_KEEP:
        return act == IMAGINE_KEEP;
    case TM_ACT_SPILL:
        return act == IMAGINE_OFFLOAD;
    case TM_ACT_RECOMPUTE:
        return act == IMAGINE_RECOMPUTE;
    default:
        return true;
    }
}

/* What needs less memory is slower: the first that fits with the next unit's weights under way ends the list. */
static tm_status try_activations(imagine *x, imagine_way way, tries *t) {
    for (int act = IMAGINE_KEEP; act <= IMAGINE_OFFLOAD; act++)
        for (int ahead = 1; ahead >= 0; ahead--) {
            bool fits = false;
            way.act = (imagine_act)act;
            way.ahead = ahead;
            if (!wanted(x->g->s->cfg, way.act)) continue;
            TM_TRY(try_way(x, &way, t, &fits));
            if (fits && (ahead || t->first)) return TM_OK;
            if (fits) break;
        }
    return TM_OK;
}

/* What links, network and copies alone take: no step of this kind is faster. */
static double least_seconds(const imagine *x, const imagine_way *way) {
    double w = (double)tm_dtype_bytes(x->dtype), moved = 0, copied = 0;
    bool fetched = x->weight_ranks > 1, in_node = x->state_ranks < x->ranks;
    double gathered = in_node ? 0 : x->second_ranks ? 1 : 2; /* times, over the slowest link */
    for (uint32_t u = 0; u < x->units; u++) {
        moved += (double)x->unit[u].elements * (fetched ? gathered * w + 4 : 4);
        copied += (double)x->unit[u].shard * 2 * w;
    }
    double rate = x->g->machine.nodes > 1 ? x->rank.network_bps : x->rank.link_bps, n = x->ranks;
    double comm = x->ranks > 1 ? moved * (n - 1) / n / rate : 0;
    double copies = way->place == IMAGINE_ON_HOST ? copied / x->rank.h2d_bps : 0;
    if (x->g->machine.nodes > 1) comm *= (double)(x->g->machine.nodes - 1) / x->g->machine.nodes;
    return fmax(comm, copies) * (way->each_batch ? x->shape.micro_batches : 1);
}

static tm_status try_all(imagine *x, tries *t) {
    for (int place = IMAGINE_ALL_ON; place >= IMAGINE_ON_HOST; place--)
        for (int each = 0; each < (x->shape.micro_batches > 1 ? 2 : 1); each++) {
            imagine_way way = {.place = (imagine_place)place, .each_batch = each};
            way.fold = place != IMAGINE_ALL_ON && x->g->s->cfg->memory.update != TM_UPDATE_U;
            if (!possible(x, way.place) || hopeless(x, way.place, t->device)) continue;
            if (t->found && least_seconds(x, &way) >= t->seconds) continue;
            TM_TRY(try_activations(x, way, t));
            if (t->found && t->first) return TM_OK;
        }
    return TM_OK;
}

static uint64_t less(uint64_t bytes, uint64_t fixed) {
    return bytes > fixed ? bytes - fixed : 0;
}

static tries budgets(const imagine *x) {
    return (tries){.least_host = UINT64_MAX,
                   .least_device = UINT64_MAX,
                   .slab = less(x->g->out->host_budget_bytes, HOST_FIXED),
                   .device = less(x->rank.gpu_bytes, DEVICE_FIXED)};
}

/* ---- refusing ------------------------------------------------------------------------------------------------ */

static tm_status imagine_open(imagine *x, const planning *g, const tm_model *m, const job_shape *shape) {
    *x = (imagine){.g = g, .m = m, .shape = *shape, .dtype = tm_model_dtype(m)};
    TM_TRY(tm_device_known("cuda", &x->gpu));
    share_node(x);
    x->strategy = share_state(x);
    job_shape whole = session_step_shape(g->s);
    bool as_asked = whole.rows == shape->rows && whole.seq == shape->seq;
    const tm_model_config *c = tm_model_get_config(m);
    x->load = as_asked ? run_step_load(g->s, c).load : job_shape_load(c, shape);
    return make_units(x);
}

static void imagine_close(imagine *x) {
    tm_layout_free(x->layout);
    tm_free(x->unit);
    tm_free(x->seconds);
}

static bool fits(void *ctx, uint32_t rows, uint32_t seq) {
    const imagine *like = ctx;
    job_shape shape = {.micro_batches = like->shape.micro_batches, .rows = rows, .seq = seq};
    imagine x;
    tries t = {.found = false};
    tm_status rc = imagine_open(&x, like->g, like->m, &shape);
    if (rc == TM_OK) {
        t = budgets(&x);
        t.first = true;
        rc = try_all(&x, &t);
    }
    imagine_close(&x);
    tm_error_clear();
    return rc == TM_OK && t.found;
}

static tm_plan_change try_stage3(imagine *x) {
    tm_config *c = x->g->s->cfg;
    uint32_t stage = c->zero_stage;
    tm_strategy strategy = c->strategy;
    if (x->g->only_fits) return (tm_plan_change){NULL, 0};
    c->zero_stage = 3;
    c->strategy = TM_STRATEGY_ZERO3;
    bool enough = fits(x, x->shape.rows, x->shape.seq);
    c->zero_stage = stage;
    c->strategy = strategy;
    return enough ? (tm_plan_change){"zero_optimization.stage", 3} : (tm_plan_change){NULL, 0};
}

static tm_status refuse(imagine *x, const tries *t) {
    char want[32], have[32], fixed[32], text[320];
    bool host = t->least_device == UINT64_MAX && t->least_host != UINT64_MAX && t->least_host > t->slab;
    tm_plan_report *out = x->g->out;
    tm_plan_change change = {"memory.host_budget", out->minimum_host_bytes};
    if (!host && t->least_device == UINT64_MAX)
        change = try_stage3(x);
    else if ((!host || out->minimum_host_bytes > x->rank.host_bytes) && !x->g->only_fits)
        change = plan_smaller_batch(&x->shape, fits, x);
    if (host)
        snprintf(text, sizeof text, "%s: a rank needs at least %llu bytes (%s) of host memory and has %s",
                 x->g->machine.name, (unsigned long long)out->minimum_host_bytes,
                 tm_format_size(out->minimum_host_bytes, want, sizeof want),
                 tm_format_size(out->host_budget_bytes, have, sizeof have));
    else if (t->least_device == UINT64_MAX)
        snprintf(text, sizeof text,
                 "%s: the weights that zero_optimization.stage %u keeps on every device do not fit %s",
                 x->g->machine.name, x->g->s->cfg->zero_stage, tm_format_size(x->rank.gpu_bytes, have, sizeof have));
    else
        snprintf(text, sizeof text, "%s: a device needs at least %s and may use %s, %s of that for its driver",
                 x->g->machine.name, tm_format_size(t->least_device + DEVICE_FIXED, want, sizeof want),
                 tm_format_size(x->rank.gpu_bytes, have, sizeof have),
                 tm_format_size(DEVICE_FIXED, fixed, sizeof fixed));
    return plan_refuse(x->g, host ? "host" : "device", change, text);
}

/* ---- reporting ----------------------------------------------------------------------------------------------- */

static uint64_t disk_bytes(const imagine *x, const tm_plan_info *info, uint32_t slots) {
    uint64_t bytes = info->spill_file_bytes;
    for (uint32_t i = 0; i < tm_layout_objects(x->layout); i++) {
        const tm_object *o = tm_layout_get(x->layout, i);
        if (!o->resident) bytes += o->frame_bytes * (slots ? slots : 2);
    }
    return bytes * x->per_node;
}

static tm_status check_disk(const imagine *x, uint64_t with_one_slot) {
    tm_plan_report *out = x->g->out;
    char want[32], have[32], text[256];
    out->disk_free_bytes = x->g->machine.disk.bytes;
    if (!out->disk_free_bytes || out->disk_bytes <= out->disk_free_bytes) return TM_OK;
    tm_plan_change change = {NULL, 0};
    if (with_one_slot <= out->disk_free_bytes) change = (tm_plan_change){"memory.slots", 1};
    snprintf(text, sizeof text, "%s: the offload files of a node need %s and its disks have %s", x->g->machine.name,
             tm_format_size(out->disk_bytes, want, sizeof want),
             tm_format_size(out->disk_free_bytes, have, sizeof have));
    return plan_refuse(x->g, "disk", change, text);
}

static tm_status report(imagine *x, const tries *t) {
    static const char *const place[] = {"state on the host", "weights on the device, optimizer on the host",
                                        "all state on the device"};
    static const char *const act[] = {"keep", "recompute", "offload"};
    tm_plan_report *out = x->g->out;
    tm_plan *plan = NULL;
    tm_status rc;
    x->way = t->best;
    TM_TRY(compile(x, t->slab, &plan, NULL));
    TM_GO(tm_plan_prove(plan));
    const tm_plan_info *info = tm_plan_get_info(plan);
    uint32_t slots = x->g->s->cfg->memory.slots;
    out->fits = true;
    out->proof_seconds = info->proof_seconds;
    out->host_peak_bytes = info->slab_bytes + HOST_FIXED;
    out->device_peak_bytes = info->device_bytes + DEVICE_FIXED;
    out->disk_bytes = disk_bytes(x, info, slots);
    out->link_bytes_per_step = (uint64_t)x->sent[0];
    out->network_bytes_per_step = (uint64_t)x->sent[1];
    out->update = x->way.fold ? "F" : "U";
    out->activations = act[x->way.act];
    out->order = x->way.each_batch ? "micro-batch" : "unit";
    out->placement = place[x->way.place];
    snprintf(out->seconds_basis, sizeof out->seconds_basis, "hardware file %s", x->g->machine.name);
    TM_GO(
        plan_time(x->g, plan, &(tm_sim_opts){.machine = &x->rank, .cost = imagine_cost, .ctx = x}, imagine_op_name, x));
    rc = check_disk(x, disk_bytes(x, info, 1));
done:
    tm_plan_free(plan);
    return rc;
}

static tm_status choose(imagine *x) {
    tries t = budgets(x);
    TM_TRY(try_all(x, &t));
    if (t.least_host != UINT64_MAX) x->g->out->minimum_host_bytes = t.least_host + HOST_FIXED;
    if (!t.found) return refuse(x, &t);
    return report(x, &t);
}

static tm_status open_model(const planning *g, tm_model **out) {
    tm_model_config config;
    char name[4096];
    size_t len;
    const tm_config *c = g->s->cfg;
    const char *json = tm_source_config(g->s->source, &len);
    TM_TRY(tm_model_config_parse(&config, json, len, job_config_name(c->model, name, sizeof name)));
    return tm_model_create(out, &config, c->precision);
}

tm_status plan_imagine(const planning *g) {
    tm_plan_report *out = g->out;
    const tm_config *c = g->s->cfg;
    job_shape shape = session_step_shape(g->s);
    imagine x = {.g = g};
    tm_model *model = NULL;
    tm_status rc;
    if (c->optimizer->passes > 1)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s: a step by %s is not planned for machines with GPUs: it passes over whole tensors more than "
                       "once; plan it with lion, or for a machine without GPUs",
                       g->machine.name, c->optimizer->name);
    TM_GO(open_model(g, &model));
    TM_GO(imagine_open(&x, g, model, &shape));
    out->parameters = tm_model_parameters(model);
    out->has_device = true;
    out->nodes = g->machine.nodes;
    out->ranks = x.ranks;
    out->strategy = x.strategy;
    run_load load = run_step_load(g->s, tm_model_get_config(model));
    plan_lengths(g, &shape, &load);
    out->device_budget_bytes = x.rank.gpu_bytes;
    out->host_budget_bytes = c->memory.host_kind == TM_BUDGET_BYTES
                                 ? tm_min_u64(c->memory.host_bytes, x.rank.host_bytes)
                                 : x.rank.host_bytes / 5 * 4;
    rc = choose(&x);
done:
    imagine_close(&x);
    tm_model_free(model);
    return rc;
}

/* Compilation, step by step: residency, placement, emission. And what a plan says about itself. */
#include "offload/plan/lower_internal.h"

#include <string.h>

void tm_plan_free(tm_plan *plan) {
    if (!plan) return;
    TM_FREE_ALL(plan->op, plan->succ, plan->operand, plan->temp, plan->extent, plan->touch, plan->first_touch, plan);
}

const tm_plan_info *tm_plan_get_info(const tm_plan *plan) {
    return &plan->info;
}

static void settle_layout(tm_layout *l, const uint8_t *resident, const uint64_t *address, uint64_t base) {
    TM_ASSERT(base % TM_FRAME_ALIGN == 0);
    for (uint32_t i = 0; i < l->n; i++) {
        l->object[i].resident = resident[i];
        l->object[i].address = resident[i] ? address[i] : 0;
    }
    l->resident_end = base;
    l->chosen = true;
}

/* What a compilation decides before it places frames. */
typedef struct chosen {
    tm_program *lowered; /* NULL: `p` is the caller's */
    const tm_program *p;
    residency r;
} chosen;

static uint64_t bytes_on_device(const tm_program *p) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; p->device_address && i < p->layout->n; i++)
        bytes += p->device_address[i] ? p->layout->object[i].frame_bytes : 0;
    return bytes;
}

/* What is device-resident need not be on the host: where the slab is too small otherwise, that is what decides. */
static tm_status choose_frames(chosen *c, tm_layout *layout, const tm_program *p, const tm_plan_opts *opts) {
    bool lower = opts->device_bytes && !p->lowered, keeps = opts->choose_residency && opts->resident_quarters > 0;
    tm_plan_opts tight = *opts;
    tight.slab_bytes = 0;
    c->p = p;
    if (lower) TM_TRY(lower_program(&c->lowered, p, opts));
    if (lower) c->p = c->lowered;
    tm_status rc = residency_choose(c->p, layout, opts, &c->r);
    if (rc != TM_EBUDGET || !lower || !keeps) return rc;
    tm_error_clear();
    tm_program_free(c->lowered);
    c->lowered = NULL;
    TM_TRY(lower_program(&c->lowered, p, &tight));
    c->p = c->lowered;
    return residency_choose(c->p, layout, opts, &c->r);
}

tm_status tm_plan_compile(tm_plan **out, tm_layout *layout, const tm_program *program, const tm_plan_opts *opts,
                          uint64_t *minimum) {
    uint64_t share = shared_share(program, opts);
    tm_plan_opts own = *opts;
    placement pl = {0};
    chosen c = {.r = {.resident = tm_calloc(layout->n + 1, 1), .temp_paged = tm_calloc(program->n_temp + 1, 1)}};
    uint64_t *address = tm_calloc(layout->n + 1, sizeof *address);
    tm_status rc;
    TM_ASSERT(opts->choose_residency || layout->chosen);
    own.slab_bytes -= tm_min_u64(share, own.slab_bytes);
    opts = &own;
    TM_GO(program->status);
    if (!c.r.resident || !c.r.temp_paged || !address) TM_GO(tm_nomem((layout->n + program->n_temp) * sizeof *address));
    TM_GO(choose_frames(&c, layout, program, opts));
    if (opts->choose_residency) {
        residency_base(c.p, c.r.resident, address);
    } else {
        for (uint32_t i = 0; i < layout->n; i++) address[i] = layout->object[i].address;
    }
    TM_GO(place_build(&pl, c.p, opts, &c.r));
    TM_GO(plan_emit(out, layout, c.p, &pl, c.r.resident, address));
    (*out)->info.minimum_bytes = c.r.minimum + share;
    (*out)->info.share_bytes = share;
    (*out)->info.window_bytes = c.r.window;
    (*out)->info.device_resident_bytes = bytes_on_device(c.p);
    if (opts->choose_residency) settle_layout(layout, c.r.resident, address, c.r.base);
    place_free(&pl);
    if (!opts->unproved) rc = tm_plan_prove(*out);
    if (rc != TM_OK) {
        tm_plan_free(*out);
        *out = NULL;
    }
done:
    if (minimum) *minimum = c.r.minimum + share;
    place_free(&pl);
    tm_program_free(c.lowered);
    tm_free(c.r.resident);
    tm_free(c.r.temp_paged);
    tm_free(address);
    return rc;
}

static const char *const engine_names[TM_ENGINES] = {"cpu",      "disk_read", "disk_write", "copy_in",
                                                     "copy_out", "comm",      "device"};

const char *tm_engine_name(tm_op_engine engine) {
    return engine < TM_ENGINES ? engine_names[engine] : "?";
}

const tm_plan_op *tm_plan_ops(const tm_plan *plan, uint32_t *n) {
    *n = plan->n_op;
    return plan->op;
}

const uint32_t *tm_plan_successors(const tm_plan *plan) {
    return plan->succ;
}

const tm_object *tm_plan_object(const tm_plan *plan, uint32_t id) {
    return id & TM_TEMP_BIT ? &plan->temp[id & ~TM_TEMP_BIT] : &plan->layout->object[id];
}

tm_status tm_plan_print(const tm_plan *plan, tm_buf *out) {
    for (uint32_t i = 0; i < plan->n_op; i++) {
        const tm_plan_op *o = &plan->op[i];
        TM_TRY(tm_buf_printf(out, "%u %s", i, engine_names[o->engine]));
        if (o->engine != TM_ENGINE_DISK_READ && o->engine != TM_ENGINE_DISK_WRITE) {
            TM_TRY(tm_buf_printf(out, " code=%u args=%u,%u,%u,%u", o->op.code, o->op.arg[0], o->op.arg[1], o->op.arg[2],
                                 o->op.arg[3]));
        } else {
            TM_TRY(tm_buf_printf(out, " %s%u", o->object & TM_TEMP_BIT ? "temp" : "state", o->object & ~TM_TEMP_BIT));
        }
        for (uint32_t t = plan->first_touch[i]; t < plan->first_touch[i + 1]; t++)
            TM_TRY(tm_buf_printf(out, " %s[%llu+%llu]",
                                 plan->touch[t].access == TM_USE_READ    ? "r"
                                 : plan->touch[t].access == TM_USE_WRITE ? "w"
                                                                         : "u",
                                 (unsigned long long)plan->touch[t].address, (unsigned long long)plan->touch[t].bytes));
        TM_TRY(tm_buf_printf(out, " ->"));
        for (uint32_t s = 0; s < o->n_succ; s++) TM_TRY(tm_buf_printf(out, " %u", plan->succ[o->first_succ + s]));
        TM_TRY(tm_buf_printf(out, "\n"));
    }
    return TM_OK;
}

/* The program with copies: device intervals, host intervals of what the host does with the same objects, and copies
 * between the two frames of an object. */
#include "offload/plan/lower_internal.h"

#include <stdlib.h>

/* In its own place: resident there, so that intervals are as many as one likes. */
static uint32_t interval_in_place(lowering *w, uint32_t first, uint32_t count) {
    uint32_t v = tm_program_interval(w->out, first, count);
    if (w->out->status == TM_OK) w->out->interval[v].tier = TM_TIER_DEVICE;
    return v;
}

static uint32_t interval_on_device(lowering *w, uint32_t s) {
    device_interval *t = &w->device_interval[s];
    if (t->interval != TM_NONE) return t->interval;
    t->interval = tm_program_interval(w->out, t->first, t->count);
    if (w->out->status != TM_OK) return 0;
    w->out->interval[t->interval].tier = TM_TIER_DEVICE;
    w->out->interval[t->interval].address = t->frame.address;
    return t->interval;
}

/* Objects of an interval come and go one by one, but where the host wants several side by side. */
static uint32_t interval_on_host(lowering *w, uint32_t interval, uint32_t object) {
    const prog_interval *v = &w->p->interval[interval];
    uint32_t k = w->whole[interval] ? 0 : object - v->first, *at = &w->host_interval[v->record + k];
    if (*at != TM_NONE) return *at;
    *at = w->whole[interval] ? tm_program_interval(w->out, v->first, v->count) : tm_program_interval(w->out, object, 1);
    if (w->out->status == TM_OK && lower_is_in_place(w, object)) w->out->interval[*at].home = INTERVAL_APART;
    return *at;
}

static void emit_copy(lowering *w, const copy *c) {
    uint64_t bytes = program_object(w->p, c->object)->frame_bytes;
    uint32_t host = interval_on_host(w, c->interval, c->object);
    uint32_t device = c->device_interval == LOWER_IN_PLACE ? interval_in_place(w, c->object, 1)
                                                           : interval_on_device(w, c->device_interval);
    tm_program_op(w->out, &(tm_op){.code = TM_OP_COPY,
                                   .engine = c->out ? TM_ENGINE_COPY_OUT : TM_ENGINE_COPY_IN,
                                   .arg = {(uint32_t)bytes, (uint32_t)(bytes >> 32), c->object}});
    tm_program_use_range(w->out, c->out ? device : host, c->object, 1, TM_USE_READ);
    tm_program_use_range(w->out, c->out ? host : device, c->object, 1, TM_USE_WRITE);
}

static uint32_t interval_of(lowering *w, uint32_t op, const prog_use *u) {
    if (!lower_on_device(w, op)) return interval_on_host(w, u->interval, u->object);
    if (lower_is_in_place(w, u->object)) return interval_in_place(w, u->object, u->count);
    return interval_on_device(w, lower_joined(w, w->of_interval[u->interval]));
}

static void emit_op(lowering *w, uint32_t i) {
    const prog_op *o = &w->p->op[i];
    tm_op op = o->op;
    op.tier = w->tier[i];
    bool computes = op.engine == TM_ENGINE_CPU;
    if (lower_on_device(w, i) && w->opts->device_apart && computes) op.engine = TM_ENGINE_DEVICE;
    tm_program_op(w->out, &op);
    for (uint32_t k = 0; k < o->n_uses; k++) {
        const prog_use *u = &w->p->use[o->first_use + k];
        tm_program_use_range(w->out, interval_of(w, i, u), u->object, u->count, u->access);
    }
}

static int by_place(const void *a, const void *b) {
    const copy *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    if (x->behind != y->behind) return x->behind ? 1 : -1;
    if (x->by != y->by) return x->by < y->by ? -1 : 1;
    if (x->device_interval != y->device_interval) return x->device_interval < y->device_interval ? -1 : 1;
    return x->object < y->object ? -1 : x->object > y->object;
}

tm_status lower_emit(lowering *w) {
    const tm_program *p = w->p;
    TM_TRY(tm_program_create(&w->out, p->layout, p->name));
    for (uint32_t t = 0; t < p->n_temp; t++) (void)tm_program_temp(w->out, &p->temp[t]);
    for (uint32_t i = 0; i < p->n_record; i++) w->host_interval[i] = TM_NONE;
    if (w->n_copy) qsort(w->copy, w->n_copy, sizeof *w->copy, by_place);
    const copy *c = w->copy, *end = w->copy + w->n_copy;
    for (uint32_t i = 0; i < p->n_op; i++) {
        for (; c < end && c->at == i && !c->behind; c++) emit_copy(w, c);
        emit_op(w, i);
        for (; c < end && c->at == i; c++) emit_copy(w, c);
    }
    w->out->device_bytes = w->peak;
    w->out->device_address = w->device_address; /* its own from here on */
    w->device_address = NULL;
    w->out->lowered = true;
    return w->out->status;
}

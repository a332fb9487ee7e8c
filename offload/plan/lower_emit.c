/* The program with copies: device visits, host visits of what the host does with the same objects, and copies between
 * the two frames of an object. */
#include "offload/plan/lower_internal.h"

#include <stdlib.h>

/* In its own place: resident there, so that visits are as many as one likes. */
static uint32_t visit_in_place(lowering *w, uint32_t first, uint32_t count) {
    uint32_t v = tm_program_visit(w->out, first, count);
    if (w->out->status == TM_OK) w->out->visit[v].tier = TM_TIER_DEVICE;
    return v;
}

static uint32_t visit_on_device(lowering *w, uint32_t s) {
    device_interval *t = &w->device_interval[s];
    if (t->visit != TM_NONE) return t->visit;
    t->visit = tm_program_visit(w->out, t->first, t->count);
    if (w->out->status != TM_OK) return 0;
    w->out->visit[t->visit].tier = TM_TIER_DEVICE;
    w->out->visit[t->visit].address = t->frame.address;
    return t->visit;
}

/* Objects of a visit come and go one by one, but where the host wants several side by side. */
static uint32_t visit_on_host(lowering *w, uint32_t visit, uint32_t object) {
    const prog_visit *v = &w->p->visit[visit];
    uint32_t k = w->whole[visit] ? 0 : object - v->first, *at = &w->host_visit[v->record + k];
    if (*at != TM_NONE) return *at;
    *at = w->whole[visit] ? tm_program_visit(w->out, v->first, v->count) : tm_program_visit(w->out, object, 1);
    if (w->out->status == TM_OK && lower_is_in_place(w, object)) w->out->visit[*at].home = VISIT_APART;
    return *at;
}

static void emit_copy(lowering *w, const copy *c) {
    uint64_t bytes = program_object(w->p, c->object)->frame_bytes;
    uint32_t host = visit_on_host(w, c->visit, c->object);
    uint32_t device =
        c->device_interval == LOWER_IN_PLACE ? visit_in_place(w, c->object, 1) : visit_on_device(w, c->device_interval);
    tm_program_op(w->out, &(tm_op){.code = TM_OP_COPY,
                                   .engine = c->out ? TM_ENGINE_COPY_OUT : TM_ENGINE_COPY_IN,
                                   .arg = {(uint32_t)bytes, (uint32_t)(bytes >> 32), c->object}});
    tm_program_use_range(w->out, c->out ? device : host, c->object, 1, TM_USE_READ);
    tm_program_use_range(w->out, c->out ? host : device, c->object, 1, TM_USE_WRITE);
}

static uint32_t visit_of(lowering *w, uint32_t op, const prog_use *u) {
    if (!lower_on_device(w, op)) return visit_on_host(w, u->visit, u->object);
    if (lower_is_in_place(w, u->object)) return visit_in_place(w, u->object, u->count);
    return visit_on_device(w, lower_joined(w, w->of_visit[u->visit]));
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
        tm_program_use_range(w->out, visit_of(w, i, u), u->object, u->count, u->access);
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
    for (uint32_t i = 0; i < p->n_record; i++) w->host_visit[i] = TM_NONE;
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

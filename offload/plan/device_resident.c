/* Device-resident state has a place in the device's arena from run to run, so that no run copies it. What may be
 * device-resident is what a run's host operations never look at; operations that compute on either tier
 * (TM_TIER_EITHER) follow the state that they use, and bind it together:
 *
 *   group    objects of one bundle, and all that one such operation uses: a matrix's weights and their moments
 *
 * The layout says where (tm_object.resident, an address in the arena); other programs of the run bring it to the host
 * where they need it and back. */
#include "offload/plan/lower_internal.h"

#include <string.h>

static bool is_state(uint32_t id) {
    return !(id & TM_TEMP_BIT);
}

static uint32_t root_of(uint32_t *up, uint32_t i) {
    while (up[i] != i) i = up[i] = up[up[i]];
    return i;
}

static void unite_objects(uint32_t *up, uint32_t a, uint32_t b) {
    a = root_of(up, a);
    b = root_of(up, b);
    if (a != b) up[a > b ? a : b] = a < b ? a : b; /* the root is the first */
}

static void unite_uses(uint32_t *up, const tm_program *p, const prog_op *o) {
    uint32_t first = TM_NONE;
    for (uint32_t k = 0; k < o->n_uses; k++) {
        const prog_use *u = &p->use[o->first_use + k];
        if (!is_state(u->object)) continue;
        if (first == TM_NONE) first = u->object;
        for (uint32_t n = 0; n < u->count; n++) unite_objects(up, first, u->object + n);
    }
}

enum { USED = 1, BY_HOST = 2 };

static void mark_uses(uint8_t *mark, uint32_t *up, const tm_program *p, const prog_op *o) {
    for (uint32_t k = 0; k < o->n_uses; k++) {
        const prog_use *u = &p->use[o->first_use + k];
        for (uint32_t n = 0; is_state(u->object) && n < u->count; n++)
            mark[root_of(up, u->object + n)] |= o->op.tier == TM_TIER_HOST ? BY_HOST : USED;
    }
}

static void find_roots(uint32_t *up, uint8_t *mark, const tm_program *p) {
    const tm_layout *l = p->layout;
    for (uint32_t i = 0; i < l->n; i++) {
        up[i] = i;
        if (i > 0 && l->object[i].bundle == l->object[i - 1].bundle) unite_objects(up, i - 1, i);
    }
    for (uint32_t i = 0; i < p->n_op; i++)
        if (p->op[i].op.tier == TM_TIER_EITHER) unite_uses(up, p, &p->op[i]);
    for (uint32_t i = 0; i < p->n_op; i++) mark_uses(mark, up, p, &p->op[i]);
}

static void number_groups(resident_groups *g, uint32_t *up, const uint8_t *mark, const tm_layout *l) {
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t root = root_of(up, i);
        g->of[i] = mark[root] != USED ? TM_NONE : root == i ? g->n++ : g->of[root];
        if (g->of[i] == TM_NONE) continue;
        g->bytes[g->of[i]] += l->object[i].frame_bytes;
        g->all_bytes += l->object[i].frame_bytes;
    }
}

tm_status resident_find(resident_groups *g, const tm_program *p) {
    size_t n = (size_t)p->layout->n + 1;
    uint32_t *up = tm_malloc(sizeof *up * n);
    uint8_t *mark = tm_calloc(n, 1);
    g->of = tm_malloc(sizeof *g->of * n);
    g->bytes = tm_calloc(n, sizeof *g->bytes);
    g->take = tm_calloc(n, sizeof *g->take);
    tm_status rc = up && mark && g->of && g->bytes && g->take ? TM_OK : tm_nomem(sizeof *up * n);
    if (rc == TM_OK) {
        find_roots(up, mark, p);
        number_groups(g, up, mark, p->layout);
    }
    tm_free(up);
    tm_free(mark);
    return rc;
}

void resident_close(resident_groups *g) {
    tm_free(g->of);
    tm_free(g->bytes);
    tm_free(g->take);
    *g = (resident_groups){0};
}

/* An operation that may compute on either tier goes where its state is. */
static void settle_tiers(lowering *w) {
    const tm_program *p = w->p;
    for (uint32_t i = 0; i < p->n_op; i++) {
        const prog_op *o = &p->op[i];
        uint32_t on_device = 0, on_host = 0;
        w->tier[i] = o->op.tier;
        if (o->op.tier != TM_TIER_EITHER) continue;
        for (uint32_t k = 0; k < o->n_uses; k++) {
            const prog_use *u = &p->use[o->first_use + k];
            if (is_state(u->object)) *(w->device_address[u->object] ? &on_device : &on_host) += 1;
        }
        w->tier[i] = on_device > 0 && on_host == 0 ? TM_TIER_DEVICE : TM_TIER_HOST;
    }
}

/* Groups in the order of the layout: each is taken if what was taken keeps to the share of what has come by. */
static void take_groups(resident_groups *g, uint64_t bytes) {
    TM_ASSERT(g->n == 0 || g->all_bytes > 0);
    uint64_t seen = 0, taken = 0;
    for (uint32_t k = 0; k < g->n; k++) {
        seen += g->bytes[k];
        uint64_t due = bytes >= g->all_bytes ? seen : (uint64_t)((double)bytes * (double)seen / (double)g->all_bytes);
        g->take[k] = taken + g->bytes[k] <= due;
        if (g->take[k]) taken += g->bytes[k];
    }
}

void resident_choose(lowering *w, resident_groups *g, uint64_t bytes) {
    const tm_layout *l = w->p->layout;
    take_groups(g, bytes);
    w->resident_bytes = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        w->device_address[i] = g->of[i] != TM_NONE && g->take[g->of[i]] ? TM_DEVICE_BASE + w->resident_bytes : 0;
        if (w->device_address[i]) w->resident_bytes += l->object[i].frame_bytes;
    }
    settle_tiers(w);
}

void resident_settled(lowering *w, bool afresh) {
    const tm_layout *l = w->p->layout;
    for (uint32_t i = 0; !afresh && l->chosen && i < l->n; i++) {
        const tm_object *o = &l->object[i];
        if (!o->resident || o->address < TM_DEVICE_BASE) continue;
        w->device_address[i] = o->address;
        w->resident_bytes = tm_max_u64(w->resident_bytes, o->address + o->frame_bytes - TM_DEVICE_BASE);
    }
    settle_tiers(w);
}

/* ---- to and from its extents --------------------------------------------------------------------------------- */

static void move_resident(tm_program *p, uint32_t id, bool out) {
    TM_ASSERT(id < p->layout->n && p->layout->object[id].resident);
    uint64_t bytes = program_object(p, id)->frame_bytes;
    uint32_t host = tm_program_interval(p, id, 1), device = tm_program_interval(p, id, 1);
    if (p->status != TM_OK) return;
    p->interval[host].home = INTERVAL_DISK;
    p->interval[device].tier = TM_TIER_DEVICE;
    tm_program_op(p, &(tm_op){.code = TM_OP_COPY,
                              .engine = out ? TM_ENGINE_COPY_OUT : TM_ENGINE_COPY_IN,
                              .arg = {(uint32_t)bytes, (uint32_t)(bytes >> 32), id}});
    tm_program_use(p, out ? device : host, TM_USE_READ);
    tm_program_use(p, out ? host : device, TM_USE_WRITE);
}

tm_status tm_program_device_resident(tm_program **out, const tm_layout *l, tm_resident_way way) {
    static const char *const name[] = {"held state to its extents", "held state", "held weights"};
    tm_program *p = NULL;
    *out = NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        bool moves = way == TM_RESIDENT_FROZEN ? layout_home(l, i) != NULL : in_commits(o);
        if (!o->resident || o->address < TM_DEVICE_BASE || !moves) continue;
        if (!p) TM_TRY(tm_program_create(&p, l, name[way]));
        p->device_bytes = tm_max_u64(p->device_bytes, o->address + o->frame_bytes - TM_DEVICE_BASE);
        move_resident(p, i, way == TM_RESIDENT_SAVE);
    }
    if (p) p->lowered = true;
    *out = p;
    return TM_OK;
}

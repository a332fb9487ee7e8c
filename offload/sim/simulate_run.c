/* Runs under way: which operation is ready, and what becomes ready when one is done. As in the executor: a run's
 * compute waits until that of the run before is done, its reads and copies to the device do not; what else orders the
 * two is in the link between them. */
#include "offload/sim/simulate_internal.h"

#include <string.h>

static void make_ready(sim *s, uint32_t r, uint32_t op) {
    tm_heap32_push(sim_queue_of(s, op), r * s->n + op);
}

/* What run `r` waits for in the run before it, which is still under way. */
static void await_link(sim *s, uint32_t r) {
    uint32_t *pred = s->pred + r % 2 * s->n;
    const uint8_t *done = s->done + (r + 1) % 2 * s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t n;
        if (done[i]) continue;
        const uint32_t *to = tm_link_successors(s->link, i, &n);
        for (uint32_t k = 0; k < n; k++) pred[to[k]]++;
    }
}

/* The next communication operation from `op` on: they start in this order and no other, as all ranks have to. */
static uint32_t next_comm(const sim *s, uint32_t op) {
    while (op < s->n && s->op[op].engine != TM_ENGINE_COMM) op++;
    return op;
}

void sim_open_run(sim *s) {
    TM_ASSERT(s->opened - s->first < 2);
    uint32_t r = s->opened++, base = r % 2 * s->n;
    sim_run *run = &s->run[r % 2];
    *run = (sim_run){.left = s->n, .compute_left = s->n_compute, .next_comm = next_comm(s, 0)};
    memset(s->done + base, 0, s->n);
    for (uint32_t i = 0; i < s->n; i++) s->pred[base + i] = s->op[i].n_pred;
    if (r > s->first) await_link(s, r);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->pred[base + i] == 0) make_ready(s, r, i);
}

static uint32_t start_taken(sim *s, tm_heap32 *h) {
    uint32_t key = tm_heap32_pop(h);
    if (s->span && key / s->n == s->runs - 1) s->span[key % s->n].start = s->now;
    return key;
}

bool sim_take_disk(sim *s, uint32_t lane, uint32_t *key) {
    tm_heap32 *h = &s->disk_ready[lane];
    TM_ASSERT(lane < s->disk.lanes);
    if (h->n == 0 || sim_disk_full(&s->disk, lane)) return false;
    *key = start_taken(s, h);
    return true;
}

bool sim_take(sim *s, uint8_t engine, uint32_t *key) {
    tm_heap32 *h = &s->ready[engine];
    if (h->n == 0) return false;
    uint32_t r = h->item[0] / s->n, op = h->item[0] % s->n;
    bool early = engine == TM_ENGINE_COPY_IN; /* as reads do, it begins when the link allows */
    if (r != s->first && s->run[(r - 1) % 2].compute_left > 0 && !early) return false;
    if (engine == TM_ENGINE_COMM) {
        uint32_t *turn = &s->run[r % 2].next_comm;
        if (op != *turn) return false;
        *turn = next_comm(s, op + 1);
    }
    *key = start_taken(s, h);
    return true;
}

void sim_complete(sim *s, uint32_t key) {
    uint32_t r = key / s->n, i = key % s->n, base = r % 2 * s->n, after = (r + 1) % 2 * s->n, n = 0;
    const tm_plan_op *o = &s->op[i];
    sim_run *run = &s->run[r % 2];
    if (s->span && r == s->runs - 1) s->span[i].end = s->now;
    TM_ASSERT(!s->done[base + i] && run->left > 0 && s->pred[base + i] == 0);
    s->done[base + i] = 1;
    run->left--;
    if (!sim_is_disk(o->engine) && --run->compute_left == 0) run->compute_end = s->now;
    for (uint32_t k = 0; k < o->n_succ; k++) {
        uint32_t to = s->succ[o->first_succ + k];
        if (--s->pred[base + to] == 0) make_ready(s, r, to);
    }
    if (r + 1 >= s->opened) return;
    const uint32_t *next = tm_link_successors(s->link, i, &n);
    for (uint32_t k = 0; k < n; k++)
        if (--s->pred[after + next[k]] == 0) make_ready(s, r + 1, next[k]);
}

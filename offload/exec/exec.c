/* The interpreter: an operation runs when its predecessors are done, and for no other reason.
 *
 *   calling thread   takes the ready CPU operation with the lowest index, runs the handler (exec_cpu.c)
 *   disk thread      takes each lane's ready disk operations in index order, of the older run first (exec_disk.c)
 *   device           copies and operations, each stream of it in order (exec_copy.c, exec_device.c)
 *   communication    started in index order and no other, by whichever of the two is awake (exec_comm.c)
 *
 * All finish an operation through exec_complete() (exec_order.c). Where the next run was announced, a run ends for its
 * caller when its CPU operations are done: its last write-backs go on beside the next run, whose first reads have begun
 * long before, as the link between the two plans allows. With a seed, one thread does all of it in a random legal order
 * (exec_random.c). */
#include "offload/exec/exec_internal.h"

#include <errno.h>
#include <sys/mman.h>

/* ---- slab ---------------------------------------------------------------------------------------------------- */

static tm_status map_slab(tm_exec *e, uint64_t bytes) {
    const char *kind;
    if (bytes == 0) bytes = TM_FRAME_ALIGN;
    bytes = tm_round_up(bytes, TM_FRAME_ALIGN);
    void *p = tm_fault_hit("map", &kind)
                  ? MAP_FAILED
                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return tm_fail_sys(TM_ENOMEM, errno, "mmap", "", -1,
                           "cannot map %llu bytes of frames; lower memory.host_budget", (unsigned long long)bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* fewer TLB misses where the kernel has them; no matter where not */
    for (uint64_t at = 0; at < bytes; at += 4096) ((volatile char *)p)[at] = 0;
    e->slab = p;
    e->slab_bytes = bytes;
    return TM_OK;
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

tm_status tm_exec_open(tm_exec **out, const tm_exec_opts *opts) {
    tm_status rc;
    tm_exec *e = tm_calloc(1, sizeof *e);
    if (!e) return tm_nomem(sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->cpu_wake, NULL);
    pthread_cond_init(&e->disk_wake, NULL);
    e->seed = opts->seed;
    e->stub_disk = opts->stub_disk;
    e->stub_compute = opts->stub_compute;
    e->comm = opts->comm;
    e->shared = opts->shared;
    e->shared_bytes = opts->shared ? opts->shared_bytes : 0;
    if (opts->device && !tm_device_get_caps(opts->device)->traits.in_place) e->device = opts->device;
    e->store = opts->store;
    e->lanes = e->store ? store_lanes(e->store) : 1;
    e->flight = tm_calloc((size_t)e->lanes * EXEC_DEPTH, sizeof *e->flight);
    if (!e->flight) TM_GO(tm_nomem(sizeof *e->flight * e->lanes * EXEC_DEPTH));
    TM_GO(map_slab(e, opts->slab_bytes));
    if (e->device && !opts->unregistered) {
        TM_GO(tm_device_register(e->device, e->slab, e->slab_bytes));
        e->registered = true;
    }
    if (e->store && !opts->unregistered) TM_GO(tm_io_register(store_io(e->store), e->slab, e->slab_bytes));
    *out = e;
    return TM_OK;
done:
    tm_exec_close(e);
    return rc;
}

void tm_exec_close(tm_exec *e) {
    if (!e) return;
    tm_error said = *tm_error_get(); /* what the caller is on its way out with */
    if (tm_exec_settle(e) != TM_OK) tm_error_clear();
    tm_error_clear();
    if (said.code != TM_OK) tm_error_set(&said);
    if (e->has_thread) {
        pthread_mutex_lock(&e->lock);
        e->quit = true;
        pthread_cond_signal(&e->disk_wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    if (e->store && !e->has_thread) tm_io_unregister(store_io(e->store));
    if (e->registered) tm_device_unregister(e->device, e->slab);
    if (e->slab) munmap(e->slab, e->slab_bytes);
    for (int i = 0; i < 2; i++) exec_run_free(&e->run[i]);
    tm_free(e->flight);
    tm_free(e->temp_checksum);
    tm_free(e->operand);
    exec_device_free(e);
    tm_free(e->twice.before);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->cpu_wake);
    pthread_cond_destroy(&e->disk_wake);
    tm_free(e);
}

static tm_status report(tm_exec *e) {
    if (e->status == TM_OK) return TM_OK;
    tm_error_clear();
    tm_error_set(&e->error);
    return e->status;
}

static void finish_trailing(tm_exec *e) {
    pthread_mutex_lock(&e->lock);
    while (e->status == TM_OK && (exec_trails(e->now) || exec_trails(e->older))) {
        if (e->seed) {
            tm_status rc = exec_random_step(e, NULL, NULL);
            if (rc != TM_OK) exec_fail(e, rc);
        } else {
            pthread_cond_wait(&e->cpu_wake, &e->lock);
        }
    }
    exec_park_disk(e);
    exec_park_device(e);
    pthread_mutex_unlock(&e->lock);
}

tm_status tm_exec_settle(tm_exec *e) {
    if (!e->now) return report(e);
    pthread_mutex_lock(&e->lock);
    e->dropping = true;
    e->next_plan = NULL;
    pthread_mutex_unlock(&e->lock);
    finish_trailing(e);
    exec_run *ended[] = {e->older, e->now};
    pthread_mutex_lock(&e->lock);
    if (e->ahead) e->ahead->open = false;
    e->older = e->now = e->ahead = NULL;
    e->link = NULL;
    e->n_pending = 0;
    e->dropping = false;
    pthread_mutex_unlock(&e->lock);
    for (size_t i = 0; i < TM_COUNT(ended); i++)
        if (ended[i] && ended[i]->open) exec_run_end(e, ended[i]);
    return report(e);
}

void tm_exec_announce(tm_exec *e, const tm_plan *next, const tm_link *link) {
    TM_ASSERT(link_is_proved(link));
    e->next_plan = next;
    e->next_link = link;
}

static tm_status operand_room(tm_exec *e, const tm_plan *plan) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < plan->n_op; i++) most = plan->op[i].n_operands > most ? plan->op[i].n_operands : most;
    TM_TRY(exec_device_room(e, plan));
    if (most <= e->cap_operands) return TM_OK;
    tm_free(e->operand);
    e->cap_operands = 0;
    e->operand = tm_malloc(sizeof *e->operand * most);
    if (!e->operand) return tm_nomem(sizeof *e->operand * most);
    e->cap_operands = most;
    return TM_OK;
}

static tm_status checksum_room(tm_exec *e, const tm_plan *plan) {
    if (plan->n_temp_pages <= e->cap_temp_pages) return TM_OK;
    uint64_t *bigger = tm_realloc(e->temp_checksum, sizeof *bigger * plan->n_temp_pages);
    if (!bigger) return tm_nomem(sizeof *bigger * plan->n_temp_pages);
    e->temp_checksum = bigger;
    e->cap_temp_pages = plan->n_temp_pages;
    return TM_OK;
}

static tm_status begin(tm_exec *e, const tm_plan *plan) {
    if (e->now && e->ahead && e->ahead->plan == plan) {
        exec_step_over(e);
        return report(e);
    }
    const tm_plan *next = e->next_plan;
    TM_TRY(tm_exec_settle(e));
    e->next_plan = next;
    exec_run *r = &e->run[0];
    TM_TRY(exec_run_room(e, r, plan));
    TM_TRY(checksum_room(e, plan));
    pthread_mutex_lock(&e->lock);
    exec_run_begin(e, r, plan, NULL, NULL);
    e->now = r;
    pthread_mutex_unlock(&e->lock);
    return TM_OK;
}

static void fail_run(tm_exec *e) {
    pthread_mutex_lock(&e->lock);
    exec_fail(e, tm_error_get()->code);
    pthread_mutex_unlock(&e->lock);
}

tm_status tm_exec_run(tm_exec *e, const tm_plan *plan, tm_op_fn fn, void *ctx) {
    uint64_t t0 = tm_now_ns();
    TM_ASSERT(plan->info.proved);
    TM_ASSERT(plan->info.slab_bytes <= e->slab_bytes && plan->info.shared_bytes <= e->shared_bytes);
    TM_ASSERT(plan->info.device_bytes == 0 ||
              (e->device && plan->info.device_bytes <= tm_device_get_caps(e->device)->arena_bytes));
    TM_ASSERT(!e->next_plan || e->next_plan->info.slab_bytes <= e->slab_bytes);
    pthread_mutex_lock(&e->lock);
    if (!e->now && !e->lost) e->status = TM_OK; /* a lost engine may still write into frames: no run is safe again */
    pthread_mutex_unlock(&e->lock);
    if (e->lost) return report(e);
    TM_TRY(operand_room(e, plan));
    TM_TRY(begin(e, plan));
    if (e->next_plan && e->next_plan->n_temp_pages > e->cap_temp_pages) e->next_plan = NULL; /* once: room first */
    exec_run *r = e->now;
    r->began_ns = t0;
    e->fn = fn;
    e->fn_ctx = ctx;
    if (e->store) store_run_begins(e->store, plan);
    bool disk = r->disk_left > 0 || e->next_plan;
    TM_ASSERT(r->disk_left == 0 || e->store);
    bool no_thread = disk && e->store && !e->has_thread && !e->seed && exec_disk_thread(e) != TM_OK;
    if (no_thread)
        fail_run(e); /* nobody would ever end what it has: nothing may wait for that */
    else if (e->seed)
        exec_in_random_order(e, r, fn, ctx);
    else
        exec_threaded(e, r, fn, ctx);
    e->next_plan = NULL;
    r->stats.total_ns = tm_now_ns() - t0;
    e->stats.total_ns += r->stats.total_ns;
    if (e->status == TM_OK && !e->ahead) return tm_exec_settle(e);
    if (e->status != TM_OK) { /* nothing goes on after a failure */
        pthread_mutex_lock(&e->lock);
        e->now = e->older = e->ahead = NULL;
        e->link = NULL;
        e->run[0].open = e->run[1].open = false;
        e->n_pending = 0;
        pthread_mutex_unlock(&e->lock);
    }
    return report(e);
}

void tm_exec_get_stats(tm_exec *e, tm_exec_stats *out) {
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}
void tm_exec_on_done(tm_exec *e, tm_run_done_fn fn, void *ctx) {
    e->done_fn = fn;
    e->done_ctx = ctx;
}
void tm_exec_on_device_op(tm_exec *e, tm_device_op_fn fn, void *ctx) {
    pthread_mutex_lock(&e->lock);
    e->device_op_fn = fn;
    e->device_op_ctx = ctx;
    pthread_mutex_unlock(&e->lock);
}
void tm_exec_trace(tm_exec *e, bool on) {
    e->trace = on;
}
char *tm_exec_slab(tm_exec *e) {
    return e->slab;
}

/* The interpreter: an operation runs when its predecessors are done, and for no other reason.
 *
 *   calling thread   takes the ready CPU operation with the lowest index, runs the handler (exec_cpu.c)
 *   disk thread      takes each lane's ready disk operations in index order, of the older run first (exec_disk.c)
 *   device           copies and operations, each stream of it in order (exec_copy.c, exec_device.c)
 *   communication    started in index order and no other, by whichever of the two is awake (exec_comm.c)
 *
 * Each of them takes, starts and ends an operation through exec_order.c, which alone changes its state. Where the next
 * run was announced, a run ends for its caller when its CPU operations are done: its last write-backs go on beside the
 * next run, whose first reads have begun long before, as the link between the two plans allows. With a seed, one thread
 * does all of it in a random legal order (exec_random.c). */
#include "offload/exec/exec_internal.h"

#include <errno.h>
#include <sys/mman.h>

static tm_status map_slab(tm_exec *e, uint64_t bytes) {
    TM_ASSERT(!e->fixed.slab);
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
    e->fixed.slab = p;
    e->fixed.slab_bytes = bytes;
    return TM_OK;
}

tm_status tm_exec_open(tm_exec **out, const tm_exec_opts *opts) {
    tm_status rc;
    tm_exec *e = tm_calloc(1, sizeof *e);
    if (!e) return tm_nomem(sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->cpu_wake, NULL);
    pthread_cond_init(&e->disk_wake, NULL);
    e->fixed.seed = opts->seed;
    e->fixed.stub_disk = opts->stub_disk;
    e->fixed.stub_compute = opts->stub_compute;
    e->fixed.comm = opts->comm;
    e->fixed.moves = opts->moves;
    e->fixed.shared = opts->shared;
    e->fixed.shared_bytes = opts->shared ? opts->shared_bytes : 0;
    if (opts->device && !tm_device_get_caps(opts->device)->traits.in_place) e->fixed.device = opts->device;
    e->fixed.store = opts->store;
    e->fixed.lanes = e->fixed.store ? store_lanes(e->fixed.store) : 1;
    TM_ASSERT(e->fixed.lanes >= 1 && e->fixed.lanes <= EXEC_LANES);
    e->disk.flight = tm_calloc((size_t)e->fixed.lanes * EXEC_DEPTH, sizeof *e->disk.flight);
    if (!e->disk.flight) TM_GO(tm_nomem(sizeof *e->disk.flight * e->fixed.lanes * EXEC_DEPTH));
    TM_GO(map_slab(e, opts->slab_bytes));
    if (e->fixed.device && !opts->unregistered) {
        TM_GO(tm_device_register(e->fixed.device, e->fixed.slab, e->fixed.slab_bytes));
        e->fixed.registered = true;
    }
    if (e->fixed.store && !opts->unregistered)
        TM_GO(tm_io_register(store_io(e->fixed.store), e->fixed.slab, e->fixed.slab_bytes));
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
    if (e->disk.has_thread) {
        pthread_mutex_lock(&e->lock);
        e->disk.quit = true;
        pthread_cond_signal(&e->disk_wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->disk.thread, NULL);
    }
    if (e->fixed.store && !e->disk.has_thread) tm_io_unregister(store_io(e->fixed.store));
    if (e->fixed.registered) tm_device_unregister(e->fixed.device, e->fixed.slab);
    if (e->fixed.slab) munmap(e->fixed.slab, e->fixed.slab_bytes);
    for (int i = 0; i < 2; i++) exec_run_free(&e->runs.run[i]);
    tm_free(e->disk.flight);
    tm_free(e->disk.temp_checksum);
    tm_free(e->caller.operand);
    exec_device_free(e);
    tm_free(e->caller.twice.before);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->cpu_wake);
    pthread_cond_destroy(&e->disk_wake);
    tm_free(e);
}

static tm_status report_result(tm_exec *e) {
    if (e->result.status == TM_OK) return TM_OK;
    tm_error_clear();
    tm_error_set(&e->result.error);
    return e->result.status;
}

static void finish_trailing(tm_exec *e) {
    pthread_mutex_lock(&e->lock);
    while (e->result.status == TM_OK && (exec_trails(e->runs.now) || exec_trails(e->runs.older))) {
        if (e->fixed.seed) {
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
    if (!e->runs.now) return report_result(e);
    TM_ASSERT(!exec_on_disk_thread(e));
    pthread_mutex_lock(&e->lock);
    e->runs.dropping = true;
    e->caller.next_plan = NULL;
    pthread_mutex_unlock(&e->lock);
    finish_trailing(e);
    exec_run *ended[] = {e->runs.older, e->runs.now};
    pthread_mutex_lock(&e->lock);
    if (e->runs.ahead) e->runs.ahead->open = false;
    e->runs.older = e->runs.now = e->runs.ahead = NULL;
    e->runs.link = NULL;
    e->disk.n_pending = 0;
    e->runs.dropping = false;
    pthread_mutex_unlock(&e->lock);
    for (size_t i = 0; i < TM_COUNT(ended); i++)
        if (ended[i] && ended[i]->open) exec_run_end(e, ended[i]);
    return report_result(e);
}

void tm_exec_announce(tm_exec *e, const tm_plan *next, const tm_link *link) {
    TM_ASSERT(link_is_proved(link));
    e->caller.next_plan = next;
    e->caller.next_link = link;
}

static tm_status operand_room(tm_exec *e, const tm_plan *plan) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < plan->n_op; i++) most = plan->op[i].n_operands > most ? plan->op[i].n_operands : most;
    TM_TRY(exec_device_room(e, plan));
    if (most <= e->caller.cap_operands) return TM_OK;
    tm_free(e->caller.operand);
    e->caller.cap_operands = 0;
    e->caller.operand = tm_malloc(sizeof *e->caller.operand * most);
    if (!e->caller.operand) return tm_nomem(sizeof *e->caller.operand * most);
    e->caller.cap_operands = most;
    return TM_OK;
}

static tm_status checksum_room(tm_exec *e, const tm_plan *plan) {
    if (plan->n_temp_pages <= e->disk.cap_temp_pages) return TM_OK;
    uint64_t *bigger = tm_realloc(e->disk.temp_checksum, sizeof *bigger * plan->n_temp_pages);
    if (!bigger) return tm_nomem(sizeof *bigger * plan->n_temp_pages);
    e->disk.temp_checksum = bigger;
    e->disk.cap_temp_pages = plan->n_temp_pages;
    return TM_OK;
}

static tm_status begin_run(tm_exec *e, const tm_plan *plan) {
    TM_ASSERT(!e->runs.ahead || e->runs.now);
    if (e->runs.now && e->runs.ahead && e->runs.ahead->plan == plan) {
        exec_step_over(e);
        return report_result(e);
    }
    const tm_plan *next = e->caller.next_plan;
    TM_TRY(tm_exec_settle(e));
    e->caller.next_plan = next;
    exec_run *r = &e->runs.run[0];
    TM_TRY(exec_run_room(e, r, plan));
    TM_TRY(checksum_room(e, plan));
    pthread_mutex_lock(&e->lock);
    exec_run_begin(e, r, plan, NULL, NULL);
    e->runs.now = r;
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
    TM_ASSERT(plan->info.slab_bytes <= e->fixed.slab_bytes && plan->info.shared_bytes <= e->fixed.shared_bytes);
    TM_ASSERT(plan->info.device_bytes == 0 ||
              (e->fixed.device && plan->info.device_bytes <= tm_device_get_caps(e->fixed.device)->arena_bytes));
    TM_ASSERT(!e->caller.next_plan || e->caller.next_plan->info.slab_bytes <= e->fixed.slab_bytes);
    pthread_mutex_lock(&e->lock);
    if (!e->runs.now && !e->result.lost)
        e->result.status = TM_OK; /* a lost engine may still write into frames: no run is safe again */
    pthread_mutex_unlock(&e->lock);
    if (e->result.lost) return report_result(e);
    TM_TRY(operand_room(e, plan));
    TM_TRY(begin_run(e, plan));
    if (e->caller.next_plan && e->caller.next_plan->n_temp_pages > e->disk.cap_temp_pages)
        e->caller.next_plan = NULL; /* once: room first */
    exec_run *r = e->runs.now;
    r->began_ns = t0;
    e->caller.fn = fn;
    e->caller.fn_ctx = ctx;
    if (e->fixed.store) store_run_begins(e->fixed.store, plan);
    bool disk = r->disk_left > 0 || e->caller.next_plan;
    TM_ASSERT(r->disk_left == 0 || e->fixed.store);
    bool no_thread = disk && e->fixed.store && !e->disk.has_thread && !e->fixed.seed && exec_disk_thread(e) != TM_OK;
    if (no_thread)
        fail_run(e); /* nobody would ever end what it has: nothing may wait for that */
    else if (e->fixed.seed)
        exec_in_random_order(e, r, fn, ctx);
    else
        exec_threaded(e, r, fn, ctx);
    e->caller.next_plan = NULL;
    r->stats.total_ns = tm_now_ns() - t0;
    e->stats.total_ns += r->stats.total_ns;
    if (e->result.status == TM_OK && !e->runs.ahead) return tm_exec_settle(e);
    if (e->result.status != TM_OK) { /* nothing goes on after a failure */
        pthread_mutex_lock(&e->lock);
        e->runs.now = e->runs.older = e->runs.ahead = NULL;
        e->runs.link = NULL;
        e->runs.run[0].open = e->runs.run[1].open = false;
        e->disk.n_pending = 0;
        pthread_mutex_unlock(&e->lock);
    }
    return report_result(e);
}

void tm_exec_get_stats(tm_exec *e, tm_exec_stats *out) {
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}
void tm_exec_on_done(tm_exec *e, tm_run_done_fn fn, void *ctx) {
    e->caller.done_fn = fn;
    e->caller.done_ctx = ctx;
}
void tm_exec_on_device_op(tm_exec *e, tm_device_op_fn fn, void *ctx) {
    pthread_mutex_lock(&e->lock);
    e->streams.device_op_fn = fn;
    e->streams.device_op_ctx = ctx;
    pthread_mutex_unlock(&e->lock);
}
void tm_exec_trace(tm_exec *e, bool on) {
    e->caller.trace = on;
}
char *tm_exec_slab(tm_exec *e) {
    return e->fixed.slab;
}

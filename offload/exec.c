/* The interpreter: an operation runs when its predecessors are done, and for no other reason.
 *
 *   calling thread   takes the ready CPU operation with the lowest index, runs the handler
 *   disk thread      takes ready disk operations in index order, of the older run first (exec_disk.c)
 *   communication    started in index order and no other, by whichever of the two is awake (exec_comm.c)
 *
 * All finish an operation through exec_complete(). Where the next run was announced, a run ends for its caller when
 * its CPU operations are done: its last write-backs go on beside the next run, whose first reads have begun long
 * before, as the link between the two plans allows. With a seed, one thread does all of it in a random legal order
 * (exec_random.c). */
#include "offload/exec_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* ---- heaps of operation indices ------------------------------------------------------------------------------ */

void heap_push(heap *h, uint32_t v) {
    uint32_t i = h->n++;
    TM_ASSERT(h->n <= h->cap);
    for (; i > 0 && h->op[(i - 1) / 2] > v; i = (i - 1) / 2) h->op[i] = h->op[(i - 1) / 2];
    h->op[i] = v;
}

uint32_t heap_pop(heap *h) {
    uint32_t top = h->op[0], v = h->op[--h->n], i = 0;
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= h->n) break;
        if (c + 1 < h->n && h->op[c + 1] < h->op[c]) c++;
        if (h->op[c] >= v) break;
        h->op[i] = h->op[c];
        i = c;
    }
    h->op[i] = v;
    return top;
}

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

/* ---- one operation is done ----------------------------------------------------------------------------------- */

void exec_fail(tm_exec *e, tm_status status) {
    if (e->status == TM_OK) {
        e->status = status;
        e->error = *tm_error_get();
    }
    tm_error_clear();
}

static heap *queue_of(exec_run *r, uint8_t engine) {
    if (plan_is_disk(engine)) return &r->disk;
    if (engine == TM_ENGINE_COPY_IN || engine == TM_ENGINE_COPY_OUT) return &r->copy[engine == TM_ENGINE_COPY_OUT];
    return engine == TM_ENGINE_COMM ? &r->comm : &r->cpu;
}

static bool ready(tm_exec *e, exec_run *r, uint32_t op) {
    bool disk = plan_is_disk(r->plan->op[op].engine);
    if (e->sealing && r->plan->op[op].engine == TM_ENGINE_DISK_WRITE && e->n_seal < EXEC_SEALS) {
        e->seal[e->n_seal++] = (transfer){r, op};
        return false;
    }
    heap_push(queue_of(r, r->plan->op[op].engine), op);
    return disk;
}

bool exec_complete(tm_exec *e, exec_run *r, uint32_t op) {
    const tm_plan_op *o = &r->plan->op[op];
    bool disk = false;
    r->done[op] = OP_DONE;
    r->left--;
    if (plan_is_disk(o->engine))
        r->disk_left--;
    else
        r->cpu_left--;
    for (uint32_t i = 0; i < o->n_succ; i++) {
        uint32_t s = r->plan->succ[o->first_succ + i];
        if (--r->pred[s] == 0) disk |= ready(e, r, s);
    }
    exec_pump_copies(e);
    exec_run *after = r == e->now ? e->ahead : r == e->older ? e->now : NULL;
    if (!after || !e->link) return disk;
    uint32_t n;
    const uint32_t *to = tm_link_successors(e->link, op, &n);
    for (uint32_t i = 0; i < n; i++)
        if (--after->pred[to[i]] == 0) disk |= ready(e, after, to[i]);
    return disk;
}

static tm_status compute_once(tm_exec *e, const tm_plan *plan, uint32_t op, tm_op_fn fn, void *ctx) {
    tm_status rc = fn(ctx, &plan->op[op].op, e->operand);
    exec_flip(e, plan, op);
    return rc;
}

tm_status exec_cpu(tm_exec *e, exec_run *r, uint32_t op, tm_op_fn fn, void *ctx) {
    const tm_plan_op *o = &r->plan->op[op];
    TM_ASSERT(o->engine == TM_ENGINE_CPU && o->n_operands <= e->cap_operands);
    if (e->stub_compute) return TM_OK;
    for (uint32_t i = 0; i < o->n_operands; i++) e->operand[i] = exec_at(e, r->plan->operand[o->first_operand + i]);
    return exec_on_device(e, r->plan, op, e->twice.on ? exec_twice : compute_once, fn, ctx);
}

/* ---- runs ---------------------------------------------------------------------------------------------------- */

static tm_status run_room(const tm_exec *e, exec_run *r, const tm_plan *plan, bool trace) {
    if (plan->n_op > r->cap_ops) {
        void *all[] = {r->pred, r->done, r->cpu.op, r->disk.op, r->comm.op, r->copy[0].op, r->copy[1].op, r->span};
        for (size_t i = 0; i < TM_COUNT(all); i++) tm_free(all[i]);
        r->span = NULL;
        r->cap_ops = plan->n_op;
        r->pred = tm_malloc(sizeof *r->pred * r->cap_ops);
        r->done = tm_malloc(r->cap_ops);
        r->cpu.op = tm_malloc(sizeof *r->cpu.op * r->cap_ops);
        r->disk.op = tm_malloc(sizeof *r->disk.op * r->cap_ops);
        r->comm.op = tm_malloc(sizeof *r->comm.op * r->cap_ops);
        for (int w = 0; w < TM_DEVICE_WAYS; w++) /* one, where nothing is copied */
            r->copy[w].op = tm_malloc(sizeof *r->copy[w].op * (e->device ? r->cap_ops : 1));
        if (!r->pred || !r->done || !r->cpu.op || !r->disk.op || !r->comm.op || !r->copy[0].op || !r->copy[1].op) {
            r->cap_ops = 0;
            return tm_nomem(sizeof *r->pred * plan->n_op);
        }
    }
    r->cpu.cap = r->disk.cap = r->comm.cap = r->copy[0].cap = r->copy[1].cap = r->cap_ops;
    if (trace && !r->span) {
        r->span = tm_calloc(r->cap_ops, sizeof *r->span);
        if (!r->span) return tm_nomem(sizeof *r->span * r->cap_ops);
    }
    return TM_OK;
}

static tm_status operand_room(tm_exec *e, const tm_plan *plan) {
    uint32_t most = 1, frames = 0;
    for (uint32_t i = 0; i < plan->n_op; i++) most = plan->op[i].n_operands > most ? plan->op[i].n_operands : most;
    for (uint32_t i = 0; e->device && i < plan->n_op; i++)
        frames = (uint32_t)tm_max_u64(frames, plan->first_touch[i + 1] - plan->first_touch[i]);
    if (frames > e->cap_frames) {
        tm_free(e->frame);
        e->frame = tm_malloc(sizeof *e->frame * frames);
        e->cap_frames = e->frame ? frames : 0;
        if (!e->frame) return tm_nomem(sizeof *e->frame * frames);
    }
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

/* Opens a run of `plan`; with `link`, beside `before`, whose operations that are not done yet it waits for. */
static void run_begin(tm_exec *e, exec_run *r, const tm_plan *plan, const tm_link *link, const exec_run *before) {
    r->plan = plan;
    r->cpu.n = r->disk.n = r->comm.n = r->copy[0].n = r->copy[1].n = 0;
    r->next_comm = exec_next_comm(plan, 0);
    r->left = plan->n_op;
    r->disk_left = r->in_flight = r->oldest_disk = 0;
    r->stats = (tm_run_stats){.plan = plan};
    r->began_ns = 0;
    memset(r->done, 0, plan->n_op);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        r->pred[i] = plan->op[i].n_pred;
        if (plan_is_disk(plan->op[i].engine)) r->disk_left++;
    }
    r->cpu_left = r->left - r->disk_left;
    for (uint32_t i = 0; link && i < before->plan->n_op; i++) {
        uint32_t n;
        if (before->done[i] >= OP_DONE) continue;
        const uint32_t *to = tm_link_successors(link, i, &n);
        for (uint32_t k = 0; k < n; k++) r->pred[to[k]]++;
    }
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (r->pred[i] == 0) (void)ready(e, r, i);
    r->open = true;
}

/* Everything of `r` is done: those who count are told. On the calling thread, without the lock. */
static void run_end(tm_exec *e, exec_run *r) {
    r->open = false;
    if (e->store) e->stats.checksum_ns = store_checksum_ns(e->store);
    for (uint32_t i = 0; r->span && i < r->plan->n_op; i++) {
        r->span[i].start -= (double)r->began_ns * 1e-9;
        r->span[i].end -= (double)r->began_ns * 1e-9;
    }
    r->stats.span = r->span;
    if (e->done_fn && e->status == TM_OK) e->done_fn(e->done_ctx, &r->stats);
}

static exec_run *other(tm_exec *e, const exec_run *r) {
    return r == &e->run[0] ? &e->run[1] : &e->run[0];
}

/* The older run has come to its end; the announced one may open. Under the lock, which is dropped in between. */
static tm_status turn_over(tm_exec *e) {
    if (e->older && e->older->left == 0) {
        exec_run *old = e->older;
        e->older = NULL;
        e->link = NULL;
        pthread_mutex_unlock(&e->lock);
        run_end(e, old);
        pthread_mutex_lock(&e->lock);
    }
    if (e->older || e->ahead || !e->next_plan || e->status != TM_OK) return TM_OK;
    exec_run *r = other(e, e->now);
    tm_status rc = run_room(e, r, e->next_plan, e->trace);
    if (rc != TM_OK) return rc;
    run_begin(e, r, e->next_plan, e->next_link, e->now);
    e->ahead = r;
    e->link = e->next_link;
    e->next_plan = NULL;
    if (r->disk.n > 0) {
        pthread_cond_signal(&e->disk_wake);
        if (e->store) tm_io_wake(store_io(e->store));
    }
    return TM_OK;
}

/* ---- calling thread ------------------------------------------------------------------------------------------ */

/* What the CPU is waiting for: the oldest operation of another engine that is not done. */
static uint8_t blocking_engine(exec_run *r) {
    while (r->oldest_disk < r->plan->n_op &&
           (r->done[r->oldest_disk] >= OP_DONE || r->plan->op[r->oldest_disk].engine == TM_ENGINE_CPU))
        r->oldest_disk++;
    return r->oldest_disk < r->plan->n_op ? r->plan->op[r->oldest_disk].engine : (uint8_t)TM_ENGINE_DISK_WRITE;
}

static void wait_for_disk(tm_exec *e, exec_run *r) {
    uint64_t t0 = tm_now_ns();
    uint8_t engine = blocking_engine(e->older ? e->older : r);
    pthread_cond_wait(&e->cpu_wake, &e->lock);
    uint64_t ns = tm_now_ns() - t0;
    bool read = engine == TM_ENGINE_DISK_READ, comm = engine == TM_ENGINE_COMM;
    if (engine == TM_ENGINE_COPY_IN || engine == TM_ENGINE_COPY_OUT) {
        r->stats.wait_copy_ns += ns;
        return;
    }
    *(comm ? &e->stats.wait_comm_ns : read ? &e->stats.wait_read_ns : &e->stats.wait_write_ns) += ns;
    *(comm ? &r->stats.wait_comm_ns : read ? &r->stats.wait_read_ns : &r->stats.wait_write_ns) += ns;
}

/* Writes that the operation has made ready: their checksums come first, while the bytes are in the cache. Being ready,
 * they have nothing to overwrite on disk that someone still reads. */
static bool seal_writes(tm_exec *e) {
    transfer list[EXEC_SEALS];
    uint32_t n = e->n_seal;
    memcpy(list, e->seal, n * sizeof *list);
    e->n_seal = 0;
    if (n == 0) return false;
    pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < n && !e->stub_disk; i++) {
        const tm_plan_op *o = &list[i].run->plan->op[list[i].op];
        store_seal(e->store,
                   &(store_target){.plan = list[i].run->plan, .object = o->object, .temp_checksum = e->temp_checksum},
                   e->slab + o->address);
    }
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < n; i++) {
        list[i].run->done[list[i].op] = OP_SEALED;
        heap_push(&list[i].run->disk, list[i].op);
    }
    return true;
}

static void compute_one(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx) {
    uint32_t op = heap_pop(&r->cpu);
    bool disk = false;
    pthread_mutex_unlock(&e->lock);
    uint64_t t0 = tm_now_ns();
    tm_status rc = exec_cpu(e, r, op, fn, ctx);
    pthread_mutex_lock(&e->lock);
    e->sealing = true;
    if (rc != TM_OK)
        exec_fail(e, rc);
    else
        disk = exec_complete(e, r, op);
    e->sealing = false;
    disk |= seal_writes(e);
    uint64_t t1 = tm_now_ns();
    e->stats.compute_ns += t1 - t0;
    r->stats.compute_ns += t1 - t0;
    exec_note_span(r, op, t0, t1);
    if (disk && e->store) tm_io_wake(store_io(e->store));
}

/* Until the CPU operations are done, or, where nothing was announced, everything is. */
static bool unfinished(const tm_exec *e, const exec_run *r) {
    if (e->status != TM_OK) return false;
    return r->cpu_left > 0 || exec_trails(e->older) || (!e->ahead && (e->next_plan || r->left > 0));
}

static void run_threaded(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx) {
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->disk_wake);
    if (e->store) tm_io_wake(store_io(e->store));
    while (unfinished(e, r)) {
        tm_status rc = turn_over(e);
        exec_pump_comm(e);
        exec_pump_copies(e);
        if (rc != TM_OK)
            exec_fail(e, rc);
        else if (r->cpu.n > 0)
            compute_one(e, r, fn, ctx);
        else if (unfinished(e, r) && !(r->cpu_left == 0 && !exec_trails(e->older) && e->next_plan))
            wait_for_disk(e, r);
    }
    (void)turn_over(e);
    if (e->status != TM_OK) {
        exec_park_copies(e);
        exec_park_disk(e);
    }
    pthread_mutex_unlock(&e->lock);
}

static void run_random(tm_exec *e, exec_run *r, tm_op_fn fn, void *ctx) {
    while (unfinished(e, r)) {
        pthread_mutex_lock(&e->lock);
        tm_status rc = turn_over(e);
        pthread_mutex_unlock(&e->lock);
        if (rc == TM_OK && unfinished(e, r) && !(r->cpu_left == 0 && !exec_trails(e->older) && e->next_plan))
            rc = exec_random_step(e, fn, ctx);
        if (rc != TM_OK) exec_fail(e, rc);
    }
    pthread_mutex_lock(&e->lock);
    (void)turn_over(e);
    pthread_mutex_unlock(&e->lock);
}

/* ---- public -------------------------------------------------------------------------------------------------- */

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
    if (opts->device && !tm_device_get_caps(opts->device)->in_place) e->device = opts->device;
    TM_GO(map_slab(e, opts->slab_bytes));
    e->store = opts->store;
    if (e->store && !opts->unregistered) TM_GO(tm_io_register(store_io(e->store), e->slab, e->slab_bytes));
    *out = e;
    return TM_OK;
done:
    tm_exec_close(e);
    return rc;
}

void tm_exec_close(tm_exec *e) {
    if (!e) return;
    if (e->has_thread) {
        tm_error said = *tm_error_get(); /* what the caller is on its way out with */
        if (tm_exec_settle(e) != TM_OK) tm_error_clear();
        tm_error_clear();
        if (said.code != TM_OK) tm_error_set(&said);
        pthread_mutex_lock(&e->lock);
        e->quit = true;
        pthread_cond_signal(&e->disk_wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    if (e->slab) munmap(e->slab, e->slab_bytes);
    for (int i = 0; i < 2; i++) {
        void *all[] = {e->run[i].pred,    e->run[i].done,       e->run[i].cpu.op,     e->run[i].disk.op,
                       e->run[i].comm.op, e->run[i].copy[0].op, e->run[i].copy[1].op, e->run[i].span};
        for (size_t k = 0; k < TM_COUNT(all); k++) tm_free(all[k]);
    }
    tm_free(e->temp_checksum);
    tm_free(e->operand);
    tm_free(e->frame);
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

/* The announced run becomes the one whose CPU operations run. */
static void step_over(tm_exec *e) {
    pthread_mutex_lock(&e->lock);
    e->older = e->now->left > 0 ? e->now : NULL;
    exec_run *ended = e->older ? NULL : e->now;
    e->now = e->ahead;
    e->ahead = NULL;
    if (!e->older) e->link = NULL;
    pthread_mutex_unlock(&e->lock);
    if (ended && ended->open) run_end(e, ended);
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
        if (ended[i] && ended[i]->open) run_end(e, ended[i]);
    return report(e);
}

void tm_exec_announce(tm_exec *e, const tm_plan *next, const tm_link *link) {
    e->next_plan = next;
    e->next_link = link;
}

static tm_status begin(tm_exec *e, const tm_plan *plan) {
    if (e->now && e->ahead && e->ahead->plan == plan) {
        step_over(e);
        return report(e);
    }
    const tm_plan *next = e->next_plan;
    TM_TRY(tm_exec_settle(e));
    e->next_plan = next;
    exec_run *r = &e->run[0];
    TM_TRY(run_room(e, r, plan, e->trace));
    TM_TRY(checksum_room(e, plan));
    pthread_mutex_lock(&e->lock);
    run_begin(e, r, plan, NULL, NULL);
    e->now = r;
    pthread_mutex_unlock(&e->lock);
    return TM_OK;
}

tm_status tm_exec_run(tm_exec *e, const tm_plan *plan, tm_op_fn fn, void *ctx) {
    uint64_t t0 = tm_now_ns();
    TM_ASSERT(plan->info.slab_bytes <= e->slab_bytes);
    TM_ASSERT(plan->info.device_bytes == 0 ||
              (e->device && plan->info.device_bytes <= tm_device_get_caps(e->device)->arena_bytes));
    TM_ASSERT(!e->next_plan || e->next_plan->info.slab_bytes <= e->slab_bytes);
    pthread_mutex_lock(&e->lock);
    if (!e->now) e->status = TM_OK;
    pthread_mutex_unlock(&e->lock);
    TM_TRY(operand_room(e, plan));
    TM_TRY(begin(e, plan));
    if (e->next_plan && e->next_plan->n_temp_pages > e->cap_temp_pages) e->next_plan = NULL; /* once: room first */
    exec_run *r = e->now;
    r->began_ns = t0;
    bool disk = r->disk_left > 0 || e->next_plan;
    TM_ASSERT(r->disk_left == 0 || e->store);
    if (disk && e->store && !e->has_thread && !e->seed) TM_TRY(exec_disk_thread(e));
    if (e->seed)
        run_random(e, r, fn, ctx);
    else
        run_threaded(e, r, fn, ctx);
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
void tm_exec_trace(tm_exec *e, bool on) {
    e->trace = on;
}
char *tm_exec_slab(tm_exec *e) {
    return e->slab;
}

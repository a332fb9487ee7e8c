/* The interpreter: an operation runs when its predecessors are done, and for no other reason.
 *
 *   calling thread   takes the ready CPU operation with the lowest index, runs the handler
 *   disk thread      takes ready disk operations in index order while fewer than DEPTH are in flight, checks pages,
 *                    reaps completions
 *
 * Both finish an operation through complete(), which is the only place where an operation becomes ready. With a seed,
 * one thread does all of it in a random legal order. */
#include "offload/offload_internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { DEPTH = 32 };

typedef struct heap {
    uint32_t *op;
    uint32_t n, cap;
} heap;

typedef struct flight {
    tm_io_req req;
    uint32_t op;
    bool busy;
} flight;

struct tm_exec {
    char *slab;
    uint64_t slab_bytes;
    tm_store *store;
    uint64_t seed, draws;
    pthread_t thread;
    bool has_thread, quit;
    pthread_mutex_t lock;
    pthread_cond_t cpu_wake, disk_wake;
    /* of the run in progress, under the lock: */
    const tm_plan *plan;
    uint32_t *pred; /* predecessors left */
    uint8_t *done;
    uint32_t cap_ops, oldest_disk;
    heap cpu, disk;
    uint32_t left, disk_left, in_flight;
    tm_status status;
    tm_error error;
    bool running;
    /* of the disk thread: */
    flight flight[DEPTH];
    uint64_t *temp_checksum;
    uint32_t cap_temp_pages;
    tm_exec_stats stats;
};

/* ---- heaps of operation indices ------------------------------------------------------------------------------ */

static void heap_push(heap *h, uint32_t v) {
    uint32_t i = h->n++;
    TM_ASSERT(h->n <= h->cap);
    for (; i > 0 && h->op[(i - 1) / 2] > v; i = (i - 1) / 2) h->op[i] = h->op[(i - 1) / 2];
    h->op[i] = v;
}

static uint32_t heap_pop(heap *h) {
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

/* ---- scheduling ---------------------------------------------------------------------------------------------- */

static void fail_locked(tm_exec *e, tm_status status) {
    if (e->status == TM_OK) {
        e->status = status;
        e->error = *tm_error_get();
    }
    tm_error_clear();
}

/* Marks `op` done and readies its successors. Returns true if a disk operation became ready. Under the lock. */
static bool complete(tm_exec *e, uint32_t op) {
    const tm_plan_op *o = &e->plan->op[op];
    bool disk = false;
    e->done[op] = 1;
    e->left--;
    if (o->engine != TM_ENGINE_CPU) e->disk_left--;
    for (uint32_t i = 0; i < o->n_succ; i++) {
        uint32_t s = e->plan->succ[o->first_succ + i];
        if (--e->pred[s] > 0) continue;
        if (e->plan->op[s].engine == TM_ENGINE_CPU) {
            heap_push(&e->cpu, s);
        } else {
            heap_push(&e->disk, s);
            disk = true;
        }
    }
    return disk;
}

static void count_disk(tm_exec *e, const tm_plan_op *o, uint64_t bytes) {
    tm_kind kind =
        (o->object & TM_TEMP_BIT ? &e->plan->temp[o->object & ~TM_TEMP_BIT] : &e->plan->layout->object[o->object])
            ->kind;
    if (o->engine == TM_ENGINE_DISK_READ)
        e->stats.read_bytes[kind] += bytes;
    else
        e->stats.write_bytes[kind] += bytes;
}

static store_target target_of(const tm_exec *e, uint32_t op) {
    return (store_target){.plan = e->plan, .object = e->plan->op[op].object, .temp_checksum = e->temp_checksum};
}

static tm_status start_disk(tm_exec *e, uint32_t op) {
    const tm_plan_op *o = &e->plan->op[op];
    store_target t = target_of(e, op);
    flight *f = NULL;
    for (int i = 0; i < DEPTH && !f; i++)
        if (!e->flight[i].busy) f = &e->flight[i];
    TM_ASSERT(f);
    f->req = (tm_io_req){.user = f};
    f->op = op;
    if (o->engine == TM_ENGINE_DISK_READ)
        TM_TRY(store_prepare_read(e->store, &t, e->slab + o->address, &f->req));
    else
        store_prepare_write(e->store, &t, e->slab + o->address, &f->req);
    tm_io_req *one[] = {&f->req};
    TM_TRY(tm_io_submit(store_io(e->store), one, 1));
    f->busy = true;
    return TM_OK;
}

static tm_status finish_disk(tm_exec *e, flight *f) {
    const tm_plan_op *o = &e->plan->op[f->op];
    store_target t = target_of(e, f->op);
    f->busy = false;
    if (f->req.status != TM_OK) return tm_io_req_fail(&f->req);
    if (o->engine == TM_ENGINE_DISK_READ) TM_TRY(store_check_read(e->store, &t, e->slab + o->address, &f->req));
    count_disk(e, o, f->req.done);
    return TM_OK;
}

/* ---- disk thread --------------------------------------------------------------------------------------------- */

static bool disk_busy(const tm_exec *e) {
    return e->running && (e->in_flight > 0 || (e->status == TM_OK && e->disk_left > 0));
}

static uint32_t take_disk(tm_exec *e, uint32_t *batch) {
    uint32_t n = 0;
    pthread_mutex_lock(&e->lock);
    while (e->status == TM_OK && e->disk.n > 0 && e->in_flight < DEPTH) {
        batch[n++] = heap_pop(&e->disk);
        e->in_flight++;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

static void disk_failed(tm_exec *e, tm_status rc) {
    pthread_mutex_lock(&e->lock);
    e->in_flight--;
    fail_locked(e, rc);
    pthread_cond_signal(&e->cpu_wake);
    pthread_mutex_unlock(&e->lock);
}

static void reap(tm_exec *e) {
    tm_io_req *got[DEPTH];
    unsigned n = 0;
    tm_status rc = tm_io_wait(store_io(e->store), got, DEPTH, &n, true);
    if (rc != TM_OK) {
        pthread_mutex_lock(&e->lock);
        fail_locked(e, rc);
        e->in_flight = 0; /* the engine is lost; nothing more will come */
        pthread_cond_signal(&e->cpu_wake);
        pthread_mutex_unlock(&e->lock);
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        flight *f = got[i]->user;
        rc = finish_disk(e, f);
        if (rc != TM_OK) {
            disk_failed(e, rc);
            continue;
        }
        pthread_mutex_lock(&e->lock);
        e->in_flight--;
        (void)complete(e, f->op);
        pthread_cond_signal(&e->cpu_wake);
        pthread_mutex_unlock(&e->lock);
    }
}

static void *disk_main(void *arg) {
    tm_exec *e = arg;
    uint32_t batch[DEPTH];
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->quit && !disk_busy(e)) {
            pthread_cond_signal(&e->cpu_wake);
            pthread_cond_wait(&e->disk_wake, &e->lock);
        }
        bool quit = e->quit;
        pthread_mutex_unlock(&e->lock);
        if (quit) return NULL;
        uint32_t n = take_disk(e, batch);
        for (uint32_t i = 0; i < n; i++) {
            tm_status rc = start_disk(e, batch[i]);
            if (rc != TM_OK) disk_failed(e, rc);
        }
        reap(e);
    }
}

/* ---- calling thread ------------------------------------------------------------------------------------------ */

static tm_status run_cpu(tm_exec *e, uint32_t op, tm_op_fn fn, void *ctx) {
    enum { MANY = 512 };
    void *few[MANY];
    const tm_plan_op *o = &e->plan->op[op];
    void **operand = few;
    if (o->n_operands > MANY) {
        operand = tm_malloc(sizeof *operand * o->n_operands);
        if (!operand) return tm_nomem(sizeof *operand * o->n_operands);
    }
    for (uint32_t i = 0; i < o->n_operands; i++) operand[i] = e->slab + e->plan->operand[o->first_operand + i];
    tm_status rc = fn(ctx, &o->op, operand);
    if (operand != few) tm_free(operand);
    return rc;
}

/* What the CPU is waiting for: the oldest disk operation that is not done. */
static uint8_t blocking_engine(tm_exec *e) {
    while (e->oldest_disk < e->plan->n_op &&
           (e->done[e->oldest_disk] || e->plan->op[e->oldest_disk].engine == TM_ENGINE_CPU))
        e->oldest_disk++;
    return e->oldest_disk < e->plan->n_op ? e->plan->op[e->oldest_disk].engine : (uint8_t)TM_ENGINE_DISK_WRITE;
}

static void run_threaded(tm_exec *e, tm_op_fn fn, void *ctx) {
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->disk_wake);
    while (e->left > 0 && e->status == TM_OK) {
        if (e->cpu.n == 0) {
            uint64_t t0 = tm_now_ns();
            uint8_t engine = blocking_engine(e);
            pthread_cond_wait(&e->cpu_wake, &e->lock);
            uint64_t ns = tm_now_ns() - t0;
            if (engine == TM_ENGINE_DISK_READ)
                e->stats.wait_read_ns += ns;
            else
                e->stats.wait_write_ns += ns;
            continue;
        }
        uint32_t op = heap_pop(&e->cpu);
        pthread_mutex_unlock(&e->lock);
        uint64_t t0 = tm_now_ns();
        tm_status rc = run_cpu(e, op, fn, ctx);
        uint64_t ns = tm_now_ns() - t0;
        pthread_mutex_lock(&e->lock);
        e->stats.compute_ns += ns;
        if (rc != TM_OK)
            fail_locked(e, rc);
        else if (complete(e, op) && e->store)
            tm_io_wake(store_io(e->store));
    }
    if (e->store) tm_io_wake(store_io(e->store));
    while (disk_busy(e)) pthread_cond_wait(&e->cpu_wake, &e->lock);
    e->running = false;
    pthread_mutex_unlock(&e->lock);
}

/* ---- random legal orders (tests) ----------------------------------------------------------------------------- */

static uint32_t draw(tm_exec *e, uint32_t n) {
    uint32_t r[4];
    tm_philox(e->seed, 0, e->draws++, r);
    return r[0] % n;
}

static uint32_t take_any(tm_exec *e, heap *h) {
    uint32_t i = draw(e, h->n), op = h->op[i];
    h->op[i] = h->op[--h->n]; /* order inside does not matter here: every take is random */
    return op;
}

/* A disk operation in flight moves its bytes either when it starts or when it completes, as the draw has it. */
typedef struct pending {
    uint32_t op;
    bool moved;
} pending;

static tm_status move_now(tm_exec *e, uint32_t op) {
    tm_io_req *got[DEPTH];
    unsigned n = 0;
    TM_TRY(start_disk(e, op));
    while (n == 0) TM_TRY(tm_io_wait(store_io(e->store), got, 1, &n, true));
    return finish_disk(e, got[0]->user);
}

static tm_status random_step(tm_exec *e, pending *p, uint32_t *n, tm_op_fn fn, void *ctx) {
    uint32_t ready = e->cpu.n + (*n < DEPTH ? e->disk.n : 0);
    TM_ASSERT(ready + *n > 0);
    uint32_t which = draw(e, ready + *n);
    if (which < e->cpu.n) {
        uint32_t op = take_any(e, &e->cpu);
        TM_TRY(run_cpu(e, op, fn, ctx));
        (void)complete(e, op);
    } else if (which < ready) {
        pending *q = &p[(*n)++];
        *q = (pending){.op = take_any(e, &e->disk), .moved = draw(e, 2) == 0};
        if (q->moved) TM_TRY(move_now(e, q->op));
    } else {
        uint32_t i = draw(e, *n);
        pending q = p[i];
        p[i] = p[--*n];
        if (!q.moved) TM_TRY(move_now(e, q.op));
        (void)complete(e, q.op);
    }
    return TM_OK;
}

static void run_random(tm_exec *e, tm_op_fn fn, void *ctx) {
    pending p[DEPTH];
    uint32_t n = 0;
    while (e->left > 0 && e->status == TM_OK) {
        tm_status rc = random_step(e, p, &n, fn, ctx);
        if (rc != TM_OK) fail_locked(e, rc);
    }
    e->running = false;
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
    TM_GO(map_slab(e, opts->slab_bytes));
    e->store = opts->store;
    if (e->store) TM_GO(tm_io_register(store_io(e->store), e->slab, e->slab_bytes));
    *out = e;
    return TM_OK;
done:
    tm_exec_close(e);
    return rc;
}

void tm_exec_close(tm_exec *e) {
    if (!e) return;
    if (e->has_thread) {
        pthread_mutex_lock(&e->lock);
        e->quit = true;
        pthread_cond_signal(&e->disk_wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    if (e->slab) munmap(e->slab, e->slab_bytes);
    tm_free(e->pred);
    tm_free(e->done);
    tm_free(e->cpu.op);
    tm_free(e->disk.op);
    tm_free(e->temp_checksum);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->cpu_wake);
    pthread_cond_destroy(&e->disk_wake);
    tm_free(e);
}

static tm_status room_for(tm_exec *e, const tm_plan *plan) {
    if (plan->n_op > e->cap_ops) {
        tm_free(e->pred);
        tm_free(e->done);
        tm_free(e->cpu.op);
        tm_free(e->disk.op);
        e->cap_ops = plan->n_op;
        e->pred = tm_malloc(sizeof *e->pred * e->cap_ops);
        e->done = tm_malloc(e->cap_ops);
        e->cpu.op = tm_malloc(sizeof *e->cpu.op * e->cap_ops);
        e->disk.op = tm_malloc(sizeof *e->disk.op * e->cap_ops);
        if (!e->pred || !e->done || !e->cpu.op || !e->disk.op) {
            e->cap_ops = 0;
            return tm_nomem(sizeof *e->pred * plan->n_op);
        }
    }
    e->cpu.cap = e->disk.cap = e->cap_ops;
    if (plan->n_temp_pages > e->cap_temp_pages) {
        tm_free(e->temp_checksum);
        e->cap_temp_pages = plan->n_temp_pages;
        e->temp_checksum = tm_malloc(sizeof *e->temp_checksum * e->cap_temp_pages);
        if (!e->temp_checksum) {
            e->cap_temp_pages = 0;
            return tm_nomem(sizeof *e->temp_checksum * plan->n_temp_pages);
        }
    }
    return TM_OK;
}

static void reset(tm_exec *e, const tm_plan *plan) {
    e->plan = plan;
    e->cpu.n = e->disk.n = 0;
    e->left = plan->n_op;
    e->disk_left = e->in_flight = e->oldest_disk = 0;
    e->status = TM_OK;
    memset(e->done, 0, plan->n_op);
    for (uint32_t i = 0; i < plan->n_op; i++) {
        e->pred[i] = plan->op[i].n_pred;
        if (plan->op[i].engine != TM_ENGINE_CPU) e->disk_left++;
        if (e->pred[i] == 0) heap_push(plan->op[i].engine == TM_ENGINE_CPU ? &e->cpu : &e->disk, i);
    }
    e->running = true;
}

tm_status tm_exec_run(tm_exec *e, const tm_plan *plan, tm_op_fn fn, void *ctx) {
    uint64_t t0 = tm_now_ns();
    TM_ASSERT(plan->info.slab_bytes <= e->slab_bytes);
    TM_TRY(room_for(e, plan));
    pthread_mutex_lock(&e->lock);
    reset(e, plan);
    bool disk = e->disk_left > 0;
    pthread_mutex_unlock(&e->lock);
    TM_ASSERT(!disk || e->store);
    if (disk && !e->has_thread && !e->seed) {
        int err = pthread_create(&e->thread, NULL, disk_main, e);
        if (err) return tm_fail_sys(TM_EIO, err, "pthread_create", "", -1, "cannot start the disk thread");
        e->has_thread = true;
    }
    if (e->seed)
        run_random(e, fn, ctx);
    else
        run_threaded(e, fn, ctx);
    e->stats.total_ns += tm_now_ns() - t0;
    if (e->store) e->stats.checksum_ns = store_checksum_ns(e->store);
    if (e->status != TM_OK) {
        tm_error_clear();
        tm_error_set(&e->error);
        return e->status;
    }
    return TM_OK;
}

void tm_exec_get_stats(const tm_exec *e, tm_exec_stats *out) {
    *out = e->stats;
}
char *tm_exec_slab(tm_exec *e) {
    return e->slab;
}

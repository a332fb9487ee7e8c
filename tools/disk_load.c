#include "tools/disk_load.h"
#include "tools/disk_latency.h"
#include "tools/disk_pattern.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LAYOUT_REQUEST = 1 << 20, LAYOUT_OUTSTANDING = 8, PAGE_BYTES = 64 << 10 };
/* Of buffers, which take turns: a disk that fills the same few again and again fills a cache, and looks up to 1.4 times as fast as in
 * training, where every page has its own place. */
enum { COLD_BYTES = 128 << 20 };
static const uint64_t pattern_key = 0x7469646500000000u; /* the low byte is the age's */

typedef struct place { /* one folder */
    tm_io_run *run;
    tm_io_file file;
    uint8_t *age; /* of each sector, with verify */
} place;

struct disk_load {
    place place[DISK_MAX_PATHS];
    unsigned n;
    uint64_t bytes;
    uint32_t sector;
    bool verify;
    char *memory; /* buffers of the runs; the largest so far */
    size_t memory_bytes;
};

/* ---- signals ---- */

static volatile sig_atomic_t stop_signal;
static tm_io *volatile to_wake;

static void on_signal(int number) {
    int keep = errno;
    stop_signal = number;
    if (to_wake) tm_io_wake(to_wake);
    errno = keep;
}

void disk_load_catch_signals(void) {
    const struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
    (void)sigaction(SIGPIPE, &action, NULL);
}

static tm_status check_stopped(void) {
    return stop_signal ? tm_fail(TM_ESIGNAL, "stopped by signal %d", (int)stop_signal) : TM_OK;
}

/* ---- where to go next ---- */

/* A pass moves each byte of the file once. Mixed: one half is read while the other is written; they change places with
 * the next pass, so that a read never meets a write under way. */
typedef struct walk {
    uint64_t blocks, at[2], end[2], first[2]; /* [DISK_READ], [DISK_WRITE]: block numbers of this pass */
    uint64_t pass;
    bool turn;                                       /* mixed: the next one is a write */
    unsigned out, n_idle, next_idle, n_slots, *idle; /* idle: a ring, from next_idle on */
    bool over, synced;
    uint64_t bytes[2], last_ns;
} walk;

static void begin_pass(walk *w, disk_rw rw) {
    uint64_t half = w->blocks / 2, which = w->pass++ % 2;
    for (int k = 0; k < 2; k++) {
        bool wanted = rw == DISK_MIXED || (int)rw == k, second = (uint64_t)k != which;
        w->first[k] = rw == DISK_MIXED && second ? half : 0;
        w->end[k] = !wanted ? 0 : rw == DISK_MIXED ? half : w->blocks;
        w->at[k] = 0;
    }
}

/* A permutation of [0, n): odd multipliers and shifted exclusive-ors are invertible modulo a power of two, and whatever
 * falls outside goes round again until it is inside. */
static uint64_t shuffled(uint64_t i, uint64_t n, uint64_t key) {
    unsigned bits = n > 1 ? 64 - (unsigned)__builtin_clzll(n - 1) : 1;
    uint64_t mask = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    do {
        i = (i + key) & mask;
        for (int round = 0; round < 3; round++) {
            i = i * 0x9e3779b97f4a7c15u & mask;
            i ^= i >> (bits / 2 + 1);
        }
    } while (i >= n);
    return i;
}

/* ---- one run of a job ---- */

typedef struct slot {
    tm_io_req req;
    unsigned path;
} slot;

typedef struct load_run {
    disk_load *d;
    const disk_load_job *job;
    tm_io *io;
    slot *slots;
    walk walk[DISK_MAX_PATHS];
    tm_io_req **batch;
    unsigned n_slots, n_batch;
    uint64_t start_ns, sink;
    double checksum_seconds;
    disk_histogram *latency; /* [2] */
} load_run;

static bool path_used(const load_run *r, unsigned path) {
    return r->job->only_path == 0 || r->job->only_path == path + 1;
}

static double clock_seconds(clockid_t clock) {
    struct timespec t = {0};
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void hash_pages(load_run *r, const tm_io_req *q) {
    double before = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (uint32_t at = 0; at < q->len; at += PAGE_BYTES)
        r->sink ^= tm_hash64((char *)q->buf + at, tm_min_u64(PAGE_BYTES, q->len - at), at);
    r->checksum_seconds += clock_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
}

static void prepare_write(load_run *r, slot *s) {
    place *p = &r->d->place[s->path];
    if (r->d->verify) {
        uint8_t *age = p->age + s->req.offset / r->d->sector;
        for (uint32_t i = 0; i < s->req.len / r->d->sector; i++) age[i]++;
        disk_pattern_fill(s->req.buf, s->req.len, s->req.offset, r->d->sector, age, pattern_key);
    }
    if (r->job->page_checksums) hash_pages(r, &s->req);
}

/* The next request of a folder; false: none in this pass. */
static bool next_request(load_run *r, unsigned path, slot *s) {
    walk *w = &r->walk[path];
    int k = r->job->rw == DISK_MIXED ? w->turn : (int)r->job->rw;
    if (w->at[k] == w->end[k]) return false;
    w->turn = !w->turn;
    uint64_t i = w->at[k]++;
    if (r->job->random) i = shuffled(i, w->end[k], w->pass * 77 + (uint64_t)k);
    s->req = (tm_io_req){.op = k == DISK_READ ? TM_IO_READ : TM_IO_WRITE,
                         .file = r->d->place[path].file,
                         .offset = (w->first[k] + i) * r->job->request,
                         .buf = s->req.buf,
                         .len = r->job->request,
                         .user = s};
    if (k == DISK_WRITE) prepare_write(r, s);
    return true;
}

static bool time_is_up(const load_run *r) {
    return r->job->seconds > 0 && (double)(tm_now_ns() - r->start_ns) > 1e9 * r->job->seconds;
}

/* Buffered bytes count when they are on the disk. */
static bool wants_sync(const load_run *r, unsigned path) {
    const walk *w = &r->walk[path];
    return w->over && !w->out && !w->synced && w->bytes[DISK_WRITE] && r->d->place[path].file.alignment <= 1;
}

static void add_to_batch(load_run *r, walk *w, slot *s) {
    w->n_idle--, w->next_idle = (w->next_idle + 1) % w->n_slots;
    w->out++;
    r->batch[r->n_batch++] = &s->req;
}

static void issue(load_run *r, unsigned path) {
    walk *w = &r->walk[path];
    if (!w->over && time_is_up(r)) w->over = true;
    while (!w->over && w->n_idle && w->out < r->job->outstanding) {
        slot *s = &r->slots[w->idle[w->next_idle]];
        if (next_request(r, path, s)) {
            add_to_batch(r, w, s);
        } else if (w->out) {
            break; /* the pass ends before the next begins */
        } else if (r->job->repeat) {
            begin_pass(w, r->job->rw);
        } else {
            w->over = true;
        }
    }
    if (!wants_sync(r, path)) return;
    slot *s = &r->slots[w->idle[w->next_idle]];
    s->req = (tm_io_req){.op = TM_IO_SYNC, .file = r->d->place[path].file, .buf = s->req.buf, .user = s};
    w->synced = true;
    add_to_batch(r, w, s);
}

static tm_status check_read(load_run *r, const slot *s) {
    const place *p = &r->d->place[s->path];
    if (r->job->page_checksums) hash_pages(r, &s->req);
    if (!r->d->verify) return TM_OK;
    int64_t bad = disk_pattern_check(s->req.buf, s->req.len, s->req.offset, r->d->sector,
                                     p->age + s->req.offset / r->d->sector, pattern_key);
    if (bad < 0) return TM_OK;
    return tm_fail(TM_ECORRUPT, "%s: the %u bytes at byte %llu are not what was written there; do not trust this disk",
                   p->file.name, r->d->sector, (unsigned long long)s->req.offset + (unsigned long long)bad);
}

static tm_status complete(load_run *r, slot *s) {
    walk *w = &r->walk[s->path];
    TM_TRY(tm_io_req_fail(&s->req));
    w->idle[(w->next_idle + w->n_idle++) % w->n_slots] = (unsigned)(s - r->slots);
    w->out--;
    w->last_ns = s->req.complete_ns;
    if (s->req.op == TM_IO_SYNC) return TM_OK;
    int k = s->req.op == TM_IO_WRITE;
    w->bytes[k] += s->req.len;
    disk_histogram_add(&r->latency[k], s->req.complete_ns - s->req.submit_ns);
    return k == DISK_READ ? check_read(r, s) : TM_OK;
}

static tm_status submit_batch(load_run *r) {
    unsigned n = r->n_batch;
    r->n_batch = 0;
    return n ? tm_io_submit(r->io, r->batch, n) : TM_OK;
}

static tm_status drive(load_run *r) {
    enum { MANY = 64 };
    tm_io_req *done[MANY];
    for (unsigned path = 0; path < r->d->n; path++)
        if (path_used(r, path)) issue(r, path);
    TM_TRY(submit_batch(r));
    while (tm_io_in_flight(r->io)) {
        unsigned n;
        bool touched[DISK_MAX_PATHS] = {false};
        TM_TRY(tm_io_wait(r->io, done, MANY, &n, true));
        TM_TRY(check_stopped());
        for (unsigned i = 0; i < n; i++) {
            slot *s = done[i]->user;
            TM_TRY(complete(r, s));
            touched[s->path] = true;
        }
        for (unsigned path = 0; path < r->d->n; path++)
            if (touched[path]) issue(r, path);
        TM_TRY(submit_batch(r));
    }
    return check_stopped();
}

/* ---- setting up a run ---- */

static void fill_incompressible(char *memory, size_t bytes) {
    uint64_t x = 1, *w = (uint64_t *)memory;
    for (size_t i = 0; i < bytes / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64, Marsaglia 2003 */
        w[i] = x;
    }
}

static void unmap_buffers(disk_load *d) {
    if (d->memory) munmap(d->memory, d->memory_bytes);
    d->memory = NULL;
}

static tm_status map_buffers(disk_load *d, const disk_load_job *job, unsigned n) {
    size_t bytes = (size_t)tm_round_up((uint64_t)n * tm_round_up(job->request, 4096), 2 * TM_MIB);
    if (d->memory && d->memory_bytes >= bytes) return TM_OK;
    unmap_buffers(d);
    if (bytes > tm_mem_available_bytes() / 2) {
        char need[32], have[32];
        return tm_fail(TM_EINPUT, "%u buffers of %u bytes are %s, %s of memory are free; lower the block or the depth",
                       n, job->request, tm_format_size(bytes, need, sizeof need),
                       tm_format_size(tm_mem_available_bytes(), have, sizeof have));
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return tm_fail_sys(TM_ENOMEM, errno, "mmap", "", -1,
                           "no memory for %u buffers of %u bytes; lower the block size or the depth", n, job->request);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    d->memory = p;
    d->memory_bytes = bytes;
    fill_incompressible(p, bytes);
    return TM_OK;
}

/* Of each folder: more than are outstanding, where memory has room for that. */
static unsigned slots_of(const disk_load *d, const disk_load_job *job) {
    uint64_t room = tm_min_u64(COLD_BYTES, tm_mem_available_bytes() / 8), each = tm_round_up(job->request, 4096);
    return (unsigned)tm_max_u64(job->outstanding, room / d->n / each);
}

static tm_status set_up_slots(load_run *r) {
    unsigned per_path = r->n_slots / r->d->n, *idle = tm_calloc(r->n_slots, sizeof *idle);
    r->walk[0].idle = idle; /* freed through this one */
    r->slots = tm_calloc(r->n_slots, sizeof *r->slots);
    r->batch = tm_calloc(r->n_slots, sizeof(tm_io_req *));
    r->latency = tm_calloc(2, sizeof *r->latency);
    if (!idle || !r->slots || !r->batch || !r->latency) return tm_nomem(r->n_slots * sizeof *r->slots);
    for (unsigned path = 0; path < r->d->n; path++) {
        walk *w = &r->walk[path];
        w->idle = idle + path * per_path;
        w->n_slots = per_path;
        w->blocks = r->d->bytes / r->job->request;
        begin_pass(w, r->job->rw);
        for (unsigned i = 0; i < per_path; i++) {
            unsigned k = path * per_path + i;
            r->slots[k].path = path;
            r->slots[k].req.buf = r->d->memory + k * tm_round_up(r->job->request, 4096);
            w->idle[w->n_idle++] = k;
        }
    }
    return TM_OK;
}

static tm_status open_io(load_run *r) {
    tm_io_opts o = r->job->io;
    tm_io_file files[DISK_MAX_PATHS];
    if (!o.queue_depth) o.queue_depth = r->job->outstanding;
    if (!o.block_bytes) o.block_bytes = r->job->request;
    o.lanes = r->d->n;
    TM_TRY(tm_io_open(&r->io, &o));
    to_wake = r->io;
    for (unsigned i = 0; i < r->d->n; i++) files[i] = r->d->place[i].file;
    if (r->job->unregistered) return TM_OK;
    TM_TRY(tm_io_register(r->io, r->d->memory, r->d->memory_bytes));
    TM_TRY(tm_io_register_files(r->io, files, r->d->n));
    for (unsigned i = 0; i < r->d->n; i++) r->d->place[i].file.index = files[i].index;
    return TM_OK;
}

static void tear_down(load_run *r) {
    to_wake = NULL;
    tm_io_close(r->io); /* waits for what is in flight: before its memory goes */
    for (unsigned i = 0; i < r->d->n; i++) r->d->place[i].file.index = -1;
    TM_FREE_ALL(r->walk[0].idle, r->slots, r->batch, r->latency);
}

static tm_status check_job(const disk_load *d, const disk_load_job *job) {
    TM_ASSERT(job->outstanding > 0 && job->request > 0);
    for (unsigned i = 0; i < d->n; i++) {
        uint32_t unit = d->place[i].file.alignment;
        if (unit > 1 && job->request % unit)
            return tm_fail(TM_EINPUT, "blocks of %u bytes: %s takes multiples of %u with O_DIRECT; use --buffered",
                           job->request, d->place[i].file.name, unit);
    }
    if (d->verify && job->request % d->sector)
        return tm_fail(TM_EINPUT, "blocks of %u bytes: what is verified comes in multiples of %u", job->request,
                       d->sector);
    if (d->bytes / job->request < (job->rw == DISK_MIXED ? 2u : 1u))
        return tm_fail(TM_EINPUT, "blocks of %u bytes do not go into a file of %llu", job->request,
                       (unsigned long long)d->bytes);
    return TM_OK;
}

/* Of this process but its busy cores. These run on between two readings of clocks, for a whole time slice where this
 * thread is taken off its core meanwhile: the reading is the one of several that they surround most closely. Asking for
 * theirs first also brings them up to date, which the process's clock leaves to the next tick.
 */
static double cpu_seconds(const disk_load_job *job) {
    if (!job->busy) return clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    double closest = INFINITY, reading = 0;
    for (unsigned i = 0; i < 32 && closest > 20e-6; i++) {
        double before = busy_cores_cpu_seconds(job->busy), all = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
        double after = busy_cores_cpu_seconds(job->busy);
        if (after - before >= closest) continue;
        closest = after - before;
        reading = all - (before + after) / 2;
    }
    return reading;
}

static void read_result(const load_run *r, disk_load_result *out) {
    static disk_histogram all;
    uint64_t last = r->start_ns;
    for (unsigned path = 0; path < r->d->n; path++) {
        const walk *w = &r->walk[path];
        double seconds = w->last_ns > r->start_ns ? 1e-9 * (double)(w->last_ns - r->start_ns) : 0;
        if (seconds <= 0) continue;
        last = tm_max_u64(last, w->last_ns);
        out->path_bytes[path] = w->bytes[0] + w->bytes[1];
        out->path_read_bps[path] = (double)w->bytes[DISK_READ] / seconds;
        out->path_write_bps[path] = (double)w->bytes[DISK_WRITE] / seconds;
        out->read_bps += out->path_read_bps[path];
        out->write_bps += out->path_write_bps[path];
        out->read_bytes += w->bytes[DISK_READ];
        out->write_bytes += w->bytes[DISK_WRITE];
    }
    out->seconds = 1e-9 * (double)(last - r->start_ns);
    out->checksum_seconds = r->checksum_seconds;
    out->requests = r->latency[0].total + r->latency[1].total;
    out->read = disk_histogram_read(&r->latency[0]);
    out->write = disk_histogram_read(&r->latency[1]);
    memset(&all, 0, sizeof all);
    disk_histogram_merge(&all, &r->latency[0]);
    disk_histogram_merge(&all, &r->latency[1]);
    out->all = disk_histogram_read(&all);
}

tm_status disk_load_run(disk_load *d, const disk_load_job *job, disk_load_result *out) {
    load_run r = {.d = d, .job = job, .n_slots = d->n * slots_of(d, job)};
    tm_status rc;
    *out = (disk_load_result){0};
    TM_GO(check_job(d, job));
    TM_GO(check_stopped());
    TM_GO(map_buffers(d, job, r.n_slots));
    TM_GO(set_up_slots(&r));
    TM_GO(open_io(&r));
    strcpy(out->engine, tm_io_engine_name(r.io));
    double cpu = cpu_seconds(job);
    uint64_t rounds = job->busy ? busy_cores_rounds(job->busy) : 0;
    r.start_ns = tm_now_ns();
    TM_GO(drive(&r));
    out->cpu_seconds = cpu_seconds(job) - cpu;
    if (job->busy)
        out->busy_rounds_per_second =
            (double)(busy_cores_rounds(job->busy) - rounds) / (1e-9 * (double)(tm_now_ns() - r.start_ns));
    read_result(&r, out);
done:
    tear_down(&r);
    return rc;
}

/* ---- files ---- */

/* As large as wanted, or as large as the fullest folder lets it be. */
static tm_status choose_bytes(disk_load *d, uint64_t wanted) {
    uint64_t bytes = wanted ? wanted : 4 * TM_GIB;
    for (unsigned i = 0; i < d->n && !wanted; i++) {
        uint64_t quarter = tm_io_run_free_bytes(d->place[i].run) / 4;
        if (quarter < bytes) bytes = quarter;
    }
    bytes -= bytes % (bytes >= LAYOUT_REQUEST ? LAYOUT_REQUEST : 4096);
    d->bytes = bytes;
    return bytes ? TM_OK
                 : tm_fail(TM_EINPUT, "a file of less than 4096 bytes measures nothing; give --size or make room");
}

static tm_status make_file(disk_load *d, place *p, const disk_load_opts *opts, unsigned lane) {
    TM_TRY(tm_io_file_create(p->run, "bench", d->bytes, opts->buffered || !tm_io_run_direct(p->run), &p->file));
    p->file.lane = lane;
    if (!d->verify) return TM_OK;
    p->age = tm_calloc(d->bytes / d->sector, 1);
    return p->age ? TM_OK : tm_nomem(d->bytes / d->sector);
}

/* What was laid out is on the disk before anything is timed: a disk that still empties its cache is slow. */
static tm_status settle(const disk_load *d, const char *engine) {
    tm_io *io;
    tm_io_req req[DISK_MAX_PATHS], *batch[DISK_MAX_PATHS], *done[DISK_MAX_PATHS];
    TM_TRY(tm_io_open(&io, &(tm_io_opts){.engine = engine, .lanes = d->n}));
    for (unsigned i = 0; i < d->n; i++) {
        req[i] = (tm_io_req){.op = TM_IO_SYNC, .file = d->place[i].file};
        batch[i] = &req[i];
    }
    tm_status rc = tm_io_submit(io, batch, d->n);
    while (rc == TM_OK && tm_io_in_flight(io)) {
        unsigned n = 0;
        rc = tm_io_wait(io, done, TM_COUNT(done), &n, true);
        for (unsigned i = 0; i < n && rc == TM_OK; i++) rc = tm_io_req_fail(done[i]);
    }
    tm_io_close(io);
    return rc;
}

static tm_status lay_out(disk_load *d, const disk_load_opts *opts) {
    disk_load_result got;
    uint32_t request = (uint32_t)tm_min_u64(LAYOUT_REQUEST, d->bytes);
    const disk_load_job job = {.rw = DISK_WRITE,
                               .request = request,
                               .outstanding = LAYOUT_OUTSTANDING,
                               .io = {.engine = opts->engine},
                               .seconds = opts->seconds};
    TM_TRY(disk_load_run(d, &job, &got));
    /* Cut off by time: each folder went from the front, at its own rate. */
    uint64_t least = d->bytes;
    for (unsigned i = 0; i < d->n; i++) least = tm_min_u64(least, got.path_bytes[i]);
    d->bytes = tm_max_u64(least, tm_min_u64(64 * TM_MIB, d->bytes));
    return settle(d, opts->engine);
}

tm_status disk_load_open(disk_load **out, const disk_load_opts *opts) {
    disk_load *d = tm_calloc(1, sizeof *d);
    tm_status rc;
    if (!d) return tm_nomem(sizeof *d);
    *out = NULL;
    d->verify = opts->verify;
    d->sector = opts->least_request % 4096 ? 512 : 4096;
    if (opts->n_paths > DISK_MAX_PATHS)
        TM_GO(tm_fail(TM_EINPUT, "%u folders given, at most %d are measured at once", opts->n_paths, DISK_MAX_PATHS));
    for (unsigned i = 0; i < opts->n_paths; i++) {
        TM_GO(tm_io_run_create(&d->place[i].run, opts->paths[i], &(tm_io_run_opts){.allow_tmpfs = opts->buffered}));
        d->n = i + 1;
    }
    TM_GO(choose_bytes(d, opts->bytes));
    for (unsigned i = 0; i < d->n; i++) TM_GO(make_file(d, &d->place[i], opts, i));
    TM_GO(lay_out(d, opts));
    *out = d;
    return TM_OK;
done:
    return tm_first(rc, disk_load_close(d));
}

tm_status disk_load_check(disk_load *d, const char *engine) {
    disk_load_result got;
    uint32_t request = (uint32_t)tm_min_u64(LAYOUT_REQUEST, d->bytes);
    TM_ASSERT(d->verify && d->bytes % request == 0);
    TM_TRY(disk_load_run(d, &(disk_load_job){.request = request, .outstanding = 8, .io = {.engine = engine}}, &got));
    TM_ASSERT(got.read_bytes == d->bytes * d->n);
    return TM_OK;
}

uint64_t disk_load_bytes(const disk_load *d) {
    return d->bytes;
}

bool disk_load_direct(const disk_load *d, unsigned path) {
    return d->place[path].file.alignment > 1;
}

uint64_t disk_load_free_bytes(const disk_load *d, unsigned path) {
    return tm_io_run_free_bytes(d->place[path].run) + d->bytes;
}

tm_status disk_load_close(disk_load *d) {
    tm_status rc = TM_OK;
    if (!d) return TM_OK;
    for (unsigned i = 0; i < d->n; i++) {
        rc = tm_first(rc, tm_io_run_remove(d->place[i].run));
        tm_free(d->place[i].age);
    }
    unmap_buffers(d);
    tm_free(d);
    return rc;
}

/* tidemill bench device: what the link between host memory and a device's arena gives, on the path of training: from
 * and to memory that is registered once, IN_FLIGHT copies under way a direction, each event's callback submitting the
 * next. Beside them one large copy at a time, which is the link's limit. */
#include "device/device.h"
#include "offload/machine/machine.h"
#include "tools/tools.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

/* IN_FLIGHT: as the executor has them (src/device/README.md). */
enum { IN_FLIGHT = 4, ROUNDS = 5 };
static const uint64_t sizes[] = {64 << 10, 1 << 20, 4 << 20, 64 << 20};
enum { OF_STEPS = 2 }; /* of these: a step's largest copies; least_arena has room for them */
/* Of the arena: each direction has a half, and the large copy takes all of one, so it is four of 4 MiB or more. */
static const uint64_t least_arena = 32 << 20;

/* IN and OUT with nothing beside them; the other two are of one run. */
typedef enum figure { IN, OUT, BOTH_IN, BOTH_OUT, FIGURES } figure;

typedef struct row {
    uint64_t bytes;
    unsigned depth;
    double seen[FIGURES][ROUNDS], rate[FIGURES]; /* bytes a second; rate: the median */
} row;
typedef struct args {
    const char *device;
    uint64_t budget, bandwidth;
    int64_t milliseconds;
    bool json;
} args;

typedef struct bench bench;
typedef struct lane lane;
typedef struct flight {
    tm_event event;
    lane *lane;
    uint64_t began_ns;
} flight;
/* What one direction does in a run. Frames go round its half of the arena, so that none is near in a cache, and those
 * under way never overlap: copies of a direction end in order. */
struct lane {
    bench *b;
    tm_device_way way;
    const row *row;
    flight flight[IN_FLIGHT];
    uint64_t next, deadline_ns; /* next: how many were begun */
    uint64_t bytes, first_ns, last_ns, alone_ns;
    unsigned under_way;
};
struct bench {
    tm_device *d;
    tm_device_info info;
    uint64_t half; /* of the arena */
    char *host;    /* as large as the arena: what comes in, what goes out */
    bool registered;
    row large, row[TM_COUNT(sizes)];
    size_t n_rows;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    lane lane[TM_DEVICE_WAYS];
    tm_error error; /* of the first copy that failed */
};

/* Under the lock; the failure is pending on this thread. */
static void keep_error(bench *b) {
    if (b->error.code == TM_OK) b->error = *tm_error_get();
    tm_error_clear();
}

/* Under the lock. */
static void begin_copy(lane *l, flight *f) {
    bench *b = l->b;
    uint64_t frames = b->half / l->row->bytes, at = (uint64_t)l->way * b->half + l->next % frames * l->row->bytes;
    const tm_device_transfer t = {.way = l->way, .host = b->host + at, .offset = at, .bytes = l->row->bytes};
    f->began_ns = tm_now_ns();
    if (tm_device_copy(b->d, &t, &f->event) != TM_OK) {
        keep_error(b);
        return;
    }
    l->next++;
    l->under_way++;
}

/* On the device's thread. */
static void copied(tm_event *e) {
    flight *f = e->ctx;
    lane *l = f->lane;
    bench *b = l->b;
    pthread_mutex_lock(&b->lock);
    l->under_way--;
    l->bytes += l->row->bytes;
    l->last_ns = e->end_ns;
    l->alone_ns += e->end_ns - f->began_ns;
    if (e->status != TM_OK) keep_error(b);
    if (b->error.code == TM_OK && tm_now_ns() < l->deadline_ns) begin_copy(l, f);
    if (l->under_way == 0) pthread_cond_signal(&b->idle);
    pthread_mutex_unlock(&b->lock);
}

static void start_lane(bench *b, int way, const row *r, uint64_t ns) {
    lane *l = &b->lane[way];
    *l = (lane){.b = b, .way = (tm_device_way)way, .row = r, .first_ns = tm_now_ns()};
    l->deadline_ns = l->first_ns + ns;
    for (unsigned i = 0; i < r->depth && b->error.code == TM_OK; i++) {
        l->flight[i] = (flight){.event = {.done = copied, .ctx = &l->flight[i]}, .lane = l};
        begin_copy(l, &l->flight[i]);
    }
}

/* Several under way share the time from the first to the last; of one at a time each has its own. */
static double rate_of(const lane *l) {
    uint64_t ns = l->row->depth > 1 ? l->last_ns - l->first_ns : l->alone_ns;
    return (double)l->bytes / (1e-9 * (double)tm_max_u64(1, ns));
}

/* Copies the ways of `ways` (bits) at once until the time is over; each of depth once at least. */
static tm_status run_ways(bench *b, const row *r, unsigned ways, uint64_t ns, double rate[TM_DEVICE_WAYS]) {
    pthread_mutex_lock(&b->lock);
    for (int way = 0; way < TM_DEVICE_WAYS; way++)
        if (ways & 1U << way) start_lane(b, way, r, ns);
    while (b->lane[TM_DEVICE_IN].under_way + b->lane[TM_DEVICE_OUT].under_way > 0)
        pthread_cond_wait(&b->idle, &b->lock);
    pthread_mutex_unlock(&b->lock);
    if (b->error.code != TM_OK) {
        tm_error_set(&b->error);
        return b->error.code;
    }
    for (int way = 0; way < TM_DEVICE_WAYS; way++)
        if (ways & 1U << way) rate[way] = rate_of(&b->lane[way]);
    return TM_OK;
}

static tm_status measure(bench *b, row *r, int round, uint64_t ns) {
    double alone[TM_DEVICE_WAYS], both[TM_DEVICE_WAYS];
    TM_TRY(run_ways(b, r, 1U << TM_DEVICE_IN, ns, alone));
    TM_TRY(run_ways(b, r, 1U << TM_DEVICE_OUT, ns, alone));
    TM_TRY(run_ways(b, r, 1U << TM_DEVICE_IN | 1U << TM_DEVICE_OUT, ns, both));
    r->seen[IN][round] = alone[TM_DEVICE_IN], r->seen[OUT][round] = alone[TM_DEVICE_OUT];
    r->seen[BOTH_IN][round] = both[TM_DEVICE_IN], r->seen[BOTH_OUT][round] = both[TM_DEVICE_OUT];
    return TM_OK;
}

static void settle(row *r) {
    for (int f = 0; f < FIGURES; f++) r->rate[f] = tm_median(r->seen[f], ROUNDS);
}

/* Sizes take turns with the large copy: a machine that changes its mind does so for all of them. */
static tm_status measure_all(bench *b, const args *a) {
    uint64_t ns = (uint64_t)a->milliseconds * 1000000 / ROUNDS;
    double warm[TM_DEVICE_WAYS];
    b->large = (row){.bytes = b->half, .depth = 1};
    for (size_t i = 0; i < TM_COUNT(sizes); i++)
        if (sizes[i] * IN_FLIGHT <= b->half) b->row[b->n_rows++] = (row){.bytes = sizes[i], .depth = IN_FLIGHT};
    TM_TRY(run_ways(b, &b->large, 1U << TM_DEVICE_IN | 1U << TM_DEVICE_OUT, 0, warm));
    for (int round = 0; round < ROUNDS; round++) {
        TM_TRY(measure(b, &b->large, round, ns));
        for (size_t i = 0; i < b->n_rows; i++) TM_TRY(measure(b, &b->row[i], round, ns));
    }
    settle(&b->large);
    for (size_t i = 0; i < b->n_rows; i++) settle(&b->row[i]);
    return TM_OK;
}

static double both(const row *r) {
    return r->rate[BOTH_IN] + r->rate[BOTH_OUT];
}

/* 1: neither direction slows the other; 0.5: they share one rate. */
static double both_over_apart(const bench *b) {
    return both(&b->large) / (b->large.rate[IN] + b->large.rate[OUT]);
}

static void rates_json(tm_json_writer *w, const row *r) {
    tm_jw_field_uint(w, "bytes", r->bytes);
    tm_jw_field_double(w, "in_bytes_per_second", r->rate[IN]);
    tm_jw_field_double(w, "out_bytes_per_second", r->rate[OUT]);
    tm_jw_field_double(w, "both_in_bytes_per_second", r->rate[BOTH_IN]);
    tm_jw_field_double(w, "both_out_bytes_per_second", r->rate[BOTH_OUT]);
}

static void row_json(tm_json_writer *w, const bench *b, const row *r) {
    tm_jw_object(w);
    rates_json(w, r);
    tm_jw_field_double(w, "in_of_limit", r->rate[IN] / b->large.rate[IN]);
    tm_jw_field_double(w, "out_of_limit", r->rate[OUT] / b->large.rate[OUT]);
    tm_jw_field_double(w, "both_of_limit", both(r) / both(&b->large));
    tm_jw_object_end(w);
}

static tm_status print_copies_json(const bench *b, const args *a) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "device", a->device);
    tm_jw_field_str(&w, "about", b->info.about);
    tm_jw_field_uint(&w, "arena_bytes", 2 * b->half);
    tm_jw_field_uint(&w, "copies_under_way", IN_FLIGHT);
    tm_jw_field_object(&w, "limit");
    rates_json(&w, &b->large);
    tm_jw_field_double(&w, "both_over_apart", both_over_apart(b));
    tm_jw_object_end(&w);
    tm_jw_field_array(&w, "results");
    for (size_t i = 0; i < b->n_rows; i++) row_json(&w, b, &b->row[i]);
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

static void print_table(const bench *b, const args *a) {
    char text[32], arena[32];
    const row *l = &b->large;
    printf("device   %s, %s; arena of %s, registered host memory\n", a->device, b->info.about,
           tm_format_size(2 * b->half, arena, sizeof arena));
    printf("load     %d copies under way a direction, beside one large copy at a time, in turns; medians of %d\n\n",
           IN_FLIGHT, ROUNDS);
    printf("%14s %9s %9s %9s %9s %9s %9s\n", "copy", "in GB/s", "of limit", "out GB/s", "of limit", "both GB/s",
           "of limit");
    printf("%14s %9.2f %9s %9.2f %9s %9.2f %9s\n", tm_format_size(l->bytes, text, sizeof text), l->rate[IN] * 1e-9,
           "limit", l->rate[OUT] * 1e-9, "limit", both(l) * 1e-9, "limit");
    for (size_t i = 0; i < b->n_rows; i++) {
        const row *r = &b->row[i];
        printf("%14s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", tm_format_size(r->bytes, text, sizeof text),
               r->rate[IN] * 1e-9, r->rate[IN] / l->rate[IN], r->rate[OUT] * 1e-9, r->rate[OUT] / l->rate[OUT],
               both(r) * 1e-9, both(r) / both(l));
    }
    printf("\nboth ways at once give %.2f of what the two give apart (1: neither slows the other; 0.5: they share)\n",
           both_over_apart(b));
    for (size_t i = b->n_rows; i < TM_COUNT(sizes); i++)
        printf("left out: %s, of which %d a direction take --device-budget %s\n",
               tm_format_size(sizes[i], text, sizeof text), IN_FLIGHT,
               tm_format_size(2 * IN_FLIGHT * sizes[i], arena, sizeof arena));
}

static tm_status named(const args *a, tm_status rc) {
    tm_error why = *tm_error_get();
    if (rc == TM_OK) return rc;
    tm_error_clear();
    return tm_fail(rc, "device \"%s\": %s", a->device, why.text);
}

/* Refused before anything is taken: the arena, and as much of host memory. */
static tm_status check_room(bench *b, const args *a) {
    tm_device_traits traits;
    char x[32], y[32];
    TM_TRY(tm_device_known(a->device, &traits));
    if (traits.in_place)
        return tm_fail(TM_EINPUT, "device \"%s\" computes in host memory: nothing is copied; use cpu-arena or cuda:0",
                       a->device);
    if (a->bandwidth && !traits.counts_as_host)
        return tm_fail(TM_EINPUT, "--device-bandwidth is of cpu-arena; device \"%s\" has a rate of its own", a->device);
    if (a->budget < least_arena)
        return tm_fail(TM_EBUDGET,
                       "--device-budget %s is too small: a large copy each way and %d smaller ones beside take %s",
                       tm_format_size(a->budget, x, sizeof x), IN_FLIGHT, tm_format_size(least_arena, y, sizeof y));
    TM_TRY(named(a, tm_device_look_for(a->device, &b->info)));
    uint64_t host = tm_mem_available_bytes(), rest = traits.counts_as_host ? a->budget : 0;
    if (a->budget > b->info.free_bytes || b->info.free_bytes - a->budget < traits.fixed_bytes)
        return tm_fail(TM_EBUDGET, "--device-budget %s is more than device \"%s\" has: %s are free",
                       tm_format_size(a->budget, x, sizeof x), a->device,
                       tm_format_size(b->info.free_bytes, y, sizeof y));
    if (a->budget <= host && host - a->budget >= rest) return TM_OK;
    return tm_fail(TM_EBUDGET, "--device-budget %s takes as much host memory beside it, and %s are available",
                   tm_format_size(a->budget, x, sizeof x), tm_format_size(host, y, sizeof y));
}

/* As the executor's slab: mapped, touched, registered whole. */
static tm_status open_host(bench *b) {
    uint64_t bytes = 2 * b->half;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return tm_fail_sys(TM_ENOMEM, errno, "mmap", "", -1, "cannot map %llu bytes of host memory to copy",
                           (unsigned long long)bytes);
    b->host = p;
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    for (uint64_t at = 0; at < bytes; at += 4096) b->host[at] = 1;
    TM_TRY(tm_device_register(b->d, p, bytes));
    b->registered = true;
    return TM_OK;
}

static tm_status open_all(bench *b, const args *a) {
    TM_TRY(check_room(b, a));
    const tm_device_opts opts = {.name = a->device, .arena_bytes = a->budget, .bytes_per_second = a->bandwidth};
    TM_TRY(named(a, tm_device_open(&b->d, &opts)));
    const tm_device_caps *caps = tm_device_get_caps(b->d);
    b->half = caps->arena_bytes / 2 / caps->traits.alignment * caps->traits.alignment;
    return named(a, open_host(b));
}

static void close_all(bench *b) {
    if (b->registered) tm_device_unregister(b->d, b->host);
    if (b->host) munmap(b->host, 2 * b->half);
    tm_device_close(b->d);
}

/* For `plan`. A rate that was asked for is none of the machine's. */
static tm_status keep(const bench *b, const args *a) {
    tm_profile *p;
    const row *r = &b->row[OF_STEPS];
    if (!tm_device_get_caps(b->d)->traits.own_processors) return TM_OK;
    TM_TRY(tm_profile_open_device(&p, a->device));
    tm_status rc = tm_profile_put_link(p, r->rate[IN], r->rate[OUT]);
    if (rc == TM_OK) rc = tm_profile_save(p);
    tm_profile_close(p);
    return rc;
}

static tm_status run(const args *a) {
    static bench b = {.lock = PTHREAD_MUTEX_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER};
    tm_status rc = open_all(&b, a);
    if (rc == TM_OK) rc = named(a, measure_all(&b, a));
    if (rc == TM_OK) rc = keep(&b, a);
    close_all(&b);
    if (rc == TM_OK && a->json) rc = print_copies_json(&b, a);
    if (rc == TM_OK && !a->json) print_table(&b, a);
    return rc;
}

int tm_bench_device(int argc, char **argv) {
    args a = {.device = "cuda:0", .budget = 512 << 20, .milliseconds = 200};
    const tm_opt opts[] = {
        TM_OPTION("device", TM_OPT_STRING, &a.device, "NAME", "cuda:N (default cuda:0) or cpu-arena"),
        TM_OPTION("device-budget", TM_OPT_SIZE, &a.budget, "SIZE",
                  "of the device's memory, and as much of the host's (default 512MiB, which 64 MiB copies need)"),
        TM_OPTION("device-bandwidth", TM_OPT_SIZE, &a.bandwidth, "SIZE",
                  "cpu-arena: bytes a second, each way (default: as fast as memory is)"),
        TM_OPTION("milliseconds", TM_OPT_INT, &a.milliseconds, "N", "for each figure (200)"),
        TM_FLAG("json", &a.json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "bench device [--device NAME] [--device-budget SIZE] [--device-bandwidth SIZE] [--json]",
        .about =
            "Measures the link to a device as training uses it: copies in, out, and both ways at once, of 64 KiB to "
            "64 MiB,\nfour under way a direction, from and to registered host memory. Beside each stands its share of "
            "the limit: one\nlarge copy at a time (half of the arena), in the same run. From 4 MiB on it should be "
            "0.90 or more;\nthe rates of 4 MiB are kept for `plan`. Where the limit\nitself is far below what the link "
            "promises, look at the slot's lanes "
            "(nvidia-smi -q) and on which node of the\nhost's memory the process runs (numactl).",
        .example = "tidemill bench device --device cuda:0\n"
                   "tidemill bench device --device cpu-arena --device-budget 64MiB --device-bandwidth 1GB",
        TM_CLI_OPTIONS(opts),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (a.milliseconds < 0 || a.milliseconds > 60000)
        return tm_cli_wrong("bench device", "--milliseconds takes 0 to 60000");
    return run(&a) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

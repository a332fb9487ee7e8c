/* tidemill bench io */
#include "tools/disk_load.h"
#include "tools/disk_picture.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_LIST = 16 };

typedef struct args {
    const char *path[DISK_MAX_PATHS + 1];
    unsigned n_paths;
    const char *rw_name, *engine, *picture, *blocks, *depths;
    bool random, direct, buffered, unregistered, verify, json, single_submit, no_overlap, busy, checksums;
    uint64_t size;
    double seconds;
    int64_t threads;
    disk_rw rw;
    uint64_t block[MAX_LIST], depth[MAX_LIST];
    unsigned n_blocks, n_depths;
} args;

static int parse_list(const char *option, const char *text, bool sizes, uint64_t least, uint64_t most, uint64_t *out,
                      unsigned *n) {
    char item[32];
    *n = 0;
    for (const char *at = text;;) {
        size_t length = strcspn(at, ",");
        if (length == 0 || length >= sizeof item || *n == MAX_LIST)
            return tm_cli_wrong("bench io", "--%s %s: up to %d values, joined by commas", option, text, MAX_LIST);
        memcpy(item, at, length);
        item[length] = 0;
        bool plain = strspn(item, "0123456789") == length;
        bool good = (sizes || plain) && tm_parse_size(item, &out[*n]) == TM_OK && out[*n] >= least && out[*n] <= most;
        tm_error_clear();
        if (!good)
            return tm_cli_wrong("bench io", "--%s: '%s' is not %s from %llu to %llu", option, item,
                                sizes ? "a size" : "a number", (unsigned long long)least, (unsigned long long)most);
        ++*n;
        if (!at[length]) return -1;
        at += length + 1;
    }
}

static int parse_rw(args *a) {
    static const char *const names[] = {"read", "write", "mixed"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(a->rw_name, names[i]) != 0) continue;
        a->rw = (disk_rw)i;
        return -1;
    }
    return tm_cli_wrong("bench io", "--rw is read, write or mixed, not '%s'", a->rw_name);
}

static int check_args(args *a) {
    int rc = parse_rw(a);
    if (rc < 0) rc = parse_list("block", a->blocks, true, 512, TM_GIB, a->block, &a->n_blocks);
    if (rc < 0) rc = parse_list("depth", a->depths, false, 1, 1024, a->depth, &a->n_depths);
    if (rc >= 0) return rc;
    if (a->direct && a->buffered) return tm_cli_wrong("bench io", "--direct and --buffered exclude each other");
    if (a->threads < 0 || a->threads > 256) return tm_cli_wrong("bench io", "--threads is a number from 1 to 256");
    if (a->seconds < 0) return tm_cli_wrong("bench io", "--seconds is not negative");
    for (unsigned i = 0; i < a->n_blocks; i++)
        if (a->block[i] % 512) return tm_cli_wrong("bench io", "--block takes multiples of 512 bytes");
    const char *dot = a->picture ? strrchr(a->picture, '.') : NULL;
    if (a->picture && (!dot || (strcmp(dot, ".svg") != 0 && strcmp(dot, ".html") != 0)))
        return tm_cli_wrong("bench io", "--picture names a .svg or .html file");
    if (a->picture && a->n_blocks * a->n_depths == 1)
        return tm_cli_wrong("bench io", "--picture wants several values of --block or --depth");
    return -1;
}

static uint32_t least_block(const args *a) {
    uint64_t odd = 4096;
    for (unsigned i = 0; i < a->n_blocks; i++)
        if (a->block[i] % 4096) odd = 512;
    return (uint32_t)odd;
}

/* What the cores compute a second with nobody beside them. */
static double undisturbed(const busy_cores *b) {
    uint64_t rounds = busy_cores_rounds(b), t0 = tm_now_ns();
    nanosleep(&(struct timespec){.tv_nsec = 400 * 1000 * 1000}, NULL);
    return (double)(busy_cores_rounds(b) - rounds) / (1e-9 * (double)(tm_now_ns() - t0));
}

static tm_status measure(const args *a, disk_load *d, const busy_cores *busy, disk_cell *cell) {
    char size[32];
    if (a->busy) cell->undisturbed = undisturbed(busy);
    bool many = a->n_blocks * a->n_depths > 1;
    const disk_load_job job = {
        .rw = a->rw,
        .random = a->random,
        .request = (uint32_t)cell->block,
        .outstanding = (unsigned)cell->depth,
        .io = {.engine = a->engine,
               .threads = (unsigned)a->threads,
               .single_submit = a->single_submit,
               .no_overlap_events = a->no_overlap},
        .unregistered = a->unregistered,
        .page_checksums = a->checksums,
        .busy = a->busy ? busy : NULL,
        .seconds = a->seconds > 0 ? a->seconds
                   : many         ? 4
                                  : 0,
        .repeat = a->seconds > 0,
    };
    TM_TRY(disk_load_run(d, &job, &cell->result));
    if (many)
        fprintf(stderr, "%s x %u: read %.1f MB/s, write %.1f MB/s\n", tm_format_size(cell->block, size, sizeof size),
                (unsigned)cell->depth, cell->result.read_bps * 1e-6, cell->result.write_bps * 1e-6);
    return TM_OK;
}

static tm_status measure_all(const args *a, disk_load *d, const busy_cores *busy, disk_grid *g) {
    g->n_blocks = a->n_blocks;
    g->n_depths = a->n_depths;
    for (unsigned b = 0; b < a->n_blocks; b++) {
        for (unsigned k = 0; k < a->n_depths; k++) {
            disk_cell *cell = &g->cell[b * a->n_depths + k];
            *cell = (disk_cell){.block = a->block[b], .depth = a->depth[k]};
            TM_TRY(measure(a, d, busy, cell));
        }
    }
    return a->verify ? disk_load_check(d, a->engine) : TM_OK;
}

static const disk_cell *best_of(const disk_grid *g) {
    const disk_cell *best = &g->cell[0];
    for (unsigned i = 1; i < g->n_blocks * g->n_depths; i++)
        if (disk_cell_bps(&g->cell[i]) > disk_cell_bps(best)) best = &g->cell[i];
    return best;
}

static double per_gb(const disk_load_result *r, double seconds) {
    double bytes = (double)(r->read_bytes + r->write_bytes);
    return bytes > 0 ? seconds / bytes * 1e9 : 0;
}

static double engine_seconds(const disk_load_result *r) {
    return r->cpu_seconds - r->checksum_seconds;
}

/* Share of one core. */
static double cores_of(const disk_load_result *r, double seconds) {
    return r->seconds > 0 ? seconds / r->seconds : 0;
}

/* Cores that computing lost: to the engine, the kernel, interrupts and the caches. */
static double lost_cores(const disk_cell *c, unsigned cores) {
    return c->undisturbed > 0 ? (1 - c->result.busy_rounds_per_second / c->undisturbed) * cores : 0;
}

static void latency(tm_json_writer *w, const char *key, const disk_latency *l) {
    tm_jw_field_object(w, key);
    tm_jw_field_double(w, "p50", l->p50);
    tm_jw_field_double(w, "p90", l->p90);
    tm_jw_field_double(w, "p99", l->p99);
    tm_jw_field_double(w, "p99.9", l->p999);
    tm_jw_field_double(w, "max", l->most);
    tm_jw_object_end(w);
}

static void busy_fields(tm_json_writer *w, const disk_cell *c, unsigned cores) {
    const disk_load_result *r = &c->result;
    tm_jw_field_double(w, "engine_cores", cores_of(r, engine_seconds(r)));
    tm_jw_field_double(w, "checksum_cores", cores_of(r, r->checksum_seconds));
    if (cores == 0) return;
    tm_jw_field_uint(w, "busy_cores", cores);
    tm_jw_field_double(w, "lost_cores", lost_cores(c, cores));
}

static void cell_fields(tm_json_writer *w, const disk_cell *c, unsigned cores) {
    const disk_load_result *r = &c->result;
    tm_jw_field_uint(w, "block", c->block);
    tm_jw_field_uint(w, "depth", c->depth);
    tm_jw_field_double(w, "read_bytes_per_second", r->read_bps);
    tm_jw_field_double(w, "write_bytes_per_second", r->write_bps);
    tm_jw_field_uint(w, "read_bytes", r->read_bytes);
    tm_jw_field_uint(w, "write_bytes", r->write_bytes);
    tm_jw_field_double(w, "seconds", r->seconds);
    tm_jw_field_double(w, "cpu_seconds_per_gb", per_gb(r, engine_seconds(r)));
    tm_jw_field_double(w, "checksum_seconds_per_gb", per_gb(r, r->checksum_seconds));
    busy_fields(w, c, cores);
    if (r->read_bytes) latency(w, "read_latency_seconds", &r->read);
    if (r->write_bytes) latency(w, "write_latency_seconds", &r->write);
}

static void path_fields(tm_json_writer *w, const args *a, const disk_load *d, const disk_load_result *r) {
    tm_jw_field_array(w, "paths");
    for (unsigned i = 0; i < a->n_paths; i++) {
        tm_jw_object(w);
        tm_jw_field_str(w, "path", a->path[i]);
        tm_jw_field_bool(w, "direct", disk_load_direct(d, i));
        tm_jw_field_double(w, "read_bytes_per_second", r->path_read_bps[i]);
        tm_jw_field_double(w, "write_bytes_per_second", r->path_write_bps[i]);
        tm_jw_object_end(w);
    }
    tm_jw_array_end(w);
}

static tm_status print_disk_json(const args *a, const disk_load *d, const disk_grid *g, unsigned cores) {
    tm_json_writer w;
    const disk_cell *best = best_of(g);
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "rw", a->rw_name);
    tm_jw_field_bool(&w, "random", a->random);
    tm_jw_field_str(&w, "engine", best->result.engine);
    tm_jw_field_uint(&w, "size", disk_load_bytes(d));
    tm_jw_field_bool(&w, "verified", a->verify);
    cell_fields(&w, best, cores);
    path_fields(&w, a, d, &best->result);
    tm_jw_field_array(&w, "results");
    for (unsigned i = 0; i < g->n_blocks * g->n_depths; i++) {
        tm_jw_object(&w);
        cell_fields(&w, &g->cell[i], cores);
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

static void print_busy(const disk_grid *g, unsigned cores) {
    printf("\nbeside %u cores that compute; shares of one core: engine, page checksums, what computing lost in all\n",
           cores);
    for (unsigned i = 0; i < g->n_blocks * g->n_depths; i++) {
        const disk_cell *c = &g->cell[i];
        const disk_load_result *r = &c->result;
        char text[32];
        printf("%12s %6u %8.3f %8.3f %8.3f\n", tm_format_size(c->block, text, sizeof text), (unsigned)c->depth,
               cores_of(r, engine_seconds(r)), cores_of(r, r->checksum_seconds), lost_cores(c, cores));
    }
}

static void print_table(const args *a, const disk_load *d, const disk_grid *g, unsigned cores) {
    char text[32];
    for (unsigned i = 0; i < a->n_paths; i++)
        printf("folder   %s (%s)\n", a->path[i], disk_load_direct(d, i) ? "direct" : "buffered");
    printf("load     %s, %s, %s in each folder, engine %s%s\n\n", a->rw_name, a->random ? "random" : "sequential",
           tm_format_size(disk_load_bytes(d), text, sizeof text), g->cell[0].result.engine,
           a->verify ? ", every byte checked (the rates include it)" : "");
    printf("%12s %6s %11s %11s %10s %10s %10s %10s %9s\n", "block", "depth", "read MB/s", "write MB/s", "p50 us",
           "p90 us", "p99 us", "p99.9 us", "CPU s/GB");
    for (unsigned i = 0; i < g->n_blocks * g->n_depths; i++) {
        const disk_cell *c = &g->cell[i];
        const disk_latency *l = &c->result.all;
        printf("%12s %6u %11.1f %11.1f %10.1f %10.1f %10.1f %10.1f %9.4f\n",
               tm_format_size(c->block, text, sizeof text), (unsigned)c->depth, c->result.read_bps * 1e-6,
               c->result.write_bps * 1e-6, l->p50 * 1e6, l->p90 * 1e6, l->p99 * 1e6, l->p999 * 1e6,
               per_gb(&c->result, engine_seconds(&c->result)));
    }
    if (cores) print_busy(g, cores);
    for (unsigned i = 0; i < a->n_paths && a->n_paths > 1; i++) {
        const disk_load_result *r = &best_of(g)->result;
        printf("\nbest, %s: read %.1f MB/s, write %.1f MB/s", a->path[i], r->path_read_bps[i] * 1e-6,
               r->path_write_bps[i] * 1e-6);
    }
    if (a->n_paths > 1) puts("");
}

static tm_status run(const args *a) {
    static busy_cores busy;
    disk_load *d = NULL;
    disk_grid *g = tm_calloc(1, sizeof *g);
    tm_status rc = g ? TM_OK : tm_nomem(sizeof *g);
    const disk_load_opts opts = {.paths = a->path,
                                 .n_paths = a->n_paths,
                                 .bytes = a->size,
                                 .buffered = a->buffered,
                                 .verify = a->verify,
                                 .least_request = least_block(a),
                                 .engine = a->engine};
    disk_load_catch_signals();
    if (rc == TM_OK) rc = disk_load_open(&d, &opts);
    if (rc == TM_OK && a->busy) busy_cores_start(&busy);
    unsigned cores = busy.n;
    if (rc == TM_OK) rc = measure_all(a, d, &busy, g);
    busy_cores_stop(&busy);
    if (rc == TM_OK && a->picture) rc = disk_picture_write(a->picture, g, a->rw_name, best_of(g)->result.engine);
    if (rc == TM_OK && a->json) rc = print_disk_json(a, d, g, cores);
    if (rc == TM_OK && !a->json) print_table(a, d, g, cores);
    rc = tm_first(rc, disk_load_close(d));
    tm_free(g);
    return rc;
}

int tm_bench_io(int argc, char **argv) {
    args a = {.rw_name = "read", .blocks = "1MiB", .depths = "8"};
    const tm_opt opts[] = {
        TM_OPTION("rw", TM_OPT_STRING, &a.rw_name, "KIND", "read (default), write or mixed: half and half by bytes"),
        TM_FLAG("random", &a.random, "blocks in random order; each once"),
        TM_OPTION("block", TM_OPT_STRING, &a.blocks, "SIZE,...", "bytes of a request (default 1MiB)"),
        TM_OPTION("depth", TM_OPT_STRING, &a.depths, "N,...", "requests in flight in each folder (default 8)"),
        TM_OPTION("size", TM_OPT_SIZE, &a.size, "SIZE",
                  "of the file in each folder (default 4GiB or a quarter of what is "
                  "free)"),
        TM_OPTION("seconds", TM_OPT_DOUBLE, &a.seconds, "S",
                  "go on for so long (default: each byte once; 4 s at most where there are lists)"),
        TM_FLAG("direct", &a.direct, "past the page cache (the default where the file system allows it)"),
        TM_FLAG("buffered", &a.buffered, "through the page cache; writes count when they are on the disk"),
        TM_OPTION("engine", TM_OPT_STRING, &a.engine, "NAME",
                  "auto (default), uring, threads, sync, null, ... (io/io.h)"),
        TM_OPTION("threads", TM_OPT_INT, &a.threads, "N", "of the engine \"threads\", for each folder (default 2)"),
        TM_FLAG("single-submit", &a.single_submit, "hand requests to the kernel one by one"),
        TM_FLAG("no-overlap-events", &a.no_overlap, "start new requests when all that are out have ended"),
        TM_FLAG("no-register", &a.unregistered, "do not pin the buffers"),
        TM_FLAG("busy", &a.busy, "while every core computes, as in training"),
        TM_FLAG("checksums", &a.checksums, "with the page checksums of training; their time is given apart"),
        TM_FLAG("verify", &a.verify, "write a pattern with places and checksums and check every byte"),
        TM_OPTION("picture", TM_OPT_STRING, &a.picture, "FILE", "heat map of block and depth, .svg or .html"),
        TM_FLAG("json", &a.json, "print one JSON object; the best of a list at its top"),
    };
    const tm_cli cli = {
        .usage = "bench io PATH... [--rw read|write|mixed] [--block SIZE,...] [--depth N,...] [--size SIZE]",
        .about =
            "Measures folders on disks with the engine that trains: one file in each folder, laid out before it is "
            "timed and\nremoved in the end. Several folders are used at once.",
        .example = "tidemill bench io /nvme --rw mixed --block 256KiB,1MiB,4MiB --depth 1,4,16 --picture nvme.svg",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(a.path, 1, DISK_MAX_PATHS),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    a.n_paths = (unsigned)tm_cli_count(&cli);
    rc = check_args(&a);
    if (rc >= 0) return rc;
    return run(&a) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

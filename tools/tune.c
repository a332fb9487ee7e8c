/* tidemill tune io: the aio settings that are best for training, and the disk's rates for the planner.
 *
 * The load is that of a step: 4 MiB requests, as many as the executor has in flight, half of them reads and half
 * writes, page checksums, while all cores compute. Settings are searched one after another from DeepSpeed's defaults;
 * another one is taken only if it is clearly faster. */
#include "offload/machine/machine.h"
#include "tools/busy_cores.h"
#include "tools/disk_load.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

enum { REQUEST = 4 << 20, IN_FLIGHT = 32 };
static const double clearly = 1.02;
/* Shares of the time that is given: 55 s by default, of which a fast disk leaves some. */
static const double layout_share = 0.15, search_share = 0.43, trial_share = 0.011, rates_share = 0.32,
                    cost_share = 0.02;

typedef struct setting {
    const char *engine;
    uint32_t block;
    unsigned depth, threads;
    bool single_submit, no_overlap;
} setting;

typedef struct tuner {
    disk_load *load;
    unsigned n_paths;
    setting best;
    double best_bps;
    uint64_t start_ns;
    double seconds, tbw;
    bool quiet;
} tuner;

static disk_load_job job_of(const tuner *t, const setting *s, disk_rw rw, double seconds) {
    uint64_t fits = disk_load_bytes(t->load) / 2;
    uint32_t request = (uint32_t)tm_min_u64(REQUEST, fits - fits % 4096);
    return (disk_load_job){.rw = rw,
                           .request = request,
                           .outstanding = t->n_paths < IN_FLIGHT / 4 ? IN_FLIGHT / t->n_paths : 4,
                           .io = {.engine = s->engine,
                                  .queue_depth = s->depth,
                                  .threads = s->threads,
                                  .block_bytes = s->block,
                                  .single_submit = s->single_submit,
                                  .no_overlap_events = s->no_overlap},
                           .page_checksums = true,
                           .seconds = seconds,
                           .repeat = true};
}

static double since(uint64_t start_ns) {
    return 1e-9 * (double)(tm_now_ns() - start_ns);
}

static tm_status mixed_rate(tuner *t, const setting *s, double *bps) {
    disk_load_result got;
    disk_load_job job = job_of(t, s, DISK_MIXED, trial_share * t->seconds);
    TM_TRY(disk_load_run(t->load, &job, &got));
    *bps = got.read_bps + got.write_bps;
    return TM_OK;
}

static void say_trial(const tuner *t, const setting *s, double bps, bool better) {
    char size[32];
    if (t->quiet) return;
    fprintf(stderr, "%-7s block %-10s depth %-3u threads %u%s%s: %7.1f MB/s%s\n", s->engine,
            tm_format_size(s->block, size, sizeof size), s->depth, s->threads, s->single_submit ? ", one by one" : "",
            s->no_overlap ? ", in batches" : "", bps * 1e-6, better ? " *" : "");
}

/* One that looks better has to be so beside the best one as it is now: disks and neighbours change their minds. */
static tm_status try_setting(tuner *t, const setting *s) {
    double bps;
    if (t->best_bps > 0 && since(t->start_ns) > search_share * t->seconds)
        return TM_OK; /* a slow machine: what was found so far */
    TM_TRY(mixed_rate(t, s, &bps));
    bool better = bps > clearly * t->best_bps;
    if (better && t->best_bps > 0) {
        TM_TRY(mixed_rate(t, &t->best, &t->best_bps));
        better = bps > clearly * t->best_bps;
    }
    say_trial(t, s, bps, better);
    if (!better) return TM_OK;
    t->best = *s;
    t->best_bps = bps;
    return TM_OK;
}

static tm_status search_depth(tuner *t, unsigned low, unsigned high) {
    for (unsigned depth = low; depth <= high; depth *= 2) {
        setting s = t->best;
        s.depth = depth;
        if (depth != t->best.depth) TM_TRY(try_setting(t, &s));
    }
    return TM_OK;
}

static tm_status search_block(tuner *t) {
    static const uint32_t blocks[] = {256 << 10, 512 << 10, 2 << 20, 4 << 20};
    for (size_t i = 0; i < TM_COUNT(blocks); i++) {
        setting s = t->best;
        s.block = blocks[i];
        TM_TRY(try_setting(t, &s));
    }
    return TM_OK;
}

static tm_status search_rest(tuner *t) {
    setting one = t->best, batch = t->best;
    one.single_submit = true;
    batch.no_overlap = true;
    TM_TRY(try_setting(t, &one));
    TM_TRY(try_setting(t, &batch));
    for (unsigned threads = 2; threads <= 8; threads *= 2) {
        setting s = t->best;
        s.engine = "threads";
        s.threads = threads;
        TM_TRY(try_setting(t, &s));
    }
    return TM_OK;
}

static tm_status search(tuner *t) {
    setting start = {.engine = "auto", .block = 1 << 20, .depth = 8, .threads = 1};
    t->start_ns = tm_now_ns();
    t->best = start;
    TM_TRY(try_setting(t, &start));
    TM_TRY(search_depth(t, 2, 32));
    TM_TRY(search_block(t));
    if (t->best.block != start.block)
        TM_TRY(search_depth(t, t->best.depth > 2 ? t->best.depth / 2 : 2, t->best.depth * 2));
    return search_rest(t);
}

/* ---- what the planner wants to know ---- */

/* A byte read and a byte written take 1/r + 1/w where they share the disk, and the slower of the two where they do not.
 */
static double duplex_of(double read_bps, double write_bps, double mixed_bps) {
    if (read_bps <= 0 || write_bps <= 0 || mixed_bps <= 0) return 0;
    double apart = 1 / read_bps + 1 / write_bps, beside = read_bps < write_bps ? 1 / read_bps : 1 / write_bps;
    double duplex = (apart - 2 / mixed_bps) / (apart - beside);
    return duplex < 0 ? 0 : duplex > 1 ? 1 : duplex;
}

static tm_status measure_rates(tuner *t, unsigned path, double seconds, tm_disk *disk) {
    disk_load_result got[3];
    for (int rw = 0; rw < 3; rw++) {
        disk_load_job job = job_of(t, &t->best, (disk_rw)rw, seconds);
        job.only_path = path + 1;
        TM_TRY(disk_load_run(t->load, &job, &got[rw]));
    }
    disk->read_bps = got[DISK_READ].read_bps;
    disk->write_bps = got[DISK_WRITE].write_bps;
    disk->duplex = duplex_of(disk->read_bps, disk->write_bps, got[DISK_MIXED].read_bps + got[DISK_MIXED].write_bps);
    return TM_OK;
}

/* With the cores at rest: a small read alone, and the processor time of a byte. */
static tm_status measure_costs(tuner *t, unsigned path, tm_disk *disk) {
    disk_load_result got;
    disk_load_job alone = {.random = true,
                           .request = 4096,
                           .outstanding = 1,
                           .seconds = cost_share / 2 * t->seconds / t->n_paths,
                           .repeat = true,
                           .only_path = path + 1};
    TM_TRY(disk_load_run(t->load, &alone, &got));
    disk->latency = got.all.p50;
    disk_load_job job = job_of(t, &t->best, DISK_MIXED, cost_share * t->seconds / t->n_paths);
    job.only_path = path + 1;
    TM_TRY(disk_load_run(t->load, &job, &got));
    disk->cpu_per_byte = got.cpu_seconds / (double)tm_max_u64(1, got.read_bytes + got.write_bytes);
    return TM_OK;
}

static tm_status profile(tuner *t, busy_cores *busy, const char *const *paths) {
    double seconds = rates_share * t->seconds / (3 * t->n_paths);
    tm_disk disk[DISK_MAX_PATHS] = {{0}}, known;
    for (unsigned i = 0; i < t->n_paths; i++) TM_TRY(measure_rates(t, i, seconds, &disk[i]));
    busy_cores_stop(busy);
    for (unsigned i = 0; i < t->n_paths; i++) {
        TM_TRY(measure_costs(t, i, &disk[i]));
        disk[i].bytes = disk_load_free_bytes(t->load, i);
        disk[i].queue_depth = t->best.depth;
        disk[i].block_bytes = t->best.block;
        disk[i].tbw = t->tbw > 0 ? t->tbw : tm_profile_get_disk(paths[i], &known) ? known.tbw : 0;
        TM_TRY(tm_profile_put_disk(paths[i], &disk[i]));
        if (!t->quiet)
            fprintf(stderr,
                    "%s: read %.0f MB/s, write %.0f MB/s, duplex %.2f, latency %.0f us, %.3f CPU seconds a GB "
                    "(kept in %s)\n",
                    paths[i], disk[i].read_bps * 1e-6, disk[i].write_bps * 1e-6, disk[i].duplex, disk[i].latency * 1e6,
                    disk[i].cpu_per_byte * 1e9, tm_profile_path());
    }
    return TM_OK;
}

static tm_status print_aio(const setting *s) {
    tm_json_writer w;
    tm_cli_json(&w, 2);
    tm_jw_field_object(&w, "aio");
    tm_jw_field_uint(&w, "block_size", s->block);
    tm_jw_field_uint(&w, "queue_depth", s->depth);
    tm_jw_field_uint(&w, "intra_op_parallelism", s->threads);
    tm_jw_field_bool(&w, "single_submit", s->single_submit);
    tm_jw_field_bool(&w, "overlap_events", !s->no_overlap);
    tm_jw_object_end(&w);
    return tm_cli_print_json(&w);
}

static tm_status tune(const char *const *paths, unsigned n_paths, uint64_t size, double seconds, double tbw,
                      bool quiet) {
    tuner t = {.n_paths = n_paths, .seconds = seconds, .tbw = tbw, .quiet = quiet};
    static busy_cores busy;
    disk_load_catch_signals();
    const disk_load_opts opts = {.paths = paths, .n_paths = n_paths, .bytes = size, .seconds = layout_share * seconds};
    tm_status rc = disk_load_open(&t.load, &opts);
    if (rc == TM_OK) {
        busy_cores_start(&busy);
        rc = search(&t);
    }
    if (rc == TM_OK) rc = profile(&t, &busy, paths);
    busy_cores_stop(&busy);
    rc = tm_first(rc, disk_load_close(t.load));
    if (rc != TM_OK) return rc;
    if (!quiet && strcmp(t.best.engine, "threads") == 0)
        fputs("threads are faster than io_uring here: also set \"memory\": {\"io_engine\": \"threads\"}\n", stderr);
    return print_aio(&t.best);
}

int tm_cmd_tune(int argc, char **argv) {
    const char *word[DISK_MAX_PATHS + 2];
    uint64_t size = 0;
    double seconds = 55, tbw = 0;
    bool quiet = false;
    const tm_opt opts[] = {
        TM_OPTION("size", TM_OPT_SIZE, &size, "SIZE",
                  "of the file in each folder (default 4GiB or a quarter of what is free)"),
        TM_OPTION("seconds", TM_OPT_DOUBLE, &seconds, "S", "time that may be spent (default 55)"),
        TM_OPTION(
            "tbw", TM_OPT_DOUBLE, &tbw, "TB",
            "terabytes that may be written to each of these disks (data sheet): `plan` then says how long they last"),
        TM_FLAG("quiet", &quiet, "only the JSON object"),
    };
    const tm_cli cli = {
        .usage = "tune io PATH... [--size SIZE]",
        .about =
            "Finds within a minute the settings with which these folders are fastest in training (reads and writes\n"
            "at once while all cores compute) and prints them as an \"aio\" block. Depth and block size are kept with\n"
            "the rates: `train` uses them where the configuration has no \"aio\", and `plan` predicts with the rates.",
        .example = "tidemill tune io /nvme/offload",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(word, 2, DISK_MAX_PATHS + 1),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (strcmp(word[0], "io") != 0)
        return tm_cli_wrong("tune", "'%s' cannot be tuned; 'tidemill tune io PATH' is meant", word[0]);
    if (seconds <= 0) return tm_cli_wrong("tune", "--seconds is more than 0");
    if (!(tbw >= 0 && tbw <= 1e7)) return tm_cli_wrong("tune", "--tbw takes terabytes, 0 to 10 million");
    unsigned n_paths = (unsigned)tm_cli_count(&cli) - 1;
    return tune(word + 1, n_paths, size, seconds, tbw, quiet) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

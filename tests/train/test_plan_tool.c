/* `tidemill plan` end to end: what it prints, what it refuses with, that its suggestion works, and that it says before
 * a run what the run then counts. */
#include "run.h"
#include "tests/support/skip.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define HARDWARE TM_TEST_FIXTURES "/../../hardware"

typedef struct scene {
    const char *dir, *model, *config;
    const char *env[2];
    const char *machine[3]; /* --set-hardware, up to the first NULL */
} scene;

static const char *shape_json(unsigned hidden, unsigned intermediate, unsigned layers, unsigned heads,
                              unsigned kv_heads, unsigned vocab) {
    return run_format("{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": %u,\n"
                      " \"intermediate_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": %u,\n"
                      " \"num_key_value_heads\": %u, \"vocab_size\": %u, \"max_position_embeddings\": 8192,\n"
                      " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
                      " \"tie_word_embeddings\": false, \"initializer_range\": 0.02}\n",
                      hidden, intermediate, layers, heads, kv_heads, vocab);
}

/* A model of which nothing but config.json is there; timings go to a profile of our own. `shape` NULL: a small one. */
static scene scene_open(const char *shape, unsigned rows, unsigned seq) {
    scene s = {.dir = run_dir()};
    s.model = run_path(s.dir, "model");
    s.config = run_path(s.dir, "config.json");
    s.env[0] = run_format("TIDEMILL_PROFILE=%s", run_path(s.dir, "profile.json"));
    run_random_model(s.model);
    if (shape) run_write(run_path(s.model, "config.json"), shape);
    run_write(s.config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"precision\": \"bf16\","
                                   " \"data\": {\"seq_len\": %u},"
                                   " \"per_device_train_batch_size\": %u, \"gradient_accumulation_steps\": 2,"
                                   " \"max_steps\": 3, \"output_dir\": \"%s/out\"}\n",
                                   s.model, seq, rows, s.dir));
    return s;
}

/* Runs `plan CONFIG --json MORE.. [--set SET]`; its exit status has to be `status`. *err, where given: run_format'ed.
 */
static const tm_json *plan(const scene *s, int status, const char *hardware, const char *set, tm_json_doc **doc,
                           const char **err) {
    const char *arguments[16] = {"plan", s->config, "--json"};
    unsigned n = 3;
    if (hardware) arguments[n++] = "--hardware", arguments[n++] = hardware;
    for (unsigned i = 0; hardware && i < TM_COUNT(s->machine) && s->machine[i]; i++)
        arguments[n++] = "--set-hardware", arguments[n++] = s->machine[i];
    if (set) arguments[n++] = "--set", arguments[n++] = set;
    run_result r = run_argv(&(run_opts){.env = s->env, .timeout_s = 100}, arguments);
    if (r.status != status) fail_msg("plan exits with %d, not %d; stderr:\n%s", r.status, status, r.err);
    RUN_EXPECT_STATUS(tm_json_parse(doc, r.out, r.out_len, "plan --json", 0, 0));
    if (err) *err = run_format("%s", r.err);
    run_free(&r);
    return tm_json_root(*doc);
}

static const tm_json *field(const tm_json *o, const char *key, tm_json_type type) {
    const tm_json *f = tm_json_get(o, key);
    if (!f) fail_msg("plan --json has no \"%s\"", key);
    if (f->type != type) fail_msg("plan --json: \"%s\" has another type than expected", key);
    return f;
}

static int64_t count(const tm_json *o, const char *key) {
    const tm_json *f = field(o, key, TM_JSON_NUMBER);
    if (!f->is_integer) fail_msg("plan --json: \"%s\" is not an integer", key);
    return f->integer;
}

/* A setting of the host budget: the least, which a plan for one byte names, and `more_mib`. */
static const char *little_budget(const scene *s, int64_t more_mib) {
    tm_json_doc *doc;
    int64_t least = count(plan(s, 2, NULL, "memory.host_budget=1", &doc, NULL), "minimum_host_bytes");
    tm_json_free(doc);
    return run_format("memory.host_budget=%lld", (long long)(least + more_mib * (int64_t)TM_MIB));
}

static int64_t sum_of(const tm_json *kinds, const char *key) {
    int64_t sum = 0;
    for (const tm_json *k = kinds->child; k; k = k->next) sum += count(k, key);
    return sum;
}

/* With several paths each has its part of the wear, and they add up. */
static void test_wear_by_path(void **state) {
    (void)state;
    scene s = scene_open(NULL, 1, 64);
    tm_json_doc *doc;
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"precision\": \"bf16\","
                         " \"data\": {\"seq_len\": 64},"
                         " \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\","
                         " \"nvme_path\": [\"%s/a\", \"%s/b\", \"%s/c\"]}},"
                         " \"memory\": {\"cache\": \"none\"}, \"max_steps\": 3, \"output_dir\": \"%s/out\"}\n",
                         s.model, s.dir, s.dir, s.dir, s.dir));
    const tm_json *o = plan(&s, 0, NULL, NULL, &doc, NULL);
    double all = field(o, "tb_written_per_1000_steps", TM_JSON_NUMBER)->number, sum = 0;
    unsigned n = 0;
    for (const tm_json *p = field(o, "path_tb_written_per_1000_steps", TM_JSON_ARRAY)->child; p; p = p->next, n++) {
        assert_true(p->number > all / 4 && p->number < all / 2); /* one disk: a third each, but for whole objects */
        sum += p->number;
    }
    assert_int_equal(n, 3);
    assert_true(all > 0 && sum > 0.999999 * all && sum < 1.000001 * all);
    tm_json_free(doc);
}

static void test_keys(void **state) {
    (void)state;
    static const char *const counts[] = {"host_peak_bytes",    "device_peak_bytes",   "disk_bytes",
                                         "minimum_host_bytes", "read_bytes_per_step", "write_bytes_per_step"};
    scene s = scene_open(NULL, 1, 64);
    tm_json_doc *doc;
    const tm_json *o = plan(&s, 0, NULL, little_budget(&s, 32), &doc, NULL);
    for (size_t i = 0; i < TM_COUNT(counts); i++) assert_true(count(o, counts[i]) >= 0);
    assert_true(field(o, "fits", TM_JSON_BOOL)->boolean);
    assert_true(field(o, "seconds_per_step", TM_JSON_NUMBER)->number > 0);
    assert_true(field(o, "tokens_per_second", TM_JSON_NUMBER)->number > 0);
    assert_non_null(strstr(field(o, "seconds_basis", TM_JSON_STRING)->text, "measured on this machine"));
    const char *bottleneck = field(o, "bottleneck", TM_JSON_STRING)->text;
    const tm_json *busy = field(o, "busy_seconds", TM_JSON_OBJECT), *wait = field(o, "wait_seconds", TM_JSON_OBJECT);
    for (const tm_json *b = busy->child; b; b = b->next) {
        assert_true(b->number <= field(busy, bottleneck, TM_JSON_NUMBER)->number);
        assert_true(field(wait, b->key, TM_JSON_NUMBER)->number >= 0);
    }
    const tm_json *kinds = field(o, "bytes_by_kind", TM_JSON_OBJECT);
    assert_int_equal(sum_of(kinds, "read"), count(o, "read_bytes_per_step"));
    assert_int_equal(sum_of(kinds, "write"), count(o, "write_bytes_per_step"));
    assert_int_equal(field(o, "update", TM_JSON_STRING)->len, 1);
    double proof = field(o, "proof_seconds", TM_JSON_NUMBER)->number;
    assert_true(proof > 0 && proof < field(o, "planning_seconds", TM_JSON_NUMBER)->number);
    tm_json_free(doc);
}

/* "KEY=VALUE" of the one change that is suggested. */
static const char *suggestion(const tm_json *o) {
    const tm_json *c = field(o, "smallest_change", TM_JSON_OBJECT);
    assert_int_equal(c->count, 1);
    return run_format("%s=%lld", c->child->key, (long long)c->child->integer);
}

/* A refusal names one change, in JSON and in the error line; with it the step fits, with a little less it does not. */
static void refused_and_mended(const scene *s, const char *hardware, const char *set, const char *limit,
                               const char *key, int less) {
    tm_json_doc *doc;
    const char *err;
    const tm_json *o = plan(s, 2, hardware, set, &doc, &err);
    assert_false(field(o, "fits", TM_JSON_BOOL)->boolean);
    assert_string_equal(field(o, "limit", TM_JSON_STRING)->text, limit);
    const char *change = suggestion(o);
    if (strncmp(change, key, strlen(key)) != 0) fail_msg("the change suggested is %s, not of %s", change, key);
    assert_non_null(strstr(err, change));
    int64_t value = tm_json_get(o, "smallest_change")->child->integer;
    tm_json_free(doc);
    o = plan(s, 0, hardware, change, &doc, NULL);
    assert_true(field(o, "fits", TM_JSON_BOOL)->boolean);
    tm_json_free(doc);
    if (!less) return;
    (void)plan(s, 2, hardware, run_format("%s=%lld", key, (long long)(value - less)), &doc, NULL);
    tm_json_free(doc);
}

static void test_host_is_too_small(void **state) {
    (void)state;
    scene s = scene_open(NULL, 1, 64);
    refused_and_mended(&s, NULL, "memory.host_budget=1MiB", "host", "memory.host_budget", 1);
}

static const char *imagined(const scene *s, const char *host, const char *disk, const char *gpu) {
    const char *path = run_path(s->dir, "hardware.json");
    run_write(path, run_format("{\"name\": \"a box\", \"host_memory\": \"%s\", \"cpu\": {\"cores\": 8, \"flops_fp32\":"
                               " 5e11, \"memory_bytes_per_second\": 3e10}, \"disk\": {\"read_bytes_per_second\": 5e9,"
                               " \"write_bytes_per_second\": 2e9, \"size\": \"%s\"}%s}\n",
                               host, disk, gpu));
    return path;
}

/* 134 M parameters: two slots take about 3.4 GB, one 1.9. */
static void test_disk_is_too_small(void **state) {
    (void)state;
    scene s = scene_open(shape_json(768, 2048, 12, 12, 12, 32000), 1, 128);
    refused_and_mended(&s, imagined(&s, "1GiB", "2500MB", ""), "memory.cache=none", "disk", "memory.slots", 0);
}

/* Host memory that cannot grow: a smaller batch is what is left. */
static void test_batch_is_too_large(void **state) {
    (void)state;
    scene s = scene_open(NULL, 64, 512);
    const char *set = "memory.cache=auto";
    refused_and_mended(&s, imagined(&s, "180MB", "1TB", ""), set, "host", "per_device_train_batch_size", -1);
}

static void test_device_is_too_small(void **state) {
    (void)state;
    scene s = scene_open(NULL, 256, 512);
    const char *gpu = ", \"gpu\": {\"count\": 1, \"name\": \"small\", \"memory\": \"1500MiB\", \"flops_fp32\": 1e13,"
                      " \"flops_bf16\": 5e13, \"memory_bytes_per_second\": 5e11, \"h2d_bytes_per_second\": 1e10}";
    refused_and_mended(&s, imagined(&s, "16GiB", "1TB", gpu), NULL, "device", "per_device_train_batch_size", -1);
}

static void test_every_hardware_file(void **state) {
    (void)state;
    scene s = scene_open(NULL, 1, 64);
    DIR *dir = opendir(HARDWARE);
    unsigned files = 0;
    if (!dir) TEST_SKIP("%s is not there", HARDWARE);
    for (const struct dirent *e; (e = readdir(dir));) {
        const char *dot = strrchr(e->d_name, '.');
        tm_json_doc *doc;
        if (!dot || strcmp(dot, ".json") != 0) continue;
        const tm_json *o = plan(&s, 0, run_format(HARDWARE "/%s", e->d_name), NULL, &doc, NULL);
        assert_true(field(o, "fits", TM_JSON_BOOL)->boolean);
        assert_true(field(o, "seconds_per_step", TM_JSON_NUMBER)->number > 0);
        if (strncmp(e->d_name, "cpu", 3) != 0) assert_true(count(o, "device_peak_bytes") > 0);
        tm_json_free(doc);
        files++;
    }
    closedir(dir);
    assert_true(files > 0);
}

/* 1 to 8 GPUs, three sizes of memory, three numbers of drives, and clusters. */
static void test_other_machines(void **state) {
    (void)state;
    scene s = scene_open(NULL, 1, 64);
    tm_json_doc *doc;
    for (unsigned i = 0; i < 36; i++) {
        s.machine[0] = run_format("gpu.count=%u", 1u << i % 4);
        s.machine[1] = run_format("host_memory=%uGiB", 64u << i / 4 % 3);
        s.machine[2] = run_format("disk.count=%u", 1u << i / 12);
        const tm_json *o = plan(&s, 0, HARDWARE "/1x24gb.json", NULL, &doc, NULL);
        assert_true(field(o, "fits", TM_JSON_BOOL)->boolean);
        assert_true(field(o, "seconds_per_step", TM_JSON_NUMBER)->number > 0);
        assert_true(count(o, "device_peak_bytes") > 0 && count(o, "ranks") == 1u << i % 4);
        tm_json_free(doc);
    }
    s.machine[1] = NULL;
    for (unsigned nodes = 8; nodes <= 128; nodes *= 4) {
        s.machine[0] = run_format("nodes=%u", nodes);
        const tm_json *o = plan(&s, 0, HARDWARE "/8x80gb.json", NULL, &doc, NULL);
        assert_true(field(o, "fits", TM_JSON_BOOL)->boolean && count(o, "ranks") == 8 * nodes);
        tm_json_free(doc);
    }
    s.machine[0] = "gpu.cuont=2";
    run_result r = run((run_opts){.timeout_s = 60}, "plan", s.config, "--hardware", HARDWARE "/1x24gb.json",
                       "--set-hardware", s.machine[0], NULL);
    if (r.status != 1 && r.status != 2) fail_msg("exit %d", r.status);
    assert_non_null(strstr(r.err, "gpu.count"));
    run_free(&r);
    r = run((run_opts){.timeout_s = 60}, "plan", s.config, "--set-hardware", "nodes=2", NULL);
    assert_non_null(strstr(r.err, "--hardware"));
    assert_true(r.status != 0);
    run_free(&r);
}

typedef struct step {
    double seconds, written;
} step;

/* 71 M parameters, 8 rows of 512, on hardware whose costs are the file's: nothing is timed. */
static step ladder_step(const scene *s, const char *hardware, unsigned mib, const char *update) {
    tm_json_doc *doc;
    run_write(s->config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"precision\": \"bf16\","
                         " \"data\": {\"seq_len\": 512}, \"per_device_train_batch_size\": 8,"
                         " \"memory\": {\"update\": \"%s\"}, \"max_steps\": 3, \"output_dir\": \"%s/out\"}\n",
                         s->model, update, s->dir));
    const tm_json *o = plan(s, 0, hardware, run_format("memory.host_budget=%uMiB", mib), &doc, NULL);
    step found = {field(o, "seconds_per_step", TM_JSON_NUMBER)->number, (double)count(o, "write_bytes_per_step")};
    tm_json_free(doc);
    return found;
}

/* Ways within 2% of the fastest count as equally fast, those within 1% of the least written as writing as little: what
 * a given update would have is never faster by more, nor as fast with less written. With memory bytes then rise only
 * where seconds fall. */
static void test_wear_breaks_ties(void **state) {
    (void)state;
    static const unsigned mib[] = {256, 384, 512, 768, 1024, 1280, 1536, 2048};
    scene s = scene_open(shape_json(576, 1536, 16, 9, 3, 32000), 8, 512);
    const char *hardware = imagined(&s, "16GiB", "1TB", "");
    step before = {0};
    for (size_t i = 0; i < TM_COUNT(mib); i++) {
        step any = ladder_step(&s, hardware, mib[i], "auto");
        step given[] = {ladder_step(&s, hardware, mib[i], "U"), ladder_step(&s, hardware, mib[i], "F")};
        double fastest = given[0].seconds < given[1].seconds ? given[0].seconds : given[1].seconds;
        if (any.seconds > 1.0201 * fastest) fail_msg("%u MiB: %g s, not %g s", mib[i], any.seconds, fastest);
        for (size_t k = 0; k < TM_COUNT(given); k++)
            if (given[k].seconds <= 1.02 * fastest && any.written > 1.0101 * given[k].written)
                fail_msg("%u MiB: writes %g bytes a step in %g s, update %s %g in %g s", mib[i], any.written,
                         any.seconds, k ? "F" : "U", given[k].written, given[k].seconds);
        if (i > 0 && any.written > 1.0101 * before.written && any.seconds >= before.seconds)
            fail_msg("%u MiB: writes more than with %u MiB and is no faster", mib[i], mib[i - 1]);
        before = any;
    }
}

/* LoRA on 7B in 1000 MiB: its base is read twice a step, in about the time that products take. */
static double adapter_step(const scene *s, const char *rate, const char *activations) {
    tm_json_doc *doc;
    run_write(s->config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"precision\": \"bf16\","
                         " \"data\": {\"seq_len\": 512}, \"adapter\": {\"r\": 16, \"target_modules\": \"all-linear\"},"
                         " \"memory\": {\"activations\": \"%s\"}, \"max_steps\": 3, \"output_dir\": \"%s/out\"}\n",
                         s->model, activations, s->dir));
    scene there = *s;
    there.machine[0] = run_format("disk.read_bytes_per_second=%s", rate);
    const tm_json *o = plan(&there, 0, run_path(s->dir, "two cores.json"), "memory.host_budget=1000MiB", &doc, NULL);
    double seconds = field(o, "seconds_per_step", TM_JSON_NUMBER)->number;
    tm_json_free(doc);
    return seconds;
}

/* By the guess that ranks ways before any is compiled, reading for nothing and computing for nothing once looked the same
 * as doing both at once: some activations were then computed again where to keep them is 7% faster. */
static void test_a_paged_base_keeps_what_is_worth_it(void **state) {
    (void)state;
    static const char *const rates[] = {"1.6e9", "2.0e9", "2.3e9", "2.6e9"};
    scene s = scene_open(shape_json(4096, 11008, 32, 32, 32, 32000), 1, 512);
    run_write(run_path(s.dir, "two cores.json"),
              "{\"name\": \"two cores\", \"host_memory\": \"16GiB\",\n"
              " \"cpu\": {\"cores\": 2, \"flops_fp32\": 2.2e12, \"flops_bf16\": 2.2e12, "
              "\"memory_bytes_per_second\": 2.5e10},\n"
              " \"disk\": {\"read_bytes_per_second\": 2e9, \"write_bytes_per_second\": 2.8e9, \"duplex\": 0.05, "
              "\"latency_seconds\": 7e-5}}\n");
    for (size_t i = 0; i < TM_COUNT(rates); i++) {
        double any = adapter_step(&s, rates[i], "auto"), kept = adapter_step(&s, rates[i], "spill"),
               again = adapter_step(&s, rates[i], "recompute"), fastest = kept < again ? kept : again;
        if (any > 1.0201 * fastest)
            fail_msg("%s bytes a second: %g s, where spill takes %g and recompute %g", rates[i], any, kept, again);
    }
}

static void write_rows(const scene *s) {
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(run_path(s->dir, "rows.safetensors"), golden, 0, 4, 16, true);
    tm_st_close(golden);
    static const char data[] = "\"data\": {";
    char *config = run_read(s->config, NULL), *at = strstr(config, data) + sizeof data - 1;
    run_write(s->config,
              run_format("%.*s\"train\": \"%s/rows.safetensors\", %s", (int)(at - config), config, s->dir, at));
    free(config);
}

/* Planned with what was timed, trained with what plan saved: the same plan, byte for byte. */
static void test_bytes_are_those_of_train(void **state) {
    (void)state;
    scene s = scene_open(NULL, 1, 16);
    tm_json_doc *doc;
    write_rows(&s);
    const char *budget = little_budget(&s, 30);
    const tm_json *o = plan(&s, 0, NULL, budget, &doc, NULL);
    train_log log = run_train(s.config, run_path(s.dir, "out"), 0, &(run_opts){.env = s.env}, SETS(budget));
    assert_true(log.steps > 1);
    assert_true(log.step[log.steps - 1].read_bytes > 0);
    assert_int_equal(count(o, "read_bytes_per_step"), log.step[log.steps - 1].read_bytes);
    assert_int_equal(count(o, "write_bytes_per_step"), log.step[log.steps - 1].write_bytes);
#ifndef TIDEMILL_SANITIZED
    uint64_t planned = (uint64_t)count(o, "host_peak_bytes");
    uint64_t loose = planned / 10 + 10 * TM_MIB; /* the latter: what a library of products may hold, and need not */
    if (log.host_peak > planned || log.host_peak + loose < planned)
        fail_msg("planned peak %llu bytes, VmHWM %llu", (unsigned long long)planned, (unsigned long long)log.host_peak);
#endif
    tm_json_free(doc);
}

/* Of the programs that were run so far. */
static double cpu_seconds(void) {
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &u), 0);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* A model whose state alone is more than the disk has is refused before it is planned, which would take minutes. */
static void test_state_is_larger_than_the_disk(void **state) {
    (void)state;
    static const struct { const char *disk, *said; } cases[] = {{"4TB", "larger machine"}, {"6TB", "memory.slots=1"}};
    scene s = scene_open(shape_json(16384, 53248, 126, 128, 8, 128256), 1, 4096);
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_json_doc *doc;
        const char *err;
        double before = cpu_seconds();
        const tm_json *o = plan(&s, 2, imagined(&s, "64GiB", cases[i].disk, ""), NULL, &doc, &err);
        double seconds = cpu_seconds() - before;
        if (!strstr(err, "the offload files need at least 8.") || !strstr(err, cases[i].said)) fail_msg("%s", err);
        assert_false(field(o, "fits", TM_JSON_BOOL)->boolean);
        assert_true(count(o, "disk_bytes") > 8e12 && count(o, "disk_bytes") < 405e9 * 26);
        tm_json_free(doc);
        if (seconds > 5) fail_msg("refused after %.1f s of processor", seconds);
    }
}

/* Of many micro-batches nothing is built where their plans alone are more than the budget: a million are refused as
 * fast as ten thousand, in little memory, with the number that fits; that many do fit, and one more does not. */
static scene many_of(const char *shape, const char *budget, const char *update) {
    scene s = scene_open(shape, 1, 16);
    write_rows(&s);
    run_write(
        s.config,
        run_format("{\"model\": \"%s\", \"init\": \"random\", \"precision\": \"bf16\","
                   " \"data\": {\"train\": \"%s/rows.safetensors\", \"seq_len\": 16, \"shuffle\": false},"
                   " \"max_steps\": 2, \"memory\": {\"host_budget\": \"%s\", \"cache\": \"none\", \"update\": \"%s\"},"
                   " \"output_dir\": \"%s/out\"}\n",
                   s.model, s.dir, budget, update, s.dir));
    return s;
}

static scene many(const char *budget, const char *update) {
    return many_of(shape_json(64, 128, 2, 4, 2, 512), budget, update);
}

/* `train` refuses a million at once: the number that fits. */
static int64_t a_million_is_refused(const scene *s, uint64_t budget) {
    const char *first, *set = "--set gradient_accumulation_steps=";
    const char *arguments[] = {"train", s->config, "--set", "gradient_accumulation_steps=1000000", NULL};
    double before = cpu_seconds();
    run_result r = run_argv(&(run_opts){.env = s->env}, arguments);
    double seconds = cpu_seconds() - before;
    assert_int_equal(r.status, 2);
    assert_int_equal(run_error_lines(r.err, &first), 1);
    const char *line = strstr(first, set);
    if (!line) fail_msg("%s", first);
    int64_t most = strtoll(line + strlen(set), NULL, 10);
    print_message("  refused after %.2f s of a processor, %lld fit\n", seconds, (long long)most);
#ifndef TIDEMILL_SANITIZED
    if (seconds > 2) fail_msg("%.1f s of a processor", seconds);
    if (r.peak_bytes > budget) fail_msg("%llu bytes", (unsigned long long)r.peak_bytes);
#else
    (void)budget;
#endif
    run_free(&r);
    return most;
}

static void that_many_fit(const scene *s, int64_t most, int64_t more, int64_t budget) {
    const char *set = "gradient_accumulation_steps";
    tm_json_doc *doc;
    const tm_json *o = plan(s, 0, NULL, run_format("%s=%lld", set, (long long)most), &doc, NULL);
    assert_true(count(o, "minimum_host_bytes") <= budget);
    tm_json_free(doc);
    o = plan(s, 2, NULL, run_format("%s=%lld", set, (long long)more), &doc, NULL);
    int64_t fit = count(tm_json_get(o, "smallest_change"), set), least = count(o, "minimum_host_bytes");
    tm_json_free(doc);
    if (fit < most || fit >= more || least <= budget)
        fail_msg("%lld fit; of %lld %lld, and they need %lld bytes", (long long)most, (long long)more, (long long)fit,
                 (long long)least);
}

static void test_micro_batches_are_too_many(void **state) {
    (void)state;
    static const char *const update[] = {"auto", "F"};
    for (unsigned i = 0; i < TM_COUNT(update); i++) {
        scene s = many("58MiB", update[i]);
        int64_t most = a_million_is_refused(&s, 58 * TM_MIB);
        that_many_fit(&s, most, most + 1, 58 * (int64_t)TM_MIB);
    }
}

/* Of a wide model frames are what there is no room for. How well they pack is not the same for any two numbers. */
static void test_micro_batches_are_too_wide(void **state) {
    (void)state;
    scene s = many_of(shape_json(2048, 2048, 2, 16, 16, 1000), "380MiB", "auto");
    int64_t most = a_million_is_refused(&s, 380 * TM_MIB);
    that_many_fit(&s, most, most + most / 100 + 1, 380 * (int64_t)TM_MIB);
}

/* Plans of many micro-batches are most of the least budget: at it the run holds it, planning included. */
static void test_many_micro_batches_hold_the_budget(void **state) {
    (void)state;
    scene s = many("unlimited", "U");
    tm_json_doc *doc;
    const char *set = "gradient_accumulation_steps=512";
    const tm_json *o = plan(&s, 0, NULL, set, &doc, NULL);
    uint64_t least = (uint64_t)count(o, "minimum_host_bytes");
    tm_json_free(doc);
    train_log log = run_train(s.config, run_path(s.dir, "out"), 0, &(run_opts){.env = s.env},
                              SETS(set, run_format("memory.host_budget=%llu", (unsigned long long)least)));
    assert_int_equal(log.steps, 2);
#ifndef TIDEMILL_SANITIZED
    if (log.host_peak > least || log.sampled_peak > least)
        fail_msg("the least budget is %llu bytes, VmHWM %llu", (unsigned long long)least,
                 (unsigned long long)tm_max_u64(log.host_peak, log.sampled_peak));
#endif
}

/* An edge is left out, of the step's plan or of the import's (there is one way to run it): neither is run, and nothing
 * is begun. */
static void test_a_wrong_plan_is_not_run(void **state) {
    (void)state;
    scene s = scene_open(NULL, 1, 16);
    const char *first, *text = "a plan that tidemill made is wrong, and it was not run";
    write_rows(&s);
    for (unsigned at = 1; at <= 2; at++) {
        const char *env[] = {s.env[0],
                             run_format("TIDEMILL_FAULT=lost_edge:%u:now:%s", at, at == 1 ? "sticky" : "once"), NULL};
        const char *arguments[] = {"train", s.config,
                                   "--set", "memory.update=U",
                                   "--set", "memory.activations=recompute",
                                   "--set", "memory.cache=none",
                                   NULL};
        run_result r = run_argv(&(run_opts){.env = env}, arguments);
        if (r.status != 1) fail_msg("plan %u: exit %d; stderr:\n%s", at, r.status, r.err);
        assert_int_equal(run_error_lines(r.err, &first), 1);
        if (!strstr(first, text)) fail_msg("plan %u: %s", at, first);
        assert_int_equal(run_entries(run_path(s.dir, "out/offload")), 0);
        run_free(&r);
    }
}

/* 405 B parameters on 1,024 GPUs, under ten seconds of a processor (a release build). Whoever shares it may make that
 * more, but not time and again. */
static void test_large(void **state) {
    (void)state;
    scene s = scene_open(shape_json(16384, 53248, 126, 128, 8, 128256), 1, 4096);
    tm_json_doc *doc;
#ifdef TIDEMILL_SANITIZED
    enum { TRIES = 1 };
#else
    enum { TRIES = 3 };
#endif
    double seconds = 10;
    const tm_json *o = NULL;
    for (unsigned tries = 0; seconds >= 10 && tries < TRIES; tries++) {
        if (o) tm_json_free(doc);
        double before = cpu_seconds();
        s.machine[0] = "nodes=128";
        o = plan(&s, 0, HARDWARE "/8x80gb.json", NULL, &doc, NULL);
        seconds = cpu_seconds() - before;
    }
    assert_int_equal(count(o, "ranks"), 1024);
    /* 6 operations a parameter and token are the least that a step can take, at the file's rate */
    double least = 6.0 * 405e9 * 2 * 4096 / 6.4e14;
    assert_true(field(o, "seconds_per_step", TM_JSON_NUMBER)->number > least);
    assert_true(field(o, "seconds_per_step", TM_JSON_NUMBER)->number < 3 * least);
    tm_json_free(doc);
#ifndef TIDEMILL_SANITIZED
    if (seconds >= 10) fail_msg("planning took %.1f s", seconds);
#else
    print_message("%.1f s (not held against a build with sanitizers)\n", seconds);
#endif
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_keys, run_clean),
        cmocka_unit_test_teardown(test_wear_by_path, run_clean),
        cmocka_unit_test_teardown(test_host_is_too_small, run_clean),
        cmocka_unit_test_teardown(test_disk_is_too_small, run_clean),
        cmocka_unit_test_teardown(test_state_is_larger_than_the_disk, run_clean),
        cmocka_unit_test_teardown(test_batch_is_too_large, run_clean),
        cmocka_unit_test_teardown(test_device_is_too_small, run_clean),
        cmocka_unit_test_teardown(test_every_hardware_file, run_clean),
        cmocka_unit_test_teardown(test_other_machines, run_clean),
        cmocka_unit_test_teardown(test_wear_breaks_ties, run_clean),
        cmocka_unit_test_teardown(test_a_paged_base_keeps_what_is_worth_it, run_clean),
        cmocka_unit_test_teardown(test_bytes_are_those_of_train, run_clean),
        cmocka_unit_test_teardown(test_micro_batches_are_too_many, run_clean),
        cmocka_unit_test_teardown(test_micro_batches_are_too_wide, run_clean),
        cmocka_unit_test_teardown(test_many_micro_batches_hold_the_budget, run_clean),
        cmocka_unit_test_teardown(test_a_wrong_plan_is_not_run, run_clean),
        cmocka_unit_test_teardown(test_large, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("train_plan_tool", tests, NULL, NULL);
}

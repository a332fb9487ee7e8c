/* What a run teaches `plan`: the profile afterwards holds what operations took in that run, by its own trace. */
#include "io/file/file.h"
#include "offload/machine/machine.h"
#include "run.h"
#include "planner/cost_table_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const tm_json *parse(const char *path, tm_json_doc **doc) {
    size_t len;
    char *text = run_read(path, &len);
    RUN_EXPECT_STATUS(tm_json_parse(doc, text, len, path, 0, 0));
    free(text);
    return tm_json_root(*doc);
}

/* Mean seconds of what ran (process 2 of the trace) from the second step on under names that begin and end like this.
 */
static double mean_in_trace(const tm_json *root, const char *begins, const char *ends) {
    double sum = 0;
    unsigned n = 0;
    for (const tm_json *e = tm_json_get(root, "traceEvents")->child; e; e = e->next) {
        const tm_json *name = tm_json_get(e, "name"), *dur = tm_json_get(e, "dur"), *args = tm_json_get(e, "args");
        const tm_json *step = args ? tm_json_get(args, "step") : NULL, *pid = tm_json_get(e, "pid");
        if (!dur || !step || step->integer < 2 || pid->integer != 2) continue;
        const char *part = strstr(name->text, ends);
        if (strncmp(name->text, begins, strlen(begins)) != 0 || !part) continue;
        sum += dur->number * 1e-6;
        n++;
    }
    if (n < 10) fail_msg("the trace has %u of \"%s..%s\"", n, begins, ends);
    return sum / n;
}

/* The one entry of the profile whose name begins like this. */
static double in_profile(const tm_json *root, const char *begins) {
    const tm_json *seconds = tm_json_get(root, "seconds"), *found = NULL;
    for (const tm_json *backend = seconds->child; backend; backend = backend->next)
        for (const tm_json *e = backend->child; e; e = e->next)
            if (strncmp(e->key, begins, strlen(begins)) == 0) {
                if (found) fail_msg("two entries begin with \"%s\"", begins);
                found = e;
            }
    if (!found) fail_msg("no entry begins with \"%s\"", begins);
    return found->number;
}

static const char *write_config(const char *dir, unsigned steps) {
    const char *model = run_path(dir, "model"), *rows = run_path(dir, "rows.safetensors");
    run_random_model(model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 8, 32, true);
    tm_st_close(golden);
    const char *config = run_path(dir, "config.json");
    run_write(config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\"},\n"
                                 " \"precision\": \"bf16\", \"max_steps\": %u, \"per_device_train_batch_size\": 2,\n"
                                 " \"gradient_accumulation_steps\": 4, \"learning_rate\": 1e-4}\n",
                                 model, rows, steps));
    return config;
}

/* The trace times an operation around the call, the profile inside it: they differ by a little, or, where others use
 * the machine, by the pauses that fall between the two. */
static void expect_close(double profile, double trace, const char *what) {
    if (profile < 0.6 * trace || profile > 1.0 * trace + 1e-6)
        fail_msg("%s: %g s in the profile, %g s in the trace", what, profile, trace);
}

static void test_means_are_kept(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 40), *profile = run_path(dir, "profile.json");
    const char *trace = run_path(dir, "trace.json");
    const run_opts opts = {.env = (const char *[]){run_format("TIDEMILL_PROFILE=%s", profile), NULL}, .timeout_s = 100};
    for (unsigned steps = 40; !tm_path_exists(profile) && steps < 1000; steps *= 3) { /* a fast machine wants more */
        run_result r = run(opts, "train", config, "--resume", "never", "--set", run_format("max_steps=%u", steps),
                           "--set", run_format("output_dir=%s", run_path(dir, "out")), "--trace", trace, NULL);
        RUN_OK(&r);
        run_free(&r);
    }
    tm_json_doc *traced, *kept;
    const tm_json *t = parse(trace, &traced), *p = parse(profile, &kept);
    expect_close(in_profile(p, "forward block.0.attn_in "), mean_in_trace(t, "forward layers", ".attn_in "), "attn_in");
    expect_close(in_profile(p, "backward block.1.attn "), mean_in_trace(t, "backward layers", ".attn "), "attn");
    tm_json_free(traced);
    tm_json_free(kept);
}

/* A process that was stopped in an operation, its first or a later one, teaches what the others took. */
static void test_pauses_do_not_count(void **state) {
    (void)state;
    cost_heard first = {0}, later = {0}, slow = {0};
    for (int i = 0; i < 4; i++) {
        cost_observed_add(&first, i == 0 ? 60 : 0.5, 1);
        cost_observed_add(&later, i == 2 ? 60 : 0.5, 1);
        cost_observed_add(&slow, i == 2 ? 0.9 : 0.01, 1); /* neighbours are no pause */
    }
    assert_true(first.seconds == 1.5 && first.n == 3);
    assert_true(later.seconds == 1.5 && later.n == 3);
    assert_true(slow.seconds > 0.92 && slow.n == 4);
}

/* A short run says too little: one step of a model so small that it is short on any machine. */
static void test_short_run_teaches_nothing(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 1), *profile = run_path(dir, "profile.json");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", run_path(dir, "model"));
    const run_opts opts = {.env = (const char *[]){run_format("TIDEMILL_PROFILE=%s", profile), NULL}};
    run_result r = run(opts, "train", config, "--resume", "never", "--set",
                       run_format("output_dir=%s", run_path(dir, "out")), NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_false(tm_path_exists(profile));
}

/* What operations take is known before a long run's plan is chosen, though nobody has planned here: it is timed. The
 * run is stopped as soon as that is kept. */
static void test_a_long_run_times_first(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 100000), *profile = run_path(dir, "profile.json");
    const char *env[] = {run_format("TIDEMILL_PROFILE=%s", profile), NULL};
    const run_opts opts = {.env = env, .timeout_s = 20, .signal = SIGTERM, .signal_when = profile};
    run_result r =
        run(opts, "train", config, "--set", run_format("output_dir=%s", run_path(dir, "out")), "--quiet", NULL);
    if (!strstr(r.err, "stopped by signal") && !strstr(r.err, "is committed"))
        fail_msg("exit status %d; stderr:\n%s", r.status, r.err);
    run_free(&r);
    tm_json_doc *kept;
    const tm_json *p = parse(profile, &kept);
    (void)in_profile(p, "forward block.1.attn ");
    (void)in_profile(p, "backward head.1.head ");
    (void)in_profile(p, "finish ");
    (void)in_profile(p, "adamw ");
    tm_json_free(kept);
}

static double planned_seconds(const run_opts *opts, const char *config, const char *dir, bool measure) {
    tm_json_doc *doc;
    run_result r = run(*opts, "plan", config, "--json", "--set", run_format("output_dir=%s", run_path(dir, "out")),
                       measure ? NULL : "--no-measure", NULL);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, strlen(r.out), "plan", 0, 0));
    double seconds = tm_json_get(tm_json_root(doc), "seconds_per_step")->number;
    tm_json_free(doc);
    run_free(&r);
    return seconds;
}

/* Products that are a million times as fast as the rates say nothing of an update, which moves at least 24 bytes a
 * parameter: 7.6 million of them at 12 GB/s. */
static void test_products_say_nothing_of_memory(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 1), *profile = run_path(dir, "profile.json");
    const run_opts opts = {.env = (const char *[]){run_format("TIDEMILL_PROFILE=%s", profile), NULL}};
    tm_json_doc *kept;
    (void)planned_seconds(&opts, config, dir, true);
    const tm_json *backend = tm_json_get(parse(profile, &kept), "seconds")->child, *e = backend->child;
    while (e && strncmp(e->key, "forward block.2.", 16) != 0) e = e->next;
    assert_non_null(e);
    run_write(profile, run_format("{\"version\": 1, \"disks\": [], \"seconds\": {\"%s\": {\"%s\": 1e-9}}}",
                                  backend->key, e->key));
    tm_json_free(kept);
    double seconds = planned_seconds(&opts, config, dir, false);
    if (seconds < 7.6e6 * 24 / 12e9) fail_msg("a step takes %g s", seconds);
}

/* What the start of a run on this disk says of its requests. */
static void expect_requests(const char *config, const run_opts *opts, const char *offload, const char *aio,
                            const char *requests) {
    const char *const arguments[] = {"train",
                                     config,
                                     "--resume",
                                     "never",
                                     "--set",
                                     "max_steps=1",
                                     "--set",
                                     run_format("output_dir=%s", run_path(offload, "out")),
                                     "--set",
                                     run_format("zero_optimization.offload_param.device=nvme"),
                                     "--set",
                                     run_format("zero_optimization.offload_param.nvme_path=%s", offload),
                                     aio ? "--set" : NULL,
                                     aio,
                                     NULL};
    run_result r = run_argv(opts, arguments);
    RUN_OK(&r);
    const char *engine = strstr(r.err, ", engine ");
    size_t line = engine ? strcspn(engine, "\n") : 0;
    if (!engine || line < strlen(requests) ||
        strncmp(engine + line - strlen(requests), requests, strlen(requests)) != 0)
        fail_msg("not \"%s\": %s", requests, r.err);
    run_free(&r);
}

/* `tune io` keeps depth and block size with the disk's rates, and `train` asks for what is kept (numbers that nobody
 * would choose, so that they are no default) unless it is told others. */
static void test_tuned_requests_are_used(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 1), *profile = run_path(dir, "profile.json");
    const run_opts opts = {.env =
                               (const char *[]){run_format("TIDEMILL_PROFILE=%s", profile), "TIDEMILL_LOG=info", NULL}};
    run_result r = run(opts, "tune", "io", dir, "--seconds", "1", "--size", "64MiB", "--quiet", NULL);
    RUN_OK(&r);
    tm_json_doc *doc;
    tm_disk disk;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, strlen(r.out), "tune", 0, 0));
    const tm_json *aio = tm_json_get(tm_json_root(doc), "aio");
    assert_int_equal(setenv("TIDEMILL_PROFILE", profile, 1), 0);
    assert_true(tm_profile_get_disk(dir, &disk));
    assert_int_equal(disk.queue_depth, tm_json_get(aio, "queue_depth")->integer);
    assert_int_equal(disk.block_bytes, tm_json_get(aio, "block_size")->integer);
    tm_json_free(doc);
    run_free(&r);
    disk.queue_depth = 5, disk.block_bytes = 192 << 10;
    RUN_EXPECT_STATUS(tm_profile_put_disk(dir, &disk));
    assert_int_equal(unsetenv("TIDEMILL_PROFILE"), 0);
    expect_requests(config, &opts, dir, NULL, " (5 x 192.00 KiB)");
    expect_requests(config, &opts, dir, "aio={\"queue_depth\": 3, \"block_size\": 131072}", " (3 x 128.00 KiB)");
}

/* A disk that is said to be faster than any. A run teaches what it is when enough of its time went by in waiting for
 * it: a faster disk needs more steps. */
static void test_disk_is_learned(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 1), *profile = run_path(dir, "profile.json");
    assert_int_equal(setenv("TIDEMILL_PROFILE", profile, 1), 0);
    tm_disk disk = {.read_bps = 1e13, .write_bps = 1e13}, learned = {0};
    RUN_EXPECT_STATUS(tm_profile_put_disk(dir, &disk));
    const run_opts opts = {.env = (const char *[]){run_format("TIDEMILL_PROFILE=%s", profile), NULL}, .timeout_s = 100};
    for (unsigned steps = 6; learned.in_training == 0 && steps < 400; steps *= 4) {
        run_result r = run(opts, "train", config, "--resume", "never", "--set", run_format("max_steps=%u", steps),
                           "--set", run_format("output_dir=%s", run_path(dir, "out")), "--set", "memory.cache=none",
                           "--set", "zero_optimization.offload_param.device=nvme", "--set",
                           run_format("zero_optimization.offload_param.nvme_path=%s", dir), "--set",
                           "aio={\"queue_depth\": 1, \"block_size\": 16384}", NULL);
        RUN_OK(&r);
        run_free(&r);
        run_remove(run_path(dir, "out"));
        assert_true(tm_profile_get_disk(dir, &learned));
    }
    assert_int_equal(unsetenv("TIDEMILL_PROFILE"), 0);
    assert_true(learned.in_training > 0 && learned.in_training < 0.5 && learned.read_bps == 1e13);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_means_are_kept, run_clean),
        cmocka_unit_test(test_pauses_do_not_count),
        cmocka_unit_test_teardown(test_short_run_teaches_nothing, run_clean),
        cmocka_unit_test_teardown(test_a_long_run_times_first, run_clean),
        cmocka_unit_test_teardown(test_products_say_nothing_of_memory, run_clean),
        cmocka_unit_test_teardown(test_tuned_requests_are_used, run_clean),
        cmocka_unit_test_teardown(test_disk_is_learned, run_clean),
    };
    return cmocka_run_group_tests_name("train_learn", tests, NULL, NULL);
}

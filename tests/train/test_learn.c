/* What a run teaches `plan`: the profile afterwards holds what operations took in that run, by its own trace. */
#include "io/io.h"
#include "run.h"

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

/* The trace times an operation around the call, the profile inside it: they differ by a little. */
static void expect_close(double profile, double trace, const char *what) {
    if (profile < 0.9 * trace || profile > 1.0 * trace + 1e-6)
        fail_msg("%s: %g s in the profile, %g s in the trace", what, profile, trace);
}

static void test_means_are_kept(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 40), *profile = run_path(dir, "profile.json");
    const char *trace = run_path(dir, "trace.json");
    const run_opts opts = {.env = (const char *[]){run_format("TIDEMILL_PROFILE=%s", profile), NULL}, .timeout_s = 100};
    run_result r = run(opts, "train", config, "--resume", "never", "--set",
                       run_format("output_dir=%s", run_path(dir, "out")), "--trace", trace, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_json_doc *traced, *kept;
    const tm_json *t = parse(trace, &traced), *p = parse(profile, &kept);
    expect_close(in_profile(p, "forward block.0.attn_in "), mean_in_trace(t, "forward layers", ".attn_in "), "attn_in");
    expect_close(in_profile(p, "backward block.1.attn "), mean_in_trace(t, "backward layers", ".attn "), "attn");
    tm_json_free(traced);
    tm_json_free(kept);
}

/* A short run says too little. */
static void test_short_run_teaches_nothing(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = write_config(dir, 3), *profile = run_path(dir, "profile.json");
    const run_opts opts = {.env = (const char *[]){run_format("TIDEMILL_PROFILE=%s", profile), NULL}};
    run_result r = run(opts, "train", config, "--resume", "never", "--set",
                       run_format("output_dir=%s", run_path(dir, "out")), NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_false(tm_path_exists(profile));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_means_are_kept, run_clean),
        cmocka_unit_test_teardown(test_short_run_teaches_nothing, run_clean),
    };
    return cmocka_run_group_tests_name("train_learn", tests, NULL, NULL);
}

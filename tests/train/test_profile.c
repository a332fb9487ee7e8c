/* --profile: the seconds add up, every sort of operation is there, and nothing else changes. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"
enum { STEPS = 5 };

static const char *job(const char *dir) {
    const char *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, "config.json");
    tm_st *golden = tensors_open(MODEL "/golden.safetensors");
    rows_write(rows, golden, 0, 20, 32, false);
    tm_st_close(golden);
    run_write(config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"max_steps\": %d, \"seed\": 7,\n"
                                 " \"gradient_accumulation_steps\": 2, \"memory\": {\"cache\": \"none\"}}\n",
                                 MODEL, rows, STEPS));
    return config;
}

static run_result train(const char *config, const char *output, const char *update, const char *flag) {
    run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s", output), "--set",
                       run_format("memory.update=%s", update), flag, NULL);
    RUN_OK(&r);
    return r;
}

/* The line {"event": "profile"} of a log, parsed; NULL: there is none. */
static tm_json_doc *profile_line(const char *output) {
    size_t len;
    char *text = run_read(run_path(output, "log.jsonl"), &len), *at = strstr(text, "\"event\":\"profile\"");
    tm_json_doc *doc = NULL;
    if (!at) at = strstr(text, "\"event\": \"profile\"");
    if (at) {
        while (at > text && at[-1] != '\n') at--;
        RUN_EXPECT_STATUS(tm_json_parse(&doc, at, strcspn(at, "\n"), "log.jsonl", 0, 0));
    }
    free(text);
    return doc;
}

static double number(const tm_json *o, const char *key) {
    const tm_json *n = tm_json_get(o, key);
    if (!n || n->type != TM_JSON_NUMBER) fail_msg("%s is not there", key);
    assert_true(n->number >= 0);
    return n->number;
}

static void near(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 1e-6 + 1e-3 * want)) fail_msg("%s: %.9g, not %.9g", what, got, want);
}

static void check(const tm_json *p) {
    static const char *const rows[] = {"batch",     "forward embed", "forward attn",  "forward head",
                                       "objective", "backward head", "backward attn", "backward embed",
                                       "finish",    "norm",          "update"};
    const tm_json *compute = tm_json_get(p, "compute_seconds"), *wait = tm_json_get(p, "wait_seconds");
    const tm_json *busy = tm_json_get(p, "busy_seconds");
    double sum = 0, step = number(p, "step_seconds");
    assert_true(compute && wait && busy);
    for (unsigned i = 0; i < TM_COUNT(rows); i++) (void)number(compute, rows[i]);
    for (const tm_json *n = compute->child; n; n = n->next) sum += n->number;
    near("operations", sum, number(wait, "compute"));
    double all = number(wait, "compute") + number(wait, "disk_read") + number(wait, "disk_write") +
                 number(wait, "comm") + number(p, "other_seconds");
    near("the parts of a step", all, step);
    assert_true(number(busy, "disk_read") > 0 && number(busy, "disk_write") > 0);
    assert_true(number(busy, "comm") == 0 && tm_json_get(p, "comm_seconds")->count == 0);
    assert_int_equal(number(p, "steps"), STEPS);
}

static void the_seconds_add_up(void **state) {
    (void)state;
    static const char *const updates[] = {"U", "F"};
    const char *dir = run_dir(), *config = job(dir);
    for (unsigned i = 0; i < TM_COUNT(updates); i++) {
        const char *with = run_path(dir, run_format("with-%u", i)), *without = run_path(dir, run_format("out-%u", i));
        run_result r = train(config, with, updates[i], "--profile");
        assert_non_null(strstr(r.err, "where the seconds of a step went (mean of 5 steps"));
        assert_non_null(strstr(r.err, "waiting for reads"));
        assert_non_null(strstr(r.err, "  backward head"));
        assert_null(strstr(r.err, "other ranks"));
        run_free(&r);
        tm_json_doc *doc = profile_line(with);
        assert_non_null(doc);
        check(tm_json_root(doc));
        tm_json_free(doc);
        r = train(config, without, updates[i], NULL);
        assert_null(strstr(r.err, "where the seconds"));
        run_free(&r);
        assert_null(profile_line(without));
        train_log a = train_log_read(with), b = train_log_read(without);
        assert_string_equal(a.hash, b.hash);
    }
}

/* The sums of the steps' own lines, to the same clock. */
static void it_agrees_with_the_steps(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir), *output = run_path(dir, "out");
    run_result r = train(config, output, "U", "--profile");
    run_free(&r);
    size_t len;
    char *text = run_read(run_path(output, "log.jsonl"), &len);
    double compute = 0;
    for (char *at = text; (at = strstr(at, "\"compute\""));) {
        at += strlen("\"compute\"");
        compute += strtod(at + strspn(at, ": "), NULL);
    }
    free(text);
    tm_json_doc *doc = profile_line(output);
    double mean = number(tm_json_get(tm_json_root(doc), "wait_seconds"), "compute");
    near("compute", compute - mean, mean * STEPS); /* the profile's own line was added as well */
    tm_json_free(doc);
}

/* Copies of an arena are waited for, and are no part of the rest. */
static void copies_count(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir), *output = run_path(dir, "out");
    run_result r = run((run_opts){0}, "train", config, "--profile", "--set", run_format("output_dir=%s", output),
                       "--set", "memory.device=cpu-arena", "--set", "memory.device_budget=256MiB", "--set",
                       "memory.device_bandwidth=5e7", "--set", "memory.update=U", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "waiting for copies"));
    run_free(&r);
    tm_json_doc *doc = profile_line(output);
    const tm_json *p = tm_json_root(doc), *wait = tm_json_get(p, "wait_seconds"),
                  *busy = tm_json_get(p, "busy_seconds");
    double copy = number(wait, "copy"), step = number(p, "step_seconds");
    assert_true(copy > 0 && number(busy, "copy_in") > 0 && number(busy, "copy_out") > 0);
    near("the parts of a step",
         number(wait, "compute") + number(wait, "disk_read") + number(wait, "disk_write") + copy +
             number(wait, "comm") + number(p, "other_seconds"),
         step);
    tm_json_free(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_seconds_add_up, run_clean),
        cmocka_unit_test_teardown(it_agrees_with_the_steps, run_clean),
        cmocka_unit_test_teardown(copies_count, run_clean),
    };
    return cmocka_run_group_tests_name("train_profile", tests, NULL, NULL);
}

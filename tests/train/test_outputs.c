/* What a run leaves behind, and what `plan` says before it. */
#include "run.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

typedef paged_scene scene;

static scene scene_open(void) {
    return paged_scene_open("\"precision\": \"fp32\", \"max_steps\": 4", "\"cache\": \"none\"");
}

static bool exists(const char *dir, const char *name) {
    return access(run_path(dir, name), F_OK) == 0;
}

static tm_json_doc *parse(const char *text, size_t len) {
    tm_json_doc *doc;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "output", 0, 0));
    return doc;
}

static bool file_says(const char *path, const char *text) {
    size_t n;
    char *all = run_read(path, &n);
    bool found = strstr(all, text) != NULL;
    free(all);
    return found;
}

/* A run that was killed after a checkpoint has left its page, and goes on bit for bit. */
static void test_page_at_checkpoints(void **state) {
    (void)state;
    scene s = scene_open();
    const char *env[] = {"TIDEMILL_FAULT=kill_before_export:2:kill:once", NULL};
    run_result r =
        run((run_opts){.env = env}, "train", s.config, "--set", "save_steps=2", "--set", "commit_steps=1", NULL);
    assert_int_equal(r.status, 128 + SIGKILL);
    run_free(&r);
    assert_true(file_says(run_path(s.output, "report.html"), "2 of 4"));
    assert_true(file_says(run_path(s.output, "report.html"), "One step, as it was planned"));
    r = run((run_opts){0}, "train", s.config, "--set", "save_steps=2", "--set", "commit_steps=1", NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_true(file_says(run_path(s.output, "report.html"), "4 of 4"));
    assert_true(file_says(run_path(s.output, "report.html"), "One step, as it was planned"));
    const char *whole = run_path(s.dir, "whole");
    r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s", whole), NULL);
    RUN_OK(&r);
    run_free(&r);
    train_log a = train_log_read(s.output), b = train_log_read(whole);
    assert_string_equal(a.hash, b.hash);
}

/* Page, model card, HF Trainer's state, TensorBoard's folder; then `report` and `top` of the same run. A README.md of the
 * user's own stays. */
static void test_reports(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r =
        run((run_opts){0}, "train", s.config, "--set", "save_steps=2", "--set", "report_to=tensorboard", NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_true(file_says(run_path(s.output, "report.html"), "4 of 4"));
    assert_true(file_says(run_path(s.output, "README.md"), "base_model:"));
    assert_true(file_says(run_path(s.output, "trainer_state.json"), "\"global_step\": 4"));
    assert_true(file_says(run_path(s.output, "checkpoint-2/trainer_state.json"), "\"global_step\": 2"));
    assert_true(exists(s.output, "runs"));
    r = run((run_opts){0}, "top", s.output, "--json", NULL);
    RUN_OK(&r);
    tm_json_doc *doc = parse(r.out, r.out_len);
    assert_int_equal(tm_json_get(tm_json_root(doc), "step")->integer, 4);
    assert_int_equal(tm_json_get(tm_json_root(doc), "total_steps")->integer, 4);
    assert_true(tm_json_is(tm_json_get(tm_json_root(doc), "status"), "finished"));
    tm_json_free(doc);
    run_free(&r);
    r = run((run_opts){0}, "report", s.output, s.output, "--out", run_path(s.dir, "both.html"), NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_true(file_says(run_path(s.dir, "both.html"), "2 runs beside each other"));
    run_write(run_path(s.output, "README.md"), "mine\n");
    r = run((run_opts){0}, "train", s.config, "--resume", "never", NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_true(file_says(run_path(s.output, "README.md"), "mine\n"));
}

/* save_total_limit keeps the latest; keep_state keeps what run.json names. */
static void test_checkpoints_and_state(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = run((run_opts){0}, "train", s.config, "--set", "save_steps=1", "--set", "save_total_limit=2",
                       "--set", "keep_state=true", NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_false(exists(s.output, "checkpoint-1"));
    assert_true(exists(s.output, "checkpoint-2/model.safetensors"));
    assert_true(exists(s.output, "checkpoint-3/config.json"));
    assert_true(exists(s.output, "model.safetensors")); /* the last step's model is the run's */
    size_t len;
    char *text = run_read(run_path(s.output, "run.json"), &len);
    tm_json_doc *doc = parse(text, len);
    const tm_json *dirs = tm_json_get(tm_json_root(doc), "run_directories");
    assert_non_null(dirs);
    assert_int_equal(dirs->count, 1);
    assert_true(exists(dirs->child->text, "weight_hi"));
    assert_true(tm_json_is(tm_json_get(tm_json_root(doc), "status"), "finished"));
    tm_json_free(doc);
    free(text);
}

/* While the run is stopped in its second step: its log says that the first took 900 seconds and some. */
static void say_that_it_took_long(void *output) {
    static const char key[] = "\"step_seconds\": ";
    const char *log = run_path(output, "log.jsonl");
    char *text = run_read(log, NULL), *at = strstr(text, key);
    assert_non_null(at);
    at += strlen(key);
    assert_true(strspn(at, "0123456789.") > 5);
    memcpy(at, "900.", 4);
    run_write(log, text);
    free(text);
}

/* A run that takes long enough asks its held-out prompts by itself, of what it began with and of what it made; one that does not
 * leaves them to `report`. */
static void test_held_out_answers(void **state) {
    (void)state;
    static const char sample[] = TM_TEST_FIXTURES "/../../examples/skill/train.jsonl";
    const char *dir = run_dir(), *rows = run_first_lines(sample, dir, "rows.jsonl", 40);
    for (int i = 0; i < 2; i++) {
        const char *out = run_path(dir, i ? "long" : "short"), *answers = run_path(out, "report_answers.json");
        run_opts o = {0};
        if (i)
            o = (run_opts){
                .stop_at = "kill_op:200", .at_stop = say_that_it_took_long, .at_stop_ctx = (void *)(uintptr_t)out};
        run_result r = run(o, "train", "--model", TM_TEST_FIXTURES "/../../examples/tiny", "--dataset", rows,
                           "--tuner_type", "lora", "--split_dataset_ratio", "0.1", "--seq_len", "64", "--max_steps",
                           "3", "--output_dir", out, NULL);
        RUN_OK(&r);
        run_free(&r);
        assert_true(file_says(answers, "\"wanted_ids\": ["));
        assert_int_equal(file_says(answers, "\"before\": \""), i);
        assert_int_equal(file_says(answers, "\"after\": \""), i);
        assert_int_equal(file_says(run_path(out, "report.html"), "<dt>after"), i);
    }
}

static void test_nothing_else_stays(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = run((run_opts){0}, "train", s.config, NULL);
    RUN_OK(&r);
    run_free(&r);
    if (access(s.offload, F_OK) == 0) assert_int_equal(run_entries(s.offload), 0);
}

static const tm_json *plan(const scene *s, const char *budget, int status, tm_json_doc **doc) {
    run_result r =
        run((run_opts){0}, "plan", s->config, "--json", "--set", run_format("memory.host_budget=%s", budget), NULL);
    assert_int_equal(r.status, status);
    *doc = parse(r.out, r.out_len);
    run_free(&r);
    return tm_json_root(*doc);
}

/* The minimum that plan reports is the one that train enforces, whatever the budget; its bytes are those that a step
 * moves. */
static bool holds(const tm_json *path, const char *kind) {
    for (const tm_json *k = tm_json_get(path, "holds")->child; k; k = k->next)
        if (tm_json_is(k, kind)) return true;
    return false;
}

static void set_paths(const scene *s, const char *params) {
    char *text = run_read(s->config, NULL);
    const char *one = run_format("\"nvme_path\": \"%s\"", s->offload);
    char *first = strstr(text, one);
    *first = 0;
    run_write(s->config, run_format("%s\"nvme_path\": \"%s\"%s", text, params, first + strlen(one)));
    free(text);
}

/* Two sections that name two paths: plan says what goes where, and which of them has no room for its part. */
static void test_plan_tells_paths_apart(void **state) {
    (void)state;
    scene s = scene_open();
    tm_json_doc *doc;
    const char *params = run_path(s.dir, "small");
    assert_int_equal(mkdir(params, 0700), 0);
    set_paths(&s, params);
    const tm_json *r = plan(&s, "unlimited", 0, &doc), *paths = tm_json_get(r, "paths");
    assert_int_equal(paths->count, 2);
    const tm_json *p = paths->child, *o = p->next;
    assert_string_equal(tm_json_get(p, "path")->text, params);
    assert_string_equal(tm_json_get(o, "path")->text, s.offload);
    assert_true(holds(p, "weight_hi") && holds(p, "activation") && !holds(p, "exp_avg") && !holds(p, "grad"));
    assert_true(holds(o, "exp_avg") && holds(o, "exp_avg_sq") && holds(o, "grad") && !holds(o, "weight_hi"));
    int64_t of_params = tm_json_get(p, "bytes")->integer, of_optimizer = tm_json_get(o, "bytes")->integer;
    assert_true(of_params > 0 && of_optimizer > of_params);
    assert_int_equal(of_params + of_optimizer, tm_json_get(r, "disk_bytes")->integer);
    tm_json_free(doc);
    run_result x = run((run_opts){0}, "plan", s.config, NULL);
    RUN_OK(&x);
    assert_non_null(strstr(x.out, run_format("%s: weight_hi, activation", params)));
    run_free(&x);
    if (mount("none", params, "tmpfs", 0, "size=64k") != 0)
        TEST_SKIP("a small tmpfs cannot be mounted: %s", strerror(errno));
    x = run((run_opts){0}, "plan", s.config, "--set", "memory.allow_tmpfs=true", NULL);
    run_result t = run((run_opts){0}, "train", s.config, "--set", "memory.allow_tmpfs=true", NULL);
    assert_int_equal(umount(params), 0);
    if (x.status != 2 || !strstr(x.err, "the offload files of the parameters need") ||
        !strstr(x.err, run_format("free in %s;", params)))
        fail_msg("plan: exit status %d, %s", x.status, x.err);
    if (t.status != 2 || !strstr(t.err, params) || strstr(t.err, s.offload))
        fail_msg("train: exit status %d, %s", t.status, t.err);
    run_free(&x);
    run_free(&t);
}

static void test_plan_is_what_train_does(void **state) {
    (void)state;
    scene s = scene_open();
    tm_json_doc *small, *large;
    const tm_json *refused = plan(&s, "1MiB", 2, &small), *fits = plan(&s, "256MiB", 0, &large);
    int64_t minimum = tm_json_get(refused, "minimum_host_bytes")->integer;
    assert_int_equal(tm_json_get(fits, "minimum_host_bytes")->integer, minimum);
    assert_false(tm_json_get(refused, "fits")->boolean);
    assert_true(tm_json_get(fits, "fits")->boolean);
    assert_false(exists(s.dir, "out")); /* planning leaves nothing */
    assert_int_equal(run_train_minimum(s.config, s.output, SETS("memory.cache=none")), minimum);
    train_log log = run_train(s.config, s.output, 256 << 20, NULL, SETS("memory.host_budget=256MiB"));
    assert_int_equal(tm_json_get(fits, "read_bytes_per_step")->integer, log.step[log.steps - 1].read_bytes);
    assert_int_equal(tm_json_get(fits, "write_bytes_per_step")->integer, log.step[log.steps - 1].write_bytes);
    tm_json_free(small);
    tm_json_free(large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_reports, run_clean),
        cmocka_unit_test_teardown(test_held_out_answers, run_clean),
        cmocka_unit_test_teardown(test_page_at_checkpoints, run_clean),
        cmocka_unit_test_teardown(test_checkpoints_and_state, run_clean),
        cmocka_unit_test_teardown(test_nothing_else_stays, run_clean),
        cmocka_unit_test_teardown(test_plan_is_what_train_does, run_clean),
        cmocka_unit_test_teardown(test_plan_tells_paths_apart, run_clean),
    };
    return cmocka_run_group_tests_name("train_outputs", tests, NULL, NULL);
}

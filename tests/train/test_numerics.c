/* Numbers that go wrong: results that a machine computes wrongly are found by computing them twice, gradients that are
 * not finite are skipped, counted and explained, losses that stand out are reported. */
#include "run.h"
#include "tests/support/skip.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROW = 16 };

typedef struct scene {
    const char *dir, *rows, *config, *output, *offload, *log;
} scene;

/* `rows` rows, the same again and again, but for `odd`. */
static void write_rows(const char *path, unsigned rows, unsigned odd) {
    static const char *const names[] = {"input_ids", "labels"};
    int64_t v[ROW];
    uint32_t t[2];
    tm_st_writer *w;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, path));
    for (int k = 0; k < 2; k++)
        RUN_EXPECT_STATUS(tm_st_writer_add(w, names[k], TM_FMT_I64, 2, (uint64_t[]){rows, ROW}, &t[k]));
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < ROW; i++) v[i] = r == odd ? 255 - (int64_t)(i * 37 % 101) : 3 + i % 4;
        for (int k = 0; k < 2; k++) RUN_EXPECT_STATUS(tm_st_writer_write(w, t[k], r * sizeof v, v, sizeof v));
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
}

static scene scene_open(unsigned rows, unsigned odd) {
    scene s = {.dir = run_dir()};
    const char *model = run_path(s.dir, "model");
    s.rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    s.log = run_path(s.output, "log.jsonl");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", model);
    write_rows(s.rows, rows, odd);
    run_write(s.config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 16},"
                                   " \"precision\": \"bf16\", \"max_steps\": 4, \"commit_steps\": 1,"
                                   " \"memory\": {\"cache\": \"none\"}, \"learning_rate\": 0.01,"
                                   " \"lr_scheduler_type\": \"constant\", \"output_dir\": \"%s\","
                                   " \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\":"
                                   " \"%s\"}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                                   model, s.rows, s.output, s.offload, s.offload));
    return s;
}

static run_result train(const scene *s, const char *fault, const char *every, const char *update, const char *set) {
    const char *env[] = {fault, NULL};
    return run((run_opts){.env = fault ? env : NULL}, "train", s->config, "--quiet", "--replay-every", every, "--set",
               run_format("memory.update=%s", update), "--set", set ? set : "seed=42", NULL);
}

static void start_over(const scene *s) {
    run_remove(s->output);
    run_remove(s->offload);
}

/* Everything is computed twice, and nothing is objected to; the bits are those of once. */
static const char *undisturbed(const scene *s, const char *update) {
    const char *hash = NULL;
    for (unsigned i = 0; i < 2; i++) {
        run_result r = train(s, NULL, i ? "1" : "0", update, NULL);
        RUN_OK(&r);
        run_free(&r);
        train_log log = train_log_read(s->output);
        if (hash) assert_string_equal(log.hash, hash);
        hash = run_format("%s", log.hash);
        start_over(s);
    }
    return hash;
}

static void a_wrong_result_is_caught_by_doing_it_twice(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    static const unsigned at[] = {60, 77, 83, 97, 111};
    unsigned unseen = 0;
    scene s = scene_open(4, 4);
    for (unsigned u = 0; u < 2; u++) {
        const char *update = u ? "F" : "U", *hash = undisturbed(&s, update);
        for (unsigned i = 0; i < TM_COUNT(at); i++) {
            const char *fault = run_format("TIDEMILL_FAULT=flip_result:%u:bit:once", at[i]);
            run_result r = train(&s, fault, "1", update, NULL);
            if (r.status != 1 || !strstr(r.err, "was computed twice from the same bytes"))
                fail_msg("%s, update %s: exit status %d\n%s", fault, update, r.status, r.err);
            run_free(&r);
            r = train(&s, NULL, "2", update, NULL); /* from the last commit, which is good */
            RUN_OK(&r);
            run_free(&r);
            assert_string_equal(train_log_read(s.output).hash, hash);
            start_over(&s);
            r = train(&s, fault, "0", update, NULL);
            RUN_OK(&r);
            run_free(&r);
            unseen += strcmp(train_log_read(s.output).hash, hash) != 0;
            start_over(&s);
        }
    }
    assert_true(unseen >= 1); /* nobody else would have seen it */
}

static const char *tail_of(const char *text) {
    size_t n = strlen(text);
    return n > 800 ? text + n - 800 : text;
}

static void fifty_steps_that_are_not_finite_end_it(void **state) {
    (void)state;
    static const char set[] = "max_steps=70";
    scene s = scene_open(4, 4);
    for (unsigned u = 0; u < 2; u++) {
        const char *update = u ? "F" : "U";
        char *text = run_read(s.config, NULL), *lr = strstr(text, "0.01"),
             *commit = strstr(text, "\"commit_steps\": 1,");
        assert_true(lr || u);
        if (lr) memcpy(lr, "1e30", 4), memcpy(commit, "\"commit_steps\":99,", 18);
        run_write(s.config, text);
        free(text);
        run_result r = train(&s, NULL, "0", update, set);
        if (r.status != 1 || !strstr(r.err, "50 steps in a row had no finite loss or gradient") ||
            !strstr(r.err, "the first of this one is the ") || !strstr(r.err, ".weight"))
            fail_msg("update %s: exit status %d\n%s", update, r.status, tail_of(r.err));
        run_free(&r);
        size_t len;
        text = run_read(s.log, &len);
        unsigned skipped = 0;
        for (char *p = text; (p = strstr(p, "\"skipped\": true")); p++) skipped++;
        assert_int_equal(skipped, 50);
        assert_non_null(strstr(text, "\"event\": \"commit\"")); /* the skipped steps left the state whole */
        free(text);
        r = train(&s, NULL, "0", update, set);
        if (r.status != 1 || !strstr(r.err, "going on from step 51") || !strstr(r.err, "step 52"))
            fail_msg("update %s, again: exit status %d\n%s", update, r.status, r.err);
        run_free(&r);
        start_over(&s);
    }
}

/* With the least arena not every way of computing a step again fits: the one that was taken does. How much less each
 * way takes with one thread is another matter than with two. */
static void found_in_a_small_arena(void) {
    const char *const sets[] = {"memory.device=cpu-arena",
                                "gradient_accumulation_steps=2",
                                "max_steps=70",
                                "commit_steps=99",
                                "memory.update=U",
                                NULL};
    scene s = scene_open(4, 4);
    uint64_t least = run_train_device_minimum(s.config, s.output, sets);
    run_result r = run((run_opts){0}, "train", s.config, "--quiet", "--set", sets[0], "--set", sets[1], "--set",
                       sets[2], "--set", sets[3], "--set", sets[4], "--set", "learning_rate=1e30", "--set",
                       run_format("memory.device_budget=%llu", (unsigned long long)least), NULL);
    if (r.status != 1 || !strstr(r.err, "50 steps in a row") || !strstr(r.err, "the first of this one is the ") ||
        !strstr(r.err, ".weight"))
        fail_msg("exit status %d\n%s", r.status, tail_of(r.err));
    run_free(&r);
}

static void what_is_not_finite_is_found_in_a_small_arena(void **state) {
    static const char *const threads[] = {"1", "2"};
    const char *was = getenv("OMP_NUM_THREADS"), *kept = was ? run_format("%s", was) : NULL;
    (void)state;
    for (unsigned i = 0; i < TM_COUNT(threads); i++) {
        assert_int_equal(setenv("OMP_NUM_THREADS", threads[i], 1), 0);
        found_in_a_small_arena();
    }
    if (kept)
        (void)setenv("OMP_NUM_THREADS", kept, 1);
    else
        (void)unsetenv("OMP_NUM_THREADS");
}

static void a_loss_that_stands_out_is_reported_with_its_rows(void **state) {
    (void)state;
    scene s = scene_open(48, 41);
    run_result r = train(&s, NULL, "0", "U", "max_steps=48");
    RUN_OK(&r);
    run_free(&r);
    char *text = run_read(s.log, NULL), *spike = strstr(text, "{\"event\": \"spike\"");
    assert_non_null(spike);
    assert_null(strstr(spike + 1, "{\"event\": \"spike\""));
    assert_true(strncmp(spike, "{\"event\": \"spike\", \"step\": 42,", 30) == 0);
    char *rows = strstr(spike, "\"rows\": [41]}");
    assert_non_null(rows);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_wrong_result_is_caught_by_doing_it_twice, run_clean),
        cmocka_unit_test_teardown(fifty_steps_that_are_not_finite_end_it, run_clean),
        cmocka_unit_test_teardown(what_is_not_finite_is_found_in_a_small_arena, run_clean),
        cmocka_unit_test_teardown(a_loss_that_stands_out_is_reported_with_its_rows, run_clean),
    };
    return cmocka_run_group_tests_name("train_numerics", tests, NULL, NULL);
}

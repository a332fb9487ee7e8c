/* eval_tasks: what questions come to inside training is what `eval --task` makes of the checkpoint of that step, in the same
 * bits, and the run's own state is as without; the best is chosen by it; a run that was killed at it says the same; it is in the
 * budget; what is refused. */
#include "run.h"
#include "tests/support/skip.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"
#define CHATS TM_TEST_FIXTURES "/../../examples/skill/heldout.jsonl"

enum { STEPS = 6, EVERY = 2, MOST = 8 };

typedef struct scene {
    const char *dir, *config, *out, *picks, *asks;
} scene;

/* Choices of letters behind short questions: which of them is likeliest changes from step to step. */
static void write_picks(const char *path) {
    static const char *const word[] = {"in", "out", "B14", "left", "boxes", "Phoenix", "1247", "the tide"};
    tm_buf b = {0};
    for (unsigned i = 0; i < 32; i++)
        RUN_EXPECT_STATUS(
            tm_buf_printf(&b, "{\"prompt\": \"Ship %u went\", \"choices\": [\"%s\", \"%s\", \"%s\"], \"gold\": %u}\n",
                          i * 37, word[i % 8], word[(i + 3) % 8], word[(i / 8 + i + 5) % 8], i % 3));
    run_write(path, b.data);
    tm_buf_free(&b);
}

static scene scene_open_in(const char *precision, const char *more) {
    scene s = {.dir = run_dir()};
    const char *train = run_first_lines(CHATS, s.dir, "train.jsonl", 6), *rows = run_path(s.dir, "rows.jsonl");
    s.config = run_path(s.dir, "config.json");
    s.out = run_path(s.dir, "out");
    s.picks = run_path(s.dir, "picks.jsonl");
    s.asks = run_path(s.dir, "asks.json");
    write_picks(s.picks);
    run_write(
        rows,
        "{\"q\": \"berth 14\", \"a\": \"B14\"}\n{\"q\": \"berth 7\", \"a\": \"B7\"}\n{\"q\": \"one\", \"a\": \"1\"}\n");
    run_write(
        s.asks,
        run_format("{\"data\": \"%s\", \"doc_to_text\": \"{{q}}\", \"doc_to_target\": \"a\", \"max_new_tokens\": 6,"
                   " \"metric_list\": [\"exact_match\", \"numeric\"], \"filter_list\": [{\"name\": \"b\","
                   " \"filter\": [{\"function\": \"regex\", \"regex_pattern\": \"([A-Z0-9]+)\"}]}]}",
                   rows));
    run_write(s.config,
              run_format("{\"model\": \"" TINY "\", \"output_dir\": \"%s\", \"max_steps\": %d, \"precision\": \"%s\",\n"
                         " \"data\": {\"train\": \"%s\", \"seq_len\": 96}, \"eval_steps\": %d, \"save_steps\": %d,\n"
                         " \"eval_tasks\": [\"%s\", \"%s\"], \"commit_steps\": 2, \"per_device_train_batch_size\": 2,\n"
                         " \"lr_scheduler_type\": \"constant\", \"learning_rate\": 5e-3%s}\n",
                         s.out, STEPS, precision, train, EVERY, EVERY, s.picks, s.asks, more));
    return s;
}

static scene scene_open(const char *more) {
    return scene_open_in("fp32", more);
}

/* "eval_NAME" of the evaluation of each step, as text: bits count. */
static unsigned logged(const scene *s, const char *name, char text[STEPS + 1][32]) {
    size_t len;
    unsigned n = 0;
    char *all = run_read(run_path(s->out, "log.jsonl"), &len);
    memset(text, 0, (STEPS + 1) * sizeof *text);
    for (char *at = all; *at; at += strcspn(at, "\n") + 1) {
        tm_json_doc *doc;
        RUN_EXPECT_STATUS(tm_json_parse(&doc, at, strcspn(at, "\n"), "log.jsonl", 0, 0));
        const tm_json *o = tm_json_root(doc), *v = tm_json_get(o, run_format("eval_%s", name));
        if (tm_json_is(tm_json_get(o, "event"), "eval") && v)
            n++, snprintf(text[tm_json_get(o, "step")->integer], 32, "%.31s", v->text);
        tm_json_free(doc);
    }
    free(all);
    return n;
}

/* What `eval --task` says of a model, or of an adapter. */
static const char *judged(const scene *s, bool adapter, const char *folder, const char *task, const char *metric,
                          const char *limit) {
    run_result r = run((run_opts){0}, "eval", "--config", s->config, adapter ? "--adapter" : "--model", folder,
                       "--task", s->picks, "--task", s->asks, "--limit", limit, "--json", NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "eval", 0, 0));
    const tm_json *v = tm_json_get(tm_json_get(tm_json_get(tm_json_root(doc), "results"), task), metric);
    if (!v) fail_msg("no %s of %s in %s", metric, task, r.out);
    const char *text = run_format("%s", v->text);
    tm_json_free(doc);
    run_free(&r);
    return text;
}

static run_result train(const scene *s, const run_opts *o, const char *const *sets) {
    const char *arguments[24] = {"train", s->config, "--quiet"};
    for (unsigned n = 3; *sets && n < 22; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    return run_argv(o ? o : &(run_opts){0}, arguments);
}

static void train_ok(const scene *s, const char *const *sets) {
    run_result r = train(s, NULL, sets);
    RUN_OK(&r);
    run_free(&r);
}

static const char best_by_task[] =
    ", \"metric_for_best_model\": \"eval_picks_acc_norm\", \"load_best_model_at_end\": true";

/* Of those that are alike the first. */
static int best_of(char got[STEPS + 1][32]) {
    int best = EVERY;
    for (int step = EVERY; step <= STEPS; step += EVERY)
        if (strtod(got[step], NULL) > strtod(got[best], NULL)) best = step;
    return best;
}

/* ---- the same as of the checkpoint ------------------------------------------------------------------------------- */

static void check_scores(const char *precision, const char *more, bool adapter) {
    static const char *const of[][3] = {{"picks_acc", "picks", "acc,none"},
                                        {"picks_acc_norm", "picks", "acc_norm,none"},
                                        {"asks_exact_match_b", "asks", "exact_match,b"},
                                        {"asks_numeric_b", "asks", "numeric,b"}};
    scene s = scene_open_in(precision, more);
    const char *hash[2];
    bool moved = false;
    for (int with = 0; with < 2; with++) {
        train_ok(&s, SETS(with ? "save_total_limit=9" : "eval_strategy=no", "eval_tasks_limit=24"));
        hash[with] = run_format("%s", train_log_read(s.out).hash);
        if (!with) run_remove(s.out);
    }
    assert_string_equal(hash[0], hash[1]); /* the state knows nothing of it */
    for (size_t i = 0; i < TM_COUNT(of); i++) {
        char got[STEPS + 1][32];
        assert_int_equal(logged(&s, of[i][0], got), STEPS / EVERY);
        for (int step = EVERY; step <= STEPS; step += EVERY) {
            const char *folder = step == STEPS ? s.out : run_format("%s/checkpoint-%d", s.out, step);
            const char *want = judged(&s, adapter, folder, of[i][1], of[i][2], "24");
            if (strcmp(got[step], want) != 0)
                fail_msg("%s%s, %s of step %d: %s, eval --task says %s", precision, more, of[i][0], step, got[step],
                         want);
            moved |= step > EVERY && strcmp(got[step], got[step - EVERY]) != 0;
        }
    }
    if (!moved) fail_msg("%s%s: no score changed, so that nothing is proved", precision, more);
}

static void test_scores(void **state) {
    (void)state;
    check_scores("fp32", "", false);
    check_scores("bf16", "", false);
}
static void test_scores_of_adapters(void **state) {
    (void)state;
    check_scores("fp32", ", \"adapter\": {\"r\": 4}", true);
}
/* Weights in files, of the run and of what is asked. */
static void test_scores_from_files(void **state) {
    (void)state;
    check_scores("fp32",
                 ", \"memory\": {\"cache\": \"none\"}, \"zero_optimization\": {\"stage\": 3, \"offload_param\":"
                 " {\"device\": \"nvme\"}, \"offload_optimizer\": {\"device\": \"nvme\"}}",
                 false);
}

/* The first rank asks; all go by what it says, and it may be killed at it. */
static void check_ranks(const char *const *sets, bool adapter, const char *more) {
    scene s = scene_open(run_format("%s%s", best_by_task, more));
    char got[STEPS + 1][32];
    run_result r;
#ifdef TIDEMILL_FAULTS
    r = train(&s, &(run_opts){.ranks = 2, .fault = "kill_before_tasks:2:now:once"}, sets);
    assert_int_not_equal(r.status, 0);
    run_free(&r);
#endif
    r = train(&s, &(run_opts){.ranks = 2}, sets);
    RUN_OK(&r);
    run_free(&r);
    assert_int_equal(logged(&s, "picks_acc_norm", got), STEPS / EVERY);
    const char *folder = run_format("%s/checkpoint-%d", s.out, EVERY);
    assert_string_equal(judged(&s, adapter, folder, "picks", "acc_norm,none", "32"), got[EVERY]);
    assert_string_equal(judged(&s, adapter, s.out, "picks", "acc_norm,none", "32"), got[best_of(got)]);
}

static void test_ranks(void **state) {
    (void)state;
    check_ranks(SETS("strategy=zero3"), false, "");
    check_ranks(SETS("strategy=ddp"), true, ", \"adapter\": {\"r\": 4}");
}

/* ---- the best ---------------------------------------------------------------------------------------------------- */

static tm_json_doc *event(const scene *s, const char *name) {
    size_t len;
    char *text = run_read(run_path(s->out, "log.jsonl"), &len),
         *at = strstr(text, run_format("{\"event\": \"%s\"", name));
    tm_json_doc *doc;
    if (!at) fail_msg("no event %s", name);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, at, strcspn(at, "\n"), "log.jsonl", 0, 0));
    free(text);
    return doc;
}

static void test_best(void **state) {
    (void)state;
    scene s = scene_open(best_by_task);
    char got[STEPS + 1][32];
    train_ok(&s, SETS("save_total_limit=1"));
    assert_int_equal(logged(&s, "picks_acc_norm", got), STEPS / EVERY);
    tm_json_doc *doc = event(&s, "best");
    assert_int_equal(tm_json_get(tm_json_root(doc), "best_step")->integer, best_of(got));
    assert_true(tm_json_get(tm_json_root(doc), "picks_acc_norm")->number == strtod(got[best_of(got)], NULL));
    tm_json_free(doc);
    assert_string_equal(judged(&s, false, s.out, "picks", "acc_norm,none", "32"), got[best_of(got)]);
}

/* No step is better than one before by more than all: the run ends with the second evaluation. Without commits the run has no
 * files of its own, and leaves none. */
static void test_patience(void **state) {
    (void)state;
    scene s = scene_open(best_by_task);
    char got[STEPS + 1][32];
    train_ok(&s, SETS("early_stopping_patience=1", "early_stopping_threshold=1", "commit_steps=0"));
    assert_int_equal(logged(&s, "picks_acc_norm", got), 2);
    assert_int_equal(train_log_read(s.out).steps, 2 * EVERY);
    assert_int_not_equal(access(run_path(s.out, "offload"), F_OK), 0);
}

/* ---- kills ------------------------------------------------------------------------------------------------------- */

static void test_killed(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#else
    static const char *const points[] = {"kill_before_tasks:2", "kill_after_tasks:2", "kill_after_tasks:3"};
    scene whole = scene_open(best_by_task);
    char want[STEPS + 1][32], got[STEPS + 1][32];
    train_ok(&whole, SETS("save_total_limit=2"));
    (void)logged(&whole, "picks_acc_norm", want);
    for (size_t i = 0; i < TM_COUNT(points); i++) {
        scene s = scene_open(best_by_task);
        const char *env[] = {run_format("TIDEMILL_FAULT=%s:now:once", points[i]), NULL};
        run_result r = train(&s, &(run_opts){.env = env}, SETS("save_total_limit=2"));
        assert_int_equal(r.status, 128 + 9);
        run_free(&r);
        train_ok(&s, SETS("save_total_limit=2"));
        assert_int_equal(logged(&s, "picks_acc_norm", got), STEPS / EVERY);
        assert_memory_equal(got, want, sizeof got);
        assert_string_equal(train_log_read(s.out).hash, train_log_read(whole.out).hash);
        tm_json_doc *doc = event(&s, "best");
        assert_int_equal(tm_json_get(tm_json_root(doc), "best_step")->integer, best_of(want));
        tm_json_free(doc);
        for (int step = 0; step <= STEPS; step++)
            assert_int_not_equal(access(run_format("%s/checkpoint-%d.tmp", s.out, step), F_OK), 0);
    }
#endif
}

/* A signal stops at once what only reads; asked again it is done again. */
static void test_signal(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#else
    scene s = scene_open(best_by_task);
    char got[STEPS + 1][32];
    run_result r = train(&s, &(run_opts){.signal = SIGTERM, .stop_at = "kill_before_tasks:2"}, SETS("commit_steps=4"));
    if (r.status != 3 || !strstr(r.err, "step 4 is committed")) fail_msg("exit status %d: %s", r.status, r.err);
    run_free(&r);
    assert_int_equal(logged(&s, "picks_acc_norm", got), 1);
    train_ok(&s, SETS("commit_steps=4"));
    assert_int_equal(logged(&s, "picks_acc_norm", got), STEPS / EVERY);
#endif
}

/* ---- the budget -------------------------------------------------------------------------------------------------- */

static void check_budget(const char *const *sets, const char *without) {
    scene s = scene_open("");
    const char *model = run_path(s.dir, "model");
    run_random_model(model);
    run_copy(TM_TEST_FIXTURES "/tok_gpt2/tokenizer.json", run_path(model, "tokenizer.json"));
    const char *all[16] = {run_format("model=%s", model), "init=random", "max_steps=2"}, *bare[16];
    const char *text = run_path(s.dir, "text.jsonl");
    run_write(text, "{\"text\": \"the tide comes in\"}\n{\"text\": \"and goes out again\"}\n");
    all[3] = run_format("data.train=%s", text);
    size_t n = 4;
    for (; *sets; sets++) all[n++] = *sets;
    memcpy(bare, all, sizeof all);
    bare[n] = without;
    uint64_t least = run_train_minimum(s.config, s.out, all), other = run_train_minimum(s.config, s.out, bare);
    assert_true(least > other + (1 << 20)); /* a cache of sixteen questions, at the least */
    all[n] = run_format("memory.host_budget=%llu", (unsigned long long)least - 1);
    run_result r = train(&s, NULL, all);
    if (r.status != 2 || !strstr(r.err, "eval_tasks takes")) fail_msg("exit status %d: %s", r.status, r.err);
    if (r.seconds > 20) fail_msg("refused after %.1f s", r.seconds);
    run_free(&r);
    for (int more = 0; more < 2; more++) { /* more: all in memory */
        char got[STEPS + 1][32];
        uint64_t budget = least + (uint64_t)more * (24 << 20);
        all[n] = run_format("memory.host_budget=%llu", (unsigned long long)budget);
        (void)run_train(s.config, s.out, budget, NULL, all);
        assert_int_equal(logged(&s, "picks_acc_norm", got), 1);
        run_remove(s.out);
    }
}

static void test_budget(void **state) {
    (void)state;
    check_budget(SETS("precision=bf16"), "eval_strategy=no");
    check_budget(SETS("precision=fp32", "zero_optimization.stage=3", "zero_optimization.offload_param.device=nvme",
                      "zero_optimization.offload_optimizer.device=nvme"),
                 "eval_strategy=no");
}

/* ---- what is planned, what is refused ---------------------------------------------------------------------------- */

static double planned(const scene *s, const char *set, const char *key) {
    run_result r = run((run_opts){0}, "plan", s->config, "--json", "--set", set, NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan", 0, 0));
    const tm_json *v = tm_json_get(tm_json_root(doc), key);
    if (!v) fail_msg("plan says nothing of %s: %s", key, r.out);
    double number = v->number;
    tm_json_free(doc);
    run_free(&r);
    return number;
}

static void test_planned(void **state) {
    (void)state;
    scene s = scene_open("");
    double model = 4.0 * 984192; /* bytes in fp32, about */
    assert_true(planned(&s, "eval_tasks_limit=3", "run_seconds") > planned(&s, "eval_strategy=no", "run_seconds"));
    assert_true(planned(&s, "eval_tasks_limit=3", "run_evaluations") == STEPS / EVERY);
    assert_true(planned(&s, "eval_tasks_limit=3", "run_write_bytes") >
                planned(&s, "eval_strategy=no", "run_write_bytes") + 2 * model);
}

static void refused(const scene *s, const char *want, const char *set) {
    run_result r = train(s, NULL, SETS(set));
    if (r.status != 2 || !strstr(r.err, want))
        fail_msg("exit status %d, expected 2 and \"%s\": %s", r.status, want, r.err);
    run_free(&r);
    assert_int_not_equal(access(s->out, F_OK), 0);
}

static void test_refused(void **state) {
    (void)state;
    scene s = scene_open(best_by_task);
    refused(&s, "it has picks_acc, picks_acc_norm, asks_exact_match_b, asks_numeric_b", "metric_for_best_model=loss");
    refused(&s, "it has picks_acc", "metric_for_best_model=picks_exact");
    refused(&s, "compares evaluations; give \"data.eval\" or \"eval_tasks\"", "eval_strategy=no");
    refused(&s, "nowhere.jsonl", run_format("eval_tasks=%s", run_path(s.dir, "nowhere.jsonl")));
    refused(&s, "another task is called picks already", run_format("eval_tasks=[\"%s\", \"%s\"]", s.picks, s.picks));
    refused(&s, "with init_lora_weights \"pissa\"", "adapter={\"r\": 4, \"init_lora_weights\": \"pissa\"}");
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_scores, run_clean),
        cmocka_unit_test_teardown(test_scores_of_adapters, run_clean),
        cmocka_unit_test_teardown(test_scores_from_files, run_clean),
        cmocka_unit_test_teardown(test_ranks, run_clean),
        cmocka_unit_test_teardown(test_best, run_clean),
        cmocka_unit_test_teardown(test_patience, run_clean),
        cmocka_unit_test_teardown(test_killed, run_clean),
        cmocka_unit_test_teardown(test_signal, run_clean),
        cmocka_unit_test_teardown(test_budget, run_clean),
        cmocka_unit_test_teardown(test_planned, run_clean),
        cmocka_unit_test_teardown(test_refused, run_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

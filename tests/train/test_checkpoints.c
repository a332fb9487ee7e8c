/* Which checkpoint is the best, which stay, what lies in output_dir at the end: HF Trainer's rules, worked out again
 * here from the losses in the log; and that a kill changes none of it.
 *
 * TIDEMILL_KILLS=N TIDEMILL_KILL_SEED=S: that many kills at random instants (default 6, 1). */
#include "run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 21, MOST = 32 };

typedef struct scene {
    const char *dir, *config, *output;
} scene;

static void write_rows(const char *path, size_t first, size_t rows) {
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(path, golden, first, rows, 16, true);
    tm_st_close(golden);
}

/* Learned by heart at a high rate: the loss on another row falls, then rises and goes up and down. */
static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    const char *model = run_path(s.dir, "model"), *train = run_path(s.dir, "train.safetensors");
    const char *eval = run_path(s.dir, "eval.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", model);
    write_rows(train, 0, 2);
    write_rows(eval, 2, 1);
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"eval\": \"%s\", \"seq_len\": 16},"
                         " \"precision\": \"bf16\", \"max_steps\": %d, \"learning_rate\": 0.02,"
                         " \"lr_scheduler_type\": \"constant\", \"commit_steps\": 4, \"eval_steps\": 2,"
                         " \"save_steps\": 2, \"metric_for_best_model\": \"eval_loss\","
                         " \"memory\": {\"cache\": \"none\"}, \"output_dir\": \"%s\"}\n",
                         model, train, eval, STEPS, s.output));
    return s;
}

static run_result train(const scene *s, const run_opts *o, const char *const *sets) {
    const char *arguments[24] = {"train", s->config, "--quiet"};
    for (unsigned n = 3; *sets && n < 22; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    return run_argv(o ? o : &(run_opts){0}, arguments);
}

static void expect(run_result *r, int status, const char *said) {
    if (r->status != status || (said && !strstr(r->err, said)))
        fail_msg("exit status %d (expected %d, \"%s\"); stderr:\n%s", r->status, status, said ? said : "", r->err);
    run_free(r);
}

/* ---- what should be there ---------------------------------------------------------------------------------------- */

typedef struct rules {
    int save_steps; /* 0: where an evaluation is the best so far */
    unsigned limit; /* 0: all */
    bool greater;
} rules;
typedef struct outcome {
    int best, kept[MOST]; /* steps, ascending */
    unsigned n;
} outcome;

/* NAN where a step has no evaluation. */
static void losses(const char *output, double loss[STEPS + 1]) {
    size_t len;
    char *text = run_read(run_path(output, "log.jsonl"), &len);
    for (int i = 0; i <= STEPS; i++) loss[i] = NAN;
    for (char *at = text; at < text + len; at += strcspn(at, "\n") + 1) {
        tm_json_doc *doc;
        RUN_EXPECT_STATUS(tm_json_parse(&doc, at, strcspn(at, "\n"), "log.jsonl", 0, 0));
        const tm_json *o = tm_json_root(doc);
        if (tm_json_is(tm_json_get(o, "event"), "eval"))
            loss[tm_json_get(o, "step")->integer] = tm_json_get(o, "loss")->number;
        tm_json_free(doc);
    }
    free(text);
}

static void drop(outcome *o, unsigned i) {
    memmove(o->kept + i, o->kept + i + 1, (o->n - i - 1) * sizeof *o->kept);
    o->n--;
}

/* rotate_checkpoints of transformers 5: the oldest goes that is neither the latest nor the best. */
static void rotated(outcome *o, unsigned limit) {
    for (unsigned i = 0; limit > 0 && o->n > limit && i < o->n;) {
        if (o->kept[i] != o->best && i + 1 < o->n)
            drop(o, i);
        else
            i++;
    }
}

static outcome worked_out(const rules *r, const double loss[STEPS + 1]) {
    outcome o = {0};
    double best = r->greater ? -HUGE_VAL : HUGE_VAL;
    for (int step = 1; step <= STEPS; step++) {
        bool better = r->greater ? loss[step] > best : loss[step] < best;
        bool saved = step < STEPS && (r->save_steps ? step % r->save_steps == 0 : better);
        if (saved) o.kept[o.n++] = step;
        if ((saved || step == STEPS) && better) best = loss[step], o.best = step;
        if (saved) rotated(&o, r->limit);
    }
    for (unsigned i = 0; r->limit == 1 && o.best < STEPS && i < o.n;) /* at its end the Trainer drops the others */
        if (o.kept[i] != o.best)
            drop(&o, i);
        else
            i++;
    return o;
}

static bool same_file(const char *a, const char *b) {
    size_t na, nb;
    char *ta = run_read(a, &na), *tb = run_read(b, &nb);
    bool same = na == nb && memcmp(ta, tb, na) == 0;
    free(ta);
    free(tb);
    return same;
}

static const char *checkpoint(const scene *s, int step) {
    return run_format("%s/checkpoint-%d/model.safetensors", s->output, step);
}

static void expect_folders(const scene *s, const outcome *o) {
    for (int step = 0, i = 0; step <= STEPS; step++) {
        bool wanted = i < (int)o->n && o->kept[i] == step;
        i += wanted;
        if ((access(checkpoint(s, step), R_OK) == 0) != wanted)
            fail_msg("checkpoint-%d %s; the best is of step %d", step, wanted ? "is missing" : "is still there",
                     o->best);
    }
    (void)rmdir(run_path(s->output, "offload")); /* empty; left by a kill between its last file and itself */
    /* model, two configurations, what else lies in the model's folder, log, run.json; page, card, HF Trainer's state: no
     * debris. Held-out prompts are put down once, before the page */
    bool prompts = access(run_path(s->output, "report_answers.json"), F_OK) == 0;
    assert_int_equal(run_entries(s->output), 9 + o->n + prompts);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void the_best_is_kept_and_loaded(void **state) {
    (void)state;
    static const struct {
        rules r;
        const char *sets[5];
    } rows[] = {
        {{2, 0, false}, {"load_best_model_at_end=true"}},
        {{2, 3, false}, {"load_best_model_at_end=true", "save_total_limit=3"}},
        {{2, 1, false}, {"load_best_model_at_end=true", "save_total_limit=1"}},
        {{4, 2, true}, {"load_best_model_at_end=true", "save_total_limit=2", "save_steps=4", "greater_is_better=true"}},
        {{0, 2, false}, {"load_best_model_at_end=true", "save_total_limit=2", "save_strategy=best"}},
        {{2, 2, false}, {"save_total_limit=2"}}, /* the best stays, the last model is the result */
        {{1, 18, false}, {"save_total_limit=18", "save_steps=1"}}};
    scene s = scene_open();
    double loss[STEPS + 1];
    char last[64] = "";
    for (unsigned i = 0; i < TM_COUNT(rows); i++) {
        run_result r = train(&s, NULL, rows[i].sets);
        expect(&r, 0, NULL);
        losses(s.output, loss);
        outcome o = worked_out(&rows[i].r, loss);
        if (rows[i].r.save_steps == 2 && (o.best == 0 || o.best >= STEPS - 3))
            fail_msg("the best of step %d shows nothing", o.best);
        expect_folders(&s, &o);
        bool loads = strstr(rows[i].sets[0], "load_best") != NULL;
        if (loads && o.best < STEPS && !same_file(checkpoint(&s, o.best), run_path(s.output, "model.safetensors")))
            fail_msg("row %u: output_dir does not hold the best model, of step %d", i, o.best);
        train_log log = train_log_read(s.output); /* the state is that of the last step in any case */
        if (*last) assert_string_equal(log.hash, last);
        snprintf(last, sizeof last, "%s", log.hash);
        if (i > 0) {
            run_remove(s.output);
            continue;
        }
        const char *kept = run_path(s.dir, "kept.safetensors"); /* the model of a run that ended there */
        run_copy(checkpoint(&s, o.best), kept);
        run_remove(s.output);
        r = train(&s, NULL, SETS(run_format("max_steps=%d", o.best)));
        expect(&r, 0, NULL);
        if (!same_file(kept, run_path(s.output, "model.safetensors"))) fail_msg("another model than after that step");
        run_remove(s.output);
    }
}

/* Starts until one is done; what follows a run that was killed after its last word says so. False: killed. */
static bool ends(const scene *s, const run_opts *o, const char *const *sets) {
    run_result r = train(s, o, sets);
    bool killed = r.status == 128 + SIGKILL;
    if (killed)
        run_free(&r);
    else
        expect(&r, r.status == 2 ? 2 : 0, r.status == 2 ? "holds a finished run" : NULL);
    return !killed;
}

static void kills_change_neither_choice_nor_folders(void **state) {
    (void)state;
    /* A checkpoint is written again where the commit is older: it takes the place of the one that is there. */
    static const char *const points[] = {"kill_before_manifest:2", "exchange:1",          "kill_before_export:2",
                                         "kill_in_export:2",       "kill_after_rename:2", "kill_in_export:1"};
    const char *const *sets =
        SETS("load_best_model_at_end=true", "save_total_limit=2", "save_steps=4", "commit_steps=5");
    const char *kills_text = getenv("TIDEMILL_KILLS"), *seed = getenv("TIDEMILL_KILL_SEED");
    unsigned kills = kills_text ? (unsigned)atoi(kills_text) : 6, killed = 0;
    scene s = scene_open();
    double loss[STEPS + 1];
    run_result r = train(&s, NULL, sets);
    const uint32_t whole = (uint32_t)(r.seconds * 1e3) + 1;
    expect(&r, 0, NULL);
    losses(s.output, loss);
    outcome o = worked_out(&(rules){4, 2, false}, loss);
    const char *kept = run_path(s.dir, "kept.safetensors");
    run_copy(run_path(s.output, "model.safetensors"), kept);
    run_remove(s.output);
    for (unsigned i = 0; i < TM_COUNT(points); i++) {
        const char *env[] = {run_format("TIDEMILL_FAULT=%s:kill:once", points[i]), NULL};
        if (ends(&s, &(run_opts){.env = env}, sets)) fail_msg("%s was not reached", points[i]);
    }
    for (uint32_t turn = 0; turn == 0 || killed < kills; turn++) {
        for (bool done = false; !done;) {
            uint32_t x[4];
            tm_philox(seed ? strtoull(seed, NULL, 10) : 1, turn, killed, x);
            run_opts opts = {.signal = killed < kills ? SIGKILL : 0, .signal_after_ms = 1 + x[0] % whole};
            done = ends(&s, &opts, sets);
            killed += !done;
        }
        expect_folders(&s, &o);
        if (!same_file(kept, run_path(s.output, "model.safetensors"))) fail_msg("another model than undisturbed");
        run_remove(s.output);
    }
}

/* ---- early stopping ---------------------------------------------------------------------------------------------- */

/* The step at which HF's EarlyStoppingCallback ends the run; 0: it does not. */
static int64_t stops_at(const double loss[STEPS + 1], unsigned patience, double threshold) {
    double best = 0;
    bool any = false;
    unsigned count = 0;
    for (int64_t step = 1; step <= STEPS; step++) {
        if (!(loss[step] > 0)) continue; /* no evaluation */
        bool better = !any || (loss[step] < best && best - loss[step] > threshold);
        count = better ? 0 : count + 1;
        if (!any || loss[step] < best) best = loss[step];
        any = true;
        if (count >= patience) return step;
    }
    return 0;
}

static int64_t last_step(const char *output) {
    static const char line[] = "{\"event\": \"end\", \"step\": ";
    size_t len;
    char *text = run_read(run_path(output, "log.jsonl"), &len), *end = strstr(text, line);
    assert_non_null(end);
    int64_t step = strtoll(end + sizeof line - 1, NULL, 10);
    free(text);
    return step;
}

/* It ends where HF's would, gives the best model away, says so when it is asked again, and kills change nothing. */
static void patience_ends_the_run(void **state) {
    (void)state;
    scene s = scene_open();
    double loss[STEPS + 1];
    run_result r = train(&s, NULL, SETS("save_total_limit=2"));
    expect(&r, 0, NULL);
    losses(s.output, loss);
    run_remove(s.output);
    double threshold = 0;
    unsigned patience = 1;
    int64_t wanted = stops_at(loss, patience, threshold);
    if (!wanted || wanted == STEPS) threshold = 1e9, patience = 2, wanted = stops_at(loss, patience, threshold);
    assert_true(wanted > 0 && wanted < STEPS);
    const char *const *sets = SETS("load_best_model_at_end=true", run_format("early_stopping_patience=%u", patience),
                                   run_format("early_stopping_threshold=%g", threshold));
    r = train(&s, NULL, sets);
    expect(&r, 0, NULL);
    assert_int_equal(last_step(s.output), wanted);
    const char *kept = run_path(s.dir, "kept.safetensors");
    run_copy(run_path(s.output, "model.safetensors"), kept);
    r = train(&s, NULL, sets);
    expect(&r, 0, NULL);
    assert_int_equal(last_step(s.output), wanted);
    r = train(&s, NULL, SETS("load_best_model_at_end=true", "early_stopping_patience=7"));
    expect(&r, 2, "early_stopping_patience");
    run_remove(s.output);
    static const char *const points[] = {"kill_before_manifest:2", "kill_before_export:1", "kill_in_export:2"};
    for (unsigned i = 0; i < TM_COUNT(points); i++) {
        const char *env[] = {run_format("TIDEMILL_FAULT=%s:kill:once", points[i]), NULL};
        (void)ends(&s, &(run_opts){.env = env}, sets);
    }
    if (!ends(&s, &(run_opts){0}, sets)) fail_msg("it does not end");
    assert_int_equal(last_step(s.output), wanted);
    if (!same_file(kept, run_path(s.output, "model.safetensors"))) fail_msg("another model than undisturbed");
}

/* A threshold that nothing passes ends a run whose last evaluation is the best: its model goes to OUTPUT_DIR, and is said to. */
static void the_best_may_end_the_run(void **state) {
    (void)state;
    scene s = scene_open();
    double loss[STEPS + 1], best = 0;
    unsigned before = 0, patience = 0;
    int64_t at = 0;
    run_result r = train(&s, NULL, SETS("save_total_limit=2"));
    expect(&r, 0, NULL);
    losses(s.output, loss);
    run_remove(s.output);
    for (int64_t step = 1; step < STEPS && !patience; step++) {
        if (!(loss[step] > 0)) continue; /* no evaluation */
        if (before && loss[step] < best) patience = before, at = step;
        if (!before || loss[step] < best) best = loss[step];
        before++;
    }
    if (!patience) fail_msg("no evaluation is better than those before it");
    r = train(&s, NULL,
              SETS("load_best_model_at_end=true", run_format("early_stopping_patience=%u", patience),
                   "early_stopping_threshold=1e9"));
    expect(&r, 0, NULL);
    assert_int_equal(last_step(s.output), at);
    size_t len;
    char *text = run_read(run_path(s.output, "log.jsonl"), &len);
    const char *said = strstr(text, "\"best_step\": ");
    assert_non_null(said);
    assert_int_equal(strtoll(said + 13, NULL, 10), at);
    free(text);
}

/* The best by a metric that rises is another than by the loss, or the same; either is what the log says. */
static void best_by_any_metric(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = train(&s, NULL, SETS("metric_for_best_model=eval_token_accuracy", "load_best_model_at_end=true"));
    size_t len;
    expect(&r, 0, NULL);
    char *text = run_read(run_path(s.output, "log.jsonl"), &len);
    double best = -1;
    int64_t at = 0;
    static const char event[] = "{\"event\": \"eval\", \"step\": ", key[] = "\"eval_token_accuracy\": ";
    for (char *line = text; (line = strstr(line, event)); line++) {
        double v = strtod(strstr(line, key) + sizeof key - 1, NULL);
        if (v > best) best = v, at = strtoll(line + sizeof event - 1, NULL, 10);
    }
    const char *said = strstr(text, "\"best_step\": ");
    assert_non_null(said);
    assert_int_equal(strtoll(said + 13, NULL, 10), at);
    free(text);
}

/* What HF Trainer refuses, and what this version has not. */
static void settings_that_contradict_are_refused(void **state) {
    (void)state;
    static const char *const rows[][3] = {
        {"load_best_model_at_end=true", "save_steps=3", "must be a multiple of \"eval_steps\""},
        {"load_best_model_at_end=true", "save_strategy=no", "must be a multiple of \"eval_steps\""},
        {"load_best_model_at_end=true", "eval_strategy=no", "compares evaluations"},
        {"save_strategy=best", "eval_steps=0", "compares evaluations"},
        {"metric_for_best_model=accuracy", "save_steps=2",
         "has no \"accuracy\"; it has loss, perplexity, token_accuracy"},
        {"early_stopping_patience=2", "eval_strategy=no", "counts evaluations"},
    };
    scene s = scene_open();
    for (unsigned i = 0; i < TM_COUNT(rows); i++) {
        run_result r = train(&s, NULL, SETS(rows[i][0], rows[i][1]));
        expect(&r, 2, rows[i][2]);
    }
}

/* Somebody was at the best checkpoint while the run was down: what is left of it is not given away as the result, and
 * no weights are lost for it. The best of those that come after it, or the last, is. */
static void a_best_that_is_not_whole_is_not_loaded(void **state) {
    (void)state;
    enum { COMMITTED = 16 };
    const char *sets[] = {"load_best_model_at_end=true", NULL}, *const *plain = SETS("save_steps=2");
    const char *env[] = {"TIDEMILL_FAULT=kill_after_rename:4:now:once", NULL}; /* the commit of step 16 */
    scene s = scene_open();
    double loss[STEPS + 1];
    run_result r = train(&s, NULL, plain);
    expect(&r, 0, NULL);
    losses(s.output, loss);
    int best = worked_out(&(rules){2, 0, false}, loss).best;
    if (best == 0 || best > COMMITTED) fail_msg("the best of step %d shows nothing", best);
    const char *last = run_path(s.dir, "last.safetensors"), *result = run_path(s.output, "model.safetensors");
    run_copy(result, last);
    for (unsigned i = 0; i < 2; i++) {
        run_remove(s.output);
        r = train(&s, &(run_opts){.env = env}, sets);
        expect(&r, 128 + SIGKILL, NULL);
        assert_int_equal(i ? unlink(checkpoint(&s, best)) : truncate(checkpoint(&s, best), 5000), 0);
        r = train(&s, NULL, sets);
        expect(&r, 0, "does not count any more: its folder is gone or not whole");
        assert_int_not_equal(access(run_path(s.output, "offload"), F_OK), 0); /* made by the life before */
        bool good = same_file(last, result);
        for (int step = COMMITTED + 2; step < STEPS; step += 2) good = good || same_file(checkpoint(&s, step), result);
        if (!good) fail_msg("output_dir holds the model of no step that is left");
    }
}

/* Longer than first said: the best so far was the last model, which has no folder of its own. */
static void a_longer_run_forgets_what_is_gone(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = train(&s, NULL, SETS("load_best_model_at_end=true", "keep_state=true", "max_steps=3"));
    expect(&r, 0, NULL);
    r = train(&s, NULL, SETS("load_best_model_at_end=true", "max_steps=8"));
    expect(&r, 0, "does not count any more");
    double loss[STEPS + 1];
    losses(s.output, loss);
    int best = 0;
    for (int step = 4; step <= 8; step += 2)
        if (best == 0 || loss[step] < loss[best]) best = step;
    if (best < 8 && !same_file(checkpoint(&s, best), run_path(s.output, "model.safetensors")))
        fail_msg("output_dir does not hold the model of step %d", best);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_best_is_kept_and_loaded, run_clean),
        cmocka_unit_test_teardown(kills_change_neither_choice_nor_folders, run_clean),
        cmocka_unit_test_teardown(patience_ends_the_run, run_clean),
        cmocka_unit_test_teardown(the_best_may_end_the_run, run_clean),
        cmocka_unit_test_teardown(best_by_any_metric, run_clean),
        cmocka_unit_test_teardown(settings_that_contradict_are_refused, run_clean),
        cmocka_unit_test_teardown(a_best_that_is_not_whole_is_not_loaded, run_clean),
        cmocka_unit_test_teardown(a_longer_run_forgets_what_is_gone, run_clean),
    };
    return cmocka_run_group_tests_name("train_checkpoints", tests, NULL, NULL);
}

/* A reference that is asked before step 1: `plan` and a refusal know what it needs; how many micro-batches go through it
 * together changes no bit of what it says; whose weights are read. */
#include "run.h"
#include "tests/support/skip.h"

#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"
#define PAIRS TM_TEST_FIXTURES "/../../examples/skill/pairs.jsonl"

typedef struct scene {
    const char *dir, *config, *out, *wide, *wide_set;
} scene;

/* A model with the tiny one's vocabulary, a single block of which takes more than the whole tiny one. */
static const char *wide_model(const char *dir) {
    const char *bare = run_path(dir, "bare"), *wide = run_path(dir, "wide");
    if (mkdir(bare, 0700) != 0) fail_msg("%s cannot be made", bare);
    run_write(run_path(bare, "config.json"),
              "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 448,\n"
              " \"intermediate_size\": 1792, \"num_hidden_layers\": 1, \"num_attention_heads\": 7,\n"
              " \"num_key_value_heads\": 7, \"vocab_size\": 512, \"max_position_embeddings\": 256,\n"
              " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
              " \"tie_word_embeddings\": true, \"initializer_range\": 0.02}\n");
    run_result r = run((run_opts){0}, "convert", bare, wide, "--init", "random", NULL);
    RUN_OK(&r);
    run_free(&r);
    return wide;
}

static scene open_scene(const char *type, const char *more) {
    scene s = {.dir = run_dir()};
    s.config = run_path(s.dir, "config.json");
    s.out = run_path(s.dir, "out");
    s.wide = wide_model(s.dir);
    s.wide_set = run_format("objective.reference=%s", s.wide);
    run_write(s.config,
              run_format("{\"model\": \"" TINY "\", \"objective\": {\"type\": \"%s\"}, \"precision\": \"fp32\",\n"
                         " \"data\": {\"train\": \"%s\", \"eval\": \"%s\", \"seq_len\": 80}, \"max_steps\": 4,\n"
                         " \"gradient_accumulation_steps\": 3%s}\n",
                         type, run_first_lines(PAIRS, s.dir, "pairs.jsonl", 10),
                         run_first_lines(PAIRS, s.dir, "heldout.jsonl", 5), more));
    return s;
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static tm_json_doc *plan(const scene *s, int status, const char *reference, const char *budget, const char *says) {
    run_result r =
        run((run_opts){0}, "plan", s->config, "--json", "--set", reference, budget ? "--set" : NULL, budget, NULL);
    tm_json_doc *doc;
    if (r.status != status || (says && !strstr(r.err, says))) fail_msg("exit status %d: %s", r.status, r.err);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan", 0, 0));
    run_free(&r);
    return doc;
}

static uint64_t least(const scene *s, const char *reference, double *seconds) {
    tm_json_doc *doc = plan(s, 0, reference, NULL, NULL);
    const tm_json *asked = tm_json_get(tm_json_root(doc), "reference_seconds");
    uint64_t bytes = (uint64_t)tm_json_get(tm_json_root(doc), "minimum_host_bytes")->integer;
    *seconds = asked->type == TM_JSON_NUMBER ? asked->number : 0;
    assert_true(*seconds <= tm_json_get(tm_json_root(doc), "run_seconds")->number);
    tm_json_free(doc);
    return bytes;
}

/* Exit 2, with the least budget named, and nothing made. */
static void refused(const scene *s, const char *reference, uint64_t budget, uint64_t bytes, bool by_reference) {
    run_result r = run((run_opts){0}, "train", s->config, "--quiet", "--set", reference, "--set",
                       run_format("output_dir=%s", s->out), "--set",
                       run_format("memory.host_budget=%llu", (unsigned long long)budget), NULL);
    bool named = strstr(r.err, "the reference model, before step 1");
    if (r.status != 2 || named != by_reference) fail_msg("exit status %d: %s", r.status, r.err);
    assert_int_equal(train_minimum(r.err), bytes);
    run_free(&r);
    assert_int_equal(run_entries(s->out), 0);
    assert_int_equal(run_entries(run_path(s->dir, "tidemill-cache")), 0);
}

static void test_room(void **state) {
    (void)state;
    scene s = open_scene("dpo", ", \"adapter\": {\"r\": 2}");
    double none, seconds;
    uint64_t alone = least(&s, "objective.reference=null", &none), both = least(&s, s.wide_set, &seconds);
    assert_true(both > alone && none == 0 && seconds > 0);
    const char *under = run_format("memory.host_budget=%llu", (unsigned long long)both - 1);
    tm_json_doc *doc = plan(&s, 2, s.wide_set, under, "the reference model, before step 1");
    assert_int_equal(tm_json_get(tm_json_root(doc), "minimum_host_bytes")->integer, both);
    assert_false(tm_json_get(tm_json_root(doc), "fits")->boolean);
    tm_json_free(doc);
    refused(&s, s.wide_set, both - 1, both, true);
    refused(&s, s.wide_set, both - (both - alone) / 2, both, true);
    const char *enough = run_format("memory.host_budget=%llu", (unsigned long long)both);
    (void)run_train(s.config, s.out, both, &(run_opts){0}, SETS(s.wide_set, enough));
}

/* Where the run itself takes more, that is what is said, and before the reference was asked. */
static void test_own_room(void **state) {
    (void)state;
    scene s = open_scene("dpo", ", \"per_device_train_batch_size\": 8");
    double seconds;
    uint64_t bytes = least(&s, "objective.reference=null", &seconds);
    assert_true(seconds > 0);
    refused(&s, "objective.reference=null", bytes - 1, bytes, false);
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

/* What the pass has left, which goes. */
static char *values(const scene *s, size_t *len) {
    glob_t found;
    assert_int_equal(glob(run_path(s->dir, "tidemill-cache/reference-*"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    char *bytes = run_read(found.gl_pathv[0], len);
    globfree(&found);
    run_remove(run_path(s->dir, "tidemill-cache"));
    return bytes;
}

static char *asked(const scene *s, const char *says, size_t *len, const char *const *sets) {
    const char *all[24] = {"train", s->config, "--resume", "never", "--set", run_format("output_dir=%s", s->out)};
    for (size_t n = 6, k = 0; sets[k]; k++) all[n++] = "--set", all[n++] = sets[k];
    run_result r = run_argv(&(run_opts){0}, all);
    RUN_OK(&r);
    if (!strstr(r.err, says)) fail_msg("\"%s\" is not said: %s", says, r.err);
    run_free(&r);
    return values(s, len);
}

static void same(const char *what, const char *a, size_t len, char *b, size_t b_len) {
    if (len != b_len || memcmp(a, b, len) != 0) fail_msg("%s: other values", what);
    free(b);
}

/* Steps of three micro-batches in programs of eight, and of one; the last one is not full. */
static void together(const char *type) {
    scene s = open_scene(type, ", \"adapter\": {\"r\": 2}");
    size_t len, n;
    double seconds;
    char *many = asked(&s, "about 8 micro-batches at a time", &len, SETS(s.wide_set)), *other;
    const char *budget = run_format("memory.host_budget=%llu", (unsigned long long)least(&s, s.wide_set, &seconds));
    other = asked(&s, "about 1 micro-batch at a time", &n, SETS(s.wide_set, budget));
    same("a micro-batch at a time", many, len, other, n);
    other = asked(&s, "about 8", &n, SETS(s.wide_set, "gradient_accumulation_steps=12", "max_steps=1"));
    if (strcmp(type, "dpo") == 0) assert_int_equal(n, len); /* the rows of an epoch */
    free(other);
    /* a policy that begins at random is held against the folder that is named */
    const char *model = run_format("model=%s/bare", s.dir);
    other = asked(&s, "wide", &n, SETS(s.wide_set, model, "tokenizer=" TINY, "init=random", "adapter=null"));
    same("a random policy", many, len, other, n);
    free(many);
}

/* A policy that does not move is its own reference: each row meets its own value in every epoch and evaluation, whatever is drawn
 * of the files, in what order, and as however many micro-batches. */
static void unmoved(const char *type, double loss, const char *const *sets) {
    const char *dir = run_dir(), *config = run_path(dir, "config.json"), *out = run_path(dir, "out");
    run_write(config,
              run_format("{\"model\": \"" TINY "\", \"objective\": {\"type\": \"%s\"}, \"precision\": \"fp32\",\n"
                         " \"data\": {\"train\": [{\"path\": \"%s\", \"weight\": 1.5}, \"%s#5\"], \"seq_len\": 72},\n"
                         " \"split_dataset_ratio\": 0.2, \"num_train_epochs\": 2.3, \"learning_rate\": 0,\n"
                         " \"per_device_train_batch_size\": 2, \"gradient_accumulation_steps\": 3}\n",
                         type, run_first_lines(PAIRS, dir, "a.jsonl", 13), run_first_lines(PAIRS, dir, "b.jsonl", 9)));
    const char *all[24] = {"train", config, "--quiet", "--set", run_format("output_dir=%s", out)};
    for (size_t n = 5, k = 0; sets[k]; k++) all[n++] = "--set", all[n++] = sets[k];
    run_result r = run_argv(&(run_opts){0}, all);
    RUN_OK(&r);
    run_free(&r);
    unsigned seen = 0;
    char *text = run_read(run_path(out, "log.jsonl"), NULL);
    for (char *at = text; (at = strstr(at, "\"loss\": ")); seen++) {
        double is = strtod(at += strlen("\"loss\": "), NULL);
        if (!(fabs(is - loss) < 5e-6)) fail_msg("%s: a loss of %.9g, not %.9g", type, is, loss);
    }
    free(text);
    assert_true(seen > 5);
}

static void test_unmoved(void **state) {
    (void)state;
    unmoved("dpo", M_LN2, SETS("data.shuffle=true"));
    unmoved("dpo", M_LN2, SETS("group_by_length=true", "per_device_eval_batch_size=1"));
    unmoved("kto", 0.5, SETS("group_by_length=true", "per_device_eval_batch_size=3"));
}

/* Killed while it is asked: nothing is kept, and the same command asks again. */
static void test_killed(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("a build without fault points");
#endif
    scene s = open_scene("kto", ", \"adapter\": {\"r\": 2}");
    size_t len, n;
    const char *env[] = {"TIDEMILL_FAULT=kill_op:30:now:once", NULL};
    char *want = asked(&s, "about 8", &len, SETS(s.wide_set));
    run_remove(s.out);
    run_result r = run((run_opts){.env = env}, "train", s.config, "--set", s.wide_set, "--set",
                       run_format("output_dir=%s", s.out), NULL);
    if (r.status != 128 + SIGKILL || !strstr(r.err, "about 8") || strstr(r.err, "plan: "))
        fail_msg("exit status %d: %s", r.status, r.err);
    run_free(&r);
    assert_int_equal(run_entries(run_path(s.dir, "tidemill-cache")), 0);
    char *got = asked(&s, "about 8", &n, SETS(s.wide_set));
    same("killed", want, len, got, n);
    free(want);
}

static void test_together(void **state) {
    (void)state;
    together("dpo");
    together("kto");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_room, run_clean),     cmocka_unit_test_teardown(test_own_room, run_clean),
        cmocka_unit_test_teardown(test_together, run_clean), cmocka_unit_test_teardown(test_unmoved, run_clean),
        cmocka_unit_test_teardown(test_killed, run_clean),
    };
    return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}

/* `tidemill eval` by the objective of a configuration or a run: the numbers of the evaluation inside training, for every objective
 * and every sort of reference; what it refuses. */
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"
#define PAIRS TM_TEST_FIXTURES "/../../examples/skill/pairs.jsonl"
#define CHATS TM_TEST_FIXTURES "/../../examples/skill/heldout.jsonl"

/* Lines [first, first + n) of a file, as another. */
static const char *some_lines(const char *dir, const char *name, const char *of, unsigned first, unsigned n) {
    const char *path = run_path(dir, name);
    size_t len;
    char *text = run_read(of, &len), *begin = text, *end;
    while (first--) begin = strchr(begin, '\n') + 1;
    for (end = begin; n; n--) end = strchr(end, '\n') + 1;
    *end = 0;
    run_write(path, begin);
    free(text);
    return path;
}

typedef struct scene {
    const char *dir, *config, *out, *heldout;
} scene;

/* Three steps of four samples in two micro-batches; an evaluation of ten samples at the end. `more`: keys, each with a comma
 * before it. */
static scene open_scene(const char *objective, const char *more) {
    scene s = {.dir = run_dir()};
    const char *train = some_lines(s.dir, "pairs.jsonl", PAIRS, 0, 12);
    s.heldout = some_lines(s.dir, "heldout.jsonl", PAIRS, 30, 10);
    s.config = run_path(s.dir, "config.json");
    s.out = run_path(s.dir, "out");
    run_write(s.config,
              run_format("{\"model\": \"" TINY "\", \"objective\": {%s}, \"output_dir\": \"%s\", \"max_steps\": 3,\n"
                         " \"data\": {\"train\": \"%s\", \"eval\": \"%s\", \"seq_len\": 80},\n"
                         " \"per_device_train_batch_size\": 2, \"per_device_eval_batch_size\": 2,\n"
                         " \"gradient_accumulation_steps\": 2, \"learning_rate\": 5e-3%s}\n",
                         objective, s.out, train, s.heldout, more));
    return s;
}

static void train(const scene *s, unsigned ranks) {
    run_result r = run((run_opts){.ranks = ranks}, "train", s->config, "--quiet", NULL);
    RUN_OK(&r);
    run_free(&r);
}

/* The last evaluation of the log. */
static tm_json_doc *logged(const scene *s) {
    size_t len;
    char *text = run_read(run_path(s->out, "log.jsonl"), &len), *at = NULL;
    tm_json_doc *doc;
    for (char *next = text; (next = strstr(next, "{\"event\": \"eval\"")); next++) at = next;
    assert_non_null(at);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, at, strcspn(at, "\n"), "log.jsonl", 0, 0));
    free(text);
    return doc;
}

/* What `eval` says with these arguments, ended by NULL. */
static tm_json_doc *judged(const char *const *arguments) {
    const char *all[24] = {"eval", "--json"};
    tm_json_doc *doc;
    for (size_t i = 2, k = 0; arguments[k]; i++, k++) all[i] = arguments[k];
    run_result r = run_argv(&(run_opts){0}, all);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "eval", 0, 0));
    run_free(&r);
    return doc;
}

/* Every number that the log has of the evaluation, once more under HF Trainer's names. Returns how many. */
static unsigned compare(const char *what, tm_json_doc *want, tm_json_doc *got, double rel) {
    unsigned n = 0;
    for (const tm_json *m = tm_json_root(want)->child; m; m = m->next) {
        bool labels = strcmp(m->key, "label_tokens") == 0, again = strncmp(m->key, "eval_", 5) == 0;
        const tm_json *is = tm_json_get(tm_json_root(got), labels ? "tokens" : again ? m->key + 5 : m->key);
        if (m->type != TM_JSON_NUMBER || strcmp(m->key, "step") == 0) continue;
        if (!is) fail_msg("%s: eval says nothing of %s", what, m->key);
        if (!(fabs(is->number - m->number) <= rel * fmax(1, fabs(m->number))))
            fail_msg("%s: %s is %.12g, in training %.12g", what, m->key, is->number, m->number);
        n += !again;
    }
    tm_json_free(want);
    tm_json_free(got);
    return n;
}

/* Of the run; and of its model by the configuration. */
static void check_run(const char *what, const scene *s, unsigned numbers, bool adapter) {
    static const double ROUNDING = 1e-12;
    assert_int_equal(compare(what, logged(s), judged(SETS("--config", s->out)), ROUNDING), numbers);
    const char *const full[] = {"--config", s->config, "--model", s->out, NULL}, *const part[] = {"--config", s->config,
                                                                                                  "--adapter", s->out,
                                                                                                  NULL};
    assert_int_equal(compare(what, logged(s), judged(adapter ? part : full), ROUNDING), numbers);
}

enum { LOSS_AND_LABELS = 2, OF_PAIRS = LOSS_AND_LABELS + 6, WITH_NLL = OF_PAIRS + 1, OF_KTO = LOSS_AND_LABELS + 6 };
#define FP32 ", \"precision\": \"fp32\""
#define LORA ", \"adapter\": {\"r\": 4}"
#define HEAD_TOO ", \"adapter\": {\"r\": 4, \"modules_to_save\": [\"norm\"]}"

static void test_objectives(void **state) {
    (void)state;
    const struct {
        const char *objective, *more;
        unsigned numbers;
    } all[] = {
        {"\"type\": \"dpo\"", FP32, OF_PAIRS},
        {"\"type\": \"dpo\"", "", OF_PAIRS}, /* bf16: what is saved is what computes */
        {"\"type\": \"dpo\", \"rpo_alpha\": 0.5", FP32 LORA, WITH_NLL},
        {"\"type\": \"dpo\", \"loss_type\": \"ipo\"", FP32 HEAD_TOO, OF_PAIRS},
        {"\"type\": \"kto\"", FP32, OF_KTO},
        {"\"type\": \"kto\"", FP32 LORA, OF_KTO},
        {"\"type\": \"simpo\"", FP32, OF_PAIRS},
        {"\"type\": \"orpo\"", FP32, WITH_NLL},
        {"\"type\": \"cpo\"", FP32, WITH_NLL},
    };
    for (size_t i = 0; i < TM_COUNT(all); i++) {
        scene s = open_scene(all[i].objective, all[i].more);
        train(&s, 0);
        check_run(run_format("%s%s", all[i].objective, all[i].more), &s, all[i].numbers,
                  strstr(all[i].more, "adapter"));
    }
}

/* A folder is the reference, of an adapter too. */
static void test_reference(void **state) {
    (void)state;
    scene s = open_scene("\"type\": \"dpo\"", FP32), t;
    train(&s, 0);
    t = open_scene(run_format("\"type\": \"dpo\", \"reference\": \"%s\"", s.out), FP32 LORA);
    train(&t, 0);
    check_run("a folder", &t, OF_PAIRS, true);
    /* said on the command line alone, beside a model that nothing else is known of */
    tm_json_doc *own = judged(SETS("--model", s.out, "--data", s.heldout, "--seq-len", "80", "--set",
                                   "objective.type=dpo", "--set", "objective.reference=" TINY));
    assert_int_equal(compare("options", logged(&s), own, 1e-6), OF_PAIRS);
}

/* The KL is one of a step, which ranks share. */
static void test_ranks(void **state) {
    (void)state;
    scene s = open_scene("\"type\": \"kto\"", FP32 LORA);
    train(&s, 2);
    assert_int_equal(compare("2 ranks", logged(&s), judged(SETS("--config", s.out)), 1e-6), OF_KTO);
}

/* Packed text, and how rows are cut: the configuration's. */
static void test_text(void **state) {
    (void)state;
    scene s = open_scene("\"type\": \"sft\"", FP32);
    const char *data = run_format("data.train=%s", CHATS), *eval = run_format("data.eval=%s", CHATS);
    run_result r = run((run_opts){0}, "train", s.config, "--quiet", "--set", data, "--set", eval, "--set",
                       "data.packing=true", NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_json_doc *doc = judged(SETS("--config", s.out));
    assert_non_null(tm_json_get(tm_json_root(doc), "perplexity"));
    assert_int_equal(compare("packed", logged(&s), doc, 1e-12), LOSS_AND_LABELS + 2);
}

/* Two files: what each comes to is what it comes to alone, and together they are the whole. Bits of a byte by hand: a label
 * is a token of the answer, or its end, which is no text. */
static void test_files(void **state) {
    (void)state;
    const char *dir = run_dir(),
               *name[2] = {some_lines(dir, "a.jsonl", CHATS, 0, 5), some_lines(dir, "b.jsonl", CHATS, 5, 8)};
    tm_json_doc *both = judged(SETS("--model", TINY, "--data", name[0], "--data", name[1]));
    double nll = 0, tokens = 0, bytes = 0, right = 0;
    for (int i = 0; i < 2; i++) {
        tm_json_doc *one = judged(SETS("--model", TINY, "--data", name[i]));
        const tm_json *of = tm_json_get(tm_json_get(tm_json_root(both), "files"), name[i]), *r = tm_json_root(one);
        double n = tm_json_get(r, "tokens")->number, loss = tm_json_get(r, "loss")->number;
        assert_non_null(of);
        assert_true(fabs(tm_json_get(of, "loss")->number - loss) < 1e-9);
        assert_true(tm_json_get(of, "tokens")->number == n);
        assert_true(fabs(tm_json_get(r, "bits_per_byte")->number - loss * n / M_LN2 / tm_json_get(r, "bytes")->number) <
                    1e-9);
        nll += loss * n, tokens += n, bytes += tm_json_get(r, "bytes")->number;
        right += tm_json_get(r, "token_accuracy")->number * n;
        tm_json_free(one);
    }
    const tm_json *r = tm_json_root(both);
    assert_true(fabs(tm_json_get(r, "loss")->number - nll / tokens) < 1e-9);
    assert_true(tm_json_get(r, "bytes")->number == bytes);
    assert_true(fabs(tm_json_get(r, "token_accuracy")->number - right / tokens) < 1e-9);
    tm_json_free(both);
}

/* "Hello" and its end: five bytes of text, whatever the tokens. */
static void test_bytes(void **state) {
    (void)state;
    const char *dir = run_dir(), *data = run_path(dir, "one.jsonl");
    run_write(data, "{\"messages\": [{\"role\": \"user\", \"content\": \"Say it.\"}, {\"role\": \"assistant\", "
                    "\"content\": \"Hello\"}]}\n");
    tm_json_doc *doc = judged(SETS("--model", TINY, "--data", data));
    assert_true(tm_json_get(tm_json_root(doc), "bytes")->number == 5);
    tm_json_free(doc);
}

static void refused(const char *want, const char *const *arguments) {
    const char *all[24] = {"eval"}, *first;
    for (size_t i = 1, k = 0; arguments[k]; i++, k++) all[i] = arguments[k];
    run_result r = run_argv(&(run_opts){0}, all);
    if (r.status != 2 || !strstr(r.err, want) || run_error_lines(r.err, &first) != 1)
        fail_msg("exit status %d, expected 2 and \"%s\" in one line: %s", r.status, want, r.err);
    run_free(&r);
}

/* "FILE#3": so many of its samples, the same as data.eval has by that name. */
static void test_some_samples(void **state) {
    (void)state;
    const char *config = run_path(run_dir(), "config.json");
    run_write(config, "{\"model\": \"" TINY "\", \"precision\": \"fp32\", \"data\": {\"eval\": \"" CHATS "#3\"}}");
    tm_json_doc *some = judged(SETS("--model", TINY, "--data", CHATS "#3")), *said = judged(SETS("--config", config));
    const tm_json *a = tm_json_root(some), *b = tm_json_root(said);
    assert_int_equal(tm_json_get(a, "samples")->integer, 3);
    assert_int_equal(tm_json_get(b, "samples")->integer, 3);
    assert_true(fabs(tm_json_get(a, "loss")->number - tm_json_get(b, "loss")->number) < 1e-9);
    tm_json_free(some);
    tm_json_free(said);
    const char *other = some_lines(run_dir(), "other.jsonl", CHATS, 20, 10);
    some = judged(SETS("--model", TINY, "--data", CHATS "#3", "--data", run_format("%s#2", other)));
    a = tm_json_root(some);
    const tm_json *first = tm_json_get(tm_json_get(a, "files"), CHATS),
                  *second = tm_json_get(tm_json_get(a, "files"), other);
    assert_int_equal(tm_json_get(a, "samples")->integer, 5);
    assert_true(first && second);
    assert_int_equal(tm_json_get(first, "tokens")->integer + tm_json_get(second, "tokens")->integer,
                     tm_json_get(a, "tokens")->integer);
    assert_true(tm_json_get(first, "tokens")->integer > 0 && tm_json_get(second, "tokens")->integer > 0);
    tm_json_free(some);
    refused("--data " CHATS "#0: that is no sample at all", SETS("--model", TINY, "--data", CHATS "#0"));
    refused("one whole file", SETS("--model", TINY, "--data", CHATS "#3", "--exact-match"));
}

static void test_refused(void **state) {
    (void)state;
    scene s = open_scene("\"type\": \"dpo\"", "");
    const char *bare = run_path(s.dir, "bare.json");
    run_write(bare, "{\"model\": \"" TINY "\"}");
    refused("--model is missing", SETS("--data", PAIRS));
    refused("--data or --task is missing", SETS("--model", TINY));
    refused("names no data.eval", SETS("--config", bare));
    refused("run.json", SETS("--config", s.dir));
    refused("conversations", SETS("--config", s.config, "--exact-match"));
    refused("grpo", SETS("--model", TINY, "--data", PAIRS, "--set", "objective.type=grpo"));
    refused("no effect on objective simpo",
            SETS("--config", s.config, "--set", "objective.type=simpo", "--set", "loss_type=ipo"));
    refused("chosen", SETS("--config", s.config, "--data", CHATS));
    refused("too small", SETS("--config", s.config, "--host-budget", "1MiB"));
    run_write(run_path(s.dir, "run.json"), "{\"status\": \"starting\"}");
    refused("says nothing of the run's configuration", SETS("--config", s.dir));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_objectives, run_clean),   cmocka_unit_test_teardown(test_reference, run_clean),
        cmocka_unit_test_teardown(test_ranks, run_clean),        cmocka_unit_test_teardown(test_text, run_clean),
        cmocka_unit_test_teardown(test_files, run_clean),        cmocka_unit_test_teardown(test_bytes, run_clean),
        cmocka_unit_test_teardown(test_some_samples, run_clean), cmocka_unit_test_teardown(test_refused, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("evaluate", tests, NULL, NULL);
}

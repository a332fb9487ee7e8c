/* `tidemill eval --task`: log-likelihoods are those of `probe`, answers are those of `generate`; whatever the budget and whatever
 * runs beside; what it writes is a task again; what it refuses. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

static const char picks[] =
    "{\"prompt\": \"The tide comes\", \"choices\": [\"in\", \"out of the harbour\"], \"gold\": 0}\n"
    "{\"prompt\": \"Sand \", \"choices\": [\"castles\", \"is wet\", \"x\"], \"gold\": \"x\"}\n"
    "{\"prompt\": \"\", \"choices\": [\"One\", \"Two\"], \"gold\": 1}\n";
static const char asks[] =
    "{\"q\": \"What is the tide?\", \"a\": \"water\"}\n{\"q\": \"Where is sand?\", \"a\": \"beach\"}\n"
    "{\"q\": \"How many seas?\", \"a\": \"7\"}\n";

typedef struct answers {
    tm_json_doc *result;
    char *text; /* of the samples' file */
    size_t n;
    tm_json_doc *line[16];
} answers;

static answers ask(const char *dir, const char *const *arguments) {
    const char *all[32] = {"eval", "--json", "--samples", run_path(dir, "samples.jsonl")};
    answers a = {0};
    size_t len;
    for (size_t i = 4, k = 0; arguments[k]; i++, k++) all[i] = arguments[k];
    run_result r = run_argv(&(run_opts){0}, all);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&a.result, r.out, r.out_len, "eval", 0, 0));
    run_free(&r);
    a.text = run_read(all[3], &len);
    for (char *at = a.text; *at; at += strcspn(at, "\n") + 1) {
        assert_true(a.n < TM_COUNT(a.line));
        RUN_EXPECT_STATUS(tm_json_parse(&a.line[a.n++], at, strcspn(at, "\n"), "sample", 0, 0));
    }
    return a;
}

static void drop(answers *a) {
    for (size_t i = 0; i < a->n; i++) tm_json_free(a->line[i]);
    tm_json_free(a->result);
    free(a->text);
}

static const tm_json *get(const tm_json_doc *doc, const char *a, const char *b, const char *c) {
    const tm_json *v = tm_json_get(tm_json_root(doc), a);
    if (b) v = tm_json_get(v, b);
    if (c) v = tm_json_get(v, c);
    if (!v) fail_msg("there is no %s %s %s", a, b ? b : "", c ? c : "");
    return v;
}

static size_t ids_of(const char *text, int64_t *ids) {
    run_result r = run((run_opts){.input = run_format("{\"text\": \"%s\"}\n", text)}, "tokenize", "--model", TINY,
                       "--special", NULL);
    tm_json_doc *doc;
    size_t n = 0;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, strcspn(r.out, "\n"), "tokenize", 0, 0));
    for (const tm_json *v = tm_json_get(tm_json_root(doc), "ids")->child; v; v = v->next) ids[n++] = v->integer;
    tm_json_free(doc);
    run_free(&r);
    return n;
}

/* Of ids[from..n) behind those before, by the logits that `probe` gives. */
static double by_probe(const char *dir, const int64_t *ids, size_t n, size_t from) {
    const char *in = run_path(dir, "in.safetensors"), *out = run_path(dir, "out.safetensors");
    tm_st_writer *w;
    uint32_t t;
    double sum = 0;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, in));
    RUN_EXPECT_STATUS(tm_st_writer_add(w, "input_ids", TM_FMT_I64, 2, (uint64_t[]){1, n}, &t));
    RUN_EXPECT_STATUS(tm_st_writer_write(w, t, 0, ids, n * sizeof *ids));
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    run_result r = run((run_opts){0}, "probe", "--model", TINY, "--input", in, "--output", out, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *st = tensors_open(out);
    tensor logits = tensor_read(st, "logits");
    size_t vocabulary = logits.n / n;
    for (size_t i = from; i < n; i++) {
        const float *row = logits.v + (i - 1) * vocabulary;
        double largest = -1e30, all = 0;
        for (size_t v = 0; v < vocabulary; v++) largest = fmax(largest, (double)row[v]);
        for (size_t v = 0; v < vocabulary; v++) all += exp((double)row[v] - largest);
        sum += (double)row[ids[i]] - largest - log(all);
    }
    free(logits.v);
    tm_st_close(st);
    return sum;
}

/* A choice begins with a space, also where the prompt ends with one. */
static void test_choices(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "picks.jsonl");
    static const struct {
        size_t sample, choice;
        const char *context, *whole;
    } all[] = {{0, 0, "The tide comes", "The tide comes in"},
               {0, 1, "The tide comes", "The tide comes out of the harbour"},
               {1, 1, "Sand", "Sand  is wet"},
               {1, 2, "Sand", "Sand  x"}};
    run_write(rows, picks);
    answers a = ask(dir, SETS("--model", TINY, "--task", rows));
    assert_int_equal(a.n, 3);
    for (size_t i = 0; i < TM_COUNT(all); i++) {
        int64_t ids[64], before[64];
        size_t n = ids_of(all[i].whole, ids), from = ids_of(all[i].context, before);
        const tm_json *answer = get(a.line[all[i].sample], "resps", NULL, NULL)->child;
        for (size_t k = 0; k < all[i].choice; k++) answer = answer->next;
        double got = strtod(answer->child->child->text, NULL), wanted = by_probe(dir, ids, n, from);
        if (fabs(got - wanted) > 1e-4) fail_msg("%s: %.9g, by probe %.9g", all[i].whole, got, wanted);
    }
    double sum = 0;
    for (size_t i = 0; i < a.n; i++) sum += get(a.line[i], "acc", NULL, NULL)->number;
    assert_true(fabs(get(a.result, "results", "picks", "acc,none")->number - sum / 3) < 1e-12);
    assert_true(get(a.result, "n-samples", "picks", "effective")->integer == 3);
    double p = sum / 3, se = sqrt(p * (1 - p) * 3 / 2) / sqrt(3);
    assert_true(fabs(get(a.result, "results", "picks", "acc_stderr,none")->number - se) < 1e-12);
    drop(&a);
}

static char *generated(const char *prompt) {
    run_result r = run((run_opts){0}, "generate", "--model", TINY, "--precision", "fp32", "--prompt", prompt,
                       "--max-new-tokens", "12", "--json", NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "generate", 0, 0));
    char *text = strdup(get(doc, "text", NULL, NULL)->text);
    tm_json_free(doc);
    run_free(&r);
    return text;
}

static const char *write_asks(const char *dir, const char *more) {
    const char *rows = run_path(dir, "asks.jsonl"), *task = run_path(dir, "asks.json");
    run_write(rows, asks);
    run_write(task, run_format("{\"data\": \"%s\", \"doc_to_text\": \"Q: {{q}}\\nA:\", \"doc_to_target\": \"a\", "
                               "\"max_new_tokens\": 12, \"metric_list\": [\"exact_match\", \"numeric\"]%s}",
                               rows, more));
    return task;
}

static void test_answers(void **state) {
    (void)state;
    const char *dir = run_dir(), *task = write_asks(dir, "");
    answers a = ask(dir, SETS("--model", TINY, "--task", task));
    assert_int_equal(a.n, 3);
    for (size_t i = 0; i < a.n; i++) {
        const tm_json *prompt = get(a.line[i], "arguments", "gen_args_0", "arg_0"),
                      *answer = get(a.line[i], "resps", NULL, NULL)->child;
        char *wanted = generated(prompt->text);
        assert_string_equal(answer->child->text, wanted);
        free(wanted);
    }
    drop(&a);
}

/* Log-likelihoods of a line of choices. */
static void same_likelihoods(const tm_json_doc *a, const tm_json_doc *b) {
    const tm_json *x = get(a, "resps", NULL, NULL)->child, *y = get(b, "resps", NULL, NULL)->child;
    for (; x; x = x->next, y = y->next)
        assert_true(fabs(strtod(x->child->child->text, NULL) - strtod(y->child->child->text, NULL)) < 1e-4);
}

/* One at a time or all at once: the same text of answers that are drawn. --limit leaves those that remain as they are. */
static void test_side_by_side(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "picks.jsonl"),
               *task = write_asks(dir, ", \"num_fewshot\": 1, \"fewshot_sampler\": \"random\", \"temperature\": 0.7");
    run_write(rows, picks);
    answers all = ask(dir, SETS("--model", TINY, "--task", task, "--task", rows, "--seed", "3"));
    answers one = ask(dir, SETS("--model", TINY, "--task", task, "--task", rows, "--seed", "3", "--batch-size", "1"));
    answers two = ask(dir, SETS("--model", TINY, "--task", task, "--limit", "2", "--seed", "3"));
    answers other = ask(dir, SETS("--model", TINY, "--task", task, "--limit", "2", "--seed", "4"));
    assert_int_equal(all.n, 6);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(get(all.line[i], "resps", NULL, NULL)->child->child->text,
                            get(one.line[i], "resps", NULL, NULL)->child->child->text);
    for (size_t i = 3; i < 6; i++) same_likelihoods(all.line[i], one.line[i]);
    assert_int_equal(two.n, 2);
    assert_memory_equal(all.text, two.text, strlen(two.text));
    assert_true(strcmp(two.text, other.text) != 0);
    assert_int_equal(get(two.result, "n-samples", "asks", "original")->integer, 3);
    assert_int_equal(get(two.result, "n-shot", "asks", NULL)->integer, 1);
    drop(&all);
    drop(&one);
    drop(&two);
    drop(&other);
}

/* What was written, as a task: the same answers. */
static void test_samples_again(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "picks.jsonl"), *copy = run_path(dir, "copy.jsonl");
    run_write(rows, picks);
    answers a = ask(dir, SETS("--model", TINY, "--task", rows));
    run_write(copy, a.text);
    answers b = ask(dir, SETS("--model", TINY, "--task", copy));
    assert_int_equal(b.n, 3);
    for (size_t i = 0; i < 3; i++) {
        same_likelihoods(a.line[i], b.line[i]);
        assert_true(get(a.line[i], "acc_norm", NULL, NULL)->number == get(b.line[i], "acc_norm", NULL, NULL)->number);
    }
    drop(&a);
    drop(&b);
}

static void refused(const char *want, const char *const *arguments) {
    const char *all[24] = {"eval", "--model", TINY}, *first;
    for (size_t i = 3, k = 0; arguments[k]; i++, k++) all[i] = arguments[k];
    run_result r = run_argv(&(run_opts){0}, all);
    if (r.status != 2 || !strstr(r.err, want) || run_error_lines(r.err, &first) != 1)
        fail_msg("exit status %d, expected 2 and \"%s\" in one line: %s", r.status, want, r.err);
    run_free(&r);
}

static void test_refused(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "picks.jsonl"), *bad = run_path(dir, "bad.jsonl"),
               *slow = run_path(dir, "slow.json");
    run_write(rows, picks);
    run_write(bad, run_format("%s{\"prompt\": 3}\n", picks));
    run_write(slow, run_format("{\"data\": \"%s\", \"filter_list\": [{\"name\": \"x\", \"filter\": [{\"function\": "
                               "\"regex\", \"regex_pattern\": "
                               "\"((a|b)*c\"}]}]}",
                               rows));
    refused("bad.jsonl:4: ", SETS("--task", bad));
    refused("another task is called picks", SETS("--task", rows, "--task", rows));
    refused("slow.json:1: the regular expression", SETS("--task", slow));
    refused("--samples is of tasks", SETS("--data", rows, "--samples", "x"));
    refused("no-such.jsonl", SETS("--task", "no-such.jsonl"));
    refused("out of range", SETS("--task", rows, "--batch-size", "1000"));
    refused("positions", SETS("--task", write_asks(dir, ""), "--max-new-tokens", "1000000"));
}

/* The least budget of an evaluation with the first `limit` of the rows. */
static uint64_t least(const char *rows, const char *limit) {
    run_result r =
        run((run_opts){0}, "eval", "--model", TINY, "--task", rows, "--limit", limit, "--host-budget", "1MiB", NULL);
    assert_int_equal(r.status, 2);
    uint64_t bytes = train_minimum(r.err);
    run_free(&r);
    return bytes;
}

/* Rows take memory: their text, and the ids of what is asked. */
static void test_rows_count(void **state) {
    (void)state;
    enum { ROWS = 2000, WORDS = 40 };
    tm_buf text = {0};
    const char *rows = run_path(run_dir(), "many.jsonl");
    for (int i = 0; i < ROWS; i++) {
        RUN_EXPECT_STATUS(tm_buf_printf(&text, "{\"prompt\": \""));
        for (int k = 0; k < WORDS; k++) RUN_EXPECT_STATUS(tm_buf_printf(&text, "tide "));
        RUN_EXPECT_STATUS(tm_buf_printf(&text, "%d\", \"choices\": [\"in\", \"out\"], \"gold\": 0}\n", i));
    }
    run_write(rows, text.data);
    uint64_t more = least(rows, "2000") - least(rows, "1"), each = text.len / ROWS;
    assert_in_range(more, ROWS * each, 16 * ROWS * each);
    tm_buf_free(&text);
}

/* What a run in fp16 made is asked in what the CPU multiplies, which is said. */
static void test_halves(void **state) {
    (void)state;
    const char *dir = run_dir(), *rows = run_path(dir, "one.jsonl"), *config = run_path(dir, "config.json");
    run_write(rows, "{\"prompt\": \"The tide comes\", \"choices\": [\"in\", \"out\"], \"gold\": 0}\n");
    run_write(config, "{\"model\": \"" TINY "\", \"precision\": \"fp16\", \"max_steps\": 1}\n");
    run_result r = run((run_opts){0}, "eval", "--config", config, "--model", TINY, "--task", rows, NULL);
    RUN_OK(&r);
    if (!strstr(r.err, "weights of f16 are multiplied as ")) fail_msg("not said: %s", r.err);
    run_free(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_choices, run_clean),
        cmocka_unit_test_teardown(test_answers, run_clean),
        cmocka_unit_test_teardown(test_side_by_side, run_clean),
        cmocka_unit_test_teardown(test_samples_again, run_clean),
        cmocka_unit_test_teardown(test_refused, run_clean),
        cmocka_unit_test_teardown(test_rows_count, run_clean),
        cmocka_unit_test_teardown(test_halves, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("tasks", tests, NULL, NULL);
}

/* A real pretrained model against what transformers makes of it: ids, losses, an answer, and steps of
 * fine-tuning (with TIDEMILL_LONG=1 all twenty, with all state on disk). */
#include "run.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MIB ((uint64_t)1 << 20)
enum { MAX_IDS = 512, FIRST_STEPS = 4 };

static const char *dir, *model, *tuned;
static tm_json_doc *doc;
static const tm_json *golden;
static bool tuned_whole; /* by all of the golden steps */

static int open_scene(void **state) {
    (void)state;
    size_t len;
    dir = run_dir();
    model = run_path(dir, "model");
    tuned = run_path(dir, "out");
    char *text = run_read(smollm2_fixture("golden.json"), &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "golden.json", 0, 0));
    free(text);
    golden = tm_json_root(doc);
    run_result r = run((run_opts){.timeout_s = 300}, "convert", smollm2_gguf(), model, NULL);
    RUN_OK(&r);
    run_free(&r);
    return 0;
}

static int close_scene(void **state) {
    tm_json_free(doc);
    return run_clean(state);
}

static const tm_json *at(const tm_json *o, const char *key) {
    const tm_json *n = tm_json_get(o, key);
    if (!n) fail_msg("golden.json or an answer has no %s", key);
    return n;
}

static size_t ids_of(const tm_json *array, int64_t *out) {
    size_t n = 0;
    for (const tm_json *i = array->child; i; i = i->next) {
        assert_true(n < MAX_IDS && i->is_integer);
        out[n++] = i->integer;
    }
    return n;
}

static void same_ids(const tm_json *got, const tm_json *want) {
    int64_t a[MAX_IDS], b[MAX_IDS];
    size_t n = ids_of(got, a), m = ids_of(want, b);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n * sizeof *a);
}

/* One JSON object of `out`, parsed; freed by the caller. */
static tm_json_doc *parse(const char *out, size_t len) {
    tm_json_doc *d;
    RUN_EXPECT_STATUS(tm_json_parse(&d, out, len, "stdout", 0, 0));
    return d;
}

/* {"key": node} as one line. */
static const char *line_of(const char *key, const tm_json *node) {
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, 0);
    tm_jw_object(&w);
    tm_jw_key(&w, key);
    tm_jw_node(&w, node);
    tm_jw_object_end(&w);
    RUN_EXPECT_STATUS(tm_jw_end(&w));
    const char *line = run_format("%s\n", out.data);
    tm_buf_free(&out);
    return line;
}

static void near_rel(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s: %.9g, golden %.9g, allowed %.2g relative", what, got, want, tolerance);
}

/* ---- text ------------------------------------------------------------------------------------------------ */

static void test_tokenize(void **state) {
    (void)state;
    for (const tm_json *t = at(golden, "texts")->child; t; t = t->next) {
        run_result r = run((run_opts){.input = line_of("text", at(t, "text"))}, "tokenize", "--model", model, NULL);
        RUN_OK(&r);
        tm_json_doc *d = parse(r.out, r.out_len);
        same_ids(at(tm_json_root(d), "ids"), at(t, "ids"));
        tm_json_free(d);
        run_free(&r);
    }
}

static void test_chat(void **state) {
    (void)state;
    const tm_json *c = at(golden, "chat");
    run_result r = run((run_opts){.input = line_of("messages", at(c, "messages"))}, "chat", "--model", model, NULL);
    RUN_OK(&r);
    tm_json_doc *d = parse(r.out, r.out_len);
    assert_string_equal(at(tm_json_root(d), "text")->text, at(c, "text")->text);
    same_ids(at(tm_json_root(d), "ids"), at(c, "ids"));
    /* learned is what follows the prompt, its end-of-turn token included */
    int64_t mask[MAX_IDS], prompt[MAX_IDS];
    size_t n = ids_of(at(tm_json_root(d), "loss_mask"), mask), m = ids_of(at(c, "prompt_ids"), prompt);
    assert_true(m < n);
    for (size_t i = 0; i < m; i++) assert_int_equal(mask[i], 0);
    assert_int_equal(mask[m], 1);
    tm_json_free(d);
    run_free(&r);
}

/* The GGUF file itself is a model too: the same ids, the same first loss. */
static void test_gguf_is_a_model(void **state) {
    (void)state;
    const tm_json *t = at(golden, "texts")->child;
    run_result r =
        run((run_opts){.input = line_of("text", at(t, "text"))}, "tokenize", "--model", smollm2_gguf(), NULL);
    RUN_OK(&r);
    tm_json_doc *d = parse(r.out, r.out_len);
    same_ids(at(tm_json_root(d), "ids"), at(t, "ids"));
    tm_json_free(d);
    run_free(&r);
}

/* ---- forward --------------------------------------------------------------------------------------------- */

/* Mean next-token loss of a golden text's ids. */
static double loss_of(const char *folder, const tm_json *ids) {
    int64_t id[MAX_IDS];
    size_t n = ids_of(ids, id);
    tm_st_writer *w;
    uint32_t a, b;
    const char *in = run_path(dir, "in.safetensors"), *out = run_path(dir, "out.safetensors");
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, in));
    RUN_EXPECT_STATUS(tm_st_writer_add(w, "input_ids", TM_FMT_I64, 2, (uint64_t[]){1, n}, &a));
    RUN_EXPECT_STATUS(tm_st_writer_add(w, "labels", TM_FMT_I64, 2, (uint64_t[]){1, n}, &b));
    RUN_EXPECT_STATUS(tm_st_writer_write(w, a, 0, id, n * sizeof *id));
    RUN_EXPECT_STATUS(tm_st_writer_write(w, b, 0, id, n * sizeof *id));
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    run_result r = run((run_opts){0}, "probe", "--model", folder, "--input", in, "--output", out, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *st = tensors_open(out);
    tensor loss = tensor_read(st, "loss");
    double v = (double)loss.v[0];
    free(loss.v);
    tm_st_close(st);
    return v;
}

static void test_losses(void **state) {
    (void)state;
    for (const tm_json *t = at(golden, "texts")->child; t; t = t->next)
        near_rel("loss of a text", loss_of(model, at(t, "ids")), at(t, "loss")->number, 1e-4);
    const tm_json *t = at(golden, "texts")->child;
    near_rel("loss from GGUF", loss_of(smollm2_gguf(), at(t, "ids")), at(t, "loss")->number, 1e-4);
}

/* `eval` over all the fixture's rows of the first step gives that step's loss, whatever the budget. */
static void test_eval(void **state) {
    (void)state;
    const char *rows = run_path(dir, "rows4.safetensors");
    tm_st *st = tensors_open(smollm2_fixture("golden.safetensors"));
    rows_write(rows, st, 0, 4, 256, false);
    tm_st_close(st);
    double want = at(at(at(golden, "finetune"), "steps")->child, "loss")->number, first = NAN;
    assert_int_equal(mkdir(run_path(dir, "offload"), 0700), 0);
    for (int paged = 0; paged < 2; paged++) {
        run_result r =
            paged ? run((run_opts){.timeout_s = 300}, "eval", "--model", model, "--data", rows, "--json",
                        "--host-budget", "400MiB", "--offload-path", run_path(dir, "offload"), NULL)
                  : run((run_opts){.timeout_s = 300}, "eval", "--model", model, "--data", rows, "--json", NULL);
        RUN_OK(&r);
        tm_json_doc *d = parse(r.out, r.out_len);
        double loss = at(tm_json_root(d), "loss")->number;
        near_rel("eval", loss, want, 1e-4);
        near_rel("perplexity", at(tm_json_root(d), "perplexity")->number, exp(loss), 1e-9);
        if (paged) assert_true(loss == first);
        if (paged) assert_true(r.peak_bytes <= 399 * MIB); /* all is counted: the tokenizer alone would be 3 MiB */
        first = loss;
        tm_json_free(d);
        run_free(&r);
    }
    assert_int_equal(run_entries(run_path(dir, "offload")), 0);
}

static void test_greedy(void **state) {
    (void)state;
    const tm_json *g = at(golden, "greedy");
    const char *messages = run_path(dir, "messages.json");
    run_write(messages, "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}");
    run_result r =
        run((run_opts){.timeout_s = 300}, "generate", "--model", model, "--messages", messages, "--json", NULL);
    RUN_OK(&r);
    tm_json_doc *d = parse(r.out, r.out_len);
    same_ids(at(tm_json_root(d), "prompt_ids"), at(g, "prompt_ids"));
    same_ids(at(tm_json_root(d), "ids"), at(g, "new_ids"));
    assert_string_equal(at(tm_json_root(d), "finish_reason")->text, "stop");
    assert_string_equal(at(tm_json_root(d), "text")->text, "The capital of France is Paris."); /* without <|im_end|> */
    tm_json_free(d);
    run_free(&r);
}

/* ---- fine-tuning
 * ------------------------------------------------------------------------------------------------------ */

static double setting(const char *key) {
    return at(at(golden, "settings"), key)->number;
}

static const char *write_config(void) {
    const char *path = run_path(dir, "config.json"), *rows = run_path(dir, "rows.safetensors");
    tm_st *st = tensors_open(smollm2_fixture("golden.safetensors"));
    assert_string_equal(at(at(golden, "settings"), "schedule")->text,
                        "constant"); /* fewer steps are the first of these */
    rows_write(rows, st, 0, (size_t)(setting("steps") * setting("micro") * setting("accum")), (size_t)setting("seq"),
               false);
    tm_st_close(st);
    const tm_json *beta = at(at(golden, "settings"), "betas")->child;
    run_write(path,
              run_format("{\"model\": \"%s\", \"precision\": \"fp32\", \"data\": {\"train\": \"%s\"},\n"
                         " \"learning_rate\": %.17g, \"weight_decay\": %.17g, \"adam_beta1\": %.17g,\n"
                         " \"adam_beta2\": %.17g, \"adam_epsilon\": %.17g, \"max_grad_norm\": %.17g,\n"
                         " \"lr_scheduler_type\": \"%s\", \"max_steps\": %d, \"save_steps\": 0, \"commit_steps\": 0,\n"
                         " \"per_device_train_batch_size\": %d, \"gradient_accumulation_steps\": %d,\n"
                         " \"memory\": {\"host_budget\": \"1GiB\"}}\n",
                         model, rows, setting("lr"), setting("wd"), beta->number, beta->next->number, setting("eps"),
                         setting("clip"), at(at(golden, "settings"), "schedule")->text, (int)setting("steps"),
                         (int)setting("micro"), (int)setting("accum")));
    return path;
}

static void test_finetune(void **state) {
    (void)state;
    /* with everything on NVMe; in CI the first steps as the planner has it, which keeps a part of it */
    const bool all = TEST_LONG("everything on NVMe, 512 MiB, 20 steps, and the losses after them");
    const unsigned steps = all ? (unsigned)setting("steps") : FIRST_STEPS;
    train_log log = all ? run_train(write_config(), tuned, 512 * MIB, &(run_opts){.timeout_s = 900},
                                    SETS("memory.host_budget=512MiB", "memory.cache=none"))
                        : run_train(write_config(), tuned, 1024 * MIB, &(run_opts){.timeout_s = 300},
                                    SETS(run_format("max_steps=%u", steps)));
    const tm_json *want = at(at(golden, "finetune"), "steps")->child;
    double worst_loss = 0, worst_norm = 0;
    assert_int_equal(log.steps, steps);
    for (unsigned s = 0; s < steps; s++, want = want->next) {
        assert_non_null(want);
        double loss = at(want, "loss")->number, norm = at(want, "grad_norm")->number;
        near_rel(run_format("loss of step %u", s + 1), log.step[s].loss, loss, 1e-4);
        near_rel(run_format("gradient norm of step %u", s + 1), log.step[s].grad_norm, norm, 1e-3);
        worst_loss = fmax(worst_loss, fabs(log.step[s].loss / loss - 1));
        worst_norm = fmax(worst_norm, fabs(log.step[s].grad_norm / norm - 1));
    }
    assert_true(log.step[1].read_bytes > 0 && log.step[1].write_bytes > 0);
    tuned_whole = all;
    print_message("  %u steps in %.1f s; largest relative difference: loss %.2g, norm %.2g; peak %.1f MiB; %.2f bytes "
                  "read and %.2f written for each parameter and step\n",
                  log.steps, log.seconds, worst_loss, worst_norm, (double)log.host_peak / (double)MIB,
                  (double)log.step[1].read_bytes / 134515008.0, (double)log.step[1].write_bytes / 134515008.0);
}

static void test_losses_after(void **state) {
    (void)state;
    const tm_json *want = at(golden, "after")->child;
    if (!tuned_whole) TEST_SKIP("all steps: with TIDEMILL_LONG=1");
    for (const tm_json *t = at(golden, "texts")->child; t; t = t->next, want = want->next) {
        assert_non_null(want);
        near_rel("loss after fine-tuning", loss_of(tuned, at(t, "ids")), want->number, 1e-4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenize), cmocka_unit_test(test_chat),         cmocka_unit_test(test_gguf_is_a_model),
        cmocka_unit_test(test_losses),   cmocka_unit_test(test_eval),         cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_finetune), cmocka_unit_test(test_losses_after),
    };
    if (!smollm2_gguf()) {
        TEST_SKIP_PROGRAM("SmolLM2-135M-Instruct is not at %s/models", TM_TEST_SHARED);
    }
    return cmocka_run_group_tests_name("train_smollm2", tests, open_scene, close_scene);
}

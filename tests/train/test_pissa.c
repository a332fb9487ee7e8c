/* PiSSA: what is subtracted from the base is what A and B began as. PEFT's logits, gradients, trajectory and products
 * (fixtures/peft_pissa); its folder, taken up again; one hash whatever is cached and after a stop. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADAPTER TM_TEST_FIXTURES "/peft_pissa"
#define BASE TM_TEST_FIXTURES "/peft_qwen3_base"

/* All steps' rows, or those of the first. */
static const char *rows(const char *dir, size_t n) {
    const char *path = run_path(dir, run_format("rows-%zu.safetensors", n));
    tm_st *inputs = tensors_open(BASE "/golden.safetensors");
    rows_write(path, inputs, 0, n, 24, false);
    tm_st_close(inputs);
    return path;
}

static const char *probe(const char *dir, const char *adapter, const char *name) {
    const char *out = run_path(dir, name);
    run_result r = run((run_opts){0}, "probe", "--model", BASE, "--adapter", adapter, "--input", rows(dir, 2),
                       "--output", out, "--grads", NULL);
    RUN_OK(&r);
    run_free(&r);
    return out;
}

static void same(const tm_st *got, const tm_st *want, const char *name, double relative) {
    tensor a = tensor_read(got, name), b = tensor_read(want, name);
    double off = 0, size = 0;
    assert_int_equal(a.n, b.n);
    for (size_t i = 0; i < a.n; i++) {
        double d = (double)a.v[i] - (double)b.v[i];
        off += d * d, size += (double)b.v[i] * (double)b.v[i];
    }
    if (!(sqrt(off) <= relative * sqrt(size))) fail_msg("%s: %g of %g", name, sqrt(off), sqrt(size));
    free(a.v), free(b.v);
}

static void as_peft(void **state) {
    (void)state;
    tm_st *got = tensors_open(probe(run_dir(), ADAPTER, "out.safetensors"));
    tm_st *want = tensors_open(ADAPTER "/golden.safetensors");
    unsigned grads = 0;
    same(got, want, "logits", 2e-5);
    for (uint32_t i = 0; i < tm_st_count(want); i++) {
        const char *name = tm_st_get(want, i)->name;
        if (strncmp(name, "grad.", 5) != 0) continue;
        same(got, want, name, 5e-5);
        grads++;
    }
    assert_int_equal(grads, 2 * 2 * 3);
    tm_st_close(got), tm_st_close(want);
}

static const char *config(const char *dir, const char *name, const char *more) {
    const char *path = run_path(dir, name);
    run_write(path, run_format(
                        "{\"model\": \"" BASE "\", \"precision\": \"fp32\", \"data\": {\"train\": \"%s\", "
                        "\"shuffle\": false, \"seq_len\": 24}, \"per_device_train_batch_size\": 2, \"learning_rate\": "
                        "1e-3, \"adapter\": {\"r\": 3, \"lora_alpha\": 7, \"target_modules\": [\"q_proj\", \"o_proj\", "
                        "\"up_proj\"]%s}",
                        rows(dir, 10), more));
    return path;
}

/* scale B A of a folder's module against a golden matrix. */
static void same_product(const char *folder, const tm_st *golden, const char *name, const char *module) {
    tm_st *st = tensors_open(run_path(folder, "adapter_model.safetensors"));
    tensor a = tensor_read(st, run_format("base_model.model.%s.lora_A.weight", module));
    tensor b = tensor_read(st, run_format("base_model.model.%s.lora_B.weight", module)),
           want = tensor_read(golden, name);
    size_t in = a.n / 3;
    for (size_t i = 0; i < want.n; i++) {
        double sum = 0;
        for (size_t k = 0; k < 3; k++) sum += (double)b.v[i / in * 3 + k] * (double)a.v[k * in + i % in];
        if (!(fabs(7.0 / 3 * sum - (double)want.v[i]) <= 1e-5))
            fail_msg("%s[%zu]: %g, not %g", name, i, 7.0 / 3 * sum, (double)want.v[i]);
    }
    free(a.v), free(b.v), free(want.v);
    tm_st_close(st);
}

static void same_products(const char *out) {
    static const char first[] = "product.", last[] = "final_product.";
    tm_st *golden = tensors_open(ADAPTER "/golden.safetensors");
    unsigned seen = 0;
    for (uint32_t i = 0; i < tm_st_count(golden); i++) {
        const char *name = tm_st_get(golden, i)->name;
        bool begin = strncmp(name, first, sizeof first - 1) == 0, end = strncmp(name, last, sizeof last - 1) == 0;
        if (!begin && !end) continue;
        const char *from = name + (begin ? sizeof first : sizeof last) - 1;
        const char *module = run_format("%.*s", (int)(strlen(from) - strlen(".weight")), from);
        same_product(begin ? run_path(out, "pissa_init") : out, golden, name, module);
        seen++;
    }
    assert_int_equal(seen, 2 * 6);
    tm_st_close(golden);
}

static void numbers_near(const tm_json *want, const train_log *log, bool norm, double bound) {
    unsigned i = 0;
    for (const tm_json *w = want->child; w; w = w->next, i++) {
        double got = norm ? log->step[i].grad_norm : log->step[i].loss;
        if (!(fabs(got - w->number) <= bound * (norm ? w->number : 1)))
            fail_msg("step %u: %g, not %g", i + 1, got, w->number);
    }
    assert_int_equal(i, log->steps);
}

static void trajectory(void **state) {
    (void)state;
    const char *dir = run_dir(), *out = run_path(dir, "out");
    const char *path = config(dir, "config.json",
                              ", \"init_lora_weights\": \"pissa\"}, \"max_steps\": 5, "
                              "\"lr_scheduler_type\": \"linear\", \"warmup_steps\": 1");
    train_log log = run_train(path, out, 0, NULL, SETS(NULL));
    size_t len;
    tm_json_doc *doc;
    char *text = run_read(ADAPTER "/golden.json", &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "golden.json", 0, 0));
    const tm_json *want = tm_json_get(tm_json_root(doc), "trajectory");
    numbers_near(tm_json_get(want, "loss"), &log, false, 2e-5);
    numbers_near(tm_json_get(want, "grad_norm"), &log, true, 1e-4);
    tm_json_free(doc);
    free(text);
    same_products(out);
    train_log paged = run_train(path, run_path(dir, "paged"), 0, NULL, SETS("memory.cache=none"));
    assert_string_equal(paged.hash, log.hash);
}

static double loss_of(const char *dir, const char *model, const char *adapter) {
    run_result r = adapter ? run((run_opts){0}, "eval", "--model", model, "--adapter", adapter, "--data", rows(dir, 10),
                                 "--json", NULL)
                           : run((run_opts){0}, "eval", "--model", model, "--data", rows(dir, 10), "--json", NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "eval", 0, 0));
    double loss = tm_json_get(tm_json_root(doc), "loss")->number;
    tm_json_free(doc);
    run_free(&r);
    return loss;
}

/* Drawn at random, the first A and B are in the folder; merged, as plain LoRA, and by itself it is one model. */
static void randomised(void **state) {
    (void)state;
    const char *dir = run_dir(), *out = run_path(dir, "out"), *merged = run_path(dir, "merged"),
               *plain = run_path(dir, "plain");
    const char *path = config(dir, "config.json",
                              ", \"init_lora_weights\": \"pissa_niter_2\"}, \"max_steps\": 4, "
                              "\"lr_scheduler_type\": \"constant\"");
    train_log log = run_train(path, out, 0, NULL, SETS(NULL));
    run_result r = run((run_opts){0}, "export", out, merged, "--merge-adapter", NULL);
    RUN_OK(&r);
    run_free(&r);
    r = run((run_opts){0}, "export", out, plain, NULL);
    RUN_OK(&r);
    run_free(&r);
    double loss = loss_of(dir, BASE, out);
    assert_true(fabs(loss - loss_of(dir, merged, NULL)) < 1e-5);
    assert_true(fabs(loss - loss_of(dir, BASE, plain)) < 1e-5);
    assert_true(loss < loss_of(dir, BASE, NULL) - 0.01);
    const char *stopped = run_path(dir, "stopped"), *set = run_format("output_dir=%s", stopped);
    static const char *const steps[] = {"max_steps=2", "max_steps=4"};
    for (unsigned i = 0; i < 2; i++) {
        r = run((run_opts){0}, "train", path, "--set", set, "--set", steps[i], "--set", "keep_state=true", NULL);
        RUN_OK(&r);
        run_free(&r);
    }
    train_log again = train_log_read(stopped);
    assert_string_equal(again.hash, log.hash);
    assert_true(fabs(loss - loss_of(dir, BASE, stopped)) < 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(as_peft, run_clean),
                                       cmocka_unit_test_teardown(trajectory, run_clean),
                                       cmocka_unit_test_teardown(randomised, run_clean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

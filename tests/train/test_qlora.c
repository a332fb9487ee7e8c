/* An adapter on a base of 4-bit blocks that is read where it lies: PEFT's logits and gradients (fixtures/peft_qlora), also
 * where the base is not writable; a plain folder of the same values gives the same bits. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ADAPTER TM_TEST_FIXTURES "/peft_qlora"

static const char *batch(const char *dir) {
    const char *path = run_path(dir, "in.safetensors");
    tm_st *inputs = tensors_open(TM_TEST_FIXTURES "/peft_base/golden.safetensors");
    rows_write(path, inputs, 0, 2, 32, false);
    tm_st_close(inputs);
    return path;
}

static const char *probe(const char *dir, const char *base, const char *name) {
    const char *out = run_path(dir, name);
    run_result r = run((run_opts){0}, "probe", "--model", base, "--adapter", ADAPTER, "--input", batch(dir), "--output",
                       out, "--grads", NULL);
    RUN_OK(&r);
    run_free(&r);
    return out;
}

/* |a - b| over |b|, of all elements. */
static double distance(const tensor *a, const tensor *b) {
    double off = 0, size = 0;
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        double d = (double)a->v[i] - (double)b->v[i];
        off += d * d;
        size += (double)b->v[i] * (double)b->v[i];
    }
    return sqrt(off / size);
}

static void as_peft(void **state) {
    (void)state;
    const char *dir = run_dir();
    tm_st *got = tensors_open(probe(dir, ADAPTER "/base_nf4", "out.safetensors"));
    tm_st *want = tensors_open(ADAPTER "/golden.safetensors");
    tensor a = tensor_read(got, "logits"), b = tensor_read(want, "logits");
    for (size_t i = 0; i < a.n; i++)
        if (!(fabsf(a.v[i] - b.v[i]) <= 3e-5F)) fail_msg("logit %zu: %g, not %g", i, (double)a.v[i], (double)b.v[i]);
    free(a.v), free(b.v);
    unsigned grads = 0;
    for (uint32_t i = 0; i < tm_st_count(want); i++) {
        const char *name = tm_st_get(want, i)->name;
        if (strncmp(name, "grad.", 5) != 0) continue;
        a = tensor_read(got, name), b = tensor_read(want, name);
        double off = distance(&a, &b);
        if (!(off <= 5e-5)) fail_msg("%s: %g", name, off);
        free(a.v), free(b.v);
        grads++;
    }
    assert_int_equal(grads, 2 * 2 * 7);
    tm_st_close(got), tm_st_close(want);
}

/* The values are the same, so is all that is computed of them. */
static void as_its_values(void **state) {
    (void)state;
    const char *dir = run_dir(), *plain = run_path(dir, "plain"), *base = run_path(dir, "base");
    run_copy_model(ADAPTER "/base_nf4", base);
    assert_int_equal(chmod(run_path(base, "model.safetensors"), 0444), 0);
    assert_int_equal(chmod(base, 0555), 0);
    run_result r = run((run_opts){0}, "convert", base, plain, "--dtype", "f32", NULL);
    RUN_OK(&r);
    run_free(&r);
    size_t n, m;
    char *a = run_read(probe(dir, base, "a.safetensors"), &n), *b = run_read(probe(dir, plain, "b.safetensors"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a), free(b);
    assert_int_equal(chmod(base, 0755), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(as_peft, run_clean),
        cmocka_unit_test_teardown(as_its_values, run_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

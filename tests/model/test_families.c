/* What the contract of model.h promises, of each family in odd sizes: gradients are the slopes of the loss; orders of
 * stages and micro-batches, and recomputation, change no bit; separate parts and a key-value cache compute the same. */
#include "driver.h"
#include "tests/support/families.h"
#include "kernels/kernels.h"
#include "model/model_internal.h"
#include "tests/support/support.h"
#include "world.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tm_model *family_model(const struct family *f, tm_dtype compute, bool fused) {
    tm_model_config c;
    tm_model *m;
    OK(tm_model_config_parse(&c, f->json, strlen(f->json), f->name));
    OK(model_create_fused(&m, &c, compute, fused ? MODEL_FUSED_ELEMENTS : 100));
    return m;
}

static uint32_t vocabulary(const tm_model *m) {
    return tm_model_get_config(m)->vocab_size;
}

/* ---- slopes ---- */

/* A line through a tensor's values. */
typedef struct line {
    run *r;
    uint32_t tensor;
    uint64_t n;
    float *base, *at;
    double *direction; /* [n], of length 1 */
    double distance;   /* of the points that are looked at: this and twice this */
} line;

static double loss_at(const line *l, double distance) {
    uint64_t labels;
    for (uint64_t i = 0; i < l->n; i++) l->at[i] = (float)((double)l->base[i] + distance * l->direction[i]);
    run_set_tensor(l->r, l->tensor, l->at);
    run_forward(l->r, BATCH_OUTER);
    return run_loss(l->r, NULL, &labels);
}

/* Two central differences, extrapolated: what is left goes with the fourth power of the distance. */
static double slope(const line *l) {
    double d[2];
    for (int i = 0; i < 2; i++) {
        double distance = l->distance * (1 + i);
        d[i] = (loss_at(l, distance) - loss_at(l, -distance)) / (2 * distance);
    }
    run_set_tensor(l->r, l->tensor, l->base);
    return (4 * d[0] - d[1]) / 3;
}

static double length(const double *x, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* Direction 0 is the gradient's own, where what it has too much shows; the others are random, where what it lacks does.
 * Along its own the loss is steep: the points are nearer. */
static void choose_direction(line *l, const float *gradient, unsigned which) {
    for (uint64_t i = 0; i < l->n; i++) {
        double pair[2];
        tm_philox_normal2(100 * l->tensor + which, i / 2, pair);
        l->direction[i] = which ? pair[i % 2] : (double)gradient[i];
    }
    double size = length(l->direction, l->n);
    for (uint64_t i = 0; i < l->n; i++) l->direction[i] = size > 0 ? l->direction[i] / size : 0;
    l->distance = which ? 0.04 : 0.01;
}

/* The largest difference of a slope and the gradient along it, in units of what is allowed. The mean loss, about 6, is
 * right to some 1e-7 in fp32: over the distance between the points that is below 1e-5 (a random direction) and 3e-5.
 * What the extrapolation leaves is below 1e-4 of the slope. Twice that is allowed. */
static double check_tensor(line *l, const float *gradient) {
    enum { DIRECTIONS = 3 };
    double worst = 0;
    for (unsigned which = 0; which < DIRECTIONS; which++) {
        double along = 0;
        choose_direction(l, gradient, which);
        for (uint64_t i = 0; i < l->n; i++) along += (double)gradient[i] * l->direction[i];
        double allowed = (which ? 2e-5 : 6e-5) + 2e-4 * fabs(along);
        worst = fmax(worst, fabs(slope(l) - along) / allowed);
    }
    return worst;
}

static void slopes(void **state) {
    const struct family *f = *state;
    tm_model *m = family_model(f, TM_F32, true);
    tokens t = make_tokens(3, 23, vocabulary(m), 4);
    double worst = 0;
    run r;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 9);
    whole_step(&r, BATCH_OUTER);
    for (uint32_t x = 0; x < tm_model_tensors(m); x++) {
        uint64_t n = tm_model_tensor(m, x)->elements;
        float *gradient = malloc(n * sizeof *gradient);
        line l = {.r = &r, .tensor = x, .n = n};
        l.base = malloc(n * sizeof *l.base), l.at = malloc(n * sizeof *l.at);
        l.direction = malloc(n * sizeof *l.direction);
        lively_values(tm_model_tensor(m, x), 9, l.base);
        run_tensor_grad(&r, x, gradient);
        double here = check_tensor(&l, gradient);
        worst = fmax(worst, here);
        if (!(here <= 1)) fail_msg("%s %s: %.3g times what is allowed", f->name, tm_model_tensor(m, x)->name, here);
        free(gradient), free(l.base), free(l.at), free(l.direction);
    }
    printf("%s: slopes differ by %.2g of what is allowed\n", f->name, worst);
    run_close(&r);
    free_tokens(&t);
    tm_model_free(m);
}

/* ---- the same bits ---- */

typedef struct way {
    run_order order;
    bool recompute;
} way;

static void same_bits(const tm_model *m) {
    static const way ways[] = {{BATCH_OUTER, false}, {STAGE_OUTER, false}, {BATCH_OUTER, true}, {STAGE_OUTER, true}};
    uint32_t v = vocabulary(m);
    tokens t[3] = {make_tokens(2, 9, v, 1), make_tokens(1, 67, v, 2), make_tokens(3, 1, v, 3)};
    tm_micro_batch batches[3] = {t[0].batch, t[1].batch, t[2].batch};
    run r[TM_COUNT(ways)];
    for (size_t i = 0; i < TM_COUNT(ways); i++) {
        uint64_t n;
        run_open(&r[i], m, 3, batches);
        r[i].recompute = ways[i].recompute;
        lively_weights(&r[i], 3);
        whole_step(&r[i], ways[i].order);
        assert_true(same_gradients(&r[0], &r[i]));
        assert_true(run_loss(&r[0], NULL, &n) == run_loss(&r[i], NULL, &n));
    }
    finite_gradients(&r[0]);
    for (size_t i = 0; i < TM_COUNT(ways); i++) run_close(&r[i]);
    for (int i = 0; i < 3; i++) free_tokens(&t[i]);
}

static void schedules(void **state) {
    static const struct {
        tm_dtype type;
        bool fused;
    } cases[] = {{TM_F32, true}, {TM_F32, false}, {TM_BF16, true}, {TM_F16, false}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_model *m = family_model(*state, cases[i].type, cases[i].fused);
        same_bits(m);
        tm_model_free(m);
    }
}

/* ---- the same within rounding ---- */

/* Sums over q, k and v (gate and up) are in another order. */
static void separate_parts(void **state) {
    tm_model *m[2] = {family_model(*state, TM_F32, true), family_model(*state, TM_F32, false)};
    tokens t = make_tokens(2, 40, vocabulary(m[0]), 1);
    run r[2];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        uint64_t n;
        run_open(&r[i], m[i], 1, &t.batch);
        lively_weights(&r[i], 5);
        whole_step(&r[i], BATCH_OUTER);
        loss[i] = run_loss(&r[i], NULL, &n);
    }
    assert_true(fabs(loss[0] - loss[1]) < 1e-5);
    assert_near_gradients(&r[0], &r[1]);
    for (int i = 0; i < 2; i++) run_close(&r[i]), tm_model_free(m[i]);
    free_tokens(&t);
}

static void cache(void **state) {
    tm_model *m = family_model(*state, TM_F32, true);
    double worst = cache_difference(m);
    printf("cache: logits differ by %.3g\n", worst);
    assert_true(worst <= 4e-5);
    tm_model_free(m);
}

/* Each family's tests, named "FAMILY NAME". */
enum { KINDS = 4, TESTS = KINDS * (int)TM_COUNT(families) };

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } kinds[KINDS] = {{"slopes", slopes}, {"schedules", schedules}, {"separate", separate_parts}, {"cache", cache}};
    static char names[TESTS][64];
    static struct CMUnitTest tests[TESTS];
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    /* of models as small as these a second thread would mostly wait */
    if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) return fprintf(stderr, "%s\n", tm_error_get()->text), 1;
    printf("%s\n", tm_kernels_describe());
    for (size_t i = 0; i < TESTS; i++) {
        const struct family *f = &families[i / KINDS];
        snprintf(names[i], sizeof names[i], "%s %s", f->name, kinds[i % KINDS].name);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = kinds[i % KINDS].test, .initial_state = (void *)(uintptr_t)f};
    }
    int failed = _cmocka_run_group_tests("test_families", tests, TESTS, NULL, NULL);
    tm_kernels_close();
    return failed;
}

/* What the contract of model.h promises, of each family in odd sizes: gradients are the slopes of the loss; orders of
 * stages and micro-batches, and recomputation, change no bit; separate parts and a key-value cache compute the same. */
#include "driver.h"
#include "slopes.h"
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

static void slopes(void **state) {
    const struct family *f = *state;
    tm_model *m = family_model(f, TM_F32, true);
    tokens t = make_tokens(3, 23, vocabulary(m), 4);
    run r;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 9);
    whole_step(&r, BATCH_OUTER);
    double worst = check_slopes(&r, 9, f->name);
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

/* ---- packed rows ---- */

enum { DOCUMENTS = 6, PACKED = 2, PACKED_SEQ = 75 };
static const uint32_t document[DOCUMENTS] = {1, 40, 34, 67, 6, 2}; /* the first three make row 0; the last is padding */

static void add_logits(run *r, unsigned batch, uint32_t n, float *to) {
    uint32_t vocab = tm_model_get_config(r->m)->vocab_size;
    float *all = malloc((size_t)r->batch[batch].tokens * vocab * sizeof *all);
    run_logits(r, batch, all);
    memcpy(to, all, (size_t)n * vocab * sizeof *to);
    free(all);
}

/* Documents as rows of micro-batches of their own. */
static void take_apart(const tokens *packed, tokens apart[DOCUMENTS], tm_micro_batch *batch) {
    for (uint32_t i = 0, at = 0; i < DOCUMENTS; at += document[i++]) {
        apart[i] = make_tokens(1, document[i], 2, 0);
        memcpy(apart[i].ids, packed->ids + at, document[i] * sizeof *packed->ids);
        memcpy(apart[i].labels, packed->labels + at, document[i] * sizeof *packed->labels);
        memcpy(apart[i].mask, packed->mask + at, document[i]);
        batch[i] = apart[i].batch;
    }
}

static tokens pack(uint32_t vocab, uint32_t *begin) {
    tokens t = make_tokens(PACKED, PACKED_SEQ, vocab, 6);
    for (uint32_t i = 0, at = 0; i < DOCUMENTS; at += document[i++])
        for (uint32_t s = 0; s < document[i]; s++) {
            bool padding = i + 1 == DOCUMENTS;
            begin[at + s] = at % PACKED_SEQ;
            t.mask[at + s] = !padding;
            if (padding) t.labels[at + s] = -100;
        }
    t.batch.begin = begin;
    return t;
}

/* The same to rounding: products and sums over tokens go over other rows, attention and rotation make the same bits
 * (test_modes). */
static void documents(void **state) {
    tm_model *m = family_model(*state, TM_F32, true);
    uint32_t begin[PACKED * PACKED_SEQ + 64] = {0}, vocab = vocabulary(m);
    tm_model_set_positions(m, PACKED_SEQ);
    tokens packed = pack(vocab, begin), apart[DOCUMENTS];
    tm_micro_batch batch[DOCUMENTS];
    take_apart(&packed, apart, batch);
    run p, a;
    run_open(&p, m, 1, &packed.batch), run_open(&a, m, DOCUMENTS, batch);
    lively_weights(&p, 7), lively_weights(&a, 7);
    whole_step(&p, BATCH_OUTER), whole_step(&a, BATCH_OUTER);
    size_t n = (size_t)PACKED * PACKED_SEQ * vocab;
    float *got = malloc(n * sizeof *got), *want = malloc(n * sizeof *want);
    add_logits(&p, 0, PACKED * PACKED_SEQ, got);
    for (uint32_t i = 0, at = 0; i < DOCUMENTS; at += document[i++])
        add_logits(&a, i, document[i], want + (size_t)at * vocab);
    double worst = 0;
    for (size_t i = 0; i < n - (size_t)document[DOCUMENTS - 1] * vocab; i++) {
        double difference = fabs((double)(got[i] - want[i]));
        if (!(difference <= 4e-5)) fail_msg("logit %zu: %g, alone %g", i, (double)got[i], (double)want[i]);
        worst = fmax(worst, difference);
    }
    printf("packed: logits differ by %.3g\n", worst);
    assert_near_gradients(&p, &a);
    run_close(&p), run_close(&a);
    free_tokens(&packed);
    for (int i = 0; i < DOCUMENTS; i++) free_tokens(&apart[i]);
    free(got), free(want);
    tm_model_free(m);
}

/* ---- what is multiplied ---- */

/* Products of the model that is under way, which tm_model_products described. */
static struct {
    tm_products said;
    uint64_t vocabulary;
    unsigned others, products;
} multiplied;

static void check_width(uint64_t width) {
    bool known = width == multiplied.vocabulary;
    for (uint32_t i = 0; i < multiplied.said.n_widths; i++) known |= multiplied.said.width[i] == width;
    multiplied.others += !known;
}

/* Of activations and a matrix, or of two activations: then the depth is rows. */
static void watched_gemm(const tm_gemm_args *g) {
    uint64_t rows = g->a_trans ? g->k : g->m;
    multiplied.products++;
    multiplied.others += rows > multiplied.said.rows;
    check_width(g->a_trans ? g->m : g->k);
    check_width(g->n);
    tm_gemm(g);
}

/* Every product is of rows and widths that are said beforehand: what products hold of memory is planned by these. */
static void products(void **state) {
    tm_kernel_table watched = *tm_kernels_host();
    watched.gemm = watched_gemm;
    for (int fused = 0; fused < 2; fused++) {
        tm_model *m = family_model(*state, TM_BF16, fused);
        tokens t = make_tokens(3, 23, vocabulary(m), 8);
        memset(&multiplied, 0, sizeof multiplied);
        multiplied.said = tm_model_products(m, t.batch.tokens);
        multiplied.vocabulary = vocabulary(m);
        run r;
        run_open(&r, m, 1, &t.batch);
        r.kernels = &watched;
        lively_weights(&r, 11);
        whole_step(&r, BATCH_OUTER);
        assert_true(multiplied.products > 0 && multiplied.said.n_widths > 0);
        assert_int_equal(multiplied.others, 0);
        run_close(&r);
        free_tokens(&t);
        tm_model_free(m);
    }
}

/* Each family's tests, named "FAMILY NAME". */
enum { KINDS = 6, TESTS = KINDS * (int)TM_COUNT(families) };

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } kinds[KINDS] = {{"slopes", slopes}, {"schedules", schedules}, {"separate", separate_parts},
                      {"cache", cache},   {"documents", documents}, {"products", products}};
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

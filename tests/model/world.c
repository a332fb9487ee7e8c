#include "world.h"

#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

tokens make_tokens(uint32_t rows, uint32_t seq, uint32_t vocab, uint32_t salt) {
    uint32_t n = (uint32_t)tm_round_up((uint64_t)rows * seq, 64);
    tokens t = {calloc(n, 4), calloc(n, 4), calloc(n, 1), {.rows = rows, .seq = seq, .tokens = n}};
    for (uint32_t i = 0; i < n; i++) {
        bool real = i < rows * seq;
        t.ids[i] = real ? (int32_t)((i * 31 + salt * 17 + 5) * 2654435761U % vocab) : 0;
        t.labels[i] = real && i % 3 ? (int32_t)((i + salt) * 40503U % vocab) : -100;
        t.mask[i] = real && (i % seq < seq - 2 || seq < 5);
    }
    t.batch.ids = t.ids, t.batch.labels = t.labels, t.batch.key_mask = t.mask;
    return t;
}
void free_tokens(tokens *t) {
    free(t->ids), free(t->labels), free(t->mask);
}

void lively_values(const tm_tensor *x, uint64_t seed, float *v) {
    const uint64_t key = tm_hash64(x->name, strlen(x->name), seed);
    double pair[2] = {0};
    for (uint64_t i = 0; i < x->elements; i++) {
        if (i % 2 == 0) tm_philox_normal2(key, i / 2, pair);
        v[i] = (float)(0.2 * pair[i % 2]) + (x->init == TM_INIT_ONE || x->init == TM_INIT_NORMS ? 1.0F : 0.0F);
    }
}

void lively_weights(run *r, uint64_t seed) {
    for (uint32_t t = 0; t < tm_model_tensors(r->m); t++) {
        float *v = malloc(tm_model_tensor(r->m, t)->elements * sizeof *v);
        lively_values(tm_model_tensor(r->m, t), seed, v);
        run_set_tensor(r, t, v);
        free(v);
    }
}

void mean_coefficients(run *r) {
    uint64_t labels;
    run_loss(r, NULL, &labels);
    for (unsigned b = 0; b < r->n_batches; b++)
        for (uint32_t t = 0; t < r->batch[b].rows * r->batch[b].seq; t++)
            r->coefficient[b][t] = r->batch[b].labels[t] >= 0 ? 1.0F / (float)labels : 0.0F;
}

void whole_step(run *r, run_order order) {
    run_forward(r, order);
    mean_coefficients(r);
    run_backward(r, order);
}

bool same_gradients(const run *a, const run *b) {
    for (uint32_t p = 0; p < tm_model_parts(a->m); p++)
        if (memcmp(a->grad[p], b->grad[p], tm_model_part(a->m, p)->elements * sizeof(float))) return false;
    return true;
}

void finite_gradients(const run *r) {
    for (uint32_t p = 0; p < tm_model_parts(r->m); p++)
        for (uint64_t i = 0; i < tm_model_part(r->m, p)->elements; i++)
            if (!isfinite(r->grad[p][i])) fail_msg("gradient of %s is not finite", tm_model_part(r->m, p)->name);
}

void assert_near_gradients(const run *a, const run *b) {
    assert_int_equal(tm_model_tensors(a->m), tm_model_tensors(b->m));
    for (uint32_t x = 0; x < tm_model_tensors(a->m); x++) {
        uint64_t n = tm_model_tensor(a->m, x)->elements;
        float *g = malloc(n * sizeof *g), *h = malloc(n * sizeof *h);
        run_tensor_grad(a, x, g), run_tensor_grad(b, x, h);
        double difference = 0, norm = 0;
        for (uint64_t i = 0; i < n; i++) difference += pow((double)(g[i] - h[i]), 2), norm += pow((double)g[i], 2);
        if (!(sqrt(difference) <= 1e-5 * sqrt(norm) + 1e-7)) fail_msg("%s", tm_model_tensor(a->m, x)->name);
        free(g), free(h);
    }
}

double cache_difference(tm_model *m) {
    enum { ROWS = 2, SEQ = 80, PROMPT = 70, CAPACITY = 81 };
    uint32_t vocab = tm_model_get_config(m)->vocab_size;
    static const uint32_t length[ROWS] = {70, 66}, zero[ROWS] = {0};
    tm_model_set_positions(m, CAPACITY);
    tokens whole = make_tokens(ROWS, SEQ, vocab, 1), prompt = make_tokens(ROWS, PROMPT, vocab, 1);
    tokens step = make_tokens(ROWS, 1, vocab, 1);
    uint32_t position[ROWS];
    for (uint32_t b = 0; b < ROWS; b++)
        for (uint32_t s = 0; s < PROMPT; s++) prompt.ids[b * PROMPT + s] = s < length[b] ? whole.ids[b * SEQ + s] : 0;
    whole.batch.key_mask = prompt.batch.key_mask = step.batch.key_mask = NULL;
    prompt.batch.position = zero, step.batch.position = position, step.batch.decode = true;
    run f, p, d;
    run_open(&f, m, 1, &whole.batch), run_open(&p, m, 1, &prompt.batch), run_open(&d, m, 1, &step.batch);
    lively_weights(&f, 2), lively_weights(&p, 2), lively_weights(&d, 2);
    p.kv_capacity = d.kv_capacity = CAPACITY;
    for (uint32_t u = 0; u < tm_model_units(m); u++)
        if (tm_model_unit(m, u)->kv_bytes) {
            p.kv_cache[u] = d.kv_cache[u] = malloc((size_t)ROWS * CAPACITY * tm_model_unit(m, u)->kv_bytes);
            memset(p.kv_cache[u], 0xff, (size_t)ROWS * CAPACITY * tm_model_unit(m, u)->kv_bytes);
        }
    float *want = malloc(whole.batch.tokens * vocab * sizeof *want), *got = malloc(192 * vocab * sizeof *got);
    run_forward(&f, BATCH_OUTER), run_logits(&f, 0, want);
    run_forward(&p, BATCH_OUTER), run_logits(&p, 0, got);
    double worst = 0;
    for (uint32_t b = 0; b < ROWS; b++)
        for (uint32_t i = 0; i < length[b] * vocab; i++)
            worst = fmax(worst, fabs((double)(got[b * PROMPT * vocab + i] - want[b * SEQ * vocab + i])));
    for (uint32_t k = 0; k < 10; k++) {
        for (uint32_t b = 0; b < ROWS; b++) {
            position[b] = length[b] + k;
            step.ids[b] = whole.ids[b * SEQ + position[b]];
        }
        run_forward(&d, BATCH_OUTER), run_logits(&d, 0, got);
        for (uint32_t b = 0; b < ROWS; b++)
            for (uint32_t v = 0; v < vocab; v++)
                worst = fmax(worst, fabs((double)(got[b * vocab + v] - want[(b * SEQ + position[b]) * vocab + v])));
    }
    for (uint32_t u = 0; u < 64; u++) d.kv_cache[u] = NULL;
    run_close(&f), run_close(&p), run_close(&d);
    free_tokens(&whole), free_tokens(&prompt), free_tokens(&step);
    free(want), free(got);
    return worst;
}

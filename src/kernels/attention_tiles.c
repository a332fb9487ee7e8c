/* What both ways of attention share: where rows lie, which keys a tile of queries sees, scores between the products, and
 * results on their way out. */
#include "kernels/attention_internal.h"

#include <math.h>
#include <string.h>

enum { TILE = TM_ATTENTION_TILE };

uint64_t attention_position(const tm_attention *a, uint64_t b) {
    return a->position ? a->position[b] : 0;
}

const void *attention_q(const tm_attention *a, uint64_t b, uint64_t s, uint64_t head) {
    return kernels_at_const(a->type, a->q, (b * a->seq + s) * a->ld_q + head * a->head_dim);
}
const void *attention_k(const tm_attention *a, uint64_t b, uint64_t s) {
    return kernels_at_const(a->type, a->k, (b * a->seq + s) * a->ld_k);
}
const void *attention_v(const tm_attention *a, uint64_t b, uint64_t s) {
    return kernels_at_const(a->type, a->v, (b * a->seq + s) * a->ld_v);
}

uint64_t attention_cache_entry(const tm_attention *a) {
    return 2 * (uint64_t)a->kv_heads * a->head_dim;
}
uint64_t attention_cache_row(const tm_attention *a, uint64_t b) {
    return a->cache_row ? a->cache_row[b] : b;
}
void *attention_cache_at(const tm_attention *a, uint64_t row, uint64_t position) {
    return kernels_at(a->type, a->kv_cache,
                      (row * a->kv_capacity + position % a->kv_capacity) * attention_cache_entry(a));
}

static uint64_t first_tile(const tm_attention *a, uint64_t b) {
    uint64_t position = attention_position(a, b);
    return a->window && position >= a->window ? (position + 1 - a->window) / TILE * TILE : 0;
}

attention_view attention_view_of(const tm_attention *a, uint64_t b, uint64_t kv) {
    uint64_t at = kv * a->head_dim, values = (uint64_t)a->kv_heads * a->head_dim;
    if (a->kv_cache) {
        const void *row = attention_cache_at(a, attention_cache_row(a, b), 0);
        return (attention_view){.k = kernels_at_const(a->type, row, at),
                                .v = kernels_at_const(a->type, row, values + at),
                                .ld_k = attention_cache_entry(a),
                                .ld_v = attention_cache_entry(a),
                                .keys = attention_position(a, b) + a->seq,
                                .first = first_tile(a, b),
                                .ring = a->kv_capacity};
    }
    return (attention_view){.k = kernels_at_const(a->type, attention_k(a, b, 0), at),
                            .v = kernels_at_const(a->type, attention_v(a, b, 0), at),
                            .ld_k = a->ld_k,
                            .ld_v = a->ld_v,
                            .keys = a->seq,
                            .ring = a->seq};
}

/* ---- scores ---- */

float attention_scale(const tm_attention *a, uint64_t position) {
    if (a->temperature_every == 0) return a->scale;
    return a->scale * (1 + a->temperature * logf(1 + (float)(position / a->temperature_every)));
}
float attention_scale_left(const tm_attention *a, uint64_t position) {
    return a->softcap != 0 ? 1.0F : attention_scale(a, position);
}

bool attention_meet(const tm_attention *a, uint64_t b, uint64_t q0, uint64_t k0, uint64_t keys, size_t grain,
                    attention_pair *r) {
    uint64_t position = attention_position(a, b) + q0, nq = tm_min_u64(TILE, a->seq - q0), last = position + nq - 1;
    if (k0 > last) return false;
    uint64_t nk = tm_min_u64(TILE, tm_min_u64(keys, last + 1) - k0);
    if (a->window && k0 + nk - 1 + a->window <= position) return false;
    *r = (attention_pair){q0, k0, position, nq, nk, tm_round_up(nk, grain)};
    return true;
}

void attention_cap(const tm_attention *a, const attention_pair *r, float *s) {
    for (size_t i = 0; a->softcap != 0 && i < r->nq; i++)
        kernels.softcap(s + i * TILE, attention_scale(a, r->position + i), a->softcap, r->columns);
}

void attention_mask(const tm_attention *a, uint64_t b, const attention_pair *r, float *s) {
    const uint8_t *mask = a->key_mask && !a->kv_cache ? a->key_mask + b * a->seq + r->k0 : NULL;
    bool inner = r->k0 + r->nk - 1 <= r->position && r->columns == r->nk && !mask &&
                 (!a->window || r->k0 + a->window > r->position + r->nq - 1);
    if (inner) return;
    for (size_t i = 0; i < r->nq; i++) {
        uint64_t at = r->position + i;
        uint64_t end = at >= r->k0 ? tm_min_u64(r->nk, at + 1 - r->k0) : 0;
        uint64_t begin = a->window && at + 1 > r->k0 + a->window ? at + 1 - r->k0 - a->window : 0;
        float *row = s + i * TILE;
        for (size_t j = 0; j < tm_min_u64(begin, end); j++) row[j] = -INFINITY;
        for (size_t j = end; j < r->columns; j++) row[j] = -INFINITY;
        for (size_t j = begin; mask && j < end; j++)
            if (!mask[j]) row[j] = -INFINITY;
    }
}

/* Caps the scores and notes the slope of each: 1 - (s / cap)^2 of its value, times the scale. Before they are masked. */
void attention_cap_with_slopes(const tm_attention *a, const attention_pair *r, float *s, float *slope) {
    if (a->softcap == 0) return;
    attention_cap(a, r, s);
    for (size_t i = 0; i < r->nq; i++) {
        float scale = attention_scale(a, r->position + i);
        for (size_t j = i * (size_t)TILE; j < i * TILE + r->columns; j++)
            slope[j] = scale * (1 - s[j] / a->softcap * (s[j] / a->softcap));
    }
}

void attention_gradients_of_scores(const tm_attention *a, uint64_t b, uint64_t head, const attention_pair *r,
                                   const float *delta, float *s, float *dp, const float *slope) {
    const float *lse = a->lse + (b * a->seq + r->q0) * a->heads + head;
    for (size_t i = 0; i < r->nq; i++) {
        float *ds = dp + i * TILE, scale = attention_scale_left(a, r->position + i);
        kernels.softmax_row_grad(s + i * TILE, ds, scale, lse[i * a->heads], delta[r->q0 + i], r->columns);
        for (size_t j = 0; a->softcap != 0 && j < r->columns; j++) ds[j] *= slope[i * TILE + j];
    }
}

void attention_softmax(const tm_attention *a, const attention_pair *r, float *s, attention_sums to) {
    for (size_t i = 0; i < r->nq; i++) {
        uint64_t at = r->q0 + i;
        float scale = attention_scale_left(a, r->position + i);
        float back = kernels.softmax_row(s + i * TILE, scale, &to.max[at], &to.sum[at], r->columns);
        if (back != 1.0F) kernels.scale(back, to.o + at * to.ld, to.ld);
    }
}

/* ---- results ---- */

void attention_store_output(const tm_attention *a, uint64_t b, uint64_t head, uint64_t s, float *o, float max,
                            float sum) {
    uint64_t row = b * a->seq + s, at = (row * a->heads + head) * a->head_dim;
    kernels.scale(sum > 0 ? 1.0F / sum : 0.0F, o, a->head_dim);
    if (a->type == TM_ELEM_F32)
        memcpy((float *)a->o + at, o, a->head_dim * sizeof *o);
    else
        kernels_narrow(a->type, o, (uint16_t *)a->o + at, a->head_dim);
    if (a->lse) a->lse[row * a->heads + head] = sum > 0 ? max + logf(sum) : 0.0F;
}

const void *attention_o(const tm_attention *a, const void *o, uint64_t b, uint64_t s, uint64_t head) {
    return kernels_at_const(a->type, o, ((b * a->seq + s) * a->heads + head) * a->head_dim);
}

void attention_deltas(const tm_attention *a, uint64_t b, uint64_t head, float *delta) {
    float x[TM_MAX_HEAD_DIM], y[TM_MAX_HEAD_DIM];
    size_t d = a->head_dim;
    for (uint64_t s = 0; s < a->seq; s++)
        delta[s] = kernels.dot(kernels_load(a->type, attention_o(a, a->o, b, s, head), 0, x, d),
                               kernels_load(a->type, attention_o(a, a->d_o, b, s, head), 0, y, d), d);
}

void attention_store_gradient(const tm_attention *a, uint64_t b, attention_gradient to, attention_gradient_rows from) {
    size_t d = a->head_dim;
    float old[TM_MAX_HEAD_DIM];
    for (uint64_t i = 0; i < from.rows; i++) {
        uint64_t at = (b * a->seq + from.s0 + i) * to.ld + from.head * d;
        float *x = from.x + i * from.ld;
        if (to.rotated && a->rope) kernels_rotate_back(a->rope, attention_position(a, b) + from.s0 + i, x);
        if (to.add) kernels.axpy(1.0F, kernels_load(a->type, to.x, at, old, d), x, d);
        if (a->type == TM_ELEM_F32)
            memcpy((float *)to.x + at, x, d * sizeof *x);
        else
            kernels_narrow(a->type, x, (uint16_t *)to.x + at, d);
    }
}

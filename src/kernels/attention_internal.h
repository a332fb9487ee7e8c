/* Attention's own: the ways in which its tiles are multiplied, and what they share.
 *
 * A way computes items of work: (batch row, head) forward, (batch row, key-value head) backward, with the scratch of the calling
 * thread as the workspace. It sums over keys in key order and over queries in (head, query) order, whoever runs the item. */
#ifndef TIDEMILL_ATTENTION_INTERNAL_H
#define TIDEMILL_ATTENTION_INTERNAL_H

#include "kernels/kernels_internal.h"

typedef void attention_item(const tm_attention *a, uint64_t b, uint64_t head);
struct attention_way {
    uint64_t (*floats)(const tm_attention *a, bool backward); /* of scratch a thread, a multiple of 16 */
    attention_item *forward, *backward;
};
/* Any type, widened: attention.c. */
extern const attention_way attention_in_fp32;
/* bf16 by AMX: operands as they are stored, probabilities and gradients of scores rounded to bf16 between products, as
 * FlashAttention does (Dao 2023, arXiv:2307.08691). Only where amx multiplies (gemm_amx.c). */
extern const attention_way attention_by_amx;

typedef struct attention_view { /* keys and values of one (batch row, kv head), as many as are visible */
    const void *k, *v;
    uint64_t ld_k, ld_v, keys;
    uint64_t first, ring; /* first: tile of which a key may be seen; key j is row j mod ring */
} attention_view;
/* A row that comes after one, of a ring. */
static inline uint64_t attention_entry(const attention_view *kv, uint64_t first, uint64_t after) {
    uint64_t at = first + after;
    return at < kv->ring ? at : at - kv->ring;
}
uint64_t attention_position(const tm_attention *a, uint64_t b);  /* of the row's first query */
uint64_t attention_cache_entry(const tm_attention *a);           /* elements of a position in the cache */
uint64_t attention_cache_row(const tm_attention *a, uint64_t b); /* that of row b */
void *attention_cache_at(const tm_attention *a, uint64_t cache_row, uint64_t position);
attention_view attention_view_of(const tm_attention *a, uint64_t b, uint64_t kv);
const void *attention_q(const tm_attention *a, uint64_t b, uint64_t s, uint64_t head);
const void *attention_k(const tm_attention *a, uint64_t b, uint64_t s);
const void *attention_v(const tm_attention *a, uint64_t b, uint64_t s);
/* A row of o, d_o, which lie the same way. */
const void *attention_o(const tm_attention *a, const void *o, uint64_t b, uint64_t s, uint64_t head);

typedef struct attention_pair { /* of tiles: queries [q0, q0+nq), keys [k0, k0+nk), first query's position */
    uint64_t q0, k0, position;
    size_t nq, nk, columns; /* columns: nk rounded up to the register tile */
} attention_pair;
/* False: no query of the tile sees any of its keys. `grain`: of columns. */
bool attention_meet(const tm_attention *a, uint64_t b, uint64_t q0, uint64_t k0, uint64_t keys, size_t grain,
                    attention_pair *r);

/* Scores of a pair lie in rows of TM_ATTENTION_TILE. What those of a query are multiplied by, the same of scores that went
 * through the cap where there is one, the cap, its slopes, and what is not seen becomes -infinity. */
float attention_scale(const tm_attention *a, uint64_t position);
float attention_scale_left(const tm_attention *a, uint64_t position);
void attention_cap(const tm_attention *a, const attention_pair *r, float *s);
void attention_cap_with_slopes(const tm_attention *a, const attention_pair *r, float *s, float *slope);
void attention_mask(const tm_attention *a, uint64_t b, const attention_pair *r, float *s);
/* Of each query of a head, over the keys so far: the output, rows of ld, its largest score, the sum of its probabilities. */
typedef struct attention_sums {
    float *o, *max, *sum;
    size_t ld;
} attention_sums;
/* Capped and masked scores to probabilities; the sums are scaled to the largest score that is known now. */
void attention_softmax(const tm_attention *a, const attention_pair *r, float *s, attention_sums to);
/* Scores s to probabilities, dp to the gradients of scores. */
void attention_gradients_of_scores(const tm_attention *a, uint64_t b, uint64_t head, const attention_pair *r,
                                   const float *delta, float *s, float *dp, const float *slope);

/* The output of query s, divided by the sum of its probabilities, and its lse. */
void attention_store_output(const tm_attention *a, uint64_t b, uint64_t head, uint64_t s, float *o, float max,
                            float sum);
/* delta[s] = sum(dO * O) of a row, which is sum(P * dP). */
void attention_deltas(const tm_attention *a, uint64_t b, uint64_t head, float *delta);

/* Where the gradient of heads goes: d_q, d_k or d_v. */
typedef struct attention_gradient {
    void *x;
    uint64_t ld;
    bool rotated, add;
} attention_gradient;
/* Rows [s0, s0 + rows) of one head, x with rows of ld floats, turned back by the rotation of their position. */
typedef struct attention_gradient_rows {
    float *x;
    size_t ld;
    uint64_t s0, rows, head;
} attention_gradient_rows;
void attention_store_gradient(const tm_attention *a, uint64_t b, attention_gradient to, attention_gradient_rows from);

#endif

/* Tiled causal attention. One item of work is (batch row, head) forward, (batch row, key-value head) backward, one
 * document of the row after the other; within a document keys are the outer loop and queries the inner one, so that a tile of K and V is unpacked once and scratch
 * grows with the queries only (a cache may be much longer):
 *
 *     for key tile k0:  K, V -> fp32, K also transposed
 *         for query tile q0 that sees it:  S = Q K^T;  mask;  online softmax of rows;  O = O * alpha + P V
 *
 * Every sum over keys runs in key order, every sum over queries in (head, query) order, whoever runs the item. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { TILE = TM_ATTENTION_TILE };

typedef struct head_view { /* keys and values of one (batch row, kv head), as many as are visible */
    const void *k, *v;
    uint64_t ld_k, ld_v, keys;
} head_view;

static uint64_t padded_dim(const tm_attention *a) {
    return tm_round_up(a->head_dim, GEMM_NR);
}
static uint64_t first_position(const tm_attention *a, uint64_t b) {
    return a->position ? a->position[b] : 0;
}

static const void *q_row(const tm_attention *a, uint64_t b, uint64_t s, uint64_t head) {
    return kernels_at_const(a->type, a->q, (b * a->seq + s) * a->ld_q + head * a->head_dim);
}
static const void *k_row(const tm_attention *a, uint64_t b, uint64_t s) {
    return kernels_at_const(a->type, a->k, (b * a->seq + s) * a->ld_k);
}
static const void *v_row(const tm_attention *a, uint64_t b, uint64_t s) {
    return kernels_at_const(a->type, a->v, (b * a->seq + s) * a->ld_v);
}

static uint64_t cache_entry(const tm_attention *a) {
    return 2 * (uint64_t)a->kv_heads * a->head_dim;
}

static head_view view_of(const tm_attention *a, uint64_t b, uint64_t kv) {
    uint64_t at = kv * a->head_dim, values = (uint64_t)a->kv_heads * a->head_dim;
    if (a->kv_cache) {
        const char *row = kernels_at_const(a->type, a->kv_cache, b * a->kv_capacity * cache_entry(a));
        return (head_view){.k = kernels_at_const(a->type, row, at),
                           .v = kernels_at_const(a->type, row, values + at),
                           .ld_k = cache_entry(a),
                           .ld_v = cache_entry(a),
                           .keys = first_position(a, b) + a->seq};
    }
    return (head_view){.k = kernels_at_const(a->type, k_row(a, b, 0), at),
                       .v = kernels_at_const(a->type, v_row(a, b, 0), at),
                       .ld_k = a->ld_k,
                       .ld_v = a->ld_v,
                       .keys = a->seq};
}

/* The new keys and values go to their positions in the cache. */
static void fill_cache(const tm_attention *a) {
    size_t bytes = cache_entry(a) * tm_elem_bytes(a->type);
    for (uint64_t b = 0; b < a->rows; b++) {
        TM_ASSERT(first_position(a, b) + a->seq <= a->kv_capacity);
        char *to = (char *)a->kv_cache + (b * a->kv_capacity + first_position(a, b)) * bytes;
        for (uint64_t s = 0; s < a->seq; s++) {
            memcpy(to + s * bytes, k_row(a, b, s), bytes / 2);
            memcpy(to + s * bytes + bytes / 2, v_row(a, b, s), bytes / 2);
        }
    }
}

/* ---- items of work ---- */

/* Runs one head of one row, with the calling thread's scratch as its workspace. */
typedef void item_run(const tm_attention *a, uint64_t b, uint64_t head);

/* Tokens [first, first + n) of row b as a row of their own. */
static tm_attention document_of(const tm_attention *a, uint64_t b, uint64_t first, uint64_t n) {
    uint64_t row = b * a->seq + first, o = row * a->heads * a->head_dim;
    tm_attention d = *a;
    d.begin = NULL;
    d.rows = 1, d.seq = (uint32_t)n;
    d.q = q_row(a, b, first, 0), d.k = k_row(a, b, first), d.v = v_row(a, b, first);
    d.o = kernels_at(a->type, a->o, o);
    if (a->lse) d.lse = a->lse + row * a->heads;
    if (a->key_mask) d.key_mask = a->key_mask + row;
    if (!a->d_o) return d;
    d.d_o = kernels_at_const(a->type, a->d_o, o);
    d.d_q = kernels_at(a->type, a->d_q, row * a->ld_q);
    d.d_k = kernels_at(a->type, a->d_k, row * a->ld_k);
    d.d_v = kernels_at(a->type, a->d_v, row * a->ld_v);
    return d;
}

/* `floats` of scratch a thread. */
static void run_item(const tm_attention *a, uint64_t floats, item_run *run, uint64_t b, uint64_t head) {
    const uint32_t *begin = a->begin ? a->begin + b * a->seq : NULL;
    tm_attention one = *a;
    one.workspace = (float *)a->workspace + (uint64_t)omp_get_thread_num() * floats;
    if (!begin) run(&one, b, head);
    for (uint64_t first = 0, end; begin && first < a->seq; first = end) {
        TM_ASSERT(begin[first] == first);
        for (end = first + 1; end < a->seq && begin[end] == first;) end++;
        tm_attention document = document_of(&one, b, first, end - first);
        run(&document, 0, head);
    }
}

/* ---- scores ---- */

/* What the scores of a query at this position are multiplied by. */
static float scale_at(const tm_attention *a, uint64_t position) {
    if (a->temperature_every == 0) return a->scale;
    return a->scale * (1 + a->temperature * logf(1 + (float)(position / a->temperature_every)));
}
/* The same of scores that went through the cap, where that was applied. */
static float scale_left(const tm_attention *a, uint64_t position) {
    return a->softcap != 0 ? 1.0F : scale_at(a, position);
}

/* Rows of d elements as fp32 with rows of dp >= d floats, zeros between: in place where that is what they are. */
typedef struct tile_rows {
    const float *data;
    size_t ld;
} tile_rows;
static tile_rows load_rows(const tm_attention *a, const void *x, uint64_t ld, size_t rows, float *buf) {
    size_t d = a->head_dim, dp = padded_dim(a);
    if (a->type == TM_ELEM_F32 && d == dp) return (tile_rows){x, ld};
    for (size_t i = 0; i < rows; i++) {
        if (a->type == TM_ELEM_F32)
            memcpy(buf + i * dp, (const float *)x + i * ld, d * sizeof *buf);
        else
            kernels_widen(a->type, (const uint16_t *)x + i * ld, buf + i * dp, d);
        memset(buf + i * dp + d, 0, (dp - d) * sizeof *buf);
    }
    return (tile_rows){buf, dp};
}

/* Rows transposed to [d][TILE], columns past `rows` zero. */
static void load_transposed(const tm_attention *a, tile_rows r, size_t rows, float *out) {
    if (rows < TILE) memset(out, 0, (size_t)a->head_dim * TILE * sizeof *out);
    kernels.transpose(r.data, r.ld, rows, a->head_dim, out, TILE);
}

typedef struct tile_range { /* of one pair of tiles: queries [q0, q0+nq), keys [k0, k0+nk), first query's position */
    uint64_t q0, k0, position;
    size_t nq, nk, columns; /* columns: nk rounded up to the register tile */
} tile_range;

/* False: no query of the tile sees any of its keys. */
static bool pair_tiles(const tm_attention *a, uint64_t b, uint64_t q0, uint64_t k0, uint64_t keys, tile_range *r) {
    uint64_t position = first_position(a, b) + q0, nq = tm_min_u64(TILE, a->seq - q0), last = position + nq - 1;
    if (k0 > last) return false;
    uint64_t nk = tm_min_u64(TILE, tm_min_u64(keys, last + 1) - k0);
    if (a->window && k0 + nk - 1 + a->window <= position) return false;
    *r = (tile_range){q0, k0, position, nq, nk, tm_round_up(nk, GEMM_NR)};
    return true;
}

static void cap_scores(const tm_attention *a, const tile_range *r, float *s) {
    for (size_t i = 0; a->softcap != 0 && i < r->nq; i++)
        kernels.softcap(s + i * TILE, scale_at(a, r->position + i), a->softcap, r->columns);
}

static void mask_scores(const tm_attention *a, uint64_t b, const tile_range *r, float *s) {
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

/* ---- forward ---- */

typedef struct forward_scratch {
    float *o, *max, *sum, *k, *kt, *v, *q, *s;
} forward_scratch;

static uint64_t forward_floats(const tm_attention *a) {
    uint64_t dp = padded_dim(a), seq = tm_round_up(a->seq, 16);
    return seq * (dp + 2) + 4 * TILE * dp + TILE * TILE;
}

static forward_scratch forward_carve(const tm_attention *a) {
    uint64_t dp = padded_dim(a), seq = tm_round_up(a->seq, 16);
    forward_scratch w = {.o = a->workspace};
    w.max = w.o + seq * dp;
    w.sum = w.max + seq;
    w.k = w.sum + seq;
    w.kt = w.k + TILE * dp;
    w.v = w.kt + TILE * dp;
    w.q = w.v + TILE * dp;
    w.s = w.q + TILE * dp;
    return w;
}

static void forward_pair(const tm_attention *a, uint64_t b, uint64_t head, const tile_range *r, tile_rows v,
                         const forward_scratch *w) {
    size_t dp = padded_dim(a);
    tile_rows q = load_rows(a, q_row(a, b, r->q0, head), a->ld_q, r->nq, w->q);
    kernels.small_gemm(r->nq, r->columns, a->head_dim, q.data, q.ld, 1, w->kt, TILE, w->s, TILE, false);
    cap_scores(a, r, w->s);
    mask_scores(a, b, r, w->s);
    for (size_t i = 0; i < r->nq; i++) {
        uint64_t at = r->q0 + i;
        float scale = scale_left(a, r->position + i);
        float back = kernels.softmax_row(w->s + i * TILE, scale, &w->max[at], &w->sum[at], r->columns);
        if (back != 1.0F) kernels.scale(back, w->o + at * dp, dp);
    }
    kernels.small_gemm(r->nq, dp, r->nk, w->s, TILE, 1, v.data, v.ld, w->o + r->q0 * dp, dp, true);
}

static void store_output(const tm_attention *a, uint64_t b, uint64_t head, uint64_t s, float *o, float max, float sum) {
    uint64_t row = b * a->seq + s, at = (row * a->heads + head) * a->head_dim;
    kernels.scale(sum > 0 ? 1.0F / sum : 0.0F, o, a->head_dim);
    if (a->type == TM_ELEM_F32)
        memcpy((float *)a->o + at, o, a->head_dim * sizeof *o);
    else
        kernels_narrow(a->type, o, (uint16_t *)a->o + at, a->head_dim);
    if (a->lse) a->lse[row * a->heads + head] = sum > 0 ? max + logf(sum) : 0.0F;
}

static void forward_item(const tm_attention *a, uint64_t b, uint64_t head) {
    forward_scratch w = forward_carve(a);
    size_t dp = padded_dim(a);
    head_view kv = view_of(a, b, head / (a->heads / a->kv_heads));
    memset(w.o, 0, a->seq * dp * sizeof *w.o);
    for (uint64_t s = 0; s < a->seq; s++) w.max[s] = -INFINITY, w.sum[s] = 0;
    for (uint64_t k0 = 0; k0 < kv.keys; k0 += TILE) {
        size_t nk = (size_t)tm_min_u64(TILE, kv.keys - k0);
        tile_rows k = load_rows(a, kernels_at_const(a->type, kv.k, k0 * kv.ld_k), kv.ld_k, nk, w.k);
        tile_rows v = load_rows(a, kernels_at_const(a->type, kv.v, k0 * kv.ld_v), kv.ld_v, nk, w.v);
        load_transposed(a, k, nk, w.kt);
        tile_range r;
        for (uint64_t q0 = 0; q0 < a->seq; q0 += TILE)
            if (pair_tiles(a, b, q0, k0, kv.keys, &r)) forward_pair(a, b, head, &r, v, &w);
    }
    for (uint64_t s = 0; s < a->seq; s++) store_output(a, b, head, s, w.o + s * dp, w.max[s], w.sum[s]);
}

/* One query: tiles of queries would be empty, so keys are met one by one, for all heads of the group. */
static void decode_item(const tm_attention *a, uint64_t b, uint64_t kv_head) {
    forward_scratch w = forward_carve(a);
    size_t d = a->head_dim, group = a->heads / a->kv_heads;
    head_view kv = view_of(a, b, kv_head);
    float scale = scale_at(a, kv.keys - 1);
    uint64_t begin = a->window && kv.keys > a->window ? kv.keys - a->window : 0;
    for (size_t g = 0; g < group; g++) {
        uint64_t head = kv_head * group + g;
        float query[TM_MAX_HEAD_DIM], buf[TM_MAX_HEAD_DIM], max = -INFINITY, sum = 0;
        const float *q = kernels_load(a->type, q_row(a, b, 0, head), 0, query, d);
        memset(w.o, 0, d * sizeof *w.o);
        for (uint64_t k0 = begin; k0 < kv.keys; k0 += TILE) {
            size_t nk = (size_t)tm_min_u64(TILE, kv.keys - k0);
            for (size_t j = 0; j < TILE; j++) w.s[j] = -INFINITY;
            for (size_t j = 0; j < nk; j++)
                w.s[j] = kernels.dot(q, kernels_load(a->type, kv.k, (k0 + j) * kv.ld_k, buf, d), d);
            if (a->softcap != 0) kernels.softcap(w.s, scale, a->softcap, nk);
            kernels.scale(kernels.softmax_row(w.s, a->softcap != 0 ? 1 : scale, &max, &sum, TILE), w.o, d);
            for (size_t j = 0; j < nk; j++)
                kernels.axpy(w.s[j], kernels_load(a->type, kv.v, (k0 + j) * kv.ld_v, buf, d), w.o, d);
        }
        store_output(a, b, head, 0, w.o, max, sum);
    }
}

static void zero_padding(const tm_attention *a, void *x, uint64_t row_bytes) {
    uint64_t used = (uint64_t)a->rows * a->seq;
    if (x && a->padded > used) memset((char *)x + used * row_bytes, 0, (a->padded - used) * row_bytes);
}

/* `bytes` of each of those rows, which are ld elements apart. */
static void zero_columns(const tm_attention *a, void *x, uint64_t ld, uint64_t bytes) {
    for (uint64_t r = (uint64_t)a->rows * a->seq; r < a->padded; r++) memset(kernels_at(a->type, x, r * ld), 0, bytes);
}

void tm_attention_forward(const tm_attention *a) {
    bool decode = a->kv_cache && a->seq == 1;
    uint64_t heads = decode ? a->kv_heads : a->heads, items = a->rows * heads, floats = forward_floats(a);
    item_run *run = decode ? decode_item : forward_item;
    TM_ASSERT(!a->begin || !a->kv_cache);
    if (a->kv_cache) fill_cache(a);
#pragma omp parallel for schedule(dynamic, 1) num_threads(kernels_team()) if (items > 1)
    for (uint64_t i = 0; i < items; i++) run_item(a, floats, run, i / heads, i % heads);
    zero_padding(a, a->o, (uint64_t)a->heads * a->head_dim * tm_elem_bytes(a->type));
    zero_padding(a, a->lse, a->heads * sizeof(float));
}

/* ---- backward ---- */

typedef struct backward_scratch {
    float *dq, *delta; /* [group][seq][dp], [group][seq] */
    float *k, *kt, *v, *vt, *dk, *dv, *q, *d_o, *s, *dp;
    float *slope; /* of the cap, a tile; where there is one */
} backward_scratch;

static uint64_t backward_floats(const tm_attention *a) {
    uint64_t dp = padded_dim(a), group = a->heads / a->kv_heads, seq = tm_round_up(a->seq, 16);
    return group * seq * (dp + 1) + 8 * TILE * dp + (a->softcap != 0 ? 3U : 2U) * TILE * TILE;
}

static backward_scratch backward_carve(const tm_attention *a) {
    uint64_t dp = padded_dim(a), group = a->heads / a->kv_heads, seq = tm_round_up(a->seq, 16), tile = TILE * dp;
    backward_scratch w = {.dq = a->workspace};
    w.delta = w.dq + group * seq * dp;
    w.k = w.delta + group * seq;
    w.kt = w.k + tile;
    w.v = w.kt + tile;
    w.vt = w.v + tile;
    w.dk = w.vt + tile;
    w.dv = w.dk + tile;
    w.q = w.dv + tile;
    w.d_o = w.q + tile;
    w.s = w.d_o + tile;
    w.dp = w.s + TILE * TILE;
    w.slope = w.dp + TILE * TILE;
    return w;
}

static const void *o_row(const tm_attention *a, const void *o, uint64_t b, uint64_t s, uint64_t head) {
    return kernels_at_const(a->type, o, ((b * a->seq + s) * a->heads + head) * a->head_dim);
}

/* delta = sum(dO * O) of a row, which is sum(P * dP). */
static void row_deltas(const tm_attention *a, uint64_t b, uint64_t head, float *delta) {
    float x[TM_MAX_HEAD_DIM], y[TM_MAX_HEAD_DIM];
    size_t d = a->head_dim;
    for (uint64_t s = 0; s < a->seq; s++)
        delta[s] = kernels.dot(kernels_load(a->type, o_row(a, a->o, b, s, head), 0, x, d),
                               kernels_load(a->type, o_row(a, a->d_o, b, s, head), 0, y, d), d);
}

/* Caps the scores and notes the slope of each: 1 - (s / cap)^2 of its value, times the scale. Before they are masked. */
static void cap_with_slopes(const tm_attention *a, const tile_range *r, float *s, float *slope) {
    if (a->softcap == 0) return;
    cap_scores(a, r, s);
    for (size_t i = 0; i < r->nq; i++) {
        float scale = scale_at(a, r->position + i);
        for (size_t j = i * (size_t)TILE; j < i * TILE + r->columns; j++)
            slope[j] = scale * (1 - s[j] / a->softcap * (s[j] / a->softcap));
    }
}

static void backward_pair(const tm_attention *a, uint64_t b, uint64_t head, const tile_range *r, tile_rows k,
                          const backward_scratch *w, float *dq, const float *delta) {
    size_t d = a->head_dim, dp = padded_dim(a), o_ld = (size_t)a->heads * d;
    tile_rows q = load_rows(a, q_row(a, b, r->q0, head), a->ld_q, r->nq, w->q);
    tile_rows d_o = load_rows(a, o_row(a, a->d_o, b, r->q0, head), o_ld, r->nq, w->d_o);
    kernels.small_gemm(r->nq, r->columns, d, q.data, q.ld, 1, w->kt, TILE, w->s, TILE, false);
    cap_with_slopes(a, r, w->s, w->slope);
    mask_scores(a, b, r, w->s);
    kernels.small_gemm(r->nq, r->columns, d, d_o.data, d_o.ld, 1, w->vt, TILE, w->dp, TILE, false);
    const float *lse = a->lse + (b * a->seq + r->q0) * a->heads + head;
    for (size_t i = 0; i < r->nq; i++) {
        float *ds = w->dp + i * TILE, scale = scale_left(a, r->position + i);
        kernels.softmax_row_grad(w->s + i * TILE, ds, scale, lse[i * a->heads], delta[r->q0 + i], r->columns);
        for (size_t j = 0; a->softcap != 0 && j < r->columns; j++) ds[j] *= w->slope[i * TILE + j];
    }
    kernels.small_gemm(r->nk, dp, r->nq, w->s, 1, TILE, d_o.data, d_o.ld, w->dv, dp, true);
    kernels.small_gemm(r->nk, dp, r->nq, w->dp, 1, TILE, q.data, q.ld, w->dk, dp, true);
    kernels.small_gemm(r->nq, dp, r->nk, w->dp, TILE, 1, k.data, k.ld, dq + r->q0 * dp, dp, true);
}

/* Where the gradient of heads goes: d_q, d_k or d_v. */
typedef struct gradient_rows {
    void *x;
    uint64_t ld;
    bool rotated, add;
} gradient_rows;

/* Gradient rows of one head, turned back by the rotation of their position. */
static void store_gradient(const tm_attention *a, gradient_rows to, uint64_t b, uint64_t s0, uint64_t rows,
                           uint64_t head, float *x) {
    size_t d = a->head_dim, dp = padded_dim(a);
    float old[TM_MAX_HEAD_DIM];
    for (uint64_t i = 0; i < rows; i++) {
        uint64_t at = (b * a->seq + s0 + i) * to.ld + head * d;
        float *from = x + i * dp;
        if (to.rotated && a->rope) kernels_rotate_back(a->rope, first_position(a, b) + s0 + i, from);
        if (to.add) kernels.axpy(1.0F, kernels_load(a->type, to.x, at, old, d), from, d);
        if (a->type == TM_ELEM_F32)
            memcpy((float *)to.x + at, from, d * sizeof *from);
        else
            kernels_narrow(a->type, from, (uint16_t *)to.x + at, d);
    }
}

static void backward_keys(const tm_attention *a, uint64_t b, uint64_t kv_head, const head_view *kv, uint64_t k0,
                          const backward_scratch *w) {
    size_t dp = padded_dim(a), group = a->heads / a->kv_heads, nk = (size_t)tm_min_u64(TILE, kv->keys - k0);
    tile_rows k = load_rows(a, kernels_at_const(a->type, kv->k, k0 * kv->ld_k), kv->ld_k, nk, w->k);
    tile_rows v = load_rows(a, kernels_at_const(a->type, kv->v, k0 * kv->ld_v), kv->ld_v, nk, w->v);
    load_transposed(a, k, nk, w->kt);
    load_transposed(a, v, nk, w->vt);
    memset(w->dk, 0, TILE * dp * sizeof(float));
    memset(w->dv, 0, TILE * dp * sizeof(float));
    tile_range r;
    for (size_t g = 0; g < group; g++)
        for (uint64_t q0 = k0 / TILE * TILE; q0 < a->seq; q0 += TILE)
            if (pair_tiles(a, b, q0, k0, kv->keys, &r))
                backward_pair(a, b, kv_head * group + g, &r, k, w, w->dq + g * a->seq * dp, w->delta + g * a->seq);
    store_gradient(a, (gradient_rows){a->d_k, a->ld_k, true, a->kv_add}, b, k0, nk, kv_head, w->dk);
    store_gradient(a, (gradient_rows){a->d_v, a->ld_v, false, a->kv_add}, b, k0, nk, kv_head, w->dv);
}

static void backward_item(const tm_attention *a, uint64_t b, uint64_t kv_head) {
    backward_scratch w = backward_carve(a);
    size_t dp = padded_dim(a), group = a->heads / a->kv_heads;
    head_view kv = view_of(a, b, kv_head);
    memset(w.dq, 0, group * a->seq * dp * sizeof *w.dq);
    for (size_t g = 0; g < group; g++) row_deltas(a, b, kv_head * group + g, w.delta + g * a->seq);
    for (uint64_t k0 = 0; k0 < kv.keys; k0 += TILE) backward_keys(a, b, kv_head, &kv, k0, &w);
    for (size_t g = 0; g < group; g++)
        store_gradient(a, (gradient_rows){a->d_q, a->ld_q, true, false}, b, 0, a->seq, kv_head * group + g,
                       w.dq + g * a->seq * dp);
}

void tm_attention_backward(const tm_attention *a) {
    TM_ASSERT(!a->kv_cache);
    uint64_t items = (uint64_t)a->rows * a->kv_heads, floats = backward_floats(a);
#pragma omp parallel for schedule(dynamic, 1) num_threads(kernels_team()) if (items > 1)
    for (uint64_t i = 0; i < items; i++) run_item(a, floats, backward_item, i / a->kv_heads, i % a->kv_heads);
    uint64_t head = a->head_dim * tm_elem_bytes(a->type);
    zero_columns(a, a->d_q, a->ld_q, a->heads * head);
    if (a->kv_add) return;
    zero_columns(a, a->d_k, a->ld_k, a->kv_heads * head);
    zero_columns(a, a->d_v, a->ld_v, a->kv_heads * head);
}

uint64_t tm_attention_workspace(const tm_attention *a, bool backward) {
    uint64_t floats = backward ? backward_floats(a) : forward_floats(a);
    return kernels_team() * floats * sizeof(float);
}

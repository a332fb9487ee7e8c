/* Attention of bf16 by AMX, tile by tile as attention.c does it, with the operands as they are stored:
 *
 *     forward   S = Q K^T                 O += P V
 *     backward  S = Q K^T   dP = dO V^T   dV += P^T dO   dK += dS^T Q   dQ += dS K
 *
 * Sums, softmax and what is kept between tiles are fp32. P and dS are rounded to bf16, once, where they lie: a row of 64 floats
 * holds its 64 rounded values in its first half.
 *
 * A left operand is read by rows of 32 depths. A right one is packed: panels of 32 columns, of each 32 depths two register
 * tiles, columns [0, 16) and [16, 32), of which a row holds 16 columns of two depths. Everything is padded with zeros to 32. */
#include "kernels/attention_internal.h"
#include "kernels/gemm_bf16_internal.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
#define AMX __attribute__((target("amx-tile,amx-bf16")))

enum { TILE = TM_ATTENTION_TILE, GRAIN = 32, HALF = BF16_TILE, SQUARE = 2 * BF16_TILE };

static size_t whole(size_t n) {
    return tm_round_up(n, GRAIN);
}

/* ---- operands ---- */

/* Squares of 32 x 32, of rows `ld` apart: the next one to the right is `right`, the next one below `down` elements on. */
typedef struct squares {
    const uint16_t *x;
    size_t ld, right, down;
} squares;

typedef struct source { /* rows as they are stored */
    const uint16_t *x;
    uint64_t ld;
    size_t rows, columns;
} source;

AVX512 static void copy_row(const uint16_t *x, size_t n, uint16_t *out) {
    for (; n >= GRAIN; n -= GRAIN, x += GRAIN, out += SQUARE) _mm512_storeu_si512(out, _mm512_loadu_si512(x));
    if (n) _mm512_storeu_si512(out, _mm512_maskz_loadu_epi16((1U << n) - 1, x));
}

/* To squares one after the other. */
static squares pack_rows(source s, uint16_t *out) {
    squares to = {.x = out, .ld = GRAIN, .right = SQUARE, .down = whole(s.columns) * GRAIN};
    for (size_t i = 0; i < whole(s.rows); i++) {
        uint16_t *row = out + i / GRAIN * to.down + i % GRAIN * GRAIN;
        if (i < s.rows)
            copy_row(s.x + i * s.ld, s.columns, row);
        else
            for (size_t k = 0; k < to.down; k += SQUARE) memset(row + k, 0, GRAIN * sizeof *row);
    }
    return to;
}

/* Two rows become 16 + 16 pairs. */
AVX512 static void pair_depths(const uint16_t *x, size_t ld, uint16_t *out) {
    static const uint16_t first[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_loadu_si512(first), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (size_t p = 0; p < GRAIN / 2; p++, x += 2 * ld, out += GRAIN) {
        __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + ld);
        _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(out + HALF, _mm512_permutex2var_epi16(a, high, b));
    }
}

/* Right operand of which a depth is a row of s. */
static void pack_depths(squares s, size_t rows, size_t columns, uint16_t *out) {
    for (size_t j = 0; j < columns; j += GRAIN, s.x += s.right)
        for (size_t i = 0; i < rows; i += GRAIN, out += SQUARE) pair_depths(s.x + i / GRAIN * s.down, s.ld, out);
}

/* Right operand of which a column is a row of s. */
static void pack_transposed(squares s, size_t rows, size_t columns, uint16_t *out) {
    for (size_t i = 0; i < rows; i += GRAIN, s.x += s.down)
        for (size_t k = 0; k < columns; k += GRAIN, out += SQUARE) {
            const uint16_t *x = s.x + k / GRAIN * s.right;
            bf16_transpose_pairs(x, s.ld, out);
            bf16_transpose_pairs(x + HALF / GRAIN * s.ld, s.ld, out + HALF);
        }
}

/* Squares of which a row is a column of s. */
static squares pack_columns(squares s, size_t rows, size_t columns, uint16_t *out) {
    uint16_t pairs[SQUARE];
    squares to = {.x = out, .ld = GRAIN, .right = SQUARE, .down = whole(rows) * GRAIN};
    for (size_t j = 0; j < columns; j += GRAIN, s.x += s.right)
        for (size_t i = 0; i < rows; i += GRAIN, out += SQUARE) {
            pair_depths(s.x + i / GRAIN * s.down, s.ld, pairs);
            bf16_transpose_pairs(pairs, GRAIN, out);
            bf16_transpose_pairs(pairs + HALF, GRAIN, out + HALF);
        }
    return to;
}

/* `rows` rows of a tile of fp32 become bf16 where they lie, those up to the next multiple of 32 zero. */
AVX512 static squares narrow_tile(float *s, size_t rows, size_t columns) {
    for (size_t i = 0; i < whole(rows); i++) {
        uint16_t *to = (uint16_t *)(void *)(s + i * TILE);
        for (size_t j = 0; j < columns; j += 16) {
            __m256bh y = _mm512_cvtneps_pbh(_mm512_loadu_ps(s + i * TILE + j));
            _mm256_storeu_si256((__m256i *)(void *)(to + j), i < rows ? (__m256i)y : _mm256_setzero_si256());
        }
    }
    return (squares){(const uint16_t *)(const void *)s, 2 * TILE, GRAIN, 2 * TILE * GRAIN};
}

/* ---- products ---- */

typedef struct right { /* packed; elements of a panel */
    const uint16_t *at;
    size_t panel;
} right;
static right right_of(const uint16_t *packed, size_t depth) {
    return (right){packed, whole(depth) * GRAIN};
}

typedef struct sums { /* fp32, rows of ld */
    float *c;
    size_t ld;
    bool add;
} sums;

/* A square of C. */
AMX static void multiply(squares a, const uint16_t *b, size_t depth, const sums *to, float *c) {
    size_t row = to->ld * sizeof *c, a_row = a.ld * sizeof *b;
    float *low = c + 16 * to->ld;
    __asm__ volatile("" ::: "memory"); /* what was packed is stored: nothing says that loading a tile reads it */
    if (to->add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + 16, row);
        _tile_loadd(2, low, row);
        _tile_loadd(3, low + 16, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t k = 0; k < depth; k += GRAIN, a.x += a.right, b += SQUARE) {
        _tile_loadd(4, a.x, a_row);
        _tile_loadd(6, b, BF16_ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + HALF, BF16_ROW_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a.x + HALF / GRAIN * a.ld, a_row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + 16, row);
    _tile_stored(2, low, row);
    _tile_stored(3, low + 16, row);
    __asm__ volatile("" ::: "memory");
}

/* C = or += A B, of `depth`, which may be less than what was packed. */
static void product(squares a, right b, size_t m, size_t n, size_t depth, sums to) {
    for (size_t j = 0; j < n; j += GRAIN, b.at += b.panel) {
        squares x = a;
        for (size_t i = 0; i < m; i += GRAIN, x.x += x.down) multiply(x, b.at, depth, &to, to.c + i * to.ld + j);
    }
}

static source rows_at(const tm_attention *a, const void *x, uint64_t ld, size_t rows) {
    return (source){x, ld, rows, a->head_dim};
}
static source queries(const tm_attention *a, uint64_t b, uint64_t head, const attention_pair *r) {
    return rows_at(a, attention_q(a, b, r->q0, head), a->ld_q, r->nq);
}
static source keys(const tm_attention *a, const attention_view *kv, uint64_t k0, size_t nk) {
    return rows_at(a, (const uint16_t *)kv->k + k0 * kv->ld_k, kv->ld_k, nk);
}
static source values(const tm_attention *a, const attention_view *kv, uint64_t k0, size_t nk) {
    return rows_at(a, (const uint16_t *)kv->v + k0 * kv->ld_v, kv->ld_v, nk);
}
/* ---- forward ---- */

typedef struct forward_scratch {
    float *o, *s, *max, *sum;
    uint16_t *kt, *v, *q;
    size_t nk; /* keys of the tile under way */
} forward_scratch;

static uint64_t forward_floats(const tm_attention *a) {
    uint64_t d = whole(a->head_dim), seq = whole(a->seq);
    return seq * (d + 2) + TILE * TILE + 3 * TILE * d / 2;
}

static forward_scratch forward_carve(const tm_attention *a) {
    uint64_t d = whole(a->head_dim), seq = whole(a->seq);
    forward_scratch w = {.o = a->workspace};
    w.s = w.o + seq * d;
    w.max = w.s + TILE * TILE;
    w.sum = w.max + seq;
    w.kt = (uint16_t *)(void *)(w.sum + seq);
    w.v = w.kt + TILE * d;
    w.q = w.v + TILE * d;
    return w;
}

static void forward_pair(const tm_attention *a, uint64_t b, uint64_t head, const attention_pair *r,
                         const forward_scratch *w) {
    size_t d = whole(a->head_dim), rows = whole(r->nq);
    squares q = pack_rows(queries(a, b, head, r), w->q);
    product(q, right_of(w->kt, d), rows, r->columns, d, (sums){w->s, TILE, false});
    attention_cap(a, r, w->s);
    attention_mask(a, b, r, w->s);
    attention_softmax(a, r, w->s, (attention_sums){w->o, w->max, w->sum, d});
    squares p = narrow_tile(w->s, r->nq, r->columns);
    product(p, right_of(w->v, w->nk), rows, d, r->columns, (sums){w->o + r->q0 * d, d, true});
}

static void forward_item(const tm_attention *a, uint64_t b, uint64_t head) {
    forward_scratch w = forward_carve(a);
    size_t d = whole(a->head_dim);
    attention_view kv = attention_view_of(a, b, head / (a->heads / a->kv_heads));
    amx_begin_tiles(BF16_TILE_ROWS);
    memset(w.o, 0, whole(a->seq) * d * sizeof *w.o);
    for (uint64_t s = 0; s < a->seq; s++) w.max[s] = -INFINITY, w.sum[s] = 0;
    for (uint64_t k0 = kv.first; k0 < kv.keys; k0 += TILE) {
        w.nk = (size_t)tm_min_u64(TILE, kv.keys - k0);
        uint64_t at = k0 % kv.ring; /* a tile does not go over the ring's end */
        pack_transposed(pack_rows(keys(a, &kv, at, w.nk), w.q), w.nk, d, w.kt);
        pack_depths(pack_rows(values(a, &kv, at, w.nk), w.q), w.nk, d, w.v);
        attention_pair r;
        for (uint64_t q0 = 0; q0 < a->seq; q0 += TILE)
            if (attention_meet(a, b, q0, k0, kv.keys, GRAIN, &r)) forward_pair(a, b, head, &r, &w);
    }
    amx_end_tiles();
    for (uint64_t s = 0; s < a->seq; s++) attention_store_output(a, b, head, s, w.o + s * d, w.max[s], w.sum[s]);
}

/* ---- backward ---- */

typedef struct backward_scratch {
    float *dq, *delta; /* [group][seq, whole][d], [group][seq] */
    float *s, *dp, *slope, *dk, *dv;
    uint16_t *kt, *vt, *k;      /* packed, of the keys under way */
    uint16_t *q, *d_o, *depths; /* of the queries: rows, and one of the two packed */
    uint16_t *across;           /* a tile of P or of dS, transposed */
    size_t nk;
} backward_scratch;

static uint64_t backward_floats(const tm_attention *a) {
    uint64_t d = whole(a->head_dim), group = a->heads / a->kv_heads, seq = whole(a->seq);
    return group * seq * (d + 1) + 3 * TILE * TILE + 2 * TILE * d + 6 * TILE * d / 2 + TILE * TILE / 2;
}

static backward_scratch backward_carve(const tm_attention *a) {
    uint64_t d = whole(a->head_dim), group = a->heads / a->kv_heads, seq = whole(a->seq), tile = TILE * d;
    backward_scratch w = {.dq = a->workspace};
    w.delta = w.dq + group * seq * d;
    w.s = w.delta + group * seq;
    w.dp = w.s + TILE * TILE;
    w.slope = w.dp + TILE * TILE;
    w.dk = w.slope + TILE * TILE;
    w.dv = w.dk + tile;
    w.kt = (uint16_t *)(void *)(w.dv + tile);
    w.vt = w.kt + tile;
    w.k = w.vt + tile;
    w.q = w.k + tile;
    w.d_o = w.q + tile;
    w.depths = w.d_o + tile;
    w.across = w.depths + tile;
    return w;
}

static void backward_pair(const tm_attention *a, uint64_t b, uint64_t head, const attention_pair *r,
                          const backward_scratch *w, float *dq, const float *delta) {
    size_t d = whole(a->head_dim), rows = whole(r->nq), columns = r->columns;
    const void *d_o_at = attention_o(a, a->d_o, b, r->q0, head);
    squares q = pack_rows(queries(a, b, head, r), w->q);
    squares d_o = pack_rows(rows_at(a, d_o_at, (uint64_t)a->heads * a->head_dim, r->nq), w->d_o);
    product(q, right_of(w->kt, d), rows, columns, d, (sums){w->s, TILE, false});
    attention_cap_with_slopes(a, r, w->s, w->slope);
    attention_mask(a, b, r, w->s);
    product(d_o, right_of(w->vt, d), rows, columns, d, (sums){w->dp, TILE, false});
    attention_gradients_of_scores(a, b, head, r, delta, w->s, w->dp, w->slope);
    squares p = narrow_tile(w->s, r->nq, columns), ds = narrow_tile(w->dp, r->nq, columns);
    pack_depths(d_o, rows, d, w->depths);
    product(pack_columns(p, rows, columns, w->across), right_of(w->depths, rows), columns, d, rows,
            (sums){w->dv, d, true});
    pack_depths(q, rows, d, w->depths);
    product(pack_columns(ds, rows, columns, w->across), right_of(w->depths, rows), columns, d, rows,
            (sums){w->dk, d, true});
    product(ds, right_of(w->k, w->nk), rows, d, columns, (sums){dq + r->q0 * d, d, true});
}

static void backward_keys(const tm_attention *a, uint64_t b, uint64_t kv_head, const attention_view *kv, uint64_t k0,
                          backward_scratch *w) {
    size_t d = whole(a->head_dim), group = a->heads / a->kv_heads, seq = whole(a->seq);
    w->nk = (size_t)tm_min_u64(TILE, kv->keys - k0);
    squares k = pack_rows(keys(a, kv, k0, w->nk), w->q);
    pack_transposed(k, w->nk, d, w->kt);
    pack_depths(k, w->nk, d, w->k);
    pack_transposed(pack_rows(values(a, kv, k0, w->nk), w->q), w->nk, d, w->vt);
    memset(w->dk, 0, TILE * d * sizeof(float));
    memset(w->dv, 0, TILE * d * sizeof(float));
    attention_pair r;
    for (size_t g = 0; g < group; g++)
        for (uint64_t q0 = k0 / TILE * TILE; q0 < a->seq; q0 += TILE)
            if (attention_meet(a, b, q0, k0, kv->keys, GRAIN, &r))
                backward_pair(a, b, kv_head * group + g, &r, w, w->dq + g * seq * d, w->delta + g * seq);
    attention_gradient_rows rows = {.x = w->dk, .ld = d, .s0 = k0, .rows = w->nk, .head = kv_head};
    attention_store_gradient(a, b, (attention_gradient){a->d_k, a->ld_k, true, a->kv_add}, rows);
    rows.x = w->dv;
    attention_store_gradient(a, b, (attention_gradient){a->d_v, a->ld_v, false, a->kv_add}, rows);
}

static void backward_item(const tm_attention *a, uint64_t b, uint64_t kv_head) {
    backward_scratch w = backward_carve(a);
    size_t d = whole(a->head_dim), group = a->heads / a->kv_heads, seq = whole(a->seq);
    attention_view kv = attention_view_of(a, b, kv_head);
    amx_begin_tiles(BF16_TILE_ROWS);
    memset(w.dq, 0, group * seq * d * sizeof *w.dq);
    for (size_t g = 0; g < group; g++) attention_deltas(a, b, kv_head * group + g, w.delta + g * seq);
    for (uint64_t k0 = 0; k0 < kv.keys; k0 += TILE) backward_keys(a, b, kv_head, &kv, k0, &w);
    amx_end_tiles();
    for (size_t g = 0; g < group; g++)
        attention_store_gradient(a, b, (attention_gradient){a->d_q, a->ld_q, true, false},
                                 (attention_gradient_rows){w.dq + g * seq * d, d, 0, a->seq, kv_head * group + g});
}

static uint64_t floats(const tm_attention *a, bool backward) {
    return backward ? backward_floats(a) : forward_floats(a);
}

const attention_way attention_by_amx = {floats, forward_item, backward_item};
#endif

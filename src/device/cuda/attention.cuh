/* Tiled causal attention in fp32 arithmetic, grouped heads, sliding window, key mask: 64 queries by 64 keys, online
 * softmax forward; backward makes P again from the log-sum-exp, once by key tiles (dK, dV) and once by query tiles (dQ),
 * so that no sum is shared between blocks: nothing of size S x S, no atomics, one order of every sum.
 * (Milakov and Gimelshein 2018; Dao 2023.)
 *
 * A block is 16 x 16 threads. Of a 64 x 64 matrix thread (ty, tx) owns rows ty + 16 i and columns tx + 16 j, i, j < 4;
 * of 64 rows of head_dim columns the same rows and columns tx + 16 j, j < D / 16, D being head_dim rounded up. */
#pragma once
#include "layer.cuh"
#include "rows.cuh"

enum {
    ATT_TILE = CUDA_ATTENTION_TILE,
    ATT_SIDE = 16,
    ATT_OWN = ATT_TILE / ATT_SIDE,
    ATT_LD = ATT_TILE + 1,
    ATT_SLICE = 32, /* columns of a head that a product of two tiles takes at a time */
    ATT_WORK = ATT_TILE * ATT_LD /* two slices, 64 x 64 of an operand, or 16 rows of 256 */
};

struct att_rows { /* up to 64 rows of a head in memory */
    const void *x;
    uint64_t first, ld; /* elements */
    uint32_t rows;
};

struct att_tile {
    float *m;    /* [64][ATT_LD]: probabilities, or their gradients */
    float *work; /* slices of operands; rows on their way out */
    uint32_t tx, ty;
};

DEVICE float att_load(const cuda_attention_args &a, const att_rows &r, uint32_t row, uint32_t column) {
    return row < r.rows && column < a.head_dim ? load_any(a.type, r.x, r.first + row * r.ld + column) : 0.0f;
}

DEVICE uint64_t qkv_ld(const cuda_attention_args &a) {
    return ((uint64_t)a.heads + 2 * (uint64_t)a.kv_heads) * a.head_dim;
}
/* Rows from position `at` on of slot `head` of qkv: query heads, key heads, value heads. */
DEVICE att_rows att_qkv(const cuda_attention_args &a, uint32_t batch, uint32_t at, uint32_t rows, uint32_t head) {
    return {a.qkv, ((uint64_t)batch * a.seq + at) * qkv_ld(a) + (uint64_t)head * a.head_dim, qkv_ld(a), rows};
}
DEVICE att_rows att_output(const cuda_attention_args &a, const void *o, uint32_t batch, uint32_t at, uint32_t rows,
                           uint32_t head) {
    uint64_t ld = (uint64_t)a.heads * a.head_dim;
    return {o, ((uint64_t)batch * a.seq + at) * ld + (uint64_t)head * a.head_dim, ld, rows};
}

DEVICE uint64_t att_cache_row(const cuda_attention_args &a, uint32_t batch) {
    return a.cache_row ? a.cache_row[batch] : batch;
}
/* A cache of keys and values: [rows][capacity] entries, slots of kv_heads keys, then of kv_heads values. */
DEVICE uint64_t att_entry(const cuda_attention_args &a) { return 2 * (uint64_t)a.kv_heads * a.head_dim; }
DEVICE uint32_t att_position(const cuda_attention_args &a, uint32_t batch) {
    return a.position ? a.position[batch] : 0;
}
DEVICE att_rows att_cache(const cuda_attention_args &a, uint32_t batch, uint32_t at, uint32_t rows, uint32_t slot) {
    uint64_t first = (att_cache_row(a, batch) * a.capacity + at) * att_entry(a) + (uint64_t)slot * a.head_dim;
    return {a.cache, first, att_entry(a), rows};
}

/* acc = X Y^T. Leaves behind a barrier. */
DEVICE void att_product(const cuda_attention_args &a, const att_tile &t, const att_rows &x, const att_rows &y,
                        float acc[ATT_OWN][ATT_OWN]) {
    float *sx = t.work, *sy = t.work + ATT_SLICE * ATT_LD;
    for (uint32_t i = 0; i < ATT_OWN; i++)
        for (uint32_t j = 0; j < ATT_OWN; j++) acc[i][j] = 0.0f;
    for (uint32_t d = 0; d < a.head_dim; d += ATT_SLICE) {
        for (uint32_t i = thread_of_block(); i < ATT_TILE * ATT_SLICE; i += CUDA_THREADS) {
            uint32_t row = i / ATT_SLICE, p = i % ATT_SLICE;
            sx[p * ATT_LD + row] = att_load(a, x, row, d + p);
            sy[p * ATT_LD + row] = att_load(a, y, row, d + p);
        }
        barrier();
        UNROLL_4 for (uint32_t p = 0; p < ATT_SLICE; p++)
            UNROLL for (uint32_t i = 0; i < ATT_OWN; i++)
                UNROLL for (uint32_t j = 0; j < ATT_OWN; j++)
                    acc[i][j] = fmaf(sx[p * ATT_LD + t.ty + ATT_SIDE * i], sy[p * ATT_LD + t.tx + ATT_SIDE * j],
                                     acc[i][j]);
        barrier();
    }
}

/* acc += M X, or M^T X. M may just have been written: it is read behind a barrier. Leaves behind a barrier. */
template <int D, bool Transposed>
DEVICE void att_accumulate(const cuda_attention_args &a, const att_tile &t, const att_rows &x,
                           float acc[ATT_OWN][D / ATT_SIDE]) {
    UNROLL for (int slice = 0; slice < D / ATT_TILE; slice++) {
        for (uint32_t i = thread_of_block(); i < ATT_TILE * ATT_TILE; i += CUDA_THREADS)
            t.work[i] = att_load(a, x, i / ATT_TILE, (uint32_t)slice * ATT_TILE + i % ATT_TILE);
        barrier();
        UNROLL_4 for (uint32_t k = 0; k < ATT_TILE; k++)
            UNROLL for (uint32_t i = 0; i < ATT_OWN; i++) {
                uint32_t own = t.ty + ATT_SIDE * i;
                float m = Transposed ? t.m[k * ATT_LD + own] : t.m[own * ATT_LD + k];
                UNROLL for (uint32_t j = 0; j < ATT_OWN; j++)
                    acc[i][slice * ATT_OWN + j] =
                        fmaf(m, t.work[k * ATT_TILE + t.tx + ATT_SIDE * j], acc[i][slice * ATT_OWN + j]);
            }
        barrier();
    }
}

/* With a cache q is a position, and a query past the last is computed and left. */
template <bool Cached = false>
DEVICE bool att_sees(const cuda_attention_args &a, uint32_t batch, uint32_t q, uint32_t key) {
    if ((!Cached && q >= a.seq) || key > q || (a.window && (uint64_t)key + a.window <= q)) return false;
    return Cached || !a.key_mask || a.key_mask[(uint64_t)batch * a.seq + key];
}

/* The first tile of keys that a query of the tile from q0 on sees; queries past the last that sees a key of k0's. */
DEVICE uint32_t att_first_key(const cuda_attention_args &a, uint32_t q0) {
    uint32_t key = a.window && q0 + 1 > a.window ? q0 + 1 - a.window : 0;
    return key / ATT_TILE * ATT_TILE;
}
DEVICE uint32_t att_last_query(const cuda_attention_args &a, uint32_t k0) {
    return a.window ? (uint32_t)least(a.seq, (uint64_t)k0 + ATT_TILE - 1 + a.window) : a.seq;
}
DEVICE uint32_t att_count(const cuda_attention_args &a, uint32_t at) {
    return (uint32_t)least(ATT_TILE, a.seq - at);
}

DEVICE float att_row_max(float x) {
    UNROLL for (unsigned d = ATT_SIDE / 2; d > 0; d /= 2) x = largest(x, shuffle_xor(x, d));
    return x;
}
DEVICE float att_row_sum(float x) {
    UNROLL for (unsigned d = ATT_SIDE / 2; d > 0; d /= 2) x += shuffle_xor(x, d);
    return x;
}

/* ---- forward: grid (query tiles, heads, rows) ---- */

/* One row of scores: s becomes e^(scale s - max); the factor for what was summed before is returned. */
template <bool Cached>
DEVICE float att_softmax_row(const cuda_attention_args &a, uint32_t batch, uint32_t q, uint32_t k0, uint32_t tx,
                             float s[ATT_OWN], float *max, float *sum) {
    float m = *max, old = *max, part = 0.0f;
    UNROLL for (uint32_t j = 0; j < ATT_OWN; j++) {
        s[j] = att_sees<Cached>(a, batch, q, k0 + tx + ATT_SIDE * j) ? s[j] * a.scale : minus_infinity();
        m = largest(s[j], m);
    }
    m = att_row_max(m);
    bool nothing = m == minus_infinity();
    UNROLL for (uint32_t j = 0; j < ATT_OWN; j++) {
        s[j] = nothing ? 0.0f : exp_of(s[j] - m);
        part += s[j];
    }
    part = att_row_sum(part);
    if (nothing) return 1.0f;
    float back = exp_of(old - m);
    *max = m;
    *sum = *sum * back + part;
    return back;
}

template <int D, bool Cached = false>
DEVICE void attention_forward_block(const cuda_attention_args &a, const att_tile &t) {
    uint32_t q0 = (blocks_x() - 1 - block_x()) * ATT_TILE, head = block_y(), batch = block_z();
    uint32_t kv = head / (a.heads / a.kv_heads), nq = att_count(a, q0);
    float acc[ATT_OWN][D / ATT_SIDE] = {}, s[ATT_OWN][ATT_OWN], max[ATT_OWN], sum[ATT_OWN] = {};
    for (uint32_t i = 0; i < ATT_OWN; i++) max[i] = minus_infinity();
    uint32_t base = Cached ? att_position(a, batch) : 0;
    att_rows q = att_qkv(a, batch, q0, nq, head);
    for (uint32_t k0 = att_first_key(a, base + q0); k0 < base + q0 + nq; k0 += ATT_TILE) {
        uint32_t nk = Cached ? (uint32_t)least(ATT_TILE, base + a.seq - k0) : att_count(a, k0);
        att_product(a, t, q, Cached ? att_cache(a, batch, k0, nk, kv) : att_qkv(a, batch, k0, nk, a.heads + kv), s);
        UNROLL for (uint32_t i = 0; i < ATT_OWN; i++) {
            uint32_t row = t.ty + ATT_SIDE * i;
            float back = att_softmax_row<Cached>(a, batch, base + q0 + row, k0, t.tx, s[i], &max[i], &sum[i]);
            UNROLL for (uint32_t j = 0; j < D / ATT_SIDE; j++) acc[i][j] *= back;
            UNROLL for (uint32_t j = 0; j < ATT_OWN; j++) t.m[row * ATT_LD + t.tx + ATT_SIDE * j] = s[i][j];
        }
        att_rows values = Cached ? att_cache(a, batch, k0, nk, a.kv_heads + kv)
                                 : att_qkv(a, batch, k0, nk, a.heads + a.kv_heads + kv);
        att_accumulate<D, false>(a, t, values, acc);
    }
    att_rows out = att_output(a, a.out, batch, q0, nq, head);
    for (uint32_t i = 0; i < ATT_OWN; i++) {
        uint32_t row = t.ty + ATT_SIDE * i;
        if (row >= nq) continue;
        float scale = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
        UNROLL for (uint32_t j = 0; j < D / ATT_SIDE; j++)
            if (t.tx + ATT_SIDE * j < a.head_dim)
                store_any(a.type, acc[i][j] * scale, a.out, out.first + row * out.ld + t.tx + ATT_SIDE * j);
        if (t.tx == 0 && a.lse)
            a.lse[((uint64_t)batch * a.seq + q0 + row) * a.heads + head] =
                sum[i] > 0.0f ? max[i] + log_of(sum[i]) : 0.0f;
    }
}

/* Runs body<D> for the head's size; a.head_dim <= 256. */
#define ATT_WITH_SIZE(a, ...)                                                                                          \
    do {                                                                                                               \
        shared_pool pool;                                                                                              \
        att_tile t = {pool.take<float>(ATT_TILE * ATT_LD), pool.take<float>(ATT_WORK), thread_of_block() % ATT_SIDE,   \
                      thread_of_block() / ATT_SIDE};                                                                   \
        if ((a).head_dim <= 64) {                                                                                      \
            constexpr int D = 64;                                                                                      \
            __VA_ARGS__;                                                                                               \
        } else if ((a).head_dim <= 128) {                                                                              \
            constexpr int D = 128;                                                                                     \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            constexpr int D = 256;                                                                                     \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

KERNEL(attention_forward, cuda_attention_args, CUDA_THREADS) {
    ATT_WITH_SIZE(a, attention_forward_block<D>(a, t));
}

/* ---- backward ---- */

/* delta = sum(dO * O) of a row and head, which is sum(P * dP): a warp has CUDA_DELTA_ROWS of them under way, a lane two
 * columns of 64, at once where they can be loaded so. */
template <typename T, bool Pairs> DEVICE void att_deltas(const cuda_attention_args &a) {
    const T *o = static_cast<const T *>(a.o), *d_o = static_cast<const T *>(a.d_o);
    uint32_t lane = thread_of_block() % CUDA_WARP, warp = thread_of_block() / CUDA_WARP;
    uint64_t all = (uint64_t)a.rows * a.seq * a.heads, step = threads_of_block() / CUDA_WARP * CUDA_DELTA_ROWS;
    for (uint64_t at = block_x() * step; at < all; at += blocks_x() * step) {
        uint64_t first = at + warp * CUDA_DELTA_ROWS;
        float sum[CUDA_DELTA_ROWS] = {};
        for (uint32_t d = 2 * lane; d < a.head_dim; d += 2 * CUDA_WARP)
            UNROLL for (uint32_t k = 0; k < CUDA_DELTA_ROWS; k++) {
                uint64_t i = least(first + k, all - 1) * a.head_dim + d;
                float x[2] = {}, dx[2] = {};
                if (Pairs) {
                    load_few<T, 2>(o + i, x);
                    load_few<T, 2>(d_o + i, dx);
                } else {
                    x[0] = widen(o[i]), dx[0] = widen(d_o[i]);
                    if (d + 1 < a.head_dim) x[1] = widen(o[i + 1]), dx[1] = widen(d_o[i + 1]);
                }
                sum[k] = fmaf(x[1], dx[1], fmaf(x[0], dx[0], sum[k]));
            }
        UNROLL for (uint32_t k = 0; k < CUDA_DELTA_ROWS; k++) {
            UNROLL for (unsigned d = CUDA_WARP / 2; d > 0; d /= 2) sum[k] += shuffle_xor(sum[k], d);
            if (lane == 0 && first + k < all) a.delta[first + k] = sum[k];
        }
    }
}
KERNEL(attention_delta, cuda_attention_args, CUDA_THREADS) {
    uintptr_t both = (uintptr_t)a.o | (uintptr_t)a.d_o;
    bool even = a.head_dim % 2 == 0;
    WITH_TYPE(a.type, even && both % (2 * sizeof(T)) == 0 ? att_deltas<T, true>(a) : att_deltas<T, false>(a));
}

/* P of a pair of tiles into p, and into t.m. */
DEVICE void att_probabilities(const cuda_attention_args &a, const att_tile &t, uint32_t batch, uint32_t head,
                              uint32_t q0, uint32_t k0, const att_rows &q, const att_rows &k,
                              float p[ATT_OWN][ATT_OWN]) {
    att_product(a, t, q, k, p);
    UNROLL for (uint32_t i = 0; i < ATT_OWN; i++) {
        uint32_t row = t.ty + ATT_SIDE * i;
        float lse = row < q.rows ? a.lse[((uint64_t)batch * a.seq + q0 + row) * a.heads + head] : 0.0f;
        UNROLL for (uint32_t j = 0; j < ATT_OWN; j++) {
            uint32_t column = t.tx + ATT_SIDE * j;
            bool sees = att_sees(a, batch, q0 + row, k0 + column);
            p[i][j] = sees ? exp_of(p[i][j] * a.scale - lse) : 0.0f;
            t.m[row * ATT_LD + column] = p[i][j];
        }
    }
}

/* The scores' gradient p (dP - delta) scale into t.m. */
DEVICE void att_score_gradient(const cuda_attention_args &a, const att_tile &t, uint32_t batch, uint32_t head,
                               uint32_t q0, const att_rows &d_o, const att_rows &v, float p[ATT_OWN][ATT_OWN]) {
    float dp[ATT_OWN][ATT_OWN];
    att_product(a, t, d_o, v, dp);
    UNROLL for (uint32_t i = 0; i < ATT_OWN; i++) {
        uint32_t row = t.ty + ATT_SIDE * i;
        float delta = row < d_o.rows ? a.delta[((uint64_t)batch * a.seq + q0 + row) * a.heads + head] : 0.0f;
        UNROLL for (uint32_t j = 0; j < ATT_OWN; j++)
            t.m[row * ATT_LD + t.tx + ATT_SIDE * j] = p[i][j] * (dp[i][j] - delta) * a.scale;
    }
}

/* 16 rows at a time through shared memory, so that a pair (c, c + head_dim / 2) meets in one thread: turned back by the
 * rotation of its position, then rounded. */
template <int D>
DEVICE void att_store_gradient(const cuda_attention_args &a, const att_tile &t, uint32_t batch, uint32_t at,
                               uint32_t rows, uint32_t head, bool rotated, float acc[ATT_OWN][D / ATT_SIDE]) {
    att_rows out = att_qkv(a, batch, at, rows, head);
    uint32_t half = a.head_dim / 2;
    bool turn = rotated && a.rope_table;
    UNROLL for (uint32_t i = 0; i < ATT_OWN; i++) {
        UNROLL for (uint32_t j = 0; j < D / ATT_SIDE; j++) t.work[t.ty * D + t.tx + ATT_SIDE * j] = acc[i][j];
        barrier();
        for (uint32_t e = thread_of_block(); e < ATT_SIDE * a.head_dim; e += CUDA_THREADS) {
            uint32_t r = e / a.head_dim, column = e % a.head_dim, row = r + ATT_SIDE * i;
            if (row >= rows) continue;
            float x = t.work[r * D + column];
            if (turn && column < 2 * half) {
                bool low = column < half;
                float c, s, other = t.work[r * D + (low ? column + half : column - half)];
                angle_of(a.rope_table, a.rope_inv_freq, a.rope_cached, half, at + row, low ? column : column - half, &c,
                         &s);
                x = low ? x * c + other * s : x * c - other * s;
            }
            store_any(a.type, x, a.d_qkv, out.first + row * out.ld + column);
        }
        barrier();
    }
}

/* grid (key tiles, key-value heads, rows) */
template <int D> DEVICE void attention_keys_block(const cuda_attention_args &a, const att_tile &t) {
    uint32_t k0 = block_x() * ATT_TILE, kv = block_y(), batch = block_z(), nk = att_count(a, k0);
    uint32_t group = a.heads / a.kv_heads, end = att_last_query(a, k0);
    att_rows k = att_qkv(a, batch, k0, nk, a.heads + kv), v = att_qkv(a, batch, k0, nk, a.heads + a.kv_heads + kv);
    float dk[ATT_OWN][D / ATT_SIDE] = {}, dv[ATT_OWN][D / ATT_SIDE] = {}, p[ATT_OWN][ATT_OWN];
    for (uint32_t head = kv * group; head < (kv + 1) * group; head++)
        for (uint32_t q0 = k0; q0 < end; q0 += ATT_TILE) {
            uint32_t nq = att_count(a, q0);
            att_rows q = att_qkv(a, batch, q0, nq, head), d_o = att_output(a, a.d_o, batch, q0, nq, head);
            att_probabilities(a, t, batch, head, q0, k0, q, k, p);
            att_accumulate<D, true>(a, t, d_o, dv);
            att_score_gradient(a, t, batch, head, q0, d_o, v, p);
            att_accumulate<D, true>(a, t, q, dk);
        }
    att_store_gradient<D>(a, t, batch, k0, nk, a.heads + kv, true, dk);
    att_store_gradient<D>(a, t, batch, k0, nk, a.heads + a.kv_heads + kv, false, dv);
}
KERNEL(attention_keys, cuda_attention_args, CUDA_THREADS) {
    ATT_WITH_SIZE(a, attention_keys_block<D>(a, t));
}

/* grid (query tiles, heads, rows) */
template <int D> DEVICE void attention_queries_block(const cuda_attention_args &a, const att_tile &t) {
    uint32_t q0 = (blocks_x() - 1 - block_x()) * ATT_TILE, head = block_y(), batch = block_z();
    uint32_t kv = head / (a.heads / a.kv_heads), nq = att_count(a, q0);
    att_rows q = att_qkv(a, batch, q0, nq, head), d_o = att_output(a, a.d_o, batch, q0, nq, head);
    float dq[ATT_OWN][D / ATT_SIDE] = {}, p[ATT_OWN][ATT_OWN];
    for (uint32_t k0 = att_first_key(a, q0); k0 < q0 + nq; k0 += ATT_TILE) {
        uint32_t nk = att_count(a, k0);
        att_rows k = att_qkv(a, batch, k0, nk, a.heads + kv), v = att_qkv(a, batch, k0, nk, a.heads + a.kv_heads + kv);
        att_probabilities(a, t, batch, head, q0, k0, q, k, p);
        att_score_gradient(a, t, batch, head, q0, d_o, v, p);
        att_accumulate<D, false>(a, t, k, dq);
    }
    att_store_gradient<D>(a, t, batch, q0, nq, head, true, dq);
}
KERNEL(attention_queries, cuda_attention_args, CUDA_THREADS, 2) {
    ATT_WITH_SIZE(a, attention_queries_block<D>(a, t));
}

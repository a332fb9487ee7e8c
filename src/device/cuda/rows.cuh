/* Element by element and row by row: conversions, rotary embedding, gated unit, biases, gather and scatter. */
#pragma once
#include "layer.cuh"

KERNEL(convert, cuda_convert_args, CUDA_THREADS) {
    for (uint64_t i = thread_of_grid(); i < a.n; i += threads_of_grid())
        store_any(a.to, load_any(a.from, a.x, i), a.y, i);
}

/* Words where p is aligned, bytes at both ends. */
KERNEL(zero, cuda_zero_args, CUDA_THREADS) {
    char *p = static_cast<char *>(a.p);
    uint64_t head = least(a.bytes, (4 - (uint64_t)(uintptr_t)p % 4) % 4), words = (a.bytes - head) / 4;
    uint32_t *w = reinterpret_cast<uint32_t *>(p + head);
    for (uint64_t i = thread_of_grid(); i < words; i += threads_of_grid()) w[i] = 0;
    for (uint64_t i = thread_of_grid(); i < head; i += threads_of_grid()) p[i] = 0;
    for (uint64_t i = head + 4 * words + thread_of_grid(); i < a.bytes; i += threads_of_grid()) p[i] = 0;
}

/* ---- rotary embedding: a block per token row ---- */

DEVICE void angle_of(const float *table, const float *inv_freq, uint32_t cached, uint32_t half, uint64_t position,
                     uint32_t i, float *cosine, float *sine) {
    if (position < cached) {
        *cosine = table[position * 2 * half + i];
        *sine = table[(position * 2 + 1) * half + i];
    } else {
        double angle = (double)((float)(uint32_t)position * inv_freq[i]);
        *cosine = (float)cos(angle);
        *sine = (float)sin(angle);
    }
}

/* Threads beyond a whole number of half heads have nothing to do; the others keep their column, and so their angle, and
 * have ROPE_EACH heads under way at a time. */
enum { ROPE_EACH = 4 };
template <typename T> DEVICE void rotate_row(const cuda_rope_args &a, uint64_t r, uint64_t position) {
    uint32_t half = a.head_dim / 2, step = threads_of_block() / half, column = thread_of_block() % half;
    T *x = static_cast<T *>(a.x) + r * a.ld + column;
    float c, s;
    if (thread_of_block() >= step * half) return;
    angle_of(a.table, a.inv_freq, a.cached, half, position, column, &c, &s);
    if (a.inverse) s = -s;
    for (uint32_t first = thread_of_block() / half; first < a.heads; first += ROPE_EACH * step) {
        float x1[ROPE_EACH], x2[ROPE_EACH];
        UNROLL for (uint32_t k = 0; k < ROPE_EACH; k++) {
            uint32_t head = first + k * step < a.heads ? first + k * step : first;
            x1[k] = widen(x[head * a.head_dim]);
            x2[k] = widen(x[head * a.head_dim + half]);
        }
        UNROLL for (uint32_t k = 0; k < ROPE_EACH; k++) {
            T *at = x + (first + k * step) * a.head_dim;
            if (first + k * step >= a.heads) break;
            narrow(x1[k] * c - x2[k] * s, at);
            narrow(x2[k] * c + x1[k] * s, at + half);
        }
    }
}

KERNEL(rope, cuda_rope_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) {
        uint64_t row = a.row0 + r, position = row % a.seq + (a.first ? a.first[row / a.seq] : 0);
        WITH_TYPE(a.type, rotate_row<T>(a, r, position));
    }
}

/* ---- gated unit: a block per row ---- */

/* What is rounded to 16 bits afterwards takes the device's own power and reciprocal. */
template <typename T> DEVICE float sigmoid(float x) {
    return sizeof(T) < 4 ? reciprocal_of(1.0f + exp2_of(x * -1.44269504f)) : 1.0f / (1.0f + exp_of(-x));
}

/* Whether rows can be taken SWIGLU_FEW columns at a time. */
enum { SWIGLU_FEW = 4 };
DEVICE bool swiglu_by_few(const cuda_swiglu_args &a) {
    uintptr_t all = (uintptr_t)a.gate_up | (uintptr_t)a.da | (uintptr_t)a.a | (uintptr_t)a.d_gate_up;
    return a.f % SWIGLU_FEW == 0 && all % (SWIGLU_FEW * sizeof(float)) == 0;
}

template <typename T, int N> DEVICE void swiglu_row(const cuda_swiglu_args &a, uint64_t r) {
    const T *gate = static_cast<const T *>(a.gate_up) + 2 * r * a.f, *up = gate + a.f;
    T *out = static_cast<T *>(a.a) + r * a.f;
    for (uint32_t i = thread_of_block() * N; i < a.f; i += threads_of_block() * N) {
        float g[N], u[N];
        load_few<T, N>(gate + i, g);
        load_few<T, N>(up + i, u);
        UNROLL for (int e = 0; e < N; e++) u[e] = g[e] * sigmoid<T>(g[e]) * u[e];
        store_few<T, N>(u, out + i);
    }
}
KERNEL(swiglu_forward, cuda_swiglu_args, CUDA_THREADS) {
    bool few = swiglu_by_few(a);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x())
        WITH_TYPE(a.type, few ? swiglu_row<T, SWIGLU_FEW>(a, r) : swiglu_row<T, 1>(a, r));
}

/* silu'(g) = s (1 + g (1 - s)), s = sigmoid(g). d_gate_up may be gate_up itself. */
template <typename T, int N> DEVICE void swiglu_row_gradient(const cuda_swiglu_args &a, uint64_t r) {
    const T *gate = static_cast<const T *>(a.gate_up) + 2 * r * a.f;
    T *d_gate = static_cast<T *>(a.d_gate_up) + 2 * r * a.f, *out = static_cast<T *>(a.a) + r * a.f;
    const float *d_out = a.da + r * a.f;
    for (uint32_t i = thread_of_block() * N; i < a.f; i += threads_of_block() * N) {
        float g[N], u[N], da[N], y[N];
        load_few<T, N>(gate + i, g);
        load_few<T, N>(gate + a.f + i, u);
        load_few<float, N>(d_out + i, da);
        UNROLL for (int e = 0; e < N; e++) {
            float s = sigmoid<T>(g[e]), silu = g[e] * s;
            y[e] = silu * u[e];
            u[e] = da[e] * u[e] * (s * (1.0f + g[e] * (1.0f - s)));
            g[e] = da[e] * silu;
        }
        store_few<T, N>(y, out + i);
        store_few<T, N>(u, d_gate + i);
        store_few<T, N>(g, d_gate + a.f + i);
    }
}
KERNEL(swiglu_backward, cuda_swiglu_args, CUDA_THREADS) {
    bool few = swiglu_by_few(a);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x())
        WITH_TYPE(a.type, few ? swiglu_row_gradient<T, SWIGLU_FEW>(a, r) : swiglu_row_gradient<T, 1>(a, r));
}

/* ---- rows and columns ---- */

template <typename T> DEVICE void add_row(const cuda_rows_args &a, uint64_t r) {
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block())
        store<T>(load<T>(a.x, r * a.ld + i) + load<T>(a.bias, i), a.x, r * a.ld + i);
}
KERNEL(add_bias, cuda_rows_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) WITH_TYPE(a.type, add_row<T>(a, r));
}

/* Sums over rows in their order: a block has 32 columns, SUM_ROWS rows of them at a time in shared memory. Its first
 * warp adds those while all have the next ones on their way. */
enum { SUM_COLUMNS = CUDA_WARP, SUM_ROWS = CUDA_SUM_ROWS, SUM_STEP = CUDA_THREADS / SUM_COLUMNS };

template <typename T>
DEVICE void sum_fetch(const cuda_rows_args &a, uint64_t r0, uint64_t column, float x[SUM_ROWS / SUM_STEP]) {
    UNROLL for (uint32_t k = 0; k < SUM_ROWS / SUM_STEP; k++) {
        uint64_t r = r0 + thread_of_block() / SUM_COLUMNS + k * SUM_STEP;
        x[k] = r < a.rows ? load<T>(a.x, r * a.ld + column) : 0.0f;
    }
}
DEVICE void sum_put(const float x[SUM_ROWS / SUM_STEP], float *tile) {
    UNROLL for (uint32_t k = 0; k < SUM_ROWS / SUM_STEP; k++) tile[thread_of_block() + k * CUDA_THREADS] = x[k];
}

template <typename T> DEVICE void sum_columns(const cuda_rows_args &a, uint64_t first, float *tile) {
    uint32_t lane = thread_of_block() % SUM_COLUMNS, at = 0;
    uint64_t column = least(first + lane, a.n - 1);
    float next[SUM_ROWS / SUM_STEP], sum = 0.0f;
    sum_fetch<T>(a, 0, column, next);
    sum_put(next, tile);
    barrier();
    for (uint64_t r0 = 0; r0 < a.rows; r0 += SUM_ROWS, at ^= 1) {
        const float *here = tile + at * SUM_ROWS * SUM_COLUMNS + lane;
        uint32_t n = (uint32_t)least(SUM_ROWS, a.rows - r0);
        sum_fetch<T>(a, r0 + SUM_ROWS, column, next);
        if (thread_of_block() < SUM_COLUMNS)
            for (uint32_t k = 0; k < n; k++) sum += here[k * SUM_COLUMNS];
        sum_put(next, tile + (at ^ 1) * SUM_ROWS * SUM_COLUMNS);
        barrier();
    }
    if (thread_of_block() < SUM_COLUMNS && first + lane < a.n)
        a.out[first + lane] = a.add ? a.out[first + lane] + sum : sum;
}
KERNEL(column_sum, cuda_rows_args, CUDA_THREADS) {
    shared_pool pool;
    float *tile = pool.take<float>(2 * SUM_ROWS * SUM_COLUMNS);
    for (uint64_t c = (uint64_t)block_x() * SUM_COLUMNS; c < a.n; c += (uint64_t)blocks_x() * SUM_COLUMNS)
        WITH_TYPE(a.type, sum_columns<T>(a, c, tile));
}

/* ---- gather, scatter: a block per row ---- */

KERNEL(gather, cuda_gather_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.padded; r += blocks_x()) {
        uint64_t from = r < a.rows ? (uint64_t)a.row[r] * a.n : 0;
        for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block()) {
            if (a.type == CUDA_F32)
                static_cast<uint32_t *>(a.dst)[r * a.n + i] =
                    r < a.rows ? static_cast<const uint32_t *>(a.src)[from + i] : 0;
            else
                static_cast<uint16_t *>(a.dst)[r * a.n + i] =
                    r < a.rows ? static_cast<const uint16_t *>(a.src)[from + i] : (uint16_t)0;
        }
    }
}

KERNEL(scatter_add, cuda_gather_args, CUDA_THREADS) {
    const float *src = static_cast<const float *>(a.src);
    float *dst = static_cast<float *>(a.dst);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x())
        for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block())
            dst[(uint64_t)a.row[r] * a.n + i] += src[r * a.n + i];
}

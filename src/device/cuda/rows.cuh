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

template <typename T> DEVICE void rotate_row(const cuda_rope_args &a, uint64_t r, uint64_t position) {
    uint32_t half = a.head_dim / 2;
    T *x = static_cast<T *>(a.x) + r * a.ld;
    for (uint32_t pair = thread_of_block(); pair < a.heads * half; pair += threads_of_block()) {
        float c, s;
        T *at = x + (uint64_t)(pair / half) * a.head_dim + pair % half;
        float x1 = widen(at[0]), x2 = widen(at[half]);
        angle_of(a.table, a.inv_freq, a.cached, half, position, pair % half, &c, &s);
        if (a.inverse) s = -s;
        narrow(x1 * c - x2 * s, at);
        narrow(x2 * c + x1 * s, at + half);
    }
}

KERNEL(rope, cuda_rope_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) {
        uint64_t row = a.row0 + r, position = row % a.seq + (a.first ? a.first[row / a.seq] : 0);
        WITH_TYPE(a.type, rotate_row<T>(a, r, position));
    }
}

/* ---- gated unit: a block per row ---- */

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

template <typename T> DEVICE void swiglu_row(const cuda_swiglu_args &a, uint64_t r) {
    uint64_t at = 2 * r * a.f;
    for (uint64_t i = thread_of_block(); i < a.f; i += threads_of_block()) {
        float g = load<T>(a.gate_up, at + i), u = load<T>(a.gate_up, at + a.f + i);
        store<T>(g * sigmoid(g) * u, a.a, r * a.f + i);
    }
}
KERNEL(swiglu_forward, cuda_swiglu_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) WITH_TYPE(a.type, swiglu_row<T>(a, r));
}

/* silu'(g) = s (1 + g (1 - s)), s = sigmoid(g). d_gate_up may be gate_up itself. */
template <typename T> DEVICE void swiglu_row_gradient(const cuda_swiglu_args &a, uint64_t r) {
    uint64_t at = 2 * r * a.f;
    for (uint64_t i = thread_of_block(); i < a.f; i += threads_of_block()) {
        float g = load<T>(a.gate_up, at + i), u = load<T>(a.gate_up, at + a.f + i), da = a.da[r * a.f + i];
        float s = sigmoid(g), silu = g * s;
        store<T>(silu * u, a.a, r * a.f + i);
        store<T>(da * u * (s * (1.0f + g * (1.0f - s))), a.d_gate_up, at + i);
        store<T>(da * silu, a.d_gate_up, at + a.f + i);
    }
}
KERNEL(swiglu_backward, cuda_swiglu_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) WITH_TYPE(a.type, swiglu_row_gradient<T>(a, r));
}

/* ---- rows and columns ---- */

template <typename T> DEVICE void add_row(const cuda_rows_args &a, uint64_t r) {
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block())
        store<T>(load<T>(a.x, r * a.ld + i) + load<T>(a.bias, i), a.x, r * a.ld + i);
}
KERNEL(add_bias, cuda_rows_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) WITH_TYPE(a.type, add_row<T>(a, r));
}

/* A thread owns a column, so that the order of the rows is kept. */
template <typename T> DEVICE void sum_column(const cuda_rows_args &a, uint64_t column) {
    float sum = 0.0f;
    for (uint64_t r = 0; r < a.rows; r++) sum += load<T>(a.x, r * a.ld + column);
    a.out[column] = a.add ? a.out[column] + sum : sum;
}
KERNEL(column_sum, cuda_rows_args, CUDA_THREADS) {
    for (uint64_t c = thread_of_grid(); c < a.n; c += threads_of_grid()) WITH_TYPE(a.type, sum_column<T>(a, c));
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

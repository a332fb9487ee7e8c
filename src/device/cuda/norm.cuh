/* Root mean square norm. A block per row; the weight's gradient by columns, in blocks of CUDA_ROW_BLOCK rows whose sums
 * column_sum then adds in order. */
#include "layer.cuh"

/* A thread has NORM_FEW columns of every NORM_STEP, and adds them in their order, whether they can be loaded at once or
 * not: a result does not depend on where an operand lies. NORM_LOADS such loads are under way at a time. */
enum { NORM_FEW = 4, NORM_LOADS = 2, NORM_STEP = CUDA_THREADS * NORM_FEW };

template <typename T> DEVICE bool norm_by_few(const cuda_norm_args &a) {
    uintptr_t typed = (uintptr_t)a.x | (uintptr_t)a.w | (uintptr_t)a.y | (uintptr_t)a.dx, floats = (uintptr_t)a.dy;
    return a.n % NORM_FEW == 0 && typed % (NORM_FEW * sizeof(T)) == 0 && floats % (NORM_FEW * sizeof(float)) == 0;
}
/* Columns from i on of a row; zeros past its end. */
template <bool Few, typename T> DEVICE void norm_load(const T *row, uint64_t n, uint64_t i, float x[NORM_FEW]) {
    UNROLL for (int e = 0; e < NORM_FEW; e++) x[e] = 0.0f;
    if (Few && i < n) load_few<T, NORM_FEW>(row + i, x);
    UNROLL for (int e = 0; e < NORM_FEW; e++)
        if (!Few && i + e < n) x[e] = widen(row[i + e]);
}
template <bool Few, typename T> DEVICE void norm_store(const float x[NORM_FEW], uint64_t n, uint64_t i, T *row) {
    if (Few && i < n) store_few<T, NORM_FEW>(x, row + i);
    UNROLL for (int e = 0; e < NORM_FEW; e++)
        if (!Few && i + e < n) narrow(x[e], row + i + e);
}
#define NORM_PIECES(i, n) for (uint64_t i = thread_of_block() * NORM_FEW; i < (n); i += NORM_LOADS * NORM_STEP)

template <bool Few, typename T> DEVICE float inverse_rms(const cuda_norm_args &a, const T *row, float *scratch) {
    float sum = 0.0f;
    NORM_PIECES(i, a.n) {
        float x[NORM_LOADS][NORM_FEW];
        UNROLL for (int k = 0; k < NORM_LOADS; k++) norm_load<Few>(row, a.n, i + k * NORM_STEP, x[k]);
        UNROLL for (int k = 0; k < NORM_LOADS; k++)
            UNROLL for (int e = 0; e < NORM_FEW; e++) sum = fmaf(x[k][e], x[k][e], sum);
    }
    sum = block_reduce<add_op>(sum, scratch);
    return 1.0f / sqrtf(sum / (float)a.n + a.eps);
}

template <bool Few, typename T> DEVICE void norm_row(const cuda_norm_args &a, uint64_t r, float *scratch) {
    const T *row = static_cast<const T *>(a.x) + r * a.n, *weight = static_cast<const T *>(a.w);
    float inv = inverse_rms<Few>(a, row, scratch);
    NORM_PIECES(i, a.n) {
        float x[NORM_LOADS][NORM_FEW], w[NORM_LOADS][NORM_FEW];
        UNROLL for (int k = 0; k < NORM_LOADS; k++) {
            norm_load<Few>(row, a.n, i + k * NORM_STEP, x[k]);
            norm_load<Few>(weight, a.n, i + k * NORM_STEP, w[k]);
        }
        UNROLL for (int k = 0; k < NORM_LOADS; k++) {
            UNROLL for (int e = 0; e < NORM_FEW; e++) x[k][e] = x[k][e] * inv * w[k][e];
            norm_store<Few>(x[k], a.n, i + k * NORM_STEP, static_cast<T *>(a.y) + r * a.n);
        }
    }
    barrier(); /* scratch is used again for the next row */
}
template <typename T> DEVICE void norm_rows(const cuda_norm_args &a, float *scratch) {
    bool by_few = norm_by_few<T>(a);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x())
        by_few ? norm_row<true, T>(a, r, scratch) : norm_row<false, T>(a, r, scratch);
}

KERNEL(norm_forward, cuda_norm_args, CUDA_THREADS) {
    shared_pool pool;
    float *scratch = pool.take<float>(CUDA_WARP);
    WITH_TYPE(a.type, norm_rows<T>(a, scratch));
}

struct norm_operands { /* a thread's columns of x, w and dy */
    float x[NORM_LOADS][NORM_FEW], w[NORM_LOADS][NORM_FEW], dy[NORM_LOADS][NORM_FEW];
};
template <bool Few, typename T>
DEVICE void norm_load_all(const cuda_norm_args &a, uint64_t r, uint64_t i, norm_operands *o) {
    UNROLL for (int k = 0; k < NORM_LOADS; k++) {
        norm_load<Few>(static_cast<const T *>(a.x) + r * a.n, a.n, i + k * NORM_STEP, o->x[k]);
        norm_load<Few>(a.dy + r * a.n, a.n, i + k * NORM_STEP, o->dy[k]);
        norm_load<Few>(static_cast<const T *>(a.w), a.n, i + k * NORM_STEP, o->w[k]);
    }
}

/* dx = inv * w*dy - x * inv^3 * sum(w*dy*x) / n */
template <bool Few, typename T> DEVICE void norm_row_gradient(const cuda_norm_args &a, uint64_t r, float *scratch) {
    T *out = static_cast<T *>(a.dx) + r * a.n;
    float inv = inverse_rms<Few>(a, static_cast<const T *>(a.x) + r * a.n, scratch), dot = 0.0f;
    norm_operands o;
    NORM_PIECES(i, a.n) {
        norm_load_all<Few, T>(a, r, i, &o);
        UNROLL for (int k = 0; k < NORM_LOADS; k++)
            UNROLL for (int e = 0; e < NORM_FEW; e++) dot = fmaf(o.x[k][e] * o.w[k][e], o.dy[k][e], dot);
    }
    dot = block_reduce<add_op>(dot, scratch + CUDA_WARP);
    float c = inv * inv * inv * (dot / (float)a.n);
    NORM_PIECES(i, a.n) {
        norm_load_all<Few, T>(a, r, i, &o);
        UNROLL for (int k = 0; k < NORM_LOADS; k++) {
            float dx[NORM_FEW];
            if (a.dx_add) norm_load<Few>(out, a.n, i + k * NORM_STEP, dx);
            UNROLL for (int e = 0; e < NORM_FEW; e++) {
                float d = inv * o.w[k][e] * o.dy[k][e] - c * o.x[k][e];
                dx[e] = a.dx_add ? dx[e] + d : d;
            }
            norm_store<Few>(dx, a.n, i + k * NORM_STEP, out);
        }
    }
    if (thread_of_block() == 0) a.inv[r] = inv;
} /* two halves of scratch in turn: the barrier of one sum stands before the next use of the other */
template <typename T> DEVICE void norm_gradients(const cuda_norm_args &a, float *scratch) {
    bool by_few = norm_by_few<T>(a);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x())
        by_few ? norm_row_gradient<true, T>(a, r, scratch) : norm_row_gradient<false, T>(a, r, scratch);
}

KERNEL(norm_backward, cuda_norm_args, CUDA_THREADS) {
    shared_pool pool;
    float *scratch = pool.take<float>(2 * CUDA_WARP);
    WITH_TYPE(a.type, norm_gradients<T>(a, scratch));
}

template <typename T> DEVICE float norm_column(const cuda_norm_args &a, uint64_t column, uint64_t first, uint64_t end) {
    float sum = 0.0f;
    for (uint64_t r = first; r < end; r++) sum += a.dy[r * a.n + column] * load<T>(a.x, r * a.n + column) * a.inv[r];
    return sum;
}

/* grid: columns, blocks of rows */
KERNEL(norm_columns, cuda_norm_args, CUDA_THREADS) {
    uint64_t first = (uint64_t)block_y() * CUDA_ROW_BLOCK, end = least(a.rows, first + CUDA_ROW_BLOCK);
    for (uint64_t c = thread_of_grid(); c < a.n; c += threads_of_grid())
        WITH_TYPE(a.type, a.partial[(uint64_t)block_y() * a.n + c] = norm_column<T>(a, c, first, end));
}

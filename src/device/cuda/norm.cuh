/* Root mean square norm. A block per row; the weight's gradient by columns, in blocks of CUDA_ROW_BLOCK rows whose sums
 * are then added in order. */
#include "layer.cuh"

template <typename T> DEVICE float inverse_rms(const cuda_norm_args &a, uint64_t row, float *scratch) {
    float sum = 0.0f;
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block()) {
        float x = load<T>(a.x, row * a.n + i);
        sum = fmaf(x, x, sum);
    }
    sum = block_reduce<add_op>(sum, scratch);
    return 1.0f / sqrtf(sum / (float)a.n + a.eps);
}

template <typename T> DEVICE void norm_row(const cuda_norm_args &a, uint64_t row, float *scratch) {
    float inv = inverse_rms<T>(a, row, scratch);
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block())
        store<T>(load<T>(a.x, row * a.n + i) * inv * load<T>(a.w, i), a.y, row * a.n + i);
    barrier(); /* scratch is used again for the next row */
}

KERNEL(norm_forward, cuda_norm_args, CUDA_THREADS) {
    shared_pool pool;
    float *scratch = pool.take<float>(CUDA_WARP);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) WITH_TYPE(a.type, norm_row<T>(a, r, scratch));
}

/* dx = inv * w*dy - x * inv^3 * sum(w*dy*x) / n */
template <typename T> DEVICE void norm_row_gradient(const cuda_norm_args &a, uint64_t row, float *scratch) {
    float inv = inverse_rms<T>(a, row, scratch), dot = 0.0f;
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block())
        dot = fmaf(load<T>(a.x, row * a.n + i) * load<T>(a.w, i), a.dy[row * a.n + i], dot);
    dot = block_reduce<add_op>(dot, scratch + CUDA_WARP);
    float c = inv * inv * inv * (dot / (float)a.n);
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block()) {
        uint64_t at = row * a.n + i;
        float d = inv * load<T>(a.w, i) * a.dy[at] - c * load<T>(a.x, at);
        store<T>(a.dx_add ? load<T>(a.dx, at) + d : d, a.dx, at);
    }
    if (thread_of_block() == 0) a.inv[row] = inv;
} /* two halves of scratch in turn: the barrier of one sum stands before the next use of the other */

KERNEL(norm_backward, cuda_norm_args, CUDA_THREADS) {
    shared_pool pool;
    float *scratch = pool.take<float>(2 * CUDA_WARP);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) WITH_TYPE(a.type, norm_row_gradient<T>(a, r, scratch));
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

KERNEL(norm_sum, cuda_norm_args, CUDA_THREADS) {
    uint64_t blocks = (a.rows + CUDA_ROW_BLOCK - 1) / CUDA_ROW_BLOCK;
    for (uint64_t c = thread_of_grid(); c < a.n; c += threads_of_grid()) {
        float sum = a.dw_add ? a.dw[c] : 0.0f;
        for (uint64_t b = 0; b < blocks; b++) sum += a.partial[b * a.n + c];
        a.dw[c] = sum;
    }
}

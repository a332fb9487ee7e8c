/* The optimizer's: sums of gradients over ranks, rounding a gradient and its norm, and AdamW. Bit for bit what optim's
 * rows compute: the same operations in the same order, none contracted, square root and division correctly rounded. */
#include "layer.cuh"

/* ---- gradients: a block per norm block; lane i mod 16 in order of i, lanes added at distances 8, 4, 2, 1 ---- */

/* The first 16 threads add the squares of one piece while all have the next one on its way. */
enum { NORM_LANES = 16, NORM_PIECE = CUDA_NORM_PIECE, NORM_EACH = NORM_PIECE / CUDA_THREADS };

DEVICE void finish_fetch(const cuda_finish_args &a, uint64_t at, uint64_t end, float x[NORM_EACH]) {
    UNROLL for (uint32_t k = 0; k < NORM_EACH; k++) {
        uint64_t i = at + thread_of_block() + k * CUDA_THREADS;
        x[k] = i < end ? a.sum[i] : 0.0f;
    }
}
/* Rounds and stores them, and their squares, which are exact, into the piece. */
template <typename T>
DEVICE void finish_put(const cuda_finish_args &a, uint64_t at, uint64_t end, const float x[NORM_EACH], double *piece) {
    UNROLL for (uint32_t k = 0; k < NORM_EACH; k++) {
        uint32_t i = thread_of_block() + k * CUDA_THREADS;
        T rounded;
        narrow(x[k], &rounded);
        if (at + i < end) static_cast<T *>(a.g)[at + i] = rounded;
        piece[i] = (double)widen(rounded) * (double)widen(rounded);
    }
}

template <typename T> DEVICE void finish_block(const cuda_finish_args &a, uint64_t block, double *piece, double *lane) {
    uint64_t begin = block * CUDA_NORM_BLOCK, end = least(a.n, begin + CUDA_NORM_BLOCK);
    float next[NORM_EACH];
    double sum = 0.0;
    uint32_t side = 0;
    finish_fetch(a, begin, end, next);
    finish_put<T>(a, begin, end, next, piece);
    barrier();
    for (uint64_t at = begin; at < end; at += NORM_PIECE, side ^= 1) {
        const double *here = piece + side * NORM_PIECE;
        uint32_t n = (uint32_t)least(NORM_PIECE, end - at);
        finish_fetch(a, at + NORM_PIECE, end, next);
        if (thread_of_block() < NORM_LANES)
            for (uint32_t i = thread_of_block(); i < n; i += NORM_LANES) sum += here[i];
        finish_put<T>(a, at + NORM_PIECE, end, next, piece + (side ^ 1) * NORM_PIECE);
        barrier();
    }
    if (thread_of_block() < NORM_LANES) lane[thread_of_block()] = sum;
    barrier();
    if (thread_of_block() == 0) {
        for (int d = NORM_LANES / 2; d > 0; d /= 2)
            for (int i = 0; i < d; i++) lane[i] += lane[i + d];
        a.partial[block] = lane[0];
    }
} /* the next block's first barriers stand between this use of lane and the next */

KERNEL(grad_finish, cuda_finish_args, CUDA_THREADS) {
    shared_pool pool;
    double *piece = pool.take<double>(2 * NORM_PIECE), *lane = pool.take<double>(NORM_LANES);
    uint64_t blocks = (a.n + CUDA_NORM_BLOCK - 1) / CUDA_NORM_BLOCK;
    for (uint64_t b = block_x(); b < blocks; b += blocks_x()) WITH_TYPE(a.type, finish_block<T>(a, b, piece, lane));
}

/* ---- AdamW ---- */

/* hi = top + (lo >> 15), top = hi - (lo >> 15) */
DEVICE uint32_t join_halves(uint16_t hi, uint16_t lo) { return (((uint32_t)hi - ((uint32_t)lo >> 15)) << 16) | lo; }

DEVICE float adamw_element(float w, float *m_, float *v_, float g, const cuda_adamw_step &k) {
    if (k.use_l2) g = g + k.l2 * w;
    w = w * k.decay;
    float away = g - *m_;
    float m = k.lerp_from_end ? g - away * k.beta1 : *m_ + k.one_minus_beta1 * away;
    float v = *v_ * k.beta2 + (k.one_minus_beta2 * g) * g;
    float denom = sqrtf(v) / k.bc2_sqrt + k.eps;
    *m_ = m;
    *v_ = v;
    return w + (k.neg_step_size * m) / denom;
}

DEVICE bool not_finite(float x) { return (bits_of(x) & 0x7fffffffu) >= 0x7f800000u; }

KERNEL(adamw, cuda_adamw_args, CUDA_THREADS) {
    unsigned long long bad = 0;
    for (uint64_t i = thread_of_grid(); i < a.n; i += threads_of_grid()) {
        float w = a.weight ? a.weight[i] : float_of(join_halves(a.hi[i], a.lo[i]));
        float m = a.exp_avg[i], v = a.exp_avg_sq[i], g = load_any(a.grad_type, a.grad, i) * a.step.grad_scale;
        w = adamw_element(w, &m, &v, g, a.step);
        a.exp_avg[i] = m;
        a.exp_avg_sq[i] = v;
        if (a.weight) {
            a.weight[i] = w;
        } else {
            uint32_t bits = bits_of(w);
            a.hi[i] = (uint16_t)((bits + 0x8000u) >> 16);
            a.lo[i] = (uint16_t)bits;
        }
        bad += not_finite(w) || not_finite(m) || not_finite(v);
    }
    if (bad) atomic_add(a.bad, bad);
}

/* ---- gradients of several ranks, first to last, as src/comm adds them on one node ---- */

KERNEL(sum_slices, cuda_sum_args, CUDA_THREADS) {
    for (uint64_t i = thread_of_grid(); i < a.n; i += threads_of_grid()) {
        float sum = 0.0f;
        for (uint32_t r = 0; r < a.ranks; r++) {
            float x = r == a.me ? a.own[i] : a.others[(r - (r > a.me ? 1 : 0)) * a.stride + i];
            sum = r ? sum + x : x;
        }
        a.out[i] = sum;
    }
}

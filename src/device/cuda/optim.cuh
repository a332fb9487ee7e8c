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

/* N neighbours from i on. Split: the master is two halves of 16 bits; else it is the weight, in fp32. */
template <typename G, bool Split, int N> DEVICE uint32_t adamw_few(const cuda_adamw_args &a, uint64_t i) {
    float w[N], m[N], v[N], g[N];
    few<uint16_t, N> hi, lo;
    uint32_t bad = 0;
    if constexpr (Split) {
        hi = *reinterpret_cast<const few<uint16_t, N> *>(a.hi + i);
        lo = *reinterpret_cast<const few<uint16_t, N> *>(a.lo + i);
    } else {
        load_few<float, N>(a.weight + i, w);
    }
    load_few<float, N>(a.exp_avg + i, m);
    load_few<float, N>(a.exp_avg_sq + i, v);
    load_few<G, N>(static_cast<const G *>(a.grad) + i, g);
    UNROLL for (int e = 0; e < N; e++) {
        if constexpr (Split) w[e] = float_of(join_halves(hi.of[e], lo.of[e]));
        w[e] = adamw_element(w[e], &m[e], &v[e], g[e] * a.step.grad_scale, a.step);
        if constexpr (Split) {
            hi.of[e] = (uint16_t)((bits_of(w[e]) + 0x8000u) >> 16);
            lo.of[e] = (uint16_t)bits_of(w[e]);
        }
        bad += not_finite(w[e]) || not_finite(m[e]) || not_finite(v[e]);
    }
    if constexpr (Split) {
        store_whole(hi, reinterpret_cast<few<uint16_t, N> *>(a.hi + i));
        store_whole(lo, reinterpret_cast<few<uint16_t, N> *>(a.lo + i));
    } else {
        store_few<float, N>(w, a.weight + i);
    }
    store_few<float, N>(m, a.exp_avg + i);
    store_few<float, N>(v, a.exp_avg_sq + i);
    return bad;
}

template <typename G, bool Split> DEVICE unsigned long long adamw_all(const cuda_adamw_args &a) {
    enum { FEW = CUDA_ADAMW_FEW };
    uintptr_t fours = (uintptr_t)a.weight | (uintptr_t)a.exp_avg | (uintptr_t)a.exp_avg_sq;
    uintptr_t twos = (uintptr_t)a.hi | (uintptr_t)a.lo, grads = (uintptr_t)a.grad;
    bool aligned = fours % (FEW * 4) == 0 && twos % (FEW * 2) == 0 && grads % (FEW * sizeof(G)) == 0;
    uint64_t by_few = aligned ? a.n / FEW * FEW : 0, step = threads_of_grid();
    unsigned long long bad = 0;
    ROLLED for (uint64_t i = thread_of_grid() * FEW; i < by_few; i += step * FEW) bad += adamw_few<G, Split, FEW>(a, i);
    ROLLED for (uint64_t i = by_few + thread_of_grid(); i < a.n; i += step) bad += adamw_few<G, Split, 1>(a, i);
    return bad;
}

KERNEL(adamw, cuda_adamw_args, CUDA_THREADS) {
    unsigned long long bad = 0;
    WITH_TYPE(a.grad_type, bad = a.weight ? adamw_all<T, false>(a) : adamw_all<T, true>(a));
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

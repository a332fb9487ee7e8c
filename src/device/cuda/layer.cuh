/* The thin layer that the kernels are written against: what a block's threads, its shared memory and its warps are.
 * nvcc makes it CUDA's own; any other C++ compiler takes TIDEMILL_EMULATE, a header in which a block's threads are
 * cooperative fibers (tests/cuda/emulate.h), so that the same source runs, and is looked at by sanitizers, on any
 * machine.
 *
 *     KERNEL(scale, scale_args, 256) {                    // `a` holds the arguments
 *         shared_pool pool;
 *         float *sum = pool.take<float>(32);              // in shared memory, the same order of calls on every thread
 *         for (uint64_t i = thread_of_grid(); i < a.n; i += threads_of_grid()) ...
 *         barrier();
 *     }
 *
 * Compiled without contraction: a product and a sum round twice unless fmaf says otherwise. Together with exponentials
 * of our own that makes a kernel's bits those of its source, on every device and in the emulation, but for log, sin
 * and cos (in double, rounded to fp32) and for tensor cores. */
#ifndef TIDEMILL_CUDA_LAYER_H
#define TIDEMILL_CUDA_LAYER_H

#include "args.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define ROLLED _Pragma("unroll 1")
#define KERNEL(name, args, ...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__) tidemill_##name(args a)

DEVICE uint32_t thread_of_block() { return threadIdx.x; }
DEVICE uint32_t threads_of_block() { return blockDim.x; }
DEVICE uint32_t block_x() { return blockIdx.x; }
DEVICE uint32_t block_y() { return blockIdx.y; }
DEVICE uint32_t block_z() { return blockIdx.z; }
DEVICE uint32_t blocks_x() { return gridDim.x; }
DEVICE void barrier() { __syncthreads(); }
DEVICE float shuffle_xor(float x, unsigned mask) { return __shfl_xor_sync(0xffffffffu, x, (int)mask); }
DEVICE uint32_t shuffle_xor(uint32_t x, unsigned mask) { return __shfl_xor_sync(0xffffffffu, x, (int)mask); }
DEVICE uint32_t ballot_of(bool x) { return __ballot_sync(0xffffffffu, x); }
DEVICE uint32_t ones_of(uint32_t x) { return (uint32_t)__popc(x); }
DEVICE void atomic_add(unsigned long long *to, unsigned long long x) { atomicAdd(to, x); }

/* Stores all bytes of x at a multiple of as many, 8 or 16 by one instruction (a compiler takes a struct apart). */
template <typename X> DEVICE void store_whole(const X &x, X *y) {
    uint32_t w[(sizeof x + 3) / 4];
    memcpy(w, &x, sizeof x);
    if constexpr (sizeof x == 16)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(__cvta_generic_to_global(y)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
    else if constexpr (sizeof x == 8)
        asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                     :
                     : "l"(__cvta_generic_to_global(y)), "r"(w[0]), "r"(w[1])
                     : "memory");
    else
        *y = x;
}

extern __shared__ __align__(16) char shared_bytes_[];
struct shared_pool {
    uint32_t used = 0;
    template <typename T> __device__ __forceinline__ T *take(uint32_t n) {
        T *p = reinterpret_cast<T *>(shared_bytes_ + used);
        used += (n * (uint32_t)sizeof(T) + 15u) & ~15u;
        return p;
    }
};
#else
#include TIDEMILL_EMULATE
#endif

DEVICE uint64_t thread_of_grid() { return (uint64_t)block_x() * threads_of_block() + thread_of_block(); }
DEVICE uint64_t threads_of_grid() { return (uint64_t)blocks_x() * threads_of_block(); }

/* ---- element types: every bit is the CPU's, but for those of NaN, which stays NaN ----
 * By the device's own instructions where it has them, else by integer operations. */

#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
#define CONVERTS 1
#else
#define CONVERTS 0
#endif

struct bf16 {
    static constexpr bool is_bf16 = true;
    uint16_t bits;
};
struct fp16 {
    static constexpr bool is_bf16 = false;
    uint16_t bits;
};

DEVICE uint32_t bits_of(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}
DEVICE float float_of(uint32_t b) {
    float x;
    memcpy(&x, &b, 4);
    return x;
}
DEVICE bool is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

DEVICE float widen(float x) { return x; }
DEVICE float widen(bf16 x) { return float_of((uint32_t)x.bits << 16); }
DEVICE float widen(fp16 x) {
#if CONVERTS
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00u ? 0x400000u : 0u));
    if (rest >= 0x400u) return float_of(sign | ((rest << 13) + 0x38000000u));
    return float_of(sign | bits_of((float)rest * 0x1p-24f)); /* subnormal or zero: exact */
#endif
}

DEVICE void narrow(float x, float *y) { *y = x; }
DEVICE void narrow(float x, bf16 *y) { /* nearest even */
#if CONVERTS
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
#else
    uint32_t b = bits_of(x), rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    y->bits = (uint16_t)(is_nan(b) ? (b >> 16) | 0x40u : rounded);
#endif
}
DEVICE void narrow(float x, fp16 *y) {
#if CONVERTS
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
#else
    uint32_t b = bits_of(x), sign = (b >> 16) & 0x8000u, rest = b & 0x7fffffffu, h;
    if (rest > 0x7f800000u)
        h = 0x7e00u | ((rest >> 13) & 0x3ffu);
    else if (rest >= 0x477ff000u) /* half a unit above the largest, or more */
        h = 0x7c00u;
    else if (rest >= 0x38800000u)
        h = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    else /* adding 1/2 leaves the subnormal's units as the lowest bits, rounded to nearest even */
        h = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
    y->bits = (uint16_t)(sign | h);
#endif
}

template <typename T> DEVICE float load(const void *x, uint64_t i) { return widen(static_cast<const T *>(x)[i]); }
template <typename T> DEVICE void store(float value, void *y, uint64_t i) { narrow(value, static_cast<T *>(y) + i); }

/* N neighbours at once, at a multiple of their bytes. */
template <typename T, int N> struct alignas(N * sizeof(T)) few {
    T of[N];
};
template <typename T, int N> DEVICE void load_few(const T *x, float y[N]) {
    few<T, N> v = *reinterpret_cast<const few<T, N> *>(x);
    UNROLL for (int i = 0; i < N; i++) y[i] = widen(v.of[i]);
}
template <typename T, int N> DEVICE void store_few(const float x[N], T *y) {
    few<T, N> v;
    UNROLL for (int i = 0; i < N; i++) narrow(x[i], &v.of[i]);
    store_whole(v, reinterpret_cast<few<T, N> *>(y));
}

DEVICE uint32_t elem_bytes(int32_t type) { return type == CUDA_F32 ? 4 : 2; }
DEVICE float load_any(int32_t type, const void *x, uint64_t i) {
    return type == CUDA_F32 ? load<float>(x, i) : type == CUDA_BF16 ? load<bf16>(x, i) : load<fp16>(x, i);
}
DEVICE void store_any(int32_t type, float value, void *y, uint64_t i) {
    if (type == CUDA_F32)
        store<float>(value, y, i);
    else if (type == CUDA_BF16)
        store<bf16>(value, y, i);
    else
        store<fp16>(value, y, i);
}
/* Runs `body` with T the element type that `type` names; a block takes one way as a whole. */
#define WITH_TYPE(type, ...)                                                                                           \
    do {                                                                                                               \
        if ((type) == CUDA_F32) {                                                                                      \
            using T = float;                                                                                           \
            __VA_ARGS__;                                                                                               \
        } else if ((type) == CUDA_BF16) {                                                                              \
            using T = bf16;                                                                                            \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using T = fp16;                                                                                            \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* ---- tensor cores ---- */

/* c[16 x 8] += a[16 x 16] b[16 x 8], by the whole warp. With g = lane / 4, t = lane % 4: a holds pairs of columns
 * 2 t, 2 t + 1 of rows g, g + 8, then of columns 8 further; b pairs of rows 2 t, 2 t + 1, then 8 further, of column g; c
 * columns 2 t, 2 t + 1 of row g, then of row g + 8. In the order of its sums the device is free. */
#ifdef __CUDACC__
template <typename T> DEVICE void mma(float c[4], const uint32_t a[4], const uint32_t b[2]) {
#if __CUDA_ARCH__ >= 800
    if (T::is_bf16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap(); /* such kernels are not launched there */
#endif
}
#else
template <typename T> DEVICE void mma(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    struct operands {
        uint32_t a[4], b[2];
    } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const operands *all = static_cast<const operands *>(emulate_exchange(&mine, sizeof mine));
    uint32_t g = thread_of_block() % 32 / 4, t = thread_of_block() % 4;
    for (uint32_t e = 0; e < 4; e++) {
        uint32_t row = g + e / 2 * 8, column = t * 2 + e % 2;
        double sum = (double)c[e];
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t x = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2] >> (k % 2 * 16);
            uint32_t y = all[column * 4 + k % 8 / 2].b[k / 8] >> (k % 2 * 16);
            sum += (double)widen(T{(uint16_t)x}) * (double)widen(T{(uint16_t)y});
        }
        c[e] = (float)sum;
    }
}
#endif

/* Four matrices of 8 x 8 16-bit numbers from shared memory: lane 8 i + r points at row r of the i-th, 16 bytes at a
 * multiple of 16. Of each a lane gets columns 2 t, 2 t + 1 of row g, or, Turned, of rows 2 t, 2 t + 1 column g. */
#ifdef __CUDACC__
DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
template <bool Turned> DEVICE void load_matrices(const uint16_t *row, uint32_t out[4]) {
    if (Turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(shared_address(row))
                     : "memory");
}
#else
template <bool Turned> DEVICE void load_matrices(const uint16_t *row, uint32_t out[4]) {
    const uint16_t *const *all = static_cast<const uint16_t *const *>(emulate_exchange(&row, sizeof row));
    uint32_t g = thread_of_block() % 32 / 4, t = thread_of_block() % 4;
    if ((uintptr_t)row % 16) emulate_stop("a row of a matrix is not at a multiple of 16 bytes");
    for (uint32_t i = 0; i < 4; i++) {
        uint16_t low = Turned ? all[8 * i + 2 * t][g] : all[8 * i + g][2 * t];
        uint16_t high = Turned ? all[8 * i + 2 * t + 1][g] : all[8 * i + g][2 * t + 1];
        out[i] = (uint32_t)high << 16 | low;
    }
}
#endif

/* Bytes, 4 or 16, from memory into shared memory, zeros unless `there`; they are there once the thread that asked has
 * waited, for the others behind a barrier after that. Both at a multiple of as many. */
#ifdef __CUDACC__
template <int Bytes> DEVICE void copy_async(void *to, const void *from, bool there) {
#if __CUDA_ARCH__ >= 800
    if (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(there ? 4 : 0)
                     : "memory");
#else
    __trap();
#endif
}
DEVICE void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#else
template <int Bytes> DEVICE void copy_async(void *to, const void *from, bool there) {
    emulate_copy(to, there ? from : nullptr, Bytes);
}
DEVICE void copy_async_wait() { emulate_copy_wait(); }
#endif

/* Two numbers of a 16-bit type, rounded to nearest even. */
template <typename T> DEVICE uint32_t pair_of(float low, float high) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
    uint32_t p;
    if (T::is_bf16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(p) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(p) : "f"(high), "f"(low));
    return p;
#else
    T l, h;
    narrow(low, &l);
    narrow(high, &h);
    return (uint32_t)h.bits << 16 | l.bits;
#endif
}

/* 2^x within 2 units in the last place, by the device's own instruction: for what is rounded to 16 bits afterwards. */
DEVICE float exp2_of(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* 1 / x for x >= 1 within a unit in the last place, by the device's own instruction: likewise. */
DEVICE float reciprocal_of(float x) {
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}

/* ---- functions ---- */

/* e^x within 1.1 units in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial of degree 7 for e^r (Taylor's
 * coefficients: the first one left out is below 2^-27 there), scaled in two steps so that subnormal results are
 * rounded once. */
DEVICE float exp_of(float x) {
    if (x > 88.8f) return float_of(0x7f800000u);
    if (x < -104.0f) return 0.0f;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693145752f, x); /* ln 2 in two parts, the first with zeros enough for n times it to be exact */
    r = fmaf(n, -1.42860677e-6f, r);
    float p = 1.98412698e-4f;
    p = fmaf(p, r, 1.38888889e-3f);
    p = fmaf(p, r, 8.33333333e-3f);
    p = fmaf(p, r, 4.16666667e-2f);
    p = fmaf(p, r, 1.66666667e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t k = x == x ? (int32_t)n : 0, half = k / 2;
    return p * float_of((uint32_t)(half + 127) << 23) * float_of((uint32_t)(k - half + 127) << 23);
}
DEVICE float log_of(float x) { return (float)log((double)x); }
DEVICE float minus_infinity() { return float_of(0xff800000u); }
DEVICE float largest(float x, float y) { return x > y ? x : y; }
DEVICE uint64_t least(uint64_t x, uint64_t y) { return x < y ? x : y; }

/* ---- a block's sum and maximum: lanes of a warp at distances 16, 8, 4, 2, 1, then warps likewise ---- */

struct add_op {
    DEVICE float none() { return 0.0f; }
    DEVICE float of(float x, float y) { return x + y; }
};
struct max_op {
    DEVICE float none() { return minus_infinity(); }
    DEVICE float of(float x, float y) { return largest(x, y); }
};

/* `scratch`: 32 floats of shared memory. Every thread gets the result; nobody may use scratch until the next barrier. */
template <typename Op> DEVICE float block_reduce(float x, float *scratch) {
    uint32_t lane = thread_of_block() % CUDA_WARP, warp = thread_of_block() / CUDA_WARP;
    UNROLL for (unsigned d = CUDA_WARP / 2; d > 0; d /= 2) x = Op::of(x, shuffle_xor(x, d));
    if (lane == 0) scratch[warp] = x;
    barrier();
    x = lane < threads_of_block() / CUDA_WARP ? scratch[lane] : Op::none();
    UNROLL for (unsigned d = CUDA_WARP / 2; d > 0; d /= 2) x = Op::of(x, shuffle_xor(x, d));
    return x;
}

#endif

/* C = alpha op(A) op(B) + beta C for any mix of types: what the library does not take. A block makes a tile of 64 x 64
 * of C, a thread 4 x 4 of it; sums run over k in order. */
#include "layer.cuh"

enum { GEMM_DEPTH = 16, GEMM_LD = CUDA_GEMM_TILE + 1, GEMM_SIDE = 16 };

/* A slice of op(X): `of` rows from row0 on, GEMM_DEPTH of k from k0 on, as slice[k][row]; zeros outside. `k_inner`: k
 * is the stored row's index that runs. */
DEVICE void gemm_slice(int32_t type, const void *x, uint64_t ld, bool k_inner, uint64_t row0, uint64_t rows,
                       uint64_t k0, uint64_t k, float *slice) {
    for (uint32_t i = thread_of_block(); i < CUDA_GEMM_TILE * GEMM_DEPTH; i += threads_of_block()) {
        uint32_t r = k_inner ? i / GEMM_DEPTH : i % CUDA_GEMM_TILE, p = k_inner ? i % GEMM_DEPTH : i / CUDA_GEMM_TILE;
        bool is = row0 + r < rows && k0 + p < k;
        uint64_t at = k_inner ? (row0 + r) * ld + k0 + p : (k0 + p) * ld + row0 + r;
        slice[p * GEMM_LD + r] = is ? load_any(type, x, at) : 0.0f;
    }
}

DEVICE void gemm_store(const cuda_gemm_args &a, uint64_t row, uint64_t column, float sum) {
    uint64_t at = row * a.ldc + column;
    float c = a.alpha * sum;
    if (a.beta != 0.0f) c += a.beta * load_any(a.c_type, a.c, at);
    store_any(a.c_type, c, a.c, at);
}

KERNEL(gemm, cuda_gemm_args, CUDA_THREADS) {
    shared_pool pool;
    float *sa = pool.take<float>(GEMM_DEPTH * GEMM_LD), *sb = pool.take<float>(GEMM_DEPTH * GEMM_LD);
    uint64_t row0 = (uint64_t)block_y() * CUDA_GEMM_TILE, column0 = (uint64_t)block_x() * CUDA_GEMM_TILE;
    uint32_t tx = thread_of_block() % GEMM_SIDE, ty = thread_of_block() / GEMM_SIDE;
    float acc[4][4] = {};
    for (uint64_t k0 = 0; k0 < a.k; k0 += GEMM_DEPTH) {
        gemm_slice(a.a_type, a.a, a.lda, !a.a_trans, row0, a.m, k0, a.k, sa);
        gemm_slice(a.b_type, a.b, a.ldb, a.b_trans, column0, a.n, k0, a.k, sb);
        barrier();
        UNROLL for (uint32_t p = 0; p < GEMM_DEPTH; p++)
            UNROLL for (uint32_t i = 0; i < 4; i++)
                UNROLL for (uint32_t j = 0; j < 4; j++)
                    acc[i][j] = fmaf(sa[p * GEMM_LD + ty + GEMM_SIDE * i], sb[p * GEMM_LD + tx + GEMM_SIDE * j],
                                     acc[i][j]);
        barrier();
    }
    UNROLL for (uint32_t i = 0; i < 4; i++)
        UNROLL for (uint32_t j = 0; j < 4; j++) {
            uint64_t row = row0 + ty + GEMM_SIDE * i, column = column0 + tx + GEMM_SIDE * j;
            if (row < a.m && column < a.n) gemm_store(a, row, column, acc[i][j]);
        }
}

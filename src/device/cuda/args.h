/* What kernels are given: one struct each, passed by value, and the list of their names. Seen by the launchers (C), by
 * the kernels (CUDA C++), and by the tests' emulation (C++).
 *
 * Pointers are addresses of the device. Sizes are elements. Element types are the values of tm_elem. */
#ifndef TIDEMILL_CUDA_ARGS_H
#define TIDEMILL_CUDA_ARGS_H

#include <stdint.h>

enum { CUDA_F32 = 0, CUDA_BF16 = 1, CUDA_F16 = 2, CUDA_ELEMS };

/* Threads of a block, for every kernel but those that say otherwise. */
enum { CUDA_THREADS = 256, CUDA_MMA_THREADS = 128, CUDA_WARP = 32 };
enum { CUDA_ADAMW_FEW = 4, CUDA_DELTA_ROWS = 4 }; /* elements, rows that a thread, a warp has under way at once */
/* Shared memory of kernels that sum in order: pieces of columns, and of a gradient; columns of an embedding's block. */
enum { CUDA_SUM_ROWS = 128, CUDA_NORM_PIECE = 2048, CUDA_EMBED_COLUMNS = 1024, CUDA_EMBED_WINDOW = 1024 };
/* Blocks of sums: as in kernels.h and optimizer.h, whose results these kernels repeat. */
enum { CUDA_ROW_BLOCK = 64, CUDA_NORM_BLOCK = 65536, CUDA_ATTENTION_TILE = 64, CUDA_GEMM_TILE = 64 };

typedef struct cuda_convert_args {
    const void *x;
    void *y;
    uint64_t n;
    int32_t from, to;
} cuda_convert_args;

typedef struct cuda_zero_args {
    void *p;
    uint64_t bytes;
} cuda_zero_args;

/* norm_forward: y; norm_backward: dx and inv; norm_columns: partial dw of blocks of rows. */
typedef struct cuda_norm_args {
    const void *x, *w;
    const float *dy;
    void *y;    /* forward */
    void *dx;   /* backward */
    float *inv; /* [rows] */
    float *partial;
    uint64_t rows, n;
    float eps;
    int32_t type, dx_add;
} cuda_norm_args;

typedef struct cuda_rope_args {
    const float *table;    /* [cached][2][head_dim / 2] */
    const float *inv_freq; /* [head_dim / 2] */
    const uint32_t *first;
    void *x;
    uint64_t row0, rows, ld;
    uint32_t head_dim, cached, heads, seq;
    int32_t type, inverse;
} cuda_rope_args;

typedef struct cuda_swiglu_args {
    const void *gate_up;
    const float *da;
    void *a, *d_gate_up;
    uint64_t rows, f;
    int32_t type;
} cuda_swiglu_args;

/* add_bias: x[rows][ld] += bias[n]; column_sum: out[n] (+)= sum over rows of x. */
typedef struct cuda_rows_args {
    const void *bias;
    void *x;
    float *out;
    uint64_t rows, n, ld;
    int32_t type, add;
} cuda_rows_args;

typedef struct cuda_gather_args {
    const uint32_t *row;
    const void *src;
    void *dst;
    uint64_t rows, padded, n;
    int32_t type;
} cuda_gather_args;

typedef struct cuda_embed_args {
    const int32_t *ids;
    const void *x; /* weight; or dout */
    void *out;
    float *grad;
    uint64_t rows, padded, n;
    uint32_t first, count;
    int32_t type, clear;
} cuda_embed_args;

typedef struct cuda_head_args {
    const uint32_t *row;
    const int32_t *labels;
    const float *coefficient;
    float *logits;
    float *state; /* [][4]: max, sum, label, unused */
    uint64_t rows, ld;
    uint32_t first, count;
    int32_t type;
} cuda_head_args;

typedef struct cuda_attention_args {
    const void *qkv, *o, *d_o;
    const uint8_t *key_mask;
    const float *rope_table, *rope_inv_freq;
    const uint32_t *position;   /* [rows] of the first token, with a cache; NULL: 0 */
    const uint32_t *cache_row;  /* [rows] NULL: the row itself */
    const uint32_t *cache_from; /* [rows] UINT32_MAX, or NULL: nothing is copied */
    void *out, *d_qkv, *cache;
    float *lse, *delta;
    uint32_t rows, seq, heads, kv_heads, head_dim, window, rope_cached, capacity;
    float scale;
    int32_t type;
} cuda_attention_args;

typedef struct cuda_gemm_args {
    const void *a, *b;
    void *c;
    uint64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    int32_t a_type, b_type, c_type, a_trans, b_trans;
} cuda_gemm_args;

/* AdamW's constants of a step, as tm_adamw_step has them. */
typedef struct cuda_adamw_step {
    float grad_scale, decay, l2, one_minus_beta1, beta1, beta2, one_minus_beta2, bc2_sqrt, eps, neg_step_size;
    int32_t use_l2, lerp_from_end;
} cuda_adamw_step;

typedef struct cuda_adamw_args {
    float *weight;
    uint16_t *hi, *lo;
    const void *grad;
    float *exp_avg, *exp_avg_sq;
    uint64_t n;
    unsigned long long *bad; /* += elements that are not finite afterwards */
    cuda_adamw_step step;
    int32_t grad_type; /* CUDA_F32, CUDA_BF16 */
} cuda_adamw_args;

typedef struct cuda_finish_args {
    const float *sum;
    void *g;
    double *partial; /* [blocks of CUDA_NORM_BLOCK] */
    uint64_t n;
    int32_t type; /* of g */
} cuda_finish_args;

/* A slice of each of `ranks`: mine, and those of the others side by side, `stride` apart. */
typedef struct cuda_sum_args {
    const float *own, *others;
    float *out;
    uint64_t n, stride;
    uint32_t ranks, me;
} cuda_sum_args;

/* name, its struct, threads of a block */
#define CUDA_KERNELS(K)                                                                                                \
    K(convert, cuda_convert_args, CUDA_THREADS)                                                                        \
    K(zero, cuda_zero_args, CUDA_THREADS)                                                                              \
    K(norm_forward, cuda_norm_args, CUDA_THREADS)                                                                      \
    K(norm_backward, cuda_norm_args, CUDA_THREADS)                                                                     \
    K(norm_columns, cuda_norm_args, CUDA_THREADS)                                                                      \
    K(rope, cuda_rope_args, CUDA_THREADS)                                                                              \
    K(swiglu_forward, cuda_swiglu_args, CUDA_THREADS)                                                                  \
    K(swiglu_backward, cuda_swiglu_args, CUDA_THREADS)                                                                 \
    K(add_bias, cuda_rows_args, CUDA_THREADS)                                                                          \
    K(column_sum, cuda_rows_args, CUDA_THREADS)                                                                        \
    K(gather, cuda_gather_args, CUDA_THREADS)                                                                          \
    K(scatter_add, cuda_gather_args, CUDA_THREADS)                                                                     \
    K(embed_forward, cuda_embed_args, CUDA_THREADS)                                                                    \
    K(embed_backward, cuda_embed_args, CUDA_THREADS)                                                                   \
    K(head_begin, cuda_head_args, CUDA_THREADS)                                                                        \
    K(head_update, cuda_head_args, CUDA_THREADS)                                                                       \
    K(head_gradient, cuda_head_args, CUDA_THREADS)                                                                     \
    K(attention_forward, cuda_attention_args, CUDA_THREADS)                                                            \
    K(attention_store, cuda_attention_args, CUDA_THREADS)                                                              \
    K(attention_cached, cuda_attention_args, CUDA_THREADS)                                                             \
    K(attention_decode, cuda_attention_args, CUDA_THREADS)                                                             \
    K(attention_delta, cuda_attention_args, CUDA_THREADS)                                                              \
    K(attention_keys, cuda_attention_args, CUDA_THREADS)                                                               \
    K(attention_queries, cuda_attention_args, CUDA_THREADS)                                                            \
    K(attention_forward_mma_64, cuda_attention_args, CUDA_MMA_THREADS)                                                 \
    K(attention_forward_mma_128, cuda_attention_args, CUDA_MMA_THREADS)                                                \
    K(attention_keys_mma_64, cuda_attention_args, CUDA_MMA_THREADS)                                                    \
    K(attention_keys_mma_128, cuda_attention_args, CUDA_MMA_THREADS)                                                   \
    K(attention_queries_mma_64, cuda_attention_args, CUDA_MMA_THREADS)                                                 \
    K(attention_queries_mma_128, cuda_attention_args, CUDA_MMA_THREADS)                                                \
    K(gemm, cuda_gemm_args, CUDA_THREADS)                                                                              \
    K(adamw, cuda_adamw_args, CUDA_THREADS)                                                                            \
    K(grad_finish, cuda_finish_args, CUDA_THREADS)                                                                     \
    K(sum_slices, cuda_sum_args, CUDA_THREADS)

#define CUDA_KERNEL_ID(name, args, threads) CUDA_K_##name,
typedef enum cuda_kernel { CUDA_KERNELS(CUDA_KERNEL_ID) CUDA_KERNEL_COUNT } cuda_kernel;

#endif

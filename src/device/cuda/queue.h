/* What kernels are launched on: the seam between the rows of the kernel table (rows.c) and whoever carries launches
 * out, which is a stream of a device (launch.c) or the tests' emulation. */
#ifndef TIDEMILL_CUDA_QUEUE_H
#define TIDEMILL_CUDA_QUEUE_H

#include "device/cuda/args.h"
#include "device/cuda/sizes.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"

typedef struct cuda_launch {
    cuda_kernel kernel;
    const void *args; /* the kernel's struct; read before launch returns */
    uint32_t grid[3], threads, shared_bytes;
} cuda_launch;

typedef struct cuda_queue cuda_queue;
struct cuda_queue {
    /* Each in the order of the calls. What fails is kept in `status`, the first of it, with this thread's error. */
    tm_status (*launch)(cuda_queue *q, const cuda_launch *l);
    tm_status (*copy)(cuda_queue *q, void *to, const void *from, uint64_t bytes); /* within the device */
    /* TM_EUNSUPPORTED, nothing recorded: not a product for the library; the queue's own kernel takes it. */
    tm_status (*library_gemm)(cuda_queue *q, const tm_gemm_args *g);
    /* Where the device has this table of angles and its inverse frequencies; it is taken there at its first use. */
    tm_status (*rope)(cuda_queue *q, const tm_rope *r, const float **table, const float **inv_freq);
    /* A counter in the device's memory that is added to *host when the operation is complete. */
    tm_status (*counter)(cuda_queue *q, uint64_t *host, unsigned long long **device);
    bool tensor_cores;    /* of 16-bit types with fp32 sums: capability 8.0 */
    uint32_t most_blocks; /* of kernels that stride over what is more; 0: CUDA_GRID_X */
    tm_status status;
};

/* The queue that rows called on this thread launch on; returns the one before. */
cuda_queue *cuda_use_queue(cuda_queue *q);

enum { CUDA_MAX_HEAD_DIM = 256, CUDA_GRID_X = 1 << 20 };

/* ---- the rows, as kernels.h has them -------------------------------------------------------------------------- */

void cuda_gemm(const tm_gemm_args *g);
void cuda_norm_forward(const tm_norm *n);
void cuda_norm_backward(const tm_norm *n);
void cuda_rope_apply(const tm_rope *r, tm_elem t, uint64_t row0, uint64_t rows, uint64_t ld, uint32_t heads, void *x,
                     tm_positions pos, bool inverse);
void cuda_glu_forward(const tm_glu *g);
void cuda_glu_backward(const tm_glu *g);
void cuda_softcap(uint64_t rows, uint64_t n, uint64_t ld, float cap, float *x);     /* refused */
void cuda_scale(tm_elem t, uint64_t n, const void *factor, const void *x, void *y); /* refused */
void cuda_add_bias(tm_elem t, uint64_t rows, uint64_t n, const void *bias, void *x, uint64_t ld);
void cuda_column_sum(tm_elem t, uint64_t rows, uint64_t n, const void *x, uint64_t ld, float *out, bool add);
void cuda_embed_forward(const tm_embed *e);
void cuda_embed_backward(const tm_embed *e);
void cuda_attention_forward(const tm_attention *a); /* head_dim at most CUDA_MAX_HEAD_DIM */
void cuda_attention_backward(const tm_attention *a);
void cuda_head_update(const tm_head *h);
void cuda_head_gradient(const tm_head *h);
void cuda_head_begin(uint64_t rows, tm_head_state *state);
void cuda_gather_rows(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const uint32_t *row, const void *src,
                      void *dst);
void cuda_scatter_add_rows(uint64_t rows, uint64_t n, const uint32_t *row, const float *src, float *dst);
void cuda_zero(void *p, uint64_t bytes);
void cuda_copy(void *to, const void *from, uint64_t bytes);
/* Not a row of the table: other kernels convert what they load and store, and this shows its bits. */
void cuda_convert(tm_elem from, tm_elem to, const void *x, void *y, uint64_t n);

/* ---- the optimizer's rows: operands as optim has them ---------------------------------------------------------- */

void cuda_grad_finish(tm_elem t, const float *sum, void *grad, uint64_t n, double *partial);
/* [n] over `ranks`, first to last; `others`: those without mine, `stride` apart. `out` may be `own`. */
void cuda_sum_slices(const float *own, const float *others, uint64_t stride, uint32_t ranks, uint32_t me, float *out,
                     uint64_t n);
/* weight, or hi and lo. */
void cuda_adamw(const cuda_adamw_args *a, uint64_t *nonfinite);

#endif

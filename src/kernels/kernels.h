/* kernels: arithmetic on resident pointers, and nothing about layers, files or training.
 *
 * Every function works on dense row-major arrays of fp32, bf16 or fp16 elements. The 16-bit types are storage only:
 * elements are widened, computed on in fp32 and rounded once (to nearest, ties to even) where a result is stored. What
 * is too large for fp16 (65,520 and more) becomes infinite there: whoever computes in it looks for that.
 *
 * Two levels. A table of leaf functions (kernels_internal.h) has one column an ISA: `ref` is complete and readable,
 * `avx2` and `avx512` override the rows that matter; chosen once by CPU feature bits and a check against `ref`, forced
 * by TIDEMILL_ISA=ref|avx2|avx512. Above it the functions of this header cut the work into blocks and run them on a
 * team of OpenMP threads.
 *
 * Order of summation: every block size is a compile-time constant, and each sum is made by one thread or from fixed
 * partial sums in a fixed order. A result is therefore a function of (arguments, ISA, gemm library, threads), never of
 * timing; only gemm.h may depend on the number of threads.
 *
 * Ownership: nothing is kept. Scratch comes from the caller (`workspace`, 64-byte aligned, sizes from the *_workspace
 * functions) or from the block that tm_kernels_init reserves.
 * Threads: one caller at a time; the team is inside. Leaf conversions (tm_widen, tm_narrow) may be called from
 * anywhere.
 *
 *     TM_TRY(tm_kernels_init(0, TM_ELEM_BF16));         // once, before anything below
 *     tm_rmsnorm_forward(TM_ELEM_BF16, rows, 576, x, weight, 1e-5F, y);
 */
#ifndef TIDEMILL_KERNELS_H
#define TIDEMILL_KERNELS_H

#include "base/base.h"

typedef enum tm_elem { TM_ELEM_F32 = 0, TM_ELEM_BF16 = 1, TM_ELEM_F16 = 2 } tm_elem;
static inline size_t tm_elem_bytes(tm_elem t) {
    return t == TM_ELEM_F32 ? 4 : 2;
}

/* ---- start ---- */

/* Chooses the ISA and the gemm library, reserves scratch. threads 0: as many as OpenMP would use. `products`: the type
 * of most operands to come; the library that is best for it does all products, and no other is loaded. May be called
 * again (another thread count or type); a library is loaded once. TM_EINPUT: TIDEMILL_ISA or TIDEMILL_GEMM names
 * something unknown or something this CPU has not, or on which it gives wrong results. */
TM_MUST_USE tm_status tm_kernels_init(unsigned threads, tm_elem products);
/* The threads that compute for the calling thread, as tm_kernels_init has them for its caller: TM_EIO where a limit
 * does not allow them, which the OpenMP library would answer by ending the process. */
TM_MUST_USE tm_status tm_kernels_start_team(void);
void tm_kernels_close(void); /* gives the scratch back; for leak checks */
/* "isa=avx2 gemm=openblas-0.3.21-Haswell threads=2": what a result's bits depend on beside the arguments. */
const char *tm_kernels_describe(void);
const char *tm_kernels_isa(void);
unsigned tm_kernels_threads(void);
/* Resident memory that the kernels use beside their arguments and workspaces, an upper bound in bytes: our scratch, and
 * the gemm library's code and buffers, once products of type `t` with up to `rows` rows of activations have run. */
uint64_t tm_kernels_resident_bytes(tm_elem t, uint64_t rows);
/* Multiply-adds on registers by the whole team, fp32 operations a second: what rates of products are set beside.
 * Measured when called (some 100 ms). */
double tm_kernels_peak_flops(void);

/* ---- conversions: serial, any alignment ---- */

void tm_widen(const uint16_t *x, float *y, size_t n);  /* bf16 -> fp32, exact */
void tm_narrow(const float *x, uint16_t *y, size_t n); /* fp32 -> bf16, nearest even; NaN stays NaN (quiet) */
void tm_widen_f16(const uint16_t *x, float *y, size_t n);
void tm_narrow_f16(const float *x, uint16_t *y, size_t n); /* likewise; subnormals are kept */

/* ---- root mean square norm: y = x / sqrt(mean(x^2) + eps) * w ---- */

void tm_rmsnorm_forward(tm_elem t, uint64_t rows, uint64_t n, const void *x, const void *w, float eps, void *y);

/* dx = inv * w*dy - x * inv^3 * sum(w*dy*x) / n;  dw = sum over rows of dy * x * inv.
 * dy is fp32. dx (type t) is written, or added to where dx_add. dw (fp32) is written, or added to where dw_add; NULL:
 * not wanted. Rows are summed in blocks of TM_ROW_BLOCK, blocks in order. */
enum { TM_ROW_BLOCK = 64 };
uint64_t tm_rmsnorm_workspace(uint64_t rows, uint64_t n);
void tm_rmsnorm_backward(tm_elem t, uint64_t rows, uint64_t n, const void *x, const void *w, float eps, const float *dy,
                         void *dx, bool dx_add, float *dw, bool dw_add, void *workspace);

/* ---- rotary position embedding ----
 * Halves convention of HF: pairs (i, i + d/2). Angles as HF computes them: fp32 inverse frequencies times fp32
 * position. */

enum { TM_MAX_HEAD_DIM = 512, TM_ROPE_CACHED = 2048 };
typedef struct tm_rope {
    uint32_t head_dim, cached; /* cached: positions in `table` */
    float inv_freq[TM_MAX_HEAD_DIM / 2];
    float *table; /* [cached][2][head_dim/2]: cosines, then sines */
} tm_rope;
/* inv_freq[i] = theta^(-2i/head_dim). Scaling is applied by the caller before tm_rope_fill. */
void tm_rope_frequencies(tm_rope *r, uint32_t head_dim, double theta);
void tm_rope_scale_linear(tm_rope *r, double factor);
/* Llama 3: wavelengths over original/low are divided by factor, those under original/high kept, blended between. */
void tm_rope_scale_llama3(tm_rope *r, double factor, double low, double high, double original);
TM_MUST_USE tm_status tm_rope_fill(tm_rope *r, uint32_t positions); /* caches min(positions, TM_ROPE_CACHED) */
void tm_rope_free(tm_rope *r);
/* Position of token row t: first[t / seq] + t % seq; first NULL: all 0. */
typedef struct tm_positions {
    const uint32_t *first;
    uint32_t seq;
} tm_positions;
/* Rotates the first `heads` heads of rows [row0, row0 + rows) in place; x points at row row0, ld elements a row.
 * inverse: the transposed rotation, which is the gradient's. */
void tm_rope_apply(const tm_rope *r, tm_elem t, uint64_t row0, uint64_t rows, uint64_t ld, uint32_t heads, void *x,
                   tm_positions pos, bool inverse);

/* ---- gated unit: a = silu(g) * u, rows of gate_up are g[f] then u[f] ---- */

void tm_swiglu_forward(tm_elem t, uint64_t rows, uint64_t f, const void *gate_up, void *a);
/* da fp32 -> d_gate_up; a is recomputed beside it (for the down projection's gradient). */
void tm_swiglu_backward(tm_elem t, uint64_t rows, uint64_t f, const void *gate_up, const float *da, void *d_gate_up,
                        void *a);

/* ---- rows and columns ---- */

/* x[rows][ld] += bias[n] in each row. */
void tm_add_bias(tm_elem t, uint64_t rows, uint64_t n, const void *bias, void *x, uint64_t ld);
/* out[n] = or += sum over rows of x, in row order. */
void tm_column_sum(tm_elem t, uint64_t rows, uint64_t n, const void *x, uint64_t ld, float *out, bool add);

/* ---- embedding ---- */

/* Token rows whose id lies in [first, first + count) get weight[id - first]; with `clear` the others, and the rows from
 * `rows` to `padded`, become zero. */
void tm_embed_forward(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const int32_t *ids, uint32_t first,
                      uint32_t count, const void *weight, void *out, bool clear);
/* grad[id - first] += dout[row], rows in order; written from zero unless `add`. */
void tm_embed_backward(tm_elem t, uint64_t rows, uint64_t n, const int32_t *ids, uint32_t first, uint32_t count,
                       const void *dout, float *grad, bool add);

/* ---- attention ----
 * Causal, grouped heads, sliding window, key mask; tiles of 64 queries x 64 keys, online softmax, never S x S.
 * (Milakov and Gimelshein 2018, online normalizer; Dao 2023, FlashAttention-2: backward recomputes P from lse.)
 *
 * Row t = b*seq + s of `qkv` is q heads, k heads, v heads, rotated already. Query s sees key j iff j <= pos(s),
 * pos(s) - window < j (window 0: no limit) and key_mask[b*seq + j] (NULL: all). A query that sees nothing gives o = 0.
 */

enum { TM_ATTENTION_TILE = 64 };
typedef struct tm_attention {
    tm_elem type;
    uint32_t rows, seq; /* batch rows, positions */
    uint64_t padded;    /* token rows of the slots; those past rows*seq are written as zero */
    uint32_t heads, kv_heads, head_dim;
    uint32_t window;
    float scale;             /* 1 / sqrt(head_dim) */
    const void *qkv;         /* [padded][(heads + 2 kv_heads) head_dim] */
    const uint8_t *key_mask; /* [rows*seq]; ignored with a cache */
    void *o;                 /* [padded][heads head_dim] */
    float *lse;              /* [padded][heads] */
    /* forward with a cache: new k, v are stored at their positions, keys are read from there */
    void *kv_cache; /* [rows][kv_capacity][2][kv_heads head_dim], type */
    uint32_t kv_capacity;
    const uint32_t *position; /* [rows] position of the row's first token; NULL: 0 */
    /* backward */
    const void *d_o; /* [padded][heads head_dim] */
    void *d_qkv;     /* [padded][(heads + 2 kv_heads) head_dim], written; q and k parts turned back by
                        `rope` before they are rounded, if given */
    const tm_rope *rope;
    void *workspace;
} tm_attention;
uint64_t tm_attention_workspace(const tm_attention *a, bool backward); /* reads the sizes only; depends on threads */
void tm_attention_forward(const tm_attention *a);
void tm_attention_backward(const tm_attention *a);

/* ---- vocabulary loss, a part of the vocabulary at a time ---- */

typedef struct tm_head_state {
    float max, sum, label, pad; /* running maximum, sum of exp(logit - max), the label's logit */
} tm_head_state;
/* Continues the log-sum-exp of `rows` rows with logits of vocabulary [first, first + count). row[i] is the token row of
 * logits row i; state and labels are indexed by token row. */
void tm_head_update(uint64_t rows, const uint32_t *row, uint32_t first, uint32_t count, const float *logits,
                    uint64_t ld, const int32_t *labels, tm_head_state *state);
/* In place: logits -> coefficient * (softmax - one_hot(label)). t of 16 bits: each row is rounded and lies at the front
 * of where it was, so that rows are 2 ld elements of t apart: what products take as it is. */
void tm_head_gradient(tm_elem t, uint64_t rows, const uint32_t *row, uint32_t first, uint32_t count, float *logits,
                      uint64_t ld, const int32_t *labels, const tm_head_state *state, const float *coefficient);
static inline float tm_head_state_lse(const tm_head_state *s) {
    return s->max + __builtin_logf(s->sum);
}

/* dst[i] = src[row[i]] for rows of n elements; rows from `rows` to `padded` become zero. */
void tm_gather_rows(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const uint32_t *row, const void *src,
                    void *dst);
/* dst[row[i]] += src[i], fp32; each row at most once. */
void tm_scatter_add_rows(uint64_t rows, uint64_t n, const uint32_t *row, const float *src, float *dst);
void tm_zero(void *p, uint64_t bytes); /* memset by the team */

#endif

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
 *     tm_norm_forward(&(tm_norm){
 *         .type = TM_ELEM_BF16, .rows = rows, .n = 576, .eps = 1e-5F, .x = x, .weight = weight, .y = y});
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
enum { TM_PRODUCT_WIDTHS = 12 };
/* The products that are to come: of activations [rows, ..] of that type with a model's matrices. */
typedef struct tm_products {
    tm_elem type;
    uint64_t rows, hidden;             /* at most; matrices are [.., hidden] */
    uint64_t inner;                    /* the longest row of results */
    uint64_t width[TM_PRODUCT_WIDTHS]; /* of operands and results, the vocabulary's and those of adapters apart */
    uint32_t n_widths;                 /* 0: not known, or too many */
    bool packed;                       /* matrices lie as files have them (packed.h) */
    bool apart; /* a product computes some columns of such rows, as gate and up do where they are large */
} tm_products;
/* Resident memory that the kernels use beside their arguments and workspaces, an upper bound in bytes: our scratch, and
 * the gemm library's code and buffers. */
uint64_t tm_kernels_resident_bytes(const tm_products *p);
/* Multiply-adds on registers by the whole team, fp32 operations a second: what rates of products are set beside.
 * Measured when called (some 100 ms). */
double tm_kernels_peak_flops(void);
/* Bytes a second that the whole team reads of so much memory, which is allocated and given back: what products of few
 * rows are set beside. */
TM_MUST_USE tm_status tm_kernels_read_rate(uint64_t bytes, uint64_t *rate);

/* ---- conversions: serial, any alignment ---- */

void tm_widen(const uint16_t *x, float *y, size_t n);  /* bf16 -> fp32, exact */
void tm_narrow(const float *x, uint16_t *y, size_t n); /* fp32 -> bf16, nearest even; NaN stays NaN (quiet) */
void tm_widen_f16(const uint16_t *x, float *y, size_t n);
void tm_narrow_f16(const float *x, uint16_t *y, size_t n); /* likewise; subnormals are kept */

/* ---- norms ----
 *     RMS       y = x / sqrt(mean(x^2) + eps) * w                           (Zhang and Sennrich 2019)
 *     RMS_PLUS  the same with 1 + w for w                                   (Gemma)
 *     LAYER     y = (x - mean(x)) / sqrt(var(x) + eps) * w + bias           (Ba, Kiros, Hinton 2016) */

typedef enum tm_norm_kind { TM_NORM_RMS, TM_NORM_RMS_PLUS, TM_NORM_LAYER } tm_norm_kind;
enum { TM_ROW_BLOCK = 64 };
typedef struct tm_norm {
    tm_elem type; /* of x, weight, bias, y, dx */
    tm_norm_kind kind;
    uint64_t rows, n;
    uint64_t groups;     /* of n elements, side by side in a row, each normed by itself with the same weights; 0: one */
    uint64_t ld_x, ld_y; /* elements from row to row; 0: groups * n */
    float eps;
    const void *x, *weight, *bias; /* weight NULL: ones; bias of LAYER */
    const void *residual;          /* forward: what is added to the norm, laid out as y and not y; NULL: nothing */
    void *y;
    /* backward; ld_y is dy's too, ld_x dx's */
    const void *dy; /* of dy_type */
    tm_elem dy_type;
    void *dx;       /* written, or added to where dx_add */
    float *dw, *db; /* [n] sums over rows and groups, written, or added to where dw_add; NULL: not wanted */
    bool dx_add, dw_add;
    void *workspace; /* tm_norm_workspace bytes */
} tm_norm;
void tm_norm_forward(const tm_norm *a);
/* RMS: dx = inv * w*dy - x * inv^3 * sum(w*dy*x) / n;  dw = sum of dy * x * inv. Rows are summed in blocks of
 * TM_ROW_BLOCK, blocks in order. */
void tm_norm_backward(const tm_norm *a);
/* LAYER: of 2 n. */
uint64_t tm_norm_workspace(uint64_t rows, uint64_t n);

/* ---- rotary position embedding ----
 * Pairs (i, i + rotary/2) of the first `rotary` columns of a head (HF's halves), or (2i, 2i + 1) where `interleaved`.
 * Angles as HF computes them: fp32 inverse frequencies times fp32 position; sines and cosines are multiplied by
 * `factor`. */

enum { TM_MAX_HEAD_DIM = 512, TM_ROPE_CACHED = 2048 };
typedef struct tm_rope {
    uint32_t head_dim, rotary, cached; /* cached: positions in `table` */
    bool interleaved;
    float factor;
    float inv_freq[TM_MAX_HEAD_DIM / 2];
    float *table; /* [cached][2][rotary/2]: cosines, then sines */
} tm_rope;
/* inv_freq[i] = theta^(-2i/rotary), factor 1. Scaling is applied by the caller before tm_rope_fill. */
void tm_rope_frequencies(tm_rope *r, uint32_t head_dim, double theta); /* all columns turn */
void tm_rope_frequencies_part(tm_rope *r, uint32_t head_dim, uint32_t rotary, double theta);
void tm_rope_scale_linear(tm_rope *r, double factor);
/* The first `pairs` are divided by factor; the others become zero: those pairs do not turn (proportional). */
void tm_rope_scale_first(tm_rope *r, uint32_t pairs, double factor);
/* Llama 3: wavelengths over original/low are divided by factor, those under original/high kept, blended between. */
void tm_rope_scale_llama3(tm_rope *r, double factor, double low, double high, double original);
/* YaRN (Peng et al. 2023, section 3.2, "NTK-by-parts"): frequencies that turn more than beta_fast times in `original`
 * positions are kept, those that turn less than beta_slow times are divided by factor, blended between by index, whose
 * ends are made whole where `truncate`. */
typedef struct tm_yarn {
    double theta, factor, original, beta_fast, beta_slow;
    bool truncate;
} tm_yarn;
void tm_rope_scale_yarn(tm_rope *r, const tm_yarn *y);
/* inv_freq[i] = 1 / (divisor[i] theta^(2i/rotary)) for n of them: longrope (Ding et al. 2024) */
void tm_rope_scale_each(tm_rope *r, const float *divisor, uint32_t n, double theta);
TM_MUST_USE tm_status tm_rope_fill(tm_rope *r, uint32_t positions); /* caches min(positions, TM_ROPE_CACHED) */
void tm_rope_free(tm_rope *r);
/* Position of token row t: first[t / seq] + t % seq; first NULL: all 0. Where rows are several documents (tm_attention)
 * it is t % seq - begin[t], and `first` is not asked. */
typedef struct tm_positions {
    const uint32_t *first;
    uint32_t seq;
    const uint32_t *begin; /* NULL: a row is one document */
} tm_positions;
static inline uint64_t tm_position(const tm_positions *p, uint64_t t) {
    uint64_t at = t % p->seq;
    return p->begin ? at - p->begin[t] : at + (p->first ? p->first[t / p->seq] : 0);
}
/* Rotates the first `heads` heads of rows [row0, row0 + rows) in place; x points at row row0, ld elements a row.
 * inverse: the transposed rotation, which is the gradient's. */
void tm_rope_apply(const tm_rope *r, tm_elem t, uint64_t row0, uint64_t rows, uint64_t ld, uint32_t heads, void *x,
                   tm_positions pos, bool inverse);

/* ---- activations: y = act(g) * u of rows g[width], u[width], or act(x) ----
 *     SILU x sigmoid(x);  GELU x Phi(x);  GELU_TANH Hendrycks and Gimpel's approximation by tanh (2016) */

typedef enum tm_activation { TM_ACT_SILU, TM_ACT_GELU, TM_ACT_GELU_TANH } tm_activation;
typedef struct tm_glu {
    tm_elem type; /* of x, y, dx */
    tm_activation act;
    bool plain; /* no gate: x is [rows][width], else [rows][2 width] */
    uint64_t rows, width;
    const void *x;
    const void *up; /* u where it lies elsewhere than in x, which is then [rows][width]: rows ld_up apart. NULL: in x */
    uint64_t ld_up;
    void *y; /* [rows][width]; backward recomputes it (for the down projection's gradient) */
    /* backward */
    const float *dy;
    void *dx, *d_up; /* d_up as up */
} tm_glu;
void tm_glu_forward(const tm_glu *a);
void tm_glu_backward(const tm_glu *a);

/* ---- rows and columns ---- */

/* x[rows][ld] += bias[n] in each row. */
void tm_add_bias(tm_elem t, uint64_t rows, uint64_t n, const void *bias, void *x, uint64_t ld);
/* out[n] = or += sum over rows of x, in row order. */
void tm_column_sum(tm_elem t, uint64_t rows, uint64_t n, const void *x, uint64_t ld, float *out, bool add);
/* y = factor[0] x, n elements; y may be x */
void tm_scale(tm_elem t, uint64_t n, const void *factor, const void *x, void *y);
/* x = cap tanh(x / cap), fp32 */
void tm_softcap(uint64_t rows, uint64_t n, uint64_t ld, float cap, float *x);

/* ---- embedding ---- */

typedef struct tm_embed {
    tm_elem type;
    uint64_t rows, n;
    const int32_t *ids;
    uint32_t first, count; /* the ids that `weight` has rows of */
    float scale;           /* of what is looked up; 0: 1 */
    /* forward: token rows whose id is there get scale * weight[id - first]; with `clear` the others, and the rows from
     * `rows` to `padded`, become zero; with `add` it is added to what is there */
    uint64_t padded;
    const void *weight;
    const struct tm_packed *packed; /* instead of weight: the rows as a file has them (packed.h); NULL: weight */
    void *out;
    bool clear, add;
    /* backward: grad[id - first] += scale * dout[row], rows in order; written from zero unless `grad_add` */
    const void *dout;
    float *grad;
    bool grad_add;
} tm_embed;
void tm_embed_forward(const tm_embed *a);
void tm_embed_backward(const tm_embed *a);

/* ---- adapters (Hu et al. 2021, LoRA; Liu et al. 2024, DoRA) ---- */

/* out = or += x / (1 - p) where an element stays, 0 where it drops, which p = dropped / 65536 of them do. Which is a
 * function of `key` and the element's number alone: of its row, counted from `row` on, times n and its column. */
typedef struct tm_dropout {
    tm_elem type, out_type;
    uint64_t row, rows, n; /* both are [rows][n]; x may be out */
    const void *x;
    void *out;
    bool add;
    uint64_t key;
    uint32_t dropped; /* below 65536 */
} tm_dropout;
void tm_dropout_apply(const tm_dropout *a);

/* squares[i] = or += sum over j of (w[i][j] + delta[i][j])^2; `columns`: squares[j], over i, in order. */
typedef struct tm_squares {
    tm_elem type; /* of w */
    uint64_t rows, n;
    const void *w;
    uint64_t ld_w;
    const float *delta; /* [rows][n] */
    bool columns, add;
    float *squares;
} tm_squares;
void tm_squares_sum(const tm_squares *a);

/* y = or += scale * magnitude[j] / sqrt(squares[j]) * product[i][j]. Backward, where squares are constants:
 *     d_product = scale * magnitude / sqrt(squares) * dy;   d_magnitude += scale / sqrt(squares) * sum of dy * product */
typedef struct tm_magnitude {
    tm_elem type; /* of magnitude, y, dy, d_product */
    uint64_t rows, n;
    float scale;
    const void *magnitude;
    const float *squares, *product; /* [n], [rows][n] */
    void *y;
    uint64_t ld_y; /* of dy too */
    bool add;
    const void *dy;
    void *d_product;    /* [rows][n] */
    float *d_magnitude; /* NULL: not wanted, and `product` not read */
} tm_magnitude;
void tm_magnitude_forward(const tm_magnitude *a);
void tm_magnitude_backward(const tm_magnitude *a);

/* dst[i][k] = src[k][ids[i]] of src [n][ld]; rows from `rows` to `padded` become zero. */
void tm_gather_columns(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const int32_t *ids, const void *src,
                       uint64_t ld, void *dst);
/* dst[k][ids[i]] += src[i][k], rows in order. */
void tm_scatter_add_columns(uint64_t rows, uint64_t n, const int32_t *ids, const float *src, float *dst, uint64_t ld);

/* ---- attention ----
 * Causal, grouped heads, sliding window, key mask; tiles of 64 queries x 64 keys, online softmax, never S x S.
 * (Milakov and Gimelshein 2018, online normalizer; Dao 2023, FlashAttention-2: backward recomputes P from lse.)
 *
 * Row t = b*seq + s of q, k and v is rotated already. Query s sees key j iff j <= pos(s),
 * pos(s) - window < j (window 0: no limit) and key_mask[b*seq + j] (NULL: all). A query that sees nothing gives o = 0.
 *
 * With `begin` a row is several documents side by side, and each is attended to as a row of its own: the same tiles, so
 * the same bits, and the work of the documents alone.
 */

enum { TM_ATTENTION_TILE = 64 };
typedef struct tm_attention {
    tm_elem type;
    uint32_t rows, seq; /* batch rows, positions */
    uint64_t padded;    /* token rows of the slots; those past rows*seq are written as zero */
    uint32_t heads, kv_heads, head_dim;
    uint32_t window;
    float scale;                /* of scores, mostly 1 / sqrt(head_dim) */
    float softcap;              /* scores become softcap * tanh(score / softcap) (Gemma 2); 0: they do not */
    float temperature;          /* scale * (1 + temperature * ln(1 + floor(position / temperature_every))) of a */
    uint32_t temperature_every; /* query (Llama 4, Ministral 3); 0: none */
    const void *q, *k, *v;      /* [padded][ld_q]: heads side by side; [padded][ld_k], [padded][ld_v] */
    uint64_t ld_q, ld_k, ld_v;  /* of the gradients too */
    const uint8_t *key_mask;    /* [rows*seq]; ignored with a cache */
    const uint32_t *begin;      /* [rows*seq] index in the row of the first token of the token's document; NULL: 0; not
                                   with a cache */
    void *o;                    /* [padded][heads head_dim] */
    float *lse;                 /* [padded][heads] */
    /* forward with a cache: new k, v are stored at their positions, keys are read from there */
    void *kv_cache; /* [rows][kv_capacity][2][kv_heads head_dim], type; position p is entry p mod kv_capacity */
    uint32_t
        kv_capacity; /* of all positions; or, on the host, of tm_attention_ring(window, seq) at least: a multiple of it */
    const uint32_t *cache_row; /* [rows] row of the cache, no two alike; NULL: the row itself */
    /* [rows] row of the cache whose entries before `position` are this row's, too, and are copied; it is none that this
     * call copies to. UINT32_MAX, or NULL: what is before is there */
    const uint32_t *cache_from;
    bool decode;              /* seq is 1, the token of an answer: it meets the cache key by key */
    const uint32_t *position; /* [rows] position of the row's first token; NULL: 0 */
    /* backward */
    const void *d_o;       /* [padded][heads head_dim] */
    void *d_q, *d_k, *d_v; /* written; those of q and k turned back by `rope` before they are rounded, if given */
    bool kv_add;           /* d_k and d_v are added to */
    const tm_rope *rope;
    void *workspace;
} tm_attention;
/* Positions that a row of the cache keeps where attention looks through a window, for calls of at most `seq` tokens: those
 * that the first query's tile of keys begins with, and what the call writes. A multiple of TM_ATTENTION_TILE. */
static inline uint64_t tm_attention_ring(uint32_t window, uint32_t seq) {
    uint64_t n = (uint64_t)window + seq + TM_ATTENTION_TILE - 2;
    return (n + TM_ATTENTION_TILE - 1) / TM_ATTENTION_TILE * TM_ATTENTION_TILE;
}
uint64_t tm_attention_workspace(const tm_attention *a, bool backward); /* reads the sizes only; depends on threads */
void tm_attention_forward(const tm_attention *a);
void tm_attention_backward(const tm_attention *a);
/* Rows of q heads, k heads, v heads: [padded][(heads + 2 kv_heads) head_dim], and their gradients, or NULL. */
static inline void tm_attention_fuse(tm_attention *a, const void *qkv, void *d_qkv) {
    uint64_t q = (uint64_t)a->heads * a->head_dim, kv = (uint64_t)a->kv_heads * a->head_dim;
    uint64_t k = q * tm_elem_bytes(a->type), v = (q + kv) * tm_elem_bytes(a->type);
    a->ld_q = a->ld_k = a->ld_v = q + 2 * kv;
    a->q = qkv, a->k = (const char *)qkv + k, a->v = (const char *)qkv + v;
    a->d_q = d_qkv, a->d_k = d_qkv ? (char *)d_qkv + k : NULL, a->d_v = d_qkv ? (char *)d_qkv + v : NULL;
}
static inline bool tm_attention_is_fused(const tm_attention *a) {
    tm_attention b = *a;
    tm_attention_fuse(&b, a->q, a->d_q);
    return a->k == b.k && a->v == b.v && a->ld_q == b.ld_q && a->ld_k == b.ld_k && a->ld_v == b.ld_v &&
           (!a->d_q || (a->d_k == b.d_k && a->d_v == b.d_v));
}

/* ---- vocabulary loss, a part of the vocabulary at a time ---- */

typedef struct tm_head_state {
    float max, sum, label, pad; /* running maximum, sum of exp(logit - max), the label's logit */
} tm_head_state;
typedef struct tm_head {
    uint64_t rows;         /* of logits */
    const uint32_t *row;   /* row[i] is the token row of logits row i; state, labels, coefficient are indexed by it */
    uint32_t first, count; /* the columns: vocabulary [first, first + count) */
    float *logits;
    uint64_t ld;
    const int32_t *labels;
    tm_head_state *state;
    /* gradient */
    tm_elem type;
    float softcap; /* logits went through tm_softcap with this cap; 0: they did not */
    const float *coefficient;
} tm_head;
/* Continues the log-sum-exp of the rows with these logits. */
void tm_head_update(const tm_head *a);
/* In place: logits -> coefficient * (softmax - one_hot(label)), times the slope of the cap. A type of 16 bits: each row
 * is rounded and lies at the front of where it was, so that rows are 2 ld elements of it apart: what products take as
 * it is. */
void tm_head_gradient(const tm_head *a);
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

/* The folder's own: the table of leaf functions, the gemm back-ends, and how rows of either type are read.
 *
 * Leaf functions are serial, work on fp32, and take spans that are in cache. Rows of 16 bits are widened to spans of
 * KERNELS_SPAN elements on the caller's stack, so that a leaf exists once and not once a type.
 */
#ifndef TIDEMILL_KERNELS_INTERNAL_H
#define TIDEMILL_KERNELS_INTERNAL_H

#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/packed.h"

enum { KERNELS_SPAN = 1024 };

/* Register tile of the builtin gemm and of attention's small products. */
enum { GEMM_MR = 6, GEMM_NR = 16, GEMM_A_LD = 8 }; /* a packed panel of A has 8 floats a column, 6 of them used */

/* Rows dealt out to panels that lie `stride` floats apart: each gets `width` of a row's elements, a multiple of 8, from
 * every step-th on. */
typedef struct kernels_deal {
    size_t panels, step, width, stride;
} kernels_deal;

/* 4-bit codes (nf4.h) that begin a block: element i is map[code i] * absmax[i / block]. */
typedef struct kernels_nf4 {
    const float *map;    /* [16] */
    const float *absmax; /* of each block */
    size_t block;        /* a multiple of 32 */
    const uint8_t *codes;
    size_t n; /* elements, any number */
} kernels_nf4;

/* What drops of a stream, whose elements have 16 bits of Philox each, eight a block: those below `dropped`. */
enum { KERNELS_DRAWS = 8 };
typedef struct kernels_draw {
    uint64_t key;
    uint32_t dropped;
    float kept; /* what others are multiplied by */
} kernels_draw;

/* Values to 4-bit codes: the number of middles below x / absmax, and that code of `order`. */
typedef struct kernels_nf4_encode {
    const float *middle;  /* [15], ascending */
    const uint8_t *order; /* [16] */
    const float *x;
    float absmax; /* 0: all are 0 */
    size_t n;     /* any number; a byte that has but one code gets that of 0 beside it */
    uint8_t *codes;
} kernels_nf4_encode;

/* The instruction sets that a column may use. Products use none above it either. */
typedef enum kernels_level { KERNELS_REF, KERNELS_AVX2, KERNELS_AVX512 } kernels_level;

typedef struct kernels_table {
    const char *isa;
    kernels_level level;
    void (*widen)(const uint16_t *x, float *y, size_t n);
    void (*narrow)(const float *x, uint16_t *y, size_t n);
    void (*widen_f16)(const uint16_t *x, float *y, size_t n);
    void (*narrow_f16)(const float *x, uint16_t *y, size_t n);
    float (*dot)(const float *x, const float *y, size_t n);
    void (*axpy)(float a, const float *x, float *y, size_t n); /* y += a x */
    void (*scale)(float a, float *x, size_t n);
    /* norm: y = x * inv * w */
    void (*norm_apply)(const float *x, const float *w, float inv, float *y, size_t n);
    float (*dot3)(const float *x, const float *y, const float *z, size_t n); /* sum x*y*z */
    /* dx = inv * w*dy - c*x;  dw += dy * x * inv */
    void (*norm_grad)(const float *x, const float *w, const float *dy, float inv, float c, float *dx, float *dw,
                      size_t n);
    void (*swiglu)(const float *g, const float *u, float *a, size_t n);
    void (*swiglu_grad)(const float *g, const float *u, const float *da, float *a, float *dg, float *du, size_t n);
    /* y = act(x); its slope too, unless NULL. x may be y. */
    void (*activate)(tm_activation act, const float *x, float *y, float *slope, size_t n);
    void (*softcap)(float *x, float scale, float cap, size_t n); /* x = cap tanh(scale x / cap) */
    /* (x1, x2) -> (x1 c - x2 s, x2 c + x1 s); inverse: s negated */
    void (*rotate)(const float *cosine, const float *sine, bool inverse, float *x1, float *x2, size_t n);
    /* mask[i] = 0 or d->kept of the elements of `blocks` blocks from `first` on */
    void (*drop_mask)(const kernels_draw *d, uint64_t first, size_t blocks, float *mask);
    float (*max)(const float *x, size_t n);
    float (*exp_sum)(const float *x, float shift, size_t n);                /* sum exp(x - shift) */
    void (*softmax_grad)(float *x, float lse, float coefficient, size_t n); /* x = coefficient exp(x - lse) */
    /* Online softmax of one row of scores (-inf: masked): updates max and sum, s becomes exp(scale s - max), returns
     * the factor exp(old max - max) by which what was accumulated so far is to be multiplied. n is a multiple of 8. */
    float (*softmax_row)(float *s, float scale, float *max, float *sum, size_t n);
    /* s (scores) -> p = exp(scale s - lse);  dp -> ds = p (dp - delta) scale. n is a multiple of 8. */
    void (*softmax_row_grad)(float *s, float *dp, float scale, float lse, float delta, size_t n);
    /* C[m,n] = or += A B for small matrices in cache: A[i,p] = a[i ras + p cas], B rows of ldb, n a multiple of 16. */
    void (*small_gemm)(size_t m, size_t n, size_t k, const float *a, size_t ras, size_t cas, const float *b, size_t ldb,
                       float *c, size_t ldc, bool add);
    /* y[j ldy + i] = x[i ldx + j], i < rows, j < cols; i goes on to the next multiple of 8 with zeros */
    void (*transpose)(const float *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy);
    /* the same of 16 bits, widened */
    void (*transpose_bf16)(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy);
    void (*transpose_f16)(const uint16_t *x, size_t ldx, size_t rows, size_t cols, float *y, size_t ldy);
    /* y[j stride + p width + i] = x[p ldx + j step + i], widened; j < panels, p < rows, i < width */
    void (*deal_bf16)(const uint16_t *x, size_t ldx, size_t rows, kernels_deal to, float *y);
    void (*deal_f16)(const uint16_t *x, size_t ldx, size_t rows, kernels_deal to, float *y);
    void (*nf4_f32)(const kernels_nf4 *a, float *y);
    void (*nf4_bf16)(const kernels_nf4 *a, uint16_t *y);
    void (*nf4_f16)(const kernels_nf4 *a, uint16_t *y);
    void (*nf4_encode)(const kernels_nf4_encode *a);
    /* Blocks of that packing, as fp32: the same bits in every column. NULL: it is not made of blocks. */
    void (*unpack[TM_PACKINGS])(const uint8_t *b, size_t blocks, float *y);
    /* acc[MR][NR] = sum over p of a_panel[p][A_LD] (x) b_panel[p][NR], then C = alpha acc + beta C over the whole tile
     */
    void (*gemm_tile)(size_t k, const float *a_panel, const float *b_panel, float alpha, float beta, float *c,
                      size_t ldc);
} kernels_table;

extern kernels_table kernels; /* what tm_kernels_init chose; `ref` before it */
void kernels_ref_fill(kernels_table *t);
void kernels_avx2_override(kernels_table *t);
void kernels_avx512_override(kernels_table *t); /* on top of avx2 */
void kernels_packed_ref(kernels_table *t), kernels_packed_avx2(kernels_table *t),
    kernels_packed_avx512(kernels_table *t);

/* A column beside ref: what it needs, and the rows it brings. In order of preference; tests replace entries. */
typedef struct kernels_column {
    const char *name;
    bool (*supported)(void);
    void (*override)(kernels_table *t);
} kernels_column;
enum { KERNELS_COLUMNS = 2 };
extern kernels_column kernels_columns[KERNELS_COLUMNS];

/* Feature bits, with the operating system's consent (XCR0). */
bool kernels_has_avx2(void), kernels_has_avx512(void), kernels_has_bf16(void);

extern const kernels_table kernels_sizes; /* of results, for comparing columns (sizes.c) */
/* NULL: right; else what is wrong. A millisecond or two, on small odd sizes. */
const char *kernels_check_column(const kernels_table *t);
const char *kernels_check_gemm(void (*run)(const tm_gemm_args *));
typedef struct attention_way attention_way; /* attention_internal.h */
/* *wrong as above, of a way of attention beside the one in fp32. */
tm_status kernels_check_attention(const attention_way *way, const char **wrong);
unsigned kernels_team(void); /* threads for a parallel region */
/* One head's gradient of one position, turned back in place. */
void kernels_rotate_back(const tm_rope *r, uint64_t position, float *x);

/* Gemm back-ends. `open` warns why a back-end is absent; lack of memory is an error, never a reason to take another
 * one, since that would change bits. */
typedef enum gemm_opened { GEMM_READY, GEMM_ABSENT, GEMM_NO_MEMORY } gemm_opened;
typedef struct gemm_backend {
    const char *name;
    /* For products of that type in the column in use: the highest that opens and passes the check is used; 0: if
     * forced */
    int (*preference)(tm_elem products);
    /* `products`: of most operands to come. Uses no instruction set above kernels.level. */
    gemm_opened (*open)(unsigned threads, tm_elem products);
    void (*run)(const tm_gemm_args *g);
    const char *(*describe)(void);
    uint64_t (*resident_bytes)(unsigned threads, const tm_products *p); /* once it was opened for their type */
    const attention_way *attention; /* of bf16, once it was opened for that; NULL: it has none of its own */
    void (*close)(void);
} gemm_backend;
extern const gemm_backend gemm_openblas, gemm_builtin, gemm_avx512bf16, gemm_amx;
enum { GEMM_BACKENDS = 4 };
extern const gemm_backend *gemm_backends[GEMM_BACKENDS]; /* tests replace entries */
tm_status gemm_choose(unsigned threads, tm_elem products);
tm_status kernels_need_address_space(unsigned threads, tm_elem products); /* before that; TM_EINPUT */
void gemm_close(void);
const attention_way *gemm_attention(void); /* of the back-end in use; NULL: fp32's */
uint64_t gemm_resident_bytes(const tm_products *p);
extern unsigned gemm_rows_apart; /* tm_gemm_rows_apart */

/* Asks for a row that will be read soon: rows are short runs with gaps, which hardware does not foresee. */
static inline void kernels_prefetch(const void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)p + i);
}

/* Between fp32 and what an array of the 16-bit type t holds. */
static inline void kernels_widen(tm_elem t, const void *x, float *y, size_t n) {
    (t == TM_ELEM_F16 ? kernels.widen_f16 : kernels.widen)(x, y, n);
}
static inline void kernels_narrow(tm_elem t, const float *x, void *y, size_t n) {
    (t == TM_ELEM_F16 ? kernels.narrow_f16 : kernels.narrow)(x, y, n);
}

/* n elements of x from element `at` on as fp32: in place, or widened into buf. */
static inline const float *kernels_load(tm_elem t, const void *x, uint64_t at, float *buf, size_t n) {
    if (t == TM_ELEM_F32) return (const float *)x + at;
    kernels_widen(t, (const uint16_t *)x + at, buf, n);
    return buf;
}
/* Where to compute n results that belong at x + at: in place, or in buf until kernels_store. */
static inline float *kernels_dest(tm_elem t, void *x, uint64_t at, float *buf) {
    return t == TM_ELEM_F32 ? (float *)x + at : buf;
}
static inline void kernels_store(tm_elem t, const float *from, void *x, uint64_t at, size_t n) {
    if (t != TM_ELEM_F32) kernels_narrow(t, from, (uint16_t *)x + at, n);
}
static inline void *kernels_at(tm_elem t, void *x, uint64_t at) {
    return (char *)x + at * tm_elem_bytes(t);
}
static inline const void *kernels_at_const(tm_elem t, const void *x, uint64_t at) {
    return (const char *)x + at * tm_elem_bytes(t);
}

#endif

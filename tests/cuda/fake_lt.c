#include "fake_lt.h"
#include "fake_driver.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID = 7, NOT_SUPPORTED = CUBLAS_STATUS_NOT_SUPPORTED, ROUNDS_OTHERWISE = 100 };

struct tidemill_lt_matmul_desc {
    int32_t a_trans, b_trans;
};
struct tidemill_lt_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};
struct tidemill_lt_preference {
    size_t workspace;
    uint32_t sums, alignment[4];
};

static uint64_t algorithm = 1, last;
static _Atomic unsigned live, fail;
static cublasStatus_t refusal = NOT_SUPPORTED;

void fake_lt_algorithm(uint64_t number) {
    algorithm = number;
    refusal = NOT_SUPPORTED;
}
void fake_lt_refuse(cublasStatus_t with) {
    algorithm = 0;
    refusal = with;
}
void fake_lt_fail(unsigned n) {
    fail = n;
}
uint64_t fake_lt_last(void) {
    return last;
}
unsigned fake_lt_live(void) {
    return live;
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* fp16 in integers and double: not every compiler has the type. */
static double from_half(uint16_t h) {
    int e = h >> 10 & 31;
    double m = (double)(h & 1023) / 1024;
    double v = e == 31 ? (h & 1023 ? (double)NAN : (double)INFINITY) : e ? ldexp(1 + m, e - 15) : ldexp(m, -14);
    return h >> 15 ? -v : v;
}
static uint16_t to_half(float x) {
    unsigned sign = signbit(x) ? 0x8000 : 0, q;
    double a = fabs((double)x);
    int e;
    if (!(a < 65520)) return (uint16_t)(sign | (isnan(a) ? 0x7e00 : 0x7c00));
    (void)frexp(a, &e);
    e = e - 1 < -14 ? -14 : e - 1;
    q = (unsigned)nearbyint(ldexp(a, 10 - e)); /* ties to even; 1024 and more: with its leading bit */
    return (uint16_t)(sign | (q < 1024 ? q : ((unsigned)(e + 15) << 10) + q - 1024));
}

static double element(cudaDataType type, const void *x, uint64_t at) {
    uint32_t bits;
    float value;
    if (type == CUDA_R_32F) return (double)((const float *)x)[at];
    if (type == CUDA_R_16F) return from_half(((const uint16_t *)x)[at]);
    bits = (uint32_t)((const uint16_t *)x)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}
static void set_element(cudaDataType type, void *x, uint64_t at, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == CUDA_R_32F)
        ((float *)x)[at] = value;
    else if (type == CUDA_R_16F)
        ((uint16_t *)x)[at] = to_half(value);
    else
        ((uint16_t *)x)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- a product, as a stream's work ----------------------------------------------------------------------------- */

typedef struct product {
    struct tidemill_lt_matmul_desc desc;
    struct tidemill_lt_layout a_of, b_of, d_of;
    const void *a, *b;
    void *d;
    float alpha, beta;
    uint64_t algo;
} product;
_Static_assert(sizeof(product) <= FAKE_PAYLOAD, "a product fits a stream's work");

/* Element (row, column) of op(X), column-major. */
static double op_element(const struct tidemill_lt_layout *l, const void *x, bool trans, uint64_t row, uint64_t column) {
    uint64_t r = trans ? column : row, c = trans ? row : column;
    return element(l->type, x, c * (uint64_t)l->ld + r);
}

static void multiply(const void *payload) {
    const product *p = payload;
    uint64_t depth = p->desc.a_trans ? p->a_of.rows : p->a_of.columns;
    for (uint64_t j = 0; j < p->d_of.columns; j++)
        for (uint64_t i = 0; i < p->d_of.rows; i++) {
            uint64_t at = j * (uint64_t)p->d_of.ld + i;
            double sum = 0;
            for (uint64_t k = 0; k < depth; k++)
                sum += op_element(&p->a_of, p->a, p->desc.a_trans, i, k) *
                       op_element(&p->b_of, p->b, p->desc.b_trans, k, j);
            sum *= p->algo < ROUNDS_OTHERWISE ? (double)p->alpha : (double)p->alpha * (1 + 1e-6);
            if (p->beta != 0) sum += (double)p->beta * element(p->d_of.type, p->d, at);
            set_element(p->d_of.type, p->d, at, (float)sum);
        }
    last = p->algo;
}

/* What the real one would refuse: shapes that do not meet, leading dimensions that are too small. */
static bool meets(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                  cublasLtMatrixLayout_t d) {
    uint64_t m = desc->a_trans ? a->columns : a->rows, k = desc->a_trans ? a->rows : a->columns;
    uint64_t kb = desc->b_trans ? b->columns : b->rows, n = desc->b_trans ? b->rows : b->columns;
    return k == kb && m == d->rows && n == d->columns && a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows &&
           d->ld >= (int64_t)d->rows;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static size_t version(void) {
    return 130000;
}
static void *made(size_t bytes) {
    live++;
    return calloc(1, bytes);
}
static cublasStatus_t gone(void *p) {
    live--;
    free(p);
    return 0;
}
static cublasStatus_t create(cublasLtHandle_t *lt) {
    *lt = made(1);
    return 0;
}
static cublasStatus_t destroy(cublasLtHandle_t lt) {
    return gone(lt);
}
static cublasStatus_t desc_create(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F || (fail && --fail == 0)) return INVALID;
    *desc = made(sizeof **desc);
    return 0;
}
static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc) {
    return gone(desc);
}
static cublasStatus_t desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value,
                               size_t bytes) {
    int32_t v;
    if (bytes != sizeof v) return INVALID;
    memcpy(&v, value, sizeof v);
    *(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &desc->a_trans : &desc->b_trans) = v == CUBLAS_OP_T;
    return 0;
}
static cublasStatus_t layout_create(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t columns,
                                    int64_t ld) {
    if (fail && --fail == 0) return INVALID;
    *layout = made(sizeof **layout);
    **layout = (struct tidemill_lt_layout){type, rows, columns, ld};
    return 0;
}
static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t layout) {
    return gone(layout);
}
static cublasStatus_t preference_create(cublasLtMatmulPreference_t *preference) {
    *preference = made(sizeof **preference);
    return 0;
}
static cublasStatus_t preference_destroy(cublasLtMatmulPreference_t preference) {
    return gone(preference);
}
static cublasStatus_t preference_set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attribute,
                                     const void *value, size_t bytes) {
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&p->workspace, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&p->sums, value, bytes);
    else
        memcpy(&p->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return 0;
}
static cublasStatus_t heuristic(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t p, int wanted, cublasLtMatmulHeuristicResult_t *results,
                                int *found) {
    (void)lt, (void)c, (void)wanted;
    bool conditions = p->workspace == CUDA_LT_WORKSPACE && p->sums == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    for (int i = 0; i < 4; i++) conditions = conditions && p->alignment[i] > 0;
    if (!conditions || !meets(desc, a, b, d)) return INVALID;
    *found = algorithm != 0;
    results[0].algo.data[0] = algorithm;
    results[0].algo.data[7] = ~algorithm;
    return algorithm ? CUBLAS_STATUS_SUCCESS : refusal;
}
static cublasStatus_t check(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                            const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    (void)lt, (void)c;
    result->state = meets(desc, a, b, d) && algo->data[7] == ~algo->data[0] ? 0 : INVALID;
    return result->state;
}
static cublasStatus_t matmul(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                             cublasLtMatrixLayout_t a_of, const void *b, cublasLtMatrixLayout_t b_of, const void *beta,
                             const void *c, cublasLtMatrixLayout_t c_of, void *d, cublasLtMatrixLayout_t d_of,
                             const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                             cudaStream_t stream) {
    (void)lt, (void)workspace, (void)workspace_bytes;
    product p = {*desc, *a_of, *b_of, *d_of, a, b, d, *(const float *)alpha, *(const float *)beta, algo->data[0]};
    if (!meets(desc, a_of, b_of, d_of) || c != d || c_of != d_of) return INVALID;
    return fake_push(stream, multiply, &p, sizeof p);
}

#ifdef FAKE_LIBRARY
#define EXPORT(name, symbol, params)                                                                                   \
    cublasStatus_t symbol params;                                                                                      \
    __attribute__((alias(#name), visibility("default"))) cublasStatus_t symbol params;
CUDA_LT(EXPORT)
size_t cublasLtGetVersion(void);
__attribute__((alias("version"), visibility("default"))) size_t cublasLtGetVersion(void);
__attribute__((constructor)) static void begin(void) {
    const char *number = getenv("FAKE_CUDA_ALGORITHM");
    if (number) algorithm = (uint64_t)atoi(number);
}
#endif

const cuda_lt *fake_lt(void) {
    static const cuda_lt table = {.version = version,
#define FIELD(name, symbol, params) .name = name,
                                  CUDA_LT(FIELD)};
    return &table;
}

/* cuBLASLt, loaded at run time: the functions as a table, prototypes and constants written out as in driver.h. */
#ifndef TIDEMILL_CUDA_LT_H
#define TIDEMILL_CUDA_LT_H

#include "device/cuda/driver.h"
#include "kernels/gemm.h"

#define CUDA_LT_NUMBERS(N)                                                                                             \
    N(CUBLAS_STATUS_SUCCESS, 0)                                                                                        \
    N(CUBLAS_STATUS_NOT_SUPPORTED, 15)                                                                                 \
    N(CUDA_R_32F, 0)                                                                                                   \
    N(CUDA_R_16F, 2)                                                                                                   \
    N(CUDA_R_16BF, 14)                                                                                                 \
    N(CUBLAS_COMPUTE_32F, 68)                                                                                          \
    N(CUBLAS_OP_T, 1)                                                                                                  \
    N(CUBLASLT_MATMUL_DESC_TRANSA, 3)                                                                                  \
    N(CUBLASLT_MATMUL_DESC_TRANSB, 4)                                                                                  \
    N(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                                                                     \
    N(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)                                                                   \
    N(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)                                                                   \
    N(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)                                                                   \
    N(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)                                                                   \
    N(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)                                                                   \
    N(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)

#ifdef TIDEMILL_TOOLKIT_HEADERS
#include <cublasLt.h>
#else
typedef unsigned cublasStatus_t, cublasComputeType_t, cudaDataType;
typedef unsigned cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t,
    cublasLtMatmulAlgoConfigAttributes_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct tidemill_lt_matmul_desc *cublasLtMatmulDesc_t;
typedef struct tidemill_lt_layout *cublasLtMatrixLayout_t;
typedef struct tidemill_lt_preference *cublasLtMatmulPreference_t;
typedef struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;
enum { CUDA_LT_NUMBERS(CUDA_NUMBER) };
#endif

/* Beside these: version, cublasLtGetVersion, which returns a number. */
#define CUDA_LT(F)                                                                                                     \
    F(create, cublasLtCreate, (cublasLtHandle_t * lt))                                                                 \
    F(destroy, cublasLtDestroy, (cublasLtHandle_t lt))                                                                 \
    F(desc_create, cublasLtMatmulDescCreate,                                                                           \
      (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType scale))                                  \
    F(desc_destroy, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc))                                            \
    F(desc_set, cublasLtMatmulDescSetAttribute,                                                                        \
      (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes))          \
    F(layout_create, cublasLtMatrixLayoutCreate,                                                                       \
      (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld))               \
    F(layout_destroy, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout))                                    \
    F(preference_create, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference))                    \
    F(preference_destroy, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference))                    \
    F(preference_set, cublasLtMatmulPreferenceSetAttribute,                                                            \
      (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void *value,       \
       size_t bytes))                                                                                                  \
    F(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                                       \
      (cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,             \
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,          \
       cublasLtMatmulHeuristicResult_t *results, int *found))                                                          \
    F(check, cublasLtMatmulAlgoCheck,                                                                                  \
      (cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,             \
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,                           \
       cublasLtMatmulHeuristicResult_t *result))                                                                       \
    F(matmul, cublasLtMatmul,                                                                                          \
      (cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, cublasLtMatrixLayout_t a_of,  \
       const void *b, cublasLtMatrixLayout_t b_of, const void *beta, const void *c, cublasLtMatrixLayout_t c_of,       \
       void *d, cublasLtMatrixLayout_t d_of, const cublasLtMatmulAlgo_t *algo, void *workspace,                        \
       size_t workspace_bytes, cudaStream_t stream))

typedef struct cuda_lt {
    size_t (*version)(void);
#define CUDA_LT_FIELD(name, symbol, params) cublasStatus_t(*name) params;
    CUDA_LT(CUDA_LT_FIELD)
#undef CUDA_LT_FIELD
} cuda_lt;

/* NULL: not found; `why` says what was looked for. Loaded once. */
const cuda_lt *cuda_lt_load(const char **why);

/* Products of one device by the library. */
typedef struct cuda_products cuda_products;
enum { CUDA_LT_WORKSPACE = 32 << 20, CUDA_LT_PLANS = 256, CUDA_LT_LINE = 320 /* characters of a record's line */ };
/* `workspace`: CUDA_LT_WORKSPACE bytes of the device's memory. */
TM_MUST_USE tm_status cuda_products_open(cuda_products **out, const cuda_lt *lt, void *workspace, CUstream stream);
void cuda_products_close(cuda_products *p); /* NULL is fine */
/* TM_EUNSUPPORTED, nothing recorded: operands of two types, or a shape that the library has no algorithm for (said once
 * a shape). Whatever else goes wrong is TM_EIO, and no choice. */
TM_MUST_USE tm_status cuda_products_run(cuda_products *p, const tm_gemm_args *g);
/* Algorithms are chosen at a shape's first use, or taken from a list made earlier: lines "m n k types transposes lds
 * alignment algorithm" (all zero: our own kernel), which is what `record` writes. Both return how many lines; take:
 * TM_EINPUT at a line that is not such. Not beside products. */
TM_MUST_USE tm_status cuda_products_take(cuda_products *p, const char *list, uint32_t *lines);
uint32_t cuda_products_record(const cuda_products *p, char *out, size_t cap);

#endif

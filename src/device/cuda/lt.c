/* Matrix products by cuBLASLt. Row-major C = op(A) op(B) is column-major C' = op(B)' op(A)': the library's first
 * operand is our B, its second our A, and what is not transposed here is not there either.
 *
 * An algorithm is chosen once a shape, by the library's heuristics under fixed conditions (one order of summation: no
 * sums in place, none in the output's type; alignment and workspace fixed), and kept: of the latest shapes, since
 * rows of uneven length make many. What is chosen does not depend on what came before. */
#include "device/cuda/lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct shape { /* what an algorithm is chosen for; no padding, compared by bytes */
    uint64_t m, n, k, lda, ldb, ldc;
    uint32_t a_type, c_type, a_trans, b_trans, alignment, unused;
} shape;

typedef struct plan {
    shape of;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    bool ready, none; /* none: the library has nothing for it */
} plan;

struct cuda_products {
    const cuda_lt *lt;
    cublasLtHandle_t handle;
    void *workspace;
    CUstream stream;
    plan plan[CUDA_LT_PLANS]; /* one that could not be made is empty */
    uint32_t n, oldest;
};

const cuda_lt *cuda_lt_load(const char **why) {
    static cuda_lt table;
    static bool loaded;
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *library = NULL;
    if (loaded) return &table;
    for (size_t i = 0; i < TM_COUNT(files) && !library; i++) library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    *why = "libcublasLt.so.13 or .12 is not found";
    if (!library) return NULL;
    *why = "libcublasLt lacks a function";
    void *version = dlsym(library, "cublasLtGetVersion");
    if (!version) return NULL;
    memcpy(&table.version, &version, sizeof version);
#define RESOLVE(name, symbol, params)                                                                                  \
    {                                                                                                                  \
        void *p = dlsym(library, #symbol);                                                                             \
        if (!p) return NULL;                                                                                           \
        memcpy(&table.name, &p, sizeof p);                                                                             \
    }
    CUDA_LT(RESOLVE)
#undef RESOLVE
    loaded = true;
    return &table;
}

static tm_status failed(cublasStatus_t rc, const char *what) {
    return rc == CUBLAS_STATUS_SUCCESS ? TM_OK : tm_fail(TM_EIO, "cuda: cuBLASLt: %s failed (%u)", what, (unsigned)rc);
}

tm_status cuda_products_open(cuda_products **out, const cuda_lt *lt, void *workspace, CUstream stream) {
    cuda_products *p = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    p->lt = lt;
    p->workspace = workspace;
    p->stream = stream;
    tm_status rc = failed(lt->create(&p->handle), "cublasLtCreate");
    if (rc == TM_OK)
        *out = p;
    else
        tm_free(p);
    return rc;
}

static void drop(const cuda_lt *lt, plan *p) { /* leaves it empty */
    if (p->desc) (void)lt->desc_destroy(p->desc);
    if (p->a) (void)lt->layout_destroy(p->a);
    if (p->b) (void)lt->layout_destroy(p->b);
    if (p->c) (void)lt->layout_destroy(p->c);
    *p = (plan){.ready = false};
}

void cuda_products_close(cuda_products *p) {
    if (!p) return;
    for (uint32_t i = 0; i < p->n; i++) drop(p->lt, &p->plan[i]);
    (void)p->lt->destroy(p->handle);
    tm_free(p);
}

/* ---- shapes ---------------------------------------------------------------------------------------------------- */

/* The largest power of two up to 16 that all three are multiples of. */
static uint32_t alignment_of(const tm_gemm_args *g) {
    uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | 16;
    return (uint32_t)(all & -all);
}

static shape shape_of(const tm_gemm_args *g) {
    return (shape){.m = g->m,
                   .n = g->n,
                   .k = g->k,
                   .lda = g->lda,
                   .ldb = g->ldb,
                   .ldc = g->ldc,
                   .a_type = (uint32_t)g->a_type,
                   .c_type = (uint32_t)g->c_type,
                   .a_trans = g->a_trans,
                   .b_trans = g->b_trans,
                   .alignment = alignment_of(g)};
}

static plan *find(cuda_products *p, const shape *s) {
    for (uint32_t i = 0; i < p->n; i++)
        if (!memcmp(&p->plan[i].of, s, sizeof *s)) return &p->plan[i];
    return NULL;
}

static cudaDataType data_type(uint32_t elem) {
    return elem == TM_ELEM_F32 ? CUDA_R_32F : elem == TM_ELEM_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* ---- choosing -------------------------------------------------------------------------------------------------- */

static cublasStatus_t layouts(const cuda_lt *lt, plan *p) {
    const shape *s = &p->of;
    cudaDataType in = data_type(s->a_type), out = data_type(s->c_type);
    uint64_t a_inner = s->a_trans ? s->m : s->k, b_inner = s->b_trans ? s->k : s->n;
    cublasStatus_t rc = lt->layout_create(&p->b, in, b_inner, s->b_trans ? s->n : s->k, (int64_t)s->ldb);
    if (rc == 0) rc = lt->layout_create(&p->a, in, a_inner, s->a_trans ? s->k : s->m, (int64_t)s->lda);
    if (rc == 0) rc = lt->layout_create(&p->c, out, s->n, s->m, (int64_t)s->ldc);
    return rc;
}

static cublasStatus_t describe(const cuda_lt *lt, plan *p) {
    int32_t transposed = CUBLAS_OP_T;
    cublasStatus_t rc = lt->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (rc == 0 && p->of.b_trans)
        rc = lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (rc == 0 && p->of.a_trans)
        rc = lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &transposed, sizeof transposed);
    return rc == 0 ? layouts(lt, p) : rc;
}

static cublasStatus_t conditions(const cuda_lt *lt, cublasLtMatmulPreference_t pref, uint32_t alignment) {
    static const unsigned aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    size_t workspace = CUDA_LT_WORKSPACE;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t rc =
        lt->preference_set(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (rc == 0) rc = lt->preference_set(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums);
    for (size_t i = 0; rc == 0 && i < TM_COUNT(aligned); i++)
        rc = lt->preference_set(pref, aligned[i], &alignment, sizeof alignment);
    return rc;
}

/* Only what the library says that it lacks is left to our own kernel: a failure of another kind (no memory, a broken
 * context) would do so as well, with other bits, and be recorded. */
static tm_status asked(cuda_products *p, plan *to, cublasLtMatmulPreference_t pref) {
    cublasLtMatmulHeuristicResult_t best = {.state = 0};
    int found = 0;
    TM_TRY(failed(conditions(p->lt, pref, to->of.alignment), "describing what an algorithm may do"));
    cublasStatus_t rc = p->lt->heuristic(p->handle, to->desc, to->b, to->a, to->c, to->c, pref, 1, &best, &found);
    if (rc == CUBLAS_STATUS_SUCCESS && found > 0) rc = best.state;
    if (rc != CUBLAS_STATUS_NOT_SUPPORTED) TM_TRY(failed(rc, "choosing an algorithm"));
    to->none = rc == CUBLAS_STATUS_NOT_SUPPORTED || found == 0;
    to->algo = best.algo;
    if (to->none) memset(&to->algo, 0, sizeof to->algo);
    to->ready = true;
    return TM_OK;
}

static tm_status choose(cuda_products *p, plan *to) {
    cublasLtMatmulPreference_t pref;
    const shape *s = &to->of;
    TM_TRY(failed(p->lt->preference_create(&pref), "describing what an algorithm may do"));
    tm_status rc = asked(p, to, pref);
    (void)p->lt->preference_destroy(pref);
    if (rc == TM_OK && to->none)
        tm_log(TM_LOG_WARN,
               "cuda: cuBLASLt %zu has no algorithm for a product of %llu x %llu x %llu (types %u, %u, alignment %u): "
               "it runs on our own kernel, which is slow",
               p->lt->version(), (unsigned long long)s->m, (unsigned long long)s->n, (unsigned long long)s->k,
               s->a_type, s->c_type, s->alignment);
    return rc;
}

static plan *room(cuda_products *p) {
    if (p->n < CUDA_LT_PLANS) return &p->plan[p->n++];
    plan *old = &p->plan[p->oldest];
    p->oldest = (p->oldest + 1) % CUDA_LT_PLANS;
    drop(p->lt, old); /* products under way do not need it any more */
    return old;
}

static tm_status add(cuda_products *p, const shape *s, plan **out) {
    plan *to = room(p);
    to->of = *s;
    *out = to;
    tm_status rc = failed(describe(p->lt, to), "describing a product");
    if (rc != TM_OK) drop(p->lt, to);
    return rc;
}

static tm_status plan_of(cuda_products *p, const shape *s, plan **out) {
    *out = find(p, s);
    if (!*out) TM_TRY(add(p, s, out));
    if (!(*out)->ready) TM_TRY(choose(p, *out));
    return (*out)->none ? TM_EUNSUPPORTED : TM_OK;
}

tm_status cuda_products_run(cuda_products *p, const tm_gemm_args *g) {
    plan *of;
    shape s = shape_of(g);
    if (g->a_type != g->b_type || (g->c_type != g->a_type && g->c_type != TM_ELEM_F32) || g->k == 0)
        return TM_EUNSUPPORTED;
    TM_TRY(plan_of(p, &s, &of));
    return failed(p->lt->matmul(p->handle, of->desc, &g->alpha, g->b, of->b, g->a, of->a, &g->beta, g->c, of->c, g->c,
                                of->c, &of->algo, p->workspace, CUDA_LT_WORKSPACE, p->stream),
                  "a product");
}

/* ---- recorded choices ------------------------------------------------------------------------------------------ */

#define SHAPE_FORMAT "%llu %llu %llu %llu %llu %llu %u %u %u %u %u"

uint32_t cuda_products_record(const cuda_products *p, char *out, size_t cap) {
    typedef unsigned long long u64;
    size_t at = 0;
    uint32_t lines = 0;
    if (cap) out[0] = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const shape *s = &p->plan[i].of;
        const uint64_t *a = p->plan[i].algo.data;
        if (!p->plan[i].ready) continue;
        int k = snprintf(out + at, cap - at, SHAPE_FORMAT " %016llx%016llx%016llx%016llx%016llx%016llx%016llx%016llx\n",
                         (u64)s->m, (u64)s->n, (u64)s->k, (u64)s->lda, (u64)s->ldb, (u64)s->ldc, s->a_type, s->c_type,
                         s->a_trans, s->b_trans, s->alignment, (u64)a[0], (u64)a[1], (u64)a[2], (u64)a[3], (u64)a[4],
                         (u64)a[5], (u64)a[6], (u64)a[7]);
        if (k < 0 || (size_t)k >= cap - at) break;
        at += (size_t)k;
        lines++;
    }
    return lines;
}

static bool parse(const char *line, shape *s, cublasLtMatmulAlgo_t *algo, int *used) {
    unsigned long long v[6], a[8];
    int n = sscanf(line, SHAPE_FORMAT " %16llx%16llx%16llx%16llx%16llx%16llx%16llx%16llx%n", &v[0], &v[1], &v[2], &v[3],
                   &v[4], &v[5], &s->a_type, &s->c_type, &s->a_trans, &s->b_trans, &s->alignment, &a[0], &a[1], &a[2],
                   &a[3], &a[4], &a[5], &a[6], &a[7], used);
    if (n != 19) return false;
    s->m = v[0], s->n = v[1], s->k = v[2], s->lda = v[3], s->ldb = v[4], s->ldc = v[5];
    for (int i = 0; i < 8; i++) algo->data[i] = a[i];
    return s->a_type <= 2 && s->c_type <= 2 && s->a_trans <= 1 && s->b_trans <= 1;
}

static bool is_none(const cublasLtMatmulAlgo_t *algo) {
    uint64_t any = 0;
    for (int i = 0; i < 8; i++) any |= algo->data[i];
    return any == 0;
}

/* A choice that this library does not take (another version's, say) is an error: another would change bits. */
static tm_status take(cuda_products *p, const shape *s, const cublasLtMatmulAlgo_t *algo) {
    plan *of;
    cublasLtMatmulHeuristicResult_t result = {.state = 0};
    if (find(p, s)) return tm_fail(TM_EINPUT, "cuda: a list of algorithms names one product twice");
    if (p->n == CUDA_LT_PLANS) return tm_fail(TM_EINPUT, "cuda: a list of more than %d algorithms", CUDA_LT_PLANS);
    TM_TRY(add(p, s, &of));
    of->none = is_none(algo);
    if (!of->none && (p->lt->check(p->handle, of->desc, of->b, of->a, of->c, of->c, algo, &result) != 0 ||
                      result.state != 0 || result.workspaceSize > CUDA_LT_WORKSPACE)) {
        drop(p->lt, of);
        return tm_fail(TM_EINPUT,
                       "cuda: cuBLASLt does not take the algorithm recorded for %llu x %llu x %llu; it was "
                       "recorded with another version or device",
                       (unsigned long long)s->m, (unsigned long long)s->n, (unsigned long long)s->k);
    }
    of->algo = *algo;
    of->ready = true;
    return TM_OK;
}

tm_status cuda_products_take(cuda_products *p, const char *list, uint32_t *lines) {
    cublasLtMatmulAlgo_t algo;
    *lines = 0;
    while (*list) {
        shape s = {.unused = 0};
        int used = 0;
        if (!parse(list, &s, &algo, &used))
            return tm_fail(TM_EINPUT, "cuda: line %u of a list of algorithms is not one", *lines + 1);
        TM_TRY(take(p, &s, &algo));
        list += used;
        list += *list == '\n';
        ++*lines;
    }
    return TM_OK;
}

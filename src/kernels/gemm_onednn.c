/* oneDNN, found at run time: products of bf16 for CPUs that multiply it (AVX-512 BF16; AMX where it is forced). Major
 * versions 2 and 3 differ in how a primitive is described, so both ways are here; their headers are not needed, everything
 * is reached by name and passed by pointer. It runs its own OpenMP team, of our size, one product at a time.
 *
 * What it is not asked for (fp16, operands of two types, alpha other than 1; fp32, unless it was forced for a run in
 * fp32) and what it has no more than a reference for (bf16 on a CPU without bf16 instructions) is the builtin
 * product's; which products those are depends on the CPU, the run's type and the call alone. For a run in fp16 it is
 * not even loaded.
 *
 * Memory: its own cache of primitives is off, ours has ENTRIES of them; scratch is one block of ours, and what would
 * take more of it is done by runs of its columns, as many as there is room for. */
#include "kernels/kernels_internal.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the part of oneDNN's C interface that is used; numbers are the same in 2 and 3 ---- */

enum { OK = 0, UNIMPLEMENTED = 3, CPU = 1, RUNTIME_OMP = 2, DT_BF16 = 2, DT_F32 = 3, IN_ORDER = 1 };
enum { ARG_SRC = 1, ARG_DST = 17, ARG_WEIGHTS = 33, ARG_SCRATCHPAD = 80, SCRATCHPAD_IS_OURS = 1 };
enum { QUERY_IMPLEMENTATION = 8, QUERY_SCRATCHPAD = 136 };
enum { MAX_SSE41 = 0x1, MAX_AVX2 = 0x7 };
/* Version 2 keeps descriptions in structures of the caller: 696 and 2,800 bytes in 2.6. */
enum { DESC_BYTES = 2048, OP_BYTES = 16384 };
typedef int64_t dims[12];
typedef struct exec_arg {
    int arg;
    void *memory;
} exec_arg;
typedef struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
} version;

static struct {
    const version *(*version)(void);
    int (*effective_isa)(void);
    int (*set_max_isa)(int isa); /* before anything else is called */
    int (*set_cache_capacity)(int primitives);
    int (*engine_create)(void **engine, int kind, size_t index);
    int (*stream_create)(void **stream, void *engine, unsigned flags);
    int (*stream_wait)(void *stream);
    int (*attr_create)(void **attr);
    int (*attr_destroy)(void *attr);
    int (*attr_set_post_ops)(void *attr, const void *ops);
    int (*attr_set_scratchpad)(void *attr, int mode);
    int (*post_ops_create)(void **ops);
    int (*post_ops_destroy)(void *ops);
    int (*post_ops_append_sum_2)(void *ops, float scale);
    int (*post_ops_append_sum_3)(void *ops, float scale, int32_t zero_point, int type);
    int (*desc_init_2)(void *desc, int n, const dims d, int type, const dims strides);
    int (*desc_create_3)(void **desc, int n, const dims d, int type, const dims strides);
    int (*desc_destroy_3)(void *desc);
    int (*matmul_init_2)(void *op, const void *src, const void *weights, const void *bias, const void *dst);
    int (*primitive_desc_2)(void **pd, const void *op, const void *attr, void *engine, const void *hint);
    int (*matmul_3)(void **pd, void *engine, const void *src, const void *weights, const void *bias, const void *dst,
                    const void *attr);
    int (*primitive_desc_destroy)(void *pd);
    int (*primitive_desc_query)(const void *pd, int what, int index, void *result);
    const void *(*primitive_desc_query_md)(const void *pd, int what, int index);
    size_t (*desc_bytes)(const void *desc);
    int (*primitive_create)(void **primitive, const void *pd);
    int (*primitive_destroy)(void *primitive);
    int (*primitive_execute)(const void *primitive, void *stream, int n, const exec_arg *args);
    int (*memory_create)(void **memory, const void *desc, void *engine, void *handle);
    int (*memory_destroy)(void *memory);
    int (*memory_set)(void *memory, void *handle);
} api;

/* A prepared product. `primitive` NULL with `known` set: oneDNN has none for it. */
typedef struct entry {
    tm_gemm_args shape; /* pointers NULL */
    bool known;
    uint64_t columns;            /* not 0: oneDNN has one, for whose scratch there is room if it has so many columns */
    void *primitive, *memory[4]; /* A, B, C, scratch */
} entry;
enum { ENTRIES = 48, PRODUCT_KIB = 100, SCRATCH_MIB = 16, COLUMN_GRAIN = 64, SCRATCH_ALIGNMENT = 4096 };
enum { COPIES_MIB = 10 }; /* of fp32 operands, by a thread: 10,000 rows x 192 in single blocks */
enum { BLOCK_ROWS = 10000, BLOCK_DEPTH = 768, COPY_MIB = 3 };  /* of bf16; the last: by a thread, beside A */
enum { CACHED_SIZES = 64, CACHED_EACH = 7, CACHED_STEP = 16 }; /* glibc's tcache */

static struct {
    void *handle, *engine, *stream;
    char name[160];
    unsigned threads, next;
    tm_elem products;
    kernels_level level; /* that it was loaded for */
    char *base, *scratch;
    entry entry[ENTRIES];
} lib;

/* ---- loading ---- */

static bool symbol(void *into, const char *name) {
    void *p = dlsym(lib.handle, name);
    memcpy(into, &p, sizeof p);
    return p != NULL;
}

static bool load_common(void) {
    return symbol(&api.version, "dnnl_version") && symbol(&api.effective_isa, "dnnl_get_effective_cpu_isa") &&
           symbol(&api.set_max_isa, "dnnl_set_max_cpu_isa") &&
           symbol(&api.set_cache_capacity, "dnnl_set_primitive_cache_capacity") &&
           symbol(&api.attr_set_scratchpad, "dnnl_primitive_attr_set_scratchpad_mode") &&
           symbol(&api.primitive_desc_query, "dnnl_primitive_desc_query") &&
           symbol(&api.primitive_desc_query_md, "dnnl_primitive_desc_query_md") &&
           symbol(&api.desc_bytes, "dnnl_memory_desc_get_size") && symbol(&api.engine_create, "dnnl_engine_create") &&
           symbol(&api.stream_create, "dnnl_stream_create") && symbol(&api.stream_wait, "dnnl_stream_wait") &&
           symbol(&api.attr_create, "dnnl_primitive_attr_create") &&
           symbol(&api.attr_destroy, "dnnl_primitive_attr_destroy") &&
           symbol(&api.attr_set_post_ops, "dnnl_primitive_attr_set_post_ops") &&
           symbol(&api.post_ops_create, "dnnl_post_ops_create") &&
           symbol(&api.post_ops_destroy, "dnnl_post_ops_destroy") &&
           symbol(&api.primitive_desc_destroy, "dnnl_primitive_desc_destroy") &&
           symbol(&api.primitive_create, "dnnl_primitive_create") &&
           symbol(&api.primitive_destroy, "dnnl_primitive_destroy") &&
           symbol(&api.primitive_execute, "dnnl_primitive_execute") &&
           symbol(&api.memory_create, "dnnl_memory_create") && symbol(&api.memory_destroy, "dnnl_memory_destroy") &&
           symbol(&api.memory_set, "dnnl_memory_set_data_handle");
}

static bool load_version(int major) {
    if (major == 2)
        return symbol(&api.post_ops_append_sum_2, "dnnl_post_ops_append_sum") &&
               symbol(&api.desc_init_2, "dnnl_memory_desc_init_by_strides") &&
               symbol(&api.matmul_init_2, "dnnl_matmul_desc_init") &&
               symbol(&api.primitive_desc_2, "dnnl_primitive_desc_create");
    return major == 3 && symbol(&api.post_ops_append_sum_3, "dnnl_post_ops_append_sum") &&
           symbol(&api.desc_create_3, "dnnl_memory_desc_create_with_strides") &&
           symbol(&api.desc_destroy_3, "dnnl_memory_desc_destroy") &&
           symbol(&api.matmul_3, "dnnl_matmul_primitive_desc_create");
}

/* Nothing above the column in use; the last column stands for all that the CPU has. */
static bool limit(void) {
    static const int most[] = {MAX_SSE41, MAX_AVX2};
    lib.level = kernels.level;
    return kernels.level == KERNELS_AVX512 || api.set_max_isa(most[kernels.level]) == OK;
}

/* The limit cannot be changed in the same process. */
static bool load(void) {
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
    if (lib.stream && lib.level == kernels.level) return true;
    if (lib.stream) return tm_warn_once("level", "oneDNN was loaded for another column already"), false;
    for (size_t i = 0; i < TM_COUNT(names) && !lib.handle; i++) lib.handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib.handle) return false;
    bool found = load_common() && api.version()->cpu_runtime == RUNTIME_OMP && load_version(api.version()->major);
    return found && limit() && api.set_cache_capacity(0) == OK && api.engine_create(&lib.engine, CPU, 0) == OK &&
           api.stream_create(&lib.stream, lib.engine, IN_ORDER) == OK;
}

static bool wanted(void) {
    return lib.products != TM_ELEM_F16;
}

static void name_library(void) {
    const version *v = wanted() ? api.version() : NULL;
    if (!v)
        snprintf(lib.name, sizeof lib.name, "%s", gemm_builtin.describe());
    else
        snprintf(lib.name, sizeof lib.name, "onednn-%d.%d.%d-isa%x-columns+%s", v->major, v->minor, v->patch,
                 (unsigned)api.effective_isa(), gemm_builtin.describe());
}

static gemm_opened open_library(unsigned threads, tm_elem products) {
    lib.threads = threads, lib.products = products;
    if (wanted() && !load()) return GEMM_ABSENT;
    gemm_opened how = gemm_builtin.open(threads, products);
    if (how != GEMM_READY) return how;
    name_library();
    lib.base = wanted() ? tm_malloc((size_t)SCRATCH_MIB * TM_MIB + SCRATCH_ALIGNMENT) : NULL;
    if (wanted() && !lib.base) return gemm_builtin.close(), GEMM_NO_MEMORY;
    lib.scratch = lib.base + (SCRATCH_ALIGNMENT - (uintptr_t)lib.base % SCRATCH_ALIGNMENT);
    return GEMM_READY;
}

static void forget(entry *e) {
    for (size_t i = 0; i < TM_COUNT(e->memory); i++)
        if (e->memory[i]) (void)api.memory_destroy(e->memory[i]);
    if (e->primitive) (void)api.primitive_destroy(e->primitive);
    *e = (entry){0};
}

static void close_library(void) { /* the library itself stays loaded */
    for (size_t i = 0; i < ENTRIES; i++) forget(&lib.entry[i]);
    tm_free(lib.base);
    lib.base = lib.scratch = NULL;
    gemm_builtin.close();
}

/* ---- preparing a product ---- */

typedef struct operand {
    dims size, stride;
    int type;
} operand;

static operand operand_of(uint64_t rows, uint64_t columns, uint64_t ld, bool trans, tm_elem t) {
    operand o = {.size = {(int64_t)rows, (int64_t)columns}, .type = t == TM_ELEM_BF16 ? DT_BF16 : DT_F32};
    o.stride[trans ? 1 : 0] = (int64_t)ld;
    o.stride[trans ? 0 : 1] = 1;
    return o;
}

/* beta C is oneDNN's "sum": C is read, scaled and added before the one rounding. */
static int add_sum(void *attr, float beta) {
    void *ops = NULL;
    int rc = api.post_ops_create(&ops);
    if (rc == OK)
        rc = api.post_ops_append_sum_2 ? api.post_ops_append_sum_2(ops, beta)
                                       : api.post_ops_append_sum_3(ops, beta, 0, 0);
    if (rc == OK) rc = api.attr_set_post_ops(attr, ops);
    if (ops) (void)api.post_ops_destroy(ops);
    return rc;
}

static int attributes(float beta, void **attr) {
    int rc = api.attr_create(attr);
    if (rc == OK) rc = api.attr_set_scratchpad(*attr, SCRATCHPAD_IS_OURS);
    return rc == OK && beta != 0.0F ? add_sum(*attr, beta) : rc;
}

static int describe_2(const operand *o, const void *attr, void **pd, void *desc[3]) {
    _Alignas(64) char op[OP_BYTES];
    int rc = OK;
    for (size_t i = 0; i < 3 && rc == OK; i++) rc = api.desc_init_2(desc[i], 2, o[i].size, o[i].type, o[i].stride);
    if (rc == OK) rc = api.matmul_init_2(op, desc[0], desc[1], NULL, desc[2]);
    return rc == OK ? api.primitive_desc_2(pd, op, attr, lib.engine, NULL) : rc;
}

static int describe_3(const operand *o, const void *attr, void **pd, void *desc[3]) {
    int rc = OK;
    for (size_t i = 0; i < 3 && rc == OK; i++) rc = api.desc_create_3(&desc[i], 2, o[i].size, o[i].type, o[i].stride);
    return rc == OK ? api.matmul_3(pd, lib.engine, desc[0], desc[1], NULL, desc[2], attr) : rc;
}

/* What there is for it is fast, and has room in our scratch. */
static bool acceptable(entry *e, const void *pd) {
    const char *name = NULL;
    if (api.primitive_desc_query(pd, QUERY_IMPLEMENTATION, 0, &name) != OK || strncmp(name, "ref", 3) == 0)
        return false;
    uint64_t bytes = api.desc_bytes(api.primitive_desc_query_md(pd, QUERY_SCRATCHPAD, 0)), most = SCRATCH_MIB * TM_MIB;
    if (bytes > most) e->columns = e->shape.n * most / bytes / COLUMN_GRAIN * COLUMN_GRAIN;
    return bytes <= most;
}

static int make(entry *e, const void *pd, void *const desc[3]) {
    int rc = api.primitive_create(&e->primitive, pd);
    for (size_t i = 0; i < 3 && rc == OK; i++) rc = api.memory_create(&e->memory[i], desc[i], lib.engine, NULL);
    const void *scratch = api.primitive_desc_query_md(pd, QUERY_SCRATCHPAD, 0);
    return rc == OK ? api.memory_create(&e->memory[3], scratch, lib.engine, lib.scratch) : rc;
}

static int build(entry *e, const operand *o, float beta) {
    _Alignas(64) char room[3][DESC_BYTES];
    bool two = api.desc_init_2 != NULL;
    void *attr = NULL, *pd = NULL, *desc[3] = {two ? room[0] : NULL, two ? room[1] : NULL, two ? room[2] : NULL};
    int rc = attributes(beta, &attr);
    if (rc == OK) rc = two ? describe_2(o, attr, &pd, desc) : describe_3(o, attr, &pd, desc);
    if (rc == OK) rc = acceptable(e, pd) ? make(e, pd, desc) : UNIMPLEMENTED;
    if (pd) (void)api.primitive_desc_destroy(pd);
    if (attr) (void)api.attr_destroy(attr);
    for (size_t i = 0; i < 3 && !two; i++)
        if (desc[i]) (void)api.desc_destroy_3(desc[i]);
    return rc;
}

/* fp32 only where it was forced for a run in fp32: it has no better product for it than others have. */
static bool asked_for(const tm_gemm_args *g) {
    bool bf16 = g->a_type == TM_ELEM_BF16 && g->c_type != TM_ELEM_F16,
         fp32 = g->a_type == TM_ELEM_F32 && g->c_type == TM_ELEM_F32 && lib.products == TM_ELEM_F32;
    return wanted() && g->alpha == 1.0F && g->a_type == g->b_type && !g->b_packed && (bf16 || fp32);
}

/* Another status than "unimplemented" (lack of memory) must not lead to another product: that would change bits. */
static void prepare(entry *e, const tm_gemm_args *key) {
    forget(e);
    *e = (entry){.shape = *key, .known = true};
    const operand o[3] = {operand_of(key->m, key->k, key->lda, key->a_trans, key->a_type),
                          operand_of(key->k, key->n, key->ldb, key->b_trans, key->b_type),
                          operand_of(key->m, key->n, key->ldc, false, key->c_type)};
    int rc = build(e, o, key->beta);
    if (rc != OK && rc != UNIMPLEMENTED) tm_log(TM_LOG_ERROR, "oneDNN: status %d while a product was prepared", rc);
    TM_ASSERT(rc == OK || rc == UNIMPLEMENTED);
    if (rc == OK) return;
    entry none = {.shape = *key, .known = true, .columns = e->columns};
    forget(e);
    *e = none;
}

static bool same(const tm_gemm_args *x, const tm_gemm_args *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc &&
           x->alpha == y->alpha && x->beta == y->beta && x->a_type == y->a_type && x->b_type == y->b_type &&
           x->c_type == y->c_type && x->a_trans == y->a_trans && x->b_trans == y->b_trans;
}

static entry *entry_of(const tm_gemm_args *g) {
    tm_gemm_args key = *g;
    key.a = key.b = NULL, key.c = NULL;
    for (size_t i = 0; i < ENTRIES; i++)
        if (lib.entry[i].known && same(&lib.entry[i].shape, &key)) return &lib.entry[i];
    entry *e = &lib.entry[lib.next++ % ENTRIES];
    prepare(e, &key);
    return e;
}

static void run(const tm_gemm_args *g);

/* What has no room in our scratch (a copy of B: 23 MB for 5632 x 2048) has it by runs of its columns. */
static void run_by_columns(const tm_gemm_args *g, uint64_t columns) {
    for (uint64_t at = 0; at < g->n; at += columns) {
        tm_gemm_args part = *g;
        part.n = tm_min_u64(columns, g->n - at);
        part.b = (const char *)g->b + at * (g->b_trans ? g->ldb : 1) * tm_elem_bytes(g->b_type);
        part.c = (char *)g->c + at * tm_elem_bytes(g->c_type);
        run(&part);
    }
}

static void run(const tm_gemm_args *g) {
    omp_set_num_threads((int)lib.threads);        /* of the calling thread: what the library's team will be */
    entry *e = asked_for(g) ? entry_of(g) : NULL; /* what it is not asked for takes none of its few places */
    if (e && e->columns) {
        run_by_columns(g, e->columns);
        return;
    }
    if (!e || !e->primitive) {
        gemm_builtin.run(g);
        return;
    }
    void *data[3] = {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b, g->c};
    int rc = OK;
    for (size_t i = 0; i < 3 && rc == OK; i++) rc = api.memory_set(e->memory[i], data[i]);
    const exec_arg args[] = {
        {ARG_SRC, e->memory[0]}, {ARG_WEIGHTS, e->memory[1]}, {ARG_DST, e->memory[2]}, {ARG_SCRATCHPAD, e->memory[3]}};
    if (rc == OK) rc = api.primitive_execute(e->primitive, lib.stream, TM_COUNT(args), args);
    if (rc == OK) rc = api.stream_wait(lib.stream);
    if (rc != OK) tm_log(TM_LOG_ERROR, "oneDNN: status %d in a product", rc);
    TM_ASSERT(rc == OK);
}

static const char *describe(void) {
    return lib.name;
}
static bool multiplies_bf16(void) {
    return kernels.level == KERNELS_AVX512 && kernels_has_bf16();
}

/* What its other kind of product ("gemm:jit": an operand or a result whose rows are apart) copies: A in blocks of up to
 * 10,000 x 768, once for all threads; a thread alone copies longer rows, and sums them in our scratch. A result of 16
 * bits whose rows are apart is summed there in fp32 (half of them: gate's, then up's), or, where that has no room, by runs
 * of columns that fill it. */
static uint64_t copied(unsigned threads, const tm_products *p) {
    uint64_t block = BLOCK_DEPTH * 2, code = 2 * TM_MIB, sums = p->rows * p->inner * sizeof(float),
             most = SCRATCH_MIB * TM_MIB;
    uint64_t bytes = code + tm_min_u64(p->hidden, BLOCK_ROWS) * block + threads * COPY_MIB * TM_MIB;
    if (threads == 1) bytes += tm_min_u64(p->inner, BLOCK_ROWS) * block + tm_min_u64(sums, most) + COPY_MIB * TM_MIB;
    if (!p->apart) return bytes;
    return bytes + (sums > most ? most : threads > 1 ? sums / 2 : 0);
}

/* Found with 2.6.3, of which half a megabyte is the CPU's to make of it: 5.2 MiB of code and data once it is loaded and
 * asked, 7.6 with AVX-512 BF16; 100 KiB of generated code and descriptions a product; copies. Where the CPU has no bf16,
 * products of it are all the builtin product's. */
static uint64_t resident(unsigned threads, const tm_products *p) {
    uint64_t own = gemm_builtin.resident_bytes(threads, p), asked = 11 * TM_MIB / 2, used = 15 * TM_MIB / 2;
    if (p->type == TM_ELEM_F16) return own;
    if (p->type == TM_ELEM_F32) return used + 3 * TM_MIB + threads * COPIES_MIB * TM_MIB;
    return multiplies_bf16() ? used + ENTRIES * PRODUCT_KIB * 1024 + copied(threads, p) : asked + own;
}

/* Copies are blocks of malloc's aligned to pages. What is cut off in front of one is kept by the thread's cache, up to
 * 7 of each size, so that the hole which the block leaves is too small for the next: with caches that are empty its
 * arenas grow to five times what is in use (SmolLM2's shape: 15 MiB more). So the caches are filled first. */
static void fill_cache(void) {
    void *block[CACHED_SIZES][CACHED_EACH];
    for (size_t i = 0; i < CACHED_SIZES; i++)
        for (size_t j = 0; j < CACHED_EACH; j++) block[i][j] = malloc(CACHED_STEP * i + CACHED_STEP / 2);
    for (size_t i = 0; i < CACHED_SIZES; i++)
        for (size_t j = 0; j < CACHED_EACH; j++) free(block[i][j]);
}

static void start_team(unsigned threads) {
    if (!wanted()) return;
#pragma omp parallel num_threads(threads)
    fill_cache();
}

/* Intel's cores multiply pairs of bf16 (vdpbf16ps) at half the rate at which they multiply fp32: there a library of fp32
 * is faster although it is handed widened operands, and only what has no library at all is better off here. */
static int preference(tm_elem products) {
    enum { BELOW_OPENBLAS = 8 };
    if (products != TM_ELEM_BF16 || !multiplies_bf16()) return 0;
    return kernels_bf16_is_slow() ? BELOW_OPENBLAS : 30;
}

const gemm_backend gemm_onednn = {.name = "onednn",
                                  .preference = preference,
                                  .open = open_library,
                                  .run = run,
                                  .describe = describe,
                                  .resident_bytes = resident,
                                  .start_team = start_team,
                                  .close = close_library};

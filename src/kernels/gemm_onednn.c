/* oneDNN, found at run time: the product for CPUs that multiply bf16 (AVX-512 BF16, AMX). Major versions 2 and 3 differ
 * in how a primitive is described, so both ways are here; their headers are not needed, everything is reached by name
 * and passed by pointer. It runs its own OpenMP team, of our size, one product at a time.
 *
 * What it does not do (operands of two types, alpha other than 1, bf16 on a CPU without bf16 instructions) another
 * back-end does; which one that is, and which products those are, depends on the CPU and the call alone. */
#include "kernels/kernels_internal.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

/* ---- the part of oneDNN's C interface that is used; numbers are the same in 2 and 3 ---- */

enum { OK = 0, UNIMPLEMENTED = 3, CPU = 1, RUNTIME_OMP = 2, DT_BF16 = 2, DT_F32 = 3, IN_ORDER = 1 };
enum { ARG_SRC = 1, ARG_DST = 17, ARG_WEIGHTS = 33 };
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
    int (*engine_create)(void **engine, int kind, size_t index);
    int (*stream_create)(void **stream, void *engine, unsigned flags);
    int (*stream_wait)(void *stream);
    int (*attr_create)(void **attr);
    int (*attr_destroy)(void *attr);
    int (*attr_set_post_ops)(void *attr, const void *ops);
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
    void *primitive, *memory[3]; /* A, B, C */
} entry;
enum { ENTRIES = 96 };

static struct {
    void *handle, *engine, *stream;
    char name[160];
    unsigned threads, next;
    const gemm_backend *other;
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
           symbol(&api.engine_create, "dnnl_engine_create") && symbol(&api.stream_create, "dnnl_stream_create") &&
           symbol(&api.stream_wait, "dnnl_stream_wait") && symbol(&api.attr_create, "dnnl_primitive_attr_create") &&
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

static bool load(void) {
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
    for (size_t i = 0; i < TM_COUNT(names) && !lib.handle; i++) lib.handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib.handle) return false;
    if (lib.stream) return true;
    bool found = load_common() && api.version()->cpu_runtime == RUNTIME_OMP && load_version(api.version()->major);
    return found && api.engine_create(&lib.engine, CPU, 0) == OK &&
           api.stream_create(&lib.stream, lib.engine, IN_ORDER) == OK;
}

static gemm_opened open_library(unsigned threads) {
    if (!load()) return GEMM_ABSENT;
    lib.threads = threads;
    lib.other = &gemm_openblas;
    gemm_opened how = lib.other->open(threads);
    if (how == GEMM_ABSENT) how = (lib.other = &gemm_builtin)->open(threads);
    const version *v = api.version();
    snprintf(lib.name, sizeof lib.name, "onednn-%d.%d.%d-isa%x+%s", v->major, v->minor, v->patch,
             (unsigned)api.effective_isa(), lib.other->describe());
    return how;
}

static void forget(entry *e) {
    for (size_t i = 0; i < TM_COUNT(e->memory); i++)
        if (e->memory[i]) (void)api.memory_destroy(e->memory[i]);
    if (e->primitive) (void)api.primitive_destroy(e->primitive);
    *e = (entry){0};
}

static void close_library(void) { /* the library itself stays loaded */
    for (size_t i = 0; i < ENTRIES; i++) forget(&lib.entry[i]);
    lib.other->close();
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
static int attributes(float beta, void **attr) {
    void *ops = NULL;
    *attr = NULL;
    if (beta == 0.0F) return OK;
    int rc = api.attr_create(attr);
    if (rc == OK) rc = api.post_ops_create(&ops);
    if (rc == OK)
        rc = api.post_ops_append_sum_2 ? api.post_ops_append_sum_2(ops, beta)
                                       : api.post_ops_append_sum_3(ops, beta, 0, 0);
    if (rc == OK) rc = api.attr_set_post_ops(*attr, ops);
    if (ops) (void)api.post_ops_destroy(ops);
    return rc;
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

static int build(entry *e, const operand *o, float beta) {
    _Alignas(64) char room[3][DESC_BYTES];
    bool two = api.desc_init_2 != NULL;
    void *attr, *pd = NULL, *desc[3] = {two ? room[0] : NULL, two ? room[1] : NULL, two ? room[2] : NULL};
    int rc = attributes(beta, &attr);
    if (rc == OK) rc = two ? describe_2(o, attr, &pd, desc) : describe_3(o, attr, &pd, desc);
    if (rc == OK) rc = api.primitive_create(&e->primitive, pd);
    for (size_t i = 0; i < 3 && rc == OK; i++) rc = api.memory_create(&e->memory[i], desc[i], lib.engine, NULL);
    if (pd) (void)api.primitive_desc_destroy(pd);
    if (attr) (void)api.attr_destroy(attr);
    for (size_t i = 0; i < 3 && !two; i++)
        if (desc[i]) (void)api.desc_destroy_3(desc[i]);
    return rc;
}

/* Another status than "unimplemented" (lack of memory) must not lead to another product: that would change bits. */
static void prepare(entry *e, const tm_gemm_args *key) {
    forget(e);
    *e = (entry){.shape = *key, .known = true};
    bool f16 = key->a_type == TM_ELEM_F16 || key->b_type == TM_ELEM_F16 || key->c_type == TM_ELEM_F16;
    if (f16 || key->alpha != 1.0F || key->a_type != key->b_type ||
        (key->a_type == TM_ELEM_F32 && key->c_type != TM_ELEM_F32))
        return;
    const operand o[3] = {operand_of(key->m, key->k, key->lda, key->a_trans, key->a_type),
                          operand_of(key->k, key->n, key->ldb, key->b_trans, key->b_type),
                          operand_of(key->m, key->n, key->ldc, false, key->c_type)};
    int rc = build(e, o, key->beta);
    if (rc != OK && rc != UNIMPLEMENTED) tm_log(TM_LOG_ERROR, "oneDNN: status %d while a product was prepared", rc);
    TM_ASSERT(rc == OK || rc == UNIMPLEMENTED);
    if (rc == OK) return;
    entry none = {.shape = *key, .known = true};
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

static void run(const tm_gemm_args *g) {
    omp_set_num_threads((int)lib.threads); /* of the calling thread: what the library's team will be */
    entry *e = entry_of(g);
    if (!e->primitive) {
        lib.other->run(g);
        return;
    }
    void *data[3] = {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b, g->c};
    int rc = OK;
    for (size_t i = 0; i < 3 && rc == OK; i++) rc = api.memory_set(e->memory[i], data[i]);
    exec_arg args[3] = {{ARG_SRC, e->memory[0]}, {ARG_WEIGHTS, e->memory[1]}, {ARG_DST, e->memory[2]}};
    if (rc == OK) rc = api.primitive_execute(e->primitive, lib.stream, 3, args);
    if (rc == OK) rc = api.stream_wait(lib.stream);
    if (rc != OK) tm_log(TM_LOG_ERROR, "oneDNN: status %d in a product", rc);
    TM_ASSERT(rc == OK);
}

static const char *describe(void) {
    return lib.name;
}
/* Code and data of 2.6.3 29 MB, of which about half is ever touched; generated code; a copy of an operand a thread. */
static uint64_t resident(unsigned threads, tm_elem t, uint64_t rows) {
    return 40 * TM_MIB + threads * 16 * TM_MIB + lib.other->resident_bytes(threads, t, rows);
}

static int preference(tm_elem products) {
    (void)products;
    return kernels_has_bf16() ? 30 : 0;
}

const gemm_backend gemm_onednn = {.name = "onednn",
                                  .preference = preference,
                                  .open = open_library,
                                  .run = run,
                                  .describe = describe,
                                  .resident_bytes = resident,
                                  .close = close_library};

/* The queue of a device: launches, copies and angles on the operations' stream. Called on the launching thread only. */
#include "device/cuda/cuda_device.h"

#include <string.h>

static cuda_device *device_of(cuda_queue *q) {
    return (cuda_device *)q; /* its first member */
}
static CUstream stream_of(cuda_device *c) {
    return c->lane[STREAM_OPS].stream;
}
static CUdeviceptr address(const void *p) {
    return (CUdeviceptr)(uintptr_t)p;
}

static tm_status launch(cuda_queue *q, const cuda_launch *l) {
    cuda_device *c = device_of(q);
    void *args = NULL;
    memcpy(&args, &l->args, sizeof args); /* the driver reads it, though it asks for more */
    return cuda_check(c->v,
                      c->v->launch(c->function[l->kernel], l->grid[0], l->grid[1], l->grid[2], l->threads, 1, 1,
                                   l->shared_bytes, stream_of(c), &args, NULL),
                      "launching a kernel");
}

static tm_status copy(cuda_queue *q, void *to, const void *from, uint64_t bytes) {
    cuda_device *c = device_of(q);
    return cuda_check(c->v, c->v->copy_within(address(to), address(from), bytes, stream_of(c)),
                      "copying within the device");
}

static tm_status library_gemm(cuda_queue *q, const tm_gemm_args *g) {
    return cuda_products_run(device_of(q)->products, g);
}

/* ---- angles ---------------------------------------------------------------------------------------------------- */

/* A table follows from its frequencies, wherever it lies. */
static bool same_rope(const tm_rope *a, const tm_rope *b) {
    return a->head_dim == b->head_dim && a->cached == b->cached &&
           !memcmp(a->inv_freq, b->inv_freq, a->head_dim / 2 * sizeof(float));
}

static tm_status take_rope(cuda_device *c, const tm_rope *r, rope_copy *to) {
    uint64_t table = (uint64_t)r->cached * r->head_dim * sizeof(float), inv = r->head_dim / 2 * sizeof(float);
    to->of = *r;
    TM_TRY(cuda_side(c, table, &to->table));
    TM_TRY(cuda_side(c, inv, &to->inv_freq));
    if (table) TM_TRY(cuda_check(c->v, c->v->copy_in(to->table, r->table, table, stream_of(c)), "copying angles"));
    return cuda_check(c->v, c->v->copy_in(to->inv_freq, to->of.inv_freq, inv, stream_of(c)), "copying frequencies");
}

static tm_status rope(cuda_queue *q, const tm_rope *r, const float **table, const float **inv_freq) {
    cuda_device *c = device_of(q);
    uint32_t i = 0;
    while (i < c->n_rope && !same_rope(&c->rope[i].of, r)) i++;
    if (i == ROPE_TABLES) return tm_fail(TM_EUNSUPPORTED, "cuda: more than %d tables of angles", ROPE_TABLES);
    if (i == c->n_rope) {
        TM_TRY(take_rope(c, r, &c->rope[i]));
        c->n_rope++;
    }
    *table = (const float *)(uintptr_t)c->rope[i].table;
    *inv_freq = (const float *)(uintptr_t)c->rope[i].inv_freq;
    return TM_OK;
}

/* ---- what an operation counts ---------------------------------------------------------------------------------- */

/* One counter: operations follow each other on the stream, and each sets it to zero before it counts. */
static tm_status counter(cuda_queue *q, uint64_t *host, unsigned long long **device) {
    cuda_device *c = device_of(q);
    *device = (unsigned long long *)(uintptr_t)c->counter;
    if (c->nonfinite == host) return TM_OK;
    if (c->nonfinite) return tm_fail(TM_EBUG, "cuda: an operation counts into two numbers");
    c->nonfinite = host;
    return cuda_check(c->v, c->v->memory_set(c->counter, 0, sizeof(unsigned long long), stream_of(c)),
                      "setting a counter");
}

void cuda_queue_init(cuda_device *c) {
    c->q =
        (cuda_queue){.launch = launch, .copy = copy, .rope = rope, .counter = counter, .tensor_cores = c->tensor_cores};
    if (c->products) c->q.library_gemm = library_gemm;
}

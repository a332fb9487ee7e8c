/* The emulation: kernels on the host, "device" memory from malloc. */
#include "machine.h"

#include "base/base.h"
#include "emulate.h"

#include <stdlib.h>
#include <string.h>

typedef struct emulated {
    cuda_queue q;
    float inv_freq[TM_MAX_HEAD_DIM / 2], *table; /* copies, exactly sized: of the angles asked for last */
    unsigned long long bad;
    uint64_t *host;
} emulated;

static tm_status launch(cuda_queue *q, const cuda_launch *l) {
    (void)q;
    emulate_launch(emulate_kernel_of(l->kernel), l->args, l->grid, l->threads, l->shared_bytes);
    return TM_OK;
}
static tm_status copy(cuda_queue *q, void *to, const void *from, uint64_t bytes) {
    (void)q;
    memcpy(to, from, bytes);
    return TM_OK;
}
static tm_status rope(cuda_queue *q, const tm_rope *r, const float **table, const float **inv_freq) {
    emulated *e = (emulated *)q;
    size_t bytes = (size_t)r->cached * r->head_dim * sizeof(float);
    free(e->table);
    e->table = malloc(bytes);
    memcpy(e->table, r->table, bytes);
    memcpy(e->inv_freq, r->inv_freq, sizeof e->inv_freq);
    *table = e->table;
    *inv_freq = e->inv_freq;
    return TM_OK;
}
static tm_status counter(cuda_queue *q, uint64_t *host, unsigned long long **device) {
    emulated *e = (emulated *)q;
    e->host = host;
    *device = &e->bad;
    return TM_OK;
}

static emulated here = {.q = {.launch = launch, .copy = copy, .rope = rope, .counter = counter, .tensor_cores = true}};

const char *machine_open(void) {
    return NULL;
}
void machine_close(void) {
    free(here.table);
}
void *machine_alloc(size_t bytes) {
    return malloc(bytes ? bytes : 1);
}
void machine_free(void *p) {
    free(p);
}
void machine_write(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}
void machine_read(void *to, const void *from, size_t bytes) {
    if (here.host) *here.host += here.bad;
    here.host = NULL;
    here.bad = 0;
    memcpy(to, from, bytes);
}
void machine_pass(int pass) {
    static const uint32_t blocks[] = {0, 1, 3}; /* as many as there is work for, or few that stride over it */
    emulate_order((emulate_order_of)pass);
    here.q.most_blocks = blocks[pass];
}
cuda_queue *machine_queue(void) {
    return &here.q;
}

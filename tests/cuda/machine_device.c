/* A device: the module's own code on the real driver, rows called from the test's thread. */
#include "machine.h"

#include "device/cuda/cuda_device.h"

#include <stdio.h>
#include <string.h>

enum { ARENA_MIB = 512, ALIGNMENT = 256 };

static struct tm_device device = {.caps = {.name = "cuda", .traits = {.own_processors = true, .alignment = 4096}}};
static uint64_t used;

static cuda_device *own(void) {
    return device.own;
}

const char *machine_open(void) {
    const cuda_driver *v;
    const char *why = NULL;
    tm_device_opts opts = {.name = "cuda:0", .arena_bytes = ARENA_MIB * TM_MIB};
    if (cuda_driver_load(&v) != TM_OK) return tm_error_get()->text;
    const cuda_lt *lt = cuda_lt_load(&why);
    if (!lt) fprintf(stderr, "products by our own kernel: %s\n", why);
    if (cuda_open(&device, &opts, v, lt, NULL) != TM_OK) return tm_error_get()->text;
    (void)v->context_use(own()->context);
    return NULL;
}
void machine_close(void) {
    cuda_close(&device);
}

void *machine_alloc(size_t bytes) {
    void *p = device.arena + used;
    used += tm_round_up(bytes, ALIGNMENT) + ALIGNMENT;
    assert_true(used <= device.caps.arena_bytes);
    return p;
}
void machine_free(void *p) {
    (void)p; /* all at once, with the pass */
}

static tm_status nothing(void *ctx) {
    (void)ctx;
    return TM_OK;
}
static void must(tm_event *e, tm_status rc) {
    if (rc == TM_OK) cuda_wait(&device, e);
    if (rc != TM_OK || e->status != TM_OK) fail_msg("%s", tm_error_get()->text);
}
static void move(tm_device_way way, void *host, const void *at, size_t bytes) {
    tm_event e = {0};
    tm_device_transfer t = {way, host, (uint64_t)((const char *)at - device.arena), bytes};
    if (bytes) must(&e, cuda_submit_copy(&device, &t, &e));
}
/* What was launched from this thread is on the operations' stream: an operation behind it is complete after it. */
static void drain(void) {
    cuda_device *c = own();
    tm_event e = {0};
    uint64_t *nonfinite = c->nonfinite;
    if (nonfinite) assert_int_equal(c->v->copy_out(c->counted, c->counter, 8, c->lane[STREAM_OPS].stream), 0);
    must(&e, cuda_submit_op(&device, &(tm_device_op){.fn = nothing}, &e));
    if (nonfinite) *nonfinite += *c->counted;
}

void machine_write(void *to, const void *from, size_t bytes) {
    void *host = NULL;
    memcpy(&host, &from, sizeof host);
    drain();
    move(TM_DEVICE_IN, host, to, bytes);
}
void machine_read(void *to, const void *from, size_t bytes) {
    drain();
    move(TM_DEVICE_OUT, to, from, bytes);
}
void machine_pass(int pass) {
    (void)pass;
    used = 0;
}
cuda_queue *machine_queue(void) {
    return &own()->q;
}

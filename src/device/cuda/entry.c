/* What the program finds in libtidemill_cuda.so. */
#include "device/cuda/cuda_device.h"
#include "device/cuda/host.h"

static const cuda_driver *driver;

static tm_status start(const device_host *host) {
    cuda_host_set(host);
    return cuda_driver_load(&driver);
}

static tm_status open(tm_device *d, const tm_device_opts *opts) {
    const char *why = NULL;
    const cuda_lt *lt = cuda_lt_load(&why);
    if (!lt) tm_log(TM_LOG_WARN, "cuda: %s: matrix products run on our own kernel, which is slow", why);
    return cuda_open(d, opts, driver, lt, opts->peers ? cuda_nccl_load(&why) : NULL);
}

static tm_status describe(const char *name, char *out, size_t cap) {
    const char *why = NULL;
    return cuda_describe(driver, cuda_lt_load(&why), name, out, cap);
}

static tm_status count(unsigned *n) {
    return cuda_count(driver, n);
}

static tm_status look(unsigned i, tm_device_info *out) {
    return cuda_look(driver, i, out);
}

static tm_status peers_id(uint8_t id[TM_DEVICE_ID_BYTES]) {
    const char *why = NULL;
    const cuda_nccl *nccl = cuda_nccl_load(&why);
    return nccl ? cuda_peers_id(nccl, id) : tm_fail(TM_EUNSUPPORTED, "cuda: %s", why);
}

static const device_ops ops = {.open = open,
                               .close = cuda_close,
                               .copy = cuda_submit_copy,
                               .submit = cuda_submit_op,
                               .query = cuda_query,
                               .wait = cuda_wait,
                               .pin = cuda_pin,
                               .unpin = cuda_unpin,
                               .stats = cuda_stats,
                               .count = count,
                               .look = look,
                               .describe = describe,
                               .choices = cuda_choices,
                               .take_choices = cuda_take_choices,
                               .peers_id = peers_id,
                               .exchange = cuda_exchange};

__attribute__((visibility("default"))) const device_module tm_device_module = {
    .version = DEVICE_MODULE_VERSION, .bytes = DEVICE_MODULE_BYTES, .ops = &ops, .start = start};

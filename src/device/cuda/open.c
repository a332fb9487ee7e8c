/* A device's life: found, its memory reserved whole, kernels loaded; and given back in the opposite order. */
#include "device/cuda/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, OLDEST_CAPABILITY = 75, TENSOR_CAPABILITY = 80, LARGE_SHARED = 80 << 10 };

#define NAME(name, args, threads) "tidemill_" #name,
static const char *const kernel_names[] = {CUDA_KERNELS(NAME)};

/* ---- which one ------------------------------------------------------------------------------------------------- */

/* "cuda", "cuda:1" */
static tm_status number_of(const cuda_driver *v, const char *name, int *out) {
    const char *colon = strchr(name, ':');
    char *end = NULL;
    int n = 0;
    long i = colon ? strtol(colon + 1, &end, 10) : 0;
    TM_TRY(cuda_check(v, v->device_count(&n), "counting devices"));
    if (colon && (end == colon + 1 || *end || i < 0))
        return tm_fail(TM_EINPUT, "there is no device \"%s\"; use \"cuda:0\"", name);
    if (i >= n) return tm_fail(TM_EINPUT, "there is no device \"%s\": this machine has %d of its kind", name, n);
    *out = (int)i;
    return TM_OK;
}

static int capability(const cuda_driver *v, CUdevice device) {
    int major = 0, minor = 0;
    (void)v->device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    (void)v->device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return major * 10 + minor;
}

static tm_status about(const cuda_driver *v, CUdevice device, tm_device_info *out) {
    int cc = capability(v, device);
    char name[64] = "?";
    size_t bytes = 0;
    (void)v->device_name(name, sizeof name, device);
    TM_TRY(cuda_check(v, v->device_memory(&bytes, device), "asking for a device's memory"));
    snprintf(out->about, sizeof out->about, "%.60s, compute capability %d.%d", name, cc / 10, cc % 10);
    out->memory_bytes = bytes;
    if (cc < OLDEST_CAPABILITY) return tm_fail(TM_EUNSUPPORTED, "cuda: %s: at least 7.5 is needed", out->about);
    return TM_OK;
}

tm_status cuda_count(const cuda_driver *v, unsigned *n) {
    int all = 0;
    TM_TRY(cuda_check(v, v->device_count(&all), "counting devices"));
    *n = (unsigned)all;
    return TM_OK;
}

tm_status cuda_look(const cuda_driver *v, unsigned i, tm_device_info *out) {
    CUdevice device;
    CUcontext context, before = NULL;
    size_t free_bytes = 0, all = 0;
    int n;
    char name[sizeof out->name];
    snprintf(name, sizeof name, "cuda:%u", i);
    TM_TRY(number_of(v, name, &n));
    memcpy(out->name, name, sizeof name);
    TM_TRY(cuda_check(v, v->device_get(&device, n), "looking for a device"));
    TM_TRY(about(v, device, out));
    TM_TRY(cuda_check(v, v->context_retain(&context, device), "making a context"));
    (void)v->context_now(&before); /* this thread may be at work on a device */
    CUresult rc = v->context_use(context);
    if (rc == CUDA_SUCCESS) rc = v->memory_info(&free_bytes, &all);
    (void)v->context_use(before);
    (void)v->context_release(device);
    out->free_bytes = free_bytes;
    return cuda_check(v, rc, "asking for free memory");
}

/* What bits depend on: our kernels are their source's, made by that toolkit, but for logarithms and tensor cores;
 * products are the library's, which chooses by its version and the device. */
tm_status cuda_describe(const cuda_driver *v, const cuda_lt *lt, const char *name, char *out, size_t cap) {
    tm_device_info info = {.memory_bytes = 0};
    char products[48] = "own products";
    CUdevice device;
    int n;
    TM_TRY(number_of(v, name, &n));
    TM_TRY(cuda_check(v, v->device_get(&device, n), "looking for a device"));
    TM_TRY(about(v, device, &info));
    if (lt) snprintf(products, sizeof products, "cuBLASLt %zu", lt->version());
    snprintf(out, cap, "%s, kernels of CUDA %s, %s", info.about, cuda_toolkit, products);
    return TM_OK;
}

static tm_status enter(cuda_device *c, const char *name) {
    tm_device_info info = {.memory_bytes = 0};
    CUcontext context;
    int n;
    TM_TRY(number_of(c->v, name, &n));
    TM_TRY(cuda_check(c->v, c->v->device_get(&c->device, n), "looking for a device"));
    TM_TRY(about(c->v, c->device, &info));
    c->tensor_cores = capability(c->v, c->device) >= TENSOR_CAPABILITY;
    (void)c->v->device_bus(c->bus, sizeof c->bus, c->device);
    (void)c->v->context_flags(c->device, CU_CTX_SCHED_BLOCKING_SYNC); /* in use already: as it is */
    TM_TRY(cuda_check(c->v, c->v->context_retain(&context, c->device), "making a context"));
    c->context = context;
    return cuda_check(c->v, c->v->context_use(c->context), "entering the context");
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static double gib(uint64_t bytes) {
    return (double)bytes / (double)TM_GIB;
}

static tm_status no_room(cuda_device *c, const char *name, uint64_t bytes) {
    char holders[512];
    size_t free_bytes = 0, all = 0;
    (void)c->v->memory_info(&free_bytes, &all);
    cuda_holders(c->bus, holders, sizeof holders);
    return tm_fail(TM_ENOMEM,
                   "cuda: %s cannot give %.2f GiB (%llu bytes): %.2f of its %.2f GiB are free%s%s; lower "
                   "memory.device_budget, or end what holds it",
                   name, gib(bytes), (unsigned long long)bytes, gib(free_bytes), gib(all),
                   holders[0] ? ", held by " : "", holders);
}

static tm_status reserve(cuda_device *c, const char *name, uint64_t bytes, CUdeviceptr *out) {
    CUresult rc = c->v->memory_alloc(out, bytes);
    if (rc == CUDA_SUCCESS) return TM_OK;
    *out = 0;
    return rc == CUDA_ERROR_OUT_OF_MEMORY ? no_room(c, name, bytes) : cuda_check(c->v, rc, "reserving memory");
}

tm_status cuda_side(cuda_device *c, uint64_t bytes, CUdeviceptr *out) {
    uint64_t all = (uint64_t)CUDA_SIDE_MIB * TM_MIB, need = tm_round_up(bytes, ALIGNMENT);
    if (need > all - c->side_used)
        return tm_fail(TM_EUNSUPPORTED,
                       "cuda: %llu bytes beside the arena are more than the %d MiB that are kept for it",
                       (unsigned long long)bytes, CUDA_SIDE_MIB);
    *out = c->side + c->side_used;
    c->side_used += need;
    return TM_OK;
}

static tm_status open_arena(cuda_device *c, const tm_device_opts *opts) {
    uint64_t align = c->d->caps.traits.alignment, bytes = opts->arena_bytes / align * align;
    if (bytes == 0)
        return tm_fail(TM_EINPUT, "device %s: an arena of no bytes; raise memory.device_budget", opts->name);
    TM_TRY(reserve(c, opts->name, bytes, &c->arena));
    c->d->arena = (char *)(uintptr_t)c->arena;
    c->d->caps.arena_bytes = bytes;
    return TM_OK;
}

/* Numbers that the device leaves for completions: written by copies that nobody waits for, so registered. */
static tm_status open_counters(cuda_device *c) {
    TM_TRY(cuda_side(c, sizeof *c->counted, &c->counter));
    unsigned long long *counted = tm_calloc(TM_DEVICE_DEPTH, sizeof *counted);
    if (!counted) return tm_nomem(TM_DEVICE_DEPTH * sizeof *counted);
    tm_status rc = cuda_pin(c->d, counted, TM_DEVICE_DEPTH * sizeof *counted);
    if (rc == TM_OK)
        c->counted = counted;
    else
        tm_free(counted);
    return rc;
}

/* Under the lock. Its entry (NULL: a free one), NULL: there is none. */
static void **pinned(cuda_device *c, const void *host) {
    for (int i = 0; i < PINNED; i++)
        if (c->pinned[i] == host) return &c->pinned[i];
    return NULL;
}

tm_status cuda_pin(tm_device *d, void *host, uint64_t bytes) {
    cuda_device *c = d->own;
    TM_TRY(cuda_check(c->v, c->v->context_use(c->context), "entering the context"));
    pthread_mutex_lock(&c->lock);
    void **entry = pinned(c, NULL);
    CUresult rc = entry ? c->v->host_register(host, bytes, CU_MEMHOSTREGISTER_PORTABLE) : CUDA_SUCCESS;
    if (entry && rc == CUDA_SUCCESS) *entry = host;
    pthread_mutex_unlock(&c->lock);
    if (!entry) return tm_fail(TM_EBUG, "cuda: more than %d stretches of host memory", PINNED);
    if (rc == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) return TM_OK; /* another's, who gives it back */
    return cuda_check(c->v, rc, "registering host memory");
}

void cuda_unpin(tm_device *d, void *host) {
    cuda_device *c = d->own;
    (void)c->v->context_use(c->context);
    pthread_mutex_lock(&c->lock);
    void **entry = pinned(c, host);
    if (entry) {
        (void)c->v->host_unregister(host);
        *entry = NULL;
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */

/* A driver takes code of its own major version and older ones, and of those what is for its device. */
static tm_status load_module(cuda_device *c) {
    CUmodule module;
    CUresult found = c->v->module_load(&module, cuda_image);
    tm_status rc = cuda_check(c->v, found, "loading the kernels");
    if (rc == TM_OK) {
        c->module = module;
        return TM_OK;
    }
    if (rc == TM_ENOMEM) return rc; /* others hold the device's memory: no driver is to blame */
    tm_error why = *tm_error_get();
    tm_error_clear();
    int version = 0, cc = capability(c->v, c->device);
    (void)c->v->driver_version(&version);
    if (found == CUDA_ERROR_NO_BINARY_FOR_GPU || found == CUDA_ERROR_INVALID_PTX)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s; the device has compute capability %d.%d, the kernels were built for %s: build with "
                       "-DTIDEMILL_CUDA_ARCHITECTURES=%d",
                       why.text, cc / 10, cc % 10, cuda_architectures, cc);
    return tm_fail(rc,
                   "%s; the driver is for CUDA up to %d.%d, the kernels were built with %s: install a newer driver, or "
                   "build with an older toolkit",
                   why.text, version / 1000, version % 1000 / 10, cuda_toolkit);
}

static tm_status load_kernels(cuda_device *c) {
    TM_TRY(load_module(c));
    for (int i = 0; i < CUDA_KERNEL_COUNT; i++) {
        TM_TRY(cuda_check(c->v, c->v->module_function(&c->function[i], c->module, kernel_names[i]), kernel_names[i]));
        bool large = i >= CUDA_K_attention_forward_mma_64 && i <= CUDA_K_attention_queries_mma_128;
        if (!large || !c->tensor_cores) continue;
        TM_TRY(cuda_check(
            c->v, c->v->function_set(c->function[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, LARGE_SHARED),
            "taking more shared memory"));
    }
    return TM_OK;
}

static tm_status open_products(cuda_device *c, const cuda_lt *lt) {
    CUdeviceptr workspace = 0;
    if (!lt) return TM_OK;
    TM_TRY(cuda_side(c, CUDA_LT_WORKSPACE, &workspace));
    return cuda_products_open(&c->products, lt, (void *)(uintptr_t)workspace, c->lane[STREAM_OPS].stream);
}

/* ---- choices --------------------------------------------------------------------------------------------------- */

_Static_assert(CUDA_LT_PLANS *CUDA_LT_LINE <= TM_DEVICE_CHOICES_BYTES, "all choices have room");

tm_status cuda_choices(tm_device *d, char *out, size_t cap) {
    cuda_device *c = d->own;
    if (cap) out[0] = 0;
    pthread_mutex_lock(&c->lock);
    cuda_lanes_idle(c); /* who launches adds to them */
    if (c->products) (void)cuda_products_record(c->products, out, cap);
    pthread_mutex_unlock(&c->lock);
    return TM_OK;
}

tm_status cuda_take_choices(tm_device *d, const char *choices) {
    cuda_device *c = d->own;
    uint32_t lines;
    if (!*choices) return TM_OK;
    if (!c->products) return tm_fail(TM_EINPUT, "cuda: a list of cuBLASLt's algorithms, and no cuBLASLt here");
    pthread_mutex_lock(&c->lock);
    cuda_lanes_idle(c);
    tm_status rc = cuda_products_take(c->products, choices, &lines);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* ---- open and close -------------------------------------------------------------------------------------------- */

/* What takes memory of its own comes before the arena, so that nothing can lack any later. */
static tm_status open_all(cuda_device *c, const tm_device_opts *opts, const cuda_lt *lt, const cuda_nccl *nccl) {
    TM_TRY(enter(c, opts->name));
    TM_TRY(cuda_lanes_open(c));
    TM_TRY(load_kernels(c));
    TM_TRY(reserve(c, opts->name, (uint64_t)CUDA_SIDE_MIB * TM_MIB, &c->side));
    TM_TRY(open_counters(c));
    TM_TRY(open_products(c, lt));
    if (opts->peers) TM_TRY(cuda_peers_open(c, nccl, opts->peers));
    TM_TRY(open_arena(c, opts));
    cuda_queue_init(c);
    return cuda_lanes_start(c);
}

tm_status cuda_open(tm_device *d, const tm_device_opts *opts, const cuda_driver *v, const cuda_lt *lt,
                    const cuda_nccl *nccl) {
    cuda_device *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);
    d->own = c;
    c->d = d;
    c->v = v;
    d->kernels = &cuda_table;
    return open_all(c, opts, lt, nccl);
}

void cuda_close(tm_device *d) {
    cuda_device *c = d->own;
    CUcontext before = NULL;
    if (!c) return;
    (void)c->v->context_now(&before);
    if (c->context) (void)c->v->context_use(c->context);
    cuda_peers_close(c);
    cuda_lanes_close(c);
    cuda_products_close(c->products);
    if (c->counted) cuda_unpin(d, c->counted);
    tm_free(c->counted);
    if (c->arena) (void)c->v->memory_free(c->arena);
    if (c->side) (void)c->v->memory_free(c->side);
    if (c->module) (void)c->v->module_unload(c->module);
    if (c->context) {
        (void)c->v->context_use(before != c->context ? before : NULL);
        (void)c->v->context_release(c->device);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->done);
    tm_free(c);
}

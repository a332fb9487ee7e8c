/* Finding the driver, and the management library for messages. */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { OLDEST_DRIVER = 12000 }; /* CUDA 12: what the kernels' code is made for */

/* ---- the driver ------------------------------------------------------------------------------------------------ */

static tm_status resolve(void *library, cuda_driver *v) {
    const char *missing = NULL;
#define RESOLVE(name, symbol, params)                                                                                  \
    {                                                                                                                  \
        void *p = dlsym(library, #symbol);                                                                             \
        if (!p) missing = #symbol;                                                                                     \
        memcpy(&v->name, &p, sizeof p);                                                                                \
    }
    CUDA_DRIVER(RESOLVE)
#undef RESOLVE
    if (missing)
        return tm_fail(TM_EUNSUPPORTED, "cuda: the driver is too old (libcuda.so.1 has no %s); install a newer one",
                       missing);
    return TM_OK;
}

static tm_status begin(const cuda_driver *v) {
    int version = 0, n = 0;
    CUresult rc = v->init(0);
    const char *text = "unknown error";
    (void)v->error_text(rc, &text);
    if (rc != CUDA_SUCCESS)
        return tm_fail(TM_EUNSUPPORTED, "cuda: the driver finds no device to use: %s (%u); see tidemill doctor", text,
                       (unsigned)rc);
    if (v->driver_version(&version) != CUDA_SUCCESS || version < OLDEST_DRIVER)
        return tm_fail(TM_EUNSUPPORTED, "cuda: the driver is of CUDA %d.%d; at least %d.0 is needed", version / 1000,
                       version % 1000 / 10, OLDEST_DRIVER / 1000);
    if (v->device_count(&n) != CUDA_SUCCESS || n == 0)
        return tm_fail(TM_EUNSUPPORTED, "cuda: there is a driver, but no device; is CUDA_VISIBLE_DEVICES empty?");
    return TM_OK;
}

tm_status cuda_driver_load(const cuda_driver **out) {
    static cuda_driver table;
    static bool loaded;
    if (!loaded) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return tm_fail(
                TM_EUNSUPPORTED,
                "cuda: no NVIDIA driver on this machine (libcuda.so.1 is not found); install it (tidemill doctor "
                "says what is missing), or use \"cpu\"");
        TM_TRY(resolve(library, &table));
        TM_TRY(begin(&table));
        loaded = true;
    }
    *out = &table;
    return TM_OK;
}

tm_status cuda_check(const cuda_driver *v, CUresult rc, const char *what) {
    const char *name = "?", *text = "unknown error";
    if (rc == CUDA_SUCCESS) return TM_OK;
    (void)v->error_name(rc, &name);
    (void)v->error_text(rc, &text);
    return tm_fail(rc == CUDA_ERROR_OUT_OF_MEMORY ? TM_ENOMEM : TM_EIO, "cuda: %s failed: %s (%s)", what, text, name);
}

/* ---- who holds memory (libnvidia-ml, which comes with the driver) ----------------------------------------------- */

typedef struct nvml_process {
    unsigned pid;
    unsigned long long bytes; /* all ones: not known */
    unsigned gpu_instance, compute_instance;
} nvml_process;
typedef struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus)(const char *id, void **device);
    int (*processes)(void *device, unsigned *n, nvml_process *out);
} nvml;

static bool nvml_resolve(void *library, nvml *n) {
    void *p[] = {dlsym(library, "nvmlInit_v2"), dlsym(library, "nvmlShutdown"),
                 dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"),
                 dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3")};
    _Static_assert(sizeof p == sizeof *n, "a pointer a function");
    memcpy(n, p, sizeof p);
    return n->init && n->shutdown && n->by_bus && n->processes;
}

static void process_name(unsigned pid, char *out, size_t cap) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(out, (int)cap, f)) snprintf(out, cap, "process %u", pid);
    out[strcspn(out, "\n")] = 0;
    if (f) (void)fclose(f); /* was only read */
}

static void list(const nvml *n, void *device, char *out, size_t cap) {
    nvml_process p[32];
    unsigned count = TM_COUNT(p);
    size_t at = 0;
    if (n->processes(device, &count, p) != 0) return;
    for (unsigned i = 0; i < count && i < TM_COUNT(p) && at < cap; i++) {
        char name[64], size[32] = "an unknown amount";
        process_name(p[i].pid, name, sizeof name);
        if (p[i].bytes != ~0ULL) (void)snprintf(size, sizeof size, "%.2f GiB", (double)p[i].bytes / (double)TM_GIB);
        int k = snprintf(out + at, cap - at, "%s%s (%u) %s", at ? ", " : "", name, p[i].pid, size);
        at += k > 0 ? (size_t)k : 0;
    }
}

void cuda_holders(const char *bus, char *out, size_t cap) {
    nvml n;
    void *device, *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    out[0] = 0;
    if (!library) return;
    if (nvml_resolve(library, &n) && n.init() == 0) {
        if (n.by_bus(bus, &device) == 0) list(&n, device, out, cap);
        (void)n.shutdown();
    }
    (void)dlclose(library);
}

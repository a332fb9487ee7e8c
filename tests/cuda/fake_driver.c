#include "fake_driver.h"

#include "device/cuda/args.h"
#include "emulate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH = 1024, BLOCKS = 64, FAILED = 700, DEVICES = 16 };

const unsigned char cuda_image[1] = {0};
const char cuda_toolkit[] = "0.0", cuda_architectures[] = "80-virtual, 90";

/* ---- state ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static fake_options now;
static unsigned live, launches, calls, fail_n, fail_any_n;
static char fail_call[32];
static CUresult fail_rc;
static bool broken, held;
static struct {
    void *p;
    uint64_t bytes;
    int device;
} blocks[BLOCKS];
static char contexts[DEVICES];
static _Thread_local int current = -1; /* the device whose context this thread is in */
static const char *trace;              /* a file that has a line for each stretch of memory taken: "DEVICE BYTES" */
static void *registered[BLOCKS];

void fake_reset(const fake_options *o) {
    now = (fake_options){.memory_bytes = TM_GIB, .capability = 80};
    if (o) now = *o;
    if (!now.memory_bytes) now.memory_bytes = TM_GIB;
    if (!now.capability) now.capability = 80;
    if (!now.devices) now.devices = 1;
    live = launches = calls = fail_n = fail_any_n = 0;
    broken = held = false;
}
void fake_fail(const char *call, unsigned n, CUresult rc) {
    snprintf(fail_call, sizeof fail_call, "%s", call ? call : "");
    fail_n = call ? n : 0;
    fail_rc = rc;
}
void fake_fail_any(unsigned n, CUresult rc) {
    fail_any_n = n;
    fail_rc = rc;
}
void fake_hold(bool hold) {
    pthread_mutex_lock(&lock);
    held = hold;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}
unsigned fake_live(void) {
    return live;
}
unsigned fake_launches(void) {
    return launches;
}
unsigned fake_calls(void) {
    return calls;
}

/* Under the lock: whether this call is to fail. */
static CUresult hit(const char *call) {
    calls++;
    if (fail_any_n && --fail_any_n == 0) return fail_rc;
    if (fail_n && !strcmp(call, fail_call) && --fail_n == 0) return fail_rc;
    return CUDA_SUCCESS;
}
static CUresult enter(const char *call) {
    pthread_mutex_lock(&lock);
    CUresult rc = hit(call);
    pthread_mutex_unlock(&lock);
    return rc;
}
static CUresult count(const char *call, int by) {
    pthread_mutex_lock(&lock);
    CUresult rc = by > 0 ? hit(call) : CUDA_SUCCESS;
    if (rc == CUDA_SUCCESS) live += (unsigned)by;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- streams: a thread each ------------------------------------------------------------------------------------ */

struct CUevent_st {
    uint64_t wanted, reached; /* counts of records */
};
typedef struct work {
    enum { WORK_COPY, WORK_SET, WORK_KERNEL, WORK_CALL, WORK_EVENT, WORK_QUIT } what;
    void *to;
    const void *from;
    size_t bytes;
    unsigned kernel;
    uint32_t grid[3], threads, shared_bytes;
    void (*fn)(const void *payload);
    _Alignas(16) char args[FAKE_PAYLOAD];
    CUevent event;
    uint64_t mark;
} work;
struct CUstream_st {
    pthread_t thread;
    work ring[DEPTH];
    unsigned head, n;
};

static void carry_out(work *w) {
    struct timespec t = {0, (long)now.slow_us * 1000};
    if (now.slow_us) (void)nanosleep(&t, NULL);
    if (w->what == WORK_COPY) memmove(w->to, w->from, w->bytes);
    if (w->what == WORK_SET) memset(w->to, 0, w->bytes);
    if (w->what == WORK_CALL) w->fn(w->args);
    if (w->what == WORK_KERNEL) {
        static pthread_mutex_t emulation = PTHREAD_MUTEX_INITIALIZER; /* one at a time, of whatever stream */
        pthread_mutex_lock(&emulation);
        emulate_launch(emulate_kernel_of(w->kernel), w->args, w->grid, w->threads, w->shared_bytes);
        pthread_mutex_unlock(&emulation);
    }
}

static void *stream_main(void *arg) {
    CUstream s = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (s->n == 0 || held) pthread_cond_wait(&change, &lock);
        work *w = &s->ring[s->head];
        if (w->what == WORK_QUIT) break;
        pthread_mutex_unlock(&lock);
        carry_out(w);
        pthread_mutex_lock(&lock);
        if (w->what == WORK_EVENT) w->event->reached = w->mark;
        s->head = (s->head + 1) % DEPTH;
        s->n--;
        pthread_cond_broadcast(&change);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static CUresult push(const char *call, CUstream s, const work *w) {
    pthread_mutex_lock(&lock);
    CUresult rc = hit(call);
    if (rc == CUDA_SUCCESS) {
        while (s->n == DEPTH) pthread_cond_wait(&change, &lock);
        work *to = &s->ring[(s->head + s->n++) % DEPTH];
        *to = *w;
        if (w->what == WORK_EVENT) to->mark = ++w->event->wanted;
        pthread_cond_broadcast(&change);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

CUresult fake_push(CUstream s, void (*fn)(const void *), const void *payload, size_t bytes) {
    work w = {.what = WORK_CALL, .fn = fn};
    memcpy(w.args, payload, bytes);
    return push("library", s, &w);
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static CUresult init(unsigned flags) {
    (void)flags;
    return CUDA_SUCCESS;
}
static CUresult driver_version(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
static CUresult error_name(CUresult e, const char **name) {
    *name = e == FAILED ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OF_THE_TEST";
    return CUDA_SUCCESS;
}
static CUresult error_text(CUresult e, const char **text) {
    *text = e == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "as the test wants";
    return CUDA_SUCCESS;
}
static CUresult device_count(int *n) {
    *n = now.devices;
    return enter("device_count");
}
static CUresult device_get(CUdevice *device, int i) {
    *device = i;
    return enter("device_get");
}
static CUresult device_name(char *name, int cap, CUdevice device) {
    (void)device;
    snprintf(name, (size_t)cap, "fake device");
    return CUDA_SUCCESS;
}
static CUresult device_bus(char *id, int cap, CUdevice device) {
    (void)device;
    snprintf(id, (size_t)cap, "0000:00:00.0");
    return CUDA_SUCCESS;
}
static CUresult device_memory(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = now.memory_bytes;
    return enter("device_memory");
}
static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    int capability = now.old_device && device == now.old_device ? 70 : now.capability;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? capability / 10 : capability % 10;
    return CUDA_SUCCESS;
}
static CUresult context_flags(CUdevice device, unsigned flags) {
    (void)device, (void)flags;
    return CUDA_SUCCESS;
}
static CUresult context_retain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(void *)&contexts[device];
    return count("context_retain", 1);
}
static CUresult context_release(CUdevice device) {
    (void)device;
    return count("", -1);
}
static CUresult context_use(CUcontext context) {
    current = context ? (int)((char *)(void *)context - contexts) : -1;
    return CUDA_SUCCESS;
}
static CUresult context_now(CUcontext *context) {
    *context = current < 0 ? NULL : (CUcontext)(void *)&contexts[current];
    return CUDA_SUCCESS;
}

static uint64_t allocated(void) {
    uint64_t sum = now.used_bytes;
    for (int i = 0; i < BLOCKS; i++) sum += blocks[i].device == current ? blocks[i].bytes : 0;
    return sum;
}
static void note(size_t bytes) {
    FILE *f = trace ? fopen(trace, "a") : NULL; /* other ranks add to it as well */
    if (f) fprintf(f, "%d %zu\n", current, bytes), fclose(f);
}
static CUresult memory_info(size_t *free_bytes, size_t *total) {
    *free_bytes = now.memory_bytes - allocated();
    *total = now.memory_bytes;
    return CUDA_SUCCESS;
}
static CUresult memory_alloc(CUdeviceptr *p, size_t bytes) {
    int i = 0;
    if (current < 0) return FAILED;
    if (allocated() + bytes > now.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = count("memory_alloc", 1);
    if (rc != CUDA_SUCCESS) return rc;
    while (blocks[i].bytes) i++;
    blocks[i].bytes = bytes;
    blocks[i].device = current;
    note(bytes);
    blocks[i].p = aligned_alloc(4096, tm_round_up(bytes, 4096));
    *p = (CUdeviceptr)(uintptr_t)blocks[i].p;
    return CUDA_SUCCESS;
}
static CUresult memory_free(CUdeviceptr p) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].bytes && (CUdeviceptr)(uintptr_t)blocks[i].p == p) {
            free(blocks[i].p);
            blocks[i].bytes = 0;
        }
    return count("", -1);
}
static CUresult host_register(void *p, size_t bytes, unsigned flags) {
    (void)bytes, (void)flags;
    int i = 0;
    for (int k = 0; k < BLOCKS; k++)
        if (registered[k] == p) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    CUresult rc = count("host_register", 1);
    if (rc != CUDA_SUCCESS) return rc;
    while (registered[i]) i++;
    registered[i] = p;
    return CUDA_SUCCESS;
}
static CUresult host_unregister(void *p) {
    for (int i = 0; i < BLOCKS; i++) {
        if (registered[i] != p) continue;
        registered[i] = NULL;
        return count("", -1);
    }
    return FAILED;
}
static void *at(CUdeviceptr p) {
    return (void *)(uintptr_t)p;
}
static CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream s) {
    return push("copy_in", s, &(work){.what = WORK_COPY, .to = at(to), .from = from, .bytes = bytes});
}
static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream s) {
    return push("copy_out", s, &(work){.what = WORK_COPY, .to = to, .from = at(from), .bytes = bytes});
}
static CUresult copy_within(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    return push("copy_within", s, &(work){.what = WORK_COPY, .to = at(to), .from = at(from), .bytes = bytes});
}
static CUresult memory_set(CUdeviceptr to, unsigned char value, size_t bytes, CUstream s) {
    (void)value;
    return push("memory_set", s, &(work){.what = WORK_SET, .to = at(to), .bytes = bytes});
}
static CUresult stream_create(CUstream *stream, unsigned flags) {
    (void)flags;
    CUresult rc = count("stream_create", 1);
    if (rc != CUDA_SUCCESS) return rc;
    *stream = calloc(1, sizeof **stream);
    return pthread_create(&(*stream)->thread, NULL, stream_main, *stream) ? FAILED : CUDA_SUCCESS;
}
static CUresult stream_destroy(CUstream s) {
    (void)push("", s, &(work){.what = WORK_QUIT});
    pthread_join(s->thread, NULL);
    free(s);
    return count("", -1);
}
static CUresult stream_wait(CUstream s) {
    pthread_mutex_lock(&lock);
    CUresult rc = hit("stream_wait");
    while (s->n > 0) pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
    return rc;
}
static CUresult event_create(CUevent *event, unsigned flags) {
    (void)flags;
    CUresult rc = count("event_create", 1);
    if (rc == CUDA_SUCCESS) *event = calloc(1, sizeof **event);
    return rc;
}
static CUresult event_destroy(CUevent event) {
    free(event);
    return count("", -1);
}
static CUresult event_record(CUevent event, CUstream s) {
    return push("event_record", s, &(work){.what = WORK_EVENT, .event = event});
}
static CUresult event_wait(CUevent event) {
    pthread_mutex_lock(&lock);
    CUresult rc = hit("event_wait");
    if (rc != CUDA_SUCCESS) broken = true;
    while (event->reached < event->wanted) pthread_cond_wait(&change, &lock);
    if (broken) rc = FAILED;
    pthread_mutex_unlock(&lock);
    return rc;
}
static CUresult module_load(CUmodule *module, const void *image) {
    (void)image;
    static char any;
    *module = (CUmodule)(void *)&any;
    return count("module_load", 1);
}
static CUresult module_unload(CUmodule module) {
    (void)module;
    return count("", -1);
}

#define NAME(name, args, threads) "tidemill_" #name,
#define SIZE(name, args, threads) sizeof(args),
static const char *const names[] = {CUDA_KERNELS(NAME)};
static const size_t sizes[] = {CUDA_KERNELS(SIZE)};

static CUresult module_function(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    for (uintptr_t i = 0; i < CUDA_KERNEL_COUNT; i++)
        if (!strcmp(names[i], name)) *function = (CUfunction)(i + 1);
    return enter("module_function");
}
static CUresult function_set(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return enter("function_set");
}
static CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                       unsigned shared_bytes, CUstream s, void **params, void **extra) {
    work w = {.what = WORK_KERNEL, .kernel = (unsigned)((uintptr_t)function - 1), .grid = {x, y, z}, .threads = tx};
    (void)ty, (void)tz, (void)extra;
    w.shared_bytes = shared_bytes;
    memcpy(w.args, params[0], sizes[w.kernel]);
    launches++;
    return push("launch", s, &w);
}

/* Under the driver's own names, for programs that load a driver: tests/cuda/CMakeLists.txt makes a library of this. */
#ifdef FAKE_LIBRARY
#define EXPORT(name, symbol, params)                                                                                   \
    CUresult symbol params;                                                                                            \
    __attribute__((alias(#name), visibility("default"))) CUresult symbol params;
CUDA_DRIVER(EXPORT)
__attribute__((constructor)) static void begin(void) {
    const char *devices = getenv("FAKE_CUDA_DEVICES"), *old = getenv("FAKE_CUDA_OLD");
    int n = devices ? atoi(devices) : 1;
    trace = getenv("FAKE_CUDA_TRACE");
    fake_reset(&(fake_options){.memory_bytes = 4 * TM_GIB, .devices = n, .old_device = old ? atoi(old) : n > 1});
}
#endif

const cuda_driver *fake_driver(void) {
    static const cuda_driver table = {
#define FIELD(name, symbol, params) .name = name,
        CUDA_DRIVER(FIELD)};
    return &table;
}

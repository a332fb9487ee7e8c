/* Devices that need a driver: shared libraries, loaded when the first of their kind is asked for, never before. */
#include "device/device_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MODULE_KINDS = 4 };

typedef struct loaded {
    char kind[16];
    const device_ops *ops;
} loaded;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static loaded list[MODULE_KINDS];
static uint32_t n_list;

static const device_host host = {.fail = tm_fail,
                                 .log = tm_log,
                                 .now_ns = tm_now_ns,
                                 .malloc = tm_malloc,
                                 .calloc = tm_calloc,
                                 .free = tm_free,
                                 .error_get = tm_error_get,
                                 .error_set = tm_error_set,
                                 .error_clear = tm_error_clear,
                                 .thread_start = tm_thread_start};

static tm_status start(const char *kind, const char *path, void *library, const device_ops **out) {
    const device_module *m = dlsym(library, DEVICE_MODULE_SYMBOL);
    if (!m) return tm_fail(TM_EUNSUPPORTED, "%s is no module of devices; install tidemill again", path);
    if (m->version != DEVICE_MODULE_VERSION || m->bytes != DEVICE_MODULE_BYTES)
        return tm_fail(TM_EUNSUPPORTED, "%s is of another version of tidemill; build or install it again", path);
    tm_status rc = m->start(&host);
    if (rc != TM_OK) return rc;
    snprintf(list[n_list].kind, sizeof list[n_list].kind, "%s", kind);
    *out = list[n_list++].ops = m->ops;
    return TM_OK;
}

static tm_status load(const char *kind, const device_ops **out) {
    char path[TM_MODULE_PATH];
    for (uint32_t i = 0; i < n_list && i < MODULE_KINDS; i++)
        if (!strcmp(list[i].kind, kind)) *out = list[i].ops;
    if (*out) return TM_OK;
    TM_ASSERT(n_list < MODULE_KINDS);
    const bool is_there = tm_module_find(kind, path);
    void *library = is_there ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (is_there && !library) return tm_fail(TM_EUNSUPPORTED, "device \"%s\" cannot be loaded: %s", kind, dlerror());
    if (!library)
        return tm_fail(TM_EUNSUPPORTED,
                       "device \"%s\" is not in this build (no %s): build where its toolkit is found, or use \"cpu\"",
                       kind, path);
    tm_status rc = start(kind, path, library, out);
    if (rc != TM_OK) (void)dlclose(library);
    return rc;
}

tm_status device_module_load(const char *kind, const device_ops **out) {
    *out = NULL;
    pthread_mutex_lock(&lock);
    tm_status rc = load(kind, out);
    pthread_mutex_unlock(&lock);
    return rc;
}

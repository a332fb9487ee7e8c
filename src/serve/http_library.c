/* libmicrohttpd, found at run time. */
#include "serve/http_library_internal.h"

#include <dlfcn.h>
#include <string.h>

http_library mhd;

static void *open_library(void) {
    static const char *const names[] = {"libmicrohttpd.so.12", "libmicrohttpd.so"};
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

/* A function's address as dlsym has it. */
static bool find(void *library, const char *name, void *into) {
    void *found = dlsym(library, name);
    memcpy(into, &found, sizeof found);
    return found != NULL;
}

tm_status http_library_load(void) {
    static void *library;
    if (library) return TM_OK;
    void *opened = open_library();
    bool whole = opened != NULL;
#define FIND(name) whole = whole && find(opened, "MHD_" #name, &mhd.name);
    HTTP_LIBRARY_CALLS(FIND)
#undef FIND
    if (!whole)
        return tm_fail(
            TM_EUNSUPPORTED,
            "`serve` needs libmicrohttpd 0.9.73 or later, which is not here; apt-get install libmicrohttpd12");
    library = opened;
    return TM_OK;
}

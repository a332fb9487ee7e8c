/* Finding NCCL. */
#include "device/cuda/nccl_table.h"

#include <dlfcn.h>
#include <string.h>

enum { OLDEST = 2700 }; /* 2.7: sends and receives */

const cuda_nccl *cuda_nccl_load(const char **why) {
    static cuda_nccl table;
    static bool loaded;
    int version = 0;
    if (loaded) return &table;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    *why = "libnccl.so.2 is not found";
    if (!library) return NULL;
    *why = "libnccl.so.2 lacks a function: at least version 2.7 is needed";
    void *text = dlsym(library, "ncclGetErrorString");
    if (!text) return NULL;
    memcpy(&table.text, &text, sizeof text);
#define RESOLVE(name, symbol, params)                                                                                  \
    {                                                                                                                  \
        void *p = dlsym(library, #symbol);                                                                             \
        if (!p) return NULL;                                                                                           \
        memcpy(&table.name, &p, sizeof p);                                                                             \
    }
    CUDA_NCCL(RESOLVE)
#undef RESOLVE
    *why = "libnccl.so.2 is older than 2.7";
    if (table.version(&version) != ncclSuccess || version < OLDEST) return NULL;
    loaded = true;
    return &table;
}

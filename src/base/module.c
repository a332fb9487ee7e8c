/* Where the shared libraries lie that are loaded when they are needed: libtidemill_KIND.so. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_there(char path[TM_MODULE_PATH], const char *from, const char *folder, const char *kind) {
    int n = snprintf(path, TM_MODULE_PATH, "%s%s/libtidemill_%s.so", from, folder, kind);
    return n > 0 && n < TM_MODULE_PATH && access(path, F_OK) == 0;
}

bool tm_module_find(const char *kind, char path[TM_MODULE_PATH]) {
    char program[TM_MODULE_PATH / 2];
    const char *named = getenv("TIDEMILL_MODULES");
    if (named && *named) return is_there(path, named, "", kind);
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    return is_there(path, program, "/../" TIDEMILL_LIBDIR "/tidemill", kind) ||
           is_there(path, "", TIDEMILL_MODULE_DIR, kind) || is_there(path, program, "/../lib/tidemill", kind);
}

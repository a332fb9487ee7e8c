/* Address space under a limit (`ulimit -v`), and the stack (`ulimit -s`). */
#include "base/base_internal.h"

#include <stdio.h>
#include <sys/resource.h>

static uint64_t promised; /* what is in use will have grown to, by what was asked for */

static uint64_t limit_of(__rlimit_resource_t what) {
    struct rlimit r;
    return getrlimit(what, &r) == 0 && r.rlim_cur != RLIM_INFINITY ? r.rlim_cur : UINT64_MAX;
}

uint64_t tm_address_left(void) {
    uint64_t limit = limit_of(RLIMIT_AS);
    if (limit == UINT64_MAX) return UINT64_MAX;
    return limit - tm_min_u64(limit, tm_max_u64(base_proc_kib("/proc/self/status", "VmSize"), promised));
}

tm_status tm_address_need(uint64_t bytes, const char *what) {
    uint64_t left = tm_address_left(), limit = limit_of(RLIMIT_AS);
    char a[32], b[32];
    if (left == UINT64_MAX) return TM_OK;
    if (bytes <= left) {
        promised = limit - left + bytes;
        return TM_OK;
    }
    return tm_fail(TM_EINPUT,
                   "%s: %s of address space are needed and `ulimit -v` leaves %s; say `ulimit -v unlimited`, or at "
                   "least `ulimit -v %llu`",
                   what, tm_format_size(bytes, a, sizeof a), tm_format_size(left, b, sizeof b),
                   (unsigned long long)((limit - left) / TM_KIB + (bytes + TM_KIB - 1) / TM_KIB));
}

/* Training was found to do with 128 KiB; what others read (templates, expressions) is bounded, and libraries have room. */
enum { STACK_KIB = 512 };

tm_status tm_stack_need(void) {
    uint64_t limit = limit_of(RLIMIT_STACK);
    if (limit >= STACK_KIB * TM_KIB) return TM_OK;
    return tm_fail(TM_EINPUT, "a stack of %d KiB is needed and `ulimit -s` allows %llu; say `ulimit -s 8192`",
                   STACK_KIB, (unsigned long long)(limit / TM_KIB));
}

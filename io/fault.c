/* The kinds of faults that io's seam can produce. Which call is hit is base's business (tm_fault_hit). */
#include "io/io_internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    io_fault fault;
} kinds[] = {
    {"eio", {IO_FAULT_ERRNO, EIO}},         {"enospc", {IO_FAULT_ERRNO, ENOSPC}}, {"eintr", {IO_FAULT_ERRNO, EINTR}},
    {"eagain", {IO_FAULT_ERRNO, EAGAIN}},   {"einval", {IO_FAULT_ERRNO, EINVAL}}, {"enomem", {IO_FAULT_ERRNO, ENOMEM}},
    {"eperm", {IO_FAULT_ERRNO, EPERM}},     {"enosys", {IO_FAULT_ERRNO, ENOSYS}}, {"eacces", {IO_FAULT_ERRNO, EACCES}},
    {"erofs", {IO_FAULT_ERRNO, EROFS}},     {"edquot", {IO_FAULT_ERRNO, EDQUOT}}, {"efbig", {IO_FAULT_ERRNO, EFBIG}},
    {"enotsup", {IO_FAULT_ERRNO, ENOTSUP}}, {"ebusy", {IO_FAULT_ERRNO, EBUSY}},   {"short", {IO_FAULT_SHORT, 0}},
    {"zero", {IO_FAULT_ZERO, 0}},           {"lost", {IO_FAULT_LOST, 0}},         {"flip", {IO_FAULT_FLIP, 0}},
    {"misdirect", {IO_FAULT_MISDIRECT, 0}}, {"delay", {IO_FAULT_DELAY, 0}},
};

int io_errno_named(const char *name, size_t n) {
    for (size_t i = 0; i < TM_COUNT(kinds); i++) {
        if (strlen(kinds[i].name) == n && strncmp(kinds[i].name, name, n) == 0) return kinds[i].fault.err;
    }
    return 0;
}

io_fault io_fault_next(const char *call) {
    const char *name = NULL;
    if (!tm_fault_hit(call, &name)) return (io_fault){IO_FAULT_NONE, 0};
    io_fault f = {IO_FAULT_ERRNO, EIO};
    for (size_t i = 0; i < TM_COUNT(kinds); i++) {
        if (strcmp(kinds[i].name, name) == 0) f = kinds[i].fault;
    }
    if (f.kind == IO_FAULT_DELAY) nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    return f;
}

int io_fault_errno(const char *call) {
    io_fault f = io_fault_next(call);
    if (f.kind == IO_FAULT_NONE || f.kind == IO_FAULT_DELAY) return 0;
    return f.kind == IO_FAULT_ERRNO ? f.err : EIO;
}

uint64_t io_fault_beside(uint64_t offset) {
    return offset >= 4096 ? offset - 4096 : offset + 4096;
}

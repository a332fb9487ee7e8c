/* The error record: one per thread, the first failure is kept. */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local tm_error record = {.offset = -1};

const tm_error *tm_error_get(void) {
    return &record;
}

void tm_error_clear(void) {
    memset(&record, 0, sizeof record);
    record.offset = -1;
}

void tm_error_set(const tm_error *error) {
    if (error != &record) record = *error;
}

tm_status tm_first(tm_status first, tm_status second) {
    return first != TM_OK ? first : second;
}

const char *tm_status_name(tm_status s) {
    static const char *const names[] = {"ok",        "input error",   "unsupported",  "over budget", "I/O error",
                                        "disk full", "out of memory", "corrupt data", "signal",      "bug"};
    return (unsigned)s < TM_COUNT(names) ? names[s] : "unknown status";
}

/* A message is one line: whatever names from files bring along must not break the log or the terminal. */
static void one_line(char *text) {
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';
    }
}

tm_status tm_fail(tm_status code, const char *format, ...) {
    if (record.code != TM_OK) return code;
    tm_error_clear();
    record.code = code;
    va_list ap;
    va_start(ap, format);
    vsnprintf(record.text, sizeof record.text, format, ap);
    va_end(ap);
    one_line(record.text);
    return code;
}

/* What the name of an errno does not tell. */
static const char *what_to_do(int sys_errno) {
    if (sys_errno == EMFILE) return "; `ulimit -n` has to allow more";
    if (sys_errno == ECANCELED) /* nobody cancels anything here */
        return "; the kernel could not start a thread for io_uring: pids.max of the cgroup has to allow more, or set "
               "memory.io_engine to threads";
    return "";
}

tm_status tm_fail_sys(tm_status code, int sys_errno, const char *operation, const char *path, int64_t offset,
                      const char *format, ...) {
    if (record.code != TM_OK) return code;
    tm_error_clear();
    record.code = code;
    record.sys_errno = sys_errno;
    record.offset = offset;
    snprintf(record.operation, sizeof record.operation, "%s", operation ? operation : "");
    snprintf(record.path, sizeof record.path, "%s", path ? path : "");
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(record.text, sizeof record.text, format, ap);
    va_end(ap);
    if (sys_errno != 0 && n >= 0 && (size_t)n < sizeof record.text) {
        char why[128];
        /* _GNU_SOURCE: strerror_r returns the text, which need not be in `why` */
        snprintf(record.text + n, sizeof record.text - (size_t)n, ": %s%s", strerror_r(sys_errno, why, sizeof why),
                 what_to_do(sys_errno));
    }
    one_line(record.text);
    return code;
}

void tm_assert_failed(const char *cond, const char *file, int line) {
    tm_say("tidemill: bug: %s:%d: %s does not hold\n", file, line, cond);
    abort();
}

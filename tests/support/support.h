/* What tests of several folders share. Beside it: skip.h (what cannot run here, what is long), walk.h (every call of a
 * life fails in turn), leave.h (children of tests), screen.h (a terminal), forced.h (columns of kernels under TIDEMILL_GEMM). */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include "base/base.h"

#include <stdlib.h>

/* In a cmocka test: the call succeeds, or the test fails with what the error record says. */
#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        tm_status ok_ = (expr);                                                                                        \
        if (ok_ != TM_OK) fail_msg("%s: %s", #expr, tm_error_get()->text);                                             \
    } while (0)

/* A number that the environment may give to repeat or lengthen a test; `otherwise` where it does not. */
static inline uint64_t test_option(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

#endif

/* TIDEMILL_GEMM in a test that chooses a column of kernels itself. */
#ifndef TIDEMILL_TESTS_SUPPORT_FORCED_H
#define TIDEMILL_TESTS_SUPPORT_FORCED_H

#include <stdlib.h>
#include <string.h>

/* Every column has `builtin`. The others are the last column's alone, or a library that a process loads for one column:
 * they are no longer forced. */
static inline void drop_products_of_one_column(void) {
    const char *forced = getenv("TIDEMILL_GEMM");
    if (forced && strcmp(forced, "builtin") != 0) unsetenv("TIDEMILL_GEMM");
}

#endif

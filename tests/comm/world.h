/* Shared by the tests of comm. Under a launcher a failed check ends the job, since the other ranks would wait for ever.
 */
#ifndef TIDEMILL_COMM_TEST_H
#define TIDEMILL_COMM_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tm_comm *comm;

#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (cond) break;                                                                                               \
        fprintf(stderr, "%s:%d: rank %u: %s: ", __FILE__, __LINE__, comm ? tm_comm_rank(comm) : 0, #cond);             \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fputc('\n', stderr);                                                                                           \
        if (comm) tm_comm_abort(comm, 1);                                                                              \
        exit(1);                                                                                                       \
    } while (0)
#define OK(expr) CHECK((expr) == TM_OK, "%s", tm_error_get()->text)

/* Element e of rank r: of all magnitudes and both signs, so that another order of summation has other bits. */
static inline float value(uint32_t r, uint64_t e) {
    uint32_t out[4];
    tm_philox(77, r, e, out);
    float x = (float)((int32_t)out[0]) * 4.6566e-10F;
    return (float)(1U << out[1] % 24) * x;
}

static inline float *values_of(uint32_t r, uint64_t n) {
    float *x = malloc((n + 1) * sizeof *x);
    for (uint64_t i = 0; i < n; i++) x[i] = value(r, i);
    return x;
}

static inline uint32_t bits_of(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}

#endif

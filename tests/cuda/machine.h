/* Where the tests' kernels run: the emulation (machine_emulated.c) or a device (machine_device.c), one program each.
 *
 *     EACH_ORDER {                                     // three times: other orders of a block's threads; on a device:
 *                                                      // again
 *         float *x = give(random_floats(n, 2), n * 4); // on the device, of exactly that size
 *         cuda_zero(x, n * 4);
 *         take(x, host, n * 4);                        // what is taken must be the same in every pass, bit for bit
 *     }                                                // all that was given is freed
 */
#ifndef TIDEMILL_TEST_MACHINE_H
#define TIDEMILL_TEST_MACHINE_H

#include "device/cuda/queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ---- the machine's own ---- */

/* NULL: ready; else what is missing: the program ends with 77. */
const char *machine_open(void);
void machine_close(void);
void *machine_alloc(size_t bytes);
void machine_free(void *p);
void machine_write(void *to, const void *from, size_t bytes);
void machine_read(void *to, const void *from, size_t bytes); /* after all that was launched */
void machine_pass(int pass);                                 /* 0, 1, 2: of EACH_ORDER */
cuda_queue *machine_queue(void);

/* ---- what tests use (machine.c) ---- */

#define EACH_ORDER for (int pass_ = 0; pass_begin(pass_); pass_++)
bool pass_begin(int pass);

/* `bytes` of host on the device; host NULL: NaN throughout. */
void *give(const void *host, size_t bytes);
/* The same, `off` bytes behind an aligned address. */
void *give_at(const void *host, size_t bytes, size_t off);
void take(const void *device, void *host, size_t bytes);

/* Host memory until the end of the pass. The same numbers in every pass. */
void *scratch(size_t bytes);
float *random_floats(size_t n, float size); /* in (-size, size) */
float *odd_floats(size_t n);                /* infinities, NaN, subnormals, the largest and others among them */
uint32_t random_below(uint32_t n);
size_t elem_size(tm_elem t);
/* n numbers as elements of type t; x is replaced by what they are then. */
void *stored(tm_elem t, float *x, size_t n);
void widened(tm_elem t, const void *x, float *y, size_t n);

/* |got - want| <= rel * size + abs, NaN and infinities alike in both. size NULL: |want|. */
void near_all(const char *what, const float *got, const float *want, const float *size, size_t n, double rel,
              double abs);
/* Bits, NaN being equal to NaN. */
void same_floats(const char *what, const float *got, const float *want, size_t n);
void same_bytes(const char *what, const void *got, const void *want, size_t bytes);

/* Runs a group where there is a machine, and says that it skipped where there is none. */
int run_group(const char *name, const struct CMUnitTest *tests, size_t n);

#endif

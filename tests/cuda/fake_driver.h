/* A driver without a device: its memory is the host's, each stream is a thread that carries out what it was given in
 * order, kernels run in the emulation. Any call can be made to fail. One device of 1 GiB unless said otherwise; as a
 * library of 4 GiB, and FAKE_CUDA_DEVICES=3 makes it three (16 at most), the second of them an old one, or none with
 * FAKE_CUDA_OLD=0; each has its own memory. FAKE_CUDA_TRACE names a file that gets a line for each stretch of memory
 * taken: "DEVICE BYTES". */
#ifndef TIDEMILL_FAKE_DRIVER_H
#define TIDEMILL_FAKE_DRIVER_H

#include "device/cuda/driver.h"

const cuda_driver *fake_driver(void);

typedef struct fake_options {
    uint64_t memory_bytes, used_bytes; /* used by others */
    int capability;                    /* 80 */
    int devices;                       /* 1 */
    int old_device;                    /* the number of one of capability 7.0; 0: none */
    uint32_t slow_us;                  /* every piece of work takes so long */
} fake_options;
void fake_reset(const fake_options *o);
/* The n-th call of that name from now on (1: the next) fails with rc; NULL: none. A stream's own failure ("wait") makes
 * every later wait fail, as a broken context does. */
void fake_fail(const char *call, unsigned n, CUresult rc);
void fake_hold(bool hold); /* while it is true streams carry nothing out */
/* What was made and not given back: memory, streams, events, modules, contexts, registrations. */
unsigned fake_live(void);
unsigned fake_launches(void);
/* A function of the host's as a piece of a stream's work; `bytes` of payload are copied. */
enum { FAKE_PAYLOAD = 256 };
CUresult fake_push(CUstream s, void (*fn)(const void *payload), const void *payload, size_t bytes);
/* Calls so far of all names, for failing each in turn. */
unsigned fake_calls(void);
void fake_fail_any(unsigned n, CUresult rc);

#endif

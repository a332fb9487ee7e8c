/* NCCL without devices: bytes go through a file in shared memory that all who were given one id map, threads of one
 * process or processes; a group's messages make progress side by side, on the fake driver's stream. FAKE_NCCL_TRACE
 * names a file that gets a line for each communicator that ends: the bytes that it sent. */
#ifndef TIDEMILL_FAKE_NCCL_H
#define TIDEMILL_FAKE_NCCL_H

#include "device/cuda/nccl_table.h"

const cuda_nccl *fake_nccl(void);
/* The n-th message from now on (1: the next) is refused; 0: none. */
void fake_nccl_fail(unsigned n);

#endif

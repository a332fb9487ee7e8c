/* lower.c, for plan.c and residency.c: a program whose operations of the device tier compute on the host's frames
 * becomes one with frames in the arena, and copies. */
#ifndef TIDEMILL_LOWER_INTERNAL_H
#define TIDEMILL_LOWER_INTERNAL_H

#include "offload/load_internal.h"

/* TM_EBUDGET: the arena is too small. `*out` is the caller's. */
tm_status lower_program(tm_program **out, const tm_program *p, uint64_t arena_bytes);

#endif

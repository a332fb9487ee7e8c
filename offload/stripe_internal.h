/* Which path an object goes to: in proportion to what the disks were measured at, where there is room. Nothing is
 * decided again later: the store keeps the path of each object, and commits name it. */
#ifndef TIDEMILL_STRIPE_H
#define TIDEMILL_STRIPE_H

#include "offload/offload_internal.h"

enum { STRIPE_PATHS = 16, STRIPE_ROUND = 64 };

typedef struct stripe {
    unsigned n;
    double weight[STRIPE_PATHS]; /* bytes a second; 1 each where not all are known */
    uint64_t room[STRIPE_PATHS], given[STRIPE_PATHS];
} stripe;

/* Rates from this machine's profile, room from the file systems. */
void stripe_of_runs(stripe *s, tm_io_run *const *runs, unsigned n);
/* Takes `bytes` on the path that would be through with what it was given first; of those with room, if there is one
 * (otherwise on the one with the most: creating the file then says what is missing). */
unsigned stripe_take(stripe *s, uint64_t bytes);
/* Temporaries: path of the i-th is round[i % STRIPE_ROUND]. `bytes` are reserved on each path that is in it (addresses
 * in the spill file are the plan's on every path, so that what plans prove about them holds), and only paths with room
 * for them are. */
void stripe_round(stripe *s, uint64_t bytes, uint8_t round[STRIPE_ROUND]);

#endif

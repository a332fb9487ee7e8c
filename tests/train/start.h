/* The beginning of a run, up to where its state would be laid out, in this process: the configuration is read, what to
 * go on from is chosen, taken and looked at. Among several ranks this one is `rank`, and the others are imagined
 * (comm.h): they agree with it and have what it has, so that every question asked of all is asked, and nothing is sent.
 */
#ifndef TIDEMILL_TEST_START_H
#define TIDEMILL_TEST_START_H

#include "found.h"

typedef struct start_opts {
    found_start with;     /* its fault is the caller's business */
    unsigned ranks, rank; /* 0 ranks: it is alone */
} start_opts;

/* What it came to. */
typedef struct start_found {
    int64_t step; /* of the state that it goes on from; -1: it begins anew */
    bool other;   /* laid out for other ranks */
    bool copied;  /* a full checkpoint, or another run's */
} start_found;

tm_status start_here(const start_opts *o, start_found *out);
/* Each of these calls ("alloc", "operation", ...; kind) fails in turn, at `points` places (tests/walk.h) of a start
 * after `damage` (NULL: none). It comes to what an undisturbed one does, or to one error, and holds no memory then; and
 * the start after it comes to that as well. `ends`: where an undisturbed start is refused. Returns how many failed. */
uint64_t start_walk(const start_opts *o, void (*damage)(void), tm_status ends, const char *call, const char *kind,
                    uint64_t points);

#endif

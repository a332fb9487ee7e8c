/* What the files of `tidemill clean` share. */
#ifndef TIDEMILL_CLEAN_INTERNAL_H
#define TIDEMILL_CLEAN_INTERNAL_H

#include "io/run/run.h"

/* OLD: of a version before keys, so that nothing proves whose it is. */
typedef enum leftover_state { LEFT_DEAD, LEFT_COMMIT, LEFT_ALIVE, LEFT_OLD } leftover_state;
/* A run directory; a model in four bits that a run has made for itself; tokenised data of OUTPUT_DIR; log-probabilities of
 * a reference model in tidemill-cache. */
typedef enum leftover_kind { HOLDS_RUN, HOLDS_BASE, HOLDS_TOKENS, HOLDS_REFERENCE } leftover_kind;

typedef struct leftover {
    char path[4096];
    leftover_state state;
    leftover_kind kind;
    tm_io_owner owner; /* of directories */
    uint64_t bytes;
    double age_seconds;
    int64_t step; /* LEFT_COMMIT: of it, -1 if its manifest is elsewhere or damaged */
    char output[1024];
} leftover;

typedef struct survey {
    leftover *found;
    size_t n;
    const char *path;
} survey;
/* A place behind those found, not counted yet; NULL: no memory. */
leftover *clean_place(survey *s);

/* ---- clean_data.c: files that runs keep of their data ------------------------------------------------------------- */

/* Where s->path is an OUTPUT_DIR of ours, its tokens and what is in tidemill-cache beside it; where it is that folder, what
 * is in there. */
tm_status clean_find_data(survey *s);
/* Looks again under the lock of its OUTPUT_DIR. */
tm_status clean_remove_data(const leftover *l, bool all, bool *removed);

#endif

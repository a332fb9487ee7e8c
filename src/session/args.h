/* What the commands that open a configuration are asked for; a manual is train/train.h. */
#ifndef TIDEMILL_SESSION_ARGS_H
#define TIDEMILL_SESSION_ARGS_H

#include "base/base.h"

enum { TM_ENDED_PATH = 4096 };
typedef struct tm_train_args {
    const char *config;     /* path of the file; NULL: `set` says it all */
    const char *const *set; /* key.path=value, or --key.path=value (config.h) */
    size_t n_set;
    const char *resume;         /* "auto" (default), "never", or a directory */
    uint64_t order_seed;        /* != 0: random legal orders of every plan (tests) */
    bool dry_run;               /* a plan: what `train` would refuse is refused, too */
    bool quiet;                 /* no sample, no progress */
    bool profile;               /* the table of where a step's seconds went, at the end */
    const char *trace;          /* Chrome trace JSON of every step, as simulated and as it ran; NULL: not */
    bool allow_numerics_change; /* go on though another ISA, library or number of threads will compute */
    int64_t replay_every;       /* every so many steps one is computed twice and its bits compared; 0: none */
    double grace_seconds;       /* after a signal: how long the step under way may take to end; 0: 30 */
    bool *reported;             /* NULL, or set: on a failure, whether another rank prints it */
    char *ended;     /* NULL, or [TM_ENDED_PATH]: OUTPUT_DIR of a run of one rank that came to its end just now */
    bool *resumable; /* NULL, or set: TM_ESIGNAL was returned and a commit can be continued from */
} tm_train_args;

#endif

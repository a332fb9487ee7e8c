/* What the commands that open a configuration are asked for; a manual is train/train.h. */
#ifndef TIDEMILL_SESSION_ARGS_H
#define TIDEMILL_SESSION_ARGS_H

#include "base/base.h"

/* What questions there are, before step 1. */
typedef struct tm_scores {
    const char *const *name; /* [n] values that they come to: "arc_acc" */
    uint32_t n;
    uint64_t run_bytes, least_bytes; /* of the run's budget, for them; of the host budget that they are scored in */
    uint64_t hash;                   /* of the files */
} tm_scores;
/* Who scores task files inside training: the rooms that plan and train know no engine, infer/infer.h has tm_task_scorer. All of one
 * thread, the trainer's. */
struct tm_config;
struct tm_trial;
typedef struct tm_scorer {
    /* Reads eval_tasks; `close` is for what succeeded. `c` lives longer. Errors: as of `tidemill eval --task`. */
    tm_status (*open)(struct tm_trial **out, const struct tm_config *c, tm_scores *about);
    /* Of one scoring within so much host memory, by the plan, at most. */
    tm_status (*seconds)(struct tm_trial *t, uint64_t host_bytes, double *seconds);
    /* value [n]: of the model, or with an adapter of the adapter, that lies in `folder`. */
    tm_status (*score)(struct tm_trial *t, const char *folder, uint64_t host_bytes, double *value);
    void (*close)(struct tm_trial *t);
} tm_scorer;

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
    const tm_scorer *scorer;    /* NULL: a configuration with eval_tasks is refused */
    double grace_seconds;       /* after a signal: how long the step under way may take to end; 0: 30 */
    bool *reported;             /* NULL, or set: on a failure, whether another rank prints it */
    char *ended;     /* NULL, or [TM_ENDED_PATH]: OUTPUT_DIR of a run of one rank that came to its end just now */
    bool *resumable; /* NULL, or set: TM_ESIGNAL was returned and a commit can be continued from */
} tm_train_args;

#endif

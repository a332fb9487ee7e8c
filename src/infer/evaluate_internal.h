/* What the files of an evaluation share. */
#ifndef TIDEMILL_INFER_EVALUATE_INTERNAL_H
#define TIDEMILL_INFER_EVALUATE_INTERNAL_H

#include "infer/forward_internal.h"
#include "infer/infer.h"
#include "reference/reference.h"

/* Of one of several files of data. */
typedef struct file_sum {
    double nll;
    uint64_t labels;
} file_sum;

typedef struct evaluation {
    const tm_eval_args *args;
    tm_train_args asked; /* the session's */
    tm_config *loaded;   /* as it was read */
    tm_config cfg;       /* as it is judged: its model and adapter are those that are judged */
    tm_data_item *item;  /* cfg.data.eval_items, where files were given */
    char **path;         /* [n_paths] theirs */
    size_t n_paths;
    tm_tier_args tiers;  /* where nothing was said, the configuration's */
    session s;           /* of cfg; s.eval is there, no training data */
    uint32_t vocabulary; /* of the model */
    reference_values reference;
    tm_job *job;
    uint64_t step;
    file_sum *file; /* [n_files] cfg.data.eval_items; 0: rows are not told apart */
    uint32_t n_files;
    bool no_data; /* whoever asks has questions of its own */
    bool data;    /* data are judged; else tasks alone, or those */
} evaluation;

/* evaluate_open.c: configuration, model and data. */
TM_MUST_USE tm_status evaluate_open(evaluation *e);
void evaluate_close(evaluation *e);
/* What it has in memory of data and text, beside a job. */
uint64_t evaluate_held_bytes(const evaluation *e);

/* evaluate_exact.c: into out->exact, out->compared. */
TM_MUST_USE tm_status evaluate_exact(evaluation *e, tm_eval_result *out);

/* evaluate_files.c: with the job open; after the last step. */
TM_MUST_USE tm_status evaluate_files_open(evaluation *e);
TM_MUST_USE tm_status evaluate_files_report(const evaluation *e, tm_eval_result *out);

/* evaluate_tasks.c: all of args->tasks. */
TM_MUST_USE tm_status evaluate_tasks(const evaluation *e, tm_eval_tasks *out);

#endif

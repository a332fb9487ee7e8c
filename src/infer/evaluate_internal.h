/* What the files of an evaluation share. */
#ifndef TIDEMILL_INFER_EVALUATE_INTERNAL_H
#define TIDEMILL_INFER_EVALUATE_INTERNAL_H

#include "infer/forward_internal.h"
#include "infer/infer.h"
#include "reference/reference.h"

typedef struct evaluation {
    const tm_eval_args *args;
    tm_train_args asked; /* the session's */
    tm_config *loaded;   /* as it was read */
    tm_config cfg;       /* as it is judged: its model and adapter are those that are judged */
    tm_data_item item;   /* cfg.data.eval_items, where the file was given */
    tm_tier_args tiers;  /* where nothing was said, the configuration's */
    session s;           /* of cfg; s.eval is there, no training data */
    uint32_t vocabulary; /* of the model */
    reference_values reference;
    tm_job *job;
    uint64_t step;
} evaluation;

/* evaluate_open.c: configuration, model and data. */
TM_MUST_USE tm_status evaluate_open(evaluation *e);
void evaluate_close(evaluation *e);

/* evaluate_exact.c: into out->exact, out->compared. */
TM_MUST_USE tm_status evaluate_exact(evaluation *e, tm_eval_result *out);

#endif

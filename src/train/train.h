/* train: where model, data, tiers, optimizer and formats meet. The commands of tools/ call this, planner/planner.h and
 * infer/infer.h.
 *
 * Every job - training, evaluation, probing, generation, export - is a program (offload/plan/plan.h) written by src/step,
 * compiled under a budget and run by the same executor. Nothing here reads or writes a tier outside an operation.
 *
 * Errors: TM_EINPUT, TM_EUNSUPPORTED and TM_EBUDGET before anything was started (exit 2); others while running (exit
 * 1). One job at a time in a process: the matrix library and OpenMP are process-wide.
 */
#ifndef TIDEMILL_TRAIN_H
#define TIDEMILL_TRAIN_H

#include "session/args.h"

/* TM_ESIGNAL: a request to stop (base.h, tm_stop_catch) ended it; the error's text names the step that can be resumed. */
TM_MUST_USE tm_status tm_train_run(const tm_train_args *args);

#endif

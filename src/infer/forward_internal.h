/* What probe, eval and generate share. */
#ifndef TIDEMILL_FORWARD_INTERNAL_H
#define TIDEMILL_FORWARD_INTERNAL_H

#include "planner/start.h"
#include "infer/infer.h"

/* Budget, offload path, device and adapter of a forward job into `o`; *adapter, which is opened
 * unless it is there, outlives the job. */
tm_status forward_opts(job_opts *o, const tm_tier_args *tiers, tm_adapter_folder **adapter);

/* Nothing learns: weights are read where the user's files have them, and multiplied as those have them. */
void forward_only(job_opts *o);

#endif

/* What probe, eval and generate share. */
#ifndef TIDEMILL_FORWARD_INTERNAL_H
#define TIDEMILL_FORWARD_INTERNAL_H

#include "planner/start.h"
#include "infer/infer.h"

/* Budget, offload path and device of a forward job into `o`. */
tm_status forward_opts(job_opts *o, const tm_tier_args *tiers);

#endif

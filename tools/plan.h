/* `tidemill plan`, for `train --dry-run` as well. */
#ifndef TIDEMILL_TOOLS_PLAN_H
#define TIDEMILL_TOOLS_PLAN_H

#include "planner/planner.h"

/* Plans and prints; the exit status. */
int tm_plan_show(const tm_plan_args *args, bool json);

#endif

/* tidemill plan --advise: the table, or JSON. */
#ifndef TIDEMILL_ADVICE_H
#define TIDEMILL_ADVICE_H

#include "planner/planner.h"

/* Exit status. */
int tm_plan_show_advice(const tm_plan_args *args, bool json);

#endif

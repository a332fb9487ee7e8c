/* The words of `tidemill plan`'s text. */
#ifndef TIDEMILL_PLAN_WORDS_H
#define TIDEMILL_PLAN_WORDS_H

#include "planner/planner.h"

void tm_plan_words(const tm_plan_report *r); /* to stdout */

#endif

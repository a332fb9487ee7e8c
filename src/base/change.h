/* change: beside a refusal, the one key of the configuration with which it would do.
 * tm_change_advise comes right behind the tm_fail of the refusal. What it says belongs to the failure that is pending, by
 * its text: a record that is set aside and set again (tm_error_set) has it still, another failure has none. Threads: one
 * record each, as failures. */
#ifndef TIDEMILL_BASE_CHANGE_H
#define TIDEMILL_BASE_CHANGE_H

#include "base/base.h"

enum { TM_CHANGE_BYTES = 96 }; /* with its end */
void tm_change_advise(const char *format, ...) TM_PRINTF(1, 2);
const char *tm_change_advised(void); /* "KEY=VALUE" of the pending failure; "": none is known */
/* The pending failure in other words, which may have its text (tm_error_get) in them: code and advice stay. Returns the code. */
tm_status tm_change_reword(const char *format, ...) TM_PRINTF(1, 2);

#endif

/* What `convert` and `export` share: the sign of life, signals, the least budget. */
#ifndef TIDEMILL_CONVERSION_H
#define TIDEMILL_CONVERSION_H

#include "format/peft.h"
#include "tools/tools.h"

/* `what` for the live line ("converting"). The exit status. */
int tm_run_conversion(const char *what, tm_export_request r, uint64_t host_budget);

#endif

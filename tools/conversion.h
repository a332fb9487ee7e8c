/* What `convert` and `export` share: the sign of life, signals, the least budget. */
#ifndef TIDEMILL_CONVERSION_H
#define TIDEMILL_CONVERSION_H

#include "format/peft.h"
#include "tools/tools.h"

typedef enum tm_conversion_report { TM_REPORT_NOTHING, TM_REPORT_TEXT, TM_REPORT_JSON } tm_conversion_report;
/* `what` for the live line ("converting"). The exit status. The report is of the tensors and what they lost; as text, of
 * those that lost something. */
int tm_run_conversion(const char *what, tm_export_request r, uint64_t host_budget, tm_conversion_report report);

#endif

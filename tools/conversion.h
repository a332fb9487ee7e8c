/* What `convert` and `export` share: the sign of life, signals, the least budget. */
#ifndef TIDEMILL_CONVERSION_H
#define TIDEMILL_CONVERSION_H

#include "format/peft.h"
#include "tools/tools.h"

typedef enum tm_conversion_report { TM_REPORT_NOTHING, TM_REPORT_TEXT, TM_REPORT_JSON } tm_conversion_report;
typedef struct tm_conversion {
    const char *what; /* for the live line: "converting" */
    tm_export_request request;
    uint64_t host_budget;        /* UINT64_MAX: not given */
    tm_conversion_report report; /* of the tensors and what they lost; as text, of those that lost something */
    const char *eval;            /* data on which the perplexity of source and result is taken; NULL: not */
    const char *offload;         /* where weights go meanwhile that do not fit; NULL: they have to fit */
} tm_conversion;
int tm_run_conversion(const tm_conversion *c); /* the exit status */

#endif

/* What the files of the doctor share: a list of checks. */
#ifndef TIDEMILL_TOOLS_DOCTOR_H
#define TIDEMILL_TOOLS_DOCTOR_H

#include "base/base.h"

typedef enum verdict { GOOD, WARN, BAD } verdict;

typedef struct check {
    const char *name;
    verdict verdict;
    char value[256];
    const char *advice; /* NULL where all is well */
    const char *fix;    /* a line of a shell that mends it; NULL: none does */
} check;

typedef struct report {
    check checks[48];
    size_t n;
} report;

/* `name` and `advice` are kept. */
void doctor_add(report *r, const char *name, verdict v, const char *advice, const char *format, ...) TM_PRINTF(5, 6);
void doctor_fix(report *r, const char *command); /* of the check before, unless all is well */
void doctor_check_devices(report *r);            /* doctor_device.c */

#endif

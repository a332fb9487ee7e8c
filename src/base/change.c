/* The one change that a refusal advises. */
#include "base/change.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char change[TM_CHANGE_BYTES];
static _Thread_local uint64_t of; /* the failure's text */

static uint64_t hash_of_failure(void) {
    const tm_error *e = tm_error_get();
    return e->code == TM_OK ? 0 : tm_hash64(e->text, strlen(e->text), 1);
}

void tm_change_advise(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(change, sizeof change, format, ap);
    va_end(ap);
    of = hash_of_failure();
}

const char *tm_change_advised(void) {
    return *change && of == hash_of_failure() ? change : "";
}

tm_status tm_change_reword(const char *format, ...) {
    char advised[TM_CHANGE_BYTES];
    tm_error e = *tm_error_get();
    va_list ap;
    snprintf(advised, sizeof advised, "%s", tm_change_advised());
    va_start(ap, format);
    vsnprintf(e.text, sizeof e.text, format, ap);
    va_end(ap);
    tm_error_clear();
    tm_error_set(&e);
    if (*advised) tm_change_advise("%s", advised);
    return e.code;
}

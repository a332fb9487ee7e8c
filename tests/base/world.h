/* What the tests of base share. */
#ifndef TIDEMILL_BASE_TEST_H
#define TIDEMILL_BASE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

/* The call fails with `code`, and its message contains `part`. Clears the record. */
#define assert_fails(call, code_, part)                                                                                \
    do {                                                                                                               \
        tm_error_clear();                                                                                              \
        tm_status got_ = (call);                                                                                       \
        if (got_ != (code_) || tm_error_get()->code != (code_) || !strstr(tm_error_get()->text, (part)))               \
            fail_msg("%s: status %d, text \"%s\", expected %d and \"%s\"", #call, (int)got_, tm_error_get()->text,     \
                     (int)(code_), (part));                                                                            \
        tm_error_clear();                                                                                              \
    } while (0)
#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != TM_OK) fail_msg("%s: %s", #call, tm_error_get()->text);                                          \
    } while (0)

#endif

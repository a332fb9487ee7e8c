/* What this room and tokenizer share of PCRE2. */
#ifndef TIDEMILL_TEXT_PATTERN_INTERNAL_H
#define TIDEMILL_TEXT_PATTERN_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* By which PCRE2 allocates as base does. NULL: out of memory. pcre2_general_context_free. */
pcre2_general_context *pattern_memory(void);

#endif

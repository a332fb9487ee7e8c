/* What the tests of src/adapter share. */
#ifndef TIDEMILL_ADAPTER_TEST_H
#define TIDEMILL_ADAPTER_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"

/* tests/fixtures/adapter/NAME, which make_adapter_fixtures.py there made. */
static inline tm_json_doc *answers_of(const char *name) {
    char path[512];
    tm_buf text = {0};
    tm_json_doc *doc = NULL;
    char block[4096];
    snprintf(path, sizeof path, "%s/adapter/%s", TM_TEST_FIXTURES, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) assert_int_equal(tm_buf_append(&text, block, n), TM_OK);
    (void)fclose(f);
    assert_int_equal(tm_json_parse(&doc, text.data, text.len, name, 0, 0), TM_OK);
    tm_buf_free(&text);
    return doc;
}

static inline const char *text_of(const tm_json *object, const char *key) {
    const tm_json *v = tm_json_get(object, key);
    assert_true(v && v->type == TM_JSON_STRING);
    return v->text;
}

/* Strings of a list: a text each, or the first of a pair. At most `cap`. */
static inline size_t strings_of(const tm_json *list, const char **out, size_t cap) {
    size_t n = 0;
    for (const tm_json *c = list->child; c; c = c->next) {
        assert_true(n < cap);
        out[n++] = c->type == TM_JSON_ARRAY ? c->child->text : c->text;
    }
    return n;
}

static inline bool is_in_list(const tm_json *list, const char *text) {
    for (const tm_json *c = list->child; c; c = c->next)
        if (!strcmp(c->text, text)) return true;
    return false;
}

/* The pending failure has that status, and says all of these; it is cleared. */
static inline void fails_with(tm_status got, tm_status wanted, const char *says) {
    tm_error e = *tm_error_get();
    tm_error_clear();
    if (got != wanted || !strstr(e.text, says))
        fail_msg("%s: %s (wanted %s: %s)", tm_status_name(got), e.text, tm_status_name(wanted), says);
}

#endif

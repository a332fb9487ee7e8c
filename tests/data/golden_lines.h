/* What the golden tests of this folder share: fixture files, and a callback per JSON line. */
#ifndef TIDEMILL_TESTS_GOLDEN_LINES_H
#define TIDEMILL_TESTS_GOLDEN_LINES_H

#include "text/tokenizer/tokenizer.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* TM_OK, or the test fails with the error's text. */
/* The whole of DIR/NAME; false if there is no such file. */
static inline bool read_file(const char *dir, const char *name, tm_buf *out) {
    char path[1024], block[65536];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return false;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) assert_int_equal(tm_buf_append(out, block, n), TM_OK);
    (void)fclose(f);
    return true;
}

static inline tm_tokenizer *open_tokenizer(const char *dir) {
    tm_buf json = {0};
    tm_tokenizer *t = NULL;
    if (!read_file(dir, "tokenizer.json", &json)) fail_msg("%s/tokenizer.json cannot be read", dir);
    tm_mem_source source = {json.data, json.len, 0};
    OK(tm_tokenizer_open(&t, tm_mem_source_read, &source, "tokenizer.json"));
    tm_buf_free(&json);
    return t;
}

/* Calls `one` for each line of DIR/NAME; returns how many there were. */
static inline size_t for_each_line(const char *dir, const char *name, void (*one)(const tm_json *row, void *ctx),
                                   void *ctx) {
    tm_buf all = {0};
    size_t n = 0;
    if (!read_file(dir, name, &all)) fail_msg("%s/%s cannot be read", dir, name);
    for (char *line = all.data, *end; line < all.data + all.len; line = end + 1, n++) {
        end = strchr(line, '\n');
        if (end == NULL) break;
        tm_json_doc *doc;
        OK(tm_json_parse(&doc, line, (size_t)(end - line), name, 0, 0));
        one(tm_json_root(doc), ctx);
        tm_json_free(doc);
    }
    tm_buf_free(&all);
    return n;
}

static inline void expect_ids(const tm_json *want, const tm_ids *got, const char *what) {
    assert_non_null(want);
    size_t i = 0;
    for (const tm_json *id = want->child; id != NULL; id = id->next, i++)
        if (i >= got->n || got->id[i] != (int32_t)id->integer)
            fail_msg("%s: id %zu is %d, not %d", what, i, i < got->n ? got->id[i] : -1, (int)id->integer);
    if (i != got->n) fail_msg("%s: %zu ids, not %zu", what, got->n, i);
}

static inline void expect_text(const tm_json *want, const tm_buf *got, const char *what) {
    assert_non_null(want);
    if (want->len != got->len || memcmp(want->text, got->len == 0 ? "" : got->data, got->len) != 0)
        fail_msg("%s: \"%.*s\", not \"%.*s\"", what, (int)got->len, got->len == 0 ? "" : got->data, (int)want->len,
                 want->text);
}

#endif

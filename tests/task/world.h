/* What the tests of src/task share: files in memory, and the harness's answers. */
#ifndef TIDEMILL_TASK_TEST_H
#define TIDEMILL_TASK_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/support.h"
#include "task/task.h"

typedef struct world {
    struct {
        const char *name, *text;
    } file[8];
} world;

static inline tm_status world_read(void *ctx, const char *path, tm_buf *out) {
    const world *w = ctx;
    for (size_t i = 0; i < TM_COUNT(w->file); i++)
        if (w->file[i].name && !strcmp(w->file[i].name, path))
            return tm_buf_append(out, w->file[i].text, strlen(w->file[i].text));
    return tm_fail(TM_EINPUT, "%s: there is no such file", path);
}

static inline tm_task_opts world_opts(const world *w) {
    return (tm_task_opts){.read = world_read, .ctx = (void *)(uintptr_t)w};
}

/* tests/fixtures/tasks/NAME, which make.py there made. */
static inline tm_json_doc *harness_says(const char *name) {
    char path[512], block[4096];
    tm_buf text = {0};
    tm_json_doc *doc = NULL;
    snprintf(path, sizeof path, "%s/tasks/%s", TM_TEST_FIXTURES, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) OK(tm_buf_append(&text, block, n));
    (void)fclose(f);
    OK(tm_json_parse(&doc, text.data, text.len, name, 0, 0));
    tm_buf_free(&text);
    return doc;
}

/* The pending failure has that status, and says this; it is cleared. */
static inline void fails_with(tm_status got, tm_status wanted, const char *says) {
    tm_error e = *tm_error_get();
    tm_error_clear();
    if (got != wanted || !strstr(e.text, says))
        fail_msg("%s: %s (wanted %s: %s)", tm_status_name(got), e.text, tm_status_name(wanted), says);
}

#endif

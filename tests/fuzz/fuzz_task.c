/* TASK.json '\0' ROWS. What must hold: opening ends and gives back its memory; what opened can be scored and written, and the
 * lines are JSON. */
#include "fuzz.h"

#include "task/task.h"

#include <string.h>

typedef struct input {
    const char *settings, *rows;
    size_t n_settings, n_rows;
} input;

static tm_status read_file(void *ctx, const char *path, tm_buf *out) {
    const input *in = ctx;
    bool settings = strcmp(path, "t.json") == 0;
    return tm_buf_append(out, settings ? in->settings : in->rows, settings ? in->n_settings : in->n_rows);
}

static void use(const tm_task *t, const tm_task_sample *s) {
    static const double logprob[1024] = {-1, -3, -2};
    static const bool greedy[1024] = {true};
    static double value[4096];
    const tm_task_answer a = {.text = "so 1,500 or (B)", .n_text = 15, .logprob = logprob, .greedy = greedy};
    tm_buf lines = {0};
    CHECK(s->n_choices <= 1024 && s->n_gold + s->n_target > 0);
    if (t->n_metrics <= 4096 && tm_task_score(t, s, &a, value) == TM_OK &&
        tm_task_write(t, s, &a, value, &lines) == TM_OK) {
        tm_json_doc *doc;
        const char *end = memchr(lines.data, '\n', lines.len);
        tm_status rc = tm_json_parse(&doc, lines.data, (size_t)(end - lines.data), "line", TM_JSON_DUPLICATES_OK, 0);
        CHECK(rc == TM_OK || rc == TM_ENOMEM || rc == TM_EINPUT); /* deeper than a tree may be by one */
        if (rc == TM_OK) tm_json_free(doc);
    }
    tm_error_clear();
    tm_buf_free(&lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_begin(size);
    const char *text = (const char *)data, *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - text) : size;
    static const char whole[] = "{\"data\":\"r.jsonl\"}";
    input in = {.settings = end ? text : whole, .n_settings = end ? n : sizeof whole - 1};
    in.rows = end ? end + 1 : text;
    in.n_rows = end ? size - n - 1 : size;
    tm_task *t;
    const tm_task_opts o = {.read = read_file, .ctx = &in, .limit = 3};
    if (tm_task_open(&t, "t.json", &o) == TM_OK)
        for (size_t i = 0; i < t->n; i++) use(t, &t->sample[i]);
    tm_error_clear();
    tm_task_close(t);
    fuzz_end();
    return 0;
}

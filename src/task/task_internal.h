/* What the files of task share: TASK.json (task_open.c, task_metrics.c), rows (task_rows.c), prompts (task_prompt.c). */
#ifndef TIDEMILL_TASK_INTERNAL_H
#define TIDEMILL_TASK_INTERNAL_H

#include "task/task.h"
#include "text/chat/template.h"

/* ---- memory: all of a task goes at once ------------------------------------------------------------------------- */

typedef struct task_memory {
    struct task_chunk *chunk;
} task_memory;
void *task_alloc(task_memory *m, size_t n);                        /* zeroed, aligned for anything; NULL: recorded */
const char *task_text(task_memory *m, const char *text, size_t n); /* a copy, NUL-terminated; NULL: recorded */
uint64_t task_memory_bytes(const task_memory *m);
void task_memory_free(task_memory *m);

/* ---- TASK.json -------------------------------------------------------------------------------------------------- */

/* How something is had of a row: by a key of it, by a template over it, or it is said. All empty: it was not said. */
typedef struct task_field {
    const char *key;
    tm_template *by;
    const tm_json *said;
} task_field;

typedef enum task_kind { TASK_ANY, TASK_CHOICES, TASK_ANSWERS } task_kind; /* of rows that are wanted */
typedef struct task_settings {
    const char *path, *data, *fewshot_data;
    task_field text, target, choice;
    const char *description, *target_delimiter, *fewshot_delimiter;
    uint32_t fewshot;
    bool fewshot_random;
    uint64_t seed;
    task_kind kind;
    const tm_json *metrics, *filters; /* NULL: the kind's own */
} task_settings;

/* One row, as it was read. */
typedef struct task_row {
    uint64_t record, id;
    const char *doc;
    const char *question; /* NULL: `put` is, the prompts as they are */
    const char *const *choice;
    uint32_t n_choices;
    const uint32_t *gold;
    uint32_t n_gold;
    const char *const *target;
    uint32_t n_target;
    const tm_task_choice *put; /* [n_choices] arguments; of answers one, without text */
} task_row;
typedef struct task_rows {
    task_row *row;
    size_t n, cap;
} task_rows;

typedef struct task {
    tm_task pub; /* first */
    const tm_task_opts *opts;
    task_memory memory;
    task_settings set;
    tm_json_doc *doc; /* of TASK.json */
    tm_pattern **pattern;
    size_t n_patterns, cap_patterns;
    task_rows rows, pool; /* of the questions; of the examples */
    bool choices;         /* what rows are of */
    const char *place;    /* the row that is read, "FILE:17"; NULL: TASK.json is */
} task;

TM_MUST_USE tm_status task_read_settings(task *t, const char *text, size_t len);
/* generation_kwargs, of TASK.json or of a row's arguments. */
TM_MUST_USE tm_status task_take_generation(task *t, const tm_json *v);
TM_MUST_USE tm_status task_choose_metrics(task *t); /* once the kind of rows is known */
TM_MUST_USE tm_status task_read_rows(task *t, const char *path, uint64_t limit, task_rows *out, size_t *in_file);
TM_MUST_USE tm_status task_make_samples(task *t);
const char *task_bare(const task *t, const char *continuation); /* without the delimiter in front */
TM_MUST_USE tm_status task_strings(task *t, const tm_json *list, const char *what, const char *const **out,
                                   uint32_t *n); /* a text, or a list of texts */

#endif

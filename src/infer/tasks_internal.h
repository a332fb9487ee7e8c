/* What is put to an engine for a task's samples. */
#ifndef TIDEMILL_INFER_TASKS_INTERNAL_H
#define TIDEMILL_INFER_TASKS_INTERNAL_H

#include "infer/engine.h"
#include "io/file/file.h"
#include "session/text.h"
#include "task/task.h"

/* One prompt: to be answered, or with a choice behind it whose log-probabilities are wanted. */
typedef struct task_ask {
    tm_ids ids;
    size_t score_from; /* of a choice: its first token */
    size_t sample;
    uint32_t choice;
    struct answered *to; /* whoever asks sets it */
} task_ask;
typedef struct task_asks {
    task_ask *ask; /* in the order of samples and choices */
    size_t n, cap;
    size_t longest; /* tokens of prompt and answer together */
    uint64_t cut;   /* prompts that lost their beginning */
} task_asks;
/* As lm-evaluation-harness encodes them: a context and its choice as one text, white space at the context's end with the choice;
 * a prompt with the tokenizer's special tokens, a conversation with what its template prints. A prompt that does not fit
 * `positions` loses its beginning. TM_EINPUT: the answer alone does not fit, or there is no chat template. */
TM_MUST_USE tm_status task_encode(const tm_task *t, const text_tools *text, uint64_t positions, task_asks *out);
void task_asks_free(task_asks *a);

/* ---- evaluate_tasks.c: all tasks of a command or of a run ----------------------------------------------------------- */

/* Whose questions they are. */
typedef struct tasks_of {
    const char *model, *tokenizer; /* tokenizer: a folder with another one than the model's; NULL: the model's */
    uint64_t host_bytes;           /* as text_open has it */
    uint32_t side_by_side;
} tasks_of;
typedef struct tasks {
    tasks_of of;
    tm_task **task;
    size_t n;
    struct asker *asker; /* [n] */
    text_tools text;     /* until an engine has it */
    uint64_t positions;  /* that the model has */
    size_t longest;      /* prompt and answer */
    uint64_t hash;       /* of the files, in the order in which they were read */
} tasks;
/* Files are read, questions encoded; `text` stays open. tasks_close in any case. */
TM_MUST_USE tm_status tasks_open(tasks *all, const tasks_of *of, const tm_eval_task_args *a);
TM_MUST_USE tm_status tasks_open_text(tasks *all); /* again, after an engine had it */
/* What an engine has to know of them; it takes `text`, where that is open. */
void tasks_set_engine(tasks *all, tm_engine_opts *o);
/* At most: no answer ends before its longest, and no prompts begin alike. */
TM_MUST_USE tm_status tasks_seconds(const tasks *all, tm_engine *engine, double *seconds);
/* As often as is liked. tm_eval_tasks_free in any case. */
TM_MUST_USE tm_status tasks_answer(tasks *all, tm_engine *engine, tm_append *samples, tm_eval_tasks *out);
void tasks_close(tasks *all);

#endif

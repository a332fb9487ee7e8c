/* What is put to an engine for a task's samples. */
#ifndef TIDEMILL_INFER_TASKS_INTERNAL_H
#define TIDEMILL_INFER_TASKS_INTERNAL_H

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

#endif

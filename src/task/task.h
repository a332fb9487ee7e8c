/* task: questions of a file, how they are put, and what the answers are worth.
 *
 * A task is a file of rows, or a TASK.json that names one and says more; its keys are those of lm-evaluation-harness's
 * YAML, as far as they are here (docs/USING.md lists them). Rows have one of these forms:
 *
 *   {"prompt", "choices": [text...], "gold"}   which choice: its number from 0, its text, or a list of these
 *   {"prompt", "answer"}                       what is to be answered: a text, or a list of them
 *   {"doc", "arguments", "target"}             lm-evaluation-harness's samples (--log_samples): arguments are put as they are
 *   anything                                   where TASK.json has doc_to_text, doc_to_target, doc_to_choice
 *
 * A key is looked for in the row, then in its "doc". Rows of choices are asked for the log-likelihood of each choice behind
 * the prompt, the others are answered by generation; all rows of a task are of one kind.
 *
 * Knows no engine: it says what to ask, and takes what was answered. Opens no files but through `read`.
 * Ownership: everything that a task hands out lives until close. Threads: one at a time.
 *
 *     TM_TRY(tm_task_open(&t, "gsm8k.json", &(tm_task_opts){.read = slurp, .limit = 200}));
 *     for (i = 0; i < t->n; i++) {
 *         ask(t, &t->sample[i], &answer);
 *         TM_TRY(tm_task_score(t, &t->sample[i], &answer, values + i * t->n_metrics));
 *     }
 *     mean = tm_score_mean(values + m, t->n, t->n_metrics);
 *     tm_task_close(t);
 */
#ifndef TIDEMILL_TASK_H
#define TIDEMILL_TASK_H

#include "task/score.h"

typedef enum tm_metric_kind {
    TM_METRIC_EXACT_MATCH, /* of texts: the extracted answer is one of the targets. Of choices: a gold one is what greedy gives */
    TM_METRIC_NUMERIC,  /* the last number of both is the same */
    TM_METRIC_ACC,      /* the most likely choice is a gold one; of a lone choice: it is what greedy gives */
    TM_METRIC_ACC_NORM, /* by log-likelihood over characters, as the harness has it */
    TM_METRIC_ACC_BYTES /* over bytes */
} tm_metric_kind;
typedef struct tm_metric {
    tm_metric_kind kind;
    const char *name;   /* "exact_match" */
    const char *filter; /* name of what it is taken by; "none" */
    uint32_t extract;   /* of the task's */
    tm_compare compare;
} tm_metric;

typedef struct tm_task_choice {
    const char *context; /* what it stands behind: as tm_task_sample.prompt */
    const char *text;    /* with the delimiter that the context does not have */
} tm_task_choice;
typedef struct tm_task_sample {
    uint64_t id;                  /* from 0; of the harness's samples, doc_id */
    uint64_t record;              /* in its file, from 1 */
    const char *doc;              /* JSON of it */
    const char *prompt;           /* text, or with the task's `chat` JSON of {"messages": [...]} */
    const tm_task_choice *choice; /* [n_choices]; 0: text is to be answered */
    uint32_t n_choices;
    const double *characters, *bytes; /* [n_choices] of the choice alone */
    const uint32_t *gold;             /* [n_gold] choices that are right */
    uint32_t n_gold;
    const char *const *target; /* [n_target] texts that are right */
    uint32_t n_target;
} tm_task_sample;

/* How text is answered. */
typedef struct tm_task_drawing {
    uint32_t max_new_tokens;
    const char *const *stop; /* [n_stop] */
    uint32_t n_stop;
    double temperature; /* 0: greedy */
    double top_p, min_p;
    uint32_t top_k;
    uint64_t seed; /* sample i draws with seed + i */
} tm_task_drawing;

typedef struct tm_task {
    const char *name;
    const char *data; /* its file, for messages */
    bool chat;        /* prompts go through the chat template */
    uint32_t fewshot; /* examples before each question */
    tm_task_sample *sample;
    size_t n, in_file; /* with the limit; without */
    const tm_metric *metric;
    uint32_t n_metrics;
    const tm_extract *extract; /* [n_extracts], each with its name */
    const char *const *extract_name;
    uint32_t n_extracts;
    tm_task_drawing drawing;
    uint64_t bytes; /* of memory that its samples hold */
} tm_task;

typedef struct tm_task_opts {
    tm_status (*read)(void *ctx, const char *path, tm_buf *out);
    void *ctx;
    uint64_t limit; /* of samples, the first; 0: all */
    bool chat;      /* whatever the file says */
    bool fewshot_given, seed_given;
    uint32_t fewshot;
    uint64_t seed;
    uint32_t max_new_tokens; /* 0: the file's, else 256 */
} tm_task_opts;
/* TM_EINPUT: "FILE:17: ..." and what is wrong there; TM_EUNSUPPORTED: what the harness has and this has not. */
TM_MUST_USE tm_status tm_task_open(tm_task **out, const char *path, const tm_task_opts *opts);
void tm_task_close(tm_task *t); /* NULL is fine */

/* What was answered: text, or of each choice its log-likelihood and whether greedy gives it. */
typedef struct tm_task_answer {
    const char *text;
    size_t n_text;
    const double *logprob; /* [n_choices] */
    const bool *greedy;
} tm_task_answer;
/* value [n_metrics]: what the sample is worth by each metric. */
TM_MUST_USE tm_status tm_task_score(const tm_task *t, const tm_task_sample *s, const tm_task_answer *a, double *value);
/* Appends a line of the harness's samples for each extraction (of choices: one): doc_id, doc, target, arguments, resps,
 * filtered_resps, filter, metrics and their values. */
TM_MUST_USE tm_status tm_task_write(const tm_task *t, const tm_task_sample *s, const tm_task_answer *a,
                                    const double *value, tm_buf *out);

#endif

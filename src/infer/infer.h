/* infer: jobs that compute forward, or a step without training: probing, evaluation, generation, the bench of a step.
 * Errors: as train/train.h. */
#ifndef TIDEMILL_INFER_H
#define TIDEMILL_INFER_H

#include "model/model.h"
#include "session/args.h"

/* What a forward job needs of the tiers. */
typedef struct tm_tier_args {
    uint64_t host_budget;     /* bytes; 0: default (80% of what is available); UINT64_MAX: unlimited */
    const char *offload_path; /* NULL: everything has to fit in memory */
    const char *device;       /* NULL: "cpu" */
    uint64_t device_budget;   /* of its memory; 0: not given; UINT64_MAX: unlimited */
    const char *adapter;      /* PEFT folder that the model is run with; NULL: by itself */
} tm_tier_args;

typedef struct tm_probe_args {
    const char *model, *input, *output;
    tm_dtype precision; /* TM_F32 or TM_BF16 */
    bool gradients;
    tm_tier_args tiers;
} tm_probe_args;
TM_MUST_USE tm_status tm_probe_run(const tm_probe_args *args);

/* Questions of task files (task/task.h), by lm-evaluation-harness's rules. Zeroed: all of the file, as it says. */
typedef struct tm_eval_task_args {
    const char *const *file; /* [n] */
    size_t n;
    const char *samples; /* file: what was answered, a line a sample; NULL: not kept */
    uint64_t limit;      /* samples of each, the first; 0: all */
    bool chat;           /* prompts go through the chat template */
    bool fewshot_given, seed_given;
    uint32_t fewshot;
    uint64_t seed;
    uint32_t max_new_tokens; /* 0: the file's, else 256 */
    uint32_t side_by_side;   /* prompts; 0: 16 */
} tm_eval_task_args;

/* The objective's loss and metrics over data; answers to tasks. `config`: a configuration's file, or the OUTPUT_DIR of a run,
 * for what is said nowhere else: objective, data.eval, how rows are made, precision, tiers. The model that is judged is
 * `model` with tiers.adapter, else what the run has made, else the configuration's. A reference is that adapter's base,
 * objective.reference, or the configuration's model. */
typedef struct tm_eval_args {
    const char *config;     /* NULL: sft, in fp32; model and data are there then */
    const char *const *set; /* [n_set] key.path=value, over the configuration */
    size_t n_set;
    const char *model;       /* NULL: the configuration's */
    const char *const *data; /* [n_data]; none: the configuration's, or with tasks none */
    size_t n_data;
    tm_eval_task_args tasks;
    tm_dtype precision;
    bool precision_given;
    uint32_t seq_len, rows;  /* samples a micro-batch; 0: the configuration's, else 2048 tokens, 1 sample */
    uint32_t max_new_tokens; /* exact match: how much to generate; 0: nothing */
    bool exact_match;        /* answer every conversation greedily and compare with its last message */
    uint32_t show;           /* exact match: answers to print to stderr */
    tm_tier_args tiers;
} tm_eval_args;
enum { TM_EVAL_METRICS = 8 };
/* Of one of several files of data, where the loss is one of tokens and rows are of one file. */
typedef struct tm_eval_file {
    char *name;
    double loss;
    uint64_t label_tokens;
} tm_eval_file;
typedef struct tm_eval_metric {
    char *name, *filter;
    double value, error; /* mean, and its standard error; NAN: of one sample */
} tm_eval_metric;
typedef struct tm_eval_task {
    char *name;
    uint32_t fewshot, n_metrics;
    tm_eval_metric *metric;
    uint64_t samples, in_file; /* that were asked; that there are */
    uint64_t cut;              /* prompts that lost their beginning */
} tm_eval_task;
typedef struct tm_eval_tasks {
    tm_eval_task *task;
    size_t n;
} tm_eval_tasks;
void tm_eval_tasks_free(tm_eval_tasks *r);
typedef struct tm_eval_result {
    const char *objective; /* NULL: no data, tasks alone */
    bool by_sample;        /* the loss is a mean over samples, else over label tokens, which perplexity is of */
    double loss, perplexity;
    const char *metric[TM_EVAL_METRICS]; /* [n_metrics], as in log.jsonl */
    double value[TM_EVAL_METRICS];       /* NAN: there is none */
    uint32_t n_metrics;
    uint64_t tokens, label_tokens, rows, samples; /* a pair is a sample of two rows */
    uint64_t label_bytes;                         /* of text that the labels stand for; 0: not known */
    double bits_per_byte;                         /* NAN: not known */
    tm_eval_file *file;                           /* [n_files] */
    uint32_t n_files;
    uint64_t exact, compared;
    tm_eval_tasks tasks;
    double seconds;
} tm_eval_result;
/* tm_eval_free in any case. */
TM_MUST_USE tm_status tm_eval_run(const tm_eval_args *args, tm_eval_result *out);
void tm_eval_free(tm_eval_result *r);

/* Of tm_train_args.scorer: eval_tasks of a configuration, by an engine on the host's processors. What it says is what `tidemill eval
 * --task` says of the same weights. */
extern const tm_scorer tm_task_scorer;

/* The held-out prompts that a finished run left in its OUTPUT_DIR (report/report.h), answered greedily by the model that it
 * began with, if that lies somewhere, and by the one that it made, within the run's own budget. Nothing there: nothing is done. */
typedef struct tm_answers_args {
    const char *run; /* OUTPUT_DIR */
    double
        most_seconds; /* by the plan; where it is more they are left out, which the file says; INFINITY: in any case */
} tm_answers_args;
typedef struct tm_answers {
    uint32_t questions, answered;
    double predicted_seconds, seconds;
} tm_answers;
TM_MUST_USE tm_status tm_answers_run(const tm_answers_args *args, tm_answers *out);

/* Prompts continued side by side, each as often as `answers` says. */
struct tm_sampling; /* engine.h */
typedef struct tm_generate_args {
    const char *model;
    const char *const *prompt; /* [n_prompts] raw text, or */
    uint32_t n_prompts;
    const char *messages;    /* a file with {"messages": [...]} */
    uint32_t max_new_tokens; /* 0: none */
    uint32_t answers;        /* to each prompt; 0: 1. Answer i draws with the seed + i */
    const struct tm_sampling *sampling;
    const char *const *stop; /* [n_stop] */
    uint32_t n_stop;
    tm_dtype precision;
    bool precision_given;                                     /* else the model's own type */
    void (*show)(void *ctx, const char *text, size_t length); /* the first answer, as it comes; NULL */
    void *show_ctx;
    tm_tier_args tiers;
} tm_generate_args;
typedef struct tm_generated {
    uint32_t prompt, answer; /* which of them it is */
    int32_t *prompt_ids, *ids;
    size_t n_prompt, n_ids;
    tm_buf text;               /* special tokens left out; and what a stop string begins */
    const char *finish_reason; /* "stop" or "length" */
} tm_generated;
/* (*out)[*n], prompt after prompt. */
TM_MUST_USE tm_status tm_generate_run(const tm_generate_args *args, tm_generated **out, uint32_t *n);
void tm_generated_free(tm_generated *g, uint32_t n); /* NULL is fine */

/* tidemill bench step: the training step as it would be run, N times, and N times each with one half left out. The
 * offload files are made and removed; OUTPUT_DIR is not touched. */
typedef struct tm_step_bench_args {
    tm_train_args train;
    const char *offload_path; /* NULL: the configuration's, which must name one */
    const char *hardware;     /* file whose rates between ranks count in the prediction; NULL: nominal ones */
    uint32_t steps;           /* of each sort; 0: 4 */
    bool no_measure;          /* predict from the profile alone */
} tm_step_bench_args;
typedef struct tm_step_bench {
    uint64_t parameters, tokens; /* tokens: of a step and rank */
    uint32_t rank, ranks;        /* under mpirun: the first rank's figures are printed; I/O is with the exchanges */
    double comm_seconds;         /* of the real step: exchanges under way */
    const char *update, *activations, *order;
    uint64_t resident_bytes, window_bytes, read_bytes, write_bytes; /* planned; counted bytes are equal, or it fails */
    uint64_t planned_peak_bytes, peak_bytes;                        /* of the process: as planned, VmHWM */
    double flops;                                                   /* of a step, what is recomputed among them */
    double model_flops; /* of a step that recomputes nothing: three times forward's */
    double peak_flops;  /* a second: multiply-adds on registers, as `bench gemm` measures them */
    double step_seconds, compute_seconds, io_seconds; /* medians */
    double bound_seconds; /* the larger of the two in forward, in backward and after the norm, added: with clipping an
                             update cannot move from one to the other */
    double predicted_seconds, predicted_compute_seconds, predicted_io_seconds;
    char basis[96]; /* of the prediction */
} tm_step_bench;
TM_MUST_USE tm_status tm_step_bench_run(const tm_step_bench_args *args, tm_step_bench *out);

#endif

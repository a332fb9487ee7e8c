/* train: where model, data, tiers, optimizer and formats meet. The commands of tools/ call these.
 *
 * Every job - training, evaluation, probing, generation, export - is a program (offload.h) written by build.c, compiled
 * under a budget and run by the same executor; ops.c holds what the operations do. Nothing here reads or writes a tier
 * outside an operation.
 *
 * Errors: TM_EINPUT, TM_EUNSUPPORTED and TM_EBUDGET before anything was started (exit 2); others while running (exit
 * 1). One job at a time in a process: the matrix library and OpenMP are process-wide.
 */
#ifndef TIDEMILL_TRAIN_H
#define TIDEMILL_TRAIN_H

#include "base/base.h"
#include "model/model.h"

typedef struct tm_train_args {
    const char *config;     /* path of the JSON file */
    const char *const *set; /* --set key.path=value */
    size_t n_set;
    const char *resume;  /* "auto" (default), "never", or a directory */
    uint64_t order_seed; /* != 0: random legal orders of every plan (tests) */
    bool quiet;          /* no sample, no progress */
} tm_train_args;
TM_MUST_USE tm_status tm_train_run(const tm_train_args *args);

/* What `tidemill plan` says: the step as it would be run, from config.json and the configuration; the data, where they
 * are there, for the longest rows. Filled in as far as known when TM_EBUDGET is returned. */
typedef struct tm_plan_report {
    bool fits;
    uint64_t parameters, host_budget_bytes;       /* UINT64_MAX: unlimited */
    uint64_t host_peak_bytes, minimum_host_bytes; /* the minimum does not depend on the budget */
    uint64_t device_peak_bytes, disk_bytes;
    uint64_t read_bytes_per_step, write_bytes_per_step, resident_bytes, window_bytes;
    double seconds_per_step;                  /* at nominal rates: nothing is measured yet */
    const char *bottleneck;                   /* "disk" or "compute" */
    const char *update, *activations, *order; /* "U" | "F", "keep" | "recompute", "unit" | "stage" */
    uint32_t operations, micro_batches, rows, seq;
} tm_plan_report;
TM_MUST_USE tm_status tm_plan_run(const tm_train_args *args, tm_plan_report *out);

/* What a forward job needs of the tiers. */
typedef struct tm_tier_args {
    uint64_t host_budget;     /* bytes; 0: default (80% of what is available); UINT64_MAX: unlimited */
    const char *offload_path; /* NULL: everything has to fit in memory */
} tm_tier_args;

typedef struct tm_probe_args {
    const char *model, *input, *output;
    tm_dtype precision; /* TM_F32 or TM_BF16 */
    bool gradients;
    tm_tier_args tiers;
} tm_probe_args;
TM_MUST_USE tm_status tm_probe_run(const tm_probe_args *args);

typedef struct tm_eval_args {
    const char *model, *data;
    tm_dtype precision;
    uint32_t seq_len, rows;  /* 0: 2048 tokens, 1 row a micro-batch */
    uint32_t max_new_tokens; /* exact match: how much to generate; 0: 64 */
    bool exact_match;        /* answer every conversation greedily and compare with its last message */
    uint32_t show;           /* exact match: answers to print to stderr */
    tm_tier_args tiers;
} tm_eval_args;
typedef struct tm_eval_result {
    double loss, perplexity; /* mean over label tokens */
    uint64_t tokens, label_tokens, rows;
    uint64_t exact, compared;
    double seconds;
} tm_eval_result;
TM_MUST_USE tm_status tm_eval_run(const tm_eval_args *args, tm_eval_result *out);

typedef struct tm_generate_args {
    const char *model;
    const char *prompt;      /* raw text, or */
    const char *messages;    /* a file with {"messages": [...]} */
    uint32_t max_new_tokens; /* 0: 256 */
    double temperature;      /* 0: greedy */
    uint64_t seed;
    tm_dtype precision;
    tm_tier_args tiers;
} tm_generate_args;
typedef struct tm_generated {
    int32_t *prompt_ids, *ids;
    size_t n_prompt, n_ids;
    tm_buf text;               /* special tokens left out */
    const char *finish_reason; /* "stop" or "length" */
} tm_generated;
TM_MUST_USE tm_status tm_generate_run(const tm_generate_args *args, tm_generated *out);
void tm_generated_free(tm_generated *g);

#endif

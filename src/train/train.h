/* train: where model, data, tiers, optimizer and formats meet. The commands of tools/ call these.
 *
 * Every job - training, evaluation, probing, generation, export - is a program (offload/plan/plan.h) written by build.c, compiled
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
#include "offload/plan/plan.h"

typedef struct tm_train_args {
    const char *config;     /* path of the JSON file */
    const char *const *set; /* --set key.path=value */
    size_t n_set;
    const char *resume;         /* "auto" (default), "never", or a directory */
    uint64_t order_seed;        /* != 0: random legal orders of every plan (tests) */
    bool quiet;                 /* no sample, no progress */
    bool profile;               /* the table of where a step's seconds went, at the end */
    const char *trace;          /* Chrome trace JSON of every step, as simulated and as it ran; NULL: not */
    bool allow_numerics_change; /* go on though another ISA, library or number of threads will compute */
    int64_t replay_every;       /* every so many steps one is computed twice and its bits compared; 0: none */
    double grace_seconds;       /* after a signal: how long the step under way may take to end; 0: 30 */
    bool *reported;             /* NULL, or set: on a failure, whether another rank prints it */
    bool *resumable;            /* NULL, or set: TM_ESIGNAL was returned and a commit can be continued from */
} tm_train_args;
/* TM_ESIGNAL: a request to stop (base.h, tm_stop_catch) ended it; the error's text names the step that can be resumed. */
TM_MUST_USE tm_status tm_train_run(const tm_train_args *args);

typedef struct tm_plan_args {
    tm_train_args train;
    const char *hardware; /* a hardware file (offload/machine.h): another machine than this one; NULL: this one */
    const char *const *set_hardware; /* [n_set_hardware] "KEY=VALUE" in place of what the hardware file says */
    size_t n_set_hardware;
    const char *save_hardware; /* such a file of this machine, as far as it is known; NULL: not */
    bool no_measure;           /* this machine: the profile and rates only, nothing is timed */
    double tbw;                /* terabytes that may be written to the disk over its life; 0: as the machine says */
    const char *timeline;      /* the simulated step drawn to FILE.svg or FILE.html; NULL: not */
    const char *trace;         /* the simulated step as Chrome trace JSON; NULL: not */
} tm_plan_args;

/* One key of the configuration and what to set it to. */
typedef struct tm_plan_change {
    const char *key; /* "memory.host_budget", "memory.slots", "per_device_train_batch_size", "data.seq_len", ...; NULL:
                        no single setting makes it fit */
    uint64_t value;
} tm_plan_change;

/* A path of the offload files; bytes: of a node. */
typedef struct tm_plan_path {
    char name[160]; /* as configured, cut short */
    uint32_t kinds; /* what may lie there: a bit a tm_kind */
    uint64_t bytes, free_bytes;
} tm_plan_path;
/* What `tidemill plan` says: the step as it would be run, from config.json and the configuration; the data, where they
 * are there, for the longest rows. Filled in as far as known when TM_EBUDGET is returned. With ranks, bytes are those
 * of one rank, and disk_bytes, disk_free_bytes and wear those of a node. */
typedef struct tm_plan_report {
    bool fits;
    char autos[2048];      /* tm_config_autos: what the configuration's "auto" became, as JSON; "": there is none */
    const char *limit;     /* "": fits; else what is too small: "host", "device" or "disk" */
    tm_plan_change change; /* the smallest that fits, where it does not */
    uint64_t parameters, host_budget_bytes;          /* UINT64_MAX: unlimited */
    uint64_t host_peak_bytes, minimum_host_bytes;    /* the minimum does not depend on the budget */
    uint64_t device_peak_bytes, device_budget_bytes; /* UINT64_MAX: unlimited */
    uint64_t minimum_device_bytes;                   /* likewise */
    uint64_t disk_bytes, disk_free_bytes;            /* free: 0 where unknown */
    uint64_t read_bytes_per_step, write_bytes_per_step, resident_bytes, window_bytes;
    uint64_t shared_window_bytes; /* of a node: gathered weights that its ranks share; host_peak_bytes has one share */
    uint64_t read_bytes[TM_KINDS], write_bytes[TM_KINDS]; /* of a step */
    uint64_t link_bytes_per_step, network_bytes_per_step; /* that a rank sends within its node, to other nodes */
    double seconds_per_step, tokens_per_second;           /* simulated; tokens of all ranks, padding left out */
    double tokens_per_step, padded_tokens_per_step;       /* means over the run; the second: all that are computed */
    char rows_basis[256];                                 /* where the lengths of rows come from */
    double timing_disturbed; /* the part of the timing just now that others disturbed; 0: none, or nothing was timed */
    /* The whole run, import, looks at the state and the last model included; steps 0: their number is not known. Bytes
     * of this rank; written: to the offload paths and as models. Without a device alone (0: not known). */
    int64_t run_steps;
    double run_seconds;
    uint64_t run_read_bytes, run_write_bytes;
    double run_evaluations, run_commits, run_models; /* how many */
    char seconds_basis[160];                         /* where the seconds of operations come from */
    double busy_seconds[TM_ENGINES], wait_seconds[TM_ENGINES];
    bool has_device;        /* TM_ENGINE_CPU is not where the model is computed */
    const char *bottleneck; /* tm_plan_engine_name of the engine that is busy longest */
    uint32_t n_paths;       /* of this machine: what is written, by nvme_path in its order */
    tm_plan_path path[16];
    double path_tb_written_per_1000_steps[16];
    double tb_written_per_1000_steps, tbw, drive_days; /* until tbw is used up; 0: tbw is unknown or nothing written */
    const char *update, *activations, *order;          /* "U", "F", ..; "keep", "recompute", ..; "unit" or "stage" */
    const char *strategy, *placement;                  /* "" without ranks; "" without a device */
    uint32_t nodes, ranks;
    uint32_t rank; /* under mpirun: whose report this is; the first rank's is printed */
    uint32_t operations, micro_batches, rows, seq;
    double planning_seconds, proof_seconds; /* of planning: proving the plans that would run, and their link */
} tm_plan_report;
TM_MUST_USE tm_status tm_plan_run(const tm_plan_args *args, tm_plan_report *out);
/* The same step by every strategy and with parameters and optimizer in every place that the machine has. */
enum { TM_ADVICE_ROWS = 40 };
typedef struct tm_advice_row {
    const char *strategy;          /* "ddp", ...; "" on one rank */
    const char *param, *optimizer; /* offload_param.device, offload_optimizer.device */
    tm_plan_report plan;
    uint64_t nic_bytes, disk_bytes; /* a step: sent by a node to others; read and written by a node */
} tm_advice_row;
typedef struct tm_advice {
    char machine[96];
    uint32_t ranks, nodes, rank; /* rank: as in tm_plan_report */
    uint64_t parameters;
    tm_advice_row row[TM_ADVICE_ROWS];
    uint32_t n, best; /* best == n: nothing fits */
    char reason[640];
    /* What the best row takes beside "strategy" and the places; "" where that is enough. */
    uint32_t stage;      /* zero_optimization.stage has to be said as well; UINT32_MAX: it has not */
    char conflict[2048]; /* what the configuration says otherwise in spite of that */
} tm_advice;
/* TM_EBUDGET: nothing fits. Under mpirun for these ranks (nodes have to be alike), else for the hardware file's. */
TM_MUST_USE tm_status tm_plan_advise(const tm_plan_args *args, tm_advice *out);
/* "disk_read", "compute", ...: an engine as reports and logs name it. */
const char *tm_plan_engine_name(tm_engine engine, bool has_device);

/* What a forward job needs of the tiers. */
typedef struct tm_tier_args {
    uint64_t host_budget;     /* bytes; 0: default (80% of what is available); UINT64_MAX: unlimited */
    const char *offload_path; /* NULL: everything has to fit in memory */
    const char *device;       /* NULL: "cpu" */
    uint64_t device_budget;   /* of its memory; 0: not given; UINT64_MAX: unlimited */
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
    uint32_t max_new_tokens; /* exact match: how much to generate; 0: nothing */
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
    uint32_t max_new_tokens; /* 0: none */
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

/* planner: what a training step would take, without training. The commands `plan` and `plan --advise` call this.
 *
 * Errors: as train/train.h; TM_EBUDGET: it does not fit, and the report says what would. */
#ifndef TIDEMILL_PLANNER_H
#define TIDEMILL_PLANNER_H

#include "offload/plan/plan.h"
#include "session/args.h"

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
    uint64_t parameters, learning;
    uint64_t host_budget_bytes;                      /* UINT64_MAX: unlimited */
    uint64_t host_peak_bytes, minimum_host_bytes;    /* the minimum does not depend on the budget */
    uint64_t device_peak_bytes, device_budget_bytes; /* UINT64_MAX: unlimited */
    uint64_t minimum_device_bytes;                   /* likewise */
    uint64_t disk_bytes, disk_free_bytes;            /* free: 0 where unknown */
    uint64_t read_bytes_per_step, write_bytes_per_step, resident_bytes, window_bytes;
    uint64_t decoded_bytes;       /* of resident_bytes: weights that do not learn, decoded once */
    uint64_t shared_window_bytes; /* of a node: gathered weights that its ranks share; host_peak_bytes has one share */
    uint64_t read_bytes[TM_KINDS], write_bytes[TM_KINDS]; /* of a step */
    uint64_t link_bytes_per_step, network_bytes_per_step; /* that a rank sends within its node, to other nodes */
    double seconds_per_step, tokens_per_second;           /* simulated; tokens of all ranks, padding left out */
    double tokens_per_step, padded_tokens_per_step;       /* means over the run; the second: all that are computed */
    char rows_basis[256];                                 /* where the lengths of rows come from */
    double timing_disturbed;  /* the part of the timing just now that others disturbed; 0: none, or nothing was timed */
    double reference_seconds; /* of asking a reference before step 1; 0: none is asked, or there are no data */
    /* The whole run, reference, import, looks at the state and the last model included; steps 0: their number is not known. Bytes
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
    const char *strategy;                              /* "" without ranks */
    char placement[64];                                /* of the state, on GPUs of a hardware file; else "" */
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
const char *tm_plan_engine_name(tm_op_engine engine, bool has_device);

#endif

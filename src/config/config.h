/* config: what one JSON file, the DeepSpeed file that it may name, and --set say, resolved into a plain struct.
 *
 * One table (schema.c) of every key (path, type, default, range, help, alias, DeepSpeed's or ours) drives validation,
 * defaults, suggestions, `tidemill train --keys` and the documentation. Order of the layers:
 *
 *   defaults  <  the file's keys, ours or DeepSpeed's  <  the file named by "deepspeed"  <  --set
 *
 * Two spellings of one setting (learning_rate and optimizer.params.lr) are never layered: if both are given and differ,
 * that is a mismatch, and all mismatches are reported in one error. "auto" takes the other spelling's value, or ours by
 * default, as transformers' Trainer does. All errors are TM_EINPUT or TM_EUNSUPPORTED (exit 2) and say where:
 * FILE:LINE:COLUMN, or --set KEY=VALUE.
 *
 * Ownership: a tm_config owns every string that it points to. Plain data: read it from any thread.
 *
 *     tm_config_opts opts = {.name = path, .set = set, .n_set = n, .read_file = slurp};
 *     TM_TRY(tm_config_load(&cfg, text.data, text.len, &opts));
 *     TM_TRY(tm_config_resolve_model(cfg, model.hidden_size)); // once the model's config.json is read
 *     TM_TRY(tm_config_resolve_steps(cfg, steps_per_epoch));   // once the data are scanned
 *     lr = tm_lr_at(&cfg->schedule, step);
 *     tm_config_free(cfg);
 */
#ifndef TIDEMILL_CONFIG_H
#define TIDEMILL_CONFIG_H

#include "adapter/adapter.h"
#include "base/objective_spec.h"
#include "base/base.h"
#include "data/dataset.h"
#include "model/model.h"
#include "optim/optim.h"

/* memory.device_budget: "unlimited", more than there will be */
#define TM_DEVICE_UNLIMITED ((uint64_t)1 << 46)
/* offload_param.device, offload_optimizer.device */
typedef enum tm_place {
    TM_PLACE_AUTO, /* the planner decides; also where the block is absent */
    TM_PLACE_NONE, /* stays on the compute device (device "cpu": in host memory) */
    TM_PLACE_CPU,  /* host memory only */
    TM_PLACE_NVME  /* lives in files; spare budget may cache it */
} tm_place;
/* What a path is for. */
enum { TM_PATH_PARAM = 1, TM_PATH_OPTIMIZER = 2 };
typedef enum tm_activations { TM_ACT_AUTO, TM_ACT_KEEP, TM_ACT_SPILL, TM_ACT_RECOMPUTE } tm_activations;
typedef enum tm_update { TM_UPDATE_AUTO, TM_UPDATE_U, TM_UPDATE_F, TM_UPDATE_B } tm_update;
typedef enum tm_budget_kind {
    TM_BUDGET_DEFAULT, /* not given: 80% of what is available (DESIGN section 13) */
    TM_BUDGET_BYTES,
    TM_BUDGET_UNLIMITED
} tm_budget_kind;
typedef enum tm_save_dtype {
    TM_SAVE_AUTO, /* fp32 in fp32 mode, else bf16 */
    TM_SAVE_F32,
    TM_SAVE_BF16,
    TM_SAVE_F16
} tm_save_dtype;

typedef enum tm_quantize { TM_QUANTIZE_NONE, TM_QUANTIZE_NF4, TM_QUANTIZE_FP4 } tm_quantize;

/* What FSDP would gather together, and so how much is gathered ahead of its use. DEFAULT: stage3_prefetch_bucket_size
 */
typedef enum tm_wrap { TM_WRAP_DEFAULT, TM_WRAP_BLOCK, TM_WRAP_SIZE, TM_WRAP_NONE } tm_wrap;

/* How ranks share the state of a model: every strategy is one row here, and nowhere else. Rows stand from the strategy
 * that asks least of its user to the one that asks most. Columns:
 *   id        TM_STRATEGY_id
 *   name      the word of the key "strategy"
 *   also      another word for it, with a bar behind it, or ""
 *   stage     DeepSpeed's zero_optimization.stage; the first row of a stage is what the stage alone means
 *   sharding  FSDP's sharding_strategy, or NULL where FSDP has none
 *   divides   TM_DIVIDES_*: what no rank holds whole
 *   by_node   it needs several nodes with the same number of ranks on each
 * zero2 is zero1 here: a whole gradient never exists (DESIGN section 4). hsdp divides all within a node and replicates
 * across nodes. hpz is zero3 with a second copy of the weights, divided within the node. */
enum { TM_DIVIDES_STATE = 1, TM_DIVIDES_WEIGHTS = 2, TM_DIVIDES_ALL = 3 };
#define TM_STRATEGIES(ROW)                                                                                             \
    ROW(DDP, "ddp", "", 0, "NO_SHARD", 0, false)                                                                       \
    ROW(ZERO1, "zero1", "", 1, NULL, TM_DIVIDES_STATE, false)                                                          \
    ROW(ZERO2, "zero2", "", 2, "SHARD_GRAD_OP", TM_DIVIDES_STATE, false)                                               \
    ROW(ZERO3, "zero3", "fsdp|", 3, "FULL_SHARD", TM_DIVIDES_ALL, false)                                               \
    ROW(HSDP, "hsdp", "", 3, "HYBRID_SHARD", TM_DIVIDES_ALL, true)                                                     \
    ROW(HPZ, "hpz", "", 3, NULL, TM_DIVIDES_ALL, true)
#define TM_STRATEGY_ID(id, ...) TM_STRATEGY_##id,
typedef enum tm_strategy { TM_STRATEGIES(TM_STRATEGY_ID) TM_STRATEGY_COUNT } tm_strategy;
typedef struct tm_strategy_row {
    const char *name, *also;
    uint32_t stage;
    const char *sharding;
    unsigned divides;
    bool by_node;
} tm_strategy_row;
extern const tm_strategy_row tm_strategy_rows[TM_STRATEGY_COUNT]; /* by tm_strategy */

/* A list of strings (no_decay, nvme_path). */
typedef struct tm_strings {
    const char *const *item;
    uint32_t n;
} tm_strings;
/* A file of data, or a folder of them. */
typedef struct tm_data_item {
    const char *path;
    uint64_t samples; /* of it in an epoch; 0: weight times as many as it has */
    double weight;
    tm_data_columns columns;
    tm_sample_by sample_by;
} tm_data_item;
typedef struct tm_data_items {
    const tm_data_item *item;
    uint32_t n;
} tm_data_items;

/* bfd: whole samples, apart; bfd_split: of longer ones what a row holds; wrapped: one text, cut into rows. */
typedef enum tm_packing { TM_PACKING_BFD, TM_PACKING_BFD_SPLIT, TM_PACKING_WRAPPED } tm_packing;
enum { TM_BY_EPOCH_SAVE = 1, TM_BY_EPOCH_EVAL = 2, TM_BY_EPOCH_LOG = 4 };
typedef struct tm_config {
    const char *model;     /* HF folder or .gguf file, relative to the current directory */
    const char *tokenizer; /* folder of tokenizer files; NULL: the model's */
    bool init_random;      /* "init": "random" */
    tm_dtype precision;
    uint64_t seed;
    const char *output_dir;
    uint32_t world_size; /* 1 */
    uint32_t zero_stage; /* 0..3; one rank: no effect on the result */
    tm_strategy strategy;
    bool strategy_given; /* by name, not by a stage */
    tm_wrap wrap;
    uint64_t wrap_elements;  /* TM_WRAP_SIZE */
    tm_strings wrap_classes; /* TM_WRAP_BLOCK: layer classes that FSDP would wrap; the model has to have them */
    uint32_t hpz_partition;  /* zero_hpz_partition_size; 1: a node's ranks */
    uint32_t mics_shard;     /* mics_shard_size, with strategy hsdp: ranks of a node; 0: not given */
    bool quantized_weights, quantized_gradients; /* qwZ, qgZ: rounded on the way between ranks */
    bool comm_bf16;                              /* communication_data_type */
    bool all_reduce_mpi;                         /* ddp: gradients are summed by MPI, in its own order */

    struct {
        const char *train; /* as given: a path, or JSON of several */
        const char *eval;  /* the same; NULL: no evaluation */
        tm_data_items train_items, eval_items;
        double split;            /* of train, held out: eval is train, then; 0: nothing is */
        tm_data_columns columns; /* of items that have none of their own */
        tm_sample_by sample_by;  /* the same */
        tm_data_format format;
        uint32_t seq_len; /* tokens; rows beyond it are `overlong` */
        bool packing;     /* rows are of several samples */
        tm_packing packing_strategy;
        bool shuffle; /* true; never applied to .safetensors rows */
        bool group_by_length;
        tm_overlong overlong;
        tm_truncation truncation;
        bool train_on_inputs; /* whole rows are learned */
        bool mask_history;    /* of conversations only what follows the last user message is learned */
        bool enable_thinking; /* told to the chat template where thinking_said */
        bool thinking_said;
        bool strict;   /* a bad row is an error instead of a counted skip */
        uint64_t seed; /* of the shuffle; data_seed, else seed */
    } data;

    /* ---- what is minimised --------------------------------------------------------------------------------------- */
    tm_objective_spec objective;
    const char *reference; /* folder or file of the reference model, or NULL */

    /* ---- what learns --------------------------------------------------------------------------------------------- */
    const tm_adapter_config *adapter; /* NULL: none; otherwise the base is frozen but for what it says */
    const char *adapter_path;         /* the folder that it starts from, or NULL */
    struct {
        tm_quantize type;
        bool double_quant;
        uint32_t block;
    } quantization;          /* of a frozen base; NONE: as it lies */
    const tm_freeze *freeze; /* NULL: nothing is frozen by name */
    struct {
        tm_strings freeze_parameters, trainable_parameters;
        const char *freeze_parameters_regex, *trainable_parameters_regex;
        double freeze_parameters_ratio;
        int32_t freeze_trainable_layers;
    } freezing; /* what `freeze` was made of */

    /* ---- batches: train_batch_size = micro_batch_size accumulation_steps world_size, checked --------------------- */
    uint32_t micro_batch_size;   /* rows a micro-batch (per_device_train_batch_size) */
    uint32_t accumulation_steps; /* micro-batches a step */
    uint64_t train_batch_size;
    uint32_t eval_batch_size; /* rows; per_device_eval_batch_size, else micro_batch_size */

    /* ---- length -------------------------------------------------------------------------------------------------- */
    int64_t max_steps;       /* > 0: overrides epochs; else 0 until tm_config_resolve_steps */
    double num_train_epochs; /* may be fractional */
    int64_t total_steps;     /* 0 until tm_config_resolve_steps: optimizer steps of the whole run */

    /* ---- optimizer ----------------------------------------------------------------------------------------------- */
    double learning_rate;
    const tm_optimizer *optimizer; /* a row of optim's table */
    tm_optim_opts optim;
    double max_grad_norm;          /* 0: no clipping */
    tm_loss_scale_opts loss_scale; /* of precision TM_F16 */
    tm_strings no_decay;           /* "norm", "bias", or substrings of parameter names; empty: all are decayed */
    tm_lr_schedule schedule;       /* complete after tm_config_resolve_steps */
    bool deepspeed_schedule;       /* from a `scheduler` block */
    double warmup_steps;           /* as given: >= 1 steps, < 1 a ratio of the total; see tm_config_resolve_steps */
    double warmup_ratio;           /* where warmup_steps is 0 */

    /* ---- memory -------------------------------------------------------------------------------------------------- */
    struct {
        const char *device;        /* "cpu", "cpu-arena", "cuda:0" */
        bool device_given;         /* the configuration says so */
        uint64_t device_bytes;     /* of its arena; 0: it computes on host memory */
        uint64_t device_bandwidth; /* of its copies, each way, where it is not what it is; 0: as fast as they go */
        tm_budget_kind host_kind;
        uint64_t host_bytes; /* TM_BUDGET_BYTES only */
        tm_activations activations;
        tm_update update;
        uint32_t slots;    /* 1 or 2 */
        bool cache_none;   /* "cache": "none": nothing kept beyond the working set */
        int spread;        /* "spread": 0 auto, 1 on, -1 off */
        int shared_window; /* "shared_window": 0 auto, 1 on, -1 off */
        int exchange;      /* "exchange": 0 auto, 1 device, -1 host */
        bool allow_tmpfs;
        const char *io_engine; /* "auto" | "uring" | "threads" | "sync" */
    } memory;

    /* ---- where state lives --------------------------------------------------------------------------------------- */
    tm_place param_place;     /* weight_hi (and the fp32 weights of fp32 mode) */
    tm_place optimizer_place; /* weight_lo, exp_avg, exp_avg_sq, grad */
    tm_strings param_paths;   /* never empty: nvme_path, else OUTPUT_DIR/offload */
    tm_strings optimizer_paths;
    tm_strings all_paths;    /* of both, each once: where both are files; parameters' first */
    const unsigned *all_for; /* [all_paths.n] TM_PATH_PARAM, TM_PATH_OPTIMIZER */

    /* ---- aio: speed only ----------------------------------------------------------------------------------------- */
    struct {
        uint64_t block_bytes; /* 1 MiB */
        uint32_t queue_depth; /* 8 */
        uint32_t threads;     /* intra_op_parallelism, thread_count, num_threads: 1 */
        bool single_submit, overlap_events;
        bool given; /* an aio block was given (else the engine's own defaults may serve) */
    } aio;

    /* ---- DeepSpeed's tuning numbers ------------------------------------------------------------------------------ */
    /* In elements, with DeepSpeed's defaults: speed, never the result. TM_AUTO_ELEMENTS until tm_config_resolve_model
     * where the file says "auto". */
    struct {
        uint64_t reduce_bucket_size, prefetch_bucket_size, param_persistence_threshold, sub_group_size;
        uint64_t max_live_parameters;
    } zero;
    /* Those that bound the planner, as far as the file gives them; TM_AUTO_ELEMENTS (false) where it does not or says
     * "auto": then the planner decides. They change what is kept and how far ahead is read, never a bit of the result.
     */
    struct {
        uint64_t max_in_cpu, max_live_parameters;        /* elements of parameters kept; kept and under way */
        uint64_t reduce_bucket_size;                     /* elements of gradients that are summed meanwhile */
        uint64_t prefetch_bucket_size;                   /* elements of parameters read ahead */
        uint64_t param_persistence_threshold;            /* tensors up to this many elements stay */
        uint64_t param_buffers;                          /* buffer_count x buffer_size, elements */
        uint64_t sub_group_size, optimizer_buffer_count; /* elements updated together; how many such under way */
        bool no_pipeline_read, no_pipeline_write, no_pin_memory, no_overlap;
        double update_ratio; /* at least so much of the parameters is updated on the host; below 0: not given */
    } knobs;

    /* ---- output -------------------------------------------------------------------------------------------------- */
    int64_t save_steps, eval_steps;            /* steps between; 0: only at the end */
    uint32_t evals_per_epoch, saves_per_epoch; /* > 0: the steps between follow from them once the data are known */
    struct {
        tm_strings file;     /* that are scored at every evaluation, as `eval --task` takes them; none */
        uint64_t limit;      /* samples of each, the first; 0: all */
        int32_t num_fewshot; /* examples before each question; below 0: as the file says */
        bool apply_chat_template;
        uint32_t max_new_tokens; /* 0: the file's */
        uint32_t batch_size;     /* prompts side by side */
    } eval_tasks;
    unsigned by_epoch;            /* TM_BY_EPOCH_*: what goes by epochs; its steps are known once the data are */
    bool warmup_auto, total_auto; /* DeepSpeed's scheduler says "auto" for these */
    int64_t commit_steps;         /* 0: no commit before the end */
    double commit_minutes;        /* 0: off */
    int64_t logging_steps;        /* steps between progress lines on stderr; log.jsonl has every step */
    uint32_t save_total_limit;    /* checkpoints kept; 0: all */
    tm_save_dtype save_dtype;
    bool tensorboard;        /* report_to */
    const char *logging_dir; /* of its event files; NULL: runs in output_dir */
    uint64_t max_shard_size; /* bytes of one file of a saved model's weights; 0: 50 GB */
    bool keep_state;         /* run directories stay after success */
    bool save_state;         /* checkpoints hold masters and moments too */
    bool save_best;          /* a checkpoint where an evaluation is better than all before, not every save_steps */
    bool track_best;         /* which checkpoint that is; it is not rotated out */
    bool load_best_model_at_end, greater_is_better;
    const char *metric_for_best;      /* an evaluation's, without "eval_" in front; "loss" */
    uint32_t early_stopping_patience; /* evaluations that may be no better, before the run ends; 0: it does not */
    double early_stopping_threshold;  /* by how much one has to be better to count as such */
    bool wall_clock_breakdown;
} tm_config;

#define TM_AUTO_ELEMENTS UINT64_MAX

typedef struct tm_config_opts {
    const char *name;       /* of the text, for messages: the path as the user gave it */
    const char *const *set; /* "key.path=value", or "--key=value": JSON, else a string; applied last, in order */
    size_t n_set;
    uint32_t world_size; /* 0: 1 */
    bool by_options;     /* there is no file: what lacks is to be given as an option */
    bool data_optional;  /* `plan`: data.train and output_dir may be missing */
    /* Appends the file at `path` (relative to the current directory) to `out`; for "deepspeed": PATH. */
    tm_status (*read_file)(void *ctx, const char *path, tm_buf *out);
    void *read_ctx;
    /* Where a model, tokenizer, reference or adapter of that name lies, as `found` or in `buf` [4096]; NULL: as it says. */
    const char *(*find_model)(const char *name, char *buf);
} tm_config_opts;

/* Relaxed JSON: comments, trailing commas, 5e8 as an integer; YAML where the name ends in .yaml or .yml. Warns once for each key that has no effect here. */
TM_MUST_USE tm_status tm_config_load(tm_config **out, const char *text, size_t len, const tm_config_opts *opts);
void tm_config_free(tm_config *c); /* NULL is fine */
/* Fills the "auto" of keys that depend on the model: h*h, .9*h*h, 10*h (as transformers does). */
TM_MUST_USE tm_status tm_config_resolve_model(tm_config *c, uint32_t hidden_size);
/* Fills total_steps (max_steps, else ceil(num_train_epochs * steps_per_epoch)) and the schedule's warm-up and total,
 * and checks it; mismatches with a DeepSpeed scheduler that only show now are TM_EINPUT. May be called again. */
TM_MUST_USE tm_status tm_config_resolve_steps(tm_config *c, int64_t steps_per_epoch);
/* The same where epochs are not alike: `steps` of num_train_epochs. */
TM_MUST_USE tm_status tm_config_resolve_run_steps(tm_config *c, int64_t steps_per_epoch, double steps);
/* Appends the resolved configuration as one JSON object (for run.json and logs). */
TM_MUST_USE tm_status tm_config_dump_json(const tm_config *c, tm_buf *out, int indent);
/* Appends what each "auto" of the files stands for, as one JSON object: key to value, or to null where the planner
 * decides. Once model and steps are resolved; false: there is none. */
TM_MUST_USE tm_status tm_config_autos(const tm_config *c, tm_buf *out, bool *any);
/* What a run that goes on from a commit may change. */
typedef enum tm_config_change {
    TM_CHANGE_NEVER,         /* bits depend on it (or it is no key of this version) */
    TM_CHANGE_FREE,          /* bits do not, or what it names is compared by what that holds; so is all that is in it */
    TM_CHANGE_WITHOUT_BEST,  /* free where no best checkpoint is chosen */
    TM_CHANGE_ON_OTHER_RANKS /* free where the number of ranks is another: they divide the same batch otherwise */
} tm_config_change;
tm_config_change tm_config_change_of(const char *path); /* "data.seq_len" */
bool tm_config_is_of_method(const char *path); /* it says what learns, or how: "lora_rank", "objective.beta", "rl" */
bool tm_config_is_key(const char *path);       /* in either spelling; '-' is not '_' */
/* A key as an option of a command: argv[*at] is "--key" or "--key=value". Words that stand apart are taken as far as the
 * key takes any (a list several, a switch none or one), and *at moves on to the last of them. '-' is '_' there, and of a
 * key in data, memory, objective, adapter or quantization the last name is enough. Appends "--key=value", which counts
 * as one of tm_config_opts.set. Not a key: *is_key is false. TM_EINPUT: its value is missing. */
TM_MUST_USE tm_status tm_config_option(int argc, const char *const *argv, int *at, tm_buf *out, bool *is_key);
/* "path#500", ms-swift's word for so many samples of a file: the bytes of the path. *samples: 0 where no number is said (or it is 0,
 * which is none: the path is shorter than the text then). */
size_t tm_config_data_path(const char *text, uint64_t *samples);
/* What to do instead of giving such a key, where that is none; or NULL. */
const char *tm_config_hint(const char *key);
/* The key that was probably meant, or NULL. */
const char *tm_config_suggest(const char *name);
/* The i-th key of the table, other names and what is refused or without effect among them; false: there are no more. */
typedef struct tm_config_key {
    const char *path, *help;
    const char *alias_of; /* another name of that key, which has the rest; NULL: not */
    const char *choices;  /* "bf16=bfloat16|fp32": each with its synonyms; NULL: not one of some words */
    const char *def;      /* NULL: none */
    bool counts;          /* it means something here */
} tm_config_key;
bool tm_config_key_at(size_t i, tm_config_key *out);
/* Appends every key with its type, default and meaning, for --keys and the documentation. */
TM_MUST_USE tm_status tm_config_help(tm_buf *out);

#endif

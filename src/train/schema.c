/* Every key that a configuration may hold. This table is the documentation: `tidemill train --help` prints it. */
#include "train/config_internal.h"

#include <stdio.h>
#include <string.h>

#define DEVICES "none|cpu|nvme|auto"
#define SCHEDULES                                                                                                      \
    "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_sqrt|cosine_with_min_lr|"     \
    "cosine_warmup_with_min_lr|warmup_stable_decay|reduce_lr_on_plateau|greedy"
#define SHAPES "linear|cosine|1-sqrt"
#define ROW(p, k, t, c, d, lo, hi, h)                                                                                  \
    { p, k, t, c, d, lo, hi, NULL, h }
#define ALIAS(p, k, of)                                                                                                \
    { p, k, 0, NULL, NULL, 0, 0, of, NULL }
#define IGNORED(p, h)                                                                                                  \
    { p, K_IGNORED, T_ANY, NULL, NULL, 0, 0, NULL, h }
#define LATER(p, h)                                                                                                    \
    { p, K_LATER, T_ANY, NULL, NULL, 0, 0, NULL, h }
#define REFUSED(p, h)                                                                                                  \
    { p, K_REFUSED, T_ANY, NULL, NULL, 0, 0, NULL, h }
#define ZERO "zero_optimization."
#define NO_EFFECT_1 "nothing to communicate or bucket on one rank"
#define NO_MONITOR "no such monitor; log.jsonl has every step"

// clang-format off: one row a line
const schema_row schema_rows[] = {
    /* ---- what to train ------------------------------------------------------------------------------------------- */
    ROW("model", K_OURS, T_STR, NULL, NULL, 0, 0, "Hugging Face folder or .gguf file"),
    ALIAS("model_name_or_path", K_OURS, "model"),
    ROW("init", K_OURS, T_ENUM, "pretrained|random", "pretrained", 0, 0,
        "random: weights drawn from seed, only config.json is read"),
    ROW("precision", K_OURS, T_ENUM, "bf16=bfloat16|fp32=float32|fp16=float16", "bf16", 0, 0,
        "of the computation; master weights and moments are fp32"),
    ALIAS("torch_dtype", K_OURS, "precision"),
    ROW("seed", K_OURS, T_INT, NULL, "42", 0, 0, "of initial weights and shuffling"),
    ROW("data_seed", K_OURS, T_INT | T_NULL, NULL, NULL, 0, 0, "of shuffling, where it shall differ from seed"),
    ROW("data", K_OURS, T_OBJ, NULL, NULL, 0, 0, "the examples"),
    ROW("data.train", K_OURS, T_STR, NULL, NULL, 0, 0, "JSONL or .safetensors file"),
    ALIAS("dataset", K_OURS, "data.train"),
    ROW("data.eval", K_OURS, T_STR | T_NULL, NULL, NULL, 0, 0, "held-out file of the same kind"),
    ALIAS("val_dataset", K_OURS, "data.eval"),
    ROW("data.format", K_OURS, T_ENUM,
        "auto|text|messages|alpaca|prompt_completion=prompt-completion|sharegpt|safetensors", "auto", 0, 0,
        "of JSONL rows; auto: from their keys; .safetensors files are told by their name"),
    ROW("data.seq_len", K_OURS, T_INT, NULL, "512", 2, 1 << 30, "longest row in tokens"),
    ALIAS("max_length", K_OURS, "data.seq_len"),
    ALIAS("max_seq_length", K_OURS, "data.seq_len"),
    ALIAS("cutoff_len", K_OURS, "data.seq_len"),
    ROW("data.packing", K_OURS, T_BOOL, NULL, "false", 0, 0, "several rows in one; not in this version"),
    ALIAS("packing", K_OURS, "data.packing"),
    ROW("data.shuffle", K_OURS, T_BOOL, NULL, "true", 0, 0,
        "a new order each epoch; .safetensors rows are taken in order"),
    ROW("data.overlong", K_OURS, T_ENUM, "truncate|drop=delete|error=raise", "truncate", 0, 0,
        "rows over seq_len: cut at the end, leave out, or stop"),
    ROW("data.strict", K_OURS, T_BOOL, NULL, "false", 0, 0,
        "a bad row stops the run instead of being counted and left out"),
    ALIAS("strict", K_OURS, "data.strict"),
    ROW("objective", K_OURS, T_OBJ, NULL, NULL, 0, 0, "what is minimised"),
    ROW("objective.type", K_OURS, T_ENUM, "sft|dpo|kto|simpo|orpo|grpo", "sft", 0, 0, "this version has sft"),
    LATER("objective.beta", "preference objectives"),
    LATER("objective.gamma", "preference objectives"),
    LATER("objective.loss_type", "preference objectives"),
    LATER("objective.label_smoothing", "label smoothing"),
    LATER("objective.reference", "preference objectives"),
    LATER("adapter", "adapters (LoRA and others)"),
    ROW("tuner_type", K_OURS, T_ENUM, "full|lora|qlora|dora|adalora|longlora", "full", 0, 0,
        "this version trains all parameters"),
    ALIAS("train_type", K_OURS, "tuner_type"),
    /* ---- batches and length -------------------------------------------------------------------------------------- */
    ROW("per_device_train_batch_size", K_OURS, T_INT, NULL, "1", 1, 1 << 24, "rows a micro-batch"),
    ROW("gradient_accumulation_steps", K_BOTH, T_INT | T_AUTO, NULL, "1", 1, 1 << 24, "micro-batches a step"),
    ROW("per_device_eval_batch_size", K_OURS, T_INT, NULL, NULL, 1, 1 << 24,
        "rows of an evaluation batch; default: as in training"),
    ROW("max_steps", K_OURS, T_INT, NULL, "0", -1, 0, "steps of the run; over 0 it overrides num_train_epochs"),
    ROW("num_train_epochs", K_OURS, T_NUM, NULL, "1", 0, 0, "passes over the data; may be fractional"),
    /* ---- optimizer ----------------------------------------------------------------------------------------------- */
    ROW("learning_rate", K_OURS, T_NUM, NULL, "1e-5", 0, 0, "peak rate"),
    ROW("adam_beta1", K_OURS, T_NUM, NULL, "0.9", 0, 1, "decay of the first moment"),
    ROW("adam_beta2", K_OURS, T_NUM, NULL, "0.95", 0, 1, "decay of the second moment"),
    ROW("adam_epsilon", K_OURS, T_NUM, NULL, "1e-8", 0, 0, "added to the root of the second moment"),
    ROW("weight_decay", K_OURS, T_NUM, NULL, "0.1", 0, 0, "decoupled; of every parameter but those of no_decay"),
    ROW("no_decay", K_OURS, T_LIST, NULL, NULL, 0, 0,
        "parameters without decay: \"norm\", \"bias\", or parts of names"),
    ROW("max_grad_norm", K_OURS, T_NUM, NULL, "1.0", 0, 0, "clip the global gradient norm to this; 0: off"),
    ROW("optim", K_OURS, T_ENUM,
        "adamw_torch=adamw_torch_fused=adamw_hf=adamw|adamw_8bit=adamw_bnb_8bit|adafactor|sgd|galore_adamw|lion_32bit",
        "adamw_torch", 0, 0, "this version has AdamW"),
    ROW("lr_scheduler_type", K_OURS, T_ENUM, SCHEDULES, "cosine", 0, 0, "schedule where there is no scheduler block"),
    ROW("lr_scheduler_kwargs", K_OURS, T_OBJ | T_NULL, NULL, NULL, 0, 0, "arguments of the schedule"),
    ROW("lr_scheduler_kwargs.num_cycles", K_OURS, T_NUM, NULL, NULL, 0, 0, "waves of the cosine (0.5), restarts (1)"),
    ROW("lr_scheduler_kwargs.lr_end", K_OURS, T_NUM, NULL, NULL, 0, 0, "polynomial: last rate (1e-7)"),
    ROW("lr_scheduler_kwargs.power", K_OURS, T_NUM, NULL, NULL, 0, 0, "polynomial: exponent (1)"),
    ROW("lr_scheduler_kwargs.timescale", K_OURS, T_INT | T_NULL, NULL, NULL, 1, 0,
        "inverse_sqrt: steps (warm-up, or 10000)"),
    ROW("lr_scheduler_kwargs.min_lr", K_OURS, T_NUM | T_NULL, NULL, NULL, 0, 0, "*_min_lr: lowest rate"),
    ROW("lr_scheduler_kwargs.min_lr_rate", K_OURS, T_NUM | T_NULL, NULL, NULL, 0, 0,
        "*_min_lr: lowest rate as a part of learning_rate"),
    ROW("lr_scheduler_kwargs.warmup_lr_rate", K_OURS, T_NUM | T_NULL, NULL, NULL, 0, 0,
        "cosine_warmup_with_min_lr: first rate as a part of learning_rate"),
    ROW("lr_scheduler_kwargs.num_stable_steps", K_OURS, T_INT | T_NULL, NULL, NULL, 0, 0,
        "warmup_stable_decay: steps at the peak"),
    ROW("lr_scheduler_kwargs.num_decay_steps", K_OURS, T_INT, NULL, NULL, 0, 0,
        "warmup_stable_decay: steps of the decay"),
    ROW("lr_scheduler_kwargs.min_lr_ratio", K_OURS, T_NUM, NULL, NULL, 0, 0,
        "warmup_stable_decay: lowest rate as a part of learning_rate"),
    ROW("lr_scheduler_kwargs.warmup_type", K_OURS, T_ENUM, SHAPES, NULL, 0, 0,
        "warmup_stable_decay: shape of the warm-up (linear)"),
    ROW("lr_scheduler_kwargs.decay_type", K_OURS, T_ENUM, SHAPES, NULL, 0, 0,
        "warmup_stable_decay: shape of the decay (cosine)"),
    ROW("warmup_steps", K_OURS, T_NUM, NULL, "0", 0, 0, "steps of the warm-up; below 1: a ratio of all steps"),
    ROW("warmup_ratio", K_OURS, T_NUM, NULL, "0", 0, 1, "the same as a ratio, where warmup_steps is 0"),
    /* ---- memory -------------------------------------------------------------------------------------------------- */
    ROW("memory", K_OURS, T_OBJ, NULL, NULL, 0, 0, "what may be used"),
    ROW("memory.device", K_OURS, T_STR, NULL, "cpu", 0, 0, "cpu; cpu-arena and cuda:N are not in this version"),
    ROW("memory.device_budget", K_OURS, T_SIZE | T_STR | T_NULL, NULL, NULL, 1, 0, "hard limit of the device's memory"),
    ROW("memory.host_budget", K_OURS, T_SIZE | T_STR | T_NULL, NULL, NULL, 1, 0,
        "hard limit of resident memory: bytes, \"3GiB\", \"unlimited\"; default: 80% of what is available"),
    ROW("memory.activations", K_OURS, T_ENUM, "auto|keep|spill|recompute", "auto", 0, 0,
        "what backward needs of forward: keep: in memory; spill: kept, written out where memory is short; recompute; "
        "auto: least predicted time, block by block; same bits"),
    ROW("memory.update", K_OURS, T_ENUM, "auto|U|F|B", "auto", 0, 0,
        "AdamW: U: a pass of its own; F: folded into the next forward; B: inside backward, needs max_grad_norm 0, and "
        "a "
        "gradient that is not finite ends the run; auto: least predicted time; same bits"),
    ROW("memory.slots", K_OURS, T_INT, NULL, "2", 1, 2, "copies of each extent; 1 gives up restart"),
    ROW("memory.cache", K_OURS, T_ENUM, "auto|none", "auto", 0, 0, "none: nothing is kept beyond the working set"),
    ROW("memory.spread", K_OURS, T_ENUM, "auto|on|off", "auto", 0, 0,
        "updates F and B: on: tiles are updated between micro-batches, off: all at once; speed only"),
    ROW("memory.allow_tmpfs", K_OURS, T_BOOL, NULL, "false", 0, 0, "offload files may lie in memory (tests)"),
    ROW("memory.io_engine", K_OURS, T_ENUM, "auto|uring=io_uring|threads|sync", "auto", 0, 0,
        "how files are read and written"),
    /* ---- output -------------------------------------------------------------------------------------------------- */
    ROW("output_dir", K_OURS, T_STR, NULL, "out", 0, 0, "log.jsonl, checkpoints and the trained model"),
    ROW("save_steps", K_OURS, T_INT, NULL, "500", 0, 0, "steps between checkpoint-N folders; 0: none before the end"),
    ROW("save_strategy", K_OURS, T_ENUM, "steps|no|epoch|best", "steps", 0, 0, "no: only the final model"),
    ROW("save_total_limit", K_OURS, T_INT | T_NULL, NULL, NULL, 1, 1 << 30, "checkpoints kept; default: all"),
    ROW("eval_steps", K_OURS, T_INT | T_NULL, NULL, "500", 0, 0, "steps between evaluations; 0: only at the end"),
    ROW("eval_strategy", K_OURS, T_ENUM, "steps|no|epoch", "steps", 0, 0, "no: data.eval is not used"),
    ALIAS("evaluation_strategy", K_OURS, "eval_strategy"),
    ROW("commit_steps", K_OURS, T_INT, NULL, "10", 0, 0, "steps between commits; 0: none before the end"),
    ROW("commit_minutes", K_OURS, T_NUM, NULL, "0", 0, 0, "minutes between commits, whatever the steps; 0: off"),
    ROW("logging_steps", K_OURS, T_INT, NULL, NULL, 1, 0, "steps between progress lines (1); log.jsonl has every step"),
    ROW("save_dtype", K_OURS, T_ENUM, "auto|f32=float32=fp32|bf16=bfloat16|f16=float16=fp16", "auto", 0, 0,
        "of the saved model; auto: f32 in fp32 mode, else bf16"),
    ROW("keep_state", K_OURS, T_BOOL, NULL, "false", 0, 0, "leave the run directories after success"),
    ROW("save_state", K_OURS, T_BOOL, NULL, "false", 0, 0, "checkpoints hold masters and moments too"),
    ROW("strategy", K_OURS, T_ENUM, "ddp|zero1|zero2|zero3|fsdp|hsdp|hpz", NULL, 0, 0,
        "how ranks share the state, by one word; no effect on one rank"),
    ROW("deepspeed", K_OURS, T_STR | T_ANY | T_NULL, NULL, NULL, 0, 0,
        "DeepSpeed configuration: a path, or the object itself"),
    /* ---- DeepSpeed: batches, precision, optimizer, scheduler ----------------------------------------------------- */
    ROW("train_batch_size", K_DS, T_INT | T_AUTO | T_NULL, NULL, NULL, 1, 0,
        "micro-batch x accumulation x ranks; checked"),
    ROW("train_micro_batch_size_per_gpu", K_DS, T_INT | T_AUTO | T_NULL, NULL, NULL, 1, 1 << 24,
        "as per_device_train_batch_size"),
    ROW("gradient_clipping", K_DS, T_NUM | T_AUTO | T_NULL, NULL, NULL, 0, 0, "as max_grad_norm"),
    ROW("steps_per_print", K_DS, T_NUM | T_AUTO | T_NULL, NULL, NULL, 1, 0, "as logging_steps"),
    ROW("wall_clock_breakdown", K_DS, T_BOOL, NULL, "false", 0, 0, "log the time of each part of a step"),
    ROW("bf16", K_BOTH, T_OBJ | T_BOOL | T_AUTO, NULL, NULL, 0, 0, "DeepSpeed's section, or HF Trainer's flag"),
    ALIAS("bfloat16", K_DS, "bf16"),
    ROW("bf16.enabled", K_DS, T_BOOL | T_AUTO, NULL, NULL, 0, 0, "precision bf16"),
    ALIAS("bfloat16.enabled", K_DS, "bf16.enabled"),
    IGNORED("bf16.immediate_grad_update", "gradients are rounded once, after accumulation"),
    ROW("bf16.check_grad_overflow", K_DS, T_BOOL | T_AUTO, NULL, "true", 0, 0,
        "non-finite gradients always stop the run"),
    LATER("bf16.bf16_master_weights_and_grads", "bf16 master weights"),
    LATER("bf16.bf16_optimizer_states", "bf16 optimizer states"),
    ROW("fp16", K_BOTH, T_OBJ | T_BOOL | T_AUTO, NULL, NULL, 0, 0,
        "DeepSpeed's section, or HF Trainer's flag; not in this version"),
    ROW("fp16.enabled", K_DS, T_BOOL | T_AUTO, NULL, NULL, 0, 0, "precision fp16; not in this version"),
    ROW("fp16.auto_cast", K_DS, T_BOOL | T_AUTO, NULL, "false", 0, 0, "of fp16"),
    ROW("fp16.loss_scale", K_DS, T_NUM | T_AUTO, NULL, "0", 0, 0, "of fp16; 0: dynamic"),
    ROW("fp16.initial_scale_power", K_DS, T_INT | T_AUTO, NULL, "16", 0, 0, "of fp16"),
    ROW("fp16.loss_scale_window", K_DS, T_INT | T_AUTO, NULL, "1000", 1, 0, "of fp16"),
    ROW("fp16.hysteresis", K_DS, T_INT | T_AUTO, NULL, "2", 0, 0, "of fp16"),
    ROW("fp16.consecutive_hysteresis", K_DS, T_BOOL, NULL, "false", 0, 0, "of fp16"),
    ROW("fp16.min_loss_scale", K_DS, T_NUM | T_AUTO, NULL, "1", 0, 0, "of fp16"),
    IGNORED("fp16.opt_level", "apex only"),
    LATER("fp16.fp16_master_weights_and_grads", "fp16 master weights"),
    ROW("optimizer", K_DS, T_OBJ, NULL, NULL, 0, 0, "DeepSpeed's defaults for what it omits"),
    ROW("optimizer.type", K_DS, T_STR, NULL, NULL, 0, 0, "Adam or AdamW"),
    ROW("optimizer.params", K_DS, T_OBJ, NULL, NULL, 0, 0, "of the optimizer"),
    ROW("optimizer.params.lr", K_DS, T_NUM | T_AUTO, NULL, "1e-3", 0, 0, "as learning_rate"),
    ROW("optimizer.params.betas", K_DS, T_PAIR | T_AUTO, NULL, NULL, 0, 1, "as adam_beta1, adam_beta2 ([0.9, 0.999])"),
    ROW("optimizer.params.eps", K_DS, T_NUM | T_AUTO, NULL, "1e-8", 0, 0, "as adam_epsilon"),
    ROW("optimizer.params.weight_decay", K_DS, T_NUM | T_AUTO, NULL, "0", 0, 0, "as weight_decay"),
    ROW("optimizer.params.bias_correction", K_DS, T_BOOL, NULL, "true", 0, 0, "of the moments"),
    ROW("optimizer.params.adam_w_mode", K_DS, T_BOOL, NULL, "true", 0, 0, "decoupled decay, for type Adam too"),
    ROW("optimizer.params.torch_adam", K_DS, T_BOOL, NULL, "false", 0, 0, "no difference here"),
    IGNORED("optimizer.params.fused", "the update is one pass anyway"),
    IGNORED("optimizer.params.foreach", "the update is one pass anyway"),
    IGNORED("optimizer.legacy_fusion", "the update is one pass anyway"),
    LATER("optimizer.params.amsgrad", "AMSGrad"),
    ROW("optimizer.params.fp32_optimizer_states", K_DS, T_BOOL, NULL, "true", 0, 0, "false is not in this version"),
    REFUSED("optimizer.params.max_grad_norm", "DeepSpeed refuses it as well; give gradient_clipping"),
    REFUSED("optimizer.params.freeze_step", "a parameter of 1-bit optimizers"),
    REFUSED("optimizer.params.cuda_aware", "a parameter of 1-bit optimizers"),
    REFUSED("optimizer.params.comm_backend_name", "a parameter of 1-bit optimizers"),
    ROW("scheduler", K_DS, T_OBJ | T_NULL, NULL, NULL, 0, 0, "DeepSpeed's defaults for what it omits"),
    ROW("scheduler.type", K_DS, T_ENUM, "WarmupLR|WarmupDecayLR|WarmupCosineLR|LRRangeTest|OneCycle", NULL, 0, 0,
        "DeepSpeed's schedule"),
    ROW("scheduler.params", K_DS, T_OBJ, NULL, NULL, 0, 0, "of the schedule"),
    ROW("scheduler.params.last_batch_iteration", K_DS, T_INT, NULL, "-1", -1, 0, "-1: from the beginning"),
    ROW("scheduler.params.warmup_min_lr", K_DS, T_NUM | T_AUTO, NULL, NULL, 0, 0, "first rate (0)"),
    ROW("scheduler.params.warmup_max_lr", K_DS, T_NUM | T_AUTO | T_NULL, NULL, NULL, 0, 0,
        "peak rate; default: the optimizer's, WarmupDecayLR 0.001"),
    ROW("scheduler.params.warmup_num_steps", K_DS, T_INT | T_AUTO, NULL, NULL, 1, 0,
        "steps of the warm-up (1000), at least 2"),
    ROW("scheduler.params.warmup_type", K_DS, T_ENUM | T_AUTO, "log|linear", NULL, 0, 0, "shape of the warm-up (log)"),
    ROW("scheduler.params.total_num_steps", K_DS, T_INT | T_AUTO, NULL, NULL, 1, 0, "steps of the whole schedule"),
    ROW("scheduler.params.warmup_min_ratio", K_DS, T_NUM | T_AUTO, NULL, NULL, 0, 0,
        "WarmupCosineLR: first rate as a part of lr (0)"),
    ROW("scheduler.params.cos_min_ratio", K_DS, T_NUM | T_AUTO, NULL, NULL, 0, 0,
        "WarmupCosineLR: last rate as a part of lr (0.0001)"),
    ROW("scheduler.params.lr_range_test_min_lr", K_DS, T_NUM, NULL, NULL, 0, 0, "LRRangeTest: first rate (0.001)"),
    ROW("scheduler.params.lr_range_test_step_size", K_DS, T_INT, NULL, NULL, 1, 0,
        "LRRangeTest: steps of an interval (2000)"),
    ROW("scheduler.params.lr_range_test_step_rate", K_DS, T_NUM, NULL, NULL, 0, 0,
        "LRRangeTest: increase an interval (1)"),
    ROW("scheduler.params.lr_range_test_staircase", K_DS, T_BOOL, NULL, NULL, 0, 0, "LRRangeTest: in stairs (false)"),
    ROW("scheduler.params.cycle_min_lr", K_DS, T_NUM, NULL, NULL, 0, 0, "OneCycle: lowest rate"),
    ROW("scheduler.params.cycle_max_lr", K_DS, T_NUM, NULL, NULL, 0, 0, "OneCycle: highest rate"),
    ROW("scheduler.params.decay_lr_rate", K_DS, T_NUM, NULL, NULL, 0, 0, "OneCycle: decay after the cycle (0)"),
    ROW("scheduler.params.cycle_first_step_size", K_DS, T_INT, NULL, NULL, 1, 1 << 30, "OneCycle: steps up (2000)"),
    ROW("scheduler.params.cycle_second_step_size", K_DS, T_INT | T_NULL, NULL, NULL, 1, 1 << 30,
        "OneCycle: steps down; default: as up"),
    ROW("scheduler.params.cycle_first_stair_count", K_DS, T_INT, NULL, NULL, 0, 1 << 30,
        "OneCycle: stairs up; 0: none"),
    ROW("scheduler.params.cycle_second_stair_count", K_DS, T_INT | T_NULL, NULL, NULL, 0, 1 << 30,
        "OneCycle: stairs down; default: as up"),
    ROW("scheduler.params.decay_step_size", K_DS, T_INT, NULL, NULL, 0, 0,
        "OneCycle: steps of a decay interval; 0: no decay"),
    ROW("scheduler.params.cycle_momentum", K_DS, T_BOOL, NULL, NULL, 0, 0,
        "OneCycle: beta1 runs against the rate (true)"),
    ROW("scheduler.params.cycle_min_mom", K_DS, T_NUM, NULL, NULL, 0, 1, "OneCycle: lowest beta1 (0.8)"),
    ROW("scheduler.params.cycle_max_mom", K_DS, T_NUM, NULL, NULL, 0, 1, "OneCycle: highest beta1 (0.9)"),
    ROW("scheduler.params.decay_mom_rate", K_DS, T_NUM, NULL, NULL, 0, 0,
        "OneCycle: growth of beta1 after the cycle (0)"),
    /* ---- DeepSpeed: where state lives ---------------------------------------------------------------------------- */
    ROW("zero_optimization", K_DS, T_OBJ, NULL, NULL, 0, 0, "ZeRO stage and offload"),
    ROW(ZERO "stage", K_DS, T_INT, NULL, "0", 0, 3, "how ranks share the state; no effect on one rank"),
    ALIAS("zero_stage", K_OURS, ZERO "stage"),
    ROW(ZERO "offload_param", K_DS, T_OBJ | T_NULL, NULL, NULL, 0, 0, "where the weights that compute live"),
    ROW(ZERO "offload_param.device", K_DS, T_ENUM, DEVICES, "none", 0, 0,
        "none: compute device; cpu: host memory; nvme: files; auto: the planner decides"),
    ALIAS("offload_param_device", K_OURS, ZERO "offload_param.device"),
    ROW(ZERO "offload_param.nvme_path", K_DS, T_LIST | T_NULL, NULL, NULL, 0, 0,
        "folder or folders (striped); default: OUTPUT_DIR/offload"),
    ALIAS("offload_param_nvme_path", K_OURS, ZERO "offload_param.nvme_path"),
    ROW(ZERO "offload_param.buffer_count", K_DS, T_INT | T_AUTO, NULL, "5", 1, 0,
        "if given: at most buffer_count x buffer_size elements of parameters are read ahead; auto: the planner "
        "decides"),
    ROW(ZERO "offload_param.buffer_size", K_DS, T_INT | T_AUTO, NULL, "100000000", 1, 0, "elements; see buffer_count"),
    ROW(ZERO "offload_param.max_in_cpu", K_DS, T_INT | T_AUTO, NULL, "1000000000", 0, 0,
        "if given: at most this many elements of parameters stay in memory between their uses; auto: the planner "
        "decides"),
    ROW(ZERO "offload_param.pin_memory", K_DS, T_BOOL | T_AUTO, NULL, "true", 0, 0,
        "false (here or for the optimizer): memory is not registered with the I/O engine"),
    ROW(ZERO "offload_optimizer", K_DS, T_OBJ | T_NULL, NULL, NULL, 0, 0,
        "where master weights, moments and gradients live"),
    ROW(ZERO "offload_optimizer.device", K_DS, T_ENUM, DEVICES, "none", 0, 0,
        "none: compute device; cpu: host memory; nvme: files; auto: the planner decides"),
    ALIAS("offload_optimizer_device", K_OURS, ZERO "offload_optimizer.device"),
    ROW(ZERO "offload_optimizer.nvme_path", K_DS, T_LIST | T_NULL, NULL, NULL, 0, 0,
        "folder or folders (striped); default: OUTPUT_DIR/offload"),
    ALIAS("offload_optimizer_nvme_path", K_OURS, ZERO "offload_optimizer.nvme_path"),
    ROW(ZERO "offload_optimizer.buffer_count", K_DS, T_INT | T_AUTO, NULL, "4", 1, 0,
        "if given: at most buffer_count x sub_group_size fp32 values are under way; auto: the planner decides"),
    ROW(ZERO "offload_optimizer.pin_memory", K_DS, T_BOOL | T_AUTO, NULL, "true", 0, 0,
        "false (here or for parameters): memory is not registered with the I/O engine"),
    ROW(ZERO "offload_optimizer.pipeline", K_DS, T_BOOL | T_AUTO, NULL, NULL, 0, 0,
        "pipeline_read and pipeline_write in one; not given: both overlap"),
    ROW(ZERO "offload_optimizer.pipeline_read", K_DS, T_BOOL | T_AUTO, NULL, NULL, 0, 0,
        "false: optimizer state is read when it is needed, not ahead; not given: ahead"),
    ROW(ZERO "offload_optimizer.pipeline_write", K_DS, T_BOOL | T_AUTO, NULL, NULL, 0, 0,
        "false: the step waits for optimizer state to be written; not given: it goes on"),
    ROW(ZERO "offload_optimizer.fast_init", K_DS, T_BOOL | T_AUTO, NULL, "false", 0, 0,
        "accepted; state is written once at start"),
    ROW(ZERO "offload_optimizer.ratio", K_DS, T_NUM | T_AUTO, NULL, "1.0", 0, 1,
        "part that is updated on the device; no effect on device cpu, where all of it is on the host"),
    IGNORED(ZERO "offload_optimizer.super_offload", "the planner overlaps the update"),
    IGNORED(ZERO "offload_optimizer.cpuadam_cores_perc", "OMP_NUM_THREADS sets the threads"),
    IGNORED(ZERO "offload_optimizer.max_in_cpu", "what stays in memory follows from the budget"),
    IGNORED(ZERO "offload_optimizer.buffer_size", "buffers follow from the budget"),
    ROW(ZERO "cpu_offload", K_DS, T_BOOL, NULL, NULL, 0, 0, "old form of offload_optimizer.device: cpu"),
    ROW(ZERO "cpu_offload_param", K_DS, T_BOOL, NULL, NULL, 0, 0, "old form of offload_param.device: cpu"),
    ALIAS(ZERO "cpu_offload_params", K_DS, ZERO "cpu_offload_param"),
    IGNORED(ZERO "cpu_offload_use_pin_memory", "the budget's slab is registered once"),
    ROW(ZERO "sub_group_size", K_DS, T_INT | T_AUTO, NULL, "1000000000", 1, 0,
        "if given: optimizer state of at most this many elements is read ahead; a tile at a time is updated anyway"),
    ROW(ZERO "reduce_bucket_size", K_DS, T_INT | T_AUTO, NULL, "500000000", 1, 0, "elements; auto: hidden^2"),
    ROW(ZERO "overlap_comm", K_DS, T_BOOL | T_AUTO | T_NULL, NULL, NULL, 0, 0, "default: stage 3"),
    ROW(ZERO "stage3_prefetch_bucket_size", K_DS, T_INT | T_AUTO, NULL, "50000000", 0, 0,
        "if given: at most this many elements of parameters are read ahead; auto: the planner decides"),
    ALIAS(ZERO "prefetch_bucket_size", K_DS, ZERO "stage3_prefetch_bucket_size"),
    ROW(ZERO "stage3_param_persistence_threshold", K_DS, T_INT | T_AUTO, NULL, "100000", 0, 0,
        "if given: parameters up to this many elements stay in memory; auto: the planner decides"),
    ALIAS(ZERO "param_persistence_threshold", K_DS, ZERO "stage3_param_persistence_threshold"),
    ROW(ZERO "stage3_max_live_parameters", K_DS, T_INT | T_AUTO, NULL, "1000000000", 0, 0,
        "if given: at most this many elements of parameters are kept or read ahead; auto: the planner decides"),
    ALIAS(ZERO "max_live_parameters", K_DS, ZERO "stage3_max_live_parameters"),
    ROW(ZERO "stage3_max_reuse_distance", K_DS, T_INT | T_AUTO, NULL, "1000000000", 0, 0,
        "elements; accepted, the budget decides"),
    ALIAS(ZERO "max_reuse_distance", K_DS, ZERO "stage3_max_reuse_distance"),
    ROW(ZERO "stage3_gather_16bit_weights_on_model_save", K_DS, T_BOOL | T_AUTO, NULL, "false", 0, 0,
        "accepted; the saved model is always whole"),
    ALIAS(ZERO "gather_16bit_weights_on_model_save", K_DS, ZERO "stage3_gather_16bit_weights_on_model_save"),
    ALIAS(ZERO "stage3_gather_fp16_weights_on_model_save", K_DS, ZERO "stage3_gather_16bit_weights_on_model_save"),
    ALIAS("zero3_save_16bit_model", K_OURS, ZERO "stage3_gather_16bit_weights_on_model_save"),
    IGNORED(ZERO "stage3_model_persistence_threshold", "the budget decides"),
    IGNORED(ZERO "model_persistence_threshold", "the budget decides"),
    IGNORED(ZERO "stage3_module_granularity_threshold", "the grain is a tile"),
    IGNORED(ZERO "module_granularity_threshold", "the grain is a tile"),
    IGNORED(ZERO "stage3_use_all_reduce_for_fetch_params", NO_EFFECT_1),
    IGNORED(ZERO "use_all_reduce_for_fetch_params", NO_EFFECT_1),
    IGNORED(ZERO "stage3_allgather_sequential", NO_EFFECT_1),
    IGNORED(ZERO "allgather_sequential", NO_EFFECT_1),
    IGNORED(ZERO "contiguous_gradients", "gradients always lie in one piece"),
    IGNORED(ZERO "reduce_scatter", "sums are always reduce-scatters"),
    IGNORED(ZERO "allgather_partitions", NO_EFFECT_1),
    IGNORED(ZERO "allgather_bucket_size", NO_EFFECT_1),
    IGNORED(ZERO "use_multi_rank_bucket_allreduce", NO_EFFECT_1),
    IGNORED(ZERO "round_robin_gradients", NO_EFFECT_1),
    IGNORED(ZERO "legacy_stage1", NO_EFFECT_1),
    IGNORED(ZERO "load_from_fp32_weights", "masters are always kept in fp32"),
    IGNORED(ZERO "elastic_checkpoint", "checkpoints do not depend on ranks"),
    IGNORED(ZERO "pipeline_loading_checkpoint", "there is no pipeline"),
    IGNORED(ZERO "ignore_unused_parameters", "parameters without a gradient get zero"),
    IGNORED(ZERO "memory_efficient_linear", "specific to PyTorch"),
    IGNORED(ZERO "override_module_apply", "specific to PyTorch"),
    IGNORED(ZERO "log_trace_cache_warnings", "there is no trace cache"),
    IGNORED(ZERO "enable_sanity_checks", "checks are always on"),
    IGNORED(ZERO "save_muon_momentum_buffer_in_memory", "there is no Muon"),
    IGNORED(ZERO "leaf_module", "units are fixed by the model"),
    IGNORED(ZERO "grad_hooks", NO_EFFECT_1),
    IGNORED(ZERO "aio", "it belongs at top level"),
    ROW(ZERO "zero_hpz_partition_size", K_DS, T_INT, NULL, "1", 1, 1 << 20,
        "above 1: a second copy of the weights divided within a node (hpZ); no effect on one rank"),
    ROW(ZERO "zero_quantized_weights", K_DS, T_BOOL, NULL, "false", 0, 0,
        "weights travel between ranks in 8 bits (qwZ); no effect on one rank"),
    LATER(ZERO "zero_quantized_nontrainable_weights", "quantised communication"),
    ROW(ZERO "zero_quantized_gradients", K_DS, T_BOOL, NULL, "false", 0, 0,
        "gradients travel between ranks in 4 bits (qgZ); no effect on one rank"),
    LATER(ZERO "zeropp_loco_param", "quantised communication"),
    ROW(ZERO "mics_shard_size", K_DS, T_INT, NULL, "-1", -1, 0, "no effect on one rank"),
    IGNORED(ZERO "mics_hierarchical_params_gather", NO_EFFECT_1),
    REFUSED(ZERO "zenflow", "ZenFlow updates some gradients late: the result would not be that of AdamW"),
    ROW("aio", K_DS, T_OBJ | T_NULL, NULL, NULL, 0, 0, "disk requests; speed only; `tidemill tune io` prints it"),
    ROW("aio.block_size", K_DS, T_SIZE, NULL, "1048576", 4096, 1 << 30, "bytes of a request"),
    ROW("aio.queue_depth", K_DS, T_INT, NULL, "8", 1, 4096, "requests in flight"),
    ROW("aio.intra_op_parallelism", K_DS, T_INT, NULL, "1", 1, 1024, "threads of the threads engine"),
    ALIAS("aio.thread_count", K_DS, "aio.intra_op_parallelism"),
    ALIAS("aio.num_threads", K_DS, "aio.intra_op_parallelism"),
    ROW("aio.single_submit", K_DS, T_BOOL | T_WORD, NULL, "false", 0, 0, "true: requests are submitted one by one"),
    ROW("aio.overlap_events", K_DS, T_BOOL | T_WORD, NULL, "true", 0, 0,
        "false: a request is waited for before the next is submitted"),
    IGNORED("aio.use_gds", "there is no GPU to read into"),
    /* ---- DeepSpeed: no effect ------------------------------------------------------------------------------------ */
    IGNORED("activation_checkpointing", "memory.activations decides"),
    IGNORED("gradient_checkpointing", "memory.activations decides"),
    IGNORED("gradient_checkpointing_kwargs", "memory.activations decides"),
    IGNORED("zero_allow_untested_optimizer", "there is one optimizer"),
    IGNORED("zero_force_ds_cpu_optimizer", "there is one optimizer"),
    ROW("communication_data_type", K_DS, T_ENUM | T_NULL, "fp32|bf16|fp16", "fp32", 0, 0,
        "what gradients travel in between ranks; no effect on one rank"),
    IGNORED("seq_parallel_communication_data_type", NO_EFFECT_1),
    IGNORED("prescale_gradients", NO_EFFECT_1),
    IGNORED("gradient_predivide_factor", NO_EFFECT_1),
    IGNORED("gradient_allreduce_op", NO_EFFECT_1),
    IGNORED("disable_allgather", NO_EFFECT_1),
    IGNORED("sparse_gradients", NO_EFFECT_1),
    IGNORED("sparse_gradients_enabled", NO_EFFECT_1),
    IGNORED("managed_gradient_accumulation", "accumulation is part of the plan"),
    IGNORED("data_types", "gradients are accumulated in fp32"),
    IGNORED("dump_state", "`tidemill inspect` shows it"),
    IGNORED("memory_breakdown", "`tidemill plan` shows it"),
    IGNORED("flops_profiler", "`tidemill train --profile` shows it"),
    IGNORED("comms_logger", NO_EFFECT_1),
    IGNORED("comms_config", NO_EFFECT_1),
    IGNORED("tensorboard", NO_MONITOR),
    IGNORED("csv_monitor", NO_MONITOR),
    IGNORED("wandb", NO_MONITOR),
    IGNORED("comet", NO_MONITOR),
    IGNORED("monitor_config", NO_MONITOR),
    IGNORED("timers", "wait_seconds in log.jsonl has them"),
    IGNORED("checkpoint", "checkpoints do not depend on ranks"),
    IGNORED("compile", "specific to PyTorch"),
    IGNORED("graph_harvesting", "specific to PyTorch"),
    IGNORED("nebula", "specific to Azure"),
    IGNORED("use_data_before_expert_parallelism", NO_EFFECT_1),
    IGNORED("use_data_before_expert_parallelism_", NO_EFFECT_1),
    /* ---- HF Trainer and ms-swift: no effect ---------------------------------------------------------------------- */
    IGNORED("report_to", NO_MONITOR),
    IGNORED("run_name", NO_MONITOR),
    IGNORED("logging_dir", "log.jsonl lies in output_dir"),
    IGNORED("logging_strategy", "log.jsonl has every step"),
    IGNORED("logging_first_step", "log.jsonl has every step"),
    IGNORED("overwrite_output_dir", "`--resume never` starts anew"),
    IGNORED("save_safetensors", "models are always saved as safetensors"),
    IGNORED("save_only_model", "save_state decides"),
    IGNORED("do_train", "`tidemill train` trains"),
    IGNORED("do_eval", "data.eval decides"),
    IGNORED("dataloader_num_workers", "rows are tokenised ahead anyway"),
    IGNORED("dataloader_pin_memory", "specific to PyTorch"),
    IGNORED("dataset_num_proc", "rows are tokenised ahead anyway"),
    IGNORED("remove_unused_columns", "unknown columns are left alone"),
    IGNORED("disable_tqdm", "TIDEMILL_LOG=warn is quiet"),
    IGNORED("ddp_find_unused_parameters", NO_EFFECT_1),
    IGNORED("ddp_timeout", NO_EFFECT_1),
    IGNORED("local_rank", NO_EFFECT_1),
    IGNORED("tf32", "products are fp32 or bf16"),
    IGNORED("bf16_full_eval", "evaluation computes as training does"),
    IGNORED("attn_impl", "attention is always tiled"),
    IGNORED("attn_implementation", "attention is always tiled"),
    IGNORED("push_to_hub", "nothing leaves this machine"),
    /* ---- not in this version, or never --------------------------------------------------------------------------- */
    LATER("dataloader_drop_last", "dropping the last, smaller step"),
    LATER("label_smoothing_factor", "label smoothing"),
    LATER("neftune_noise_alpha", "NEFTune"),
    LATER("lora_rank", "adapters (LoRA and others)"),
    LATER("lora_alpha", "adapters (LoRA and others)"),
    LATER("load_best_model_at_end", "keeping the best checkpoint"),
    LATER("group_by_length", "grouping by length"),
    REFUSED("resume_from_checkpoint", "resuming is said on the command line: --resume auto|never|DIR"),
    REFUSED("amp", "apex is specific to PyTorch; give precision"),
    REFUSED("torch_autocast", "specific to PyTorch; give precision"),
    REFUSED("sparse_attention", "attention is exact here"),
    REFUSED("pipeline", "there is no pipeline parallelism"),
    REFUSED("tensor_parallel", "there is no tensor parallelism"),
    ROW("sequence_parallel_size", K_DS, T_INT, NULL, "1", 1, 1, "there is no sequence parallelism"),
    REFUSED("autotuning", "`tidemill plan` and `tidemill tune` take its place"),
    REFUSED("elasticity", "it changes batch sizes; give them"),
    REFUSED("compression_training", "it changes the model"),
    REFUSED("quantize_training", "it changes the model"),
    REFUSED("progressive_layer_drop", "it changes the model"),
    REFUSED("eigenvalue", "part of quantised training"),
    REFUSED("curriculum_learning", "it changes the data"),
    REFUSED("data_efficiency", "it changes the data"),
    REFUSED("hybrid_engine", "it is for reinforcement learning"),
    REFUSED("weight_quantization", "it changes the model"),
    REFUSED("zenflow", "ZenFlow updates some gradients late: the result would not be that of AdamW"),
};
// clang-format on
const size_t schema_row_count = TM_COUNT(schema_rows);

const schema_row *schema_find(const char *path) {
    for (size_t i = 0; i < schema_row_count; i++)
        if (!strcmp(schema_rows[i].path, path)) return &schema_rows[i];
    return NULL;
}

size_t schema_index(const char *path) {
    const schema_row *row = schema_find(path);
    TM_ASSERT(row && !row->alias_of);
    return (size_t)(row - schema_rows);
}

int schema_choice(const schema_row *row, const char *value, size_t len) {
    int index = 0;
    for (const char *c = row->choices; *c; c += strcspn(c, "|"), c += *c == '|', index++)
        for (const char *w = c, *end = c + strcspn(c, "|"); w < end; w += strcspn(w, "=|") + 1)
            if (strcspn(w, "=|") == len && !strncmp(w, value, len)) return index;
    return -1;
}

const char *schema_choice_name(const schema_row *row, int index, char *buf, size_t cap) {
    const char *c = row->choices;
    for (; index > 0; index--) c += strcspn(c, "|") + 1;
    snprintf(buf, cap, "%.*s", (int)strcspn(c, "=|"), c);
    return buf;
}

static void add(char *buf, size_t cap, const char *what) {
    size_t n = strlen(buf);
    snprintf(buf + n, cap - n, "%s%s", n ? " or " : "", what);
}

const char *schema_expects(const schema_row *row, char *buf, size_t cap) {
    buf[0] = 0;
    if (row->types & T_BOOL) add(buf, cap, "true or false");
    if (row->types & T_INT) add(buf, cap, "an integer");
    if (row->types & T_NUM) add(buf, cap, "a number");
    if (row->types & T_SIZE)
        add(buf, cap, "a size (bytes, or like \"3GiB\")");
    else if (row->types & T_STR)
        add(buf, cap, "a string");
    if (row->types & T_PAIR) add(buf, cap, "two numbers");
    if (row->types & T_LIST) add(buf, cap, "a string or a list of strings");
    if (row->types & T_OBJ) add(buf, cap, "an object");
    if (row->types & T_ENUM) {
        add(buf, cap, "one of ");
        for (const char *c = row->choices; *c; c += strcspn(c, "|"), c += *c == '|') {
            size_t n = strlen(buf);
            snprintf(buf + n, cap - n, "%s%.*s", c == row->choices ? "" : ", ", (int)strcspn(c, "=|"), c);
        }
    }
    if (row->types & T_AUTO) add(buf, cap, "\"auto\"");
    return buf;
}

/* The resolved configuration as JSON: our keys, and DeepSpeed's blocks where only those can say it. Loading what is
 * written here gives the same configuration. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void text(tm_json_writer *w, const char *key, const char *value) {
    if (!value) return;
    tm_jw_key(w, key);
    tm_jw_str(w, value);
}
static void real(tm_json_writer *w, const char *key, double value) {
    tm_jw_key(w, key);
    tm_jw_double(w, value);
}
static void whole(tm_json_writer *w, const char *key, int64_t value) {
    tm_jw_key(w, key);
    tm_jw_int(w, value);
}
static void truth(tm_json_writer *w, const char *key, bool value) {
    tm_jw_key(w, key);
    tm_jw_bool(w, value);
}
static void choice(tm_json_writer *w, const char *path, int index) {
    char name[64];
    const char *dot = strrchr(path, '.');
    text(w, dot ? dot + 1 : path, schema_choice_name(schema_find(path), index, name, sizeof name));
}
static void list(tm_json_writer *w, const char *key, const tm_strings *items) {
    if (!items->n) return;
    tm_jw_key(w, key);
    tm_jw_array(w);
    for (uint32_t i = 0; i < items->n; i++) tm_jw_str(w, items->item[i]);
    tm_jw_array_end(w);
}
static void open_object(tm_json_writer *w, const char *key) {
    tm_jw_key(w, key);
    tm_jw_object(w);
}

static void dump_loss_scale(tm_json_writer *w, const tm_loss_scale_opts *o) {
    open_object(w, "fp16");
    truth(w, "enabled", true);
    real(w, "loss_scale", o->loss_scale);
    whole(w, "initial_scale_power", o->initial_scale_power);
    whole(w, "loss_scale_window", o->loss_scale_window);
    whole(w, "hysteresis", o->hysteresis);
    truth(w, "consecutive_hysteresis", o->consecutive_hysteresis);
    real(w, "min_loss_scale", o->min_loss_scale);
    tm_jw_object_end(w);
}

static void dump_job(tm_json_writer *w, const tm_config *c) {
    text(w, "model", c->model);
    text(w, "init", c->init_random ? "random" : "pretrained");
    text(w, "precision", c->precision == TM_F32 ? "fp32" : c->precision == TM_BF16 ? "bf16" : "fp16");
    if (c->precision == TM_F16) dump_loss_scale(w, &c->loss_scale);
    whole(w, "seed", (int64_t)c->seed);
    whole(w, "data_seed", (int64_t)c->data.seed);
    open_object(w, "data");
    text(w, "train", c->data.train);
    text(w, "eval", c->data.eval);
    choice(w, "data.format", (int)c->data.format);
    whole(w, "seq_len", c->data.seq_len);
    truth(w, "packing", c->data.packing);
    truth(w, "shuffle", c->data.shuffle);
    choice(w, "data.overlong", (int)c->data.overlong);
    truth(w, "strict", c->data.strict);
    tm_jw_object_end(w);
    whole(w, "per_device_train_batch_size", c->micro_batch_size);
    whole(w, "gradient_accumulation_steps", c->accumulation_steps);
    whole(w, "train_batch_size", (int64_t)c->train_batch_size);
    whole(w, "per_device_eval_batch_size", c->eval_batch_size);
    whole(w, "max_steps", c->max_steps);
    real(w, "num_train_epochs", c->num_train_epochs);
}

/* Those that this optimizer has. */
static bool has(const tm_config *c, const char *key) {
    tm_optim_opts probe = c->optim;
    return tm_optim_set(c->optimizer, &probe, key, 0);
}

static void dump_adafactor(tm_json_writer *w, const tm_optim_opts *o) {
    real(w, "beta1", o->beta1);
    tm_jw_key(w, "eps");
    tm_jw_array(w);
    tm_jw_double(w, o->eps);
    tm_jw_double(w, o->eps_scale);
    tm_jw_array_end(w);
    real(w, "weight_decay", o->weight_decay);
    real(w, "decay_rate", o->decay_rate);
    real(w, "clip_threshold", o->clip_threshold);
    truth(w, "scale_parameter", o->scale_parameter);
    truth(w, "relative_step", o->relative_step);
    truth(w, "warmup_init", o->warmup_init);
}

static void dump_options(tm_json_writer *w, const tm_config *c) {
    const tm_optim_opts *o = &c->optim;
    if (has(c, "relative_step")) {
        dump_adafactor(w, o);
        return;
    }
    if (has(c, "beta1")) {
        tm_jw_key(w, "betas");
        tm_jw_array(w);
        tm_jw_double(w, o->beta1);
        tm_jw_double(w, o->beta2);
        tm_jw_array_end(w);
    }
    if (has(c, "eps")) real(w, "eps", o->eps);
    real(w, "weight_decay", o->weight_decay);
    if (has(c, "adam_w_mode")) {
        truth(w, "adam_w_mode", o->adam_w_mode);
        truth(w, "bias_correction", o->bias_correction);
    }
    if (has(c, "momentum")) {
        real(w, "momentum", o->momentum);
        real(w, "dampening", o->dampening);
        truth(w, "nesterov", o->nesterov);
    }
    if (has(c, "lr_decay")) {
        real(w, "lr_decay", o->lr_decay);
        real(w, "initial_accumulator_value", o->initial_accumulator_value);
    }
}

static void dump_optimizer(tm_json_writer *w, const tm_config *c) {
    real(w, "max_grad_norm", c->max_grad_norm);
    list(w, "no_decay", &c->no_decay);
    open_object(w, "optimizer");
    text(w, "type", config_optimizer_type(c));
    open_object(w, "params");
    if (!c->optim.relative_step) real(w, "lr", c->learning_rate); /* else Adafactor makes its own */
    dump_options(w, c);
    tm_jw_object_end(w);
    tm_jw_object_end(w);
}

static void dump_hf_schedule(tm_json_writer *w, const tm_lr_schedule *s) {
    static const char *const shape[] = {"linear", "cosine", "1-sqrt", ""};
    tm_lr_type t = s->type;
    bool min_lr = t == TM_LR_COSINE_WITH_MIN_LR || t == TM_LR_COSINE_WARMUP_WITH_MIN_LR;
    bool wsd = t == TM_LR_WARMUP_STABLE_DECAY;
    text(w, "lr_scheduler_type", tm_lr_type_name(t));
    open_object(w, "lr_scheduler_kwargs");
    if (t == TM_LR_COSINE || t == TM_LR_COSINE_WITH_RESTARTS || min_lr || wsd) real(w, "num_cycles", s->num_cycles);
    if (t == TM_LR_POLYNOMIAL) real(w, "lr_end", s->lr_end), real(w, "power", s->power);
    if (t == TM_LR_INVERSE_SQRT && s->timescale) whole(w, "timescale", s->timescale);
    if (min_lr) real(w, "min_lr_rate", s->min_lr_rate);
    if (t == TM_LR_COSINE_WARMUP_WITH_MIN_LR && !isnan(s->warmup_lr_rate)) real(w, "warmup_lr_rate", s->warmup_lr_rate);
    if (wsd) {
        if (s->stable_steps >= 0) whole(w, "num_stable_steps", s->stable_steps);
        whole(w, "num_decay_steps", s->decay_steps);
        real(w, "min_lr_ratio", s->min_lr_rate);
        text(w, "warmup_type", shape[s->warmup_shape]);
        text(w, "decay_type", shape[s->decay_shape]);
    }
    tm_jw_object_end(w);
}

static void dump_one_cycle(tm_json_writer *w, const tm_lr_schedule *s) {
    real(w, "cycle_min_lr", s->cycle_min_lr);
    real(w, "cycle_max_lr", s->cycle_max_lr);
    real(w, "decay_lr_rate", s->decay_lr_rate);
    whole(w, "cycle_first_step_size", s->cycle_first_step_size);
    if (s->cycle_second_step_size) whole(w, "cycle_second_step_size", s->cycle_second_step_size);
    whole(w, "cycle_first_stair_count", s->cycle_first_stair_count);
    if (s->cycle_second_stair_count >= 0) whole(w, "cycle_second_stair_count", s->cycle_second_stair_count);
    whole(w, "decay_step_size", s->decay_step_size);
    truth(w, "cycle_momentum", s->cycle_momentum);
    real(w, "cycle_min_mom", s->cycle_min_mom);
    real(w, "cycle_max_mom", s->cycle_max_mom);
    real(w, "decay_mom_rate", s->decay_mom_rate);
}

static void dump_warmups(tm_json_writer *w, const tm_config *c) {
    const tm_lr_schedule *s = &c->schedule;
    if (s->type != TM_LR_DS_WARMUP_COSINE) {
        real(w, "warmup_min_lr", s->warmup_min_lr);
        real(w, "warmup_max_lr", s->warmup_max_lr);
    } else {
        real(w, "warmup_min_ratio", s->warmup_min_ratio);
        real(w, "cos_min_ratio", s->cos_min_ratio);
    }
    if (c->warmup_auto)
        text(w, "warmup_num_steps", "auto");
    else
        whole(w, "warmup_num_steps", s->warmup_steps);
    text(w, "warmup_type", s->warmup_shape == TM_SHAPE_LINEAR ? "linear" : "log");
    if (s->type == TM_LR_DS_WARMUP) return;
    if (c->total_auto)
        text(w, "total_num_steps", "auto");
    else
        whole(w, "total_num_steps", s->total_steps);
}

static void dump_schedule(tm_json_writer *w, const tm_config *c) {
    const tm_lr_schedule *s = &c->schedule;
    real(w, "warmup_steps", c->warmup_steps);
    real(w, "warmup_ratio", c->warmup_ratio);
    if (!c->deepspeed_schedule) {
        dump_hf_schedule(w, s);
        return;
    }
    open_object(w, "scheduler");
    text(w, "type", tm_lr_type_name(s->type));
    open_object(w, "params");
    if (s->type == TM_LR_DS_ONE_CYCLE)
        dump_one_cycle(w, s);
    else if (s->type == TM_LR_DS_RANGE_TEST) {
        real(w, "lr_range_test_min_lr", s->range_min_lr);
        whole(w, "lr_range_test_step_size", s->range_step_size);
        real(w, "lr_range_test_step_rate", s->range_step_rate);
        truth(w, "lr_range_test_staircase", s->range_staircase);
    } else
        dump_warmups(w, c);
    tm_jw_object_end(w);
    tm_jw_object_end(w);
}

static void dump_memory(tm_json_writer *w, const tm_config *c) {
    static const char *const update[] = {"auto", "U", "F", "B"};
    open_object(w, "memory");
    text(w, "device", c->memory.device);
    if (c->memory.device_bytes == TM_DEVICE_UNLIMITED)
        text(w, "device_budget", "unlimited");
    else if (c->memory.device_bytes)
        whole(w, "device_budget", (int64_t)c->memory.device_bytes);
    if (c->memory.device_bandwidth) whole(w, "device_bandwidth", (int64_t)c->memory.device_bandwidth);
    if (c->memory.host_kind == TM_BUDGET_UNLIMITED) text(w, "host_budget", "unlimited");
    if (c->memory.host_kind == TM_BUDGET_BYTES) whole(w, "host_budget", (int64_t)c->memory.host_bytes);
    choice(w, "memory.activations", (int)c->memory.activations);
    text(w, "update", update[c->memory.update]);
    whole(w, "slots", c->memory.slots);
    text(w, "cache", c->memory.cache_none ? "none" : "auto");
    text(w, "spread", c->memory.spread > 0 ? "on" : c->memory.spread < 0 ? "off" : "auto");
    text(w, "shared_window", c->memory.shared_window > 0 ? "on" : c->memory.shared_window < 0 ? "off" : "auto");
    text(w, "exchange", c->memory.exchange > 0 ? "device" : c->memory.exchange < 0 ? "host" : "auto");
    truth(w, "allow_tmpfs", c->memory.allow_tmpfs);
    text(w, "io_engine", c->memory.io_engine);
    tm_jw_object_end(w);
}

/* What was not given is left out, so that it is not given when this is loaded. */
static void if_given(tm_json_writer *w, const char *key, uint64_t given) {
    if (given != TM_AUTO_ELEMENTS) whole(w, key, (int64_t)given);
}

/* "auto" follows the model's width. */
static void knob(tm_json_writer *w, const char *key, uint64_t given, uint64_t value, uint64_t without) {
    if (given != TM_AUTO_ELEMENTS)
        whole(w, key, (int64_t)given);
    else if (value != without)
        text(w, key, "auto");
}

static void open_offload(tm_json_writer *w, const char *key, tm_place place, const tm_strings *paths) {
    static const char *const device[] = {"auto", "none", "cpu", "nvme"};
    open_object(w, key);
    text(w, "device", device[place]);
    list(w, "nvme_path", paths);
}

static void dump_offload(tm_json_writer *w, const tm_config *c) {
    open_offload(w, "offload_param", c->param_place, &c->param_paths);
    if (c->knobs.param_buffers != TM_AUTO_ELEMENTS) whole(w, "buffer_count", 1);
    if_given(w, "buffer_size", c->knobs.param_buffers);
    if_given(w, "max_in_cpu", c->knobs.max_in_cpu);
    if (c->knobs.no_pin_memory) truth(w, "pin_memory", false);
    tm_jw_object_end(w);
    open_offload(w, "offload_optimizer", c->optimizer_place, &c->optimizer_paths);
    if_given(w, "buffer_count", c->knobs.optimizer_buffer_count);
    if (c->knobs.no_pipeline_read) truth(w, "pipeline_read", false);
    if (c->knobs.no_pipeline_write) truth(w, "pipeline_write", false);
    if (c->knobs.no_pin_memory) truth(w, "pin_memory", false);
    if (c->knobs.update_ratio >= 0) real(w, "ratio", c->knobs.update_ratio);
    tm_jw_object_end(w);
}

static void dump_storage(tm_json_writer *w, const tm_config *c) {
    open_object(w, "zero_optimization");
    whole(w, "stage", c->zero_stage);
    dump_offload(w, c);
    knob(w, "reduce_bucket_size", c->knobs.reduce_bucket_size, c->zero.reduce_bucket_size, 500000000);
    knob(w, "stage3_prefetch_bucket_size", c->knobs.prefetch_bucket_size, c->zero.prefetch_bucket_size, 50000000);
    knob(w, "stage3_param_persistence_threshold", c->knobs.param_persistence_threshold,
         c->zero.param_persistence_threshold, 100000);
    if_given(w, "stage3_max_live_parameters", c->knobs.max_live_parameters);
    if_given(w, "sub_group_size", c->knobs.sub_group_size);
    if (c->knobs.no_overlap) truth(w, "overlap_comm", false);
    tm_jw_object_end(w);
    if (!c->aio.given) return;
    open_object(w, "aio");
    whole(w, "block_size", (int64_t)c->aio.block_bytes);
    whole(w, "queue_depth", c->aio.queue_depth);
    whole(w, "intra_op_parallelism", c->aio.threads);
    truth(w, "single_submit", c->aio.single_submit);
    truth(w, "overlap_events", c->aio.overlap_events);
    tm_jw_object_end(w);
}

static void dump_output(tm_json_writer *w, const tm_config *c) {
    text(w, "output_dir", c->output_dir);
    unsigned by_epoch = c->by_epoch;
    if (by_epoch & TM_BY_EPOCH_SAVE)
        text(w, "save_strategy", "epoch");
    else
        whole(w, "save_steps", c->save_steps);
    if (by_epoch & TM_BY_EPOCH_EVAL)
        text(w, "eval_strategy", "epoch");
    else
        whole(w, "eval_steps", c->eval_steps);
    whole(w, "commit_steps", c->commit_steps);
    if (c->commit_minutes > 0) real(w, "commit_minutes", c->commit_minutes);
    if (by_epoch & TM_BY_EPOCH_LOG)
        text(w, "logging_strategy", "epoch");
    else
        whole(w, "logging_steps", c->logging_steps);
    if (c->save_total_limit) whole(w, "save_total_limit", c->save_total_limit);
    choice(w, "save_dtype", (int)c->save_dtype);
    truth(w, "keep_state", c->keep_state);
    truth(w, "save_state", c->save_state);
    if (c->save_best) text(w, "save_strategy", "best");
    if (c->track_best) text(w, "metric_for_best_model", "loss");
    if (c->greater_is_better) truth(w, "greater_is_better", true);
    if (c->load_best_model_at_end) truth(w, "load_best_model_at_end", true);
    truth(w, "wall_clock_breakdown", c->wall_clock_breakdown);
}

tm_status tm_config_dump_json(const tm_config *c, tm_buf *out, int indent) {
    tm_json_writer w;
    tm_jw_init(&w, out, indent);
    tm_jw_object(&w);
    dump_job(&w, c);
    dump_optimizer(&w, c);
    dump_schedule(&w, c);
    dump_memory(&w, c);
    dump_storage(&w, c);
    dump_output(&w, c);
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

/* ---- help ---------------------------------------------------------------------------------------------------- */

static const char *const titles[] = {
    [K_OURS] = "Keys of tidemill (names of ms-swift and HF Trainer):",
    [K_DS] = "\nKeys of DeepSpeed:",
    [K_IGNORED] = "\nAccepted, without effect:",
    [K_LATER] = "\nNot in this version; refused unless switched off:",
    [K_REFUSED] = "\nRefused:",
};

static tm_status help_row(tm_buf *out, const schema_row *row) {
    char expects[512];
    if (row->alias_of) return tm_buf_printf(out, "  %s\n      the same as %s\n", row->path, row->alias_of);
    if (row->kind >= K_IGNORED) return tm_buf_printf(out, "  %s: %s\n", row->path, row->help);
    TM_TRY(tm_buf_printf(out, "  %s\n      %s", row->path, row->help));
    if (!(row->types & T_OBJ)) TM_TRY(tm_buf_printf(out, "; %s", schema_expects(row, expects, sizeof expects)));
    if (row->def) TM_TRY(tm_buf_printf(out, "; default %s", row->def));
    return tm_buf_printf(out, "\n");
}

tm_status tm_config_help(tm_buf *out) {
    static const schema_kind order[] = {K_OURS, K_DS, K_IGNORED, K_LATER, K_REFUSED};
    for (size_t k = 0; k < TM_COUNT(order); k++) {
        TM_TRY(tm_buf_printf(out, "%s\n", titles[order[k]]));
        for (size_t i = 0; i < schema_row_count; i++) {
            schema_kind kind = schema_rows[i].kind == K_BOTH ? K_OURS : schema_rows[i].kind;
            if (kind == order[k]) TM_TRY(help_row(out, &schema_rows[i]));
        }
    }
    return TM_OK;
}

/* The resolved configuration as JSON: every row that is shown, section by section. Loading what is written here gives the
 * same configuration. */
#include "config/config_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sections whose keys do not stand in the order of the table, which is that of --keys: these first, then what else is
 * shown. (The order belongs to run.json and to commits; a new key need not be here.) */
static const struct {
    const char *section, *keys;
} orders[] = {
    {"", "model init precision fp16 seed data_seed data per_device_train_batch_size gradient_accumulation_steps "
         "train_batch_size per_device_eval_batch_size max_steps num_train_epochs max_grad_norm no_decay optimizer "
         "warmup_steps warmup_ratio lr_scheduler_type lr_scheduler_kwargs scheduler memory zero_optimization aio "
         "output_dir save_steps eval_steps commit_steps commit_minutes logging_steps save_total_limit save_dtype "
         "keep_state save_state save_strategy"},
    {"optimizer.params", "lr beta1 betas eps weight_decay adam_w_mode"},
    {"scheduler.params", "warmup_min_lr warmup_max_lr warmup_min_ratio cos_min_ratio"},
    {"zero_optimization", "stage offload_param offload_optimizer reduce_bucket_size stage3_prefetch_bucket_size "
                          "stage3_param_persistence_threshold stage3_max_live_parameters sub_group_size"},
    {"zero_optimization.offload_optimizer", "device nvme_path buffer_count pipeline_read pipeline_write"},
};

/* ---- when a row is shown ---------------------------------------------------------------------------------------- */

#define SHOWN(when, condition)                                                                                         \
    bool shown_##when(const tm_config *c, const schema_row *row) {                                                     \
        (void)c, (void)row;                                                                                            \
        return condition;                                                                                              \
    }

static bool has(const tm_config *c, const char *option) {
    tm_optim_opts probe = c->optim;
    return tm_optim_set(c->optimizer, &probe, option, 0);
}

static const char *leaf_of(const schema_row *row) {
    const char *dot = strrchr(row->path, '.');
    return dot ? dot + 1 : row->path;
}

SHOWN(always, true)
SHOWN(set, field_is_set(c, row))
SHOWN(eval, c->data.eval && c->data.split == 0)
SHOWN(columns, c->data.columns.n > 0)
SHOWN(nonzero, field_number(c, row) > 0)
SHOWN(thinking, c->data.thinking_said)
SHOWN(f16, c->precision == TM_F16)
SHOWN(hf, !c->deepspeed_schedule)
SHOWN(deepspeed, c->deepspeed_schedule)
/* Of the schedule that there is; one that may be null is left out where it was not given. */
SHOWN(argument, row->takers >> c->schedule.type & 1 && (!(row->types & T_NULL) || field_is_set(c, row)))
SHOWN(option, has(c, leaf_of(row)))
SHOWN(betas, has(c, "beta2"))
SHOWN(beta1, has(c, "beta1") && !has(c, "beta2")) /* Adafactor's */
SHOWN(rate, !c->optim.relative_step)              /* with it Adafactor makes its own */
SHOWN(bucket, field_is_set(c, row) || field_number(c, row) != strtod(row->def, NULL))
SHOWN(host_budget, c->memory.host_kind != TM_BUDGET_DEFAULT)
SHOWN(aio, c->aio.given)
SHOWN(best, c->save_best)
SHOWN(tracked, c->track_best)
SHOWN(tasks, c->eval_tasks.file.n > 0)
SHOWN(adapter, c->adapter != NULL)
SHOWN(quantized, c->quantization.type != TM_QUANTIZE_NONE)
SHOWN(blocks, c->freezing.freeze_trainable_layers != 0)
SHOWN(other_than_sft, c->objective.type != TM_OBJECTIVE_SFT) /* which was once all there was: runs of then have none */
SHOWN(objective, config_objective_takes(&c->objective, leaf_of(row)))

/* ---- rows that are not written as they are ---------------------------------------------------------------------- */

#define WRITTEN_AS(how, text)                                                                                          \
    void write_##how(tm_json_writer *w, const tm_config *c, const schema_row *row) {                                   \
        (void)c;                                                                                                       \
        tm_jw_field_str(w, leaf_of(row), text);                                                                        \
    }
WRITTEN_AS(schedule, tm_lr_type_name(c->schedule.type))
WRITTEN_AS(optimizer, config_optimizer_type(c))
WRITTEN_AS(best, "best")
WRITTEN_AS(metric, c->metric_for_best)

/* A lone path, or the JSON of more. */
void write_files(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    const char *text = strcmp(row->path, "data.train") == 0 ? c->data.train : c->data.eval;
    tm_jw_key(w, leaf_of(row));
    if (*text == '[' || *text == '{')
        tm_jw_raw(w, text, strlen(text));
    else
        tm_jw_str(w, text);
}

void write_columns(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    tm_jw_field_object(w, leaf_of(row));
    for (size_t i = 0; i < c->data.columns.n; i++)
        tm_jw_field_str(w, c->data.columns.theirs[i], c->data.columns.ours[i]);
    tm_jw_object_end(w);
}

/* As adapter_config.json has it. */
void write_adapter(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    tm_jw_key(w, leaf_of(row));
    tm_adapter_write_value(c->adapter, leaf_of(row), w);
}

/* A product of two keys is written as one of them. */
void write_one(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    (void)c;
    tm_jw_field_int(w, leaf_of(row), 1);
}
/* Adafactor has two, eps and eps_scale. */
void write_eps(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    tm_jw_key(w, leaf_of(row));
    if (!has(c, "eps_scale")) {
        field_write(w, c, row);
        return;
    }
    tm_jw_array(w);
    tm_jw_double(w, c->optim.eps);
    tm_jw_double(w, c->optim.eps_scale);
    tm_jw_array_end(w);
}
void write_budget(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    bool host = strcmp(row->path, "memory.host_budget") == 0;
    tm_jw_key(w, leaf_of(row));
    if (host ? c->memory.host_kind == TM_BUDGET_UNLIMITED : c->memory.device_bytes == TM_DEVICE_UNLIMITED)
        tm_jw_str(w, "unlimited");
    else
        field_write(w, c, row);
}
/* save_steps, eval_steps, logging_steps: where they follow epochs, the strategy is written in their place. */
void write_every(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    static const struct {
        const char *steps, *strategy;
        unsigned what;
    } all[] = {{"save_steps", "save_strategy", TM_BY_EPOCH_SAVE},
               {"eval_steps", "eval_strategy", TM_BY_EPOCH_EVAL},
               {"logging_steps", "logging_strategy", TM_BY_EPOCH_LOG}};
    size_t i = 0;
    while (i + 1 < TM_COUNT(all) && strcmp(all[i].steps, row->path) != 0) i++;
    if (c->by_epoch & all[i].what) {
        tm_jw_field_str(w, all[i].strategy, "epoch");
        return;
    }
    tm_jw_key(w, row->path);
    field_write(w, c, row);
}

static bool is_auto(const tm_config *c, const schema_row *row) {
    if (row->form == F_BUCKET) return !field_is_set(c, row); /* it follows the model's width */
    if (row->form != F_STEPS) return false;
    return row->at == offsetof(tm_config, schedule.warmup_steps) ? c->warmup_auto : c->total_auto;
}

static void dump_section(tm_json_writer *w, const tm_config *c, const char *section);

static void dump_row(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    if (!row->shown || !row->shown(c, row)) return;
    if (row->write) {
        row->write(w, c, row);
        return;
    }
    TM_ASSERT(!row->alias_of && row->kind < K_IGNORED);
    tm_jw_key(w, leaf_of(row));
    if (row->types & T_OBJ)
        dump_section(w, c, row->path);
    else if (is_auto(c, row))
        tm_jw_str(w, "auto");
    else
        field_write(w, c, row);
}

static bool is_in(const schema_row *row, const char *section) {
    size_t n = strlen(section), len = (size_t)(leaf_of(row) - row->path);
    return n ? len == n + 1 && !strncmp(row->path, section, n) : len == 0;
}

static bool is_word_of(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && !strncmp(at, word, n)) return true;
    return false;
}

static void dump_word(tm_json_writer *w, const tm_config *c, const char *section, const char *word) {
    char path[160];
    snprintf(path, sizeof path, "%s%s%.*s", section, *section ? "." : "", (int)strcspn(word, " "), word);
    dump_row(w, c, &schema_rows[schema_index(path)]);
}

static void dump_section(tm_json_writer *w, const tm_config *c, const char *section) {
    const char *first = "";
    for (size_t i = 0; i < TM_COUNT(orders); i++)
        if (!strcmp(orders[i].section, section)) first = orders[i].keys;
    tm_jw_object(w);
    for (const char *at = first; *at; at += strcspn(at, " "), at += *at == ' ') dump_word(w, c, section, at);
    for (size_t i = 0; i < schema_row_count; i++)
        if (is_in(&schema_rows[i], section) && !is_word_of(first, leaf_of(&schema_rows[i])))
            dump_row(w, c, &schema_rows[i]);
    tm_jw_object_end(w);
}

tm_status tm_config_dump_json(const tm_config *c, tm_buf *out, int indent) {
    tm_json_writer w;
    tm_jw_init(&w, out, indent);
    dump_section(&w, c, "");
    return tm_jw_end(&w);
}

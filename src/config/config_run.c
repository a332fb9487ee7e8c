/* Model, data, memory and output. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t NEVER = 1000000000000000;

static void missing(cfg_state *s, const char *path, const char *example, const char *option) {
    cfg_wrong(s, &s->whole, "\"%s\" is missing; give it, for example %s", path, s->opts->by_options ? option : example);
}

/* ---- precision: one of three spellings ----------------------------------------------------------------------- */

/* A section {"enabled": ...} or HF Trainer's flag. */
static const cfg_value *flag(const cfg_state *s, const char *section, const char *enabled) {
    const cfg_value *v = cfg_given(s, enabled);
    if (v) return v;
    v = cfg_given(s, section);
    return v && v->node->type == TM_JSON_BOOL ? v : NULL;
}

/* HF Trainer's flag and DeepSpeed's section. */
static void one_said(cfg_state *s, const char *path, const char *enabled) {
    const cfg_value *own = cfg_given(s, path), *section = cfg_given(s, enabled);
    if (own && section && own->node->type == TM_JSON_BOOL && own->node->boolean != section->node->boolean)
        cfg_mismatch(s, path, own, enabled, section);
}

/* Each is the other's contrary. */
static void check_save_state(cfg_state *s) {
    const cfg_value *state = cfg_given(s, "save_state"), *only = cfg_given(s, "save_only_model");
    if (state && only && state->node->boolean == only->node->boolean)
        cfg_mismatch(s, "save_only_model", only, "save_state", state);
}

static tm_status resolve_precision(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *flat = cfg_given(s, "precision");
    const cfg_value *bf16 = flag(s, "bf16", "bf16.enabled"), *fp16 = flag(s, "fp16", "fp16.enabled");
    one_said(s, "bf16", "bf16.enabled");
    one_said(s, "fp16", "fp16.enabled");
    bool on16 = fp16 && fp16->node->boolean, on_bf = bf16 && bf16->node->boolean;
    TM_TRY(cfg_fill_path(s, "precision"));
    if (on16 && on_bf) cfg_mismatch(s, "bf16.enabled", bf16, "fp16.enabled", fp16);
    if (flat && bf16 && on_bf != (c->precision == TM_BF16)) cfg_mismatch(s, "precision", flat, "bf16.enabled", bf16);
    if (flat && fp16 && on16 != (c->precision == TM_F16)) cfg_mismatch(s, "precision", flat, "fp16.enabled", fp16);
    if (!flat && (on16 || on_bf))
        c->precision = on16 ? TM_F16 : TM_BF16;
    else if (!flat && (bf16 || fp16))
        c->precision = TM_F32; /* DeepSpeed without either trains in fp32 */
    return TM_OK;
}

/* Rows of ids are told by the file's name; saying so is allowed where it is so. */
static void resolve_format(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const char *first = c->data.train ? c->data.train_items.item[0].path : NULL; /* NULL in an item that was wrong */
    const char *dot = first ? strrchr(first, '.') : NULL;
    c->data.format = TM_DATA_AUTO;
    if (!cfg_chosen(s, "data.format", "safetensors"))
        c->data.format = (tm_data_format)cfg_choice(s, "data.format");
    else if (!dot || strcmp(dot, ".safetensors"))
        cfg_wrong(s, cfg_given(s, "data.format"),
                  "\"data.format\" is safetensors, but data.train does not end in .safetensors");
}

/* ms-swift has one word for what happens to longer rows; two of its values are those of overlong. */
static void resolve_truncation(cfg_state *s) {
    static const struct {
        const char *word;
        tm_overlong overlong;
    } words[] = {{"delete", TM_OVERLONG_DROP}, {"raise", TM_OVERLONG_ERROR}, {"split", TM_OVERLONG_SPLIT}};
    tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, "data.truncation"), *overlong = cfg_given(s, "data.overlong");
    c->data.truncation = cfg_chosen(s, "data.truncation", "left") ? TM_TRUNCATE_LEFT : TM_TRUNCATE_RIGHT;
    for (size_t i = 0; i < TM_COUNT(words); i++) {
        if (!cfg_chosen(s, "data.truncation", words[i].word)) continue;
        if (overlong && c->data.overlong != words[i].overlong)
            cfg_mismatch(s, "data.truncation", v, "data.overlong", overlong);
        c->data.overlong = words[i].overlong;
    }
}

static tm_status resolve_data(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    TM_TRY(config_resolve_data(s));
    if (!c->data.train && !s->opts->data_optional)
        missing(s, "data.train", "\"data\": {\"train\": \"examples.jsonl\"}", "--dataset examples.jsonl");
    resolve_format(s);
    resolve_truncation(s);
    if (!cfg_given(s, "data_seed")) c->data.seed = c->seed;
    c->data.thinking_said = cfg_given(s, "data.enable_thinking") != NULL;
    if (c->data.train_on_inputs && c->data.mask_history)
        cfg_wrong(s, cfg_given(s, "data.mask_history"),
                  "\"data.mask_history\" learns the last answer alone, \"data.train_on_inputs\" whole rows; give one");
    if (c->data.packing && c->data.group_by_length)
        cfg_wrong(s, cfg_given(s, "data.group_by_length"),
                  "\"data.group_by_length\" is for rows of one sample, and packed ones are all as long as can be; "
                  "leave it out");
    return TM_OK;
}

static bool is_device(const char *name) {
    static const char digits[] = "0123456789";
    if (!strcmp(name, "cpu") || !strcmp(name, "cpu-arena") || !strcmp(name, "cuda")) return true;
    return !strncmp(name, "cuda:", 5) && name[5] && strspn(name + 5, digits) == strlen(name + 5);
}

static void resolve_host_budget(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, "memory.host_budget");
    if (!v) return;
    c->memory.host_kind = tm_json_is(v->node, "unlimited") ? TM_BUDGET_UNLIMITED : TM_BUDGET_BYTES;
    if (c->memory.host_kind == TM_BUDGET_BYTES) c->memory.host_bytes = cfg_size(s, "memory.host_budget");
}

/* A device that has memory of its own may give all that it has free. */
static void resolve_arena(cfg_state *s, const cfg_value *device, const cfg_value *budget) {
    tm_config *c = &s->cfg->pub;
    bool own = strcmp(c->memory.device, "cpu-arena") != 0;
    if (!budget && !own)
        cfg_wrong(s, device,
                  "\"memory.device\": \"cpu-arena\" has the memory that it is given; add memory.device_budget");
    else if (!budget || tm_json_is(budget->node, "unlimited"))
        c->memory.device_bytes = TM_DEVICE_UNLIMITED;
    else
        c->memory.device_bytes = tm_min_u64(cfg_size(s, "memory.device_budget"), TM_DEVICE_UNLIMITED);
    if (cfg_given(s, "memory.device_bandwidth")) c->memory.device_bandwidth = cfg_size(s, "memory.device_bandwidth");
}

static tm_status resolve_memory(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    char w[256];
    TM_TRY(cfg_fill_path(s, "memory.device"));
    const cfg_value *device = cfg_given(s, "memory.device"), *budget = cfg_given(s, "memory.device_budget");
    c->memory.device_given = device != NULL;
    if (device && !is_device(c->memory.device))
        cfg_wrong(s, device, "\"memory.device\" must be \"cpu\", \"cpu-arena\", \"cuda\" or \"cuda:N\", not \"%.48s\"",
                  c->memory.device);
    else if (strcmp(c->memory.device, "cpu"))
        resolve_arena(s, device, budget);
    else if (budget)
        tm_warn_once("memory.device_budget",
                     "%s: \"memory.device_budget\" has no effect here: device cpu has no memory "
                     "of its own",
                     cfg_where(budget, w, sizeof w));
    resolve_host_budget(s);
    return TM_OK;
}

/* By epochs: how many steps these are is known once the data are. */
static void resolve_strategies(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    static const struct {
        const char *path;
        unsigned what;
    } all[] = {{"save_strategy", TM_BY_EPOCH_SAVE},
               {"eval_strategy", TM_BY_EPOCH_EVAL},
               {"logging_strategy", TM_BY_EPOCH_LOG}};
    for (size_t i = 0; i < TM_COUNT(all); i++)
        if (cfg_chosen(s, all[i].path, "epoch")) s->cfg->pub.by_epoch |= all[i].what;
    if (s->cfg->pub.by_epoch & TM_BY_EPOCH_SAVE) c->save_steps = 0;
    if (s->cfg->pub.by_epoch & TM_BY_EPOCH_EVAL) c->eval_steps = 0;
    if (cfg_chosen(s, "logging_strategy", "no")) c->logging_steps = NEVER;
}

/* accelerate says Infinity, for never, in steps_per_print. */
static void resolve_logging(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *flat = cfg_given(s, "logging_steps"), *ds = cfg_given(s, "steps_per_print");
    int64_t by_ds = (int64_t)fmin(cfg_number(s, "steps_per_print"), (double)NEVER);
    c->logging_steps = flat ? cfg_integer(s, "logging_steps") : ds ? by_ds : 0;
    if (flat && ds && by_ds != c->logging_steps && by_ds != NEVER)
        cfg_mismatch(s, "logging_steps", flat, "steps_per_print", ds);
}

static bool falls(const char *metric) {
    return tm_ends_with(metric, "loss") || tm_ends_with(metric, "perplexity") || tm_ends_with(metric, "bits_per_byte");
}

/* True is said as it always was; false where it is not what the name says. */
bool shown_greater(const tm_config *c, const schema_row *row) {
    (void)row;
    return c->greater_is_better || !falls(c->metric_for_best);
}

/* HF Trainer takes names with "eval_" in front and without. */
static void resolve_metric(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *greater = cfg_given(s, "greater_is_better");
    if (!c->metric_for_best) c->metric_for_best = "loss";
    if (strncmp(c->metric_for_best, "eval_", 5) == 0) c->metric_for_best += 5;
    if (!*c->metric_for_best)
        cfg_wrong(s, cfg_given(s, "metric_for_best_model"), "\"metric_for_best_model\" names no metric");
    c->greater_is_better = greater ? greater->node->boolean : !falls(c->metric_for_best);
}

static void resolve_tasks(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    bool shots = cfg_given(s, "eval_tasks_num_fewshot") != NULL;
    c->eval_tasks.num_fewshot = shots ? (int32_t)cfg_integer(s, "eval_tasks_num_fewshot") : -1;
    if (cfg_chosen(s, "eval_strategy", "no")) c->eval_tasks.file = (tm_strings){0};
}

/* HF Trainer's rules: which evaluations can be compared with which checkpoints. */
static void resolve_best(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    bool evaluates = c->data.eval || c->eval_tasks.file.n > 0;
    c->save_best = cfg_chosen(s, "save_strategy", "best");
    resolve_metric(s);
    c->track_best = c->save_best || c->load_best_model_at_end || cfg_given(s, "metric_for_best_model") ||
                    c->early_stopping_patience;
    if (c->early_stopping_patience && (!evaluates || (!c->eval_steps && !(c->by_epoch & TM_BY_EPOCH_EVAL))))
        cfg_wrong(
            s, cfg_given(s, "early_stopping_patience"),
            "\"early_stopping_patience\" counts evaluations; give \"data.eval\" or \"eval_tasks\", and \"eval_steps\"");
    if (c->save_best) c->save_steps = 0;
    if (!c->save_best && !c->load_best_model_at_end) return;
    const char *key = c->save_best ? "save_strategy" : "load_best_model_at_end";
    const cfg_value *at = cfg_given(s, key);
    unsigned epochs = s->cfg->pub.by_epoch & (TM_BY_EPOCH_SAVE | TM_BY_EPOCH_EVAL);
    if (evaluates && epochs == (TM_BY_EPOCH_SAVE | TM_BY_EPOCH_EVAL)) return;
    if (evaluates && c->save_best && epochs == TM_BY_EPOCH_EVAL) return;
    if (evaluates && epochs)
        cfg_wrong(s, at,
                  "\"load_best_model_at_end\" needs an evaluation with each checkpoint: \"save_strategy\" and "
                  "\"eval_strategy\" must both be epoch, or both steps");
    else if (!evaluates || c->eval_steps == 0)
        cfg_wrong(s, at, "\"%s\" compares evaluations; give \"data.eval\" or \"eval_tasks\", and \"eval_steps\"", key);
    else if (!c->save_best && (c->save_steps == 0 || c->save_steps % c->eval_steps != 0))
        cfg_wrong(s, at,
                  "\"load_best_model_at_end\" needs an evaluation with each checkpoint: \"save_steps\" (%lld) must "
                  "be a multiple of \"eval_steps\" (%lld)",
                  (long long)c->save_steps, (long long)c->eval_steps);
}

/* HF Trainer's: a name, or a list of names. */
static tm_status resolve_monitors(cfg_state *s) {
    const cfg_value *given = cfg_given(s, "report_to");
    const tm_json *all = given ? given->node : NULL;
    bool list = all && all->type == TM_JSON_ARRAY;
    char w[256];
    for (const tm_json *one = list ? all->child : all; one; one = list ? one->next : NULL) {
        if (tm_json_is(one, "tensorboard") || tm_json_is(one, "all"))
            s->cfg->pub.tensorboard = true;
        else if (one->type == TM_JSON_STRING && !tm_json_is(one, "none"))
            tm_warn_once("report_to", "%s: \"report_to\": there is no \"%.48s\" here; tensorboard is, and report.html",
                         cfg_where(given, w, sizeof w), one->text);
    }
    return cfg_fill_path(s, "logging_dir");
}

static tm_status resolve_output(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    TM_TRY(cfg_fill_path(s, "output_dir"));
    TM_TRY(resolve_monitors(s));
    if (cfg_chosen(s, "save_strategy", "no")) c->save_steps = 0;
    resolve_logging(s);
    resolve_strategies(s);
    resolve_tasks(s);
    resolve_best(s);
    return TM_OK;
}

tm_status config_resolve_run(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    TM_TRY(cfg_fill_path(s, "model"));
    if (!c->model) missing(s, "model", "\"model\": \"path/to/hf-folder\"", "--model path/to/hf-folder");
    check_save_state(s);
    TM_TRY(resolve_precision(s));
    TM_TRY(resolve_data(s));
    TM_TRY(resolve_memory(s));
    return resolve_output(s);
}

/* Keys of other programs whose values say another thing here: what they say is put into the rows that mean it, as if it had
 * been written there. Names alone are rows with `alias_of`. */
#include "config/config_internal.h"

#include <string.h>

/* ---- values that nobody wrote ------------------------------------------------------------------------------------ */

static tm_json *new_node(cfg_state *s, const cfg_value *at, tm_json_type type) {
    tm_json *n;
    tm_status rc = cfg_alloc(s->cfg, sizeof *n, (void **)&n);
    cfg_keep(s, rc);
    if (rc != TM_OK) return NULL;
    *n = (tm_json){.type = type, .line = at->node->line, .column = at->node->column};
    return n;
}

static tm_json *text_node(cfg_state *s, const cfg_value *at, const char *text, size_t len) {
    tm_json *n = new_node(s, at, TM_JSON_STRING);
    if (!n) return NULL;
    n->text = cfg_strndup(s->cfg, text, len);
    n->len = len;
    if (!n->text) cfg_keep(s, TM_ENOMEM);
    return n->text ? n : NULL;
}

static tm_json *number_node(cfg_state *s, const cfg_value *at, const char *text, int64_t value) {
    tm_json *n = text_node(s, at, text, strlen(text));
    if (!n) return NULL;
    n->type = TM_JSON_NUMBER;
    n->is_integer = true;
    n->integer = value;
    n->number = (double)value;
    return n;
}

static void add_to(tm_json *list, const tm_json **last, tm_json *item) {
    if (!item) return;
    if (*last)
        ((tm_json *)(uintptr_t)*last)->next = item;
    else
        list->child = item;
    *last = item;
    list->count++;
}

/* ---- putting them in their rows ------------------------------------------------------------------------------------ */

/* What a row has by its own name counts where it agrees, or where an option lies over a file. */
static void put(cfg_state *s, const cfg_value *theirs, const char *path, const tm_json *node) {
    cfg_value *own = &s->value[schema_index(path)], v = *theirs;
    if (!node) return;
    v.node = node;
    bool given = own->node && own->node->type != TM_JSON_NULL;
    if (!given || (theirs->source == SOURCE_SET && own->source != SOURCE_SET))
        *own = v;
    else if (!cfg_same(own->node, node) && own->source != SOURCE_SET)
        cfg_mismatch(s, own->spelled, own, theirs->spelled, &v);
}

static void put_text(cfg_state *s, const cfg_value *theirs, const char *path, const char *text) {
    put(s, theirs, path, text_node(s, theirs, text, strlen(text)));
}

static void put_true(cfg_state *s, const cfg_value *theirs, const char *path) {
    tm_json *n = new_node(s, theirs, TM_JSON_BOOL);
    if (n) n->boolean = true;
    put(s, theirs, path, n);
}

static bool is_true(const cfg_value *v) {
    return v && v->node->type == TM_JSON_BOOL && v->node->boolean;
}

/* "a,b" or a list of such, as a list. */
static tm_json *divided(cfg_state *s, const cfg_value *v) {
    tm_json *list = new_node(s, v, TM_JSON_ARRAY);
    const tm_json *last = NULL, *item = v->node->type == TM_JSON_ARRAY ? v->node->child : v->node;
    for (; list && item; item = v->node->type == TM_JSON_ARRAY ? item->next : NULL)
        for (const char *at = item->text; at < item->text + item->len; at++) {
            at += strspn(at, " ");
            size_t n = strcspn(at, ","), end = n;
            while (end && at[end - 1] == ' ') end--;
            if (end) add_to(list, &last, text_node(s, v, at, end));
            at += n;
        }
    return list;
}

/* ---- LLaMA-Factory --------------------------------------------------------------------------------------------------- */

static void finetuning_type(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "finetuning_type");
    if (!v) return;
    put_text(s, v, "tuner_type", cfg_chosen(s, "finetuning_type", "lora") ? "lora" : "full");
    if (cfg_chosen(s, "finetuning_type", "freeze") && !cfg_given(s, "freeze_trainable_layers"))
        put(s, v, "freeze_trainable_layers", number_node(s, v, "2", 2));
}

static void lora_target(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "lora_target"), *more = cfg_given(s, "additional_target");
    const tm_json *list = v ? divided(s, v) : NULL;
    if (more) put(s, more, "adapter.modules_to_save", divided(s, more));
    if (!list) return;
    if (list->count == 1 && tm_json_is(list->child, "all"))
        put_text(s, v, "adapter.target_modules", "all-linear");
    else
        put(s, v, "adapter.target_modules", list);
}

/* Of stage dpo: two of its losses are objectives of their own here. */
static void pref_loss(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "pref_loss");
    cfg_value *type = &s->value[schema_index("objective.type")];
    if (!v) return;
    bool objective = cfg_chosen(s, "pref_loss", "orpo") || cfg_chosen(s, "pref_loss", "simpo");
    if (!objective) {
        put_text(s, v, "objective.loss_type", v->node->text);
        return;
    }
    if (type->node && tm_json_is(type->node, "dpo")) type->node = NULL;
    put_text(s, v, "objective.type", v->node->text);
}

/* Several files with commas between them. */
static void datasets(cfg_state *s) {
    static const char *const paths[] = {"data.train", "data.eval"};
    for (size_t i = 0; i < TM_COUNT(paths); i++) {
        cfg_value *v = &s->value[schema_index(paths[i])];
        bool named =
            v->node && v->node->type == TM_JSON_STRING && strstr(v->spelled, "dataset") && !strchr(v->spelled, '.');
        const tm_json *list = named && strchr(v->node->text, ',') ? divided(s, v) : NULL;
        if (list && list->count) v->node = list;
    }
}

/* ---- axolotl --------------------------------------------------------------------------------------------------------- */

static void rl(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "rl");
    if (!v) return;
    bool ipo = cfg_chosen(s, "rl", "ipo");
    put_text(s, v, "objective.type", ipo ? "dpo" : v->node->text);
    if (ipo) put_text(s, v, "objective.loss_type", "ipo");
}

static void pretraining_dataset(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "pretraining_dataset");
    if (!v) return;
    put(s, v, "data.train", v->node);
    put_text(s, v, "objective.type", "pretrain");
}

/* Beside names of targets, which are among them. */
static void lora_target_linear(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "lora_target_linear");
    cfg_value *targets = &s->value[schema_index("adapter.target_modules")];
    if (!is_true(v)) return;
    if (targets->node && targets->node->type == TM_JSON_ARRAY && targets->source != SOURCE_SET) targets->node = NULL;
    put_text(s, v, "adapter.target_modules", "all-linear");
}

static void per_epoch(cfg_state *s) {
    static const char *const keys[][3] = {{"evals_per_epoch", "eval_strategy", "eval_steps"},
                                          {"saves_per_epoch", "save_strategy", "save_steps"}};
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        const cfg_value *v = cfg_given(s, keys[i][0]), *steps = cfg_given(s, keys[i][2]);
        const cfg_value *strategy = cfg_given(s, keys[i][1]);
        if (v && v->node->integer == 0) put_text(s, v, keys[i][1], "no");
        if (!v || v->node->integer == 0) continue;
        if (steps) cfg_mismatch(s, keys[i][2], steps, keys[i][0], v);
        if (strategy && !cfg_chosen(s, keys[i][1], "steps")) cfg_mismatch(s, keys[i][1], strategy, keys[i][0], v);
    }
}

/* ---- ms-swift -------------------------------------------------------------------------------------------------------- */

static void loss_scale(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "loss_scale");
    if (v && cfg_chosen(s, "loss_scale", "last_round")) put_true(s, v, "data.mask_history");
    if (v && cfg_chosen(s, "loss_scale", "all")) put_true(s, v, "data.train_on_inputs");
}

tm_status config_take_theirs(cfg_state *s) {
    const cfg_value *pissa = cfg_given(s, "pissa_init");
    finetuning_type(s);
    lora_target(s);
    lora_target_linear(s);
    if (is_true(pissa)) put_text(s, pissa, "adapter.init_lora_weights", "pissa_niter_16");
    pref_loss(s);
    rl(s);
    pretraining_dataset(s);
    datasets(s);
    per_epoch(s);
    loss_scale(s);
    return s->broken;
}

/* ---- where one word stands for a section ----------------------------------------------------------------------------- */

/* axolotl's "optimizer: adamw_torch" and "adapter: lora" have the names of sections. */
const schema_row *config_row_of_word(const schema_row *row, const tm_json *value) {
    static const char *const words[][2] = {{"optimizer", "optim"}, {"adapter", "tuner_type"}, {"data", "data.train"}};
    bool files = value->type == TM_JSON_ARRAY && !strcmp(row->path, "data");
    for (size_t i = 0; i < TM_COUNT(words); i++)
        if ((value->type == TM_JSON_STRING || files) && !strcmp(row->path, words[i][0]))
            return schema_find(words[i][1]);
    return row;
}

/* ms-swift's names of DeepSpeed configurations. */
const char *config_deepspeed_of_word(const char *word) {
#define STAGE(n, more) "{\"zero_optimization\": {\"stage\": " n more "}}"
#define ON_CPU(what) ", \"offload_" what "\": {\"device\": \"cpu\"}"
    static const char *const words[][2] = {{"zero0", STAGE("0", "")},
                                           {"zero1", STAGE("1", "")},
                                           {"zero2", STAGE("2", "")},
                                           {"zero3", STAGE("3", "")},
                                           {"zero2_offload", STAGE("2", ON_CPU("optimizer"))},
                                           {"zero3_offload", STAGE("3", ON_CPU("optimizer") ON_CPU("param"))}};
    for (size_t i = 0; i < TM_COUNT(words); i++)
        if (!strcmp(word, words[i][0])) return words[i][1];
    return NULL;
}

/* The optimizer: the flat names (ms-swift, HF Trainer), or DeepSpeed's block with the defaults of what it names. */
#include "config/config_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PARAM "optimizer.params."

/* A flat key against what the block says or, where the block omits it, DeepSpeed's default. */
static void compare(cfg_state *s, const char *flat, const char *in_block, double block_value) {
    const cfg_value *f = cfg_given(s, flat), *b = cfg_given(s, in_block);
    char w[256], x[64];
    if (!f || f->node->number == block_value || cfg_is_auto(s, in_block)) return;
    if (b) {
        cfg_mismatch(s, flat, f, in_block, b);
        return;
    }
    cfg_contradiction(s, "%s %s (%s) does not match %s %.15g (DeepSpeed's default; say \"auto\" there)", flat,
                      cfg_show(f, x, sizeof x), cfg_where(f, w, sizeof w), in_block, block_value);
}

/* "auto": the flat value, or ours by default; absent: the default of DeepSpeed's optimizer. */
static double number(cfg_state *s, const char *flat, const char *in_block, double by_default) {
    if (flat && cfg_is_auto(s, in_block))
        return strcmp(flat, "learning_rate") ? cfg_number(s, flat) : s->cfg->pub.learning_rate;
    const cfg_value *v = cfg_given(s, in_block);
    double value = v ? v->node->number : by_default;
    if (flat) compare(s, flat, in_block, value);
    return value;
}

/* ---- which one ------------------------------------------------------------------------------------------------ */

/* DeepSpeed's types (and bitsandbytes' classes, which DeepSpeed does not name), with the rates and betas that their
 * originals take where the block is silent. */
typedef struct type_row {
    const char *type, *row, *as; /* in lower case; of optim's table; as it is written down */
    double lr, beta2;
} type_row;
static const type_row types[] = {
    {"adamw", "adamw", "AdamW", 1e-3, 0.999},
    {"adam", "adamw", "Adam", 1e-3, 0.999}, /* decoupled too, unless adam_w_mode is false */
    {"adamw8bit", "adamw_8bit", "AdamW8bit", 1e-3, 0.999},
    {"adam8bit", "adam_8bit", "Adam8bit", 1e-3, 0.999},
    {"lion", "lion", "Lion", 1e-3, 0.999},
    {"pagedadamw", "adamw", "AdamW", 1e-3, 0.999},
    {"pagedadamw32bit", "adamw", "AdamW", 1e-3, 0.999},
    {"pagedadamw8bit", "adamw_8bit", "AdamW8bit", 1e-3, 0.999},
    {"adagrad", "adagrad", "Adagrad", 1e-2, 0},
    {"sgd", "sgd", "SGD", 1e-3, 0},
    {"adafactor", "adafactor", "Adafactor", 1e-3, 0}, /* transformers' */
};
#define TYPES "\"AdamW\", \"Adam\", \"AdamW8bit\", \"Lion\", \"Adagrad\", \"SGD\" or \"Adafactor\""

/* HF Trainer's and ms-swift's names for them, in the order of the schema's choices. */
static const char *const optim_rows[] = {"adamw", "adamw_8bit", "adafactor", "sgd", NULL, "lion", "adagrad"};

const char *config_optimizer_type(const tm_config *c) {
    const tm_optimizer *optimizer = c->optimizer;
    if (!strcmp(optimizer->name, "adamw") && !c->optim.adam_w_mode) return "Adam";
    for (size_t i = 0; i < TM_COUNT(types); i++)
        if (!strcmp(types[i].row, optimizer->name)) return types[i].as;
    return optimizer->name;
}

static void refuse_type(cfg_state *s, const cfg_value *v) {
    static const struct {
        const char *type, *why;
    } known[] = {
        {"onebitadam", "sends gradients in one bit, so that results depend on the ranks"},
        {"onebitlamb", "sends gradients in one bit, so that results depend on the ranks"},
        {"zerooneadam", "sends gradients in one bit, so that results depend on the ranks"},
        {"lamb", "needs norms over whole tensors"},
        {"fusedlamb", "needs norms over whole tensors"},
        {"muon", "needs whole matrices"},
        {"muadam", "needs mup's shapes"},
        {"muadamw", "needs mup's shapes"},
        {"musgd", "needs mup's shapes"},
    };
    char w[256];
    cfg_where(v, w, sizeof w);
    for (size_t i = 0; i < TM_COUNT(known); i++) {
        if (strcasecmp(v->node->text, known[i].type)) continue;
        cfg_unsupported(s, v, "optimizer \"%s\" is not supported: it %s; use " TYPES, v->node->text, known[i].why);
        return;
    }
    cfg_wrong(s, v, "unknown optimizer \"%.48s\"; use " TYPES, v->node->text);
}

/* The row of a type; without one that of AdamW, so that what else is wrong is found as well. */
static const type_row *find_type(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "optimizer.type");
    if (!v) {
        cfg_wrong(s, cfg_raw(s, "optimizer"), "\"optimizer.type\" is missing; give \"AdamW\"");
        return &types[0];
    }
    const char *type = v->node->text;
    if (!strcasecmp(type, "deepspeedcpuadam") || !strcasecmp(type, "fusedadam")) type = "adam";
    for (size_t i = 0; i < TM_COUNT(types); i++)
        if (!strcasecmp(type, types[i].type)) return &types[i];
    refuse_type(s, v);
    return &types[0];
}

/* ---- its options ---------------------------------------------------------------------------------------------- */

static void set(cfg_state *s, const cfg_value *v, const char *key, double value) {
    tm_config *c = &s->cfg->pub;
    bool block = cfg_raw(s, "optimizer");
    if (!tm_optim_set(c->optimizer, &c->optim, key, value))
        cfg_wrong(s, v, "%s has no option \"%s\"; it has %s%s", config_optimizer_type(c), key, block ? "lr, " : "",
                  c->optimizer->keys);
}

static bool has(const tm_config *c, const char *key) {
    tm_optim_opts probe = c->optim;
    return tm_optim_set(c->optimizer, &probe, key, 0);
}

/* Beta1 alone, and no schedule but its own if relative_step says so. */
static bool is_adafactor(const tm_config *c) {
    return has(c, "relative_step");
}

static void resolve_betas(cfg_state *s, const type_row *type) {
    tm_optim_opts *o = &s->cfg->pub.optim;
    const cfg_value *pair = cfg_given(s, PARAM "betas");
    if (!has(&s->cfg->pub, "beta2")) {
        if (pair) set(s, pair, "betas", 0);
        return;
    }
    if (cfg_is_auto(s, PARAM "betas")) {
        o->beta1 = cfg_number(s, "adam_beta1");
        o->beta2 = cfg_number(s, "adam_beta2");
        return;
    }
    o->beta1 = pair ? pair->node->child->number : 0.9;
    o->beta2 = pair ? pair->node->child->next->number : type->beta2;
    compare(s, "adam_beta1", PARAM "betas", o->beta1);
    compare(s, "adam_beta2", PARAM "betas", o->beta2);
}

/* Those that have one spelling only. Optimizers with betas know beta1 too, for optim_args; in a block it would silently
 * overrule them. */
static void resolve_own(cfg_state *s) {
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        const cfg_value *v = row->option ? cfg_given(s, row->path) : NULL;
        if (!v) continue;
        if (!strcmp(row->path, PARAM "beta1") && has(&s->cfg->pub, "beta2")) {
            cfg_wrong(s, v, "\"beta1\" is an option of Adafactor; %s takes both as \"betas\"",
                      config_optimizer_type(&s->cfg->pub));
            continue;
        }
        set(s, v, row->path + strlen(PARAM), v->node->type == TM_JSON_BOOL ? v->node->boolean : v->node->number);
    }
}

/* DeepSpeed: type AdamW is decoupled whatever adam_w_mode says. */
static void resolve_mode(cfg_state *s, const type_row *type) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, PARAM "adam_w_mode");
    if (!has(c, "adam_w_mode")) {
        if (v) set(s, v, "adam_w_mode", 0);
        return;
    }
    bool asked = v ? v->node->boolean : c->optim.adam_w_mode, fixed = strstr(type->type, "adamw");
    if (fixed && !asked) tm_warn_once("adam_w_mode", "adam_w_mode false has no effect on type AdamW, as in DeepSpeed");
    c->optim.adam_w_mode = fixed || asked;
}

/* One number; of Adafactor two, beside g^2 and for the size of the weights. */
static void resolve_eps(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, PARAM "eps");
    bool pair = v && v->node->type == TM_JSON_ARRAY;
    if (v && !has(c, "eps")) {
        set(s, v, "eps", 0);
    } else if (v && pair != is_adafactor(c)) {
        cfg_wrong(s, v, "\"eps\" of %s must be %s", config_optimizer_type(c),
                  pair ? "one number" : "two numbers: [1e-30, 1e-3]");
    } else if (pair) {
        c->optim.eps = v->node->child->number;
        c->optim.eps_scale = v->node->child->next->number;
    } else if (has(c, "eps") && !is_adafactor(c)) {
        c->optim.eps = number(s, has(c, "beta1") ? "adam_epsilon" : NULL, PARAM "eps", c->optim.eps);
    }
}

/* transformers refuses a rate beside relative_step as well. DeepSpeed would take torch's class for the same name. */
static void check_rate(cfg_state *s) {
    const tm_config *c = &s->cfg->pub;
    const cfg_value *lr = cfg_given(s, "learning_rate"), *in_block = cfg_given(s, PARAM "lr");
    const cfg_value *v = lr ? lr : in_block && !cfg_is_auto(s, PARAM "lr") ? in_block : NULL;
    if (!is_adafactor(c)) return;
    if (c->optim.relative_step && v)
        cfg_wrong(s, v,
                  "\"%s\" beside relative_step, by which Adafactor makes its own rate: leave one out, or set "
                  "relative_step false",
                  v->spelled);
    if (cfg_raw(s, "optimizer"))
        tm_warn_once("adafactor",
                     "optimizer type Adafactor is transformers.Adafactor with its defaults; DeepSpeed itself would "
                     "take torch.optim.Adafactor, which is another arithmetic");
}

static void resolve_block(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const type_row *type = find_type(s);
    c->optimizer = tm_optimizer_find(type->row);
    tm_optim_defaults(c->optimizer, &c->optim);
    c->learning_rate = number(s, "learning_rate", PARAM "lr", type->lr);
    resolve_eps(s);
    c->optim.weight_decay = number(s, "weight_decay", PARAM "weight_decay", 0);
    resolve_betas(s, type);
    resolve_own(s);
    resolve_mode(s, type);
    if (!cfg_bool(s, PARAM "fp32_optimizer_states"))
        cfg_unsupported(s, cfg_given(s, PARAM "fp32_optimizer_states"),
                        "\"" PARAM "fp32_optimizer_states\" false: not supported yet by this version");
}

/* ---- flat names ----------------------------------------------------------------------------------------------- */

/* HF Trainer's optim_args: "momentum=0.9,nesterov=True". */
static void resolve_args(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "optim_args");
    char key[48], word[48];
    if (!v) return;
    for (const char *at = v->node->text; *at;) {
        int used = 0;
        char *end = word;
        bool pair = sscanf(at, " %47[^=, ] = %47[^, ]%n", key, word, &used) == 2;
        double value = !strcasecmp(word, "true") ? 1 : !strcasecmp(word, "false") ? 0 : pair ? strtod(word, &end) : 0;
        if (!pair || (end != word && *end) || (end == word && strcasecmp(word, "true") && strcasecmp(word, "false"))) {
            cfg_wrong(s, v, "\"optim_args\" must be like \"momentum=0.9,nesterov=True\"");
            return;
        }
        set(s, v, key, value);
        at += used;
        at += strspn(at, ", ");
    }
}

static void resolve_flat(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, "optim");
    const char *row = optim_rows[cfg_choice(s, "optim")];
    char x[256];
    if (!row)
        cfg_unsupported(s, v, "\"optim\" %s: not supported yet by this version; use \"adamw_torch\"",
                        cfg_show(v, x, sizeof x));
    c->optimizer = tm_optimizer_find(row ? row : "adamw");
    tm_optim_defaults(c->optimizer, &c->optim);
    c->optim.weight_decay = cfg_number(s, "weight_decay");
    if (is_adafactor(c)) /* as HF Trainer has it: the rate is the schedule's */
        c->optim.scale_parameter = c->optim.relative_step = false;
    if (has(c, "beta2")) {
        c->optim.beta1 = cfg_number(s, "adam_beta1");
        c->optim.beta2 = cfg_number(s, "adam_beta2");
        if (has(c, "eps")) c->optim.eps = cfg_number(s, "adam_epsilon");
    }
    resolve_args(s);
}

/* Both spellings are there: they have to name the same one, and options stand in one place. */
static void compare_optim(cfg_state *s) {
    const cfg_value *flat = cfg_given(s, "optim"), *block = cfg_given(s, "optimizer.type");
    const cfg_value *args = cfg_given(s, "optim_args");
    if (args && *args->node->text && cfg_raw(s, "optimizer"))
        cfg_wrong(s, args,
                  "\"optim_args\" are options of \"optim\"; beside an \"optimizer\" block give them in its "
                  "\"params\"");
    if (!flat || !block) return;
    const char *row = optim_rows[cfg_choice(s, "optim")];
    if (!row || strcmp(row, s->cfg->pub.optimizer->name)) cfg_mismatch(s, "optim", flat, "optimizer.type", block);
}

static void resolve_clipping(cfg_state *s) {
    const cfg_value *flat = cfg_given(s, "max_grad_norm"), *ds = cfg_given(s, "gradient_clipping");
    if (flat && ds && flat->node->number != ds->node->number)
        cfg_mismatch(s, "max_grad_norm", flat, "gradient_clipping", ds);
    s->cfg->pub.max_grad_norm = ds ? ds->node->number : cfg_number(s, "max_grad_norm");
}

/* DeepSpeed's defaults, whoever asked for fp16. */
static void check_loss_scale(cfg_state *s) {
    const char *wrong = tm_loss_scale_check(&s->cfg->pub.loss_scale);
    if (!wrong || s->cfg->pub.precision != TM_F16) return;
    const cfg_value *v = cfg_raw(s, strncmp(wrong, "min_", 4) == 0 ? "fp16.min_loss_scale" : "fp16.loss_scale");
    cfg_wrong(s, v ? v : &s->whole, "fp16: %s", wrong);
}

/* Inside backward the norm is not known yet, and nothing can be taken back. */
static void check_update(cfg_state *s) {
    const tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, "memory.update");
    char x[64];
    if (c->optimizer->passes > 1 && (c->memory.update == TM_UPDATE_F || c->memory.update == TM_UPDATE_B)) {
        cfg_wrong(s, v,
                  "\"memory.update\" %s: %s adds up squares over whole tensors before the first weight may move, "
                  "for which all gradients have to be there; leave it out, or choose U",
                  cfg_show(v, x, sizeof x), config_optimizer_type(c));
        return;
    }
    if (c->memory.update != TM_UPDATE_B) return;
    if (c->max_grad_norm > 0)
        cfg_wrong(s, v,
                  "\"memory.update\" B updates inside backward, before the norm of the gradient is known: it cannot "
                  "clip to max_grad_norm %.15g; set max_grad_norm 0, or choose U or F",
                  c->max_grad_norm);
    if (c->precision == TM_F16)
        cfg_wrong(s, v,
                  "\"memory.update\" B updates inside backward: it cannot skip a step that overflows fp16; choose U "
                  "or F");
}

tm_status config_resolve_optimizer(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    if (cfg_raw(s, "optimizer"))
        resolve_block(s);
    else
        resolve_flat(s);
    compare_optim(s);
    const char *wrong = tm_optim_check(c->optimizer, &c->optim);
    if (wrong) {
        /* Flat names were held against their ranges: then it is their options' text. */
        const cfg_value *v = cfg_raw(s, "optimizer") ? cfg_raw(s, "optimizer") : cfg_given(s, "optim_args");
        cfg_wrong(s, v, "%s: %s", config_optimizer_type(c), wrong);
    }
    check_rate(s);
    resolve_clipping(s);
    check_loss_scale(s);
    check_update(s);
    return cfg_fill_path(s, "no_decay");
}

/* "objective.loss_type" as a list, with "loss_weights": TRL's several losses of dpo, which are added up. */
#include "config/config_internal.h"

#include <math.h>
#include <string.h>

#define LOSSES "objective.loss_type"
#define WEIGHTS "objective.loss_weights"

static const schema_row *row_of(void) {
    return &schema_rows[schema_index(LOSSES)];
}

static bool are_several(const tm_objective_spec *o) {
    bool any = false;
    for (int i = 0; i < TM_LOSSES; i++) any |= o->weight[i] > 0;
    return any;
}

/* The i-th weight; 1 where there are none. Below 0: it is not a number, or missing. */
static double weight_of(const cfg_value *weights, size_t i) {
    const tm_json *n = weights ? weights->node->child : NULL;
    if (!weights) return 1;
    for (; n && i > 0; i--) n = n->next;
    return n && n->type == TM_JSON_NUMBER && isfinite(n->number) ? n->number : -1;
}

static void wrong_loss(cfg_state *s, const cfg_value *v, const tm_json *word) {
    char expects[512];
    cfg_wrong(s, v, "\"%s\" must be %s, with sft beside others, not %.40s", v->spelled,
              schema_expects(row_of(), expects, sizeof expects), word->text);
}

/* TRL's "sft": the chosen completions' own loss, which is rpo_alpha. */
static void take_sft(cfg_state *s, const cfg_value *v, double weight) {
    const cfg_value *alpha = cfg_given(s, "objective.rpo_alpha");
    if (alpha) cfg_wrong(s, alpha, "\"%s\" and sft in \"%s\" are the same; give one", alpha->spelled, v->spelled);
    s->cfg->pub.objective.rpo_alpha += weight;
}

static void take_one(cfg_state *s, const cfg_value *v, const tm_json *word, double weight) {
    tm_objective_spec *o = &s->cfg->pub.objective;
    int loss = schema_choice(row_of(), word->text, word->len);
    if (tm_json_is(word, "sft"))
        take_sft(s, v, weight);
    else if (loss < 0)
        wrong_loss(s, v, word);
    else
        o->weight[loss] += weight;
}

/* One that weighs 1 is that loss by itself. */
static void settle(cfg_state *s, const cfg_value *v) {
    tm_objective_spec *o = &s->cfg->pub.objective;
    int n = 0;
    for (int i = TM_LOSSES - 1; i >= 0; i--)
        if (o->weight[i] > 0) o->loss = (tm_preference_loss)i, n++;
    if (n == 0)
        cfg_wrong(s, v, "\"%s\": no loss of pairs has a weight; objective.type sft learns answers alone", v->spelled);
    if (n == 1 && o->weight[o->loss] == 1) o->weight[o->loss] = 0;
}

void config_resolve_losses(cfg_state *s) {
    const cfg_value *v = cfg_given(s, LOSSES), *weights = cfg_given(s, WEIGHTS);
    bool list = v && v->node->type == TM_JSON_ARRAY;
    unsigned before = s->n_problems;
    size_t i = 0;
    if (weights && (!list || weights->node->type != TM_JSON_ARRAY || weights->node->count != v->node->count)) {
        cfg_wrong(s, weights, "\"%s\" must be a list of numbers, one for each loss of the list \"loss_type\"",
                  weights->spelled);
        return;
    }
    if (v && !list) s->cfg->pub.objective.loss = (tm_preference_loss)cfg_choice(s, LOSSES);
    if (!list) return;
    for (const tm_json *word = v->node->child; word; word = word->next, i++) {
        double weight = weight_of(weights, i);
        if (weight < 0 || weight > 1e6)
            cfg_wrong(s, weights, "\"%s\": weights are numbers from 0 to 1e6", weights->spelled);
        else
            take_one(s, v, word, weight);
    }
    if (s->n_problems == before) settle(s, v);
}

bool config_has_loss(const tm_objective_spec *o, tm_preference_loss loss) {
    return are_several(o) ? o->weight[loss] > 0 : o->loss == loss;
}

/* ---- written down again ------------------------------------------------------------------------------------------- */

bool shown_losses(const tm_config *c, const schema_row *row) {
    (void)row;
    return are_several(&c->objective);
}

void write_losses(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    const tm_objective_spec *o = &c->objective;
    bool weights = strcmp(row->path, WEIGHTS) == 0;
    char name[32];
    if (!are_several(o)) {
        tm_jw_field_str(w, "loss_type", schema_choice_name(row_of(), (int)o->loss, name, sizeof name));
        return;
    }
    tm_jw_field_array(w, weights ? "loss_weights" : "loss_type");
    for (int i = 0; i < TM_LOSSES; i++) {
        if (o->weight[i] > 0 && weights) tm_jw_double(w, o->weight[i]);
        if (o->weight[i] > 0 && !weights) tm_jw_str(w, schema_choice_name(row_of(), i, name, sizeof name));
    }
    tm_jw_array_end(w);
}

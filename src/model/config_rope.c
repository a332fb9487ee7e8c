/* Rotary embedding in config.json: rope_parameters of transformers 5, one for all layers or one for each type of layer;
 * of transformers 4 rope_theta beside rope_scaling {rope_type or type, ...}. What is computed from it: model.c. */
#include "model/arch_internal.h"

#include <math.h>

static tm_status original_positions(const model_parser *p, const tm_json *rope, tm_model_config *c, tm_rope_config *r) {
    static const char key[] = "original_max_position_embeddings";
    const tm_json *at = model_present(tm_json_get(rope, key)) ? rope : p->root;
    double n;
    TM_TRY(model_key_real(p, at, key, c->max_position_embeddings, &n));
    if (n > MODEL_MAX_POSITIONS || n != floor(n)) return model_key_bad(p, tm_json_get(at, key), key, "an integer");
    r->original_max_position = (uint32_t)n;
    return TM_OK;
}

static tm_status parse_linear(const model_parser *p, const tm_json *rope, tm_model_config *c, tm_rope_config *r) {
    (void)c;
    return model_key_real(p, rope, "factor", -1, &r->factor);
}

static tm_status parse_llama3(const model_parser *p, const tm_json *rope, tm_model_config *c, tm_rope_config *r) {
    TM_TRY(model_key_real(p, rope, "factor", -1, &r->factor));
    TM_TRY(model_key_real(p, rope, "low_freq_factor", -1, &r->low_freq_factor));
    TM_TRY(model_key_real(p, rope, "high_freq_factor", -1, &r->high_freq_factor));
    if (!model_present(tm_json_get(rope, "original_max_position_embeddings")))
        return tm_fail(TM_EINPUT, "%s:%u:%u: original_max_position_embeddings is missing here", p->name, rope->line,
                       rope->column);
    if (r->high_freq_factor <= r->low_freq_factor)
        return model_key_bad(p, rope, "high_freq_factor", "greater than low_freq_factor");
    return original_positions(p, rope, c, r);
}

/* Peng et al. 2023, section 3.4: what the temperature of attention is divided into. */
static double yarn_scale(double factor, double m) {
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static tm_status parse_yarn(const model_parser *p, const tm_json *rope, tm_model_config *c, tm_rope_config *r) {
    double mscale, all;
    const tm_json *truncate = tm_json_get(rope, "truncate");
    TM_TRY(original_positions(p, rope, c, r));
    double ratio = (double)c->max_position_embeddings / r->original_max_position;
    TM_TRY(model_key_real(p, rope, "factor", ratio, &r->factor));
    TM_TRY(model_key_real(p, rope, "beta_fast", 32, &r->beta_fast));
    TM_TRY(model_key_real(p, rope, "beta_slow", 1, &r->beta_slow));
    TM_TRY(model_key_real(p, rope, "mscale", 0, &mscale));
    TM_TRY(model_key_real(p, rope, "mscale_all_dim", 0, &all));
    double own =
        mscale > 0 && all > 0 ? yarn_scale(r->factor, mscale) / yarn_scale(r->factor, all) : yarn_scale(r->factor, 1);
    r->truncate = true;
    if (model_present(truncate) && truncate->type != TM_JSON_BOOL)
        return model_key_bad(p, truncate, "truncate", "true or false");
    if (model_present(truncate)) r->truncate = truncate->boolean;
    return model_key_real(p, rope, "attention_factor", own, &r->attention_factor);
}

static tm_status parse_factors(const model_parser *p, const tm_json *rope, const char *key, uint32_t n, float *out) {
    const tm_json *list = tm_json_get(rope, key);
    bool ok = list && list->type == TM_JSON_ARRAY && list->count == n;
    for (const tm_json *e = ok ? list->child : NULL; e; e = e->next) {
        ok = ok && e->type == TM_JSON_NUMBER && isfinite(e->number) && e->number > 0;
        *out++ = (float)e->number;
    }
    if (ok) return TM_OK;
    return tm_fail(TM_EINPUT, "%s:%u:%u: %s must be %u positive numbers, one for each pair of columns that turns",
                   p->name, list ? list->line : rope->line, list ? list->column : rope->column, key, n);
}

static tm_status parse_longrope(const model_parser *p, const tm_json *rope, tm_model_config *c, tm_rope_config *r) {
    TM_TRY(original_positions(p, rope, c, r));
    TM_TRY(
        model_key_real(p, rope, "factor", (double)c->max_position_embeddings / r->original_max_position, &r->factor));
    r->n_factors = r->rotary / 2;
    TM_TRY(parse_factors(p, rope, "short_factor", r->n_factors, r->short_factor));
    TM_TRY(parse_factors(p, rope, "long_factor", r->n_factors, r->long_factor));
    double own = r->factor <= 1 || r->original_max_position < 2
                     ? 1
                     : sqrt(1 + log(r->factor) / log((double)r->original_max_position));
    return model_key_real(p, rope, "attention_factor", own, &r->attention_factor);
}

static tm_status parse_proportional(const model_parser *p, const tm_json *rope, tm_model_config *c, tm_rope_config *r) {
    (void)c;
    return model_key_real(p, rope, "factor", 1, &r->factor);
}

static const struct rope_row {
    const char *name;
    tm_rope_type type;
    tm_status (*parse)(const model_parser *p, const tm_json *rope, tm_model_config *c, tm_rope_config *r);
} rows[] = {{"default", TM_ROPE_DEFAULT, NULL},
            {"mrope", TM_ROPE_DEFAULT, NULL}, /* of text alone: all sections are at one position */

            {"linear", TM_ROPE_LINEAR, parse_linear},
            {"llama3", TM_ROPE_LLAMA3, parse_llama3},
            {"yarn", TM_ROPE_YARN, parse_yarn},
            {"longrope", TM_ROPE_LONGROPE, parse_longrope},
            {"proportional", TM_ROPE_PROPORTIONAL, parse_proportional}};

bool model_rope_is_known(const tm_json *type) {
    for (size_t i = 0; i < TM_COUNT(rows); i++)
        if (tm_json_is(type, rows[i].name)) return true;
    return false;
}

static tm_status find_type(const model_parser *p, const tm_json *rope, const struct rope_row **row) {
    const tm_json *type = tm_json_get(rope, "rope_type");
    if (!model_present(type)) type = tm_json_get(rope, "type");
    *row = &rows[0];
    if (!model_present(type)) return TM_OK;
    for (size_t i = 0; i < TM_COUNT(rows); i++)
        if (tm_json_is(type, rows[i].name)) {
            *row = &rows[i];
            return TM_OK;
        }
    return tm_fail(TM_EUNSUPPORTED,
                   "%s:%u:%u: rope_type \"%.40s\" is not supported; default, linear, llama3, yarn, longrope and "
                   "proportional are",
                   p->name, type->line, type->column, type->type == TM_JSON_STRING ? type->text : "?");
}

/* The part of a head that turns: a share, rounded down. */
static tm_status parse_part(const model_parser *p, const tm_json *rope, tm_rope_config *r) {
    static const char key[] = "partial_rotary_factor";
    double part;
    const tm_json *at = rope && model_present(tm_json_get(rope, key)) ? rope : p->root;
    TM_TRY(model_key_real(p, at, key, 1, &part));
    r->rotary = part > 1 ? 0 : (uint32_t)(r->head_dim * part);
    r->pairs = part > 1 ? 0 : (uint32_t)(r->head_dim * part / 2);
    if (r->type == TM_ROPE_PROPORTIONAL && r->pairs > 0) r->rotary = r->head_dim; /* the others turn by nothing */
    if (r->rotary < 2 || r->rotary % 2)
        return tm_fail(TM_EINPUT, "%s:%u:%u: %s of %g turns %u of %u columns of a head; an even number is needed",
                       p->name, at->line, at->column, key, part, r->rotary, r->head_dim);
    return TM_OK;
}

/* `rope` NULL: there is no object, only rope_theta. */
static tm_status parse_rope(const model_parser *p, const tm_json *rope, double theta, tm_model_config *c,
                            tm_rope_config *r) {
    const struct rope_row *row = &rows[0];
    *r = (tm_rope_config){.theta = theta, .attention_factor = 1, .head_dim = c->head_dim};
    if (r == &c->rope && c->kinds.full_head_dim) r->head_dim = c->kinds.full_head_dim;
    if (rope && rope->type != TM_JSON_OBJECT) return model_key_bad(p, rope, rope->key, "an object");
    if (rope) TM_TRY(model_key_real(p, rope, "rope_theta", theta, &r->theta));
    if (rope) TM_TRY(find_type(p, rope, &row));
    r->type = row->type;
    TM_TRY(parse_part(p, rope, r));
    return row->parse ? row->parse(p, rope, c, r) : TM_OK;
}

tm_status model_parse_ropes(const model_parser *p, tm_model_config *c) {
    const tm_json *v5 = tm_json_get(p->root, "rope_parameters"), *v4 = tm_json_get(p->root, "rope_scaling");
    const tm_json *all = model_present(v5) ? v5 : model_present(v4) ? v4 : NULL;
    double theta, local;
    TM_TRY(model_key_real(p, p->root, "rope_theta", c->rope.theta > 0 ? c->rope.theta : 10000.0, &theta));
    TM_TRY(model_key_real(p, p->root, "rope_local_base_freq",
                          c->rope_windowed.theta > 0 ? c->rope_windowed.theta : theta, &local));
    const tm_json *full = all && all->type == TM_JSON_OBJECT ? tm_json_get(all, "full_attention") : NULL;
    const tm_json *sliding = all && all->type == TM_JSON_OBJECT ? tm_json_get(all, "sliding_attention") : NULL;
    bool by_type = model_present(full) && model_present(sliding);
    c->two_ropes = by_type || local != theta || c->kinds.full_head_dim;
    TM_TRY(parse_rope(p, by_type ? full : all, theta, c, &c->rope));
    return parse_rope(p, by_type ? sliding : c->two_ropes ? NULL : all, local, c, &c->rope_windowed);
}

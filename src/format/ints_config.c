/* What a folder's config.json says of how its weights are quantised (quantization_config): which method, and of integer
 * codes how many bits, which groups. What is not read is refused by name. */
#include "format/ints_internal.h"

#include <stdio.h>
#include <string.h>

enum { LARGEST_GROUP = 1 << 20 };

typedef struct said {
    const tm_source *src;
    const tm_json *q;
    int_form *form;
} said;

static tm_status not_read(const said *s, const tm_json *at, const char *what) {
    char value[64] = "";
    if (at && at->len) snprintf(value, sizeof value, " (%.40s)", at->text);
    if (!at || at->line == 0) at = s->q;
    return tm_fail(TM_EUNSUPPORTED,
                   "%s/config.json:%u:%u: %s: %s%s is not read; take the model in bf16, f16 or f32, or quantise it "
                   "by `tidemill export`",
                   s->src->path, at->line, at->column, s->form->method, what, value);
}

static tm_status wrong(const said *s, const tm_json *at, const char *what) {
    if (!at) at = s->q;
    return tm_fail(TM_EINPUT, "%s/config.json:%u:%u: %s: %s", s->src->path, at->line, at->column, s->form->method,
                   what);
}

static bool is_null(const tm_json *v) {
    return !v || v->type == TM_JSON_NULL;
}

static bool is_true(const tm_json *v) {
    return v && v->type == TM_JSON_BOOL && v->boolean;
}

/* The first of two names that is there. */
static const tm_json *either(const tm_json *object, const char *name, const char *other) {
    const tm_json *v = tm_json_get(object, name);
    return is_null(v) ? tm_json_get(object, other) : v;
}

/* 4 or 8. */
static tm_status read_bits(const said *s, const tm_json *v, bool eight, unsigned *out) {
    if (!v || v->type != TM_JSON_NUMBER || !v->is_integer) return wrong(s, v, "the number of bits is not given");
    if (v->integer != 4 && !(eight && v->integer == 8)) return not_read(s, v, "this number of bits");
    *out = (unsigned)v->integer;
    return TM_OK;
}

/* Columns that share a scale; -1, and nothing: all of a row. */
static tm_status read_group(const said *s, const tm_json *v, uint64_t *out) {
    *out = 0;
    if (is_null(v)) return TM_OK;
    if (v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < -1 || v->integer == 0 || v->integer > LARGEST_GROUP)
        return wrong(s, v, "group_size is neither -1 nor a number of columns");
    *out = v->integer < 0 ? 0 : (uint64_t)v->integer;
    return TM_OK;
}

/* ---- compressed-tensors ---- */

static tm_status read_strategy(const said *s, const tm_json *w, int_scheme *out) {
    const tm_json *strategy = tm_json_get(w, "strategy"), *group = tm_json_get(w, "group_size");
    TM_TRY(read_group(s, group, &out->group));
    if (is_null(strategy)) return TM_OK; /* the group says it */
    if (tm_json_is(strategy, "channel")) {
        out->group = 0;
        return TM_OK;
    }
    if (!tm_json_is(strategy, "group")) return not_read(s, strategy, "this strategy of weights");
    return out->group ? TM_OK : wrong(s, strategy, "strategy is group, but there is no group_size");
}

static tm_status read_weights(const said *s, const tm_json *group, const tm_json *w) {
    const tm_json *type = tm_json_get(w, "type"), *symmetric = tm_json_get(w, "symmetric"),
                  *format = tm_json_get(group, "format"), *inputs = tm_json_get(group, "input_activations");
    int_scheme *out = &s->form->scheme[s->form->n];
    if (w->type != TM_JSON_OBJECT) return wrong(s, w, "weights is not an object");
    if (s->form->n == INT_SCHEMES) return not_read(s, group, "more than 16 config_groups");
    if (!is_null(type) && !tm_json_is(type, "int")) return not_read(s, type, "this type of weights");
    if (!is_null(format) && !tm_json_is(format, "pack-quantized")) return not_read(s, format, "this format of a group");
    if (!is_null(inputs))
        tm_warn_once("input_activations", "%s: where it is served its inputs are quantised, too; here they are not",
                     s->src->path);
    TM_TRY(read_bits(s, tm_json_get(w, "num_bits"), true, &out->bits));
    TM_TRY(read_strategy(s, w, out));
    out->symmetric = is_null(symmetric) || is_true(symmetric);
    s->form->n++;
    return TM_OK;
}

static tm_status read_packed(const said *s) {
    const tm_json *format = tm_json_get(s->q, "format"), *groups = tm_json_get(s->q, "config_groups"),
                  *sparse = tm_json_get(tm_json_get(s->q, "sparsity_config"), "format");
    s->form->layout = INT_BY_ROWS;
    if (!tm_json_is(format, "pack-quantized") && !tm_json_is(format, "mixed-precision"))
        return not_read(s, format, "this format");
    if (!is_null(sparse) && !tm_json_is(sparse, "dense")) return not_read(s, sparse, "this sparsity");
    if (!groups || groups->type != TM_JSON_OBJECT) return wrong(s, groups, "there are no config_groups");
    for (const tm_json *g = groups->child; g; g = g->next) {
        const tm_json *w = tm_json_get(g, "weights");
        if (!is_null(w)) TM_TRY(read_weights(s, g, w));
    }
    return s->form->n ? TM_OK : wrong(s, groups, "no config_group quantises weights");
}

/* ---- AutoGPTQ and AutoAWQ ---- */

static tm_status read_gptq(const said *s) {
    const tm_json *format = either(s->q, "checkpoint_format", "format"), *word = tm_json_get(s->q, "pack_dtype");
    int_scheme *out = &s->form->scheme[0];
    bool second = tm_json_is(format, "gptq_v2");
    s->form->layout = INT_GPTQ;
    s->form->one_less = !second;
    s->form->n = 1;
    if (!is_null(format) && !second && !tm_json_is(format, "gptq"))
        return not_read(s, format, "this checkpoint_format");
    if (is_true(tm_json_get(s->q, "is_marlin_format"))) return not_read(s, NULL, "is_marlin_format");
    if (!is_null(word) && !tm_json_is(word, "int32")) return not_read(s, word, "this pack_dtype");
    TM_TRY(read_bits(s, tm_json_get(s->q, "bits"), true, &out->bits));
    return read_group(s, tm_json_get(s->q, "group_size"), &out->group);
}

static tm_status read_awq(const said *s) {
    const tm_json *version = either(s->q, "version", "checkpoint_format"), *zeros = tm_json_get(s->q, "zero_point");
    int_scheme *out = &s->form->scheme[0];
    s->form->layout = INT_AWQ;
    s->form->n = 1;
    if (!is_null(version) && !tm_json_is(version, "gemm") && !tm_json_is(version, "GEMM"))
        return not_read(s, version, "this version");
    if (zeros && zeros->type == TM_JSON_BOOL && !zeros->boolean) return not_read(s, zeros, "zero_point: false");
    TM_TRY(read_bits(s, either(s->q, "bits", "w_bit"), false, &out->bits));
    return read_group(s, either(s->q, "group_size", "q_group_size"), &out->group);
}

/* ---- all ---- */

static const struct method {
    const char *name;
    tm_status (*read)(const said *s);
} methods[] = {{"compressed-tensors", read_packed}, {"gptq", read_gptq}, {"awq", read_awq}};

static tm_status read_method(tm_source *src, const tm_json *q) {
    const tm_json *named = tm_json_get(q, "quant_method");
    for (size_t i = 0; i < TM_COUNT(methods); i++) {
        if (!tm_json_is(named, methods[i].name)) continue;
        src->ints_form = tm_calloc(1, sizeof *src->ints_form);
        if (!src->ints_form) return tm_nomem(sizeof *src->ints_form);
        src->ints_form->method = methods[i].name;
        return methods[i].read(&(said){src, q, src->ints_form});
    }
    return tm_bnb_check_config(src, q);
}

tm_status tm_source_quantisation(tm_source *src) {
    tm_json_doc *doc;
    if (!strstr(src->config.data, "\"quantization_config\"")) return TM_OK;
    TM_TRY(tm_json_parse(&doc, src->config.data, src->config.len, "config.json", 0, 0));
    const tm_json *q = tm_json_get(tm_json_root(doc), "quantization_config");
    tm_status rc = is_null(q) ? TM_OK : read_method(src, q);
    tm_json_free(doc);
    return rc;
}

/* Hyper-parameters by the rows of an architecture: out of GGUF, out of config.json, into GGUF. */
#include "format/gguf_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t *size_at(tm_gguf_keys *k, size_t at) {
    return (uint32_t *)((char *)k + at);
}
static double *real_at(tm_gguf_keys *k, size_t at) {
    return (double *)((char *)k + at);
}

/* What llama.cpp takes q to be: head_dim, but hidden / heads in the model with so many layers (Gemma's 27B). */
static double usual_query(const tm_gguf_keys *k, const tm_key *row) {
    return k->layers == (uint32_t)row->absent ? k->hidden_size / k->heads : k->head_dim;
}

static bool may_be_absent(const tm_key *row, bool in_file) {
    return row->need != TM_NEED_BOTH && !(in_file && row->need == TM_NEED_FILE);
}

static bool may_be_zero(const tm_key *row) {
    return row->need >= TM_NEED_OPTIONAL;
}

static uint64_t absent_size(tm_gguf_keys *k, const tm_key *row) {
    uint64_t times = (uint64_t)row->absent;
    return row->from ? *size_at(k, row->from) * times : times;
}

static const tm_key *find_row(const tm_gguf_arch *arch, const char *gguf) {
    for (size_t list = 0; list < TM_COUNT(arch->keys); list++)
        for (const tm_key *row = arch->keys[list]; row && (row->gguf || row->json); row++)
            if (row->gguf && strcmp(row->gguf, gguf) == 0) return row;
    return NULL;
}

/* The two orders matter: heads before what is a multiple of them, sizes before the query's scale. */
typedef tm_status (*row_fn)(const void *from, tm_gguf_keys *k, const tm_key *row);
static tm_status each_row(const void *from, tm_gguf_keys *k, row_fn fn) {
    for (size_t list = 0; list < TM_COUNT(k->arch->keys); list++)
        for (const tm_key *row = k->arch->keys[list]; row && (row->gguf || row->json); row++)
            if (row->kind != TM_KEY_QUERY) TM_TRY(fn(from, k, row));
    return TM_OK;
}

static tm_status query_row(const void *from, tm_gguf_keys *k, row_fn fn) {
    const tm_key *row = find_row(k->arch, "attention.scale");
    return row && row->kind == TM_KEY_QUERY ? fn(from, k, row) : TM_OK;
}

static tm_status check_heads(const char *where, const tm_gguf_keys *k) {
    if (k->hidden_size / k->heads == 0)
        return tm_fail(TM_EINPUT, "%s: %u heads in %u dimensions", where, k->heads, k->hidden_size);
    if (k->arch->pattern.gguf && k->layers > TM_KEYS_MAX_LAYERS)
        return tm_fail(TM_EUNSUPPORTED, "%s: a %s with %u layers is not supported; at most %d", where, k->arch->type,
                       k->layers, TM_KEYS_MAX_LAYERS);
    return TM_OK;
}

/* ---- patterns ---- */

static void set_period(tm_gguf_keys *k, uint32_t period) {
    for (uint32_t i = 0; i < k->layers && i < TM_KEYS_MAX_LAYERS; i++)
        k->pattern[i] = period == 0 || (i + 1) % period != 0;
}

bool tm_gguf_period(const tm_gguf_keys *k, uint32_t *period) {
    for (*period = 0; *period <= k->layers; ++*period) {
        bool fits = true;
        for (uint32_t i = 0; i < k->layers && fits; i++)
            fits = k->pattern[i] == (*period == 0 || (i + 1) % *period != 0);
        if (fits) return true;
    }
    return false;
}

/* Whether llama.cpp takes the pattern for granted. */
static bool usual_pattern(const tm_gguf_keys *k) {
    for (uint32_t i = 0; i < k->layers; i++)
        if (k->pattern[i] != ((i + 1) % k->arch->pattern.period != 0)) return false;
    return true;
}

static tm_status read_flags(const tm_gguf *g, tm_gguf_keys *k, const tm_gguf_kv *kv) {
    static const uint8_t bytes_of_bool = 1;
    uint8_t flags[TM_KEYS_MAX_LAYERS];
    if (kv->element != TM_GGUF_BOOL || kv->count != k->layers)
        return tm_fail(TM_EINPUT, "%s: '%s' is not true or false for each of %u layers", tm_gguf_path(g), kv->key,
                       k->layers);
    TM_TRY(tm_file_read_at(g->file, kv->offset, flags, kv->count * bytes_of_bool));
    for (uint32_t i = 0; i < k->layers; i++) k->pattern[i] = flags[i] != 0;
    return TM_OK;
}

static tm_status read_pattern(const tm_gguf *g, tm_gguf_keys *k) {
    char key[TM_GGUF_ARCH_KEY];
    uint64_t period = k->arch->pattern.period;
    if (!k->arch->pattern.gguf) return TM_OK;
    const tm_gguf_kv *kv = tm_gguf_kv_find(g, tm_gguf_arch_key(k->arch, k->arch->pattern.gguf, key));
    if (kv && kv->type == TM_GGUF_ARRAY) return read_flags(g, k, kv);
    TM_TRY(tm_gguf_uint(g, key, &period, &(bool){false}));
    if (period > INT32_MAX) return tm_fail(TM_EINPUT, "%s: '%s' is %" PRIu64, tm_gguf_path(g), key, period);
    set_period(k, (uint32_t)period);
    return TM_OK;
}

/* "layer_types", a name for each layer; "no_rope_layers", 0 or 1 for each layer; or one number, the period. */
static tm_status config_pattern(const tm_json *c, tm_gguf_keys *k) {
    static const char *const lists[] = {"layer_types", "no_rope_layers"};
    static const char *const periods[] = {"sliding_window_pattern", "no_rope_layer_interval"};
    bool rope = k->arch->pattern.rope;
    uint32_t period = k->arch->pattern.period, i = 0;
    if (!k->arch->pattern.gguf) return TM_OK;
    const tm_json *list = tm_json_get(c, lists[rope]);
    if (!list || list->type == TM_JSON_NULL) {
        TM_TRY(tm_config_size(c, periods[rope], period, &period));
        set_period(k, period);
        return TM_OK;
    }
    bool right = list->type == TM_JSON_ARRAY && list->count == k->layers;
    for (const tm_json *e = right ? list->child : NULL; e && right; e = e->next, i++) {
        k->pattern[i] = rope ? e->number != 0 : tm_json_is(e, "sliding_attention");
        right = rope ? e->type == TM_JSON_NUMBER && (e->number == 0 || e->number == 1)
                     : k->pattern[i] || tm_json_is(e, "full_attention");
    }
    return right ? TM_OK
                 : tm_fail(TM_EINPUT, "config.json:%u: '%s' is not %s for each of %u layers", list->line, lists[rope],
                           rope ? "0 or 1" : "sliding_attention or full_attention", k->layers);
}

static void put_pattern(tm_gguf_writer *w, const tm_gguf_keys *k) {
    char key[TM_GGUF_ARCH_KEY];
    uint32_t period;
    if (!k->arch->pattern.gguf || (usual_pattern(k) && !k->arch->pattern.always)) return;
    tm_gguf_arch_key(k->arch, k->arch->pattern.gguf, key);
    if (k->arch->pattern.rope)
        tm_log(TM_LOG_WARN, "llama.cpp leaves out RoPE in every %uth layer of a %s, other than this model",
               k->arch->pattern.period, k->arch->type);
    if (!k->arch->pattern.always && tm_gguf_period(k, &period)) {
        tm_gguf_put_u32(w, key, period);
        return;
    }
    tm_gguf_put_array(w, key, TM_GGUF_BOOL, k->layers);
    for (uint32_t i = 0; i < k->layers; i++) tm_gguf_item_bytes(w, &(uint8_t){k->pattern[i]}, 1);
}

/* ---- out of GGUF ---- */

static tm_status file_size(const tm_gguf *g, tm_gguf_keys *k, const tm_key *row) {
    uint64_t v = absent_size(k, row);
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, row->gguf, key), &v,
                        may_be_absent(row, true) ? &(bool){false} : NULL));
    if (v > INT32_MAX || (v == 0 && !may_be_zero(row)))
        return tm_fail(TM_EINPUT, "%s: '%s' is %" PRIu64, tm_gguf_path(g), key, v);
    *size_at(k, row->at) = (uint32_t)v;
    return TM_OK;
}

static tm_status file_real(const tm_gguf *g, tm_gguf_keys *k, const tm_key *row) {
    double v = row->absent;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_float(g, tm_gguf_arch_key(k->arch, row->gguf, key), &v,
                         may_be_absent(row, true) ? &(bool){false} : NULL));
    if (!(v > 0) && !(v == 0 && may_be_zero(row))) return tm_fail(TM_EINPUT, "%s: '%s' is %g", tm_gguf_path(g), key, v);
    *real_at(k, row->at) = v;
    return TM_OK;
}

/* q = scale^-2; float32 knows it to 1e-7, so that a whole number is found again. */
static tm_status file_query(const tm_gguf *g, tm_gguf_keys *k, const tm_key *row) {
    double scale = 0;
    bool found;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_float(g, tm_gguf_arch_key(k->arch, row->gguf, key), &scale, &found));
    if (found && !(scale > 1e-6 && scale < 1e6))
        return tm_fail(TM_EINPUT, "%s: '%s' is %g", tm_gguf_path(g), key, scale);
    double q = found ? 1 / (scale * scale) : usual_query(k, row);
    *real_at(k, row->at) = fabs(q - round(q)) < 1e-5 * q ? round(q) : q;
    return TM_OK;
}

static tm_status file_row(const void *from, tm_gguf_keys *k, const tm_key *row) {
    const tm_gguf *g = from;
    if (!row->gguf) return TM_OK;
    return row->kind == TM_KEY_QUERY  ? file_query(g, k, row)
           : row->kind == TM_KEY_SIZE ? file_size(g, k, row)
                                      : file_real(g, k, row);
}

/* What would make it another model than its architecture's. */
static tm_status refuse_others(const tm_gguf *g, const tm_gguf_keys *k) {
    uint64_t experts = 0, window = 0;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "expert_count", key), &experts, &(bool){false}));
    if (experts) return tm_fail(TM_EUNSUPPORTED, "%s: mixtures of experts are not read from GGUF", tm_gguf_path(g));
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "attention.sliding_window", key), &window, &(bool){false}));
    if (window && !find_row(k->arch, "attention.sliding_window"))
        return tm_fail(TM_EUNSUPPORTED, "%s: a %s with a sliding window is not supported", tm_gguf_path(g),
                       k->arch->type);
    return TM_OK;
}

static tm_status file_head(const tm_gguf *g, tm_gguf_keys *k) {
    if (k->arch->hooks) return k->arch->hooks->read_file(g, k);
    uint64_t dim = k->hidden_size / k->heads, value_dim, rotary;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "attention.key_length", key), &dim, &(bool){false}));
    if (dim < 1 || dim > INT32_MAX) return tm_fail(TM_EINPUT, "%s: '%s' is %" PRIu64, tm_gguf_path(g), key, dim);
    value_dim = rotary = dim;
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "attention.value_length", key), &value_dim, &(bool){false}));
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "rope.dimension_count", key), &rotary, &(bool){false}));
    bool none = k->arch->flags & TM_ARCH_NO_ROPE, part = k->arch->flags & TM_ARCH_PARTIAL;
    bool right =
        value_dim == dim && (none || (rotary % 2 == 0 && (part ? rotary > 0 && rotary <= dim : rotary == dim)));
    if (!right)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s: heads of %" PRIu64 " with values of %" PRIu64 ", of which %" PRIu64
                       " are rotated, are not supported",
                       tm_gguf_path(g), dim, value_dim, rotary);
    k->head_dim = (uint32_t)dim;
    k->rope.rotary = (uint32_t)rotary;
    return TM_OK;
}

static tm_status file_tensors(const tm_gguf *g, tm_gguf_keys *k) {
    int64_t embed = tm_gguf_tensor_find(g, "token_embd.weight");
    if (embed < 0) return tm_fail(TM_EINPUT, "%s: has no token_embd.weight", tm_gguf_path(g));
    const tm_gguf_tensor *t = tm_gguf_tensor_get(g, (uint32_t)embed);
    if (t->ndim != 2 || t->shape[1] != k->hidden_size || t->shape[0] > INT32_MAX)
        return tm_fail(TM_EINPUT, "%s: token_embd.weight is not [vocabulary, %u]", tm_gguf_path(g), k->hidden_size);
    k->vocab_size = (uint32_t)t->shape[0];
    k->tied = tm_gguf_tensor_find(g, "output.weight") < 0;
    k->attention_bias = tm_gguf_tensor_find(g, "blk.0.attn_q.bias") >= 0;
    k->mlp_bias = tm_gguf_tensor_find(g, "blk.0.ffn_up.bias") >= 0;
    return TM_OK;
}

tm_status tm_gguf_read_keys(const tm_gguf *g, tm_gguf_keys *k) {
    memset(k, 0, sizeof *k);
    TM_TRY(tm_gguf_arch_of(g, &k->arch));
    TM_TRY(refuse_others(g, k));
    TM_TRY(each_row(g, k, file_row));
    TM_TRY(check_heads(tm_gguf_path(g), k));
    TM_TRY(file_tensors(g, k));
    TM_TRY(read_pattern(g, k));
    TM_TRY(file_head(g, k));
    TM_TRY(query_row(g, k, file_row));
    return k->arch->flags & TM_ARCH_NO_ROPE ? TM_OK : tm_gguf_read_rope(g, k);
}

/* ---- out of config.json ---- */

tm_status tm_config_size(const tm_json *c, const char *key, uint32_t fallback, uint32_t *out) {
    const tm_json *v = tm_json_get(c, key);
    *out = fallback;
    if (!v || v->type == TM_JSON_NULL)
        return fallback ? TM_OK : tm_fail(TM_EINPUT, "config.json: '%s' is missing", key);
    if (v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < 1 || v->integer > INT32_MAX)
        return tm_fail(TM_EINPUT, "config.json:%u: '%s' must be a positive integer", v->line, key);
    *out = (uint32_t)v->integer;
    return TM_OK;
}

tm_status tm_config_real(const tm_json *c, const char *key, double fallback, double *out) {
    const tm_json *v = tm_json_get(c, key);
    *out = fallback;
    if (!v || v->type == TM_JSON_NULL) return TM_OK;
    if (v->type != TM_JSON_NUMBER || !(v->number > 0 && v->number < 3e38))
        return tm_fail(TM_EINPUT, "config.json:%u: '%s' must be a positive number", v->line, key);
    *out = v->number;
    return TM_OK;
}

static bool is_null(const tm_json *v) {
    return v && v->type == TM_JSON_NULL;
}

static tm_status config_size(const tm_json *c, tm_gguf_keys *k, const tm_key *row) {
    uint64_t absent = absent_size(k, row);
    const tm_json *v = row->json ? tm_json_get(c, row->json) : NULL;
    bool zero = row->need == TM_NEED_COUNT && v && v->type == TM_JSON_NUMBER && v->number == 0;
    bool none = may_be_zero(row) && (zero || is_null(v) || (!v && absent == 0));
    if (none || !row->json) {
        *size_at(k, row->at) = none ? 0 : (uint32_t)tm_min_u64(absent, INT32_MAX);
        return TM_OK;
    }
    return tm_config_size(c, row->json, (uint32_t)tm_min_u64(absent, INT32_MAX), size_at(k, row->at));
}

static tm_status config_real(const tm_json *c, tm_gguf_keys *k, const tm_key *row) {
    double absent = row->kind == TM_KEY_QUERY ? 256 : row->absent; /* Gemma's, where config.json leaves q out */
    if (may_be_zero(row) && is_null(tm_json_get(c, row->json))) absent = 0;
    return tm_config_real(c, row->json, absent, real_at(k, row->at));
}

/* A value that is not the one that GGUF means without saying so. */
static tm_status config_constant(const tm_json *c, const tm_gguf_keys *k, const tm_key *row) {
    const tm_json *v = row->must ? tm_json_get(c, row->json) : NULL;
    char text[64] = "";
    if (!v || is_null(v)) return TM_OK;
    if (v->type == TM_JSON_STRING) snprintf(text, sizeof text, "\"%.50s\"", v->text);
    if (v->type == TM_JSON_BOOL) snprintf(text, sizeof text, v->boolean ? "true" : "false");
    if (strcmp(text, row->constant) == 0) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "config.json:%u: '%s' of a %s in GGUF is always %s", v->line, row->json,
                   k->arch->type, row->constant);
}

static tm_status config_row(const void *from, tm_gguf_keys *k, const tm_key *row) {
    switch (row->kind) {
    case TM_KEY_SIZE:
        return config_size(from, k, row);
    case TM_KEY_REAL:
    case TM_KEY_QUERY:
        return config_real(from, k, row);
    case TM_KEY_CONSTANT:
        return config_constant(from, k, row);
    case TM_KEY_BIAS:
        break;
    }
    return TM_OK;
}

static tm_status config_head(const tm_json *c, tm_gguf_keys *k) {
    if (k->arch->hooks) return k->arch->hooks->read_config(c, k);
    uint32_t own = k->arch->head_dim ? k->arch->head_dim : k->hidden_size / k->heads;
    TM_TRY(tm_config_size(c, "head_dim", own, &k->head_dim));
    if (k->head_dim % 2 && !(k->arch->flags & TM_ARCH_NO_ROPE))
        return tm_fail(TM_EINPUT, "config.json: head_dim must be even");
    k->rope.rotary = k->head_dim;
    return TM_OK;
}

tm_status tm_gguf_read_config(const tm_json *c, tm_gguf_keys *k) {
    const tm_json *type = tm_json_get(c, "model_type"), *tied = tm_json_get(c, "tie_word_embeddings");
    memset(k, 0, sizeof *k);
    TM_TRY(tm_gguf_arch_for(type && type->type == TM_JSON_STRING ? type->text : "", &k->arch));
    k->tied = tied && tied->type == TM_JSON_BOOL ? tied->boolean : !tied && (k->arch->flags & TM_ARCH_TIED);
    TM_TRY(tm_config_size(c, "vocab_size", 0, &k->vocab_size));
    TM_TRY(each_row(c, k, config_row));
    TM_TRY(check_heads("config.json", k));
    TM_TRY(config_pattern(c, k));
    TM_TRY(config_head(c, k));
    TM_TRY(query_row(c, k, config_row));
    return k->arch->flags & TM_ARCH_NO_ROPE ? TM_OK : tm_gguf_read_rope_config(c, k);
}

/* ---- into GGUF ---- */

static void put_query(tm_gguf_writer *w, const tm_gguf_keys *k, const tm_key *row, const char *key) {
    if (k->query_scalar == usual_query(k, row)) return;
    tm_log(TM_LOG_WARN, "llama.cpp takes %s to be %g in a %s, other than this model", row->json, usual_query(k, row),
           k->arch->type);
    tm_gguf_put_f32(w, key, (float)(1 / sqrt(k->query_scalar)));
}

static void put_row(tm_gguf_writer *w, const tm_gguf_keys *k, const tm_key *row) {
    char key[TM_GGUF_ARCH_KEY];
    const void *at = (const char *)k + row->at;
    if (!row->gguf) return;
    tm_gguf_arch_key(k->arch, row->gguf, key);
    if (row->kind == TM_KEY_QUERY) put_query(w, k, row, key);
    if (row->kind == TM_KEY_SIZE && (row->need != TM_NEED_OPTIONAL || *(const uint32_t *)at))
        tm_gguf_put_u32(w, key, *(const uint32_t *)at);
    if (row->kind == TM_KEY_REAL && (row->need != TM_NEED_OPTIONAL || *(const double *)at > 0))
        tm_gguf_put_f32(w, key, (float)*(const double *)at);
}

void tm_gguf_put_keys(tm_gguf_writer *w, const tm_gguf_keys *k) {
    char key[TM_GGUF_ARCH_KEY];
    for (size_t list = 0; list < TM_COUNT(k->arch->keys); list++)
        for (const tm_key *row = k->arch->keys[list]; row && (row->gguf || row->json); row++) put_row(w, k, row);
    if (k->arch->hooks)
        k->arch->hooks->put(w, k);
    else {
        tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, "attention.key_length", key), k->head_dim);
        tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, "attention.value_length", key), k->head_dim);
    }
    tm_gguf_put_u32(w, tm_gguf_arch_key(k->arch, "vocab_size", key), k->vocab_size);
    if ((k->arch->flags & TM_ARCH_WINDOWED) && k->sliding_window && k->sliding_window < k->context)
        tm_log(TM_LOG_WARN, "llama.cpp has no window in a %s, other than this model", k->arch->type);
    put_pattern(w, k);
    if (!(k->arch->flags & TM_ARCH_NO_ROPE)) tm_gguf_put_rope(w, k);
}

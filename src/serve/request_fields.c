/* The fields of a body, a row each. */
#include "serve/request_internal.h"

#include <string.h>

typedef tm_status (*take_fn)(serve_reading *g, const tm_json *v);
enum { OF_CHAT = 1, OF_COMPLETION = 2, OF_BOTH = 3 };
enum { MAX_MODEL = 256, MAX_STOP_BYTES = 1024, MOST_TOKENS = 1 << 24 };

static tm_status wrong_type(serve_reading *g, const tm_json *v, const char *wanted) {
    return serve_refuse(g->why, "invalid_type", v->key, "%s has to be %s", v->key, wanted);
}

static tm_status number(serve_reading *g, const tm_json *v, double least, double most, double *out) {
    if (v->type != TM_JSON_NUMBER) return wrong_type(g, v, "a number");
    if (!(v->number >= least && v->number <= most))
        return serve_refuse(g->why, "invalid_value", v->key, "%s has to be from %g to %g, and is %.32s", v->key, least,
                            most, v->text);
    *out = v->number;
    return TM_OK;
}

static tm_status integer(serve_reading *g, const tm_json *v, int64_t least, int64_t most, int64_t *out) {
    if (v->type != TM_JSON_NUMBER || !v->is_integer) return wrong_type(g, v, "a whole number");
    if (v->integer < least || v->integer > most)
        return serve_refuse(g->why, "invalid_value", v->key, "%s has to be from %lld to %lld, and is %lld", v->key,
                            (long long)least, (long long)most, (long long)v->integer);
    *out = v->integer;
    return TM_OK;
}

static tm_status boolean(serve_reading *g, const tm_json *v, bool *out) {
    if (v->type != TM_JSON_BOOL) return wrong_type(g, v, "true or false");
    *out = v->boolean;
    return TM_OK;
}

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

static tm_status take_model(serve_reading *g, const tm_json *v) {
    if (v->type != TM_JSON_STRING) return wrong_type(g, v, "a string");
    if (v->len == 0 || v->len > MAX_MODEL || strlen(v->text) != v->len)
        return serve_refuse(g->why, "invalid_value", "model", "model is no name of a model");
    g->r->model = tm_strdup(v->text);
    return g->r->model ? TM_OK : tm_nomem(v->len + 1);
}

static tm_status take_max_tokens(serve_reading *g, const tm_json *v) {
    return integer(g, v, g->r->kind == SERVE_CHAT ? 1 : 0, MOST_TOKENS, &g->r->max_tokens);
}
static tm_status take_max_completion_tokens(serve_reading *g, const tm_json *v) {
    return integer(g, v, 1, MOST_TOKENS, &g->max_completion_tokens);
}
static tm_status take_n(serve_reading *g, const tm_json *v) {
    int64_t n = 0;
    TM_TRY(integer(g, v, 1, SERVE_ANSWERS, &n));
    g->r->answers = (uint32_t)n;
    return TM_OK;
}
static tm_status take_seed(serve_reading *g, const tm_json *v) {
    int64_t seed = 0;
    TM_TRY(integer(g, v, INT64_MIN, INT64_MAX, &seed));
    g->r->sampling.seed = (uint64_t)seed;
    g->r->seed_given = true;
    return TM_OK;
}
static tm_status take_temperature(serve_reading *g, const tm_json *v) {
    return number(g, v, 0, 2, &g->r->sampling.temperature);
}
/* 1 keeps all tokens, and so does the engine's 0. */
static tm_status take_top_p(serve_reading *g, const tm_json *v) {
    double p = 0;
    TM_TRY(number(g, v, 0, 1, &p));
    if (p <= 0) return serve_refuse(g->why, "invalid_value", "top_p", "top_p has to be above 0");
    g->r->sampling.top_p = p < 1 ? p : 0;
    return TM_OK;
}
static tm_status take_min_p(serve_reading *g, const tm_json *v) {
    return number(g, v, 0, 1, &g->r->sampling.min_p);
}
/* vLLM's -1 and 0: all. */
static tm_status take_top_k(serve_reading *g, const tm_json *v) {
    int64_t k = 0;
    TM_TRY(integer(g, v, -1, INT32_MAX, &k));
    g->r->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
    return TM_OK;
}
static tm_status take_presence(serve_reading *g, const tm_json *v) {
    return number(g, v, -2, 2, &g->r->sampling.presence_penalty);
}
static tm_status take_frequency(serve_reading *g, const tm_json *v) {
    return number(g, v, -2, 2, &g->r->sampling.frequency_penalty);
}
static tm_status take_repetition(serve_reading *g, const tm_json *v) {
    return number(g, v, 0.01, 100, &g->r->sampling.repetition_penalty);
}
static tm_status take_ignore_eos(serve_reading *g, const tm_json *v) {
    return boolean(g, v, &g->r->ignore_eos);
}
static tm_status take_echo(serve_reading *g, const tm_json *v) {
    return boolean(g, v, &g->r->echo);
}
static tm_status take_stream(serve_reading *g, const tm_json *v) {
    return boolean(g, v, &g->r->stream);
}

static tm_status take_stream_options(serve_reading *g, const tm_json *v) {
    if (v->type != TM_JSON_OBJECT) return wrong_type(g, v, "an object");
    for (const tm_json *m = v->child; m; m = m->next) {
        bool usage = strcmp(m->key, "include_usage") == 0;
        if (!usage && strcmp(m->key, "include_obfuscation") != 0)
            return serve_refuse(g->why, "unknown_parameter", "stream_options", "stream_options.%.64s is not known",
                                m->key);
        if (usage && m->type != TM_JSON_NULL) TM_TRY(boolean(g, m, &g->r->include_usage));
    }
    return TM_OK;
}

/* A chat says whether, and top_logprobs how many; a completion says how many. */
static tm_status take_logprobs(serve_reading *g, const tm_json *v) {
    int64_t top = 0;
    if (g->r->kind == SERVE_CHAT) return boolean(g, v, &g->r->logprobs);
    TM_TRY(integer(g, v, 0, TM_ENGINE_TOP, &top));
    g->r->logprobs = true;
    g->r->top = (uint32_t)top;
    return TM_OK;
}
static tm_status take_top_logprobs(serve_reading *g, const tm_json *v) {
    return integer(g, v, 0, TM_ENGINE_TOP, &g->top_logprobs);
}

static tm_status add_stop(serve_reading *g, const tm_json *v) {
    if (v->type != TM_JSON_STRING)
        return serve_refuse(g->why, "invalid_type", "stop", "stop has to be a string or a list of strings");
    if (v->len == 0 || v->len > MAX_STOP_BYTES || strlen(v->text) != v->len)
        return serve_refuse(g->why, "invalid_value", "stop",
                            "a string of stop has to have 1 to %d bytes, none of them zero", MAX_STOP_BYTES);
    char *copy = tm_strdup(v->text);
    if (!copy) return tm_nomem(v->len + 1);
    g->r->stop[g->r->n_stop++] = copy;
    return TM_OK;
}
static tm_status take_stop(serve_reading *g, const tm_json *v) {
    bool list = v->type == TM_JSON_ARRAY;
    size_t n = list ? v->count : 1;
    if (n > TM_ENGINE_STOPS)
        return serve_refuse(g->why, "invalid_value", "stop", "stop has more than %d strings", TM_ENGINE_STOPS);
    if (n == 0) return TM_OK;
    g->r->stop = tm_calloc(n, sizeof *g->r->stop);
    if (!g->r->stop) return tm_nomem(n * sizeof *g->r->stop);
    for (const tm_json *s = list ? v->child : v; s; s = list ? s->next : NULL) TM_TRY(add_stop(g, s));
    return TM_OK;
}

static tm_status take_messages(serve_reading *g, const tm_json *v) {
    return g->messages = v, TM_OK;
}
static tm_status take_template_kwargs(serve_reading *g, const tm_json *v) {
    if (v->type != TM_JSON_OBJECT) return wrong_type(g, v, "an object");
    return g->template_kwargs = v, TM_OK;
}
static tm_status take_prompt(serve_reading *g, const tm_json *v) {
    return g->prompt = v, TM_OK;
}
static tm_status take_best_of(serve_reading *g, const tm_json *v) {
    return integer(g, v, 1, SERVE_ANSWERS, &g->best_of);
}

/* ---- what may be said only where it asks for nothing -------------------------------------------------------------- */

static tm_status not_here(serve_reading *g, const tm_json *v, bool asks_nothing) {
    if (asks_nothing) return TM_OK;
    return serve_refuse(g->why, "unsupported_value", v->key, "%s of this value is not supported here", v->key);
}
static tm_status take_none(serve_reading *g, const tm_json *v) {
    return not_here(g, v, (v->type == TM_JSON_ARRAY || v->type == TM_JSON_OBJECT) && v->count == 0);
}
static tm_status take_suffix(serve_reading *g, const tm_json *v) {
    return not_here(g, v, v->type == TM_JSON_STRING && v->len == 0);
}
static tm_status take_tool_choice(serve_reading *g, const tm_json *v) {
    return not_here(g, v, tm_json_is(v, "none") || tm_json_is(v, "auto"));
}
static tm_status take_response_format(serve_reading *g, const tm_json *v) {
    return not_here(g, v, v->type == TM_JSON_OBJECT && v->count == 1 && tm_json_is(tm_json_get(v, "type"), "text"));
}
static tm_status take_modalities(serve_reading *g, const tm_json *v) {
    return not_here(g, v, v->type == TM_JSON_ARRAY && v->count == 1 && tm_json_is(v->child, "text"));
}
static tm_status ignore(serve_reading *g, const tm_json *v) {
    (void)g, (void)v;
    return TM_OK;
}

static const struct row {
    const char *name;
    unsigned kinds;
    take_fn take;
} rows[] = {
    {"model", OF_BOTH, take_model},
    {"messages", OF_CHAT, take_messages},
    {"prompt", OF_COMPLETION, take_prompt},
    {"max_tokens", OF_BOTH, take_max_tokens},
    {"max_completion_tokens", OF_CHAT, take_max_completion_tokens},
    {"n", OF_BOTH, take_n},
    {"seed", OF_BOTH, take_seed},
    {"stop", OF_BOTH, take_stop},
    {"temperature", OF_BOTH, take_temperature},
    {"top_p", OF_BOTH, take_top_p},
    {"presence_penalty", OF_BOTH, take_presence},
    {"frequency_penalty", OF_BOTH, take_frequency},
    {"stream", OF_BOTH, take_stream},
    {"stream_options", OF_BOTH, take_stream_options},
    {"logprobs", OF_BOTH, take_logprobs},
    {"top_logprobs", OF_CHAT, take_top_logprobs},
    {"echo", OF_COMPLETION, take_echo},
    {"best_of", OF_COMPLETION, take_best_of},
    /* vLLM's */
    {"top_k", OF_BOTH, take_top_k},
    {"min_p", OF_BOTH, take_min_p},
    {"repetition_penalty", OF_BOTH, take_repetition},
    {"ignore_eos", OF_BOTH, take_ignore_eos},
    {"chat_template_kwargs", OF_CHAT, take_template_kwargs},
    /* refused unless they ask for nothing */
    {"logit_bias", OF_BOTH, take_none},
    {"tools", OF_CHAT, take_none},
    {"functions", OF_CHAT, take_none},
    {"tool_choice", OF_CHAT, take_tool_choice},
    {"response_format", OF_CHAT, take_response_format},
    {"modalities", OF_CHAT, take_modalities},
    {"suffix", OF_COMPLETION, take_suffix},
    /* who asks, how it is billed and kept: no answer depends on it */
    {"user", OF_BOTH, ignore},
    {"metadata", OF_CHAT, ignore},
    {"store", OF_CHAT, ignore},
    {"service_tier", OF_CHAT, ignore},
    {"safety_identifier", OF_CHAT, ignore},
    {"prompt_cache_key", OF_CHAT, ignore},
    {"prompt_cache_retention", OF_CHAT, ignore},
    {"parallel_tool_calls", OF_CHAT, ignore},
};

/* A key may hold zeros. */
static bool is_named(const tm_json *v, const char *name) {
    return strlen(name) == v->key_len && memcmp(name, v->key, v->key_len) == 0;
}

tm_status serve_read_fields(serve_reading *g, const tm_json *root) {
    unsigned kind = g->r->kind == SERVE_CHAT ? OF_CHAT : OF_COMPLETION;
    for (const tm_json *v = root->child; v; v = v->next) {
        const struct row *row = rows, *end = rows + TM_COUNT(rows);
        while (row < end && !(row->kinds & kind && is_named(v, row->name))) row++;
        if (row == end)
            return serve_refuse(g->why, "unknown_parameter", v->key, "%.64s is not a parameter that is known here",
                                v->key);
        if (v->type != TM_JSON_NULL) TM_TRY(row->take(g, v));
    }
    return TM_OK;
}

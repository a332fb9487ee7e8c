/* An engine's life, its requests, the queue. */
#include "infer/engine_internal.h"
#include "kernels/gemm.h"
#include "text/chars.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 512, POSITIONS = 4096, MOST_SEQUENCES = 256 };

/* ---- open ------------------------------------------------------------------------------------------------------- */

typedef enum stored { OF_F32, OF_BF16, OF_F16, OF_BLOCKS, STORED } stored;

static stored stored_as(tm_fmt f) {
    switch (f) {
    case TM_FMT_F32:
    case TM_FMT_F64:
        return OF_F32;
    case TM_FMT_BF16:
        return OF_BF16;
    case TM_FMT_F16:
        return OF_F16;
    default:
        return OF_BLOCKS;
    }
}

/* What most of the weights are, the more exact of two that are as many. */
static stored most_of(const tm_source *source) {
    uint64_t of[STORED] = {0};
    stored most = OF_F32;
    for (uint32_t i = 0; i < tm_source_tensors(source); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(source, i);
        of[stored_as(t->fmt)] += t->elements;
    }
    for (stored s = OF_BF16; s < STORED; s++)
        if (of[s] > of[most]) most = s;
    return most;
}

/* fp16 has no products of its own on a CPU, and what is added in it may be too large for it; blocks have no type of their own. */
static tm_status choose_for_cpu(tm_engine_opts *o, const char *what) {
    TM_TRY(tm_kernels_init(0, TM_ELEM_BF16));
    o->precision = tm_gemm_multiplies_bf16() ? TM_BF16 : TM_F32;
    if (o->precision == TM_BF16)
        tm_log(TM_LOG_INFO,
               "%s are multiplied as bf16, which is fast on this CPU; --precision fp32 keeps their last bits", what);
    else
        tm_log(TM_LOG_INFO, "%s are multiplied as fp32: this CPU has no products of 16 bits", what);
    return TM_OK;
}

/* The model's own, where none was given. What was may be fp16: a run's. */
static tm_status choose_type(tm_engine_opts *o, const tm_source *source) {
    static const tm_dtype own[STORED] = {
        [OF_F32] = TM_F32, [OF_BF16] = TM_BF16, [OF_F16] = TM_F16, [OF_BLOCKS] = TM_F32};
    tm_device_traits traits;
    stored s = o->precision_given ? OF_F32 : most_of(source);
    if (!o->precision_given) o->precision = own[s];
    if (o->tiers.device && job_device_apart(o->tiers.device, &traits)) return TM_OK;
    if (o->precision == TM_F16) return choose_for_cpu(o, "weights of f16");
    return s == OF_BLOCKS ? choose_for_cpu(o, "quantised weights") : TM_OK;
}

static tm_status look_at_model(tm_engine *e, tm_model_config *config) {
    tm_source *source = NULL;
    size_t len;
    tm_status rc;
    TM_GO(e->opts.precision_given ? tm_source_open_bare(&source, e->opts.model)
                                  : tm_source_open(&source, e->opts.model));
    const char *json = tm_source_config(source, &len);
    TM_GO(tm_model_config_parse(config, json, len, e->opts.model));
    TM_GO(choose_type(&e->opts, source));
    if (!e->opts.text && !e->opts.plan_only) TM_GO(text_open(&e->text, source, e->opts.tiers.host_budget));
done:
    tm_source_close(source);
    return rc;
}

static tm_status set_sizes(tm_engine *e, const tm_model_config *config) {
    tm_engine_opts *o = &e->opts;
    if (o->sequences == 0) o->sequences = 1;
    if (o->sequences > MOST_SEQUENCES)
        return tm_fail(TM_EINPUT, "%u sequences side by side: at most %d are possible", o->sequences, MOST_SEQUENCES);
    if (o->n_adapters > 0 && o->tiers.adapter)
        return tm_fail(TM_EINPUT, "an adapter of all requests and a choice of adapters: give one of them");
    if (o->positions == 0) o->positions = (uint32_t)tm_min_u64(config->max_position_embeddings, POSITIONS);
    if (o->chunk == 0) o->chunk = CHUNK;
    if (o->chunk > o->positions) o->chunk = o->positions;
    TM_TRY(tm_model_check_positions(config, o->positions, "prompt and answer"));
    e->vocab = config->vocab_size;
    e->chunk = (uint32_t)tm_round_up(o->chunk, 64);
    return TM_OK;
}

/* Token rows of a pass whose logits may be wanted. */
static uint32_t most_wanted(const tm_engine *e) {
    return (uint32_t)tm_max_u64(e->chunk, e->opts.sequences);
}

static uint64_t own_bytes(const tm_engine *e) {
    return most_wanted(e) * (sizeof *e->pass.wanted + sizeof *e->pass.kept) + sample_bytes(e->vocab) +
           e->opts.sequences * (e->vocab * sizeof *e->logits + sizeof *e->slot + sizeof *e->pass.row);
}

static tm_status make_room(tm_engine *e) {
    uint32_t n = e->opts.sequences;
    e->pass.row = tm_calloc(n, sizeof *e->pass.row);
    e->pass.wanted = tm_calloc(most_wanted(e), sizeof *e->pass.wanted);
    e->pass.kept = tm_calloc(most_wanted(e), sizeof *e->pass.kept);
    e->slot = tm_calloc(n, sizeof *e->slot);
    e->logits = tm_malloc((size_t)n * e->vocab * sizeof *e->logits);
    if (!e->pass.row || !e->pass.wanted || !e->pass.kept || !e->slot || !e->logits) return tm_nomem(own_bytes(e));
    return sample_open(&e->sample, e->vocab);
}

uint64_t tm_engine_request_bytes(uint64_t tokens, uint32_t answers) {
    enum { TEXT = 8 }; /* bytes of a token's, as buffers grow */
    uint64_t each = tokens * (sizeof(int32_t) + TEXT) + sizeof(engine_sequence);
    return sizeof(engine_request) + tokens * sizeof(int32_t) + answers * each;
}

tm_status tm_engine_open(tm_engine **out, const tm_engine_opts *opts) {
    tm_model_config config;
    tm_status rc;
    tm_engine *e = tm_calloc(1, sizeof *e);
    *out = NULL;
    if (!e) return tm_nomem(sizeof *e);
    e->opts = *opts;
    if (opts->text) e->text = *opts->text, *opts->text = (text_tools){0};
    TM_GO(look_at_model(e, &config));
    TM_GO(set_sizes(e, &config));
    tm_gemm_rows_apart(true);
    e->rows_apart = true;
    TM_GO(tm_kernels_init(0, (tm_elem)e->opts.precision));
    TM_GO(make_room(e));
    TM_GO(engine_open_adapters(&e->adapters, &e->opts, &config));
    TM_GO(engine_open_job(e, own_bytes(e) + e->text.bytes + e->opts.other_bytes));
    *out = e;
done:
    if (rc != TM_OK) tm_engine_close(e);
    return rc;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

void engine_drop_request(engine_request *q) {
    if (!q || --q->users > 0) return;
    TM_FREE_ALL((void *)(uintptr_t)q->r.prompt, (void *)(uintptr_t)q->r.stop, q->stops, q);
}

void engine_free_sequence(engine_sequence *s) {
    if (!s) return;
    answer_text_close(&s->text);
    engine_drop_request(s->of);
    TM_FREE_ALL(s->ids, s);
}

static bool is_share(double x) {
    return x >= 0 && x <= 1;
}

static tm_status check_sampling(const tm_sampling *s) {
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        return tm_fail(TM_EINPUT, "temperature %g: at least 0 is meant, 0 being greedy", s->temperature);
    if (!is_share(s->top_p) || !is_share(s->min_p) || !is_share(s->typical_p))
        return tm_fail(TM_EINPUT, "top_p %g, min_p %g, typical_p %g: each is a share, from 0 to 1", s->top_p, s->min_p,
                       s->typical_p);
    if (!(s->repetition_penalty >= 0) || !isfinite(s->repetition_penalty))
        return tm_fail(TM_EINPUT, "repetition_penalty %g: a positive number is meant", s->repetition_penalty);
    if (!isfinite(s->presence_penalty) || !isfinite(s->frequency_penalty))
        return tm_fail(TM_EINPUT, "presence_penalty %g, frequency_penalty %g: numbers are meant", s->presence_penalty,
                       s->frequency_penalty);
    return TM_OK;
}

static tm_status check_stops(const tm_engine *e, const tm_request *r) {
    if (r->n_stop > TM_ENGINE_STOPS)
        return tm_fail(TM_EINPUT, "%u stop strings: at most %d are possible", r->n_stop, TM_ENGINE_STOPS);
    if (r->n_stop && !e->text.tokenizer)
        return tm_fail(TM_EINPUT, "%s: there is no tokenizer.json, which stop strings need", e->opts.model);
    for (uint32_t i = 0; i < r->n_stop; i++)
        if (!r->stop[i][0] || tk_utf8_valid(r->stop[i], strlen(r->stop[i])) != strlen(r->stop[i]))
            return tm_fail(TM_EINPUT, "stop string %u: UTF-8 text of at least one character is meant", i + 1);
    return TM_OK;
}

static tm_status check_request(const tm_engine *e, const tm_request *r) {
    if (e->failed != TM_OK) return tm_fail(e->failed, "the engine has failed before");
    if (r->n_prompt == 0) return tm_fail(TM_EINPUT, "the prompt is empty; give at least one token");
    if (r->n_prompt > e->opts.positions || r->max_new_tokens > e->opts.positions - r->n_prompt)
        return tm_fail(TM_EINPUT, "a prompt of %zu tokens and an answer of %u: there is room for %u together",
                       r->n_prompt, r->max_new_tokens, e->opts.positions);
    for (size_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= e->vocab)
            return tm_fail(TM_EINPUT, "token %zu of the prompt: %d is outside the vocabulary of %u", i, r->prompt[i],
                           e->vocab);
    if (r->top > TM_ENGINE_TOP)
        return tm_fail(TM_EINPUT, "%u alternatives a token: at most %d are possible", r->top, TM_ENGINE_TOP);
    if (r->adapter > e->opts.n_adapters)
        return tm_fail(TM_EINPUT, "adapter %u: there are %u", r->adapter, e->opts.n_adapters);
    TM_TRY(check_stops(e, r));
    return check_sampling(&r->sampling);
}

static tm_status copy_stops(engine_request *q) {
    size_t bytes = 1, at = 0;
    const char **stop = tm_calloc(q->r.n_stop + 1, sizeof *stop);
    for (uint32_t i = 0; i < q->r.n_stop; i++) bytes += strlen(q->r.stop[i]) + 1;
    q->stops = tm_malloc(bytes);
    for (uint32_t i = 0; stop && q->stops && i < q->r.n_stop; i++) {
        size_t n = strlen(q->r.stop[i]) + 1;
        stop[i] = memcpy(q->stops + at, q->r.stop[i], n);
        at += n;
    }
    q->r.stop = stop;
    return stop && q->stops ? TM_OK : tm_nomem(bytes);
}

static tm_status copy_request(const tm_request *r, uint64_t number, engine_request **out) {
    engine_request *q = tm_calloc(1, sizeof *q);
    int32_t *prompt = tm_malloc(r->n_prompt * sizeof *prompt);
    if (!q || !prompt) {
        TM_FREE_ALL(q, prompt);
        return tm_nomem(r->n_prompt * sizeof *prompt);
    }
    *q = (engine_request){.number = number, .users = 1, .r = *r};
    q->r.prompt = memcpy(prompt, r->prompt, r->n_prompt * sizeof *prompt);
    if (q->r.answers == 0 || q->r.max_new_tokens == 0) q->r.answers = 1;
    tm_status rc = copy_stops(q);
    if (rc != TM_OK)
        engine_drop_request(q);
    else
        *out = q;
    return rc;
}

static tm_status make_sequence(const tm_engine *e, engine_request *q, uint32_t answer, engine_sequence **out) {
    engine_sequence *s = tm_calloc(1, sizeof *s);
    int32_t *ids = tm_malloc(((size_t)q->r.max_new_tokens + 1) * sizeof *ids);
    if (!s || !ids) {
        TM_FREE_ALL(s, ids);
        return tm_nomem(q->r.max_new_tokens * sizeof *ids);
    }
    *s = (engine_sequence){.of = q, .answer = answer, .slot = UINT32_MAX, .from = UINT32_MAX, .ids = ids};
    answer_text_open(&s->text, e->text.tokenizer, q->r.stop, q->r.n_stop);
    q->users++;
    *out = s;
    return TM_OK;
}

tm_status tm_engine_add(tm_engine *e, const tm_request *r, uint64_t *number) {
    engine_request *q = NULL;
    engine_sequence *first = NULL, **end = &first, *last = NULL;
    tm_status rc;
    TM_TRY(check_request(e, r));
    TM_TRY(copy_request(r, e->requests + 1, &q));
    for (uint32_t i = 0; i < q->r.answers; i++) {
        TM_GO(make_sequence(e, q, i, end));
        last = *end;
        end = &last->next;
    }
    *(e->last ? &e->last->next : &e->first) = first;
    e->last = last;
    first = NULL;
    *number = ++e->requests;
    rc = TM_OK;
done:
    while (first) {
        engine_sequence *next = first->next;
        engine_free_sequence(first);
        first = next;
    }
    engine_drop_request(q);
    return rc;
}

void tm_engine_cancel(tm_engine *e, uint64_t number) {
    for (uint32_t i = 0; i < e->opts.sequences; i++)
        if (e->slot[i].by && e->slot[i].by->of->number == number) e->slot[i].by->cancelled = true;
    for (engine_sequence *s = e->first; s; s = s->next)
        if (s->of->number == number) s->cancelled = true;
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

const text_tools *tm_engine_text(const tm_engine *e) {
    return &e->text;
}

tm_engine_counts tm_engine_count(const tm_engine *e) {
    tm_engine_counts c = e->counts;
    c.positions = e->opts.positions;
    for (uint32_t i = 0; i < e->opts.sequences; i++) c.running += e->slot[i].by != NULL;
    for (const engine_sequence *s = e->first; s; s = s->next) c.waiting++;
    return c;
}

void tm_engine_close(tm_engine *e) {
    if (!e) return;
    for (uint32_t i = 0; e->slot && i < e->opts.sequences; i++) {
        engine_free_sequence(e->slot[i].by);
        engine_drop_request(e->slot[i].held);
    }
    while (e->first) {
        engine_sequence *next = e->first->next;
        engine_free_sequence(e->first);
        e->first = next;
    }
    planner_drop(&e->choice);
    tm_plan_free(e->decode);
    tm_plan_free(e->adapters.plan);
    job_close(e->job);
    tm_adapter_folder_close(e->adapter);
    engine_close_adapters(&e->adapters);
    text_close(&e->text);
    sample_close(&e->sample);
    if (e->rows_apart) tm_gemm_rows_apart(false);
    TM_FREE_ALL(e->pass.row, e->pass.wanted, e->pass.kept, e->slot, e->logits, e);
}

/* An engine that computes nothing, for tests of the server around it: of any prompt the answer is "The tide comes in and
 * goes out. " again and again, a token a step for each of `sequences`. FAKE_STEP_MS is how long a step takes, FAKE_FAIL_AT
 * the step that fails. Token i of an answer has the log-probability -(i % 4 + 1) / 2. The model is a folder with
 * tokenizer.json and chat_template.jinja alone. */
#include "infer/engine.h"
#include "session/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 4096, DEFAULT_POSITIONS = 512, VOCABULARY = 507 };

typedef struct sequence {
    bool used, cancelled, prompt_told;
    uint64_t number;
    uint32_t answer;
    size_t made;
    tm_request r;
    int32_t *prompt;
    tm_buf text; /* not handed out: there are stop strings */
    char stop[4][64];
} sequence;

struct tm_engine {
    tm_engine_opts o;
    text_tools text;
    tm_ids ids;
    sequence *s; /* [MOST] */
    uint64_t number, steps;
    tm_engine_counts counts;
};

static tm_status read_file(const char *dir, const char *name, tm_buf *out) {
    char path[1024], block[4096];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) return tm_fail(TM_EINPUT, "%s is not there", path);
    tm_status rc = TM_OK;
    for (size_t n; rc == TM_OK && (n = fread(block, 1, sizeof block, f)) > 0;) rc = tm_buf_append(out, block, n);
    (void)fclose(f);
    return rc;
}

static tm_status open_text(tm_engine *e, const char *dir) {
    static const char words[] = "The tide comes in and goes out. ";
    tm_buf json = {0}, jinja = {0};
    tm_status rc;
    TM_GO(read_file(dir, "tokenizer.json", &json));
    TM_GO(read_file(dir, "chat_template.jinja", &jinja));
    tm_mem_source source = {json.data, json.len, 0};
    TM_GO(tm_tokenizer_open(&e->text.tokenizer, tm_mem_source_read, &source, "tokenizer.json"));
    TM_GO(tm_chat_open(&e->text.chat, e->text.tokenizer, jinja.data, jinja.len, "chat_template.jinja", NULL));
    TM_GO(tm_tokenizer_encode(e->text.tokenizer, words, sizeof words - 1, false, &e->ids));
done:
    tm_buf_free(&json);
    tm_buf_free(&jinja);
    return rc;
}

tm_status tm_engine_open(tm_engine **out, const tm_engine_opts *opts) {
    tm_engine *e = *out = tm_calloc(1, sizeof *e);
    if (!e) return tm_nomem(sizeof *e);
    e->o = *opts;
    if (!e->o.sequences) e->o.sequences = 1;
    if (!e->o.positions) e->o.positions = DEFAULT_POSITIONS;
    e->s = tm_calloc(MOST, sizeof *e->s);
    tm_status rc = e->s ? open_text(e, opts->model) : tm_nomem(MOST * sizeof *e->s);
    if (rc != TM_OK) tm_engine_close(e), *out = NULL;
    return rc;
}

void tm_engine_close(tm_engine *e) {
    if (!e) return;
    for (size_t i = 0; e->s && i < MOST; i++) {
        tm_free(e->s[i].prompt);
        tm_buf_free(&e->s[i].text);
    }
    tm_ids_free(&e->ids);
    text_close(&e->text);
    TM_FREE_ALL(e->s, e);
}

static tm_status add_sequence(tm_engine *e, const tm_request *r, uint32_t answer) {
    sequence *s = e->s;
    while (s < e->s + MOST && s->used) s++;
    if (s == e->s + MOST) return tm_fail(TM_EINPUT, "too many sequences");
    *s = (sequence){.used = true, .number = e->number, .answer = answer, .r = *r};
    s->prompt = tm_malloc(r->n_prompt * sizeof *s->prompt);
    if (!s->prompt) return s->used = false, tm_nomem(r->n_prompt * sizeof *s->prompt);
    memcpy(s->prompt, r->prompt, r->n_prompt * sizeof *s->prompt);
    for (uint32_t i = 0; i < r->n_stop && i < TM_COUNT(s->stop); i++)
        (void)snprintf(s->stop[i], sizeof s->stop[i], "%s", r->stop[i]);
    return TM_OK;
}

tm_status tm_engine_add(tm_engine *e, const tm_request *r, uint64_t *number) {
    for (size_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] >= VOCABULARY)
            return tm_fail(TM_EINPUT, "token %zu of the prompt is outside the vocabulary", i);
    if (r->adapter > e->o.n_adapters) return tm_fail(TM_EINPUT, "there is no such adapter");
    *number = ++e->number;
    for (uint32_t i = 0; i < (r->max_new_tokens ? r->answers : 1); i++) TM_TRY(add_sequence(e, r, i));
    return TM_OK;
}

void tm_engine_cancel(tm_engine *e, uint64_t number) {
    for (sequence *s = e->s; s < e->s + MOST; s++)
        if (s->used && s->number == number) s->cancelled = true;
}

static void end(sequence *s) {
    tm_free(s->prompt);
    tm_buf_free(&s->text);
    *s = (sequence){0};
}

static void tell(tm_engine *e, sequence *s, tm_token_event t) {
    const tm_alternative top[2] = {{t.id, t.logprob}, {t.id == 64 ? 65 : 64, t.logprob - 1}};
    t.request = s->number;
    t.answer = s->answer;
    t.n_top = t.id < 0 ? 0 : (uint32_t)tm_min_u64(s->r.top, 2);
    t.top = top;
    if (!t.text) t.text = "";
    if (!t.of_prompt && t.id >= 0) e->counts.answer_tokens++;
    s->r.take(s->r.ctx, &t);
    if (t.finish != TM_GOES_ON) end(s);
}

static void tell_prompt(tm_engine *e, sequence *s) {
    e->counts.prompt_tokens += s->r.n_prompt;
    s->prompt_told = true;
    for (size_t i = s->r.score_from; s->r.score_from && s->answer == 0 && i < s->r.n_prompt; i++)
        tell(e, s, (tm_token_event){.of_prompt = true, .index = i, .id = s->prompt[i], .logprob = -3});
}

/* Text of an answer with stop strings comes at its end. */
static tm_status gather(sequence *s, tm_token_event *t, tm_buf *piece) {
    TM_TRY(tm_buf_append(&s->text, piece->data ? piece->data : "", piece->len));
    for (uint32_t i = 0; i < s->r.n_stop; i++) {
        char *at = s->text.data ? strstr(s->text.data, s->stop[i]) : NULL;
        if (at) s->text.len = (size_t)(at - s->text.data), *at = 0, t->finish = TM_FINISH_STOP;
    }
    tm_buf_clear(piece);
    return t->finish == TM_GOES_ON ? TM_OK : tm_buf_append(piece, s->text.data ? s->text.data : "", s->text.len);
}

static tm_status advance(tm_engine *e, sequence *s) {
    tm_buf piece = {0};
    if (s->cancelled) return tell(e, s, (tm_token_event){.id = -1, .finish = TM_FINISH_CANCELLED}), TM_OK;
    if (!s->prompt_told) tell_prompt(e, s);
    if (s->r.max_new_tokens == 0) return tell(e, s, (tm_token_event){.id = -1, .finish = TM_FINISH_LENGTH}), TM_OK;
    tm_token_event t = {.id = e->ids.id[(s->made + s->answer + s->r.adapter) % e->ids.n], .index = s->made};
    t.logprob = -(float)(s->made % 4 + 1) / 2;
    TM_TRY(tm_tokenizer_token_bytes(e->text.tokenizer, t.id, &piece));
    if (++s->made == s->r.max_new_tokens) t.finish = TM_FINISH_LENGTH;
    tm_status rc = s->r.n_stop ? gather(s, &t, &piece) : TM_OK;
    t.text = piece.data;
    t.n_text = piece.len;
    if (rc == TM_OK) tell(e, s, t);
    tm_buf_free(&piece);
    return rc;
}

static long variable(const char *name) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : 0;
}

tm_status tm_engine_step(tm_engine *e, bool *busy) {
    uint32_t n = 0;
    long ms = variable("FAKE_STEP_MS");
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
    bool fails = variable("FAKE_FAIL_AT") && ++e->steps == (uint64_t)variable("FAKE_FAIL_AT");
    for (sequence *s = e->s; s < e->s + MOST; s++) {
        if (!s->used) continue;
        s->cancelled = s->cancelled || fails;
        if (s->cancelled || n < e->o.sequences) TM_TRY(advance(e, s));
        n++;
    }
    if (fails) return tm_fail(TM_EIO, "the fake engine was to fail");
    *busy = false;
    for (sequence *s = e->s; s < e->s + MOST; s++) *busy = *busy || s->used;
    return TM_OK;
}

const struct text_tools *tm_engine_text(const tm_engine *e) {
    return &e->text;
}

tm_engine_counts tm_engine_count(const tm_engine *e) {
    tm_engine_counts c = e->counts;
    c.positions = e->o.positions;
    return c;
}

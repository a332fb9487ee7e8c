/* Samples of a task as token ids. */
#include "infer/tasks_internal.h"
#include "text/chars.h"

#include <string.h>

typedef struct encoder {
    const tm_task *t;
    const text_tools *text;
    uint64_t positions;
    const tm_task_sample *sample;
    tm_buf rendered, whole;
    tm_ids context; /* of a choice, alone */
} encoder;

/* Fails with the row's place in front of what was said. */
static tm_status placed(const encoder *e, tm_status rc) {
    if (rc == TM_OK || rc == TM_ENOMEM) return rc;
    tm_error failure = *tm_error_get();
    tm_error_clear();
    return tm_fail(rc, "%s:%llu: %.1500s", e->t->data, (unsigned long long)e->sample->record, failure.text);
}

/* A context as text, which is in the sample, or rendered. */
static tm_status text_of(encoder *e, const char *context, const char **out, size_t *n) {
    tm_json_doc *doc = NULL;
    *out = context;
    *n = strlen(context);
    if (!e->t->chat) return TM_OK;
    if (!e->text->chat) return tm_fail(TM_EINPUT, "the model has no chat template");
    TM_TRY(tm_json_parse(&doc, context, *n, "messages", 0, 0));
    e->rendered.len = 0;
    tm_status rc = tm_chat_render(e->text->chat, tm_json_root(doc), true, &e->rendered, NULL);
    tm_json_free(doc);
    *out = e->rendered.data ? e->rendered.data : "";
    *n = e->rendered.len;
    return rc;
}

static tm_status ids_of(const encoder *e, const char *text, size_t n, tm_ids *out) {
    return tm_tokenizer_encode(e->text->tokenizer, text, n, !e->t->chat, out);
}

/* What stands before a choice that has no context: what the tokenizer puts in front, else the end of a text. */
static tm_status put_beginning(const encoder *e, tm_ids *out) {
    TM_TRY(ids_of(e, "", 0, out));
    if (out->n) return TM_OK;
    if (e->text->n_eos == 0)
        return tm_fail(TM_EINPUT, "the prompt is empty, and the model has no end token to begin with");
    return tm_ids_push(out, e->text->eos[0]);
}

static void cut_beginning(task_asks *all, task_ask *q, size_t most) {
    if (q->ids.n <= most) return;
    size_t gone = q->ids.n - most;
    memmove(q->ids.id, q->ids.id + gone, most * sizeof *q->ids.id);
    q->ids.n = most;
    q->score_from = q->score_from > gone ? q->score_from - gone : 1;
    all->cut++;
}

static tm_status new_ask(const encoder *e, task_asks *all, uint32_t choice, task_ask **out) {
    TM_TRY(tm_grow(&all->ask, &all->cap, all->n + 1, sizeof *all->ask));
    *out = &all->ask[all->n++];
    **out = (task_ask){.sample = (size_t)(e->sample - e->t->sample), .choice = choice};
    return TM_OK;
}

static tm_status encode_prompt(encoder *e, task_asks *all) {
    task_ask *q;
    const char *text;
    size_t n;
    uint32_t more = e->t->drawing.max_new_tokens;
    if (more >= e->positions)
        return tm_fail(TM_EINPUT, "answers of %u tokens; the model has %llu positions", more,
                       (unsigned long long)e->positions);
    TM_TRY(new_ask(e, all, 0, &q));
    TM_TRY(text_of(e, e->sample->prompt, &text, &n));
    TM_TRY(ids_of(e, text, n, &q->ids));
    if (q->ids.n == 0) TM_TRY(put_beginning(e, &q->ids));
    cut_beginning(all, q, (size_t)e->positions - more);
    all->longest = tm_max_u64(all->longest, q->ids.n + more);
    return TM_OK;
}

/* White space at the end of a context is encoded with what follows. */
static size_t without_space(const char *text, size_t n) {
    size_t begin;
    while (n > 0 && tk_is_space(tk_previous(text, n, &begin))) n = begin;
    return n;
}

static tm_status encode_whole(encoder *e, const char *context, size_t n, const char *choice, task_ask *q) {
    e->whole.len = e->context.n = 0;
    TM_TRY(tm_buf_append(&e->whole, context, n));
    TM_TRY(tm_buf_append(&e->whole, choice, strlen(choice)));
    TM_TRY(ids_of(e, e->whole.data, e->whole.len, &q->ids));
    TM_TRY(ids_of(e, context, without_space(context, n), &e->context));
    q->score_from = e->context.n;
    return TM_OK;
}

static tm_status encode_choice(encoder *e, task_asks *all, uint32_t i) {
    const tm_task_choice *c = &e->sample->choice[i];
    task_ask *q;
    const char *text;
    size_t n;
    TM_TRY(new_ask(e, all, i, &q));
    TM_TRY(text_of(e, c->context, &text, &n));
    if (n > 0) TM_TRY(encode_whole(e, text, n, c->text, q));
    if (n == 0 || q->score_from == 0) {
        tm_ids_free(&q->ids);
        TM_TRY(put_beginning(e, &q->ids));
        q->score_from = q->ids.n;
        e->whole.len = 0;
        TM_TRY(tm_buf_append(&e->whole, text, n));
        TM_TRY(tm_buf_append(&e->whole, c->text, strlen(c->text)));
        TM_TRY(tm_tokenizer_encode(e->text->tokenizer, e->whole.data, e->whole.len, false, &q->ids));
    }
    cut_beginning(all, q, (size_t)e->positions);
    all->longest = tm_max_u64(all->longest, q->ids.n);
    return TM_OK;
}

static tm_status encode_sample(encoder *e, task_asks *all) {
    if (e->sample->n_choices == 0) return encode_prompt(e, all);
    for (uint32_t i = 0; i < e->sample->n_choices; i++) TM_TRY(encode_choice(e, all, i));
    return TM_OK;
}

tm_status task_encode(const tm_task *t, const text_tools *text, uint64_t positions, task_asks *out) {
    encoder e = {.t = t, .text = text, .positions = positions};
    tm_status rc = TM_OK;
    for (size_t i = 0; i < t->n && rc == TM_OK; i++) {
        e.sample = &t->sample[i];
        rc = placed(&e, encode_sample(&e, out));
    }
    tm_buf_free(&e.rendered);
    tm_buf_free(&e.whole);
    tm_ids_free(&e.context);
    return rc;
}

void task_asks_free(task_asks *a) {
    for (size_t i = 0; i < a->n; i++) tm_ids_free(&a->ask[i].ids);
    tm_free(a->ask);
    *a = (task_asks){0};
}

/* How many conversations are answered word for word. */
#include "infer/engine.h"
#include "infer/evaluate_internal.h"
#include "io/file/file.h"

#include <stdio.h>
#include <string.h>

typedef struct question {
    tm_ids prompt;
    char *answer, *asked;
    tm_buf got; /* with its end */
    tm_status rc;
} question;
typedef struct questions {
    question *q;
    uint32_t n;
    size_t cap;
} questions;

/* The row without its last message; tools, and what else the template reads, stay. */
static tm_status without_last(const tm_json *row, const tm_json *messages, tm_buf *out) {
    tm_json_writer w;
    tm_jw_init(&w, out, 0);
    tm_jw_object(&w);
    for (const tm_json *m = row->child; m; m = m->next) {
        tm_jw_key(&w, m->key);
        if (m != messages) {
            tm_jw_node(&w, m);
            continue;
        }
        tm_jw_array(&w);
        for (const tm_json *one = m->child; one->next; one = one->next) tm_jw_node(&w, one);
        tm_jw_array_end(&w);
    }
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

/* The messages before the last one are the prompt; the last one is the answer wanted. */
static tm_status add_question(evaluation *e, questions *all, const char *line, size_t len, uint64_t number) {
    char name[640];
    tm_json_doc *doc = NULL;
    tm_buf cut = {0}, text = {0}, mask = {0};
    tm_json_doc *before = NULL;
    tm_status rc;
    snprintf(name, sizeof name, "%s:%llu", data_name(e->s.eval), (unsigned long long)number);
    TM_GO(tm_json_parse(&doc, line, len, name, 0, 0));
    const tm_json *messages = tm_json_get(tm_json_root(doc), "messages"), *last = NULL, *user = NULL;
    if (!messages || messages->type != TM_JSON_ARRAY || messages->count < 2)
        TM_GO(tm_fail(TM_EINPUT, "%s: exact match needs {\"messages\": [..., answer]}", name));
    for (last = messages->child; last->next; last = last->next) user = last;
    TM_GO(without_last(tm_json_root(doc), messages, &cut));
    TM_GO(tm_json_parse(&before, cut.data, cut.len, name, 0, 0));
    const tm_json *answer = tm_json_get(last, "content"), *asked = tm_json_get(user, "content");
    if (!answer || answer->type != TM_JSON_STRING || !asked || asked->type != TM_JSON_STRING)
        TM_GO(tm_fail(TM_EINPUT, "%s: contents must be strings", name));
    TM_GO(tm_grow(&all->q, &all->cap, (size_t)all->n + 1, sizeof *all->q));
    question *q = &all->q[all->n++];
    *q = (question){.answer = tm_strdup(answer->text), .asked = tm_strdup(asked->text)};
    if (!q->answer || !q->asked) TM_GO(tm_nomem(answer->len));
    TM_GO(tm_chat_encode(e->s.text.chat, tm_json_root(before), true, &text, &q->prompt, &mask));
done:
    tm_json_free(doc);
    tm_json_free(before);
    tm_buf_free(&cut);
    tm_buf_free(&text);
    tm_buf_free(&mask);
    return rc;
}

static tm_status read_questions(evaluation *e, questions *all) {
    tm_buf file = {0};
    tm_status rc = tm_file_slurp(data_name(e->s.eval), 64 * TM_MIB, &file);
    uint64_t number = 1;
    for (size_t at = 0; rc == TM_OK && at < file.len; number++) {
        const char *end = memchr(file.data + at, '\n', file.len - at);
        size_t n = end ? (size_t)(end - file.data) - at : file.len - at;
        bool blank = strspn(file.data + at, " \t\r") >= n;
        if (!blank) rc = add_question(e, all, file.data + at, n, number);
        at += n + 1;
    }
    tm_buf_free(&file);
    return rc;
}

static char *trimmed(char *s) {
    while (*s == ' ' || *s == '\n' || *s == '\t') s++;
    size_t n = strlen(s);
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\n' || s[n - 1] == '\t')) s[--n] = 0;
    return s;
}

static void compare(evaluation *e, question *q, tm_eval_result *out) {
    char *got = trimmed(q->got.data ? q->got.data : (char[]){0}), *want = trimmed(q->answer);
    bool same = strcmp(got, want) == 0;
    if (out->compared < e->args->show)
        tm_say("  %s\n    wanted %s\n    got    %s%s\n", q->asked, want, got, same ? "" : "   (differs)");
    out->compared++;
    out->exact += same;
}

static void take(void *ctx, const tm_token_event *t) {
    question *q = ctx;
    if (q->rc == TM_OK) q->rc = tm_buf_append(&q->got, t->text, t->n_text);
    if (q->rc == TM_OK && t->finish != TM_GOES_ON) q->rc = tm_buf_append(&q->got, "", 1);
}

static tm_status ask(evaluation *e, tm_engine *engine, question *q) {
    uint64_t number;
    const tm_request r = {.prompt = q->prompt.id,
                          .n_prompt = q->prompt.n,
                          .max_new_tokens = e->args->max_new_tokens,
                          .take = take,
                          .ctx = q};
    return tm_engine_add(engine, &r, &number);
}

enum { TOGETHER = 32 };

static tm_status open_engine(evaluation *e, const questions *all, tm_engine **engine) {
    size_t longest = 1;
    /* with those of requests: all are put at once */
    uint64_t bytes = evaluate_held_bytes(e) + all->cap * sizeof *all->q;
    for (uint32_t i = 0; i < all->n; i++) {
        const question *q = &all->q[i];
        longest = tm_max_u64(longest, q->prompt.n);
        bytes += q->prompt.cap * sizeof(int32_t) + strlen(q->answer) + strlen(q->asked);
        bytes += 2 * tm_engine_request_bytes(q->prompt.n + e->args->max_new_tokens, 1);
    }
    const tm_engine_opts o = {.model = e->cfg.model,
                              .precision = e->cfg.precision,
                              .precision_given = true,
                              .sequences = (uint32_t)tm_min_u64(TOGETHER, tm_max_u64(all->n, 1)),
                              .positions = (uint32_t)(longest + e->args->max_new_tokens),
                              .other_bytes = bytes,
                              .tiers = e->tiers};
    return tm_engine_open(engine, &o);
}

static tm_status answer_all(evaluation *e, questions *all, tm_eval_result *out) {
    tm_engine *engine = NULL;
    tm_phase phase;
    bool busy = true;
    tm_status rc = open_engine(e, all, &engine);
    tm_phase_begin(&phase, "answering", "questions", all->n);
    for (uint32_t i = 0; i < all->n && rc == TM_OK; i++) rc = ask(e, engine, &all->q[i]);
    while (rc == TM_OK && busy) {
        rc = tm_engine_step(engine, &busy);
        tm_engine_counts c = tm_engine_count(engine);
        tm_phase_at(&phase, all->n - c.running - c.waiting);
    }
    for (uint32_t i = 0; i < all->n && rc == TM_OK; i++) {
        rc = all->q[i].rc;
        if (rc == TM_OK) compare(e, &all->q[i], out);
    }
    phase.done = out->compared;
    tm_phase_end(&phase);
    tm_engine_close(engine);
    return rc;
}

tm_status evaluate_exact(evaluation *e, tm_eval_result *out) {
    questions all = {0};
    tm_status rc = TM_OK;
    const tm_data_items *files = &e->cfg.data.eval_items;
    if (tm_objective_of(e->cfg.objective.type)->by_sample || files->n != 1 || files->item->samples)
        return tm_fail(TM_EINPUT,
                       "exact match is of conversations, one whole file of JSON lines; leave --exact-match out");
    if (!e->s.text.chat)
        return tm_fail(TM_EINPUT, "%s: exact match needs a chat template, which the model has not", e->cfg.model);
    rc = read_questions(e, &all);
    if (rc == TM_OK) rc = answer_all(e, &all, out);
    for (uint32_t i = 0; i < all.n; i++) {
        tm_ids_free(&all.q[i].prompt);
        tm_free(all.q[i].answer);
        tm_free(all.q[i].asked);
        tm_buf_free(&all.q[i].got);
    }
    tm_free(all.q);
    return rc;
}

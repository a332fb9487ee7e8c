/* A run's held-out prompts, answered by what it began with and by what it made. TM_REPORT_ANSWERS has
 * the prompts, which training left there, and gets the answers. */
#include "infer/engine.h"
#include "infer/evaluate_internal.h"
#include "io/file/file.h"
#include "report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_TOKENS = 4096, MOST_OF_FILE = 4 << 20 };

typedef struct question {
    tm_ids prompt, wanted;
    tm_buf text[2]; /* of BEFORE, AFTER: with its end; empty: not asked */
    tm_status rc;
} question;
typedef enum side { BEFORE, AFTER } side;

typedef struct questions {
    const tm_answers_args *args;
    tm_answers *out;
    evaluation e; /* of the run */
    char path[4200];
    question q[TM_REPORT_QUESTIONS];
    uint32_t n;
    uint32_t tokens; /* of an answer */
    tm_buf prompt[TM_REPORT_QUESTIONS], wanted[TM_REPORT_QUESTIONS];
} questions;

/* ---- the file ----------------------------------------------------------------------------------------------------- */

static tm_status read_ids(const tm_json *list, tm_ids *out) {
    if (!list || list->type != TM_JSON_ARRAY || list->count == 0 || list->count > MOST_TOKENS) return TM_EINPUT;
    out->id = tm_malloc(list->count * sizeof *out->id);
    if (!out->id) return tm_nomem(list->count * sizeof *out->id);
    for (const tm_json *n = list->child; n; n = n->next) {
        if (!n->is_integer || n->integer < 0 || n->integer > INT32_MAX) return TM_EINPUT;
        out->id[out->n++] = (int32_t)n->integer;
    }
    return TM_OK;
}

static tm_status take_file(questions *all, const tm_json *root) {
    const tm_json *tokens = tm_json_get(root, "tokens"), *list = tm_json_get(root, "questions");
    bool sane = tokens && tokens->is_integer && tokens->integer > 0 && tokens->integer <= MOST_TOKENS;
    tm_status rc = sane ? TM_OK : TM_EINPUT;
    all->tokens = sane ? (uint32_t)tokens->integer : 0;
    for (const tm_json *q = list ? list->child : NULL; q && rc == TM_OK && all->n < TM_REPORT_QUESTIONS; q = q->next) {
        question *one = &all->q[all->n++];
        rc = read_ids(tm_json_get(q, "prompt_ids"), &one->prompt);
        if (rc == TM_OK) rc = read_ids(tm_json_get(q, "wanted_ids"), &one->wanted);
    }
    return rc == TM_EINPUT ? tm_fail(rc, "%s: is not what a run leaves there", all->path) : rc;
}

static tm_status read_file(questions *all) {
    tm_json_doc *doc;
    snprintf(all->path, sizeof all->path, "%s/" TM_REPORT_ANSWERS, all->args->run);
    if (!tm_path_exists(all->path)) return TM_OK; /* nothing was held out */
    TM_TRY(tm_json_load(&doc, all->path, MOST_OF_FILE, 0));
    tm_status rc = take_file(all, tm_json_root(doc));
    tm_json_free(doc);
    return rc;
}

static void put_ids(tm_json_writer *w, const char *key, const tm_ids *ids) {
    tm_jw_field_array(w, key);
    for (size_t i = 0; i < ids->n; i++) tm_jw_int(w, ids->id[i]);
    tm_jw_array_end(w);
}

static void put_text(tm_json_writer *w, const char *key, const tm_buf *text) {
    if (text->len > 0) tm_jw_field_strn(w, key, text->data, text->len - 1); /* without its end */
}

static tm_status write_file(const questions *all, const char *left_out) {
    tm_buf text = {0};
    tm_json_writer w;
    tm_jw_init(&w, &text, 0);
    tm_jw_object(&w);
    tm_jw_field_uint(&w, "tokens", all->tokens);
    if (left_out) tm_jw_field_str(&w, "left_out", left_out);
    tm_jw_field_array(&w, "questions");
    for (uint32_t i = 0; i < all->n; i++) {
        tm_jw_object(&w);
        put_ids(&w, "prompt_ids", &all->q[i].prompt);
        put_ids(&w, "wanted_ids", &all->q[i].wanted);
        put_text(&w, "prompt", &all->prompt[i]);
        put_text(&w, "wanted", &all->wanted[i]);
        put_text(&w, "before", &all->q[i].text[BEFORE]);
        put_text(&w, "after", &all->q[i].text[AFTER]);
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    tm_jw_object_end(&w);
    tm_status rc = tm_jw_end(&w);
    if (rc == TM_OK) rc = tm_file_write(all->path, text.data, text.len);
    tm_buf_free(&text);
    return rc;
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static size_t longest_prompt(const questions *all) {
    size_t longest = 1;
    for (uint32_t i = 0; i < all->n; i++) longest = tm_max_u64(longest, all->q[i].prompt.n);
    return longest;
}

static tm_status open_engine(questions *all, side which, tm_engine **engine) {
    enum { CHUNK = 512 };
    size_t longest = longest_prompt(all);
    tm_engine_opts o = {.model = all->e.cfg.model,
                        .precision = all->e.cfg.precision,
                        .precision_given = true,
                        .sequences = all->n,
                        .positions = (uint32_t)longest + all->tokens,
                        .chunk = (uint32_t)tm_min_u64(longest * all->n, CHUNK),
                        .tiers = all->e.tiers};
    if (which == BEFORE) {
        o.model = all->e.loaded->model;
        o.tiers.adapter = all->e.loaded->adapter_path;
    }
    return tm_engine_open(engine, &o);
}

/* Of both sides: they differ by an adapter at most. */
static tm_status price(const questions *all, tm_engine *e, double *seconds) {
    uint64_t prompts = 0;
    for (uint32_t i = 0; i < all->n; i++) prompts += all->q[i].prompt.n;
    TM_TRY(tm_engine_seconds(e, prompts, all->tokens, seconds));
    *seconds *= 2;
    return TM_OK;
}

typedef struct listener {
    question *q;
    side which;
} listener;

static void take(void *ctx, const tm_token_event *t) {
    listener *l = ctx;
    tm_buf *text = &l->q->text[l->which];
    if (l->q->rc == TM_OK) l->q->rc = tm_buf_append(text, t->text, t->n_text);
    if (l->q->rc == TM_OK && t->finish != TM_GOES_ON) l->q->rc = tm_buf_append(text, "", 1);
}

static tm_status answer(questions *all, tm_engine *e, side which) {
    listener l[TM_REPORT_QUESTIONS];
    uint64_t number;
    bool busy = true;
    for (uint32_t i = 0; i < all->n; i++) {
        l[i] = (listener){&all->q[i], which};
        const tm_request r = {.prompt = all->q[i].prompt.id,
                              .n_prompt = all->q[i].prompt.n,
                              .max_new_tokens = all->tokens,
                              .take = take,
                              .ctx = &l[i]};
        TM_TRY(tm_engine_add(e, &r, &number));
    }
    tm_phase phase;
    tm_phase_begin(&phase, which == BEFORE ? "answering, as before training" : "answering held-out prompts", "tokens",
                   (uint64_t)all->n * all->tokens);
    tm_status rc = TM_OK;
    while (busy && rc == TM_OK) {
        rc = tm_engine_step(e, &busy);
        tm_phase_at(&phase, tm_engine_count(e).answer_tokens);
    }
    tm_phase_end(&phase);
    for (uint32_t i = 0; i < all->n; i++) rc = tm_first(rc, all->q[i].rc);
    return rc;
}

static tm_status decode(const text_tools *text, const tm_ids *ids, tm_buf *out) {
    TM_TRY(tm_tokenizer_decode(text->tokenizer, ids->id, ids->n, true, out));
    return tm_buf_append(out, "", 1);
}

static tm_status decode_questions(questions *all, const tm_engine *e) {
    const text_tools *text = tm_engine_text(e);
    if (!text->tokenizer)
        return tm_fail(TM_EINPUT, "%s: there is no tokenizer.json, which answers need", all->e.cfg.model);
    for (uint32_t i = 0; i < all->n; i++) {
        TM_TRY(decode(text, &all->q[i].prompt, &all->prompt[i]));
        TM_TRY(decode(text, &all->q[i].wanted, &all->wanted[i]));
    }
    return TM_OK;
}

static tm_status answer_after(questions *all, bool *goes_on) {
    tm_engine *e = NULL;
    tm_status rc;
    TM_GO(open_engine(all, AFTER, &e));
    TM_GO(price(all, e, &all->out->predicted_seconds));
    *goes_on = all->out->predicted_seconds <= all->args->most_seconds;
    if (!*goes_on) goto done;
    TM_GO(decode_questions(all, e));
    TM_GO(answer(all, e, AFTER));
done:
    tm_engine_close(e);
    return rc;
}

static tm_status answer_before(questions *all) {
    tm_engine *e = NULL;
    if (all->e.loaded->init_random) return TM_OK; /* it is nowhere */
    tm_status rc = open_engine(all, BEFORE, &e);
    if (rc == TM_OK) rc = answer(all, e, BEFORE);
    tm_engine_close(e);
    return rc;
}

static tm_status leave_out(questions *all) {
    char why[200], a[32], b[32];
    snprintf(why, sizeof why,
             "Left out: answering would take %s by the plan, and at most 1%% of the run's time, %s, is taken for it. "
             "`tidemill report DIR --answers` does it in any case.",
             tm_format_left(ceil(all->out->predicted_seconds), a, sizeof a),
             tm_format_left(all->args->most_seconds, b, sizeof b));
    return write_file(all, why);
}

static tm_status answer_all(questions *all) {
    bool goes_on = false;
    TM_TRY(evaluate_open(&all->e));
    TM_TRY(answer_after(all, &goes_on));
    if (!goes_on) return leave_out(all);
    TM_TRY(answer_before(all));
    all->out->answered = all->n;
    return write_file(all, NULL);
}

tm_status tm_answers_run(const tm_answers_args *args, tm_answers *out) {
    const tm_eval_args run = {.config = args->run};
    questions all = {.args = args, .out = out, .e = {.args = &run, .no_data = true}};
    uint64_t began = tm_now_ns();
    *out = (tm_answers){0};
    tm_status rc = read_file(&all);
    out->questions = all.n;
    if (rc == TM_OK && all.n > 0) {
        rc = answer_all(&all);
        evaluate_close(&all.e);
    }
    for (uint32_t i = 0; i < TM_REPORT_QUESTIONS; i++) {
        tm_ids_free(&all.q[i].prompt);
        tm_ids_free(&all.q[i].wanted);
        tm_buf_free(&all.q[i].text[BEFORE]);
        tm_buf_free(&all.q[i].text[AFTER]);
        tm_buf_free(&all.prompt[i]);
        tm_buf_free(&all.wanted[i]);
    }
    out->seconds = (double)(tm_now_ns() - began) * 1e-9;
    return rc;
}

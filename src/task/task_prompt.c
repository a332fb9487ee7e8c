/* Samples of rows: examples before each question, raw or as turns of a conversation. */
#include "task/task_internal.h"

#include <string.h>

enum { TURN_USER, TURN_ASSISTANT };

/* What a prompt is made of so far: text, or messages. */
typedef struct prompt {
    const task *t;
    tm_buf text;
    tm_json_writer w;
} prompt;

static tm_status say(prompt *p, const char *role, const char *text, const char *delimiter) {
    if (!p->t->pub.chat) {
        TM_TRY(tm_buf_append(&p->text, text, strlen(text)));
        return tm_buf_append(&p->text, delimiter, strlen(delimiter));
    }
    tm_jw_object(&p->w);
    tm_jw_field_str(&p->w, "role", role);
    tm_jw_field_str(&p->w, "content", text);
    tm_jw_object_end(&p->w);
    return TM_OK;
}

static void begin(prompt *p) {
    if (!p->t->pub.chat) return;
    tm_jw_init(&p->w, &p->text, 0);
    tm_jw_object(&p->w);
    tm_jw_field_array(&p->w, "messages");
}

static tm_status end(prompt *p) {
    if (!p->t->pub.chat) return TM_OK;
    tm_jw_array_end(&p->w);
    tm_jw_object_end(&p->w);
    return tm_jw_end(&p->w);
}

/* ---- examples --------------------------------------------------------------------------------------------------- */

/* So many numbers below n without one twice, by (seed, sample): the i-th draw takes one of those that are left. */
static void draw(const task *t, const task_row *q, uint32_t *order, size_t n, size_t wanted) {
    for (size_t i = 0; i < wanted; i++) {
        uint32_t bits[4];
        tm_philox(t->set.seed, q->id, i, bits);
        size_t at = i + (size_t)(((uint64_t)bits[0] << 32 | bits[1]) % (n - i));
        uint32_t one = order[at];
        order[at] = order[i];
        order[i] = one;
    }
}

/* The examples of a question, which is none of them: numbers of rows of the pool. */
static tm_status choose(const task *t, const task_row *q, uint32_t *order, const uint32_t **chosen) {
    size_t n = 0;
    for (size_t i = 0; i < t->pool.n; i++)
        if (strcmp(t->pool.row[i].doc, q->doc) != 0) order[n++] = (uint32_t)i;
    if (n < t->set.fewshot)
        return tm_fail(TM_EINPUT, "%s: num_fewshot is %u, and there are %zu examples beside the question",
                       t->set.fewshot_data ? t->set.fewshot_data : t->set.data, t->set.fewshot, n);
    if (t->set.fewshot_random) draw(t, q, order, n, t->set.fewshot);
    *chosen = order;
    return TM_OK;
}

static const char *right_one(const task_row *q) {
    return q->n_choices ? q->choice[q->gold[0]] : q->target[0];
}

static tm_status show(prompt *p, const task_row *example) {
    const task_settings *s = &p->t->set;
    TM_TRY(say(p, "user", example->question, s->target_delimiter));
    return say(p, "assistant", right_one(example), s->fewshot_delimiter);
}

static tm_status write(prompt *p, const task_row *q, uint32_t *order) {
    const task_settings *s = &p->t->set;
    const uint32_t *chosen = NULL;
    begin(p);
    if (s->description && *s->description) TM_TRY(say(p, "system", s->description, ""));
    if (s->fewshot) TM_TRY(choose(p->t, q, order, &chosen));
    for (uint32_t i = 0; i < s->fewshot; i++) TM_TRY(show(p, &p->t->pool.row[chosen[i]]));
    TM_TRY(say(p, "user", q->question, ""));
    return end(p);
}

/* ---- samples ---------------------------------------------------------------------------------------------------- */

const char *task_bare(const task *t, const char *continuation) {
    size_t n = strlen(t->set.target_delimiter);
    return strncmp(continuation, t->set.target_delimiter, n) == 0 ? continuation + n : continuation;
}

static tm_status measure(task *t, const task_row *q, tm_task_sample *s) {
    double *characters = task_alloc(&t->memory, q->n_choices * sizeof *characters);
    double *bytes = task_alloc(&t->memory, q->n_choices * sizeof *bytes);
    if (!characters || !bytes) return TM_ENOMEM;
    for (uint32_t i = 0; i < q->n_choices; i++) {
        const char *bare = q->put ? task_bare(t, q->put[i].text) : q->choice[i];
        characters[i] = tm_score_characters(bare);
        bytes[i] = (double)strlen(bare);
    }
    s->characters = characters;
    s->bytes = bytes;
    return TM_OK;
}

/* Each choice with its delimiter, which a turn of a conversation does not have. */
static tm_status make_choices(task *t, const task_row *q, tm_task_sample *s) {
    const char *delimiter = t->pub.chat ? "" : t->set.target_delimiter;
    tm_task_choice *c = task_alloc(&t->memory, q->n_choices * sizeof *c);
    if (!c) return TM_ENOMEM;
    for (uint32_t i = 0; i < q->n_choices; i++) {
        size_t a = strlen(delimiter), b = strlen(q->choice[i]);
        char *text = task_alloc(&t->memory, a + b + 1);
        if (!text) return TM_ENOMEM;
        memcpy(text, delimiter, a);
        memcpy(text + a, q->choice[i], b);
        c[i] = (tm_task_choice){.context = s->prompt, .text = text};
    }
    s->choice = c;
    return TM_OK;
}

static tm_status make_sample(task *t, const task_row *q, uint32_t *order, tm_task_sample *s) {
    prompt p = {.t = t};
    *s = (tm_task_sample){.id = q->id,
                          .record = q->record,
                          .doc = q->doc,
                          .n_choices = q->n_choices,
                          .gold = q->gold,
                          .n_gold = q->n_gold,
                          .target = q->target,
                          .n_target = q->n_target};
    TM_TRY(measure(t, q, s));
    if (q->put) {
        s->prompt = q->put[0].context;
        s->choice = q->n_choices ? q->put : NULL;
        return TM_OK;
    }
    tm_status rc = write(&p, q, order);
    if (rc == TM_OK) s->prompt = task_text(&t->memory, p.text.data ? p.text.data : "", p.text.len);
    tm_buf_free(&p.text);
    if (rc != TM_OK || !s->prompt) return rc == TM_OK ? TM_ENOMEM : rc;
    return q->n_choices ? make_choices(t, q, s) : TM_OK;
}

static tm_status check_examples(const task *t) {
    bool put = t->rows.row[0].put || (t->pool.n && t->pool.row[0].put);
    if (put && t->set.fewshot)
        return tm_fail(TM_EINPUT, "%s: \"arguments\" are prompts with their examples; leave num_fewshot out",
                       t->set.data);
    if (put && t->pub.chat)
        return tm_fail(TM_EINPUT, "%s: \"arguments\" are prompts as they are; leave the chat template out",
                       t->set.data);
    if (t->pool.n && (t->pool.row[0].n_choices > 0) != (t->rows.row[0].n_choices > 0))
        return tm_fail(TM_EINPUT, "%s: its rows are of another kind than those of %s", t->set.fewshot_data,
                       t->set.data);
    return TM_OK;
}

tm_status task_make_samples(task *t) {
    t->choices = t->rows.row[0].n_choices > 0;
    TM_TRY(check_examples(t));
    uint32_t *order = tm_calloc(t->pool.n + 1, sizeof *order);
    t->pub.sample = task_alloc(&t->memory, t->rows.n * sizeof *t->pub.sample);
    tm_status rc = order && t->pub.sample ? TM_OK : tm_nomem(t->pool.n * sizeof *order);
    for (size_t i = 0; i < t->rows.n && rc == TM_OK; i++)
        rc = make_sample(t, &t->rows.row[i], order, &t->pub.sample[t->pub.n++]);
    tm_free(order);
    return rc;
}

/* Rows of a file: what they ask and what is right, in the forms that task.h lists. */
#include "data/reader.h"
#include "task/task_internal.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CHOICES = 1024 };

typedef struct reading {
    task *t;
    task_rows *out;
    const tm_json *row, *doc;
    const char *filter; /* of the harness's samples: those of the first filter are taken */
    uint32_t kinds;     /* rows of choices: 1; to be answered: 2 */
    bool digits_first;  /* "1" is a choice's number, though there is one of that text: of templates, as the harness */
} reading;

static tm_status wrong(const reading *r, const char *what) {
    return tm_fail(TM_EINPUT, "%s: %s", r->t->place, what);
}

static const tm_json *look(const reading *r, const char *key) {
    const tm_json *v = tm_json_get(r->row, key);
    if (!v && r->doc != r->row) v = tm_json_get(r->doc, key);
    return v && v->type != TM_JSON_NULL ? v : NULL;
}

/* ---- values as texts -------------------------------------------------------------------------------------------- */

/* As Python's str has it. */
static tm_status text_of(const reading *r, const tm_json *v, const char *what, const char **out) {
    bool scalar = v && (v->type == TM_JSON_STRING || v->type == TM_JSON_NUMBER);
    const char *text = scalar ? v->text : v && v->type == TM_JSON_BOOL ? (v->boolean ? "True" : "False") : NULL;
    if (!text) return tm_fail(TM_EINPUT, "%s: %s is no text", r->t->place, what);
    *out = task_text(&r->t->memory, text, scalar ? v->len : strlen(text));
    return *out ? TM_OK : TM_ENOMEM;
}

/* A text, or a list of them. */
static tm_status texts_of(const reading *r, const tm_json *v, const char *what, const char *const **out, uint32_t *n) {
    bool list = v && v->type == TM_JSON_ARRAY;
    size_t count = list ? v->count : 1;
    if (count == 0 || count > MOST_CHOICES)
        return tm_fail(TM_EINPUT, "%s: %s is a list of %zu; from 1 to %d may be", r->t->place, what, count,
                       MOST_CHOICES);
    const char **text = task_alloc(&r->t->memory, count * sizeof *text);
    if (!text) return TM_ENOMEM;
    const tm_json *one = list ? v->child : v;
    for (size_t i = 0; i < count; i++, one = list ? one->next : one) TM_TRY(text_of(r, one, what, &text[i]));
    *out = text;
    *n = (uint32_t)count;
    return TM_OK;
}

/* What TASK.json says of the row; *made has the value where a template made it. */
static tm_status value_of(const reading *r, const task_field *f, const char *what, tm_json_doc **made,
                          const tm_json **out) {
    tm_buf json = {0};
    tm_status rc = TM_OK;
    *made = NULL;
    *out = f->said ? f->said : f->key ? tm_json_get(r->doc, f->key) : NULL;
    if (f->by) {
        rc = tm_template_value(f->by, r->doc, &json);
        if (rc == TM_OK) rc = tm_json_parse(made, json.data, json.len, r->t->place, TM_JSON_DUPLICATES_OK, 0);
        if (rc == TM_OK) *out = tm_json_root(*made);
    }
    tm_buf_free(&json);
    if (rc == TM_OK && *out) return TM_OK;
    if (rc == TM_OK)
        return tm_fail(TM_EINPUT, "%s: %s: the row has no \"%s\"", r->t->place, what, f->key ? f->key : "");
    tm_error failure = *tm_error_get();
    tm_error_clear();
    return tm_fail(failure.code, "%s: %.1500s", r->t->place, failure.text);
}

/* ---- what is right ---------------------------------------------------------------------------------------------- */

/* A number in digits; UINT64_MAX: it is none. */
static uint64_t in_digits(const tm_json *v) {
    uint64_t n = 0;
    if (v->len == 0 || v->len > 5 || strspn(v->text, "0123456789") != v->len) return UINT64_MAX;
    for (size_t i = 0; i < v->len; i++) n = n * 10 + (uint64_t)(v->text[i] - '0');
    return n;
}

static uint64_t named_so(const task_row *q, const char *text) {
    for (uint32_t i = 0; i < q->n_choices && !q->put; i++)
        if (!strcmp(q->choice[i], text)) return i;
    return UINT64_MAX;
}

static tm_status gold_number(const reading *r, const task_row *q, const tm_json *v, uint32_t *out) {
    uint64_t n = UINT64_MAX;
    if (v->type == TM_JSON_STRING) {
        uint64_t digits = in_digits(v), named = named_so(q, v->text);
        n = digits < q->n_choices && (r->digits_first || named == UINT64_MAX) ? digits : named;
    } else if (v->type == TM_JSON_NUMBER && v->is_integer && v->integer >= 0) {
        n = (uint64_t)v->integer;
    }
    if (n >= q->n_choices)
        return tm_fail(TM_EINPUT, "%s: which choice is right: its number, 0 to %u, or its text", r->t->place,
                       q->n_choices - 1);
    *out = (uint32_t)n;
    return TM_OK;
}

static tm_status read_gold(const reading *r, task_row *q, const tm_json *v) {
    static const tm_json first = {.type = TM_JSON_NUMBER, .is_integer = true};
    bool list = v && v->type == TM_JSON_ARRAY;
    if (!v && q->n_choices == 1) v = &first;
    if (!v) return wrong(r, "\"gold\" is missing: which choice is right");
    size_t count = list ? v->count : 1;
    if (count == 0 || count > MOST_CHOICES) return wrong(r, "\"gold\" is an empty list, or too long a one");
    uint32_t *gold = task_alloc(&r->t->memory, count * sizeof *gold);
    if (!gold) return TM_ENOMEM;
    const tm_json *one = list ? v->child : v;
    for (size_t i = 0; i < count; i++, one = list ? one->next : one) TM_TRY(gold_number(r, q, one, &gold[i]));
    q->gold = gold;
    q->n_gold = (uint32_t)count;
    return TM_OK;
}

static tm_status check_choices(const reading *r, const task_row *q) {
    for (uint32_t i = 0; i < q->n_choices; i++)
        if (!*q->choice[i]) return wrong(r, "a choice is empty");
    return TM_OK;
}

/* ---- the forms -------------------------------------------------------------------------------------------------- */

static tm_status by_fields(reading *r, task_row *q) {
    const task_settings *s = &r->t->set;
    tm_json_doc *made = NULL;
    const tm_json *v = NULL;
    bool choices = s->choice.key || s->choice.by || s->choice.said;
    tm_status rc;
    TM_GO(value_of(r, &s->text, "doc_to_text", &made, &v));
    TM_GO(text_of(r, v, "doc_to_text", &q->question));
    if (choices) {
        tm_json_free(made);
        TM_GO(value_of(r, &s->choice, "doc_to_choice", &made, &v));
        if (v->type != TM_JSON_ARRAY) TM_GO(wrong(r, "doc_to_choice is no list"));
        TM_GO(texts_of(r, v, "doc_to_choice", &q->choice, &q->n_choices));
        TM_GO(check_choices(r, q));
    }
    tm_json_free(made);
    TM_GO(value_of(r, &s->target, "doc_to_target", &made, &v));
    r->digits_first = s->target.by != NULL;
    rc = choices ? read_gold(r, q, v) : texts_of(r, v, "doc_to_target", &q->target, &q->n_target);
done:
    tm_json_free(made);
    return rc;
}

/* {"arg_0": context, "arg_1": continuation}, or [context, continuation]; of answers the second says how. */
static bool argument(const tm_json *a, const tm_json **context, const tm_json **second) {
    bool list = a->type == TM_JSON_ARRAY && a->count == 2;
    *context = list ? a->child : tm_json_get(a, "arg_0");
    *second = list ? a->child->next : tm_json_get(a, "arg_1");
    return *context && (*context)->type == TM_JSON_STRING && *second &&
           ((*second)->type == TM_JSON_STRING || (*second)->type == TM_JSON_OBJECT);
}

static tm_status put_argument(reading *r, const tm_json *context, const tm_json *second, tm_task_choice *c) {
    TM_TRY(text_of(r, context, "arguments", &c->context));
    if (second->type == TM_JSON_OBJECT) return TM_OK;
    TM_TRY(text_of(r, second, "arguments", &c->text));
    if (!*task_bare(r->t, c->text)) return wrong(r, "a choice is empty");
    return TM_OK;
}

/* How the first row's text is to be answered, where TASK.json does not say it. */
static tm_status take_drawing(reading *r, const tm_json *second) {
    tm_task_drawing *d = &r->t->pub.drawing, said = *d;
    if (r->out->n > 0 || r->out == &r->t->pool) return TM_OK;
    TM_TRY(task_take_generation(r->t, second));
    if (said.n_stop) d->stop = said.stop, d->n_stop = said.n_stop;
    if (said.max_new_tokens) d->max_new_tokens = said.max_new_tokens;
    return TM_OK;
}

static tm_status by_arguments(reading *r, task_row *q, const tm_json *arguments) {
    const tm_json *context, *second;
    size_t n = arguments->count, i = 0;
    if (n == 0 || n > MOST_CHOICES || (arguments->type != TM_JSON_ARRAY && arguments->type != TM_JSON_OBJECT))
        return wrong(r, "\"arguments\" is no list of a context and what follows it");
    tm_task_choice *put = task_alloc(&r->t->memory, n * sizeof *put);
    if (!put) return TM_ENOMEM;
    for (const tm_json *a = arguments->child; a; a = a->next) {
        if (!argument(a, &context, &second)) return wrong(r, "\"arguments\": each is a context and what follows it");
        TM_TRY(put_argument(r, context, second, &put[i++]));
        if (second->type == TM_JSON_OBJECT && n > 1) return wrong(r, "\"arguments\": one prompt is answered in a row");
        if (second->type == TM_JSON_OBJECT) TM_TRY(take_drawing(r, second));
    }
    q->put = put;
    const tm_json *gold = look(r, "gold"), *target = tm_json_get(r->row, "target");
    if (!put[0].text) {
        if (!target) target = look(r, "answer");
        if (!target) return wrong(r, "\"target\" is missing: what is to be answered");
        return texts_of(r, target, "\"target\"", &q->target, &q->n_target);
    }
    q->n_choices = (uint32_t)n;
    if (n == 1) return read_gold(r, q, NULL); /* of one choice: whether greedy gives it */
    const tm_json *named = tm_json_get(r->doc, "choices");
    if (named && named->type == TM_JSON_ARRAY && named->count == n && target && target->type == TM_JSON_STRING) {
        task_row like = {.n_choices = (uint32_t)n};
        uint32_t same;
        TM_TRY(texts_of(r, named, "\"choices\"", &like.choice, &same));
        TM_TRY(read_gold(r, &like, gold ? gold : target));
        q->gold = like.gold, q->n_gold = like.n_gold;
        return TM_OK;
    }
    return read_gold(r, q, gold ? gold : target);
}

static tm_status plainly(reading *r, task_row *q) {
    const tm_json *prompt = look(r, "prompt"), *choices = look(r, "choices"), *gold = look(r, "gold"),
                  *answer = look(r, "answer"), *target = look(r, "target");
    if (!prompt) prompt = look(r, "query");
    if (!prompt || prompt->type != TM_JSON_STRING)
        return wrong(r,
                     "neither \"prompt\" nor \"arguments\"; a TASK.json with doc_to_text makes prompts of other rows");
    TM_TRY(text_of(r, prompt, "\"prompt\"", &q->question));
    if (!choices) {
        if (!answer) answer = target;
        if (!answer) return wrong(r, "neither \"choices\" with \"gold\" nor \"answer\"");
        return texts_of(r, answer, "\"answer\"", &q->target, &q->n_target);
    }
    if (choices->type != TM_JSON_ARRAY) return wrong(r, "\"choices\" is no list of texts");
    TM_TRY(texts_of(r, choices, "\"choices\"", &q->choice, &q->n_choices));
    TM_TRY(check_choices(r, q));
    return read_gold(r, q, gold ? gold : target ? target : answer);
}

/* ---- a file ----------------------------------------------------------------------------------------------------- */

static tm_status doc_text(const reading *r, task_row *q) {
    tm_buf text = {0};
    tm_json_writer w;
    tm_jw_init(&w, &text, 0);
    tm_jw_node(&w, r->doc);
    tm_status rc = tm_jw_end(&w);
    if (rc == TM_OK) q->doc = task_text(&r->t->memory, text.data, text.len);
    tm_buf_free(&text);
    return rc == TM_OK && !q->doc ? TM_ENOMEM : rc;
}

static tm_status check_kind(reading *r, const task_row *q) {
    task_kind wanted = r->t->set.kind;
    r->kinds |= q->n_choices ? 1 : 2;
    if (wanted == TASK_CHOICES && !q->n_choices) return wrong(r, "the row has no choices, which the task is of");
    if (wanted == TASK_ANSWERS && q->n_choices) return wrong(r, "the row has choices; the task is to be answered");
    if (r->kinds == 3)
        return wrong(r, "rows before it were of choices, or this one is and they were not; one kind a file");
    return TM_OK;
}

/* The harness writes a sample once for each filter. */
static bool is_again(reading *r) {
    const tm_json *filter = tm_json_get(r->row, "filter");
    if (!filter || filter->type != TM_JSON_STRING) return false;
    if (!r->filter) r->filter = task_text(&r->t->memory, filter->text, filter->len);
    return r->filter && strcmp(r->filter, filter->text) != 0;
}

static tm_status add_row(reading *r, uint64_t record) {
    const task_settings *s = &r->t->set;
    const tm_json *arguments = tm_json_get(r->row, "arguments"), *id = tm_json_get(r->row, "doc_id");
    task_row q = {.record = record, .id = r->out->n};
    if (is_again(r)) return TM_OK;
    if (id && id->type == TM_JSON_NUMBER && id->is_integer && id->integer >= 0) q.id = (uint64_t)id->integer;
    TM_TRY(doc_text(r, &q));
    if (s->text.key || s->text.by || s->text.said)
        TM_TRY(by_fields(r, &q));
    else if (arguments)
        TM_TRY(by_arguments(r, &q, arguments));
    else
        TM_TRY(plainly(r, &q));
    TM_TRY(check_kind(r, &q));
    TM_TRY(tm_grow(&r->out->row, &r->out->cap, r->out->n + 1, sizeof *r->out->row));
    r->out->row[r->out->n++] = q;
    return TM_OK;
}

static tm_status read_record(reading *r, const tm_record *record, const char *place) {
    tm_json_doc *doc = NULL;
    r->t->place = place;
    if (record->wrong) return wrong(r, record->wrong);
    tm_status rc = tm_json_parse(&doc, record->text, record->len, place, 0, 0);
    if (rc == TM_OK) {
        r->row = tm_json_root(doc);
        const tm_json *inner = tm_json_get(r->row, "doc");
        r->doc = inner && inner->type == TM_JSON_OBJECT ? inner : r->row;
        rc = r->row->type == TM_JSON_OBJECT ? add_row(r, record->number) : wrong(r, "a row is an object");
    }
    tm_json_free(doc);
    r->t->place = NULL;
    return rc;
}

static tm_status read_at(void *ctx, uint64_t offset, void *buf, size_t len) {
    memcpy(buf, ((const tm_buf *)ctx)->data + offset, len);
    return TM_OK;
}

/* All rows are looked at, those past the limit are not kept. */
static tm_status read_records(reading *r, tm_reader *in, const char *path, uint64_t limit, size_t *in_file) {
    char place[640];
    tm_record record;
    *in_file = 0;
    for (;;) {
        TM_TRY(tm_reader_next(in, &record));
        if (!record.text && !record.wrong) return TM_OK;
        size_t before = r->out->n;
        snprintf(place, sizeof place, "%s%s%llu", path, tm_reader_at(in), (unsigned long long)record.number);
        TM_TRY(read_record(r, &record, place));
        *in_file += r->out->n - before;
        if (limit && r->out->n > limit) r->out->n = (size_t)limit;
    }
}

tm_status task_read_rows(task *t, const char *path, uint64_t limit, task_rows *out, size_t *in_file) {
    tm_buf text = {0};
    tm_reader *in = NULL;
    reading r = {.t = t, .out = out};
    tm_status rc;
    TM_GO(t->opts->read(t->opts->ctx, path, &text));
    const tm_data_source source = {.ctx = &text, .read_at = read_at, .size = text.len, .name = path};
    TM_GO(tm_reader_open(&in, &source, &(tm_reader_opts){.form = TM_READ_AUTO}));
    TM_GO(read_records(&r, in, path, limit, in_file));
    if (out->n == 0) TM_GO(tm_fail(TM_EINPUT, "%s: there are no rows", path));
    t->choices = r.kinds == 1;
done:
    t->place = NULL;
    tm_reader_close(in);
    tm_buf_free(&text);
    return rc;
}

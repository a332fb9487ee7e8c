/* A task from its file: TASK.json's keys, or rows alone. */
#include "task/task_internal.h"

#include "data/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 64 * 1024, STOPS = 16, MOST_NEW = 1 << 20, MOST_SHOTS = 1024, MAX_NEW_TOKENS = 256 };

/* ---- memory ----------------------------------------------------------------------------------------------------- */

struct task_chunk {
    struct task_chunk *next;
    size_t used, cap;
};

void *task_alloc(task_memory *m, size_t n) {
    struct task_chunk *c = m->chunk;
    size_t need = tm_round_up(n ? n : 1, 16);
    if (!c || c->cap - c->used < need) {
        size_t cap = need > CHUNK ? need : CHUNK;
        c = tm_calloc(1, tm_round_up(sizeof *c, 16) + cap);
        if (!c) return (void)tm_nomem(cap), NULL;
        *c = (struct task_chunk){.next = m->chunk, .cap = cap};
        m->chunk = c;
    }
    void *p = (char *)c + tm_round_up(sizeof *c, 16) + c->used;
    c->used += need;
    return p;
}

const char *task_text(task_memory *m, const char *text, size_t n) {
    char *copy = task_alloc(m, n + 1);
    if (copy && n) memcpy(copy, text, n);
    return copy;
}

uint64_t task_memory_bytes(const task_memory *m) {
    uint64_t bytes = 0;
    for (const struct task_chunk *c = m->chunk; c; c = c->next) bytes += tm_round_up(sizeof *c, 16) + c->cap;
    return bytes;
}

void task_memory_free(task_memory *m) {
    for (struct task_chunk *c = m->chunk, *next; c; c = next) {
        next = c->next;
        tm_free(c);
    }
    m->chunk = NULL;
}

/* ---- keys of TASK.json ------------------------------------------------------------------------------------------ */

static tm_status wrong(const task *t, const tm_json *at, const char *wanted) {
    if (t->place) return tm_fail(TM_EINPUT, "%s: \"%s\" is %s", t->place, at->key ? at->key : "an element", wanted);
    return tm_fail(TM_EINPUT, "%s:%u: \"%s\" is %s", t->set.path, at->line, at->key ? at->key : "an element", wanted);
}

static tm_status take_text(const task *t, const tm_json *v, const char **out) {
    if (v->type != TM_JSON_STRING) return wrong(t, v, "a text");
    *out = v->text;
    return TM_OK;
}

static tm_status take_number(const task *t, const tm_json *v, int64_t least, int64_t most, uint64_t *out) {
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a whole number from %" PRId64 " to %" PRId64, least, most);
    if (v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < least || v->integer > most)
        return wrong(t, v, wanted);
    *out = (uint64_t)v->integer;
    return TM_OK;
}

static tm_status take_real(const task *t, const tm_json *v, double most, double *out) {
    if (v->type != TM_JSON_NUMBER || !(v->number >= 0) || v->number > most) return wrong(t, v, "a number, 0 or more");
    *out = v->number;
    return TM_OK;
}

static tm_status take_bool(const task *t, const tm_json *v, bool *out) {
    if (v->type != TM_JSON_BOOL) return wrong(t, v, "true or false");
    *out = v->boolean;
    return TM_OK;
}

/* A text that has no braces is a key; numbers and lists are said. */
static tm_status take_field(const task *t, const tm_json *v, task_field *out) {
    char name[512];
    *out = (task_field){0};
    if (v->type == TM_JSON_NUMBER || v->type == TM_JSON_ARRAY) {
        out->said = v;
        return TM_OK;
    }
    if (v->type != TM_JSON_STRING) return wrong(t, v, "a key of the rows, a template or a list");
    if (!strstr(v->text, "{{") && !strstr(v->text, "{%") && !strpbrk(v->text, " \n")) {
        out->key = v->text;
        return TM_OK;
    }
    snprintf(name, sizeof name, "%s:%u: %s", t->set.path, v->line, v->key);
    return tm_template_open(&out->by, v->text, v->len, name);
}

tm_status task_strings(task *t, const tm_json *list, const char *what, const char *const **out, uint32_t *n) {
    bool one = list->type == TM_JSON_STRING;
    uint32_t i = 0;
    if (!one && list->type != TM_JSON_ARRAY) return wrong(t, list, what);
    const char **text = task_alloc(&t->memory, (one ? 1 : list->count) * sizeof *text);
    if (!text) return TM_ENOMEM;
    for (const tm_json *v = one ? list : list->child; v; v = one ? NULL : v->next) {
        if (v->type != TM_JSON_STRING) return wrong(t, v, what);
        text[i] = task_text(&t->memory, v->text, v->len);
        if (!text[i++]) return TM_ENOMEM;
    }
    *out = text;
    *n = i;
    return TM_OK;
}

static tm_status take_stop(task *t, const tm_json *v) {
    tm_task_drawing *d = &t->pub.drawing;
    TM_TRY(task_strings(t, v, "a text, or a list of texts", &d->stop, &d->n_stop));
    if (d->n_stop > STOPS) return wrong(t, v, "longer than 16 texts, which are the most");
    for (uint32_t i = 0; i < d->n_stop; i++)
        if (!*d->stop[i]) return wrong(t, v, "with an empty text, at which every answer would end");
    return TM_OK;
}

/* Keys that say how text is answered, in generation_kwargs or beside it. *known: it is one. */
static tm_status take_drawing(task *t, const tm_json *v, bool *known) {
    tm_task_drawing *d = &t->pub.drawing;
    uint64_t n = 0;
    *known = true;
    if (!strcmp(v->key, "until") || !strcmp(v->key, "stop")) return take_stop(t, v);
    if (!strcmp(v->key, "max_gen_toks") || !strcmp(v->key, "max_new_tokens")) {
        TM_TRY(take_number(t, v, 1, MOST_NEW, &n));
        d->max_new_tokens = (uint32_t)n;
        return TM_OK;
    }
    if (!strcmp(v->key, "temperature")) return take_real(t, v, 1e6, &d->temperature);
    if (!strcmp(v->key, "top_p")) return take_real(t, v, 1, &d->top_p);
    if (!strcmp(v->key, "min_p")) return take_real(t, v, 1, &d->min_p);
    if (!strcmp(v->key, "top_k")) {
        TM_TRY(take_number(t, v, 0, INT32_MAX, &n));
        d->top_k = (uint32_t)n;
        return TM_OK;
    }
    *known = false;
    return TM_OK;
}

/* As the harness: without do_sample an answer is greedy, whatever the temperature. */
tm_status task_take_generation(task *t, const tm_json *v) {
    bool samples = false, known;
    if (v->type != TM_JSON_OBJECT) return wrong(t, v, "an object");
    for (const tm_json *k = v->child; k; k = k->next) {
        if (!strcmp(k->key, "do_sample")) {
            TM_TRY(take_bool(t, k, &samples));
            continue;
        }
        TM_TRY(take_drawing(t, k, &known));
        if (!known)
            return tm_fail(TM_EUNSUPPORTED, "%s:%u: generation_kwargs: \"%s\" is not known here",
                           t->place ? t->place : t->set.path, k->line, k->key);
    }
    if (!samples) t->pub.drawing.temperature = 0;
    return TM_OK;
}

static tm_status take_sampler(task *t, const tm_json *v) {
    if (!tm_json_is(v, "first_n") && !tm_json_is(v, "random") && !tm_json_is(v, "default"))
        return wrong(t, v, "\"first_n\" or \"random\"");
    t->set.fewshot_random = !tm_json_is(v, "first_n");
    return TM_OK;
}

static tm_status take_fewshot_config(task *t, const tm_json *v) {
    if (v->type != TM_JSON_OBJECT) return wrong(t, v, "an object");
    for (const tm_json *k = v->child; k; k = k->next) {
        if (strcmp(k->key, "sampler") != 0)
            return tm_fail(TM_EUNSUPPORTED, "%s:%u: fewshot_config: \"%s\" is not known here", t->set.path, k->line,
                           k->key);
        TM_TRY(take_sampler(t, k));
    }
    return TM_OK;
}

static tm_status take_kind(task *t, const tm_json *v) {
    if (tm_json_is(v, "multiple_choice"))
        t->set.kind = TASK_CHOICES;
    else if (tm_json_is(v, "generate_until"))
        t->set.kind = TASK_ANSWERS;
    else
        return wrong(t, v, "multiple_choice or generate_until here");
    return TM_OK;
}

static tm_status take_shots(task *t, const tm_json *v) {
    uint64_t n = 0;
    TM_TRY(take_number(t, v, 0, MOST_SHOTS, &n));
    t->set.fewshot = (uint32_t)n;
    return TM_OK;
}

static tm_status take_list(const task *t, const tm_json *v, const tm_json **out) {
    if (v->type != TM_JSON_ARRAY || v->count == 0) return wrong(t, v, "a list that is not empty");
    *out = v;
    return TM_OK;
}

/* What says where the harness has its data from, or how it names a task: not needed here. */
static bool is_idle(const char *key) {
    static const char *const idle[] = {"dataset_path",
                                       "dataset_name",
                                       "dataset_kwargs",
                                       "test_split",
                                       "training_split",
                                       "validation_split",
                                       "fewshot_split",
                                       "tag",
                                       "group",
                                       "task_alias",
                                       "metadata",
                                       "should_decontaminate",
                                       "doc_to_decontamination_query",
                                       "version"};
    for (size_t i = 0; i < TM_COUNT(idle); i++)
        if (!strcmp(key, idle[i])) return true;
    return false;
}

static tm_status take_text_key(task *t, const tm_json *v, bool *known) {
    task_settings *s = &t->set;
    const struct {
        const char *key;
        const char **out;
    } texts[] = {{"task", &t->pub.name},
                 {"data", &s->data},
                 {"fewshot_data", &s->fewshot_data},
                 {"description", &s->description},
                 {"target_delimiter", &s->target_delimiter},
                 {"fewshot_delimiter", &s->fewshot_delimiter}};
    *known = true;
    for (size_t i = 0; i < TM_COUNT(texts); i++)
        if (!strcmp(v->key, texts[i].key)) return take_text(t, v, texts[i].out);
    *known = false;
    return TM_OK;
}

static tm_status take_key(task *t, const tm_json *v) {
    task_settings *s = &t->set;
    bool known;
    if (is_idle(v->key)) return TM_OK;
    TM_TRY(take_text_key(t, v, &known));
    if (known) return TM_OK;
    TM_TRY(take_drawing(t, v, &known));
    if (known) return TM_OK;
    if (!strcmp(v->key, "doc_to_text")) return take_field(t, v, &s->text);
    if (!strcmp(v->key, "doc_to_target")) return take_field(t, v, &s->target);
    if (!strcmp(v->key, "doc_to_choice")) return take_field(t, v, &s->choice);
    if (!strcmp(v->key, "num_fewshot")) return take_shots(t, v);
    if (!strcmp(v->key, "fewshot_sampler")) return take_sampler(t, v);
    if (!strcmp(v->key, "fewshot_config")) return take_fewshot_config(t, v);
    if (!strcmp(v->key, "seed")) return take_number(t, v, 0, INT64_MAX, &s->seed);
    if (!strcmp(v->key, "apply_chat_template")) return take_bool(t, v, &t->pub.chat);
    if (!strcmp(v->key, "output_type")) return take_kind(t, v);
    if (!strcmp(v->key, "generation_kwargs")) return task_take_generation(t, v);
    if (!strcmp(v->key, "metric_list")) return take_list(t, v, &s->metrics);
    if (!strcmp(v->key, "filter_list")) return take_list(t, v, &s->filters);
    uint64_t once = 1;
    if (!strcmp(v->key, "repeats")) return take_number(t, v, 1, 1, &once);
    return tm_fail(TM_EUNSUPPORTED, "%s:%u: \"%s\" is no key of a task here; docs/USING.md lists them", s->path,
                   v->line, v->key);
}

tm_status task_read_settings(task *t, const char *text, size_t len) {
    TM_TRY(tm_json_parse(&t->doc, text, len, t->set.path, TM_JSON_RELAXED, 0));
    const tm_json *root = tm_json_root(t->doc);
    for (const tm_json *v = root->child; v; v = v->next) TM_TRY(take_key(t, v));
    if (!t->set.data) return tm_fail(TM_EINPUT, "%s: \"data\" is missing: the file of the rows", t->set.path);
    if (t->set.choice.key || t->set.choice.by || t->set.choice.said)
        if (t->set.kind == TASK_ANY) t->set.kind = TASK_CHOICES;
    return TM_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* A .json file of one object that is no row: it names data, or is made of nothing but keys of a task. */
static tm_status is_settings(const char *path, const tm_buf *text, bool *yes) {
    tm_json_doc *doc = NULL;
    *yes = false;
    size_t at = strspn(text->data ? text->data : "", " \t\r\n");
    if (!tm_ends_with(path, ".json") || at >= text->len || text->data[at] == '[') return TM_OK;
    if (tm_json_parse(&doc, text->data, text->len, path, TM_JSON_RELAXED, 0) != TM_OK) {
        *yes = !strstr(text->data, "\"prompt\"") &&
               !strstr(text->data, "\"arguments\""); /* its error is said as TASK.json's */
        tm_error_clear();
        return TM_OK;
    }
    const tm_json *root = tm_json_root(doc);
    *yes = root->type == TM_JSON_OBJECT && !tm_json_get(root, "prompt") && !tm_json_get(root, "arguments") &&
           !tm_json_get(root, "doc");
    const tm_json *data = tm_json_get(root, "data");
    if (data && data->type != TM_JSON_STRING) *yes = false; /* {"data": [rows...]} */
    tm_json_free(doc);
    return TM_OK;
}

/* "gsm8k" of "tasks/gsm8k.jsonl.gz". */
static const char *name_of(task *t, const char *path) {
    const char *slash = strrchr(path, '/'), *from = slash ? slash + 1 : path, *dot = strchr(from, '.');
    return task_text(&t->memory, from, dot && dot > from ? (size_t)(dot - from) : strlen(from));
}

static void choose(task *t) {
    const tm_task_opts *o = t->opts;
    task_settings *s = &t->set;
    tm_task_drawing *d = &t->pub.drawing;
    if (o->fewshot_given) s->fewshot = o->fewshot;
    if (o->seed_given) s->seed = o->seed;
    if (o->chat) t->pub.chat = true;
    d->seed = s->seed;
    t->pub.fewshot = s->fewshot;
    t->pub.data = s->data;
}

static tm_status read_all(task *t, const char *path) {
    tm_buf text = {0};
    bool settings;
    size_t ignored;
    tm_status rc;
    t->set = (task_settings){.path = path, .data = path, .target_delimiter = " ", .fewshot_delimiter = "\n\n"};
    t->pub.name = name_of(t, path);
    if (!t->pub.name) return TM_ENOMEM;
    TM_GO(t->opts->read(t->opts->ctx, path, &text));
    TM_GO(is_settings(path, &text, &settings));
    if (settings) {
        t->set.data = NULL;
        TM_GO(task_read_settings(t, text.data, text.len));
    }
    choose(t);
    TM_GO(task_read_rows(t, t->set.data, t->opts->limit, &t->rows, &t->pub.in_file));
    if (t->set.fewshot) {
        const char *from = t->set.fewshot_data ? t->set.fewshot_data : t->set.data;
        TM_GO(task_read_rows(t, from, 0, &t->pool, &ignored));
    }
    if (t->opts->max_new_tokens) t->pub.drawing.max_new_tokens = t->opts->max_new_tokens;
    if (!t->pub.drawing.max_new_tokens) t->pub.drawing.max_new_tokens = MAX_NEW_TOKENS;
    TM_GO(task_choose_metrics(t));
    TM_GO(task_make_samples(t));
    t->pub.bytes = task_memory_bytes(&t->memory);
done:
    tm_buf_free(&text);
    return rc;
}

tm_status tm_task_open(tm_task **out, const char *path, const tm_task_opts *opts) {
    *out = NULL;
    task *t = tm_calloc(1, sizeof *t);
    if (!t) return tm_nomem(sizeof *t);
    t->opts = opts;
    tm_status rc = read_all(t, path);
    t->opts = NULL;
    if (rc == TM_OK)
        *out = &t->pub;
    else
        tm_task_close(&t->pub);
    return rc;
}

void tm_task_close(tm_task *pub) {
    task *t = (task *)pub;
    if (!t) return;
    tm_template_close(t->set.text.by);
    tm_template_close(t->set.target.by);
    tm_template_close(t->set.choice.by);
    for (size_t i = 0; i < t->n_patterns; i++) tm_pattern_close(t->pattern[i]);
    tm_free(t->pattern);
    tm_free(t->rows.row);
    tm_free(t->pool.row);
    tm_json_free(t->doc);
    task_memory_free(&t->memory);
    tm_free(t);
}

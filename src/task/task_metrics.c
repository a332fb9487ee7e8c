/* metric_list and filter_list, as the harness has them. */
#include "task/task_internal.h"

#include <string.h>

static const struct {
    const char *name;
    tm_metric_kind kind;
    bool choices, answers; /* what it is for */
} known[] = {{"exact_match", TM_METRIC_EXACT_MATCH, true, true},
             {"numeric", TM_METRIC_NUMERIC, false, true},
             {"acc", TM_METRIC_ACC, true, false},
             {"acc_norm", TM_METRIC_ACC_NORM, true, false},
             {"acc_bytes", TM_METRIC_ACC_BYTES, true, false}};

static tm_status fail(const task *t, const tm_json *at, const char *what, const char *name) {
    return tm_fail(TM_EINPUT, "%s:%u: %s\"%s\"", t->set.path, at->line, what, name);
}

static tm_status open_pattern(task *t, const tm_json *v, tm_pattern **out) {
    if (!v || v->type != TM_JSON_STRING) return fail(t, v ? v : t->set.filters, "a text is wanted: ", "regex_pattern");
    TM_TRY(tm_grow(&t->pattern, &t->cap_patterns, t->n_patterns + 1, sizeof(tm_pattern *)));
    tm_status rc = tm_pattern_open(out, v->text, v->len, TM_PATTERN_FIND);
    if (rc == TM_OK) {
        t->pattern[t->n_patterns++] = *out;
        return TM_OK;
    }
    tm_error failure = *tm_error_get();
    tm_error_clear();
    return tm_fail(failure.code, "%s:%u: %.1500s", t->set.path, v->line, failure.text);
}

/* ---- filters ---------------------------------------------------------------------------------------------------- */

static tm_status whole(const task *t, const tm_json *v, int64_t least, int64_t most, int32_t *out) {
    if (v->type != TM_JSON_NUMBER || !v->is_integer || v->integer < least || v->integer > most)
        return tm_fail(TM_EINPUT, "%s:%u: \"%s\" is a whole number from %lld to %lld", t->set.path, v->line, v->key,
                       (long long)least, (long long)most);
    *out = (int32_t)v->integer;
    return TM_OK;
}

static tm_status read_regex(task *t, const tm_json *f, tm_extract *e) {
    if (e->regex) return fail(t, f, "two regular expressions in one filter: ", "regex");
    *e = (tm_extract){.group = TM_GROUP_ANY};
    for (const tm_json *v = f->child; v; v = v->next) {
        if (!strcmp(v->key, "function")) continue;
        if (!strcmp(v->key, "regex_pattern"))
            TM_TRY(open_pattern(t, v, &e->regex));
        else if (!strcmp(v->key, "group_select"))
            TM_TRY(whole(t, v, -64, 1 << 20, &e->take));
        else if (!strcmp(v->key, "group"))
            TM_TRY(whole(t, v, 0, 64, &e->group));
        else if (!strcmp(v->key, "fallback") && v->type == TM_JSON_STRING)
            e->fallback = v->text;
        else
            return fail(t, v, "a regex has regex_pattern, group_select, group and fallback, not ", v->key);
    }
    if (!e->regex) return fail(t, f, "a regex without its ", "regex_pattern");
    if (e->group > (int32_t)tm_pattern_groups(e->regex))
        return fail(t, f, "there is no such group in ", tm_pattern_text(e->regex));
    return TM_OK;
}

static tm_status read_filter(task *t, const tm_json *v, tm_extract *e, const char **name) {
    const tm_json *called = tm_json_get(v, "name"), *steps = tm_json_get(v, "filter");
    if (!called || called->type != TM_JSON_STRING || !steps || steps->type != TM_JSON_ARRAY)
        return fail(t, v, "a filter has a name and a list, ", "filter");
    *name = called->text;
    *e = (tm_extract){0};
    for (const tm_json *f = steps->child; f; f = f->next) {
        const tm_json *function = tm_json_get(f, "function");
        if (tm_json_is(function, "take_first")) continue;
        if (!tm_json_is(function, "regex"))
            return tm_fail(TM_EUNSUPPORTED, "%s:%u: filters here are \"regex\" and \"take_first\"", t->set.path,
                           f->line);
        TM_TRY(read_regex(t, f, e));
    }
    return TM_OK;
}

static tm_status read_filters(task *t) {
    size_t n = t->set.filters ? t->set.filters->count : 1;
    tm_extract *e = task_alloc(&t->memory, n * sizeof *e);
    const char **name = task_alloc(&t->memory, n * sizeof *name);
    if (!e || !name) return TM_ENOMEM;
    name[0] = "none";
    size_t i = 0;
    for (const tm_json *v = t->set.filters ? t->set.filters->child : NULL; v; v = v->next, i++)
        TM_TRY(read_filter(t, v, &e[i], &name[i]));
    t->pub.extract = e;
    t->pub.extract_name = name;
    t->pub.n_extracts = (uint32_t)n;
    return TM_OK;
}

/* ---- metrics ---------------------------------------------------------------------------------------------------- */

static tm_status read_ignored(task *t, const tm_json *v, tm_compare *c) {
    if (v->type == TM_JSON_NULL) return TM_OK;
    if (v->type != TM_JSON_ARRAY) return fail(t, v, "a list of expressions is wanted: ", v->key);
    tm_pattern **p = task_alloc(&t->memory, v->count * sizeof *p);
    if (!p) return TM_ENOMEM;
    for (const tm_json *one = v->child; one; one = one->next) TM_TRY(open_pattern(t, one, &p[c->n_ignore++]));
    c->ignore = p;
    return TM_OK;
}

static tm_status read_compare(task *t, const tm_json *m, tm_compare *c) {
    for (const tm_json *v = m->child; v; v = v->next) {
        bool *flag = !strcmp(v->key, "ignore_case")          ? &c->ignore_case
                     : !strcmp(v->key, "ignore_punctuation") ? &c->ignore_punctuation
                     : !strcmp(v->key, "ignore_numbers")     ? &c->ignore_numbers
                                                             : NULL;
        if (!strcmp(v->key, "metric") || !strcmp(v->key, "higher_is_better")) continue;
        if (!strcmp(v->key, "aggregation") && tm_json_is(v, "mean")) continue;
        if (!strcmp(v->key, "regexes_to_ignore"))
            TM_TRY(read_ignored(t, v, c));
        else if (flag && v->type == TM_JSON_BOOL)
            *flag = v->boolean;
        else
            return tm_fail(TM_EUNSUPPORTED, "%s:%u: \"%s\" of a metric is not known here, or not so", t->set.path,
                           v->line, v->key);
    }
    return TM_OK;
}

static tm_status read_metric(task *t, const tm_json *v, tm_metric *out) {
    const tm_json *called = v->type == TM_JSON_OBJECT ? tm_json_get(v, "metric") : v;
    *out = (tm_metric){0};
    if (!called || called->type != TM_JSON_STRING) return fail(t, v, "an element has its ", "metric");
    for (size_t i = 0; i < TM_COUNT(known); i++) {
        if (strcmp(called->text, known[i].name) != 0) continue;
        *out = (tm_metric){.kind = known[i].kind, .name = known[i].name};
        if (!(t->choices ? known[i].choices : known[i].answers))
            return fail(t, v,
                        t->choices ? "the rows are of choices, not for " : "the rows are to be answered, not for ",
                        called->text);
        return v == called ? TM_OK : read_compare(t, v, &out->compare);
    }
    return tm_fail(TM_EUNSUPPORTED,
                   "%s:%u: the metric \"%s\" is not known here; exact_match, numeric, acc, acc_norm and "
                   "acc_bytes are",
                   t->set.path, called->line, called->text);
}

/* Of every filter each metric; filters are for texts. */
static tm_status spread(task *t, const tm_metric *each, size_t n) {
    uint32_t filters = t->choices ? 1 : t->pub.n_extracts;
    tm_metric *all = task_alloc(&t->memory, n * filters * sizeof *all);
    if (!all) return TM_ENOMEM;
    for (uint32_t f = 0; f < filters; f++)
        for (size_t i = 0; i < n; i++) {
            tm_metric *m = &all[t->pub.n_metrics++];
            *m = each[i];
            m->extract = f;
            m->filter = t->choices ? "none" : t->pub.extract_name[f];
        }
    t->pub.metric = all;
    return TM_OK;
}

tm_status task_choose_metrics(task *t) {
    static const tm_metric of_choices[] = {{.kind = TM_METRIC_ACC, .name = "acc"},
                                           {.kind = TM_METRIC_ACC_NORM, .name = "acc_norm"}};
    static const tm_metric of_answers[] = {{.kind = TM_METRIC_EXACT_MATCH, .name = "exact_match"}};
    const tm_json *list = t->set.metrics;
    TM_TRY(read_filters(t));
    if (!list) return t->choices ? spread(t, of_choices, TM_COUNT(of_choices)) : spread(t, of_answers, 1);
    tm_metric *m = task_alloc(&t->memory, list->count * sizeof *m);
    if (!m) return TM_ENOMEM;
    size_t n = 0;
    for (const tm_json *v = list->child; v; v = v->next) TM_TRY(read_metric(t, v, &m[n++]));
    return spread(t, m, n);
}

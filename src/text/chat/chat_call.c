/* Filters, tests, methods and functions of templates: one table each. To add one, write a function and a row. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <utf8proc.h>

static const cj_value undefined = {.type = CJ_UNDEFINED};

/* ---- arguments -------------------------------------------------------------------------------------------------- */

static const cj_str *string_arg(cj_run *x, const cj_args *args, size_t i, const char *name) {
    const cj_value *v = cj_arg(args, i, name);
    if (v == NULL || v->type == CJ_NONE) return NULL;
    if (v->type == CJ_STRING) return v->str;
    (void)cj_error(x, TM_EINPUT, "argument %zu must be a string, not %s", i + 1, cj_type_name(*v));
    return NULL;
}

static int64_t int_arg(cj_run *x, const cj_args *args, size_t i, const char *name, int64_t otherwise) {
    const cj_value *v = cj_arg(args, i, name);
    if (v == NULL || v->type == CJ_NONE) return otherwise;
    if (v->type == CJ_INT || v->type == CJ_BOOL) return v->type == CJ_INT ? v->integer : v->boolean;
    (void)cj_error(x, TM_EINPUT, "argument %zu must be an integer, not %s", i + 1, cj_type_name(*v));
    return otherwise;
}

static bool flag_arg(cj_run *x, const cj_args *args, size_t i, const char *name, bool otherwise) {
    const cj_value *v = cj_arg(args, i, name);
    return v == NULL ? otherwise : cj_truth(x, *v);
}

static cj_value of_str(const cj_str *s) {
    return s == NULL ? undefined : (cj_value){.type = CJ_STRING, .str = s};
}

/* ---- strings ---------------------------------------------------------------------------------------------------- */

static bool in_set(const cj_str *set, uint32_t code) {
    if (set == NULL) return cj_py_space(code);
    for (size_t at = 0; at < set->n;)
        if (tk_next(set->p, &at) == code) return true;
    return false;
}

enum { LEFT = 1, RIGHT = 2 };
static cj_value strip(cj_run *x, const cj_str *s, const cj_str *set, int sides) {
    size_t begin = 0, end = s->n;
    if (!cj_step(x, 1 + s->n / 16 * (set == NULL ? 1 : 1 + set->n))) return undefined;
    for (size_t next = 0; (sides & LEFT) && begin < end; begin = next)
        if (!in_set(set, tk_next(s->p, &next))) break;
    for (size_t last; (sides & RIGHT) && end > begin; end = last)
        if (!in_set(set, tk_previous(s->p, end, &last))) break;
    return cj_substr(x, s, begin, end);
}

enum { UPPER, LOWER, CAPITALIZE, TITLE };
static cj_value change_case(cj_run *x, const cj_str *s, int how) {
    cj_out out = {0};
    bool first = true;
    for (size_t at = 0; at < s->n && x->rc == TM_OK;) {
        size_t begin = at;
        uint32_t code = tk_next(s->p, &at), to;
        bool upper = how == UPPER || (how != LOWER && first);
        to = (uint32_t)(upper ? utf8proc_toupper((int32_t)code) : utf8proc_tolower((int32_t)code));
        first = how == TITLE && tk_kind(code) != TK_LETTER;
        char bytes[4];
        size_t n = tm_utf8_encode(bytes, to);
        cj_value origin = s->marks == 0 ? undefined : cj_substr(x, s, begin, at);
        cj_mark mark = {0, n, origin.type == CJ_STRING && origin.str->marks > 0 ? origin.str->mark[0].owner : 0};
        (void)cj_out_put(x, &out, &(cj_str){.p = bytes, .n = n, .mark = &mark, .marks = mark.owner > 0});
    }
    return of_str(cj_out_take(x, &out));
}

static bool put_part(cj_run *x, cj_out *out, const cj_str *s, size_t begin, size_t end) {
    cj_value part = cj_substr(x, s, begin, end);
    return x->rc == TM_OK && cj_out_put(x, out, part.str);
}

static cj_value replace(cj_run *x, const cj_str *s, const cj_str *from, const cj_str *to, int64_t count) {
    cj_out out = {0};
    size_t at = 0;
    if (from == NULL || to == NULL) return cj_error(x, TM_EINPUT, "replace needs two strings");
    if (from->n == 0) return cj_error(x, TM_EUNSUPPORTED, "replace of an empty string");
    while (count != 0 && x->rc == TM_OK) {
        const char *hit = memmem(s->p + at, s->n - at, from->p, from->n);
        if (hit == NULL) break;
        (void)(put_part(x, &out, s, at, (size_t)(hit - s->p)) && cj_out_put(x, &out, to));
        at = (size_t)(hit - s->p) + from->n;
        count--;
    }
    (void)put_part(x, &out, s, at, s->n);
    return of_str(cj_out_take(x, &out));
}

static bool list_push(cj_run *x, cj_list *l, size_t *cap, cj_value v) {
    if (l->n == *cap) {
        size_t more = *cap * 2 + 8;
        cj_value *bigger = cj_alloc(x, more * sizeof *bigger);
        if (bigger == NULL) return false;
        if (l->n > 0) memcpy(bigger, l->v, l->n * sizeof *bigger);
        l->v = bigger;
        *cap = more;
    }
    l->v[l->n++] = v;
    return x->rc == TM_OK;
}

/* str.split(): by a separator, or by runs of white space. */
static cj_value split(cj_run *x, const cj_str *s, const cj_str *by, int64_t limit) {
    cj_value r = cj_new_list(x, 0);
    size_t cap = 0, at = 0;
    if (by != NULL && by->n == 0) return cj_error(x, TM_EINPUT, "split by an empty string");
    (void)cj_step(x, s->n / 16);
    while (x->rc == TM_OK) {
        size_t end = s->n, next = s->n + 1;
        for (size_t skip = at; by == NULL && at < s->n; at = skip)
            if (!cj_py_space(tk_next(s->p, &skip))) break;
        if (by == NULL && at >= s->n) break;
        if (limit == 0) {
            (void)list_push(x, r.list, &cap, cj_substr(x, s, at, s->n));
            break;
        }
        if (by != NULL) {
            const char *hit = memmem(s->p + at, s->n - at, by->p, by->n);
            if (hit != NULL) end = (size_t)(hit - s->p), next = end + by->n;
        } else {
            size_t peek = at;
            for (end = at; end < s->n; end = peek)
                if (cj_py_space(tk_next(s->p, &peek))) break;
            next = end;
        }
        (void)list_push(x, r.list, &cap, cj_substr(x, s, at, end));
        limit--;
        if (next > s->n) break;
        at = next;
    }
    return r;
}

static cj_value rsplit(cj_run *x, const cj_str *s, const cj_str *by, int64_t limit) {
    if (limit < 0) return split(x, s, by, limit);
    if (by == NULL || by->n == 0) return cj_error(x, TM_EUNSUPPORTED, "rsplit without a separator");
    cj_value all = split(x, s, by, -1);
    if (x->rc != TM_OK || (int64_t)all.list->n <= limit + 1) return all;
    size_t joined = all.list->n - (size_t)limit, end = 0;
    for (size_t i = 0; i < joined; i++) end += all.list->v[i].str->n + (i > 0 ? by->n : 0);
    cj_value r = cj_new_list(x, (size_t)limit + 1);
    if (x->rc != TM_OK) return undefined;
    r.list->v[0] = cj_substr(x, s, 0, end);
    for (size_t i = 1; i <= (size_t)limit; i++) r.list->v[i] = all.list->v[joined + i - 1];
    return r;
}

static cj_value join(cj_run *x, cj_value over, const cj_str *by, const char *attribute) {
    const cj_list *items = cj_items(x, over);
    cj_out out = {0};
    for (size_t i = 0; items != NULL && i < items->n && x->rc == TM_OK; i++) {
        cj_value v = attribute == NULL ? items->v[i] : cj_getattr(x, items->v[i], attribute);
        if (i > 0 && by != NULL) (void)cj_out_put(x, &out, by);
        (void)cj_out_put(x, &out, cj_to_str(x, v));
    }
    return of_str(cj_out_take(x, &out));
}

static bool ends(cj_run *x, const cj_str *s, const cj_str *with, bool at_start) {
    return with->n <= s->n && cj_step(x, 1 + with->n / 64) &&
           memcmp(s->p + (at_start ? 0 : s->n - with->n), with->p, with->n) == 0;
}

/* startswith and endswith take one string or several. */
static cj_value affix(cj_run *x, const cj_str *s, const cj_args *args, bool at_start) {
    const cj_value *v = cj_arg(args, 0, "prefix");
    if (v != NULL && v->type == CJ_STRING) return cj_bool(ends(x, s, v->str, at_start));
    if (v == NULL || v->type != CJ_ARRAY) return cj_error(x, TM_EINPUT, "startswith and endswith need a string");
    const cj_list *l = cj_items(x, *v);
    for (size_t i = 0; l != NULL && i < l->n; i++)
        if (l->v[i].type == CJ_STRING && ends(x, s, l->v[i].str, at_start)) return cj_bool(true);
    return cj_bool(false);
}

static cj_value find(cj_run *x, const cj_str *s, const cj_str *what) {
    if (what == NULL) return cj_error(x, TM_EINPUT, "find needs a string");
    if (!cj_step(x, s->n / 16)) return undefined;
    const char *hit = memmem(s->p, s->n, what->p, what->n);
    if (hit == NULL) return cj_int(-1);
    cj_value before = cj_substr(x, s, 0, (size_t)(hit - s->p));
    return x->rc == TM_OK ? cj_int((int64_t)cj_length(x, before)) : undefined;
}

static cj_value count_of(cj_run *x, const cj_str *s, const cj_str *what) {
    if (what == NULL || what->n == 0) return cj_error(x, TM_EINPUT, "count needs a string");
    cj_value parts = split(x, s, what, -1);
    return x->rc == TM_OK ? cj_int((int64_t)parts.list->n - 1) : undefined;
}

static cj_value indent(cj_run *x, const cj_str *s, const cj_args *args) {
    int64_t width = int_arg(x, args, 0, "width", 4);
    bool first = flag_arg(x, args, 1, "first", false), blank = flag_arg(x, args, 2, "blank", false);
    cj_out out = {0};
    for (size_t at = 0, line = 0; at <= s->n && x->rc == TM_OK; line++) {
        const char *end = at < s->n ? memchr(s->p + at, '\n', s->n - at) : NULL;
        size_t stop = end == NULL ? s->n : (size_t)(end - s->p), next = end == NULL ? s->n + 1 : stop + 1;
        bool shift = line == 0 ? first : blank || stop > at;
        for (int64_t i = 0; shift && i < width && x->rc == TM_OK; i++)
            (void)cj_out_put(x, &out, &(cj_str){.p = " ", .n = 1});
        (void)put_part(x, &out, s, at, end == NULL ? stop : next);
        at = next;
    }
    return of_str(cj_out_take(x, &out));
}

/* ---- methods ---------------------------------------------------------------------------------------------------- */

static cj_value string_method(cj_run *x, const cj_str *s, const char *name, const cj_args *args) {
    const cj_value *first = cj_arg(args, 0, NULL);
    if (strcmp(name, "startswith") == 0) return affix(x, s, args, true);
    if (strcmp(name, "endswith") == 0) return affix(x, s, args, false);
    if (strcmp(name, "join") == 0) return first == NULL ? undefined : join(x, *first, s, NULL);
    const cj_str *a = string_arg(x, args, 0, "sep");
    if (x->rc != TM_OK) return undefined;
    if (strcmp(name, "strip") == 0) return strip(x, s, a, LEFT | RIGHT);
    if (strcmp(name, "lstrip") == 0) return strip(x, s, a, LEFT);
    if (strcmp(name, "rstrip") == 0) return strip(x, s, a, RIGHT);
    if (strcmp(name, "split") == 0) return split(x, s, a, int_arg(x, args, 1, "maxsplit", -1));
    if (strcmp(name, "rsplit") == 0) return rsplit(x, s, a, int_arg(x, args, 1, "maxsplit", -1));
    if (strcmp(name, "upper") == 0) return change_case(x, s, UPPER);
    if (strcmp(name, "lower") == 0) return change_case(x, s, LOWER);
    if (strcmp(name, "capitalize") == 0) return change_case(x, s, CAPITALIZE);
    if (strcmp(name, "title") == 0) return change_case(x, s, TITLE);
    if (strcmp(name, "find") == 0) return find(x, s, a);
    if (strcmp(name, "count") == 0) return count_of(x, s, a);
    if (strcmp(name, "replace") == 0)
        return replace(x, s, a, string_arg(x, args, 1, NULL), int_arg(x, args, 2, "count", -1));
    return cj_error(x, TM_EUNSUPPORTED, "unknown string method '%s'", name);
}

/* [key, value] pairs, or one side of them. */
static cj_value dict_items(cj_run *x, cj_dict *d, bool keys, bool values) {
    if (!cj_fill_dict(x, d)) return undefined;
    cj_value r = cj_new_list(x, d->n);
    for (size_t i = 0; i < d->n && x->rc == TM_OK; i++) {
        cj_value key = of_str(d->e[i].key);
        if (!keys || !values) {
            r.list->v[i] = keys ? key : d->e[i].v;
            continue;
        }
        cj_value pair = cj_new_list(x, 2);
        if (x->rc != TM_OK) break;
        pair.list->v[0] = key;
        pair.list->v[1] = d->e[i].v;
        r.list->v[i] = pair;
    }
    return r;
}

static cj_value dict_method(cj_run *x, cj_dict *d, const char *name, const cj_args *args) {
    if (strcmp(name, "items") == 0) return dict_items(x, d, true, true);
    if (strcmp(name, "keys") == 0) return dict_items(x, d, true, false);
    if (strcmp(name, "values") == 0) return dict_items(x, d, false, true);
    const cj_str *key = string_arg(x, args, 0, "key");
    if (key == NULL) return cj_error(x, TM_EINPUT, "get needs a key");
    const cj_value *v = cj_dict_get(x, d, key->p, key->n), *otherwise = cj_arg(args, 1, "default");
    return v != NULL ? *v : otherwise != NULL ? *otherwise : (cj_value){.type = CJ_NONE};
}

bool cj_has_method(cj_value v, const char *name) {
    static const char *const strings[] = {"startswith", "endswith",   "join",   "strip", "lstrip",
                                          "rstrip",     "split",      "rsplit", "upper", "lower",
                                          "title",      "capitalize", "find",   "count", "replace"};
    static const char *const dicts[] = {"items", "keys", "values", "get"};
    const char *const *list = v.type == CJ_STRING ? strings : dicts;
    size_t n = v.type == CJ_STRING ? TM_COUNT(strings) : v.type == CJ_MAPPING ? TM_COUNT(dicts) : 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0) return true;
    return false;
}

static cj_value loop_attribute(cj_run *x, const cj_loop *l, const char *name) {
    int64_t i = (int64_t)l->i, n = (int64_t)l->list->n;
    if (strcmp(name, "index") == 0) return cj_int(i + 1);
    if (strcmp(name, "index0") == 0) return cj_int(i);
    if (strcmp(name, "revindex") == 0) return cj_int(n - i);
    if (strcmp(name, "revindex0") == 0) return cj_int(n - i - 1);
    if (strcmp(name, "first") == 0) return cj_bool(i == 0);
    if (strcmp(name, "last") == 0) return cj_bool(i + 1 == n);
    if (strcmp(name, "length") == 0) return cj_int(n);
    if (strcmp(name, "previtem") == 0) return i > 0 ? l->list->v[i - 1] : cj_undefined("loop.previtem");
    if (strcmp(name, "nextitem") == 0) return i + 1 < n ? l->list->v[i + 1] : cj_undefined("loop.nextitem");
    return cj_error(x, TM_EUNSUPPORTED, "unknown loop attribute '%s'", name);
}

cj_value cj_getattr(cj_run *x, cj_value v, const char *name) {
    if (x->rc != TM_OK) return undefined;
    if (v.type == CJ_UNDEFINED) return cj_error(x, TM_EINPUT, "'%s' is undefined", v.name == NULL ? "a value" : v.name);
    if (v.type == CJ_LOOP) return loop_attribute(x, v.loop, name);
    if (cj_has_method(v, name)) {
        cj_method *m = cj_alloc(x, sizeof *m);
        if (m == NULL) return undefined;
        *m = (cj_method){v, name};
        return (cj_value){.type = CJ_METHOD, .method = m};
    }
    if (v.type == CJ_MAPPING || v.type == CJ_NAMESPACE) {
        const cj_value *found = cj_dict_get(x, v.dict, name, strlen(name));
        if (found != NULL) return *found;
    }
    return cj_undefined(name);
}

/* ---- functions -------------------------------------------------------------------------------------------------- */

static cj_value call_range(cj_run *x, const cj_args *args) {
    int64_t a = int_arg(x, args, 0, NULL, 0), b = int_arg(x, args, 1, NULL, 0), step = int_arg(x, args, 2, NULL, 1);
    if (args->n < 2) b = a, a = 0;
    if (x->rc != TM_OK || step == 0) return cj_error(x, TM_EINPUT, "a bad range");
    if (a < INT32_MIN || a > INT32_MAX || b < INT32_MIN || b > INT32_MAX || step < INT32_MIN || step > INT32_MAX)
        return cj_error(x, TM_EUNSUPPORTED, "a range beyond 32 bits");
    int64_t n = step > 0 ? (b - a + step - 1) / step : (a - b - step - 1) / -step;
    if (n < 0) n = 0;
    if (n > 1000000) return cj_error(x, TM_EUNSUPPORTED, "a range of more than a million");
    cj_value r = cj_new_list(x, (size_t)n);
    for (int64_t i = 0; i < n && x->rc == TM_OK; i++) r.list->v[i] = cj_int(a + i * step);
    return r;
}

static cj_value call_dict(cj_run *x, const cj_args *args, cj_type type) {
    cj_value r = cj_new_dict(x, type);
    for (size_t i = 0; i < args->n && x->rc == TM_OK; i++) {
        if (args->keyword[i] == NULL) return cj_error(x, TM_EUNSUPPORTED, "namespace() and dict() take keywords only");
        cj_value key = cj_string(x, args->keyword[i], strlen(args->keyword[i]));
        if (x->rc == TM_OK) (void)cj_dict_set(x, r.dict, key.str, args->v[i]);
    }
    return r;
}

static cj_value call_raise(cj_run *x, const cj_args *args) {
    const cj_str *text = args->n == 0 ? NULL : cj_to_str(x, args->v[0]);
    if (x->rc != TM_OK) return undefined;
    return cj_error(x, TM_EINPUT, "%.*s", text == NULL ? 0 : (int)tm_min_u64(text->n, 300),
                    text == NULL ? "" : text->p);
}

static cj_value call_strftime(cj_run *x, const cj_args *args) {
    const cj_str *format = string_arg(x, args, 0, "format");
    if (format == NULL) return cj_error(x, TM_EINPUT, "strftime_now needs a format");
    time_t t = x->now != 0 ? (time_t)x->now : time(NULL);
    struct tm parts;
    char text[256], copy[128];
    if (format->n >= sizeof copy || localtime_r(&t, &parts) == NULL)
        return cj_error(x, TM_EUNSUPPORTED, "a bad date format");
    memcpy(copy, format->p, format->n);
    copy[format->n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, copy, &parts);
#pragma GCC diagnostic pop
    return cj_copy_string(x, text, n);
}

bool cj_known_global(const char *name) {
    static const char *const names[] = {"range", "namespace", "dict", "raise_exception", "strftime_now"};
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

cj_value cj_call(cj_run *x, cj_value f, const cj_args *args) {
    if (f.type == CJ_MACRO_VALUE) return cj_call_macro(x, f.macro, args);
    if (f.type == CJ_METHOD && f.method->self.type == CJ_STRING)
        return string_method(x, f.method->self.str, f.method->name, args);
    if (f.type == CJ_METHOD) return dict_method(x, f.method->self.dict, f.method->name, args);
    if (f.type == CJ_UNDEFINED) return cj_error(x, TM_EINPUT, "'%s' is undefined", f.name == NULL ? "a value" : f.name);
    if (f.type != CJ_FUNCTION) return cj_error(x, TM_EINPUT, "a %s cannot be called", cj_type_name(f));
    if (strcmp(f.name, "range") == 0) return call_range(x, args);
    if (strcmp(f.name, "namespace") == 0) return call_dict(x, args, CJ_NAMESPACE);
    if (strcmp(f.name, "dict") == 0) return call_dict(x, args, CJ_MAPPING);
    if (strcmp(f.name, "strftime_now") == 0) return call_strftime(x, args);
    return call_raise(x, args);
}

/* ---- filters ---------------------------------------------------------------------------------------------------- */

typedef cj_value (*filter_fn)(cj_run *x, cj_value v, const cj_args *args);

static cj_value f_trim(cj_run *x, cj_value v, const cj_args *args) {
    const cj_str *s = cj_to_str(x, v), *set = string_arg(x, args, 0, "chars");
    return x->rc == TM_OK ? strip(x, s, set, LEFT | RIGHT) : undefined;
}

static cj_value f_case(cj_run *x, cj_value v, int how) {
    const cj_str *s = cj_to_str(x, v);
    return s == NULL ? undefined : change_case(x, s, how);
}

static cj_value f_upper(cj_run *x, cj_value v, const cj_args *args) {
    return (void)args, f_case(x, v, UPPER);
}
static cj_value f_lower(cj_run *x, cj_value v, const cj_args *args) {
    return (void)args, f_case(x, v, LOWER);
}
static cj_value f_title(cj_run *x, cj_value v, const cj_args *args) {
    return (void)args, f_case(x, v, TITLE);
}
static cj_value f_capitalize(cj_run *x, cj_value v, const cj_args *args) {
    return (void)args, f_case(x, v, CAPITALIZE);
}
static cj_value f_same(cj_run *x, cj_value v, const cj_args *args) {
    return (void)x, (void)args, v;
}
static cj_value f_string(cj_run *x, cj_value v, const cj_args *args) {
    return (void)args, of_str(cj_to_str(x, v));
}

static cj_value f_length(cj_run *x, cj_value v, const cj_args *args) {
    (void)args;
    return cj_int((int64_t)cj_length(x, v));
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
static cj_value f_tojson(cj_run *x, cj_value v, const cj_args *args) {
    const cj_value *separators = cj_arg(args, 2, "separators");
    const cj_str *part[2] = {NULL, NULL};
    int64_t width = int_arg(x, args, 1, "indent", -1);
    bool sort = flag_arg(x, args, 3, "sort_keys", false);
    if (flag_arg(x, args, 0, "ensure_ascii", false)) return cj_error(x, TM_EUNSUPPORTED, "tojson(ensure_ascii=true)");
    if (separators != NULL && separators->type == CJ_ARRAY && cj_fill_list(x, separators->list))
        for (size_t i = 0; i < 2 && i < separators->list->n; i++)
            if (separators->list->v[i].type == CJ_STRING) part[i] = separators->list->v[i].str;
    return cj_to_json(x, v, width < 0 ? -1 : width > 16 ? 16 : (int)width, sort, part[0], part[1]);
}

static cj_value f_default(cj_run *x, cj_value v, const cj_args *args) {
    const cj_value *otherwise = cj_arg(args, 0, "default_value");
    bool use = v.type == CJ_UNDEFINED || (flag_arg(x, args, 1, "boolean", false) && !cj_truth(x, v));
    return !use ? v : otherwise != NULL ? *otherwise : cj_string(x, "", 0);
}

static cj_value f_list(cj_run *x, cj_value v, const cj_args *args) {
    (void)args;
    const cj_list *items = cj_items(x, v);
    if (items == NULL) return undefined;
    cj_value r = cj_new_list(x, items->n);
    if (x->rc == TM_OK && items->n > 0) memcpy(r.list->v, items->v, items->n * sizeof *items->v);
    return r;
}

static cj_value f_first(cj_run *x, cj_value v, const cj_args *args) {
    (void)args;
    const cj_list *items = cj_items(x, v);
    return items == NULL || items->n == 0 ? cj_undefined("first") : items->v[0];
}

static cj_value f_last(cj_run *x, cj_value v, const cj_args *args) {
    (void)args;
    const cj_list *items = cj_items(x, v);
    return items == NULL || items->n == 0 ? cj_undefined("last") : items->v[items->n - 1];
}

static cj_value f_reverse(cj_run *x, cj_value v, const cj_args *args) {
    cj_value r = f_list(x, v, args);
    for (size_t i = 0, n = x->rc == TM_OK ? r.list->n : 0; i < n / 2; i++) {
        cj_value swap = r.list->v[i];
        r.list->v[i] = r.list->v[n - 1 - i];
        r.list->v[n - 1 - i] = swap;
    }
    return v.type == CJ_STRING && x->rc == TM_OK ? join(x, r, NULL, NULL) : r;
}

static cj_value f_join(cj_run *x, cj_value v, const cj_args *args) {
    const cj_str *by = string_arg(x, args, 0, "d"), *attribute = string_arg(x, args, 1, "attribute");
    return x->rc == TM_OK ? join(x, v, by, attribute == NULL ? NULL : attribute->p) : undefined;
}

static cj_value f_replace(cj_run *x, cj_value v, const cj_args *args) {
    const cj_str *s = cj_to_str(x, v), *from = string_arg(x, args, 0, "old"), *to = string_arg(x, args, 1, "new");
    return x->rc == TM_OK ? replace(x, s, from, to, int_arg(x, args, 2, "count", -1)) : undefined;
}

static cj_value f_indent(cj_run *x, cj_value v, const cj_args *args) {
    const cj_str *s = cj_to_str(x, v);
    return s == NULL ? undefined : indent(x, s, args);
}

static cj_value f_items(cj_run *x, cj_value v, const cj_args *args) {
    (void)args;
    if (v.type == CJ_UNDEFINED) return cj_new_list(x, 0);
    if (v.type != CJ_MAPPING) return cj_error(x, TM_EINPUT, "|items of a %s", cj_type_name(v));
    return dict_items(x, v.dict, true, true);
}

static cj_value f_int(cj_run *x, cj_value v, const cj_args *args) {
    double d;
    int64_t i;
    bool whole;
    if (cj_is_number(v, &d, &i, &whole)) {
        if (!whole && !(d > -9e18 && d < 9e18)) return cj_error(x, TM_EINPUT, "|int of a number above 64 bits");
        return cj_int(whole ? i : (int64_t)d);
    }
    char text[32] = "";
    int used = 0;
    long long n = 0;
    if (v.type == CJ_STRING && v.str->n < 20) memcpy(text, v.str->p, v.str->n);
    if (text[0] != 0 && sscanf(text, " %18lld %n", &n, &used) == 1 && text[used] == 0) return cj_int(n);
    return cj_int(int_arg(x, args, 0, "default", 0));
}

static cj_value f_abs(cj_run *x, cj_value v, const cj_args *args) {
    (void)args;
    if (v.type == CJ_INT && v.integer != INT64_MIN) return cj_int(v.integer < 0 ? -v.integer : v.integer);
    if (v.type != CJ_FLOAT) return cj_error(x, TM_EINPUT, "|abs of a %s", cj_type_name(v));
    return (cj_value){.type = CJ_FLOAT, .number = v.number < 0 ? -v.number : v.number};
}

static cj_value f_unique(cj_run *x, cj_value v, const cj_args *args) {
    cj_value r = f_list(x, v, args);
    size_t n = 0;
    for (size_t i = 0; x->rc == TM_OK && i < r.list->n; i++) {
        bool seen = false;
        for (size_t k = 0; k < n && !seen; k++) seen = cj_equal(x, r.list->v[k], r.list->v[i]);
        if (!seen) r.list->v[n++] = r.list->v[i];
    }
    if (x->rc == TM_OK) r.list->n = n;
    return r;
}

/* What an item is sorted by: its attribute, the case of a string left out unless `exact`. */
static cj_value sort_key(cj_run *x, cj_value item, const cj_str *attribute, bool exact) {
    if (attribute != NULL) item = cj_getattr(x, item, attribute->p);
    return item.type == CJ_STRING && !exact && x->rc == TM_OK ? change_case(x, item.str, LOWER) : item;
}

/* Insertion, which keeps the order of equals; its work is counted. */
static void sort_by(cj_run *x, cj_value *item, cj_value *key, size_t n, bool backwards) {
    for (size_t i = 1; i < n && x->rc == TM_OK; i++) {
        cj_value v = item[i], k = key[i];
        size_t at = i;
        for (; at > 0 && cj_step(x, 1) && cj_compare(x, k, key[at - 1]) * (backwards ? -1 : 1) < 0; at--) {
            item[at] = item[at - 1];
            key[at] = key[at - 1];
        }
        item[at] = v;
        key[at] = k;
    }
}

/* sort(reverse=False, case_sensitive=False, attribute=None) */
static cj_value f_sort(cj_run *x, cj_value v, const cj_args *args) {
    bool backwards = flag_arg(x, args, 0, "reverse", false), exact = flag_arg(x, args, 1, "case_sensitive", false);
    const cj_str *attribute = string_arg(x, args, 2, "attribute");
    cj_value r = f_list(x, v, args), keys = x->rc == TM_OK ? cj_new_list(x, r.list->n) : undefined;
    for (size_t i = 0; x->rc == TM_OK && i < r.list->n; i++)
        keys.list->v[i] = sort_key(x, r.list->v[i], attribute, exact);
    if (x->rc == TM_OK) sort_by(x, r.list->v, keys.list->v, r.list->n, backwards);
    return r;
}

/* dictsort(case_sensitive=False, by='key', reverse=False): [key, value] pairs. */
static cj_value f_dictsort(cj_run *x, cj_value v, const cj_args *args) {
    bool exact = flag_arg(x, args, 0, "case_sensitive", false), backwards = flag_arg(x, args, 2, "reverse", false);
    const cj_str *by = string_arg(x, args, 1, "by");
    if (v.type != CJ_MAPPING) return cj_error(x, TM_EINPUT, "|dictsort of a %s", cj_type_name(v));
    bool values = by != NULL && strcmp(by->p, "value") == 0;
    if (by != NULL && !values && strcmp(by->p, "key") != 0)
        return cj_error(x, TM_EINPUT, "|dictsort is by 'key' or by 'value'");
    cj_value r = dict_items(x, v.dict, true, true), keys = x->rc == TM_OK ? cj_new_list(x, r.list->n) : undefined;
    for (size_t i = 0; x->rc == TM_OK && i < r.list->n; i++)
        keys.list->v[i] = sort_key(x, r.list->v[i].list->v[values ? 1 : 0], NULL, exact);
    if (x->rc == TM_OK) sort_by(x, r.list->v, keys.list->v, r.list->n, backwards);
    return r;
}

/* sum(attribute=None, start=0) */
static cj_value f_sum(cj_run *x, cj_value v, const cj_args *args) {
    const cj_str *attribute = string_arg(x, args, 0, "attribute");
    const cj_value *start = cj_arg(args, 1, "start");
    const cj_list *items = cj_items(x, v);
    cj_value r = start == NULL ? cj_int(0) : *start;
    for (size_t i = 0; items != NULL && i < items->n && x->rc == TM_OK; i++)
        r = cj_add(x, r, attribute == NULL ? items->v[i] : cj_getattr(x, items->v[i], attribute->p));
    return r;
}

static cj_value f_float(cj_run *x, cj_value v, const cj_args *args) {
    (void)x;
    const cj_value *otherwise = cj_arg(args, 0, "default");
    double d;
    int64_t i;
    bool whole;
    if (cj_is_number(v, &d, &i, &whole)) return (cj_value){.type = CJ_FLOAT, .number = d};
    char text[64] = "", *end = text;
    if (v.type == CJ_STRING && v.str->n < sizeof text) memcpy(text, v.str->p, v.str->n);
    d = strtod(text, &end);
    bool good = text[0] != 0 && end > text && end[strspn(end, " \t\r\n")] == 0 && strpbrk(text, "xXpP") == NULL;
    if (!good && otherwise != NULL) return *otherwise;
    return (cj_value){.type = CJ_FLOAT, .number = good ? d : 0};
}

/* The smallest or largest item; undefined of none. */
static cj_value extreme(cj_run *x, cj_value v, const cj_args *args, int sign) {
    bool exact = flag_arg(x, args, 0, "case_sensitive", false);
    const cj_str *attribute = string_arg(x, args, 1, "attribute");
    const cj_list *items = cj_items(x, v);
    cj_value best = cj_undefined("an empty sequence"), key = undefined;
    for (size_t i = 0; items != NULL && i < items->n && x->rc == TM_OK; i++) {
        cj_value k = sort_key(x, items->v[i], attribute, exact);
        if (i > 0 && cj_compare(x, k, key) * sign >= 0) continue;
        best = items->v[i];
        key = k;
    }
    return best;
}

static cj_value f_min(cj_run *x, cj_value v, const cj_args *args) {
    return extreme(x, v, args, 1);
}
static cj_value f_max(cj_run *x, cj_value v, const cj_args *args) {
    return extreme(x, v, args, -1);
}

/* Does an item pass `select("test", args)`, or its attribute `selectattr("name", "test", args)`? */
static bool passes(cj_run *x, cj_value item, const cj_args *args, bool attribute) {
    size_t i = attribute ? 1 : 0;
    const cj_str *name = attribute ? string_arg(x, args, 0, NULL) : NULL, *test = string_arg(x, args, i, NULL);
    if (attribute && name == NULL) return (void)cj_error(x, TM_EINPUT, "selectattr needs an attribute's name"), false;
    cj_value v = attribute ? cj_getattr(x, item, name->p) : item;
    if (x->rc != TM_OK || test == NULL) return cj_truth(x, v);
    if (!cj_known_test(test->p)) return (void)cj_error(x, TM_EUNSUPPORTED, "unknown test '%s'", test->p), false;
    cj_args rest = {.n = args->n - i - 1};
    for (size_t k = 0; k < rest.n; k++) rest.v[k] = args->v[i + 1 + k], rest.keyword[k] = args->keyword[i + 1 + k];
    return cj_test(x, test->p, v, &rest);
}

static cj_value choose(cj_run *x, cj_value v, const cj_args *args, bool attribute, bool keep) {
    const cj_list *items = cj_items(x, v);
    if (items == NULL) return undefined;
    cj_value r = cj_new_list(x, items->n);
    size_t n = 0;
    for (size_t i = 0; i < items->n && x->rc == TM_OK; i++)
        if (passes(x, items->v[i], args, attribute) == keep) r.list->v[n++] = items->v[i];
    if (x->rc == TM_OK) r.list->n = n;
    return r;
}

static cj_value f_select(cj_run *x, cj_value v, const cj_args *args) {
    return choose(x, v, args, false, true);
}
static cj_value f_reject(cj_run *x, cj_value v, const cj_args *args) {
    return choose(x, v, args, false, false);
}
static cj_value f_selectattr(cj_run *x, cj_value v, const cj_args *args) {
    return choose(x, v, args, true, true);
}
static cj_value f_rejectattr(cj_run *x, cj_value v, const cj_args *args) {
    return choose(x, v, args, true, false);
}

static cj_value f_map(cj_run *x, cj_value v, const cj_args *args) {
    const cj_str *attribute = string_arg(x, args, CJ_MAX_ARGS, "attribute"), *filter = string_arg(x, args, 0, NULL);
    const cj_value *otherwise = cj_arg(args, CJ_MAX_ARGS, "default");
    const cj_list *items = cj_items(x, v);
    if (items == NULL) return undefined;
    if (attribute == NULL && (filter == NULL || !cj_known_filter(filter->p)))
        return cj_error(x, TM_EUNSUPPORTED, "|map with neither an attribute nor a known filter");
    cj_args rest = {.n = attribute == NULL ? args->n - 1 : 0};
    for (size_t k = 0; k < rest.n; k++) rest.v[k] = args->v[k + 1], rest.keyword[k] = args->keyword[k + 1];
    cj_value r = cj_new_list(x, items->n);
    for (size_t i = 0; i < items->n && x->rc == TM_OK; i++) {
        cj_value one =
            attribute != NULL ? cj_getattr(x, items->v[i], attribute->p) : cj_filter(x, filter->p, items->v[i], &rest);
        if (x->rc == TM_OK) r.list->v[i] = one.type == CJ_UNDEFINED && otherwise != NULL ? *otherwise : one;
    }
    return r;
}

static const struct {
    const char *name;
    filter_fn run;
} filters[] = {{"trim", f_trim},
               {"tojson", f_tojson},
               {"length", f_length},
               {"count", f_length},
               {"upper", f_upper},
               {"lower", f_lower},
               {"title", f_title},
               {"capitalize", f_capitalize},
               {"string", f_string},
               {"safe", f_same},
               {"default", f_default},
               {"d", f_default},
               {"list", f_list},
               {"first", f_first},
               {"last", f_last},
               {"reverse", f_reverse},
               {"join", f_join},
               {"replace", f_replace},
               {"indent", f_indent},
               {"items", f_items},
               {"int", f_int},
               {"abs", f_abs},
               {"unique", f_unique},
               {"sort", f_sort},
               {"dictsort", f_dictsort},
               {"sum", f_sum},
               {"float", f_float},
               {"min", f_min},
               {"max", f_max},
               {"select", f_select},
               {"reject", f_reject},
               {"selectattr", f_selectattr},
               {"rejectattr", f_rejectattr},
               {"map", f_map}};

bool cj_known_filter(const char *name) {
    for (size_t i = 0; i < TM_COUNT(filters); i++)
        if (strcmp(filters[i].name, name) == 0) return true;
    return false;
}

cj_value cj_filter(cj_run *x, const char *name, cj_value v, const cj_args *args) {
    if (x->depth >= CJ_MAX_DEPTH) return cj_error(x, TM_EUNSUPPORTED, "filters nested too deeply");
    for (size_t i = 0; i < TM_COUNT(filters); i++) {
        if (strcmp(filters[i].name, name) != 0) continue;
        x->depth++; /* |map("map", ...) calls itself */
        cj_value r = filters[i].run(x, v, args);
        x->depth--;
        return r;
    }
    return cj_error(x, TM_EUNSUPPORTED, "unknown filter '%s'", name);
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

typedef bool (*test_fn)(cj_run *x, cj_value v, const cj_args *args);

static cj_value operand(cj_run *x, const cj_args *args) {
    if (args->n > 0) return args->v[0];
    return cj_error(x, TM_EINPUT, "a test without the value to compare with");
}

static bool t_defined(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type != CJ_UNDEFINED;
}
static bool t_undefined(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_UNDEFINED;
}
static bool t_none(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_NONE;
}
static bool t_string(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_STRING;
}
static bool t_mapping(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_MAPPING;
}
static bool t_boolean(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_BOOL;
}
static bool t_integer(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_INT;
}
static bool t_float(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_FLOAT;
}
static bool t_true(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_BOOL && v.boolean;
}
static bool t_false(cj_run *x, cj_value v, const cj_args *a) {
    return (void)x, (void)a, v.type == CJ_BOOL && !v.boolean;
}
static bool t_eq(cj_run *x, cj_value v, const cj_args *a) {
    return cj_equal(x, v, operand(x, a));
}
static bool t_ne(cj_run *x, cj_value v, const cj_args *a) {
    return !cj_equal(x, v, operand(x, a));
}
static bool t_lt(cj_run *x, cj_value v, const cj_args *a) {
    return cj_compare(x, v, operand(x, a)) < 0;
}
static bool t_gt(cj_run *x, cj_value v, const cj_args *a) {
    return cj_compare(x, v, operand(x, a)) > 0;
}
static bool t_le(cj_run *x, cj_value v, const cj_args *a) {
    return cj_compare(x, v, operand(x, a)) <= 0;
}
static bool t_ge(cj_run *x, cj_value v, const cj_args *a) {
    return cj_compare(x, v, operand(x, a)) >= 0;
}
static bool t_in(cj_run *x, cj_value v, const cj_args *a) {
    return cj_contains(x, operand(x, a), v);
}

static bool t_number(cj_run *x, cj_value v, const cj_args *args) {
    (void)x, (void)args;
    return v.type == CJ_INT || v.type == CJ_FLOAT || v.type == CJ_BOOL;
}

static bool t_iterable(cj_run *x, cj_value v, const cj_args *args) {
    (void)x, (void)args;
    return v.type == CJ_ARRAY || v.type == CJ_STRING || v.type == CJ_MAPPING || v.type == CJ_UNDEFINED;
}

static bool t_callable(cj_run *x, cj_value v, const cj_args *args) {
    (void)x, (void)args;
    return v.type == CJ_FUNCTION || v.type == CJ_METHOD || v.type == CJ_MACRO_VALUE;
}

static bool divisible(cj_run *x, cj_value v, int64_t by, int64_t rest) {
    if (v.type != CJ_INT || by == 0)
        return (void)cj_error(x, TM_EINPUT, "divisibility of a %s", cj_type_name(v)), false;
    return by == -1 || ((v.integer % by) + by) % by == rest;
}

static bool t_odd(cj_run *x, cj_value v, const cj_args *a) {
    return (void)a, divisible(x, v, 2, 1);
}
static bool t_even(cj_run *x, cj_value v, const cj_args *a) {
    return (void)a, divisible(x, v, 2, 0);
}
static bool t_divisible(cj_run *x, cj_value v, const cj_args *a) {
    int64_t by = int_arg(x, a, 0, NULL, 0);
    return divisible(x, v, by < INT32_MIN || by > INT32_MAX ? 0 : by, 0);
}

static const struct {
    const char *name;
    test_fn run;
} tests[] = {{"defined", t_defined},
             {"undefined", t_undefined},
             {"none", t_none},
             {"string", t_string},
             {"mapping", t_mapping},
             {"boolean", t_boolean},
             {"integer", t_integer},
             {"float", t_float},
             {"true", t_true},
             {"false", t_false},
             {"number", t_number},
             {"iterable", t_iterable},
             {"sequence", t_iterable},
             {"callable", t_callable},
             {"odd", t_odd},
             {"even", t_even},
             {"eq", t_eq},
             {"equalto", t_eq},
             {"sameas", t_eq},
             {"ne", t_ne},
             {"lt", t_lt},
             {"lessthan", t_lt},
             {"gt", t_gt},
             {"greaterthan", t_gt},
             {"le", t_le},
             {"ge", t_ge},
             {"in", t_in},
             {"divisibleby", t_divisible},
             {"==", t_eq},
             {"!=", t_ne},
             {"<", t_lt},
             {">", t_gt},
             {"<=", t_le},
             {">=", t_ge}};

bool cj_known_test(const char *name) {
    for (size_t i = 0; i < TM_COUNT(tests); i++)
        if (strcmp(tests[i].name, name) == 0) return true;
    return false;
}

bool cj_test(cj_run *x, const char *name, cj_value v, const cj_args *args) {
    for (size_t i = 0; i < TM_COUNT(tests) && x->rc == TM_OK; i++)
        if (strcmp(tests[i].name, name) == 0) return tests[i].run(x, v, args);
    return false;
}

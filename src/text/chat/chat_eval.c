/* Expressions of a template. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

static const cj_value undefined = {.type = CJ_UNDEFINED};

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

static cj_value concat(cj_run *x, const cj_str *a, const cj_str *b) {
    if (a == NULL || b == NULL) return undefined;
    size_t marks = a->marks + b->marks;
    cj_str *s = cj_alloc(x, sizeof *s + marks * sizeof *s->mark);
    char *p = cj_alloc(x, a->n + b->n + 1);
    if (s == NULL || p == NULL) return undefined;
    cj_mark *mark = (cj_mark *)(void *)(s + 1);
    if (a->n > 0) memcpy(p, a->p, a->n);
    if (b->n > 0) memcpy(p + a->n, b->p, b->n);
    for (size_t i = 0; i < a->marks; i++) mark[i] = a->mark[i];
    for (size_t i = 0; i < b->marks; i++)
        mark[a->marks + i] = (cj_mark){a->n + b->mark[i].begin, a->n + b->mark[i].end, b->mark[i].owner};
    *s = (cj_str){.p = p, .n = a->n + b->n, .mark = mark, .marks = marks};
    return (cj_value){.type = CJ_STRING, .str = s};
}

static cj_value concat_lists(cj_run *x, cj_list *a, cj_list *b) {
    if (!cj_fill_list(x, a) || !cj_fill_list(x, b)) return undefined;
    cj_value r = cj_new_list(x, a->n + b->n);
    for (size_t i = 0; x->rc == TM_OK && i < r.list->n; i++) r.list->v[i] = i < a->n ? a->v[i] : b->v[i - a->n];
    return r;
}

static cj_value repeat(cj_run *x, const cj_str *s, int64_t n) {
    cj_out out = {0};
    for (int64_t i = 0; i < n && cj_out_put(x, &out, s); i++) {
    }
    const cj_str *r = cj_out_take(x, &out);
    return r == NULL ? undefined : (cj_value){.type = CJ_STRING, .str = r};
}

static cj_value integers(cj_run *x, char op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool over = false;
    if (op == '+')
        over = __builtin_add_overflow(a, b, &r);
    else if (op == '-')
        over = __builtin_sub_overflow(a, b, &r);
    else if (op == '*')
        over = __builtin_mul_overflow(a, b, &r);
    else if (b == 0)
        return cj_error(x, TM_EINPUT, "division by zero");
    else if (a == INT64_MIN && b == -1)
        over = true;
    else {
        int64_t quotient = a / b, rest = a % b; /* Python rounds down */
        if (rest != 0 && (rest < 0) != (b < 0)) quotient--, rest += b;
        r = op == '%' ? rest : quotient;
    }
    return over ? cj_error(x, TM_EUNSUPPORTED, "a number above 64 bits") : cj_int(r);
}

static cj_value power(cj_run *x, double a, double b) {
    double r = 1;
    if (b < 0 || b > 64 || b != (double)(int)b) return cj_error(x, TM_EUNSUPPORTED, "** with this exponent");
    for (int i = 0; i < (int)b; i++) r *= a;
    return (cj_value){.type = CJ_FLOAT, .number = r};
}

static cj_value arithmetic(cj_run *x, const char *op, cj_value a, cj_value b) {
    double p, q;
    int64_t i, j;
    bool whole_a, whole_b;
    bool number_a = cj_is_number(a, &p, &i, &whole_a), number_b = cj_is_number(b, &q, &j, &whole_b);
    if (op[0] == '+' && a.type == CJ_STRING && b.type == CJ_STRING) return concat(x, a.str, b.str);
    if (op[0] == '+' && a.type == CJ_ARRAY && b.type == CJ_ARRAY) return concat_lists(x, a.list, b.list);
    if (op[0] == '*' && op[1] == 0 && a.type == CJ_STRING && whole_b) return repeat(x, a.str, j);
    if (!number_a || !number_b) {
        const char *name = a.type == CJ_UNDEFINED ? a.name : b.type == CJ_UNDEFINED ? b.name : NULL;
        if (name != NULL) return cj_error(x, TM_EINPUT, "'%s' is undefined", name);
        return cj_error(x, TM_EINPUT, "%s %s %s is not possible", cj_type_name(a), op, cj_type_name(b));
    }
    bool floor = op[0] == '/' && op[1] == '/', divide = op[0] == '/' && !floor;
    if (op[0] == '*' && op[1] == '*') {
        cj_value r = power(x, p, q);
        if (whole_a && whole_b && x->rc == TM_OK && r.number < 9e15 && r.number > -9e15)
            return cj_int((int64_t)r.number);
        return r;
    }
    if (whole_a && whole_b && !divide) return integers(x, floor ? '/' : op[0], i, j);
    if ((op[0] == '/' || op[0] == '%') && q == 0) return cj_error(x, TM_EINPUT, "division by zero");
    if (floor || op[0] == '%') return cj_error(x, TM_EUNSUPPORTED, "%s of a float", op);
    double r = op[0] == '+' ? p + q : op[0] == '-' ? p - q : op[0] == '*' ? p * q : p / q;
    return (cj_value){.type = CJ_FLOAT, .number = r};
}

cj_value cj_add(cj_run *x, cj_value a, cj_value b) {
    return arithmetic(x, "+", a, b);
}

/* ---- subscripts ------------------------------------------------------------------------------------------------- */

/* Byte offset of character `index` (0..length). */
static size_t char_offset(cj_run *x, const cj_str *s, int64_t index) {
    size_t at = 0;
    if (!cj_step(x, (uint64_t)index / 8)) return 0;
    for (int64_t i = 0; i < index; i++) (void)tk_next(s->p, &at);
    return at;
}

static cj_value getitem(cj_run *x, cj_value a, cj_value index) {
    double d;
    int64_t i;
    bool whole;
    if (a.type == CJ_UNDEFINED) return cj_error(x, TM_EINPUT, "'%s' is undefined", a.name == NULL ? "a value" : a.name);
    if (index.type == CJ_STRING && (a.type == CJ_MAPPING || a.type == CJ_NAMESPACE)) {
        const cj_value *v = cj_dict_get(x, a.dict, index.str->p, index.str->n);
        if (v != NULL || x->rc != TM_OK) return v == NULL ? undefined : *v;
        cj_value name = cj_copy_string(x, index.str->p, index.str->n);
        return x->rc == TM_OK ? cj_undefined(name.str->p) : undefined;
    }
    if ((a.type != CJ_ARRAY && a.type != CJ_STRING) || !cj_is_number(index, &d, &i, &whole) || !whole)
        return cj_undefined("item");
    int64_t n = (int64_t)cj_length(x, a);
    if (i < 0) i += n;
    if (i < 0 || i >= n || x->rc != TM_OK) return cj_undefined("item");
    if (a.type == CJ_ARRAY) return cj_fill_list(x, a.list) ? a.list->v[i] : undefined;
    size_t begin = char_offset(x, a.str, i), end = begin;
    (void)tk_next(a.str->p, &end);
    return cj_substr(x, a.str, begin, end);
}

/* One bound of a slice, as Python clips it. */
static int64_t bound(cj_run *x, const cj_node *node, int64_t otherwise, int64_t n, int64_t low, int64_t high) {
    if (node == NULL) return otherwise;
    cj_value v = cj_eval(x, node);
    if (v.type == CJ_NONE || x->rc != TM_OK) return otherwise;
    if (v.type != CJ_INT) return (void)cj_error(x, TM_EINPUT, "a slice bound that is no integer"), 0;
    int64_t i = v.integer < 0 && v.integer > INT64_MIN + n ? v.integer + n : v.integer;
    return i < low ? low : i > high ? high : i;
}

static cj_value slice(cj_run *x, const cj_node *node) {
    cj_value a = cj_eval(x, node->a), step = node->d == NULL ? cj_int(1) : cj_eval(x, node->d);
    if (x->rc != TM_OK) return undefined;
    if (step.type == CJ_NONE) step = cj_int(1);
    if (step.type != CJ_INT || step.integer == 0 || step.integer < -INT32_MAX || step.integer > INT32_MAX)
        return cj_error(x, TM_EINPUT, "a bad slice step");
    if (a.type != CJ_ARRAY && a.type != CJ_STRING) return cj_error(x, TM_EINPUT, "a slice of %s", cj_type_name(a));
    int64_t n = (int64_t)cj_length(x, a), by = step.integer, back = by < 0;
    int64_t from = bound(x, node->b, back ? n - 1 : 0, n, back ? -1 : 0, back ? n - 1 : n);
    int64_t to = bound(x, node->c, back ? -1 : n, n, back ? -1 : 0, back ? n - 1 : n);
    if (x->rc != TM_OK) return undefined;
    if (a.type == CJ_STRING && by == 1) {
        if (to < from) to = from;
        size_t begin = char_offset(x, a.str, from), end = char_offset(x, a.str, to);
        return x->rc == TM_OK ? cj_substr(x, a.str, begin, end) : undefined;
    }
    const cj_list *items = cj_items(x, a);
    if (items == NULL) return undefined;
    int64_t count = by > 0 ? (to > from ? (to - from + by - 1) / by : 0) : (from > to ? (from - to - by - 1) / -by : 0);
    cj_value r = cj_new_list(x, (size_t)count);
    for (int64_t i = 0; x->rc == TM_OK && i < count; i++) r.list->v[i] = items->v[from + i * by];
    if (a.type == CJ_ARRAY || x->rc != TM_OK) return r;
    cj_out out = {0};
    for (int64_t i = 0; i < count; i++) (void)cj_out_put(x, &out, r.list->v[i].str);
    const cj_str *joined = cj_out_take(x, &out);
    return joined == NULL ? undefined : (cj_value){.type = CJ_STRING, .str = joined};
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

static void put_argument(cj_run *x, cj_args *args, cj_value v, const char *keyword) {
    if (args->n == CJ_MAX_ARGS) {
        (void)cj_error(x, TM_EUNSUPPORTED, "a call with too many arguments");
        return;
    }
    args->v[args->n] = v;
    args->keyword[args->n++] = keyword;
}

/* *a and **a */
static void unpack(cj_run *x, cj_value v, bool keywords, cj_args *args) {
    if (keywords && (v.type != CJ_MAPPING || !cj_fill_dict(x, v.dict))) {
        (void)cj_error(x, TM_EINPUT, "** of a %s", cj_type_name(v));
        return;
    }
    const cj_list *items = keywords ? NULL : cj_items(x, v);
    for (size_t i = 0; items != NULL && i < items->n && x->rc == TM_OK; i++) put_argument(x, args, items->v[i], NULL);
    for (size_t i = 0; keywords && i < v.dict->n && x->rc == TM_OK; i++) {
        cj_value key = cj_copy_string(x, v.dict->e[i].key->p, v.dict->e[i].key->n); /* it ends with a NUL */
        if (x->rc == TM_OK) put_argument(x, args, v.dict->e[i].v, key.str->p);
    }
}

static void arguments(cj_run *x, const cj_node *list, cj_args *args) {
    args->n = 0;
    for (const cj_node *a = list; a != NULL && x->rc == TM_OK; a = a->next) {
        cj_value v = cj_eval(x, a->a);
        if (a->integer > 0 && x->rc == TM_OK)
            unpack(x, v, a->integer == 2, args);
        else
            put_argument(x, args, v, a->text);
    }
}

const cj_value *cj_arg(const cj_args *a, size_t i, const char *name) {
    for (size_t k = 0; k < a->n; k++) {
        if (a->keyword[k] == NULL ? k == i : name != NULL && strcmp(a->keyword[k], name) == 0) return &a->v[k];
    }
    return NULL;
}

static bool operand_holds(cj_run *x, const char *op, cj_value a, cj_value b) {
    if (strcmp(op, "==") == 0) return cj_equal(x, a, b);
    if (strcmp(op, "!=") == 0) return !cj_equal(x, a, b);
    if (strcmp(op, "in") == 0) return cj_contains(x, b, a);
    if (strcmp(op, "not in") == 0) return !cj_contains(x, b, a);
    int order = cj_compare(x, a, b);
    if (op[0] == '<') return op[1] == '=' ? order <= 0 : order < 0;
    return op[1] == '=' ? order >= 0 : order > 0;
}

static cj_value compare(cj_run *x, const cj_node *node) {
    cj_value left = cj_eval(x, node->a);
    for (const cj_node *o = node->list; o != NULL && x->rc == TM_OK; o = o->next) {
        cj_value right = cj_eval(x, o->a);
        if (x->rc != TM_OK || !operand_holds(x, o->text, left, right)) return cj_bool(false);
        left = right;
    }
    return cj_bool(true);
}

static cj_value make_list(cj_run *x, const cj_node *node) {
    size_t n = 0;
    for (const cj_node *e = node->list; e != NULL; e = e->next) n++;
    cj_value r = cj_new_list(x, n);
    size_t i = 0;
    for (const cj_node *e = node->list; e != NULL && x->rc == TM_OK; e = e->next) r.list->v[i++] = cj_eval(x, e);
    return r;
}

static cj_value make_dict(cj_run *x, const cj_node *node) {
    cj_value r = cj_new_dict(x, CJ_MAPPING);
    for (const cj_node *e = node->list; e != NULL && x->rc == TM_OK; e = e->next) {
        cj_value key = cj_eval(x, e->a), v = cj_eval(x, e->b);
        if (x->rc != TM_OK) break;
        if (key.type != CJ_STRING) return cj_error(x, TM_EUNSUPPORTED, "a dictionary key that is no string");
        (void)cj_dict_set(x, r.dict, key.str, v);
    }
    return r;
}

static cj_value negate(cj_run *x, cj_value v) {
    if (v.type == CJ_FLOAT) return (cj_value){.type = CJ_FLOAT, .number = -v.number};
    return arithmetic(x, "-", cj_int(0), v);
}

static cj_value lookup(cj_run *x, const char *name) {
    cj_value v;
    if (!cj_step(x, x->binds / 8)) return undefined;
    if (cj_lookup(x, name, &v)) return v;
    if (cj_known_global(name)) return (cj_value){.type = CJ_FUNCTION, .name = name};
    return cj_undefined(name);
}

/* Expressions that hold others. */
static cj_value eval_compound(cj_run *x, const cj_node *node) {
    cj_args args;
    cj_value a;
    switch (node->kind) {
    case CJ_GETATTR:
        return a = cj_eval(x, node->a), cj_getattr(x, a, node->text);
    case CJ_GETITEM: {
        a = cj_eval(x, node->a);
        cj_value index = cj_eval(x, node->b);
        return x->rc == TM_OK ? getitem(x, a, index) : undefined;
    }
    case CJ_CALL:
        a = cj_eval(x, node->a);
        arguments(x, node->list, &args);
        return x->rc == TM_OK ? cj_call(x, a, &args) : undefined;
    case CJ_FILTER:
        a = cj_eval(x, node->a);
        arguments(x, node->list, &args);
        return x->rc == TM_OK ? cj_filter(x, node->text, a, &args) : undefined;
    case CJ_TEST:
        a = cj_eval(x, node->a);
        arguments(x, node->list, &args);
        return x->rc == TM_OK ? cj_bool(cj_test(x, node->text, a, &args)) : undefined;
    case CJ_BINARY: {
        a = cj_eval(x, node->a);
        cj_value b = cj_eval(x, node->b);
        if (x->rc != TM_OK) return undefined;
        return node->text[0] == '~' ? concat(x, cj_to_str(x, a), cj_to_str(x, b)) : arithmetic(x, node->text, a, b);
    }
    case CJ_AND:
        return a = cj_eval(x, node->a), cj_truth(x, a) ? cj_eval(x, node->b) : a;
    case CJ_OR:
        return a = cj_eval(x, node->a), cj_truth(x, a) ? a : cj_eval(x, node->b);
    default:
        return cj_error(x, TM_EBUG, "an expression of kind %d", (int)node->kind);
    }
}

static cj_value eval_node(cj_run *x, const cj_node *node) {
    switch (node->kind) {
    case CJ_CONST_STR:
        return (cj_value){.type = CJ_STRING, .str = node->str};
    case CJ_CONST_INT:
        return cj_int(node->integer);
    case CJ_CONST_FLOAT:
        return (cj_value){.type = CJ_FLOAT, .number = node->number};
    case CJ_CONST_BOOL:
        return cj_bool(node->boolean);
    case CJ_CONST_NONE:
        return (cj_value){.type = CJ_NONE};
    case CJ_NAME:
        return lookup(x, node->text);
    case CJ_SLICE:
        return slice(x, node);
    case CJ_NOT:
        return cj_bool(!cj_truth(x, cj_eval(x, node->a)));
    case CJ_NEG:
        return negate(x, cj_eval(x, node->a));
    case CJ_POS:
        return cj_eval(x, node->a);
    case CJ_COMPARE:
        return compare(x, node);
    case CJ_LIST:
        return make_list(x, node);
    case CJ_DICT:
        return make_dict(x, node);
    case CJ_COND:
        if (cj_truth(x, cj_eval(x, node->b))) return cj_eval(x, node->a);
        return node->c == NULL ? cj_undefined("the other side of an inline if") : cj_eval(x, node->c);
    default:
        return eval_compound(x, node);
    }
}

cj_value cj_eval(cj_run *x, const cj_node *node) {
    if (!cj_step(x, 1)) return undefined;
    if (x->depth >= CJ_MAX_DEPTH) return cj_error(x, TM_EUNSUPPORTED, "nested too deeply while running");
    x->depth++;
    cj_value v = eval_node(x, node);
    x->depth--;
    return x->rc == TM_OK ? v : undefined;
}

cj_value cj_defined(cj_run *x, cj_value v) {
    if (!x->strict || v.type != CJ_UNDEFINED || x->rc != TM_OK) return v;
    return cj_error(x, TM_EINPUT, "'%s' is undefined", v.name == NULL ? "a value" : v.name);
}

/* Tokens to a tree, by recursive descent as Jinja's own grammar goes. Nesting is limited to CJ_MAX_NESTING, the depth
 * of an expression's tree to CJ_MAX_NODE_DEPTH; `elif` chains and operator chains are loops. */
#include "text/chat/chat_internal.h"

typedef struct parser {
    cj_lexer *l;
    size_t pos;
    unsigned nesting;
    tm_status rc;
    bool has_generation;
} parser;

static cj_node *expression(parser *p);
static cj_node *or_expression(parser *p);
static cj_node *unary(parser *p, bool with_filter);
static cj_node *statements(parser *p, const char *const *ends);

static const cj_token *now(const parser *p) {
    return &p->l->token[p->pos];
}

static void *fail(parser *p, tm_status code, const char *what, const char *detail) {
    if (p->rc == TM_OK)
        p->rc = tm_fail(code, "%s:%u: %stemplate: %s%s%s%s", p->l->name, now(p)->line, p->l->verbatim ? "" : "chat ",
                        what, *detail ? " \"" : "", detail, *detail ? "\"" : "");
    return NULL;
}

static const cj_token *take(parser *p) {
    const cj_token *t = now(p);
    if (t->type != CJ_T_END) p->pos++;
    return t;
}

static bool is_op(const parser *p, const char *op) {
    return now(p)->type == CJ_T_OP && strcmp(now(p)->text, op) == 0;
}
static bool is_word(const parser *p, const char *word) {
    return now(p)->type == CJ_T_NAME && strcmp(now(p)->text, word) == 0;
}
static bool take_op(parser *p, const char *op) {
    return is_op(p, op) ? (take(p), true) : false;
}
static bool take_word(parser *p, const char *word) {
    return is_word(p, word) ? (take(p), true) : false;
}

static bool expect_op(parser *p, const char *op) {
    if (take_op(p, op)) return true;
    fail(p, TM_EINPUT, "expected", op);
    return false;
}

static uint32_t depth_of(const cj_node *n) {
    return n == NULL ? 0 : n->depth;
}

static cj_node *node(parser *p, cj_kind kind, const char *text, cj_node *a, cj_node *b) {
    if (p->rc != TM_OK) return NULL;
    cj_node *n = cj_arena_alloc(p->l->arena, sizeof *n);
    if (n == NULL) return p->rc = TM_ENOMEM, NULL;
    uint32_t below = depth_of(a) > depth_of(b) ? depth_of(a) : depth_of(b);
    *n = (cj_node){.kind = kind, .line = now(p)->line, .text = text, .a = a, .b = b, .depth = below + 1};
    if (n->depth > CJ_MAX_NODE_DEPTH) return fail(p, TM_EUNSUPPORTED, "an expression that is too long or deep", "");
    return n;
}

static void deepen(cj_node *n, const cj_node *child) {
    if (n != NULL && depth_of(child) >= n->depth) n->depth = depth_of(child) + 1;
}

/* Appends to the list that *tail ends. */
static void append(cj_node ***tail, cj_node *n) {
    if (n == NULL || *tail == NULL) return; /* after a failure */
    **tail = n;
    *tail = &n->next;
}

static bool enter(parser *p) {
    if (++p->nesting <= CJ_MAX_NESTING) return true;
    fail(p, TM_EUNSUPPORTED, "nested too deeply", "");
    return false;
}

/* ---- expressions ------------------------------------------------------------------------------------------------ */

static cj_node *string_node(parser *p) {
    tm_buf joined = {0}; /* 'a' 'b' is one string */
    cj_node *n = node(p, CJ_CONST_STR, NULL, NULL, NULL);
    while (n != NULL && now(p)->type == CJ_T_STRING) {
        const cj_token *t = take(p);
        if (tm_buf_append(&joined, t->text, t->len) != TM_OK) p->rc = TM_ENOMEM, n = NULL;
    }
    cj_str *s = n == NULL ? NULL : cj_arena_alloc(p->l->arena, sizeof *s + joined.len + 1);
    if (s == NULL) p->rc = tm_first(p->rc, TM_ENOMEM), n = NULL;
    if (n != NULL) {
        char *bytes = (char *)(s + 1);
        if (joined.len > 0) memcpy(bytes, joined.data, joined.len);
        *s = (cj_str){.p = bytes, .n = joined.len};
        n->str = s;
    }
    tm_buf_free(&joined);
    return n;
}

/* Arguments up to the closing bracket, which is taken. */
static cj_node *arguments(parser *p) {
    cj_node *first = NULL, **tail = &first;
    size_t n = 0;
    while (p->rc == TM_OK && !is_op(p, ")")) {
        const char *keyword = NULL;
        if (++n > CJ_MAX_ARGS) return fail(p, TM_EUNSUPPORTED, "a call with too many arguments", "");
        if (now(p)->type == CJ_T_NAME && p->l->token[p->pos + 1].type == CJ_T_OP &&
            strcmp(p->l->token[p->pos + 1].text, "=") == 0) {
            keyword = take(p)->text;
            take(p);
        }
        const char *unpack = keyword == NULL && (is_op(p, "*") || is_op(p, "**")) ? take(p)->text : NULL;
        cj_node *arg = node(p, CJ_ARG, keyword, expression(p), NULL);
        if (arg != NULL && unpack != NULL) arg->integer = (int64_t)strlen(unpack);
        append(&tail, arg);
        if (!take_op(p, ",")) break;
    }
    expect_op(p, ")");
    return first;
}

static cj_node *with_arguments(parser *p, cj_node *n) {
    if (n == NULL || !enter(p)) return NULL;
    n->list = arguments(p);
    for (cj_node *a = n->list; a != NULL; a = a->next) deepen(n, a);
    p->nesting--;
    return n;
}

static cj_node *list_until(parser *p, cj_node *first, const char *close) {
    cj_node *n = node(p, CJ_LIST, NULL, NULL, NULL), **tail = n == NULL ? NULL : &n->list;
    if (n == NULL) return NULL;
    if (first != NULL) append(&tail, first), deepen(n, first);
    while (p->rc == TM_OK && !is_op(p, close)) {
        cj_node *e = expression(p);
        append(&tail, e);
        deepen(n, e);
        if (!take_op(p, ",")) break;
    }
    return expect_op(p, close) ? n : NULL;
}

static cj_node *dict(parser *p) {
    cj_node *n = node(p, CJ_DICT, NULL, NULL, NULL), **tail = n == NULL ? NULL : &n->list;
    while (p->rc == TM_OK && !is_op(p, "}")) {
        cj_node *key = expression(p);
        if (!expect_op(p, ":")) return NULL;
        cj_node *value = expression(p), *pair = node(p, CJ_PAIR, NULL, key, value);
        append(&tail, pair);
        deepen(n, pair);
        if (!take_op(p, ",")) break;
    }
    return expect_op(p, "}") ? n : NULL;
}

static cj_node *parenthesis(parser *p) {
    if (take_op(p, ")")) return node(p, CJ_LIST, NULL, NULL, NULL);
    cj_node *first = expression(p);
    if (take_op(p, ",")) return list_until(p, first, ")"); /* a tuple; it behaves like a list */
    return expect_op(p, ")") ? first : NULL;
}

static cj_node *name_node(parser *p) {
    const cj_token *t = take(p);
    const char *w = t->text;
    bool yes = strcmp(w, "true") == 0 || strcmp(w, "True") == 0,
         no = strcmp(w, "false") == 0 || strcmp(w, "False") == 0;
    if (yes || no) {
        cj_node *n = node(p, CJ_CONST_BOOL, NULL, NULL, NULL);
        if (n != NULL) n->boolean = yes;
        return n;
    }
    if (strcmp(w, "none") == 0 || strcmp(w, "None") == 0) return node(p, CJ_CONST_NONE, NULL, NULL, NULL);
    return node(p, CJ_NAME, w, NULL, NULL);
}

static cj_node *primary(parser *p) {
    const cj_token *t = now(p);
    if (t->type == CJ_T_STRING) return string_node(p);
    if (t->type == CJ_T_NAME) return name_node(p);
    if (t->type == CJ_T_INT || t->type == CJ_T_FLOAT) {
        cj_node *n = node(p, t->type == CJ_T_INT ? CJ_CONST_INT : CJ_CONST_FLOAT, NULL, NULL, NULL);
        if (n != NULL) n->integer = t->integer, n->number = t->number;
        take(p);
        return n;
    }
    if (!is_op(p, "(") && !is_op(p, "[") && !is_op(p, "{"))
        return fail(p, TM_EINPUT, "an expression was expected before", t->text);
    if (!enter(p)) return NULL;
    cj_node *n;
    if (take_op(p, "("))
        n = parenthesis(p);
    else if (take_op(p, "["))
        n = list_until(p, NULL, "]");
    else
        take(p), n = dict(p);
    p->nesting--;
    return n;
}

/* a[b] or a[b:c:d], the bracket taken. */
static cj_node *subscript(parser *p, cj_node *a) {
    if (!enter(p)) return NULL;
    cj_node *part[3] = {NULL, NULL, NULL};
    int i = 0;
    bool slice = false;
    while (p->rc == TM_OK && !is_op(p, "]")) {
        if (take_op(p, ":")) {
            slice = true;
            if (++i > 2) return fail(p, TM_EINPUT, "a slice with too many parts", "");
            continue;
        }
        part[i] = expression(p);
        if (!is_op(p, ":")) break;
    }
    if (!expect_op(p, "]")) return NULL;
    p->nesting--;
    cj_node *n = node(p, slice ? CJ_SLICE : CJ_GETITEM, NULL, a, part[0]);
    if (n == NULL) return NULL;
    n->c = part[1];
    n->d = part[2];
    deepen(n, n->c);
    deepen(n, n->d);
    if (!slice && n->b == NULL) return fail(p, TM_EINPUT, "an empty subscript", "");
    return n;
}

static cj_node *postfix(parser *p, cj_node *n) {
    while (p->rc == TM_OK) {
        if (take_op(p, ".")) {
            const cj_token *t = take(p);
            if (t->type == CJ_T_NAME) {
                n = node(p, CJ_GETATTR, t->text, n, NULL);
            } else if (t->type == CJ_T_INT) {
                cj_node *i = node(p, CJ_CONST_INT, NULL, NULL, NULL);
                if (i != NULL) i->integer = t->integer;
                n = node(p, CJ_GETITEM, NULL, n, i);
            } else {
                return fail(p, TM_EINPUT, "a name was expected after", ".");
            }
        } else if (take_op(p, "[")) {
            n = subscript(p, n);
        } else if (take_op(p, "(")) {
            n = with_arguments(p, node(p, CJ_CALL, NULL, n, NULL));
        } else {
            break;
        }
    }
    return n;
}

static cj_node *filter(parser *p, cj_node *a) {
    const cj_token *t = take(p);
    if (t->type != CJ_T_NAME) return fail(p, TM_EINPUT, "a filter's name was expected before", t->text);
    if (!cj_known_filter(t->text)) return fail(p, TM_EUNSUPPORTED, "unknown filter", t->text);
    cj_node *n = node(p, CJ_FILTER, t->text, a, NULL);
    return take_op(p, "(") ? with_arguments(p, n) : n;
}

/* May a test's argument begin here without a bracket, as in `x is divisibleby 3`? */
static bool begins_operand(const parser *p) {
    cj_token_type t = now(p)->type;
    if (t == CJ_T_NAME)
        return !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and") && !is_word(p, "if") &&
               !is_word(p, "is") && !is_word(p, "in") && !is_word(p, "not");
    return t == CJ_T_STRING || t == CJ_T_INT || t == CJ_T_FLOAT || is_op(p, "[") || is_op(p, "{");
}

static cj_node *test(parser *p, cj_node *a) {
    bool negated = take_word(p, "not");
    const cj_token *t = take(p);
    if (t->type != CJ_T_NAME) return fail(p, TM_EINPUT, "a test's name was expected before", t->text);
    if (!cj_known_test(t->text)) return fail(p, TM_EUNSUPPORTED, "unknown test", t->text);
    cj_node *n = node(p, CJ_TEST, t->text, a, NULL);
    if (take_op(p, "("))
        n = with_arguments(p, n);
    else if (n != NULL && begins_operand(p)) {
        n->list = node(p, CJ_ARG, NULL, postfix(p, primary(p)), NULL);
        deepen(n, n->list);
    }
    return negated ? node(p, CJ_NOT, NULL, n, NULL) : n;
}

static cj_node *filters(parser *p, cj_node *n) {
    while (p->rc == TM_OK) {
        if (take_op(p, "|"))
            n = filter(p, n);
        else if (take_word(p, "is"))
            n = test(p, n);
        else if (take_op(p, "("))
            n = with_arguments(p, node(p, CJ_CALL, NULL, n, NULL));
        else
            break;
    }
    return n;
}

static cj_node *unary(parser *p, bool with_filter) {
    cj_node *n;
    if (!enter(p)) return NULL;
    if (take_op(p, "-"))
        n = node(p, CJ_NEG, NULL, unary(p, false), NULL);
    else if (take_op(p, "+"))
        n = node(p, CJ_POS, NULL, unary(p, false), NULL);
    else
        n = primary(p);
    n = postfix(p, n);
    p->nesting--;
    return with_filter ? filters(p, n) : n;
}

/* Binary operators by level, loosest first. */
static cj_node *binary(parser *p, int level) {
    static const char *const ops[4][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    cj_node *left = level == 3 ? unary(p, true) : binary(p, level + 1);
    for (bool more = true; more && p->rc == TM_OK;) {
        more = false;
        for (int i = 0; i < 5 && ops[level][i] != NULL && !more; i++) {
            if (!take_op(p, ops[level][i])) continue;
            more = true;
            left = node(p, CJ_BINARY, ops[level][i], left, level == 3 ? unary(p, true) : binary(p, level + 1));
        }
    }
    return left;
}

static const char *comparison(parser *p) {
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < TM_COUNT(ops); i++)
        if (take_op(p, ops[i])) return ops[i];
    if (take_word(p, "in")) return "in";
    const cj_token *next = &p->l->token[now(p)->type == CJ_T_END ? p->pos : p->pos + 1];
    if (is_word(p, "not") && next->type == CJ_T_NAME && strcmp(next->text, "in") == 0)
        return take(p), take(p), "not in";
    return NULL;
}

static cj_node *compare(parser *p) {
    cj_node *n = binary(p, 0), **tail = NULL;
    for (const char *op; p->rc == TM_OK && (op = comparison(p)) != NULL;) {
        if (tail == NULL) {
            n = node(p, CJ_COMPARE, NULL, n, NULL);
            if (n == NULL) return NULL;
            tail = &n->list;
        }
        cj_node *operand = node(p, CJ_OPERAND, op, binary(p, 0), NULL);
        append(&tail, operand);
        deepen(n, operand);
    }
    return n;
}

static cj_node *not_expression(parser *p) {
    unsigned nots = 0;
    while (take_word(p, "not")) nots++;
    cj_node *n = compare(p);
    for (; nots > 0 && p->rc == TM_OK; nots--) n = node(p, CJ_NOT, NULL, n, NULL);
    return n;
}

static cj_node *and_expression(parser *p) {
    cj_node *n = not_expression(p);
    while (p->rc == TM_OK && take_word(p, "and")) n = node(p, CJ_AND, NULL, n, not_expression(p));
    return n;
}

static cj_node *or_expression(parser *p) {
    cj_node *n = and_expression(p);
    while (p->rc == TM_OK && take_word(p, "or")) n = node(p, CJ_OR, NULL, n, and_expression(p));
    return n;
}

static cj_node *expression(parser *p) {
    if (!enter(p)) return NULL;
    cj_node *n = or_expression(p);
    while (p->rc == TM_OK && take_word(p, "if")) {
        n = node(p, CJ_COND, NULL, n, or_expression(p));
        if (n == NULL || !take_word(p, "else")) continue;
        n->c = expression(p);
        deepen(n, n->c);
    }
    p->nesting--;
    return n;
}

/* ---- statements ------------------------------------------------------------------------------------------------- */

static bool end_block(parser *p) {
    if (now(p)->type == CJ_T_BLOCK_END) return take(p), true;
    fail(p, TM_EINPUT, "the end of the tag was expected before", now(p)->text);
    return false;
}

/* Is this "{% WORD" with one of the words? */
static bool at_end(const parser *p, const char *const *ends) {
    if (now(p)->type != CJ_T_BLOCK) return false;
    const cj_token *word = &p->l->token[p->pos + 1];
    for (; *ends != NULL; ends++)
        if (word->type == CJ_T_NAME && strcmp(word->text, *ends) == 0) return true;
    return false;
}

/* Takes "{% WORD"; the rest of the tag is the caller's. */
static bool take_tag(parser *p, const char *word) {
    const char *const one[] = {word, NULL};
    if (!at_end(p, one)) return false;
    take(p);
    take(p);
    return true;
}

static bool close_block(parser *p, const char *word) {
    if (p->rc != TM_OK) return false;
    if (take_tag(p, word)) return end_block(p);
    fail(p, TM_EINPUT, "there is no", word);
    return false;
}

static cj_node *if_statement(parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    cj_node *n = node(p, CJ_IF, NULL, NULL, NULL), **tail = n == NULL ? NULL : &n->list;
    bool last = false;
    do {
        cj_node *condition = last ? NULL : expression(p), *branch = node(p, CJ_BRANCH, NULL, NULL, NULL);
        if (branch == NULL || !end_block(p)) return NULL;
        branch->a = condition;
        branch->list = statements(p, ends);
        append(&tail, branch);
        if (last || p->rc != TM_OK) break;
        if (take_tag(p, "elif")) continue;
        if (!take_tag(p, "else")) break;
        last = true;
    } while (p->rc == TM_OK);
    return close_block(p, "endif") ? n : NULL;
}

/* NAME or NAME.attribute, several with commas. */
static cj_node *targets(parser *p) {
    cj_node *first = NULL, **tail = &first;
    do {
        const cj_token *t = take(p);
        if (t->type != CJ_T_NAME) return fail(p, TM_EINPUT, "a variable's name was expected before", t->text);
        cj_node *n = node(p, CJ_NAME, t->text, NULL, NULL);
        if (take_op(p, ".")) {
            const cj_token *attribute = take(p);
            if (attribute->type != CJ_T_NAME) return fail(p, TM_EINPUT, "a name was expected after", ".");
            n = node(p, CJ_GETATTR, attribute->text, n, NULL);
        }
        append(&tail, n);
    } while (p->rc == TM_OK && take_op(p, ",") && now(p)->type == CJ_T_NAME);
    return first;
}

static cj_node *for_statement(parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const end[] = {"endfor", NULL};
    cj_node *n = node(p, CJ_FOR, NULL, NULL, NULL);
    if (n == NULL) return NULL;
    bool paren = take_op(p, "(");
    n->targets = targets(p);
    if (paren && !expect_op(p, ")")) return NULL;
    if (!take_word(p, "in")) return fail(p, TM_EINPUT, "expected", "in");
    n->a = or_expression(p);
    if (take_word(p, "if")) n->b = expression(p);
    if (is_word(p, "recursive")) return fail(p, TM_EUNSUPPORTED, "a recursive loop", "");
    if (!end_block(p)) return NULL;
    n->list = statements(p, ends);
    if (take_tag(p, "else")) {
        if (!end_block(p)) return NULL;
        n->other = statements(p, end);
    }
    return close_block(p, "endfor") ? n : NULL;
}

static cj_node *set_statement(parser *p) {
    static const char *const end[] = {"endset", NULL};
    cj_node *n = node(p, CJ_SET, NULL, NULL, NULL);
    if (n == NULL) return NULL;
    n->targets = targets(p);
    if (take_op(p, "=")) {
        n->a = expression(p);
        if (p->rc == TM_OK && take_op(p, ",")) { /* a tuple without brackets */
            cj_node *list = node(p, CJ_LIST, NULL, NULL, NULL), **tail = list == NULL ? NULL : &list->list;
            append(&tail, n->a);
            do append(&tail, expression(p));
            while (p->rc == TM_OK && take_op(p, ","));
            n->a = list;
        }
        return end_block(p) ? n : NULL;
    }
    if (!end_block(p)) return NULL;
    n->list = statements(p, end);
    return close_block(p, "endset") ? n : NULL;
}

static cj_node *macro_statement(parser *p) {
    static const char *const end[] = {"endmacro", NULL};
    const cj_token *name = take(p);
    if (name->type != CJ_T_NAME) return fail(p, TM_EINPUT, "a macro's name was expected before", name->text);
    cj_node *n = node(p, CJ_MACRO, name->text, NULL, NULL), **tail = n == NULL ? NULL : &n->targets;
    if (n == NULL || !expect_op(p, "(")) return NULL;
    for (size_t i = 0; p->rc == TM_OK && !is_op(p, ")"); i++) {
        const cj_token *t = take(p);
        if (t->type != CJ_T_NAME || i >= CJ_MAX_ARGS) return fail(p, TM_EINPUT, "a parameter's name was expected", "");
        append(&tail, node(p, CJ_ARG, t->text, take_op(p, "=") ? expression(p) : NULL, NULL));
        if (!take_op(p, ",")) break;
    }
    if (!expect_op(p, ")") || !end_block(p)) return NULL;
    n->list = statements(p, end);
    return close_block(p, "endmacro") ? n : NULL;
}

static cj_node *generation_statement(parser *p) {
    static const char *const end[] = {"endgeneration", NULL};
    cj_node *n = node(p, CJ_GENERATION, NULL, NULL, NULL);
    p->has_generation = true;
    if (n == NULL || !end_block(p)) return NULL;
    n->list = statements(p, end);
    return close_block(p, "endgeneration") ? n : NULL;
}

static cj_node *statement(parser *p) {
    const cj_token *word = take(p);
    if (word->type != CJ_T_NAME) return fail(p, TM_EINPUT, "a statement was expected before", word->text);
    if (strcmp(word->text, "if") == 0) return if_statement(p);
    if (strcmp(word->text, "for") == 0) return for_statement(p);
    if (strcmp(word->text, "set") == 0) return set_statement(p);
    if (strcmp(word->text, "macro") == 0) return macro_statement(p);
    if (strcmp(word->text, "generation") == 0) return generation_statement(p);
    bool stop = strcmp(word->text, "break") == 0;
    if (stop || strcmp(word->text, "continue") == 0) {
        cj_node *n = node(p, stop ? CJ_BREAK : CJ_CONTINUE, NULL, NULL, NULL);
        return end_block(p) ? n : NULL;
    }
    return fail(p, TM_EUNSUPPORTED, "unknown or misplaced statement", word->text);
}

static cj_node *data_node(parser *p) {
    const cj_token *t = take(p);
    cj_node *n = node(p, CJ_DATA, NULL, NULL, NULL);
    cj_str *s = n == NULL ? NULL : cj_arena_alloc(p->l->arena, sizeof *s);
    if (s == NULL) return p->rc = tm_first(p->rc, TM_ENOMEM), NULL;
    *s = (cj_str){.p = t->text, .n = t->len};
    n->str = s;
    return n;
}

static cj_node *statements(parser *p, const char *const *ends) {
    cj_node *first = NULL, **tail = &first;
    if (!enter(p)) return NULL;
    while (p->rc == TM_OK && now(p)->type != CJ_T_END && !at_end(p, ends)) {
        if (now(p)->type == CJ_T_DATA) {
            append(&tail, data_node(p));
        } else if (now(p)->type == CJ_T_VARIABLE) {
            take(p);
            append(&tail, node(p, CJ_OUTPUT, NULL, expression(p), NULL));
            if (p->rc == TM_OK && take(p)->type != CJ_T_VARIABLE_END) {
                p->pos--;
                fail(p, TM_EINPUT, "}} was expected before", now(p)->text);
            }
        } else {
            take(p);
            append(&tail, statement(p));
        }
    }
    p->nesting--;
    return first;
}

tm_status cj_parse(cj_lexer *l, cj_node **body, bool *has_generation) {
    static const char *const none[] = {NULL};
    parser p = {.l = l};
    *body = statements(&p, none);
    *has_generation = p.has_generation;
    return p.rc;
}

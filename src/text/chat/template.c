/* Templates that are no conversations'. */
#include "text/chat/chat_internal.h"
#include "text/chat/template.h"

struct tm_template {
    char *name;
    cj_arena arena; /* the tree */
    cj_node *body;
};

static tm_status parse(tm_template *t, const char *text, size_t len) {
    cj_lexer l = {.name = t->name, .arena = &t->arena, .verbatim = true};
    bool has_generation;
    tm_status rc = cj_lex(&l, text, len);
    if (rc == TM_OK) rc = cj_parse(&l, &t->body, &has_generation);
    tm_free(l.source);
    tm_free(l.token);
    return rc;
}

tm_status tm_template_open(tm_template **out, const char *text, size_t len, const char *name) {
    *out = NULL;
    tm_template *t = tm_calloc(1, sizeof *t);
    if (!t) return tm_nomem(sizeof *t);
    t->name = tm_strdup(name);
    tm_status rc = t->name ? parse(t, text, len) : tm_nomem(strlen(name));
    if (rc == TM_OK)
        *out = t;
    else
        tm_template_close(t);
    return rc;
}

void tm_template_close(tm_template *t) {
    if (!t) return;
    cj_arena_free(&t->arena);
    tm_free(t->name);
    tm_free(t);
}

static void bind_all(cj_run *x, const tm_json *variables) {
    for (const tm_json *v = variables->child; v && x->rc == TM_OK; v = v->next) {
        cj_value value = cj_from_json(x, v, 0);
        if (x->rc == TM_OK) (void)cj_bind(x, v->key, value);
    }
}

static void run_body(cj_run *x, const cj_node *body) {
    for (const cj_node *n = body; n && x->rc == TM_OK; n = n->next) {
        cj_exec(x, n);
        x->flow = CJ_NORMAL;
    }
}

static tm_status end(cj_run *x) {
    cj_out_free(x->out);
    tm_chat_spans_free(x->generated);
    cj_arena_free(&x->arena);
    tm_free(x->bind);
    return x->rc;
}

static void put(cj_run *x, const char *text, size_t n, tm_buf *out) {
    if (x->rc == TM_OK && n) x->rc = tm_buf_append(out, text, n);
}

tm_status tm_template_print(const tm_template *t, const tm_json *variables, tm_buf *out) {
    cj_out text = {0};
    tm_chat_spans blocks = {0};
    cj_run x = {.name = t->name, .out = &text, .generated = &blocks, .line = 1, .strict = true};
    bind_all(&x, variables);
    run_body(&x, t->body);
    put(&x, text.text.data, text.text.len, out);
    return end(&x);
}

tm_status tm_template_value(const tm_template *t, const tm_json *variables, tm_buf *json) {
    const cj_node *b = t->body;
    cj_out text = {0};
    tm_chat_spans blocks = {0};
    cj_run x = {.name = t->name, .out = &text, .generated = &blocks, .line = 1, .strict = true};
    cj_value v = {.type = CJ_UNDEFINED};
    bind_all(&x, variables);
    if (b && !b->next && b->kind == CJ_OUTPUT) {
        x.line = b->line;
        v = cj_defined(&x, cj_eval(&x, b->a));
    } else {
        run_body(&x, b);
        if (x.rc == TM_OK) v = cj_string(&x, text.text.data ? text.text.data : "", text.text.len);
    }
    if (x.rc == TM_OK) v = cj_to_json(&x, v, -1, false, NULL, NULL);
    if (x.rc == TM_OK) put(&x, v.str->p, v.str->n, json);
    return end(&x);
}

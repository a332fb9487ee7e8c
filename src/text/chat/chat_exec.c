/* Statements of a template: scopes, loops, macros, output. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

/* ---- scopes ----------------------------------------------------------------------------------------------------- *
 * Bindings lie on one stack. A loop's body and a macro's body are scopes: what they set is gone after each round, as in
 * Jinja. A macro sees its own bindings and those of the outermost scope.                                             */

static bool push(cj_run *x, const char *name, cj_value v) {
    if (x->rc == TM_OK) x->rc = tm_grow(&x->bind, &x->binds_cap, x->binds + 1, sizeof *x->bind);
    if (x->rc != TM_OK) return false;
    x->bind[x->binds++] = (cj_binding){name, v};
    if (x->frame == 0) x->globals = x->binds;
    return true;
}

bool cj_bind(cj_run *x, const char *name, cj_value v) {
    if (!cj_step(x, (x->binds - x->frame) / 8)) return false;
    for (size_t i = x->binds; i-- > x->frame;) {
        if (strcmp(x->bind[i].name, name) != 0) continue;
        x->bind[i].v = v;
        return true;
    }
    return push(x, name, v);
}

bool cj_lookup(const cj_run *x, const char *name, cj_value *v) {
    for (size_t i = x->binds; i-- > 0;) {
        if (i < x->floor && i >= x->globals) continue;
        if (strcmp(x->bind[i].name, name) == 0) return *v = x->bind[i].v, true;
    }
    return false;
}

static void exec_list(cj_run *x, const cj_node *list) {
    for (const cj_node *n = list; n != NULL && x->rc == TM_OK && x->flow == CJ_NORMAL; n = n->next) cj_exec(x, n);
}

/* ---- output that is kept ---------------------------------------------------------------------------------------- */

/* What `list` prints, as a string. */
static const cj_str *captured(cj_run *x, const cj_node *list) {
    cj_out own = {0}, *outer = x->out;
    x->out = &own;
    x->in_macro++; /* ranges of generation blocks cannot be told in here */
    exec_list(x, list);
    x->in_macro--;
    x->out = outer;
    return cj_out_take(x, &own);
}

cj_value cj_call_macro(cj_run *x, const cj_node *macro, const cj_args *args) {
    size_t frame = x->frame, floor = x->floor, binds = x->binds, i = 0;
    uint32_t line = x->line;
    cj_flow flow = x->flow;
    if (x->depth >= CJ_MAX_DEPTH - 8) return cj_error(x, TM_EUNSUPPORTED, "macros nested too deeply");
    x->depth += 8;
    for (const cj_node *p = macro->targets; p != NULL && x->rc == TM_OK; p = p->next, i++) {
        const cj_value *given = cj_arg(args, i, p->text);
        cj_value v = given != NULL ? *given : p->a != NULL ? cj_eval(x, p->a) : cj_undefined(p->text);
        if (i == 0) x->frame = x->floor = binds;
        (void)push(x, p->text, v);
    }
    if (i == 0) x->frame = x->floor = binds;
    x->flow = CJ_NORMAL;
    const cj_str *text = captured(x, macro->list);
    x->flow = flow;
    x->frame = frame;
    x->floor = floor;
    x->binds = binds;
    x->line = line;
    x->depth -= 8;
    return text == NULL ? cj_undefined(NULL) : (cj_value){.type = CJ_STRING, .str = text};
}

/* ---- statements ------------------------------------------------------------------------------------------------- */

static void assign_one(cj_run *x, const cj_node *target, cj_value v) {
    cj_value object;
    if (target->kind == CJ_NAME) {
        (void)cj_bind(x, target->text, v);
        return;
    }
    if (!cj_lookup(x, target->a->text, &object) || object.type != CJ_NAMESPACE) {
        (void)cj_error(x, TM_EINPUT, "only a namespace's attributes can be set, and '%s' is none", target->a->text);
        return;
    }
    cj_value key = cj_string(x, target->text, strlen(target->text));
    if (x->rc == TM_OK) (void)cj_dict_set(x, object.dict, key.str, v);
}

static void assign(cj_run *x, const cj_node *targets, cj_value v) {
    if (x->rc != TM_OK) return;
    if (targets->next == NULL) {
        assign_one(x, targets, v);
        return;
    }
    const cj_list *items = cj_items(x, v);
    size_t i = 0;
    for (const cj_node *t = targets; t != NULL && items != NULL; t = t->next, i++) {
        if (i < items->n)
            assign_one(x, t, items->v[i]);
        else
            (void)cj_error(x, TM_EINPUT, "too few values to unpack");
    }
    if (items != NULL && i < items->n) (void)cj_error(x, TM_EINPUT, "too many values to unpack");
}

static void exec_if(cj_run *x, const cj_node *node) {
    for (const cj_node *b = node->list; b != NULL && x->rc == TM_OK; b = b->next) {
        if (b->a != NULL && !cj_truth(x, cj_eval(x, b->a))) continue;
        if (x->rc == TM_OK) exec_list(x, b->list);
        return;
    }
}

/* The items that pass a loop's `if`. */
static const cj_list *filtered(cj_run *x, const cj_node *node, const cj_list *items) {
    if (node->b == NULL || items == NULL) return items;
    cj_value kept = cj_new_list(x, items->n);
    size_t n = 0;
    for (size_t i = 0; i < items->n && x->rc == TM_OK; i++) {
        size_t binds = x->binds, frame = x->frame;
        x->frame = binds;
        assign(x, node->targets, items->v[i]);
        if (cj_truth(x, cj_eval(x, node->b)) && x->rc == TM_OK) kept.list->v[n++] = items->v[i];
        x->binds = binds;
        x->frame = frame;
    }
    if (x->rc != TM_OK) return NULL;
    kept.list->n = n;
    return kept.list;
}

static void exec_for(cj_run *x, const cj_node *node) {
    cj_value over = cj_eval(x, node->a);
    const cj_list *items = x->rc == TM_OK ? filtered(x, node, cj_items(x, over)) : NULL;
    if (items == NULL) return;
    if (items->n == 0) {
        exec_list(x, node->other);
        return;
    }
    size_t binds = x->binds, frame = x->frame;
    cj_loop *loop = cj_alloc(x, sizeof *loop);
    for (size_t i = 0; i < items->n && x->rc == TM_OK && x->flow != CJ_BREAKING; i++) {
        *loop = (cj_loop){items, i};
        x->flow = CJ_NORMAL;
        x->binds = binds;
        x->frame = binds;
        (void)push(x, "loop", (cj_value){.type = CJ_LOOP, .loop = loop});
        assign(x, node->targets, items->v[i]);
        exec_list(x, node->list);
    }
    x->flow = CJ_NORMAL;
    x->binds = binds;
    x->frame = frame;
}

static void exec_generation(cj_run *x, const cj_node *node) {
    tm_chat_spans *spans = x->generated;
    size_t begin = x->out->text.len;
    bool outermost = x->in_generation++ == 0 && x->in_macro == 0;
    size_t binds = x->binds, frame = x->frame;
    x->frame = binds; /* in Jinja the block is a macro's body: what it sets does not leave it */
    exec_list(x, node->list);
    x->binds = binds;
    x->frame = frame;
    x->in_generation--;
    size_t end = x->out->text.len;
    if (x->rc != TM_OK || !outermost || end == begin) return;
    x->rc = tm_grow(&spans->span, &spans->cap, spans->n + 1, sizeof *spans->span);
    if (x->rc == TM_OK) spans->span[spans->n++] = (struct tm_chat_span){.begin = begin, .end = end};
}

static void exec_set(cj_run *x, const cj_node *node) {
    cj_value v = cj_undefined(NULL);
    if (node->a != NULL) {
        v = cj_eval(x, node->a);
    } else {
        const cj_str *text = captured(x, node->list);
        if (text != NULL) v = (cj_value){.type = CJ_STRING, .str = text};
    }
    assign(x, node->targets, v);
}

static void exec_node(cj_run *x, const cj_node *node) {
    switch (node->kind) {
    case CJ_DATA:
        (void)cj_out_put(x, x->out, node->str);
        break;
    case CJ_OUTPUT:
        (void)cj_out_put(x, x->out, cj_to_str(x, cj_defined(x, cj_eval(x, node->a))));
        break;
    case CJ_IF:
        exec_if(x, node);
        break;
    case CJ_FOR:
        exec_for(x, node);
        break;
    case CJ_SET:
        exec_set(x, node);
        break;
    case CJ_MACRO:
        (void)cj_bind(x, node->text, (cj_value){.type = CJ_MACRO_VALUE, .macro = node});
        break;
    case CJ_GENERATION:
        exec_generation(x, node);
        break;
    case CJ_BREAK:
        x->flow = CJ_BREAKING;
        break;
    case CJ_CONTINUE:
        x->flow = CJ_CONTINUING;
        break;
    default:
        (void)cj_error(x, TM_EBUG, "a statement of kind %d", (int)node->kind);
    }
}

void cj_exec(cj_run *x, const cj_node *node) {
    if (!cj_step(x, 1)) return;
    x->line = node->line;
    if (x->depth >= CJ_MAX_DEPTH) {
        (void)cj_error(x, TM_EUNSUPPORTED, "nested too deeply while running");
        return;
    }
    x->depth++;
    exec_node(x, node);
    x->depth--;
}

/* The chat's public calls: open a template, run it over a conversation, encode what it prints. */
#include "text/chat/chat_internal.h"
#include "text/chars.h"

static const char *const special_names[CJ_SPECIALS] = {"bos_token", "eos_token", "unk_token", "pad_token"};

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static tm_status set_special(tm_chat *c, size_t i, const char *text) {
    if (text == NULL) return TM_OK;
    tm_free(c->special[i]);
    c->special[i] = tm_strdup(text);
    return c->special[i] == NULL ? tm_nomem(strlen(text)) : TM_OK;
}

/* Each is a string, or an object with "content". */
static tm_status read_config(tm_chat *c, const tm_chat_opts *o) {
    tm_json_doc *doc;
    tm_status rc = TM_OK;
    if (o->tokenizer_config == NULL) return TM_OK;
    TM_TRY(tm_json_parse(&doc, o->tokenizer_config, o->tokenizer_config_len, "tokenizer_config.json",
                         TM_JSON_DUPLICATES_OK, 0));
    for (size_t i = 0; i < TM_COUNT(special_names) && rc == TM_OK; i++) {
        const tm_json *v = tm_json_get(tm_json_root(doc), special_names[i]);
        if (v != NULL && v->type == TM_JSON_OBJECT) v = tm_json_get(v, "content");
        if (v != NULL && v->type == TM_JSON_STRING) rc = set_special(c, i, v->text);
    }
    tm_json_free(doc);
    return rc;
}

static tm_status parse_template(tm_chat *c, const char *text, size_t len) {
    cj_lexer l = {.name = c->name, .arena = &c->arena};
    tm_status rc = cj_lex(&l, text, len);
    if (rc == TM_OK) rc = cj_parse(&l, &c->body, &c->has_generation);
    tm_free(l.source);
    tm_free(l.token);
    return rc;
}

void tm_chat_close(tm_chat *c) {
    if (c == NULL) return;
    cj_arena_free(&c->arena);
    tm_buf_free(&c->prompt);
    for (size_t i = 0; i < TM_COUNT(c->closing); i++) tm_buf_free(&c->closing[i]);
    for (size_t i = 0; i < c->n_ends; i++) tm_free(c->end[i]);
    tm_buf_free(&c->end_text);
    for (size_t i = 0; i < TM_COUNT(c->special); i++) tm_free(c->special[i]);
    tm_free(c->name);
    tm_free(c);
}

void tm_chat_spans_free(tm_chat_spans *spans) {
    tm_free(spans->span);
    *spans = (tm_chat_spans){0};
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static bool bind_string(cj_run *x, const char *name, const char *text) {
    if (text == NULL) return x->rc == TM_OK;
    cj_value v = cj_string(x, text, strlen(text));
    return x->rc == TM_OK && cj_bind(x, name, v);
}

static tm_status check_messages(const tm_chat *c, const tm_json *messages) {
    if (messages == NULL || messages->type != TM_JSON_ARRAY)
        return tm_fail(TM_EINPUT, "%s: the conversation has no array \"messages\"", c->name);
    if (messages->child == NULL) return tm_fail(TM_EINPUT, "%s: \"messages\" is empty", c->name);
    size_t i = 0;
    for (const tm_json *m = messages->child; m != NULL; m = m->next, i++) {
        const tm_json *role = tm_json_get(m, "role");
        if (m->type != TM_JSON_OBJECT || role == NULL || role->type != TM_JSON_STRING)
            return tm_fail(TM_EINPUT, "%s: messages[%zu] is no object with a \"role\"", c->name, i);
    }
    return TM_OK;
}

/* What a run is about: messages, and what the template may ask for beside them. */
typedef struct context {
    const tm_json *messages, *tools, *documents, *variables;
    cj_wish wish;
    tm_json_doc *parsed_tools; /* where they came as text */
} context;

static const tm_json *given(const tm_json *conversation, const char *name) {
    const tm_json *v = tm_json_get(conversation, name);
    return v == NULL || v->type == TM_JSON_NULL ? NULL : v;
}

static tm_status bad_tools(const tm_chat *c) {
    tm_error failure = *tm_error_get();
    tm_error_clear();
    return tm_fail(failure.code, "%s: \"tools\" is a string that is no JSON of a list: %.400s", c->name, failure.text);
}

/* Many data sets hold "tools" as JSON in a string. */
static tm_status read_tools(const tm_chat *c, context *k) {
    if (k->tools != NULL && k->tools->type == TM_JSON_STRING) {
        size_t room = (size_t)tm_min_u64(16 * (uint64_t)k->tools->len + 64 * TM_KIB, 4 * TM_MIB);
        const char *text = k->tools->text;
        size_t len = k->tools->len;
        k->tools = NULL;
        if (len == 0) return TM_OK;
        if (tm_json_parse(&k->parsed_tools, text, len, "tools", TM_JSON_DUPLICATES_OK, room) != TM_OK)
            return bad_tools(c);
        k->tools = tm_json_root(k->parsed_tools);
        if (k->tools->type == TM_JSON_NULL) k->tools = NULL;
    }
    if (k->tools != NULL && k->tools->type != TM_JSON_ARRAY)
        return tm_fail(TM_EINPUT, "%s: \"tools\" is no list of functions", c->name);
    return TM_OK;
}

static tm_status check_variables(const tm_chat *c, const tm_json *variables) {
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt"};
    if (variables == NULL) return TM_OK;
    if (variables->type != TM_JSON_OBJECT)
        return tm_fail(TM_EINPUT, "%s: \"chat_template_kwargs\" is no object", c->name);
    for (const tm_json *v = variables->child; v != NULL; v = v->next)
        for (size_t i = 0; i < TM_COUNT(own); i++)
            if (strcmp(v->key, own[i]) == 0)
                return tm_fail(TM_EINPUT, "%s: \"chat_template_kwargs\" may not set \"%s\"", c->name, own[i]);
    return TM_OK;
}

static tm_status read_context(const tm_chat *c, const tm_json *conversation, context *k) {
    bool bare = conversation == NULL || conversation->type != TM_JSON_OBJECT;
    k->messages = bare ? conversation : tm_json_get(conversation, "messages");
    TM_TRY(check_messages(c, k->messages));
    if (bare) return TM_OK;
    k->tools = given(conversation, "tools");
    k->documents = given(conversation, "documents");
    k->variables = given(conversation, "chat_template_kwargs");
    TM_TRY(check_variables(c, k->variables));
    return read_tools(c, k);
}

static void bind_json(cj_run *x, const char *name, const tm_json *node) {
    cj_value v = node == NULL ? (cj_value){.type = CJ_NONE} : cj_from_json(x, node, 0);
    if (x->rc == TM_OK) (void)cj_bind(x, name, v);
}

static void bind_context(const tm_chat *c, cj_run *x, const context *k) {
    cj_value list = cj_from_json(x, k->messages, 0);
    if (x->rc != TM_OK) return;
    list.list->messages = true;
    (void)cj_bind(x, "messages", list);
    (void)cj_bind(x, "add_generation_prompt", cj_bool(k->wish.generation_prompt));
    bind_json(x, "tools", k->tools);
    bind_json(x, "documents", k->documents);
    for (size_t i = 0; i < TM_COUNT(special_names); i++) (void)bind_string(x, special_names[i], c->special[i]);
    if (k->wish.thinking != TM_CHAT_THINKING_UNSAID)
        (void)cj_bind(x, "enable_thinking", cj_bool(k->wish.thinking == TM_CHAT_THINKING_ON));
    for (const tm_json *v = k->variables == NULL ? NULL : k->variables->child; v != NULL && x->rc == TM_OK; v = v->next)
        bind_json(x, v->key, v);
}

static tm_status run(const tm_chat *c, const context *k, tm_buf *text, tm_chat_spans *turns, size_t *mark_end) {
    cj_out out = {0};
    tm_chat_spans blocks = {0};
    cj_run x = {
        .name = c->name, .now = c->now, .most_bytes = c->most_bytes, .out = &out, .generated = &blocks, .line = 1};
    bind_context(c, &x, k);
    for (const cj_node *n = c->body; n != NULL && x.rc == TM_OK; n = n->next) {
        cj_exec(&x, n);
        x.flow = CJ_NORMAL;
    }
    tm_status rc = x.rc;
    for (size_t i = 0; i < out.marks && mark_end != NULL; i++) *mark_end = tm_max_u64(*mark_end, out.mark[i].end);
    if (rc == TM_OK && turns != NULL) rc = cj_turns(c, k->messages, &out, &blocks, turns);
    if (rc == TM_OK && out.text.len > 0) rc = tm_buf_append(text, out.text.data, out.text.len);
    cj_out_free(&out);
    tm_chat_spans_free(&blocks);
    cj_arena_free(&x.arena);
    tm_free(x.bind);
    return rc;
}

tm_status cj_render(const tm_chat *c, const tm_json *conversation, const cj_wish *wish, tm_buf *text,
                    tm_chat_spans *turns, size_t *mark_end) {
    context k = {.wish = *wish};
    tm_status rc = read_context(c, conversation, &k);
    if (rc == TM_OK) rc = run(c, &k, text, turns, mark_end);
    tm_json_free(k.parsed_tools);
    return rc;
}

tm_status tm_chat_render(const tm_chat *c, const tm_json *conversation, bool generation_prompt, tm_buf *text,
                         tm_chat_spans *assistant) {
    tm_chat_spans turns = {0};
    size_t before = text->len, kept = 0;
    tm_status rc;
    TM_GO(cj_render(c, conversation, &(cj_wish){.generation_prompt = generation_prompt}, text,
                    assistant == NULL ? NULL : &turns, NULL));
    for (size_t i = 0; i < turns.n; i++)
        if (turns.span[i].assistant) turns.span[kept++] = turns.span[i];
    turns.n = kept;
    if (kept > 0) TM_GO(tm_grow(&assistant->span, &assistant->cap, assistant->n + kept, sizeof *assistant->span));
    if (kept > 0) memcpy(assistant->span + assistant->n, turns.span, kept * sizeof *turns.span);
    if (kept > 0) assistant->n += kept;
done:
    if (rc != TM_OK) text->len = before;
    tm_chat_spans_free(&turns);
    return rc;
}

tm_status tm_chat_open(tm_chat **out, const tm_tokenizer *t, const char *template_text, size_t len, const char *name,
                       const tm_chat_opts *opts) {
    *out = NULL;
    tm_chat *c = tm_calloc(1, sizeof *c);
    if (c == NULL) return tm_nomem(sizeof *c);
    tm_status rc = TM_OK;
    c->tokenizer = t;
    c->now = opts == NULL ? 0 : opts->now;
    c->most_bytes = opts == NULL ? 0 : opts->memory_bytes;
    c->name = tm_strdup(name);
    if (c->name == NULL) TM_GO(tm_nomem(strlen(name)));
    if (opts != NULL) {
        TM_GO(read_config(c, opts));
        TM_GO(set_special(c, CJ_BOS, opts->bos_token));
        TM_GO(set_special(c, CJ_EOS, opts->eos_token));
    }
    TM_GO(parse_template(c, template_text, len));
    TM_GO(cj_learn_turns(c));
done:
    if (rc == TM_OK)
        *out = c;
    else
        tm_chat_close(c);
    return rc;
}

/* ---- encoding --------------------------------------------------------------------------------------------------- */

/* Sets the flag of each token of which a byte, or the place where it was put in, lies in a turn that is learned, or is
 * not, as `learned` says. Both lists ascend. */
static void flag_tokens(const tm_buf *tokens, const tm_chat_spans *turns, bool learned, char *mask) {
    size_t n = tokens->len / sizeof(tm_token_span), s = 0;
    for (size_t i = 0; i < n; i++) {
        tm_token_span t;
        memcpy(&t, tokens->data + i * sizeof t, sizeof t);
        size_t end = t.end > t.begin ? t.end : (size_t)t.begin + 1;
        while (s < turns->n && (turns->span[s].end <= t.begin || turns->span[s].learned != learned)) s++;
        if (s < turns->n && turns->span[s].begin < end) mask[i] = learned;
    }
}

static tm_status make_mask(const tm_buf *tokens, const tm_chat_spans *turns, bool inputs, tm_buf *mask) {
    size_t n = tokens->len / sizeof(tm_token_span);
    TM_TRY(tm_buf_reserve(mask, n + 1));
    memset(mask->data, inputs, n);
    mask->len = n;
    if (inputs) flag_tokens(tokens, turns, false, mask->data);
    flag_tokens(tokens, turns, true, mask->data);
    return TM_OK;
}

tm_status tm_chat_encode_labels(const tm_chat *c, const tm_json *conversation, const tm_chat_labels *how, tm_buf *text,
                                tm_ids *ids, tm_buf *loss_mask) {
    tm_buf rendered = {0}, tokens = {0}, mask = {0};
    tm_chat_spans turns = {0};
    const cj_wish wish = {.thinking = how->thinking, .generation_prompt = how->generation_prompt};
    tm_status rc;
    TM_GO(cj_render(c, conversation, &wish, &rendered, loss_mask == NULL ? NULL : &turns, NULL));
    const char *data = rendered.data == NULL ? "" : rendered.data;
    const tm_json *messages =
        conversation->type == TM_JSON_OBJECT ? tm_json_get(conversation, "messages") : conversation;
    TM_GO(tm_tokenizer_encode_offsets(c->tokenizer, data, rendered.len, false, ids, &tokens));
    if (loss_mask != NULL) {
        TM_GO(cj_learned(c, messages, how, data, &turns));
        TM_GO(make_mask(&tokens, &turns, how->train_on_inputs, &mask));
        TM_GO(tm_buf_reserve(loss_mask, mask.len));
    }
    if (text != NULL) TM_GO(tm_buf_append(text, data, rendered.len)); /* from here on nothing fails */
    if (mask.len > 0) rc = tm_buf_append(loss_mask, mask.data, mask.len);
done:
    tm_buf_free(&mask);
    tm_buf_free(&rendered);
    tm_buf_free(&tokens);
    tm_chat_spans_free(&turns);
    return rc;
}

tm_status tm_chat_encode(const tm_chat *c, const tm_json *conversation, bool generation_prompt, tm_buf *text,
                         tm_ids *ids, tm_buf *loss_mask) {
    const tm_chat_labels how = {.generation_prompt = generation_prompt};
    return tm_chat_encode_labels(c, conversation, &how, text, ids, loss_mask);
}

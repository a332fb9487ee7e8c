/* Opens what turns text into ids. */
#include "session/text.h"

static tm_status side_file(const tm_source *source, const char *name, tm_buf *out, bool *found) {
    *found = false;
    return tm_source_file(source, name, out, found);
}

static void add_eos(text_tools *t, const tm_json *node) {
    if (!node) return;
    for (const tm_json *e = node->type == TM_JSON_ARRAY ? node->child : node; e;
         e = node->type == TM_JSON_ARRAY ? e->next : NULL) {
        bool known = !(e->type == TM_JSON_NUMBER && e->is_integer && e->integer >= 0 && e->integer <= INT32_MAX);
        for (uint32_t i = 0; i < t->n_eos && !known; i++) known = t->eos[i] == e->integer;
        if (!known && t->n_eos < TM_COUNT(t->eos)) t->eos[t->n_eos++] = (int32_t)e->integer;
    }
}

static tm_status read_eos(text_tools *t, const char *json, size_t len, const char *name) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, json, len, name, 0, 0));
    add_eos(t, tm_json_get(tm_json_root(doc), "eos_token_id"));
    tm_json_free(doc);
    return TM_OK;
}

static tm_status open_tokenizer(text_tools *t, const tm_source *source) {
    tm_buf json = {0};
    bool found;
    tm_status rc;
    TM_GO(side_file(source, "tokenizer.json", &json, &found));
    if (found) {
        t->hash = tm_hash64(json.data, json.len, t->hash);
        t->bytes += 2 * json.len; /* measured with 49 k words */
        tm_mem_source mem = {.data = json.data, .len = json.len};
        TM_GO(tm_tokenizer_open(&t->tokenizer, tm_mem_source_read, &mem, "tokenizer.json"));
    }
done:
    tm_buf_free(&json);
    return rc;
}

/* The tokenizer's own, as TRL appends it. A model may stop at several, of which the first need not be this one. */
static tm_status find_end(text_tools *t, const tm_buf *config) {
    tm_json_doc *doc;
    t->end = t->n_eos ? t->eos[0] : -1;
    if (!t->tokenizer || !config->len) return TM_OK;
    TM_TRY(tm_json_parse(&doc, config->data, config->len, "tokenizer_config.json", TM_JSON_DUPLICATES_OK, 0));
    const tm_json *token = tm_json_get(tm_json_root(doc), "eos_token");
    if (token && token->type == TM_JSON_OBJECT) token = tm_json_get(token, "content");
    int32_t id = token && token->type == TM_JSON_STRING ? tm_tokenizer_token_id(t->tokenizer, token->text) : -1;
    if (id >= 0) t->end = id;
    tm_json_free(doc);
    return TM_OK;
}

static tm_status open_chat(text_tools *t, const tm_source *source, const tm_buf *config, uint64_t host_bytes) {
    tm_buf text = {0};
    bool found;
    tm_status rc;
    TM_GO(side_file(source, "chat_template.jinja", &text, &found));
    if (!found || !t->tokenizer) goto done;
    t->hash = tm_hash64(text.data, text.len, t->hash);
    t->bytes += 8 * text.len;
    if (config->len) t->hash = tm_hash64(config->data, config->len, t->hash);
    tm_chat_opts opts = {.tokenizer_config = config->len ? config->data : NULL,
                         .tokenizer_config_len = config->len,
                         .memory_bytes = host_bytes / 4};
    TM_GO(tm_chat_open(&t->chat, t->tokenizer, text.data, text.len, "chat_template.jinja", &opts));
done:
    tm_buf_free(&text);
    return rc;
}

tm_status text_open(text_tools *out, const tm_source *source, uint64_t host_bytes) {
    tm_buf generation = {0}, of_tokenizer = {0};
    bool found;
    size_t len;
    const char *config = tm_source_config(source, &len);
    tm_status rc;
    *out = (text_tools){0};
    TM_GO(side_file(source, "generation_config.json", &generation, &found));
    if (found) TM_GO(read_eos(out, generation.data, generation.len, "generation_config.json"));
    TM_GO(read_eos(out, config, len, "config.json"));
    TM_GO(open_tokenizer(out, source));
    TM_GO(side_file(source, "tokenizer_config.json", &of_tokenizer, &found));
    TM_GO(find_end(out, &of_tokenizer));
    TM_GO(open_chat(out, source, &of_tokenizer, host_bytes));
done:
    tm_buf_free(&generation);
    tm_buf_free(&of_tokenizer);
    if (rc != TM_OK) text_close(out);
    return rc;
}

void text_close(text_tools *t) {
    tm_chat_close(t->chat);
    tm_tokenizer_close(t->tokenizer);
    *t = (text_tools){0};
}

/* tokenizer.ggml.* of a GGUF file, from the tokenizer files of a model. */
#include "format/hf_tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct sides { /* small files beside tokenizer.json, parsed; NULL where absent */
    tm_json_doc *tokenizer_config, *generation, *config;
} sides;

static tm_status parse_side(const tm_source *src, const char *name, tm_json_doc **doc) {
    tm_buf text = {0};
    bool found;
    tm_status rc = tm_source_file(src, name, &text, &found);
    if (rc == TM_OK && found) rc = tm_json_parse(doc, text.data, text.len, name, 0, 0);
    tm_buf_free(&text);
    return rc;
}

static const tm_json *root(const tm_json_doc *doc) {
    return doc ? tm_json_root(doc) : NULL;
}

/* "eos_token": "</s>" or {"content": "</s>", ...} */
static int64_t id_by_text(const hf_tokenizer *t, const sides *s, const char *key) {
    const tm_json *v = tm_json_get(root(s->tokenizer_config), key);
    if (v && v->type == TM_JSON_OBJECT) v = tm_json_get(v, "content");
    return v && v->type == TM_JSON_STRING ? hf_tokenizer_find(t, v->text) : -1;
}

static void add_id(const hf_tokenizer *t, int64_t id, int64_t ids[4], uint32_t *n) {
    for (uint32_t i = 0; i < *n; i++)
        if (ids[i] == id) return;
    if (id >= 0 && id < t->n && *n < 4) ids[(*n)++] = id;
}

static void add_ids(const hf_tokenizer *t, const tm_json *v, int64_t ids[4], uint32_t *n) {
    if (v && v->type == TM_JSON_NUMBER && v->is_integer) add_id(t, v->integer, ids, n);
    if (v && v->type == TM_JSON_ARRAY)
        for (const tm_json *e = v->child; e; e = e->next)
            if (e->type == TM_JSON_NUMBER && e->is_integer) add_id(t, e->integer, ids, n);
}

/* The tokenizer's own word first, then the configurations'. */
static void put_ids(tm_gguf_writer *w, const hf_tokenizer *t, const sides *s) {
    static const struct {
        const char *token, *id, *gguf[3];
    } rows[] = {{"bos_token", "bos_token_id", {"bos_token_id"}},
                {"eos_token", "eos_token_id", {"eos_token_id", "eot_token_id", "eom_token_id"}},
                {"unk_token", "unk_token_id", {"unknown_token_id"}},
                {"pad_token", "pad_token_id", {"padding_token_id"}}};
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        int64_t ids[4];
        uint32_t n = 0;
        add_id(t, id_by_text(t, s, rows[i].token), ids, &n);
        if (i == 2 && !n && t->unk.data) add_id(t, hf_tokenizer_find(t, t->unk.data), ids, &n);
        add_ids(t, tm_json_get(root(s->generation), rows[i].id), ids, &n);
        add_ids(t, tm_json_get(root(s->config), rows[i].id), ids, &n);
        for (uint32_t k = 0; k < n && k < 3 && rows[i].gguf[k]; k++) {
            char key[64];
            snprintf(key, sizeof key, "tokenizer.ggml.%s", rows[i].gguf[k]);
            tm_gguf_put_u32(w, key, (uint32_t)ids[k]);
        }
    }
}

static void put_tokens(tm_gguf_writer *w, const hf_tokenizer *t) {
    tm_gguf_put_array(w, "tokenizer.ggml.tokens", TM_GGUF_STRING, t->n);
    for (uint32_t i = 0; i < t->n; i++) {
        char pad[24]; /* rows of the embedding that no token has */
        int n = snprintf(pad, sizeof pad, "[PAD%u]", i);
        if (t->token[i].type)
            tm_gguf_item_string(w, t->text.data + t->token[i].at, t->token[i].len);
        else
            tm_gguf_item_string(w, pad, (size_t)n);
    }
    tm_gguf_put_array(w, "tokenizer.ggml.token_type", TM_GGUF_I32, t->n);
    for (uint32_t i = 0; i < t->n; i++) {
        int32_t type = t->token[i].type ? t->token[i].type : TM_TOKEN_UNUSED;
        tm_gguf_item_bytes(w, &type, 4);
    }
    if (t->split) return;
    tm_gguf_put_array(w, "tokenizer.ggml.scores", TM_GGUF_F32, t->n);
    for (uint32_t i = 0; i < t->n; i++) tm_gguf_item_bytes(w, &t->token[i].score, 4);
}

static void put_merges(tm_gguf_writer *w, const hf_tokenizer *t) {
    const char *m = t->merges.data;
    tm_gguf_put_array(w, "tokenizer.ggml.merges", TM_GGUF_STRING, t->n_merges);
    for (uint64_t i = 0; i < t->n_merges; i++, m += strlen(m) + 1) tm_gguf_item_string(w, m, strlen(m));
}

static void put_all(tm_gguf_writer *w, const hf_tokenizer *t, const sides *s) {
    const char *model = t->split ? "gpt2" : "llama", *pre = t->split ? t->split->pre : "default";
    tm_gguf_put_string(w, "tokenizer.ggml.model", model, strlen(model));
    tm_gguf_put_string(w, "tokenizer.ggml.pre", pre, strlen(pre));
    put_tokens(w, t);
    put_merges(w, t);
    put_ids(w, t, s);
    tm_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", t->add_prefix);
    tm_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", t->add_bos);
    tm_gguf_put_bool(w, "tokenizer.ggml.add_eos_token", t->add_eos);
}

static tm_status put_chat_template(tm_gguf_writer *w, const tm_source *src) {
    tm_buf text = {0};
    bool found;
    tm_status rc = tm_source_file(src, "chat_template.jinja", &text, &found);
    if (rc == TM_OK && found) tm_gguf_put_string(w, "tokenizer.chat_template", text.data ? text.data : "", text.len);
    tm_buf_free(&text);
    return rc;
}

tm_status tm_gguf_put_vocabulary(tm_gguf_writer *w, const tm_source *src, uint32_t vocab_size) {
    tm_buf json = {0};
    hf_tokenizer t = {0};
    sides s = {0};
    bool found;
    tm_status rc;
    TM_GO(tm_source_file(src, "tokenizer.json", &json, &found));
    if (!found) {
        tm_log(TM_LOG_WARN, "%s: has no tokenizer.json; the GGUF file will have no vocabulary", tm_source_path(src));
        tm_gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
        goto done;
    }
    TM_GO(hf_tokenizer_read(&t, &json, "tokenizer.json", vocab_size));
    TM_GO(parse_side(src, "tokenizer_config.json", &s.tokenizer_config));
    TM_GO(parse_side(src, "generation_config.json", &s.generation));
    TM_GO(parse_side(src, "config.json", &s.config));
    put_all(w, &t, &s);
    rc = put_chat_template(w, src);
done:
    tm_json_free(s.tokenizer_config);
    tm_json_free(s.generation);
    tm_json_free(s.config);
    hf_tokenizer_free(&t);
    tm_buf_free(&json);
    return rc;
}

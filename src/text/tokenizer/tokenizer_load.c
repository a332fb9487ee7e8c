/* Reading tokenizer.json: one pass over the streamed file. The vocabulary and the merges go straight into their tables;
 * the small sections are collected as trees and read by the file that runs them. */
#include "text/tokenizer/tokenizer_internal.h"

enum { SECTION_MAX = 8 << 20 };

/* Collects the value of the KEY that was just read. */
static tm_status capture(tm_json_reader *r, const char *name, tm_json_doc **doc) {
    tm_buf text = {0};
    tm_json_writer w;
    tm_json_event e;
    tm_status rc;
    unsigned depth = 0;
    tm_jw_init(&w, &text, 0);
    do {
        TM_GO(tm_json_next(r, &e));
        switch (e.type) {
        case TM_JSON_OBJECT:
            tm_jw_object(&w), depth++;
            break;
        case TM_JSON_ARRAY:
            tm_jw_array(&w), depth++;
            break;
        case TM_JSON_OBJECT_END:
            tm_jw_object_end(&w), depth--;
            break;
        case TM_JSON_ARRAY_END:
            tm_jw_array_end(&w), depth--;
            break;
        case TM_JSON_KEY:
            tm_jw_key(&w, e.text);
            break;
        case TM_JSON_STRING:
            tm_jw_strn(&w, e.text, e.len);
            break;
        case TM_JSON_NUMBER:
            tm_jw_raw(&w, e.text, e.len);
            break;
        case TM_JSON_BOOL:
            tm_jw_bool(&w, e.boolean);
            break;
        default:
            tm_jw_null(&w);
            break;
        }
        if (text.len > SECTION_MAX)
            TM_GO(tm_fail(TM_EUNSUPPORTED, "%s:%u: a section of more than 8 MiB beside vocabulary and merges", name,
                          e.line));
    } while (depth > 0 || e.type == TM_JSON_KEY);
    TM_GO(tm_jw_end(&w));
    TM_GO(tm_json_parse(doc, text.data, text.len, name, 0, 0));
done:
    tm_buf_free(&text);
    return rc;
}

/* ---- added tokens ----------------------------------------------------------------------------------------------- */

static void set_flag(tk_added *token, const char *key, bool value) {
    if (strcmp(key, "special") == 0) token->special = value;
    if (strcmp(key, "lstrip") == 0) token->lstrip = value;
    if (strcmp(key, "rstrip") == 0) token->rstrip = value;
    if (strcmp(key, "single_word") == 0) token->single_word = value;
    if (strcmp(key, "normalized") == 0) token->normalized = value;
}

/* One object of "added_tokens", its opening brace read. */
static tm_status load_added(tm_tokenizer *t, tm_json_reader *r) {
    tk_added token = {.id = -1};
    tm_buf content = {0};
    char key[32] = "";
    tm_json_event e;
    tm_status rc;
    for (;;) {
        TM_GO(tm_json_next(r, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        if (e.type == TM_JSON_KEY) {
            (void)memset(key, 0, sizeof key);
            memcpy(key, e.text, e.len < sizeof key ? e.len : 0);
        } else if (e.type == TM_JSON_BOOL) {
            set_flag(&token, key, e.boolean);
        } else if (e.type == TM_JSON_NUMBER && strcmp(key, "id") == 0 && e.is_integer) {
            token.id = e.integer >= 0 && e.integer < TK_MAX_ID ? (int32_t)e.integer : -1;
        } else if (e.type == TM_JSON_STRING && strcmp(key, "content") == 0) {
            TM_GO(tm_buf_append(&content, e.text, e.len));
        } else {
            TM_GO(tm_json_skip(r, &e));
        }
    }
    if (token.id < 0) TM_GO(tm_fail(TM_EINPUT, "%s:%u: an added token without a usable \"id\"", t->name, e.line));
    TM_GO(tk_added_put(&t->added, content.data == NULL ? "" : content.data, content.len, token));
done:
    tm_buf_free(&content);
    return rc;
}

static tm_status load_added_tokens(tm_tokenizer *t, tm_json_reader *r) {
    tm_json_event e;
    TM_TRY(tm_json_next(r, &e));
    if (e.type == TM_JSON_NULL) return TM_OK;
    if (e.type != TM_JSON_ARRAY) return tm_fail(TM_EINPUT, "%s:%u: \"added_tokens\" is no array", t->name, e.line);
    for (;;) {
        TM_TRY(tm_json_next(r, &e));
        if (e.type == TM_JSON_ARRAY_END) return TM_OK;
        if (e.type != TM_JSON_OBJECT) return tm_fail(TM_EINPUT, "%s:%u: an added token is no object", t->name, e.line);
        TM_TRY(load_added(t, r));
    }
}

/* ---- model ------------------------------------------------------------------------------------------------------ */

static tm_status load_vocab(tm_tokenizer *t, tm_json_reader *r) {
    tm_json_event e;
    tm_buf name = {0};
    tm_status rc;
    TM_GO(tm_json_next(r, &e));
    if (e.type != TM_JSON_OBJECT)
        TM_GO(tm_fail(TM_EUNSUPPORTED, "%s:%u: this vocabulary is not that of a BPE model", t->name, e.line));
    for (;;) {
        TM_GO(tm_json_next(r, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        tm_buf_clear(&name);
        TM_GO(tm_buf_append(&name, e.text, e.len));
        TM_GO(tm_json_next(r, &e));
        if (e.type != TM_JSON_NUMBER || !e.is_integer || e.integer < 0 || e.integer >= TK_MAX_ID)
            TM_GO(tm_fail(TM_EINPUT, "%s:%u: the id of token \"%.64s\" is no integer in 0..%d", t->name, e.line,
                          name.data, TK_MAX_ID - 1));
        TM_GO(tk_vocab_put(&t->bpe.vocab, name.data, name.len, (int32_t)e.integer));
    }
done:
    tm_buf_free(&name);
    return rc;
}

/* "a b": exactly one space. */
static tm_status load_merge_string(tm_tokenizer *t, const tm_json_event *e) {
    const char *space = memchr(e->text, ' ', e->len);
    size_t left = space == NULL ? 0 : (size_t)(space - e->text);
    if (space == NULL || memchr(space + 1, ' ', e->len - left - 1) != NULL)
        return tm_fail(TM_EINPUT, "%s:%u: merge \"%.64s\" is not of the form \"left right\"", t->name, e->line,
                       e->text);
    return tk_bpe_merge_put(&t->bpe, e->text, left, space + 1, e->len - left - 1);
}

/* ["a", "b"], the bracket read. */
static tm_status load_merge_pair(tm_tokenizer *t, tm_json_reader *r, tm_buf *left) {
    tm_json_event e;
    TM_TRY(tm_json_next(r, &e));
    if (e.type == TM_JSON_STRING) {
        tm_buf_clear(left);
        TM_TRY(tm_buf_append(left, e.text, e.len));
        TM_TRY(tm_json_next(r, &e));
        if (e.type == TM_JSON_STRING) {
            TM_TRY(tk_bpe_merge_put(&t->bpe, left->data, left->len, e.text, e.len));
            TM_TRY(tm_json_next(r, &e));
            if (e.type == TM_JSON_ARRAY_END) return TM_OK;
        }
    }
    return tm_fail(TM_EINPUT, "%s:%u: a merge is not a pair of strings", t->name, e.line);
}

static tm_status load_merges(tm_tokenizer *t, tm_json_reader *r) {
    tm_json_event e;
    tm_buf left = {0};
    tm_status rc;
    TM_GO(tm_json_next(r, &e));
    if (e.type != TM_JSON_ARRAY) TM_GO(tm_fail(TM_EINPUT, "%s:%u: \"merges\" is no array", t->name, e.line));
    for (;;) {
        TM_GO(tm_json_next(r, &e));
        if (e.type == TM_JSON_ARRAY_END) break;
        if (e.type == TM_JSON_STRING && e.len >= 9 && memcmp(e.text, "#version:", 9) == 0 && t->bpe.pending_n == 0)
            continue;
        if (e.type == TM_JSON_STRING)
            TM_GO(load_merge_string(t, &e));
        else if (e.type == TM_JSON_ARRAY)
            TM_GO(load_merge_pair(t, r, &left));
        else
            TM_GO(tm_fail(TM_EINPUT, "%s:%u: a merge is neither a string nor a pair", t->name, e.line));
    }
done:
    tm_buf_free(&left);
    return rc;
}

static tm_status set_string(char **out, const tm_json_event *e) {
    if (e->type != TM_JSON_STRING || e->len == 0) return TM_OK;
    tm_free(*out);
    *out = tm_strndup(e->text, e->len);
    return *out == NULL ? tm_nomem(e->len) : TM_OK;
}

static tm_status load_model_value(tm_tokenizer *t, tm_json_reader *r, const char *key) {
    tk_bpe *m = &t->bpe;
    if (strcmp(key, "vocab") == 0) return load_vocab(t, r);
    if (strcmp(key, "merges") == 0) return load_merges(t, r);
    tm_json_event e;
    TM_TRY(tm_json_next(r, &e));
    if (strcmp(key, "type") == 0 && (e.type != TM_JSON_STRING || strcmp(e.text, "BPE") != 0))
        return tm_fail(TM_EUNSUPPORTED, "%s:%u: a \"%.32s\" tokenizer; only BPE is supported", t->name, e.line,
                       e.type == TM_JSON_STRING ? e.text : "?");
    if (strcmp(key, "byte_fallback") == 0) m->byte_fallback = e.boolean;
    if (strcmp(key, "fuse_unk") == 0) m->fuse_unk = e.boolean;
    if (strcmp(key, "ignore_merges") == 0) m->ignore_merges = e.boolean;
    if (strcmp(key, "unk_token") == 0) TM_TRY(set_string(&m->unk_token, &e));
    if (strcmp(key, "continuing_subword_prefix") == 0) TM_TRY(set_string(&m->prefix, &e));
    if (strcmp(key, "end_of_word_suffix") == 0) TM_TRY(set_string(&m->suffix, &e));
    if (strcmp(key, "dropout") == 0 && e.type == TM_JSON_NUMBER && e.number > 0)
        tm_warn_once("bpe dropout", "%s: BPE dropout %.64s is not applied", t->name, e.text);
    return tm_json_skip(r, &e);
}

static tm_status load_model(tm_tokenizer *t, tm_json_reader *r) {
    tm_json_event e;
    char key[40];
    TM_TRY(tm_json_next(r, &e));
    if (e.type != TM_JSON_OBJECT) return tm_fail(TM_EINPUT, "%s:%u: \"model\" is no object", t->name, e.line);
    for (;;) {
        TM_TRY(tm_json_next(r, &e));
        if (e.type == TM_JSON_OBJECT_END) return TM_OK;
        (void)memset(key, 0, sizeof key);
        memcpy(key, e.text, e.len < sizeof key ? e.len : 0);
        TM_TRY(load_model_value(t, r, key));
    }
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static tm_status load_section(tm_tokenizer *t, const char *key, const tm_json *node) {
    if (strcmp(key, "normalizer") == 0) return tk_normalizer_parse(&t->normalizer, node, t->name);
    if (strcmp(key, "pre_tokenizer") == 0) return tk_pretokenizer_parse(&t->pretokenizer, node, t->name);
    if (strcmp(key, "post_processor") == 0) return tk_postprocessor_parse(t, node);
    return tk_decoder_parse(&t->decoder, node, t->name);
}

static tm_status load_key(tm_tokenizer *t, tm_json_reader *r, const char *key, bool *model) {
    static const char *const sections[] = {"normalizer", "pre_tokenizer", "post_processor", "decoder"};
    if (strcmp(key, "added_tokens") == 0) return load_added_tokens(t, r);
    if (strcmp(key, "model") == 0) return *model = true, load_model(t, r);
    for (size_t i = 0; i < TM_COUNT(sections); i++) {
        if (strcmp(key, sections[i]) != 0) continue;
        tm_json_doc *doc = NULL;
        TM_TRY(capture(r, t->name, &doc));
        tm_status rc = load_section(t, sections[i], tm_json_root(doc));
        tm_json_free(doc);
        return rc;
    }
    tm_json_event e;
    TM_TRY(tm_json_next(r, &e));
    return tm_json_skip(r, &e);
}

/* A token that the model has keeps the model's id, whatever "added_tokens" says: so does the reference. */
static void settle_added_ids(tm_tokenizer *t) {
    for (size_t i = 0; i < t->added.n; i++) {
        size_t len;
        const char *content = tk_vocab_name(&t->added.index, (int32_t)i, &len);
        int32_t id = tk_vocab_find(&t->bpe.vocab, content, len);
        if (id >= 0) t->added.token[i].id = id;
    }
}

tm_status tk_load(tm_tokenizer *t, tm_read_fn read, void *ctx) {
    tm_json_reader *r;
    tm_json_event e;
    bool model = false;
    tm_status rc;
    TM_TRY(tm_json_reader_open(&r, read, ctx, t->name, 0, 0));
    TM_GO(tm_json_next(r, &e));
    if (e.type != TM_JSON_OBJECT) TM_GO(tm_fail(TM_EINPUT, "%s:%u: a tokenizer.json is an object", t->name, e.line));
    for (;;) {
        TM_GO(tm_json_next(r, &e));
        if (e.type == TM_JSON_OBJECT_END) break;
        char key[32] = "";
        memcpy(key, e.text, e.len < sizeof key ? e.len : 0);
        TM_GO(load_key(t, r, key, &model));
    }
    TM_GO(tm_json_next(r, &e)); /* nothing may follow */
    if (!model) TM_GO(tm_fail(TM_EINPUT, "%s: there is no \"model\"; this is no tokenizer.json", t->name));
    TM_GO(tk_bpe_finish(&t->bpe, t->name));
    settle_added_ids(t);
    TM_GO(tk_added_finish(&t->added, &t->normalizer));
done:
    tm_json_reader_close(r);
    return rc;
}

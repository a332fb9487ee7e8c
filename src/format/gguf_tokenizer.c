/* tokenizer.json out of a GGUF file's vocabulary, in the form that the `tokenizers` library writes.
 *
 * Tokens are streamed, twice: once for added_tokens, once for the vocabulary. Only a SentencePiece vocabulary without
 * merges is held in memory, because its merges have to be found (spm_merges.c). */
#include "format/vocab_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static tm_status string_or(const tm_gguf *g, const char *key, const char *fallback, tm_buf *out) {
    bool found;
    TM_TRY(tm_gguf_string(g, key, 256, out, &found));
    return found ? TM_OK : tm_buf_append(out, fallback, strlen(fallback));
}

/* The vocabulary's arrays, checked against each other. types and scores may be NULL. */
static tm_status find_arrays(tm_vocabulary *v) {
    const tm_gguf *g = v->gguf;
    v->tokens = tm_gguf_kv_find(g, "tokenizer.ggml.tokens");
    v->types = tm_gguf_kv_find(g, "tokenizer.ggml.token_type");
    v->scores = tm_gguf_kv_find(g, "tokenizer.ggml.scores");
    v->merges = tm_gguf_kv_find(g, "tokenizer.ggml.merges");
    const tm_gguf_kv *const all[] = {v->tokens, v->types, v->scores, v->merges};
    for (size_t i = 0; i < TM_COUNT(all); i++)
        if (all[i] && (all[i]->type != TM_GGUF_ARRAY || (i % 3 == 0) != (all[i]->element == TM_GGUF_STRING)))
            return tm_fail(TM_EINPUT, "%s: '%s' is not the array that it should be", tm_gguf_path(g), all[i]->key);
    if (!v->tokens || v->tokens->count == 0 || v->tokens->count > INT32_MAX)
        return tm_fail(TM_EINPUT, "%s: tokenizer.ggml.tokens is missing or empty", tm_gguf_path(g));
    for (size_t i = 1; i < 3; i++)
        if (all[i] && all[i]->count != v->tokens->count)
            return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " entries for %" PRIu64 " tokens", tm_gguf_path(g),
                           all[i]->key, all[i]->count, v->tokens->count);
    return TM_OK;
}

static tm_status read_flags(tm_vocabulary *v) {
    const tm_gguf *g = v->gguf;
    v->add_prefix = true;
    v->add_bos = v->spm || (v->split && v->split->add_bos);
    TM_TRY(tm_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &v->add_prefix, &(bool){false}));
    TM_TRY(tm_gguf_bool(g, "tokenizer.ggml.add_bos_token", &v->add_bos, &(bool){false}));
    TM_TRY(tm_gguf_bool(g, "tokenizer.ggml.add_eos_token", &v->add_eos, &(bool){false}));
    return TM_OK;
}

tm_status tm_vocabulary_open(tm_vocabulary *v, const tm_gguf *g, bool *found) {
    tm_buf model = {0}, pre = {0};
    tm_status rc;
    *v = (tm_vocabulary){.gguf = g};
    *found = false;
    TM_GO(string_or(g, "tokenizer.ggml.model", "no_vocab", &model));
    if (strcmp(model.data, "no_vocab") == 0) goto done;
    v->spm = strcmp(model.data, "llama") == 0 || strcmp(model.data, "gemma4") == 0; /* the latter has merges */
    if (!v->spm && strcmp(model.data, "gpt2") != 0) {
        rc = tm_fail(TM_EUNSUPPORTED, "%s: tokenizer '%s' is not read; supported: gpt2, llama and gemma4",
                     tm_gguf_path(g), model.data);
        goto done;
    }
    TM_GO(string_or(g, "tokenizer.ggml.pre", "default", &pre));
    v->split = v->spm ? NULL : tm_split_by_pre(pre.data);
    if (!v->spm && !v->split) {
        rc = tm_fail(TM_EUNSUPPORTED, "%s: tokenizer.ggml.pre '%s' is not known; take the model's Hugging Face folder",
                     tm_gguf_path(g), pre.data);
        goto done;
    }
    *found = true;
    TM_GO(find_arrays(v));
    rc = read_flags(v);
done:
    tm_buf_free(&model);
    tm_buf_free(&pre);
    return rc;
}

/* ---- tokens with their types, one after the other ---- */

typedef struct token_walk {
    const tm_vocabulary *v;
    tm_gguf_array *tokens, *types;
    uint64_t id; /* of the token last read */
    const char *text;
    size_t len;
    int type;
} token_walk;

static void walk_close(token_walk *w) {
    if (w->tokens) tm_gguf_array_close(w->tokens);
    if (w->types) tm_gguf_array_close(w->types);
    tm_free(w->tokens);
    tm_free(w->types);
}

static tm_status walk_open(token_walk *w, const tm_vocabulary *v) {
    *w = (token_walk){.v = v, .id = UINT64_MAX};
    w->tokens = tm_calloc(1, sizeof *w->tokens);
    w->types = v->types ? tm_calloc(1, sizeof *w->types) : NULL;
    if (!w->tokens || (v->types && !w->types)) {
        walk_close(w);
        return tm_nomem(2 * sizeof *w->tokens);
    }
    tm_gguf_array_open(w->tokens, v->gguf, v->tokens);
    if (w->types) tm_gguf_array_open(w->types, v->gguf, v->types);
    return TM_OK;
}

static tm_status walk_next(token_walk *w, bool *more) {
    double type = TM_TOKEN_NORMAL;
    *more = w->tokens->index < w->v->tokens->count;
    if (!*more) return TM_OK;
    w->id = w->tokens->index;
    TM_TRY(tm_gguf_array_string(w->tokens, &w->text, &w->len));
    if (w->types) TM_TRY(tm_gguf_array_number(w->types, &type));
    w->type = type >= 0 && type < 100 ? (int)type : TM_TOKEN_NORMAL;
    return TM_OK;
}

tm_status tm_gguf_token(const tm_gguf *g, uint64_t id, tm_buf *out) {
    const tm_gguf_kv *kv = tm_gguf_kv_find(g, "tokenizer.ggml.tokens");
    if (!kv || kv->type != TM_GGUF_ARRAY || id >= kv->count)
        return tm_fail(TM_EINPUT, "%s: there is no token %" PRIu64, tm_gguf_path(g), id);
    tm_gguf_array *a = tm_calloc(1, sizeof *a);
    if (!a) return tm_nomem(sizeof *a);
    const char *text = "";
    size_t len = 0;
    tm_status rc = TM_OK;
    tm_gguf_array_open(a, g, kv);
    while (rc == TM_OK && a->index <= id) rc = tm_gguf_array_string(a, &text, &len);
    if (rc == TM_OK) rc = tm_buf_append(out, text, len);
    tm_gguf_array_close(a);
    tm_free(a);
    return rc;
}

/* ---- pieces of tokenizer.json ---- */

static void raw(tm_json_writer *j, const char *json) {
    tm_jw_raw(j, json, strlen(json));
}

static void raw_at(tm_json_writer *j, const char *key, const char *json) {
    tm_jw_key(j, key);
    raw(j, json);
}

static tm_status check_size(const tm_vocabulary *v, const tm_json_writer *j) {
    if (j->out->len <= TM_FORMAT_MAX_TEXT) return j->status;
    return tm_fail(TM_EINPUT, "%s: the tokenizer would be larger than 64 MiB", tm_gguf_path(v->gguf));
}

static tm_status put_added_tokens(const tm_vocabulary *v, tm_json_writer *j) {
    token_walk w;
    bool more;
    tm_status rc;
    TM_TRY(walk_open(&w, v));
    tm_jw_field_array(j, "added_tokens");
    for (;;) {
        TM_GO(walk_next(&w, &more));
        if (!more) break;
        bool special = w.type == TM_TOKEN_CONTROL || (w.type == TM_TOKEN_UNKNOWN && v->spm);
        if (!special && w.type != TM_TOKEN_USER_DEFINED) continue;
        tm_jw_object(j);
        tm_jw_field_uint(j, "id", w.id);
        tm_jw_field_strn(j, "content", w.text, w.len);
        static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
        for (size_t i = 0; i < TM_COUNT(flags); i++) raw_at(j, flags[i], "false");
        raw_at(j, "special", special ? "true" : "false");
        tm_jw_object_end(j);
        TM_GO(check_size(v, j));
    }
    tm_jw_array_end(j);
done:
    walk_close(&w);
    return rc;
}

static void put_normalizer(const tm_vocabulary *v, tm_json_writer *j) {
    static const char replace[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}";
    tm_jw_key(j, "normalizer");
    if (!v->spm) {
        raw(j, v->split->nfc ? "{\"type\":\"NFC\"}" : "null");
        return;
    }
    tm_jw_object(j);
    raw_at(j, "type", "\"Sequence\"");
    tm_jw_field_array(j, "normalizers");
    if (v->add_prefix) raw(j, "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}");
    raw(j, replace);
    tm_jw_array_end(j);
    tm_jw_object_end(j);
}

static void put_byte_level(tm_json_writer *j, bool use_regex) {
    raw(j, use_regex ? "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
                     : "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}");
}

static void put_pre_tokenizer(const tm_vocabulary *v, tm_json_writer *j) {
    tm_jw_key(j, "pre_tokenizer");
    if (v->spm) {
        tm_jw_null(j);
        return;
    }
    if (!v->split->regex && !v->split->digits) {
        put_byte_level(j, true);
        return;
    }
    tm_jw_object(j);
    raw_at(j, "type", "\"Sequence\"");
    tm_jw_field_array(j, "pretokenizers");
    if (v->split->digits) raw(j, "{\"type\":\"Digits\",\"individual_digits\":true}");
    if (v->split->regex) {
        tm_jw_object(j);
        raw_at(j, "type", "\"Split\"");
        tm_jw_field_object(j, "pattern");
        tm_jw_field_str(j, "Regex", v->split->regex);
        tm_jw_object_end(j);
        raw_at(j, "behavior", "\"Isolated\"");
        raw_at(j, "invert", "false");
        tm_jw_object_end(j);
    }
    put_byte_level(j, !v->split->regex);
    tm_jw_array_end(j);
    tm_jw_object_end(j);
}

static void put_decoder(const tm_vocabulary *v, tm_json_writer *j) {
    tm_jw_key(j, "decoder");
    if (!v->spm) {
        put_byte_level(j, true);
        return;
    }
    tm_jw_object(j);
    raw_at(j, "type", "\"Sequence\"");
    tm_jw_field_array(j, "decoders");
    raw(j, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"}");
    raw(j, "{\"type\":\"ByteFallback\"}");
    raw(j, "{\"type\":\"Fuse\"}");
    if (v->add_prefix) raw(j, "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    tm_jw_array_end(j);
    tm_jw_object_end(j);
}

/* ---- what is put around a text ---- */

typedef struct around {
    uint64_t id[2]; /* bos, eos */
    bool use[2];
    tm_buf text[2];
} around;

static tm_status find_around(const tm_vocabulary *v, around *a) {
    static const char *const keys[2] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"};
    const bool wanted[2] = {v->add_bos, v->add_eos};
    for (size_t i = 0; i < 2; i++) {
        a->id[i] = i + 1; /* SentencePiece's own */
        bool found;
        TM_TRY(tm_gguf_uint(v->gguf, keys[i], &a->id[i], &found));
        a->use[i] = wanted[i] && (found || v->spm);
        if (a->use[i]) TM_TRY(tm_gguf_token(v->gguf, a->id[i], &a->text[i]));
    }
    return TM_OK;
}

static void put_piece(tm_json_writer *j, const around *a, size_t i, int type_id) {
    if (!a->use[i]) return;
    tm_jw_object(j);
    tm_jw_field_object(j, "SpecialToken");
    tm_jw_field_strn(j, "id", a->text[i].data, a->text[i].len);
    tm_jw_field_int(j, "type_id", type_id);
    tm_jw_object_end(j);
    tm_jw_object_end(j);
}

static void put_sequence(tm_json_writer *j, const around *a, int type_id) {
    put_piece(j, a, 0, type_id);
    raw(j, type_id ? "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}" : "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    put_piece(j, a, 1, type_id);
}

static void put_special(tm_json_writer *j, const around *a, size_t i) {
    if (!a->use[i] || (i == 1 && a->use[0] && a->id[0] == a->id[1])) return;
    tm_jw_field_object(j, a->text[i].data);
    tm_jw_field_strn(j, "id", a->text[i].data, a->text[i].len);
    tm_jw_field_array(j, "ids");
    tm_jw_uint(j, a->id[i]);
    tm_jw_array_end(j);
    tm_jw_field_array(j, "tokens");
    tm_jw_strn(j, a->text[i].data, a->text[i].len);
    tm_jw_array_end(j);
    tm_jw_object_end(j);
}

static void put_template(tm_json_writer *j, const around *a) {
    tm_jw_object(j);
    raw_at(j, "type", "\"TemplateProcessing\"");
    tm_jw_field_array(j, "single");
    put_sequence(j, a, 0);
    tm_jw_array_end(j);
    tm_jw_field_array(j, "pair");
    put_sequence(j, a, 0);
    put_sequence(j, a, 1);
    tm_jw_array_end(j);
    tm_jw_field_object(j, "special_tokens");
    put_special(j, a, 0);
    put_special(j, a, 1);
    tm_jw_object_end(j);
    tm_jw_object_end(j);
}

static tm_status put_post_processor(const tm_vocabulary *v, tm_json_writer *j) {
    around a = {0};
    tm_status rc = find_around(v, &a);
    tm_jw_key(j, "post_processor");
    if (rc == TM_OK && (a.use[0] || a.use[1]))
        put_template(j, &a);
    else
        tm_jw_null(j);
    tm_buf_free(&a.text[0]);
    tm_buf_free(&a.text[1]);
    return rc;
}

/* ---- the model ---- */

static bool hash_less(const void *ctx, uint32_t a, uint32_t b) {
    const uint64_t *hash = ctx;
    return hash[a] != hash[b] ? hash[a] < hash[b] : a < b;
}

/* Two ids with one text cannot be told apart in tokenizer.json. */
static tm_status check_distinct(const tm_vocabulary *v, const uint64_t *hash) {
    uint32_t n = (uint32_t)v->tokens->count, *order = tm_malloc(n * sizeof *order);
    tm_status rc = TM_OK;
    if (!order) return tm_nomem(n * sizeof *order);
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    tm_sort_indices(order, n, hash_less, hash);
    for (uint32_t i = 0; i + 1 < n && rc == TM_OK; i++)
        if (hash[order[i]] == hash[order[i + 1]])
            rc = tm_fail(TM_EINPUT, "%s: tokens %u and %u have the same text", tm_gguf_path(v->gguf), order[i],
                         order[i + 1]);
    tm_free(order);
    return rc;
}

static tm_status put_vocab(const tm_vocabulary *v, tm_json_writer *j) {
    token_walk w;
    bool more;
    tm_status rc;
    uint64_t *hash = tm_malloc(v->tokens->count * sizeof *hash);
    if (!hash) return tm_nomem(v->tokens->count * sizeof *hash);
    TM_GO(walk_open(&w, v));
    tm_jw_field_object(j, "vocab");
    for (;;) {
        rc = walk_next(&w, &more);
        if (rc != TM_OK || !more) break;
        hash[w.id] = tm_hash64(w.text, w.len, 0);
        tm_jw_field_uint(j, w.text, w.id);
        rc = check_size(v, j);
        if (rc != TM_OK) break;
    }
    tm_jw_object_end(j);
    walk_close(&w);
    if (rc == TM_OK) rc = check_distinct(v, hash);
done:
    tm_free(hash);
    return rc;
}

void tm_put_merge(tm_json_writer *j, const char *left, size_t left_len, const char *right, size_t right_len) {
    tm_jw_array(j);
    tm_jw_strn(j, left, left_len);
    tm_jw_strn(j, right, right_len);
    tm_jw_array_end(j);
}

/* "left right": neither half is empty, and halves of byte-level or SentencePiece tokens hold no space. */
static tm_status put_merges(const tm_vocabulary *v, tm_json_writer *j) {
    tm_status rc = TM_OK;
    if (!v->merges) return TM_OK;
    tm_gguf_array *a = tm_calloc(1, sizeof *a);
    if (!a) return tm_nomem(sizeof *a);
    tm_gguf_array_open(a, v->gguf, v->merges);
    while (a->index < v->merges->count) {
        const char *text;
        size_t len;
        TM_GO(tm_gguf_array_string(a, &text, &len));
        const char *space = len > 2 ? memchr(text + 1, ' ', len - 2) : NULL;
        if (!space) {
            rc = tm_fail(TM_EINPUT, "%s: merge %" PRIu64 " is not a pair of tokens", tm_gguf_path(v->gguf),
                         a->index - 1);
            goto done;
        }
        size_t left = (size_t)(space - text);
        tm_put_merge(j, text, left, space + 1, len - left - 1);
        TM_GO(check_size(v, j));
    }
done:
    tm_gguf_array_close(a);
    tm_free(a);
    return rc;
}

static tm_status put_model(const tm_vocabulary *v, tm_json_writer *j) {
    tm_jw_field_object(j, "model");
    raw_at(j, "type", "\"BPE\"");
    raw_at(j, "dropout", "null");
    tm_jw_key(j, "unk_token");
    if (v->spm) {
        tm_buf unk = {0};
        uint64_t id = 0;
        tm_status rc = tm_gguf_uint(v->gguf, "tokenizer.ggml.unknown_token_id", &id, &(bool){false});
        if (rc == TM_OK) rc = tm_gguf_token(v->gguf, id, &unk);
        if (rc == TM_OK) tm_jw_strn(j, unk.data, unk.len);
        tm_buf_free(&unk);
        TM_TRY(rc);
    } else
        tm_jw_null(j);
    raw_at(j, "continuing_subword_prefix", "null");
    raw_at(j, "end_of_word_suffix", "null");
    raw_at(j, "fuse_unk", v->spm ? "true" : "false");
    raw_at(j, "byte_fallback", v->spm ? "true" : "false");
    raw_at(j, "ignore_merges", !v->spm && v->split->ignore_merges ? "true" : "false");
    TM_TRY(put_vocab(v, j));
    tm_jw_field_array(j, "merges");
    TM_TRY(v->spm && !v->merges ? tm_put_spm_merges(v, j) : put_merges(v, j));
    tm_jw_array_end(j);
    tm_jw_object_end(j);
    return TM_OK;
}

static tm_status put_tokenizer(const tm_vocabulary *v, tm_json_writer *j) {
    tm_jw_object(j);
    raw_at(j, "version", "\"1.0\"");
    raw_at(j, "truncation", "null");
    raw_at(j, "padding", "null");
    TM_TRY(put_added_tokens(v, j));
    put_normalizer(v, j);
    put_pre_tokenizer(v, j);
    TM_TRY(put_post_processor(v, j));
    put_decoder(v, j);
    TM_TRY(put_model(v, j));
    tm_jw_object_end(j);
    return TM_OK;
}

tm_status tm_gguf_tokenizer_json(const tm_gguf *g, tm_buf *out, bool *found) {
    tm_vocabulary v;
    tm_json_writer j;
    TM_TRY(tm_vocabulary_open(&v, g, found));
    if (!*found) return TM_OK;
    tm_jw_init(&j, out, 1);
    TM_TRY(put_tokenizer(&v, &j)); /* on failure the half-written text is dropped by the caller */
    return tm_jw_end(&j);
}

/* ---- tokenizer_config.json ---- */

static tm_status put_token(const tm_gguf *g, tm_json_writer *j, const char *key, const char *gguf_key) {
    uint64_t id;
    bool found;
    tm_buf text = {0};
    TM_TRY(tm_gguf_uint(g, gguf_key, &id, &found));
    if (!found) return TM_OK;
    tm_status rc = tm_gguf_token(g, id, &text);
    if (rc == TM_OK) {
        tm_jw_field_strn(j, key, text.data, text.len);
    }
    tm_buf_free(&text);
    return rc;
}

static tm_status put_tokenizer_config(const tm_vocabulary *v, tm_json_writer *j) {
    const tm_gguf *g = v->gguf;
    uint64_t context = 0;
    tm_buf chat = {0};
    bool found;
    const tm_gguf_arch *arch;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(tm_gguf_arch_of(g, &arch));
    tm_jw_object(j);
    TM_TRY(put_token(g, j, "bos_token", "tokenizer.ggml.bos_token_id"));
    tm_status rc = tm_gguf_string(g, "tokenizer.chat_template", TM_FORMAT_MAX_TEXT, &chat, &found);
    if (rc == TM_OK && found) {
        tm_jw_field_strn(j, "chat_template", chat.data ? chat.data : "", chat.len);
    }
    tm_buf_free(&chat);
    TM_TRY(rc);
    raw_at(j, "clean_up_tokenization_spaces", "false");
    TM_TRY(put_token(g, j, "eos_token", "tokenizer.ggml.eos_token_id"));
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(arch, "context_length", key), &context, &found));
    if (found) {
        tm_jw_field_uint(j, "model_max_length", context);
    }
    TM_TRY(put_token(g, j, "pad_token", "tokenizer.ggml.padding_token_id"));
    raw_at(j, "tokenizer_class", "\"PreTrainedTokenizerFast\"");
    TM_TRY(put_token(g, j, "unk_token", "tokenizer.ggml.unknown_token_id"));
    tm_jw_object_end(j);
    return TM_OK;
}

tm_status tm_gguf_tokenizer_config_json(const tm_gguf *g, tm_buf *out, bool *found) {
    tm_vocabulary v;
    tm_json_writer j;
    TM_TRY(tm_vocabulary_open(&v, g, found));
    if (!*found) return TM_OK;
    tm_jw_init(&j, out, 2);
    TM_TRY(put_tokenizer_config(&v, &j));
    TM_TRY(tm_jw_end(&j));
    return tm_buf_append(out, "\n", 1);
}

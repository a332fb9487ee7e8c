/* Decoders and post-processors: the chain from token strings to text, and what is put around an encoded text. */
#include "text/tokenizer/tokenizer_internal.h"

tm_status tk_tokens_put(tk_tokens *t, const char *bytes, size_t n) {
    TM_TRY(tm_grow(&t->end, &t->cap, t->n + 1, sizeof *t->end));
    TM_TRY(tm_buf_append(&t->text, bytes, n));
    t->end[t->n++] = t->text.len;
    return TM_OK;
}

void tk_tokens_free(tk_tokens *t) {
    tm_buf_free(&t->text);
    tm_free(t->end);
    *t = (tk_tokens){0};
}

typedef struct token {
    const char *p;
    size_t n;
} token;

static token get(const tk_tokens *t, size_t i) {
    size_t begin = i == 0 ? 0 : t->end[i - 1];
    return (token){t->text.data == NULL ? "" : t->text.data + begin, t->end[i] - begin};
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static tm_status run_fuse(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out) {
    (void)s;
    return tk_tokens_put(out, in->text.data == NULL ? "" : in->text.data, in->text.len);
}

/* All tokens as bytes; one that is not made of stand-ins is taken as it is. */
static tm_status put_level_bytes(const tk_tokens *in, tm_buf *bytes) {
    for (size_t i = 0; i < in->n; i++) {
        token t = get(in, i);
        size_t start = bytes->len;
        int byte = 0;
        for (size_t at = 0; at < t.n && byte >= 0;) {
            byte = tk_char_to_byte(tk_next(t.p, &at));
            char c = (char)byte;
            if (byte >= 0) TM_TRY(tm_buf_append(bytes, &c, 1));
        }
        if (byte >= 0) continue;
        bytes->len = start;
        TM_TRY(tm_buf_append(bytes, t.p, t.n));
    }
    return TM_OK;
}

static tm_status run_byte_level(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out) {
    tm_buf bytes = {0}, text = {0};
    tm_status rc = TM_OK;
    (void)s;
    TM_GO(put_level_bytes(in, &bytes));
    TM_GO(tk_put_lossy(&text, bytes.data == NULL ? "" : bytes.data, bytes.len));
    TM_GO(tk_tokens_put(out, text.data == NULL ? "" : text.data, text.len));
done:
    tm_buf_free(&bytes);
    tm_buf_free(&text);
    return rc;
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of "<0x41>", -1. */
static int fallback_byte(token t) {
    if (t.n != 6 || memcmp(t.p, "<0x", 3) != 0 || t.p[5] != '>') return -1;
    int high = t.p[3] == '+' ? 0 : hex(t.p[3]), low = hex(t.p[4]); /* the reference's parser takes a plus sign */
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A run of bytes is text if all of it is; else every byte is replaced. */
static tm_status flush_bytes(tm_buf *bytes, tk_tokens *out) {
    if (bytes->len == 0) return TM_OK;
    bool valid = tk_utf8_valid(bytes->data, bytes->len) == bytes->len;
    if (valid) TM_TRY(tk_tokens_put(out, bytes->data, bytes->len));
    for (size_t i = 0; i < bytes->len && !valid; i++) TM_TRY(tk_tokens_put(out, "\xEF\xBF\xBD", 3));
    tm_buf_clear(bytes);
    return TM_OK;
}

static tm_status run_byte_fallback(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out) {
    tm_buf bytes = {0};
    tm_status rc = TM_OK;
    (void)s;
    for (size_t i = 0; i < in->n; i++) {
        token t = get(in, i);
        int byte = fallback_byte(t);
        char c = (char)byte;
        if (byte >= 0) {
            TM_GO(tm_buf_append(&bytes, &c, 1));
            continue;
        }
        TM_GO(flush_bytes(&bytes, out));
        TM_GO(tk_tokens_put(out, t.p, t.n));
    }
    TM_GO(flush_bytes(&bytes, out));
done:
    tm_buf_free(&bytes);
    return rc;
}

static bool at_text(const tk_decode_step *s, token t, size_t at) {
    return s->text_len > 0 && at + s->text_len <= t.n && memcmp(t.p + at, s->text, s->text_len) == 0;
}

static tm_status run_strip(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out) {
    for (size_t i = 0; i < in->n; i++) {
        token t = get(in, i);
        size_t begin = 0, end = t.n;
        for (size_t k = 0; k < s->start && at_text(s, t, begin); k++) begin += s->text_len;
        for (size_t k = 0; k < s->stop && end >= begin + s->text_len && at_text(s, t, end - s->text_len); k++)
            end -= s->text_len;
        TM_TRY(tk_tokens_put(out, t.p + begin, end - begin));
    }
    return TM_OK;
}

/* Spaces for the replacement character; in the first token it is dropped where one was prefixed on the way in. */
static tm_status run_metaspace(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out) {
    for (size_t i = 0; i < in->n; i++) {
        token t = get(in, i);
        TM_TRY(tk_tokens_put(out, "", 0));
        for (size_t at = 0; at < t.n;) {
            bool hit = at_text(s, t, at), drop = hit && i == 0 && s->drop_first;
            if (!drop) TM_TRY(tm_buf_append(&out->text, hit ? " " : t.p + at, 1));
            at += hit ? s->text_len : 1;
        }
        out->end[out->n - 1] = out->text.len;
    }
    return TM_OK;
}

static tm_status run_suffix(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out) {
    for (size_t i = 0; i < in->n; i++) {
        token t = get(in, i);
        TM_TRY(tk_tokens_put(out, "", 0));
        for (size_t at = 0; at < t.n;) {
            bool hit = at_text(s, t, at), last = i + 1 == in->n;
            if (!hit || !last) TM_TRY(tm_buf_append(&out->text, hit ? " " : t.p + at, 1));
            at += hit ? s->text_len : 1;
        }
        out->end[out->n - 1] = out->text.len;
    }
    return TM_OK;
}

static tm_status run_replace(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out) {
    tk_text from = {0}, to = {0};
    tm_status rc = TM_OK;
    for (size_t i = 0; i < in->n; i++) {
        token t = get(in, i);
        from.len = to.len = 0;
        TM_GO(tk_text_put(&from, t.p, t.n, (tm_token_span){0, 0}));
        TM_GO(tk_rewrite_replace(&s->pattern, &from, 0, from.len, &to));
        TM_GO(tk_tokens_put(out, to.bytes == NULL ? "" : to.bytes, to.len));
    }
done:
    tk_text_free(&from);
    tk_text_free(&to);
    return rc;
}

/* ---- one token inside a text ------------------------------------------------------------------------------------ */

static tm_status level_bytes(const tk_tokens *in, tk_tokens *out) {
    tm_buf bytes = {0};
    tm_status rc = put_level_bytes(in, &bytes);
    if (rc == TM_OK) rc = tk_tokens_put(out, bytes.data == NULL ? "" : bytes.data, bytes.len);
    tm_buf_free(&bytes);
    return rc;
}

static tm_status fallback_bytes(const tk_tokens *in, tk_tokens *out) {
    for (size_t i = 0; i < in->n; i++) {
        token t = get(in, i);
        int byte = fallback_byte(t);
        char c = (char)byte;
        TM_TRY(byte >= 0 ? tk_tokens_put(out, &c, 1) : tk_tokens_put(out, t.p, t.n));
    }
    return TM_OK;
}

static tm_status run_inside(const tk_decode_step *s, bool fused, const tk_tokens *in, tk_tokens *out) {
    if (s->run == run_byte_level) return level_bytes(in, out);
    if (s->run == run_byte_fallback) return fallback_bytes(in, out);
    bool of_ends = s->run == run_fuse || (s->run == run_strip && fused);
    if (!of_ends) return s->run(s, in, out);
    for (size_t i = 0; i < in->n; i++) TM_TRY(tk_tokens_put(out, get(in, i).p, get(in, i).n));
    return TM_OK;
}

/* Empty tokens stand before and after it: what a decoder takes off the ends of a text it takes off those. */
tm_status tk_decode_inside(const tk_decoder *d, const char *name, size_t n, tm_buf *out) {
    tk_tokens now = {0}, next = {0};
    tm_status rc;
    bool fused = false;
    TM_GO(tk_tokens_put(&now, "", 0));
    TM_GO(tk_tokens_put(&now, name, n));
    TM_GO(tk_tokens_put(&now, "", 0));
    for (size_t i = 0; i < d->n; i++) {
        next.n = 0;
        tm_buf_clear(&next.text);
        TM_GO(run_inside(&d->step[i], fused, &now, &next));
        fused = fused || d->step[i].run == run_fuse;
        tk_tokens swap = now;
        now = next;
        next = swap;
    }
    TM_GO(tm_buf_append(out, now.text.data == NULL ? "" : now.text.data, now.text.len));
done:
    tk_tokens_free(&now);
    tk_tokens_free(&next);
    return rc;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static tm_status set_text(tk_decode_step *s, const tm_json *value, const char *otherwise) {
    const char *text = value != NULL && value->type == TM_JSON_STRING ? value->text : otherwise;
    return tk_string_copy(&s->text, &s->text_len, text, strlen(text)) ? TM_OK : tm_nomem(strlen(text));
}

static size_t get_count(const tm_json *node, const char *key) {
    const tm_json *v = tm_json_get(node, key);
    return v != NULL && v->type == TM_JSON_NUMBER && v->is_integer && v->integer > 0 ? (size_t)v->integer : 0;
}

static tm_status parse_step(tk_decode_step *s, const tm_json *node, const char *name) {
    const tm_json *type = tm_json_get(node, "type");
    if (tm_json_is(type, "ByteLevel")) return s->run = run_byte_level, TM_OK;
    if (tm_json_is(type, "ByteFallback")) return s->run = run_byte_fallback, TM_OK;
    if (tm_json_is(type, "Fuse")) return s->run = run_fuse, TM_OK;
    if (tm_json_is(type, "Strip")) {
        s->run = run_strip;
        s->start = get_count(node, "start");
        s->stop = get_count(node, "stop");
        return set_text(s, tm_json_get(node, "content"), " ");
    }
    if (tm_json_is(type, "Metaspace")) {
        const tm_json *prefix = tm_json_get(node, "add_prefix_space");
        s->run = run_metaspace;
        s->drop_first = !tm_json_is(tm_json_get(node, "prepend_scheme"), "never") &&
                        !(prefix != NULL && prefix->type == TM_JSON_BOOL && !prefix->boolean);
        return set_text(s, tm_json_get(node, "replacement"), "\xE2\x96\x81");
    }
    if (tm_json_is(type, "BPEDecoder")) return s->run = run_suffix, set_text(s, tm_json_get(node, "suffix"), "</w>");
    if (tm_json_is(type, "Replace")) {
        const tm_json *put = tm_json_get(node, "content");
        if (put == NULL || put->type != TM_JSON_STRING)
            return tm_fail(TM_EINPUT, "%s:%u: decoder Replace without \"content\"", name, node->line);
        s->run = run_replace;
        if (!tk_string_copy(&s->pattern.put, &s->pattern.put_len, put->text, put->len)) return tm_nomem(put->len);
        return tk_step_pattern(&s->pattern, tm_json_get(node, "pattern"), name);
    }
    return tm_fail(TM_EUNSUPPORTED, "%s:%u: decoder \"%s\" is not supported", name, node->line,
                   type != NULL && type->type == TM_JSON_STRING ? type->text : "?");
}

static tm_status parse_one(void *ctx, const tm_json *node, const char *name) {
    tk_decoder *d = ctx;
    if (d->n >= 64) return tm_fail(TM_EUNSUPPORTED, "%s: more than 64 decoders in a sequence", name);
    TM_TRY(tm_grow(&d->step, &d->cap, d->n + 1, sizeof *d->step));
    d->step[d->n] = (tk_decode_step){0};
    return parse_step(&d->step[d->n++], node, name); /* counted first, so that a failed one is freed as well */
}

tm_status tk_decoder_parse(tk_decoder *d, const tm_json *node, const char *name) {
    d->given = node != NULL && node->type != TM_JSON_NULL;
    return tk_flatten(node, "decoders", name, parse_one, d);
}

void tk_decoder_free(tk_decoder *d) {
    for (size_t i = 0; i < d->n; i++) {
        tk_step_free(&d->step[i].pattern);
        tm_free(d->step[i].text);
    }
    tm_free(d->step);
    *d = (tk_decoder){0};
}

/* ---- post-processors: what stands before and after the text ---------------------------------------------------- */

static tm_status put_ids(tm_tokenizer *t, tm_ids *out, const tm_json *special, const tm_json *name) {
    bool named = name != NULL && name->type == TM_JSON_STRING;
    const tm_json *ids = named ? tm_json_get(tm_json_get(special, name->text), "ids") : NULL;
    if (ids == NULL || ids->type != TM_JSON_ARRAY)
        return tm_fail(TM_EINPUT, "%s: the post-processor's template names a special token without ids", t->name);
    for (const tm_json *id = ids->child; id != NULL; id = id->next) {
        if (id->type != TM_JSON_NUMBER || !id->is_integer || id->integer < 0 || id->integer >= TK_MAX_ID)
            return tm_fail(TM_EINPUT, "%s: a special token's id in the post-processor is out of range", t->name);
        TM_TRY(tm_ids_push(out, (int32_t)id->integer));
    }
    return TM_OK;
}

/* New ids go outside those that earlier processors put. */
static tm_status wrap(tm_tokenizer *t, const tm_ids *before, const tm_ids *after) {
    tm_ids outer = {0};
    tm_status rc = TM_OK;
    for (size_t i = 0; i < before->n; i++) TM_GO(tm_ids_push(&outer, before->id[i]));
    for (size_t i = 0; i < t->before.n; i++) TM_GO(tm_ids_push(&outer, t->before.id[i]));
    for (size_t i = 0; i < after->n; i++) TM_GO(tm_ids_push(&t->after, after->id[i]));
    tm_ids swap = t->before;
    t->before = outer;
    outer = swap;
done:
    tm_ids_free(&outer);
    return rc;
}

static tm_status parse_template(tm_tokenizer *t, const tm_json *node) {
    const tm_json *single = tm_json_get(node, "single"), *special = tm_json_get(node, "special_tokens");
    tm_ids before = {0}, after = {0};
    size_t texts = 0;
    tm_status rc = TM_OK;
    if (single == NULL || single->type != TM_JSON_ARRAY)
        return tm_fail(TM_EINPUT, "%s:%u: TemplateProcessing without \"single\"", t->name, node->line);
    for (const tm_json *part = single->child; part != NULL; part = part->next) {
        if (tm_json_get(part, "Sequence") != NULL)
            texts++;
        else
            TM_GO(put_ids(t, texts == 0 ? &before : &after, special,
                          tm_json_get(tm_json_get(part, "SpecialToken"), "id")));
    }
    if (texts != 1)
        TM_GO(tm_fail(TM_EUNSUPPORTED, "%s:%u: the template holds the text %zu times", t->name, node->line, texts));
    TM_GO(wrap(t, &before, &after));
done:
    tm_ids_free(&before);
    tm_ids_free(&after);
    return rc;
}

/* BertProcessing and RobertaProcessing: "cls": ["<s>", 0], "sep": ["</s>", 2]. */
static tm_status parse_cls_sep(tm_tokenizer *t, const tm_json *node) {
    const tm_json *pair[2] = {tm_json_get(node, "cls"), tm_json_get(node, "sep")};
    tm_ids ids[2] = {{0}, {0}};
    tm_status rc = TM_OK;
    for (int i = 0; i < 2; i++) {
        const tm_json *id = pair[i] == NULL || pair[i]->child == NULL ? NULL : pair[i]->child->next;
        if (id == NULL || !id->is_integer || id->integer < 0 || id->integer >= TK_MAX_ID)
            TM_GO(
                tm_fail(TM_EINPUT, "%s:%u: a post-processor without usable \"cls\" and \"sep\"", t->name, node->line));
        TM_GO(tm_ids_push(&ids[i], (int32_t)id->integer));
    }
    TM_GO(wrap(t, &ids[0], &ids[1]));
done:
    tm_ids_free(&ids[0]);
    tm_ids_free(&ids[1]);
    return rc;
}

static tm_status parse_processor(void *ctx, const tm_json *node, const char *name) {
    const tm_json *type = tm_json_get(node, "type");
    if (tm_json_is(type, "ByteLevel")) return TM_OK; /* trims offsets only, which we count otherwise */
    if (tm_json_is(type, "TemplateProcessing")) return parse_template(ctx, node);
    if (tm_json_is(type, "BertProcessing") || tm_json_is(type, "RobertaProcessing")) return parse_cls_sep(ctx, node);
    return tm_fail(TM_EUNSUPPORTED, "%s:%u: post-processor \"%s\" is not supported", name, node->line,
                   type != NULL && type->type == TM_JSON_STRING ? type->text : "?");
}

tm_status tk_postprocessor_parse(tm_tokenizer *t, const tm_json *node) {
    return tk_flatten(node, "processors", t->name, parse_processor, t);
}

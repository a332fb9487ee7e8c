/* Normalizers: the "normalizer" of a tokenizer.json as steps that rewrite text. */
#include "text/tokenizer/tokenizer_internal.h"

#include <utf8proc.h>

tm_status tk_step_pattern(tk_step *s, const tm_json *pattern, const char *name) {
    const tm_json *string = tm_json_get(pattern, "String"), *regex = tm_json_get(pattern, "Regex");
    if (pattern != NULL && pattern->type == TM_JSON_STRING) string = pattern;
    if (string != NULL && string->type == TM_JSON_STRING) {
        if (!tk_string_copy(&s->find, &s->find_len, string->text, string->len)) return tm_nomem(string->len);
        return TM_OK;
    }
    if (regex != NULL && regex->type == TM_JSON_STRING) return tk_regex_open(&s->regex, regex->text, regex->len, name);
    return tm_fail(TM_EINPUT, "%s: a pattern that is neither {\"String\": ...} nor {\"Regex\": ...}", name);
}

/* The next match of the step's string or regex. */
static tm_status find_next(const tk_step *s, tk_regex_walk *f, bool *found) {
    *found = false;
    if (f->at >= f->end) return TM_OK;
    if (s->regex != NULL) return tk_regex_find(s->regex, f, found);
    const char *at = s->find_len == 0 ? NULL : memmem(f->text + f->at, f->end - f->at, s->find, s->find_len);
    *found = at != NULL;
    if (at != NULL) f->match_begin = (size_t)(at - f->text), f->match_end = f->match_begin + s->find_len;
    return TM_OK;
}

tm_status tk_cut_pattern(const tk_step *s, tk_work *w, size_t begin, size_t end) {
    tk_regex_walk f = {.text = w->text.bytes, .begin = begin, .at = begin, .end = end};
    tm_status rc;
    for (bool found;; f.at = f.match_end) {
        TM_GO(find_next(s, &f, &found));
        if (!found) break;
        if (f.match_begin > f.at) TM_GO(tk_cut_put(w, f.at, f.match_begin, false));
        TM_GO(tk_cut_put(w, f.match_begin, f.match_end, true));
    }
    if (f.at < end) TM_GO(tk_cut_put(w, f.at, end, false));
done:
    tk_regex_scratch_free(f.scratch);
    return rc;
}

tm_status tk_rewrite_replace(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    tk_regex_walk f = {.text = in->bytes, .begin = begin, .at = begin, .end = end};
    tm_status rc;
    for (bool found;; f.at = f.match_end) {
        TM_GO(find_next(s, &f, &found));
        if (!found) break;
        tm_token_span from = {in->from[f.match_begin].begin, in->from[f.match_end - 1].end};
        TM_GO(tk_text_copy(out, in, f.at, f.match_begin));
        TM_GO(tk_text_put(out, s->put, s->put_len, from));
    }
    TM_GO(tk_text_copy(out, in, f.at, end));
done:
    tk_regex_scratch_free(f.scratch);
    return rc;
}

static tm_status rewrite_prepend(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    TM_TRY(tk_text_put(out, s->put, s->put_len, in->from[begin])); /* it counts as part of the first character */
    return tk_text_copy(out, in, begin, end);
}

static uint32_t lower(uint32_t code) {
    if (code == 0x130) return 'i';
    for (size_t i = 0; code >= tk_new_lower[0].first && i < tk_new_lower_n; i++)
        if (tk_new_lower[i].first == code) return tk_new_lower[i].last;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

static tm_status rewrite_lower(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    (void)s;
    for (size_t at = begin; at < end;) {
        tm_token_span from = in->from[at];
        uint32_t code = tk_next(in->bytes, &at);
        char bytes[8];
        size_t n = tm_utf8_encode(bytes, lower(code));
        if (code == 0x130) n += tm_utf8_encode(bytes + n, 0x307); /* the one character whose lower case is two */
        TM_TRY(tk_text_put(out, bytes, n, from));
    }
    return TM_OK;
}

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
static tm_status rewrite_strip(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    for (size_t next = begin; (s->option & STRIP_LEFT) && begin < end; begin = next)
        if (!tk_is_space(tk_next(in->bytes, &next))) break;
    for (size_t last; (s->option & STRIP_RIGHT) && end > begin; end = last)
        if (!tk_is_space(tk_previous(in->bytes, end, &last))) break;
    return tk_text_copy(out, in, begin, end);
}

static tm_status rewrite_strip_accents(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    (void)s;
    for (size_t at = begin; at < end;) {
        size_t from = at;
        if (tk_in(&tk_mark, tk_next(in->bytes, &at))) continue;
        TM_TRY(tk_text_copy(out, in, from, at));
    }
    return TM_OK;
}

tm_status tk_rewrite_bytes(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    (void)s;
    for (size_t at = begin; at < end; at++) {
        char bytes[4];
        size_t n = tm_utf8_encode(bytes, tk_byte_to_char((unsigned char)in->bytes[at]));
        TM_TRY(tk_text_put(out, bytes, n, in->from[at]));
    }
    return TM_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

tm_status tk_flatten(const tm_json *node, const char *members, const char *name,
                     tm_status (*one)(void *ctx, const tm_json *node, const char *name), void *ctx) {
    const tm_json *stack[64]; /* the JSON tree is at most 64 deep */
    size_t depth = 0;
    if (node == NULL || node->type == TM_JSON_NULL) return TM_OK;
    if (!tm_json_is(tm_json_get(node, "type"), "Sequence")) return one(ctx, node, name);
    stack[depth++] = node;
    const tm_json *list = tm_json_get(node, members), *at = list == NULL ? NULL : list->child;
    while (depth > 0) {
        if (at == NULL) {
            depth--;
            at = depth > 0 ? stack[depth]->next : NULL;
            continue;
        }
        if (tm_json_is(tm_json_get(at, "type"), "Sequence") && depth < TM_COUNT(stack)) {
            stack[depth++] = at;
            list = tm_json_get(at, members);
            at = list == NULL ? NULL : list->child;
            continue;
        }
        TM_TRY(one(ctx, at, name));
        at = at->next;
    }
    return TM_OK;
}

static bool is_true(const tm_json *node, const char *key) {
    const tm_json *v = tm_json_get(node, key);
    return v != NULL && v->type == TM_JSON_BOOL && v->boolean;
}

static tm_status set_put(tk_step *s, const tm_json *value, const char *name, const char *what) {
    if (value == NULL || value->type != TM_JSON_STRING) return tm_fail(TM_EINPUT, "%s: %s is no string", name, what);
    if (!tk_string_copy(&s->put, &s->put_len, value->text, value->len)) return tm_nomem(value->len);
    return TM_OK;
}

static tm_status parse_one(void *ctx, const tm_json *node, const char *name) {
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const tm_json *type = tm_json_get(node, "type");
    tk_step s = {0};
    tm_status rc = TM_OK;
    for (int f = 0; f < (int)TM_COUNT(forms); f++)
        if (tm_json_is(type, forms[f])) s.rewrite = tk_rewrite_form, s.option = f;
    if (tm_json_is(type, "Lowercase")) s.rewrite = rewrite_lower;
    if (tm_json_is(type, "StripAccents")) s.rewrite = rewrite_strip_accents;
    if (tm_json_is(type, "ByteLevel")) s.rewrite = tk_rewrite_bytes;
    if (tm_json_is(type, "Strip")) {
        s.rewrite = rewrite_strip;
        s.option = (is_true(node, "strip_left") ? STRIP_LEFT : 0) | (is_true(node, "strip_right") ? STRIP_RIGHT : 0);
    }
    if (tm_json_is(type, "Prepend")) {
        s.rewrite = rewrite_prepend;
        rc = set_put(&s, tm_json_get(node, "prepend"), name, "normalizer Prepend: \"prepend\"");
    }
    if (tm_json_is(type, "Replace")) {
        s.rewrite = tk_rewrite_replace;
        rc = set_put(&s, tm_json_get(node, "content"), name, "normalizer Replace: \"content\"");
        if (rc == TM_OK) rc = tk_step_pattern(&s, tm_json_get(node, "pattern"), name);
    }
    if (s.rewrite == NULL)
        rc = tm_fail(TM_EUNSUPPORTED, "%s:%u: normalizer \"%s\" is not supported", name, node->line,
                     type != NULL && type->type == TM_JSON_STRING ? type->text : "?");
    if (rc == TM_OK) return tk_steps_add(ctx, s);
    tk_step_free(&s);
    return rc;
}

tm_status tk_normalizer_parse(tk_steps *steps, const tm_json *node, const char *name) {
    return tk_flatten(node, "normalizers", name, parse_one, steps);
}

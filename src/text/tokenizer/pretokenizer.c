/* Pre-tokenizers: the "pre_tokenizer" of a tokenizer.json as steps that cut pieces (and rewrite them where needed). */
#include "text/tokenizer/tokenizer_internal.h"

/* Cuts so that every character of a class is a match of its own. */
static tm_status cut_chars(tk_work *w, size_t begin, size_t end, bool (*in)(uint32_t code)) {
    size_t plain = begin;
    for (size_t at = begin; at < end;) {
        size_t from = at;
        if (!in(tk_next(w->text.bytes, &at))) continue;
        if (from > plain) TM_TRY(tk_cut_put(w, plain, from, false));
        TM_TRY(tk_cut_put(w, from, at, true));
        plain = at;
    }
    return plain < end ? tk_cut_put(w, plain, end, false) : TM_OK;
}

static bool is_digit(uint32_t c) {
    return tk_kind(c) == TK_NUMBER || tk_in(&tk_numeric_more, c);
}

static bool is_punctuation(uint32_t c) {
    return tk_in(&tk_punctuation, c);
}

static tm_status cut_digits(const tk_step *s, tk_work *w, size_t begin, size_t end) {
    (void)s;
    return cut_chars(w, begin, end, is_digit);
}

static tm_status cut_punctuation(const tk_step *s, tk_work *w, size_t begin, size_t end) {
    (void)s;
    return cut_chars(w, begin, end, is_punctuation);
}

static tm_status cut_space(const tk_step *s, tk_work *w, size_t begin, size_t end) {
    (void)s;
    return cut_chars(w, begin, end, tk_is_space);
}

/* ByteLevel's add_prefix_space (find = put = " ") and Metaspace's prepend_scheme. */
enum { PREFIX_ALWAYS, PREFIX_FIRST };
static tm_status rewrite_prefix(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) {
    bool has = end - begin >= s->put_len && memcmp(in->bytes + begin, s->put, s->put_len) == 0;
    if (!has && (s->option == PREFIX_ALWAYS || in->from[begin].begin == 0))
        TM_TRY(tk_text_put(out, s->put, s->put_len, in->from[begin]));
    return tk_text_copy(out, in, begin, end);
}

static bool get_bool(const tm_json *node, const char *key, bool otherwise) {
    const tm_json *v = tm_json_get(node, key);
    return v != NULL && v->type == TM_JSON_BOOL ? v->boolean : otherwise;
}

static tm_status parse_behavior(const tm_json *node, tk_behavior otherwise, tk_behavior *out, const char *name) {
    static const struct {
        const char *name;
        tk_behavior behavior;
    } known[] = {{"Isolated", TK_ISOLATED},
                 {"Removed", TK_REMOVED},
                 {"MergedWithPrevious", TK_MERGED_PREVIOUS},
                 {"MergedWithNext", TK_MERGED_NEXT},
                 {"Contiguous", TK_CONTIGUOUS}};
    *out = otherwise;
    if (node == NULL) return TM_OK;
    for (size_t i = 0; i < TM_COUNT(known); i++)
        if (tm_json_is(node, known[i].name)) return *out = known[i].behavior, TM_OK;
    return tm_fail(TM_EINPUT, "%s:%u: unknown behavior of a pre-tokenizer", name, node->line);
}

static tm_status parse_byte_level(tk_steps *steps, const tm_json *node) {
    if (get_bool(node, "add_prefix_space", true)) {
        tk_step s = {.rewrite = rewrite_prefix, .option = PREFIX_ALWAYS};
        if (!tk_string_copy(&s.put, &s.put_len, " ", 1)) return tm_nomem(2);
        TM_TRY(tk_steps_add(steps, s));
    }
    if (get_bool(node, "use_regex", true)) TM_TRY(tk_steps_add(steps, (tk_step){.scan = tk_gpt2_split()}));
    return tk_steps_add(steps, (tk_step){.rewrite = tk_rewrite_bytes});
}

static tm_status parse_split(tk_steps *steps, const tm_json *node, const char *name) {
    const tm_json *pattern = tm_json_get(node, "pattern"), *regex = tm_json_get(pattern, "Regex");
    tk_step s = {.cut = tk_cut_pattern, .invert = get_bool(node, "invert", false)};
    TM_TRY(parse_behavior(tm_json_get(node, "behavior"), TK_ISOLATED, &s.behavior, name));
    if (regex != NULL && regex->type == TM_JSON_STRING && s.behavior == TK_ISOLATED)
        s.scan = tk_known_split(regex->text, regex->len);
    if (s.scan == NULL) TM_TRY(tk_step_pattern(&s, pattern, name));
    return tk_steps_add(steps, s);
}

static tm_status parse_metaspace(tk_steps *steps, const tm_json *node, const char *name) {
    const tm_json *with = tm_json_get(node, "replacement"), *scheme = tm_json_get(node, "prepend_scheme");
    const char *put = with != NULL && with->type == TM_JSON_STRING ? with->text : "\xE2\x96\x81";
    size_t put_len = strlen(put);
    bool never = tm_json_is(scheme, "never") || !get_bool(node, "add_prefix_space", true);
    if (put_len == 0) return tm_fail(TM_EINPUT, "%s:%u: Metaspace with an empty replacement", name, node->line);
    tk_step s = {.rewrite = tk_rewrite_replace};
    bool ok = tk_string_copy(&s.find, &s.find_len, " ", 1) && tk_string_copy(&s.put, &s.put_len, put, put_len);
    if (!ok) return tk_step_free(&s), tm_nomem(put_len);
    TM_TRY(tk_steps_add(steps, s));
    if (!never) {
        s = (tk_step){.rewrite = rewrite_prefix, .option = tm_json_is(scheme, "first") ? PREFIX_FIRST : PREFIX_ALWAYS};
        if (!tk_string_copy(&s.put, &s.put_len, put, put_len)) return tm_nomem(put_len);
        TM_TRY(tk_steps_add(steps, s));
    }
    if (!get_bool(node, "split", true)) return TM_OK;
    s = (tk_step){.cut = tk_cut_pattern, .behavior = TK_MERGED_NEXT};
    if (!tk_string_copy(&s.find, &s.find_len, put, put_len)) return tm_nomem(put_len);
    return tk_steps_add(steps, s);
}

static tm_status parse_one(void *ctx, const tm_json *node, const char *name) {
    const tm_json *type = tm_json_get(node, "type");
    tk_steps *steps = ctx;
    if (tm_json_is(type, "ByteLevel")) return parse_byte_level(steps, node);
    if (tm_json_is(type, "Split")) return parse_split(steps, node, name);
    if (tm_json_is(type, "Metaspace")) return parse_metaspace(steps, node, name);
    if (tm_json_is(type, "WhitespaceSplit"))
        return tk_steps_add(steps, (tk_step){.cut = cut_space, .behavior = TK_REMOVED});
    if (tm_json_is(type, "Digits")) {
        tk_behavior how = get_bool(node, "individual_digits", false) ? TK_ISOLATED : TK_CONTIGUOUS;
        return tk_steps_add(steps, (tk_step){.cut = cut_digits, .behavior = how});
    }
    if (tm_json_is(type, "Punctuation")) {
        tk_step s = {.cut = cut_punctuation};
        TM_TRY(parse_behavior(tm_json_get(node, "behavior"), TK_ISOLATED, &s.behavior, name));
        return tk_steps_add(steps, s);
    }
    return tm_fail(TM_EUNSUPPORTED, "%s:%u: pre-tokenizer \"%s\" is not supported", name, node->line,
                   type != NULL && type->type == TM_JSON_STRING ? type->text : "?");
}

tm_status tk_pretokenizer_parse(tk_steps *steps, const tm_json *node, const char *name) {
    return tk_flatten(node, "pretokenizers", name, parse_one, steps);
}

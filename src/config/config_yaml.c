/* A configuration in YAML (1.2, core schema) as the tree that JSON gives, with the same positions. libyaml reads; what a
 * configuration has no use for is refused: tags, several documents, merge keys, keys that are no words. Aliases are
 * copies, and what comes out is bounded, whatever refers to whatever. */
#include "config/config_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cfg_is_yaml(const char *name) {
    return tm_ends_with(name, ".yaml") || tm_ends_with(name, ".yml");
}

#ifndef TIDEMILL_YAML
tm_status cfg_parse_yaml(tm_json_doc **out, const char *text, size_t len, const char *name) {
    (void)text, (void)len;
    *out = NULL;
    return tm_fail(TM_EUNSUPPORTED,
                   "%s: YAML is not read by this build, which has no libyaml (tools/deps.sh build); write it as JSON",
                   name);
}
#else
#include <yaml.h>

enum { MOST_BYTES = 1 << 20, MOST_EVENTS = 1 << 13, MOST_KEYS = 1024, MOST_ANCHORS = 256, DEPTH = 60 };
static const size_t NONE = SIZE_MAX;

typedef struct record {
    tm_json_event event;
    size_t text;       /* offset of its text in `texts`, or NONE */
    size_t key_before; /* of a key: the one before it in its mapping, or NONE */
} record;

typedef struct anchor {
    char name[64];
    size_t begin, end; /* records; end NONE: it is still open */
} anchor;

typedef struct open_node {
    bool mapping, at_key;
    size_t last_key, keys;
    size_t anchor; /* or NONE */
} open_node;

typedef struct reader {
    yaml_parser_t parser;
    const char *name;
    record *all;
    size_t n, cap, played; /* played: how many the builder has taken */
    tm_buf texts;
    size_t text_bytes; /* with those of aliases */
    anchor *anchors;   /* [MOST_ANCHORS] */
    size_t n_anchors;
    open_node open[DEPTH];
    size_t depth;
    unsigned documents;
} reader;

static tm_status fail_at(const reader *r, const yaml_mark_t *at, const char *what) {
    return tm_fail(TM_EINPUT, "%s:%zu:%zu: %s", r->name, at->line + 1, at->column + 1, what);
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

/* `text`: where its text is, or NONE. */
static tm_status add(reader *r, tm_json_event event, size_t text) {
    r->text_bytes += event.len;
    if (r->n == MOST_EVENTS || r->text_bytes > 4 * (size_t)MOST_BYTES)
        return tm_fail(TM_EINPUT,
                       "%s:%u:%u: more %s than a configuration has, aliases counted as often as they are used", r->name,
                       event.line, event.column, r->n == MOST_EVENTS ? "values" : "text");
    TM_TRY(tm_grow(&r->all, &r->cap, r->n + 1, sizeof *r->all));
    r->all[r->n++] = (record){.event = event, .text = text, .key_before = NONE};
    return TM_OK;
}

static tm_status put(reader *r, tm_json_event event, const char *text) {
    size_t at = text ? r->texts.len : NONE;
    if (text) TM_TRY(tm_buf_append(&r->texts, text, event.len));
    if (text) TM_TRY(tm_buf_append(&r->texts, "", 1));
    return add(r, event, at);
}

static tm_json_event event_at(tm_json_type type, const yaml_mark_t *at) {
    return (tm_json_event){.type = type, .line = (uint32_t)at->line + 1, .column = (uint32_t)at->column + 1};
}

/* A value was completed: its mapping waits for a key again. */
static void completed(reader *r) {
    if (r->depth) r->open[r->depth - 1].at_key = r->open[r->depth - 1].mapping;
}

static bool awaits_key(const reader *r) {
    return r->depth && r->open[r->depth - 1].mapping && r->open[r->depth - 1].at_key;
}

static const char *text_of(const reader *r, size_t i) {
    return r->texts.data + r->all[i].text;
}

/* ---- scalars ------------------------------------------------------------------------------------------------------- */

/* A number of the core schema as JSON writes it; false: it is none, or is longer than any that means something. */
static bool as_json_number(const char *s, char out[80]) {
    const char *digits = s + (*s == '-' || *s == '+');
    const char *sign = *s == '-' ? "-" : "";
    char *end;
    if (strlen(s) > 60) return false;
    if (*s == '0' && (s[1] == 'x' || s[1] == 'o') && s[2] && strspn(s + 2, "0123456789abcdefABCDEF") == strlen(s + 2)) {
        unsigned long long v = strtoull(s + 2, &end, s[1] == 'x' ? 16 : 8);
        snprintf(out, 80, "%llu", v);
        return !*end;
    }
    size_t whole = strspn(digits, "0123456789");
    const char *point = digits + whole, *fraction = point + (*point == '.');
    size_t part = strspn(fraction, "0123456789");
    const char *power = fraction + part, *exponent = power;
    if (*exponent == 'e' || *exponent == 'E') exponent += 1 + (exponent[1] == '-' || exponent[1] == '+');
    size_t powers = strspn(exponent, "0123456789");
    if (whole + part == 0 || exponent[powers] || (*power && powers == 0)) return false;
    size_t zeros = strspn(digits, "0");
    if (zeros >= whole && zeros) zeros = whole - 1;
    snprintf(out, 80, "%s%.*s%s%.*s%s", sign, whole ? (int)(whole - zeros) : 1, whole ? digits + zeros : "0",
             part ? "." : "", (int)part, fraction, *power ? power : "");
    return true;
}

static bool is_one_of(const char *s, const char *a, const char *b, const char *c) {
    return !strcmp(s, a) || !strcmp(s, b) || !strcmp(s, c);
}

static tm_status put_number(reader *r, const yaml_event_t *e, const char *number) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, number, strlen(number), r->name, 0, 0));
    const tm_json *n = tm_json_root(doc);
    tm_json_event event = event_at(TM_JSON_NUMBER, &e->start_mark);
    event.len = n->len;
    event.is_integer = n->is_integer;
    event.integer = n->integer;
    event.number = n->number;
    tm_status rc = put(r, event, n->text);
    tm_json_free(doc);
    return rc;
}

static tm_status put_plain(reader *r, const yaml_event_t *e) {
    const char *s = (const char *)e->data.scalar.value;
    tm_json_event event = event_at(TM_JSON_STRING, &e->start_mark);
    char number[80];
    if (!*s || !strcmp(s, "~") || is_one_of(s, "null", "Null", "NULL")) {
        event.type = TM_JSON_NULL;
        return put(r, event, NULL);
    }
    event.boolean = is_one_of(s, "true", "True", "TRUE");
    if (event.boolean || is_one_of(s, "false", "False", "FALSE")) {
        event.type = TM_JSON_BOOL;
        return put(r, event, NULL);
    }
    if (as_json_number(s, number)) return put_number(r, e, number);
    event.len = e->data.scalar.length;
    return put(r, event, s);
}

static tm_status put_key(reader *r, const yaml_event_t *e) {
    open_node *in = &r->open[r->depth - 1];
    const char *key = (const char *)e->data.scalar.value;
    tm_json_event event = event_at(TM_JSON_KEY, &e->start_mark);
    event.len = e->data.scalar.length;
    if (!strcmp(key, "<<") && e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_at(r, &e->start_mark, "merge keys (<<) are not read; write the keys out");
    if (++in->keys > MOST_KEYS) return fail_at(r, &e->start_mark, "more keys in one mapping than a configuration has");
    for (size_t i = in->last_key; i != NONE; i = r->all[i].key_before)
        if (r->all[i].event.len == event.len && !memcmp(text_of(r, i), key, event.len))
            return tm_fail(TM_EINPUT, "%s:%u:%u: key \"%.80s\" is there twice", r->name, event.line, event.column, key);
    TM_TRY(put(r, event, key));
    r->all[r->n - 1].key_before = in->last_key;
    in->last_key = r->n - 1;
    in->at_key = false;
    return TM_OK;
}

/* ---- anchors ------------------------------------------------------------------------------------------------------- */

/* Begins what `name` stands for from now on; *index NONE where it has no name. */
static tm_status begin_anchor(reader *r, const yaml_event_t *e, const yaml_char_t *name, size_t *index) {
    *index = NONE;
    if (!name) return TM_OK;
    if (r->n_anchors == MOST_ANCHORS || strlen((const char *)name) >= sizeof r->anchors->name)
        return fail_at(r, &e->start_mark, "more anchors, or a longer name of one, than a configuration has");
    *index = r->n_anchors++;
    anchor *a = &r->anchors[*index];
    snprintf(a->name, sizeof a->name, "%s", (const char *)name);
    a->begin = r->n;
    a->end = NONE;
    return TM_OK;
}

static void end_anchor(reader *r, size_t index) {
    if (index != NONE) r->anchors[index].end = r->n;
}

static tm_status copy_anchor(reader *r, const yaml_event_t *e) {
    const char *name = (const char *)e->data.alias.anchor;
    size_t at = r->n_anchors;
    if (awaits_key(r)) return fail_at(r, &e->start_mark, "an alias is no key; write the word");
    while (at > 0 && strcmp(r->anchors[at - 1].name, name) != 0) at--; /* the last of that name */
    if (!at)
        return tm_fail(TM_EINPUT, "%s:%zu:%zu: there is no anchor &%.60s before it", r->name, e->start_mark.line + 1,
                       e->start_mark.column + 1, name);
    anchor a = r->anchors[at - 1];
    if (a.end == NONE) return fail_at(r, &e->start_mark, "an alias of what it lies in has no end");
    for (size_t i = a.begin; i < a.end; i++) TM_TRY(add(r, r->all[i].event, r->all[i].text)); /* texts do not change */
    completed(r);
    return TM_OK;
}

/* ---- events -------------------------------------------------------------------------------------------------------- */

static tm_status refuse_tag(const reader *r, const yaml_event_t *e, const yaml_char_t *tag) {
    return tag ? fail_at(r, &e->start_mark, "tags (!) are not read; write the value alone") : TM_OK;
}

static tm_status take_scalar(reader *r, const yaml_event_t *e) {
    size_t at;
    TM_TRY(refuse_tag(r, e, e->data.scalar.tag));
    TM_TRY(begin_anchor(r, e, e->data.scalar.anchor, &at));
    if (awaits_key(r)) {
        if (at != NONE) return fail_at(r, &e->start_mark, "a key has no anchor");
        return put_key(r, e);
    }
    tm_json_event event = event_at(TM_JSON_STRING, &e->start_mark);
    event.len = e->data.scalar.length;
    TM_TRY(e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? put_plain(r, e)
                                                           : put(r, event, (const char *)e->data.scalar.value));
    end_anchor(r, at);
    completed(r);
    return TM_OK;
}

static tm_status open_container(reader *r, const yaml_event_t *e, bool mapping) {
    size_t at;
    TM_TRY(refuse_tag(r, e, mapping ? e->data.mapping_start.tag : e->data.sequence_start.tag));
    if (awaits_key(r)) return fail_at(r, &e->start_mark, "a list or a mapping is no key");
    if (r->depth == DEPTH) return fail_at(r, &e->start_mark, "more levels deep than a configuration is");
    TM_TRY(begin_anchor(r, e, mapping ? e->data.mapping_start.anchor : e->data.sequence_start.anchor, &at));
    r->open[r->depth++] = (open_node){mapping, mapping, NONE, 0, at};
    return put(r, event_at(mapping ? TM_JSON_OBJECT : TM_JSON_ARRAY, &e->start_mark), NULL);
}

static tm_status close_container(reader *r, const yaml_event_t *e) {
    open_node done = r->open[--r->depth];
    TM_TRY(put(r, event_at(done.mapping ? TM_JSON_OBJECT_END : TM_JSON_ARRAY_END, &e->start_mark), NULL));
    end_anchor(r, done.anchor);
    completed(r);
    return TM_OK;
}

static tm_status take(reader *r, const yaml_event_t *e) {
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        return r->documents++ ? fail_at(r, &e->start_mark, "a second document; a configuration is one") : TM_OK;
    case YAML_SCALAR_EVENT:
        return take_scalar(r, e);
    case YAML_ALIAS_EVENT:
        return copy_anchor(r, e);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        return open_container(r, e, e->type == YAML_MAPPING_START_EVENT);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_container(r, e);
    case YAML_STREAM_END_EVENT:
        return r->n ? TM_OK : put(r, (tm_json_event){.type = TM_JSON_NULL, .line = 1, .column = 1}, NULL);
    default:
        return TM_OK;
    }
}

/* libyaml's words, at its place. */
static tm_status not_yaml(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) return tm_nomem(MOST_BYTES);
    return tm_fail(TM_EINPUT, "%s:%zu:%zu: no YAML: %s%s%s", r->name, p->problem_mark.line + 1,
                   p->problem_mark.column + 1, p->problem ? p->problem : "it cannot be read", p->context ? ", " : "",
                   p->context ? p->context : "");
}

static tm_status read_all(reader *r) {
    for (bool end = false; !end;) {
        yaml_event_t e;
        if (!yaml_parser_parse(&r->parser, &e)) return not_yaml(r);
        end = e.type == YAML_STREAM_END_EVENT;
        tm_status rc = take(r, &e);
        yaml_event_delete(&e);
        TM_TRY(rc);
    }
    return TM_OK;
}

static tm_status play(void *ctx, tm_json_event *event) {
    reader *r = ctx;
    *event = (tm_json_event){.type = TM_JSON_EOF};
    if (r->played == r->n) return TM_OK;
    const record *next = &r->all[r->played++];
    *event = next->event;
    if (next->text != NONE) event->text = r->texts.data + next->text;
    return TM_OK;
}

tm_status cfg_parse_yaml(tm_json_doc **out, const char *text, size_t len, const char *name) {
    reader r = {.name = name, .anchors = tm_calloc(MOST_ANCHORS, sizeof *r.anchors)};
    tm_status rc = r.anchors ? TM_OK : tm_nomem(MOST_ANCHORS * sizeof *r.anchors);
    *out = NULL;
    if (rc == TM_OK && len > MOST_BYTES)
        rc = tm_fail(TM_EINPUT, "%s: %zu bytes; a configuration in YAML has %d at most", name, len, MOST_BYTES);
    if (rc == TM_OK && !yaml_parser_initialize(&r.parser)) rc = tm_nomem(sizeof r.parser);
    if (rc == TM_OK) {
        size_t mark = len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* libyaml counts it as a column */
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text + mark, len - mark);
        rc = read_all(&r);
        yaml_parser_delete(&r.parser);
    }
    if (rc == TM_OK) rc = tm_json_from_events(out, play, &r);
    TM_FREE_ALL(r.all, r.anchors);
    tm_buf_free(&r.texts);
    return rc;
}
#endif

/* The streaming JSON reader: what may follow what, depth, duplicate keys. No recursion; one token at a time. */
#include "base/base_internal.h"

#include <string.h>

/* What is expected next. Every state but FAILED and DONE is left by one token. */
typedef enum reader_state {
    AT_START,        /* a value, or the end of the input */
    AT_VALUE,        /* a value */
    AT_VALUE_OR_END, /* a value or ']' */
    AT_KEY,          /* a key */
    AT_KEY_OR_END,   /* a key or '}' */
    AT_COLON,        /* ':' and a value */
    AT_COMMA_OR_END, /* ',' or the bracket that closes the container */
    AT_DONE,         /* only blanks */
    AT_FAILURE
} reader_state;

/* Hashes of the keys of one open object, open addressing; 0 is a free slot. At most 3/4 full. */
typedef struct key_set {
    uint64_t *slots;
    size_t cap, count;
} key_set;

/* A larger set is given back when its object ends, so that many small objects after a large one do not pay for
 * clearing it again and again. */
enum { KEY_SET_FIRST = 16, KEY_SET_KEPT = 64 };

struct tm_json_reader {
    json_input input;
    tm_buf token;
    size_t max_token;
    reader_state state;
    tm_status failure;
    unsigned depth;
    bool is_object[JSON_MAX_DEPTH];
    key_set keys[JSON_MAX_DEPTH];
    uint64_t hash_seed;
};

/* ---- duplicate keys --------------------------------------------------------------------------------------------- */

static bool insert_hash(key_set *set, uint64_t hash) {
    size_t i = hash & (set->cap - 1);
    while (set->slots[i] != 0 && set->slots[i] != hash) i = (i + 1) & (set->cap - 1);
    if (set->slots[i] == hash) return false;
    set->slots[i] = hash;
    set->count++;
    return true;
}

static tm_status grow(key_set *set) {
    key_set larger = {.cap = set->cap ? set->cap * 2 : KEY_SET_FIRST};
    larger.slots = tm_calloc(larger.cap, sizeof *larger.slots);
    if (!larger.slots) return tm_nomem(larger.cap * sizeof *larger.slots);
    for (size_t i = 0; i < set->cap; i++) {
        if (set->slots[i]) insert_hash(&larger, set->slots[i]);
    }
    tm_free(set->slots);
    *set = larger;
    return TM_OK;
}

static tm_status note_key(tm_json_reader *r, const tm_json_event *event) {
    if (r->input.flags & TM_JSON_DUPLICATES_OK) return TM_OK;
    key_set *set = &r->keys[r->depth - 1];
    if ((set->count + 1) * 4 > set->cap * 3) TM_TRY(grow(set));
    uint64_t hash = tm_hash64(event->text, event->len, r->hash_seed);
    if (insert_hash(set, hash ? hash : 1)) return TM_OK;
    return tm_fail(TM_EINPUT, "%s:%u:%u: key \"%.80s\" is there twice", r->input.name, event->line, event->column,
                   event->text);
}

static void forget_keys(key_set *set) {
    if (set->cap > KEY_SET_KEPT) {
        tm_free(set->slots);
        *set = (key_set){0};
    } else if (set->count) {
        memset(set->slots, 0, set->cap * sizeof *set->slots);
        set->count = 0;
    }
}

/* ---- structure -------------------------------------------------------------------------------------------------- */

static reader_state after_value(const tm_json_reader *r) {
    if (r->depth > 0) return AT_COMMA_OR_END;
    return r->input.flags & TM_JSON_LINES ? AT_START : AT_DONE;
}

static tm_status open_container(tm_json_reader *r, tm_json_event *event, bool object) {
    if (r->depth == JSON_MAX_DEPTH) return json_fail(&r->input, "more than %d levels deep", JSON_MAX_DEPTH);
    event->type = object ? TM_JSON_OBJECT : TM_JSON_ARRAY;
    r->is_object[r->depth++] = object;
    r->state = object ? AT_KEY_OR_END : AT_VALUE_OR_END;
    r->input.pos++;
    return TM_OK;
}

static tm_status close_container(tm_json_reader *r, tm_json_event *event) {
    bool object = r->is_object[--r->depth];
    if (object) forget_keys(&r->keys[r->depth]);
    event->type = object ? TM_JSON_OBJECT_END : TM_JSON_ARRAY_END;
    event->depth = r->depth; /* the same as at its start */
    r->state = after_value(r);
    r->input.pos++;
    return TM_OK;
}

static void give_token(const tm_json_reader *r, tm_json_event *event, tm_json_type type) {
    event->type = type;
    event->text = r->token.data;
    event->len = r->token.len;
}

static tm_status read_key(tm_json_reader *r, tm_json_event *event) {
    if (r->input.in[r->input.pos] != '"') return json_fail_found(&r->input, "a key in double quotes");
    TM_TRY(json_scan_string(&r->input, &r->token, r->max_token));
    give_token(r, event, TM_JSON_KEY);
    r->state = AT_COLON;
    return note_key(r, event);
}

static tm_status read_word(tm_json_reader *r, tm_json_event *event, char c) {
    r->state = after_value(r);
    event->type = c == 'n' ? TM_JSON_NULL : TM_JSON_BOOL;
    event->boolean = c == 't';
    return json_scan_word(&r->input, c == 'n' ? "null" : c == 't' ? "true" : "false");
}

static tm_status read_value(tm_json_reader *r, tm_json_event *event) {
    char c = r->input.in[r->input.pos];
    if (c == '{' || c == '[') return open_container(r, event, c == '{');
    if (c == 'n' || c == 't' || c == 'f') return read_word(r, event, c);
    if (c == 'N' || c == 'I') return json_fail(&r->input, "NaN and Infinity are not JSON");
    if (c == '"') {
        TM_TRY(json_scan_string(&r->input, &r->token, r->max_token));
        give_token(r, event, TM_JSON_STRING);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        TM_TRY(json_scan_number(&r->input, &r->token, r->max_token, event));
        give_token(r, event, TM_JSON_NUMBER);
    } else {
        return json_fail_found(&r->input, "a value");
    }
    r->state = after_value(r);
    return TM_OK;
}

/* The event of the next token; its position becomes the event's. */
static void mark(const tm_json_reader *r, tm_json_event *event) {
    *event = (tm_json_event){.line = r->input.line,
                             .column = json_column(&r->input),
                             .offset = r->input.base + r->input.pos,
                             .depth = r->depth};
}

static tm_status at_end_of_input(tm_json_reader *r, tm_json_event *event) {
    bool complete = r->state == AT_DONE || (r->state == AT_START && (r->input.flags & TM_JSON_LINES));
    if (complete) {
        event->type = TM_JSON_EOF;
        return TM_OK;
    }
    if (r->depth == 0) return json_fail_found(&r->input, "a value");
    return json_fail(&r->input, "the text ends inside an %s", r->is_object[r->depth - 1] ? "object" : "array");
}

/* Steps over ',' or ':'; *token tells whether a token is to be read now, in the new state. */
static tm_status read_punctuation(tm_json_reader *r, char c, bool *token) {
    bool relaxed = r->input.flags & TM_JSON_RELAXED;
    *token = true;
    if (r->state == AT_COLON) {
        if (c != ':') return json_fail_found(&r->input, "':' after the key");
        r->state = AT_VALUE;
    } else {
        bool object = r->is_object[r->depth - 1];
        *token = c == ',';
        if (c == (object ? '}' : ']')) return TM_OK;
        if (c != ',') return json_fail_found(&r->input, object ? "',' or '}'" : "',' or ']'");
        r->state = object ? (relaxed ? AT_KEY_OR_END : AT_KEY) : (relaxed ? AT_VALUE_OR_END : AT_VALUE);
    }
    r->input.pos++;
    return TM_OK;
}

static tm_status read_token(tm_json_reader *r, tm_json_event *event) {
    char c = r->input.in[r->input.pos];
    switch (r->state) {
    case AT_KEY_OR_END:
        if (c == '}') return close_container(r, event);
        return read_key(r, event);
    case AT_KEY:
        return read_key(r, event);
    case AT_VALUE_OR_END:
        if (c == ']') return close_container(r, event);
        return read_value(r, event);
    case AT_COMMA_OR_END:
        return close_container(r, event);
    case AT_DONE:
        return json_fail_found(&r->input, "nothing more after the value");
    default:
        return read_value(r, event);
    }
}

static tm_status next_event(tm_json_reader *r, tm_json_event *event) {
    bool more;
    TM_TRY(json_skip_blank(&r->input, &more));
    if (more && (r->state == AT_COLON || r->state == AT_COMMA_OR_END)) {
        bool token;
        TM_TRY(read_punctuation(r, r->input.in[r->input.pos], &token));
        if (token) TM_TRY(json_skip_blank(&r->input, &more));
    }
    mark(r, event);
    return more ? read_token(r, event) : at_end_of_input(r, event);
}

/* ---- public ----------------------------------------------------------------------------------------------------- */

tm_status tm_json_next(tm_json_reader *r, tm_json_event *event) {
    if (r->state == AT_FAILURE) return tm_fail(r->failure, "%s: reading already failed", r->input.name);
    tm_status rc = next_event(r, event);
    if (rc != TM_OK) {
        r->state = AT_FAILURE;
        r->failure = rc;
    }
    return rc;
}

tm_status tm_json_skip(tm_json_reader *r, const tm_json_event *event) {
    tm_json_event e = *event;
    if (e.type == TM_JSON_KEY) TM_TRY(tm_json_next(r, &e));
    if (e.type != TM_JSON_ARRAY && e.type != TM_JSON_OBJECT) return TM_OK;
    unsigned depth = e.depth;
    do {
        TM_TRY(tm_json_next(r, &e));
    } while (e.depth != depth);
    return TM_OK;
}

/* Some editors put a byte order mark in front; it is no part of the text. */
static tm_status skip_byte_order_mark(json_input *s) {
    bool have;
    TM_TRY(json_have(s, 3, &have));
    if (have && memcmp(s->in + s->pos, "\xEF\xBB\xBF", 3) == 0) {
        s->pos += 3;
        s->line_start = 3;
    }
    return TM_OK;
}

static tm_status open_input(json_input *s, tm_read_fn read, void *ctx, const char *name, unsigned flags) {
    *s = (json_input){.read = read, .ctx = ctx, .flags = flags, .line = 1};
    s->name = tm_strdup(name);
    if (!s->name) return tm_nomem(strlen(name));
    if (read == tm_mem_source_read) {
        tm_mem_source *source = ctx;
        s->in = source->data + source->pos;
        s->len = source->len - source->pos;
        s->end = true;
        source->pos = source->len;
        return TM_OK;
    }
    s->buffer = tm_malloc(JSON_INPUT_BYTES);
    s->in = s->buffer;
    return s->buffer ? TM_OK : tm_nomem(JSON_INPUT_BYTES);
}

tm_status tm_json_reader_open(tm_json_reader **out, tm_read_fn read, void *ctx, const char *name, unsigned flags,
                              size_t max_token) {
    *out = NULL;
    tm_json_reader *r = tm_calloc(1, sizeof *r);
    if (!r) return tm_nomem(sizeof *r);
    r->max_token = max_token ? max_token : (size_t)(16 * TM_MIB);
    /* Not the same in two processes, so that no file can be made whose keys all fall into one chain of slots. */
    r->hash_seed = tm_now_ns() ^ (uint64_t)(uintptr_t)r;
    tm_status rc = open_input(&r->input, read, ctx, name, flags);
    if (rc == TM_OK) rc = skip_byte_order_mark(&r->input);
    if (rc == TM_OK) rc = tm_buf_reserve(&r->token, (size_t)tm_min_u64(r->input.len, 4096)); /* over memory: once */
    if (rc != TM_OK) {
        tm_json_reader_close(r);
        return rc;
    }
    *out = r;
    return TM_OK;
}

void tm_json_reader_close(tm_json_reader *r) {
    if (!r) return;
    for (size_t i = 0; i < JSON_MAX_DEPTH; i++) tm_free(r->keys[i].slots);
    tm_buf_free(&r->token);
    tm_free(r->input.buffer);
    tm_free(r->input.name);
    tm_free(r);
}

tm_status tm_mem_source_read(void *ctx, void *buf, size_t cap, size_t *got) {
    tm_mem_source *s = ctx;
    *got = (size_t)tm_min_u64(cap, s->len - s->pos);
    if (*got) memcpy(buf, s->data + s->pos, *got);
    s->pos += *got;
    return TM_OK;
}

/* The streaming JSON reader: what may follow what, depth, duplicate keys. No recursion; one token at a time. */
#include "base/base_internal.h"

#include <stdatomic.h>
#include <string.h>

/* A larger set is given back when its object ends, so that many small objects after a large one do not pay for
 * clearing it again and again. */
enum { KEY_SET_FIRST = 16, KEY_SET_KEPT = 64 };

/* ---- duplicate keys --------------------------------------------------------------------------------------------- */

/* False: it is there. */
static bool insert_hash(json_keys *set, uint64_t hash) {
    size_t i = hash & (set->cap - 1);
    while (set->slots[i] != 0 && set->slots[i] != hash) i = (i + 1) & (set->cap - 1);
    if (set->slots[i] == hash) return false;
    set->slots[i] = hash;
    set->count++;
    return true;
}

static tm_status grow(json_keys *set) {
    json_keys larger = {.cap = set->cap ? set->cap * 2 : KEY_SET_FIRST};
    larger.slots = tm_calloc(larger.cap, sizeof *larger.slots);
    if (!larger.slots) return tm_nomem(larger.cap * sizeof *larger.slots);
    const uint64_t *from = set->slots ? set->slots : set->few;
    for (size_t i = 0; i < (set->slots ? set->cap : set->count); i++) {
        if (from[i]) insert_hash(&larger, from[i]);
    }
    tm_free(set->slots);
    set->slots = larger.slots;
    set->cap = larger.cap;
    return TM_OK;
}

static tm_status note_hash(json_keys *set, uint64_t hash, bool *is_new) {
    *is_new = true;
    for (size_t i = 0; !set->slots && i < set->count; i++) *is_new &= set->few[i] != hash;
    if (!set->slots && (set->count < JSON_FEW_KEYS || !*is_new)) {
        if (*is_new) set->few[set->count++] = hash;
        return TM_OK;
    }
    if ((set->count + 1) * 4 > set->cap * 3) TM_TRY(grow(set));
    *is_new = insert_hash(set, hash);
    return TM_OK;
}

static tm_status note_key(tm_json_reader *r, const tm_json_event *event) {
    if (r->input.flags & TM_JSON_DUPLICATES_OK) return TM_OK;
    uint64_t hash = tm_hash64(event->text, event->len, r->hash_seed);
    bool is_new;
    TM_TRY(note_hash(&r->keys[r->depth - 1], hash ? hash : 1, &is_new));
    if (is_new) return TM_OK;
    int shown = (int)tm_min_u64(event->len, 80);
    return tm_fail(TM_EINPUT, "%s:%u:%u: key \"%.*s\" is there twice", r->input.name, event->line, event->column, shown,
                   event->text);
}

static void forget_keys(json_keys *set) {
    if (set->cap > KEY_SET_KEPT) {
        tm_free(set->slots);
        set->slots = NULL;
        set->cap = 0;
    } else if (set->slots) {
        memset(set->slots, 0, set->cap * sizeof *set->slots);
    }
    set->count = 0;
}

/* ---- structure -------------------------------------------------------------------------------------------------- */

static json_state after_value(const tm_json_reader *r) {
    if (r->depth > 0) return JSON_AT_COMMA_OR_END;
    return r->input.flags & TM_JSON_LINES ? JSON_AT_START : JSON_AT_DONE;
}

static tm_status open_container(tm_json_reader *r, tm_json_event *event, bool object) {
    if (r->depth == JSON_MAX_DEPTH) return json_fail(&r->input, "more than %d levels deep", JSON_MAX_DEPTH);
    event->type = object ? TM_JSON_OBJECT : TM_JSON_ARRAY;
    while (r->n_keys <= r->depth) {
        json_keys *set = &r->keys[r->n_keys++];
        set->slots = NULL;
        set->cap = set->count = 0;
    }
    r->is_object[r->depth++] = object;
    r->state = object ? JSON_AT_KEY_OR_END : JSON_AT_VALUE_OR_END;
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

static tm_status read_string(tm_json_reader *r, tm_json_event *event, tm_json_type type) {
    event->type = type;
    return json_scan_string(&r->input, &r->token, r->max_token, r->where_it_is, &event->text, &event->len);
}

static tm_status read_key(tm_json_reader *r, tm_json_event *event) {
    if (r->input.in[r->input.pos] != '"') return json_fail_found(&r->input, "a key in double quotes");
    TM_TRY(read_string(r, event, TM_JSON_KEY));
    r->state = JSON_AT_COLON;
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
        TM_TRY(read_string(r, event, TM_JSON_STRING));
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        TM_TRY(json_scan_number(&r->input, &r->token, r->max_token, event));
        event->type = TM_JSON_NUMBER;
        event->text = r->token.data;
        event->len = r->token.len;
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
    bool complete = r->state == JSON_AT_DONE || (r->state == JSON_AT_START && (r->input.flags & TM_JSON_LINES));
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
    if (r->state == JSON_AT_COLON) {
        if (c != ':') return json_fail_found(&r->input, "':' after the key");
        r->state = JSON_AT_VALUE;
    } else {
        bool object = r->is_object[r->depth - 1];
        *token = c == ',';
        if (c == (object ? '}' : ']')) return TM_OK;
        if (c != ',') return json_fail_found(&r->input, object ? "',' or '}'" : "',' or ']'");
        r->state =
            object ? (relaxed ? JSON_AT_KEY_OR_END : JSON_AT_KEY) : (relaxed ? JSON_AT_VALUE_OR_END : JSON_AT_VALUE);
    }
    r->input.pos++;
    return TM_OK;
}

static tm_status read_token(tm_json_reader *r, tm_json_event *event) {
    char c = r->input.in[r->input.pos];
    switch (r->state) {
    case JSON_AT_KEY_OR_END:
        if (c == '}') return close_container(r, event);
        return read_key(r, event);
    case JSON_AT_KEY:
        return read_key(r, event);
    case JSON_AT_VALUE_OR_END:
        if (c == ']') return close_container(r, event);
        return read_value(r, event);
    case JSON_AT_COMMA_OR_END:
        return close_container(r, event);
    case JSON_AT_DONE:
        return json_fail_found(&r->input, "nothing more after the value");
    default:
        return read_value(r, event);
    }
}

static tm_status next_event(tm_json_reader *r, tm_json_event *event) {
    bool more;
    TM_TRY(json_skip_blank(&r->input, &more));
    if (more && (r->state == JSON_AT_COLON || r->state == JSON_AT_COMMA_OR_END)) {
        bool token;
        TM_TRY(read_punctuation(r, r->input.in[r->input.pos], &token));
        if (token) TM_TRY(json_skip_blank(&r->input, &more));
    }
    mark(r, event);
    return more ? read_token(r, event) : at_end_of_input(r, event);
}

/* ---- public ----------------------------------------------------------------------------------------------------- */

tm_status tm_json_next(tm_json_reader *r, tm_json_event *event) {
    if (r->state == JSON_AT_FAILURE) return tm_fail(r->failure, "%s: reading already failed", r->input.name);
    tm_status rc = next_event(r, event);
    if (rc != TM_OK) {
        r->state = JSON_AT_FAILURE;
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

/* Not the same in two processes, so that no file can be made whose keys all fall into one chain of slots. */
static uint64_t hash_seed(void) {
    static atomic_uint_least64_t seed;
    if (!atomic_load_explicit(&seed, memory_order_relaxed))
        atomic_store_explicit(&seed, tm_now_ns() ^ (uint64_t)(uintptr_t)&seed, memory_order_relaxed);
    return atomic_load_explicit(&seed, memory_order_relaxed);
}

/* All but its keys, which are begun when their object is. */
static void begin(tm_json_reader *r, const json_input *input, size_t max_token) {
    r->input = *input;
    r->name = NULL;
    r->token = (tm_buf){0};
    r->max_token = max_token ? max_token : (size_t)(16 * TM_MIB);
    r->state = JSON_AT_START;
    r->failure = TM_OK;
    r->where_it_is = false;
    r->hash_seed = hash_seed();
    r->depth = r->n_keys = 0;
}

static json_input over_memory(const char *text, size_t len, const char *name, unsigned flags) {
    return (json_input){.in = text, .len = len, .end = true, .name = name, .flags = flags, .line = 1};
}

void json_reader_begin(tm_json_reader *r, const char *text, size_t len, const char *name, unsigned flags,
                       size_t max_token) {
    json_input input = over_memory(text, len, name, flags);
    begin(r, &input, max_token);
    r->where_it_is = true;
    (void)skip_byte_order_mark(&r->input); /* reads nothing that could fail */
}

void json_reader_end(tm_json_reader *r) {
    for (size_t i = 0; i < r->n_keys; i++) tm_free(r->keys[i].slots);
    tm_buf_free(&r->token);
}

static tm_status open_input(json_input *s, tm_read_fn read, void *ctx, const char *name, unsigned flags) {
    if (read == tm_mem_source_read) {
        tm_mem_source *source = ctx;
        *s = over_memory(source->data + source->pos, source->len - source->pos, name, flags);
        source->pos = source->len;
        return TM_OK;
    }
    *s = (json_input){.read = read, .ctx = ctx, .name = name, .flags = flags, .line = 1};
    s->buffer = tm_malloc(JSON_INPUT_BYTES);
    s->in = s->buffer;
    return s->buffer ? TM_OK : tm_nomem(JSON_INPUT_BYTES);
}

tm_status tm_json_reader_open(tm_json_reader **out, tm_read_fn read, void *ctx, const char *name, unsigned flags,
                              size_t max_token) {
    json_input input;
    tm_json_reader *r = tm_calloc(1, sizeof *r);
    tm_status rc;
    *out = NULL;
    if (!r) return tm_nomem(sizeof *r);
    begin(r, &(json_input){0}, max_token);
    r->name = tm_strdup(name);
    if (!r->name) TM_GO(tm_nomem(strlen(name)));
    TM_GO(open_input(&input, read, ctx, r->name, flags));
    r->input = input;
    TM_GO(skip_byte_order_mark(&r->input));
    *out = r;
done:
    if (rc != TM_OK) tm_json_reader_close(r);
    return rc;
}

void tm_json_reader_close(tm_json_reader *r) {
    if (!r) return;
    json_reader_end(r);
    tm_free(r->input.buffer);
    tm_free(r->name);
    tm_free(r);
}

tm_status tm_mem_source_read(void *ctx, void *buf, size_t cap, size_t *got) {
    tm_mem_source *s = ctx;
    *got = (size_t)tm_min_u64(cap, s->len - s->pos);
    if (*got) memcpy(buf, s->data + s->pos, *got);
    s->pos += *got;
    return TM_OK;
}

/* A JSON tree for small files, built on the reader: nodes and strings in an arena that the document owns. */
#include "base/base_internal.h"

#include <string.h>

typedef struct block {
    struct block *next;
    size_t used, cap;
    _Alignas(16) char bytes[];
} block;

struct tm_json_doc {
    block *blocks; /* the one that is being filled, then those before; the last is `first` */
    size_t total, max;
    tm_json *root;
    block first; /* in one piece with the document: most need no other */
};

enum { FIRST_BLOCK = 2048, LARGEST_BLOCK = 1 << 20 };

static tm_status add_block(tm_json_doc *doc, size_t need) {
    size_t cap = (size_t)tm_min_u64(doc->blocks->cap * 2, LARGEST_BLOCK);
    if (cap < need) cap = need;
    cap = (size_t)tm_min_u64(cap, doc->max - doc->total);
    if (cap < need) return tm_fail(TM_EINPUT, "JSON text needs more than %zu bytes as a tree", doc->max);
    block *b = tm_malloc(sizeof *b + cap);
    if (!b) return tm_nomem(sizeof *b + cap);
    *b = (block){.next = doc->blocks, .cap = cap};
    doc->blocks = b;
    doc->total += cap;
    return TM_OK;
}

static tm_status arena_alloc(tm_json_doc *doc, size_t bytes, void **out) {
    bytes = (size_t)tm_round_up(bytes, 8);
    if (doc->blocks->cap - doc->blocks->used < bytes) TM_TRY(add_block(doc, bytes));
    *out = doc->blocks->bytes + doc->blocks->used;
    doc->blocks->used += bytes;
    return TM_OK;
}

static tm_status arena_text(tm_json_doc *doc, const tm_json_event *event, const char **out) {
    void *p;
    TM_TRY(arena_alloc(doc, event->len + 1, &p));
    memcpy(p, event->text, event->len);
    ((char *)p)[event->len] = 0;
    *out = p;
    return TM_OK;
}

/* The containers that are open, outermost first, each with its last member. */
typedef struct builder {
    tm_json_doc *doc;
    tm_json *open[JSON_MAX_DEPTH], *last[JSON_MAX_DEPTH];
    unsigned depth;
    const char *key; /* of the value to come */
    size_t key_len;
} builder;

static void attach(builder *b, tm_json *node) {
    if (b->depth == 0) {
        b->doc->root = node;
        return;
    }
    tm_json *parent = b->open[b->depth - 1], *before = b->last[b->depth - 1];
    if (before) {
        before->next = node;
    } else {
        parent->child = node;
    }
    b->last[b->depth - 1] = node;
    parent->count++;
}

static tm_status add_value(builder *b, const tm_json_event *event) {
    void *p;
    TM_TRY(arena_alloc(b->doc, sizeof(tm_json), &p));
    tm_json *node = p;
    *node = (tm_json){.type = event->type,
                      .line = event->line,
                      .column = event->column,
                      .key = b->key,
                      .key_len = b->key_len,
                      .len = event->len,
                      .boolean = event->boolean,
                      .is_integer = event->is_integer,
                      .integer = event->integer,
                      .number = event->number};
    if (event->text) TM_TRY(arena_text(b->doc, event, &node->text));
    attach(b, node);
    b->key = NULL;
    b->key_len = 0;
    if (event->type == TM_JSON_OBJECT || event->type == TM_JSON_ARRAY) {
        b->open[b->depth] = node; /* the reader has checked the depth */
        b->last[b->depth++] = NULL;
    }
    return TM_OK;
}

static tm_status add_event(builder *b, const tm_json_event *event) {
    switch (event->type) {
    case TM_JSON_KEY:
        b->key_len = event->len;
        return arena_text(b->doc, event, &b->key);
    case TM_JSON_ARRAY_END:
    case TM_JSON_OBJECT_END:
        b->depth--;
        return TM_OK;
    case TM_JSON_EOF:
        return TM_OK;
    default:
        return add_value(b, event);
    }
}

static tm_status build(tm_json_doc *doc, tm_json_next_fn next, void *ctx) {
    builder b = {.doc = doc};
    tm_json_event event;
    do {
        TM_TRY(next(ctx, &event));
        TM_TRY(add_event(&b, &event));
    } while (event.type != TM_JSON_EOF);
    return TM_OK;
}

static tm_status next_of_reader(void *reader, tm_json_event *event) {
    return tm_json_next(reader, event);
}

static tm_status begin_doc(tm_json_doc **out, size_t len, size_t max_bytes) {
    size_t max = max_bytes ? max_bytes : (size_t)(64 * TM_MIB);
    size_t cap = (size_t)tm_min_u64(tm_min_u64(FIRST_BLOCK + 2 * (uint64_t)len, LARGEST_BLOCK), max);
    tm_json_doc *doc = tm_malloc(sizeof *doc + cap);
    *out = doc;
    if (!doc) return tm_nomem(sizeof *doc + cap);
    *doc = (tm_json_doc){.blocks = &doc->first, .total = cap, .max = max, .first.cap = cap};
    return TM_OK;
}

tm_status tm_json_parse(tm_json_doc **out, const char *text, size_t len, const char *name, unsigned flags,
                        size_t max_bytes) {
    tm_json_reader r;
    tm_json_doc *doc;
    *out = NULL;
    TM_TRY(begin_doc(&doc, len, max_bytes));
    json_reader_begin(&r, text, len, name, flags & ~(unsigned)TM_JSON_LINES, doc->max);
    tm_status rc = build(doc, next_of_reader, &r);
    json_reader_end(&r);
    if (rc != TM_OK) {
        tm_json_free(doc);
        return rc;
    }
    *out = doc;
    return TM_OK;
}

tm_status tm_json_from_events(tm_json_doc **out, tm_json_next_fn next, void *ctx) {
    tm_json_doc *doc;
    *out = NULL;
    TM_TRY(begin_doc(&doc, 0, 0));
    tm_status rc = build(doc, next, ctx);
    if (rc == TM_OK)
        *out = doc;
    else
        tm_json_free(doc);
    return rc;
}

const tm_json *tm_json_root(const tm_json_doc *doc) {
    return doc->root;
}

void tm_json_free(tm_json_doc *doc) {
    if (!doc) return;
    for (block *b = doc->blocks, *next; b != &doc->first; b = next) {
        next = b->next;
        tm_free(b);
    }
    tm_free(doc);
}

const tm_json *tm_json_get(const tm_json *object, const char *key) {
    if (!object || object->type != TM_JSON_OBJECT) return NULL;
    size_t n = strlen(key);
    for (const tm_json *m = object->child; m; m = m->next) {
        if (m->key_len == n && memcmp(m->key, key, n) == 0) return m;
    }
    return NULL;
}

static void set_key(tm_json *member, const char *key) {
    member->key = key;
    member->key_len = strlen(key);
}

static size_t index_of(const tm_json *member, const char *const *names, size_t n) {
    size_t i = 0;
    while (i < n && (strlen(names[i]) != member->key_len || memcmp(member->key, names[i], member->key_len) != 0)) i++;
    return i;
}

void tm_json_rename(tm_json_doc *doc, const char *const *from, const char *const *to, size_t n) {
    bool any = false;
    if (!doc->root || doc->root->type != TM_JSON_OBJECT) return;
    for (const tm_json *m = doc->root->child; m; m = m->next) any |= index_of(m, from, n) < n;
    for (tm_json *m = (tm_json *)(uintptr_t)doc->root->child; m && any; m = (tm_json *)(uintptr_t)m->next) {
        size_t i = index_of(m, from, n);
        if (i < n)
            set_key(m, to[i]);
        else if (index_of(m, to, n) < n)
            set_key(m, "");
    }
}

bool tm_json_is(const tm_json *node, const char *string) {
    return node && node->type == TM_JSON_STRING && node->len == strlen(string) &&
           memcmp(node->text, string, node->len) == 0;
}

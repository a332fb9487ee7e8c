/* Any bytes as JSON, under any flags. What must hold:
 *   - from memory and in small pieces, the reader gives the same events and the same failure;
 *   - the tree has the reader's texts, and accepts what the reader does;
 *   - what the tree accepts, the writer writes, and that text has the same tree;
 *   - nothing stays allocated. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tm_status read_seven(void *ctx, void *buf, size_t cap, size_t *got) {
    return tm_mem_source_read(ctx, buf, cap < 7 ? cap : 7, got);
}

/* The hash of all events, or of the failure's text. */
static uint64_t events_hash(tm_read_fn read, const char *text, size_t len, unsigned flags) {
    tm_mem_source source = {.data = text, .len = len};
    tm_json_reader *r = NULL;
    tm_json_event e = {0};
    uint64_t hash = 0;
    tm_status rc = tm_json_reader_open(&r, read, &source, "f", flags, 1 << 16);
    while (rc == TM_OK && e.type != TM_JSON_EOF) {
        rc = tm_json_next(r, &e);
        if (rc != TM_OK) break;
        uint64_t facts[] = {e.type, e.line, e.column, e.offset, e.depth, e.boolean, e.is_integer, (uint64_t)e.integer};
        hash = tm_hash64(facts, sizeof facts, hash);
        if (e.text) hash = tm_hash64(e.text, e.len + 1, hash);
    }
    tm_json_reader_close(r);
    if (rc != TM_OK) hash = tm_hash64(tm_error_get()->text, strlen(tm_error_get()->text), hash);
    tm_error_clear();
    return hash;
}

/* ---- the reader's texts and the tree's ----------------------------------------------------------------------------- */

static uint64_t add_text(uint64_t hash, const char *text, size_t len) {
    return tm_hash64(text, len + 1, hash); /* with its NUL */
}

static uint64_t texts_of_tree(const tm_json *node, uint64_t hash) {
    if (node->key) hash = add_text(hash, node->key, node->key_len);
    if (node->text) hash = add_text(hash, node->text, node->len);
    for (const tm_json *m = node->child; m; m = m->next) hash = texts_of_tree(m, hash);
    return hash;
}

static tm_status texts_of_reader(const char *text, size_t len, unsigned flags, uint64_t *hash) {
    tm_mem_source source = {.data = text, .len = len};
    tm_json_reader *r = NULL;
    tm_json_event e = {0};
    tm_status rc = tm_json_reader_open(&r, read_seven, &source, "f", flags, 0);
    for (*hash = 0; rc == TM_OK && e.type != TM_JSON_EOF;) {
        rc = tm_json_next(r, &e);
        if (rc == TM_OK && e.text) *hash = add_text(*hash, e.text, e.len);
    }
    tm_json_reader_close(r);
    return rc;
}

static void compare_tree(const char *text, size_t len, unsigned flags) {
    tm_json_doc *doc;
    uint64_t hash;
    char why[sizeof tm_error_get()->text] = "";
    tm_status rc = texts_of_reader(text, len, flags & ~(unsigned)TM_JSON_LINES, &hash);
    if (rc != TM_OK) snprintf(why, sizeof why, "%s", tm_error_get()->text);
    tm_error_clear();
    CHECK(tm_json_parse(&doc, text, len, "f", flags, 0) == rc);
    if (rc == TM_OK) {
        CHECK(texts_of_tree(tm_json_root(doc), 0) == hash);
        tm_json_free(doc);
    } else {
        CHECK(strcmp(why, tm_error_get()->text) == 0);
        tm_error_clear();
    }
}

/* ---- what was written ---------------------------------------------------------------------------------------------- */

static tm_buf written(const tm_json_doc *doc, int indent, bool ascii) {
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, indent);
    w.ascii = ascii;
    tm_jw_node(&w, tm_json_root(doc));
    CHECK(tm_jw_end(&w) == TM_OK);
    return out;
}

static void round_trip(const char *text, size_t len, unsigned flags) {
    tm_json_doc *doc, *again;
    if (tm_json_parse(&doc, text, len, "f", flags, 0) != TM_OK) {
        CHECK(tm_error_get()->code == TM_EINPUT && tm_error_get()->text[0] == 'f');
        tm_error_clear();
        return;
    }
    tm_buf once = written(doc, 2, true);
    CHECK(tm_json_parse(&again, once.data, once.len, "g", flags & TM_JSON_DUPLICATES_OK, 0) == TM_OK);
    tm_buf a = written(doc, 0, false), b = written(again, 0, false);
    CHECK(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    tm_buf_free(&once), tm_buf_free(&a), tm_buf_free(&b);
    tm_json_free(doc), tm_json_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    fuzz_begin(size);
    unsigned flags = data[size - 1] & 7; /* the last byte chooses, so that a seed stays a text */
    char *text = malloc(size);
    memcpy(text, data, size);
    CHECK(events_hash(tm_mem_source_read, text, size, flags) == events_hash(read_seven, text, size, flags));
    compare_tree(text, size, flags);
    round_trip(text, size, flags);
    free(text);
    fuzz_end();
    return 0;
}

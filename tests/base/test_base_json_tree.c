/* The JSON tree and the writer, and the way round through both. */
#include "world.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tm_json_doc *parse(const char *text, unsigned flags) {
    tm_json_doc *doc;
    assert_ok(tm_json_parse(&doc, text, strlen(text), "t", flags, 0));
    return doc;
}

/* Strings are read eight bytes at a time: what ends or breaks one is found at every place of them. */
static void bytes_of_strings_at_every_place(void **state) {
    (void)state;
    static const struct {
        const char *in, *out; /* NULL: refused */
    } cases[] = {{"\\\"", "\""},   {"\\\\", "\\"}, {"\xC3\xA4", "\xC3\xA4"},
                 {"\x7f", "\x7f"}, {" ", " "},     {"!", "!"},
                 {"#", "#"},       {"[", "["},     {"]", "]"},
                 {"\x1f", NULL},   {"\n", NULL},   {"\x80", NULL},
                 {"\xff", NULL}};
    for (size_t c = 0; c < TM_COUNT(cases); c++)
        for (int at = 0; at <= 17; at++) {
            char text[64], want[64];
            tm_json_doc *doc;
            snprintf(text, sizeof text, "[\"%.*s%s%.*s\"]", at, "aaaaaaaaaaaaaaaaa", cases[c].in, 17 - at,
                     "bbbbbbbbbbbbbbbbb");
            tm_status rc = tm_json_parse(&doc, text, strlen(text), "t", 0, 0);
            assert_int_equal(rc, cases[c].out ? TM_OK : TM_EINPUT);
            tm_error_clear();
            if (!cases[c].out) continue;
            snprintf(want, sizeof want, "%.*s%s%.*s", at, "aaaaaaaaaaaaaaaaa", cases[c].out, 17 - at,
                     "bbbbbbbbbbbbbbbbb");
            assert_string_equal(tm_json_root(doc)->child->text, want);
            tm_json_free(doc);
        }
}

static void tree_has_the_text(void **state) {
    (void)state;
    tm_json_doc *doc =
        parse("{\"s\": \"a\\u0000b\", \"n\": -1.5, \"i\": 7,\n \"l\": [true, null, [], {\"x\": \"y\"}]}", 0);
    const tm_json *root = tm_json_root(doc);
    assert_int_equal(root->type, TM_JSON_OBJECT);
    assert_int_equal(root->count, 4);
    assert_null(root->key);
    assert_null(root->next);
    const tm_json *s = tm_json_get(root, "s");
    assert_int_equal(s->len, 3);
    assert_memory_equal(s->text, "a\0b", 4);
    assert_false(tm_json_is(s, "a"));
    const tm_json *n = tm_json_get(root, "n");
    assert_int_equal(n->type, TM_JSON_NUMBER);
    assert_true(n->number == -1.5 && !n->is_integer);
    assert_string_equal(n->text, "-1.5");
    assert_int_equal(tm_json_get(root, "i")->integer, 7);
    const tm_json *l = tm_json_get(root, "l");
    assert_int_equal(l->line, 2);
    assert_int_equal(l->column, 7);
    assert_int_equal(l->count, 4);
    assert_true(l->child->type == TM_JSON_BOOL && l->child->boolean);
    assert_int_equal(l->child->next->type, TM_JSON_NULL);
    assert_int_equal(l->child->next->next->count, 0);
    assert_null(l->child->next->next->child);
    const tm_json *o = l->child->next->next->next;
    assert_true(tm_json_is(tm_json_get(o, "x"), "y"));
    assert_null(o->next);
    assert_null(tm_json_get(root, "absent"));
    assert_null(tm_json_get(l, "x"));
    assert_null(tm_json_get(NULL, "x"));
    assert_false(tm_json_is(NULL, "x"));
    assert_false(tm_json_is(n, "-1.5"));
    tm_json_free(doc);
    tm_json_free(NULL);
}

static void tree_refuses_what_the_reader_refuses(void **state) {
    (void)state;
    tm_json_doc *doc;
    uint64_t live = tm_mem_live_bytes();
    assert_fails(tm_json_parse(&doc, "{\"a\":1,\n}", 9, "c.json", 0, 0), TM_EINPUT, "c.json:2:1: expected a key");
    assert_null(doc);
    assert_ok(tm_json_parse(&doc, "{\"a\":1,\n}", 9, "c.json", TM_JSON_RELAXED, 0));
    tm_json_free(doc);
    assert_fails(tm_json_parse(&doc, "", 0, "c.json", 0, 0), TM_EINPUT, "c.json:1:1: the text ends here");
    assert_fails(tm_json_parse(&doc, "1\n2", 3, "c.json", TM_JSON_LINES, 0), TM_EINPUT, "c.json:2:1: expected nothing");
    assert_int_equal(tm_mem_live_bytes(), live);
}

static void tree_memory_is_bounded(void **state) {
    (void)state;
    enum { N = 100000 };
    tm_buf text = {0};
    uint64_t at_start = tm_mem_live_bytes();
    assert_ok(tm_buf_append(&text, "[0", 2));
    for (int i = 1; i < N; i++) assert_ok(tm_buf_append(&text, ",0", 2));
    assert_ok(tm_buf_append(&text, "]", 1));
    tm_json_doc *doc;
    uint64_t live = tm_mem_live_bytes();
    assert_ok(tm_json_parse(&doc, text.data, text.len, "t", 0, 0));
    assert_int_equal(tm_json_root(doc)->count, N);
    assert_true(tm_mem_live_bytes() - live <= 115 * N); /* node, digit, the last block's rest */
    tm_json_free(doc);
    assert_fails(tm_json_parse(&doc, text.data, text.len, "t", 0, 1000000), TM_EINPUT, "more than 1000000 bytes");
    tm_buf_free(&text);
    assert_int_equal(tm_mem_live_bytes(), at_start);
}

static tm_buf written(const tm_json *node, int indent, bool ascii) {
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, indent);
    w.ascii = ascii;
    tm_jw_node(&w, node);
    assert_ok(tm_jw_end(&w));
    return out;
}

static void round_trips(void **state) {
    (void)state;
    static const char *const canonical[] = {"null",
                                            "true",
                                            "-12.50e+07",
                                            "123456789012345678901234567890",
                                            "\"\"",
                                            "[]",
                                            "{}",
                                            "[1, [2, [3, []]], {}]",
                                            "{\"a\": {\"b\": {\"c\": [null, false]}}, \"d\": \"e\"}",
                                            "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\"",
                                            "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x7F\"",
                                            "{\"k\\n\": 0, \"\": \"a\\u0000b\"}"};
    for (size_t i = 0; i < TM_COUNT(canonical); i++) {
        tm_json_doc *doc = parse(canonical[i], 0);
        tm_buf flat = written(tm_json_root(doc), 0, false), ascii = written(tm_json_root(doc), 2, true);
        assert_string_equal(flat.data, canonical[i]);
        tm_json_doc *again = parse(ascii.data, 0);
        tm_buf back = written(tm_json_root(again), 0, false);
        assert_string_equal(back.data, canonical[i]);
        for (size_t k = 0; k < ascii.len; k++) assert_true((unsigned char)ascii.data[k] < 0x80);
        tm_buf_free(&flat), tm_buf_free(&ascii), tm_buf_free(&back);
        tm_json_free(doc), tm_json_free(again);
    }
}

static void round_trip_at_full_depth(void **state) {
    (void)state;
    char text[129] = "";
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    tm_json_doc *doc = parse(text, 0);
    tm_buf out = written(tm_json_root(doc), 0, false);
    assert_string_equal(out.data, text);
    tm_buf_free(&out);
    tm_json_free(doc);
}

static void writer_names_fields(void **state) {
    (void)state;
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, 0);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "a", "x");
    tm_jw_field_str(&w, "b", NULL);
    tm_jw_field_strn(&w, "c", "xyz", 2);
    tm_jw_field_int(&w, "d", -1);
    tm_jw_field_uint(&w, "e", UINT64_MAX);
    tm_jw_field_double(&w, "f", 0.5);
    tm_jw_field_bool(&w, "g", true);
    tm_jw_field_array(&w, "h");
    tm_jw_array_end(&w);
    tm_jw_field_object(&w, "i");
    tm_jw_field_int(&w, "j", 1);
    tm_jw_object_end(&w);
    tm_jw_object_end(&w);
    assert_ok(tm_jw_end(&w));
    assert_string_equal(out.data, "{\"a\": \"x\", \"b\": null, \"c\": \"xy\", \"d\": -1, \"e\": 18446744073709551615, "
                                  "\"f\": 0.5, \"g\": true, \"h\": [], \"i\": {\"j\": 1}}");
    tm_buf_free(&out);
}

static void writer_lays_out(void **state) {
    (void)state;
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, 2);
    tm_jw_object(&w);
    tm_jw_key(&w, "a");
    tm_jw_array(&w);
    tm_jw_int(&w, INT64_MIN);
    tm_jw_uint(&w, UINT64_MAX);
    tm_jw_double(&w, 0.1);
    tm_jw_double(&w, NAN);
    tm_jw_array_end(&w);
    tm_jw_key(&w, "b");
    tm_jw_object(&w);
    tm_jw_object_end(&w);
    tm_jw_key(&w, "c");
    tm_jw_raw(&w, "[1]", 3);
    tm_jw_key(&w, "d");
    tm_jw_null(&w);
    tm_jw_object_end(&w);
    assert_ok(tm_jw_end(&w));
    assert_string_equal(out.data,
                        "{\n  \"a\": [\n    -9223372036854775808,\n    18446744073709551615,\n    0.1,\n    null\n"
                        "  ],\n  \"b\": {},\n  \"c\": [1],\n  \"d\": null\n}");
    tm_buf_clear(&out);
    tm_jw_init(&w, &out, 0);
    tm_jw_array(&w);
    tm_jw_str(&w, "\xFF"
                  "a\xE2\x82"
                  "b\xED\xA0\x80"); /* no UTF-8: each bad byte becomes U+FFFD, as it must stay JSON */
    tm_jw_bool(&w, false);
    tm_jw_array_end(&w);
    assert_ok(tm_jw_end(&w));
    assert_string_equal(out.data, "[\"\xEF\xBF\xBD"
                                  "a\xEF\xBF\xBD\xEF\xBF\xBD"
                                  "b\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\", false]");
    tm_buf_clear(&out);
    tm_jw_init(&w, &out, 0);
    w.ascii = true;
    tm_jw_str(&w, "\xC3\xA9\xF0\x9F\x98\x80\xFF");
    assert_ok(tm_jw_end(&w));
    assert_string_equal(out.data, "\"\\u00e9\\ud83d\\ude00\\ufffd\"");
    tm_buf_free(&out);
}

static void doubles_survive_both_ways(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t r[4];
        double x;
        tm_philox(3, 0, i, r);
        if (i % 4 == 0) r[1] &= 0x800fffff; /* subnormal */
        memcpy(&x, r, sizeof x);
        if (!isfinite(x)) continue;
        tm_buf out = {0};
        tm_json_writer w;
        tm_jw_init(&w, &out, 0);
        tm_jw_double(&w, x);
        assert_ok(tm_jw_end(&w));
        tm_json_doc *doc = parse(out.data, 0);
        if (memcmp(&tm_json_root(doc)->number, &x, sizeof x) != 0) fail_msg("%.17g came back from %s", x, out.data);
        tm_json_free(doc);
        tm_buf_free(&out);
    }
}

static void writer_keeps_the_first_failure(void **state) {
    (void)state;
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, 0);
    for (int i = 0; i < 100; i++) tm_jw_array(&w);
    for (int i = 0; i < 100; i++) tm_jw_array_end(&w);
    assert_fails(tm_jw_end(&w) == TM_EBUG ? tm_fail(TM_EBUG, "nested too deeply") : TM_OK, TM_EBUG, "too deeply");
    tm_buf_free(&out);
#ifdef TIDEMILL_FAULTS
    tm_error_clear();
    tm_jw_init(&w, &out, 0);
    assert_ok(tm_fault_set("alloc:1:fail:once"));
    tm_jw_array(&w);
    tm_jw_str(&w, "x");
    tm_jw_array_end(&w);
    assert_int_equal(tm_jw_end(&w), TM_ENOMEM);
    assert_ok(tm_fault_set(NULL));
    tm_error_clear();
    tm_buf_free(&out);
#endif
}

static void every_allocation_of_the_tree_may_fail(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    uint64_t live = tm_mem_live_bytes();
    /* a string that has to be decoded and is longer than others, more keys than are kept in a list, many nodes */
    static const char front[] = "[{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"k\":\"\\n";
    char text[16000];
    memset(text, 'a', sizeof text);
    memcpy(text, front, sizeof front - 1);
    memcpy(text + 8000, "\"}", 2);
    for (size_t at = 8002; at < sizeof text; at += 2) memcpy(text + at, at + 2 < sizeof text ? ",1" : " ]", 2);
    tm_status rc = TM_ENOMEM;
    int i;
    for (i = 1; rc != TM_OK; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "alloc:%d:fail:once", i);
        assert_ok(tm_fault_set(spec));
        tm_json_doc *doc;
        rc = tm_json_parse(&doc, text, sizeof text, "t", 0, 0);
        tm_error_clear();
        if (rc == TM_OK) tm_json_free(doc);
        if (rc != TM_OK) assert_int_equal(rc, TM_ENOMEM);
        assert_int_equal(tm_mem_live_bytes(), live);
    }
    assert_true(i > 6);
    assert_ok(tm_fault_set(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_strings_at_every_place),
        cmocka_unit_test(tree_has_the_text),
        cmocka_unit_test(tree_refuses_what_the_reader_refuses),
        cmocka_unit_test(tree_memory_is_bounded),
        cmocka_unit_test(round_trips),
        cmocka_unit_test(round_trip_at_full_depth),
        cmocka_unit_test(writer_lays_out),
        cmocka_unit_test(writer_names_fields),
        cmocka_unit_test(doubles_survive_both_ways),
        cmocka_unit_test(writer_keeps_the_first_failure),
        cmocka_unit_test(every_allocation_of_the_tree_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

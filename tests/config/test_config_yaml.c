/* YAML as a tree: what YAML 1.2's core schema says of each form, and what is refused, with its place. */
#include "world.h"
#include "config/config_internal.h"
#include "tests/support/skip.h"
#include "tests/support/walk.h"

static const struct {
    const char *yaml, *json;
} trees[] = {
    {"a: 1\nb: two\nc: [x, 2.5, null]\n", "{\"a\": 1, \"b\": \"two\", \"c\": [\"x\", 2.5, null]}"},
    {"# comment\na: # nothing\nb:   # nor here\n  - path: p # q\n    type: t\n  - other\n",
     "{\"a\": null, \"b\": [{\"path\": \"p\", \"type\": \"t\"}, \"other\"]}"},
    {"\xef\xbb\xbf---\na: {b: {c: d}, e: []}\n...\n", "{\"a\": {\"b\": {\"c\": \"d\"}, \"e\": []}}"},
    /* words and numbers of the core schema (YAML 1.2.2, 10.3.2) */
    {"- true\n- True\n- FALSE\n- yes\n- no\n- on\n- ~\n- Null\n-\n",
     "[true, true, false, \"yes\", \"no\", \"on\", null, null, null]"},
    {"- 0\n- -17\n- +3\n- 007\n- 0x1F\n- 0o17\n- 1e-4\n- 1.0E+3\n- .5\n- 5.\n- -.25e2\n",
     "[0, -17, 3, 7, 31, 15, 1e-4, 1.0E+3, 0.5, 5, -0.25e2]"},
    {"- 1_000\n- 1.2.3\n- '12'\n- \"true\"\n- 0x\n- .\n- e5\n- 1e\n- 2024-01-01\n- .inf\n- -\n",
     "[\"1_000\", \"1.2.3\", \"12\", \"true\", \"0x\", \".\", \"e5\", \"1e\", \"2024-01-01\", \".inf\", [null]]"},
    {"a: \"tab\\t\\u00e9\\\" q\"\nb: 'it''s'\nc: >\n  folded\n  text\nd: |\n  kept\n  lines\n",
     "{\"a\": \"tab\\t\xc3\xa9\\\" q\", \"b\": \"it's\", \"c\": \"folded text\\n\", \"d\": \"kept\\nlines\\n\"}"},
    {"1: a\ntrue: b\n\"\": c\n", "{\"1\": \"a\", \"true\": \"b\", \"\": \"c\"}"},
    /* aliases are copies */
    {"a: &x {r: 8, t: [q, v]}\nb: *x\nc: &y 5\nd: *y\n",
     "{\"a\": {\"r\": 8, \"t\": [\"q\", \"v\"]}, \"b\": {\"r\": 8, \"t\": [\"q\", \"v\"]}, \"c\": 5, \"d\": 5}"},
    {"a: &x 1\nb: &x 2\nc: *x\n", "{\"a\": 1, \"b\": 2, \"c\": 2}"},
    {"", "null"},
    {"just words", "\"just words\""},
};

static void trees_are_those_of_json(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(trees); i++) {
        tm_json_doc *doc;
        tm_buf text = {0};
        tm_json_writer w;
        tm_error_clear();
        if (cfg_parse_yaml(&doc, trees[i].yaml, strlen(trees[i].yaml), "y") != TM_OK)
            fail_msg("%s\n%s", trees[i].yaml, tm_error_get()->text);
        tm_jw_init(&w, &text, 0);
        tm_jw_node(&w, tm_json_root(doc));
        assert_int_equal(tm_jw_end(&w), TM_OK);
        if (strcmp(text.data, trees[i].json) != 0) fail_msg("%s\n  %s", trees[i].yaml, text.data);
        tm_json_free(doc);
        tm_buf_free(&text);
    }
}

static const struct {
    const char *yaml, *says;
} refused[] = {
    {"a: 1\n  b: 2\n", "y:2:4: no YAML"},
    {"a: [1, 2\nb: 3\n", "y:2:"},
    {"a: !!str 1\n", "y:1:4: tags (!) are not read"},
    {"!x {a: 1}\n", "tags (!) are not read"},
    {"a: ! 1\n", "tags (!) are not read"},
    {"a: &x 1\n<<: *x\n", "y:2:1: merge keys (<<) are not read"},
    {"a: 1\nb:\n  c: 2\n  c: 3\n", "y:4:3: key \"c\" is there twice"},
    {"a: 1\n---\nb: 2\n", "y:2:1: a second document"},
    {"a: *x\n", "y:1:4: there is no anchor &x before it"},
    {"a: &x [1, *x]\n", "y:1:11: an alias of what it lies in has no end"},
    {"? [a, b]\n: 1\n", "a list or a mapping is no key"},
    {"&k a: 1\n", "a key has no anchor"},
    {"a: &k b\n*k : 1\n", "an alias is no key"},
    {"a: \xff\n", "y:1:"},
    {"a:\tb: c\n", "no YAML"},
};

static void the_rest_is_refused_with_its_place(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(refused); i++) {
        tm_json_doc *doc;
        tm_error_clear();
        if (cfg_parse_yaml(&doc, refused[i].yaml, strlen(refused[i].yaml), "y") != TM_EINPUT)
            fail_msg("%s is read", refused[i].yaml);
        if (!strstr(tm_error_get()->text, refused[i].says)) fail_msg("%s\n%s", refused[i].yaml, tm_error_get()->text);
    }
    tm_error_clear();
}

static void refuses(const tm_buf *text, const char *says) {
    tm_json_doc *doc;
    tm_error_clear();
    assert_int_equal(cfg_parse_yaml(&doc, text->data, text->len, "y"), TM_EINPUT);
    if (!strstr(tm_error_get()->text, says)) fail_msg("%s", tm_error_get()->text);
    tm_error_clear();
}

/* Nine lists of nine of the one before: 387 million values. */
static void bombs_are_bounded(void **state) {
    (void)state;
    tm_buf text = {0};
    assert_int_equal(tm_buf_printf(&text, "a: &a0 [%s]\n", "x, x, x, x, x, x, x, x, x"), TM_OK);
    for (int i = 1; i < 9; i++) {
        assert_int_equal(tm_buf_printf(&text, "b%d: &a%d [", i, i), TM_OK);
        for (int k = 0; k < 9; k++)
            assert_int_equal(tm_buf_printf(&text, "*a%d%s", i - 1, k < 8 ? ", " : "]\n"), TM_OK);
    }
    uint64_t before = tm_mem_live_bytes();
    refuses(&text, "aliases counted as often as they are used");
    assert_true(tm_mem_live_bytes() == before && tm_mem_peak_bytes() < 64 * TM_MIB);
    tm_buf_clear(&text);
    for (int i = 0; i < 100; i++) assert_int_equal(tm_buf_printf(&text, "["), TM_OK);
    refuses(&text, "more levels deep");
    tm_buf_clear(&text);
    for (int i = 0; i < 2000; i++) assert_int_equal(tm_buf_printf(&text, "k%d: 1\n", i), TM_OK);
    refuses(&text, "more keys in one mapping");
    tm_buf_clear(&text);
    assert_int_equal(tm_buf_printf(&text, "a: &x '"), TM_OK);
    for (int i = 0; i < 100000; i++) assert_int_equal(tm_buf_printf(&text, "0123456789"), TM_OK);
    assert_int_equal(tm_buf_printf(&text, "'\nb: [*x, *x, *x, *x, *x, *x]\n"), TM_OK);
    refuses(&text, "more text than a configuration has");
    tm_buf_free(&text);
}

static const char yaml[] = "model: m\n"
                           "dataset:\n"
                           "  - a.jsonl\n"
                           "  - b.jsonl#5\n"
                           "learning_rate: 1e-4   # PyYAML takes this for a string\n"
                           "save_strategy: no\n"
                           "bf16: true\n"
                           "max_steps:\n"
                           "memory: {host_budget: 1GiB}\n"
                           "zero_optimization:\n"
                           "  stage: 2\n";

static tm_status load(tm_config **out, const char *text) {
    tm_config_opts o = {.name = "cfg.yaml", .read_file = test_read};
    tm_error_clear();
    return tm_config_load(out, text, strlen(text), &o);
}

/* What it says, and where it says it wrong. */
static void configurations(void **state) {
    (void)state;
    tm_config *c;
    assert_int_equal(load(&c, yaml), TM_OK);
    assert_int_equal(c->data.train_items.n, 2);
    assert_int_equal(c->data.train_items.item[1].samples, 5);
    assert_true(c->learning_rate == 1e-4 && c->save_steps == 0 && c->max_steps == 0 && c->zero_stage == 2);
    assert_true(c->memory.host_bytes == TM_GIB && c->precision == TM_BF16);
    tm_config_free(c);
    assert_int_equal(load(&c, "model: m\ndataset: d\nmemory:\n  host_budget: lots\n"), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "cfg.yaml:4:16: \"memory.host_budget\" must be a size"));
    assert_int_equal(load(&c, "- model\n"), TM_EINPUT);
    assert_string_equal(tm_error_get()->text, "cfg.yaml:1:1: a configuration is a mapping, a line each: key: value");
    tm_error_clear();
}

static tm_status walked(void *ctx) {
    tm_config *c = NULL;
    (void)ctx;
    tm_status rc = load(&c, yaml);
    tm_config_free(c);
    return rc;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("no seam");
#else
    walk w = {.call = "alloc", .kind = "fail", .want = TM_ENOMEM};
    assert_true(walk_all(w, walked, NULL) > 20);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_json),   cmocka_unit_test(the_rest_is_refused_with_its_place),
        cmocka_unit_test(bombs_are_bounded),         cmocka_unit_test(configurations),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("config_yaml", tests, NULL, NULL);
}

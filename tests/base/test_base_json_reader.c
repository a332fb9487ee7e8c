/* The streaming JSON reader. Every text is read twice, from memory and one byte at a time: both must say the same. */
#include "world.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- helpers ---------------------------------------------------------------------------------------------------- */

static tm_status drip(void *ctx, void *buf, size_t cap, size_t *got) {
    return tm_mem_source_read(ctx, buf, cap < 1 ? cap : 1, got);
}

/* One event as text: n, t/f, #number, "string", key:, and the brackets. */
static void trace_event(tm_buf *out, const tm_json_event *e) {
    static const char brackets[] = {[TM_JSON_ARRAY] = '[',      [TM_JSON_OBJECT] = '{', [TM_JSON_ARRAY_END] = ']',
                                    [TM_JSON_OBJECT_END] = '}', [TM_JSON_NULL] = 'n',   [TM_JSON_EOF] = '$'};
    tm_status rc;
    if (e->type == TM_JSON_KEY || e->type == TM_JSON_STRING || e->type == TM_JSON_NUMBER) {
        assert_int_equal(e->text[e->len], 0);
        const char *end = e->type == TM_JSON_KEY ? "\":" : e->type == TM_JSON_STRING ? "\" " : " ";
        rc = tm_buf_append(out, e->type == TM_JSON_NUMBER ? "#" : "\"", 1);
        if (rc == TM_OK) rc = tm_buf_append(out, e->text, e->len);
        if (rc == TM_OK) rc = tm_buf_append(out, end, strlen(end));
    } else if (e->type == TM_JSON_BOOL) {
        rc = tm_buf_append(out, e->boolean ? "t" : "f", 1);
    } else {
        rc = tm_buf_append(out, &brackets[e->type], 1);
    }
    assert_ok(rc);
}

static tm_status trace_with(tm_read_fn read, const char *text, size_t len, unsigned flags, tm_buf *out) {
    tm_mem_source source = {.data = text, .len = len};
    tm_json_reader *r;
    tm_status rc = tm_json_reader_open(&r, read, &source, "t", flags, 0);
    if (rc != TM_OK) return rc;
    tm_json_event e = {0};
    do {
        rc = tm_json_next(r, &e);
        if (rc == TM_OK) trace_event(out, &e);
    } while (rc == TM_OK && e.type != TM_JSON_EOF);
    if (rc == TM_OK) assert_ok(tm_json_next(r, &e)); /* the end stays the end */
    tm_json_reader_close(r);
    return rc;
}

/* The trace, or "!" and the error's text. The caller frees it. */
static tm_buf trace(const char *text, size_t len, unsigned flags) {
    tm_buf results[2] = {{0}, {0}};
    char *copy = malloc(len ? len : 1); /* of its exact size, so that a sanitizer sees a byte too far */
    if (len) memcpy(copy, text, len);
    for (int i = 0; i < 2; i++) {
        tm_error_clear();
        tm_status rc = trace_with(i ? drip : tm_mem_source_read, copy, len, flags, &results[i]);
        if (rc == TM_OK) continue;
        assert_int_equal(rc, TM_EINPUT);
        tm_buf_clear(&results[i]);
        assert_ok(tm_buf_printf(&results[i], "!%s", tm_error_get()->text));
        tm_error_clear();
    }
    free(copy);
    if (results[0].len != results[1].len || memcmp(results[0].data, results[1].data, results[0].len) != 0) {
        fail_msg("%s: from memory \"%s\", byte by byte \"%s\"", text, results[0].data, results[1].data);
    }
    tm_buf_free(&results[1]);
    return results[0];
}

static void check(const char *text, unsigned flags, const char *expected) {
    tm_buf got = trace(text, strlen(text), flags);
    if (strcmp(got.data, expected) != 0) fail_msg("%s: got %s, expected %s", text, got.data, expected);
    tm_buf_free(&got);
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static void valid_texts(void **state) {
    (void)state;
    static const char *const table[][2] = {
        {"null", "n$"},
        {" true ", "t$"},
        {"\tfalse\r\n", "f$"},
        {"0", "#0 $"},
        {"-0", "#-0 $"},
        {"-12.50e+07", "#-12.50e+07 $"},
        {"1e-400", "#1e-400 $"},
        {"\"\"", "\"\" $"},
        {"\"a\"", "\"a\" $"},
        {"[]", "[]$"},
        {"{}", "{}$"},
        {"[ ]", "[]$"},
        {"[1,2 , 3]", "[#1 #2 #3 ]$"},
        {"[[],[[]],{}]", "[[][[]]{}]$"},
        {"{\"a\":1,\"b\" : [null]}", "{\"a\":#1 \"b\":[n]}$"},
        {"{\"\":{\"\":{\"\":0}}}", "{\"\":{\"\":{\"\":#0 }}}$"},
        {"[{\"a\":1},{\"a\":2}]", "[{\"a\":#1 }{\"a\":#2 }]$"},
        {"{\"a\":{\"a\":1},\"b\":{\"a\":1}}", "{\"a\":{\"a\":#1 }\"b\":{\"a\":#1 }}$"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\"\\/\b\f\n\r\t\" $"},
        {"\"\\u0041\\u00e9\\u20AC\"", "\"A\xC3\xA9\xE2\x82\xAC\" $"},
        {"\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\" $"},
        {"\"\\uDBFF\\uDFFF\"", "\"\xF4\x8F\xBF\xBF\" $"},
        {"\"\\ud83d\"", "\"\xEF\xBF\xBD\" $"},
        {"\"\\ude00x\"", "\"\xEF\xBF\xBDx\" $"},
        {"\"\\ud83dx\"", "\"\xEF\xBF\xBDx\" $"},
        {"\"\\ud83d\\n\"", "\"\xEF\xBF\xBD\n\" $"},
        {"\"\\ud83d\\u0041\"", "\"\xEF\xBF\xBD"
                               "A\" $"},
        {"\"\\ud83d\\ud83d\\ude00\"", "\"\xEF\xBF\xBD\xF0\x9F\x98\x80\" $"},
        {"\"\\ud83d\xC3\xA9\"", "\"\xEF\xBF\xBD\xC3\xA9\" $"},
        {"\"\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\"",
         "\"\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\" $"},
        {"\"\x7F\"", "\"\x7F\" $"},
        {"\xEF\xBB\xBF[1]", "[#1 ]$"},
        {"[true,false,null]", "[tfn]$"},
    };
    for (size_t i = 0; i < TM_COUNT(table); i++) {
        check(table[i][0], 0, table[i][1]);
    }
}

static void invalid_texts(void **state) {
    (void)state;
    static const char *const table[][2] = {
        {"", "1:1: the text ends here; expected a value"},
        {" \n ", "2:2: the text ends here; expected a value"},
        {"[", "1:2: the text ends inside an array"},
        {"{", "1:2: the text ends inside an object"},
        {"[1", "1:3: the text ends inside an array"},
        {"[1,", "1:4: the text ends inside an array"},
        {"{\"a\"", "1:5: the text ends inside an object"},
        {"{\"a\":", "1:6: the text ends inside an object"},
        {"]", "1:1: expected a value, found ']'"},
        {"[1}", "1:3: expected ',' or ']', found '}'"},
        {"{\"a\":1]", "1:7: expected ',' or '}', found ']'"},
        {"[1,]", "1:4: expected a value, found ']'"},
        {"[,1]", "1:2: expected a value, found ','"},
        {"[1,,2]", "1:4: expected a value, found ','"},
        {"[1 2]", "1:4: expected ',' or ']', found '2'"},
        {"{\"a\":1,}", "1:8: expected a key in double quotes, found '}'"},
        {"{,}", "1:2: expected a key in double quotes, found ','"},
        {"{a:1}", "1:2: expected a key in double quotes, found 'a'"},
        {"{1:1}", "1:2: expected a key in double quotes, found '1'"},
        {"{'a':1}", "1:2: expected a key in double quotes, found '''"},
        {"{\"a\" 1}", "1:6: expected ':' after the key, found '1'"},
        {"{\"a\":}", "1:6: expected a value, found '}'"},
        {"{\"a\":1 \"b\":2}", "1:8: expected ',' or '}', found '\"'"},
        {"{\"a\":1,\n \"a\":2}", "2:2: key \"a\" is there twice"},
        {"{\"a\":1,\"\\u0061\":2}", "1:8: key \"a\" is there twice"},
        {"{\"x\":{\"a\":1,\"b\":{},\"a\":1}}", "1:20: key \"a\" is there twice"},
        {"1 2", "1:3: expected nothing more after the value, found '2'"},
        {"{}}", "1:3: expected nothing more after the value, found '}'"},
        {"[]\n\n x", "3:2: expected nothing more after the value, found 'x'"},
        {"01", "1:2: expected ',' or the end of the value, found '1'"},
        {"-", "1:2: the text ends here; expected a digit"},
        {"-a", "1:2: expected a digit, found 'a'"},
        {"+1", "1:1: expected a value, found '+'"},
        {".5", "1:1: expected a value, found '.'"},
        {"1.", "1:3: the text ends here; expected a digit"},
        {"1.e5", "1:3: expected a digit, found 'e'"},
        {"1e", "1:3: the text ends here; expected a digit"},
        {"1e+", "1:4: the text ends here; expected a digit"},
        {"[1e5.5]", "1:5: expected ',' or the end of the value, found '.'"},
        {"0x10", "1:2: expected ',' or the end of the value, found 'x'"},
        {"1_000", "1:2: expected ',' or the end of the value, found '_'"},
        {"1e999", "1:6: number 1e999 is out of range"},
        {"-1e999", "1:7: number -1e999 is out of range"},
        {"NaN", "1:1: NaN and Infinity are not JSON"},
        {"[Infinity]", "1:2: NaN and Infinity are not JSON"},
        {"-Infinity", "1:2: expected a digit, found 'I'"},
        {"nul", "1:1: expected a value, found 'n'"},
        {"nulL", "1:1: expected a value, found 'n'"},
        {"truely", "1:5: expected ',' or the end of the value, found 'l'"},
        {"True", "1:1: expected a value, found 'T'"},
        {"\"a", "1:3: the text ends inside a string"},
        {"\"a\\", "1:3: the text ends inside a string"},
        {"\"\\u12\"", "1:2: \\u needs four hexadecimal digits"},
        {"\"\\u12g4\"", "1:2: \\u needs four hexadecimal digits"},
        {"\"\\u", "1:2: \\u needs four hexadecimal digits"},
        {"\"\\x41\"", "1:2: unknown escape"},
        {"\"\\U0041\"", "1:2: unknown escape"},
        {"\"a\nb\"", "1:3: control character 0x0a in a string"},
        {"\"\t\"", "1:2: control character 0x09 in a string"},
        {"\"\xFF\"", "1:2: byte 0xff is not valid UTF-8"},
        {"\"\x80\"", "1:2: byte 0x80 is not valid UTF-8"},
        {"\"\xC0\x80\"", "1:2: byte 0xc0 is not valid UTF-8"},
        {"\"\xC1\xBF\"", "1:2: byte 0xc1 is not valid UTF-8"},
        {"\"\xC3\"", "1:2: byte 0xc3 is not valid UTF-8"},
        {"\"\xE0\x9F\xBF\"", "1:2: byte 0xe0 is not valid UTF-8"},
        {"\"\xED\xA0\x80\"", "1:2: byte 0xed is not valid UTF-8"},
        {"\"\xE2\x82\"", "1:2: byte 0xe2 is not valid UTF-8"},
        {"\"\xF0\x8F\xBF\xBF\"", "1:2: byte 0xf0 is not valid UTF-8"},
        {"\"\xF4\x90\x80\x80\"", "1:2: byte 0xf4 is not valid UTF-8"},
        {"\"\xF5\x80\x80\x80\"", "1:2: byte 0xf5 is not valid UTF-8"},
        {"\xC3\xA9", "1:1: expected a value, found byte 0xc3"},
        {"\xEF\xBB\xBF", "1:1: the text ends here"},
        {"// c\n1", "1:1: expected a value, found '/'"},
        {"#c\n1", "1:1: expected a value, found '#'"},
        {"[1/**/]", "1:3: expected ',' or the end of the value, found '/'"},
        {"\f1", "1:1: expected a value, found byte 0x0c"},
    };
    for (size_t i = 0; i < TM_COUNT(table); i++) {
        char expected[256];
        snprintf(expected, sizeof expected, "!t:%s", table[i][1]);
        tm_buf got = trace(table[i][0], strlen(table[i][0]), 0);
        if (strncmp(got.data, expected, strlen(expected)) != 0) {
            fail_msg("%s: got %s, expected %s", table[i][0], got.data, expected);
        }
        tm_buf_free(&got);
    }
}

static void relaxed_texts(void **state) {
    (void)state;
    static const char *const table[][2] = {
        {"// first\n{ # second\n \"a\": /* third */ 1, // fourth\n}", "{\"a\":#1 }$"},
        {"[1,2,]", "[#1 #2 ]$"},
        {"[1/**/,/*/ *** /*/2//\n]#end", "[#1 #2 ]$"},
        {"{\"a\":true//x\n}", "{\"a\":t}$"},
        {"[\"// no comment # /* here */\"]", "[\"// no comment # /* here */\" ]$"},
        {"1#", "#1 $"},
        {"[,]", "!t:1:2: expected a value, found ','"},
        {"[1,,]", "!t:1:4: expected a value, found ','"},
        {"{,}", "!t:1:2: expected a key in double quotes, found ','"},
        {"[1] /* open", "!t:1:11: the text ends inside a comment"},
        {"[1] / x", "!t:1:5: expected nothing more after the value, found '/'"},
        {"/* a\n b */ x", "!t:2:7: expected a value, found 'x'"},
        {"{\"a\":1,/*c*/\"a\":2}", "!t:1:13: key \"a\" is there twice"},
        {"#", "!t:1:2: the text ends here; expected a value"},
    };
    for (size_t i = 0; i < TM_COUNT(table); i++) check(table[i][0], TM_JSON_RELAXED, table[i][1]);
    check("{\"a\":1,\"a\":2}", TM_JSON_DUPLICATES_OK, "{\"a\":#1 \"a\":#2 }$");
}

static void lines(void **state) {
    (void)state;
    check("", TM_JSON_LINES, "$");
    check("\n\n", TM_JSON_LINES, "$");
    check("{\"a\":1}\n{\"a\":2}\n", TM_JSON_LINES, "{\"a\":#1 }{\"a\":#2 }$");
    check("1 2\n\"x\"", TM_JSON_LINES, "#1 #2 \"x\" $");
    check("{}\n{", TM_JSON_LINES, "!t:2:2: the text ends inside an object");
    check("{}\n]", TM_JSON_LINES, "!t:2:1: expected a value, found ']'");
    check("{},{}", TM_JSON_LINES, "!t:1:3: expected a value, found ','");
}

/* ---- limits ----------------------------------------------------------------------------------------------------- */

static void depth_is_limited(void **state) {
    (void)state;
    char text[1000];
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    tm_buf got = trace(text, 128, 0);
    assert_int_equal(got.len, 129);
    tm_buf_free(&got);
    memset(text, '[', 500);
    memset(text + 500, ']', 500);
    got = trace(text, 1000, 0);
    assert_string_equal(got.data, "!t:1:65: more than 64 levels deep");
    tm_buf_free(&got);
    for (int i = 0; i < 100; i++) memcpy(text + 5 * i, "{\"a\":", 5);
    got = trace(text, 500, TM_JSON_RELAXED);
    assert_string_equal(got.data, "!t:1:321: more than 64 levels deep");
    tm_buf_free(&got);
}

/* A bomb of 100 MB must be refused at once, and with little memory. */
static tm_status endless_brackets(void *ctx, void *buf, size_t cap, size_t *got) {
    *(size_t *)ctx += cap;
    memset(buf, '[', cap);
    *got = cap;
    return TM_OK;
}

static tm_status endless_string(void *ctx, void *buf, size_t cap, size_t *got) {
    bool start = *(size_t *)ctx == 0;
    *(size_t *)ctx += cap;
    memset(buf, 'x', cap);
    if (start) *(char *)buf = '"';
    *got = cap;
    return TM_OK;
}

static tm_status endless_number(void *ctx, void *buf, size_t cap, size_t *got) {
    *(size_t *)ctx += cap;
    memset(buf, '1', cap);
    *got = cap;
    return TM_OK;
}

static tm_status read_all(tm_read_fn read, void *ctx, size_t max_token) {
    tm_json_reader *r;
    tm_status rc = tm_json_reader_open(&r, read, ctx, "bomb", 0, max_token);
    tm_json_event e = {0};
    while (rc == TM_OK && e.type != TM_JSON_EOF) rc = tm_json_next(r, &e);
    tm_json_reader_close(r);
    return rc;
}

static void endless_input_is_refused(void **state) {
    (void)state;
    size_t consumed = 0;
    uint64_t live = tm_mem_live_bytes();
    assert_fails(read_all(endless_brackets, &consumed, 0), TM_EINPUT, "levels deep");
    assert_true(consumed < 200000);
    consumed = 0;
    assert_fails(read_all(endless_string, &consumed, 1000000), TM_EINPUT, "string of more than 1000000 bytes");
    assert_true(consumed < 1200000);
    consumed = 0;
    assert_fails(read_all(endless_number, &consumed, 1000), TM_EINPUT, "number of more than 1000 bytes");
    assert_int_equal(tm_mem_live_bytes(), live);
}

static tm_status failing_read(void *ctx, void *buf, size_t cap, size_t *got) {
    if (++*(int *)ctx == 3) return tm_fail(TM_EIO, "the disk is gone");
    return endless_number(&(size_t){0}, buf, cap < 5 ? cap : 5, got);
}

static void failed_read_is_handed_up(void **state) {
    (void)state;
    int calls = 0;
    tm_json_reader *r;
    tm_json_event e;
    tm_error_clear();
    assert_ok(tm_json_reader_open(&r, failing_read, &calls, "f", 0, 0));
    assert_fails(tm_json_next(r, &e), TM_EIO, "the disk is gone");
    assert_int_equal(calls, 3);
    assert_fails(tm_json_next(r, &e), TM_EIO, "already failed"); /* never reads on */
    assert_int_equal(calls, 3);
    tm_json_reader_close(r);
}

static const char sample[] = "{\"name\": \"m\xC3\xBChle \\ud83d\\ude00\\n\", \"list\": [1, -2.5e3, true, false, null, "
                             "{\"deep\": [[], {}]}],\n \"last\": 0}";

static void every_prefix_is_refused(void **state) {
    (void)state;
    size_t n = strlen(sample);
    for (size_t len = 0; len < n; len++) {
        tm_buf got = trace(sample, len, 0);
        if (got.data[0] != '!') fail_msg("the first %zu bytes passed as %s", len, got.data);
        tm_buf_free(&got);
        got = trace(sample, len, TM_JSON_RELAXED | TM_JSON_LINES);
        if (len > 0 && got.data[0] != '!') fail_msg("the first %zu bytes passed as %s", len, got.data);
        tm_buf_free(&got);
    }
    tm_buf got = trace(sample, n, 0);
    assert_string_equal(got.data,
                        "{\"name\":\"m\xC3\xBChle \xF0\x9F\x98\x80\n\" \"list\":[#1 #-2.5e3 tfn{\"deep\":[[]{}]}]"
                        "\"last\":#0 }$");
    tm_buf_free(&got);
}

/* Every byte of the sample replaced by every other: never a crash, always one line with a position, or success. */
static void every_mutation_is_survived(void **state) {
    (void)state;
    char text[sizeof sample];
    size_t refused = 0, n = strlen(sample);
    for (size_t i = 0; i < n; i++) {
        for (unsigned c = 0; c < 256; c++) {
            memcpy(text, sample, sizeof sample);
            text[i] = (char)c;
            tm_buf got = trace(text, n, c & 1 ? TM_JSON_RELAXED : 0);
            refused += got.data[0] == '!';
            if (got.data[0] == '!') assert_memory_equal(got.data, "!t:", 3);
            tm_buf_free(&got);
        }
    }
    assert_in_range(refused, n * 100, n * 255);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static void numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool is_integer;
        int64_t integer;
        double number;
    } table[] = {
        {"0", true, 0, 0},
        {"-0", true, 0, -0.0},
        {"42", true, 42, 42},
        {"9223372036854775807", true, INT64_MAX, 0x1p63},
        {"-9223372036854775808", true, INT64_MIN, -0x1p63},
        {"9223372036854775808", false, 0, 0x1p63},
        {"-9223372036854775809", false, 0, -0x1p63},
        {"123456789012345678901234567890", false, 0, 123456789012345678901234567890.0},
        {"9007199254740993", true, 9007199254740993, 9007199254740992.0},
        {"5e8", true, 500000000, 5e8},
        {"5E+8", true, 500000000, 5e8},
        {"-1e0", true, -1, -1},
        {"10e-1", true, 1, 1},
        {"1e-1", false, 0, 0.1},
        {"1e15", true, 1000000000000000, 1e15},
        {"1e16", false, 0, 1e16},
        {"1.0", false, 0, 1},
        {"0.1", false, 0, 0.1},
        {"2.2250738585072014e-308", false, 0, 0x1p-1022},
        {"4.9406564584124654e-324", false, 0, 0x1p-1074},
        {"1.7976931348623157e308", false, 0, 0x1.fffffffffffffp1023},
        {"1e-999", false, 0, 0},
    };
    for (size_t i = 0; i < TM_COUNT(table); i++) {
        tm_mem_source source = {.data = table[i].text, .len = strlen(table[i].text)};
        tm_json_reader *r;
        tm_json_event e;
        assert_ok(tm_json_reader_open(&r, tm_mem_source_read, &source, "n", 0, 0));
        assert_ok(tm_json_next(r, &e));
        assert_int_equal(e.type, TM_JSON_NUMBER);
        assert_string_equal(e.text, table[i].text);
        bool same = memcmp(&e.number, &table[i].number, sizeof e.number) == 0;
        bool as_integer = e.is_integer == table[i].is_integer && (!e.is_integer || e.integer == table[i].integer);
        bool underflow_to_integer = strcmp(table[i].text, "1e-999") == 0; /* zero; integral or not does not matter */
        if (!same || (!as_integer && !underflow_to_integer)) {
            fail_msg("%s: %.17g, integer %d %lld", e.text, e.number, e.is_integer, (long long)e.integer);
        }
        tm_json_reader_close(r);
    }
}

static void positions(void **state) {
    (void)state;
    const char *text = "{\n  \"a\": [1,\n 22],\r\n\t\"b\" : null}";
    static const struct {
        tm_json_type type;
        uint32_t line, column;
        uint64_t offset;
        unsigned depth;
    } expected[] = {{TM_JSON_OBJECT, 1, 1, 0, 0},  {TM_JSON_KEY, 2, 3, 4, 1},     {TM_JSON_ARRAY, 2, 8, 9, 1},
                    {TM_JSON_NUMBER, 2, 9, 10, 2}, {TM_JSON_NUMBER, 3, 2, 14, 2}, {TM_JSON_ARRAY_END, 3, 4, 16, 1},
                    {TM_JSON_KEY, 4, 2, 21, 1},    {TM_JSON_NULL, 4, 8, 27, 1},   {TM_JSON_OBJECT_END, 4, 12, 31, 0},
                    {TM_JSON_EOF, 4, 13, 32, 0}};
    tm_mem_source source = {.data = text, .len = strlen(text)};
    tm_json_reader *r;
    assert_ok(tm_json_reader_open(&r, drip, &source, "p", 0, 0));
    for (size_t i = 0; i < TM_COUNT(expected); i++) {
        tm_json_event e;
        assert_ok(tm_json_next(r, &e));
        assert_int_equal(e.type, expected[i].type);
        assert_int_equal(e.line, expected[i].line);
        assert_int_equal(e.column, expected[i].column);
        assert_int_equal(e.offset, expected[i].offset);
        assert_int_equal(e.depth, expected[i].depth);
    }
    tm_json_reader_close(r);
}

static void skipping(void **state) {
    (void)state;
    const char *text = "{\"a\": {\"x\": [1, {\"y\": []}], \"z\": 0}, \"b\": [[], [2]], \"c\": 3, \"d\": {}}";
    tm_mem_source source = {.data = text, .len = strlen(text)};
    tm_json_reader *r;
    tm_json_event e;
    assert_ok(tm_json_reader_open(&r, tm_mem_source_read, &source, "s", 0, 0));
    assert_ok(tm_json_next(r, &e));
    assert_ok(tm_json_next(r, &e)); /* key a */
    assert_ok(tm_json_skip(r, &e));
    assert_ok(tm_json_next(r, &e));
    assert_string_equal(e.text, "b");
    assert_ok(tm_json_next(r, &e));
    assert_int_equal(e.type, TM_JSON_ARRAY);
    assert_ok(tm_json_skip(r, &e));
    assert_ok(tm_json_next(r, &e));
    assert_string_equal(e.text, "c");
    assert_ok(tm_json_skip(r, &e));
    assert_ok(tm_json_next(r, &e));
    assert_string_equal(e.text, "d");
    assert_ok(tm_json_skip(r, &e));
    assert_ok(tm_json_next(r, &e));
    assert_int_equal(e.type, TM_JSON_OBJECT_END);
    assert_ok(tm_json_skip(r, &e)); /* nothing to skip */
    assert_ok(tm_json_next(r, &e));
    assert_int_equal(e.type, TM_JSON_EOF);
    tm_json_reader_close(r);
}

/* Of a processor: what neighbours take does not count, so that a limit can stay below what square time takes. */
static double cpu_seconds(void) {
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A vocabulary of 150,000 keys, as a tokenizer.json has: all distinct, then one twice at its very end. */
static void many_keys(void **state) {
    (void)state;
    tm_buf text = {0};
    assert_ok(tm_buf_append(&text, "{", 1));
    for (int i = 0; i < 150000; i++) assert_ok(tm_buf_printf(&text, "\"token %d\": %d,", i, i));
    size_t n = text.len;
    assert_ok(tm_buf_append(&text, "\"last\": 0}", 10));
    tm_mem_source source = {.data = text.data, .len = text.len};
    uint64_t before = tm_mem_live_bytes();
    double start = cpu_seconds();
    assert_ok(read_all(tm_mem_source_read, &source, 0));
    assert_true(cpu_seconds() - start < 3); /* some 0.03; a quadratic search takes minutes */
    assert_int_equal(tm_mem_live_bytes(), before);
    text.len = n;
    assert_ok(tm_buf_append(&text, "\"token 77777\": 0}", 17));
    source = (tm_mem_source){.data = text.data, .len = text.len};
    assert_fails(read_all(tm_mem_source_read, &source, 0), TM_EINPUT, "key \"token 77777\" is there twice");
    tm_buf_free(&text);
}

/* A large object, then very many small ones at the same depth: no one pays for the large one again. */
static void many_small_objects_after_a_large_one(void **state) {
    (void)state;
    tm_buf text = {0};
    assert_ok(tm_buf_append(&text, "[{\"0\":0", 7));
    for (int i = 1; i < 100000; i++) assert_ok(tm_buf_printf(&text, ",\"%d\":0", i));
    assert_ok(tm_buf_append(&text, "}", 1));
    for (int i = 0; i < 100000; i++) assert_ok(tm_buf_append(&text, ",{\"a\":0}", 8));
    assert_ok(tm_buf_append(&text, "]", 1));
    tm_mem_source source = {.data = text.data, .len = text.len};
    double start = cpu_seconds();
    assert_ok(read_all(tm_mem_source_read, &source, 0));
    assert_true(cpu_seconds() - start < 3); /* 2 MiB cleared for each are 200 GB: some 10 s */
    tm_buf_free(&text);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    uint64_t live = tm_mem_live_bytes();
    bool failed = true;
    for (int i = 1; failed; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "alloc:%d:fail:once", i);
        assert_ok(tm_fault_set(spec));
        tm_buf out = {0};
        tm_mem_source source = {.data = sample, .len = strlen(sample)};
        tm_error_clear();
        tm_status rc = read_all(drip, &source, 0);
        failed = rc != TM_OK;
        if (failed) assert_int_equal(rc, TM_ENOMEM);
        assert_true(i > 3 || failed);
        tm_buf_free(&out);
        assert_int_equal(tm_mem_live_bytes(), live);
    }
    assert_ok(tm_fault_set(NULL));
    tm_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_texts),
        cmocka_unit_test(invalid_texts),
        cmocka_unit_test(relaxed_texts),
        cmocka_unit_test(lines),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(endless_input_is_refused),
        cmocka_unit_test(failed_read_is_handed_up),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(every_mutation_is_survived),
        cmocka_unit_test(numbers),
        cmocka_unit_test(positions),
        cmocka_unit_test(skipping),
        cmocka_unit_test(many_keys),
        cmocka_unit_test(many_small_objects_after_a_large_one),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

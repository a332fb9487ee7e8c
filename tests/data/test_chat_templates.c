/* chat: what templates come to and what is refused of them: expressions, wrong values, nesting; time and memory that
 * they may take. */
#include "chat_folder.h"

#include <time.h>

static void test_templates_refused(void **state) {
    static const struct {
        const char *text;
        tm_status rc;
        const char *says;
    } bad[] = {
        {"{% for m in messages %}x", TM_EINPUT, "endfor"},
        {"{% if %}x{% endif %}", TM_EINPUT, "expression"},
        {"a\n{{ 'x' }", TM_EINPUT, ":2:"},
        {"{{ 'open }}", TM_EINPUT, "quote"},
        {"{{ x | nosuch }}", TM_EUNSUPPORTED, "nosuch"},
        {"{{ x is nosuch }}", TM_EUNSUPPORTED, "nosuch"},
        {"{% include 'x' %}", TM_EUNSUPPORTED, "include"},
        {"{% endif %}", TM_EUNSUPPORTED, "endif"},
        {"{# no end", TM_EINPUT, "comment"},
        {"{{ f(1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17) }}", TM_EUNSUPPORTED, "too many arguments"},
        {"{{ 'abc'[1:2:3:4] }}", TM_EINPUT, "too many parts"},
        {"{{ 'abc'[] }}", TM_EINPUT, "an empty subscript"},
        {"{{ 12345678901234567890 }}", TM_EINPUT, "a bad number"},
        {"{{ 12abc }}", TM_EINPUT, "a bad number"},
        {"{{ a $ b }}", TM_EINPUT, "no meaning"},
        {"\xff", TM_EINPUT, "UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        tm_chat *chat;
        tm_status rc = tm_chat_open(&chat, NULL, bad[i].text, strlen(bad[i].text), "T", NULL);
        if (rc != bad[i].rc || strstr(tm_error_get()->text, bad[i].says) == NULL)
            fail_msg("%s: %s, \"%s\"", bad[i].text, tm_status_name(rc), tm_error_get()->text);
        assert_null(chat);
        tm_error_clear();
    }
}

static void test_long_name(void **state) {
    (void)state;
    for (int n = 256; n <= 257; n++) {
        char text[300];
        tm_chat *chat;
        int len = snprintf(text, sizeof text, "{{ %0*d }}", n, 0);
        text[3] = 'a';
        tm_status rc = tm_chat_open(&chat, NULL, text, (size_t)len, "T", NULL);
        assert_int_equal(rc, n > 256 ? TM_EINPUT : TM_OK);
        tm_chat_close(chat);
    }
    assert_non_null(strstr(tm_error_get()->text, "256 characters"));
    tm_error_clear();
}

/* Deep nesting of every kind is an error, not a crash. */
static void test_nesting(void **state) {
    static const char *const units[][2] = {{"(", ")"},   {"[", "]"},     {"-", ""},
                                           {"not ", ""}, {"{'a':", "}"}, {"1 + (", ")"},
                                           {"a[", "]"},  {"f(", ")"},    {"1 if 1 else ", ""}};
    (void)state;
    for (size_t u = 0; u < TM_COUNT(units); u++) {
        tm_buf text = {0};
        tm_chat *chat;
        OK(tm_buf_append(&text, "{{ ", 3));
        for (int i = 0; i < 50000; i++) OK(tm_buf_append(&text, units[u][0], strlen(units[u][0])));
        OK(tm_buf_append(&text, "1", 1));
        for (int i = 0; i < 50000; i++) OK(tm_buf_append(&text, units[u][1], strlen(units[u][1])));
        OK(tm_buf_append(&text, " }}", 3));
        assert_int_equal(tm_chat_open(&chat, NULL, text.data, text.len, "T", NULL), TM_EUNSUPPORTED);
        tm_error_clear();
        tm_buf_free(&text);
    }
}

static tm_status render(const char *template, const char *messages, tm_buf *out) {
    tm_json_doc *doc;
    tm_chat *chat;
    OK(tm_json_parse(&doc, messages, strlen(messages), "messages", 0, 0));
    OK(tm_chat_open(&chat, NULL, template, strlen(template), "T", NULL));
    tm_status rc = tm_chat_render(chat, tm_json_root(doc), false, out, NULL);
    tm_chat_close(chat);
    tm_json_free(doc);
    return rc;
}

/* What jinja2 3.1.6 makes of them (trim_blocks, lstrip_blocks, as chat templates are rendered). What is refused here,
 * or printed otherwise (tuples as lists; tojson as transformers has it), is left out. */
static void test_expressions(void **state) {
    static const char *const rows[][2] = {
        {"{{ 'a-b-c'.replace('-', '+') }}", "a+b+c"},
        {"{{ 'a-b-c'.replace('-', '', 1) }}", "ab-c"},
        {"{{ 'aaa' | replace('a', 'bb') }}", "bbbbbb"},
        {"{{ 'hello'.find('l') }}", "2"},
        {"{{ 'hello'.find('z') }}", "-1"},
        {"{{ 'banana'.count('an') }}", "2"},
        {"{{ 'hello world'.title() }}", "Hello World"},
        {"{{ 'hELLO'.capitalize() }}", "Hello"},
        {"{{ 'hello WORLD' | title }}", "Hello World"},
        {"{{ 'hELLO' | capitalize }}", "Hello"},
        {"{{ 'ab'.upper() }}{{ 'AB'.lower() }}", "ABab"},
        {"{{ 'Ab' | lower }}{{ 'Ab' | upper }}", "abAB"},
        {"{{ 'a.b.c'.rsplit('.', 1) | join('|') }}", "a.b|c"},
        {"{{ 'a.b.c'.split('.', 1) | join('|') }}", "a|b.c"},
        {"{{ ' a  b '.split() | join('|') }}", "a|b"},
        {"{{ 'xxaxx'.strip('x') }}", "a"},
        {"{{ 'xxaxx'.lstrip('x') }},{{ 'xxaxx'.rstrip('x') }}", "axx,xxa"},
        {"{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('ab') }}", "TrueFalse"},
        {"{{ 'a\\nb\\n\\nc' | indent(2) }}", "a\n  b\n\n  c"},
        {"{{ 'a\\nb' | indent(2, true) }}", "  a\n  b"},
        {"{{ 'a\\n\\nb' | indent(1, false, true) }}", "a\n \n b"},
        {"{{ [3, 1, 2] | first }}{{ [3, 1, 2] | last }}", "32"},
        {"{{ 'abc' | first }}{{ 'abc' | last }}", "ac"},
        {"{{ [7, 8].1 }}{{ 3 not in [1] }}{{ +3 }}{{ not 1 is odd }}", "8True3False"},
        {"{{ 4 is divisibleby(2) }}{{ 4 is divisibleby 2 and 1 }}{{ x is defined or 5 }}", "True15"},
        {"{{ 1 if 4 is even else 2 }}{{ [1, 2] is eq [1, 2] }}{{ 'a' 'b' }}", "1Trueab"},
        {"{{ 'abc'.startswith(('x', 'ab')) }}{{ 'abc'.endswith(('x', 'y')) }}", "TrueFalse"},
        {"{{ '-'.join(['1', '2']) }}{{ [{'n': 1}, {'n': 2}] | join('-', attribute='n') }}", "1-21-2"},
        {"{{ [] | first is defined }}{{ [] | last is defined }}{{ x | items | list }}", "FalseFalse[]"},
        {"{{ range(3, 0) | list }}{{ range(5, 0, -2) | list }}{{ range(true) | list }}", "[][5, 3, 1][0]"},
        {"{{ 'a b c'.rsplit(' ', 5) | join('|') }}{{ 'a.b'.rsplit('.') | join('|') }}", "a|b|ca|b"},
        {"{{ [{'a': 1}, {}] | map(attribute='a', default=0) | list }}", "[1, 0]"},
        {"{{ '1x' | int(3) }}{{ ' 7 ' | int }}{{ 0 | default(5, true) }}{{ x | default }}{{ 2.5 | abs }}", "3752.5"},
        {"{{ True and none is none }}{{ False or 2 }}", "True2"},
        {"{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 2 ** 3 }}{{ 1.5 * 2 }}{{ 7 / 2 }}", "3-4283.03.5"},
        {"{{ 'abcdef'[1:5:2] }}{{ 'abc'[::-1] }}{{ [1, 2, 3][-2:] }}{{ 'abc'[none:1] }}", "bdcba[2, 3]a"},
        {"{{ 'ab' < 'abc' }}{{ 'b' > 'abc' }}{{ 1 < 1.5 <= 2 }}{{ 'a' >= 'a' }}", "TrueTrueTrueTrue"},
        {"{{ [1, [2]] == [1, [2]] }}{{ {'a': 1} == {'a': 2} }}{{ {'a': 1} != {'b': 1} }}{{ [1] == [1, 2] }}",
         "TrueFalseTrueFalse"},
        {"{{ 'a' ~ 1 ~ none }}{{ [1] + [2] }}{{ 'ab' * 2 }}", "a1None[1, 2]abab"},
        {"{{ {'b': 1, 'a': [true, none, 1.5]} | tojson(sort_keys=true) }}", "{\"a\": [true, null, 1.5], \"b\": 1}"},
        {"{{ [1, 2] | tojson(separators=(',', ':')) }}{{ {'a': 1} | tojson(separators=(',', ':')) }}",
         "[1,2]{\"a\":1}"},
        {"{{ ['\"', \"'\", '\\n\\t\\\\'] }}", "['\"', \"'\", '\\n\\t\\\\']"},
        {"{{ 'abc' | reverse }}", "cba"},
        {"{{ [1, 2, 3] | reverse | list }}", "[3, 2, 1]"},
        {"{{ [1, 2, 1, 3, 2] | unique | list }}", "[1, 2, 3]"},
        {"{{ -3 | abs }}{{ (-2.5) | abs }}", "32.5"},
        {"{{ '12' | int }},{{ 'x' | int }},{{ 'x' | int(7) }},{{ 3.9 | int }},{{ true | int }}", "12,0,7,3,1"},
        {"{{ 5 | string }}{{ none | string }}", "5None"},
        {"{{ 'x' | safe }}", "x"},
        {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"},
        {"{{ {'a': 1, 'b': 2}.keys() | list }}{{ {'a': 1}.values() | list }}", "['a', 'b'][1]"},
        {"{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 9) }}", "1None9"},
        {"{{ [1, 2, 3, 4] | select('odd') | list }}{{ [1, 2, 3, 4] | reject('odd') | list }}", "[1, 3][2, 4]"},
        {"{{ [0, 1, '', 'x'] | select | list }}", "[1, 'x']"},
        {"{{ [1, 2, 3] | select('gt', 1) | list }}{{ [1, 2, 3] | reject('le', 2) | list }}", "[2, 3][3]"},
        {"{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list }}", "[{'a': 2}]"},
        {"{{ [{'a': 1}, {'b': 2}] | rejectattr('a') | list }}", "[{'b': 2}]"},
        {"{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | join(',') }}", "1,2"},
        {"{{ ['a', 'b'] | map('upper') | list }}", "['A', 'B']"},
        {"{{ 1 is integer }}{{ 1.5 is integer }}{{ true is integer }}{{ 1.5 is float }}{{ 1 is float }}",
         "TrueFalseFalseTrueFalse"},
        {"{{ 1 is number }}{{ 'a' is number }}{{ true is boolean }}{{ 1 is boolean }}", "TrueFalseTrueFalse"},
        {"{{ none is none }}{{ x is undefined }}{{ x is defined }}", "TrueTrueFalse"},
        {"{{ 'a' is string }}{{ [] is mapping }}{{ {} is mapping }}{{ 'ab' is iterable }}{{ 1 is iterable }}",
         "TrueFalseTrueTrueFalse"},
        {"{{ 1 is true }}{{ true is true }}{{ false is false }}{{ 0 is false }}", "FalseTrueTrueFalse"},
        {"{{ 2 is eq 2 }}{{ 2 is ne 2 }}{{ 1 is lt 2 }}{{ 1 is gt 2 }}{{ 2 is le 2 }}{{ 1 is ge 2 }}",
         "TrueFalseTrueFalseTrueFalse"},
        {"{{ 1 is in [1, 2] }}{{ 'a' is in 'abc' }}{{ 3 is not in [1] }}", "TrueTrueTrue"},
        {"{{ 4 is even }}{{ 3 is odd }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby 2 }}", "TrueTrueTrueFalse"},
        {"{{ range is callable }}{{ 1 is callable }}", "TrueFalse"},
        {"{% for i in [1, 2, 3] %}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }}{{ loop.previtem }}{{ "
         "loop.nextitem }} {% endfor %}",
         "3232 21313 1032 "},
        {"{{ dict(a=1, b='x') }}", "{'a': 1, 'b': 'x'}"},
        {"{{ [1, 'a', none, true, 2.5] }}", "[1, 'a', None, True, 2.5]"},
        {"{{ {'a': [1, {'b': none}]} }}", "{'a': [1, {'b': None}]}"},
        {"{{ {'a': [1, {'b': 2}]} | tojson(indent=2) }}",
         "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ]\n}"},
        {"{{ x | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | d('z') }}", "ddNone"},
        {"{{ 1.0 }},{{ 1e20 }},{{ 0.1 + 0.2 }},{{ 1 / 3 }},{{ 100.0 * 10 }}",
         "1.0,1e+20,0.30000000000000004,0.3333333333333333,1000.0"},
        {"{{ 'abc'[1:] }}{{ 'abc'[::-1] }}{{ [1, 2, 3, 4][1:3] }}{{ [1, 2, 3][-1] }}{{ 'abcdef'[::2] }}{{ [1, 2, "
         "3][:-1] }}",
         "bccba[2, 3]3ace[1, 2]"},
        {"{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"},
        {"{{ 1 if false else 2 }}{{ 1 if false }}", "2"},
        {"{{ not x }}{{ (1 and 0) }}{{ (0 or 'y') }}", "True0y"},
        {"{{ 'it''s' }}", "its"},
        {"{{ 'a' in {'a': 1} }}{{ 1 in [2] }}", "TrueFalse"},
        {"{{ range(5) | list }}{{ range(1, 9, 3) | list }}{{ range(3, 0, -1) | list }}",
         "[0, 1, 2, 3, 4][1, 4, 7][3, 2, 1]"},
        {"{{ 'a,b' | length }}{{ [1, 2] | count }}{{ {'a': 1} | length }}", "321"},
        {"{{ range(*[1, 4]) | list }}{{ dict(a=1, **{'b': 2}) }}{{ 'a-b'.split(*['-']) }}",
         "[1, 2, 3]{'a': 1, 'b': 2}['a', 'b']"},
        {"{% macro f(a, b=2, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(*[7, 8], **{'c': 9}) }}{% set l = [f] %}{{ "
         "l[0](*[1]) }}",
         "789123"},
        {"{{ ['b', 'A', 'c'] | sort | join }}{{ ['b', 'A', 'c'] | sort(case_sensitive=true) | join }}{{ [2, 3, 1] | "
         "sort(reverse=true) }}",
         "AbcAbc[3, 2, 1]"},
        {"{{ [{'n': 2, 'k': 'x'}, {'n': 1, 'k': 'y'}] | sort(attribute='n') | map(attribute='k') | join }}", "yx"},
        {"{% for k, v in {'b': 1, 'A': 3, 'c': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}", "A3b1c2"},
        {"{% for k, v in {'b': 1, 'A': 3, 'c': 2} | dictsort(false, 'value') %}{{ k }}{{ v }}{% endfor %}", "b1c2A3"},
        {"{% for k, v in {'b': 1, 'A': 3, 'c': 2} | dictsort(reverse=true) %}{{ k }}{{ v }}{% endfor %}", "c2b1A3"},
        {"{{ [1, 2.5] | sum }}{{ [{'n': 2}, {'n': 1}] | sum(attribute='n', start=4) }}", "3.57"},
        {"{{ '1.5' | float }}{{ 2 | float }}{{ 'x' | float }}{{ 'x' | float(3.5) }}{{ ' 7 ' | float }}",
         "1.52.00.03.57.0"},
        {"{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}{{ ['b', 'A'] | min }}{{ [] | max is defined }}{{ [{'n': 2}, {'n': "
         "1}] | min(attribute='n') }}",
         "13AFalse{'n': 1}"},
        {"{{ ['x', 'y'] | join }}{{ [1, 2] | join(', ') }}", "xy1, 2"},
    };
    (void)state;
    unsigned wrong = 0;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_buf out = {0};
        tm_status rc = render(rows[i][0], "[{\"role\": \"user\", \"content\": \"\"}]", &out);
        const char *got = rc == TM_OK ? (out.data ? out.data : "") : tm_error_get()->text;
        if (rc != TM_OK || strcmp(got, rows[i][1]) != 0) {
            print_error("%s: \"%s\", expected \"%s\"\n", rows[i][0], got, rows[i][1]);
            wrong++;
        }
        tm_error_clear();
        tm_buf_free(&out);
    }
    assert_int_equal(wrong, 0);
}

/* What a template does with values of the wrong kind: refused with its line, never a guess. */
static void test_wrong_values(void **state) {
    static const struct {
        const char *text;
        tm_status rc;
        const char *says;
    } bad[] = {
        {"{{ range(*1) }}", TM_EINPUT, "cannot be iterated over"},
        {"{{ dict(**[1]) }}", TM_EINPUT, "** of a list"},
        {"{{ range(*range(17)) }}", TM_EUNSUPPORTED, "too many arguments"},
        {"{{ 'a'.strip(1) }}", TM_EINPUT, "argument 1 must be a string, not int"},
        {"{{ 'a'.split('a', 'b') }}", TM_EINPUT, "argument 2 must be an integer, not str"},
        {"{{ 'a'.split('') }}", TM_EINPUT, "empty string"},
        {"{{ 'a'.rsplit(none, 1) }}", TM_EUNSUPPORTED, "rsplit"},
        {"{{ 'a'.replace('', 'b') }}", TM_EUNSUPPORTED, "empty string"},
        {"{{ 'a'.replace('b') }}", TM_EINPUT, "two strings"},
        {"{{ 'a'.startswith(1) }}", TM_EINPUT, "need a string"},
        {"{{ 'a'.endswith() }}", TM_EINPUT, "need a string"},
        {"{{ 'a'.find() }}", TM_EINPUT, "find needs"},
        {"{{ 'a'.count('') }}", TM_EINPUT, "count needs"},
        {"{{ {'a': 1}.get() }}", TM_EINPUT, "get needs a key"},
        {"{{ 'a'.nosuch() }}", TM_EINPUT, "'nosuch' is undefined"},
        {"{{ 'a'.nosuch.more }}", TM_EINPUT, "'nosuch' is undefined"},
        {"{{ x.y }}", TM_EINPUT, "'x' is undefined"},
        {"{{ x['y'] }}", TM_EINPUT, "'x' is undefined"},
        {"{{ x() }}", TM_EINPUT, "'x' is undefined"},
        {"{{ 1() }}", TM_EINPUT, "cannot be called"},
        {"{% for i in [1] %}{{ loop.nosuch }}{% endfor %}", TM_EUNSUPPORTED, "loop attribute"},
        {"{{ range(1, 2, 0) }}", TM_EINPUT, "a bad range"},
        {"{{ range('a') }}", TM_EINPUT, "must be an integer"},
        {"{{ range(4294967296) }}", TM_EUNSUPPORTED, "32 bits"},
        {"{{ namespace(1) }}", TM_EUNSUPPORTED, "keywords"},
        {"{{ strftime_now() }}", TM_EINPUT, "needs a format"},
        {"{{ strftime_now('%Y' * 100) }}", TM_EUNSUPPORTED, "date format"},
        {"\n{{ raise_exception('roles!') }}", TM_EINPUT, "T:2: chat template: roles!"},
        {"{{ raise_exception() }}", TM_EINPUT, "T:1"},
        {"{{ 1 | length }}", TM_EINPUT, "a int has no length"},
        {"{{ 1 | items }}", TM_EINPUT, "items of a int"},
        {"{{ 1 | dictsort }}", TM_EINPUT, "dictsort of a int"},
        {"{{ {'a': 1} | dictsort(by='x') }}", TM_EINPUT, "by 'key' or by 'value'"},
        {"{{ ['a', 1] | sort }}", TM_EINPUT, "have no order"},
        {"{{ ['a'] | sum }}", TM_EINPUT, "int + str is not possible"},
        {"{{ (10.0 ** 64) | int }}", TM_EINPUT, "64 bits"},
        {"{{ 'x' | abs }}", TM_EINPUT, "abs of a str"},
        {"{{ 'x' | indent('y') }}", TM_EINPUT, "must be an integer"},
        {"{{ [1] | select('nosuch') | list }}", TM_EUNSUPPORTED, "unknown test 'nosuch'"},
        {"{{ [1] | selectattr(1) | list }}", TM_EINPUT, "must be a string"},
        {"{{ [1] | selectattr | list }}", TM_EINPUT, "attribute's name"},
        {"{{ [1] | map | list }}", TM_EUNSUPPORTED, "map with neither"},
        {"{{ [1] | map('nosuch') | list }}", TM_EUNSUPPORTED, "map with neither"},
        {"{{ 1 | map('upper') | list }}", TM_EINPUT, "cannot be iterated over"},
        {"{{ 1 | list }}", TM_EINPUT, "cannot be iterated over"},
        {"{{ [[1]] | map('map', 'abs') | map('first') | join(1) }}", TM_EINPUT, "must be a string"},
        {"{{ [1] | tojson(ensure_ascii=true) }}", TM_EUNSUPPORTED, "ensure_ascii"},
        {"{{ range | tojson }}", TM_EINPUT, "a function cannot be written"},
        {"{{ 1 is eq }}", TM_EINPUT, "without the value"},
        {"{{ 'a' is odd }}", TM_EINPUT, "divisibility of a str"},
        {"{{ 4 is divisibleby 0 }}", TM_EINPUT, "divisibility"},
        {"{{ 1 in 2 }}", TM_EINPUT, "cannot be iterated over"},
        {"{{ 1 in 'a' }}", TM_EINPUT, "needs a string"},
        {"{{ 1 < 'a' }}", TM_EINPUT, "have no order"},
        {"{{ 1 + 'a' }}", TM_EINPUT, "int + str is not possible"},
        {"{{ 'a' - x }}", TM_EINPUT, "'x' is undefined"},
        {"{{ -'a' }}", TM_EINPUT, "not possible"},
        {"{{ 1 / 0 }}", TM_EINPUT, "division by zero"},
        {"{{ 1 // 0 }}", TM_EINPUT, "division by zero"},
        {"{{ 1.5 % 0 }}", TM_EINPUT, "division by zero"},
        {"{{ 1.5 // 2 }}", TM_EUNSUPPORTED, "of a float"},
        {"{{ 922337203685477580 * 10 + 10 }}", TM_EUNSUPPORTED, "above 64 bits"},
        {"{{ -922337203685477580 * 10 - 10 }}", TM_EUNSUPPORTED, "above 64 bits"},
        {"{{ 922337203685477580 * 100 }}", TM_EUNSUPPORTED, "above 64 bits"},
        {"{{ (-922337203685477580 * 10 - 8) // -1 }}", TM_EUNSUPPORTED, "above 64 bits"},
        {"{{ 2 ** 0.5 }}", TM_EUNSUPPORTED, "exponent"},
        {"{{ {1: 2} }}", TM_EUNSUPPORTED, "dictionary key"},
        {"{{ 'abc'['a':] }}", TM_EINPUT, "slice bound"},
        {"{{ 'abc'[::0] }}", TM_EINPUT, "slice step"},
        {"{{ 1[1:] }}", TM_EINPUT, "a slice of int"},
        {"{% set a, b = [1] %}", TM_EINPUT, "too few values"},
        {"{% set a, b = [1, 2, 3] %}", TM_EINPUT, "too many values"},
        {"{% set a = {} %}{% set a.b = 1 %}", TM_EINPUT, "only a namespace's"},
        {"{% for a, b in [1] %}{% endfor %}", TM_EINPUT, "cannot be iterated over"},
        {"{% for a in 5 %}{% endfor %}", TM_EINPUT, "cannot be iterated over"},
        {"{% for a in [1] if 1 < 'a' %}{% endfor %}", TM_EINPUT, "have no order"},
    };
    uint64_t live = tm_mem_live_bytes();
    (void)state;
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        tm_buf out = {0};
        tm_status rc = render(bad[i].text, "[{\"role\": \"user\", \"content\": \"\"}]", &out);
        if (rc != bad[i].rc || !strstr(tm_error_get()->text, bad[i].says))
            fail_msg("%s: %s, \"%s\"", bad[i].text, tm_status_name(rc), tm_error_get()->text);
        assert_int_equal(out.len, 0);
        tm_error_clear();
    }
    assert_int_equal(tm_mem_live_bytes(), live);
}

static double cpu_seconds(void) {
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#ifdef TIDEMILL_SANITIZED
static const double most_seconds = 4;
enum { MANY_MESSAGES = 6000, RUNAWAYS = 1 }; /* of the long ones, which take their time there */
#else
static const double most_seconds = 1;
enum { MANY_MESSAGES = 60000, RUNAWAYS = 3 };
#endif

/* What `text` comes to, and the seconds of processor that it took. Whoever shares the processor's caches may make that
 * more, but not time and again: what takes more than `most` is done again, up to four times. */
static tm_status render_timed(const char *text, const char *messages, double most, double *took) {
    tm_status rc = TM_OK;
    *took = most + 1;
    for (unsigned tries = 0; tries < 5 && *took > most; tries++) {
        tm_buf out = {0};
        tm_error_clear();
        double began = cpu_seconds();
        rc = render(text, messages, &out);
        *took = cpu_seconds() - began;
        assert_int_equal(rc == TM_OK ? 0 : out.len, 0);
        tm_buf_free(&out);
    }
    return rc;
}

/* Whatever it does, a template is stopped within a second and 64 MiB: what touches much at a step counts as many. */
static void test_runaway(void **state) {
    static const char a[] = "{% set k = 'a' * 1000000 %}{% set l = k + 'b' %}{% set d = {k: 1} %}"
                            "{% for i in range(999999) %}";
    static const char *const templates[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ 'x' * 999999999999 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(l=[1]) %}{% for a in range(500) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{{ range(999999999) }}",
        "@{% if d[k] %}{% endif %}{% endfor %}",
        "@{% if k < l %}{% endif %}{% endfor %}",
        "@{% if k == l[:1000000] %}{% endif %}{% endfor %}",
        "@{% if k.find('b') > 0 %}{% endif %}{% endfor %}",
        "@{% if k.startswith(k) %}{% endif %}{% endfor %}",
        "@{% if k.split('b') | length > 1 %}{% endif %}{% endfor %}",
        "@{% if k.replace('b', 'c') == 1 %}{% endif %}{% endfor %}",
        "@{% if k | tojson == 1 %}{% endif %}{% endfor %}",
        "@{% if k[999999] == 'b' %}{% endif %}{% endfor %}",
        "@{% if k | trim == 'b' %}{% endif %}{% endfor %}",
        "@{% if k | upper == 'b' %}{% endif %}{% endfor %}",
        "@{% if 'b' in k %}{% endif %}{% endfor %}",
    };
    uint64_t live = tm_mem_live_bytes();
    (void)state;
    for (size_t i = 0; i < TM_COUNT(templates); i++) {
        tm_buf text = {0};
        bool long_one = *templates[i] == '@';
        double took;
        OK(tm_buf_printf(&text, "%s%s", long_one ? a : "", templates[i] + long_one));
        tm_status rc = render_timed(text.data, "[{\"role\": \"user\", \"content\": \"\"}]", most_seconds, &took);
        if (rc != TM_EUNSUPPORTED || took > most_seconds)
            fail_msg("%s: %s after %.2f s", templates[i], tm_status_name(rc), took);
        tm_error_clear();
        tm_buf_free(&text);
    }
    assert_int_equal(tm_mem_live_bytes(), live);
    assert_true(tm_mem_peak_bytes() <= live + 64 * TM_MIB);
}

/* A long conversation may take as much more as it is longer; both sorts of long: few messages, and many. */
typedef struct long_case {
    const char *folder, *first, *head, *middle, *tail; /* what each message becomes: head role middle content tail */
} long_case;

static void put_long(const long_case *c, size_t messages, size_t bytes, tm_buf *json, tm_buf *want) {
    char *content = tm_malloc(bytes + 1);
    assert_non_null(content);
    memset(content, 'x', bytes), content[bytes] = 0;
    OK(tm_buf_append(want, c->first, strlen(c->first)));
    for (size_t i = 0; i < messages; i++) {
        const char *role = i % 2 ? "assistant" : "user";
        OK(tm_buf_printf(json, "%s{\"role\": \"%s\", \"content\": \"", i ? ", " : "[", role));
        OK(tm_buf_append(json, content, bytes));
        OK(tm_buf_append(json, "\"}", 2));
        OK(tm_buf_printf(want, "%s%s%s", c->head, role, c->middle));
        OK(tm_buf_append(want, content, bytes));
        OK(tm_buf_append(want, c->tail, strlen(c->tail)));
    }
    OK(tm_buf_append(json, "]", 1));
    tm_free(content);
}

static void render_long(const long_case *c, size_t messages, size_t bytes) {
    char dir[512];
    (void)snprintf(dir, sizeof dir, "%s/%s", TM_TEST_FIXTURES, c->folder);
    tm_tokenizer *tokenizer = open_tokenizer(dir);
    tm_chat *chat = open_chat(dir, tokenizer);
    tm_buf json = {0}, want = {0}, got = {0};
    tm_chat_spans spans = {0};
    tm_json_doc *doc;
    put_long(c, messages, bytes, &json, &want);
    OK(tm_json_parse(&doc, json.data, json.len, "messages", 0, 1ull << 30));
    OK(tm_chat_render(chat, tm_json_root(doc), false, &got, &spans));
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.data, want.data, want.len);
    assert_int_equal(spans.n, messages / 2);
    tm_json_free(doc);
    tm_buf_free(&json);
    tm_buf_free(&want);
    tm_buf_free(&got);
    tm_chat_spans_free(&spans);
    tm_chat_close(chat);
    tm_tokenizer_close(tokenizer);
}

static void test_long_conversations(void **state) {
    static const long_case templates[] = {
        {"chat_qwen", "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", "<|im_start|>", "\n",
         "<|im_end|>\n"},
        {"chat_llama3", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(templates); i++) {
        render_long(&templates[i], 2, 6 << 20);
        render_long(&templates[i], MANY_MESSAGES, 160);
    }
}

/* ... and what runs away over one is stopped as well: after three times the steps and 64 MiB + 8 times its bytes. */
static void test_runaway_over_much(void **state) {
    static const char *const templates[] = {
        "{% set ns = namespace(s=messages[0].content) %}{% for a in range(64) %}{% set ns.s = ns.s + 'x' %}{% endfor "
        "%}",
        "{% set c = messages[0].content %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor "
        "%}",
        "{% set c = messages[0].content %}{% for a in range(999999) %}{% if 'b' in c %}{% endif %}{% endfor %}",
    };
    tm_buf json = {0}, want = {0};
    (void)state;
    put_long(&(long_case){.first = "", .head = "", .middle = "", .tail = ""}, 1, 12 << 20, &json, &want);
    uint64_t live = tm_mem_live_bytes(), bytes = 12 << 20;
    for (size_t i = 0; i < RUNAWAYS; i++) {
        double took;
        tm_status rc = render_timed(templates[i], json.data, 4 * most_seconds, &took);
        if (rc != TM_EUNSUPPORTED || took > 4 * most_seconds)
            fail_msg("%s: %s after %.2f s", templates[i], tm_status_name(rc), took);
        tm_error_clear();
    }
    assert_int_equal(tm_mem_live_bytes(), live);
    assert_in_range(tm_mem_peak_bytes() - live, 8 * bytes, 64 * TM_MIB + 10 * bytes); /* 8, the parsed line, its text */
    tm_buf_free(&json);
    tm_buf_free(&want);
}

/* What a template may take of a long conversation is bounded by the opener as well. */
static void test_bounded_memory(void **state) {
    static const char text[] = "{{ messages[0].content + 'x' }}";
    tm_buf json = {0}, want = {0};
    tm_json_doc *doc;
    (void)state;
    put_long(&(long_case){.first = "", .head = "", .middle = "", .tail = ""}, 1, 12 << 20, &json, &want);
    OK(tm_json_parse(&doc, json.data, json.len, "messages", 0, 1ull << 30));
    for (uint64_t most = 0; most <= 40 * TM_MIB; most += 40 * TM_MIB) {
        const tm_chat_opts opts = {.memory_bytes = most};
        tm_chat *chat;
        tm_buf out = {0};
        OK(tm_chat_open(&chat, NULL, text, sizeof text - 1, "template", &opts));
        tm_status rc = tm_chat_render(chat, tm_json_root(doc), false, &out, NULL);
        if (most == 0) {
            assert_int_equal(rc, TM_OK);
            assert_true(out.len > 12 << 20);
        } else {
            assert_int_equal(rc, TM_EUNSUPPORTED);
            assert_non_null(strstr(tm_error_get()->text, "needs more than 40 MiB"));
            tm_error_clear();
        }
        tm_buf_free(&out);
        tm_chat_close(chat);
    }
    tm_json_free(doc);
    tm_buf_free(&json);
    tm_buf_free(&want);
}

/* Text that is no turn's opening but repeats itself: it is not looked for place by place. */
static void test_long_prompt(void **state) {
    static const char text[] = "{{ 'a' * 1000000 }}{{ messages[0].content }}"
                               "{% if add_generation_prompt %}{{ 'a' * 300000 }}{% endif %}";
    static const char messages[] = "[{\"role\": \"assistant\", \"content\": \"y\"}]";
    const tm_chat_opts opts = {.eos_token = "aaaaaaaab"};
    tm_json_doc *doc;
    tm_chat *chat;
    tm_buf out = {0};
    tm_chat_spans spans = {0};
    (void)state;
    OK(tm_json_parse(&doc, messages, sizeof messages - 1, "messages", 0, 0));
    OK(tm_chat_open(&chat, NULL, text, sizeof text - 1, "T", &opts));
    double took = most_seconds;
    for (unsigned tries = 0; tries < 5 && took >= most_seconds; tries++) {
        tm_buf_clear(&out);
        tm_chat_spans_free(&spans);
        spans = (tm_chat_spans){0};
        double began = cpu_seconds();
        OK(tm_chat_render(chat, tm_json_root(doc), false, &out, &spans));
        took = cpu_seconds() - began;
    }
    assert_true(took < most_seconds);
    assert_int_equal(spans.n, 1);
    assert_int_equal(spans.span[0].begin, 1000000);
    assert_int_equal(spans.span[0].end, 1000001);
    tm_chat_close(chat);
    tm_json_free(doc);
    tm_buf_free(&out);
    tm_chat_spans_free(&spans);
}

static void test_messages_refused(void **state) {
    static const char *const bad[] = {"[]", "{}", "[1]", "[{\"content\": \"x\"}]", "[{\"role\": 1}]"};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        tm_buf out = {0};
        assert_int_equal(render("{{ messages[0].content }}", bad[i], &out), TM_EINPUT);
        assert_int_equal(out.len, 0);
        tm_error_clear();
    }
}

/* strftime_now is the given time, so that a run can be repeated. */
static void test_now(void **state) {
    static const char text[] = "{{ strftime_now('%Y') }}", messages[] = "[{\"role\": \"user\", \"content\": \"\"}]";
    const tm_chat_opts opts = {.now = 86400 * 200};
    tm_json_doc *doc;
    tm_chat *chat;
    tm_buf out = {0};
    (void)state;
    OK(tm_json_parse(&doc, messages, sizeof messages - 1, "messages", 0, 0));
    OK(tm_chat_open(&chat, NULL, text, sizeof text - 1, "T", &opts));
    OK(tm_chat_render(chat, tm_json_root(doc), false, &out, NULL));
    assert_string_equal(out.data, "1970");
    tm_chat_close(chat);
    tm_json_free(doc);
    tm_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates_refused),
        cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_runaway),
        cmocka_unit_test(test_runaway_over_much),
        cmocka_unit_test(test_bounded_memory),
        cmocka_unit_test(test_long_conversations),
        cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_messages_refused),
        cmocka_unit_test(test_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Expressions against Python's re (fixtures: python_re.json), and hostile ones. */
#include "world.h"

#include "text/pattern.h"

/* What Python takes and this program does not: said so, never taken for something else. */
static bool is_left_out(const char *regex) {
    static const char *const all[] = {"(?x)a b", "(?a)\\w"};
    for (size_t i = 0; i < TM_COUNT(all); i++)
        if (!strcmp(regex, all[i])) return true;
    return false;
}

/* What Python refuses and PCRE2 takes, to nobody's harm: it means what it says. */
static bool is_more(const char *regex) {
    static const char *const all[] = {"a**", "a{2}{3}"};
    for (size_t i = 0; i < TM_COUNT(all); i++)
        if (!strcmp(regex, all[i])) return true;
    return false;
}

static void compare(const char *regex, const tm_json *texts, tm_pattern_how how) {
    tm_pattern *p;
    bool found;
    if (tm_pattern_open(&p, regex, strlen(regex), how) != TM_OK) fail_msg("%s: %s", regex, tm_error_get()->text);
    for (const tm_json *t = texts->child; t; t = t->next) {
        const tm_json *wanted = t->child->next;
        for (int i = 0; i < (int)how; i++) wanted = wanted->next;
        assert_int_equal(tm_pattern_finds(p, t->child->text, &found), TM_OK);
        if (found != wanted->boolean) fail_msg("%s on %s (%d): %d", regex, t->child->text, (int)how, found);
    }
    tm_pattern_close(p);
}

static void as_python_does(void **state) {
    (void)state;
    tm_json_doc *doc = answers_of("python_re.json");
    for (const tm_json *e = tm_json_root(doc)->child; e; e = e->next) {
        const char *regex = e->child->text;
        const tm_json *texts = e->child->next;
        tm_pattern *p;
        if (is_more(regex)) continue;
        if (texts->type == TM_JSON_NULL || is_left_out(regex)) {
            tm_status rc = tm_pattern_open(&p, regex, strlen(regex), TM_PATTERN_FULL);
            if (rc == TM_OK) fail_msg("%s: taken", regex);
            fails_with(rc, rc == TM_EUNSUPPORTED ? rc : TM_EINPUT, "the regular expression \"");
            continue;
        }
        for (int how = TM_PATTERN_FULL; how <= TM_PATTERN_SEARCH; how++) compare(regex, texts, (tm_pattern_how)how);
    }
    tm_json_free(doc);
}

static void groups(void **state) {
    (void)state;
    tm_pattern *p;
    bool found;
    size_t begin, n;
    static const char regex[] = ".*?\\.(?P<idx>\\d+)\\.(?P<no>x)?";
    assert_int_equal(tm_pattern_open(&p, regex, sizeof regex - 1, TM_PATTERN_MATCH), TM_OK);
    assert_int_equal(tm_pattern_finds(p, "model.layers.12.mlp.3.x", &found), TM_OK);
    assert_true(found && tm_pattern_group(p, "idx", &begin, &n));
    assert_int_equal(begin, 13);
    assert_int_equal(n, 2);
    assert_false(tm_pattern_group(p, "no", &begin, &n));
    assert_false(tm_pattern_group(p, "other", &begin, &n));
    tm_pattern_close(p);
}

static void hostile(void **state) {
    (void)state;
    tm_pattern *p;
    bool found;
    static char regex[TM_PATTERN_MOST + 2];
    memset(regex, 'a', sizeof regex - 1);
    assert_int_equal(tm_pattern_open(&p, regex, TM_PATTERN_MOST, TM_PATTERN_FULL), TM_OK);
    tm_pattern_close(p);
    fails_with(tm_pattern_open(&p, regex, TM_PATTERN_MOST + 1, TM_PATTERN_FULL), TM_EUNSUPPORTED, "4096 is the most");
    memset(regex, '(', 1000);
    fails_with(tm_pattern_open(&p, regex, 1000, TM_PATTERN_FULL), TM_EINPUT, "too deeply nested");
    fails_with(tm_pattern_open(&p, "a\0b", 3, TM_PATTERN_FULL), TM_EINPUT, "character 2: a NUL byte");
    fails_with(tm_pattern_open(&p, "a\xff", 2, TM_PATTERN_FULL), TM_EINPUT, "UTF-8");
    fails_with(tm_pattern_open(&p, "((a{1000}){1000}){1000}", 23, TM_PATTERN_FULL), TM_EINPUT, "too large");
    assert_int_equal(tm_pattern_open(&p, "(a+)+(a+)+[bc]", 14, TM_PATTERN_FULL), TM_OK);
    fails_with(tm_pattern_finds(p, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad", &found), TM_EUNSUPPORTED,
               "limit exceeded; write a simpler one");
    tm_pattern_close(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_python_does), cmocka_unit_test(groups),
                                       cmocka_unit_test(hostile)};
    return cmocka_run_group_tests_name("pattern", tests, NULL, NULL);
}

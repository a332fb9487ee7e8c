/* Scores against lm-evaluation-harness's (fixtures: scores.json), and by hand. */
#include "world.h"

#include <math.h>

static tm_pattern *pattern_of(const char *regex) {
    tm_pattern *p;
    OK(tm_pattern_open(&p, regex, strlen(regex), TM_PATTERN_FIND));
    return p;
}

static void takes_as_the_harness(void **state) {
    (void)state;
    tm_json_doc *doc = harness_says("scores.json");
    size_t n = 0;
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "taken")->child; c; c = c->next, n++) {
        const tm_json *text = tm_json_get(c, "text"), *wanted = tm_json_get(c, "taken");
        tm_extract e = {.regex = pattern_of(tm_json_get(c, "regex")->text),
                        .take = (int32_t)tm_json_get(c, "select")->integer,
                        .group = TM_GROUP_ANY,
                        .fallback = "[none]"};
        tm_buf got = {0};
        OK(tm_score_extract(&e, text->text, text->len, &got));
        if (got.len != wanted->len || (got.len && memcmp(got.data, wanted->text, got.len) != 0))
            fail_msg("%s, %d of \"%s\": \"%s\", not \"%s\"", tm_pattern_text(e.regex), e.take, text->text,
                     got.data ? got.data : "", wanted->text);
        tm_buf_free(&got);
        tm_pattern_close(e.regex);
    }
    assert_true(n > 400);
    tm_json_free(doc);
}

static void group_that_is_named(void **state) {
    (void)state;
    static const char text[] = "a=1, b=22, c=333";
    tm_extract e = {.regex = pattern_of("([a-z])=(\\d+)")};
    const struct {
        int32_t take, group;
        const char *wanted;
    } cases[] = {{0, 0, "a=1"},  {0, 2, "1"},         {-1, 2, "333"},      {1, 1, "b"},
                 {-3, 0, "a=1"}, {3, 1, "[invalid]"}, {-4, 1, "[invalid]"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_buf got = {0};
        e.take = cases[i].take;
        e.group = cases[i].group;
        OK(tm_score_extract(&e, text, sizeof text - 1, &got));
        assert_string_equal(got.data, cases[i].wanted);
        tm_buf_free(&got);
    }
    tm_pattern_close(e.regex);
}

static bool is_set(const tm_json *c, const char *key) {
    const tm_json *v = tm_json_get(c, key);
    return v && v->boolean;
}

static void compares_as_the_harness(void **state) {
    (void)state;
    tm_json_doc *doc = harness_says("scores.json");
    size_t n = 0;
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "same")->child; c; c = c->next, n++) {
        const tm_json *a = tm_json_get(c, "a"), *b = tm_json_get(c, "b"), *ignored = tm_json_get(c, "ignored");
        tm_pattern *p[8];
        tm_compare how = {.ignore = p,
                          .ignore_case = is_set(c, "ignore_case"),
                          .ignore_punctuation = is_set(c, "ignore_punctuation"),
                          .ignore_numbers = is_set(c, "ignore_numbers")};
        bool same;
        for (const tm_json *one = ignored->child; one; one = one->next) p[how.n_ignore++] = pattern_of(one->text);
        OK(tm_score_exact(&how, a->text, a->len, b->text, b->len, &same));
        if (same != is_set(c, "same")) fail_msg("\"%s\" and \"%s\" (case %zu): %d", a->text, b->text, n, same);
        for (uint32_t i = 0; i < how.n_ignore; i++) tm_pattern_close(p[i]);
    }
    assert_true(n > 250);
    tm_json_free(doc);
}

static void last_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text, *number; /* NULL: none */
    } cases[] = {{"", NULL},
                 {"none", NULL},
                 {"72", "72"},
                 {"#### 72.", "72"},
                 {"about 1,234,567 of them", "1234567"},
                 {"1,23", "23"},
                 {"12,3456", "3456"},
                 {"$3.50", "3.5"},
                 {"-$3.50 it is", "-3.5"},
                 {"$-3", "-3"},
                 {"5-3", "3"},
                 {"x-3", "3"},
                 {"5 - 3 = 2", "2"},
                 {"(-7)", "-7"},
                 {"\xe2\x88\x92"
                  "8",
                  "-8"},
                 {"007.00", "7"},
                 {"0.0", "0"},
                 {"-0", "0"},
                 {"0.50", "0.5"},
                 {"1.2.3", "3"},
                 {"50%", "50"},
                 {"000,123", "123"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_buf got = {0};
        tm_status rc;
        bool any = tm_score_number(cases[i].text, strlen(cases[i].text), &got, &rc);
        OK(rc);
        if (any != (cases[i].number != NULL)) fail_msg("\"%s\": %d", cases[i].text, any);
        if (any && strcmp(got.data, cases[i].number) != 0)
            fail_msg("\"%s\": %s, not %s", cases[i].text, got.data, cases[i].number);
        tm_buf_free(&got);
    }
}

static void numbers_are_compared(void **state) {
    (void)state;
    bool same;
    static const char a[] = "so it is $1,500.00.", b[] = "3 * 500 = 1500\n#### 1500";
    OK(tm_score_numeric(a, sizeof a - 1, b, sizeof b - 1, &same));
    assert_true(same);
    OK(tm_score_numeric("none", 4, "none", 4, &same));
    assert_false(same);
}

static void best_choice(void **state) {
    (void)state;
    static const double logprob[] = {-4, -3, -3, -8}, length[] = {4, 1, 2, 16};
    assert_int_equal(tm_score_best(logprob, NULL, 4), 1); /* the first of two that are alike */
    assert_int_equal(tm_score_best(logprob, length, 4), 3);
    assert_true(tm_score_characters("50 \xe2\x82\xac") == 4);
}

static void means(void **state) {
    (void)state;
    tm_json_doc *doc = harness_says("scores.json");
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "means")->child; c; c = c->next) {
        double v[32];
        size_t n = 0;
        for (const tm_json *one = tm_json_get(c, "values")->child; one; one = one->next, n++)
            v[2 * n] = one->number, v[2 * n + 1] = 1e9;
        assert_true(fabs(tm_score_mean(v, n, 2) - tm_json_get(c, "mean")->number) < 1e-15);
        assert_true(fabs(tm_score_mean_stderr(v, n, 2) - tm_json_get(c, "stderr")->number) < 1e-15);
    }
    assert_true(isnan(tm_score_mean_stderr((double[]){1}, 1, 1)));
    tm_json_free(doc);
}

static void too_costly(void **state) {
    (void)state;
    static char text[4096];
    tm_buf got = {0};
    memset(text, 'a', sizeof text - 1);
    tm_extract e = {.regex = pattern_of("(a+)+[^a]")};
    uint64_t began = tm_now_ns();
    fails_with(tm_score_extract(&e, text, sizeof text - 1, &got), TM_EUNSUPPORTED, "write a simpler one");
    assert_true(tm_seconds(tm_now_ns() - began) < 30);
    tm_pattern_close(e.regex);
    tm_buf_free(&got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_as_the_harness),
        cmocka_unit_test(group_that_is_named),
        cmocka_unit_test(compares_as_the_harness),
        cmocka_unit_test(last_numbers),
        cmocka_unit_test(numbers_are_compared),
        cmocka_unit_test(best_choice),
        cmocka_unit_test(means),
        cmocka_unit_test(too_costly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* From logits to a token: the probabilities are those of transformers' processors (tests/peers/sampling.py), draws follow
 * them, greedy takes the largest. */
#include "infer/engine_internal.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 96, HISTORY = 16, DRAWS = 10000 };

typedef struct sampling_case {
    tm_sampling s;
    int32_t prompt[HISTORY], answer[HISTORY];
    sample_history h;
    float logits[VOCABULARY];
    double p[VOCABULARY];
} sampling_case;

static double number(const tm_json *of, const char *key, double otherwise) {
    const tm_json *n = tm_json_get(of, key);
    return n ? n->number : otherwise;
}

static size_t ids(const tm_json *list, int32_t *out) {
    size_t n = 0;
    for (const tm_json *i = list->child; i; i = i->next) out[n++] = (int32_t)i->integer;
    assert_true(n <= HISTORY);
    return n;
}

static void read_case(const tm_json *of, sampling_case *c) {
    const tm_json *s = tm_json_get(of, "sampling"), *l = tm_json_get(of, "logits")->child,
                  *p = tm_json_get(of, "p")->child;
    *c = (sampling_case){.s = {.temperature = number(s, "temperature", 1),
                               .top_k = (uint32_t)number(s, "top_k", 0),
                               .top_p = number(s, "top_p", 0),
                               .min_p = number(s, "min_p", 0),
                               .typical_p = number(s, "typical_p", 0),
                               .repetition_penalty = number(s, "repetition_penalty", 0),
                               .presence_penalty = number(s, "presence_penalty", 0),
                               .frequency_penalty = number(s, "frequency_penalty", 0)}};
    c->h.prompt = c->prompt, c->h.n_prompt = ids(tm_json_get(of, "prompt"), c->prompt);
    c->h.answer = c->answer, c->h.n_answer = ids(tm_json_get(of, "answer"), c->answer);
    for (int i = 0; i < VOCABULARY; i++, l = l->next, p = p->next) c->logits[i] = (float)l->number, c->p[i] = p->number;
}

/* Each case of the file. */
static void each_case(void (*check)(const sampling_case *c, sample_room *r)) {
    tm_json_doc *doc;
    sample_room r;
    size_t len;
    char *text = run_read(TM_TEST_FIXTURES "/sampling/golden.json", &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "golden.json", 0, 0));
    RUN_EXPECT_STATUS(sample_open(&r, VOCABULARY));
    const tm_json *cases = tm_json_get(tm_json_root(doc), "cases");
    assert_int_equal(cases->count, 16);
    for (const tm_json *of = cases->child; of; of = of->next) {
        sampling_case c;
        read_case(of, &c);
        c.h.prompt = c.prompt, c.h.answer = c.answer;
        check(&c, &r);
        for (int i = 0; i < VOCABULARY; i++) assert_int_equal(r.seen[i], 0);
    }
    sample_close(&r);
    tm_json_free(doc);
    free(text);
}

static void same_probabilities(const sampling_case *c, sample_room *r) {
    float logits[VOCABULARY];
    memcpy(logits, c->logits, sizeof logits);
    sample_distribution(&c->s, &c->h, logits, r);
    for (int i = 0; i < VOCABULARY; i++) {
        assert_int_equal(c->p[i] > 0, r->p[i] > 0);
        if (!(fabs(c->p[i] - r->p[i]) <= 2e-6 * c->p[i] + 1e-9)) fail_msg("%d: %g, not %g", i, r->p[i], c->p[i]);
    }
}

static void test_probabilities(void **state) {
    (void)state;
    each_case(same_probabilities);
}

/* Pearson's statistic over ids that 5 draws are expected of, the others together; its deviation is sqrt(2 degrees). */
static void follow(const sampling_case *c, sample_room *r) {
    unsigned count[VOCABULARY] = {0}, degrees = 0;
    double chi = 0, rest = 0, rest_count = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        tm_sampling s = c->s;
        float logits[VOCABULARY];
        memcpy(logits, c->logits, sizeof logits);
        s.seed = seed;
        count[sample_token(&s, &c->h, logits, r)]++;
    }
    for (int i = 0; i < VOCABULARY; i++) {
        double want = DRAWS * c->p[i];
        if (c->p[i] == 0) assert_int_equal(count[i], 0);
        if (want < 5) {
            rest += want, rest_count += count[i];
            continue;
        }
        chi += (count[i] - want) * (count[i] - want) / want;
        degrees++;
    }
    if (rest >= 5) chi += (rest_count - rest) * (rest_count - rest) / rest, degrees++;
    if (degrees < 2) return;
    if (!(chi < degrees - 1 + 3.5 * sqrt(2 * (degrees - 1.0))))
        fail_msg("chi-square %g of %u degrees", chi, degrees - 1);
}

static void test_draws(void **state) {
    (void)state;
    each_case(follow);
}

/* The numbers of an answer's tokens are draws of their own. */
static void test_tokens_differ(void **state) {
    (void)state;
    sample_room r;
    unsigned ones = 0;
    int32_t answer[64] = {0};
    RUN_EXPECT_STATUS(sample_open(&r, 2));
    for (uint32_t i = 0; i < 64; i++) {
        float logits[2] = {0, 0};
        const sample_history h = {.answer = answer, .n_answer = i};
        ones += sample_token(&(tm_sampling){.temperature = 1, .seed = 9}, &h, logits, &r) == 1;
    }
    assert_in_range(ones, 20, 44);
    sample_close(&r);
}

static void test_greedy(void **state) {
    (void)state;
    sample_room r;
    float tie[] = {1, 3, 3, 2}, again[] = {1, 4, 3, 2}, last[] = {1, 4, 3, 2};
    const int32_t answer[] = {1};
    const sample_history none = {0}, one = {.answer = answer, .n_answer = 1};
    RUN_EXPECT_STATUS(sample_open(&r, 4));
    assert_int_equal(sample_token(&(tm_sampling){.top_k = 1}, &none, tie, &r), 1);
    assert_int_equal(sample_token(&(tm_sampling){.repetition_penalty = 2}, &one, again, &r), 2);
    assert_int_equal(sample_token(&(tm_sampling){.presence_penalty = 1.5}, &one, last, &r), 2);
    sample_close(&r);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_probabilities), cmocka_unit_test(test_draws),
                                       cmocka_unit_test(test_tokens_differ), cmocka_unit_test(test_greedy)};
    return cmocka_run_group_tests_name("sampling", tests, NULL, NULL);
}

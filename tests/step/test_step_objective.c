/* Objectives: rows of a table, from log-likelihoods to coefficients. */
#include "step/objective.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { TOKENS = 64 };

/* Every label weighs 1 / (labels of the step), scaled; the loss is the plain sum. */
static void sft(void **state) {
    (void)state;
    const tm_objective *o = tm_objective_find("sft");
    int32_t labels[TOKENS];
    float nll[TOKENS];
    double want = 0;
    for (int t = 0; t < TOKENS; t++) {
        labels[t] = t % 3 ? t : -100;
        nll[t] = t % 3 ? 0.25F * (float)t : 0;
        want += (double)nll[t];
    }
    const tm_micro_batch b = {.rows = 2, .seq = 32, .tokens = TOKENS, .labels = labels};
    const objective_step s = {.labels = 100, .scale = 1024};
    assert_non_null(o);
    assert_true(o->loss(&s, &b, nll) == want);
    o->coefficients(&s, &b, nll);
    for (int t = 0; t < TOKENS; t++) assert_true(nll[t] == (t % 3 ? (float)(1024.0 / 100) : 0));
    o->coefficients(&(objective_step){.labels = 0, .scale = 1}, &b, nll); /* a step without labels */
    for (int t = 0; t < TOKENS; t++) assert_true(nll[t] == 0);
}

static void unknown(void **state) {
    (void)state;
    assert_null(tm_objective_find("dpo")); /* until there is one */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sft), cmocka_unit_test(unknown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Frozen tensors: gradients of those that learn are, to the bit, what they are where all do; what nobody wants is not
 * computed, read or written. */
#include "driver.h"
#include "kernels/kernels.h"
#include "model/model_internal.h"
#include "tests/support/families.h"
#include "tests/support/support.h"
#include "world.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- rules of what learns ---- */

static bool everything(void *ctx, const char *tensor) {
    return (void)ctx, tensor != NULL;
}
static bool some_matrices(void *ctx, const char *tensor) {
    (void)ctx;
    return strstr(tensor, "q_proj.weight") || strstr(tensor, "down_proj.weight") || strstr(tensor, "c_attn.weight") ||
           strstr(tensor, "gate_up_proj.weight");
}
static bool vectors(void *ctx, const char *tensor) {
    (void)ctx;
    return strstr(tensor, "norm") || strstr(tensor, "bias") || strstr(tensor, "ln_");
}
static bool biases(void *ctx, const char *tensor) {
    (void)ctx;
    return strstr(tensor, ".bias") != NULL;
}
static bool later_layers(void *ctx, const char *tensor) {
    (void)ctx;
    return !strstr(tensor, "embed") && !strstr(tensor, "wte") && !strstr(tensor, "wpe") &&
           !strstr(tensor, "layers.0.") && !strstr(tensor, "h.0.");
}
static bool embedding(void *ctx, const char *tensor) {
    (void)ctx;
    return strstr(tensor, "embed") || strstr(tensor, "wte");
}
static bool last(void *ctx, const char *tensor) {
    (void)ctx;
    return strstr(tensor, "lm_head") != NULL;
}
static bool by_chance(void *ctx, const char *tensor) {
    return tm_hash64(tensor, strlen(tensor), *(const uint64_t *)ctx) % 3 == 0;
}
static bool nothing(void *ctx, const char *tensor) {
    return (void)ctx, tensor == NULL;
}

static uint64_t salts[] = {1, 2, 3};
static const struct rule {
    bool (*learns)(void *ctx, const char *tensor);
    void *ctx;
} rules[] = {{some_matrices, NULL},  {vectors, NULL}, {biases, NULL},         {later_layers, NULL},
             {embedding, NULL},      {last, NULL},    {by_chance, &salts[0]}, {by_chance, &salts[1]},
             {by_chance, &salts[2]}, {nothing, NULL}};

static tm_model *model_of(const struct family *f, tm_dtype compute, const struct rule *rule) {
    tm_model_config c;
    tm_model *m;
    const tm_model_roles roles = {.learns = rule->learns, .ctx = rule->ctx};
    OK(tm_model_config_parse(&c, f->json, strlen(f->json), f->name));
    OK(tm_model_create_roles(&m, &c, compute, &roles));
    return m;
}

/* ---- gradients ---- */

static void same_tensor(const run *a, const run *b, uint32_t t) {
    uint64_t n = tm_model_tensor(a->m, t)->elements;
    float *g = malloc(n * sizeof *g), *h = malloc(n * sizeof *h);
    run_tensor_grad(a, t, g), run_tensor_grad(b, t, h);
    if (memcmp(g, h, n * sizeof *g)) fail_msg("the gradient of %s is another", tm_model_tensor(a->m, t)->name);
    free(g), free(h);
}

/* Of those that learn; of the others nothing is written, unless they lie beside one that learns. */
static void same_where_it_learns(const run *all, const run *some) {
    for (uint32_t t = 0; t < tm_model_tensors(some->m); t++)
        if (tm_model_tensor(some->m, t)->learns) same_tensor(all, some, t);
    for (uint32_t p = 0; p < tm_model_parts(some->m); p++) {
        uint32_t nan = UINT32_MAX;
        if (!tm_model_part(some->m, p)->learns) assert_memory_equal(some->grad[p], &nan, sizeof nan);
    }
}

static void steps(run *r, const tm_model *m, const tm_micro_batch *batches, run_order order, bool recompute) {
    run_open(r, m, 2, batches);
    r->recompute = recompute;
    lively_weights(r, 3);
    whole_step(r, order);
}

static void frozen(void **state) {
    static const struct rule all = {everything, NULL};
    static const tm_dtype types[] = {TM_F32, TM_BF16};
    const struct family *f = *state;
    for (size_t d = 0; d < TM_COUNT(types); d++) {
        tm_model *whole = model_of(f, types[d], &all);
        uint32_t v = tm_model_get_config(whole)->vocab_size;
        tokens t[2] = {make_tokens(2, 9, v, 1), make_tokens(1, 67, v, 2)};
        tm_micro_batch batches[2] = {t[0].batch, t[1].batch};
        run want;
        steps(&want, whole, batches, BATCH_OUTER, false);
        for (size_t i = 0; i < TM_COUNT(rules); i++) {
            tm_model *m = model_of(f, types[d], &rules[i]);
            for (unsigned way = 0; way < 2; way++) {
                run got;
                steps(&got, m, batches, way ? STAGE_OUTER : BATCH_OUTER, way);
                same_where_it_learns(&want, &got);
                run_close(&got);
            }
            tm_model_free(m);
        }
        run_close(&want);
        tm_model_free(whole);
        free_tokens(&t[0]), free_tokens(&t[1]);
    }
}

/* Parts that are separate compute the same within rounding. */
static void unfused(void **state) {
    static const struct rule all = {everything, NULL};
    const struct family *f = *state;
    tm_model_config c;
    tm_model *m[2];
    OK(tm_model_config_parse(&c, f->json, strlen(f->json), f->name));
    OK(tm_model_create(&m[0], &c, TM_F32));
    m[1] = model_of(f, TM_F32, &all);
    tokens t = make_tokens(2, 40, c.vocab_size, 1);
    run r[2];
    for (int i = 0; i < 2; i++) {
        run_open(&r[i], m[i], 1, &t.batch);
        lively_weights(&r[i], 5);
        whole_step(&r[i], BATCH_OUTER);
    }
    assert_near_gradients(&r[0], &r[1]);
    for (int i = 0; i < 2; i++) run_close(&r[i]), tm_model_free(m[i]);
    free_tokens(&t);
}

/* ---- tables ---- */

#define LLAMA                                                                                                          \
    "{\"model_type\":\"llama\",\"vocab_size\":300,\"hidden_size\":48,\"intermediate_size\":40,"                        \
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2"
static const struct family llama = {"llama", LLAMA "}"}, tied = {"tied", LLAMA ",\"tie_word_embeddings\":true}"};

static const tm_stage *stage_of(const tm_model *m, uint32_t unit, const char *part) {
    const tm_unit *u = tm_model_unit(m, unit);
    for (uint32_t s = 0; s < u->n_stages; s++)
        if (u->stage[s].n_parts && !strcmp(strrchr(tm_model_part(m, u->stage[s].part[0])->name, '.') + 1, part))
            return &u->stage[s];
    fail_msg("no stage of %s", part);
    return NULL;
}

static bool uses(const tm_stage *s, unsigned slot, bool grad) {
    bool any = false;
    for (unsigned i = 0; i < s->n_backward; i++) any |= s->backward[i].slot == slot && s->backward[i].grad == grad;
    return any;
}

static double products(const tm_model *m, uint32_t unit, const tm_load *load) {
    double sum = 0;
    for (uint32_t s = 0; s < tm_model_unit(m, unit)->n_stages; s++)
        if (tm_model_unit(m, unit)->stage[s].spec->kind != model_stage_kind(STAGE_ATTENTION))
            sum += tm_stage_work(m, unit, s, true, load).flops;
    return sum / load->tokens;
}

static bool second_q(void *ctx, const char *tensor) {
    return (void)ctx, !strcmp(tensor, "model.layers.1.self_attn.q_proj.weight");
}

/* What is left of a llama's backward where one matrix of the middle block learns. */
static void dropped(void **state) {
    (void)state;
    tm_model *m = model_of(&llama, TM_F32, &(struct rule){second_q, NULL});
    const tm_load load = tm_model_load(tm_model_get_config(m), 1, 64, 64);
    const uint64_t qkv = 48 * 96, o = 48 * 48, mlp = 3 * 48 * 40, q = 48 * 48;
    assert_int_equal(tm_model_learning_parameters(m), 48 * 48);
    for (uint32_t u = 0; u < 2; u++)
        for (uint32_t s = 0; s < tm_model_unit(m, u)->n_stages; s++) {
            const tm_stage *x = &tm_model_unit(m, u)->stage[s];
            assert_true(!x->has_backward && !x->n_backward);
            for (unsigned i = 0; i < x->n_parts; i++) assert_false(x->part_in_backward[i] || x->part_gradient[i]);
            const tm_work w = tm_stage_work(m, u, s, true, &load);
            assert_true(w.flops == 0 && w.bytes == 0);
        }
    /* its own product is of the weights alone; what lies above is one product each */
    assert_true(products(m, 2, &load) == 2.0 * (double)(o + mlp + q));
    assert_true(products(m, 3, &load) == 2.0 * (double)(qkv + o + mlp));
    assert_true(products(m, 4, &load) == 2.0 * 2 * 300 * 48);
    const tm_stage *own = stage_of(m, 2, "q"), *other = stage_of(m, 2, "k"), *out = stage_of(m, 2, "o");
    assert_true(own->has_backward && own->part_gradient[0] && !own->part_in_backward[0]);
    assert_true(uses(own, SLOT_ATTN_NORMED, false) && !uses(own, SLOT_ATTN_NORMED, true));
    assert_false(other->has_backward);
    assert_false(stage_of(m, 2, "small")->has_backward);
    /* no values for weights, no gradient of the residual below */
    assert_true(uses(out, SLOT_O, true) && !uses(out, SLOT_O, false) && !uses(out, SLOT_X, true));
    out = stage_of(m, 3, "o");
    assert_true(uses(out, SLOT_O, true) && !uses(out, SLOT_O, false) && uses(out, SLOT_X, true));
    assert_false(uses(stage_of(m, 3, "q"), SLOT_ATTN_NORMED, false));
    assert_true(uses(stage_of(m, 3, "q"), SLOT_ATTN_NORMED, true));
    for (uint32_t p = 0; p < tm_model_parts(m); p++)
        assert_int_equal(tm_model_part(m, p)->learns, !strcmp(tm_model_part(m, p)->name, "layers.1.q"));
    char a[200], b[200];
    tm_stage_signature(own, a, sizeof a), tm_stage_signature(stage_of(m, 3, "q"), b, sizeof b);
    assert_string_not_equal(a, b);
    assert_false(tm_stage_alike(own, stage_of(m, 3, "q")));
    tm_model_free(m);
}

/* The head of a tied model that is trained apart begins as the embedding, which stays as it is. */
static void untied(void **state) {
    (void)state;
    tm_model_config c;
    tm_model *m;
    OK(tm_model_config_parse(&c, tied.json, strlen(tied.json), "tied"));
    OK(tm_model_create_roles(&m, &c, TM_F32, &(tm_model_roles){.learns = last, .untied = true}));
    const tm_tensor *head = tm_model_tensor(m, tm_model_tensors(m) - 1), *embed = tm_model_tensor(m, 0);
    assert_string_equal(head->name, "lm_head.weight");
    assert_true(head->learns && !embed->learns && head->of == 0 && embed->of == 0);
    tokens t = make_tokens(2, 30, c.vocab_size, 1);
    run r;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 5);
    whole_step(&r, BATCH_OUTER);
    uint32_t part = tm_model_tensor_segments(m, tm_model_tensors(m) - 1)->part;
    assert_true(isfinite(r.grad[part][0]) && tm_model_part(m, part)->unit == tm_model_units(m) - 1);
    run_close(&r);
    free_tokens(&t);
    tm_model_free(m);
    OK(tm_model_create_roles(&m, &c, TM_F32, &(tm_model_roles){.learns = last}));
    assert_int_equal(tm_model_learning_parameters(m), 0);
    assert_string_equal(tm_model_tensor(m, tm_model_tensors(m) - 1)->name, "model.norm.weight");
    tm_model_free(m);
}

enum { KINDS = 2, TESTS = KINDS * (int)TM_COUNT(families) + 2 };

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } kinds[KINDS] = {{"frozen", frozen}, {"unfused", unfused}};
    static char names[TESTS][64];
    static struct CMUnitTest tests[TESTS] = {cmocka_unit_test(dropped), cmocka_unit_test(untied)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) return fprintf(stderr, "%s\n", tm_error_get()->text), 1;
    for (size_t i = 2; i < TESTS; i++) {
        const struct family *f = &families[(i - 2) / KINDS];
        snprintf(names[i], sizeof names[i], "%s %s", f->name, kinds[i % KINDS].name);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = kinds[i % KINDS].test, .initial_state = (void *)(uintptr_t)f};
    }
    int failed = _cmocka_run_group_tests("test_roles", tests, TESTS, NULL, NULL);
    tm_kernels_close();
    return failed;
}

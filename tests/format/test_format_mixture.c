/* The type of each tensor: llama.cpp's own choice for models of several architectures and widths, as its quantiser made it
 * (fixtures/gguf_mixtures/make.py). */
#include "world.h"
#include "format/gguf_mixture_internal.h"

#include <string.h>

static void note_all(tm_gguf_mixture *m, const tm_json *width) {
    for (const tm_json *t = width->child; t; t = t->next) tm_gguf_mixture_note(m, t->key);
}

static unsigned check_types(const char *model, const tm_gguf_mixture *m, const tm_json *width, const tm_json *types) {
    unsigned n = 0;
    const tm_json *t = width->child, *want = types->child;
    assert_int_equal(width->count, types->count);
    for (; t; t = t->next, want = want->next, n++) {
        const char *got = tm_fmt_get(tm_gguf_mixture_of(m, t->key, 2, (uint64_t)t->integer))->name;
        if (!tm_json_is(want, got))
            fail_msg("%s as %s: '%s' is %s, llama.cpp's is %s", model, types->key, t->key, got, want->text);
    }
    return n;
}

static unsigned check_model(const tm_json *model) {
    const tm_json *width = tm_json_get(model, "width");
    static tm_gguf_keys keys;
    static tm_gguf_mixture m;
    unsigned n = 0;
    OK(tm_gguf_read_config(tm_json_get(model, "config"), &keys));
    for (const tm_json *types = tm_json_get(model, "types")->child; types; types = types->next) {
        const tm_written *to;
        OK(tm_written_named(types->key, &to));
        tm_gguf_mixture_begin(&m, to, &keys);
        note_all(&m, width);
        assert_int_equal(tm_gguf_mixture_of(&m, "blk.0.attn_norm.weight", 1, 256), TM_FMT_F32);
        n += check_types(model->key, &m, width, types);
    }
    return n;
}

static void types_are_those_of_llama_cpp(void **state) {
    (void)state;
    unsigned n = 0;
    tm_json_doc *d = parse_file(TM_TEST_FIXTURES "/gguf_mixtures/types.json");
    for (const tm_json *model = tm_json_root(d)->child; model; model = model->next) n += check_model(model);
    assert_true(n > 5000);
    tm_json_free(d);
}

/* What llama_model_quantize of llama-cpp-python 0.3.36 gave SmolLM2's 30 layers with an importance matrix
 * (tests/peers_quants.py compares the files). */
static void importance_moves_the_first_layers(void **state) {
    (void)state;
    static const struct {
        const char *name;
        tm_fmt fmt;
    } rows[] = {{"blk.0.ffn_down.weight", TM_FMT_Q4_1}, {"blk.2.ffn_down.weight", TM_FMT_Q4_1},
                {"blk.3.ffn_down.weight", TM_FMT_Q4_0}, {"blk.29.ffn_down.weight", TM_FMT_Q4_0},
                {"blk.0.ffn_up.weight", TM_FMT_Q4_0},   {"blk.0.attn_v.weight", TM_FMT_Q4_0}};
    static tm_gguf_mixture m;
    const tm_written *to;
    OK(tm_written_named("q4_0", &to));
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        m = (tm_gguf_mixture){.to = to, .layers = 30, .weighed = true};
        assert_int_equal(tm_gguf_mixture_of(&m, rows[i].name, 2, 1536), rows[i].fmt);
        m.weighed = false;
        assert_int_equal(tm_gguf_mixture_of(&m, rows[i].name, 2, 1536), TM_FMT_Q4_0);
    }
}

/* A name that a file may have, and no layer that there is room for. */
static void odd_names_have_a_type(void **state) {
    (void)state;
    static tm_gguf_keys keys;
    static tm_gguf_mixture m;
    static const char *const names[] = {"blk.99999.attn_v.weight", "blk.-1.attn_v.weight", "blk.x.ffn_down.weight", "",
                                        "attn_v.weight"};
    tm_json_doc *d = parse_file(TM_TEST_FIXTURES "/gguf_mixtures/types.json");
    const tm_written *to;
    OK(tm_gguf_read_config(tm_json_get(tm_json_root(d)->child, "config"), &keys));
    OK(tm_written_named("Q4_K_M", &to));
    tm_gguf_mixture_begin(&m, to, &keys);
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        tm_gguf_mixture_note(&m, names[i]);
        tm_fmt fmt = tm_gguf_mixture_of(&m, names[i], 2, 256);
        assert_true(fmt == TM_FMT_Q4_K || fmt == TM_FMT_Q6_K);
    }
    expect_error(tm_written_named("q4_k_l", &to), TM_EINPUT, "q4_k");
    tm_json_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(types_are_those_of_llama_cpp),
                                       cmocka_unit_test(importance_moves_the_first_layers),
                                       cmocka_unit_test(odd_names_have_a_type)};
    return cmocka_run_group_tests_name("mixture", tests, NULL, NULL);
}

/* Configurations, tables, and what the contract of model.h promises beyond the golden fixtures: schedules,
 * accumulation, separate parts, biases, the key-value cache, threads. */
#include "driver.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "model/arch_internal.h"
#include "tests/support/skip.h"
#include "world.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- configuration ---- */

#define SIZES                                                                                                          \
    "\"vocab_size\":300,\"hidden_size\":48,\"intermediate_size\":40,\"num_hidden_layers\":2,"                          \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2"

static tm_status parse(tm_model_config *c, const char *json) {
    return tm_model_config_parse(c, json, strlen(json), "config.json");
}

static tm_model_config config_of(const char *more) {
    char json[1024];
    tm_model_config c;
    snprintf(json, sizeof json, "{\"model_type\":\"llama\"," SIZES "%s}", more);
    if (parse(&c, json) != TM_OK) fail_msg("%s", tm_error_get()->text);
    return c;
}

static void defaults(void **state) {
    (void)state;
    tm_model_config c = config_of("");
    assert_int_equal(c.head_dim, 12);
    assert_int_equal(c.max_position_embeddings, 2048);
    assert_true(c.rope.theta == 10000.0 && c.rms_norm_eps == 1e-6 && c.initializer_range == 0.02);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.n_eos, 0);
    assert_false(c.tie_word_embeddings || c.attention_bias || c.mlp_bias);
    assert_int_equal(parse(&c, "{\"model_type\":\"mistral\"," SIZES "}"), TM_OK);
    assert_int_equal(c.sliding_window, 4096);
    assert_int_equal(parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":null," SIZES "}"), TM_OK);
    assert_int_equal(c.sliding_window, 0);
    c = config_of(",\"eos_token_id\":[2,7],\"bos_token_id\":1,\"sliding_window\":5");
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_token_id[1], 7);
    assert_int_equal(c.sliding_window, 0); /* no such thing in llama */
}

/* What the whole says of the head counts, else what the text part says. */
static void tied_heads(void **state) {
    (void)state;
    tm_model_config c;
    assert_int_equal(
        parse(&c, "{\"model_type\":\"x\",\"tie_word_embeddings\":true,\"text_config\":{\"model_type\":\"llama\","
                  "\"tie_word_embeddings\":false," SIZES "}}"),
        TM_OK);
    assert_true(c.tie_word_embeddings);
    assert_int_equal(parse(&c, "{\"model_type\":\"x\",\"text_config\":{\"model_type\":\"llama\"," SIZES
                               ",\"tie_word_embeddings\":true}}"),
                     TM_OK);
    assert_true(c.tie_word_embeddings);
}

static void rope_forms(void **state) {
    (void)state;
    tm_model_config c = config_of(",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}");
    assert_true(c.rope.type == TM_ROPE_LINEAR && c.rope.theta == 5e5 && c.rope.factor == 2);
    c = config_of(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":123.5}");
    assert_true(c.rope.type == TM_ROPE_DEFAULT && c.rope.theta == 123.5);
    c = config_of(",\"rope_scaling\":null,\"rope_theta\":7");
    assert_true(c.rope.type == TM_ROPE_DEFAULT && c.rope.theta == 7);
    c = config_of(
        ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":64}");
    assert_true(c.rope.type == TM_ROPE_LLAMA3 && c.rope.high_freq_factor == 4 && c.rope.original_max_position == 64);
}

#define GEMMA4(more) "{\"model_type\":\"gemma4_text\",\"rope_parameters\":{}," SIZES "," more "}"

/* What Gemma 4's keys leave out, and what they say in both forms. */
static void gemma4_forms(void **state) {
    (void)state;
    tm_model_config c;
    assert_int_equal(parse(&c, GEMMA4("\"head_dim\":8")), TM_OK);
    assert_true(tm_layer_in(&c.windowed, 0) && !tm_layer_in(&c.windowed, 1)); /* the last never looks through one */
    assert_true(c.kinds.full_head_dim == 512 && c.kinds.full_kv_heads == 0 && c.kinds.input_width == 256);
    assert_true(c.sliding_window == 512 && c.attention_scale == 1 && c.two_ropes && c.tie_word_embeddings);
    assert_int_equal(parse(&c, GEMMA4("\"per_layer_config\":{\"1\":{\"head_dim\":12,\"num_key_value_heads\":1}},"
                                      "\"hidden_size_per_layer_input\":null,\"global_head_dim\":20")),
                     TM_OK);
    assert_true(c.kinds.full_head_dim == 12 && c.kinds.full_kv_heads == 1 && c.kinds.input_width == 0);
    assert_int_equal(c.rope.head_dim, 12);
}

typedef struct bad_config {
    const char *json, *says;
    tm_status code;
} bad_config;

static void bad_configurations(void **state) {
    (void)state;
    static const bad_config cases[] = {
        {"[1]", "object", TM_EINPUT},
        {"{}", "model_type", TM_EINPUT},
        {"{\"model_type\":\"mamba\"," SIZES "}", "llama, mistral, ", TM_EUNSUPPORTED},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":1," SIZES "}", "use_sliding_window", TM_EINPUT},
        {"{\"model_type\":\"gemma2\",\"layer_types\":[\"full_attention\",\"linear_attention\"]," SIZES "}",
         "layer type \"linear_attention\"", TM_EUNSUPPORTED},
        {"{\"model_type\":\"gemma2\",\"layer_types\":[\"full_attention\"]," SIZES "}", "each layer", TM_EINPUT},
        {"{\"model_type\":\"smollm3\",\"no_rope_layers\":[1, 2]," SIZES "}", "0 and 1", TM_EINPUT},
        {"{\"model_type\":\"phi3\",\"partial_rotary_factor\":0.01," SIZES "}", "partial_rotary_factor", TM_EINPUT},
        {"{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}," SIZES "}",
         "short_factor", TM_EINPUT},
        {"{\"model_type\":\"llama\"}", "vocab_size is missing", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"relu2\"," SIZES "}", "silu", TM_EUNSUPPORTED},
        {"{\"model_type\":\"llama\",\"quantization_config\":{}," SIZES "}", "quantised", TM_EUNSUPPORTED},
        {"{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"aqlm\"}," SIZES "}", "aqlm",
         TM_EUNSUPPORTED},
        {"{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}"
         "," SIZES "}",
         "load_in_8bit", TM_EUNSUPPORTED},
        {"{\"model_type\":\"llama\",\"vocab_size\":0}", "vocab_size", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"vocab_size\":1e12}", "vocab_size", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"vocab_size\":10.5}", "vocab_size", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"vocab_size\":-3}", "vocab_size", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"vocab_size\":\"300\"}", "vocab_size", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"head_dim\":7," SIZES "}", "head_dim", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"head_dim\":100000," SIZES "}", "head_dim", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":-1," SIZES "}", "rms_norm_eps", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"tie_word_embeddings\":1," SIZES "}", "tie_word_embeddings", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"eos_token_id\":\"x\"," SIZES "}", "eos_token_id", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"rope_scaling\":7," SIZES "}", "rope_scaling", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4}," SIZES "}", "dynamic",
         TM_EUNSUPPORTED},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"linear\"}," SIZES "}", "factor", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4}," SIZES "}",
         "low_freq_factor", TM_EINPUT},
        {"{\"model_type\":\"mistral\",\"sliding_window\":0," SIZES "}", "sliding_window", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"vocab_size\":300,\"hidden_size\":50,\"intermediate_size\":40,"
         "\"num_hidden_layers\":2,\"num_attention_heads\":4}",
         "multiple of num_attention_heads", TM_EINPUT},
        {"{\"model_type\":\"llama\",\"vocab_size\":300,\"hidden_size\":48,\"intermediate_size\":40,"
         "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":3}",
         "num_key_value_heads", TM_EINPUT},
        {"{\"model_type\":\"gemma4_text\"," SIZES "}", "rope_parameters is missing", TM_EINPUT},
        {GEMMA4("\"enable_moe_block\":true"), "enable_moe_block of gemma4_text", TM_EUNSUPPORTED},
        {GEMMA4("\"use_bidirectional_attention\":\"all\""), "use_bidirectional_attention", TM_EUNSUPPORTED},
        {GEMMA4("\"per_layer_config\":[]"), "an object", TM_EINPUT},
        {GEMMA4("\"per_layer_config\":{\"7\":{}}"), "numbers of layers", TM_EINPUT},
        {GEMMA4("\"per_layer_config\":{\"0\":{\"head_dim\":12}}"), "layer 0: only layers without a window",
         TM_EUNSUPPORTED},
        {GEMMA4("\"global_head_dim\":7"), "global_head_dim 7 must be even", TM_EINPUT},
        {GEMMA4("\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3"), "num_global_key_value_heads 3",
         TM_EINPUT},
        {GEMMA4("\"num_kv_shared_layers\":1"), "layer 1 shares keys and values", TM_EINPUT},
        {GEMMA4("\"num_kv_shared_layers\":2"), "num_kv_shared_layers", TM_EINPUT},
        {GEMMA4("\"vocab_size_per_layer_input\":100"), "vocab_size_per_layer_input 100 is less", TM_EINPUT},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_model_config c;
        tm_status got = parse(&c, cases[i].json);
        if (got != cases[i].code || !strstr(tm_error_get()->text, cases[i].says))
            fail_msg("%s: %s, \"%s\"", cases[i].json, tm_status_name(got), tm_error_get()->text);
        tm_error_clear();
    }
}

/* Rotary positions go on; learned ones end. */
static void learned_positions(void **state) {
    (void)state;
    static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":20,\"n_embd\":8,\"n_head\":2,\"n_layer\":1,"
                               "\"n_positions\":70}";
    tm_model_config c;
    assert_int_equal(parse(&c, gpt2), TM_OK);
    assert_int_equal(tm_model_check_positions(&c, 70, "rows"), TM_OK);
    assert_int_equal(tm_model_check_positions(&c, 71, "rows"), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "rows: 71 positions, but this gpt2 has learned 70"));
    tm_error_clear();
    c = config_of("");
    assert_int_equal(tm_model_check_positions(&c, 1 << 20, "rows"), TM_OK);
}

/* ---- tables ---- */

static const char *const variants[] = {"", ",\"tie_word_embeddings\":true",
                                       ",\"attention_bias\":true,\"mlp_bias\":true",
                                       ",\"tie_word_embeddings\":true,\"attention_bias\":true"};
static tm_model *model_of(const char *more, tm_dtype compute, bool fused) {
    tm_model_config c = config_of(more);
    tm_model *m;
    assert_int_equal(model_create_fused(&m, &c, compute, fused ? MODEL_FUSED_ELEMENTS : 100), TM_OK);
    return m;
}

static void check_segments(const tm_model *m) {
    uint64_t total = 0;
    for (uint32_t p = 0; p < tm_model_parts(m); p++) {
        const tm_part *part = tm_model_part(m, p);
        const tm_segment *s = tm_model_part_segments(m, p);
        uint64_t at = 0;
        for (uint32_t i = 0; i < part->n_segments; i++, at += s[i - 1].elements) {
            assert_int_equal(s[i].part, p);
            assert_int_equal(s[i].part_offset, at);
        }
        assert_int_equal(at, part->elements);
        total += at;
    }
    assert_int_equal(total, tm_model_parameters(m));
    for (uint32_t t = 0; t < tm_model_tensors(m); t++) {
        const tm_tensor *x = tm_model_tensor(m, t);
        const tm_segment *s = tm_model_tensor_segments(m, t);
        uint64_t at = 0, product = 1;
        for (uint32_t i = 0; i < x->n_segments; i++, at += s[i - 1].elements) {
            assert_int_equal(s[i].tensor, t);
            assert_int_equal(s[i].tensor_offset, at);
        }
        for (uint32_t d = 0; d < x->ndim; d++) product *= x->shape[d];
        assert_int_equal(at, x->elements);
        assert_int_equal(product, x->elements);
        assert_true(x->is_norm_or_bias == (x->ndim == 1));
    }
}

/* A slot is written before it is read, forward; a gradient likewise, backward; parts belong to their unit. */
static void check_uses(const tm_model *m) {
    for (uint32_t u = 0; u < tm_model_units(m); u++) {
        const tm_unit *unit = tm_model_unit(m, u);
        bool value[TM_MAX_SLOTS] = {unit->kind != TM_UNIT_EMBED},
             grad[TM_MAX_SLOTS] = {false, unit->kind != TM_UNIT_HEAD};
        for (uint32_t i = 0; i < unit->n_stages; i++) {
            const tm_stage *s = &unit->stage[i], *b = &unit->stage[unit->n_stages - 1 - i];
            assert_in_range(s->n_parts, s->spec->kind == model_stage_kind(STAGE_ATTENTION) ? 0 : 1, TM_MAX_STAGE_PARTS);
            for (unsigned k = 0; k < s->n_forward; k++) {
                assert_true(unit->slot[s->forward[k].slot].bytes > 0);
                assert_true(s->forward[k].access != TM_READ || value[s->forward[k].slot]);
                value[s->forward[k].slot] = true;
            }
            for (unsigned k = 0; k < b->n_backward; k++) {
                if (!b->backward[k].grad) continue;
                assert_true(unit->slot[b->backward[k].slot].grad_bytes > 0);
                assert_true(b->backward[k].access != TM_READ || grad[b->backward[k].slot]);
                grad[b->backward[k].slot] = true;
            }
        }
        for (uint32_t p = unit->first_part; p < unit->first_part + unit->n_parts; p++)
            assert_int_equal(tm_model_part(m, p)->unit, u);
    }
}

static void tables(void **state) {
    (void)state;
    for (size_t v = 0; v < TM_COUNT(variants); v++)
        for (int fused = 0; fused < 2; fused++) {
            tm_model *m = model_of(variants[v], TM_BF16, fused);
            check_segments(m);
            check_uses(m);
            tm_model_free(m);
        }
    tm_model_config c = config_of(",\"tie_word_embeddings\":true");
    c.vocab_size = 20000; /* three vocabulary parts */
    tm_model *m;
    assert_int_equal(tm_model_create(&m, &c, TM_F32), TM_OK);
    check_segments(m);
    assert_int_equal(tm_model_unit(m, 0)->n_stages, 3);
    assert_int_equal(tm_model_unit(m, 3)->n_stages, 4);
    assert_int_equal(tm_model_unit(m, 3)->stage[3].part[0], tm_model_unit(m, 0)->stage[2].part[0]);
    assert_string_equal(tm_model_tensor(m, 1)->name, "model.layers.0.input_layernorm.weight");
    assert_int_equal(tm_model_parameters(m), 20000 * 48 + 2 * (48 * 96 + 48 * 48 + 3 * 40 * 48 + 2 * 48) + 48);
    tm_model_free(m);
}

/* ---- descriptions that no table of a fixed size would hold ---- */

enum { MANY = 300 };

static void describe_many(model_builder *b) {
    model_begin_unit(b, TM_UNIT_BLOCK, "many");
    model_set_slot(b, SLOT_X, "input", 96, 96);
    model_set_slot(b, SLOT_OUT, "output", 96, 96);
    for (unsigned i = 0; i < MANY; i++) {
        char what[16];
        snprintf(what, sizeof what, "%u", i);
        const stage_spec s = {.width = 48, .columns = 48, .row_columns = 48, .out = SLOT_OUT, .bias = NO_VECTOR};
        uint32_t part = model_one_part(b, "p", what, model_add_tensor(b, "t", what, 48, 48));
        model_out_stage(b, "out", false, s, part, 0);
    }
}
static void describe_slot(model_builder *b) {
    model_begin_unit(b, TM_UNIT_BLOCK, "slots");
    for (unsigned s = 0; s <= TM_MAX_SLOTS; s++) model_set_slot(b, s, "slot", 96, 96);
    model_one_part(b, "p", "", model_add_tensor(b, "t", "", 48, 48)); /* nothing is added any more */
}
static void describe_use(model_builder *b) {
    model_begin_unit(b, TM_UNIT_BLOCK, "use");
    model_out_stage(b, "out", false, (stage_spec){.in = TM_MAX_SLOTS, .bias = NO_VECTOR}, 0, 0);
}
static void describe_name(model_builder *b) {
    model_add_tensor(b, "a name that is much longer than any that a checkpoint has, in all its parts together, ",
                     "a hundred bytes", 48, 48);
}

static void growing_tables(void **state) {
    (void)state;
    const tm_model_config c = config_of("");
    const struct {
        void (*describe)(model_builder *b);
        const char *says;
    } bad[] = {{describe_slot, "more than 20 slots in a unit"},
               {describe_use, "more than 20 slots in a unit"},
               {describe_name, "more than 95 bytes in a name"}};
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        tm_model m = {.config = c};
        assert_int_equal(
            model_build_tables(&m, &(model_arch){.decoder = &model_decoder_llama, .describe = bad[i].describe}, NULL),
            TM_EBUG);
        assert_non_null(strstr(tm_error_get()->text, bad[i].says));
        assert_int_equal(m.n_parts, 0);
        tm_error_clear();
        model_free_tables(&m);
    }
    tm_model m = {.config = c};
    assert_int_equal(
        model_build_tables(&m, &(model_arch){.decoder = &model_decoder_llama, .describe = describe_many}, NULL), TM_OK);
    assert_int_equal(m.n_parts, MANY);
    assert_int_equal(m.unit[0].n_stages, MANY);
    check_segments(&m);
    assert_string_equal(m.tensor[MANY - 1].name, "t299.weight");
    for (uint32_t s = 0; s < MANY; s++) assert_int_equal(m.unit[0].stage[s].part[0], s);
    assert_true(tm_stage_alike(&m.unit[0].stage[0], &m.unit[0].stage[MANY - 1]));
    model_free_tables(&m);
}

/* Blocks do the same; so do parts of the vocabulary, but for the first of the embedding, which clears. */
static void alike(void **state) {
    (void)state;
    tm_model_config c = config_of("");
    c.vocab_size = 20000; /* three parts, the last one smaller */
    tm_model *m;
    assert_int_equal(model_create_fused(&m, &c, TM_BF16, 100), TM_OK);
    const tm_stage *embed = m->unit[0].stage, *one = m->unit[1].stage, *two = m->unit[2].stage,
                   *head = m->unit[3].stage;
    const tm_load load = tm_model_load(&c, 2, 30, 64);
    assert_true(tm_stage_alike(&embed[1], &embed[2]) && !tm_stage_alike(&embed[0], &embed[1]));
    assert_true(tm_stage_alike(&head[1], &head[3]) && !tm_stage_alike(&head[0], &head[1]));
    assert_true(tm_stage_work(m, 3, 1, true, &load).flops > tm_stage_work(m, 3, 3, true, &load).flops);
    for (uint32_t s = 0; s < m->unit[1].n_stages; s++)
        for (uint32_t t = 0; t < m->unit[2].n_stages; t++) {
            char a[160], b[160];
            tm_stage_signature(&one[s], a, sizeof a);
            tm_stage_signature(&two[t], b, sizeof b);
            assert_true(tm_stage_alike(&one[s], &two[t]) == (s == t));
            assert_true(s != t || strcmp(a, b) == 0);
        }
    tm_model_free(m);
    c.num_key_value_heads = 4;
    tm_model *other;
    assert_int_equal(model_create_fused(&m, &c, TM_BF16, 100), TM_OK);
    c.sliding_window = 7;
    c.windowed.bits[0] = 3;
    assert_int_equal(model_create_fused(&other, &c, TM_BF16, 100), TM_OK);
    for (uint32_t s = 0; s < m->unit[1].n_stages; s++)
        assert_true(tm_stage_alike(&m->unit[1].stage[s], &other->unit[1].stage[s]) ==
                    !m->unit[1].stage[s].uses_kv_cache);
    tm_model_free(m);
    tm_model_free(other);
}

static void initial_values(void **state) {
    (void)state;
    tm_model *m = model_of(",\"attention_bias\":true", TM_F32, true);
    for (uint32_t t = 0; t < tm_model_tensors(m); t++) {
        const tm_tensor *x = tm_model_tensor(m, t);
        float *whole = malloc(x->elements * sizeof *whole), *pieces = malloc(x->elements * sizeof *pieces);
        double sum = 0, square = 0, n = (double)x->elements;
        tm_model_init_values(m, t, 42, 0, x->elements, whole);
        for (uint64_t at = 0, step = 1; at < x->elements; at += step, step = step * 2 + 1) {
            step = tm_min_u64(step, x->elements - at);
            tm_model_init_values(m, t, 42, at, step, pieces + at);
        }
        assert_memory_equal(whole, pieces, x->elements * sizeof *whole);
        for (uint64_t i = 0; i < x->elements; i++)
            sum += (double)whole[i], square += (double)whole[i] * (double)whole[i];
        if (strstr(x->name, "norm")) assert_true(sum == n && square == n);
        if (strstr(x->name, "bias")) assert_true(square == 0);
        if (x->ndim == 2) {
            assert_true(fabs(sum / n) < 5 * 0.02 / sqrt(n));
            assert_true(fabs(sqrt(square / n) / 0.02 - 1) < 5 / sqrt(2 * n));
        }
        free(whole), free(pieces);
    }
    float a[8], b[8], c[8];
    tm_model_init_values(m, 0, 42, 0, 8, a);
    tm_model_init_values(m, 0, 43, 0, 8, b);
    tm_model_init_values(m, 2, 42, 0, 8, c);
    assert_true(memcmp(a, b, sizeof a) && memcmp(a, c, sizeof a));
    tm_model_free(m);
}

/* ---- running ---- */

/* Stage by stage over all micro-batches, or micro-batch by micro-batch over all stages: the same bits. */
static void schedules(void **state) {
    (void)state;
    for (size_t v = 0; v < TM_COUNT(variants); v++)
        for (int fused = 0; fused < 2; fused++)
            for (tm_dtype type = TM_F32; type <= (fused ? TM_F16 : TM_BF16); type++) {
                tm_model *m = model_of(variants[v], type, fused);
                tokens t[3] = {make_tokens(2, 9, 300, 1), make_tokens(1, 70, 300, 2), make_tokens(3, 1, 300, 3)};
                tm_micro_batch batches[3] = {t[0].batch, t[1].batch, t[2].batch};
                run a, b;
                run_open(&a, m, 3, batches), run_open(&b, m, 3, batches);
                lively_weights(&a, 3), lively_weights(&b, 3);
                whole_step(&a, BATCH_OUTER), whole_step(&b, STAGE_OUTER);
                uint64_t n;
                finite_gradients(&a);
                assert_true(same_gradients(&a, &b));
                assert_true(run_loss(&a, NULL, &n) == run_loss(&b, NULL, &n));
                run_close(&a), run_close(&b);
                for (int i = 0; i < 3; i++) free_tokens(&t[i]);
                tm_model_free(m);
            }
}

/* Logits that were kept give the bits of those that are multiplied again: two vocabulary parts, several blocks of
 * columns, two chunks of tokens. */
static void kept_logits(void **state) {
    (void)state;
    for (tm_dtype type = TM_F32; type <= TM_F16; type++) {
        tm_model_config c = config_of("");
        c.vocab_size = 8192 + 2100;
        tm_model *m;
        assert_int_equal(tm_model_create(&m, &c, type), TM_OK);
        tokens t[2] = {make_tokens(3, 300, c.vocab_size, 1), make_tokens(1, 70, c.vocab_size, 2)};
        tm_micro_batch batches[2] = {t[0].batch, t[1].batch};
        run a, b;
        run_open(&a, m, 2, batches), run_open(&b, m, 2, batches);
        run_random_weights(&a, 3), run_random_weights(&b, 3);
        b.keep_logits = true;
        whole_step(&a, BATCH_OUTER), whole_step(&b, STAGE_OUTER);
        uint64_t n;
        finite_gradients(&b);
        assert_true(same_gradients(&a, &b));
        assert_true(run_loss(&a, NULL, &n) == run_loss(&b, NULL, &n));
        run_close(&a), run_close(&b);
        free_tokens(&t[0]), free_tokens(&t[1]);
        tm_model_free(m);
    }
}

/* Separate q, k, v, gate, up compute what the fused parts compute. */
static void separate_parts(void **state) {
    (void)state;
    tm_model *m[2] = {model_of(variants[2], TM_F32, true), model_of(variants[2], TM_F32, false)};
    tokens t = make_tokens(2, 40, 300, 1);
    run r[2];
    double loss[2];
    for (int i = 0; i < 2; i++) {
        uint64_t n;
        run_open(&r[i], m[i], 1, &t.batch);
        lively_weights(&r[i], 5);
        whole_step(&r[i], BATCH_OUTER);
        loss[i] = run_loss(&r[i], NULL, &n);
    }
    assert_true(fabs(loss[0] - loss[1]) < 1e-5);
    assert_near_gradients(&r[0], &r[1]);
    for (int i = 0; i < 2; i++) run_close(&r[i]), tm_model_free(m[i]);
    free_tokens(&t);
}

/* The gradient of two micro-batches is the sum of each one's. */
static void accumulation(void **state) {
    (void)state;
    tm_model *m = model_of(variants[1], TM_F32, true);
    tokens t[2] = {make_tokens(2, 33, 300, 1), make_tokens(1, 20, 300, 2)};
    tm_micro_batch both[2] = {t[0].batch, t[1].batch};
    run ab, one[2];
    run_open(&ab, m, 2, both);
    lively_weights(&ab, 3);
    whole_step(&ab, BATCH_OUTER);
    for (int i = 0; i < 2; i++) {
        run_open(&one[i], m, 1, &both[i]);
        lively_weights(&one[i], 3);
        run_forward(&one[i], BATCH_OUTER);
        memcpy(one[i].coefficient[0], ab.coefficient[i], both[i].tokens * sizeof(float));
        run_backward(&one[i], BATCH_OUTER);
    }
    for (uint32_t p = 0; p < tm_model_parts(m); p++) {
        double worst = 0, size = 0;
        for (uint64_t i = 0; i < tm_model_part(m, p)->elements; i++) {
            double want = (double)one[0].grad[p][i] + (double)one[1].grad[p][i];
            worst = fmax(worst, fabs((double)ab.grad[p][i] - want)), size = fmax(size, fabs(want));
        }
        assert_true(worst <= 2e-6 * size);
    }
    run_close(&ab), run_close(&one[0]), run_close(&one[1]);
    free_tokens(&t[0]), free_tokens(&t[1]);
    tm_model_free(m);
}

/* Along its own gradient, each tensor changes the loss by the gradient's norm. */
static void check_slopes(const char *more, bool fused) {
    tm_model *m = model_of(more, TM_F32, fused);
    tokens t = make_tokens(2, 21, 300, 4);
    run r;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 9);
    whole_step(&r, BATCH_OUTER);
    for (uint32_t x = 0; x < tm_model_tensors(m); x++) {
        uint64_t n = tm_model_tensor(m, x)->elements, labels;
        float *g = malloc(n * sizeof *g);
        run_tensor_grad(&r, x, g);
        double norm = 0, loss[2];
        for (uint64_t i = 0; i < n; i++) norm += (double)g[i] * (double)g[i];
        norm = sqrt(norm);
        double step = 3e-3 / fmax(norm, 0.3); /* the loss changes by about 1e-3 */
        for (int side = 0; side < 2; side++) {
            const tm_segment *s = tm_model_tensor_segments(m, x);
            lively_weights(&r, 9);
            for (uint32_t i = 0; i < tm_model_tensor(m, x)->n_segments; i++)
                for (uint64_t e = 0; e < s[i].elements; e++)
                    ((float *)r.weight[s[i].part])[s[i].part_offset + e] +=
                        (float)((side ? -step : step) * (double)g[s[i].tensor_offset + e] / norm);
            run_forward(&r, BATCH_OUTER);
            loss[side] = run_loss(&r, NULL, &labels);
        }
        double slope = (loss[0] - loss[1]) / (2 * step);
        bool k_bias = strstr(tm_model_tensor(m, x)->name, "k_proj.bias") != NULL;
        if (!k_bias && !(fabs(slope - norm) <= 0.01 * norm + 1e-4))
            fail_msg("%s: slope %.6g, gradient %.6g", tm_model_tensor(m, x)->name, slope, norm);
        free(g);
    }
    run_close(&r);
    free_tokens(&t);
    tm_model_free(m);
}
static void slopes(void **state) {
    (void)state;
    check_slopes(variants[1], true);
    check_slopes(variants[2], true);
    check_slopes(variants[2], false);
}

static void cache(void **state) {
    (void)state;
    static const struct {
        tm_dtype compute;
        const char *more;
        double tolerance;
    } cases[] = {{TM_F32, "", 2e-5},
                 {TM_F32, ",\"attention_bias\":true,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", 2e-5},
                 {TM_BF16, "", 0.15},
                 {TM_F16, "", 0.15 / 8}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_model *m = model_of(cases[i].more, cases[i].compute, true);
        double worst = cache_difference(m);
        printf("cache: logits differ by %.3g\n", worst);
        assert_true(worst <= cases[i].tolerance);
        tm_model_free(m);
    }
}

/* Labels decide which tokens the head works on, and nothing else. */
static void labelled_tokens(void **state) {
    (void)state;
    tm_model *m = model_of("", TM_F32, true);
    tokens t = make_tokens(2, 50, 300, 1);
    run r;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 2);
    run_forward(&r, BATCH_OUTER);
    float *logits = malloc(t.batch.tokens * 300 * sizeof *logits), *nll = malloc(t.batch.tokens * sizeof *nll);
    uint64_t labels;
    run_logits(&r, 0, logits);
    run_loss(&r, nll, &labels);
    for (uint32_t i = 0; i < t.batch.tokens; i++) {
        double sum = 0;
        for (uint32_t v = 0; v < 300; v++) sum += exp((double)logits[i * 300 + v]);
        bool counts = i < 100 && t.labels[i] >= 0;
        double want = counts ? log(sum) - (double)logits[i * 300 + (uint32_t)t.labels[i]] : 0;
        assert_true(fabs((double)nll[i] - want) < 1e-5);
    }
    for (uint32_t i = 0; i < 100; i++) t.labels[i] = -100; /* nothing to learn: every gradient is zero */
    run_forward(&r, BATCH_OUTER);
    assert_true(run_loss(&r, nll, &labels) == 0 && labels == 0);
    memset(r.coefficient[0], 0, t.batch.tokens * sizeof(float));
    run_backward(&r, BATCH_OUTER);
    for (uint32_t p = 0; p < tm_model_parts(m); p++)
        for (uint64_t i = 0; i < tm_model_part(m, p)->elements; i++) assert_true(r.grad[p][i] == 0);
    run_close(&r);
    free_tokens(&t);
    free(logits), free(nll);
    tm_model_free(m);
}

/* With our own products nothing at all depends on the number of threads. */
static void thread_counts(void **state) {
    (void)state;
    if (!strstr(tm_gemm_library(), "builtin")) {
        printf("(only with our own products)\n");
        return;
    }
    tm_model *m = model_of(variants[2], TM_BF16, true);
    tokens t = make_tokens(3, 90, 300, 1);
    run r[3];
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(tm_kernels_init(i + 1, TM_ELEM_F32), TM_OK);
        run_open(&r[i], m, 1, &t.batch);
        lively_weights(&r[i], 2);
        whole_step(&r[i], BATCH_OUTER);
        if (i) assert_true(same_gradients(&r[0], &r[i]));
    }
    for (unsigned i = 0; i < 3; i++) run_close(&r[i]);
    free_tokens(&t);
    tm_model_free(m);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
}

/* Nothing is allocated once a model exists. */
static void no_allocation(void **state) {
    (void)state;
    tm_model *m = model_of(variants[0], TM_BF16, true);
    tokens t = make_tokens(2, 30, 300, 1);
    run r;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 2);
    uint64_t before = tm_mem_allocations();
    whole_step(&r, BATCH_OUTER);
    assert_int_equal(tm_mem_allocations(), before);
    run_close(&r);
    free_tokens(&t);
    tm_model_free(m);
}

/* An empty micro-batch that comes first leaves zeros, not what was there. */
static void empty_batch(void **state) {
    (void)state;
    tm_model *m = model_of("", TM_F32, true);
    tokens t = make_tokens(2, 30, 300, 1);
    tm_micro_batch batches[2] = {{.rows = 0, .seq = 0, .tokens = 0}, t.batch};
    run a, b;
    run_open(&a, m, 2, batches), run_open(&b, m, 1, &t.batch);
    lively_weights(&a, 2), lively_weights(&b, 2);
    whole_step(&a, BATCH_OUTER), whole_step(&b, BATCH_OUTER);
    for (uint32_t p = 0; p < tm_model_parts(m); p++)
        for (uint64_t i = 0; i < tm_model_part(m, p)->elements; i++)
            assert_true(fabs((double)(a.grad[p][i] - b.grad[p][i])) <= 1e-6);
    run_close(&a), run_close(&b);
    free_tokens(&t);
    tm_model_free(m);
}

/* Each allocation fails in turn: an error, nothing held. */
static void failed_allocations(void **state) {
    (void)state;
#ifdef TIDEMILL_FAULTS
    tm_model_config c = config_of("");
    uint64_t before = tm_mem_live_bytes();
    tm_status rc = TM_ENOMEM;
    for (unsigned i = 1; rc != TM_OK; i++) {
        char spec[64];
        tm_model *m;
        snprintf(spec, sizeof spec, "alloc:%u:fail:once", i);
        assert_int_equal(tm_fault_set(spec), TM_OK);
        rc = tm_model_create(&m, &c, TM_F32);
        assert_int_equal(tm_fault_set(NULL), TM_OK);
        assert_true(rc == TM_OK || (rc == TM_ENOMEM && !m && i < 50));
        tm_error_clear();
        tm_model_free(m);
        assert_int_equal(tm_mem_live_bytes(), before);
    }
    assert_int_equal(tm_fault_set("alloc:1:fail:sticky"), TM_OK);
    rc = tm_kernels_init(2, TM_ELEM_F32); /* not another product instead */
    assert_int_equal(tm_fault_set(NULL), TM_OK);
    assert_int_equal(rc, TM_ENOMEM);
    tm_error_clear();
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
#endif
}

static int run_all(const char *gemm) {
    setenv("TIDEMILL_GEMM", gemm, 1);
    if (tm_kernels_init(2, TM_ELEM_F32) != TM_OK) {
        TEST_SKIP_PART("%s: %s", gemm, tm_error_get()->text);
        tm_error_clear();
        return 0;
    }
    printf("%s\n", tm_kernels_describe());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),       cmocka_unit_test(tied_heads),         cmocka_unit_test(rope_forms),
        cmocka_unit_test(gemma4_forms),   cmocka_unit_test(bad_configurations), cmocka_unit_test(learned_positions),
        cmocka_unit_test(tables),         cmocka_unit_test(growing_tables),     cmocka_unit_test(alike),
        cmocka_unit_test(initial_values), cmocka_unit_test(schedules),          cmocka_unit_test(kept_logits),
        cmocka_unit_test(separate_parts), cmocka_unit_test(accumulation),       cmocka_unit_test(slopes),
        cmocka_unit_test(cache),          cmocka_unit_test(labelled_tokens),    cmocka_unit_test(thread_counts),
        cmocka_unit_test(no_allocation),  cmocka_unit_test(empty_batch),        cmocka_unit_test(failed_allocations),
    };
    return cmocka_run_group_tests_name(gemm, tests, NULL, NULL);
}

int main(void) {
    int failed = run_all("builtin") + run_all("openblas");
    tm_kernels_close();
    return failed;
}

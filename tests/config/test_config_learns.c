/* What learns, as the configuration says it: adapters by PEFT's keys and by ms-swift's, 4 bits, freezing. */
#include "world.h"
#include "tests/adapter/world.h"

static void defaults_of_the_two_spellings(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        double alpha, dropout, rate;
    } cases[] = {{"\"adapter\": {\"type\": \"lora\"}", 8, 0, 1e-4},
                 {"\"tuner_type\": \"lora\"", 32, 0.05, 1e-4},
                 {"\"lora_rank\": 8", 32, 0.05, 1e-4},
                 {"\"tuner_type\": \"lora\", \"learning_rate\": 1e-5", 32, 0.05, 1e-5},
                 {"\"tuner_type\": \"dora\", \"adapter\": {}", 8, 0, 1e-4},
                 {"\"adapters\": [\"lora\"]", 7, 0.25, 1e-4},
                 {"\"adapter\": {\"path\": \"lora/\", \"alpha\": 2}", 2, 0.25, 1e-4}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[400];
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i].keys);
        tm_config *c = test_ok(json);
        if (!c->adapter) fail_msg("%s: no adapter", json);
        assert_true(c->adapter->alpha == cases[i].alpha && c->adapter->dropout == cases[i].dropout);
        assert_true(c->learning_rate == cases[i].rate && c->adapter->lr_ratio == 1);
        tm_config_free(c);
    }
}

/* Said, but switched off: as if it was not said. */
static void what_is_off_is_no_adapter(void **state) {
    (void)state;
    static const char *const cases[] = {
        "\"tuner_type\": \"full\"",
        "\"adapter\": null",
        "\"use_dora\": false",
        "\"tuner_type\": \"full\", \"adapters\": [], \"modules_to_save\": []",
        "\"lora_bias\": \"none\", \"use_peft\": false, \"lorap_lr_ratio\": null",
        "\"freeze_parameters\": [], \"freeze_parameters_ratio\": 0.0",
        "\"trainable_parameters_regex\": null, \"freeze_vit\": true",
        "\"quant_bits\": null, \"bnb_4bit_quant_type\": \"nf4\", \"load_in_4bit\": false",
        "\"quantization\": {\"type\": \"none\"}"};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[400];
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i]);
        tm_config *c = test_ok(json);
        if (c->adapter || c->freeze || c->quantization.type) fail_msg("%s", json);
        assert_true(c->learning_rate == 1e-5);
        tm_config_free(c);
    }
}

static void kinds(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        bool dora, rslora;
        tm_quantize quantize;
    } cases[] = {
        {"\"tuner_type\": \"qlora\"", false, false, TM_QUANTIZE_NF4},
        {"\"train_type\": \"dora\"", true, false, TM_QUANTIZE_NONE},
        {"\"adapter\": {\"type\": \"rslora\"}", false, true, TM_QUANTIZE_NONE},
        {"\"adapter\": {\"peft_type\": \"LORA\", \"use_dora\": true}", true, false, TM_QUANTIZE_NONE},
        {"\"tuner_type\": \"lora\", \"load_in_4bit\": true", false, false, TM_QUANTIZE_NF4},
        {"\"adapter\": {}, \"quantization\": {\"double_quant\": true}", false, false, TM_QUANTIZE_NF4},
        {"\"use_rslora\": true, \"quant_bits\": 4, \"bnb_4bit_quant_type\": \"fp4\"", false, true, TM_QUANTIZE_FP4}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[400];
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i].keys);
        tm_config *c = test_ok(json);
        assert_int_equal(c->adapter->use_dora, cases[i].dora);
        assert_int_equal(c->adapter->use_rslora, cases[i].rslora);
        assert_int_equal(c->quantization.type, cases[i].quantize);
        assert_true(c->quantization.double_quant && c->quantization.block == 64);
        tm_config_free(c);
    }
}

/* A file of PEFT's, pasted as it is, is the same adapter as PEFT's: it is written again as PEFT wrote it. */
static void pasted(void **state) {
    (void)state;
    tm_json_doc *doc = answers_of("peft_written.json");
    for (const tm_json *file = tm_json_root(doc)->child; file; file = file->next) {
        tm_buf json = {0}, theirs = {0}, ours = {0};
        tm_adapter_config *a;
        tm_json_writer w;
        assert_int_equal(tm_buf_printf(&json, "{" BASE ", \"adapter\": "), TM_OK);
        tm_jw_init(&w, &theirs, 0);
        tm_jw_node(&w, file);
        assert_int_equal(tm_jw_end(&w), TM_OK);
        assert_int_equal(tm_buf_printf(&json, "%s}", theirs.data), TM_OK);
        assert_int_equal(tm_adapter_create(&a), TM_OK);
        assert_int_equal(tm_adapter_read(a, theirs.data, theirs.len, "a.json"), TM_OK);
        assert_int_equal(tm_adapter_complete(a), TM_OK);
        tm_buf_clear(&theirs);
        assert_int_equal(tm_adapter_write_json(a, &(tm_adapter_json_opts){0}, &theirs), TM_OK);
        tm_config *c = test_ok(json.data);
        assert_int_equal(tm_adapter_write_json(c->adapter, &(tm_adapter_json_opts){0}, &ours), TM_OK);
        assert_string_equal(ours.data, theirs.data);
        tm_config_free(c);
        tm_adapter_free(a);
        tm_buf_free(&json), tm_buf_free(&theirs), tm_buf_free(&ours);
    }
    tm_json_free(doc);
}

static void set_on_the_command_line(void **state) {
    (void)state;
    static const char *const set[] = {"adapter.r=16", "target_modules=[\"q_proj\"]", "adapter.rank_pattern={\"q\": 2}",
                                      "freeze_parameters=null", NULL};
    tm_adapter_spec spec;
    tm_config *c =
        test_ok_set("{" BASE ", \"adapter\": {\"r\": 4, \"alpha\": 8}, \"freeze_parameters\": [\"x\"]}", NULL, set);
    assert_int_equal(c->adapter->r, 16);
    assert_true(tm_adapter_module(c->adapter, "a.q_proj", &spec) && spec.rank == 16 && spec.scale == 0.5);
    assert_true(!tm_adapter_module(c->adapter, "a.v_proj", &spec) && !c->freeze);
    tm_config_free(c);
}

static void freezing(void **state) {
    (void)state;
    tm_config *c =
        test_ok("{" BASE ", \"freeze_parameters\": \"model.\", \"trainable_parameters_regex\": \"norm\\\\.\"}");
    const tm_freeze_place place = {.total = 1, .through = 1};
    assert_non_null(c->freeze);
    assert_true(tm_freeze_learns(c->freeze, "lm_head.weight", &place));
    assert_true(tm_freeze_learns(c->freeze, "model.norm.weight", &place));
    assert_false(tm_freeze_learns(c->freeze, "model.embed_tokens.weight", &place));
    tm_config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(defaults_of_the_two_spellings),
                                       cmocka_unit_test(what_is_off_is_no_adapter),
                                       cmocka_unit_test(kinds),
                                       cmocka_unit_test(pasted),
                                       cmocka_unit_test(set_on_the_command_line),
                                       cmocka_unit_test(freezing)};
    return cmocka_run_group_tests_name("config_learns", tests, NULL, NULL);
}

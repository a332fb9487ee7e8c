/* Keys: what is taken, what is refused and how it is said, whole files, and hostile ones. */
#include "world.h"

#include "adapter/adapter.h"
#include "tests/support/walk.h"

static tm_status read_text(const char *text, tm_adapter_config **out) {
    assert_int_equal(tm_adapter_create(out), TM_OK);
    tm_status rc = tm_adapter_read(*out, text, strlen(text), "a.json");
    return rc == TM_OK ? tm_adapter_complete(*out) : rc;
}

/* A file with these keys beside the two that every file has. */
static tm_status read_keys(const char *keys, tm_adapter_config **out) {
    char text[2048];
    snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"]%s%s}", *keys ? ", " : "",
             keys);
    return read_text(text, out);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        tm_status status;
        const char *keys, *says;
    } cases[] = {
        {TM_EINPUT, "\"r\": 0", "a.json:1:58: \"r\" must be an integer from 1 to 65536, not 0"},
        {TM_EINPUT, "\"r\": 65537", "not 65537"},
        {TM_EINPUT, "\"r\": 2.5", "not 2.5"},
        {TM_EINPUT, "\"r\": \"8\"", "not \"8\""},
        {TM_EINPUT, "\"lora_alpha\": -1", "\"lora_alpha\" must be a number above 0, not -1"},
        {TM_EINPUT, "\"lora_alpha\": 1e99", "not 1e99"},
        {TM_EINPUT, "\"lora_dropout\": 1", "from 0 to below 1, not 1"},
        {TM_EINPUT, "\"exclude_modules\": 5", "a list of names, a regular expression, or \"all-linear\", not 5"},
        {TM_EINPUT, "\"exclude_modules\": [\"\"]", "must be a list of names"},
        {TM_EINPUT, "\"exclude_modules\": [\"a\\u0000b\"]", "must be a list of names"},
        {TM_EINPUT, "\"exclude_modules\": \"(\"", "the regular expression \"(\", character 2: missing closing"},
        {TM_EUNSUPPORTED, "\"exclude_modules\": \"(?<x>a)\"", "this sort of group is not taken"},
        {TM_EINPUT, "\"modules_to_save\": [\"(\"]", "missing closing"},
        {TM_EINPUT, "\"rank_pattern\": []", "\"rank_pattern\" must be an object"},
        {TM_EINPUT, "\"rank_pattern\": {\"q\": 1.5}",
         "\"rank_pattern\": \"q\" must be an integer from 1 to 65536, not 1.5"},
        {TM_EINPUT, "\"rank_pattern\": {\"q\": 0}", "not 0"},
        {TM_EINPUT, "\"rank_pattern\": {\"*\": 1}", "the regular expression \"(.*\\.)?(*)$\""},
        {TM_EINPUT, "\"alpha_pattern\": {\"q\": null}", "a number above 0, not null"},
        {TM_EINPUT, "\"bias\": \"some\"", "\"none\", \"all\" or \"lora_only\", not \"some\""},
        {TM_EINPUT, "\"use_dora\": 1", "true or false, not 1"},
        {TM_EINPUT, "\"layers_to_transform\": [-1]", "layers, numbers from 0 on, not -1"},
        {TM_EINPUT, "\"layers_to_transform\": \"1\"", "a list of layers"},
        {TM_EINPUT, "\"layers_pattern\": \"h\"", "\"layers_pattern\" says where"},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"olora\"", "\"olora\": there are true, \"gaussian\", \"pissa\" and"},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"loftq\"", "\"loftq\""},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"corda\"", "\"corda\""},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"mica\"", "\"mica\""},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"pissa_niter_\"", "pissa_niter_N"},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"pissa_niter_-1\"", "pissa_niter_N"},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"pissa_niter_1x\"", "pissa_niter_N"},
        {TM_EUNSUPPORTED, "\"init_lora_weights\": \"pissa_niter_99999999999999999999\"", "pissa_niter_N"},
        {TM_EUNSUPPORTED, "\"task_type\": \"SEQ_CLS\"", "\"SEQ_CLS\": this program has language models"},
        {TM_EUNSUPPORTED, "\"target_parameters\": [\"mlp.experts.down_proj\"]", "adapters of fused experts"},
        {TM_EUNSUPPORTED, "\"trainable_token_indices\": [1]", "single rows of an embedding"},
        {TM_EUNSUPPORTED, "\"layer_replication\": [[0, 4]]", "layers that are there several times"},
        {TM_EUNSUPPORTED, "\"lora_bias\": true", "a bias of B"},
        {TM_EUNSUPPORTED, "\"use_qalora\": true", "QALoRA"},
        {TM_EUNSUPPORTED, "\"kasa_config\": {\"beta\": 1}", "KaSA"},
        {TM_EUNSUPPORTED, "\"of_next_year\": true", "\"of_next_year\" is not a key of adapter_config.json"},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_adapter_config *a;
        fails_with(read_keys(cases[i].keys, &a), cases[i].status, cases[i].says);
        tm_adapter_free(a);
    }
}

static void whole_files(void **state) {
    (void)state;
    static const struct {
        tm_status status;
        const char *text, *says;
    } cases[] = {
        {TM_EINPUT, "[]", "a.json: an adapter's configuration is a JSON object"},
        {TM_EINPUT, "{}", "a.json: there is no \"peft_type\""},
        {TM_EINPUT, "{\"peft_type\": \"LORA\"}", "a.json: there are no \"target_modules\""},
        {TM_EINPUT, "{\"peft_type\": \"LORA\", \"target_modules\": null}", "there are no \"target_modules\""},
        {TM_EINPUT, "{\"peft_type\": \"LORA\", \"target_modules\": []}", "must be a list of names"},
        {TM_EINPUT, "{\"peft_type\"", "a.json:1:"},
        {TM_EUNSUPPORTED, "{\"target_modules\": [\"q\"], \"peft_type\": \"LOHA\"}",
         "\"peft_type\" \"LOHA\": there are lora, rslora, dora and qlora (of PEFT's types LORA alone)"},
        {TM_EUNSUPPORTED, "{\"peft_type\": \"IA3\", \"target_modules\": [\"q\"]}", "\"IA3\""},
        {TM_EUNSUPPORTED, "{\"peft_type\": \"ADALORA\", \"target_modules\": [\"q\"]}", "\"ADALORA\""},
        {TM_EUNSUPPORTED, "{\"peft_type\": \"VERA\", \"target_modules\": [\"q\"]}", "\"VERA\""},
        {TM_EUNSUPPORTED, "{\"peft_type\": \"LORA\", \"target_parameters\": [\"e\"]}", "fused experts"},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_adapter_config *a;
        fails_with(read_text(cases[i].text, &a), cases[i].status, cases[i].says);
        tm_adapter_free(a);
    }
}

/* How a stored adapter began matters only where the base was changed by it. */
static void stored_inits(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        tm_adapter_init init;
        int32_t iterations;
    } cases[] = {{"", TM_ADAPTER_INIT_DEFAULT, -1},
                 {"\"init_lora_weights\": true", TM_ADAPTER_INIT_DEFAULT, -1},
                 {"\"init_lora_weights\": \"gaussian\"", TM_ADAPTER_INIT_GAUSSIAN, -1},
                 {"\"init_lora_weights\": \"pissa\"", TM_ADAPTER_INIT_PISSA, -1},
                 {"\"init_lora_weights\": \"pissa_niter_16\"", TM_ADAPTER_INIT_PISSA, 16},
                 {"\"init_lora_weights\": false", TM_ADAPTER_INIT_STORED, -1},
                 {"\"init_lora_weights\": \"eva\"", TM_ADAPTER_INIT_STORED, -1}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_adapter_config *a;
        assert_int_equal(read_keys(cases[i].keys, &a), TM_OK);
        assert_int_equal(a->init, cases[i].init);
        assert_int_equal(a->pissa_iterations, cases[i].iterations);
        tm_adapter_free(a);
    }
}

static tm_status set(tm_adapter_config *a, const char *key, const char *json) {
    tm_json_doc *doc;
    assert_int_equal(tm_json_parse(&doc, json, strlen(json), "value", 0, 0), TM_OK);
    tm_status rc = tm_adapter_set(a, key, tm_json_root(doc));
    tm_json_free(doc);
    return rc;
}

/* A new adapter begins in one of the ways that there are. */
static void set_by_key(void **state) {
    (void)state;
    tm_adapter_config *a;
    tm_adapter_spec spec;
    assert_int_equal(tm_adapter_create(&a), TM_OK);
    fails_with(set(a, "rank", "1"), TM_EINPUT, "\"rank\" is no key of an adapter");
    fails_with(set(a, "init_lora_weights", "false"), TM_EUNSUPPORTED, "false: there are true");
    fails_with(set(a, "init_lora_weights", "\"eva\""), TM_EUNSUPPORTED, "\"eva\": there are true");
    fails_with(set(a, "type", "\"adalora\""), TM_EUNSUPPORTED, "\"adalora\": there are lora, rslora, dora and qlora");
    assert_int_equal(set(a, "type", "\"dora\""), TM_OK);
    assert_int_equal(set(a, "alpha", "32"), TM_OK);
    assert_int_equal(set(a, "loraplus_lr_ratio", "16"), TM_OK);
    assert_int_equal(set(a, "targets", "[\"all-linear\", \"all-embedding\"]"), TM_OK);
    assert_int_equal(set(a, "modules_to_save", "null"), TM_OK);
    assert_int_equal(tm_adapter_complete(a), TM_OK);
    assert_true(a->use_dora && a->lr_ratio == 16);
    assert_true(tm_adapter_module(a, "model.embed_tokens", &spec) && spec.scale == 4 && spec.dora);
    assert_false(tm_adapter_module(a, "lm_head", &spec));
    tm_adapter_free(a);
    /* without a word of targets */
    assert_int_equal(tm_adapter_create(&a), TM_OK);
    assert_int_equal(tm_adapter_complete(a), TM_OK);
    assert_true(tm_adapter_module(a, "x.y_proj", &spec) && !tm_adapter_module(a, "model.embed_tokens", &spec));
    tm_adapter_free(a);
}

/* What a folder's tensors are cannot be said otherwise beside it; what is not in them can. */
static void over_a_folder(void **state) {
    (void)state;
    static const struct {
        const char *key, *json, *says;
    } cases[] = {{"r", "8", NULL},
                 {"lora_alpha", "2", NULL},
                 {"lora_dropout", "0.5", NULL},
                 {"r", "4", "\"r\" is 4, but the adapter of a.json has r 8"},
                 {"use_dora", "true", "\"use_dora\" is true, but the adapter of a.json is not DoRA"},
                 {"type", "\"dora\"", "is not DoRA"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_adapter_config *a;
        assert_int_equal(read_keys("\"r\": 8, \"lora_alpha\": 5", &a), TM_OK);
        assert_int_equal(set(a, cases[i].key, cases[i].json), TM_OK);
        tm_status rc = tm_adapter_complete(a);
        if (cases[i].says)
            fails_with(rc, TM_EINPUT, cases[i].says);
        else
            assert_int_equal(rc, TM_OK);
        tm_adapter_free(a);
    }
}

static void names_that_there_are(void **state) {
    (void)state;
    static const char *const modules[] = {"model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.norm",
                                          "lm_head"};
    tm_adapter_config *a;
    assert_int_equal(tm_adapter_create(&a), TM_OK);
    assert_int_equal(set(a, "target_modules", "[\"q_proj\", \"c_attn\"]"), TM_OK);
    assert_int_equal(tm_adapter_complete(a), TM_OK);
    fails_with(
        tm_adapter_check(a, modules, 4), TM_EINPUT,
        "\"target_modules\" has \"c_attn\", which is no module of this model; there are embed_tokens, q_proj, norm, "
        "lm_head");
    tm_adapter_free(a);
    /* a list of a folder may be of several models */
    assert_int_equal(read_text("{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\", \"c_attn\"]}", &a), TM_OK);
    assert_int_equal(tm_adapter_check(a, modules, 4), TM_OK);
    tm_adapter_free(a);
    assert_int_equal(read_text("{\"peft_type\": \"LORA\", \"target_modules\": [\"c_attn\"]}", &a), TM_OK);
    fails_with(tm_adapter_check(a, modules, 4), TM_EINPUT,
               "a.json: \"target_modules\" chooses no module of this model; there are embed_tokens, q_proj");
    tm_adapter_free(a);
    assert_int_equal(read_keys("\"modules_to_save\": [\"score\"]", &a), TM_OK);
    fails_with(tm_adapter_check(a, modules, 4), TM_EINPUT, "\"modules_to_save\" has \"score\"");
    tm_adapter_free(a);
    assert_int_equal(read_text("{\"peft_type\": \"LORA\", \"target_modules\": \"(.*.*.*.*.*)*[#%]\"}", &a), TM_OK);
    fails_with(tm_adapter_check(a, modules, 4), TM_EUNSUPPORTED, "write a simpler one");
    tm_adapter_spec spec;
    assert_false(tm_adapter_module(a, modules[1], &spec));
    assert_int_equal(tm_error_get()->code, TM_OK);
    tm_adapter_free(a);
}

static void too_many(void **state) {
    (void)state;
    tm_buf text = {0};
    tm_adapter_config *a;
    assert_int_equal(tm_buf_printf(&text, "{\"peft_type\": \"LORA\", \"target_modules\": [\"q\""), TM_OK);
    for (int i = 0; i < 20000; i++) assert_int_equal(tm_buf_printf(&text, ",\"q\""), TM_OK);
    assert_int_equal(tm_buf_printf(&text, "]}"), TM_OK);
    fails_with(read_text(text.data, &a), TM_EINPUT, "has 20001 names; 16384 are the most");
    tm_adapter_free(a);
    tm_buf_clear(&text);
    assert_int_equal(
        tm_buf_printf(&text, "{\"peft_type\": \"LORA\", \"target_modules\": [\"q\"], \"rank_pattern\": {\"q\":1"),
        TM_OK);
    for (int i = 0; i < 4000; i++) assert_int_equal(tm_buf_printf(&text, ",\"(a{99}b){500}%d\":2", i), TM_OK);
    assert_int_equal(tm_buf_printf(&text, "}}"), TM_OK);
    fails_with(read_text(text.data, &a), TM_EUNSUPPORTED, "take more than 16 MiB");
    tm_adapter_free(a);
    tm_buf_free(&text);
}

/* All of a config's life. */
static tm_status life(void *ctx) {
    static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "lm_head"};
    static const char text[] =
        "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\"], \"rank_pattern\": {\"q_(?P<x>p)roj\": 2}, "
        "\"modules_to_save\": [\"lm_head\"], \"exclude_modules\": \"a|b\", \"layers_to_transform\": [0]}";
    tm_adapter_config *a = NULL;
    tm_freeze *f = NULL;
    tm_buf out = {0};
    bool learns;
    tm_status rc;
    (void)ctx;
    TM_GO(tm_adapter_create(&a));
    TM_GO(tm_adapter_read(a, text, sizeof text - 1, "a.json"));
    TM_GO(tm_adapter_complete(a));
    TM_GO(tm_adapter_check(a, modules, 2));
    TM_GO(tm_adapter_write_json(a, &(tm_adapter_json_opts){.module = modules, .n_modules = 2}, &out));
    TM_GO(tm_freeze_create(&f, &(tm_freeze_opts){.freeze_parameters_regex = "x|y", .trainable_parameters_regex = "h"}));
    TM_GO(tm_freeze_apply(f, &(tm_freeze_tensor){"hy", 1}, 1, 0, &learns));
done:
    tm_buf_free(&out);
    tm_adapter_free(a);
    tm_freeze_free(f);
    return rc;
}

static void without_memory(void **state) {
    (void)state;
    assert_true(walk_all((walk){.call = "alloc", .kind = "fail", .want = TM_ENOMEM}, life, NULL) > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused),       cmocka_unit_test(whole_files),
                                       cmocka_unit_test(stored_inits),  cmocka_unit_test(set_by_key),
                                       cmocka_unit_test(over_a_folder), cmocka_unit_test(names_that_there_are),
                                       cmocka_unit_test(too_many),      cmocka_unit_test(without_memory)};
    return cmocka_run_group_tests_name("adapter_keys", tests, NULL, NULL);
}

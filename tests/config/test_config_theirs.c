/* Keys of LLaMA-Factory, axolotl, ms-swift and run_clm: each configuration is the same as one in our words. */
#include "world.h"

static const struct {
    const char *theirs, *ours;
} same[] = {
    /* LLaMA-Factory */
    {"\"model_name_or_path\": \"m\", \"dataset\": \"a.jsonl, b.jsonl\", \"cutoff_len\": 64, \"stage\": \"sft\", "
     "\"val_size\": 0.1",
     "\"model\": \"m\", \"data\": {\"train\": [\"a.jsonl\", \"b.jsonl\"], \"seq_len\": 64, \"split_dataset_ratio\": "
     "0.1}"},
    {BASE
     ", \"finetuning_type\": \"lora\", \"lora_rank\": 4, \"lora_target\": \"all\", \"additional_target\": \"lm_head\"",
     BASE ", \"adapter\": {\"r\": 4, \"lora_alpha\": 8, \"modules_to_save\": [\"lm_head\"]}"},
    {BASE ", \"finetuning_type\": \"lora\", \"lora_target\": \"q_proj, v_proj\", \"lora_dropout\": 0.1, "
          "\"pissa_init\": true",
     BASE ", \"adapter\": {\"lora_alpha\": 16, \"lora_dropout\": 0.1, \"target_modules\": [\"q_proj\", \"v_proj\"], "
          "\"init_lora_weights\": \"pissa_niter_16\"}"},
    {BASE ", \"finetuning_type\": \"full\"", BASE},
    {BASE ", \"finetuning_type\": \"freeze\"", BASE ", \"freeze_trainable_layers\": 2"},
    {BASE ", \"finetuning_type\": \"freeze\", \"freeze_trainable_layers\": 3", BASE ", \"freeze_trainable_layers\": 3"},
    {BASE ", \"stage\": \"dpo\", \"pref_beta\": 0.2, \"pref_loss\": \"ipo\", \"pref_ftx\": 0.5",
     BASE ", \"objective\": {\"type\": \"dpo\", \"beta\": 0.2, \"loss_type\": \"ipo\", \"rpo_alpha\": 0.5}"},
    {BASE ", \"stage\": \"dpo\", \"pref_loss\": \"orpo\"", BASE ", \"objective\": {\"type\": \"orpo\"}"},
    {BASE ", \"stage\": \"dpo\", \"pref_loss\": \"simpo\", \"simpo_gamma\": 0.5",
     BASE ", \"objective\": {\"type\": \"simpo\", \"simpo_gamma\": 0.5}"},
    {BASE ", \"finetuning_type\": \"lora\", \"quantization_bit\": 4, \"quantization_method\": \"bnb\", "
          "\"double_quantization\": false",
     BASE ", \"finetuning_type\": \"lora\", \"quantization\": {\"type\": \"nf4\", \"double_quant\": false}"},
    {BASE ", \"neat_packing\": true, \"train_on_prompt\": true", BASE ", \"packing\": true, \"train_on_inputs\": true"},
    /* axolotl */
    {"\"base_model\": \"m\", \"datasets\": [{\"path\": \"a.jsonl\", \"type\": \"alpaca\"}], \"sequence_len\": 64, "
     "\"micro_batch_size\": 3, \"num_epochs\": 2, \"val_set_size\": 0.1, \"sample_packing\": true",
     "\"model\": \"m\", \"data\": {\"train\": [{\"path\": \"a.jsonl\", \"type\": \"alpaca\"}], \"seq_len\": 64, "
     "\"packing\": true, "
     "\"split_dataset_ratio\": 0.1}, \"per_device_train_batch_size\": 3, \"num_train_epochs\": 2"},
    {BASE
     ", \"adapter\": \"lora\", \"lora_r\": 4, \"lora_alpha\": 6, \"lora_dropout\": 0.05, \"lora_target_linear\": true",
     BASE ", \"adapter\": {\"r\": 4, \"lora_alpha\": 6, \"lora_dropout\": 0.05}"},
    {BASE ", \"adapter\": \"qlora\", \"load_in_4bit\": true, \"lora_alpha\": 8, \"lora_dropout\": 0, "
          "\"lora_target_modules\": [\"q_proj\"]",
     BASE ", \"adapter\": {\"type\": \"qlora\", \"target_modules\": [\"q_proj\"]}"},
    {BASE ", \"optimizer\": \"adamw_bnb_8bit\", \"lr_scheduler\": \"linear\", \"weight_decay\": 0",
     BASE ", \"optim\": \"adamw_8bit\", \"lr_scheduler_type\": \"linear\", \"weight_decay\": 0"},
    {BASE ", \"rl\": \"ipo\", \"dpo_beta\": 0.3",
     BASE ", \"objective\": {\"type\": \"dpo\", \"loss_type\": \"ipo\", \"beta\": 0.3}"},
    {BASE ", \"rl\": \"kto\", \"kto_desirable_weight\": 0.5",
     BASE ", \"objective\": {\"type\": \"kto\", \"desirable_weight\": 0.5}"},
    {BASE ", \"saves_per_epoch\": 0, \"evals_per_epoch\": 0",
     BASE ", \"save_strategy\": \"no\", \"eval_strategy\": \"no\""},
    /* ours, shorter */
    {"\"model\": \"m\", \"data\": \"a.jsonl\"", "\"model\": \"m\", \"data\": {\"train\": \"a.jsonl\"}"},
    {"\"model\": \"m\", \"data\": [\"a.jsonl\"], \"cutoff_len\": 64",
     "\"model\": \"m\", \"data\": {\"train\": [\"a.jsonl\"], \"seq_len\": 64}"},
    /* ms-swift */
    {BASE ", \"train_type\": \"lora\", \"loss_scale\": \"last_round\"",
     BASE ", \"tuner_type\": \"lora\", \"mask_history\": true"},
    {BASE ", \"loss_scale\": \"default\", \"dataset_shuffle\": false",
     "\"model\": \"m\", \"data\": {\"train\": \"t.jsonl\", \"shuffle\": false}"},
    {BASE ", \"deepspeed\": \"zero3_offload\"",
     BASE ", \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}, \"offload_optimizer\": "
          "{\"device\": \"cpu\"}}"},
    {BASE ", \"deepspeed\": \"zero2\"", BASE ", \"zero_optimization\": {\"stage\": 2}"},
    /* run_clm */
    {"\"model\": \"m\", \"train_file\": \"t.jsonl\", \"validation_file\": \"v.jsonl\", \"block_size\": 64",
     "\"model\": \"m\", \"data\": {\"train\": \"t.jsonl\", \"eval\": \"v.jsonl\", \"seq_len\": 64}"},
};

static char *dumped(const char *keys) {
    char json[1024];
    tm_buf out = {0};
    snprintf(json, sizeof json, "{%s}", keys);
    tm_config *c = test_ok(json);
    assert_int_equal(tm_config_dump_json(c, &out, 0), TM_OK);
    tm_config_free(c);
    return out.data;
}

static void theirs_are_ours(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(same); i++) {
        char *a = dumped(same[i].theirs), *b = dumped(same[i].ours);
        if (strcmp(a, b) != 0) fail_msg("%s\n%s\n%s", same[i].theirs, a, b);
        TM_FREE_ALL(a, b);
    }
}

static void assert_dumped(const tm_config *c, const char *says) {
    tm_buf out = {0};
    assert_int_equal(tm_config_dump_json(c, &out, 0), TM_OK);
    if (!strstr(out.data, says)) fail_msg("%s", out.data);
    tm_buf_free(&out);
}

/* A file's word gives way to an option in ours, and does not agree with another in the file. */
static void beside_ours(void **state) {
    (void)state;
    static const char *const set[] = {"--target_modules=q_proj", NULL}, *const theirs[] = {"--lora_target=v_proj",
                                                                                           NULL};
    tm_config *c = test_ok_set("{" BASE ", \"finetuning_type\": \"lora\", \"lora_target\": \"all\"}", NULL, set);
    assert_dumped(c, "\"target_modules\": \"q_proj\"");
    tm_config_free(c);
    c = test_ok_set("{" BASE ", \"target_modules\": [\"q_proj\"]}", NULL, theirs);
    assert_dumped(c, "\"target_modules\": [\"v_proj\"]");
    tm_config_free(c);
    assert_int_equal(
        test_load(&c, "{" BASE ", \"lora_target\": \"all\", \"target_modules\": [\"q_proj\"]}", NULL, NULL), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "does not match lora_target"));
    assert_int_equal(test_load(&c, "{" BASE ", \"finetuning_type\": \"lora\", \"tuner_type\": \"full\"}", NULL, NULL),
                     TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "does not match finetuning_type"));
    tm_error_clear();
}

static void evaluations_of_an_epoch(void **state) {
    (void)state;
    tm_config *c = test_ok("{" BASE ", \"val_set_size\": 0.1, \"evals_per_epoch\": 4, \"saves_per_epoch\": 1}");
    assert_int_equal(tm_config_resolve_steps(c, 10), TM_OK);
    assert_int_equal(c->eval_steps, 3);
    assert_int_equal(c->save_steps, 10);
    tm_config_free(c);
}

/* What has no counterpart says what to do. */
static void the_rest_says_what_to_do(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"\"max_samples\": 1000", "dataset: FILE#N"},
        {"\"dataset_dir\": \"data\"", "give the files themselves"},
        {"\"system\": \"You are\"", "a message of role \"system\""},
        {"\"stage\": \"rm\"", "\"stage\" must be one of sft, pretrain"},
        {"\"reward_model\": \"r\"", "dpo, kto, simpo, orpo and cpo need none"},
        {"\"use_galore\": true", "not supported yet"},
        {"\"load_in_8bit\": true", "a frozen base in 8 bits"},
        {"\"unfrozen_parameters\": [\"x\"]", "trainable_parameters_regex"},
        {"\"special_tokens\": {\"eos_token\": \"x\"}", "tokenizer_config.json"},
        {"\"val_dataset\": [{\"path\": \"a\", \"type\": \"mine\"}]", "say what other keys are in \"columns\""},
        {"\"val_dataset\": [{\"path\": \"a\", \"split\": \"test\"}]", "a file has no splits"},
        {"\"val_dataset\": [{\"path\": \"a\", \"roles_to_train\": [\"user\"]}]", "data.train_on_inputs"},
        {"\"val_dataset\": [{\"path\": \"a\", \"data_files\": [\"b\"]}]", "a \"path\" of its own"},
        {"\"evals_per_epoch\": 2, \"eval_steps\": 5", "eval_steps 5"},
        {"\"evals_per_epoch\": 2, \"eval_strategy\": \"epoch\"", "eval_strategy \"epoch\""},
        {"\"saves_per_epoch\": 2, \"save_strategy\": \"no\"", "does not match saves_per_epoch 2"},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        char json[512];
        tm_config *c;
        snprintf(json, sizeof json, "{" BASE ", %s}", rows[i][0]);
        tm_status rc = test_load(&c, json, NULL, NULL);
        if (rc != TM_EINPUT && rc != TM_EUNSUPPORTED) fail_msg("%s is taken", rows[i][0]);
        if (!strstr(tm_error_get()->text, rows[i][1])) fail_msg("%s: %s", rows[i][0], tm_error_get()->text);
    }
    tm_error_clear();
}

static bool warned(const char *what) {
    const char *warning;
    for (unsigned i = 0; (warning = tm_log_warning(i)); i++)
        if (strstr(warning, what)) return true;
    return false;
}

static void items_of_axolotl(void **state) {
    (void)state;
    tm_config *c = test_ok("{\"model\": \"m\", \"datasets\": [{\"path\": \"a.jsonl\", \"type\": \"chat_template\", "
                           "\"ds_type\": \"json\", \"split\": \"train\", \"field_messages\": \"talk\", "
                           "\"roles_to_train\": [\"assistant\"], \"message_property_mappings\": {\"role\": \"from\"}}, "
                           "{\"path\": \"b.jsonl\", \"type\": \"completion\", \"field\": \"body\"}, "
                           "{\"path\": \"c.jsonl\", \"type\": \"sharegpt\", \"field_messages\": \"conversations\"}]}");
    const tm_data_item *item = c->data.train_items.item;
    assert_int_equal(c->data.train_items.n, 3);
    assert_string_equal(item[0].columns.theirs[0], "talk");
    assert_string_equal(item[0].columns.ours[0], "messages");
    assert_string_equal(item[1].columns.ours[0], "text");
    assert_int_equal(item[2].columns.n, 0);
    tm_config_free(c);
    assert_true(warned("\"ds_type\" of a file has no effect here: the file tells"));
    assert_true(warned("\"message_property_mappings\" of a file has no effect here"));
    assert_int_equal(test_load(&c, "{\"model\": \"m\", \"datasets\": [{\"path\": \"a\", \"shards\": 2}]}", NULL, NULL),
                     TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "\"shards\" is no key of a file"));
    tm_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(theirs_are_ours),         cmocka_unit_test(beside_ours),
        cmocka_unit_test(evaluations_of_an_epoch), cmocka_unit_test(the_rest_says_what_to_do),
        cmocka_unit_test(items_of_axolotl),
    };
    return cmocka_run_group_tests_name("config_theirs", tests, NULL, NULL);
}

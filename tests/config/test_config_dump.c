/* What a configuration is resolved to, said as JSON: every sort of optimizer, schedule, memory and output has what was
 * given, and loads again as the same. */
#include "world.h"

typedef struct row {
    const char *keys, *has[6]; /* keys after BASE; what the dump has */
} row;

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define OPTIMIZER(type, params) "\"optimizer\": {\"type\": \"" type "\", \"params\": {" params "}}"
#define SCHEDULER(type, params) "\"scheduler\": {\"type\": \"" type "\", \"params\": {" params "}}"
#define HF(type, kwargs) "\"lr_scheduler_type\": \"" type "\", \"lr_scheduler_kwargs\": {" kwargs "}"
static const row rows[] = {
    {"\"init\": \"random\", \"fp16\": {\"enabled\": true, \"hysteresis\": 3}",
     {"\"init\":\"random\"", "\"precision\":\"fp16\"", "\"hysteresis\":3"}},
    {"\"precision\": \"fp16\"", {"\"fp16\":{\"enabled\":true", "\"initial_scale_power\":16"}},
    {"\"bf16\": true", {"\"precision\":\"bf16\""}},
    {"\"fp16\": false", {"\"precision\":\"fp32\""}},
    {"\"eval_strategy\": \"no\", \"val_dataset\": \"e.jsonl\", \"data_seed\": 5", {"\"data_seed\":5"}},
    {"\"val_dataset\": [\"a.jsonl#500\", {\"path\": \"b\", \"weight\": 0.5, \"columns\": {\"q\": \"prompt\"}}]",
     {"\"eval\":[\"a.jsonl#500\",{\"path\":\"b\",\"weight\":0.5,\"columns\":{\"q\":\"prompt\"}}]"}},
    {"\"val_dataset\": {\"path\": \"b\", \"samples\": 7, \"sample_by\": \"document\"}",
     {"\"eval\":{\"path\":\"b\",\"samples\":7,\"sample_by\":\"document\"}"}},
    {"\"val_dataset\": \"[odd].jsonl\"", {"\"eval\":[\"[odd].jsonl\"]"}},
    {"\"val_dataset\": \"a.jsonl#500\"", {"\"eval\":\"a.jsonl#500\""}},
    {"\"val_size\": 0.25, \"columns\": {\"q\": \"prompt\", \"a\": \"completion\"}",
     {"\"split_dataset_ratio\":0.25", "\"columns\":{\"q\":\"prompt\",\"a\":\"completion\"}"}},
    {"\"train_on_prompt\": true", {"\"train_on_inputs\":true"}},
    {"\"mask_history\": true, \"enable_thinking\": false", {"\"mask_history\":true", "\"enable_thinking\":false"}},
    {"\"truncation_strategy\": \"left\"", {"\"truncation\":\"left\""}},
    {"\"truncation_mode\": \"keep_end\"", {"\"truncation\":\"left\""}},
    {"\"truncation_strategy\": \"delete\"", {"\"overlong\":\"drop\""}},
    {"\"truncation_strategy\": \"raise\"", {"\"overlong\":\"error\""}},
    {"\"truncation_strategy\": \"split\"", {"\"overlong\":\"split\""}},
    {"\"packing\": true, \"packing_strategy\": \"wrapped\"", {"\"packing\":true", "\"packing_strategy\":\"wrapped\""}},
    {"\"rlhf_type\": \"dpo\", \"ref_model\": \"r\", \"beta\": 0.25, \"loss_type\": \"robust\", \"label_smoothing\": "
     "0.125",
     {"\"objective\":{\"type\":\"dpo\",\"beta\":0.25,\"loss_type\":\"robust\",\"label_smoothing\":0.125,\"rpo_alpha\":"
      "0,"
      "\"reference\":\"r\"}"}},
    {"\"rlhf_type\": \"dpo\", \"loss_type\": [\"hinge\", \"sft\", \"sigmoid\"], \"loss_weights\": [0.5, 2, 1], "
     "\"ref_adapters\": []",
     {"\"loss_type\":[\"sigmoid\",\"hinge\"],\"loss_weights\":[1,0.5],", "\"rpo_alpha\":2"}},
    {"\"rlhf_type\": \"dpo\", \"loss_type\": [\"ipo\"]", {"\"loss_type\":\"ipo\",\"rpo_alpha\""}},
    {"\"rlhf_type\": \"dpo\", \"loss_type\": [\"ipo\"], \"loss_weights\": [2]",
     {"\"loss_type\":[\"ipo\"],\"loss_weights\":[2]"}},
    {"\"rlhf_type\": \"kto\", \"undesirable_weight\": 2",
     {"\"objective\":{\"type\":\"kto\",\"beta\":0.1,\"desirable_weight\":1,\"undesirable_weight\":2}"}},
    {"\"objective\": {\"type\": \"simpo\"}", {"\"objective\":{\"type\":\"simpo\",\"beta\":2,"}},
    {"\"objective\": {\"type\": \"pretrain\"}", {"\"objective\":{\"type\":\"pretrain\"}"}},
    {"\"group_by_length\": true", {"\"group_by_length\":true"}},
    {"\"enable_thinking\": true", {"\"enable_thinking\":true"}},
    /* optimizers */
    {OPTIMIZER("SGD", "\"lr\": 0.5, \"momentum\": 0.9, \"nesterov\": true"),
     {"\"type\":\"SGD\"", "\"lr\":0.5", "\"momentum\":0.9", "\"nesterov\":true"}},
    {OPTIMIZER("SGD", "\"momentum\": 0.9, \"dampening\": 0.25"), {"\"dampening\":0.25", "\"nesterov\":false"}},
    {OPTIMIZER("Adagrad", "\"lr_decay\": 0.5, \"initial_accumulator_value\": 2, \"eps\": 1e-3"),
     {"\"type\":\"Adagrad\"", "\"lr\":0.01", "\"lr_decay\":0.5", "\"initial_accumulator_value\":2", "\"eps\":0.001"}},
    {OPTIMIZER("Adafactor", "\"warmup_init\": true, \"beta1\": null, \"lr\": null"),
     {"\"type\":\"Adafactor\"", "\"relative_step\":true", "\"warmup_init\":true", "\"eps\":[1e-30,0.001]"}},
    {OPTIMIZER("Adafactor", "\"lr\": 0.5, \"relative_step\": false, \"scale_parameter\": false, \"eps\": [0.25, 0.5], "
                            "\"beta1\": 0.75, \"decay_rate\": -0.5, \"clip_threshold\": 2"),
     {"\"lr\":0.5", "\"scale_parameter\":false", "\"eps\":[0.25,0.5]", "\"beta1\":0.75", "\"decay_rate\":-0.5",
      "\"clip_threshold\":2"}},
    {"\"learning_rate\": 0.5, \"optim\": \"adafactor\", \"optim_args\": \"eps_scale=0.25\"",
     {"\"lr\":0.5", "\"relative_step\":false", "\"scale_parameter\":false", "\"beta1\":0", "\"eps\":[1e-30,0.25]"}},
    {OPTIMIZER("Lion", "\"betas\": [0.5, 0.75]"), {"\"type\":\"Lion\"", "\"betas\":[0.5,0.75]"}},
    {OPTIMIZER("Adam", "\"adam_w_mode\": false, \"bias_correction\": false"),
     {"\"type\":\"Adam\"", "\"adam_w_mode\":false", "\"bias_correction\":false"}},
    {OPTIMIZER("FusedAdam", "\"eps\": \"auto\", \"lr\": \"auto\""), {"\"adam_w_mode\":true", "\"lr\":1e-05"}},
    {OPTIMIZER("DeepSpeedCPUAdam", "\"betas\": \"auto\""), {"\"betas\":[0.9,0.95]"}},
    {OPTIMIZER("AdamW", "\"adam_w_mode\": false"), {"\"adam_w_mode\":true"}},
    {OPTIMIZER("Adam8bit", ""), {"\"type\":\"Adam8bit\""}},
    {"\"optim\": \"sgd\", \"optim_args\": \"momentum=0.5, nesterov=True\"",
     {"\"type\":\"SGD\"", "\"momentum\":0.5", "\"nesterov\":true"}},
    {"\"optim\": \"adagrad\", \"optim_args\": \"lr_decay=1\"", {"\"type\":\"Adagrad\"", "\"lr_decay\":1"}},
    {"\"optim\": \"adamw_torch\", \"optim_args\": \"bias_correction=false\"", {"\"bias_correction\":false"}},
    {"\"optim\": \"lion\", \"optimizer\": {\"type\": \"Lion\"}, \"optim_args\": \"\"", {"\"type\":\"Lion\""}},
    {"\"learning_rate\": 1e-3, " OPTIMIZER("AdamW", "\"lr\": 1e-3, \"weight_decay\": 0.25"),
     {"\"lr\":0.001", "\"weight_decay\":0.25"}},
    {"\"optim\": \"paged_adamw_8bit\"", {"\"type\":\"AdamW8bit\""}},
    {"\"optim\": \"paged_adamw_32bit\", \"learning_rate\": 1e-3", {"\"type\":\"AdamW\"", "\"lr\":0.001"}},
    {OPTIMIZER("PagedAdamW8bit", "\"lr\": 0.5"), {"\"type\":\"AdamW8bit\"", "\"lr\":0.5"}},
    /* what learns */
    {"\"adapter\": {\"type\": \"lora\", \"r\": 16, \"alpha\": 32, \"targets\": \"all-linear\"}",
     {"\"r\":16", "\"lora_alpha\":32", "\"lora_dropout\":0,", "\"target_modules\":\"all-linear\"", "\"lr\":0.0001"}},
    {"\"adapter\": {}, " OPTIMIZER("AdamW", "\"lr\": \"auto\""), {"\"lr\":0.0001"}},
    {"\"adapter\": {}, " OPTIMIZER("AdamW", "\"weight_decay\": 0"), {"\"lr\":0.001"}},
    {"\"adapter\": {}", {"\"r\":8", "\"lora_alpha\":8", "\"use_dora\":false", "\"init_lora_weights\":true"}},
    {"\"tuner_type\": \"lora\"", {"\"r\":8", "\"lora_alpha\":32", "\"lora_dropout\":0.05"}},
    {"\"use_peft\": true, \"lora_r\": 4, \"lora_target_modules\": [\"q_proj\", \"all-embedding\"]",
     {"\"r\":4", "\"target_modules\":[\"q_proj\",\"all-embedding\"]"}},
    {"\"target_modules\": [\"all-linear\"], \"lora_alpha\": 16.5, \"learning_rate\": 1e-3, \"use_dora\": true",
     {"\"target_modules\":\"all-linear\"", "\"lora_alpha\":16.5", "\"use_dora\":true", "\"lr\":0.001"}},
    {"\"target_regex\": \".*_proj\", \"init_weights\": \"pissa_niter_4\", \"lorap_lr_ratio\": 16, \"lora_bias\": "
     "\"all\"",
     {"\"target_modules\":\".*_proj\"", "\"init_lora_weights\":\"pissa_niter_4\"", "\"lorap_lr_ratio\":16",
      "\"bias\":\"all\""}},
    {"\"adapter\": {\"rank_pattern\": {\"q_proj\": 4, \"a|b\": 2}, \"alpha_pattern\": {\"v\": 0.5}, "
     "\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 3, \"layers_pattern\": \"h\", "
     "\"exclude_modules\": [\"x\"], \"modules_to_save\": [\"all-norm\", \"lm_head\"]}",
     {"\"rank_pattern\":{\"q_proj\":4,\"a|b\":2}", "\"alpha_pattern\":{\"v\":0.5}", "\"layers_to_transform\":[3]",
      "\"layers_pattern\":[\"h\"]", "\"exclude_modules\":[\"x\"]", "\"modules_to_save\":[\"lm_head\",\"all-norm\"]"}},
    {"\"adapters\": [\"lora\"], \"lora_alpha\": 9",
     {"\"path\":\"lora\"", "\"r\":3", "\"lora_alpha\":9", "\"use_rslora\":true", "\"init_lora_weights\":\"eva\""}},
    {"\"adapter\": {\"path\": \"lora\"}", {"\"lora_alpha\":7", "\"lora_dropout\":0.25"}},
    {"\"train_type\": \"qlora\"", {"\"quantization\":{\"type\":\"nf4\",\"double_quant\":true,\"block\":64}"}},
    {"\"adapter\": {\"type\": \"qlora\"}, \"quantization\": {\"type\": \"fp4\", \"double_quant\": false}",
     {"\"quantization\":{\"type\":\"fp4\",\"double_quant\":false"}},
    {"\"tuner_type\": \"lora\", \"quant_method\": \"bnb\", \"quant_bits\": 4, \"bnb_4bit_quant_type\": \"fp4\", "
     "\"bnb_4bit_use_double_quant\": false, \"bnb_4bit_compute_dtype\": \"bfloat16\"",
     {"\"quantization\":{\"type\":\"fp4\",\"double_quant\":false"}},
    {"\"freeze_parameters\": [\"model.embed_tokens\"], \"freeze_parameters_ratio\": 0.25, "
     "\"freeze_parameters_regex\": \"norm\", \"trainable_parameters\": \"model.norm\", "
     "\"trainable_parameters_regex\": \"q|k\", \"freeze_trainable_layers\": -2",
     {"\"freeze_parameters\":[\"model.embed_tokens\"]", "\"freeze_parameters_ratio\":0.25",
      "\"freeze_parameters_regex\":\"norm\"", "\"trainable_parameters\":[\"model.norm\"]",
      "\"trainable_parameters_regex\":\"q|k\"", "\"freeze_trainable_layers\":-2"}},
    /* schedules by HF's names */
    {HF("cosine_with_restarts", "\"num_cycles\": 3"), {"cosine_with_restarts", "\"num_cycles\":3"}},
    {HF("polynomial", "\"lr_end\": 1e-6, \"power\": 2"), {"\"lr_end\":1e-06", "\"power\":2"}},
    {HF("inverse_sqrt", "\"timescale\": 7"), {"\"timescale\":7"}},
    {HF("inverse_sqrt", ""), {"inverse_sqrt"}},
    {"\"learning_rate\": 1e-3, " HF("cosine_with_min_lr", "\"min_lr\": 5e-4"), {"\"min_lr_rate\":0.5"}},
    {HF("cosine_warmup_with_min_lr", "\"min_lr_rate\": 0.25"), {"\"min_lr_rate\":0.25"}},
    {HF("warmup_stable_decay", "\"num_decay_steps\": 3, \"num_stable_steps\": 4, \"decay_type\": \"1-sqrt\""),
     {"\"num_stable_steps\":4", "\"decay_type\":\"1-sqrt\""}},
    {"\"warmup_steps\": 0.25", {"\"warmup_steps\":0.25"}},
    /* and by DeepSpeed's */
    {SCHEDULER("WarmupLR", "\"warmup_type\": \"linear\", \"warmup_num_steps\": 5, \"warmup_max_lr\": 1e-5"),
     {"\"type\":\"WarmupLR\"", "\"warmup_type\":\"linear\"", "\"warmup_num_steps\":5"}},
    {SCHEDULER("WarmupDecayLR", "\"total_num_steps\": 50"), {"\"total_num_steps\":50", "\"warmup_type\":\"log\""}},
    {SCHEDULER("WarmupCosineLR", "\"total_num_steps\": 50, \"cos_min_ratio\": 0.5"), {"\"cos_min_ratio\":0.5"}},
    {SCHEDULER("LRRangeTest", "\"lr_range_test_staircase\": true"), {"\"lr_range_test_staircase\":true"}},
    {SCHEDULER("OneCycle", "\"cycle_min_lr\": 0.5, \"cycle_max_lr\": 1, \"cycle_second_step_size\": 9,"
                           "\"cycle_second_stair_count\": 2"),
     {"\"cycle_second_step_size\":9", "\"cycle_second_stair_count\":2", "\"cycle_max_lr\":1"}},
    /* memory */
    {"\"memory\": {\"device\": \"cpu-arena\", \"device_budget\": \"1GiB\", \"device_bandwidth\": \"2GB\"}",
     {"\"device\":\"cpu-arena\"", "\"device_budget\":1073741824", "\"device_bandwidth\":2000000000"}},
    {"\"memory\": {\"device\": \"cpu-arena\", \"device_budget\": \"unlimited\", \"host_budget\": \"unlimited\"}",
     {"\"device_budget\":\"unlimited\"", "\"host_budget\":\"unlimited\""}},
    {"\"memory\": {\"device_budget\": 1000000}", {"\"device\":\"cpu\""}},
    {"\"memory\": {\"cache\": \"none\", \"spread\": \"on\", \"shared_window\": \"off\", \"exchange\": \"host\", "
     "\"slots\": 1}",
     {"\"cache\":\"none\"", "\"spread\":\"on\"", "\"shared_window\":\"off\"", "\"exchange\":\"host\"", "\"slots\":1"}},
    {"\"memory\": {\"spread\": \"off\", \"shared_window\": \"on\", \"exchange\": \"device\", \"io_engine\": "
     "\"io_uring\"}",
     {"\"spread\":\"off\"", "\"exchange\":\"device\"", "\"shared_window\":\"on\"", "\"io_engine\":\"uring\""}},
    {"\"memory\": {\"device\": \"cpu-arena\", \"device_budget\": 1000000}, \"zero_optimization\": {\"stage\": 3,"
     " \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}}",
     {"\"ratio\":0.5"}},
    {"\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/p\","
     " \"buffer_size\": 10, \"buffer_count\": 2}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/p\","
     " \"buffer_count\": 3}}",
     {"\"nvme_path\":[\"/p\"]", "\"buffer_size\":20", "\"buffer_count\":3"}},
    /* output */
    {"\"commit_minutes\": 1.5, \"save_total_limit\": 4, \"keep_state\": true",
     {"\"commit_minutes\":1.5", "\"save_total_limit\":4", "\"keep_state\":true"}},
    {"\"val_dataset\": \"e.jsonl\", \"save_strategy\": \"best\", \"eval_steps\": 5",
     {"\"save_strategy\":\"best\"", "\"metric_for_best_model\":\"loss\""}},
    {"\"val_dataset\": \"e.jsonl\", \"load_best_model_at_end\": true, \"greater_is_better\": true, \"save_steps\": 10,"
     " \"eval_steps\": 5",
     {"\"load_best_model_at_end\":true", "\"greater_is_better\":true"}},
    {"\"val_dataset\": \"e.jsonl\", \"metric_for_best_model\": \"token_accuracy\", \"greater_is_better\": false",
     {"\"metric_for_best_model\":\"token_accuracy\"", "\"greater_is_better\":false"}},
    {"\"eval_tasks\": [\"a.jsonl\", \"b.json\"], \"eval_limit\": 20, \"eval_tasks_num_fewshot\": 0,"
     " \"eval_tasks_apply_chat_template\": true, \"eval_tasks_max_new_tokens\": 8, \"eval_tasks_batch_size\": 4",
     {"\"eval_tasks\":[\"a.jsonl\",\"b.json\"]", "\"eval_tasks_limit\":20", "\"eval_tasks_num_fewshot\":0",
      "\"eval_tasks_apply_chat_template\":true", "\"eval_tasks_max_new_tokens\":8", "\"eval_tasks_batch_size\":4"}},
    {"\"eval_tasks\": \"a.jsonl\", \"load_best_model_at_end\": true, \"metric_for_best_model\": \"a_acc\","
     " \"save_steps\": 10, \"eval_steps\": 5",
     {"\"eval_tasks\":[\"a.jsonl\"]", "\"metric_for_best_model\":\"a_acc\"", "\"greater_is_better\":true"}},
    {"\"save_strategy\": \"no\", \"wall_clock_breakdown\": true",
     {"\"save_steps\":0", "\"wall_clock_breakdown\":true"}},
};

static void dump(const char *json, tm_buf *out) {
    tm_config *c = test_ok(json);
    assert_int_equal(tm_config_dump_json(c, out, 0), TM_OK);
    tm_config_free(c);
}

/* Without the blanks between its parts, as the rows above are written. */
static bool has(const char *dump_text, const char *part) {
    char bare[8000];
    size_t n = 0;
    for (const char *c = dump_text; *c && n < sizeof bare - 1; c++)
        if (*c != ' ') bare[n++] = *c;
    bare[n] = 0;
    return strstr(bare, part) != NULL;
}

static void says_what_was_given_and_loads_again(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        char json[1000];
        tm_buf first = {0}, second = {0};
        snprintf(json, sizeof json, "{" BASE ", %s}", rows[i].keys);
        dump(json, &first);
        for (size_t k = 0; k < TM_COUNT(rows[i].has) && rows[i].has[k]; k++)
            if (!has(first.data, rows[i].has[k]))
                fail_msg("%s: the dump lacks %s: %s", rows[i].keys, rows[i].has[k], first.data);
        dump(first.data, &second);
        assert_string_equal(first.data, second.data);
        tm_buf_free(&first), tm_buf_free(&second);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_was_given_and_loads_again),
    };
    return cmocka_run_group_tests_name("config_dump", tests, NULL, NULL);
}

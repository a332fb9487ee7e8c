/* The table itself: no duplicates, parents and aliases exist, defaults fit their own rows. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_internal.h"

static void rows_are_consistent(void **state) {
    (void)state;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        if (schema_find(row->path) != row) fail_msg("%s is there twice", row->path);
        if (row->alias_of) {
            const schema_row *to = schema_find(row->alias_of);
            if (!to || to->alias_of) fail_msg("%s is an alias of nothing", row->path);
            continue;
        }
        if (!row->help || !*row->help) fail_msg("%s has no help", row->path);
        if (!row->types) fail_msg("%s has no type", row->path);
        if (!(row->types & T_ENUM) != !row->choices) fail_msg("%s: choices and type disagree", row->path);
        char parent[160];
        snprintf(parent, sizeof parent, "%s", row->path);
        char *dot = strrchr(parent, '.');
        if (!dot) continue;
        *dot = 0;
        const schema_row *up = schema_find(parent);
        if (!up || !(up->alias_of || up->types & T_OBJ)) fail_msg("%s lies in nothing", row->path);
        if (row->shown && !up->shown) fail_msg("%s is written down in nothing", row->path);
    }
}

static void defaults_fit(void **state) {
    (void)state;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        if (!row->def) continue;
        char *end;
        double x = strtod(row->def, &end);
        bool number = !*end && end != row->def;
        if (row->types & (T_INT | T_NUM | T_SIZE) && !(row->types & (T_STR | T_BOOL))) {
            if (!number || x < row->min || (row->max > 0 && x > row->max))
                fail_msg("%s: default %s", row->path, row->def);
            if (row->types & T_INT && x != floor(x)) fail_msg("%s: default %s", row->path, row->def);
        } else if (row->types & T_BOOL) {
            if (strcmp(row->def, "true") && strcmp(row->def, "false")) fail_msg("%s: default %s", row->path, row->def);
        } else if (row->types & T_ENUM) {
            if (schema_choice(row, row->def, strlen(row->def)) < 0) fail_msg("%s: default %s", row->path, row->def);
        }
    }
}

static void synonyms_are_the_same_choice(void **state) {
    (void)state;
    const schema_row *row = schema_find("save_dtype");
    char name[32];
    int index = schema_choice(row, "float32", 7);
    assert_int_equal(index, schema_choice(row, "fp32", 4));
    assert_string_equal(schema_choice_name(row, index, name, sizeof name), "f32");
    assert_int_equal(schema_choice(row, "f3", 2), -1);
    assert_int_equal(schema_choice(row, "f32|bf16", 8), -1);
    assert_int_equal(schema_choice(row, "", 0), -1);
}

/* The parsers' enums are indices into the rows' choices. */
static void enums_follow_the_table(void **state) {
    (void)state;
    static const struct {
        const char *path, *choice;
        int value;
    } pairs[] = {{"data.format", "auto", TM_DATA_AUTO},
                 {"data.format", "sharegpt", TM_DATA_SHAREGPT},
                 {"data.format", "prompt_completion", TM_DATA_PROMPT_COMPLETION},
                 {"data.format", "alpaca", TM_DATA_ALPACA},
                 {"data.format", "text", TM_DATA_TEXT},
                 {"data.format", "messages", TM_DATA_MESSAGES},
                 {"data.overlong", "error", TM_OVERLONG_ERROR},
                 {"data.overlong", "split", TM_OVERLONG_SPLIT},
                 {"data.packing_strategy", "wrapped", TM_PACKING_WRAPPED},
                 {"memory.activations", "recompute", TM_ACT_RECOMPUTE},
                 {"memory.activations", "keep", TM_ACT_KEEP},
                 {"save_dtype", "f16", TM_SAVE_F16},
                 {"save_dtype", "bf16", TM_SAVE_BF16}};
    for (size_t i = 0; i < TM_COUNT(pairs); i++)
        assert_int_equal(schema_choice(schema_find(pairs[i].path), pairs[i].choice, strlen(pairs[i].choice)),
                         pairs[i].value);
}

/* Each word of the key "strategy" is one row's, FSDP's names are choices, and a stage alone means a row of that stage. */
static void strategies_are_one_table(void **state) {
    (void)state;
    const schema_row *words = schema_find("strategy"), *shardings = schema_find("fsdp_config.sharding_strategy");
    char name[32];
    bool named[TM_STRATEGY_COUNT] = {false};
    for (int i = 0; i < 7; i++) {
        tm_strategy s = strategy_of_word(schema_choice_name(words, i, name, sizeof name));
        assert_true(s < TM_STRATEGY_COUNT);
        named[s] = true;
    }
    for (unsigned i = 0; i < TM_STRATEGY_COUNT; i++) {
        const tm_strategy_row *row = &tm_strategy_rows[i];
        assert_true(named[i]);
        assert_int_equal(strategy_of_word(row->name), i);
        assert_int_equal(tm_strategy_rows[strategy_of_stage(row->stage)].stage, row->stage);
        if (!row->sharding) continue;
        assert_true(schema_choice(shardings, row->sharding, strlen(row->sharding)) >= 0);
        assert_int_equal(strategy_of_sharding(row->sharding), i);
    }
    assert_int_equal(strategy_of_word("fsdp"), TM_STRATEGY_ZERO3);
    assert_int_equal(strategy_of_word("fsd"), TM_STRATEGY_COUNT);
    assert_int_equal(strategy_of_stage(3), TM_STRATEGY_ZERO3);
    assert_int_equal(strategy_of_sharding("HYBRID_SHARD_ZERO2"), TM_STRATEGY_COUNT);
}

/* What a run that goes on may change, written by hand: the names that trainer_identity.c had before the table. */
static const char *const may_change[] = {"model",
                                         "report_to",
                                         "logging_dir",
                                         "tokenizer",
                                         "reference",
                                         "train",
                                         "eval",
                                         "split_dataset_ratio",
                                         "columns",
                                         "sample_by",
                                         "format",
                                         "max_steps",
                                         "num_train_epochs",
                                         "memory",
                                         "aio",
                                         "output_dir",
                                         "path",
                                         "commit_steps",
                                         "strategy",
                                         "per_device_eval_batch_size",
                                         "eval_tasks_batch_size",
                                         "strict",
                                         "logging_steps",
                                         "keep_state",
                                         "max_shard_size",
                                         "save_total_limit",
                                         "save_state",
                                         "wall_clock_breakdown",
                                         "commit_minutes",
                                         "logging_strategy",
                                         "zero_optimization"};
static const char *const without_best[] = {"save_strategy",
                                           "metric_for_best_model",
                                           "greater_is_better",
                                           "early_stopping_patience",
                                           "early_stopping_threshold",
                                           "load_best_model_at_end",
                                           "save_steps",
                                           "eval_steps",
                                           "eval_strategy",
                                           "eval_tasks",
                                           "eval_tasks_limit",
                                           "eval_tasks_num_fewshot",
                                           "eval_tasks_apply_chat_template",
                                           "eval_tasks_max_new_tokens"};
static const char *const on_other_ranks[] = {"per_device_train_batch_size", "gradient_accumulation_steps"};

static bool is_one_of(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

static tm_config_change by_hand(const char *path) {
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    if (!strncmp(path, "memory.", 7) || !strncmp(path, "aio.", 4) || !strncmp(path, "zero_optimization.", 18))
        return TM_CHANGE_FREE;
    if (is_one_of(may_change, TM_COUNT(may_change), name)) return TM_CHANGE_FREE;
    if (is_one_of(without_best, TM_COUNT(without_best), name)) return TM_CHANGE_WITHOUT_BEST;
    return is_one_of(on_other_ranks, TM_COUNT(on_other_ranks), name) ? TM_CHANGE_ON_OTHER_RANKS : TM_CHANGE_NEVER;
}

static void resume_compares_the_same_keys(void **state) {
    (void)state;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        if (row->alias_of) continue; /* no dump has them */
        tm_config_change change = tm_config_change_of(row->path);
        if (change != by_hand(row->path))
            fail_msg("%s: %d in the table, %d by hand", row->path, change, by_hand(row->path));
    }
    assert_int_equal(tm_config_change_of("data.train"), TM_CHANGE_FREE);
    assert_int_equal(tm_config_change_of("data.seq_len"), TM_CHANGE_NEVER);
    assert_int_equal(tm_config_change_of("zero_optimization.offload_param.device"), TM_CHANGE_FREE);
    assert_int_equal(tm_config_change_of("of_another_version"), TM_CHANGE_NEVER);
    assert_int_equal(tm_config_change_of("of_another_version.memory"), TM_CHANGE_NEVER);
}

/* What a row does with its value: one way to be filled, and what is shown can be
 * written. */
static void fields_are_consistent(void **state) {
    (void)state;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        bool has_field = row->form != F_NONE;
        if (row->at >= sizeof(tm_config)) fail_msg("%s: outside", row->path);
        if (row->filled && !has_field) fail_msg("%s: filled into nothing", row->path);
        if (row->filled + row->option + (row->takers != 0) > 1) fail_msg("%s: two ways to be filled", row->path);
        if (row->shown && !has_field && !row->write && !(row->types & T_OBJ)) fail_msg("%s: shows nothing", row->path);
        if (row->alias_of && (has_field || row->shown)) fail_msg("%s: an alias with a field", row->path);
        if (row->types & T_ENUM && row->form >= F_ENUM && row->form <= F_WORD && !row->choices)
            fail_msg("%s: no choices", row->path);
        bool by_choice = row->form >= F_ENUM && row->form <= F_WORD;
        if (by_choice && !(row->types & T_ENUM)) fail_msg("%s: a choice of nothing", row->path);
    }
}

/* What a row of an adapter is given is taken and written by src/adapter, from the same default. */
static void adapter_rows_are_keys(void **state) {
    (void)state;
    tm_adapter_config *a;
    unsigned rows = 0;
    assert_int_equal(tm_adapter_create(&a), TM_OK);
    assert_int_equal(tm_adapter_complete(a), TM_OK);
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        if (row->write != write_adapter) continue;
        tm_buf text = {0};
        tm_json_writer w;
        const char *key = row->path + strlen("adapter.");
        if (!tm_adapter_is_key(key)) fail_msg("%s is no key of an adapter", row->path);
        tm_jw_init(&w, &text, 0);
        tm_adapter_write_value(a, key, &w);
        assert_int_equal(tm_jw_end(&w), TM_OK);
        size_t quote = text.data[0] == '"';
        text.data[text.len - quote] = 0;
        if (row->def && strcmp(text.data + quote, row->def) && strtod(text.data, NULL) != strtod(row->def, NULL))
            fail_msg("%s: default %s, but %s", row->path, row->def, text.data);
        tm_buf_free(&text);
        rows++;
    }
    assert_true(rows > 10);
    tm_adapter_free(a);
}

/* Which keys say what learns, or how, written by hand: each name as people give it. */
static void what_says_a_method(void **state) {
    (void)state;
    static const char *const yes[] = {"tuner_type",
                                      "train_type",
                                      "finetuning_type",
                                      "adapter",
                                      "adapter.r",
                                      "adapter.rank_pattern.q_proj",
                                      "adapters",
                                      "adapter_name_or_path",
                                      "lora_rank",
                                      "lora_alpha",
                                      "lora_target",
                                      "lora_target_linear",
                                      "lora_model_dir",
                                      "target_modules",
                                      "target_regex",
                                      "modules_to_save",
                                      "use_dora",
                                      "use_rslora",
                                      "use_peft",
                                      "pissa_init",
                                      "init_lora_weights",
                                      "objective",
                                      "objective.type",
                                      "rlhf_type",
                                      "stage",
                                      "rl",
                                      "beta",
                                      "rpo_alpha",
                                      "pref_loss",
                                      "loss_type",
                                      "ref_model",
                                      "freeze_parameters",
                                      "freeze_parameters_ratio",
                                      "freeze_trainable_layers",
                                      "trainable_parameters",
                                      "trainable_parameters_regex",
                                      "quantization",
                                      "quantization.type",
                                      "quant_bits",
                                      "quantization_bit",
                                      "load_in_4bit",
                                      "bnb_4bit_quant_type"},
                             *const no[] = {"model",
                                            "data.train",
                                            "learning_rate",
                                            "data.seq_len",
                                            "strategy",
                                            "output_dir",
                                            "precision",
                                            "memory.device",
                                            "max_steps",
                                            "zero_stage",
                                            "optim",
                                            "deepspeed",
                                            "nothing",
                                            "zero_optimization.stage",
                                            "",
                                            "per_device_train_batch_size"};
    for (size_t i = 0; i < TM_COUNT(yes); i++)
        if (!tm_config_is_of_method(yes[i])) fail_msg("%s says no method", yes[i]);
    for (size_t i = 0; i < TM_COUNT(no); i++)
        if (tm_config_is_of_method(no[i])) fail_msg("%s says a method", no[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_consistent),
                                       cmocka_unit_test(defaults_fit),
                                       cmocka_unit_test(synonyms_are_the_same_choice),
                                       cmocka_unit_test(enums_follow_the_table),
                                       cmocka_unit_test(strategies_are_one_table),
                                       cmocka_unit_test(resume_compares_the_same_keys),
                                       cmocka_unit_test(fields_are_consistent),
                                       cmocka_unit_test(adapter_rows_are_keys),
                                       cmocka_unit_test(what_says_a_method)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a configuration means: defaults, every spelling, DeepSpeed's files as they are published, --set, round trip. */
#include "world.h"

static void ours_by_default(void **state) {
    (void)state;
    tm_config *c = test_ok("{" BASE "}");
    assert_string_equal(c->model, "m");
    assert_string_equal(c->data.train, "t.jsonl");
    assert_null(c->data.eval);
    assert_false(c->init_random);
    assert_int_equal(c->precision, TM_BF16);
    assert_int_equal(c->seed, 42);
    assert_int_equal(c->data.seed, 42);
    assert_int_equal(c->data.seq_len, 512);
    assert_true(c->data.shuffle && !c->data.packing && !c->data.strict);
    assert_int_equal(c->data.overlong, TM_OVERLONG_TRUNCATE);
    assert_int_equal(c->micro_batch_size, 1);
    assert_int_equal(c->accumulation_steps, 1);
    assert_int_equal(c->train_batch_size, 1);
    assert_int_equal(c->eval_batch_size, 1);
    assert_true(c->learning_rate == 1e-5 && c->optim.beta1 == .9 && c->optim.beta2 == .95 && c->optim.eps == 1e-8);
    assert_true(c->optim.weight_decay == .1 && c->optim.adam_w_mode && c->optim.bias_correction &&
                c->max_grad_norm == 1);
    assert_int_equal(c->schedule.type, TM_LR_COSINE);
    assert_true(c->num_train_epochs == 1 && c->max_steps == 0 && c->warmup_steps == 0);
    assert_string_equal(c->memory.device, "cpu");
    assert_int_equal(c->memory.host_kind, TM_BUDGET_DEFAULT);
    assert_int_equal(c->memory.slots, 2);
    assert_int_equal(c->param_place, TM_PLACE_AUTO);
    assert_int_equal(c->optimizer_place, TM_PLACE_AUTO);
    assert_string_equal(c->param_paths.item[0], "out/offload");
    assert_string_equal(c->output_dir, "out");
    assert_int_equal(c->no_decay.n, 0);
    assert_int_equal(c->save_dtype, TM_SAVE_AUTO);
    tm_config_free(c);
}

static void every_key_of_ours(void **state) {
    (void)state;
    tm_config *c = test_ok(
        "{\"model\": \"dir\", \"init\": \"random\", \"precision\": \"fp32\", \"seed\": 7, \"data_seed\": 8,\n"
        "\"data\": {\"train\": \"a.safetensors\", \"eval\": \"e.jsonl\", \"format\": \"messages\", \"seq_len\": 2048,"
        " \"packing\": false, \"shuffle\": false, \"overlong\": \"drop\", \"strict\": true},\n"
        "\"objective\": {\"type\": \"sft\"}, \"adapter\": null,\n"
        "\"memory\": {\"device\": \"cpu\", \"device_budget\": null, \"host_budget\": \"3GiB\","
        " \"activations\": \"spill\", \"update\": \"F\", \"slots\": 1, \"cache\": \"none\", \"allow_tmpfs\": true,"
        " \"io_engine\": \"threads\"},\n"
        "\"commit_steps\": 0, \"output_dir\": \"o\", \"max_steps\": 100, \"num_train_epochs\": 2.5, \"save_steps\": 50,"
        " \"eval_steps\": 20, \"logging_steps\": 3, \"save_total_limit\": 2, \"save_dtype\": \"f32\","
        " \"keep_state\": true, \"save_state\": true,\n"
        "\"per_device_train_batch_size\": 2, \"gradient_accumulation_steps\": 4, \"per_device_eval_batch_size\": 3,"
        " \"learning_rate\": 2e-4, \"adam_beta1\": 0.8, \"adam_beta2\": 0.99, \"adam_epsilon\": 1e-6,"
        " \"weight_decay\": 0, \"max_grad_norm\": 0.5, \"no_decay\": [\"norm\", \"bias\"],"
        " \"lr_scheduler_type\": \"cosine_with_min_lr\", \"lr_scheduler_kwargs\": {\"min_lr\": 2e-5}, "
        "\"warmup_steps\": 5}");
    assert_true(c->init_random && c->precision == TM_F32 && c->seed == 7 && c->data.seed == 8);
    assert_true(c->data.format == TM_DATA_MESSAGES && c->data.seq_len == 2048 && !c->data.shuffle && c->data.strict);
    assert_int_equal(c->data.overlong, TM_OVERLONG_DROP);
    assert_string_equal(c->data.eval, "e.jsonl");
    assert_true(c->memory.host_kind == TM_BUDGET_BYTES && c->memory.host_bytes == 3 * TM_GIB);
    assert_true(c->memory.activations == TM_ACT_SPILL && c->memory.update == TM_UPDATE_F && c->memory.slots == 1);
    assert_true(c->memory.cache_none && c->memory.allow_tmpfs);
    assert_string_equal(c->memory.io_engine, "threads");
    assert_true(c->commit_steps == 0 && c->max_steps == 100 && c->num_train_epochs == 2.5 && c->save_steps == 50);
    assert_true(c->eval_steps == 20 && c->logging_steps == 3 && c->save_total_limit == 2 &&
                c->save_dtype == TM_SAVE_F32);
    assert_true(c->keep_state && c->save_state);
    assert_true(c->micro_batch_size == 2 && c->accumulation_steps == 4 && c->train_batch_size == 8);
    assert_int_equal(c->eval_batch_size, 3);
    assert_true(c->learning_rate == 2e-4 && c->optim.beta1 == .8 && c->optim.beta2 == .99 && c->optim.eps == 1e-6);
    assert_true(c->optim.weight_decay == 0 && c->max_grad_norm == .5);
    assert_int_equal(c->no_decay.n, 2);
    assert_string_equal(c->no_decay.item[1], "bias");
    assert_int_equal(c->schedule.type, TM_LR_COSINE_WITH_MIN_LR);
    assert_true(fabs(c->schedule.min_lr_rate - 0.1) < 1e-15);
    assert_string_equal(c->optimizer_paths.item[0], "o/offload");
    assert_int_equal(tm_config_resolve_steps(c, 10), TM_OK);
    assert_true(c->total_steps == 100 && c->schedule.warmup_steps == 5 && c->schedule.total_steps == 100);
    tm_config_free(c);
}

static void relaxed_json_and_other_spellings(void **state) {
    (void)state;
    tm_config *c =
        test_ok("// a comment\n{ # another\n \"model_name_or_path\": \"m\", /* and */ \"dataset\": \"d.jsonl\",\n"
                "\"max_length\": 1e3, \"torch_dtype\": \"bfloat16\", \"tuner_type\": \"full\",\n"
                "\"optim\": \"adamw_torch_fused\", \"val_dataset\": \"v.jsonl\", \"bf16\": true,}");
    assert_string_equal(c->data.train, "d.jsonl");
    assert_string_equal(c->data.eval, "v.jsonl");
    assert_int_equal(c->data.seq_len, 1000);
    assert_int_equal(c->precision, TM_BF16);
    tm_config_free(c);
}

static void files_of_data(void **state) {
    (void)state;
    tm_config *c =
        test_ok("{\"model\": \"m\", \"dataset\": [\"a.jsonl#500\", \"b#x\", {\"path\": \"c#7\", \"weight\": 2.5, "
                "\"columns\": {\"x\": \"text\"}}], \"columns\": {\"q\": \"prompt\"}, \"split_dataset_ratio\": 0.1}");
    const tm_data_item *item = c->data.train_items.item;
    assert_int_equal(c->data.train_items.n, 3);
    assert_string_equal(item[0].path, "a.jsonl");
    assert_int_equal(item[0].samples, 500);
    assert_true(item[0].weight == 1 && item[2].weight == 2.5);
    assert_string_equal(item[1].path, "b#x"); /* no number */
    assert_string_equal(item[2].path, "c#7"); /* said to be the path */
    assert_int_equal(item[2].samples, 0);
    assert_string_equal(item[0].columns.theirs[0], "q");
    assert_string_equal(item[2].columns.theirs[0], "x");
    assert_ptr_equal(c->data.eval_items.item, item); /* what is held out of it */
    assert_true(c->data.eval && c->data.split == 0.1);
    tm_config_free(c);
}

static void save_only_model_is_the_contrary_of_save_state(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        bool save_state;
    } cases[] = {{"\"save_only_model\": false", true},
                 {"\"save_only_model\": true", false},
                 {"\"save_only_model\": false, \"save_state\": true", true},
                 {"\"save_state\": false, \"save_only_model\": true", false}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[200];
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i].keys);
        tm_config *c = test_ok(json);
        assert_int_equal(c->save_state, cases[i].save_state);
        tm_config_free(c);
    }
    tm_config *c;
    assert_int_equal(test_load(&c, "{" BASE ", \"save_only_model\": true, \"save_state\": true}", NULL, NULL),
                     TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "save_only_model"));
    tm_error_clear();
}

static void budgets(void **state) {
    (void)state;
    static const struct {
        const char *text;
        tm_budget_kind kind;
        uint64_t bytes;
    } cases[] = {{"536870912", TM_BUDGET_BYTES, 512 * TM_MIB}, {"\"512MiB\"", TM_BUDGET_BYTES, 512 * TM_MIB},
                 {"\"2 GB\"", TM_BUDGET_BYTES, 2000000000},    {"5e8", TM_BUDGET_BYTES, 500000000},
                 {"\"unlimited\"", TM_BUDGET_UNLIMITED, 0},    {"null", TM_BUDGET_DEFAULT, 0}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[200];
        snprintf(json, sizeof json, "{" BASE ", \"memory\": {\"host_budget\": %s}}", cases[i].text);
        tm_config *c = test_ok(json);
        assert_int_equal(c->memory.host_kind, cases[i].kind);
        assert_int_equal(c->memory.host_bytes, cases[i].bytes);
        tm_config_free(c);
    }
}

/* DeepSpeed's documented example for full NVMe offload, as top-level keys of our own file. */
static const char nvme_example[] =
    "{\n  \"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 1.0,\n"
    "  \"steps_per_print\": 10, \"wall_clock_breakdown\": false, \"zero_allow_untested_optimizer\": true,\n"
    "  \"bf16\": {\"enabled\": true},\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-5, \"betas\": [0.8, 0.999], \"eps\": 1e-8,"
    " \"weight_decay\": 3e-7, \"torch_adam\": true, \"adam_w_mode\": true}},\n"
    "  \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 3e-5,"
    " \"warmup_num_steps\": 500}},\n"
    "  \"zero_optimization\": {\"stage\": 3,\n"
    "    \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\", \"pin_memory\": true,"
    " \"buffer_count\": 4, \"fast_init\": false},\n"
    "    \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": [\"/n1\", \"/n2\"], \"pin_memory\": true,"
    " \"buffer_count\": 5, \"buffer_size\": 1e8, \"max_in_cpu\": 1e9},\n"
    "    \"overlap_comm\": true, \"contiguous_gradients\": true, \"sub_group_size\": 1e9,"
    " \"reduce_bucket_size\": 5e8, \"stage3_prefetch_bucket_size\": 5e7, \"stage3_param_persistence_threshold\": 1e5,"
    " \"stage3_max_live_parameters\": 1e9, \"stage3_max_reuse_distance\": 1e9,"
    " \"stage3_gather_16bit_weights_on_model_save\": true},\n"
    "  \"aio\": {\"block_size\": 262144, \"queue_depth\": 32, \"thread_count\": 2, \"single_submit\": \"false\","
    " \"overlap_events\": \"true\"}%s}";

static void check_nvme(const tm_config *c) {
    assert_true(c->micro_batch_size == 2 && c->accumulation_steps == 8 && c->train_batch_size == 16);
    assert_true(c->precision == TM_BF16 && c->zero_stage == 3 && c->logging_steps == 10);
    assert_true(c->learning_rate == 3e-5 && c->optim.beta1 == .8 && c->optim.weight_decay == 3e-7);
    assert_true(c->param_place == TM_PLACE_NVME && c->optimizer_place == TM_PLACE_NVME);
    assert_int_equal(c->param_paths.n, 2);
    assert_string_equal(c->param_paths.item[1], "/n2");
    assert_string_equal(c->optimizer_paths.item[0], "/local_nvme");
    assert_true(c->aio.given && c->aio.block_bytes == 262144 && c->aio.queue_depth == 32 && c->aio.threads == 2);
    assert_true(!c->aio.single_submit && c->aio.overlap_events);
    assert_true(c->zero.reduce_bucket_size == 500000000 && !c->knobs.no_overlap);
    assert_true(c->deepspeed_schedule && c->schedule.type == TM_LR_DS_WARMUP && c->schedule.warmup_steps == 500);
    assert_true(c->schedule.warmup_max_lr == 3e-5 && c->schedule.warmup_shape == TM_SHAPE_LOG);
}

static void deepspeed_at_top_level_or_named_or_inline(void **state) {
    (void)state;
    char text[4096], outer[6000];
    snprintf(text, sizeof text, nvme_example, ", " BASE);
    tm_config *c = test_ok(text);
    check_nvme(c);
    tm_config_free(c);
    snprintf(text, sizeof text, nvme_example, "");
    c = test_ok_set("{" BASE ", \"deepspeed\": \"ds.json\"}", text, NULL);
    check_nvme(c);
    tm_config_free(c);
    snprintf(outer, sizeof outer, "{" BASE ", \"deepspeed\": %s}", text);
    c = test_ok(outer);
    check_nvme(c);
    tm_config_free(c);
    c = test_ok_set("{" BASE "}", text, (const char *const[]){"deepspeed=ds.json", NULL});
    check_nvme(c);
    tm_config_free(c);
}

/* The form that ms-swift, LLaMA-Factory and transformers ship: "auto" wherever a trainer knows better. */
static const char all_auto[] =
    "{\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"loss_scale_window\": 1000, \"initial_scale_power\": 16,"
    " \"hysteresis\": 2, \"min_loss_scale\": 1}, \"bf16\": {\"enabled\": \"auto\"},\n"
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\","
    " \"weight_decay\": \"auto\"}},\n"
    "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\", \"warmup_max_lr\": "
    "\"auto\","
    " \"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\", \"warmup_type\": \"linear\"}},\n"
    "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true},"
    " \"offload_param\": {\"device\": \"none\"}, \"reduce_bucket_size\": \"auto\","
    " \"stage3_prefetch_bucket_size\": \"auto\", \"stage3_param_persistence_threshold\": \"auto\","
    " \"sub_group_size\": 1e9, \"gather_16bit_weights_on_model_save\": true},\n"
    "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", \"steps_per_print\": 2000,"
    " \"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", \"wall_clock_breakdown\": false}";

static void auto_takes_the_trainers_values(void **state) {
    (void)state;
    tm_config *c = test_ok_set("{" BASE ", \"deepspeed\": \"ds.json\", \"learning_rate\": 2e-4, \"weight_decay\": 0.01,"
                               " \"adam_beta2\": 0.98, \"per_device_train_batch_size\": 2,"
                               " \"gradient_accumulation_steps\": 3, \"max_grad_norm\": 0.3, \"warmup_ratio\": 0.05,"
                               " \"max_steps\": 90, \"precision\": \"fp32\"}",
                               all_auto, NULL);
    assert_true(c->precision == TM_F32 && c->learning_rate == 2e-4 && c->optim.weight_decay == .01);
    assert_true(c->optim.beta1 == .9 && c->optim.beta2 == .98 && c->optim.eps == 1e-8 && c->max_grad_norm == .3);
    assert_true(c->micro_batch_size == 2 && c->accumulation_steps == 3 && c->train_batch_size == 6);
    assert_true(c->optimizer_place == TM_PLACE_CPU && c->param_place == TM_PLACE_NONE);
    assert_true(c->zero.reduce_bucket_size == TM_AUTO_ELEMENTS);
    assert_int_equal(tm_config_resolve_model(c, 576), TM_OK);
    assert_int_equal(c->zero.reduce_bucket_size, 331776);
    assert_int_equal(c->zero.prefetch_bucket_size, 298598); /* floor(.9 * 331776) */
    assert_int_equal(c->zero.param_persistence_threshold, 5760);
    assert_int_equal(tm_config_resolve_steps(c, 1000), TM_OK);
    assert_true(c->schedule.warmup_steps == 5 && c->schedule.total_steps == 90); /* ceil(4.5) */
    assert_true(c->schedule.warmup_max_lr == 2e-4 && c->schedule.warmup_min_lr == 0);
    assert_true(tm_lr_at(&c->schedule, 0) == 0 && tm_lr_at(&c->schedule, 6) == 2e-4);
    tm_config_free(c);
    c = test_ok_set("{" BASE ", \"deepspeed\": \"ds.json\"}", all_auto, NULL);
    assert_true(c->precision == TM_BF16 && c->learning_rate == 1e-5 && c->optim.weight_decay == .1);
    assert_int_equal(tm_config_resolve_steps(c, 7), TM_OK);
    assert_true(c->total_steps == 7 && c->schedule.total_steps == 7 && c->schedule.warmup_steps == 1);
    tm_config_free(c);
}

static void blocks_take_deepspeeds_defaults(void **state) {
    (void)state;
    tm_config *c =
        test_ok("{" BASE ", \"optimizer\": {\"type\": \"Adam\"}, \"scheduler\": {\"type\": \"WarmupDecayLR\","
                " \"params\": {\"total_num_steps\": 20}}}");
    assert_true(c->learning_rate == 1e-3 && c->optim.beta1 == .9 && c->optim.beta2 == .999 &&
                c->optim.weight_decay == 0);
    assert_true(c->optim.adam_w_mode && c->optim.bias_correction);
    assert_true(c->schedule.warmup_steps == 1000 && c->schedule.warmup_max_lr == .001);
    tm_config_free(c);
    c = test_ok("{" BASE ", \"optimizer\": {\"type\": \"adam\", \"params\": {\"lr\": 1e-4, \"adam_w_mode\": false,"
                " \"bias_correction\": false}}, \"scheduler\": {\"type\": \"WarmupLR\"}}");
    assert_true(!c->optim.adam_w_mode && !c->optim.bias_correction && c->schedule.warmup_max_lr == 1e-4);
    tm_config_free(c);
    /* fp16 by its three names, with DeepSpeed's loss scale */
    static const char *const halves[] = {"\"precision\": \"fp16\"", "\"fp16\": true", "\"fp16\": {\"enabled\": true}"};
    for (size_t i = 0; i < TM_COUNT(halves); i++) {
        char text[400];
        snprintf(text, sizeof text, "{" BASE ", %s}", halves[i]);
        c = test_ok(text);
        const tm_loss_scale_opts *o = &c->loss_scale;
        assert_true(c->precision == TM_F16 && o->loss_scale == 0 && o->initial_scale_power == 16);
        assert_true(o->loss_scale_window == 1000 && o->hysteresis == 2 && o->min_loss_scale == 1);
        assert_false(o->consecutive_hysteresis);
        tm_config_free(c);
    }
    c = test_ok("{" BASE ", \"fp16\": {\"enabled\": true, \"auto_cast\": false, \"loss_scale\": 128, \"hysteresis\": 3,"
                " \"initial_scale_power\": 8, \"loss_scale_window\": 5, \"min_loss_scale\": 0.5,"
                " \"consecutive_hysteresis\": true}}");
    assert_true(c->precision == TM_F16 && c->loss_scale.loss_scale == 128 && c->loss_scale.hysteresis == 3);
    assert_true(c->loss_scale.initial_scale_power == 8 && c->loss_scale.loss_scale_window == 5);
    assert_true(c->loss_scale.min_loss_scale == .5 && c->loss_scale.consecutive_hysteresis);
    tm_config_free(c);
    /* no bf16 and no fp16: DeepSpeed trains in fp32 where it says so */
    c = test_ok("{" BASE ", \"fp16\": {\"enabled\": false}}");
    assert_int_equal(c->precision, TM_F32);
    tm_config_free(c);
    c = test_ok("{" BASE ", \"bfloat16\": {\"enabled\": true}, \"fp16\": {\"enabled\": false}}");
    assert_int_equal(c->precision, TM_BF16);
    tm_config_free(c);
}

static void older_and_other_names(void **state) {
    (void)state;
    tm_config *c =
        test_ok("{" BASE ", \"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true,"
                " \"cpu_offload_params\": false, \"max_live_parameters\": 5e8, \"prefetch_bucket_size\": 1e6},"
                " \"aio\": {\"num_threads\": 3, \"block_size\": \"1MiB\"}}");
    assert_true(c->optimizer_place == TM_PLACE_CPU && c->param_place == TM_PLACE_AUTO && c->zero_stage == 2);
    assert_true(c->zero.max_live_parameters == 500000000 && c->zero.prefetch_bucket_size == 1000000);
    assert_true(c->aio.threads == 3 && c->aio.block_bytes == TM_MIB);
    tm_config_free(c);
    c = test_ok(
        "{" BASE ", \"aio\": {\"intra_op_parallelism\": 4}, \"offload_optimizer_device\": \"nvme\","
        " \"zero_optimization\": {\"offload_optimizer\": {\"nvme_path\": \"p\"}}, \"zero3_save_16bit_model\": true}");
    assert_true(c->aio.threads == 4 && c->optimizer_place == TM_PLACE_NVME);
    assert_string_equal(c->param_paths.item[0], "p"); /* one path serves both */
    tm_config_free(c);
    c = test_ok("{" BASE ", \"zero_optimization\": {\"offload_param\": {}, \"offload_optimizer\": null}}");
    assert_true(c->param_place == TM_PLACE_NONE && c->optimizer_place == TM_PLACE_AUTO);
    tm_config_free(c);
}

/* What the file does not say, and "auto", is left to the planner. */
static void knobs_bound_the_planner_where_they_are_given(void **state) {
    (void)state;
    const uint64_t none = TM_AUTO_ELEMENTS;
    tm_config *c = test_ok("{" BASE "}");
    assert_true(c->knobs.max_in_cpu == none && c->knobs.max_live_parameters == none &&
                c->knobs.prefetch_bucket_size == none && c->knobs.reduce_bucket_size == none &&
                c->knobs.param_persistence_threshold == none && c->knobs.param_buffers == none &&
                c->knobs.sub_group_size == none && c->knobs.optimizer_buffer_count == none);
    assert_true(!c->knobs.no_pipeline_read && !c->knobs.no_pipeline_write && !c->knobs.no_pin_memory);
    tm_config_free(c);
    c = test_ok("{" BASE ", \"zero_optimization\": {\"stage\": 3, \"stage3_max_live_parameters\": \"auto\","
                " \"stage3_prefetch_bucket_size\": 0, \"sub_group_size\": 1e6, \"offload_param\": {\"device\":"
                " \"nvme\", \"max_in_cpu\": 0, \"buffer_size\": 1e6, \"pin_memory\": false}, \"offload_optimizer\":"
                " {\"device\": \"nvme\", \"pipeline_read\": false, \"pipeline_write\": false, \"pipeline\": true,"
                " \"buffer_count\": 2}}}");
    assert_true(c->knobs.max_live_parameters == none && c->knobs.prefetch_bucket_size == 0);
    assert_true(c->knobs.max_in_cpu == 0 && c->knobs.param_buffers == 5000000 && c->knobs.sub_group_size == 1000000);
    assert_true(c->knobs.optimizer_buffer_count == 2 && c->knobs.no_pin_memory);
    assert_true(!c->knobs.no_pipeline_read && !c->knobs.no_pipeline_write); /* one word turns both on */
    tm_config_free(c);
    c = test_ok("{" BASE ", \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\","
                " \"pipeline_read\": true, \"pipeline_write\": false, \"pin_memory\": true}}}");
    assert_true(!c->knobs.no_pipeline_read && c->knobs.no_pipeline_write && !c->knobs.no_pin_memory);
    tm_config_free(c);
    c = test_ok("{" BASE ", \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\","
                " \"pipeline\": false}}, \"max_grad_norm\": 0, \"memory\": {\"update\": \"B\"}}");
    assert_true(c->knobs.no_pipeline_read && c->knobs.no_pipeline_write && c->memory.update == TM_UPDATE_B);
    tm_config_free(c);
}

static void batches_are_solved(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        uint32_t micro, accumulation;
    } cases[] = {
        {"\"train_batch_size\": 12", 12, 1},
        {"\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 3", 3, 4},
        {"\"train_batch_size\": 12, \"gradient_accumulation_steps\": 6", 2, 6},
        {"\"train_batch_size\": 12, \"per_device_train_batch_size\": 4", 4, 3},
        {"\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": \"auto\","
         " \"gradient_accumulation_steps\": \"auto\"",
         1, 12},
        {"\"train_batch_size\": 12, \"per_device_train_batch_size\": 4, \"gradient_accumulation_steps\": 3", 4, 3},
        {"\"train_micro_batch_size_per_gpu\": 5, \"per_device_train_batch_size\": 5", 5, 1},
        {"\"train_batch_size\": \"auto\", \"gradient_accumulation_steps\": 9", 1, 9},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[400];
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i].keys);
        tm_config *c = test_ok(json);
        assert_int_equal(c->micro_batch_size, cases[i].micro);
        assert_int_equal(c->accumulation_steps, cases[i].accumulation);
        assert_int_equal(c->train_batch_size, cases[i].micro * cases[i].accumulation);
        tm_config_free(c);
    }
}

static void steps_and_warm_up(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        int64_t per_epoch, total, warmup;
    } cases[] = {{"\"num_train_epochs\": 3", 7, 21, 0},
                 {"\"num_train_epochs\": 0.5", 7, 4, 0},
                 {"\"max_steps\": 5, \"num_train_epochs\": 3", 7, 5, 0},
                 {"\"max_steps\": -1, \"warmup_ratio\": 0.1", 25, 25, 3},
                 {"\"warmup_steps\": 0.1", 25, 25, 3},
                 {"\"warmup_steps\": 4, \"warmup_ratio\": 0.5", 25, 25, 4},
                 {"\"warmup_ratio\": 1", 25, 25, 25}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[300];
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i].keys);
        tm_config *c = test_ok(json);
        assert_int_equal(tm_config_resolve_steps(c, cases[i].per_epoch), TM_OK);
        assert_int_equal(c->total_steps, cases[i].total);
        assert_int_equal(c->schedule.warmup_steps, cases[i].warmup);
        tm_config_free(c);
    }
}

static void set_comes_last(void **state) {
    (void)state;
    const char *const set[] = {"learning_rate=3e-4",
                               "data.train=other.jsonl",
                               "memory.host_budget=512MiB",
                               "memory={\"slots\": 1}",
                               "output_dir=2024",
                               "no_decay=norm",
                               "max_steps=7",
                               NULL};
    tm_config *c =
        test_ok_set("{" BASE ", \"learning_rate\": 1, \"memory\": {\"cache\": \"none\"}, \"max_steps\": 3}", NULL, set);
    assert_true(c->learning_rate == 3e-4 && c->max_steps == 7);
    assert_string_equal(c->data.train, "other.jsonl");
    assert_string_equal(c->output_dir, "2024");
    assert_string_equal(c->no_decay.item[0], "norm");
    /* an object replaces what was there, the budget set before it included */
    assert_true(c->memory.slots == 1 && !c->memory.cache_none && c->memory.host_kind == TM_BUDGET_DEFAULT);
    tm_config_free(c);
    const char *const over_ds[] = {"optimizer.params.lr=1e-3", "zero_optimization.offload_optimizer.device=cpu",
                                   "scheduler=null", "max_length=64", NULL};
    c = test_ok_set("{" BASE ", \"deepspeed\": \"ds.json\"}", all_auto, over_ds);
    assert_true(c->learning_rate == 1e-3 && c->optimizer_place == TM_PLACE_CPU && c->data.seq_len == 64);
    assert_true(!c->deepspeed_schedule && c->schedule.type == TM_LR_COSINE);
    tm_config_free(c);
}

static void schedules_with_arguments(void **state) {
    (void)state;
    tm_config *c = test_ok("{" BASE ", \"max_steps\": 90, \"warmup_steps\": 10, \"learning_rate\": 3e-4,"
                           " \"lr_scheduler_type\": \"warmup_stable_decay\", \"lr_scheduler_kwargs\":"
                           " {\"num_decay_steps\": 20, \"min_lr_ratio\": 0.05, \"decay_type\": \"1-sqrt\"}}");
    assert_int_equal(tm_config_resolve_steps(c, 1), TM_OK);
    assert_true(c->schedule.decay_steps == 20 && c->schedule.decay_shape == TM_SHAPE_ONE_MINUS_SQRT);
    assert_true(tm_lr_at(&c->schedule, 40) == 3e-4 && tm_lr_at(&c->schedule, 95) == 3e-4 * .05);
    tm_config_free(c);
    c = test_ok("{" BASE ", \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4,"
                " \"cycle_max_lr\": 1e-3, \"cycle_first_step_size\": 30, \"cycle_second_step_size\": null}}}");
    assert_int_equal(tm_config_resolve_steps(c, 100), TM_OK);
    assert_true(tm_lr_at(&c->schedule, 30) == 1e-3 && tm_lr_at(&c->schedule, 60) == 1e-4);
    tm_config_free(c);
    c = test_ok("{" BASE ", \"lr_scheduler_type\": \"constant\", \"warmup_steps\": 3}");
    assert_int_equal(tm_config_resolve_steps(c, 100), TM_OK);
    assert_true(tm_lr_at(&c->schedule, 0) == 1e-5);
    tm_config_free(c);
}

static void the_dump_loads_as_the_same(void **state) {
    (void)state;
    char text[4096];
    snprintf(text, sizeof text, nvme_example, ", " BASE);
    const char *const inputs[] = {
        "{" BASE "}",
        text,
        "{" BASE ", \"lr_scheduler_type\": \"warmup_stable_decay\", \"lr_scheduler_kwargs\": {\"num_decay_steps\": 3},"
        " \"memory\": {\"host_budget\": \"1GiB\", \"update\": \"U\"}, \"no_decay\": \"norm\", \"save_dtype\": \"f16\"}",
        "{" BASE
        ", \"lr_scheduler_type\": \"cosine_warmup_with_min_lr\", \"lr_scheduler_kwargs\": {\"min_lr_rate\": 0.1,"
        " \"warmup_lr_rate\": 0.2}, \"memory\": {\"host_budget\": \"unlimited\"}, \"precision\": \"fp32\"}",
        "{" BASE ", \"max_grad_norm\": 0, \"memory\": {\"update\": \"B\"}, \"zero_optimization\": {\"stage\": 3,"
        " \"stage3_param_persistence_threshold\": \"auto\", \"stage3_prefetch_bucket_size\": 0, \"offload_optimizer\":"
        " {\"device\": \"nvme\", \"pipeline\": false, \"pin_memory\": false}}}",
        "{" BASE ", \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": \"auto\","
        " \"warmup_num_steps\": \"auto\"}}}",
        "{" BASE
        ", \"scheduler\": {\"type\": \"LRRangeTest\"}, \"zero_optimization\": {\"reduce_bucket_size\": \"auto\"}}",
        "{" BASE ", \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, \"cycle_max_lr\": 2}}}"};
    for (size_t i = 0; i < TM_COUNT(inputs); i++) {
        tm_buf first = {0}, second = {0};
        tm_config *c = test_ok(inputs[i]);
        assert_int_equal(tm_config_dump_json(c, &first, 2), TM_OK);
        tm_config_free(c);
        c = test_ok(first.data);
        assert_int_equal(tm_config_dump_json(c, &second, 2), TM_OK);
        tm_config_free(c);
        assert_string_equal(first.data, second.data);
        tm_buf_free(&first), tm_buf_free(&second);
    }
}

static void help_names_every_key(void **state) {
    (void)state;
    tm_buf help = {0};
    assert_int_equal(tm_config_help(&help), TM_OK);
    static const char *const some[] = {"memory.host_budget",  "zero_optimization.offload_optimizer.nvme_path",
                                       "learning_rate",       "default 1e-5",
                                       "aio.queue_depth",     "sparse_attention",
                                       "same as data.seq_len"};
    for (size_t i = 0; i < TM_COUNT(some); i++) assert_non_null(strstr(help.data, some[i]));
    tm_buf_free(&help);
}

static void nothing_is_leaked(void **state) {
    (void)state;
    uint64_t before = tm_mem_live_bytes();
    tm_config *c =
        test_ok_set("{" BASE ", \"deepspeed\": \"ds.json\"}", all_auto, (const char *const[]){"seed=1", NULL});
    tm_config_free(c);
    assert_int_equal(test_load(&c, "{" BASE ", \"nonsense\": 1}", NULL, NULL), TM_EINPUT);
    assert_null(c);
    assert_int_equal(test_load(&c, "{" BASE ", \"deepspeed\": \"gone.json\"}", NULL, NULL), TM_EINPUT);
    tm_error_clear();
    assert_int_equal(tm_mem_live_bytes(), before);
}

int main(void) {
    tm_log_set_level(TM_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ours_by_default),
        cmocka_unit_test(every_key_of_ours),
        cmocka_unit_test(relaxed_json_and_other_spellings),
        cmocka_unit_test(files_of_data),
        cmocka_unit_test(save_only_model_is_the_contrary_of_save_state),
        cmocka_unit_test(budgets),
        cmocka_unit_test(deepspeed_at_top_level_or_named_or_inline),
        cmocka_unit_test(auto_takes_the_trainers_values),
        cmocka_unit_test(blocks_take_deepspeeds_defaults),
        cmocka_unit_test(older_and_other_names),
        cmocka_unit_test(batches_are_solved),
        cmocka_unit_test(steps_and_warm_up),
        cmocka_unit_test(set_comes_last),
        cmocka_unit_test(schedules_with_arguments),
        cmocka_unit_test(knobs_bound_the_planner_where_they_are_given),
        cmocka_unit_test(the_dump_loads_as_the_same),
        cmocka_unit_test(help_names_every_key),
        cmocka_unit_test(nothing_is_leaked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

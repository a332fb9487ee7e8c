/* What is said of a key that makes no difference: once, with the reason that holds here; and what changes the result in
 * its place. What a process says once, it says once: each case is one of its own. */
#include "world.h"

#include <sys/wait.h>
#include <unistd.h>

enum { SAID = 8192 };

/* Loads in a child; what it wrote to stderr. */
static const char *said(const char *json, const char *ds, const char *const *set, uint32_t ranks, int *status) {
    static char text[SAID];
    int fd[2], wait_status;
    size_t n = 0;
    assert_int_equal(pipe(fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        tm_config *c = NULL;
        (void)dup2(fd[1], 2);
        tm_config_opts o = {.name = "cfg.json", .read_file = test_read, .world_size = ranks};
        o.read_ctx = (void *)(uintptr_t)ds;
        for (o.set = set; set && set[o.n_set]; o.n_set++) {
        }
        tm_status rc = tm_config_load(&c, json, strlen(json), &o);
        if (rc != TM_OK) fprintf(stderr, "%s\n", tm_error_get()->text);
        tm_config_free(c);
        _exit(rc == TM_OK ? 0 : 1);
    }
    close(fd[1]);
    for (ssize_t got; n < SAID - 1 && (got = read(fd[0], text + n, SAID - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(fd[0]);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    *status = WEXITSTATUS(wait_status);
    return text;
}

static unsigned count(const char *text, const char *what) {
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
    return n;
}

typedef struct effect {
    uint32_t ranks;                  /* 0: 1 and 4 */
    const char *keys, *key, *reason; /* reason NULL: nothing is said */
} effect;

#define Z(text) "\"zero_optimization\": {" text "}"
static const char one[] = "there is one rank";
static const effect effects[] = {
    {1, Z("\"overlap_comm\": true"), "overlap_comm", one},
    {4, Z("\"overlap_comm\": true"), "overlap_comm", NULL},
    {1, Z("\"overlap_comm\": false"), "overlap_comm", one},
    {4, Z("\"overlap_comm\": false"), "overlap_comm", NULL},
    {1, Z("\"overlap_comm\": \"auto\""), "overlap_comm", NULL},
    {1, Z("\"stage\": 3, \"mics_shard_size\": -1"), "mics_shard_size", NULL},
    {1, Z("\"stage\": 3, \"mics_shard_size\": 2"), "mics_shard_size", one},
    {4, Z("\"stage\": 2, \"mics_shard_size\": 2"), "mics_shard_size", "only stage 3"},
    {4, Z("\"stage\": 3, \"mics_shard_size\": 2"), "mics_shard_size", NULL},
    {0, Z("\"stage3_max_reuse_distance\": 1e9"), "stage3_max_reuse_distance", "follows from the budget"},
    {0, Z("\"max_reuse_distance\": 1e9"), "max_reuse_distance", "follows from the budget"},
    {0, Z("\"offload_optimizer\": {\"device\": \"cpu\", \"fast_init\": true}"), "fast_init", "written once"},
    {0, "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"torch_adam\": true}}", "torch_adam", "one implementation"},
    {0, "\"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}", "check_grad_overflow", "always skipped"},
    {0, "\"bf16\": {\"enabled\": true, \"check_grad_overflow\": true}", "check_grad_overflow", NULL},
    {0, Z("\"stage3_gather_16bit_weights_on_model_save\": false"), "gather_16bit", "always whole"},
    {0, Z("\"gather_16bit_weights_on_model_save\": true"), "gather_16bit", NULL},
    {0, "\"zero3_save_16bit_model\": false", "zero3_save_16bit_model", "always whole"},
    {1, Z("\"stage\": 3, \"zero_hpz_partition_size\": 2"), "zero_hpz_partition_size", one},
    {4, Z("\"stage\": 2, \"zero_hpz_partition_size\": 2"), "zero_hpz_partition_size", "only stage 3"},
    {4, "\"strategy\": \"zero3\", " Z("\"zero_hpz_partition_size\": 2"), "zero_hpz_partition_size", "\"strategy\""},
    {4, Z("\"stage\": 3, \"zero_hpz_partition_size\": 2"), "zero_hpz_partition_size", NULL},
    {0, "\"memory\": {\"device_bandwidth\": \"1GB\"}", "device_bandwidth", "cpu-arena"},
    {1, "\"memory\": {\"shared_window\": \"on\"}", "shared_window", one},
    {4, "\"memory\": {\"shared_window\": \"on\"}", "shared_window", NULL},
    {0, "\"memory\": {\"spread\": \"on\", \"update\": \"U\"}", "memory.spread", "update U"},
    {0, "\"memory\": {\"spread\": \"on\"}", "memory.spread", NULL},
    {0, Z("\"contiguous_gradients\": false"), "contiguous_gradients", "in one piece"},
    {0, Z("\"contiguous_gradients\": true"), "contiguous_gradients", NULL},
    {0, Z("\"reduce_scatter\": false"), "reduce_scatter", "reduce-scattered"},
    {0, Z("\"reduce_scatter\": true"), "reduce_scatter", NULL},
    {0, Z("\"leaf_module\": {\"classes\": [\"Mixtral\"]}"), "leaf_module", "tile by tile"},
    {1, Z("\"allgather_bucket_size\": 5e8"), "allgather_bucket_size", one},
    {4, Z("\"allgather_bucket_size\": 5e8"), "allgather_bucket_size", "stage3_prefetch_bucket_size"},
    {1, "\"prescale_gradients\": true", "prescale_gradients", one},
    {4, "\"prescale_gradients\": true", "prescale_gradients", "divided once"},
    {4, "\"comms_logger\": {\"enabled\": true}", "comms_logger", "--profile"},
    {0, "\"zero_allow_untested_optimizer\": true", "zero_allow_untested_optimizer", "every optimizer"},
    {0, "\"val_dataset\": \"e\", \"val_size\": 0.5", "val_size", "data.eval is evaluated on"},
    {0, "\"val_size\": 0.5, \"eval_strategy\": \"no\"", "val_size", "all is trained on"},
    {0, "\"aio\": {\"use_gds\": true}", "use_gds", "host memory"},
    {1, "\"communication_data_type\": \"bf16\"", "communication_data_type", one},
    {0, "\"activation_checkpointing\": {\"partition_activations\": true}", "partition_activations",
     "tensor parallelism"},
    {0, "\"activation_checkpointing\": {\"number_checkpoints\": 4}", "number_checkpoints", "a block at a time"},
    {0, "\"activation_checkpointing\": {\"cpu_checkpointing\": true}", "checkpointing", NULL},
    {0, "\"activation_checkpointing\": {\"partition_activations\": false}", "partition_activations", NULL},
};

static void each_is_said_once_with_its_reason(void **state) {
    (void)state;
    unsigned failed = 0;
    for (size_t i = 0; i < TM_COUNT(effects); i++) {
        const effect *e = &effects[i];
        char json[1000];
        snprintf(json, sizeof json, "{" BASE ", %s}", e->keys);
        for (uint32_t ranks = 1; ranks <= 4; ranks += 3) {
            int status;
            if (e->ranks && e->ranks != ranks) continue;
            const char *text = said(json, NULL, NULL, ranks, &status);
            bool right = status == 0 && count(text, " has no effect here: ") == (e->reason ? 1 : 0);
            if (right &&
                (!e->reason || (strstr(text, e->key) && strstr(text, e->reason) && strstr(text, "cfg.json:1:"))))
                continue;
            print_error("%u ranks, %s: %s\n", ranks, e->keys, text);
            failed++;
        }
    }
    assert_int_equal(failed, 0);
}

/* ---- what does something ------------------------------------------------------------------------------------- */

static void recomputation_by_every_name(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        tm_activations expected;
    } cases[] = {
        {"\"gradient_checkpointing\": true", TM_ACT_RECOMPUTE},
        {"\"gradient_checkpointing\": false", TM_ACT_AUTO},
        {"\"gradient_checkpointing\": true, \"memory\": {\"activations\": \"recompute\"}", TM_ACT_RECOMPUTE},
        {"\"gradient_checkpointing\": false, \"memory\": {\"activations\": \"keep\"}", TM_ACT_KEEP},
        {"\"gradient_checkpointing\": true, \"memory\": {\"activations\": \"auto\"}", TM_ACT_RECOMPUTE},
        {"\"activation_checkpointing\": {\"cpu_checkpointing\": true}", TM_ACT_RECOMPUTE},
        {"\"activation_checkpointing\": {\"cpu_checkpointing\": false}", TM_ACT_AUTO},
        {"\"activation_checkpointing\": {}", TM_ACT_AUTO},
        {"\"activation_checkpointing\": {\"cpu_checkpointing\": true}, \"gradient_checkpointing\": true",
         TM_ACT_RECOMPUTE},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[600];
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i].keys);
        tm_config *c = test_ok(json);
        if (c->memory.activations != cases[i].expected) fail_msg("%s: %d", cases[i].keys, c->memory.activations);
        tm_config_free(c);
    }
}

static tm_config *load_ranks(const char *json, uint32_t ranks) {
    tm_config *c = NULL;
    if (tm_config_load(&c, json, strlen(json), &(tm_config_opts){.name = "c", .world_size = ranks}) != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    return c;
}

static void mics_divides_within_groups(void **state) {
    (void)state;
    static const char json[] = "{" BASE ", " Z("\"stage\": 3, \"mics_shard_size\": 4") "}";
    tm_config *c = load_ranks(json, 8);
    assert_int_equal(c->strategy, TM_STRATEGY_HSDP);
    assert_int_equal(c->mics_shard, 4);
    tm_config_free(c);
    c = load_ranks(json, 4); /* one group: no replicas */
    assert_int_equal(c->strategy, TM_STRATEGY_ZERO3);
    assert_int_equal(c->mics_shard, 0);
    tm_config_free(c);
    c = load_ranks("{" BASE ", " Z("\"stage\": 3, \"overlap_comm\": false") "}", 4);
    assert_true(c->knobs.no_overlap);
    tm_config_free(c);
    c = load_ranks("{" BASE ", " Z("\"stage\": 2, \"overlap_comm\": true") "}", 4);
    assert_false(c->knobs.no_overlap);
    tm_config_free(c);
}

/* ---- auto ---------------------------------------------------------------------------------------------------- */

static void flags_beside_sections(void **state) {
    (void)state;
    static const char ds[] =
        "{\"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0}}";
    static const struct {
        const char *flag;
        tm_dtype expected;
    } cases[] = {{"\"bf16\": true", TM_BF16},
                 {"\"fp16\": true", TM_F16},
                 {"\"bf16\": false, \"fp16\": false", TM_F32},
                 {"\"bf16\": true, \"fp16\": false", TM_BF16},
                 {"\"precision\": \"fp32\"", TM_F32}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[400];
        snprintf(json, sizeof json, "{" BASE ", %s, \"deepspeed\": \"ds.json\"}", cases[i].flag);
        tm_config *c = test_ok_set(json, ds, NULL);
        if (c->precision != cases[i].expected) fail_msg("%s: %d", cases[i].flag, c->precision);
        tm_config_free(c);
        snprintf(json, sizeof json, "{\"deepspeed\": \"ds.json\", " BASE ", %s}", cases[i].flag);
        c = test_ok_set(json, ds, NULL);
        if (c->precision != cases[i].expected) fail_msg("%s: %d", cases[i].flag, c->precision);
        tm_config_free(c);
    }
    tm_config *c = NULL;
    assert_int_equal(test_load(&c, "{" BASE ", \"bf16\": true, \"deepspeed\": \"ds.json\"}",
                               "{\"bf16\": {\"enabled\": false}}", NULL),
                     TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "does not match bf16.enabled false (ds.json:1:"));
    tm_error_clear();
}

static void what_auto_became(void **state) {
    (void)state;
    static const char ds[] =
        "{\"bf16\": {\"enabled\": \"auto\"}, \"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": "
        "\"auto\","
        " \"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", \"optimizer\": {\"type\": "
        "\"AdamW\","
        " \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}},"
        " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\", \"warmup_max_lr\": "
        "\"auto\","
        " \"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"}}, \"zero_optimization\": {\"stage\": 3,"
        " \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\","
        " \"stage3_param_persistence_threshold\": \"auto\", \"sub_group_size\": \"auto\"}}";
    static const char *const expected[] = {"\"train_batch_size\": 12",
                                           "\"train_micro_batch_size_per_gpu\": 3",
                                           "\"gradient_accumulation_steps\": 4",
                                           "\"gradient_clipping\": 0.5",
                                           "\"bf16.enabled\": true",
                                           "\"optimizer.params.lr\": 0.001",
                                           "\"optimizer.params.betas\": [0.5, 0.25]",
                                           "\"optimizer.params.eps\": 1e-06",
                                           "\"optimizer.params.weight_decay\": 0.25",
                                           "\"scheduler.params.warmup_min_lr\": 0",
                                           "\"scheduler.params.warmup_max_lr\": 0.001",
                                           "\"scheduler.params.warmup_num_steps\": 5",
                                           "\"scheduler.params.total_num_steps\": 100",
                                           "\"zero_optimization.reduce_bucket_size\": 4096",
                                           "\"zero_optimization.stage3_prefetch_bucket_size\": 3686",
                                           "\"zero_optimization.stage3_param_persistence_threshold\": 640",
                                           "\"zero_optimization.sub_group_size\": null"};
    tm_config *c = test_ok_set("{" BASE ", \"bf16\": true, \"per_device_train_batch_size\": 3,"
                               " \"gradient_accumulation_steps\": 4, \"max_grad_norm\": 0.5, \"learning_rate\": 1e-3,"
                               " \"adam_beta1\": 0.5, \"adam_beta2\": 0.25, \"adam_epsilon\": 1e-6,"
                               " \"weight_decay\": 0.25, \"warmup_steps\": 5, \"max_steps\": 100,"
                               " \"deepspeed\": \"ds.json\"}",
                               ds, NULL);
    tm_buf out = {0};
    bool any;
    assert_int_equal(tm_config_resolve_model(c, 64), TM_OK);
    assert_int_equal(tm_config_resolve_steps(c, 10), TM_OK);
    assert_int_equal(tm_config_autos(c, &out, &any), TM_OK);
    assert_true(any);
    for (size_t i = 0; i < TM_COUNT(expected); i++)
        if (!strstr(out.data, expected[i])) fail_msg("%s is not in %s", expected[i], out.data);
    tm_buf_free(&out);
    tm_config_free(c);
    c = test_ok("{" BASE "}");
    assert_int_equal(tm_config_autos(c, &out, &any), TM_OK);
    assert_false(any);
    tm_buf_free(&out);
    tm_config_free(c);
}

/* ---- epochs, --set, lines ------------------------------------------------------------------------------------ */

static void by_epochs(void **state) {
    (void)state;
    tm_config *c = test_ok("{" BASE ", \"val_dataset\": \"e.jsonl\", \"save_strategy\": \"epoch\", \"eval_strategy\":"
                           " \"epoch\", \"logging_strategy\": \"epoch\", \"load_best_model_at_end\": true}");
    tm_buf out = {0};
    assert_int_equal(tm_config_resolve_steps(c, 7), TM_OK);
    assert_true(c->save_steps == 7 && c->eval_steps == 7 && c->logging_steps == 7);
    assert_int_equal(tm_config_resolve_steps(c, 9), TM_OK);
    assert_int_equal(c->save_steps, 9);
    assert_int_equal(tm_config_dump_json(c, &out, 0), TM_OK);
    assert_non_null(strstr(out.data, "\"save_strategy\": \"epoch\""));
    tm_config_free(c);
    c = test_ok(out.data);
    assert_int_equal(tm_config_resolve_steps(c, 5), TM_OK);
    assert_true(c->save_steps == 5 && c->eval_steps == 5 && c->logging_steps == 5);
    tm_config_free(c);
    tm_buf_free(&out);
}

static void set_lifts_what_the_file_says(void **state) {
    (void)state;
    static const char *const lifts[][2] = {
        {"{" BASE ", \"adapter\": {\"type\": \"loha\", \"r\": 8}}", "adapter=null"},
        {"{" BASE ", \"lora_r\": 0}", "lora_r=null"},
        {"{" BASE ", \"amp\": {\"enabled\": true}}", "amp=null"},
        {"{" BASE ", \"max_steps\": \"many\"}", "max_steps=3"},
        {"{" BASE ", \"memory\": {\"slots\": 7}}", "memory=null"},
        {"{" BASE ", \"max_length\": \"x\"}", "data.seq_len=64"},
        {"{" BASE ", \"deepspeed\": \"absent.json\"}", "deepspeed=null"},
    };
    for (size_t i = 0; i < TM_COUNT(lifts); i++) {
        const char *set[] = {lifts[i][1], NULL};
        tm_config *c = NULL;
        assert_int_not_equal(test_load(&c, lifts[i][0], NULL, NULL), TM_OK);
        tm_config_free(test_ok_set(lifts[i][0], NULL, set));
    }
}

static void a_line_each(void **state) {
    (void)state;
    tm_config *c = NULL;
    assert_int_equal(
        test_load(&c, "{" BASE ",\n \"a_key\": 1,\n \"max_steps\": \"x\",\n \"memory\": {\"slots\": 9}}", NULL, NULL),
        TM_EINPUT);
    const char *text = tm_error_get()->text;
    static const char *const lines[] = {"3 problems:\n",
                                        "\n  cfg.json:2:11: ", "\n  cfg.json:3:15: ", "\n  cfg.json:4:22: "};
    for (size_t i = 0; i < TM_COUNT(lines); i++)
        if (!strstr(text, lines[i])) fail_msg("no line like \"%s\" in\n%s", lines[i], text);
    assert_int_equal(count(text, "\n"), 3);
    tm_error_clear();
}

/* ---- suggestions --------------------------------------------------------------------------------------------- */

static void suggestions(void **state) {
    (void)state;
    static const struct {
        const char *keys, *says;
    } cases[] = {
        {"\"batch_size\": 4", "did you mean \"per_device_train_batch_size\"?"},
        {"\"epochs\": 4", "did you mean \"num_train_epochs\"?"},
        {"\"lr\": 4", "did you mean \"learning_rate\"?"},
        {"\"peft_config\": {}", "did you mean \"adapter\"?"},
        {"\"parallel_method\": \"zero3\"", "did you mean \"strategy\"?"},
        {"\"use_fp16\": true", "did you mean \"fp16\"?"},
        {"\"strategy\": \"horovod\"", "did you mean \"ddp\"?"},
        {"\"rank_pattern\": {}", "it belongs under \"adapter\""},
        {"\"load_in_8bit\": true", "a frozen base in 8 bits"},
        {"\"learning_rat\": 1", "did you mean \"learning_rate\"?"},
        {"\"max_stpes\": 1", "did you mean \"max_steps\"?"},
        {"\"host_budget\": 1", "it belongs under \"memory\""},
        {"\"train_batch_size_per_device\": 1", "did you mean \"per_device_train_batch_size\"?"},
        {"\"num_gpus\": 2", "a launcher starts the ranks: mpirun -n N"},
        {"\"hf_token\": \"x\"", "nothing is downloaded"},
    };
    unsigned failed = 0;
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[400];
        tm_config *c = NULL;
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i].keys);
        if (test_load(&c, json, NULL, NULL) != TM_OK && strstr(tm_error_get()->text, cases[i].says)) continue;
        print_error("%s: %s\n", cases[i].keys, tm_error_get()->text);
        failed++;
    }
    tm_error_clear();
    assert_int_equal(failed, 0);
}

static void contradictions(void **state) {
    (void)state;
    static const char *const cases[] = {
        "\"logging_steps\": 10, \"steps_per_print\": 20",
        "\"gradient_checkpointing\": true, \"memory\": {\"activations\": \"keep\"}",
        "\"gradient_checkpointing\": false, \"memory\": {\"activations\": \"recompute\"}",
        "\"activation_checkpointing\": {\"cpu_checkpointing\": true}, \"memory\": {\"activations\": \"spill\"}",
        "\"gradient_checkpointing\": false, \"activation_checkpointing\": {\"cpu_checkpointing\": true}",
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        char json[400];
        tm_config *c = NULL;
        snprintf(json, sizeof json, "{" BASE ", %s}", cases[i]);
        assert_int_equal(test_load(&c, json, NULL, NULL), TM_EINPUT);
        if (!strstr(tm_error_get()->text, "does not match")) fail_msg("%s: %s", cases[i], tm_error_get()->text);
        tm_error_clear();
    }
    tm_config_free(test_ok("{" BASE ", \"logging_steps\": 10, \"steps_per_print\": 1e300}")); /* accelerate: never */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_said_once_with_its_reason),
        cmocka_unit_test(recomputation_by_every_name),
        cmocka_unit_test(mics_divides_within_groups),
        cmocka_unit_test(flags_beside_sections),
        cmocka_unit_test(what_auto_became),
        cmocka_unit_test(by_epochs),
        cmocka_unit_test(set_lifts_what_the_file_says),
        cmocka_unit_test(a_line_each),
        cmocka_unit_test(suggestions),
        cmocka_unit_test(contradictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

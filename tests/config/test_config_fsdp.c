/* FSDP by HF Trainer's and Accelerate's names: what they come to, and what contradicts. */
#include "world.h"

typedef struct good {
    const char *json; /* keys after BASE */
    tm_strategy strategy;
    uint32_t stage;
    tm_place place;
    tm_dtype precision;
    bool comm_bf16;
    tm_wrap wrap;
} good;

#define ACCELERATE                                                                                                     \
    "\"fsdp_config\": {\"fsdp_sharding_strategy\": \"HYBRID_SHARD\", \"fsdp_auto_wrap_policy\":"                       \
    " \"TRANSFORMER_BASED_WRAP\", \"fsdp_transformer_layer_cls_to_wrap\": \"LlamaDecoderLayer\","                      \
    " \"fsdp_offload_params\": false, \"fsdp_use_orig_params\": true, \"fsdp_backward_prefetch\": \"BACKWARD_PRE\","   \
    " \"fsdp_state_dict_type\": \"SHARDED_STATE_DICT\", \"fsdp_sync_module_states\": true}"
#define TYPES(p, r)                                                                                                    \
    "\"fsdp\": true, \"fsdp_config\": {\"mixed_precision\": {\"param_dtype\": \"" p "\", \"reduce_dtype\": \"" r       \
    "\", \"buffer_dtype\": \"float32\"}}"

static const good rows[] = {
    {"\"fsdp\": \"full_shard auto_wrap\"", TM_STRATEGY_ZERO3, 3, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_DEFAULT},
    {"\"fsdp\": [\"shard_grad_op\", \"auto_wrap\"]", TM_STRATEGY_ZERO2, 2, TM_PLACE_AUTO, TM_BF16, false,
     TM_WRAP_DEFAULT},
    {"\"fsdp\": \"no_shard\"", TM_STRATEGY_DDP, 0, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_DEFAULT},
    {"\"fsdp\": \"hybrid_shard offload\"", TM_STRATEGY_HSDP, 3, TM_PLACE_CPU, TM_BF16, false, TM_WRAP_DEFAULT},
    {"\"fsdp\": \"\"", TM_STRATEGY_DDP, 0, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_DEFAULT},
    {"\"fsdp\": []", TM_STRATEGY_DDP, 0, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_DEFAULT}, /* HF Trainer's default */
    {"\"fsdp\": false", TM_STRATEGY_DDP, 0, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_DEFAULT},
    {"\"fsdp\": false, \"fsdp_config\": {\"min_num_params\": 0}", TM_STRATEGY_DDP, 0, TM_PLACE_AUTO, TM_BF16, false,
     TM_WRAP_DEFAULT},
    {"\"fsdp\": \"\", \"fsdp_config\": {}", TM_STRATEGY_DDP, 0, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_DEFAULT},
    {ACCELERATE, TM_STRATEGY_HSDP, 3, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_BLOCK},
    {"\"fsdp_config\": {\"sharding_strategy\": 2}", TM_STRATEGY_ZERO2, 2, TM_PLACE_AUTO, TM_BF16, false,
     TM_WRAP_DEFAULT},
    {"\"fsdp_config\": {\"min_num_params\": 1e6}", TM_STRATEGY_ZERO3, 3, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_SIZE},
    {"\"fsdp_config\": {\"version\": 2, \"reshard_after_forward\": false, \"offload_params\": true}", TM_STRATEGY_ZERO2,
     2, TM_PLACE_CPU, TM_BF16, false, TM_WRAP_DEFAULT},
    {"\"strategy\": \"fsdp\", \"fsdp_config\": {\"sharding_strategy\": \"FULL_SHARD\", \"auto_wrap_policy\": "
     "\"NO_WRAP\"}",
     TM_STRATEGY_ZERO3, 3, TM_PLACE_AUTO, TM_BF16, false, TM_WRAP_NONE},
    {TYPES("float32", "float32"), TM_STRATEGY_ZERO3, 3, TM_PLACE_AUTO, TM_F32, false, TM_WRAP_DEFAULT},
    {TYPES("bf16", "torch.bfloat16"), TM_STRATEGY_ZERO3, 3, TM_PLACE_AUTO, TM_BF16, true, TM_WRAP_DEFAULT},
};

static void names_become_strategies(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        char json[1024];
        snprintf(json, sizeof json, "{%s, %s}", BASE, rows[i].json);
        tm_config *c = test_ok(json);
        bool same = c->strategy == rows[i].strategy && c->zero_stage == rows[i].stage &&
                    c->param_place == rows[i].place && c->optimizer_place == rows[i].place &&
                    c->precision == rows[i].precision && c->comm_bf16 == rows[i].comm_bf16 && c->wrap == rows[i].wrap;
        if (!same)
            fail_msg("%s: strategy %d, stage %u, places %d %d, precision %d, bf16 sums %d, wrap %d", rows[i].json,
                     c->strategy, c->zero_stage, c->param_place, c->optimizer_place, c->precision, c->comm_bf16,
                     c->wrap);
        tm_config_free(c);
    }
}

static void grain_and_checkpointing(void **state) {
    (void)state;
    tm_config *c = test_ok("{" BASE ", \"fsdp\": \"full_shard\", \"fsdp_min_num_params\": 2000}");
    assert_int_equal(c->wrap_elements, 2000);
    tm_config_free(c);
    c = test_ok("{" BASE ", \"fsdp_config\": {\"activation_checkpointing\": true,"
                " \"transformer_layer_cls_to_wrap\": [\"LlamaDecoderLayer\"]}}");
    assert_int_equal(c->memory.activations, TM_ACT_RECOMPUTE);
    assert_int_equal(c->wrap_classes.n, 1);
    assert_string_equal(c->wrap_classes.item[0], "LlamaDecoderLayer");
    tm_config_free(c);
}

static void what_contradicts_is_refused(void **state) {
    (void)state;
    static const struct {
        tm_status status;
        const char *json, *says[2];
    } bad[] = {
        {TM_EINPUT, "\"fsdp\": \"full_shard no_shard\"", {"full_shard and no_shard"}},
        {TM_EINPUT, "\"fsdp\": \"full_shared\"", {"the word \"full_shared\""}},
        {TM_EINPUT, "\"fsdp\": \"offload\"", {"needs a strategy"}},
        {TM_EINPUT, "\"fsdp\": \"full_shard\", \"strategy\": \"ddp\"", {"does not match strategy"}},
        {TM_EINPUT, "\"fsdp\": \"full_shard\", \"zero_optimization\": {\"stage\": 1}", {"zero_optimization.stage"}},
        {TM_EINPUT,
         "\"fsdp\": \"full_shard\", \"fsdp_config\": {\"sharding_strategy\": \"NO_SHARD\"}",
         {"does not match"}},
        {TM_EINPUT,
         "\"fsdp\": \"full_shard\", \"fsdp_config\": {\"reshard_after_forward\": false}",
         {"does not match"}},
        {TM_EINPUT,
         "\"fsdp\": \"full_shard offload\", \"fsdp_config\": {\"offload_params\": false}",
         {"does not match"}},
        {TM_EINPUT,
         "\"fsdp\": \"full_shard offload\", \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": "
         "\"nvme\"}}",
         {"offload_param.device", "nvme"}},
        {TM_EINPUT, "\"precision\": \"fp32\", " TYPES("bf16", "fp32"), {"param_dtype", "precision"}},
        {TM_EINPUT, "\"communication_data_type\": \"fp32\", " TYPES("bf16", "bf16"), {"reduce_dtype"}},
        {TM_EUNSUPPORTED, TYPES("bf16", "fp16"), {"overflows"}},
        {TM_EINPUT, TYPES("fp16", "fp32"), {"loss scale"}},
        {TM_EUNSUPPORTED, "\"fsdp\": \"hybrid_shard_zero2\"", {"HYBRID_SHARD here"}},
        {TM_EINPUT,
         "\"fsdp_config\": {\"min_num_params\": 5, \"transformer_layer_cls_to_wrap\": \"A\"}",
         {"does not match"}},
        {TM_EINPUT, "\"fsdp_config\": {\"min_num_params\": 5, \"auto_wrap_policy\": \"NO_WRAP\"}", {"does not match"}},
        {TM_EINPUT, "\"fsdp_config\": {\"sharding_strategy\": 6}", {"at most 5"}},
        {TM_EINPUT, "\"fsdp_config\": {\"sharding_strateg\": 1}", {"did you mean"}},
        {TM_EUNSUPPORTED, "\"fsdp_config\": {\"xla\": true}", {"no XLA"}},
        {TM_EINPUT,
         "\"memory\": {\"activations\": \"keep\"}, \"fsdp_config\": {\"activation_checkpointing\": true}",
         {"memory.activations"}},
    };
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        char json[1024];
        tm_config *c = NULL;
        snprintf(json, sizeof json, "{%s, %s}", BASE, bad[i].json);
        tm_status rc = test_load(&c, json, NULL, NULL);
        if (rc != bad[i].status) fail_msg("%s: status %d", bad[i].json, rc);
        for (size_t k = 0; k < TM_COUNT(bad[i].says) && bad[i].says[k]; k++)
            if (!strstr(tm_error_get()->text, bad[i].says[k]))
                fail_msg("%s: says %s", bad[i].json, tm_error_get()->text);
        tm_error_clear();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_become_strategies),
        cmocka_unit_test(grain_and_checkpointing),
        cmocka_unit_test(what_contradicts_is_refused),
    };
    return cmocka_run_group_tests_name("config_fsdp", tests, NULL, NULL);
}

/* Keys that are honoured elsewhere, and make no difference in this configuration: each is said once. */
#include "config/config_internal.h"

#include <string.h>

#define ZERO "zero_optimization."

static bool is_true(const cfg_state *s, const char *path) {
    return cfg_given(s, path) && cfg_bool(s, path);
}

/* What is about ranks, on one. Stage and strategy are said by their help: every DeepSpeed file has one. */
static void on_one_rank(const cfg_state *s) {
    static const char *const flags[] = {ZERO "zero_quantized_weights", ZERO "zero_quantized_gradients"};
    static const char one[] = "there is one rank";
    const cfg_value *overlap = cfg_given(s, ZERO "overlap_comm"); /* false changes something, too */
    if (s->cfg->pub.world_size > 1) return;
    for (size_t i = 0; i < TM_COUNT(flags); i++)
        if (is_true(s, flags[i])) cfg_no_effect(s, flags[i], one);
    if (overlap && overlap->node->type == TM_JSON_BOOL) cfg_no_effect(s, ZERO "overlap_comm", one);
    if (cfg_integer(s, ZERO "mics_shard_size") > 0) cfg_no_effect(s, ZERO "mics_shard_size", one);
    if (cfg_integer(s, ZERO "zero_hpz_partition_size") > 1) cfg_no_effect(s, ZERO "zero_hpz_partition_size", one);
    if (cfg_chosen(s, "memory.shared_window", "on")) cfg_no_effect(s, "memory.shared_window", one);
    if (!cfg_chosen(s, "memory.exchange", "auto")) cfg_no_effect(s, "memory.exchange", one);
    if (cfg_chosen(s, "all_reduce", "mpi")) cfg_no_effect(s, "all_reduce", one);
    if (!cfg_chosen(s, "communication_data_type", "fp32")) cfg_no_effect(s, "communication_data_type", one);
}

static void on_ranks(const cfg_state *s) {
    const tm_config *c = &s->cfg->pub;
    if (c->world_size == 1) return;
    if (c->hpz_partition > 1 && c->strategy != TM_STRATEGY_HPZ)
        cfg_no_effect(s, ZERO "zero_hpz_partition_size",
                      c->strategy_given ? "\"strategy\" is another; hpz has a second copy of the weights"
                                        : "only stage 3 divides the weights");
    if (cfg_integer(s, ZERO "mics_shard_size") > 0 && c->zero_stage != 3)
        cfg_no_effect(s, ZERO "mics_shard_size", "only stage 3 divides the weights");
}

void config_warn_effects(cfg_state *s) {
    const tm_config *c = &s->cfg->pub;
    on_one_rank(s);
    on_ranks(s);
    if (c->objective.type == TM_OBJECTIVE_PRETRAIN) {
        static const char goes_on[] = "text that is longer than a row goes on in further ones";
        cfg_no_effect(s, "data.overlong", goes_on);
        cfg_no_effect(s, "data.truncation", goes_on);
    }
    if (!c->data.packing && c->data.packing_strategy)
        cfg_no_effect(s, "data.packing_strategy", "\"data.packing\" is off");
    if (strcmp(c->memory.device, "cpu-arena") != 0)
        cfg_no_effect(s, "memory.device_bandwidth", "only the copies of device cpu-arena can be slowed down");
    if (c->memory.update == TM_UPDATE_U && c->memory.spread)
        cfg_no_effect(s, "memory.spread", "update U is a pass of its own, which nothing is spread over");
}

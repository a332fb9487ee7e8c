/* Where state lives: ZeRO stage, offload blocks, paths, disk requests, and DeepSpeed's tuning numbers. */
#include "config/config_internal.h"

#include <stdio.h>
#include <string.h>

#define ZERO "zero_optimization."

/* Absent block: the planner decides. A block without a device: DeepSpeed's default, none. */
static tm_place place_of(cfg_state *s, const char *block, const char *device, const char *legacy) {
    const cfg_value *old = cfg_given(s, legacy), *now = cfg_given(s, device);
    bool moved = old && old->node->boolean;
    if (moved && now && !cfg_chosen(s, device, "cpu")) cfg_mismatch(s, legacy, old, device, now);
    if (moved) return TM_PLACE_CPU;
    return now || cfg_raw(s, block) ? cfg_place(s, device) : TM_PLACE_AUTO;
}

static tm_status paths_of(cfg_state *s, const char *path, tm_strings *out) {
    TM_TRY(cfg_strings(s, path, out));
    if (out->n) return TM_OK;
    const char *dir = s->cfg->pub.output_dir, **item;
    size_t len = strlen(dir) + sizeof "/offload";
    char *text;
    TM_TRY(cfg_alloc(s->cfg, sizeof *item, (void **)&item));
    TM_TRY(cfg_alloc(s->cfg, len, (void **)&text));
    snprintf(text, len, "%s/offload", dir);
    *item = text;
    *out = (tm_strings){item, 1};
    return TM_OK;
}

static size_t without_slashes(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    return n;
}

static bool same_path(const char *a, const char *b) {
    size_t n = without_slashes(a);
    return n == without_slashes(b) && !strncmp(a, b, n);
}

static void add_paths(const tm_strings *from, unsigned what, const char **item, unsigned *is_for, uint32_t *n) {
    for (uint32_t i = 0; i < from->n; i++) {
        uint32_t at = 0;
        while (at < *n && !same_path(item[at], from->item[i])) at++;
        item[at] = from->item[i];
        is_for[at] |= what;
        *n += at == *n;
    }
}

/* Each block's paths are for its state; those that both name, for both. */
static tm_status unite_paths(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    uint32_t most = c->param_paths.n + c->optimizer_paths.n, n = 0;
    const char **item;
    unsigned *is_for;
    TM_TRY(cfg_alloc(s->cfg, most * sizeof *item, (void **)&item));
    TM_TRY(cfg_alloc(s->cfg, most * sizeof *is_for, (void **)&is_for));
    add_paths(&c->param_paths, TM_PATH_PARAM, item, is_for, &n);
    add_paths(&c->optimizer_paths, TM_PATH_OPTIMIZER, item, is_for, &n);
    c->all_paths = (tm_strings){item, n};
    c->all_for = is_for;
    return TM_OK;
}

/* One path serves both where only one block names it. */
static tm_status resolve_paths(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const char *param = ZERO "offload_param.nvme_path", *optimizer = ZERO "offload_optimizer.nvme_path";
    bool has_param = cfg_given(s, param), has_optimizer = cfg_given(s, optimizer);
    TM_TRY(paths_of(s, has_param || !has_optimizer ? param : optimizer, &c->param_paths));
    TM_TRY(paths_of(s, has_optimizer || !has_param ? optimizer : param, &c->optimizer_paths));
    return unite_paths(s);
}

/* MiCS divides among the ranks of a group and replicates across groups: HSDP, where a group is a node's ranks (which the
 * launcher knows). */
static void resolve_mics(cfg_state *s, const cfg_value *strategy) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *v = cfg_given(s, ZERO "mics_shard_size"), *hpz = cfg_given(s, ZERO "zero_hpz_partition_size");
    if (!v || v->node->integer < 1 || c->zero_stage != 3 || c->world_size == 1) return;
    if (hpz && hpz->node->integer > 1) cfg_mismatch(s, v->spelled, v, hpz->spelled, hpz);
    bool all = v->node->integer >= c->world_size;
    if (strategy && c->strategy != (all ? TM_STRATEGY_ZERO3 : TM_STRATEGY_HSDP))
        cfg_mismatch(s, v->spelled, v, "strategy", strategy);
    c->strategy = all ? TM_STRATEGY_ZERO3 : TM_STRATEGY_HSDP;
    c->mics_shard = all ? 0 : (uint32_t)v->node->integer;
}

static void resolve_stage(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *strategy = cfg_given(s, "strategy"), *stage = cfg_given(s, ZERO "stage");
    c->zero_stage = (uint32_t)cfg_integer(s, ZERO "stage");
    c->strategy = strategy ? strategy_of_word(strategy->node->text) : strategy_of_stage(c->zero_stage);
    TM_ASSERT(c->strategy < TM_STRATEGY_COUNT);
    uint32_t means = tm_strategy_rows[c->strategy].stage;
    if (strategy && stage && means != c->zero_stage) cfg_mismatch(s, "strategy", strategy, ZERO "stage", stage);
    if (!stage) c->zero_stage = means;
    c->strategy_given = strategy != NULL;
    if (!strategy && c->strategy == TM_STRATEGY_ZERO3 && c->hpz_partition > 1) c->strategy = TM_STRATEGY_HPZ;
    resolve_mics(s, strategy);
}

/* What is rounded between ranks; it makes no difference on one. */
static void resolve_rounding(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const char *type = "communication_data_type";
    c->comm_bf16 = cfg_chosen(s, type, "bf16");
    if (cfg_chosen(s, type, "fp16"))
        cfg_unsupported(s, cfg_given(s, type), "\"communication_data_type\" fp16 overflows: bf16 or fp32 here");
}

/* Once the precision is known for good. */
static void check_rounding(cfg_state *s) {
    const char *weights = ZERO "zero_quantized_weights", *gradients = ZERO "zero_quantized_gradients";
    const tm_config *c = &s->cfg->pub;
    tm_dtype precision = c->precision;
    if (c->all_reduce_mpi && (c->strategy != TM_STRATEGY_DDP || c->comm_bf16 || c->quantized_gradients))
        cfg_wrong(s, cfg_given(s, "all_reduce"),
                  "\"all_reduce\" mpi sums whole gradients in fp32: only with strategy ddp");
    if (c->quantized_weights && precision != TM_BF16)
        cfg_wrong(s, cfg_given(s, weights), "\"zero_quantized_weights\" rounds bf16 weights; precision is %s",
                  precision == TM_F32 ? "fp32" : "fp16");
    if (c->quantized_gradients && precision == TM_F16)
        cfg_wrong(s, cfg_given(s, gradients),
                  "\"zero_quantized_gradients\" loses what tells that fp16 overflowed; leave it out, or take bf16");
}

static void resolve_aio(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    c->aio.given = cfg_raw(s, "aio") != NULL;
    const cfg_value *v = cfg_given(s, "aio.block_size");
    if (v && c->aio.block_bytes % 4096) cfg_wrong(s, v, "\"aio.block_size\" must be a multiple of 4096");
}

/* ---- what bounds the planner: only what the file says itself ------------------------------------------------- */

/* `a` x `b` where either is given; the other by DeepSpeed's default. */
static uint64_t product_if_given(const cfg_state *s, const char *a, const char *b) {
    if (!cfg_given(s, a) && !cfg_given(s, b)) return TM_AUTO_ELEMENTS;
    uint64_t x = (uint64_t)cfg_integer(s, a), y = (uint64_t)cfg_integer(s, b);
    return y && x > (TM_AUTO_ELEMENTS - 1) / y ? TM_AUTO_ELEMENTS : x * y;
}

/* DeepSpeed pipelines where `pipeline` or its own half says so. */
static bool no_pipeline(const cfg_state *s, const char *half) {
    const char *both = ZERO "offload_optimizer.pipeline";
    bool given = cfg_given(s, half) || cfg_given(s, both);
    bool on = (cfg_given(s, half) && cfg_bool(s, half)) || (cfg_given(s, both) && cfg_bool(s, both));
    return given && !on;
}

static void resolve_knobs(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    c->zero.sub_group_size = (uint64_t)cfg_integer(s, ZERO "sub_group_size");
    c->zero.max_live_parameters = (uint64_t)cfg_integer(s, ZERO "stage3_max_live_parameters");
    c->knobs.param_buffers = product_if_given(s, ZERO "offload_param.buffer_count", ZERO "offload_param.buffer_size");
    c->knobs.no_pipeline_read = no_pipeline(s, ZERO "offload_optimizer.pipeline_read");
    c->knobs.no_pipeline_write = no_pipeline(s, ZERO "offload_optimizer.pipeline_write");
    char w[256];
    const char *ratio = ZERO "offload_optimizer.ratio";
    bool in_place = !cfg_given(s, "memory.device") || tm_json_is(cfg_given(s, "memory.device")->node, "cpu");
    if (cfg_given(s, ratio) && cfg_number(s, ratio) != 1 && in_place)
        tm_warn_once(ratio, "%s: \"%s\" has no effect here: device cpu updates in host memory whatever the ratio",
                     cfg_where(cfg_given(s, ratio), w, sizeof w), cfg_given(s, ratio)->spelled);
}

tm_status config_resolve_storage(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    resolve_stage(s);
    resolve_rounding(s);
    c->param_place = place_of(s, ZERO "offload_param", ZERO "offload_param.device", ZERO "cpu_offload_param");
    c->optimizer_place = place_of(s, ZERO "offload_optimizer", ZERO "offload_optimizer.device", ZERO "cpu_offload");
    TM_TRY(config_resolve_fsdp(s));
    config_resolve_recompute(s);
    check_rounding(s);
    resolve_aio(s);
    resolve_knobs(s);
    return resolve_paths(s);
}

tm_status tm_config_resolve_model(tm_config *c, uint32_t hidden_size) {
    uint64_t h = hidden_size;
    if (c->zero.reduce_bucket_size == TM_AUTO_ELEMENTS) c->zero.reduce_bucket_size = h * h;
    if (c->zero.prefetch_bucket_size == TM_AUTO_ELEMENTS)
        c->zero.prefetch_bucket_size = h * h / 10 * 9 + h * h % 10 * 9 / 10;
    if (c->zero.param_persistence_threshold == TM_AUTO_ELEMENTS) c->zero.param_persistence_threshold = 10 * h;
    return TM_OK;
}

/* Batch sizes: train_batch_size = micro-batch x accumulation x ranks, from whichever of them are given. */
#include "config/config_internal.h"

#include <stdio.h>

typedef struct batch {
    const cfg_value *total, *micro, *accumulation; /* NULL: not given, or "auto" */
    bool auto_micro;
} batch;

static int64_t integer(const cfg_value *v) {
    return v ? v->node->integer : 0;
}

static void not_whole(cfg_state *s, const batch *b, int64_t by) {
    char w[256];
    cfg_contradiction(s,
                      "train_batch_size %lld (%s) is not a multiple of %lld, the product of the other batch sizes "
                      "and ranks",
                      (long long)integer(b->total), cfg_where(b->total, w, sizeof w), (long long)by);
}

static void wrong_product(cfg_state *s, const batch *b, int64_t micro, int64_t accumulation) {
    char w[256], wm[256], wa[256];
    cfg_contradiction(
        s,
        "train_batch_size %lld (%s) does not match %s %lld (%s) x gradient_accumulation_steps %lld (%s) x %u rank = "
        "%lld",
        (long long)integer(b->total), cfg_where(b->total, w, sizeof w), b->micro->spelled, (long long)micro,
        cfg_where(b->micro, wm, sizeof wm), (long long)accumulation, cfg_where(b->accumulation, wa, sizeof wa),
        s->cfg->pub.world_size, (long long)(micro * accumulation * s->cfg->pub.world_size));
}

/* DeepSpeed's rules: two of the three give the third; the total alone is one micro-batch (or, where the micro-batch is
 * "auto", micro-batches of ours by default). */
static void solve(cfg_state *s, const batch *b, int64_t *micro, int64_t *accumulation) {
    int64_t ranks = s->cfg->pub.world_size, total = integer(b->total);
    *micro = b->micro ? integer(b->micro) : 1;
    *accumulation = b->accumulation ? integer(b->accumulation) : 1;
    if (!b->total) return;
    if (b->micro && b->accumulation) {
        if (total != *micro * *accumulation * ranks) wrong_product(s, b, *micro, *accumulation);
    } else if (b->accumulation || !(b->micro || b->auto_micro)) {
        if (total % (*accumulation * ranks)) not_whole(s, b, *accumulation * ranks);
        *micro = total / (*accumulation * ranks);
    } else {
        if (total % (*micro * ranks)) not_whole(s, b, *micro * ranks);
        *accumulation = total / (*micro * ranks);
    }
}

tm_status config_resolve_batch(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *flat = cfg_given(s, "per_device_train_batch_size");
    const cfg_value *ds = cfg_given(s, "train_micro_batch_size_per_gpu");
    if (flat && ds && integer(flat) != integer(ds))
        cfg_mismatch(s, "per_device_train_batch_size", flat, "train_micro_batch_size_per_gpu", ds);
    batch b = {cfg_given(s, "train_batch_size"), flat ? flat : ds, cfg_given(s, "gradient_accumulation_steps"),
               cfg_is_auto(s, "train_micro_batch_size_per_gpu")};
    int64_t micro, accumulation;
    solve(s, &b, &micro, &accumulation);
    if (micro > 1 << 24 || accumulation > 1 << 24)
        cfg_wrong(s, NULL, "a micro-batch of %lld rows, %lld of them a step: more than 2^24; give smaller batch sizes",
                  (long long)micro, (long long)accumulation);
    c->micro_batch_size = (uint32_t)micro;
    c->accumulation_steps = (uint32_t)accumulation;
    c->train_batch_size = (uint64_t)micro * (uint64_t)accumulation * c->world_size;
    if (!cfg_given(s, "per_device_eval_batch_size")) c->eval_batch_size = c->micro_batch_size;
    c->max_steps = cfg_integer(s, "max_steps") > 0 ? cfg_integer(s, "max_steps") : 0;
    if (!c->max_steps && !(c->num_train_epochs > 0))
        cfg_wrong(s, &s->whole, "nothing to train: give \"max_steps\" or \"num_train_epochs\" over 0");
    return TM_OK;
}

/* What "auto" became. */
#include "config/config_internal.h"

#include <string.h>

tm_status config_note_autos(cfg_state *s) {
    cfg_impl *c = s->cfg;
    TM_TRY(cfg_alloc(c, schema_row_count * sizeof *c->autos, (void **)&c->autos));
    for (size_t i = 0; i < schema_row_count; i++)
        if (s->value[i].node && schema_rows[i].types & T_AUTO &&
            (s->value[i].over_auto || tm_json_is(s->value[i].node, "auto")))
            c->autos[c->n_autos++] = (uint16_t)i;
    return TM_OK;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static const struct number {
    const char *path;
    double (*of)(const tm_config *c);
} * find(const char *path);

#define NUMBER(name, expr)                                                                                             \
    static double name(const tm_config *c) {                                                                           \
        return (double)(expr);                                                                                         \
    }
NUMBER(train_batch, c->train_batch_size)
NUMBER(micro_batch, c->micro_batch_size)
NUMBER(accumulation, c->accumulation_steps)
NUMBER(clipping, c->max_grad_norm)
NUMBER(logging, c->logging_steps)
NUMBER(rate, c->learning_rate)
NUMBER(eps, c->optim.eps)
NUMBER(decay, c->optim.weight_decay)
NUMBER(min_rate, c->schedule.warmup_min_lr)
NUMBER(max_rate, c->schedule.warmup_max_lr)
NUMBER(warmup, c->total_steps > 0 ? c->schedule.warmup_steps : -1) /* the data are not known yet */
NUMBER(total, c->total_steps > 0 ? c->schedule.total_steps : -1)
NUMBER(min_ratio, c->schedule.warmup_min_ratio)
NUMBER(cos_ratio, c->schedule.cos_min_ratio)
NUMBER(scale, c->loss_scale.loss_scale)
NUMBER(power, c->loss_scale.initial_scale_power)
NUMBER(window, c->loss_scale.loss_scale_window)
NUMBER(hysteresis, c->loss_scale.hysteresis)
NUMBER(min_scale, c->loss_scale.min_loss_scale)
NUMBER(bucket, c->zero.reduce_bucket_size)
NUMBER(prefetch, c->zero.prefetch_bucket_size)
NUMBER(persistence, c->zero.param_persistence_threshold)

/* Whatever is not here is the planner's to decide. */
static const struct number *find(const char *path) {
    static const struct number numbers[] = {
        {"train_batch_size", train_batch},
        {"train_micro_batch_size_per_gpu", micro_batch},
        {"gradient_accumulation_steps", accumulation},
        {"gradient_clipping", clipping},
        {"steps_per_print", logging},
        {"optimizer.params.lr", rate},
        {"optimizer.params.eps", eps},
        {"optimizer.params.weight_decay", decay},
        {"scheduler.params.warmup_min_lr", min_rate},
        {"scheduler.params.warmup_max_lr", max_rate},
        {"scheduler.params.warmup_num_steps", warmup},
        {"scheduler.params.total_num_steps", total},
        {"scheduler.params.warmup_min_ratio", min_ratio},
        {"scheduler.params.cos_min_ratio", cos_ratio},
        {"fp16.loss_scale", scale},
        {"fp16.initial_scale_power", power},
        {"fp16.loss_scale_window", window},
        {"fp16.hysteresis", hysteresis},
        {"fp16.min_loss_scale", min_scale},
        {"zero_optimization.reduce_bucket_size", bucket},
        {"zero_optimization.stage3_prefetch_bucket_size", prefetch},
        {"zero_optimization.stage3_param_persistence_threshold", persistence},
    };
    for (size_t i = 0; i < TM_COUNT(numbers); i++)
        if (!strcmp(numbers[i].path, path)) return &numbers[i];
    return NULL;
}

static void value(tm_json_writer *w, const tm_config *c, const char *path) {
    const struct number *n = find(path);
    if (!strcmp(path, "optimizer.params.betas")) {
        tm_jw_array(w);
        tm_jw_double(w, c->optim.beta1);
        tm_jw_double(w, c->optim.beta2);
        tm_jw_array_end(w);
    } else if (!strcmp(path, "bf16.enabled") || !strcmp(path, "bf16")) {
        tm_jw_bool(w, c->precision == TM_BF16);
    } else if (!strcmp(path, "fp16.enabled") || !strcmp(path, "fp16")) {
        tm_jw_bool(w, c->precision == TM_F16);
    } else if (!strcmp(path, "scheduler.params.warmup_type")) {
        tm_jw_str(w, c->schedule.warmup_shape == TM_SHAPE_LINEAR ? "linear" : "log");
    } else if (n && n->of(c) >= 0 && n->of(c) < 1e18) {
        tm_jw_double(w, n->of(c));
    } else {
        tm_jw_null(w);
    }
}

tm_status tm_config_autos(const tm_config *c, tm_buf *out, bool *any) {
    const cfg_impl *impl = (const cfg_impl *)c;
    tm_json_writer w;
    *any = impl->n_autos > 0;
    tm_jw_init(&w, out, 0);
    tm_jw_object(&w);
    for (uint32_t i = 0; i < impl->n_autos; i++) {
        tm_jw_key(&w, schema_rows[impl->autos[i]].path);
        value(&w, c, schema_rows[impl->autos[i]].path);
    }
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

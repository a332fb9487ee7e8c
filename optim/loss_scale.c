/* The loss scale of fp16 training, after DeepSpeed's DynamicLossScaler (optimizer.h: "loss scale of fp16"). */
#include "optim/optim_internal.h"

#include <math.h>

void tm_loss_scale_defaults(tm_loss_scale_opts *opts) {
    *opts = (tm_loss_scale_opts){
        .initial_scale_power = 16, .loss_scale_window = 1000, .hysteresis = 2, .min_loss_scale = 1};
}

const char *tm_loss_scale_check(const tm_loss_scale_opts *o) {
    if (!(o->loss_scale >= 0) || isinf(o->loss_scale)) return "loss_scale must be 0 (dynamic) or a positive number";
    if (o->initial_scale_power < 0 || o->initial_scale_power > 127) return "initial_scale_power must be 0 to 127";
    if (o->loss_scale_window < 1) return "loss_scale_window must be at least 1";
    if (o->hysteresis < 1) return "hysteresis must be at least 1";
    if (!(o->min_loss_scale > 0) || isinf(o->min_loss_scale)) return "min_loss_scale must be a positive number";
    return NULL;
}

void tm_loss_scaler_init(tm_loss_scaler *s, const tm_loss_scale_opts *opts) {
    *s = (tm_loss_scaler){
        .opts = *opts,
        .scale = opts->loss_scale > 0 ? opts->loss_scale : ldexp(1, opts->initial_scale_power),
        .last_overflow = -1,
        .hysteresis = opts->hysteresis,
    };
}

/* An overflow first uses up the hysteresis, down to 1; from then on each halves the scale. */
static bool shrink(tm_loss_scaler *s) {
    if (s->hysteresis > 1) {
        s->hysteresis--;
    } else {
        if (s->scale == s->opts.min_loss_scale) return false;
        s->scale = fmax(s->scale / 2, s->opts.min_loss_scale);
    }
    s->last_overflow = s->iteration;
    return true;
}

/* The scale doubles where the steps since the last overflow, less one, are a positive multiple of the window: since the
 * overflow counts from iteration -1 at the start, the first growth comes one step later than the window says. */
static void grow(tm_loss_scaler *s) {
    if (s->opts.consecutive_hysteresis) s->hysteresis = s->opts.hysteresis;
    int64_t stable = s->iteration - s->last_overflow - 1;
    if (stable <= 0 || stable % s->opts.loss_scale_window != 0) return;
    s->hysteresis = s->opts.hysteresis;
    s->scale *= 2;
}

bool tm_loss_scaler_update(tm_loss_scaler *s, bool overflow) {
    if (s->opts.loss_scale > 0) {
        /* constant: overflows are skipped and counted, and that is all */
    } else if (!overflow) {
        grow(s);
    } else if (!shrink(s)) {
        return false;
    }
    s->skipped += overflow;
    s->iteration++;
    return true;
}

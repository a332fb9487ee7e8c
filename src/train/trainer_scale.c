/* The loss scale of fp16 (optim/README.md, "fp16"): state of a run beside its step. The plan has no part in it: a step
 * multiplies its loss by the scale that the steps before it left. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <math.h>

static bool scales(const trainer *t) {
    return t->s.cfg->precision == TM_F16;
}

void trainer_open_scale(trainer *t) {
    if (scales(t)) tm_loss_scaler_init(&t->scaler, &t->s.cfg->loss_scale);
}

static void field(tm_json_writer *w, const char *key, int64_t v) {
    tm_jw_field_int(w, key, v);
}

void trainer_describe_scale(const trainer *t, tm_json_writer *w) {
    const tm_loss_scaler *s = &t->scaler;
    if (!scales(t)) return;
    tm_jw_field_object(w, "loss_scaler");
    tm_jw_field_double(w, "scale", s->scale);
    field(w, "iteration", s->iteration);
    field(w, "last_overflow", s->last_overflow);
    field(w, "skipped", s->skipped);
    field(w, "hysteresis", s->hysteresis);
    tm_jw_object_end(w);
}

static bool take(const tm_json *scaler, const char *key, int64_t least, int64_t most, int64_t *out) {
    const tm_json *n = tm_json_get(scaler, key);
    if (!n || !n->is_integer || n->integer < least || n->integer > most) return false;
    *out = n->integer;
    return true;
}

/* The options are the configuration's, which is compared elsewhere. */
tm_status trainer_read_scale(trainer *t, const tm_json *info) {
    const tm_json *from = tm_json_get(info, "loss_scaler"), *scale = tm_json_get(from, "scale");
    tm_loss_scaler *s = &t->scaler;
    int64_t hysteresis;
    if (!scales(t)) return TM_OK;
    if (!scale || scale->type != TM_JSON_NUMBER || !(scale->number > 0) || !isfinite(scale->number) ||
        !take(from, "iteration", 0, INT64_MAX, &s->iteration) ||
        !take(from, "last_overflow", -1, s->iteration, &s->last_overflow) ||
        !take(from, "skipped", 0, s->iteration, &s->skipped) || !take(from, "hysteresis", 1, INT32_MAX, &hysteresis))
        return tm_fail(TM_ECORRUPT, "the commit's loss scale is not whole");
    s->scale = scale->number;
    s->hysteresis = (int32_t)hysteresis;
    return TM_OK;
}

/* As in transformers and DeepSpeed, whose schedules stand still in a step that overflowed. */
int64_t trainer_schedule_step(const trainer *t) {
    return scales(t) ? t->applied : t->step;
}

bool trainer_scale_step(trainer *t, double scale) {
    if (!scales(t)) return true;
    bool overflow = !t->job->step.result.finite, goes_on = tm_loss_scaler_update(&t->scaler, overflow);
    if (!goes_on) t->scaler.skipped++, t->scaler.iteration++; /* DeepSpeed's is left as it was; the step was skipped */
    if (overflow)
        tm_log(TM_LOG_WARN, "step %" PRId64 ": overflow at loss scale %.15g: the update was skipped%s", t->step, scale,
               !goes_on                  ? "; there is no lower scale (fp16.min_loss_scale)"
               : t->scaler.scale < scale ? " and the scale lowered"
                                         : "");
    return goes_on;
}

void trainer_log_scale(const trainer *t, tm_json_writer *w, double scale) {
    if (!scales(t)) return;
    tm_jw_field_double(w, "loss_scale", scale);
    tm_jw_field_uint(w, "skipped_steps", (uint64_t)t->scaler.skipped);
}

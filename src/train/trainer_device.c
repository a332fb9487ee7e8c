/* The algorithms that the device chose, which bits depend on: into a commit and from it. */
#include "train/trainer_internal.h"

tm_status trainer_describe_choices(const trainer *t, tm_json_writer *w) {
    tm_device_traits traits;
    if (!t->job->tiers.device || !job_device_apart(t->s.cfg->memory.device, &traits)) return TM_OK;
    char *text = tm_malloc(TM_DEVICE_CHOICES_BYTES);
    if (!text) return tm_nomem(TM_DEVICE_CHOICES_BYTES);
    tm_status rc = tm_device_choices(t->job->tiers.device, text, TM_DEVICE_CHOICES_BYTES);
    if (rc == TM_OK) tm_jw_field_str(w, "device_choices", text);
    tm_free(text);
    return rc;
}

tm_status trainer_take_choices(trainer *t) {
    const tm_json *v = t->from.commit ? tm_json_get(tm_commit_info(t->from.commit), "device_choices") : NULL;
    if (!t->job->tiers.device || !v || v->type != TM_JSON_STRING) return TM_OK;
    tm_status rc = tm_device_take_choices(t->job->tiers.device, v->text);
    if (rc != TM_EINPUT) return rc;
    tm_error why = *tm_error_get();
    tm_error_clear();
    if (!t->s.args->allow_numerics_change)
        return tm_fail(rc, "%s; --allow-numerics-change goes on with others, which round otherwise", why.text);
    tm_log(TM_LOG_WARN, "%s; others are chosen: other bits", why.text);
    return TM_OK;
}

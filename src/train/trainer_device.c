/* The device that computes, as training sees it: whether it is there, how much of its memory is asked for where the
 * configuration leaves that open, what its results' bits depend on, and the algorithms that it chose. A device of the
 * host's own processors needs none of this. */
#include "train/trainer_internal.h"

/* ---- found ----------------------------------------------------------------------------------------------------- */

static tm_status take_room(trainer *t) {
    if (t->comm)
        return tm_fail(
            TM_EINPUT,
            "memory.device \"%s\": with several ranks memory.device_budget has to say how much of its memory "
            "each may take",
            t->cfg->memory.device);
    tm_status rc = job_device_room(t->cfg->memory.device, &t->device_bytes);
    return rc == TM_OK ? rc : job_device_fail(t->cfg->memory.device, "");
}

tm_status trainer_find_device(trainer *t, bool planning) {
    const char *device = t->cfg->memory.device;
    tm_device_traits traits;
    tm_device_info info;
    bool unlimited = t->cfg->memory.device_bytes == TM_DEVICE_UNLIMITED;
    if (!job_device_apart(device, &traits)) return TM_OK;
    if (tm_device_look_for(device, &info) == TM_OK) {
        if (!planning && trainer_speaks(t)) job_device_warn(device);
        return unlimited ? take_room(t) : TM_OK;
    }
    if (!planning || unlimited)
        return job_device_fail(device, planning ? "; give memory.device_budget to plan for one that is elsewhere" : "");
    tm_log(TM_LOG_WARN, "device \"%s\" is planned for, and not here: %s", device, tm_error_get()->text);
    tm_error_clear();
    return TM_OK;
}

/* ---- what bits depend on --------------------------------------------------------------------------------------- */

tm_status trainer_describe_device(const trainer *t, tm_buf *out) {
    char text[192];
    TM_TRY(tm_device_describe(t->cfg->memory.device, text, sizeof text));
    return *text ? tm_buf_printf(out, ", on %s", text) : TM_OK;
}

tm_status trainer_describe_choices(const trainer *t, tm_json_writer *w) {
    tm_device_traits traits;
    if (!t->job->device || !job_device_apart(t->cfg->memory.device, &traits)) return TM_OK;
    char *text = tm_malloc(TM_DEVICE_CHOICES_BYTES);
    if (!text) return tm_nomem(TM_DEVICE_CHOICES_BYTES);
    tm_status rc = tm_device_choices(t->job->device, text, TM_DEVICE_CHOICES_BYTES);
    if (rc == TM_OK) tm_jw_field_str(w, "device_choices", text);
    tm_free(text);
    return rc;
}

tm_status trainer_take_choices(trainer *t) {
    const tm_json *v = t->commit ? tm_json_get(tm_commit_info(t->commit), "device_choices") : NULL;
    if (!t->job->device || !v || v->type != TM_JSON_STRING) return TM_OK;
    tm_status rc = tm_device_take_choices(t->job->device, v->text);
    if (rc != TM_EINPUT) return rc;
    tm_error why = *tm_error_get();
    tm_error_clear();
    if (!t->args->allow_numerics_change)
        return tm_fail(rc, "%s; --allow-numerics-change goes on with others, which round otherwise", why.text);
    tm_log(TM_LOG_WARN, "%s; others are chosen: other bits", why.text);
    return TM_OK;
}

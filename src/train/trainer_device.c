/* The device that computes, as training sees it: whether it is there, how much of its memory is asked for where the
 * configuration leaves that open, what its results' bits depend on, and the algorithms that it chose. A device of the
 * host's own processors needs none of this. */
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

/* Of a device's memory, where nothing says how much may be taken: for a display, or a neighbour that grows. */
enum { RESERVE_MIB = 256 };

static bool is_elsewhere(const trainer *t, tm_device_traits *traits) {
    return tm_device_known(t->cfg->memory.device, traits) == TM_OK && traits->own_processors;
}

/* ---- found ----------------------------------------------------------------------------------------------------- */

/* What is free, less what the driver and libraries will take and the reserve. */
static tm_status take_what_is_free(trainer *t, const tm_device_traits *traits, const tm_device_info *info) {
    uint64_t besides = traits->fixed_bytes + RESERVE_MIB * TM_MIB, bytes = info->free_bytes;
    char a[32], b[32], c[32];
    if (t->comm)
        return tm_fail(
            TM_EINPUT,
            "memory.device \"%s\": with several ranks memory.device_budget has to say how much of its memory "
            "each may take",
            t->cfg->memory.device);
    bytes -= tm_min_u64(bytes, besides);
    t->device_bytes = bytes / traits->alignment * traits->alignment;
    if (t->device_bytes > 0) return TM_OK;
    return tm_fail(TM_EBUDGET,
                   "memory.device \"%s\": %s of its %s are free, and driver and libraries take up to %s; end what else "
                   "runs there, or use \"cpu\"",
                   t->cfg->memory.device, tm_format_size(info->free_bytes, a, sizeof a),
                   tm_format_size(info->memory_bytes, b, sizeof b), tm_format_size(besides, c, sizeof c));
}

/* A plan can do without the device where nothing is asked of it. */
static tm_status not_here(const trainer *t, bool planning, bool unlimited) {
    tm_error why = *tm_error_get();
    tm_error_clear();
    if (planning && !unlimited) {
        tm_log(TM_LOG_WARN, "memory.device \"%s\" is planned for, and not here: %s", t->cfg->memory.device, why.text);
        return TM_OK;
    }
    return tm_fail(why.code, "memory.device \"%s\": %s%s", t->cfg->memory.device, why.text,
                   planning ? "; give memory.device_budget to plan for one that is elsewhere" : "");
}

tm_status trainer_find_device(trainer *t, bool planning) {
    tm_device_traits traits;
    tm_device_info info;
    bool unlimited = t->cfg->memory.device_bytes == TM_DEVICE_UNLIMITED;
    if (!is_elsewhere(t, &traits)) return TM_OK;
    if (tm_device_look_for(t->cfg->memory.device, &info) != TM_OK) return not_here(t, planning, unlimited);
    if (traits.untested && !planning && trainer_speaks(t))
        tm_log(TM_LOG_WARN,
               "memory.device \"%s\" is untested: this version was never run on a device of its kind; compare the "
               "first steps' losses with memory.device \"cpu\"",
               t->cfg->memory.device);
    return unlimited ? take_what_is_free(t, &traits, &info) : TM_OK;
}

/* ---- what bits depend on --------------------------------------------------------------------------------------- */

tm_status trainer_describe_device(const trainer *t, tm_buf *out) {
    char text[192];
    TM_TRY(tm_device_describe(t->cfg->memory.device, text, sizeof text));
    return *text ? tm_buf_printf(out, ", on %s", text) : TM_OK;
}

tm_status trainer_describe_choices(const trainer *t, tm_json_writer *w) {
    tm_device_traits traits;
    if (!t->job->device || !is_elsewhere(t, &traits)) return TM_OK;
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

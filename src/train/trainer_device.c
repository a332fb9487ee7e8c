/* The device that computes, as training sees it: whether it is there, how much of its memory is asked for where the
 * configuration leaves that open, what its results' bits depend on, and the algorithms that it chose. A device of the
 * host's own processors needs none of this. */
#include "comm/comm.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- found ----------------------------------------------------------------------------------------------------- */

const char *trainer_device(const trainer *t) {
    return *t->device ? t->device : t->cfg->memory.device;
}

/* A kind without a number: each rank of a node has the device of its place there. With a number all of a node open the
 * one that has it, as each of them sees the node's devices (a launcher may show each its own as the first). */
static tm_status place_rank(trainer *t) {
    const char *kind = t->cfg->memory.device;
    char host[32] = "", *pid;
    unsigned n;
    if (!t->comm || strchr(kind, ':')) return TM_OK;
    uint32_t ranks = tm_comm_node_size(t->comm);
    TM_TRY(tm_device_count(kind, &n));
    snprintf(t->device, sizeof t->device, "%s:%u", kind, tm_comm_node_rank(t->comm));
    if (ranks <= n) return TM_OK;
    if (t->imagined) {
        tm_log(TM_LOG_WARN, "device \"%s\" is planned for %u ranks a node, and %u of its kind %s here", kind, ranks, n,
               n == 1 ? "is" : "are");
        return TM_OK;
    }
    snprintf(host, sizeof host, "%s", tm_comm_host(t->comm, t->ranks.rank));
    if ((pid = strchr(host, ','))) *pid = 0;
    return tm_fail(TM_EINPUT,
                   "memory.device \"%s\": %u ranks on %s, which shows them %u of the kind: start at most %u there; or "
                   "name one for all of a node, as \"%s:0\", with what each may take of it in memory.device_budget",
                   kind, ranks, host, n, n, kind);
}

static tm_status take_room(trainer *t) {
    bool shared = t->comm && !*t->device && tm_comm_node_size(t->comm) > 1;
    if (shared)
        return tm_fail(
            TM_EINPUT,
            "memory.device \"%s\": with several ranks on a node memory.device_budget has to say how much of its memory "
            "each may take; \"%.*s\" without a number gives each a device of its own",
            t->cfg->memory.device, (int)strcspn(t->cfg->memory.device, ":"), t->cfg->memory.device);
    tm_status rc = job_device_room(trainer_device(t), &t->device_bytes);
    return rc == TM_OK ? rc : job_device_fail(trainer_device(t), "");
}

tm_status trainer_find_device(trainer *t, bool planning) {
    tm_device_traits traits;
    tm_device_info info;
    bool unlimited = t->cfg->memory.device_bytes == TM_DEVICE_UNLIMITED;
    if (!job_device_apart(t->cfg->memory.device, &traits)) return TM_OK;
    tm_status rc = place_rank(t);
    if (rc == TM_EINPUT) return rc;
    const char *device = trainer_device(t);
    if (rc == TM_OK && tm_device_look_for(device, &info) == TM_OK) {
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
    TM_TRY(tm_device_describe(trainer_device(t), text, sizeof text));
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

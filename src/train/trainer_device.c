/* The device that computes, as training sees it: whether it is there, how much of its memory is asked for where the
 * configuration leaves that open, what its results' bits depend on, and the algorithms that it chose. A device of the
 * host's own processors needs none of this. */
#include "comm/comm.h"
#include "train/trainer.h"

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
    uint8_t id[TM_DEVICE_ID_BYTES]; /* whoever can make one may need room for it */
    bool peers = *t->device && t->cfg->memory.exchange >= 0 && tm_device_peers_id(t->device, id) == TM_OK;
    tm_error_clear();
    tm_status rc = job_device_room(trainer_device(t), peers, &t->device_bytes);
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
        if (unlimited) return take_room(t);
        return job_device_holds(device, t->cfg->memory.device_bytes) == TM_OK ? TM_OK : job_device_fail(device, "");
    }
    if (!planning || unlimited)
        return job_device_fail(device, planning ? "; give memory.device_budget to plan for one that is elsewhere" : "");
    tm_log(TM_LOG_WARN, "device \"%s\" is planned for, and not here: %s", device, tm_error_get()->text);
    tm_error_clear();
    return TM_OK;
}

/* ---- exchanges between devices --------------------------------------------------------------------------------- */

/* NULL: nothing is in the way, as far as configuration and ranks go. */
static const char *no_exchange(const trainer *t) {
    const job_ranks *r = &t->ranks;
    if (!t->comm) return "one rank has nobody to exchange with";
    if (!*t->device) return "memory.device has to be \"cuda\", without a number: a device of its own for each rank";
    if (tm_comm_nodes(t->comm) > 1) return "ranks of several nodes exchange through host memory";
    if (r->gather_wire != TM_COMM_EXACT || r->reduce_wire != TM_COMM_EXACT || r->mpi_sums)
        return "what is rounded on its way, or summed by MPI, goes through host memory";
    return r->across || r->second.count > 0 ? "hsdp and hpz exchange through host memory" : NULL;
}

/* The first rank's id, if all ranks could make one: made everywhere, since the library has to be everywhere. */
static tm_status share_id(trainer *t, bool *all) {
    enum { WORDS = TM_DEVICE_ID_BYTES / sizeof(uint64_t) };
    uint64_t word[WORDS + 1] = {0};
    tm_status rc = tm_device_peers_id(t->device, t->peers.id);
    word[WORDS] = rc != TM_OK;
    if (rc == TM_OK && t->ranks.rank == 0) memcpy(word, t->peers.id, sizeof t->peers.id);
    tm_error why = *tm_error_get();
    tm_error_clear();
    TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_MAX, word, WORDS + 1));
    memcpy(t->peers.id, word, sizeof t->peers.id);
    *all = word[WORDS] == 0;
    tm_error_set(&why);
    return TM_OK;
}

tm_status trainer_find_peers(trainer *t) {
    const char *not = no_exchange(t);
    bool must = t->cfg->memory.exchange > 0, all = false;
    t->ranks.peers = NULL;
    if (t->cfg->memory.exchange < 0 || t->imagined) return TM_OK;
    if (not ) return must ? tm_fail(TM_EINPUT, "memory.exchange device: %s; use auto", not ) : TM_OK;
    TM_TRY(share_id(t, &all));
    tm_error why = *tm_error_get();
    tm_error_clear();
    t->peers.n = t->ranks.ranks;
    t->peers.me = t->ranks.rank;
    if (all) {
        t->ranks.peers = &t->peers;
        return TM_OK;
    }
    const char *reason = why.code ? why.text : "another rank has no way to the others' devices";
    if (must) return tm_fail(TM_EUNSUPPORTED, "memory.exchange device: %s; use auto", reason);
    if (why.code) tm_log(TM_LOG_INFO, "%s: ranks exchange through host memory", reason);
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

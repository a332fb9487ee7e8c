/* The device that computes, as a session sees it: whether it is there, how much of its memory is asked for where the
 * configuration leaves that open, whether ranks exchange from device to device, and what its results' bits depend on. A
 * device of the host's own processors needs none of this. */
#include "session/session.h"

#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

const char *session_device(const session *s) {
    return *s->device ? s->device : s->cfg->memory.device;
}

/* A kind without a number: each rank of a node has the device of its place there. With a number all of a node open the
 * one that has it, as each of them sees the node's devices (a launcher may show each its own as the first). */
static tm_status place_rank(session *s) {
    const char *kind = s->cfg->memory.device;
    char host[32] = "", *pid;
    unsigned n;
    if (!s->comm || strchr(kind, ':')) return TM_OK;
    uint32_t ranks = tm_comm_node_size(s->comm);
    TM_TRY(tm_device_count(kind, &n));
    snprintf(s->device, sizeof s->device, "%s:%u", kind, tm_comm_node_rank(s->comm));
    if (ranks <= n) return TM_OK;
    if (s->imagined) {
        tm_log(TM_LOG_WARN, "device \"%s\" is planned for %u ranks a node, and %u of its kind %s here", kind, ranks, n,
               n == 1 ? "is" : "are");
        return TM_OK;
    }
    snprintf(host, sizeof host, "%s", tm_comm_host(s->comm, s->ranks.rank));
    if ((pid = strchr(host, ','))) *pid = 0;
    return tm_fail(TM_EINPUT,
                   "memory.device \"%s\": %u ranks on %s, which shows them %u of the kind: start at most %u there; or "
                   "name one for all of a node, as \"%s:0\", with what each may take of it in memory.device_budget",
                   kind, ranks, host, n, n, kind);
}

static tm_status take_room(session *s) {
    bool shared = s->comm && !*s->device && tm_comm_node_size(s->comm) > 1;
    if (shared)
        return tm_fail(
            TM_EINPUT,
            "memory.device \"%s\": with several ranks on a node memory.device_budget has to say how much of its memory "
            "each may take; \"%.*s\" without a number gives each a device of its own",
            s->cfg->memory.device, (int)strcspn(s->cfg->memory.device, ":"), s->cfg->memory.device);
    uint8_t id[TM_DEVICE_ID_BYTES]; /* whoever can make one may need room for it */
    bool peers = *s->device && s->cfg->memory.exchange >= 0 && tm_device_peers_id(s->device, id) == TM_OK;
    tm_error_clear();
    tm_status rc = job_device_room(session_device(s), peers, &s->device_bytes);
    return rc == TM_OK ? rc : job_device_fail(session_device(s), "");
}

tm_status session_find_device(session *s, bool planning) {
    tm_device_traits traits;
    tm_device_info info;
    bool unlimited = s->cfg->memory.device_bytes == TM_DEVICE_UNLIMITED;
    if (!job_device_apart(s->cfg->memory.device, &traits)) return TM_OK;
    tm_status rc = place_rank(s);
    if (rc == TM_EINPUT) return rc;
    const char *device = session_device(s);
    if (rc == TM_OK && tm_device_look_for(device, &info) == TM_OK) {
        if (!planning && session_is_rank0(s)) job_device_warn(device);
        if (unlimited) return take_room(s);
        return job_device_fits(device, s->cfg->memory.device_bytes) == TM_OK ? TM_OK : job_device_fail(device, "");
    }
    if (!planning || unlimited)
        return job_device_fail(device, planning ? "; give memory.device_budget to plan for one that is elsewhere" : "");
    tm_log(TM_LOG_WARN, "device \"%s\" is planned for, and not here: %s", device, tm_error_get()->text);
    tm_error_clear();
    return TM_OK;
}

void session_imagine_device(session *s, const char *kind, uint64_t arena_bytes) {
    s->cfg->memory.device = kind;
    s->cfg->memory.device_bytes = arena_bytes;
    s->imagined_device = true;
    if (s->comm) snprintf(s->device, sizeof s->device, "%s:%u", kind, tm_comm_node_rank(s->comm));
}

/* NULL: nothing is in the way, as far as configuration and ranks go. */
static const char *no_exchange(const session *s) {
    const job_ranks *r = &s->ranks;
    if (!s->comm) return "one rank has nobody to exchange with";
    if (!*s->device) return "memory.device has to be \"cuda\", without a number: a device of its own for each rank";
    if (tm_comm_nodes(s->comm) > 1) return "ranks of several nodes exchange through host memory";
    if (r->gather_wire != TM_COMM_EXACT || r->reduce_wire != TM_COMM_EXACT || r->mpi_sums)
        return "what is rounded on its way, or summed by MPI, goes through host memory";
    return r->across || r->second.count > 0 ? "hsdp and hpz exchange through host memory" : NULL;
}

/* The first rank's id, if all ranks could make one: made everywhere, since the library has to be everywhere. */
static tm_status share_id(session *s, bool *all) {
    enum { WORDS = TM_DEVICE_ID_BYTES / sizeof(uint64_t) };
    uint64_t word[WORDS + 1] = {0};
    tm_status rc = tm_device_peers_id(s->device, s->peers.id);
    word[WORDS] = rc != TM_OK;
    if (rc == TM_OK && s->ranks.rank == 0) memcpy(word, s->peers.id, sizeof s->peers.id);
    tm_error why = *tm_error_get();
    tm_error_clear();
    TM_TRY(tm_comm_all_reduce_u64(s->comm, TM_COMM_WORLD, TM_COMM_MAX, word, WORDS + 1));
    memcpy(s->peers.id, word, sizeof s->peers.id);
    *all = word[WORDS] == 0;
    tm_error_set(&why);
    return TM_OK;
}

tm_status session_find_peers(session *s) {
    const char *not = no_exchange(s);
    bool must = s->cfg->memory.exchange > 0, all = false;
    s->ranks.peers = NULL;
    if (s->cfg->memory.exchange < 0 || (s->imagined && !s->imagined_device)) return TM_OK;
    if (not ) return must ? tm_fail(TM_EINPUT, "memory.exchange device: %s; use auto", not ) : TM_OK;
    all = s->imagined;
    if (!all) TM_TRY(share_id(s, &all));
    tm_error why = *tm_error_get();
    tm_error_clear();
    s->peers.n = s->ranks.ranks;
    s->peers.me = s->ranks.rank;
    if (all) {
        s->ranks.peers = &s->peers;
        return TM_OK;
    }
    const char *reason = why.code ? why.text : "another rank has no way to the others' devices";
    if (must) return tm_fail(TM_EUNSUPPORTED, "memory.exchange device: %s; use auto", reason);
    if (why.code) tm_log(TM_LOG_INFO, "%s: ranks exchange through host memory", reason);
    return TM_OK;
}

/* ---- what bits depend on --------------------------------------------------------------------------------------- */

tm_status session_describe_device(const session *s, tm_buf *out) {
    char text[192];
    TM_TRY(tm_device_describe(session_device(s), text, sizeof text));
    return *text ? tm_buf_printf(out, ", on %s", text) : TM_OK;
}

/* What a commit names, brought to the disk and fetched from it again. */
#include "offload/store/store_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = 16 };

/* ---- resident objects to and from their extents ---------------------------------------------------------------- */

typedef struct carry {
    tm_store *s;
    char *slab;
    bool read;
    unsigned in_flight;
    tm_io_req req[IN_FLIGHT];
    uint32_t object[IN_FLIGHT];
    bool busy[IN_FLIGHT];
    uint64_t bytes;
} carry;

static char *frame_of(const carry *c, uint32_t object) {
    TM_ASSERT(c->s->layout->object[object].resident);
    return c->slab + c->s->layout->object[object].address;
}

static tm_status settle_one(carry *c, const tm_io_req *r) {
    unsigned i = (unsigned)(r - c->req);
    TM_ASSERT(i < IN_FLIGHT && c->busy[i] && c->in_flight > 0);
    store_target t = {.object = c->object[i]};
    c->busy[i] = false;
    c->in_flight--;
    c->bytes += r->done;
    if (r->status != TM_OK) return tm_io_req_fail(r);
    if (!c->read || r->op != TM_IO_READ) return TM_OK;
    return store_check_read(c->s, &t, frame_of(c, t.object), r);
}

/* Until at most `most` are under way. All of them are waited for, whatever happens to one. */
static tm_status drain_requests(carry *c, unsigned most) {
    tm_status rc = TM_OK;
    while (c->in_flight > most) {
        tm_io_req *done[IN_FLIGHT];
        unsigned n = 0;
        tm_status lost = tm_io_wait(c->s->io, done, IN_FLIGHT, &n, true);
        if (lost != TM_OK) return tm_first(rc, lost); /* the engine is gone */
        for (unsigned i = 0; i < n; i++) rc = tm_first(rc, settle_one(c, done[i]));
        if (rc != TM_OK) most = 0;
    }
    return rc;
}

static unsigned free_one(const carry *c) {
    unsigned i = 0;
    TM_ASSERT(c->in_flight < IN_FLIGHT);
    while (c->busy[i]) i++;
    return i;
}

static tm_status start_request(carry *c, unsigned i) {
    TM_ASSERT(i < IN_FLIGHT && !c->busy[i]);
    tm_io_req *one[] = {&c->req[i]};
    TM_TRY(tm_io_submit(c->s->io, one, 1));
    c->busy[i] = true;
    c->in_flight++;
    return TM_OK;
}

static tm_status carry_object(carry *c, uint32_t object) {
    TM_ASSERT(object < c->s->layout->n);
    store_target t = {.object = object};
    TM_TRY(drain_requests(c, IN_FLIGHT - 1));
    unsigned i = free_one(c);
    c->req[i] = (tm_io_req){0};
    c->object[i] = object;
    if (c->read)
        TM_TRY(store_prepare_read(c->s, &t, frame_of(c, object), &c->req[i]));
    else
        store_prepare_write(c->s, &t, frame_of(c, object), &c->req[i]);
    return start_request(c, i);
}

/* Those that have an extent, or those that are frozen. What a device holds is tm_program_device_resident's. */
static tm_status carry_resident(tm_store *s, char *slab, bool read, bool frozen, uint64_t *bytes) {
    carry c = {.s = s, .slab = slab, .read = read};
    tm_status rc = TM_OK;
    for (uint32_t i = 0; i < s->layout->n && rc == TM_OK; i++) {
        const tm_object *o = &s->layout->object[i];
        bool meant = frozen ? layout_home(s->layout, i) != NULL : has_extent(o, s->commits);
        if (!o->resident || o->address >= TM_DEVICE_BASE || !meant) continue;
        if (!read && store_unchanged(s, i, frame_of(&c, i))) continue;
        if (read && (rc = tm_stop_check()) != TM_OK) break;
        store_kill_point(read ? "kill_restore" : "kill_write_back");
        rc = carry_object(&c, i);
    }
    rc = tm_first(rc, drain_requests(&c, 0));
    *bytes = c.bytes;
    return rc;
}

tm_status tm_store_restore(tm_store *s, char *slab) {
    uint64_t bytes;
    return carry_resident(s, slab, true, false, &bytes);
}

tm_status tm_store_load_frozen(tm_store *s, char *slab) {
    uint64_t bytes;
    return carry_resident(s, slab, true, true, &bytes);
}

static tm_status sync_files(tm_store *s) {
    carry c = {.s = s};
    tm_status rc = TM_OK;
    for (unsigned path = 0; path < s->n_paths && rc == TM_OK; path++) {
        for (tm_kind kind = 0; kind < TM_KINDS && rc == TM_OK; kind++) {
            if (!tm_kind_get(kind)->committed || !s->file[path][kind].name) continue;
            if ((rc = drain_requests(&c, IN_FLIGHT - 1)) != TM_OK) break;
            unsigned i = free_one(&c);
            c.req[i] = (tm_io_req){.op = TM_IO_SYNC, .file = s->file[path][kind]};
            rc = start_request(&c, i);
        }
    }
    return tm_first(rc, drain_requests(&c, 0));
}

tm_status store_name_owner(tm_io_run *run, const tm_io_run *first) {
    TM_ASSERT(run != first);
    char full[PATH_MAX];
    tm_io_atomic *d;
    const char *path = tm_io_run_path(first);
    if (realpath(path, full)) path = full;
    TM_TRY(tm_io_atomic_create(&d, run, PART_OF_NAME));
    tm_status rc = tm_io_atomic_append(d, path, strlen(path));
    if (rc == TM_OK) rc = tm_io_atomic_append(d, "\n", 1);
    if (rc == TM_OK) rc = tm_io_atomic_sync(d);
    if (rc == TM_OK) return tm_io_atomic_publish(d);
    tm_io_atomic_abandon(d);
    return rc;
}

static tm_status sync_directories(tm_store *s) {
    if (s->synced) return TM_OK;
    for (unsigned i = 1; i < s->n_paths; i++) TM_TRY(store_name_owner(s->run[i], s->run[0]));
    for (unsigned i = 0; i < s->n_paths; i++) TM_TRY(tm_io_run_sync(s->run[i]));
    s->synced = true;
    return TM_OK;
}

void tm_store_commit_abandon(tm_store *s) {
    tm_io_atomic_abandon(s->manifest);
    s->manifest = NULL;
}

static tm_status prepare_commit(tm_store *s, char *slab, const tm_commit_opts *opts, tm_commit_stats *stats) {
    TM_ASSERT(!s->manifest && s->n_paths > 0);
    uint64_t manifest_bytes;
    TM_TRY(carry_resident(s, slab, false, false, &stats->write_bytes));
    store_kill_point("kill_before_sync");
    TM_TRY(sync_files(s));
    TM_TRY(sync_directories(s));
    store_kill_point("kill_before_manifest");
    TM_TRY(tm_io_atomic_create(&s->manifest, s->run[0], MANIFEST_NAME));
    TM_TRY(manifest_write(s, s->manifest, opts, &manifest_bytes));
    store_kill_point("kill_in_manifest");
    TM_TRY(tm_io_atomic_sync(s->manifest));
    stats->write_bytes += manifest_bytes;
    return TM_OK;
}

tm_status tm_store_commit_prepare(tm_store *s, char *slab, const tm_commit_opts *opts, tm_commit_stats *stats) {
    uint64_t t0 = tm_now_ns();
    if (s->failed) return tm_fail(TM_EIO, "a commit failed before; no other is tried in this run");
    TM_ASSERT(s->commits && s->slots == 2);
    tm_store_commit_abandon(s);
    *stats = (tm_commit_stats){0};
    tm_status rc = prepare_commit(s, slab, opts, stats);
    s->failed = rc != TM_OK;
    if (s->failed) tm_store_commit_abandon(s);
    stats->ns = tm_now_ns() - t0;
    return rc;
}

/* A publish that fails leaves one of two: this commit or the one before. No slot of either has been written since. */
tm_status tm_store_commit_publish(tm_store *s, tm_commit_stats *stats) {
    uint64_t t0 = tm_now_ns();
    tm_io_atomic *d = s->manifest;
    TM_ASSERT(d && !s->failed);
    s->manifest = NULL;
    store_kill_point("kill_before_rename");
    s->failed = true;
    TM_TRY(tm_io_atomic_publish(d));
    s->failed = false;
    store_kill_point("kill_after_rename");
    for (unsigned i = 0; i < s->n_paths; i++) tm_io_run_keep(s->run[i]);
    tm_store_mark_committed(s);
    stats->ns += tm_now_ns() - t0;
    return TM_OK;
}

tm_status tm_store_commit(tm_store *s, char *slab, const tm_commit_opts *opts, tm_commit_stats *stats) {
    TM_TRY(tm_store_commit_prepare(s, slab, opts, stats));
    return tm_store_commit_publish(s, stats);
}

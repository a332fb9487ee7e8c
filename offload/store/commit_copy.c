/* A commit copied to directories of its own: to keep an older state, or to go on from one that was kept. */
#include "io/file/file.h"
#include "offload/store/store_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_PAGES = 16, CHUNK = CHUNK_PAGES * TM_PAGE_BYTES };

typedef struct copier {
    manifest_move move; /* first: manifest_copy hands it back */
    tm_commit *from;
    const char *directory;
    tm_file *in[STORE_PATHS];
    tm_io_run *run[STORE_PATHS];
    unsigned n_runs;
    tm_io *io;
    tm_io_file out[STORE_PATHS][TM_KINDS];
    uint64_t end[STORE_PATHS][TM_KINDS]; /* where the next object of a kind goes */
    uint8_t *path;                       /* [objects] of the copy */
    uint32_t next;                       /* object that is placed next */
    char *chunk;                         /* CHUNK bytes, aligned */
} copier;

static void place_object(manifest_move *m, manifest_object *o) {
    copier *c = (copier *)m;
    TM_ASSERT(c->next < c->from->n_objects);
    o->path = c->path[c->next++];
    o->slot = 0;
    o->offset = c->end[o->path][o->kind];
    c->end[o->path][o->kind] += m->slots * o->bytes;
}

/* As a store would: each kind on the paths that are for it. */
static tm_status choose_paths(copier *c, const tm_commit_copy_opts *opts) {
    stripe paths;
    manifest_object o;
    stripe_of_runs(&paths, c->run, c->n_runs);
    for (unsigned i = 0; i < c->n_runs && opts->path_kinds; i++) paths.kinds[i] = opts->path_kinds[i];
    c->path = tm_calloc(c->from->n_objects + 1, 1);
    if (!c->path) return tm_nomem(c->from->n_objects);
    for (uint32_t i = 0; i < c->from->n_objects; i++) {
        TM_TRY(manifest_read_object(c->from, i, &o));
        c->path[i] = (uint8_t)stripe_take(&paths, (tm_kind)o.kind, c->move.slots * o.bytes);
    }
    return TM_OK;
}

static tm_status check_pages(const copier *c, const manifest_object *o, uint64_t at, uint64_t n, uint64_t page) {
    uint64_t want[CHUNK_PAGES];
    uint32_t count = pages_of(n), first = (uint32_t)(at / TM_PAGE_BYTES);
    TM_ASSERT(n > 0 && count <= CHUNK_PAGES && at % TM_PAGE_BYTES == 0);
    TM_TRY(manifest_read_pages(c->from, page + first, count, want));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t from = (uint64_t)i * TM_PAGE_BYTES, bytes = tm_min_u64(TM_PAGE_BYTES, n - from);
        if (page_hash_of(c->from->key, o->kind, o->number, first + i, o->generation, c->chunk + from, bytes) == want[i])
            continue;
        return tm_fail(TM_ECORRUPT, "%s: the 64 KiB page at offset %llu is not what was written there; check the disk",
                       tm_file_path(c->in[o->path]), (unsigned long long)(o->offset + o->slot * o->bytes + at + from));
    }
    return TM_OK;
}

static tm_status write_chunk(copier *c, tm_io_req *r) {
    TM_ASSERT(tm_io_in_flight(c->io) == 0);
    tm_io_req *one[] = {r}, *done[1];
    unsigned n = 0;
    TM_TRY(tm_io_submit(c->io, one, 1));
    while (n == 0) TM_TRY(tm_io_wait(c->io, done, 1, &n, true));
    return r->status == TM_OK ? TM_OK : tm_io_req_fail(r);
}

/* Checked as it is read in any case; where the file system can share blocks, nothing is written. */
static tm_status copy_object(copier *c, const manifest_object *o, uint64_t page) {
    manifest_object to = *o;
    bool shared;
    place_object(&c->move, &to);
    const tm_io_file *out = &c->out[to.path][o->kind];
    TM_TRY(tm_io_file_clone(out, to.offset, c->in[o->path], o->offset + o->slot * o->bytes, o->bytes, &shared));
    for (uint64_t at = 0; at < o->bytes; at += CHUNK) {
        uint64_t n = tm_min_u64(CHUNK, o->bytes - at), from = o->offset + o->slot * o->bytes + at;
        TM_TRY(tm_stop_check());
        TM_TRY(tm_file_read_at(c->in[o->path], from, c->chunk, n));
        tm_file_forget(c->in[o->path], from, n);
        TM_TRY(check_pages(c, o, at, n, page));
        if (shared) continue;
        TM_TRY(write_chunk(
            c, &(tm_io_req){
                   .op = TM_IO_WRITE, .file = *out, .offset = to.offset + at, .buf = c->chunk, .len = (uint32_t)n}));
    }
    return TM_OK;
}

/* ---- one kind: its files are open at a time ---------------------------------------------------------------------- */

static tm_status open_inputs(copier *c, tm_kind kind, const bool *used) {
    char path[PATH_MAX + 32];
    for (unsigned i = 0; i < c->from->named_paths; i++) {
        if (!used[i]) continue;
        snprintf(path, sizeof path, "%s/%s", i ? commit_path(c->from, i) : c->directory, tm_kind_name(kind));
        TM_TRY(tm_file_open(&c->in[i], path));
    }
    return TM_OK;
}

static void close_inputs(copier *c) {
    for (unsigned i = 0; i < STORE_PATHS; i++) tm_file_close(c->in[i]), c->in[i] = NULL;
}

static tm_status copy_objects(copier *c, tm_kind kind) {
    uint64_t page = 0;
    for (uint32_t i = 0; i < c->from->n_objects; i++) {
        manifest_object o;
        TM_TRY(manifest_read_object(c->from, i, &o));
        c->next = i;
        if (o.kind == kind) TM_TRY(copy_object(c, &o, page));
        page += pages_of(o.bytes);
    }
    for (unsigned i = 0; i < c->n_runs; i++)
        if (c->out[i][kind].name) TM_TRY(write_chunk(c, &(tm_io_req){.op = TM_IO_SYNC, .file = c->out[i][kind]}));
    return TM_OK;
}

static tm_status copy_kind(copier *c, tm_kind kind) {
    TM_ASSERT(tm_kind_get(kind)->committed);
    bool used[STORE_PATHS] = {false}, any = false;
    uint64_t bytes[STORE_PATHS] = {0};
    for (uint32_t i = 0; i < c->from->n_objects; i++) {
        manifest_object o;
        TM_TRY(manifest_read_object(c->from, i, &o));
        if (o.kind != kind) continue;
        used[o.path] = any = true;
        bytes[c->path[i]] += c->move.slots * o.bytes;
    }
    if (!any) return TM_OK;
    for (unsigned i = 0; i < c->n_runs; i++)
        if (bytes[i]) TM_TRY(tm_io_file_create(c->run[i], tm_kind_name(kind), bytes[i], true, &c->out[i][kind]));
    tm_status rc = open_inputs(c, kind, used);
    if (rc == TM_OK) rc = copy_objects(c, kind);
    close_inputs(c);
    return rc;
}

static tm_status finish_copy(copier *c) {
    tm_io_atomic *d;
    memset(c->end, 0, sizeof c->end);
    c->next = 0;
    for (unsigned i = 1; i < c->n_runs; i++) {
        TM_TRY(store_name_owner(c->run[i], c->run[0]));
        TM_TRY(tm_io_run_sync(c->run[i]));
    }
    TM_TRY(tm_io_atomic_create(&d, c->run[0], MANIFEST_NAME));
    tm_status rc = manifest_copy(c->from, d, c->run, c->n_runs, &c->move);
    if (rc == TM_OK) rc = tm_io_atomic_sync(d);
    if (rc == TM_OK) return tm_io_atomic_publish(d);
    tm_io_atomic_abandon(d);
    return rc;
}

static tm_status make_runs(copier *c, const tm_commit_copy_opts *opts) {
    if (opts->n_paths > STORE_PATHS)
        return tm_fail(TM_EINPUT, "%u offload paths given, at most %d are used; leave some out", opts->n_paths,
                       STORE_PATHS);
    for (unsigned i = 0; i < opts->n_paths; i++, c->n_runs++)
        TM_TRY(tm_io_run_create(
            &c->run[i], opts->paths[i],
            &(tm_io_run_opts){.id = opts->id,
                              .key = opts->key,
                              .of = opts->of,
                              .allow_tmpfs = true,
                              .create_parents = opts->home && strcmp(opts->paths[i], opts->home) == 0}));
    return TM_OK;
}

static tm_status copy_all(copier *c, const tm_commit_copy_opts *opts) {
    TM_TRY(tm_commit_look(&c->from, c->directory));
    TM_TRY(make_runs(c, opts));
    TM_TRY(choose_paths(c, opts));
    TM_TRY(tm_io_open(&c->io, &(tm_io_opts){.engine = "sync"}));
    c->chunk = tm_malloc(CHUNK);
    if (!c->chunk) return tm_nomem(CHUNK);
    for (tm_kind kind = 0; kind < TM_KINDS; kind++)
        if (tm_kind_get(kind)->committed) TM_TRY(copy_kind(c, kind));
    return finish_copy(c);
}

tm_status tm_commit_copy(const char *run_directory, const tm_commit_copy_opts *opts) {
    copier c = {.move = {.slots = opts->slots, .object = place_object}, .directory = run_directory};
    tm_status rc = copy_all(&c, opts);
    tm_io_close(c.io);
    for (unsigned i = 0; i < c.n_runs; i++) {
        if (rc == TM_OK)
            tm_io_run_close(c.run[i]);
        else
            rc = tm_first(rc, tm_io_run_remove(c.run[i]));
    }
    tm_commit_close(c.from);
    tm_free(c.path);
    tm_free(c.chunk);
    return rc;
}

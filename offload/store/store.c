/* Where objects lie on disk: one file per kind and path, two slots an extent, a checksum a page. */
#include "offload/store/store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tm_status open_paths(tm_store *s, const tm_store_opts *opts) {
    if (opts->n_paths > STORE_PATHS)
        return tm_fail(TM_EINPUT, "%u offload paths given, at most %d are used; leave some out", opts->n_paths,
                       STORE_PATHS);
    for (unsigned i = 0; i < opts->n_paths; i++) {
        char id[64];
        uint64_t now[2] = {tm_now_ns(), (uint64_t)getpid()};
        snprintf(id, sizeof id, "%.40s-%016llx", opts->name ? opts->name : "",
                 (unsigned long long)tm_hash64(now, sizeof now, i));
        TM_TRY(tm_io_run_create(
            &s->run[i], opts->paths[i],
            &(tm_io_run_opts){.id = opts->name ? id : NULL,
                              .key = opts->key,
                              .of = opts->of,
                              .allow_tmpfs = opts->allow_tmpfs,
                              .create_parents = opts->home && strcmp(opts->paths[i], opts->home) == 0}));
        s->n_paths = i + 1;
    }
    return TM_OK;
}

uint64_t tm_store_kind_bytes(const tm_layout *l, tm_kind kind, unsigned slots, bool commits) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        if (o->kind == kind && has_extent(o, commits)) bytes += o->frame_bytes * slots_of(o, slots ? slots : 2);
    }
    return bytes;
}

uint64_t tm_store_state_bytes(const tm_layout *l, unsigned slots, bool commits) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < TM_KINDS; kind++) bytes += tm_store_kind_bytes(l, (tm_kind)kind, slots, commits);
    return bytes;
}

uint64_t tm_store_spill_bytes(unsigned n_paths, uint64_t spill_bytes, uint64_t spill_largest) {
    return spill_map_bytes(n_paths, spill_bytes, spill_largest);
}

tm_status tm_store_share(const tm_layout *l, const tm_machine *m, const tm_store_opts *opts, uint64_t *bytes) {
    spill_map map;
    stripe paths;
    if (m->n_paths == 0) return TM_OK;
    stripe_of_machine(&paths, m);
    TM_TRY(spill_map_make(&map, &paths, opts->spill_bytes, opts->spill_largest));
    spill_map_free(&map);
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        if (has_extent(o, opts->commits))
            (void)stripe_take(&paths, o->kind, slots_of(o, opts->slots ? opts->slots : 2) * o->frame_bytes);
    }
    memcpy(bytes, paths.given, m->n_paths * sizeof *bytes);
    return TM_OK;
}

/* What has an extent is numbered within its kind, in the layout's order, and its pages are numbered through. */
static tm_status number_extents(tm_store *s) {
    const tm_layout *l = s->layout;
    uint32_t pages = 0, number[TM_KINDS] = {0};
    s->extent = tm_calloc(l->n + 1, sizeof *s->extent);
    if (!s->extent) return tm_nomem(l->n * sizeof *s->extent);
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        state_extent *x = &s->extent[i];
        x->slot = x->committed = NO_SLOT;
        x->number = number[o->kind]++;
        if (!has_pages(o, s->commits)) continue;
        x->first_page = pages;
        pages += pages_of(o->frame_bytes);
    }
    s->checksum = tm_calloc(pages + 1, sizeof *s->checksum);
    return s->checksum ? TM_OK : tm_nomem(pages * sizeof *s->checksum);
}

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool in_folder(const char *run, const char *path) {
    char parent[4096];
    const char *slash = strrchr(run, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - run) : 1, slash ? run : ".");
    return same_folder(parent, path);
}

/* What each run directory is for: the i-th is in the i-th path; of a run that goes on, in whichever it is found. */
static void say_kinds(stripe *paths, const tm_store *s, const tm_store_opts *opts) {
    for (unsigned i = 0; i < s->n_paths && opts->path_kinds; i++)
        for (unsigned k = 0; k < opts->n_paths; k++)
            if (opts->resume ? opts->paths[k] && in_folder(tm_io_run_path(s->run[i]), opts->paths[k]) : i == k)
                paths->kinds[i] |= opts->path_kinds[k];
}

/* Path and offset of each extent are fixed here (stripe_internal.h). What a commit has named has its place. */
static tm_status place_extents(tm_store *s, const tm_store_opts *opts, uint64_t size[STORE_PATHS][TM_KINDS]) {
    const tm_layout *l = s->layout;
    stripe paths;
    if (s->n_paths == 0) return TM_OK; /* all of it lies where it is */
    stripe_of_runs(&paths, s->run, s->n_paths);
    say_kinds(&paths, s, opts);
    if (s->commits) /* two manifests: a checksum a page and 32 bytes an object */
        paths.room[0] -= tm_min_u64(paths.room[0], tm_store_state_bytes(l, s->slots, true) / 2048 + TM_MIB);
    TM_TRY(spill_map_make(&s->spill_map, &paths, opts->spill_bytes, opts->spill_largest));
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        state_extent *x = &s->extent[i];
        if (!has_extent(o, s->commits) || x->slot != NO_SLOT) continue;
        uint64_t bytes = slots_of(o, s->slots) * o->frame_bytes;
        x->path = (uint8_t)stripe_take(&paths, o->kind, bytes);
        x->offset = size[x->path][o->kind];
        size[x->path][o->kind] += bytes;
    }
    return TM_OK;
}

/* Of a run that is resumed: nothing in these is needed, and what they hold is room for the new ones. */
static tm_status remove_leftovers(tm_store *s) {
    for (unsigned path = 0; path < s->n_paths; path++) {
        for (tm_kind kind = 0; kind < TM_KINDS; kind++)
            if (!tm_kind_get(kind)->committed) TM_TRY(tm_io_run_unlink(s->run[path], tm_kind_name(kind)));
        TM_TRY(tm_io_run_unlink(s->run[path], "spill"));
    }
    return TM_OK;
}

static tm_status make_file(tm_store *s, unsigned path, const char *name, uint64_t bytes, bool there, tm_io_file *out) {
    TM_ASSERT(path < s->n_paths && bytes % TM_FRAME_ALIGN == 0);
    bool buffered = !tm_io_run_direct(s->run[path]);
    if (bytes == 0) return TM_OK;
    s->disk_bytes += bytes;
    TM_TRY((there ? tm_io_file_open : tm_io_file_create)(s->run[path], name, bytes, buffered, out));
    out->lane = path; /* a slow path's requests do not fill the queue of the others */
    return TM_OK;
}

static tm_status make_files(tm_store *s, uint64_t size[STORE_PATHS][TM_KINDS], bool resumed) {
    for (unsigned path = 0; path < s->n_paths; path++) {
        for (tm_kind kind = 0; kind < TM_KINDS; kind++)
            TM_TRY(make_file(s, path, tm_kind_name(kind), size[path][kind], resumed && tm_kind_get(kind)->committed,
                             &s->file[path][kind]));
        TM_TRY(make_file(s, path, "spill", s->spill_map.size[path], false, &s->spill[path]));
    }
    return TM_OK;
}

static tm_status register_files(tm_store *s) {
    tm_io_file all[STORE_PATHS * (TM_KINDS + 1)];
    tm_io_file *back[STORE_PATHS * (TM_KINDS + 1)];
    unsigned n = 0;
    for (unsigned path = 0; path < s->n_paths; path++) {
        for (int kind = 0; kind <= TM_KINDS; kind++) {
            tm_io_file *f = kind < TM_KINDS ? &s->file[path][kind] : &s->spill[path];
            if (!f->name) continue;
            back[n] = f;
            all[n++] = *f;
        }
    }
    if (n == 0) return TM_OK;
    TM_TRY(tm_io_register_files(s->io, all, n));
    for (unsigned i = 0; i < n; i++) *back[i] = all[i];
    return TM_OK;
}

/* One lane a path; the kernel's queues have an end. */
static tm_status open_io(tm_store *s, tm_io_opts io) {
    TM_ASSERT(!s->io);
    unsigned lanes = store_lanes(s), most = 4096 / lanes;
    io.lanes = lanes;
    io.count_cpu = true;
    if (io.queue_depth > most) io.queue_depth = most;
    return tm_io_open(&s->io, &io);
}

/* ---- going on from a commit ----------------------------------------------------------------------------------- */

static tm_status other_state(const tm_object *o, const state_extent *x) {
    return tm_fail(TM_EINPUT,
                   "the commit does not hold %s object %u of %llu bytes; it belongs to another model or precision",
                   tm_kind_name(o->kind), x->number, (unsigned long long)o->frame_bytes);
}

static tm_status take_extent(tm_store *s, const tm_commit *c, uint32_t object, uint32_t at, uint64_t *page,
                             uint64_t size[STORE_PATHS][TM_KINDS]) {
    const tm_object *o = &s->layout->object[object];
    state_extent *x = &s->extent[object];
    manifest_object m;
    TM_ASSERT(x->slot == NO_SLOT);
    if (at >= c->n_objects) return other_state(o, x);
    TM_TRY(manifest_read_object(c, at, &m));
    if (m.kind != o->kind || m.number != x->number || m.bytes != o->frame_bytes) return other_state(o, x);
    x->path = m.path;
    x->offset = m.offset;
    x->slot = x->committed = m.slot;
    x->generation = m.generation;
    size[x->path][o->kind] = tm_max_u64(size[x->path][o->kind], m.offset + s->slots * o->frame_bytes);
    TM_TRY(manifest_read_pages(c, *page, pages_of(o->frame_bytes), s->checksum + x->first_page));
    *page += pages_of(o->frame_bytes);
    return TM_OK;
}

/* The commit's objects are this layout's without gradients, in the same order: only residency may differ. */
static tm_status take_extents(tm_store *s, const tm_commit *c, uint64_t size[STORE_PATHS][TM_KINDS]) {
    uint32_t at = 0;
    uint64_t page = 0;
    for (uint32_t i = 0; i < s->layout->n; i++)
        if (in_commits(&s->layout->object[i])) TM_TRY(take_extent(s, c, i, at++, &page, size));
    if (at == c->n_objects) return TM_OK;
    return tm_fail(TM_EINPUT, "the commit holds %u objects, this job has %u; it belongs to another model or precision",
                   c->n_objects, at);
}

/* The state stays where its commit lies: a path that was added or exchanged since does nothing, and that is said. */
static void warn_unused_paths(const tm_store *s, const tm_store_opts *opts) {
    for (unsigned i = 0; i < opts->n_paths; i++) {
        bool used = !opts->paths[i]; /* the caller did not say */
        for (unsigned k = 0; k < s->n_paths && !used; k++) used = in_folder(tm_io_run_path(s->run[k]), opts->paths[i]);
        if (!used)
            tm_log(TM_LOG_WARN,
                   "nvme_path %s is not used: this run goes on where its commit lies, in %s%s; a new run would use it",
                   opts->paths[i], tm_io_run_path(s->run[0]), s->n_paths > 1 ? " and others" : "");
    }
}

static void take_run(tm_store *s, const tm_commit *c) {
    TM_ASSERT(c->n_paths == c->named_paths && c->slots >= 1 && c->slots <= 2);
    memcpy(s->run, c->run, sizeof s->run);
    s->n_paths = c->n_paths;
    s->slots = c->slots;
    s->key = c->key;
    s->incarnation = c->incarnation + 1;
    s->commits = true; /* the places of resident state are known, and stay */
    s->synced = true;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* TIDEMILL_CHECKSUMS=off or alternate, in the test build: what checksums cost is measured without them. Commits name
 * them, so those keep them. */
static void choose_checksums(tm_store *s) {
    const char *given = tm_fault_environment_used() ? getenv("TIDEMILL_CHECKSUMS") : NULL;
    bool off = given && strcmp(given, "off") == 0, alternate = given && strcmp(given, "alternate") == 0;
    if (!off && !alternate) return;
    if (s->commits) {
        tm_warn_once("store.checksums", "TIDEMILL_CHECKSUMS has no effect: commits are made of checksums");
        return;
    }
    tm_warn_once("store.checksums", "TIDEMILL_CHECKSUMS=%s: a disk that damages pages goes unnoticed", given);
    s->unchecked = off;
    s->alternate = alternate;
}

void store_run_begins(tm_store *s, const tm_plan *plan) {
    TM_ASSERT(plan->layout == s->layout);
    if (!s->alternate) return;
    s->runs = s->latest == plan ? s->runs + 1 : 0;
    s->latest = plan;
    s->unchecked = s->runs / 2 % 2;
    tm_log(TM_LOG_DEBUG, "run of \"%s\": page checksums %s", plan->name, s->unchecked ? "off" : "on");
}

static tm_status start_run(tm_store *s, const tm_store_opts *opts) {
    s->slots = opts->slots ? opts->slots : 2;
    s->commits = opts->commits;
    choose_checksums(s);
    TM_TRY(open_paths(s, opts));
    const char *path = s->n_paths ? tm_io_run_path(s->run[0]) : "";
    s->key = tm_hash64(path, strlen(path), tm_now_ns());
    return TM_OK;
}

tm_status tm_store_open(tm_store **out, const tm_layout *layout, const tm_store_opts *opts) {
    uint64_t size[STORE_PATHS][TM_KINDS] = {0};
    tm_status rc;
    tm_commit *c = opts->resume;
    tm_store *s = tm_calloc(1, sizeof *s);
    if (!s) return tm_nomem(sizeof *s);
    TM_ASSERT(layout->chosen && (c || opts->n_paths > 0 || (!opts->commits && tm_layout_files(layout) > 0)));
    s->layout = layout;
    if (c) {
        take_run(s, c);
        warn_unused_paths(s, opts);
    } else {
        TM_GO(start_run(s, opts));
    }
    TM_GO(number_extents(s));
    if (c) TM_GO(take_extents(s, c, size));
    if (c) TM_GO(remove_leftovers(s));
    TM_GO(place_extents(s, opts, size));
    TM_GO(make_files(s, size, c != NULL));
    TM_GO(store_open_files(s));
    TM_GO(open_io(s, opts->io));
    TM_GO(register_files(s));
    if (c) c->n_paths = 0;
    *out = s;
    return TM_OK;
done:
    if (c) s->n_paths = 0; /* the commit's, and not to be removed */
    (void)tm_first(rc, tm_store_remove(s));
    return rc;
}

/* Bytes of each device, and what they cost the processor (TIDEMILL_LOG=debug). */
static void say_costs(const tm_store *s) {
    tm_io_stats all, one;
    if (!s->io) return;
    tm_io_get_stats(s->io, &all);
    double gb = 1e-9 * (double)(all.read_bytes + all.write_bytes);
    for (unsigned i = 0; i < s->n_paths && gb > 0; i++) { /* with what is read where it lies: in the first */
        tm_io_lane_stats(s->io, i, &one);
        tm_log(TM_LOG_DEBUG, "%s: %.3f GB read, %.3f GB written", tm_io_run_path(s->run[i]),
               1e-9 * (double)one.read_bytes, 1e-9 * (double)one.write_bytes);
    }
    if (gb > 0)
        tm_log(TM_LOG_DEBUG, "I/O engine %s: %.4f CPU seconds a GB; page checksums: %.4f seconds a GB, %.3f s in all",
               tm_io_engine_name(s->io), 1e-9 * (double)all.cpu_ns / gb,
               s->checksum_bytes ? (double)s->checksum_ns / (double)s->checksum_bytes : 0,
               1e-9 * (double)s->checksum_ns);
}

static void store_free(tm_store *s) {
    store_close_files(s);
    spill_map_free(&s->spill_map);
    tm_free(s->extent);
    tm_free(s->checksum);
    tm_free(s);
}

tm_status tm_store_remove(tm_store *s) {
    tm_status rc = TM_OK;
    if (!s) return TM_OK;
    tm_store_commit_abandon(s);
    say_costs(s);
    tm_io_close(s->io);
    /* first of all there is no commit any more: what is half removed must not look like one */
    if (s->n_paths) rc = tm_io_run_unlink(s->run[0], MANIFEST_NAME);
    for (unsigned i = 0; i < s->n_paths; i++) rc = tm_first(rc, tm_io_run_remove(s->run[i]));
    store_free(s);
    return rc;
}

void tm_store_close(tm_store *s) {
    if (!s) return;
    tm_store_commit_abandon(s);
    say_costs(s);
    tm_io_close(s->io);
    for (unsigned i = 0; i < s->n_paths; i++) tm_io_run_close(s->run[i]);
    store_free(s);
}

const char *tm_store_path(const tm_store *s, unsigned i) {
    return s && i < s->n_paths ? tm_io_run_path(s->run[i]) : NULL;
}

uint64_t tm_store_disk_bytes(const tm_store *s) {
    return s ? s->disk_bytes : 0;
}
void tm_store_stats(const tm_store *s, unsigned i, tm_io_stats *out) {
    *out = (tm_io_stats){0};
    if (s && i < s->n_paths) tm_io_lane_stats(s->io, i, out);
}
uint64_t tm_store_written(const tm_store *s, unsigned i) {
    tm_io_stats stats;
    tm_store_stats(s, i, &stats);
    return stats.write_bytes;
}
const char *tm_store_engine(const tm_store *s) {
    return s ? tm_io_engine_name(s->io) : "none";
}
/* The path of what a disk operation of `plan` moves, and how many there are. */
uint32_t store_lane(const tm_store *s, const tm_plan *plan, uint32_t object) {
    TM_ASSERT(object & TM_TEMP_BIT ? (object & ~TM_TEMP_BIT) < plan->n_temp : object < s->layout->n);
    if (!(object & TM_TEMP_BIT)) return s->extent[object].path; /* of what is read where it lies: the first */
    return spill_at(&s->spill_map, plan->extent[object & ~TM_TEMP_BIT].offset)->path;
}
uint32_t store_lanes(const tm_store *s) {
    return s->n_paths ? s->n_paths : 1;
}

tm_io *store_io(tm_store *s) {
    return s->io;
}

void tm_store_mark_committed(tm_store *s) {
    for (uint32_t i = 0; i < s->layout->n; i++) s->extent[i].committed = s->extent[i].slot;
}

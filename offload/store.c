/* Where objects lie on disk: one file per kind and path, two slots an extent, a checksum a page. */
#include "offload/offload_internal.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_PATHS = 16, NO_SLOT = 0xff };

typedef struct state_extent {
    uint64_t offset;     /* of slot 0; slot 1 follows at + frame_bytes */
    uint32_t generation; /* of the latest write */
    uint32_t first_page;
    uint8_t path;
    uint8_t slot;      /* of the latest write, NO_SLOT: never written */
    uint8_t committed; /* slot that the last commit names, NO_SLOT: none */
} state_extent;

struct tm_store {
    tm_io *io;
    const tm_layout *layout;
    tm_io_run *run[MAX_PATHS];
    tm_io_file file[MAX_PATHS][TM_KINDS];
    tm_io_file spill[MAX_PATHS];
    unsigned n_paths, slots;
    bool commits;
    state_extent *extent; /* per state object; unused for resident ones */
    uint64_t *checksum;   /* per page of state, latest generation */
    uint64_t disk_bytes;
    uint64_t key; /* of this run: part of every checksum */
    uint64_t checksum_ns;
};

static uint32_t pages_of(uint64_t bytes) {
    return (uint32_t)((bytes + TM_PAGE_BYTES - 1) / TM_PAGE_BYTES);
}

static tm_status open_paths(tm_store *s, const tm_store_opts *opts) {
    if (opts->n_paths > MAX_PATHS)
        return tm_fail(TM_EINPUT, "%u offload paths given, at most %d are used; leave some out", opts->n_paths,
                       MAX_PATHS);
    for (unsigned i = 0; i < opts->n_paths; i++) {
        TM_TRY(tm_io_run_create(&s->run[i], opts->paths[i],
                                &(tm_io_run_opts){.allow_tmpfs = opts->allow_tmpfs, .create_parents = true}));
        s->n_paths = i + 1;
    }
    return TM_OK;
}

static bool has_extent(const tm_object *o, bool commits) {
    return !o->resident || (commits && o->kind <= TM_KIND_EXP_AVG_SQ);
}

static unsigned slots_of(const tm_object *o, unsigned slots) {
    return o->kind <= TM_KIND_EXP_AVG_SQ ? slots : 1; /* gradients are in no commit */
}

uint64_t tm_store_state_bytes(const tm_layout *l, unsigned slots, bool commits) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        if (has_extent(o, commits)) bytes += o->frame_bytes * slots_of(o, slots ? slots : 2);
    }
    return bytes;
}

/* Objects go round the paths; the offset inside their file is fixed here. */
static tm_status place_extents(tm_store *s, uint64_t size[MAX_PATHS][TM_KINDS]) {
    const tm_layout *l = s->layout;
    uint32_t pages = 0, turn = 0;
    s->extent = tm_calloc(l->n + 1, sizeof *s->extent);
    if (!s->extent) return tm_nomem(l->n * sizeof *s->extent);
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_object *o = &l->object[i];
        state_extent *x = &s->extent[i];
        x->slot = x->committed = NO_SLOT;
        if (!has_extent(o, s->commits)) continue;
        x->path = (uint8_t)(turn++ % s->n_paths);
        x->offset = size[x->path][o->kind];
        size[x->path][o->kind] += slots_of(o, s->slots) * o->frame_bytes;
        x->first_page = pages;
        pages += pages_of(o->frame_bytes);
    }
    s->checksum = tm_calloc(pages + 1, sizeof *s->checksum);
    return s->checksum ? TM_OK : tm_nomem(pages * sizeof *s->checksum);
}

static tm_status create_files(tm_store *s, uint64_t size[MAX_PATHS][TM_KINDS], uint64_t spill_bytes) {
    for (unsigned path = 0; path < s->n_paths; path++) {
        bool buffered = !tm_io_run_direct(s->run[path]);
        for (int kind = 0; kind < TM_KINDS; kind++) {
            uint64_t bytes = size[path][kind];
            if (!bytes) continue;
            TM_TRY(tm_io_file_create(s->run[path], tm_kind_name((tm_kind)kind), bytes, buffered, &s->file[path][kind]));
            s->disk_bytes += bytes;
        }
    }
    if (!spill_bytes) return TM_OK;
    /* temporaries go round the paths too: each path's file is as long as all of them, and sparse use costs nothing but
     * the reservation; with one path (the usual case) it is exact */
    for (unsigned path = 0; path < s->n_paths; path++) {
        TM_TRY(tm_io_file_create(s->run[path], "spill", spill_bytes, !tm_io_run_direct(s->run[path]), &s->spill[path]));
        s->disk_bytes += spill_bytes;
    }
    return TM_OK;
}

static tm_status register_files(tm_store *s) {
    tm_io_file all[MAX_PATHS * (TM_KINDS + 1)];
    tm_io_file *back[MAX_PATHS * (TM_KINDS + 1)];
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

tm_status tm_store_open(tm_store **out, const tm_layout *layout, const tm_store_opts *opts) {
    uint64_t size[MAX_PATHS][TM_KINDS] = {0};
    tm_status rc;
    tm_store *s = tm_calloc(1, sizeof *s);
    if (!s) return tm_nomem(sizeof *s);
    TM_ASSERT(layout->chosen && opts->n_paths > 0);
    s->layout = layout;
    s->slots = opts->slots ? opts->slots : 2;
    s->commits = opts->commits;
    TM_GO(open_paths(s, opts));
    s->key = tm_hash64(tm_io_run_path(s->run[0]), strlen(tm_io_run_path(s->run[0])), tm_now_ns());
    TM_GO(place_extents(s, size));
    TM_GO(create_files(s, size, opts->spill_bytes));
    TM_GO(tm_io_open(&s->io, &opts->io));
    TM_GO(register_files(s));
    *out = s;
    return TM_OK;
done:
    (void)tm_first(rc, tm_store_remove(s));
    return rc;
}

static void store_free(tm_store *s) {
    tm_free(s->extent);
    tm_free(s->checksum);
    tm_free(s);
}

tm_status tm_store_remove(tm_store *s) {
    tm_status rc = TM_OK;
    if (!s) return TM_OK;
    tm_io_close(s->io);
    for (unsigned i = 0; i < s->n_paths; i++) rc = tm_first(rc, tm_io_run_remove(s->run[i]));
    store_free(s);
    return rc;
}

void tm_store_close(tm_store *s) {
    if (!s) return;
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
const char *tm_store_engine(const tm_store *s) {
    return s ? tm_io_engine_name(s->io) : "none";
}
tm_io *store_io(tm_store *s) {
    return s->io;
}
uint64_t store_checksum_ns(const tm_store *s) {
    return s->checksum_ns;
}

void tm_store_mark_committed(tm_store *s) {
    for (uint32_t i = 0; i < s->layout->n; i++) s->extent[i].committed = s->extent[i].slot;
}

/* ---- checksums ----------------------------------------------------------------------------------------------- */

/* Identity goes in as the seed: the same bytes at another place or of another time do not pass. */
static uint64_t page_seed(const tm_store *s, tm_kind kind, uint32_t object, uint32_t page, uint32_t generation) {
    uint64_t id[3] = {s->key, (uint64_t)kind << 32 | object, (uint64_t)page << 32 | generation};
    return XXH3_64bits(id, sizeof id);
}

static uint64_t page_hash(const tm_store *s, const tm_object *o, uint32_t object, uint32_t page, uint32_t generation,
                          const char *frame) {
    uint64_t at = (uint64_t)page * TM_PAGE_BYTES;
    uint64_t n = tm_min_u64(TM_PAGE_BYTES, o->frame_bytes - at);
    return XXH3_64bits_withSeed(frame + at, n, page_seed(s, o->kind, object, page, generation));
}

static const tm_object *target_object(const tm_store *s, const store_target *t) {
    return t->object & TM_TEMP_BIT ? &t->plan->temp[t->object & ~TM_TEMP_BIT] : &s->layout->object[t->object];
}

static uint64_t *expected(tm_store *s, const store_target *t, uint32_t *generation) {
    if (t->object & TM_TEMP_BIT) {
        *generation = 0;
        return t->temp_checksum + t->plan->extent[t->object & ~TM_TEMP_BIT].first_page;
    }
    *generation = s->extent[t->object].generation;
    return s->checksum + s->extent[t->object].first_page;
}

static void aim(tm_store *s, const store_target *t, tm_io_req *req) {
    const tm_object *o = target_object(s, t);
    if (t->object & TM_TEMP_BIT) {
        uint32_t i = t->object & ~TM_TEMP_BIT;
        req->file = s->spill[i % s->n_paths];
        req->offset = t->plan->extent[i].offset;
    } else {
        const state_extent *x = &s->extent[t->object];
        req->file = s->file[x->path][o->kind];
        req->offset = x->offset + x->slot * o->frame_bytes;
    }
    req->len = (uint32_t)o->frame_bytes;
}

void store_prepare_write(tm_store *s, const store_target *t, void *frame, tm_io_req *req) {
    const tm_object *o = target_object(s, t);
    memset((char *)frame + o->bytes, 0, o->frame_bytes - o->bytes); /* no stranger's bytes in the padding */
    if (!(t->object & TM_TEMP_BIT)) {
        state_extent *x = &s->extent[t->object];
        if (x->slot == NO_SLOT)
            x->slot = 0;
        else if (slots_of(o, s->slots) == 2 && x->slot == x->committed)
            x->slot ^= 1;
        x->generation++;
    }
    uint64_t t0 = tm_now_ns();
    uint32_t generation;
    uint64_t *sum = expected(s, t, &generation);
    for (uint32_t page = 0; page < pages_of(o->frame_bytes); page++)
        sum[page] = page_hash(s, o, t->object, page, generation, frame);
    s->checksum_ns += tm_now_ns() - t0;
    aim(s, t, req);
    req->op = TM_IO_WRITE;
    req->buf = frame;
}

tm_status store_prepare_read(tm_store *s, const store_target *t, void *frame, tm_io_req *req) {
    if (!(t->object & TM_TEMP_BIT) && s->extent[t->object].slot == NO_SLOT)
        return tm_fail(TM_EBUG, "%s object %u is read before it was written", tm_kind_name(target_object(s, t)->kind),
                       t->object);
    aim(s, t, req);
    req->op = TM_IO_READ;
    req->buf = frame;
    return TM_OK;
}

tm_status store_check_read(tm_store *s, const store_target *t, const void *frame, const tm_io_req *req) {
    const tm_object *o = target_object(s, t);
    uint32_t generation;
    const uint64_t *sum = expected(s, t, &generation);
    uint64_t t0 = tm_now_ns();
    for (uint32_t page = 0; page < pages_of(o->frame_bytes); page++) {
        if (page_hash(s, o, t->object, page, generation, frame) == sum[page]) continue;
        return tm_fail(TM_ECORRUPT, "%s: the 64 KiB page at offset %llu is not what was written there; check the disk",
                       req->file.name, (unsigned long long)(req->offset + (uint64_t)page * TM_PAGE_BYTES));
    }
    s->checksum_ns += tm_now_ns() - t0;
    return TM_OK;
}

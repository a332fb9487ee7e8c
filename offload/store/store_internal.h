/* What store.c, store_page.c, commit.c and manifest.c share. */
#ifndef TIDEMILL_STORE_INTERNAL_H
#define TIDEMILL_STORE_INTERNAL_H

#include "io/file/file.h"
#include "offload/offload_internal.h"
#include "offload/store/stripe_internal.h"

#include <signal.h>

enum { NO_SLOT = 0xff };

/* What is known of the bytes of an object that is not ours. A read is of the file as it was, or later, when it was asked for. */
typedef struct frozen_sight {
    uint64_t whole; /* stamp of the file when all pages were last checked; 0: never */
    uint64_t asked; /* the same when the oldest read that is under way was asked for */
    uint32_t under_way, visits;
    bool mixed; /* a read under way was asked for with another stamp */
} frozen_sight;

typedef struct state_extent {
    uint64_t offset;     /* of slot 0; slot 1 follows at + frame_bytes */
    uint64_t generation; /* of the latest write */
    uint32_t number;     /* of the object among those of its kind: what it is called in checksums and commits */
    uint32_t first_page;
    uint8_t path;
    uint8_t slot;      /* of the latest write, NO_SLOT: never written */
    uint8_t committed; /* slot that the last commit names, NO_SLOT: none */
    frozen_sight sight;
} state_extent;

struct tm_store {
    tm_io *io;
    const tm_layout *layout;
    tm_io_run *run[STORE_PATHS];
    tm_io_file file[STORE_PATHS][TM_KINDS];
    tm_io_file spill[STORE_PATHS];
    struct store_file *in_place; /* per file of the layout (store_files.c) */
    spill_map spill_map;         /* which path a temporary is on (stripe_internal.h) */
    unsigned n_paths, slots;
    bool commits;
    bool synced;          /* the directories' own entries are on disk */
    state_extent *extent; /* per state object; unused where has_extent() is false */
    uint64_t *checksum;   /* per page of state, latest generation */
    uint64_t disk_bytes;
    uint64_t key;         /* of this run: part of every checksum */
    uint32_t incarnation; /* how often the run was resumed: in the upper half of what is written from then on */
    uint64_t checksum_ns, checksum_bytes;
    _Atomic bool unchecked; /* no page checksums: TIDEMILL_CHECKSUMS, for measuring */
    bool alternate;         /* two runs with, two without: pages written without have 0 for a checksum */
    const tm_plan *latest;  /* of those runs */
    uint32_t runs;
    bool failed;            /* a commit failed: what is on disk is not known, so no other is tried */
    tm_io_atomic *manifest; /* manifest that is prepared and not published */
};

/* A commit that was opened: manifest.c checks it, store.c takes its directories over. */
struct tm_commit {
    tm_io_run *run[STORE_PATHS];
    unsigned n_paths;     /* opened */
    unsigned named_paths; /* in the manifest */
    unsigned slots;
    uint64_t key, step;
    uint32_t incarnation, n_objects;
    uint64_t n_pages;
    uint64_t objects_at, pages_at; /* bytes of the file */
    tm_file *file;
    tm_json_doc *info;
    tm_buf paths; /* of the directories, each with its NUL */
};

typedef struct manifest_object {
    uint8_t kind, path, slot, zero;
    uint32_t number;
    uint64_t offset, bytes, generation;
} manifest_object;

static inline uint32_t pages_of(uint64_t bytes) {
    return (uint32_t)((bytes + TM_PAGE_BYTES - 1) / TM_PAGE_BYTES);
}
static inline bool has_extent(const tm_object *o, bool commits) {
    return o->kind != TM_KIND_FROZEN && (!o->resident || (commits && in_commits(o)));
}
/* Whether its pages have checksums. */
static inline bool has_pages(const tm_object *o, bool commits) {
    return (o->kind == TM_KIND_FROZEN && o->pageable) || has_extent(o, commits);
}
static inline unsigned slots_of(const tm_object *o, unsigned slots) {
    unsigned most = tm_kind_get(o->kind)->slots;
    return slots < most ? slots : most;
}

/* store_files.c */
tm_status store_open_files(tm_store *s);
void store_close_files(tm_store *s);
void store_aim_home(const tm_store *s, const object_home *home, tm_io_req *req);

/* store_page.c: the object's frame is still what was written last (hashes until the first page that is not). */
bool store_unchanged(const tm_store *s, uint32_t object, const void *frame);

/* manifest.c */
#define MANIFEST_NAME "manifest"
#define PART_OF_NAME "part-of" /* in the other directories of a commit: where its manifest is */
tm_status manifest_write(const tm_store *s, tm_io_atomic *d, const tm_commit_opts *opts, uint64_t *bytes);
/* The same for a copy of commit `c` in directories of its own: object i is `moved(ctx, i)`. */
typedef struct manifest_move {
    unsigned slots;
    void (*object)(struct manifest_move *m, manifest_object *o); /* new place of what comes next */
} manifest_move;
tm_status manifest_copy(const tm_commit *c, tm_io_atomic *d, tm_io_run *const *runs, unsigned n, manifest_move *move);
/* commit.c: in a directory that is not the first: whose manifest names it, for whoever finds it. */
tm_status store_name_owner(tm_io_run *run, const tm_io_run *first);
uint64_t page_hash_of(uint64_t key, uint32_t kind, uint32_t number, uint32_t page, uint64_t generation,
                      const void *bytes, uint64_t n);
tm_status manifest_read_object(const tm_commit *c, uint32_t i, manifest_object *out);
const char *commit_path(const tm_commit *c, unsigned i); /* as the manifest has it */
tm_status manifest_read_pages(const tm_commit *c, uint64_t first, uint64_t n, uint64_t *out);

/* Where tests kill the process: TIDEMILL_FAULT=kill_NAME:I:now:once. */
static inline void store_kill_point(const char *name) {
    if (tm_fault_hit(name, NULL)) (void)raise(SIGKILL);
}

#endif

/* store: where objects lie on disk, what proves that they are as they were written, and commits of all of them. */
#ifndef TIDEMILL_OFFLOAD_STORE_H
#define TIDEMILL_OFFLOAD_STORE_H

#include "io/run/run.h"
#include "offload/plan/plan.h"

/* ---- store: extents, slots, checksums ------------------------------------------------------------------------ */

/* The offload files of one run. Each pageable state object that is not resident has an extent with `slots` slots
 * (gradients: one); a write goes to a slot that the last commit does not name. With `commits` resident state has
 * extents too, but for gradients. What has a home in a file of someone else's (tm_layout_home) is read there, and has no
 * extent: a store of that alone has no paths. Every 64 KiB page has an XXH3-64 over (run, kind, number within the kind, page,
 * generation, bytes); the expected values are kept in memory, so that lost, stale and misdirected pages are caught; of a
 * file of someone else's, what it held when it was first read. */
typedef struct tm_store tm_store;
typedef struct tm_commit tm_commit;
typedef struct tm_store_opts {
    bool commits;      /* tm_store_commit will be called */
    tm_commit *resume; /* goes on from this commit, in its run directories (`slots` is not used, nor are `paths`: those
                        * that do not hold it get a warning); taken over if the store opens, else left to the caller */
    const char *name;  /* directories are called run-NAME-<random>; NULL: run-<random>. At most 40 plain characters */
    const char *key, *of;     /* of run directories that are made (tm_io_claim); NULL: a fresh key, nothing */
    const char *home;         /* of the paths the one that is made where it is not there; NULL: none is */
    const char *const *paths; /* offload paths; the first n_paths are used, objects go to them in proportion to their
                               * measured rates (profile of this machine; equally where one is unknown) and room */
    unsigned n_paths;
    const uint32_t *path_kinds; /* [n_paths] what may lie in each: bit 1 << tm_kind, temporaries as TM_KIND_ACTIVATION;
                                 * 0, or NULL: everything */
    unsigned slots;             /* 1 or 2; 0: 2 */
    bool allow_tmpfs;
    tm_io_opts io;
    uint64_t spill_bytes;   /* room for temporaries (largest spill_file_bytes of the run's plans) */
    uint64_t spill_largest; /* the largest temporary of all of them; 0: not known, all lie on one path */
} tm_store_opts;
TM_MUST_USE tm_status tm_store_open(tm_store **out, const tm_layout *layout, const tm_store_opts *opts);
TM_MUST_USE tm_status tm_store_remove(tm_store *s); /* removes the run directories, frees; NULL is fine */
void tm_store_close(tm_store *s);                   /* leaves the run directories; NULL is fine */
/* The i-th run directory; NULL past the last. */
const char *tm_store_path(const tm_store *s, unsigned i);
uint64_t tm_store_disk_bytes(const tm_store *s);
/* Bytes written to the i-th path since the store was opened, by completed requests. */
uint64_t tm_store_written(const tm_store *s, unsigned i);
/* Of the i-th path since then. Not while a run is under way (tm_exec_settle). */
void tm_store_stats(const tm_store *s, unsigned i, tm_io_stats *out);
const char *tm_store_engine(const tm_store *s);
/* What was written last is now what a commit names: the next write of each object goes to its other slot. */
void tm_store_mark_committed(tm_store *s);
/* Bytes of the extents that a store of this layout (residency chosen) reserves for state, and for temporaries. */
uint64_t tm_store_state_bytes(const tm_layout *layout, unsigned slots, bool commits);
uint64_t tm_store_kind_bytes(const tm_layout *layout, tm_kind kind, unsigned slots, bool commits); /* of one kind */
/* What a store would give each path of a machine: bytes[m->n_paths]. Of `opts` slots, commits and spill_* count. */
struct tm_machine;
TM_MUST_USE tm_status tm_store_share(const tm_layout *layout, const struct tm_machine *m, const tm_store_opts *opts,
                                     uint64_t *bytes);
uint64_t tm_store_spill_bytes(unsigned n_paths, uint64_t spill_bytes, uint64_t spill_largest);

/* ---- commits ------------------------------------------------------------------------------------------------- */

/* A commit is the state as it lies in the extents (resident objects are written back first) and a manifest that names
 * it: slots, generations, page checksums, and whatever the caller wants to find again. One file of the first run
 * directory, put in place by a rename: README.md has format and protocol. Gradients are not in it: nothing may be
 * pending. No plan may be running, and nothing of the next may have begun.
 *
 * With several ranks: all prepare, agree, all publish, agree; only then may anyone run the next step. Until it is
 * published the commit before stays whole. */
typedef struct tm_commit_opts {
    uint64_t step;
    const char *info; /* one JSON value, at most 1 MiB: tm_commit_info gives it back */
    size_t info_bytes;
} tm_commit_opts;
typedef struct tm_commit_stats {
    uint64_t write_bytes; /* resident objects and manifest */
    uint64_t ns;
} tm_commit_stats;
TM_MUST_USE tm_status tm_store_commit_prepare(tm_store *s, char *slab, const tm_commit_opts *opts,
                                              tm_commit_stats *stats);
TM_MUST_USE tm_status tm_store_commit_publish(tm_store *s, tm_commit_stats *stats);
void tm_store_commit_abandon(tm_store *s); /* what was prepared is not published */
/* Both, for one rank. */
TM_MUST_USE tm_status tm_store_commit(tm_store *s, char *slab, const tm_commit_opts *opts, tm_commit_stats *stats);

/* Opens the commit of a run directory: takes its lock, checks the manifest. TM_EINPUT: no directory, no commit in it,
 * its owner is alive (pid and host are named), or it, or one that its manifest names, is not the claim's (io/run/run.h; NULL:
 * any run's); TM_ECORRUPT: damaged. */
TM_MUST_USE tm_status tm_commit_open(tm_commit **out, const char *run_directory, const tm_io_claim *claim);
/* Reads and checks the manifest alone, whoever owns the directory: for looking at, not for going on from. */
TM_MUST_USE tm_status tm_commit_look(tm_commit **out, const char *run_directory);
/* With several ranks: a commit of `step` that was prepared in this directory, but not published before its process
 * died, while another rank's was: it becomes the commit. All ranks prepare before any publishes, so that it is there
 * and whole. */
TM_MUST_USE tm_status tm_commit_roll_forward(const char *run_directory, uint64_t step, const tm_io_claim *claim);
/* State read out of a commit, whoever owns its directory: object `number` of a kind, in the order of the layout that it
 * was made of. Pages are checked. Memory: one page, and 12 bytes an object. */
typedef struct tm_commit_reader tm_commit_reader;
TM_MUST_USE tm_status tm_commit_reader_open(tm_commit_reader **out, const char *run_directory);
void tm_commit_reader_close(tm_commit_reader *r); /* NULL is fine */
const tm_commit *tm_commit_reader_commit(const tm_commit_reader *r);
TM_MUST_USE tm_status tm_commit_read(tm_commit_reader *r, tm_kind kind, uint32_t number, uint64_t offset, void *buf,
                                     uint64_t bytes);
/* Every file that the commit names is there and as long as it was, else TM_ECORRUPT; no page is read. */
TM_MUST_USE tm_status tm_commit_present(const char *run_directory);
/* Reads every page that the commit names and holds it against its checksum. */
TM_MUST_USE tm_status tm_commit_prove(const char *run_directory);
/* Copies the commit of `run_directory` (nobody may be writing one there) to PATH/run-ID of each path, as run
 * directories of its own that nobody holds, whole and synced; every page is checked on the way. Memory: one MiB, a byte
 * an object.
 */
typedef struct tm_commit_copy_opts {
    const char *const *paths;   /* the manifest is in the first */
    const uint32_t *path_kinds; /* as in tm_store_opts */
    unsigned n_paths;
    const char *id, *key, *of, *home; /* as in tm_store_opts */
    unsigned slots;                   /* 2 for one to go on in, 1 for one to keep */
} tm_commit_copy_opts;
TM_MUST_USE tm_status tm_commit_copy(const char *run_directory, const tm_commit_copy_opts *opts);
void tm_commit_close(tm_commit *c);                   /* NULL is fine */
TM_MUST_USE tm_status tm_commit_remove(tm_commit *c); /* that was opened: with its directories; frees c */
uint64_t tm_commit_step(const tm_commit *c);
const tm_json *tm_commit_info(const tm_commit *c);
/* Fills resident state from its extents; the others are read when the plan does. Before the first run. */
TM_MUST_USE tm_status tm_store_restore(tm_store *s, char *slab);
/* Fills what is resident of the files that are read where they lie. Before the first run. */
TM_MUST_USE tm_status tm_store_load_frozen(tm_store *s, char *slab);

#endif

/* run: the directories that offload files lie in: who owns them, how they are reserved, reopened and removed. */
#ifndef TIDEMILL_IO_RUN_H
#define TIDEMILL_IO_RUN_H

#include "io/io.h"

/* ---- run directories ------------------------------------------------------------------------------------------ */

/* One run's directory under an offload path: PATH/run-<id>/, 0700, with a `lock` file held by flock on a descriptor
 * that no ring ever sees, and an `owner` file (key, what it is of, pid, host, start time, command): whose it is, and
 * for the one who finds it. Created with O_EXCL|O_NOFOLLOW; symlinks are not followed. */
typedef struct tm_io_run tm_io_run;

/* A random key of 128 bits proves whose a directory is: who made it wrote it into `owner`, and keeps it elsewhere. */
enum { TM_IO_KEY_CHARS = 32 };
void tm_io_make_key(char key[TM_IO_KEY_CHARS + 1]);
bool tm_io_is_key(const char *key);
/* Who asks for a directory that is there. */
typedef struct tm_io_claim {
    const char *key;          /* has to be that in `owner` */
    const char *of;           /* what the run is of (a full path), written beside it; NULL: as it was */
    const char *const *paths; /* the directory has to lie in one of these, by identity; n_paths 0: anywhere */
    unsigned n_paths;
} tm_io_claim;

typedef struct tm_io_run_opts {
    const char *id;       /* NULL: a fresh random id */
    const char *key, *of; /* of tm_io_claim; NULL: a fresh key, nothing */
    bool allow_tmpfs;     /* tmpfs and ramfs are memory: refused (TM_EINPUT) unless this is set */
    bool create_parents;  /* make PATH itself (0700) where it does not exist */
} tm_io_run_opts;
TM_MUST_USE tm_status tm_io_run_create(tm_io_run **out, const char *path, const tm_io_run_opts *opts);
const char *tm_io_run_path(const tm_io_run *run);    /* PATH/run-<id> */
bool tm_io_run_direct(const tm_io_run *run);         /* O_DIRECT works here (probed) */
uint32_t tm_io_run_alignment(const tm_io_run *run);  /* of offset, length and address: 512 or 4096; 1 if buffered */
uint64_t tm_io_run_free_bytes(const tm_io_run *run); /* statfs f_bavail now */
/* Unlinks the files that runs make and the directory, closes; frees `run` in any case. What somebody else put there
 * stays, directory included, with a warning. */
TM_MUST_USE tm_status tm_io_run_remove(tm_io_run *run);
bool tm_io_run_makes(const char *name); /* so it unlinks it */
void tm_io_run_close(tm_io_run *run);   /* leaves the files; NULL is fine */

/* Creates PATH/run-<id>/NAME (0600) of `bytes` bytes, rounded up to 4 KiB, space reserved (fallocate; TM_ENOSPC names
 * what is missing). `buffered` leaves O_DIRECT off. The run closes it. */
TM_MUST_USE tm_status tm_io_file_create(tm_io_run *run, const char *name, uint64_t bytes, bool buffered,
                                        tm_io_file *out);

/* Going on in the directory of a run that ended: takes its lock (waiting up to `wait_ms` for a process that is still
 * dying, or looks at it), makes sure that it is the claim's, writes itself down as the owner. TM_EINPUT: not there, not
 * the claim's, or its owner is alive: pid and host are named. `dir` is PATH/run-<id>. `claim` NULL: any whose `owner` a
 * run wrote, in this version or one before keys. */
TM_MUST_USE tm_status tm_io_run_reopen(tm_io_run **out, const char *dir, const tm_io_claim *claim, bool allow_tmpfs,
                                       unsigned wait_ms);
/* An existing file of at least `bytes` bytes; otherwise as tm_io_file_create. TM_ECORRUPT: missing or cut off. */
TM_MUST_USE tm_status tm_io_file_open(tm_io_run *run, const char *name, uint64_t bytes, bool buffered, tm_io_file *out);
TM_MUST_USE tm_status tm_io_run_unlink(tm_io_run *run, const char *name); /* absent is fine */
TM_MUST_USE tm_status tm_io_run_sync(tm_io_run *run); /* its entries, and its own in PATH, are on disk */
void tm_io_run_keep(tm_io_run *run);                  /* tm_io_cleanup_at_exit leaves it */

/* A small file of a run directory that appears under its name whole or not at all, in place of the one before. sync
 * brings it to the disk beside that one (NAME.next), publish renames it and syncs the directory. The first failure is
 * kept; a failed sync is final. */
typedef struct tm_io_atomic tm_io_atomic;
TM_MUST_USE tm_status tm_io_atomic_create(tm_io_atomic **out, tm_io_run *run, const char *name);
TM_MUST_USE tm_status tm_io_atomic_append(tm_io_atomic *d, const void *bytes, size_t n); /* buffered, 64 KiB */
TM_MUST_USE tm_status tm_io_atomic_sync(tm_io_atomic *d);
TM_MUST_USE tm_status tm_io_atomic_publish(tm_io_atomic *d); /* frees d in any case */
void tm_io_atomic_abandon(tm_io_atomic *d);                  /* NULL is fine */

/* Whose a run directory is, as its file `owner` says. */
typedef struct tm_io_owner {
    bool is_run;                   /* a directory with a lock file */
    bool alive;                    /* its lock is held */
    bool keyless;                  /* made by a version before keys */
    char key[TM_IO_KEY_CHARS + 1]; /* "": it proves nothing */
    char of[4096];
    long pid;         /* 0: unknown */
    char host[256];   /* "": unknown */
    char started[64]; /* UTC, ISO 8601 */
    char command[512];
} tm_io_owner;
/* A directory that a run was making when it was killed, without `owner` so far: removed if nothing else lies in it. */
TM_MUST_USE tm_status tm_io_run_discard_begun(const char *dir);
TM_MUST_USE tm_status tm_io_run_owner(const char *dir, tm_io_owner *out);
const char *tm_io_owner_say(const tm_io_owner *o, char *buf, size_t cap); /* "process 4711 on ...": buf */
/* TM_EINPUT, with the reason: `dir`, of which `owner` was read, is not the claim's. */
TM_MUST_USE tm_status tm_io_claim_check(const tm_io_claim *c, const char *dir, const tm_io_owner *o);

/* ---- folders that runs share ------------------------------------------------------------------------------------- */

/* A model that a run makes of another one, which any run may use that wants the same: `lock` and `owner` lie in it as in
 * a run directory. Whoever uses it holds the lock together with others, so that it is in use for whoever asks
 * tm_io_run_owner. It has a name of the caller's, who writes config.json last.
 *
 *     TM_TRY(tm_io_shared_open(&s, dir));               // s: it is there and stays
 *     if (!s) TM_TRY(tm_io_shared_create(&s, beside, key, of)); // then filled, and renamed to `dir`
 *     tm_io_shared_close(s);
 *     TM_TRY(tm_io_shared_remove(dir, NULL, 0, &gone)); // unless others use it
 */
typedef struct tm_io_shared tm_io_shared;
/* Makes DIR, held; key and `of` as in tm_io_run_opts. */
TM_MUST_USE tm_status tm_io_shared_create(tm_io_shared **out, const char *dir, const char *key, const char *of);
/* *out NULL: DIR is not there (any more). TM_EINPUT: what is there no run has made. */
TM_MUST_USE tm_status tm_io_shared_open(tm_io_shared **out, const char *dir);
void tm_io_shared_close(tm_io_shared *s); /* NULL is fine */
/* Removes the files of a model from DIR, `owner`, `lock` and DIR, if its key is `key` (NULL: any) and nobody uses it
 * after wait_ms. *gone: it is not there. TM_EINPUT as above. */
TM_MUST_USE tm_status tm_io_shared_remove(const char *dir, const char *key, unsigned wait_ms, bool *gone);

#endif

/* file: plain files and folders: a reader and an atomic writer for models, data, logs and results. */
#ifndef TIDEMILL_IO_FILE_H
#define TIDEMILL_IO_FILE_H

#include "io/io.h"

/* ---- plain files ---------------------------------------------------------------------------------------------- */

/* Reading. Positional, buffered by the kernel, never mmapped. Directories and FIFOs are TM_EINPUT. */
typedef struct tm_file tm_file;
TM_MUST_USE tm_status tm_file_open(tm_file **out, const char *path);
/* NAME below DIR: TM_EINPUT for absolute names, "..", NUL and names that leave DIR through a symlink. A symlink that is
 * the last component is followed (the Hub's cache is made of those). */
TM_MUST_USE tm_status tm_file_open_in(tm_file **out, const char *dir, const char *name);
void tm_file_close(tm_file *f); /* NULL is fine */
const char *tm_file_path(const tm_file *f);
uint64_t tm_file_size(const tm_file *f);
/* Exactly `len` bytes, or TM_EINPUT ("ends at byte ..., expected ...") / TM_EIO. */
TM_MUST_USE tm_status tm_file_read_at(tm_file *f, uint64_t offset, void *buf, size_t len);
/* A tm_read_fn (base.h) over an open file, from `pos` on; ctx is a tm_file_cursor. */
typedef struct tm_file_cursor {
    tm_file *file;
    uint64_t pos;
} tm_file_cursor;
tm_status tm_file_cursor_read(void *ctx, void *buf, size_t cap, size_t *got);
/* Tells the kernel that pages [offset, offset+len) will not be used again, so that a cgroup is not charged for them. */
void tm_file_forget(tm_file *f, uint64_t offset, uint64_t len);
/* A whole small file into `out` (appended); TM_EINPUT if larger than max. */
TM_MUST_USE tm_status tm_file_slurp(const char *path, size_t max, tm_buf *out);
/* The same as a tree (base.h), `flags` as there; errors name the path. */
TM_MUST_USE tm_status tm_json_load(tm_json_doc **out, const char *path, size_t max, unsigned flags);
bool tm_path_exists(const char *path);
/* Nothing is there. Of what may not be looked at that is not said: opening it tells. */
bool tm_path_absent(const char *path);
bool tm_path_is_dir(const char *path);
/* Bytes that may still be written under the folder that is there, or would be made, at `path`; 0: not known. */
uint64_t tm_free_bytes(const char *path);
/* mkdir -p (0777 & ~umask); TM_EINPUT if it cannot be. */
TM_MUST_USE tm_status tm_make_dirs(const char *path);
TM_MUST_USE tm_status tm_remove_tree(const char *path); /* does not follow symlinks; absent is fine */
/* rename(2): a finished folder takes its name. */
TM_MUST_USE tm_status tm_rename_path(const char *from, const char *to);
/* Folder `from` takes the name `to` in one step, and the folder's folder is brought to the disk: whoever looks finds
 * the old one or the new one, whole. What was there before is removed afterwards. */
TM_MUST_USE tm_status tm_publish_dir(const char *from, const char *to);
/* A folder goes: its name at once (it becomes PATH.tmp), then what is in it. Absent is fine. */
TM_MUST_USE tm_status tm_retire_dir(const char *path);
/* A file copied, as tm_out writes; where the file system can, both share their blocks. */
TM_MUST_USE tm_status tm_copy_file(const char *from, const char *to);
bool tm_remove_empty(const char *path); /* rmdir(2); true: it is not there (any more) */
/* One process at a time: made (as tm_make_dirs) and locked until released or the process ends; waits for `wait_ms`.
 * TM_EINPUT names the process that has it. Nothing is written there. */
typedef struct tm_dir_lock tm_dir_lock;
TM_MUST_USE tm_status tm_lock_dir(tm_dir_lock **out, const char *path, unsigned wait_ms);
void tm_unlock_dir(tm_dir_lock *h); /* NULL is fine */
typedef tm_status (*tm_dir_fn)(void *ctx, const char *name, bool is_dir);
TM_MUST_USE tm_status tm_list_dir(const char *path, tm_dir_fn fn, void *ctx); /* in byte order of the names */

/* Bytes [begin, begin + n) of `from` at `at` of an offload file, sharing their blocks; *shared false: this file system
 * cannot, and whoever asked has to copy. All three in units of its blocks. */
TM_MUST_USE tm_status tm_io_file_clone(const tm_io_file *to, uint64_t at, tm_file *from, uint64_t begin, uint64_t n,
                                       bool *shared);
typedef struct tm_io_clones {
    uint64_t shared_bytes, copied_bytes; /* of both calls above, by this process */
} tm_io_clones;
void tm_io_get_clones(tm_io_clones *out);

/* A plain file as an engine reads it, where it lies: read-only, past the page cache with `direct` if the file system
 * can (else file->alignment is 1). `path` has to outlive it. */
TM_MUST_USE tm_status tm_io_file_in_place(const char *path, bool direct, tm_io_file *out);
void tm_io_file_leave(tm_io_file *f); /* closes it; all zero is fine */
/* Of its size and time of modification: another number where a write has moved one of them; 0: they are not to be known. */
uint64_t tm_io_file_stamp(const tm_io_file *f);

/* Writing. The bytes go to a temporary file beside PATH; commit syncs, renames over PATH and syncs the directory.
 * Abandoned (closed without commit): nothing is left behind. Also usable positionally: write_at does not move the place
 * where append goes on, which starts at 0. The first failure is kept: commit then abandons and returns it. */
typedef struct tm_out tm_out;
TM_MUST_USE tm_status tm_out_create(tm_out **out, const char *path);
/* With a buffer of so many bytes (4 KiB at least, 1 MiB at most): of what is small, where memory is scarce. */
TM_MUST_USE tm_status tm_out_create_small(tm_out **out, const char *path, size_t buffer_bytes);
/* What only this process is to read, for as long as it does (0600): never under PATH, beside which it lies. */
TM_MUST_USE tm_status tm_out_create_scratch(tm_out **out, const char *path);
/* What was written as a file to read, whose name goes. Frees o in any case. */
TM_MUST_USE tm_status tm_out_read_back(tm_out *o, tm_file **in);
TM_MUST_USE tm_status tm_out_append(tm_out *o, const void *bytes, size_t n); /* buffered, 1 MiB */
TM_MUST_USE tm_status tm_out_write_at(tm_out *o, uint64_t offset, const void *bytes, size_t n);
/* Starts write-back of what was written and drops it from the page cache (for large results in a small cgroup). */
TM_MUST_USE tm_status tm_out_flush(tm_out *o);
uint64_t tm_out_size(const tm_out *o);
TM_MUST_USE tm_status tm_out_commit(tm_out *o); /* frees o in any case */
void tm_out_abandon(tm_out *o);                 /* NULL is fine */
/* Commits where all went well so far (`rc`), else abandons and returns rc. */
TM_MUST_USE tm_status tm_out_end(tm_out *o, tm_status rc);
/* The name that a file of this name was being written for, by some process; NULL: it is not such a file. */
const char *tm_out_target(const char *name);
/* A whole file at once. */
TM_MUST_USE tm_status tm_file_write(const char *path, const void *bytes, size_t n);
/* Log files: opened for append (0644), each line in one write, flushed to the kernel; '\n' is added where it lacks. */
typedef struct tm_append tm_append;
TM_MUST_USE tm_status tm_append_open(tm_append **out, const char *path, bool truncate);
TM_MUST_USE tm_status tm_append_line(tm_append *a, const char *line, size_t n);
TM_MUST_USE tm_status tm_append_bytes(tm_append *a, const void *bytes, size_t n); /* as they are */
TM_MUST_USE tm_status tm_append_sync(tm_append *a);                               /* what was appended is on the disk */
void tm_append_close(tm_append *a);

#endif

/* A run directory as run.c, run_file.c and run_reopen.c know it. */
#ifndef TIDEMILL_IO_RUN_INTERNAL_H
#define TIDEMILL_IO_RUN_INTERNAL_H

#include "io/file/file.h"
#include "io/io_internal.h"
#include "io/run/run.h"
#include "io/run/run.h"

enum { RUN_UNIT = 4096 }; /* files are whole multiples of it, whatever the alignment */

typedef struct run_file {
    struct run_file *next;
    int fd;
    char *path;
} run_file;

struct tm_io_run {
    io_live live;
    char *parent;       /* PATH */
    char *path;         /* PATH/run-<id> */
    bool made;          /* the directory is there */
    bool made_parent;   /* PATH was not there before */
    int fd;             /* of the directory */
    int lock_fd;        /* no ring may see it: a ring can hold a lock longer than its process lives */
    uint32_t alignment; /* 1: buffered */
    run_file *files;
};

bool io_run_name_is_plain(const char *id); /* 1 to 64 of A-Z a-z 0-9 . _ - */
tm_status io_run_refused(const char *path, int err);
tm_status io_run_check_filesystem(int fd, const char *path, bool allow_tmpfs);
int io_run_create_in(const tm_io_run *run, const char *name, int flags);       /* 0600, O_EXCL */
int io_run_open_dir(const char *dir);                                          /* no symlink; -1: errno */
tm_status io_run_write_owner(tm_io_run *run, const char *key, const char *of); /* in place of the one before */
void io_run_read_owner(int dir, tm_io_owner *out);
tm_status io_run_probe(tm_io_run *run); /* finds run->alignment */
tm_status io_run_remove_dir(tm_io_run *run);
void io_run_free(tm_io_run *run); /* closes what is open */

#endif

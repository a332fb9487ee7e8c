/* What machine.c, hardware.c and profile*.c share. */
#ifndef TIDEMILL_MACHINE_INTERNAL_H
#define TIDEMILL_MACHINE_INTERNAL_H

#include "offload/machine/machine.h"

enum { PROFILE_DISK_CAP = 192 };

/* "HOST MAJOR:MINOR FILESYSTEM" of the disk under `path`, which need not exist yet; false: cannot be found out. */
bool profile_disk_key(const char *path, char *key, size_t cap);
/* The longest part of `path` that exists. */
bool profile_existing_parent(const char *path, char *existing, size_t cap);

/* ---- the file in memory -------------------------------------------------------------------------------------- */

/* `backend` NULL: a disk, and `key` is its name. Otherwise seconds. */
typedef struct profile_entry {
    char *backend, *key;
    double seconds;
    tm_disk disk;
    uint64_t put; /* when, as a number that grows: in the order of the file, then of profile_put */
    bool changed;
} profile_entry;

/* Of seconds the file keeps so many, those that were put last: the process that reads them all holds its budget. */
enum { PROFILE_SECONDS = 512 };
typedef struct profile_entries {
    profile_entry *item;
    uint32_t n, cap;
    uint64_t puts;
    uint32_t *slot; /* [slots] index + 1 of an entry, by hash; 0: free */
    uint32_t slots;
} profile_entries;

profile_entry *profile_find(const profile_entries *e, const char *backend, const char *key); /* NULL: not there */
/* The entry of that name, a new one if need be; now it is the one that was put last. */
TM_MUST_USE tm_status profile_put(profile_entries *e, const char *backend, const char *key, profile_entry **out);
void profile_entries_free(profile_entries *e);
/* What the file says, of seconds those of back-end `only` (NULL: of all); nothing where there is none or it is damaged. */
TM_MUST_USE tm_status profile_load(profile_entries *e, const char *only);
/* Replaces the file. Sorts the entries, after which they can only be freed. */
TM_MUST_USE tm_status profile_store(profile_entries *e);

#endif

/* Who else of the job is on this machine, before MPI has told: by what the launcher put into the environment and by
 * /proc. For last words and the end of the job only. */
#include "comm/remote_internal.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENVIRON_BYTES = 256 << 10 };

/* The rank among the ranks of the job; Hydra without PMI has none. */
static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"};

static bool is_number(const char *text) {
    size_t n = 0;
    while (isdigit((unsigned char)text[n])) n++;
    return n > 0 && n < 10 && !text[n];
}

uint32_t comm_launch_rank(void) {
    for (size_t i = 0; i < TM_COUNT(variables); i++) {
        const char *value = getenv(variables[i]);
        if (value && is_number(value)) return (uint32_t)strtoul(value, NULL, 10);
    }
    return UINT32_MAX;
}

static size_t slurp(const char *pid, const char *name, char *text, size_t cap) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%.16s/%s", pid, name);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, cap - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return n;
}

/* "123 (name) T 99 ...": the name may hold anything, so the last ')' counts. */
static bool stopped_child_of(const char *pid, pid_t parent, const char *states) {
    char text[512], *at;
    if (!is_number(pid) || slurp(pid, "stat", text, sizeof text) == 0 || !(at = strrchr(text, ')'))) return false;
    return at[1] == ' ' && at[2] && strchr(states, at[2]) && strtol(at + 3, NULL, 10) == (long)parent;
}

/* Of a block of environment variables; NULL: it is not there. */
static const char *value_in(const char *block, size_t n, const char *variable) {
    size_t length = strlen(variable);
    for (size_t at = 0; at < n; at += strlen(block + at) + 1)
        if (!strncmp(block + at, variable, length) && block[at + length] == '=') return block + at + length + 1;
    return NULL;
}

/* A launcher that was launched itself hands its own variables on: the first of the list that is there knows best. */
static const char *rank_in(const char *block, size_t n) {
    for (size_t i = 0; i < TM_COUNT(variables); i++) {
        const char *value = value_in(block, n, variables[i]);
        if (value && is_number(value)) return value;
    }
    return NULL;
}

/* NULL: it is no other rank of this job. What a shell that is a rank itself has started is of the shell's rank, and a
 * launcher's server may have ranks of several jobs. */
static const char *other_rank_in(const char *block, size_t n) {
    static const char job[] = "PMIX_NAMESPACE";
    const char *rank = rank_in(block, n), *theirs = value_in(block, n, job), *ours = getenv(job);
    if (!rank || strtoul(rank, NULL, 10) == comm_launch_rank()) return NULL;
    if (!ours != !theirs) return NULL; /* a launcher names the job of all its ranks, or of none */
    return ours && strcmp(theirs, ours) != 0 ? NULL : rank;
}

/* The next one in the listing of /proc: its pid, and in `room` its rank. NULL: no more. */
static const char *next_stopped(DIR *d, const char *states, char *room, const char **rank) {
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!stopped_child_of(e->d_name, getppid(), states)) continue;
        *rank = other_rank_in(room, slurp(e->d_name, "environ", room, ENVIRON_BYTES));
        if (*rank) return e->d_name;
    }
    return NULL;
}

bool comm_stopped_sibling(char *text, size_t cap) {
    char *room = tm_malloc(ENVIRON_BYTES);
    DIR *d = room ? opendir("/proc") : NULL;
    const char *rank, *pid = d ? next_stopped(d, "Tt", room, &rank) : NULL;
    if (pid) snprintf(text, cap, "rank %s (pid %.10s) is stopped", rank, pid);
    if (d) closedir(d);
    tm_free(room);
    return pid != NULL;
}

void comm_end_stopped_siblings(void) {
    /* Without a launcher whoever lost its own is a child of 1, too: only a job's name tells them apart. */
    if (getppid() == 1 && !getenv("PMIX_NAMESPACE")) return;
    char *room = tm_malloc(ENVIRON_BYTES);
    DIR *d = room ? opendir("/proc") : NULL;
    const char *rank, *pid;
    while (d && (pid = next_stopped(d, "T", room, &rank)) != NULL) (void)kill((pid_t)strtol(pid, NULL, 10), SIGKILL);
    if (d) closedir(d);
    tm_free(room);
}

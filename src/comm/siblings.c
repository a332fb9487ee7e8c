/* Who else of the job is on this machine, before MPI has told: by what the launcher put into the environment and by
 * /proc. For last words only. */
#include "comm/remote_internal.h"

#include <ctype.h>
#include <dirent.h>
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
static bool stopped_child_of(const char *pid, pid_t parent) {
    char text[512], *at;
    if (!is_number(pid) || slurp(pid, "stat", text, sizeof text) == 0 || !(at = strrchr(text, ')'))) return false;
    return (at[1] == ' ' && (at[2] == 'T' || at[2] == 't')) && strtol(at + 3, NULL, 10) == (long)parent;
}

/* NULL: it is no rank. */
static const char *rank_in(const char *environ, size_t n) {
    for (size_t at = 0; at < n; at += strlen(environ + at) + 1) {
        const char *value = strchr(environ + at, '=');
        for (size_t i = 0; value && i < TM_COUNT(variables); i++) {
            size_t length = strlen(variables[i]);
            if (environ + at + length == value && !strncmp(environ + at, variables[i], length) && is_number(value + 1))
                return value + 1;
        }
    }
    return NULL;
}

bool comm_stopped_sibling(char *text, size_t cap) {
    char *environ = tm_malloc(ENVIRON_BYTES);
    DIR *d = environ ? opendir("/proc") : NULL;
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d)) != NULL;) {
        if (!stopped_child_of(e->d_name, getppid())) continue;
        const char *rank = rank_in(environ, slurp(e->d_name, "environ", environ, ENVIRON_BYTES));
        found = rank != NULL;
        if (found) snprintf(text, cap, "rank %s (pid %.10s) is stopped", rank, e->d_name);
    }
    if (d) closedir(d);
    tm_free(environ);
    return found;
}

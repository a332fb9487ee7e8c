/* What the machine says: memory in use and available, the clock. */
#include "base/base_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t tm_now_ns(void) {
    static const uint64_t ten_years = (uint64_t)315360000 * 1000000000u;
    struct timespec t;
    const char *kind;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    if (!tm_fault_hit("clock", &kind)) return now;
    return strcmp(kind, "back") == 0 ? now - tm_min_u64(now, ten_years) : now + ten_years;
}

/* The number behind "KEY<separator>" at the begin of a line; 0: there is none. */
static uint64_t line_value(const char *path, const char *key, char separator) {
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    char line[256];
    size_t n = strlen(key);
    uint64_t value = 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        found = strncmp(line, key, n) == 0 && line[n] == separator;
        if (found) value = strtoull(line + n + 1, NULL, 10);
    }
    fclose(f);
    return value;
}

uint64_t base_proc_kib(const char *path, const char *key) {
    return line_value(path, key, ':') * TM_KIB;
}

uint64_t tm_mem_resident_peak_bytes(void) {
    return base_proc_kib("/proc/self/status", "VmHWM");
}

/* "RAN WAITED SLICES", in ns. */
uint64_t tm_run_delay_ns(void) {
    FILE *f = fopen("/proc/thread-self/schedstat", "re");
    if (!f) return 0;
    char line[96], *end = line;
    bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    if (read) (void)strtoull(line, &end, 10);
    return read ? strtoull(end, NULL, 10) : 0;
}

/* A file with one number; `missing` if it is absent or says "max". */
static uint64_t number_in(const char *path, uint64_t missing) {
    FILE *f = fopen(path, "re");
    if (!f) return missing;
    char text[64] = "";
    char *got = fgets(text, sizeof text, f);
    fclose(f);
    if (!got || text[0] < '0' || text[0] > '9') return missing;
    return strtoull(text, NULL, 10);
}

/* Page cache that the kernel would give back under pressure; "KEY 123" in memory.stat. */
static uint64_t stat_value(const char *dir, const char *key) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    return line_value(path, key, ' ');
}

typedef struct cgroup_files {
    const char *mount, *limit, *usage, *cache;
} cgroup_files;
static const cgroup_files cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
static const cgroup_files cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                       "total_inactive_file"};

/* A group's own, without those above it. */
typedef uint64_t (*group_bytes)(const cgroup_files *v, const char *dir);

static uint64_t limit_of(const cgroup_files *v, const char *dir) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", dir, v->limit);
    return number_in(path, UINT64_MAX);
}

static uint64_t headroom_of(const cgroup_files *v, const char *dir) {
    char path[PATH_MAX + 32];
    uint64_t limit = limit_of(v, dir);
    if (limit == UINT64_MAX) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, v->usage);
    uint64_t used = number_in(path, 0);
    uint64_t cache = stat_value(dir, v->cache);
    used -= tm_min_u64(cache, used);
    return limit > used ? limit - used : 0;
}

/* The smallest from the process's group up to the mount: an ancestor's limit binds too. In a container the
 * path in /proc/self/cgroup may be the host's and not exist here; the walk then meets the container's own root at the
 * mount. */
static uint64_t least_upwards(group_bytes of, const cgroup_files *v, const char *group) {
    char dir[PATH_MAX];
    size_t root = strlen(v->mount);
    int n = snprintf(dir, sizeof dir, "%s%s", v->mount, strcmp(group, "/") == 0 ? "" : group);
    if (n < 0 || (size_t)n >= sizeof dir) return of(v, v->mount);
    uint64_t least = of(v, dir);
    while (strlen(dir) > root) {
        *strrchr(dir, '/') = 0;
        least = tm_min_u64(least, of(v, dir));
    }
    return least;
}

static bool has_controller(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        if (strcspn(p, ",") == n && strncmp(p, name, n) == 0) return true;
    }
    return false;
}

/* Lines "ID:CONTROLLERS:PATH"; v2 is "0::PATH". */
static uint64_t cgroup_least(group_bytes of) {
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return UINT64_MAX;
    char line[PATH_MAX];
    uint64_t least = UINT64_MAX;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || group[1] != '/' || strstr(group, "/..")) continue;
        *controllers++ = 0;
        *group++ = 0;
        if (strcmp(line, "0") == 0 && !*controllers) least = tm_min_u64(least, least_upwards(of, &cgroup_v2, group));
        if (has_controller(controllers, "memory")) least = tm_min_u64(least, least_upwards(of, &cgroup_v1, group));
    }
    fclose(f);
    return least;
}

uint64_t tm_mem_available_bytes(void) {
    uint64_t available = base_proc_kib("/proc/meminfo", "MemAvailable");
    return tm_min_u64(tm_min_u64(available ? available : UINT64_MAX, cgroup_least(headroom_of)), tm_address_left());
}

uint64_t tm_mem_total_bytes(void) {
    uint64_t total = base_proc_kib("/proc/meminfo", "MemTotal");
    return tm_min_u64(total ? total : UINT64_MAX, cgroup_least(limit_of));
}

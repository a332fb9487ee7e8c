/* tidemill doctor: what this machine has, and what to do where something is missing. */
#include "comm/comm.h"
#include "tools/doctor.h"
#include "tools/tools.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const verdict_names[] = {"ok", "warn", "fail"};

void doctor_add(report *r, const char *name, verdict v, const char *advice, const char *format, ...) {
    va_list args;
    TM_ASSERT(r->n < TM_COUNT(r->checks));
    check *c = &r->checks[r->n++];
    *c = (check){.name = name, .verdict = v, .advice = v == GOOD ? NULL : advice};
    va_start(args, format);
    vsnprintf(c->value, sizeof c->value, format, args);
    va_end(args);
}

void doctor_fix(report *r, const char *command) {
    check *c = &r->checks[r->n - 1];
    if (c->verdict != GOOD) c->fix = command;
}

/* The value of `key` in a file of "key<separator>value" lines; false if there is none. */
static bool file_value(const char *path, const char *key, char separator, char *out, size_t cap) {
    char line[512];
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        char *at = strchr(line, separator);
        if (strncmp(line, key, strlen(key)) != 0 || !at) continue;
        at += 1 + strspn(at + 1, " \t\"");
        at[strcspn(at, "\"\n")] = 0;
        snprintf(out, cap, "%s", at);
        found = true;
    }
    (void)fclose(f); /* was only read */
    return found;
}

static void check_system(report *r) {
    struct utsname u;
    char name[128];
    int major = 0, minor = 0;
    if (!file_value("/etc/os-release", "PRETTY_NAME=", '=', name, sizeof name)) snprintf(name, sizeof name, "unknown");
    if (uname(&u)) {
        doctor_add(r, "system", WARN, "uname failed; the kernel version is unknown", "%s", name);
        return;
    }
    if (sscanf(u.release, "%d.%d", &major, &minor) != 2) major = 0;
    doctor_add(r, "system", major > 5 || (major == 5 && minor >= 11) ? GOOD : WARN,
               "kernels before 5.11 lack io_uring features that are used here; a newer kernel reads and writes faster",
               "%s, %s %.60s, %s", name, u.sysname, u.release, u.machine);
}

#if defined(__x86_64__)
static bool has_amx_bf16(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
}

static bool cpu_features(char *out, size_t cap) {
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    snprintf(out, cap, "%s%s%s%s", avx2 ? "avx2 fma" : "no avx2", __builtin_cpu_supports("avx512f") ? " avx512f" : "",
             __builtin_cpu_supports("avx512bf16") ? " avx512bf16" : "", has_amx_bf16() ? " amx-bf16" : "");
    return avx2;
}
#else
static bool cpu_features(char *out, size_t cap) {
    snprintf(out, cap, "not x86-64");
    return false;
}
#endif

static void check_processor(report *r) {
    char name[128], features[96];
    cpu_set_t set;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), usable = cores;
    bool fast = cpu_features(features, sizeof features);
    if (!file_value("/proc/cpuinfo", "model name", ':', name, sizeof name)) snprintf(name, sizeof name, "unknown");
    doctor_add(r, "processor", fast ? GOOD : WARN, "without AVX2 the readable reference kernels run: right, but slow",
               "%s", name);
    doctor_add(r, "instruction sets", fast ? GOOD : WARN, "TIDEMILL_ISA forces a choice; see the README of src/kernels",
               "%s", features);
    if (sched_getaffinity(0, sizeof set, &set) == 0) usable = CPU_COUNT(&set);
    doctor_add(r, "cores", GOOD, NULL, "%d usable of %d online", usable, cores);
}

static void check_memory(report *r) {
    char total[64], size[32], available[32], used[32];
    unsigned long long kib = 0;
    uint64_t free_bytes = tm_mem_available_bytes();
    if (file_value("/proc/meminfo", "MemTotal", ':', total, sizeof total) && sscanf(total, "%llu", &kib) != 1) kib = 0;
    doctor_add(r, "memory", free_bytes >= 512 * TM_MIB ? GOOD : WARN,
               "less than 512 MiB is free: only small models fit; stop other programs or raise the container's limit",
               "%s available of %s; a run without host_budget would use %s",
               tm_format_size(free_bytes, available, sizeof available), tm_format_size(kib * TM_KIB, size, sizeof size),
               tm_format_size(free_bytes / 5 * 4, used, sizeof used));
}

static void check_memlock(report *r) {
    struct rlimit limit;
    char size[32];
    if (getrlimit(RLIMIT_MEMLOCK, &limit)) return;
    bool unlimited = limit.rlim_cur == RLIM_INFINITY;
    doctor_add(
        r, "locked memory", unlimited || limit.rlim_cur >= TM_GIB ? GOOD : WARN,
        "buffers may not be registered with the kernel, which costs some speed; raise it with 'ulimit -l unlimited' or "
        "a memlock line in /etc/security/limits.conf",
        "%s", unlimited ? "unlimited" : tm_format_size(limit.rlim_cur, size, sizeof size));
    doctor_fix(
        r,
        "ulimit -l unlimited || echo \"$USER - memlock unlimited\" | sudo tee -a /etc/security/limits.d/tidemill.conf");
}

static void check_uring(report *r) {
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    long fd = syscall(SYS_io_uring_setup, 4, &params);
    if (fd >= 0) {
        (void)close((int)fd);
        doctor_add(r, "io_uring", GOOD, NULL, "available");
        return;
    }
    doctor_add(r, "io_uring", WARN,
               errno == ENOSYS
                   ? "the kernel has no io_uring: threads do the I/O, somewhat slower"
                   : "forbidden here: threads do the I/O, somewhat slower; in a container allow it in the seccomp "
                     "profile, else set sysctl kernel.io_uring_disabled=0",
               "not available (%s)", strerror(errno));
    if (access("/proc/sys/kernel/io_uring_disabled", F_OK) == 0)
        doctor_fix(r, "sudo sysctl kernel.io_uring_disabled=0");
}

static const char *file_system_name(unsigned long type) {
    static const struct {
        unsigned long type;
        const char *name;
    } known[] = {{0xEF53, "ext4"},      {0x58465342, "xfs"},     {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"},
                 {0x858458F6, "ramfs"}, {0x794C7630, "overlay"}, {0x6969, "nfs"},       {0x2FC12FC1, "zfs"},
                 {0x65735546, "fuse"},  {0xF2F52010, "f2fs"}};
    for (size_t i = 0; i < TM_COUNT(known); i++)
        if (known[i].type == (type & 0xFFFFFFFF)) return known[i].name;
    return "unknown";
}

static void check_disk(report *r, const char *path) {
    struct statfs fs;
    char size[32];
    if (statfs(path, &fs)) {
        doctor_add(r, "disk", BAD, "name a folder that exists, on the disk that is to hold the offload files",
                   "%.120s: %s", path, strerror(errno));
        return;
    }
    const char *name = file_system_name((unsigned long)fs.f_type);
    bool memory = !strcmp(name, "tmpfs") || !strcmp(name, "ramfs");
    doctor_add(r, "disk", memory ? WARN : GOOD,
               "this folder lies in memory: offload files here would not save any, and are refused; name one on NVMe",
               "%.120s: %s, %s free", path, name,
               tm_format_size((uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize, size, sizeof size));
}

/* ---- libraries that are loaded at run time
 * --------------------------------------------------------------------------- */

typedef struct library {
    const char *name, *files[4], *advice, *fix;
    verdict if_missing;
} library;

static const library libraries[] = {
    {"OpenBLAS",
     {"libopenblas.so.0", "libopenblas.so"},
     "matrix products are slow without it: apt-get install libopenblas0",
     "sudo apt-get install -y libopenblas0-pthread",
     BAD},
};

static void check_libraries(report *r) {
    for (size_t i = 0; i < TM_COUNT(libraries); i++) {
        const library *l = &libraries[i];
        const char *found = NULL;
        for (size_t k = 0; k < TM_COUNT(l->files) && l->files[k] && !found; k++) {
            void *handle = dlopen(l->files[k], RTLD_LAZY | RTLD_LOCAL);
            if (handle) found = l->files[k]; /* stays loaded: OpenBLAS's threads do not survive an unload */
        }
        doctor_add(r, l->name, found ? GOOD : l->if_missing, l->advice, "%s", found ? found : "not found");
        doctor_fix(r, l->fix);
    }
}

/* What a launcher would find: the module, and MPI behind it. */
static void check_ranks(report *r) {
    char text[128], module[TM_MODULE_PATH];
    if (tm_comm_available(text, sizeof text) == TM_OK) {
        doctor_add(r, "several ranks", GOOD, NULL, "%s", text);
        return;
    }
    doctor_add(r, "several ranks", WARN, "needed for jobs under mpirun or srun only", "%s", tm_error_get()->text);
    doctor_fix(r, tm_module_find("mpi", module)
                      ? "sudo apt-get install -y openmpi-bin"
                      : "sudo apt-get install -y libopenmpi-dev openmpi-bin   # and build again: cmake --build build");
    tm_error_clear();
}

/* ---- printing
 * --------------------------------------------------------------------------------------------------------- */

static void print_text(const report *r) {
    printf("tidemill " TIDEMILL_VERSION "\n\n");
    for (size_t i = 0; i < r->n; i++) {
        const check *c = &r->checks[i];
        printf("  %-5s %-18s%s\n", verdict_names[c->verdict], c->name, c->value);
        if (c->advice) printf("        %-18s-> %s\n", "", c->advice);
    }
}

/* Lines to paste; what no line mends is a comment. */
static void print_fixes(const report *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const check *c = &r->checks[i];
        if (!c->advice) continue;
        printf("# %s: %s\n", c->name, c->advice);
        if (c->fix) printf("%s\n", c->fix);
        n++;
    }
    if (!n) printf("# nothing to mend\n");
}

tm_status tm_cmd_version(tm_json_writer *w) {
    static const char *const built[] = {
        "json",
#ifdef TIDEMILL_YAML
        "yaml",
#endif
#ifdef TIDEMILL_ZLIB
        "gzip",
#endif
#ifdef TIDEMILL_ZSTD
        "zstd",
#endif
    };
    report r = {.n = 0};
    check_system(&r);
    check_processor(&r);
    check_libraries(&r);
    check_ranks(&r);
    tm_jw_field_array(w, "reads");
    for (size_t i = 0; i < TM_COUNT(built); i++) tm_jw_str(w, built[i]);
    tm_jw_array_end(w);
    for (size_t i = 0; i < r.n; i++) tm_jw_field_str(w, r.checks[i].name, r.checks[i].value);
    return TM_OK;
}

static tm_status print_report_json(const report *r) {
    tm_json_writer w;
    tm_cli_json(&w, 2);
    tm_jw_field_str(&w, "version", TIDEMILL_VERSION);
    tm_jw_field_array(&w, "checks");
    for (size_t i = 0; i < r->n; i++) {
        const check *c = &r->checks[i];
        tm_jw_object(&w);
        tm_jw_field_str(&w, "name", c->name);
        tm_jw_field_str(&w, "status", verdict_names[c->verdict]);
        tm_jw_field_str(&w, "value", c->value);
        tm_jw_field_str(&w, "advice", c->advice);
        tm_jw_field_str(&w, "fix", c->fix);
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

int tm_cmd_doctor(int argc, char **argv) {
    bool json = false, fix = false;
    const char *path[1];
    const tm_opt opts[] = {
        TM_FLAG("fix", &fix, "print the commands that mend what is not well, to read and to paste"),
        TM_FLAG("json", &json, "print one JSON object: version, checks[{name, status, value, advice, fix}]")};
    const tm_cli cli = {
        .usage = "doctor [PATH] [--fix] [--json]",
        .about =
            "Checks what this machine has for training: processor, memory, disk I/O, libraries. Each line that is\n"
            "not 'ok' says what to do. PATH is the folder for offload files (default: the current one).\n"
            "Exit status 1 if something is missing that training needs.",
        .example = "tidemill doctor /mnt/nvme",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(path, 0, 1)};
    report r = {.n = 0};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (fix && json) return tm_cli_wrong("doctor", "--fix prints commands; --json has them as well");
    check_system(&r);
    check_processor(&r);
    check_memory(&r);
    check_memlock(&r);
    check_disk(&r, path[0] ? path[0] : ".");
    check_uring(&r);
    check_libraries(&r);
    check_ranks(&r);
    doctor_check_devices(&r);
    if (fix)
        print_fixes(&r);
    else if (!json)
        print_text(&r);
    else if (print_report_json(&r) != TM_OK)
        return tm_cmd_fail();
    for (size_t i = 0; i < r.n; i++)
        if (r.checks[i].verdict == BAD) return TM_EXIT_FAILED;
    return TM_EXIT_DONE;
}

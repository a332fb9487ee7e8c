/* Limits and files of the fuzzers. */
#include "fuzz.h"

#include "io/io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 8, DESCRIPTORS = 256 };
static const uint64_t most_bytes = 64 * TM_MIB, most_ns = 1000000000;

/* Freed blocks are kept from being used again for the length of some executions, not for a quarter of a gigabyte: with
 * that half of the time went into pages that the kernel cleared. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "quarantine_size_mb=4:malloc_context_size=5";
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static uint64_t live_bytes, began_ns, largest_input;

static uint64_t cpu_ns(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void fuzz_begin(size_t input_bytes) {
    tm_log_set_level(TM_LOG_ERROR);
    largest_input = tm_max_u64(largest_input, input_bytes);
    live_bytes = tm_mem_live_bytes();
    began_ns = cpu_ns();
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static struct {
    const char *name, *bytes;
    size_t n;
} files[FILES];
static unsigned n_files;
static int file_of[DESCRIPTORS]; /* index + 1; 0: a folder, or not ours */

void fuzz_end(void) {
    CHECK(cpu_ns() - began_ns <= most_ns);
    CHECK(tm_mem_peak_bytes() <= largest_input + most_bytes); /* of all inputs so far: at the end they hold nothing */
    CHECK(tm_mem_live_bytes() == live_bytes);
    n_files = 0;
}

static bool ends_so(const char *path, const char *name) {
    size_t n = strlen(path), m = strlen(name);
    return n >= m && strcmp(path + n - m, name) == 0 && (n == m || path[n - m - 1] == '/');
}

/* A descriptor that may be closed by close(2). */
static int descriptor(int index) {
    static int null = -1;
    if (null < 0) null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = fcntl(null, F_DUPFD_CLOEXEC, 0);
    CHECK(fd >= 0 && fd < DESCRIPTORS); /* else they leak */
    file_of[fd] = index + 1;
    return fd;
}

static int memory_openat(int dir, const char *path, int flags, mode_t mode) {
    (void)dir, (void)mode;
    CHECK((flags & (O_WRONLY | O_RDWR | O_CREAT)) == 0);
    for (unsigned i = 0; i < n_files; i++)
        if (ends_so(path, files[i].name)) return descriptor((int)i);
    if (flags & (O_PATH | O_DIRECTORY)) return descriptor(-1);
    return errno = ENOENT, -1;
}

static ssize_t memory_pread(int fd, void *buf, size_t n, off_t offset) {
    CHECK(fd >= 0 && fd < DESCRIPTORS && file_of[fd] && offset >= 0);
    unsigned i = (unsigned)file_of[fd] - 1;
    size_t left = (uint64_t)offset < files[i].n ? files[i].n - (size_t)offset : 0;
    if (n > left) n = left;
    if (n) memcpy(buf, files[i].bytes + offset, n);
    return (ssize_t)n;
}

static int memory_fstat(int fd, struct stat *st) {
    CHECK(fd >= 0 && fd < DESCRIPTORS);
    *st = (struct stat){.st_mode = file_of[fd] ? S_IFREG : S_IFDIR};
    if (file_of[fd]) st->st_size = (off_t)files[file_of[fd] - 1].n;
    return 0;
}

void fuzz_file(const char *name, const void *bytes, size_t n) {
    static io_sys table;
    CHECK(n_files < FILES);
    files[n_files].name = name;
    files[n_files].bytes = bytes;
    files[n_files++].n = n;
    if (table.openat) return;
    table = *io_sys_table;
    table.openat = memory_openat;
    table.pread = memory_pread;
    table.fstat = memory_fstat;
    io_sys_table = &table;
}

static char folder[] = "/tmp/tidemill-fuzz-XXXXXX";
static const char *const *folder_names;

static void remove_folder(void) {
    char path[PATH_MAX];
    for (const char *const *name = folder_names; *name; name++) {
        snprintf(path, sizeof path, "%s/%s", folder, *name);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

const char *fuzz_folder(const char *const *names) {
    char path[PATH_MAX];
    if (folder_names) return folder;
    CHECK(mkdtemp(folder));
    folder_names = names;
    (void)atexit(remove_folder);
    for (const char *const *name = names; *name; name++) {
        snprintf(path, sizeof path, "%s/%s", folder, *name);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        CHECK(fd >= 0);
        close(fd);
    }
    return folder;
}

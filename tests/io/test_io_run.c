/* Run directories: what is refused, what is reserved, what stays behind (nothing). Rows that need root skip loudly. */
#include "tests/io/world.h"
#include "tests/support/leave.h"
#include "tests/support/skip.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static char dir[64];

static const char *at(const char *name) {
    static char paths[4][512];
    static unsigned next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

static tm_status collect(void *ctx, const char *name, bool is_dir) {
    return tm_buf_printf(ctx, "%s%s ", name, is_dir ? "/" : "");
}

static void assert_listing(const char *path, const char *expected) {
    tm_buf b = {0};
    OK(tm_list_dir(path, collect, &b));
    assert_string_equal(b.data ? b.data : "", expected);
    tm_buf_free(&b);
}

static const tm_io_run_opts any = {.allow_tmpfs = true};

/* ---- children: what cannot be undone in this process ---- */

enum { SKIPPED = 77 };

/* Runs `fn` in a child whose stderr goes to a file; returns its exit status and what it said. */
static int in_child(int (*fn)(void), char *said, size_t cap) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(at("stderr"), O_RDWR | O_CREAT | O_TRUNC, 0600);
        dup2(fd, 2);
        leave(fn());
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    tm_buf b = {0};
    OK(tm_file_slurp(at("stderr"), 1 << 16, &b));
    snprintf(said, cap, "%s", b.data);
    tm_buf_free(&b);
    assert_int_equal(unlink(at("stderr")), 0);
    if (!WIFEXITED(status)) fail_msg("child: signal %d; %s", WTERMSIG(status), said);
    if (WEXITSTATUS(status) == SKIPPED)
        TEST_SKIP_PART("%.*s", (int)strcspn(said, "\n"), *said ? said : "a row that mounts or changes ids: takes root");
    return WEXITSTATUS(status);
}

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, tm_error_get()->text);                              \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p++) n++;
    return n;
}

/* A private mount namespace with `type` mounted on dir/mnt; -1: not allowed here. */
static int mounted(const char *type, const char *options) {
    if (mkdir(at("mnt"), 0700) != 0 && errno != EEXIST) return -1;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount(type, at("mnt"), type, 0, options) != 0) {
        fprintf(stderr, "mounting %s needs root: %s\n", type, strerror(errno));
        return -1;
    }
    return 0;
}

/* ---- life ---- */

static void test_life(void **state) {
    (void)state;
    tm_io_run *run;
    mode_t mask = umask(0); /* private even so */
    OK(tm_io_run_create(&run, dir, &any));
    tm_io_file f, b;
    OK(tm_io_file_create(run, "weight_hi", 1000000, false, &f));
    OK(tm_io_file_create(run, "index", 5, true, &b));
    umask(mask);
    assert_int_equal(strncmp(strrchr(tm_io_run_path(run), 47) + 1, "run-", 4), 0);
    assert_listing(tm_io_run_path(run), "index lock owner weight_hi ");
    struct stat st;
    assert_int_equal(stat(tm_io_run_path(run), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(stat(f.name, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, tm_round_up(1000000, 4096));
    assert_true((uint64_t)st.st_blocks * 512 >= 1000000); /* reserved, not only declared */
    assert_int_equal(f.index, -1);
    assert_int_equal(f.alignment, tm_io_run_alignment(run));
    assert_int_equal(b.alignment, 1);
    assert_int_equal(tm_io_run_direct(run), f.alignment > 1);
    if (tm_io_run_direct(run)) assert_true(fcntl(f.fd, F_GETFL) & O_DIRECT);
    assert_false(fcntl(b.fd, F_GETFL) & O_DIRECT);
    assert_true(fcntl(f.fd, F_GETFD) & FD_CLOEXEC);
    assert_true(tm_io_run_free_bytes(run) > 0);
    tm_buf owner = {0};
    char path[300], pid[32];
    snprintf(path, sizeof path, "%s/owner", tm_io_run_path(run));
    snprintf(pid, sizeof pid, "pid %ld\n", (long)getpid());
    OK(tm_file_slurp(path, 4096, &owner));
    assert_non_null(strstr(owner.data, pid));
    assert_non_null(strstr(owner.data, "test_io_run"));
    tm_buf_free(&owner);
    snprintf(path, sizeof path, "%s/lock", tm_io_run_path(run));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
    close(fd);
    FAILS(tm_io_file_create(run, "index", 5, true, &b), TM_EINPUT, "exists already");
    FAILS(tm_io_file_create(run, "../x", 5, true, &b), TM_EBUG, "name");
    FAILS(tm_io_file_create(run, "none", 0, true, &b), TM_EBUG, "0 bytes");
    OK(tm_io_run_remove(run));
    assert_listing(dir, "");
}

static void test_two_runs(void **state) {
    (void)state;
    tm_io_run *a, *b, *c;
    OK(tm_io_run_create(&a, dir, &any));
    OK(tm_io_run_create(&b, dir, &any));
    assert_string_not_equal(tm_io_run_path(a), tm_io_run_path(b));
    tm_io_run_opts named = {.allow_tmpfs = true, .id = "0123"};
    OK(tm_io_run_create(&c, dir, &named));
    tm_io_run *d;
    FAILS(tm_io_run_create(&d, dir, &named), TM_EINPUT, "exists already");
    assert_true(tm_path_exists(tm_io_run_path(c))); /* the refused one removed nothing */
    named.id = "../up";
    FAILS(tm_io_run_create(&d, dir, &named), TM_EINPUT, "run id");
    OK(tm_io_run_remove(a));
    OK(tm_io_run_remove(b));
    tm_io_run_close(c);
    tm_io_run_close(NULL);
    assert_listing(dir, "run-0123/ ");
    OK(tm_remove_tree(at("run-0123")));
}

static void test_parents(void **state) {
    (void)state;
    tm_io_run_opts opts = {.allow_tmpfs = true};
    tm_io_run *run, *other;
    FAILS(tm_io_run_create(&run, at("new"), &opts), TM_EINPUT, "no such directory");
    opts.create_parents = true;
    OK(tm_io_run_create(&run, at("new/offload/"), &opts));
    OK(tm_io_run_create(&other, at("new/offload"), &opts));
    OK(tm_io_run_remove(run)); /* not empty: stays */
    assert_true(tm_path_is_dir(at("new/offload")));
    OK(tm_io_run_remove(other)); /* did not make it: stays */
    assert_listing(at("new/offload"), "");
    OK(tm_remove_tree(at("new/offload")));
    OK(tm_io_run_create(&run, at("new/offload"), &opts));
    OK(tm_io_run_remove(run));
    assert_listing(at("new"), "");
    OK(tm_remove_tree(at("new")));
}

/* ---- refusals ---- */

static void test_refused(void **state) {
    (void)state;
    tm_io_run *run;
    int fd = open(at("file"), O_CREAT | O_WRONLY, 0600);
    close(fd);
    OK(tm_make_dirs(at("real")));
    assert_int_equal(symlink("real", at("link")), 0);
    tm_io_run_opts opts = {.allow_tmpfs = true};
    for (int create = 0; create < 2; create++) {
        opts.create_parents = create;
        FAILS(tm_io_run_create(&run, at("file"), &opts), TM_EINPUT, "is not a directory");
        FAILS(tm_io_run_create(&run, at("link"), &opts), TM_EINPUT, "symbolic link");
        assert_int_equal(tm_io_run_create(&run, at("file/below"), &opts), TM_EINPUT);
        tm_error_clear();
        FAILS(tm_io_run_create(&run, "", &opts), TM_EINPUT, "empty");
        assert_null(run);
    }
    assert_listing(at("real"), "");
    OK(tm_remove_tree(at("file")));
    OK(tm_remove_tree(at("link")));
    OK(tm_remove_tree(at("real")));
}

static void test_tmpfs(void **state) {
    (void)state;
    struct statfs st;
    if (statfs("/dev/shm", &st) != 0 || st.f_type != 0x01021994 || access("/dev/shm", W_OK) != 0) {
        TEST_SKIP_PART("/dev/shm is no tmpfs");
        return;
    }
    tm_io_run *run;
    char path[64]; /* other runs of this test use the place too */
    snprintf(path, sizeof path, "/dev/shm/tm-io-test-%d", getpid());
    FAILS(tm_io_run_create(&run, "/dev/shm", NULL), TM_EINPUT, "/dev/shm is tmpfs, which is memory");
    FAILS(tm_io_run_create(&run, path, &(tm_io_run_opts){.create_parents = true}), TM_EINPUT, "memory.allow_tmpfs");
    assert_false(tm_path_exists(path));
    OK(tm_io_run_create(&run, path, &(tm_io_run_opts){.create_parents = true, .allow_tmpfs = true}));
    OK(tm_io_run_remove(run));
    assert_false(tm_path_exists(path));
}

static int unwritable(void) {
    if (mkdir(at("ro"), 0555) != 0) return 1;
    if (chmod(dir, 0755) != 0) return 1;
    if (geteuid() == 0 && (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)) return SKIPPED;
    if (access(dir, X_OK) != 0) return fprintf(stderr, "the build directory is not open to others\n"), SKIPPED;
    tm_io_run *run;
    CHECK(tm_io_run_create(&run, at("ro"), &any) == TM_EINPUT);
    CHECK(strstr(tm_error_get()->text, "cannot be written"));
    return 0;
}

static void test_unwritable(void **state) {
    (void)state;
    char said[4096];
    int rc = in_child(unwritable, said, sizeof said);
    OK(tm_remove_tree(at("ro")));
    if (rc != 0 && rc != SKIPPED) fail_msg("%s", said);
}

/* ---- O_DIRECT ---- */

/* The file system refuses it: buffered, one warning however many runs. */
static int refused_direct(void) {
    for (int i = 0; i < 2; i++) {
        CHECK(tm_fault_set("open_direct:1:einval:once") == TM_OK);
        tm_io_run *run;
        tm_io_file f;
        CHECK(tm_io_run_create(&run, dir, &any) == TM_OK);
        CHECK(!tm_io_run_direct(run) && tm_io_run_alignment(run) == 1);
        CHECK(tm_io_file_create(run, "x", 10, false, &f) == TM_OK && f.alignment == 1);
        CHECK(!(fcntl(f.fd, F_GETFL) & O_DIRECT));
        CHECK(tm_io_run_remove(run) == TM_OK);
    }
    /* 512 bytes are refused, 4096 are not */
    tm_io_run *run;
    CHECK(tm_fault_set("pwrite:2:einval:once") == TM_OK); /* the first pwrite is `owner` */
    CHECK(tm_io_run_create(&run, dir, &any) == TM_OK);
    CHECK(tm_io_run_alignment(run) == 4096 || !tm_io_run_direct(run));
    CHECK(tm_io_run_remove(run) == TM_OK);
    return 0;
}

static void test_refused_direct(void **state) {
    (void)state;
    char said[4096];
    if (in_child(refused_direct, said, sizeof said) != 0) fail_msg("%s", said);
    assert_int_equal(count(said, "O_DIRECT does not work here"), 1);
}

/* The probe's transfers are tried again as any others are. */
static void test_interrupted_probe(void **state) {
    (void)state;
    static const char *const faults[] = {"pwrite:2:eintr:once", "pwrite:2:eagain:once", "pread:1:eintr:once",
                                         "pread:1:eagain:once"}; /* the first pwrite is `owner` */
    tm_io_run *run;
    OK(tm_io_run_create(&run, dir, &any));
    uint32_t alignment = tm_io_run_alignment(run);
    OK(tm_io_run_remove(run));
    for (size_t i = 0; i < TM_COUNT(faults); i++) {
        OK(tm_fault_set(faults[i]));
        OK(tm_io_run_create(&run, dir, &any));
        OK(tm_fault_set(NULL));
        assert_int_equal(tm_io_run_alignment(run), alignment);
        OK(tm_io_run_remove(run));
    }
}

static int on_ramfs(void) {
    if (mounted("ramfs", NULL) != 0) return SKIPPED;
    tm_io_run *run;
    CHECK(tm_io_run_create(&run, at("mnt"), NULL) == TM_EINPUT);
    CHECK(strstr(tm_error_get()->text, "is ramfs, which is memory"));
    tm_error_clear();
    CHECK(tm_io_run_create(&run, at("mnt"), &any) == TM_OK);
    CHECK(!tm_io_run_direct(run)); /* it really refuses O_DIRECT */
    CHECK(tm_io_run_remove(run) == TM_OK);
    return 0;
}

/* ---- space ---- */

static int on_small_tmpfs(void) {
    if (mounted("tmpfs", "size=4m") != 0) return SKIPPED;
    tm_io_run *run;
    tm_io_file f;
    CHECK(tm_io_run_create(&run, at("mnt"), &any) == TM_OK);
    uint64_t before = tm_io_run_free_bytes(run);
    CHECK(tm_io_file_create(run, "exp_avg", 8 * TM_MIB, false, &f) == TM_ENOSPC);
    CHECK(strstr(tm_error_get()->text, "`exp_avg` needs 8.00 MiB") && strstr(tm_error_get()->text, "is missing"));
    CHECK(f.fd == -1 && tm_io_run_free_bytes(run) == before);
    tm_error_clear();
    CHECK(tm_io_file_create(run, "exp_avg", 3 * TM_MIB, false, &f) == TM_OK);
    CHECK(tm_io_file_create(run, "exp_avg_sq", 3 * TM_MIB, false, &f) == TM_ENOSPC);
    tm_error_clear();
    /* Full in mid-run: the kernel takes a part of the bytes and says nothing; the engine must. */
    char *buf = calloc(1, 8 * TM_MIB), path[512];
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 2, 0);
        if (!io) continue;
        snprintf(path, sizeof path, "%s/sparse", tm_io_run_path(run));
        tm_io_file s = {.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), .index = -1, .name = path};
        tm_io_req r = {.op = TM_IO_WRITE, .file = s, .buf = buf, .len = 8 << 20}, *done[2], *batch[] = {&r};
        unsigned n;
        CHECK(tm_io_submit(io, batch, 1) == TM_OK);
        do {
            CHECK(tm_io_wait(io, done, 2, &n, true) == TM_OK);
        } while (n == 0);
        CHECK(n == 1 && r.status == TM_ENOSPC && r.sys_errno == ENOSPC && r.done < r.len && tm_io_in_flight(io) == 0);
        tm_io_close(io);
        close(s.fd);
        unlink(path);
    }
    free(buf);
    /* A result that does not fit leaves nothing. */
    tm_out *o;
    char *big = calloc(1, 2 * TM_MIB);
    snprintf(path, sizeof path, "%s/result", at("mnt"));
    CHECK(tm_out_create(&o, path) == TM_OK);
    tm_status rc = tm_out_append(o, big, 2 * TM_MIB);
    CHECK(rc == TM_ENOSPC);
    CHECK(tm_out_commit(o) == TM_ENOSPC && !tm_path_exists(path));
    tm_error_clear();
    free(big);
    CHECK(tm_io_run_remove(run) == TM_OK);
    CHECK(rmdir(at("mnt")) != 0); /* still mounted */
    struct statfs st;
    for (int i = 0; i < 6000; i++) { /* a ring lets go of its files a moment after it was closed */
        CHECK(statfs(at("mnt"), &st) == 0);
        if (st.f_bfree == st.f_blocks) break;
        usleep(10000);
    }
    CHECK(st.f_bfree == st.f_blocks);
    return 0;
}

static int file_size_limit(void) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit l = {1 << 20, 1 << 20};
    tm_io_run *run;
    tm_io_file f;
    CHECK(tm_io_run_create(&run, dir, &any) == TM_OK);
    CHECK(setrlimit(RLIMIT_FSIZE, &l) == 0);
    CHECK(tm_io_file_create(run, "x", 2 << 20, false, &f) == TM_ENOSPC);
    CHECK(tm_io_run_remove(run) == TM_OK);
    return 0;
}

static void test_no_fallocate(void **state) {
    (void)state;
    tm_io_run *run;
    tm_io_file f;
    OK(tm_io_run_create(&run, dir, &any));
    OK(tm_fault_set("fallocate:1:enotsup:once"));
    OK(tm_io_file_create(run, "x", 100000, false, &f)); /* with a warning */
    OK(tm_fault_set(NULL));
    struct stat st;
    assert_int_equal(fstat(f.fd, &st), 0);
    assert_int_equal(st.st_size, tm_round_up(100000, 4096));
    OK(tm_io_run_remove(run));
}

/* ---- what the machine may forbid ---- */

static int write_and_read(tm_io *io, tm_io_file f, char *buf, uint32_t len) {
    tm_io_req w = {.op = TM_IO_WRITE, .file = f, .buf = buf, .len = len}, r = w, *done[1], *batch[1];
    r.op = TM_IO_READ;
    fill(buf, 0, len, 1);
    for (int i = 0; i < 2; i++) {
        unsigned n;
        batch[0] = i ? &r : &w;
        CHECK(tm_io_submit(io, batch, 1) == TM_OK);
        do {
            CHECK(tm_io_wait(io, done, 1, &n, true) == TM_OK);
        } while (n == 0);
        CHECK(done[0]->status == TM_OK);
        if (!i) memset(buf, 0, len);
    }
    CHECK(matches(buf, 0, len, 1));
    return 0;
}

static int limited_memlock(rlim_t limit, const char *engine) {
    tm_io_run *run;
    tm_io_file f;
    uint32_t len = 16 << 20;
    char *buf = test_memory(len);
    CHECK(tm_io_run_create(&run, dir, &any) == TM_OK);
    CHECK(tm_io_file_create(run, "x", len, false, &f) == TM_OK);
    struct rlimit l = {limit, limit}; /* what `prlimit --memlock` gives */
    CHECK(setrlimit(RLIMIT_MEMLOCK, &l) == 0);
    if (geteuid() == 0 && (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 0) != 0)) return SKIPPED;
    tm_io *io;
    /* The limit is the user's, not the process's: rings of those that just ended count until the kernel has let go. */
    for (int tries = 0; tm_io_open(&io, &(tm_io_opts){.engine = engine}) != TM_OK; tries++) {
        CHECK(tries < 1200);
        tm_error_clear();
        usleep(50 * 1000);
    }
    CHECK(tm_io_register(io, buf, len / 2) == TM_OK);
    CHECK(tm_io_register(io, buf + len / 2, len / 2) == TM_OK);
    if (write_and_read(io, f, buf, len) != 0) return 1;
    tm_io_close(io);
    if (getuid() == 65534) CHECK(setresuid(0, 0, 0) == 0);
    CHECK(tm_io_run_remove(run) == TM_OK);
    return 0;
}

/* Room for the ring, not for buffers; none at all, which kernels take to mean different things. */
static int small_memlock(void) {
    return limited_memlock(65536, "uring");
}
static int no_memlock(void) {
    return limited_memlock(0, "auto");
}

/* What a container's profile (EPERM), a kernel without it (ENOSYS) and a security module (EACCES) do. */
static int no_uring(unsigned err) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = TM_COUNT(code), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        return fprintf(stderr, "no seccomp: %s\n", strerror(errno)), SKIPPED;
    }
    tm_io_run *run;
    tm_io_file f;
    char *buf = test_memory(65536);
    CHECK(tm_io_run_create(&run, dir, &any) == TM_OK);
    CHECK(tm_io_file_create(run, "x", 65536, false, &f) == TM_OK);
    for (int i = 0; i < 2; i++) {
        tm_io *io;
        CHECK(tm_io_open(&io, &(tm_io_opts){.engine = "uring"}) == TM_EUNSUPPORTED); /* asked for by name: refused */
        CHECK(strstr(tm_error_get()->text, "io_uring is not available here"));
        tm_error_clear();
        CHECK(tm_io_open(&io, &(tm_io_opts){.engine = "auto"}) == TM_OK);
        CHECK(strcmp(tm_io_engine_name(io), "threads") == 0);
        if (write_and_read(io, f, buf, 65536) != 0) return 1;
        tm_io_close(io);
    }
    CHECK(tm_io_run_remove(run) == TM_OK);
    return 0;
}

static int uring_eperm(void) {
    return no_uring(EPERM);
}
static int uring_enosys(void) {
    return no_uring(ENOSYS);
}
static int uring_eacces(void) {
    return no_uring(EACCES);
}

static void child_row(int (*fn)(void), const char *warning, int times) {
    char said[4096];
    int rc = in_child(fn, said, sizeof said);
    rmdir(at("mnt")); /* the mount went with the child's namespace */
    if (rc == SKIPPED) return;
    if (rc != 0) fail_msg("%s", said);
    if (warning) assert_int_equal(count(said, warning), times);
    assert_listing(dir, "");
}

static void test_ramfs(void **state) {
    (void)state;
    child_row(on_ramfs, "O_DIRECT does not work here", 1);
}

static void test_full_disk(void **state) {
    (void)state;
    child_row(on_small_tmpfs, NULL, 0);
}

static void test_file_size_limit(void **state) {
    (void)state;
    child_row(file_size_limit, NULL, 0);
}

static void test_memlock(void **state) {
    (void)state;
    tm_io *io;
    if (tm_io_open(&io, &(tm_io_opts){.engine = "uring"}) == TM_OK) {
        tm_io_close(io);
        child_row(small_memlock, "does not pin", 1);
    } else {
        TEST_SKIP_PART("%s", tm_error_get()->text);
        tm_error_clear();
    }
    child_row(no_memlock, "warning: io: ", 1); /* "does not pin", or "using threads" */
}

static void test_seccomp(void **state) {
    (void)state;
    child_row(uring_eperm, "using threads", 1);
    child_row(uring_enosys, "using threads", 1);
    child_row(uring_eacces, "using threads", 1);
}

/* ---- whose ---- */

static void leave_run(const char *id, const char *key, char *path, size_t cap) {
    tm_io_run *run;
    OK(tm_io_run_create(&run, dir, &(tm_io_run_opts){.allow_tmpfs = true, .id = id, .key = key, .of = "/a/b"}));
    snprintf(path, cap, "%s", tm_io_run_path(run));
    tm_io_run_keep(run);
    tm_io_run_close(run);
}

/* Only with the key and from a configured path; what is refused stays as it is, foreign files stay in any case. */
static void test_keys(void **state) {
    (void)state;
    char key[TM_IO_KEY_CHARS + 1], other[TM_IO_KEY_CHARS + 1], path[300];
    const char *here[] = {at("../io_run_nowhere"), dir}, *nowhere = at("sub");
    tm_io_run *run;
    tm_io_owner o;
    tm_io_make_key(key), tm_io_make_key(other);
    assert_true(tm_io_is_key(key) && strcmp(key, other) != 0);
    leave_run("k", key, path, sizeof path);
    OK(tm_io_run_owner(path, &o));
    assert_string_equal(o.key, key);
    assert_string_equal(o.of, "/a/b");
    assert_true(o.is_run && !o.alive && !o.keyless && o.pid == getpid());
    OK(tm_make_dirs(nowhere));
    FAILS(tm_io_run_reopen(&run, path, &(tm_io_claim){.key = other}, true, 0), TM_EINPUT, "belongs to another run");
    FAILS(tm_io_run_reopen(&run, path, &(tm_io_claim){.key = key, .paths = &nowhere, .n_paths = 1}, true, 0), TM_EINPUT,
          "none of the configured offload paths");
    OK(tm_io_run_reopen(&run, path, &(tm_io_claim){.key = key, .of = "/c", .paths = here, .n_paths = 2}, true, 0));
    OK(tm_io_run_owner(path, &o));
    assert_true(o.alive && strcmp(o.of, "/c") == 0 && strcmp(o.key, key) == 0);
    int fd = open(at("run-k/thesis"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && mkdir(at("run-k/weight_hi"), 0700) == 0);
    close(fd);
    OK(tm_io_run_remove(run));
    assert_listing(path, "thesis weight_hi/ ");
    FAILS(tm_io_run_reopen(&run, path, NULL, true, 0), TM_EINPUT, "lock"); /* not a run's any more */
    OK(tm_remove_tree(path));
    OK(tm_remove_tree(nowhere));
}

/* Killed before it had an owner. */
static void test_begun(void **state) {
    (void)state;
    const char *path = at("run-begun");
    OK(tm_make_dirs(path));
    int fd = open(at("run-begun/lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    OK(tm_io_run_discard_begun(path));
    assert_true(tm_path_exists(at("run-begun/lock"))); /* it is being made */
    close(fd);
    OK(tm_make_dirs(at("run-begun/thesis")));
    OK(tm_io_run_discard_begun(path));
    assert_listing(path, "thesis/ ");
    OK(tm_remove_tree(at("run-begun/thesis")));
    OK(tm_io_run_discard_begun(path));
    assert_false(tm_path_exists(path));
    OK(tm_io_run_discard_begun(path));
}

static void write_small(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, "x", 1) == 1);
    close(fd);
}

/* Used by two, removed by the last, and only what a run has made. */
static void test_shared(void **state) {
    static const char key[] = "0123456789abcdef0123456789abcdef", other[] = "ffffffffffffffffffffffffffffffff";
    tm_io_shared *a, *b;
    tm_io_owner o;
    bool gone;
    (void)state;
    const char *path = at("shared-base");
    OK(tm_io_shared_open(&a, path));
    assert_null(a);
    OK(tm_io_shared_create(&a, path, key, "/run/of/mine"));
    FAILS(tm_io_shared_create(&b, path, key, NULL), TM_EIO, path);
    write_small(at("shared-base/config.json")), write_small(at("shared-base/model-00001-of-00002.safetensors"));
    OK(tm_io_run_owner(path, &o));
    assert_true(o.is_run && o.alive);
    assert_string_equal(o.key, key);
    assert_string_equal(o.of, "/run/of/mine");
    OK(tm_io_shared_open(&b, path));
    assert_non_null(b);
    tm_io_shared_close(a);
    OK(tm_io_shared_remove(path, key, 20, &gone));
    assert_false(gone);
    tm_io_shared_close(b);
    OK(tm_io_shared_remove(path, other, 0, &gone));
    assert_false(gone);
    assert_listing(path, "config.json lock model-00001-of-00002.safetensors owner ");
    write_small(at("shared-base/thesis"));
    OK(tm_io_shared_remove(path, key, 0, &gone));
    assert_false(gone);
    assert_listing(path, "thesis ");
    FAILS(tm_io_shared_open(&a, path), TM_EINPUT, "no run has made it");
    FAILS(tm_io_shared_remove(path, NULL, 0, &gone), TM_EINPUT, "no run has made it");
    OK(tm_remove_tree(path));
    OK(tm_io_shared_create(&a, path, NULL, NULL));
    tm_io_shared_close(a);
    OK(tm_io_shared_remove(path, NULL, 0, &gone));
    assert_true(gone && !tm_path_exists(path));
}

/* Makers of two nodes sweep what is beside theirs: a folder that is begun is made all the same. */
static void test_shared_and_swept(void **state) {
    enum { TIMES = 3000 };
    (void)state;
    const char *path = at("shared-begun");
    pid_t sweeper = fork();
    if (sweeper == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (sweeper == 0)
        if (tm_io_run_discard_begun(path) != TM_OK) leave(1);
    for (unsigned i = 0; i < TIMES; i++) {
        tm_io_shared *s;
        tm_io_owner o;
        bool gone;
        OK(tm_io_shared_create(&s, path, NULL, NULL));
        OK(tm_io_run_owner(path, &o));
        assert_true(*o.key && o.alive);
        tm_io_shared_close(s);
        OK(tm_io_shared_remove(path, NULL, 1000, &gone));
        assert_true(gone);
    }
    assert_int_equal(waitpid(sweeper, &(int){0}, WNOHANG), 0);
    assert_int_equal(kill(sweeper, SIGKILL), 0);
    assert_int_equal(waitpid(sweeper, NULL, 0), sweeper);
}

static int set_up(void **state) {
    (void)state;
    strcpy(dir, test_dir());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),           cmocka_unit_test(test_two_runs),
        cmocka_unit_test(test_parents),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_tmpfs),          cmocka_unit_test(test_unwritable),
        cmocka_unit_test(test_refused_direct), cmocka_unit_test(test_interrupted_probe),
        cmocka_unit_test(test_ramfs),          cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_no_fallocate),   cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_memlock),        cmocka_unit_test(test_seccomp),
        cmocka_unit_test(test_keys),           cmocka_unit_test(test_begun),
        cmocka_unit_test(test_shared),         cmocka_unit_test(test_shared_and_swept),
    };
    return cmocka_run_group_tests(tests, set_up, test_tear_down);
}

#include "run.h"

#include "io/file/file.h"
#include "tests/support/leave.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- texts and folders that go at the end ---------------------------------------------------------------------- */

enum { MAX_KEPT = 1 << 16 }; /* walks make some at each step */
static char *kept[MAX_KEPT];
static unsigned n_kept, first_dir[MAX_KEPT], n_dirs;
static pid_t owner;
static char planned[32], learned[32]; /* profiles of the programs that are run, see choose_profile */
static const char *profile;

static char *keep(char *text) {
    assert_non_null(text);
    if (n_kept == MAX_KEPT) fail_msg("too many texts in one test program");
    kept[n_kept++] = text;
    return text;
}

const char *run_format(const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    assert_true(n >= 0);
    return keep(text);
}

const char *run_path(const char *dir, const char *name) {
    return run_format("%s/%s", dir, name);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

void run_remove(const char *path) {
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int run_clean(void **state) {
    (void)state;
    for (unsigned i = 0; i < n_dirs; i++) run_remove(kept[first_dir[i]]);
    for (unsigned i = 0; i < n_kept; i++) free(kept[i]);
    n_dirs = n_kept = 0;
    if (profile) (void)(unlink(planned) + unlink(learned));
    run_cgroup_remove();
    return 0;
}

static void clean_at_exit(void) {
    if (getpid() == owner) (void)run_clean(NULL);
}

const char *run_dir(void) {
    if (!owner) {
        owner = getpid();
        (void)atexit(clean_at_exit);
    }
    char *name = keep(strdup("e2e-XXXXXX"));
    if (!mkdtemp(name)) fail_msg("mkdtemp in the current folder: %s", strerror(errno));
    first_dir[n_dirs++] = n_kept - 1;
    return name;
}

void run_write(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (!f) fail_msg("%s: %s", path, strerror(errno));
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

char *run_read(const char *path, size_t *len) {
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t cap = 0;
    ssize_t n = getdelim(&text, &cap, EOF, f); /* no byte equals EOF as a char but 0xFF, which JSON has not */
    fclose(f);
    if (n < 0) {
        text = realloc(text, 1);
        n = 0;
        text[0] = 0;
    }
    if (len) *len = (size_t)n;
    return text;
}

const char *run_first_lines(const char *from, const char *dir, const char *name, unsigned n) {
    const char *path = run_path(dir, name);
    char *text = run_read(from, NULL), *end = text;
    while (n--) end = strchr(end, '\n') + 1;
    *end = 0;
    run_write(path, text);
    free(text);
    return path;
}

void run_copy(const char *from, const char *to) {
    char buffer[65536];
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    if (!in || !out) fail_msg("copy %s to %s: %s", from, to, strerror(errno));
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;) assert_int_equal(fwrite(buffer, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

void run_copy_model(const char *from, const char *to) {
    DIR *d = opendir(from);
    if (!d) fail_msg("%s: %s", from, strerror(errno));
    (void)mkdir(to, 0700);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        const char *path = run_path(from, e->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && strncmp(e->d_name, "golden", 6) != 0)
            run_copy(path, run_path(to, e->d_name));
    }
    closedir(d);
}

void run_damage(const char *path, off_t at) {
    char c = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= 16;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

unsigned run_entries(const char *dir) {
    unsigned n = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

/* ---- processes ------------------------------------------------------------------------------------------- */

static char *take(int fd, size_t *len) {
    off_t size = lseek(fd, 0, SEEK_END);
    assert_true(size >= 0);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)size, 0), size);
    text[size] = 0;
    if (len) *len = (size_t)size;
    close(fd);
    return text;
}

/* Only one of the ranks is told of the fault, or begins otherwise. */
static unsigned one_differs(char **argv, unsigned n, const run_opts *o) {
    char *script = (char *)(uintptr_t)run_format(
        "if [ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = %u ]; then %s%s; %s; fi; exec \"$0\" \"$@\"", o->fault_rank,
        o->fault ? "export TIDEMILL_FAULT=" : ":", o->fault ? o->fault : "", o->prelude ? o->prelude : ":");
    static const char *const shell[] = {"sh", "-c"};
    for (unsigned i = 0; i < TM_COUNT(shell); i++) argv[n++] = (char *)(uintptr_t)shell[i];
    argv[n++] = script;
    return n;
}

/* mpirun in front. As root and with more ranks than cores Open MPI has to be told (4, then 5); MPICH's takes no notice.
 */
static unsigned launcher(char **argv, const run_opts *o) {
    static const char *const words[] = {"mpirun", "-n"};
    static const char *const env[][2] = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                         {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                         {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                         {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                         {"PRTE_MCA_hwloc_default_binding_policy", "none"},
#ifdef TIDEMILL_SANITIZED /* MPI's own leaks are not ours */
                                         {"ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=0"},
#endif
                                         {"OMP_NUM_THREADS", "1"}};
    static char number[12];
    unsigned n = 0;
    for (; n < TM_COUNT(words); n++) argv[n] = (char *)(uintptr_t)words[n];
    snprintf(number, sizeof number, "%u", o->ranks);
    argv[n++] = number;
    for (unsigned i = 0; i < TM_COUNT(env); i++) (void)setenv(env[i][0], env[i][1], 1);
    return o->fault || o->prelude ? one_differs(argv, n, o) : n;
}

/* The user's program, unless the environment asks for faults: it refuses those. With coverage the test build, which
 * counts what ran when it ends its job. */
static const char *program(const run_opts *o) {
    if (o->program) return run_format("%s/%s", TM_TEST_PROGRAMS, o->program);
    if (o->fault || o->stop_at || __gcov_dump) return TM_TEST_FAULTY;
    for (unsigned i = 0; o->env && o->env[i]; i++)
        if (!strncmp(o->env[i], "TIDEMILL_FAULT=", 15) || !strncmp(o->env[i], "TIDEMILL_CHECKSUMS=", 19))
            return TM_TEST_FAULTY;
    return TM_TEST_BINARY;
}

static void limit_to(__rlimit_resource_t what, uint64_t bytes) {
    const struct rlimit r = {bytes, bytes};
    if (bytes && setrlimit(what, &r) != 0) _exit(125);
}

static void child(const run_opts *o, const char *const *arguments, int in, int out, int err) {
    char *argv[80] = {NULL};
    unsigned n = o->ranks ? launcher(argv, o) : 0;
    argv[n++] = (char *)(uintptr_t)program(o);
    for (unsigned i = 0; arguments[i] && i < 62; i++) argv[n++] = (char *)(uintptr_t)arguments[i];
    (void)setenv("TIDEMILL_PROFILE", profile, 1);
    if (o->stop_at)
        putenv((char *)(uintptr_t)run_format("TIDEMILL_FAULT=%s:stop:%s", o->stop_at,
                                             o->stop_again_ms ? "sticky" : "once"));
    for (unsigned i = 0; o->env && o->env[i]; i++) putenv((char *)(uintptr_t)o->env[i]);
    limit_to(RLIMIT_AS, o->address_bytes);
    limit_to(RLIMIT_STACK, o->stack_bytes);
    if (o->cgroup) {
        char path[512];
        snprintf(path, sizeof path, "%s/cgroup.procs", o->cgroup);
        int fd = open(path, O_WRONLY);
        if (fd < 0 || write(fd, "0", 1) != 1) _exit(126);
        close(fd);
    }
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    execvp(argv[0], argv);
    _exit(127);
}

/* VmHWM of the running program. Before exec it would be ours: told apart by the executable. */
static uint64_t sample_peak(pid_t pid) {
    char path[64], line[256], exe[4096];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, exe, sizeof exe - 1);
    if (n < 0) return 0;
    exe[n] = 0;
    if (!strstr(exe, "/tidemill")) return 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}

static bool file_not_empty(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && st.st_size > 0;
}

/* Those that a process has started and that are still there, oldest first. */
static unsigned children(pid_t pid, pid_t *child, unsigned cap) {
    char path[64], list[512];
    unsigned n = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (!fgets(list, sizeof list, f)) list[0] = 0;
    fclose(f);
    for (char *at = list, *end; n < cap && (child[n] = (pid_t)strtol(at, &end, 10)) > 0; at = end) n++;
    return n;
}

/* A rank is a child of the launcher; until it is there, and where none is meant, the launcher is hit. */
static pid_t target(pid_t pid, const run_opts *o) {
    pid_t child[64];
    if (!o->ranks || o->kill_rank == 0) return pid;
    unsigned n = children(pid, child, TM_COUNT(child));
    return o->kill_rank <= n ? child[o->kill_rank - 1] : pid;
}

/* The state letter of a process as /proc has it; 0: it is gone. */
static char state_of(pid_t pid) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    const char *name_end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    return name_end && name_end[1] ? name_end[2] : 0;
}

/* `pid`, or one that it started (`depth` generations of them), if it is stopped; 0: none is. */
static pid_t stopped(pid_t pid, unsigned depth) {
    pid_t child[64], found = state_of(pid) == 'T' ? pid : 0;
    unsigned n = found || depth == 0 ? 0 : children(pid, child, TM_COUNT(child));
    for (unsigned i = 0; i < n && !found; i++) found = stopped(child[i], depth - 1);
    return found;
}

/* Who is it that does not end, and where does it wait? */
static void print_tree(pid_t pid, unsigned depth) {
    char path[64], where[64] = "";
    pid_t child[64];
    snprintf(path, sizeof path, "/proc/%d/wchan", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && !fgets(where, sizeof where, f)) where[0] = 0;
    if (f) fclose(f);
    char state = state_of(pid);
    print_error("%*spid %d, state %c, in %s\n", (int)(2 * depth), "", (int)pid, state ? state : '-', where);
    unsigned n = depth < 4 ? children(pid, child, TM_COUNT(child)) : 0;
    for (unsigned i = 0; i < n; i++) print_tree(child[i], depth + 1);
}

/* Whoever has stopped itself is given what the test has for it, and goes on. */
static void meet_stop(pid_t pid, const run_opts *o, bool *signalled) {
    pid_t who = o->stop_at || o->at_stop ? stopped(pid, o->ranks ? 3 : 0) : 0;
    if (!who) return;
    if (o->at_stop) o->at_stop(o->at_stop_ctx);
    if (*signalled && o->stop_again_ms) usleep(o->stop_again_ms * 1000);
    if (o->signal && !*signalled) (void)kill(who, o->signal);
    *signalled = true;
    (void)kill(who, SIGCONT);
}

/* Limits are there to end what hangs, and say what a machine takes that does nothing else: others may use this one.
 * Ours ends the ranks and says what hung, so it comes before ctest's (600 s where a test has no other). */
enum { PATIENCE = 5, LIMIT_S = 100, LAUNCHER_LIMIT_S = 60 };

/* How long all ranks have been at their end while the launcher is not, looked at once a second: when a rank is killed,
 * mpirun itself may hang now and then, which is no fault of the ranks (src/comm/README.md). */
typedef struct launcher_watch {
    uint64_t looked_ns;
    unsigned seconds;
    bool seen; /* there were ranks */
} launcher_watch;

static bool launcher_hangs(pid_t pid, launcher_watch *w) {
    pid_t child[64];
    uint64_t now = tm_now_ns();
    if (now - w->looked_ns < 1000000000) return false;
    w->looked_ns = now;
    unsigned n = children(pid, child, TM_COUNT(child)), alive = 0;
    for (unsigned i = 0; i < n; i++) alive += state_of(child[i]) != 'Z';
    w->seen |= alive > 0;
    w->seconds = w->seen && alive == 0 ? w->seconds + 1 : 0;
    return w->seconds > LAUNCHER_LIMIT_S;
}

static int await(pid_t pid, int err, const run_opts *o, run_result *r) {
    uint64_t began = tm_now_ns(), limit = (uint64_t)(o->timeout_s ? o->timeout_s : LIMIT_S) * PATIENCE * 1000000000;
    uint64_t from = o->signal_when || o->stop_at ? 0 : began;
    bool signalled = false;
    launcher_watch launcher = {0};
    for (;;) {
        int status;
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) {
            r->seconds = (double)(tm_now_ns() - began) * 1e-9;
            return status;
        }
        uint64_t peak = sample_peak(pid);
        if (peak > r->peak_bytes) r->peak_bytes = peak;
        meet_stop(pid, o, &signalled);
        if (!from && o->signal_when && file_not_empty(o->signal_when)) from = tm_now_ns();
        bool now = from && tm_now_ns() - from >= (uint64_t)o->signal_after_ms * 1000000;
        if (o->signal && !signalled && now) {
            signalled = true;
            kill(target(pid, o), o->signal);
        }
        if (o->ranks && launcher_hangs(pid, &launcher) && (o->signal || o->fault)) {
            print_message("  the ranks have ended, mpirun has not for %d s: killed\n", LAUNCHER_LIMIT_S);
            kill(pid, SIGKILL);
        }
        if (tm_now_ns() - began > limit) {
            print_tree(pid, 0);
            kill(pid, o->ranks ? SIGTERM : SIGKILL); /* the launcher ends its ranks */
            if (o->ranks) sleep(3), kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            fail_msg("killed after %llu s; stderr:\n%s", (unsigned long long)(limit / 1000000000), take(err, NULL));
        }
        usleep(2000);
    }
}

/* Neither the user's nor that of tests beside this one. What a run learns of its operations' times, which on a busy
 * machine a short one does, too, would choose the plan of the next: each `train` has what `plan` wrote, and a name of
 * its own to replace it by. */
static void choose_profile(const char *command) {
    snprintf(planned, sizeof planned, "e2e-%d.planned", (int)getpid());
    snprintf(learned, sizeof learned, "e2e-%d.learned", (int)getpid());
    (void)unlink(learned);
    if (strcmp(command, "train") == 0 && link(planned, learned) != 0) (void)unlink(learned);
    profile = strcmp(command, "train") == 0 ? learned : planned;
}

/* mkdir -p of what follows "nvme_path": one path or a list, in JSON or after "=". */
static void make_named_paths(const char *text) {
    for (const char *at = text; (at = strstr(at, "nvme_path"));) {
        at += strlen("nvme_path");
        at += strspn(at, "\": =[");
        for (size_t n; (n = strcspn(at, "\", ]}\n")) > 0; at += strspn(at, "\", ")) {
            char path[4096];
            snprintf(path, sizeof path, "%.*s", (int)n, at);
            if (n < 256 && tm_make_dirs(path) != TM_OK) tm_error_clear(); /* what cannot be is for the program to say */
            at += n;
            if (*at != '"' || at[1] != ',') break;
        }
    }
}

static void make_offload_paths(const char *const *arguments) {
    for (; *arguments; arguments++) {
        size_t n = strlen(*arguments);
        bool file = n > 5 && strcmp(*arguments + n - 5, ".json") == 0 && access(*arguments, R_OK) == 0;
        char *text = file ? run_read(*arguments, NULL) : NULL;
        make_named_paths(text ? text : *arguments);
        free(text);
    }
}

run_result run_argv(const run_opts *o, const char *const *arguments) {
    run_result r = {0};
    if (strcmp(arguments[0], "train") == 0 && !o->as_it_is) make_offload_paths(arguments);
    choose_profile(arguments[0]);
    int in = memfd_create("in", MFD_CLOEXEC), out = memfd_create("out", MFD_CLOEXEC);
    int err = memfd_create("err", MFD_CLOEXEC);
    assert_true(in >= 0 && out >= 0 && err >= 0);
    size_t n = o->input ? strlen(o->input) : 0;
    assert_int_equal(pwrite(in, o->input ? o->input : "", n, 0), n);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) child(o, arguments, in, out, err);
    int status = await(pid, err, o, &r);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    close(in);
    r.out = take(out, &r.out_len);
    r.err = take(err, NULL);
    return r;
}

run_result run(run_opts opts, ...) {
    const char *arguments[64];
    unsigned n = 0;
    va_list args;
    va_start(args, opts);
    while (n < 63 && (arguments[n] = va_arg(args, const char *))) n++;
    va_end(args);
    arguments[n] = NULL;
    return run_argv(&opts, arguments);
}

void run_free(run_result *r) {
    free(r->out);
    free(r->err);
    *r = (run_result){0};
}

void run_expect_ok(const run_result *r, const char *file, int line) {
    if (r->status == 0) return;
    print_error("exit status %d; stderr:\n%s\n", r->status, r->err);
    _fail(file, line);
}

unsigned run_error_lines(const char *text, const char **first) {
    static char line[4096];
    unsigned n = 0;
    line[0] = 0;
    for (const char *at = text; at && *at; at = strchr(at, '\n'), at += at != NULL) {
        if (strncmp(at, "tidemill", 8) != 0) continue;
        if (n++ == 0) snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    }
    if (first) *first = line;
    return n;
}

/* ---- tensors
 * --------------------------------------------------------------------------------------------------------- */

tm_st *tensors_open(const char *path) {
    tm_st *st = NULL;
    RUN_EXPECT_STATUS(tm_st_open(&st, path));
    return st;
}

static uint32_t tensor_index(const tm_st *st, const char *name) {
    int64_t at = tm_st_find(st, name);
    if (at < 0) fail_msg("%s has no tensor %s", tm_st_path(st), name);
    return (uint32_t)at;
}

bool tensor_exists(const tm_st *st, const char *name) {
    return tm_st_find(st, name) >= 0;
}

tensor tensor_read(const tm_st *st, const char *name) {
    uint32_t i = tensor_index(st, name);
    tensor t = {.info = tm_st_get(st, i)};
    t.n = (size_t)t.info->elements;
    t.v = malloc(t.n * sizeof *t.v + 1);
    assert_non_null(t.v);
    RUN_EXPECT_STATUS(tm_st_read_f32(st, i, 0, t.n, t.v));
    return t;
}

int64_t *tensor_ints(const tm_st *st, const char *name, size_t *n) {
    uint32_t i = tensor_index(st, name);
    *n = (size_t)tm_st_get(st, i)->elements;
    int64_t *v = malloc(*n * sizeof *v + 1);
    assert_non_null(v);
    RUN_EXPECT_STATUS(tm_st_read_i64(st, i, 0, *n, v));
    return v;
}

static int64_t *rows_of(const tm_st *from, const char *name, size_t end, size_t *width) {
    size_t n;
    int64_t *v = tensor_ints(from, name, &n);
    const tm_st_info *info = tm_st_get(from, tensor_index(from, name));
    *width = (size_t)info->shape[info->ndim - 1];
    assert_true(end * *width <= n);
    return v;
}

void rows_write(const char *path, const tm_st *from, size_t first, size_t rows, size_t seq, bool learn_all) {
    static const char *const names[] = {"input_ids", "labels", "attention_mask"};
    enum { IDS, LABELS, MASK, ALL };
    int64_t *v[ALL];
    uint32_t t[ALL];
    size_t width = 0;
    tm_st_writer *w;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, path));
    for (int k = 0; k < ALL; k++) {
        RUN_EXPECT_STATUS(tm_st_writer_add(w, names[k], TM_FMT_I64, 2, (uint64_t[]){rows, seq}, &t[k]));
        v[k] = rows_of(from, names[k], first + rows, &width);
        assert_true(seq <= width);
    }
    for (size_t i = 0; learn_all && i < (first + rows) * width; i++) v[LABELS][i] = v[MASK][i] ? v[IDS][i] : -100;
    for (int k = 0; k < ALL; k++) {
        for (size_t r = 0; r < rows; r++)
            RUN_EXPECT_STATUS(tm_st_writer_write(w, t[k], r * seq * 8, v[k] + (first + r) * width, seq * 8));
        free(v[k]);
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
}

/* ---- training -------------------------------------------------------------------------------------------- */

static const tm_json *member(const tm_json *o, const char *key) {
    const tm_json *m = tm_json_get(o, key);
    if (!m) fail_msg("log.jsonl:%u: %s is missing", o->line, key);
    return m;
}

static uint64_t bytes_of(const tm_json *o, const char *key) {
    const tm_json *m = member(o, key);
    if (!m->is_integer || m->integer < 0) fail_msg("log.jsonl: %s is no count", key);
    return (uint64_t)m->integer;
}

static void read_step(train_log *log, const tm_json *o) {
    if (log->steps == LOG_STEPS) fail_msg("more than %d steps", LOG_STEPS);
    train_step *s = &log->step[log->steps++];
    assert_int_equal(member(o, "step")->integer, log->steps);
    *s = (train_step){.loss = member(o, "loss")->number,
                      .grad_norm = member(o, "grad_norm")->number,
                      .learning_rate = member(o, "learning_rate")->number,
                      .tokens = bytes_of(o, "tokens"),
                      .label_tokens = bytes_of(o, "label_tokens"),
                      .read_bytes = bytes_of(o, "read_bytes"),
                      .write_bytes = bytes_of(o, "write_bytes"),
                      .planned_read = bytes_of(o, "planned_read_bytes"),
                      .planned_write = bytes_of(o, "planned_write_bytes"),
                      .host_peak = bytes_of(o, "host_peak_bytes"),
                      .device_peak = bytes_of(o, "device_peak_bytes")};
    static const char *const copies[] = {"h2d_bytes", "d2h_bytes", "planned_h2d_bytes", "planned_d2h_bytes"};
    for (unsigned i = 0; s->device_peak && i < TM_COUNT(copies); i++)
        (i < 2 ? s->copied : s->planned_copied)[i % 2] = bytes_of(o, copies[i]);
    double data = member(o, "data_seconds")->number;
    assert_true(data > 0 && data < member(o, "step_seconds")->number);
    s->wait_copy = member(member(o, "wait_seconds"), "copy")->number;
    s->seconds = member(o, "step_seconds")->number;
    const tm_json *scale = tm_json_get(o, "loss_scale"), *skipped = tm_json_get(o, "skipped");
    s->loss_scale = scale ? scale->number : 0;
    s->skipped_steps = scale ? bytes_of(o, "skipped_steps") : 0;
    s->skipped = skipped && skipped->boolean;
    static const char *const also[] = {"tokens_per_second", "bytes_by_kind"};
    for (unsigned i = 0; i < TM_COUNT(also); i++) (void)member(o, also[i]);
    static const char *const waits[] = {"disk_read", "disk_write", "copy", "comm", "compute"};
    for (unsigned i = 0; i < TM_COUNT(waits); i++) (void)member(member(o, "wait_seconds"), waits[i]);
}

train_log train_log_read(const char *output_dir) {
    train_log log = {0};
    size_t len;
    bool ended = false;
    char *text = run_read(run_path(output_dir, "log.jsonl"), &len);
    for (char *at = text; at < text + len;) {
        size_t n = strcspn(at, "\n");
        tm_json_doc *doc;
        if (ended) fail_msg("%s/log.jsonl: the end event is not the last line", output_dir);
        RUN_EXPECT_STATUS(tm_json_parse(&doc, at, n, "log.jsonl", 0, 0));
        const tm_json *o = tm_json_root(doc), *event = tm_json_get(o, "event");
        if (!event) {
            read_step(&log, o);
        } else if (tm_json_is(event, "end")) {
            ended = true;
            snprintf(log.hash, sizeof log.hash, "%s", member(o, "state_hash")->text);
            assert_int_equal(strlen(log.hash), 32);
            assert_int_equal(member(o, "step")->integer, log.steps);
            log.host_peak = bytes_of(o, "host_peak_bytes");
        }
        tm_json_free(doc);
        at += n + (at[n] == '\n');
    }
    free(text);
    if (!ended) fail_msg("%s/log.jsonl: no end event", output_dir);
    return log;
}

uint64_t train_minimum(const char *err) {
    const char *at = strstr(err, "at least ");
    uint64_t bytes = at ? strtoull(at + 9, NULL, 10) : 0;
    if (bytes == 0) fail_msg("no minimum is named in: %s", err);
    return bytes;
}

void run_random_model(const char *dir) {
    if (mkdir(dir, 0700) != 0) fail_msg("%s: %s", dir, strerror(errno));
    run_write(run_path(dir, "config.json"),
              "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 256,\n"
              " \"intermediate_size\": 768, \"num_hidden_layers\": 6, \"num_attention_heads\": 4,\n"
              " \"num_key_value_heads\": 2, \"vocab_size\": 12000, \"max_position_embeddings\": 512,\n"
              " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
              " \"tie_word_embeddings\": true, \"initializer_range\": 0.02}\n");
}

void run_imagined_model(const char *dir, unsigned blocks) {
    if (mkdir(dir, 0700) != 0) fail_msg("%s: %s", dir, strerror(errno));
    run_write(run_path(dir, "config.json"),
              run_format("{\"model_type\": \"llama\", \"hidden_size\": 512, \"intermediate_size\": 1408,\n"
                         " \"num_hidden_layers\": %u, \"num_attention_heads\": 8, \"num_key_value_heads\": 8,\n"
                         " \"vocab_size\": 8192, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05,\n"
                         " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false,\n"
                         " \"initializer_range\": 0.02}\n",
                         blocks));
}

static run_result start_training(const char *config, const char *output, const run_opts *opts,
                                 const char *const *sets) {
    const char *arguments[48] = {"train", config, "--resume", "never", "--set", run_format("output_dir=%s", output)};
    unsigned n = 6;
    for (; *sets && n < 46; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    return run_argv(opts ? opts : &(run_opts){0}, arguments);
}

const char *run_directory(const char *output_dir, unsigned rank) {
    tm_json_doc *doc;
    size_t len;
    char *text = run_read(run_path(output_dir, "run.json"), &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "run.json", 0, 0));
    const tm_json *d = tm_json_get(tm_json_root(doc), "run_directories")->child;
    while (d && rank-- > 0) d = d->next;
    if (!d) fail_msg("%s/run.json names too few run directories", output_dir);
    const char *path = run_format("%s", d->text);
    tm_json_free(doc);
    free(text);
    return path;
}

train_log run_train(const char *config, const char *output, uint64_t budget, const run_opts *opts,
                    const char *const *sets) {
    run_result r = start_training(config, output, opts, sets);
    if (r.status != 0) {
        for (; *sets; sets++) print_error("  --set %s\n", *sets);
        fail_msg("exit status %d; stderr:\n%s", r.status, r.err);
    }
    train_log log = train_log_read(output);
    log.sampled_peak = r.peak_bytes;
    log.seconds = r.seconds;
    run_free(&r);
#ifdef TIDEMILL_SANITIZED
    budget = 0; /* shadow memory is resident too */
#endif
    if (budget && (log.host_peak > budget || log.sampled_peak > budget))
        fail_msg("budget %llu bytes, host_peak_bytes %llu, VmHWM %llu", (unsigned long long)budget,
                 (unsigned long long)log.host_peak, (unsigned long long)log.sampled_peak);
    for (unsigned i = 0; i < log.steps; i++) {
        assert_int_equal(log.step[i].read_bytes, log.step[i].planned_read);
        assert_int_equal(log.step[i].write_bytes, log.step[i].planned_write);
        for (int k = 0; k < 2; k++) assert_int_equal(log.step[i].copied[k], log.step[i].planned_copied[k]);
        assert_true(log.step[i].host_peak <= log.host_peak);
        if (i > 1)
            assert_int_equal(log.step[i].read_bytes, log.step[1].read_bytes); /* one plan: the same in each step */
        if (i > 1) assert_int_equal(log.step[i].write_bytes, log.step[1].write_bytes);
    }
    assert_int_equal(run_entries(run_path(output, "offload")), 0);
    return log;
}

uint64_t run_train_minimum(const char *config, const char *output, const char *const *sets) {
    const char *all[32] = {"memory.host_budget=1"};
    for (unsigned n = 1; *sets && n < 31; sets++) all[n++] = *sets;
    run_result r = start_training(config, output, NULL, all);
    if (r.status != 2) fail_msg("exit status %d for a budget of one byte: %s", r.status, r.err);
    assert_int_equal(run_error_lines(r.err, NULL), 1);
    uint64_t bytes = train_minimum(r.err);
    run_free(&r);
    return bytes;
}

uint64_t run_train_device_minimum(const char *config, const char *output, const char *const *sets) {
    const char *all[32] = {"memory.device=cpu-arena", "memory.device_budget=1"};
    for (unsigned n = 2; *sets && n < 31; sets++) all[n++] = *sets;
    run_result r = start_training(config, output, NULL, all);
    if (r.status != 2) fail_msg("exit status %d for an arena of one byte: %s", r.status, r.err);
    assert_int_equal(run_error_lines(r.err, NULL), 1);
    assert_non_null(strstr(r.err, "memory.device_budget"));
    uint64_t bytes = train_minimum(r.err);
    run_free(&r);
    return bytes;
}

/* ---- cgroups: v2 where it is mounted with a memory controller, else v1 ----------------------------------- */

static char cgroup_path[256];

static bool put(const char *dir, const char *name, const char *value) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY);
    if (fd < 0) return false;
    ssize_t n = write(fd, value, strlen(value));
    close(fd);
    return n == (ssize_t)strlen(value);
}

/* swap_file NULL: there is none of that kind. */
static bool try_cgroup(const char *root, const char *limit_file, const char *swap_file, const char *limit,
                       const char *swap) {
    snprintf(cgroup_path, sizeof cgroup_path, "%s/tidemill-test-%d", root, (int)getpid());
    bool made = mkdir(cgroup_path, 0755) == 0, limited = made && put(cgroup_path, limit_file, limit);
    if (limited) {
        if (swap_file)
            (void)put(cgroup_path, swap_file,
                      swap); /* absent where swap is not accounted: the limit holds all the same */
        return true;
    }
    if (made) (void)rmdir(cgroup_path);
    cgroup_path[0] = 0;
    return false;
}

const char *run_cgroup(uint64_t bytes) {
    char limit[32];
    snprintf(limit, sizeof limit, "%llu", (unsigned long long)bytes);
    if (try_cgroup("/sys/fs/cgroup", "memory.max", "memory.swap.max", limit, "0")) return cgroup_path;
    if (try_cgroup("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit, limit))
        return cgroup_path;
    return NULL;
}

const char *run_cgroup_threads(unsigned threads) {
    char limit[16];
    snprintf(limit, sizeof limit, "%u", threads);
    if (try_cgroup("/sys/fs/cgroup", "pids.max", NULL, limit, NULL)) return cgroup_path;
    if (try_cgroup("/sys/fs/cgroup/pids", "pids.max", NULL, limit, NULL)) return cgroup_path;
    return NULL;
}

void run_cgroup_remove(void) {
    for (int i = 0; cgroup_path[0] && rmdir(cgroup_path) != 0 && errno == EBUSY && i < 50; i++) usleep(20000);
    cgroup_path[0] = 0;
}

/* ---- the real model, where it lies beside the checkout --------------------------------------------------- */

const char *smollm2_gguf(void) {
    static const char path[] = TM_TEST_SHARED "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    return access(path, R_OK) == 0 && access(smollm2_fixture("golden.json"), R_OK) == 0 ? path : NULL;
}

const char *smollm2_fixture(const char *file) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/fixtures/public/smollm2/%s", TM_TEST_SHARED, file);
    return path;
}

paged_scene paged_scene_open(const char *run, const char *memory) {
    paged_scene s = {.dir = run_dir()};
    const char *model = run_path(s.dir, "model"), *rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 4, 16, false);
    tm_st_close(golden);
    run_write(s.config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 16}, %s,"
                                   " \"output_dir\": \"%s\", \"memory\": {%s}, \"zero_optimization\": {"
                                   " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
                                   " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                                   model, rows, run, s.output, memory, s.offload, s.offload));
    return s;
}

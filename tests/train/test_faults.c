/* Every call of a small job fails, falls short, lies or is the process's last, once or from then on: I/O by its call
 * names, allocations, readings of the clock, the named points to die at. A job is two runs over one OUTPUT_DIR: two
 * steps with commits, then four, from the second commit on, with a full checkpoint and an export. Each case is a
 * process forked for it. What must hold:
 *   - it ends within a minute, and gives back its memory and descriptors;
 *   - it ends well, with the bits of the run that nobody disturbed, or with one error that says what is wrong;
 *   - after an error or a kill the same job without the fault comes to those bits and leaves nothing behind;
 *   - what only comes late or in parts (EINTR, EAGAIN, short) is not even an error;
 *   - bytes that a disk changed, lost or put elsewhere are found out before they count.
 * The calls are counted first, so that a seam with a new name is walked without being listed here.
 *
 * TIDEMILL_FAULT_CASES=N TIDEMILL_FAULT_SEED=S: that many drawn at random (default 150, 1).
 * TIDEMILL_FAULT_CALL=NAME|all [TIDEMILL_FAULT_WAY=W]: every index, kind and mode of that call, or of all.
 * TIDEMILL_FAULT_PART=I/N: of those, every N-th from the I-th on.
 * TIDEMILL_FAULT_VERBOSE=1: each case is named before it runs. */
#include "io/io_internal.h"
#include "kernels/kernels.h"
#include "run.h"
#include "tests/support/skip.h"
#include "tests/support/support.h"
#include "tests/support/leave.h"
#include "train/train.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef TIDEMILL_SANITIZED
int __lsan_do_recoverable_leak_check(void);
#else
static int __lsan_do_recoverable_leak_check(void) {
    return 0;
}
#endif

/* No process hangs: it asks for no more sleep than this, and is over by then. (The clock is given six times as long where
 * other tests run beside this one.) */
#define LIMIT_NS ((uint64_t)10 * 1000 * 1000 * 1000)

enum { WAYS = 12, MAX_CALLS = 48, FIRST_STEPS = 2, STEPS = 4 };
static const char *const engine[] = {"sync", "threads", "uring"}, *const update[] = {"U", "F"};

typedef struct counted {
    char name[32];
    uint64_t calls;
} counted;

/* What the child tells before it goes. */
typedef struct report {
    bool ended, met_input; /* the fault met a read of what the user gave */
    tm_status status;
    char text[2048];
    uint64_t hits, held_bytes;  /* calls of the spec's name; allocated and not given back */
    _Atomic uint64_t asleep_ns; /* that its threads asked for, one after another */
    int descriptors, leaks;
    counted call[MAX_CALLS];
    unsigned n_calls;
} report;

typedef struct scene {
    const char *dir, *config, *output, *offload, *log, *exported;
    report *r;
    int err; /* its stderr */
    char hash[40];
    uint64_t model; /* hash of the exported file */
    uint64_t held_bytes;
    unsigned entries; /* of OUTPUT_DIR at the end */
} scene;

/* Of all processes the one that took the longest, with what failed in it. */
static struct {
    uint64_t ns, asleep_ns;
    char spec[64], sleeper[64];
} longest;

typedef struct fault_case {
    const char *call, *kind;
    uint64_t at;
    bool sticky;
    unsigned way;
} fault_case;

/* ---- what would only cost time ----------------------------------------------------------------------------------- */

static report *asleep; /* where sleeps are added up; NULL: nowhere */

/* Of the library, too: what is tried again and again (EAGAIN that stays) is tried as often, but not for seconds. What it
 * would have slept counts all the same (check_process). */
int nanosleep(const struct timespec *asked, struct timespec *left) {
    uint64_t ns = (uint64_t)asked->tv_sec * 1000000000 + (uint64_t)asked->tv_nsec;
    (void)left; /* none: what interrupts it ends it */
    if (asleep) asleep->asleep_ns += ns;
    const struct timespec t = {.tv_sec = (time_t)(ns / 100000000000), .tv_nsec = (long)(ns / 100 % 1000000000)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    return 0;
}

/* A third of a case's time went into loading what every child loads: it finds it loaded (gemm_openblas.c; by the core
 * type that the library itself chooses, in all of them). */
static void load_before_fork(void) {
    (void)dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

static const char *memory_dir(void) { /* no disk has to move for a process that only seems to die */
    static char dir[] = "/dev/shm/tidemill-faults-XXXXXX";
    return mkdtemp(dir) ? dir : run_dir();
}

static void write_config(const char *dir) {
    (void)mkdir(dir, 0700);
    run_write(run_path(dir, "config.json"),
              "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 32,\n"
              " \"intermediate_size\": 32, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,\n"
              " \"num_key_value_heads\": 1, \"vocab_size\": 256, \"max_position_embeddings\": 32,\n"
              " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
              " \"tie_word_embeddings\": true, \"initializer_range\": 0.02}\n");
}

static scene scene_open(void) {
    scene s = {.dir = memory_dir()};
    const char *rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    assert_int_equal(mkdir(s.offload, 0700), 0);
    s.log = run_path(s.output, "log.jsonl");
    s.exported = run_path(s.output, "model.safetensors");
    s.err = memfd_create("err", MFD_CLOEXEC);
    s.r = mmap(NULL, sizeof *s.r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s.err >= 0 && s.r != MAP_FAILED);
    write_config(run_path(s.dir, "random"));
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 2, 8, false);
    tm_st_close(golden);
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 8},"
                         " \"precision\": \"bf16\", \"commit_steps\": 1, \"save_state\": true, \"save_steps\": 3,"
                         " \"lr_scheduler_type\": \"constant\", \"learning_rate\": 0.01,"
                         " \"memory\": {\"allow_tmpfs\": true}, \"output_dir\": \"%s\","
                         " \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\":"
                         " \"%s\"}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                         run_path(s.dir, "model"), rows, s.output, s.offload, s.offload));
    return s;
}

static tm_status train(const scene *s, const char *model, int steps, bool keep, unsigned way) {
    char max_steps[32], io[48], upd[48];
    snprintf(max_steps, sizeof max_steps, "max_steps=%d", steps);
    snprintf(io, sizeof io, "memory.io_engine=%s", engine[way % 3]);
    snprintf(upd, sizeof upd, "memory.update=%s", update[way / 3 % 2]);
    const char *set[] = {max_steps,
                         io,
                         upd,
                         way / 6 % 2 ? "memory.cache=auto" : "memory.cache=none",
                         keep ? "keep_state=true" : "keep_state=false",
                         "init=random",
                         "save_state=false",
                         model};
    return tm_train_run(&(tm_train_args){.config = s->config, .set = set, .n_set = model ? 8 : 5, .quiet = true});
}

static int open_descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void note_tally(report *r) {
    const char *name;
    uint64_t n;
    for (r->n_calls = 0; r->n_calls < MAX_CALLS && tm_fault_tally(r->n_calls, &name, &n); r->n_calls++) {
        snprintf(r->call[r->n_calls].name, sizeof r->call[0].name, "%s", name);
        r->call[r->n_calls].calls = n;
    }
}

/* ---- what a read that lies would have read --------------------------------------------------------------------- */

static struct {
    const scene *s;
    uint64_t at;
    bool sticky;
    const io_sys *beneath;
    pthread_mutex_t lock;
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_input(int fd) {
    char link[64], path[512];
    const scene *s = watched.s;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return strncmp(path, s->dir, strlen(s->dir)) == 0 && strncmp(path, s->output, strlen(s->output)) != 0 &&
           strncmp(path, s->offload, strlen(s->offload)) != 0;
}

/* One at a time: which of two that run at once was met could not be told. */
static ssize_t watching_pread(int fd, void *buf, size_t n, off_t offset) {
    pthread_mutex_lock(&watched.lock);
    ssize_t got = watched.beneath->pread(fd, buf, n, offset);
    int err = errno;
    uint64_t i = tm_fault_calls();
    if ((i == watched.at || (watched.sticky && i > watched.at)) && is_input(fd)) watched.s->r->met_input = true;
    pthread_mutex_unlock(&watched.lock);
    errno = err;
    return got;
}

static void watch_reads(const scene *s, const char *spec) {
    static const char call[] = "pread:";
    static io_sys table;
    if (!spec || strncmp(spec, call, sizeof call - 1) != 0) return;
    watched.s = s, watched.at = strtoull(spec + sizeof call - 1, NULL, 10), watched.sticky = strstr(spec, ":sticky");
    watched.beneath = io_sys_table;
    table = *io_sys_table;
    table.pread = watching_pread;
    io_sys_table = &table;
}

/* In the child. `resumed`: whatever there is, to the end; else both runs. */
static void job(const scene *s, const char *spec, bool resumed, unsigned way) {
    report *r = s->r;
    int before = open_descriptors();
    if (dup2(s->err, 2) < 0) _exit(9);
    watch_reads(s, spec);
    tm_status rc = tm_fault_set(spec);
    if (rc == TM_OK && !resumed) rc = train(s, NULL, FIRST_STEPS, true, way);
    if (rc == TM_OK) rc = train(s, NULL, STEPS, false, way);
    r->hits = tm_fault_calls();
    note_tally(r);
    (void)tm_fault_set(NULL);
    r->status = rc;
    snprintf(r->text, sizeof r->text, "%s", tm_error_get()->text);
    tm_kernels_close();
    r->held_bytes = tm_mem_live_bytes();
    r->descriptors = open_descriptors() - before;
    r->leaks = __lsan_do_recoverable_leak_check();
    r->ended = true;
    leave(0);
}

/* ---- one process ------------------------------------------------------------------------------------------------- */

static const char *said(const scene *s) {
    static char text[4000];
    ssize_t n = pread(s->err, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

/* The signal that ended it, 0: none; -1: it had to be ended. */
static int process(const scene *s, const char *spec, bool resumed, unsigned way) {
    int status = 0;
    memset((void *)s->r, 0, sizeof *s->r);
    asleep = s->r;
    assert_int_equal(ftruncate(s->err, 0), 0);
    (void)lseek(s->err, 0, SEEK_SET);
    fflush(NULL);
    uint64_t began = tm_now_ns();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) job(s, spec, resumed, way);
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    assert_true(p.fd >= 0);
    bool hangs = poll(&p, 1, long_run() ? LIMIT_NS / 1000000 : 60000) != 1;
    close(p.fd);
    if (hangs) (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (tm_now_ns() - began > longest.ns) {
        longest.ns = tm_now_ns() - began;
        snprintf(longest.spec, sizeof longest.spec, "%s", spec ? spec : "no fault");
    }
    if (s->r->asleep_ns > longest.asleep_ns) {
        longest.asleep_ns = s->r->asleep_ns;
        snprintf(longest.sleeper, sizeof longest.sleeper, "%s", spec ? spec : "no fault");
    }
    return hangs ? -1 : WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void start_over(const scene *s) {
    run_remove(s->output);
    run_remove(s->offload);
    assert_int_equal(mkdir(s->offload, 0700), 0);
}

/* "" where there is none. A write of the log that went elsewhere leaves zeros before it: the log is no state. */
static const char *end_hash(const scene *s) {
    static char hash[40];
    static const char key[] = "\"state_hash\":";
    hash[0] = 0;
    if (access(s->log, R_OK) != 0) return hash;
    size_t n;
    char *text = run_read(s->log, &n), *at = memmem(text, n, key, sizeof key - 1);
    if (at && (at = strchr(at + sizeof key - 1, '"'))) snprintf(hash, sizeof hash, "%.32s", at + 1);
    free(text);
    return hash;
}

static uint64_t model_hash(const scene *s) {
    size_t n;
    if (access(s->exported, R_OK) != 0) return 0;
    FILE *f = fopen(s->exported, "r");
    char *bytes = malloc(1 << 20);
    assert_true(f && bytes);
    n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    uint64_t h = tm_hash64(bytes, n, 1);
    free(bytes);
    return h;
}

/* ---- what a case has to come to ---------------------------------------------------------------------------------- */

static bool any_of(const char *word, const char *list) {
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ' ')) return true;
    return false;
}

static bool lies(const char *kind) {
    return any_of(kind, "flip lost misdirect");
}

static bool transfers(const char *call) {
    return any_of(call, "pread pwrite write io_read io_write");
}

static void wrong(const scene *s, const fault_case *c, const char *what) {
    fail_msg("TIDEMILL_FAULT=%s:%llu:%s:%s, way %u: %s\nerror: %s\nstderr: %s", c->call, (unsigned long long)c->at,
             c->kind, c->sticky ? "sticky" : "once", c->way, what, s->r->text, said(s));
}

static void check_process(const scene *s, const fault_case *c, int signal) {
    if (signal == -1) wrong(s, c, "hangs");
    if (s->r->asleep_ns > LIMIT_NS) wrong(s, c, run_format("would sleep for %.1f s", (double)s->r->asleep_ns * 1e-9));
    if (signal == SIGKILL && strcmp(c->kind, "kill") == 0) return;
    if (signal) wrong(s, c, run_format("signal %d", signal));
    if (!s->r->ended) wrong(s, c, "it ended by itself");
    if (s->r->held_bytes != s->held_bytes)
        wrong(s, c, run_format("%llu bytes held", (unsigned long long)s->r->held_bytes));
    if (s->r->descriptors != 0) wrong(s, c, run_format("%d descriptors", s->r->descriptors));
    if (s->r->leaks) wrong(s, c, "the leak checker objects");
    if (s->r->status != TM_OK && (!s->r->text[0] || strchr(s->r->text, '\n'))) wrong(s, c, "no error of one line");
}

/* What the user gave and what a lie made of it, nobody else can tell apart. */
static void check_result(const scene *s, const fault_case *c, bool met_input) {
    if (strcmp(end_hash(s), s->hash) != 0 && !(lies(c->kind) && met_input))
        wrong(s, c, "wrong bits");
    else if (!lies(c->kind) && model_hash(s) != s->model)
        wrong(s, c, "wrong bits in the model");
}

/* Without the fault, another way: the job is brought to its end. */
static void check_recovery(const scene *s, const fault_case *c) {
    bool met_input = s->r->met_input;
    char first[sizeof s->r->text];
    snprintf(first, sizeof first, "%s", s->r->text);
    if (process(s, NULL, true, c->way + 5) != 0) wrong(s, c, run_format("then: crash; first: %s", first));
    bool done = s->r->status == TM_EINPUT && strstr(s->r->text, "holds a finished run");
    if (s->r->status != TM_OK && !done) { /* a lie that was committed: found out each time it is read */
        if (!lies(c->kind) || !s->r->text[0]) wrong(s, c, run_format("then; first: %s", first));
        return;
    }
    check_result(s, c, met_input);
    if (done || lies(c->kind)) return; /* it ended while it tidied up; the next start of another run goes on */
    if (run_entries(s->output) != s->entries || run_entries(s->offload) != 0) wrong(s, c, "leaves files behind");
}

static void one_case(const scene *s, const fault_case *c) {
    char spec[96];
    snprintf(spec, sizeof spec, "%s:%llu:%s:%s", c->call, (unsigned long long)c->at, c->kind,
             c->sticky ? "sticky" : "once");
    if (getenv("TIDEMILL_FAULT_VERBOSE")) print_message("%s, way %u\n", spec, c->way);
    int signal = process(s, spec, false, c->way);
    check_process(s, c, signal);
    if (!signal && s->r->status == TM_OK) {
        check_result(s, c, s->r->met_input);
    } else {
        if (!c->sticky && transfers(c->call) && any_of(c->kind, "eintr eagain short"))
            wrong(s, c, "is not tried again");
        check_recovery(s, c);
    }
    start_over(s);
}

/* ---- which cases ------------------------------------------------------------------------------------------------- */

/* The kinds that a call knows; errno by errno where it only fails or not. */
static const char *const fails[] = {"eio", "enospc", "eintr", "eagain", "eperm", "kill"};
static const char *const moves[] = {"eio",  "enospc", "eintr", "eagain", "eperm",    "kill",
                                    "zero", "short",  "flip",  "lost",   "misdirect"};
static const char *const appends[] = {"eio", "enospc", "eintr", "eagain", "eperm", "kill", "zero", "short"};
static const char *const starts[] = {"eagain", "kill"};
static const char *const allocates[] = {"fail", "kill"};
static const char *const tells[] = {"forward", "back", "kill"};
static const char *const dies[] = {"kill"};
static const char *const interrupts[] = {"now"};
static const char *const locks[] = {"eio", "enospc", "eperm", "kill"}; /* eagain, eintr: waited for, 10 s each */

static unsigned kinds_of(const char *call, const char *const **list) {
#define KINDS(a) (*list = (a), (unsigned)TM_COUNT(a))
    if (strcmp(call, "flip_result") == 0) return 0;  /* nobody sees that without --replay-every: test_numerics.c */
    if (strcmp(call, "shared_place") == 0) return 0; /* no call: frames elsewhere than other ranks': test_ranks.c */
    if (strcmp(call, "thread") == 0) return KINDS(starts);
    if (strcmp(call, "alloc") == 0) return KINDS(allocates);
    if (strcmp(call, "clock") == 0) return KINDS(tells);
    if (strcmp(call, "poll") == 0) return 0; /* no call: where it looks whether it is to stop: test_signals.c */
    if (strncmp(call, "kill_", 5) == 0) return KINDS(dies);
    if (strcmp(call, "interrupt_op") == 0) return KINDS(interrupts);
    if (strcmp(call, "write") == 0) return KINDS(appends);
    if (strcmp(call, "flock") == 0) return KINDS(locks);
    return transfers(call) ? KINDS(moves) : KINDS(fails);
#undef KINDS
}

static void drawn_cases(const scene *s, const report *count) {
    uint64_t cases = test_option("TIDEMILL_FAULT_CASES", 150), seed = test_option("TIDEMILL_FAULT_SEED", 1);
    for (uint64_t i = 0; i < cases; i++) {
        uint32_t r[4];
        const char *const *kind;
        tm_philox(seed, 1, i, r);
        const counted *x = &count->call[r[0] % count->n_calls];
        unsigned n = kinds_of(x->name, &kind);
        if (n)
            one_case(s, &(fault_case){.call = x->name,
                                      .kind = kind[r[1] % n],
                                      .at = 1 + r[2] % x->calls,
                                      .sticky = r[3] % 3 == 0,
                                      .way = (r[3] >> 8) % WAYS});
    }
}

static uint64_t every_case(const scene *s, const counted *x, unsigned way, uint64_t number) {
    unsigned part = 0, parts = 1;
    const char *const *kind, *text = getenv("TIDEMILL_FAULT_PART");
    if (text && sscanf(text, "%u/%u", &part, &parts) != 2) fail_msg("TIDEMILL_FAULT_PART: expected I/N");
    unsigned n = kinds_of(x->name, &kind);
    for (uint64_t i = 1; i <= x->calls; i++)
        for (unsigned k = 0; k < n; k++)
            for (unsigned sticky = 0; sticky < (strcmp(kind[k], "kill") == 0 ? 1 : 2); sticky++, number++)
                if (number % parts == part)
                    one_case(s, &(fault_case){.call = x->name, .kind = kind[k], .at = i, .sticky = sticky, .way = way});
    return number;
}

/* The model is what a run of one step leaves. */
static void make_model(scene *s) {
    const char *model = run_format("model=%s", run_path(s->dir, "random"));
    fflush(NULL);
    pid_t pid = fork();
    int status;
    if (pid == 0) _exit(train(s, model, 1, false, 0) == TM_OK ? 0 : (fprintf(stderr, "%s\n", tm_error_get()->text), 1));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(rename(s->output, run_path(s->dir, "model")), 0);
}

/* The undisturbed job, its calls counted. */
static void undisturbed(scene *s, unsigned way) {
    int signal = process(s, "*:0:none:once", false, way);
    if (signal || s->r->status != TM_OK) fail_msg("without a fault: %s %s", s->r->text, said(s));
    const char *hash = end_hash(s);
    assert_int_equal(strlen(hash), 32);
    if (!s->hash[0]) {
        snprintf(s->hash, sizeof s->hash, "%s", hash);
        s->model = model_hash(s);
        s->held_bytes = s->r->held_bytes;
        s->entries = run_entries(s->output);
    }
    assert_string_equal(hash, s->hash);
    assert_int_equal(s->r->descriptors, 0);
    assert_int_equal(run_entries(s->offload), 0);
    assert_true(s->r->n_calls > 10 && s->r->n_calls < MAX_CALLS);
    start_over(s);
}

static void a_failing_call_is_survived_or_said(void **state) {
    (void)state;
    scene s = scene_open();
    load_before_fork();
    make_model(&s);
    unsigned way = (unsigned)test_option("TIDEMILL_FAULT_WAY", 0);
    const char *all = getenv("TIDEMILL_FAULT_CALL");
    undisturbed(&s, way);
    report count = *s.r;
    uint64_t number = 0;
    for (unsigned i = 0; all && i < count.n_calls; i++) {
        if (strcmp(all, "all") != 0 && strcmp(all, count.call[i].name) != 0) continue;
        uint64_t began = tm_now_ns(), first = number;
        number = every_case(&s, &count.call[i], way, number);
        print_message("%s: %llu calls, %llu cases, %.0f s\n", count.call[i].name,
                      (unsigned long long)count.call[i].calls, (unsigned long long)(number - first),
                      (double)(tm_now_ns() - began) * 1e-9);
    }
    if (all && !number) fail_msg("%s is not called", all);
    if (!all) drawn_cases(&s, &count);
    print_message("the longest sleep that a process asked for: %.2f s (%s)\n", (double)longest.asleep_ns * 1e-9,
                  longest.sleeper);
    print_message("the longest process took %.2f s (%s)\n", (double)longest.ns * 1e-9, longest.spec);
    run_remove(s.dir);
    close(s.err);
    (void)munmap(s.r, sizeof *s.r);
}

/* One thread each: a fork takes only the one that called it along, and libraries start theirs before main. */
static void alone(char **argv) {
    if (getenv("OMP_NUM_THREADS")) return;
    setenv("OMP_NUM_THREADS", "1", 1), setenv("OPENBLAS_NUM_THREADS", "1", 1), setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("TIDEMILL_PROFILE", "/nonexistent/profile.json", 0);
    (void)execv("/proc/self/exe", argv);
}

int main(int argc, char **argv) {
    (void)argc;
    alone(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_failing_call_is_survived_or_said, run_clean),
    };
    return cmocka_run_group_tests_name("train_faults", tests, NULL, NULL);
}

/* What becomes of a job when a rank dies, stops, fails or differs. Without arguments: starts jobs of itself under
 * mpirun and looks at their exit status, their last words and the time they took; with one: is a rank of such a job. */
#include "tests/comm/world.h"
#include "tests/support/skip.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- a rank ---- */

enum { VICTIM = 1, N = 100000 };

static void say_aborted(void) {
    static const char text[] = "cleaned up\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(9);
}

/* Collectives without end; the victim's fault strikes at some call of MPI. */
static int work_for_ever(const char *fault) {
    static float x[N];
    if (tm_comm_rank(comm) == VICTIM && tm_fault_set(fault) != TM_OK) return 9;
    for (;;) {
        tm_comm_op op = {.code = TM_COMM_ALL_REDUCE, .send = x, .recv = x, .count = N};
        if (tm_comm_run(comm, &op) == TM_OK) continue;
        fprintf(stderr, "tidemill: %s\n", tm_error_get()->text);
        tm_comm_abort(comm, 5);
    }
}

static void rest(unsigned seconds) {
    struct timespec t = {.tv_sec = seconds};
    nanosleep(&t, NULL);
}

static void nap(unsigned ms) {
    struct timespec t = {.tv_nsec = ms * 1000L * 1000};
    nanosleep(&t, NULL);
}

static void take_note(int sig) {
    (void)sig;
}

/* More than MPI_Init is given where a rank is seen to be stopped: 1.5 patiences of 1.5 s, and 5 s. */
enum { LATE_SECONDS = 9 };

static int be_rank(const char *mode) {
    tm_comm_opts opts = {.at_abort = say_aborted};
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    if (!strcmp(mode, "workspaces") && rank && atoi(rank) == VICTIM) opts.workspace_bytes = 16 << 20;
    const bool fault = !strncmp(mode, "start:", 6) && rank && atoi(rank) == VICTIM;
    if (fault && tm_fault_set(mode + 6) != TM_OK) return 9;
    if (!strcmp(mode, "late") && rank && atoi(rank) == VICTIM) rest(LATE_SECONDS);
    if (!strncmp(mode, "start:", 6)) signal(SIGTERM, take_note); /* as training does */
    if (tm_comm_open(&comm, &opts) != TM_OK) {
        if (tm_comm_quiet()) return 2;
        nap(300); /* whoever speaks may be slow to: the launcher must not end it first */
        fprintf(stderr, "tidemill: %s\n", tm_error_get()->text);
        return 2;
    }
    const bool victim = tm_comm_rank(comm) == VICTIM;
    if (!strncmp(mode, "mpi_", 4)) return work_for_ever(mode);
    if (!strcmp(mode, "idle-stop")) { /* stopped while nobody waits for it */
        if (victim) kill(getpid(), SIGSTOP);
        rest(30);
    } else if (!strcmp(mode, "slow")) { /* longer than the patience, but alive */
        rest(victim ? 3 : 0);
        OK(tm_comm_barrier(comm, TM_COMM_WORLD));
    } else if (!strcmp(mode, "abort")) {
        if (victim) fprintf(stderr, "tidemill: the disk is full\n"), tm_comm_abort(comm, 7);
        OK(tm_comm_barrier(comm, TM_COMM_WORLD)); /* never */
    } else if (!strcmp(mode, "mismatch")) {
        uint64_t x[9] = {0};
        tm_comm_op op = {
            .code = TM_COMM_ALL_REDUCE, .type = TM_COMM_U64, .send = x, .recv = x, .count = victim ? 9 : 8};
        if (tm_comm_run(comm, &op) != TM_OK) {
            fprintf(stderr, "tidemill: %s\n", tm_error_get()->text);
            tm_comm_abort(comm, 1);
        }
        rest(30);
    }
    tm_comm_close(comm);
    return 0;
}

/* ---- the job, from outside ---- */

static const char *self;

typedef struct outcome {
    int status;
    double seconds;
    char text[1 << 14];
} outcome;

static outcome run_job(const char *mode, int ranks) {
    static outcome o;
    char command[1024];
    o = (outcome){0};
    snprintf(command, sizeof command, "TIDEMILL_COMM_PATIENCE=1.5 sh %s/../comm/mpirun.sh %d 0 %s %s 2>&1 < /dev/null",
             TM_TEST_FIXTURES, ranks, self, mode);
    uint64_t start = tm_now_ns();
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(o.text, 1, sizeof o.text - 1, f);
    o.text[n] = 0;
    while (fread(command, 1, sizeof command, f) > 0) {
    }
    int status = pclose(f);
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    o.seconds = (double)(tm_now_ns() - start) * 1e-9;
    return o;
}

static unsigned occurrences(const char *text, const char *word) {
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, word)) != NULL; p += strlen(word)) n++;
    return n;
}

/* Ends within the limit, not with 0, and says `word` so often; 0: at least once. Whoever has something to say is given
 * some tenths of a second before the launcher ends it, which on a busy machine may not be enough: silent jobs are tried
 * again. */
static outcome dies(const char *mode, const char *word, unsigned times) {
    outcome o;
    for (unsigned tries = 0;; tries++) {
        o = run_job(mode, 3);
        unsigned said = word ? occurrences(o.text, word) : 0;
        bool ends = o.status != 0 && o.status != 77 && o.seconds <= 100;
        if (ends && (!word || (times ? said == times : said > 0))) return o;
        if (!ends || said > 0 || tries == 4)
            fail_msg("%s: exit %d after %.1f s, looked for %u x \"%s\" in:\n%s", mode, o.status, o.seconds, times,
                     word ? word : "", o.text);
        print_message("%s: silent after %.1f s, tried again\n", mode, o.seconds);
    }
}

static void stopped_at_a_call(void **state) {
    (void)state;
    dies("mpi_isend:40:stop:once", "rank 1 (", 1);
}

static void stopped_while_idle(void **state) {
    (void)state;
    static const char silent[] = "has not been heard of for ";
    outcome o = dies("idle-stop", "rank 1 (", 1);
    const char *at = strstr(o.text, silent);
    if (!at) fail_msg("%s", o.text);
    double seconds = strtod(at + sizeof silent - 1, NULL); /* as it counts them: on a busy machine, too */
    if (!(seconds > 1 && seconds < 5)) fail_msg("not the patience that was asked for:\n%s", o.text);
}

static void killed(void **state) {
    (void)state;
    dies("mpi_testsome:500:kill:once", NULL, 0); /* the launcher notices and names it */
}

static void fails_in_mpi(void **state) {
    (void)state;
    dies("mpi_irecv:30:error:once", "tidemill: mpi_irecv: ", 1);
}

static void fails_at_the_start(void **state) {
    (void)state;
    dies("start:mpi_comm_split:2:error:once", "tidemill: mpi_comm_split: ", 1);
}

/* Before any rank can know of another: the calls that wait for it say so, the first rank's alone where the launcher is
 * quick to end the others. */
static void stopped_before_it_starts(void **state) {
    (void)state;
    outcome o;
    unsigned said = 2;
    for (unsigned tries = 0; said > 1 && tries < 4; tries++) {
        o = dies("start:mpi_init:1:stop:once", "tidemill: rank 0: MPI_Init has not come back for", 1);
        said = occurrences(o.text, "MPI_Init has not come back for");
    }
    if (said > 1) fail_msg("%s", o.text);
    if (!strstr(o.text, ": rank 1 (pid ") || !strstr(o.text, ") is stopped")) fail_msg("%s", o.text);
}

static void aborts(void **state) {
    (void)state;
    unsigned cleaned = 0;
    for (unsigned tries = 0; cleaned < 2 && tries < 5; tries++) { /* its own, and who had the time to hear of it */
        outcome o = dies("abort", "tidemill: the disk is full", 1);
        assert_int_equal(o.status, 7);
        cleaned = occurrences(o.text, "cleaned up");
    }
    assert_true(cleaned >= 2);
}

static void disagreements(void **state) {
    (void)state;
    outcome o = dies("mismatch", "the ranks disagree about an operation", 0);
    assert_int_equal(o.status, 1);
    o = dies("workspaces", "the workspace has 8388608 bytes on rank 0, 16777216 on rank 1", 1);
    assert_int_equal(o.status, 2);
}

static void slow_is_not_dead(void **state) {
    (void)state;
    outcome o = run_job("slow", 3);
    if (o.status != 0 || o.seconds < 3 || *o.text) fail_msg("exit %d after %.1f s:\n%s", o.status, o.seconds, o.text);
}

/* A rank that comes to MPI_Init long after the others, as on a machine that is busy with other things. */
static void late_is_not_dead(void **state) {
    (void)state;
    outcome o = run_job("late", 3);
    if (o.status != 0 || o.seconds < LATE_SECONDS || *o.text)
        fail_msg("exit %d after %.1f s:\n%s", o.status, o.seconds, o.text);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 1) return be_rank(argv[1]);
    if (system("command -v mpirun > /dev/null") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopped_at_a_call),
        cmocka_unit_test(stopped_while_idle),
        cmocka_unit_test(killed),
        cmocka_unit_test(fails_in_mpi),
        cmocka_unit_test(fails_at_the_start),
        cmocka_unit_test(stopped_before_it_starts),
        cmocka_unit_test(aborts),
        cmocka_unit_test(disagreements),
        cmocka_unit_test(slow_is_not_dead),
        cmocka_unit_test(late_is_not_dead),
    };
    return cmocka_run_group_tests_name("comm failures", tests, NULL, NULL);
}

/* A process that no launcher started; and what needs no second rank: trees, bytes, quantisation. */
#include "tests/comm/world.h"

#include "comm/remote_internal.h"
#include "comm/sum_internal.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- launchers ---- */

static void clear_environment(void) {
    static const char *const all[] = {"OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "PMI_SIZE", "PMIX_RANK",
                                      "SLURM_STEP_NUM_TASKS", "TIDEMILL_MPI"};
    for (size_t i = 0; i < TM_COUNT(all); i++) unsetenv(all[i]);
}

static void launchers(void **state) {
    (void)state;
    static const struct {
        const char *variable, *value;
        bool launched;
    } rows[] = {
        {"OMPI_COMM_WORLD_SIZE", "4", true},
        {"OMPI_COMM_WORLD_SIZE", "1", false},
        {"PMI_SIZE", "2", true},
        {"PMI_SIZE", "1", false},
        {"PMIX_RANK", "0", true},
        {"SLURM_STEP_NUM_TASKS", "8", true},
        {"SLURM_STEP_NUM_TASKS", "1", false},
        {"SLURM_NTASKS", "8", false}, /* a batch script's own */
        {"TIDEMILL_MPI", "1", true},
        {"TIDEMILL_MPI", "0", false},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        clear_environment();
        assert_false(tm_comm_launched());
        setenv(rows[i].variable, rows[i].value, 1);
        if (tm_comm_launched() != rows[i].launched) fail_msg("%s=%s", rows[i].variable, rows[i].value);
        unsetenv(rows[i].variable);
    }
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("TIDEMILL_MPI", "0", 1);
    assert_false(tm_comm_launched());
    clear_environment();
}

/* ---- siblings ---- */

/* What a launcher would have started: stopped at once, a rank or something else. */
static pid_t stopped_child(char *variable, char *also, char *job) {
    char *const argv[] = {"sh", "-c", "kill -STOP $$; sleep 60", NULL}, *const environment[] = {also, variable, job,
                                                                                                NULL};
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) execve("/bin/sh", argv, environment), _exit(9);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    return pid;
}

/* A stopped one that is to be left: not gone by now; then it is ended here. */
static void was_left(pid_t pid) {
    int status;
    usleep(20000); /* what was killed just now is there for a moment */
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

/* A rank that waits in vain for a stopped one names it, and ends it: the launcher may not. Nothing else is ended: no
 * rank, what a shell of this very rank has stopped, a rank of another job. */
static void stopped_siblings(void **state) {
    (void)state;
    int status;
    char said[64] = "";
    pid_t rank = stopped_child("PMI_RANK=7", "SLURM_PROCID=3", "PMIX_NAMESPACE=a"),
          other = stopped_child("RANK=8", "PMIX_NAMESPACE=a", NULL),
          own = stopped_child("PMI_RANK=3", "PMIX_NAMESPACE=a", NULL),
          elsewhere = stopped_child("PMI_RANK=9", "PMIX_NAMESPACE=b", NULL),
          unnamed = stopped_child("SLURM_PROCID=5", "SLURM_JOB_ID=1", NULL), me = fork();
    assert_true(me >= 0);
    if (me == 0) {
        bool set = setenv("PMI_RANK", "3", 1) == 0 && setenv("PMIX_NAMESPACE", "a", 1) == 0;
        bool named = comm_stopped_sibling(said, sizeof said) && strncmp(said, "rank 7 (pid ", 12) == 0;
        comm_end_stopped_siblings();
        _exit(set && named ? 0 : 1);
    }
    assert_int_equal(waitpid(me, &status, 0), me);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pid_t ended = 0;
    for (int i = 0; i < 1000 && ended == 0; i++) {
        ended = waitpid(rank, &status, WNOHANG);
        (void)usleep(ended ? 0 : 10000);
    }
    was_left(other);
    was_left(own);
    was_left(elsewhere);
    was_left(unnamed);
    if (ended == 0) {
        (void)(kill(rank, SIGKILL) + waitpid(rank, &status, 0));
        fail_msg("the stopped rank is left");
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* ---- one rank ---- */

static unsigned threads(void) {
    DIR *d = opendir("/proc/self/task");
    unsigned n = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Is a library, or anything of such a name, in this process's addresses? */
static bool is_mapped(const char *name) {
    char line[4096];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "re");
    assert_non_null(f);
    while (!found && fgets(line, sizeof line, f)) found = strstr(line, name) != NULL;
    fclose(f);
    return found;
}

static unsigned calls;
static void note(tm_comm_op *op) {
    assert_int_equal(op->status, TM_OK);
    calls++;
}

static void one_rank(void **state) {
    (void)state;
    const unsigned threads_before = threads();
    tm_comm *c;
    OK(tm_comm_open(&c, NULL));
    assert_null(comm_mpi);
    assert_false(is_mapped("libmpi"));
    assert_int_equal(threads(), threads_before);
    assert_int_equal(tm_comm_size(c) + tm_comm_nodes(c) + tm_comm_node_size(c), 3);
    assert_int_equal(tm_comm_rank(c) + tm_comm_node(c) + tm_comm_node_rank(c), 0);
    assert_true(tm_comm_uniform(c));
    float x[5] = {1, -0.0F, 3, 4, 5}, y[5] = {0};
    const tm_comm_code codes[] = {TM_COMM_REDUCE_SCATTER, TM_COMM_ALL_GATHER, TM_COMM_ALL_REDUCE, TM_COMM_EXCHANGE};
    for (size_t i = 0; i < TM_COUNT(codes); i++) {
        for (uint32_t g = TM_COMM_WORLD; g <= TM_COMM_ACROSS; g++) {
            memset(y, 0, sizeof y);
            tm_comm_op op = {.code = codes[i], .group = g, .send = x, .recv = y, .count = 5, .done = note};
            OK(tm_comm_submit(c, &op));
            assert_memory_equal(x, y, sizeof x);
        }
    }
    assert_int_equal(calls, 12);
    tm_comm_op rounded = {.code = TM_COMM_ALL_REDUCE, .send = x, .recv = x, .count = 5, .wire = TM_COMM_WIRE_Q4};
    OK(tm_comm_run(c, &rounded));
    assert_memory_equal(x, y, sizeof x); /* one member: nothing travels, nothing is rounded */
    double d = 3;
    OK(tm_comm_all_reduce_f64(c, TM_COMM_WORLD, TM_COMM_MAX, &d, 1));
    OK(tm_comm_broadcast(c, TM_COMM_NODE, 0, &d, sizeof d));
    OK(tm_comm_barrier(c, TM_COMM_ACROSS));
    OK(tm_comm_agree(c, TM_OK));
    OK(tm_comm_same(c, "x", 1));
    assert_true(d == 3);
    assert_int_equal(tm_comm_agree(c, tm_fail(TM_EINPUT, "mine")), TM_EINPUT);
    assert_string_equal(tm_error_get()->text, "mine");
    assert_false(tm_comm_quiet());
    tm_error_clear();
    tm_comm_stats s;
    tm_comm_get_stats(c, &s);
    assert_int_equal(s.ops[TM_COMM_ALL_REDUCE], 5);
    for (unsigned k = 0; k < TM_COMM_CODES; k++) assert_int_equal(s.sent_bytes[k][0] + s.sent_bytes[k][1], 0);
    uint32_t group;
    OK(tm_comm_split(c, 9, &group));
    assert_int_equal(group, 3);
    tm_comm_window *w;
    OK(tm_comm_window_open(&w, c, 100));
    memset(tm_comm_window_part(w, 0, NULL), 1, 100);
    tm_comm_window_close(w);
    tm_comm_close(c);
}

static void bad_settings(void **state) {
    (void)state;
    tm_comm *c;
    setenv("TIDEMILL_COMM_PATIENCE", "soon", 1);
    assert_int_equal(tm_comm_open(&c, NULL), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "TIDEMILL_COMM_PATIENCE=soon"));
    tm_error_clear();
    unsetenv("TIDEMILL_COMM_PATIENCE");
    assert_int_equal(tm_comm_open(&c, &(tm_comm_opts){.patience_seconds = 0.5}), TM_EINPUT);
    tm_error_clear();
}

/* Under a launcher, where the module is not there or is none: no rank goes on alone, and the first one speaks. */
static void no_module(void **state) {
    (void)state;
    static const struct {
        const char *folder, *says;
    } rows[] = {{"/nowhere", "this build is for one rank (there is no /nowhere/libtidemill_mpi.so): install MPI's "
                             "headers (tools/deps.sh ranks) and build again"},
                {"tests/ranks_version", "is of another version of tidemill"},
                {"tests/ranks_symbol", "is no module of ranks"},
                {"tests/ranks_library",
                 "MPI cannot be loaded: libranks_absent.so: cannot open shared object file: No such "
                 "file or directory; install it (Debian: apt-get install openmpi-bin)"}};
    char said[64];
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    for (unsigned i = 0; i < 2 * TM_COUNT(rows); i++) {
        tm_comm *c = (tm_comm *)said;
        setenv("OMPI_COMM_WORLD_RANK", i % 2 ? "1" : "0", 1);
        setenv("TIDEMILL_MODULES", rows[i / 2].folder, 1);
        assert_int_equal(tm_comm_open(&c, NULL), TM_EUNSUPPORTED);
        assert_null(c);
        if (!strstr(tm_error_get()->text, rows[i / 2].says)) fail_msg("%s", tm_error_get()->text);
        tm_error_clear();
        assert_int_equal(tm_comm_quiet(), i % 2);
        assert_int_equal(tm_comm_available(said, sizeof said), TM_EUNSUPPORTED);
        tm_error_clear();
    }
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("TIDEMILL_MODULES");
    clear_environment();
    comm_be_quiet(false);
    tm_comm *alone; /* what is not needed may be missing */
    OK(tm_comm_open(&alone, NULL));
    tm_comm_close(alone);
}

/* ---- trees and bytes of imagined jobs ---- */

enum { MOST = 12 };
typedef struct job {
    uint32_t size;
    uint32_t node_of[MOST];
    bool grid;
} job;
static const job jobs[] = {
    {2, {0, 0}, false},
    {2, {0, 1}, false},
    {3, {0, 0, 1}, false},
    {4, {0, 0, 1, 1}, true},
    {4, {5, 3, 5, 3}, true}, /* ranks dealt out to the nodes in turn */
    {6, {0, 1, 0, 1, 0, 1}, true},
    {12, {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}, true},
    {5, {0, 1, 1, 1, 1}, false},
};

static tm_comm *imagine(const job *j, uint32_t rank) {
    tm_comm *c = tm_calloc(1, sizeof *c);
    c->size = j->size;
    c->rank = rank;
    c->node_of = tm_calloc(j->size, sizeof *c->node_of);
    memcpy(c->node_of, j->node_of, j->size * sizeof *c->node_of);
    OK(comm_topology(c));
    return c;
}

static void forget(tm_comm *c) {
    for (uint32_t g = 0; g < c->n_groups; g++) comm_group_free(&c->groups[g]);
    tm_free(c->node_of);
    tm_free(c);
}

/* A rank for those who plan: it answers as one among many, and its operations move nothing. */
static void planned(void **state) {
    (void)state;
    static const uint64_t sizes[][3] = {{6, 3, 4}, {5, 2, 4}, {8, 1, 7}, {4, 8, 0}}; /* ranks, a node, me */
    for (size_t i = 0; i < TM_COUNT(sizes); i++) {
        uint32_t ranks = (uint32_t)sizes[i][0], each = (uint32_t)sizes[i][1], me = (uint32_t)sizes[i][2];
        tm_comm *c;
        unsigned before = threads();
        OK(tm_comm_imagine(&c, ranks, each, me));
        assert_int_equal(threads(), before);
        assert_int_equal(tm_comm_size(c), ranks);
        assert_int_equal(tm_comm_rank(c), me);
        assert_int_equal(tm_comm_nodes(c), (ranks + each - 1) / each);
        assert_int_equal(tm_comm_node(c), me / each);
        assert_int_equal(tm_comm_node_rank(c), me % each);
        assert_int_equal(tm_comm_uniform(c), ranks % each == 0 || ranks < each);
        uint64_t bytes[TM_COMM_LINKS], kept[2] = {7, 8};
        tm_comm_op op = {.code = TM_COMM_ALL_GATHER, .type = TM_COMM_BF16, .recv = kept, .count = 100};
        tm_comm_op_bytes(c, &op, bytes);
        assert_int_equal(bytes[0] + bytes[1], 200 * (ranks - 1));
        OK(tm_comm_run(c, &op));
        OK(tm_comm_all_reduce_u64(c, TM_COMM_WORLD, TM_COMM_MIN, kept, 2));
        assert_int_equal(kept[0] * 10 + kept[1], 78);
        OK(tm_comm_same(c, "anything", 3));
        assert_int_equal(tm_comm_agree(c, tm_fail(TM_EINPUT, "said")), TM_EINPUT);
        assert_string_equal(tm_error_get()->text, "said");
        tm_error_clear();
        tm_comm_close(c);
    }
}

static void trees(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        for (uint32_t rank = 0; rank < j->size; rank++) {
            tm_comm *c = imagine(j, rank);
            const comm_group *g = &c->groups[TM_COMM_WORLD];
            uint32_t at = 0;
            assert_int_equal(g->grid, j->grid);
            assert_int_equal(c->node_of[0], 0); /* numbered by their lowest rank */
            for (uint32_t k = 0; k < c->nodes; k++) {
                assert_int_equal(g->first[k], at);
                for (uint32_t r = 0; r < j->size; r++) {
                    if (c->node_of[r] == k) assert_int_equal(g->tree[at++], r);
                    assert_int_equal(c->node_of[r] == c->node_of[rank], j->node_of[r] == j->node_of[rank]);
                }
            }
            assert_int_equal(at, j->size);
            assert_int_equal(c->groups[TM_COMM_NODE].size, c->node_size);
            assert_int_equal(tm_comm_group_world(c, TM_COMM_NODE, c->node_rank), rank);
            assert_int_equal(tm_comm_group_world(c, TM_COMM_ACROSS, tm_comm_group_rank(c, TM_COMM_ACROSS)), rank);
            forget(c);
        }
    }
}

/* Over all ranks together each operation sends what the table of comm.h says, staged or flat. */
static void theory(void **state) {
    (void)state;
    enum { N = 512 };
    static const tm_comm_op ops[] = {
        {.code = TM_COMM_REDUCE_SCATTER, .count = N},
        {.code = TM_COMM_ALL_GATHER, .count = N},
        {.code = TM_COMM_ALL_GATHER, .count = N, .type = TM_COMM_BF16, .wire = TM_COMM_WIRE_Q8},
        {.code = TM_COMM_REDUCE_SCATTER, .count = N, .wire = TM_COMM_WIRE_Q4},
    };
    static const uint64_t each[] = {4 * N, 4 * N, N + 4 * N / 256, N / 2 + 2 * N / 64};
    for (size_t i = 0; i < TM_COUNT(jobs); i++) {
        const job *j = &jobs[i];
        for (size_t k = 0; k < TM_COUNT(ops); k++) {
            uint64_t between[2] = {0};
            for (uint32_t rank = 0; rank < j->size; rank++) {
                tm_comm *c = imagine(j, rank);
                for (int flat = 0; flat < 2; flat++) {
                    tm_comm_op op = ops[k];
                    uint64_t bytes[TM_COMM_LINKS];
                    op.flat = flat;
                    tm_comm_op_bytes(c, &op, bytes);
                    assert_int_equal(bytes[0] + bytes[1], each[k] * (j->size - 1));
                    between[flat] += bytes[TM_COMM_BETWEEN_NODES];
                }
                if (rank + 1 == j->size && j->grid) assert_int_equal(between[0] * c->node_size, between[1]);
                if (rank + 1 == j->size && !j->grid) assert_int_equal(between[0], between[1]);
                forget(c);
            }
        }
    }
}

/* ---- sums ---- */

static void sums(void **state) {
    (void)state;
    enum { N = 2500 };
    float x[3][N], want[N];
    const void *source[3] = {x[0], x[1], x[2]};
    const uint32_t first[] = {0, 1, 3};
    for (uint32_t r = 0; r < 3; r++)
        for (uint64_t i = 0; i < N; i++) x[r][i] = i % 7 ? value(r, i) : -0.0F;
    for (uint64_t i = 0; i < N; i++) want[i] = x[0][i] + (x[1][i] + x[2][i]);
    comm_sum_tree(TM_COMM_EXACT, source, UINT32_MAX, first, 2, N, x[2]); /* into one of its own */
    assert_memory_equal(x[2], want, sizeof want);
    assert_true(signbit(want[0]));
}

/* ---- quantisation ---- */

/* How far a value may be from its code, by what comm.h says of each wire; `most`: of its block. */
static double quantisation_error(tm_comm_wire wire, double x, double most) {
    if (wire == TM_COMM_WIRE_Q8) return most / 127 / 2 * (1 + 1e-6);
    double scale = most / 18 * (1 + 1.0 / 128);
    return fmax(scale / 2, fabs(x) / 3) * (1 + 1e-6);
}

static void quantise_bounds(tm_comm_wire wire, uint64_t n, float size) {
    float *x = values_of(1, n), *y = malloc((n + 1) * sizeof *y);
    const uint64_t block = wire == TM_COMM_WIRE_Q8 ? TM_COMM_QUANT_BLOCK : TM_COMM_QUANT_BLOCK_Q4;
    for (uint64_t i = 0; i < n; i++) x[i] *= size;
    char *codes = malloc(tm_comm_quant_bytes(wire, n) + 1);
    codes[tm_comm_quant_bytes(wire, n)] = 77;
    tm_comm_quantise(wire, x, n, codes);
    tm_comm_dequantise(wire, codes, n, y);
    for (uint64_t b = 0; b < n; b += block) {
        double most = 0;
        for (uint64_t i = b; i < n && i < b + block; i++) most = fmax(most, fabs((double)x[i]));
        for (uint64_t i = b; i < n && i < b + block; i++)
            assert_true(fabs((double)x[i] - (double)y[i]) <= quantisation_error(wire, (double)x[i], most));
    }
    assert_int_equal(codes[tm_comm_quant_bytes(wire, n)], 77); /* not a byte too many */
    free(x), free(y), free(codes);
}

static void quantisation(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 63, 64, 65, 255, 256, 257, 1000, 4096 + 3};
    for (size_t i = 0; i < TM_COUNT(sizes); i++) {
        for (float size = 1e-25F; size < 1e25F; size *= 1e10F) {
            quantise_bounds(TM_COMM_WIRE_Q8, sizes[i], size);
            quantise_bounds(TM_COMM_WIRE_Q4, sizes[i], size);
        }
    }
    assert_int_equal(tm_comm_quant_bytes(TM_COMM_WIRE_Q8, 257), 8 + 257);
    assert_int_equal(tm_comm_quant_bytes(TM_COMM_WIRE_Q4, 257), 10 + 129);
}

/* What evenly spaced levels under one scale for 256 values would lose of their energy. */
static double lost_evenly(const float *x, uint64_t n) {
    double lost = 0;
    for (uint64_t b = 0; b < n; b += 256) {
        double most = 0;
        for (uint64_t i = b; i < b + 256; i++) most = fmax(most, fabs((double)x[i]));
        for (uint64_t i = b; i < b + 256; i++) lost += pow((double)x[i] - round((double)x[i] / most * 7) / 7 * most, 2);
    }
    return lost;
}

/* Values of a gradient's kind, many small ones and a few large. The largest error does not tell: half a level. */
static void quantised_spread(void **state) {
    (void)state;
    enum { N = 1 << 14 };
    float x[N], y[N];
    char codes[N];
    double lost = 0, all = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint32_t r[4];
        tm_philox(78, 0, i, r);
        x[i] = 1e-6F;
        for (int k = 0; k < 4; k++) x[i] *= (float)(int32_t)r[k] * 4.6566e-10F;
    }
    tm_comm_quantise(TM_COMM_WIRE_Q4, x, N, codes);
    tm_comm_dequantise(TM_COMM_WIRE_Q4, codes, N, y);
    for (uint64_t i = 0; i < N; i++) {
        lost += pow((double)x[i] - (double)y[i], 2);
        all += pow((double)x[i], 2);
    }
    print_message("  lost %.4f of the energy; evenly spaced %.4f\n", lost / all, lost_evenly(x, N) / all);
    assert_true(lost <= 0.02 * all && lost <= lost_evenly(x, N) / 2);
}

/* Codes by hand: scale 0.5; halves of Q8 go to the even neighbour, those of Q4 to the smaller. */
static void quantised_codes(void **state) {
    (void)state;
    const float x[] = {9, -9, 0.25F, 0.26F, -0.25F, -5.5F, 2.6F}; /* 18, -18, 0, 1, 0, -9, 6 scales */
    const unsigned char want[] = {0x00, 0x3f, 0xf7, 0x10, 0xd0, 0x04};
    unsigned char out[6];
    assert_int_equal(tm_comm_quant_bytes(TM_COMM_WIRE_Q4, 7), sizeof out);
    tm_comm_quantise(TM_COMM_WIRE_Q4, x, 7, out);
    assert_memory_equal(out, want, sizeof want);
    const float y[] = {127, -127, 2.5F, -3.5F};
    unsigned char eight[8];
    const unsigned char codes[] = {127, 129, 2, 252};
    tm_comm_quantise(TM_COMM_WIRE_Q8, y, 4, eight);
    assert_memory_equal(eight + 4, codes, 4);
}

static void quantised_specials(void **state) {
    (void)state;
    float x[600] = {0}, y[600];
    char codes[700];
    for (int i = 0; i < 256; i++) x[i] = 1;
    x[10] = INFINITY;
    x[599] = 1e-45F; /* its scale is zero */
    for (int w = 0; w < 2; w++) {
        tm_comm_wire wire = w ? TM_COMM_WIRE_Q4 : TM_COMM_WIRE_Q8;
        tm_comm_quantise(wire, x, 600, codes);
        tm_comm_dequantise(wire, codes, 600, y);
        for (int i = 0; i < 600; i++) {
            bool bad = i < (w ? TM_COMM_QUANT_BLOCK_Q4 : TM_COMM_QUANT_BLOCK);
            assert_true(bad ? isnan(y[i]) : i >= 256 ? y[i] == 0 : y[i] >= 1 && y[i] < 1.01F);
        }
    }
}

int main(void) {
    clear_environment();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers),
        cmocka_unit_test(stopped_siblings),
        cmocka_unit_test(one_rank),
        cmocka_unit_test(bad_settings),
        cmocka_unit_test(no_module),
        cmocka_unit_test(planned),
        cmocka_unit_test(trees),
        cmocka_unit_test(theory),
        cmocka_unit_test(sums),
        cmocka_unit_test(quantisation),
        cmocka_unit_test(quantised_spread),
        cmocka_unit_test(quantised_codes),
        cmocka_unit_test(quantised_specials),
    };
    return cmocka_run_group_tests_name("comm alone", tests, NULL, NULL);
}

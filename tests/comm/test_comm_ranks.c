/* Every operation among 1 to 4 ranks (mpirun.sh starts them) against sums made here in the plainest way. */
#include "tests/comm/world.h"
#include "tests/comm/witness.h"

#include <math.h>
#include <unistd.h>

enum { MOST = 4, SLICE = 5000 };

static uint32_t size, rank;

/* The tree, written down without groups: over the ranks of each node from the lowest, then over the nodes. */
static float tree_sum(uint64_t e) {
    float total = 0;
    for (uint32_t k = 0; k < tm_comm_nodes(comm); k++) {
        float node = 0;
        bool begun = false;
        for (uint32_t r = 0; r < size; r++) {
            if (tm_comm_node_of(comm, r) != k) continue;
            node = begun ? node + value(r, e) : value(r, e);
            begun = true;
        }
        total = k ? total + node : node;
    }
    return total;
}

/* Slices of odd sizes, an empty one among them. */
static uint64_t make_counts(uint64_t *counts, uint64_t scale) {
    static const uint64_t odd[MOST] = {1, 0, 3, 2};
    uint64_t total = 0;
    for (uint32_t i = 0; i < size; i++) total += counts[i] = size == 1 ? scale : odd[i] * scale + (odd[i] ? i : 0);
    return total;
}

static uint64_t begin_of(const uint64_t *counts, uint32_t position) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < position; i++) at += counts[i];
    return at;
}

static void check_sum(const float *got, uint64_t from, uint64_t n, const char *what) {
    for (uint64_t i = 0; i < n; i++) {
        float want = tree_sum(from + i);
        CHECK(bits_of(got[i]) == bits_of(want), "%s: element %llu is %a, not %a", what, (unsigned long long)(from + i),
              (double)got[i], (double)want);
    }
}

/* ---- reductions ---- */

static void reduce_scatter_once(uint64_t scale, bool flat, bool in_place) {
    uint64_t counts[MOST] = {0}, total = make_counts(counts, scale), mine = counts[rank], at = begin_of(counts, rank);
    float *send = values_of(rank, total), *out = malloc((mine + 1) * sizeof *out);
    float *recv = in_place ? send + at : out;
    tm_comm_op op = {.code = TM_COMM_REDUCE_SCATTER, .send = send, .recv = recv, .counts = counts, .flat = flat};
    OK(tm_comm_run(comm, &op));
    check_sum(recv, at, mine, "reduce_scatter");
    for (uint64_t i = 0; in_place && i < total; i++)
        if (i < at || i >= at + mine)
            CHECK(bits_of(send[i]) == bits_of(value(rank, i)), "element %llu", (unsigned long long)i);
    free(send);
    free(out);
}

static void reduce_scatters(void **state) {
    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        reduce_scatter_once(SLICE, k & 1, k & 2);
        reduce_scatter_once(1, k & 1, k & 2);
        reduce_scatter_once(0, k & 1, k & 2);
    }
}

static void all_reduces(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 3, 5, 1000, 3 * SLICE + 1};
    for (size_t s = 0; s < TM_COUNT(sizes); s++) {
        for (unsigned k = 0; k < 4; k++) {
            float *x = values_of(rank, sizes[s]), *out = malloc((sizes[s] + 1) * sizeof *out);
            tm_comm_op op = {
                .code = TM_COMM_ALL_REDUCE, .send = x, .recv = k & 1 ? x : out, .count = sizes[s], .flat = k & 2};
            OK(tm_comm_run(comm, &op));
            check_sum(op.recv, 0, sizes[s], "all_reduce");
            free(x);
            free(out);
        }
    }
}

/* HSDP's way: within the node, then across. The bits are those of WORLD. */
static void node_then_across(void **state) {
    (void)state;
    if (!tm_comm_uniform(comm)) return;
    uint64_t n = SLICE, per = tm_comm_node_size(comm), from = tm_comm_node_rank(comm) * n;
    float *x = values_of(rank, n * per), *mine = malloc(n * sizeof *mine);
    tm_comm_op scatter = {.code = TM_COMM_REDUCE_SCATTER, .group = TM_COMM_NODE, .send = x, .recv = mine, .count = n};
    tm_comm_op reduce = {.code = TM_COMM_ALL_REDUCE, .group = TM_COMM_ACROSS, .send = mine, .recv = mine, .count = n};
    OK(tm_comm_submit(comm, &scatter)); /* both under way: they keep their order */
    OK(tm_comm_submit(comm, &reduce));
    OK(tm_comm_wait(comm, &reduce));
    OK(tm_comm_wait(comm, &scatter));
    check_sum(mine, from, n, "node, across");
    free(x);
    free(mine);
}

static void mpi_all_reduce(void **state) {
    (void)state;
    enum { N = 10001 };
    float *x = values_of(rank, N);
    tm_comm_op op = {.code = TM_COMM_ALL_REDUCE, .send = x, .recv = x, .count = N, .wire = TM_COMM_WIRE_MPI};
    OK(tm_comm_run(comm, &op));
    for (uint64_t i = 0; i < N; i++) {
        double want = 0, magnitude = 0;
        for (uint32_t r = 0; r < size; r++) want += (double)value(r, i), magnitude += fabs((double)value(r, i));
        CHECK(fabs((double)x[i] - want) <= magnitude * 1e-6, "element %llu", (unsigned long long)i);
    }
    free(x);
}

/* A rounded wire: near the exact sum, and the same bits whoever asks (BF16: whatever the slices). */
static void rounded(tm_comm_wire wire, double bound) {
    uint64_t counts[MOST] = {0}, total = make_counts(counts, SLICE);
    float *x = values_of(rank, total), *all = malloc((total + 1) * sizeof *all),
          *again = malloc((total + 1) * sizeof *all);
    tm_comm_op reduce = {.code = TM_COMM_ALL_REDUCE, .send = x, .recv = all, .count = total, .wire = wire};
    tm_comm_op scatter = {.code = TM_COMM_REDUCE_SCATTER, .send = x, .recv = again, .counts = counts, .wire = wire};
    OK(tm_comm_run(comm, &reduce));
    OK(tm_comm_run(comm, &scatter));
    double most = 0;
    for (uint32_t r = 0; r < size; r++)
        for (uint64_t i = 0; i < total; i++) most = fmax(most, fabs((double)value(r, i)));
    for (uint64_t i = 0; i < total; i++)
        CHECK(fabs((double)all[i] - (double)tree_sum(i)) <= bound * most * size, "wire %d element %llu: %g, not %g",
              wire, (unsigned long long)i, (double)all[i], (double)tree_sum(i));
    uint64_t at = begin_of(counts, rank);
    for (uint64_t i = 0; wire == TM_COMM_WIRE_BF16 && i < counts[rank]; i++)
        CHECK(bits_of(again[i]) == bits_of(all[at + i]), "element %llu", (unsigned long long)i);
    free(x);
    free(all);
    free(again);
}

static void rounded_wires(void **state) {
    (void)state;
    rounded(TM_COMM_WIRE_BF16, 1.0 / 128); /* twice 2^-9, in two stages */
    rounded(TM_COMM_WIRE_Q8, 1.0 / 127);
    rounded(TM_COMM_WIRE_Q4, 1.0 / 3);
}

static void small_all_reduces(void **state) {
    (void)state;
    enum { N = 70001 }; /* more than the workspace holds */
    double *x = malloc(N * sizeof *x);
    uint64_t *u = malloc(N * sizeof *u);
    for (int how = TM_COMM_SUM; how <= TM_COMM_MAX; how++) {
        for (uint64_t i = 0; i < N; i++) x[i] = (double)value(rank, i) / 3, u[i] = (i * 7919) ^ (rank * 104729U);
        if (how == TM_COMM_MAX && rank == size - 1) x[5] = NAN;
        OK(tm_comm_all_reduce_f64(comm, TM_COMM_WORLD, (tm_comm_reduce)how, x, N));
        OK(tm_comm_all_reduce_u64(comm, TM_COMM_WORLD, (tm_comm_reduce)how, u, N));
        for (uint64_t i = 0; i < N; i++) {
            double want = (double)value(0, i) / 3;
            uint64_t uwant = i * 7919;
            for (uint32_t r = 1; r < size; r++) {
                double y = (double)value(r, i) / 3;
                uint64_t v = (i * 7919) ^ (r * 104729U);
                if (how == TM_COMM_SUM) want += y, uwant += v;
                if (how == TM_COMM_MIN) want = fmin(want, y), uwant = v < uwant ? v : uwant;
                if (how == TM_COMM_MAX) want = fmax(want, y), uwant = v > uwant ? v : uwant;
            }
            bool nan = how == TM_COMM_MAX && i == 5;
            CHECK(nan ? isnan(x[i]) : x[i] == want, "f64 %d at %llu", how, (unsigned long long)i);
            CHECK(u[i] == uwant, "u64 %d at %llu", how, (unsigned long long)i);
        }
    }
    free(x);
    free(u);
}

/* ---- gathers ---- */

static void gather_once(uint64_t scale, bool flat, bool in_place) {
    uint64_t counts[MOST] = {0}, total = make_counts(counts, scale), at = begin_of(counts, rank);
    float *all = calloc(total + 1, sizeof *all), *mine = malloc((counts[rank] + 1) * sizeof *mine);
    for (uint64_t i = 0; i < counts[rank]; i++) mine[i] = all[at + i] = value(7, at + i);
    if (!in_place) memset(all, 0, total * sizeof *all);
    tm_comm_op op = {
        .code = TM_COMM_ALL_GATHER, .send = in_place ? NULL : mine, .recv = all, .counts = counts, .flat = flat};
    OK(tm_comm_run(comm, &op));
    for (uint64_t i = 0; i < total; i++)
        CHECK(bits_of(all[i]) == bits_of(value(7, i)), "element %llu", (unsigned long long)i);
    free(all);
    free(mine);
}

static void all_gathers(void **state) {
    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        gather_once(SLICE, k & 1, k & 2);
        gather_once(300000, k & 1, k & 2); /* several messages a slice */
        gather_once(1, k & 1, k & 2);
        gather_once(0, k & 1, k & 2);
    }
}

static uint16_t half_of(float x) {
    return (uint16_t)(bits_of(x) >> 16);
}

static float float_of(uint16_t h) {
    uint32_t b = (uint32_t)h << 16;
    float x;
    memcpy(&x, &b, 4);
    return x;
}

/* qwZ: every rank ends with the same bits, those that quantising each slice gives. */
static void quantised_gather(void **state) {
    (void)state;
    uint64_t counts[MOST] = {0}, total = make_counts(counts, SLICE), at = begin_of(counts, rank);
    uint16_t *mine = malloc((counts[rank] + 1) * 2), *all = malloc((total + 1) * 2);
    for (uint64_t i = 0; i < counts[rank]; i++) mine[i] = half_of(value(3, at + i));
    tm_comm_op op = {.code = TM_COMM_ALL_GATHER,
                     .type = TM_COMM_BF16,
                     .wire = TM_COMM_WIRE_Q8,
                     .send = mine,
                     .recv = all,
                     .counts = counts};
    OK(tm_comm_run(comm, &op));
    float *wide = malloc((total + 1) * sizeof *wide), *back = malloc((total + 1) * sizeof *back);
    char *codes = malloc(tm_comm_quant_bytes(TM_COMM_WIRE_Q8, total) + 1);
    for (uint32_t r = 0; r < size; r++) {
        uint64_t begin = begin_of(counts, r), n = counts[r];
        for (uint64_t i = 0; i < n; i++) wide[i] = float_of(half_of(value(3, begin + i)));
        tm_comm_quantise(TM_COMM_WIRE_Q8, wide, n, codes);
        tm_comm_dequantise(TM_COMM_WIRE_Q8, codes, n, back);
        for (uint64_t i = 0; i < n; i++) {
            float got = float_of(all[begin + i]), want = size == 1 ? wide[i] : back[i];
            CHECK(fabsf(got - want) <= fabsf(want) / 256, "element %llu: %g, not %g", (unsigned long long)(begin + i),
                  (double)got, (double)want);
        }
    }
    OK(tm_comm_same(comm, "what was gathered", tm_hash64(all, total * 2, 0)));
    free(mine), free(all), free(wide), free(back), free(codes);
}

/* ---- the others ---- */

static void broadcasts(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 3, 100003, 3000000};
    for (size_t s = 0; s < TM_COUNT(sizes); s++) {
        for (uint32_t root = 0; root < size; root++) {
            unsigned char *x = malloc(sizes[s] + 1);
            for (uint64_t i = 0; i < sizes[s]; i++) x[i] = rank == root ? (unsigned char)(i * 31 + root) : 0;
            OK(tm_comm_broadcast(comm, TM_COMM_WORLD, root, x, sizes[s]));
            for (uint64_t i = 0; i < sizes[s]; i++)
                CHECK(x[i] == (unsigned char)(i * 31 + root), "byte %llu of %u", (unsigned long long)i, root);
            free(x);
        }
    }
}

/* Around the ring, and from the first to the last. */
static void point_to_point(void **state) {
    (void)state;
    enum { N = 100001 };
    float *out = values_of(rank, N), *in = calloc(N, sizeof *in);
    uint32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    tm_comm_op ring = {.code = TM_COMM_EXCHANGE, .send = out, .recv = in, .count = N, .peer = next, .from = before};
    OK(tm_comm_run(comm, &ring));
    for (uint64_t i = 0; i < N; i++) CHECK(in[i] == value(before, i), "element %llu", (unsigned long long)i);
    if (size > 1 && (rank == 0 || rank == size - 1)) {
        tm_comm_op op = {.code = rank ? TM_COMM_RECV : TM_COMM_SEND,
                         .send = out,
                         .recv = in,
                         .count = N,
                         .peer = rank ? 0 : size - 1};
        OK(tm_comm_run(comm, &op));
        for (uint64_t i = 0; rank && i < N; i++) CHECK(in[i] == value(0, i), "element %llu", (unsigned long long)i);
    }
    free(out);
    free(in);
}

static void groups(void **state) {
    (void)state;
    uint32_t odd, n;
    OK(tm_comm_split(comm, rank % 2, &odd));
    n = tm_comm_group_size(comm, odd);
    CHECK(n == (size + 1 - rank % 2) / 2, "%u members", n);
    CHECK(tm_comm_group_world(comm, odd, tm_comm_group_rank(comm, odd)) == rank, "my place");
    uint64_t who[1] = {rank};
    OK(tm_comm_all_reduce_u64(comm, odd, TM_COMM_SUM, who, 1));
    uint64_t want = 0;
    for (uint32_t r = rank % 2; r < size; r += 2) want += r;
    CHECK(who[0] == want, "%llu, not %llu", (unsigned long long)who[0], (unsigned long long)want);
    OK(tm_comm_barrier(comm, odd));
    CHECK(tm_comm_group_size(comm, TM_COMM_NODE) == tm_comm_node_size(comm), "node");
    CHECK(tm_comm_group_size(comm, TM_COMM_ACROSS) <= tm_comm_nodes(comm), "across");
}

static void agreements(void **state) {
    (void)state;
    OK(tm_comm_agree(comm, TM_OK));
    tm_status mine = rank == size - 1 ? tm_fail(TM_ENOSPC, "the disk of %u is full", rank) : TM_OK;
    CHECK(tm_comm_agree(comm, mine) == TM_ENOSPC, "status");
    char want[64];
    snprintf(want, sizeof want, size > 1 ? "rank %u: the disk of %u is full" : "the disk of %u is full", size - 1, 0U);
    if (size > 1) snprintf(want, sizeof want, "rank %u: the disk of %u is full", size - 1, size - 1);
    CHECK(!strcmp(tm_error_get()->text, want), "%s", tm_error_get()->text);
    CHECK(tm_comm_quiet() == (rank > 0), "who speaks");
    tm_error_clear();
    OK(tm_comm_same(comm, "the model", 11));
    if (size < 2) return;
    CHECK(tm_comm_same(comm, "the model", rank == 1 ? 12 : 11) == TM_EINPUT, "one differs");
    CHECK(strstr(tm_error_get()->text, "the model of rank 1 ("), "%s", tm_error_get()->text);
    tm_error_clear();
}

static void windows(void **state) {
    (void)state;
    tm_comm_window *w;
    OK(tm_comm_window_open(&w, comm, 5000 + rank));
    uint64_t bytes;
    uint32_t *mine = tm_comm_window_part(w, tm_comm_node_rank(comm), &bytes);
    CHECK(bytes >= 5000 + rank && (uintptr_t)mine % 4096 == 0, "my part");
    CHECK(tm_comm_window_bytes(w) == (uint64_t)tm_comm_node_size(comm) * 8192, "all parts");
    if (tm_comm_node_rank(comm) > 0)
        CHECK((char *)mine - (char *)tm_comm_window_part(w, tm_comm_node_rank(comm) - 1, NULL) == 8192, "one piece");
    for (uint32_t i = 0; i < 1000; i++) mine[i] = rank * 1000 + i;
    OK(tm_comm_barrier(comm, TM_COMM_NODE));
    for (uint32_t p = 0; p < tm_comm_node_size(comm); p++) {
        const uint32_t *theirs = tm_comm_window_part(w, p, NULL);
        uint32_t r = tm_comm_group_world(comm, TM_COMM_NODE, p);
        for (uint32_t i = 0; i < 1000; i++) CHECK(theirs[i] == r * 1000 + i, "part %u at %u", p, i);
    }
    OK(tm_comm_barrier(comm, TM_COMM_NODE));
    tm_comm_window_close(w);
}

/* Bytes of memory that this process has mapped to share. */
static uint64_t mapped_shared(void) {
    uint64_t bytes = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f, "/proc/self/maps");
    while (fgets(line, sizeof line, f)) {
        unsigned long long begin, end;
        char mode[8];
        if (sscanf(line, "%llx-%llx %7s", &begin, &end, mode) == 3 && mode[3] == 's') bytes += end - begin;
    }
    fclose(f);
    return bytes;
}

/* One rank cannot have its part: none of the node has a window then, what MPI had mapped for it is gone, and the next
 * one is as good as any. (What MPI gave to some ranks only cannot be given back: it is not touched.) */
static void windows_refused(void **state) {
    (void)state;
#ifdef TIDEMILL_FAULTS
    enum { VICTIM = 1, BYTES = 4 << 20 };
    static const char *const fault[] = {"mpi_win_shared_query:1:error:once", "window_full:1:now:once",
                                        "window_lost:1:now:once"};
    if (size <= VICTIM) return;
    const bool struck = tm_comm_node_of(comm, VICTIM) == tm_comm_node(comm);
    for (size_t i = 0; i < TM_COUNT(fault); i++) {
        tm_comm_window *w = NULL;
        const uint64_t before = mapped_shared();
        if (rank == VICTIM) OK(tm_fault_set(fault[i]));
        tm_status rc = tm_comm_window_open(&w, comm, BYTES);
        CHECK(struck == (rc != TM_OK) && struck == (w == NULL), "%s: status %d", fault[i], rc);
        CHECK(!struck || strstr(tm_error_get()->text, "ranks of a node share"), "%s", tm_error_get()->text);
        CHECK(!struck || i == 2 || mapped_shared() == before, "%s: %lld bytes left", fault[i],
              (long long)(mapped_shared() - before));
        tm_comm_window_close(w);
        tm_error_clear();
        OK(tm_fault_set(NULL));
    }
    windows(state);
#endif
}

/* Slices of bf16 whose values say who made them, and in which round. */
static uint16_t cell(uint32_t r, unsigned round, uint64_t i) {
    float x = (float)((r + 1) * 8 + round) * (float)(1 + i % 7);
    uint32_t b = bits_of(x);
    return (uint16_t)(b >> 16);
}

static void fill_mine(uint16_t *mine, const uint64_t *counts, uint32_t me, unsigned round) {
    for (uint64_t i = 0; i < counts[me]; i++) mine[i] = cell(rank, round, i);
}

static void late(uint32_t unlike) {
    if (rank % size == unlike % size) usleep(2000);
}

enum { ROUNDS = 6 };

/* Into one memory, round after round: a rank that comes late finds what it was to read, and nobody reads what a late
 * one has yet to write. The bits are those of a gather into memory of one's own, made before: nothing else may order
 * the ranks here. */
static void shared_gather(uint32_t group, tm_comm_wire wire, uint64_t scale) {
    uint64_t counts[MOST] = {0};
    (void)make_counts(counts, scale);
    uint32_t me = tm_comm_group_rank(comm, group);
    uint64_t total = begin_of(counts, tm_comm_group_size(comm, group));
    tm_comm_window *w;
    uint16_t *mine = calloc(ROUNDS * (counts[me] + 1), 2), *want = calloc(ROUNDS * (total + 1), 2);
    OK(tm_comm_window_open(&w, comm, tm_comm_node_rank(comm) == 0 ? 2 * total : 4096));
    uint16_t *all = tm_comm_window_part(w, 0, NULL);
    tm_comm_op op = {.code = TM_COMM_ALL_GATHER, .group = group, .type = TM_COMM_BF16, .wire = wire, .counts = counts};
    for (unsigned round = 0; round < ROUNDS; round++) {
        op.send = mine + round * counts[me];
        op.recv = want + round * total;
        fill_mine(mine + round * counts[me], counts, me, round);
        OK(tm_comm_run(comm, &op));
    }
    op.shared = true;
    op.recv = all;
    for (unsigned round = 0; round < ROUNDS; round++) {
        op.send = mine + round * counts[me];
        late(round); /* to write */
        OK(tm_comm_run(comm, &op));
        late(round + 1); /* to read */
        for (uint64_t i = 0; i < total; i++)
            CHECK(all[i] == want[round * total + i], "group %u wire %d round %u: element %llu is %x, not %x", group,
                  wire, round, (unsigned long long)i, all[i], want[round * total + i]);
    }
    OK(tm_comm_barrier(comm, TM_COMM_NODE));
    tm_comm_window_close(w);
    free(mine);
    free(want);
}

static void shared_gathers(void **state) {
    (void)state;
    static const tm_comm_wire wires[] = {TM_COMM_EXACT, TM_COMM_WIRE_Q8};
    for (size_t k = 0; k < TM_COUNT(wires); k++)
        for (uint32_t group = TM_COMM_WORLD; group <= TM_COMM_NODE; group++) {
            shared_gather(group, wires[k], SLICE);
            shared_gather(group, wires[k], 1);
        }
}

/* ---- counters ---- */

static uint64_t sent(tm_comm_code code, uint64_t *between) {
    tm_comm_stats s;
    tm_comm_get_stats(comm, &s);
    *between = s.sent_bytes[code][TM_COMM_BETWEEN_NODES];
    return s.sent_bytes[code][TM_COMM_IN_NODE] + *between;
}

/* Three counts that know nothing of each other: src/comm's where it posts, the theory, and MPI's own interface. */
static void count_once(tm_comm_op op, uint64_t want, const char *what) {
    uint64_t between0, between1, theory[TM_COMM_LINKS], before = sent(op.code, &between0);
    const witnessed start = witness();
    OK(tm_comm_run(comm, &op));
    const witnessed end = witness();
    uint64_t got = sent(op.code, &between1) - before;
    tm_comm_op_bytes(comm, &op, theory);
    CHECK(got == want, "%s: %llu bytes counted, not %llu", what, (unsigned long long)got, (unsigned long long)want);
    CHECK(end.bytes - start.bytes == got, "%s: %llu bytes counted, %llu posted", what, (unsigned long long)got,
          (unsigned long long)(end.bytes - start.bytes));
    CHECK(theory[0] + theory[1] == got && theory[TM_COMM_BETWEEN_NODES] == between1 - between0,
          "%s: %llu bytes counted, %llu of them between nodes; %llu and %llu in theory", what, (unsigned long long)got,
          (unsigned long long)(between1 - between0), (unsigned long long)(theory[0] + theory[1]),
          (unsigned long long)theory[TM_COMM_BETWEEN_NODES]);
}

/* Bytes of the whole grid that cross between nodes: a node's share, once, where it is staged. */
static void count_between(bool flat, uint64_t n) {
    float *x = values_of(rank, n * size), *mine = malloc(n * sizeof *mine);
    uint64_t from, to;
    tm_comm_op op = {.code = TM_COMM_REDUCE_SCATTER, .send = x, .recv = mine, .count = n, .flat = flat};
    sent(op.code, &from);
    OK(tm_comm_run(comm, &op));
    sent(op.code, &to);
    uint64_t nodes = tm_comm_nodes(comm), per = tm_comm_node_size(comm);
    uint64_t want = 4 * n * (flat ? (nodes - 1) * per : nodes - 1);
    CHECK(!tm_comm_uniform(comm) || to - from == want, "%llu bytes between nodes, not %llu",
          (unsigned long long)(to - from), (unsigned long long)want);
    free(x);
    free(mine);
}

static void counters(void **state) {
    (void)state;
    enum { N = 2560 };
    const uint64_t others = size - 1;
    float *x = values_of(rank, (uint64_t)N * size), *y = malloc((uint64_t)N * (size < 3 ? 3 : size) * sizeof *y);
    tm_comm_op scatter = {.code = TM_COMM_REDUCE_SCATTER, .send = x, .recv = y, .count = N};
    tm_comm_op gather = {.code = TM_COMM_ALL_GATHER, .send = x, .recv = y, .count = N};
    tm_comm_op reduce = {.code = TM_COMM_ALL_REDUCE, .send = x, .recv = y, .count = (uint64_t)N * size};
    tm_comm_op weights = {.code = TM_COMM_ALL_GATHER, .type = TM_COMM_BF16, .send = x, .recv = y, .count = N};
    count_once(scatter, 4 * N * others, "reduce_scatter");
    count_once(gather, 4 * N * others, "all_gather");
    count_once(reduce, 8 * N * others, "all_reduce");
    count_once(weights, 2 * N * others, "all_gather of bf16");
    weights.wire = TM_COMM_WIRE_Q8; /* half of it, and a scale for 256 */
    count_once(weights, (N + N / 64) * others, "qwZ");
    scatter.wire = TM_COMM_WIRE_BF16;
    count_once(scatter, 2 * N * others, "reduce_scatter in bf16");
    scatter.wire = TM_COMM_WIRE_Q4; /* a quarter of two bytes */
    count_once(scatter, (N / 2 + N / 32) * others, "qgZ");
    weights.shared = true; /* y: nobody looks at it */
    count_once(weights, (N + N / 64) * (tm_comm_nodes(comm) - 1), "qwZ into shared memory");
    weights.wire = TM_COMM_EXACT;
    count_once(weights, 2 * N * (tm_comm_nodes(comm) - 1), "all_gather into shared memory");
    reduce.flat = scatter.flat = true;
    scatter.wire = TM_COMM_EXACT;
    count_once(scatter, 4 * N * others, "reduce_scatter, flat");
    reduce.wire = TM_COMM_WIRE_MPI; /* what it is handed */
    count_once(reduce, others ? 4 * (uint64_t)N * size : 0, "MPI's all_reduce");
    tm_comm_op small = {.code = TM_COMM_ALL_REDUCE, .type = TM_COMM_F64, .send = x, .recv = x, .count = 100};
    count_once(small, 800 * others, "all_reduce of doubles");
    tm_comm_op from_first = {.code = TM_COMM_BROADCAST, .type = TM_COMM_BYTE, .recv = y, .count = 12 * (uint64_t)N};
    uint64_t slice = others ? 12 * (uint64_t)N / size : 0;
    count_once(from_first, slice * others * (rank ? 1 : 2), "broadcast");
    tm_comm_op ring = {.code = TM_COMM_EXCHANGE,
                       .send = x,
                       .recv = y,
                       .count = N,
                       .peer = (rank + 1) % size,
                       .from = (rank + size - 1) % size};
    count_once(ring, others ? 4 * N : 0, "exchange");
    count_once((tm_comm_op){.code = TM_COMM_BARRIER}, 0, "barrier");
    count_between(true, N);
    count_between(false, N);
    free(x);
    free(y);
}

/* ---- callbacks, memory ---- */

enum { QUEUED = 200 };
static unsigned finished;
static tm_comm_op queue[QUEUED];
static uint64_t cells[QUEUED];

static void note(tm_comm_op *op) {
    CHECK(op == &queue[finished], "operation %ld is done, not %u", (long)(op - queue), finished);
    CHECK(op->status == TM_OK && op->start_ns >= op->submit_ns && op->complete_ns >= op->start_ns, "times");
    __atomic_add_fetch(&finished, 1, __ATOMIC_SEQ_CST);
}

/* Many at once: in order, each done once, and no allocation of ours. */
static void queued(void **state) {
    (void)state;
    uint64_t before = 0;
    OK(tm_comm_barrier(comm, TM_COMM_WORLD));
    before = tm_mem_allocations();
    for (unsigned i = 0; i < QUEUED; i++) {
        cells[i] = i + rank;
        queue[i] = (tm_comm_op){.code = TM_COMM_ALL_REDUCE,
                                .type = TM_COMM_U64,
                                .send = &cells[i],
                                .recv = &cells[i],
                                .count = 1,
                                .group = i % 3,
                                .done = note};
        OK(tm_comm_submit(comm, &queue[i]));
    }
    OK(tm_comm_barrier(comm, TM_COMM_WORLD)); /* in order: all are done */
    CHECK(finished == QUEUED, "%u", finished);
    CHECK(tm_mem_allocations() == before, "%llu allocations", (unsigned long long)(tm_mem_allocations() - before));
    for (unsigned i = 0; i < QUEUED; i += 3) CHECK(cells[i] == i * size + size * (size - 1) / 2, "cell %u", i);
}

static void nonsense(void **state) {
    (void)state;
    tm_comm_op wrong[] = {{.code = TM_COMM_CODES},
                          {.code = TM_COMM_REDUCE_SCATTER, .type = TM_COMM_F64},
                          {.code = TM_COMM_ALL_GATHER, .wire = TM_COMM_WIRE_MPI},
                          {.code = TM_COMM_ALL_REDUCE, .reduce = TM_COMM_MAX},
                          {.code = TM_COMM_BARRIER, .group = 31},
                          {.code = TM_COMM_ALL_GATHER, .group = TM_COMM_ACROSS, .shared = true},
                          {.code = TM_COMM_REDUCE_SCATTER, .shared = true},
                          {.code = TM_COMM_SEND, .peer = rank},
                          {.code = TM_COMM_BROADCAST, .peer = size}};
    for (size_t i = 0; i < TM_COUNT(wrong); i++) {
        CHECK(tm_comm_submit(comm, &wrong[i]) == TM_EBUG, "%zu", i);
        tm_error_clear();
    }
}

int main(void) {
    const char *wanted = getenv("TM_TEST_RANKS");
    OK(tm_comm_open(&comm, &(tm_comm_opts){.workspace_bytes = tm_comm_workspace_bytes(MOST) * 4}));
    size = tm_comm_size(comm);
    rank = tm_comm_rank(comm);
    CHECK(size == (wanted ? strtoul(wanted, NULL, 10) : 1), "%u ranks", size);
    if (rank && !freopen("/dev/null", "w", stdout)) return 1; /* one report is enough */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_scatters), cmocka_unit_test(all_reduces),      cmocka_unit_test(node_then_across),
        cmocka_unit_test(mpi_all_reduce),  cmocka_unit_test(rounded_wires),    cmocka_unit_test(small_all_reduces),
        cmocka_unit_test(all_gathers),     cmocka_unit_test(quantised_gather), cmocka_unit_test(broadcasts),
        cmocka_unit_test(point_to_point),  cmocka_unit_test(groups),           cmocka_unit_test(agreements),
        cmocka_unit_test(windows),         cmocka_unit_test(windows_refused),  cmocka_unit_test(shared_gathers),
        cmocka_unit_test(counters),        cmocka_unit_test(queued),           cmocka_unit_test(nonsense),
    };
    int failed = cmocka_run_group_tests_name("comm among ranks", tests, NULL, NULL);
    tm_comm_close(comm);
    return failed;
}

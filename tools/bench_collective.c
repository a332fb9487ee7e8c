/* tidemill bench collective */
#include "comm/comm.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

/* A vector of `size` bytes of fp32 (bf16 where `half`), cut into equal slices. */
typedef struct kind {
    const char *name;
    tm_comm_code code;
    tm_comm_wire wire;
    bool half;
    bool shared; /* into memory that a node has once */
} kind;

static const kind kinds[] = {
    {"reduce_scatter", TM_COMM_REDUCE_SCATTER, TM_COMM_EXACT, false, false},
    {"reduce_scatter_bf16", TM_COMM_REDUCE_SCATTER, TM_COMM_WIRE_BF16, false, false},
    {"reduce_scatter_q8", TM_COMM_REDUCE_SCATTER, TM_COMM_WIRE_Q8, false, false},
    {"reduce_scatter_q4", TM_COMM_REDUCE_SCATTER, TM_COMM_WIRE_Q4, false, false},
    {"all_gather", TM_COMM_ALL_GATHER, TM_COMM_EXACT, false, false},
    {"all_gather_q8", TM_COMM_ALL_GATHER, TM_COMM_WIRE_Q8, true, false},
    {"all_gather_shared", TM_COMM_ALL_GATHER, TM_COMM_EXACT, false, true},
    {"all_reduce", TM_COMM_ALL_REDUCE, TM_COMM_EXACT, false, false},
    {"all_reduce_mpi", TM_COMM_ALL_REDUCE, TM_COMM_WIRE_MPI, false, false},
    {"broadcast", TM_COMM_BROADCAST, TM_COMM_EXACT, false, false},
    {"exchange", TM_COMM_EXCHANGE, TM_COMM_EXACT, false, false},
};
static const char *const group_names[] = {"world", "node", "across"};

enum { MAX_ROWS = 8 * TM_COUNT(kinds), MAX_ROUNDS = 2000 };

typedef struct row {
    const kind *kind;
    uint64_t bytes;
    double seconds, together, compute; /* of one operation, the slowest rank; with compute beside it; that alone */
    uint64_t sent[TM_COMM_LINKS];      /* by rank 0, each */
    double sum_share;
} row;

typedef struct bench {
    tm_comm *comm;
    uint32_t group;
    const char *group_name;
    double seconds;
    bool overlap, flat, json;
    tm_opt_list names, sizes;
    const char *name[TM_COUNT(kinds)], *size[8];
    char *send, *recv;
    tm_comm_window *window; /* NULL: nothing is gathered into one */
    float *grist;           /* of the compute loop */
    row rows[MAX_ROWS];
    size_t n_rows;
} bench;

static tm_comm_op make_op(const bench *b, const row *r) {
    uint32_t n = tm_comm_group_size(b->comm, b->group), me = tm_comm_group_rank(b->comm, b->group);
    uint64_t total = r->bytes / 4 / n * n;
    bool whole = r->kind->code >= TM_COMM_ALL_REDUCE;
    return (tm_comm_op){.code = r->kind->code,
                        .group = b->group,
                        .type = r->kind->half ? TM_COMM_BF16 : TM_COMM_F32,
                        .wire = r->kind->wire,
                        .flat = b->flat,
                        .shared = r->kind->shared,
                        .send = b->send,
                        .recv = r->kind->shared ? tm_comm_window_part(b->window, 0, NULL) : b->recv,
                        .count = whole ? total : total / n,
                        .peer = r->kind->code == TM_COMM_EXCHANGE ? (me + 1) % n : 0,
                        .from = (me + n - 1) % n};
}

enum { GRIST = 4096 };

/* About 10 us on a core: what a training step would do meanwhile. */
static void grind(float *x) {
    for (int pass = 0; pass < 8; pass++)
        for (int i = 0; i < GRIST; i++) x[i] = x[i] * 0.999F + 0.001F;
}

static double compute(const bench *b, uint64_t turns) {
    uint64_t start = tm_now_ns();
    for (uint64_t i = 0; i < turns; i++) grind(b->grist);
    return (double)(tm_now_ns() - start) * 1e-9;
}

/* One operation, with `turns` of compute beside it. */
static tm_status once(const bench *b, const row *r, uint64_t turns, double *seconds) {
    tm_comm_op op = make_op(b, r);
    TM_TRY(tm_comm_barrier(b->comm, TM_COMM_WORLD));
    uint64_t start = tm_now_ns();
    TM_TRY(tm_comm_submit(b->comm, &op));
    if (turns) compute(b, turns);
    TM_TRY(tm_comm_wait(b->comm, &op));
    *seconds = (double)(tm_now_ns() - start) * 1e-9;
    return tm_comm_all_reduce_f64(b->comm, TM_COMM_WORLD, TM_COMM_MAX, seconds, 1);
}

/* The median of as many rounds as fit into the time; all ranks see the same times, so they agree on when to stop. */
static tm_status median(const bench *b, const row *r, uint64_t turns, double *seconds) {
    static double times[MAX_ROUNDS];
    double spent = 0;
    unsigned n = 0;
    TM_TRY(once(b, r, turns, &times[0])); /* warms up */
    while (n < 3 || (spent < b->seconds && n < MAX_ROUNDS)) {
        TM_TRY(once(b, r, turns, &times[n]));
        spent += times[n++];
    }
    *seconds = tm_median(times, n);
    return TM_OK;
}

static tm_status measure_overlap(const bench *b, row *r) {
    double turn = compute(b, 200) / 200, turns = r->seconds / turn;
    TM_TRY(tm_comm_all_reduce_f64(b->comm, TM_COMM_WORLD, TM_COMM_MAX, &turns, 1));
    uint64_t n = (uint64_t)turns + 1;
    r->compute = compute(b, n);
    TM_TRY(tm_comm_all_reduce_f64(b->comm, TM_COMM_WORLD, TM_COMM_MAX, &r->compute, 1));
    return median(b, r, n, &r->together);
}

/* What this rank posts for one of them. */
static tm_status count_sent(const bench *b, row *r) {
    tm_comm_stats before, after;
    tm_comm_op op = make_op(b, r);
    TM_TRY(tm_comm_barrier(b->comm, TM_COMM_WORLD));
    tm_comm_get_stats(b->comm, &before);
    TM_TRY(tm_comm_run(b->comm, &op));
    tm_comm_get_stats(b->comm, &after);
    for (unsigned l = 0; l < TM_COMM_LINKS; l++)
        r->sent[l] = after.sent_bytes[op.code][l] - before.sent_bytes[op.code][l];
    return TM_OK;
}

static tm_status measure(const bench *b, row *r) {
    tm_comm_stats before, after;
    const tm_comm_op op = make_op(b, r);
    TM_TRY(count_sent(b, r));
    tm_comm_get_stats(b->comm, &before);
    TM_TRY(median(b, r, 0, &r->seconds));
    tm_comm_get_stats(b->comm, &after);
    uint64_t busy = after.busy_ns[op.code] - before.busy_ns[op.code];
    r->sum_share = busy ? (double)(after.sum_ns - before.sum_ns) / (double)busy : 0;
    return b->overlap ? measure_overlap(b, r) : TM_OK;
}

/* ---- printing: rank 0 ---- */

static uint64_t sent_bytes(const row *r) {
    return r->sent[TM_COMM_IN_NODE] + r->sent[TM_COMM_BETWEEN_NODES];
}

/* The step's time over the longer of its two halves: 1 hides the shorter one wholly. */
static double over_longer(const row *r) {
    return r->together / (r->compute > r->seconds ? r->compute : r->seconds);
}

static void print_table(const bench *b) {
    char x[32], y[32], z[32];
    printf("%u ranks on %u nodes, group %s of %u, %s\n", tm_comm_size(b->comm), tm_comm_nodes(b->comm), b->group_name,
           tm_comm_group_size(b->comm, b->group), b->flat ? "flat" : "in stages where there are nodes");
    printf("%-20s %10s %12s %12s %12s %14s %6s%s\n", "operation", "vector", "seconds", "sent", "to nodes", "sent/s",
           "sums", b->overlap ? "  with compute" : "");
    for (size_t i = 0; i < b->n_rows; i++) {
        const row *r = &b->rows[i];
        printf("%-20s %10s %12.6f %12s %12s %11.3f GB %5.0f%%", r->kind->name, tm_format_size(r->bytes, x, sizeof x),
               r->seconds, tm_format_size(sent_bytes(r), y, sizeof y),
               tm_format_size(r->sent[TM_COMM_BETWEEN_NODES], z, sizeof z), (double)sent_bytes(r) / r->seconds * 1e-9,
               100 * r->sum_share);
        if (b->overlap) printf("  %.2f x the longer", over_longer(r));
        putchar('\n');
    }
}

static void row_json(tm_json_writer *w, const bench *b, const row *r) {
    tm_jw_object(w);
    tm_jw_field_str(w, "operation", r->kind->name);
    tm_jw_field_uint(w, "bytes", r->bytes);
    tm_jw_field_double(w, "seconds", r->seconds);
    tm_jw_field_uint(w, "sent_bytes", sent_bytes(r));
    tm_jw_field_uint(w, "sent_bytes_between_nodes", r->sent[TM_COMM_BETWEEN_NODES]);
    tm_jw_field_double(w, "sent_bytes_per_second", (double)sent_bytes(r) / r->seconds);
    tm_jw_field_double(w, "sum_share", r->sum_share);
    if (b->overlap) {
        tm_jw_field_double(w, "compute_seconds", r->compute);
        tm_jw_field_double(w, "overlapped_seconds", r->together);
        tm_jw_field_double(w, "overlap", over_longer(r));
    }
    tm_jw_object_end(w);
}

static tm_status print_collective_json(const bench *b) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_uint(&w, "ranks", tm_comm_size(b->comm));
    tm_jw_field_uint(&w, "nodes", tm_comm_nodes(b->comm));
    tm_jw_field_str(&w, "group", b->group_name);
    tm_jw_field_uint(&w, "members", tm_comm_group_size(b->comm, b->group));
    tm_jw_field_array(&w, "results");
    for (size_t i = 0; i < b->n_rows; i++) row_json(&w, b, &b->rows[i]);
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

static const kind *find_kind(const char *name) {
    for (size_t i = 0; i < TM_COUNT(kinds); i++)
        if (!strcmp(kinds[i].name, name)) return &kinds[i];
    return NULL;
}

static int check_names(const bench *b) {
    for (size_t i = 0; i < b->names.count; i++) {
        const kind *k = find_kind(b->name[i]);
        if (k && k->shared && b->group == TM_COMM_ACROSS)
            return tm_cli_wrong("bench collective", "--op %s is among the ranks of nodes: --group world or node",
                                k->name);
        if (k) continue;
        const char *near = tm_cli_suggest(b->name[i], kinds, TM_COUNT(kinds), sizeof *kinds);
        return tm_cli_wrong("bench collective", "--op: no operation '%s'; did you mean '%s'?", b->name[i],
                            near ? near : kinds[0].name);
    }
    return -1;
}

static int read_size(const char *text, uint64_t *bytes) {
    bool good = tm_parse_size(text, bytes) == TM_OK && *bytes >= 4096 && *bytes <= 4 * TM_GIB;
    tm_error_clear();
    return good ? -1 : tm_cli_wrong("bench collective", "--size: '%s' is not a size from 4KiB to 4GiB", text);
}

/* Every operation at every size. */
static int make_rows(bench *b) {
    for (size_t s = 0; s < b->sizes.count; s++) {
        uint64_t bytes;
        int rc = read_size(b->size[s], &bytes);
        if (rc >= 0) return rc;
        for (size_t k = 0; k < TM_COUNT(kinds); k++) {
            bool wanted = !b->names.count && !(kinds[k].shared && b->group == TM_COMM_ACROSS);
            for (size_t i = 0; i < b->names.count; i++) wanted |= find_kind(b->name[i]) == &kinds[k];
            if (wanted) b->rows[b->n_rows++] = (row){.kind = &kinds[k], .bytes = bytes};
        }
    }
    return -1;
}

static tm_status reserve(bench *b) {
    uint64_t most = 0;
    for (size_t i = 0; i < b->n_rows; i++) most = tm_max_u64(most, b->rows[i].bytes);
    b->send = tm_calloc(1, most);
    b->recv = tm_calloc(1, most);
    b->grist = tm_calloc(GRIST, sizeof *b->grist);
    if (!b->send || !b->recv || !b->grist) return tm_nomem(2 * most);
    for (uint64_t i = 0; i < most / 4; i++) ((float *)(void *)b->send)[i] = (float)(i % 1000) * 1e-3F;
    return TM_OK;
}

/* On every node, or nothing is measured there. */
static tm_status open_window(bench *b) {
    uint64_t most = 0, all;
    size_t n = 0;
    for (size_t i = 0; i < b->n_rows; i++)
        if (b->rows[i].kind->shared) most = tm_max_u64(most, b->rows[i].bytes);
    if (most == 0) return TM_OK;
    all = tm_comm_window_open(&b->window, b->comm, tm_comm_node_rank(b->comm) == 0 ? most : 4096) == TM_OK;
    tm_error_clear();
    TM_TRY(tm_comm_all_reduce_u64(b->comm, TM_COMM_WORLD, TM_COMM_MIN, &all, 1));
    if (all) return TM_OK;
    if (tm_comm_rank(b->comm) == 0)
        tm_log(TM_LOG_WARN, "no memory that the ranks of a node share: all_gather_shared is left out");
    for (size_t i = 0; i < b->n_rows; i++)
        if (!b->rows[i].kind->shared) b->rows[n++] = b->rows[i];
    b->n_rows = n;
    return TM_OK;
}

static tm_status run(bench *b) {
    tm_status rc = tm_comm_size(b->comm) > 1
                       ? TM_OK
                       : tm_fail(TM_EINPUT, "one rank has nobody to talk to; start several: mpirun "
                                            "-n 4 tidemill bench collective");
    if (rc == TM_OK) rc = reserve(b);
    TM_TRY(tm_comm_agree(b->comm, rc));
    TM_TRY(open_window(b));
    for (size_t i = 0; i < b->n_rows; i++) TM_TRY(measure(b, &b->rows[i]));
    if (tm_comm_rank(b->comm)) return TM_OK;
    if (b->json) return print_collective_json(b);
    print_table(b);
    return TM_OK;
}

static int run_and_close(bench *b) {
    if (tm_comm_open(&b->comm, NULL) != TM_OK)
        return tm_comm_quiet() ? tm_exit_status(tm_error_get()->code) : tm_cmd_fail();
    tm_status rc = run(b);
    int status = rc == TM_OK ? TM_EXIT_DONE : tm_comm_quiet() ? tm_exit_status(rc) : tm_cmd_fail();
    tm_comm_window_close(b->window);
    tm_comm_close(b->comm);
    tm_free(b->send);
    tm_free(b->recv);
    tm_free(b->grist);
    return status;
}

int tm_bench_collective(int argc, char **argv) {
    static bench b;
    b = (bench){.seconds = 0.5, .group_name = group_names[0]};
    b.names = (tm_opt_list){.value = b.name, .cap = TM_COUNT(b.name)};
    b.sizes = (tm_opt_list){.value = b.size, .cap = TM_COUNT(b.size)};
    const tm_opt opts[] = {
        TM_OPTION("op", TM_OPT_LIST, &b.names, "NAME", "only this operation; may be repeated (all of them)"),
        TM_OPTION("size", TM_OPT_LIST, &b.sizes, "SIZE",
                  "of the whole vector in fp32; may be repeated (64KiB, 1MiB, 16MiB)"),
        TM_OPTION("group", TM_OPT_STRING, &b.group_name, "world|node|across", "who takes part (world)"),
        TM_OPTION("seconds", TM_OPT_DOUBLE, &b.seconds, "S", "for each operation and size (0.5)"),
        TM_FLAG("overlap", &b.overlap, "also with as much compute beside it as it takes itself"),
        TM_FLAG("flat", &b.flat, "never in stages, as if there were no nodes"),
        TM_FLAG("json", &b.json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "bench collective [--op NAME]... [--size SIZE]... [--group GROUP] [--overlap] [--json]",
        .about =
            "Measures the operations between the ranks of a job: the median time of the slowest rank, and what one "
            "rank sends. TIDEMILL_NODE_SIZE imitates nodes.",
        .example = "mpirun -n 4 tidemill bench collective --overlap\n"
                   "TIDEMILL_NODE_SIZE=2 mpirun -n 4 tidemill bench collective --op all_reduce --size 64MiB",
        TM_CLI_OPTIONS(opts),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    for (b.group = 0; b.group < TM_COUNT(group_names); b.group++)
        if (!strcmp(b.group_name, group_names[b.group])) break;
    if (b.group == TM_COUNT(group_names))
        return tm_cli_wrong("bench collective", "--group is world, node or across, not '%s'", b.group_name);
    static const char *const sizes[] = {"64KiB", "1MiB", "16MiB"};
    for (size_t i = 0; !b.sizes.count && i < TM_COUNT(sizes); i++) b.size[i] = sizes[i];
    if (!b.sizes.count) b.sizes.count = TM_COUNT(sizes);
    rc = check_names(&b);
    if (rc < 0) rc = make_rows(&b);
    return rc >= 0 ? rc : run_and_close(&b);
}

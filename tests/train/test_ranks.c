/* Several ranks under mpirun: one trajectory however many there are, one hash whatever the strategy, bytes on the wire
 * as theory has them, and a failure of one that ends all with its message. */
#include "run.h"
#include "tests/support/skip.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPTIMIZER "zero_optimization.offload_optimizer."
#define PARAM "zero_optimization.offload_param."
#define MIB ((uint64_t)1 << 20)

/* An untied model of two blocks whose matrices do not divide by 3, with rows that leave a smaller last step of an
 * epoch.
 */
typedef struct scene {
    const char *dir, *config;
    unsigned runs;
    uint64_t parameters; /* of matrices: vectors are kept whole, see wire() */
} scene;

enum { HIDDEN = 72, INNER = 200, VOCAB = 9001, BLOCKS = 2 };

static scene open_scene(const char *precision) {
    scene s = {.dir = run_dir()};
    const char *model = run_path(s.dir, "model");
    assert_int_equal(system(run_format("mkdir -p %s", model)), 0);
    run_write(run_path(model, "config.json"),
              run_format("{\"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d,\n"
                         " \"num_hidden_layers\": %d, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,\n"
                         " \"head_dim\": 18, \"vocab_size\": %d, \"max_position_embeddings\": 128,\n"
                         " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
                         " \"tie_word_embeddings\": false, \"initializer_range\": 0.02}\n",
                         HIDDEN, INNER, BLOCKS, VOCAB));
    s.parameters = 2 * (uint64_t)VOCAB * HIDDEN +
                   BLOCKS * ((uint64_t)HIDDEN * (2 * HIDDEN + 2 * 36) + 3 * (uint64_t)HIDDEN * INNER);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(run_path(s.dir, "rows.safetensors"), golden, 0, 18, 24, true);
    tm_st_close(golden);
    s.config = run_path(s.dir, "config.json");
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s/rows.safetensors\"},\n"
                         " \"precision\": \"%s\", \"max_steps\": 3, \"learning_rate\": 1e-3,\n"
                         " \"train_batch_size\": 12, \"per_device_train_batch_size\": 1}\n",
                         model, s.dir, precision));
    return s;
}

static run_result start_opts(scene *s, const run_opts *opts, const char *output, const char *const *sets) {
    const char *arguments[48] = {"train", s->config, "--quiet", "--set", run_format("output_dir=%s", output)};
    unsigned n = 5;
    for (; *sets && n < 46; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    return run_argv(opts, arguments);
}

static run_result start(scene *s, unsigned ranks, const char *output, const char *const *env, const char *const *sets) {
    return start_opts(s, &(run_opts){.ranks = ranks, .env = env, .timeout_s = 60}, output, sets);
}

static train_log train(scene *s, unsigned ranks, const char *const *sets) {
    const char *output = run_format("%s/out-%u", s->dir, s->runs++);
    run_result r = start(s, ranks, output, NULL, sets);
    RUN_OK(&r);
    run_free(&r);
    train_log log = train_log_read(output);
    assert_int_equal(run_entries(run_path(output, "offload")), 0);
    return log;
}

/* ---- one trajectory ------------------------------------------------------------------------------------------ */

/* fp32 sums in another order: some 1e-7 a value, which a few steps of Adam at 1e-3 amplify. */
static void test_trajectories(void **state) {
    (void)state;
    scene s = open_scene("fp32");
    train_log one = train(&s, 1, SETS("seed=42"));
    static const char *const strategies[] = {"strategy=zero3", "strategy=ddp", "strategy=zero2"};
    for (unsigned ranks = TEST_LONG("two ranks") ? 2 : 3; ranks <= 4; ranks++) {
        train_log log = train(&s, ranks, SETS(strategies[ranks - 2]));
        assert_int_equal(log.steps, one.steps);
        for (unsigned i = 0; i < one.steps; i++) {
            assert_int_equal(log.step[i].tokens, one.step[i].tokens);
            assert_int_equal(log.step[i].label_tokens, one.step[i].label_tokens);
            if (!(fabs(log.step[i].loss - one.step[i].loss) <= 2e-6 * one.step[i].loss) ||
                !(fabs(log.step[i].grad_norm - one.step[i].grad_norm) <= 2e-5 * one.step[i].grad_norm))
                fail_msg("%u ranks, step %u: loss %.9g, norm %.9g; one rank: %.9g, %.9g", ranks, i + 1,
                         log.step[i].loss, log.step[i].grad_norm, one.step[i].loss, one.step[i].grad_norm);
        }
    }
}

static void near_losses(const train_log *log, const train_log *whole) {
    assert_int_equal(log->steps, whole->steps);
    for (unsigned i = 0; i < whole->steps; i++)
        if (!(fabs(log->step[i].loss - whole->step[i].loss) <= 2e-6 * whole->step[i].loss))
            fail_msg("step %u: loss %.9g, uninterrupted %.9g", i + 1, log->step[i].loss, whole->step[i].loss);
}

/* By MPI's own order: of two values there is only one. */
static void test_all_reduce(void **state) {
    (void)state;
    scene s = open_scene("fp32");
    train_log fixed = train(&s, 2, SETS("strategy=ddp")), mpi = train(&s, 2, SETS("strategy=ddp", "all_reduce=mpi"));
    assert_string_equal(fixed.hash, mpi.hash);
    if (!TEST_LONG("MPI_Allreduce on three ranks")) return;
    fixed = train(&s, 3, SETS("strategy=ddp"));
    mpi = train(&s, 3, SETS("strategy=ddp", "all_reduce=mpi", "memory.update=F", "commit_steps=1"));
    near_losses(&mpi, &fixed);
    for (unsigned i = 0; i < mpi.steps; i++)
        assert_true(fabs(mpi.step[i].grad_norm - fixed.step[i].grad_norm) <= 2e-5 * fixed.step[i].grad_norm);
}

/* ---- one hash ------------------------------------------------------------------------------------------------ */

static void same(scene *s, unsigned ranks, char hash[40], const char *const *sets) {
    train_log log = train(s, ranks, sets);
    if (!hash[0]) memcpy(hash, log.hash, sizeof log.hash);
    if (strcmp(hash, log.hash) == 0) return;
    for (; *sets; sets++) print_error("  --set %s\n", *sets);
    fail_msg("%u ranks: hash %s, but %s before", ranks, log.hash, hash);
}

static void test_strategies(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    char three[40] = "", two[40] = "";
    static const char *const files[] = {"memory.cache=none", PARAM "device=nvme", OPTIMIZER "device=nvme"};
    const char *path = run_format(PARAM "nvme_path=%s/disk", s.dir);
    same(&s, 3, three, SETS("strategy=ddp", "memory.update=F"));
    same(&s, 3, three, SETS("strategy=zero1", "memory.update=U", "zero_optimization.reduce_bucket_size=1"));
    same(&s, 3, three, SETS("strategy=zero3", files[0], files[1], files[2], path));
    if (!TEST_LONG("every strategy in memory and in files")) return;
    same(&s, 3, three, SETS("strategy=zero3"));
    same(&s, 3, three, SETS("zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=20000"));
    same(&s, 2, two, SETS("strategy=zero2", files[0], files[1], files[2], path));
    same(&s, 2, two, SETS("strategy=hsdp", "memory.update=F"));
    same(&s, 2, two, SETS("strategy=hpz"));
    assert_string_not_equal(two, three); /* the blocks of the norm are others */
    assert_int_equal(run_entries(run_path(s.dir, "disk")), 0);
}

/* What should stay whole gives way where the budget is the least. A rank that fails before that is heard by the others,
 * who have only found their budget too small for the first try. */
static void test_persistence_gives_way(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    const char *stay = "zero_optimization.stage3_param_persistence_threshold=1000000", *zero3 = "strategy=zero3";
    const char *output = run_path(s.dir, "tight"), *disk = run_format(PARAM "nvme_path=%s/disk", s.dir);
    const char *files = PARAM "device=nvme", *none = "memory.cache=none", *engine = "memory.io_engine=sync";
    run_result r = start(&s, 2, output, NULL, SETS(zero3, none, files, disk, engine, "memory.host_budget=1"));
    assert_int_equal(r.status, 2);
    const char *least = run_format("memory.host_budget=%llu", (unsigned long long)train_minimum(r.err));
    run_free(&r);
    r = start(&s, 2, output, NULL, SETS(zero3, none, files, disk, engine, stay, least));
    RUN_OK(&r);
    if (!strstr(r.err, "stage3_param_persistence_threshold has no effect here")) fail_msg("%s", r.err);
    run_free(&r);
    run_remove(output);
    /* the last: when the way is chosen already, the other plans have no room beside the step, on one rank */
    static const struct {
        const char *fault, *budget, *says;
    } faults[] = {{"pread:20:eio:sticky", NULL, "rank 1"},
                  {"pread:60:eio:sticky", NULL, "rank 1"},
                  {"pread:120:eio:sticky", NULL, "rank 1"},
                  {"no_room_beside:1:now:sticky", "memory.host_budget=2GiB", "rank 1: memory.host_budget 2.00 GiB"}};
    for (size_t i = 0; i < TM_COUNT(faults); i++) {
        const run_opts fails = {.ranks = 2, .fault = faults[i].fault, .fault_rank = 1, .timeout_s = 60};
        const char *budget = faults[i].budget ? faults[i].budget : least;
        r = start_opts(&s, &fails, output, SETS(zero3, none, files, disk, engine, stay, budget));
        if (r.status == 0 || !strstr(r.err, faults[i].says) || strstr(r.err, "has not been heard of"))
            fail_msg("after %.1f s: %s", r.seconds, r.err); /* at once, not when the others lose patience */
        run_free(&r);
        run_remove(output);
    }
}

/* A rank that is interrupted twice stops in the middle of a step, where the others do not: it ends the job. */
static void test_interrupted(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    const run_opts opts = {.ranks = 2, .fault = "interrupt_op:400:now:once", .fault_rank = 1, .timeout_s = 60};
    run_result r = start_opts(&s, &opts, run_path(s.dir, "interrupted"), SETS("strategy=zero3", "commit_steps=1"));
    if (r.status != 3 || !strstr(r.err, "): stopped by signal 2; step") || strstr(r.err, "has not been heard of"))
        fail_msg("%d after %.1f s: %s", r.status, r.seconds, r.err);
    run_free(&r);
}

/* SIGTERM to one rank. With time enough all end the step and commit it. Without, it is given up in its midst: by the
 * first rank, or by another of which the first has not heard when the grace is over. */
static void test_grace(void **state) {
    (void)state;
    static const struct {
        const char *fault;
        unsigned rank;
        const char *who, *says;
    } rows[] = {
        {"interrupt_op:400:term:once", 1, "stopped by a signal to another rank", "is committed"},
        {"interrupt_op:400:overdue:once", 0, "rank 0 (", "stopped by signal 15; step 1 is committed"},
        {"interrupt_op:400:overdue:once", 1, "rank 1 (", "stopped by signal 15; step 1 is committed"},
    };
    scene s = open_scene("bf16");
    const char *const *sets = SETS("strategy=zero3", "commit_steps=1", "max_steps=4");
    train_log whole = train(&s, 2, sets);
    for (unsigned i = 0; i < TM_COUNT(rows); i++) {
        const char *output = run_format("%s/stopped-%u", s.dir, i);
        const run_opts opts = {.ranks = 2, .fault = rows[i].fault, .fault_rank = rows[i].rank, .timeout_s = 60};
        run_result r = start_opts(&s, &opts, output, sets);
        if (r.status != 3 || run_error_lines(r.err, NULL) != 1 || !strstr(r.err, rows[i].who) ||
            !strstr(r.err, rows[i].says))
            fail_msg("row %u: %d after %.1f s: %s", i, r.status, r.seconds, r.err);
        run_free(&r);
        r = start(&s, 2, output, NULL, sets);
        RUN_OK(&r);
        run_free(&r);
        assert_string_equal(train_log_read(output).hash, whole.hash);
    }
}

/* Two imitated nodes of two: sums within a node, then across; update B; orders drawn at random. */
static void test_nodes(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    char hash[40] = "";
    (void)setenv("TIDEMILL_NODE_SIZE", "2", 1);
    if (TEST_LONG("zero3 in plan order")) same(&s, 4, hash, SETS("strategy=zero3", "max_grad_norm=0"));
    same(&s, 4, hash, SETS("strategy=hsdp", "max_grad_norm=0", "memory.update=B"));
    same(&s, 4, hash, SETS("strategy=hpz", "max_grad_norm=0", "memory.update=B"));
    same(&s, 4, hash, SETS("strategy=ddp", "max_grad_norm=0", "memory.update=B"));
    (void)setenv("TIDEMILL_ORDER_SEED", "7", 1);
    same(&s, 4, hash, SETS("strategy=zero3", "max_grad_norm=0", "memory.host_budget=256MiB"));
    (void)unsetenv("TIDEMILL_ORDER_SEED");
    (void)unsetenv("TIDEMILL_NODE_SIZE");
}

/* ---- weights that a node has once ---------------------------------------------------------------------------- */

static void same_shared(scene *s, unsigned ranks, const char *strategy, const char *more) {
    char hash[40] = "";
    same(s, ranks, hash, SETS(strategy, more, "memory.shared_window=off"));
    same(s, ranks, hash, SETS(strategy, more, "memory.shared_window=on"));
}

static uint64_t planned(const char *config, unsigned ranks, const char *const *sets, const char *key);

/* A rank's share is part of the least budget: shared it is less. At it the step runs, and one byte below is refused, on
 * two ranks of which the second needs more. */
static void least_budget(scene *s) {
    const char *sets[] = {"strategy=zero3", "memory.shared_window=off", "memory.update=U", NULL, NULL};
    uint64_t alone = planned(s->config, 3, sets, "minimum_host_bytes");
    sets[1] = "memory.shared_window=on";
    assert_true(planned(s->config, 3, sets, "minimum_host_bytes") < alone);
    uint64_t least = planned(s->config, 2, sets, "minimum_host_bytes");
    sets[3] = run_format("memory.host_budget=%llu", (unsigned long long)least);
    (void)train(s, 2, sets);
    sets[3] = run_format("memory.host_budget=%llu", (unsigned long long)least - 1);
    run_result r = start(s, 2, run_path(s->dir, "refused"), NULL, sets);
    assert_int_equal(r.status, 2);
    run_free(&r);
}

static unsigned occurrences(const char *text, const char *word) {
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, word)) != NULL; p += strlen(word)) n++;
    return n;
}

static run_result start_faulty(scene *s, const char *output, const char *fault, const char *window) {
    const char *arguments[] = {"train",
                               s->config,
                               "--quiet",
                               "--resume",
                               "never",
                               "--set",
                               window,
                               "--set",
                               "strategy=zero3",
                               "--set",
                               run_format("output_dir=%s", output),
                               NULL};
    return run_argv(&(run_opts){.ranks = 3, .fault = fault, .fault_rank = 1, .timeout_s = 60}, arguments);
}

/* One of the ranks finds no room for it, or no part: a failure where it has to be shared, else all do without, and one
 * line says so. */
static void without_room(scene *s) {
    const char *output = run_path(s->dir, "full"), *full = "window_full:1:now:once";
    run_result r = start_faulty(s, output, full, "memory.shared_window=on");
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "is /dev/shm full?"));
    run_free(&r);
    static const char *const faults[] = {"window_full:1:now:once", "mpi_win_shared_query:1:error:once"};
    for (unsigned i = 0; i < TM_COUNT(faults); i++) {
        r = start_faulty(s, output, faults[i], "memory.shared_window=auto");
        RUN_OK(&r);
        if (occurrences(r.err, "each rank keeps gathered weights of its own") != 1)
            fail_msg("%s: %s", faults[i], r.err);
        run_free(&r);
        assert_int_equal(train_log_read(output).steps, 3);
    }
}

/* A rank that would look for gathered weights elsewhere than the others is named before the first step. */
static void out_of_place(scene *s) {
    run_result r = start_faulty(s, run_path(s->dir, "aside"), "shared_place:1:now:sticky", "memory.shared_window=on");
    assert_int_not_equal(r.status, 0);
    if (!strstr(r.err, "the place of gathered weights in shared memory of rank 1 (")) fail_msg("%s", r.err);
    run_free(&r);
}

/* Gathered into memory that the ranks of a node share, or into each rank's own: the same bits. Parts lie at the same
 * addresses on all ranks although none holds as much as another, and under random orders of everything else. */
static void test_shared_window(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    (void)setenv("TIDEMILL_ORDER_SEED", "11", 1);
    same_shared(&s, 3, "strategy=zero3", "memory.update=F");
    (void)unsetenv("TIDEMILL_ORDER_SEED");
    least_budget(&s);
    without_room(&s);
    out_of_place(&s);
    if (!TEST_LONG("shared windows of every strategy")) return;
    same_shared(&s, 2, "strategy=zero3", "zero_optimization.zero_quantized_weights=true");
    (void)setenv("TIDEMILL_NODE_SIZE", "2", 1);
    same_shared(&s, 4, "strategy=zero3", "memory.update=U");
    same_shared(&s, 4, "strategy=hsdp", "memory.update=F");
    same_shared(&s, 4, "strategy=hpz", "memory.update=F");
    same_shared(&s, 4, "strategy=zero3", "zero_optimization.zero_quantized_weights=true");
    (void)unsetenv("TIDEMILL_NODE_SIZE");
}

/* ---- bytes --------------------------------------------------------------------------------------------------- */

/* What this rank posted in the second step, within its node and to the other one. */
typedef struct links {
    double in_node, between;
} links;

static links sent(const char *output) {
    char *text = run_read(run_path(output, "log.jsonl"), NULL), *at = text;
    links l;
    for (int step = 0; step < 2; step++) assert_non_null(at = strstr(at + 1, "\"comm_sent_bytes\""));
    assert_int_equal(
        sscanf(at, "\"comm_sent_bytes\": {\"in_node\": %lf, \"between_nodes\": %lf", &l.in_node, &l.between), 2);
    free(text);
    return l;
}

/* Two nodes of two ranks: what a rank sends in a step for each element of a matrix, gathers of two bytes and sums of
 * four. Over all ranks each slice (a quarter) crosses to the other node once and is handed on in the node: a gather
 * sends 1 and 1/2, a sum 2 and 1. Over a node's ranks a gather of halves sends 1 and 0. Backward does not gather the
 * embedding. Codes of 8 bits are (1 + 4/256) / 2 of bf16, of 4 bits (1/2 + 2/64) / 4 of fp32. */
typedef struct wire_row {
    const char *sets[4];
    double in_node, between;             /* a matrix's element */
    double in_node_again, between_again; /* one of all but the embedding: gathered for backward */
    bool in_ci;
} wire_row;

#define Q8 ((1 + 4.0 / 256) / 2)
#define Q4 ((1 / 2.0 + 2.0 / 64) / 4)
static const wire_row wires[] = {
    {{"strategy=zero3"}, 1 + 2, 0.5 + 1, 1, 0.5, true},
    {{"strategy=hpz"}, 1 + 2, 0.5 + 1, 1, 0, true},   /* its gather for backward stays in the node */
    {{"strategy=hsdp"}, 1 + 2, 1 + 0.5, 1, 0, false}, /* across: sums, then gradients of two bytes */
    {{"strategy=zero2"}, 1 + 2, 0.5 + 1, 0, 0, false},
    {{"strategy=zero1"}, 1 + 2, 0.5 + 1, 0, 0, false},
    {{"strategy=ddp"}, 1 + 2, 0.5 + 1, 0, 0, false},
    {{"strategy=ddp", "all_reduce=mpi"}, 0, 4, 0, 0, false}, /* handed to MPI, which says no more */
    {{"strategy=zero3", "communication_data_type=bf16"}, 1 + 1, 0.5 + 0.5, 1, 0.5, false},
    {{"strategy=zero3", "memory.shared_window=on"}, 0 + 2, 0.5 + 1, 0, 0.5, false},
    {{"strategy=zero3", "zero_optimization.zero_quantized_weights=true"}, Q8 + 2, Q8 / 2 + 1, Q8, Q8 / 2, false},
    {{"strategy=zero3", "zero_optimization.zero_quantized_gradients=true"}, 1 + 2 * Q4, 0.5 + Q4, 1, 0.5, false},
    {{"strategy=hpz", "zero_optimization.zero_quantized_weights=true",
      "zero_optimization.zero_quantized_gradients=true"},
     Q8 + 2 * Q4,
     Q8 / 2 + Q4,
     1, /* the node's copy is gathered as it is */
     0,
     true},
};

static void expect_wire(const char *what, const char *link, double got, double theory, double planned_bytes) {
    print_message("  %s, %s: %.0f bytes counted, %.0f by hand, %.0f planned\n", what, link, got, theory, planned_bytes);
    if (fabs(got - theory) > 0.04 * theory + 1024) fail_msg("%s, %s: %.0f bytes, not %.0f", what, link, got, theory);
    if (got != planned_bytes) fail_msg("%s, %s: %.0f bytes, %.0f planned", what, link, got, planned_bytes);
}

/* Bytes counted where they are posted, beside theory: by hand (the first rank's slices are the longer ones), and as the
 * plan has it, to the byte. */
static void test_bytes(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    const bool all = TEST_LONG("bytes of every strategy");
    (void)setenv("TIDEMILL_NODE_SIZE", "2", 1);
    for (unsigned i = 0; i < TM_COUNT(wires); i++) {
        const wire_row *w = &wires[i];
        if (!all && !w->in_ci) continue;
        const char *output = run_format("%s/out-%u", s.dir, s.runs);
        const char *const *sets = SETS("memory.shared_window=off", w->sets[0], w->sets[1], w->sets[2]);
        (void)train(&s, 4, sets);
        const double n = (double)s.parameters, again = n - (double)VOCAB * HIDDEN;
        const char *what =
            run_format("%s %s %s", w->sets[0], w->sets[1] ? w->sets[1] : "", w->sets[2] ? w->sets[2] : "");
        links got = sent(output);
        expect_wire(what, "in the node", got.in_node, n * w->in_node + again * w->in_node_again,
                    (double)planned(s.config, 4, sets, "link_bytes_per_step"));
        expect_wire(what, "between nodes", got.between, n * w->between + again * w->between_again,
                    (double)planned(s.config, 4, sets, "network_bytes_per_step"));
    }
    (void)unsetenv("TIDEMILL_NODE_SIZE");
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static uint64_t planned(const char *config, unsigned ranks, const char *const *sets, const char *key) {
    const char *arguments[32] = {"plan", config, "--json", "--no-measure", "--set", "output_dir=none"};
    unsigned n = 6;
    tm_json_doc *doc;
    for (; *sets && n < 30; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    run_result r = run_argv(&(run_opts){.ranks = ranks > 1 ? ranks : 0, .timeout_s = 60}, arguments);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
    uint64_t bytes = (uint64_t)tm_json_get(tm_json_root(doc), key)->integer;
    tm_json_free(doc);
    run_free(&r);
    return bytes;
}

/* VmHWM of the largest rank, and no rank above the plan's peak. */
static uint64_t measured_peak(scene *s, unsigned ranks, const char *const *sets) {
    const char *output = run_format("%s/out-%u", s->dir, s->runs++);
    run_result r = start(s, ranks > 1 ? ranks : 0, output, NULL, sets);
    RUN_OK(&r);
    run_free(&r);
    return train_log_read(output).host_peak;
}

/* The state of 27 M parameters, by what it adds to a small model's peak: what the program, its libraries and MPI take
 * is the same for both. Within 2% of the plan, and 1/N of it on N ranks; with one update, since F has gradients among its
 * state. */
static void test_memory(void **state) {
    (void)state;
    TEST_SKIP_UNLESS_LONG("memory on 1, 2 and 4 ranks");
    scene small = open_scene("bf16"), big = small;
    big.runs = 100; /* folders of its own */
    const char *model = run_path(small.dir, "big");
    assert_int_equal(system(run_format("mkdir -p %s", model)), 0);
    run_write(run_path(model, "config.json"),
              "{\"model_type\": \"llama\", \"hidden_size\": 512, \"intermediate_size\": 1408,\n"
              " \"num_hidden_layers\": 6, \"num_attention_heads\": 8, \"num_key_value_heads\": 8,\n"
              " \"vocab_size\": 9001, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05,\n"
              " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false,\n"
              " \"initializer_range\": 0.02}\n");
    const char *const sets[] = {
        "strategy=zero3",  "max_steps=2", "commit_steps=0", "offload_param_device=cpu", "offload_optimizer_device=cpu",
        "memory.update=U", NULL};
    const char *const bigger[] = {"strategy=zero3",
                                  "max_steps=2",
                                  "commit_steps=0",
                                  "offload_param_device=cpu",
                                  "offload_optimizer_device=cpu",
                                  "memory.update=U",
                                  run_format("model=%s", model),
                                  NULL};
    double alone = 0;
    for (unsigned ranks = 1; ranks <= 4; ranks *= 2) {
        double plan = (double)(planned(big.config, ranks, bigger, "host_peak_bytes") -
                               planned(small.config, ranks, sets, "host_peak_bytes"));
        double state_bytes = (double)planned(big.config, ranks, bigger, "resident_bytes");
        double got = (double)(measured_peak(&big, ranks, bigger) - measured_peak(&small, ranks, sets));
        print_message("  %u ranks: %.1f MiB, planned %.1f (%+.2f%%)\n", ranks, got / MIB, plan / MIB,
                      100 * (got / plan - 1));
        if (fabs(got - plan) > 0.02 * plan) fail_msg("%u ranks: measured %.0f, planned %.0f", ranks, got, plan);
        if (ranks == 1) alone = state_bytes;
        if (fabs(state_bytes * ranks - alone) > 0.02 * alone)
            fail_msg("%u ranks: %.0f bytes of state on each, %.0f on one", ranks, state_bytes, alone);
    }
}

/* What is rounded on the way is close, and is not the same: the codes have 8 and 4 bits, errors average out over a sum.
 */
static void test_rounded(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    train_log exact = train(&s, 2, SETS("strategy=zero3"));
    const char *const rounded[] = {"zero_optimization.zero_quantized_weights=true",
                                   "zero_optimization.zero_quantized_gradients=true"};
    for (unsigned i = 0; i < TM_COUNT(rounded); i++) {
        train_log log = train(&s, 2, SETS("strategy=zero3", rounded[i]));
        assert_string_not_equal(log.hash, exact.hash);
        for (unsigned k = 0; k < log.steps; k++) {
            assert_true(fabs(log.step[k].loss - exact.step[k].loss) <= 0.002 * exact.step[k].loss);
            assert_true(fabs(log.step[k].grad_norm - exact.step[k].grad_norm) <= 0.1 * exact.step[k].grad_norm);
        }
        assert_true(log.step[2].loss < log.step[0].loss);
    }
}

/* ---- interrupted --------------------------------------------------------------------------------------------- */

/* A rank dies between the phases of the second commit; on the same ranks the run goes on bit for bit. */
static void test_killed(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    char hash[40] = "";
    same(&s, 2, hash, SETS("strategy=zero3"));
    static const char *const points[] = {"kill_before_rename", "kill_before_manifest", "kill_after_rename"};
    for (unsigned i = 0; i < (TEST_LONG("kills at every phase of a commit") ? TM_COUNT(points) : 1); i++) {
        const char *output = run_format("%s/killed-%u", s.dir, i);
        const char *fault = run_format("TIDEMILL_FAULT=%s:2:now:once", points[i]);
        run_result r = start(&s, 2, output, SETS(fault), SETS("strategy=zero3", "commit_steps=1"));
        assert_int_not_equal(r.status, 0);
        run_free(&r);
        r = start(&s, 2, output, NULL, SETS("strategy=zero3", "commit_steps=1"));
        RUN_OK(&r);
        assert_non_null(strstr(r.err, "going on from step"));
        run_free(&r);
        train_log log = train_log_read(output);
        assert_int_equal(log.steps, 3);
        assert_string_equal(log.hash, hash);
        assert_int_equal(run_entries(run_path(output, "offload")), 0);
    }
}

static void resume(scene *s, unsigned ranks, const char *output, const char *from, const char *strategy,
                   const char *steps) {
    const char *arguments[] = {
        "train", s->config, "--quiet", "--resume",       from,    "--set", run_format("output_dir=%s", output),
        "--set", strategy,  "--set",   "commit_steps=1", "--set", steps,   NULL};
    run_result r = run_argv(&(run_opts){.ranks = ranks, .timeout_s = 60}, arguments);
    RUN_OK(&r);
    run_free(&r);
}

static train_log go_on(scene *s, unsigned ranks, const char *output, const char *from, const char *strategy) {
    resume(s, ranks, output, from, strategy, "max_steps=3");
    return train_log_read(output);
}

/* What is damaged: the commit of one rank, and the two newest of three full checkpoints, one in a manifest, one in a
 * page of what it names. */
static void damage_newest(const char *output) {
    run_damage(run_path(run_directory(output, 1), "manifest"), 100);
    run_damage(run_path(output, "checkpoint-3/state/run-rank-1/manifest"), 100);
    run_damage(run_path(output, "checkpoint-2/state/run-rank-1/exp_avg"), 5000);
}

/* Nothing that is whole is left, since one rank's part of the oldest is not: all leave at once, with one message about
 * what was read last, and nothing was changed. */
static void in_vain(scene *s, const char *output, const char *const *sets) {
    const char *oldest = run_path(output, "checkpoint-1/state/run-rank-1/weight_lo");
    run_damage(oldest, 3000);
    run_result r = start(s, 2, output, NULL, sets);
    assert_int_equal(r.status, 1);
    if (occurrences(r.err, "going back to the newest full checkpoint") != 3 || occurrences(r.err, oldest) != 1 ||
        strstr(r.err, "has not been heard of"))
        fail_msg("after %.1f s: %s", r.seconds, r.err);
    run_free(&r);
    run_damage(oldest, 3000); /* as it was */
}

/* Killed after three commits and three full checkpoints. Another output_dir goes on from it and leaves it as it is.
 * Then all but the oldest checkpoint are damaged: all ranks go back to it, and what was refused is said, newest first.
 */
static void test_left_behind(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    char hash[40] = "";
    const char *output = run_path(s.dir, "left"), *other = run_path(s.dir, "other");
    const char *const *sets =
        SETS("strategy=zero3", "max_steps=4", "commit_steps=1", "save_steps=1", "save_state=true");
    same(&s, 2, hash, SETS("strategy=zero3", "max_steps=4"));
    run_result r = start(&s, 2, output, SETS("TIDEMILL_FAULT=kill_before_manifest:4:now:once"), sets);
    assert_int_not_equal(r.status, 0);
    run_free(&r);
    resume(&s, 2, other, output, "strategy=ddp", "max_steps=4");
    char *log_of_other = run_read(run_path(other, "log.jsonl"), NULL); /* of the fourth step alone */
    if (!strstr(log_of_other, hash) || strstr(log_of_other, "\"step\": 3, \"loss\"")) fail_msg("%s", log_of_other);
    free(log_of_other);
    assert_int_equal(run_entries(run_path(other, "offload")), 0);
    assert_int_equal(run_entries(run_path(output, "offload")), 2);
    damage_newest(output);
    in_vain(&s, output, sets);
    run_damage(run_path(run_directory(output, 1), "manifest"),
               100); /* as it was; but a file that it names is not there */
    assert_int_equal(unlink(run_path(run_directory(output, 1), "exp_avg")), 0);
    r = start(&s, 2, output, NULL, sets);
    RUN_OK(&r);
    const char *at = r.err, *const said[] = {"checkpoint-3; what", "checkpoint-3/state/run-rank-1",
                                             "checkpoint-2; what", "checkpoint-2/state/run-rank-1",
                                             "checkpoint-1; what"};
    for (unsigned i = 0; i < TM_COUNT(said) && at; i++) at = strstr(at, said[i]);
    if (!at || occurrences(r.err, "going back to the newest full checkpoint") != 3) fail_msg("%s", r.err);
    run_free(&r);
    train_log log = train_log_read(output);
    assert_int_equal(log.steps, 4);
    assert_string_equal(log.hash, hash);
    assert_int_equal(run_entries(run_path(output, "offload")), 2); /* what was given up */
}

/* 4 ranks on two nodes, 2, 3, 1: each time stopped after another step, another strategy, other places of the state. The
 * masters are handed on bit by bit, so that the losses are those of one uninterrupted run within what other orders of
 * summation make of them. The first commit of whoever takes over is the state as it was found. */
static void test_elastic(void **state) {
    (void)state;
    static const struct {
        unsigned ranks;
        const char *nodes, *strategy, *place, *kill;
    } legs[] = {{4, "TIDEMILL_NODE_SIZE=2", "strategy=hsdp", "memory.update=F", "2"},
                {2, "TIDEMILL_NODE_SIZE=0", "strategy=zero3", PARAM "device=nvme", "3"},
                {3, "TIDEMILL_NODE_SIZE=0", "strategy=ddp", "memory.update=U", "3"},
                {1, "TIDEMILL_NODE_SIZE=0", "strategy=zero2", OPTIMIZER "device=nvme", NULL}};
    scene s = open_scene("fp32");
    const char *output = run_path(s.dir, "elastic"), *every = "commit_steps=1", *steps = "max_steps=5";
    train_log whole = train(&s, 1, SETS(steps));
    for (unsigned i = 0; i < TM_COUNT(legs); i++) {
        const char *kill = legs[i].kill;
        const char *fault = kill ? run_format("TIDEMILL_FAULT=kill_before_manifest:%s:now:once", kill) : NULL;
        const char *env[] = {legs[i].nodes, fault, NULL};
        run_result r = start(&s, legs[i].ranks, output, env + (legs[i].nodes[19] == '0'),
                             SETS(legs[i].strategy, every, steps, legs[i].place));
        if (!kill) RUN_OK(&r);
        if (kill && r.status == 0) fail_msg("%u ranks: nobody was killed", legs[i].ranks);
        if (i > 0 && (!strstr(r.err, "laid out anew") || !strstr(r.err, run_format("going on from step %u", i))))
            fail_msg("%u ranks: %s", legs[i].ranks, r.err);
        run_free(&r);
    }
    train_log log = train_log_read(output);
    near_losses(&log, &whole);
    assert_int_equal(run_entries(run_path(output, "offload")), 0);
}

/* ---- checkpoints with state ---------------------------------------------------------------------------------- */

/* A full checkpoint of 3 ranks: on 3 the run comes to the same bits, whatever the strategy; on 2 and on 1 to the same
 * losses. It is only read, and one whose folders are not all there is refused. */
static void test_save_state(void **state) {
    (void)state;
    scene s = open_scene("fp32");
    const char *output = run_path(s.dir, "saved"), *from = run_path(output, "checkpoint-2");
    run_result r =
        start(&s, 3, output, NULL, SETS("strategy=zero3", "save_state=true", "save_steps=1", "commit_steps=1"));
    RUN_OK(&r);
    run_free(&r);
    train_log whole = train_log_read(output);
    assert_int_equal(run_entries(run_path(from, "state")), 3);
    assert_int_equal(run_entries(run_path(output, "offload")), 0);
    assert_string_equal(go_on(&s, 3, output, from, "strategy=ddp").hash, whole.hash);
    for (unsigned ranks = 2; ranks >= (TEST_LONG("one rank of a checkpoint of three") ? 1 : 2); ranks--) {
        train_log log = go_on(&s, ranks, output, from, "strategy=zero2");
        near_losses(&log, &whole);
    }
    assert_int_equal(run_entries(run_path(from, "state")), 3);
    run_remove(run_path(from, "state/run-rank-1"));
    const char *arguments[] = {
        "train", s.config, "--quiet", "--resume", from, "--set", run_format("output_dir=%s", output), NULL};
    assert_int_equal(system(run_format("cp -r %s/checkpoint-1/state/run-rank-1 %s/state", output, from)), 0);
    r = run_argv(&(run_opts){.ranks = 2, .timeout_s = 60}, arguments);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "not of one checkpoint"));
    run_free(&r);
    run_remove(run_path(from, "state/run-rank-1"));
    r = run_argv(&(run_opts){.ranks = 2, .timeout_s = 60}, arguments);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "1 of 3 ranks' state"));
    run_free(&r);
}

/* ---- alike ---------------------------------------------------------------------------------------------------- */

/* What rank 1 finds at the paths of its own node: with FILE replaced by what sed makes of it. */
static const char *elsewhere(const scene *s, const char *file, const char *sed) {
    const char *there = run_format("%s/there-%s/%s", s->dir, file, s->dir), *to = run_path(there, file);
    assert_int_equal(
        system(run_format("mkdir -p %s && cd %s && cp -r model rows.safetensors eval.safetensors config.json "
                          "\"$OLDPWD/%s\"",
                          there, s->dir, there)),
        0);
    assert_int_equal(system(run_format("LC_ALL=C sed -i '%s' %s", sed, to)), 0);
    return run_format("cd %s/there-%s", s->dir, file);
}

/* Before anything of the job is exchanged: who differs, and in what. One message, and nothing is left. */
static void test_alike(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    const char *other = run_path(s.dir, "tidemill"), *output = run_path(s.dir, "differs");
    const char *eval = run_format("data.eval=%s/eval.safetensors", s.dir);
    run_copy(run_path(s.dir, "rows.safetensors"), run_path(s.dir, "eval.safetensors"));
    assert_int_equal(system(run_format("LC_ALL=C sed 's/%s/9.9.9/g' %s > %s && chmod +x %s", TIDEMILL_VERSION,
                                       TM_TEST_BINARY, other, other)),
                     0);
    const struct {
        const char *prelude, *what, *set; /* the last three: what ctest has time for */
    } rows[] = {
        {run_format("exec %s \"$@\"", other), "the version of tidemill of rank 1 (", NULL},
        {elsewhere(&s, "model/config.json", "s/1e-05/1e-06/"), "the model's config.json of rank 1 (", NULL},
        {"export OMP_NUM_THREADS=2", "what computes (instruction set, matrix library, threads) of rank 1 (", NULL},
        {"set -- \"$@\" --set seed=7", "the configuration of rank 1 (", NULL},
        {elsewhere(&s, "rows.safetensors", "$ s/.$/?/"), "the training data of rank 1 (", NULL},
        {elsewhere(&s, "eval.safetensors", "$ s/.$/?/"), "the evaluation data of rank 1 (", eval}};
    for (unsigned i = TEST_LONG("every difference between ranks") ? 0 : TM_COUNT(rows) - 3; i < TM_COUNT(rows); i++) {
        const run_opts opts = {.ranks = 2, .fault_rank = 1, .prelude = rows[i].prelude, .timeout_s = 60};
        run_result r = start_opts(&s, &opts, output, SETS("strategy=zero3", rows[i].set));
        if (r.status != 2 || run_error_lines(r.err, NULL) != 1 || !strstr(r.err, rows[i].what))
            fail_msg("%s: exit %d: %s", rows[i].what, r.status, r.err);
        run_free(&r);
        assert_int_equal(access(output, F_OK), -1);
    }
}

/* ---- budgets that differ ------------------------------------------------------------------------------------- */

/* Rank 1's budget, which the others do not have. */
static run_result start_with(scene *s, const char *command, const char *budget, const char *const *sets) {
    const char *arguments[24] = {command, s->config, "--set", run_format("output_dir=%s/apart", s->dir)};
    const run_opts opts = {
        .ranks = 2, .fault_rank = 1, .prelude = run_format("set -- \"$@\" --set memory.%s", budget), .timeout_s = 60};
    for (unsigned n = 4; *sets && n < 22; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    return run_argv(&opts, arguments);
}

static void refused_with(const run_result *r, const char *says) {
    if (r->status != 2 || run_error_lines(r->err, NULL) != 1 || !strstr(r->err, says))
        fail_msg("looked for \"%s\": exit %d: %s", says, r->status, r->err);
}

/* What could be left out is said where it is enough for all ranks, with what the largest of them takes. */
static void test_forced_choice(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    const char *files = PARAM "device=nvme", *disk = run_format(PARAM "nvme_path=%s/disk", s.dir);
    const char *const *open = SETS("strategy=zero3", files, disk, "memory.update=U");
    const char *const *forced = SETS("strategy=zero3", files, disk, "memory.update=U", "memory.activations=keep");
    uint64_t least = planned(s.config, 2, open, "minimum_host_bytes");
    assert_true(least < planned(s.config, 2, forced, "minimum_host_bytes"));
    run_result r = start_with(&s, "train", run_format("host_budget=%llu", (unsigned long long)least), forced);
    refused_with(&r, run_format("or leave out memory.activations, then %llu bytes", (unsigned long long)least));
    run_free(&r);
    r = start_with(&s, "train", "host_budget=1", forced);
    refused_with(&r, "rank 1: memory.host_budget 1 B (1 bytes) is too small");
    if (strstr(r.err, "leave out")) fail_msg("not enough for rank 1: %s", r.err);
    run_free(&r);
}

/* A rank may have as little as it takes itself, where the first, which chooses the way, takes more (of this model). */
static void test_less_than_the_first(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    run_write(run_path(s.dir, "model/config.json"),
              "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128,"
              " \"num_hidden_layers\": 16, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
              " \"vocab_size\": 1024, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05,"
              " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true,"
              " \"initializer_range\": 0.02}\n");
    const char *const *sets = SETS("strategy=zero3", PARAM "device=nvme", run_format(PARAM "nvme_path=%s/disk", s.dir),
                                   OPTIMIZER "device=nvme", run_format(OPTIMIZER "nvme_path=%s/disk", s.dir));
    run_result r = start_with(&s, "train", "host_budget=1", sets);
    refused_with(&r, "rank 1: memory.host_budget");
    uint64_t least = train_minimum(r.err);
    run_free(&r);
    assert_true(least < planned(s.config, 2, sets, "minimum_host_bytes")); /* of the one that takes most */
    r = start_with(&s, "train", run_format("host_budget=%llu", (unsigned long long)least), sets);
    RUN_OK(&r);
    run_free(&r);
}

/* Each rank has an arena of its own size: the same bits; and where one is too small for any way, its rank is named,
 * with what the smallest change is. */
static void test_device_budgets(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    const char *const *sets = SETS("strategy=zero3", "memory.device=cpu-arena", "memory.device_budget=64MiB");
    uint64_t least = planned(s.config, 2, sets, "minimum_device_bytes");
    train_log alike = train(&s, 2, sets);
    run_result r = start_with(&s, "train", run_format("device_budget=%llu", (unsigned long long)least), sets);
    RUN_OK(&r);
    run_free(&r);
    assert_string_equal(train_log_read(run_path(s.dir, "apart")).hash, alike.hash);
    run_remove(run_path(s.dir, "apart"));
    const char *less = run_format("device_budget=%llu", (unsigned long long)least - 1);
    const char *needs = run_format("this job needs at least %llu bytes", (unsigned long long)least);
    r = start_with(&s, "train", less, sets);
    refused_with(&r, "rank 1: memory.device_budget ");
    refused_with(&r, needs);
    run_free(&r);
    r = start_with(&s, "plan", less, sets);
    refused_with(&r, needs);
    refused_with(&r, run_format("--set memory.device_budget=%llu", (unsigned long long)least));
    run_free(&r);
}

/* ---- refused ------------------------------------------------------------------------------------------------- */

/* Said once, by name, with the status of bad input; nothing is left behind. */
static void test_refusals(void **state) {
    (void)state;
    scene s = open_scene("bf16");
    const char *output = run_path(s.dir, "refused");
    run_result r = start(&s, 2, output, NULL, SETS("memory.host_budget=1MiB"));
    assert_int_equal(r.status, 2);
    assert_int_equal(run_error_lines(r.err, NULL), 1);
    assert_non_null(strstr(r.err, "is too small"));
    run_free(&r);
    assert_int_equal(access(output, F_OK), -1);
    r = start(&s, 2, output, NULL, SETS("train_batch_size=5"));
    assert_int_equal(r.status, 2);
    assert_int_equal(run_error_lines(r.err, NULL), 1);
    assert_non_null(strstr(r.err, "train_batch_size"));
    run_free(&r);
    r = start(
        &s, 2, output, NULL,
        SETS("strategy=zero3", "memory.shared_window=on", "memory.device=cpu-arena", "memory.device_budget=64MiB"));
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "not beside a device's memory"));
    run_free(&r);
    r = start(&s, 2, output, NULL, SETS("communication_data_type=fp16"));
    assert_int_equal(r.status, 2);
    run_free(&r);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_trajectories, run_clean),
        cmocka_unit_test_teardown(test_all_reduce, run_clean),
        cmocka_unit_test_teardown(test_strategies, run_clean),
        cmocka_unit_test_teardown(test_persistence_gives_way, run_clean),
        cmocka_unit_test_teardown(test_interrupted, run_clean),
        cmocka_unit_test_teardown(test_grace, run_clean),
        cmocka_unit_test_teardown(test_nodes, run_clean),
        cmocka_unit_test_teardown(test_shared_window, run_clean),
        cmocka_unit_test_teardown(test_bytes, run_clean),
        cmocka_unit_test_teardown(test_memory, run_clean),
        cmocka_unit_test_teardown(test_rounded, run_clean),
        cmocka_unit_test_teardown(test_killed, run_clean),
        cmocka_unit_test_teardown(test_left_behind, run_clean),
        cmocka_unit_test_teardown(test_elastic, run_clean),
        cmocka_unit_test_teardown(test_save_state, run_clean),
        cmocka_unit_test_teardown(test_alike, run_clean),
        cmocka_unit_test_teardown(test_forced_choice, run_clean),
        cmocka_unit_test_teardown(test_less_than_the_first, run_clean),
        cmocka_unit_test_teardown(test_device_budgets, run_clean),
        cmocka_unit_test_teardown(test_refusals, run_clean),
    };
    return cmocka_run_group_tests_name("train_ranks", tests, NULL, NULL);
}

/* Adapters on several ranks: the base whole or in slices, the adapter's state whole or in slices, one hash for each number
 * of ranks, and one rank's losses; killed and gone on from, the same bits. */
#include "adapted.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *write_config(const adapted *a, const char *precision) {
    const char *path = run_path(a->dir, "ranks.json");
    run_write(path, run_format("{\"model\": \"%s\", \"adapter\": {\"path\": \"%s\", \"lora_dropout\": 0.1},\n"
                               " \"data\": {\"train\": \"%s\", \"seq_len\": %zu}, \"precision\": \"%s\",\n"
                               " \"learning_rate\": 1e-3, \"max_steps\": 3, \"train_batch_size\": 4,\n"
                               " \"per_device_train_batch_size\": 1}\n",
                               a->base, a->folder, a->rows, a->seq, precision));
    return path;
}

static train_log train(const adapted *a, const char *config, unsigned ranks, const char *const *sets) {
    const char *output = run_path(a->dir, "out");
    const char *arguments[32] = {
        "train", config, "--quiet", "--resume", "never", "--set", run_format("output_dir=%s", output)};
    const char *env[] = {ranks == 4 ? "TIDEMILL_NODE_SIZE=2" : NULL, NULL};
    const char *const *set = sets;
    for (unsigned n = 7; *set && n < 30; set++) arguments[n++] = "--set", arguments[n++] = *set;
    run_result r = run_argv(&(run_opts){.ranks = ranks, .env = env, .timeout_s = 60}, arguments);
    if (r.status != 0) fail_msg("%u ranks, %s: %s", ranks, sets[0], r.err);
    run_free(&r);
    train_log log = train_log_read(output);
    for (unsigned i = 0; i < log.steps; i++) {
        assert_int_equal(log.step[i].read_bytes, log.step[i].planned_read);
        assert_int_equal(log.step[i].write_bytes, log.step[i].planned_write);
    }
    assert_int_equal(run_entries(run_path(output, "offload")), 0);
    return log;
}

static void same(const adapted *a, const char *config, unsigned ranks, char hash[40], const char *const *sets) {
    train_log log = train(a, config, ranks, sets);
    if (!hash[0]) memcpy(hash, log.hash, sizeof log.hash);
    if (strcmp(hash, log.hash) != 0)
        fail_msg("%s on %u ranks, %s: hash %s, but %s before", a->name, ranks, sets[0], log.hash, hash);
}

#define STAGE(n) "zero_optimization.stage=" #n

/* Ways of two fixtures, one of which has time for each by itself; TIDEMILL_LONG=1: both do all. */
static void test_one_hash(void **state) {
    adapted a = adapted_open(*state);
    const char *config = write_config(&a, "bf16");
    const char *const *ways[] = {
        SETS(STAGE(0)),
        SETS(STAGE(2), "memory.update=F"),
        SETS(STAGE(3), ADAPTED_FILES(a.dir)),
        SETS(STAGE(3)),
        SETS(STAGE(3), "zero_optimization.zero_hpz_partition_size=2"),
        SETS(STAGE(0), ADAPTED_FILES(a.dir)),
        SETS(STAGE(1), "memory.update=F", ADAPTED_FILES(a.dir)),
        SETS(STAGE(2), ADAPTED_FILES(a.dir)),
    };
    unsigned chosen = strcmp(a.name, "peft_lora") == 0 ? 0x07 : 0x19;
    if (TEST_LONG("each strategy of each adapter")) chosen = 0xFF;
    for (unsigned ranks = 2; ranks <= 4; ranks += 2) {
        char hash[40] = "";
        for (unsigned i = 0; i < TM_COUNT(ways); i++)
            if (chosen >> i & 1) same(&a, config, ranks, hash, ways[i]);
    }
    adapted_close(&a);
}

/* The least budget that ranks refuse to go below. */
static void test_least(void **state) {
    adapted a = adapted_open(*state);
    const char *config = write_config(&a, "fp32"), *none = "memory.cache=none";
    char hash[40] = "";
    run_result r = run((run_opts){.ranks = 2}, "train", config, "--quiet", "--set", STAGE(3), "--set", none, "--set",
                       "memory.host_budget=1", "--set", run_format("output_dir=%s", run_path(a.dir, "out")), NULL);
    assert_int_equal(r.status, 2);
    const char *least = run_format("memory.host_budget=%llu", (unsigned long long)train_minimum(r.err));
    run_free(&r);
    same(&a, config, 2, hash, SETS(STAGE(3), none, least));
    assert_true(adapted_bytes(run_path(a.dir, "out"), 2, "frozen", "read") > 0);
    same(&a, config, 2, hash, SETS(STAGE(3)));
    adapted_close(&a);
}

/* Dropout is drawn for each rank by itself: without it one rank's losses are those of two, but for the order of sums. */
static void as_one_rank(void **state) {
    adapted a = adapted_open(*state);
    const char *config = write_config(&a, "fp32"), *no_dropout = "adapter.lora_dropout=0";
    train_log one = train(&a, config, 1, SETS(no_dropout)), two = train(&a, config, 2, SETS(no_dropout, STAGE(3)));
    assert_int_equal(one.steps, two.steps);
    for (unsigned i = 0; i < one.steps; i++) {
        assert_int_equal(one.step[i].label_tokens, two.step[i].label_tokens);
        adapted_near("loss", two.step[i].loss, one.step[i].loss, 2e-6 * one.step[i].loss);
        adapted_near("grad_norm", two.step[i].grad_norm, one.step[i].grad_norm, 2e-5 * one.step[i].grad_norm);
    }
    adapted_close(&a);
}

/* ---- killed ------------------------------------------------------------------------------------------------------ */

static run_result go_on(const char *config, unsigned ranks, const char *fault, unsigned rank) {
    const char *env[] = {ranks == 4 ? "TIDEMILL_NODE_SIZE=2" : NULL, NULL};
    return run((run_opts){.ranks = ranks, .env = env, .timeout_s = 60, .fault = fault, .fault_rank = rank}, "train",
               config, "--quiet", NULL);
}

/* A rank is killed; the same command comes to the same bits. */
static void kills(const adapted *a, const char *config, unsigned ranks, const char *const *points) {
    const char *output = run_path(a->dir, "out"), *disk = run_path(a->dir, "disk");
    run_result r = go_on(config, ranks, NULL, 0);
    RUN_OK(&r);
    run_free(&r);
    train_log whole = train_log_read(output);
    for (unsigned i = 0; points[i]; i++) {
        for (unsigned tries = 0; tries < 20; tries++) { /* a base that another node's rank made first is only used */
            run_remove(output);
            r = go_on(config, ranks, run_format("%s:kill:once", points[i]), i % ranks);
            if (r.status != 0 || tries == 19) break;
            run_free(&r);
        }
        if (r.status == 0) fail_msg("%s: never reached by rank %u of %u", points[i], i % ranks, ranks);
        run_free(&r);
        r = go_on(config, ranks, NULL, 0);
        if (r.status != 0) fail_msg("%u ranks, %s: %s", ranks, points[i], r.err);
        run_free(&r);
        assert_string_equal(train_log_read(output).hash, whole.hash);
        assert_int_equal(run_entries(disk), 0);
    }
    run_remove(output);
}

static const char *write_killed(const adapted *a, const char *base, const char *more) {
    const char *path = run_path(a->dir, "killed.json");
    run_write(path, run_format("{\"model\": \"%s\", \"adapter\": {\"path\": \"%s\", \"lora_dropout\": 0.1},\n"
                               " \"data\": {\"train\": \"%s\", \"seq_len\": %zu}, \"precision\": \"bf16\",\n"
                               " \"learning_rate\": 1e-3, \"max_steps\": 4, \"train_batch_size\": 4,\n"
                               " \"per_device_train_batch_size\": 1, \"commit_steps\": 1, \"output_dir\": \"%s/out\",\n"
                               " %s \"memory\": {\"cache\": \"none\"}, \"zero_optimization\": {\"stage\": 3,\n"
                               "  \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/disk\"},\n"
                               "  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/disk\"}}}\n",
                               base, a->folder, a->rows, a->seq, a->dir, more, a->dir, a->dir));
    return path;
}

static void test_kills(void **state) {
    adapted a = adapted_open(*state);
    const char *config = write_killed(&a, a.base, "");
    kills(&a, config, 2, SETS("kill_published:2", "kill_op:60"));
    if (TEST_LONG("kills of one of four ranks")) kills(&a, config, 4, SETS("kill_prepared:2"));
    adapted_close(&a);
}

/* One rank of a node makes the base, for all of them; killed while it does, after that, or while another steps. */
static void a_base_of_their_own(void **state) {
    (void)state;
    adapted a = adapted_open("peft_qlora");
    const char *config = write_killed(&a, TM_TEST_FIXTURES "/peft_base", "\"quantization\": {\"type\": \"nf4\"},");
    kills(&a, config, 2, SETS("kill_published:2"));
    kills(&a, config, 4, SETS("kill_quantising:2"));
    adapted_close(&a);
}

int main(int argc, char **argv) {
    static char lora[] = "peft_lora", qlora[] = "peft_qlora", saved[] = "peft_modules_to_save";
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    const struct CMUnitTest tests[] = {
        {"one_hash lora", test_one_hash, NULL, run_clean, lora},
        {"one_hash qlora", test_one_hash, NULL, run_clean, qlora},
        {"least qlora", test_least, NULL, run_clean, qlora},
        {"as_one_rank", as_one_rank, NULL, run_clean, saved},
        {"kills lora", test_kills, NULL, run_clean, lora},
        cmocka_unit_test_teardown(a_base_of_their_own, run_clean),
    };
    return cmocka_run_group_tests_name("train_adapters_ranks", tests, NULL, NULL);
}

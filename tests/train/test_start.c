/* The beginning of a run in this process, one rank or one of several imagined ones (start.h): what it refuses, and what
 * becomes of it when memory runs out, or an operation among the ranks fails, anywhere in the choice of what to go on
 * from. */
#include "start.h"

#include "comm/comm.h"
#include "tests/support/walk.h"
#include "job/job.h"
#include "train/trainer_internal.h"
#include "tests/support/skip.h"

#include <signal.h>

static int set_up(void **state) {
    (void)state;
    tm_log_set_level(TM_LOG_ERROR);
    found_open();
    return 0;
}

/* ---- one rank's -------------------------------------------------------------------------------------------------- */

static void no_manifest(void) {
    if (unlink(run_path(found.run[0], "manifest")) != 0) fail_msg("no manifest");
    run_write(run_path(found.output, "log.jsonl"), ""); /* as killed before its first commit */
}
static void no_run_json(void) {
    if (unlink(run_path(found.output, "run.json")) != 0) fail_msg("no run.json");
}
static void nameless(void) {
    no_manifest(), no_run_json();
}

static void bad_manifest(void) {
    run_write(run_path(found.run[0], "manifest"), "tidemill commit, half of");
}

/* As killed right after its third commit, with a full checkpoint of step 2. */
static void test_one_rank(void **state) {
    (void)state;
    const found_start killed = {.set = {"save_state=true", "save_steps=2"}, .fault = "kill_published:3:kill:once"};
    assert_int_equal(found_run(&killed), SIGKILL);
    found_save();
    start_opts o = {{0}, 0, 0};
    uint64_t failed = start_walk(&o, NULL, TM_OK, "alloc", "fail", walk_points(10));
    failed += start_walk(&o, no_manifest, TM_OK, "alloc", "fail", walk_points(4));
    failed += start_walk(&o, nameless, TM_OK, "alloc", "fail", walk_points(4));
    failed += start_walk(&o, bad_manifest, TM_OK, "alloc", "fail", walk_points(4));
    o.with.resume = run_path(found.output, "checkpoint-2");
    failed += start_walk(&o, NULL, TM_OK, "alloc", "fail", walk_points(4));
    const start_opts two = {{.set = {"strategy=zero3"}, .resume = o.with.resume}, 2, 0};
    failed += start_walk(&two, NULL, TM_OK, "alloc", "fail", walk_points(4));
    o.with.resume = run_format("%s", found.run[0]);
    failed += start_walk(&o, NULL, TM_OK, "alloc", "fail", walk_points(4));
    o.with.resume = "never";
    failed += start_walk(&o, NULL, TM_OK, "alloc", "fail", walk_points(4));
    assert_true(failed >= 20);
}

/* ---- what two ranks left ----------------------------------------------------------------------------------------- */

static void half_run_json(void) {
    run_write(run_path(found.output, "run.json"), "{\"status\": \"runn");
}

typedef struct place {
    start_opts o;
    void (*damage)(void);
    tm_status ends;
} place;

static void test_two_ranks(void **state) {
    (void)state;
    if (system("mpirun --version > /dev/null 2>&1") != 0) TEST_SKIP("no mpirun");
    walk_gone(found.output);
    walk_gone(found.offload);
    found_two_ranks();
    const char *checkpoint = run_path(found.output, "checkpoint-2"), *own = found.output;
    const char *other = run_format("output_dir=%s/other", found.dir);
#define ZERO3                                                                                                          \
    { "strategy=zero3" }
    const place places[] = {
        {{{.set = ZERO3}, 2, 0}, NULL, TM_OK}, /* each its own */
        {{{.set = ZERO3}, 2, 1}, NULL, TM_OK},
        {{{.set = {"strategy=ddp"}}, 2, 0}, NULL, TM_OK},           /* laid out otherwise */
        {{{.set = {NULL}}, 0, 0}, found_no_second_manifest, TM_OK}, /* rank 1's is published */
        {{{.set = ZERO3, .resume = checkpoint}, 2, 0}, NULL, TM_OK},
        {{{.set = {NULL}, .resume = checkpoint}, 0, 0}, NULL, TM_OK},
        {{{.set = {"strategy=zero3", other}, .resume = own}, 2, 0}, NULL, TM_OK},
        {{{.set = ZERO3, .resume = own}, 2, 0}, NULL, TM_OK},
        {{{.set = ZERO3}, 2, 0}, found_bad_manifests, TM_OK},       /* back to the full checkpoint */
        {{{.set = ZERO3}, 2, 1}, found_bad_manifests, TM_ECORRUPT}, /* that is rank 0's to find */
        {{{.set = {NULL}}, 0, 0}, found_bad_manifests, TM_OK},
        {{{.set = ZERO3}, 2, 0}, found_no_manifests, TM_EINPUT}, /* the log knows of them */
        {{{.set = ZERO3, .resume = "never"}, 2, 0}, NULL, TM_OK},
        {{{.set = ZERO3, .resume = "never"}, 2, 0}, half_run_json, TM_OK},
        {{{.set = ZERO3}, 2, 0}, half_run_json, TM_EINPUT},
        {{{.set = {"strategy=zero3", "commit_steps=0", "save_state=false"}}, 2, 0}, found_bad_manifests, TM_ECORRUPT},
        {{{.set = ZERO3, .resume = run_path(found.dir, "nowhere")}, 2, 0}, NULL, TM_EINPUT},
        {{{.set = ZERO3, .resume = TM_TEST_FIXTURES}, 2, 0}, NULL, TM_EINPUT},
    };
    uint64_t failed = 0;
    for (size_t i = 0; i < TM_COUNT(places); i++) {
        const place *p = &places[i];
        failed += start_walk(&p->o, p->damage, p->ends, "alloc", "fail", walk_points(4));
        if (p->o.ranks) failed += start_walk(&p->o, p->damage, p->ends, "operation", "eio", 0);
        failed += start_walk(&p->o, p->damage, p->ends, "pread", "eio", walk_points(1));
    }
    assert_true(failed >= 60);
}

/* ---- how the state is laid out ----------------------------------------------------------------------------------- */

static tm_status laid_out(uint32_t ranks, uint32_t per_node, const char *const *set, size_t n_set, job_ranks *out) {
    const tm_train_args args = {.config = found.config, .set = set, .n_set = n_set};
    trainer t = {.s.args = &args};
    TM_TRY(session_imagine_ranks(&t.s, ranks, per_node));
    tm_status rc = session_load_config(&t.s, false);
    if (rc == TM_OK) rc = session_set_strategy(&t.s);
    *out = t.s.ranks;
    trainer_close(&t);
    session_close_ranks(&t.s);
    return rc;
}

static bool holds(holding h, uint32_t first, uint32_t count) {
    return h.first == first && h.count == count;
}

/* Of rank 0 (README.md of this folder's module, "Ranks"). */
static void test_strategies(void **state) {
    static const struct {
        uint32_t ranks, per_node;
        const char *set[2];
        const char *refused;           /* NULL: it is not */
        uint32_t weights, own, second; /* slices */
    } rows[] = {
        {4, 4, {"strategy=ddp"}, NULL, 4, 4, 0},
        {4, 4, {"strategy=zero1"}, NULL, 4, 1, 0},
        {4, 4, {"strategy=zero3"}, NULL, 1, 1, 0},
        {4, 2, {"strategy=hsdp"}, NULL, 2, 2, 0},
        {6, 4, {"strategy=hsdp"}, "the same number of ranks on every node", 0, 0, 0},
        {4, 2, {"strategy=hpz"}, NULL, 1, 1, 2},
        {4, 2, {"strategy=hpz", "zero_optimization.zero_hpz_partition_size=2"}, NULL, 1, 1, 2},
        {4, 2, {"strategy=hpz", "zero_optimization.zero_hpz_partition_size=4"}, "zero_hpz_partition_size 4", 0, 0, 0},
        {6, 4, {"strategy=hpz"}, "on nodes of equal size", 0, 0, 0},
        {4, 1, {"strategy=zero3", "memory.shared_window=on"}, "nobody to share with", 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const char *batch = run_format("train_batch_size=%u", rows[i].ranks);
        const char *set[] = {batch, rows[i].set[0], rows[i].set[1]};
        job_ranks r;
        tm_status rc = laid_out(rows[i].ranks, rows[i].per_node, set, rows[i].set[1] ? 3 : 2, &r);
        if (rows[i].refused ? rc != TM_EINPUT || !strstr(tm_error_get()->text, rows[i].refused) : rc != TM_OK)
            fail_msg("row %zu: %s: %s", i, tm_status_name(rc), tm_error_get()->text);
        tm_error_clear();
        if (rows[i].refused) continue;
        if (!holds(r.weights, 0, rows[i].weights) || !holds(r.own, 0, rows[i].own) ||
            !holds(r.second, 0, rows[i].second))
            fail_msg("row %zu: weights %u, own %u, second %u", i, r.weights.count, r.own.count, r.second.count);
    }
}

/* What travels rounded, and how much at a time. */
static void test_knobs_of_ranks(void **state) {
    const char *const set[] = {"train_batch_size=4",
                               "strategy=zero3",
                               "zero_optimization.zero_quantized_weights=true",
                               "zero_optimization.zero_quantized_gradients=true",
                               "zero_optimization.stage3_prefetch_bucket_size=1234",
                               "zero_optimization.reduce_bucket_size=999",
                               "zero_optimization.stage3_param_persistence_threshold=77"};
    job_ranks r;
    (void)state;
    RUN_EXPECT_STATUS(laid_out(4, 4, set, 2, &r));
    assert_int_equal(r.gather_wire, TM_COMM_EXACT);
    assert_int_equal(r.reduce_wire, TM_COMM_EXACT);
    RUN_EXPECT_STATUS(laid_out(4, 4, set, TM_COUNT(set), &r));
    assert_int_equal(r.gather_wire, TM_COMM_WIRE_Q8);
    assert_int_equal(r.reduce_wire, TM_COMM_WIRE_Q4);
    assert_int_equal(r.prefetch_elements, 1234);
    assert_int_equal(r.reduce_elements, 999);
    assert_int_equal(r.keep_elements, 77);
    const char *const by_size[] = {"train_batch_size=4", "fsdp=full_shard auto_wrap",
                                   "fsdp_config={\"min_num_params\": 4321}"};
    RUN_EXPECT_STATUS(laid_out(4, 4, by_size, TM_COUNT(by_size), &r));
    assert_int_equal(r.prefetch_elements, 4321);
    const char *const whole[] = {"train_batch_size=4", "fsdp=full_shard auto_wrap",
                                 "fsdp_config={\"auto_wrap_policy\": \"NO_WRAP\"}"};
    RUN_EXPECT_STATUS(laid_out(4, 4, whole, TM_COUNT(whole), &r));
    assert_true(r.prefetch_elements == UINT64_MAX);
    const char *const bf16[] = {"train_batch_size=4", "strategy=zero3", "communication_data_type=bf16"};
    RUN_EXPECT_STATUS(laid_out(4, 4, bf16, TM_COUNT(bf16), &r));
    assert_int_equal(r.reduce_wire, TM_COMM_WIRE_BF16);
}

/* fsdp_config's names against the model's. */
static void test_wrapped_classes(void **state) {
    static const struct {
        const char *classes;
        tm_status status;
    } rows[] = {{"[\"LlamaDecoderLayer\"]", TM_OK},
                {"[\"llamaDecoderLayer\", \"LlamaDecoderLayer\"]", TM_OK},
                {"[\"LlamaAttention\"]", TM_EINPUT},
                {"[\"Qwen2DecoderLayer\"]", TM_EINPUT},
                {"[\"LlamaDecoderLayer\", \"LlamaDecoder\"]", TM_EINPUT}};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const char *set[] = {"fsdp=full_shard auto_wrap",
                             run_format("fsdp_config={\"transformer_layer_cls_to_wrap\": %s}", rows[i].classes)};
        const tm_train_args args = {.config = found.config, .set = set, .n_set = TM_COUNT(set)};
        trainer t = {.s.args = &args};
        RUN_EXPECT_STATUS(session_load_config(&t.s, false));
        tm_status rc = session_check_wrap(&t.s, "llama");
        if (rc != rows[i].status || (rc != TM_OK && !strstr(tm_error_get()->text, "\"LlamaDecoderLayer\"")))
            fail_msg("row %zu: %s: %s", i, tm_status_name(rc), tm_error_get()->text);
        tm_error_clear();
        trainer_close(&t);
    }
}

/* ---- what a commit says ------------------------------------------------------------------------------------------ */

static tm_json_doc *parse(const char *text) {
    tm_json_doc *doc;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, strlen(text), "info", 0, 0));
    return doc;
}

static void test_shards(void **state) {
    static const char good[] =
        "{\"shards\": {\"ranks\": 4, \"keep_elements\": 9, \"weights\": [0, 4], \"own\": [2, 2]}}";
    static const char *const bad[][2] = {
        {"\"ranks\": 4", "\"rank\": 4"},
        {"\"ranks\": 4", "\"ranks\": 4.5"},
        {"\"ranks\": 4", "\"ranks\": 0"},
        {"\"ranks\": 4", "\"ranks\": 1048577"},
        {"\"keep_elements\"", "\"keep\""},
        {"elements\": 9", "elements\": \"9\""},
        {"elements\": 9", "elements\": -1"},
        {"\"weights\"", "\"weight\""},
        {"[0, 4]", "[]"},
        {"[0, 4]", "[0]"},
        {"[0, 4]", "[\"0\", 4]"},
        {"[0, 4]", "[0, 4.5]"},
        {"[0, 4]", "[-1, 4]"},
        {"[0, 4]", "[0, 0]"},
        {"[0, 4]", "[4, 1]"},
        {"[0, 4]", "[1, 4]"},
        {"\"own\"", "\"owned\""},
        {"[2, 2]", "[2, 3]"},
    };
    job_ranks was, all = {.ranks = 4, .keep_elements = 9, .weights = {0, 4}, .own = {2, 2}};
    (void)state;
    for (size_t i = 0; i <= TM_COUNT(bad); i++) {
        char text[400];
        const char *at = i ? strstr(good, bad[i - 1][0]) : good;
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, i ? bad[i - 1][1] : "",
                 at + (i ? strlen(bad[i - 1][0]) : 0));
        tm_json_doc *doc = parse(text);
        tm_status rc = elastic_shards(tm_json_root(doc), &was);
        if (rc != (i ? TM_ECORRUPT : TM_OK)) fail_msg("%s: %s", text, tm_status_name(rc));
        if (i == 0) assert_true(elastic_same(&was, &all));
        tm_error_clear();
        tm_json_free(doc);
    }
    const job_ranks others[] = {{.ranks = 5, .keep_elements = 9, .weights = {0, 4}, .own = {2, 2}},
                                {.ranks = 4, .keep_elements = 8, .weights = {0, 4}, .own = {2, 2}},
                                {.ranks = 4, .keep_elements = 9, .weights = {1, 4}, .own = {2, 2}},
                                {.ranks = 4, .keep_elements = 9, .weights = {0, 3}, .own = {2, 2}},
                                {.ranks = 4, .keep_elements = 9, .weights = {0, 4}, .own = {1, 2}},
                                {.ranks = 4, .keep_elements = 9, .weights = {0, 4}, .own = {2, 1}}};
    for (size_t i = 0; i < TM_COUNT(others); i++) assert_false(elastic_same(&all, &others[i]));
}

/* The best checkpoint, as a commit names it: on other data it would be compared with what was not. */
static void test_best_of_a_commit(void **state) {
    static const struct {
        const char *best, *set;
        int64_t step;
        tm_status status;
    } rows[] = {
        {"{\"step\": 3, \"loss\": 0.5, \"greater_is_better\": false, \"eval\": \"0000000000000000\"}", NULL, 3, TM_OK},
        {"{\"step\": 3, \"loss\": 0.5, \"eval\": \"0000000000000000\"}", NULL, 3, TM_OK},
        {"{\"step\": 3, \"loss\": 0.5, \"eval\": \"1000000000000000\"}", NULL, 3, TM_EINPUT},
        {"{\"step\": 3, \"loss\": 0.5}", NULL, 3, TM_EINPUT},
        {"{\"step\": \"3\", \"loss\": 0.5, \"eval\": \"0000000000000000\"}", NULL, 0, TM_OK},
        {"{\"step\": 3, \"loss\": \"0.5\", \"eval\": \"0000000000000000\"}", NULL, 0, TM_OK},
        {"{\"step\": 3, \"eval\": \"0000000000000000\"}", NULL, 0, TM_OK},
        {"{\"loss\": 0.5, \"eval\": \"0000000000000000\"}", NULL, 0, TM_OK},
        {"{\"step\": 3, \"loss\": 0.5, \"eval\": \"0000000000000000\"}", "load_best_model_at_end=false", 0, TM_OK},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const char *rows_file = run_format("data.eval=%s/rows.safetensors", found.dir);
        const char *set[] = {
            rows_file,  "eval_steps=1", "save_steps=1", "save_total_limit=2", "load_best_model_at_end=true",
            rows[i].set};
        const tm_train_args args = {.config = found.config, .set = set, .n_set = rows[i].set ? 6 : 5};
        trainer t = {.s.args = &args};
        tm_json_doc *doc = parse(run_format("{\"checkpoints\": [1, 3, 3, \"x\", 2], \"best\": %s}", rows[i].best));
        RUN_EXPECT_STATUS(session_load_config(&t.s, false));
        tm_status rc = trainer_read_saves(&t, tm_json_root(doc));
        if (rc != rows[i].status || t.saves.best != rows[i].step || t.saves.kept != rows[i].step)
            fail_msg("row %zu: %s, step %d is the best", i, tm_status_name(rc), (int)t.saves.best);
        tm_error_clear();
        assert_int_equal(t.saves.n, 2); /* ascending: 1 and 3 */
        assert_true(t.saves.step[0] == 1 && t.saves.step[1] == 3);
        tm_json_free(doc);
        trainer_close(&t);
    }
}

/* ---- when a commit is made --------------------------------------------------------------------------------------- */

static void test_due(void **state) {
    static const struct {
        const char *set[2];
        int64_t step; /* done so far, of FOUND_STEPS */
        bool commits, due;
    } rows[] = {{{"commit_steps=2"}, 0, true, false},
                {{"commit_steps=2"}, 1, true, true},
                {{"commit_steps=0"}, 3, false, false},
                {{"commit_steps=0", "keep_state=true"}, 0, true, false},
                {{"commit_steps=0", "keep_state=true"}, 3, true, true},
                {{"commit_steps=2", "memory.slots=1"}, 1, false, false},
                {{"commit_steps=0", "commit_minutes=1"}, 0, true, false},
                {{"commit_steps=3"}, 3, true, true}};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const tm_train_args args = {.config = found.config, .set = rows[i].set, .n_set = rows[i].set[1] ? 2 : 1};
        trainer t = {.s.args = &args, .step = rows[i].step, .life.commit_ns = tm_now_ns()};
        RUN_EXPECT_STATUS(session_load_config(&t.s, false));
        t.s.cfg->total_steps = FOUND_STEPS;
        if (session_commits(&t.s) != rows[i].commits || trainer_commit_due(&t) != rows[i].due)
            fail_msg("row %zu: commits %d, due %d", i, session_commits(&t.s), trainer_commit_due(&t));
        t.life.commit_ns = tm_now_ns() - 61000000000u; /* however long this machine has been up */
        assert_int_equal(trainer_commit_due(&t), rows[i].due || t.s.cfg->commit_minutes > 0);
        t.s.ranks.rank = 1; /* the first rank's clock decides */
        assert_int_equal(trainer_commit_due(&t), rows[i].due);
        t.s.ranks.rank = 0;
        trainer_close(&t);
    }
}

/* A signal came in the middle of a step: it ends if there is time, and a commit to come of it. Ranks end it in any
 * case, since they stop together; when there is no time the first ends them all, and another only a while after that.
 */
static void test_may_go_on(void **state) {
    static const struct {
        const char *set;
        double grace; /* seconds; the signal came when the machine was started. -9: the grace ended 9 s ago */
        bool torn, ranks;
        uint32_t rank;
        bool goes_on;
        double commit_seconds; /* that one is expected to take */
    } rows[] = {
        {"commit_steps=1", 1e12, true, false, 0, true, 0},   {"commit_steps=1", 1e12, false, false, 0, false, 0},
        {"commit_steps=0", 1e12, true, false, 0, false, 0},  {"commit_steps=1", 1e-3, true, false, 0, false, 0},
        {"commit_steps=1", 1e12, true, true, 0, true, 0},    {"commit_steps=1", 1e12, false, true, 0, true, 0},
        {"commit_steps=0", 1e12, true, true, 0, true, 0},    {"commit_steps=1", 1e12, true, true, 0, false, 2e12},
        {"commit_steps=1", 1e12, true, true, 1, true, 2e12}, {"commit_steps=1", -9, true, true, 1, false, 0}};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        double ago = (double)tm_now_ns() * 1e-9;
        const tm_train_args args = {.config = found.config,
                                    .set = &rows[i].set,
                                    .n_set = 1,
                                    .grace_seconds = rows[i].grace < 0 ? ago + rows[i].grace : rows[i].grace};
        trainer t = {.s.args = &args,
                     .torn = rows[i].torn,
                     .life.step_ns = 1,
                     .life.step_began_ns = tm_now_ns(),
                     .life.commit_seconds = rows[i].commit_seconds};
        RUN_EXPECT_STATUS(session_load_config(&t.s, false));
        if (rows[i].ranks) RUN_EXPECT_STATUS(session_imagine_ranks(&t.s, 2, 2));
        t.s.ranks.rank = rows[i].rank;
        if (trainer_may_go_on(&t) != rows[i].goes_on) fail_msg("row %zu", i);
        trainer_close(&t);
        session_close_ranks(&t.s);
    }
}

/* Only a failure that others do not know of ends the process. */
static void test_ends_nobody(void **state) {
    const tm_train_args args = {.config = found.config};
    session alone = {.args = &args}, imagined = {.args = &args}, t;
    (void)state;
    session_end_all(&alone, TM_EIO, false);
    RUN_EXPECT_STATUS(session_imagine_ranks(&imagined, 2, 2));
    session_end_all(&imagined, TM_EIO, false);
    t = imagined;
    t.imagined = false; /* as if they were there */
    session_end_all(&t, TM_OK, false);
    t.agreed = true;
    session_end_all(&t, TM_EIO, false);
    session_close_ranks(&imagined);
}

/* ---- what comes out ---------------------------------------------------------------------------------------------- */

static void test_save_dtype(void **state) {
    static const struct {
        const char *set[2];
        tm_fmt fmt;
    } rows[] = {{{"save_dtype=auto"}, TM_FMT_BF16},
                {{"save_dtype=auto", "precision=fp32"}, TM_FMT_F32},
                {{"save_dtype=f32"}, TM_FMT_F32},
                {{"save_dtype=f16"}, TM_FMT_F16},
                {{"save_dtype=bf16", "precision=fp32"}, TM_FMT_BF16}};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        walk_gone(found.output);
        found_start o = {.resume = "never", .set = {rows[i].set[0], rows[i].set[1]}};
        assert_int_equal(found_run(&o), 0);
        if (found.report->status != TM_OK) fail_msg("row %zu: %s", i, found.report->text);
        tm_st *out = tensors_open(run_path(found.output, "model.safetensors"));
        assert_true(tm_st_count(out) > 0);
        for (uint32_t k = 0; k < tm_st_count(out); k++) assert_int_equal(tm_st_get(out, k)->fmt, rows[i].fmt);
        tm_st_close(out);
    }
    walk_gone(found.output);
}

/* ---- run directories, as run.json names them --------------------------------------------------------------------- */

typedef struct gatherer {
    tm_job job;
    uint32_t ranks, n;
} gatherer;

static tm_status gather(void *ctx) {
    gatherer *g = ctx;
    trainer t = {.job = &g->job};
    if (g->ranks) TM_TRY(session_imagine_ranks(&t.s, g->ranks, g->ranks));
    tm_status rc = trainer_gather_directories(&t);
    g->n = t.out.n_directories;
    if (rc == TM_OK && g->n) assert_true(t.out.directory[0][0] == '/');
    t.job = NULL;
    tm_error said = *tm_error_get();
    trainer_close(&t);
    session_close_ranks(&t.s);
    if (rc != TM_OK) tm_error_clear(), tm_error_set(&said);
    return rc;
}

/* One object, which lies in the first of two paths. */
static tm_store *open_store(tm_layout **l) {
    const char *paths[] = {run_dir(), run_dir()};
    tm_program *p;
    tm_plan *plan;
    tm_store *store;
    RUN_EXPECT_STATUS(tm_layout_create(l));
    assert_int_equal(tm_layout_object(*l, &(tm_object){.kind = TM_KIND_EXP_AVG, .bytes = 5000, .pageable = true}), 0);
    RUN_EXPECT_STATUS(tm_program_create(&p, *l, "touch"));
    uint32_t v = tm_program_interval(p, 0, 1);
    tm_program_op(p, &(tm_op){.code = 1});
    tm_program_use(p, v, TM_USE_WRITE);
    RUN_EXPECT_STATUS(
        tm_plan_compile(&plan, *l, p, &(tm_plan_opts){.slab_bytes = TM_MIB, .choose_residency = true}, NULL));
    RUN_EXPECT_STATUS(
        tm_store_open(&store, *l, &(tm_store_opts){.paths = paths, .n_paths = 2, .slots = 1, .allow_tmpfs = true}));
    tm_plan_free(plan);
    tm_program_free(p);
    return store;
}

static void test_directories(void **state) {
    const walk memory = {.call = "alloc", .kind = "fail", .want = TM_ENOMEM};
    tm_layout *l;
    gatherer one = {0}, two = {.ranks = 2};
    (void)state;
    one.job.tiers.store = open_store(&l);
    assert_true(walk_all(memory, gather, &one) >= 2); /* relative paths: each becomes a full one */
    assert_int_equal(one.n, 2);
    assert_true(walk_all(memory, gather, &two) >= 3);
    const walk sent = {.call = "operation", .kind = "eio", .want = TM_EIO};
    assert_true(walk_all(sent, gather, &two) >= 1);
    assert_int_equal(two.n, 0);
    RUN_EXPECT_STATUS(tm_store_remove(one.job.tiers.store));
    tm_layout_free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strategies),       cmocka_unit_test(test_knobs_of_ranks),
        cmocka_unit_test(test_wrapped_classes),  cmocka_unit_test(test_shards),
        cmocka_unit_test(test_best_of_a_commit), cmocka_unit_test(test_due),
        cmocka_unit_test(test_may_go_on),        cmocka_unit_test(test_ends_nobody),
        cmocka_unit_test(test_directories),      cmocka_unit_test(test_save_dtype),
        cmocka_unit_test(test_one_rank),         cmocka_unit_test(test_two_ranks),
    };
    return cmocka_run_group_tests_name("train_start", tests, set_up, found_close);
}

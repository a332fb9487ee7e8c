/* The planner as a function of a job's shapes, its limits and the schedules: from config.json alone, nothing is opened.
 * A choice is within its budget; each limit refuses for itself, with the bytes that are enough; what is refused and
 * what is accepted meet at one byte. */
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"
#include "planner/choice_internal.h"
#include "planner/cost.h"
#include "planner/start.h"
#include "tests/train/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 20260, BUDGETS = 40 };

static const char *model, *disk;

static int open_model(void **state) {
    const char *dir = run_dir();
    (void)state;
    model = dir;
    disk = run_dir();
    run_write(run_path(dir, "config.json"),
              "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64,\n"
              " \"intermediate_size\": 128, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,\n"
              " \"num_key_value_heads\": 4, \"vocab_size\": 1000, \"max_position_embeddings\": 2048,\n"
              " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false,\n"
              " \"initializer_range\": 0.02}\n");
    return tm_kernels_init(0, TM_ELEM_BF16) == TM_OK ? 0 : -1;
}

/* What is asked. */
typedef struct question {
    uint64_t host_bytes, device_bytes; /* device: 0: there is none */
    uint32_t micro_batches;
    job_ranks ranks;
} question;

/* What it came to. */
typedef struct answer {
    tm_status status;
    job_refusal refusal;
    uint64_t peak, slab, device, minimum, minimum_device;
    uint32_t way;
    char text[2048];
} answer;

static job_opts options_of(const question *q) {
    return (job_opts){.model = model,
                      .dtype = TM_BF16,
                      .optimizer = true,
                      .init_random = true,
                      .host_bytes = q->host_bytes,
                      .device = q->device_bytes ? "cpu-arena" : NULL,
                      .device_bytes = q->device_bytes,
                      .paths = &disk,
                      .n_paths = 1,
                      .ranks = q->ranks,
                      .config_only = true,
                      .plan_only = true};
}

static uint32_t ways_of(const question *q, pass_opts way[8]) {
    uint32_t n = 0;
    for (pass_update u = UPDATE_AFTER; u <= UPDATE_BEFORE; u++)
        for (uint32_t i = 0; i < 4; i++)
            way[n++] = (pass_opts){.shape = {.micro_batches = q->micro_batches, .rows = 1, .seq = 64},
                                   .backward = true,
                                   .update = u,
                                   .park = u == UPDATE_BEFORE,
                                   .keep_quarters = i % 2 ? PASS_KEEP_ALL : 0,
                                   .stage_wise = i / 2};
    return n;
}

static void ask_job(tm_job *job, const question *q, answer *out) {
    pass_opts way[8];
    planner_choice c;
    memset(out, 0, sizeof *out);
    out->status = planner_choose(&(planner_ask){.job = job, .name = "step", .way = way, .n = ways_of(q, way)}, &c);
    out->refusal = c.refusal;
    out->minimum = c.minimum_host_bytes;
    out->minimum_device = c.minimum_device_bytes;
    snprintf(out->text, sizeof out->text, "%s", tm_error_get()->text);
    tm_error_clear();
    if (out->status == TM_OK) {
        const tm_plan_info *info = tm_plan_get_info(c.plan);
        out->peak = c.budget.fixed_bytes + c.account.limits.plans_bytes + c.account.needs.slab;
        out->slab = info->slab_bytes;
        out->device = c.account.needs.device;
        out->way = c.way;
        assert_non_null(c.import_plan);
        assert_true(info->slab_bytes <= c.account.needs.slab && c.account.needs.plans <= c.account.limits.plans_bytes);
    } else {
        assert_null(c.plan);
    }
    planner_drop(&c);
}

static answer ask(const question *q) {
    job_opts o = options_of(q);
    tm_job *job;
    answer a;
    RUN_EXPECT_STATUS(job_open(&job, &o));
    ask_job(job, q, &a);
    job_close(job);
    return a;
}

static void expect_refusal(const answer *a, job_limit limit, uint64_t bytes, const char *key) {
    if (a->status != TM_EBUDGET || a->refusal.limit != limit) fail_msg("%s", a->text);
    assert_int_equal(a->refusal.bytes, bytes);
    if (!strstr(a->text, key) || !strstr(a->text, run_format("%llu bytes", (unsigned long long)bytes)))
        fail_msg("%s", a->text);
}

/* ---- the host ---------------------------------------------------------------------------------------------------- */

static void least_host_budget(void **state) {
    question q = {.host_bytes = 1, .micro_batches = 4};
    answer a = ask(&q);
    (void)state;
    uint64_t least = a.minimum;
    expect_refusal(&a, JOB_LIMIT_HOST, least, "memory.host_budget");
    q.host_bytes = least - 1;
    a = ask(&q);
    expect_refusal(&a, JOB_LIMIT_HOST, least, "memory.host_budget");
    q.host_bytes = least;
    a = ask(&q);
    assert_int_equal(a.status, TM_OK);
    assert_true(a.peak <= least && a.minimum == least);
}

/* Never above the limit; the minimum is that of the job, whatever the budget. */
static void any_host_budget(void **state) {
    question q = {.host_bytes = UINT64_MAX, .micro_batches = 4};
    answer all = ask(&q);
    (void)state;
    assert_int_equal(all.status, TM_OK);
    for (uint32_t i = 0; i < BUDGETS; i++) {
        q.host_bytes = all.minimum / 2 + tm_hash64(&i, sizeof i, SEED) % (2 * all.peak - all.minimum / 2);
        answer a = ask(&q);
        if (a.minimum != all.minimum || (a.status == TM_OK) != (q.host_bytes >= all.minimum) ||
            (a.status == TM_OK && a.peak > q.host_bytes))
            fail_msg("budget %llu: status %s, peak %llu, minimum %llu of %llu", (unsigned long long)q.host_bytes,
                     tm_status_name(a.status), (unsigned long long)a.peak, (unsigned long long)a.minimum,
                     (unsigned long long)all.minimum);
        if (a.status != TM_OK) expect_refusal(&a, JOB_LIMIT_HOST, all.minimum, "memory.host_budget");
    }
}

/* A function: asked again, after whatever else was asked, the same job gives the same. */
static void asked_again(void **state) {
    question q = {.host_bytes = UINT64_MAX, .micro_batches = 4};
    answer first, again, refused;
    tm_job *job;
    (void)state;
    q.host_bytes = ask(&q).minimum + TM_MIB / 2;
    job_opts o = options_of(&q);
    RUN_EXPECT_STATUS(job_open(&job, &o));
    ask_job(job, &q, &first);
    job->opts.host_bytes = 1;
    ask_job(job, &q, &refused);
    job->opts.host_bytes = q.host_bytes;
    ask_job(job, &q, &again);
    job_close(job);
    assert_int_equal(refused.refusal.limit, JOB_LIMIT_HOST);
    assert_memory_equal(&first, &again, sizeof first);
}

/* ---- other limits ------------------------------------------------------------------------------------------------ */

static void least_device_budget(void **state) {
    question q = {.host_bytes = UINT64_MAX, .device_bytes = 4096, .micro_batches = 4};
    answer a = ask(&q);
    (void)state;
    uint64_t least = a.minimum_device;
    expect_refusal(&a, JOB_LIMIT_DEVICE, least, "memory.device_budget");
    q.device_bytes = least - 1;
    a = ask(&q);
    assert_true(a.status == TM_EBUDGET && a.refusal.limit == JOB_LIMIT_DEVICE && a.refusal.bytes == least);
    q.device_bytes = least;
    a = ask(&q);
    assert_int_equal(a.status, TM_OK);
    assert_true(a.device <= least);
}

/* Too many for their plans; as many as the refusal names fit. */
static void most_micro_batches(void **state) {
    question q = {.host_bytes = UINT64_MAX, .micro_batches = 4};
    (void)state;
    q.host_bytes = ask(&q).minimum + 4 * TM_MIB;
    q.micro_batches = 100000;
    answer a = ask(&q);
    expect_refusal(&a, JOB_LIMIT_MICRO_BATCHES, a.refusal.bytes, "gradient_accumulation_steps 100000");
    assert_int_equal(a.refusal.micro_batches, 100000);
    assert_true(a.refusal.most_micro_batches > 4 && a.refusal.bytes > q.host_bytes);
    q.micro_batches = a.refusal.most_micro_batches;
    a = ask(&q);
    if (a.status != TM_OK) fail_msg("%u: %s", q.micro_batches, a.text);
    assert_true(a.peak <= q.host_bytes);
}

/* What is in use at the fullest moment of a way's programs, of each operation. */
typedef struct fullest {
    const way_list *w;
    uint64_t bytes;
} fullest;

static tm_status see_fullest(void *ctx, way_program which, const tm_program *p, uint64_t share) {
    fullest *x = ctx;
    uint32_t n = tm_program_ops(p);
    uint64_t *loads = tm_calloc(n + 1, sizeof *loads), least = 0, most = 0, device;
    tm_plan_opts po;
    if (which == WAY_EVALUATION) return tm_free(loads), TM_OK;
    RUN_EXPECT_STATUS(way_program_opts(x->w, p, share, &po, &device));
    RUN_EXPECT_STATUS(tm_plan_loads(x->w->ask->job->layout, p, &po, loads));
    RUN_EXPECT_STATUS(tm_plan_minimum(x->w->ask->job->layout, p, &po, &least));
    for (uint32_t i = 0; i < n; i++) most = tm_max_u64(most, loads[i]);
    if (most > least)
        fail_msg("%llu bytes are in use, the least slab has %llu", (unsigned long long)most, (unsigned long long)least);
    bool grows = which == WAY_STEP || which == WAY_FIRST_STEP;
    x->bytes = tm_max_u64(x->bytes, grows ? most : least);
    tm_free(loads);
    return TM_OK;
}

/* Of any number of micro-batches the bytes that no slab can be without are known from five and six of them, exactly. */
static void frames_are_counted(void **state) {
    static const uint64_t devices[] = {0, 64 * TM_MIB};
    static const uint32_t numbers[] = {7, 16, 61};
    (void)state;
    for (unsigned d = 0; d < TM_COUNT(devices); d++) {
        question q = {.host_bytes = UINT64_MAX, .micro_batches = 4, .device_bytes = devices[d]};
        job_opts o = options_of(&q);
        pass_opts way[8];
        tm_job *job;
        RUN_EXPECT_STATUS(job_open(&job, &o));
        planner_ask of = {.job = job, .name = "step", .way = way, .n = ways_of(&q, way)};
        way_list w = {.ask = &of, .opts = &job->opts};
        tm_phase_begin(&job->progress.planning, "planning", "plans", 0);
        for (uint32_t i = 0; i < 3 * of.n; i++) {
            pass_opts as = way[i / 3];
            fullest found = {.w = &w};
            uint64_t counted;
            as.shape.micro_batches = numbers[i % 3];
            RUN_EXPECT_STATUS(way_frames(&w, &way[i / 3], as.shape.micro_batches, &counted));
            RUN_EXPECT_STATUS(way_programs(&w, &as, see_fullest, &found));
            if (counted != found.bytes)
                fail_msg("way %u of %u micro-batches: %llu bytes counted, %llu found", i / 3, as.shape.micro_batches,
                         (unsigned long long)counted, (unsigned long long)found.bytes);
        }
        tm_phase_end(&job->progress.planning);
        job_close(job);
    }
}

/* The same limit on all ranks (here: the imagined ones say what this one does). */
static void refused_with_ranks(void **state) {
    bool agreed = false;
    question q = {.host_bytes = 1, .micro_batches = 4};
    q.ranks = (job_ranks){
        .ranks = 2, .weights = {0, 2}, .own = {0, 2}, .sums = {0, 1}, .group = TM_COMM_WORLD, .agreed = &agreed};
    (void)state;
    RUN_EXPECT_STATUS(tm_comm_imagine(&q.ranks.comm, 2, 2, 0));
    answer a = ask(&q);
    expect_refusal(&a, JOB_LIMIT_HOST, a.minimum, "memory.host_budget");
    assert_true(agreed);
    q.host_bytes = a.minimum;
    agreed = false;
    a = ask(&q);
    if (a.status != TM_OK) fail_msg("%s", a.text);
    tm_comm_close(q.ranks.comm);
}

/* Where there is no disk its rates are 0: guesses are numbers all the same, and all stays in memory. */
static void without_a_disk(void **state) {
    question q = {.host_bytes = UINT64_MAX, .micro_batches = 4};
    tm_machine m = {.name = "no disk", .nodes = 1, .ranks_per_node = 1, .cores = 2};
    tm_job *job;
    answer a;
    (void)state;
    job_opts o = options_of(&q);
    o.n_paths = 0;
    RUN_EXPECT_STATUS(job_open(&job, &o));
    tm_plan_info none = {0};
    pass_opts way[8];
    (void)ways_of(&q, way);
    job_use_costs(job, &m, NULL, NULL);
    double seconds = job_estimate(job, &none, &way[0]);
    assert_true(seconds > 0 && seconds < 1e9);
    ask_job(job, &q, &a);
    assert_int_equal(a.status, TM_OK);
    job_close(job);
}

/* ---- what the budget and the profile are told -------------------------------------------------------------------- */

static void expect_walk_counted(tm_dtype dtype, const char *optimizer, bool cached, const job_ranks *ranks) {
    question q = {.host_bytes = UINT64_MAX, .micro_batches = 1};
    if (ranks) q.ranks = *ranks;
    job_opts o = options_of(&q);
    o.dtype = dtype;
    o.cache_none = !cached;
    o.update = tm_optimizer_find(optimizer);
    tm_optim_defaults(o.update, &o.update_opts);
    tm_job *job;
    planner_choice c;
    tm_program *p;
    tm_plan *plan;
    pass_opts way[8];
    enum { AFTER = 4 }; /* the first ones: every optimizer can */
    (void)ways_of(&q, way);
    RUN_EXPECT_STATUS(job_open(&job, &o));
    RUN_EXPECT_STATUS(planner_choose(&(planner_ask){.job = job, .name = "step", .way = way, .n = AFTER}, &c));
    uint64_t counted = build_walk_ops(job);
    RUN_EXPECT_STATUS(build_walk(&p, job, true, 0));
    RUN_EXPECT_STATUS(job_compile_in(job, &c.account, p, false, &plan));
    tm_program_free(p);
    uint32_t ops = tm_plan_get_info(plan)->ops;
    if (ops > counted || (!cached && counted > ops + ops / 4))
        fail_msg("%s, type %d, %u ranks: %u operations, %llu counted", optimizer, (int)dtype, q.ranks.ranks, ops,
                 (unsigned long long)counted);
    tm_plan_free(plan);
    planner_drop(&c);
    job_close(job);
}

/* The plan of the walk that ends a run has as many operations as its bytes are planned for, where nothing stays in
 * memory about as many. */
static void walks_are_counted(void **state) {
    static const char *const optimizer[] = {"adamw", "adamw_8bit", "adafactor", "sgd"};
    job_ranks ranks = {.ranks = 2, .weights = {0, 2}, .own = {0, 2}, .sums = {0, 1}, .group = TM_COMM_WORLD};
    (void)state;
    RUN_EXPECT_STATUS(tm_comm_imagine(&ranks.comm, 2, 2, 0));
    for (size_t i = 0; i < TM_COUNT(optimizer); i++)
        for (int cached = 0; cached < 2; cached++) {
            expect_walk_counted(TM_BF16, optimizer[i], cached, NULL);
            expect_walk_counted(TM_F32, optimizer[i], cached, NULL);
            expect_walk_counted(TM_BF16, optimizer[i], cached, &ranks);
        }
    tm_comm_close(ranks.comm);
}

/* What the head took for 32 labels of 64 tokens is half of it for the run's mean, 16: the profile has it for as many. */
static void labels_teach_the_head(void **state) {
    enum { HEARD = 32, MEAN = 16, CALLS = 4, SECONDS = 1 };
    question q = {.host_bytes = UINT64_MAX, .micro_batches = 1};
    job_opts o = options_of(&q);
    job_batch batch = {.rows = 1, .seq = 64, .tokens = 64, .label_tokens = HEARD, .label_rows = HEARD};
    const job_shape shape = {.micro_batches = 1, .rows = 1, .seq = 64};
    tm_machine m = {.name = "x",
                    .nodes = 1,
                    .ranks_per_node = 1,
                    .cores = 2,
                    .cpu_bps = 1e10,
                    .cpu_flops_fp32 = 1e11,
                    .cpu_flops_bf16 = 1e11};
    tm_job *job;
    job_costs *costs;
    (void)state;
    assert_int_equal(setenv("TIDEMILL_PROFILE", run_path(disk, "profile.json"), 1), 0);
    RUN_EXPECT_STATUS(job_open(&job, &o));
    job->step.batch = &batch;
    job_load load = job_shape_load(tm_model_get_config(job->model), &shape);
    load.rows = 1;
    load.labels = MEAN;
    const job_costs_ask ask = {.shape = &shape, .load = &load, .mode = JOB_COSTS_PROFILE};
    tm_op op = op_make(job, OP_FORWARD, (op_args){.stage = {.unit = tm_model_units(job->model) - 1, .stage = 1}});
    for (int taught = 0; taught < 2; taught++) {
        RUN_EXPECT_STATUS(job_costs_open(&costs, job, &ask, &m));
        double seconds = job_cost(costs, &op);
        if (taught ? !(seconds > 0.49 * SECONDS && seconds < 0.51 * SECONDS) : seconds > 0.1 * SECONDS)
            fail_msg("%s: %g s", taught ? "taught" : "by rates", seconds);
        RUN_EXPECT_STATUS(job_costs_observe(costs));
        for (int i = 0; i < CALLS; i++) job_costs_hear(costs, &op, SECONDS);
        RUN_EXPECT_STATUS(job_costs_learn(costs));
        job_costs_close(costs);
    }
    job->step.batch = NULL;
    job_close(job);
    assert_int_equal(unsetenv("TIDEMILL_PROFILE"), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(walks_are_counted),  cmocka_unit_test(labels_teach_the_head),
                                       cmocka_unit_test(least_host_budget),  cmocka_unit_test(any_host_budget),
                                       cmocka_unit_test(asked_again),        cmocka_unit_test(least_device_budget),
                                       cmocka_unit_test(most_micro_batches), cmocka_unit_test(frames_are_counted),
                                       cmocka_unit_test(refused_with_ranks), cmocka_unit_test(without_a_disk)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_model, run_clean);
}

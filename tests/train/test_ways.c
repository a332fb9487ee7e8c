/* Every way of running a step gives the same bits: updates U, F and B, activations kept, spilled or recomputed block by
 * block, unit by unit or stage by stage, from the least memory to all of it. In this process, by the handlers and the
 * executor of training. And what update B does where it cannot go on. */
#include "kernels/kernels.h"
#include "planner/start.h"
#include "run.h"
#include "step/op.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 3, SEQ = 16, MAX_WAYS = 72 };

typedef struct scene {
    const char *model, *disk;
    tm_dtype dtype;
    uint32_t micro_batches, vocab;
    const char *learns; /* tensors whose names have it; the others are read where they lie. NULL: all do */
    uint64_t bad_step;  /* whose rate is absurd: the next has no finite gradient; 0: none */
    unsigned runs;
    char hash[33]; /* that all runs must have; "" before the first */
    double norm[STEPS];
} scene;

typedef struct trial {
    scene *s;
    tm_job *job;
    tm_plan *plan, *first, *drain;
    uint64_t step;
} trial;

/* Ids by a counter; a row less in the last micro-batch, so that not all are alike. */
static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    trial *t = ctx;
    (void)batch;
    uint32_t rows = mb && mb + 1 == t->s->micro_batches ? 1 : 2, n = rows * SEQ;
    memset(to->ids, 0, to->capacity * sizeof *to->ids);
    memset(to->mask, 0, to->capacity);
    for (uint32_t i = 0; i < to->capacity; i++) to->labels[i] = -100;
    for (uint32_t i = 0; i < n; i++) {
        to->ids[i] = (int32_t)((i * 7 + mb * 131 + t->step * 977 + 13) % t->s->vocab);
        to->labels[i] = i % SEQ == SEQ - 1 ? -100 : (int32_t)((i * 7 + mb * 131 + t->step * 977 + 20) % t->s->vocab);
        to->mask[i] = 1;
    }
    *out = (job_batch){.rows = rows, .seq = SEQ, .tokens = to->capacity, .mask_tokens = n, .label_tokens = n - rows};
    return TM_OK;
}

/* What update F brings with it. */
static tm_status compile_more(void *ctx, const tm_job *job, job_account *account, const pass_opts *way) {
    trial *t = ctx;
    tm_program *p;
    pass_opts first = *way;
    first.update = UPDATE_NONE;
    tm_plan_free(t->first);
    tm_plan_free(t->drain);
    t->first = t->drain = NULL;
    if (way->update != UPDATE_BEFORE) return TM_OK;
    TM_TRY(build_pass(&p, job, "first step", &first));
    tm_status rc = job_compile_in(job, account, p, true, &t->first);
    tm_program_free(p);
    if (rc != TM_OK) return rc;
    TM_TRY(build_drain(&p, job));
    rc = job_compile_in(job, account, p, true, &t->drain);
    tm_program_free(p);
    return rc;
}

static bool is_chosen(void *learns, const char *name) {
    return strstr(name, learns) != NULL;
}

static job_opts options(scene *s, uint64_t host_bytes) {
    static tm_model_roles roles;
    roles = (tm_model_roles){.learns = is_chosen, .ctx = (void *)(uintptr_t)s->learns};
    return (job_opts){.roles = s->learns ? &roles : NULL,
                      .model = s->model,
                      .dtype = s->dtype,
                      .optimizer = true,
                      .init_random = !s->learns,
                      .seed = 42,
                      .host_bytes = host_bytes,
                      .paths = &s->disk,
                      .n_paths = 1,
                      .slots = 1,
                      .allow_tmpfs = true};
}

static tm_status begin(trial *t, scene *s, const pass_opts *way, const job_opts *o, uint64_t *minimum) {
    *t = (trial){.s = s};
    TM_TRY(job_open(&t->job, o));
    t->job->sinks.fill = fill;
    t->job->sinks.fill_ctx = t;
    t->job->update_opts = (tm_optim_opts){
        .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .adam_w_mode = true, .bias_correction = true};
    planner_choice c;
    const planner_ask ask = {.job = t->job, .name = "step", .way = way, .n = 1, .more = compile_more, .ctx = t};
    tm_status rc = job_start(&ask, &c);
    if (minimum) *minimum = c.minimum_host_bytes;
    t->plan = c.plan;
    c.plan = NULL;
    planner_drop(&c);
    return rc;
}

static void end(trial *t) {
    job_close(t->job);
    tm_plan_free(t->plan);
    tm_plan_free(t->first);
    tm_plan_free(t->drain);
}

static tm_status step(trial *t, double norm[STEPS]) {
    t->job->step.learning_rate = t->s->bad_step == t->step + 1 ? 1e20 : 1e-3;
    t->job->step.number = (int64_t)t->step + 1;
    TM_TRY(job_run(t->job, t->first && t->step == 0 ? t->first : t->plan));
    norm[t->step++] = t->job->step.result.grad_norm;
    return TM_OK;
}

static void same(scene *s, const pass_opts *way, const job_opts *o) {
    trial t;
    char hash[33];
    double norm[STEPS];
    uint64_t minimum;
    if (begin(&t, s, way, o, &minimum) != TM_OK)
        fail_msg("update %s, %u quarters kept%s, %s-wise, %llu bytes%s: %s", pass_update_name(way), way->keep_quarters,
                 way->no_spill ? " in memory" : "", way->stage_wise ? "stage" : "unit",
                 (unsigned long long)o->host_bytes, o->cache_none ? ", no cache" : "", tm_error_get()->text);
    for (unsigned i = 0; i < STEPS; i++) RUN_EXPECT_STATUS(step(&t, norm));
    if (t.drain) RUN_EXPECT_STATUS(job_run(t.job, t.drain));
    assert_int_equal(t.job->step.nonfinite, 0);
    RUN_EXPECT_STATUS(job_state_hash(t.job, STEPS, hash));
    end(&t);
    if (!s->runs++) {
        memcpy(s->hash, hash, sizeof hash);
        memcpy(s->norm, norm, sizeof norm);
    }
    if (strcmp(s->hash, hash) != 0 || memcmp(s->norm, norm, sizeof norm) != 0)
        fail_msg("update %s, %u quarters kept%s, %s-wise, %llu bytes%s: hash %s norm %.17g, but %s norm %.17g before",
                 pass_update_name(way), way->keep_quarters, way->no_spill ? " in memory" : "",
                 way->stage_wise ? "stage" : "unit", (unsigned long long)o->host_bytes,
                 o->cache_none ? ", no cache" : "", hash, norm[0], s->hash, s->norm[0]);
}

static uint64_t least(scene *s, const pass_opts *way) {
    trial t;
    uint64_t minimum = 0;
    job_opts o = options(s, 1);
    assert_int_equal(begin(&t, s, way, &o, &minimum), TM_EBUDGET);
    tm_error_clear();
    end(&t);
    return minimum;
}

static uint32_t ways(const scene *s, pass_opts out[MAX_WAYS]) {
    uint32_t n = 0;
    for (pass_update u = UPDATE_AFTER; u <= UPDATE_WITHIN; u++)
        for (uint32_t keep = 0; keep <= PASS_KEEP_LOGITS; keep++)
            for (unsigned bits = 0; bits < 4; bits++)
                out[n++] = (pass_opts){.shape = {.micro_batches = s->micro_batches, .rows = 2, .seq = SEQ},
                                       .backward = true,
                                       .update = u,
                                       .park = u == UPDATE_BEFORE,
                                       .keep_quarters = keep,
                                       .no_spill = bits & 1,
                                       .stage_wise = bits >> 1};
    return n;
}

/* `every`: each so-manieth way, so that the larger models take no longer than they must. */
static void check(scene *s, uint32_t every) {
    pass_opts way[MAX_WAYS];
    uint32_t n = ways(s, way);
    RUN_EXPECT_STATUS(tm_kernels_init(1, TM_ELEM_F32));
    job_opts all = options(s, UINT64_MAX);
    same(s, &way[0], &all);
    for (uint32_t i = 0; i < n; i += every) {
        uint64_t at = least(s, &way[i]);
        job_opts o = options(s, at + (i % 3) * (512 << 10));
        o.cache_none = i % 2;
        if (i % 5 == 4) o.window_mib = 1;
        o.no_read_ahead = i % 7 == 3;
        o.no_write_behind = i % 7 == 5;
        o.persist_elements = i % 4 == 1 ? 4096 : 0;
        same(s, &way[i], &o);
    }
    print_message("  %u runs, one hash %s\n", s->runs, s->hash);
}

/* Tied, several tiles in a part, two parts of a vocabulary, six blocks. */
static void test_tied(void **state) {
    (void)state;
    scene s = {.disk = run_dir(), .dtype = TM_BF16, .micro_batches = 3, .vocab = 12000};
    s.model = run_path(s.disk, "model");
    run_random_model(s.model);
    check(&s, 7);
}

static void untied(tm_dtype dtype, uint32_t micro_batches, uint32_t every) {
    scene s = {.disk = run_dir(),
               .dtype = dtype,
               .micro_batches = micro_batches,
               .vocab = 256,
               .model = TM_TEST_FIXTURES "/arch_llama"};
    check(&s, every);
}

static void test_untied_bf16_1(void **state) {
    (void)state;
    untied(TM_BF16, 1, 3);
}
static void test_untied_bf16_4(void **state) {
    (void)state;
    untied(TM_BF16, 4, 1);
}
static void test_untied_bf16_16(void **state) {
    (void)state;
    untied(TM_BF16, 16, 5);
}
static void test_untied_fp32(void **state) {
    (void)state;
    untied(TM_F32, 4, 1);
}
/* What computes is written by the update and never read by it. */
static void test_untied_fp16(void **state) {
    (void)state;
    untied(TM_F16, 4, 2);
}

/* Most of it does not learn: in place where the file has what computes (fp32), else decoded once a visit. The first
 * block is below everything that learns; a mixed part; a tied one would be read by the head as well. */
static void frozen(tm_dtype dtype, uint32_t micro_batches, const char *learns, uint32_t every) {
    scene s = {.disk = run_dir(),
               .dtype = dtype,
               .micro_batches = micro_batches,
               .vocab = 256,
               .learns = learns,
               .model = TM_TEST_FIXTURES "/arch_llama"};
    check(&s, every);
}

static void test_frozen_in_place(void **state) {
    (void)state;
    frozen(TM_F32, 2, "layers.1.", 2);
}
static void test_frozen_decoded(void **state) {
    (void)state;
    frozen(TM_BF16, 3, "layers.1.mlp", 3);
}
static void test_frozen_mixed(void **state) {
    (void)state;
    frozen(TM_F32, 1, "input_layernorm", 3);
}
static void test_frozen_head(void **state) {
    (void)state;
    frozen(TM_BF16, 2, "lm_head", 5);
}

/* ---- update B cannot skip a step ------------------------------------------------------------------------- */

static tm_status run_into_it(pass_update update, bool *finite, char text[512]) {
    scene s = {.disk = run_dir(),
               .dtype = TM_BF16,
               .micro_batches = 2,
               .vocab = 256,
               .model = TM_TEST_FIXTURES "/arch_llama",
               .bad_step = 1};
    pass_opts way = {.shape = {.micro_batches = 2, .rows = 2, .seq = SEQ}, .backward = true, .update = update};
    job_opts o = options(&s, UINT64_MAX);
    double norm[STEPS];
    uint64_t minimum;
    trial t;
    RUN_EXPECT_STATUS(begin(&t, &s, &way, &o, &minimum));
    RUN_EXPECT_STATUS(step(&t, norm));
    tm_status rc = step(&t, norm);
    snprintf(text, 512, "%.500s", rc == TM_OK ? "" : tm_error_get()->text);
    tm_error_clear();
    *finite = t.job->step.result.finite;
    end(&t);
    return rc;
}

static void test_diverged(void **state) {
    (void)state;
    bool finite;
    char text[512];
    RUN_EXPECT_STATUS(tm_kernels_init(1, TM_ELEM_F32));
    assert_int_equal(run_into_it(UPDATE_AFTER, &finite, text), TM_OK); /* U skips it */
    assert_false(finite);
    assert_int_equal(run_into_it(UPDATE_WITHIN, &finite, text), TM_EIO);
    assert_non_null(strstr(text, "step 2"));
    assert_non_null(strstr(text, "last commit"));
}

/* One value of a tile is enough, and nothing of that tile is updated: its operation fails before. */
static void test_a_tile(void **state) {
    (void)state;
    scene s = {.disk = run_dir(), .dtype = TM_BF16, .model = TM_TEST_FIXTURES "/arch_llama"};
    job_opts o = options(&s, UINT64_MAX);
    tm_job *job;
    RUN_EXPECT_STATUS(tm_kernels_init(1, TM_ELEM_F32));
    RUN_EXPECT_STATUS(job_open(&job, &o));
    uint64_t n = job->part[0].elements;
    float *sum = tm_calloc(n, sizeof *sum);
    uint16_t *g = tm_calloc(n, sizeof *g);
    double partial[16] = {0};
    void *operand[] = {sum, g, partial};
    tm_op op = op_make(job, OP_FINISH, (op_args){.finish = {.within = true}});
    assert_true(sum && g && tm_norm_block_count(n) <= TM_COUNT(partial));
    static const struct {
        float value;
        tm_status status;
    } cases[] = {
        {1, TM_OK}, {3.38e38f, TM_OK}, {3.4e38f, TM_EIO} /* infinite as bf16 */, {INFINITY, TM_EIO}, {NAN, TM_EIO}};
    for (unsigned i = 0; i < TM_COUNT(cases); i++) {
        sum[n - 1] = cases[i].value;
        assert_int_equal(job_run_op(job, &op, operand), cases[i].status);
        tm_error_clear();
    }
    op = op_make(job, OP_FINISH,
                 (op_args){.finish = {.within = false}}); /* updates U and F: the norm tells, and the step is skipped */
    assert_int_equal(job_run_op(job, &op, operand), TM_OK);
    tm_free(sum);
    tm_free(g);
    job_close(job);
}

int main(void) {
    tm_log_set_level(TM_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_untied_bf16_1, run_clean),
        cmocka_unit_test_teardown(test_untied_bf16_4, run_clean),
        cmocka_unit_test_teardown(test_untied_bf16_16, run_clean),
        cmocka_unit_test_teardown(test_untied_fp32, run_clean),
        cmocka_unit_test_teardown(test_frozen_in_place, run_clean),
        cmocka_unit_test_teardown(test_frozen_decoded, run_clean),
        cmocka_unit_test_teardown(test_frozen_mixed, run_clean),
        cmocka_unit_test_teardown(test_frozen_head, run_clean),
        cmocka_unit_test_teardown(test_untied_fp16, run_clean),
        cmocka_unit_test_teardown(test_tied, run_clean),
        cmocka_unit_test_teardown(test_diverged, run_clean),
        cmocka_unit_test_teardown(test_a_tile, run_clean),
    };
    return cmocka_run_group_tests_name("train_ways", tests, NULL, NULL);
}

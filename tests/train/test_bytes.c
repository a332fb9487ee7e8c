/* What a step moves: 30 bytes a parameter with clipping (F), 26 without (B), whatever the number of micro-batches,
 * activations apart; less by 3 bytes for each of the first 2 bytes a parameter of memory, by 2 for each after that;
 * nothing when everything fits. By plans for the shapes of 134 M and 1.26 B parameters, from config.json alone; and by
 * training: what the program counted is what was planned (run.h checks that wherever tests train), and what the kernel
 * counted is what the program did. */
#include "kernels/kernels.h"
#include "planner/start.h"
#include "run.h"
#include "step/step.h"
#include "tests/support/skip.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct shape {
    const char *name;
    unsigned layers, hidden, intermediate, heads, vocabulary;
} shape;
static const shape tiny = {"7.2 M", 6, 256, 768, 4, 4096}, small = {"134 M", 12, 768, 2048, 12, 32000},
                   large = {"1.26 B", 22, 2048, 5632, 32, 32000};

static uint64_t block_of(const shape *s) {
    return 4ull * s->hidden * s->hidden + 3ull * s->hidden * s->intermediate + 2ull * s->hidden;
}

static uint64_t parameters_of(const shape *s) {
    return 2ull * s->vocabulary * s->hidden + s->layers * block_of(s) + s->hidden;
}

static const char *model_of(const char *dir, const shape *s) {
    const char *model = run_path(dir, "model");
    assert_int_equal(mkdir(model, 0700), 0);
    run_write(run_path(model, "config.json"),
              run_format("{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": %u,\n"
                         " \"intermediate_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": %u,\n"
                         " \"num_key_value_heads\": %u, \"vocab_size\": %u, \"max_position_embeddings\": 2048,\n"
                         " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false,\n"
                         " \"initializer_range\": 0.02}\n",
                         s->hidden, s->intermediate, s->layers, s->heads, s->heads, s->vocabulary));
    return model;
}

typedef struct moved {
    double kind[TM_KINDS]; /* read and written, bytes a parameter */
    double state;          /* all but activations */
    uint64_t minimum, parameters, slab;
} moved;

static bool recompute; /* activations: else the best way is taken */

static tm_status plan(const char *model, const char *disk, pass_update update, uint32_t micro_batches, bool none,
                      uint64_t host_bytes, moved *out) {
    tm_job *job;
    planner_choice c;
    uint32_t n = 0;
    pass_opts way[4];
    for (uint32_t i = 0; i < 4; i++)
        if (i < 2 || micro_batches > 1)
            way[n++] = (pass_opts){.shape = {.micro_batches = micro_batches, .rows = 1, .seq = 512},
                                   .backward = true,
                                   .update = update,
                                   .park = update == UPDATE_BEFORE,
                                   .keep_quarters = i % 2 && !recompute ? PASS_KEEP_ALL : 0,
                                   .stage_wise = i / 2};
    job_opts o = {.model = model,
                  .dtype = TM_BF16,
                  .optimizer = true,
                  .init_random = true,
                  .host_bytes = host_bytes,
                  .paths = &disk,
                  .n_paths = 1,
                  .cache_none = none,
                  .config_only = true,
                  .plan_only = true};
    RUN_EXPECT_STATUS(job_open(&job, &o));
    tm_status rc = job_start(&(planner_ask){.job = job, .name = "step", .way = way, .n = n}, &c);
    out->minimum = c.minimum_host_bytes;
    out->parameters = tm_model_parameters(job->model);
    out->state = 0;
    for (int k = 0; rc == TM_OK && k < TM_KINDS; k++) {
        const tm_plan_info *info = tm_plan_get_info(c.plan);
        out->kind[k] = (double)(info->read_bytes[k] + info->write_bytes[k]) / (double)out->parameters;
        if (k != TM_KIND_ACTIVATION) out->state += out->kind[k];
        out->slab = info->slab_bytes;
    }
    planner_drop(&c);
    job_close(job);
    return rc;
}

static uint64_t least(const char *model, const char *disk, pass_update update, uint32_t micro_batches) {
    moved m;
    assert_int_equal(plan(model, disk, update, micro_batches, true, 1, &m), TM_EBUDGET);
    tm_error_clear();
    return m.minimum;
}

static void show(const char *what, const moved *m) {
    print_message("  %s: %.3f =", what, m->state);
    for (int k = 0; k < TM_KINDS; k++)
        if (m->kind[k] > 0) print_message(" %s %.3f", tm_kind_name((tm_kind)k), m->kind[k]);
    print_message("\n");
}

/* Weights of two blocks more than the least, nothing cached; pages of 64 KiB and whole frames take under 1%. */
static void check_ceiling(const shape *s, uint32_t micro_batches) {
    const char *dir = run_dir(), *model = model_of(dir, s);
    static const struct {
        pass_update update;
        double ceiling;
    } of[] = {{UPDATE_AFTER, 32}, {UPDATE_BEFORE, 30}, {UPDATE_WITHIN, 26}};
    uint64_t unit = 2 * block_of(s);
    for (unsigned i = 0; i < TM_COUNT(of); i++) {
        moved m;
        uint64_t at = least(model, dir, of[i].update, micro_batches) + 2 * unit;
        RUN_EXPECT_STATUS(plan(model, dir, of[i].update, micro_batches, true, at, &m));
        show(run_format("%s, update %s, %u micro-batches, %.1f MiB", s->name,
                        pass_update_name(&(pass_opts){.update = of[i].update}), micro_batches, (double)at / 1048576),
             &m);
        /* the last part of the head stays between its forward and its backward */
        if (m.state > of[i].ceiling * 1.01 || m.state < of[i].ceiling - .5)
            fail_msg("%.3f bytes a parameter, not %.0f", m.state, of[i].ceiling);
    }
}

static void test_small(void **state) {
    (void)state;
    static const uint32_t micro_batches[] = {1, 4, 16};
    RUN_EXPECT_STATUS(tm_kernels_init(0, TM_ELEM_F32));
    for (unsigned i = 0; i < TM_COUNT(micro_batches); i++) check_ceiling(&small, micro_batches[i]);
}
static void test_large(void **state) {
    (void)state;
    RUN_EXPECT_STATUS(tm_kernels_init(0, TM_ELEM_F32));
    check_ceiling(&large, 1);
    check_ceiling(&large, 4);
    if (TEST_LONG("16 micro-batches of the 1.26 B shape")) check_ceiling(&large, 16);
}

/* Memory instead of traffic, by the large shape, where the look-ahead (at most 96 MiB here) is small beside a byte a
 * parameter: 30 bytes with nothing kept; 3 less for each byte a parameter of memory while weights are kept, 2 after
 * that. `slack` is memory that is not kept state: the look-ahead, and
 * frames that do not pack without gaps: a tenth of a byte, for whole matrices come and go together, and 2%. */
static void test_slopes(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = model_of(dir, &large);
    moved m;
    RUN_EXPECT_STATUS(tm_kernels_init(0, TM_ELEM_F32));
    recompute = true;
    uint64_t at_least = least(model, dir, UPDATE_BEFORE, 1);
    RUN_EXPECT_STATUS(plan(model, dir, UPDATE_BEFORE, 1, true, at_least, &m));
    double before = 31, params = (double)m.parameters, least_moved = m.state + m.kind[TM_KIND_ACTIVATION];
    for (unsigned i = 0; i <= 15; i++) {
        uint64_t budget = at_least + (uint64_t)((double)i * params);
        RUN_EXPECT_STATUS(plan(model, dir, UPDATE_BEFORE, 1, false, budget, &m));
        double slack = 96 * 1048576.0 / params + .1 + .02 * i, kept = fmax(0, i - slack);
        double moves = m.state + m.kind[TM_KIND_ACTIVATION],
               most = least_moved - 3 * fmin(kept, 2) - 2 * fmax(0, kept - 2);
        show(run_format("least + %2u bytes a parameter, at most %.3f", i, fmax(most, 0)), &m);
        if (moves > fmax(most, 0) + .01) fail_msg("%.3f bytes a parameter, more than %.3f", moves, fmax(most, 0));
        if (moves > before + .01) fail_msg("%u bytes a parameter more move more: %.3f after %.3f", i, moves, before);
        before = moves;
    }
    assert_true(before == 0);
}

/* ---- counted -------------------------------------------------------------------------------------------------- */

/* Brought from and to storage by the processes that were waited for. */
static double kernels_bytes(void) {
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &u), 0);
    return 512.0 * ((double)u.ru_inblock + (double)u.ru_oublock);
}

/* What goes through the page cache the kernel counts otherwise. */
static bool direct_io(const char *dir) {
    int fd = open(run_path(dir, "probe"), O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Trained twice, with two steps more the second time: what import, export and commit take is in both. */
static void check_counted(const shape *s, const char *dir, const char *update, const char *clip, double ceiling) {
    const char *config = run_path(dir, "config.json"), *output = run_path(dir, "out"), *none = "memory.cache=none";
    const run_opts opts = {.timeout_s = 600};
    uint64_t least = run_train_minimum(config, output, SETS(update, clip, none, "max_steps=3"));
    const char *budget = run_format("memory.host_budget=%llu", (unsigned long long)(least + 4 * block_of(s)));
    double began = kernels_bytes(), n = (double)parameters_of(s);
    (void)run_train(config, output, 0, &opts, SETS(update, clip, none, budget, "max_steps=3"));
    run_remove(output);
    double three_steps = kernels_bytes() - began;
    train_log log = run_train(config, output, 0, &opts, SETS(update, clip, none, budget, "max_steps=5"));
    run_remove(output);
    double by_kernel = (kernels_bytes() - began - 2 * three_steps) / 2 / n;
    double counted = (double)(log.step[2].read_bytes + log.step[2].write_bytes) / n;
    print_message("  %s, %s: %.3f bytes a parameter counted, %.3f by the kernel\n", s->name, update, counted,
                  by_kernel);
    if (!direct_io(dir))
        TEST_SKIP_PART("the kernel's count: O_DIRECT is not to be had in %s", dir);
    else if (fabs(by_kernel - counted) > 0.01 * counted)
        fail_msg("%.3f counted, %.3f by the kernel", counted, by_kernel);
    /* pages of 64 KiB, whole frames and activations take under 2% */
    if (counted > ceiling * 1.02 || counted < ceiling - .5) fail_msg("%.3f bytes, not %.0f", counted, ceiling);
}

static void test_counted(void **state) {
    (void)state;
    const shape *s = TEST_LONG("what training the 134 M shape moves") ? &small : &tiny;
    const char *dir = run_dir(), *model = model_of(dir, s);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(run_path(dir, "rows.safetensors"), golden, 0, 6, 16, true);
    tm_st_close(golden);
    run_write(run_path(dir, "config.json"),
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"precision\": \"bf16\", \"commit_steps\": 0,\n"
                         " \"data\": {\"train\": \"%s/rows.safetensors\", \"seq_len\": 16}}\n",
                         model, dir));
    check_counted(s, dir, "memory.update=F", "max_grad_norm=1", 30);
    check_counted(s, dir, "memory.update=B", "max_grad_norm=0", 26);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    tm_log_set_level(TM_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_small, run_clean),
        cmocka_unit_test_teardown(test_large, run_clean),
        cmocka_unit_test_teardown(test_slopes, run_clean),
        cmocka_unit_test_teardown(test_counted, run_clean),
    };
    return cmocka_run_group_tests_name("train_bytes", tests, NULL, NULL);
}

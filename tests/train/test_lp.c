/* How far plans are from the optimum: the training step of the 1.26 B shape (22 blocks of 2,048 and 5,632, 32 heads,
 * vocabulary 32,000, untied; 8 micro-batches of 512 tokens), compiled at random budgets between its minimum and
 * everything resident, proved, run under the simulated clock, and held against two linear programs (lp_solve.h) that
 * know nothing of the planner.
 *
 * Bytes may be 3% more than the least, seconds 10% more. A little is allowed on top where the least goes to 0: an
 * optimum of fractions reads nothing ahead, a plan has to, and what its frames take in the meantime is not resident;
 * each byte of that costs at most three a step (forward hi, backward hi, written hi). So much is granted for 64 MiB,
 * two tiles of each kind beside the largest part, and 1/4 s. Seconds are judged from twice the minimum on: at the
 * minimum there is no room to read ahead, and the linear program, whose frames are fractions, does not see that (1.3 is
 * what it comes to).
 *
 * TIDEMILL_LP_BUDGETS=N for so many (1000 with TIDEMILL_LONG=1: most of an hour), TIDEMILL_LP_THOROUGH=1 bounds
 * both ways (ten times as long), TIDEMILL_LP_SEED, TIDEMILL_LP_REPORT=FILE for every budget. */
#include "lp_facts.h"
#include "lp_solve.h"
#include "planner/start.h"
#include "step/op.h"

#include "kernels/kernels.h"
#include "tests/support/skip.h"
#include "tests/support/support.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { BUDGETS = 8, COARSE = 60, MICRO_BATCHES = 8, SEQ = 512 };
static const double BYTES_MORE = 1.03, SECONDS_MORE = 1.10, BYTES_SLACK_MIB = 3 * 64, SECONDS_SLACK = 0.25;
static const double MIB = 1 << 20;

static const char model_dir[] = "test_lp.model";

/* ---- ways of running the step, and machines to run it on ----------------------------------------------------- */

/* Compute that is slow, about as fast as, and much faster than the disk. */
static const double rates[] = {4e11, 1.2e12, 1e13};
static const pass_update updates[] = {UPDATE_BEFORE, UPDATE_WITHIN, UPDATE_AFTER};
enum { RATES = TM_COUNT(rates), UPDATES = TM_COUNT(updates) };

enum { WAYS = 2 };

/* Everything that does not depend on the budget. */
typedef struct scene {
    tm_job *job; /* with the state as the way has it */
    const char *update;
    double flops;
    tm_machine machine;
    tm_program *program[WAYS]; /* tiles updated at once; spread between micro-batches */
    uint64_t least, all;
    lp_facts facts[WAYS];
    lp_problem *bytes[WAYS], *seconds[WAYS];
} scene;

/* Null kernels: seconds at nominal rates. */
static double cost(void *ctx, const tm_op *op) {
    const scene *s = ctx;
    double elements = 0;
    switch (op->code) {
    case OP_FORWARD:
    case OP_BACKWARD: {
        const tm_stage *stage = &tm_model_unit(s->job->model, op->arg[0])->stage[op->arg[1]];
        for (uint32_t i = 0; i < stage->n_parts; i++) elements += (double)s->job->part[stage->part[i]].elements;
        return 5e-5 + elements * 2 * SEQ * (op->code == OP_BACKWARD ? 2 : 1) / s->flops;
    }
    case OP_UPDATE:
    case OP_FINISH:
        elements = (double)own_tile(s->job, op->arg[0], op->arg[1]).n;
        return elements * (op->code == OP_UPDATE ? 28 : 6) / 40e9;
    default:
        return 1e-5;
    }
}

static pass_opts way_of(pass_update update) {
    return (pass_opts){.shape = {.micro_batches = MICRO_BATCHES, .rows = 1, .seq = SEQ},
                       .backward = true,
                       .update = update,
                       .park = update == UPDATE_BEFORE,
                       .keep_quarters = PASS_KEEP_ALL};
}

/* The state's layout follows the way that was compiled last, so each scene has a job of its own. */
static void scene_open(scene *s, pass_update update, double flops) {
    static const char *const paths[] = {"."};
    job_opts o = {.model = model_dir,
                  .dtype = TM_BF16,
                  .optimizer = true,
                  .init_random = true,
                  .host_bytes = UINT64_MAX,
                  .paths = paths,
                  .n_paths = 1,
                  .config_only = true,
                  .plan_only = true};
    pass_opts way = way_of(update);
    planner_choice c;
    *s = (scene){.flops = flops, .update = pass_update_name(&way)};
    s->machine = (tm_machine){.name = "test",
                              .nodes = 1,
                              .ranks_per_node = 1,
                              .cores = 2,
                              .disk = {.read_bps = 1.5e9, .write_bps = 2.5e9, .duplex = 0.2, .latency = 1e-4}};
    if (job_open(&s->job, &o) != TM_OK ||
        job_start(&(planner_ask){.job = s->job, .name = "step", .way = &way, .n = 1}, &c) != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    s->all = tm_plan_get_info(c.plan)->slab_bytes;
    planner_drop(&c);
    tm_plan_opts po = {.cache = true, .spill = true};
    for (int w = 0; w < WAYS; w++) {
        way.spread = w > 0;
        assert_int_equal(build_pass(&s->program[w], s->job, "step", &way), TM_OK);
        if (w == 0) assert_int_equal(tm_plan_minimum(s->job->layout, s->program[w], &po, &s->least), TM_OK);
        lp_facts_make(&s->facts[w], s->job, s->program[w], true, COARSE, cost, s);
        s->bytes[w] = lp_problem_make(&s->facts[w], NULL, true);
        s->seconds[w] = lp_problem_make(&s->facts[w], &s->machine, true);
    }
}

static void scene_close(scene *s) {
    if (!s->job) return;
    for (int w = 0; w < WAYS; w++) {
        lp_problem_free(s->bytes[w]);
        lp_problem_free(s->seconds[w]);
        lp_facts_free(&s->facts[w]);
        tm_program_free(s->program[w]);
    }
    job_close(s->job);
}

/* ---- one budget ---------------------------------------------------------------------------------------------- */

typedef struct outcome {
    const scene *scene;
    uint64_t budget;
    double bytes, least_bytes, seconds, least_seconds; /* MiB, s */
    double moved[TM_KINDS], least_moved[TM_KINDS];
    double resident, window, compute;
    bool bad;
} outcome;

/* NULL: this way does not fit. */
static tm_plan *compile(scene *s, int way, uint64_t budget) {
    tm_plan *plan;
    tm_plan_opts po = {.slab_bytes = budget,
                       .choose_residency = true,
                       .cache = true,
                       .spill = true,
                       .cost = cost,
                       .cost_ctx = s,
                       .machine = &s->machine};
    tm_status rc = tm_plan_compile(&plan, s->job->layout, s->program[way], &po, NULL);
    if (rc == TM_EBUDGET && way > 0) {
        tm_error_clear();
        return NULL;
    }
    if (rc != TM_OK || tm_plan_verify(plan) != TM_OK) fail_msg("%s", tm_error_get()->text);
    assert_true(tm_plan_get_info(plan)->slab_bytes <= budget);
    return plan;
}

static double simulated(scene *s, const tm_plan *plan) {
    tm_link *link;
    tm_sim_result r;
    if (tm_link_create(&link, plan, plan) != TM_OK || tm_link_verify(link) != TM_OK ||
        tm_simulate(&r, plan,
                    &(tm_sim_opts){.machine = &s->machine, .cost = cost, .ctx = s, .runs = 3, .link = link}) != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    tm_link_free(link);
    return r.seconds;
}

/* The way that is predicted to be faster, as the planner chooses; the bound is the lower of both. */
static outcome try_budget(scene *s, uint64_t budget) {
    bool thorough = getenv("TIDEMILL_LP_THOROUGH") != NULL;
    outcome o = {.scene = s, .budget = budget, .seconds = INFINITY, .least_seconds = INFINITY, .least_bytes = INFINITY};
    for (int w = 0; w < WAYS; w++) {
        double least;
        tm_plan *plan = compile(s, w, budget);
        if (!plan) continue;
        const tm_plan_info *info = tm_plan_get_info(plan);
        double seconds = simulated(s, plan);
        if (seconds < o.seconds) {
            o.seconds = seconds;
            o.bytes = 0;
            for (int k = 0; k < TM_KINDS; k++) {
                o.moved[k] = (double)(info->read_bytes[k] + info->write_bytes[k]) / MIB;
                o.bytes += o.moved[k];
            }
            o.resident = (double)info->resident_bytes / MIB;
            o.window = (double)info->window_bytes / MIB;
        }
        tm_plan_free(plan);
        if (w > 0 && !thorough)
            continue; /* its linear program takes ten times as long; the first is a bound for most */
        assert_true(lp_problem_solve(s->bytes[w], budget, &least));
        if (least < o.least_bytes) {
            o.least_bytes = least;
            lp_problem_moved(s->bytes[w], o.least_moved);
        }
        assert_true(lp_problem_solve(s->seconds[w], budget, &least));
        o.least_seconds = fmin(o.least_seconds, least);
    }
    for (uint32_t i = 0; i < s->facts[0].n_segments; i++) o.compute += s->facts[0].segment[i].seconds;
    /* that these are bounds */
    if (thorough && o.bytes < o.least_bytes * (1 - 1e-6) - 1e-3)
        fail_msg("%g MiB moved, at least %g", o.bytes, o.least_bytes);
    if (thorough && o.seconds < o.least_seconds * (1 - 1e-6))
        fail_msg("%g s simulated, at least %g", o.seconds, o.least_seconds);
    o.bad = o.bytes > o.least_bytes * BYTES_MORE + BYTES_SLACK_MIB ||
            (budget > 2 * s->least && o.seconds > o.least_seconds * SECONDS_MORE + SECONDS_SLACK);
    return o;
}

/* ---- the report ---------------------------------------------------------------------------------------------- */

static double bytes_ratio(const outcome *o) {
    return (o->bytes + 1) / (o->least_bytes + 1);
}
static double seconds_ratio(const outcome *o) {
    return o->seconds / o->least_seconds;
}
static double bytes_over(const outcome *o) {
    return (o->bytes - BYTES_SLACK_MIB) / (o->least_bytes + 1);
}

static void print_outcome(FILE *f, const outcome *o) {
    const scene *s = o->scene;
    double part = (double)(o->budget - s->least) / (double)(s->all - s->least);
    fprintf(f, "%s at %4.1f TFLOP/s, slab %8.1f MiB (%5.1f%%): ", s->update, s->flops * 1e-12, (double)o->budget / MIB,
            100 * part);
    fprintf(f, "%8.1f of %8.1f MiB (%.3f), %7.3f of %7.3f s (%.3f); ", o->bytes, o->least_bytes, bytes_ratio(o),
            o->seconds, o->least_seconds, seconds_ratio(o));
    fprintf(f, "compute %.3f s, resident %.0f MiB, window %.0f%s\n", o->compute, o->resident, o->window,
            o->bad ? "  <- too much" : "");
}

static void print_kinds(FILE *f, const outcome *o) {
    fprintf(f, "    MiB planned/least:");
    for (int k = 0; k < TM_KINDS; k++)
        if (o->moved[k] > 0 || o->least_moved[k] > 0)
            fprintf(f, "  %s %.0f/%.0f", tm_kind_name((tm_kind)k), o->moved[k], o->least_moved[k]);
    fprintf(f, "\n");
}

static double (*sort_key)(const outcome *);
static int by_key(const void *a, const void *b) {
    double x = sort_key(a), y = sort_key(b);
    return x < y ? -1 : x > y;
}

static void print_worst(FILE *f, outcome *o, unsigned n, const char *what, double (*key)(const outcome *)) {
    sort_key = key;
    qsort(o, n, sizeof *o, by_key);
    fprintf(f, "%s over the least: median %.3f, 90%% %.3f, worst %.3f, at:\n", what, key(&o[n / 2]),
            key(&o[n * 9 / 10]), key(&o[n - 1]));
    for (unsigned i = 0; i < 5 && i < n; i++) {
        print_outcome(f, &o[n - 1 - i]);
        print_kinds(f, &o[n - 1 - i]);
    }
}

static void report(outcome *o, unsigned n) {
    const char *path = getenv("TIDEMILL_LP_REPORT");
    FILE *f = path ? fopen(path, "w") : NULL;
    unsigned bad = 0;
    for (unsigned i = 0; i < n; i++) bad += o[i].bad;
    if (f) {
        fprintf(f, "%u budgets, %u with too much\n", n, bad);
        print_worst(f, o, n, "bytes", bytes_ratio);
        print_worst(f, o, n, "bytes, less what is granted,", bytes_over);
        print_worst(f, o, n, "seconds", seconds_ratio);
        fprintf(f, "all, by seconds:\n");
        for (unsigned i = 0; i < n; i++) print_outcome(f, &o[i]);
        fclose(f);
    }
    print_worst(stderr, o, n, "bytes, less what is granted,", bytes_over);
    print_worst(stderr, o, n, "seconds", seconds_ratio);
    if (bad) fail_msg("%u of %u budgets move too much or take too long", bad, n);
}

/* ---- the test ------------------------------------------------------------------------------------------------ */

static uint64_t seed = 1;
static double draw(void) {
    uint32_t r[4];
    tm_philox(seed, 7, 0, r);
    seed++;
    return (double)r[0] / 4294967296.0;
}

static void write_model(void) {
    char path[64];
    if (mkdir(model_dir, 0700) != 0 && errno != EEXIST) fail_msg("%s: %s", model_dir, strerror(errno));
    snprintf(path, sizeof path, "%s/config.json", model_dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(
        "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 2048,\n"
        " \"intermediate_size\": 5632, \"num_hidden_layers\": 22, \"num_attention_heads\": 32, \"vocab_size\": 32000,\n"
        " \"num_key_value_heads\": 32, \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-05,\n"
        " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false}\n",
        f);
    assert_int_equal(fclose(f), 0);
}

static void remove_model(void) {
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", model_dir);
    unlink(path);
    rmdir(model_dir);
}

/* Budgets are denser where they are small: there plans are hardest. */
static void random_budgets_are_near_the_optimum(void **state) {
    static scene scenes[UPDATES][RATES];
    (void)state;
    unsigned n = (unsigned)test_amount("TIDEMILL_LP_BUDGETS", BUDGETS, 1000);
    outcome *o = calloc(n, sizeof *o);
    assert_non_null(o);
    seed = (unsigned)test_option("TIDEMILL_LP_SEED", 1) * 1000003ull;
    write_model();
    for (unsigned i = 0; i < n; i++) {
        unsigned u = n > BUDGETS ? (unsigned)(draw() * UPDATES) : i % 2,
                 r = n > BUDGETS ? (unsigned)(draw() * RATES) : 1 + i / 2 % 2;
        scene *s = &scenes[u][r];
        if (!s->job) scene_open(s, updates[u], rates[r]);
        double at = draw();
        o[i] = try_budget(s, s->least + (uint64_t)(at * at * (double)(s->all - s->least)));
    }
    report(o, n);
    for (unsigned u = 0; u < UPDATES; u++)
        for (unsigned r = 0; r < RATES; r++) scene_close(&scenes[u][r]);
    free(o);
    remove_model();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_budgets_are_near_the_optimum)};
    if (tm_kernels_init(0, TM_ELEM_F32) != TM_OK) return 1;
    lp_quiet();
    return cmocka_run_group_tests_name("lp", tests, NULL, NULL);
}

/* `tidemill plan --advise` for machines that are not there: every row is what `plan` says of it, the recommendation
 * follows from the rows, and it turns where memory or the network does. */
#include "run.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define EXAMPLES TM_TEST_FIXTURES "/../../examples"

typedef struct scene {
    const char *dir, *config;
} scene;

/* 21 M parameters, untied: 0.30 GB of state in bf16. Nothing but config.json is there. */
static scene open_scene(void) {
    scene s = {.dir = run_dir()};
    const char *model = run_path(s.dir, "model");
    run_imagined_model(model, 4);
    s.config = run_path(s.dir, "config.json");
    run_write(s.config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"precision\": \"bf16\",\n"
                                   " \"data\": {\"seq_len\": 128}, \"max_steps\": 3,\n"
                                   " \"output_dir\": \"%s/out\", \"zero_optimization\": {\"stage\": 2}}\n",
                                   model, s.dir));
    return s;
}

static const char *hardware(const scene *s, unsigned nodes, unsigned ranks, const char *memory, double network) {
    const char *path = run_path(s->dir, "hardware.json");
    run_write(path,
              run_format("{\"name\": \"imagined\", \"nodes\": %u, \"ranks_per_node\": %u, \"host_memory\": \"%s\",\n"
                         " \"cpu\": {\"cores\": 16, \"flops_fp32\": 1e12, \"memory_bytes_per_second\": 5e10},\n"
                         " \"disk\": {\"read_bytes_per_second\": 3e9, \"write_bytes_per_second\": 2e9},\n"
                         " \"link\": {\"bytes_per_second\": 5e9}, \"network\": {\"bytes_per_second\": %g}}\n",
                         nodes, ranks, memory, network));
    return path;
}

static const tm_json *ask(const scene *s, int status, const char *file, const char *const *more, tm_json_doc **doc) {
    const char *arguments[16] = {"plan", s->config, "--json", "--hardware", file};
    unsigned n = 5;
    for (; *more && n < 15; more++) arguments[n++] = *more;
    run_result r = run_argv(&(run_opts){.timeout_s = 100}, arguments);
    if (r.status != status) fail_msg("exit %d, not %d: %s", r.status, status, r.err);
    RUN_EXPECT_STATUS(tm_json_parse(doc, r.out, r.out_len, "plan --json", 0, 0));
    run_free(&r);
    return tm_json_root(*doc);
}

static double number(const tm_json *o, const char *key) {
    const tm_json *f = tm_json_get(o, key);
    if (!f || f->type != TM_JSON_NUMBER) fail_msg("no number \"%s\"", key);
    return f->number;
}

static const char *text(const tm_json *o, const char *key) {
    const tm_json *f = tm_json_get(o, key);
    if (!f || f->type != TM_JSON_STRING) fail_msg("no text \"%s\"", key);
    return f->text;
}

static const tm_json *row(const tm_json *o, const char *strategy, const char *param, const char *optimizer) {
    for (const tm_json *r = tm_json_get(o, "rows")->child; r; r = r->next)
        if (!strcmp(text(r, "strategy"), strategy) && !strcmp(text(r, "offload_param"), param) &&
            !strcmp(text(r, "offload_optimizer"), optimizer))
            return r;
    fail_msg("no row for %s, %s, %s", strategy, param, optimizer);
    return NULL;
}

static const tm_json *recommended(const tm_json *o) {
    const tm_json *r = tm_json_get(o, "recommended");
    assert_true(strlen(text(r, "reason")) > 20);
    return r;
}

/* A row of zero3 in files is what `plan` says with the same settings. */
static void rows_are_plans(void **state) {
    (void)state;
    scene s = open_scene();
    const char *file = hardware(&s, 2, 2, "4GiB", 1e8);
    tm_json_doc *doc, *one;
    const tm_json *o = ask(&s, 0, file, SETS("--advise"), &doc);
    const tm_json *r = row(o, "zero3", "nvme", "nvme");
    const tm_json *p = ask(&s, 0, file,
                           SETS("--set", "zero_optimization.stage=3", "--set", "offload_param_device=nvme", "--set",
                                "offload_optimizer_device=nvme"),
                           &one);
    static const char *const keys[] = {"host_peak_bytes", "minimum_host_bytes", "seconds_per_step",
                                       "link_bytes_per_step"};
    for (size_t i = 0; i < TM_COUNT(keys); i++)
        if (number(r, keys[i]) != number(p, keys[i]))
            fail_msg("%s: %g, plan %g", keys[i], number(r, keys[i]), number(p, keys[i]));
    assert_true(number(r, "nic_bytes_per_step") == 2 * number(p, "network_bytes_per_step"));
    assert_int_equal(tm_json_get(o, "rows")->count, 18); /* 6 strategies in 3 places */
    tm_json_free(doc);
    tm_json_free(one);
}

/* Bytes of a slow link, a node, of psi parameters of matrices: (nodes - 1) / nodes of 4 for sums and of 2 a gather. */
static void links_carry_what_theory_says(void **state) {
    (void)state;
    scene s = open_scene();
    tm_json_doc *doc;
    const tm_json *o = ask(&s, 0, hardware(&s, 2, 2, "4GiB", 1e8), SETS("--advise"), &doc);
    double h = 512, embed = 8192 * h, psi = 2 * embed + 4 * (4 * h * h + 3 * h * 1408);
    const struct {
        const char *strategy;
        double network, link; /* bytes a parameter; zero3 gathers its embedding once */
    } want[] = {{"ddp", 6 * psi / 2, 6 * psi / 4},
                {"zero1", 6 * psi / 2, 6 * psi / 4},
                {"zero3", (8 * psi - 2 * embed) / 2, (8 * psi - 2 * embed) / 4},
                {"hsdp", 6 * psi / 2, 0},
                {"hpz", 6 * psi / 2, 0}};
    for (size_t i = 0; i < TM_COUNT(want); i++) {
        const tm_json *r = row(o, want[i].strategy, "none", "none");
        double nic = number(r, "nic_bytes_per_step");
        if (nic < 0.99 * want[i].network || nic > 1.01 * want[i].network)
            fail_msg("%s: a node sends %.0f, theory %.0f", want[i].strategy, nic, want[i].network);
    }
    tm_json_free(doc);
}

/* Memory for everything: ddp. None for the whole model on each rank and a slow network: what spares it. Next to no
 * memory: files. Nothing at all: exit 2. */
static void advice_follows_the_machine(void **state) {
    (void)state;
    scene s = open_scene();
    tm_json_doc *doc;
    const tm_json *o = ask(&s, 0, hardware(&s, 1, 4, "16GiB", 1e9),
                           SETS("--advise", "--set", "data.seq_len=512", "--set", "per_device_train_batch_size=4"),
                           &doc),
                  *r = recommended(o);
    assert_string_equal(text(tm_json_get(r, "set"), "strategy"), "ddp");
    assert_string_equal(text(tm_json_get(r, "set"), "offload_param_device"), "none");
    tm_json_free(doc);

    /* what it says can be set, beside the stage 2 of the configuration; not beside an fsdp block, and that is said */
    const char *file = hardware(&s, 1, 4, "16GiB", 1e9), *sets[10];
    unsigned n = 0;
    o = ask(&s, 0, file, SETS("--advise"), &doc);
    r = recommended(o);
    assert_string_equal(text(r, "conflict"), "");
    for (const tm_json *k = tm_json_get(r, "set")->child; k; k = k->next) {
        sets[n++] = "--set";
        sets[n++] = k->is_integer ? run_format("%s=%lld", k->key, (long long)k->integer)
                                  : run_format("%s=%s", k->key, text(tm_json_get(r, "set"), k->key));
    }
    sets[n] = NULL;
    assert_int_equal(n, 8);
    tm_json_free(doc);
    o = ask(&s, 0, file, sets, &doc);
    tm_json_free(doc);
    o = ask(&s, 0, file, SETS("--advise", "--set", "fsdp=shard_grad_op"), &doc);
    assert_non_null(strstr(text(recommended(o), "conflict"), "fsdp \"shard_grad_op\""));
    tm_json_free(doc);

    o = ask(&s, 0, hardware(&s, 4, 4, "1600MB", 2e7), SETS("--advise", "--set", "memory.host_budget=340MiB"), &doc);
    assert_false(tm_json_get(row(o, "ddp", "none", "none"), "fits")->boolean);
    r = recommended(o);
    const char *strategy = text(tm_json_get(r, "set"), "strategy");
    double best = number(tm_json_get(o, "rows")->child, "seconds_per_step");
    for (const tm_json *x = tm_json_get(o, "rows")->child; x; x = x->next)
        if (tm_json_get(x, "fits")->boolean && (best == 0 || number(x, "seconds_per_step") < best))
            best = number(x, "seconds_per_step");
    const tm_json *chosen = row(o, strategy, text(tm_json_get(r, "set"), "offload_param_device"),
                                text(tm_json_get(r, "set"), "offload_optimizer_device"));
    assert_true(number(chosen, "seconds_per_step") <= 1.05 * best);
    tm_json_free(doc);

    o = ask(&s, 0, hardware(&s, 1, 1, "4GiB", 1e9), SETS("--advise", "--set", "memory.host_budget=200MiB"), &doc);
    r = recommended(o);
    assert_int_equal(tm_json_get(o, "rows")->count, 3);
    assert_string_equal(text(tm_json_get(r, "set"), "offload_optimizer_device"), "nvme");
    assert_non_null(strstr(text(r, "reason"), "has no room for all state"));
    tm_json_free(doc);

    o = ask(&s, 2, hardware(&s, 2, 2, "4GiB", 1e9), SETS("--advise", "--set", "memory.host_budget=30MiB"), &doc);
    assert_int_equal(tm_json_get(o, "recommended")->type, TM_JSON_NULL);
    tm_json_free(doc);
}

/* GPUs: six places, and stages 1 and 2 keep their weights on the device. */
static void devices_have_more_places(void **state) {
    (void)state;
    scene s = open_scene();
    tm_json_doc *doc;
    const char *file = TM_TEST_FIXTURES "/../../hardware/8x80gb.json";
    const tm_json *o = ask(&s, 0, file, SETS("--advise", "--set-hardware", "nodes=8"), &doc);
    assert_int_equal(number(o, "ranks"), 64);
    assert_int_equal(tm_json_get(o, "rows")->count, 4 * 6 + 2 * 3);
    const tm_json *zero3 = row(o, "zero3", "none", "none"), *hpz = row(o, "hpz", "none", "none");
    assert_true(number(hpz, "nic_bytes_per_step") < 0.85 * number(zero3, "nic_bytes_per_step"));
    assert_true(number(row(o, "ddp", "none", "none"), "device_peak_bytes") > number(zero3, "device_peak_bytes"));
    (void)recommended(o);
    tm_json_free(doc);
}

/* Who asks for the CPU is told about the CPU, whatever GPUs the machine has. */
static void the_cpu_can_be_asked_for(void **state) {
    (void)state;
    scene s = open_scene();
    tm_json_doc *doc;
    const char *file = TM_TEST_FIXTURES "/../../hardware/2x24gb.json";
    const tm_json *o = ask(&s, 0, file, SETS("--set", "zero_optimization.stage=3"), &doc);
    assert_true(number(o, "device_peak_bytes") > 0);
    tm_json_free(doc);
    o = ask(&s, 0, file, SETS("--set", "zero_optimization.stage=3", "--set", "memory.device=cpu"), &doc);
    assert_true(number(o, "device_peak_bytes") == 0 && number(o, "ranks") == 2);
    tm_json_free(doc);
}

/* State lies in memory, not on it. And what it refuses says how much of the host's memory the job would take. */
static void an_arena_is_no_gpu(void **state) {
    (void)state;
    scene s = open_scene();
    tm_json_doc *doc;
    const char *file = hardware(&s, 1, 1, "8GiB", 1e9), *on = "memory.device=cpu-arena";
    const tm_json *o = ask(&s, 0, file, SETS("--advise", "--set", on, "--set", "memory.device_budget=256MiB"), &doc);
    assert_non_null(strstr(text(recommended(o), "reason"), "all state fits memory, from where the device's is filled"));
    tm_json_free(doc);
    o = ask(&s, 2, file, SETS("--set", on, "--set", "memory.device_budget=1MiB"), &doc);
    assert_string_equal(text(o, "limit"), "device");
    double refused = number(o, "minimum_host_bytes");
    const char *enough =
        run_format("memory.device_budget=%.0f", number(tm_json_get(o, "smallest_change"), "memory.device_budget"));
    tm_json_free(doc);
    o = ask(&s, 0, file, SETS("--set", on, "--set", enough), &doc);
    /* a count of windows on each page of the arena is part of it */
    if (!(refused > 0 && number(o, "minimum_host_bytes") - refused >= 0 &&
          number(o, "minimum_host_bytes") - refused < 1 << 16))
        fail_msg("%.0f where it is refused, %.0f with %s", refused, number(o, "minimum_host_bytes"), enough);
    tm_json_free(doc);
}

/* Every configuration of examples/mpi is one that `plan` takes, for two nodes of two ranks. */
static void examples_are_accepted(void **state) {
    (void)state;
    const char *dir = run_dir(), *file;
    scene s = {.dir = dir};
    DIR *list = opendir(EXAMPLES "/mpi");
    unsigned n = 0;
    assert_non_null(list);
    file = hardware(&s, 2, 2, "4GiB", 1e9);
    for (const struct dirent *e; (e = readdir(list));) {
        const char *dot = strrchr(e->d_name, '.');
        tm_json_doc *doc;
        if (!dot || strcmp(dot, ".json") != 0) continue;
        s.config = run_format(EXAMPLES "/mpi/%s", e->d_name);
        const tm_json *o = ask(&s, 0, file, SETS("--set", "model=" EXAMPLES "/tiny", "--set", "data.train=null"), &doc);
        assert_int_equal(number(o, "ranks"), 4);
        if (!strstr(e->d_name, "fsdp") && !strstr(e->d_name, "zeropp") && !strstr(e->d_name, "nvme"))
            assert_string_equal(text(o, "strategy"), run_format("%.*s", (int)(dot - e->d_name), e->d_name));
        tm_json_free(doc);
        n++;
    }
    closedir(list);
    assert_true(n >= 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(rows_are_plans, run_clean),
        cmocka_unit_test_teardown(links_carry_what_theory_says, run_clean),
        cmocka_unit_test_teardown(advice_follows_the_machine, run_clean),
        cmocka_unit_test_teardown(examples_are_accepted, run_clean),
        cmocka_unit_test_teardown(devices_have_more_places, run_clean),
        cmocka_unit_test_teardown(the_cpu_can_be_asked_for, run_clean),
        cmocka_unit_test_teardown(an_arena_is_no_gpu, run_clean),
    };
    return cmocka_run_group_tests_name("train_advise", tests, NULL, NULL);
}

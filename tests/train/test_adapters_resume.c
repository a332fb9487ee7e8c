/* An adapter's run that is killed goes on to the same bits, on a plain base and on one of 4 bits; with another base,
 * another rank or without its adapter's file it does not. */
#include "adapted.h"
#include "tests/support/skip.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 4 };

typedef struct scene {
    adapted a;
    const char *config, *base, *adapter, *output;
    const char *whole; /* what a run left that nobody disturbed, */
    char hash[40];     /* and what it came to */
} scene;

/* Of a fixture: another base than its own, another adapter, more of the configuration; NULL: not. */
typedef struct variant {
    const char *fixture, *base, *adapter, *more;
} variant;

static const char *write_config(const scene *s, const variant *v) {
    const char *path = run_path(s->a.dir, "resume.json"), *more = v->more ? v->more : "";
    const char *adapter = v->adapter ? v->adapter : run_format("\"path\": \"%s\", \"lora_dropout\": 0.1", s->adapter);
    run_write(path, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": %zu},\n"
                               " \"adapter\": {%s}, %s \"learning_rate\": 1e-3, \"max_steps\": %d,\n"
                               " \"commit_steps\": 1, \"save_steps\": 3, \"precision\": \"bf16\",\n"
                               " \"per_device_train_batch_size\": 1, \"gradient_accumulation_steps\": 2,\n"
                               " \"memory\": {\"cache\": \"none\"}, \"zero_optimization\": {\n"
                               "  \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/disk\"},\n"
                               "  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/disk\"}}}\n",
                               s->base, s->a.rows, s->a.seq, adapter, more, STEPS, s->a.dir, s->a.dir));
    return path;
}

static run_result start(const scene *s, const char *fault, const char *set) {
    const char *env[] = {fault ? run_format("TIDEMILL_FAULT=%s", fault) : NULL, NULL};
    const char *arguments[] = {
        "train", s->config, "--quiet", "--set", run_format("output_dir=%s", s->output), set ? "--set" : NULL,
        set,     NULL};
    return run_argv(&(run_opts){.env = fault ? env : NULL}, arguments);
}

/* A base and an adapter of our own, and what their run comes to. */
static scene scene_open(variant v) {
    scene s = {.a = adapted_open(v.fixture)};
    s.base = run_path(s.a.dir, "base");
    s.adapter = run_path(s.a.dir, "adapter");
    s.output = run_path(s.a.dir, "out");
    s.whole = run_path(s.a.dir, "whole");
    run_copy_model(v.base ? v.base : s.a.base, s.base);
    run_copy_model(s.a.folder, s.adapter);
    s.config = write_config(&s, &v);
    run_result r = start(&s, NULL, NULL);
    RUN_OK(&r);
    run_free(&r);
    memcpy(s.hash, train_log_read(s.output).hash, sizeof s.hash);
    assert_int_equal(rename(s.output, s.whole), 0);
    return s;
}

static void kill_at(const scene *s, const char *fault) {
    run_result r = start(s, fault, NULL);
    if (r.status != 128 + SIGKILL) fail_msg("%s: exit status %d: %s", fault, r.status, r.err);
    run_free(&r);
}

/* PiSSA's are of no hash: what A and B began as. */
static void expect_same_first(const scene *s) {
    const char *file = "pissa_init/adapter_model.safetensors";
    if (access(run_path(s->whole, file), F_OK) == 0)
        adapted_same_files(run_path(s->output, file), run_path(s->whole, file));
}

static void expect_end_at(const scene *s, const char *what, const char *fault) {
    run_result r = start(s, fault, NULL);
    if (r.status != 0) fail_msg("%s: %s", what, r.err);
    run_free(&r);
    train_log log = train_log_read(s->output);
    assert_int_equal(log.steps, STEPS);
    if (strcmp(log.hash, s->hash) != 0) fail_msg("%s: hash %s, undisturbed %s", what, log.hash, s->hash);
    assert_int_equal(run_entries(run_path(s->a.dir, "disk")), 0);
    /* the adapter's two files, checkpoint, log, run.json, of PiSSA what it began as: no debris */
    assert_int_equal(run_entries(s->output), run_entries(s->whole));
    expect_same_first(s);
    run_remove(s->output);
}

static void expect_end(const scene *s, const char *what) {
    expect_end_at(s, what, NULL);
}

/* ---- kills ------------------------------------------------------------------------------------------------------- */

static void test_kills(void **state) {
    static const char *const points[] = {"kill_published:2",     "kill_in_manifest:3",   "kill_op:150",
                                         "kill_before_export:1", "kill_before_rename:2", "kill_after_rename:3",
                                         "kill_before_export:2"};
    scene s = scene_open((variant){.fixture = *state});
    unsigned n = TEST_LONG("every point of a kill") ? TM_COUNT(points) : 4;
    for (unsigned i = 0; i < n; i++) {
        kill_at(&s, run_format("%s:kill:once", points[i]));
        expect_end(&s, points[i]);
    }
    adapted_close(&s.a);
}

/* What the first A and B were is state too, which no start makes twice. */
static void pissa_goes_on(void **state) {
    static const char *const points[] = {"kill_published:2", "kill_op:150", "kill_before_export:1",
                                         "kill_before_rename:1"};
    (void)state;
    scene s = scene_open((variant){.fixture = "peft_pissa",
                                   .adapter = "\"r\": 3, \"lora_alpha\": 7, \"lora_dropout\": 0.1, "
                                              "\"target_modules\": [\"q_proj\", \"o_proj\", \"up_proj\"], "
                                              "\"init_lora_weights\": \"pissa_niter_2\""});
    for (unsigned i = 0; i < TM_COUNT(points); i++) {
        kill_at(&s, run_format("%s:kill:once", points[i]));
        expect_end(&s, points[i]);
    }
    adapted_close(&s.a);
}

static const variant own_base = {
    .fixture = "peft_qlora", .base = TM_TEST_FIXTURES "/peft_base", .more = "\"quantization\": {\"type\": \"nf4\"},"};

/* A base that the run quantises for itself: begun again where a start was killed before it was whole; found as it is after
 * that, so that nothing is quantised a second time. */
static void a_base_of_its_own_is_found_again(void **state) {
    static const char *const points[] = {"kill_op:20", "kill_op:150", "kill_published:2", "kill_before_export:2"};
    (void)state;
    scene s = scene_open(own_base);
    for (unsigned i = 1; i <= 3; i++) {
        kill_at(&s, run_format("kill_quantising:%u:kill:once", i));
        assert_int_equal(run_entries(run_path(s.a.dir, "disk")), 1);
        if (i == 2) kill_at(&s, "kill_quantising:5:kill:once");
        expect_end(&s, "quantising");
    }
    for (unsigned i = 0; i < TM_COUNT(points); i++) {
        kill_at(&s, run_format("%s:kill:once", points[i]));
        expect_end_at(&s, points[i], "kill_quantising:1:kill:once");
    }
    adapted_close(&s.a);
}

/* What `clean` says and leaves in the disk's folder. */
static void clean_leaves(const char *disk, const char *says, unsigned left) {
    run_result r = run((run_opts){0}, "clean", disk, "--yes", NULL);
    RUN_OK(&r);
    if (!strstr(r.out, says)) fail_msg("looked for \"%s\": %s", says, r.out);
    run_free(&r);
    assert_int_equal(run_entries(disk), left);
}

static void clean_beside(void *disk) {
    clean_leaves(disk, "in use", 2);
}

/* It goes with the last that can use it: not while its run goes on, or can be gone on with. */
static void clean_knows_a_base(void **state) {
    (void)state;
    scene s = scene_open(own_base);
    const char *disk = run_path(s.a.dir, "disk"), *theirs = run_path(disk, "base-0123456789abcdef");
    kill_at(&s, "kill_quantising:2:kill:once");
    clean_leaves(disk, "a base in four bits of", 0);
    kill_at(&s, "kill_op:20:kill:once");
    clean_leaves(disk, "removed", 0);
    kill_at(&s, "kill_published:2:kill:once");
    clean_leaves(disk, "which can be resumed", 2);
    expect_end_at(&s, "cleaned", "kill_quantising:1:kill:once");
    run_result r = run_argv(
        &(run_opts){.stop_at = "kill_op:20", .at_stop = clean_beside, .at_stop_ctx = (void *)(uintptr_t)disk},
        (const char *const[]){"train", s.config, "--quiet", "--set", run_format("output_dir=%s", s.output), NULL});
    RUN_OK(&r);
    run_free(&r);
    assert_int_equal(run_entries(disk), 0);
    assert_int_equal(mkdir(theirs, 0700), 0);
    run_write(run_path(theirs, "config.json"), "precious");
    clean_leaves(disk, "no run directories", 1);
    adapted_close(&s.a);
}

/* A run says where it reads the base that it made. */
static void the_log_names_it(void **state) {
    (void)state;
    scene s = scene_open(own_base);
    run_remove(s.output);
    run_result r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s", s.output), NULL);
    RUN_OK(&r);
    if (!strstr(r.err, run_format("in %s/disk/base-", s.a.dir)) ||
        !strstr(r.err, run_format("in four bits what was %s", s.base)))
        fail_msg("%s", r.err);
    run_free(&r);
    adapted_close(&s.a);
}

/* A signal: the step is committed, and gone on from. */
static void test_interrupted(void **state) {
    scene s = scene_open((variant){.fixture = *state});
    run_result r = start(&s, "interrupt_op:500:now:once", NULL);
    assert_int_equal(r.status, 3);
    run_free(&r);
    expect_end(&s, "interrupted");
    adapted_close(&s.a);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refused(const scene *s, const char *set, const char *const *says) {
    run_result r = start(s, NULL, set);
    if (r.status != 2 || run_error_lines(r.err, NULL) != 1) fail_msg("exit status %d: %s", r.status, r.err);
    for (; *says; says++)
        if (!strstr(r.err, *says)) fail_msg("looked for \"%s\": %s", *says, r.err);
    run_free(&r);
}

/* The first value of the first tensor; again: as it was. */
static void change(const char *weights) {
    size_t n;
    uint64_t header;
    char *bytes = run_read(weights, &n);
    memcpy(&header, bytes, sizeof header);
    free(bytes);
    run_damage(weights, (off_t)(sizeof header + header));
}

/* As it was before the run was killed: each is refused, and leaves the run as it is. */
static void what_changed_is_refused(void **state) {
    scene s = scene_open((variant){.fixture = *state});
    kill_at(&s, "kill_published:2:kill:once");
    const char *weights = run_path(s.base, "model.safetensors"),
               *file = run_path(s.adapter, "adapter_model.safetensors");
    change(weights);
    refused(&s, NULL, SETS(s.base, "weights"));
    change(weights);
    refused(&s, "adapter.lora_alpha=5", SETS("lora_alpha was 16, is 5"));
    assert_int_equal(rename(file, run_path(s.a.dir, "away")), 0);
    refused(&s, NULL, SETS(s.adapter, "adapter_model.safetensors"));
    assert_int_equal(rename(run_path(s.a.dir, "away"), file), 0);
    expect_end(&s, "put back");
    adapted_close(&s.a);
}

static const variant rank_4 = {.fixture = "peft_lora",
                               .adapter = "\"r\": 4, \"target_modules\": [\"q_proj\", \"down_proj\"]"};

static void another_rank_is_refused(void **state) {
    (void)state;
    scene s = scene_open(rank_4);
    kill_at(&s, "kill_published:2:kill:once");
    refused(&s, "adapter.r=6", SETS("r was 4, is 6"));
    refused(&s, "adapter.target_modules=[\"q_proj\"]", SETS("target_modules was", "down_proj"));
    refused(&s, "adapter.use_dora=true", SETS("use_dora was false, is true"));
    expect_end(&s, "with rank 4");
    adapted_close(&s.a);
}

/* Of a start: what is not there is named, and what is. */
static void what_is_not_there_is_named(void **state) {
    (void)state;
    scene s = scene_open(rank_4);
    refused(&s, "adapter.target_modules=[\"q_proj\", \"wqkv\"]", SETS("\"wqkv\"", "q_proj", "down_proj", "gate_proj"));
    refused(&s, "adapter.target_modules=.*nothing.*", SETS("\"target_modules\"", "q_proj"));
    refused(&s, run_format("adapter.path=%s/nowhere", s.a.dir), SETS("nowhere"));
    refused(&s, run_format("adapter={\"path\": \"%s\", \"r\": 4}", s.adapter), SETS(s.adapter, "8", "4"));
    assert_int_equal(access(s.output, F_OK), -1);
    adapted_close(&s.a);
}

/* ---- a base that changes while it is read ------------------------------------------------------------------------ */

static void damage(void *weights) {
    run_damage(weights, 200000);
}

/* The page is read again in the next step, and is not what it was. */
static void a_base_that_changes_ends_the_run(void **state) {
    (void)state;
    scene s = scene_open((variant){.fixture = "peft_lora"});
    const char *weights = run_path(s.base, "model.safetensors");
    uint64_t bytes;
    const char *least = adapted_least(s.config, s.a.dir, SETS("seed=42"), &bytes);
    const char *arguments[] = {"train", s.config, "--quiet", "--set", run_format("output_dir=%s", s.output),
                               "--set", least,    NULL};
    run_result r = run_argv(
        &(run_opts){.stop_at = "kill_published:2", .at_stop = damage, .at_stop_ctx = (void *)(uintptr_t)weights},
        arguments);
    if (r.status == 0 || run_error_lines(r.err, NULL) != 1 || !strstr(r.err, weights))
        fail_msg("exit status %d: %s", r.status, r.err);
    run_free(&r);
    damage((void *)(uintptr_t)weights);
    expect_end(&s, "mended");
    adapted_close(&s.a);
}

int main(int argc, char **argv) {
    static char lora[] = "peft_lora", qlora[] = "peft_qlora", saved[] = "peft_modules_to_save";
    const struct CMUnitTest tests[] = {
        {"kills lora", test_kills, NULL, run_clean, lora},
        {"kills qlora", test_kills, NULL, run_clean, qlora},
        cmocka_unit_test_teardown(pissa_goes_on, run_clean),
        cmocka_unit_test_teardown(a_base_of_its_own_is_found_again, run_clean),
        cmocka_unit_test_teardown(clean_knows_a_base, run_clean),
        cmocka_unit_test_teardown(the_log_names_it, run_clean),
        {"interrupted", test_interrupted, NULL, run_clean, saved},
        {"changed lora", what_changed_is_refused, NULL, run_clean, lora},
        {"changed qlora", what_changed_is_refused, NULL, run_clean, qlora},
        cmocka_unit_test_teardown(another_rank_is_refused, run_clean),
        cmocka_unit_test_teardown(what_is_not_there_is_named, run_clean),
        cmocka_unit_test_teardown(a_base_that_changes_ends_the_run, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("train_adapters_resume", tests, NULL, NULL);
}

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
    char hash[40]; /* of a run that nobody disturbed */
} scene;

static const char *write_config(const scene *s, const char *adapter) {
    const char *path = run_path(s->a.dir, "resume.json");
    run_write(path, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": %zu},\n"
                               " \"adapter\": {%s}, \"learning_rate\": 1e-3, \"max_steps\": %d,\n"
                               " \"commit_steps\": 1, \"save_steps\": 3, \"precision\": \"bf16\",\n"
                               " \"per_device_train_batch_size\": 1, \"gradient_accumulation_steps\": 2,\n"
                               " \"memory\": {\"cache\": \"none\"}, \"zero_optimization\": {\n"
                               "  \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/disk\"},\n"
                               "  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/disk\"}}}\n",
                               s->base, s->a.rows, s->a.seq, adapter, STEPS, s->a.dir, s->a.dir));
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
static scene scene_open(const char *name, const char *more) {
    scene s = {.a = adapted_open(name)};
    s.base = run_path(s.a.dir, "base");
    s.adapter = run_path(s.a.dir, "adapter");
    s.output = run_path(s.a.dir, "out");
    run_copy_model(s.a.base, s.base);
    run_copy_model(s.a.folder, s.adapter);
    s.config = write_config(&s, more ? more : run_format("\"path\": \"%s\", \"lora_dropout\": 0.1", s.adapter));
    run_result r = start(&s, NULL, NULL);
    RUN_OK(&r);
    run_free(&r);
    memcpy(s.hash, train_log_read(s.output).hash, sizeof s.hash);
    run_remove(s.output);
    return s;
}

static void kill_at(const scene *s, const char *fault) {
    run_result r = start(s, fault, NULL);
    if (r.status != 128 + SIGKILL) fail_msg("%s: exit status %d: %s", fault, r.status, r.err);
    run_free(&r);
}

static void expect_end(const scene *s, const char *what) {
    run_result r = start(s, NULL, NULL);
    if (r.status != 0) fail_msg("%s: %s", what, r.err);
    run_free(&r);
    train_log log = train_log_read(s->output);
    assert_int_equal(log.steps, STEPS);
    if (strcmp(log.hash, s->hash) != 0) fail_msg("%s: hash %s, undisturbed %s", what, log.hash, s->hash);
    assert_int_equal(run_entries(run_path(s->a.dir, "disk")), 0);
    assert_int_equal(run_entries(s->output), 5); /* the adapter's two files, checkpoint, log, run.json: no debris */
    run_remove(s->output);
}

/* ---- kills ------------------------------------------------------------------------------------------------------- */

static void test_kills(void **state) {
    static const char *const points[] = {"kill_published:2",     "kill_in_manifest:3",   "kill_op:150",
                                         "kill_before_export:1", "kill_before_rename:2", "kill_after_rename:3",
                                         "kill_before_export:2"};
    scene s = scene_open(*state, NULL);
    unsigned n = TEST_LONG("every point of a kill") ? TM_COUNT(points) : 4;
    for (unsigned i = 0; i < n; i++) {
        kill_at(&s, run_format("%s:kill:once", points[i]));
        expect_end(&s, points[i]);
    }
    adapted_close(&s.a);
}

/* A signal: the step is committed, and gone on from. */
static void test_interrupted(void **state) {
    scene s = scene_open(*state, NULL);
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
    scene s = scene_open(*state, NULL);
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

static void another_rank_is_refused(void **state) {
    (void)state;
    scene s = scene_open("peft_lora", "\"r\": 4, \"target_modules\": [\"q_proj\", \"down_proj\"]");
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
    scene s = scene_open("peft_lora", "\"r\": 4, \"target_modules\": [\"q_proj\", \"down_proj\"]");
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
    scene s = scene_open("peft_lora", NULL);
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

/* Whose is what (src/train/README.md): nothing of the user's is taken, whatever a start, its refusal, its end or `clean`
 * finds, and where nothing can be lost no hand is needed. */
#include "run.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 6 };

typedef struct scene {
    const char *dir, *model, *rows, *config, *output, *offload;
} scene;

static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    s.model = run_path(s.dir, "model"), s.rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "job.json"), s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", s.model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(s.rows, golden, 0, 3, 16, false);
    tm_st_close(golden);
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"eval\": \"%s\", \"seq_len\": 16},"
                         " \"max_steps\": %d, \"learning_rate\": 0.01, \"commit_steps\": 2, \"output_dir\": \"%s\","
                         " \"memory\": {\"cache\": \"none\"}, \"zero_optimization\": {"
                         " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
                         " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                         s.model, s.rows, s.rows, STEPS, s.output, s.offload, s.offload));
    return s;
}

static run_result train(const scene *s, const run_opts *o, const char *const *sets) {
    const char *arguments[24] = {"train", s->config, "--quiet"};
    unsigned n = 3;
    for (; sets && *sets; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    return run_argv(o ? o : &(run_opts){0}, arguments);
}

static void expect(run_result r, int status, const char *said) {
    if (r.status != status || (said && !strstr(r.err, said)))
        fail_msg("exit status %d (expected %d, \"%s\"); stderr:\n%s", r.status, status, said ? said : "", r.err);
    run_free(&r);
}

static void killed(const scene *s, const char *point, const char *const *sets) {
    const char *env[] = {run_format("TIDEMILL_FAULT=%s:kill:once", point), NULL};
    expect(train(s, &(run_opts){.env = env}, sets), 128 + SIGKILL, NULL);
}

static bool there(const char *path) {
    return access(path, F_OK) == 0;
}

/* ---- two starts ------------------------------------------------------------------------------------------------- */

static void whole_run(void *ctx) {
    expect(train(ctx, NULL, NULL), 0, NULL);
}
static void stopped_run(void *ctx) {
    expect(train(ctx, &(run_opts){.signal = SIGTERM, .stop_at = "kill_op:150"}, NULL), 3, NULL);
}

/* One that has found no OUTPUT_DIR waits for it while another run makes it, and is there at its end. */
static void a_late_start_takes_nothing(void **state) {
    (void)state;
    scene s = scene_open();
    run_opts late = {.stop_at = "flock:1", .at_stop = whole_run, .at_stop_ctx = &s};
    expect(train(&s, &late, NULL), 0, "holds the finished run of this job");
    assert_true(there(run_path(s.output, "model.safetensors")) && there(run_path(s.output, "run.json")));
    run_remove(s.output);
    late.at_stop = stopped_run;
    expect(train(&s, &late, SETS("memory.host_budget=1MiB")), 2, "1.00 MiB");
    expect(train(&s, NULL, NULL), 0, "going on from step");
    run_remove(s.output);
    expect(train(&s, NULL, SETS("memory.host_budget=1MiB")), 2, NULL);
    assert_false(there(s.output)); /* what a refused start has made itself goes */
    assert_int_equal(mkdir(s.output, 0700), 0);
    expect(train(&s, NULL, SETS("memory.host_budget=1MiB")), 2, NULL);
    assert_true(there(s.output));
    assert_int_equal(run_entries(s.output), 0);
}

/* ---- run directories -------------------------------------------------------------------------------------------- */

/* A run.json that came from elsewhere names another run's commit. */
static void a_foreign_commit_stays(void **state) {
    (void)state;
    scene s = scene_open(), other = s;
    killed(&s, "kill_after_rename:2", NULL);
    const char *victim = run_directory(s.output, 0);
    other.output = run_path(s.dir, "other");
    const char *sets[] = {run_format("output_dir=%s", other.output), NULL};
    for (int first = 0; first < 2; first++) {
        const char *nobody = run_path(s.dir, "run-0");
        (void)(mkdir(other.output, 0700) + mkdir(nobody, 0700));
        run_write(run_path(other.output, "log.jsonl"), "");
        run_write(run_path(other.output, "run.json"),
                  run_format("{\"status\": \"running\", \"step\": 0, \"run_directories\": [\"%s\", \"%s\"],"
                             " \"config\": {}}",
                             first ? victim : nobody, first ? nobody : victim));
        expect(train(&s, NULL, sets), first ? 2 : 0, first ? "belongs to another run" : NULL);
        assert_true(there(run_path(victim, "manifest")) && there(nobody));
        run_remove(other.output);
    }
    expect(train(&s, NULL, NULL), 0, "going on from step 4");
}

static void lists_and_takes(const char *folder, const char *option, const char *lists) {
    run_result r = run((run_opts){0}, "clean", folder, "--yes", option, NULL);
    if (r.status != 0 || !strstr(r.out, lists)) fail_msg("exit %d: %s%s", r.status, r.out, r.err);
    run_free(&r);
}

static void clean_takes_only_what_is_ours(void **state) {
    (void)state;
    scene s = scene_open();
    const char *theirs = run_path(s.dir, "run-2024"), *old = run_path(s.dir, "run-old");
    assert_true(mkdir(theirs, 0700) == 0 && mkdir(old, 0700) == 0);
    run_write(run_path(theirs, "lock"), ""), run_write(run_path(theirs, "thesis"), "precious");
    run_write(run_path(old, "lock"), ""), run_write(run_path(old, "weight_hi"), "x");
    run_write(run_path(old, "notes"), "precious");
    run_write(run_path(old, "owner"), "pid 7\nhost h\nstarted 2024-01-01T00:00:00Z\ncommand tidemill train\n");
    lists_and_takes(s.dir, NULL, "old");
    assert_true(there(run_path(old, "weight_hi")));
    lists_and_takes(s.dir, "--all", "old");
    assert_false(there(run_path(old, "weight_hi")));
    assert_true(there(run_path(old, "notes")) && there(run_path(theirs, "thesis")) && there(run_path(theirs, "lock")));
    killed(&s, "kill_after_rename:1", NULL);
    lists_and_takes(s.offload, NULL, "can be resumed");
    expect(train(&s, NULL, NULL), 0, "going on from step 2");
}

/* Prepared by a rank that died before it published: another rank's may be, and the next start puts it in place. */
static void clean_leaves_what_was_prepared(void **state) {
    (void)state;
    scene s = scene_open();
    killed(&s, "kill_before_rename:1", NULL);
    lists_and_takes(s.offload, NULL, "commit");
    assert_int_equal(run_entries(s.offload), 1);
    expect(train(&s, NULL, NULL), 0, NULL);
    assert_int_equal(run_entries(s.offload), 0);
}

/* Killed before its first commit, or where it makes none: whatever became of its files, it starts over by itself. */
static void nothing_lost_starts_over(void **state) {
    (void)state;
    scene s = scene_open();
    killed(&s, "kill_op:40", NULL);
    lists_and_takes(s.offload, NULL, "dead");
    assert_int_equal(run_entries(s.offload), 0);
    expect(train(&s, NULL, NULL), 0, NULL);
    run_remove(s.output);
    const char *const in_memory[] = {"commit_steps=0", "memory.cache=\"auto\"", NULL};
    killed(&s, "kill_op:200", in_memory);
    expect(train(&s, NULL, in_memory), 0, NULL);
}

/* ---- what would be replaced ------------------------------------------------------------------------------------- */

static void refused(const scene *s, const char *output, const char *more, const char *said) {
    expect(train(s, NULL, SETS(run_format("output_dir=%s", output), more)), 2, said);
}

static void what_is_there_is_not_replaced(void **state) {
    (void)state;
    scene s = scene_open();
    const char *link = run_path(s.dir, "link"), *folder = run_path(s.dir, "folder");
    char *before = run_read(run_path(s.model, "config.json"), NULL);
    assert_true(symlink("model", link) == 0 && mkdir(folder, 0700) == 0);
    refused(&s, s.model, NULL, "would replace those of the model");
    refused(&s, link, NULL, "would replace those of the model");
    refused(&s, run_path(s.model, "../model"), NULL, "would replace those of the model");
    expect(train(&s, NULL, SETS(run_format("output_dir=%s", folder))), 0, NULL);
    char *after = run_read(run_path(s.model, "config.json"), NULL);
    assert_string_equal(before, after);
    free(before), free(after);
}

static void files_in_output_dir_are_not_replaced(void **state) {
    (void)state;
    scene s = scene_open();
    assert_int_equal(mkdir(s.output, 0700), 0);
    const char *data = run_path(s.output, "log.jsonl"), *model = run_path(s.output, "checkpoint-4");
    run_copy(s.rows, data);
    run_copy_model(s.model, model);
    refused(&s, s.output, run_format("data.train=%s", data), "would replace the training data");
    refused(&s, s.output, run_format("data.eval=%s", data), "would replace the evaluation data");
    refused(&s, s.output, run_format("model=%s", model), "would replace those of the model");
    assert_int_equal(unlink(data), 0);
    expect(train(&s, NULL, SETS("save_steps=4")), 0, NULL);
    refused(&s, run_path(s.output, "checkpoint-4"), NULL, "would replace those of another run");
    const char *foreign = run_path(s.dir, "foreign");
    run_copy_model(s.model, foreign);
    refused(&s, foreign, NULL, "would replace a model that no run has written there");
}

/* A disk that is not mounted. */
static void a_missing_path_is_told(void **state) {
    (void)state;
    scene s = scene_open();
    expect(train(&s, &(run_opts){.as_it_is = true}, NULL), 2, run_format("mkdir -p %s", s.offload));
    assert_false(there(s.offload) || there(s.output));
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static uint64_t times_of(const char *folder) {
    uint64_t sum = 0;
    struct stat st;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, "..") != 0 && stat(run_path(folder, e->d_name), &st) == 0)
            sum = tm_hash64(&st.st_mtim, sizeof st.st_mtim, sum ^ st.st_ino);
    closedir(d);
    return sum;
}

/* `until tidemill train c.json; do :; done` ends. */
static void a_finished_run_is_finished(void **state) {
    (void)state;
    scene s = scene_open();
    expect(train(&s, NULL, NULL), 0, NULL);
    uint64_t before = times_of(s.output);
    expect(train(&s, NULL, NULL), 0, "holds the finished run of this job, 6 steps");
    expect(train(&s, NULL, SETS("learning_rate=0.02")), 2, "of another job: lr was 0.01, is 0.02");
    expect(train(&s, NULL, SETS("max_steps=3")), 2, "max_steps gives 3 steps");
    expect(train(&s, NULL, SETS("max_steps=9")), 2, "whose state was removed");
    expect(train(&s, NULL, SETS("save_dtype=f32")), 2, "save_dtype was");
    expect(train(&s, NULL, SETS("memory.host_budget=1GiB")), 0, NULL);
    assert_true(times_of(s.output) == before);
}

/* Its line is on the disk before the run says that it is over. */
static void the_last_line_is_synced(void **state) {
    (void)state;
    scene s = scene_open();
    const char *env[] = {"TIDEMILL_FAULT=fdatasync:1:eio:once", NULL}; /* no commits, nothing in files */
    expect(train(&s, &(run_opts){.env = env}, SETS("commit_steps=0", "zero_optimization=null")), 1, "log.jsonl");
}

/* What decides the weights that come out cannot be changed under way. */
static void another_end_is_refused(void **state) {
    (void)state;
    scene s = scene_open();
    const char *rows[][3] = {{"max_steps=7", "its learning rate depends on that"},
                             {"save_dtype=f32", "save_dtype was"},
                             {"load_best_model_at_end=true", "load_best_model_at_end was nothing, is true"}};
    const char *const best[] = {"eval_steps=1", "save_steps=1", NULL};
    killed(&s, "kill_after_rename:1", best);
    for (size_t i = 0; i < TM_COUNT(rows); i++)
        expect(train(&s, NULL, SETS("eval_steps=1", "save_steps=1", rows[i][0])), 2, rows[i][1]);
    expect(train(&s, NULL, best), 0, NULL);
    run_remove(s.output);
    const char *const constant[] = {"lr_scheduler_type=constant", NULL};
    killed(&s, "kill_after_rename:1", constant);
    expect(train(&s, NULL, SETS("lr_scheduler_type=constant", "max_steps=7")), 0, "going on from step 2");
    run_remove(s.output);
    const char *const greater[] = {"eval_steps=1", "save_steps=1", "load_best_model_at_end=true", NULL};
    killed(&s, "kill_after_rename:2", greater);
    expect(train(&s, NULL, SETS(greater[0], greater[1], greater[2], "greater_is_better=true")), 2,
           "greater_is_better was nothing, is true");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(run_path(s.dir, "eval.safetensors"), golden, 1, 2, 16, false);
    tm_st_close(golden);
    expect(
        train(&s, NULL, SETS(greater[0], greater[1], greater[2], run_format("data.eval=%s/eval.safetensors", s.dir))),
        2, "holds other samples than when the best checkpoint");
    expect(train(&s, NULL, greater), 0, "going on from step 4");
}

/* For pgrep, killall, top. At work: it has answered a line and waits for the next. */
static void the_process_is_called_by_its_name(void **state) {
    (void)state;
    const char *dir = run_dir();
    run_write(run_path(dir, "script"),
              "cd \"$2\" && mkfifo in && \"$1\" tokenize --model \"$3\" < in > said & pid=$!\n"
              "until [ -p \"$2/in\" ]; do sleep 0.05; done; exec 3> \"$2/in\"\n"
              "echo '{\"text\": \"x\"}' >&3; i=0\n"
              "until [ -s \"$2/said\" ] || [ $((i += 1)) -gt 400 ]; do sleep 0.05; done\n"
              "for p in $pid $(cat /proc/$pid/task/$pid/children); do cat /proc/$p/comm; done; exec 3>&-; wait\n");
    char full[4096], program[4096];
    assert_true(realpath(dir, full) && realpath("bin/tidemill", program));
    FILE *f = popen(run_format("sh %s/script %s %s %s", dir, program, full, TM_TEST_FIXTURES "/tok_gpt2"), "r");
    char line[64], last[64] = "";
    while (f && fgets(line, sizeof line, f)) snprintf(last, sizeof last, "%s", line);
    assert_int_equal(pclose(f), 0);
    assert_string_equal(last, "tidemill\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_late_start_takes_nothing, run_clean),
        cmocka_unit_test_teardown(a_foreign_commit_stays, run_clean),
        cmocka_unit_test_teardown(clean_takes_only_what_is_ours, run_clean),
        cmocka_unit_test_teardown(clean_leaves_what_was_prepared, run_clean),
        cmocka_unit_test_teardown(nothing_lost_starts_over, run_clean),
        cmocka_unit_test_teardown(what_is_there_is_not_replaced, run_clean),
        cmocka_unit_test_teardown(files_in_output_dir_are_not_replaced, run_clean),
        cmocka_unit_test_teardown(a_missing_path_is_told, run_clean),
        cmocka_unit_test_teardown(a_finished_run_is_finished, run_clean),
        cmocka_unit_test_teardown(the_last_line_is_synced, run_clean),
        cmocka_unit_test_teardown(another_end_is_refused, run_clean),
        cmocka_unit_test_teardown(the_process_is_called_by_its_name, run_clean),
    };
    return cmocka_run_group_tests_name("train_whose", tests, NULL, NULL);
}

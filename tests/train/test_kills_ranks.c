/* kill -9 of a rank at every named point of a commit's four phases, of a resume and of an export, and at random
 * instants (now and then of mpirun itself): started again until it is done, the run comes to the bits of one that
 * nobody disturbed.
 *
 * TIDEMILL_KILLS=N TIDEMILL_KILL_SEED=S: every point on every rank of 2 and 4, then N kills at random instants of each
 * (default: three points on 2 ranks, one after the other). */
#include "run.h"
#include "tests/support/skip.h"
#include "tests/support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 6 };

typedef struct scene {
    const char *dir, *config, *output;
    const char *set; /* of the next starts; NULL: none */
    uint64_t seed;
    unsigned kills, starts;
} scene;

static scene scene_open(void) {
    scene s = {.dir = run_dir(), .seed = test_option("TIDEMILL_KILL_SEED", 1)};
    const char *rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", run_path(s.dir, "model"));
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 3, 16, true); /* epochs end with a smaller step */
    tm_st_close(golden);
    run_write(s.config,
              run_format("{\"model\": \"%s/model\", \"data\": {\"train\": \"%s\", \"seq_len\": 16},"
                         " \"precision\": \"bf16\", \"max_steps\": %d, \"learning_rate\": 0.01,"
                         " \"commit_steps\": 1, \"save_steps\": 4, \"train_batch_size\": 4,"
                         " \"per_device_train_batch_size\": 1, \"strategy\": \"zero3\","
                         " \"memory\": {\"cache\": \"none\"}, \"output_dir\": \"%s\", \"zero_optimization\": {"
                         " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/offload\"},"
                         " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s/offload\"}}}\n",
                         s.dir, rows, STEPS, s.output, s.dir, s.dir));
    return s;
}

static run_result start(scene *s, const run_opts *o) {
    const char *arguments[] = {"train", s->config, "--quiet", s->set ? "--set" : NULL, s->set, NULL};
    s->starts++;
    return run_argv(o, arguments);
}

static void expect_end(scene *s, const char *hash) {
    train_log log = train_log_read(s->output); /* every step once, in order */
    assert_int_equal(log.steps, STEPS);
    assert_string_equal(log.hash, hash);
    assert_int_equal(run_entries(run_path(s->dir, "offload")), 0);
    /* model, two configurations, what else lies in the model's folder, checkpoint, log, run.json; page, card, HF Trainer's
     * state: no debris */
    assert_int_equal(run_entries(s->output), 10);
}

/* Killed: true. Done: false, and it came to the right end (or had, when it was killed tidying up). */
static bool killed(scene *s, const run_opts *o, const char *hash) {
    run_result r = start(s, o);
    bool ended = r.status == 0 || (r.status == 2 && strstr(r.err, "holds a finished run"));
    if (!ended && !o->kill_rank && !o->fault) fail_msg("exit status %d; stderr:\n%s", r.status, r.err);
    if (r.status == 2 && !ended) fail_msg("refused: %s", r.err);
    run_free(&r);
    if (ended) {
        expect_end(s, hash);
        run_remove(s->output);
    } else {
        s->kills++;
    }
    return !ended;
}

static const char *undisturbed(scene *s, unsigned ranks) {
    static char known[5][40];
    if (known[ranks][0]) return known[ranks];
    run_result r = start(s, &(run_opts){.ranks = ranks});
    RUN_OK(&r);
    run_free(&r);
    snprintf(known[ranks], sizeof known[ranks], "%s", train_log_read(s->output).hash);
    run_remove(s->output);
    return known[ranks];
}

static void finish(scene *s, unsigned ranks, const char *hash) {
    if (killed(s, &(run_opts){.ranks = ranks}, hash)) fail_msg("it did not end");
}

/* The second time that the rank comes by: a step later than the start before. Written back and restored is only what
 * memory holds from step to step, nothing without a cache. */
static void at_point(scene *s, unsigned ranks, const char *point, unsigned rank, const char *hash) {
    bool every_start = strstr(point, "resume") || strstr(point, "restore") || strstr(point, "export");
    s->set = strstr(point, "write_back") || strstr(point, "restore") ? "memory.cache=auto" : NULL;
    const char *fault = run_format("%s:%d:kill:once", point, every_start ? 1 : 2);
    for (unsigned turn = 0; turn < 3; turn++) /* it may have been at its end already */
        if (killed(s, &(run_opts){.ranks = ranks, .fault = fault, .fault_rank = rank}, hash)) return;
    fail_msg("%s was never reached by rank %u of %u", point, rank, ranks);
}

static const char *const points[] = {"kill_prepared",     "kill_published",       "kill_before_rename",
                                     "kill_after_rename", "kill_before_manifest", "kill_in_manifest",
                                     "kill_before_sync",  "kill_write_back",      "kill_restore",
                                     "kill_in_resume",    "kill_before_export"};

static void kills_at_named_points_change_nothing(void **state) {
    (void)state;
    if (!getenv("TIDEMILL_KILLS")) TEST_SKIP_UNLESS_LONG("a kill of every rank at every point");
    scene s = scene_open();
    for (unsigned ranks = 2; ranks <= 4; ranks += 2) {
        const char *hash = undisturbed(&s, ranks);
        for (unsigned p = 0; p < TM_COUNT(points); p++)
            for (unsigned rank = 0; rank < ranks; rank++) at_point(&s, ranks, points[p], rank, hash);
        s.set = NULL;
        finish(&s, ranks, hash);
    }
    print_message("%u kills at named points, %u starts\n", s.kills, s.starts);
}

/* Instants from the start to a little after the end of a whole run. */
static void kills_at_random_instants_change_nothing(void **state) {
    (void)state;
    scene s = scene_open();
    uint64_t kills = test_amount("TIDEMILL_KILLS", 0, 10);
    if (kills == 0) TEST_SKIP_UNLESS_LONG("kills of ranks at random instants");
    for (unsigned ranks = 2; ranks <= 4; ranks += 2) {
        run_result r = start(&s, &(run_opts){.ranks = ranks});
        RUN_OK(&r);
        unsigned whole = (unsigned)(r.seconds * 1000);
        run_free(&r);
        const char *hash = run_format("%s", train_log_read(s.output).hash);
        run_remove(s.output);
        s.kills = 0;
        for (uint64_t turn = 0; s.kills < kills; turn++) {
            uint32_t x[4];
            tm_philox(s.seed, ranks, turn, x);
            run_opts o = {.ranks = ranks,
                          .signal = SIGKILL,
                          .signal_after_ms = whole / 8 + x[0] % whole,
                          .kill_rank = x[1] % 8 == 0 ? ranks + 1 : 1 + x[1] / 8 % ranks};
            (void)killed(&s, &o, hash);
        }
        finish(&s, ranks, hash);
    }
    print_message("%llu kills at random instants on 2 and on 4 ranks, %u starts\n", (unsigned long long)kills,
                  s.starts);
}

/* The first directory of a rank. */
static const char *directory_of(const scene *s, unsigned rank) {
    tm_json_doc *doc;
    size_t len;
    char *text = run_read(run_path(s->output, "run.json"), &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "run.json", 0, 0));
    const tm_json *d = tm_json_get(tm_json_root(doc), "run_directories")->child;
    while (rank-- > 0) d = d->next;
    const char *path = run_format("%s", d->text);
    tm_json_free(doc);
    free(text);
    return path;
}

typedef struct late {
    const char *from, *to;
    unsigned times;
} late;

static void publish(void *ctx) {
    late *l = ctx;
    l->times += rename(l->from, l->to) == 0; /* judged later: a test that failed here would leave a stopped rank */
}

/* Rank 0 outlives its launcher and publishes after the next start has looked: played by a manifest that is put back,
 * and put in place again while that start is stopped between its look and its lock. */
static void a_rank_that_publishes_late_is_noticed(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = undisturbed(&s, 2);
    run_opts before = {.ranks = 2, .fault = "kill_published:1:kill:once", .fault_rank = 0};
    assert_true(killed(&s, &before, hash));
    run_opts first = {.ranks = 2, .fault = "kill_before_manifest:2:kill:once", .fault_rank = 1};
    assert_true(killed(&s, &first, hash)); /* both have published twice */
    const char *manifest = run_path(directory_of(&s, 0), "manifest"), *older = run_path(s.dir, "older");
    const char *newer = run_path(s.dir, "newer");
    run_copy(manifest, older);
    run_opts second = {.ranks = 2, .fault = "kill_before_rename:1:kill:once", .fault_rank = 1};
    assert_true(killed(&s, &second, hash)); /* rank 0 has published a third, rank 1 has it prepared */
    assert_int_equal(rename(manifest, newer), 0);
    run_copy(older, manifest);
    assert_int_equal(chmod(manifest, 0600), 0);
    late l = {newer, manifest, 0};
    run_opts third = {
        .ranks = 2, .fault = "kill_in_resume:1:stop:once", .fault_rank = 0, .at_stop = publish, .at_stop_ctx = &l};
    assert_false(killed(&s, &third, hash));
    assert_int_equal(l.times, 1);
}

/* Without its state (a disk that is not mounted) the run is not started over; with it, it goes on. */
static void lost_state_is_refused(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = undisturbed(&s, 2);
    run_opts o = {.ranks = 2, .fault = "kill_prepared:3:kill:once", .fault_rank = 1};
    assert_true(killed(&s, &o, hash));
    const char *disk = run_path(s.dir, "offload"), *away = run_path(s.dir, "away");
    assert_int_equal(rename(disk, away), 0);
    run_result r = start(&s, &(run_opts){.ranks = 2});
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "is gone; put it back (is its disk mounted?), --resume never"));
    run_free(&r);
    run_remove(disk);
    assert_int_equal(rename(away, disk), 0);
    finish(&s, 2, hash);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (system("mpirun --version > /dev/null 2>&1") != 0) {
        TEST_SKIP_PROGRAM("no mpirun");
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(kills_at_named_points_change_nothing, run_clean),
        cmocka_unit_test_teardown(a_rank_that_publishes_late_is_noticed, run_clean),
        cmocka_unit_test_teardown(lost_state_is_refused, run_clean),
        cmocka_unit_test_teardown(kills_at_random_instants_change_nothing, run_clean),
    };
    return cmocka_run_group_tests_name("train_kills_ranks", tests, NULL, NULL);
}

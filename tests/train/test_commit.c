/* Kill it at any instant: the finished state is that of the run that nobody disturbed.
 *
 * TIDEMILL_KILLS=N TIDEMILL_KILL_SEED=S: that many kills at random instants (default 25, 1; 100 with TIDEMILL_LONG=1).
 */
#include "run.h"
#include "tests/support/skip.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 24 };

typedef struct scene {
    const char *dir, *model, *rows, *config, *output, *offload;
} scene;

static void write_rows(const char *path, size_t first) {
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(path, golden, first, 3, 16, false); /* three rows, two a step: epochs end with a smaller step */
    tm_st_close(golden);
}

static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    s.model = run_path(s.dir, "model");
    s.rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", s.model);
    write_rows(s.rows, 0);
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"eval\": \"%s\", \"seq_len\": 16},"
                         " \"precision\": \"bf16\", \"max_steps\": %d, \"learning_rate\": 0.01, \"commit_steps\": 3,"
                         " \"eval_steps\": 8, \"save_steps\": 10, \"save_total_limit\": 1,"
                         " \"per_device_train_batch_size\": 1, \"gradient_accumulation_steps\": 2,"
                         " \"memory\": {\"cache\": \"none\"}, \"output_dir\": \"%s\", \"zero_optimization\": {"
                         " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
                         " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                         s.model, s.rows, s.rows, STEPS, s.output, s.offload, s.offload));
    return s;
}

/* Ways of running that change no bit; a resumed run may take another one. */
static const char *const ways[][3] = {
    {"memory.update=\"U\"", "memory.cache=\"none\"", "memory.io_engine=\"auto\""},
    {"memory.update=\"F\"", "memory.cache=\"none\"", "memory.io_engine=\"sync\""},
    {"memory.update=\"F\"", "memory.cache=\"auto\"", "memory.io_engine=\"threads\""},
    {"memory.update=\"U\"", "memory.cache=\"auto\"", "memory.host_budget=\"unlimited\""},
};

static run_result train(const scene *s, const run_opts *o, unsigned way, const char *resume, const char *set) {
    const char *arguments[20] = {"train", s->config, "--quiet", "--resume", resume ? resume : "auto"};
    unsigned n = 5;
    for (unsigned i = 0; i < 3; i++) arguments[n++] = "--set", arguments[n++] = ways[way % TM_COUNT(ways)][i];
    if (set) arguments[n++] = "--set", arguments[n++] = set;
    return run_argv(o ? o : &(run_opts){0}, arguments);
}

static void expect(run_result *r, int status, const char *said) {
    if (r->status != status || (said && !strstr(r->err, said)))
        fail_msg("exit status %d (expected %d, \"%s\"); stderr:\n%s", r->status, status, said ? said : "", r->err);
    run_free(r);
}

/* The hash of a run without commits, everything in memory. */
static const char *reference(const scene *s) {
    const char *dir = run_path(s->dir, "reference");
    scene alone = *s;
    run_result r = train(&alone, NULL, 3, "never", run_format("output_dir=%s", dir));
    expect(&r, 0, NULL);
    return run_format("%s", train_log_read(dir).hash);
}

/* Milliseconds of a whole run with its commits. */
static unsigned whole_ms(const scene *s) {
    run_result r = train(s, NULL, 1, "never", NULL);
    unsigned ms = (unsigned)(r.seconds * 1000);
    expect(&r, 0, NULL);
    run_remove(s->output);
    return ms + 1;
}

/* Lines of the log: none before the first step. */
static unsigned logged(const scene *s) {
    unsigned lines = 0;
    FILE *f = fopen(run_path(s->output, "log.jsonl"), "r");
    for (int c; f && (c = getc(f)) != EOF;) lines += c == '\n';
    if (f) fclose(f);
    return lines;
}

static void expect_finished(const scene *s, const char *hash) {
    train_log log = train_log_read(s->output); /* every step once, in order */
    assert_int_equal(log.steps, STEPS);
    assert_string_equal(log.hash, hash);
    if (access(s->offload, F_OK) == 0) assert_int_equal(run_entries(s->offload), 0);
    assert_int_equal(access(run_path(s->output, "model.safetensors"), R_OK), 0);
    assert_int_equal(access(run_path(s->output, "checkpoint-20/model.safetensors"), R_OK), 0);
    /* model, two configurations, what else lies in the model's folder, checkpoint, log, run.json; page, card, HF Trainer's
     * state: no debris. Held-out prompts are put down once, before the page */
    bool prompts = access(run_path(s->output, "report_answers.json"), F_OK) == 0;
    assert_int_equal(run_entries(s->output), 10 + prompts);
}

/* Killed after the last word, while it tidied up: the next start says that all is done (and tidies up). */
static void expect_done(run_result *r) {
    expect(r, 0, NULL);
}

static void kills_at_random_instants_change_nothing(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = reference(&s);
    uint64_t kills = test_amount("TIDEMILL_KILLS", 25, 100), seed = test_option("TIDEMILL_KILL_SEED", 1), finished = 0,
             training = 0;
    unsigned longest = whole_ms(&s);
    for (uint64_t done = 0, turn = 0; done < kills || finished == 0; turn++) {
        uint32_t r[4];
        tm_philox(seed, 0, turn, r);
        bool enough = done >= kills;
        unsigned before = logged(&s);
        run_opts o = {.signal = enough ? 0 : SIGKILL, .signal_after_ms = 1 + r[0] % longest};
        run_result got = train(&s, &o, r[1], NULL, NULL);
        if (got.status == 128 + SIGKILL) {
            training += logged(&s) > before;
            done++;
            run_free(&got);
            continue;
        }
        expect_done(&got);
        finished++;
        expect_finished(&s, hash);
        run_remove(s.output);
    }
    print_message("%llu kills, %llu of them after a step or a commit of their run; %llu runs finished\n",
                  (unsigned long long)kills, (unsigned long long)training, (unsigned long long)finished);
}

/* Twice at each named point, in one run that is taken up again and again. */
static void kills_at_named_points_change_nothing(void **state) {
    (void)state;
    static const char *const points[] = {"kill_op",
                                         "kill_write_back",
                                         "kill_before_sync",
                                         "kill_before_manifest",
                                         "kill_in_manifest",
                                         "kill_before_rename",
                                         "kill_after_rename",
                                         "kill_restore",
                                         "kill_before_export",
                                         "kill_in_export"};
    scene s = scene_open();
    const char *hash = reference(&s);
    unsigned killed[TM_COUNT(points)] = {0};
    for (unsigned turn = 0; turn < 4 * TM_COUNT(points); turn++) {
        unsigned p = turn % TM_COUNT(points);
        if (killed[p] >= 2) continue;
        const char *env[] = {run_format("TIDEMILL_FAULT=%s:%u:now:once", points[p], p == 0 ? 97 : 1 + killed[p] % 2),
                             NULL};
        run_result got = train(&s, &(run_opts){.env = env}, 1 + turn % 3, NULL, NULL);
        if (got.status == 128 + SIGKILL) {
            killed[p]++;
            run_free(&got);
            continue;
        }
        expect(&got, 0, NULL);
        expect_finished(&s, hash);
        run_remove(s.output);
    }
    for (unsigned p = 0; p < TM_COUNT(points); p++)
        if (!killed[p]) fail_msg("%s was never reached", points[p]);
    run_result got = train(&s, NULL, 2, NULL, NULL);
    expect(&got, 0, NULL);
    expect_finished(&s, hash);
}

/* Stopped in one of its first steps, by a signal that asks. */
static run_result stop(const scene *s, int signal, unsigned way, const char *set) {
    return train(s, &(run_opts){.signal = signal, .stop_at = "kill_op:300"}, way, NULL, set);
}

static void signals_commit_and_the_run_goes_on(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    scene s = scene_open();
    const char *hash = reference(&s);
    for (unsigned i = 0; i < TM_COUNT(signals); i++) {
        run_result r = stop(&s, signals[i], i, "commit_steps=1000");
        expect(&r, 3, "is committed, the same command goes on from it");
        assert_int_equal(access(run_path(s.output, "run.json"), R_OK), 0);
        r = train(&s, NULL, i + 1, NULL, NULL);
        expect(&r, 0, "going on from step");
        expect_finished(&s, hash);
        run_remove(s.output);
    }
    run_result r = stop(&s, SIGTERM, 0, "commit_steps=0"); /* nothing to go on from: as if it had never begun */
    expect(&r, 1, "stopped by signal 15; nothing was committed, since commit_steps and commit_minutes are 0");
    assert_int_equal(run_entries(s.offload), 0);
    assert_int_not_equal(access(run_path(s.output, "run.json"), F_OK), 0);
}

/* Exit 2, the reason named, and the run still there. */
static void a_resume_that_does_not_fit_is_refused(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = reference(&s);
    run_result r = stop(&s, SIGTERM, 1, NULL);
    expect(&r, 3, NULL);
    static const char *const sets[][2] = {{"learning_rate=0.02", "lr was 0.01, is 0.02"},
                                          {"precision=fp32", "precision was \"bf16\", is \"fp32\""},
                                          {"gradient_accumulation_steps=1", "gradient_accumulation_steps was 2, is 1"},
                                          {"data.seq_len=8", "seq_len was 16, is 8"},
                                          {"max_steps=1", "max_steps is 1"},
                                          {"seed=7", "seed was 42, is 7"}};
    for (unsigned i = 0; i < TM_COUNT(sets); i++) {
        r = train(&s, NULL, 1, NULL, sets[i][0]);
        expect(&r, 2, sets[i][1]);
    }
    write_rows(s.rows, 1);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 2, "other samples");
    write_rows(s.rows, 0);
    const char *env[] = {"TIDEMILL_ISA=ref", "TIDEMILL_GEMM=", NULL}, *model_config = run_path(s.model, "config.json");
    r = train(&s, &(run_opts){.env = env}, 1, NULL, NULL);
    expect(&r, 2, "--allow-numerics-change");
    char *was = run_read(model_config, NULL), *eps = strstr(was, "1e-0");
    assert_non_null(eps);
    eps[4] = eps[4] == '5' ? '6' : '5';
    run_write(model_config, was);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 2, "config.json is not that of the model");
    eps[4] = eps[4] == '5' ? '6' : '5';
    run_write(model_config, was);
    free(was);
    r = train(&s, NULL, 1, "nowhere", NULL);
    expect(&r, 2, "nowhere");
    r = train(&s, NULL, 1, s.output, NULL); /* and by the name of the output folder it goes on */
    expect(&r, 0, "going on from step");
    expect_finished(&s, hash);
}

/* Another output_dir goes on with a copy: the run whose state it is comes to its own end all the same. */
static void another_output_dir_takes_a_copy(void **state) {
    (void)state;
    scene s = scene_open(), other = s;
    const char *hash = reference(&s), *set = run_format("output_dir=%s", other.output = run_path(s.dir, "other"));
    run_result r = stop(&s, SIGTERM, 1, NULL);
    expect(&r, 3, NULL);
    r = train(&s, NULL, 1, s.output, set);
    expect(&r, 0, "going on with a copy");
    char *end = run_read(run_path(other.output, "log.jsonl"), NULL);
    assert_non_null(strstr(end, hash));
    free(end);
    run_remove(other.output); /* the same with a folder that was copied */
    run_copy_model(s.output, other.output);
    r = train(&s, NULL, 1, NULL, set);
    expect(&r, 0, "going on with a copy");
    end = run_read(run_path(other.output, "log.jsonl"), NULL);
    assert_non_null(strstr(end, hash));
    free(end);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 0, "going on from step");
    expect_finished(&s, hash);
}

/* Said before the import, and nothing is left behind. */
static void a_read_only_output_dir_is_refused_at_once(void **state) {
    (void)state;
    scene s = scene_open();
    assert_int_equal(mkdir(s.offload, 0700), 0);
    run_write(run_path(s.dir, "script"),
              run_format("mkdir %s && mount --bind %s %s && mount -o remount,ro,bind %s || exit 77\n"
                         "%s train %s --quiet 2>%s/said; exit $?\n",
                         s.output, s.output, s.output, s.output, TM_TEST_BINARY, s.config, s.dir));
    int status = system(run_format("unshare -m sh %s/script > %s/script.said 2>&1", s.dir, s.dir));
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 2 && access(run_path(s.dir, "said"), F_OK) != 0))
        TEST_SKIP("a read-only mount takes root");
    char *said = run_read(run_path(s.dir, "said"), NULL);
    assert_int_equal(WEXITSTATUS(status), 2);
    if (!strstr(said, "run.json: cannot be written")) fail_msg("said: %s", said);
    free(said);
    assert_int_equal(run_entries(s.offload), 0);
}

/* Somebody else has the lock: named, waited for, not robbed. */
static void a_live_run_is_left_alone(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = stop(&s, SIGTERM, 1, NULL);
    expect(&r, 3, NULL);
    int fd = open(run_path(run_directory(s.output, 0), "lock"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    r = train(&s, NULL, 1, "never", NULL);
    expect(&r, 2, "in use by process ");
    r = train(&s, NULL, 1, NULL, NULL);
    if (r.seconds < 9) fail_msg("waited %.1f s only", r.seconds);
    expect(&r, 2, "in use by process ");
    close(fd);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 0, NULL);
}

/* Started in the background; it ends by itself. */
static pid_t start(const scene *s, const char *set) {
    const char *resume = "never";
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test ends it, too */
    int null = open("/dev/null", O_RDWR);
    (void)(dup2(null, 0) + dup2(null, 1) + dup2(null, 2));
    execl(TM_TEST_BINARY, "tidemill", "train", s->config, "--resume", resume, "--set", set, NULL);
    _exit(127);
}

/* Nothing on a disk but the log, so no lock of a run directory: OUTPUT_DIR itself is held. */
static void two_runs_never_write_to_one_output_dir(void **state) {
    (void)state;
    scene s = scene_open();
    const char *log = run_path(s.output, "log.jsonl"), *sets[] = {"max_steps=100000", "max_steps=2"};
    run_write(s.config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 16}, \"commit_steps\": 0,"
                         " \"memory\": {\"host_budget\": \"unlimited\"}, \"output_dir\": \"%s\"}\n",
                         s.model, s.rows, s.output));
    pid_t pid = start(&s, sets[0]);
    assert_true(pid > 0);
    for (int i = 0; access(log, R_OK) != 0 && i < 40000; i++) usleep(5000);
    run_result r = run((run_opts){0}, "train", s.config, "--quiet", "--resume", "never", "--set", sets[1], NULL);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    expect(&r, 2, run_format("in use by process %d", (int)pid));
    r = run((run_opts){0}, "train", s.config, "--quiet", "--resume", "never", "--set", sets[1], NULL);
    expect(&r, 0, NULL); /* it let go with its death */
    assert_int_equal(train_log_read(s.output).steps, 2);
    /* A start that comes to nothing takes away what it made, and nothing of its neighbours'. */
    const char *above = run_path(s.dir, "above"), *mine = run_format("output_dir=%s/a/b", above);
    r = run((run_opts){0}, "train", s.config, "--quiet", "--set", mine, "--set", "data.train=nowhere.safetensors",
            NULL);
    expect(&r, 2, "nowhere");
    assert_int_not_equal(access(above, F_OK), 0);
}

/* One step is done; SIGTERM in the second one, of which each further operation takes `slow_ms`. */
static run_result stop_in_second(const scene *s, const char *grace, unsigned slow_ms) {
    const char *arguments[] = {"train", s->config, "--quiet", "--grace", grace, NULL};
    run_remove(s->output);
    run_result r =
        run((run_opts){0}, "train", s->config, "--quiet", "--set", "max_steps=1", "--set", "keep_state=true", NULL);
    RUN_OK(&r);
    run_free(&r);
    r = run_argv(&(run_opts){.signal = SIGTERM, .stop_at = "kill_op:30", .stop_again_ms = slow_ms}, arguments);
    run_remove(s->offload);
    return r;
}

/* With time enough the step is ended and committed; one that cannot be expected to end within the grace is given up,
 * and what is committed is the step before. */
static void the_grace_is_kept(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = stop_in_second(&s, "1000", 0);
    expect(&r, 3, "step 2 is committed");
    r = stop_in_second(&s, "0.2", 300);
    expect(&r, 3, "step 1 is committed");
}

/* keep_state: a finished run can be made longer. */
static void a_finished_run_can_be_made_longer(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = train(&s, NULL, 1, NULL, "keep_state=true");
    expect(&r, 0, NULL);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 0, "holds the finished run of this job, 24 steps");
    r = train(&s, NULL, 0, NULL, "max_steps=30");
    expect(&r, 0, "going on from step 24");
    assert_int_equal(train_log_read(s.output).steps, 30);
}

/* save_state: older states are whole copies. From one of them, by name or because the commit is damaged, the run comes
 * to the same end; a checkpoint that is damaged itself is not used. */
static void full_checkpoints_are_gone_back_to(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = reference(&s);
    const char *sets = "save_state=true";
    const char *env[] = {"TIDEMILL_FAULT=kill_after_rename:9:now:once", NULL};
    for (unsigned way = 1; way < 4; way += 2) {
        run_result r = train(&s, &(run_opts){.env = env}, way, NULL, sets);
        expect(&r, 128 + SIGKILL, NULL);
        const char *checkpoint = run_path(s.output, "checkpoint-20");
        assert_int_equal(access(run_path(checkpoint, "state/manifest"), R_OK), 0);
        const char *given_up = run_directory(s.output, 0);
        run_damage(run_path(given_up, "manifest"), 100);
        r = train(&s, NULL, way - 1, NULL, sets);
        expect(&r, 0, "going back to the newest full checkpoint");
        assert_string_equal(train_log_read(s.output).hash, hash);
        r = train(&s, NULL, way, checkpoint, sets);
        expect(&r, 0, "going on from step 20");
        assert_string_equal(train_log_read(s.output).hash, hash);
        run_damage(run_path(checkpoint, "state/exp_avg"), 5000);
        r = train(&s, NULL, way, checkpoint, sets);
        expect(&r, 1, "exp_avg: the 64 KiB page at offset 0 is not what was written");
        run_remove(given_up);
        assert_int_equal(run_entries(s.offload) + run_entries(run_path(s.output, "offload")), 0);
        run_remove(s.output);
    }
}

static void flipped(const char *path) {
    run_damage(path, 5000);
}

static void cut_off(const char *path) {
    assert_int_equal(truncate(path, 5000), 0);
}

static void lost(const char *path) {
    assert_int_equal(unlink(path), 0);
}

static void flipped_everywhere(const char *path) { /* either slot */
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (off_t at = 5000; at < st.st_size; at += 4096) run_damage(path, at);
}

/* The manifest is whole, what it names is not: a file that is missing or short is seen at once, a page when it is read,
 * and then the start after that reads all of them. `--resume auto` goes on by itself, or says why it cannot. */
static void damaged_state_is_gone_back_from(void **state) {
    (void)state;
    static const struct {
        void (*damage)(const char *path);
        const char *says;
        bool when_read;
    } cases[] = {{lost, "exp_avg: is missing", false},
                 {cut_off, "exp_avg: holds 5000 bytes", false},
                 {flipped_everywhere, "exp_avg: the 64 KiB page", true}};
    scene s = scene_open();
    const char *hash = reference(&s), *env[] = {"TIDEMILL_FAULT=kill_after_rename:6:now:once", NULL};
    for (unsigned i = 0; i < 2 * TM_COUNT(cases); i++) {
        const char *sets = i % 2 ? "save_state=true" : NULL;
        run_result r = train(&s, &(run_opts){.env = env}, 0, NULL, sets);
        expect(&r, 128 + SIGKILL, NULL);
        const char *given_up = run_directory(s.output, 0);
        cases[i / 2].damage(run_path(given_up, "exp_avg"));
        if (cases[i / 2].when_read) {
            r = train(&s, NULL, 0, NULL, sets);
            expect(&r, 1, "the same command reads all of that commit first");
        }
        r = train(&s, NULL, 0, NULL, sets);
        if (!strstr(r.err, cases[i / 2].says)) fail_msg("%s", r.err);
        expect(&r, sets ? 0 : 1, sets ? "going back to the newest full checkpoint" : NULL);
        if (sets) assert_string_equal(train_log_read(s.output).hash, hash);
        run_remove(given_up);
        if (!sets) { /* and what is gone is not started over, but told where to go on */
            r = train(&s, NULL, 0, NULL, NULL);
            expect(&r, 2, "is gone; if the state lies elsewhere now, --resume");
        }
        run_remove(s.output);
    }
}

/* What was read is whole: damage that was met otherwise (a page that was not of the commit) is no reason to go back. */
static void a_commit_that_is_whole_is_gone_on_from(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = reference(&s), *env[] = {"TIDEMILL_FAULT=kill_after_rename:9:now:once", NULL};
    run_result r = train(&s, &(run_opts){.env = env}, 0, NULL, "save_state=true");
    expect(&r, 128 + SIGKILL, NULL);
    size_t n;
    char *text = run_read(run_path(s.output, "run.json"), &n), *at = strstr(text, "\"running\"");
    assert_non_null(at);
    memcpy(at, "\"damaged\"", 9);
    run_write(run_path(s.output, "run.json"), text);
    free(text);
    r = train(&s, NULL, 0, NULL, "save_state=true");
    if (strstr(r.err, "going back")) fail_msg("%s", r.err);
    expect(&r, 0, "all of its commit is read before it goes on");
    assert_string_equal(train_log_read(s.output).hash, hash);
    run_remove(s.output);
    assert_int_equal(run_entries(s.offload), 0);
}

/* The newest one is damaged as well: the one before it, and both refusals are said. */
static void older_checkpoints_are_gone_back_to(void **state) {
    (void)state;
    static const struct {
        void (*damage)(const char *path);
        const char *says;
    } cases[] = {{flipped, "exp_avg: the 64 KiB page"}, {cut_off, "exp_avg: ends at byte"}, {lost, "exp_avg: no such"}};
    scene s = scene_open();
    const char *hash = reference(&s);
    const char *env[] = {"TIDEMILL_FAULT=kill_after_rename:9:now:once", NULL};
    for (unsigned i = 0; i < TM_COUNT(cases); i++) {
        run_result r = run((run_opts){.env = env}, "train", s.config, "--quiet", "--set", "save_state=true", "--set",
                           "save_total_limit=2", NULL);
        expect(&r, 128 + SIGKILL, NULL);
        const char *given_up = run_directory(s.output, 0);
        run_damage(run_path(given_up, "manifest"), 100);
        cases[i].damage(run_path(s.output, "checkpoint-20/state/exp_avg"));
        r = run((run_opts){0}, "train", s.config, "--quiet", "--set", "save_state=true", "--set", "save_total_limit=2",
                NULL);
        RUN_OK(&r);
        const char *at = strstr(r.err, "checkpoint-20; ");
        at = at ? strstr(at, cases[i].says) : NULL;
        if (!at || !strstr(at, "checkpoint-10; ")) fail_msg("%s", r.err);
        run_free(&r);
        assert_string_equal(train_log_read(s.output).hash, hash);
        run_remove(given_up);
        run_remove(s.output);
    }
}

/* A full checkpoint is copied before it is known whether the run may begin: if it may not, the copy goes. So it does
 * where a copied output_dir turns out to be finished. */
static void copies_for_nothing_go(void **state) {
    (void)state;
    static const char *const sets[] = {"learning_rate=0.5", "memory.host_budget=1MiB"};
    scene s = scene_open(), other = s;
    (void)reference(&s);
    run_result r = train(&s, NULL, 1, NULL, "save_state=true");
    expect(&r, 0, NULL);
    for (unsigned i = 0; i < TM_COUNT(sets); i++) {
        r = train(&s, NULL, 1, run_path(s.output, "checkpoint-20"), sets[i]);
        expect(&r, 2, NULL);
        assert_int_equal(run_entries(s.offload) + run_entries(run_path(s.output, "offload")), 0);
    }
    const char *at_home[] = {
        "train", s.config, "--resume", run_path(s.output, "checkpoint-20"), "--set", "zero_optimization=null",
        "--set", sets[0],  NULL};
    r = run_argv(&(run_opts){0}, at_home); /* nor does the folder stay that was made for it */
    expect(&r, 2, "lr was 0.01, is 0.5");
    assert_int_not_equal(access(run_path(s.output, "offload"), F_OK), 0);
    r = train(&s, NULL, 1, "never", "keep_state=true");
    expect(&r, 0, NULL);
    r = train(&s, NULL, 1, run_path(s.output, "checkpoint-20"), NULL); /* a model now, and nothing else */
    expect(&r, 2, "checkpoint-20: no state lies there");
    assert_int_equal(run_entries(s.offload), 1);
    char *was = run_read(s.config, NULL), *keys = strchr(was, '{') + 1;
    run_write(s.config, run_format("{\"keep_state\": true, %s", keys));
    free(was);
    other.output = run_path(s.dir, "other");
    run_copy_model(s.output, other.output);
    r = train(&other, NULL, 1, NULL, run_format("output_dir=%s", other.output));
    expect(&r, 0, "holds the finished run of this job");
    assert_int_equal(run_entries(s.offload), 1);
}

static run_result clean(const char *path, const char *option, const char *other) {
    const char *arguments[] = {"clean", path, option, option ? other : NULL, NULL};
    return run_argv(&(run_opts){0}, arguments);
}

/* What can be resumed stays unless that is said; what is in use stays; what a dead run left goes when it is said. */
static void clean_removes_nothing_by_surprise(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = reference(&s);
    const char *env[] = {"TIDEMILL_FAULT=kill_op:40:now:once", NULL}; /* before the first commit */
    run_result r = train(&s, &(run_opts){.env = env}, 1, NULL, NULL);
    expect(&r, 128 + SIGKILL, NULL);
    assert_int_equal(run_entries(s.offload), 1);
    r = clean(s.offload, NULL, NULL);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "dead"));
    assert_int_equal(run_entries(s.offload), 1); /* it was only asked */
    run_free(&r);
    r = clean(s.offload, "--yes", NULL);
    expect(&r, 0, NULL);
    assert_int_equal(run_entries(s.offload), 0);
    run_remove(s.output);
    r = stop(&s, SIGTERM, 1, NULL);
    expect(&r, 3, NULL);
    r = clean(s.offload, "--yes", "--json");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\"state\": \"commit\""));
    assert_non_null(strstr(r.out, "\"removed\": false"));
    run_free(&r);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 0, "going on from step");
    expect_finished(&s, hash);
    run_remove(s.output);
    r = stop(&s, SIGTERM, 1, NULL);
    expect(&r, 3, NULL);
    r = clean(s.offload, "--yes", "--all");
    expect(&r, 0, NULL);
    assert_int_equal(run_entries(s.offload), 0);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 2, "is gone"); /* and then says so, instead of starting over by itself */
    r = clean("nowhere", NULL, NULL);
    expect(&r, 2, "nowhere");
}

/* State over two paths: one manifest, both directories. */
static void commits_span_paths(void **state) {
    (void)state;
    static const char *const points[] = {"kill_in_manifest:1", "kill_before_sync:2", "kill_after_rename:2",
                                         "kill_restore:1"};
    scene s = scene_open();
    const char *hash = reference(&s);
    char *text = run_read(s.config, NULL), *at;
    tm_buf b = {0};
    const char *one = run_format("\"nvme_path\": \"%s\"", s.offload);
    for (char *from = text;; from = at + strlen(one)) {
        at = strstr(from, one);
        RUN_EXPECT_STATUS(tm_buf_append(&b, from, at ? (size_t)(at - from) : strlen(from)));
        if (!at) break;
        RUN_EXPECT_STATUS(tm_buf_printf(&b, "\"nvme_path\": [\"%s/a\", \"%s/b\"]", s.offload, s.offload));
    }
    run_write(s.config, b.data);
    tm_buf_free(&b);
    free(text);
    for (unsigned i = 0; i < TM_COUNT(points); i++) {
        const char *env[] = {run_format("TIDEMILL_FAULT=%s:now:once", points[i]), NULL};
        run_result r = train(&s, &(run_opts){.env = env}, i == 3 ? 2 : 1, NULL, NULL);
        expect(&r, 128 + SIGKILL, NULL);
        assert_int_equal(run_entries(run_path(s.offload, "a")), 1);
        assert_int_equal(run_entries(run_path(s.offload, "b")), 1);
    }
    run_result r = clean(run_path(s.offload, "b"), "--yes", NULL);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "part of a commit"));
    run_free(&r);
    r = train(&s, NULL, 1, NULL, NULL);
    expect(&r, 0, NULL);
    assert_string_equal(train_log_read(s.output).hash, hash);
    assert_int_equal(run_entries(run_path(s.offload, "a")) + run_entries(run_path(s.offload, "b")), 0);
}

/* The only run directory of an offload path. */
static const char *only_entry(const char *dir) {
    char name[256] = "";
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') snprintf(name, sizeof name, "%s", e->d_name);
    (void)closedir(d);
    assert_int_equal(run_entries(dir), 1);
    return run_path(dir, name);
}

static bool has(const char *dir, const char *name) {
    return access(run_path(dir, name), F_OK) == 0;
}

/* Weights in the path of offload_param, what updates them in that of offload_optimizer, temporaries in both. */
static void expect_apart(const char *params, const char *optimizer) {
    assert_true(has(params, "weight_hi"));
    assert_false(has(params, "weight_lo") || has(params, "exp_avg") || has(params, "exp_avg_sq") ||
                 has(params, "grad"));
    assert_true(has(optimizer, "weight_lo") && has(optimizer, "exp_avg") && has(optimizer, "exp_avg_sq"));
    assert_false(has(optimizer, "weight_hi"));
}

static void set_paths(const scene *s, const char *params, const char *optimizer) {
    char *text = run_read(s->config, NULL), *old = text;
    const char *one = run_format("\"nvme_path\": \"%s\"", s->offload);
    char *first = strstr(text, one), *second = strstr(first + 1, one);
    *first = *second = 0;
    run_write(s->config, run_format("%s\"nvme_path\": \"%s\"%s\"nvme_path\": \"%s\"%s", old, params,
                                    first + strlen(one), optimizer, second + strlen(one)));
    free(text);
}

/* offload_param and offload_optimizer name different paths: each is used for its state, and for no other; killed, gone
 * on with, and gone back to a full checkpoint. */
static void each_section_has_its_path(void **state) {
    (void)state;
    scene s = scene_open();
    const char *hash = reference(&s), *params = run_path(s.dir, "p"), *optimizer = run_path(s.dir, "o");
    set_paths(&s, params, optimizer);
    const char *env[] = {"TIDEMILL_FAULT=kill_after_rename:2:now:once", NULL};
    run_result r = train(&s, &(run_opts){.env = env}, 1, NULL, NULL);
    expect(&r, 128 + SIGKILL, NULL);
    expect_apart(only_entry(params), only_entry(optimizer));
    assert_int_equal(run_entries(s.offload), 0);
    r = clean(params, "--yes", NULL);
    assert_int_equal(r.status, 0);
    run_free(&r);
    r = clean(optimizer, "--yes", NULL);
    assert_int_equal(r.status, 0);
    run_free(&r);
    r = train(&s, NULL, 2, NULL, NULL);
    expect(&r, 0, NULL);
    assert_string_equal(train_log_read(s.output).hash, hash);
    assert_int_equal(run_entries(params) + run_entries(optimizer), 0);
    r = train(&s, NULL, 1, "never", "save_state=true");
    expect(&r, 0, NULL);
    env[0] = "TIDEMILL_FAULT=kill_before_rename:1:now:once";
    r = train(&s, &(run_opts){.env = env}, 1, run_path(s.output, "checkpoint-20"), "save_state=true");
    expect(&r, 128 + SIGKILL, NULL);
    expect_apart(only_entry(params), only_entry(optimizer));
    r = train(&s, NULL, 1, NULL, "save_state=true");
    expect(&r, 0, NULL);
    assert_string_equal(train_log_read(s.output).hash, hash);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]); /* of names: "kills*" */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(kills_at_random_instants_change_nothing, run_clean),
        cmocka_unit_test_teardown(kills_at_named_points_change_nothing, run_clean),
        cmocka_unit_test_teardown(signals_commit_and_the_run_goes_on, run_clean),
        cmocka_unit_test_teardown(a_resume_that_does_not_fit_is_refused, run_clean),
        cmocka_unit_test_teardown(a_live_run_is_left_alone, run_clean),
        cmocka_unit_test_teardown(two_runs_never_write_to_one_output_dir, run_clean),
        cmocka_unit_test_teardown(the_grace_is_kept, run_clean),
        cmocka_unit_test_teardown(another_output_dir_takes_a_copy, run_clean),
        cmocka_unit_test_teardown(a_read_only_output_dir_is_refused_at_once, run_clean),
        cmocka_unit_test_teardown(clean_removes_nothing_by_surprise, run_clean),
        cmocka_unit_test_teardown(full_checkpoints_are_gone_back_to, run_clean),
        cmocka_unit_test_teardown(older_checkpoints_are_gone_back_to, run_clean),
        cmocka_unit_test_teardown(damaged_state_is_gone_back_from, run_clean),
        cmocka_unit_test_teardown(a_commit_that_is_whole_is_gone_on_from, run_clean),
        cmocka_unit_test_teardown(copies_for_nothing_go, run_clean),
        cmocka_unit_test_teardown(commits_span_paths, run_clean),
        cmocka_unit_test_teardown(each_section_has_its_path, run_clean),
        cmocka_unit_test_teardown(a_finished_run_can_be_made_longer, run_clean),
    };
    return cmocka_run_group_tests_name("train_commit", tests, NULL, NULL);
}

/* `tidemill data`, and training on files of every form: what is said of them is what they hold. */
#include "run.h"
#include "io/file/file.h"
#include "tests/support/skip.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

/* Folder "d": three lines, one of them no JSON; a list of two; a CSV of two rows. Beside it two lines, and a column that
 * needs a name. */
static const char *job(const char *dir) {
    const char *config = run_path(dir, "c.json");
    RUN_EXPECT_STATUS(tm_make_dirs(run_path(dir, "d")));
    run_write(run_path(dir, "d/a.jsonl"), "{\"text\": \"one\"}\n{\"text\": \n\n{\"text\": \"two\"}\n");
    run_write(run_path(dir, "d/b.json"),
              "{\"data\": [{\"text\": \"three\"}, {\"question\": \"four?\", \"answer\": \"4\"}]}");
    run_write(run_path(dir, "d/c.csv"), "question,answer\n\"five,\nsix?\",5 6\nseven?,\"\"\"7\"\"\"\n");
    run_write(run_path(dir, "d/README.md"), "no data");
    run_write(run_path(dir, "e.txt"),
              "eight\n\nnine nine nine nine nine nine nine nine nine nine nine nine nine nine nine nine nine\n");
    run_write(config,
              run_format("{\"model\": \"%s\", \"output_dir\": \"%s/out\", \"data\": {\"train\": [\"%s/d\", {\"path\": "
                         "\"%s/e.txt\", \"weight\": 2}], \"columns\": {\"question\": \"prompt\", \"answer\": "
                         "\"completion\"}, \"seq_len\": 16}, \"max_steps\": 2, \"memory\": {\"allow_tmpfs\": true}}\n",
                         TINY, dir, dir, dir));
    return config;
}

static uint64_t number(const tm_json *of, const char *key) {
    const tm_json *v = tm_json_get(of, key);
    if (!v || v->type != TM_JSON_NUMBER) fail_msg("\"%s\" is no number", key);
    return (uint64_t)v->integer;
}

static void counts_are_of_the_files(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir);
    tm_json_doc *doc;
    run_result r = run((run_opts){0}, "data", config, "--json", NULL);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "data --json", 0, 0));
    const tm_json *root = tm_json_root(doc), *train = tm_json_get(root, "train");
    assert_int_equal(number(train, "records"), 9);
    assert_int_equal(number(train, "bad"), 1);
    assert_int_equal(number(train, "samples"), 2 + 2 + 2 + 2 * 2);
    assert_int_equal(number(train, "truncated"), 1);
    assert_int_equal(number(train, "longest"), 16);
    uint64_t rows = 0;
    for (const tm_json *b = tm_json_get(train, "lengths")->child; b; b = b->next) rows += number(b, "rows");
    assert_int_equal(rows, 10);
    const tm_json *problem = tm_json_get(root, "problems")->child;
    assert_string_equal(tm_json_get(problem, "place")->text, run_format("%s/d/a.jsonl:2", dir));
    assert_true(tm_json_is(tm_json_get(problem, "kind"), "bad"));
    assert_string_equal(tm_json_get(problem->next, "place")->text, run_format("%s/e.txt:3", dir));
    assert_true(tm_json_is(tm_json_get(problem->next, "kind"), "truncated"));
    assert_null(problem->next->next);
    tm_json_free(doc);
    run_free(&r);
}

/* A dozen of lengths at most, whatever the longest is: 155 was cut into sixteen. */
static void lengths_fit(void **state) {
    (void)state;
    static const unsigned longest[] = {11, 119, 120, 131, 155, 227, 1199, 1201};
    const char *dir = run_dir(), *config = job(dir), *file = run_path(dir, "long.txt");
    tm_buf text = {0};
    for (int i = 0; i < 1500; i++) RUN_EXPECT_STATUS(tm_buf_printf(&text, "%c ", 'a' + i % 26));
    run_write(file, text.data);
    tm_buf_free(&text);
    for (size_t i = 0; i < TM_COUNT(longest); i++) {
        tm_json_doc *doc;
        run_result r = run((run_opts){0}, "data", config, "--json", "--set", run_format("data.train=%s", file), "--set",
                           run_format("data.seq_len=%u", longest[i]), NULL);
        RUN_OK(&r);
        RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "data --json", 0, 0));
        const tm_json *train = tm_json_get(tm_json_root(doc), "train"), *bins = tm_json_get(train, "lengths");
        assert_int_equal(number(train, "longest"), longest[i]);
        assert_in_range(bins->count, 1, 12);
        const tm_json *last = bins->child;
        while (last->next) last = last->next;
        assert_int_equal(number(last, "rows"), 1);
        assert_in_range(longest[i], number(last, "from"), number(last, "to"));
        tm_json_free(doc);
        run_free(&r);
    }
}

static void text_shows_samples(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir);
    run_result r = run((run_opts){0}, "data", config, "--samples", "1", "--from", "5", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.out, "10 samples of 9 records"));
    assert_non_null(strstr(r.out, "d/a.jsonl:2: left out: column"));
    assert_non_null(strstr(r.out, "⟦five,\n  | six?⟧5 6"));
    assert_null(strstr(r.out, "sample 4 of 10"));
    run_free(&r);
    r = run((run_opts){0}, "data", config, "--from", "11", NULL);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "--from 11: there are 10 samples"));
    run_free(&r);
    assert_false(tm_path_exists(run_path(dir, "out"))); /* nothing was begun */
}

/* What it says is what a run learns. */
static void training_takes_them(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir);
    run_result r =
        run((run_opts){0}, "train", config, "--set", "data.split_dataset_ratio=2", "--set", "eval_steps=1", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "held out: 2 samples"));
    run_free(&r);
}

/* A model that is its config.json alone has the tokenizer that the configuration names. */
static void a_tokenizer_of_its_own(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir);
    run_result r = run((run_opts){0}, "data", config, "--set", "model=" TINY "/config.json", "--set", "init=random",
                       "--set", "tokenizer=" TINY, NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.out, "10 samples of 9 records"));
    run_free(&r);
}

static void refused(const char *config, const char *set, const char *why) {
    run_result r = run((run_opts){0}, "data", config, "--set", set, NULL);
    assert_int_equal(r.status, 2);
    if (!strstr(r.err, why)) fail_msg("'%s' is not in: %s", why, r.err);
    run_free(&r);
}

static void a_folder_with_nothing_to_read(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir), *set = run_format("data.train=%s/p", dir);
    RUN_EXPECT_STATUS(tm_make_dirs(run_path(dir, "p")));
    refused(config, set, "has no data file in it");
    run_write(run_path(dir, "p/x.parquet"), "PAR1\x15\x04");
    refused(config, set, "x.parquet: a Parquet file, which is not read here; make JSONL of it");
}

/* ---- tokens that lie on disk ---------------------------------------------------------------------------------------- */

/* More of them than stay in memory: nothing is learned of them here. */
static const char *large_job(const char *dir) {
    enum { ROWS = 50000 };
    const char *config = run_path(dir, "large.json");
    tm_buf text = {0};
    for (int i = 0; i < ROWS; i++)
        RUN_EXPECT_STATUS(tm_buf_printf(&text,
                                        "{\"text\": \"%d boats of %d, %d nets, and %x: a tide that nobody would "
                                        "have known; so they waited, %d of them, until it turned, at %o and %d "
                                        "%x %x %x %x %x %x.\"}\n",
                                        i, i * 7, i * 11, i * 13, i % 9, i, i * 3, i * 101, i * 103, i * 107, i * 109,
                                        i * 113, i * 127));
    run_write(run_path(dir, "large.jsonl"), text.data);
    tm_buf_free(&text);
    run_write(config,
              run_format("{\"model\": \"%s\", \"output_dir\": \"%s/out\", \"data\": {\"train\": \"%s/large.jsonl\", "
                         "\"seq_len\": 256}, \"max_steps\": 100000, \"lr_scheduler_type\": \"constant\", "
                         "\"memory\": {\"allow_tmpfs\": true}}\n",
                         TINY, dir, dir));
    return config;
}

static tm_status find_tokens(void *ctx, const char *name, bool is_dir) {
    (void)is_dir;
    if (strncmp(name, ".tokens-train-", 14) == 0) snprintf(ctx, 64, "%s", name);
    return TM_OK;
}

/* The file of tokens in OUTPUT_DIR; NULL: there is none. */
static const char *tokens_in(const char *output) {
    char name[64] = "";
    RUN_EXPECT_STATUS(tm_list_dir(output, find_tokens, name));
    return *name ? run_path(output, run_format("%s", name)) : NULL;
}

static run_result interrupted(const char *config, const char *output) {
    run_result r =
        run((run_opts){.signal = SIGINT, .signal_when = run_path(output, "log.jsonl"), .signal_after_ms = 300}, "train",
            config, NULL);
    if (r.status != 3) fail_msg("%d: %s", r.status, r.err);
    return r;
}

/* So many steps were committed. */
static long committed(const run_result *r) {
    const char *at = strstr(r->err, "stopped by signal 2; step ");
    if (!at) fail_msg("%s", r->err);
    return strtol(at + 26, NULL, 10);
}

static void tokens_are_kept_for_the_next_start(void **state) {
    (void)state;
    static const char used[] = "tokenised by an earlier start, which is used";
    const char *dir = run_dir(), *config = large_job(dir), *output = run_path(dir, "out");
    run_result r = interrupted(config, output);
    assert_null(strstr(r.err, used));
    const char *more = run_format("max_steps=%ld", committed(&r) + 2);
    run_free(&r);
    assert_non_null(tokens_in(output));
    r = run((run_opts){0}, "train", config, "--set", "max_steps=1", NULL);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "max_steps is 1; raise it"));
    run_free(&r);
    assert_non_null(tokens_in(output)); /* a start that is refused leaves what it has not made */
    run_write(run_path(output, ".tokens-train-0123456789abcdef"), "of data that were others");
    r = run((run_opts){0}, "train", config, "--set", more, NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, used));
    assert_non_null(strstr(r.err, "going on from step")); /* the same data, or it would be refused */
    assert_null(tokens_in(output)); /* nothing is left of a run that is finished, nor what no run can use */
    run_free(&r);
    r = run((run_opts){0}, "train", config, "--resume", "never", "--set", "max_steps=2", "--set", "data.seq_len=128",
            NULL);
    RUN_OK(&r);
    assert_null(strstr(r.err, used));
    run_free(&r);
}

static void damaged_tokens_are_made_again(void **state) {
    (void)state;
    TEST_SKIP_SANITIZED("data that outgrow memory, again");
    const char *dir = run_dir(), *config = large_job(dir), *output = run_path(dir, "out");
    run_result r = interrupted(config, output);
    long step = committed(&r);
    run_free(&r);
    const char *tokens = tokens_in(output);
    struct stat st;
    assert_int_equal(stat(tokens, &st), 0);
    run_damage(tokens, st.st_size - 40);
    r = run((run_opts){0}, "train", config, "--set", run_format("max_steps=%ld", step + 2), NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "damaged; the data are read again"));
    assert_non_null(strstr(r.err, "going on from step")); /* and they are the same data */
    run_free(&r);
}

/* ---- clean -------------------------------------------------------------------------------------------------------- */

static void cleaned(const char *path, const char *option, const char *says) {
    run_result r = run((run_opts){0}, "clean", path, "--yes", option, NULL);
    if (r.status != 0 || !strstr(r.out, says)) fail_msg("clean %s: %d: %s%s", path, r.status, r.out, r.err);
    run_free(&r);
}

/* Of a run that goes on they stay, unless that is said; while a process has the folder all stays. */
static void clean_knows_whose_tokens_are_of_use(void **state) {
    (void)state;
    TEST_SKIP_SANITIZED("data that outgrow memory, again");
    static const char *const left[] = {".tokens-4711-0", ".tmp-0123456789abcdef-.tokens-train-0123456789abcdef",
                                       ".tmp-0123456789abcdef-.tokens-4711-1"};
    static const char *const theirs[] = {".tokens-notes", ".tokens-train-0123", ".tmp-0123456789abcdef-thesis",
                                         ".tokens-eval-0123456789abcdefx"};
    const char *dir = run_dir(), *config = large_job(dir), *output = run_path(dir, "out");
    run_result r = interrupted(config, output);
    const char *more = run_format("max_steps=%ld", committed(&r) + 2);
    run_free(&r);
    for (size_t i = 0; i < TM_COUNT(left); i++) run_write(run_path(output, left[i]), "x");
    for (size_t i = 0; i < TM_COUNT(theirs); i++) run_write(run_path(output, theirs[i]), "x");
    tm_dir_lock *lock;
    RUN_EXPECT_STATUS(tm_lock_dir(&lock, output, 0));
    cleaned(output, "--all", "in use");
    tm_unlock_dir(lock);
    for (size_t i = 0; i < TM_COUNT(left); i++) assert_true(tm_path_exists(run_path(output, left[i])));
    struct stat st;
    char size[32];
    assert_int_equal(stat(tokens_in(output), &st), 0);
    cleaned(output, NULL, "(tokenised data, for a run that can go on)");
    for (size_t i = 0; i < TM_COUNT(left); i++) assert_false(tm_path_exists(run_path(output, left[i])));
    assert_non_null(tokens_in(output));
    const char *said = tm_format_size((uint64_t)st.st_blocks * 512, size, sizeof size);
    cleaned(output, "--all", run_format("removed %s, %s", tokens_in(output), said));
    for (size_t i = 0; i < TM_COUNT(theirs); i++) run_remove(run_path(output, theirs[i]));
    assert_null(tokens_in(output));
    r = run((run_opts){0}, "train", config, "--set", more, NULL);
    RUN_OK(&r);
    assert_null(strstr(r.err, "which is used")); /* it goes on, and has read the data again */
    run_free(&r);
    run_write(run_path(output, ".tokens-train-0123456789abcdef"), "x");
    run_write(run_path(output, "run.json"), "{\"status\": \"finished\"}"); /* no run's of ours */
    cleaned(output, "--all", "no run directories");
    assert_non_null(tokens_in(output));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(counts_are_of_the_files, run_clean),
        cmocka_unit_test_teardown(lengths_fit, run_clean),
        cmocka_unit_test_teardown(text_shows_samples, run_clean),
        cmocka_unit_test_teardown(training_takes_them, run_clean),
        cmocka_unit_test_teardown(a_tokenizer_of_its_own, run_clean),
        cmocka_unit_test_teardown(a_folder_with_nothing_to_read, run_clean),
        cmocka_unit_test_teardown(tokens_are_kept_for_the_next_start, run_clean),
        cmocka_unit_test_teardown(damaged_tokens_are_made_again, run_clean),
        cmocka_unit_test_teardown(clean_knows_whose_tokens_are_of_use, run_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* `tidemill plan` by the data's own lengths: seconds and tokens are means over the run, memory is that of the longest
 * row, and the whole run is counted. */
#include "run.h"
#include "tests/support/skip.h"

#include <stdlib.h>
#include <math.h>
#include <string.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

/* A line of so many words, each of them a few tokens. */
static void add_line(tm_buf *out, unsigned words) {
    RUN_EXPECT_STATUS(tm_buf_printf(out, "{\"text\": \""));
    for (unsigned i = 0; i < words; i++) RUN_EXPECT_STATUS(tm_buf_printf(out, "%sword", i ? " " : ""));
    RUN_EXPECT_STATUS(tm_buf_printf(out, "\"}\n"));
}

/* 64 lines: the first of `longest` words, the others of `others`. */
static const char *data(const char *dir, const char *name, unsigned longest, unsigned others) {
    const char *path = run_path(dir, name);
    tm_buf text = {0};
    add_line(&text, longest);
    for (int i = 1; i < 64; i++) add_line(&text, others);
    run_write(path, text.data);
    tm_buf_free(&text);
    return path;
}

static const char *job(const char *dir, const char *model, const char *train) {
    bool weights = access(run_path(model, "model.safetensors"), R_OK) == 0;
    const char *config = run_path(dir, run_format("%s.json", strrchr(train, '/') + 1));
    run_write(
        config,
        run_format("{\"model\": \"%s\", \"init\": \"%s\", \"data\": {\"train\": \"%s\", \"eval\": \"%s\","
                   " \"seq_len\": 512}, \"gradient_accumulation_steps\": 2, \"num_train_epochs\": 2,"
                   " \"output_dir\": \"%s/out\", \"eval_steps\": 20, \"commit_steps\": 30, \"save_steps\": 25,"
                   " \"memory\": {\"cache\": \"none\", \"allow_tmpfs\": true},"
                   " \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\":"
                   " \"%s/offload\"}, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s/offload\"}}}\n",
                   model, weights ? "pretrained" : "random", train, train, dir, dir, dir));
    return config;
}

/* By rates alone: nothing of what this machine does at the moment enters. */
static tm_json_doc *plan(const char *dir, const char *config, const char *set) {
    const char *env[] = {run_format("TIDEMILL_PROFILE=%s/none.json", dir), NULL};
    const char *arguments[] = {"plan", config, "--json", "--no-measure", set ? "--set" : NULL, set, NULL};
    tm_json_doc *doc;
    run_result r = run_argv(&(run_opts){.env = env}, arguments);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
    run_free(&r);
    return doc;
}

static double number(const tm_json_doc *doc, const char *key) {
    const tm_json *v = tm_json_get(tm_json_root(doc), key);
    if (!v || v->type != TM_JSON_NUMBER) fail_msg("plan: \"%s\" is no number", key);
    return v->number;
}

static const char *text(const tm_json_doc *doc, const char *key) {
    const tm_json *v = tm_json_get(tm_json_root(doc), key);
    if (!v || v->type != TM_JSON_STRING) fail_msg("plan: \"%s\" is no text", key);
    return v->text;
}

/* One row of 64 is long: memory has to be there for it, the other steps do not take as long. */
static void seconds_are_means_and_memory_is_not(void **state) {
    (void)state;
    const char *dir = run_dir();
    tm_json_doc *mixed = plan(dir, job(dir, TINY, data(dir, "mixed.jsonl", 100, 10)), "memory.update=U");
    tm_json_doc *alike = plan(dir, job(dir, TINY, data(dir, "alike.jsonl", 100, 100)), "memory.update=U");
    assert_true(number(mixed, "seq") == number(alike, "seq"));
    double ids = 768 * 1024, least = number(mixed, "minimum_host_bytes"); /* ids: the files themselves are not alike */
    assert_true(number(alike, "minimum_host_bytes") >= least && number(alike, "minimum_host_bytes") - least < ids);
    tm_json_doc *brief = plan(dir, job(dir, TINY, data(dir, "brief.jsonl", 10, 10)), "memory.update=U");
    assert_true(least - number(brief, "minimum_host_bytes") > 2 * ids);
    tm_json_free(brief);
    const tm_json *busy[] = {tm_json_get(tm_json_root(mixed), "busy_seconds"),
                             tm_json_get(tm_json_root(alike), "busy_seconds")};
    double m = tm_json_get(busy[0], "compute")->number, a = tm_json_get(busy[1], "compute")->number;
    if (m > a / 2) fail_msg("%g s a step with short rows, %g s with long ones", m, a);
    assert_true(number(alike, "tokens_per_step") < number(alike, "padded_tokens_per_step")); /* to multiples of 64 */
    tm_json_free(mixed);
    tm_json_free(alike);
}

/* `rows` rows of `seq` ids, each of documents of `each`; one token in `every` has a label. */
static const char *rows_of(const char *dir, const char *name, uint64_t rows, uint64_t seq, uint64_t each,
                           uint64_t every) {
    static const char *const names[] = {"input_ids", "labels", "segment_ids"};
    static int64_t ids[4096], labels[4096], segment[4096];
    const int64_t *const columns[] = {ids, labels, segment};
    const char *path = run_path(dir, name);
    const uint64_t shape[] = {rows, seq};
    tm_st_writer *w;
    uint32_t at;
    for (uint64_t i = 0; i < rows * seq; i++) {
        ids[i] = (int64_t)(i % 200);
        labels[i] = i % every == 0 ? ids[i] : -100;
        segment[i] = (int64_t)(i % seq / each) + 1;
    }
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, path));
    for (size_t i = 0; i < TM_COUNT(names); i++)
        RUN_EXPECT_STATUS(tm_st_writer_add(w, names[i], TM_FMT_I64, 2, shape, &at));
    for (uint32_t i = 0; i < TM_COUNT(names); i++)
        RUN_EXPECT_STATUS(tm_st_writer_write(w, i, 0, columns[i], rows * seq * sizeof *ids));
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    return path;
}

static const char *documents(const char *dir, const char *name, uint64_t rows, uint64_t seq, uint64_t each) {
    return rows_of(dir, name, rows, seq, each, 1);
}

static double compute_seconds(const char *dir, const char *train, const char *set) {
    tm_json_doc *doc = plan(dir, job(dir, TINY, train), set);
    double seconds = tm_json_get(tm_json_get(tm_json_root(doc), "busy_seconds"), "compute")->number;
    tm_json_free(doc);
    return seconds;
}

/* Rows of several documents take what rows of one of them take, as many tokens a step. */
static void documents_are_attended_alone(void **state) {
    (void)state;
    const char *dir = run_dir();
    double whole = compute_seconds(dir, documents(dir, "whole.safetensors", 8, 512, 512), NULL),
           packed = compute_seconds(dir, documents(dir, "packed.safetensors", 8, 512, 32), NULL),
           apart =
               compute_seconds(dir, documents(dir, "apart.safetensors", 128, 32, 32), "per_device_train_batch_size=16");
    if (!(packed < whole * 0.95)) fail_msg("%g s packed, %g s of one document", packed, whole);
    if (!(packed > apart * 0.98 && packed < apart * 1.02)) fail_msg("%g s packed, %g s apart", packed, apart);
}

/* The vocabulary's products are of tokens that have a label, and of no others: of a quarter of the labels they take a
 * quarter. */
static void labels_decide_the_head(void **state) {
    (void)state;
    const char *dir = run_dir();
    double all = compute_seconds(dir, rows_of(dir, "all.safetensors", 8, 512, 512, 1), NULL),
           some = compute_seconds(dir, rows_of(dir, "some.safetensors", 8, 512, 512, 4), NULL),
           few = compute_seconds(dir, rows_of(dir, "few.safetensors", 8, 512, 512, 16), NULL);
    double ratio = (all - some) / (some - few);
    if (!(some < 0.98 * all && fabs(ratio - 4) < 0.04)) fail_msg("%g, %g, %g s: %g", all, some, few, ratio);
}

/* Tokens, steps and bytes of the whole run, held against what train then counts; what is read by `reads` of it. */
static void run_is_that_of_train(const char *set, double reads) {
    const char *dir = run_dir(), *model = run_path(dir, "model");
    run_result r = run((run_opts){0}, "convert", TINY, model, "--init", "random", NULL);
    RUN_OK(&r);
    run_free(&r);
    const char *config = job(dir, model, data(dir, "mixed.jsonl", 80, 10));
    tm_json_doc *doc = plan(dir, config, set);
    r = run((run_opts){0}, "train", config, "--set", set, NULL);
    RUN_OK(&r);
    train_log log = train_log_read(run_path(dir, "out"));
    assert_true(number(doc, "run_steps") == 64 && log.steps == 64);
    double tokens = 0;
    for (unsigned i = 0; i < log.steps; i++) tokens += (double)log.step[i].tokens;
    assert_true(number(doc, "tokens_per_step") * 64 == tokens);
    double read = 0, wrote = 0, models = 0, found, planned = number(doc, "run_write_bytes") * 1e-9;
    const char *line = strstr(r.err, ", read ");
    assert_true(line && sscanf(line, ", read %lf GB, wrote %lf GB (import and commits included) and %lf GB of models",
                               &read, &wrote, &models) == 3);
    found = wrote + models;
    if (planned < found * 0.99 || planned > found * 1.01) fail_msg("%g GB planned, %g GB written", planned, found);
    planned = number(doc, "run_read_bytes") * 1e-9;
    if (fabs(planned - read) > read * reads) fail_msg("%g GB planned, %g GB read (%s)", planned, read, set);
    assert_true(number(doc, "run_models") == 3 && number(doc, "run_evaluations") == 4);
    line = strstr(r.err, "to come: 64 steps, about ");
    if (!line) fail_msg("train does not say what is to come: %s", r.err);
    line = strstr(r.err, "planned and found: ");
    if (!line) fail_msg("train does not say what came of it: %s", r.err);
    line = strstr(line, "a step ");
    line = strstr(line, "; ");
    double said = 0, was = -1;
    assert_true(line && sscanf(line, "; %lf and %lf GB to the offload paths", &said, &was) == 2);
    if (said < was * 0.99 || said > was * 1.01) fail_msg("train said %g GB and wrote %g", said, was);
    run_free(&r);
    tm_json_free(doc);
}

static void whole_run(void **state) {
    (void)state;
    TEST_SKIP_SANITIZED("a whole run by each update");
    run_is_that_of_train("memory.update=U", 0.02);
    run_is_that_of_train("memory.update=F", 0.02);
    run_is_that_of_train("tuner_type=lora", 0.2); /* the hash at the end reads a tile once for each of its tensors */
}

/* Each evaluation but the last, of which the model at the end is the folder, may be the best so far. */
static void best_models_count(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = job(dir, TINY, data(dir, "mixed.jsonl", 80, 10));
    tm_json_doc *doc = plan(dir, config, "save_strategy=best");
    assert_true(number(doc, "run_evaluations") == 4 && number(doc, "run_models") == 4);
    tm_json_free(doc);
}

/* Without data or a tokenizer the rows are of seq_len, and the report says so; the run is null where it is not known. */
static void without_data(void **state) {
    (void)state;
    const char *dir = run_dir(), *bare = run_path(dir, "bare"), *train = data(dir, "mixed.jsonl", 80, 10);
    run_copy_model(TINY, bare);
    run_remove(run_path(bare, "tokenizer.json"));
    tm_json_doc *doc = plan(dir, job(dir, bare, train), "max_steps=7");
    assert_string_equal(text(doc, "rows_basis"), "rows of data.seq_len, 512 tokens: the model has no tokenizer.json");
    assert_true(number(doc, "run_steps") == 7 && number(doc, "seq") == 512);
    tm_json_free(doc);
    doc = plan(dir, job(dir, bare, train), NULL);
    const tm_json *steps = tm_json_get(tm_json_root(doc), "run_steps");
    assert_true(steps && steps->type == TM_JSON_NULL);
    tm_json_free(doc);
    doc = plan(dir, job(dir, TINY, train), NULL);
    assert_string_equal(text(doc, "rows_basis"), "lengths of all 64 samples of data.train");
    tm_json_free(doc);
}

/* Of a large file the first 64 MiB are read: what is beyond is taken to be like it, but for its longest row. */
static void large_data_are_read_in_part(void **state) {
    (void)state;
    enum { BLANK = 130 << 20 }; /* blanks of one line: nothing to tokenise */
    const char *dir = run_dir(), *path = run_path(dir, "large.jsonl");
    tm_buf out = {0};
    for (int i = 0; i < 32; i++) add_line(&out, 10);
    size_t head = out.len;
    RUN_EXPECT_STATUS(tm_buf_reserve(&out, BLANK + 1));
    memset(out.data + head, ' ', BLANK);
    for (size_t at = head; at < head + BLANK; at += 1 << 16) out.data[at] = '\n';
    out.data[head + BLANK] = 0;
    run_write(path, out.data);
    tm_buf_free(&out);
    tm_json_doc *doc = plan(dir, job(dir, TINY, path), NULL);
    const char *basis = text(doc, "rows_basis");
    if (strncmp(basis, "lengths of the first 32 samples, 49% of data.train; its longest row", 67) != 0)
        fail_msg("rows: %s", basis);
    assert_true(number(doc, "seq") == 512);
    double steps = number(doc, "run_steps"); /* 2 epochs of 32 / 0.492 samples, two a step */
    assert_true(steps >= 64 && steps <= 68);
    tm_json_free(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(seconds_are_means_and_memory_is_not, run_clean),
        cmocka_unit_test_teardown(documents_are_attended_alone, run_clean),
        cmocka_unit_test_teardown(labels_decide_the_head, run_clean),
        cmocka_unit_test_teardown(whole_run, run_clean),
        cmocka_unit_test_teardown(best_models_count, run_clean),
        cmocka_unit_test_teardown(without_data, run_clean),
        cmocka_unit_test_teardown(large_data_are_read_in_part, run_clean),
    };
    return cmocka_run_group_tests_name("train_plan_rows", tests, NULL, NULL);
}

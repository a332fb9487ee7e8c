/* Wrong input: exit 2, one line that names the thing, and no file that was not there before. */
#include "run.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- what is on the disk --------------------------------------------------------------------------------- */

static tm_buf listing;

static int list_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)ftw;
    if (kind == FTW_F) RUN_EXPECT_STATUS(tm_buf_printf(&listing, "%s %lld\n", path, (long long)st->st_size));
    return 0;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Every file below DIR with its size, sorted. */
static const char *files_below(const char *dir) {
    char *line[1024], *save = NULL;
    unsigned n = 0;
    tm_buf sorted = {0};
    tm_buf_clear(&listing);
    RUN_EXPECT_STATUS(tm_buf_append(&listing, "", 0));
    (void)nftw(dir, list_one, 16, FTW_PHYS);
    for (char *at = strtok_r(listing.data, "\n", &save); at && n < 1024; at = strtok_r(NULL, "\n", &save))
        line[n++] = at;
    qsort(line, n, sizeof *line, by_text);
    RUN_EXPECT_STATUS(tm_buf_append(&sorted, "", 0));
    for (unsigned i = 0; i < n; i++) RUN_EXPECT_STATUS(tm_buf_printf(&sorted, "%s\n", line[i]));
    const char *text = run_format("%s", sorted.data);
    tm_buf_free(&sorted);
    return text;
}

/* ---- a job that would run, but for one thing ------------------------------------------------------------- */

typedef struct scene {
    const char *dir, *model, *rows, *config, *output, *offload;
} scene;

static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    s.model = run_path(s.dir, "model");
    s.rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", s.model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(s.rows, golden, 0, 4, 16, false);
    tm_st_close(golden);
    run_write(s.config,
              run_format("{\"model\": \"%s\",\n \"data\": {\"train\": \"%s\", \"seq_len\": 16},\n"
                         " \"precision\": \"fp32\", \"max_steps\": 2, \"output_dir\": \"%s\",\n"
                         " \"memory\": {\"cache\": \"none\"},\n"
                         " \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
                         "\"%s\"},\n  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                         s.model, s.rows, s.output, s.offload, s.offload));
    return s;
}

/* The rule itself. `named`: what the line must say. */
static void refused_argv(const scene *s, const char *named, const char *input, const char *const *arguments) {
    const char *before = files_below(s->dir), *line;
    run_result r = run_argv(&(run_opts){.input = input, .timeout_s = 60}, arguments);
    if (r.status != 2) fail_msg("exit status %d instead of 2 where '%s' is wrong; stderr: %s", r.status, named, r.err);
    unsigned n = run_error_lines(r.err, &line);
    if (n != 1) fail_msg("%u lines of error instead of 1 where '%s' is wrong: %s", n, named, r.err);
    if (!strstr(line, named)) fail_msg("'%s' is not named in: %s", named, line);
    size_t len = strlen(r.err);
    if (len == 0 || r.err[len - 1] != 0x0a) fail_msg("stderr does not end its line: %s", r.err);
    const char *after = files_below(s->dir);
    if (strcmp(before, after) != 0) fail_msg("where '%s' is wrong, files were\n%sand are\n%s", named, before, after);
    run_free(&r);
}

static void refused(const scene *s, const char *named, ...) __attribute__((sentinel));
static void refused(const scene *s, const char *named, ...) {
    const char *arguments[32];
    unsigned n = 0;
    va_list args;
    va_start(args, named);
    while (n < 31 && (arguments[n] = va_arg(args, const char *))) n++;
    va_end(args);
    arguments[n] = NULL;
    refused_argv(s, named, NULL, arguments);
}

/* `train` with --set: refused, and not even its output folder is there. */
static void refused_set(const scene *s, const char *named, const char *set) {
    refused(s, named, "train", s->config, "--set", set, NULL);
    if (access(s->output, F_OK) == 0) fail_msg("--set %s: %s was left", set, s->output);
}

static void test_the_job_runs(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = run((run_opts){0}, "train", s.config, NULL);
    RUN_OK(&r);
    assert_int_equal(run_error_lines(r.err, NULL), 0);
    run_free(&r);
    (void)train_log_read(s.output);
    assert_int_equal(run_entries(s.offload), 0); /* run directories go on success */
    /* and what is finished is not run again unless that is asked for */
    const char *before = files_below(s.dir);
    r = run((run_opts){0}, "train", s.config, NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "holds the finished run of this job"));
    run_free(&r);
    assert_string_equal(before, files_below(s.dir));
    refused(&s, "out", "train", s.config, "--resume", s.output, NULL);
    r = run((run_opts){0}, "train", s.config, "--resume", "never", NULL);
    RUN_OK(&r);
    run_free(&r);
}

static void test_configuration(void **state) {
    (void)state;
    scene s = scene_open();
    run_copy(TM_TEST_FIXTURES "/tok_gpt2/tokenizer.json", run_path(s.model, "tokenizer.json"));
    refused(&s, "nowhere.json", "train", "nowhere.json", NULL);
    refused(&s, "--help", "train", NULL);
    refused(&s, "two.json", "train", s.config, "two.json", NULL);
    refused(&s, "--steps", "train", s.config, "--steps", "2", NULL);
    refused(&s, "somewhere", "train", s.config, "--resume", "somewhere", NULL);
    const char *other = run_path(s.dir, "other");
    assert_int_equal(mkdir(other, 0700), 0);
    run_write(run_path(other, "run.json"), "{\"status\": \"running\", \"run_directories\": [\"gone\"],"
                                           " \"directories_by_rank\": [1, 1]}");
    refused(&s, run_format("%s/run.json is damaged: it names the directories of 1 of 2 ranks", other), "train",
            s.config, "--set", "commit_steps=1", "--resume", other, NULL);
    run_write(run_path(other, "run.json"), "{\"status\": ");
    refused(&s, run_format("%s/run.json:1:", other), "train", s.config, "--resume", other, NULL);
    run_remove(other);
    static const struct {
        const char *set, *named;
    } wrong[] = {
        {"per_device_train_batchsize=2", "per_device_train_batch_size"},
        {"memory.hostbudget=1GiB", "host_budget"},
        {"zero_optimization.ofload_param={}", "offload_param"},
        {"memory.host_budget=lots", "lots"},
        {"memory.io_engine=smoke", "smoke"},
        {"learning_rate=-1", "learning_rate"},
        {"learning_rate=fast", "learning_rate"},
        {"max_steps=1.5", "max_steps"},
        {"precision=fp8", "fp8"},
        {"adapter={\"type\": \"loha\"}", "loha"},
        {"data.packing=true", "packing"},
        {"data.format=csv", "csv"},
        {"objective.type=dpo", "chosen_input_ids"},
        {"objective.type=grpo", "grpo"},
        {"memory.update=B", "memory.update"},
        {"memory.device=cuda:0", "cuda:0"},
        {"memory.slots=3", "slots"},
        {"lr_scheduler_type=sawtooth", "sawtooth"},
        {"deepspeed=nowhere.json", "nowhere.json"},
        {"model=nowhere", "nowhere"},
        {"model=/dev/null", "/dev/null"},
        {"data.train=nowhere.jsonl", "nowhere.jsonl"},
        {"data.train=nowhere.safetensors", "nowhere.safetensors"},
        {"data.eval=nowhere.jsonl", "nowhere.jsonl"},
        {"memory.host_budget=1MiB", "1048576"},
        {"max_steps", "max_steps"},
        {"=3", "--set"},
    };
    for (unsigned i = 0; i < TM_COUNT(wrong); i++) refused_set(&s, wrong[i].named, wrong[i].set);
    refused(&s, "train_batch_size", "train", s.config, "--set", "train_batch_size=7", "--set",
            "per_device_train_batch_size=2", NULL); /* 7 is not 2 rows x a number of micro-batches */
    refused(&s, "train_batch_size", "train", s.config, "--set", "train_batch_size=8", "--set",
            "train_micro_batch_size_per_gpu=2", "--set", "gradient_accumulation_steps=2", NULL);
    /* hundreds of TB of checkpoint folders, all of which would be kept */
    refused(&s, "save_total_limit", "train", s.config, "--set", "max_steps=5000000000", "--set", "save_steps=1",
            "--set", "save_total_limit=4000000000", NULL);
    if (access(s.output, F_OK) == 0) fail_msg("%s was left", s.output);
    const char *elsewhere = run_path(s.dir, "elsewhere"), *log = run_path(s.output, "log.jsonl");
    run_write(elsewhere, "somebody's own lines\n");
    assert_int_equal(mkdir(s.output, 0700), 0);
    assert_int_equal(symlink(elsewhere, log), 0);
    refused(&s, "log.jsonl", "train", s.config, NULL);
    assert_int_equal(unlink(log), 0);
    assert_int_equal(rmdir(s.output), 0);
    run_write(s.config, "{\"model\": \"m\",\n \"data\": {\"train\": \"t.jsonl\",}\n \"seed\": 1}\n");
    refused(&s, "config.json:3", "train", s.config, NULL);
    run_write(s.config, "[]");
    refused(&s, "config.json", "train", s.config, NULL);
    run_write(s.config, "");
    refused(&s, "config.json", "train", s.config, NULL);
    run_write(s.config, "{\"seed\": 1, \"seed\": 2}");
    refused(&s, "seed", "train", s.config, NULL);
}

/* ---- models ---------------------------------------------------------------------------------------------- */

/* A key of the model's config.json gets another value. */
static void change_config(const scene *s, const char *key, const char *value) {
    const char *path = run_path(s->model, "config.json");
    char *text = run_read(path, NULL);
    char *at = strstr(text, run_format("\"%s\": ", key));
    assert_non_null(at);
    at += strlen(key) + 4;
    const char *rest = at + strcspn(at, ",\n");
    run_write(path, run_format("%.*s%s%s", (int)(at - text), text, value, rest));
    free(text);
}

static void test_model(void **state) {
    (void)state;
    scene s = scene_open();
    const char *weights = run_path(s.model, "model.safetensors"), *config = run_path(s.model, "config.json");
    struct stat st;
    assert_int_equal(stat(weights, &st), 0);
    off_t cuts[] = {st.st_size - 1, st.st_size / 2, 100, 7, 0};
    for (unsigned i = 0; i < TM_COUNT(cuts); i++) {
        assert_int_equal(truncate(weights, cuts[i]), 0);
        refused(&s, "model.safetensors", "train", s.config, NULL);
    }
    assert_int_equal(unlink(weights), 0);
    refused(&s, "model", "train", s.config, NULL);
    /* tensors of another model: other names, then other shapes */
    run_copy(TM_TEST_FIXTURES "/safetensors_special/tensors.safetensors", weights);
    refused(&s, "missing", "train", s.config, NULL);
    run_copy(TM_TEST_FIXTURES "/arch_mistral/model.safetensors", weights);
    change_config(&s, "intermediate_size", "84");
    refused(&s, "mlp", "train", s.config, NULL);
    static const struct {
        const char *key, *value, *named;
    } wrong[] = {
        {"model_type", "\"mamba\"", "mamba"},
        {"num_attention_heads", "0", "num_attention_heads"},
        {"num_attention_heads", "5", "num_"},
        {"hidden_size", "-64", "hidden_size"},
        {"hidden_size", "1000000000000", "hidden_size"},
        {"num_hidden_layers", "1000000000000", "num_hidden_layers"},
        {"vocab_size", "0", "vocab_size"},
        {"hidden_act", "\"tanh\"", "hidden_act"},
        {"rope_type", "\"spiral\"", "spiral"},
    };
    for (unsigned i = 0; i < TM_COUNT(wrong); i++) {
        run_copy_model(TM_TEST_FIXTURES "/arch_llama", s.model);
        change_config(&s, wrong[i].key, wrong[i].value);
        refused(&s, wrong[i].named, "train", s.config, NULL);
    }
    run_write(config, "{\"model_type\": ");
    refused(&s, s.model, "train", s.config, NULL);
    assert_int_equal(unlink(config), 0);
    refused(&s, "config.json", "train", s.config, NULL);
    const char *gguf = run_path(s.dir, "x.gguf");
    run_write(gguf, "GGUF and then nothing");
    refused_set(&s, "x.gguf", run_format("model=%s", gguf));
}

/* Headers that lie: every malformed file of the fixture, as the model's weights and as data. */
static void test_headers_that_lie(void **state) {
    (void)state;
    static const char *const bad[] = {"empty_file",
                                      "header_longer_than_file",
                                      "hole",
                                      "huge_header_length",
                                      "json_array",
                                      "negative_shape",
                                      "not_json",
                                      "offsets_past_end",
                                      "offsets_reversed",
                                      "overlap",
                                      "shape_overflow",
                                      "short_length",
                                      "size_mismatch",
                                      "trailing_bytes",
                                      "truncated_data",
                                      "unknown_dtype"};
    scene s = scene_open();
    for (unsigned i = 0; i < TM_COUNT(bad); i++) {
        const char *file = run_format("%s/safetensors_bad/%s.safetensors", TM_TEST_FIXTURES, bad[i]);
        refused_set(&s, bad[i], run_format("data.train=%s", file));
        run_copy(file, run_path(s.model, "model.safetensors"));
        refused(&s, "model.safetensors", "train", s.config, NULL);
        refused(&s, "model.safetensors", "probe", "--model", s.model, "--input", s.rows, "--output",
                run_path(s.dir, "o.safetensors"), NULL);
    }
}

static void test_shards(void **state) {
    (void)state;
    scene s = scene_open();
    run_remove(s.model);
    run_copy_model(TM_TEST_FIXTURES "/safetensors_sharded", s.model);
    const char *index = run_path(s.model, "model.safetensors.index.json");
    assert_int_equal(unlink(run_path(s.model, "model-00002-of-00003.safetensors")), 0);
    refused(&s, "model-00002-of-00003.safetensors", "train", s.config, NULL);
    run_write(index, "{\"weight_map\": {\"lm_head.weight\": \"../rows.safetensors\"}}");
    refused(&s, "../rows.safetensors", "train", s.config, NULL);
    run_write(index, "{\"weight_map\": 3}");
    refused(&s, "index.json", "train", s.config, NULL);
}

/* ---- data ------------------------------------------------------------------------------------------------ */

typedef struct column {
    const char *name;
    tm_fmt fmt;
    uint32_t ndim;
    uint64_t shape[2];
    int64_t first; /* element 0; the others are 1 */
} column;

static const char *write_columns(const scene *s, const column *c, unsigned n) {
    const char *path = run_path(s->dir, "data.safetensors");
    tm_st_writer *w;
    uint32_t t;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, path));
    for (unsigned i = 0; i < n; i++)
        RUN_EXPECT_STATUS(tm_st_writer_add(w, c[i].name, c[i].fmt, c[i].ndim, c[i].shape, &t));
    for (unsigned i = 0; i < n; i++) {
        uint64_t elements = c[i].shape[0] * (c[i].ndim == 2 ? c[i].shape[1] : 1);
        int64_t v[64];
        assert_true(elements <= 64);
        for (unsigned k = 0; k < elements; k++) v[k] = k == 0 ? c[i].first : 1;
        uint64_t bytes = elements * (tm_fmt_get(c[i].fmt)->block_bytes);
        RUN_EXPECT_STATUS(tm_st_writer_write(w, i, 0, v, bytes));
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    return path;
}

#define COLUMNS(s, ...)                                                                                                \
    write_columns(s, (const column[]){__VA_ARGS__}, sizeof((const column[]){__VA_ARGS__}) / sizeof(column))

static void test_rows(void **state) {
    (void)state;
    scene s = scene_open();
    const char *set = run_format("data.train=%s", run_path(s.dir, "data.safetensors"));
    const column ids = {"input_ids", TM_FMT_I64, 2, {2, 8}, 1}, labels = {"labels", TM_FMT_I64, 2, {2, 8}, 1};
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 2, {0, 8}, 1}, {"labels", TM_FMT_I64, 2, {0, 8}, 1});
    refused_set(&s, "data.safetensors", set); /* no rows */
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 2, {2, 0}, 1}, {"labels", TM_FMT_I64, 2, {2, 0}, 1});
    refused_set(&s, "data.safetensors", set);
    static const int64_t outside[] = {256, -1, INT64_MAX, INT64_MIN};
    for (unsigned i = 0; i < TM_COUNT(outside); i++) {
        COLUMNS(&s, {"input_ids", TM_FMT_I64, 2, {2, 8}, outside[i]}, labels);
        refused_set(&s, run_format("%lld", (long long)outside[i]), set);
    }
    int64_t far[] = {256, -2};
    for (unsigned i = 0; i < TM_COUNT(far); i++) {
        COLUMNS(&s, ids, {"labels", TM_FMT_I64, 2, {2, 8}, far[i]});
        refused_set(&s, run_format("%lld", (long long)far[i]), set);
    }
    column bad_label = {"labels", TM_FMT_I64, 2, {8, 2}, 1};
    COLUMNS(&s, ids, bad_label);
    refused_set(&s, "labels", set);
    COLUMNS(&s, labels);
    refused_set(&s, "input_ids", set);
    COLUMNS(&s, {"input_ids", TM_FMT_F32, 2, {2, 8}, 1}, labels);
    refused_set(&s, "input_ids", set);
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 1, {8}, 1}, labels);
    refused_set(&s, "input_ids", set);
    COLUMNS(&s, ids, labels, {"attention_mask", TM_FMT_I64, 2, {2, 4}, 1});
    refused_set(&s, "attention_mask", set);
}

static void test_jsonl(void **state) {
    (void)state;
    scene s = scene_open();
    const char *jsonl = run_path(s.dir, "data.jsonl"), *set = run_format("data.train=%s", jsonl);
    run_write(jsonl, "{\"text\": \"the tide\"}\n");
    refused_set(&s, "tokenizer.json", set);
    run_write(run_path(s.model, "tokenizer.json"), "{\"model\": {\"type\": \"WordPiece\"}}");
    refused_set(&s, "tokenizer.json", set);
    run_copy(TM_TEST_FIXTURES "/tok_gpt2/tokenizer.json", run_path(s.model, "tokenizer.json"));
    run_write(jsonl, "");
    refused_set(&s, "data.jsonl", set); /* empty */
    run_write(jsonl, "\n\n");
    refused_set(&s, "data.jsonl", set);
    run_write(jsonl, "{\"colour\": \"blue\"}\n");
    refused_set(&s, "data.jsonl", set); /* no format has such rows */
    run_write(jsonl, "{\"text\": \"the tide\"\n");
    refused_set(&s, "data.jsonl", set); /* no row is left */
    run_write(jsonl, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
    refused_set(&s, "template", set);                           /* the model has no chat template */
    refused_set(&s, s.dir, run_format("data.train=%s", s.dir)); /* a folder */
}

/* ---- places ---------------------------------------------------------------------------------------------- */

static bool is_tmpfs(const char *path) {
    struct statfs fs;
    return statfs(path, &fs) == 0 && fs.f_type == 0x01021994;
}

static void test_places(void **state) {
    (void)state;
    scene s = scene_open();
    const char *file = run_path(s.dir, "file");
    run_write(file, "x");
    refused_set(&s, "file", run_format("output_dir=%s", file));
    refused_set(&s, "file", run_format("output_dir=%s/below", file));
    const char *key = "zero_optimization.offload_optimizer.nvme_path";
    run_write(s.config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"precision\": \"fp32\",\n"
                                   " \"max_steps\": 2, \"output_dir\": \"%s\", \"memory\": {\"cache\": \"none\"},\n"
                                   " \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}}}",
                                   s.model, s.rows, s.output));
    refused_set(&s, "file", run_format("%s=%s", key, file));
    refused_set(&s, "file", run_format("%s=%s/below", key, file));
    refused_set(&s, "/proc", run_format("%s=/proc/tidemill", key));
    refused_set(&s, "/sys", run_format("%s=/sys", key));
    refused_set(&s, "too long", run_format("%s=%s/%0300d", key, s.dir, 1));
    refused_set(&s, "too long", run_format("%s=%s/%05000d", key, s.dir, 1));
}

static void test_tmpfs_is_refused(void **state) {
    (void)state;
    if (!is_tmpfs("/dev/shm")) TEST_SKIP("/dev/shm is no tmpfs here");
    scene s = scene_open();
    char dir[] = "/dev/shm/tidemill-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    const char *set = run_format("zero_optimization.offload_optimizer.nvme_path=%s", dir);
    const char *param = run_format("zero_optimization.offload_param.nvme_path=%s", dir);
    refused(&s, "allow_tmpfs", "train", s.config, "--set", set, "--set", param, NULL);
    assert_int_equal(run_entries(dir), 0);
    run_result r =
        run((run_opts){0}, "train", s.config, "--set", set, "--set", param, "--set", "memory.allow_tmpfs=true", NULL);
    RUN_OK(&r);
    run_free(&r);
    assert_int_equal(run_entries(dir), 0);
    run_remove(dir);
}

/* A file system too small for the state: found before anything was trained. */
static void test_full_disk(void **state) {
    (void)state;
    scene s = scene_open();
    const char *disk = run_path(s.dir, "disk");
    assert_int_equal(mkdir(disk, 0700), 0);
    if (mount("none", disk, "tmpfs", 0, "size=128k") != 0)
        TEST_SKIP("a small tmpfs cannot be mounted: %s", strerror(errno));
    const char *set = run_format("zero_optimization.offload_optimizer.nvme_path=%s", disk);
    const char *param = run_format("zero_optimization.offload_param.nvme_path=%s", disk);
    run_result r =
        run((run_opts){0}, "train", s.config, "--set", set, "--set", param, "--set", "memory.allow_tmpfs=true", NULL);
    unsigned left = run_entries(disk);
    assert_int_equal(umount(disk), 0);
    const char *line;
    if (r.status != 2) fail_msg("exit status %d instead of 2 on a full disk: %s", r.status, r.err);
    assert_int_equal(run_error_lines(r.err, &line), 1);
    if (!strstr(line, disk)) fail_msg("the path is not named in: %s", line);
    assert_int_equal(left, 0);
    assert_int_not_equal(access(s.output, F_OK), 0);
    run_free(&r);
}

/* `ulimit -f`: as a full disk, and not the signal that a process gets that does not expect it. */
static void test_file_size_limit(void **state) {
    (void)state;
    scene s = scene_open();
    struct rlimit was;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    const struct rlimit small = {65536, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    run_result r = run((run_opts){0}, "train", s.config, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    const char *line;
    if (r.status != 2) fail_msg("exit status %d instead of 2 where no file may grow: %s", r.status, r.err);
    assert_int_equal(run_error_lines(r.err, &line), 1);
    if (!strstr(line, s.offload)) fail_msg("the path is not named in: %s", line);
    assert_int_equal(run_entries(s.offload), 0);
    run_free(&r);
}

/* ---- the other commands ---------------------------------------------------------------------------------- */

static void test_probe(void **state) {
    (void)state;
    scene s = scene_open();
    const char *in = run_path(s.dir, "data.safetensors"), *out = run_path(s.dir, "o.safetensors");
    const column ids = {"input_ids", TM_FMT_I64, 2, {2, 8}, 1}, labels = {"labels", TM_FMT_I64, 2, {2, 8}, 1};
#define PROBE(named, ...) refused(&s, named, "probe", "--model", s.model, "--input", in, "--output", out, __VA_ARGS__)
    PROBE("data.safetensors", NULL); /* is not there */
    COLUMNS(&s, labels);
    PROBE("input_ids", NULL);
    COLUMNS(&s, ids);
    PROBE("labels", "--grads", NULL);
    PROBE("fp8", "--precision", "fp8", NULL);
    PROBE("adapter", "--adapter", s.dir, NULL);
    PROBE("at least", "--host-budget", "1MiB", NULL);
    refused(&s, "--input", "probe", "--model", s.model, "--output", out, NULL);
    refused(&s, "nowhere", "probe", "--model", "nowhere", "--input", in, "--output", out, NULL);
    refused(&s, "nowhere", "probe", "--model", s.model, "--input", in, "--output", "nowhere/o.safetensors", NULL);
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 2, {2, 8}, 256});
    PROBE("256", NULL);
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 2, {2, 8}, -1});
    PROBE("-1", NULL);
    COLUMNS(&s, {"input_ids", TM_FMT_F32, 2, {2, 8}, 1});
    PROBE("input_ids", NULL);
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 1, {8}, 1});
    PROBE("input_ids", NULL);
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 2, {0, 8}, 1});
    PROBE("input_ids", NULL);
    COLUMNS(&s, ids, {"labels", TM_FMT_I64, 2, {8, 2}, 1});
    PROBE("labels", NULL);
    COLUMNS(&s, ids, {"attention_mask", TM_FMT_I64, 2, {8, 2}, 1});
    PROBE("attention_mask", NULL);
    COLUMNS(&s, ids, {"token_type_ids", TM_FMT_I64, 2, {2, 8}, 1});
    PROBE("token_type_ids", NULL);
}

static void test_eval_and_generate(void **state) {
    (void)state;
    scene s = scene_open();
    const char *jsonl = run_path(s.dir, "data.jsonl"), *messages = run_path(s.dir, "messages.json");
    refused(&s, "nowhere.safetensors", "eval", "--model", s.model, "--data", "nowhere.safetensors", NULL);
    refused(&s, "nowhere", "eval", "--model", "nowhere", "--data", s.rows, NULL);
    refused(&s, "--data", "eval", "--model", s.model, NULL);
    refused(&s, "at least", "eval", "--model", s.model, "--data", s.rows, "--host-budget", "1MiB", NULL);
    run_write(jsonl, "{\"text\": \"the tide\"}\n");
    refused(&s, "tokenizer.json", "eval", "--model", s.model, "--data", jsonl, NULL);
    refused(&s, "tokenizer.json", "generate", "--model", s.model, "--prompt", "the tide", NULL);
    run_copy(TM_TEST_FIXTURES "/tok_gpt2/tokenizer.json", run_path(s.model, "tokenizer.json"));
    run_write(jsonl, "");
    refused(&s, "data.jsonl", "eval", "--model", s.model, "--data", jsonl, NULL);
    refused(&s, "--prompt", "generate", "--model", s.model, NULL);
    refused(&s, "--prompt", "generate", "--model", s.model, "--prompt", "x", "--messages", messages, NULL);
    refused(&s, "messages.json", "generate", "--model", s.model, "--messages", messages, NULL);
    run_write(messages, "{\"messages\": ");
    refused(&s, "messages.json", "generate", "--model", s.model, "--messages", messages, NULL);
    refused(&s, "out of range", "generate", "--model", s.model, "--prompt", "x", "--temperature=-1", NULL);
    refused(&s, "nowhere", "generate", "--model", "nowhere", "--prompt", "x", NULL);
    COLUMNS(&s, {"input_ids", TM_FMT_I64, 2, {2, 8}, 1}, {"labels", TM_FMT_I64, 2, {2, 8}, 1},
            {"token_type_ids", TM_FMT_I64, 2, {2, 8}, 1});
    refused(&s, "token_type_ids", "eval", "--model", s.model, "--data", run_path(s.dir, "data.safetensors"), NULL);
}

/* As many as said: with 0 the prompt is encoded and nothing is generated. */
static void test_generates_none(void **state) {
    (void)state;
    static const char *const model = TM_TEST_FIXTURES "/../../examples/tiny";
    run_result r = run((run_opts){0}, "generate", "--model", model, "--prompt", "the tide", "--max-new-tokens", "0",
                       "--json", NULL);
    RUN_OK(&r);
    if (!strstr(r.out, "\"ids\": []") || !strstr(r.out, "\"finish_reason\": \"length\""))
        fail_msg("printed: %s", r.out);
    run_free(&r);
}

static void test_convert_and_text(void **state) {
    (void)state;
    scene s = scene_open();
    const char *out = run_path(s.dir, "converted");
    refused(&s, "nowhere", "convert", "nowhere", out, NULL);
    refused(&s, "q9", "convert", s.model, out, "--dtype", "q9", NULL);
    refused(&s, "model", "convert", s.model, s.model, NULL); /* not empty */
    refused(&s, "64", "convert", s.model, out, "--host-budget", "1MiB", NULL);
    refused(&s, "tokenizer.json", "tokenize", "--model", s.model, NULL);
    refused(&s, "template", "chat", "--model", TM_TEST_FIXTURES "/tok_gpt2", NULL);
    const char *const tokenize[] = {"tokenize", "--model", TM_TEST_FIXTURES "/tok_gpt2", NULL};
    refused_argv(&s, "1", "{\"text\": \n", tokenize);
    refused_argv(&s, "text", "{\"txt\": \"x\"}\n", tokenize);
    refused_argv(&s, "stdin line 2: column 2: ", "\n{]\n", tokenize);
    refused_argv(&s, "every line has to be one JSON object, --help shows one", "a tide", tokenize);
    assert_int_equal(truncate(run_path(s.model, "model.safetensors"), 5000), 0);
    refused(&s, "model.safetensors", "convert", s.model, out, NULL);
    assert_int_not_equal(access(out, F_OK), 0);
}

/* ---- signals --------------------------------------------------------------------------------------------- */

static void check_signal(int number) {
    scene s = scene_open();
    run_result r = run((run_opts){.signal = number, .signal_when = run_path(s.output, "log.jsonl")}, "train", s.config,
                       "--set", "max_steps=1000000", "--set", "commit_steps=0", NULL);
    const char *line;
    if (r.status != 1) fail_msg("exit status %d instead of 1 after signal %d: %s", r.status, number, r.err);
    assert_int_equal(run_error_lines(r.err, &line), 1);
    assert_non_null(strstr(line, run_format("%d", number)));
    assert_int_equal(run_entries(s.offload), 0);
    assert_int_not_equal(access(run_path(s.output, "model.safetensors"), F_OK), 0);
    run_free(&r);
    /* what is left - the log - does not stand in the way of another run */
    r = run((run_opts){0}, "train", s.config, NULL);
    RUN_OK(&r);
    run_free(&r);
    (void)train_log_read(s.output);
}

/* Wrong in the way that people are wrong who come from elsewhere: what to do is said. */
static void test_what_newcomers_type(void **state) {
    (void)state;
    scene s = scene_open();
    static const char *const commands[] = {"train", "plan"};
    for (unsigned i = 0; i < 2; i++) {
        const char *c = commands[i];
        refused(&s, "is more than there is", c, s.config, "--set", "memory.host_budget=900TiB", NULL);
        refused(&s, "memory.host_budget", c, s.config, "--set", "memory.host_budget=1gig", NULL);
        refused(&s, "there is no such file", c, s.config, "--set", "data.train=absent.jsonl", NULL);
        refused(&s, "absent.jsonl", c, s.config, "--set", "data.eval=absent.jsonl", NULL);
        refused(&s, "hf download HuggingFaceTB/SmolLM2-135M", c, s.config, "--set", "model=HuggingFaceTB/SmolLM2-135M",
                NULL);
        refused(&s, "did you mean '--max_steps'?", c, s.config, "--max_step", "2", NULL);
        refused(&s, "did you mean '--learning_rate'?", c, s.config, "--learning_rat=1e-4", NULL);
    }
    run_result r = run((run_opts){0}, "help", "train", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.out, "usage: tidemill train [CONFIG]"));
    run_free(&r);
}

/* plan tells what train would: a row longer than the model has positions, what "auto" became; a machine by its name. */
static void test_plan_says_beforehand(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = run((run_opts){0}, "plan", s.config, "--no-measure", "--set", "data.seq_len=100000", "--set",
                       "gradient_clipping=auto", "--set", "max_grad_norm=0.5", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "data.seq_len 100000 is beyond the"));
    assert_non_null(strstr(r.out, "\"gradient_clipping\": 0.5"));
    run_free(&r);
    r = run((run_opts){0}, "plan", s.config, "--hardware", "1x24gb", "--set-hardware", "host_memory=128GiB", "--json",
            NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.out, "\"auto\""));
    run_free(&r);
    r = run((run_opts){0}, "train", s.config, "--set", "gradient_clipping=auto", "--set", "max_grad_norm=0.5", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "\"gradient_clipping\": 0.5"));
    run_free(&r);
}

static void test_interrupt(void **state) {
    (void)state;
    check_signal(SIGINT);
}
static void test_terminate(void **state) {
    (void)state;
    check_signal(SIGTERM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_the_job_runs, run_clean),
        cmocka_unit_test_teardown(test_configuration, run_clean),
        cmocka_unit_test_teardown(test_model, run_clean),
        cmocka_unit_test_teardown(test_headers_that_lie, run_clean),
        cmocka_unit_test_teardown(test_shards, run_clean),
        cmocka_unit_test_teardown(test_rows, run_clean),
        cmocka_unit_test_teardown(test_jsonl, run_clean),
        cmocka_unit_test_teardown(test_places, run_clean),
        cmocka_unit_test_teardown(test_tmpfs_is_refused, run_clean),
        cmocka_unit_test_teardown(test_full_disk, run_clean),
        cmocka_unit_test_teardown(test_file_size_limit, run_clean),
        cmocka_unit_test_teardown(test_probe, run_clean),
        cmocka_unit_test_teardown(test_eval_and_generate, run_clean),
        cmocka_unit_test_teardown(test_generates_none, run_clean),
        cmocka_unit_test_teardown(test_convert_and_text, run_clean),
        cmocka_unit_test_teardown(test_what_newcomers_type, run_clean),
        cmocka_unit_test_teardown(test_plan_says_beforehand, run_clean),
        cmocka_unit_test_teardown(test_interrupt, run_clean),
        cmocka_unit_test_teardown(test_terminate, run_clean),
    };
    int failed = cmocka_run_group_tests_name("train_wrong_input", tests, NULL, NULL);
    tm_buf_free(&listing);
    return failed;
}

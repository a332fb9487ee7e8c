/* Packed rows through the program: the fixtures, probed and trained; packed text beside the same text padded; one hash
 * wherever state lies, after kills and on ranks; each sample once an epoch. */
#include "run.h"
#include "tests/support/skip.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

/* ---- fixtures: documents of which transformers was given each alone ---------------------------------------------- */

static double golden_number(const char *folder, const char *block, const char *key) {
    size_t len;
    tm_json_doc *doc;
    char *text = run_read(run_format("%s/%s/golden.json", TM_TEST_FIXTURES, folder), &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, folder, 0, 0));
    const tm_json *n = tm_json_get(tm_json_get(tm_json_root(doc), block), key);
    double v = n->number;
    tm_json_free(doc);
    free(text);
    return v;
}

/* input_ids, labels and segment_ids of the fixture, as they are there. */
static const char *write_rows(const char *dir, const tm_st *golden) {
    static const char *const names[] = {"input_ids", "labels", "segment_ids"};
    const char *path = run_path(dir, "rows.safetensors");
    tm_st_writer *w;
    uint32_t at;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, path));
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        const tm_st_info *info = tm_st_get(golden, (uint32_t)tm_st_find(golden, names[i]));
        RUN_EXPECT_STATUS(tm_st_writer_add(w, names[i], TM_FMT_I64, 2, info->shape, &at));
    }
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        size_t n;
        int64_t *v = tensor_ints(golden, names[i], &n);
        RUN_EXPECT_STATUS(tm_st_writer_write(w, (uint32_t)i, 0, v, n * sizeof *v));
        free(v);
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    return path;
}

static double distance(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += pow((double)a[i] - (b ? (double)b[i] : 0), 2);
    return sqrt(sum);
}

static void near(const char *what, double got, double want, double allowed) {
    if (!(fabs(got - want) <= allowed)) fail_msg("%s: %.9g, expected %.9g within %.2g", what, got, want, allowed);
}

static void check_logits(const char *folder, const tm_st *golden, const tm_st *out) {
    size_t n;
    int64_t *segment = tensor_ints(golden, "segment_ids", &n);
    tensor got = tensor_read(out, "logits"), want = tensor_read(golden, "logits");
    size_t vocab = want.n / n;
    for (size_t t = 0; t < n; t++)
        for (size_t v = t * vocab; segment[t] && v < (t + 1) * vocab; v++)
            near("logits", (double)got.v[v], (double)want.v[v], golden_number(folder, "tolerances", "logits_max_abs"));
    free(segment), free(got.v), free(want.v);
}

static void check_gradients(const char *folder, const tm_st *golden, const tm_st *out) {
    for (uint32_t i = 0; i < tm_st_count(golden); i++) {
        const char *name = tm_st_get(golden, i)->name;
        if (strncmp(name, "grad.", 5) != 0) continue;
        tensor want = tensor_read(golden, name), got = tensor_read(out, name);
        near(name, distance(got.v, want.v, want.n), 0,
             golden_number(folder, "tolerances", "grad_rel_l2") * distance(want.v, NULL, want.n));
        free(want.v), free(got.v);
    }
}

static void check_train(const char *folder, const char *dir, const char *rows) {
    const char *config = run_path(dir, "config.json");
    static const char *const ways[][2] = {{"per_device_train_batch_size=2", "gradient_accumulation_steps=1"},
                                          {"per_device_train_batch_size=1", "gradient_accumulation_steps=2"}};
    run_write(config, run_format("{\"model\": \"%s/%s\", \"precision\": \"fp32\", \"max_steps\": 1,\n"
                                 " \"learning_rate\": 1e-3, \"data\": {\"train\": \"%s\", \"seq_len\": 64}}\n",
                                 TM_TEST_FIXTURES, folder, rows));
    for (size_t i = 0; i < TM_COUNT(ways); i++) {
        train_log log = run_train(config, run_path(dir, "out"), 0, NULL, SETS(ways[i][0], ways[i][1]));
        near("loss", log.step[0].loss, golden_number(folder, "scalars", "loss"), 1e-5);
        double norm = golden_number(folder, "scalars", "grad_norm");
        near("norm", log.step[0].grad_norm, norm, 2e-5 * norm);
        assert_int_equal(log.step[0].label_tokens, (uint64_t)golden_number(folder, "scalars", "loss_tokens"));
    }
}

static void fixtures(void **state) {
    const char *folder = *state, *dir = run_dir(), *out = run_path(dir, "out.safetensors");
    tm_st *golden = tensors_open(run_format("%s/%s/golden.safetensors", TM_TEST_FIXTURES, folder));
    const char *rows = write_rows(dir, golden), *model = run_format("%s/%s", TM_TEST_FIXTURES, folder);
    run_result r = run((run_opts){0}, "probe", "--model", model, "--input", rows, "--output", out, "--grads", NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *probed = tensors_open(out);
    tensor loss = tensor_read(probed, "loss");
    near("probed loss", (double)loss.v[0], golden_number(folder, "scalars", "loss"), 1e-5);
    check_logits(folder, golden, probed);
    check_gradients(folder, golden, probed);
    check_train(folder, dir, rows);
    free(loss.v);
    tm_st_close(probed);
    tm_st_close(golden);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

enum { SAMPLES = 75, SEQ_LEN = 96, EPOCHS = 2 };

typedef struct scene {
    const char *dir, *config;
    char hash[40]; /* that all runs must have; "" before the first */
    uint64_t tokens;
} scene;

/* Lines of one to thirty words, a few of them longer than a row. */
static const char *write_text(const char *dir) {
    static const char *const words[] = {"the", "sea", "fills", "a", "pond", "and", "turns", "one", "wheel", "slowly"};
    const char *path = run_path(dir, "text.jsonl");
    tm_buf b = {0};
    for (unsigned i = 0; i < SAMPLES; i++) {
        uint32_t r[4];
        tm_philox(9, 0, i, r);
        RUN_EXPECT_STATUS(tm_buf_printf(&b, "{\"text\": \"%u", i));
        for (unsigned k = 0; k < r[0] % (i % 20 ? 15 : 30); k++)
            RUN_EXPECT_STATUS(tm_buf_printf(&b, " %s", words[(r[1] + k * k) % TM_COUNT(words)]));
        RUN_EXPECT_STATUS(tm_buf_printf(&b, "\"}\n"));
    }
    run_write(path, b.data);
    tm_buf_free(&b);
    return path;
}

static scene scene_open(const char *precision, const char *more) {
    scene s = {.dir = run_dir()};
    s.config = run_path(s.dir, "config.json");
    run_write(s.config, run_format("{\"model\": \"%s\", \"precision\": \"%s\", \"num_train_epochs\": %d,\n"
                                   " \"learning_rate\": 1e-3, \"per_device_train_batch_size\": 2,\n"
                                   " \"gradient_accumulation_steps\": 2, \"commit_steps\": 2,\n"
                                   " \"data\": {\"train\": \"%s\", \"seq_len\": %d}%s}\n",
                                   TINY, precision, EPOCHS, write_text(s.dir), SEQ_LEN, more));
    return s;
}
#define PRETRAIN ", \"packing\": true, \"objective\": {\"type\": \"pretrain\"}"

static uint64_t tokens_of(const train_log *log) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < log->steps; i++) sum += log->step[i].tokens;
    return sum;
}

static void expect_same(scene *s, const train_log *log, const char *what) {
    if (!s->hash[0]) memcpy(s->hash, log->hash, sizeof s->hash), s->tokens = tokens_of(log);
    if (strcmp(s->hash, log->hash) != 0) fail_msg("%s: hash %s, but %s before", what, log->hash, s->hash);
    assert_int_equal(tokens_of(log), s->tokens);
}

/* All samples in one step, padded, packed, and grouped by length: the same loss and gradients to rounding. */
static void packed_is_padded(void **state) {
    (void)state;
    scene s = scene_open("fp32", "");
    const char *output = run_path(s.dir, "out"), *all = "per_device_train_batch_size=38";
    train_log padded = run_train(s.config, output, 0, NULL, SETS(all, "max_steps=1"));
    train_log packed = run_train(s.config, output, 0, NULL, SETS(all, "max_steps=1", "packing=true"));
    train_log grouped = run_train(s.config, output, 0, NULL, SETS(all, "max_steps=1", "group_by_length=true"));
    const train_log *other[] = {&packed, &grouped};
    for (size_t i = 0; i < TM_COUNT(other); i++) {
        near("loss", other[i]->step[0].loss, padded.step[0].loss, 1e-5);
        near("norm", other[i]->step[0].grad_norm, padded.step[0].grad_norm, 2e-5 * padded.step[0].grad_norm);
        assert_int_equal(other[i]->step[0].tokens, padded.step[0].tokens);
        assert_int_equal(other[i]->step[0].label_tokens, padded.step[0].label_tokens);
    }
}

static void one_hash(void **state) {
    (void)state;
    scene s = scene_open("bf16", PRETRAIN);
    static const char *const ways[][3] = {{"memory.update=U", "memory.activations=keep", "commit_steps=0"},
                                          {"memory.update=F", "memory.activations=recompute", "commit_steps=0"},
                                          {"memory.update=F", "memory.activations=spill", "memory.slots=1"}};
    train_log whole = run_train(s.config, run_path(s.dir, "whole"), 0, NULL, SETS("memory.host_budget=unlimited"));
    expect_same(&s, &whole, "in memory");
    assert_true(whole.steps > 8);
    for (size_t i = 0; i < TM_COUNT(ways); i++) {
        const char *const *w = ways[i];
        uint64_t least = run_train_minimum(s.config, run_path(s.dir, "refused"), SETS(w[0], w[1], w[2]));
        const char *budget = run_format("memory.host_budget=%llu", (unsigned long long)least);
        train_log log = run_train(s.config, run_path(s.dir, "out"), least, NULL, SETS(w[0], w[1], w[2], budget));
        assert_true(log.step[1].read_bytes > 0);
        expect_same(&s, &log, w[0]);
    }
}

/* Each sample is in each epoch once: the tokens are those of the file, whatever the rows. */
static void each_token_once_an_epoch(void **state) {
    (void)state;
    scene s = scene_open("bf16", "");
    static const char *const ways[] = {"packing_strategy=bfd_split", "packing_strategy=wrapped",
                                       "objective.type=pretrain"};
    train_log padded = run_train(s.config, run_path(s.dir, "padded"), 0, NULL, SETS("data.seq_len=512"));
    for (size_t i = 0; i < TM_COUNT(ways); i++) {
        train_log log = run_train(s.config, run_path(s.dir, "out"), 0, NULL, SETS("packing=true", ways[i]));
        assert_int_equal(tokens_of(&log), tokens_of(&padded));
        assert_true(log.steps < padded.steps);
    }
    train_log split = run_train(s.config, run_path(s.dir, "out"), 0, NULL, SETS("data.overlong=split"));
    assert_int_equal(tokens_of(&split), tokens_of(&padded));
}

static run_result start(const scene *s, const char *fault) {
    const char *env[] = {fault ? run_format("TIDEMILL_FAULT=%s", fault) : NULL, NULL};
    return run((run_opts){.env = fault ? env : NULL}, "train", s->config, "--quiet", "--set",
               run_format("output_dir=%s/out", s->dir), NULL);
}

/* Killed in each epoch and gone on with: the same bits, and no token twice or left out in the log. */
static void kills(void **state) {
    (void)state;
    static const char *const points[] = {"kill_published:1:kill:once", "kill_in_manifest:2:kill:once",
                                         "kill_op:700:kill:once", "kill_after_rename:1:kill:once"};
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("a build without fault points");
#endif
    scene s = scene_open("bf16", PRETRAIN);
    train_log whole = run_train(s.config, run_path(s.dir, "whole"), 0, NULL, SETS("memory.host_budget=unlimited"));
    expect_same(&s, &whole, "undisturbed");
    for (size_t i = 0; i < TM_COUNT(points); i++) {
        run_result r = start(&s, points[i]);
        if (r.status != 128 + SIGKILL) fail_msg("%s: exit status %d: %s", points[i], r.status, r.err);
        run_free(&r);
    }
    run_result r = start(&s, NULL);
    RUN_OK(&r);
    run_free(&r);
    train_log log = train_log_read(run_path(s.dir, "out"));
    assert_int_equal(log.steps, whole.steps);
    expect_same(&s, &log, "killed");
}

static train_log on_ranks(const scene *s, unsigned n, const char *way) {
    const char *output = run_path(s->dir, "ranks");
    const char *arguments[] = {
        "train", s->config, "--quiet", "--resume", "never", "--set", run_format("output_dir=%s", output),
        "--set", way,       NULL};
    run_result r = run_argv(&(run_opts){.ranks = n, .timeout_s = 60}, arguments);
    if (r.status != 0) fail_msg("%u ranks, %s: %s", n, way, r.err);
    run_free(&r);
    return train_log_read(output);
}

/* One hash for each number of ranks, and one rank's losses with as many rows a step. */
static void ranks(void **state) {
    (void)state;
    static const char *const ways[] = {"strategy=ddp", "strategy=zero3", "strategy=zero2", "strategy=hsdp"};
    for (unsigned n = 2; n <= 4; n += 2) {
        scene s = scene_open("bf16", PRETRAIN);
        train_log one = run_train(s.config, run_path(s.dir, "one"), 0, NULL,
                                  SETS(run_format("gradient_accumulation_steps=%u", 2 * n)));
        unsigned most = TEST_LONG("packed rows by each exact strategy") ? TM_COUNT(ways) : 2;
        for (unsigned i = 0; i < most; i++) {
            train_log log = on_ranks(&s, n, ways[i]);
            expect_same(&s, &log, ways[i]);
            assert_int_equal(log.steps, one.steps);
            for (unsigned k = 0; k < one.steps; k++) {
                assert_int_equal(log.step[k].tokens, one.step[k].tokens);
                near("loss", log.step[k].loss, one.step[k].loss, 0.01 * one.step[k].loss);
            }
        }
    }
}

/* A life of a run in OUTPUT, of four rows a step on so many ranks (1: without mpirun); a fault ends it. `steps` 0: all. */
static void live(const scene *s, const char *output, unsigned n, unsigned steps, const char *fault) {
    const char *arguments[] = {"train",
                               s->config,
                               "--quiet",
                               "--set",
                               run_format("output_dir=%s/%s", s->dir, output),
                               "--set",
                               run_format("max_steps=%u", steps),
                               "--set",
                               "lr_scheduler_type=constant",
                               "--set",
                               "train_batch_size=4",
                               "--set",
                               "per_device_train_batch_size=1",
                               "--set",
                               run_format("gradient_accumulation_steps=%u", 4 / n),
                               NULL};
    const char *env[] = {fault && n == 1 ? run_format("TIDEMILL_FAULT=%s", fault) : NULL, NULL};
    run_opts o = {.env = env, .ranks = n > 1 ? n : 0, .fault = n > 1 ? fault : NULL, .timeout_s = 60};
    run_result r = run_argv(&o, arguments);
    if ((r.status == 0) != !fault) fail_msg("%u ranks, %s: exit %d: %s", n, fault ? fault : "", r.status, r.err);
    run_free(&r);
}

/* Killed on two ranks, on one, and ended on four: at each step the samples of a run that was never interrupted; what is
 * committed is the same state on any number of ranks, and when it was killed after that is no matter. */
static void other_ranks(void **state) {
    (void)state;
    enum { COMMITTED = 4 };
    static const char *const after[] = {"kill_published:2:kill:once", "kill_before_manifest:3:kill:once"};
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("a build without fault points");
#endif
    scene s = scene_open("bf16", PRETRAIN);
    live(&s, "whole", 1, 0, NULL);
    live(&s, "brief", 2, COMMITTED, NULL);
    train_log whole = train_log_read(run_path(s.dir, "whole")), brief = train_log_read(run_path(s.dir, "brief"));
    live(&s, "ended", 2, 0, after[0]);
    live(&s, "ended", 1, COMMITTED, NULL);
    train_log ended = train_log_read(run_path(s.dir, "ended"));
    assert_string_equal(ended.hash, brief.hash);
    for (size_t i = 0; i < TM_COUNT(after); i++) {
        const char *output = run_format("killed-%zu", i);
        live(&s, output, 2, 0, after[i]);
        live(&s, output, 1, 0, after[i]);
        live(&s, output, 4, 0, NULL);
        train_log log = train_log_read(run_path(s.dir, output));
        expect_same(&s, &log, after[i]);
        assert_int_equal(log.steps, whole.steps);
        for (unsigned k = 0; k < log.steps; k++) {
            assert_int_equal(log.step[k].tokens, whole.step[k].tokens);
            assert_int_equal(log.step[k].label_tokens, whole.step[k].label_tokens);
            near("loss", log.step[k].loss, whole.step[k].loss, 0.01 * whole.step[k].loss);
        }
    }
}

static void refused(const scene *s, const char *says, const char *const *sets) {
    const char *arguments[24] = {"train", s->config, "--quiet", "--set", run_format("output_dir=%s/refused", s->dir)};
    for (unsigned n = 5; *sets; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    run_result r = run_argv(&(run_opts){0}, arguments);
    if (r.status != 2 || !strstr(r.err, says)) fail_msg("exit %d, not \"%s\": %s", r.status, says, r.err);
    run_free(&r);
}

/* ---- a model of which there is no more than its config.json ------------------------------------------------------- */

static void same_file(const char *a, const char *b) {
    size_t n[2];
    char *text[2] = {run_read(a, &n[0]), run_read(b, &n[1])};
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(text[0], text[1], n[0]);
    free(text[0]), free(text[1]);
}

static void from_a_bare_config(void **state) {
    (void)state;
    scene s = scene_open("bf16", PRETRAIN);
    const char *bare = run_path(s.dir, "bare.json"), *output = run_path(s.dir, "out"),
               *folder = run_path(s.dir, "folder");
    run_copy(TINY "/config.json", bare);
    const char *model = run_format("model=%s", bare), *tokenizer = "tokenizer=" TINY;
    train_log log = run_train(s.config, output, 0, NULL, SETS(model, "init=random", tokenizer));
    expect_same(&s, &log, "a config.json and a folder of the tokenizer");
    same_file(run_path(output, "tokenizer.json"), TINY "/tokenizer.json");
    same_file(run_path(output, "chat_template.jinja"), TINY "/chat_template.jinja");
    log = run_train(s.config, output, 0, NULL, SETS("init=random"));
    expect_same(&s, &log, "a whole folder");
    /* what was trained is a model like any other */
    run_copy_model(output, folder);
    run_result r =
        run((run_opts){0}, "generate", "--model", folder, "--prompt", "the sea", "--max-new-tokens", "3", NULL);
    RUN_OK(&r);
    run_free(&r);
    refused(&s, "has no weights", SETS(model, tokenizer));
    refused(&s, "tokenizer.json", SETS(model, "init=random"));
    refused(&s, "no such folder", SETS(model, "init=random", "tokenizer=absent"));
}

/* ---- refused ----------------------------------------------------------------------------------------------------- */

static void what_does_not_go_together(void **state) {
    (void)state;
    scene s = scene_open("bf16", "");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/packed_llama/golden.safetensors");
    const char *rows = write_rows(s.dir, golden);
    tm_st_close(golden);
    refused(&s, "segment_ids", SETS("packing=true", run_format("data.train=%s", rows)));
    refused(&s, "group_by_length", SETS("packing=true", "group_by_length=true"));
    refused(&s, "packing_strategy", SETS("packing=true", "packing_strategy=best"));
    refused(&s, "not for preferences", SETS("packing=true", "objective.type=dpo", "adapter={\"type\": \"lora\"}"));
}

int main(void) {
    static struct CMUnitTest tests[] = {
        {.name = "packed_llama", .test_func = fixtures, .teardown_func = run_clean},
        {.name = "packed_gemma3", .test_func = fixtures, .teardown_func = run_clean},
        cmocka_unit_test_teardown(packed_is_padded, run_clean),
        cmocka_unit_test_teardown(one_hash, run_clean),
        cmocka_unit_test_teardown(each_token_once_an_epoch, run_clean),
        cmocka_unit_test_teardown(kills, run_clean),
        cmocka_unit_test_teardown(ranks, run_clean),
        cmocka_unit_test_teardown(other_ranks, run_clean),
        cmocka_unit_test_teardown(from_a_bare_config, run_clean),
        cmocka_unit_test_teardown(what_does_not_go_together, run_clean),
    };
    for (int i = 0; i < 2; i++) tests[i].initial_state = (void *)(uintptr_t)tests[i].name;
    return cmocka_run_group_tests_name("packed", tests, NULL, NULL);
}

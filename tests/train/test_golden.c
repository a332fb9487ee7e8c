/* Training and probing against the golden fixtures: logits, loss, gradients, every step, every final parameter. */
#include "run.h"
#include "tests/support/golden.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct fixture {
    const char *folder, *model; /* model: as a path for --model */
    tm_json_doc *doc;
    const tm_json *json;
    tm_st *golden;
    const char *dir, *rows; /* ours: a folder, and all the batches as rows in it */
    size_t batch, seq, steps;
    bool small; /* has not every final.* */
} fixture;

static double number(const fixture *f, const char *block, const char *key) {
    const tm_json *n = tm_json_get(tm_json_get(f->json, block), key);
    if (!n) fail_msg("%s/golden.json: %s.%s is missing", f->folder, block, key);
    return n->number;
}

static double element(const fixture *f, const char *block, const char *key, size_t i) {
    const tm_json *n = tm_json_get(tm_json_get(f->json, block), key)->child;
    while (i-- > 0) n = n->next;
    return n->number;
}

static fixture fixture_open(const char *folder) {
    fixture f = {.folder = folder, .dir = run_dir()};
    size_t len;
    const char *path = run_format("%s/%s/golden.json", TM_TEST_FIXTURES, folder);
    char *text = run_read(path, &len);
    f.model = run_format("%s/%s", TM_TEST_FIXTURES, folder);
    for (char *nan = text; (nan = strstr(nan, ": NaN"));) memcpy(nan, ": 0.0", 5); /* in measured_noise; is not JSON */
    RUN_EXPECT_STATUS(tm_json_parse(&f.doc, text, len, path, 0, 0));
    free(text);
    f.json = tm_json_root(f.doc);
    f.golden = tensors_open(run_format("%s/%s/golden.safetensors", TM_TEST_FIXTURES, folder));
    const tm_st_info *ids = tm_st_get(f.golden, (uint32_t)tm_st_find(f.golden, "input_ids"));
    f.steps = (size_t)ids->shape[0];
    f.batch = (size_t)ids->shape[1];
    f.seq = (size_t)ids->shape[2];
    f.rows = run_path(f.dir, "rows.safetensors");
    rows_write(f.rows, f.golden, 0, f.steps * f.batch, f.seq, false);
    return f;
}

static void fixture_close(fixture *f) {
    tm_json_free(f->doc);
    tm_st_close(f->golden);
}

/* ---- distances ------------------------------------------------------------------------------------------- */

static void near_abs(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%s: %.9g, golden %.9g, allowed %.3g", what, got, want, tolerance);
}

static void near_rel(const char *what, double got, double want, double tolerance) {
    near_abs(what, got, want, tolerance * fabs(want));
}

static double l2(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - (b ? (double)b[i] : 0)) * ((double)a[i] - (b ? (double)b[i] : 0));
    return sqrt(sum);
}

static double max_abs(const float *a, const float *b, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = isnan(a[i]) ? INFINITY : fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* ---- probe ----------------------------------------------------------------------------------------------- */

static tm_st *probe(const fixture *f, const char *model, const char *precision, bool grads) {
    const char *in = run_path(f->dir, "in.safetensors"), *out = run_path(f->dir, "out.safetensors");
    rows_write(in, f->golden, 0, f->batch, f->seq, false);
    run_result r = run((run_opts){0}, "probe", "--model", model, "--input", in, "--output", out, "--precision",
                       precision, grads ? "--grads" : NULL, NULL);
    RUN_OK(&r);
    assert_int_equal(r.out_len, 0); /* the file is the result */
    run_free(&r);
    return tensors_open(out);
}

static void check_logits(const fixture *f, const tm_st *out, const char *name) {
    size_t n;
    int64_t *mask = tensor_ints(f->golden, "attention_mask", &n);
    tensor got = tensor_read(out, "logits"), want = tensor_read(f->golden, name);
    double most = 0;
    size_t real = 0;
    assert_int_equal(got.info->ndim, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(got.info->shape[i], want.info->shape[i]);
    assert_int_equal(got.info->fmt, TM_FMT_F32);
    size_t vocab = want.n / (f->batch * f->seq);
    for (size_t t = 0; t < f->batch * f->seq; t++) {
        if (!mask[t]) continue;
        most = fmax(most, max_abs(got.v + t * vocab, want.v + t * vocab, vocab));
        real++;
    }
    assert_true(real > 0);
    near_abs(name, most, 0, number(f, "tolerances", "logits_max_abs"));
    free(mask), free(got.v), free(want.v);
}

static double scalar(const tm_st *st, const char *name) {
    tensor t = tensor_read(st, name);
    double v = (double)t.v[0];
    assert_int_equal(t.n, 1);
    assert_int_equal(t.info->ndim, 1);
    free(t.v);
    return v;
}

static void check_gradients(const fixture *f, const tm_st *out) {
    unsigned checked = 0;
    for (uint32_t i = 0; i < tm_st_count(f->golden); i++) {
        const char *name = tm_st_get(f->golden, i)->name;
        if (strncmp(name, "grad.", 5) != 0) continue;
        tensor want = tensor_read(f->golden, name), got = tensor_read(out, name);
        assert_int_equal(got.n, want.n);
        golden_leave_out(f->json, name + 5, got.v);
        golden_leave_out(f->json, name + 5, want.v);
        double norm = l2(want.v, NULL, want.n);
        near_abs(name, l2(got.v, want.v, want.n), 0, norm > 0 ? norm * number(f, "tolerances", "grad_rel_l2") : 1e-7);
        free(want.v), free(got.v);
        checked++;
    }
    for (uint32_t i = 0; i < tm_st_count(out); i++) /* and none that the checkpoint has not */
        if (strncmp(tm_st_get(out, i)->name, "grad.", 5) == 0) checked--;
    assert_int_equal(checked, 0);
}

static void same_files(const char *a, const char *b) {
    size_t n, m;
    char *x = run_read(a, &n), *y = run_read(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x), free(y);
}

/* A folder with another of the fixture's files as its config.json. */
static const char *model_with(const fixture *f, const char *config) {
    const char *model = run_path(f->dir, config);
    assert_int_equal(mkdir(model, 0700), 0);
    run_copy(run_path(f->model, config), run_path(model, "config.json"));
    run_copy(run_path(f->model, "model.safetensors"), run_path(model, "model.safetensors"));
    return model;
}

static void test_probe(void **state) {
    const golden_row *row = *state;
    fixture f = fixture_open(row->folder);
    tm_st *out = probe(&f, f.model, "fp32", true);
    check_logits(&f, out, "logits");
    near_abs("loss", scalar(out, "loss"), number(&f, "scalars", "loss"), number(&f, "tolerances", "loss_abs"));
    near_rel("grad_norm", scalar(out, "grad_norm"), number(&f, "scalars", "grad_norm"),
             number(&f, "tolerances", "grad_norm_rel"));
    check_gradients(&f, out);
    tm_st_close(out);
    const char *v5 = run_path(f.dir, "v5.safetensors"), *v4 = run_path(f.dir, "out.safetensors");
    run_copy(v4, v5);
    tm_st_close(probe(&f, model_with(&f, "config_v4.json"), "fp32", true));
    same_files(v5, v4);
    fixture_close(&f);
}

/* A budget and a path instead of memory: the same bits. */
static void test_probe_paged(void **state) {
    (void)state;
    fixture f = fixture_open("arch_llama");
    tm_st_close(probe(&f, f.model, "fp32", true));
    const char *in = run_path(f.dir, "in.safetensors"), *out = run_path(f.dir, "paged.safetensors");
    const char *offload = run_path(f.dir, "offload");
    assert_int_equal(mkdir(offload, 0700), 0);
    run_result r = run((run_opts){0}, "probe", "--model", f.model, "--input", in, "--output", out, "--grads",
                       "--host-budget", "1MiB", "--offload-path", offload, NULL);
    assert_int_equal(r.status, 2);
    const char *budget = run_format("%llu", (unsigned long long)train_minimum(r.err));
    run_free(&r);
    r = run((run_opts){0}, "probe", "--model", f.model, "--input", in, "--output", out, "--grads", "--host-budget",
            budget, "--offload-path", offload, NULL);
    RUN_OK(&r);
#ifndef TIDEMILL_SANITIZED
    assert_true(r.peak_bytes <= strtoull(budget, NULL, 10));
#endif
    run_free(&r);
    same_files(run_path(f.dir, "out.safetensors"), out);
    assert_int_equal(run_entries(offload), 0);
    fixture_close(&f);
}

/* A folder of bfloat16 weights. Computing in bf16 has the fixture's 2% and 5%. Its fp32 numbers (bf16_weights.*) are of
 * a model whose rotary frequencies were rounded to bf16 as well, which a loaded folder's are not (tests/model compares
 * them with that undone): here, that fp32 reads bf16 weights right, within what those roundings can do to a mean. */
static void test_bf16(void **state) {
    const golden_row *row = *state;
    fixture f = fixture_open(row->folder);
    const char *model = run_path(f.model, "bf16");
    tm_st *out = probe(&f, model, "fp32", false);
    near_abs("bf16_weights.loss", scalar(out, "loss"), number(&f, "scalars", "bf16_weights.loss"), 1e-3);
    assert_false(tensor_exists(out, "grad_norm"));
    tm_st_close(out);
    out = probe(&f, model, "bf16", true);
    near_rel("bf16_compute.loss", scalar(out, "loss"), number(&f, "scalars", "bf16_compute.loss"),
             number(&f, "tolerances", "bf16_compute.loss_rel"));
    near_rel("bf16_compute.grad_norm", scalar(out, "grad_norm"), number(&f, "scalars", "bf16_compute.grad_norm"),
             number(&f, "tolerances", "bf16_compute.grad_norm_rel"));
    tm_st_close(out);
    fixture_close(&f);
}

static void test_probe_sharded(void **state) {
    (void)state;
    fixture f = fixture_open("safetensors_sharded");
    tm_st *out = probe(&f, f.model, "fp32", false);
    check_logits(&f, out, "logits");
    near_abs("loss", scalar(out, "loss"), number(&f, "scalars", "loss"), number(&f, "tolerances", "loss_abs"));
    tm_st_close(out);
    fixture_close(&f);
}

/* As a GGUF file, numbers of each layer and RoPE's factors included. */
static void test_probe_gguf(void **state) {
    (void)state;
    fixture f = fixture_open("arch_gemma4");
    const char *gguf = run_path(f.dir, "f32.gguf");
    run_result r = run((run_opts){0}, "convert", f.model, gguf, "--dtype", "f32", NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *out = probe(&f, gguf, "fp32", true);
    check_logits(&f, out, "logits");
    check_gradients(&f, out);
    tm_st_close(out);
    fixture_close(&f);
}

/* ---- train
 * ------------------------------------------------------------------------------------------------------------ */

static const char *write_config(const fixture *f) {
    const char *path = run_path(f->dir, "config.json");
    const tm_json *schedule = tm_json_get(tm_json_get(f->json, "settings"), "schedule");
    run_write(path,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": %zu},\n"
                         " \"learning_rate\": %.17g, \"adam_beta1\": %.17g, \"adam_beta2\": %.17g,\n"
                         " \"adam_epsilon\": %.17g, \"weight_decay\": %.17g, \"max_grad_norm\": %.17g,\n"
                         " \"lr_scheduler_type\": \"%s\", \"warmup_steps\": %d, \"max_steps\": %zu,\n"
                         " \"per_device_train_batch_size\": %zu, \"precision\": \"fp32\"}\n",
                         f->model, f->rows, f->seq, number(f, "settings", "lr"), element(f, "settings", "betas", 0),
                         element(f, "settings", "betas", 1), number(f, "settings", "eps"),
                         number(f, "settings", "weight_decay"), number(f, "settings", "clip"), schedule->text,
                         (int)number(f, "settings", "warmup"), f->steps, f->batch));
    return path;
}

static void check_steps(const fixture *f, const train_log *log, double loss_abs, double norm_rel) {
    assert_int_equal(log->steps, f->steps);
    for (unsigned s = 0; s < log->steps; s++) {
        const char *at = run_format("step %u", s + 1);
        near_abs(run_format("%s loss", at), log->step[s].loss, element(f, "trajectory", "loss", s), loss_abs);
        near_rel(run_format("%s grad_norm", at), log->step[s].grad_norm, element(f, "trajectory", "grad_norm", s),
                 norm_rel);
        near_rel(run_format("%s lr", at), log->step[s].learning_rate, element(f, "trajectory", "lr", s), 1e-12);
    }
}

/* Tensors that are not in final.*: they do not learn. */
static unsigned unchanged(const fixture *f, const tm_st *before, const tm_st *after) {
    unsigned n = 0;
    for (uint32_t i = 0; i < tm_st_count(after); i++) {
        const char *name = tm_st_get(after, i)->name;
        if (tm_st_find(f->golden, run_format("final.%s", name)) >= 0) continue;
        tensor was = tensor_read(before, name), is = tensor_read(after, name);
        assert_int_equal(was.n, is.n);
        assert_memory_equal(was.v, is.v, was.n * sizeof *was.v);
        free(was.v), free(is.v);
        n++;
    }
    return n;
}

static void check_final(const fixture *f, const char *output) {
    tm_st *before = tensors_open(run_path(f->model, "model.safetensors"));
    tm_st *after = tensors_open(run_path(output, "model.safetensors"));
    unsigned checked = 0;
    for (uint32_t i = 0; i < tm_st_count(f->golden); i++) {
        const char *name = tm_st_get(f->golden, i)->name;
        if (strncmp(name, "final.", 6) != 0) continue;
        tensor want = tensor_read(f->golden, name), got = tensor_read(after, name + 6),
               old = tensor_read(before, name + 6);
        assert_int_equal(got.n, want.n);
        golden_leave_out(f->json, name + 6, got.v);
        golden_leave_out(f->json, name + 6, want.v);
        golden_leave_out(f->json, name + 6, old.v);
        near_abs(name, max_abs(got.v, want.v, want.n), 0, number(f, "tolerances", "final_param_max_abs"));
        near_abs(run_format("%s update", name), l2(got.v, want.v, want.n), 0,
                 number(f, "tolerances", "final_update_rel_l2") * l2(want.v, old.v, want.n));
        free(want.v), free(got.v), free(old.v);
        checked++;
    }
    assert_true(checked > 0);
    if (!f->small) assert_int_equal(checked + unchanged(f, before, after), tm_st_count(after));
    tm_st_close(before);
    tm_st_close(after);
}

/* Trains into DIR/NAME with two or three --set; the log of it. */
static train_log train(const fixture *f, const char *config, const char *name, const char *a, const char *b,
                       const char *c) {
    const char *output = run_path(f->dir, name);
    const char *arguments[16] = {"train", config, "--set", run_format("output_dir=%s", output)};
    unsigned n = 4;
    const char *more[] = {a, b, c};
    for (unsigned i = 0; i < 3; i++)
        if (more[i]) arguments[n++] = "--set", arguments[n++] = more[i];
    run_result r = run_argv(&(run_opts){0}, arguments);
    RUN_OK(&r);
    run_free(&r);
    return train_log_read(output);
}

static const char *minimum_budget(const fixture *f, const char *config) {
    const char *output = run_path(f->dir, "refused");
    run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s", output), "--set",
                       "memory.host_budget=1MiB", "--set", "memory.cache=none", NULL);
    assert_int_equal(r.status, 2);
    const char *budget = run_format("memory.host_budget=%llu", (unsigned long long)train_minimum(r.err));
    run_free(&r);
    return budget;
}

static void test_train(void **state) {
    const golden_row *row = *state;
    fixture f = fixture_open(row->folder);
    f.small = row->has & GOLDEN_SMALL;
    const char *config = write_config(&f);
    double loss = number(&f, "tolerances", "traj_loss_abs"), norm = number(&f, "tolerances", "traj_grad_norm_rel");
    train_log memory = train(&f, config, "memory", "memory.host_budget=unlimited", NULL, NULL);
    check_steps(&f, &memory, loss, norm);
    check_final(&f, run_path(f.dir, "memory"));
    assert_int_equal(memory.step[0].read_bytes + memory.step[0].write_bytes, 0);
    train_log paged = train(&f, config, "paged", minimum_budget(&f, config), "memory.cache=none", NULL);
    check_steps(&f, &paged, loss, norm);
    check_final(&f, run_path(f.dir, "paged"));
    assert_true(paged.step[0].read_bytes > 0 && paged.step[0].write_bytes > 0);
    assert_string_equal(paged.hash, memory.hash);
    /* and through an arena of the least size, host memory of the least size behind it */
    const char *arena =
        run_format("memory={\"device\": \"cpu-arena\", \"device_budget\": %llu}",
                   (unsigned long long)run_train_device_minimum(config, run_path(f.dir, "refused"), SETS("seed=42")));
    const char *small = run_format(
        "memory.host_budget=%llu",
        (unsigned long long)run_train_minimum(config, run_path(f.dir, "refused"), SETS(arena, "memory.host_budget=1")));
    train_log device = train(&f, config, "device", arena, small, NULL);
    check_steps(&f, &device, loss, norm);
    check_final(&f, run_path(f.dir, "device"));
    assert_true(device.step[0].device_peak > 0 && device.step[0].copied[0] > 0 && device.step[0].copied[1] > 0);
    assert_string_equal(device.hash, memory.hash);
    /* the same rows as micro-batches of one: another order of summation, the same tolerances */
    const char *accumulation = run_format("gradient_accumulation_steps=%zu", f.batch);
    train_log many = train(&f, config, "many", "per_device_train_batch_size=1", accumulation, NULL);
    check_steps(&f, &many, loss, norm);
    check_final(&f, run_path(f.dir, "many"));
    train_log again =
        train(&f, config, "many_paged", "per_device_train_batch_size=1", accumulation, "memory.cache=none");
    assert_string_equal(again.hash, many.hash);
    fixture_close(&f);
}

/* The same rows divided among ranks, by every strategy and in files: against the fixture itself. TIDEMILL_LONG=1:
 * all of them; else what ctest has time for. */
static void test_train_ranks(void **state) {
    (void)state;
    static const struct {
        unsigned ranks, node;
        const char *strategy;
        bool files, always;
    } ways[] = {{2, 0, "zero3", true, true}, {2, 1, "hsdp", false, true},  {2, 0, "hpz", true, false},
                {2, 0, "ddp", false, false}, {2, 0, "zero1", true, false}, {2, 1, "zero2", false, false},
                {2, 1, "hpz", false, false}, {2, 0, "hsdp", true, false},  {2, 0, "ddp", true, false}};
    if (system("mpirun --version > /dev/null 2>&1") != 0) TEST_SKIP("no mpirun");
    fixture f = fixture_open("arch_llama");
    const char *config = write_config(&f);
    for (unsigned i = 0; i < TM_COUNT(ways); i++) {
        if (!ways[i].always && !TEST_LONG("the fixture on ranks by every strategy")) continue;
        assert_int_equal(f.batch % ways[i].ranks, 0);
        const char *output = run_path(f.dir, run_format("ranks-%u", i));
        const char *env[] = {run_format("TIDEMILL_NODE_SIZE=%u", ways[i].node), NULL};
        const char *rows = run_format("per_device_train_batch_size=%zu", f.batch / ways[i].ranks);
        const char *place = run_format("offload_%s_device=%s", "optimizer", ways[i].files ? "nvme" : "cpu");
        const char *arguments[] = {"train",
                                   config,
                                   "--quiet",
                                   "--set",
                                   run_format("output_dir=%s", output),
                                   "--set",
                                   rows,
                                   "--set",
                                   run_format("strategy=%s", ways[i].strategy),
                                   "--set",
                                   place,
                                   "--set",
                                   ways[i].files ? "memory.cache=none" : "memory.cache=auto",
                                   NULL};
        run_result r = run_argv(&(run_opts){.ranks = ways[i].ranks, .env = ways[i].node ? env : NULL}, arguments);
        RUN_OK(&r);
        run_free(&r);
        train_log log = train_log_read(output);
        check_steps(&f, &log, number(&f, "tolerances", "traj_loss_abs"),
                    number(&f, "tolerances", "traj_grad_norm_rel"));
        check_final(&f, output);
        assert_true(!ways[i].files == (log.step[0].read_bytes == 0));
    }
    fixture_close(&f);
}

/* bf16 follows the fp32 trajectory: the fixture allows computing in bf16 2% of the loss and 5% of the norm in one step;
 * masters are exact, so ten small steps add no more than that. */
static void test_train_bf16(void **state) {
    (void)state;
    fixture f = fixture_open("arch_llama");
    const char *config = write_config(&f);
    train_log memory = train(&f, config, "memory", "precision=bf16", "memory.host_budget=unlimited", NULL);
    check_steps(&f, &memory, 0.02 * element(&f, "trajectory", "loss", 0), 0.05);
    train_log paged = train(&f, config, "paged", "precision=bf16", "memory.cache=none", NULL);
    assert_string_equal(paged.hash, memory.hash);
    tm_st *out = tensors_open(run_path(f.dir, "paged/model.safetensors"));
    for (uint32_t i = 0; i < tm_st_count(out); i++) assert_int_equal(tm_st_get(out, i)->fmt, TM_FMT_BF16);
    tm_st_close(out);
    fixture_close(&f);
}

/* Each fixture's tests, named "FOLDER NAME", and those of one fixture. */
enum { KINDS = 3, MOST = KINDS * (int)TM_COUNT(golden_rows) + 5 };
static struct CMUnitTest tests[MOST];
static size_t n_tests;

static void add(const char *name, CMUnitTestFunction test, const golden_row *row) {
    tests[n_tests++] = (struct CMUnitTest){
        .name = name, .test_func = test, .teardown_func = run_clean, .initial_state = (void *)(uintptr_t)row};
}

int main(int argc, char **argv) {
    static char names[MOST][64];
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < TM_COUNT(golden_rows); i++) {
        static const char *const kind[KINDS] = {"probe", "train", "bf16"};
        const golden_row *row = &golden_rows[i];
        for (size_t k = 0; k < KINDS; k++)
            snprintf(names[KINDS * i + k], sizeof names[0], "%s %s", row->folder, kind[k]);
        add(names[KINDS * i], test_probe, row);
        add(names[KINDS * i + 1], test_train, row);
        if (row->has & GOLDEN_BF16) add(names[KINDS * i + 2], test_bf16, row);
    }
    add("probe_paged", test_probe_paged, NULL);
    add("probe_sharded", test_probe_sharded, NULL);
    add("probe_gguf", test_probe_gguf, NULL);
    add("train_ranks", test_train_ranks, NULL);
    add("train_bf16", test_train_bf16, NULL);
    return _cmocka_run_group_tests("train_golden", tests, n_tests, NULL, NULL);
}

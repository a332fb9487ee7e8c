/* fp16 with its loss scale, end to end: it follows fp32, its scale moves as DeepSpeed's does, one hash wherever the
 * state lies and whatever interrupts it, as many bytes as planned, and what is refused. */
#include "run.h"

#include "optim/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"

static const char *rows_of(const char *dir) {
    const char *rows = run_path(dir, "rows.safetensors");
    tm_st *golden = tensors_open(MODEL "/golden.safetensors");
    rows_write(rows, golden, 0, 20, 32, false);
    tm_st_close(golden);
    return rows;
}

/* ---- as fp32 trains ---------------------------------------------------------------------------------------------- */

static const tm_json *golden_open(tm_json_doc **doc) {
    size_t len;
    char *text = run_read(MODEL "/golden.json", &len);
    for (char *nan; (nan = strstr(text, ": NaN"));) memcpy(nan, ": 0.0", 5);
    RUN_EXPECT_STATUS(tm_json_parse(doc, text, len, "golden.json", 0, 0));
    free(text);
    return tm_json_root(*doc);
}
static double element(const tm_json *o, const char *group, const char *key, size_t i) {
    const tm_json *n = tm_json_get(tm_json_get(o, group), key)->child;
    while (i-- > 0) n = n->next;
    return n->number;
}

/* How far the weights are from the library's, in parts of what the library moved them. */
static double distance(const char *output) {
    tm_st *golden = tensors_open(MODEL "/golden.safetensors"), *before = tensors_open(MODEL "/model.safetensors");
    tm_st *after = tensors_open(run_path(output, "model.safetensors"));
    double error = 0, moved = 0;
    for (uint32_t i = 0; i < tm_st_count(after); i++) {
        const char *name = tm_st_get(after, i)->name;
        tensor got = tensor_read(after, name), old = tensor_read(before, name);
        tensor want = tensor_read(golden, run_format("final.%s", name));
        assert_int_equal(got.n, want.n);
        for (size_t k = 0; k < got.n; k++) {
            error += pow((double)got.v[k] - (double)want.v[k], 2);
            moved += pow((double)want.v[k] - (double)old.v[k], 2);
        }
        free(got.v), free(old.v), free(want.v);
    }
    tm_st_close(golden), tm_st_close(before), tm_st_close(after);
    return sqrt(error / moved);
}

/* The fixture allows computing in bf16 2% of the loss and 5% of the norm; fp16 has three bits more, so an eighth of
 * that. Weights: in its first steps AdamW moves an element by the sign of its gradient, so that those move wrongly
 * whose gradient is less than its rounding; their share goes with the rounding, the distance with its root: an eighth
 * of the rounding is 1 / 2.8 of the distance that a run in bf16 ends at. */
static void follows_fp32(void **state) {
    (void)state;
    tm_json_doc *doc;
    const tm_json *golden = golden_open(&doc);
    const char *dir = run_dir(), *config = run_path(dir, "config.json");
    run_write(config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 32}, \"max_steps\": 10,\n"
                         " \"learning_rate\": 1e-3, \"adam_beta2\": 0.95, \"warmup_steps\": 3, \"weight_decay\": 0.1,\n"
                         " \"per_device_train_batch_size\": 2, \"save_dtype\": \"f32\"}\n",
                         MODEL, rows_of(dir)));
    (void)run_train(config, run_path(dir, "bf16"), 0, NULL, SETS("precision=bf16"));
    train_log log = run_train(config, run_path(dir, "fp16"), 0, NULL,
                              SETS("fp16={\"enabled\": true, \"initial_scale_power\": 10}"));
    double loss = 0, norm = 0;
    for (unsigned s = 0; s < log.steps; s++) {
        const train_step *at = &log.step[s];
        loss = fmax(loss, fabs(at->loss / element(golden, "trajectory", "loss", s) - 1));
        norm = fmax(norm, fabs(at->grad_norm / element(golden, "trajectory", "grad_norm", s) - 1));
        assert_true(fabs(at->learning_rate - element(golden, "trajectory", "lr", s)) <= 1e-15);
        assert_true(at->loss_scale == 1024 && !at->skipped && at->skipped_steps == 0);
    }
    double off = distance(run_path(dir, "fp16")), off_bf16 = distance(run_path(dir, "bf16"));
    print_message("  loss within %.1e, gradient norm within %.1e, weights within %.1e of the way, in bf16 %.1e\n", loss,
                  norm, off, off_bf16);
    assert_true(log.steps == 10 && loss <= 0.02 / 8 && norm <= 0.05 / 8 && off <= off_bf16 / 2.8);
    tm_json_free(doc);
}

/* ---- the scale ------------------------------------------------------------------------------------------------- */

/* Begins where gradients overflow, and comes back there: the window is two steps. */
#define SCALE "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 24, \"loss_scale_window\": 2, \"hysteresis\": 1}"

static const char *small_job(const char *dir, unsigned steps) {
    const char *config = run_path(dir, "config.json");
    run_write(
        config,
        run_format(
            "{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"max_steps\": %u, \"learning_rate\": 1e-3,\n"
            " \"per_device_train_batch_size\": 2, \"gradient_accumulation_steps\": 2, " SCALE ",\n"
            " \"no_decay\": [\"norm\"], \"warmup_steps\": 2, \"lr_scheduler_type\": \"linear\", \"commit_steps\": 0}\n",
            MODEL, rows_of(dir), steps));
    return config;
}

/* What the log says against the scaler that the fixture `loss_scale` is held to, fed with the steps that were skipped;
 * and a schedule that stands still in those. */
static unsigned follows_the_scaler(const train_log *log) {
    tm_loss_scale_opts o;
    tm_loss_scaler s;
    unsigned skipped = 0;
    tm_loss_scale_defaults(&o);
    o.initial_scale_power = 24, o.loss_scale_window = 2, o.hysteresis = 1;
    tm_loss_scaler_init(&s, &o);
    for (unsigned i = 0; i < log->steps; i++) {
        const train_step *step = &log->step[i];
        unsigned applied = i - skipped;
        double rate = applied < 2 ? applied / 2.0 : (log->steps - applied) / (log->steps - 2.0);
        assert_true(fabs(step->learning_rate - 1e-3 * rate) <= 1e-12);
        if (step->loss_scale != s.scale)
            fail_msg("step %u: loss scale %g, DeepSpeed's is %g", i + 1, step->loss_scale, s.scale);
        assert_true(tm_loss_scaler_update(&s, step->skipped));
        skipped += step->skipped;
        assert_int_equal(step->skipped_steps, skipped);
    }
    return skipped;
}

static const char *budget_of(uint64_t bytes) {
    return run_format("memory.host_budget=%llu", (unsigned long long)bytes);
}

/* U and F, in memory and at the least budget, and in between: the same skips, the same hash. */
static void one_hash(void **state) {
    (void)state;
    enum { STEPS = 16 };
    const char *dir = run_dir(), *config = small_job(dir, STEPS);
    static const char *const updates[] = {"memory.update=U", "memory.update=F"};
    char hash[40] = "";
    for (unsigned i = 0; i < 6; i++) {
        const char *update = updates[i % 2];
        uint64_t least = i < 2 ? 0 : run_train_minimum(config, run_path(dir, "refused"), SETS(update));
        uint64_t budget = i < 4 ? least : least + least / 4;
        train_log log = run_train(config, run_path(dir, "out"), budget, NULL,
                                  SETS(update, i < 2 ? "memory.host_budget=unlimited" : budget_of(budget),
                                       i < 4 ? "memory.cache=none" : "memory.cache=auto"));
        unsigned skipped = follows_the_scaler(&log);
        if (i == 0) print_message("  %u of %u steps overflowed, %s\n", skipped, log.steps, log.hash);
        assert_true(skipped >= 4 && skipped <= STEPS - 4);
        bool again = false; /* the scale grew, and overflowed again */
        for (unsigned s = 1; s < STEPS; s++) again |= log.step[s].skipped && !log.step[s - 1].skipped;
        assert_true(again);
        assert_true(i < 2 || i > 3 || log.step[1].read_bytes > 0);
        if (!hash[0]) memcpy(hash, log.hash, sizeof hash);
        assert_string_equal(log.hash, hash);
        run_remove(run_path(dir, "out"));
    }
    /* and through an arena of the least size */
    uint64_t arena = run_train_device_minimum(config, run_path(dir, "refused"), SETS("seed=42"));
    train_log log = run_train(
        config, run_path(dir, "out"), 0, NULL,
        SETS(run_format("memory={\"device\": \"cpu-arena\", \"device_budget\": %llu}", (unsigned long long)arena)));
    (void)follows_the_scaler(&log);
    assert_string_equal(log.hash, hash);
}

/* Killed in the middle of a window: the scale, what moves it, and every bit go on. */
static void goes_on_bit_for_bit(void **state) {
    (void)state;
    enum { STEPS = 16 };
    const char *dir = run_dir(), *config = small_job(dir, STEPS), *output = run_path(dir, "out");
    static const char *const updates[] = {"memory.update=U", "memory.update=F"};
    train_log whole = run_train(config, run_path(dir, "whole"), 0, NULL, SETS("memory.host_budget=unlimited"));
    for (unsigned i = 0; i < TM_COUNT(updates); i++) {
        const char *kill[] = {
            i ? "TIDEMILL_FAULT=kill_after_rename:4:now:once" : "TIDEMILL_FAULT=kill_after_rename:12:now:once", NULL};
        const char *arguments[] = {"train", config,
                                   "--set", run_format("output_dir=%s", output),
                                   "--set", updates[i],
                                   "--set", "commit_steps=1",
                                   "--set", "memory.cache=none",
                                   NULL,    NULL,
                                   NULL};
        run_result r = run_argv(&(run_opts){.env = kill}, arguments);
        assert_int_equal(r.status, 128 + 9);
        run_free(&r);
        arguments[10] = "--set", arguments[11] = "fp16.loss_scale_window=3";
        r = run_argv(&(run_opts){0}, arguments);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, "loss_scale_window was 2, is 3"));
        run_free(&r);
        arguments[10] = NULL;
        r = run_argv(&(run_opts){0}, arguments);
        RUN_OK(&r);
        assert_non_null(strstr(r.err, i ? "going on from step 4" : "going on from step 12"));
        run_free(&r);
        train_log log = train_log_read(output);
        (void)follows_the_scaler(&log);
        assert_string_equal(log.hash, whole.hash);
        run_remove(output);
    }
}

/* DeepSpeed stops there too. The state is whole, and committed. */
static void stops_at_the_least_scale(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_job(dir, 8);
    run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s/out", dir), "--set",
                       "fp16.min_loss_scale=4194304", "--set", "commit_steps=10", NULL);
    assert_int_equal(r.status, 1);
    if (!strstr(r.err, "overflow at loss scale 4194304: the update was skipped; there is no lower scale") ||
        !strstr(r.err, "is the gradient of ") || !strstr(r.err, "step 3 is committed"))
        fail_msg("%s", r.err);
    run_free(&r);
    char *log = run_read(run_path(dir, "out/log.jsonl"), NULL), *last = strstr(log, "\"step\": 3,");
    if (!last || !strstr(last, "\"skipped_steps\": 3")) fail_msg("%s", log); /* the step that ended it, too */
    free(log);
}

/* From far too high a scale it takes more than 50 skips to get to one that fits. */
static void falls_for_long(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_job(dir, 62);
    train_log log = run_train(config, run_path(dir, "out"), 0, NULL, SETS("fp16.initial_scale_power=76"));
    for (unsigned i = 0; i < 51; i++) assert_true(log.step[i].skipped);
    if (log.step[61].skipped_steps > 60) fail_msg("%u of 62 steps skipped", (unsigned)log.step[61].skipped_steps);
}

/* A constant scale: an overflow is skipped and counted, and the scale stays. */
static void constant_scale(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_job(dir, 3);
    for (unsigned i = 0; i < 2; i++) {
        double scale = i ? 268435456 : 512;
        train_log log = run_train(config, run_path(dir, run_format("out%u", i)), 0, NULL,
                                  SETS(run_format("fp16.loss_scale=%.0f", scale)));
        for (unsigned s = 0; s < 3; s++)
            assert_true(log.step[s].loss_scale == scale && log.step[s].skipped_steps == (i ? s + 1 : 0));
    }
}

/* ---- other optimizers ------------------------------------------------------------------------------------------ */

static void any_optimizer(void **state) {
    (void)state;
    static const char *const optims[] = {"adamw_8bit", "sgd", "lion_32bit", "adagrad"};
    const char *dir = run_dir(), *config = small_job(dir, 12);
    for (unsigned i = 0; i < TM_COUNT(optims); i++) {
        const char *optim = run_format("optim=%s", optims[i]);
        train_log a = run_train(config, run_path(dir, "a"), 0, NULL, SETS(optim, "memory.host_budget=unlimited"));
        train_log b = run_train(config, run_path(dir, "b"), 0, NULL,
                                SETS(optim, "memory.cache=none", i % 2 ? "memory.update=U" : "memory.update=F"));
        assert_string_equal(a.hash, b.hash);
        assert_true(isfinite(a.step[11].grad_norm) && !a.step[11].skipped);
        run_remove(run_path(dir, "a")), run_remove(run_path(dir, "b"));
    }
}

/* ---- bytes ----------------------------------------------------------------------------------------------------- */

static double planned(const char *config, const char *precision, const char *update, const char *budget,
                      const char *key) {
    run_result r =
        run((run_opts){0}, "plan", config, "--json", "--set", "memory.cache=none", "--set", update, "--set", budget,
            "--set", run_format("precision=%s", precision), "--set",
            run_format("zero_optimization.offload_optimizer={\"device\": \"nvme\", \"nvme_path\": \"%s\"}", run_dir()),
            NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan", 0, 0));
    double value = tm_json_get(tm_json_root(doc), key)->number;
    tm_json_free(doc);
    run_free(&r);
    return value;
}

/* A little above the least of both precisions. */
static const char *binding(const char *config, const char *output, const char *update) {
    static const char *const precisions[] = {"precision=fp16", "precision=bf16"};
    uint64_t least = 0;
    for (unsigned i = 0; i < TM_COUNT(precisions); i++)
        least = tm_max_u64(least, run_train_minimum(config, output, SETS(precisions[i], update, "memory.cache=none")));
    return run_format("memory.host_budget=%llu", (unsigned long long)least + 16 * TM_MIB);
}

/* DESIGN section 5: where bf16 has 12 bytes of state and moves 32 (update U) or 30 (F), fp16 has 14 and moves 34 or 32.
 * All of it is written: two bytes more of the master, while the copy that computes need not be read. Disk has two
 * slots. run_train has it that planned bytes are the bytes that move. */
static void as_many_bytes_as_designed(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = run_path(dir, "model"), *config = run_path(dir, "config.json");
    static const char *const keys[] = {"read_bytes_per_step", "write_bytes_per_step", "disk_bytes"};
    static const double more[] = {0, 2, 4};
    run_random_model(model);
    run_write(config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\"},\n"
                                 " \"max_steps\": 2}\n",
                                 model, rows_of(dir)));
    double parameters = 12000.0 * 256 + 6 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768 + 2 * 256) + 256;
    for (int f = 0; f < 2; f++) {
        const char *update = f ? "memory.update=F" : "memory.update=U";
        const char *budget = binding(config, run_path(dir, "refused"), update);
        for (unsigned k = 0; k < 3; k++) {
            double bf16 = planned(config, "bf16", update, budget, keys[k]),
                   fp16 = planned(config, "fp16", update, budget, keys[k]);
            print_message("  %s: %s a parameter %.3f, in bf16 %.3f\n", update, keys[k], fp16 / parameters,
                          bf16 / parameters);
            assert_true(fabs((fp16 - bf16) / parameters - more[k]) <
                        0.3); /* one tile of weights, kept from use to use or not, is 0.25 */
        }
        train_log log = run_train(config, run_path(dir, f ? "f" : "u"), 0, NULL,
                                  SETS("precision=fp16", update, "memory.cache=none", budget));
        assert_true(log.step[1].read_bytes > 0);
    }
}

/* ---- what comes out, and what is refused ---------------------------------------------------------------------- */

static void exports_float16(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_job(dir, 2), *output = run_path(dir, "out");
    size_t len;
    (void)run_train(config, output, 0, NULL, SETS("fp16.initial_scale_power=8", "save_steps=1", "save_dtype=f16"));
    tm_st *out = tensors_open(run_path(output, "model.safetensors"));
    for (uint32_t i = 0; i < tm_st_count(out); i++) assert_int_equal(tm_st_get(out, i)->fmt, TM_FMT_F16);
    tm_st_close(out);
    char *json = run_read(run_path(output, "config.json"), &len);
    assert_non_null(strstr(json, "\"float16\""));
    free(json);
    run_result r = run((run_opts){0}, "eval", "--model", run_path(output, "checkpoint-1"), "--data",
                       run_path(dir, "rows.safetensors"), "--json", NULL);
    RUN_OK(&r);
    run_free(&r);
}

static void refuses(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_job(dir, 1), *model = run_path(dir, "model");
    const char *wide = run_format("model=%s", model);
    size_t len;
    run_copy_model(MODEL, model);
    char *json = run_read(run_path(model, "config.json"), &len), *at = strstr(json, "\"initializer_range\": 0.02");
    assert_non_null(at);
    memcpy(at + strlen("\"initializer_range\": "), "9e5 ", 4);
    run_write(run_path(model, "config.json"), json);
    free(json);
    const struct {
        const char *set, *also, *says;
    } of[] = {
        {"memory.update=B", "max_grad_norm=0", "cannot skip a step that overflows fp16"},
        {"fp16.hysteresis=0", "seed=1", "hysteresis"},
        {"zero_optimization.zero_quantized_weights=true", "seed=1", "precision is fp16"},
        {wide, "init=random", "beyond 65504"},
    };
    for (unsigned i = 0; i < TM_COUNT(of); i++) {
        run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s/out", dir), "--set",
                           of[i].set, "--set", of[i].also, NULL);
        const char *first;
        if (r.status != 2 || !strstr(r.err, of[i].says) || run_error_lines(r.err, &first) != 1)
            fail_msg("%s: exit status %d, not 2 with \"%s\":\n%s", of[i].set, r.status, of[i].says, r.err);
        run_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(follows_fp32, run_clean),
        cmocka_unit_test_teardown(one_hash, run_clean),
        cmocka_unit_test_teardown(goes_on_bit_for_bit, run_clean),
        cmocka_unit_test_teardown(stops_at_the_least_scale, run_clean),
        cmocka_unit_test_teardown(falls_for_long, run_clean),
        cmocka_unit_test_teardown(constant_scale, run_clean),
        cmocka_unit_test_teardown(any_optimizer, run_clean),
        cmocka_unit_test_teardown(as_many_bytes_as_designed, run_clean),
        cmocka_unit_test_teardown(exports_float16, run_clean),
        cmocka_unit_test_teardown(refuses, run_clean),
    };
    return cmocka_run_group_tests_name("train_fp16", tests, NULL, NULL);
}

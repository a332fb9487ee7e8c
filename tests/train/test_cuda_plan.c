/* `plan` on a device, the driver being one that pretends (tests/cuda): operations and copies are timed there once, what
 * is known of them is what is predicted, and a run teaches it. */
#include "io/file/file.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"
#define BACKEND "device fake device, compute capability 8.0"

typedef struct scene {
    const char *dir, *config, *profile;
    const char *env[3];
    run_opts opts;
} scene;

static void scene_open(scene *s) {
    s->dir = run_dir();
    s->config = run_path(s->dir, "config.json");
    s->profile = run_path(s->dir, "profile.json");
    s->env[0] = "LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA;
    s->env[1] = run_format("TIDEMILL_PROFILE=%s", s->profile);
    s->env[2] = NULL;
    s->opts = (run_opts){.env = s->env, .timeout_s = 100};
    const char *rows = run_path(s->dir, "rows.safetensors");
    tm_st *golden = tensors_open(MODEL "/golden.safetensors");
    rows_write(rows, golden, 0, 4, 16, true);
    tm_st_close(golden);
    run_write(s->config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"precision\": \"bf16\",\n"
                                    " \"max_steps\": 1, \"per_device_train_batch_size\": 1, \"output_dir\": \"%s\"}\n",
                                    MODEL, rows, run_path(s->dir, "out")));
}

static double number(const tm_json *o, const char *key) {
    const tm_json *v = o ? tm_json_get(o, key) : NULL;
    if (!v || v->type != TM_JSON_NUMBER) fail_msg("no number \"%s\"", key);
    return v->number;
}

typedef struct prediction {
    double step, device, in;
    const char *basis;
} prediction;

static prediction plan(const scene *s, const char *flag) {
    tm_json_doc *doc;
    run_result r = run(s->opts, "plan", s->config, "--json", "--set", "memory.device=cuda:0", "--set",
                       "memory.device_budget=64MiB", flag, NULL);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "output", 0, 0));
    const tm_json *o = tm_json_root(doc), *busy = tm_json_get(o, "busy_seconds");
    prediction p = {number(o, "seconds_per_step"), number(busy, "device"), number(busy, "copy_in"),
                    run_format("%s", tm_json_get(o, "seconds_basis")->text)};
    tm_json_free(doc);
    run_free(&r);
    return p;
}

/* Where in the profile's text the seconds of the one name that begins so are, of the device. */
static char *value_at(char *text, const char *begins) {
    char *backend = strstr(text, "\"" BACKEND), *at;
    if (!backend) fail_msg("no device in %s", text);
    at = strstr(backend, run_format("\"%s", begins));
    if (!at || at > strchr(backend, '}')) fail_msg("no \"%s\" in %s", begins, backend);
    return strstr(at, "\": ") + 3;
}

static double known(const scene *s, const char *begins) {
    char *text = run_read(s->profile, NULL);
    double v = strtod(value_at(text, begins), NULL);
    free(text);
    return v;
}

static void pretend(const scene *s, const char *begins, double seconds) {
    char *text = run_read(s->profile, NULL), *at = value_at(text, begins);
    const char *rest = at + strcspn(at, ",\n");
    run_write(s->profile, run_format("%.*s%.9g%s", (int)(at - text), text, seconds, rest));
    free(text);
}

#define ATTENTION "backward block.1.attn "

static void test_predictions(void **state) {
    (void)state;
    scene s;
    scene_open(&s);
    prediction p = plan(&s, "--no-measure");
    assert_non_null(strstr(p.basis, "the device's operations at the processor's rates"));
    assert_false(tm_path_exists(s.profile));

    p = plan(&s, NULL);
    assert_non_null(strstr(p.basis, "the device's operations measured"));
    assert_true(p.device > 2 * known(&s, ATTENTION)); /* of two blocks */
    double once = known(&s, ATTENTION);

    pretend(&s, ATTENTION, 1000);
    p = plan(&s, NULL);
    assert_true(known(&s, ATTENTION) == 1000 && once < 100); /* timed once */
    assert_true(p.device > 2000 && p.device < 2100 && p.step >= p.device);

    pretend(&s, "1 GiB to the device", (double)TM_GIB); /* a second a byte */
    p = plan(&s, NULL);
    assert_true(p.in >= 16 * sizeof(int32_t)); /* a batch at least */
}

/* What the device's kernels lack is said before anything is planned, in one line that names the row. */
static void a_model_that_kernels_lack_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *folder, *says;
    } rows[] = {{"arch_gpt2", "its kernels lack norm"},
                {"arch_gemma3", "cannot compute a gemma3_text"},
                {"arch_qwen3", "its kernels lack norm"}};
    static const char *const commands[] = {"plan", "train"};
    scene s;
    scene_open(&s);
    for (size_t i = 0; i < TM_COUNT(rows); i++)
        for (size_t k = 0; k < TM_COUNT(commands); k++) {
            run_result r =
                run(s.opts, commands[k], s.config, "--set", run_format("model=%s/%s", TM_TEST_FIXTURES, rows[i].folder),
                    "--set", "memory.device=cuda:0", "--set", "memory.device_budget=64MiB", "--set", "data.seq_len=16",
                    NULL);
            assert_int_equal(r.status, 2);
            if (!strstr(r.err, rows[i].says)) fail_msg("%s %s: %s", commands[k], rows[i].folder, r.err);
            run_free(&r);
        }
}

static void packed_rows_are_refused(void **state) {
    (void)state;
    scene s;
    scene_open(&s);
    const char *text = run_path(s.dir, "text.jsonl");
    run_write(text, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    run_result r = run(s.opts, "plan", s.config, "--set", "model=" TM_TEST_FIXTURES "/../../examples/tiny", "--set",
                       run_format("data.train=%s", text), "--set", "memory.device=cuda:0", "--set",
                       "memory.device_budget=64MiB", "--set", "packing=true", NULL);
    assert_int_equal(r.status, 2);
    if (!strstr(r.err, "its kernels lack attention and rope_apply (of packed rows)")) fail_msg("%s", r.err);
    run_free(&r);
}

/* What was measured as a hardware file: planned by that, as any machine with a GPU is, the device is as long at work.
 */
static void test_saved(void **state) {
    (void)state;
    scene s;
    tm_json_doc *doc;
    scene_open(&s);
    const char *file = run_path(s.dir, "here.json");
    (void)plan(&s, NULL);
    pretend(&s, ATTENTION, 2);
    prediction here = plan(&s, run_format("--save-hardware=%s", file));
    assert_true(here.device > 4);
    char *text = run_read(file, NULL);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, strlen(text), file, 0, 0));
    const tm_json *gpu = tm_json_get(tm_json_root(doc), "gpu");
    assert_int_equal(number(gpu, "count"), 1);
    assert_int_equal(number(gpu, "memory"), 4 * TM_GIB);
    assert_string_equal(tm_json_get(gpu, "name")->text, "fake device, compute capability 8.0");
    assert_true(number(gpu, "h2d_bytes_per_second") > 1e7);
    run_result r = run(s.opts, "plan", s.config, "--json", "--hardware", file, NULL);
    RUN_OK(&r);
    tm_json_free(doc);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "output", 0, 0));
    double device = number(tm_json_get(tm_json_root(doc), "busy_seconds"), "device");
    if (!(device > 0.85 * here.device && device < 1.15 * here.device))
        fail_msg("%g s on the device measured, %g by the file", here.device, device);
    tm_json_free(doc);
    run_free(&r);
    free(text);
}

/* With means of its operations, which took no thousand seconds. */
static void test_a_run_teaches(void **state) {
    (void)state;
    scene s;
    double learned = 1000;
    scene_open(&s);
    (void)plan(&s, NULL);
    pretend(&s, ATTENTION, learned);
    for (unsigned steps = 20; learned == 1000 && steps < 1000; steps *= 3) { /* a fast machine wants more */
        run_result r = run(s.opts, "train", s.config, "--resume", "never", "--quiet", "--set", "memory.device=cuda:0",
                           "--set", "memory.device_budget=64MiB", "--set", run_format("max_steps=%u", steps), NULL);
        RUN_OK(&r);
        run_free(&r);
        learned = known(&s, ATTENTION);
    }
    assert_true(learned > 0 && learned < 100);
    assert_true(known(&s, "adamw ") > 0 && known(&s, "finish ") > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictions), cmocka_unit_test(a_model_that_kernels_lack_is_refused),
        cmocka_unit_test(packed_rows_are_refused), cmocka_unit_test(test_saved), cmocka_unit_test(test_a_run_teaches)};
    return cmocka_run_group_tests_name("cuda_plan", tests, NULL, run_clean);
}

/* One front end: the plan by a hardware file that `plan --save-hardware` wrote of this machine is the plan that `train`
 * runs here, operation by operation. On the processors, on an arena of theirs, and on a GPU whose driver pretends. */
#include "run.h"
#include "tests/support/skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"

typedef struct scene {
    const char *dir, *config;
    const char *env[3];
    run_opts opts;
} scene;

static void scene_open(scene *s, const char *device, const char *budget) {
    s->dir = run_dir();
    s->config = run_path(s->dir, "config.json");
    s->env[0] = run_format("TIDEMILL_PROFILE=%s", run_path(s->dir, "profile.json"));
    s->env[1] = *TM_TEST_FAKE_CUDA ? "LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA : NULL;
    s->env[2] = NULL;
    s->opts = (run_opts){.env = s->env, .timeout_s = 300};
    const char *rows = run_path(s->dir, "rows.safetensors");
    tm_st *golden = tensors_open(MODEL "/golden.safetensors");
    rows_write(rows, golden, 0, 4, 16, true);
    tm_st_close(golden);
    run_write(s->config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\"}, \"precision\": \"bf16\",\n"
                         " \"max_steps\": 1, \"per_device_train_batch_size\": 1, \"output_dir\": \"%s\",\n"
                         " \"memory\": {\"device\": \"%s\"%s, \"host_budget\": \"700MiB\", \"update\": \"U\",\n"
                         "  \"activations\": \"recompute\"}}\n",
                         MODEL, rows, run_path(s->dir, "out"), device, budget));
}

/* The operations of the plan in a trace, in the plan's order: engine, name and number of operands of each, a line. */
static char *operations(const char *trace, uint32_t *n) {
    enum { MOST = 4096, LINE = 128 };
    tm_json_doc *doc;
    char *text = run_read(trace, NULL), *all = calloc(MOST, LINE);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, strlen(text), trace, 0, 0));
    const tm_json *events = tm_json_get(tm_json_root(doc), "traceEvents");
    for (const tm_json *e = events->child; e; e = e->next) {
        const tm_json *args = tm_json_get(e, "args"), *op = args ? tm_json_get(args, "op") : NULL;
        if (!tm_json_is(tm_json_get(e, "ph"), "X") || tm_json_get(e, "pid")->integer != 1 || !op) continue;
        const tm_json *operands = tm_json_get(args, "operands");
        assert_true(op->integer < MOST && !all[op->integer * LINE]);
        (void)snprintf(all + op->integer * LINE, LINE, "%s %s %lld\n", tm_json_get(e, "cat")->text,
                       tm_json_get(e, "name")->text, operands ? (long long)operands->integer : 0);
        ++*n;
    }
    char *to = all;
    for (uint32_t i = 0; i < MOST; i++) {
        size_t len = strlen(all + (size_t)i * LINE);
        memmove(to, all + (size_t)i * LINE, len);
        to += len;
    }
    *to = 0;
    tm_json_free(doc);
    free(text);
    return all;
}

static void check(const char *device, const char *budget) {
    scene s;
    uint32_t planned = 0, trained = 0;
    scene_open(&s, device, budget);
    const char *file = run_path(s.dir, "here.json"), *by_file = run_path(s.dir, "plan.json");
    const char *of_train = run_path(s.dir, "train.json");
    const struct {
        const char *command, *a, *b, *c, *d;
    } runs[] = {{"plan", "--save-hardware", file, NULL, NULL},
                {"plan", "--hardware", file, "--trace", by_file},
                {"train", "--quiet", "--trace", of_train, NULL}};
    for (size_t i = 0; i < TM_COUNT(runs); i++) {
        run_result r = run(s.opts, runs[i].command, s.config, runs[i].a, runs[i].b, runs[i].c, runs[i].d, NULL);
        RUN_OK(&r);
        run_free(&r);
    }
    char *want = operations(of_train, &trained), *got = operations(by_file, &planned);
    if (planned < 20 || strcmp(got, want) != 0) {
        size_t same = 0;
        while (got[same] && got[same] == want[same]) same++;
        fail_msg("%s: %u operations planned by the file, %u run; the first that differ: \"%.60s\", \"%.60s\"", device,
                 planned, trained, got + same, want + same);
    }
    free(want);
    free(got);
}

static void on_the_processors(void **state) {
    (void)state;
    check("cpu", "");
}

static void on_an_arena(void **state) {
    (void)state;
    check("cpu-arena", ", \"device_budget\": \"64MiB\"");
    check("cpu-arena", ", \"device_budget\": \"2MiB\""); /* state passes by */
}

static void on_a_gpu(void **state) {
    (void)state;
    if (!*TM_TEST_FAKE_CUDA) TEST_SKIP("the module of CUDA devices is not in this build");
    check("cuda:0", ", \"device_budget\": \"64MiB\"");
    check("cuda:0", ", \"device_budget\": \"4MiB\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(on_the_processors, run_clean),
                                       cmocka_unit_test_teardown(on_an_arena, run_clean),
                                       cmocka_unit_test_teardown(on_a_gpu, run_clean)};
    return cmocka_run_group_tests_name("train_plan_same", tests, NULL, NULL);
}

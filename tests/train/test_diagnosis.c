/* A model with weights near or beyond bf16's reach: after 50 skipped steps the unit whose output is not finite is
 * named, with the tensor that was poisoned; nothing is trained on it, and nothing is left. */
#include "io/file/file.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The tensor's values in a safetensors file, all set to `value`. */
static void poison(const char *path, const char *name, float value) {
    tm_buf file = {0};
    tm_json_doc *doc;
    uint64_t head;
    RUN_EXPECT_STATUS(tm_file_slurp(path, 16 * TM_MIB, &file));
    memcpy(&head, file.data, 8);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, file.data + 8, head, path, 0, 0));
    const tm_json *t = tm_json_get(tm_json_root(doc), name), *at = tm_json_get(t, "data_offsets");
    assert_true(t && tm_json_is(tm_json_get(t, "dtype"), "F32"));
    for (int64_t i = at->child->integer; i < at->child->next->integer; i += 4)
        memcpy(file.data + 8 + head + i, &value, 4);
    FILE *f = fopen(path, "w");
    assert_true(f && fwrite(file.data, 1, file.len, f) == file.len && fclose(f) == 0);
    tm_json_free(doc);
    tm_buf_free(&file);
}

static const char *job(const char *dir) {
    const char *rows = run_path(dir, "rows.safetensors"), *config = run_path(dir, "config.json");
    const char *model = run_path(dir, "model");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 2, 8, false);
    tm_st_close(golden);
    run_write(config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 8}, \"max_steps\": 60,"
                                 " \"commit_steps\": 0, \"precision\": \"bf16\", \"output_dir\": \"%s/out\"}\n",
                                 model, rows, dir));
    return config;
}

static double least_budget(const char *config) {
    run_result r = run((run_opts){0}, "train", config, "--quiet", "--set", "memory.host_budget=1", NULL);
    assert_int_equal(r.status, 2);
    double bytes = (double)train_minimum(r.err);
    run_free(&r);
    return bytes;
}

/* Wherever it lies: the first stage whose output is not finite has it. With commits the skipped steps are committed,
 * and the same command would go on from there. */
static void the_poisoned_tensor_is_named(void **state) {
    (void)state;
    static const struct {
        const char *tensor, *unit, *weight, *commit_steps;
        float value;
    } poisoned[] = {
        {"model.layers.1.mlp.down_proj.weight", "layers.1 ", " is 3e+38, in ", "commit_steps=0", 3e38f},
        {"model.layers.0.self_attn.o_proj.weight", "layers.0 ", " is 3e+38, in ", "commit_steps=7", 3e38f},
        {"model.layers.0.mlp.up_proj.weight", "layers.0 ", " is not finite, in ", "commit_steps=50", 3.4e38f},
        {"model.embed_tokens.weight", "embed ", " is not finite, in ", "commit_steps=7", 3.4e38f},
        {"model.norm.weight", "head ", " is 3e+38, in ", "commit_steps=7", 3e38f}};
    for (unsigned i = 0; i < TM_COUNT(poisoned); i++) {
        const char *dir = run_dir(), *config = job(dir), *name = poisoned[i].tensor;
        poison(run_path(dir, "model/model.safetensors"), name, poisoned[i].value);
        run_result r = run((run_opts){0}, "train", config, "--quiet", "--set", poisoned[i].commit_steps, NULL);
        assert_int_equal(r.status, 1);
        const char *said = strstr(r.err, "50 steps in a row had no finite loss or gradient");
        if (!said || !strstr(said, run_format("the output of %s", poisoned[i].unit)) ||
            !strstr(said, run_format("%s%s", poisoned[i].weight, name)))
            fail_msg("%s: %s", name, said ? said : "nothing is said of it");
        if (i > 0 && !strstr(r.err, "step 50 is committed")) fail_msg("%s", said);
        assert_int_not_equal(access(run_path(dir, "out/model.safetensors"), F_OK), 0);
        run_free(&r);
    }
}

/* Under a budget the plan that looks may have other temporaries to write out than the steps had, whose files are no
 * larger than those needed. */
static void under_any_budget(void **state) {
    (void)state;
    enum { FROM = 13, TO = 26 }; /* tenths of a MiB above the least: where steps spill, and then do not */
    const char *dir = run_dir(), *config = job(dir);
    poison(run_path(dir, "model/model.safetensors"), "model.layers.1.mlp.down_proj.weight", 3e38f);
    double least = least_budget(config);
    for (int i = FROM; i <= TO; i++) {
        run_result r = run((run_opts){0}, "train", config, "--quiet", "--set", "commit_steps=7", "--resume", "never",
                           "--set", run_format("output_dir=%s/%d", dir, i), "--set",
                           run_format("memory.host_budget=%.0f", least + i * (double)TM_MIB / 10), NULL);
        if (r.status != 1 || !strstr(r.err, "the output of layers.1 (mlp_out")) fail_msg("%d: %s", i, r.err);
        run_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(the_poisoned_tensor_is_named, run_clean),
                                       cmocka_unit_test_teardown(under_any_budget, run_clean)};
    return cmocka_run_group_tests_name("train_diagnosis", tests, NULL, NULL);
}

/* What does not learn is read where the user has it, and stays as it is: a base in one file, in shards, in GGUF, without
 * leave to write; parameters that are frozen by name. */
#include "adapted.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a base in place --------------------------------------------------------------------------------------------- */

static void convert(const char *from, const char *to, const char *option, const char *value) {
    run_result r = run((run_opts){0}, "convert", from, to, option, value, NULL);
    RUN_OK(&r);
    run_free(&r);
}

/* In memory, and paged with the least there is. */
static void expect_hash(const adapted *a, const char *model, const char *hash) {
    uint64_t bytes;
    const char *config = adapted_config(a, model), *none = "memory.cache=none", *steps = "max_steps=3";
    const char *least = adapted_least(config, a->dir, SETS(none, steps), &bytes);
    train_log memory = run_train(config, run_path(a->dir, "out"), 0, NULL, SETS(steps));
    train_log paged = run_train(config, run_path(a->dir, "out"), bytes, NULL, SETS(steps, none, least));
    if (strcmp(memory.hash, hash) != 0 || strcmp(paged.hash, hash) != 0)
        fail_msg("%s: %s in memory, %s paged, not %s", model, memory.hash, paged.hash, hash);
    assert_true(adapted_bytes(run_path(a->dir, "out"), 2, "frozen", "read") > 0);
}

static void a_base_is_one_however_it_lies(void **state) {
    (void)state;
    adapted a = adapted_open("peft_lora");
    const char *shards = run_path(a.dir, "shards"), *gguf = run_path(a.dir, "base.gguf");
    train_log one = run_train(adapted_config(&a, NULL), run_path(a.dir, "out"), 0, NULL, SETS("max_steps=3"));
    convert(a.base, shards, "--max-shard-size", "60KB");
    assert_int_equal(access(run_path(shards, "model.safetensors.index.json"), F_OK), 0);
    assert_true(run_entries(shards) > 5);
    convert(a.base, gguf, "--dtype", "f32");
    expect_hash(&a, shards, one.hash);
    expect_hash(&a, gguf, one.hash);
    adapted_close(&a);
}

typedef struct witness {
    struct stat folder, file;
    char *bytes;
    size_t n;
} witness;

static witness witness_of(const char *base) {
    witness w;
    assert_int_equal(stat(base, &w.folder), 0);
    assert_int_equal(stat(run_path(base, "model.safetensors"), &w.file), 0);
    w.bytes = run_read(run_path(base, "model.safetensors"), &w.n);
    return w;
}

static bool same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Neither its bytes nor when it was changed, and nothing new beside it. */
static void expect_untouched(const char *base, witness *was) {
    witness is = witness_of(base);
    assert_true(same_time(&is.file.st_mtim, &was->file.st_mtim) && same_time(&is.file.st_ctim, &was->file.st_ctim));
    assert_true(same_time(&is.folder.st_mtim, &was->folder.st_mtim));
    assert_int_equal(is.n, was->n);
    assert_memory_equal(is.bytes, was->bytes, is.n);
    free(is.bytes), free(was->bytes);
}

static void train_on(const adapted *a, const char *base, const char *hash) {
    witness was = witness_of(base);
    expect_hash(a, base, hash);
    expect_untouched(base, &was);
}

static int writable_again(void **state) {
    if (*state) assert_int_equal(chmod(*state, 0700), 0);
    *state = NULL;
    return run_clean(NULL);
}

static void a_base_is_never_written(void **state) {
    static char *const names[] = {"peft_qlora", "peft_embedding"};
    for (unsigned i = 0; i < TM_COUNT(names); i++) {
        adapted a = adapted_open(names[i]);
        const char *base = run_path(a.dir, "base");
        train_log log = run_train(adapted_config(&a, NULL), run_path(a.dir, "out"), 0, NULL, SETS("max_steps=3"));
        run_copy_model(a.base, base);
        assert_int_equal(chmod(run_path(base, "model.safetensors"), 0444), 0);
        assert_int_equal(chmod(base, 0555), 0);
        *state = (void *)(uintptr_t)base;
        train_on(&a, base, log.hash);
        assert_int_equal(chmod(base, 0700), 0);
        *state = NULL;
        adapted_close(&a);
    }
}

/* `base` on itself, without leave to write, seen by this process and those that it starts. */
static bool mount_without_writing(const char *base) {
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount(base, base, NULL, MS_BIND, NULL) == 0 &&
           mount(NULL, base, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0;
}

static int unmount(void **state) {
    if (*state) (void)umount2(*state, MNT_DETACH);
    *state = NULL;
    return run_clean(NULL);
}

static void a_base_may_lie_where_nobody_writes(void **state) {
    adapted a = adapted_open("peft_lora");
    const char *base = run_path(a.dir, "base");
    train_log log = run_train(adapted_config(&a, NULL), run_path(a.dir, "out"), 0, NULL, SETS("max_steps=3"));
    run_copy_model(a.base, base);
    *state = (void *)(uintptr_t)base;
    if (!mount_without_writing(base)) {
        adapted_close(&a);
        TEST_SKIP("a mount without leave to write: %s", strerror(errno));
    }
    assert_int_not_equal(access(base, W_OK), 0);
    train_on(&a, base, log.hash);
    adapted_close(&a);
}

/* ---- frozen by name ---------------------------------------------------------------------------------------------- */

/* Of peft_qwen3_base: two blocks, a head of its own. A star stands for anything. */
typedef struct freezing {
    const char *set[3];
    const char *learns[8];
} freezing;
static const freezing freezings[] = {
    {{"freeze_parameters=[\"model.embed_tokens\", \"model.layers.0.\"]"},
     {"model.layers.1.*", "model.norm.weight", "lm_head.weight"}},
    {{"freeze_parameters=[\"model.\"]", "trainable_parameters=[\"model.layers.0.self_attn.q\"]"},
     {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_norm.weight", "lm_head.weight"}},
    {{"freeze_parameters_regex=mlp|embed|norm", "trainable_parameters_regex=layers\\.1\\.mlp|k_norm"},
     {"*self_attn.?_proj.weight", "model.layers.1.mlp.*", "*k_norm.weight", "lm_head.weight"}},
    {{"freeze_trainable_layers=1"}, {"model.layers.1.*"}},
    {{"freeze_trainable_layers=-1"}, {"model.layers.0.*"}},
    /* 13,064 parameters, the embedding 1,920 of them, a block 4,600: in PyTorch's order the second block's attention
     * ends at 8,840, 67.7% of all */
    {{"freeze_parameters_ratio=0.68"},
     {"model.layers.1.mlp.*", "model.layers.1.*layernorm.weight", "model.norm.weight", "lm_head.weight"}},
};

/* Of the patterns of a row: letters, "?" for one, "*" for any number of them. */
static bool fits(const char *pattern, const char *name) {
    if (*pattern == '*') return fits(pattern + 1, name) || (*name && fits(pattern, name + 1));
    if (!*pattern || !*name) return *pattern == *name;
    return (*pattern == '?' || *pattern == *name) && fits(pattern + 1, name + 1);
}

static bool learns(const freezing *f, const char *name) {
    for (unsigned i = 0; i < TM_COUNT(f->learns) && f->learns[i]; i++)
        if (fits(f->learns[i], name)) return true;
    return false;
}

static void check_what_moved(const freezing *f, const char *base, const char *output) {
    tm_st *before = tensors_open(run_path(base, "model.safetensors"));
    tm_st *after = tensors_open(run_path(output, "model.safetensors"));
    assert_int_equal(tm_st_count(before), tm_st_count(after));
    for (uint32_t i = 0; i < tm_st_count(before); i++) {
        const char *name = tm_st_get(before, i)->name;
        tensor was = tensor_read(before, name), is = tensor_read(after, name);
        assert_int_equal(was.n, is.n);
        bool moved = memcmp(was.v, is.v, was.n * sizeof *was.v) != 0;
        if (moved != learns(f, name)) fail_msg("%s: %s %s", f->set[0], name, moved ? "moved" : "did not move");
        free(was.v), free(is.v);
    }
    tm_st_close(before);
    tm_st_close(after);
}

static const char *write_config(const adapted *a) {
    const char *path = run_path(a->dir, "freeze.json");
    run_write(path, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": %zu},\n"
                               " \"learning_rate\": 1e-2, \"weight_decay\": 0.1, \"max_steps\": 3,\n"
                               " \"gradient_accumulation_steps\": 2,\n"
                               " \"per_device_train_batch_size\": 1, \"precision\": \"fp32\"}\n",
                               a->base, a->rows, a->seq));
    return path;
}

/* Saved as a whole model; in memory, at the least budget and with all in files the same bits. */
static void test_freezing(void **state) {
    const freezing *f = *state;
    adapted a = adapted_open("peft_patterns"); /* its base and rows */
    uint64_t bytes;
    const char *config = write_config(&a), *memory = run_path(a.dir, "memory"), *none = "memory.cache=none",
               *paged = run_path(a.dir, "paged");
    train_log in_memory = run_train(config, memory, 0, NULL, SETS(f->set[0], f->set[1]));
    check_what_moved(f, a.base, memory);
    assert_int_not_equal(access(run_path(memory, "adapter_config.json"), F_OK), 0);
    adapted_same_files(run_path(a.base, "config.json"), run_path(memory, "config.json"));
    const char *least = adapted_least(config, a.dir, SETS(none, f->set[0], f->set[1]), &bytes);
    train_log in_files = run_train(config, paged, bytes, NULL, SETS(none, least, f->set[0], f->set[1]));
    assert_string_equal(in_files.hash, in_memory.hash);
    assert_true(adapted_bytes(paged, 2, "frozen", "read") > 0);
    adapted_same_files(run_path(memory, "model.safetensors"), run_path(paged, "model.safetensors"));
    adapted_close(&a);
}

static void updates_of_a_half_frozen_model(void **state) {
    static const char *const updates[][2] = {{"memory.update=U", "max_grad_norm=1"},
                                             {"memory.update=F", "max_grad_norm=1"},
                                             {"memory.update=B", "max_grad_norm=0"}};
    const freezing *f = &freezings[2];
    (void)state;
    adapted a = adapted_open("peft_patterns");
    const char *config = write_config(&a);
    for (unsigned i = 0; i < TM_COUNT(updates); i++) {
        uint64_t bytes;
        const char *norm = updates[i][1], *update = updates[i][0], *bf16 = "precision=bf16";
        train_log memory =
            run_train(config, run_path(a.dir, "memory"), 0, NULL, SETS(f->set[0], f->set[1], norm, bf16));
        const char *least =
            adapted_least(config, a.dir, SETS(f->set[0], f->set[1], norm, update, bf16, ADAPTED_FILES(a.dir)), &bytes);
        train_log files = run_train(config, run_path(a.dir, "files"), bytes, NULL,
                                    SETS(f->set[0], f->set[1], norm, update, bf16, least, ADAPTED_FILES(a.dir)));
        assert_string_equal(files.hash, memory.hash);
    }
    adapted_close(&a);
}

/* Of a model that is frozen whole nothing would be left to do. */
static void nothing_that_learns_is_refused(void **state) {
    (void)state;
    adapted a = adapted_open("peft_patterns");
    run_result r = run((run_opts){0}, "train", write_config(&a), "--set", "freeze_parameters=[\"model.\", \"lm_head\"]",
                       "--set", run_format("output_dir=%s", run_path(a.dir, "out")), NULL);
    assert_int_equal(r.status, 2);
    assert_int_equal(run_error_lines(r.err, NULL), 1);
    assert_int_equal(run_entries(run_path(a.dir, "out")), 0);
    run_free(&r);
    adapted_close(&a);
}

int main(int argc, char **argv) {
    struct CMUnitTest tests[5 + TM_COUNT(freezings)] = {
        cmocka_unit_test_teardown(a_base_is_one_however_it_lies, run_clean),
        cmocka_unit_test_teardown(a_base_is_never_written, writable_again),
        cmocka_unit_test_teardown(a_base_may_lie_where_nobody_writes, unmount),
        cmocka_unit_test_teardown(updates_of_a_half_frozen_model, run_clean),
        cmocka_unit_test_teardown(nothing_that_learns_is_refused, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < TM_COUNT(freezings); i++)
        tests[5 + i] = (struct CMUnitTest){.name = freezings[i].set[0],
                                           .test_func = test_freezing,
                                           .teardown_func = run_clean,
                                           .initial_state = (void *)(uintptr_t)&freezings[i]};
    return _cmocka_run_group_tests("train_frozen", tests, TM_COUNT(tests), NULL, NULL);
}

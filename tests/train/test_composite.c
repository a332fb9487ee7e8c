/* Models under other names than their architecture's: composite ones, whose other parts go along byte for byte. Each is
 * a fixture under such names, so the fixture's numbers hold for it. */
#include "run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct other {
    const char *name;
    tm_fmt fmt;
    uint32_t ndim;
    uint64_t shape[2];
} others[] = {{"vision_tower.layers.0.position_ids", TM_FMT_I64, 1, {7}},
              {"vision_tower.layers.0.q_proj.weight", TM_FMT_F8_E4M3, 2, {3, 5}},
              {"multi_modal_projector.weight", TM_FMT_F16, 2, {4, 8}},
              {"vision_tower.steps", TM_FMT_U8, 0, {0}},
              {"vision_tower.none", TM_FMT_F32, 2, {0, 4}}};

typedef struct form {
    const char *test, *fixture, *body, *head;
    const char *type;      /* the composite model's model_type; NULL: it has no other parts */
    bool nested;           /* the text part has a text_config */
    const char *text_type; /* of the fixture */
} form;
static const form forms[] = {
    {"transformers_5", "arch_gemma3", "model.language_model.", "", "gemma3", true, "gemma3_text"},
    {"transformers_4", "arch_mistral", "language_model.model.", "language_model.", "llava", true, "mistral"},
    {"flat", "arch_qwen2", "model.", "", "qwen2_vl", false, "qwen2"},
    {"gpt2_as_published", "arch_gpt2", "", "", NULL, false, "gpt2"}};

typedef struct world {
    const form *form;
    const char *dir, *model, *rows;
    bool extra, without; /* its weights: with a buffer; with no other parts */
    tm_json_doc *doc;
    tm_st *golden;
    size_t batch, seq;
} world;

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static uint8_t other_byte(size_t which, size_t i) {
    return (uint8_t)(31 * which + 7 * i + 1);
}

static uint64_t info_bytes(const struct other *o) {
    uint64_t bytes = 0, n = 1;
    for (uint32_t i = 0; i < o->ndim; i++) n *= o->shape[i];
    assert_true(tm_fmt_bytes(o->fmt, n, &bytes));
    return bytes;
}

static const char *renamed(const form *f, const char *name) {
    const char *stem = strchr(name, '.') + 1;
    if (strncmp(name, "lm_head.", 8) == 0) return run_format("%s%s", f->head, name);
    return run_format("%s%s", f->body, stem);
}

static uint8_t *raw(const tm_st *st, const char *name, uint64_t *n) {
    int64_t i = tm_st_find(st, name);
    if (i < 0) fail_msg("%s has no %s", tm_st_path(st), name);
    *n = tm_st_get(st, (uint32_t)i)->bytes;
    uint8_t *bytes = malloc(*n + 1);
    RUN_EXPECT_STATUS(tm_st_read_raw(st, (uint32_t)i, 0, *n, bytes));
    return bytes;
}

static const char buffer[] = "model.language_model.layers.0.self_attn.rotary_emb.inv_freq";

static void write_weights(const world *w) {
    tm_st_writer *out;
    tm_st *in = tensors_open(run_format("%s/%s/model.safetensors", TM_TEST_FIXTURES, w->form->fixture));
    uint32_t t, n = tm_st_count(in), extra = w->form->type && !w->without ? (uint32_t)TM_COUNT(others) : 0;
    RUN_EXPECT_STATUS(tm_st_writer_create(&out, run_path(w->model, "model.safetensors")));
    for (uint32_t i = 0; i < n; i++) {
        const tm_st_info *info = tm_st_get(in, i);
        RUN_EXPECT_STATUS(tm_st_writer_add(out, renamed(w->form, info->name), info->fmt, info->ndim, info->shape, &t));
    }
    for (uint32_t i = 0; i < extra; i++)
        RUN_EXPECT_STATUS(tm_st_writer_add(out, others[i].name, others[i].fmt, others[i].ndim, others[i].shape, &t));
    if (w->extra) RUN_EXPECT_STATUS(tm_st_writer_add(out, buffer, TM_FMT_F32, 1, (uint64_t[]){0}, &t));
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes;
        uint8_t *v = raw(in, tm_st_get(in, i)->name, &bytes);
        RUN_EXPECT_STATUS(tm_st_writer_write(out, i, 0, v, bytes));
        free(v);
    }
    for (uint32_t i = 0; i < extra; i++) {
        uint8_t v[64];
        uint64_t bytes = info_bytes(&others[i]);
        for (size_t k = 0; k < bytes; k++) v[k] = other_byte(i, k);
        RUN_EXPECT_STATUS(tm_st_writer_write(out, n + i, 0, v, bytes));
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(out));
    tm_st_close(in);
}

static void write_json(const world *w) {
    const form *f = w->form;
    size_t len;
    char *text = run_read(run_format("%s/%s/config.json", TM_TEST_FIXTURES, f->fixture), &len);
    const char *json = text, *key = run_format("\"model_type\": \"%s\"", f->text_type);
    char *type = strstr(text, key);
    assert_non_null(type);
    if (f->type && f->nested)
        json = run_format("{\"model_type\": \"%s\", \"text_config\": %s, \"vision_config\": {\"hidden_size\": 7}}",
                          f->type, text);
    else if (f->type)
        json = run_format("%.*s\"vision_config\": {\"hidden_size\": 7}, \"model_type\": \"%s\"%s", (int)(type - text),
                          text, f->type, type + strlen(key));
    run_write(run_path(w->model, "config.json"), json);
    run_write(run_path(w->model, "preprocessor_config.json"), "{ \"size\":7 }\n");
    run_write(run_path(w->model, "LICENSE"), "as you like\n");
    free(text);
}

static world world_open(const form *f) {
    world w = {.form = f, .dir = run_dir()};
    size_t len;
    const char *path = run_format("%s/%s/golden.json", TM_TEST_FIXTURES, f->fixture);
    char *text = run_read(path, &len);
    for (char *nan = text; (nan = strstr(nan, ": NaN"));) memcpy(nan, ": 0.0", 5); /* in measured_noise; is not JSON */
    RUN_EXPECT_STATUS(tm_json_parse(&w.doc, text, len, path, 0, 0));
    free(text);
    w.golden = tensors_open(run_format("%s/%s/golden.safetensors", TM_TEST_FIXTURES, f->fixture));
    const tm_st_info *ids = tm_st_get(w.golden, (uint32_t)tm_st_find(w.golden, "input_ids"));
    w.batch = (size_t)ids->shape[1];
    w.seq = (size_t)ids->shape[2];
    w.rows = run_path(w.dir, "rows.safetensors");
    rows_write(w.rows, w.golden, 0, (size_t)ids->shape[0] * w.batch, w.seq, false);
    w.model = run_path(w.dir, "model");
    assert_int_equal(mkdir(w.model, 0700), 0);
    write_weights(&w);
    write_json(&w);
    return w;
}

static void world_close(world *w) {
    tm_json_free(w->doc);
    tm_st_close(w->golden);
}

static const tm_json *golden(const world *w, const char *block, const char *key) {
    const tm_json *n = tm_json_get(tm_json_get(tm_json_root(w->doc), block), key);
    if (!n) fail_msg("%s/golden.json: %s.%s is missing", w->form->fixture, block, key);
    return n;
}

static double number(const world *w, const char *block, const char *key) {
    return golden(w, block, key)->number;
}

static const char *write_config(const world *w) {
    const char *path = run_path(w->dir, "train.json");
    const tm_json *betas = golden(w, "settings", "betas")->child;
    run_write(path, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": %zu},\n"
                               " \"learning_rate\": %.17g, \"adam_beta1\": %.17g, \"adam_beta2\": %.17g,\n"
                               " \"adam_epsilon\": %.17g, \"weight_decay\": %.17g, \"max_grad_norm\": %.17g,\n"
                               " \"lr_scheduler_type\": \"%s\", \"warmup_steps\": %d, \"max_steps\": %d,\n"
                               " \"per_device_train_batch_size\": %zu, \"precision\": \"fp32\"}\n",
                               w->model, w->rows, w->seq, number(w, "settings", "lr"), betas->number,
                               betas->next->number, number(w, "settings", "eps"), number(w, "settings", "weight_decay"),
                               number(w, "settings", "clip"), golden(w, "settings", "schedule")->text,
                               (int)number(w, "settings", "warmup"), (int)number(w, "settings", "steps"), w->batch));
    return path;
}

/* ---- what is expected -------------------------------------------------------------------------------------------- */

static void check_logits(const world *w) {
    const char *in = run_path(w->dir, "in.safetensors"), *out = run_path(w->dir, "out.safetensors");
    rows_write(in, w->golden, 0, w->batch, w->seq, false);
    run_result r = run((run_opts){0}, "probe", "--model", w->model, "--input", in, "--output", out, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *st = tensors_open(out);
    size_t n;
    int64_t *mask = tensor_ints(w->golden, "attention_mask", &n);
    tensor got = tensor_read(st, "logits"), want = tensor_read(w->golden, "logits");
    size_t vocab = want.n / (w->batch * w->seq);
    assert_int_equal(got.n, want.n);
    for (size_t i = 0; i < want.n; i++)
        if (mask[i / vocab] && !(fabsf(got.v[i] - want.v[i]) <= (float)number(w, "tolerances", "logits_max_abs")))
            fail_msg("logit %zu: %g, golden %g", i, (double)got.v[i], (double)want.v[i]);
    free(mask), free(got.v), free(want.v);
    tm_st_close(st);
}

static void same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = run_read(a, &n), *y = run_read(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x), free(y);
}

/* The source's tensors, no more; `all`: every one bit for bit, else those of other parts. */
static void check_folder(const world *w, const char *dir, bool all) {
    tm_st *in = tensors_open(run_path(w->model, "model.safetensors"));
    tm_st *out = tensors_open(run_path(dir, "model.safetensors"));
    unsigned carried = 0;
    assert_int_equal(tm_st_count(in), tm_st_count(out));
    for (uint32_t i = 0; i < tm_st_count(in); i++) {
        const tm_st_info *a = tm_st_get(in, i);
        uint64_t n, m;
        bool other = false;
        for (size_t k = 0; k < TM_COUNT(others); k++) other |= strcmp(others[k].name, a->name) == 0;
        uint8_t *x = raw(in, a->name, &n), *y = raw(out, a->name, &m);
        const tm_st_info *b = tm_st_get(out, (uint32_t)tm_st_find(out, a->name));
        assert_int_equal(a->fmt, b->fmt);
        assert_int_equal(a->ndim, b->ndim);
        for (uint32_t d = 0; d < a->ndim; d++) assert_int_equal(a->shape[d], b->shape[d]);
        if ((all || other) && memcmp(x, y, n) != 0) fail_msg("%s: %s is not as it was", dir, a->name);
        carried += other;
        free(x), free(y);
    }
    assert_int_equal(carried, w->form->type ? TM_COUNT(others) : 0);
    tm_st_close(in), tm_st_close(out);
    same_file(run_path(w->model, "preprocessor_config.json"), run_path(dir, "preprocessor_config.json"));
    same_file(run_path(w->model, "LICENSE"), run_path(dir, "LICENSE"));
}

static void check_steps(const world *w, const train_log *log) {
    const tm_json *loss = golden(w, "trajectory", "loss")->child;
    assert_int_equal(log->steps, (int)number(w, "settings", "steps"));
    for (unsigned s = 0; s < log->steps; s++, loss = loss->next)
        if (!(fabs(log->step[s].loss - loss->number) <= number(w, "tolerances", "traj_loss_abs")))
            fail_msg("step %u: loss %.9g, golden %.9g", s + 1, log->step[s].loss, loss->number);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* The fixture's logits and losses; what is no text as it was, in the output and in a checkpoint; one hash in memory and
 * in files. */
static void test_form(void **state) {
    world w = world_open(*state);
    const char *config = write_config(&w), *output = run_path(w.dir, "memory");
    check_logits(&w);
    run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s", output), "--set",
                       "save_strategy=steps", "--set", "save_steps=4", "--set", "save_dtype=fp32", NULL);
    RUN_OK(&r);
    assert_true((strstr(r.err, "5 tensors of them") != NULL) == (w.form->type != NULL));
    run_free(&r);
    train_log memory = train_log_read(output);
    check_steps(&w, &memory);
    check_folder(&w, output, false);
    check_folder(&w, run_path(output, "checkpoint-4"), false);
    const char *paged = run_path(w.dir, "paged");
    uint64_t least = run_train_minimum(config, run_path(w.dir, "refused"), SETS("memory.cache=none"));
    train_log files = run_train(
        config, paged, least, &(run_opts){0},
        SETS("memory.cache=none", "save_dtype=fp32", run_format("memory.host_budget=%llu", (unsigned long long)least)));
    assert_true(files.step[0].read_bytes > 0);
    assert_string_equal(files.hash, memory.hash);
    same_file(run_path(output, "model.safetensors"), run_path(paged, "model.safetensors"));
    world_close(&w);
}

/* Without a learning rate every tensor is what it was. */
static void test_no_rate(void **state) {
    (void)state;
    world w = world_open(&forms[0]);
    const char *output = run_path(w.dir, "out");
    (void)run_train(write_config(&w), output, 0, &(run_opts){0},
                    SETS("learning_rate=0", "save_dtype=fp32", "max_steps=2"));
    check_folder(&w, output, true);
    world_close(&w);
}

/* Shards in, shards out: the folder that was written is trained from as the one file is. */
static void test_shards(void **state) {
    (void)state;
    world w = world_open(&forms[1]);
    const char *config = write_config(&w), *cut = run_path(w.dir, "cut"), *out = run_path(w.dir, "out");
    (void)run_train(config, cut, 0, &(run_opts){0},
                    SETS("learning_rate=0", "save_dtype=fp32", "max_steps=2", "save_steps=1", "max_shard_size=100KB"));
    assert_int_not_equal(access(run_path(cut, "model.safetensors"), F_OK), 0);
    assert_int_equal(access(run_path(cut, "model.safetensors.index.json"), F_OK), 0);
    assert_int_equal(access(run_path(cut, "checkpoint-1/model.safetensors.index.json"), F_OK), 0);
    (void)run_train(config, out, 0, &(run_opts){0},
                    SETS(run_format("model=%s", cut), "learning_rate=0", "save_dtype=fp32", "max_steps=2"));
    check_folder(&w, out, true);
    world_close(&w);
}

/* What no list knows goes along, what is of other programs, hidden, large or elsewhere does not, and a line says so;
 * what the user has in output_dir stays. */
static void test_other_files(void **state) {
    (void)state;
    static const char *const carried[] = {"README.md", "modeling_x.py", "picture.png", "odd\nname", ".gitattributes"},
                             *const left[] = {"optimizer.pt", "model.gguf", ".hidden", "run.json",
                                              "passwd",       "large",      "part"};
    world w = world_open(&forms[0]);
    const char *output = run_path(w.dir, "out"), *elsewhere = run_path(w.dir, "elsewhere");
    run_write(elsewhere, "secret");
    for (size_t i = 0; i < TM_COUNT(carried); i++) run_write(run_path(w.model, carried[i]), carried[i]);
    for (size_t i = 0; i < 4; i++) run_write(run_path(w.model, left[i]), "{}");
    run_write(run_path(w.model, "NOTES"), "theirs");
    assert_int_equal(symlink(elsewhere, run_path(w.model, "passwd")), 0);
    run_write(run_path(w.model, "large"), "");
    assert_int_equal(truncate(run_path(w.model, "large"), (64 << 20) + 1), 0);
    assert_int_equal(mkdir(run_path(w.model, "part"), 0700), 0);
    assert_int_equal(mkdir(run_path(w.model, ".cache"), 0700), 0);
    assert_int_equal(mkdir(output, 0700), 0);
    run_write(run_path(output, "NOTES"), "mine");
    run_result r = run((run_opts){0}, "train", write_config(&w), "--set", run_format("output_dir=%s", output), "--set",
                       "save_steps=1", "--set", "max_steps=2", NULL);
    RUN_OK(&r);
    assert_non_null(
        strstr(r.err, "4 entries beside the weights are not carried along, the first \".hidden\" (hidden)"));
    run_free(&r);
    const char *const to[] = {output, run_path(output, "checkpoint-1")};
    for (size_t k = 0; k < TM_COUNT(to); k++) {
        for (size_t i = 0; i < TM_COUNT(carried); i++)
            same_file(run_path(w.model, carried[i]), run_path(to[k], carried[i]));
        for (size_t i = 0; i < TM_COUNT(left); i++)
            if (k || strcmp(left[i], "run.json") != 0) assert_int_not_equal(access(run_path(to[k], left[i]), F_OK), 0);
    }
    size_t n;
    char *mine = run_read(run_path(output, "NOTES"), &n);
    assert_string_equal(mine, "mine");
    free(mine);
    world_close(&w);
}

/* Another dtype is the text part's; GGUF is refused with the reason. */
static void test_convert(void **state) {
    world w = world_open(*state);
    const char *out = run_path(w.dir, "bf16");
    run_result r = run((run_opts){0}, "convert", w.model, out, "--dtype", "bf16", NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *in = tensors_open(run_path(w.model, "model.safetensors"));
    tm_st *st = tensors_open(run_path(out, "model.safetensors"));
    assert_int_equal(tm_st_count(in), tm_st_count(st));
    for (uint32_t i = 0; i < tm_st_count(in); i++) {
        const tm_st_info *a = tm_st_get(in, i), *b = tm_st_get(st, (uint32_t)tm_st_find(st, a->name));
        bool other = false;
        for (size_t k = 0; k < TM_COUNT(others); k++) other |= strcmp(others[k].name, a->name) == 0;
        assert_int_equal(b->fmt, other ? a->fmt : TM_FMT_BF16);
        uint64_t n, m;
        uint8_t *x = raw(in, a->name, &n), *y = raw(st, a->name, &m);
        if (other) assert_memory_equal(x, y, n);
        free(x), free(y);
    }
    tm_st_close(in), tm_st_close(st);
    r = run((run_opts){0}, "convert", w.model, run_path(w.dir, "out.gguf"), NULL);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "has other parts than text"));
    run_free(&r);
    world_close(&w);
}

/* A buffer of the text part is no part of what is written; a line says that. */
static void test_dropped(void **state) {
    (void)state;
    world w = world_open(&forms[0]);
    w.extra = true;
    write_weights(&w);
    const char *output = run_path(w.dir, "out");
    run_result r = run((run_opts){0}, "train", write_config(&w), "--set", run_format("output_dir=%s", output), "--set",
                       "learning_rate=0", "--set", "save_dtype=fp32", "--set", "max_steps=2", NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "1 tensors of the folder are not the model's and are left out"));
    assert_non_null(strstr(r.err, buffer));
    run_free(&r);
    w.extra = false;
    write_weights(&w);
    check_folder(&w, output, true);
    world_close(&w);
}

static uint64_t number_in(const char *json, const char *key) {
    const char *at = strstr(json, run_format("\"%s\":", key));
    assert_non_null(at);
    return strtoull(at + strlen(key) + 3, NULL, 10);
}

/* What plan says of the foreign bytes is what they are. */
static void test_planned_bytes(void **state) {
    (void)state;
    uint64_t planned[2] = {0}, bytes = 0;
    for (size_t i = 0; i < TM_COUNT(others); i++) bytes += info_bytes(&others[i]);
    for (int with = 0; with < 2; with++) {
        world w = world_open(&forms[0]);
        w.without = !with;
        write_weights(&w);
        run_result r = run((run_opts){0}, "plan", write_config(&w), "--json", NULL);
        RUN_OK(&r);
        planned[with] = number_in(r.out, "run_write_bytes");
        run_free(&r);
        world_close(&w);
    }
    assert_int_equal(planned[1] - planned[0], bytes);
}

/* Killed at a commit and while it writes models, it ends as it would have. */
static void test_killed(void **state) {
    (void)state;
    static const char *const points[] = {"kill_published:2", "kill_before_export:1", "kill_in_export:2"};
    world w = world_open(&forms[0]);
    const char *config = write_config(&w), *whole = run_path(w.dir, "whole"), *cut = run_path(w.dir, "cut");
    const char *const *sets = SETS("save_dtype=fp32", "commit_steps=1", "save_steps=3", "max_steps=6");
    train_log want = run_train(config, whole, 0, &(run_opts){0}, sets);
    for (size_t i = 0; i <= TM_COUNT(points); i++) {
        bool last = i == TM_COUNT(points);
        const char *env[] = {last ? NULL : run_format("TIDEMILL_FAULT=%s:kill:once", points[i]), NULL};
        run_result r =
            run((run_opts){.env = env}, "train", config, "--set", run_format("output_dir=%s", cut), "--set",
                "save_dtype=fp32", "--set", "commit_steps=1", "--set", "save_steps=3", "--set", "max_steps=6", NULL);
        if (last)
            RUN_OK(&r);
        else
            assert_int_equal(r.status, 128 + SIGKILL);
        run_free(&r);
    }
    assert_string_equal(train_log_read(cut).hash, want.hash);
    same_file(run_path(whole, "model.safetensors"), run_path(cut, "model.safetensors"));
    same_file(run_path(whole, "checkpoint-3/model.safetensors"), run_path(cut, "checkpoint-3/model.safetensors"));
    check_folder(&w, cut, false);
    world_close(&w);
}

static void test_shard_size_wrong(void **state) {
    (void)state;
    world w = world_open(&forms[1]);
    static const char *const wrong[] = {"max_shard_size=0", "max_shard_size=-1", "max_shard_size=5 apples",
                                        "max_shard_size=100"};
    for (size_t i = 0; i < TM_COUNT(wrong); i++) {
        run_result r = run((run_opts){0}, "train", write_config(&w), "--set", wrong[i], "--set",
                           run_format("output_dir=%s", run_path(w.dir, "out")), NULL);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, "max_shard_size"));
        run_free(&r);
    }
    world_close(&w);
}

/* 12 values in 4 bits (bitsandbytes') in a shard of their own. */
static void add_coded_part(const world *w) {
    static const char state[] = "{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[3,4]}";
    static const char *const name[] = {"vision_tower.c.weight", "vision_tower.c.weight.absmax",
                                       "vision_tower.c.weight.quant_map",
                                       "vision_tower.c.weight.quant_state.bitsandbytes__nf4"};
    const uint64_t n[] = {6, 1, 16, sizeof state - 1};
    float map[16], absmax = 0.75F;
    uint8_t codes[6];
    for (int i = 0; i < 16; i++) map[i] = (float)i / 8 - 1;
    for (int i = 0; i < 6; i++) codes[i] = (uint8_t)(41 * i + 3);
    const void *const bytes[] = {codes, &absmax, map, state};
    tm_st_writer *out;
    uint32_t t[4];
    run_write(run_path(w->model, "model.safetensors.index.json"),
              "{\"weight_map\": {\"vision_tower.c.weight\": \"vision.safetensors\", \"vision_tower.steps\": "
              "\"text.safetensors\"}}");
    assert_int_equal(rename(run_path(w->model, "model.safetensors"), run_path(w->model, "text.safetensors")), 0);
    RUN_EXPECT_STATUS(tm_st_writer_create(&out, run_path(w->model, "vision.safetensors")));
    for (int i = 0; i < 4; i++)
        RUN_EXPECT_STATUS(
            tm_st_writer_add(out, name[i], i % 3 ? TM_FMT_F32 : TM_FMT_U8, 2, (uint64_t[]){n[i], 1}, &t[i]));
    for (int i = 0; i < 4; i++) RUN_EXPECT_STATUS(tm_st_writer_write(out, t[i], 0, bytes[i], n[i] * (i % 3 ? 4 : 1)));
    RUN_EXPECT_STATUS(tm_st_writer_commit(out));
}

/* A part of another kind in 4 bits leaves as its values: its codes would be nothing without the scales. */
static void test_coded_part(void **state) {
    (void)state;
    world w = world_open(&forms[1]);
    const char *output = run_path(w.dir, "out");
    tm_source *from, *to;
    float a[12], b[12];
    add_coded_part(&w);
    (void)run_train(write_config(&w), output, 0, &(run_opts){0},
                    SETS("learning_rate=0", "save_dtype=fp32", "max_steps=1"));
    RUN_EXPECT_STATUS(tm_source_open(&from, w.model));
    RUN_EXPECT_STATUS(tm_source_open(&to, output));
    assert_int_equal(tm_source_tensors(from), tm_source_tensors(to));
    int64_t i = tm_source_find(from, "vision_tower.c.weight"), k = tm_source_find(to, "vision_tower.c.weight");
    assert_true(i >= 0 && k >= 0);
    assert_int_equal(tm_source_tensor_get(from, (uint32_t)i)->fmt, TM_FMT_NF4);
    assert_int_equal(tm_source_tensor_get(to, (uint32_t)k)->fmt, TM_FMT_F32);
    RUN_EXPECT_STATUS(tm_source_read_f32(from, (uint32_t)i, 0, 12, a));
    RUN_EXPECT_STATUS(tm_source_read_f32(to, (uint32_t)k, 0, 12, b));
    assert_memory_equal(a, b, sizeof a);
    tm_source_close(from), tm_source_close(to);
    world_close(&w);
}

static void test_random(void **state) {
    (void)state;
    world w = world_open(&forms[0]);
    run_result r = run((run_opts){0}, "train", write_config(&w), "--set", "init=random", "--set",
                       run_format("output_dir=%s", run_path(w.dir, "out")), NULL);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "other parts than text"));
    run_free(&r);
    world_close(&w);
}

int main(int argc, char **argv) {
    struct CMUnitTest tests[2 * TM_COUNT(forms) + 9];
    size_t n = 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < TM_COUNT(forms); i++)
        tests[n++] = (struct CMUnitTest){forms[i].test, test_form, NULL, run_clean, (void *)(uintptr_t)&forms[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_no_rate, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_shards, run_clean);
    for (size_t i = 0; i < 3; i++)
        tests[n++] = (struct CMUnitTest){"convert", test_convert, NULL, run_clean, (void *)(uintptr_t)&forms[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_other_files, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_dropped, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_planned_bytes, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_killed, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_shard_size_wrong, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_coded_part, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_random, run_clean);
    return _cmocka_run_group_tests("train_composite", tests, n, NULL, NULL);
}

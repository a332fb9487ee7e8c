/* Adapters on frozen bases against PEFT: logits, gradients, five steps, what is left; in memory and with the base paged
 * the same bits. */
#include "adapted.h"
#include "tests/support/skip.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- probe ------------------------------------------------------------------------------------------------------- */

static const char *probe(const adapted *a, const char *precision, const char *name, const char *budget) {
    const char *in = run_path(a->dir, "in.safetensors"), *out = run_path(a->dir, name);
    rows_write(in, a->inputs, 0, a->batch, a->seq, false);
    run_result r = run((run_opts){0}, "probe", "--model", a->base, "--adapter", a->folder, "--input", in, "--output",
                       out, "--precision", precision, "--grads", budget ? "--host-budget" : NULL, budget,
                       "--offload-path", a->dir, NULL);
    if (budget && strcmp(budget, "1") == 0) {
        assert_int_equal(r.status, 2);
        out = run_format("%llu", (unsigned long long)train_minimum(r.err));
    } else {
        RUN_OK(&r);
        assert_int_equal(r.out_len, 0);
    }
    run_free(&r);
    return out;
}

static double scalar(const tm_st *st, const char *name) {
    tensor t = tensor_read(st, name);
    double v = (double)t.v[0];
    assert_int_equal(t.n, 1);
    free(t.v);
    return v;
}

static void check_logits(const adapted *a, const tm_st *out) {
    size_t n;
    int64_t *mask = tensor_ints(a->inputs, "attention_mask", &n);
    tensor got = tensor_read(out, "logits"), want = tensor_read(a->golden, "logits");
    size_t vocab = want.n / (a->batch * a->seq);
    assert_int_equal(got.n, want.n);
    for (size_t t = 0; t < a->batch * a->seq; t++)
        if (mask[t])
            adapted_near("logits", adapted_max_abs(got.v + t * vocab, want.v + t * vocab, vocab), 0,
                         adapted_number(a, "tolerances", "logits_max_abs"));
    free(mask), free(got.v), free(want.v);
}

/* Under the adapter file's names; of what is frozen none. */
static void check_gradients(const adapted *a, const tm_st *out) {
    unsigned wanted = 0, got_some = 0;
    for (uint32_t i = 0; i < tm_st_count(out); i++) got_some += strncmp(tm_st_get(out, i)->name, "grad.", 5) == 0;
    for (uint32_t i = 0; i < tm_st_count(a->golden); i++) {
        const char *name = tm_st_get(a->golden, i)->name;
        if (strncmp(name, "grad.", 5) != 0) continue;
        tensor want = tensor_read(a->golden, name), got = tensor_read(out, name);
        assert_int_equal(got.n, want.n);
        double norm = adapted_l2(want.v, NULL, want.n);
        adapted_near(name, adapted_l2(got.v, want.v, want.n), 0,
                     norm > 0 ? norm * adapted_number(a, "tolerances", "grad_rel_l2") : 1e-7);
        free(want.v), free(got.v);
        wanted++;
    }
    assert_true(wanted > 0);
    assert_int_equal(wanted, got_some);
}

static void test_probe(void **state) {
    adapted a = adapted_open(*state);
    const char *memory = probe(&a, "fp32", "memory.safetensors", NULL);
    tm_st *out = tensors_open(memory);
    check_logits(&a, out);
    check_gradients(&a, out);
    double loss = adapted_number(&a, "scalars", "loss"), norm = adapted_number(&a, "scalars", "grad_norm");
    adapted_near("loss", scalar(out, "loss"), loss, adapted_number(&a, "tolerances", "loss_abs"));
    adapted_near("grad_norm", scalar(out, "grad_norm"), norm, norm * adapted_number(&a, "tolerances", "grad_norm_rel"));
    tm_st_close(out);
    const char *least = probe(&a, "fp32", "refused", "1");
    adapted_same_files(memory, probe(&a, "fp32", "paged.safetensors", least));
    adapted_close(&a);
}

/* ---- train ------------------------------------------------------------------------------------------------------- */

static const tm_json *read_json(const char *path, tm_json_doc **doc) {
    size_t len;
    char *text = run_read(path, &len);
    RUN_EXPECT_STATUS(tm_json_parse(doc, text, len, path, 0, 0));
    free(text);
    return tm_json_root(*doc);
}

static bool same_value(const tm_json *a, const tm_json *b);

static bool holds(const tm_json *array, const tm_json *value) {
    for (const tm_json *e = array->child; e; e = e->next)
        if (same_value(e, value)) return true;
    return false;
}

/* Lists are of names, whose order says nothing. */
static bool same_value(const tm_json *a, const tm_json *b) {
    if (!a || !b || a->type != b->type || a->count != b->count) return false;
    if (a->type == TM_JSON_NUMBER) return a->number == b->number;
    if (a->type == TM_JSON_STRING) return strcmp(a->text, b->text) == 0;
    if (a->type == TM_JSON_BOOL) return a->boolean == b->boolean;
    for (const tm_json *m = a->child; m; m = m->next)
        if (a->type == TM_JSON_OBJECT ? !same_value(m, tm_json_get(b, m->key)) : !holds(b, m)) return false;
    return true;
}

/* Key by key what PEFT wrote, but for the path of the base. */
static void check_adapter_config(const adapted *a, const char *output) {
    tm_json_doc *was, *is;
    const tm_json *want = read_json(run_path(a->folder, "adapter_config.json"), &was);
    const tm_json *got = read_json(run_path(output, "adapter_config.json"), &is);
    assert_int_equal(want->count, got->count);
    for (const tm_json *m = want->child; m; m = m->next)
        if (strcmp(m->key, "base_model_name_or_path") != 0 && !same_value(m, tm_json_get(got, m->key)))
            fail_msg("%s: %s is not what it was", output, m->key);
    assert_true(tm_json_is(tm_json_get(got, "base_model_name_or_path"), a->base));
    tm_json_free(was);
    tm_json_free(is);
}

/* What a step reads of the base; *own: what the run makes of it for itself, beside the state in its one path. */
static uint64_t planned_frozen(const char *config, const char *output, const char *const *sets, uint64_t *own) {
    const char *arguments[32] = {"plan", config, "--json", "--set", run_format("output_dir=%s", output)};
    for (unsigned n = 5; *sets && n < 30; sets++) arguments[n++] = "--set", arguments[n++] = *sets;
    run_result r = run_argv(&(run_opts){0}, arguments);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan", 0, 0));
    const tm_json *kind = tm_json_get(tm_json_get(tm_json_root(doc), "bytes_by_kind"), "frozen");
    uint64_t bytes = (uint64_t)tm_json_get(kind, "read")->integer;
    assert_int_equal(tm_json_get(kind, "write")->integer, 0);
    const tm_json *all = tm_json_get(tm_json_root(doc), "disk_bytes"), *path = tm_json_get(tm_json_root(doc), "paths");
    if (own) *own = (uint64_t)(all->integer - tm_json_get(path->child, "bytes")->integer);
    tm_json_free(doc);
    run_free(&r);
    return bytes;
}

/* The base is read as often as was planned and never written. */
static void check_frozen_bytes(const char *config, const char *output, unsigned steps, const char *const *sets) {
    uint64_t planned = planned_frozen(config, run_path(output, "plan"), sets, NULL);
    assert_true(planned > 0);
    for (unsigned s = 1; s <= steps; s++) {
        assert_int_equal(adapted_bytes(output, s, "frozen", "read"), planned);
        assert_int_equal(adapted_bytes(output, s, "frozen", "write"), 0);
    }
}

static void test_train(void **state) {
    adapted a = adapted_open(*state);
    uint64_t bytes;
    const char *config = adapted_config(&a, NULL), *memory = run_path(a.dir, "memory"),
               *paged = run_path(a.dir, "paged");
    double loss = adapted_number(&a, "tolerances", "traj_loss_abs");
    double norm = adapted_number(&a, "tolerances", "traj_grad_norm_rel");
    train_log in_memory = run_train(config, memory, 0, NULL, SETS("memory.host_budget=unlimited"));
    adapted_check_steps(&a, &in_memory, loss, norm);
    adapted_check_final(&a, run_path(memory, "adapter_model.safetensors"));
    check_adapter_config(&a, memory);
    assert_int_equal(run_entries(memory),
                     7); /* the adapter's two files, log, run.json; page, card, HF Trainer's state */
    assert_int_equal(in_memory.step[1].read_bytes + in_memory.step[1].write_bytes, 0);
    const char *none = "memory.cache=none", *least = adapted_least(config, a.dir, SETS(none), &bytes);
    train_log in_files = run_train(config, paged, bytes, NULL, SETS(none, least));
    assert_string_equal(in_files.hash, in_memory.hash);
    adapted_same_files(run_path(memory, "adapter_model.safetensors"), run_path(paged, "adapter_model.safetensors"));
    check_frozen_bytes(config, paged, in_files.steps, SETS(none, least));
    adapted_close(&a);
}

/* Computing in bf16 may be 2% of a loss and 5% of a norm off in one step (as of full models, test_golden.c). */
static void test_bf16(void **state) {
    adapted a = adapted_open(*state);
    uint64_t bytes;
    const char *config = adapted_config(&a, NULL), *bf16 = "precision=bf16", *none = "memory.cache=none";
    const char *memory = run_path(a.dir, "memory");
    train_log in_memory = run_train(config, memory, 0, NULL, SETS(bf16));
    adapted_check_steps(&a, &in_memory, 0.02 * adapted_element(&a, "trajectory", "loss", 0), 0.05);
    const char *least = adapted_least(config, a.dir, SETS(bf16, none), &bytes);
    train_log in_files = run_train(config, run_path(a.dir, "paged"), bytes, NULL, SETS(bf16, none, least));
    assert_string_equal(in_files.hash, in_memory.hash);
    assert_true(adapted_bytes(run_path(a.dir, "paged"), 2, "frozen", "read") > 0);
    tm_st *out = tensors_open(run_path(memory, "adapter_model.safetensors"));
    for (uint32_t i = 0; i < tm_st_count(out); i++) assert_int_equal(tm_st_get(out, i)->fmt, TM_FMT_F32);
    tm_st_close(out);
    adapted_close(&a);
}

/* ---- wherever the adapter's state lies ---------------------------------------------------------------------------- */

/* Updates U, F and B with all in files, at the least budget of each; B has no norm to clip by. */
static void test_updates(void **state) {
    static const char *const updates[][2] = {{"memory.update=U", "max_grad_norm=1"},
                                             {"memory.update=F", "max_grad_norm=1"},
                                             {"memory.update=B", "max_grad_norm=0"}};
    adapted a = adapted_open(*state);
    const char *config = adapted_config(&a, NULL), *rows = "per_device_train_batch_size=1",
               *more = "gradient_accumulation_steps=2";
    for (unsigned i = 0; i < TM_COUNT(updates); i++) {
        const char *norm = updates[i][1], *out = run_format("%s/update-%u", a.dir, i);
        train_log memory = run_train(config, run_format("%s-memory", out), 0, NULL, SETS(norm, rows, more));
        uint64_t bytes;
        const char *least =
            adapted_least(config, a.dir, SETS(updates[i][0], norm, rows, more, ADAPTED_FILES(a.dir)), &bytes);
        train_log files =
            run_train(config, out, bytes, NULL, SETS(updates[i][0], norm, rows, more, least, ADAPTED_FILES(a.dir)));
        assert_string_equal(files.hash, memory.hash);
        assert_true(adapted_bytes(out, 2, "exp_avg", "write") > 0 && adapted_bytes(out, 2, "frozen", "read") > 0);
    }
    adapted_close(&a);
}

/* Each unit is visited once forward and once backward, whatever the number of micro-batches. */
static void a_step_reads_the_base_as_often(void **state) {
    static const char *const batches[] = {"gradient_accumulation_steps=1", "gradient_accumulation_steps=5"};
    const char *rows = "per_device_train_batch_size=1", *none = "memory.cache=none";
    uint64_t bytes, read[2];
    (void)state;
    adapted a = adapted_open("peft_qlora");
    const char *config = adapted_config(&a, NULL), *out = run_path(a.dir, "out");
    for (unsigned i = 0; i < 2; i++) {
        const char *least = adapted_least(config, a.dir, SETS(rows, none, batches[i]), &bytes);
        (void)run_train(config, out, bytes, NULL, SETS(rows, none, batches[i], least, "max_steps=2"));
        read[i] = adapted_bytes(out, 2, "frozen", "read");
    }
    assert_int_equal(read[0], read[1]);
    adapted_close(&a);
}

/* The base in full precision, quantised when the run begins: what was found on the one that bitsandbytes made of it holds. */
static void a_base_is_quantised_as_bitsandbytes_does(void **state) {
    (void)state;
    adapted a = adapted_open("peft_qlora");
    const char *config = adapted_config(&a, TM_TEST_FIXTURES "/peft_base"), *none = "memory.cache=none";
    const char *nf4 = "quantization={\"type\": \"nf4\", \"double_quant\": true}", *out = run_path(a.dir, "out");
    uint64_t bytes;
    train_log memory = run_train(config, out, 0, NULL, SETS(nf4));
    adapted_check_steps(&a, &memory, adapted_number(&a, "tolerances", "traj_loss_abs"),
                        adapted_number(&a, "tolerances", "traj_grad_norm_rel"));
    adapted_check_final(&a, run_path(out, "adapter_model.safetensors"));
    const char *least = adapted_least(config, a.dir, SETS(nf4, none), &bytes);
    train_log files = run_train(config, out, bytes, NULL, SETS(nf4, none, least));
    assert_string_equal(files.hash, memory.hash);
    assert_true(adapted_bytes(out, 2, "frozen", "read") > 0);
    adapted_close(&a);
}

/* One that is in four bits already is read as it is. */
static void no_base_is_quantised_twice(void **state) {
    (void)state;
    adapted a = adapted_open("peft_qlora");
    const char *config = adapted_config(&a, NULL), *none = "memory.cache=none";
    uint64_t bytes;
    train_log plain = run_train(config, run_path(a.dir, "plain"), 0, NULL, SETS("seed=42"));
    const char *nf4 = "quantization={\"type\": \"nf4\"}", *least = adapted_least(config, a.dir, SETS(none), &bytes);
    train_log twice = run_train(config, run_path(a.dir, "twice"), bytes, NULL, SETS(none, least, nf4));
    assert_string_equal(twice.hash, plain.hash);
    adapted_close(&a);
}

/* A model of some 10^13 parameters; nothing is written. */
static void a_base_without_room_is_refused(void **state) {
    (void)state;
    adapted a = adapted_open("peft_lora");
    const char *model = run_path(a.dir, "model"), *config = run_path(a.dir, "large.json"),
               *out = run_path(a.dir, "out");
    assert_int_equal(mkdir(model, 0700), 0);
    run_write(
        run_path(model, "config.json"),
        "{\"model_type\": \"llama\", \"hidden_size\": 32768, \"intermediate_size\": 131072, \"num_hidden_layers\": "
        "1000,\n \"num_attention_heads\": 256, \"num_key_value_heads\": 256, \"vocab_size\": 32000,\n"
        " \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": "
        "\"silu\",\n \"tie_word_embeddings\": true, \"initializer_range\": 0.02}\n");
    run_write(config, run_format("{\"model\": \"%s\", \"init\": \"random\", \"quantization\": {\"type\": \"nf4\"},\n"
                                 " \"adapter\": {\"r\": 4, \"target_modules\": [\"q_proj\"]},\n"
                                 " \"data\": {\"train\": \"%s\", \"seq_len\": %zu}, \"max_steps\": 2}\n",
                                 model, a.rows, a.seq));
    run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s", out), NULL);
    if (r.status != 2 || run_error_lines(r.err, NULL) != 1 || !strstr(r.err, "the model in four bits takes"))
        fail_msg("exit status %d: %s", r.status, r.err);
    run_free(&r);
    assert_int_equal(access(out, F_OK), -1);
    adapted_close(&a);
}

/* The bytes of all tensors of the only folder base-... in `dir`. */
static uint64_t base_bytes(const char *dir) {
    char found[4096] = "";
    uint64_t bytes = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strncmp(e->d_name, "base-", 5) == 0) snprintf(found, sizeof found, "%s", e->d_name);
    if (d) closedir(d);
    tm_st *st = tensors_open(run_format("%s/%s/model.safetensors", dir, found));
    for (uint32_t i = 0; i < tm_st_count(st); i++) bytes += tm_st_get(st, i)->bytes;
    tm_st_close(st);
    return bytes;
}

/* What the adapter trains whole stays as it is, of the rest the planner knows every byte: the folder's to the last, those
 * that a step reads but for the pages at the ends of pieces, whose places it does not know. */
static void a_plan_counts_a_base_that_is_to_be_made(void **state) {
    (void)state;
    adapted a = adapted_open("peft_lora");
    const char *model = run_path(a.dir, "model"), *config = run_path(a.dir, "random.json"),
               *out = run_path(a.dir, "out");
    run_random_model(model);
    run_write(config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"quantization\": {\"type\": \"nf4\"},\n"
                         " \"adapter\": {\"r\": 4, \"target_modules\": [\"q_proj\", \"down_proj\"],\n"
                         "  \"modules_to_save\": [\"up_proj\"]}, \"data\": {\"train\": \"%s\", \"seq_len\": %zu},\n"
                         " \"max_steps\": 2, \"keep_state\": true}\n",
                         model, a.rows, a.seq));
    uint64_t bytes, own;
    const char *least = adapted_least(config, a.dir, SETS(ADAPTED_FILES(a.dir)), &bytes);
    const char *const sets[] = {least, ADAPTED_FILES(a.dir), NULL};
    uint64_t planned = planned_frozen(config, run_path(a.dir, "plan"), sets, &own);
    const char *arguments[32] = {"train", config, "--quiet", "--set", run_format("output_dir=%s", out)};
    for (unsigned i = 0; sets[i]; i++) arguments[5 + 2 * i] = "--set", arguments[6 + 2 * i] = sets[i];
    run_result r = run_argv(&(run_opts){0}, arguments);
    RUN_OK(&r);
    run_free(&r);
    double counted = (double)adapted_bytes(out, 2, "frozen", "read");
    assert_int_equal(own, base_bytes(run_path(a.dir, "disk")));
    adapted_near("bytes read of the base", (double)planned, counted, 0.03 * counted);
    assert_true(counted > 0);
    adapted_close(&a);
}

static uint64_t planned_decoded(const char *config, uint64_t budget) {
    run_result r = run((run_opts){0}, "plan", config, "--json", "--no-measure", "--set",
                       run_format("memory.host_budget=%llu", (unsigned long long)budget), NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan", 0, 0));
    uint64_t bytes = (uint64_t)tm_json_get(tm_json_root(doc), "decoded_bytes")->integer;
    tm_json_free(doc);
    run_free(&r);
    return bytes;
}

/* Between the budget for none of it and that for all. */
static void some_of_the_base_stays_decoded(void **state) {
    enum { MOST_MIB = 64 };
    (void)state;
    adapted a = adapted_open("peft_lora");
    const char *shape = run_path(a.dir, "shape"), *model = run_path(a.dir, "model");
    const char *config = run_path(a.dir, "config.json"), *out = run_path(a.dir, "out");
    run_random_model(shape);
    run_result r = run((run_opts){0}, "convert", shape, model, "--init", "random", "--dtype", "bf16", NULL);
    RUN_OK(&r);
    run_free(&r);
    run_write(config, run_format("{\"model\": \"%s\", \"adapter\": {\"r\": 4, \"target_modules\": [\"q_proj\"]},\n"
                                 " \"data\": {\"train\": \"%s\", \"seq_len\": %zu}, \"precision\": \"fp32\",\n"
                                 " \"max_steps\": 2, \"output_dir\": \"%s\"}\n",
                                 model, a.rows, a.seq, out));
    uint64_t budget, all = planned_decoded(config, UINT64_C(1) << 30), some = 0;
    (void)adapted_least(config, a.dir, SETS("seed=42"), &budget);
    for (unsigned i = 0; i < MOST_MIB && (some == 0 || some == all); i++)
        some = planned_decoded(config, budget += TM_MIB);
    assert_true(some > 0 && some < all);
    train_log partly =
        run_train(config, out, budget, NULL, SETS(run_format("memory.host_budget=%llu", (unsigned long long)budget)));
    train_log whole = run_train(config, run_path(a.dir, "whole"), 0, NULL, SETS("memory.host_budget=1GiB"));
    assert_string_equal(partly.hash, whole.hash);
    adapted_close(&a);
}

/* ---- the hash ----------------------------------------------------------------------------------------------------- */

typedef struct named {
    const char *name;
    uint32_t at;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

/* DESIGN section 12, of a run whose optimizer has no moments, from the file that it left. */
static const char *hash_of(const char *file, uint64_t step) {
    tm_st *st = tensors_open(file);
    named order[64];
    uint32_t n = tm_st_count(st);
    assert_true(n <= TM_COUNT(order));
    for (uint32_t i = 0; i < n; i++) order[i] = (named){tm_st_get(st, i)->name, i};
    qsort(order, n, sizeof *order, by_name);
    XXH3_state_t *h = XXH3_createState();
    XXH3_128bits_reset(h);
    for (uint32_t i = 0; i < n; i++) {
        tensor t = tensor_read(st, order[i].name);
        uint64_t ndim = t.info->ndim;
        XXH3_128bits_update(h, order[i].name, strlen(order[i].name) + 1);
        XXH3_128bits_update(h, &ndim, sizeof ndim);
        XXH3_128bits_update(h, t.info->shape, ndim * sizeof *t.info->shape);
        XXH3_128bits_update(h, t.v, t.n * sizeof *t.v);
        free(t.v);
    }
    XXH3_128bits_update(h, &step, sizeof step);
    XXH128_hash_t sum = XXH3_128bits_digest(h);
    XXH3_freeState(h);
    tm_st_close(st);
    return run_format("%016llx%016llx", (unsigned long long)sum.high64, (unsigned long long)sum.low64);
}

static void test_state_hash(void **state) {
    static const char *const names[] = {"peft_dora", "peft_modules_to_save", "peft_embedding"};
    (void)state;
    for (unsigned i = 0; i < TM_COUNT(names); i++) {
        adapted a = adapted_open(names[i]);
        const char *out = run_path(a.dir, "sgd");
        train_log log = run_train(adapted_config(&a, NULL), out, 0, NULL, SETS("optim=sgd", "max_steps=3"));
        assert_string_equal(hash_of(run_path(out, "adapter_model.safetensors"), 3), log.hash);
        adapted_close(&a);
    }
}

/* ---- PiSSA --------------------------------------------------------------------------------------------------------- */

/* alpha / r * B A of one module, less what golden.json has: the largest distance. Signs of A and B are free. */
static double product_off(const adapted *a, const tm_st *st, const char *golden) {
    const char *module = strchr(golden, '.') + 1;
    int len = (int)(strlen(module) - strlen(".weight"));
    const char *stem = run_format("base_model.model.%.*s", len, module);
    tensor want = tensor_read(a->golden, golden), A = tensor_read(st, run_format("%s.lora_A.weight", stem)),
           B = tensor_read(st, run_format("%s.lora_B.weight", stem));
    size_t r = A.info->shape[0], in = A.info->shape[1], out = B.info->shape[0];
    double most = 0, scale = adapted_number(a, "settings", "lora_alpha") / (double)r;
    assert_int_equal(want.n, in * out);
    for (size_t i = 0; i < want.n; i++) {
        double sum = 0;
        for (size_t k = 0; k < r; k++) sum += (double)B.v[i / in * r + k] * (double)A.v[k * in + i % in];
        most = fmax(most, fabs(scale * sum - (double)want.v[i]));
    }
    free(want.v), free(A.v), free(B.v);
    return most;
}

/* The fixture's settings on its base, begun anew. */
static const char *pissa_config(const adapted *a) {
    const char *path = run_path(a->dir, "pissa.json");
    size_t len;
    char *text = run_read(adapted_config(a, NULL), &len);
    const char *mine = strstr(text, "\"adapter\""), *rest = strchr(mine, '}') + 1;
    run_write(path, run_format("%.*s\"adapter\": {\"r\": %d, \"lora_alpha\": %d, \"init_lora_weights\": \"pissa\",\n"
                               " \"target_modules\": [\"q_proj\", \"o_proj\", \"up_proj\"]}%s",
                               (int)(mine - text), text, (int)adapted_number(a, "settings", "r"),
                               (int)adapted_number(a, "settings", "lora_alpha"), rest));
    free(text);
    return path;
}

static void test_pissa(void **state) {
    (void)state;
    adapted a = adapted_open("peft_pissa");
    const char *config = pissa_config(&a), *memory = run_path(a.dir, "memory"), *none = "memory.cache=none";
    uint64_t bytes;
    unsigned products = 0;
    train_log in_memory = run_train(config, memory, 0, NULL, SETS("seed=42"));
    adapted_check_steps(&a, &in_memory, adapted_number(&a, "tolerances", "traj_loss_abs"),
                        adapted_number(&a, "tolerances", "traj_grad_norm_rel"));
    tm_st *st = tensors_open(run_path(memory, "adapter_model.safetensors"));
    for (uint32_t i = 0; i < tm_st_count(a.golden); i++) {
        const char *name = tm_st_get(a.golden, i)->name;
        if (strncmp(name, "final_product.", 14) != 0) continue;
        adapted_near(name, product_off(&a, st, name), 0,
                     adapted_number(&a, "tolerances_products", "final_product_max_abs"));
        products++;
    }
    assert_int_equal(products, 6);
    tm_st_close(st);
    const char *least = adapted_least(config, a.dir, SETS(none), &bytes);
    train_log in_files = run_train(config, run_path(a.dir, "paged"), bytes, NULL, SETS(none, least));
    assert_string_equal(in_files.hash, in_memory.hash);
    tm_st *out = tensors_open(probe(&a, "fp32", "out.safetensors", NULL)); /* PEFT's folder */
    check_logits(&a, out);
    tm_st_close(out);
    adapted_close(&a);
}

/* ---- all of them -------------------------------------------------------------------------------------------------- */

static char *const fixtures[] = {"peft_lora",     "peft_rslora",          "peft_dora",     "peft_qlora",
                                 "peft_patterns", "peft_modules_to_save", "peft_embedding"};
static const struct {
    const char *kind;
    CMUnitTestFunction test;
    unsigned fixtures; /* a bit for each */
} kinds[] = {{"probe", test_probe, 0x7F},
             {"train", test_train, 0x7F},
             {"bf16", test_bf16, 0x2D},
             {"updates", test_updates, 0x28}};
enum { MOST = 4 * (int)TM_COUNT(fixtures) + 8 };

int main(int argc, char **argv) {
    static struct CMUnitTest tests[MOST];
    static char names[MOST][64];
    size_t n = 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t f = 0; f < TM_COUNT(fixtures); f++)
        for (size_t k = 0; k < TM_COUNT(kinds); k++) {
            if (!(kinds[k].fixtures >> f & 1)) continue;
            snprintf(names[n], sizeof names[n], "%s %s", fixtures[f], kinds[k].kind);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].test, NULL, run_clean, fixtures[f]};
            n++;
        }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_state_hash, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(test_pissa, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(a_step_reads_the_base_as_often, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(a_base_is_quantised_as_bitsandbytes_does, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(a_base_without_room_is_refused, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(no_base_is_quantised_twice, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(a_plan_counts_a_base_that_is_to_be_made, run_clean);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test_teardown(some_of_the_base_stays_decoded, run_clean);
    return _cmocka_run_group_tests("train_adapters", tests, n, NULL, NULL);
}

/* Preference objectives end to end: losses, metrics and gradients of the fixtures; the reference as lanes and as values made
 * before step 1; the same bits whatever the budget, a kill or the number of micro-batches' order of memory. */
#include "adapted.h"
#include "io/file/file.h"
#include "tests/support/skip.h"

#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *fixture(const char *folder, const char *file) {
    return run_format("%s/%s%s%s", TM_TEST_FIXTURES, folder, *file ? "/" : "", file);
}

/* ---- a fixture's rows as a data file ----------------------------------------------------------------------------- */

static void copy_tensors(const char *folder, const char *to, const char *const *names) {
    tm_st *from = tensors_open(fixture(folder, "golden.safetensors"));
    tm_st_writer *w;
    uint32_t at[8];
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, to));
    for (uint32_t i = 0; names[i]; i++) {
        const tm_st_info *info = tm_st_get(from, (uint32_t)tm_st_find(from, names[i]));
        RUN_EXPECT_STATUS(tm_st_writer_add(w, names[i], TM_FMT_I64, info->ndim, info->shape, &at[i]));
    }
    for (uint32_t i = 0; names[i]; i++) {
        size_t n;
        int64_t *v = tensor_ints(from, names[i], &n);
        RUN_EXPECT_STATUS(tm_st_writer_write(w, at[i], 0, v, n * sizeof *v));
        free(v);
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    tm_st_close(from);
}

typedef struct scene {
    const char *dir, *rows, *config, *folder;
    tm_json_doc *doc;
} scene;

static const tm_json *get(const scene *s, const char *block, const char *key) {
    return tm_json_get(tm_json_get(tm_json_root(s->doc), block), key);
}

static double number(const scene *s, const char *block, const char *key) {
    const tm_json *n = get(s, block, key);
    if (!n) fail_msg("golden.json has no %s.%s", block, key);
    return n->number;
}

static scene open_scene(const char *folder) {
    static const char *const pairs[] = {"chosen_input_ids",
                                        "chosen_labels",
                                        "chosen_attention_mask",
                                        "rejected_input_ids",
                                        "rejected_labels",
                                        "rejected_attention_mask",
                                        NULL};
    static const char *const labelled[] = {"input_ids",    "labels",    "attention_mask",    "desirable",
                                           "kl_input_ids", "kl_labels", "kl_attention_mask", NULL};
    scene s = {.dir = run_dir(), .folder = folder};
    size_t len;
    char *text = run_read(fixture(folder, "golden.json"), &len);
    RUN_EXPECT_STATUS(tm_json_parse(&s.doc, text, len, folder, 0, 0));
    free(text);
    bool variants = strcmp(folder, "pref_dpo_variants") == 0;
    s.rows = run_path(s.dir, "rows.safetensors");
    copy_tensors(variants ? "pref_dpo" : folder, s.rows, strcmp(folder, "pref_kto") == 0 ? labelled : pairs);
    s.config = run_path(s.dir, "config.json");
    return s;
}

/* One step of SGD with rate 1: the weights change by the gradient. `more`: keys, after a comma. */
static void write_step(const scene *s, const char *policy, const char *objective, const char *more) {
    run_write(
        s->config,
        run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 64}, \"objective\": {%s},\n"
                   " \"precision\": \"fp32\", \"save_dtype\": \"fp32\", \"max_steps\": 1, \"max_grad_norm\": 0,\n"
                   " \"per_device_train_batch_size\": 8, \"weight_decay\": 0, \"lr_scheduler_type\": \"constant\",\n"
                   " \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1}}%s%s}\n",
                   fixture(policy, ""), s->rows, objective, *more ? ", " : "", more));
}

/* A field of a step's line of OUTPUT/log.jsonl; NAN: it has none. */
static double field(const char *output, unsigned step, const char *key) {
    size_t len;
    char *text = run_read(run_path(output, "log.jsonl"), &len), *line = text;
    double value = NAN;
    for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        tm_json_doc *doc;
        size_t n = strcspn(line, "\n");
        RUN_EXPECT_STATUS(tm_json_parse(&doc, line, n, "log.jsonl", 0, 0));
        const tm_json *of = tm_json_get(tm_json_root(doc), "step"), *found = tm_json_get(tm_json_root(doc), key);
        if (!tm_json_get(tm_json_root(doc), "event") && of->integer == step && found) value = found->number;
        tm_json_free(doc);
    }
    free(text);
    return value;
}

static train_log train(const scene *s, const char *output, const char *const *sets) {
    return run_train(s->config, run_path(s->dir, output), 0, &(run_opts){0}, sets);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* What a step took off each tensor that the fixture has a gradient of; returns how many. */
static unsigned check_gradients(const scene *s, const char *policy, const char *output, const char *prefix,
                                double rel) {
    tm_st *before = tensors_open(fixture(policy, "model.safetensors"));
    tm_st *after = tensors_open(run_path(run_path(s->dir, output), "model.safetensors"));
    tm_st *golden = tensors_open(fixture(s->folder, "golden.safetensors"));
    unsigned n = 0;
    for (uint32_t i = 0; i < tm_st_count(golden); i++) {
        const char *name = tm_st_get(golden, i)->name;
        if (strncmp(name, prefix, strlen(prefix)) != 0) continue;
        tensor want = tensor_read(golden, name), was = tensor_read(before, name + strlen(prefix)),
               is = tensor_read(after, name + strlen(prefix));
        for (size_t k = 0; k < was.n; k++) was.v[k] -= is.v[k];
        double norm = adapted_l2(want.v, NULL, want.n);
        adapted_near(name, adapted_l2(was.v, want.v, want.n), 0, rel * norm);
        free(want.v), free(was.v), free(is.v);
        n++;
    }
    tm_st_close(before), tm_st_close(after), tm_st_close(golden);
    return n;
}

static void check_golden(const char *folder, const char *policy, const char *objective) {
    scene s = open_scene(folder);
    write_step(&s, policy, objective, "");
    train_log log = train(&s, "out", SETS("memory.update=U"));
    double norm = number(&s, "scalars", "grad_norm");
    adapted_near("loss", log.step[0].loss, number(&s, "scalars", "loss"), number(&s, "tolerances", "loss_abs"));
    adapted_near("grad_norm", log.step[0].grad_norm, norm, norm * number(&s, "tolerances", "grad_norm_rel"));
    assert_true(check_gradients(&s, policy, "out", "grad.", number(&s, "tolerances", "grad_rel_l2")) == 20);
    tm_json_free(s.doc);
}

#define REFERENCE(folder) run_format("\"reference\": \"%s\"", fixture(folder, ""))

static void test_golden(void **state) {
    (void)state;
    check_golden("pref_dpo", "pref_policy", run_format("\"type\": \"dpo\", %s", REFERENCE("pref_reference")));
    check_golden("pref_kto", "pref_policy",
                 run_format("\"type\": \"kto\", \"undesirable_weight\": 1.33, %s", REFERENCE("pref_reference")));
    check_golden("pref_simpo", "pref_policy", "\"type\": \"simpo\"");
    check_golden("pref_orpo", "pref_policy", "\"type\": \"orpo\"");
}

static void test_metrics(void **state) {
    scene s = open_scene("pref_dpo"), k = open_scene("pref_kto");
    (void)state;
    tm_st *golden = tensors_open(fixture("pref_dpo", "golden.safetensors"));
    tensor chosen = tensor_read(golden, "chosen_rewards"), rejected = tensor_read(golden, "rejected_rewards");
    double up = 0, down = 0;
    for (size_t i = 0; i < chosen.n; i++)
        up += (double)chosen.v[i] / (double)chosen.n, down += (double)rejected.v[i] / (double)chosen.n;
    write_step(&s, "pref_policy", run_format("\"type\": \"dpo\", %s", REFERENCE("pref_reference")), "");
    (void)train(&s, "out", SETS("memory.update=U"));
    const char *out = run_path(s.dir, "out");
    adapted_near("rewards/chosen", field(out, 1, "rewards/chosen"), up, 2e-5);
    adapted_near("rewards/rejected", field(out, 1, "rewards/rejected"), down, 2e-5);
    adapted_near("rewards/margins", field(out, 1, "rewards/margins"), up - down, 2e-5);
    adapted_near("rewards/accuracies", field(out, 1, "rewards/accuracies"), number(&s, "scalars", "reward_accuracy"),
                 1e-6);
    assert_true(isnan(field(out, 1, "kl")) && isnan(field(out, 1, "nll_loss")));
    /* the two models the other way round: kl is clamped */
    write_step(&k, "pref_reference",
               run_format("\"type\": \"kto\", \"undesirable_weight\": 1.33, %s", REFERENCE("pref_policy")), "");
    train_log log = train(&k, "out", SETS("memory.update=U"));
    adapted_near("loss", log.step[0].loss, number(&k, "roles_swapped", "loss"), 1e-5);
    assert_true(field(run_path(k.dir, "out"), 1, "kl") == 0);
    tm_st_close(golden), free(chosen.v), free(rejected.v);
    tm_json_free(s.doc), tm_json_free(k.doc);
}

static void test_variants(void **state) {
    (void)state;
    scene s = open_scene("pref_dpo_variants");
    const tm_json *all = tm_json_get(tm_json_root(s.doc), "variants");
    unsigned seen = 0;
    for (const tm_json *v = all->child; v; v = v->next, seen++) {
        const tm_json *smoothing = tm_json_get(v, "label_smoothing"), *alpha = tm_json_get(v, "rpo_alpha");
        bool plain = strcmp(v->key, "cdpo") == 0 || strcmp(v->key, "rpo") == 0;
        write_step(&s, "pref_policy",
                   run_format("\"type\": \"dpo\", \"loss_type\": \"%s\", \"beta\": %.17g, \"label_smoothing\": %.17g, "
                              "\"rpo_alpha\": %.17g, %s",
                              plain ? "sigmoid" : v->key, tm_json_get(v, "beta")->number,
                              smoothing ? smoothing->number : 0, alpha ? alpha->number : 0,
                              REFERENCE("pref_reference")),
                   "");
        train_log log = train(&s, "out", SETS("memory.update=U"));
        double loss = tm_json_get(v, "loss")->number, norm = tm_json_get(v, "grad_norm")->number;
        adapted_near(v->key, log.step[0].loss, loss, 1e-5 * fmax(1, loss));
        adapted_near(v->key, log.step[0].grad_norm, norm, 2e-5 * norm);
        assert_true(check_gradients(&s, "pref_policy", "out", run_format("%s.grad.", v->key), 5e-5) >= 6);
    }
    assert_int_equal(seen, 7);
    tm_json_free(s.doc);
}

/* ---- the step as micro-batches ----------------------------------------------------------------------------------- */

/* The same step of the same samples: the same loss, metrics and norm to rounding, however it is divided. */
static void divide(const char *folder, const char *objective, const char *const *keys) {
    scene s = open_scene(folder);
    double want[8] = {0}, loss = 0, norm = 0;
    write_step(&s, "pref_policy", objective, "");
    for (int way = 0; way < 3; way++) {
        static const char *const rows[] = {"per_device_train_batch_size=8", "per_device_train_batch_size=2",
                                           "per_device_train_batch_size=1"};
        static const char *const batches[] = {"gradient_accumulation_steps=1", "gradient_accumulation_steps=4",
                                              "gradient_accumulation_steps=8"};
        train_log log = train(&s, "out", SETS("memory.update=U", rows[way], batches[way]));
        if (way == 0) loss = log.step[0].loss, norm = log.step[0].grad_norm;
        adapted_near("loss", log.step[0].loss, loss, 2e-6 * fmax(1, loss));
        adapted_near("grad_norm", log.step[0].grad_norm, norm, 1e-5 * norm);
        for (int i = 0; keys[i]; i++) {
            double got = field(run_path(s.dir, "out"), 1, keys[i]);
            if (way == 0) want[i] = got;
            adapted_near(keys[i], got, want[i], 1e-5 * fmax(1, fabs(want[i])));
        }
    }
    tm_json_free(s.doc);
}

static void test_micro_batches(void **state) {
    (void)state;
    static const char *const pairs[] = {"rewards/margins", "rewards/accuracies", "logps/chosen", NULL};
    static const char *const nll[] = {"rewards/margins", "nll_loss", NULL}, *const kto[] = {"kl", "rewards/chosen",
                                                                                            "rewards/rejected", NULL};
    divide("pref_dpo", run_format("\"type\": \"dpo\", \"rpo_alpha\": 0.5, %s", REFERENCE("pref_reference")), pairs);
    divide("pref_orpo", "\"type\": \"orpo\"", nll);
    divide("pref_simpo", "\"type\": \"cpo\"", nll);
    divide("pref_kto", run_format("\"type\": \"kto\", %s", REFERENCE("pref_reference")), kto);
}

/* ---- adapters: the reference is the same visit ------------------------------------------------------------------- */

static void write_adapter(const scene *s, const char *objective, const char *more) {
    run_write(s->config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 64}, \"objective\": {%s},\n"
                         " \"adapter\": {\"r\": 4, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"%s},\n"
                         " \"precision\": \"fp32\", \"max_steps\": 4, \"learning_rate\": 0.02, \"commit_steps\": 1,\n"
                         " \"per_device_train_batch_size\": 1, \"gradient_accumulation_steps\": 2}\n",
                         fixture("pref_policy", ""), s->rows, objective, more));
}

/* Without an adapter's part the model is the base: lanes give the values of the base's folder, at no byte more. */
static void lanes(const char *folder, const char *objective, const char *adapter) {
    scene s = open_scene(folder);
    const char *files[] = {"memory.activations=keep", "memory.update=U", ADAPTED_FILES(s.dir), NULL};
    write_adapter(&s, objective, adapter);
    train_log own = train(&s, "lanes", files);
    double kl[4], margins[4];
    for (unsigned i = 0; i < 4; i++)
        kl[i] = field(run_path(s.dir, "lanes"), i + 1, "kl"),
        margins[i] = field(run_path(s.dir, "lanes"), i + 1, "rewards/margins");
    write_adapter(&s, run_format("%s, %s", objective, REFERENCE("pref_policy")), adapter);
    train_log folder_log = train(&s, "folder", files);
    assert_int_equal(own.steps, 4);
    for (unsigned i = 0; i < own.steps; i++) {
        adapted_near("loss", own.step[i].loss, folder_log.step[i].loss, 2e-5);
        adapted_near("grad_norm", own.step[i].grad_norm, folder_log.step[i].grad_norm, 1e-4 * own.step[i].grad_norm);
        double other = field(run_path(s.dir, "folder"), i + 1, "rewards/margins");
        if (!isnan(other)) adapted_near("rewards/margins", margins[i], other, 2e-4);
        if (!isnan(kl[i])) adapted_near("kl", kl[i], field(run_path(s.dir, "folder"), i + 1, "kl"), 2e-4);
        uint64_t frozen = adapted_bytes(run_path(s.dir, "lanes"), i + 1, "frozen", "read");
        assert_true(frozen > 0);
        assert_true(frozen <= adapted_bytes(run_path(s.dir, "folder"), i + 1, "frozen", "read"));
    }
    assert_true(fabs(own.step[3].loss - own.step[0].loss) > 1e-3); /* it has learned */
    tm_json_free(s.doc);
}

static void test_lanes(void **state) {
    (void)state;
    lanes("pref_dpo", "\"type\": \"dpo\"", "");
    lanes("pref_dpo", "\"type\": \"dpo\"", ", \"use_dora\": true, \"lora_dropout\": 0");
    lanes("pref_kto", "\"type\": \"kto\"", "");
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void same(const char *what, const char *hash, const train_log *log) {
    if (strcmp(hash, log->hash) != 0) fail_msg("%s: hash %s, but %s before", what, log->hash, hash);
}

static void one_hash(const char *folder, const char *objective, bool adapter) {
    scene s = open_scene(folder);
    uint64_t least;
    if (adapter)
        write_adapter(&s, objective, ", \"lora_dropout\": 0.1");
    else
        run_write(
            s.config,
            run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 64}, \"objective\": {%s},\n"
                       " \"precision\": \"bf16\", \"max_steps\": 4, \"learning_rate\": 1e-3, \"commit_steps\": 1,\n"
                       " \"per_device_train_batch_size\": 1, \"gradient_accumulation_steps\": 2}\n",
                       fixture("pref_policy", ""), s.rows, objective));
    train_log first = train(&s, "out", SETS("memory.update=U"));
    train_log again = train(&s, "out", SETS("memory.update=F"));
    same("update F", first.hash, &again);
    const char *const files[] = {ADAPTED_FILES(s.dir), NULL};
    const char *budget = adapted_least(s.config, run_path(s.dir, "out"), files, &least);
    const char *const paged[] = {ADAPTED_FILES(s.dir), budget, NULL};
    again = run_train(s.config, run_path(s.dir, "out"), least, &(run_opts){0}, paged);
    same("least budget", first.hash, &again);
    again =
        train(&s, "out", SETS("memory.activations=recompute", "memory.device=cpu-arena", "memory.device_budget=64MiB"));
    same("cpu-arena", first.hash, &again);
    static const char *const points[] = {"kill_op:40", "kill_published:2", "kill_before_manifest:3",
                                         "kill_before_export:1"};
    const char *out = run_path(s.dir, "killed");
    for (size_t i = 0; i < TM_COUNT(points); i++) {
        const char *env[] = {run_format("TIDEMILL_FAULT=%s:now:once", points[i]), NULL};
        run_result r =
            run((run_opts){.env = env}, "train", s.config, "--quiet", "--set", run_format("output_dir=%s", out), NULL);
        if (r.status != 128 + SIGKILL) fail_msg("%s: exit status %d: %s", points[i], r.status, r.err);
        run_free(&r);
        r = run((run_opts){0}, "train", s.config, "--quiet", "--set", run_format("output_dir=%s", out), NULL);
        RUN_OK(&r);
        run_free(&r);
        again = train_log_read(out);
        same(points[i], first.hash, &again);
        run_remove(out);
    }
    tm_json_free(s.doc);
}

static void test_one_hash(void **state) {
    (void)state;
    one_hash("pref_dpo", "\"type\": \"dpo\"", true);
    one_hash("pref_kto", "\"type\": \"kto\"", true);
    one_hash("pref_kto", run_format("\"type\": \"kto\", %s", REFERENCE("pref_reference")), false);
}

/* ---- what is kept ------------------------------------------------------------------------------------------------ */

/* Full fine-tuning is held against its own beginning: at step 1 nothing has moved. The values stay for whoever asks the same. */
static void test_kept(void **state) {
    scene s = open_scene("pref_dpo");
    (void)state;
    write_step(&s, "pref_policy", "\"type\": \"dpo\"", "\"logging_steps\": 1");
    train_log first = train(&s, "out", SETS("memory.update=U"));
    adapted_near("loss", first.step[0].loss, log(2.0), 1e-6);
    assert_int_equal(run_entries(run_path(s.dir, "tidemill-cache")), 1);
    run_result r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s/other", s.dir), NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "tidemill-cache/reference-"));
    run_free(&r);
    train_log other = train_log_read(run_path(s.dir, "other"));
    same("kept values", first.hash, &other);
    /* what is damaged is made again */
    glob_t found;
    assert_int_equal(glob(run_path(s.dir, "tidemill-cache/reference-*"), 0, NULL, &found), 0);
    run_damage(found.gl_pathv[0], 12);
    globfree(&found);
    r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s/third", s.dir), NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "is damaged; it is made again"));
    run_free(&r);
    other = train_log_read(run_path(s.dir, "third"));
    same("values that were made again", first.hash, &other);
    /* another reference has values of its own */
    r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s/fourth", s.dir), "--set",
            run_format("objective.reference=%s", fixture("pref_reference", "")), NULL);
    RUN_OK(&r);
    assert_null(strstr(r.err, "tidemill-cache/reference-"));
    run_free(&r);
    assert_int_equal(run_entries(run_path(s.dir, "tidemill-cache")), 2);
    /* where they cannot be kept the run does without */
    run_remove(run_path(s.dir, "tidemill-cache"));
    run_write(run_path(s.dir, "tidemill-cache"), "a file");
    r = run((run_opts){0}, "train", s.config, "--set", run_format("output_dir=%s/fifth", s.dir), NULL);
    RUN_OK(&r);
    assert_non_null(strstr(r.err, "are not kept"));
    run_free(&r);
    other = train_log_read(run_path(s.dir, "fifth"));
    same("values that are not kept", first.hash, &other);
    tm_json_free(s.doc);
}

static void clean(const char *path, const char *option, const char *says) {
    run_result r = run((run_opts){0}, "clean", path, "--yes", option, NULL);
    if (r.status != 0 || !strstr(r.out, says)) fail_msg("clean %s: %d: %s%s", path, r.status, r.out, r.err);
    run_free(&r);
}

/* What is kept goes when no run beside it is alive or can go on. */
static void test_clean(void **state) {
    scene s = open_scene("pref_dpo");
    (void)state;
    write_step(&s, "pref_policy", "\"type\": \"dpo\"", "\"logging_steps\": 1");
    (void)train(&s, "out", SETS("memory.update=U"));
    const char *cache = run_path(s.dir, "tidemill-cache"), *out = run_path(s.dir, "out");
    const char *theirs = run_path(cache, "reference-0123456789abcdef");
    const char *begun = run_path(cache, ".tmp-0123456789abcdef-reference-0123456789abcdef");
    const char *other = run_path(s.dir, "other");
    run_write(theirs, "what somebody else calls so");
    run_write(begun, "x");
    RUN_EXPECT_STATUS(tm_make_dirs(other));
    run_write(run_path(other, "run.json"), "{\"status\": \"running\", \"key\": \"0123456789abcdef0123456789abcdef\"}");
    tm_dir_lock *lock;
    RUN_EXPECT_STATUS(tm_lock_dir(&lock, out, 0));
    clean(cache, "--all", "in use");
    assert_int_equal(run_entries(cache), 3);
    tm_unlock_dir(lock);
    clean(out, NULL, "(log-probabilities of a reference model, for a run that can go on)"); /* of the other one */
    assert_false(tm_path_exists(begun));
    assert_int_equal(run_entries(cache), 2);
    run_remove(other);
    clean(cache, NULL, "removed");
    assert_int_equal(run_entries(cache), 1);
    assert_true(tm_path_exists(theirs));
    clean(s.dir, "--all", "no run directories");
    tm_json_free(s.doc);
}

/* A base in 4 bits is another reference than the folder that it was made of. */
static void test_quantised_reference(void **state) {
    scene s = open_scene("pref_dpo");
    (void)state;
    write_adapter(&s, "\"type\": \"dpo\"", ", \"modules_to_save\": [\"norm\"]");
    double logps[2];
    for (int four = 0; four < 2; four++) {
        train_log log = train(&s, "out", SETS(four ? "quantization.type=nf4" : "quantization.type=none"));
        adapted_near("loss", log.step[0].loss, M_LN2, 1e-6); /* the policy is the reference */
        logps[four] = field(run_path(s.dir, "out"), 1, "logps/chosen");
        assert_int_equal(run_entries(run_path(s.dir, "tidemill-cache")), 1 + four);
    }
    assert_true(fabs(logps[0] - logps[1]) > 1e-3);
    tm_json_free(s.doc);
}

/* The finished run in "out" once more, with another setting: it is of that job, or is refused for `want`. */
static void expect_same_job(const scene *s, const char *setting, const char *want) {
    run_result r = run((run_opts){0}, "train", s->config, "--set", run_format("output_dir=%s/out", s->dir), "--set",
                       "max_steps=1", "--set", setting, NULL);
    if (r.status != (want ? 2 : 0) || !strstr(r.err, want ? want : "nothing is left to do"))
        fail_msg("%s: exit status %d: %s", setting, r.status, r.err);
    run_free(&r);
}

/* A run of one objective is not gone on with under another. */
static void test_same_objective(void **state) {
    static const char *const other[][2] = {
        {"objective.beta=0.25", "beta was 0.1, is 0.25"},
        {"objective.loss_type=hinge", "loss_type was \"sigmoid\", is \"hinge\""},
        {"objective.rpo_alpha=1", "rpo_alpha was 0, is 1"},
        {"objective.type=simpo", "type was \"dpo\", is \"simpo\""},
    };
    scene s = open_scene("pref_dpo");
    (void)state;
    write_step(&s, "pref_policy", "\"type\": \"dpo\"", "");
    train(&s, "out", SETS("max_steps=1"));
    for (size_t i = 0; i < TM_COUNT(other); i++) expect_same_job(&s, other[i][0], other[i][1]);
    /* nor with the base as the reference where a folder was; which may lie elsewhere */
    write_adapter(&s, run_format("\"type\": \"dpo\", %s", REFERENCE("pref_reference")), "");
    train(&s, "out", SETS("max_steps=1"));
    expect_same_job(&s, "max_steps=1", NULL);
    assert_int_equal(symlink(fixture("pref_reference", ""), run_path(s.dir, "moved")), 0);
    expect_same_job(&s, run_format("objective.reference=%s/moved", s.dir), NULL);
    expect_same_job(&s, "objective.reference=null", "the reference model has other weights");
    tm_json_free(s.doc);
}

static void expect_refused(const scene *s, const char *objective, const char *want) {
    write_step(s, "pref_policy", objective, "");
    run_result r =
        run((run_opts){0}, "train", s->config, "--quiet", "--set", run_format("output_dir=%s/refused", s->dir), NULL);
    if (r.status != 2 || !strstr(r.err, want)) fail_msg("%s: exit status %d: %s", objective, r.status, r.err);
    run_free(&r);
}

static void test_refused(void **state) {
    scene s = open_scene("pref_dpo");
    (void)state;
    expect_refused(&s, "\"type\": \"grpo\"", "grpo is not in this version");
    expect_refused(&s, "\"type\": \"sft\", \"beta\": 0.2", "\"objective.beta\" has no effect on objective sft");
    expect_refused(&s, "\"type\": \"simpo\", \"reference\": \"x\"", "has no effect on objective simpo");
    expect_refused(&s, "\"type\": \"dpo\", \"loss_type\": \"hinge\", \"label_smoothing\": 0.1",
                   "\"objective.label_smoothing\" has no effect");
    expect_refused(&s, "\"type\": \"dpo\", \"beta\": 0", "nothing would be learned");
    expect_refused(&s, "\"type\": \"dpo\", \"loss_type\": \"robust\", \"label_smoothing\": 0.5",
                   "1 - 2 label_smoothing");
    expect_refused(&s, run_format("\"type\": \"dpo\", \"reference\": \"%s/none\"", s.dir), "none");
    expect_refused(&s, run_format("\"type\": \"dpo\", \"reference\": \"%s\"", fixture("arch_qwen2", "")), "vocabulary");
    tm_json_free(s.doc);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_metrics),
                                       cmocka_unit_test(test_variants),
                                       cmocka_unit_test(test_micro_batches),
                                       cmocka_unit_test(test_lanes),
                                       cmocka_unit_test(test_one_hash),
                                       cmocka_unit_test(test_kept),
                                       cmocka_unit_test(test_clean),
                                       cmocka_unit_test(test_quantised_reference),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_same_objective)};
    return cmocka_run_group_tests(tests, NULL, run_clean);
}

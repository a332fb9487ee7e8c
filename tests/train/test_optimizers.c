/* Every optimizer that a configuration can name: as torch and bitsandbytes train
 * (tests/fixtures/optim/make_training.py), one hash wherever its states lie, going on bit for bit, as many bytes as its
 * states have, and what is refused. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL TM_TEST_FIXTURES "/arch_llama"

/* Rows of the fixture's ten batches. */
static const char *rows_of(const char *dir, size_t seq, bool learn_all) {
    const char *rows = run_path(dir, "rows.safetensors");
    tm_st *golden = tensors_open(MODEL "/golden.safetensors");
    rows_write(rows, golden, 0, 20, seq, learn_all);
    tm_st_close(golden);
    return rows;
}

/* ---- as the libraries train ------------------------------------------------------------------------------ */

static const tm_json *element(const tm_json *array, size_t i) {
    const tm_json *n = array->child;
    while (i-- > 0) n = n->next;
    return n;
}

/* Ten times what the library's own fp32 run differs from its run in double, and no less than a floor. */
static double allowed(const tm_json *c, const char *what, double floor) {
    return fmax(10 * tm_json_get(tm_json_get(c, "noise"), what)->number, floor);
}

static void near_rel(const char *name, const char *what, unsigned step, double got, double want, double allow) {
    if (!(fabs(got - want) <= allow * fabs(want)))
        fail_msg("%s, step %u: %s %.9g, golden %.9g, allowed %.1e of it", name, step, what, got, want, allow);
}

/* How far the sampled weights are from the library's, relative to how far those moved. */
static double distance(const tm_json *c, size_t stride, const char *output) {
    tm_st *before = tensors_open(MODEL "/model.safetensors");
    tm_st *after = tensors_open(run_path(output, "model.safetensors"));
    double error = 0, moved = 0;
    unsigned n = 0;
    for (const tm_json *t = tm_json_get(c, "final")->child; t; t = t->next, n++) {
        tensor got = tensor_read(after, t->key), old = tensor_read(before, t->key);
        size_t i = 0;
        for (const tm_json *v = t->child; v; v = v->next, i += stride) {
            assert_true(i < got.n);
            error += pow((double)got.v[i] - v->number, 2);
            moved += pow(v->number - (double)old.v[i], 2);
        }
        free(got.v), free(old.v);
    }
    assert_int_equal(n, tm_st_count(after));
    tm_st_close(before);
    tm_st_close(after);
    return sqrt(error / moved);
}

static const char *config_text(const tm_json *c) {
    tm_buf text = {0};
    tm_json_writer w;
    tm_jw_init(&w, &text, 0);
    tm_jw_node(&w, tm_json_get(c, "config"));
    RUN_EXPECT_STATUS(tm_jw_end(&w));
    const char *copy = run_format("%.*s", (int)text.len - 2, text.data + 1); /* its members */
    tm_buf_free(&text);
    return copy;
}

static void check_case(const char *dir, const char *rows, const tm_json *c, size_t stride) {
    const char *name = tm_json_get(c, "name")->text, *config = run_path(dir, "config.json");
    const char *output = run_path(dir, name);
    run_write(config,
              run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 32}, \"max_steps\": 10,\n"
                         " \"per_device_train_batch_size\": 2, \"precision\": \"fp32\", %s,\n"
                         " \"max_grad_norm\": 1, \"lr_scheduler_type\": \"constant\"%s}\n",
                         MODEL, rows, config_text(c),
                         strcmp(name, "adamw_8bit") ? "" : ", \"adam_beta1\": 0.9, \"adam_beta2\": 0.95"));
    train_log log = run_train(config, output, 0, NULL, SETS("memory.host_budget=unlimited"));
    assert_int_equal(log.steps, 10);
    for (unsigned s = 0; s < log.steps; s++) {
        near_rel(name, "loss", s + 1, log.step[s].loss, element(tm_json_get(c, "loss"), s)->number,
                 allowed(c, "loss", 4e-6));
        near_rel(name, "grad_norm", s + 1, log.step[s].grad_norm, element(tm_json_get(c, "grad_norm"), s)->number,
                 allowed(c, "grad_norm", 2e-5));
    }
    double off = distance(c, stride, output), most = allowed(c, "update", 2e-4);
    if (!(off <= most)) fail_msg("%s: weights are off by %.1e of the way, allowed %.1e", name, off, most);
    print_message("  %-14s loss %.4f to %.4f, weights within %.1e of the way\n", name, log.step[0].loss,
                  log.step[9].loss, off);
}

static void follows_the_libraries(void **state) {
    (void)state;
    const char *dir = run_dir(), *path = TM_TEST_FIXTURES "/optim/training.json";
    size_t len;
    tm_json_doc *doc;
    char *text = run_read(path, &len);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, path, 0, 0));
    const tm_json *root = tm_json_root(doc);
    const char *rows = rows_of(dir, 32, false);
    unsigned n = 0;
    for (const tm_json *c = tm_json_get(root, "cases")->child; c; c = c->next, n++)
        check_case(dir, rows, c, (size_t)tm_json_get(root, "stride")->integer);
    assert_int_equal(n, 10);
    tm_json_free(doc);
    free(text);
}

/* ---- wherever the states lie ------------------------------------------------------------------------------ */

static const char *const optims[] = {"adamw_8bit", "sgd", "lion_32bit", "adagrad"};

static const char *small_job(const char *dir, const char *model, const char *precision, unsigned steps) {
    const char *config = run_path(dir, "config.json");
    run_write(config,
              run_format("{\"model\": \"%s\", \"init\": \"random\", \"data\": {\"train\": \"%s\"}, \"max_steps\": %u,\n"
                         " \"precision\": \"%s\", \"per_device_train_batch_size\": 2, \"learning_rate\": 1e-3,\n"
                         " \"gradient_accumulation_steps\": 2, \"no_decay\": [\"norm\"]}\n",
                         model, rows_of(dir, 32, true), steps, precision));
    return config;
}

static void expect_hash(char hash[40], const train_log *log, const char *const *sets) {
    if (!hash[0]) memcpy(hash, log->hash, 40);
    if (strcmp(hash, log->hash) == 0) return;
    for (; *sets; sets++) print_error("  --set %s\n", *sets);
    fail_msg("hash %s, but %s before", log->hash, hash);
}

/* Updates U, F and B, in memory and at the least budget, where everything comes from files. */
static void check_hash(const char *dir, const char *config, const char *optim, const char *args) {
    static const char *const updates[] = {"memory.update=U", "memory.update=F", "memory.update=B"};
    char clipped[40] = "", open[40] = "";
    for (unsigned i = 0; i < 6; i++) {
        const char *update = updates[i % 3], *norm = i % 3 == 2 ? "max_grad_norm=0" : "max_grad_norm=1";
        const char *all[] = {run_format("optim=%s", optim),
                             run_format("optim_args=%s", args),
                             update,
                             norm,
                             "memory.host_budget=unlimited",
                             "memory.cache=none",
                             NULL};
        uint64_t least = 0;
        if (i >= 3) {
            least = run_train_minimum(config, run_path(dir, "refused"), SETS(all[0], all[1], all[2], all[3]));
            all[4] = run_format("memory.host_budget=%llu", (unsigned long long)least);
        }
        if (i < 3) all[5] = NULL;
        train_log log = run_train(config, run_path(dir, "out"), least, NULL, all);
        expect_hash(i % 3 == 2 ? open : clipped, &log, all);
        if (i >= 3) assert_true(log.step[1].read_bytes > 0 && log.step[1].write_bytes > 0);
        run_remove(run_path(dir, "out"));
    }
    const char *unclipped[] = {run_format("optim=%s", optim), run_format("optim_args=%s", args), updates[0],
                               "max_grad_norm=0", NULL};
    train_log log = run_train(config, run_path(dir, "out"), 0, NULL, unclipped);
    expect_hash(open, &log, unclipped);
    run_remove(run_path(dir, "out"));
    assert_string_not_equal(open, clipped);
    print_message("  %s %s: 7 runs, %s and, not clipped, %s\n", optim, args, clipped, open);
}

static void one_hash(void **state) {
    (void)state;
    const char *dir = run_dir();
    for (unsigned i = 0; i < TM_COUNT(optims); i++)
        check_hash(dir, small_job(dir, MODEL, i % 2 ? "fp32" : "bf16", 3), optims[i], "");
    check_hash(dir, small_job(dir, MODEL, "bf16", 3), "sgd", "momentum=0.9");
}

/* Adafactor, which has update U alone: tensors of several tiles, a vocabulary of two parts that pass by three times; in
 * memory, at the least budget, in a random order, and through an arena with its update on the host. */
static void check_adafactor(const char *dir, const char *config, const char *args, unsigned n) {
    char hash[40] = "";
    uint64_t least = run_train_minimum(config, run_path(dir, "refused"), SETS("optim=adafactor", args));
    const char *budget = run_format("memory.host_budget=%llu", (unsigned long long)least);
    const char *more = run_format("memory.host_budget=%llu", (unsigned long long)least + 2 * TM_MIB);
    static const char *const orders[] = {"TIDEMILL_ORDER_SEED=3", NULL};
    const struct {
        const char *set[2];
        bool reads;
        const char *const *env;
    } ways[] = {{{"memory.host_budget=unlimited", "memory.cache=auto"}, false, NULL},
                {{budget, "memory.cache=none"}, true, NULL},
                {{budget, "memory.update=U"}, true, orders},
                {{more, "memory.io_engine=threads"}, true, NULL},
                {{"memory.device=cpu-arena", "memory.device_budget=24MiB"}, false, NULL}};
    for (unsigned i = 0; i < n; i++) {
        const char *all[] = {"optim=adafactor", args, ways[i].set[0], ways[i].set[1], NULL};
        train_log log = run_train(config, run_path(dir, "out"), 0, &(run_opts){.env = ways[i].env}, all);
        expect_hash(hash, &log, all);
        assert_true(!ways[i].reads || log.step[1].read_bytes > 0);
        run_remove(run_path(dir, "out"));
    }
    print_message("  adafactor %s: %u runs, %s\n", args, n, hash);
}

static void one_hash_of_adafactor(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = run_path(dir, "model");
    run_random_model(model);
    check_adafactor(dir, small_job(dir, model, "bf16", 2), "optim_args=scale_parameter=True", 5);
    check_adafactor(dir, small_job(dir, model, "fp32", 2), "optim_args=beta1=0.9", 2);
    check_adafactor(dir, small_job(dir, model, "fp16", 2), "optim_args=scale_parameter=True, beta1=0.9", 2);
}

/* Several tiles a part, so that blocks of 8-bit states lie in many objects. */
static void one_hash_of_many_tiles(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = run_path(dir, "model");
    run_random_model(model);
    const char *config = small_job(dir, model, "bf16", 2);
    char hash[40] = "";
    uint64_t least = run_train_minimum(config, run_path(dir, "refused"), SETS("optim=adamw_8bit", "memory.cache=none"));
    const char *const ways[] = {"memory.host_budget=unlimited",
                                run_format("memory.host_budget=%llu", (unsigned long long)least + 8 * TM_MIB)};
    for (unsigned i = 0; i < TM_COUNT(ways); i++) {
        const char *all[] = {"optim=adamw_8bit", ways[i], i ? "memory.cache=none" : "memory.cache=auto", NULL};
        train_log log = run_train(config, run_path(dir, "out"), 0, NULL, all);
        expect_hash(hash, &log, all);
        assert_true(i == 0 || log.step[1].read_bytes > 0); /* the budget binds */
        run_remove(run_path(dir, "out"));
    }
}

/* ---- going on ---------------------------------------------------------------------------------------------- */

static const char *const resumed[] = {"adamw_8bit", "sgd", "lion_32bit", "adagrad", "adafactor"};

static run_result train(const char *config, const char *output, const char *optim, const char *fault) {
    const char *env[] = {fault, NULL};
    return run((run_opts){.env = fault ? env : NULL}, "train", config, "--set", run_format("output_dir=%s", output),
               "--set", run_format("optim=%s", optim), "--set", "commit_steps=1", "--set", "memory.cache=none", NULL);
}

static void goes_on_bit_for_bit(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_job(dir, MODEL, "bf16", 4), *output = run_path(dir, "out");
    for (unsigned i = 0; i < TM_COUNT(resumed); i++) {
        train_log whole = run_train(config, run_path(dir, "whole"), 0, NULL,
                                    SETS(run_format("optim=%s", resumed[i]), "memory.host_budget=unlimited"));
        run_result r = train(config, output, resumed[i], "TIDEMILL_FAULT=kill_after_rename:2:now:once");
        assert_int_equal(r.status, 128 + 9);
        run_free(&r);
        r = train(config, output, "adamw_torch", NULL);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, "type was"));
        run_free(&r);
        r = train(config, output, resumed[i], NULL);
        RUN_OK(&r);
        assert_non_null(strstr(r.err, "going on from step 2"));
        run_free(&r);
        train_log log = train_log_read(output);
        assert_string_equal(log.hash, whole.hash);
        run_remove(run_path(dir, "whole"));
        run_remove(output);
    }
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

static double planned(const char *config, const char *optim, const char *args, const char *key) {
    run_result r =
        run((run_opts){0}, "plan", config, "--json", "--set", run_format("optim=%s", optim), "--set",
            run_format("optim_args=%s", args), "--set", "memory.cache=none", "--set", "memory.update=U", "--set",
            "memory.activations=recompute", /* else whether they go to files is a matter of seconds */
            "--set", "memory.host_budget=256MiB", "--set", "zero_optimization.offload_optimizer.device=nvme", "--set",
            run_format("zero_optimization.offload_optimizer.nvme_path=%s", run_dir()), NULL);
    tm_json_doc *doc;
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan", 0, 0));
    const tm_json *n = tm_json_get(tm_json_root(doc), key);
    assert_non_null(n);
    double value = n->number;
    tm_json_free(doc);
    run_free(&r);
    return value;
}

/* Of a model of 7.8 million parameters: what a step reads differs from AdamW's by the states' bytes a parameter, and
 * disk space by twice that (two slots). Adafactor's vocabulary, two parts, is read again for each sum: its gradient
 * twice, for the size of its weights those once. run_train has it that planned bytes are the bytes that move. */
static void as_many_bytes_as_states(void **state) {
    (void)state;
    static const struct {
        const char *optim, *args;
        double bytes, again; /* of state a parameter; read again, a parameter of the vocabulary */
    } of[] = {{"adamw_bnb_8bit", "", 2 + 8.0 / 256, 0},
              {"sgd", "", 0, 0},
              {"sgd", "momentum=0.9", 4, 0},
              {"lion", "", 4, 0},
              {"adagrad", "", 4, 0},
              {"adafactor", "", 0, 2 + 2},
              {"adafactor", "scale_parameter=True, beta1=0.9", 4, 2 + 2 + 4}};
    const char *dir = run_dir(), *model = run_path(dir, "model");
    run_random_model(model);
    const char *config = small_job(dir, model, "bf16", 2);
    double vocabulary = 12000.0 * 256,
           parameters = vocabulary + 6 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768 + 2 * 256) + 256;
    double read = planned(config, "adamw_torch", "", "read_bytes_per_step");
    double disk = planned(config, "adamw_torch", "", "disk_bytes");
    for (unsigned i = 0; i < TM_COUNT(of); i++) {
        double less = (read - planned(config, of[i].optim, of[i].args, "read_bytes_per_step")) / parameters;
        double space = (disk - planned(config, of[i].optim, of[i].args, "disk_bytes")) / parameters;
        print_message("  %-14s %-12s reads %.3f, takes %.3f bytes a parameter less\n", of[i].optim, of[i].args, less,
                      space);
        double again = of[i].again * vocabulary / parameters;
        assert_true(fabs(less - (8 - of[i].bytes - again)) < 0.1); /* pages of 64 KiB */
        assert_true(fabs(space - 2 * (8 - of[i].bytes)) < 0.2);
    }
}

/* ---- what is refused ---------------------------------------------------------------------------------------- */

static void refuses(void **state) {
    (void)state;
    static const struct {
        const char *set, *says;
    } of[] = {
        {"optim=adafactor\0memory.update=F", "adds up squares over whole tensors"},
        {"optim=adafactor\0memory.update=B", "adds up squares over whole tensors"},
        {"optimizer={\"type\": \"Adafactor\", \"params\": {\"lr\": 1e-3}}", "beside relative_step"},
        {"optimizer={\"type\": \"Adafactor\", \"params\": {\"relative_step\": false, \"warmup_init\": true}}",
         "warmup_init needs relative_step"},
        {"optimizer={\"type\": \"Adafactor\", \"params\": {\"relative_step\": false, \"eps\": 1e-8}}", "two numbers"},
        {"optimizer={\"type\": \"AdamW\", \"params\": {\"eps\": [1e-8, 1e-3]}}", "one number"},
        {"optimizer={\"type\": \"Adafactor\", \"params\": {\"relative_step\": false, \"betas\": [0.9, 0.99]}}",
         "Adafactor has no option \"betas\""},
        {"optim=adafactor\0optim_args=relative_step=True", "beside relative_step"},
        {"optim=galore_adamw", "not supported yet"},
        {"optimizer={\"type\": \"OneBitAdam\"}", "one bit"},
        {"optimizer={\"type\": \"AdamV\"}", "unknown optimizer"},
        {"optimizer={\"type\": \"AdamW\", \"params\": {\"momentum\": 0.9}}", "AdamW has no option \"momentum\""},
        {"optimizer={\"type\": \"SGD\", \"params\": {\"betas\": [0.9, 0.99]}}", "SGD has no option \"betas\""},
        {"optimizer={\"type\": \"SGD\", \"params\": {\"nesterov\": true}}", "nesterov needs a momentum"},
        {"optim_args=momentum=0.9", "has no option \"momentum\""},
        {"optim_args=beta1", "must be like"},
        {"optim_args=beta1=x", "must be like"},
    };
    const char *dir = run_dir(), *config = small_job(dir, MODEL, "bf16", 1);
    for (unsigned i = 0; i < TM_COUNT(of); i++) {
        const char *second = of[i].set + strlen(of[i].set) + 1; /* where the text has two */
        bool two = !strncmp(of[i].set, "optim=adafactor", 15);
        run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s/out", dir), "--set",
                           of[i].set, two ? "--set" : NULL, second, NULL);
        const char *first;
        if (r.status != 2 || !strstr(r.err, of[i].says) || run_error_lines(r.err, &first) != 1)
            fail_msg("%s: exit status %d, not 2 with \"%s\":\n%s", of[i].set, r.status, of[i].says, r.err);
        run_free(&r);
    }
}

/* optim_args are of optim: beside a block they would say nothing. */
static void refuses_options_in_two_places(void **state) {
    (void)state;
    const char *dir = run_dir(), *config = small_job(dir, MODEL, "bf16", 1);
    run_result r = run((run_opts){0}, "train", config, "--set", run_format("output_dir=%s/out", dir), "--set",
                       "optimizer={\"type\": \"Lion\"}", "--set", "optim_args=beta1=0.8", NULL);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "beside an \"optimizer\" block"));
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(follows_the_libraries, run_clean),
        cmocka_unit_test_teardown(one_hash, run_clean),
        cmocka_unit_test_teardown(one_hash_of_many_tiles, run_clean),
        cmocka_unit_test_teardown(one_hash_of_adafactor, run_clean),
        cmocka_unit_test_teardown(goes_on_bit_for_bit, run_clean),
        cmocka_unit_test_teardown(as_many_bytes_as_states, run_clean),
        cmocka_unit_test_teardown(refuses, run_clean),
        cmocka_unit_test_teardown(refuses_options_in_two_places, run_clean),
    };
    return cmocka_run_group_tests_name("train_optimizers", tests, NULL, NULL);
}

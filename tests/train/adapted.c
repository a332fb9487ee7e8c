#include "adapted.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- fixtures ---------------------------------------------------------------------------------------------------- */

const tm_json *adapted_get(const adapted *a, const char *block, const char *key) {
    const tm_json *n = tm_json_get(tm_json_get(tm_json_root(a->doc), block), key);
    if (!n) fail_msg("%s/golden.json: %s.%s is missing", a->name, block, key);
    return n;
}

double adapted_number(const adapted *a, const char *block, const char *key) {
    return adapted_get(a, block, key)->number;
}

double adapted_element(const adapted *a, const char *block, const char *key, size_t i) {
    const tm_json *n = adapted_get(a, block, key)->child;
    while (n && i-- > 0) n = n->next;
    if (!n) fail_msg("%s/golden.json: %s.%s is too short", a->name, block, key);
    return n->number;
}

static void read_golden(adapted *a) {
    size_t len;
    const char *path = run_path(a->folder, "golden.json");
    char *text = run_read(path, &len);
    for (char *nan = text; (nan = strstr(nan, ": NaN"));) memcpy(nan, ": 0.0", 5); /* in measured_noise; is not JSON */
    RUN_EXPECT_STATUS(tm_json_parse(&a->doc, text, len, path, 0, 0));
    free(text);
}

adapted adapted_open(const char *name) {
    adapted a = {.name = name, .folder = run_format("%s/%s", TM_TEST_FIXTURES, name), .dir = run_dir()};
    read_golden(&a);
    const char *inputs = adapted_get(&a, "settings", "inputs")->text;
    struct stat st;
    const char *coded = run_path(a.folder, "base_nf4");
    const char *plain = run_format("%s/%.*s", TM_TEST_FIXTURES, (int)strcspn(inputs, "/"), inputs);
    a.base = stat(coded, &st) == 0 ? coded : plain;
    a.golden = tensors_open(run_path(a.folder, "golden.safetensors"));
    a.inputs = tensors_open(run_format("%s/%s", TM_TEST_FIXTURES, inputs));
    const tm_st_info *ids = tm_st_get(a.inputs, (uint32_t)tm_st_find(a.inputs, "input_ids"));
    a.steps = (size_t)ids->shape[0];
    a.batch = (size_t)ids->shape[1];
    a.seq = (size_t)ids->shape[2];
    a.rows = run_path(a.dir, "rows.safetensors");
    rows_write(a.rows, a.inputs, 0, a.steps * a.batch, a.seq, false);
    return a;
}

void adapted_close(adapted *a) {
    tm_json_free(a->doc);
    tm_st_close(a->golden);
    tm_st_close(a->inputs);
}

const char *adapted_config(const adapted *a, const char *model) {
    const char *path = run_path(a->dir, "config.json"), *s = "settings";
    run_write(path, run_format("{\"model\": \"%s\", \"adapter\": {\"path\": \"%s\"},\n"
                               " \"data\": {\"train\": \"%s\", \"seq_len\": %zu},\n"
                               " \"learning_rate\": %.17g, \"adam_beta1\": %.17g, \"adam_beta2\": %.17g,\n"
                               " \"adam_epsilon\": %.17g, \"weight_decay\": %.17g, \"max_grad_norm\": %.17g,\n"
                               " \"lr_scheduler_type\": \"%s\", \"warmup_steps\": %d, \"max_steps\": %zu,\n"
                               " \"per_device_train_batch_size\": %zu, \"precision\": \"fp32\"}\n",
                               model ? model : a->base, a->folder, a->rows, a->seq, adapted_number(a, s, "lr"),
                               adapted_element(a, s, "betas", 0), adapted_element(a, s, "betas", 1),
                               adapted_number(a, s, "eps"), adapted_number(a, s, "weight_decay"),
                               adapted_number(a, s, "clip"), adapted_get(a, s, "schedule")->text,
                               (int)adapted_number(a, s, "warmup"), a->steps, a->batch));
    return path;
}

/* ---- distances --------------------------------------------------------------------------------------------------- */

void adapted_near(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%s: %.9g, golden %.9g, allowed %.3g", what, got, want, tolerance);
}

double adapted_l2(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (b ? (double)b[i] : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

double adapted_max_abs(const float *a, const float *b, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = isnan(a[i]) ? INFINITY : fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

void adapted_same_files(const char *a, const char *b) {
    size_t n, m;
    char *x = run_read(a, &n), *y = run_read(b, &m);
    if (n != m || memcmp(x, y, n) != 0) fail_msg("%s and %s differ", a, b);
    free(x), free(y);
}

/* ---- what a run is held against ---------------------------------------------------------------------------------- */

void adapted_check_steps(const adapted *a, const train_log *log, double loss_abs, double norm_rel) {
    assert_int_equal(log->steps, a->steps);
    for (unsigned s = 0; s < log->steps; s++) {
        double norm = adapted_element(a, "trajectory", "grad_norm", s);
        const char *at = run_format("%s step %u", a->name, s + 1);
        adapted_near(run_format("%s loss", at), log->step[s].loss, adapted_element(a, "trajectory", "loss", s),
                     loss_abs);
        adapted_near(run_format("%s grad_norm", at), log->step[s].grad_norm, norm, norm_rel * norm);
        adapted_near(run_format("%s lr", at), log->step[s].learning_rate, adapted_element(a, "trajectory", "lr", s),
                     1e-12);
    }
}

/* Where the values began: the adapter's own file, but of a module that is saved whole (its name there is as here). */
void adapted_check_final(const adapted *a, const char *file) {
    tm_st *before = tensors_open(run_path(a->folder, "adapter_model.safetensors")), *after = tensors_open(file);
    uint32_t checked = 0;
    for (uint32_t i = 0; i < tm_st_count(a->golden); i++) {
        const char *name = tm_st_get(a->golden, i)->name;
        if (strncmp(name, "final.", 6) != 0) continue;
        tensor want = tensor_read(a->golden, name), got = tensor_read(after, name + 6),
               old = tensor_read(before, name + 6);
        assert_int_equal(got.n, want.n);
        assert_int_equal(got.info->ndim, want.info->ndim);
        for (uint32_t d = 0; d < want.info->ndim; d++) assert_int_equal(got.info->shape[d], want.info->shape[d]);
        adapted_near(name, adapted_max_abs(got.v, want.v, want.n), 0,
                     adapted_number(a, "tolerances", "final_param_max_abs"));
        adapted_near(run_format("%s update", name), adapted_l2(got.v, want.v, want.n), 0,
                     adapted_number(a, "tolerances", "final_update_rel_l2") * adapted_l2(want.v, old.v, want.n));
        free(want.v), free(got.v), free(old.v);
        checked++;
    }
    assert_true(checked > 0);
    assert_int_equal(tm_st_count(after), checked); /* what learns, no more */
    tm_st_close(before);
    tm_st_close(after);
}

const char *adapted_least(const char *config, const char *dir, const char *const *sets, uint64_t *bytes) {
    *bytes = run_train_minimum(config, run_path(dir, "refused"), sets);
    return run_format("memory.host_budget=%llu", (unsigned long long)*bytes);
}

uint64_t adapted_bytes(const char *output_dir, unsigned step, const char *kind, const char *way) {
    size_t len;
    uint64_t bytes = 0;
    char *text = run_read(run_path(output_dir, "log.jsonl"), &len);
    for (char *at = text; at < text + len; at += strcspn(at, "\n") + 1) {
        tm_json_doc *doc;
        RUN_EXPECT_STATUS(tm_json_parse(&doc, at, strcspn(at, "\n"), "log.jsonl", 0, 0));
        const tm_json *o = tm_json_root(doc), *kinds = tm_json_get(o, "bytes_by_kind"), *s = tm_json_get(o, "step");
        const tm_json *n = tm_json_get(tm_json_get(kinds, kind), way);
        if (kinds && s->integer == step && n) bytes = (uint64_t)n->integer;
        tm_json_free(doc);
    }
    free(text);
    return bytes;
}

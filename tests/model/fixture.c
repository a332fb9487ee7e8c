#include "fixture.h"

#include "tests/support/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *fixture_path(const char *folder, const char *file) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s", TM_TEST_FIXTURES, folder, file);
    return path;
}

double fixture_number(const fixture *f, const char *block, const char *key) {
    const tm_json *n = tm_json_get(tm_json_get(tm_json_root(f->json), block), key);
    assert_non_null(n);
    return n->number;
}

/* Batch 0 of `inputs`; row s is to predict label s+1. */
static void read_batch(fixture *f, const st_file *inputs, size_t rows, size_t seq) {
    size_t n;
    int32_t *ids = st_ints(inputs, "input_ids", &n), *labels = st_ints(inputs, "labels", &n);
    int32_t *segment = st_ints(inputs, "segment_ids", &n);
    int32_t *mask = segment ? segment : st_ints(inputs, "attention_mask", &n); /* padding's segment is 0 */
    f->rows = rows;
    f->seq = seq;
    f->tokens = (uint32_t)tm_round_up(f->rows * f->seq, 64);
    f->ids = calloc(f->tokens, sizeof *f->ids);
    f->labels = calloc(f->tokens, sizeof *f->labels);
    f->mask = calloc(f->tokens, 1);
    f->begin = segment ? calloc(f->tokens, sizeof *f->begin) : NULL;
    for (size_t t = 0; t < f->tokens; t++) {
        bool real = t < f->rows * f->seq;
        f->ids[t] = real ? ids[t] : 0;
        f->mask[t] = real && mask[t];
        if (real && segment && t % seq)
            f->begin[t] = segment[t] == segment[t - 1] ? f->begin[t - 1] : (uint32_t)(t % seq);
        f->labels[t] = real && t % f->seq + 1 < f->seq ? labels[t + 1] : -100;
    }
    tm_free(ids), tm_free(labels), tm_free(mask);
}

static void read_config(fixture *f, const char *folder, const char *config) {
    size_t len;
    char *text = read_text(fixture_path(folder, config), &len);
    if (tm_model_config_parse(&f->config, text, len, config) != TM_OK) fail_msg("%s", tm_error_get()->text);
    tm_free(text);
}

static tm_json_doc *read_json(const char *folder) {
    size_t len;
    tm_json_doc *doc;
    char *text = read_text(fixture_path(folder, "golden.json"), &len);
    /* NaN in measured_noise is not JSON */
    for (char *nan; (nan = strstr(text, ": NaN"));) memcpy(nan, ": 0.0", 5);
    if (tm_json_parse(&doc, text, len, folder, 0, 0) != TM_OK) fail_msg("%s", tm_error_get()->text);
    tm_free(text);
    return doc;
}

fixture fixture_open(const char *folder, const char *config, const char *weights) {
    fixture f = {.folder = folder};
    read_config(&f, folder, config);
    f.json = read_json(folder);
    f.golden = st_open(fixture_path(folder, "golden.safetensors"));
    f.weights = st_open(fixture_path(folder, weights));
    read_batch(&f, &f.golden, (size_t)fixture_number(&f, "settings", "batch"),
               (size_t)fixture_number(&f, "settings", "seq"));
    return f;
}

fixture fixture_open_adapter(const char *folder, const char *base) {
    fixture f = {.folder = folder, .prefix = "base_model.model."};
    read_config(&f, base, "config.json");
    f.json = read_json(folder);
    f.golden = st_open(fixture_path(folder, "golden.safetensors"));
    f.weights = st_open(fixture_path(base, "model.safetensors"));
    f.adapter = st_open(fixture_path(folder, "adapter_model.safetensors"));
    st_file inputs = st_open(fixture_path(base, "golden.safetensors"));
    tm_json_doc *doc = read_json(base);
    const tm_json *type = tm_json_get(tm_json_get(tm_json_root(doc), "tensors"), "input_ids")->child;
    const tm_json *rows = type->next->child->next; /* [steps, rows, positions] */
    read_batch(&f, &inputs, (size_t)rows->integer, (size_t)rows->next->integer);
    st_close(&inputs);
    tm_json_free(doc);
    return f;
}

void fixture_close(fixture *f) {
    st_close(&f->golden);
    st_close(&f->weights);
    if (f->prefix) st_close(&f->adapter);
    tm_json_free(f->json);
    free(f->ids), free(f->labels), free(f->mask), free(f->begin);
}

tm_micro_batch fixture_batch(const fixture *f) {
    return (tm_micro_batch){.rows = (uint32_t)f->rows,
                            .seq = (uint32_t)f->seq,
                            .tokens = f->tokens,
                            .ids = f->ids,
                            .labels = f->labels,
                            .key_mask = f->mask,
                            .begin = f->begin};
}

/* What the adapter's file has counts. */
static float *values_of(const fixture *f, const tm_tensor *x, size_t *n) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", f->prefix ? f->prefix : "", x->name);
    float *v = f->prefix ? st_floats(&f->adapter, name, n) : NULL;
    assert_true(!f->prefix || x->learns == (v != NULL));
    return v ? v : st_floats(&f->weights, x->name, n);
}

void fixture_load(run *r, const fixture *f) {
    for (uint32_t t = 0; t < tm_model_tensors(r->m); t++) {
        size_t n;
        float *w = values_of(f, tm_model_tensor(r->m, t), &n);
        assert_non_null(w);
        assert_int_equal(n, tm_model_tensor(r->m, t)->elements);
        run_set_tensor(r, t, w);
        tm_free(w);
    }
}

void mean_of_labels(run *r, uint64_t labels) {
    for (unsigned b = 0; b < r->n_batches; b++)
        for (uint32_t t = 0; t < r->batch[b].rows * r->batch[b].seq; t++)
            r->coefficient[b][t] = r->batch[b].labels[t] >= 0 ? 1.0F / (float)labels : 0.0F;
}

double fixture_difference(const fixture *f, const float *got, const float *want, size_t width) {
    double worst = 0;
    for (size_t t = 0; t < f->rows * f->seq; t++)
        for (size_t v = 0; f->mask[t] && v < width; v++)
            worst = fmax(worst, fabs((double)got[t * width + v] - (double)want[t * width + v]));
    return worst;
}

void check_logits(run *r, const fixture *f, const char *name, double tolerance) {
    size_t n, vocab = f->config.vocab_size;
    float *want = st_floats(&f->golden, name, &n), *got = malloc(f->tokens * vocab * sizeof *got);
    assert_non_null(want);
    run_logits(r, 0, got);
    double worst = fixture_difference(f, got, want, vocab);
    printf("%s %s: logits differ by %.3g (tolerance %.3g)\n", f->folder, name, worst, tolerance);
    assert_true(worst <= tolerance);
    free(got);
    tm_free(want);
}

void check_token_nll(run *r, const fixture *f, double tolerance) {
    size_t n;
    uint64_t labels;
    float *want = st_floats(&f->golden, "token_nll", &n), *got = malloc(f->tokens * sizeof *got);
    run_loss(r, got, &labels);
    for (size_t b = 0; b < f->rows; b++)
        for (size_t s = 0; s + 1 < f->seq; s++)
            assert_true(fabs((double)got[b * f->seq + s] - (double)want[b * (f->seq - 1) + s]) <= tolerance);
    free(got);
    tm_free(want);
}

double check_gradients(const run *r, const fixture *f, double tolerance) {
    double total = 0, worst = 0;
    for (uint32_t t = 0; t < tm_model_tensors(r->m); t++) {
        const tm_tensor *x = tm_model_tensor(r->m, t);
        char name[160];
        size_t n;
        if (!x->learns) continue;
        snprintf(name, sizeof name, "grad.%s%s", f->prefix ? f->prefix : "", x->name);
        float *want = st_floats(&f->golden, name, &n), *got = malloc(x->elements * sizeof *got);
        assert_non_null(want);
        run_tensor_grad(r, t, got);
        golden_leave_out(tm_json_root(f->json), x->name, got);
        golden_leave_out(tm_json_root(f->json), x->name, want);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < n; i++) {
            difference += pow((double)got[i] - (double)want[i], 2);
            norm += pow((double)want[i], 2);
            total += pow((double)got[i], 2);
        }
        double relative = norm > 0 ? sqrt(difference / norm) : sqrt(difference) / 1e-7 * tolerance;
        if (!(relative <= tolerance)) fail_msg("%s %s: %.3g > %.3g", f->folder, name, relative, tolerance);
        worst = fmax(worst, relative);
        free(got);
        tm_free(want);
    }
    printf("%s: gradients differ by at most %.3g (tolerance %.3g)\n", f->folder, worst, tolerance);
    return sqrt(total);
}

void check_loss(run *r, const fixture *f, const char *name, double tolerance, uint64_t *labels) {
    double loss = run_loss(r, NULL, labels);
    assert_true(fabs(loss - fixture_number(f, "scalars", name)) <= tolerance);
}

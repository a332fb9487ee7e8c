/* The whole graph against the golden fixtures: hidden states, logits, per-token loss, loss, every gradient. */
#include "fixture.h"
#include "kernels/kernels.h"
#include "model/model_internal.h"
#include "tests/support/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* hidden.0 is the embedding, hidden.i what block i-1 gives, the last one is normed; largest difference by the size of
 * what is there, as that of logits, which are about 1. */
static void check_hidden(run *r, const fixture *f, double tolerance) {
    uint32_t layers = f->config.num_hidden_layers, width = f->config.hidden_size;
    float *got = malloc(f->tokens * (size_t)width * sizeof *got);
    for (uint32_t i = 0; i <= layers; i++) {
        char name[32];
        size_t n;
        unsigned slot = i < layers ? SLOT_X : SLOT_NORMED;
        uint32_t ld = tm_model_unit(r->m, 1 + i)->slot[slot].bytes / sizeof(float);
        const float *x = run_slot(r, 1 + i, 0, slot);
        snprintf(name, sizeof name, "hidden.%u", i);
        float *want = st_floats(&f->golden, name, &n);
        assert_non_null(want);
        double most = 1;
        for (size_t k = 0; k < n; k++) most = fmax(most, fabs((double)want[k]));
        for (size_t t = 0; t < f->tokens; t++) memcpy(got + t * width, x + t * ld, width * sizeof *got);
        double worst = fixture_difference(f, got, want, width);
        if (!(worst <= tolerance * most)) fail_msg("%s %s: differs by %.3g", f->folder, name, worst);
        tm_free(want);
    }
    free(got);
}

static void check_fp32(const golden_row *row, const char *config) {
    fixture f = fixture_open(row->folder, config, "model.safetensors");
    tm_model *m;
    assert_int_equal(tm_model_create(&m, &f.config, TM_F32), TM_OK);
    tm_micro_batch batch = fixture_batch(&f);
    run r;
    run_open(&r, m, 1, &batch);
    fixture_load(&r, &f);
    run_forward(&r, BATCH_OUTER);
    if (!(row->has & GOLDEN_SMALL)) check_hidden(&r, &f, fixture_number(&f, "tolerances", "logits_max_abs"));
    check_logits(&r, &f, "logits", fixture_number(&f, "tolerances", "logits_max_abs"));
    check_token_nll(&r, &f, 5e-5);
    uint64_t labels;
    check_loss(&r, &f, "loss", fixture_number(&f, "tolerances", "loss_abs"), &labels);
    assert_int_equal(labels, (int64_t)fixture_number(&f, "scalars", "loss_tokens"));
    mean_of_labels(&r, labels);
    run_backward(&r, BATCH_OUTER);
    double norm = check_gradients(&r, &f, fixture_number(&f, "tolerances", "grad_rel_l2"));
    double want = fixture_number(&f, "scalars", "grad_norm");
    assert_true(fabs(norm - want) / want <= fixture_number(&f, "tolerances", "grad_norm_rel"));
    run_close(&r);
    tm_model_free(m);
    fixture_close(&f);
}

static void v5(void **state) {
    check_fp32(*state, "config.json");
}
static void v4(void **state) {
    check_fp32(*state, "config_v4.json");
}

/* Leaves the first `seq` positions of each row. */
static void cut_rows(fixture *f, size_t seq) {
    size_t was = f->seq;
    for (size_t b = 0; b < f->rows; b++)
        for (size_t s = 0; s < seq; s++) {
            size_t to = b * seq + s, from = b * was + s;
            f->ids[to] = f->ids[from], f->mask[to] = f->mask[from];
            f->labels[to] = s + 1 < seq ? f->labels[from] : -100;
        }
    f->seq = seq;
    f->tokens = (uint32_t)tm_round_up(f->rows * seq, 64);
    for (size_t t = f->rows * seq; t < f->tokens; t++) f->ids[t] = 0, f->mask[t] = 0, f->labels[t] = -100;
}

/* Rows no longer than what the model began with take the short factors. */
static void shorts(void **state) {
    const golden_row *row = *state;
    fixture f = fixture_open(row->folder, "config.json", "model.safetensors");
    const tm_json *shape = tm_json_get(tm_json_get(tm_json_root(f.json), "tensors"), "short.logits")->child->next;
    cut_rows(&f, (size_t)shape->child->next->integer);
    tm_model *m;
    assert_int_equal(tm_model_create(&m, &f.config, TM_F32), TM_OK);
    tm_micro_batch batch = fixture_batch(&f);
    run r;
    uint64_t labels;
    run_open(&r, m, 1, &batch);
    fixture_load(&r, &f);
    run_forward(&r, BATCH_OUTER);
    check_logits(&r, &f, "short.logits", fixture_number(&f, "tolerances", "logits_max_abs"));
    check_loss(&r, &f, "short.loss", fixture_number(&f, "tolerances", "loss_abs"), &labels);
    run_close(&r);
    tm_model_free(m);
    fixture_close(&f);
}

/* The fixture's model was made by model.to(bfloat16).float(), which rounds the rotary frequencies too. A model that is
 * loaded from the folder keeps them in fp32, as ours does; to compare, they are rounded here. */
static void round_frequencies(tm_model *m) {
    for (size_t i = 0; i < TM_COUNT(m->rope); i++) {
        uint16_t narrow[TM_MAX_HEAD_DIM / 2];
        tm_rope *r = &m->rope[i];
        if (!r->table) continue;
        tm_narrow(r->inv_freq, narrow, r->rotary / 2);
        tm_widen(narrow, r->inv_freq, r->rotary / 2);
        tm_rope_free(r);
        assert_int_equal(tm_rope_fill(r, m->config.max_position_embeddings), TM_OK);
    }
}

/* bf16 weights widened to fp32: the graph in fp32. */
static void bf16_weights(void **state) {
    const golden_row *row = *state;
    fixture f = fixture_open(row->folder, "bf16/config.json", "bf16/model.safetensors");
    tm_model *m;
    assert_int_equal(tm_model_create(&m, &f.config, TM_F32), TM_OK);
    round_frequencies(m);
    tm_micro_batch batch = fixture_batch(&f);
    run r;
    run_open(&r, m, 1, &batch);
    fixture_load(&r, &f);
    run_forward(&r, BATCH_OUTER);
    check_logits(&r, &f, "bf16_weights.logits", fixture_number(&f, "tolerances", "logits_max_abs"));
    uint64_t labels;
    check_loss(&r, &f, "bf16_weights.loss", fixture_number(&f, "tolerances", "loss_abs"), &labels);
    run_close(&r);
    tm_model_free(m);
    fixture_close(&f);
}

/* Computes in `type` with loss and gradients `scale` times as large, the scale taken out of the gradients again in
 * fp32, exactly (a power of two). Returns the loss. */
static double compute_in(run *r, const fixture *f, tm_dtype type, unsigned scale, tm_model **m) {
    assert_int_equal(tm_model_create(m, &f->config, type), TM_OK);
    tm_micro_batch batch = fixture_batch(f);
    run_open(r, *m, 1, &batch);
    fixture_load(r, f);
    run_forward(r, BATCH_OUTER);
    uint64_t labels;
    double loss = run_loss(r, NULL, &labels);
    mean_of_labels(r, labels);
    for (uint32_t t = 0; t < f->rows * f->seq; t++) r->coefficient[0][t] *= (float)scale;
    run_backward(r, BATCH_OUTER);
    for (uint32_t p = 0; p < tm_model_parts(*m); p++)
        for (uint64_t i = 0; i < tm_model_part(*m, p)->elements; i++) r->grad[p][i] /= (float)scale;
    return loss;
}

/* The same weights computed on in bf16. */
static void bf16_compute(void **state) {
    const golden_row *row = *state;
    fixture f = fixture_open(row->folder, "bf16/config.json", "bf16/model.safetensors");
    tm_model *m;
    run r;
    double loss = compute_in(&r, &f, TM_BF16, 1, &m), want = fixture_number(&f, "scalars", "bf16_compute.loss");
    double sum = 0;
    for (uint32_t t = 0; t < tm_model_tensors(m); t++) {
        uint64_t n = tm_model_tensor(m, t)->elements;
        float *g = malloc(n * sizeof *g);
        run_tensor_grad(&r, t, g);
        for (uint64_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
        free(g);
    }
    double want_norm = fixture_number(&f, "scalars", "bf16_compute.grad_norm");
    printf("%s bf16: loss %.6f (%.6f), gradient norm %.5f (%.5f)\n", row->folder, loss, want, sqrt(sum), want_norm);
    assert_true(fabs(loss - want) / want <= fixture_number(&f, "tolerances", "bf16_compute.loss_rel"));
    assert_true(fabs(sqrt(sum) - want_norm) / want_norm <=
                fixture_number(&f, "tolerances", "bf16_compute.grad_norm_rel"));
    run_close(&r);
    tm_model_free(m);
    fixture_close(&f);
}

/* The fp32 fixture computed on in fp16, which has three bits more than bf16: an eighth of bf16's tolerances. The loss
 * is scaled as in training. */
static void fp16_compute(void **state) {
    const golden_row *row = *state;
    fixture f = fixture_open(row->folder, "config.json", "model.safetensors");
    tm_model *m;
    run r;
    double loss = compute_in(&r, &f, TM_F16, 1 << 10, &m), want = fixture_number(&f, "scalars", "loss");
    printf("%s fp16: loss %.6f (%.6f)\n", row->folder, loss, want);
    assert_true(fabs(loss - want) / want <= 0.02 / 8);
    double allowed = row->has & GOLDEN_STEEP ? 0.05 : 0.05 / 8;
    double norm = check_gradients(&r, &f, allowed), want_norm = fixture_number(&f, "scalars", "grad_norm");
    assert_true(fabs(norm - want_norm) / want_norm <= allowed);
    run_close(&r);
    tm_model_free(m);
    fixture_close(&f);
}

/* Several documents in a row, each of which transformers was given alone. */
static const golden_row packed_rows[] = {{"packed_llama", GOLDEN_SMALL}, {"packed_gemma3", GOLDEN_SMALL}};

/* Each fixture's tests, named "FOLDER NAME". */
enum { KINDS = 6, MOST = KINDS * (int)(TM_COUNT(golden_rows) + TM_COUNT(packed_rows)) };
static char names[MOST][64];
static struct CMUnitTest tests[MOST];
static size_t n_tests;

static void add(const golden_row *row, const char *name, CMUnitTestFunction test, bool there) {
    if (!there) return;
    snprintf(names[n_tests], sizeof names[n_tests], "%s %s", row->folder, name);
    tests[n_tests] = (struct CMUnitTest){.name = names[n_tests], .test_func = test, .initial_state = (void *)row};
    n_tests++;
}

int main(int argc, char **argv) {
    if (tm_kernels_init(2, TM_ELEM_F32) != TM_OK) return fprintf(stderr, "%s\n", tm_error_get()->text), 1;
    printf("%s\n", tm_kernels_describe());
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < TM_COUNT(golden_rows); i++) {
        const golden_row *row = &golden_rows[i];
        add(row, "config.json", v5, true);
        add(row, "config_v4.json", v4, true);
        add(row, "short", shorts, row->has & GOLDEN_SHORTS);
        add(row, "bf16_weights", bf16_weights, row->has & GOLDEN_BF16);
        add(row, "bf16_compute", bf16_compute, row->has & GOLDEN_BF16);
        add(row, "fp16_compute", fp16_compute, true);
    }
    for (size_t i = 0; i < TM_COUNT(packed_rows); i++) {
        add(&packed_rows[i], "config.json", v5, true);
        add(&packed_rows[i], "config_v4.json", v4, true);
    }
    int failed = _cmocka_run_group_tests("test_golden", tests, n_tests, NULL, NULL);
    tm_kernels_close();
    return failed;
}

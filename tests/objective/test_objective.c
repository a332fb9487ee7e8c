/* Objectives as functions of log-probabilities: losses and derivatives beside PyTorch's (fixtures pref_*), and what has no fixture
 * against differences. A row's log-probability is spread evenly over its completion's tokens: only sums and counts matter. */
#include "objective/objective.h"

#include "tests/model/safetensors_file.h"

#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 8, SEQ = 24, TOKENS = 192 };

#define assert_near(a, b, most) assert_true(fabs((a) - (b)) <= (most))

/* ---- batches made of log-probabilities -------------------------------------------------------------------------- */

typedef struct lane {
    tm_micro_batch batch;
    int32_t labels[TOKENS];
    float nll[TOKENS];
    double logp[ROWS];
    uint32_t tokens[ROWS];
} lane;
typedef struct scene {
    lane lane[TM_LANES];
    uint8_t desirable[ROWS], completion[TOKENS];
    float reference[ROWS];
    objective_batch b;
    objective_step s;
    double sum[TM_OBJECTIVE_SUMS];
} scene;

/* Position 0 is a prompt: its label is the completion's first token. */
static void set_lane(scene *x, tm_lane_name name, uint32_t rows) {
    lane *l = &x->lane[name];
    l->batch = (tm_micro_batch){.rows = rows, .seq = SEQ, .tokens = TOKENS, .labels = l->labels};
    for (size_t t = 0; t < TOKENS; t++) l->labels[t] = -100, l->nll[t] = 0;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < l->tokens[r]; i++) {
            size_t t = (size_t)r * SEQ + 2 + i;
            l->labels[t] = 7;
            l->nll[t] = (float)(-l->logp[r] / l->tokens[r]);
        }
    x->b.lane[name] = (objective_lane){.batch = &l->batch, .nll = l->nll};
    if (name == TM_LANE_POLICY) x->b.lane[name].desirable = x->desirable;
}

static double run(scene *x, const tm_objective_spec *spec) {
    const tm_objective *o = tm_objective_of(spec->type);
    x->s.spec = spec;
    memset(x->s.shared, 0, sizeof x->s.shared);
    memset(x->sum, 0, sizeof x->sum);
    if (tm_objective_shares(o, spec)) o->share(&x->s, &x->b, x->s.shared);
    return o->run(&x->s, &x->b, x->sum) / tm_objective_divisor(o, x->s.labels, x->s.samples);
}

/* d loss / d log-probability of a row, whose tokens all have the same. */
static double slope(const scene *x, uint32_t row) {
    const lane *l = &x->lane[TM_LANE_POLICY];
    double first = (double)l->nll[(size_t)row * SEQ + 2];
    for (uint32_t i = 0; i < l->tokens[row]; i++) assert_true((double)l->nll[(size_t)row * SEQ + 2 + i] == first);
    assert_true(l->nll[(size_t)row * SEQ] == 0 && l->nll[TOKENS - 1] == 0);
    return -first;
}

/* ---- fixtures --------------------------------------------------------------------------------------------------- */

static const char *path_of(const char *folder, const char *file) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s", TM_TEST_FIXTURES, folder, file);
    return path;
}

static void take_counts(uint32_t *tokens, const st_file *f, const char *name, size_t rows, uint32_t first,
                        uint32_t step) {
    size_t n;
    int32_t *labels = st_ints(f, name, &n);
    for (size_t r = 0; r < rows; r++) {
        tokens[first + step * r] = 0;
        for (size_t t = 1; t < n / rows; t++) tokens[first + step * r] += labels[r * (n / rows) + t] >= 0;
    }
    tm_free(labels);
}

static size_t take_logps(double *logp, const st_file *f, const char *name, uint32_t first, uint32_t step) {
    size_t n;
    float *x = st_floats(f, name, &n);
    for (size_t r = 0; r < n; r++) logp[first + step * r] = (double)x[r];
    tm_free(x);
    return n;
}

/* Pairs of pref_dpo with their reference. */
static void dpo_scene(scene *x) {
    st_file f_of = st_open(path_of("pref_dpo", "golden.safetensors")), *f = &f_of;
    *x = (scene){.s = {.scale = 1}};
    for (int name = TM_LANE_POLICY; name <= TM_LANE_REFERENCE; name += TM_LANE_REFERENCE - TM_LANE_POLICY) {
        bool policy = name == TM_LANE_POLICY;
        lane *l = &x->lane[name];
        x->s.samples = take_logps(l->logp, f, policy ? "policy_chosen_logps" : "ref_chosen_logps", 0, 2);
        take_counts(l->tokens, f, "chosen_labels", x->s.samples, 0, 2);
        take_counts(l->tokens, f, "rejected_labels", x->s.samples, 1, 2);
        (void)take_logps(l->logp, f, policy ? "policy_rejected_logps" : "ref_rejected_logps", 1, 2);
        set_lane(x, (tm_lane_name)name, 2 * (uint32_t)x->s.samples);
    }
    st_close(f);
}

static tm_json_doc *golden(const char *folder) {
    tm_json_doc *doc;
    size_t len;
    char *text = read_text(path_of(folder, "golden.json"), &len);
    if (tm_json_parse(&doc, text, len, folder, 0, 0) != TM_OK) fail_msg("%s", tm_error_get()->text);
    tm_free(text);
    return doc;
}

static double number(const tm_json *from, const char *key, double none) {
    const tm_json *n = tm_json_get(from, key);
    return n ? n->number : none;
}

/* Loss of the micro-batch and each row's derivative, as the fixture's variant has them. */
static void check_variant(const char *variant, const tm_json *golden_variant, tm_objective_spec spec) {
    char name[64];
    size_t n;
    scene x;
    st_file f_of = st_open(path_of("pref_dpo_variants", "golden.safetensors")), *f = &f_of;
    dpo_scene(&x);
    spec.beta = number(golden_variant, "beta", 0);
    spec.label_smoothing = number(golden_variant, "label_smoothing", 0);
    spec.rpo_alpha = number(golden_variant, "rpo_alpha", 0);
    assert_near(run(&x, &spec), number(golden_variant, "loss", NAN),
                2e-6 * fmax(1, number(golden_variant, "loss", NAN)));
    snprintf(name, sizeof name, "%s.dlogps", variant);
    float *want = st_floats(f, name, &n);
    assert_int_equal(n, 6);
    for (uint32_t pair = 0; pair < 3; pair++)
        for (uint32_t side = 0; side < 2; side++) {
            double w = (double)want[side * 3 + pair];
            assert_near(slope(&x, 2 * pair + side), w, 3e-6 * fmax(0.1, fabs(w)));
        }
    tm_free(want);
    st_close(f);
}

static void dpo(void **state) {
    (void)state;
    static const struct {
        const char *name;
        tm_preference_loss loss;
    } variants[] = {{"ipo", TM_LOSS_IPO},          {"hinge", TM_LOSS_HINGE}, {"cdpo", TM_LOSS_SIGMOID},
                    {"robust", TM_LOSS_ROBUST},    {"rpo", TM_LOSS_SIGMOID}, {"sigmoid_norm", TM_LOSS_SIGMOID_NORM},
                    {"apo_zero", TM_LOSS_APO_ZERO}};
    tm_json_doc *all = golden("pref_dpo_variants"), *plain = golden("pref_dpo");
    const tm_json *list = tm_json_get(tm_json_root(all), "variants");
    assert_int_equal(list->count, TM_COUNT(variants));
    for (size_t i = 0; i < TM_COUNT(variants); i++) {
        tm_objective_spec spec = tm_objective_defaults(TM_OBJECTIVE_DPO);
        spec.loss = variants[i].loss;
        check_variant(variants[i].name, tm_json_get(list, variants[i].name), spec);
    }
    scene x;
    double value[8];
    tm_objective_spec spec = tm_objective_defaults(TM_OBJECTIVE_DPO);
    const tm_json *scalars = tm_json_get(tm_json_root(plain), "scalars");
    dpo_scene(&x);
    assert_near(run(&x, &spec), number(scalars, "loss", NAN), 1e-6);
    tm_objective_of(TM_OBJECTIVE_DPO)->metrics(&x.s, x.sum, value);
    assert_string_equal(tm_objective_of(TM_OBJECTIVE_DPO)->metric[3], "rewards/accuracies");
    assert_near(value[3], number(scalars, "reward_accuracy", NAN), 1e-6);
    assert_true(isnan(value[6])); /* no nll_loss without rpo_alpha */
    tm_json_free(all);
    tm_json_free(plain);
}

/* Several losses: their sum by weights, and so are the derivatives. */
static void several(void **state) {
    (void)state;
    static const double weight[TM_LOSSES] = {
        [TM_LOSS_SIGMOID] = 0.8, [TM_LOSS_IPO] = 0.25, [TM_LOSS_SIGMOID_NORM] = 2, [TM_LOSS_APO_ZERO] = 0.5};
    tm_objective_spec spec = tm_objective_defaults(TM_OBJECTIVE_DPO), all = spec;
    double loss = 0, d[6] = {0};
    scene x;
    for (int i = 0; i < TM_LOSSES; i++) {
        spec.loss = (tm_preference_loss)i;
        dpo_scene(&x);
        loss += weight[i] * run(&x, &spec);
        for (uint32_t r = 0; r < 6; r++) d[r] += weight[i] * slope(&x, r);
    }
    memcpy(all.weight, weight, sizeof weight);
    dpo_scene(&x);
    assert_near(run(&x, &all), loss, 1e-9);
    for (uint32_t r = 0; r < 6; r++) assert_near(slope(&x, r), d[r], 1e-6);
}

/* The reference as a column instead of a lane: the same. */
static void reference_column(void **state) {
    (void)state;
    scene a, b;
    tm_objective_spec spec = tm_objective_defaults(TM_OBJECTIVE_DPO);
    dpo_scene(&a);
    dpo_scene(&b);
    for (uint32_t r = 0; r < 6; r++) b.reference[r] = (float)b.lane[TM_LANE_REFERENCE].logp[r];
    b.b.lane[TM_LANE_REFERENCE] = (objective_lane){0};
    b.b.lane[TM_LANE_POLICY].reference = b.reference;
    assert_near(run(&a, &spec), run(&b, &spec), 1e-6);
    for (uint32_t r = 0; r < 6; r++) assert_near(slope(&a, r), slope(&b, r), 1e-7);
}

static void pairs_without(const char *folder, tm_objective_type type, const char *losses, double extra) {
    scene x = {.s = {.scale = 1}};
    st_file f_of = st_open(path_of(folder, "golden.safetensors")), *f = &f_of;
    tm_json_doc *doc = golden(folder);
    lane *l = &x.lane[TM_LANE_POLICY];
    tm_objective_spec spec = tm_objective_defaults(type);
    double each[ROWS] = {0}, mean = 0;
    x.s.samples = take_logps(l->logp, f, "policy_chosen_avg_logps", 0, 2);
    take_counts(l->tokens, f, "chosen_labels", x.s.samples, 0, 2);
    take_counts(l->tokens, f, "rejected_labels", x.s.samples, 1, 2);
    (void)take_logps(l->logp, f, "policy_rejected_avg_logps", 1, 2);
    for (uint32_t r = 0; r < 2 * x.s.samples; r++) l->logp[r] *= l->tokens[r];
    set_lane(&x, TM_LANE_POLICY, 2 * (uint32_t)x.s.samples);
    for (size_t n = take_logps(each, f, losses, 0, 1), i = 0; i < n; i++) mean += each[i] / (double)n;
    double loss = run(&x, &spec);
    if (extra > 0) loss -= extra * x.sum[5] / x.s.shared[0]; /* the chosen rows' own, which here has no prompts */
    assert_near(loss, mean, 2e-6);
    st_close(f);
    tm_json_free(doc);
}

static void simpo_and_orpo(void **state) {
    (void)state;
    pairs_without("pref_simpo", TM_OBJECTIVE_SIMPO, "losses", 0);
    pairs_without("pref_orpo", TM_OBJECTIVE_ORPO, "or_losses", 1);
}

/* Answers that are certain: nothing that follows from them is beyond all bounds. */
static void orpo_of_certain_answers(void **state) {
    (void)state;
    tm_objective_spec spec = tm_objective_defaults(TM_OBJECTIVE_ORPO);
    for (int which = 1; which <= 3; which++) {
        scene x = {.s = {.samples = 1, .scale = 1}};
        lane *l = &x.lane[TM_LANE_POLICY];
        for (int r = 0; r < 2; r++) l->tokens[r] = 5, l->logp[r] = which >> r & 1 ? 0 : -3;
        set_lane(&x, TM_LANE_POLICY, 2);
        assert_true(isfinite(run(&x, &spec)));
        for (uint32_t r = 0; r < 2; r++) assert_true(fabs(slope(&x, r)) < 2);
    }
}

static void kto(void **state) {
    (void)state;
    static const char *const logps[TM_LANES] = {"policy_logps", "policy_kl_logps", "ref_logps", "ref_kl_logps"};
    tm_json_doc *doc = golden("pref_kto");
    const tm_json *settings = tm_json_get(tm_json_root(doc), "settings"),
                  *scalars = tm_json_get(tm_json_root(doc), "scalars"),
                  *swapped = tm_json_get(tm_json_root(doc), "roles_swapped");
    st_file f_of = st_open(path_of("pref_kto", "golden.safetensors")), *f = &f_of;
    tm_objective_spec spec = tm_objective_defaults(TM_OBJECTIVE_KTO);
    spec.undesirable_weight = number(settings, "undesirable_weight", NAN);
    for (int swap = 0; swap < 2; swap++) {
        scene x = {.s = {.scale = 1}};
        size_t n;
        double value[8];
        int32_t *desirable = st_ints(f, "desirable", &n);
        for (size_t r = 0; r < n && r < ROWS; r++) x.desirable[r] = (uint8_t)desirable[r];
        for (int name = 0; name < TM_LANES; name++) {
            lane *l = &x.lane[name];
            x.s.samples = take_logps(l->logp, f, logps[swap ? (name + 2) % TM_LANES : name], 0, 1);
            take_counts(l->tokens, f, name % 2 ? "kl_labels" : "labels", x.s.samples, 0, 1);
            set_lane(&x, (tm_lane_name)name, (uint32_t)x.s.samples);
        }
        assert_near(run(&x, &spec), number(swap ? swapped : scalars, "loss", NAN), 1e-6);
        tm_objective_of(TM_OBJECTIVE_KTO)->metrics(&x.s, x.sum, value);
        assert_near(value[5], number(swap ? swapped : scalars, "kl", NAN), 2e-6);
        tm_free(desirable);
    }
    st_close(f);
    tm_json_free(doc);
}

/* ---- differences ------------------------------------------------------------------------------------------------ */

/* Every derivative of every objective, with a scale, against the loss on both sides. */
static void slopes(void **state) {
    (void)state;
    for (int type = TM_OBJECTIVE_DPO; type < TM_OBJECTIVES; type++)
        for (int loss = TM_LOSS_SIGMOID; loss <= (type == TM_OBJECTIVE_DPO ? TM_LOSS_APO_ZERO : TM_LOSS_SIGMOID);
             loss++) {
            tm_objective_spec spec = tm_objective_defaults((tm_objective_type)type);
            spec.loss = (tm_preference_loss)loss;
            spec.label_smoothing = 0.07, spec.rpo_alpha = 0.3, spec.cpo_alpha = 0.4, spec.undesirable_weight = 1.5;
            for (uint32_t row = 0; row < 6; row++) {
                double got[2], exact = 0, h = 1e-3;
                for (int side = -1; side <= 1; side++) {
                    scene x = {.s = {.samples = type == TM_OBJECTIVE_KTO ? 6 : 3, .scale = side ? 1 : 256}};
                    for (int name = 0; name < TM_LANES; name++) {
                        lane *l = &x.lane[name];
                        for (uint32_t r = 0; r < 6; r++) l->tokens[r] = 4 + r, l->logp[r] = -3 - 0.7 * r - 0.31 * name;
                        if (name == TM_LANE_POLICY) l->logp[row] += side * h;
                        set_lane(&x, (tm_lane_name)name, 6);
                    }
                    for (uint32_t r = 0; r < 6; r++) x.desirable[r] = r % 2;
                    double value = run(&x, &spec);
                    if (side) got[side > 0] = value;
                    if (!side) exact = slope(&x, row) / 256;
                }
                assert_near((got[1] - got[0]) / (2 * h), exact, 2e-4 * fmax(1, fabs(exact)));
            }
        }
}

/* Every label weighs 1 / (labels of the step), scaled; the loss is the plain sum. */
static void sft(void **state) {
    (void)state;
    for (int type = TM_OBJECTIVE_SFT; type <= TM_OBJECTIVE_PRETRAIN; type++) {
        const tm_objective *o = tm_objective_of((tm_objective_type)type);
        static scene x;
        double want = 0;
        x = (scene){.s = {.labels = 100, .scale = 1024}};
        lane *l = &x.lane[TM_LANE_POLICY];
        set_lane(&x, TM_LANE_POLICY, ROWS);
        for (size_t t = 0; t < TOKENS; t++) {
            l->labels[t] = t % 3 ? (int32_t)t : -100;
            l->nll[t] = t % 3 ? 0.25F * (float)t : 0;
            want += (double)l->nll[t];
        }
        assert_true(o->run(&x.s, &x.b, x.sum) == want);
        for (size_t t = 0; t < TOKENS; t++) assert_true(l->nll[t] == (t % 3 ? (float)(1024.0 / 100) : 0));
        x.s.labels = 0; /* a step without labels */
        (void)o->run(&x.s, &x.b, x.sum);
        for (size_t t = 0; t < TOKENS; t++) assert_true(l->nll[t] == 0);
    }
}

static void lanes(void **state) {
    (void)state;
    tm_lane_name of[TM_LANES];
    assert_int_equal(tm_objective_lanes(tm_objective_of(TM_OBJECTIVE_SFT), true, of), 1);
    assert_int_equal(of[0], TM_LANE_POLICY);
    assert_int_equal(tm_objective_lanes(tm_objective_of(TM_OBJECTIVE_DPO), true, of), 2);
    assert_int_equal(of[0], TM_LANE_POLICY);
    assert_int_equal(of[1], TM_LANE_REFERENCE);
    assert_int_equal(tm_objective_lanes(tm_objective_of(TM_OBJECTIVE_DPO), false, of), 1);
    assert_int_equal(tm_objective_lanes(tm_objective_of(TM_OBJECTIVE_KTO), true, of), TM_LANES);
    for (uint32_t i = 0; i < TM_LANES; i++) assert_int_equal(of[i], i);
    assert_int_equal(tm_objective_lanes(tm_objective_of(TM_OBJECTIVE_KTO), false, of), 2);
    assert_int_equal(of[1], TM_LANE_MISMATCHED);
    assert_int_equal(tm_objective_lanes(tm_objective_of(TM_OBJECTIVE_SIMPO), true, of), 1);
    static const bool bare[TM_LANES] = {false, false, true, true};
    static const uint32_t batch[TM_LANES] = {TM_BATCH_ROWS, TM_BATCH_MISMATCHED, TM_BATCH_ROWS, TM_BATCH_MISMATCHED};
    for (tm_lane_name name = 0; name < TM_LANES; name++) {
        assert_int_equal(tm_lane_is_bare(name), bare[name]);
        assert_int_equal(tm_lane_batch(name), batch[name]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(dpo),
                                       cmocka_unit_test(several),
                                       cmocka_unit_test(orpo_of_certain_answers),
                                       cmocka_unit_test(reference_column),
                                       cmocka_unit_test(simpo_and_orpo),
                                       cmocka_unit_test(kto),
                                       cmocka_unit_test(slopes),
                                       cmocka_unit_test(sft),
                                       cmocka_unit_test(lanes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* AdamW: every row bit-equal to the formulas written out here, any cut of a span, and near to double precision. */
#include "world.h"
#include "tests/support/skip.h"

enum { N = 1 << 20 };

typedef struct spans {
    float *w, *m, *v, *g;
    uint16_t *hi, *lo, *g16;
} spans;

static void spans_alloc(spans *s, size_t n) {
    *s = (spans){malloc(n * 4), malloc(n * 4), malloc(n * 4), malloc(n * 4),
                 malloc(n * 2), malloc(n * 2), malloc(n * 2)};
    assert_true(s->w && s->m && s->v && s->g && s->hi && s->lo && s->g16);
}
static void spans_free(spans *s) {
    free(s->w), free(s->m), free(s->v), free(s->g), free(s->hi), free(s->lo), free(s->g16);
}
static void spans_copy(spans *to, const spans *from, size_t n) {
    memcpy(to->w, from->w, n * 4), memcpy(to->m, from->m, n * 4), memcpy(to->v, from->v, n * 4);
    memcpy(to->g, from->g, n * 4), memcpy(to->hi, from->hi, n * 2), memcpy(to->lo, from->lo, n * 2);
    memcpy(to->g16, from->g16, n * 2);
}
static void spans_equal(const spans *a, const spans *b, size_t n, bool split) {
    assert_memory_equal(a->m, b->m, n * 4);
    assert_memory_equal(a->v, b->v, n * 4);
    if (!split) assert_memory_equal(a->w, b->w, n * 4);
    if (split) assert_memory_equal(a->hi, b->hi, n * 2);
    if (split) assert_memory_equal(a->lo, b->lo, n * 2);
}

/* Ordinary values, values over the whole range, subnormals and zeros; g holds bf16 values. */
static void spans_fill(spans *s, size_t n, test_rng *r) {
    for (size_t i = 0; i < n; i++) {
        switch (rng_u32(r) % 8) {
        case 0: /* deep in the subnormals */
            s->w[i] = float_of(rng_u32(r) & 0x807fffffu), s->m[i] = float_of(rng_u32(r) & 0x807fffffu);
            s->v[i] = float_of(rng_u32(r) & 0x007fffffu), s->g[i] = float_of(rng_u32(r) & 0x807f0000u);
            break;
        case 1:
            s->w[i] = rng_scaled(r, -140, 60), s->m[i] = rng_scaled(r, -140, 40);
            s->v[i] = fabsf(rng_scaled(r, -140, 40)), s->g[i] = rng_scaled(r, -140, 40);
            break;
        case 2:
            s->w[i] = 0, s->m[i] = 0, s->v[i] = 0, s->g[i] = rng_u32(r) % 2 ? 0 : -0.0f;
            break;
        default:
            s->w[i] = rng_scaled(r, -8, 0), s->m[i] = rng_scaled(r, -14, -6);
            s->v[i] = fabsf(rng_scaled(r, -28, -12)), s->g[i] = rng_scaled(r, -14, -4);
        }
        s->g16[i] = (uint16_t)(bits_of(s->g[i]) >> 16);
        s->g[i] = float_of((uint32_t)s->g16[i] << 16);
        uint32_t b = bits_of(s->w[i]);
        s->lo[i] = (uint16_t)b, s->hi[i] = (uint16_t)((b >> 16) + (s->lo[i] >> 15));
    }
}

/* torch.optim.AdamW / Adam, one operation after the other, each result stored as fp32. */
static void by_the_book(spans *s, size_t n, const tm_adamw_opts *o, double lr, int t, double scale) {
    double bc1 = o->bias_correction ? 1 - pow(o->beta1, t) : 1, bc2 = o->bias_correction ? 1 - pow(o->beta2, t) : 1;
    float weight = (float)(1 - o->beta1), rest = (float)(1 - (1 - o->beta1));
    for (size_t i = 0; i < n; i++) {
        volatile float g = s->g[i] * (float)scale, w = s->w[i], m = s->m[i], v = s->v[i], a, b;
        if (o->adam_w_mode) {
            w = w * (float)(1 - lr * o->weight_decay);
        } else if (o->weight_decay != 0) {
            a = (float)o->weight_decay * w;
            g = g + a;
        }
        a = g - m; /* lerp_ */
        if (weight < 0.5f)
            b = weight * a, m = m + b;
        else
            b = a * rest, m = g - b;
        v = v * (float)o->beta2; /* mul_, addcmul_ */
        a = (float)(1 - o->beta2) * g;
        a = a * g;
        v = v + a;
        a = sqrtf(v); /* denom */
        a = a / (float)sqrt(bc2);
        a = a + (float)o->eps;
        b = (float)(-lr / bc1) * m; /* addcdiv_ */
        b = b / a;
        w = w + b;
        s->w[i] = w, s->m[i] = m, s->v[i] = v;
        uint32_t bits = bits_of(w);
        s->lo[i] = (uint16_t)bits, s->hi[i] = (uint16_t)((bits >> 16) + (s->lo[i] >> 15));
    }
}

static const tm_adamw_opts variants[] = {
    {0.9, 0.95, 1e-8, 0.1, true, true},    {0.9, 0.999, 1e-8, 0, true, true},  {0.9, 0.999, 1e-6, 0.01, false, true},
    {0.9, 0.999, 1e-8, 0.05, true, false}, {0.4, 0.99, 1e-8, 0.1, true, true}, {0.5, 0.9, 1e-10, 0.1, false, false},
};

static void rows_equal_the_formulas(void **state) {
    (void)state;
    spans start, want, got;
    spans_alloc(&start, N), spans_alloc(&want, N), spans_alloc(&got, N);
    test_rng r = {0};
    for (size_t k = 0; k < TM_COUNT(variants); k++) {
        spans_fill(&start, N, &r);
        int t = 1 + (int)k * 7;
        double lr = 1e-3 / (double)(1 + k), scale = k % 2 ? 0.37 : 1;
        spans_copy(&want, &start, N);
        by_the_book(&want, N, &variants[k], lr, t, scale);
        tm_adamw_step step;
        tm_adamw_step_init(&step, &variants[k], lr, t, scale);
        for (int isa = 0; isa < OPTIM_ISAS; isa++) {
            if (!optim_isa_available((optim_isa)isa)) continue;
            optim_isa_force((optim_isa)isa);
            spans_copy(&got, &start, N);
            assert_int_equal(tm_adamw_split(got.hi, got.lo, got.m, got.v, got.g16, N, &step), 0);
            spans_equal(&got, &want, N, true);
            spans_copy(&got, &start, N);
            assert_int_equal(tm_adamw_f32(got.w, got.m, got.v, got.g, N, &step), 0);
            spans_equal(&got, &want, N, false);
        }
    }
    optim_isa_force(OPTIM_ISAS);
    for (int isa = 0; isa < OPTIM_ISAS; isa++)
        if (!optim_isa_available((optim_isa)isa)) TEST_SKIP_PART("row %s: not on this CPU", optim_isa_name[isa]);
    spans_free(&start), spans_free(&want), spans_free(&got);
}

static void any_cut_gives_the_same_bits(void **state) {
    (void)state;
    enum { M = 200001 };
    spans start, whole, cut;
    spans_alloc(&start, M), spans_alloc(&whole, M), spans_alloc(&cut, M);
    test_rng r = {.counter = 1000};
    spans_fill(&start, M, &r);
    tm_adamw_step step;
    tm_adamw_step_init(&step, &variants[0], 1e-3, 3, 0.5);
    spans_copy(&whole, &start, M);
    assert_int_equal(tm_adamw_split(whole.hi, whole.lo, whole.m, whole.v, whole.g16, M, &step), 0);
    for (int trial = 0; trial < 20; trial++) {
        spans_copy(&cut, &start, M);
        for (size_t at = 0, n; at < M; at += n) {
            n = 1 + rng_u32(&r) % 40000;
            if (n > M - at) n = M - at;
            assert_int_equal(tm_adamw_split(cut.hi + at, cut.lo + at, cut.m + at, cut.v + at, cut.g16 + at, n, &step),
                             0);
        }
        spans_equal(&cut, &whole, M, true);
    }
    spans_free(&start), spans_free(&whole), spans_free(&cut);
}

/* Twenty steps with clipping and a warm-up against the same recurrences in double. */
static void follows_double_precision(void **state) {
    (void)state;
    enum { M = 4096, STEPS = 20 };
    const tm_adamw_opts o = variants[0];
    spans s;
    spans_alloc(&s, M);
    test_rng r = {.counter = 5000};
    double *w = malloc(M * 8), *m = calloc(M, 8), *v = calloc(M, 8), *w0 = malloc(M * 8);
    assert_true(w && m && v && w0);
    for (size_t i = 0; i < M; i++) {
        float x = rng_scaled(&r, -6, -3);
        w[i] = w0[i] = (double)x, s.m[i] = s.v[i] = 0;
        tm_split_f32(&x, &s.hi[i], &s.lo[i], 1);
    }
    for (int t = 1; t <= STEPS; t++) {
        double lr = 1e-3 * (t - 1) / STEPS, scale = t % 3 ? 1 : 0.2;
        for (size_t i = 0; i < M; i++) {
            s.g16[i] = (uint16_t)(bits_of(rng_scaled(&r, -10, -5)) >> 16);
            double g = (double)float_of((uint32_t)s.g16[i] << 16) * scale;
            w[i] -= lr * o.weight_decay * w[i];
            m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
            v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
            w[i] -= lr * (m[i] / (1 - pow(o.beta1, t))) / (sqrt(v[i] / (1 - pow(o.beta2, t))) + o.eps);
        }
        tm_adamw_step step;
        tm_adamw_step_init(&step, &o, lr, t, scale);
        assert_int_equal(tm_adamw_split(s.hi, s.lo, s.m, s.v, s.g16, M, &step), 0);
    }
    double err = 0, moved = 0;
    tm_join_f32(s.hi, s.lo, s.w, M);
    for (size_t i = 0; i < M; i++) err += pow((double)s.w[i] - w[i], 2), moved += pow(w[i] - w0[i], 2);
    print_message("update error relative to the update: %.2e\n", sqrt(err / moved));
    assert_true(sqrt(err / moved) < 1e-5); /* the fixtures allow 5e-4 */
    free(w), free(m), free(v), free(w0), spans_free(&s);
}

static void non_finite_results_are_counted(void **state) {
    (void)state;
    enum { M = 70000 };
    for (int isa = 0; isa < OPTIM_ISAS; isa++) {
        if (!optim_isa_available((optim_isa)isa)) continue;
        optim_isa_force((optim_isa)isa);
        spans s;
        spans_alloc(&s, M);
        for (size_t i = 0; i < M; i++) s.w[i] = 1, s.m[i] = s.v[i] = 0, s.g[i] = 1;
        s.g[0] = NAN, s.g[1] = INFINITY, s.w[40000] = -INFINITY, s.m[40001] = INFINITY, s.v[69999] = NAN;
        s.v[5] = -1; /* its root is NaN */
        tm_split_f32(s.w, s.hi, s.lo, M);
        for (size_t i = 0; i < M; i++) s.g16[i] = (uint16_t)(bits_of(s.g[i]) >> 16);
        spans c;
        spans_alloc(&c, M);
        spans_copy(&c, &s, M);
        tm_adamw_step step;
        tm_adamw_step_init(&step, &variants[0], 1e-3, 1, 1);
        assert_int_equal(tm_adamw_f32(s.w, s.m, s.v, s.g, M, &step), 6);
        assert_int_equal(tm_adamw_split(c.hi, c.lo, c.m, c.v, c.g16, M, &step), 6);
        spans_free(&s), spans_free(&c);
    }
    optim_isa_force(OPTIM_ISAS);
}

static void lr_zero_still_moves_the_moments(void **state) {
    (void)state;
    float w = 0.25f, m = 0, v = 0, g = 0.5f;
    tm_adamw_step step;
    tm_adamw_step_init(&step, &variants[0], 0, 1, 1);
    assert_int_equal(tm_adamw_f32(&w, &m, &v, &g, 1, &step), 0);
    assert_true(w == 0.25f && m > 0.0499f && m < 0.0501f && v > 0.0124f && v < 0.0126f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_the_formulas), cmocka_unit_test(any_cut_gives_the_same_bits),
        cmocka_unit_test(follows_double_precision), cmocka_unit_test(non_finite_results_are_counted),
        cmocka_unit_test(lr_zero_still_moves_the_moments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

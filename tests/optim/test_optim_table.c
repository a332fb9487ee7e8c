/* The table: every row of every optimizer, in all four forms, bit-equal to the formulas written out here; any cut of a
 * span; odd sizes and addresses; non-finite results; options by name; 8-bit codes against a search of all of them. */
#include "world.h"
#include "tests/support/skip.h"

enum { N = 20000 + 77, BLOCKS = (N + 255) / 256 };

/* ---- spans that hold a problem in every form ------------------------------------------------- */

typedef struct problem {
    float *w, *g, *s0, *s1; /* g holds bf16 values */
    uint16_t *hi, *lo, *g16;
    uint8_t *q0, *q1;
    float *absmax0, *absmax1;
} problem;
enum { FORMS = 4, SPLIT = 1, BF16 = 2 };

static problem problem_alloc(void) {
    problem p = {malloc(N * 4), malloc(N * 4), malloc(N * 4), malloc(N * 4),      malloc(N * 2),     malloc(N * 2),
                 malloc(N * 2), malloc(N),     malloc(N),     malloc(BLOCKS * 4), malloc(BLOCKS * 4)};
    assert_true(p.w && p.g && p.s0 && p.s1 && p.hi && p.lo && p.g16 && p.q0 && p.q1 && p.absmax0 && p.absmax1);
    return p;
}
/* Second moments, and Adagrad's sums, are not negative. */
static problem problem_new(test_rng *r, const char *optimizer) {
    problem p = problem_alloc();
    for (size_t i = 0; i < N; i++) {
        bool odd = rng_u32(r) % 16 == 0, none = rng_u32(r) % 16 == 0;
        p.w[i] = odd ? rng_scaled(r, -140, 40) : rng_scaled(r, -8, 0);
        p.g[i] = none ? 0 : odd ? rng_scaled(r, -140, 30) : rng_scaled(r, -14, -4);
        p.s0[i] = none ? 0 : odd ? rng_scaled(r, -140, 30) : rng_scaled(r, -14, -6);
        if (!strcmp(optimizer, "adagrad")) p.s0[i] = fabsf(p.s0[i]);
        p.s1[i] = none ? 0 : fabsf(rng_scaled(r, -28, -12));
        p.g16[i] = (uint16_t)(bits_of(p.g[i]) >> 16);
        p.g[i] = float_of((uint32_t)p.g16[i] << 16);
        p.q0[i] = (uint8_t)rng_u32(r), p.q1[i] = (uint8_t)rng_u32(r);
    }
    for (size_t b = 0; b < BLOCKS; b++) {
        p.absmax0[b] = b % 9 ? fabsf(rng_scaled(r, -12, -4)) : 0;
        p.absmax1[b] = b % 9 ? fabsf(rng_scaled(r, -24, -10)) : 0;
    }
    tm_split_f32(p.w, p.hi, p.lo, N);
    return p;
}
static void problem_free(problem *p) {
    free(p->w), free(p->g), free(p->s0), free(p->s1), free(p->hi), free(p->lo), free(p->g16);
    free(p->q0), free(p->q1), free(p->absmax0), free(p->absmax1);
}
static problem problem_copy(const problem *from) {
    problem p = problem_alloc();
    memcpy(p.w, from->w, N * 4), memcpy(p.g, from->g, N * 4), memcpy(p.s0, from->s0, N * 4);
    memcpy(p.s1, from->s1, N * 4), memcpy(p.hi, from->hi, N * 2), memcpy(p.lo, from->lo, N * 2);
    memcpy(p.g16, from->g16, N * 2), memcpy(p.q0, from->q0, N), memcpy(p.q1, from->q1, N);
    memcpy(p.absmax0, from->absmax0, BLOCKS * 4), memcpy(p.absmax1, from->absmax1, BLOCKS * 4);
    return p;
}
static bool is_8bit(const tm_optimizer *o) {
    return o->grain > 1;
}
static tm_optim_span span_of(const tm_optimizer *o, problem *p, int form, size_t at, size_t n) {
    bool split = form & SPLIT;
    tm_optim_span x = {.weight = split ? NULL : p->w + at,
                       .weight_hi = split ? p->hi + at : NULL,
                       .weight_lo = split ? p->lo + at : NULL,
                       .grad = form & BF16 ? (void *)(p->g16 + at) : (void *)(p->g + at),
                       .grad_type = form & BF16 ? TM_GRAD_BF16 : TM_GRAD_F32,
                       .state = {p->s0 + at, p->s1 + at},
                       .first = at,
                       .n = n};
    if (!is_8bit(o)) return x;
    x.state[0] = p->q0 + at, x.state[1] = p->q1 + at;
    x.state[2] = p->absmax0 + at / 256, x.state[3] = p->absmax1 + at / 256;
    return x;
}
/* States and weights of two problems; `form` says where got's weights are. Want's are fp32. */
static void problems_equal(const tm_optimizer *o, const problem *got, const problem *want, int form) {
    float *w = malloc(N * 4);
    assert_non_null(w);
    memcpy(w, got->w, N * 4);
    if (form & SPLIT) tm_join_f32(got->hi, got->lo, w, N);
    assert_memory_equal(w, want->w, N * 4);
    free(w);
    if (is_8bit(o)) {
        assert_memory_equal(got->q0, want->q0, N);
        assert_memory_equal(got->q1, want->q1, N);
        assert_memory_equal(got->absmax0, want->absmax0, BLOCKS * 4);
        assert_memory_equal(got->absmax1, want->absmax1, BLOCKS * 4);
    } else {
        assert_memory_equal(got->s0, want->s0, N * 4);
        assert_memory_equal(got->s1, want->s1, N * 4);
    }
}

/* ---- the formulas, one rounding an operation -------------------------------------------------- */

typedef struct recipe {
    const char *name;
    tm_optim_opts o;
    int64_t t;
} recipe;
static const recipe recipes[] = {
    {"adamw",
     {.beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .adam_w_mode = true, .bias_correction = true},
     1},
    {"adamw", {.beta1 = .3, .beta2 = .99, .eps = 1e-6, .weight_decay = .1, .adam_w_mode = true}, 5},
    {"adam", {.beta1 = .9, .beta2 = .999, .eps = 1e-8, .weight_decay = .1, .bias_correction = true}, 2},
    {"adam", {.beta1 = .2, .beta2 = .999, .eps = 1e-8, .weight_decay = .1, .bias_correction = true}, 2},
    {"adamw_8bit",
     {.beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .adam_w_mode = true, .bias_correction = true},
     3},
    {"adam_8bit", {.beta1 = .9, .beta2 = .999, .eps = 1e-8, .weight_decay = .1, .bias_correction = true}, 9},
    {"sgd", {.weight_decay = .01}, 3},
    {"sgd", {.momentum = .9, .dampening = .2}, 1},
    {"sgd", {.momentum = .9, .dampening = .2, .weight_decay = .3}, 2},
    {"sgd", {.momentum = .8, .nesterov = true}, 7},
    {"lion", {.beta1 = .9, .beta2 = .99, .weight_decay = .1}, 1},
    {"adagrad", {.eps = 1e-10, .weight_decay = .1, .lr_decay = .5}, 3},
};
static const double rate = 3e-3, scale = .37;

typedef volatile float vf;

static float book_adam(float w_, float *m_, float *v_, float g_, const recipe *r) {
    const tm_optim_opts *o = &r->o;
    double bc1 = o->bias_correction ? 1 - pow(o->beta1, (double)r->t) : 1;
    double bc2 = o->bias_correction ? 1 - pow(o->beta2, (double)r->t) : 1;
    vf w = w_, m = *m_, v = *v_, g = g_, a, b;
    if (o->adam_w_mode) w = w * (float)(1 - rate * o->weight_decay);
    if (!o->adam_w_mode) a = (float)o->weight_decay * w, g = g + a;
    a = g - m;
    if (1 - o->beta1 < 0.5) b = (float)(1 - o->beta1) * a, m = m + b;
    if (1 - o->beta1 >= 0.5) b = a * (float)(1 - (1 - o->beta1)), m = g - b;
    v = v * (float)o->beta2, a = (float)(1 - o->beta2) * g, a = a * g, v = v + a;
    a = sqrtf(v), a = a / (float)sqrt(bc2), a = a + (float)o->eps;
    b = (float)(-rate / bc1) * m, b = b / a, w = w + b;
    *m_ = m, *v_ = v;
    return w;
}
static float book_sgd(float w_, float *b_, float g_, const recipe *r) {
    const tm_optim_opts *o = &r->o;
    vf w = w_, g = g_, b = *b_, a;
    a = (float)o->weight_decay * w, g = g + a;
    if (o->momentum != 0) {
        bool first = r->t == 1; /* the buffer becomes the gradient */
        a = (first ? 1 : (float)(1 - o->dampening)) * g, b = b * (first ? 0 : (float)o->momentum), b = b + a;
        *b_ = b;
        a = (float)o->momentum * b;
        if (o->nesterov)
            g = g + a;
        else
            g = b;
    }
    a = (float)-rate * g;
    return w + a;
}
static float book_lion(float w_, float *m_, float g_, const recipe *r) {
    const tm_optim_opts *o = &r->o;
    vf w = w_, m = *m_, g = g_, a, c;
    c = m * (float)o->beta1, a = (float)(1 - o->beta1) * g, c = c + a;
    m = m * (float)o->beta2, a = (float)(1 - o->beta2) * g, m = m + a;
    w = w * (float)(1 - rate * o->weight_decay);
    if (c > 0) w = w - (float)rate;
    if (c < 0) w = w + (float)rate;
    *m_ = m;
    return w;
}
static float book_adagrad(float w_, float *s_, float g_, const recipe *r) {
    const tm_optim_opts *o = &r->o;
    vf w = w_, s = *s_, g = g_, a, b;
    a = (float)o->weight_decay * w, g = g + a;
    a = g * g, s = s + a;
    a = sqrtf(s), a = a + (float)o->eps;
    b = (float)(-rate / (1 + (double)(r->t - 1) * o->lr_decay)) * g, b = b / a;
    *s_ = s;
    return w + b;
}

static uint8_t book_code(const float *code, float x) {
    int below = 0;
    while (below < 255 && (code[below] + code[below + 1]) / 2 < x) below++;
    return (uint8_t)below;
}
static void book_narrow(const float *x, uint8_t *q, float *absmax, size_t n, bool sign) {
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    volatile float inverse = 1.0f / (most > 1e-38f ? most : 1e-38f);
    for (size_t i = 0; i < n; i++) {
        volatile float scaled = x[i] * inverse;
        q[i] = book_code(optim_codes(sign), scaled);
    }
    *absmax = most;
}

static void by_the_book(problem *p, const recipe *r) {
    bool quantised = strstr(r->name, "8bit");
    for (size_t i = 0; i < N; i++) {
        volatile float g = p->g[i] * (float)scale;
        float m = p->s0[i], v = p->s1[i];
        if (quantised) m = optim_codes(true)[p->q0[i]] * p->absmax0[i / 256];
        if (quantised) v = optim_codes(false)[p->q1[i]] * p->absmax1[i / 256];
        if (!strncmp(r->name, "adam", 4)) p->w[i] = book_adam(p->w[i], &m, &v, g, r);
        if (!strcmp(r->name, "sgd")) p->w[i] = book_sgd(p->w[i], &m, g, r);
        if (!strcmp(r->name, "lion")) p->w[i] = book_lion(p->w[i], &m, g, r);
        if (!strcmp(r->name, "adagrad")) p->w[i] = book_adagrad(p->w[i], &m, g, r);
        p->s0[i] = m, p->s1[i] = v;
    }
    for (size_t at = 0; quantised && at < N; at += 256) {
        size_t n = N - at < 256 ? N - at : 256;
        book_narrow(p->s0 + at, p->q0 + at, p->absmax0 + at / 256, n, true);
        book_narrow(p->s1 + at, p->q1 + at, p->absmax1 + at / 256, n, false);
    }
}

static void every_row_and_form_equals_the_formulas(void **state) {
    (void)state;
    test_rng r = {.counter = 77};
    for (size_t k = 0; k < TM_COUNT(recipes); k++) {
        const tm_optimizer *o = tm_optimizer_find(recipes[k].name);
        tm_optim_step step;
        tm_optim_step_init(&step, o, &recipes[k].o, rate, recipes[k].t, scale);
        problem start = problem_new(&r, o->name), want = problem_copy(&start);
        by_the_book(&want, &recipes[k]);
        for (int isa = 0; isa < OPTIM_ISAS; isa++) {
            if (!optim_isa_available((optim_isa)isa)) continue;
            optim_isa_force((optim_isa)isa);
            for (int form = 0; form < FORMS; form++) {
                problem got = problem_copy(&start);
                tm_optim_span x = span_of(o, &got, form, 0, N);
                uint64_t bad = tm_optim_run(&step, &x);
                if (bad)
                    fail_msg("%s, t %d, form %d: %d values are not finite", o->name, (int)recipes[k].t, form, (int)bad);
                problems_equal(o, &got, &want, form);
                problem_free(&got);
            }
        }
        problem_free(&start), problem_free(&want);
    }
    optim_isa_force(OPTIM_ISAS);
    for (int isa = 0; isa < OPTIM_ISAS; isa++)
        if (!optim_isa_available((optim_isa)isa)) TEST_SKIP_PART("row %s: not on this CPU", optim_isa_name[isa]);
}

static void any_cut_gives_the_same_bits(void **state) {
    (void)state;
    test_rng r = {.counter = 4000};
    for (size_t k = 0; k < TM_COUNT(recipes); k++) {
        const tm_optimizer *o = tm_optimizer_find(recipes[k].name);
        tm_optim_step step;
        tm_optim_step_init(&step, o, &recipes[k].o, rate, recipes[k].t, scale);
        problem start = problem_new(&r, o->name);
        for (int form = 0; form < FORMS; form++) {
            problem whole = problem_copy(&start), cut = problem_copy(&start);
            tm_optim_span x = span_of(o, &whole, form, 0, N);
            assert_int_equal(tm_optim_run(&step, &x), 0);
            for (size_t at = 0, n; at < N; at += n) { /* every address and size, nothing included */
                n = rng_u32(&r) % 3000 / o->grain * o->grain;
                if (n > N - at) n = N - at;
                x = span_of(o, &cut, form, at, n);
                assert_int_equal(tm_optim_run(&step, &x), 0);
                if (N - at < o->grain) break;
            }
            if (form & SPLIT) tm_join_f32(whole.hi, whole.lo, whole.w, N);
            problems_equal(o, &cut, &whole, form);
            problem_free(&whole), problem_free(&cut);
        }
        problem_free(&start);
    }
}

/* ---- what is not finite ----------------------------------------------------------------------- */

static void non_finite_results_are_counted(void **state) {
    (void)state;
    test_rng r = {.counter = 900};
    for (size_t k = 0; k < TM_COUNT(recipes); k++) {
        const tm_optimizer *o = tm_optimizer_find(recipes[k].name);
        tm_optim_step step;
        tm_optim_step_init(&step, o, &recipes[k].o, rate, recipes[k].t, scale);
        for (int form = 0; form < FORMS; form++) {
            problem p = problem_new(&r, o->name);
            p.g[3] = NAN, p.g[17000] = INFINITY, p.g[N - 1] = -INFINITY, p.w[9000] = NAN, p.w[9001] = INFINITY;
            for (size_t i = 0; i < N; i++) p.g16[i] = (uint16_t)(bits_of(p.g[i]) >> 16);
            tm_split_f32(p.w, p.hi, p.lo, N);
            tm_optim_span x = span_of(o, &p, form, 0, N);
            assert_int_equal(tm_optim_run(&step, &x), 5);
            problem_free(&p);
        }
    }
}

/* ---- fp16 -------------------------------------------------------------------------------------- */

/* Gradients and weights that fp16 has; g16 holds them as fp16. */
static problem half_problem(test_rng *r, const char *optimizer) {
    problem p = problem_new(r, optimizer);
    for (size_t i = 0; i < N; i++) {
        if (fabsf(p.w[i]) > 1e3f) p.w[i] = rng_scaled(r, -30, 9);
        if (fabsf(p.s0[i]) > 0x1p-8f) p.s0[i] = fabsf(rng_scaled(r, -14, -8)); /* no step takes a weight too far */
        p.g16[i] = half_nearest(rng_u32(r) % 8 ? rng_scaled(r, -14, 10) : rng_scaled(r, -26, -14));
        p.g[i] = (float)half_value(p.g16[i]);
    }
    return p;
}
static tm_optim_span half_span(const tm_optimizer *o, problem *p, bool f16, size_t at, size_t n) {
    tm_optim_span x = span_of(o, p, 0, at, n);
    x.weight_hi = p->hi + at;
    if (f16) x.grad = p->g16 + at, x.grad_type = TM_GRAD_F16;
    return x;
}

/* The bits of fp32 weights without a copy, whatever row and cut; and the copy is the nearest half of each. */
static void fp16_copies_follow_the_masters(void **state) {
    (void)state;
    test_rng r = {.counter = 6000};
    for (size_t k = 0; k < TM_COUNT(recipes); k++) {
        const tm_optimizer *o = tm_optimizer_find(recipes[k].name);
        tm_optim_step step;
        tm_optim_step_init(&step, o, &recipes[k].o, rate, recipes[k].t, scale);
        problem start = half_problem(&r, o->name), want = problem_copy(&start);
        by_the_book(&want, &recipes[k]);
        for (int isa = 0; isa < OPTIM_ISAS; isa++) {
            if (!optim_isa_available((optim_isa)isa)) continue;
            optim_isa_force((optim_isa)isa);
            for (int f16 = 0; f16 < 2; f16++) {
                problem got = problem_copy(&start);
                memset(got.hi, 0xff, N * 2);
                for (size_t at = 0, n; at < N; at += n) {
                    n = (rng_u32(&r) % 9000 / 256 + 1) * 256;
                    if (n > N - at) n = N - at;
                    tm_optim_span x = half_span(o, &got, f16, at, n);
                    assert_int_equal(tm_optim_run(&step, &x), 0);
                }
                problems_equal(o, &got, &want, 0);
                for (size_t i = 0; i < N; i++) assert_int_equal(got.hi[i], half_nearest(got.w[i]));
                problem_free(&got);
            }
        }
        problem_free(&start), problem_free(&want);
    }
    optim_isa_force(OPTIM_ISAS);
}

/* A weight that is finite but infinite as fp16 is counted like one that is not finite, once. */
static void weights_too_large_for_fp16_are_counted(void **state) {
    (void)state;
    test_rng r = {.counter = 6500};
    for (size_t k = 0; k < TM_COUNT(recipes); k++) {
        const tm_optimizer *o = tm_optimizer_find(recipes[k].name);
        tm_optim_step step;
        tm_optim_step_init(&step, o, &recipes[k].o, rate, recipes[k].t, scale);
        problem p = half_problem(&r, o->name);
        p.w[7] = 1e6f, p.w[16500] = -1e9f, p.w[N - 1] = INFINITY, p.g16[N - 2] = 0x7e00, p.w[100] = 6e4f;
        tm_optim_span x = half_span(o, &p, true, 0, N);
        assert_int_equal(tm_optim_run(&step, &x), 4);
        assert_true(p.hi[7] == 0x7c00 && p.hi[16500] == 0xfc00 && (p.hi[100] & 0x7c00) != 0x7c00);
        problem_free(&p);
    }
}

/* ---- 8-bit codes ------------------------------------------------------------------------------ */

/* Around every midpoint and over random patterns: the code is the one that a search of all 255 midpoints finds. */
static void codes_are_the_nearest(void **state) {
    (void)state;
    test_rng r = {.counter = 31};
    for (int sign = 0; sign < 2; sign++) {
        const float *code = optim_codes(sign);
        for (int i = 0; i < 255; i++) {
            float x = (code[i] + code[i + 1]) / 2;
            float near[] = {nextafterf(x, -2), x, nextafterf(x, 2), code[i], code[i + 1]};
            for (size_t j = 0; j < TM_COUNT(near); j++)
                if (sign || near[j] >= 0) assert_int_equal(optim_nearest_code(sign, near[j]), book_code(code, near[j]));
        }
        for (int i = 0; i < 200000; i++) {
            float x = rng_scaled(&r, -26, 0);
            if (!sign) x = fabsf(x);
            assert_int_equal(optim_nearest_code(sign, x), book_code(code, x));
        }
        assert_int_equal(optim_nearest_code(sign, 0), book_code(code, 0));
        assert_int_equal(optim_nearest_code(sign, 1.0000001f), 255);
        assert_int_equal(optim_nearest_code(sign, 1e-45f), book_code(code, 1e-45f));
    }
}

/* ---- options, states -------------------------------------------------------------------------- */

static void the_table_is_whole(void **state) {
    (void)state;
    size_t n = 0;
    for (const tm_optimizer *o; (o = tm_optimizer_at(n)); n++) {
        tm_optim_opts opts;
        assert_ptr_equal(tm_optimizer_find(o->name), o);
        tm_optim_defaults(o, &opts);
        if (tm_optim_check(o, &opts)) fail_msg("%s: defaults: %s", o->name, tm_optim_check(o, &opts));
        char keys[256];
        assert_true(snprintf(keys, sizeof keys, "%s", o->keys) < (int)sizeof keys);
        for (char *key = strtok(keys, " "); key; key = strtok(NULL, " "))
            if (!tm_optim_set(o, &opts, key, 0)) fail_msg("%s: no option %s", o->name, key);
        assert_false(tm_optim_set(o, &opts, "learning_rat", 1));
        assert_false(tm_optim_set(o, &opts, "", 1));
        assert_false(tm_optim_set(o, &opts, "beta1 beta2", 1));
    }
    assert_int_equal(n, 8);
    assert_null(tm_optimizer_find("adamax"));
}

static void options_are_checked(void **state) {
    (void)state;
    const tm_optimizer *adamw = tm_optimizer_find("adamw"), *sgd = tm_optimizer_find("sgd");
    tm_optim_opts o;
    tm_optim_defaults(adamw, &o);
    assert_true(tm_optim_set(adamw, &o, "beta1", 0.7) && o.beta1 == 0.7);
    assert_true(tm_optim_set(adamw, &o, "adam_w_mode", 0) && !o.adam_w_mode);
    assert_false(tm_optim_set(adamw, &o, "momentum", 0.9));
    assert_null(tm_optim_check(adamw, &o));
    o.beta2 = 1;
    assert_string_equal(tm_optim_check(adamw, &o), "beta2 must be at least 0 and less than 1");
    o.beta2 = NAN;
    assert_non_null(tm_optim_check(adamw, &o));
    tm_optim_defaults(sgd, &o);
    o.beta2 = NAN; /* not an option of sgd */
    assert_null(tm_optim_check(sgd, &o));
    assert_true(tm_optim_set(sgd, &o, "nesterov", 1));
    assert_non_null(tm_optim_check(sgd, &o));
    o.momentum = 0.9;
    assert_null(tm_optim_check(sgd, &o));
}

static void states_have_their_sizes(void **state) {
    (void)state;
    const struct {
        const char *name;
        tm_optim_shape shape;
        size_t bytes[TM_OPTIM_STATES];
    } cases[] = {
        {"adamw", {1, 10, 30}, {1200, 1200}},
        {"adamw_8bit", {1, 10, 30}, {300, 300, 8, 8}},
        {"adamw_8bit", {1, 0, 256}, {256, 256, 4, 4}},
        {"sgd", {1, 0, 7}, {0}},
        {"lion", {1, 0, 7}, {28}},
        {"adagrad", {1, 0, 0}, {0}},
        {"adafactor", {1, 10, 30}, {0, 40, 120, 0}},
        {"adafactor", {1, 0, 30}, {0, 0, 0, 120}},
        {"adafactor", {4, 10, 30}, {0, 160, 480, 0}},
    };
    for (size_t c = 0; c < TM_COUNT(cases); c++) {
        const tm_optimizer *o = tm_optimizer_find(cases[c].name);
        tm_optim_opts opts;
        tm_optim_defaults(o, &opts);
        for (uint32_t k = 0; k < TM_OPTIM_STATES; k++)
            assert_int_equal(tm_optim_state_bytes(o, &opts, k, &cases[c].shape), cases[c].bytes[k]);
    }
    const tm_optimizer *sgd = tm_optimizer_find("sgd"), *adafactor = tm_optimizer_find("adafactor");
    tm_optim_opts opts = {.momentum = 0.5, .beta1 = 0.9};
    assert_int_equal(tm_optim_state_bytes(sgd, &opts, 0, &(tm_optim_shape){1, 0, 7}), 28);
    assert_int_equal(tm_optim_state_bytes(adafactor, &opts, 0, &(tm_optim_shape){1, 2, 7}), 56);
    assert_int_equal(tm_optim_sizeof("tm_optim_span"), sizeof(tm_optim_span));
    assert_int_equal(tm_optim_sizeof("tm_nothing"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_and_form_equals_the_formulas),
        cmocka_unit_test(any_cut_gives_the_same_bits),
        cmocka_unit_test(non_finite_results_are_counted),
        cmocka_unit_test(fp16_copies_follow_the_masters),
        cmocka_unit_test(weights_too_large_for_fp16_are_counted),
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(states_have_their_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

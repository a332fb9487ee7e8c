/* Against the libraries: trajectories of torch, DeepSpeed and transformers (tests/fixtures/optim/make_optim.py), 8-bit
 * states of bitsandbytes, loss scales of DeepSpeed; and Adafactor's passes over any cut. */
#include "world.h"

#include "tests/model/safetensors_file.h"

enum { N = 300, FORMS = 4, SPLIT = 1, BF16 = 2 };

static const float *tensor(const st_file *f, const char *name) {
    const tm_json *t = tm_json_get(tm_json_root(f->doc), name);
    assert_non_null(t);
    return (const float *)(const void *)(f->data + tm_json_get(t, "data_offsets")->child->integer);
}

/* ---- trajectories ----------------------------------------------------------------------------- */

typedef struct trial {
    const tm_optimizer *optimizer;
    tm_optim_opts opts;
    tm_optim_shape shape;
    double lr;
    float w[N], state[TM_OPTIM_STATES][N];
    uint16_t hi[N], lo[N];
    double scratch[5 * N];
} trial;

static void trial_init(trial *t, const tm_json *c, const float *start) {
    memset(t, 0, sizeof *t);
    t->optimizer = tm_optimizer_find(tm_json_get(c, "optimizer")->text);
    assert_non_null(t->optimizer);
    tm_optim_defaults(t->optimizer, &t->opts);
    for (const tm_json *o = tm_json_get(c, "options")->child; o; o = o->next)
        if (!tm_optim_set(t->optimizer, &t->opts, o->key, o->number)) fail_msg("no option %s", o->key);
    assert_null(tm_optim_check(t->optimizer, &t->opts));
    t->lr = tm_json_get(c, "learning_rate")->number;
    uint64_t d[3], n = 0;
    for (const tm_json *x = tm_json_get(c, "shape")->child; x; x = x->next) d[n++] = (uint64_t)x->integer;
    t->shape = n == 1   ? (tm_optim_shape){1, 0, d[0]}
               : n == 2 ? (tm_optim_shape){1, d[0], d[1]}
                        : (tm_optim_shape){d[0], d[1], d[2]};
    assert_int_equal(tm_optim_elements(&t->shape), N);
    assert_true(tm_optim_scratch_bytes(t->optimizer, &t->shape) <= sizeof t->scratch);
    memcpy(t->w, start, sizeof t->w);
    for (int i = 0; i < N; i++) t->state[0][i] = (float)t->opts.initial_accumulator_value;
    tm_split_f32(t->w, t->hi, t->lo, N);
}

static tm_optim_span span_of(trial *t, const float *g, int form, size_t at, size_t n) {
    bool split = form & SPLIT, bf16 = form & BF16;
    tm_optim_span x = {.weight = split ? NULL : t->w + at,
                       .weight_hi = t->hi + at,
                       .weight_lo = t->lo + at,
                       .grad = bf16 ? (const void *)((const uint16_t *)(const void *)g + at) : g + at,
                       .grad_type = bf16 ? TM_GRAD_BF16 : TM_GRAD_F32,
                       .first = at,
                       .n = n};
    for (int k = 0; k < TM_OPTIM_STATES; k++) x.state[k] = t->state[k] + at;
    return x;
}

/* One step, in pieces of `most` elements or fewer; the gradient comes four times too large. */
static void take_step(trial *t, const float *gradient, int64_t number, int form, test_rng *cut) {
    float g[N];
    uint16_t g16[N];
    tm_optim_step step;
    tm_optim_tensor whole = {.shape = t->shape, .scratch = t->scratch};
    for (int k = 0; k < TM_OPTIM_STATES; k++) whole.state[k] = t->state[k];
    for (int i = 0; i < N; i++) g[i] = gradient[i] * 4;
    if (form & BF16) tm_grad_round_bf16(g, g16, N);
    tm_optim_step_init(&step, t->optimizer, &t->opts, t->lr, number, 0.25);
    tm_optim_begin(&step, &whole);
    for (uint32_t pass = 0; pass < t->optimizer->passes; pass++) {
        for (size_t at = 0, n; at < N; at += n) {
            n = cut ? 1 + rng_u32(cut) % 70 : N;
            if (n > N - at) n = N - at;
            tm_optim_span x = span_of(t, form & BF16 ? (const float *)(void *)g16 : g, form, at, n);
            assert_int_equal(tm_optim_pass(&step, &whole, pass, &x), 0);
        }
        tm_optim_turn(&step, &whole, pass);
    }
    if (form & SPLIT) tm_join_f32(t->hi, t->lo, t->w, N);
}

static char *read_json(const char *path, tm_json_doc **doc) {
    size_t len;
    char *text = read_text(path, &len);
    assert_int_equal(tm_json_parse(doc, text, len, path, 0, 0), TM_OK);
    return text;
}

/* The error against the library's weights, relative to how far they moved. */
static void follows_the_libraries(void **state) {
    (void)state;
    tm_json_doc *doc;
    char *text = read_json(TM_TEST_FIXTURES "/optim/golden.json", &doc);
    st_file f = st_open(TM_TEST_FIXTURES "/optim/golden.safetensors");
    const float *start = tensor(&f, "start"), *gradients = tensor(&f, "gradients");
    int64_t steps = tm_json_get(tm_json_root(doc), "steps")->integer;
    int cases = 0;
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "cases")->child; c; c = c->next, cases++) {
        const char *name = tm_json_get(c, "name")->text;
        const float *want = tensor(&f, name);
        trial t;
        trial_init(&t, c, start);
        double worst = 0;
        for (int64_t s = 0; s < steps; s++, want += N) {
            take_step(&t, gradients + s * N, s + 1, 0, NULL);
            double err = 0, moved = 0;
            for (int i = 0; i < N; i++) err += pow((double)t.w[i] - (double)want[i], 2);
            for (int i = 0; i < N; i++) moved += pow((double)want[i] - (double)start[i], 2);
            assert_true(moved > 0);
            worst = fmax(worst, sqrt(err / moved));
        }
        if (!(worst < 2e-5)) fail_msg("%s: off by %.2e of the way", name, worst);
        print_message("%-30s %.1e\n", name, worst);
    }
    assert_int_equal(cases, 18);
    tm_json_free(doc), tm_free(text), st_close(&f);
}

/* fp32 weights have an fp16 copy here. */
static void copy_is_the_nearest_half(const trial *t, int form) {
    uint16_t want[N];
    if (form & SPLIT) return;
    tm_grad_round_f16(t->w, want, N);
    assert_memory_equal(t->hi, want, sizeof want);
}

/* All optimizers, Adafactor above all: fp32 and split weights agree, so do rows of the table, and spans may be cut
 * anywhere. */
static void any_form_and_cut_gives_the_same_bits(void **state) {
    (void)state;
    tm_json_doc *doc;
    char *text = read_json(TM_TEST_FIXTURES "/optim/golden.json", &doc);
    st_file f = st_open(TM_TEST_FIXTURES "/optim/golden.safetensors");
    const float *start = tensor(&f, "start"), *gradients = tensor(&f, "gradients");
    test_rng r = {.counter = 5};
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "cases")->child; c; c = c->next)
        for (int form = 0; form < FORMS; form += BF16)
            for (int split = 0; split < 2; split++) {
                trial a, b;
                trial_init(&a, c, start), trial_init(&b, c, start);
                for (int64_t s = 0; s < 3; s++) {
                    optim_isa_force(OPTIM_REF);
                    take_step(&a, gradients + s * N, s + 1, form, NULL);
                    optim_isa_force(OPTIM_ISAS);
                    take_step(&b, gradients + s * N, s + 1, form | split, &r);
                    assert_memory_equal(a.w, b.w, sizeof a.w);
                    assert_memory_equal(a.state, b.state, sizeof a.state);
                    copy_is_the_nearest_half(&a, form), copy_is_the_nearest_half(&b, form | split);
                }
            }
    tm_json_free(doc), tm_free(text), st_close(&f);
}

/* A tensor large enough for threads, stripes and all: the cut still changes nothing. */
static void large_tensors_in_passes(void **state) {
    (void)state;
    enum { ROWS = 61, COLUMNS = 1111, ALL = ROWS * COLUMNS };
    float *w[2], *g = malloc(ALL * 4), row[2][ROWS] = {{0}}, column[2][COLUMNS] = {{0}};
    test_rng r = {.counter = 60};
    const tm_optimizer *o = tm_optimizer_find("adafactor");
    tm_optim_opts opts;
    tm_optim_defaults(o, &opts);
    for (int i = 0; i < 2; i++) assert_non_null(w[i] = malloc(ALL * 4));
    assert_non_null(g);
    for (int i = 0; i < ALL; i++) w[0][i] = w[1][i] = rng_scaled(&r, -6, -2), g[i] = rng_scaled(&r, -16, -5);
    for (int i = 0; i < 2; i++) {
        const tm_optim_shape shape = {1, ROWS, COLUMNS};
        tm_optim_tensor t = {.shape = shape, .state = {NULL, row[i], column[i], NULL}};
        t.scratch = malloc(tm_optim_scratch_bytes(o, &shape));
        assert_non_null(t.scratch);
        assert_true(tm_optim_sum_count(o, &shape) * 8 <= tm_optim_scratch_bytes(o, &shape));
        tm_optim_step step;
        tm_optim_step_init(&step, o, &opts, 0, 4, 1);
        tm_optim_begin(&step, &t);
        for (uint32_t pass = 0; pass < o->passes; pass++) {
            for (size_t at = 0, n; at < ALL; at += n) {
                n = i ? 1 + rng_u32(&r) % 30000 : ALL;
                if (n > ALL - at) n = ALL - at;
                tm_optim_span x = {.weight = w[i] + at, .grad = g + at, .first = at, .n = n};
                assert_int_equal(tm_optim_pass(&step, &t, pass, &x), 0);
            }
            tm_optim_turn(&step, &t, pass);
        }
        free(t.scratch);
    }
    assert_memory_equal(w[0], w[1], ALL * 4);
    assert_memory_equal(row[0], row[1], sizeof row[0]);
    assert_memory_equal(column[0], column[1], sizeof column[0]);
    free(w[0]), free(w[1]), free(g);
}

/* ---- bitsandbytes ----------------------------------------------------------------------------- */

enum { M = 4440, BLOCKS = (M + 255) / 256, STEPS_8BIT = 5 };
typedef struct eight {
    float w[M], absmax[2][BLOCKS];
    uint8_t code[2][M];
} eight;

static const float *stepped(const st_file *f, const char *what, int step) {
    char name[64];
    snprintf(name, sizeof name, step ? "%s.1.step%d" : "%s.1.init", what, step);
    return tensor(f, name);
}
static void load_8bit(eight *e, const st_file *f, int step) {
    memset(e, 0, sizeof *e);
    memcpy(e->w, stepped(f, "param", step), sizeof e->w);
    for (int k = 0; k < 2 && step; k++) {
        memcpy(e->code[k], stepped(f, k ? "state2" : "state1", step), M);
        memcpy(e->absmax[k], stepped(f, k ? "absmax2" : "absmax1", step), BLOCKS * 4);
    }
}

static void equals_bitsandbytes(void **state) {
    (void)state;
    st_file f = st_open(TM_TEST_FIXTURES "/optim/adam8bit.safetensors");
    assert_memory_equal(optim_codes(true), tensor(&f, "qmap1"), 1024);
    assert_memory_equal(optim_codes(false), tensor(&f, "qmap2"), 1024);
    const tm_optimizer *o = tm_optimizer_find("adamw_8bit");
    tm_optim_opts opts;
    tm_optim_defaults(o, &opts);
    opts.beta2 = 0.95, opts.weight_decay = 0.1;
    int codes_off = 0;
    for (int t = 1; t <= STEPS_8BIT; t++) {
        eight got, want;
        load_8bit(&got, &f, t - 1), load_8bit(&want, &f, t);
        tm_optim_step step;
        tm_optim_step_init(&step, o, &opts, 1e-3, t, 1);
        tm_optim_span x = {.weight = got.w,
                           .grad = stepped(&f, "grad", t),
                           .state = {got.code[0], got.code[1], got.absmax[0], got.absmax[1]},
                           .n = M};
        assert_int_equal(tm_optim_run(&step, &x), 0);
        for (int i = 0; i < M; i++) assert_true(fabsf(got.w[i] - want.w[i]) < 1e-6f);
        for (int k = 0; k < 2; k++) {
            for (int b = 0; b < BLOCKS; b++)
                assert_true(fabsf(got.absmax[k][b] - want.absmax[k][b]) <= 1e-6f * want.absmax[k][b]);
            for (int i = 0; i < M; i++) {
                assert_true(abs(got.code[k][i] - want.code[k][i]) <= 1);
                codes_off += got.code[k][i] != want.code[k][i];
            }
        }
    }
    print_message("codes off by one: %d of %d\n", codes_off, 2 * M * STEPS_8BIT);
    assert_true(codes_off <= 2 * M * STEPS_8BIT / 500); /* 0.2% */
    st_close(&f);
}

/* ---- Adafactor of transformers, Lion of bitsandbytes ------------------------------------------ */

enum { MOST_FIXTURE = 128 };

static double number_at(const tm_json *o, const char *key, int index) {
    const tm_json *x = tm_json_get(o, key);
    assert_non_null(x);
    for (x = x->type == TM_JSON_ARRAY ? x->child : x; index > 0; index--) x = x->next;
    return x->number;
}

/* The case's settings under our names; the rate is returned (NaN: none, `relative_step`). */
static double read_settings(const tm_optimizer *o, tm_optim_opts *opts, const tm_json *c) {
    tm_optim_defaults(o, opts);
    opts->weight_decay = number_at(c, "weight_decay", 0);
    if (strcmp(o->name, "lion") == 0) {
        opts->beta1 = number_at(c, "betas", 0), opts->beta2 = number_at(c, "betas", 1);
    } else {
        const tm_json *beta1 = tm_json_get(c, "beta1");
        opts->beta1 = beta1->type == TM_JSON_NULL ? 0 : beta1->number;
        opts->eps = number_at(c, "eps", 0), opts->eps_scale = number_at(c, "eps", 1);
        opts->clip_threshold = number_at(c, "clip_threshold", 0), opts->decay_rate = number_at(c, "decay_rate", 0);
        opts->scale_parameter = tm_json_get(c, "scale_parameter")->boolean;
        opts->relative_step = tm_json_get(c, "relative_step")->boolean;
        opts->warmup_init = tm_json_get(c, "warmup_init")->boolean;
    }
    assert_null(tm_optim_check(o, opts));
    return opts->relative_step ? 0 : number_at(c, "lr", 0);
}

static const float *named(const st_file *f, const char *format, ...) {
    char name[96];
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    return tensor(f, name);
}

/* All steps of one tensor; the largest difference from the library's parameters, which is also a hundredth at most of
 * how far they moved: some settings move less than the fixtures' tolerance. */
static double follow(const tm_optimizer *o, const tm_json *c, const st_file *f, int index, const tm_json *shape,
                     int64_t steps) {
    tm_optim_opts opts;
    double lr = read_settings(o, &opts, c), scratch[5 * MOST_FIXTURE], worst = 0, moved = 0;
    uint64_t rows = (uint64_t)shape->integer, columns = shape->next ? (uint64_t)shape->next->integer : 0;
    float w[MOST_FIXTURE], state[TM_OPTIM_STATES][MOST_FIXTURE] = {{0}};
    tm_optim_tensor t = {.shape = columns ? (tm_optim_shape){1, rows, columns} : (tm_optim_shape){1, 0, rows},
                         .scratch = scratch};
    const size_t n = (size_t)tm_optim_elements(&t.shape);
    assert_true(n <= MOST_FIXTURE && tm_optim_scratch_bytes(o, &t.shape) <= sizeof scratch);
    const float *start = named(f, "param.%d.init", index);
    memcpy(w, start, n * sizeof *w);
    for (int64_t s = 1; s <= steps; s++) {
        tm_optim_span x = {.weight = w, .grad = named(f, "grad.%d.step%d", index, (int)s), .n = n};
        tm_optim_step step;
        for (int k = 0; k < TM_OPTIM_STATES; k++) t.state[k] = x.state[k] = state[k];
        tm_optim_step_init(&step, o, &opts, lr, s, 1);
        tm_optim_begin(&step, &t);
        for (uint32_t pass = 0; pass < o->passes; pass++) {
            assert_int_equal(tm_optim_pass(&step, &t, pass, &x), 0);
            tm_optim_turn(&step, &t, pass);
        }
        const float *want = named(f, "%s.param.%d.step%d", c->key, index, (int)s);
        for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)w[i] - (double)want[i]));
        for (size_t i = 0; i < n; i++) moved = fmax(moved, fabs((double)want[i] - (double)start[i]));
        assert_true(moved > 0 && worst <= moved / 100);
    }
    return worst;
}

/* Parameters after each step within the fixtures' `param_max_abs`, tensor by tensor: of the `want` cases whose `key` is
 * `value`. */
static void follow_fixture(const char *folder, const char *optimizer, const char *key, const char *value, int want) {
    char path[512];
    tm_json_doc *doc;
    snprintf(path, sizeof path, TM_TEST_FIXTURES "/%s/golden.json", folder);
    char *text = read_json(path, &doc);
    snprintf(path, sizeof path, TM_TEST_FIXTURES "/%s/golden.safetensors", folder);
    st_file f = st_open(path);
    const tm_json *root = tm_json_root(doc);
    const double allowed = number_at(tm_json_get(root, "tolerances"), "param_max_abs", 0);
    const int64_t steps = tm_json_get(root, "steps")->integer;
    int cases = 0;
    for (const tm_json *c = tm_json_get(root, "cases")->child; c; c = c->next) {
        if (strcmp(tm_json_get(c, key)->text, value) != 0) continue;
        int index = 0;
        for (const tm_json *s = tm_json_get(root, "shapes")->child; s; s = s->next, index++) {
            double worst = follow(tm_optimizer_find(optimizer), c, &f, index, s->child, steps);
            if (!(worst <= allowed)) fail_msg("%s, %s, tensor %d: off by %.2e", folder, c->key, index, worst);
            print_message("%s %s, tensor %d: %.1e\n", optimizer, c->key, index, worst);
        }
        cases++;
    }
    assert_int_equal(cases, want);
    tm_json_free(doc), tm_free(text), st_close(&f);
}

static void adafactor_is_that_of_transformers(void **state) {
    (void)state;
    follow_fixture("optim_adafactor", "adafactor", "library", "transformers", 3);
}
static void lion_is_that_of_bitsandbytes(void **state) {
    (void)state;
    follow_fixture("optim_bnb", "lion", "class", "Lion", 1);
}

/* ---- loss scale ------------------------------------------------------------------------------- */

static double config_number(const tm_json *config, const char *key) {
    return tm_json_get(config, key)->number;
}

static void loss_scales_are_deepspeeds(void **state) {
    (void)state;
    tm_json_doc *doc;
    char *text = read_json(TM_TEST_FIXTURES "/loss_scale/golden.json", &doc);
    int cases = 0, stops = 0;
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "cases")->child; c; c = c->next, cases++) {
        const tm_json *config = tm_json_get(c, "config");
        tm_loss_scale_opts o = {
            .initial_scale_power = (int32_t)config_number(config, "initial_scale_power"),
            .loss_scale_window = (int32_t)config_number(config, "loss_scale_window"),
            .hysteresis = (int32_t)config_number(config, "hysteresis"),
            .min_loss_scale = config_number(config, "min_loss_scale"),
            .consecutive_hysteresis = tm_json_get(config, "consecutive_hysteresis")->boolean,
        };
        assert_null(tm_loss_scale_check(&o));
        tm_loss_scaler s;
        tm_loss_scaler_init(&s, &o);
        const tm_json *used = tm_json_get(c, "scale_used")->child, *after = tm_json_get(c, "scale_after")->child;
        const tm_json *hysteresis = tm_json_get(c, "hysteresis_after")->child,
                      *flag = tm_json_get(c, "overflow")->child;
        int64_t skipped = 0;
        for (; after; flag = flag->next, used = used->next, after = after->next, hysteresis = hysteresis->next) {
            assert_true(s.scale == used->number);
            assert_true(tm_loss_scaler_update(&s, flag->integer != 0));
            assert_true(s.scale == after->number);
            assert_int_equal(s.hysteresis, hysteresis->integer);
            skipped += flag->integer;
        }
        assert_int_equal(s.skipped, skipped);
        if (!flag) continue;
        tm_loss_scaler before = s; /* DeepSpeed raises here */
        assert_false(tm_loss_scaler_update(&s, flag->integer != 0));
        assert_memory_equal(&s, &before, sizeof s);
        stops++;
    }
    assert_int_equal(cases, 8);
    assert_int_equal(stops, 3);
    tm_json_free(doc), tm_free(text);
}

static void a_constant_scale_stays(void **state) {
    (void)state;
    tm_loss_scale_opts o;
    tm_loss_scale_defaults(&o);
    assert_null(tm_loss_scale_check(&o));
    o.loss_scale = 128;
    tm_loss_scaler s;
    tm_loss_scaler_init(&s, &o);
    for (int i = 0; i < 3000; i++) assert_true(tm_loss_scaler_update(&s, i % 3 == 0));
    assert_true(s.scale == 128 && s.skipped == 1000 && s.iteration == 3000);
    o.loss_scale_window = 0;
    assert_string_equal(tm_loss_scale_check(&o), "loss_scale_window must be at least 1");
}

/* A square that overflows stays infinite, and its weight would never move again: it is counted. */
static void adafactor_counts_infinite_squares(void **state) {
    (void)state;
    const tm_optimizer *o = tm_optimizer_find("adafactor");
    float w[4] = {1, 1, 1, 1}, squares[4] = {0}, g[4] = {1e20F, 1, 1, 1};
    double scratch[64];
    tm_optim_opts opts;
    tm_optim_step step;
    uint64_t bad = 0;
    tm_optim_defaults(o, &opts);
    tm_optim_step_init(&step, o, &opts, 1e-3, 1, 1);
    tm_optim_tensor t = {.shape = {1, 0, 4}, .scratch = scratch};
    tm_optim_span x = {.weight = w, .grad = g, .n = 4, .grad_type = TM_GRAD_F32, .state = {[3] = squares}};
    assert_true(tm_optim_scratch_bytes(o, &t.shape) <= sizeof scratch);
    tm_optim_begin(&step, &t);
    for (uint32_t pass = 0; pass < o->passes; pass++) {
        bad += tm_optim_pass(&step, &t, pass, &x);
        tm_optim_turn(&step, &t, pass);
    }
    assert_int_equal(bad, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adafactor_counts_infinite_squares),
        cmocka_unit_test(follows_the_libraries),
        cmocka_unit_test(any_form_and_cut_gives_the_same_bits),
        cmocka_unit_test(large_tensors_in_passes),
        cmocka_unit_test(equals_bitsandbytes),
        cmocka_unit_test(adafactor_is_that_of_transformers),
        cmocka_unit_test(lion_is_that_of_bitsandbytes),
        cmocka_unit_test(loss_scales_are_deepspeeds),
        cmocka_unit_test(a_constant_scale_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

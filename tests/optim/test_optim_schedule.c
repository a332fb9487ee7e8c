/* Schedules against 100 steps of transformers' and DeepSpeed's own (fixture lr_schedules), and what they refuse. */
#include "world.h"

static char *read_all(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)n + 1);
    assert_non_null(text);
    *len = fread(text, 1, (size_t)n, f);
    fclose(f);
    return text;
}

static tm_lr_shape shape(const tm_json *v) {
    return tm_json_is(v, "linear")   ? TM_SHAPE_LINEAR
           : tm_json_is(v, "cosine") ? TM_SHAPE_COSINE
                                     : TM_SHAPE_ONE_MINUS_SQRT;
}

static void set_arg(tm_lr_schedule *s, const char *key, const tm_json *v) {
    const struct {
        const char *name;
        double *to;
    } reals[] = {{"num_cycles", &s->num_cycles},
                 {"lr_end", &s->lr_end},
                 {"power", &s->power},
                 {"min_lr_rate", &s->min_lr_rate},
                 {"min_lr_ratio", &s->min_lr_rate},
                 {"warmup_lr_rate", &s->warmup_lr_rate},
                 {"warmup_min_lr", &s->warmup_min_lr},
                 {"warmup_max_lr", &s->warmup_max_lr},
                 {"warmup_min_ratio", &s->warmup_min_ratio},
                 {"cos_min_ratio", &s->cos_min_ratio},
                 {"lr_range_test_min_lr", &s->range_min_lr},
                 {"lr_range_test_step_rate", &s->range_step_rate},
                 {"cycle_min_lr", &s->cycle_min_lr},
                 {"cycle_max_lr", &s->cycle_max_lr},
                 {"decay_lr_rate", &s->decay_lr_rate},
                 {"cycle_min_mom", &s->cycle_min_mom},
                 {"cycle_max_mom", &s->cycle_max_mom},
                 {"decay_mom_rate", &s->decay_mom_rate}};
    const struct {
        const char *name;
        int64_t *to;
    } integers[] = {{"num_warmup_steps", &s->warmup_steps},
                    {"num_training_steps", &s->total_steps},
                    {"timescale", &s->timescale},
                    {"num_stable_steps", &s->stable_steps},
                    {"num_decay_steps", &s->decay_steps},
                    {"warmup_num_steps", &s->warmup_steps},
                    {"total_num_steps", &s->total_steps},
                    {"lr_range_test_step_size", &s->range_step_size},
                    {"cycle_first_step_size", &s->cycle_first_step_size},
                    {"cycle_second_step_size", &s->cycle_second_step_size},
                    {"cycle_first_stair_count", &s->cycle_first_stair_count},
                    {"cycle_second_stair_count", &s->cycle_second_stair_count},
                    {"decay_step_size", &s->decay_step_size}};
    for (size_t i = 0; i < TM_COUNT(reals); i++)
        if (!strcmp(key, reals[i].name)) {
            *reals[i].to = v->number;
            return;
        }
    for (size_t i = 0; i < TM_COUNT(integers); i++)
        if (!strcmp(key, integers[i].name)) {
            *integers[i].to = v->integer;
            return;
        }
    if (!strcmp(key, "min_lr"))
        s->min_lr_rate = v->number / s->base_lr;
    else if (!strcmp(key, "warmup_type") && s->type >= TM_LR_DS_WARMUP)
        s->warmup_shape = tm_json_is(v, "linear") ? TM_SHAPE_LINEAR : TM_SHAPE_LOG;
    else if (!strcmp(key, "warmup_type"))
        s->warmup_shape = shape(v);
    else if (!strcmp(key, "decay_type"))
        s->decay_shape = shape(v);
    else if (!strcmp(key, "lr_range_test_staircase"))
        s->range_staircase = v->boolean;
    else if (!strcmp(key, "cycle_momentum"))
        s->cycle_momentum = v->boolean;
    else
        fail_msg("the fixture has an argument that this test does not know: %s", key);
}

static const struct {
    const char *function, *name;
} functions[] = {
    {"get_constant_schedule", "constant"},
    {"get_constant_schedule_with_warmup", "constant_with_warmup"},
    {"get_linear_schedule_with_warmup", "linear"},
    {"get_cosine_schedule_with_warmup", "cosine"},
    {"get_cosine_with_hard_restarts_schedule_with_warmup", "cosine_with_restarts"},
    {"get_polynomial_decay_schedule_with_warmup", "polynomial"},
    {"get_inverse_sqrt_schedule", "inverse_sqrt"},
    {"get_cosine_with_min_lr_schedule_with_warmup", "cosine_with_min_lr"},
    {"get_cosine_with_min_lr_schedule_with_warmup_lr_rate", "cosine_warmup_with_min_lr"},
    {"get_wsd_schedule", "warmup_stable_decay"},
};

static tm_lr_schedule from_row(const tm_json *row) {
    const tm_json *function = tm_json_get(row, "function"), *lr = tm_json_get(row, "base_lr");
    const char *name = tm_json_get(row, "name")->text;
    for (size_t i = 0; function && i < TM_COUNT(functions); i++)
        if (tm_json_is(function, functions[i].function)) name = functions[i].name;
    tm_lr_type type;
    assert_true(tm_lr_type_from_name(name, &type));
    assert_string_equal(tm_lr_type_name(type), name);
    tm_lr_schedule s;
    tm_lr_defaults(&s, type, lr->number);
    for (const tm_json *a = tm_json_get(row, "args")->child; a; a = a->next) set_arg(&s, a->key, a);
    return s;
}

static double relative(double got, double want) {
    return got == want ? 0 : fabs(got - want) / fabs(want);
}

static void agrees_with_the_libraries(void **state) {
    (void)state;
    size_t len;
    char *text = read_all(TM_TEST_FIXTURES "/lr_schedules/golden.json", &len);
    tm_json_doc *doc;
    assert_int_equal(tm_json_parse(&doc, text, len, "golden.json", 0, 0), TM_OK);
    const tm_json *rows = tm_json_get(tm_json_root(doc), "schedules");
    double tolerance = tm_json_get(tm_json_get(tm_json_root(doc), "tolerances"), "lr_rel")->number, worst = 0;
    assert_int_equal(rows->count, 27);
    for (const tm_json *row = rows->child; row; row = row->next) {
        tm_lr_schedule s = from_row(row);
        assert_int_equal(tm_lr_check(&s), TM_OK);
        int64_t t = 0;
        for (const tm_json *v = tm_json_get(row, "lr")->child; v; v = v->next, t++) {
            double err = relative(tm_lr_at(&s, t), v->number);
            if (err > worst) worst = err;
            if (!(err <= tolerance))
                fail_msg("%s step %d: %.17g, the library has %s", tm_json_get(row, "name")->text, (int)t,
                         tm_lr_at(&s, t), v->text);
        }
        assert_int_equal(t, 100);
        const tm_json *beta = tm_json_get(row, "beta1");
        t = 0;
        for (const tm_json *v = beta ? beta->child : NULL; v; v = v->next, t++) {
            double beta1 = 0.9, beta2 = 0.999;
            assert_int_equal(tm_lr_betas(&s, t, &beta1, &beta2), s.cycle_momentum);
            assert_true(relative(beta1, v->number) <= tolerance);
            assert_true(beta2 == (s.cycle_momentum ? 0.99 : 0.999));
        }
    }
    print_message("27 schedules, largest relative difference %.1e\n", worst);
    tm_json_free(doc);
    free(text);
}

static void refuses_what_the_libraries_refuse(void **state) {
    (void)state;
    tm_lr_schedule s;
    tm_lr_defaults(&s, TM_LR_POLYNOMIAL, 1e-8);
    s.total_steps = 10;
    assert_int_equal(tm_lr_check(&s), TM_EINPUT);
    tm_error_clear();
    tm_lr_defaults(&s, TM_LR_DS_WARMUP_DECAY, 1e-3);
    assert_int_equal(tm_lr_check(&s), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "total_num_steps"));
    tm_error_clear();
    tm_lr_defaults(&s, TM_LR_DS_WARMUP, 1e-3);
    s.warmup_steps = 0;
    assert_int_equal(tm_lr_check(&s), TM_EINPUT);
    tm_error_clear();
    tm_lr_defaults(&s, TM_LR_DS_ONE_CYCLE, 1e-3);
    s.cycle_first_step_size = 0;
    assert_int_equal(tm_lr_check(&s), TM_EINPUT);
    tm_error_clear();
    tm_lr_defaults(&s, TM_LR_DS_RANGE_TEST, 1e-3);
    s.range_step_size = 0;
    assert_int_equal(tm_lr_check(&s), TM_EINPUT);
    tm_error_clear();
    tm_lr_defaults(&s, TM_LR_LINEAR, NAN);
    assert_int_equal(tm_lr_check(&s), TM_EINPUT);
    tm_error_clear();
    tm_lr_type type;
    assert_false(tm_lr_type_from_name("greedy", &type));
}

/* By the paper's formula (4): p = (1 - t/T) / (1/2 + 1/2 (1 - t/T)), after a linear warm-up; 0 from the end on. */
static void rex_is_the_reflected_exponential(void **state) {
    (void)state;
    tm_lr_schedule s;
    tm_lr_type type;
    assert_true(tm_lr_type_from_name("rex", &type));
    tm_lr_defaults(&s, type, 2e-3);
    s.total_steps = 30, s.warmup_steps = 5;
    assert_int_equal(tm_lr_check(&s), TM_OK);
    for (int t = 0; t < 40; t++) {
        double left = t < 30 ? (30.0 - t) / 25 : 0, want = 2e-3 * (t < 5 ? t / 5.0 : 2 * left / (1 + left));
        if (fabs(tm_lr_at(&s, t) - want) > 1e-15) fail_msg("step %d: %g, by the formula %g", t, tm_lr_at(&s, t), want);
    }
}

/* Shorter than its warm-up, or empty: finite and not negative everywhere. */
static void odd_lengths_stay_finite(void **state) {
    (void)state;
    for (int type = 0; type < TM_LR_TYPES; type++)
        for (int64_t total = 1; total < 8; total++)
            for (int64_t warmup = 0; warmup < 8; warmup++) {
                tm_lr_schedule s;
                tm_lr_defaults(&s, (tm_lr_type)type, 1e-3);
                s.total_steps = total, s.warmup_steps = warmup, s.decay_steps = 2;
                s.cycle_min_lr = 1e-4, s.cycle_max_lr = 1e-3, s.cycle_first_step_size = total;
                if (tm_lr_check(&s) != TM_OK) {
                    tm_error_clear();
                    continue;
                }
                for (int64_t t = 0; t < 20; t++) {
                    double lr = tm_lr_at(&s, t);
                    if (!isfinite(lr) || lr < 0) fail_msg("%s: step %d is %g", tm_lr_type_name(s.type), (int)t, lr);
                }
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_libraries), cmocka_unit_test(rex_is_the_reflected_exponential),
        cmocka_unit_test(refuses_what_the_libraries_refuse), cmocka_unit_test(odd_lengths_stay_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The part of a matrix that its largest singular values make: matrices that are made of known ones. */
#include "world.h"

#include "adapter/principal.h"

#include <math.h>
#include <stdlib.h>

typedef struct matrix {
    float *v;
    uint64_t rows, columns;
    unsigned reads;
} matrix;

static tm_status read_rows(void *ctx, uint64_t first, uint64_t n, float *dst) {
    matrix *m = ctx;
    assert_true(first + n <= m->rows);
    memcpy(dst, m->v + first * m->columns, n * m->columns * sizeof *dst);
    m->reads++;
    return TM_OK;
}

static double *noise(uint64_t n, uint64_t key) {
    double *v = malloc((n + 1) * sizeof *v);
    assert_non_null(v);
    for (uint64_t i = 0; i < n; i += 2) tm_philox_normal2(key, i / 2, v + i);
    return v;
}

/* n orthonormal rows of `length`. */
static double *directions(uint32_t n, uint64_t length, uint64_t key) {
    double *v = noise(n * length + 1, key);
    for (uint32_t i = 0; i < n; i++)
        for (int turn = 0; turn < 3; turn++) {
            double square = 0;
            for (uint32_t j = 0; j < i; j++) {
                double c = 0;
                for (uint64_t k = 0; k < length; k++) c += v[i * length + k] * v[j * length + k];
                for (uint64_t k = 0; k < length; k++) v[i * length + k] -= c * v[j * length + k];
            }
            for (uint64_t k = 0; k < length; k++) square += v[i * length + k] * v[i * length + k];
            for (uint64_t k = 0; k < length; k++) v[i * length + k] /= sqrt(square);
        }
    return v;
}

/* A matrix with singular values value(0) > value(1) > ..., and the part that the first `rank` make. */
static matrix known(uint64_t rows, uint64_t columns, uint32_t rank, double (*value)(uint32_t), double **part) {
    uint32_t n = (uint32_t)tm_min_u64(rows, columns);
    double *u = directions(n, rows, 1), *v = directions(n, columns, 2), *whole = calloc(rows * columns, sizeof *whole);
    matrix m = {malloc(rows * columns * sizeof(float)), rows, columns, 0};
    *part = calloc(rows * columns, sizeof **part);
    for (uint32_t k = 0; k < n; k++)
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < columns; j++) {
                double add = value(k) * u[k * rows + i] * v[k * columns + j];
                whole[i * columns + j] += add;
                if (k < rank) (*part)[i * columns + j] += add;
            }
    for (uint64_t i = 0; i < rows * columns; i++) m.v[i] = (float)whole[i];
    free(u), free(v), free(whole);
    return m;
}

static double slowly(uint32_t k) {
    return 3.0 / (1 + 0.05 * k);
}
static double hardly(uint32_t k) {
    return 3.0 / (1 + 0.0005 * k);
}
static double in_steps(uint32_t k) {
    return k < 5 ? 4 - k * 0.5 : 0.5 / (k - 3);
}
static double nothing_after_two(uint32_t k) {
    return k < 2 ? 2 - k : 0;
}

/* Largest difference of scale * b a from `part`, over the largest of its elements. */
static double distance(const matrix *m, const tm_principal_opts *o, const double *part) {
    uint64_t in = o->turned ? m->rows : m->columns, out = o->turned ? m->columns : m->rows;
    float *a = malloc(o->rank * in * sizeof *a), *b = malloc(o->rank * out * sizeof *b);
    double far = 0, most = 0;
    assert_int_equal(tm_principal(&(tm_matrix_rows){read_rows, (void *)(uintptr_t)m, m->rows, m->columns}, o, a, b),
                     TM_OK);
    for (uint64_t i = 0; i < out; i++)
        for (uint64_t j = 0; j < in; j++) {
            double sum = 0, wanted = part[o->turned ? j * out + i : i * in + j];
            for (uint32_t r = 0; r < o->rank; r++) sum += (double)b[i * o->rank + r] * (double)a[r * in + j];
            far = fmax(far, fabs(o->scale * sum - wanted));
            most = fmax(most, fabs(wanted));
        }
    free(a), free(b);
    return far / most;
}

static void test_known_parts(void **state) {
    (void)state;
    static const struct {
        uint64_t rows, columns;
        uint32_t rank;
        double (*value)(uint32_t);
        bool turned;
    } rows[] = {{24, 32, 3, slowly, false},
                {31, 24, 24, slowly, false},
                {1, 7, 1, slowly, false},
                {7, 1, 1, slowly, true},
                {5, 3, 2, slowly, true},
                {150, 90, 12, slowly, false},
                {90, 150, 40, slowly, true},
                {60, 40, 4, nothing_after_two, false},
                {40, 60, 4, nothing_after_two, true}};
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        double *part;
        matrix m = known(rows[i].rows, rows[i].columns, rows[i].rank, rows[i].value, &part);
        const tm_principal_opts o = {.name = "w", .rank = rows[i].rank, .scale = 2.5, .turned = rows[i].turned};
        double far = distance(&m, &o, part);
        if (far > 3e-7) fail_msg("row %zu: %g", i, far);
        free(part), free(m.v);
    }
}

/* What it says that it takes is what it takes; the first test, as a peak stays. */
static void test_memory(void **state) {
    (void)state;
    double *part;
    matrix m = known(90, 400, 6, slowly, &part);
    float a[6 * 400], b[6 * 90];
    for (uint32_t i = 0; i < 2; i++) { /* the randomised one takes less */
        tm_principal_opts o = {.name = "w", .rank = 6, .scale = 2, .iterations = i ? 0 : 2};
        uint64_t before = tm_mem_live_bytes(), said = tm_principal_bytes(m.rows, m.columns, &o);
        assert_int_equal(tm_principal(&(tm_matrix_rows){read_rows, &m, m.rows, m.columns}, &o, a, b), TM_OK);
        uint64_t took = tm_mem_peak_bytes() - before;
        if (took > said + 1024 || took < said / 2)
            fail_msg("%llu of %llu", (unsigned long long)took, (unsigned long long)said);
    }
    free(part), free(m.v);
}

/* A basis that has to be begun again many times: rank 2 of 300, in room for few. */
static void test_restarts(void **state) {
    (void)state;
    double *part;
    matrix m = known(300, 320, 2, hardly, &part);
    double far = distance(&m, &(tm_principal_opts){.name = "w", .rank = 2, .scale = 1}, part);
    if (far > 1e-5 /* the rounding of its elements turns it by so much */ || m.reads < 20 * 5)
        fail_msg("%g after %u reads", far, m.reads);
    free(part), free(m.v);
}

/* Power iterations come nearer with each; without any it is a sketch. They read the matrix 2 + 2 N times. */
static void test_iterations(void **state) {
    (void)state;
    double *part, before = 1;
    for (int turned = 0; turned < 2; turned++) {
        matrix m = known(turned ? 70 : 100, turned ? 100 : 70, 5, in_steps, &part);
        for (uint32_t n = 0; n <= 24; n = n ? 2 * n : 6) {
            tm_principal_opts o = {.name = "w", .rank = 5, .scale = 0.5, .iterations = n + 1, .turned = turned != 0};
            m.reads = 0;
            double far = distance(&m, &o, part);
            assert_int_equal(m.reads, (2 + 2 * n) * 2);
            if (n == 0 ? far < 1e-3 : far > before) fail_msg("%u iterations: %g after %g", n, far, before);
            before = far;
        }
        assert_true(before < 1e-6);
        before = 1;
        free(part), free(m.v);
    }
}

static void test_same_bits(void **state) {
    (void)state;
    double *part;
    matrix m = known(130, 70, 6, slowly, &part);
    float a[2][6 * 70], b[2][6 * 130];
    const tm_matrix_rows w = {read_rows, &m, m.rows, m.columns};
    for (uint32_t iterations = 0; iterations < 3; iterations += 2)
        for (unsigned i = 0; i < 2; i++) {
            tm_principal_opts o = {.name = "w", .rank = 6, .scale = 2, .iterations = iterations, .threads = 1 + 2 * i};
            assert_int_equal(tm_principal(&w, &o, a[i], b[i]), TM_OK);
            if (i) assert_memory_equal(a[0], a[1], sizeof a[0]);
            if (i) assert_memory_equal(b[0], b[1], sizeof b[0]);
        }
    free(part), free(m.v);
}

static void test_refused(void **state) {
    (void)state;
    float v[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, a[64], b[64];
    matrix m = {v, 4, 3, 0};
    const tm_matrix_rows w = {read_rows, &m, 4, 3};
    tm_principal_opts o = {.name = "model.w", .rank = 4, .scale = 1};
    fails_with(tm_principal(&w, &o, a, b), TM_EINPUT, "'model.w' [4, 3] has fewer than 4 singular values");
    o.rank = 2;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38F};
    for (size_t i = 0; i < TM_COUNT(bad); i++)
        for (uint32_t n = 0; n < 2; n++) {
            v[5] = bad[i];
            o.iterations = n * 3;
            if (i < 3) fails_with(tm_principal(&w, &o, a, b), TM_EINPUT, "no numbers");
            if (i == 3) assert_int_equal(tm_principal(&w, &o, a, b), TM_OK);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory),    cmocka_unit_test(test_known_parts),
                                       cmocka_unit_test(test_restarts),  cmocka_unit_test(test_iterations),
                                       cmocka_unit_test(test_same_bits), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("principal", tests, NULL, NULL);
}

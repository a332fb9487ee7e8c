/* What architectures vary of a kernel, on odd sizes, in each ISA's column, against plain loops in double; gradients
 * against central differences of those. */
#include "tests/kernels/values.h"

#include <stdio.h>

static const double step = 1e-5;
static double gradient_tolerance(tm_elem t) {
    return t == TM_ELEM_F32 ? 1e-5 : tolerance(t);
}
static void unchanged(tm_elem t, const void *x, size_t i, double old, const char *what) {
    if (value(t, x, i) != old) fail_msg("%s: element %zu is beside the rows and was written", what, i);
}

/* ---- norms ---- */

typedef struct norm_case {
    tm_norm_kind kind;
    size_t rows, n, groups, gap_x, gap_y;
    bool weight, residual, add;
} norm_case;
typedef struct norm_data {
    size_t ld_x, ld_y;
    double *x, *w, *b, *residual, *dy, *y, *dx, *dw, *db;
} norm_data;

/* Of one group. */
static void norm_formula(const norm_case *c, const double *x, const double *w, const double *b, double *y) {
    double mean = 0, squares = 0;
    for (size_t i = 0; c->kind == TM_NORM_LAYER && i < c->n; i++) mean += x[i] / (double)c->n;
    for (size_t i = 0; i < c->n; i++) squares += (x[i] - mean) * (x[i] - mean);
    double deviation = sqrt(squares / (double)c->n + 1e-5);
    for (size_t i = 0; i < c->n; i++) {
        double factor = !c->weight ? 1 : c->kind == TM_NORM_RMS_PLUS ? 1 + w[i] : w[i];
        y[i] = (x[i] - mean) / deviation * factor + (c->kind == TM_NORM_LAYER ? b[i] : 0);
    }
}

/* d sum(dy * norm(x)) / d p of a group; p is an element of x, w or b */
static double norm_slope(const norm_case *c, const norm_data *d, double *p, size_t row, size_t group) {
    const double *x = d->x + row * d->ld_x + group * c->n, *dy = d->dy + row * d->ld_y + group * c->n;
    double kept = *p, slope = 0, *y = malloc(c->n * sizeof *y);
    for (int up = 0; up < 2; up++) {
        *p = kept + (up ? step : -step);
        norm_formula(c, x, d->w, d->b, y);
        for (size_t i = 0; i < c->n; i++) slope += (up ? dy[i] : -dy[i]) * y[i] / (2 * step);
    }
    *p = kept;
    free(y);
    return slope;
}

static norm_data norm_begin(const norm_case *c) {
    norm_data d = {.ld_x = c->groups * c->n + c->gap_x, .ld_y = c->groups * c->n + c->gap_y};
    d.x = randoms(c->rows * d.ld_x, 3), d.dx = randoms(c->rows * d.ld_x, 1);
    d.y = randoms(c->rows * d.ld_y, 1), d.dy = randoms(c->rows * d.ld_y, 1);
    d.residual = randoms(c->rows * d.ld_y, 1);
    d.w = randoms(c->n, 2), d.b = randoms(c->n, 1), d.dw = randoms(c->n, 1), d.db = randoms(c->n, 1);
    return d;
}
static void norm_end(norm_data *d) {
    free(d->x), free(d->dx), free(d->y), free(d->dy), free(d->residual);
    free(d->w), free(d->b), free(d->dw), free(d->db);
}
static tm_norm norm_call(tm_elem t, const norm_case *c, const norm_data *d) {
    return (tm_norm){.type = t,
                     .kind = c->kind,
                     .rows = c->rows,
                     .n = c->n,
                     .groups = c->groups,
                     .ld_x = c->gap_x ? d->ld_x : 0,
                     .ld_y = c->gap_y ? d->ld_y : 0,
                     .eps = 1e-5F};
}

static void check_norm_forward(tm_elem t, const norm_case *c) {
    norm_data d = norm_begin(c);
    size_t groups = c->groups, n = c->n;
    void *x = stored(t, d.x, c->rows * d.ld_x), *w = stored(t, d.w, n), *b = stored(t, d.b, n);
    void *residual = stored(t, d.residual, c->rows * d.ld_y), *y = stored(t, d.y, c->rows * d.ld_y);
    tm_norm a = norm_call(t, c, &d);
    a.x = x, a.y = y, a.weight = c->weight ? w : NULL, a.bias = c->kind == TM_NORM_LAYER ? b : NULL;
    a.residual = c->residual ? residual : NULL;
    tm_norm_forward(&a);
    double *want = randoms(n, 0);
    for (size_t r = 0; r < c->rows; r++) {
        for (size_t g = 0; g < groups; g++) {
            norm_formula(c, d.x + r * d.ld_x + g * n, d.w, d.b, want);
            for (size_t i = 0; i < n; i++) {
                size_t at = r * d.ld_y + g * n + i;
                near(value(t, y, at), want[i] + (c->residual ? d.residual[at] : 0), tolerance(t), "norm", at);
            }
        }
        for (size_t i = groups * n; i < d.ld_y; i++) unchanged(t, y, r * d.ld_y + i, d.y[r * d.ld_y + i], "norm");
    }
    free(want), free(x), free(w), free(b), free(residual), free(y);
    norm_end(&d);
}

/* The sums over rows and groups of the slopes by each element of p, which is d's w or b. */
static void check_norm_sums(const norm_case *c, const norm_data *d, double *p, const double *old, const float *got) {
    for (size_t i = 0; i < c->n; i++) {
        double want = c->add ? old[i] : 0;
        for (size_t r = 0; r < c->rows; r++)
            for (size_t g = 0; g < c->groups; g++) want += norm_slope(c, d, &p[i], r, g);
        near((double)got[i], want, 2e-5, p == d->w ? "dw" : "db", i);
    }
}

static void check_norm_backward(tm_elem t, tm_elem dy_type, const norm_case *c) {
    norm_data d = norm_begin(c);
    size_t groups = c->groups, n = c->n;
    void *x = stored(t, d.x, c->rows * d.ld_x), *w = stored(t, d.w, n), *dy = stored(dy_type, d.dy, c->rows * d.ld_y);
    void *dx = stored(t, d.dx, c->rows * d.ld_x);
    float *dw = stored(TM_ELEM_F32, d.dw, n), *db = stored(TM_ELEM_F32, d.db, n);
    bool layer = c->kind == TM_NORM_LAYER;
    tm_norm a = norm_call(t, c, &d);
    a.x = x, a.weight = c->weight ? w : NULL, a.dy = dy, a.dy_type = dy_type, a.dx = dx;
    a.dw = c->weight ? dw : NULL, a.db = layer ? db : NULL, a.dx_add = a.dw_add = c->add;
    a.workspace = aligned_alloc(64, tm_norm_workspace(c->rows, layer ? 2 * n : n));
    tm_norm_backward(&a);
    for (size_t r = 0; r < c->rows; r++) {
        for (size_t i = 0; i < groups * n; i++) {
            size_t at = r * d.ld_x + i;
            double want = norm_slope(c, &d, &d.x[at], r, i / n) + (c->add ? d.dx[at] : 0);
            near(value(t, dx, at), want, gradient_tolerance(t), "dx", at);
        }
        for (size_t i = groups * n; i < d.ld_x; i++) unchanged(t, dx, r * d.ld_x + i, d.dx[r * d.ld_x + i], "dx");
    }
    if (c->weight) check_norm_sums(c, &d, d.w, d.dw, dw);
    if (layer) check_norm_sums(c, &d, d.b, d.db, db);
    free(x), free(w), free(dy), free(dx), free(dw), free(db), free(a.workspace);
    norm_end(&d);
}

static void norms(void **state) {
    (void)state;
    static const norm_case cases[] = {
        {TM_NORM_RMS, 5, 33, 1, 0, 0, false, false, false},    {TM_NORM_RMS, 67, 7, 3, 5, 2, true, false, true},
        {TM_NORM_RMS, 3, 19, 2, 0, 3, false, true, true},      {TM_NORM_RMS_PLUS, 5, 33, 1, 0, 0, true, true, false},
        {TM_NORM_RMS_PLUS, 66, 9, 2, 3, 0, true, false, true}, {TM_NORM_LAYER, 5, 7, 1, 0, 0, true, false, false},
        {TM_NORM_LAYER, 67, 17, 1, 0, 1, true, true, true},    {TM_NORM_LAYER, 3, 21, 3, 4, 6, true, false, true},
        {TM_NORM_LAYER, 2, 33, 1, 1, 0, false, true, false},   {TM_NORM_LAYER, 1, 1029, 1, 0, 0, true, false, true},
        {TM_NORM_RMS_PLUS, 1, 1029, 1, 2, 3, true, true, true}};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t i = 0; i < TM_COUNT(cases); i++) {
            check_norm_forward(types[k], &cases[i]);
            check_norm_backward(types[k], TM_ELEM_F32, &cases[i]);
            if (types[k] != TM_ELEM_F32) check_norm_backward(types[k], types[k], &cases[i]);
        }
}

/* ---- activations and caps ---- */

static double act(tm_activation kind, double x) {
    if (kind == TM_ACT_SILU) return x / (1 + exp(-x));
    if (kind == TM_ACT_GELU) return x * erfc(-x / sqrt(2)) / 2;
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* Where the gated factor lies. */
typedef enum ups { UP_NONE, UP_BESIDE, UP_APART, UPS } ups;

static void check_activation(tm_elem t, tm_activation kind, ups up, size_t f) {
    size_t rows = 3, in = up == UP_BESIDE ? 2 * f : f, ld = f + 3;
    bool plain = up == UP_NONE;
    double *apart = randoms(rows * ld, 3), *d_apart = randoms(rows * ld, 2);
    void *sup = stored(t, apart, rows * ld), *dup = stored(t, d_apart, rows * ld);
    double *x = randoms(rows * in, 7), *dy = randoms(rows * f, 1);
    void *sx = stored(t, x, rows * in), *dx = malloc(bytes_of(t, rows * in));
    void *y = malloc(bytes_of(t, rows * f)), *again = malloc(bytes_of(t, rows * f));
    float *sdy = stored(TM_ELEM_F32, dy, rows * f);
    tm_glu a = {.type = t, .act = kind, .plain = plain, .rows = rows, .width = f, .x = sx, .y = y};
    if (up == UP_APART) a.up = sup, a.d_up = dup, a.ld_up = ld;
    tm_glu_forward(&a);
    a.y = again, a.dy = sdy, a.dx = dx;
    tm_glu_backward(&a);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < f; i++) {
            size_t at = r * f + i, at_g = r * in + i;
            double g = x[at_g], u = plain ? 1 : up == UP_APART ? apart[r * ld + i] : x[at_g + f];
            double slope = (act(kind, g + step) - act(kind, g - step)) / (2 * step);
            near(value(t, y, at), act(kind, g) * u, tolerance(t), "activation", at);
            near(value(t, again, at), act(kind, g) * u, tolerance(t), "activation again", at);
            near(value(t, dx, at_g), dy[at] * u * slope, gradient_tolerance(t), "dg", at);
            double du = up == UP_APART ? value(t, dup, r * ld + i) : plain ? 0 : value(t, dx, at_g + f);
            if (!plain) near(du, dy[at] * act(kind, g), gradient_tolerance(t), "du", at);
        }
    for (size_t i = 0; i < rows * ld; i++)
        if (i % ld >= f) unchanged(t, dup, i, d_apart[i], "du beyond");
    free(apart), free(d_apart), free(sup), free(dup);
    free(x), free(dy), free(sx), free(dx), free(y), free(again), free(sdy);
}

static void activations(void **state) {
    (void)state;
    static const tm_activation kinds[] = {TM_ACT_SILU, TM_ACT_GELU, TM_ACT_GELU_TANH};
    static const size_t widths[] = {1, 9, 80, 1031};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t a = 0; a < TM_COUNT(kinds); a++)
            for (size_t w = 0; w < UPS * TM_COUNT(widths); w++)
                check_activation(types[k], kinds[a], (ups)(w % UPS), widths[w / UPS]);
}

static void scale(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 17, 20003}; /* the last is work for a team */
    for (size_t k = 0; k < 2 * TM_COUNT(types) * TM_COUNT(sizes); k++) {
        tm_elem t = types[k / 2 % TM_COUNT(types)];
        size_t n = sizes[k / 2 / TM_COUNT(types)];
        double *x = randoms(n, 3), by = 0.8125;
        void *sx = stored(t, x, n), *factor = stored(t, &by, 1), *y = k % 2 ? sx : malloc(bytes_of(t, n));
        tm_scale(t, n, factor, sx, y);
        for (size_t i = 0; i < n; i++) near(value(t, y, i), by * x[i], tolerance(t), "scale", i);
        free(x), free(sx), free(factor);
        if (y != sx) free(y);
    }
}

/* ---- adapters ---- */

static void dropout(void **state) {
    (void)state;
    enum { ROWS = 5, N = 1037 };
    const uint32_t dropped = 65536 / 10;
    for (size_t k = 0; k < 2 * TM_COUNT(types); k++) {
        tm_elem t = types[k / 2];
        bool add = k % 2;
        double *x = randoms(ROWS * N, 2), *old = randoms(ROWS * N, 2);
        void *sx = stored(t, x, ROWS * N), *out = stored(t, old, ROWS * N), *part = stored(t, old + 2 * N, N);
        tm_dropout a = {.type = t, .out_type = t, .row = 3, .rows = ROWS, .n = N, .x = sx, .out = out, .add = add};
        a.key = 77, a.dropped = dropped;
        tm_dropout_apply(&a);
        size_t gone = 0, row = N * tm_elem_bytes(t);
        double kept = 1 / (1 - dropped / 65536.0);
        for (size_t i = 0; i < ROWS * N; i++) {
            double base = add ? old[i] : 0, got = value(t, out, i);
            bool drops = fabs(got - base) <= fabs(got - base - kept * x[i]);
            gone += drops;
            near(got, base + (drops ? 0 : kept * x[i]), tolerance(t), "dropout", i);
        }
        assert_in_range(gone, ROWS * N / 12, ROWS * N / 8);
        /* a row by itself drops the same */
        a.row = 5, a.rows = 1, a.x = (char *)sx + 2 * row, a.out = part;
        tm_dropout_apply(&a);
        assert_memory_equal(part, (char *)out + 2 * row, row);
        a = (tm_dropout){.type = t, .out_type = t, .rows = ROWS, .n = N, .x = sx, .out = sx};
        tm_dropout_apply(&a);
        all_near(t, sx, x, ROWS * N, 0, "nothing drops");
        free(x), free(old), free(sx), free(out), free(part);
    }
}

static void squares(void **state) {
    (void)state;
    enum { ROWS = 7, N = 1100, LD = N + 3 };
    for (size_t k = 0; k < 4 * TM_COUNT(types); k++) {
        tm_elem t = types[k / 4];
        bool columns = k & 1, add = k & 2;
        size_t count = columns ? N : ROWS;
        double *w = randoms(ROWS * LD, 2), *d = randoms(ROWS * N, 1), *old = randoms(N, 4);
        void *sw = stored(t, w, ROWS * LD);
        float *sd = stored(TM_ELEM_F32, d, ROWS * N), *out = stored(TM_ELEM_F32, old, N);
        tm_squares_sum(&(tm_squares){.type = t,
                                     .rows = ROWS,
                                     .n = N,
                                     .w = sw,
                                     .ld_w = LD,
                                     .delta = sd,
                                     .columns = columns,
                                     .add = add,
                                     .squares = out});
        for (size_t i = 0; i < count; i++) {
            double want = add ? old[i] : 0;
            for (size_t j = 0; j < (columns ? ROWS : N); j++) {
                size_t r = columns ? j : i, c = columns ? i : j;
                want += pow(w[r * LD + c] + d[r * N + c], 2);
            }
            near((double)out[i], want, 1e-5, "squares", i);
        }
        free(w), free(d), free(old), free(sw), free(sd), free(out);
    }
}

static void magnitudes(void **state) {
    (void)state;
    enum { ROWS = 5, N = 301, LD = N + 2 };
    for (size_t k = 0; k < 2 * TM_COUNT(types); k++) {
        tm_elem t = types[k / 2];
        bool add = k % 2;
        double *w = randoms(N, 2), *s = randoms(N, 1), *p = randoms(ROWS * N, 2), *y = randoms(ROWS * LD, 2);
        double *dy = randoms(ROWS * LD, 2), *dm = randoms(N, 1), *zero = randoms(ROWS * N, 0);
        for (size_t j = 0; j < N; j++) s[j] = s[j] * s[j] + 0.5;
        void *sw = stored(t, w, N), *sy = stored(t, y, ROWS * LD), *sdy = stored(t, dy, ROWS * LD);
        void *dp = stored(t, zero, ROWS * N);
        float *ss = stored(TM_ELEM_F32, s, N), *sp = stored(TM_ELEM_F32, p, ROWS * N),
              *sdm = stored(TM_ELEM_F32, dm, N);
        tm_magnitude a = {.type = t, .rows = ROWS, .n = N, .scale = 0.75F, .magnitude = sw, .squares = ss};
        a.product = sp, a.y = sy, a.ld_y = LD, a.add = add, a.dy = sdy, a.d_product = dp, a.d_magnitude = sdm;
        tm_magnitude_forward(&a);
        tm_magnitude_backward(&a);
        for (size_t j = 0; j < N; j++) {
            double inverse = 0.75 / sqrt(s[j]), sum = dm[j];
            for (size_t r = 0; r < ROWS; r++) {
                double old = add ? y[r * LD + j] : 0;
                near(value(t, sy, r * LD + j), old + inverse * w[j] * p[r * N + j], tolerance(t), "magnitude", j);
                near(value(t, dp, r * N + j), inverse * w[j] * dy[r * LD + j], tolerance(t), "d_product", j);
                sum += inverse * dy[r * LD + j] * p[r * N + j];
            }
            near((double)sdm[j], sum, 1e-5, "d_magnitude", j);
        }
        for (size_t r = 0; r < ROWS; r++)
            for (size_t j = N; j < LD; j++) unchanged(t, sy, r * LD + j, y[r * LD + j], "magnitude");
        a.d_magnitude = NULL, a.product = NULL;
        tm_magnitude_backward(&a);
        free(w), free(s), free(p), free(y), free(dy), free(dm), free(zero);
        free(sw), free(sy), free(sdy), free(dp), free(ss), free(sp), free(sdm);
    }
}

static void columns(void **state) {
    (void)state;
    enum { ROWS = 9, PADDED = 11, N = 5, LD = 70 };
    int32_t ids[PADDED];
    for (int i = 0; i < PADDED; i++) ids[i] = i % 4 * 17;
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        tm_elem t = types[k];
        double *x = randoms(N * LD, 2), *got = randoms(PADDED * N, 1), *g = randoms(ROWS * N, 1),
               *to = randoms(N * LD, 1);
        void *sx = stored(t, x, N * LD), *out = stored(t, got, PADDED * N);
        float *sg = stored(TM_ELEM_F32, g, ROWS * N), *sto = stored(TM_ELEM_F32, to, N * LD);
        tm_gather_columns(t, ROWS, PADDED, N, ids, sx, LD, out);
        tm_scatter_add_columns(ROWS, N, ids, sg, sto, LD);
        for (size_t i = 0; i < PADDED; i++)
            for (size_t j = 0; j < N; j++) {
                near(value(t, out, i * N + j), i < ROWS ? x[j * LD + (size_t)ids[i]] : 0, 0, "gather", i);
                if (i < ROWS) to[j * LD + (size_t)ids[i]] += g[i * N + j];
            }
        all_near(TM_ELEM_F32, sto, to, N * LD, 1e-6, "scatter");
        free(x), free(got), free(g), free(to), free(sx), free(out), free(sg), free(sto);
    }
}

static void softcap(void **state) {
    (void)state;
    static const size_t widths[] = {1, 17, 6001}; /* the last is work for a team */
    for (size_t w = 0; w < TM_COUNT(widths); w++) {
        size_t rows = 3, n = widths[w], ld = n + 3;
        double *x = randoms(rows * ld, 100);
        float *sx = stored(TM_ELEM_F32, x, rows * ld);
        tm_softcap(rows, n, ld, 30, sx);
        for (size_t i = 0; i < rows * ld; i++)
            near((double)sx[i], i % ld < n ? 30 * tanh(x[i] / 30) : x[i], i % ld < n ? 2e-6 : 0, "softcap", i);
        free(x), free(sx);
    }
}

/* A column whose slope of one activation is wrong is found out at start. */
static void (*right_activate)(tm_activation kind, const float *x, float *y, float *slope, size_t n);
static tm_activation wrong_kind;
static void activate_wrong_slope(tm_activation kind, const float *x, float *y, float *slope, size_t n) {
    right_activate(kind, x, y, slope, n);
    if (slope && n && kind == wrong_kind) slope[n - 1] += 0.01F;
}
static void wrong_slope(kernels_table *t) {
    t->isa = "wrong";
    right_activate = t->activate;
    t->activate = activate_wrong_slope;
}
static void wrong_slope_is_not_used(void **state) {
    (void)state;
    char *kept = strdup(getenv("TIDEMILL_ISA"));
    kernels_column first = kernels_columns[0];
    kernels_columns[0] = (kernels_column){"wrong", always, wrong_slope};
    setenv("TIDEMILL_ISA", "wrong", 1);
    static const tm_activation kinds[] = {TM_ACT_SILU, TM_ACT_GELU, TM_ACT_GELU_TANH};
    for (size_t i = 0; i < TM_COUNT(kinds); i++) {
        wrong_kind = kinds[i];
        assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_EINPUT);
        assert_non_null(strstr(tm_error_get()->text, "slope of activate"));
        tm_error_clear();
    }
    kernels_columns[0] = first;
    setenv("TIDEMILL_ISA", kept, 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    free(kept);
}

/* ---- attention ---- */

typedef struct attention_case {
    uint32_t rows, seq, heads, kv_heads, d, window;
    double cap, temperature;
    uint32_t every;
    bool masked, kv_add;
} attention_case;
/* Keys and values of a batch row, from position 0 on. */
typedef struct key_rows {
    const double *k, *v;
    size_t ld_k, ld_v;
    const uint8_t *mask; /* NULL: all are seen */
} key_rows;

/* o of one head of the query at this position. */
static void attention_formula(const attention_case *c, const double *q, key_rows x, size_t position, size_t kv_head,
                              double *o) {
    size_t d = c->d, from = c->window && position >= c->window ? position - c->window + 1 : 0;
    double scale = 1 / sqrt((double)d), sum = 0;
    if (c->every) scale *= 1 + c->temperature * log(1 + floor((double)position / c->every));
    memset(o, 0, d * sizeof *o);
    for (size_t j = from; j <= position; j++) {
        const double *k = x.k + j * x.ld_k + kv_head * d, *v = x.v + j * x.ld_v + kv_head * d;
        double score = 0;
        if (x.mask && !x.mask[j]) continue;
        for (size_t e = 0; e < d; e++) score += scale * q[e] * k[e];
        if (c->cap != 0) score = c->cap * tanh(score / c->cap);
        score = exp(score);
        sum += score;
        for (size_t e = 0; e < d; e++) o[e] += score * v[e];
    }
    for (size_t e = 0; e < d; e++) o[e] = sum > 0 ? o[e] / sum : 0;
}

typedef struct attention_data {
    size_t used, padded, width, ld[3]; /* width: of o; ld: of q, k, v, all of them apart */
    double *x[3], *grad[3], *d_o;
    uint8_t *mask;
} attention_data;

static attention_data attention_begin(const attention_case *c) {
    size_t kv = (size_t)c->kv_heads * c->d;
    attention_data d = {.used = (size_t)c->rows * c->seq, .width = (size_t)c->heads * c->d};
    d.padded = tm_round_up(d.used, 64);
    d.ld[0] = d.width + 3, d.ld[1] = kv + 8, d.ld[2] = kv;
    for (int i = 0; i < 3; i++) d.x[i] = randoms(d.padded * d.ld[i], 1.5), d.grad[i] = randoms(d.padded * d.ld[i], 1);
    d.d_o = randoms(d.padded * d.width, 1);
    d.mask = c->masked ? malloc(d.used) : NULL;
    for (size_t i = 0; d.mask && i < d.used; i++) d.mask[i] = i % c->seq != 0 && uniform() < 0.5;
    return d;
}
static key_rows keys_of(const attention_case *c, const attention_data *d, size_t b) {
    size_t at = b * c->seq;
    return (key_rows){d->x[1] + at * d->ld[1], d->x[2] + at * d->ld[2], d->ld[1], d->ld[2],
                      d->mask ? d->mask + at : NULL};
}
static double attention_loss(const attention_case *c, const attention_data *d, size_t b) {
    double loss = 0, o[64];
    for (size_t row = b * c->seq; row < (b + 1) * c->seq; row++)
        for (size_t h = 0; h < c->heads; h++) {
            attention_formula(c, d->x[0] + row * d->ld[0] + h * c->d, keys_of(c, d, b), row % c->seq,
                              h / (c->heads / c->kv_heads), o);
            for (size_t e = 0; e < c->d; e++) loss += o[e] * d->d_o[row * d->width + h * c->d + e];
        }
    return loss;
}

static void check_output(tm_elem t, const attention_case *c, const attention_data *d, const void *got) {
    double o[64];
    for (size_t row = 0; row < d->used; row++)
        for (size_t h = 0; h < c->heads; h++) {
            attention_formula(c, d->x[0] + row * d->ld[0] + h * c->d, keys_of(c, d, row / c->seq), row % c->seq,
                              h / (c->heads / c->kv_heads), o);
            for (size_t e = 0; e < c->d; e++)
                near(value(t, got, row * d->width + h * c->d + e), o[e], tolerance(t), "o", row);
        }
    for (size_t i = d->used * d->width; i < d->padded * d->width; i++) assert_true(value(t, got, i) == 0);
}

/* Some slopes by q, k or v; what lies between rows, and past them where it is added to, is as it was. */
static void check_gradient(tm_elem t, const attention_case *c, const attention_data *d, int which, const void *got) {
    static const char *const names[] = {"d_q", "d_k", "d_v"};
    size_t ld = d->ld[which], width = which ? (size_t)c->kv_heads * c->d : d->width;
    bool add = which && c->kv_add;
    for (size_t i = 0; i < d->padded * ld; i++) {
        if (i % ld >= width || (i >= d->used * ld && add))
            unchanged(t, got, i, d->grad[which][i], names[which]);
        else if (i >= d->used * ld)
            assert_true(value(t, got, i) == 0);
    }
    for (size_t n = 0; n < 9; n++) {
        size_t row = (size_t)((uniform() + 1) / 2 * (double)d->used);
        size_t at = row * ld + (size_t)((uniform() + 1) / 2 * (double)width);
        double *p = &d->x[which][at], kept = *p, slope = 0;
        *p = kept + 1e-4, slope += attention_loss(c, d, row / c->seq) / 2e-4;
        *p = kept - 1e-4, slope -= attention_loss(c, d, row / c->seq) / 2e-4;
        *p = kept;
        near(value(t, got, at), slope + (add ? d->grad[which][at] : 0), t == TM_ELEM_F32 ? 1e-5 : 2e-2, names[which],
             at);
    }
}

static tm_attention attention_call(tm_elem t, const attention_case *c, const attention_data *d) {
    return (tm_attention){.type = t,
                          .rows = c->rows,
                          .seq = c->seq,
                          .padded = d->padded,
                          .heads = c->heads,
                          .kv_heads = c->kv_heads,
                          .head_dim = c->d,
                          .window = c->window,
                          .scale = (float)(1 / sqrt((double)c->d)),
                          .softcap = (float)c->cap,
                          .temperature = (float)c->temperature,
                          .temperature_every = c->every,
                          .ld_q = d->ld[0],
                          .ld_k = d->ld[1],
                          .ld_v = d->ld[2],
                          .key_mask = d->mask,
                          .kv_add = c->kv_add};
}
static void *attention_workspace(const tm_attention *a, bool backward) {
    return aligned_alloc(64, tm_round_up(tm_attention_workspace(a, backward), 64));
}
static void attention_end(attention_data *d) {
    for (int i = 0; i < 3; i++) free(d->x[i]), free(d->grad[i]);
    free(d->d_o), free(d->mask);
}

static void check_attention(tm_elem t, const attention_case *c) {
    attention_data d = attention_begin(c);
    void *x[3], *grad[3], *d_o = stored(t, d.d_o, d.padded * d.width), *o = malloc(bytes_of(t, d.padded * d.width));
    for (int i = 0; i < 3; i++)
        x[i] = stored(t, d.x[i], d.padded * d.ld[i]), grad[i] = stored(t, d.grad[i], d.padded * d.ld[i]);
    tm_attention a = attention_call(t, c, &d);
    a.q = x[0], a.k = x[1], a.v = x[2], a.d_q = grad[0], a.d_k = grad[1], a.d_v = grad[2], a.o = o, a.d_o = d_o;
    a.lse = malloc(d.padded * c->heads * sizeof *a.lse);
    a.workspace = attention_workspace(&a, false);
    tm_attention_forward(&a);
    free(a.workspace);
    a.workspace = attention_workspace(&a, true);
    tm_attention_backward(&a);
    check_output(t, c, &d, o);
    for (int i = 0; i < 3; i++) check_gradient(t, c, &d, i, grad[i]);
    for (int i = 0; i < 3; i++) free(x[i]), free(grad[i]);
    free(d_o), free(o), free(a.lse), free(a.workspace);
    attention_end(&d);
}

static void attention(void **state) {
    (void)state;
    static const attention_case cases[] = {
        {2, 5, 2, 1, 6, 0, 0, 0, 0, false, false},      {2, 67, 3, 1, 18, 0, 0.7, 0, 0, false, false},
        {1, 130, 2, 2, 16, 37, 1.1, 0, 0, false, true}, {2, 70, 4, 2, 8, 0, 0.5, 0, 0, true, false},
        {1, 129, 2, 1, 8, 65, 0.9, 0, 0, true, true},   {2, 66, 2, 1, 10, 0, 0, 0.4, 5, false, true},
        {1, 131, 3, 3, 8, 40, 0.8, 0.3, 9, true, true}};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t i = 0; i < TM_COUNT(cases); i++) check_attention(types[k], &cases[i]);
}

/* Lengths of the documents of a row of 200 tokens: of one token, of a tile and beside it, of several. */
enum { DOCUMENTS = 7, DOCUMENT_ROWS = 2, DOCUMENT_SEQ = 200 };
static const uint32_t document[DOCUMENT_ROWS][DOCUMENTS] = {{1, 65, 1, 3, 64, 17, 49}, {131, 2, 63, 1, 1, 1, 1}};

static void fill_begin(uint32_t *begin) {
    for (size_t b = 0, at = 0; b < DOCUMENT_ROWS; b++)
        for (size_t i = 0, first = 0; i < DOCUMENTS; first += document[b][i++])
            for (size_t s = 0; s < document[b][i]; s++) begin[at++] = (uint32_t)first;
}

/* What kernels computed of tokens [at, at + n), as they lie. */
static void same_rows(tm_elem t, const void *alone, const void *packed, size_t at, size_t n, size_t ld,
                      const char *what) {
    size_t row = ld * tm_elem_bytes(t);
    if (memcmp(alone, (const char *)packed + at * row, n * row) != 0) fail_msg("%s of the document at %zu", what, at);
}

/* A document of a packed row, computed as a row: the same bits. Gradients begin as in the packed row, for kv_add. */
static void check_document(tm_elem t, const tm_attention *packed, const void *const began[3], size_t at, uint32_t n) {
    size_t width = (size_t)packed->heads * packed->head_dim, ld[] = {packed->ld_q, packed->ld_k, packed->ld_v};
    const void *from[] = {packed->q, packed->k, packed->v}, *whole[] = {packed->d_q, packed->d_k, packed->d_v};
    void *grad[3];
    tm_attention a = *packed;
    for (int i = 0; i < 3; i++) {
        size_t row = ld[i] * tm_elem_bytes(t);
        from[i] = (const char *)from[i] + at * row;
        grad[i] = memcpy(malloc(n * row), (const char *)began[i] + at * row, n * row);
    }
    a.rows = 1, a.seq = n, a.padded = n, a.begin = NULL, a.key_mask = packed->key_mask ? packed->key_mask + at : NULL;
    a.q = from[0], a.k = from[1], a.v = from[2], a.d_q = grad[0], a.d_k = grad[1], a.d_v = grad[2];
    a.d_o = (const char *)packed->d_o + at * width * tm_elem_bytes(t);
    a.o = malloc(n * width * tm_elem_bytes(t)), a.lse = malloc(n * packed->heads * sizeof *a.lse);
    a.workspace = attention_workspace(&a, true);
    tm_attention_forward(&a);
    tm_attention_backward(&a);
    same_rows(t, a.o, packed->o, at, n, width, "o");
    same_rows(TM_ELEM_F32, a.lse, packed->lse, at, n, packed->heads, "lse");
    for (int i = 0; i < 3; i++) same_rows(t, grad[i], whole[i], at, n, ld[i], "gradient"), free(grad[i]);
    free(a.o), free(a.lse), free(a.workspace);
}

static void (*counted_gemm)(size_t m, size_t n, size_t k, const float *a, size_t ras, size_t cas, const float *b,
                            size_t ldb, float *c, size_t ldc, bool add);
static _Atomic uint64_t counted;
static void counting_gemm(size_t m, size_t n, size_t k, const float *a, size_t ras, size_t cas, const float *b,
                          size_t ldb, float *c, size_t ldc, bool add) {
    counted += m * n;
    counted_gemm(m, n, k, a, ras, cas, b, ldb, c, ldc, add);
}

static void check_documents(tm_elem t, const attention_case *c) {
    attention_data d = attention_begin(c);
    uint32_t begin[DOCUMENT_ROWS * DOCUMENT_SEQ];
    void *x[3], *grad[3], *began[3], *d_o = stored(t, d.d_o, d.padded * d.width);
    tm_rope rope;
    tm_rope_frequencies(&rope, c->d, 10000);
    assert_int_equal(tm_rope_fill(&rope, 100), TM_OK);
    fill_begin(begin);
    for (int i = 0; i < 3; i++) {
        x[i] = stored(t, d.x[i], d.padded * d.ld[i]);
        grad[i] = stored(t, d.grad[i], d.padded * d.ld[i]), began[i] = stored(t, d.grad[i], d.padded * d.ld[i]);
    }
    tm_attention a = attention_call(t, c, &d);
    a.q = x[0], a.k = x[1], a.v = x[2], a.d_q = grad[0], a.d_k = grad[1], a.d_v = grad[2], a.d_o = d_o;
    a.o = malloc(bytes_of(t, d.padded * d.width)), a.lse = malloc(d.padded * c->heads * sizeof *a.lse);
    a.begin = begin, a.rope = &rope, a.workspace = attention_workspace(&a, true);
    counted_gemm = kernels.small_gemm, kernels.small_gemm = counting_gemm, counted = 0;
    tm_attention_forward(&a);
    tm_attention_backward(&a);
    uint64_t whole = counted;
    counted = 0;
    for (size_t b = 0, at = 0; b < DOCUMENT_ROWS; b++)
        for (size_t i = 0; i < DOCUMENTS; at += document[b][i++])
            check_document(t, &a, (const void *const *)began, at, document[b][i]);
    assert_int_equal(counted, whole); /* the work is that of the documents alone */
    kernels.small_gemm = counted_gemm;
    for (int i = 0; i < 3; i++) free(x[i]), free(grad[i]), free(began[i]);
    free(d_o), free(a.o), free(a.lse), free(a.workspace);
    tm_rope_free(&rope);
    attention_end(&d);
}

static void documents(void **state) {
    (void)state;
    static const attention_case cases[] = {{DOCUMENT_ROWS, DOCUMENT_SEQ, 3, 1, 18, 0, 0, 0, 0, false, false},
                                           {DOCUMENT_ROWS, DOCUMENT_SEQ, 4, 2, 16, 37, 1.1, 0, 0, false, true},
                                           {DOCUMENT_ROWS, DOCUMENT_SEQ, 2, 2, 8, 0, 0.5, 0, 0, true, false},
                                           {DOCUMENT_ROWS, DOCUMENT_SEQ, 3, 3, 8, 40, 0.8, 0.3, 9, true, true}};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t i = 0; i < TM_COUNT(cases); i++) check_documents(types[k], &cases[i]);
}

/* The new keys are stored at their positions, and seen with what was there; the mask is not asked. */
enum { CAPACITY = 140 };
static void check_cache(tm_elem t, const attention_case *c) {
    static const uint32_t first[] = {70, 3}, place[] = {1, 0};
    size_t kv = (size_t)c->kv_heads * c->d, entries = (size_t)c->rows * CAPACITY;
    attention_data d = attention_begin(c);
    double *cache = randoms(entries * 2 * kv, 1.5), want[64];
    void *x[3], *o = malloc(bytes_of(t, d.padded * d.width)), *stored_cache = stored(t, cache, entries * 2 * kv);
    for (int i = 0; i < 3; i++) x[i] = stored(t, d.x[i], d.padded * d.ld[i]);
    for (size_t row = 0; row < d.used; row++) {
        size_t at = place[row / c->seq] * CAPACITY + first[row / c->seq] + row % c->seq;
        memcpy(cache + at * 2 * kv, d.x[1] + row * d.ld[1], kv * sizeof *cache);
        memcpy(cache + at * 2 * kv + kv, d.x[2] + row * d.ld[2], kv * sizeof *cache);
    }
    tm_attention a = attention_call(t, c, &d);
    a.q = x[0], a.k = x[1], a.v = x[2], a.o = o, a.kv_cache = stored_cache, a.kv_capacity = CAPACITY;
    a.decode = c->seq == 1, a.cache_row = place, a.position = first,
    a.lse = malloc(d.padded * c->heads * sizeof *a.lse);
    a.workspace = attention_workspace(&a, false);
    tm_attention_forward(&a);
    for (size_t i = 0; i < entries * 2 * kv; i++) assert_true(value(t, stored_cache, i) == cache[i]);
    for (size_t row = 0; row < d.used; row++)
        for (size_t h = 0; h < c->heads; h++) {
            const double *keys = cache + place[row / c->seq] * CAPACITY * 2 * kv;
            attention_formula(c, d.x[0] + row * d.ld[0] + h * c->d, (key_rows){keys, keys + kv, 2 * kv, 2 * kv, NULL},
                              first[row / c->seq] + row % c->seq, h / (c->heads / c->kv_heads), want);
            for (size_t e = 0; e < c->d; e++)
                near(value(t, o, row * d.width + h * c->d + e), want[e], tolerance(t), "o by a cache", row);
        }
    for (int i = 0; i < 3; i++) free(x[i]);
    free(o), free(stored_cache), free(cache), free(a.lse), free(a.workspace);
    attention_end(&d);
}

static void attention_cache(void **state) {
    (void)state;
    static const attention_case cases[] = {{2, 1, 4, 2, 10, 0, 0.6, 0, 0, false, false},
                                           {2, 1, 3, 1, 8, 67, 0.9, 0.4, 7, true, false},
                                           {2, 1, 2, 2, 6, 0, 0, 0.3, 5, false, false},
                                           {2, 3, 4, 2, 10, 0, 0.6, 0, 0, true, false},
                                           {2, 66, 2, 1, 8, 30, 0.8, 0.4, 7, false, false}};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t i = 0; i < TM_COUNT(cases); i++) check_cache(types[k], &cases[i]);
}

/* A window's ring gives the bits that a cache of all positions does: chunks of a prompt, one copied, then answers. */
static void check_ring(tm_elem t, uint32_t window, double cap) {
    enum { ROWS = 2, SEQ = 61, ALL = 1024, D = 32, COPIED = 6, CHUNKS = 9, ANSWERS = 200 };
    const attention_case c = {ROWS, SEQ, 4, 2, D, window, cap, 0, 0, false, false};
    uint64_t ring = tm_attention_ring(window, SEQ), entry = (uint64_t)2 * c.kv_heads * D;
    uint32_t position[ROWS] = {0, 0}, place[ROWS] = {1, 2}, from[ROWS] = {UINT32_MAX, UINT32_MAX};
    attention_data d = attention_begin(&c);
    void *o[2], *cache[2];
    assert_true(ring % TM_ATTENTION_TILE == 0 && ring < ALL);
    for (int k = 0; k < 2; k++) {
        o[k] = calloc(d.padded * d.width, 4), cache[k] = malloc(3 * (k ? ring : ALL) * entry * 4);
        memset(cache[k], 0xff, 3 * (k ? ring : ALL) * entry * 4); /* a NaN where nothing was written */
    }
    tm_attention a = attention_call(t, &c, &d);
    a.cache_row = place, a.cache_from = from, a.position = position;
    a.lse = malloc(d.padded * c.heads * sizeof *a.lse), a.workspace = attention_workspace(&a, false);
    for (unsigned call = 0; call < CHUNKS + ANSWERS; call++) {
        a.decode = call >= CHUNKS, a.seq = a.decode ? 1 : SEQ;
        from[1] = UINT32_MAX;
        if (call == COPIED) place[1] = 0, from[1] = place[0], position[1] = position[0]; /* which goes on beside it */
        void *x[3];
        for (int i = 0; i < 3; i++) {
            double *drawn = randoms(d.padded * d.ld[i], 1.5);
            x[i] = stored(t, drawn, d.padded * d.ld[i]);
            free(drawn);
        }
        a.q = x[0], a.k = x[1], a.v = x[2];
        for (int k = 0; k < 2; k++) {
            a.o = o[k], a.kv_cache = cache[k], a.kv_capacity = k ? (uint32_t)ring : ALL;
            tm_attention_forward(&a);
        }
        assert_memory_equal(o[0], o[1], bytes_of(t, (size_t)ROWS * a.seq * d.width));
        for (int i = 0; i < 3; i++) free(x[i]);
        for (int b = 0; b < ROWS; b++) position[b] += a.seq - (call < 3 && b ? 7 : 0); /* rows of other lengths */
    }
    for (int k = 0; k < 2; k++) free(o[k]), free(cache[k]);
    free(a.lse), free(a.workspace);
    attention_end(&d);
}

static void attention_ring(void **state) {
    (void)state;
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        check_ring(types[k], 1, 0);
        check_ring(types[k], 8, 0);
        check_ring(types[k], 100, 1.1);
        check_ring(types[k], 131, 0);
    }
}

/* ---- embedding ---- */

static void check_embedding(tm_elem t, bool add, bool clear, float scale) {
    enum { N = 1027, ROWS = 6, PADDED = 8, FIRST = 4, COUNT = 4 };
    static const int32_t ids[ROWS] = {4, 11, 7, 4, 0, -1};
    double *w = randoms(COUNT * N, 1), *old = randoms(PADDED * N, 1), *dout = randoms(ROWS * N, 1);
    double *old_grad = randoms(COUNT * N, 1);
    void *sw = stored(t, w, COUNT * N), *out = stored(t, old, PADDED * N), *sd = stored(t, dout, ROWS * N);
    float *grad = stored(TM_ELEM_F32, old_grad, COUNT * N);
    double factor = scale != 0 ? (double)scale : 1;
    tm_embed a = {.type = t, .rows = ROWS, .n = N, .ids = ids, .first = FIRST, .count = COUNT, .scale = scale};
    a.padded = PADDED, a.weight = sw, a.out = out, a.add = add, a.clear = clear;
    a.dout = sd, a.grad = grad, a.grad_add = add;
    tm_embed_forward(&a);
    tm_embed_backward(&a);
    for (size_t i = 0; i < PADDED * N; i++) {
        size_t r = i / N;
        bool here = r < ROWS && ids[r] >= FIRST && ids[r] < FIRST + COUNT;
        if (here)
            near(value(t, out, i), factor * w[(size_t)(ids[r] - FIRST) * N + i % N] + (add ? old[i] : 0), tolerance(t),
                 "embedding", i);
        else
            unchanged(t, out, i, clear ? 0 : old[i], "embedding");
    }
    for (size_t i = 0; i < COUNT * N; i++) {
        double want = add ? old_grad[i] : 0;
        for (size_t r = 0; r < ROWS; r++)
            if (ids[r] == (int32_t)(i / N) + FIRST) want += factor * dout[r * N + i % N];
        near((double)grad[i], want, 2e-7 * (2 + factor), "embedding gradient", i);
    }
    free(w), free(old), free(dout), free(old_grad), free(sw), free(out), free(sd), free(grad);
}

static void embedding(void **state) {
    (void)state;
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        check_embedding(types[k], false, true, 33.9F);
        check_embedding(types[k], false, false, 0.22F);
        check_embedding(types[k], true, false, 0);
        check_embedding(types[k], true, true, 12);
    }
}

/* ---- head with a cap ---- */

/* The vocabulary in two parts, the second longer than a span; against the softmax of capped logits, times the cap's
 * slope by central differences. */
static void head(void **state) {
    (void)state;
    enum { ROWS = 3, VOCAB = 1187, FIRST = 41 };
    static const int32_t labels[] = {40, -100, 1186, 41};
    static const uint32_t row[ROWS] = {0, 2, 3};
    static const float coefficient[] = {0.5F, 0, 0.75F, -1.25F};
    const double cap = 9;
    double *raw = randoms(ROWS * VOCAB, 20), sums[ROWS] = {0};
    float *x = stored(TM_ELEM_F32, raw, ROWS * VOCAB), *part = malloc(ROWS * VOCAB * sizeof *part);
    for (size_t i = 0; i < ROWS * VOCAB; i++) sums[i / VOCAB] += exp(cap * tanh(raw[i] / cap));
    tm_head_state s[4];
    for (size_t i = 0; i < 4; i++) s[i] = (tm_head_state){.max = -INFINITY};
    for (size_t pass = 0; pass < 2 * (1 + TM_COUNT(types)); pass++) { /* both parts forward, then of each type */
        size_t first = pass % 2 ? FIRST : 0, n = pass % 2 ? VOCAB - FIRST : FIRST;
        tm_elem t = pass < 2 ? TM_ELEM_F32 : types[pass / 2 - 1];
        for (size_t i = 0; i < ROWS; i++) memcpy(part + i * n, x + i * VOCAB + first, n * sizeof *x);
        tm_softcap(ROWS, n, n, (float)cap, part);
        tm_head a = {.rows = ROWS, .row = row, .first = (uint32_t)first, .count = (uint32_t)n, .ld = n, .type = t};
        a.logits = part, a.labels = labels, a.state = s, a.softcap = (float)cap, a.coefficient = coefficient;
        if (pass < 2) {
            tm_head_update(&a);
            continue;
        }
        tm_head_gradient(&a);
        for (size_t at = 0; at < ROWS * n; at++) {
            size_t i = at / n, v = first + at % n, stride = t == TM_ELEM_F32 ? n : 2 * n;
            double l = raw[i * VOCAB + v];
            double slope = cap * (tanh((l + step) / cap) - tanh((l - step) / cap)) / (2 * step);
            double p = exp(cap * tanh(l / cap)) / sums[i] - ((size_t)labels[row[i]] == v);
            near(value(t, part, i * stride + at % n), (double)coefficient[row[i]] * p * slope,
                 t == TM_ELEM_F32 ? 3e-6 : tolerance(t), "dlogits", v);
        }
    }
    for (size_t i = 0; i < ROWS; i++) {
        near((double)tm_head_state_lse(&s[row[i]]), log(sums[i]), 1e-6, "lse", i);
        near((double)s[row[i]].label, cap * tanh(raw[i * VOCAB + (size_t)labels[row[i]]] / cap), 2e-6, "label", i);
    }
    free(raw), free(x), free(part);
}

/* ---- rope ---- */

static void check_rope(tm_elem t, uint32_t d, uint32_t rotary, bool interleaved, float factor) {
    const uint32_t seq = 5, rows = 10, heads = 2, ld = 3 * d + 1, first[] = {0, 9}, half = rotary / 2;
    tm_rope r;
    tm_rope_frequencies_part(&r, d, rotary, 10000.0);
    r.interleaved = interleaved, r.factor = factor;
    assert_int_equal(tm_rope_fill(&r, 6), TM_OK); /* positions from 6 on are computed on the way */
    for (int inverse = 0; inverse < 2; inverse++) {
        double *x = randoms(rows * ld, 1);
        void *sx = stored(t, x, rows * ld);
        tm_rope_apply(&r, t, 0, rows, ld, heads, sx, (tm_positions){first, seq, NULL}, inverse);
        for (size_t at = 0; at < rows * ld; at++) {
            size_t row = at / ld, c = at % ld, i = c % d;
            if (c >= heads * d || i >= rotary) {
                unchanged(t, sx, at, x[at], "rope");
                continue;
            }
            size_t pair = interleaved ? i / 2 : i % half, other = interleaved ? i ^ 1 : i < half ? i + half : i - half;
            double angle = (double)(row % seq + first[row / seq]) * pow(10000.0, -2.0 * (double)pair / rotary);
            double sine = (other > i) != (inverse == 1) ? -sin(angle) : sin(angle);
            double want = (double)factor * (x[at] * cos(angle) + x[at - i + other] * sine);
            near(value(t, sx, at), want, t == TM_ELEM_F32 ? 3e-6 : 8e-3, "rope", at);
        }
        free(x), free(sx);
    }
    tm_rope_free(&r);
}

/* Documents of a row begin at position 0, wherever they lie. */
static void rope_of_documents(tm_elem t, bool inverse) {
    enum { D = 18, LD = 2 * D + 3, ROWS = DOCUMENT_ROWS * DOCUMENT_SEQ };
    uint32_t begin[ROWS];
    size_t row = LD * tm_elem_bytes(t);
    tm_rope r;
    double *x = randoms((size_t)ROWS * LD, 1);
    char *packed = stored(t, x, (size_t)ROWS * LD), *alone = stored(t, x, (size_t)ROWS * LD);
    tm_rope_frequencies(&r, D, 10000.0);
    assert_int_equal(tm_rope_fill(&r, 40), TM_OK);
    fill_begin(begin);
    tm_rope_apply(&r, t, 3, ROWS - 3, LD, 2, packed + 3 * row, (tm_positions){NULL, DOCUMENT_SEQ, begin}, inverse);
    tm_rope_apply(&r, t, 0, 3, LD, 2, packed, (tm_positions){NULL, DOCUMENT_SEQ, begin}, inverse);
    for (size_t b = 0, at = 0; b < DOCUMENT_ROWS; b++)
        for (size_t i = 0; i < DOCUMENTS; at += document[b][i++])
            tm_rope_apply(&r, t, 0, document[b][i], LD, 2, alone + at * row, (tm_positions){NULL, document[b][i], NULL},
                          inverse);
    assert_memory_equal(packed, alone, ROWS * row);
    free(x), free(packed), free(alone);
    tm_rope_free(&r);
}

static void rope(void **state) {
    (void)state;
    for (size_t k = 0; k < 2 * TM_COUNT(types); k++) rope_of_documents(types[k / 2], k % 2);
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            check_rope(types[k], 2, 2, interleaved, 1);
            check_rope(types[k], 18, 18, interleaved, 1.25F);
            check_rope(types[k], 20, 6, interleaved, 1);
            check_rope(types[k], 80, 32, interleaved, 0.75F);
        }
}

/* transformers, modeling_rope_utils.py, _compute_yarn_parameters */
static double yarn_dim(const tm_yarn *y, double rotations, double dim) {
    return dim * log(y->original / (rotations * 2 * M_PI)) / (2 * log(y->theta));
}
static double yarn_frequency(const tm_yarn *y, size_t i, double dim) {
    double low = yarn_dim(y, y->beta_fast, dim), high = yarn_dim(y, y->beta_slow, dim);
    if (y->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1), wave = pow(y->theta, 2 * (double)i / dim);
    return 1 / (y->factor * wave) * ramp + 1 / wave * (1 - ramp);
}

static void frequencies(void **state) {
    (void)state;
    static const tm_yarn yarns[] = {{10000, 40, 4096, 32, 1, true},
                                    {150000, 32, 4096, 32, 1, false},
                                    {1000000, 4, 32768, 32, 1, true},
                                    {10000, 16, 8, 32, 1, true}, /* all of them are divided, the range is empty */
                                    {10000, 2, 1e9, 32, 1, false}};
    static const uint32_t sizes[][2] = {{64, 64}, {18, 18}, {128, 48}};
    for (size_t k = 0; k < TM_COUNT(yarns) * TM_COUNT(sizes); k++) {
        const tm_yarn *y = &yarns[k % TM_COUNT(yarns)];
        const uint32_t *size = sizes[k / TM_COUNT(yarns)];
        tm_rope r;
        tm_rope_frequencies_part(&r, size[0], size[1], y->theta);
        tm_rope_scale_yarn(&r, y);
        for (size_t i = 0; i < size[1] / 2; i++) {
            double want = yarn_frequency(y, i, size[1]);
            within((double)r.inv_freq[i], want, 1e-5 * want, "yarn", i);
        }
    }
    static const float divisor[] = {1, 1.5F, 2, 31, 64.25F};
    tm_rope r;
    tm_rope_frequencies_part(&r, 18, 14, 500000.0);
    tm_rope_scale_each(&r, divisor, TM_COUNT(divisor), 500000.0);
    for (size_t i = 0; i < 7; i++) { /* those without a divisor are as they were */
        double want = pow(500000.0, -2.0 * (double)i / 14) / (i < TM_COUNT(divisor) ? (double)divisor[i] : 1);
        within((double)r.inv_freq[i], want, 2e-6 * want, "each", i);
    }
}

static int run_column(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(activations),
        cmocka_unit_test(softcap),
        cmocka_unit_test(scale),
        cmocka_unit_test(dropout),
        cmocka_unit_test(squares),
        cmocka_unit_test(magnitudes),
        cmocka_unit_test(columns),
        cmocka_unit_test(attention),
        cmocka_unit_test(attention_cache),
        cmocka_unit_test(attention_ring),
        cmocka_unit_test(documents),
        cmocka_unit_test(embedding),
        cmocka_unit_test(head),
        cmocka_unit_test(rope),
        cmocka_unit_test(frequencies),
        cmocka_unit_test(wrong_slope_is_not_used),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return run_columns(run_column);
}

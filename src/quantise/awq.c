/* AWQ (Lin et al. 2023) of a block. Columns are multiplied by s = (mean |x|)^alpha before they are rounded, and what they
 * multiply is divided by it: alpha is the one of 0, 0.05 .. 0.95 with which rounding loses least. What it loses is
 * sum over inputs of |(W - Q) x|^2 = trace of (W - Q) H (W - Q)^T, with H the sum of x x^T: no input is needed again.
 * Then each group's largest magnitude is clipped to the one of 1, 0.95 .. 0.5 that loses least within the group. */
#include "quantise/awq_internal.h"

#include <math.h>
#include <string.h>

enum { SAMPLE_ROWS = 128, STEPS = 20, CLIPS = 11 };

/* Scratch for some rows. */
typedef struct awq_rows {
    uint64_t n, rows;
    float *w, *lost, *product; /* [rows][n] */
    float *scale, *clipped;    /* [rows][groups]; [rows] */
    double *least;             /* [rows] */
    int8_t *codes;             /* [rows][n] */
} awq_rows;

static char *place(awq_rows *a, char *at) {
    enum { LEAST_GROUP = 32 };
    a->w = quantise_take(&at, a->rows * a->n * sizeof(float));
    a->lost = quantise_take(&at, a->rows * a->n * sizeof(float));
    a->product = quantise_take(&at, a->rows * a->n * sizeof(float));
    a->scale = quantise_take(&at, a->rows * (a->n / LEAST_GROUP) * sizeof(float));
    a->clipped = quantise_take(&at, a->rows * sizeof(float));
    a->least = quantise_take(&at, a->rows * sizeof(double));
    a->codes = quantise_take(&at, a->rows * a->n);
    return at;
}

static uint64_t rows_at_once(uint64_t width) {
    return tm_max_u64(SAMPLE_ROWS, quantise_rows_at_once(UINT64_MAX, width));
}

uint64_t awq_scratch_bytes(uint64_t width) {
    awq_rows a = {.n = width, .rows = rows_at_once(width)};
    return (uint64_t)(uintptr_t)place(&a, NULL);
}

/* What a scale that is tried takes, and some rows; sums by element count as several. */
static double try_work(double n) {
    return 4 * (double)SAMPLE_ROWS * n * n;
}

static double rows_work(double rows, double n) {
    return 8 * rows * n * n + 8000 * rows * n;
}

double awq_work(const walk *w) {
    double sum = 0;
    for (uint32_t i = 0; i < w->n_inputs; i++) sum += STEPS * try_work((double)w->input[i].width);
    for (uint32_t i = 0; i < w->n_matrices; i++)
        sum += rows_work((double)w->matrix[i].rows, (double)w->matrix[i].width);
    return sum;
}

/* ---- what is lost ---- */

/* lost [rows][n] times H; the sum over rows of lost H lost^T. */
static double quadratic(const awq_rows *a, const float *h, const float *lost, uint64_t rows) {
    tm_gemm_args g = {.m = rows, .n = a->n, .k = a->n, .alpha = 1};
    g.a = lost, g.lda = a->n, g.b = h, g.ldb = a->n, g.c = a->product, g.ldc = a->n;
    double sum = 0;
    tm_gemm(&g);
    for (uint64_t i = 0; i < rows * a->n; i++) sum += (double)lost[i] * (double)a->product[i];
    return sum;
}

/* Rounded with these columns' scales: lost, as the unscaled weights lose it. */
static void round_scaled(const awq_rows *a, const nearest_opts *o, uint64_t rows, const float *s) {
#pragma omp parallel for schedule(static)
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t at = 0; at < a->n; at += o->group) {
            const float *w = a->w + r * a->n + at;
            float x[NEAREST_GROUP];
            for (uint64_t i = 0; i < o->group; i++) x[i] = w[i] * s[at + i];
            float scale = nearest_scale(o->fmt, nearest_largest(x, o->group), 1);
            for (uint64_t i = 0; i < o->group; i++)
                a->lost[r * a->n + at + i] = (x[i] - (float)nearest_code(x[i], scale) * scale) / s[at + i];
        }
}

/* ---- the scale ---- */

static void scale_of(const walk_input *in, double tokens, double alpha, float *s) {
    double least = INFINITY, most = 0;
    for (uint64_t i = 0; i < in->width; i++) {
        double v = pow(fmax(in->magnitude[i] / tokens, 1e-4), alpha);
        s[i] = (float)v;
        least = fmin(least, v), most = fmax(most, v);
    }
    float by = (float)(1 / sqrt(least * most));
    for (uint64_t i = 0; i < in->width; i++) s[i] *= by;
}

/* Evenly chosen rows of the input's matrices: how many are in a->w. */
static tm_status sample(const quantise_job *q, uint32_t input, awq_rows *a, uint64_t *rows) {
    uint64_t all = 0, every;
    const walk *w = &q->w;
    *rows = 0;
    for (uint32_t i = 0; i < w->n_matrices; i++) all += w->matrix[i].input == input ? w->matrix[i].rows : 0;
    every = (all + SAMPLE_ROWS - 1) / SAMPLE_ROWS;
    for (uint32_t i = 0; i < w->n_matrices; i++)
        for (uint64_t r = every / 2; w->matrix[i].input == input && r < w->matrix[i].rows && *rows < SAMPLE_ROWS;
             r += every)
            TM_TRY(tm_source_read_f32(q->c->src, w->matrix[i].source, r * a->n, a->n, a->w + (*rows)++ * a->n));
    return TM_OK;
}

/* False in *better: rounding loses least without a scale. */
static tm_status search_scale(quantise_job *q, uint32_t input, awq_rows *a, float *tried, float *best, bool *better) {
    const walk_input *in = &q->w.input[input];
    double least = INFINITY;
    uint64_t rows;
    TM_TRY(sample(q, input, a, &rows));
    *better = false;
    for (int k = 0; k < STEPS && rows > 0; k++) {
        scale_of(in, (double)q->w.tokens, (double)k / STEPS, tried);
        round_scaled(a, &q->o, rows, tried);
        double lost = quadratic(a, in->products, a->lost, rows);
        TM_TRY(walk_did(&q->w, try_work((double)in->width)));
        if (!(lost < least)) continue;
        least = lost;
        *better = k > 0;
        memcpy(best, tried, in->width * sizeof *best);
    }
    return TM_OK;
}

/* ---- rounding ---- */

/* Of the group at `at`: for each row the clip that loses least within it. */
static void clip_group(awq_rows *a, const nearest_opts *o, const float *h, uint64_t at) {
    uint64_t groups = a->n / o->group, g = at / o->group;
    tm_gemm_args p = {.m = a->rows, .n = o->group, .k = o->group, .alpha = 1, .lda = a->n, .ldb = a->n, .ldc = a->n};
    p.a = a->lost + at, p.b = h + at * a->n + at, p.c = a->product + at;
    for (int k = 0; k < CLIPS; k++) {
#pragma omp parallel for schedule(static)
        for (uint64_t r = 0; r < a->rows; r++) {
            const float *w = a->w + r * a->n + at;
            float scale = nearest_scale(o->fmt, nearest_largest(w, o->group), 1 - 0.05 * k);
            for (uint64_t i = 0; i < o->group; i++)
                a->lost[r * a->n + at + i] = w[i] - (float)nearest_code(w[i], scale) * scale;
            a->clipped[r] = scale;
        }
        tm_gemm(&p);
        for (uint64_t r = 0; r < a->rows; r++) {
            double sum = 0;
            for (uint64_t i = r * a->n + at; i < r * a->n + at + o->group; i++)
                sum += (double)a->lost[i] * (double)a->product[i];
            if (k == 0 || sum < a->least[r]) a->least[r] = sum, a->scale[r * groups + g] = a->clipped[r];
        }
    }
}

static void round_rows(const awq_rows *a, const nearest_opts *o) {
#pragma omp parallel for schedule(static)
    for (uint64_t r = 0; r < a->rows; r++)
        for (uint64_t i = r * a->n; i < (r + 1) * a->n; i++) {
            float scale = a->scale[i / o->group];
            a->codes[i] = (int8_t)nearest_code(a->w[i], scale);
            a->lost[i] = a->w[i] - (float)a->codes[i] * scale;
        }
}

typedef struct awq_sums {
    double power, lost, full, loss;
} awq_sums;

static void add_rows(const awq_rows *a, const float *h, awq_sums *s) {
    for (uint64_t i = 0; i < a->rows * a->n; i++) {
        s->power += (double)a->w[i] * (double)a->w[i];
        s->lost += (double)a->lost[i] * (double)a->lost[i];
    }
    s->loss += quadratic(a, h, a->lost, a->rows);
    s->full += quadratic(a, h, a->w, a->rows);
}

static tm_status awq_matrix(quantise_job *q, const awq_fold *fold, uint32_t matrix, char *scratch) {
    const walk_matrix *x = &q->w.matrix[matrix];
    const float *h = q->w.input[x->input].products;
    awq_sums sums = {0};
    TM_ASSERT(scratch + awq_scratch_bytes(x->width) <= q->scratch + q->scratch_bytes);
    for (uint64_t row = 0, rows; row < x->rows; row += rows) {
        rows = tm_min_u64(rows_at_once(x->width), x->rows - row);
        awq_rows a = {.n = x->width, .rows = rows};
        (void)place(&a, scratch);
        TM_TRY(tm_source_read_f32(q->c->src, x->source, row * x->width, rows * x->width, a.w));
        awq_scale_rows(&q->w, fold, matrix, row, rows, a.w);
        for (uint64_t at = 0; at < x->width; at += q->o.group) clip_group(&a, &q->o, h, at);
        round_rows(&a, &q->o);
        add_rows(&a, h, &sums);
        TM_TRY(tm_codes_put(q->c->to, x->source, row, rows, a.codes, a.scale));
        TM_TRY(walk_did(&q->w, rows_work((double)rows, (double)x->width)));
    }
    if (!isfinite(sums.power) || !isfinite(sums.loss))
        return tm_fail(TM_EINPUT, "%s: '%s' or what it multiplies has values that are not finite",
                       tm_source_path(q->c->src), tm_source_tensor_get(q->c->src, x->source)->name);
    tm_source_forget(q->c->src, x->source);
    return tm_codes_done(q->c->to, x->source, sums.power, sums.lost,
                         sums.full > 0 ? sqrt(fmax(sums.loss, 0) / sums.full) : 0);
}

/* ---- the block ---- */

/* What the scaled columns multiply. */
static void scale_products(walk_input *in, const float *s) {
#pragma omp parallel for schedule(static)
    for (uint64_t i = 0; i < in->width; i++)
        for (uint64_t k = 0; k < in->width; k++) in->products[i * in->width + k] /= s[i] * s[k];
}

tm_status awq_block(quantise_job *q) {
    awq_fold fold[WALK_INPUTS] = {{0}};
    char *at = q->scratch;
    float *scale[WALK_INPUTS], *tried;
    for (uint32_t i = 0; i < q->w.n_inputs; i++) scale[i] = quantise_take(&at, q->w.input[i].width * sizeof(float));
    uint64_t widest = 0;
    for (uint32_t i = 0; i < q->w.n_inputs; i++) widest = tm_max_u64(widest, q->w.input[i].width);
    tried = quantise_take(&at, widest * sizeof(float));
    for (uint32_t i = 0; i < q->w.n_inputs; i++) {
        awq_rows a = {.n = q->w.input[i].width, .rows = SAMPLE_ROWS};
        bool better = false;
        (void)place(&a, at);
        fold[i] = awq_find_fold(&q->w, i);
        if (fold[i].norm || fold[i].linear) TM_TRY(search_scale(q, i, &a, tried, scale[i], &better));
        if (!better) continue;
        fold[i].scale = scale[i];
        scale_products(&q->w.input[i], scale[i]);
    }
    for (uint32_t i = 0; i < q->w.n_matrices; i++) TM_TRY(awq_matrix(q, fold, i, at));
    return awq_put_vectors(q, fold, SAMPLE_ROWS * widest, (float *)(void *)at);
}

/* Adafactor in transformers' order of operations (optimizer.h: "tensors in passes").
 *
 *     beta2 = 1 - t^decay_rate;  rho = lr, or with relative_step min(1e-2 or 1e-6 t, 1 / sqrt(t))
 *     pass 0   row sums of w^2 -> rms(w);  rate = rho * max(eps_scale, rms(w))  (scale_parameter)
 *              row and column sums of g^2 -> R, C = running means of g^2 + eps over columns, rows
 *     pass 1   u = g * 1/sqrt(R_i / mean(R)) * 1/sqrt(C_j)          vector: u = g / sqrt(V), V the new running mean
 *              row sums of u^2 -> rms(u)
 *     pass 2   u = u / max(1, rms(u) / clip_threshold) * rate;  with beta1: m = beta1 m + (1 - beta1) u, u = m
 *              w = w - weight_decay * rate * w - u; a vector's V is kept
 *
 * Sums are in double: of a row from its first column to its last, of a column from the first row to the last, so that
 * no cut of the spans changes them; then over rows in order. A vector is one row. */
#include "optim/spans_internal.h"

#include <math.h>
#include <string.h>

/* ---- scratch -------------------------------------------------------------------------------- */

/* The sums first, since ranks add them up; then what a turn makes of them. */
typedef struct sums {
    uint64_t rows, columns; /* of all matrices; a vector has one row and no factors */
    double *row_w, *row_g, *row_u, *column_g;
    double *rate, *shrink; /* the step's rate; what divides the update */
    double *row_factor, *column_factor;
} sums;

static uint64_t row_count(const tm_optim_shape *s) {
    return s->matrices * (s->rows ? s->rows : 1);
}
static sums sums_of(const tm_optim_tensor *t) {
    sums s = {.rows = row_count(&t->shape), .columns = t->shape.rows ? t->shape.matrices * t->shape.columns : 0};
    s.row_w = t->scratch;
    s.row_g = s.row_w + s.rows;
    s.row_u = s.row_g + s.rows;
    s.column_g = s.row_u + s.rows;
    s.rate = s.column_g + s.columns;
    s.shrink = s.rate + 1;
    s.row_factor = s.shrink + 1;
    s.column_factor = s.row_factor + s.rows;
    return s;
}
size_t tm_optim_sum_count(const tm_optimizer *optimizer, const tm_optim_shape *shape) {
    if (optimizer->passes == 1) return 0;
    return 3 * row_count(shape) + (shape->rows ? shape->matrices * shape->columns : 0);
}
size_t tm_optim_scratch_bytes(const tm_optimizer *optimizer, const tm_optim_shape *shape) {
    if (optimizer->passes == 1) return 0;
    uint64_t columns = shape->rows ? shape->matrices * shape->columns : 0;
    return (4 * row_count(shape) + 2 * columns + 2) * sizeof(double);
}

tm_optim_sums tm_optim_sums_of(const tm_optim_tensor *t) {
    const sums s = sums_of(t);
    return (tm_optim_sums){.rows = s.rows,
                           .columns = s.columns,
                           .row_w = s.row_w,
                           .row_g = s.row_g,
                           .row_u = s.row_u,
                           .column_g = s.column_g};
}

void tm_optim_begin(const tm_optim_step *step, tm_optim_tensor *t) {
    memset(t->scratch, 0, tm_optim_scratch_bytes(step->optimizer, &t->shape));
}

/* ---- constants of a step -------------------------------------------------------------------- */

void optim_adafactor_prepare(tm_optim_step *step, const tm_optim_opts *o, double lr, int64_t t, double grad_scale) {
    double least = o->warmup_init ? 1e-6 * (double)t : 1e-2;
    step->as.adafactor = (tm_adafactor_step){
        .lr = o->relative_step ? fmin(least, 1 / sqrt((double)t)) : lr,
        .decay = 1 - pow((double)t, o->decay_rate),
        .weight_decay = o->weight_decay,
        .eps = o->eps,
        .eps_scale = o->eps_scale,
        .clip_threshold = o->clip_threshold,
        .grad_scale = (float)grad_scale,
        .beta1 = (float)o->beta1,
        .one_minus_beta1 = (float)(1 - o->beta1),
        .scale_parameter = o->scale_parameter,
    };
}

/* ---- a run of columns of one row ------------------------------------------------------------ */

/* What one call sees: elements [at, at + n) of the span are columns [column, column + n) of row `row`. */
typedef struct piece {
    const tm_optim_span *x;
    size_t at, n;
    uint64_t row, column; /* column counts through the matrices before this one */
} piece;

OPTIM_BODY double squared(float x) {
    return (double)x * (double)x;
}

/* Values of a piece from its element `from` on, in fp32. */
OPTIM_BODY void load_gradient(const tm_optim_span *x, size_t at, size_t n, float scale, float *restrict g) {
    if (x->grad_type == TM_GRAD_F32)
        for (size_t i = 0; i < n; i++) g[i] = ((const float *)x->grad)[at + i];
    else
        optim_widen((const uint16_t *)x->grad + at, x->grad_type == TM_GRAD_F16, g, n);
    for (size_t i = 0; i < n; i++) g[i] *= scale;
}
OPTIM_BODY void load_weights(const tm_optim_span *x, size_t at, size_t n, float *restrict w) {
    if (x->weight)
        memcpy(w, x->weight + at, n * sizeof *w);
    else
        optim_join(x->weight_hi + at, x->weight_lo + at, w, n);
}

/* The gradient becomes the update, not clipped yet: g over the root of its second moment, which a vector keeps whole.
 * Two passes need that one's new value, and only the last one writes it (`v`: where to). */
OPTIM_BODY void factored_update(float row_factor, const double *restrict column_factor, size_t n, float *restrict g) {
    for (size_t i = 0; i < n; i++) g[i] = row_factor * (float)column_factor[i] * g[i];
}
OPTIM_BODY void vector_update(const tm_adafactor_step *k, const float *was, float *v, size_t n, float *restrict g) {
    float keep = (float)k->decay, take = (float)(1 - k->decay), eps = (float)k->eps;
    for (size_t i = 0; i < n; i++) v[i] = was[i] * keep + (g[i] * g[i] + eps) * take;
    for (size_t i = 0; i < n; i++) g[i] = g[i] / sqrtf(v[i]);
}

typedef enum summed { SUM_W, SUM_G, SUM_U } summed;

OPTIM_BODY void load(summed what, const piece *p, size_t from, size_t n, const tm_adafactor_step *k, const sums *s,
                     float *restrict out) {
    float v[OPTIM_PIECE];
    if (what == SUM_W) {
        load_weights(p->x, p->at + from, n, out);
        return;
    }
    load_gradient(p->x, p->at + from, n, k->grad_scale, out);
    if (what != SUM_U) return;
    if (s->columns)
        factored_update((float)s->row_factor[p->row], s->column_factor + p->column + from, n, out);
    else
        vector_update(k, (const float *)p->x->state[ADAFACTOR_FULL] + p->at + from, v, n, out);
}

/* A sum in order waits for each addition, so that several rows go side by side as far as they reach. */
enum { ABREAST = 4 };

OPTIM_BODY void sum_abreast(summed what, const piece *p, size_t n, const tm_adafactor_step *k, const sums *s,
                            double *sum) {
    float x[ABREAST][OPTIM_PIECE];
    double s0 = sum[0], s1 = sum[1], s2 = sum[2], s3 = sum[3];
    for (size_t from = 0; from < n; from += OPTIM_PIECE) {
        size_t m = n - from < OPTIM_PIECE ? n - from : OPTIM_PIECE;
        for (int r = 0; r < ABREAST; r++) load(what, &p[r], from, m, k, s, x[r]);
        for (size_t i = 0; i < m; i++) {
            s0 += squared(x[0][i]);
            s1 += squared(x[1][i]);
            s2 += squared(x[2][i]);
            s3 += squared(x[3][i]);
        }
    }
    sum[0] = s0, sum[1] = s1, sum[2] = s2, sum[3] = s3;
}
OPTIM_BODY double sum_alone(summed what, const piece *p, size_t from, const tm_adafactor_step *k, const sums *s,
                            double sum) {
    float x[OPTIM_PIECE];
    for (; from < p->n; from += OPTIM_PIECE) {
        size_t m = p->n - from < OPTIM_PIECE ? p->n - from : OPTIM_PIECE;
        load(what, p, from, m, k, s, x);
        for (size_t i = 0; i < m; i++) sum += squared(x[i]);
    }
    return sum;
}

/* Pieces of `n` rows that follow each other. */
OPTIM_BODY void sum_rows_body(summed what, const piece *p, size_t n, const tm_adafactor_step *k, const sums *s) {
    double *row = what == SUM_W ? s->row_w : what == SUM_G ? s->row_g : s->row_u;
    size_t common = 0;
    if (n == ABREAST) {
        common = p[0].n;
        for (int r = 1; r < ABREAST; r++) common = p[r].n < common ? p[r].n : common;
        sum_abreast(what, p, common, k, s, row + p[0].row);
    }
    for (size_t r = 0; r < n; r++) row[p[r].row] = sum_alone(what, &p[r], common, k, s, row[p[r].row]);
}
OPTIM_ROWS(void, sum_rows, (summed what, const piece *p, size_t n, const tm_adafactor_step *k, const sums *s),
           (what, p, n, k, s))

OPTIM_BODY void sum_columns_body(const piece *p, uint64_t from, uint64_t to, const tm_adafactor_step *k,
                                 const sums *s) {
    uint64_t first = p->column > from ? p->column : from, last = p->column + p->n < to ? p->column + p->n : to;
    float g[OPTIM_PIECE];
    for (uint64_t c = first; c < last; c += OPTIM_PIECE) {
        size_t m = last - c < OPTIM_PIECE ? (size_t)(last - c) : OPTIM_PIECE;
        double *restrict sum = s->column_g + c;
        load_gradient(p->x, p->at + (size_t)(c - p->column), m, k->grad_scale, g);
        for (size_t i = 0; i < m; i++) sum[i] += squared(g[i]);
    }
}
OPTIM_ROWS(void, sum_columns, (const piece *p, uint64_t from, uint64_t to, const tm_adafactor_step *k, const sums *s),
           (p, from, to, k, s))

/* At most OPTIM_PIECE elements of a piece. */
OPTIM_BODY uint64_t update_some(const piece *p, size_t from, size_t n, const tm_adafactor_step *k, const sums *s) {
    const tm_optim_span *x = p->x;
    size_t at = p->at + from;
    float u[OPTIM_PIECE], w[OPTIM_PIECE];
    float shrink = (float)*s->shrink, rate = (float)*s->rate, decay = (float)(-k->weight_decay * *s->rate);
    uint32_t bad = 0;
    load_gradient(x, at, n, k->grad_scale, u);
    load_weights(x, at, n, w);
    if (s->columns) {
        factored_update((float)s->row_factor[p->row], s->column_factor + p->column + from, n, u);
    } else {
        float *v = (float *)x->state[ADAFACTOR_FULL] + at;
        vector_update(k, v, v, n, u);
        for (size_t i = 0; i < n; i++) bad += optim_is_bad(v[i], 0, 0);
    }
    for (size_t i = 0; i < n; i++) u[i] = u[i] / shrink * rate;
    if (k->beta1 != 0) {
        float *restrict m = (float *)x->state[ADAFACTOR_EXP_AVG] + at;
        for (size_t i = 0; i < n; i++) m[i] = m[i] * k->beta1 + k->one_minus_beta1 * u[i];
        memcpy(u, m, n * sizeof *u);
    }
    for (size_t i = 0; i < n; i++) {
        w[i] = w[i] + decay * w[i];
        w[i] = w[i] - u[i];
        bad += optim_is_bad(w[i], u[i], 0);
    }
    if (x->weight)
        memcpy(x->weight + at, w, n * sizeof *w);
    else
        optim_split(w, x->weight_hi + at, x->weight_lo + at, n);
    return x->weight && x->weight_hi ? bad + optim_copy_f16(w, x->weight_hi + at, n) : bad;
}

OPTIM_BODY uint64_t update_body(const piece *p, const tm_adafactor_step *k, const sums *s) {
    uint64_t bad = 0;
    for (size_t from = 0; from < p->n; from += OPTIM_PIECE)
        bad += update_some(p, from, p->n - from < OPTIM_PIECE ? p->n - from : OPTIM_PIECE, k, s);
    return bad;
}
OPTIM_ROWS(uint64_t, update, (const piece *p, const tm_adafactor_step *k, const sums *s), (p, k, s))

/* ---- a span: rows and the ends of rows ------------------------------------------------------ */

static uint64_t piece_count(const tm_optim_tensor *t, const tm_optim_span *x) {
    uint64_t c = t->shape.columns;
    return x->n ? (x->first + x->n - 1) / c - x->first / c + 1 : 0;
}
static piece piece_of(const tm_optim_tensor *t, const tm_optim_span *x, uint64_t i) {
    uint64_t c = t->shape.columns, row = x->first / c + i;
    uint64_t from = row * c > x->first ? row * c : x->first, end = (row + 1) * c;
    if (end > x->first + x->n) end = x->first + x->n;
    uint64_t matrix = t->shape.rows ? row / t->shape.rows : 0;
    return (piece){.x = x,
                   .at = (size_t)(from - x->first),
                   .n = (size_t)(end - from),
                   .row = row,
                   .column = matrix * c + (from - row * c)};
}

/* Several rows that follow each other. */
static void sum_some(summed what, const tm_adafactor_step *k, const tm_optim_tensor *t, const tm_optim_span *x,
                     uint64_t first, uint64_t pieces, const sums *s) {
    piece p[ABREAST];
    size_t n = pieces - first < ABREAST ? (size_t)(pieces - first) : ABREAST;
    for (size_t r = 0; r < n; r++) p[r] = piece_of(t, x, first + r);
    sum_rows_row()(what, p, n, k, s);
}

enum { STRIPE = 512 }; /* columns that one thread adds up */

static void gather(const tm_adafactor_step *k, tm_optim_tensor *t, const tm_optim_span *x) {
    const sums s = sums_of(t);
    uint64_t pieces = piece_count(t, x), stripes = (s.columns + STRIPE - 1) / STRIPE;
#pragma omp parallel if (x->n > OPTIM_GRAIN)
    {
#pragma omp for schedule(static) nowait
        for (uint64_t i = 0; i < pieces; i += ABREAST) {
            sum_some(SUM_G, k, t, x, i, pieces, &s);
            if (k->scale_parameter) sum_some(SUM_W, k, t, x, i, pieces, &s);
        }
#pragma omp for schedule(static)
        for (uint64_t j = 0; j < stripes; j++)
            for (uint64_t i = 0; i < pieces; i++) {
                piece p = piece_of(t, x, i);
                sum_columns_row()(&p, j * STRIPE, (j + 1) * STRIPE, k, &s);
            }
    }
}

static void measure(const tm_adafactor_step *k, tm_optim_tensor *t, const tm_optim_span *x) {
    const sums s = sums_of(t);
    uint64_t pieces = piece_count(t, x);
#pragma omp parallel for schedule(static) if (x->n > OPTIM_GRAIN)
    for (uint64_t i = 0; i < pieces; i += ABREAST) sum_some(SUM_U, k, t, x, i, pieces, &s);
}

static uint64_t apply(const tm_adafactor_step *k, tm_optim_tensor *t, const tm_optim_span *x) {
    const sums s = sums_of(t);
    uint64_t pieces = piece_count(t, x), bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (x->n > OPTIM_GRAIN)
    for (uint64_t i = 0; i < pieces; i++) {
        piece p = piece_of(t, x, i);
        bad += update_row()(&p, k, &s);
    }
    return bad;
}

uint64_t tm_optim_pass(const tm_optim_step *step, tm_optim_tensor *t, uint32_t pass, const tm_optim_span *span) {
    if (step->optimizer->passes == 1) return tm_optim_run(step, span);
    const tm_adafactor_step *k = &step->as.adafactor;
    if (pass == 0) gather(k, t, span);
    if (pass == 1) measure(k, t, span);
    return pass == 2 ? apply(k, t, span) : 0;
}

/* ---- between two passes --------------------------------------------------------------------- */

static double total(const double *x, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* The running means of n sums, each of `count` squares. */
static void running_means(const tm_adafactor_step *k, const double *sum, uint64_t n, uint64_t count, float *mean) {
    float keep = (float)k->decay, take = (float)(1 - k->decay);
    for (uint64_t i = 0; i < n; i++) mean[i] = mean[i] * keep + (float)(sum[i] / (double)count + k->eps) * take;
}

/* 1 / sqrt(R_i / mean(R)) of one matrix. */
static void row_factors(const float *mean, uint64_t rows, double *factor) {
    double all = 0;
    for (uint64_t i = 0; i < rows; i++) all += (double)mean[i];
    for (uint64_t i = 0; i < rows; i++) factor[i] = 1 / sqrt((double)mean[i] / (all / (double)rows));
}

static void turn_sums(const tm_adafactor_step *k, tm_optim_tensor *t) {
    const sums s = sums_of(t);
    double rms = sqrt(total(s.row_w, s.rows) / (double)tm_optim_elements(&t->shape));
    *s.rate = k->scale_parameter ? k->lr * fmax(k->eps_scale, rms) : k->lr;
    if (!s.columns) return;
    float *row = t->state[ADAFACTOR_ROW], *column = t->state[ADAFACTOR_COLUMN];
    running_means(k, s.row_g, s.rows, t->shape.columns, row);
    running_means(k, s.column_g, s.columns, t->shape.rows, column);
    for (uint64_t i = 0; i < s.rows; i += t->shape.rows) row_factors(row + i, t->shape.rows, s.row_factor + i);
    for (uint64_t j = 0; j < s.columns; j++) s.column_factor[j] = 1 / sqrt((double)column[j]);
}

void tm_optim_turn(const tm_optim_step *step, tm_optim_tensor *t, uint32_t pass) {
    if (step->optimizer->passes == 1) return;
    const tm_adafactor_step *k = &step->as.adafactor;
    const sums s = sums_of(t);
    if (pass == 0) turn_sums(k, t);
    if (pass == 1) {
        double rms = sqrt(total(s.row_u, s.rows) / (double)tm_optim_elements(&t->shape));
        *s.shrink = fmax(1, rms / k->clip_threshold);
    }
}

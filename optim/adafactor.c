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
#include "optim/bits_internal.h"
#include "optim/optim_internal.h"

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

OPTIM_BODY float grad_at(const tm_optim_span *x, size_t i, float scale) {
    if (x->grad_type == TM_GRAD_F32) return ((const float *)x->grad)[i] * scale;
    uint16_t g = ((const uint16_t *)x->grad)[i];
    return (x->grad_type == TM_GRAD_BF16 ? bf16_value(g) : f16_value(g)) * scale;
}
OPTIM_BODY float weight_at(const tm_optim_span *x, size_t i) {
    return x->weight ? x->weight[i] : f32_from(split_join(x->weight_hi[i], x->weight_lo[i]));
}
OPTIM_BODY double squared(float x) {
    return (double)x * (double)x;
}
/* g over the root of its second moment. */
OPTIM_BODY float factored_update(float g, double row_factor, double column_factor) {
    return (float)row_factor * (float)column_factor * g;
}

static void sum_row(const piece *p, const tm_adafactor_step *k, const sums *s) {
    double g2 = s->row_g[p->row], w2 = s->row_w[p->row];
    for (size_t i = p->at; i < p->at + p->n; i++) g2 += squared(grad_at(p->x, i, k->grad_scale));
    if (k->scale_parameter)
        for (size_t i = p->at; i < p->at + p->n; i++) w2 += squared(weight_at(p->x, i));
    s->row_g[p->row] = g2;
    s->row_w[p->row] = w2;
}

static void sum_columns(const piece *p, uint64_t from, uint64_t to, const tm_adafactor_step *k, const sums *s) {
    uint64_t first = p->column > from ? p->column : from, last = p->column + p->n < to ? p->column + p->n : to;
    for (uint64_t c = first; c < last; c++)
        s->column_g[c] += squared(grad_at(p->x, p->at + (size_t)(c - p->column), k->grad_scale));
}

static void sum_update(const piece *p, const tm_adafactor_step *k, const sums *s) {
    double u2 = s->row_u[p->row], row_factor = s->row_factor[p->row];
    for (size_t i = 0; i < p->n; i++) {
        float g = grad_at(p->x, p->at + i, k->grad_scale);
        u2 += squared(factored_update(g, row_factor, s->column_factor[p->column + i]));
    }
    s->row_u[p->row] = u2;
}

/* A vector keeps the whole second moment. Two passes need its new value, and only the last one writes anything. */
OPTIM_BODY float running_square(float v, float g, const tm_adafactor_step *k) {
    return v * (float)k->decay + (g * g + (float)k->eps) * (float)(1 - k->decay);
}

static void sum_vector_update(const piece *p, const tm_adafactor_step *k, const sums *s) {
    const float *v = (const float *)p->x->state[ADAFACTOR_FULL] + p->at;
    double u2 = s->row_u[p->row];
    for (size_t i = 0; i < p->n; i++) {
        float g = grad_at(p->x, p->at + i, k->grad_scale);
        u2 += squared(g / sqrtf(running_square(v[i], g, k)));
    }
    s->row_u[p->row] = u2;
}

/* False: it is too large for the fp16 copy. */
OPTIM_BODY bool set_weight(const tm_optim_span *x, size_t i, float w) {
    if (!x->weight) {
        x->weight_hi[i] = split_hi(f32_bits(w)), x->weight_lo[i] = (uint16_t)f32_bits(w);
        return true;
    }
    x->weight[i] = w;
    if (!x->weight_hi) return true;
    x->weight_hi[i] = f16_round(w);
    return f16_is_finite(x->weight_hi[i]);
}

static uint64_t update(const piece *p, const tm_adafactor_step *k, const sums *s) {
    const tm_optim_span *x = p->x;
    float *v = s->columns ? NULL : x->state[ADAFACTOR_FULL];
    float *m = k->beta1 != 0 ? x->state[ADAFACTOR_EXP_AVG] : NULL;
    float shrink = (float)*s->shrink, rate = (float)*s->rate, decay = (float)(-k->weight_decay * *s->rate);
    uint64_t bad = 0;
    for (size_t j = 0; j < p->n; j++) {
        size_t i = p->at + j;
        float g = grad_at(x, i, k->grad_scale), w = weight_at(x, i);
        if (v) v[i] = running_square(v[i], g, k);
        float u = v ? g / sqrtf(v[i]) : factored_update(g, s->row_factor[p->row], s->column_factor[p->column + j]);
        u = u / shrink * rate;
        if (m) u = m[i] = m[i] * k->beta1 + k->one_minus_beta1 * u;
        w = w + decay * w;
        w = w - u;
        bad += f32_magnitude(w) >= F32_INF_BITS || f32_magnitude(u) >= F32_INF_BITS || !set_weight(x, i, w);
    }
    return bad;
}

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

enum { STRIPE = 512 }; /* columns that one thread adds up */

static void gather(const tm_adafactor_step *k, tm_optim_tensor *t, const tm_optim_span *x) {
    const sums s = sums_of(t);
    uint64_t pieces = piece_count(t, x), stripes = (s.columns + STRIPE - 1) / STRIPE;
#pragma omp parallel if (x->n > OPTIM_GRAIN)
    {
#pragma omp for schedule(static) nowait
        for (uint64_t i = 0; i < pieces; i++) {
            piece p = piece_of(t, x, i);
            sum_row(&p, k, &s);
        }
#pragma omp for schedule(static)
        for (uint64_t j = 0; j < stripes; j++)
            for (uint64_t i = 0; i < pieces; i++) {
                piece p = piece_of(t, x, i);
                sum_columns(&p, j * STRIPE, (j + 1) * STRIPE, k, &s);
            }
    }
}

static void measure(const tm_adafactor_step *k, tm_optim_tensor *t, const tm_optim_span *x) {
    const sums s = sums_of(t);
    uint64_t pieces = piece_count(t, x);
#pragma omp parallel for schedule(static) if (x->n > OPTIM_GRAIN)
    for (uint64_t i = 0; i < pieces; i++) {
        piece p = piece_of(t, x, i);
        s.columns ? sum_update(&p, k, &s) : sum_vector_update(&p, k, &s);
    }
}

static uint64_t apply(const tm_adafactor_step *k, tm_optim_tensor *t, const tm_optim_span *x) {
    const sums s = sums_of(t);
    uint64_t pieces = piece_count(t, x), bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (x->n > OPTIM_GRAIN)
    for (uint64_t i = 0; i < pieces; i++) {
        piece p = piece_of(t, x, i);
        bad += update(&p, k, &s);
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

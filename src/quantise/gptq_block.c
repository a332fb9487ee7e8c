/* GPTQ of a block: the factors of what its matrices multiply, then its matrices, some rows at a time. */
#include "quantise/export_internal.h"

#include <math.h>
#include <string.h>

static const double DAMPING = 0.01; /* of the mean of the diagonal, as in the paper */

uint64_t quantise_scratch_bytes(const quantise_job *q, uint64_t width) {
    uint64_t rows = quantise_rows_at_once(UINT64_MAX, width);
    uint64_t gptq = rows * width * sizeof(float) + gptq_bytes(width, rows, q->o.group) + 64;
    return q->c->method == TM_PACK_GPTQ ? gptq : awq_scratch_bytes(width);
}

/* What factors and codes take; sums by element count as several. */
static double factor_work(double n) {
    return 2 * n * n * n;
}

static double rows_work(double rows, double n) {
    return 8 * rows * n * n + 4000 * rows * n;
}

double gptq_work(const walk *w) {
    double sum = 0;
    for (uint32_t i = 0; i < w->n_inputs; i++) sum += factor_work((double)w->input[i].width);
    for (uint32_t i = 0; i < w->n_matrices; i++)
        sum += rows_work((double)w->matrix[i].rows, (double)w->matrix[i].width);
    return sum;
}

static tm_status factor_inputs(quantise_job *q) {
    for (uint32_t i = 0; i < q->w.n_inputs; i++) {
        walk_input *in = &q->w.input[i];
        factor_damp(in->products, in->width, DAMPING);
        if (!factor_upper(in->products, in->width))
            return tm_fail(TM_EINPUT, "%s: in block %u what the rows gave is not finite; take other text, or int4",
                           tm_source_path(q->c->src), q->w.unit - 1);
        TM_TRY(walk_did(&q->w, factor_work((double)in->width)));
    }
    return TM_OK;
}

/* Sums of squares of a matrix, of what it lost, and of both after the product. */
typedef struct gptq_sums {
    double power, lost, full, loss;
} gptq_sums;

static void add_rows(const gptq_rows *g, gptq_sums *s) {
    for (uint64_t r = 0; r < g->rows; r++) s->full += g->full[r], s->loss += g->loss[r];
    for (uint64_t i = 0; i < g->rows * g->n; i++) {
        s->power += (double)g->w[i] * (double)g->w[i];
        s->lost += (double)g->lost[i] * (double)g->lost[i];
    }
}

/* The values of the codes take the place of w. */
static tm_status replace_rows(quantise_job *q, const walk_matrix *x, uint64_t row, const gptq_rows *g, float *w) {
    for (uint64_t i = 0; i < g->rows * g->n; i++) w[i] = (float)g->codes[i] * g->scale[i / g->o.group];
    return walk_replace(&q->w, x, row * g->n, g->rows * g->n, w);
}

static tm_status gptq_matrix(quantise_job *q, const walk_matrix *x, bool replace) {
    const walk_input *in = &q->w.input[x->input];
    uint64_t at_once = quantise_rows_at_once(x->rows, x->width);
    float *w = (float *)(void *)q->scratch;
    gptq_sums sums = {0};
    TM_ASSERT(quantise_scratch_bytes(q, x->width) <= q->scratch_bytes);
    for (uint64_t row = 0, rows; row < x->rows; row += rows) {
        rows = tm_min_u64(at_once, x->rows - row);
        gptq_rows g = {.factor = in->products, .o = q->o, .n = x->width, .rows = rows, .w = w};
        gptq_place(&g, q->scratch + tm_round_up(at_once * x->width * sizeof *w, 64));
        TM_TRY(tm_source_read_f32(q->c->src, x->source, row * x->width, rows * x->width, w));
        gptq_round(&g);
        add_rows(&g, &sums);
        TM_TRY(tm_codes_put(q->c->to, x->source, row, rows, g.codes, g.scale));
        if (replace) TM_TRY(replace_rows(q, x, row, &g, w));
        TM_TRY(walk_did(&q->w, rows_work((double)rows, (double)x->width)));
    }
    if (!isfinite(sums.power))
        return tm_fail(TM_EINPUT, "%s: '%s' has values that are not finite", tm_source_path(q->c->src),
                       tm_source_tensor_get(q->c->src, x->source)->name);
    tm_source_forget(q->c->src, x->source);
    return tm_codes_done(q->c->to, x->source, sums.power, sums.lost, sums.full > 0 ? sqrt(sums.loss / sums.full) : 0);
}

tm_status gptq_block(quantise_job *q, bool replace) {
    TM_TRY(factor_inputs(q));
    for (uint32_t i = 0; i < q->w.n_matrices; i++) TM_TRY(gptq_matrix(q, &q->w.matrix[i], replace));
    return TM_OK;
}

/* Vocabulary loss in parts: online log-sum-exp forward, softmax minus one-hot backward. */
#include "kernels/kernels_internal.h"

#include <math.h>

/* Index of the row's label among the columns, or count. */
static uint32_t label_column(const tm_head *a, uint64_t i) {
    int32_t label = a->labels[a->row[i]];
    bool here = label >= 0 && (uint32_t)label >= a->first && (uint32_t)label - a->first < a->count;
    return here ? (uint32_t)label - a->first : a->count;
}

void tm_head_update(const tm_head *a) {
#pragma omp parallel for schedule(static) num_threads(kernels_team())
    for (uint64_t i = 0; i < a->rows; i++) {
        const float *x = a->logits + i * a->ld;
        tm_head_state *s = &a->state[a->row[i]];
        float top = kernels.max(x, a->count), m = top > s->max ? top : s->max;
        float sum = kernels.exp_sum(x, m, a->count);
        s->sum = s->sum * expf(s->max - m) + sum;
        s->max = m;
        uint32_t column = label_column(a, i);
        if (column < a->count) s->label = x[column];
    }
}

/* x = coefficient (softmax - one_hot) of columns [at, at + n), which have the row's label at `column`. */
static void gradient_span(const tm_head *a, uint64_t i, float *x, uint32_t at, uint32_t n, uint32_t column) {
    float c = a->coefficient[a->row[i]];
    kernels.softmax_grad(x, tm_head_state_lse(&a->state[a->row[i]]), c, n);
    if (column >= at && column - at < n) x[column - at] -= c;
}

/* The slope of cap tanh(l / cap) is 1 - (L / cap)^2 of its value L. */
static void capped_span(const tm_head *a, uint64_t i, float *x, uint32_t at, uint32_t n, uint32_t column) {
    float slope[KERNELS_SPAN];
    for (uint32_t j = 0; j < n; j++) slope[j] = 1 - x[j] / a->softcap * (x[j] / a->softcap);
    gradient_span(a, i, x, at, n, column);
    for (uint32_t j = 0; j < n; j++) x[j] *= slope[j];
}

void tm_head_gradient(const tm_head *a) {
#pragma omp parallel for schedule(static) num_threads(kernels_team())
    for (uint64_t i = 0; i < a->rows; i++) {
        float *x = a->logits + i * a->ld;
        uint32_t column = label_column(a, i), count = a->count;
        if (a->softcap == 0) gradient_span(a, i, x, 0, count, column < count ? column : UINT32_MAX);
        for (uint32_t at = 0; a->softcap != 0 && at < count; at += KERNELS_SPAN)
            capped_span(a, i, x + at, at, count - at < KERNELS_SPAN ? count - at : KERNELS_SPAN,
                        column < count ? column : UINT32_MAX);
        if (a->type != TM_ELEM_F32) kernels_narrow(a->type, x, x, count); /* every column writes behind its reads */
    }
}

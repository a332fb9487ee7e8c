/* Vocabulary loss in parts: online log-sum-exp forward, softmax minus one-hot backward. */
#include "kernels/kernels_internal.h"

#include <math.h>

/* Index of the row's label among the columns, or count. */
static uint32_t label_column(int32_t label, uint32_t first, uint32_t count) {
    bool here = label >= 0 && (uint32_t)label >= first && (uint32_t)label - first < count;
    return here ? (uint32_t)label - first : count;
}

void tm_head_update(uint64_t rows, const uint32_t *row, uint32_t first, uint32_t count, const float *logits,
                    uint64_t ld, const int32_t *labels, tm_head_state *state) {
#pragma omp parallel for schedule(static) num_threads(kernels_team())
    for (uint64_t i = 0; i < rows; i++) {
        const float *x = logits + i * ld;
        tm_head_state *s = &state[row[i]];
        float top = kernels.max(x, count), m = top > s->max ? top : s->max;
        float sum = kernels.exp_sum(x, m, count);
        s->sum = s->sum * expf(s->max - m) + sum;
        s->max = m;
        uint32_t column = label_column(labels[row[i]], first, count);
        if (column < count) s->label = x[column];
    }
}

void tm_head_gradient(tm_elem t, uint64_t rows, const uint32_t *row, uint32_t first, uint32_t count, float *logits,
                      uint64_t ld, const int32_t *labels, const tm_head_state *state, const float *coefficient) {
#pragma omp parallel for schedule(static) num_threads(kernels_team())
    for (uint64_t i = 0; i < rows; i++) {
        float *x = logits + i * ld, c = coefficient[row[i]];
        kernels.softmax_grad(x, tm_head_state_lse(&state[row[i]]), c, count);
        uint32_t column = label_column(labels[row[i]], first, count);
        if (column < count) x[column] -= c;
        if (t != TM_ELEM_F32) kernels_narrow(t, x, x, count); /* every column writes behind its reads */
    }
}

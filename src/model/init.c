/* Initial values: a function of (seed, name, element) alone, so that any split gives the same model. */
#include "model/model_internal.h"

#include <string.h>

/* Elements 2i and 2i+1 come from block i of the tensor's stream. */
static void fill_normal(uint64_t key, double deviation, uint64_t offset, uint64_t n, float *out) {
    for (uint64_t i = 0; i < n;) {
        double pair[2];
        uint64_t element = offset + i;
        tm_philox_normal2(key, element / 2, pair);
        if (element % 2 == 0) out[i++] = (float)(deviation * pair[0]);
        if (i < n && (offset + i) % 2 == 1) {
            out[i] = (float)(deviation * pair[1]);
            i++;
        }
    }
}

/* Four elements from a block. */
static void fill_uniform(uint64_t key, double bound, uint64_t offset, uint64_t n, float *out) {
    for (uint64_t i = 0; i < n;) {
        uint32_t word[4];
        tm_philox(key, 0, (offset + i) / 4, word);
        for (uint64_t w = (offset + i) % 4; w < 4 && i < n; w++)
            out[i++] = (float)(bound * (((double)word[w] + 0.5) / 2147483648.0 - 1));
    }
}

void tm_model_init_values(const tm_model *m, uint32_t t, uint64_t seed, uint64_t offset, uint64_t n, float *out) {
    const tm_tensor *x = &m->tensor[t];
    TM_ASSERT(offset <= x->elements && n <= x->elements - offset);
    uint64_t key = tm_hash64(x->name, strlen(x->name), seed);
    if (x->init == TM_INIT_NORMAL)
        fill_normal(key, x->init_size, offset, n, out);
    else if (x->init == TM_INIT_UNIFORM)
        fill_uniform(key, x->init_size, offset, n, out);
    else
        for (uint64_t i = 0; i < n; i++) out[i] = x->init == TM_INIT_ONE ? 1.0F : 0.0F;
}

void tm_model_add_squares(const tm_model *m, uint32_t of, uint64_t offset, uint64_t n, const float *values,
                          double *sums) {
    const tm_tensor *x = &m->tensor[of];
    TM_ASSERT(x->ndim == 2 && offset <= x->elements && n <= x->elements - offset);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t row = (offset + i) / x->shape[1], column = (offset + i) % x->shape[1];
        sums[m->transposed ? column : row] += (double)values[i] * (double)values[i];
    }
}

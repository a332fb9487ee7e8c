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

void tm_model_init_values(const tm_model *m, uint32_t t, uint64_t seed, uint64_t offset, uint64_t n, float *out) {
    const tm_tensor *x = &m->tensor[t];
    TM_ASSERT(offset <= x->elements && n <= x->elements - offset);
    if (x->init == TM_INIT_NORMAL) {
        fill_normal(tm_hash64(x->name, strlen(x->name), seed), m->config.initializer_range, offset, n, out);
        return;
    }
    for (uint64_t i = 0; i < n; i++) out[i] = x->init == TM_INIT_ONE ? 1.0F : 0.0F;
}

/* What is kept of a block's inputs. */
#include "quantise/walk_internal.h"

#include <math.h>
#include <string.h>

void walk_place_sums(walk *w) {
    uint64_t products = 0, sums = 0;
    for (uint32_t i = 0; i < w->n_inputs; i++) {
        walk_input *in = &w->input[i];
        in->magnitude = w->sums + sums, in->square = w->sums + sums + in->width;
        if (w->products) in->products = w->products + products;
        sums += 2 * in->width;
        products += w->o.products ? in->width * in->width : 0;
    }
}

void walk_clear_sums(walk *w) {
    for (uint32_t i = 0; i < w->n_inputs; i++) {
        walk_input *in = &w->input[i];
        memset(in->magnitude, 0, in->width * sizeof *in->magnitude);
        memset(in->square, 0, in->width * sizeof *in->square);
        if (in->products) memset(in->products, 0, in->width * in->width * sizeof *in->products);
    }
}

static inline float value_at(const tm_product_input *x, tm_elem t, uint64_t i) {
    uint32_t bits;
    float v;
    if (t == TM_ELEM_F32) return ((const float *)x->x)[i];
    bits = (uint32_t)((const uint16_t *)x->x)[i] << 16;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void add_moments(walk_input *in, const tm_product_input *x, tm_elem t) {
    enum { COLUMNS = 64 };
#pragma omp parallel for schedule(static)
    for (uint64_t at = 0; at < x->width; at += COLUMNS) {
        float magnitude[COLUMNS] = {0}, square[COLUMNS] = {0};
        uint64_t n = tm_min_u64(COLUMNS, x->width - at);
        for (uint64_t r = 0; r < x->rows; r++)
            for (uint64_t j = 0; j < n; j++) {
                float v = value_at(x, t, r * x->width + at + j);
                magnitude[j] += fabsf(v);
                square[j] += v * v;
            }
        for (uint64_t j = 0; j < n; j++) {
            in->magnitude[at + j] += (double)magnitude[j];
            in->square[at + j] += (double)square[j];
        }
    }
}

void walk_add_input(void *ctx, const tm_product_input *x) {
    const walk_taking *taking = ctx;
    walk_input *in = taking->in;
    tm_elem t = taking->type;
    TM_ASSERT(x->width == in->width);
    if (x->rows == 0) return;
    add_moments(in, x, t);
    if (!in->products) return;
    tm_gemm_args g = {.m = x->width, .n = x->width, .k = x->rows, .alpha = 1, .beta = 1, .a_trans = true};
    g.a = g.b = x->x, g.lda = g.ldb = x->width, g.c = in->products, g.ldc = x->width;
    g.a_type = g.b_type = t, g.c_type = TM_ELEM_F32;
    tm_gemm(&g);
}

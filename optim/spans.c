/* Cutting a span among threads. */
#include "optim/spans_internal.h"

uint64_t optim_each_grain(const tm_optim_span *x, optim_piece_fn piece, const void *k, int variant) {
    uint64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (x->n > OPTIM_GRAIN)
    for (size_t at = 0; at < x->n; at += OPTIM_GRAIN) {
        size_t n = x->n - at < OPTIM_GRAIN ? x->n - at : OPTIM_GRAIN;
        bad += piece(x, at, n, k, variant);
    }
    return bad;
}

/* The split master: fp32 <-> (bf16 that computes, the other 16 bits). Integer operations only. */
#include "optim/bits_internal.h"
#include "optim/optim_internal.h"

OPTIM_BODY int split_body(const float *restrict w, uint16_t *restrict hi, uint16_t *restrict lo, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t b = f32_bits(w[i]);
        hi[i] = split_hi(b);
        lo[i] = (uint16_t)b;
    }
    return 0;
}
OPTIM_ROWS(int, split, (const float *restrict w, uint16_t *restrict hi, uint16_t *restrict lo, size_t n),
           (w, hi, lo, n))

OPTIM_BODY int join_body(const uint16_t *restrict hi, const uint16_t *restrict lo, float *restrict w, size_t n) {
    for (size_t i = 0; i < n; i++) w[i] = f32_from(split_join(hi[i], lo[i]));
    return 0;
}
OPTIM_ROWS(int, join, (const uint16_t *restrict hi, const uint16_t *restrict lo, float *restrict w, size_t n),
           (hi, lo, w, n))

OPTIM_BODY uint64_t nonfinite_body(const float *x, size_t n) {
    uint32_t bad = 0; /* n <= OPTIM_GRAIN */
    for (size_t i = 0; i < n; i++) bad += f32_magnitude(x[i]) >= F32_INF_BITS;
    return bad;
}
OPTIM_ROWS(uint64_t, nonfinite, (const float *x, size_t n), (x, n))

static size_t grain(size_t at, size_t n) {
    return n - at < OPTIM_GRAIN ? n - at : OPTIM_GRAIN;
}

void tm_split_f32(const float *master, uint16_t *hi, uint16_t *lo, size_t n) {
    split_fn row = split_row();
#pragma omp parallel for schedule(static) if (n > OPTIM_GRAIN)
    for (size_t at = 0; at < n; at += OPTIM_GRAIN) row(master + at, hi + at, lo + at, grain(at, n));
}

void tm_join_f32(const uint16_t *hi, const uint16_t *lo, float *master, size_t n) {
    join_fn row = join_row();
#pragma omp parallel for schedule(static) if (n > OPTIM_GRAIN)
    for (size_t at = 0; at < n; at += OPTIM_GRAIN) row(hi + at, lo + at, master + at, grain(at, n));
}

uint64_t tm_count_nonfinite(const float *x, size_t n) {
    nonfinite_fn row = nonfinite_row();
    uint64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (n > OPTIM_GRAIN)
    for (size_t at = 0; at < n; at += OPTIM_GRAIN) bad += row(x + at, grain(at, n));
    return bad;
}

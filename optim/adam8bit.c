/* Adam with 8-bit block-wise states, after bitsandbytes: a block of 256 elements shares one absmax; an element is a
 * code of 256 values in [-1, 1] (exp_avg) or [0, 1] (exp_avg_sq), denser towards zero. A block is widened into
 * first-level cache, updated by AdamW's own kernel, and quantised to the nearest code: the weight moves by the moments
 * before they are rounded. */
#include "kernels/dynamic_map.h"
#include "optim/adamw_internal.h"
#include "optim/spans_internal.h"

#include <math.h>
#include <pthread.h>

/* Magnitudes by the upper 16 bits of their pattern: cells so narrow that no cell holds two midpoints between codes (the
 * test walks them all). Those below 2^-23 and above 1 share the first and the last cell. */
enum { CODES = 256, CELL_FIRST = 104 << 7, CELL_LAST = 127 << 7, CELLS = CELL_LAST - CELL_FIRST + 1 };

typedef struct codebook {
    float code[CODES];        /* ascending */
    float middle[2 * CELLS];  /* the midpoint that a cell may hold, negative magnitudes in the second half */
    int32_t below[2 * CELLS]; /* how many midpoints are less than every value of the cell */
} codebook;
static codebook with_sign, without_sign;

static float middle(const codebook *b, int i) {
    return i < CODES - 1 ? (b->code[i] + b->code[i + 1]) / 2 : INFINITY;
}

static void make_book(codebook *b, bool sign) {
    tm_dynamic_map(b->code, sign);
    for (int c = 0; c < 2 * CELLS; c++) {
        uint32_t first = (uint32_t)(CELL_FIRST + c % CELLS) << 16;
        if (c % CELLS == 0) first = 0;
        float least = c < CELLS ? f32_from(first) : -f32_from((uint32_t)(CELL_FIRST + c % CELLS) << 16 | 0xffff);
        int below = 0;
        while (middle(b, below) < least) below++;
        b->below[c] = below;
        b->middle[c] = middle(b, below);
    }
}
static void make_books(void) {
    make_book(&with_sign, true);
    make_book(&without_sign, false);
}
static void books(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_books);
}

OPTIM_BODY int32_t cell_of(float x) {
    uint32_t bits = f32_bits(x), cell = (bits & 0x7fffffffu) >> 16;
    cell = cell < CELL_FIRST ? CELL_FIRST : cell > CELL_LAST ? CELL_LAST : cell;
    return (int32_t)(cell - CELL_FIRST + (bits >> 31) * CELLS);
}
/* How many midpoints are less than x: the nearest code, the lower one of two that are equally near. */
OPTIM_BODY int32_t nearest(const codebook *b, float x, int32_t cell) {
    return b->below[cell] + (x > b->middle[cell]);
}

OPTIM_BODY int widen_body(const codebook *b, const uint8_t *restrict q, float absmax, float *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = b->code[q[i]] * absmax;
    return 0;
}
OPTIM_ROWS(int, widen, (const codebook *b, const uint8_t *restrict q, float absmax, float *restrict x, size_t n),
           (b, q, absmax, x, n))

OPTIM_BODY float narrow_body(const codebook *b, const float *restrict x, uint8_t *restrict q, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) most = f32_magnitude(x[i]) > most ? f32_magnitude(x[i]) : most;
    float absmax = f32_from(most), scale = 1.0f / (absmax > 1e-38f ? absmax : 1e-38f);
    float scaled[TM_OPTIM_BLOCK]; /* loops of one kind each: these vectorise */
    int32_t code[TM_OPTIM_BLOCK];
    for (size_t i = 0; i < n; i++) scaled[i] = x[i] * scale;
    for (size_t i = 0; i < n; i++) code[i] = cell_of(scaled[i]);
    for (size_t i = 0; i < n; i++) code[i] = nearest(b, scaled[i], code[i]);
    for (size_t i = 0; i < n; i++) q[i] = (uint8_t)code[i];
    return absmax;
}
OPTIM_ROWS(float, narrow, (const codebook *b, const float *restrict x, uint8_t *restrict q, size_t n), (b, x, q, n))

static uint64_t update_block(const tm_optim_span *x, size_t at, size_t n, const tm_adamw_step *k) {
    float m[TM_OPTIM_BLOCK], v[TM_OPTIM_BLOCK];
    uint8_t *m8 = (uint8_t *)x->state[0] + at, *v8 = (uint8_t *)x->state[1] + at;
    float *m_absmax = (float *)x->state[2] + at / TM_OPTIM_BLOCK,
          *v_absmax = (float *)x->state[3] + at / TM_OPTIM_BLOCK;
    widen_row()(&with_sign, m8, *m_absmax, m, n);
    widen_row()(&without_sign, v8, *v_absmax, v, n);
    uint64_t bad = optim_adamw_few(x, at, n, m, v, k);
    *m_absmax = narrow_row()(&with_sign, m, m8, n);
    *v_absmax = narrow_row()(&without_sign, v, v8, n);
    return bad;
}

uint64_t optim_adamw_8bit_run(const tm_optim_step *step, const tm_optim_span *x) {
    uint64_t bad = 0;
    books();
#pragma omp parallel for schedule(static) reduction(+ : bad) if (x->n > OPTIM_GRAIN)
    for (size_t at = 0; at < x->n; at += TM_OPTIM_BLOCK) {
        size_t n = x->n - at < TM_OPTIM_BLOCK ? x->n - at : TM_OPTIM_BLOCK;
        bad += update_block(x, at, n, &step->as.adamw);
    }
    return bad;
}

void tm_optim_widen_8bit(bool sign, const uint8_t *codes, const float *absmax, uint64_t first, uint64_t n, float *out) {
    books();
    for (uint64_t at = first, end = first + n; at < end;) {
        uint64_t most = TM_OPTIM_BLOCK - at % TM_OPTIM_BLOCK, m = most < end - at ? most : end - at;
        widen_row()(sign ? &with_sign : &without_sign, codes + at, absmax[at / TM_OPTIM_BLOCK], out + (at - first), m);
        at += m;
    }
}

/* ---- for the tests -------------------------------------------------------------------------- */

uint8_t optim_nearest_code(bool sign, float x) {
    books();
    return (uint8_t)nearest(sign ? &with_sign : &without_sign, x, cell_of(x));
}
const float *optim_codes(bool sign) {
    books();
    return sign ? with_sign.code : without_sign.code;
}

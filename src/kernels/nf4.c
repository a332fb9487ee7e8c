/* 4-bit blocks: quantising, ranges of blocks, the form of our own. The look-up itself is a leaf of each column. */
#include "kernels/nf4.h"
#include "kernels/dynamic_map.h"
#include "kernels/kernels_internal.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { CODES = 16, SCALES = 64 /* blocks at a time */ };

/* bitsandbytes' create_normal_map, as it is published: quantiles of the normal distribution, 0 among them, scaled to 1. */
static const float nf4_map[CODES] = {-1.0F,
                                     -0.6961928009986877F,
                                     -0.5250730514526367F,
                                     -0.39491748809814453F,
                                     -0.28444138169288635F,
                                     -0.18477343022823334F,
                                     -0.09105003625154495F,
                                     0.0F,
                                     0.07958029955625534F,
                                     0.16093020141124725F,
                                     0.24611230194568634F,
                                     0.33791524171829224F,
                                     0.44070982933044434F,
                                     0.5626170039176941F,
                                     0.7229568362236023F,
                                     1.0F};
/* 0, 1/16, 8, 12, 4, 6, 2, 3 and their negatives, over 12 */
static const float fp4_map[CODES] = {0, 0.0625F / 12,  8.0F / 12,  1,  4.0F / 12,  6.0F / 12,  2.0F / 12,  3.0F / 12,
                                     0, -0.0625F / 12, -8.0F / 12, -1, -4.0F / 12, -6.0F / 12, -2.0F / 12, -3.0F / 12};
/* Codes by ascending value; FP4's second zero is never made. */
static const uint8_t ascending[2][CODES] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                            {11, 10, 13, 12, 15, 14, 9, 0, 1, 6, 7, 4, 5, 2, 3, 3}};

const float *tm_nf4_map(tm_nf4_kind kind) {
    return kind == TM_FP4 ? fp4_map : nf4_map;
}

/* ---- the dynamic map ---- */

static float dynamic[256], between[255]; /* with a sign, and the middles */
static void make_dynamic(void) {
    tm_dynamic_map(dynamic, true);
    for (int i = 0; i < 255; i++) between[i] = (dynamic[i] + dynamic[i + 1]) / 2;
}
const float *tm_nf4_dynamic_map(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_dynamic);
    return dynamic;
}

/* ---- quantising ---- */

/* By bit patterns, which are in the order of magnitudes: a maximum of integers is taken many at a time. Whatever is not
 * finite is the largest. */
static float largest(const float *x, uint64_t n) {
    int32_t m = 0;
    float value;
    for (uint64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        m = bits > m ? bits : m;
    }
    memcpy(&value, &m, sizeof value);
    return value;
}

/* The nearest code is the number of middles below the value; of two as near it is the lower. */
void tm_nf4_quantise(tm_nf4_kind kind, uint32_t block, const float *x, uint64_t n, uint8_t *codes, float *absmax) {
    const float *map = tm_nf4_map(kind);
    const uint8_t *order = ascending[kind];
    float middle[CODES - 1];
    for (int c = 0; c + 1 < CODES; c++) middle[c] = (map[order[c]] + map[order[c + 1]]) / 2;
    for (uint64_t b = 0; b * block < n; b++) {
        uint64_t at = b * block, some = tm_min_u64(block, n - at);
        absmax[b] = largest(x + at, some);
        kernels.nf4_encode(&(kernels_nf4_encode){middle, order, x + at, absmax[b], some, codes + at / 2});
    }
}

float tm_nf4_mean(const float *absmax, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += (double)absmax[i];
    return n ? (float)(sum / (double)n) : 0;
}

/* How many middles are less than x. */
static uint8_t nearest(float x) {
    int low = 0, high = 255;
    while (low < high) {
        int mid = (low + high) / 2;
        if (between[mid] < x)
            low = mid + 1;
        else
            high = mid;
    }
    return (uint8_t)low;
}

void tm_nf4_nest(const float *absmax, uint64_t n, float offset, uint8_t *codes, float *nested) {
    (void)tm_nf4_dynamic_map();
    for (uint64_t b = 0; b * TM_NF4_NESTED < n; b++) {
        uint64_t at = b * TM_NF4_NESTED, end = at + tm_min_u64(TM_NF4_NESTED, n - at);
        float m = 0;
        for (uint64_t i = at; i < end; i++) m = fmaxf(m, fabsf(absmax[i] - offset));
        float inverse = 1 / fmaxf(m, 1e-38F);
        for (uint64_t i = at; i < end; i++) codes[i] = nearest((absmax[i] - offset) * inverse);
        nested[b] = m;
    }
}

/* ---- ranges of blocks ---- */

static float load(const void *floats, uint64_t i) {
    float v;
    memcpy(&v, (const char *)floats + 4 * i, sizeof v);
    return v;
}

/* Scales of n blocks. */
static void scales(const tm_nf4_blocks *b, uint64_t block, size_t n, float *out) {
    if (!b->nested_map) {
        memcpy(out, (const char *)b->absmax + 4 * block, n * sizeof *out);
        return;
    }
    const uint8_t *codes = (const uint8_t *)b->absmax + block;
    for (size_t i = 0; i < n;) {
        uint64_t at = b->nested_skip + block + i;
        size_t end = (size_t)tm_min_u64(n, i + b->nested_block - at % b->nested_block);
        float scale = load(b->nested_absmax, at / b->nested_block);
        for (; i < end; i++) out[i] = b->nested_map[codes[i]] * scale + b->offset;
    }
}

/* From an even element on, which begins a block or is in the only one. */
static void look_up(const tm_nf4_blocks *b, const float *absmax, uint64_t first, size_t n, tm_elem to, void *out) {
    const kernels_nf4 run = {b->map, absmax, b->block, b->codes + first / 2, n};
    if (to == TM_ELEM_F32)
        kernels.nf4_f32(&run, out);
    else
        (to == TM_ELEM_BF16 ? kernels.nf4_bf16 : kernels.nf4_f16)(&run, out);
}

/* To the end of the block that `first` is in; returns how many. */
static uint64_t rest_of_block(const tm_nf4_blocks *b, uint64_t first, uint64_t n, tm_elem to, void *out) {
    uint64_t block = first / b->block, take = tm_min_u64(n, b->block - first % b->block);
    float absmax;
    scales(b, block, 1, &absmax);
    if (first % 2 == 0) {
        look_up(b, &absmax, first, take, to, out);
        return take;
    }
    float pair[2]; /* of which the second is wanted, whatever its type */
    look_up(b, &absmax, first - 1, 2, to, pair);
    memcpy(out, kernels_at_const(to, pair, 1), tm_elem_bytes(to));
    return 1;
}

void tm_nf4_values(const tm_nf4_blocks *b, uint64_t first, uint64_t n, tm_elem to, void *out) {
    float absmax[SCALES];
    for (uint64_t done = 0, take; done < n; done += take) {
        uint64_t at = first + done;
        void *dst = kernels_at(to, out, done);
        if (at % b->block) {
            take = rest_of_block(b, at, n - done, to, dst);
            continue;
        }
        take = tm_min_u64(n - done, (uint64_t)SCALES * b->block);
        scales(b, at / b->block, (size_t)((take + b->block - 1) / b->block), absmax);
        look_up(b, absmax, at, take, to, dst);
    }
}

/* ---- the form of our own ---- */

static uint64_t blocks_of(uint64_t n) {
    return (n + TM_NF4_BLOCK - 1) / TM_NF4_BLOCK;
}

/* Of one run: of what lies before its codes. */
static uint64_t head_bytes(uint64_t n, bool double_quant) {
    return double_quant ? 2 * sizeof(float) + blocks_of(n) : blocks_of(n) * sizeof(float);
}
static uint64_t run_bytes(uint64_t n, bool double_quant) {
    return n ? head_bytes(n, double_quant) + (n + 1) / 2 : 0;
}

uint64_t tm_nf4_bytes(uint64_t elements, bool double_quant) {
    return elements / TM_NF4_RUN * run_bytes(TM_NF4_RUN, double_quant) + run_bytes(elements % TM_NF4_RUN, double_quant);
}

static tm_status encode_run(tm_nf4_kind kind, bool double_quant, const float *x, uint64_t n, uint8_t *out) {
    float absmax[TM_NF4_NESTED], head[2];
    tm_nf4_quantise(kind, TM_NF4_BLOCK, x, n, out + head_bytes(n, double_quant), absmax);
    for (uint64_t i = 0; i < blocks_of(n); i++)
        if (!isfinite(absmax[i])) return tm_fail(TM_EINPUT, "a value that is not finite cannot be stored in 4 bits");
    if (!double_quant) {
        memcpy(out, absmax, blocks_of(n) * sizeof *absmax);
        return TM_OK;
    }
    head[0] = tm_nf4_mean(absmax, blocks_of(n));
    tm_nf4_nest(absmax, blocks_of(n), head[0], out + sizeof head, &head[1]);
    memcpy(out, head, sizeof head);
    return TM_OK;
}

tm_status tm_nf4_encode(tm_nf4_kind kind, bool double_quant, const float *x, uint64_t n, void *out) {
    uint8_t *to = out;
    for (uint64_t at = 0, take; at < n; at += take) {
        take = tm_min_u64(n - at, TM_NF4_RUN);
        TM_TRY(encode_run(kind, double_quant, x + at, take, to));
        to += run_bytes(take, double_quant);
    }
    return TM_OK;
}

void tm_nf4_decode(const tm_nf4_form *f, uint64_t first, uint64_t n, tm_elem to, void *out) {
    TM_ASSERT(first <= f->elements && n <= f->elements - first);
    for (uint64_t done = 0, take; done < n; done += take) {
        uint64_t run = (first + done) / TM_NF4_RUN, in_run = (first + done) % TM_NF4_RUN;
        uint64_t elements = tm_min_u64(f->elements - run * TM_NF4_RUN, TM_NF4_RUN);
        const uint8_t *at = (const uint8_t *)f->stored + run * run_bytes(TM_NF4_RUN, f->double_quant);
        tm_nf4_blocks b = {.map = tm_nf4_map(f->kind),
                           .codes = at + head_bytes(elements, f->double_quant),
                           .block = TM_NF4_BLOCK,
                           .absmax = at};
        if (f->double_quant) {
            b.absmax = at + 2 * sizeof(float);
            b.nested_map = tm_nf4_dynamic_map();
            b.nested_absmax = at + sizeof(float);
            b.nested_block = TM_NF4_NESTED;
            b.offset = load(at, 0);
        }
        take = tm_min_u64(n - done, elements - in_run);
        tm_nf4_values(&b, in_run, take, to, kernels_at(to, out, done));
    }
}

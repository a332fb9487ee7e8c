/* Blocks of 4-bit codes (nf4.h) on their way into panels of a right operand, in registers. Nothing of the matrix is written
 * as bf16 but the panels.
 *
 * Stored by line, a register has 16 lines side by side. A byte of codes is two depths of a line, which is a pair of the
 * tile: both are looked up in fp32, each times its line's scale, and rounded together:
 *
 *     bytes of 16 lines   first = map[upper half] * scale[line]   second = map[lower half] * scale[line]   -> 16 pairs
 *
 * Stored by depth, a register has 16 bytes of a row and of the next. A byte is an even line and an odd one, which lie in
 * tiles of their own, and one scale serves all of a row: its 16 values are rounded once, so that a look-up is all:
 *
 *     32 values of 16 bits: the row's, the next row's   even tile: both upper halves   odd tile: both lower halves
 *
 * Products in fp32 and roundings are those of tm_nf4_values, but that results too small to be normal become 0; where scales
 * or the map may make such, bf16_nf4_fits says no. */
#include "kernels/gemm_bf16_internal.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <immintrin.h>
/* Without optimisation some of them are macros, whose conversions of masks would warn here. */
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")))
#define INLINE AVX512 __attribute__((always_inline)) static inline

enum {
    LANES = 16,
    ROW = BF16_ROW_BYTES / 2,       /* elements of a tile's row */
    PANEL_CODES = BF16_K_CHUNK / 2, /* bytes of a line */
    LINE_BYTES = BF16_LINES / 2,    /* of a row that a panel takes */
    MOST_PANELS = 8,                /* that are filled row by row */
    STEP_BYTES = BF16_DEPTHS / 2    /* of a line in a tile */
};
static const float LEAST_MAP = 0x1p-20F, LEAST_SCALE = 0x1p-100F;

static bool is_normal(float x, float least) {
    return x == 0 || fabsf(x) >= least;
}

bool bf16_nf4_fits(const operand *o) {
    const tm_packed *p = o->packed;
    if (p->packing != TM_PACKED_BITS4 || p->head_rows || p->k % BF16_DEPTHS || o->depth % BF16_DEPTHS ||
        o->k0 % BF16_DEPTHS)
        return false;
    if (o->depth > BF16_K_CHUNK ||
        (o->by_depth && (o->at % BF16_LINES || o->n % BF16_LINES || o->n > MOST_PANELS * BF16_LINES)))
        return false;
    for (size_t i = 0; i < LANES; i++)
        if (!is_normal(p->nf4.map[i], LEAST_MAP)) return false;
    return true;
}

/* ---- scales ---- */

typedef struct scales {
    const tm_nf4_blocks *b;
    uint32_t block_bits, nested_bits; /* of elements, of blocks: powers of two */
} scales;

static scales scales_of(const tm_nf4_blocks *b) {
    return (scales){b, (uint32_t)__builtin_ctz(b->block), b->nested_map ? (uint32_t)__builtin_ctz(b->nested_block) : 0};
}

/* Bytes out of the words that they lie in, which reach into no other page. */
INLINE __m512i gather_bytes(const void *at, __m512i index) {
    uintptr_t skip = (uintptr_t)at % 4;
    index = _mm512_add_epi32(index, _mm512_set1_epi32((int)skip));
    __m512i word = _mm512_i32gather_epi32(_mm512_srli_epi32(index, 2), (const char *)at - skip, 4);
    __m512i shift = _mm512_slli_epi32(_mm512_and_si512(index, _mm512_set1_epi32(3)), 3);
    return _mm512_and_si512(_mm512_srlv_epi32(word, shift), _mm512_set1_epi32(0xff));
}

/* Of 16 blocks, in tm_nf4_values' order of operations. */
INLINE __m512 scales_at(const scales *s, __m512i block) {
    const tm_nf4_blocks *b = s->b;
    if (!b->nested_map) return _mm512_i32gather_ps(block, b->absmax, 4);
    __m512i nested = _mm512_add_epi32(block, _mm512_set1_epi32((int)b->nested_skip));
    __m512 scale = _mm512_i32gather_ps(_mm512_srli_epi32(nested, s->nested_bits), b->nested_absmax, 4);
    __m512 value = _mm512_i32gather_ps(gather_bytes(b->absmax, block), b->nested_map, 4);
    return _mm512_add_ps(_mm512_mul_ps(value, scale), _mm512_set1_ps(b->offset));
}

INLINE bool are_normal(__m512 scale) {
    __m512 size = _mm512_abs_ps(scale);
    __mmask16 small = _mm512_cmp_ps_mask(size, _mm512_set1_ps(LEAST_SCALE), _CMP_LT_OQ);
    return _mm512_mask_cmp_ps_mask(small, size, _mm512_setzero_ps(), _CMP_NEQ_OQ) == 0;
}

static const tm_packed *matrix(const operand *o) {
    return o->packed;
}

/* Element `column` of stored row `row`, counted from the first code. */
static uint64_t element(const operand *o, uint64_t row, uint64_t column) {
    return (matrix(o)->first + row) * matrix(o)->k + column;
}

/* Blocks of 16 rows from `row` on, `step` apart, of which the last that there is stands for those that are missing. */
INLINE __m512i blocks_of(const operand *o, const scales *s, uint64_t row, size_t step, uint64_t last, uint64_t column) {
    uint32_t block[LANES];
    for (size_t i = 0; i < LANES; i++)
        block[i] = (uint32_t)(element(o, tm_min_u64(row + i * step, last), column) >> s->block_bits);
    return _mm512_loadu_si512(block);
}

/* ---- stored by line ---- */

/* The panel's codes side by side: where they lie lines are often a multiple of 4 KiB apart. Missing lines are the last. */
static void copy_codes(const operand *o, size_t first, uint8_t *to) {
    for (size_t i = 0; i < BF16_LINES; i++, to += PANEL_CODES) {
        size_t line = tm_min_u64(first + i, o->n - 1);
        memcpy(to, matrix(o)->nf4.codes + element(o, o->at + line, o->k0) / 2, o->depth / 2);
    }
}

/* 32 depths of 16 lines; `codes`: of the first of them, every second line's. */
INLINE void tile_of_lines(const uint8_t *codes, __m512 map, __m512 scale, uint16_t *out) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_slli_epi32(lane, 8); /* 2 * PANEL_CODES bytes */
    const __m512i pairs =
        _mm512_or_si512(lane, _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(LANES)), 16));
    _Static_assert(2 * PANEL_CODES == 1 << 8, "lines are so far apart");
    for (size_t k = 0; k < STEP_BYTES; k += 4) {
        __m512i c = _mm512_i32gather_epi32(at, codes + k, 1);
        for (size_t i = 0; i < 4; i++, out += ROW) {
            __m512 first = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), map), scale);
            __m512 second = _mm512_mul_ps(_mm512_permutexvar_ps(c, map), scale);
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
            _mm512_storeu_si512(out, _mm512_permutexvar_epi16(pairs, both));
            c = _mm512_srli_epi32(c, 8);
        }
    }
}

/* False: a scale is too small. */
AVX512 static bool panel_of_lines(const operand *o, const scales *s, size_t first, uint16_t *out) {
    uint8_t codes[BF16_LINES * PANEL_CODES];
    __m512 map = _mm512_loadu_ps(s->b->map), scale[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    uint64_t line = o->at + first, last = o->at + o->n - 1;
    bool aligned = (matrix(o)->k & (s->b->block - 1)) == 0;
    copy_codes(o, first, codes);
    for (size_t k = 0; k < o->depth; k += BF16_DEPTHS, out += 2 * BF16_TILE)
        for (size_t odd = 0; odd < 2; odd++) {
            if (k == 0 || !aligned || ((o->k0 + k) & (s->b->block - 1)) == 0)
                scale[odd] = scales_at(s, blocks_of(o, s, line + odd, 2, last, o->k0 + k));
            if (!are_normal(scale[odd])) return false;
            tile_of_lines(codes + odd * PANEL_CODES + k / 2, map, scale[odd], out + odd * BF16_TILE);
        }
    return true;
}

static bool pack_lines(const operand *o, uint16_t *out) {
    scales s = scales_of(&matrix(o)->nf4);
    for (size_t i = 0; i < o->n; i += BF16_LINES, out += bf16_panel(o->depth))
        if (!panel_of_lines(o, &s, i, out)) return false;
    return true;
}

/* ---- stored by depth ---- */

/* Of each row, of the block that each panel is in. False: one is too small. */
AVX512 static bool row_scales(const operand *o, const scales *s, float scale[MOST_PANELS][BF16_K_CHUNK]) {
    bool aligned = (matrix(o)->k & (s->b->block - 1)) == 0, normal = true;
    for (size_t j = 0, p = 0; j < o->n; j += BF16_LINES, p++) {
        bool same = p > 0 && aligned && ((o->at + j) & (s->b->block - 1)) != 0;
        if (same) memcpy(scale[p], scale[p - 1], sizeof scale[p]);
        for (size_t k = 0; k < o->depth && !same; k += LANES) {
            __m512 some = scales_at(s, blocks_of(o, s, o->k0 + k, 1, UINT64_MAX, o->at + j));
            _mm512_storeu_ps(scale[p] + k, some);
            normal &= are_normal(some);
        }
    }
    return normal;
}

/* Two rows' 32 lines into a row of each tile. */
INLINE void pair_of_rows(const uint8_t *row, const uint8_t *next, __m512i values, uint16_t *out) {
    const __m512i half = _mm512_set1_epi32(0x000f000f), upper = _mm512_set1_epi32(0x00100000);
    __m512i a = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)row));
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)next));
    __m512i c = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
    __m512i even = _mm512_or_si512(_mm512_srli_epi32(c, 4), upper); /* five bits are looked at */
    __m512i odd = _mm512_ternarylogic_epi32(c, half, upper, 0xea);  /* (c & half) | upper */
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(even, values));
    _mm512_storeu_si512(out + BF16_TILE, _mm512_permutexvar_epi16(odd, values));
}

AVX512 static bool pack_depths(const operand *o, uint16_t *out) {
    scales s = scales_of(&matrix(o)->nf4);
    float scale[MOST_PANELS][BF16_K_CHUNK];
    __m512 map = _mm512_loadu_ps(s.b->map);
    size_t panel = bf16_panel(o->depth), row_bytes = matrix(o)->k / 2;
    if (!row_scales(o, &s, scale)) return false;
    const uint8_t *row = s.b->codes + element(o, o->k0, o->at) / 2;
    for (size_t k = 0; k < o->depth; k += 2, row += 2 * row_bytes) {
        uint16_t *to = out + k / BF16_DEPTHS * 2 * BF16_TILE + k % BF16_DEPTHS / 2 * ROW;
        for (size_t p = 0; p < o->n / BF16_LINES; p++, to += panel) {
            __m512 one = _mm512_mul_ps(map, _mm512_set1_ps(scale[p][k]));
            __m512 other = _mm512_mul_ps(map, _mm512_set1_ps(scale[p][k + 1]));
            __m512i values = (__m512i)_mm512_cvtne2ps_pbh(other, one);
            pair_of_rows(row + p * LINE_BYTES, row + row_bytes + p * LINE_BYTES, values, to);
        }
    }
    return true;
}

bool bf16_pack_nf4(const operand *o, uint16_t *out) {
    return o->by_depth ? pack_depths(o, out) : pack_lines(o, out);
}
#endif

/* Panels of our own product of bf16, and its results to C, by AVX-512, which every CPU has that multiplies bf16. */
#include "kernels/gemm_bf16_internal.h"

#include <string.h>

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <immintrin.h>
/* Without optimisation some of them are macros, whose conversions of masks would warn here. */
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")))
#define INLINE AVX512 __attribute__((always_inline)) static inline

enum { AHEAD = 4 };                /* rows */
enum { ROW = BF16_ROW_BYTES / 2 }; /* elements of a tile's row */
static const __mmask32 ODD = 0xaaaaaaaaU;

static const uint16_t *element_at(const operand *o, size_t line, size_t depth) {
    uint64_t l = o->at + line, k = o->k0 + depth;
    return (const uint16_t *)o->x + (o->by_depth ? k * o->ld + l : l * o->ld + k);
}

INLINE __mmask32 first_lanes(size_t n) {
    return n >= 32 ? 0xffffffffU : (1U << n) - 1;
}

/* ---- packing ---- */

/* Row i, column j of 16 x 16 pairs becomes row j, column i. */
INLINE void transpose_pairs(const uint16_t *x, size_t ld, uint16_t *out) {
#define PART(row) _mm_loadu_si128((const __m128i *)(const void *)(x + (row)*ld + q * 8))
    for (size_t q = 0; q < 4; q++) {
        __m512i r[4];
        for (size_t i = 0; i < 4; i++) {
            r[i] = _mm512_castsi128_si512(PART(i));
            r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x00f0, PART(i + 4));
            r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x0f00, PART(i + 8));
            r[i] = _mm512_mask_broadcast_i32x4(r[i], 0xf000, PART(i + 12));
        }
        __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
        __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
        uint16_t *to = out + q * 4 * ROW;
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a, c));
        _mm512_storeu_si512(to + ROW, _mm512_unpackhi_epi64(a, c));
        _mm512_storeu_si512(to + 2 * ROW, _mm512_unpacklo_epi64(b, d));
        _mm512_storeu_si512(to + 3 * ROW, _mm512_unpackhi_epi64(b, d));
    }
#undef PART
}

AVX512 void bf16_transpose_pairs(const uint16_t *x, size_t ld, uint16_t *out) {
    transpose_pairs(x, ld, out);
}

/* Stored by line: up to 32 depths of up to 32 lines, as tiles of a left operand. */
INLINE void copy_lines(const uint16_t *x, uint64_t ld, size_t lines, size_t depths, uint16_t *out) {
    __mmask32 mask = first_lanes(depths);
    for (size_t i = 0; i < BF16_LINES; i++) {
        __m512i row = i < lines ? _mm512_maskz_loadu_epi16(mask, x + i * ld) : _mm512_setzero_si512();
        _mm512_storeu_si512(out + i % 2 * BF16_TILE + i / 2 * ROW, row);
    }
}

/* Stored by depth: pairs of depths, as tiles of a right operand. */
INLINE void pair_depths(const uint16_t *x, uint64_t ld, size_t lines, size_t depths, uint16_t *out) {
    __mmask32 mask = first_lanes(lines);
    for (size_t p = 0; p < BF16_DEPTHS; p += 2, out += ROW) {
        __m512i a = p < depths ? _mm512_maskz_loadu_epi16(mask, x + p * ld) : _mm512_setzero_si512();
        __m512i b = p + 1 < depths ? _mm512_maskz_loadu_epi16(mask, x + (p + 1) * ld) : _mm512_setzero_si512();
        _mm512_storeu_si512(out, _mm512_mask_blend_epi16(ODD, a, _mm512_slli_epi32(b, 16)));
        _mm512_storeu_si512(out + BF16_TILE, _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32(a, 16), b));
    }
}

AVX512 void bf16_pack_left(const operand *o, uint16_t *out) {
    uint16_t pairs[2 * BF16_TILE];
    for (size_t i = 0; i < o->n; i += BF16_LINES)
        for (size_t k = 0; k < o->depth; k += BF16_DEPTHS, out += 2 * BF16_TILE) {
            size_t lines = tm_min_u64(BF16_LINES, o->n - i), depths = tm_min_u64(BF16_DEPTHS, o->depth - k);
            if (!o->by_depth) {
                copy_lines(element_at(o, i, k), o->ld, lines, depths, out);
                continue;
            }
            pair_depths(element_at(o, i, k), o->ld, lines, depths, pairs);
            transpose_pairs(pairs, ROW, out);
            transpose_pairs(pairs + BF16_TILE, ROW, out + BF16_TILE);
        }
}

/* Comes with the products, and takes denormals for zero as they do. */
AVX512_BF16 static void narrow32(const float *x, uint16_t *out, size_t n) {
    for (size_t i = 0; i < n; i += 32)
        _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i)));
}

/* Blocks of Q8_0 in registers; those `ahead` bytes behind are asked for: of a later row, since a row's come in parts. */
AVX512_BF16 static void q8_0(const uint8_t *b, size_t n, size_t ahead, uint16_t *out) {
    for (size_t i = 0; i < n; i += 32, b += 34) {
        __m512 d = _mm512_cvtph_ps(_mm256_set1_epi16(*(const int16_t *)(const void *)b));
        __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b + 2)));
        __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b + 18)));
        __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(low), d), y = _mm512_mul_ps(_mm512_cvtepi32_ps(high), d);
        _mm_prefetch((const char *)b + ahead, _MM_HINT_T0);
        _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
}

/* Halves: all of them are normal numbers in fp32. */
AVX512_BF16 static void f16(const uint8_t *x, size_t n, size_t ahead, uint16_t *out) {
    for (size_t i = 0; i < n; i += 32, x += 64) {
        __m512 low = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)x));
        __m512 high = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x + 32)));
        _mm_prefetch((const char *)x + ahead, _MM_HINT_T0);
        _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

void bf16_unpack(const tm_packed *p, uint64_t row, uint64_t k, size_t n, uint16_t *out) {
    float wide[BF16_K_CHUNK];
    TM_ASSERT(n <= BF16_K_CHUNK);
    if (n % 32 || p->packing == TM_PACKED_BF16 || p->packing == TM_PACKED_BITS4) {
        tm_packed_values(p, row, k, n, TM_ELEM_BF16, out);
    } else if (p->packing == TM_PACKED_Q8_0 && k % 32 == 0) {
        q8_0((const uint8_t *)p->data + (tm_packed_row(p, row) * p->k + k) / 32 * 34, n, AHEAD * p->k / 32 * 34, out);
    } else if (p->packing == TM_PACKED_F16) {
        f16((const uint8_t *)p->data + (tm_packed_row(p, row) * p->k + k) * 2, n, AHEAD * p->k * 2, out);
    } else {
        tm_packed_values(p, row, k, n, TM_ELEM_F32, wide);
        narrow32(wide, out, n);
    }
}

/* Of a packed operand a panel's lines are decoded together. */
static void pack_decoded(const operand *o, uint16_t *out) {
    uint16_t buf[BF16_LINES * BF16_K_CHUNK];
    TM_ASSERT(o->depth <= BF16_K_CHUNK);
    if (bf16_nf4_fits(o) && bf16_pack_nf4(o, out)) return;
    for (size_t i = 0; i < o->n; i += BF16_LINES, out += bf16_panel(o->depth)) {
        operand some = {.x = buf, .type = o->type, .by_depth = o->by_depth, .n = tm_min_u64(BF16_LINES, o->n - i)};
        some.ld = o->by_depth ? BF16_LINES : BF16_K_CHUNK;
        some.depth = o->depth;
        for (size_t j = 0; j < (o->by_depth ? o->depth : some.n); j++) {
            uint64_t row = o->by_depth ? o->k0 + j : o->at + i + j, at = o->by_depth ? o->at + i : o->k0;
            bf16_unpack(o->packed, row, at, o->by_depth ? some.n : o->depth, buf + j * some.ld);
        }
        bf16_pack_right(&some, out);
    }
}

AVX512 void bf16_pack_right(const operand *o, uint16_t *out) {
    uint16_t rows[2 * BF16_TILE];
    if (o->packed) {
        pack_decoded(o, out);
        return;
    }
    for (size_t i = 0; i < o->n; i += BF16_LINES)
        for (size_t k = 0; k < o->depth; k += BF16_DEPTHS, out += 2 * BF16_TILE) {
            size_t lines = tm_min_u64(BF16_LINES, o->n - i), depths = tm_min_u64(BF16_DEPTHS, o->depth - k);
            if (o->by_depth) {
                pair_depths(element_at(o, i, k), o->ld, lines, depths, out);
            } else if (lines == BF16_LINES && depths == BF16_DEPTHS) {
                transpose_pairs(element_at(o, i, k), 2 * o->ld, out);
                transpose_pairs(element_at(o, i + 1, k), 2 * o->ld, out + BF16_TILE);
            } else {
                copy_lines(element_at(o, i, k), o->ld, lines, depths, rows);
                transpose_pairs(rows, ROW, out);
                transpose_pairs(rows + BF16_TILE, ROW, out + BF16_TILE);
            }
        }
}

/* ---- results ---- */

/* Upper halves, rounded to nearest even, with nothing above. */
INLINE __m512i round16(__m512 v) {
    __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    return _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
}

/* Sums of a row's even and odd columns. */
INLINE void row_16_bits(const tm_gemm_args *g, uint64_t at, size_t columns, __m512 even, __m512 odd) {
    uint16_t *c = (uint16_t *)g->c + at;
    __mmask32 mask = first_lanes(columns);
    if (g->beta != 0.0F) {
        __m512i old = _mm512_maskz_loadu_epi16(mask, c);
        __m512 beta = _mm512_set1_ps(g->beta), old_even = _mm512_castsi512_ps(_mm512_slli_epi32(old, 16));
        __m512 old_odd = _mm512_castsi512_ps(_mm512_and_si512(old, _mm512_set1_epi32((int)0xffff0000)));
        even = _mm512_fmadd_ps(beta, old_even, even), odd = _mm512_fmadd_ps(beta, old_odd, odd);
    }
    _mm512_mask_storeu_epi16(c, mask, _mm512_or_si512(round16(even), _mm512_slli_epi32(round16(odd), 16)));
}

INLINE void half_row(const tm_gemm_args *g, uint64_t at, size_t columns, __m512 sums) {
    float *c = (float *)g->c + at;
    __mmask16 mask = (__mmask16)first_lanes(columns);
    if (g->beta != 0.0F) sums = _mm512_fmadd_ps(_mm512_set1_ps(g->beta), _mm512_maskz_loadu_ps(mask, c), sums);
    _mm512_mask_storeu_ps(c, mask, sums);
}

INLINE void row_32_bits(const tm_gemm_args *g, uint64_t at, size_t columns, __m512 even, __m512 odd) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    half_row(g, at, columns, _mm512_permutex2var_ps(even, low, odd));
    if (columns > 16) half_row(g, at + 16, columns - 16, _mm512_permutex2var_ps(even, high, odd));
}

AVX512 void bf16_store(const bf16_block *b, const float *sums) {
    __m512 alpha = _mm512_set1_ps(b->g->alpha);
    for (size_t i = 0; i < b->rows; i++) {
        const float *row = sums + i % 2 * BF16_TILE + i / 2 * BF16_TILE_ROWS;
        __m512 even = _mm512_mul_ps(alpha, _mm512_loadu_ps(row));
        __m512 odd = _mm512_mul_ps(alpha, _mm512_loadu_ps(row + BF16_TILE / 2));
        uint64_t at = (b->row + i) * b->g->ldc + b->column;
        if (b->g->c_type == TM_ELEM_F32)
            row_32_bits(b->g, at, b->columns, even, odd);
        else
            row_16_bits(b->g, at, b->columns, even, odd);
    }
}

INLINE void lanes_16_bits(const tm_gemm_args *g, uint64_t at, size_t columns, __m512 sums) {
    uint16_t *c = (uint16_t *)g->c + at;
    __mmask16 mask = (__mmask16)first_lanes(columns);
    if (g->beta != 0.0F) {
        __m512i old = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, c));
        sums = _mm512_fmadd_ps(_mm512_set1_ps(g->beta), _mm512_castsi512_ps(_mm512_slli_epi32(old, 16)), sums);
    }
    _mm256_mask_storeu_epi16(c, mask, _mm512_cvtepi32_epi16(round16(sums)));
}

AVX512 void bf16_store_few(const bf16_block *b, const float *sums) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i from = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)b->rows));
    __m512 alpha = _mm512_set1_ps(b->g->alpha);
    for (size_t j = 0; j < b->columns; j += 16)
        for (size_t i = 0; i < b->rows; i++) {
            __m512 v = _mm512_mul_ps(alpha, _mm512_i32gather_ps(from, sums + j * b->rows + i, 4));
            uint64_t at = (b->row + i) * b->g->ldc + b->column + j;
            if (b->g->c_type == TM_ELEM_F32)
                half_row(b->g, at, b->columns - j, v);
            else
                lanes_16_bits(b->g, at, b->columns - j, v);
        }
}
#endif

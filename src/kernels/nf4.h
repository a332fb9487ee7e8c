/* nf4: blocks of 4-bit codes, as bitsandbytes has them (Dettmers et al. 2023, "QLoRA").
 *
 * A code is the number of one of 16 values; two lie in a byte, the first in the upper half. A block of 64 elements (or
 * another power of two), counted through the tensor row after row, shares one scale, its largest magnitude:
 *
 *     value = map[code] * absmax[element / block]
 *
 * Double quantisation stores the scales in 8 bits: codes of the 256 values of the dynamic map, in blocks of 256 scales
 * that share one scale, about an offset:
 *
 *     absmax[b] = dynamic[code[b]] * nested[b / 256] + offset
 *
 * Every product and sum is rounded to fp32, in that order; a value is rounded once more where it is stored in 16 bits.
 * The bits are the same in every column of kernels and for every way to cut a tensor into ranges.
 *
 * Three levels: single steps (quantise, nest), any range of blocks that lie as a published checkpoint has them
 * (tm_nf4_blocks), and a form of our own in which a run of elements is complete in itself (tm_nf4_bytes).
 *
 * Threads: everything here is serial and may be called from any thread. Nothing is kept.
 */
#ifndef TIDEMILL_KERNELS_NF4_H
#define TIDEMILL_KERNELS_NF4_H

#include "kernels/kernels.h"

enum { TM_NF4_BLOCK = 64, TM_NF4_NESTED = 256, TM_NF4_RUN = TM_NF4_BLOCK * TM_NF4_NESTED };
/* NF4: quantiles of the normal distribution. FP4: a sign, two bits of exponent, one of mantissa, as bitsandbytes numbers
 * them. */
typedef enum tm_nf4_kind { TM_NF4, TM_FP4 } tm_nf4_kind;

const float *tm_nf4_map(tm_nf4_kind kind); /* [16] */
const float *tm_nf4_dynamic_map(void);     /* [256]: dynamic_map.h's, with a sign */
/* ---- steps ---- */

/* Codes of n values to the nearest of the map, and absmax of each block, of which the last may be short. `codes` has
 * (n + 1) / 2 bytes, the last half of an odd one is that of 0. A block of zeros is zeros. Values are finite. */
void tm_nf4_quantise(tm_nf4_kind kind, uint32_t block, const float *x, uint64_t n, uint8_t *codes, float *absmax);
/* n scales about their offset (bitsandbytes: their mean): codes to the nearest, and the scale of each 256. */
void tm_nf4_nest(const float *absmax, uint64_t n, float offset, uint8_t *codes, float *nested);
float tm_nf4_mean(const float *absmax, uint64_t n); /* in double, rounded once; 0 of none */

/* ---- blocks, wherever they lie ---- */

typedef struct tm_nf4_blocks {
    const float *map; /* [16] */
    const uint8_t *codes;
    uint32_t block;            /* elements: a power of two, 32 and more */
    const void *absmax;        /* of each block: fp32, at any address; or codes of 8 bits */
    const float *nested_map;   /* [256] of those; NULL: they are fp32 */
    const void *nested_absmax; /* fp32, at any address, of nested_block blocks each */
    uint32_t nested_block;
    uint32_t nested_skip; /* blocks of the first nested block that lie before the first block here */
    float offset;
} tm_nf4_blocks;
/* n values from element `first` on, counted from the first block's first. */
void tm_nf4_values(const tm_nf4_blocks *b, uint64_t first, uint64_t n, tm_elem to, void *out);

/* ---- a form of our own ----
 * Runs of TM_NF4_RUN elements, one after the other, the last as short as it may be. A run is complete in itself, so that
 * what begins at a run's first byte is a form, too:
 *
 *     double quantisation    offset fp32, nested absmax fp32, absmax u8[blocks], codes
 *     else                   absmax fp32[blocks], codes
 *
 * The offset is the mean of the run's scales (bitsandbytes: of the tensor's), so that it needs no second look at the
 * tensor. Codes are bitsandbytes' in both. */
uint64_t tm_nf4_bytes(uint64_t elements, bool double_quant);
/* TM_EINPUT: a value is not finite. */
TM_MUST_USE tm_status tm_nf4_encode(tm_nf4_kind kind, bool double_quant, const float *x, uint64_t n, void *out);
/* n values from element `first` on, of a form of `elements`. `stored` at any address. */
typedef struct tm_nf4_form {
    tm_nf4_kind kind;
    bool double_quant;
    uint64_t elements;
    const void *stored;
} tm_nf4_form;
void tm_nf4_decode(const tm_nf4_form *f, uint64_t first, uint64_t n, tm_elem to, void *out);

#endif

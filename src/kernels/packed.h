/* packed: matrices as files have them, multiplied and looked up as they lie.
 *
 * A matrix [n, k] is rows of k elements one after the other: plain, in blocks of GGUF (ggml-common.h of ggml: a scale or two
 * and codes of 4 to 8 bits; the order of operations is ggml's, so that the values are too), or in 4 bits as bitsandbytes has
 * them (nf4.h). Rows may lie permuted within heads, as GGUF has those of Llama's q and k. A product decodes what it is about
 * to multiply into the first cache (tm_gemm_args.b_packed), an embedding the rows that it looks up (tm_embed.packed).
 *
 * A value is the stored one in fp32, rounded once to the type that it is multiplied in: so a product of a packed matrix has
 * the bits of the product of the matrix decoded into that type.
 *
 * Threads: everything here is serial and may be called from any thread. Nothing is kept. */
#ifndef TIDEMILL_KERNELS_PACKED_H
#define TIDEMILL_KERNELS_PACKED_H

#include "kernels/nf4.h"

typedef enum tm_packed_type {
    TM_PACKED_NOT,
    TM_PACKED_F32,
    TM_PACKED_BF16,
    TM_PACKED_F16,
    TM_PACKED_Q8_0,
    TM_PACKED_Q4_0,
    TM_PACKED_Q4_1,
    TM_PACKED_Q5_0,
    TM_PACKED_Q5_1,
    TM_PACKED_Q4_K,
    TM_PACKED_Q5_K,
    TM_PACKED_Q6_K,
    TM_PACKED_BITS4, /* of nf4.h, either map */
    TM_PACKINGS
} tm_packed_type;

typedef struct tm_packed {
    tm_packed_type packing;
    uint64_t k;         /* elements of a row: whole blocks; of BITS4 even */
    const void *data;   /* of the first row, at any address; not of BITS4 */
    uint64_t first;     /* rows of it before the matrix */
    uint32_t head_rows; /* row r is stored where row h * head_rows + j is, below; 0: rows lie in order */
    tm_nf4_blocks nf4;
} tm_packed;

typedef struct tm_packing_traits {
    const char *name;
    uint32_t block, block_bytes; /* elements, bytes; 0: BITS4 */
} tm_packing_traits;
const tm_packing_traits *tm_packing_of(tm_packed_type p);

/* Row r of a head's first half is the stored one 2 r, of its second half 2 r + 1: rotary pairs beside each other. */
static inline uint64_t tm_packed_row(const tm_packed *p, uint64_t row) {
    uint64_t r = p->first + row, j = p->head_rows ? r % p->head_rows : 0, half = p->head_rows / 2;
    return p->head_rows ? r - j + (j < half ? 2 * j : 2 * (j - half) + 1) : r;
}
/* Elements [at, at + n) of a row. */
void tm_packed_values(const tm_packed *p, uint64_t row, uint64_t at, size_t n, tm_elem to, void *out);

#endif

/* Folders of matrices of integer codes: compressed-tensors' pack-quantized, AutoGPTQ's, AutoAWQ's. Not for others.
 *
 * In each a matrix X.weight [rows, width] is codes of 4 or 8 bits in words of 32, and a value is
 *
 *     (code - zero) * scale        scale and zero of the code's row and group of columns; in fp32
 *
 *                compressed-tensors             AutoGPTQ                         AutoAWQ (gemm)
 *     codes      weight_packed [rows, words]    qweight [words, rows]            qweight [width, rows / 8]
 *                a word: columns of one row     a word: columns of one row       a word: a column of 8 rows, those of
 *                                                                                nibbles 0..7 being 0 2 4 6 1 3 5 7
 *     scale      weight_scale [rows, groups]    scales [groups, rows]            scales [groups, rows]
 *     zero       weight_zero_point, I32 words   qzeros [groups, rows / 8]: a     qzeros [groups, rows / 8], nibbles
 *                of 8 rows [rows / 8, groups]   word of 8 rows, 1 less each      in the order of the codes'
 *                or I8, or none: half of all    (gptq_v2: as it is)
 *     group of   column / group, or             column / group, or               column / group
 *     a column   weight_g_idx [width]           g_idx [width]
 *
 * (compressed_tensors/compressors/pack_quantized, auto_gptq/nn_modules/qlinear, awq/utils/packing_utils.py.) Beside
 * compressed-tensors' codes lies weight_shape [2]. Of 8 bits there are 4 codes in a word where it says 8 above. */
#ifndef TIDEMILL_INTS_INTERNAL_H
#define TIDEMILL_INTS_INTERNAL_H

#include "format/source_internal.h"

typedef enum int_layout { INT_BY_ROWS, INT_GPTQ, INT_AWQ } int_layout;
typedef enum int_zero { INT_ZERO_MIDDLE, INT_ZERO_BYTES, INT_ZERO_WORDS } int_zero;

/* ---- ints_config.c: what config.json says ---- */

typedef struct int_scheme {
    unsigned bits;
    bool symmetric;
    uint64_t group; /* columns; 0: all of a row */
} int_scheme;
enum { INT_SCHEMES = 16, INT_ORDERED_GROUPS = 2048 /* with an index of groups */ };
typedef struct int_form {
    const char *method; /* as config.json names it; NULL: there are no integer codes */
    int_layout layout;
    bool one_less; /* what is stored of a zero */
    uint32_t n;
    int_scheme scheme[INT_SCHEMES];
} int_form;
/* ---- ints.c: one matrix ---- */

typedef struct int_tensor {
    int_layout layout;
    int_zero zero_kind;
    bool one_less, ordered; /* ordered: by an index of groups */
    unsigned bits;
    tm_fmt scale_fmt;
    uint64_t rows, width, group, groups;
    source_place scale, zero, order;
    struct int_strip *strip; /* what was read last (ints_read.c) */
    struct int_tensor *next;
    char name[]; /* HF's */
} int_tensor;

static inline uint64_t int_per_word(const int_tensor *t) {
    return 32 / t->bits;
}
static inline uint64_t int_words(const int_tensor *t, uint64_t elements) {
    return elements / int_per_word(t) + (elements % int_per_word(t) != 0);
}

/* ---- ints_values.c ---- */

/* Some rows, wherever their bytes are. Lines of a transposed matrix have `rows` of them. */
typedef struct int_view {
    const int_tensor *t;
    const uint8_t *codes, *scale, *zero, *order;
    uint64_t row0, rows; /* multiples of a word's codes where the matrix is transposed */
} int_view;
/* The matrix' elements [first, first + n), which are in the view. */
void tm_ints_values(const int_view *v, uint64_t first, uint64_t n, tm_elem to, void *out);

/* ---- ints_read.c ---- */

tm_status tm_ints_strip(struct int_strip **out); /* one for all matrices of a source */
void tm_ints_strip_free(struct int_strip *s);

#endif

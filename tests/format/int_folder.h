/* Folders of integer codes, written element by element from the definitions of their formats. */
#ifndef TIDEMILL_INT_FOLDER_H
#define TIDEMILL_INT_FOLDER_H

#include "world.h"

typedef enum int_maker { MAKER_PACKED, MAKER_GPTQ, MAKER_GPTQ_V2, MAKER_AWQ } int_maker;
typedef enum int_zeros { ZEROS_NONE, ZEROS_WORDS, ZEROS_BYTES } int_zeros;

/* One matrix, "model.up.weight", and beside it "model.norm.weight" [3] in F32. */
typedef struct int_folder {
    int_maker maker;
    unsigned bits;
    uint64_t rows, width, group; /* group 0: a row */
    tm_fmt scale;
    int_zeros zeros;     /* of MAKER_PACKED; the others have words */
    bool ordered;        /* groups of columns by an index that is no plain one */
    bool plain_index;    /* an index that says what is so without it */
    const char *config;  /* of quantization_config; NULL: as it should be */
    const char *without; /* the end of a tensor's name that is left out */
    const char *longer;  /* .. that has a row more than it should */
    const char *retyped; /* .. that is of F64, or I16 where that is no size of it */
    int32_t index_0;     /* not 0: of the first column, in place of its group */
    int64_t shape_0;     /* not 0: rows that weight_shape says */
    bool doubled;        /* "model.up.weight" is there as well */
    bool sharded;        /* companions lie in another file */
} int_folder;

/* Writes it to DIR; the values that it stands for, [rows * width], which live until the next call. */
const float *write_int_folder(const int_folder *f, const char *dir);

#endif

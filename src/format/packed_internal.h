/* A folder of packed weights while it is written: what packed.c and packed_put.c share. */
#ifndef TIDEMILL_PACKED_INTERNAL_H
#define TIDEMILL_PACKED_INTERNAL_H

#include "format/quantised_folder_internal.h"

enum { PACKED_NAME_BYTES = 256, PACKED_ROOM = 1 << 18 /* elements of each buffer */ };
enum { PACKED_CODES, PACKED_SCALE, PACKED_SHAPE }; /* entries of a matrix, from its first on */

struct tm_codes {
    const tm_quantised_folder *f;
    unsigned bits;
    uint64_t group; /* 0: a row has one scale */
    tm_hf_tensor *list;
    char (*name)[PACKED_NAME_BYTES];
    uint32_t *first; /* per tensor of the source: its first entry */
    bool *put;       /* per tensor of the source: by whoever calibrates */
    uint32_t n;
    tm_hf_writer *w;
    float *values, *scale;
    uint32_t *packed;
};

uint64_t tm_codes_words(const tm_codes *p, uint64_t width); /* of a row of codes */
uint64_t tm_codes_groups(const tm_codes *p, uint64_t width);
/* Its shape, and what it lost, once its rows are there. */
TM_MUST_USE tm_status tm_codes_end(tm_codes *p, uint32_t i, const tm_lost *lost, double output_error);

#endif

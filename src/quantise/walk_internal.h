/* What the files of the walk share. */
#ifndef TIDEMILL_QUANTISE_WALK_INTERNAL_H
#define TIDEMILL_QUANTISE_WALK_INTERNAL_H

#include "kernels/gemm.h"
#include "quantise/quantise_internal.h"

enum { WALK_PIECE = 1 << 18 }; /* values that are read at a time */

static inline tm_elem walk_elem(const walk *w) {
    return (tm_elem)w->o.compute;
}
/* walk_block.c: what matrices the unit has and what they multiply. */
TM_MUST_USE tm_status walk_describe(walk *w, uint32_t unit);
/* The values of a part into `to`. */
TM_MUST_USE tm_status walk_load_part(walk *w, uint32_t part, char *to);
uint64_t walk_unit_bytes(const walk *w, uint32_t unit); /* of its parts; w->part_at is set */
/* walk_sums.c */
typedef struct walk_taking {
    walk_input *in;
    tm_elem type;
} walk_taking;
void walk_clear_sums(walk *w);
void walk_place_sums(walk *w);                                /* of the unit that was described, in the buffers */
void walk_add_input(void *taking, const tm_product_input *x); /* take_input of a stage */

#endif

/* Operations that go through slices in pieces, two pieces under way: collective.c (reductions), gather.c. */
#ifndef TIDEMILL_COMM_WORK_INTERNAL_H
#define TIDEMILL_COMM_WORK_INTERNAL_H

#include "comm/remote_internal.h"

/* An operation in pieces. Positions' slices lie at begin[]; slot i of a lane is for what belongs to position i. */
typedef struct work work;
typedef tm_status work_fn(const work *w, comm_lane *lane, uint64_t at);
struct work {
    tm_comm *c;
    const tm_comm_op *op;
    const comm_group *g;
    uint32_t nodes; /* grid's nodes if staged, else 1 */
    bool staged;
    uint64_t piece;  /* elements */
    uint64_t stride; /* bytes of a slot */
    const float *send;
    float *out; /* my slice of the sum */
    char *recv;
    work_fn *first, *second, *finish; /* posts; posts after the first has arrived (staged); when all is there */
};

work work_make(tm_comm *c, const tm_comm_op *op);
/* How long a piece may be: `slots` of one quantisation block each, and `floats` blocks of fp32 beside them, lie in a
 * lane. */
void work_set_piece(work *w, uint64_t slots, uint64_t floats);
tm_status work_run(const work *w);

uint64_t work_slice(const work *w, uint32_t position);             /* elements */
uint64_t work_part(const work *w, uint32_t position, uint64_t at); /* of its slice in the piece at `at` */
uint64_t work_part_bytes(const work *w, uint32_t position, uint64_t at);
char *work_slot(const work *w, const comm_lane *lane, uint64_t i);
comm_route work_route(const work *w, comm_lane *lane, int stage);

#endif

/* The greedy choice of what stays resident: what may be kept (candidates.c) and the choice (density.c), for
 * residency.c. */
#ifndef TIDEMILL_DENSITY_INTERNAL_H
#define TIDEMILL_DENSITY_INTERNAL_H

#include "offload/plan/load_internal.h"
#include "offload/machine/machine.h"
#include "offload/offload_internal.h"

enum { STRETCHES = 96, DENSITY_ROUNDS = 3 };

typedef struct cand_interval {
    uint32_t from, to;           /* positions */
    uint64_t bytes, read, write; /* of the frame; moved when it is not kept */
} cand_interval;

typedef struct candidate {
    uint32_t first, count; /* object ids */
    uint32_t unit;
    uint8_t kind;
    bool kept, best;
    uint32_t from, to; /* positions over which it takes memory */
    uint64_t bytes;
    uint32_t first_interval, n_interval;
    double spread, score;
} candidate;

typedef struct density {
    const tm_program *p;
    tm_machine machine;
    uint64_t limit[TM_KINDS], kept_bytes[TM_KINDS];
    candidate *c;
    uint32_t n;
    uint32_t *of;            /* object -> candidate */
    cand_interval *interval; /* of the candidates */
    cand_interval *base;     /* what is in memory in any case */
    uint32_t n_base;
    uint32_t *heap;
    load_tree load;
    uint8_t *stretch; /* of each position */
    double *seconds;  /* of each operation */
    bool priced;
    double *best_price;
    double *weight, *price; /* of each position; prefix sums */
    double cpu[STRETCHES], read[STRETCHES], write[STRETCHES];
} density;

static inline bool is_temp(uint32_t id) {
    return id & TM_TEMP_BIT;
}

/* `resident` and `temp_paged` say where the choice starts: what may still be kept is what is paged there. `below`:
 * bytes of resident state. Close it whatever is returned. */
tm_status density_open(density *d, const tm_program *p, const tm_plan_opts *o, const uint8_t *resident,
                       const uint8_t *temp_paged, uint64_t below);
void density_close(density *d);
/* Decides for loads up to `budget`; sets resident[] and temp_paged[] of all candidates. */
void density_choose(density *d, uint64_t budget, uint8_t *resident, uint8_t *temp_paged);
uint64_t density_moved(const density *d); /* bytes that candidates move in a run, under the latest choice */

#endif

/* lp_facts: what a program asks of memory and disk, read off its intervals and uses alone, without the planner's help.
 *
 *   item      what one fraction is chosen for: the tiles of one kind of one part, or a temporary that pages
 *   segment   a stretch of consecutive operations: the tiles of one part, or a few operations together
 *   row       a moment in a segment at which memory has to suffice; over the tiles of a part, the mean of the moments:
 *             tiles are alike, so fractions that differ from tile to tile gain nothing over their mean
 *
 * An item that is kept lies in memory throughout (state) or from its first use to its last (a temporary). One that is
 * not kept lies there in each interval, from the first use to the last; it is read where the interval reads first, and
 * written after the last change (a temporary: but for its last interval).
 *
 * Amounts are MiB. Lists are sparse; `item` indexes facts->item. */
#ifndef TIDEMILL_TEST_LP_FACTS_H
#define TIDEMILL_TEST_LP_FACTS_H

#include "offload/offload_internal.h"
#include "offload/sim/sim.h"
#include "step/step.h"

typedef struct lp_item {
    tm_kind kind;
    bool state;
    double mib;         /* in memory while it is kept */
    double read, write; /* a run, where it is not kept */
} lp_item;

typedef struct lp_term {
    uint32_t item;
    double amount;
} lp_term;

typedef struct lp_list {
    lp_term *term;
    uint32_t n, cap;
} lp_list;

/* What is in memory at a moment, resident state apart. */
typedef struct lp_moment {
    double fixed; /* nobody can avoid it */
    lp_list open; /* state in an interval: there even if it is not kept */
    lp_list
        change; /* since the moment of the same sort before: temporaries between intervals, there if they are kept */
} lp_moment;

typedef struct lp_row {
    uint32_t segment;
    lp_moment moment;
} lp_row;

typedef struct lp_segment {
    double seconds;   /* of its operations */
    lp_list need;     /* used for the first time in an interval that reads: read by now */
    lp_list changed;  /* changed for the last time in an interval: may be written from now on */
    lp_list closed;   /* changed, and used for the last time in an interval: takes memory until it is written */
    lp_moment at_end; /* between its last operation and the next segment's first */
} lp_segment;

typedef struct lp_facts {
    lp_item *item;
    lp_segment *segment;
    lp_row *row; /* in order of segments */
    uint32_t n_items, cap_items, n_segments, cap_segments, n_rows, cap_rows;
    double always; /* state that never pages */
} lp_facts;

/* Operations that do not go by tiles are put together into about `coarse` segments. */
void lp_facts_make(lp_facts *f, const tm_job *job, const tm_program *p, bool spill, uint32_t coarse, tm_cost_fn cost,
                   void *ctx);
void lp_facts_free(lp_facts *f);

#endif

/* lp_solve: the least bytes, and the least seconds, of any choice of residency for a program under a budget.
 *
 * Variables: for each item the fraction that is kept, 0..1. Both are relaxations - fractions, no addresses, rows at
 * some moments only, transfers cut at will - so no plan that keeps whole objects for whole runs can do better.
 *
 *   bytes     sum of what is not kept, subject to memory at every row
 *   seconds   per segment its duration, what the disk reads and writes in it, what has been read ahead and what has not
 *             been written yet at its end. Durations are at least the segment's compute; reads, writes and both
 *             together at most what the simulated disk moves (offload/sim/simulate_disk.c: r/R <= 1, w/W <= 1, r/R + w/W <= 1 + d);
 *             reads come before their use, writes after their change, and bytes that wait take memory. */
#ifndef TIDEMILL_TEST_LP_SOLVE_H
#define TIDEMILL_TEST_LP_SOLVE_H

#include "lp_facts.h"

typedef struct lp_problem lp_problem;
void lp_quiet(void); /* the solver prints nothing */
/* `machine`: NULL for bytes. `cyclic`: a run may read ahead for the next and leave writes to it. */
lp_problem *lp_problem_make(const lp_facts *f, const tm_machine *machine, bool cyclic);
/* Under `budget` bytes of frames; false where no choice fits. The optimum is MiB or seconds. Later calls start from the
 * solution before. */
bool lp_problem_solve(lp_problem *p, uint64_t budget, double *optimum);
/* Of the last solution: MiB moved of each kind. */
void lp_problem_moved(const lp_problem *p, double moved[TM_KINDS]);
void lp_problem_free(lp_problem *p);

#endif

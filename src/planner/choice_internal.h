/* The choice: what its files share. planner.c has the order of things, least.c what each way needs at the least,
 * least_many.c how that grows with the micro-batches, choose.c which way is best under given limits. */
#ifndef TIDEMILL_CHOICE_INTERNAL_H
#define TIDEMILL_CHOICE_INTERNAL_H

#include "planner/start.h"

/* The ways of an ask under given bounds, and what each needs at the least. */
typedef struct way_list {
    const planner_ask *ask;
    const job_opts *opts; /* the job's, or with less that has to stay */
    job_budget budget;
    uint64_t *least;  /* [ask->n] bytes of slab and plans, 0: not known; UINT64_MAX: the device's memory is too small */
    uint64_t *plans;  /* [ask->n] of that the plans, where `least` is known */
    uint64_t minimum; /* of all; UINT64_MAX: the device's memory is too small for any */
    uint64_t minimum_device;
    uint64_t minimum_anyway; /* of the slab, were the device's memory large enough */
    /* Micro-batches: the least with so many is more than there is room for. Where their plans alone are, nothing was
     * built, and the minima are counted. */
    bool too_many;
    uint32_t most_micro_batches; /* so many fit; 0: not even few */
    uint64_t room; /* where micro-batches are many: for slab and plans; an unlimited budget has what the machine has */
} way_list;

/* least.c */
TM_MUST_USE tm_status way_list_open(way_list *w, const planner_ask *ask, const job_opts *opts, const job_budget *b);
void way_list_close(way_list *w);
/* The least slab of every way and of all: independent of the budget. `counted`: only whether micro-batches are too many,
 * as far as counting tells. */
TM_MUST_USE tm_status way_list_minimum(way_list *w, bool counted);
TM_MUST_USE tm_status way_minimum(way_list *w, uint32_t i); /* of one of them, into the list */
uint64_t way_planning_bytes(uint64_t plans); /* that planning takes at most, plans of so many bytes included */
/* What the plans of a way that was compiled take, where that is more than their programs said. */
void way_plans_took(way_list *w, uint32_t way, uint64_t bytes);

/* The programs of a way, in this order. */
typedef enum way_program {
    WAY_EVALUATION,
    WAY_BESIDE,
    WAY_STEP,
    WAY_IMPORT,
    WAY_FIRST_STEP, /* with parked gradients, as is */
    WAY_DRAIN       /* the update that is pending */
} way_program;
/* `share`: of memory that ranks share, there already when the program runs. */
typedef tm_status (*way_see_fn)(void *ctx, way_program which, const tm_program *p, uint64_t share);
TM_MUST_USE tm_status way_programs(const way_list *w, const pass_opts *o, way_see_fn see, void *ctx);
uint64_t way_plan_bytes(const way_list *w, way_program which, const tm_program *p); /* at most; 0: it does not stay */

typedef struct way_needs {
    uint64_t least, device, plans; /* slab, arena, what plans take; in bytes */
} way_needs;
TM_MUST_USE tm_status way_needs_of(const way_list *w, const pass_opts *o, way_needs *n);
/* With which the least of one of its programs is planned, in an arena that is large enough: `device` bytes are. */
TM_MUST_USE tm_status way_program_opts(const way_list *w, const tm_program *p, uint64_t share, tm_plan_opts *po,
                                       uint64_t *device);
/* Of one of its programs: n->least and n->device become no less. */
TM_MUST_USE tm_status way_program_least(const way_list *w, const tm_program *p, uint64_t share, way_needs *n);
uint64_t way_least(const way_needs *n); /* slab and plans; while it is planned, too */
bool way_device_has_room(const way_list *w, uint64_t device);
bool way_is_asked(const way_list *w, uint32_t i); /* its least is found at once; else where it is about to be tried */
TM_MUST_USE tm_status way_list_pack(way_list *w); /* the least of all that are asked */

/* least_many.c: the same where micro-batches are many; what has no room is not built. `without_packing`: only whether
 * counting says that. */
TM_MUST_USE tm_status way_list_count(way_list *w, bool without_packing);
/* What the slab of `n` micro-batches, five or more, has in use at the fullest moment, counted by programs of few; 0: not
 * known. */
TM_MUST_USE tm_status way_frames(const way_list *w, const pass_opts *way, uint32_t n, uint64_t *bytes);

/* choose.c */
/* Compiles the best way (`only`, if less than n) within `limits`, whose plans_bytes become the way's; the job's state
 * is the plan's then. TM_EBUDGET, with no error set: none fits. `opts`: those of the list, or stricter. */
TM_MUST_USE tm_status choose_way(way_list *w, const job_opts *opts, job_limits *limits, uint32_t only, tm_plan **plan,
                                 uint32_t *way);

#endif

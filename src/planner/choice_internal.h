/* The choice: what its files share. planner.c has the order of things, least.c what each way needs at the least,
 * choose.c which way is best under given limits. */
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
} way_list;

/* least.c */
TM_MUST_USE tm_status way_list_open(way_list *w, const planner_ask *ask, const job_opts *opts, const job_budget *b);
void way_list_close(way_list *w);
/* The least slab of every way and of all: independent of the budget. */
TM_MUST_USE tm_status way_list_minimum(way_list *w);
TM_MUST_USE tm_status way_minimum(way_list *w, uint32_t i); /* of one of them, into the list */
uint64_t way_planning_bytes(uint64_t plans); /* that planning takes at most, plans of so many bytes included */
/* What the plans of a way that was compiled take, where that is more than their programs said. */
void way_plans_took(way_list *w, uint32_t way, uint64_t bytes);

/* choose.c */
/* Compiles the best way (`only`, if less than n) within `limits`, whose plans_bytes become the way's; the job's state
 * is the plan's then. TM_EBUDGET, with no error set: none fits. `opts`: those of the list, or stricter. */
TM_MUST_USE tm_status choose_way(way_list *w, const job_opts *opts, job_limits *limits, uint32_t only, tm_plan **plan,
                                 uint32_t *way);

#endif

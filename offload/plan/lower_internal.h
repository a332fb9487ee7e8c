/* From a program whose operations lie in two tiers to one with copies between them: what the files of lower*.c and
 * device_resident.c share.
 *
 *   lower.c            both ends: what fits, the arena's addresses
 *   lower_intervals.c  which frames there are in the arena, for how long, and which are one
 *   lower_copies.c     which copies that takes, and when
 *   lower_emit.c       the program with copies
 *   device_resident.c  state that has a place in the arena from run to run, and what computes there for it
 */
#ifndef TIDEMILL_LOWER_INTERNAL_H
#define TIDEMILL_LOWER_INTERNAL_H

#include "offload/plan/load_internal.h"

/* For opts->device_bytes of arena; with opts->choose_residency and opts->cache it also decides what is
 * device-resident (the lowered program's `device_address`), else the layout says it. TM_EBUDGET: the arena is too
 * small. `*out` is the caller's. */
tm_status lower_program(tm_program **out, const tm_program *p, const tm_plan_opts *opts);

#define LOWER_IN_PLACE (UINT32_MAX - 1)

typedef struct device_interval {
    uint32_t first, count;     /* objects */
    uint32_t begin, end;       /* first and last of its operations, and of those joined to it */
    uint32_t last;             /* of its own */
    uint32_t start, retire_at; /* has its frame over [start, retire_at] */
    uint32_t earliest;         /* where what it opens with is there on the host */
    uint32_t into;             /* the device interval that it was joined to; itself */
    uint32_t interval;         /* of the lowered program, TM_NONE: not yet */
    bool reads, writes;        /* of what was there before; anything */
    bool opens, leaves;        /* begins with a copy in; something is copied out */
    live_range frame;
} device_interval;

typedef struct copy {
    uint32_t object;
    uint32_t device_interval; /* LOWER_IN_PLACE: the object's own place */
    uint32_t interval;        /* of the program: the host's side */
    uint32_t at, by;          /* behind operation `at` or before it; in: for operation `by` */
    bool out, behind;
} copy;

/* Where the latest version of an object is. */
typedef struct whereabouts {
    bool on_host;
    uint32_t device_interval; /* that has it too, or alone; TM_NONE: none; LOWER_IN_PLACE: it has a place of its own */
    uint32_t host_from;       /* position from which it may be copied in, */
    uint32_t host_interval;   /* by this interval, TM_NONE: any; by others once it is over and may have left memory */
    uint32_t written;         /* operation that wrote it last on the device, */
    uint32_t write_interval;  /* in this interval */
    bool owed; /* its host frame will be written back with the rest of its interval: it needs the latest */
} whereabouts;

typedef struct join {
    uint32_t a, b;
    double worth;
} join;

typedef struct lowering {
    const tm_program *p;
    const tm_plan_opts *opts; /* NULL: the least is asked for */
    uint64_t arena;
    device_interval *device_interval;
    uint32_t n_device_interval;
    uint32_t *of_interval; /* device interval of each interval, TM_NONE: the device does nothing with it */
    join *join;
    uint32_t n_join;
    size_t cap_join;
    copy *copy;
    uint32_t n_copy;
    size_t cap_copy;
    whereabouts *place; /* per object: state, then temporaries */
    load_tree load, ahead;
    uint64_t window, peak;
    tm_program *out;
    uint32_t *host_interval;  /* of the lowered program, per record of the program's intervals */
    uint8_t *whole;           /* per interval: the host uses several of its objects at once */
    uint64_t *device_address; /* per state object: its address in the arena for good; 0: none */
    uint64_t resident_bytes;  /* the arena's first ones */
    uint8_t *tier;            /* per operation: where it computes */
    uint64_t copied;          /* bytes of all copies */
} lowering;

static inline uint32_t lower_slot(const lowering *w, uint32_t id) {
    return id & TM_TEMP_BIT ? w->p->layout->n + (id & ~TM_TEMP_BIT) : id;
}
static inline bool lower_on_device(const lowering *w, uint32_t op) {
    return w->tier[op] == TM_TIER_DEVICE;
}
static inline bool lower_is_in_place(const lowering *w, uint32_t id) {
    return !(id & TM_TEMP_BIT) && w->device_address[id] != 0;
}
static inline uint32_t lower_joined(const lowering *w, uint32_t s) {
    while (w->device_interval[s].into != s) s = w->device_interval[s].into;
    return s;
}

/* lower_intervals.c. lower_intervals: once w->device_address and w->tier are known; lower_reset, lower_join before
 * copies are looked for; lower_ahead behind it. `room`: of the load. */
tm_status lower_intervals(lowering *w);
void lower_reset(lowering *w);
void lower_join(lowering *w, uint64_t room);
void lower_ahead(lowering *w, uint64_t room);
/* lower_copies.c */
tm_status lower_copies(lowering *w);
/* lower_emit.c */
tm_status lower_emit(lowering *w);
/* device_resident.c. Groups of objects that are device-resident together or not at all. */
typedef struct resident_groups {
    uint32_t *of; /* per state object; TM_NONE: it cannot be device-resident */
    uint64_t *bytes;
    bool *take;
    uint32_t n;
    uint64_t all_bytes;
} resident_groups;
tm_status resident_find(resident_groups *g, const tm_program *p);
void resident_close(resident_groups *g);
/* Both set w->device_address and w->tier. resident_choose: at most so many bytes, evenly over the layout;
 * resident_settled: as the layout has it (afresh: nothing). */
void resident_choose(lowering *w, resident_groups *g, uint64_t bytes);
void resident_settled(lowering *w, bool afresh);

#endif

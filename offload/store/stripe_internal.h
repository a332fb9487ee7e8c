/* Which path an object goes to: of those that are for its kind, in proportion to what the disks were measured at, where
 * there is room. Nothing is decided again later: the store keeps the path of each object, and commits name it. */
#ifndef TIDEMILL_STRIPE_H
#define TIDEMILL_STRIPE_H

#include "offload/machine/machine.h"
#include "offload/offload_internal.h"

enum { STRIPE_PATHS = TM_MACHINE_PATHS };

typedef struct stripe {
    unsigned n;
    double weight[STRIPE_PATHS]; /* bytes a second; 1 each where not all are known. Paths of one disk share its rate */
    uint8_t disk[STRIPE_PATHS];  /* the first path on the same disk: its room is the room of all of them */
    uint64_t room[STRIPE_PATHS], given[STRIPE_PATHS];
    uint32_t kinds[STRIPE_PATHS]; /* as tm_store_opts.path_kinds: a bit a tm_kind; 0: all */
} stripe;

/* Rates from this machine's profile, room from the file systems. */
void stripe_of_runs(stripe *s, tm_io_run *const *runs, unsigned n);
/* The same for a plan whose store is not open: what stripe_of_runs will find there. */
void stripe_of_machine(stripe *s, const tm_machine *m);
/* Takes `bytes` for something of `kind` on the path that would be through with what it was given first; of those for
 * this kind (all, where none is) and of these of those with room, if there is one (otherwise on the one with the most:
 * creating the file then says what is missing). */
unsigned stripe_take(stripe *s, tm_kind kind, uint64_t bytes);

/* Temporaries. A plan gives each an extent of one spill file; plans that overlap are proved by those addresses. Here
 * the addresses are cut into segments, each on one path. An extent lies in the segment that it begins in, behind whose
 * end there is room for the largest one, so extents that do not overlap by address do not overlap on any path either.
 *
 *     addresses   |---- 0 ----|---- 1 ----|---- 2 ----|-- 3 --|
 *     path 0      |---- 0 ----+largest|---- 2 ----+largest|
 *     path 1      |---- 1 ----+largest|-- 3 --|                                    */
typedef struct spill_segment {
    uint64_t offset; /* in its path's spill file */
    uint8_t path;
} spill_segment;
typedef struct spill_map {
    uint64_t segment_bytes; /* by address */
    uint32_t n;
    spill_segment *segment;
    uint64_t size[STRIPE_PATHS]; /* of each path's spill file */
} spill_map;

/* Takes room for `bytes` of addresses on the paths for activations, a segment at a time: a path with little of it is
 * used for what fits. `largest` extent; 0: not known, then all of it is one segment. */
TM_MUST_USE tm_status spill_map_make(spill_map *map, stripe *s, uint64_t bytes, uint64_t largest);
void spill_map_free(spill_map *map);
static inline const spill_segment *spill_at(const spill_map *map, uint64_t address) {
    TM_ASSERT(address / map->segment_bytes < map->n);
    return &map->segment[address / map->segment_bytes];
}
/* What all segments take together. */
uint64_t spill_map_bytes(unsigned n_paths, uint64_t bytes, uint64_t largest);

#endif

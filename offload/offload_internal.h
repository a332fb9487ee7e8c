/* What the files of offload share: the structures behind layout, program and plan, and the store's half of a transfer.
 */
#ifndef TIDEMILL_OFFLOAD_INTERNAL_H
#define TIDEMILL_OFFLOAD_INTERNAL_H

#include "offload/machine/machine.h"
#include "offload/plan/plan.h"
#include "offload/store/store.h"

#define TM_TEMP_BIT 0x80000000u /* in an object id: a temporary of the program, else state of the layout */
#define TM_NONE UINT32_MAX
#define TM_SHARED_BASE ((uint64_t)1 << 49) /* addresses from here on are in memory that ranks share */
#define TM_DEVICE_BASE ((uint64_t)1 << 50) /* addresses from here on are a device's */
#define TM_SPILL_BASE ((uint64_t)1 << 51)  /* in proofs and links: the spill file, by offset */

/* Where an object is read that lies in a file which is not ours. */
typedef struct object_home {
    uint32_t object, file;
    uint64_t offset;
} object_home;

typedef struct layout_file {
    char *path;
    uint64_t bytes;
} layout_file;

struct tm_layout {
    tm_object *object;
    uint32_t n;
    size_t cap;
    object_home *home; /* of those that have one, in the order of ids */
    uint32_t n_homes, n_files;
    size_t cap_homes, cap_files;
    layout_file *file;
    uint64_t resident_end; /* resident state lies in [0, resident_end) of the slab */
    bool chosen;
};

/* The frame of an interval of device-resident state: its place in the arena, or one on the host. */
typedef enum interval_home {
    INTERVAL_USUAL,
    INTERVAL_APART, /* a host frame for as long as the interval lasts: copies fill it, and take away what was written */
    INTERVAL_DISK   /* a host frame that is filled from the object's extent, or written back there */
} interval_home;

typedef struct prog_interval {
    uint32_t first, count;      /* object ids */
    uint32_t first_op, last_op; /* TM_NONE: not used */
    uint32_t record;            /* first of `count` per-object records */
    uint8_t tier;               /* where its frame is */
    uint8_t home;               /* of device-resident state: see interval_home */
    uint64_t address;           /* lower.c or shared.c has placed it there; 0: place.c does */
} prog_interval;

/* What an interval does with one of its objects. */
typedef struct interval_object {
    uint8_t first_access; /* 0: untouched */
    bool dirty;
} interval_object;

typedef struct prog_use {
    uint32_t interval, object, count;
    tm_use_access access;
} prog_use;

typedef struct prog_op {
    tm_op op;
    uint32_t first_use, n_uses;
} prog_op;

struct tm_program {
    const tm_layout *layout;
    char name[32];
    tm_object *temp;
    uint32_t n_temp;
    size_t cap_temp;
    prog_interval *interval;
    uint32_t n_interval;
    size_t cap_interval;
    interval_object *record;
    uint32_t n_record;
    size_t cap_record;
    prog_op *op;
    uint32_t n_op;
    size_t cap_op;
    prog_use *use;
    uint32_t n_use;
    size_t cap_use;
    uint64_t device_bytes;    /* of the arena: what lower.c placed */
    uint64_t shared_bytes;    /* what shared.c placed */
    uint64_t *device_address; /* lowered: per state object its address in the arena, 0: none; NULL: nothing is */
    bool lowered;
    tm_status status;
};

/* Gradients are in no commit: nothing is pending when one is made. */
static inline bool in_commits(const tm_object *o) {
    return tm_kind_get(o->kind)->committed;
}

const tm_object *program_object(const tm_program *p, uint32_t id);
const object_home *layout_home(const tm_layout *l, uint32_t id); /* NULL: it has none */

/* One frame for a stretch of program positions: an interval of paged state, or a temporary's whole life. */
typedef struct live_range {
    uint32_t first_object, count;
    uint32_t start, end; /* positions (program op indices); the frame is taken before `start`, free after `retire_at` */
    uint32_t retire_at;  /* end, or later while a write-back may still be under way */
    uint32_t first_use;  /* position of the first compute op that touches it (start is earlier with look-ahead) */
    uint64_t bytes, address;
    uint32_t interval; /* whose accesses decide fills and write-backs; TM_NONE: a kept temporary, no disk */
    uint32_t block;    /* pack.c's */
    bool fill, dirty;
    uint8_t tier;
} live_range;

/* Which live range (or resident address) serves each interval, under one choice of residency and look-ahead. */
typedef struct placement {
    live_range *item;
    uint32_t n;
    size_t cap;
    uint32_t *of_interval; /* live range of each interval, TM_NONE: resident state */
    uint8_t *temp_paged;   /* per temporary */
    uint64_t base;         /* first byte above resident state */
    uint64_t peak;         /* bytes of slab needed, base included */
    uint64_t device_peak;  /* bytes of the device's arena */
    uint32_t pack_way;     /* by which the slab was packed */
} placement;

/* What stays in memory, and how much is read ahead. */
typedef struct residency {
    uint8_t *resident;   /* per state object */
    uint8_t *temp_paged; /* per temporary */
    uint64_t base;       /* first byte above resident state */
    uint64_t window;     /* bytes of look-ahead, where the frames in use ... */
    uint64_t room;       /* ... stay within so many bytes of slab */
    uint64_t minimum;    /* least slab that a plan needs; known after a refusal too */
    uint64_t visit;      /* the most that one operation has to have read, with nothing kept */
    uint32_t pack_way;   /* the way of packing that fitted last */
    bool only_fitting;   /* frames that do not fit the slab are of no use */
} residency;

/* place.c: builds live ranges for the chosen residency, gives look-ahead where there is room, assigns addresses. */
tm_status place_build(placement *pl, const tm_program *p, const tm_plan_opts *opts, const residency *r);
void place_free(placement *pl);
/* In order of the position at `key` (an offset in a live range) of each, those with the same one as they come. */
tm_status place_sort(live_range **out, live_range *const *in, uint32_t n, uint32_t positions, size_t key);
/* pack.c: frames over [start, retire_at], from `base` on. Ways of packing are tried until one ends at `top` or below (0:
 * the simple ones, all); the one that ends lowest is kept. */
enum { PACK_WAYS = 4 };
typedef struct pack_ask {
    uint32_t n, positions;
    uint64_t base, top;
    uint32_t begin;  /* the way that is tried first */
    bool only_below; /* what ends above `top` is of no use: then there are no addresses, and the peak is UINT64_MAX */
} pack_ask;
typedef struct pack_found {
    uint64_t peak;
    uint32_t way;
} pack_found;
tm_status place_pack(live_range **item, const pack_ask *ask, pack_found *found);

/* shared.c: what a budget pays for shared frames, the program's own or another's. */
uint64_t shared_share(const tm_program *p, const tm_plan_opts *opts);

/* residency.c and density.c: fill all of `r`, whose two arrays are the caller's. */
tm_status residency_choose(const tm_program *p, const tm_layout *l, const tm_plan_opts *opts, residency *r);
uint64_t residency_base(const tm_program *p, const uint8_t *resident, uint64_t *address /* per object, or NULL */);

typedef struct temp_extent {
    uint64_t offset;     /* in the spill file */
    uint32_t first_page; /* of its checksums */
} temp_extent;

struct tm_plan {
    char name[32];
    const tm_layout *layout;
    tm_plan_op *op;
    uint32_t n_op;
    uint32_t *succ;
    uint64_t *operand; /* slab addresses */
    tm_object *temp;   /* temporaries: kind and sizes */
    temp_extent *extent;
    uint32_t n_temp, n_temp_pages;
    tm_plan_info info;
    /* for the verifier: what each op touches */
    struct plan_touch {
        uint64_t address, bytes;
        uint8_t access;
        uint32_t object;
    } * touch;
    uint32_t *first_touch; /* n_op + 1 */
};

/* What a plan's arrays take: emit.c once it is there, program.c before. */
typedef struct plan_size {
    uint64_t ops, edges, operands, touches, temps;
} plan_size;
static inline uint64_t plan_memory_bytes(const plan_size *s) {
    return sizeof(tm_plan) + s->ops * (sizeof(tm_plan_op) + sizeof(uint32_t)) + s->edges * sizeof(uint32_t) +
           s->operands * sizeof(uint64_t) + s->touches * sizeof(struct plan_touch) +
           s->temps * (sizeof(tm_object) + sizeof(temp_extent));
}

/* emit.c: placement -> plan. */
tm_status plan_emit(tm_plan **out, const tm_layout *l, const tm_program *p, const placement *pl,
                    const uint8_t *resident, const uint64_t *address);

/* verify.c: proves it, and notes that in it (link.c). */
tm_status link_prove(tm_link *link);
void link_proved(tm_link *link, bool proved, double seconds);
bool link_is_proved(const tm_link *link);

static inline bool address_is_shared(uint64_t address) {
    return address >= TM_SHARED_BASE && address < TM_DEVICE_BASE;
}
static inline bool plan_is_disk(uint8_t engine) {
    return engine == TM_ENGINE_DISK_READ || engine == TM_ENGINE_DISK_WRITE;
}

/* What of a run may start while the run before computes, if the link between them allows. */
static inline bool plan_starts_early(uint8_t engine) {
    return engine == TM_ENGINE_DISK_READ || engine == TM_ENGINE_COPY_IN;
}

enum { STORE_PATHS = TM_MACHINE_PATHS };
/* store.c: one transfer. `frame` is the object's whole frame (frame_bytes). */
typedef struct store_target {
    const tm_plan *plan;
    uint32_t object;
    uint64_t *temp_checksum; /* [plan->n_temp_pages] */
} store_target;
tm_io *store_io(tm_store *s);
/* The path of what a disk operation of `plan` moves, and how many there are. */
uint32_t store_lane(const tm_store *s, const tm_plan *plan, uint32_t object);
uint32_t store_lanes(const tm_store *s);
/* The lane of each disk operation of `plan` on a machine with several paths, had all of its state been placed in the
 * layout's order: [ops of the plan], tm_free. NULL in *out: one path. */
TM_MUST_USE tm_status stripe_lanes(uint8_t **out, const tm_plan *plan, const struct tm_machine *m);
/* Slot, generation, checksums of what is written. team: by the caller's OpenMP threads. */
void store_seal(tm_store *s, const store_target *t, void *frame, bool team);
void store_aim_write(tm_store *s, const store_target *t, void *frame, tm_io_req *req);     /* of what was sealed */
void store_prepare_write(tm_store *s, const store_target *t, void *frame, tm_io_req *req); /* both */
tm_status store_prepare_read(tm_store *s, const store_target *t, void *frame, tm_io_req *req);
/* `req` (may be NULL) is for the message. */
tm_status store_check_read(tm_store *s, const store_target *t, const void *frame, const tm_io_req *req);
uint64_t store_checksum_ns(const tm_store *s);
void store_run_begins(tm_store *s, const tm_plan *plan);

#endif

#include "offload/store/stripe_internal.h"

#include <sys/stat.h>

/* Training reads about as much as it writes. */
static double rate_of(const tm_disk *d) {
    return d->read_bps > 0 && d->write_bps > 0 ? 2 / (1 / d->read_bps + 1 / d->write_bps) : 0;
}

/* Without the rates of all, every disk counts alike. Paths of one disk share what it has. */
static void settle_weights(stripe *s, bool known) {
    unsigned sharing[STRIPE_PATHS] = {0};
    for (unsigned i = 0; i < s->n; i++) sharing[s->disk[i]]++;
    for (unsigned i = 0; i < s->n; i++) s->weight[i] = (known ? s->weight[i] : 1) / sharing[s->disk[i]];
}

static uint8_t disk_of(const dev_t *device, unsigned i) {
    unsigned first = 0;
    while (device[first] != device[i]) first++;
    return (uint8_t)first;
}

void stripe_of_runs(stripe *s, tm_io_run *const *runs, unsigned n) {
    TM_ASSERT(n > 0 && n <= STRIPE_PATHS);
    dev_t device[STRIPE_PATHS];
    bool known = n > 1;
    *s = (stripe){.n = n};
    for (unsigned i = 0; i < n; i++) {
        tm_disk disk;
        struct stat st;
        uint64_t free_bytes = tm_io_run_free_bytes(runs[i]);
        device[i] = stat(tm_io_run_path(runs[i]), &st) == 0 ? st.st_dev : (dev_t)i;
        s->disk[i] = disk_of(device, i);
        s->room[i] = free_bytes - free_bytes / 128; /* the file system wants some for itself */
        known = known && tm_profile_get_disk(tm_io_run_path(runs[i]), &disk);
        if (known) tm_disk_as_trained(&disk);
        s->weight[i] = known ? rate_of(&disk) : 0;
        known = known && s->weight[i] > 0;
    }
    settle_weights(s, known);
}

void stripe_of_machine(stripe *s, const tm_machine *m) {
    bool known = true;
    *s = (stripe){.n = m->n_paths};
    for (unsigned i = 0; i < s->n; i++) {
        const tm_machine_path *p = &m->path[i];
        s->disk[i] = p->disk;
        s->kinds[i] = p->kinds;
        s->room[i] = p->rates.bytes ? p->rates.bytes - p->rates.bytes / 128 : UINT64_MAX;
        s->weight[i] = rate_of(&p->rates);
        known = known && p->measured && s->weight[i] > 0;
    }
    settle_weights(s, known);
}

static double ready_at(const stripe *s, unsigned i, uint64_t bytes) {
    TM_ASSERT(i < s->n && s->weight[i] > 0);
    return ((double)s->given[i] + (double)bytes) / s->weight[i];
}

static uint32_t bit_of(tm_kind kind) {
    TM_ASSERT(kind < TM_KINDS);
    return (uint32_t)1 << kind;
}

static bool is_for(const stripe *s, unsigned i, tm_kind kind) {
    return s->kinds[i] == 0 || (s->kinds[i] & bit_of(kind));
}

/* The first path for `kind`; n: none is (a run that goes on where the configuration does not name its paths). */
static unsigned first_for(const stripe *s, tm_kind kind) {
    unsigned i = 0;
    while (i < s->n && !is_for(s, i, kind)) i++;
    return i;
}

unsigned stripe_take(stripe *s, tm_kind kind, uint64_t bytes) {
    unsigned first = first_for(s, kind), best = first < s->n ? first : 0;
    TM_ASSERT(s->n > 0);
    bool fits = false;
    for (unsigned i = best; i < s->n; i++) {
        bool room = s->room[s->disk[i]] >= bytes;
        if (first < s->n && !is_for(s, i, kind)) continue;
        if (room && !fits) {
            best = i;
        } else if (room ? ready_at(s, i, bytes) < ready_at(s, best, bytes)
                        : !fits && s->room[s->disk[i]] > s->room[s->disk[best]]) {
            best = i;
        }
        fits = fits || room;
    }
    s->given[best] += bytes;
    s->room[s->disk[best]] -= tm_min_u64(bytes, s->room[s->disk[best]]);
    return best;
}

enum { SEGMENT_EXTENTS = 4, MOST_SEGMENTS = 4096 };

/* Few extents to a segment, so that neighbours, which are moved at about the same time, lie on different paths; but
 * not one, since each segment reserves the largest beyond its end. */
static uint64_t segment_bytes(unsigned n_paths, uint64_t bytes, uint64_t largest) {
    if (n_paths == 1 || largest == 0 || largest >= bytes / SEGMENT_EXTENTS) return bytes;
    uint64_t least = (bytes + MOST_SEGMENTS - 1) / MOST_SEGMENTS;
    return tm_round_up(tm_max_u64(SEGMENT_EXTENTS * largest, least), TM_FRAME_ALIGN);
}

/* What segment `i` takes: nothing begins or ends behind the last address. */
static uint64_t bytes_of_segment(uint64_t segment, uint32_t i, uint64_t bytes, uint64_t largest) {
    TM_ASSERT(i * segment < bytes);
    return tm_min_u64(segment + largest, bytes - i * segment);
}

static uint32_t segments(uint64_t segment, uint64_t bytes) {
    return bytes ? (uint32_t)((bytes + segment - 1) / segment) : 0;
}

tm_status spill_map_make(spill_map *map, stripe *s, uint64_t bytes, uint64_t largest) {
    uint64_t segment = segment_bytes(s->n, bytes, largest);
    *map = (spill_map){.segment_bytes = segment, .n = segments(segment, bytes)};
    if (map->n == 0) return TM_OK;
    map->segment = tm_malloc(map->n * sizeof *map->segment);
    if (!map->segment) return tm_nomem(map->n * sizeof *map->segment);
    for (uint32_t i = 0; i < map->n; i++) {
        uint64_t take = bytes_of_segment(segment, i, bytes, largest);
        unsigned path = stripe_take(s, TM_KIND_ACTIVATION, take);
        map->segment[i] = (spill_segment){.offset = map->size[path], .path = (uint8_t)path};
        map->size[path] += take;
    }
    return TM_OK;
}

void spill_map_free(spill_map *map) {
    tm_free(map->segment);
    *map = (spill_map){0};
}

uint64_t spill_map_bytes(unsigned n_paths, uint64_t bytes, uint64_t largest) {
    uint64_t segment = segment_bytes(n_paths, bytes, largest), all = 0;
    for (uint32_t i = 0; i < segments(segment, bytes); i++) all += bytes_of_segment(segment, i, bytes, largest);
    return all;
}

/* ---- a plan whose store is not open -------------------------------------------------------------------------- */

static void place_state(stripe *s, const tm_layout *l, uint8_t *path) {
    for (uint32_t i = 0; i < l->n; i++)
        if (!l->object[i].resident && !layout_home(l, i))
            path[i] = (uint8_t)stripe_take(s, l->object[i].kind, l->object[i].frame_bytes);
}

static uint8_t lane_of(const tm_plan *plan, uint32_t object, const uint8_t *path, const spill_map *map) {
    TM_ASSERT(object & TM_TEMP_BIT ? (object & ~TM_TEMP_BIT) < plan->n_temp : object < plan->layout->n);
    return object & TM_TEMP_BIT ? spill_at(map, plan->extent[object & ~TM_TEMP_BIT].offset)->path : path[object];
}

tm_status stripe_lanes(uint8_t **out, const tm_plan *plan, const tm_machine *m) {
    spill_map map = {0};
    stripe s;
    tm_status rc;
    *out = NULL;
    if (m->n_paths < 2) return TM_OK;
    stripe_of_machine(&s, m);
    uint8_t *path = tm_calloc(plan->layout->n + 1, 1), *lane = tm_calloc(plan->n_op + 1, 1);
    if (!path || !lane) TM_GO(tm_nomem(plan->n_op + plan->layout->n));
    TM_GO(spill_map_make(&map, &s, plan->info.spill_file_bytes, plan->info.spill_largest_bytes));
    place_state(&s, plan->layout, path);
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (plan_is_disk(plan->op[i].engine)) lane[i] = lane_of(plan, plan->op[i].object, path, &map);
    *out = lane;
    lane = NULL;
done:
    spill_map_free(&map);
    tm_free(path);
    tm_free(lane);
    return rc;
}

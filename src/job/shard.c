/* Slices of parts: who holds which elements. Slice boundaries are functions of the part and the number of ranks alone,
 * so that blocks of the norm, and with them every bit of a step, are the same in every strategy.
 *
 *   part      |--------------- elements ---------------|
 *   slices    |    0    |    1    |    2    |    3     |    one a rank, of equal size but the last
 *   tiles     |  |  |  ||  |  |  ||  |  |  ||  |  |  | |    2^20 elements, each slice cut by itself
 */
#include "job/job.h"

/* A slice's bytes are whole frames in every type, so that the tiles of several join in memory. */
enum { SLICE_GRAIN = 2048 };

uint64_t slice_elements(uint64_t elements, uint32_t slices) {
    return tm_round_up((elements + slices - 1) / slices, SLICE_GRAIN);
}

span slice_span(uint64_t elements, uint32_t slices, uint32_t slice) {
    uint64_t each = slice_elements(elements, slices), begin = tm_min_u64(elements, slice * each);
    return (span){begin, tm_min_u64(elements - begin, each)};
}

static uint32_t tiles_of(uint64_t elements) {
    return (uint32_t)((elements + TM_TILE_ELEMENTS - 1) / TM_TILE_ELEMENTS);
}

uint32_t held_tiles(uint64_t elements, uint32_t slices, holding h) {
    uint32_t n = 0;
    for (uint32_t j = 0; j < h.count; j++) n += tiles_of(slice_span(elements, slices, h.first + j).n);
    return n;
}

span held_tile(uint64_t elements, uint32_t slices, holding h, uint32_t tile) {
    uint32_t each = tiles_of(slice_elements(elements, slices)); /* tiles of every slice before the last */
    span s = slice_span(elements, slices, h.first + tile / each);
    uint64_t at = (uint64_t)(tile % each) * TM_TILE_ELEMENTS;
    TM_ASSERT(at < s.n);
    return (span){s.begin + at, tm_min_u64(TM_TILE_ELEMENTS, s.n - at)};
}

uint32_t held_find(uint64_t elements, uint32_t slices, holding h, uint64_t begin) {
    uint64_t each = slice_elements(elements, slices), slice = begin / each;
    if (slice < h.first || slice >= h.first + h.count) return UINT32_MAX;
    return (uint32_t)(slice - h.first) * tiles_of(each) + (uint32_t)(begin % each / TM_TILE_ELEMENTS);
}

span own_tile(const tm_job *job, uint32_t part, uint32_t tile) {
    return held_tile(job->part[part].elements, job->ranks.ranks, job->ranks.own, tile);
}

span hi_tile(const tm_job *job, uint32_t part, uint32_t tile) {
    return held_tile(job->part[part].elements, job->ranks.ranks, job->part[part].weights, tile);
}

span sum_tile(const tm_job *job, uint32_t part, uint32_t tile) {
    return held_tile(job->part[part].elements, job->ranks.ranks, job->ranks.sums, tile);
}

span own_run(const tm_job *job, uint32_t part) {
    const part_state *ps = &job->part[part];
    holding h = job->ranks.own;
    span first = slice_span(ps->elements, job->ranks.ranks, h.first);
    span last = slice_span(ps->elements, job->ranks.ranks, h.first + h.count - 1);
    return (span){first.begin, last.begin + last.n - first.begin};
}

bool part_kept_whole(const tm_model *m, uint32_t part, uint64_t keep_elements) {
    const tm_segment *seg = tm_model_part_segments(m, part);
    for (uint32_t i = 0; i < tm_model_part(m, part)->n_segments; i++) {
        const tm_tensor *t = tm_model_tensor(m, seg[i].tensor);
        if (t->ndim > 1 && t->elements > keep_elements) return false;
    }
    return true;
}

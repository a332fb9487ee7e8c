/* A job's state as objects of a layout: weights, their lower halves, moments and parked gradients by tile, and the
 * key-value cache of generation. */
#include "job/job.h"

static uint32_t add_object(tm_job *job, tm_kind kind, uint32_t unit, uint32_t bundle, uint64_t bytes, bool pinned) {
    return tm_layout_object(job->layout, &(tm_object){.kind = kind,
                                                      .unit = unit,
                                                      .bundle = bundle,
                                                      .bytes = bytes,
                                                      .pageable = kind != TM_KIND_SCRATCH,
                                                      .pinned = pinned});
}

/* Small enough in all its tensors to stay, where DeepSpeed's threshold asks for that. */
static bool persists(const tm_job *job, const job_opts *opts, uint32_t part) {
    const tm_segment *seg = tm_model_part_segments(job->model, part);
    for (uint32_t i = 0; i < tm_model_part(job->model, part)->n_segments; i++)
        if (tm_model_tensor(job->model, seg[i].tensor)->elements > opts->persist_elements) return false;
    return opts->persist_elements > 0;
}

static part_state describe_part(const tm_job *job, uint32_t part) {
    const job_ranks *r = &job->ranks;
    part_state s = {.lo = TM_NO_OBJECT,
                    .exp_avg = TM_NO_OBJECT,
                    .exp_avg_sq = TM_NO_OBJECT,
                    .grad = TM_NO_OBJECT,
                    .means = TM_NO_OBJECT,
                    .elements = tm_model_part(job->model, part)->elements,
                    .weights =
                        part_kept_whole(job->model, part, r->keep_elements) ? (holding){0, r->ranks} : r->weights};
    s.learns = tm_model_part(job->model, part)->learns;
    for (uint32_t i = 0; i < tm_model_part(job->model, part)->n_segments; i++)
        s.mixed |= !tm_model_tensor(job->model, tm_model_part_segments(job->model, part)[i].tensor)->learns;
    if (!s.learns) return s;
    s.small = job->optimizer && state_is_small(job, part);
    s.hi_tiles = held_tiles(s.elements, r->ranks, s.weights);
    s.tiles = held_tiles(s.elements, r->ranks, r->own);
    s.sum_tiles = held_tiles(s.elements, r->ranks, r->sums);
    return s;
}

/* Gradients that are handed round lie side by side, the others beside the states that they update. */
static void add_moments(tm_job *job, uint32_t part, uint32_t *bundle) {
    part_state *s = &job->part[part];
    uint32_t unit = tm_model_part(job->model, part)->unit, at = tm_layout_objects(job->layout), first = at;
    bool apart = job->parks && gradients_are_shared(job);
    const tm_kind kind[] = {TM_KIND_WEIGHT_LO, TM_KIND_EXP_AVG, TM_KIND_EXP_AVG_SQ, TM_KIND_GRAD};
    uint32_t *id[] = {&s->lo, &s->exp_avg, &s->exp_avg_sq, &s->grad}, kinds = job->parks && !apart ? 4 : 3;
    if (s->tiles == 0) return;
    for (uint32_t k = 0; k < kinds; k++)
        if (state_bytes(job, part, kind[k], 1) > 0) *id[k] = at++;
    s->stride = s->grad_stride = at - first;
    for (uint32_t i = 0; i < s->tiles; i++)
        for (uint32_t k = 0; k < kinds; k++)
            if (*id[k] != TM_NO_OBJECT)
                (void)add_object(job, kind[k], unit, (*bundle)++,
                                 state_bytes(job, part, kind[k], own_tile(job, part, i).n), false);
    if (!apart) return;
    s->grad = tm_layout_objects(job->layout);
    s->grad_stride = 1;
    for (uint32_t i = 0; i < s->tiles; i++)
        (void)add_object(job, TM_KIND_GRAD, unit, *bundle,
                         state_bytes(job, part, TM_KIND_GRAD, own_tile(job, part, i).n), false);
    ++*bundle;
}

/* Whole on every rank, whatever slices it has: all of them have all sums. */
static void add_means(tm_job *job, uint32_t part, uint32_t *bundle) {
    part_group g = passes_group(job->model, part);
    if (!job_updates_in_passes(job) || g.first != part || passes_means_bytes(job, g) == 0) return;
    job->part[part].means = tm_layout_objects(job->layout);
    (void)add_object(job, TM_KIND_EXP_AVG_SQ, tm_model_part(job->model, part)->unit, (*bundle)++,
                     passes_means_bytes(job, g), false);
}

static tm_status add_part(tm_job *job, const job_opts *opts, uint32_t part, uint32_t *bundle) {
    part_state *s = &job->part[part];
    *s = describe_part(job, part);
    if (!s->learns) return frozen_add_part(job, part, bundle);
    s->hi = tm_layout_objects(job->layout);
    for (uint32_t i = 0; i < s->hi_tiles; i++)
        (void)add_object(job, TM_KIND_WEIGHT_HI, tm_model_part(job->model, part)->unit, *bundle,
                         state_bytes(job, part, TM_KIND_WEIGHT_HI, hi_tile(job, part, i).n), persists(job, opts, part));
    ++*bundle;
    if (job->optimizer) add_moments(job, part, bundle);
    add_means(job, part, bundle);
    return TM_OK;
}

static uint32_t objects_of(const tm_job *job, const part_state *s) {
    bool apart = job->optimizer && job->parks && gradients_are_shared(job);
    uint32_t n = s->hi_tiles + s->tiles * (s->stride + (apart ? 1 : 0)) + (s->means != TM_NO_OBJECT);
    n += s->n_held;
    for (uint32_t i = 0; i < s->n_pieces; i++)
        for (uint32_t k = 0; k < TM_PIECE_RANGES; k++) n += job->frozen[s->first_piece + i].count[k];
    return n;
}

job_state job_move_state(tm_job *job) {
    job_state s = {.layout = job->layout,
                   .part = job->part,
                   .frozen = job->frozen,
                   .n_frozen = job->n_frozen,
                   .cap_frozen = job->cap_frozen,
                   .kv = job->kv,
                   .parks = job->parks};
    job->layout = NULL;
    job->part = NULL;
    job->frozen = NULL;
    job->kv = NULL;
    return s;
}

void job_free_state(job_state *s) {
    tm_layout_free(s->layout);
    TM_FREE_ALL(s->part, s->frozen, s->kv);
    *s = (job_state){0};
}

void job_set_state(tm_job *job, const job_state *s) {
    job_state old = job_move_state(job);
    job_free_state(&old);
    job->layout = s->layout;
    job->part = s->part;
    job->frozen = s->frozen;
    job->n_frozen = s->n_frozen;
    job->cap_frozen = s->cap_frozen;
    job->kv = s->kv;
    job->parks = s->parks;
}

tm_status job_add_state(tm_job *job, const job_opts *opts, bool parks) {
    job_set_state(job, &(job_state){.parks = parks});
    uint32_t parts = tm_model_parts(job->model), bundle = 0, want = 0;
    TM_TRY(tm_layout_create(&job->layout));
    job->part = tm_calloc(parts + 1, sizeof *job->part);
    if (!job->part) return tm_nomem(parts * sizeof *job->part);
    for (uint32_t p = 0; p < parts; p++) {
        TM_TRY(add_part(job, opts, p, &bundle));
        want += objects_of(job, &job->part[p]);
    }
    if (opts->kv_capacity) TM_TRY(kv_add_state(job, &bundle, &want));
    return tm_layout_objects(job->layout) == want ? TM_OK : tm_nomem(want * sizeof(tm_object));
}

/* Going on from a commit that was laid out otherwise: by another number of ranks, another strategy. Every rank reads
 * what it now holds out of the slices of those who held it then; nothing is converted on disk. */
#include "job/job.h"

#include <string.h>

typedef struct old_part {
    holding weights;
    uint32_t hi, own; /* number of the first tile: within WEIGHT_HI, and within each of the others */
    uint32_t squares; /* within EXP_AVG_SQ of an optimizer in passes: of the tiles of vectors, of a group's means */
} old_part;

typedef struct old_rank {
    tm_commit_reader *reader;
    holding weights, own;
    old_part *part;
} old_rank;

struct elastic {
    const tm_model *m;
    uint32_t ranks;
    uint64_t keep_elements;
    old_rank *rank;
};

/* ---- what a commit says of itself ---------------------------------------------------------------------------- */

static void put_holding(tm_json_writer *w, const char *key, holding h) {
    tm_jw_field_array(w, key);
    tm_jw_uint(w, h.first);
    tm_jw_uint(w, h.count);
    tm_jw_array_end(w);
}

void elastic_describe(const job_ranks *r, tm_json_writer *w) {
    tm_jw_field_object(w, "shards");
    tm_jw_field_uint(w, "ranks", r->ranks);
    tm_jw_field_uint(w, "keep_elements", r->keep_elements);
    put_holding(w, "weights", r->weights);
    put_holding(w, "own", r->own);
    tm_jw_object_end(w);
}

static bool get_holding(const tm_json *shards, const char *key, uint32_t ranks, holding *h) {
    const tm_json *list = tm_json_get(shards, key), *a = list ? list->child : NULL, *b = a ? a->next : NULL;
    if (!a || !b || !a->is_integer || !b->is_integer || a->integer < 0 || b->integer < 1) return false;
    if (a->integer >= ranks || b->integer > ranks - a->integer) return false;
    *h = (holding){(uint32_t)a->integer, (uint32_t)b->integer};
    return true;
}

/* Commits of one rank say nothing: it holds everything. */
tm_status elastic_shards(const tm_json *info, job_ranks *out) {
    const tm_json *shards = tm_json_get(info, "shards");
    *out = (job_ranks){.ranks = 1, .weights = {0, 1}, .own = {0, 1}};
    if (!shards) return TM_OK;
    const tm_json *ranks = tm_json_get(shards, "ranks"), *keep = tm_json_get(shards, "keep_elements");
    bool good = ranks && ranks->is_integer && ranks->integer > 0 && ranks->integer <= 1 << 20 && keep &&
                keep->is_integer && keep->integer >= 0;
    if (good) {
        out->ranks = (uint32_t)ranks->integer;
        out->keep_elements = (uint64_t)keep->integer;
    }
    if (good && get_holding(shards, "weights", out->ranks, &out->weights) &&
        get_holding(shards, "own", out->ranks, &out->own))
        return TM_OK;
    return tm_fail(TM_ECORRUPT, "the commit does not say which part of the state it holds");
}

static bool alike(holding a, holding b) {
    return a.first == b.first && a.count == b.count;
}

bool elastic_same(const job_ranks *a, const job_ranks *b) {
    return a->ranks == b->ranks && a->keep_elements == b->keep_elements && alike(a->weights, b->weights) &&
           alike(a->own, b->own);
}

/* Objects are counted as job_add_state made them. */
static tm_status count_objects(elastic *e, old_rank *r) {
    uint32_t parts = tm_model_parts(e->m), hi = 0, own = 0, squares = 0;
    r->part = tm_calloc(parts + 1, sizeof *r->part);
    if (!r->part) return tm_nomem(parts * sizeof *r->part);
    for (uint32_t p = 0; p < parts; p++) {
        uint64_t elements = tm_model_part(e->m, p)->elements;
        bool whole = part_kept_whole(e->m, p, e->keep_elements);
        if (!tm_model_part(e->m, p)->learns) continue;
        r->part[p] = (old_part){whole ? (holding){0, e->ranks} : r->weights, hi, own, squares};
        hi += held_tiles(elements, e->ranks, r->part[p].weights);
        own += held_tiles(elements, e->ranks, r->own);
        squares +=
            part_is_factored(e->m, p) ? passes_group(e->m, p).first == p : held_tiles(elements, e->ranks, r->own);
    }
    return TM_OK;
}

static uint64_t step_of(const elastic *e, uint32_t q) {
    return tm_commit_step(tm_commit_reader_commit(e->rank[q].reader));
}

/* Folders of two checkpoints put together would be a state that no run ever had. */
static tm_status same_step(const elastic *e, uint32_t q, const char *const *directory) {
    if (step_of(e, q) == step_of(e, 0)) return TM_OK;
    return tm_fail(TM_EINPUT, "%s is of step %llu, %s of step %llu: not of one checkpoint; give one that is whole",
                   directory[q], (unsigned long long)step_of(e, q), directory[0], (unsigned long long)step_of(e, 0));
}

tm_status elastic_open(elastic **out, const tm_model *m, const char *const *directory, uint32_t ranks) {
    tm_status rc = TM_OK;
    elastic *e = tm_calloc(1, sizeof *e);
    if (!e) return tm_nomem(sizeof *e);
    *e = (elastic){.m = m, .ranks = ranks};
    e->rank = tm_calloc(ranks, sizeof *e->rank);
    if (!e->rank) TM_GO(tm_nomem(ranks * sizeof *e->rank));
    for (uint32_t q = 0; q < ranks; q++) {
        job_ranks was;
        TM_GO(tm_commit_reader_open(&e->rank[q].reader, directory[q]));
        TM_GO(elastic_shards(tm_commit_info(tm_commit_reader_commit(e->rank[q].reader)), &was));
        if (was.ranks != ranks || (q > 0 && was.keep_elements != e->keep_elements))
            TM_GO(tm_fail(TM_ECORRUPT, "%s: not of the same run as the directories beside it", directory[q]));
        TM_GO(same_step(e, q, directory));
        e->keep_elements = was.keep_elements;
        e->rank[q].weights = was.weights;
        e->rank[q].own = was.own;
        TM_GO(count_objects(e, &e->rank[q]));
    }
    *out = e;
done:
    if (rc != TM_OK) elastic_close(e);
    return rc;
}

void elastic_close(elastic *e) {
    if (!e) return;
    for (uint32_t q = 0; e->rank && q < e->ranks; q++) {
        tm_commit_reader_close(e->rank[q].reader);
        tm_free(e->rank[q].part);
    }
    tm_free(e->rank);
    tm_free(e);
}

static holding holding_of(const elastic *e, uint32_t rank, uint32_t part, tm_kind kind) {
    return kind == TM_KIND_WEIGHT_HI ? e->rank[rank].part[part].weights : e->rank[rank].own;
}

/* Who held the slice: the lowest rank, where several did. */
static uint32_t holder_of(const elastic *e, uint32_t part, tm_kind kind, uint32_t slice) {
    uint32_t q = 0;
    for (; q < e->ranks; q++) {
        holding h = holding_of(e, q, part, kind);
        if (slice >= h.first && slice < h.first + h.count) break;
    }
    return q;
}

/* Where a run of elements was: an object of a commit, its tile, the run's place in it; and how long it is. */
typedef struct old_run {
    tm_commit_reader *reader;
    uint32_t number;
    uint64_t tile, first, n;
} old_run;

/* Elements from at.begin on, up to the end of the old tile that they begin in. */
static tm_status find_run(elastic *e, const tm_job *job, uint32_t part, tm_kind kind, span at, old_run *run) {
    uint64_t elements = tm_model_part(e->m, part)->elements, each = slice_elements(elements, e->ranks);
    uint32_t slice = (uint32_t)(at.begin / each), q = holder_of(e, part, kind, slice);
    if (q == e->ranks) return tm_fail(TM_ECORRUPT, "no commit holds slice %u of %s", slice, tm_kind_name(kind));
    holding h = holding_of(e, q, part, kind);
    uint64_t from = at.begin - at.begin % each % TM_TILE_ELEMENTS; /* where the old tile begins */
    uint32_t tile = held_find(elements, e->ranks, h, from);
    span was = held_tile(elements, e->ranks, h, tile);
    const old_part *p = &e->rank[q].part[part];
    bool squares = kind == TM_KIND_EXP_AVG_SQ && job_updates_in_passes(job);
    *run = (old_run){.reader = e->rank[q].reader,
                     .number = (kind == TM_KIND_WEIGHT_HI ? p->hi
                                : squares                 ? p->squares
                                                          : p->own) +
                               tile,
                     .tile = was.n,
                     .first = at.begin - was.begin,
                     .n = tm_min_u64(at.n, was.begin + was.n - at.begin)};
    return TM_OK;
}

/* Blocks of 8-bit states begin where slices and tiles do (states.c), so that runs are cut between them. */
static tm_status read_coded(const tm_job *job, uint32_t part, tm_kind kind, const old_run *r, char *magnitude,
                            char *code) {
    uint64_t before = state_codes_at(job, part, r->first);
    TM_TRY(tm_commit_read(r->reader, kind, r->number, before, magnitude, state_codes_at(job, part, r->n)));
    return tm_commit_read(r->reader, kind, r->number, state_codes_at(job, part, r->tile) + r->first, code, r->n);
}

tm_status elastic_read(elastic *e, const tm_job *job, uint32_t part, tm_kind kind, span at, void *to) {
    bool state = kind == TM_KIND_EXP_AVG || kind == TM_KIND_EXP_AVG_SQ;
    uint64_t codes = state ? state_codes_at(job, part, at.n) : 0, width = state_bytes(job, part, kind, 1), done = 0;
    while (done < at.n) {
        old_run r = {0};
        TM_TRY(find_run(e, job, part, kind, (span){at.begin + done, at.n - done}, &r));
        if (codes)
            TM_TRY(read_coded(job, part, kind, &r, (char *)to + state_codes_at(job, part, done),
                              (char *)to + codes + done));
        else
            TM_TRY(tm_commit_read(r.reader, kind, r.number, r.first * width, (char *)to + done * width, r.n * width));
        done += r.n;
    }
    return TM_OK;
}

tm_status elastic_read_means(elastic *e, uint32_t first, void *to, uint64_t bytes) {
    return tm_commit_read(e->rank[0].reader, TM_KIND_EXP_AVG_SQ, e->rank[0].part[first].squares, 0, to, bytes);
}

/* Going on from a commit that was laid out otherwise: by another number of ranks, another strategy. Every rank reads
 * what it now holds out of the slices of those who held it then; nothing is converted on disk. */
#include "train/elastic_internal.h"

#include <string.h>

typedef struct old_part {
    holding weights;
    uint32_t hi, own; /* number of the first tile: within WEIGHT_HI, and within each of the others */
} old_part;

typedef struct old_rank {
    tm_commit_reader *reader;
    holding weights, own;
    old_part *part;
} old_rank;

struct elastic {
    const tm_model *m;
    uint64_t width; /* bytes of a compute weight */
    uint32_t ranks;
    uint64_t keep_elements;
    old_rank *rank;
};

/* ---- what a commit says of itself ---------------------------------------------------------------------------- */

static void put_holding(tm_json_writer *w, const char *key, holding h) {
    tm_jw_key(w, key);
    tm_jw_array(w);
    tm_jw_uint(w, h.first);
    tm_jw_uint(w, h.count);
    tm_jw_array_end(w);
}

void elastic_describe(const job_ranks *r, tm_json_writer *w) {
    tm_jw_key(w, "shards");
    tm_jw_object(w);
    tm_jw_key(w, "ranks");
    tm_jw_uint(w, r->ranks);
    tm_jw_key(w, "keep_elements");
    tm_jw_uint(w, r->keep_elements);
    put_holding(w, "weights", r->weights);
    put_holding(w, "own", r->own);
    tm_jw_object_end(w);
}

static bool get_holding(const tm_json *shards, const char *key, uint32_t ranks, holding *h) {
    const tm_json *list = tm_json_get(shards, key), *a = list ? list->child : NULL, *b = a ? a->next : NULL;
    if (!a || !b || !a->is_integer || !b->is_integer || a->integer < 0 || b->integer < 1) return false;
    *h = (holding){(uint32_t)a->integer, (uint32_t)b->integer};
    return h->first < ranks && h->count <= ranks - h->first;
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

/* ---- open ---------------------------------------------------------------------------------------------------- */

/* Objects are counted as job_add_state made them. */
static tm_status count_objects(elastic *e, old_rank *r) {
    uint32_t parts = tm_model_parts(e->m), hi = 0, own = 0;
    r->part = tm_calloc(parts + 1, sizeof *r->part);
    if (!r->part) return tm_nomem(parts * sizeof *r->part);
    for (uint32_t p = 0; p < parts; p++) {
        uint64_t elements = tm_model_part(e->m, p)->elements;
        bool whole = part_kept_whole(e->m, p, e->keep_elements);
        r->part[p] = (old_part){whole ? (holding){0, e->ranks} : r->weights, hi, own};
        hi += held_tiles(elements, e->ranks, r->part[p].weights);
        own += held_tiles(elements, e->ranks, r->own);
    }
    return TM_OK;
}

tm_status elastic_open(elastic **out, const tm_model *m, const char *const *directory, uint32_t ranks) {
    tm_status rc = TM_OK;
    elastic *e = tm_calloc(1, sizeof *e);
    if (!e) return tm_nomem(sizeof *e);
    *e = (elastic){.m = m, .width = tm_dtype_bytes(tm_model_dtype(m)), .ranks = ranks};
    e->rank = tm_calloc(ranks, sizeof *e->rank);
    if (!e->rank) TM_GO(tm_nomem(ranks * sizeof *e->rank));
    for (uint32_t q = 0; q < ranks; q++) {
        job_ranks was;
        TM_GO(tm_commit_reader_open(&e->rank[q].reader, directory[q]));
        TM_GO(elastic_shards(tm_commit_info(tm_commit_reader_commit(e->rank[q].reader)), &was));
        if (was.ranks != ranks || (q > 0 && was.keep_elements != e->keep_elements))
            TM_GO(tm_fail(TM_ECORRUPT, "%s: not of the same run as the directories beside it", directory[q]));
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

/* ---- read ---------------------------------------------------------------------------------------------------- */

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

/* Elements from at.begin on, up to the end of the old tile that they begin in; how many, into *n. */
static tm_status read_run(elastic *e, uint32_t part, tm_kind kind, span at, char *to, uint64_t *n) {
    uint64_t elements = tm_model_part(e->m, part)->elements, each = slice_elements(elements, e->ranks);
    uint64_t width = kind == TM_KIND_WEIGHT_HI ? e->width : kind == TM_KIND_WEIGHT_LO ? 2 : 4;
    uint32_t slice = (uint32_t)(at.begin / each), q = holder_of(e, part, kind, slice);
    if (q == e->ranks) return tm_fail(TM_ECORRUPT, "no commit holds slice %u of %s", slice, tm_kind_name(kind));
    holding h = holding_of(e, q, part, kind);
    uint64_t from = at.begin - at.begin % each % TM_TILE_ELEMENTS; /* where the old tile begins */
    uint32_t tile = held_find(elements, e->ranks, h, from);
    span was = held_tile(elements, e->ranks, h, tile);
    const old_part *p = &e->rank[q].part[part];
    *n = tm_min_u64(at.n, was.begin + was.n - at.begin);
    return tm_commit_read(e->rank[q].reader, kind, (kind == TM_KIND_WEIGHT_HI ? p->hi : p->own) + tile,
                          (at.begin - was.begin) * width, to, *n * width);
}

tm_status elastic_read(elastic *e, uint32_t part, tm_kind kind, span at, void *to) {
    uint64_t width = kind == TM_KIND_WEIGHT_HI ? e->width : kind == TM_KIND_WEIGHT_LO ? 2 : 4, n = 0;
    for (char *next = to; at.n > 0; next += n * width, at.begin += n, at.n -= n)
        TM_TRY(read_run(e, part, kind, at, next, &n));
    return TM_OK;
}

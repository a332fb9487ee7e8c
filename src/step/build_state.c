/* Programs over all state: import, and walks in byte order of the tensor names. */
#include "step/build_internal.h"

/* The fp32 values come into the master's own frame, a moment's (which begins afterwards) where it is as wide, or one of
 * their own, which also takes the lower halves of weights whose optimizer state is another rank's. */
uint64_t import_scratch_bytes(const tm_job *job, uint32_t part, uint64_t elements, bool own) {
    if (job->dtype == TM_F32) return 0;
    if (own && state_master(job) == TM_KIND_WEIGHT_LO) return 0;
    if (own) return state_bytes(job, part, TM_KIND_EXP_AVG, elements) < elements * 4 ? elements * 4 : 0;
    return elements * 4 + (state_is_split(job) ? state_bytes(job, part, TM_KIND_WEIGHT_LO, elements) : 0);
}

/* A program of all state: no micro-batch is in it. */
static tm_status begin_program(op_writer *w, const tm_job *job, const char *name) {
    tm_program *p;
    TM_TRY(tm_program_create(&p, job->layout, name));
    tm_status rc = op_writer_open(w, job, p, &(job_shape){.rows = 0});
    if (rc != TM_OK) tm_program_free(p);
    return rc;
}

static void import_tile(op_writer *w, uint32_t part, uint32_t tile) {
    static const operand_name name[] = {OPERAND_LO, OPERAND_EXP_AVG, OPERAND_EXP_AVG_SQ};
    const tm_job *job = w->job;
    tm_program *p = w->p;
    const part_state *ps = &job->part[part];
    span at = hi_tile(job, part, tile);
    uint32_t unit = tm_model_part(job->model, part)->unit, own = UINT32_MAX;
    uint32_t more[] = {ps->lo, ps->exp_avg, ps->exp_avg_sq};
    if (ps->tiles > 0 && job->optimizer) own = held_find(ps->elements, job->ranks.ranks, job->ranks.own, at.begin);
    op_begin(w, OP_IMPORT, (op_args){.import = {.part = part, .tile = tile, .own = own != UINT32_MAX}});
    op_use(w, OPERAND_HI, tm_program_interval(p, ps->hi + tile, 1), TM_USE_WRITE);
    for (size_t i = 0; i < TM_COUNT(more) && own != UINT32_MAX; i++)
        if (more[i] != TM_NO_OBJECT)
            op_use(w, name[i], tm_program_interval(p, more[i] + own * ps->stride, 1), TM_USE_WRITE);
    uint64_t bytes = import_scratch_bytes(job, part, at.n, own != UINT32_MAX);
    if (bytes) {
        uint32_t scratch = tm_program_temp(p, &(tm_object){.kind = TM_KIND_SCRATCH, .unit = unit, .bytes = bytes});
        op_use(w, OPERAND_VALUES, tm_program_interval(p, scratch, 1), TM_USE_WRITE);
    }
    op_end(w);
}

/* Beginning at zero, or another run's. */
static void import_means(op_writer *w, uint32_t part) {
    uint32_t means = w->job->part[part].means;
    if (means == TM_NO_OBJECT) return;
    op_write(w, OP_MEANS, (op_args){.group = {.part = part}}, OPERAND_MEANS, tm_program_interval(w->p, means, 1),
             TM_USE_WRITE);
}

tm_status build_import(tm_program **out, const tm_job *job) {
    op_writer w;
    TM_TRY(begin_program(&w, job, "import"));
    for (uint32_t part = 0; part < tm_model_parts(job->model); part++) {
        for (uint32_t tile = 0; tile < job->part[part].hi_tiles; tile++) import_tile(&w, part, tile);
        import_means(&w, part);
    }
    op_writer_close(&w);
    *out = w.p;
    return TM_OK;
}

tm_status build_hold(tm_program **out, const tm_job *job) {
    op_writer w;
    TM_TRY(begin_program(&w, job, "held weights"));
    for (uint32_t part = 0; part < tm_model_parts(job->model); part++) {
        const part_state *ps = &job->part[part];
        if (ps->n_held) write_decode(&w, part, tm_program_interval(w.p, ps->held, ps->n_held));
    }
    op_writer_close(&w);
    *out = w.p;
    return TM_OK;
}

/* One kind of state of one tile (of all slices) as it will be read: where this rank has it, or fetched from who has. */
typedef struct source {
    holding holding;
    uint32_t first, stride;
} source;

static source source_of(const tm_job *job, const part_state *ps, tm_kind kind) {
    const source by_kind[] = {[TM_KIND_WEIGHT_HI] = {ps->weights, ps->hi, 1},
                              [TM_KIND_WEIGHT_LO] = {job->ranks.own, ps->lo, ps->stride},
                              [TM_KIND_EXP_AVG] = {job->ranks.own, ps->exp_avg, ps->stride},
                              [TM_KIND_EXP_AVG_SQ] = {job->ranks.own, ps->exp_avg_sq, ps->stride}};
    return by_kind[kind];
}

static uint32_t fetch(op_writer *w, uint32_t part, uint32_t tile, span at, tm_kind kind) {
    const tm_job *job = w->job;
    tm_program *p = w->p;
    const part_state *ps = &job->part[part];
    source s = source_of(job, ps, kind);
    uint32_t here = held_find(ps->elements, job->ranks.ranks, s.holding, at.begin);
    uint32_t own = here == UINT32_MAX ? NONE : tm_program_interval(p, s.first + here * s.stride, 1);
    if (s.holding.count == job->ranks.ranks) return own;
    uint32_t to =
        tm_program_temp(p, &(tm_object){.kind = TM_KIND_SCRATCH, .bytes = state_bytes(job, part, kind, at.n)});
    to = tm_program_interval(p, to, 1);
    op_begin(w, OP_FETCH, (op_args){.fetch = {part, tile, kind, own != NONE}});
    if (own != NONE) op_use(w, OPERAND_OWN, own, TM_USE_READ);
    op_use(w, OPERAND_TILE, to, TM_USE_WRITE);
    op_end(w);
    return to;
}

/* The operations for it: the disk's where this rank has it, and one that fetches. */
static uint32_t fetch_ops(const tm_job *job, uint32_t part, span at, tm_kind kind) {
    source s = source_of(job, &job->part[part], kind);
    bool here = held_find(job->part[part].elements, job->ranks.ranks, s.holding, at.begin) != UINT32_MAX;
    return (uint32_t)here + (s.holding.count != job->ranks.ranks);
}

typedef struct walk {
    op_writer w;
    uint16_t code;
    uint32_t chain;
    bool begun;
    uint64_t *counted; /* nothing is written, operations are counted */
} walk;

tm_kind walk_kind(const tm_job *job, int what) {
    static const tm_kind kind[] = {
        [WHAT_EXP_AVG] = TM_KIND_EXP_AVG, [WHAT_EXP_AVG_SQ] = TM_KIND_EXP_AVG_SQ, [WHAT_COMPUTE] = TM_KIND_WEIGHT_HI};
    return what == WHAT_MASTER ? state_master(job) : kind[what];
}

static void walk_tile(walk *w, uint32_t t, uint32_t seg, uint32_t tile, int what) {
    const tm_segment *s = &tm_model_tensor_segments(w->w.job->model, t)[seg];
    const part_state *ps = &w->w.job->part[s->part];
    uint32_t ranks = w->w.job->ranks.ranks;
    span at = held_tile(ps->elements, ranks, (holding){0, ranks}, tile);
    bool lo = what == WHAT_MASTER && state_is_split(w->w.job);
    tm_kind kind = walk_kind(w->w.job, what);
    if (state_bytes(w->w.job, s->part, kind, 1) == 0) return; /* this optimizer keeps no such state */
    if (w->counted) {
        *w->counted += 1 + fetch_ops(w->w.job, s->part, at, kind);
        if (lo) *w->counted += fetch_ops(w->w.job, s->part, at, TM_KIND_WEIGHT_LO);
        return;
    }
    uint32_t a = fetch(&w->w, s->part, tile, at, kind);
    uint32_t b = lo ? fetch(&w->w, s->part, tile, at, TM_KIND_WEIGHT_LO) : NONE;
    uint32_t values = tm_program_temp(w->w.p, &(tm_object){.kind = TM_KIND_SCRATCH, .bytes = at.n * 4});
    op_begin(&w->w, w->code, (op_args){.walk = {t, seg, tile, (uint32_t)what}});
    op_use(&w->w, OPERAND_TILE, a, TM_USE_READ);
    if (lo) op_use(&w->w, OPERAND_LO, b, TM_USE_READ);
    op_use(&w->w, OPERAND_VALUES, tm_program_interval(w->w.p, values, 1), TM_USE_WRITE);
    op_use(&w->w, OPERAND_CHAIN, w->chain, w->begun ? TM_USE_UPDATE : TM_USE_WRITE);
    op_end(&w->w);
    w->begun = true;
}

/* The tiles that a segment has elements of. */
static void walk_segment(walk *w, uint32_t t, uint32_t seg, int what) {
    const tm_segment *s = &tm_model_tensor_segments(w->w.job->model, t)[seg];
    uint64_t elements = w->w.job->part[s->part].elements;
    uint32_t ranks = w->w.job->ranks.ranks, n = held_tiles(elements, ranks, (holding){0, ranks});
    for (uint32_t tile = 0; tile < n; tile++) {
        span at = held_tile(elements, ranks, (holding){0, ranks}, tile);
        if (at.begin < s->part_offset + s->elements && at.begin + at.n > s->part_offset)
            walk_tile(w, t, seg, tile, what);
    }
}

/* What an optimizer in passes keeps of a matrix. */
static void walk_means(walk *w, uint32_t t) {
    uint32_t part = tm_model_tensor_segments(w->w.job->model, t)->part;
    uint32_t means = w->w.job->part[passes_group(w->w.job->model, part).first].means;
    if (means == TM_NO_OBJECT) return;
    if (w->counted) {
        *w->counted += 2;
        return;
    }
    op_begin(&w->w, w->code, (op_args){.walk = {t, 0, 0, WHAT_MEANS}});
    op_use(&w->w, OPERAND_MEANS, tm_program_interval(w->w.p, means, 1), TM_USE_READ);
    op_use(&w->w, OPERAND_CHAIN, w->chain, TM_USE_UPDATE);
    op_end(&w->w);
}

bool tensor_has_state(const tm_job *job, uint32_t t) {
    return job->part[tm_model_tensor_segments(job->model, t)->part].learns;
}

/* What learns is hashed; what has state is exported: with it what lies among vectors that learn, and what PiSSA began as. */
static bool is_walked(const tm_job *job, uint32_t t, bool hash) {
    const tm_tensor *x = tm_model_tensor(job->model, t);
    bool first = x->role == TM_TENSOR_FIRST_A || x->role == TM_TENSOR_FIRST_B;
    if (hash || job->opts.adapter) return x->learns || (first && !hash);
    return tensor_has_state(job, t);
}

static void walk_tensor(walk *w, uint32_t t, bool hash, int what) {
    const tm_job *job = w->w.job;
    int from = hash ? WHAT_MASTER : what, to = hash ? WHAT_EXP_AVG_SQ : what;
    if (!is_walked(job, t, hash)) return;
    for (int k = from; k <= to; k++) {
        for (uint32_t seg = 0; seg < tm_model_tensor(job->model, t)->n_segments; seg++) walk_segment(w, t, seg, k);
        if (k == WHAT_EXP_AVG_SQ) walk_means(w, t);
    }
}

uint64_t build_walk_ops(const tm_job *job) {
    uint64_t n = 0;
    walk w = {.w.job = job, .code = OP_HASH, .counted = &n};
    for (uint32_t t = 0; t < tm_model_tensors(job->model); t++) walk_tensor(&w, t, true, 0);
    return n;
}

tm_status build_walk(tm_program **out, const tm_job *job, bool hash, int what) {
    walk w = {.code = hash ? OP_HASH : OP_EXPORT};
    uint32_t n = tm_model_tensors(job->model), *order;
    TM_TRY(tm_model_sort_names(job->model, &order));
    tm_status rc = begin_program(&w.w, job, hash ? "state hash" : "export");
    if (rc != TM_OK) {
        tm_free(order);
        return rc;
    }
    w.chain = tm_program_interval(w.w.p, tm_program_temp(w.w.p, &(tm_object){.kind = TM_KIND_SCRATCH, .bytes = 64}), 1);
    for (uint32_t i = 0; i < n; i++) walk_tensor(&w, order[i], hash, what);
    tm_free(order);
    op_writer_close(&w.w);
    *out = w.w.p;
    return TM_OK;
}

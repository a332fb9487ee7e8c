/* All state: how it begins, and what those see who read all of it. */
#include "job/job.h"
#include "step/ops_internal.h"

#include <math.h>
#include <string.h>

static tm_status not_finite(const char *where, uint64_t bad, const char *name) {
    return tm_fail(TM_EINPUT, "%s: %llu values of %s are not finite; the file is damaged or the model has diverged",
                   where, (unsigned long long)bad, name);
}

static tm_status read_saved(const tm_job *job, uint32_t at, uint64_t first, uint64_t n, float *out) {
    const tm_adapter_folder *saved = job->opts.saved;
    TM_TRY(tm_adapter_folder_read_f32(saved, at, first, n, out));
    uint64_t bad = tm_count_nonfinite(out, n);
    return bad ? not_finite(tm_adapter_folder_path(saved), bad, tm_adapter_folder_get(saved, at)->name) : TM_OK;
}

/* PiSSA's A and B begin as what is kept beside them. */
static tm_status read_first(const tm_job *job, const tm_tensor *t, uint64_t first, uint64_t n, float *out) {
    char module[256];
    const char *end = strstr(t->name, ".lora_");
    bool b = t->role == TM_TENSOR_LORA_B || t->role == TM_TENSOR_FIRST_B;
    TM_ASSERT(end && (size_t)(end - t->name) < sizeof module);
    memcpy(module, t->name, (size_t)(end - t->name));
    module[end - t->name] = 0;
    return tm_pissa_read(job->pissa, module, b, first, n, out);
}

static bool is_pissa(const tm_job *job, const tm_tensor *t) {
    bool part = t->role == TM_TENSOR_LORA_A || t->role == TM_TENSOR_LORA_B;
    return job->pissa && (part || t->role == TM_TENSOR_FIRST_A || t->role == TM_TENSOR_FIRST_B);
}

static tm_status read_tensor(const tm_job *job, uint32_t t, uint64_t first, uint64_t n, float *out) {
    const tm_tensor *tensor = tm_model_tensor(job->model, t);
    int64_t saved = job_saved_tensor(job, t);
    bool is_asked = tensor->role != TM_TENSOR_BASE && job->opts.adapter_values;
    if (is_asked) return job->opts.adapter_values(job->opts.adapter_values_ctx, tensor, first, n, out);
    if (saved >= 0) return read_saved(job, (uint32_t)saved, first, n, out);
    if (is_pissa(job, tensor)) return read_first(job, tensor, first, n, out);
    if (!job->source || job->source_tensor[t] == UINT32_MAX) {
        tm_model_init_values(job->model, t, job->seed, first, n, out);
        return TM_OK;
    }
    TM_TRY(tm_source_read_f32(job->source, job->source_tensor[t], first, n, out));
    uint64_t bad = tm_count_nonfinite(out, n);
    if (bad) return not_finite(tm_source_path(job->source), bad, tensor->name);
    if (first + n == tensor->elements) tm_source_forget(job->source, job->source_tensor[t]);
    return TM_OK;
}

/* What fp16 has no value for would compute as infinity. */
static tm_status check_range(const tm_job *job, uint32_t t, const float *values, uint64_t n) {
    const float infinite = 65520; /* is rounded to it, and all that is larger */
    uint64_t large = 0;
    if (job->dtype != TM_F16) return TM_OK;
    for (uint64_t i = 0; i < n; i++) large += fabsf(values[i]) >= infinite;
    if (large == 0) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: %llu values of %s are beyond 65504, the largest of fp16; choose precision bf16",
                   job->opts.model, (unsigned long long)large, tm_model_tensor(job->model, t)->name);
}

/* Bit by bit what others wrote. */
static tm_status read_state(const tm_job *job, uint32_t part, span at, void *hi, void *lo, void *m, void *v) {
    const tm_kind kind[] = {TM_KIND_WEIGHT_HI, TM_KIND_WEIGHT_LO, TM_KIND_EXP_AVG, TM_KIND_EXP_AVG_SQ};
    void *object[] = {hi, lo, m, v};
    for (size_t i = 0; i < TM_COUNT(kind); i++)
        if (object[i]) TM_TRY(elastic_read(job->opts.elastic, job, part, kind[i], at, object[i]));
    return TM_OK;
}

static tm_status run_means(const op_call *c) {
    uint64_t bytes = operand_means_bytes(c);
    void *means = op_operand(c, OPERAND_MEANS);
    if (c->job->opts.elastic) return elastic_read_means(c->job->opts.elastic, c->args.group.part, means, bytes);
    memset(means, 0, bytes);
    return TM_OK;
}

static tm_status run_import(const op_call *c) {
    const tm_job *job = c->job;
    uint32_t part = c->args.import.part;
    span at = hi_tile(job, part, c->args.import.tile);
    uint64_t begin = at.begin, n = at.n;
    void *hi = op_operand(c, OPERAND_HI), *lo = op_operand(c, OPERAND_LO), *m = op_operand(c, OPERAND_EXP_AVG);
    void *v = op_operand(c, OPERAND_EXP_AVG_SQ), *apart = op_operand(c, OPERAND_VALUES);
    if (job->opts.elastic) return read_state(job, part, at, hi, lo, m, v);
    bool plain = job->dtype == TM_F16 && lo; /* lo is the master */
    float *master = job->dtype == TM_F32 ? hi : apart ? apart : plain ? lo : m;
    if (!c->args.import.own && state_is_split(job)) lo = master + n; /* another rank's; rounded like there */
    const tm_segment *seg = tm_model_part_segments(job->model, part);
    for (uint32_t i = 0; i < tm_model_part(job->model, part)->n_segments; i++) {
        uint64_t from = tm_max_u64(seg[i].part_offset, begin),
                 to = tm_min_u64(seg[i].part_offset + seg[i].elements, begin + n);
        if (from >= to) continue;
        TM_TRY(read_tensor(job, seg[i].tensor, seg[i].tensor_offset + (from - seg[i].part_offset), to - from,
                           master + (from - begin)));
        TM_TRY(check_range(job, seg[i].tensor, master + (from - begin), to - from));
    }
    if (job->dtype == TM_F16)
        tm_grad_round_f16(master, hi, n);
    else if (lo)
        tm_split_f32(master, hi, lo, n);
    else if (job->dtype == TM_BF16)
        tm_grad_round_bf16(master, hi, n); /* weights only: to nearest even, as everyone loads them */
    state_begin(job, part, TM_KIND_EXP_AVG, m, n);
    state_begin(job, part, TM_KIND_EXP_AVG_SQ, v, n);
    return TM_OK;
}

/* The values of one tile's share of a segment as fp32. Returns how many, and where in the tensor they begin. */
static uint64_t tile_values(const op_call *c, float **values, uint64_t *first) {
    const tm_job *job = c->job;
    uint32_t ranks = job->ranks.ranks, what = c->args.walk.what;
    const tm_segment *s = &tm_model_tensor_segments(job->model, c->args.walk.tensor)[c->args.walk.segment];
    span tile = held_tile(job->part[s->part].elements, ranks, (holding){0, ranks}, c->args.walk.tile);
    uint64_t begin = tile.begin;
    uint64_t from = tm_max_u64(s->part_offset, begin), to = tm_min_u64(s->part_offset + s->elements, begin + tile.n);
    tm_kind kind = walk_kind(job, (int)what);
    bool state = what == WHAT_EXP_AVG || what == WHAT_EXP_AVG_SQ;
    void *a = op_operand(c, OPERAND_TILE), *lo = op_operand(c, OPERAND_LO);
    float *out = op_operand(c, OPERAND_VALUES);
    uint64_t n = to - from, at = from - begin;
    *first = s->tensor_offset + (from - s->part_offset);
    *values = out;
    if (lo) {
        tm_join_f32((const uint16_t *)a + at, (const uint16_t *)lo + at, out, n);
    } else if (state) {
        *values = state_values(job, s->part, kind, a, tile.n, at, n, out);
    } else if (job->dtype != TM_F32 && kind == TM_KIND_WEIGHT_HI) {
        tm_fmt_decode(job_compute_fmt(job->dtype), (const uint16_t *)a + at, n, out);
    } else {
        *values = (float *)a + at;
    }
    return n;
}

/* ---- what does not learn, decoded ---- */

static const frozen_piece *piece_of(const op_call *c) {
    return &c->job->frozen[c->args.decode.piece];
}

/* In runs that a thread's caches hold, or that the file's form asks for; where the base has a value that is none, the loss
 * will say so. */
static tm_status run_decode(const op_call *c) {
    enum { RUN = 1 << 14 };
    const tm_job *job = c->job;
    const frozen_piece *f = piece_of(c);
    const tm_segment *seg = &tm_model_part_segments(job->model, f->part)[f->segment];
    uint32_t tensor = job->source_tensor[seg->tensor];
    uint64_t first = seg->tensor_offset + (f->begin - seg->part_offset), width = tm_dtype_bytes(job->dtype);
    char *to = (char *)op_operand(c, OPERAND_TILE) + (f->begin - frozen_held(job, f->part).begin) * width;
    tm_fmt fmt = job_compute_fmt(job->dtype);
    const void *raw[TM_PIECE_RANGES];
    tm_source_piece piece;
    tm_status rc = TM_OK;
    TM_TRY(frozen_source_piece(job, f, &piece));
    uint64_t run = piece.run ? piece.run : RUN;
    int64_t runs = (int64_t)((f->n + run - 1) / run);
    for (uint32_t k = 0; k < f->n_ranges; k++) raw[k] = (const char *)op_operand_at(c, OPERAND_RAW, k) + f->shift[k];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < runs; i++) {
        uint64_t at = (uint64_t)i * run, n = tm_min_u64(run, f->n - at);
        tm_status one = tm_source_decode(job->source, tensor, &piece, raw, first + at, n, fmt, to + at * width);
        if (one != TM_OK) {
#pragma omp atomic write
            rc = one;
        }
    }
    return rc;
}

static uint32_t count_raw(const op_call *c) {
    return piece_of(c)->n_ranges;
}
static uint64_t raw_bytes(const op_call *c) {
    const frozen_piece *f = piece_of(c);
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < f->count[c->i]; k++) bytes += tm_layout_get(c->job->layout, f->object[c->i] + k)->bytes;
    return bytes;
}
static uint64_t decoded_whole_bytes(const op_call *c) {
    return frozen_held(c->job, c->args.decode.part).n * tm_dtype_bytes(c->job->dtype);
}
static double decoded_elements(const op_call *c) {
    return (double)piece_of(c)->n;
}

static void hash_means(const tm_job *job, uint32_t tensor, float *means) {
    part_group g = passes_group(job->model, tm_model_tensor_segments(job->model, tensor)->part);
    group_tensor t;
    for (uint32_t i = 0; passes_tensor(job, g, i, NULL, NULL, &t); i++)
        if (t.tensor == tensor) XXH3_128bits_update(job->hash, means + t.means_at, t.means * sizeof *means);
}

/* state_hash (DESIGN section 12): for each tensor its name, a zero byte, ndim, shape as u64, then the values. */
static tm_status run_hash(const op_call *c) {
    const tm_job *job = c->job;
    float *values, *means = op_operand(c, OPERAND_MEANS);
    if (means) {
        hash_means(job, c->args.walk.tensor, means);
        return TM_OK;
    }
    uint64_t first, n = tile_values(c, &values, &first);
    const tm_tensor *t = tm_model_tensor(job->model, c->args.walk.tensor);
    if (c->args.walk.what == WHAT_MASTER && first == 0) {
        uint64_t ndim = t->ndim;
        XXH3_128bits_update(job->hash, job->name_prefix, strlen(job->name_prefix));
        XXH3_128bits_update(job->hash, t->name, strlen(t->name) + 1);
        XXH3_128bits_update(job->hash, &ndim, sizeof ndim);
        XXH3_128bits_update(job->hash, t->shape, ndim * sizeof t->shape[0]);
    }
    XXH3_128bits_update(job->hash, values, n * sizeof *values);
    return TM_OK;
}

static tm_status run_export(const op_call *c) {
    float *values;
    uint64_t first;
    if (!c->job->sinks.take_values) return TM_OK; /* another rank writes it down */
    uint64_t n = tile_values(c, &values, &first);
    return c->job->sinks.take_values(c->job->sinks.take_ctx, c->args.walk.tensor, first, n, values);
}

/* ---- how many operands, and their bytes ---------------------------------------------------------------------- */

static uint32_t imports_state(const op_call *c) {
    return c->args.import.own && operand_is_kept(c);
}
static uint64_t imported(const op_call *c) {
    return hi_tile(c->job, c->args.import.part, c->args.import.tile).n;
}
static uint64_t import_values_bytes(const op_call *c) {
    return import_scratch_bytes(c->job, c->args.import.part, imported(c), c->args.import.own);
}
static uint32_t has_values_apart(const op_call *c) {
    return import_values_bytes(c) > 0;
}
static uint64_t import_bytes(const op_call *c) {
    return state_bytes(c->job, c->args.import.part, operand_kind(c), imported(c));
}

static uint32_t walks_means(const op_call *c) {
    return c->args.walk.what == WHAT_MEANS;
}
static uint32_t walks_tile(const op_call *c) {
    return !walks_means(c);
}
static uint32_t walks_lo(const op_call *c) {
    return c->args.walk.what == WHAT_MASTER && state_is_split(c->job);
}
static uint32_t walked_part(const op_call *c) {
    return tm_model_tensor_segments(c->job->model, c->args.walk.tensor)[c->args.walk.segment].part;
}
static uint64_t walked(const op_call *c) {
    uint32_t ranks = c->job->ranks.ranks;
    return held_tile(c->job->part[walked_part(c)].elements, ranks, (holding){0, ranks}, c->args.walk.tile).n;
}
static uint64_t walked_bytes(const op_call *c) {
    return state_bytes(c->job, walked_part(c), walk_kind(c->job, (int)c->args.walk.what), walked(c));
}
static uint64_t walked_lo_bytes(const op_call *c) {
    return state_bytes(c->job, walked_part(c), TM_KIND_WEIGHT_LO, walked(c));
}
static uint64_t walked_values_bytes(const op_call *c) {
    return walked(c) * sizeof(float);
}

static double imported_bytes(const op_call *c) { /* values read, weights and states written */
    return (double)imported(c) * 16;
}
double amount_full_tile(const op_call *c) {
    (void)c;
    return (double)TM_TILE_ELEMENTS * 8;
}

enum { R = TM_USE_READ, W = TM_USE_WRITE, U = TM_USE_UPDATE };

#define WALK_OPERANDS                                                                                                  \
    {                                                                                                                  \
        {OPERAND_MEANS, R, .count = walks_means}, {OPERAND_TILE, R, .bytes = walked_bytes, .count = walks_tile},       \
            {OPERAND_LO, R, .bytes = walked_lo_bytes, .count = walks_lo},                                              \
            {OPERAND_VALUES, W, .bytes = walked_values_bytes, .count = walks_tile}, {                                  \
            OPERAND_CHAIN, .access = U                                                                                 \
        }                                                                                                              \
    }

const op_row ops_state_rows[OP_CODES] = {
    [OP_DECODE] = {"decode", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_DECODE, OP_OF_PART, .run = run_decode,
                   .amount = decoded_elements,
                   .operand = {{OPERAND_RAW, R, .bytes = raw_bytes, .count = count_raw},
                               {OPERAND_TILE, U, .bytes = decoded_whole_bytes}}},
    [OP_IMPORT] = {"import", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_BYTES, OP_OF_TILE, .run = run_import,
                   .amount = imported_bytes,
                   .operand = {{OPERAND_HI, W, .bytes = import_bytes},
                               {OPERAND_LO, W, .bytes = import_bytes, .count = imports_state},
                               {OPERAND_EXP_AVG, W, .bytes = import_bytes, .count = imports_state},
                               {OPERAND_EXP_AVG_SQ, W, .bytes = import_bytes, .count = imports_state},
                               {OPERAND_VALUES, W, .bytes = import_values_bytes, .count = has_values_apart}}},
    [OP_MEANS] = {"means", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_LITTLE, OP_OF_PART, .run = run_means,
                  .operand = {{OPERAND_MEANS, W, .bytes = operand_means_bytes}}},
    [OP_HASH] = {"hash", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_BYTES, OP_OF_TENSOR, .run = run_hash,
                 .amount = amount_full_tile, .operand = WALK_OPERANDS},
    [OP_EXPORT] = {"export", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_BYTES, OP_OF_TENSOR, .run = run_export,
                   .amount = amount_full_tile, .operand = WALK_OPERANDS},
};

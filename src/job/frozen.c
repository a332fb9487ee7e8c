/* Parts that do not learn: what of which files they are. Such a part has no state of its own; its values are read where
 * the user's files have them (offload: tm_layout_home), and come to where they are computed with in one of two ways:
 *
 *   in place   one range of one file holds the part as it is computed with: operations get a pointer into its frame;
 *              whole matrices of 4-bit blocks as well, where the product in use is one of our own, which decodes them as
 *              it packs its operands and gives the bits of the decoded ones; going only forward (as_stored) also those in
 *              the other types that products decode themselves
 *   decoded    pieces of some million elements are decoded into a temporary, once a visit (OP_DECODE); or, as much of
 *              it as the planner finds the memory for, once, at the start, and held
 *
 * A frame holds whole pages, so that the bytes begin `shift` behind its own beginning. With ranks each reads the slices
 * that it holds, and they are gathered as any others. */
#include "io/file/file.h"
#include "job/job.h"

enum {
    PIECE_ELEMENTS = 4 << 20, /* that are decoded at a time */
    IN_PLACE_BYTES = 4 << 20  /* of an object: so that reading, checking and computing overlap */
};

/* Pieces of a base that is nowhere yet have this for a file. */
static const char nowhere[] = "";

bool job_in_four_bits(const tm_model *m, const tm_adapter_config *adapter, uint32_t tensor) {
    const tm_tensor *x = tm_model_tensor(m, tensor);
    uint32_t part = tm_model_tensor_segments(m, tensor)->part;
    bool block = tm_model_unit(m, tm_model_part(m, part)->unit)->kind == TM_UNIT_BLOCK;
    return block && x->role == TM_TENSOR_BASE && x->ndim == 2 && !(adapter && tm_adapter_learns(adapter, x->name));
}

/* A plan makes no base: it counts what the run will make. */
static bool will_be_quantised(const tm_job *job, uint32_t tensor) {
    return job->four_bits != TM_FMT_F32 && job_in_four_bits(job->model, job->opts.adapter, tensor);
}

/* In bitsandbytes' four bits: codes, scales, scales of scales. */
static void imagine_four_bits(const tm_job *job, uint64_t first, uint64_t n, tm_source_piece *out) {
    const job_opts *o = &job->opts;
    uint64_t blocks = (n + o->quant_block - 1) / o->quant_block;
    *out = (tm_source_piece){.first = first, .elements = n, .n = o->double_quant ? 3 : 2};
    out->range[0] = (tm_raw_range){.path = nowhere, .offset = first / 2, .bytes = (n + 1) / 2};
    out->range[1] = (tm_raw_range){.path = nowhere, .offset = 0, .bytes = o->double_quant ? blocks : 4 * blocks};
    out->range[2] = (tm_raw_range){.path = nowhere, .offset = 0, .bytes = (blocks / 256 + 1) * 4};
}

/* Whose part has no file to be read from: a plan of a config.json alone counts bytes as they would be. */
static void imagine_piece(const tm_job *job, uint64_t first, uint64_t n, tm_source_piece *out) {
    uint64_t width = tm_dtype_bytes(job->dtype);
    *out = (tm_source_piece){.first = first, .elements = n, .n = 1, .in_order = true};
    out->range[0] = (tm_raw_range){.path = nowhere, .offset = first * width, .bytes = n * width};
}

static bool from_source(const tm_job *job) {
    return job->source && job->source_tensor;
}

static tm_fmt stored_fmt(const tm_job *job, uint32_t tensor) {
    if (will_be_quantised(job, tensor)) return job->four_bits;
    return from_source(job) ? tm_source_tensor_get(job->source, job->source_tensor[tensor])->fmt
                            : job_compute_fmt(job->dtype);
}

static tm_status piece_of(const tm_job *job, uint32_t tensor, uint64_t first, uint64_t n, tm_source_piece *out) {
    if (will_be_quantised(job, tensor)) {
        imagine_four_bits(job, first, n, out);
        return TM_OK;
    }
    if (from_source(job)) return tm_source_piece_of(job->source, job->source_tensor[tensor], first, n, out);
    imagine_piece(job, first, n, out);
    return TM_OK;
}

bool frozen_is_there(const tm_job *job, const frozen_piece *f) {
    return from_source(job) && !will_be_quantised(job, tm_model_part_segments(job->model, f->part)[f->segment].tensor);
}

tm_status frozen_source_piece(const tm_job *job, const frozen_piece *f, tm_source_piece *out) {
    const tm_segment *seg = &tm_model_part_segments(job->model, f->part)[f->segment];
    return piece_of(job, seg->tensor, seg->tensor_offset + (f->begin - seg->part_offset), f->n, out);
}

/* ---- objects ---------------------------------------------------------------------------------------------------- */

/* The file among the layout's, which is asked for its size once. */
static tm_status find_file(const tm_job *job, const char *path, uint32_t *file, uint64_t *size) {
    tm_file *f;
    TM_TRY(tm_layout_file(job->layout, path, file));
    uint64_t *bytes = tm_layout_file_bytes(job->layout, *file);
    if (path == nowhere) *bytes = UINT64_MAX;
    if (*bytes == 0) {
        TM_TRY(tm_file_open(&f, path));
        *bytes = tm_file_size(f);
        tm_file_close(f);
    }
    *size = *bytes;
    return TM_OK;
}

/* The pages that a range touches, in objects of at most `most` bytes that join in memory. */
static tm_status add_range(tm_job *job, const tm_raw_range *r, uint32_t unit, uint32_t bundle, uint64_t most,
                           frozen_piece *f, uint32_t i) {
    uint64_t begin = r->offset / TM_FRAME_ALIGN * TM_FRAME_ALIGN, size;
    uint32_t file;
    TM_TRY(find_file(job, r->path, &file, &size));
    uint64_t end = tm_min_u64(tm_round_up(r->offset + r->bytes, TM_FRAME_ALIGN), size);
    f->object[i] = tm_layout_objects(job->layout);
    f->shift[i] = (uint32_t)(r->offset - begin);
    for (uint64_t at = begin; at < end; at += most) {
        uint32_t id = tm_layout_object(job->layout, &(tm_object){.kind = TM_KIND_FROZEN,
                                                                 .unit = unit,
                                                                 .bundle = bundle,
                                                                 .bytes = tm_min_u64(end - at, most),
                                                                 .pageable = true});
        if (id == UINT32_MAX) return tm_nomem(sizeof(tm_object));
        TM_TRY(tm_layout_home(job->layout, id, file, at));
        f->count[i]++;
    }
    return TM_OK;
}

static tm_status add_piece(tm_job *job, frozen_piece f, const tm_source_piece *p, uint64_t most, uint32_t *bundle) {
    uint32_t unit = tm_model_part(job->model, f.part)->unit;
    TM_TRY(tm_grow(&job->frozen, &job->cap_frozen, (size_t)job->n_frozen + 1, sizeof *job->frozen));
    f.fmt = (uint8_t)stored_fmt(job, tm_model_part_segments(job->model, f.part)[f.segment].tensor);
    f.n_ranges = p->n;
    for (uint32_t i = 0; i < p->n; i++) TM_TRY(add_range(job, &p->range[i], unit, (*bundle)++, most, &f, i));
    job->frozen[job->n_frozen++] = f;
    job->part[f.part].n_pieces++;
    return TM_OK;
}

/* The bytes of the run are what is computed with, and lie on a boundary of elements. */
static bool lies_in_place(const tm_job *job, uint32_t tensor, const tm_source_piece *p, uint64_t n) {
    uint64_t width = tm_dtype_bytes(job->dtype);
    return p->in_order && p->elements == n && p->range[0].offset % width == 0 &&
           stored_fmt(job, tensor) == job_compute_fmt(job->dtype);
}

static bool imagine_packing(const tm_job *job, uint32_t tensor, tm_packed *out) {
    *out = (tm_packed){.packing = TM_PACKED_BITS4, .k = tm_model_tensor(job->model, tensor)->shape[1]};
    out->nf4 = (tm_nf4_blocks){.map = tm_nf4_map(job->four_bits == TM_FMT_FP4 ? TM_FP4 : TM_NF4),
                               .block = job->opts.quant_block,
                               .nested_map = job->opts.double_quant ? tm_nf4_dynamic_map() : NULL,
                               .nested_block = TM_NF4_NESTED};
    return out->k % 2 == 0;
}

/* Rows that products decode, and whether these may be here. */
static bool packing_of(const tm_job *job, uint32_t part, tm_packed *out) {
    uint32_t tensor = tm_model_part_segments(job->model, part)->tensor;
    bool block = tm_model_unit(job->model, tm_model_part(job->model, part)->unit)->kind == TM_UNIT_BLOCK;
    bool imagined = will_be_quantised(job, tensor);
    if (!imagined && !from_source(job)) return false;
    if (!(imagined ? imagine_packing(job, tensor, out)
                   : tm_source_packing(job->source, job->source_tensor[tensor], out)))
        return false;
    if (out->packing != TM_PACKED_BITS4) return job->opts.as_stored;
    return block && job->tiers.traits.in_place && tm_gemm_rows_alone();
}

/* What a file has is multiplied as it is: whole rows of a matrix, which products decode. What ranks gather is decoded:
 * the others have not what is beside the codes. */
static bool lies_packed(const tm_job *job, uint32_t part, const tm_source_piece *p, uint64_t n) {
    part_state *s = &job->part[part];
    bool may = tm_model_part_packs(job->model, part) && !part_is_gathered(job, s) && packing_of(job, part, &s->packed);
    if (!may || p->elements != n || n != s->elements || p->first % s->packed.k || n % s->packed.k)
        s->packed = (tm_packed){.packing = TM_PACKED_NOT};
    return s->packed.packing != TM_PACKED_NOT;
}

/* Bytes that much more can be decoded from than is asked for (a matrix that the file has transposed) are read once, for
 * all of it that is here. */
static tm_status take_whole(const tm_job *job, frozen_piece *f, uint64_t left, tm_source_piece *p) {
    f->n = tm_min_u64(PIECE_ELEMENTS, left);
    TM_TRY(frozen_source_piece(job, f, p));
    if (f->n == left || p->elements < 2 * f->n) return TM_OK;
    const tm_segment *seg = &tm_model_part_segments(job->model, f->part)[f->segment];
    uint64_t first = seg->tensor_offset + (f->begin - seg->part_offset);
    f->n = tm_min_u64(left, p->first + p->elements - first);
    return frozen_source_piece(job, f, p);
}

static tm_status add_decoded(tm_job *job, uint32_t part, uint32_t segment, span at, uint32_t *bundle) {
    frozen_piece f = {.part = part, .segment = segment};
    for (uint64_t done = 0; done < at.n; done += f.n) {
        tm_source_piece p;
        f.begin = at.begin + done;
        TM_TRY(take_whole(job, &f, at.n - done, &p));
        uint64_t most = 0;
        for (uint32_t i = 0; i < p.n; i++) most = tm_max_u64(most, p.range[i].bytes);
        bool large = f.n > PIECE_ELEMENTS;
        TM_TRY(add_piece(job, f, &p, large ? IN_PLACE_BYTES : most + 2 * TM_FRAME_ALIGN, bundle));
    }
    return TM_OK;
}

/* By the golden ratio, which spreads any share of parts evenly over units and kinds of matrices. */
static bool is_held(uint32_t part, double share) {
    return (double)(part * 2654435769U) < share * 4294967296.0;
}

/* Filled at every start, and there until the end. */
static tm_status add_held(tm_job *job, uint32_t part, uint64_t bytes, uint32_t *bundle) {
    part_state *s = &job->part[part];
    s->held = tm_layout_objects(job->layout);
    for (uint64_t at = 0; at < bytes; at += IN_PLACE_BYTES, s->n_held++)
        if (tm_layout_object(job->layout, &(tm_object){.kind = TM_KIND_FROZEN,
                                                       .unit = tm_model_part(job->model, part)->unit,
                                                       .bundle = *bundle,
                                                       .bytes = tm_min_u64(IN_PLACE_BYTES, bytes - at)}) == UINT32_MAX)
            return tm_nomem(sizeof(tm_object));
    ++*bundle;
    return TM_OK;
}

/* What this rank holds of the part. */
span frozen_held(const tm_job *job, uint32_t part) {
    const part_state *s = &job->part[part];
    uint32_t ranks = job->ranks.ranks;
    span first = slice_span(s->elements, ranks, s->weights.first);
    span last = slice_span(s->elements, ranks, s->weights.first + s->weights.count - 1);
    return (span){first.begin, last.begin + last.n - first.begin};
}

tm_status frozen_add_part(tm_job *job, uint32_t part, uint32_t *bundle) {
    part_state *s = &job->part[part];
    const tm_segment *seg = tm_model_part_segments(job->model, part);
    uint32_t n_segments = tm_model_part(job->model, part)->n_segments;
    span held = frozen_held(job, part);
    s->first_piece = job->n_frozen;
    if (held.n == 0) return TM_OK;
    if (n_segments == 1) {
        frozen_piece f = {.part = part, .begin = held.begin, .n = held.n};
        tm_source_piece p;
        TM_TRY(frozen_source_piece(job, &f, &p));
        s->in_place = lies_in_place(job, seg->tensor, &p, held.n) || lies_packed(job, part, &p, held.n);
        if (s->in_place) return add_piece(job, f, &p, IN_PLACE_BYTES, bundle);
    }
    for (uint32_t i = 0; i < n_segments; i++) {
        uint64_t from = tm_max_u64(seg[i].part_offset, held.begin),
                 to = tm_min_u64(seg[i].part_offset + seg[i].elements, held.begin + held.n);
        if (from < to) TM_TRY(add_decoded(job, part, i, (span){from, to - from}, bundle));
    }
    if (!is_held(part, job->held_share)) return TM_OK;
    return add_held(job, part, held.n * tm_dtype_bytes(job->dtype), bundle);
}

uint32_t frozen_scales(const tm_job *job, uint32_t part) {
    const part_state *s = &job->part[part];
    return s->packed.packing == TM_PACKED_BITS4 ? job->frozen[s->first_piece].n_ranges - 1U : 0;
}

uint64_t frozen_range_bytes(const tm_job *job, const frozen_piece *f, uint32_t range) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < f->count[range]; k++) bytes += tm_layout_get(job->layout, f->object[range] + k)->bytes;
    return bytes;
}

static uint64_t raw_bytes(const tm_job *job, const frozen_piece *f) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->n_ranges; i++) bytes += frozen_range_bytes(job, f, i);
    return bytes;
}

uint64_t frozen_raw_bytes(const tm_job *job, uint32_t part) {
    const part_state *s = &job->part[part];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_pieces; i++) bytes += raw_bytes(job, &job->frozen[s->first_piece + i]);
    return bytes;
}

frozen_sizes frozen_decoded(const tm_job *job, double share) {
    frozen_sizes all = {0};
    for (uint32_t p = 0; p < tm_model_parts(job->model); p++) {
        const part_state *s = &job->part[p];
        if (s->in_place || !is_held(p, share)) continue;
        if (s->n_pieces) all.decoded += frozen_held(job, p).n * tm_dtype_bytes(job->dtype);
        all.raw += frozen_raw_bytes(job, p);
    }
    return all;
}

/* One node makes it once, for all of its ranks. */
uint64_t frozen_own_bytes(const tm_job *job) {
    const job_opts *o = &job->opts;
    uint64_t bytes = 0;
    if (job->four_bits == TM_FMT_F32) return 0;
    for (uint32_t t = 0; t < tm_model_tensors(job->model); t++) {
        const tm_tensor *x = tm_model_tensor(job->model, t);
        if (x->role != TM_TENSOR_BASE || x->of != t) continue;
        bytes += will_be_quantised(job, t) ? tm_quantised_bytes(x->elements, o->quant_block, o->double_quant)
                                           : x->elements * tm_dtype_bytes(job->dtype);
    }
    return bytes;
}

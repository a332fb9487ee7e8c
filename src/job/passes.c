/* Optimizers that sum over whole tensors before the first weight moves (optim: "tensors in passes"; Adafactor). Parts
 * that have pieces of one tensor are updated together, as a group: a matrix, fused matrices, the vectors of a block are
 * a group of one part; a vocabulary is a group of all its parts.
 *
 *     means    state of a group, whole on every rank: for each matrix its rows' means, then its columns', fp32
 *     totals   scratch of a group: for each tensor what optim keeps from pass to pass
 *
 * With ranks each adds up the slice whose gradients it sums. All have all pieces side by side then, and add them in the
 * order of slices, so that the totals do not depend on who holds what:
 *
 *     pieces   rank 0: tensor 0: rows that its slice touches, [columns]; tensor 1: ...   rank 1: ...
 */
#include "job/job.h"

#include <string.h>

static bool goes_on(const tm_model *m, uint32_t part) {
    return tm_model_part_segments(m, part)->tensor_offset > 0;
}

part_group passes_group(const tm_model *m, uint32_t part) {
    part_group g = {.first = part, .count = 1};
    while (goes_on(m, g.first)) g.first--;
    while (g.first + g.count < tm_model_parts(m) && goes_on(m, g.first + g.count)) g.count++;
    return g;
}

bool part_is_factored(const tm_model *m, uint32_t part) {
    return tm_model_tensor(m, tm_model_part_segments(m, part)->tensor)->ndim > 1;
}

/* ---- tensors of a group ---------------------------------------------------------------------------------------- */

static tm_optim_shape shape_of(const tm_model *m, uint32_t tensor) {
    const tm_tensor *t = tm_model_tensor(m, tensor);
    if (t->ndim < 2) return (tm_optim_shape){1, 0, t->elements};
    return (tm_optim_shape){1, t->shape[0], t->elements / t->shape[0]};
}

static uint64_t means_of(const tm_optim_shape *s) {
    return s->rows ? s->rows + s->columns : 0;
}

/* A group's first part has a piece of each of its tensors. */
bool passes_tensor(const tm_job *job, part_group g, uint32_t i, float *means, double *totals, group_tensor *out) {
    const tm_segment *seg = tm_model_part_segments(job->model, g.first);
    if (i >= tm_model_part(job->model, g.first)->n_segments) return false;
    *out = (group_tensor){.means_at = 0};
    for (uint32_t k = 0; k <= i; k++) {
        tm_optim_shape s = shape_of(job->model, seg[k].tensor);
        if (k < i) out->means_at += means_of(&s);
        if (k < i && totals) totals += tm_optim_scratch_bytes(job->update, &s) / sizeof *totals;
        out->x.shape = s;
    }
    out->tensor = seg[i].tensor;
    out->means = means_of(&out->x.shape);
    out->x.scratch = totals;
    if (!means || !out->means) return true;
    out->x.state[STATE_ROW] = means + out->means_at;
    out->x.state[STATE_COLUMN] = means + out->means_at + out->x.shape.rows;
    return true;
}

uint64_t passes_means_bytes(const tm_job *job, part_group g) {
    const tm_segment *seg = tm_model_part_segments(job->model, g.first);
    uint64_t n = 0;
    for (uint32_t k = 0; k < tm_model_part(job->model, g.first)->n_segments; k++) {
        tm_optim_shape s = shape_of(job->model, seg[k].tensor);
        n += means_of(&s);
    }
    return n * sizeof(float);
}

uint64_t passes_totals_bytes(const tm_job *job, part_group g) {
    const tm_segment *seg = tm_model_part_segments(job->model, g.first);
    uint64_t n = 0;
    for (uint32_t k = 0; k < tm_model_part(job->model, g.first)->n_segments; k++) {
        tm_optim_shape s = shape_of(job->model, seg[k].tensor);
        n += tm_optim_scratch_bytes(job->update, &s);
    }
    return n;
}

/* Their size is a factor of the rate, if the options say so. */
bool passes_read_weights(const tm_job *job, uint32_t pass) {
    return pass == 0 && job->update_opts.scale_parameter;
}

/* Rows of the tensor that a slice of the segment's part touches; returns how many. */
static uint64_t rows_of(const tm_job *job, const tm_segment *seg, uint32_t slice, uint64_t columns, uint64_t *first) {
    span of = slice_span(job->part[seg->part].elements, job->ranks.ranks, slice);
    uint64_t from = tm_max_u64(of.begin, seg->part_offset),
             to = tm_min_u64(of.begin + of.n, seg->part_offset + seg->elements);
    if (from >= to) return 0;
    TM_ASSERT(seg->tensor_offset % columns == 0); /* parts are whole rows: none is added twice */
    *first = (seg->tensor_offset + (from - seg->part_offset)) / columns;
    return (seg->tensor_offset + (to - 1 - seg->part_offset)) / columns - *first + 1;
}

uint64_t passes_pieces(const tm_job *job, part_group g, uint32_t rank, uint32_t pass) {
    const tm_segment *of = tm_model_part_segments(job->model, g.first);
    uint32_t slice = job_summed_slice(job, rank), tensors = tm_model_part(job->model, g.first)->n_segments;
    uint64_t n = 0, first;
    for (uint32_t i = 0; i < tensors; i++) {
        const tm_segment *seg = tm_model_tensor_segments(job->model, of[i].tensor);
        tm_optim_shape s = shape_of(job->model, of[i].tensor);
        for (uint32_t k = 0; k < tm_model_tensor(job->model, of[i].tensor)->n_segments; k++)
            n += rows_of(job, &seg[k], slice, s.columns, &first) * (pass == 0 ? 2 : 1);
        if (pass == 0 && s.rows) n += s.columns;
    }
    return n;
}

/* What a rank says is written from the totals, or added to them. */
static double *move(double *said, double *sum, uint64_t n, bool add) {
    for (uint64_t i = 0; add && i < n; i++) sum[i] += said[i];
    if (!add) memcpy(said, sum, n * sizeof *sum);
    return said + n;
}

static void move_slice(double *said, const tm_job *job, part_group g, uint32_t slice, uint32_t pass, double *totals,
                       bool add) {
    group_tensor t;
    uint64_t first = 0;
    for (uint32_t i = 0; passes_tensor(job, g, i, NULL, totals, &t); i++) {
        const tm_segment *seg = tm_model_tensor_segments(job->model, t.tensor);
        tm_optim_sums s = tm_optim_sums_of(&t.x);
        for (uint32_t k = 0; k < tm_model_tensor(job->model, t.tensor)->n_segments; k++) {
            uint64_t rows = rows_of(job, &seg[k], slice, t.x.shape.columns, &first);
            if (rows == 0) continue;
            if (pass == 0) said = move(said, s.row_w + first, rows, add);
            said = move(said, (pass == 0 ? s.row_g : s.row_u) + first, rows, add);
        }
        if (pass == 0) said = move(said, s.column_g, s.columns, add);
    }
}

uint64_t passes_pieces_bytes(const tm_job *job, part_group g, uint32_t pass) {
    uint64_t n = 0;
    for (uint32_t r = 0; r < job->ranks.ranks; r++) n += passes_pieces(job, g, r, pass);
    return n * sizeof(double);
}

void passes_pack(const tm_job *job, part_group g, uint32_t pass, double *totals, double *all) {
    for (uint32_t r = 0; r < job->ranks.rank; r++) all += passes_pieces(job, g, r, pass);
    move_slice(all, job, g, job_summed_slice(job, job->ranks.rank), pass, totals, false);
}

static void clear(const tm_job *job, part_group g, uint32_t pass, double *totals) {
    group_tensor t;
    for (uint32_t i = 0; passes_tensor(job, g, i, NULL, totals, &t); i++) {
        tm_optim_sums s = tm_optim_sums_of(&t.x);
        if (pass == 0) {
            memset(s.row_w, 0, s.rows * sizeof *s.row_w);
            memset(s.row_g, 0, s.rows * sizeof *s.row_g);
            memset(s.column_g, 0, s.columns * sizeof *s.column_g);
        } else {
            memset(s.row_u, 0, s.rows * sizeof *s.row_u);
        }
    }
}

void passes_unpack(const tm_job *job, part_group g, uint32_t pass, double *all, double *totals) {
    double *at = all;
    clear(job, g, pass, totals);
    for (uint32_t r = 0; r < job->ranks.ranks; r++) {
        job->step.report_at[job_summed_slice(job, r)] = at;
        at += passes_pieces(job, g, r, pass);
    }
    for (uint32_t j = 0; j < job->ranks.ranks; j++) {
        double *said = all + (job->step.report_at[j] - all);
        move_slice(said, job, g, j, pass, totals, true);
    }
}

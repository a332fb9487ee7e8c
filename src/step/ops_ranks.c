/* What ranks tell each other of a step: the sum of their losses, flags, norms of the blocks that they summed. Everyone
 * adds up everything in one order: that of the part's elements, whoever holds them. */
#include "step/ops_internal.h"

#include <string.h>

/* The slice that a rank sums: on node k, place p of the node, slice p * nodes + k with HSDP. */
uint32_t job_summed_slice(const tm_job *job, uint32_t rank) {
    const job_ranks *r = &job->ranks;
    if (!r->across) return rank;
    uint32_t node = tm_comm_node_of(r->comm, rank), place = 0;
    for (uint32_t i = 0; i < rank; i++) place += tm_comm_node_of(r->comm, i) == node;
    return place * r->own.count + node;
}

static uint64_t blocks_of(const tm_job *job, uint32_t part, uint32_t slice) {
    /* tiles are cut where blocks are: the blocks of a slice are those of its tiles */
    return job->part[part].learns ? tm_norm_block_count(slice_span(job->part[part].elements, job->ranks.ranks, slice).n)
                                  : 0;
}

uint64_t job_report_doubles(const tm_job *job, uint32_t rank, bool norm) {
    uint32_t slice = job_summed_slice(job, rank);
    uint64_t n = REPORT_HEAD;
    for (uint32_t p = 0; norm && p < tm_model_parts(job->model); p++) n += blocks_of(job, p, slice);
    return n;
}

uint64_t job_report_bytes(const tm_job *job, bool norm) {
    uint64_t n = 0;
    for (uint32_t r = 0; r < job->ranks.ranks; r++) n += job_report_doubles(job, r, norm);
    return n * sizeof(double);
}

/* Where every rank has all sums (MPI's), each speaks of its slice. */
static tm_status run_report(const op_call *c) {
    const tm_job *job = c->job;
    bool norm = c->args.report.norm;
    void *const *partial = op_operands(c, OPERAND_PARTIAL);
    uint32_t parts = tm_model_parts(job->model), slice = job_summed_slice(job, job->ranks.rank);
    const step_frame *f = op_operand(c, OPERAND_STEP);
    double *at = op_operand(c, OPERAND_REPORTS);
    for (uint32_t r = 0; r < job->ranks.rank; r++) at += job_report_doubles(job, r, norm);
    at[REPORT_LOSS] = f->loss_sum;
    at[REPORT_FLAGS] = (double)c->step->report_flags;
    at[REPORT_PEAK] = (double)job_host_peak(job);
    memcpy(at + REPORT_SUM, f->sum, sizeof f->sum);
    memcpy(at + REPORT_SHARED, f->shared, sizeof f->shared);
    at += REPORT_HEAD;
    for (uint32_t p = 0; norm && p < parts; p++) {
        const double *from = job->part[p].sum_tiles ? *partial++ : NULL;
        for (uint32_t t = 0; t < job->part[p].sum_tiles; t++) {
            span tile = sum_tile(job, p, t);
            if (tile.begin / slice_elements(job->part[p].elements, job->ranks.ranks) != slice) continue;
            uint64_t blocks = tm_norm_block_count(tile.n);
            memcpy(at, from + (uint64_t)t * (TM_TILE_ELEMENTS / TM_NORM_BLOCK), blocks * sizeof *at);
            at += blocks;
        }
    }
    return TM_OK;
}

/* at[j]: where the report of the rank that summed slice j is read next. */
static double sum_norms(const tm_job *job, const double **at) {
    double sum = 0;
    for (uint32_t p = 0; p < tm_model_parts(job->model); p++) {
        double part = 0;
        for (uint32_t j = 0; j < job->ranks.ranks; j++) {
            for (uint64_t b = blocks_of(job, p, j); b > 0; b--) part += *at[j]++;
        }
        sum += part;
    }
    return sum;
}

void ops_read_reports(const op_call *c, bool norm, double *square) {
    const tm_job *job = c->job;
    job_step *step = c->step;
    step_frame *f = op_operand(c, OPERAND_STEP);
    const double *reports = op_operand(c, OPERAND_REPORTS);
    const double **at = step->report_at; /* by slice */
    double loss = 0, sum[TM_OBJECTIVE_SUMS] = {0};
    f->flags = 0;
    for (uint32_t r = 0; r < job->ranks.ranks; r++) {
        loss += reports[REPORT_LOSS];
        for (int i = 0; i < TM_OBJECTIVE_SUMS; i++) sum[i] += reports[REPORT_SUM + i];
        f->flags |= (uint32_t)reports[REPORT_FLAGS];
        step->reported_peak[r] = (uint64_t)reports[REPORT_PEAK];
        at[job_summed_slice(job, r)] = reports + REPORT_HEAD;
        reports += job_report_doubles(job, r, norm);
    }
    f->loss_sum = step->result.loss_sum = loss;
    memcpy(f->sum, sum, sizeof sum);
    memcpy(step->result.sum, sum, sizeof sum);
    step->result.flags = f->flags;
    if (norm) *square = sum_norms(job, at);
}

void ops_read_shared(const op_call *c, double shared[TM_OBJECTIVE_SHARED]) {
    const double *reports = op_operand(c, OPERAND_REPORTS);
    for (uint32_t r = 0; r < c->job->ranks.ranks; r++) {
        for (int i = 0; i < TM_OBJECTIVE_SHARED; i++) shared[i] += reports[REPORT_SHARED + i];
        reports += job_report_doubles(c->job, r, false);
    }
}

static tm_status run_loss(const op_call *c) {
    ops_read_reports(c, false, NULL);
    return TM_OK;
}

/* hpZ: this rank's share of its node's copy. */
static tm_status run_stash(const op_call *c) {
    const tm_job *job = c->job;
    uint64_t elements = job->part[c->args.part.part].elements;
    uint64_t begin = slice_span(elements, job->ranks.ranks, job->ranks.second.first).begin;
    const char *whole = op_operand(c, OPERAND_TILE);
    memcpy(op_operand(c, OPERAND_SECOND), whole + begin * tm_dtype_bytes(job->dtype),
           job_second_bytes(job, c->args.part.part));
    return TM_OK;
}

/* ---- how many operands, and their bytes ---------------------------------------------------------------------- */

uint64_t job_second_bytes(const tm_job *job, uint32_t part) {
    const job_ranks *r = &job->ranks;
    uint64_t n = 0;
    for (uint32_t j = 0; j < r->second.count; j++)
        n += slice_span(job->part[part].elements, r->ranks, r->second.first + j).n;
    return n * tm_dtype_bytes(job->dtype);
}

/* Where a norm is reported: of parts of which something is summed here. */
static uint32_t count_partials(const op_call *c) {
    uint32_t n = 0;
    for (uint32_t p = 0; c->args.report.norm && p < tm_model_parts(c->job->model); p++)
        n += c->job->part[p].sum_tiles > 0;
    return n;
}
uint64_t operand_reports_bytes(const op_call *c) {
    bool none = c->op->code == OP_LOSS || c->op->code == OP_OBJECTIVE;
    bool norm = c->op->code == OP_NORM || (!none && c->args.report.norm);
    return job_report_bytes(c->job, norm);
}
uint64_t operand_whole_bytes(const op_call *c) {
    return state_bytes(c->job, c->args.part.part, TM_KIND_WEIGHT_HI, c->job->part[c->args.part.part].elements);
}
uint64_t operand_second_bytes(const op_call *c) {
    return job_second_bytes(c->job, c->args.part.part);
}

enum { R = TM_USE_READ, W = TM_USE_WRITE, U = TM_USE_UPDATE };

const op_row ops_rank_rows[OP_CODES] = {
    [OP_REPORT] = {"report", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_LITTLE, OP_OF_ALL, .run = run_report,
                   .operand = {{OPERAND_PARTIAL, R, .bytes = operand_partial_bytes, .count = count_partials},
                               {OPERAND_STEP, R, .bytes = operand_step_bytes},
                               {OPERAND_REPORTS, W, .bytes = operand_reports_bytes}}},
    [OP_LOSS] = {"loss", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_LITTLE, OP_OF_ALL, .run = run_loss,
                 .operand = {{OPERAND_REPORTS, R, .bytes = operand_reports_bytes},
                             {OPERAND_STEP, U, .bytes = operand_step_bytes}}},
    [OP_STASH] = {"stash", TM_ENGINE_CPU, OP_ON_HOST, OP_COST_LITTLE, OP_OF_PART, .run = run_stash,
                  .operand = {{OPERAND_TILE, R, .bytes = operand_whole_bytes},
                              {OPERAND_SECOND, W, .bytes = operand_second_bytes}}},
};

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
    return tm_norm_block_count(slice_span(job->part[part].elements, job->ranks.ranks, slice).n);
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
tm_status ops_report(tm_job *job, const tm_op *op, operands o) {
    void *const *partial = o.at;
    uint32_t parts = tm_model_parts(job->model), slice = job_summed_slice(job, job->ranks.rank), n = 0;
    for (uint32_t p = 0; op->arg[0] && p < parts; p++) n += job->part[p].sum_tiles > 0;
    double *at = partial[n + 1]; /* behind the partials and the step */
    for (uint32_t r = 0; r < job->ranks.rank; r++) at += job_report_doubles(job, r, op->arg[0]);
    at[REPORT_LOSS] = job->step.result.loss_sum;
    at[REPORT_FLAGS] = (double)job->step.report_flags;
    at[REPORT_PEAK] = (double)job_host_peak(job);
    at += REPORT_HEAD;
    for (uint32_t p = 0; op->arg[0] && p < parts; p++) {
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

void ops_read_reports(tm_job *job, const double *reports, bool norm, double *square) {
    const double **at = job->step.report_at; /* by slice */
    double loss = 0;
    job->step.reported_flags = 0;
    for (uint32_t r = 0; r < job->ranks.ranks; r++) {
        loss += reports[REPORT_LOSS];
        job->step.reported_flags |= (uint32_t)reports[REPORT_FLAGS];
        job->step.reported_peak[r] = (uint64_t)reports[REPORT_PEAK];
        at[job_summed_slice(job, r)] = reports + REPORT_HEAD;
        reports += job_report_doubles(job, r, norm);
    }
    job->step.result.loss_sum = loss;
    if (norm) *square = sum_norms(job, at);
}

/* hpZ: this rank's share of its node's copy. */
tm_status ops_stash(tm_job *job, const tm_op *op, operands o) {
    const job_ranks *r = &job->ranks;
    uint64_t elements = job->part[op->arg[0]].elements, width = tm_dtype_bytes(job->dtype), n = 0;
    uint64_t begin = slice_span(elements, r->ranks, r->second.first).begin;
    for (uint32_t j = 0; j < r->second.count; j++) n += slice_span(elements, r->ranks, r->second.first + j).n;
    const char *whole = next_operand(&o);
    memcpy(next_operand(&o), whole + begin * width, n * width);
    return TM_OK;
}

/* Any program of a job compiled under the residency that was chosen: what plans need together, and refusals. */
#include "comm/comm.h"
#include "step/step.h"

#include <stdio.h>
#include <string.h>

/* Once there is an arena, what is compiled for it has no more than that: it was opened as large as was needed. */
static uint64_t arena_bytes(const tm_job *job, const job_opts *opts) {
    return job->tiers.device ? tm_device_get_caps(job->tiers.device)->arena_bytes : opts->device_bytes;
}

void job_plan_opts(const tm_job *job, const job_opts *opts, tm_plan_opts *po) {
    *po = (tm_plan_opts){.cache = !opts->cache_none,
                         .spill = opts->n_paths > 0,
                         .window_mib = opts->window_mib,
                         .device_bytes = arena_bytes(job, opts),
                         .shared_by = job->ranks.shared_by,
                         .device_apart = job->tiers.traits.own_processors,
                         .hold_quarters = opts->no_hold ? 0 : job->limits.hold_quarters,
                         .hold_not = opts->host_share,
                         .share_bytes =
                             job->tiers.exec ? 0 : job->needs.share, /* once it is there, the slab is beside it */
                         .cost = job->costs.cost,
                         .cost_ctx = job->costs.ctx,
                         .machine = job->costs.machine,
                         .no_read_ahead = opts->no_read_ahead,
                         .no_write_behind = opts->no_write_behind};
    memcpy(po->pinned, opts->pinned, sizeof po->pinned);
    memcpy(po->max_resident_bytes, opts->max_resident_bytes, sizeof po->max_resident_bytes);
    if (opts->n_paths == 0)
        for (int k = 0; k < TM_KINDS; k++) po->pinned[k] = true;
    po->slab_bytes =
        job->limits.slab_bytes - (job->tiers.exec ? 0 : tm_min_u64(job->limits.plans_bytes, job->limits.slab_bytes));
}

tm_status job_agree(tm_job *job, tm_status rc) {
    if (job->ranks.ranks == 1 || (job->ranks.agreed && *job->ranks.agreed)) return rc;
    rc = tm_comm_agree(job->ranks.comm, rc);
    if (rc != TM_OK) *job->ranks.agreed = true;
    return rc;
}

tm_status job_refuse_host(const tm_job *job, uint64_t minimum_host) {
    char want[32], have[32];
    return tm_fail(TM_EBUDGET,
                   "memory.host_budget %s (%llu bytes) is too small: this job needs at least %llu bytes (%s); "
                   "raise it, or lower seq_len or the micro-batch",
                   tm_format_size(job->budget.host_bytes, have, sizeof have),
                   (unsigned long long)job->budget.host_bytes, (unsigned long long)minimum_host,
                   tm_format_size(minimum_host, want, sizeof want));
}

/* Which of the budgets a refusal is about travels with it: it may be another rank's. */
static const char DEVICE_BUDGET[] = "device_budget";

bool job_refused_device(void) {
    return strcmp(tm_error_get()->operation, DEVICE_BUDGET) == 0;
}

tm_status job_refuse_device(tm_job *job, uint64_t least) {
    char want[32], have[32];
    job->budget.device_short = true;
    job->needs.device = least;
    return tm_fail_sys(TM_EBUDGET, 0, DEVICE_BUDGET, NULL, -1,
                       "memory.device_budget %s (%llu bytes) is too small: this job needs at least %llu bytes (%s); "
                       "raise it, or lower seq_len or the micro-batch",
                       tm_format_size(job->opts.device_bytes, have, sizeof have),
                       (unsigned long long)job->opts.device_bytes, (unsigned long long)least,
                       tm_format_size(least, want, sizeof want));
}

void job_count_need(tm_job *job, const tm_plan *plan) {
    const tm_plan_info *info = tm_plan_get_info(plan);
    job->needs.proof_seconds += info->proof_seconds;
    job->needs.slab = tm_max_u64(job->needs.slab, info->slab_bytes);
    job->needs.spill = tm_max_u64(job->needs.spill, info->spill_file_bytes);
    job->needs.device = tm_max_u64(job->needs.device, info->device_bytes);
    job->needs.shared = tm_max_u64(job->needs.shared, info->shared_bytes);
    job->needs.share = tm_max_u64(job->needs.share, info->share_bytes);
    job->needs.spill_largest = tm_max_u64(job->needs.spill_largest, info->spill_largest_bytes);
    job->needs.plans += info->memory_bytes + (uint64_t)JOB_RUN_BYTES_PER_OP * info->ops;
}

job_needs job_take_needs(const tm_job *job) {
    return job->needs;
}

void job_give_needs(tm_job *job, const job_needs *n) {
    job->needs = *n;
}

/* Files for temporaries are as large as the plans took that there were when they were made. */
static tm_status has_room_to_spill(const tm_job *job, const tm_plan *plan) {
    const tm_plan_info *info = tm_plan_get_info(plan);
    char a[32], b[32];
    if (!job->tiers.exec ||
        (info->spill_file_bytes <= job->needs.spill && info->spill_largest_bytes <= job->needs.spill_largest))
        return TM_OK;
    return tm_fail(TM_EBUDGET, "a plan that writes out %s of temporaries comes too late: the run has files for %s",
                   tm_format_size(info->spill_file_bytes, a, sizeof a), tm_format_size(job->needs.spill, b, sizeof b));
}

tm_status job_compile(tm_job *job, const tm_program *program, tm_plan **plan) {
    tm_plan_opts po;
    job_plan_opts(job, &job->opts, &po);
    if (po.window_mib == 0 || po.window_mib > 64) po.window_mib = 64;
    uint64_t minimum = 0, arena = 0;
    if (po.device_bytes) TM_TRY(tm_plan_device_minimum(program, &arena));
    if (arena > po.device_bytes) return job_refuse_device(job, arena);
    tm_status rc = tm_plan_compile(plan, job->layout, program, &po, &minimum);
    if (rc == TM_OK && has_room_to_spill(job, *plan) != TM_OK) {
        tm_plan_free(*plan);
        *plan = NULL;
        return TM_EBUDGET;
    }
    if (rc == TM_OK) job_count_need(job, *plan);
    if (rc != TM_EBUDGET) return rc;
    tm_error_clear();
    return job_refuse_host(job, minimum + job->budget.fixed_bytes);
}

uint64_t job_disk_bytes(const tm_job *job, const tm_plan_info *info, uint32_t slots) {
    uint32_t paths = job->opts.n_paths ? job->opts.n_paths : 1;
    return tm_store_spill_bytes(paths, info->spill_file_bytes, info->spill_largest_bytes) +
           tm_store_state_bytes(job->layout, slots, job->opts.commits);
}

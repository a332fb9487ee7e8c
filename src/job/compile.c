/* Any program of a job compiled under the residency that was chosen: what plans need together, and refusals. */
#include "base/change.h"
#include "comm/comm.h"
#include "job/job.h"

#include <stdio.h>
#include <string.h>

/* Once there is an arena, what is compiled for it has no more than that: it was opened as large as was needed. */
static uint64_t arena_bytes(const tm_job *job, const job_opts *opts) {
    return job->tiers.device ? tm_device_get_caps(job->tiers.device)->arena_bytes : opts->device_bytes;
}

void job_plan_opts(const tm_job *job, const job_opts *opts, const job_account *a, tm_plan_opts *po) {
    bool open = job->tiers.exec != NULL; /* then the slab is there, beside plans and shared memory */
    *po = (tm_plan_opts){.cache = !opts->cache_none,
                         .spill = opts->n_paths > 0,
                         .window_mib = opts->window_mib,
                         .device_bytes = arena_bytes(job, opts),
                         .shared_by = job->ranks.shared_by,
                         .device_apart = job->tiers.traits.own_processors,
                         .resident_quarters = opts->no_device_resident ? 0 : a->limits.resident_quarters,
                         .host_share = opts->host_share,
                         .share_bytes = open ? 0 : a->needs.share,
                         .cost = job->costs.cost,
                         .cost_ctx = job->costs.ctx,
                         .machine = job->costs.machine,
                         .no_read_ahead = opts->no_read_ahead,
                         .no_write_behind = opts->no_write_behind};
    memcpy(po->pinned, opts->pinned, sizeof po->pinned);
    memcpy(po->max_resident_bytes, opts->max_resident_bytes, sizeof po->max_resident_bytes);
    if (opts->n_paths == 0)
        for (int k = 0; k < TM_KINDS; k++) po->pinned[k] = k != TM_KIND_FROZEN; /* which lies in files of its own */
    po->slab_bytes = a->limits.slab_bytes - (open ? 0 : tm_min_u64(a->limits.plans_bytes, a->limits.slab_bytes));
}

tm_status job_agree(tm_job *job, tm_status rc) {
    if (job->ranks.ranks == 1 || (job->ranks.agreed && *job->ranks.agreed)) return rc;
    rc = tm_comm_agree(job->ranks.comm, rc);
    if (rc != TM_OK) *job->ranks.agreed = true;
    return rc;
}

static tm_status refuse_budget(const char *key, uint64_t budget, uint64_t least) {
    char want[32], have[32];
    int section = (int)strcspn(key, "_"); /* every command takes it as --host-budget or --device-budget */
    tm_status rc =
        tm_fail(TM_EBUDGET,
                "memory.%s %s (%llu bytes) is too small: this job needs at least %llu bytes (%s); raise it "
                "(--%.*s-budget %llu), or lower seq_len or the micro-batch",
                key, tm_format_size(budget, have, sizeof have), (unsigned long long)budget, (unsigned long long)least,
                tm_format_size(least, want, sizeof want), section, key, (unsigned long long)least);
    tm_change_advise("memory.%s=%llu", key, (unsigned long long)least);
    return rc;
}

static tm_status refuse_micro_batches(const tm_job *job, const job_refusal *r) {
    char want[32], have[32], of[96] = "what this machine has available";
    uint64_t budget = job->opts.host_bytes;
    if (budget != UINT64_MAX)
        snprintf(of, sizeof of, "memory.host_budget %s (%llu bytes)", tm_format_size(budget, have, sizeof have),
                 (unsigned long long)budget);
    tm_status rc =
        tm_fail(TM_EBUDGET,
                "gradient_accumulation_steps %u: the plan of so many micro-batches is larger than %s, they need at "
                "least %llu bytes (%s); at most %u fit: --set gradient_accumulation_steps=%u",
                r->micro_batches, of, (unsigned long long)r->bytes, tm_format_size(r->bytes, want, sizeof want),
                r->most_micro_batches, r->most_micro_batches);
    tm_change_advise("gradient_accumulation_steps=%u", r->most_micro_batches);
    return rc;
}

tm_status job_refuse(const tm_job *job, const job_refusal *r) {
    TM_ASSERT(r->limit != JOB_LIMIT_NONE);
    if (r->limit == JOB_LIMIT_MICRO_BATCHES) return refuse_micro_batches(job, r);
    bool device = r->limit == JOB_LIMIT_DEVICE;
    return refuse_budget(device ? "device_budget" : "host_budget",
                         device ? job->opts.device_bytes : job->opts.host_bytes, r->bytes);
}

void job_count_plan(job_account *a, const tm_plan *plan, bool stays) {
    const tm_plan_info *info = tm_plan_get_info(plan);
    job_needs *n = &a->needs;
    n->proof_seconds += info->proof_seconds;
    n->slab = tm_max_u64(n->slab, info->slab_bytes);
    n->spill = tm_max_u64(n->spill, info->spill_file_bytes);
    n->spill_largest = tm_max_u64(n->spill_largest, info->spill_largest_bytes);
    n->device = tm_max_u64(n->device, info->device_bytes);
    n->shared = tm_max_u64(n->shared, info->shared_bytes);
    n->share = tm_max_u64(n->share, info->share_bytes);
    if (stays) n->plans += info->memory_bytes + (uint64_t)JOB_RUN_BYTES_PER_OP * info->ops;
}

/* Files for temporaries are as large as the plans took that there were when they were made. */
static tm_status has_room_to_spill(const tm_job *job, const job_needs *have, const tm_plan *plan) {
    const tm_plan_info *info = tm_plan_get_info(plan);
    char a[32], b[32];
    if (!job->tiers.exec || (info->spill_file_bytes <= have->spill && info->spill_largest_bytes <= have->spill_largest))
        return TM_OK;
    return tm_fail(TM_EBUDGET, "a plan that writes out %s of temporaries comes too late: the run has files for %s",
                   tm_format_size(info->spill_file_bytes, a, sizeof a), tm_format_size(have->spill, b, sizeof b));
}

static tm_status refuse_in(const tm_job *job, job_account *a, job_limit limit, uint64_t bytes) {
    a->refusal = (job_refusal){.limit = limit, .bytes = bytes};
    return job_refuse(job, &a->refusal);
}

tm_status job_compile_in(const tm_job *job, job_account *a, const tm_program *program, bool stays, tm_plan **plan) {
    tm_plan_opts po;
    job_plan_opts(job, &job->opts, a, &po);
    if (po.window_mib == 0 || po.window_mib > 64) po.window_mib = 64;
    uint64_t minimum = 0, arena = 0;
    if (po.device_bytes) TM_TRY(tm_plan_device_minimum(program, &arena));
    if (arena > po.device_bytes) return refuse_in(job, a, JOB_LIMIT_DEVICE, arena);
    tm_status rc = tm_plan_compile(plan, job->layout, program, &po, &minimum);
    if (rc == TM_OK && has_room_to_spill(job, &a->needs, *plan) != TM_OK) {
        tm_plan_free(*plan);
        *plan = NULL;
        return TM_EBUDGET;
    }
    if (rc == TM_OK) job_count_plan(a, *plan, stays);
    if (rc != TM_EBUDGET) return rc;
    tm_error_clear();
    return refuse_in(job, a, JOB_LIMIT_HOST, minimum + job->budget.fixed_bytes);
}

tm_status job_compile(tm_job *job, const tm_program *program, tm_plan **plan) {
    return job_compile_in(job, &job->account, program, true, plan);
}

uint64_t job_disk_bytes(const tm_job *job, const tm_plan_info *info, uint32_t slots) {
    uint32_t paths = job->opts.n_paths ? job->opts.n_paths : 1;
    return tm_store_spill_bytes(paths, info->spill_file_bytes, info->spill_largest_bytes) +
           tm_store_state_bytes(job->layout, slots, job->opts.commits);
}

void job_use_costs(tm_job *job, const struct tm_machine *machine, tm_cost_fn cost, void *ctx) {
    job->costs.machine = machine;
    job->costs.cost = cost;
    job->costs.ctx = ctx;
}

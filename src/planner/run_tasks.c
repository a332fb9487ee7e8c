/* eval_tasks: what of the budget is theirs. */
#include "base/change.h"
#include "planner/run.h"

uint64_t run_score_bytes(const session *s, const tm_job *job) {
    uint64_t all = job->opts.host_bytes, used = job_planned_peak(job);
    if (all == UINT64_MAX) return UINT64_MAX;
    return s->scores.least_bytes + (all > used ? all - used : 0);
}

tm_status run_blame_tasks(const session *s, tm_status rc) {
    char bytes[32];
    if (rc != TM_EBUDGET || !s->trial) return rc;
    return tm_change_reword("%s; eval_tasks takes %s of it, less with a smaller eval_tasks_batch_size",
                            tm_error_get()->text, tm_format_size(s->scores.run_bytes, bytes, sizeof bytes));
}

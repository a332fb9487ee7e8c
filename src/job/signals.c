/* Where a job stops when it is asked to (base's stop.c): between operations, unless the step under way may go on. */
#include "job/job.h"

#include <signal.h>
#include <string.h>

static uint64_t seen_ns;

int job_stop_signal(void) {
    if (tm_stop_signal() && !seen_ns) seen_ns = tm_now_ns();
    return tm_stop_signal();
}

uint64_t job_stop_ns(void) {
    return seen_ns;
}

tm_status job_stopped(const char *more) {
    if (tm_stop_signal()) return tm_fail(TM_ESIGNAL, "stopped by signal %d%s", tm_stop_signal(), more);
    return tm_fail(TM_ESIGNAL, "stopped by a signal to another rank%s", more);
}

/* "term": SIGTERM; "overdue": it came when the machine was started; else SIGINT, twice. */
static void interrupt(const char *kind) {
    bool overdue = strcmp(kind, "overdue") == 0;
    raise(overdue || strcmp(kind, "term") == 0 ? SIGTERM : SIGINT);
    if (tm_stop_signal() == SIGINT) raise(SIGINT);
    if (overdue) seen_ns = 1;
}

tm_status job_check_stop(const tm_job *job) {
    if (tm_fault_hit("kill_op", NULL)) raise(SIGKILL);
    const char *kind;
    if (tm_fault_hit("interrupt_op", &kind)) interrupt(kind);
    if (!job_stop_signal()) return TM_OK;
    if (!tm_stop_at_once() && job->sinks.may_go_on && job->sinks.may_go_on(job->sinks.may_go_on_ctx)) return TM_OK;
    return job_stopped("");
}

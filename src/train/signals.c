/* What asks a job to stop. The handler only takes a note; operations ask between each other. */
#include "train/train_internal.h"

#include <signal.h>

static volatile sig_atomic_t stop_signal, interrupts;
static uint64_t seen_ns;

static void note_signal(int sig) {
    if (!stop_signal) stop_signal = sig;
    if (sig == SIGINT) interrupts++;
}

void job_catch_signals(void) {
    struct sigaction a = {.sa_handler = note_signal};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
}

int job_stop_signal(void) {
    if (stop_signal && !seen_ns) seen_ns = tm_now_ns();
    return (int)stop_signal;
}

uint64_t job_stop_ns(void) {
    return seen_ns;
}

tm_status job_check_stop(const tm_job *job) {
    if (tm_fault_hit("kill_op", NULL)) raise(SIGKILL);
    if (tm_fault_hit("interrupt_op", NULL)) raise(SIGINT), raise(SIGINT);
    int sig = job_stop_signal();
    if (!sig) return TM_OK;
    if (interrupts < 2 && job->may_go_on && job->may_go_on(job->may_go_on_ctx)) return TM_OK;
    return tm_fail(TM_ESIGNAL, "stopped by signal %d", sig);
}

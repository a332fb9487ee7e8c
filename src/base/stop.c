/* A request to stop: SIGINT, SIGTERM, SIGHUP, SIGUSR1, and output that nobody reads any more. The handler only takes a
 * note; what may take long asks for it. */
#include "base/base.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { AT_ONCE = 2, INSISTS = 3 };

static volatile sig_atomic_t first_signal, interrupts;
static atomic_bool asked; /* what the polls read */
static atomic_bool polled = true, silent;

/* SIGPIPE comes for any write, to a socket of the launcher's, too: it counts where stdout or stderr is what broke. */
static bool nobody_reads(void) {
    struct pollfd out[] = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}};
    return poll(out, TM_COUNT(out), 0) > 0 && ((out[0].revents | out[1].revents) & POLLERR);
}

static void acknowledge(void) {
    if (atomic_load(&silent)) return;
    tm_say_in_handler(atomic_load(&polled) ? "stopping; again to stop at once\n"
                                           : "stopping after this step; again to stop at once\n");
}

/* Whatever the program is at: as with SIGKILL, what was committed stays. */
static void end_here(int number) {
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* when the handler returns */
}

static void note(int number) {
    int keep = errno;
    if (number != SIGPIPE || nobody_reads()) {
        bool is_first = first_signal == 0;
        if (is_first) first_signal = number;
        atomic_store(&asked, true);
        if (number == SIGINT) interrupts++;
        if (number == SIGINT && is_first) acknowledge();
        if (number == SIGINT && interrupts >= INSISTS) end_here(number);
    }
    errno = keep;
}

void tm_stop_catch(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGPIPE};
    const struct sigaction a = {.sa_handler = note};
    struct sigaction hangup;
    for (size_t i = 0; i < TM_COUNT(numbers); i++) (void)sigaction(numbers[i], &a, NULL);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN) return; /* nohup: it stays so */
    (void)sigaction(SIGHUP, &a, NULL);
}

int tm_stop_signal(void) {
    return (int)first_signal;
}

bool tm_stop_at_once(void) {
    return interrupts >= AT_ONCE;
}

void tm_stop_polled(bool on) {
    atomic_store(&polled, on);
}

void tm_stop_silent(bool on) {
    atomic_store(&silent, on);
}

tm_status tm_stop_check(void) {
    if (!atomic_load_explicit(&polled, memory_order_relaxed)) return TM_OK;
    (void)tm_fault_hit("poll", NULL); /* to be stopped or killed at */
    if (!atomic_load_explicit(&asked, memory_order_relaxed)) return TM_OK;
    return tm_fail(TM_ESIGNAL, "stopped by signal %d", (int)first_signal);
}

/* See conversion.h. */
#include "tools/conversion.h"

#include <signal.h>

/* What one conversion needs whatever the model's size: buffers, the table of tensors, the tokenizer's text. */
#define CONVERT_MINIMUM (64 * TM_MIB)

static volatile sig_atomic_t stop;

static void on_signal(int number) {
    (void)number;
    stop = 1;
}

/* Stopping goes through the ordinary way out, which removes what was begun. */
static void catch_signals(void) {
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < TM_COUNT(numbers); i++) (void)sigaction(numbers[i], &action, NULL);
}

static void show(void *ctx, uint64_t done, uint64_t total) {
    tm_phase *p = ctx;
    p->total = total;
    tm_phase_at(p, done);
}

int tm_run_conversion(const char *what, tm_export_request r, uint64_t host_budget) {
    if (host_budget < CONVERT_MINIMUM) {
        (void)tm_fail(TM_EBUDGET, "%s needs a host budget of %llu bytes (64MiB)", what,
                      (unsigned long long)CONVERT_MINIMUM);
        return tm_cmd_fail();
    }
    tm_phase p;
    r.convert.progress = show, r.convert.ctx = &p, r.convert.stop = &stop;
    tm_phase_begin(&p, what, NULL, 0);
    catch_signals();
    tm_status status = tm_export(&r);
    tm_phase_end(&p);
    return status == TM_OK ? 0 : tm_cmd_fail();
}

/* The driver of fault tests: which call is to fail, and how. Who may ask for it is decided where the program is linked:
 * tm_fault_use_environment has one caller, the test build of the program (tests/fault_environment.c). */
#include "base/base.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* One call name can be given, so one counter counts it: the seams ask with many names, only that one is counted. */
typedef struct fault_plan {
    char call[32], kind[32];
    uint64_t at;
    bool sticky, all; /* all: "*", every name is counted by itself and none fails */
} fault_plan;

/* Of "*": who was asked how often. Names are literals of the seams; more of them than fit are a test's failure. */
enum { TALLY_NAMES = 64 };
static struct {
    const char *name;
    uint64_t calls;
} tally[TALLY_NAMES];
static unsigned n_tally;

static fault_plan plan;
static atomic_bool active;
static atomic_uint_least64_t calls;
static bool environment_used, spec_ok = true;

static bool copy_field(const char **p, char *to, size_t cap) {
    size_t n = strcspn(*p, ":");
    if (n == 0 || n >= cap) return false;
    memcpy(to, *p, n);
    to[n] = 0;
    *p += n;
    return true;
}

static bool parse_spec(const char *p, fault_plan *out) {
    if (!copy_field(&p, out->call, sizeof out->call) || *p++ != ':') return false;
    if (*p < '0' || *p > '9') return false;
    char *end;
    out->at = strtoull(p, &end, 10);
    p = end;
    if (*p++ != ':' || !copy_field(&p, out->kind, sizeof out->kind) || *p++ != ':') return false;
    out->sticky = strcmp(p, "sticky") == 0;
    return out->sticky || strcmp(p, "once") == 0;
}

tm_status tm_fault_set(const char *spec) {
    fault_plan fresh = {0};
    atomic_store(&active, false);
    atomic_store(&calls, 0);
    if (spec && !parse_spec(spec, &fresh)) {
        return tm_fail(TM_EINPUT, "fault \"%s\": expected CALL:I:KIND:once or CALL:I:KIND:sticky", spec);
    }
    fresh.all = strcmp(fresh.call, "*") == 0;
    if (fresh.all) n_tally = 0;
    plan = fresh;
    atomic_store(&active, fresh.all || (spec != NULL && fresh.at > 0));
    return TM_OK;
}

uint64_t tm_fault_calls(void) {
    return atomic_load(&calls);
}

bool tm_fault_tally(unsigned i, const char **call, uint64_t *n) {
    bool there = plan.all && i < n_tally;
    if (there) *call = tally[i].name, *n = tally[i].calls;
    return there;
}

void tm_fault_use_environment(void) {
    const char *spec = getenv("TIDEMILL_FAULT");
    environment_used = true;
    if (!spec || !*spec) return;
    spec_ok = tm_fault_set(spec) == TM_OK;
    tm_error_clear();
}

bool tm_fault_environment_used(void) {
    return environment_used;
}

const char *tm_fault_environment_wrong(void) {
    static const char *const names[] = {"TIDEMILL_FAULT", "TIDEMILL_CHECKSUMS"};
    static const char *const refused[] = {
        "TIDEMILL_FAULT is set, but this program makes no faults: unset it, or run the test build "
        "(build/tests/tidemill)",
        "TIDEMILL_CHECKSUMS is set, but this program always checks: unset it, or run the test build "
        "(build/tests/tidemill)"};
    for (size_t i = 0; i < TM_COUNT(names) && !environment_used; i++) {
        const char *given = getenv(names[i]);
        if (given && *given) return refused[i];
    }
    return spec_ok ? NULL : "TIDEMILL_FAULT is not CALL:INDEX:KIND:once|sticky";
}

#ifdef TIDEMILL_FAULTS
static pthread_mutex_t tally_lock = PTHREAD_MUTEX_INITIALIZER;

extern void __gcov_dump(void) __attribute__((weak));

/* In a build that counts coverage, what ran until here counts. */
static void die(void) {
    if (__gcov_dump) __gcov_dump();
    (void)raise(SIGKILL);
}

static bool count(const char *call) {
    pthread_mutex_lock(&tally_lock);
    unsigned i = 0;
    while (i < n_tally && strcmp(tally[i].name, call) != 0) i++;
    if (i == n_tally && i < TALLY_NAMES) tally[n_tally].name = call, tally[n_tally++].calls = 0;
    if (i < TALLY_NAMES) tally[i].calls++;
    pthread_mutex_unlock(&tally_lock);
    return false;
}

bool tm_fault_hit(const char *call, const char **kind) {
    if (!atomic_load_explicit(&active, memory_order_relaxed)) return false;
    if (plan.all) return count(call);
    if (strcmp(call, plan.call) != 0) return false;
    uint64_t i = atomic_fetch_add(&calls, 1) + 1;
    if (i != plan.at && !(plan.sticky && i > plan.at)) return false;
    if (strcmp(plan.kind, "kill") == 0) die();
    if (strcmp(plan.kind, "stop") == 0) return (void)raise(SIGSTOP), false;
    if (kind) *kind = plan.kind;
    return true;
}
#else
bool tm_fault_hit(const char *call, const char **kind) {
    (void)call, (void)kind;
    return false;
}
#endif

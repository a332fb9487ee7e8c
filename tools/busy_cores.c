#include "tools/busy_cores.h"

#include "base/base.h"

#include <time.h>
#include <unistd.h>

static void *compute(void *arg) {
    busy_core *b = arg;
    float x[16384];
    for (unsigned i = 0; i < TM_COUNT(x); i++) x[i] = (float)i;
    while (!atomic_load_explicit(b->stop, memory_order_relaxed)) {
        for (unsigned i = 0; i < TM_COUNT(x); i++) x[i] = x[i] * 0.999f + 1.0f;
        __asm__ volatile("" ::"r"(x) : "memory");
        atomic_fetch_add_explicit(&b->rounds, 1, memory_order_relaxed);
    }
    return NULL;
}

void busy_cores_start(busy_cores *b) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    while (b->n < BUSY_MOST && (long)b->n < cores) {
        busy_core *c = &b->core[b->n];
        c->stop = &b->stop;
        if (tm_thread_start(&c->thread, compute, c, "a busy core") != TM_OK) break;
        b->n++;
    }
    tm_error_clear(); /* fewer make less of a load */
}

void busy_cores_stop(busy_cores *b) {
    atomic_store(&b->stop, true);
    for (unsigned i = 0; i < b->n; i++) pthread_join(b->core[i].thread, NULL);
    b->n = 0;
    atomic_store(&b->stop, false);
}

double busy_cores_cpu_seconds(const busy_cores *b) {
    double seconds = 0;
    for (unsigned i = 0; i < b->n; i++) {
        clockid_t clock;
        struct timespec t;
        if (pthread_getcpuclockid(b->core[i].thread, &clock) == 0 && clock_gettime(clock, &t) == 0)
            seconds += (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return seconds;
}

uint64_t busy_cores_rounds(const busy_cores *b) {
    uint64_t rounds = 0;
    for (unsigned i = 0; i < b->n; i++) rounds += atomic_load_explicit(&b->core[i].rounds, memory_order_relaxed);
    return rounds;
}

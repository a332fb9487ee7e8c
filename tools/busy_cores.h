/* busy_cores: a thread a core that computes as training does, for measuring disks beside it.
 *
 * Each goes over 64 KiB of floats again and again (multiply and add) at ordinary priority, counts its rounds, and has a
 * clock of its own: the processor time of everybody else is the process's less theirs, and what the others take away
 * from computing shows in rounds a second. Signals are for the thread that started them. */
#ifndef TIDEMILL_BUSY_CORES_H
#define TIDEMILL_BUSY_CORES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { BUSY_MOST = 256 };

typedef struct busy_core {
    pthread_t thread;
    const atomic_bool *stop;
    _Atomic uint64_t rounds;
} busy_core;

typedef struct busy_cores { /* zeroed: none */
    busy_core core[BUSY_MOST];
    unsigned n;
    atomic_bool stop;
} busy_cores;

void busy_cores_start(busy_cores *b); /* as many as there are cores, or as can be started */
void busy_cores_stop(busy_cores *b);
double busy_cores_cpu_seconds(const busy_cores *b); /* of all of them since the start */
uint64_t busy_cores_rounds(const busy_cores *b);

#endif

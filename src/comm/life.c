/* Is everyone still there? And how a job ends when not, or when one rank says so. */
#include "comm/remote_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAG_BEAT = 1, TAG_ABORT = 2 };
/* Whoever ends the job gives the others time to hear of it; they stay a little longer, since the launcher kills the
 * rest when the first one has gone. */
enum { TELL_MS = 400, LINGER_MS = 600 };
enum { ALIVE = 1, LAST = 2 }; /* what a sign of life says */
#define BEAT_NS ((uint64_t)1000 * 1000 * 1000)

static uint32_t before(const tm_comm *c) {
    return (c->rank + c->size - 1) % c->size;
}

static void pause_ms(long ms) {
    struct timespec t = {.tv_nsec = ms * 1000 * 1000};
    nanosleep(&t, NULL);
}

/* Tells everyone, so that they end without a word and before the launcher's signals reach them. Best effort. */
static void tell_all(tm_comm *c, int status) {
    comm_mpi_request request;
    static int told;
    told = status;
    for (uint32_t r = 0; r < c->size; r++) {
        if (r == c->rank || comm_mpi->isend(&told, sizeof told, (int)r, TAG_ABORT, c->remote->life.comm, &request))
            continue;
        int done;
        (void)comm_mpi->test(&request, &done); /* small messages leave at once; the rest is MPI_Abort's */
    }
    for (int i = 0; i < TELL_MS / 10; i++) {
        comm_mpi->progress(c->remote->life.comm);
        pause_ms(10);
    }
}

static _Noreturn void end_job(tm_comm *c, int status) {
    fflush(NULL);
    if (c->remote->life.started) tell_all(c, status);
    if (c->at_abort) c->at_abort();
    comm_mpi->abort(status);
    _exit(status);
}

static _Noreturn void end_quietly(tm_comm *c) {
    if (c->at_abort) c->at_abort();
    pause_ms(LINGER_MS);
    _exit(c->remote->life.abort_status > 0 ? c->remote->life.abort_status : 1);
}

static void fatal(tm_comm *c) {
    tm_say("tidemill: rank %u: %s\n", c->rank, tm_error_get()->text);
    end_job(c, 1);
}

static void listen(tm_comm *c) {
    comm_life *l = &c->remote->life;
    if (comm_mpi_irecv(&l->in, sizeof l->in, (int)before(c), TAG_BEAT, l->comm, &l->beat_in) != TM_OK) fatal(c);
}

tm_status comm_life_start(tm_comm *c) {
    comm_life *l = &c->remote->life;
    TM_TRY(comm_mpi_dup(comm_mpi->world, &l->comm));
    l->beat_out = comm_mpi->no_request;
    TM_TRY(comm_mpi_irecv(&l->in, sizeof l->in, (int)before(c), TAG_BEAT, l->comm, &l->beat_in));
    TM_TRY(comm_mpi_irecv(&l->abort_status, sizeof l->abort_status, COMM_MPI_ANY, TAG_ABORT, l->comm, &l->abort_in));
    l->last_tick_ns = tm_now_ns();
    l->started = true;
    return TM_OK;
}

static void beat(tm_comm *c) {
    comm_life *l = &c->remote->life;
    int done = 1;
    if (comm_mpi_test(&l->beat_out, &done) != TM_OK) fatal(c); /* a null request is done */
    if (!done || l->out == LAST) return;
    l->out = l->leaving ? LAST : ALIVE;
    if (comm_mpi_isend(&l->out, sizeof l->out, (int)((c->rank + 1) % c->size), TAG_BEAT, l->comm, &l->beat_out) !=
        TM_OK)
        fatal(c);
}

static void hear(tm_comm *c) {
    comm_life *l = &c->remote->life;
    int done;
    while (!l->heard_last && comm_mpi->test(&l->beat_in, &done) == 0 && done) {
        l->silent_ns = 0;
        if (l->in == LAST) {
            l->heard_last = true;
            break;
        }
        listen(c);
    }
    if (comm_mpi->test(&l->abort_in, &done) == 0 && done) end_quietly(c);
}

static void give_up_on(tm_comm *c, uint32_t rank) {
    tm_say("tidemill: rank %u (%s) has not been heard of for %.0f s: it is dead, stopped or cut off; ending the job\n",
           rank, c->host[rank], (double)c->remote->life.silent_ns * 1e-9);
    end_job(c, 1);
}

void comm_life_tick(tm_comm *c) {
    comm_life *l = &c->remote->life;
    uint64_t now = tm_now_ns();
    int status = atomic_load_explicit(&c->remote->abort_status, memory_order_relaxed);
    if (status) end_job(c, status);
    if (!l->started || now < l->last_tick_ns + (l->leaving ? 0 : BEAT_NS / 8)) return;
    /* A tick that comes late says that this process was held up, not that the other one is silent. */
    l->silent_ns += tm_min_u64(now - l->last_tick_ns, BEAT_NS);
    l->last_tick_ns = now;
    hear(c);
    if (now >= l->next_beat_ns) {
        l->next_beat_ns = now + BEAT_NS;
        beat(c);
    }
    if ((double)l->silent_ns * 1e-9 > c->patience_seconds) give_up_on(c, before(c));
}

/* Every rank says goodbye to the next one, so that no message is left for MPI_Finalize to find. */
tm_status comm_life_stop(tm_comm *c) {
    comm_life *l = &c->remote->life;
    l->leaving = true;
    for (int gone = 0; !gone || l->out != LAST || !l->heard_last;) {
        l->next_beat_ns = 0; /* at once */
        pause_ms(1);
        comm_life_tick(c);
        TM_TRY(comm_mpi_test(&l->beat_out, &gone));
    }
    l->started = false;
    (void)comm_mpi->cancel(&l->abort_in);
    return comm_wait_request(c, &l->abort_in);
}

void comm_block_begin(tm_comm *c, const char *what) {
    atomic_store(&c->remote->blocked_in, what);
    atomic_store(&c->remote->blocked_since_ns, tm_now_ns());
}

void comm_block_end(tm_comm *c) {
    atomic_store(&c->remote->blocked_since_ns, 0);
    c->remote->life.last_tick_ns = tm_now_ns(); /* nobody could be heard meanwhile */
    c->remote->life.silent_ns = 0;
}

/* Until all ranks have met, late is likelier than dead: they are started one after another, and load a program and its
 * libraries from a disk or a network, with processors that others use. Not for one that is seen to be stopped. */
enum { START_SECONDS = 60 };

bool comm_block_too_long(const tm_comm *c, char *why, size_t cap) {
    uint64_t since = atomic_load(&c->remote->blocked_since_ns);
    double seconds = since ? (double)(tm_now_ns() - since) * 1e-9 : 0;
    const char *what = atomic_load(&c->remote->blocked_in);
    double patience = c->patience_seconds * (since && strcmp(what, COMM_INIT) == 0 ? 1.5 : 1);
    if (seconds < patience + 5) return false; /* whoever can name the rank goes first */
    char who[64] = "another rank is dead, stopped or cut off";
    if (!comm_stopped_sibling(who, sizeof who) && !c->remote->opened && seconds < patience + START_SECONDS)
        return false;
    snprintf(why, cap, "%s has not come back for %.0f s: %s", what, seconds, who);
    return true;
}

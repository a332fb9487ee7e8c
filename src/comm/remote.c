/* The thread that makes all calls of MPI, its queue, and those who wait for it.
 *
 *     submit -> queue -> the thread: execute -> complete -> done, or whoever waits
 */
#include "comm/remote_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { IDLE_MS = 125 }; /* an idle thread looks for signs of life so often */

static struct timespec in_ms(unsigned ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)ms * 1000 * 1000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static tm_status execute(tm_comm *c, tm_comm_op *op) {
    if (c->remote->failed) return c->remote->error.code;
    if ((int)op->code == COMM_ERRAND) {
        const comm_errand *errand = op->ctx;
        return errand->run(c, errand->arg);
    }
    if (c->groups[op->group].size < 2) {
        comm_local(op);
        return TM_OK;
    }
    c->remote->executed = op;
    tm_status rc = comm_execute(c, op);
    c->remote->executed = NULL;
    return rc;
}

/* The first failure of an operation is everyone's after it; an errand's is its own. */
static void keep_error(tm_comm *c, const tm_comm_op *op, tm_status rc) {
    if (rc == TM_OK || c->remote->failed) return;
    pthread_mutex_lock(&c->remote->lock);
    c->remote->error = *tm_error_get();
    c->remote->failed = (int)op->code != COMM_ERRAND;
    pthread_mutex_unlock(&c->remote->lock);
    tm_error_clear();
}

static void carry_out(tm_comm *c, tm_comm_op *op) {
    bool waited_for = !op->done;
    op->start_ns = tm_now_ns();
    tm_status rc = execute(c, op);
    keep_error(c, op, rc);
    if (!waited_for) {
        comm_complete(c, op, rc);
        return;
    }
    pthread_mutex_lock(&c->remote->lock); /* the waiter may return as soon as it can have the lock */
    comm_complete(c, op, rc);
    pthread_cond_broadcast(&c->remote->finished);
    pthread_mutex_unlock(&c->remote->lock);
}

/* The next operation; NULL: there will be none. */
static tm_comm_op *next_op(tm_comm *c) {
    comm_remote *m = c->remote;
    pthread_mutex_lock(&m->lock);
    while (!m->head && !m->closing) {
        struct timespec t = in_ms(IDLE_MS);
        pthread_cond_timedwait(&m->work, &m->lock, &t);
        if (m->head) break;
        pthread_mutex_unlock(&m->lock);
        comm_life_tick(c);
        pthread_mutex_lock(&m->lock);
    }
    tm_comm_op *op = m->head;
    if (op) m->head = op->next;
    pthread_mutex_unlock(&m->lock);
    return op;
}

static void tell_opened(tm_comm *c, tm_status rc) {
    comm_remote *m = c->remote;
    pthread_mutex_lock(&m->lock);
    m->open_status = rc;
    m->opened = true;
    m->error = *tm_error_get();
    pthread_cond_broadcast(&m->finished);
    pthread_mutex_unlock(&m->lock);
}

static void tell_ended(comm_remote *m) {
    pthread_mutex_lock(&m->lock);
    m->ended = true;
    pthread_cond_broadcast(&m->finished);
    pthread_mutex_unlock(&m->lock);
}

/* Everyone is done: goodbye. A failure here hurts nobody, everything was delivered; MPI may say what it likes. */
static void leave(tm_comm *c) {
    tm_comm_op barrier = {.code = TM_COMM_BARRIER};
    if (c->remote->failed) comm_remote_abort(c, 1);
    if (comm_execute(c, &barrier) != TM_OK || comm_life_stop(c) != TM_OK) comm_remote_abort(c, 1);
    comm_stop(c);
}

static void *thread_main(void *arg) {
    tm_comm *c = arg;
    tm_status rc = comm_start(c);
    tell_opened(c, rc);
    if (rc == TM_OK && c->size > 1) {
        for (tm_comm_op *op; (op = next_op(c)) != NULL;) carry_out(c, op);
        leave(c);
    }
    tell_ended(c->remote);
    return NULL;
}

/* An MPI call blocks for ever, on all ranks that are left, and none can tell another: the first one speaks, then the
 * launcher ends the rest; where it is the first that is missing they speak later. The launcher asks with a signal
 * first, which this program may catch: that is no reason to speak. */
static _Noreturn void give_up(tm_comm *c, const char *why) {
    uint32_t rank = c->size ? c->rank : comm_launch_rank(); /* before MPI has told */
    struct timespec left = {.tv_sec = rank > 0 ? 2 : 0};
    while (nanosleep(&left, &left) != 0) { /* EINTR */
    }
    if (rank == UINT32_MAX)
        tm_say("tidemill: a rank: %s\n", why);
    else
        tm_say("tidemill: rank %u: %s\n", rank, why);
    if (c->at_abort) c->at_abort();
    comm_end_stopped_siblings();
    _exit(1);
}

/* Until *what is true (under the lock). */
static void await(tm_comm *c, const bool *what) {
    comm_remote *m = c->remote;
    char why[160];
    pthread_mutex_lock(&m->lock);
    while (!*what) {
        struct timespec t = in_ms(500);
        pthread_cond_timedwait(&m->finished, &m->lock, &t);
        if (!*what && comm_block_too_long(c, why, sizeof why)) give_up(c, why);
    }
    pthread_mutex_unlock(&m->lock);
}

void comm_remote_wait(tm_comm *c, const tm_comm_op *op) {
    await(c, &op->is_done);
}

void comm_remote_error(tm_comm *c, tm_error *out) {
    pthread_mutex_lock(&c->remote->lock);
    *out = c->remote->error;
    pthread_mutex_unlock(&c->remote->lock);
}

void comm_remote_submit(tm_comm *c, tm_comm_op *op) {
    comm_remote *m = c->remote;
    op->next = NULL;
    pthread_mutex_lock(&m->lock);
    if (m->head)
        m->tail->next = op;
    else
        m->head = op;
    m->tail = op;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

tm_status comm_run_errand(tm_comm *c, tm_status (*run)(tm_comm *c, void *arg), void *arg) {
    comm_errand errand = {run, arg};
    tm_comm_op op = {.code = (tm_comm_code)COMM_ERRAND, .ctx = &errand, .uncounted = true};
    comm_remote_submit(c, &op);
    comm_remote_wait(c, &op);
    return op.status == TM_OK ? TM_OK : tm_comm_op_fail(c, &op);
}

static void init_locks(comm_remote *m) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, &attr);
    pthread_cond_init(&m->finished, &attr);
    pthread_condattr_destroy(&attr);
}

static void free_remote(tm_comm *c) {
    comm_remote *m = c->remote;
    for (unsigned i = 0; i < 2; i++) {
        tm_free(m->lane[i].request);
        tm_free(m->lane[i].expected);
        tm_free(m->lane[i].peer);
    }
    tm_free(m->begin);
    tm_free(m->source);
    pthread_cond_destroy(&m->work);
    pthread_cond_destroy(&m->finished);
    pthread_mutex_destroy(&m->lock);
    tm_free(m);
    c->remote = NULL;
}

/* All ranks fail alike, and the first is to speak. */
static tm_status find_mpi(void) {
    uint32_t rank = comm_launch_rank();
    tm_status rc = comm_mpi_load();
    if (rc != TM_OK) comm_be_quiet(rank != 0 && rank != UINT32_MAX);
    return rc;
}

tm_status comm_remote_open(tm_comm *c, const tm_comm_opts *opts) {
    TM_TRY(find_mpi());
    comm_remote *m = c->remote = tm_calloc(1, sizeof *m);
    if (!m) return tm_nomem(sizeof *m);
    m->opts = opts;
    init_locks(m);
    tm_status started = tm_thread_start(&m->thread, thread_main, c, "the thread that talks to the other ranks");
    if (started != TM_OK) {
        free_remote(c);
        return started;
    }
    await(c, &m->opened);
    m->opts = NULL;
    tm_status rc = m->open_status;
    if (rc == TM_OK && c->size > 1) return TM_OK;
    tm_error why = m->error;
    pthread_join(m->thread, NULL);
    free_remote(c);
    if (rc != TM_OK) tm_error_set(&why);
    return rc;
}

void comm_remote_close(tm_comm *c) {
    comm_remote *m = c->remote;
    pthread_mutex_lock(&m->lock);
    m->closing = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
    await(c, &m->ended);
    pthread_join(m->thread, NULL);
    free_remote(c);
}

_Noreturn void comm_remote_abort(tm_comm *c, int exit_status) {
    int status = exit_status ? exit_status : 1, none = 0;
    fflush(NULL);
    atomic_compare_exchange_strong(&c->remote->abort_status, &none, status);
    if (pthread_equal(pthread_self(), c->remote->thread)) comm_life_tick(c); /* does not return */
    pthread_mutex_lock(&c->remote->lock);
    pthread_cond_signal(&c->remote->work);
    pthread_mutex_unlock(&c->remote->lock);
    struct timespec t = {.tv_sec = 5}; /* the thread ends the process, unless it is stuck in MPI */
    nanosleep(&t, NULL);
    if (c->at_abort) c->at_abort();
    _exit(status);
}

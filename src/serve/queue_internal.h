/* queue: requests on their way from the thread of HTTP to the thread that owns the engine, and their answers back.
 *
 *   thread of HTTP                                     main thread
 *   serve_queue_put  -- waiting -->                    serve_queue_take
 *   serve_job_status, _read  <-- bytes of the answer   serve_job_say
 *   serve_job_wait: woken when there are more
 *   serve_job_leave (the client may have gone) -->     serve_job_is_gone
 *                                                      serve_job_drop
 *
 * A job lives until both have let it go. `request`, `model` and what is beside them are the HTTP thread's until the job is
 * put, the main thread's until it drops it. All else of a job is behind the queue's lock.
 * Waking: whoever clears `asleep` calls `wake`, outside the lock, exactly once; until then what sleeps stays as it is. */
#ifndef TIDEMILL_SERVE_QUEUE_INTERNAL_H
#define TIDEMILL_SERVE_QUEUE_INTERNAL_H

#include "serve/answer_internal.h"

typedef struct serve_job {
    serve_request request;
    char id[SERVE_ID];
    const char *model; /* the name that was asked for; outlives all jobs */
    uint32_t adapter;  /* as tm_request has it */
    uint64_t asked_ns;
    void (*wake)(void *ctx);
    void *wake_ctx;
    /* behind the lock */
    struct serve_job *next; /* of those that wait */
    tm_buf out;
    size_t sent;
    size_t held_bytes;
    int status; /* of HTTP; 0: not known yet */
    unsigned holders;
    bool told; /* status was asked for and known */
    bool ended, gone, asleep;
} serve_job;

typedef struct serve_queue serve_queue;
/* At most `jobs` at a time, which with bodies that are being received hold `bytes` at most. */
tm_status serve_queue_open(serve_queue **out, uint32_t jobs, size_t bytes) TM_MUST_USE;
void serve_queue_close(serve_queue *q); /* NULL is fine; nobody holds a job any more */

/* Room for what is received. False: there is none now. */
bool serve_queue_hold(serve_queue *q, size_t bytes) TM_MUST_USE;
void serve_queue_release(serve_queue *q, size_t bytes);

/* ---- the thread of HTTP --------------------------------------------------------------------------------------------- */

typedef enum serve_put { SERVE_PUT, SERVE_FULL, SERVE_STOPPING } serve_put;
/* Not SERVE_PUT: the job stays the caller's, who frees it by serve_job_free. */
serve_put serve_queue_put(serve_queue *q, serve_job *job) TM_MUST_USE;
void serve_job_free(serve_job *job);
int serve_job_status(serve_queue *q, serve_job *job, bool *gone) TM_MUST_USE;
/* Moves up to `cap` bytes of the answer. 0: there are none now; *ended: nor ever. */
size_t serve_job_read(serve_queue *q, serve_job *job, char *to, size_t cap, bool *ended) TM_MUST_USE;
/* An answer that has ended, whole: the caller's. */
tm_buf serve_job_body(serve_queue *q, serve_job *job) TM_MUST_USE;
void serve_job_wait(serve_queue *q, serve_job *job);    /* wakes at once where there is something */
void serve_job_abandon(serve_queue *q, serve_job *job); /* its client has gone; wakes */
void serve_job_leave(serve_queue *q, serve_job *job);   /* gone, unless it has ended */

/* ---- the main thread ------------------------------------------------------------------------------------------------ */

/* The next one; waits so long for it. NULL: none. */
serve_job *serve_queue_take(serve_queue *q, unsigned wait_ms) TM_MUST_USE;
/* Appends `bytes` (which is emptied) to the answer. `status` counts the first time. */
tm_status serve_job_say(serve_queue *q, serve_job *job, int status, tm_buf *bytes, bool ended) TM_MUST_USE;
void serve_job_fail(serve_queue *q, serve_job *job);                 /* ends it where nothing can be said */
size_t serve_job_unread(serve_queue *q, serve_job *job) TM_MUST_USE; /* bytes that its client has not been sent */
bool serve_job_is_gone(serve_queue *q, serve_job *job) TM_MUST_USE;
void serve_job_drop(serve_queue *q, serve_job *job);
void serve_queue_stop(serve_queue *q); /* nothing is taken any more */
bool serve_queue_stops(serve_queue *q) TM_MUST_USE;
uint32_t serve_queue_jobs(serve_queue *q) TM_MUST_USE; /* that somebody holds */

#endif

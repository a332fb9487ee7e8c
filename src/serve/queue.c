/* The queue between the two threads: one lock for all of it. */
#include "serve/queue_internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

struct serve_queue {
    pthread_mutex_t lock;
    pthread_cond_t more; /* a job waits, or it stops */
    serve_job *first, **last;
    uint32_t jobs, most_jobs;
    size_t bytes, most_bytes;
    bool stops;
};

tm_status serve_queue_open(serve_queue **out, uint32_t jobs, size_t bytes) {
    pthread_condattr_t monotonic;
    serve_queue *q = *out = tm_calloc(1, sizeof *q);
    if (!q) return tm_nomem(sizeof *q);
    q->last = &q->first;
    q->most_jobs = jobs;
    q->most_bytes = bytes;
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&q->more, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return TM_OK;
}

void serve_queue_close(serve_queue *q) {
    if (!q) return;
    TM_ASSERT(q->jobs == 0);
    (void)pthread_cond_destroy(&q->more);
    (void)pthread_mutex_destroy(&q->lock);
    tm_free(q);
}

static void lock(serve_queue *q) {
    (void)pthread_mutex_lock(&q->lock);
}
static void unlock(serve_queue *q) {
    (void)pthread_mutex_unlock(&q->lock);
}

/* Ends a call that may have had something to wake for. */
static void unlock_and_wake(serve_queue *q, serve_job *job, bool wake) {
    void (*call)(void *) = job->wake;
    void *ctx = job->wake_ctx;
    wake = wake && job->asleep;
    if (wake) job->asleep = false;
    unlock(q);
    if (wake) call(ctx);
}

static bool hold(serve_queue *q, size_t bytes) {
    bool room = bytes <= q->most_bytes - q->bytes;
    if (room) q->bytes += bytes;
    return room;
}

bool serve_queue_hold(serve_queue *q, size_t bytes) {
    lock(q);
    bool room = hold(q, bytes);
    unlock(q);
    return room;
}

void serve_queue_release(serve_queue *q, size_t bytes) {
    lock(q);
    q->bytes -= bytes;
    unlock(q);
}

/* ---- the thread of HTTP --------------------------------------------------------------------------------------------- */

static serve_put put(serve_queue *q, serve_job *job) {
    if (q->stops) return SERVE_STOPPING;
    job->held_bytes = serve_request_bytes(&job->request);
    if (q->jobs == q->most_jobs || !hold(q, job->held_bytes)) return SERVE_FULL;
    q->jobs++;
    job->holders = 2;
    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
    (void)pthread_cond_signal(&q->more);
    return SERVE_PUT;
}

serve_put serve_queue_put(serve_queue *q, serve_job *job) {
    lock(q);
    serve_put how = put(q, job);
    unlock(q);
    return how;
}

void serve_job_free(serve_job *job) {
    serve_request_free(&job->request);
    tm_buf_free(&job->out);
    tm_free(job);
}

/* Unlocks. */
static void let_go(serve_queue *q, serve_job *job) {
    bool last = --job->holders == 0;
    if (last) q->jobs--, q->bytes -= job->held_bytes;
    unlock(q);
    if (last) serve_job_free(job);
}

int serve_job_status(serve_queue *q, serve_job *job, bool *gone) {
    lock(q);
    int status = job->status;
    job->told = status != 0;
    *gone = job->gone;
    unlock(q);
    return status;
}

size_t serve_job_read(serve_queue *q, serve_job *job, char *to, size_t cap, bool *ended) {
    lock(q);
    size_t n = (size_t)tm_min_u64(cap, job->out.len - job->sent);
    if (n) memcpy(to, job->out.data + job->sent, n);
    job->sent += n;
    if (job->sent == job->out.len) tm_buf_clear(&job->out), job->sent = 0;
    *ended = n == 0 && (job->ended || job->gone);
    unlock(q);
    return n;
}

tm_buf serve_job_body(serve_queue *q, serve_job *job) {
    lock(q);
    tm_buf body = job->out;
    job->out = (tm_buf){0};
    unlock(q);
    return body;
}

void serve_job_wait(serve_queue *q, serve_job *job) {
    lock(q);
    job->asleep = true;
    bool news = job->status && !job->told;
    unlock_and_wake(q, job, news || job->out.len > job->sent || job->ended || job->gone);
}

void serve_job_abandon(serve_queue *q, serve_job *job) {
    lock(q);
    job->gone = true;
    unlock_and_wake(q, job, true);
}

void serve_job_leave(serve_queue *q, serve_job *job) {
    lock(q);
    job->gone = job->gone || !job->ended;
    job->asleep = false;
    let_go(q, job);
}

/* ---- the main thread ------------------------------------------------------------------------------------------------ */

static void wait_for_more(serve_queue *q, unsigned wait_ms) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)wait_ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!q->first && !q->stops && pthread_cond_timedwait(&q->more, &q->lock, &until) != ETIMEDOUT) {
    }
}

serve_job *serve_queue_take(serve_queue *q, unsigned wait_ms) {
    lock(q);
    if (!q->first && wait_ms) wait_for_more(q, wait_ms);
    serve_job *job = q->first;
    if (job) q->first = job->next;
    if (!q->first) q->last = &q->first;
    unlock(q);
    return job;
}

tm_status serve_job_say(serve_queue *q, serve_job *job, int status, tm_buf *bytes, bool ended) {
    lock(q);
    tm_status rc = bytes->len ? tm_buf_append(&job->out, bytes->data, bytes->len) : TM_OK;
    if (!job->status) job->status = status;
    job->ended = ended;
    unlock_and_wake(q, job, rc == TM_OK);
    tm_buf_clear(bytes);
    return rc;
}

void serve_job_fail(serve_queue *q, serve_job *job) {
    lock(q);
    job->gone = true;
    unlock_and_wake(q, job, true);
}

size_t serve_job_unread(serve_queue *q, serve_job *job) {
    lock(q);
    size_t n = job->out.len - job->sent;
    unlock(q);
    return n;
}

bool serve_job_is_gone(serve_queue *q, serve_job *job) {
    lock(q);
    bool gone = job->gone;
    unlock(q);
    return gone;
}

void serve_job_drop(serve_queue *q, serve_job *job) {
    lock(q);
    let_go(q, job);
}

void serve_queue_stop(serve_queue *q) {
    lock(q);
    q->stops = true;
    (void)pthread_cond_signal(&q->more);
    unlock(q);
}

bool serve_queue_stops(serve_queue *q) {
    lock(q);
    bool stops = q->stops;
    unlock(q);
    return stops;
}

uint32_t serve_queue_jobs(serve_queue *q) {
    lock(q);
    uint32_t n = q->jobs;
    unlock(q);
    return n;
}

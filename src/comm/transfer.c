/* Messages, and waiting for them without burning a core that others compute on. */
#include "comm/remote_internal.h"

#include <sched.h>
#include <time.h>

static tm_status room(const comm_lane *lane) {
    if (lane->n < lane->capacity) return TM_OK;
    return tm_fail(TM_EBUG, "more than %d messages at once", lane->capacity);
}

static void posted(comm_lane *lane, int expected, int peer) {
    lane->expected[lane->n] = expected;
    lane->peer[lane->n] = peer;
    lane->n++;
    lane->left++;
}

static int tag_of(const comm_route *r) {
    return (int)r->group * 4 + r->stage;
}

tm_status comm_post_send(const comm_route *r, uint32_t to, const void *buf, uint64_t bytes) {
    comm_lane *l = r->lane;
    int peer = (int)r->g->world[to];
    if (!bytes && !r->empty) return TM_OK;
    TM_ASSERT(bytes <= COMM_MESSAGE_BYTES);
    TM_TRY(room(l));
    TM_TRY(comm_mpi_isend(buf, (int)bytes, peer, tag_of(r), r->c->remote->data, &l->request[l->n]));
    posted(l, -1, peer);
    comm_count_posted(r->c, r->c->remote->executed, r->g->world[to], bytes);
    return TM_OK;
}

tm_status comm_post_recv(const comm_route *r, uint32_t from, void *buf, uint64_t bytes) {
    comm_lane *l = r->lane;
    int peer = (int)r->g->world[from];
    if (!bytes && !r->empty) return TM_OK;
    TM_ASSERT(bytes <= COMM_MESSAGE_BYTES);
    TM_TRY(room(l));
    TM_TRY(comm_mpi_irecv(buf, (int)bytes, peer, tag_of(r), r->c->remote->data, &l->request[l->n]));
    posted(l, (int)bytes, peer);
    return TM_OK;
}

/* Polls that moved nothing, so far. MPI makes progress only inside its calls, so the first sleeps are short; the
 * longest costs a message 200 us and this thread about 1% of a core. */
static void back_off(unsigned idle) {
    if (idle < 32) {
        sched_yield();
        return;
    }
    unsigned step = idle < 64 ? 20 : idle < 256 ? 50 : 200;
    struct timespec t = {.tv_nsec = (long)step * 1000};
    nanosleep(&t, NULL);
}

static tm_status check_received(const comm_lane *lane, int i, int bytes) {
    if (lane->expected[i] < 0) return TM_OK;
    if (bytes == lane->expected[i]) return TM_OK;
    return tm_fail(TM_EBUG, "rank %d sent %d bytes where %d were expected: the ranks disagree about an operation",
                   lane->peer[i], bytes, lane->expected[i]);
}

/* One pass over a window of the lane's requests; *moved counts completions. */
static tm_status poll_some(comm_lane *lane, int from, int n, int *moved) {
    int index[COMM_MPI_BATCH], bytes[COMM_MPI_BATCH], done;
    TM_TRY(comm_mpi_testsome(n, lane->request + from, &done, index, bytes));
    for (int i = 0; i < done; i++) TM_TRY(check_received(lane, from + index[i], bytes[i]));
    if (done > 0) *moved += done;
    return TM_OK;
}

tm_status comm_wait_lane(tm_comm *c, comm_lane *lane) {
    for (unsigned idle = 0; lane->left > 0;) {
        int moved = 0;
        for (int from = 0; from < lane->n; from += COMM_MPI_BATCH)
            TM_TRY(poll_some(lane, from, lane->n - from < COMM_MPI_BATCH ? lane->n - from : COMM_MPI_BATCH, &moved));
        lane->left -= moved;
        comm_life_tick(c);
        idle = moved ? 0 : idle + 1;
        if (lane->left > 0) back_off(idle);
    }
    lane->n = 0;
    return TM_OK;
}

tm_status comm_wait_request(tm_comm *c, comm_mpi_request *request) {
    int done = 0;
    for (unsigned idle = 0;; idle++) {
        TM_TRY(comm_mpi_test(request, &done));
        comm_life_tick(c);
        if (done) return TM_OK;
        back_off(idle);
    }
}

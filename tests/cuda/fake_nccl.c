#include "fake_nccl.h"

#include "fake_driver.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 4, CHANNEL_BYTES = 32 << 10, MESSAGES = 2 * RANKS, REFUSED = 4 };

typedef struct channel {
    _Atomic uint64_t written, read;
    char bytes[CHANNEL_BYTES];
} channel;
typedef struct meeting {
    atomic_uint here, gone;
    channel way[RANKS][RANKS];
} meeting;
struct ncclComm {
    meeting *at;
    int ranks, me;
    uint64_t sent;
};

typedef struct message {
    channel *way;
    char *p;
    size_t bytes, done;
    bool out;
} message;
typedef struct group {
    message m[MESSAGES];
    unsigned n;
    meeting *at;
    cudaStream_t stream;
} group;
static _Thread_local group *open_group;
static atomic_uint fail_at;

void fake_nccl_fail(unsigned n) {
    fail_at = n;
}

static bool refused(void) {
    unsigned n = fail_at;
    return n > 0 && atomic_fetch_sub(&fail_at, 1) == 1;
}

static const char *text(ncclResult_t rc) {
    return rc == REFUSED ? "as the test wants" : "unknown";
}
static ncclResult_t version(int *out) {
    *out = 22800;
    return ncclSuccess;
}
static ncclResult_t unique_id(ncclUniqueId *id) {
    static atomic_uint n;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/dev/shm/fake-nccl-%d-%u", (int)getpid(), atomic_fetch_add(&n, 1));
    return ncclSuccess;
}

static ncclResult_t init(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    if (ranks > RANKS) return REFUSED;
    int fd = open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(meeting)) != 0) return REFUSED;
    void *p = mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return REFUSED;
    *comm = malloc(sizeof **comm);
    **comm = (struct ncclComm){p, ranks, rank, 0};
    atomic_fetch_add(&(*comm)->at->here, 1);
    while (atomic_load(&(*comm)->at->here) < (unsigned)ranks) (void)sched_yield();
    (void)unlink(id.internal);
    return ncclSuccess;
}
/* Everybody's bytes, a line each, in the file that FAKE_NCCL_TRACE names. */
static void tell(uint64_t sent) {
    const char *name = getenv("FAKE_NCCL_TRACE");
    FILE *f = name ? fopen(name, "a") : NULL;
    if (!f) return;
    fprintf(f, "%llu\n", (unsigned long long)sent);
    fclose(f);
}
static ncclResult_t destroy(ncclComm_t comm) {
    tell(comm->sent);
    (void)munmap(comm->at, sizeof(meeting));
    free(comm);
    return ncclSuccess;
}
/* Its messages end, done or not. The mapping stays, since others may be at it. */
static ncclResult_t give_up(ncclComm_t comm) {
    atomic_store(&comm->at->gone, 1);
    free(comm);
    return ncclSuccess;
}

/* ---- messages ---- */

static bool move(message *m) {
    uint64_t written = atomic_load(&m->way->written), read = atomic_load(&m->way->read);
    uint64_t may = m->out ? CHANNEL_BYTES - (written - read) : written - read, at = m->out ? written : read;
    if (may > m->bytes - m->done) may = m->bytes - m->done;
    for (uint64_t i = 0; i < may; i++) {
        char *there = &m->way->bytes[(at + i) % CHANNEL_BYTES];
        if (m->out)
            *there = m->p[m->done + i];
        else
            m->p[m->done + i] = *there;
    }
    m->done += may;
    atomic_fetch_add(m->out ? &m->way->written : &m->way->read, may);
    return m->done == m->bytes;
}

static void carry(const void *payload) {
    group *g = *(group *const *)payload;
    for (bool all = false; !all && !atomic_load(&g->at->gone);) {
        all = true;
        for (unsigned i = 0; i < g->n; i++) all = move(&g->m[i]) && all;
        if (!all) (void)sched_yield();
    }
    free(g);
}

static ncclResult_t group_start(void) {
    open_group = calloc(1, sizeof *open_group);
    return open_group ? ncclSuccess : REFUSED;
}
static ncclResult_t group_end(void) {
    group *g = open_group;
    open_group = NULL;
    bool any = g->n > 0;
    if (any && fake_push((CUstream)g->stream, carry, &g, sizeof g) != CUDA_SUCCESS) any = false;
    if (!any) free(g);
    return ncclSuccess;
}
static ncclResult_t add(const message *m, ncclComm_t comm, cudaStream_t stream) {
    if (!open_group || open_group->n == MESSAGES || refused()) return REFUSED;
    open_group->m[open_group->n++] = *m;
    open_group->at = comm->at;
    open_group->stream = stream;
    return ncclSuccess;
}
static ncclResult_t send(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream) {
    message m = {.way = &comm->at->way[comm->me][peer], .bytes = count, .out = true};
    comm->sent += count;
    memcpy(&m.p, &from, sizeof from);
    return type == ncclUint8 ? add(&m, comm, stream) : REFUSED;
}
static ncclResult_t recv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    message m = {.way = &comm->at->way[peer][comm->me], .p = to, .bytes = count};
    return type == ncclUint8 ? add(&m, comm, stream) : REFUSED;
}

#ifdef FAKE_LIBRARY
#define EXPORT(name, symbol, params)                                                                                   \
    ncclResult_t symbol params;                                                                                        \
    __attribute__((alias(#name), visibility("default"))) ncclResult_t symbol params;
CUDA_NCCL(EXPORT)
const char *ncclGetErrorString(ncclResult_t rc);
__attribute__((alias("text"), visibility("default"))) const char *ncclGetErrorString(ncclResult_t rc);
#endif

const cuda_nccl *fake_nccl(void) {
    static const cuda_nccl table = {.text = text,
#define FIELD(name, symbol, params) .name = name,
                                    CUDA_NCCL(FIELD)};
    return &table;
}

/* Between the devices of several ranks: slices go from arena to arena, on a stream of their own. NCCL moves bytes
 * between two devices; a sum is ours, over the peers in their order, so that it has the bits that it has on the host.
 *
 *   gather   every peer sends its slice to every other
 *   reduce   by pieces: slice j's piece goes to peer j; what the others sent for mine lies side by side in the
 *            workspace, and one kernel adds it up
 *
 * Connections are made, and NCCL takes its memory, before the arena is reserved: by one exchange of a few bytes. */
#include "device/cuda/exchange.h"

#include "device/cuda/cuda_device.h"

#include <string.h>

enum { FLOATS_ALIGN = 64 };

struct cuda_peers {
    cuda_queue q; /* of the sums */
    cuda_device *c;
    const cuda_nccl *nccl;
    ncclComm_t comm;
    uint32_t n, me;
    CUdeviceptr workspace;
    uint64_t piece; /* elements of a slice that are summed at a time */
    pthread_mutex_t order;
};

static CUstream stream_of(const cuda_peers *p) {
    return p->c->lane[LANE_PEERS].stream;
}

static tm_status check(const cuda_peers *p, ncclResult_t rc, const char *what) {
    return rc == ncclSuccess ? TM_OK
                             : tm_fail(TM_EIO, "cuda: NCCL: %s failed: %s (%u)", what, p->nccl->text(rc), (unsigned)rc);
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

/* Between each two, both ways at once; nothing where there are no bytes, and both know it. */
typedef struct messages {
    const char *(*send)(const void *ctx, uint32_t peer, uint64_t *bytes);
    char *(*recv)(const void *ctx, uint32_t peer, uint64_t *bytes);
    const void *ctx;
} messages;

static ncclResult_t with_peer(const cuda_peers *p, const messages *m, uint32_t peer) {
    uint64_t out = 0, in = 0;
    ncclResult_t rc = ncclSuccess;
    const char *from = m->send(m->ctx, peer, &out);
    char *to = m->recv(m->ctx, peer, &in);
    if (out) rc = p->nccl->send(from, out, ncclUint8, (int)peer, p->comm, stream_of(p));
    if (in && rc == ncclSuccess) rc = p->nccl->recv(to, in, ncclUint8, (int)peer, p->comm, stream_of(p));
    return rc;
}

static tm_status exchange(const cuda_peers *p, const messages *m) {
    ncclResult_t rc = ncclSuccess;
    TM_TRY(check(p, p->nccl->group_start(), "beginning a group"));
    for (uint32_t i = 1; i < p->n && rc == ncclSuccess; i++) rc = with_peer(p, m, (p->me + i) % p->n);
    ncclResult_t ended = p->nccl->group_end();
    TM_TRY(check(p, rc, "a message"));
    return check(p, ended, "ending a group");
}

/* ---- gather ---------------------------------------------------------------------------------------------------- */

typedef struct gathering {
    char *all;
    const tm_device_exchange *x;
    uint32_t me;
} gathering;

static uint64_t begin_of(const tm_device_exchange *x, uint32_t peer) {
    uint64_t begin = 0;
    for (uint32_t i = 0; i < peer; i++) begin += x->counts[i];
    return begin * x->element_bytes;
}
static char *slice(const void *ctx, uint32_t peer, uint64_t *bytes) {
    const gathering *g = ctx;
    *bytes = g->x->counts[peer] * g->x->element_bytes;
    return g->all + begin_of(g->x, peer);
}
static const char *own_slice(const void *ctx, uint32_t peer, uint64_t *bytes) {
    (void)peer;
    return slice(ctx, ((const gathering *)ctx)->me, bytes);
}

static tm_status gather(cuda_peers *p, const tm_device_exchange *x) {
    gathering g = {x->recv, x, p->me};
    uint64_t bytes;
    char *own = slice(&g, p->me, &bytes);
    if (x->send && x->send != own && bytes)
        TM_TRY(cuda_check(
            p->c->v,
            p->c->v->copy_within((CUdeviceptr)(uintptr_t)own, (CUdeviceptr)(uintptr_t)x->send, bytes, stream_of(p)),
            "copying a slice"));
    return exchange(p, &(messages){own_slice, slice, &g});
}

/* ---- reduce ---------------------------------------------------------------------------------------------------- */

typedef struct reducing {
    const cuda_peers *p;
    const tm_device_exchange *x;
    uint64_t at; /* of the piece, in every slice */
} reducing;

static uint64_t piece_of(const reducing *r, uint32_t peer) {
    uint64_t n = r->x->counts[peer];
    return n > r->at ? tm_min_u64(n - r->at, r->p->piece) : 0;
}
static const char *for_peer(const void *ctx, uint32_t peer, uint64_t *bytes) {
    const reducing *r = ctx;
    *bytes = piece_of(r, peer) * sizeof(float);
    return (const char *)r->x->send + begin_of(r->x, peer) + r->at * sizeof(float);
}
static char *from_peer(const void *ctx, uint32_t peer, uint64_t *bytes) {
    const reducing *r = ctx;
    uint32_t place = peer - (peer > r->p->me);
    *bytes = piece_of(r, r->p->me) * sizeof(float);
    return (char *)(uintptr_t)r->p->workspace + place * r->p->piece * sizeof(float);
}

static tm_status add_up(cuda_peers *p, const reducing *r) {
    uint64_t bytes;
    const char *own = for_peer(r, p->me, &bytes);
    p->q.status = TM_OK;
    cuda_queue *before = cuda_use_queue(&p->q);
    cuda_sum_slices((const float *)(const void *)own, (const float *)(uintptr_t)p->workspace, p->piece, p->n, p->me,
                    (float *)r->x->recv + r->at, bytes / sizeof(float));
    (void)cuda_use_queue(before);
    return p->q.status;
}

static tm_status reduce(cuda_peers *p, const tm_device_exchange *x) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->n; i++) most = tm_max_u64(most, x->counts[i]);
    for (uint64_t at = 0; at < most; at += p->piece) {
        reducing r = {p, x, at};
        TM_TRY(exchange(p, &(messages){for_peer, from_peer, &r}));
        TM_TRY(add_up(p, &r));
    }
    return TM_OK;
}

/* ---- on the stream --------------------------------------------------------------------------------------------- */

static tm_status launch(cuda_queue *q, const cuda_launch *l) {
    cuda_peers *p = (cuda_peers *)q; /* its first member */
    void *args = NULL;
    memcpy(&args, &l->args, sizeof args);
    return cuda_check(p->c->v,
                      p->c->v->launch(p->c->function[l->kernel], l->grid[0], l->grid[1], l->grid[2], l->threads, 1, 1,
                                      l->shared_bytes, stream_of(p), &args, NULL),
                      "launching a sum");
}

static tm_status put_on_stream(cuda_peers *p, const tm_device_exchange *x) {
    TM_TRY(cuda_check(p->c->v, p->c->v->context_use(p->c->context), "entering the context"));
    return x->code == TM_DEVICE_ALL_GATHER ? gather(p, x) : reduce(p, x);
}

/* What a failed one left under way waits for peers that will not come. */
static void give_up(cuda_peers *p) {
    if (p->comm) (void)p->nccl->give_up(p->comm);
    p->comm = NULL;
    (void)p->c->v->stream_wait(stream_of(p));
}

tm_status cuda_exchange(tm_device *d, const tm_device_exchange *x, tm_event *e) {
    cuda_device *c = d->own;
    cuda_peers *p = c->peers;
    if (!p) return tm_fail(TM_EBUG, "cuda: an exchange on a device without peers");
    pthread_mutex_lock(&p->order);
    tm_status rc = p->comm ? TM_OK : tm_fail(TM_EIO, "cuda: NCCL: an exchange failed before");
    if (rc == TM_OK) rc = put_on_stream(p, x);
    pthread_mutex_lock(&c->lock);
    if (rc == TM_OK) rc = cuda_take_off(&c->lane[LANE_PEERS], &(flight){.event = e});
    pthread_mutex_unlock(&c->lock);
    if (rc != TM_OK) give_up(p);
    pthread_mutex_unlock(&p->order);
    return rc;
}

/* ---- open and close -------------------------------------------------------------------------------------------- */

static const char *a_byte(const void *ctx, uint32_t peer, uint64_t *bytes) {
    const cuda_peers *p = ctx;
    (void)peer;
    *bytes = 1;
    return (const char *)(uintptr_t)p->workspace;
}
static char *another(const void *ctx, uint32_t peer, uint64_t *bytes) {
    const cuda_peers *p = ctx;
    *bytes = 1;
    return (char *)(uintptr_t)p->workspace + 1 + peer;
}

static tm_status connect(cuda_peers *p, const tm_device_peers *to) {
    ncclUniqueId id;
    memcpy(id.internal, to->id, sizeof id.internal);
    TM_TRY(check(p, p->nccl->init(&p->comm, (int)p->n, id, (int)p->me), "meeting the others"));
    TM_TRY(exchange(p, &(messages){a_byte, another, p}));
    return cuda_check(p->c->v, p->c->v->stream_wait(stream_of(p)), "waiting for the others");
}

tm_status cuda_peers_open(cuda_device *c, const cuda_nccl *nccl, const tm_device_peers *to) {
    if (!nccl) return tm_fail(TM_EUNSUPPORTED, "cuda: no NCCL");
    cuda_peers *p = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    c->peers = p;
    p->c = c;
    p->nccl = nccl;
    p->n = to->n;
    p->me = to->me;
    p->q.launch = launch;
    p->piece = CUDA_PEERS_WORKSPACE / sizeof(float) / (p->n - 1) / FLOATS_ALIGN * FLOATS_ALIGN;
    pthread_mutex_init(&p->order, NULL);
    TM_TRY(cuda_check(c->v, c->v->memory_alloc(&p->workspace, CUDA_PEERS_WORKSPACE), "reserving memory for exchanges"));
    return connect(p, to);
}

void cuda_peers_close(cuda_device *c) {
    cuda_peers *p = c->peers;
    if (!p) return;
    (void)c->v->stream_wait(stream_of(p));
    if (p->comm) (void)p->nccl->destroy(p->comm);
    if (p->workspace) (void)c->v->memory_free(p->workspace);
    pthread_mutex_destroy(&p->order);
    tm_free(p);
    c->peers = NULL;
}

tm_status cuda_peers_id(const cuda_nccl *nccl, uint8_t id[TM_DEVICE_ID_BYTES]) {
    ncclUniqueId made;
    _Static_assert(sizeof made.internal == TM_DEVICE_ID_BYTES, "an id is NCCL's");
    cuda_peers p = {.nccl = nccl};
    TM_TRY(check(&p, nccl->unique_id(&made), "making an id"));
    memcpy(id, made.internal, TM_DEVICE_ID_BYTES);
    return TM_OK;
}

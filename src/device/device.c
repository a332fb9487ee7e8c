/* The table of devices; arguments are checked here, once for all of them. */
#include "device/cuda/sizes.h"
#include "device/device_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const device_kind table[] = {
    {"cpu", {.in_place = true, .alignment = 64, .optimizers = "*"}, &device_cpu},
    {"cpu-arena", {.counts_as_host = true, .alignment = 4096, .optimizers = "*"}, &device_cpu_arena},
    {"cuda",
     {.own_processors = true,
      .untested = true,
      .alignment = 4096,
      .fixed_bytes = (CUDA_CONTEXT_MIB + CUDA_SIDE_MIB) * TM_MIB,
      .peers_bytes = CUDA_NCCL_MIB * TM_MIB + CUDA_PEERS_WORKSPACE,
      .host_bytes = CUDA_HOST_MIB * TM_MIB,
      .sizes = {cuda_norm_workspace, cuda_attention_workspace, CUDA_TOKEN_CHUNK, CUDA_VOCAB_BLOCK},
      .lacks = (1U << TM_KERNEL_FEATURES) - 1,
      .optimizers = "adamw adam"},
     NULL},
};

const char *tm_device_name(unsigned i) {
    return i < TM_COUNT(table) ? table[i].name : NULL;
}

/* "cuda:1" is a cuda. */
static tm_status find(const char *name, const device_kind **out) {
    size_t len = strcspn(name, ":");
    for (size_t i = 0; i < TM_COUNT(table); i++) {
        bool numbered = table[i].ops == NULL; /* there may be several in a machine */
        if (strlen(table[i].name) != len || memcmp(table[i].name, name, len) != 0 || (name[len] && !numbered)) continue;
        *out = &table[i];
        return TM_OK;
    }
    return tm_fail(TM_EINPUT, "there is no device \"%s\"; use \"cpu\", \"cpu-arena\" or \"cuda:0\"", name);
}

tm_status tm_device_known(const char *name, tm_device_traits *out) {
    const device_kind *kind;
    TM_TRY(find(name, &kind));
    *out = kind->traits;
    return TM_OK;
}

static tm_status reach(const char *name, const device_kind **kind, const device_ops **ops) {
    TM_TRY(find(name, kind));
    *ops = (*kind)->ops;
    return *ops ? TM_OK : device_module_load((*kind)->name, ops);
}

tm_status tm_device_count(const char *name, unsigned *n) {
    const device_kind *kind;
    const device_ops *ops;
    *n = 1;
    TM_TRY(reach(name, &kind, &ops));
    return ops->count ? ops->count(n) : TM_OK;
}

tm_status tm_device_look(const char *name, unsigned i, tm_device_info *out) {
    const device_kind *kind;
    const device_ops *ops;
    *out = (tm_device_info){.memory_bytes = 0};
    TM_TRY(reach(name, &kind, &ops));
    if (ops->look) return ops->look(i, out);
    if (i > 0) return tm_fail(TM_EINPUT, "there is one device \"%s\"", kind->name);
    uint64_t free_bytes = tm_mem_available_bytes();
    *out = (tm_device_info){.about = "this machine's processors", .memory_bytes = free_bytes, .free_bytes = free_bytes};
    memcpy(out->name, kind->name, strlen(kind->name) + 1);
    return TM_OK;
}

tm_status tm_device_look_for(const char *name, tm_device_info *out) {
    const char *colon = strchr(name, ':');
    char *end = NULL;
    unsigned long i = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (colon && (*end || colon[1] < '0' || colon[1] > '9')) /* strtoul takes blanks and signs, too */
        return tm_fail(TM_EINPUT, "device \"%.48s\": expected a number behind ':'", name);
    return tm_device_look(name, i < UINT_MAX ? (unsigned)i : UINT_MAX, out);
}

tm_status tm_device_describe(const char *name, char *out, size_t cap) {
    const device_kind *kind;
    const device_ops *ops;
    if (cap) out[0] = 0;
    TM_TRY(reach(name, &kind, &ops));
    return ops->describe ? ops->describe(name, out, cap) : TM_OK;
}

tm_status tm_device_peers_id(const char *name, uint8_t id[TM_DEVICE_ID_BYTES]) {
    const device_kind *kind;
    const device_ops *ops;
    TM_TRY(reach(name, &kind, &ops));
    return ops->peers_id ? ops->peers_id(id)
                         : tm_fail(TM_EUNSUPPORTED, "devices \"%s\" have no way to each other", kind->name);
}

tm_status tm_device_open(tm_device **out, const tm_device_opts *opts) {
    const device_kind *kind;
    const device_ops *ops;
    TM_TRY(reach(opts->name, &kind, &ops));
    if (opts->peers && !ops->exchange)
        return tm_fail(TM_EUNSUPPORTED, "devices \"%s\" have no way to each other", kind->name);
    tm_device *d = tm_calloc(1, sizeof *d);
    if (!d) return tm_nomem(sizeof *d);
    d->ops = ops;
    d->caps.name = kind->name;
    d->caps.traits = kind->traits;
    if (opts->peers) d->peers = opts->peers->n, d->me = opts->peers->me;
    tm_status rc = ops->open(d, opts);
    if (rc == TM_OK)
        *out = d;
    else
        tm_device_close(d);
    return rc;
}

void tm_device_close(tm_device *d) {
    if (!d) return;
    d->ops->close(d);
    tm_free(d);
}

const tm_device_caps *tm_device_get_caps(const tm_device *d) {
    return &d->caps;
}

const tm_kernel_table *tm_device_kernels(const tm_device *d) {
    return d->kernels;
}

void *tm_device_at(const tm_device *d, uint64_t offset) {
    return d->arena + offset;
}

tm_status tm_device_choices(tm_device *d, char *out, size_t cap) {
    if (cap) out[0] = 0;
    return d->ops->choices ? d->ops->choices(d, out, cap) : TM_OK;
}

tm_status tm_device_take_choices(tm_device *d, const char *choices) {
    if (d->ops->take_choices) return d->ops->take_choices(d, choices);
    return *choices ? tm_fail(TM_EINPUT, "device %s chooses no algorithms", d->caps.name) : TM_OK;
}

tm_status tm_device_register(tm_device *d, void *host, uint64_t bytes) {
    return d->ops->pin ? d->ops->pin(d, host, bytes) : TM_OK;
}

void tm_device_unregister(tm_device *d, void *host) {
    if (d->ops->unpin) d->ops->unpin(d, host);
}

void tm_device_get_stats(tm_device *d, tm_device_stats *out) {
    *out = (tm_device_stats){0};
    if (d->ops->stats) d->ops->stats(d, out);
}

static tm_status check_frame(const tm_device *d, uint64_t offset, uint64_t bytes, const char *what) {
    uint64_t align = d->caps.traits.alignment, all = d->caps.arena_bytes;
    if (offset % align == 0 && bytes % align == 0 && offset <= all && bytes <= all - offset) return TM_OK;
    return tm_fail(TM_EBUG,
                   "device %s: %s of %llu bytes at %llu is not in its arena of %llu bytes, or not aligned to %llu",
                   d->caps.name, what, (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)all,
                   (unsigned long long)align);
}

static tm_status check_there(const tm_device *d, const void *p, uint64_t bytes) {
    uint64_t at = (uint64_t)((const char *)p - d->arena), all = d->caps.arena_bytes;
    if (at <= all && bytes <= all - at) return TM_OK;
    return tm_fail(TM_EBUG, "device %s: an exchange of %llu bytes at %llu is not in its arena of %llu bytes",
                   d->caps.name, (unsigned long long)bytes, (unsigned long long)at, (unsigned long long)all);
}

static void begin(tm_event *e) {
    e->status = TM_OK;
    e->complete = false;
}

tm_status tm_device_copy(tm_device *d, const tm_device_transfer *t, tm_event *e) {
    if (!d->ops->copy) return tm_fail(TM_EBUG, "device %s computes in place: nothing is copied", d->caps.name);
    TM_TRY(check_frame(d, t->offset, t->bytes, "a copy"));
    begin(e);
    return d->ops->copy(d, t, e);
}

tm_status tm_device_submit(tm_device *d, const tm_device_op *op, tm_event *e) {
    if (!d->ops->submit) return tm_fail(TM_EBUG, "device %s computes in place: nothing is submitted", d->caps.name);
    for (uint32_t i = 0; i < op->n; i++)
        TM_TRY(check_frame(d, op->frame[i].offset, op->frame[i].bytes, "an operation's frame"));
    begin(e);
    return d->ops->submit(d, op, e);
}

tm_status tm_device_run(tm_device *d, const tm_device_frame *frame, uint32_t n, tm_device_fn fn, void *ctx) {
    tm_event e = {0};
    if (d->caps.traits.in_place) return fn(ctx);
    TM_TRY(tm_device_submit(d, &(tm_device_op){frame, n, fn, ctx}, &e));
    return tm_event_wait(d, &e);
}

tm_status tm_device_exchange_submit(tm_device *d, const tm_device_exchange *x, tm_event *e) {
    if (!d->ops->exchange || d->peers == 0) return tm_fail(TM_EBUG, "device %s has no peers", d->caps.name);
    uint64_t all = 0, own = x->counts[d->me] * x->element_bytes;
    for (uint32_t i = 0; i < d->peers; i++) all += x->counts[i] * x->element_bytes;
    bool gather = x->code == TM_DEVICE_ALL_GATHER;
    if (x->send) TM_TRY(check_there(d, x->send, gather ? own : all));
    TM_TRY(check_there(d, x->recv, gather ? all : own));
    begin(e);
    return d->ops->exchange(d, x, e);
}

bool tm_event_query(tm_device *d, const tm_event *e) {
    return d->ops->query(d, e);
}

tm_status tm_event_wait(tm_device *d, const tm_event *e) {
    d->ops->wait(d, e);
    return e->status;
}

/* The table of devices; arguments are checked here, once for all of them. */
#include "device/device_internal.h"

#include <string.h>

static const device_ops *const table[] = {&device_cpu, &device_cpu_arena};

const char *tm_device_name(unsigned i) {
    return i < TM_COUNT(table) ? table[i]->name : NULL;
}

tm_status tm_device_open(tm_device **out, const tm_device_opts *opts) {
    const device_ops *ops = NULL;
    for (size_t i = 0; i < TM_COUNT(table); i++)
        if (!strcmp(table[i]->name, opts->name)) ops = table[i];
    if (!ops && !strncmp(opts->name, "cuda", 4))
        return tm_fail(TM_EUNSUPPORTED, "device \"%s\" is not in this version; use \"cpu\" or \"cpu-arena\"",
                       opts->name);
    if (!ops) return tm_fail(TM_EINPUT, "there is no device \"%s\"; use \"cpu\" or \"cpu-arena\"", opts->name);
    tm_device *d = tm_calloc(1, sizeof *d);
    if (!d) return tm_nomem(sizeof *d);
    d->ops = ops;
    d->caps.name = ops->name;
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

static tm_status check_frame(const tm_device *d, uint64_t offset, uint64_t bytes, const char *what) {
    uint64_t align = d->caps.alignment, all = d->caps.arena_bytes;
    if (offset % align == 0 && bytes % align == 0 && offset <= all && bytes <= all - offset) return TM_OK;
    return tm_fail(TM_EBUG,
                   "device %s: %s of %llu bytes at %llu is not in its arena of %llu bytes, or not aligned to %u",
                   d->caps.name, what, (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)all,
                   d->caps.alignment);
}

tm_status tm_device_copy(tm_device *d, const tm_device_transfer *t, tm_event *e) {
    if (d->caps.in_place) return tm_fail(TM_EBUG, "device %s computes in place: nothing is copied", d->caps.name);
    TM_TRY(check_frame(d, t->offset, t->bytes, "a copy"));
    e->status = TM_OK;
    e->complete = false;
    return d->ops->copy(d, t, e);
}

tm_status tm_device_run(tm_device *d, const tm_device_frame *frame, uint32_t n, tm_device_fn fn, void *ctx) {
    for (uint32_t i = 0; !d->caps.in_place && i < n; i++)
        TM_TRY(check_frame(d, frame[i].offset, frame[i].bytes, "an operation's frame"));
    return d->ops->run(d, frame, n, fn, ctx);
}

void *tm_device_at(const tm_device *d, uint64_t offset) {
    return d->arena + offset;
}

void tm_device_get_stats(tm_device *d, tm_device_stats *out) {
    *out = (tm_device_stats){0};
    if (d->ops->stats) d->ops->stats(d, out);
}

bool tm_event_query(tm_device *d, const tm_event *e) {
    return d->ops->query(d, e);
}

tm_status tm_event_wait(tm_device *d, const tm_event *e) {
    d->ops->wait(d, e);
    return e->status;
}

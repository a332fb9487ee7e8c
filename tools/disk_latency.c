#include "tools/disk_latency.h"

/* Below 64 ns one bucket a nanosecond; from there 64 buckets for each power of two. */
static unsigned bucket_of(uint64_t ns) {
    if (ns < 64) return (unsigned)ns;
    unsigned log = 63 - (unsigned)__builtin_clzll(ns);
    return (log - 5) * 64 + (unsigned)(ns >> (log - 6)) - 64;
}

/* The bucket's upper end. */
static uint64_t end_of(unsigned bucket) {
    if (bucket < 64) return bucket;
    unsigned log = bucket / 64 + 5;
    return ((uint64_t)(bucket % 64 + 65) << (log - 6)) - 1;
}

void disk_histogram_add(disk_histogram *h, uint64_t ns) {
    h->count[bucket_of(ns)]++;
    h->total++;
    h->most = tm_max_u64(h->most, ns);
}

void disk_histogram_merge(disk_histogram *into, const disk_histogram *from) {
    for (unsigned i = 0; i < TM_COUNT(into->count); i++) into->count[i] += from->count[i];
    into->total += from->total;
    into->most = tm_max_u64(into->most, from->most);
}

/* The least duration that at least `share` of all do not exceed. */
static double percentile(const disk_histogram *h, double share) {
    double needed = share * (double)h->total;
    uint64_t seen = 0;
    for (unsigned i = 0; i < TM_COUNT(h->count); i++) {
        seen += h->count[i];
        if (h->count[i] && (double)seen >= needed) return 1e-9 * (double)tm_min_u64(end_of(i), h->most);
    }
    return 0;
}

disk_latency disk_histogram_read(const disk_histogram *h) {
    return (disk_latency){percentile(h, 0.5), percentile(h, 0.9), percentile(h, 0.99), percentile(h, 0.999),
                          1e-9 * (double)h->most};
}

/* The key-value cache of generation as state: of each unit that has keys and values of its own a run of objects.
 *
 * Where there are offload paths they are pages. A plan reads and writes all pages of a unit that does not stay in memory,
 * around the operation that uses them; a pass makes those of the transfers that it has use for:
 *
 *     read    the page was written before, and the pass reads or writes some of it
 *     written the pass writes some of it
 *
 * So what a pass moves grows with what its rows hold, not with what they may hold. Bytes of a page that nobody has written
 * are whatever its frame held; attention looks at none of them. */
#include "job/job.h"

#include <string.h>

enum { PAGES_A_ROW = 16, PAGES_A_UNIT = 64 };
enum { READ = 1, WRITE = 2, ON_DISK = 4 };

/* Device kernels that are not the host's know no rings. */
uint32_t job_kv_positions(const tm_job *job, uint32_t unit) {
    const job_opts *o = &job->opts;
    if (job->tiers.traits.own_processors) return o->kv_capacity;
    return tm_model_kv_positions(job->model, unit, o->kv_capacity, o->kv_chunk);
}

/* ---- pages ------------------------------------------------------------------------------------------------------ */

static const tm_unit *cache_of(const tm_job *job, uint32_t unit) {
    return tm_model_unit(job->model, tm_model_unit(job->model, unit)->kv_unit);
}

static uint64_t row_bytes(const tm_job *job, uint32_t unit) {
    return (uint64_t)cache_of(job, unit)->kv_bytes * job_kv_positions(job, unit);
}

static uint64_t unit_bytes(const tm_job *job, uint32_t unit) {
    return row_bytes(job, unit) * job->opts.kv_rows;
}

/* A row's newest tokens are written with the page that they are in, and each page is planned with. */
static uint64_t page_bytes(const tm_job *job, uint32_t unit) {
    uint64_t least = tm_max_u64(row_bytes(job, unit) / PAGES_A_ROW, unit_bytes(job, unit) / PAGES_A_UNIT);
    return tm_round_up(tm_max_u64(least, 1), TM_PAGE_BYTES);
}

static bool is_paged(const tm_job *job) {
    return job->opts.n_paths > 0 && !job->opts.device;
}

uint32_t job_kv_pages(const tm_job *job, uint32_t unit) {
    uint64_t page = page_bytes(job, unit);
    return is_paged(job) ? (uint32_t)((unit_bytes(job, unit) + page - 1) / page) : 1;
}

tm_status kv_add_state(tm_job *job, uint32_t *bundle, uint32_t *objects) {
    uint32_t units = tm_model_units(job->model);
    job->kv = tm_malloc(sizeof *job->kv * units);
    if (!job->kv) return tm_nomem(sizeof *job->kv * units);
    for (uint32_t u = 0; u < units; u++) {
        const tm_unit *unit = tm_model_unit(job->model, u);
        bool own = unit->kv_bytes > 0, paged = is_paged(job);
        uint64_t left = own ? unit_bytes(job, u) : 0, page = paged ? page_bytes(job, u) : left;
        job->kv[u] = own ? tm_layout_objects(job->layout) : TM_NO_OBJECT;
        if (unit->kv_unit < u) job->kv[u] = job->kv[unit->kv_unit];
        tm_object o = {
            .kind = paged ? TM_KIND_KV_CACHE : TM_KIND_SCRATCH, .unit = u, .bundle = *bundle, .pageable = paged};
        for (; left > 0; left -= o.bytes, ++*objects) {
            o.bytes = tm_min_u64(left, page);
            (void)tm_layout_object(job->layout, &o);
        }
        *bundle += own;
    }
    return TM_OK;
}

/* ---- a pass ----------------------------------------------------------------------------------------------------- */

tm_status kv_open_pages(tm_job *job) {
    if (!job->kv || !is_paged(job)) return TM_OK;
    job->kv_first = tm_layout_objects(job->layout);
    for (uint32_t u = 0; u < tm_model_units(job->model); u++)
        if (job->kv[u] < job->kv_first) job->kv_first = job->kv[u];
    uint32_t n = tm_layout_objects(job->layout) - job->kv_first; /* nothing comes behind them */
    job->kv_page = tm_calloc((size_t)n + 1, 1);
    return job->kv_page ? TM_OK : tm_nomem(n);
}

void kv_begin_pass(tm_job *job) {
    uint32_t n = job->kv_page ? tm_layout_objects(job->layout) - job->kv_first : 0;
    for (uint32_t i = 0; i < n; i++) job->kv_page[i] = job->kv_page[i] & (WRITE | ON_DISK) ? ON_DISK : 0;
}

/* Entries [first, end) of a row, none of which goes over its end. */
static void use_entries(tm_job *job, uint32_t unit, uint32_t row, uint64_t first, uint64_t end, uint8_t how) {
    uint64_t page = page_bytes(job, unit), at = row * row_bytes(job, unit), each = cache_of(job, unit)->kv_bytes;
    uint8_t *flags = job->kv_page + (job->kv[unit] - job->kv_first);
    for (uint64_t p = (at + first * each) / page; first < end && p <= (at + end * each - 1) / page; p++)
        flags[p] |= how;
}

/* Positions [first, end) of a row, of which a ring has the last ones. */
static void use_positions(tm_job *job, uint32_t unit, uint32_t row, uint64_t first, uint64_t end, uint8_t how) {
    uint64_t all = job_kv_positions(job, unit);
    if (end - first >= all) first = 0, end = all;
    uint64_t from = first % all, to = from + (end - first);
    use_entries(job, unit, row, from, tm_min_u64(to, all), how);
    if (to > all) use_entries(job, unit, row, 0, to - all, how);
}

void kv_use_row(tm_job *job, const kv_row *r) {
    bool copies = r->from != UINT32_MAX;
    for (uint32_t u = 0; job->kv_page && u < tm_model_units(job->model); u++) {
        if (tm_model_unit(job->model, u)->kv_bytes == 0) continue;
        uint64_t read = tm_model_kv_first(job->model, u, r->position);
        if (copies) use_positions(job, u, r->from, 0, r->position, READ);
        use_positions(job, u, r->row, copies ? 0 : read, r->position, copies ? WRITE : READ);
        use_positions(job, u, r->row, r->position, (uint64_t)r->position + r->seq, WRITE);
    }
}

bool kv_page_moves(void *ctx, uint32_t object, bool write) {
    const tm_job *job = ctx;
    uint8_t how = job->kv_page[object - job->kv_first];
    return write ? how & WRITE : how & ON_DISK && how & (READ | WRITE);
}

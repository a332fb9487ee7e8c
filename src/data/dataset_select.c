/* Which of the samples that were scanned an epoch has: so many of a group of files, and what is held out or the rest. The
 * index is thinned where it lies; samples that come more than once have their rows again at its end. */
#include "data/dataset_internal.h"

#include <inttypes.h>

typedef struct selection {
    tm_dataset *ds;
    const tm_data_files *files;
    const tm_dataset_opts *opts;
    const uint64_t *end; /* [n_groups] samples scanned up to the end of each */
    const data_marks *marks;
    uint64_t *wanted;   /* [n_groups] by an epoch, held out ones included */
    uint64_t *kept;     /* [n_groups] distinct samples */
    uint64_t distinct;  /* of all groups, before any is held out; two of a record are one */
    uint64_t held;      /* of them */
    uint64_t chosen;    /* of them, so far */
    bool took, is_held; /* the sample before */
    uint64_t out;       /* samples in the new index */
} selection;

static uint64_t size_of(const selection *s, uint32_t g) {
    return s->end[g] - (g ? s->end[g - 1] : 0);
}

static uint64_t distinct_of(const selection *s, uint32_t g) {
    return tm_min_u64(s->wanted[g], size_of(s, g));
}

/* A group's share of an epoch. Of files that were read in part, that part of it. */
static uint64_t wanted_of(const selection *s, uint32_t g) {
    const tm_data_group *group = &s->files->group[g];
    double n = group->samples ? (double)group->samples * s->ds->part : group->weight * (double)size_of(s, g);
    if (!size_of(s, g)) return 0;
    return tm_max_u64((uint64_t)(n + 0.5), 1);
}

/* Is number x of n among the first m of their order by `what`? */
static bool is_among(const selection *s, const char *what, uint32_t g, uint64_t n, uint64_t m, uint64_t x) {
    uint64_t key = tm_hash64(what, 9, s->opts->seed + g);
    if (m >= n) return true;
    return data_permuted(key, data_half_bits(n), n, 0, x) < m;
}

/* Is it taken along with the sample before, of whose record it is? */
static bool goes_along(const selection *s, uint64_t sample) {
    return s->took && data_store_get(&s->ds->store, sample * s->ds->rows_each)->second;
}

static bool is_taken(const selection *s, uint32_t g, uint64_t i) {
    return is_among(s, "data.take", g, size_of(s, g), distinct_of(s, g), i);
}

static uint64_t count_along(selection *s) {
    uint64_t n = 0;
    for (uint32_t g = 0; g < s->files->n_groups && s->ds->kind == TM_ROWS_LABELLED; g++)
        for (uint64_t i = 0; i < size_of(s, g); i++) {
            bool taken = is_taken(s, g, i);
            n += taken && goes_along(s, s->end[g] - size_of(s, g) + i);
            s->took = taken;
        }
    s->took = false;
    return n;
}

static tm_status count_held(selection *s) {
    double share = s->opts->held_out;
    for (uint32_t g = 0; g < s->files->n_groups; g++) s->distinct += distinct_of(s, g);
    if (share == 0) return TM_OK;
    uint64_t samples = s->distinct;
    s->held = tm_max_u64((uint64_t)((share < 1 ? share * (double)samples : share) + 0.5), 1);
    s->distinct -= count_along(s);
    if (s->distinct < samples)
        s->held = tm_max_u64((uint64_t)((double)s->held * (double)s->distinct / (double)samples + 0.5), 1);
    if (s->held < s->distinct) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: to hold out %" PRIu64 " of its %" PRIu64 " samples leaves none to train on",
                   s->files->name, s->held, s->distinct);
}

static void keep(selection *s, uint64_t sample) {
    data_store *store = &s->ds->store;
    uint32_t each = s->ds->rows_each;
    for (uint32_t r = 0; r < each; r++)
        *data_store_at(store, s->out * each + r) = *data_store_get(store, sample * each + r);
    s->out++;
    s->ds->fingerprint = tm_hash64(&sample, sizeof sample, s->ds->fingerprint);
    if (sample >= s->marks->n) return;
    tm_dataset_counts *c = &s->ds->counts;
    c->truncated += s->marks->of[sample].truncated;
    c->split += s->marks->of[sample].split;
    c->identical += s->marks->of[sample].identical;
}

static void thin(selection *s, uint32_t g) {
    uint64_t n = size_of(s, g), first = s->end[g] - n, before = s->out;
    for (uint64_t i = 0; i < n; i++) {
        bool taken = is_taken(s, g, i);
        if (taken && !goes_along(s, first + i)) {
            s->is_held = s->held && is_among(s, "data.held", 0, s->distinct, s->held, s->chosen);
            s->chosen++;
        }
        if (taken && s->is_held == s->opts->is_held_out) keep(s, first + i);
        s->took = taken;
    }
    s->kept[g] = s->out - before;
}

static tm_status add_again(selection *s, uint64_t sample) {
    uint32_t each = s->ds->rows_each;
    for (uint32_t r = 0; r < each; r++)
        TM_TRY(data_store_add(&s->ds->store, *data_store_get(&s->ds->store, sample * each + r)));
    s->ds->fingerprint = tm_hash64(&sample, sizeof sample, s->ds->fingerprint);
    return TM_OK;
}

/* A group that has fewer samples than an epoch wants of it: whole rounds, then some. `first`: of it in the new index. */
static tm_status repeat(selection *s, uint32_t g, uint64_t first) {
    uint64_t n = s->kept[g], all = distinct_of(s, g);
    if (!n || s->wanted[g] <= all) return TM_OK;
    uint64_t more = (uint64_t)((double)s->wanted[g] * (double)n / (double)all + 0.5) - n;
    for (uint64_t round = 0; round < more / n; round++)
        for (uint64_t i = 0; i < n; i++) TM_TRY(add_again(s, first + i));
    for (uint64_t i = 0; i < n; i++)
        if (is_among(s, "data.more", g, n, more % n, i) && more % n) TM_TRY(add_again(s, first + i));
    return TM_OK;
}

static void count_again(tm_dataset *ds) {
    tm_dataset_counts *c = &ds->counts;
    c->samples = ds->store.n_rows / ds->rows_each;
    c->tokens = c->label_tokens = c->desirable = c->longest = 0;
    for (uint64_t i = 0; i < ds->store.n_rows; i++) {
        const data_row *row = data_store_get(&ds->store, i);
        data_count_row(ds, row->n_tokens, row);
        c->desirable += ds->kind == TM_ROWS_LABELLED && row->desirable;
    }
}

static bool is_all(const selection *s) {
    for (uint32_t g = 0; g < s->files->n_groups; g++)
        if (s->wanted[g] != size_of(s, g)) return false;
    return s->opts->held_out == 0;
}

/* Which samples are of which group: all, or those that were kept. */
static tm_status remember(const selection *s, bool all) {
    uint32_t n = s->files->n_groups;
    uint64_t *end = s->ds->group_end = tm_malloc(n * sizeof *end);
    if (!end) return tm_nomem(n * sizeof *end);
    for (uint32_t g = 0; g < n; g++) end[g] = all ? s->end[g] : (g ? end[g - 1] : 0) + s->kept[g];
    s->ds->n_groups = n;
    return TM_OK;
}

static tm_status apply(selection *s) {
    uint64_t first = 0;
    TM_TRY(count_held(s));
    TM_TRY(data_store_expand(&s->ds->store));
    s->ds->counts.truncated = s->ds->counts.split = s->ds->counts.identical = 0;
    for (uint32_t g = 0; g < s->files->n_groups; g++) thin(s, g);
    data_store_truncate(&s->ds->store, s->out * s->ds->rows_each);
    for (uint32_t g = 0; g < s->files->n_groups && !s->opts->is_held_out; g++) {
        TM_TRY(repeat(s, g, first));
        first += s->kept[g];
    }
    count_again(s->ds);
    return s->ds->counts.samples == s->out ? remember(s, false) : TM_OK;
}

bool data_selects(const tm_data_files *files, const tm_dataset_opts *opts) {
    for (uint32_t g = 0; g < files->n_groups; g++)
        if (files->group[g].samples || files->group[g].weight != 1) return true;
    return opts->held_out > 0;
}

tm_status data_select(data_scan *scan, const tm_data_files *files) {
    selection s = {.ds = scan->ds, .files = files, .opts = scan->opts, .end = scan->end, .marks = &scan->marks};
    tm_status rc = TM_OK;
    s.wanted = tm_calloc(files->n_groups, sizeof *s.wanted);
    s.kept = tm_calloc(files->n_groups, sizeof *s.kept);
    if (!s.wanted || !s.kept) TM_GO(tm_nomem(files->n_groups * sizeof *s.kept));
    for (uint32_t g = 0; g < files->n_groups; g++) s.wanted[g] = wanted_of(&s, g);
    rc = is_all(&s) ? remember(&s, true) : apply(&s);
done:
    TM_FREE_ALL(s.wanted, s.kept);
    return rc;
}

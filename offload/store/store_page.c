/* One transfer: where it goes, and the checksums of its pages. */
#include "offload/store/store_internal.h"

#include <string.h>

enum {
    PAGES_A_LOOK = 16,    /* 0.1 ms: so often the disk is looked after while a read is checked */
    PAGES_FOR_A_TEAM = 8, /* of fewer a team begins and ends no sooner than one thread is done */
    VISITS_FOR_ALL = 8,   /* so many reads check all pages of a file that nobody seems to have written to */
};

/* Identity goes in as the seed: the same bytes at another place or of another time do not pass. */
uint64_t page_hash_of(uint64_t key, uint32_t kind, uint32_t number, uint32_t page, uint64_t generation,
                      const void *bytes, uint64_t n) {
    uint64_t id[4] = {key, (uint64_t)kind << 32 | number, page, generation};
    return tm_hash64(bytes, n, tm_hash64(id, sizeof id, 0));
}

static uint64_t page_hash(const tm_store *s, const tm_object *o, uint32_t number, uint32_t page, uint64_t generation,
                          const char *frame) {
    uint64_t at = (uint64_t)page * TM_PAGE_BYTES;
    TM_ASSERT(at < o->frame_bytes);
    uint64_t n = tm_min_u64(TM_PAGE_BYTES, o->frame_bytes - at);
    return page_hash_of(s->key, (uint32_t)o->kind, number, page, generation, frame + at, n);
}

static const tm_object *target_object(const tm_store *s, const store_target *t) {
    TM_ASSERT(t->object & TM_TEMP_BIT ? (t->object & ~TM_TEMP_BIT) < t->plan->n_temp : t->object < s->layout->n);
    return t->object & TM_TEMP_BIT ? &t->plan->temp[t->object & ~TM_TEMP_BIT] : &s->layout->object[t->object];
}

/* What an object is called in checksums: state by its number within its kind, which no residency, update variant or
 * order of objects changes; a temporary by its id. */
static uint32_t number_of(const tm_store *s, uint32_t object) {
    return object & TM_TEMP_BIT ? object : s->extent[object].number;
}

static uint64_t *expected_checksums(tm_store *s, const store_target *t, uint64_t *generation) {
    if (t->object & TM_TEMP_BIT) {
        *generation = 0;
        return t->temp_checksum + t->plan->extent[t->object & ~TM_TEMP_BIT].first_page;
    }
    *generation = s->extent[t->object].generation;
    TM_ASSERT(s->extent[t->object].slot != NO_SLOT || target_object(s, t)->kind == TM_KIND_FROZEN);
    return s->checksum + s->extent[t->object].first_page;
}

static void aim_request(tm_store *s, const store_target *t, tm_io_req *req) {
    const tm_object *o = target_object(s, t);
    const object_home *home = t->object & TM_TEMP_BIT ? NULL : layout_home(s->layout, t->object);
    TM_ASSERT(o->frame_bytes > 0 && o->frame_bytes % TM_FRAME_ALIGN == 0);
    if (home) {
        store_aim_home(s, home, req);
        return;
    }
    if (t->object & TM_TEMP_BIT) {
        uint64_t address = t->plan->extent[t->object & ~TM_TEMP_BIT].offset;
        const spill_segment *segment = spill_at(&s->spill_map, address);
        req->file = s->spill[segment->path];
        req->offset = segment->offset + address % s->spill_map.segment_bytes;
    } else {
        const state_extent *x = &s->extent[t->object];
        req->file = s->file[x->path][o->kind];
        TM_ASSERT(x->path < s->n_paths && x->slot < slots_of(o, s->slots));
        req->offset = x->offset + x->slot * o->frame_bytes;
    }
    req->len = o->frame_bytes;
}

/* Of one thread. */
static void count_checksum(tm_store *s, uint64_t start_ns) {
    (void)__atomic_add_fetch(&s->checksum_ns, tm_now_ns() - start_ns, __ATOMIC_RELAXED);
}

static void count_checksummed(tm_store *s, uint64_t bytes) {
    (void)__atomic_add_fetch(&s->checksum_bytes, bytes, __ATOMIC_RELAXED);
}

/* A core takes in some 10 GB/s of what is not in its caches: whoever has a team waits a part of that with all of it. */
static void hash_pages(tm_store *s, const store_target *t, const void *frame, bool team) {
    const tm_object *o = target_object(s, t);
    uint64_t generation;
    uint64_t *sum = expected_checksums(s, t, &generation);
    uint32_t number = number_of(s, t->object), pages = pages_of(o->frame_bytes);
#pragma omp parallel if (team && pages >= PAGES_FOR_A_TEAM)
    {
        uint64_t t0 = tm_now_ns();
#pragma omp for schedule(static) nowait
        for (uint32_t page = 0; page < pages; page++) sum[page] = page_hash(s, o, number, page, generation, frame);
        count_checksum(s, t0);
    }
    count_checksummed(s, o->frame_bytes);
}

void store_seal(tm_store *s, const store_target *t, void *frame, bool team) {
    const tm_object *o = target_object(s, t);
    TM_ASSERT(o->bytes <= o->frame_bytes);
    memset((char *)frame + o->bytes, 0, o->frame_bytes - o->bytes); /* no stranger's bytes in the padding */
    if (!(t->object & TM_TEMP_BIT)) {
        state_extent *x = &s->extent[t->object];
        if (x->slot == NO_SLOT)
            x->slot = 0;
        else if (slots_of(o, s->slots) == 2 && x->slot == x->committed)
            x->slot ^= 1;
        TM_ASSERT(x->slot < slots_of(o, s->slots) && (slots_of(o, s->slots) == 1 || x->slot != x->committed));
        x->generation = tm_max_u64(x->generation, (uint64_t)s->incarnation << 32) + 1;
    }
    if (!s->unchecked) {
        hash_pages(s, t, frame, team);
        return;
    }
    uint64_t generation;
    memset(expected_checksums(s, t, &generation), 0, pages_of(o->frame_bytes) * sizeof(uint64_t));
}

void store_aim_write(tm_store *s, const store_target *t, void *frame, tm_io_req *req) {
    aim_request(s, t, req);
    TM_ASSERT(req->file.name && (uintptr_t)frame % TM_FRAME_ALIGN == 0);
    req->op = TM_IO_WRITE;
    req->buf = frame;
}

void store_prepare_write(tm_store *s, const store_target *t, void *frame, tm_io_req *req) {
    store_seal(s, t, frame, false);
    store_aim_write(s, t, frame, req);
}

static void ask_for_sight(frozen_sight *x, const tm_io_file *file) {
    uint64_t stamp = tm_io_file_stamp(file);
    if (x->under_way++ == 0)
        x->asked = stamp, x->mixed = false;
    else
        x->mixed |= stamp != x->asked;
}

/* Which pages of a read are checked: those from `first` on, every step-th. */
typedef struct page_choice {
    uint32_t first, step;
} page_choice;
static page_choice choose_pages(const tm_store *s, const store_target *t) {
    if (target_object(s, t)->kind != TM_KIND_FROZEN) return (page_choice){0, 1};
    const frozen_sight *x = &s->extent[t->object].sight;
    if (x->whole == 0 || x->mixed || x->whole != x->asked) return (page_choice){0, 1};
    return (page_choice){x->visits % VISITS_FOR_ALL, VISITS_FOR_ALL};
}

static void note_sight(tm_store *s, const store_target *t) {
    if (target_object(s, t)->kind != TM_KIND_FROZEN) return;
    frozen_sight *x = &s->extent[t->object].sight;
    TM_ASSERT(x->under_way > 0);
    if (!x->mixed) x->whole = x->asked;
    x->under_way--, x->visits++;
}

tm_status store_prepare_read(tm_store *s, const store_target *t, void *frame, tm_io_req *req) {
    const tm_object *o = target_object(s, t);
    if (!(t->object & TM_TEMP_BIT) && s->extent[t->object].slot == NO_SLOT && o->kind != TM_KIND_FROZEN)
        return tm_fail(TM_EBUG, "%s object %u is read before it was written", tm_kind_name(target_object(s, t)->kind),
                       t->object);
    TM_ASSERT((uintptr_t)frame % TM_FRAME_ALIGN == 0);
    aim_request(s, t, req);
    req->op = TM_IO_READ;
    req->buf = frame;
    if (o->kind == TM_KIND_FROZEN) ask_for_sight(&s->extent[t->object].sight, &req->file);
    if (req->len < o->frame_bytes)
        memset((char *)frame + req->len, 0, o->frame_bytes - req->len); /* behind a file's end */
    return TM_OK;
}

/* A page of a file that is not ours: as it was when it was first read. */
static bool is_first_sight(const tm_object *o, uint64_t *sum, uint64_t seen) {
    if (o->kind != TM_KIND_FROZEN || *sum != 0) return false;
    *sum = seen;
    return true;
}

static tm_status page_changed(tm_store *s, const store_target *t, const tm_io_req *req, uint32_t page) {
    tm_io_req where;
    if (!req) aim_request(s, t, &where);
    if (!req) req = &where;
    unsigned long long at = req->offset + (uint64_t)page * TM_PAGE_BYTES;
    if (target_object(s, t)->kind == TM_KIND_FROZEN)
        return tm_fail(
            TM_ECORRUPT,
            "%s: the 64 KiB page at offset %llu is not what this run read there before: the file was changed, "
            "or the disk is failing; start again with a model that stays as it is",
            req->file.name, at);
    return tm_fail(TM_ECORRUPT, "%s: the 64 KiB page at offset %llu is not what was written there; check the disk",
                   req->file.name, at);
}

tm_status store_check_read(tm_store *s, const store_target *t, const void *frame, const tm_io_req *req) {
    if (s->unchecked) return TM_OK;
    const tm_object *o = target_object(s, t);
    uint64_t generation;
    uint64_t *sum = expected_checksums(s, t, &generation);
    uint32_t number = number_of(s, t->object), pages = pages_of(o->frame_bytes), checked = 0;
    page_choice choice = choose_pages(s, t);
    uint64_t t0 = tm_now_ns();
    for (uint32_t page = choice.first; page < pages; page += choice.step) {
        if (req && checked++ % PAGES_A_LOOK == PAGES_A_LOOK - 1) tm_io_advance(s->io);
        uint64_t seen = page_hash(s, o, number, page, generation, frame);
        if (seen == sum[page] || (s->alternate && sum[page] == 0) || is_first_sight(o, &sum[page], seen)) continue;
        return page_changed(s, t, req, page);
    }
    note_sight(s, t);
    count_checksum(s, t0);
    count_checksummed(s, o->frame_bytes / choice.step);
    return TM_OK;
}

bool store_unchanged(const tm_store *s, uint32_t object, const void *frame) {
    TM_ASSERT(object < s->layout->n);
    const tm_object *o = &s->layout->object[object];
    const state_extent *x = &s->extent[object];
    if (x->slot == NO_SLOT || s->unchecked || s->alternate) return false;
    for (uint32_t page = 0; page < pages_of(o->frame_bytes); page++)
        if (page_hash(s, o, x->number, page, x->generation, frame) != s->checksum[x->first_page + page]) return false;
    return true;
}

uint64_t store_checksum_ns(const tm_store *s) {
    return __atomic_load_n(&s->checksum_ns, __ATOMIC_RELAXED);
}

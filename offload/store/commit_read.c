/* State read out of a commit by those who lay it out otherwise: other ranks, another strategy. */
#include "io/file/file.h"
#include "offload/store/store_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct tm_commit_reader {
    tm_commit *c;
    char directory[PATH_MAX];
    tm_file *in[STORE_PATHS][TM_KINDS];
    uint32_t *object[TM_KINDS]; /* by number within the kind */
    uint32_t n[TM_KINDS];
    uint64_t *first_page; /* by object */
    char *page;
};

static tm_status index_objects(tm_commit_reader *r) {
    uint64_t page = 0;
    r->first_page = tm_calloc((size_t)r->c->n_objects + 1, sizeof *r->first_page);
    if (!r->first_page) return tm_nomem(r->c->n_objects * sizeof *r->first_page);
    for (tm_kind k = 0; k < TM_KINDS; k++) {
        if (!tm_kind_get(k)->committed) continue;
        r->object[k] = tm_calloc((size_t)r->c->n_objects + 1, sizeof *r->object[k]);
        if (!r->object[k]) return tm_nomem(r->c->n_objects * sizeof *r->object[k]);
    }
    for (uint32_t i = 0; i < r->c->n_objects; i++) {
        manifest_object o;
        TM_TRY(manifest_read_object(r->c, i, &o));
        if (o.number != r->n[o.kind])
            return tm_fail(TM_ECORRUPT, "%s: the manifest's objects are out of order", r->directory);
        r->object[o.kind][r->n[o.kind]++] = i;
        r->first_page[i] = page;
        page += pages_of(o.bytes);
    }
    return TM_OK;
}

tm_status tm_commit_reader_open(tm_commit_reader **out, const char *directory) {
    tm_status rc;
    tm_commit_reader *r = tm_calloc(1, sizeof *r);
    if (!r) return tm_nomem(sizeof *r);
    snprintf(r->directory, sizeof r->directory, "%s", directory);
    TM_GO(tm_commit_look(&r->c, directory));
    r->page = tm_malloc(TM_PAGE_BYTES);
    if (!r->page) TM_GO(tm_nomem(TM_PAGE_BYTES));
    TM_GO(index_objects(r));
    *out = r;
done:
    if (rc != TM_OK) tm_commit_reader_close(r);
    return rc;
}

void tm_commit_reader_close(tm_commit_reader *r) {
    if (!r) return;
    for (int p = 0; p < STORE_PATHS; p++)
        for (int k = 0; k < TM_KINDS; k++) tm_file_close(r->in[p][k]);
    for (int k = 0; k < TM_KINDS; k++) tm_free(r->object[k]);
    tm_free(r->first_page);
    tm_free(r->page);
    tm_commit_close(r->c);
    tm_free(r);
}

const tm_commit *tm_commit_reader_commit(const tm_commit_reader *r) {
    return r->c;
}

static tm_status open_file(tm_commit_reader *r, const manifest_object *o) {
    TM_ASSERT(o->path < STORE_PATHS && o->kind < TM_KINDS);
    char path[PATH_MAX + 32];
    if (r->in[o->path][o->kind]) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", o->path ? commit_path(r->c, o->path) : r->directory,
             tm_kind_name((tm_kind)o->kind));
    return tm_file_open(&r->in[o->path][o->kind], path);
}

/* Page `page` of the object into r->page, checked. */
static tm_status read_page(tm_commit_reader *r, const manifest_object *o, uint32_t object, uint32_t page) {
    uint64_t at = (uint64_t)page * TM_PAGE_BYTES, n = tm_min_u64(TM_PAGE_BYTES, o->bytes - at), want;
    uint64_t from = o->offset + o->slot * o->bytes + at;
    tm_file *in = r->in[o->path][o->kind];
    TM_ASSERT(in && at < o->bytes);
    TM_TRY(tm_file_read_at(in, from, r->page, n));
    tm_file_forget(in, from, n);
    TM_TRY(manifest_read_pages(r->c, r->first_page[object] + page, 1, &want));
    if (page_hash_of(r->c->key, o->kind, o->number, page, o->generation, r->page, n) == want) return TM_OK;
    return tm_fail(TM_ECORRUPT, "%s: the 64 KiB page at offset %llu is not what was written there; check the disk",
                   tm_file_path(in), (unsigned long long)from);
}

tm_status tm_commit_read(tm_commit_reader *r, tm_kind kind, uint32_t number, uint64_t offset, void *buf,
                         uint64_t bytes) {
    manifest_object o;
    if ((int)kind >= TM_KINDS || number >= r->n[kind])
        return tm_fail(TM_ECORRUPT, "%s: the commit has no %s %u", r->directory, tm_kind_name(kind), number);
    uint32_t object = r->object[kind][number];
    TM_TRY(manifest_read_object(r->c, object, &o));
    if (offset + bytes > o.bytes)
        return tm_fail(TM_ECORRUPT, "%s: %s %u ends before byte %llu", r->directory, tm_kind_name(kind), number,
                       (unsigned long long)(offset + bytes));
    TM_TRY(open_file(r, &o));
    for (char *to = buf; bytes > 0;) {
        uint64_t skip = offset % TM_PAGE_BYTES, n = tm_min_u64(TM_PAGE_BYTES - skip, bytes);
        TM_TRY(read_page(r, &o, object, (uint32_t)(offset / TM_PAGE_BYTES)));
        memcpy(to, r->page + skip, n);
        to += n;
        offset += n;
        bytes -= n;
    }
    return TM_OK;
}

static tm_status prove_object(tm_commit_reader *r, uint32_t object) {
    manifest_object o;
    TM_TRY(manifest_read_object(r->c, object, &o));
    TM_TRY(open_file(r, &o));
    for (uint32_t p = 0; p < pages_of(o.bytes); p++) {
        TM_TRY(tm_stop_check());
        TM_TRY(read_page(r, &o, object, p));
    }
    return TM_OK;
}

/* Its file is there and as long as it has to be, both slots of the object included. */
static tm_status find_object(tm_commit_reader *r, uint32_t object) {
    TM_ASSERT(object < r->c->n_objects);
    manifest_object o;
    TM_TRY(manifest_read_object(r->c, object, &o));
    const char *directory = o.path ? commit_path(r->c, o.path) : r->directory, *name = tm_kind_name((tm_kind)o.kind);
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (!r->in[o.path][o.kind] && !tm_path_exists(path))
        return tm_fail(TM_ECORRUPT, "%s: is missing, the commit needs it", path);
    TM_TRY(open_file(r, &o));
    uint64_t bytes = tm_file_size(r->in[o.path][o.kind]), want = o.offset + r->c->slots * o.bytes;
    if (bytes >= want) return TM_OK;
    return tm_fail(TM_ECORRUPT, "%s: holds %llu bytes, the commit needs %llu; the file was cut off", path,
                   (unsigned long long)bytes, (unsigned long long)want);
}

static tm_status of_each(const char *directory, tm_status (*look)(tm_commit_reader *, uint32_t)) {
    tm_commit_reader *r;
    tm_status rc = TM_OK;
    TM_TRY(tm_commit_reader_open(&r, directory));
    for (uint32_t i = 0; rc == TM_OK && i < r->c->n_objects; i++) rc = look(r, i);
    tm_commit_reader_close(r);
    return rc;
}

tm_status tm_commit_present(const char *directory) {
    return of_each(directory, find_object);
}

tm_status tm_commit_prove(const char *directory) {
    return of_each(directory, prove_object);
}

/* The manifest of a commit, written: of a store, or of a copy. */
#include "io/file/file.h"
#include "offload/store/manifest_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* its state lies here, not on a heap that no seam sees */
#include <xxhash.h>

/* After the first failure nothing more is written. */
typedef struct sink {
    tm_io_atomic *manifest;
    XXH3_state_t hash;
    uint64_t bytes;
    tm_status status;
} sink;

static void put_bytes(sink *k, const void *bytes, size_t n) {
    TM_ASSERT(bytes || n == 0);
    XXH3_128bits_update(&k->hash, bytes, n);
    k->bytes += n;
    if (k->status == TM_OK) k->status = tm_io_atomic_append(k->manifest, bytes, n);
}

/* The other directories by their full names: the commit may be resumed from another folder. */
static tm_status join_paths(tm_io_run *const *runs, unsigned n, tm_buf *out) {
    char full[PATH_MAX];
    for (unsigned i = 0; i < n; i++) {
        const char *path = tm_io_run_path(runs[i]);
        if (realpath(path, full)) path = full;
        TM_TRY(tm_buf_append(out, path, strlen(path) + 1));
    }
    return TM_OK;
}

static tm_status put_objects(const tm_store *s, sink *k, manifest_head *head) {
    for (uint32_t i = 0; i < s->layout->n; i++) {
        const tm_object *o = &s->layout->object[i];
        const state_extent *x = &s->extent[i];
        if (!in_commits(o)) continue;
        if (k) {
            if (x->slot == NO_SLOT) return tm_fail(TM_EBUG, "%s object %u was never written", tm_kind_name(o->kind), i);
            manifest_object m = {.kind = (uint8_t)o->kind,
                                 .path = x->path,
                                 .slot = x->slot,
                                 .number = x->number,
                                 .offset = x->offset,
                                 .bytes = o->frame_bytes,
                                 .generation = x->generation};
            put_bytes(k, &m, sizeof m);
        }
        head->n_objects++;
        head->n_pages += pages_of(o->frame_bytes);
    }
    return TM_OK;
}

static void put_pages(const tm_store *s, sink *k) {
    for (uint32_t i = 0; i < s->layout->n; i++) {
        const tm_object *o = &s->layout->object[i];
        if (in_commits(o))
            put_bytes(k, s->checksum + s->extent[i].first_page, pages_of(o->frame_bytes) * sizeof *s->checksum);
    }
}

static tm_status put_hash(sink *k) {
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(&k->hash));
    put_bytes(k, sum.digest, sizeof sum.digest);
    return k->status;
}

static tm_status write_all(const tm_store *s, sink *k, const tm_commit_opts *opts, const tm_buf *paths) {
    manifest_head head = {.version = VERSION,
                          .page_bytes = TM_PAGE_BYTES,
                          .key = s->key,
                          .step = opts->step,
                          .incarnation = s->incarnation,
                          .n_paths = s->n_paths,
                          .slots = s->slots,
                          .info_bytes = (uint32_t)opts->info_bytes,
                          .paths_bytes = (uint32_t)paths->len};
    manifest_head again = {.n_objects = 0};
    memcpy(head.magic, MANIFEST_MAGIC, sizeof head.magic);
    TM_TRY(put_objects(s, NULL, &head)); /* counts */
    put_bytes(k, &head, sizeof head);
    put_bytes(k, opts->info, opts->info_bytes);
    put_bytes(k, paths->data, paths->len);
    TM_TRY(put_objects(s, k, &again));
    TM_ASSERT(again.n_objects == head.n_objects && again.n_pages == head.n_pages);
    put_pages(s, k);
    return put_hash(k);
}

static tm_status put_range(sink *k, const tm_commit *c, uint64_t at, uint64_t end) {
    TM_ASSERT(at <= end);
    char chunk[4096];
    while (at < end) {
        size_t n = tm_min_u64(sizeof chunk, end - at);
        TM_TRY(tm_file_read_at(c->file, at, chunk, n));
        put_bytes(k, chunk, n);
        at += n;
    }
    return TM_OK;
}

static tm_status copy_all(const tm_commit *c, sink *k, const tm_buf *paths, unsigned n, manifest_move *move) {
    TM_ASSERT(n > 0 && n <= STORE_PATHS && move->slots >= 1 && move->slots <= 2);
    manifest_head head;
    manifest_object m;
    TM_TRY(tm_file_read_at(c->file, 0, &head, sizeof head));
    head.n_paths = n;
    head.slots = move->slots;
    head.paths_bytes = (uint32_t)paths->len;
    put_bytes(k, &head, sizeof head);
    TM_TRY(put_range(k, c, sizeof head, sizeof head + head.info_bytes));
    put_bytes(k, paths->data, paths->len);
    for (uint32_t i = 0; i < c->n_objects; i++) {
        TM_TRY(manifest_read_object(c, i, &m));
        move->object(move, &m);
        put_bytes(k, &m, sizeof m);
    }
    TM_TRY(put_range(k, c, c->pages_at, c->pages_at + c->n_pages * sizeof(uint64_t)));
    return put_hash(k);
}

tm_status manifest_copy(const tm_commit *c, tm_io_atomic *d, tm_io_run *const *runs, unsigned n, manifest_move *move) {
    tm_buf paths = {0};
    sink k = {.manifest = d};
    XXH3_128bits_reset(&k.hash);
    tm_status rc = join_paths(runs, n, &paths);
    if (rc == TM_OK) rc = copy_all(c, &k, &paths, n, move);
    tm_buf_free(&paths);
    return rc;
}

tm_status manifest_write(const tm_store *s, tm_io_atomic *d, const tm_commit_opts *opts, uint64_t *bytes) {
    tm_buf paths = {0};
    sink k = {.manifest = d};
    XXH3_128bits_reset(&k.hash);
    TM_ASSERT(opts->info_bytes <= MAX_INFO);
    tm_status rc = join_paths(s->run, s->n_paths, &paths);
    if (rc == TM_OK) rc = write_all(s, &k, opts, &paths);
    tm_buf_free(&paths);
    *bytes = k.bytes;
    return rc;
}

/* The manifest of a commit: what is written, and what is believed when it is read again. Layout in README.md. */
#include "offload/store_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "manifests are little-endian; this machine is not");

enum { VERSION = 1, MAX_INFO = 1 << 20, MAX_OBJECTS = 1 << 26, HASH_BYTES = 16, LOCK_WAIT_MS = 10000 };
static const char magic[16] = "tidemill commit";

typedef struct manifest_head {
    char magic[16];
    uint32_t version, page_bytes;
    uint64_t key, step;
    uint32_t incarnation, n_paths, slots, info_bytes;
    uint32_t n_objects, paths_bytes;
    uint64_t n_pages;
} manifest_head;
_Static_assert(sizeof(manifest_head) == 72 && sizeof(manifest_object) == 32, "no padding in the file");

/* ---- writing --------------------------------------------------------------------------------------------------- */

typedef struct sink {
    tm_io_draft *draft;
    XXH3_state_t *hash;
    uint64_t bytes;
} sink;

static tm_status put(sink *k, const void *bytes, size_t n) {
    XXH3_128bits_update(k->hash, bytes, n);
    k->bytes += n;
    return tm_io_draft_append(k->draft, bytes, n);
}

/* The other directories by their full names: the commit may be resumed from another folder. */
static tm_status join_paths(const tm_store *s, tm_buf *out) {
    char full[PATH_MAX];
    for (unsigned i = 0; i < s->n_paths; i++) {
        const char *path = tm_io_run_path(s->run[i]);
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
            TM_TRY(put(k, &m, sizeof m));
        }
        head->n_objects++;
        head->n_pages += pages_of(o->frame_bytes);
    }
    return TM_OK;
}

static tm_status put_pages(const tm_store *s, sink *k) {
    for (uint32_t i = 0; i < s->layout->n; i++) {
        const tm_object *o = &s->layout->object[i];
        if (!in_commits(o)) continue;
        TM_TRY(put(k, s->checksum + s->extent[i].first_page, pages_of(o->frame_bytes) * sizeof *s->checksum));
    }
    return TM_OK;
}

static tm_status put_hash(sink *k) {
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(k->hash));
    return put(k, sum.digest, sizeof sum.digest);
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
    memcpy(head.magic, magic, sizeof magic);
    TM_TRY(put_objects(s, NULL, &head)); /* counts */
    TM_TRY(put(k, &head, sizeof head));
    TM_TRY(put(k, opts->info, opts->info_bytes));
    TM_TRY(put(k, paths->data, paths->len));
    TM_TRY(put_objects(s, k, &again));
    TM_TRY(put_pages(s, k));
    return put_hash(k);
}

/* ---- copying --------------------------------------------------------------------------------------------------- */

static tm_status put_range(sink *k, const tm_commit *c, uint64_t at, uint64_t end) {
    char chunk[4096];
    while (at < end) {
        size_t n = tm_min_u64(sizeof chunk, end - at);
        TM_TRY(tm_file_read_at(c->file, at, chunk, n));
        TM_TRY(put(k, chunk, n));
        at += n;
    }
    return TM_OK;
}

static tm_status copy_all(const tm_commit *c, sink *k, const char *path, manifest_move *move) {
    manifest_head head;
    manifest_object m;
    TM_TRY(tm_file_read_at(c->file, 0, &head, sizeof head));
    head.n_paths = 1;
    head.slots = move->slots;
    head.paths_bytes = (uint32_t)strlen(path) + 1;
    TM_TRY(put(k, &head, sizeof head));
    TM_TRY(put_range(k, c, sizeof head, sizeof head + head.info_bytes));
    TM_TRY(put(k, path, head.paths_bytes));
    for (uint32_t i = 0; i < c->n_objects; i++) {
        TM_TRY(manifest_read_object(c, i, &m));
        move->object(move, &m);
        TM_TRY(put(k, &m, sizeof m));
    }
    TM_TRY(put_range(k, c, c->pages_at, c->pages_at + c->n_pages * sizeof(uint64_t)));
    return put_hash(k);
}

tm_status manifest_copy(const tm_commit *c, tm_io_draft *d, const char *path, manifest_move *move) {
    sink k = {.draft = d, .hash = XXH3_createState()};
    if (!k.hash) return tm_nomem(576);
    XXH3_128bits_reset(k.hash);
    tm_status rc = copy_all(c, &k, path, move);
    XXH3_freeState(k.hash);
    return rc;
}

tm_status manifest_write(const tm_store *s, tm_io_draft *d, const tm_commit_opts *opts, uint64_t *bytes) {
    tm_buf paths = {0};
    sink k = {.draft = d, .hash = XXH3_createState()};
    if (!k.hash) return tm_nomem(576);
    XXH3_128bits_reset(k.hash);
    TM_ASSERT(opts->info_bytes <= MAX_INFO);
    tm_status rc = join_paths(s, &paths);
    if (rc == TM_OK) rc = write_all(s, &k, opts, &paths);
    XXH3_freeState(k.hash);
    tm_buf_free(&paths);
    *bytes = k.bytes;
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static tm_status damaged(const tm_commit *c, const char *what) {
    return tm_fail(TM_ECORRUPT, "%s: the commit is damaged: %s", tm_file_path(c->file), what);
}

/* Nothing in the file is looked at before this. */
static tm_status check_hash(const tm_commit *c) {
    enum { CHUNK = 64 << 10 };
    uint64_t size = tm_file_size(c->file);
    XXH128_canonical_t want;
    if (size < sizeof(manifest_head) + HASH_BYTES) return damaged(c, "it is cut off");
    XXH3_state_t *hash = XXH3_createState();
    char *chunk = tm_malloc(CHUNK);
    tm_status rc = hash && chunk ? TM_OK : tm_nomem(CHUNK);
    if (rc == TM_OK) XXH3_128bits_reset(hash);
    for (uint64_t at = 0; rc == TM_OK && at < size - HASH_BYTES;) {
        size_t n = tm_min_u64(CHUNK, size - HASH_BYTES - at);
        rc = tm_file_read_at(c->file, at, chunk, n);
        if (rc == TM_OK) XXH3_128bits_update(hash, chunk, n);
        at += n;
    }
    if (rc == TM_OK) rc = tm_file_read_at(c->file, size - HASH_BYTES, want.digest, HASH_BYTES);
    if (rc == TM_OK && !XXH128_isEqual(XXH3_128bits_digest(hash), XXH128_hashFromCanonical(&want)))
        rc = damaged(c, "its checksum is wrong");
    tm_free(chunk);
    XXH3_freeState(hash);
    return rc;
}

static tm_status read_head(tm_commit *c, manifest_head *h) {
    TM_TRY(tm_file_read_at(c->file, 0, h, sizeof *h));
    if (memcmp(h->magic, magic, sizeof magic) != 0) return damaged(c, "it does not begin as one");
    if (h->version != VERSION)
        return tm_fail(TM_EUNSUPPORTED, "%s: format %u; this version reads %d", tm_file_path(c->file), h->version,
                       VERSION);
    if (h->page_bytes != TM_PAGE_BYTES || h->n_paths == 0 || h->n_paths > STORE_PATHS || h->slots < 1 || h->slots > 2 ||
        h->info_bytes > MAX_INFO || h->n_objects > MAX_OBJECTS || h->paths_bytes > STORE_PATHS * PATH_MAX ||
        h->n_pages > UINT32_MAX)
        return damaged(c, "a count is out of range");
    c->objects_at = sizeof *h + (uint64_t)h->info_bytes + h->paths_bytes;
    c->pages_at = c->objects_at + (uint64_t)h->n_objects * sizeof(manifest_object);
    if (c->pages_at + h->n_pages * sizeof(uint64_t) + HASH_BYTES != tm_file_size(c->file))
        return damaged(c, "its size is not what it says");
    c->slots = h->slots;
    c->key = h->key;
    c->step = h->step;
    c->incarnation = h->incarnation;
    c->named_paths = h->n_paths;
    c->n_objects = h->n_objects;
    c->n_pages = h->n_pages;
    return TM_OK;
}

static tm_status read_info(tm_commit *c, const manifest_head *h) {
    tm_buf text = {0};
    tm_status rc = tm_buf_reserve(&text, (size_t)h->info_bytes + 1);
    if (rc == TM_OK) rc = tm_file_read_at(c->file, sizeof *h, text.data, h->info_bytes);
    if (rc == TM_OK) rc = tm_json_parse(&c->info, text.data, h->info_bytes, tm_file_path(c->file), 0, 0);
    tm_buf_free(&text);
    return rc;
}

static tm_status read_paths(tm_commit *c, const manifest_head *h) {
    unsigned n = 0;
    TM_TRY(tm_buf_reserve(&c->paths, (size_t)h->paths_bytes + 1));
    TM_TRY(tm_file_read_at(c->file, sizeof *h + h->info_bytes, c->paths.data, h->paths_bytes));
    c->paths.len = h->paths_bytes;
    c->paths.data[c->paths.len] = 0;
    for (size_t i = 0; i < c->paths.len; i++) n += c->paths.data[i] == 0;
    return n == h->n_paths ? TM_OK : damaged(c, "a directory is missing");
}

const char *commit_path(const tm_commit *c, unsigned i) {
    const char *path = c->paths.data;
    while (i-- > 0) path += strlen(path) + 1;
    return path;
}

/* The first directory is the one we are in; the others are where they were. */
static tm_status open_others(tm_commit *c, unsigned n) {
    for (unsigned i = 1; i < n; i++) {
        TM_TRY(tm_io_run_reopen(&c->run[i], commit_path(c, i), true, LOCK_WAIT_MS));
        c->n_paths = i + 1;
    }
    return TM_OK;
}

static tm_status read_manifest(tm_commit *c, const char *dir, manifest_head *h) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/" MANIFEST_NAME, dir);
    if (n < 0 || n >= PATH_MAX || !tm_path_exists(path))
        return tm_fail(TM_EINPUT, "%s: holds no commit; its run ended before the first one", dir);
    TM_TRY(tm_file_open_in(&c->file, dir, MANIFEST_NAME));
    TM_TRY(check_hash(c));
    TM_TRY(read_head(c, h));
    TM_TRY(read_paths(c, h));
    return read_info(c, h);
}

static tm_status open_commit(tm_commit *c, const char *dir, bool own) {
    manifest_head h;
    if (!own) return read_manifest(c, dir, &h);
    TM_TRY(tm_io_run_reopen(&c->run[0], dir, true, LOCK_WAIT_MS));
    c->n_paths = 1;
    TM_TRY(read_manifest(c, dir, &h));
    return open_others(c, h.n_paths);
}

static tm_status open_new(tm_commit **out, const char *dir, bool own) {
    *out = NULL;
    tm_commit *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    tm_status rc = open_commit(c, dir, own);
    if (rc != TM_OK) {
        tm_commit_close(c);
        return rc;
    }
    *out = c;
    return TM_OK;
}

tm_status tm_commit_open(tm_commit **out, const char *dir) {
    return open_new(out, dir, true);
}

tm_status tm_commit_look(tm_commit **out, const char *dir) {
    return open_new(out, dir, false);
}

void tm_commit_close(tm_commit *c) {
    if (!c) return;
    for (unsigned i = 0; i < c->n_paths; i++) tm_io_run_close(c->run[i]); /* NULL where only looked at */
    tm_buf_free(&c->paths);
    tm_file_close(c->file);
    tm_json_free(c->info);
    tm_free(c);
}

tm_status tm_commit_remove(tm_commit *c) {
    tm_status rc = tm_io_run_unlink(c->run[0], MANIFEST_NAME); /* as in tm_store_remove */
    for (unsigned i = 0; i < c->n_paths; i++) rc = tm_first(rc, tm_io_run_remove(c->run[i]));
    c->n_paths = 0;
    tm_commit_close(c);
    return rc;
}

uint64_t tm_commit_step(const tm_commit *c) {
    return c->step;
}

const tm_json *tm_commit_info(const tm_commit *c) {
    return tm_json_root(c->info);
}

tm_status manifest_read_object(const tm_commit *c, uint32_t i, manifest_object *m) {
    TM_TRY(tm_file_read_at(c->file, c->objects_at + (uint64_t)i * sizeof *m, m, sizeof *m));
    bool good = m->kind <= TM_KIND_EXP_AVG_SQ && m->path < c->named_paths && m->slot < c->slots && m->bytes > 0 &&
                m->bytes <= TM_GIB && m->bytes % TM_FRAME_ALIGN == 0 && m->offset % TM_FRAME_ALIGN == 0 &&
                m->offset <= INT64_MAX - 2 * TM_GIB;
    return good ? TM_OK : damaged(c, "an object lies out of bounds");
}

tm_status manifest_read_pages(const tm_commit *c, uint64_t first, uint64_t n, uint64_t *out) {
    if (first + n > c->n_pages) return damaged(c, "checksums are missing");
    return tm_file_read_at(c->file, c->pages_at + first * sizeof *out, out, n * sizeof *out);
}

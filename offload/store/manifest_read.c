/* The manifest of a commit, read: what is believed of it, and when. */
#include "io/file/file.h"
#include "offload/store/manifest_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* its state lies on the stack */
#include <xxhash.h>

static tm_status damaged_commit(const tm_commit *c, const char *what) {
    return tm_fail(TM_ECORRUPT, "%s: the commit is damaged: %s", tm_file_path(c->file), what);
}

/* Nothing in the file is looked at before this. */
static tm_status check_hash(const tm_commit *c) {
    enum { CHUNK = 64 << 10 };
    uint64_t size = tm_file_size(c->file);
    XXH128_canonical_t want;
    if (size < sizeof(manifest_head) + HASH_BYTES) return damaged_commit(c, "it is cut off");
    XXH3_state_t hash;
    tm_status rc;
    char *chunk = tm_malloc(CHUNK);
    if (!chunk) return tm_nomem(CHUNK);
    XXH3_128bits_reset(&hash);
    for (uint64_t at = 0, n; at < size - HASH_BYTES; at += n) {
        n = tm_min_u64(CHUNK, size - HASH_BYTES - at);
        TM_GO(tm_file_read_at(c->file, at, chunk, n));
        XXH3_128bits_update(&hash, chunk, n);
    }
    TM_GO(tm_file_read_at(c->file, size - HASH_BYTES, want.digest, HASH_BYTES));
    if (!XXH128_isEqual(XXH3_128bits_digest(&hash), XXH128_hashFromCanonical(&want)))
        rc = damaged_commit(c, "its checksum is wrong");
done:
    tm_free(chunk);
    return rc;
}

static tm_status read_head(tm_commit *c, manifest_head *h) {
    TM_TRY(tm_file_read_at(c->file, 0, h, sizeof *h));
    if (memcmp(h->magic, MANIFEST_MAGIC, sizeof h->magic) != 0) return damaged_commit(c, "it does not begin as one");
    if (h->version != VERSION)
        return tm_fail(TM_EUNSUPPORTED, "%s: format %u; this version reads %d", tm_file_path(c->file), h->version,
                       VERSION);
    if (h->page_bytes != TM_PAGE_BYTES || h->n_paths == 0 || h->n_paths > STORE_PATHS || h->slots < 1 || h->slots > 2 ||
        h->info_bytes > MAX_INFO || h->n_objects > MAX_OBJECTS || h->paths_bytes > STORE_PATHS * PATH_MAX ||
        h->n_pages > UINT32_MAX)
        return damaged_commit(c, "a count is out of range");
    c->objects_at = sizeof *h + (uint64_t)h->info_bytes + h->paths_bytes;
    c->pages_at = c->objects_at + (uint64_t)h->n_objects * sizeof(manifest_object);
    if (c->pages_at + h->n_pages * sizeof(uint64_t) + HASH_BYTES != tm_file_size(c->file))
        return damaged_commit(c, "its size is not what it says");
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
    return n == h->n_paths ? TM_OK : damaged_commit(c, "a directory is missing");
}

const char *commit_path(const tm_commit *c, unsigned i) {
    TM_ASSERT(i < c->named_paths);
    const char *path = c->paths.data;
    while (i-- > 0) path += strlen(path) + 1;
    return path;
}

/* Why is known; that it was the manifest which named it, and what is left to do, is not. */
static tm_status refuse_other(const tm_commit *c) {
    const tm_error why = *tm_error_get();
    tm_error_clear();
    return tm_fail(TM_EINPUT,
                   "%s (the manifest in %s names it for a part of the state); where that cannot be set right, --resume "
                   "never starts over, another output_dir leaves it alone",
                   why.text, commit_path(c, 0));
}

/* The first directory is the one we are in; the others are where they were, and have to be the claim's as well. */
static tm_status open_others(tm_commit *c, unsigned n, const tm_io_claim *claim) {
    for (unsigned i = 1; i < n; i++) {
        tm_status rc = tm_io_run_reopen(&c->run[i], commit_path(c, i), claim, true, LOCK_WAIT_MS);
        if (rc == TM_EINPUT) return refuse_other(c);
        TM_TRY(rc);
        c->n_paths = i + 1;
    }
    return TM_OK;
}

static tm_status read_manifest(tm_commit *c, const char *dir, const char *name, manifest_head *h) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_MAX || !tm_path_exists(path))
        return tm_fail(TM_EINPUT, "%s: holds no commit; its run ended before the first one", dir);
    TM_TRY(tm_file_open_in(&c->file, dir, name));
    TM_TRY(check_hash(c));
    TM_TRY(read_head(c, h));
    TM_TRY(read_paths(c, h));
    return read_info(c, h);
}

static tm_status open_commit(tm_commit *c, const char *dir, bool own, const tm_io_claim *claim) {
    manifest_head h;
    if (!own) return read_manifest(c, dir, MANIFEST_NAME, &h);
    TM_TRY(tm_io_run_reopen(&c->run[0], dir, claim, true, LOCK_WAIT_MS));
    c->n_paths = 1;
    TM_TRY(read_manifest(c, dir, MANIFEST_NAME, &h));
    return open_others(c, h.n_paths, claim);
}

static tm_status open_new(tm_commit **out, const char *dir, bool own, const tm_io_claim *claim) {
    *out = NULL;
    tm_commit *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    tm_status rc = open_commit(c, dir, own, claim);
    if (rc != TM_OK) {
        tm_commit_close(c);
        return rc;
    }
    *out = c;
    return TM_OK;
}

tm_status tm_commit_open(tm_commit **out, const char *dir, const tm_io_claim *claim) {
    return open_new(out, dir, true, claim);
}

tm_status tm_commit_look(tm_commit **out, const char *dir) {
    return open_new(out, dir, false, NULL);
}

/* The lock is held from the look at it to the rename. */
tm_status tm_commit_roll_forward(const char *dir, uint64_t step, const tm_io_claim *claim) {
    char from[PATH_MAX], to[PATH_MAX];
    manifest_head h;
    tm_status rc;
    tm_commit *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    TM_GO(tm_io_run_reopen(&c->run[0], dir, claim, true, LOCK_WAIT_MS));
    c->n_paths = 1;
    TM_GO(read_manifest(c, dir, MANIFEST_NAME ".next", &h));
    if (c->step != step)
        TM_GO(tm_fail(TM_ECORRUPT, "%s: the commit prepared there is of step %llu, not %llu", dir,
                      (unsigned long long)c->step, (unsigned long long)step));
    snprintf(from, sizeof from, "%s/" MANIFEST_NAME ".next", dir);
    snprintf(to, sizeof to, "%s/" MANIFEST_NAME, dir);
    TM_GO(tm_rename_path(from, to));
    rc = tm_io_run_sync(c->run[0]);
done:
    tm_commit_close(c);
    return rc;
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
    TM_ASSERT(c->n_paths > 0);
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
    TM_ASSERT(i < c->n_objects);
    TM_TRY(tm_file_read_at(c->file, c->objects_at + (uint64_t)i * sizeof *m, m, sizeof *m));
    bool good = m->kind < TM_KINDS && tm_kind_get(m->kind)->committed && m->path < c->named_paths &&
                m->slot < c->slots && m->bytes > 0 && m->bytes <= TM_GIB && m->bytes % TM_FRAME_ALIGN == 0 &&
                m->offset % TM_FRAME_ALIGN == 0 && m->offset <= INT64_MAX - 2 * TM_GIB;
    return good ? TM_OK : damaged_commit(c, "an object lies out of bounds");
}

tm_status manifest_read_pages(const tm_commit *c, uint64_t first, uint64_t n, uint64_t *out) {
    if (n > c->n_pages || first > c->n_pages - n) return damaged_commit(c, "checksums are missing");
    return tm_file_read_at(c->file, c->pages_at + first * sizeof *out, out, n * sizeof *out);
}

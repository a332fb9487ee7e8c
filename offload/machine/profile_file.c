/* The profile's file and its entries in memory.
 *
 *     {"version": 1,
 *      "disks": [{"disk": "HOST MAJOR:MINOR FILESYSTEM", "read_bps": ..., ...}],
 *      "seconds": {"BACKEND": {"KEY": seconds, ...}}}
 *
 * Within a back-end, and back-ends by their last one, what was put last comes last. */
#include "io/file/file.h"
#include "offload/machine/machine_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, MOST_BYTES = 16 << 20 };

static bool is_entry(const profile_entry *e, const char *backend, const char *key) {
    if (!e->backend != !backend) return false;
    return (!backend || !strcmp(e->backend, backend)) && !strcmp(e->key, key);
}

static uint32_t slot_of(const profile_entries *e, const char *backend, const char *key) {
    uint64_t h = tm_hash64(key, strlen(key), backend ? tm_hash64(backend, strlen(backend), 1) : 0);
    uint32_t i = (uint32_t)h & (e->slots - 1);
    while (e->slot[i] && !is_entry(&e->item[e->slot[i] - 1], backend, key)) i = (i + 1) & (e->slots - 1);
    return i;
}

profile_entry *profile_find(const profile_entries *e, const char *backend, const char *key) {
    if (!e->slots) return NULL;
    uint32_t i = e->slot[slot_of(e, backend, key)];
    return i ? &e->item[i - 1] : NULL;
}

/* At most half of the slots are taken. */
static tm_status grow_entries(profile_entries *e) {
    uint32_t cap = e->cap ? 2 * e->cap : 64;
    profile_entry *item = tm_realloc(e->item, sizeof *item * cap);
    if (!item) return tm_nomem(sizeof *item * cap);
    e->item = item;
    uint32_t *slot = tm_calloc(2 * (size_t)cap, sizeof *slot);
    if (!slot) return tm_nomem(sizeof *slot * 2 * cap);
    tm_free(e->slot);
    e->slot = slot, e->slots = 2 * cap, e->cap = cap;
    for (uint32_t i = 0; i < e->n; i++) e->slot[slot_of(e, e->item[i].backend, e->item[i].key)] = i + 1;
    return TM_OK;
}

static tm_status add(profile_entries *e, const char *backend, const char *key, profile_entry **out) {
    if (e->n == e->cap) TM_TRY(grow_entries(e));
    profile_entry new = {.backend = backend ? tm_strdup(backend) : NULL, .key = tm_strdup(key)};
    if (!new.key || (backend && !new.backend)) {
        tm_free(new.backend);
        tm_free(new.key);
        return tm_nomem(strlen(key));
    }
    e->slot[slot_of(e, backend, key)] = e->n + 1;
    *out = &e->item[e->n++];
    **out = new;
    return TM_OK;
}

tm_status profile_put(profile_entries *e, const char *backend, const char *key, profile_entry **out) {
    *out = profile_find(e, backend, key);
    if (!*out) TM_TRY(add(e, backend, key, out));
    (*out)->put = ++e->puts;
    return TM_OK;
}

void profile_entries_free(profile_entries *e) {
    for (uint32_t i = 0; i < e->n; i++) {
        tm_free(e->item[i].backend);
        tm_free(e->item[i].key);
    }
    tm_free(e->item);
    tm_free(e->slot);
    *e = (profile_entries){0};
}

static tm_status damaged_profile(const tm_json *at, const char *what) {
    return tm_fail(TM_EINPUT, "line %u: %s", at ? at->line : 0, what);
}

static double rate_of(const tm_json *disk, const char *key) {
    const tm_json *v = tm_json_get(disk, key);
    return v && v->type == TM_JSON_NUMBER ? v->number : NAN;
}

/* 0 where it is not said, or is more than an engine takes. */
static uint32_t count_of(const tm_json *disk, const char *key, int64_t most) {
    const tm_json *v = tm_json_get(disk, key);
    return v && v->is_integer && v->integer > 0 && v->integer <= most ? (uint32_t)v->integer : 0;
}

static tm_status read_disk(profile_entries *e, const tm_json *d) {
    profile_entry *to;
    const tm_json *name = tm_json_get(d, "disk"), *bytes = tm_json_get(d, "bytes");
    const tm_json *in_training = tm_json_get(d, "in_training");
    if (in_training && (in_training->type != TM_JSON_NUMBER || !(in_training->number > 0)))
        return damaged_profile(d, "this is not a disk");
    tm_disk disk = {.read_bps = rate_of(d, "read_bps"),
                    .write_bps = rate_of(d, "write_bps"),
                    .duplex = rate_of(d, "duplex"),
                    .latency = rate_of(d, "latency"),
                    .cpu_per_byte = rate_of(d, "cpu_per_byte"),
                    .bytes = bytes && bytes->is_integer && bytes->integer > 0 ? (uint64_t)bytes->integer : 0,
                    .tbw = rate_of(d, "tbw"),
                    .in_training = in_training ? in_training->number : 0,
                    .queue_depth = count_of(d, "queue_depth", 4096 / TM_MACHINE_PATHS),
                    .block_bytes = count_of(d, "block_size", TM_GIB)};
    if (!name || name->type != TM_JSON_STRING || !(disk.read_bps > 0) || !(disk.write_bps > 0) || !(disk.duplex >= 0) ||
        !(disk.duplex <= 1) || !(disk.latency >= 0) || !(disk.cpu_per_byte >= 0) || !(disk.tbw >= 0))
        return damaged_profile(d, "this is not a disk");
    TM_TRY(profile_put(e, NULL, name->text, &to));
    to->disk = disk;
    return TM_OK;
}

static tm_status read_seconds(profile_entries *e, const tm_json *backend, bool wanted) {
    profile_entry *to;
    if (backend->type != TM_JSON_OBJECT) return damaged_profile(backend, "a back-end's seconds are not an object");
    for (const tm_json *v = backend->child; v; v = v->next) {
        if (v->type != TM_JSON_NUMBER || !(v->number >= 0) || isinf(v->number))
            return damaged_profile(v, "these are not seconds");
        if (!wanted) continue;
        TM_TRY(profile_put(e, backend->key, v->key, &to));
        to->seconds = v->number;
    }
    return TM_OK;
}

static tm_status read_root(profile_entries *e, const tm_json *root, const char *only) {
    const tm_json *version = tm_json_get(root, "version"), *disks = tm_json_get(root, "disks"),
                  *seconds = tm_json_get(root, "seconds");
    if (!version || !version->is_integer || version->integer != VERSION)
        return damaged_profile(version, "not version 1");
    for (const tm_json *d = disks ? disks->child : NULL; d; d = d->next) TM_TRY(read_disk(e, d));
    for (const tm_json *b = seconds ? seconds->child : NULL; b; b = b->next)
        TM_TRY(read_seconds(e, b, !only || !strcmp(b->key, only)));
    return TM_OK;
}

static tm_status read_file(profile_entries *e, const char *path, const char *only) {
    tm_json_doc *doc;
    TM_TRY(tm_json_load(&doc, path, MOST_BYTES, 0));
    tm_status rc = read_root(e, tm_json_root(doc), only);
    tm_json_free(doc);
    return rc;
}

/* A damaged one is as good as none. */
tm_status profile_load(profile_entries *e, const char *only) {
    const char *path = tm_profile_path();
    *e = (profile_entries){0};
    if (!*path || !tm_path_exists(path)) return TM_OK;
    tm_status rc = read_file(e, path, only);
    if (rc == TM_OK) return TM_OK;
    profile_entries_free(e);
    if (rc == TM_ENOMEM) return rc;
    tm_warn_once("profile", "profile %s is ignored (%s); `tidemill tune` writes a new one", path, tm_error_get()->text);
    tm_error_clear();
    return TM_OK;
}

static void write_disk(tm_json_writer *w, const profile_entry *e) {
    tm_jw_object(w);
    tm_jw_field_str(w, "disk", e->key);
    tm_jw_field_double(w, "read_bps", e->disk.read_bps);
    tm_jw_field_double(w, "write_bps", e->disk.write_bps);
    tm_jw_field_double(w, "duplex", e->disk.duplex);
    tm_jw_field_double(w, "latency", e->disk.latency);
    tm_jw_field_double(w, "cpu_per_byte", e->disk.cpu_per_byte);
    tm_jw_field_uint(w, "bytes", e->disk.bytes);
    tm_jw_field_double(w, "tbw", e->disk.tbw);
    if (e->disk.in_training > 0) tm_jw_field_double(w, "in_training", e->disk.in_training);
    if (e->disk.queue_depth) tm_jw_field_uint(w, "queue_depth", e->disk.queue_depth);
    if (e->disk.block_bytes) tm_jw_field_uint(w, "block_size", e->disk.block_bytes);
    tm_jw_object_end(w);
}

static int by_backend(const void *a, const void *b) {
    const profile_entry *x = a, *y = b;
    int c = strcmp(x->backend ? x->backend : "", y->backend ? y->backend : "");
    return c ? c : (x->put > y->put) - (x->put < y->put);
}

typedef struct backend_entries {
    profile_entry *first;
    uint32_t n;
} backend_entries;

static int by_last(const void *a, const void *b) {
    const backend_entries *x = a, *y = b;
    uint64_t p = x->first[x->n - 1].put, q = y->first[y->n - 1].put;
    return (p > q) - (p < q);
}

/* Of entries that lie in this order. Returns how many there are. */
static uint32_t list_backends(profile_entry *e, uint32_t n, backend_entries *of) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(e[i].backend, e[i - 1].backend) != 0) of[count++] = (backend_entries){&e[i], 0};
        of[count - 1].n++;
    }
    qsort(of, count, sizeof *of, by_last);
    return count;
}

/* All but the first `leave_out`. */
static void write_seconds(tm_json_writer *w, const backend_entries *of, uint32_t count, uint32_t leave_out) {
    for (uint32_t b = 0; b < count; b++) {
        uint32_t from = (uint32_t)tm_min_u64(leave_out, of[b].n);
        leave_out -= from;
        if (from == of[b].n) continue;
        tm_jw_field_object(w, of[b].first->backend);
        for (uint32_t i = from; i < of[b].n; i++) tm_jw_field_double(w, of[b].first[i].key, of[b].first[i].seconds);
        tm_jw_object_end(w);
    }
}

static tm_status write_entries(profile_entries *e, tm_buf *out) {
    tm_json_writer w;
    uint32_t i = 0;
    backend_entries *of = tm_malloc((e->n + 1) * sizeof *of);
    if (!of) return tm_nomem(e->n * sizeof *of);
    if (e->n) qsort(e->item, e->n, sizeof *e->item, by_backend);
    tm_jw_init(&w, out, 2);
    tm_jw_object(&w);
    tm_jw_field_int(&w, "version", VERSION);
    tm_jw_field_array(&w, "disks");
    for (; i < e->n && !e->item[i].backend; i++) write_disk(&w, &e->item[i]);
    tm_jw_array_end(&w);
    tm_jw_field_object(&w, "seconds");
    uint32_t seconds = e->n - i, count = list_backends(e->item + i, seconds, of);
    write_seconds(&w, of, count, seconds > PROFILE_SECONDS ? seconds - PROFILE_SECONDS : 0);
    tm_free(of);
    tm_jw_object_end(&w);
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

tm_status profile_store(profile_entries *e) {
    char folder[4096];
    tm_buf text = {0};
    tm_status rc;
    const char *path = tm_profile_path();
    if (!*path) return tm_fail(TM_EINPUT, "there is no place for the profile: set TIDEMILL_PROFILE to a file's path");
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash && slash != folder) {
        *slash = 0;
        TM_GO(tm_make_dirs(folder));
    }
    TM_GO(write_entries(e, &text));
    TM_GO(tm_buf_append(&text, "\n", 1));
    rc = tm_file_write(path, text.data, text.len);
done:
    tm_buf_free(&text);
    return rc;
}

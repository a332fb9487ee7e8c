/* The weights of an HF folder: one safetensors file, or shards and their index. */
#include "format/format_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_SHARD_BYTES UINT64_C(50000000000)

typedef struct place {
    uint32_t shard, index; /* index: in the shard's writer */
} place;

struct tm_hf_writer {
    char *dir;
    tm_fmt dtype;
    uint32_t n, shards;
    tm_hf_tensor *tensor; /* names are copies */
    place *place;
    tm_st_writer **shard;
    uint64_t total_bytes;
};

void tm_hf_writer_abandon(tm_hf_writer *w) {
    if (!w) return;
    for (uint32_t i = 0; w->shard && i < w->shards; i++) tm_st_writer_abandon(w->shard[i]);
    for (uint32_t i = 0; w->tensor && i < w->n; i++) tm_free((void *)(uintptr_t)w->tensor[i].name);
    tm_free(w->tensor);
    tm_free(w->place);
    tm_free(w->shard);
    tm_free(w->dir);
    tm_free(w);
}

static tm_status copy_tensors(tm_hf_writer *w, const tm_hf_tensor *tensors, uint32_t n) {
    w->tensor = tm_calloc(n + 1, sizeof *w->tensor);
    w->place = tm_calloc(n + 1, sizeof *w->place);
    if (!w->tensor || !w->place) return tm_nomem(n * (sizeof *w->tensor + sizeof *w->place));
    w->n = n;
    for (uint32_t i = 0; i < n; i++) {
        w->tensor[i] = tensors[i];
        w->tensor[i].name = tm_strdup(tensors[i].name);
        if (!w->tensor[i].name) return tm_nomem(strlen(tensors[i].name));
    }
    return TM_OK;
}

static tm_fmt fmt_of(const tm_hf_writer *w, uint32_t i) {
    return w->tensor[i].as_stored ? w->tensor[i].fmt : w->dtype;
}

/* Fills shards in the order of the list; a tensor is never split, so one larger than the limit has a shard of its own.
 */
static tm_status divide(tm_hf_writer *w, uint64_t limit) {
    uint64_t in_shard = 0;
    w->shards = 1;
    for (uint32_t i = 0; i < w->n; i++) {
        uint64_t elements, bytes;
        if (!tm_shape_elements(w->tensor[i].shape, w->tensor[i].ndim, &elements) ||
            !tm_fmt_bytes(fmt_of(w, i), elements, &bytes) || !tm_add_u64(w->total_bytes, bytes, &w->total_bytes))
            return tm_fail(TM_EINPUT, "%s: the size of '%s' overflows", w->dir, w->tensor[i].name);
        if (in_shard > 0 && bytes > limit - tm_min_u64(in_shard, limit)) {
            w->shards++;
            in_shard = 0;
        }
        in_shard += bytes;
        w->place[i].shard = w->shards - 1;
    }
    return TM_OK;
}

static void shard_name(const tm_hf_writer *w, uint32_t shard, char *name, size_t cap) {
    if (w->shards == 1)
        snprintf(name, cap, "model.safetensors");
    else
        snprintf(name, cap, "model-%05u-of-%05u.safetensors", shard + 1, w->shards);
}

static tm_status open_shards(tm_hf_writer *w) {
    w->shard = tm_calloc(w->shards, sizeof(tm_st_writer *));
    if (!w->shard) return tm_nomem(w->shards * sizeof(tm_st_writer *));
    for (uint32_t i = 0; i < w->shards; i++) {
        char name[64];
        shard_name(w, i, name, sizeof name);
        char *path = tm_path_join(w->dir, name);
        if (!path) return tm_nomem(strlen(w->dir));
        tm_status rc = tm_st_writer_create(&w->shard[i], path);
        tm_free(path);
        TM_TRY(rc);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        const tm_hf_tensor *t = &w->tensor[i];
        TM_TRY(tm_st_writer_add(w->shard[w->place[i].shard], t->name, fmt_of(w, i), t->ndim, t->shape,
                                &w->place[i].index));
    }
    return TM_OK;
}

tm_status tm_hf_writer_create(tm_hf_writer **out, const char *dir, const tm_hf_tensor *tensors, uint32_t n,
                              tm_fmt dtype, uint64_t max_shard_bytes) {
    tm_status rc;
    *out = NULL;
    TM_ASSERT(dtype == TM_FMT_F32 || dtype == TM_FMT_BF16 || dtype == TM_FMT_F16);
    tm_hf_writer *w = tm_calloc(1, sizeof *w);
    if (!w) return tm_nomem(sizeof *w);
    w->dtype = dtype;
    w->dir = tm_strdup(dir);
    if (!w->dir) {
        rc = tm_nomem(strlen(dir));
        goto done;
    }
    TM_GO(copy_tensors(w, tensors, n));
    TM_GO(divide(w, max_shard_bytes ? max_shard_bytes : DEFAULT_SHARD_BYTES));
    TM_GO(open_shards(w));
    *out = w;
    return TM_OK;
done:
    tm_hf_writer_abandon(w);
    return rc;
}

tm_status tm_hf_writer_put_f32(tm_hf_writer *w, uint32_t t, uint64_t first, uint64_t n, const float *values) {
    TM_ASSERT(t < w->n);
    return tm_st_writer_write_f32(w->shard[w->place[t].shard], w->place[t].index, first, n, values);
}

tm_status tm_hf_writer_put_raw(tm_hf_writer *w, uint32_t t, uint64_t byte_offset, const void *bytes, uint64_t n) {
    TM_ASSERT(t < w->n && w->tensor[t].as_stored);
    return tm_st_writer_write(w->shard[w->place[t].shard], w->place[t].index, byte_offset, bytes, n);
}

static tm_status index_json(const tm_hf_writer *w, tm_buf *json) {
    tm_json_writer j;
    char name[64];
    tm_jw_init(&j, json, 2);
    tm_jw_object(&j);
    tm_jw_field_object(&j, "metadata");
    tm_jw_field_uint(&j, "total_size", w->total_bytes);
    tm_jw_object_end(&j);
    tm_jw_field_object(&j, "weight_map");
    for (uint32_t i = 0; i < w->n; i++) {
        shard_name(w, w->place[i].shard, name, sizeof name);
        tm_jw_field_str(&j, w->tensor[i].name, name);
    }
    tm_jw_object_end(&j);
    tm_jw_object_end(&j);
    return tm_jw_end(&j);
}

static tm_status remove_in(const char *dir, const char *name) {
    char *path = tm_path_join(dir, name);
    if (!path) return tm_nomem(strlen(dir));
    tm_status rc = tm_remove_tree(path);
    tm_free(path);
    return rc;
}

/* The index comes last: until it is there, nobody takes the shards for a model. A file of an earlier model that readers
 * would prefer to ours is removed. */
static tm_status publish(tm_hf_writer *w) {
    for (uint32_t i = 0; i < w->shards; i++) {
        tm_st_writer *shard = w->shard[i];
        w->shard[i] = NULL;
        TM_TRY(tm_st_writer_commit(shard));
    }
    if (w->shards == 1) return remove_in(w->dir, "model.safetensors.index.json");
    tm_buf json = {0};
    tm_status rc;
    TM_GO(index_json(w, &json));
    TM_GO(tm_format_write_file(w->dir, "model.safetensors.index.json", json.data, json.len));
    TM_GO(remove_in(w->dir, "model.safetensors"));
done:
    tm_buf_free(&json);
    return rc;
}

tm_status tm_hf_writer_commit(tm_hf_writer *w) {
    tm_status rc = publish(w);
    tm_hf_writer_abandon(w);
    return rc;
}

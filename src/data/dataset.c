/* A dataset after its scan: counts, and the arrays of a micro-batch. */
#include "data/dataset_internal.h"

#include <string.h>

void tm_dataset_close(tm_dataset *ds) {
    if (!ds) return;
    data_store_free(&ds->store);
    tm_free(ds->scratch);
    tm_free(ds);
}

const tm_dataset_counts *tm_dataset_get_counts(const tm_dataset *ds) {
    return &ds->counts;
}
uint64_t tm_dataset_fingerprint(const tm_dataset *ds) {
    return ds->fingerprint;
}
uint64_t tm_dataset_spilled_bytes(const tm_dataset *ds) {
    return ds->store.base;
}
uint64_t tm_dataset_memory_bytes(const tm_dataset *ds) {
    return data_store_bytes(&ds->store) + ds->scratch_bytes + sizeof *ds;
}

tm_status data_rows_get(tm_dataset *ds, uint64_t row, data_view *out) {
    size_t seq = ds->rows.seq;
    int32_t *ids = (int32_t *)(void *)ds->scratch, *labels = ids + seq;
    uint8_t *mask = (uint8_t *)(labels + seq);
    TM_TRY(ds->rows.get_row(ds->rows.ctx, row, ids, labels, mask));
    *out = (data_view){.ids = ids, .labels = labels, .mask = mask};
    return TM_OK;
}

tm_status data_view_read(tm_dataset *ds, uint64_t i, data_view *out) {
    const data_sample *s = data_store_get(&ds->store, i);
    size_t id_bytes = (size_t)s->n_tokens * sizeof(int32_t);
    if (ds->is_rows) {
        TM_TRY(data_rows_get(ds, i, out));
        out->sample = s;
        return TM_OK;
    }
    TM_TRY(data_store_read(&ds->store, s->place, ds->scratch, id_bytes + data_mask_bytes(s->n_tokens)));
    *out = (data_view){.sample = s,
                       .ids = (const int32_t *)(const void *)ds->scratch,
                       .learn = (const uint8_t *)ds->scratch + id_bytes};
    return TM_OK;
}

int32_t data_view_label(const data_view *v, uint32_t t) {
    if (v->labels) return v->labels[t];
    return data_mask_get(v->learn, t) ? v->ids[t] : TM_LABEL_IGNORE;
}

static void fill_row(const data_view *v, int32_t *ids, int32_t *labels, uint8_t *key_mask) {
    uint32_t n = v->sample->n_tokens;
    memcpy(ids, v->ids, (size_t)n * sizeof *ids);
    for (uint32_t t = 0; t + 1 < n; t++) labels[t] = data_view_label(v, t + 1);
    if (!key_mask) return;
    if (v->mask)
        memcpy(key_mask, v->mask, n);
    else
        memset(key_mask, 1, n);
}

tm_status tm_dataset_batch(tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank,
                           const tm_batch_arrays *to, tm_batch_shape *out) {
    int32_t *ids = to->ids, *labels = to->labels;
    uint8_t *key_mask = to->key_mask;
    data_rows_of at = data_batch_rows(ds, step, micro_batch, rank);
    tm_dataset_shape(ds, step, micro_batch, rank, out);
    if (out->tokens > to->capacity)
        return tm_fail(TM_EBUG, "micro-batch of %u tokens where %u were reserved", out->tokens, to->capacity);
    memset(ids, 0, (size_t)out->tokens * sizeof *ids);
    for (uint32_t t = 0; t < out->tokens; t++) labels[t] = TM_LABEL_IGNORE;
    if (key_mask) memset(key_mask, 0, out->tokens);
    for (uint32_t b = 0; b < at.n; b++) {
        size_t row = (size_t)b * out->seq;
        data_view v;
        TM_TRY(data_view_read(ds, tm_dataset_order(ds, at.epoch, at.first + b), &v));
        fill_row(&v, ids + row, labels + row, key_mask ? key_mask + row : NULL);
    }
    return TM_OK;
}

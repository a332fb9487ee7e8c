/* A dataset after its scan: counts, and the arrays of a micro-batch. */
#include "data/dataset_internal.h"

#include <string.h>

void tm_dataset_close(tm_dataset *ds) {
    if (!ds) return;
    data_packer_close(ds->packer);
    data_store_free(&ds->store);
    tm_free(ds->scratch);
    tm_free(ds->group_end);
    tm_free(ds);
}

uint32_t tm_dataset_groups(const tm_dataset *ds) {
    return ds->n_groups;
}

uint32_t tm_dataset_group(const tm_dataset *ds, uint64_t sample) {
    uint32_t g = 0;
    while (g + 1 < ds->n_groups && sample >= ds->group_end[g]) g++;
    return g;
}

const tm_dataset_counts *tm_dataset_get_counts(const tm_dataset *ds) {
    return &ds->counts;
}
uint64_t tm_dataset_fingerprint(const tm_dataset *ds) {
    return ds->fingerprint;
}
double tm_dataset_index_bytes(const tm_dataset *ds) {
    bool runs = ds->store.n_blocks > 1 ? ds->store.block[0].run != NULL : ds->kind == TM_ROWS_PLAIN && !ds->is_rows;
    return runs ? (double)sizeof(data_run) / DATA_RUN : (double)sizeof(data_row);
}
uint64_t tm_dataset_rows(const tm_dataset *ds) {
    return ds->store.n_rows;
}
uint32_t tm_dataset_row_tokens(const tm_dataset *ds, uint64_t row) {
    return data_store_size(&ds->store, row).n_tokens;
}
double tm_dataset_part(const tm_dataset *ds) {
    return ds->part;
}
uint64_t tm_dataset_spilled_bytes(const tm_dataset *ds) {
    return ds->store.base;
}
uint64_t tm_dataset_memory_bytes(const tm_dataset *ds) {
    return data_store_bytes(&ds->store) + ds->scratch_bytes + data_packer_bytes(ds->packer) + sizeof *ds;
}

tm_status data_rows_get(tm_dataset *ds, uint64_t row, data_view *out) {
    size_t seq = ds->rows.seq;
    int32_t *ids = (int32_t *)(void *)ds->scratch, *labels = ids + seq;
    uint32_t *begin = ds->rows.get_begin ? (uint32_t *)(labels + seq) : NULL;
    uint8_t *mask = (uint8_t *)(labels + (begin ? 2 * seq : seq));
    TM_TRY(ds->rows.get_row(ds->rows.ctx, row, ids, labels, mask));
    if (begin) TM_TRY(ds->rows.get_begin(ds->rows.ctx, row, begin));
    for (size_t t = 0; begin && t < seq; t++)
        if (begin[t] == t) labels[t] = TM_LABEL_IGNORE;
    *out = (data_view){.ids = ids, .labels = labels, .mask = mask, .begin = begin};
    return TM_OK;
}

void data_view_skip(data_view *v, uint32_t n) {
    v->ids += n;
    v->labels += n;
    v->mask += n;
}

/* What the cut of a row of the row source took at its front. */
static uint32_t cut_in_front(const tm_dataset *ds, const data_view *v) {
    uint32_t prompt = 0;
    if (ds->kind == TM_ROWS_PLAIN && ds->truncation == TM_TRUNCATE_RIGHT) return 0;
    if (ds->kind == TM_ROWS_PLAIN) return (uint32_t)data_row_length(v, ds->rows.seq) - v->row->n_tokens;
    while (prompt < ds->rows.seq && v->labels[prompt] == TM_LABEL_IGNORE) prompt++;
    return prompt - v->row->prompt;
}

tm_status data_view_read(tm_dataset *ds, uint64_t i, data_view *out) {
    const data_row *r = data_store_get(&ds->store, i);
    if (ds->is_rows) {
        TM_TRY(data_rows_get(ds, i, out));
        out->row = r;
        data_view_skip(out, cut_in_front(ds, out));
    } else {
        *out = (data_view){.row = r, .ids = (const int32_t *)(const void *)ds->scratch};
        TM_TRY(data_store_read(&ds->store, r->place, r->n_tokens, ds->scratch, &out->learn));
    }
    out->whole = ds->labels_of_prompt && i % ds->rows_each == 0;
    return TM_OK;
}

bool data_view_is_completion(const data_view *v, uint32_t t) {
    return v->labels ? v->labels[t] != TM_LABEL_IGNORE : data_mask_get(v->learn, t);
}

int32_t data_view_label(const data_view *v, uint32_t t) {
    if (v->whole && (!v->mask || v->mask[t])) return v->ids[t];
    if (v->labels) return v->labels[t];
    return data_mask_get(v->learn, t) ? v->ids[t] : TM_LABEL_IGNORE;
}

double tm_dataset_document_tokens(const tm_dataset *ds) {
    return ds->document_tokens > 0 ? ds->document_pairs / ds->document_tokens : 0;
}

bool tm_dataset_has_documents(const tm_dataset *ds) {
    return ds->packs || ds->rows.get_begin;
}

/* ---- a micro-batch ----------------------------------------------------------------------------------------------- */

static tm_status check_room(const tm_batch_arrays *to, const tm_batch_shape *shape) {
    if (shape->tokens <= to->capacity) return TM_OK;
    return tm_fail(TM_EBUG, "micro-batch of %u tokens where %u were reserved", shape->tokens, to->capacity);
}

static void clear(const tm_batch_arrays *to, const tm_batch_shape *shape) {
    uint32_t n = shape->tokens;
    memset(to->ids, 0, (size_t)n * sizeof *to->ids);
    for (uint32_t t = 0; t < n; t++) to->labels[t] = TM_LABEL_IGNORE;
    if (to->key_mask) memset(to->key_mask, 0, n);
    if (to->completion) memset(to->completion, 0, n);
    if (to->begin) memset(to->begin, 0, (size_t)n * sizeof *to->begin);
}

/* The columns from position `at` of row `row` on. */
static tm_batch_arrays columns_at(const tm_batch_arrays *to, uint32_t row, size_t at) {
    return (tm_batch_arrays){.ids = to->ids + at,
                             .labels = to->labels + at,
                             .key_mask = to->key_mask ? to->key_mask + at : NULL,
                             .completion = to->completion ? to->completion + at : NULL,
                             .desirable = to->desirable ? to->desirable + row : NULL,
                             .sample = to->sample ? to->sample + row : NULL,
                             .begin = to->begin ? to->begin + at : NULL};
}
static tm_batch_arrays row_of(const tm_batch_arrays *to, uint32_t row, uint32_t seq) {
    return columns_at(to, row, (size_t)row * seq);
}

static void name_row(const tm_dataset *ds, const tm_batch_arrays *to, uint64_t row) {
    if (to->desirable) *to->desirable = data_store_get(&ds->store, row)->desirable != 0;
    if (to->sample) *to->sample = row / ds->rows_each;
}

/* What is read, from position `first` of its row on. */
static void fill_row(const data_view *v, uint32_t first, const tm_batch_arrays *to) {
    uint32_t n = v->row->n_tokens;
    memcpy(to->ids, v->ids, (size_t)n * sizeof *to->ids);
    for (uint32_t t = 0; t + 1 < n; t++) to->labels[t] = data_view_label(v, t + 1);
    for (uint32_t t = 0; to->completion && t + 1 < n; t++) to->completion[t] = data_view_is_completion(v, t + 1);
    for (uint32_t t = 0; to->begin && t < n; t++) to->begin[t] = first + (v->begin ? v->begin[t] : 0);
    if (!to->key_mask) return;
    if (v->mask)
        memcpy(to->key_mask, v->mask, n);
    else
        memset(to->key_mask, 1, n);
}

/* What is behind the documents of a row. */
static void end_documents(const tm_batch_arrays *row, uint32_t end, uint32_t seq) {
    for (uint32_t t = end; row->begin && t < seq; t++) row->begin[t] = end;
}

static tm_status fill_pack(tm_dataset *ds, uint64_t epoch, uint64_t place, uint32_t row, const tm_batch_arrays *to,
                           uint32_t seq) {
    uint32_t n, at = 0;
    const uint64_t *sample = data_pack_samples(ds->packer, epoch, place, &n);
    const tm_batch_arrays first = row_of(to, row, seq);
    name_row(ds, &first, sample[0]);
    for (uint32_t i = 0; i < n; i++) {
        tm_batch_arrays here = columns_at(&first, 0, at);
        data_view v;
        TM_TRY(data_view_read(ds, sample[i], &v));
        fill_row(&v, at, &here);
        at += v.row->n_tokens;
    }
    end_documents(&first, at, seq);
    return TM_OK;
}

tm_status tm_dataset_batch(tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank,
                           const tm_batch_arrays *to, tm_batch_shape *out) {
    data_rows_of at = data_batch_rows(ds, step, micro_batch, rank);
    uint32_t roles = data_roles(ds);
    tm_dataset_shape(ds, step, micro_batch, rank, out);
    TM_TRY(check_room(to, out));
    clear(to, out);
    for (uint32_t b = 0; ds->packs && b < at.n; b++) TM_TRY(fill_pack(ds, at.epoch, at.first + b, b, to, out->seq));
    for (uint32_t r = 0; !ds->packs && r < out->rows; r++) {
        uint64_t row = data_row_at(ds, at.epoch, at.first + r / roles, r % roles);
        tm_batch_arrays here = row_of(to, r, out->seq);
        data_view v;
        TM_TRY(data_view_read(ds, row, &v));
        fill_row(&v, 0, &here);
        if (v.begin) end_documents(&here, v.row->n_tokens, out->seq);
        name_row(ds, &here, row);
    }
    return TM_OK;
}

/* ---- mismatched rows --------------------------------------------------------------------------------------------- */

static tm_status fill_mismatched(tm_dataset *ds, const data_mismatch *m, const tm_batch_arrays *to) {
    uint32_t prompt = m->cut.prompt, n = prompt + m->cut.completion;
    data_view v;
    TM_TRY(data_view_read(ds, m->prompt_row, &v));
    memcpy(to->ids, v.ids + (m->prompt->prompt - prompt), prompt * sizeof *to->ids);
    TM_TRY(data_view_read(ds, m->completion_row, &v));
    memcpy(to->ids + prompt, v.ids + m->completion->prompt, (n - prompt) * sizeof *to->ids);
    for (uint32_t t = prompt ? prompt - 1 : 0; t + 1 < n; t++) {
        to->labels[t] = to->ids[t + 1];
        if (to->completion) to->completion[t] = 1;
    }
    if (to->key_mask) memset(to->key_mask, 1, n);
    return TM_OK;
}

tm_status tm_dataset_batch_mismatched(tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank,
                                      const tm_batch_arrays *to, tm_batch_shape *out) {
    data_rows_of at = data_batch_rows(ds, step, micro_batch, rank);
    tm_dataset_shape_mismatched(ds, step, micro_batch, rank, out);
    TM_TRY(check_room(to, out));
    clear(to, out);
    for (uint32_t b = 0; b < at.n; b++) {
        data_mismatch m = data_mismatched(ds, at, b);
        tm_batch_arrays here = row_of(to, b, out->seq);
        data_view v;
        if (ds->is_rows) {
            TM_TRY(data_view_read(ds, m.prompt_row + 1, &v));
            fill_row(&v, 0, &here);
        } else {
            TM_TRY(fill_mismatched(ds, &m, &here));
        }
        name_row(ds, &here, m.prompt_row);
    }
    return TM_OK;
}

/* The scan: every record or row is read, checked and counted before step 1. */
#include "data/dataset_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAMED_BAD_LINES = 5 };
#define MAX_SAMPLE_TOKENS ((size_t)1 << 28)

static tm_status create(tm_dataset **out, const tm_dataset_opts *opts, uint64_t most_rows) {
    tm_dataset *ds = tm_calloc(1, sizeof *ds);
    if (!ds) return tm_nomem(sizeof *ds);
    ds->seed = opts->seed;
    ds->part = 1;
    ds->kind = opts->rows;
    ds->truncation = opts->truncation;
    ds->labels_of_prompt = opts->labels_of_prompt;
    ds->seq_len = opts->seq_len;
    ds->rows_each = opts->rows == TM_ROWS_PAIRS ? 2 : 1;
    data_store_init(&ds->store, most_rows, tm_max_u64(opts->memory_bytes ? opts->memory_bytes : 8 * TM_MIB, 64),
                    opts->vocab_size, opts->spill);
    *out = ds;
    return TM_OK;
}

/* ---- records ---------------------------------------------------------------------------------------------------- */

static void notify(const data_scan *s, tm_data_notice what, uint64_t number, const char *why) {
    char place[400];
    snprintf(place, sizeof place, "%.360s%s%" PRIu64, s->name, s->at, number);
    s->opts->notice(s->opts->notice_ctx, what, place, why);
}

/* The pending failure is about one record's content: named, counted, and fatal under `strict` only. */
static tm_status bad_record(data_scan *s, uint64_t number) {
    tm_error failure = *tm_error_get();
    tm_dataset_counts *counts = &s->ds->counts;
    tm_error_clear();
    if (s->opts->strict) return tm_fail(TM_EINPUT, "%s%s%" PRIu64 ": %.600s", s->name, s->at, number, failure.text);
    if (!counts->bad++) {
        counts->first_bad_line = number;
        snprintf(s->first_reason, sizeof s->first_reason, "%.399s", failure.text);
        snprintf(s->first_place, sizeof s->first_place, "%.260s%s%" PRIu64, s->name, s->at, number);
    }
    if (s->opts->notice)
        notify(s, TM_DATA_BAD, number, failure.text);
    else if (counts->bad <= NAMED_BAD_LINES)
        tm_log(TM_LOG_WARN, "%s%s%" PRIu64 ": %s; skipped%s", s->name, s->at, number, failure.text,
               counts->bad == NAMED_BAD_LINES ? " (further ones are counted only)" : "");
    return TM_OK;
}

tm_status data_check_ids(const data_scan *s, uint64_t number, const int32_t *ids, size_t n) {
    uint32_t vocab = s->opts->vocab_size;
    if (!vocab) return TM_OK;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
            return tm_fail(TM_EINPUT,
                           "%s%s%" PRIu64 ": token id %d is outside the model's vocabulary of %u; is this the model's "
                           "own tokenizer or data?",
                           s->name, s->at, number, (int)ids[i], vocab);
    return TM_OK;
}

tm_status data_fit(data_scan *s, uint64_t number, size_t n, bool *keep) {
    uint32_t seq_len = s->opts->seq_len;
    *keep = true;
    if (n >= MAX_SAMPLE_TOKENS) return tm_fail(TM_EINPUT, "%s%s%" PRIu64 ": %zu tokens", s->name, s->at, number, n);
    if (!seq_len || n <= seq_len) return TM_OK;
    if (s->opts->concatenate) return TM_OK;
    switch (s->opts->overlong) {
    case TM_OVERLONG_TRUNCATE:
        s->ds->counts.truncated++;
        return TM_OK;
    case TM_OVERLONG_DROP:
        s->ds->counts.dropped++;
        *keep = false;
        return TM_OK;
    case TM_OVERLONG_SPLIT:
        s->ds->counts.split++;
        return TM_OK;
    case TM_OVERLONG_ERROR:
        break;
    }
    return tm_fail(TM_EINPUT,
                   "%s%s%" PRIu64 ": %zu tokens, but seq_len is %u; raise it, or set overlong to truncate, "
                   "drop or split",
                   s->name, s->at, number, n, seq_len);
}

/* Text that is longer than a row goes on in the next. */
static bool keeps_all(const tm_dataset_opts *opts) {
    return opts->concatenate || opts->overlong == TM_OVERLONG_SPLIT;
}

static size_t cut(const data_scan *s, size_t n) {
    return s->opts->seq_len && n > s->opts->seq_len ? s->opts->seq_len : n;
}

void data_count_row(tm_dataset *ds, uint64_t mask_tokens, const data_row *row) {
    tm_dataset_counts *c = &ds->counts;
    c->tokens += mask_tokens;
    c->label_tokens += row->n_labels;
    if (row->n_tokens > c->longest) c->longest = row->n_tokens;
}

tm_status data_pack_bits(tm_buf *bits, const char *learn, uint32_t n) {
    size_t bytes = data_mask_bytes(n);
    tm_buf_clear(bits);
    TM_TRY(tm_buf_reserve(bits, bytes));
    memset(bits->data, 0, bytes);
    for (uint32_t i = 0; i < n; i++)
        if (learn[i]) bits->data[i / 8] = (char)(bits->data[i / 8] | 1 << (i % 8));
    bits->len = bytes;
    return TM_OK;
}

/* Tokens of a row of n at its front that a cut to `kept` takes. */
static size_t cut_in_front(const data_scan *s, size_t n, size_t kept) {
    return s->opts->truncation == TM_TRUNCATE_LEFT ? n - kept : 0;
}

static tm_status store_sample(data_scan *s, const int32_t *ids, const char *learn, uint32_t n) {
    tm_dataset *ds = s->ds;
    data_row row = {.n_tokens = n};
    for (uint32_t i = 1; i < n; i++) row.n_labels += learn[i] != 0;
    if (!row.n_labels) {
        ds->counts.no_labels++;
        return TM_OK;
    }
    TM_TRY(data_pack_bits(&s->bits, learn, n));
    TM_TRY(data_store_append(&ds->store, ids, n, &s->bits, &row.place));
    ds->fingerprint = tm_hash64(ids, n * sizeof *ids, ds->fingerprint);
    ds->fingerprint = tm_hash64(s->bits.data, s->bits.len, ds->fingerprint);
    ds->counts.samples++;
    data_count_row(ds, n, &row);
    return data_store_add(&ds->store, row);
}

/* The first rows of seq_len that n tokens make, as long as what is left over them makes a row too; `all`: of the rest as
 * well, none of which is a single token, since nothing would be learned there. Returns the tokens that were stored. */
static tm_status store_rows(data_scan *s, const int32_t *ids, const char *learn, size_t n, bool all, size_t *stored) {
    size_t seq_len = s->opts->seq_len, at = 0;
    while (n - at >= seq_len + 2 || (all && at < n)) {
        size_t row = n - at < seq_len ? n - at : seq_len;
        if (n - at == seq_len + 1 && seq_len > 2) row--;
        TM_TRY(store_sample(s, ids + at, learn + at, (uint32_t)row));
        at += row;
    }
    *stored = at;
    return TM_OK;
}

/* Texts side by side: `text` has what does not fill a row yet. */
static tm_status add_text(data_scan *s) {
    tm_ids *to = &s->text;
    size_t stored;
    for (size_t i = 0; i < s->encoder->ids.n; i++) TM_TRY(tm_ids_push(to, s->encoder->ids.id[i]));
    TM_TRY(tm_buf_append(&s->text_learn, s->encoder->learn.data, s->encoder->learn.len));
    TM_TRY(store_rows(s, to->id, s->text_learn.data, to->n, false, &stored));
    to->n -= stored;
    s->text_learn.len = to->n;
    if (!stored) return TM_OK;
    memmove(to->id, to->id + stored, to->n * sizeof *to->id);
    memmove(s->text_learn.data, s->text_learn.data + stored, to->n);
    return TM_OK;
}

/* At the end of a group of files, of which an epoch may have a share. */
static tm_status end_text(data_scan *s) {
    size_t stored;
    if (s->text.n) TM_TRY(store_rows(s, s->text.id, s->text_learn.data, s->text.n, true, &stored));
    s->text.n = s->text_learn.len = 0;
    return TM_OK;
}

static tm_status take_record(data_scan *s, data_slot *r) {
    tm_status rc;
    size_t n, from;
    bool keep;
    s->ds->counts.lines++;
    s->encoder = &r->encoder;
    rc = data_slot_result(r);
    if (rc == TM_EINPUT || rc == TM_EUNSUPPORTED) return bad_record(s, r->number);
    TM_TRY(rc);
    if (s->ds->kind != TM_ROWS_PLAIN) return data_prefer_store(s, r->number);
    n = s->encoder->ids.n;
    TM_TRY(data_fit(s, r->number, n, &keep));
    if (!keep) return TM_OK;
    if (!keeps_all(s->opts)) n = cut(s, n);
    from = keeps_all(s->opts) ? 0 : cut_in_front(s, s->encoder->ids.n, n);
    TM_TRY(data_check_ids(s, r->number, s->encoder->ids.id + from, n));
    if (s->opts->concatenate) return add_text(s);
    if (s->opts->seq_len && n > s->opts->seq_len)
        return store_rows(s, s->encoder->ids.id, s->encoder->learn.data, n, true, &n);
    return store_sample(s, s->encoder->ids.id + from, s->encoder->learn.data + from, (uint32_t)n);
}

static unsigned up_to_3(uint64_t n) {
    return n < 3 ? (unsigned)n : 3;
}

static tm_status mark(data_scan *s, const tm_dataset_counts *before) {
    const tm_dataset_counts *after = &s->ds->counts;
    data_marks *m = &s->marks;
    if (!m->wanted || after->samples == before->samples) return TM_OK;
    TM_TRY(tm_grow(&m->of, &m->cap, (size_t)after->samples, sizeof *m->of));
    memset(m->of + m->n, 0, ((size_t)after->samples - m->n) * sizeof *m->of);
    m->n = (size_t)after->samples;
    m->of[before->samples] = (data_mark){.truncated = up_to_3(after->truncated - before->truncated) & 3,
                                         .split = up_to_3(after->split - before->split) & 3,
                                         .identical = up_to_3(after->identical - before->identical) & 3};
    return TM_OK;
}

static tm_status scan_record(data_scan *s, data_slot *r) {
    const tm_dataset_counts before = s->ds->counts, *after = &s->ds->counts;
    TM_TRY(take_record(s, r));
    TM_TRY(mark(s, &before));
    if (!s->opts->notice) return TM_OK;
    if (after->truncated > before.truncated) notify(s, TM_DATA_TRUNCATED, r->number, "");
    if (after->dropped > before.dropped) notify(s, TM_DATA_DROPPED, r->number, "");
    if (after->no_labels > before.no_labels) notify(s, TM_DATA_NOTHING_LEARNED, r->number, "");
    return TM_OK;
}

static tm_status scan_ahead(data_scan *s) {
    data_ahead_encode(&s->ahead);
    for (uint32_t i = 0; i < s->ahead.n; i++) TM_TRY(scan_record(s, &s->ahead.slot[i]));
    return tm_stop_check();
}

/* Where the file cannot be read on, what was read of it comes first: it may be wrong, too. */
static tm_status scan_records(data_scan *s, tm_reader *reader, const tm_data_columns *columns) {
    tm_status rc;
    s->at = tm_reader_at(reader);
    do {
        tm_phase_at(&s->phase, s->bytes_before + tm_reader_bytes(reader));
        rc = data_ahead_read(&s->ahead, reader, columns);
        tm_error failure = *tm_error_get();
        tm_error_clear();
        TM_TRY(scan_ahead(s));
        if (rc != TM_OK) tm_error_set(&failure);
    } while (rc == TM_OK && s->ahead.n > 0);
    s->bytes_before += tm_reader_bytes(reader);
    return rc;
}

static tm_status scan_file(data_scan *s, const tm_data_files *files, uint32_t i) {
    tm_data_source source;
    tm_reader *reader = NULL;
    tm_status rc;
    TM_TRY(files->open(files->ctx, i, &source));
    tm_reader_opts how = files->how[i];
    how.max_record_bytes = s->opts->max_line_bytes;
    how.most_bytes = s->opts->most_bytes ? s->opts->most_bytes - s->bytes_before : 0;
    s->name = source.name;
    TM_GO(tm_reader_open(&reader, &source, &how));
    if (tm_reader_packed(reader) && !files->packed)
        TM_GO(tm_fail(TM_EINPUT, "%s: it became another file while it was read", source.name));
    TM_GO(scan_records(s, reader, how.columns));
done:
    tm_reader_close(reader);
    files->close(files->ctx, i);
    s->name = files->name;
    return rc;
}

static bool is_enough(const data_scan *s) {
    return s->opts->most_bytes && s->bytes_before >= s->opts->most_bytes;
}

static tm_status scan_files(data_scan *s, const tm_data_files *files) {
    tm_status rc = TM_OK;
    tm_phase_begin(&s->phase, "reading the data", NULL, files->bytes);
    for (uint32_t g = 0, i = 0; g < files->n_groups && rc == TM_OK; g++) {
        for (uint32_t end = i + files->group[g].n_files; i < end && rc == TM_OK; i++)
            if (!is_enough(s)) rc = scan_file(s, files, i);
        if (rc == TM_OK) rc = end_text(s);
        s->end[g] = s->ds->counts.samples;
    }
    if (s->bytes_before < files->bytes && is_enough(s)) s->ds->part = (double)s->bytes_before / (double)files->bytes;
    tm_phase_end(&s->phase);
    return rc;
}

static tm_status nothing_usable(const data_scan *s) {
    const tm_dataset_counts *c = &s->ds->counts;
    if (!c->lines) return tm_fail(TM_EINPUT, "%s: the dataset is empty; it needs at least one sample", s->name);
    if (c->bad)
        return tm_fail(TM_EINPUT, "%s: no usable sample among %" PRIu64 ", %" PRIu64 " of them bad; %s: %s", s->name,
                       c->lines, c->bad, s->first_place, s->first_reason);
    return tm_fail(TM_EINPUT,
                   "%s: no usable sample among %" PRIu64 ": %" PRIu64 " longer than seq_len, %" PRIu64
                   " without a token to learn",
                   s->name, c->lines, c->dropped, c->no_labels);
}

static tm_status reserve_scratch(tm_dataset *ds, uint64_t bytes) {
    ds->scratch = tm_malloc(bytes ? bytes : 1);
    ds->scratch_bytes = bytes;
    return ds->scratch ? TM_OK : tm_nomem(bytes);
}

static tm_status check_rows(const tm_dataset_opts *opts, const char *name) {
    if (keeps_all(opts) && opts->seq_len == 1)
        return tm_fail(TM_EINPUT, "%s: text that is cut into rows needs a seq_len of at least 2", name);
    if ((opts->concatenate || opts->packing) && !opts->seq_len)
        return tm_fail(TM_EINPUT, "%s: packing needs a seq_len: how long rows may be", name);
    if (opts->packing && opts->rows != TM_ROWS_PLAIN)
        return tm_fail(TM_EINPUT, "%s: packing is for samples of one row, not for preferences; leave it out", name);
    if (keeps_all(opts) && opts->rows != TM_ROWS_PLAIN)
        return tm_fail(TM_EINPUT, "%s: preferences are not cut into several rows; truncate or drop them", name);
    return TM_OK;
}

static tm_status open_packer(tm_dataset *ds, const tm_dataset_opts *opts) {
    ds->packs = opts->packing;
    return data_packer_open(ds, opts->packing ? opts->seq_len : 0);
}

/* What follows once the index is there. */
static tm_status complete(tm_dataset *ds, const tm_dataset_opts *opts) {
    TM_TRY(reserve_scratch(ds, data_scratch_bytes(ds->counts.longest)));
    data_order_init(ds);
    return opts->packing || opts->group_by_length ? open_packer(ds, opts) : TM_OK;
}

tm_status tm_dataset_open_saved(tm_dataset **out, uint64_t size, uint64_t key, const tm_dataset_opts *opts) {
    tm_status rc;
    *out = NULL;
    TM_TRY(check_rows(opts, "the data"));
    TM_TRY(create(out, opts, UINT64_MAX));
    (*out)->shuffle = opts->shuffle;
    TM_GO(data_cache_read(*out, size, key));
    TM_GO(complete(*out, opts));
done:
    if (rc != TM_OK) {
        tm_dataset_close(*out);
        *out = NULL;
    }
    return rc;
}

/* A record and its end are two bytes at least, and may be two rows. */
static uint64_t most_rows(const tm_data_files *files, const tm_dataset_opts *opts) {
    if (keeps_all(opts)) return UINT64_MAX;
    return files->packed ? UINT64_MAX : (files->bytes / 2 + files->n) * (opts->rows == TM_ROWS_PLAIN ? 1 : 2);
}

static tm_status open_groups(tm_dataset **out, const tm_data_files *files, const tm_dataset_opts *opts, bool repeats) {
    data_scan s = {.opts = opts, .name = files->name, .at = ":"};
    tm_status rc;
    *out = NULL;
    if (!opts->tokenizer)
        return tm_fail(TM_EINPUT, "%s: JSONL data need the model's tokenizer.json, which is missing", files->name);
    TM_TRY(check_rows(opts, files->name));
    TM_TRY(data_prefer_check(opts));
    TM_TRY(create(&s.ds, opts, repeats ? UINT64_MAX : most_rows(files, opts)));
    s.ds->shuffle = opts->shuffle;
    s.end = tm_calloc(files->n_groups, sizeof *s.end);
    if (!s.end) TM_GO(tm_nomem(files->n_groups * sizeof *s.end));
    s.marks.wanted = data_selects(files, opts);
    TM_GO(data_ahead_open(&s.ahead, opts));
    TM_GO(scan_files(&s, files));
    if (!s.ds->counts.samples) TM_GO(nothing_usable(&s));
    TM_GO(data_select(&s, files));
    TM_GO(data_store_seal(&s.ds->store));
    TM_GO(complete(s.ds, opts));
done:
    data_ahead_close(&s.ahead);
    tm_buf_free(&s.bits);
    TM_FREE_ALL(s.end, s.marks.of);
    tm_ids_free(&s.text);
    tm_buf_free(&s.text_learn);
    if (rc != TM_OK) {
        tm_dataset_close(s.ds);
        s.ds = NULL;
    }
    *out = s.ds;
    return rc;
}

tm_status tm_dataset_open(tm_dataset **out, const tm_data_files *files, const tm_dataset_opts *opts) {
    const tm_data_group all = {.n_files = files->n, .weight = 1};
    tm_data_files grouped = *files;
    bool repeats = false;
    for (uint32_t g = 0; g < files->n_groups; g++) repeats |= files->group[g].samples || files->group[g].weight > 1;
    if (!files->group) grouped.group = &all, grouped.n_groups = 1;
    return open_groups(out, &grouped, opts, repeats);
}

static tm_status open_one(void *ctx, uint32_t i, tm_data_source *out) {
    (void)i;
    *out = *(const tm_data_source *)ctx;
    return TM_OK;
}

static void close_one(void *ctx, uint32_t i) {
    (void)ctx, (void)i;
}

tm_status tm_dataset_open_jsonl(tm_dataset **out, const tm_data_source *source, const tm_dataset_opts *opts) {
    tm_data_source one = *source;
    const tm_reader_opts how = {.form = TM_READ_LINES};
    bool packed;
    *out = NULL;
    TM_TRY(tm_data_packed(source, &packed));
    return tm_dataset_open(out,
                           &(tm_data_files){.ctx = &one,
                                            .open = open_one,
                                            .close = close_one,
                                            .how = &how,
                                            .n = 1,
                                            .bytes = source->size,
                                            .packed = packed,
                                            .name = source->name},
                           opts);
}

/* ---- rows of ids ------------------------------------------------------------------------------------------------- */

/* Up to the last position that is attended to or learned; at least 1. */
size_t data_row_length(const data_view *v, size_t seq) {
    while (seq > 1 && !v->mask[seq - 1] && v->labels[seq - 1] == TM_LABEL_IGNORE) seq--;
    return seq;
}

tm_status data_check_labels(const data_scan *s, uint64_t row, const int32_t *labels, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (labels[i] != TM_LABEL_IGNORE) TM_TRY(data_check_ids(s, row, &labels[i], 1));
    return TM_OK;
}

tm_status data_rows_cannot_drop(const data_scan *s, uint64_t row) {
    return tm_fail(TM_EINPUT, "%s%s%" PRIu64 ": longer than seq_len %u; rows are taken in order and cannot be dropped",
                   s->name, s->at, row, s->opts->seq_len);
}

static void count_documents(tm_dataset *ds, const uint32_t *begin, size_t n) {
    for (size_t t = 0, end; t < n; t = end) {
        for (end = t + 1; end < n && begin[end] == begin[t];) end++;
        ds->document_tokens += (double)(end - t);
        ds->document_pairs += (double)(end - t) * (double)(end - t);
    }
}

static tm_status scan_row(data_scan *s, uint64_t row) {
    tm_dataset *ds = s->ds;
    data_row stored = {0};
    data_view v;
    size_t n, all;
    bool keep;
    TM_TRY(data_rows_get(ds, row, &v));
    ds->counts.lines++;
    all = data_row_length(&v, ds->rows.seq);
    TM_TRY(data_fit(s, row, all, &keep));
    if (!keep) return data_rows_cannot_drop(s, row);
    n = cut(s, all);
    data_view_skip(&v, (uint32_t)cut_in_front(s, all, n));
    TM_TRY(data_check_ids(s, row, v.ids, n));
    TM_TRY(data_check_labels(s, row, v.labels, n));
    stored.n_tokens = (uint32_t)n;
    for (size_t i = 0; i < n; i++) stored.place += v.mask[i] != 0;
    for (size_t i = 1; i < n; i++) stored.n_labels += v.labels[i] != TM_LABEL_IGNORE;
    if (!stored.n_labels) ds->counts.no_labels++;
    ds->fingerprint = tm_hash64(v.ids, n * sizeof *v.ids, ds->fingerprint);
    ds->fingerprint = tm_hash64(v.labels, n * sizeof *v.labels, ds->fingerprint);
    ds->fingerprint = tm_hash64(v.mask, n, ds->fingerprint);
    if (v.begin) ds->fingerprint = tm_hash64(v.begin, n * sizeof *v.begin, ds->fingerprint);
    if (v.begin) count_documents(ds, v.begin, n);
    ds->counts.samples++;
    data_count_row(ds, stored.place, &stored);
    return data_store_add(&ds->store, stored);
}

tm_status tm_dataset_open_rows(tm_dataset **out, const tm_row_source *rows, const tm_dataset_opts *opts) {
    data_scan s = {.opts = opts, .name = rows->name, .at = ": row "};
    tm_phase phase = {0};
    tm_status rc;
    *out = NULL;
    if (!rows->n_rows || !rows->seq)
        return tm_fail(TM_EINPUT, "%s: the dataset is empty; it needs at least one row", rows->name);
    if (rows->get_begin && opts->truncation == TM_TRUNCATE_LEFT)
        return tm_fail(TM_EINPUT, "%s: rows of several documents are cut at their end; leave out data.truncation",
                       rows->name);
    TM_ASSERT(opts->rows == TM_ROWS_PLAIN || rows->n_rows % 2 == 0);
    if (rows->seq > MAX_SAMPLE_TOKENS) return tm_fail(TM_EINPUT, "%s: rows of %u tokens", rows->name, rows->seq);
    if (opts->packing || opts->group_by_length || keeps_all(opts))
        return tm_fail(TM_EINPUT,
                       "%s: rows of ids are taken as they are and in their order; packed ones come with a tensor "
                       "segment_ids, so leave out data.packing, group_by_length and overlong \"split\"",
                       rows->name);
    TM_TRY(create(&s.ds, opts, rows->n_rows));
    s.ds->is_rows = true;
    s.ds->rows = *rows;
    s.ds->rows_each = opts->rows == TM_ROWS_PLAIN ? 1 : 2;
    TM_GO(reserve_scratch(s.ds, (uint64_t)rows->seq * ((rows->get_begin ? 3 : 2) * sizeof(int32_t) + 1)));
    tm_phase_begin(&phase, "reading the data", "rows", rows->n_rows);
    for (uint64_t row = 0; row < rows->n_rows; row += s.ds->rows_each) {
        tm_phase_at(&phase, row);
        TM_GO(tm_stop_check());
        TM_GO(opts->rows == TM_ROWS_PLAIN ? scan_row(&s, row) : data_prefer_rows(&s, row));
    }
    if (!s.ds->counts.label_tokens) TM_GO(tm_fail(TM_EINPUT, "%s: no row has a label to learn", rows->name));
    data_order_init(s.ds);
done:
    tm_phase_end(&phase);
    if (rc != TM_OK) {
        tm_dataset_close(s.ds);
        s.ds = NULL;
    }
    *out = s.ds;
    return rc;
}

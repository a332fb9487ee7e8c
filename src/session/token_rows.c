/* Rows of token ids: which tensors of a file are what, and a row of them. */
#include "session/token_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NO_TENSOR = UINT32_MAX };

/* The tensors of one of a sample's rows. */
typedef struct columns {
    uint32_t ids, labels, mask; /* mask: may be NO_TENSOR */
    uint64_t seq;
} columns;

struct token_rows {
    tm_st *file;
    columns role[2];
    unsigned roles;
    uint32_t desirable; /* NO_TENSOR: none */
    uint32_t segments;  /* the same */
    uint64_t n, seq;    /* samples; the longer rows */
    int64_t *row;
    char name[4096];
};

static const char *const prefixes[][2] = {{"", NULL}, {"chosen_", "rejected_"}, {"", "kl_"}}; /* by tm_rows */
static const char *const names[] = {"input_ids", "labels", "attention_mask"};

/* ---- which tensors ---------------------------------------------------------------------------------------------- */

static bool is_known(const char *name, tm_rows kind) {
    for (unsigned r = 0; r < 2 && prefixes[kind][r]; r++) {
        size_t n = strlen(prefixes[kind][r]);
        for (size_t i = 0; i < TM_COUNT(names); i++)
            if (!strncmp(name, prefixes[kind][r], n) && !strcmp(name + n, names[i])) return true;
    }
    return (kind == TM_ROWS_LABELLED && !strcmp(name, "desirable")) ||
           (kind == TM_ROWS_PLAIN && !strcmp(name, "segment_ids"));
}

static tm_status known_only(const tm_st *st, const char *path, tm_rows kind) {
    static const char *const what[] = {"input_ids, labels, attention_mask and segment_ids",
                                       "chosen_ and rejected_ input_ids, labels and attention_mask",
                                       "input_ids, labels, attention_mask, the same with kl_, and desirable"};
    for (uint32_t i = 0; i < tm_st_count(st); i++) {
        const char *name = tm_st_get(st, i)->name;
        if (!is_known(name, kind))
            return tm_fail(TM_EINPUT,
                           "%s: tensor %s: this version reads %s, and would leave it out; take it out of the file if "
                           "that is what you want",
                           path, name, what[kind]);
    }
    return TM_OK;
}

tm_status rows_known_only(const tm_st *st, const char *path) {
    return known_only(st, path, TM_ROWS_PLAIN);
}

static void full_name(char name[64], const char *prefix, size_t i) {
    snprintf(name, 64, "%s%s", prefix, names[i]);
}

static uint32_t find(const token_rows *t, const char *name) {
    int64_t at = tm_st_find(t->file, name);
    return at < 0 ? NO_TENSOR : (uint32_t)at;
}

static tm_status check_shape(const token_rows *t, uint32_t tensor, const char *like, uint64_t seq) {
    const tm_st_info *info = tm_st_get(t->file, tensor);
    if (info->ndim == 2 && info->shape[0] == t->n && info->shape[1] == seq) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: %s must have the shape of %s [%" PRIu64 ", %" PRIu64 "]", t->name, info->name, like,
                   t->n, seq);
}

/* What the file holds instead, for whoever has the wrong file or objective. */
static const char *other_kind(const token_rows *t, tm_rows kind) {
    if (kind != TM_ROWS_PAIRS && find(t, "chosen_input_ids") != NO_TENSOR)
        return "; this file holds pairs, which dpo, simpo, orpo and cpo take";
    if (kind != TM_ROWS_LABELLED && find(t, "desirable") != NO_TENSOR) return "; this file holds kto's rows";
    return "";
}

static tm_status find_ids(token_rows *t, tm_rows kind, const char *ids, columns *c) {
    c->ids = find(t, ids);
    const tm_st_info *info = c->ids == NO_TENSOR ? NULL : tm_st_get(t->file, c->ids);
    if (!info || info->ndim != 2 || info->shape[1] == 0 || info->shape[1] > UINT32_MAX)
        return tm_fail(TM_EINPUT, "%s: a tensor %s of shape [rows, positions] is needed%s", t->name, ids,
                       other_kind(t, kind));
    if (c == t->role) t->n = info->shape[0];
    if (info->shape[0] != t->n)
        return tm_fail(TM_EINPUT, "%s: %s has %" PRIu64 " rows and not %" PRIu64, t->name, ids, info->shape[0], t->n);
    c->seq = info->shape[1];
    t->seq = tm_max_u64(t->seq, c->seq);
    return TM_OK;
}

static tm_status find_columns(token_rows *t, tm_rows kind, const char *prefix, columns *c) {
    char ids[64], labels[64], mask[64];
    full_name(ids, prefix, 0);
    full_name(labels, prefix, 1);
    full_name(mask, prefix, 2);
    TM_TRY(find_ids(t, kind, ids, c));
    c->labels = find(t, labels);
    if (c->labels == NO_TENSOR)
        return tm_fail(TM_EINPUT, "%s: a tensor %s of the shape of %s is needed (-100: not learned)", t->name, labels,
                       ids);
    TM_TRY(check_shape(t, c->labels, ids, c->seq));
    c->mask = find(t, mask);
    return c->mask == NO_TENSOR ? TM_OK : check_shape(t, c->mask, ids, c->seq);
}

static tm_status find_desirable(token_rows *t) {
    t->desirable = find(t, "desirable");
    const tm_st_info *info = t->desirable == NO_TENSOR ? NULL : tm_st_get(t->file, t->desirable);
    if (info && info->ndim == 1 && info->shape[0] == t->n) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: a tensor desirable of shape [%" PRIu64 "] is needed (1: desirable, 0: not)", t->name,
                   t->n);
}

static tm_status find_segments(token_rows *t, tm_rows kind) {
    t->segments = kind == TM_ROWS_PLAIN ? find(t, "segment_ids") : NO_TENSOR;
    return t->segments == NO_TENSOR ? TM_OK : check_shape(t, t->segments, "input_ids", t->seq);
}

/* ---- a row ------------------------------------------------------------------------------------------------------ */

/* `fill` beyond the tensor's own positions. */
static tm_status read_narrow(const token_rows *t, uint32_t tensor, const columns *c, uint64_t row, int32_t fill,
                             int32_t *out) {
    TM_TRY(tm_st_read_i64(t->file, tensor, row * c->seq, c->seq, t->row));
    for (uint64_t i = 0; i < c->seq; i++) {
        if (t->row[i] < INT32_MIN || t->row[i] > INT32_MAX)
            return tm_fail(TM_EINPUT, "%s: %s[%" PRIu64 ", %" PRIu64 "] = %" PRId64 " is out of range", t->name,
                           tm_st_get(t->file, tensor)->name, row, i, t->row[i]);
        out[i] = (int32_t)t->row[i];
    }
    for (uint64_t i = c->seq; i < t->seq; i++) out[i] = fill;
    return TM_OK;
}

static tm_status get_row(void *ctx, uint64_t row, int32_t *ids, int32_t *labels, uint8_t *mask) {
    const token_rows *t = ctx;
    const columns *c = &t->role[row % t->roles];
    row /= t->roles;
    TM_TRY(read_narrow(t, c->ids, c, row, 0, ids));
    TM_TRY(read_narrow(t, c->labels, c, row, TM_LABEL_IGNORE, labels));
    memset(mask, 0, t->seq);
    memset(mask, 1, c->seq);
    const uint32_t zeros[] = {c->mask, t->segments}; /* either has them where there is nothing to see */
    for (size_t k = 0; k < TM_COUNT(zeros); k++) {
        if (zeros[k] == NO_TENSOR) continue;
        TM_TRY(tm_st_read_i64(t->file, zeros[k], row * c->seq, c->seq, t->row));
        for (uint64_t i = 0; i < c->seq; i++) mask[i] = mask[i] && t->row[i] != 0;
    }
    return TM_OK;
}

tm_status rows_begin(const char *path, uint64_t row, const int64_t *segment, uint64_t seq, uint32_t *begin) {
    int64_t latest = 0; /* of the documents so far */
    for (uint64_t i = 0; i < seq; i++) {
        bool goes_on = i && segment[i] == segment[i - 1];
        begin[i] = goes_on ? begin[i - 1] : (uint32_t)i;
        if (goes_on || segment[i] == 0) continue;
        if (segment[i] <= latest)
            return tm_fail(TM_EINPUT,
                           "%s: segment_ids[%" PRIu64 ", %" PRIu64 "] = %" PRId64 " after %" PRId64
                           ": documents are numbered 1, 2, 3 ... along the row, padding is 0",
                           path, row, i, segment[i], latest);
        latest = segment[i];
    }
    return TM_OK;
}

static tm_status get_begin(void *ctx, uint64_t row, uint32_t *begin) {
    const token_rows *t = ctx;
    TM_TRY(tm_st_read_i64(t->file, t->segments, row * t->seq, t->seq, t->row));
    return rows_begin(t->name, row, t->row, t->seq, begin);
}

static tm_status get_desirable(void *ctx, uint64_t sample, bool *desirable) {
    const token_rows *t = ctx;
    int64_t v;
    TM_TRY(tm_st_read_i64(t->file, t->desirable, sample, 1, &v));
    if (v != 0 && v != 1)
        return tm_fail(TM_EINPUT, "%s: desirable[%" PRIu64 "] = %" PRId64 " is neither 0 nor 1", t->name, sample, v);
    *desirable = v == 1;
    return TM_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Bytes of a sample in the file. */
static uint64_t sample_bytes(const token_rows *t) {
    uint64_t bytes = 0;
    for (unsigned r = 0; r < t->roles; r++)
        bytes += t->role[r].seq * sizeof(int64_t) * (t->role[r].mask == NO_TENSOR ? 2 : 3);
    if (t->segments != NO_TENSOR) bytes += t->seq * sizeof(int64_t);
    return bytes;
}

static tm_status open_file(token_rows *t, const char *path, tm_rows kind) {
    snprintf(t->name, sizeof t->name, "%s", path);
    TM_TRY(tm_st_open(&t->file, path));
    for (t->roles = 0; t->roles < 2 && prefixes[kind][t->roles]; t->roles++)
        TM_TRY(find_columns(t, kind, prefixes[kind][t->roles], &t->role[t->roles]));
    t->desirable = NO_TENSOR;
    if (kind == TM_ROWS_LABELLED) TM_TRY(find_desirable(t));
    TM_TRY(find_segments(t, kind));
    TM_TRY(known_only(t->file, path, kind));
    t->row = tm_malloc(t->seq * sizeof *t->row);
    return t->row ? TM_OK : tm_nomem(t->seq * sizeof *t->row);
}

tm_status token_rows_open(token_rows **out, const char *path, tm_rows kind, uint64_t most_bytes, tm_row_source *source,
                          double *part) {
    token_rows *t = tm_calloc(1, sizeof *t);
    if (!t) return tm_nomem(sizeof *t);
    tm_status rc = open_file(t, path, kind);
    if (rc != TM_OK) {
        token_rows_close(t);
        return rc;
    }
    uint64_t n = most_bytes ? tm_min_u64(t->n, tm_max_u64(most_bytes / sample_bytes(t), 1)) : t->n;
    *part = t->n ? (double)n / (double)t->n : 1;
    *source = (tm_row_source){.ctx = t,
                              .get_row = get_row,
                              .get_desirable = get_desirable,
                              .get_begin = t->segments == NO_TENSOR ? NULL : get_begin,
                              .n_rows = n * t->roles,
                              .seq = (uint32_t)t->seq,
                              .name = t->name};
    *out = t;
    return TM_OK;
}

void token_rows_close(token_rows *t) {
    if (!t) return;
    tm_st_close(t->file);
    tm_free(t->row);
    tm_free(t);
}

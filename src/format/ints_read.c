/* Matrices of integer codes (ints_internal.h) read from the file, any range. Rows of a transposed matrix lie in pieces of
 * some bytes all over it, so that whoever reads it row by row is served from a strip of rows, which is kept: one for all
 * matrices of a source, since tensors are read one after the other. */
#include "format/ints_internal.h"

#include <pthread.h>

enum { STRIP_BYTES = 2 << 20 /* of codes */, MULTIPLE = 8 /* of rows: whole words in every layout */ };

typedef struct int_strip {
    pthread_mutex_t lock;
    const source_entry *of; /* NULL: nothing */
    uint64_t row0, rows;
    uint8_t *bytes;
    uint64_t cap;
    uint64_t begin[TM_PIECE_RANGES]; /* of codes, scales, zeros, index */
} int_strip;

tm_status tm_ints_strip(int_strip **out) {
    int_strip *s = tm_calloc(1, sizeof *s);
    if (!s) return tm_nomem(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return TM_OK;
}

void tm_ints_strip_free(int_strip *s) {
    if (!s) return;
    (void)pthread_mutex_destroy(&s->lock);
    tm_free(s->bytes);
    tm_free(s);
}

/* ---- what a strip consists of ---- */

/* `lines` lines of a file, `stride` bytes apart; of each `bytes`. */
typedef struct lines {
    source_place at;
    uint64_t lines, stride, bytes;
} lines;

static uint64_t all_bytes(const lines *l) {
    return l->lines * l->bytes;
}

static tm_status read_lines(const lines *l, uint8_t *dst) {
    if (l->bytes == l->stride) return tm_file_read_at(l->at.file, l->at.offset, dst, all_bytes(l));
    for (uint64_t i = 0; i < l->lines; i++)
        TM_TRY(tm_file_read_at(l->at.file, l->at.offset + i * l->stride, dst + i * l->bytes, l->bytes));
    return TM_OK;
}

static lines moved(source_place at, uint64_t by, uint64_t n, uint64_t stride, uint64_t bytes) {
    at.offset += by;
    return (lines){at, n, stride, bytes};
}

/* What of these rows lies side by side. */
static void list_rows(const source_entry *s, uint64_t row, uint64_t rows, lines out[TM_PIECE_RANGES]) {
    const int_tensor *t = s->ints;
    tm_source_piece p;
    tm_ints_piece(s, row * t->width, rows * t->width, &p);
    out[0] = (lines){{s->handle, s->info.file, p.range[0].offset}, 1, p.range[0].bytes, p.range[0].bytes};
    out[1] = (lines){{t->scale.file, t->scale.path, p.range[1].offset}, 1, p.range[1].bytes, p.range[1].bytes};
    if (t->zero_kind != INT_ZERO_MIDDLE)
        out[2] = (lines){{t->zero.file, t->zero.path, p.range[2].offset}, 1, p.range[2].bytes, p.range[2].bytes};
}

/* What of these rows lies in every line. */
static void list_columns(const source_entry *s, uint64_t row, uint64_t rows, lines out[TM_PIECE_RANGES]) {
    const int_tensor *t = s->ints;
    uint64_t per = int_per_word(t), scale = tm_fmt_get(t->scale_fmt)->block_bytes, word = sizeof(uint32_t);
    bool awq = t->layout == INT_AWQ;
    uint64_t each = awq ? per : 1; /* rows of a word of codes */
    const source_place codes = {s->handle, s->info.file, s->info.offset};
    out[0] =
        moved(codes, row / each * word, awq ? t->width : t->width / per, t->rows / each * word, rows / each * word);
    out[1] = moved(t->scale, row * scale, t->groups, t->rows * scale, rows * scale);
    out[2] = moved(t->zero, row / per * word, t->groups, t->rows / per * word, rows / per * word);
}

static void list_lines(const source_entry *s, uint64_t row, uint64_t rows, lines out[TM_PIECE_RANGES]) {
    const int_tensor *t = s->ints;
    for (uint32_t i = 0; i < TM_PIECE_RANGES; i++) out[i] = (lines){.lines = 0};
    (t->layout == INT_BY_ROWS ? list_rows : list_columns)(s, row, rows, out);
    if (t->ordered) out[3] = moved(t->order, 0, 1, t->width * sizeof(int32_t), t->width * sizeof(int32_t));
}

/* ---- the strip ---- */

static tm_status make_room(int_strip *s, uint64_t bytes) {
    if (bytes <= s->cap) return TM_OK;
    tm_free(s->bytes);
    s->cap = 0;
    s->bytes = tm_malloc(bytes);
    if (!s->bytes) return tm_nomem(bytes);
    s->cap = bytes;
    return TM_OK;
}

static tm_status load(int_strip *s, const source_entry *e, uint64_t row) {
    const int_tensor *t = e->ints;
    uint64_t row_bytes = int_words(t, t->width) * sizeof(uint32_t), total = 0;
    uint64_t most = tm_max_u64(STRIP_BYTES / row_bytes / MULTIPLE * MULTIPLE, MULTIPLE);
    lines list[TM_PIECE_RANGES];
    s->of = NULL;
    s->row0 = row / MULTIPLE * MULTIPLE;
    s->rows = tm_min_u64(most, t->rows - s->row0);
    list_lines(e, s->row0, s->rows, list);
    for (uint32_t i = 0; i < TM_PIECE_RANGES; i++) {
        s->begin[i] = total;
        total += all_bytes(&list[i]);
    }
    TM_TRY(make_room(s, total));
    for (uint32_t i = 0; i < TM_PIECE_RANGES; i++)
        if (list[i].lines) TM_TRY(read_lines(&list[i], s->bytes + s->begin[i]));
    s->of = e;
    return TM_OK;
}

static tm_status read_locked(int_strip *s, const source_entry *e, uint64_t first, uint64_t n, float *dst) {
    uint64_t width = e->ints->width;
    for (uint64_t done = 0, take; done < n; done += take) {
        uint64_t at = first + done, row = at / width;
        if (s->of != e || row < s->row0 || row >= s->row0 + s->rows) TM_TRY(load(s, e, row));
        const int_view v = {.t = e->ints,
                            .codes = s->bytes + s->begin[0],
                            .scale = s->bytes + s->begin[1],
                            .zero = s->bytes + s->begin[2],
                            .order = s->bytes + s->begin[3],
                            .row0 = s->row0,
                            .rows = s->rows};
        take = tm_min_u64(n - done, (s->row0 + s->rows) * width - at);
        tm_ints_values(&v, at, take, TM_ELEM_F32, dst + done);
    }
    return TM_OK;
}

tm_status tm_ints_read(const source_entry *s, uint64_t first, uint64_t n, float *dst) {
    TM_TRY(tm_range_check(s->info.file, s->info.name, first, n, s->info.elements));
    int_strip *strip = s->ints->strip;
    pthread_mutex_lock(&strip->lock);
    tm_status rc = read_locked(strip, s, first, n, dst);
    pthread_mutex_unlock(&strip->lock);
    return rc;
}

void tm_ints_forget(const source_entry *s) {
    const int_tensor *t = s->ints;
    lines list[TM_PIECE_RANGES];
    list_lines(s, 0, t->rows, list);
    for (uint32_t i = 1; i < TM_PIECE_RANGES; i++)
        if (list[i].lines) tm_file_forget(list[i].at.file, list[i].at.offset, list[i].lines * list[i].stride);
}

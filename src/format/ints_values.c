/* Matrices of integer codes (ints_internal.h): which bytes some of their elements lie in, and those bytes to values.
 *
 * Values are made in tiles of 64 rows and 512 columns: words of the tile are gathered so that each row's codes lie side by
 * side, whatever the layout; then row by row, group by group. Four bits look their value up among the 16 that a group can
 * have, by the leaf that does so for NF4 (kernels/nf4.h). */
#include "format/ints_internal.h"
#include "kernels/kernels.h"

#include <string.h>

enum { ROWS = 64, COLUMNS = 512, WORDS = COLUMNS / 4 /* of a row, at 8 bits */, RUN_ROWS = 64 };

/* ---- where ---- */

static uint64_t scale_bytes(const int_tensor *t) {
    return tm_fmt_get(t->scale_fmt)->block_bytes;
}

/* Bytes of zeros for these rows, and where they begin. */
static tm_raw_range zero_range(const int_tensor *t, uint64_t row, uint64_t rows) {
    uint64_t begin = row, end = row + rows, size = 1;
    if (t->zero_kind == INT_ZERO_WORDS) {
        uint64_t per = int_per_word(t);
        begin = row / per, end = rows ? (row + rows - 1) / per + 1 : begin, size = sizeof(uint32_t);
    }
    return (tm_raw_range){t->zero.path, t->zero.offset + begin * t->groups * size, (end - begin) * t->groups * size};
}

/* Of whole rows; of all of them where the matrix is transposed. */
void tm_ints_piece(const source_entry *s, uint64_t first, uint64_t n, tm_source_piece *out) {
    const int_tensor *t = s->ints;
    bool by_rows = t->layout == INT_BY_ROWS;
    uint64_t row = by_rows ? first / t->width : 0, end = n ? (first + n - 1) / t->width + 1 : row;
    uint64_t rows = by_rows ? end - row : t->rows, line = int_words(t, t->width) * sizeof(uint32_t);
    *out = (tm_source_piece){.first = row * t->width, .elements = rows * t->width, .n = 2};
    out->range[0] = by_rows ? (tm_raw_range){s->info.file, s->info.offset + row * line, rows * line}
                            : (tm_raw_range){s->info.file, s->info.offset, s->info.bytes};
    out->range[1] = (tm_raw_range){t->scale.path, t->scale.offset + row * t->groups * scale_bytes(t),
                                   rows * t->groups * scale_bytes(t)};
    if (t->zero_kind != INT_ZERO_MIDDLE) out->range[out->n++] = zero_range(t, row, rows);
    if (t->ordered) out->range[out->n++] = (tm_raw_range){t->order.path, t->order.offset, t->width * sizeof(int32_t)};
    if (!by_rows) out->run = RUN_ROWS * t->width;
}

/* ---- a row's scales and zeros ---- */

static uint32_t word_at(const uint8_t *words, uint64_t i) {
    uint32_t v;
    memcpy(&v, words + 4 * i, sizeof v);
    return v;
}

static float scale_at(const int_view *v, uint64_t row, uint64_t g) {
    const int_tensor *t = v->t;
    uint64_t in_view = row - v->row0;
    uint64_t at = t->layout == INT_BY_ROWS ? in_view * t->groups + g : g * v->rows + in_view;
    float scale;
    tm_fmt_decode(t->scale_fmt, v->scale + at * scale_bytes(t), 1, &scale);
    return scale;
}

/* Where AutoAWQ has row r of 8 in its words. */
static const uint8_t awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static int zero_at(const int_view *v, uint64_t row, uint64_t g) {
    const int_tensor *t = v->t;
    uint64_t per = int_per_word(t);
    unsigned middle = 1u << (t->bits - 1), place = (unsigned)(row % per);
    if (t->zero_kind == INT_ZERO_MIDDLE) return (int)middle;
    if (t->zero_kind == INT_ZERO_BYTES) return (int)middle + (int8_t)v->zero[(row - v->row0) * t->groups + g];
    uint64_t line = row / per - v->row0 / per;
    uint64_t at = t->layout == INT_BY_ROWS ? line * t->groups + g : g * (v->rows / per) + line;
    uint32_t word = word_at(v->zero, at);
    if (t->one_less) word += t->bits == 4 ? 0x11111111u : 0x01010101u; /* carries, as whoever took it off borrowed */
    if (t->layout == INT_AWQ) place = awq_nibble[place];
    return (int)(word >> place * t->bits & ((1u << t->bits) - 1));
}

/* ---- a tile's codes ---- */

typedef struct tile {
    uint64_t row, rows, column, columns; /* of the matrix */
    uint32_t words[ROWS][WORDS];         /* [row]: codes in order, the first in the lowest bits; nibbles as NF4's */
    uint16_t group[COLUMNS];             /* of each column, where there is an index */
} tile;

static void gather_rows(const int_view *v, tile *t) {
    uint64_t line = int_words(v->t, v->t->width), at = t->column / int_per_word(v->t);
    for (uint64_t r = 0; r < t->rows; r++)
        memcpy(t->words[r], v->codes + 4 * ((t->row + r - v->row0) * line + at), 4 * int_words(v->t, t->columns));
}

static void gather_gptq(const int_view *v, tile *t) {
    uint64_t at = t->column / int_per_word(v->t), n = int_words(v->t, t->columns);
    for (uint64_t k = 0; k < n; k++)
        for (uint64_t r = 0; r < t->rows; r++)
            t->words[r][k] = word_at(v->codes, (at + k) * v->rows + (t->row + r - v->row0));
}

/* Nibble q of word j becomes nibble j of word q. */
static void transpose8(uint32_t a[8]) {
    static const uint32_t mask[3] = {0x0000ffffu, 0x00ff00ffu, 0x0f0f0f0fu};
    for (unsigned step = 0, j = 4; j; step++, j /= 2)
        for (unsigned k = 0; k < 8; k++) {
            if (k & j) continue;
            uint32_t moved = (a[k] >> 4 * j ^ a[k + j]) & mask[step];
            a[k + j] ^= moved;
            a[k] ^= moved << 4 * j;
        }
}

/* 8 columns of the 8 rows of a word: rows that the tile has not are left out. */
static void gather_awq8(const int_view *v, tile *t, uint64_t word, uint64_t k) {
    uint64_t left = tm_min_u64(8, t->columns - 8 * k);
    uint32_t a[8] = {0};
    for (uint64_t j = 0; j < left; j++)
        a[j] = word_at(v->codes, (t->column + 8 * k + j) * (v->rows / 8) + word - v->row0 / 8);
    transpose8(a);
    for (uint64_t row = 8 * word; row < 8 * word + 8; row++)
        if (row >= t->row && row < t->row + t->rows) t->words[row - t->row][k] = a[awq_nibble[row % 8]];
}

static void gather_awq(const int_view *v, tile *t) {
    for (uint64_t k = 0; 8 * k < t->columns; k++)
        for (uint64_t word = t->row / 8; word <= (t->row + t->rows - 1) / 8; word++) gather_awq8(v, t, word, k);
}

/* The index was checked when the folder was opened; whatever else may be there now leads to some group. */
static void gather_groups(const int_view *v, tile *t) {
    for (uint64_t c = 0; c < t->columns && v->t->ordered; c++)
        t->group[c] = (uint16_t)tm_min_u64(word_at(v->order, t->column + c), v->t->groups - 1);
}

static void gather(const int_view *v, tile *t) {
    static void (*const by_layout[])(const int_view *v, tile *t) = {gather_rows, gather_gptq, gather_awq};
    by_layout[v->t->layout](v, t);
    gather_groups(v, t);
    uint64_t n = int_words(v->t, t->columns);
    for (uint64_t r = 0; r < t->rows && v->t->bits == 4; r++)
        for (uint64_t k = 0; k < n; k++)
            t->words[r][k] = (t->words[r][k] & 0x0f0f0f0fu) << 4 | (t->words[r][k] >> 4 & 0x0f0f0f0fu);
}

/* ---- a row's values ---- */

static void *at_element(void *out, tm_elem to, uint64_t i) {
    return (char *)out + i * tm_elem_bytes(to);
}

static void store(const float *values, uint64_t n, tm_elem to, void *out) {
    if (to == TM_ELEM_F32)
        memcpy(out, values, n * sizeof *values);
    else
        (to == TM_ELEM_BF16 ? tm_narrow : tm_narrow_f16)(values, out, n);
}

/* n codes of one group from the tile's column `from` on. */
static void group_values(const uint8_t *codes, unsigned bits, uint64_t from, uint64_t n, int zero, float scale,
                         tm_elem to, void *out) {
    float map[16], values[COLUMNS];
    if (bits == 4) {
        for (int c = 0; c < 16; c++) map[c] = (float)(c - zero);
        const tm_nf4_blocks b = {.map = map, .codes = codes, .block = COLUMNS, .absmax = &scale};
        tm_nf4_values(&b, from, n, to, out);
        return;
    }
    for (uint64_t i = 0; i < n; i++) values[i] = (float)(codes[from + i] - zero) * scale;
    store(values, n, to, out);
}

static int code_at(const uint8_t *codes, unsigned bits, uint64_t i) {
    return bits == 8 ? codes[i] : i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
}

/* Columns of any groups. */
static void ordered_values(const int_view *v, const tile *t, uint64_t row, uint64_t from, uint64_t n, tm_elem to,
                           void *out) {
    float scale[INT_ORDERED_GROUPS], values[COLUMNS];
    int16_t zero[INT_ORDERED_GROUPS];
    const uint8_t *codes = (const uint8_t *)t->words[row - t->row];
    for (uint64_t g = 0; g < v->t->groups; g++) {
        scale[g] = scale_at(v, row, g);
        zero[g] = (int16_t)zero_at(v, row, g);
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t g = t->group[from + i];
        values[i] = (float)(code_at(codes, v->t->bits, from + i) - zero[g]) * scale[g];
    }
    store(values, n, to, out);
}

/* Of the tile's columns those from `from` on. */
static void row_values(const int_view *v, const tile *t, uint64_t row, uint64_t from, uint64_t n, tm_elem to,
                       void *out) {
    const uint8_t *codes = (const uint8_t *)t->words[row - t->row];
    if (v->t->ordered) {
        ordered_values(v, t, row, from, n, to, out);
        return;
    }
    for (uint64_t done = 0, take; done < n; done += take) {
        uint64_t column = t->column + from + done, g = column / v->t->group;
        take = tm_min_u64(n - done, (g + 1) * v->t->group - column);
        group_values(codes, v->t->bits, from + done, take, zero_at(v, row, g), scale_at(v, row, g), to,
                     at_element(out, to, done));
    }
}

/* ---- any range ---- */

typedef struct wanted {
    uint64_t first, n;
    tm_elem to;
    void *out;
} wanted;

static void tile_values(const int_view *v, const tile *t, const wanted *w) {
    uint64_t width = v->t->width, end = w->first + w->n;
    for (uint64_t row = t->row; row < t->row + t->rows; row++) {
        uint64_t begin = row * width + t->column;
        uint64_t from = tm_max_u64(begin, w->first), to = tm_min_u64(begin + t->columns, end);
        if (from < to)
            row_values(v, t, row, from - begin, to - from, w->to, at_element(w->out, w->to, from - w->first));
    }
}

void tm_ints_values(const int_view *v, uint64_t first, uint64_t n, tm_elem to, void *out) {
    uint64_t width = v->t->width, row = first / width, last = n ? (first + n - 1) / width + 1 : row;
    const wanted w = {first, n, to, out};
    tile t;
    for (; row < last; row += t.rows) {
        t.row = row, t.rows = tm_min_u64(ROWS - row % ROWS, last - row);
        bool one = t.rows == 1; /* of which only some columns may be wanted */
        uint64_t begin = one && first > row * width ? first - row * width : 0;
        uint64_t end = one ? tm_min_u64(width, first + n - row * width) : width;
        for (t.column = begin / COLUMNS * COLUMNS; t.column < end; t.column += COLUMNS) {
            t.columns = tm_min_u64(COLUMNS, width - t.column);
            gather(v, &t);
            tile_values(v, &t, &w);
        }
    }
}

void tm_ints_decode(const source_entry *s, const tm_source_piece *p, const void *const *raw, uint64_t first, uint64_t n,
                    tm_elem to, void *out) {
    const int_tensor *t = s->ints;
    int_view v = {
        .t = t, .codes = raw[0], .scale = raw[1], .row0 = p->first / t->width, .rows = p->elements / t->width};
    uint32_t at = 2;
    if (t->zero_kind != INT_ZERO_MIDDLE) v.zero = raw[at++];
    if (t->ordered) v.order = raw[at];
    tm_ints_values(&v, first, n, to, out);
}

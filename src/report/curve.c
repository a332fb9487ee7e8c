/* Curves in characters: blocks of eight heights in a line, dots of braille in a picture. */
#include "report/report.h"

#include <math.h>
#include <string.h>

/* U+2581 to U+2588: a block of one eighth to eight. */
static tm_status put_block(tm_buf *b, unsigned eighths) {
    const char block[3] = {(char)0xe2, (char)0x96, (char)(0x80 + eighths)};
    return tm_buf_append(b, block, sizeof block);
}

typedef struct extent {
    double low, high;
} extent;

static extent extent_of(const tm_point *p, uint32_t n) {
    extent e = {INFINITY, -INFINITY};
    for (uint32_t i = 0; i < n; i++) e.low = fmin(e.low, p[i].value), e.high = fmax(e.high, p[i].value);
    return e;
}

static double share_of(extent e, double v) {
    return e.high > e.low ? (v - e.low) / (e.high - e.low) : 0.5;
}

/* The mean of the points whose steps lie in cell i of n. */
static bool mean_of_cell(const tm_point *p, uint32_t n, uint32_t cell, uint32_t cells, double *mean) {
    double first = (double)p[0].step, width = ((double)p[n - 1].step - first + 1) / cells, sum = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        if ((uint32_t)(((double)p[i].step - first) / width) != cell) continue;
        sum += p[i].value;
        count++;
    }
    *mean = count ? sum / count : 0;
    return count > 0;
}

tm_status tm_curve_line(tm_buf *out, const tm_point *p, uint32_t n, uint32_t columns) {
    double mean;
    tm_point cell[TM_CURVE_COLUMNS];
    uint32_t cells = columns < TM_CURVE_COLUMNS ? columns : TM_CURVE_COLUMNS, used = 0;
    if (n == 0 || cells == 0) return TM_OK;
    if (n < cells) cells = n;
    for (uint32_t i = 0; i < cells; i++)
        if (mean_of_cell(p, n, i, cells, &mean)) cell[used++] = (tm_point){i, mean};
    extent e = extent_of(cell, used);
    for (uint32_t i = 0; i < used; i++) TM_TRY(put_block(out, 1 + (unsigned)(7 * share_of(e, cell[i].value) + 0.5)));
    return TM_OK;
}

/* Bits of the eight dots of U+2800: the left column from the top down is 1, 2, 3, 7, the right one 4, 5, 6, 8. */
static void set_dot(unsigned char *cells, uint32_t columns, uint32_t x, uint32_t y) {
    static const unsigned char bit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cells[(size_t)(y / 4) * columns + x / 2] |= bit[y % 4][x % 2];
}

static tm_status put_rows(tm_buf *out, const unsigned char *cells, uint32_t columns, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < columns; c++) {
            unsigned dots = cells[(size_t)r * columns + c];
            const char braille[3] = {(char)0xe2, (char)(0xa0 + dots / 64), (char)(0x80 + dots % 64)};
            TM_TRY(tm_buf_append(out, dots ? braille : " ", dots ? sizeof braille : 1));
        }
        TM_TRY(tm_buf_append(out, "\n", 1));
    }
    return TM_OK;
}

tm_status tm_curve_picture(tm_buf *out, const tm_point *p, uint32_t n, uint32_t columns, uint32_t rows) {
    if (n == 0 || columns == 0 || rows == 0) return TM_OK;
    unsigned char *cells = tm_calloc((size_t)columns * rows, 1);
    if (!cells) return tm_nomem((size_t)columns * rows);
    extent e = extent_of(p, n);
    double first = (double)p[0].step, span = fmax((double)p[n - 1].step - first, 1);
    uint32_t width = 2 * columns - 1, height = 4 * rows - 1, before = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = (uint32_t)(((double)p[i].step - first) / span * width + 0.5);
        uint32_t y = (uint32_t)((1 - share_of(e, p[i].value)) * height + 0.5), low = y, high = y;
        if (i > 0 && before < y) low = before + 1;
        if (i > 0 && before > y) high = before - 1;
        for (uint32_t k = low; k <= high; k++) set_dot(cells, columns, x, k);
        before = y;
    }
    tm_status rc = put_rows(out, cells, columns, rows);
    tm_free(cells);
    return rc;
}

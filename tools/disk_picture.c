#include "io/file/file.h"
#include "tools/disk_picture.h"

#include <string.h>

enum { LEFT = 90, TOP = 56, WIDE = 86, HIGH = 46, BELOW = 40 };

/* From dark blue over green to yellow, even in lightness; t in [0, 1]. */
static void colour(double t, char out[8]) {
    static const int stop[5][3] = {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
    static const char digits[] = "0123456789abcdef";
    int i = t >= 1 ? 3 : (int)(t * 4);
    double f = t * 4 - i;
    out[0] = '#';
    for (int k = 0; k < 3; k++) {
        int v = (int)(stop[i][k] + f * (stop[i + 1][k] - stop[i][k]) + 0.5);
        out[1 + 2 * k] = digits[v >> 4 & 15];
        out[2 + 2 * k] = digits[v & 15];
    }
    out[7] = 0;
}

static double fastest(const disk_grid *g) {
    double most = 0;
    for (unsigned i = 0; i < g->n_blocks * g->n_depths; i++)
        if (disk_cell_bps(&g->cell[i]) > most) most = disk_cell_bps(&g->cell[i]);
    return most > 0 ? most : 1;
}

static tm_status draw_cell(tm_buf *b, const disk_cell *c, unsigned x, unsigned y, double most) {
    char fill[8], size[32];
    double t = disk_cell_bps(c) / most;
    colour(t, fill);
    const char *ink = t > 0.6 ? "#000" : "#fff";
    TM_TRY(tm_buf_printf(b, "<g><title>%s, depth %u: read %.1f MB/s, write %.1f MB/s, p99 %.1f us</title>",
                         tm_format_size(c->block, size, sizeof size), (unsigned)c->depth, c->result.read_bps * 1e-6,
                         c->result.write_bps * 1e-6, c->result.all.p99 * 1e6));
    TM_TRY(tm_buf_printf(b, "<rect x='%u' y='%u' width='%d' height='%d' fill='%s'/>", x, y, WIDE - 2, HIGH - 2, fill));
    return tm_buf_printf(b,
                         "<text x='%u' y='%u' fill='%s' text-anchor='middle'>%.0f</text>"
                         "<text x='%u' y='%u' fill='%s' text-anchor='middle' font-size='9'>%.0f us</text></g>\n",
                         x + WIDE / 2, y + 20, ink, disk_cell_bps(c) * 1e-6, x + WIDE / 2, y + 34, ink,
                         c->result.all.p99 * 1e6);
}

static tm_status draw(tm_buf *b, const disk_grid *g, const char *what, const char *engine) {
    unsigned width = LEFT + g->n_depths * WIDE + 10, height = TOP + g->n_blocks * HIGH + BELOW;
    char size[32];
    TM_TRY(tm_buf_printf(b,
                         "<svg xmlns='http://www.w3.org/2000/svg' width='%u' height='%u' font-family='sans-serif' "
                         "font-size='12'>\n<rect width='100%%' height='100%%' fill='#fff'/>\n"
                         "<text x='10' y='20' font-size='14'>%s, engine %s: MB/s (below: 99%% of latencies)</text>\n",
                         width, height, what, engine));
    for (unsigned k = 0; k < g->n_depths; k++)
        TM_TRY(tm_buf_printf(b, "<text x='%u' y='%d' text-anchor='middle'>%u</text>\n", LEFT + k * WIDE + WIDE / 2,
                             TOP - 8, (unsigned)g->cell[k].depth));
    for (unsigned i = 0; i < g->n_blocks; i++) {
        const disk_cell *row = &g->cell[i * g->n_depths];
        TM_TRY(tm_buf_printf(b, "<text x='%d' y='%u' text-anchor='end'>%s</text>\n", LEFT - 8,
                             TOP + i * HIGH + HIGH / 2, tm_format_size(row->block, size, sizeof size)));
        for (unsigned k = 0; k < g->n_depths; k++)
            TM_TRY(draw_cell(b, &row[k], LEFT + k * WIDE, TOP + i * HIGH, fastest(g)));
    }
    return tm_buf_printf(b, "<text x='%d' y='%u'>down: block, across: requests in flight</text>\n</svg>\n", LEFT,
                         height - 14);
}

tm_status disk_picture_write(const char *file, const disk_grid *g, const char *what, const char *engine) {
    tm_buf b = {0};
    const char *dot = strrchr(file, '.');
    bool html = dot && strcmp(dot, ".html") == 0;
    tm_status rc =
        html ? tm_buf_printf(&b, "<!DOCTYPE html><meta charset='utf-8'><title>tidemill bench io</title>\n") : TM_OK;
    if (rc == TM_OK) rc = draw(&b, g, what, engine);
    if (rc == TM_OK) rc = tm_file_write(file, b.data, b.len);
    tm_buf_free(&b);
    return rc;
}

/* The timeline as SVG: title, one stacked picture a lane with its legend below, the axis of seconds. */
#include "io/file/file.h"
#include "offload/sim/timeline_internal.h"

#include "offload/offload_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LEFT = 150, RIGHT = 40, HEAD = 92, LEGEND_ROW = 18, GAP = 14, AXIS = 46, CHAR_WIDTH = 6, PLOT = TIMELINE_BINS };

/* Bytes of the well-formed UTF-8 sequence at `s`; 0: none. */
static size_t sequence(const unsigned char *s) {
    static const unsigned char least[] = {0, 0x80, 0xa0, 0x90};
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 || s[0] == 0xf0) && s[1] < least[n - 1]) return 0;
    if ((s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return n;
}

static tm_status put_escaped(tm_buf *b, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        size_t n = sequence(s);
        const char *entity = *s == '<'   ? "&lt;"
                             : *s == '>' ? "&gt;"
                             : *s == '&' ? "&amp;"
                             : *s == '"' ? "&quot;"
                                         : NULL;
        if (entity)
            TM_TRY(tm_buf_printf(b, "%s", entity));
        else
            TM_TRY(n && *s >= ' ' ? tm_buf_append(b, s, n) : tm_buf_append(b, "?", 1));
        s += n ? n : 1;
    }
    return TM_OK;
}

/* `style`: attributes. */
static tm_status put_text(tm_buf *b, double x, double y, const char *style, const char *text) {
    TM_TRY(tm_buf_printf(b, "<text x=\"%g\" y=\"%g\" %s>", x, y, style));
    TM_TRY(put_escaped(b, text));
    return tm_buf_printf(b, "</text>\n");
}

static const char *amount(const timeline_lane *lane, double v, char *buf, size_t cap) {
    if (lane->unit == LANE_BUSY)
        snprintf(buf, cap,
                 v < 1e-3   ? "%.0f us"
                 : v < 0.1  ? "%.1f ms"
                 : v < 9.95 ? "%.2f s"
                            : "%.1f s",
                 v < 1e-3  ? v * 1e6
                 : v < 0.1 ? v * 1e3
                           : v);
    else
        tm_format_size((uint64_t)v, buf, cap);
    return buf;
}

static int plot_height(const timeline_lane *lane) {
    return lane->unit == LANE_BUSY ? 44 : 96;
}

static bool has_total(const timeline_lane *lane) {
    return lane->unit != LANE_BYTES;
}

/* What the legend says of class `c`, and how wide that is. */
static int legend_text(const timeline_lane *lane, uint32_t c, char *text, size_t cap) {
    char total[32];
    const timeline_class *k = &lane->class[c];
    if (has_total(lane))
        snprintf(text, cap, "%s %s", k->name, amount(lane, k->total, total, sizeof total));
    else
        snprintf(text, cap, "%s", k->name);
    return 34 + CHAR_WIDTH * (int)strlen(text);
}

/* Draws it, or with b == NULL only counts its rows. */
static tm_status put_legend(tm_buf *b, const timeline_lane *lane, int top, int *rows) {
    int x = 0, width;
    char text[96];
    *rows = 1;
    for (uint32_t c = 0; c < lane->classes; c++) {
        if (!(lane->class[c].total > 0)) continue;
        width = legend_text(lane, c, text, sizeof text);
        if (x + width > PLOT) x = 0, ++*rows;
        int left = x, y = top + (*rows - 1) * LEGEND_ROW;
        x += width;
        if (!b) continue;
        TM_TRY(tm_buf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/>\n", left, y + 5,
                             lane->class[c].colour));
        TM_TRY(put_text(b, left + 15, y + 14, "class=\"s\"", text));
    }
    return TM_OK;
}

/* Everything up to class `last` of the stack as one step line; classes in front are drawn over it. */
static tm_status put_stack(tm_buf *b, const timeline_lane *lane, uint32_t last, int height) {
    double before = height;
    TM_TRY(tm_buf_printf(b, "<path fill=\"%s\" d=\"M0 %d", lane->class[last].colour, height));
    for (int bin = 0; bin < PLOT; bin++) {
        double sum = 0;
        for (uint32_t c = 0; c <= last; c++) sum += lane->value[c][bin];
        double y = round((1 - fmin(1, sum / lane->top)) * height * 10) / 10;
        if (y == before) continue;
        TM_TRY(tm_buf_printf(b, "H%dV%g", bin, y));
        before = y;
    }
    return tm_buf_printf(b, "H%dV%dZ\"/>\n", PLOT, height);
}

static tm_status put_limit(tm_buf *b, const timeline_lane *lane, int height) {
    char size[40];
    if (!(lane->limit > 0)) return TM_OK;
    double y = (1 - lane->limit / lane->top) * height;
    TM_TRY(tm_buf_printf(b, "<path class=\"limit\" d=\"M0 %.1fH%d\"/>\n", y, PLOT));
    if (lane->unit == LANE_RATE)
        snprintf(size, sizeof size, "%.3g GB/s", lane->limit * 1e-9);
    else
        tm_format_size((uint64_t)lane->limit, size, sizeof size);
    return put_text(b, -8, y + 4, "class=\"s\" text-anchor=\"end\"", size);
}

static tm_status put_lane(tm_buf *b, const timeline_lane *lane, int *top) {
    int height = plot_height(lane), rows;
    TM_TRY(tm_buf_printf(b, "<g transform=\"translate(%d %d)\">\n", LEFT, *top));
    TM_TRY(tm_buf_printf(b, "<rect class=\"bg\" width=\"%d\" height=\"%d\"/>\n", PLOT, height));
    for (uint32_t c = lane->classes; c-- > 0;) TM_TRY(put_stack(b, lane, c, height));
    TM_TRY(put_limit(b, lane, height));
    TM_TRY(put_text(b, 16 - LEFT, height / 2.0 + (lane->note[0] ? -2 : 5), "class=\"n\"", lane->name));
    TM_TRY(put_text(b, 16 - LEFT, height / 2.0 + 14, "class=\"s\"", lane->note));
    TM_TRY(put_legend(b, lane, height, &rows));
    *top += height + rows * LEGEND_ROW + GAP;
    return tm_buf_printf(b, "</g>\n");
}

static double tick_of(double seconds) {
    double tick = pow(10, floor(log10(seconds)));
    return seconds / tick > 5 ? tick : seconds / tick > 2 ? tick / 2 : tick / 5;
}

/* Behind the lanes: lines from `top` to `bottom`, their seconds below. */
static tm_status put_axis(tm_buf *b, double seconds, int top, int bottom) {
    char text[32];
    if (!(seconds > 0)) return TM_OK;
    double tick = tick_of(seconds);
    for (int i = 0; i * tick <= seconds * (1 + 1e-9); i++) {
        double x = LEFT + i * tick / seconds * PLOT;
        TM_TRY(tm_buf_printf(b, "<path class=\"tick\" d=\"M%.1f %dV%d\"/>\n", x, top, bottom));
        snprintf(text, sizeof text, "%g", i * tick);
        TM_TRY(put_text(b, x, bottom + 16, "class=\"s\" text-anchor=\"middle\"", text));
    }
    return put_text(b, LEFT + PLOT / 2.0, bottom + 34, "class=\"s\" text-anchor=\"middle\"", "seconds of one step");
}

static tm_status put_head(tm_buf *b, const tm_timeline *t) {
    char line[256], engine[32];
    const tm_sim_result *r = t->result;
    bool cpu_only = r->bottleneck == TM_ENGINE_CPU && !(r->busy[TM_ENGINE_DEVICE] > 0);
    snprintf(engine, sizeof engine, "%s", cpu_only ? "compute" : tm_engine_name(r->bottleneck));
    for (char *c = engine; *c; c++)
        if (*c == '_') *c = ' ';
    double share = r->seconds > 0 ? fmin(100, 100 * r->busy[r->bottleneck] / r->seconds) : 0;
    snprintf(line, sizeof line, "%.4g s a step. Bottleneck: %s, busy %.0f%% of it.", r->seconds, engine, share);
    TM_TRY(put_text(b, 16, 32, "class=\"t\"", t->title ? t->title : t->plan->name));
    TM_TRY(put_text(b, 16, 54, "class=\"l\"", line));
    return put_text(b, 16, 74, "class=\"s\"", t->subtitle ? t->subtitle : "");
}

static const char *const style =
    "<style>text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2933}"
    ".t{font-size:19px;font-weight:600}.l{font-size:14px}.n{font-size:13px;font-weight:600}"
    ".s{font-size:11px;fill:#52606d}.bg{fill:#eef1f4}path{shape-rendering:crispEdges}"
    ".tick{stroke:#cbd2d9;fill:none}.limit{stroke:#1f2933;stroke-dasharray:4 3;fill:none}</style>\n";

static tm_status draw_all(tm_buf *svg, const timeline *data, const tm_timeline *t) {
    int bottom = HEAD, top = HEAD, rows;
    for (uint32_t i = 0; i < data->lanes; i++) {
        TM_TRY(put_legend(NULL, &data->lane[i], 0, &rows));
        bottom += plot_height(&data->lane[i]) + rows * LEGEND_ROW + GAP;
    }
    int width = LEFT + PLOT + RIGHT, height = bottom + AXIS;
    TM_TRY(tm_buf_printf(svg,
                         "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
                         "%s<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                         width, height, width, height, style, width, height));
    TM_TRY(put_head(svg, t));
    TM_TRY(put_axis(svg, data->seconds, HEAD - 6, bottom));
    for (uint32_t i = 0; i < data->lanes; i++) TM_TRY(put_lane(svg, &data->lane[i], &top));
    return tm_buf_printf(svg, "</svg>\n");
}

tm_status tm_timeline_write(const char *path, const tm_timeline *t) {
    tm_buf text = {0};
    tm_status rc;
    timeline *data = tm_malloc(sizeof *data);
    if (!data) return tm_nomem(sizeof *data);
    TM_GO(timeline_fill(data, t));
    TM_GO(draw_all(&text, data, t));
    rc = tm_file_write(path, text.data, text.len);
done:
    tm_buf_free(&text);
    tm_free(data);
    return rc;
}

/* Memory against seconds a step: letters on a terminal, lines in an SVG. Both axes go by powers of two. */
#include "tools/plan_table.h"

#include "io/file/file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct scale {
    double from, to; /* logarithms to the base 2 */
} scale;

static void widen(scale *s, double value) {
    double at = log2(value);
    if (at < s->from) s->from = at;
    if (at > s->to) s->to = at;
}

static void scales(const tm_table *t, scale *memory, scale *seconds) {
    *memory = *seconds = (scale){INFINITY, -INFINITY};
    for (unsigned i = 0; i < t->n; i++)
        for (unsigned k = 0; k < t->row[i].n; k++) {
            widen(memory, (double)t->row[i].cell[k].budget);
            widen(seconds, fmax(t->row[i].cell[k].seconds, 1e-6));
        }
    for (scale *const *s = (scale *const[]){memory, seconds, NULL}; *s; s++)
        if ((*s)->to - (*s)->from < 1) (*s)->from -= 0.5, (*s)->to += 0.5;
}

/* 0 to 1 */
static double place(const scale *s, double value) {
    return (log2(value) - s->from) / (s->to - s->from);
}

/* ---- on a terminal ------------------------------------------------------------------------------------------------- */

enum { WIDTH = 60, HEIGHT = 12 };

static void mark(char grid[HEIGHT][WIDTH + 1], double x, double y, char letter) {
    int column = (int)lround(x * (WIDTH - 1)), line = (int)lround((1 - y) * (HEIGHT - 1));
    char *at = &grid[line][column];
    *at = *at == ' ' || *at == letter ? letter : '+'; /* several */
}

/* A letter of its name that no row before it has. */
static void choose_letters(const tm_table *t, char letter[TM_TABLE_METHODS]) {
    bool taken[256] = {false};
    for (unsigned i = 0; i < t->n; i++) {
        const char *c = tm_table_name(&t->row[i]);
        while (*c && taken[(unsigned char)*c]) c++;
        letter[i] = *c ? *c : '?';
        taken[(unsigned char)letter[i]] = true;
    }
}

void tm_chart_print(const tm_table *t) {
    char grid[HEIGHT][WIDTH + 1], letter[TM_TABLE_METHODS], a[32], b[32];
    scale memory, seconds;
    scales(t, &memory, &seconds);
    choose_letters(t, letter);
    for (int y = 0; y < HEIGHT; y++) {
        memset(grid[y], ' ', WIDTH);
        grid[y][WIDTH] = 0;
    }
    for (unsigned i = 0; i < t->n; i++)
        for (unsigned k = 0; k < t->row[i].n; k++)
            mark(grid, place(&memory, (double)t->row[i].cell[k].budget),
                 place(&seconds, fmax(t->row[i].cell[k].seconds, 1e-6)), letter[i]);
    printf("\n  s/step\n");
    for (int y = 0; y < HEIGHT; y++) {
        if (y == 0 || y == HEIGHT - 1)
            printf("%10.3f |%s\n", exp2(y ? seconds.from : seconds.to), grid[y]);
        else
            printf("%10s |%s\n", "", grid[y]);
    }
    printf("%10s +", "");
    for (int x = 0; x < WIDTH; x++) putchar('-');
    printf("\n%12s%-*s%s memory\n", "", WIDTH - 10, tm_format_size((uint64_t)exp2(memory.from), a, sizeof a),
           tm_format_size((uint64_t)exp2(memory.to), b, sizeof b));
    printf("%12s", "");
    for (unsigned i = 0; i < t->n; i++)
        if (t->row[i].n) printf("%c %s  ", letter[i], tm_table_name(&t->row[i]));
    printf("+ several\n");
}

/* ---- SVG ------------------------------------------------------------------------------------------------------------ */

enum { LEFT = 70, TOP = 20, PLOT_WIDTH = 520, PLOT_HEIGHT = 300, LINE = 18 };
static const char *const colours[] = {"#2a78d6", "#008300", "#e87ba4", "#eda100",
                                      "#4a3aa7", "#1baf7a", "#eb6834", "#e34948"};

static double x_of(const scale *s, double bytes) {
    return LEFT + place(s, bytes) * PLOT_WIDTH;
}

static double y_of(const scale *s, double seconds) {
    return TOP + (1 - place(s, fmax(seconds, 1e-6))) * PLOT_HEIGHT;
}

static tm_status draw_axes(tm_buf *out, const scale *memory, const scale *seconds) {
    char text[32];
    for (double e = ceil(memory->from); e <= memory->to; e++) {
        double x = x_of(memory, exp2(e));
        TM_TRY(tm_buf_printf(out,
                             "<line class=\"g\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" "
                             "text-anchor=\"middle\">%s</text>\n",
                             x, TOP, x, TOP + PLOT_HEIGHT, x, TOP + PLOT_HEIGHT + LINE,
                             tm_format_size((uint64_t)exp2(e), text, sizeof text)));
    }
    double step = fmax(1, ceil((seconds->to - seconds->from) / 8));
    for (double e = ceil(seconds->from); e <= seconds->to; e += step) {
        double y = y_of(seconds, exp2(e));
        TM_TRY(tm_buf_printf(out,
                             "<line class=\"g\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
                             "text-anchor=\"end\">%.3g s</text>\n",
                             LEFT, y, LEFT + PLOT_WIDTH, y, LEFT - 6, y + 4, exp2(e)));
    }
    return tm_buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">host memory</text>\n",
                         LEFT + PLOT_WIDTH / 2, TOP + PLOT_HEIGHT + 2 * LINE);
}

static tm_status draw_row(tm_buf *out, const tm_table_row *row, unsigned i, const scale *memory, const scale *seconds) {
    const char *colour = colours[i % TM_COUNT(colours)], *name = tm_table_name(row);
    char size[32];
    TM_TRY(tm_buf_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour));
    for (unsigned k = 0; k < row->n; k++)
        TM_TRY(tm_buf_printf(out, "%.1f,%.1f ", x_of(memory, (double)row->cell[k].budget),
                             y_of(seconds, row->cell[k].seconds)));
    TM_TRY(tm_buf_printf(out, "\"/>\n"));
    for (unsigned k = 0; k < row->n; k++)
        TM_TRY(tm_buf_printf(
            out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"><title>%s: %s, %.3f s a step</title></circle>\n",
            x_of(memory, (double)row->cell[k].budget), y_of(seconds, row->cell[k].seconds), colour, name,
            tm_format_size(row->cell[k].budget, size, sizeof size), row->cell[k].seconds));
    return tm_buf_printf(out, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>\n",
                         LEFT + PLOT_WIDTH + 16, TOP + 4 + LINE * (int)i, colour, LEFT + PLOT_WIDTH + 26,
                         TOP + 8 + LINE * (int)i, name);
}

static tm_status draw(const tm_table *t, tm_buf *out) {
    scale memory, seconds;
    scales(t, &memory, &seconds);
    TM_TRY(tm_buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<title>memory against seconds a step</title>\n"
        "<style>svg{background:#fff} text{fill:#333} .g{stroke:#ddd} @media (prefers-color-scheme:dark)"
        "{svg{background:#161616} text{fill:#ddd} .g{stroke:#444}}</style>\n",
        LEFT + PLOT_WIDTH + 100, TOP + PLOT_HEIGHT + 3 * LINE));
    TM_TRY(draw_axes(out, &memory, &seconds));
    for (unsigned i = 0; i < t->n; i++)
        if (t->row[i].n) TM_TRY(draw_row(out, &t->row[i], i, &memory, &seconds));
    return tm_buf_printf(out, "</svg>\n");
}

tm_status tm_chart_draw(const tm_table *t, const char *path) {
    tm_buf out = {0};
    tm_status rc = draw(t, &out);
    if (rc == TM_OK) rc = tm_file_write(path, out.data, out.len);
    tm_buf_free(&out);
    return rc;
}

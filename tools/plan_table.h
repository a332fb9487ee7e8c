/* tidemill plan without a configuration: methods and budgets side by side, and a chart of memory against seconds. */
#ifndef TIDEMILL_TOOLS_PLAN_TABLE_H
#define TIDEMILL_TOOLS_PLAN_TABLE_H

#include "planner/planner.h"
#include "tools/methods.h"

enum { TM_TABLE_METHODS = 16, TM_TABLE_BUDGETS = 6 };
typedef struct tm_table_cell {
    uint64_t budget, peak; /* bytes of host memory; budget 0: the cell is empty */
    double seconds, tokens_per_second;
    uint64_t disk, read, written; /* bytes; the last two a step */
} tm_table_cell;
typedef struct tm_table_row {
    const tm_method *method; /* NULL: as the options say */
    uint64_t least;          /* host memory; 0: it was refused */
    char why[2048];          /* then */
    uint64_t parameters, learning;
    tm_table_cell cell[TM_TABLE_BUDGETS];
    unsigned n;
} tm_table_row;
typedef struct tm_table {
    tm_table_row row[TM_TABLE_METHODS];
    unsigned n;
    uint64_t memory; /* what a budget may be */
} tm_table;

enum { TM_TABLE_SIZE_BYTES = 32 };
/* A budget to the byte, as a configuration and --budget take it. */
const char *tm_table_size(uint64_t bytes, char buf[TM_TABLE_SIZE_BYTES]);
const char *tm_table_name(const tm_table_row *row);
/* Plans all of it and prints; `methods`: names with commas, or NULL; `chart`: an SVG file to write, or NULL. The exit status. */
int tm_plan_show_table(const tm_plan_args *args, const char *methods, const char *chart, bool json);
/* Plans `row` under budgets from the least up to `memory`. A refusal is in its `why`. */
tm_status tm_table_fill(const tm_plan_args *args, uint64_t memory, tm_table_row *row) TM_MUST_USE;
/* The cell with the least memory with which a step takes at most a tenth longer than the fastest. */
unsigned tm_table_best(const tm_table_row *row);
/* What a budget may be: four fifths of the machine's memory, or of what is free now. */
uint64_t tm_table_memory(const tm_plan_args *args, bool now);

/* plan_chart.c: memory against seconds a step, both by powers. */
void tm_chart_print(const tm_table *t);
tm_status tm_chart_draw(const tm_table *t, const char *path) TM_MUST_USE;

#endif

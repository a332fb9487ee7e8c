#include "lp_solve.h"

#include <glpk.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const double MIB = 1 << 20;

struct lp_problem {
    const lp_facts *f;
    glp_prob *lp;
    bool solved;
    /* columns; those of items are 1 + item */
    int resident; /* state that is kept */
    int *row_gap; /* per row: kept temporaries between intervals */
    int *end_gap; /* per end of segment */
    int *seconds; /* per segment */
    int *reads, *writes;
    int *ahead;                   /* at the end of a segment: read, not used yet */
    int *written;                 /* closed less written, below 0 where writes are early */
    int *pending;                 /* the same, at least 0: takes memory */
    int *row_ahead, *row_pending; /* the least of them inside a segment */
    /* rows with the budget on the right-hand side, and what to take off it */
    int *limit;
    double *less;
    uint32_t n_limits;
    /* the matrix under construction */
    int *ia, *ja;
    double *ar;
    uint32_t n, cap;
};

static void *zeros(size_t n, size_t bytes) {
    void *p = calloc(n + 1, bytes);
    assert_non_null(p);
    return p;
}

static void put(lp_problem *p, int row, int col, double v) {
    if (p->n + 1 >= p->cap) {
        p->cap = p->cap ? p->cap * 2 : 4096;
        p->ia = realloc(p->ia, p->cap * sizeof *p->ia);
        p->ja = realloc(p->ja, p->cap * sizeof *p->ja);
        p->ar = realloc(p->ar, p->cap * sizeof *p->ar);
        assert_true(p->ia && p->ja && p->ar);
    }
    p->n++;
    p->ia[p->n] = row;
    p->ja[p->n] = col;
    p->ar[p->n] = v;
}

static int column(lp_problem *p, int bounds, double lo, double hi) {
    int c = glp_add_cols(p->lp, 1);
    glp_set_col_bnds(p->lp, c, bounds, lo, hi);
    return c;
}

static int row(lp_problem *p, int bounds, double lo, double hi) {
    int r = glp_add_rows(p->lp, 1);
    glp_set_row_bnds(p->lp, r, bounds, lo, hi);
    return r;
}

/* sign * sum of amount * (1 - x): puts the terms, returns the constant. */
static double not_kept(lp_problem *p, int r, const lp_list *l, double sign) {
    double constant = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        put(p, r, 1 + (int)l->term[i].item, -sign * l->term[i].amount);
        constant += sign * l->term[i].amount;
    }
    return constant;
}

/* gap = gap before + change * x. */
static int gap_column(lp_problem *p, int before, const lp_list *change) {
    int c = column(p, GLP_FR, 0, 0), r = row(p, GLP_FX, 0, 0);
    put(p, r, c, 1);
    if (before) put(p, r, before, -1);
    for (uint32_t i = 0; i < change->n; i++) put(p, r, 1 + (int)change->term[i].item, -change->term[i].amount);
    return c;
}

/* resident + gap + fixed + open * (1 - x) <= budget; returns the row for what else takes memory. */
static int memory_row(lp_problem *p, const lp_moment *m, int gap) {
    int r = row(p, GLP_UP, 0, 0);
    put(p, r, p->resident, 1);
    put(p, r, gap, 1);
    p->less[p->n_limits] = m->fixed + p->f->always + not_kept(p, r, &m->open, 1);
    p->limit[p->n_limits++] = r;
    return r;
}

static void items(lp_problem *p, bool bytes) {
    const lp_facts *f = p->f;
    double constant = 0;
    for (uint32_t i = 0; i < f->n_items; i++) {
        int c = column(p, GLP_DB, 0, 1);
        double moved = f->item[i].read + f->item[i].write;
        if (!bytes) continue;
        glp_set_obj_coef(p->lp, c, -moved);
        constant += moved;
    }
    glp_set_obj_coef(p->lp, 0, constant);
    p->resident = column(p, GLP_FR, 0, 0);
    int r = row(p, GLP_FX, 0, 0);
    put(p, r, p->resident, 1);
    for (uint32_t i = 0; i < f->n_items; i++)
        if (f->item[i].state) put(p, r, 1 + (int)i, -f->item[i].mib);
}

/* ---- time ---------------------------------------------------------------------------------------------------- */

/* at most `rate` MiB a second of `col` in segment s */
static void rate_row(lp_problem *p, uint32_t s, int col, double rate) {
    int r = row(p, GLP_UP, 0, 0);
    put(p, r, col, 1 / rate);
    put(p, r, p->seconds[s], -1);
}

static void disk_rows(lp_problem *p, uint32_t s, const tm_disk *disk) {
    double read = disk->read_bps / MIB, write = disk->write_bps / MIB;
    rate_row(p, s, p->reads[s], read);
    rate_row(p, s, p->writes[s], write);
    int r = row(p, GLP_UP, 0, 0);
    put(p, r, p->reads[s], 1 / read);
    put(p, r, p->writes[s], 1 / write);
    put(p, r, p->seconds[s], -(1 + disk->duplex));
}

/* reads = ahead - ahead before + need;  written = written before + closed - writes, and >= -early. */
static void flow_rows(lp_problem *p, uint32_t s, int ahead_before, int written_before) {
    const lp_segment *g = &p->f->segment[s];
    int r = row(p, GLP_FX, 0, 0);
    put(p, r, p->reads[s], 1);
    put(p, r, p->ahead[s], -1);
    if (ahead_before) put(p, r, ahead_before, 1);
    double constant = not_kept(p, r, &g->need, -1);
    glp_set_row_bnds(p->lp, r, GLP_FX, -constant, -constant);
    r = row(p, GLP_FX, 0, 0);
    put(p, r, p->written[s], 1);
    if (written_before) put(p, r, written_before, -1);
    put(p, r, p->writes[s], 1);
    constant = not_kept(p, r, &g->closed, -1);
    glp_set_row_bnds(p->lp, r, GLP_FX, -constant, -constant);
    r = row(p, GLP_LO, 0, 0); /* pending >= written */
    put(p, r, p->pending[s], 1);
    put(p, r, p->written[s], -1);
}

static void time_columns(lp_problem *p, uint32_t s) {
    p->seconds[s] = column(p, GLP_LO, p->f->segment[s].seconds, 0);
    glp_set_obj_coef(p->lp, p->seconds[s], 1);
    p->reads[s] = column(p, GLP_LO, 0, 0);
    p->writes[s] = column(p, GLP_LO, 0, 0);
    p->ahead[s] = column(p, GLP_LO, 0, 0);
    p->written[s] = column(p, GLP_FR, 0, 0);
    p->pending[s] = column(p, GLP_LO, 0, 0);
    p->row_ahead[s] = column(p, GLP_LO, 0, 0);
    p->row_pending[s] = column(p, GLP_LO, 0, 0);
}

/* What may be written before the interval is over: changed by the end of s, closed later. */
static void early_rows(lp_problem *p) {
    const lp_facts *f = p->f;
    double *early = zeros(f->n_items, sizeof *early);
    for (uint32_t s = 0; s < f->n_segments; s++) {
        const lp_segment *g = &f->segment[s];
        for (uint32_t i = 0; i < g->changed.n; i++) early[g->changed.term[i].item] += g->changed.term[i].amount;
        for (uint32_t i = 0; i < g->closed.n; i++) early[g->closed.term[i].item] -= g->closed.term[i].amount;
        int r = row(p, GLP_LO, 0, 0);
        put(p, r, p->written[s], 1);
        double constant = 0;
        for (uint32_t i = 0; i < f->n_items; i++) {
            if (early[i] < 1e-9) continue;
            put(p, r, 1 + (int)i, -early[i]);
            constant += early[i];
        }
        glp_set_row_bnds(p->lp, r, GLP_LO, -constant, 0);
    }
    free(early);
}

/* Inside segment s: what was ahead at its begin less what is needed in it; what is pending at its end less what closed
 * in it. */
static void inside_rows(lp_problem *p, uint32_t s, int ahead_before) {
    const lp_segment *g = &p->f->segment[s];
    int r = row(p, GLP_LO, 0, 0);
    put(p, r, p->row_ahead[s], 1);
    if (ahead_before) put(p, r, ahead_before, -1);
    double constant = not_kept(p, r, &g->need, 1);
    glp_set_row_bnds(p->lp, r, GLP_LO, -constant, 0);
    r = row(p, GLP_LO, 0, 0);
    put(p, r, p->row_pending[s], 1);
    put(p, r, p->written[s], -1);
    constant = not_kept(p, r, &g->closed, 1);
    glp_set_row_bnds(p->lp, r, GLP_LO, -constant, 0);
}

static void time_rows(lp_problem *p, const tm_disk *disk, bool cyclic) {
    uint32_t n = p->f->n_segments;
    for (uint32_t s = 0; s < n; s++) {
        int ahead = s ? p->ahead[s - 1] : cyclic ? p->ahead[n - 1] : 0;
        int written = s ? p->written[s - 1] : cyclic ? p->written[n - 1] : 0;
        disk_rows(p, s, disk);
        flow_rows(p, s, ahead, written);
        inside_rows(p, s, ahead);
        p->end_gap[s] = gap_column(p, s ? p->end_gap[s - 1] : 0, &p->f->segment[s].at_end.change);
        int r = memory_row(p, &p->f->segment[s].at_end, p->end_gap[s]);
        put(p, r, p->ahead[s], 1);
        put(p, r, p->pending[s], 1);
    }
    early_rows(p);
    if (cyclic) return;
    glp_set_col_bnds(p->lp, p->ahead[n - 1], GLP_FX, 0, 0);
    glp_set_col_bnds(p->lp, p->written[n - 1], GLP_FX, 0, 0);
}

void lp_quiet(void) {
    (void)glp_term_out(GLP_OFF);
}

/* ---- the problem --------------------------------------------------------------------------------------------- */

static void columns_of(lp_problem *p) {
    uint32_t n = p->f->n_segments, rows = p->f->n_rows;
    int **per_segment[] = {&p->end_gap, &p->seconds, &p->reads,     &p->writes,     &p->ahead,
                           &p->written, &p->pending, &p->row_ahead, &p->row_pending};
    for (size_t i = 0; i < TM_COUNT(per_segment); i++) *per_segment[i] = zeros(n, sizeof(int));
    p->row_gap = zeros(rows, sizeof(int));
    p->limit = zeros(n + rows, sizeof(int));
    p->less = zeros(n + rows, sizeof(double));
}

lp_problem *lp_problem_make(const lp_facts *f, const tm_machine *machine, bool cyclic) {
    lp_problem *p = zeros(1, sizeof *p);
    p->f = f;
    p->lp = glp_create_prob();
    glp_set_obj_dir(p->lp, GLP_MIN);
    columns_of(p);
    items(p, !machine);
    for (uint32_t s = 0; machine && s < f->n_segments; s++) time_columns(p, s);
    if (machine) time_rows(p, &machine->disk, cyclic);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        p->row_gap[i] = gap_column(p, i ? p->row_gap[i - 1] : 0, &f->row[i].moment.change);
        int r = memory_row(p, &f->row[i].moment, p->row_gap[i]);
        if (!machine) continue;
        put(p, r, p->row_ahead[f->row[i].segment], 1);
        put(p, r, p->row_pending[f->row[i].segment], 1);
    }
    glp_load_matrix(p->lp, (int)p->n, p->ia, p->ja, p->ar);
    return p;
}

bool lp_problem_solve(lp_problem *p, uint64_t budget, double *optimum) {
    glp_smcp o;
    glp_init_smcp(&o);
    o.msg_lev = GLP_MSG_ERR;
    o.meth = GLP_DUALP;
    for (uint32_t i = 0; i < p->n_limits; i++)
        glp_set_row_bnds(p->lp, p->limit[i], GLP_UP, 0, (double)budget / MIB - p->less[i]);
    if (!p->solved) {
        glp_scale_prob(p->lp, GLP_SF_AUTO);
        glp_adv_basis(p->lp, 0);
    }
    p->solved = glp_simplex(p->lp, &o) == 0 && glp_get_status(p->lp) == GLP_OPT;
    *optimum = glp_get_obj_val(p->lp);
    return p->solved;
}

void lp_problem_moved(const lp_problem *p, double moved[TM_KINDS]) {
    for (int k = 0; k < TM_KINDS; k++) moved[k] = 0;
    for (uint32_t i = 0; i < p->f->n_items; i++) {
        const lp_item *item = &p->f->item[i];
        moved[item->kind] += (item->read + item->write) * (1 - glp_get_col_prim(p->lp, 1 + (int)i));
    }
}

void lp_problem_free(lp_problem *p) {
    if (!p) return;
    glp_delete_prob(p->lp);
    void *all[] = {p->row_gap,   p->end_gap,     p->seconds, p->reads, p->writes, p->ahead, p->written, p->pending,
                   p->row_ahead, p->row_pending, p->limit,   p->less,  p->ia,     p->ja,    p->ar,      p};
    for (size_t i = 0; i < TM_COUNT(all); i++) free(all[i]);
}

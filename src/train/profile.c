/* --profile: where each second of a step went, by what computed and by what was waited for. The executor notes when
 * each operation began and ended (two readings of a clock, 16 bytes an operation); here they are added up at a step's
 * end.
 *
 *     step = compute (by kind of operation) + waits (for reads, writes, copies, other ranks) + the rest (executor, log)
 *
 * Beside it stands how long each engine was at work: transfers overlap each other and compute, so that of those only
 * the time in which at least one was under way is a share of the step. */
#include "planner/cost.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, ENGINES = TM_ENGINE_COMM + 1 };

/* A kind of operation: "forward attn", "update", "gather". */
typedef struct row {
    uint16_t code;
    const char *stage; /* NULL: it has none */
    uint8_t engine;
    double seconds;
    uint64_t count;
} row;

struct trainer_profile {
    row row[ROWS];
    uint32_t n_rows;
    uint64_t steps;
    double total, compute, read, write, copy, comm; /* in tm_exec_run; waits */
    double busy[ENGINES];                           /* at least one operation of the engine under way */
    uint64_t read_bytes, write_bytes;
    tm_span *span; /* [cap] of one engine, sorted */
    uint32_t cap;
};

tm_status trainer_profile_open(trainer *t) {
    if (!t->s.args->profile && !t->s.cfg->wall_clock_breakdown) return TM_OK;
    trainer_profile *p = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    t->profile = p;
    uint32_t n = tm_plan_get_info(t->plans.step)->ops;
    if (t->plans.first) n = (uint32_t)tm_max_u64(n, tm_plan_get_info(t->plans.first)->ops);
    p->span = tm_malloc(sizeof *p->span * n);
    if (!p->span) {
        trainer_profile_close(t);
        return tm_nomem(sizeof *p->span * n);
    }
    p->cap = n;
    tm_exec_trace(t->job->tiers.exec, true);
    return TM_OK;
}

void trainer_profile_close(trainer *t) {
    if (t->profile) tm_free(t->profile->span);
    tm_free(t->profile);
    t->profile = NULL;
}

static const char *stage_of(const tm_job *job, const tm_op *op) {
    const op_row *of = op_row_of(op->code);
    op_args a = op_args_of(op);
    return of && of->label == OP_OF_STAGE ? tm_model_unit(job->model, a.stage.unit)->stage[a.stage.stage].name : NULL;
}

static row *row_of(trainer_profile *p, const tm_job *job, const tm_plan_op *o) {
    const char *stage = stage_of(job, &o->op);
    uint32_t i = 0;
    for (; i < p->n_rows; i++) {
        const row *r = &p->row[i];
        if (r->code == o->op.code && (r->stage == stage || (stage && r->stage && !strcmp(r->stage, stage)))) break;
    }
    if (i == ROWS) return &p->row[ROWS - 1];
    if (i == p->n_rows) p->row[p->n_rows++] = (row){.code = o->op.code, .stage = stage, .engine = o->engine};
    return &p->row[i];
}

static int by_start(const void *a, const void *b) {
    const tm_span *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Seconds in which at least one of them was under way. */
static double covered(tm_span *all, uint32_t n) {
    double sum = 0, end = -1e300;
    qsort(all, n, sizeof *all, by_start);
    for (uint32_t i = 0; i < n; i++) {
        double from = all[i].start > end ? all[i].start : end;
        if (all[i].end > from) sum += all[i].end - from;
        if (all[i].end > end) end = all[i].end;
    }
    return sum;
}

static void add_engine(trainer_profile *p, const tm_plan_op *op, const tm_span *times, uint32_t n, uint8_t engine) {
    uint32_t k = 0;
    for (uint32_t i = 0; i < n && k < p->cap; i++)
        if (op[i].engine == engine) p->span[k++] = times[i];
    p->busy[engine] += covered(p->span, k);
}

void trainer_profile_add(trainer *t, const tm_run_stats *s) {
    trainer_profile *p = t->profile;
    uint32_t n;
    if (!p || !s->span) return;
    const tm_plan_op *op = tm_plan_ops(s->plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].engine != TM_ENGINE_CPU && op[i].engine != TM_ENGINE_COMM) continue;
        row *r = row_of(p, t->job, &op[i]);
        r->seconds += s->span[i].end - s->span[i].start;
        r->count++;
    }
    static const uint8_t engines[] = {TM_ENGINE_DISK_READ, TM_ENGINE_DISK_WRITE, TM_ENGINE_COPY_IN, TM_ENGINE_COPY_OUT,
                                      TM_ENGINE_COMM};
    for (size_t i = 0; i < TM_COUNT(engines); i++) add_engine(p, op, s->span, n, engines[i]);
    p->steps++;
    p->total += (double)s->total_ns * 1e-9;
    p->compute += (double)s->compute_ns * 1e-9;
    p->read += (double)s->wait_read_ns * 1e-9;
    p->write += (double)s->wait_write_ns * 1e-9;
    p->copy += (double)s->wait_copy_ns * 1e-9;
    p->comm += (double)s->wait_comm_ns * 1e-9;
    for (int k = 0; k < TM_KINDS; k++) {
        p->read_bytes += s->read_bytes[k];
        p->write_bytes += s->write_bytes[k];
    }
}

static double rest(const trainer_profile *p) {
    double left = p->total - p->compute - p->read - p->write - p->copy - p->comm;
    return left > 0 ? left : 0;
}

static const char *row_name(const row *r, char *buf, size_t cap) {
    snprintf(buf, cap, "%s%s%s", job_op_word(r->code), r->stage ? " " : "", r->stage ? r->stage : "");
    return buf;
}

static int by_seconds(const void *a, const void *b) {
    const row *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void line(const trainer_profile *p, const char *indent, const char *name, double seconds) {
    fprintf(stderr, "  %s%-*s %10.4f s %5.1f%%", indent, 28 - (int)strlen(indent), name, seconds / (double)p->steps,
            p->total > 0 ? 100 * seconds / p->total : 0);
}

static void disk_line(const trainer_profile *p, const char *name, double wait, tm_op_engine engine, uint64_t bytes) {
    double busy = p->busy[engine];
    line(p, "", name, wait);
    if (busy > 0)
        fprintf(stderr, "   under way %.4f s, %.2f GB at %.2f GB/s", busy / (double)p->steps,
                (double)bytes / (double)p->steps * 1e-9, (double)bytes / busy * 1e-9);
    fputc('\n', stderr);
}

static void table(const trainer_profile *p) {
    char name[48];
    tm_live_end();
    fprintf(stderr, "where the seconds of a step went (mean of %llu steps, %.4f s each):\n",
            (unsigned long long)p->steps, p->total / (double)p->steps);
    line(p, "", "compute", p->compute);
    fputc('\n', stderr);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const row *r = &p->row[i];
        if (r->engine != TM_ENGINE_CPU || r->seconds < 5e-4 * p->total) continue;
        line(p, "  ", row_name(r, name, sizeof name), r->seconds);
        fprintf(stderr, "   %llu x\n", (unsigned long long)(r->count / p->steps));
    }
    disk_line(p, "waiting for reads", p->read, TM_ENGINE_DISK_READ, p->read_bytes);
    disk_line(p, "waiting for writes", p->write, TM_ENGINE_DISK_WRITE, p->write_bytes);
    if (p->busy[TM_ENGINE_COPY_IN] + p->busy[TM_ENGINE_COPY_OUT] > 0) {
        line(p, "", "waiting for copies", p->copy);
        fprintf(stderr, "   under way %.4f s in, %.4f s out\n", p->busy[TM_ENGINE_COPY_IN] / (double)p->steps,
                p->busy[TM_ENGINE_COPY_OUT] / (double)p->steps);
    }
    if (p->busy[TM_ENGINE_COMM] > 0) {
        line(p, "", "waiting for other ranks", p->comm);
        fprintf(stderr, "   under way %.4f s:", p->busy[TM_ENGINE_COMM] / (double)p->steps);
        for (uint32_t i = 0; i < p->n_rows; i++)
            if (p->row[i].engine == TM_ENGINE_COMM)
                fprintf(stderr, " %s %.4f", row_name(&p->row[i], name, sizeof name),
                        p->row[i].seconds / (double)p->steps);
        fputc('\n', stderr);
    }
    line(p, "", "everything else", rest(p));
    fputc('\n', stderr);
}

static void rows_field(tm_json_writer *w, const trainer_profile *p, const char *key, uint8_t engine) {
    char name[48];
    tm_jw_field_object(w, key);
    for (uint32_t i = 0; i < p->n_rows; i++)
        if (p->row[i].engine == engine)
            tm_jw_field_double(w, row_name(&p->row[i], name, sizeof name), p->row[i].seconds / (double)p->steps);
    tm_jw_object_end(w);
}

/* {"event": "profile"}: seconds a step. */
static tm_status log_event(trainer *t, const trainer_profile *p) {
    double n = (double)p->steps;
    tm_buf out = {0};
    tm_json_writer w;
    trainer_line_begin(t, &w, &out, "profile");
    tm_jw_field_uint(&w, "steps", p->steps);
    tm_jw_field_double(&w, "step_seconds", p->total / n);
    rows_field(&w, p, "compute_seconds", TM_ENGINE_CPU);
    rows_field(&w, p, "comm_seconds", TM_ENGINE_COMM);
    tm_jw_field_object(&w, "busy_seconds");
    tm_jw_field_double(&w, "disk_read", p->busy[TM_ENGINE_DISK_READ] / n);
    tm_jw_field_double(&w, "disk_write", p->busy[TM_ENGINE_DISK_WRITE] / n);
    tm_jw_field_double(&w, "copy_in", p->busy[TM_ENGINE_COPY_IN] / n);
    tm_jw_field_double(&w, "copy_out", p->busy[TM_ENGINE_COPY_OUT] / n);
    tm_jw_field_double(&w, "comm", p->busy[TM_ENGINE_COMM] / n);
    tm_jw_object_end(&w);
    tm_jw_field_object(&w, "wait_seconds");
    tm_jw_field_double(&w, "disk_read", p->read / n);
    tm_jw_field_double(&w, "disk_write", p->write / n);
    tm_jw_field_double(&w, "copy", p->copy / n);
    tm_jw_field_double(&w, "comm", p->comm / n);
    tm_jw_field_double(&w, "compute", p->compute / n);
    tm_jw_object_end(&w);
    tm_jw_field_double(&w, "other_seconds", rest(p) / n);
    return trainer_line_end(t, &w, &out);
}

static tm_status say(trainer *t, trainer_profile *p) {
    if (p->steps == 0 || !session_is_rank0(&t->s)) return TM_OK;
    qsort(p->row, p->n_rows, sizeof *p->row, by_seconds);
    table(p);
    return t->log.file ? log_event(t, p) : TM_OK;
}

tm_status trainer_profile_end(trainer *t, tm_status rc) {
    if (!t->profile || (rc != TM_OK && rc != TM_ESIGNAL)) return rc;
    tm_status said = say(t, t->profile);
    if (rc == TM_OK || said == TM_OK) return tm_first(rc, said);
    tm_log(TM_LOG_WARN, "%s", tm_error_get()->text); /* a run that was stopped commits first of all */
    tm_error_clear();
    return rc;
}

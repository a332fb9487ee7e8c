/* Chrome trace JSON: complete events ("ph": "X") in microseconds. Process 1 is the plan under the simulated clock,
 * process 2 the run. Each engine has lanes (threads), as many as it takes that no two of its operations overlap in one.
 */
#include "io/file/file.h"
#include "offload/sim/sim.h"

#include "offload/offload_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESSES = 2, MOST_LANES = 64, NAME_CAP = 160 };

struct tm_trace {
    tm_out *out;
    tm_buf text; /* of one event */
    bool any;
    int64_t lane_end[PROCESSES][TM_ENGINES][MOST_LANES]; /* nanoseconds; of lanes in use */
    uint32_t lanes[PROCESSES][TM_ENGINES];
};

static void begin_event(tm_trace *t, tm_json_writer *w, const char *name, const char *phase, int process, int64_t tid) {
    tm_buf_clear(&t->text);
    tm_jw_init(w, &t->text, 0);
    tm_jw_object(w);
    tm_jw_field_str(w, "name", name);
    tm_jw_field_str(w, "ph", phase);
    tm_jw_field_int(w, "pid", process + 1);
    tm_jw_field_int(w, "tid", tid);
}

static tm_status end_event(tm_trace *t, tm_json_writer *w) {
    tm_jw_object_end(w);
    TM_TRY(tm_jw_end(w));
    TM_TRY(t->any ? tm_out_append(t->out, ",\n", 2) : tm_out_append(t->out, "\n", 1));
    t->any = true;
    return tm_out_append(t->out, t->text.data, t->text.len);
}

/* Nanoseconds as microseconds with all their digits. */
static void put_time(tm_json_writer *w, const char *key, int64_t ns) {
    char text[32];
    uint64_t v = ns < 0 ? (uint64_t)-ns : (uint64_t)ns;
    int n = snprintf(text, sizeof text, "%s%" PRIu64 ".%03u", ns < 0 ? "-" : "", v / 1000, (unsigned)(v % 1000));
    tm_jw_key(w, key);
    tm_jw_raw(w, text, (size_t)n);
}

static tm_status name_process(tm_trace *t, int process, const char *name) {
    tm_json_writer w;
    begin_event(t, &w, "process_name", "M", process, 0);
    tm_jw_field_object(&w, "args");
    tm_jw_field_str(&w, "name", name);
    tm_jw_object_end(&w);
    return end_event(t, &w);
}

static int64_t tid_of(uint32_t engine, uint32_t lane) {
    return (int64_t)engine * MOST_LANES + lane + 1;
}

static tm_status name_lane(tm_trace *t, int process, uint32_t engine, uint32_t lane) {
    tm_json_writer w;
    char name[64];
    const char *engine_name = tm_engine_name((tm_op_engine)engine);
    if (lane == 0)
        snprintf(name, sizeof name, "%s", engine_name);
    else
        snprintf(name, sizeof name, "%s %u", engine_name, lane + 1);
    begin_event(t, &w, "thread_name", "M", process, tid_of(engine, lane));
    tm_jw_field_object(&w, "args");
    tm_jw_field_str(&w, "name", name);
    tm_jw_object_end(&w);
    TM_TRY(end_event(t, &w));
    begin_event(t, &w, "thread_sort_index", "M", process, tid_of(engine, lane));
    tm_jw_field_object(&w, "args");
    tm_jw_field_uint(&w, "sort_index", (uint64_t)tid_of(engine, lane));
    tm_jw_object_end(&w);
    return end_event(t, &w);
}

/* The first lane that is free from `start` on. With more at once than there are lanes, the last one overlaps. */
static tm_status take_lane(tm_trace *t, int process, uint32_t engine, int64_t start, int64_t end, uint32_t *lane) {
    int64_t *last = t->lane_end[process][engine];
    uint32_t *n = &t->lanes[process][engine], i = 0;
    while (i < *n && last[i] > start) i++;
    if (i == *n && *n == MOST_LANES) i--;
    if (i == *n) {
        (*n)++;
        last[i] = INT64_MIN;
        TM_TRY(name_lane(t, process, engine, i));
    }
    if (end > last[i]) last[i] = end;
    *lane = i;
    return TM_OK;
}

static bool is_disk(const tm_plan_op *o) {
    return o->engine == TM_ENGINE_DISK_READ || o->engine == TM_ENGINE_DISK_WRITE;
}

static void name_of(const tm_trace_step *s, const tm_plan_op *o, char *name) {
    if (is_disk(o))
        snprintf(name, NAME_CAP, "%s", tm_kind_name(tm_plan_object(s->plan, o->object)->kind));
    else if (s->name)
        s->name(s->ctx, &o->op, name, NAME_CAP);
    else
        snprintf(name, NAME_CAP, "code %u", o->op.code);
}

static void put_disk(tm_json_writer *w, const tm_trace_step *s, const tm_plan_op *o) {
    const tm_object *x = tm_plan_object(s->plan, o->object);
    char address[32];
    snprintf(address, sizeof address, "0x%" PRIx64, o->address);
    tm_jw_field_str(w, "kind", tm_kind_name(x->kind));
    tm_jw_field_uint(w, "object", o->object & ~TM_TEMP_BIT);
    tm_jw_field_uint(w, "unit", x->unit);
    tm_jw_field_uint(w, "bytes", x->frame_bytes);
    tm_jw_field_str(w, "frame", address);
}

static void put_args(tm_json_writer *w, const tm_trace_step *s, uint32_t op) {
    const tm_plan_op *o = &s->plan->op[op];
    tm_jw_field_object(w, "args");
    tm_jw_field_uint(w, "op", op);
    tm_jw_field_uint(w, "step", s->step);
    if (is_disk(o)) {
        put_disk(w, s, o);
    } else {
        tm_jw_field_uint(w, "code", o->op.code);
        tm_jw_field_uint(w, "operands", o->n_operands);
    }
    tm_jw_object_end(w);
}

static tm_status put_op(tm_trace *t, const tm_trace_step *s, int process, uint32_t op, const tm_span *span) {
    const tm_plan_op *o = &s->plan->op[op];
    int64_t start = llround((s->at + span->start) * 1e9), end = llround((s->at + span->end) * 1e9);
    char name[NAME_CAP] = "";
    uint32_t lane;
    tm_json_writer w;
    if (end < start) end = start;
    TM_TRY(take_lane(t, process, o->engine, start, end, &lane));
    name_of(s, o, name);
    begin_event(t, &w, name, "X", process, tid_of(o->engine, lane));
    put_time(&w, "ts", start);
    put_time(&w, "dur", end - start);
    tm_jw_field_str(&w, "cat", tm_engine_name((tm_op_engine)o->engine));
    put_args(&w, s, op);
    return end_event(t, &w);
}

static tm_status put_mark(tm_trace *t, const tm_trace_step *s, int process) {
    char name[64];
    tm_json_writer w;
    snprintf(name, sizeof name, "step %" PRIu64, s->step);
    begin_event(t, &w, name, "i", process, tid_of(TM_ENGINE_CPU, 0));
    put_time(&w, "ts", llround(s->at * 1e9));
    tm_jw_field_str(&w, "s", "p");
    return end_event(t, &w);
}

typedef struct started {
    double start;
    uint32_t op;
} started;

static int by_start(const void *a, const void *b) {
    const started *x = a, *y = b;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static tm_status put_process(tm_trace *t, const tm_trace_step *s, int process, const tm_span *span) {
    uint32_t n = s->plan->n_op, used = 0;
    tm_status rc = TM_OK;
    started *order = tm_malloc(sizeof *order * (n + 1));
    if (!order) return tm_nomem(sizeof *order * n);
    for (uint32_t i = 0; i < n; i++)
        if (isfinite(span[i].start) && isfinite(span[i].end)) order[used++] = (started){span[i].start, i};
    qsort(order, used, sizeof *order, by_start);
    TM_GO(put_mark(t, s, process));
    for (uint32_t i = 0; i < used; i++) TM_GO(put_op(t, s, process, order[i].op, &span[order[i].op]));
done:
    tm_free(order);
    return rc;
}

tm_status tm_trace_open(tm_trace **out, const char *path) {
    static const char head[] = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
    tm_status rc;
    tm_trace *t = tm_calloc(1, sizeof *t);
    if (!t) return tm_nomem(sizeof *t);
    TM_GO(tm_out_create(&t->out, path));
    TM_GO(tm_out_append(t->out, head, sizeof head - 1));
    TM_GO(name_process(t, 0, "plan (simulated)"));
    TM_GO(name_process(t, 1, "run (measured)"));
    *out = t;
    return TM_OK;
done:
    tm_trace_abandon(t);
    return rc;
}

tm_status tm_trace_add(tm_trace *t, const tm_trace_step *s) {
    const tm_span *span[PROCESSES] = {s->simulated, s->measured};
    for (int i = 0; i < PROCESSES; i++)
        if (span[i]) TM_TRY(put_process(t, s, i, span[i]));
    return TM_OK;
}

tm_status tm_trace_commit(tm_trace *t) {
    tm_status rc = tm_out_end(t->out, tm_out_append(t->out, "\n]}\n", 4));
    t->out = NULL;
    tm_trace_abandon(t);
    return rc;
}

void tm_trace_abandon(tm_trace *t) {
    if (!t) return;
    tm_out_abandon(t->out);
    tm_buf_free(&t->text);
    tm_free(t);
}

/* Traces are JSON with the spans that went in, no two of a lane overlapping; timelines are well-formed and small. */
#include "io/file/file.h"
#include "offload/offload_internal.h"
#include "offload/sim/sim.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- a plan and its spans ------------------------------------------------------------------------------------ */

typedef struct world {
    tm_layout *layout;
    tm_plan *plan;
    tm_link *link;
    tm_machine machine;
    tm_sim_result result;
} world;

static double seconds_of(void *ctx, const tm_op *op) {
    (void)ctx;
    return 1e-3 * op->arg[1];
}

static void name_of(void *ctx, const tm_op *op, char *buf, size_t cap) {
    (void)ctx;
    snprintf(buf, cap, "%s \"<tile> & \x01\xff %u", op->code == 1 ? "forward" : "adam<w>", op->arg[0]);
}

static void make(world *w, uint32_t objects) {
    tm_program *p;
    uint64_t least;
    assert_int_equal(tm_layout_create(&w->layout), TM_OK);
    for (uint32_t i = 0; i < objects; i++)
        (void)tm_layout_object(w->layout, &(tm_object){.kind = i % 2 ? TM_KIND_EXP_AVG : TM_KIND_WEIGHT_HI,
                                                       .unit = i / 8,
                                                       .bundle = i,
                                                       .bytes = 100000 + 4096 * (i % 7),
                                                       .pageable = true});
    assert_int_equal(tm_program_create(&p, w->layout, "step"), TM_OK);
    for (uint32_t i = 0; i < 2 * objects; i++) {
        uint32_t v = tm_program_interval(p, i < objects ? i : 2 * objects - 1 - i, 1);
        tm_program_op(p, &(tm_op){.code = i < objects ? 1 : 2, .arg = {i, 1 + i % 3}});
        tm_program_use(p, v, i < objects ? TM_USE_READ : TM_USE_UPDATE);
    }
    tm_plan_opts o = {.choose_residency = true, .cache = true, .spill = true};
    assert_int_equal(tm_plan_minimum(w->layout, p, &o, &least), TM_OK);
    o.slab_bytes = 12 * least;
    assert_int_equal(tm_plan_compile(&w->plan, w->layout, p, &o, NULL), TM_OK);
    tm_program_free(p);
    assert_int_equal(tm_link_create(&w->link, w->plan, w->plan), TM_OK);
    tm_machine_nominal(&w->machine);
    w->machine.disk.read_bps = w->machine.disk.write_bps = 1e8;
    assert_int_equal(
        tm_simulate(
            &w->result, w->plan,
            &(tm_sim_opts){.machine = &w->machine, .cost = seconds_of, .runs = 3, .link = w->link, .timeline = true}),
        TM_OK);
}

static void drop(world *w) {
    tm_sim_free(&w->result);
    tm_link_free(w->link);
    tm_plan_free(w->plan);
    tm_layout_free(w->layout);
}

static tm_buf slurp(const char *path) {
    tm_buf text = {0};
    if (tm_file_slurp(path, 64 << 20, &text) != TM_OK) fail_msg("%s", tm_error_get()->text);
    return text;
}

/* ---- traces -------------------------------------------------------------------------------------------------- */

enum { MOST_TIDS = 1024 };

static double number_of(const tm_json *e, const char *key) {
    const tm_json *v = tm_json_get(e, key);
    assert_non_null(v);
    assert_int_equal(v->type, TM_JSON_NUMBER);
    return v->number;
}

static void check_disk_args(const world *w, const tm_json *args, uint32_t op) {
    const tm_object *x = tm_plan_object(w->plan, w->plan->op[op].object);
    char frame[32];
    snprintf(frame, sizeof frame, "0x%" PRIx64, w->plan->op[op].address);
    assert_true(tm_json_is(tm_json_get(args, "kind"), tm_kind_name(x->kind)));
    assert_true(tm_json_is(tm_json_get(args, "frame"), frame));
    assert_int_equal(tm_json_get(args, "bytes")->integer, x->frame_bytes);
    assert_int_equal(tm_json_get(args, "unit")->integer, x->unit);
}

/* Step 1 at 0 s, simulated only; step 2 at 5 s, both. Events of one lane come in order of their start. */
static void check_event(const world *w, const tm_json *e, double *lane_end, uint32_t *count) {
    const tm_json *args = tm_json_get(e, "args");
    uint32_t op = (uint32_t)number_of(args, "op"), step = (uint32_t)number_of(args, "step");
    int pid = (int)number_of(e, "pid"), tid = (int)number_of(e, "tid");
    double at = step == 1 ? 0 : 5, shift = pid == 1 ? 0 : 0.25;
    assert_true(op < w->plan->n_op && tid > 0 && tid < MOST_TIDS && (pid == 1 || (pid == 2 && step == 2)));
    const tm_span *span = &w->result.span[op];
    double ts = number_of(e, "ts"), dur = number_of(e, "dur");
    assert_true(fabs(ts - (at + span->start + shift) * 1e6) < 2e-3);
    assert_true(fabs(dur - (span->end - span->start) * 1e6) < 2e-3);
    assert_true(tm_json_is(tm_json_get(e, "cat"), tm_engine_name((tm_op_engine)w->plan->op[op].engine)));
    double *end = &lane_end[pid * MOST_TIDS + tid];
    assert_true(ts >= *end - 2e-3);
    *end = ts + dur;
    count[op]++;
    if (w->plan->op[op].engine == TM_ENGINE_CPU)
        assert_non_null(strstr(tm_json_get(e, "name")->text, " \"<tile> & "));
    else
        check_disk_args(w, args, op);
}

static void a_trace_has_the_spans_that_went_in(void **state) {
    (void)state;
    world w;
    tm_trace *t;
    tm_json_doc *doc;
    make(&w, 60);
    tm_span *later = malloc(sizeof *later * w.plan->n_op);
    for (uint32_t i = 0; i < w.plan->n_op; i++)
        later[i] = (tm_span){w.result.span[i].start + 0.25, w.result.span[i].end + 0.25};
    assert_int_equal(tm_trace_open(&t, "test_trace.json"), TM_OK);
    tm_trace_step s = {.plan = w.plan, .step = 1, .simulated = w.result.span, .name = name_of};
    assert_int_equal(tm_trace_add(t, &s), TM_OK);
    s = (tm_trace_step){
        .plan = w.plan, .step = 2, .at = 5, .simulated = w.result.span, .measured = later, .name = name_of};
    assert_int_equal(tm_trace_add(t, &s), TM_OK);
    assert_false(tm_path_exists("test_trace.json")); /* not before it is whole */
    assert_int_equal(tm_trace_commit(t), TM_OK);
    tm_buf text = slurp("test_trace.json");
    if (tm_json_parse(&doc, text.data, text.len, "test_trace.json", 0, 0) != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    double *lane_end = malloc(sizeof *lane_end * 3 * MOST_TIDS);
    uint32_t *count = calloc(w.plan->n_op, sizeof *count), lanes = 0, processes = 0, marks = 0;
    for (int i = 0; i < 3 * MOST_TIDS; i++) lane_end[i] = -INFINITY;
    for (const tm_json *e = tm_json_get(tm_json_root(doc), "traceEvents")->child; e; e = e->next) {
        const tm_json *ph = tm_json_get(e, "ph"), *name = tm_json_get(e, "name");
        if (tm_json_is(ph, "X")) check_event(&w, e, lane_end, count);
        lanes += tm_json_is(name, "thread_name");
        processes += tm_json_is(name, "process_name");
        marks += tm_json_is(ph, "i");
    }
    for (uint32_t i = 0; i < w.plan->n_op; i++) assert_int_equal(count[i], 3);
    assert_int_equal(processes, 2);
    assert_int_equal(marks, 3);
    assert_true(lanes > 6); /* transfers overlap: more lanes than engines */
    tm_json_free(doc);
    tm_buf_free(&text);
    free(lane_end);
    free(count);
    free(later);
    drop(&w);
    assert_int_equal(remove("test_trace.json"), 0);
}

static void an_abandoned_trace_leaves_nothing(void **state) {
    (void)state;
    tm_trace *t;
    assert_int_equal(tm_trace_open(&t, "test_trace_gone.json"), TM_OK);
    tm_trace_abandon(t);
    assert_false(tm_path_exists("test_trace_gone.json"));
    assert_int_not_equal(tm_trace_open(&t, "no-such-folder/trace.json"), TM_OK);
    tm_error_clear();
}

/* ---- timelines ----------------------------------------------------------------------------------------------- */

/* Tags open and close in order, attributes are quoted, nothing below a space stands anywhere. */
static void check_markup(const char *s) {
    const char *open[64];
    uint32_t n = 0;
    for (; *s; s++) {
        assert_true((unsigned char)*s >= ' ' || *s == '\n');
        assert_true(*s != '>' && *s != '"');
        if (*s != '<') continue;
        const char *name = ++s;
        bool quoted = false, closing = *name == '/';
        for (; *s && (quoted || *s != '>'); s++) {
            if (*s == '"') quoted = !quoted;
            assert_true(*s != '<');
        }
        assert_true(*s == '>');
        if (closing) {
            size_t len = (size_t)(s - name) - 1;
            assert_true(n > 0 && !strncmp(open[--n], name + 1, len) && strchr(" >", open[n][len]));
        } else if (s[-1] != '/') {
            assert_true(n < 64);
            open[n++] = name;
        }
    }
    assert_int_equal(n, 0);
}

static bool says(const tm_buf *b, const char *what) {
    return strstr(b->data, what) != NULL;
}

#ifdef __SANITIZE_ADDRESS__
enum { MANY_OBJECTS = 2000 };
#else
enum { MANY_OBJECTS = 20000 }; /* some 10^5 operations */
#endif

static void a_timeline_is_well_formed_and_small(void **state) {
    (void)state;
    world w;
    char want[64], size[40];
    make(&w, MANY_OBJECTS);
    assert_true(w.plan->n_op > 4 * MANY_OBJECTS);
    tm_timeline line = {.plan = w.plan,
                        .result = &w.result,
                        .machine = &w.machine,
                        .title = "a <model> & \"budget\" \x01\xff \xc3\xa9",
                        .name = name_of};
    assert_int_equal(tm_timeline_write("test_timeline.svg", &line), TM_OK);
    tm_buf svg = slurp("test_timeline.svg");
    assert_true(svg.len < 1000000);
    check_markup(svg.data);
    assert_true(says(&svg, ">a &lt;model&gt; &amp; &quot;budget&quot; ?? \xc3\xa9<"));
    snprintf(want, sizeof want, "%.4g s a step", w.result.seconds);
    assert_true(says(&svg, want));
    static const char *const texts[] = {">compute<", ">disk read<",     ">disk write<", ">frames in use<",
                                        ">forward ", ">adam&lt;w&gt; ", "0.1 GB/s",     "Bottleneck"};
    for (size_t i = 0; i < TM_COUNT(texts); i++)
        if (!says(&svg, texts[i])) fail_msg("the drawing does not say %s", texts[i]);
    const tm_plan_info *info = tm_plan_get_info(w.plan); /* the legend's totals are the plan's */
    tm_format_size(info->read_bytes[TM_KIND_WEIGHT_HI], size, sizeof size);
    snprintf(want, sizeof want, ">weight_hi %s<", size);
    assert_true(says(&svg, want));
    tm_format_size(info->write_bytes[TM_KIND_EXP_AVG], size, sizeof size);
    snprintf(want, sizeof want, ">exp_avg %s<", size);
    assert_true(says(&svg, want));
    const char *address = strstr(svg.data, "http"); /* one: the name of SVG itself; nothing is fetched */
    assert_true(address && !strncmp(address, "http://www.w3.org/2000/svg\"", 27) && !strstr(address + 1, "http"));
    tm_buf_free(&svg);
    drop(&w);
    assert_int_equal(remove("test_timeline.svg"), 0);
}

/* The same as numbers: as many columns as are said, each stack as high as the one before it at the least. */
static void a_timeline_as_numbers(void **state) {
    (void)state;
    world w;
    tm_buf text = {0};
    tm_json_writer out;
    tm_json_doc *doc;
    make(&w, MANY_OBJECTS);
    tm_jw_init(&out, &text, 0);
    assert_int_equal(tm_timeline_json(&out, &(tm_timeline){.plan = w.plan,
                                                           .result = &w.result,
                                                           .machine = &w.machine,
                                                           .title = "a \"title\"",
                                                           .name = name_of}),
                     TM_OK);
    assert_int_equal(tm_jw_end(&out), TM_OK);
    assert_true(text.len < 64 << 10);
    assert_int_equal(tm_json_parse(&doc, text.data, text.len, "timeline", 0, 0), TM_OK);
    const tm_json *root = tm_json_root(doc), *lanes = tm_json_get(root, "lanes");
    assert_true(tm_json_is(tm_json_get(root, "title"), "a \"title\""));
    assert_true(fabs(tm_json_get(root, "seconds")->number - w.result.seconds) < 1e-12);
    assert_int_equal(lanes->count, 4); /* compute, read, write, frames */
    for (const tm_json *lane = lanes->child; lane; lane = lane->next) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        const char *below = NULL;
        assert_true(tm_json_get(lane, "classes")->count > 0);
        for (const tm_json *c = tm_json_get(lane, "classes")->child; c; c = c->next) {
            const tm_json *levels = tm_json_get(c, "levels");
            assert_int_equal(levels->len, TM_TIMELINE_COLUMNS);
            for (size_t i = 0; i < levels->len; i++) {
                const char *digit = strchr(digits, levels->text[i]);
                assert_non_null(digit);
                if (below) assert_true(digit >= strchr(digits, below[i]));
            }
            below = levels->text;
        }
    }
    tm_json_free(doc);
    tm_buf_free(&text);
    drop(&w);
}

static bool draws(const tm_timeline *line, const char *what) {
    assert_int_equal(tm_timeline_write("test_timeline.svg", line), TM_OK);
    tm_buf svg = slurp("test_timeline.svg");
    check_markup(svg.data);
    bool there = says(&svg, what);
    tm_buf_free(&svg);
    return there;
}

/* UTF-8 stays as it is; each byte that is none, as RFC 3629 has it, is a question mark. */
static void titles_are_utf8(void **state) {
    (void)state;
    static const char *const good[] = {"\xc2\x80",     "\xdf\xbf",     "\xe0\xa0\x80",     "\xed\x9f\xbf",
                                       "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\xc1\xbf",
                                      "\xc2",
                                      "\xc2"
                                      "a",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xe1\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\x80"};
    world w;
    make(&w, 10);
    for (size_t i = 0; i < TM_COUNT(good) + TM_COUNT(bad); i++) {
        char title[32], want[32], *to = want;
        const char *text = i < TM_COUNT(good) ? good[i] : bad[i - TM_COUNT(good)];
        snprintf(title, sizeof title, "<%s!", text);
        to += snprintf(want, sizeof want, "&lt;");
        for (const char *c = text; *c; c++) *to++ = i < TM_COUNT(good) || (unsigned char)*c < 0x80 ? *c : '?';
        snprintf(to, 4, "!<");
        if (!draws(&(tm_timeline){.plan = w.plan, .result = &w.result, .title = title}, want))
            fail_msg("title %zu: no %s", i, want);
    }
    drop(&w);
}

/* Without a title it is the plan's name; seconds are in the unit that is short to read. */
static void what_is_not_given_follows(void **state) {
    (void)state;
    static const struct {
        double seconds;
        const char *says;
    } rows[] = {{2e-6, "code 1 2 us<"}, {0.002, "code 1 2.0 ms<"}, {2, "code 1 2.00 s<"}, {20, "code 1 20.0 s<"}};
    world w;
    make(&w, 10);
    tm_timeline line = {.plan = w.plan, .result = &w.result, .subtitle = "below & beside"};
    assert_true(draws(&line, w.plan->name));
    assert_true(draws(&line, ">below &amp; beside<"));
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        bool first = true; /* all of code 1 takes so long in all */
        for (uint32_t op = 0; op < w.plan->n_op; op++) {
            if (w.plan->op[op].engine != TM_ENGINE_CPU || w.plan->op[op].op.code != 1) continue;
            w.result.span[op].end = w.result.span[op].start + (first ? rows[i].seconds : 0);
            first = false;
        }
        if (!draws(&line, rows[i].says)) fail_msg("%g seconds are not %s", rows[i].seconds, rows[i].says);
    }
    assert_int_equal(remove("test_timeline.svg"), 0);
    w.result.ops--; /* of another plan */
    assert_int_equal(tm_timeline_write("test_timeline.svg", &line), TM_EBUG);
    tm_error_clear();
    drop(&w);
}

#ifdef TIDEMILL_FAULTS
/* ---- every allocation fails once ----------------------------------------------------------------------------- */

typedef tm_status (*job_fn)(const world *w);

static tm_status simulate_job(const world *w) {
    tm_sim_result r;
    TM_TRY(tm_simulate(
        &r, w->plan,
        &(tm_sim_opts){.machine = &w->machine, .cost = seconds_of, .runs = 2, .link = w->link, .timeline = true}));
    tm_sim_free(&r);
    return TM_OK;
}

static tm_status trace_job(const world *w) {
    tm_trace *t;
    TM_TRY(tm_trace_open(&t, "test_trace.json"));
    tm_status rc = tm_trace_add(t, &(tm_trace_step){.plan = w->plan, .simulated = w->result.span, .name = name_of});
    if (rc == TM_OK) return tm_trace_commit(t);
    tm_trace_abandon(t);
    return rc;
}

static tm_status timeline_job(const world *w) {
    return tm_timeline_write("test_trace.json", &(tm_timeline){.plan = w->plan, .result = &w->result});
}

static tm_status hardware_job(const world *w) {
    tm_machine m;
    (void)w;
    return tm_machine_load("test_trace.hw", &m);
}

static tm_status profile_job(const world *w) {
    tm_profile *p;
    TM_TRY(tm_profile_open(&p, "back-end"));
    tm_status rc = tm_profile_put(p, "key", 1);
    if (rc == TM_OK) rc = tm_profile_save(p);
    tm_profile_close(p);
    if (rc == TM_OK) rc = tm_profile_put_disk(".", &w->machine.disk);
    return rc;
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    static const job_fn jobs[] = {simulate_job, trace_job, timeline_job, hardware_job, profile_job};
    static const char hw[] =
        "{\"name\": \"x\", \"host_memory\": \"1GiB\", \"cpu\": {\"cores\": 1, \"flops_fp32\": 1e9, "
        "\"memory_bytes_per_second\": 1e9}}";
    world w;
    tm_out *out;
    make(&w, 40);
    assert_int_equal(tm_out_create(&out, "test_trace.hw"), TM_OK);
    assert_int_equal(tm_out_append(out, hw, sizeof hw - 1), TM_OK);
    assert_int_equal(tm_out_commit(out), TM_OK);
    assert_int_equal(setenv("TIDEMILL_PROFILE", "test_trace.profile", 1), 0);
    for (size_t j = 0; j < TM_COUNT(jobs); j++) {
        uint64_t live = tm_mem_live_bytes();
        unsigned failed = 0;
        for (int i = 1;; i++) {
            char spec[48];
            snprintf(spec, sizeof spec, "alloc:%d:fail:once", i);
            assert_int_equal(tm_fault_set(spec), TM_OK);
            tm_status rc = jobs[j](&w);
            assert_int_equal(tm_fault_set(NULL), TM_OK);
            assert_int_equal(tm_mem_live_bytes(), live);
            if (rc == TM_OK) break;
            assert_int_equal(rc, TM_ENOMEM);
            tm_error_clear();
            failed++;
        }
        assert_true(failed > 3);
    }
    drop(&w);
    assert_int_equal(remove("test_trace.hw"), 0);
    assert_int_equal(remove("test_trace.json"), 0);
    assert_int_equal(remove("test_trace.profile"), 0);
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_has_the_spans_that_went_in),
        cmocka_unit_test(an_abandoned_trace_leaves_nothing),
#ifdef TIDEMILL_FAULTS
        cmocka_unit_test(memory_may_run_out_anywhere),
#endif
        cmocka_unit_test(titles_are_utf8),
        cmocka_unit_test(what_is_not_given_follows),
        cmocka_unit_test(a_timeline_is_well_formed_and_small),
        cmocka_unit_test(a_timeline_as_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a timeline shows: for each engine that is used, what it does at which time; for the disk, the bytes a second
 * that move; and the frames in use. Time is cut into bins. A span that leaves the step comes back at its other end, as
 * the same operation of the next run or of the one before does. */
#include "offload/sim/timeline_internal.h"

#include "offload/offload_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const work_colour[] = {"#4a8f8c", "#6b5b95", "#b8577e", "#a08a3c", "#5d7fa3", "#8a6d5a",
                                          "#7d9a55", "#946aa8", "#c07a6a", "#557a6b", "#6f7785", "#9a9a9a"};
static const char *const resident_colour = "#c3c7cc";

static void add_part(float *bin, double from, double to, double rate) {
    double width = 1.0 / TIMELINE_BINS;
    int first = (int)(from / width), last = (int)(to / width);
    for (int i = first < 0 ? 0 : first; i <= last && i < TIMELINE_BINS; i++) {
        double a = fmax(from, i * width), b = fmin(to, (i + 1) * width);
        if (b > a) bin[i] += (float)(rate * (b - a) / width);
    }
}

/* Adds `rate` over [start, end) of a step of `seconds`, folded into it. */
static void add_span(float *bin, double start, double end, double seconds, double rate) {
    if (!(end > start) || !(seconds > 0)) return;
    for (double shift = floor(start / seconds); shift * seconds < end; shift++)
        add_part(bin, fmax(0, start / seconds - shift), fmin(1, end / seconds - shift), rate);
}

/* The last class takes what does not fit. */
static timeline_class *class_of(timeline_lane *lane, const char *name, const char *colour, uint32_t *index) {
    for (*index = 0; *index < lane->classes; ++*index)
        if (!strcmp(lane->class[*index].name, name)) return &lane->class[*index];
    if (lane->classes == TIMELINE_CLASSES) {
        *index = TIMELINE_CLASSES - 1;
        snprintf(lane->class[*index].name, sizeof lane->class[*index].name, "other");
        return &lane->class[*index];
    }
    timeline_class *c = &lane->class[lane->classes++];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->colour = colour;
    return c;
}

static bool is_disk(uint8_t engine) {
    return engine == TM_ENGINE_DISK_READ || engine == TM_ENGINE_DISK_WRITE;
}

static void first_word(const tm_timeline *t, const tm_op *op, char *word, size_t cap) {
    char name[160] = "";
    if (t->name)
        t->name(t->ctx, op, name, sizeof name);
    else
        snprintf(name, sizeof name, "code %u", op->code);
    size_t n = t->name ? strcspn(name, " ") : strlen(name);
    snprintf(word, cap, "%.*s", (int)n, name);
}

static void add_work(timeline_lane *lane, const tm_timeline *t, uint32_t op) {
    const tm_span *span = &t->result->span[op];
    char word[32];
    uint32_t at;
    first_word(t, &t->plan->op[op].op, word, sizeof word);
    timeline_class *c = class_of(lane, word, "", &at);
    c->total += span->end - span->start;
    add_span(lane->value[at], span->start, span->end, t->result->seconds, 1);
}

static void add_transfer(timeline_lane *lane, const tm_timeline *t, uint32_t op) {
    const tm_span *span = &t->result->span[op];
    const tm_object *x = tm_plan_object(t->plan, t->plan->op[op].object);
    double seconds = span->end - span->start;
    uint32_t at;
    timeline_class *c = class_of(lane, tm_kind_name(x->kind), tm_kind_get(x->kind)->colour, &at);
    c->total += (double)x->frame_bytes;
    if (seconds > 0)
        add_span(lane->value[at], span->start, span->end, t->result->seconds, (double)x->frame_bytes / seconds);
}

static timeline_lane *new_lane(timeline *out, const tm_timeline *t, uint8_t engine) {
    timeline_lane *lane = &out->lane[out->lanes++];
    bool device = t->result->busy[TM_ENGINE_DEVICE] > 0;
    snprintf(lane->name, sizeof lane->name, "%s",
             engine == TM_ENGINE_CPU && !device ? "compute" : tm_engine_name((tm_op_engine)engine));
    for (char *c = lane->name; *c; c++)
        if (*c == '_') *c = ' ';
    snprintf(lane->note, sizeof lane->note, "busy %.0f%%",
             out->seconds > 0 ? fmin(100, 100 * t->result->busy[engine] / out->seconds) : 0);
    lane->unit = is_disk(engine) ? LANE_RATE : LANE_BUSY;
    lane->top = is_disk(engine) ? 0 : 1;
    if (t->machine && engine == TM_ENGINE_DISK_READ) lane->limit = t->machine->disk.read_bps;
    if (t->machine && engine == TM_ENGINE_DISK_WRITE) lane->limit = t->machine->disk.write_bps;
    return lane;
}

static void fill_engines(timeline *out, const tm_timeline *t) {
    static const uint8_t order[] = {TM_ENGINE_CPU,  TM_ENGINE_DEVICE,    TM_ENGINE_COPY_IN,   TM_ENGINE_COPY_OUT,
                                    TM_ENGINE_COMM, TM_ENGINE_DISK_READ, TM_ENGINE_DISK_WRITE};
    timeline_lane *lane[TM_ENGINES] = {NULL};
    bool used[TM_ENGINES] = {false};
    for (uint32_t i = 0; i < t->plan->n_op; i++) used[t->plan->op[i].engine] = true;
    used[TM_ENGINE_CPU] &= !used[TM_ENGINE_DEVICE] || t->result->busy[TM_ENGINE_CPU] > 0;
    for (size_t i = 0; i < TM_COUNT(order); i++)
        if (used[order[i]]) lane[order[i]] = new_lane(out, t, order[i]);
    for (uint32_t i = 0; i < t->plan->n_op; i++) {
        uint8_t e = t->plan->op[i].engine;
        if (is_disk(e))
            add_transfer(lane[e], t, i);
        else if (lane[e])
            add_work(lane[e], t, i);
    }
}

/* An object in a frame, from the first operation on it to the last. */
typedef struct presence {
    bool open;
    uint64_t address;
    double start, end;
} presence;

static void close_presence(timeline_lane *lane, const tm_timeline *t, presence *s, uint32_t object) {
    const tm_object *x = tm_plan_object(t->plan, object);
    uint32_t at;
    if (!s->open) return;
    timeline_class *c = class_of(lane, tm_kind_name(x->kind), tm_kind_get(x->kind)->colour, &at);
    c->total += (double)x->frame_bytes; /* as often as it comes */
    add_span(lane->value[at], s->start, s->end, t->result->seconds, (double)x->frame_bytes);
    s->open = false;
}

/* A fill or an overwriting use begins its time in memory. */
static void touch_frame(timeline_lane *lane, const tm_timeline *t, presence *s, const struct plan_touch *what,
                        uint32_t op) {
    const tm_span *span = &t->result->span[op];
    if (!s->open || s->address != what->address || what->access == TM_USE_WRITE) {
        close_presence(lane, t, s, what->object);
        *s = (presence){.open = true, .address = what->address, .start = span->start, .end = span->end};
    }
    s->start = fmin(s->start, span->start);
    s->end = fmax(s->end, span->end);
}

static timeline_lane *frame_lane(timeline *out, const char *name, uint64_t limit) {
    timeline_lane *lane = &out->lane[out->lanes++];
    snprintf(lane->name, sizeof lane->name, "%s", name);
    lane->unit = LANE_BYTES;
    lane->limit = (double)limit;
    return lane;
}

static void fill_resident(timeline_lane *lane, uint64_t bytes, double seconds) {
    uint32_t at;
    if (bytes == 0) return;
    class_of(lane, "resident", resident_colour, &at)->total = (double)bytes;
    add_span(lane->value[at], 0, seconds, seconds, (double)bytes);
}

/* An imagined machine may give a temporary a tier that it has nothing of. */
static tm_tier tier_of(const tm_plan *p, uint32_t object) {
    tm_tier tier = (tm_tier)tm_plan_object(p, object)->tier;
    return tier == TM_TIER_DEVICE && p->info.device_bytes == 0 ? TM_TIER_HOST : tier;
}

static tm_status fill_frames(timeline *out, const tm_timeline *t) {
    const tm_plan *p = t->plan;
    uint32_t n_state = p->layout ? p->layout->n : 0, n = n_state + p->n_temp;
    bool device = p->info.device_bytes > 0;
    presence *all = tm_calloc(n + 1, sizeof *all);
    if (!all) return tm_nomem(sizeof *all * n);
    timeline_lane *lane[TM_TIERS] = {NULL};
    if (device) lane[TM_TIER_DEVICE] = frame_lane(out, "device frames", p->info.device_bytes);
    lane[TM_TIER_HOST] = frame_lane(out, device ? "host frames" : "frames in use", p->info.slab_bytes);
    if (p->info.shared_bytes) lane[TM_TIER_SHARED] = frame_lane(out, "shared frames", p->info.shared_bytes);
    fill_resident(lane[TM_TIER_HOST], p->info.resident_bytes, out->seconds);
    if (device) fill_resident(lane[TM_TIER_DEVICE], p->info.device_resident_bytes, out->seconds);
    for (uint32_t op = 0; p->first_touch && op < p->n_op; op++)
        for (uint32_t i = p->first_touch[op]; i < p->first_touch[op + 1]; i++) {
            const struct plan_touch *w = &p->touch[i];
            bool temp = w->object & TM_TEMP_BIT;
            if (!temp && p->layout->object[w->object].resident) continue;
            touch_frame(lane[tier_of(p, w->object)], t, &all[temp ? n_state + (w->object & ~TM_TEMP_BIT) : w->object],
                        w, op);
        }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t object = i < n_state ? i : (i - n_state) | TM_TEMP_BIT;
        close_presence(lane[tier_of(p, object)], t, &all[i], object);
    }
    tm_free(all);
    return TM_OK;
}

static void swap_classes(timeline_lane *lane, uint32_t a, uint32_t b) {
    timeline_class keep = lane->class[a];
    lane->class[a] = lane->class[b];
    lane->class[b] = keep;
    for (int i = 0; i < TIMELINE_BINS; i++) {
        float v = lane->value[a][i];
        lane->value[a][i] = lane->value[b][i];
        lane->value[b][i] = v;
    }
}

/* Kinds of work come with the longest first, and have their colours by that. */
static void rank_work(timeline_lane *lane) {
    if (lane->unit != LANE_BUSY) return;
    for (uint32_t i = 0; i < lane->classes; i++) {
        uint32_t longest = i;
        for (uint32_t k = i + 1; k < lane->classes; k++)
            if (lane->class[k].total > lane->class[longest].total) longest = k;
        if (longest != i) swap_classes(lane, i, longest);
        lane->class[i].colour = work_colour[i % TM_COUNT(work_colour)];
    }
}

static void set_top(timeline_lane *lane) {
    double most = lane->limit;
    for (int b = 0; b < TIMELINE_BINS; b++) {
        double sum = 0;
        for (uint32_t c = 0; c < lane->classes; c++) sum += lane->value[c][b];
        most = fmax(most, sum);
    }
    if (lane->unit != LANE_BUSY) lane->top = most > 0 ? most * 1.05 : 1;
}

tm_status timeline_fill(timeline *out, const tm_timeline *t) {
    *out = (timeline){.seconds = t->result->seconds};
    if (!t->result->span || t->result->ops != t->plan->n_op)
        return tm_fail(TM_EBUG, "timeline: the result was not simulated from this plan with .timeline");
    fill_engines(out, t);
    TM_TRY(fill_frames(out, t));
    for (uint32_t i = 0; i < out->lanes; i++) {
        rank_work(&out->lane[i]);
        set_top(&out->lane[i]);
    }
    return TM_OK;
}

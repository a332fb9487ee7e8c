/* A run's log, folded into sums and curves. */
#include "io/file/file.h"
#include "report/report_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_OF_RUN_JSON = 16 << 20, MOST_OF_A_LINE = 16 << 20 };
const char *const tm_wait_names[TM_WAITS] = {"compute", "disk_read", "disk_write", "copy", "comm"};

/* ---- lines -------------------------------------------------------------------------------------------------------- */

typedef struct lines {
    const char *path;
    report_line_fn fn;
    void *ctx;
    tm_buf rest; /* the beginning of a line whose end has not been read */
} lines;

static tm_status take_lines(lines *l) {
    size_t used = 0;
    tm_status rc = TM_OK;
    for (char *end; rc == TM_OK && (end = memchr(l->rest.data + used, '\n', l->rest.len - used));) {
        size_t n = (size_t)(end - (l->rest.data + used));
        rc = l->fn(l->ctx, l->rest.data + used, n);
        used += n + 1;
    }
    memmove(l->rest.data, l->rest.data + used, l->rest.len - used);
    l->rest.len -= used;
    if (rc == TM_OK && l->rest.len > MOST_OF_A_LINE)
        return tm_fail(TM_EINPUT, "%s: a line has more than 16 MiB; a run does not write such", l->path);
    return rc;
}

tm_status report_lines(const char *path, uint64_t *at, report_line_fn fn, void *ctx) {
    enum { CHUNK = 16 << 10 };
    lines l = {path, fn, ctx, {0}};
    tm_file *in;
    tm_status rc;
    TM_TRY(tm_file_open(&in, path));
    uint64_t size = tm_file_size(in), pos = *at <= size ? *at : 0; /* shorter than it was: another run's, or cut */
    while (pos < size) {
        size_t n = tm_min_u64(CHUNK, size - pos);
        TM_GO(tm_buf_reserve(&l.rest, n + 1));
        TM_GO(tm_file_read_at(in, pos, l.rest.data + l.rest.len, n));
        l.rest.len += n;
        pos += n;
        TM_GO(take_lines(&l));
    }
    rc = TM_OK;
done:
    *at = pos - l.rest.len;
    tm_buf_free(&l.rest);
    tm_file_close(in);
    return rc;
}

/* ---- what makes a curve ------------------------------------------------------------------------------------------- */

int64_t report_step(const tm_json *line) {
    const tm_json *step = tm_json_get(line, "step");
    return step && step->is_integer && step->integer > 0 ? step->integer : 0;
}

bool report_is_evaluation(const tm_json *line) {
    return tm_json_is(tm_json_get(line, "event"), "eval");
}

/* Counts and sizes are told as sums; a curve of them would say nothing. */
static bool is_counted(const char *key) {
    static const char *const counted[] = {"step",  "tokens",  "label_tokens", "predicted_step_seconds", "data_seconds",
                                          "ranks", "samples", "comm_seconds", "copy_seconds",           "seconds"};
    for (size_t i = 0; i < TM_COUNT(counted); i++)
        if (strcmp(key, counted[i]) == 0) return true;
    return tm_ends_with(key, "_bytes");
}

static bool makes_curve(const tm_json *n) {
    return n->type == TM_JSON_NUMBER && n->key && !is_counted(n->key) && isfinite(n->number);
}

/* An evaluation's numbers are in its line twice, by HF Trainer's names as well ("eval_loss"), and some by those alone. */
static const char *name_in_evaluation(const tm_json *line, const char *key) {
    static const char hf[] = "eval_";
    if (strncmp(key, hf, sizeof hf - 1) != 0) return key;
    key += sizeof hf - 1;
    return tm_json_get(line, key) ? NULL : key;
}

bool report_next_number(const tm_json *line, const tm_json **at, char name[TM_SERIES_NAME]) {
    bool evaluation = report_is_evaluation(line);
    if (!evaluation && tm_json_get(line, "event")) return false;
    for (*at = *at ? (*at)->next : line->child; *at; *at = (*at)->next) {
        if (!makes_curve(*at)) continue;
        const char *bare = evaluation ? name_in_evaluation(line, (*at)->key) : (*at)->key;
        if (!bare) continue;
        snprintf(name, TM_SERIES_NAME, "%s%s", evaluation ? REPORT_EVALUATION : "", bare);
        return true;
    }
    return false;
}

/* ---- curves ------------------------------------------------------------------------------------------------------- */

static tm_status series_of(tm_history *r, const char *name, tm_series **out) {
    *out = NULL;
    for (uint32_t i = 0; i < r->n_series; i++)
        if (strcmp(r->series[i].name, name) == 0) return *out = &r->series[i], TM_OK;
    if (r->n_series == TM_SERIES_MOST) return TM_OK; /* a run has some twenty */
    tm_series *all = tm_realloc(r->series, (r->n_series + 1) * sizeof *all);
    if (!all) return tm_nomem((r->n_series + 1) * sizeof *all);
    r->series = all;
    tm_series *s = &all[r->n_series];
    *s = (tm_series){.stride = 1, .of_evaluation = strncmp(name, REPORT_EVALUATION, strlen(REPORT_EVALUATION)) == 0};
    snprintf(s->name, sizeof s->name, "%s", name);
    s->most = r->points;
    s->point = tm_malloc(s->most * sizeof *s->point);
    if (!s->point) return tm_nomem(s->most * sizeof *s->point);
    r->n_series++;
    *out = s;
    return TM_OK;
}

/* The lowest and the highest of points [from, from + n), in the order of their steps. */
static void fold(const tm_point *p, uint32_t n, tm_point out[2]) {
    uint32_t low = 0, high = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (p[i].value < p[low].value) low = i;
        if (p[i].value >= p[high].value) high = i;
    }
    out[0] = p[low < high ? low : high];
    out[1] = p[low < high ? high : low];
}

/* Four points become two. */
static void thin(tm_series *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i + 4 <= s->n; i += 4, n += 2) fold(s->point + i, 4, s->point + n);
    s->n = n;
    s->stride = s->stride == 1 ? 4 : 2 * s->stride; /* values of a pair */
}

static void put_point(tm_series *s, tm_point p) {
    if (s->n == s->most) thin(s);
    s->point[s->n++] = p;
}

static void add_value(tm_series *s, tm_point p) {
    s->last = p;
    if (s->stride == 1 && s->n < s->most) {
        s->point[s->n++] = p;
        return;
    }
    if (s->stride == 1) thin(s);
    if (s->pending == 0 || p.value < s->low.value) s->low = p;
    if (s->pending == 0 || p.value >= s->high.value) s->high = p;
    if (++s->pending < s->stride) return;
    bool low_first = s->low.step <= s->high.step;
    s->pending = 0;
    put_point(s, low_first ? s->low : s->high);
    put_point(s, low_first ? s->high : s->low);
}

uint32_t tm_series_points(const tm_series *s, tm_point *to) {
    uint32_t n = s->n;
    memcpy(to, s->point, n * sizeof *to);
    if (s->pending > 0) to[n++] = s->last;
    return n;
}

/* ---- sums --------------------------------------------------------------------------------------------------------- */

static double number(const tm_json *line, const char *key) {
    const tm_json *n = tm_json_get(line, key);
    return n && n->type == TM_JSON_NUMBER ? n->number : 0;
}

static uint64_t count(const tm_json *line, const char *key) {
    double n = number(line, key);
    return n > 0 && n < 9e18 ? (uint64_t)n : 0;
}

static void add_step(tm_history_sums *s, const tm_json *line) {
    const tm_json *skipped = tm_json_get(line, "skipped"), *wait = tm_json_get(line, "wait_seconds");
    s->steps++;
    s->skipped += skipped && skipped->type == TM_JSON_BOOL && skipped->boolean;
    s->tokens += count(line, "tokens");
    s->label_tokens += count(line, "label_tokens");
    s->read_bytes += count(line, "read_bytes");
    s->write_bytes += count(line, "write_bytes");
    s->step_seconds += number(line, "step_seconds");
    s->predicted_seconds += number(line, "predicted_step_seconds");
    s->data_seconds += number(line, "data_seconds");
    for (int i = 0; i < TM_WAITS; i++) s->wait_seconds[i] += number(wait, tm_wait_names[i]);
    s->host_peak_bytes = tm_max_u64(s->host_peak_bytes, count(line, "host_peak_bytes"));
    s->device_peak_bytes = tm_max_u64(s->device_peak_bytes, count(line, "device_peak_bytes"));
}

static void add_event(tm_history *r, const tm_json *line, const tm_json *event) {
    tm_history_sums *s = &r->sums;
    if (tm_json_is(event, "commit")) {
        s->commits++;
        s->commit_bytes += count(line, "commit_write_bytes");
        s->commit_seconds += number(line, "seconds");
        r->committed = report_step(line);
    }
    s->checkpoints += tm_json_is(event, "checkpoint");
    s->evaluations += tm_json_is(event, "eval");
    s->resumes += tm_json_is(event, "resume");
    const tm_json *hash = tm_json_get(line, "state_hash");
    if (!tm_json_is(event, "end")) return;
    r->ended = true;
    if (hash && hash->type == TM_JSON_STRING) snprintf(r->state_hash, sizeof r->state_hash, "%.39s", hash->text);
}

tm_status tm_history_line(tm_history *r, const char *text, size_t n) {
    char where[4200], name[TM_SERIES_NAME];
    tm_json_doc *doc = NULL;
    snprintf(where, sizeof where, "%s/log.jsonl:%llu", r->dir, (unsigned long long)++r->lines);
    TM_TRY(tm_json_parse(&doc, text, n, where, 0, 0));
    const tm_json *line = tm_json_root(doc), *event = tm_json_get(line, "event");
    tm_status rc = TM_OK;
    int64_t step = report_step(line);
    if (step > r->step) r->step = step;
    if (event) {
        add_event(r, line, event);
    } else if (step > 0) {
        uint64_t ranks = count(line, "ranks");
        r->ranks = ranks > 1 && ranks < UINT32_MAX ? (uint32_t)ranks : 1;
        r->latest = (tm_history_sums){0};
        add_step(&r->latest, line);
        add_step(&r->sums, line);
    }
    for (const tm_json *at = NULL; step > 0 && rc == TM_OK && report_next_number(line, &at, name);) {
        tm_series *s;
        rc = series_of(r, name, &s);
        if (rc == TM_OK && s) add_value(s, (tm_point){step, at->number});
    }
    tm_json_free(doc);
    return rc;
}

static tm_status take_line(void *ctx, const char *line, size_t n) {
    tm_history *r = ctx;
    r->last_bytes = n + 1;
    r->last_hash = tm_hash64(line, n, 0);
    return tm_history_line(r, line, n);
}

/* ---- a record ----------------------------------------------------------------------------------------------------- */

static void forget(tm_history *r) {
    for (uint32_t i = 0; i < r->n_series; i++) tm_free(r->series[i].point);
    tm_free(r->series);
    tm_json_free(r->run);
}

tm_status report_read_run(tm_history *r) {
    char path[4200];
    snprintf(path, sizeof path, "%s/run.json", r->dir);
    tm_json_free(r->run);
    r->run = NULL;
    return tm_path_exists(path) ? tm_json_load(&r->run, path, MOST_OF_RUN_JSON, 0) : TM_OK;
}

/* A resume cuts the log and goes on: what was read then is not what is there, however long it has become since. */
static tm_status look_for_last(const tm_history *r, const char *path, bool *there) {
    tm_file *log;
    tm_buf line = {0};
    size_t n = (size_t)r->last_bytes;
    tm_status rc = TM_OK;
    TM_TRY(tm_file_open(&log, path));
    *there = tm_file_size(log) >= r->at;
    if (*there && n > 0) {
        rc = tm_buf_reserve(&line, n);
        if (rc == TM_OK) rc = tm_file_read_at(log, r->at - n, line.data, n);
        *there = rc == TM_OK && tm_hash64(line.data, n - 1, 0) == r->last_hash && line.data[n - 1] == '\n';
    }
    tm_buf_free(&line);
    tm_file_close(log);
    return rc;
}

static void begin_again(tm_history *r) {
    tm_history fresh = {.run = r->run, .points = r->points};
    memcpy(fresh.dir, r->dir, sizeof fresh.dir);
    r->run = NULL;
    forget(r);
    *r = fresh;
}

tm_status tm_history_follow(tm_history *r) {
    char path[4200];
    bool there;
    snprintf(path, sizeof path, "%s/log.jsonl", r->dir);
    TM_TRY(report_read_run(r));
    TM_TRY(look_for_last(r, path, &there));
    if (!there) begin_again(r);
    return report_lines(path, &r->at, take_line, r);
}

tm_status tm_history_open(tm_history **out, const char *dir, uint32_t points) {
    char path[4200];
    *out = NULL;
    if (strlen(dir) >= sizeof(((tm_history *)0)->dir))
        return tm_fail(TM_EINPUT, "the path of %.64s.. is too long", dir);
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    if (!tm_path_exists(path))
        return tm_fail(TM_EINPUT, "%s: there is no log.jsonl; give the output_dir of a run that began", dir);
    tm_history *r = tm_calloc(1, sizeof *r);
    if (!r) return tm_nomem(sizeof *r);
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    r->points = points ? points / 4 * 4 : TM_SERIES_POINTS; /* thinned by fours */
    tm_status rc = tm_history_follow(r);
    if (rc == TM_OK)
        *out = r;
    else
        tm_history_close(r);
    return rc;
}

void tm_history_close(tm_history *r) {
    if (!r) return;
    forget(r);
    tm_free(r);
}

const tm_series *tm_history_series(const tm_history *r, const char *name) {
    for (uint32_t i = 0; i < r->n_series; i++)
        if (strcmp(r->series[i].name, name) == 0) return &r->series[i];
    return NULL;
}

const tm_json *tm_history_fact(const tm_history *r, const char *path) {
    const tm_json *node = r->run ? tm_json_root(r->run) : NULL;
    for (char key[64]; node && *path; path += *path == '.') {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        node = tm_json_get(node, key);
        path += n;
    }
    return node;
}

const char *tm_history_text(const tm_history *r, const char *path, const char *absent) {
    const tm_json *n = tm_history_fact(r, path);
    return n && n->type == TM_JSON_STRING ? n->text : absent;
}

const char *report_last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

double tm_history_number(const tm_history *r, const char *path, double absent) {
    const tm_json *n = tm_history_fact(r, path);
    return n && n->type == TM_JSON_NUMBER ? n->number : absent;
}

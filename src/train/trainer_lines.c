/* log.jsonl across lives: a commit knows the lines that were there, and what comes after it is cut. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int64_t counter(const tm_json *node, const char *key) {
    const tm_json *n = tm_json_get(node, key);
    return n && n->is_integer ? n->integer : -1;
}

/* A line that is whole and of a step up to the commit's. */
static bool keeps(const trainer *t, const char *line, size_t n) {
    tm_json_doc *doc = NULL;
    if (tm_json_parse(&doc, line, n, "log.jsonl", 0, 0) != TM_OK) {
        tm_error_clear();
        return false;
    }
    int64_t step = counter(tm_json_root(doc), "step");
    const tm_json *event = tm_json_get(tm_json_root(doc), "event");
    bool again = tm_json_is(event, "end") || tm_json_is(event, "best") ||
                 (t->unfinished && step == t->step && event); /* will be written again */
    tm_json_free(doc);
    return step >= 0 && step <= t->step && !again;
}

typedef tm_status (*line_fn)(void *ctx, const char *line, size_t n);

static tm_status each_line(tm_file *in, line_fn fn, void *ctx) {
    enum { CHUNK = 64 << 10 };
    tm_buf line = {0};
    tm_status rc = TM_OK;
    for (uint64_t at = 0, size = tm_file_size(in); at < size && rc == TM_OK;) {
        size_t n = tm_min_u64(CHUNK, size - at), had = line.len, used = 0;
        TM_GO(tm_buf_reserve(&line, n + 1));
        TM_GO(tm_file_read_at(in, at, line.data + had, n));
        line.len += n;
        at += n;
        for (char *end; (end = memchr(line.data + used, '\n', line.len - used));) {
            size_t length = (size_t)(end - (line.data + used)) + 1;
            TM_GO(fn(ctx, line.data + used, length));
            used += length;
        }
        memmove(line.data, line.data + used, line.len - used);
        line.len -= used;
    }
done:
    tm_buf_free(&line);
    return rc;
}

void trainer_count_line(trainer *t, const char *line, size_t n) {
    if (n > 0 && line[n - 1] == '\n') n--;
    t->log.hash = tm_hash64(line, n, t->log.hash);
    t->log.lines++;
}

void trainer_mark_log(trainer *t) {
    t->log.step_lines = t->log.lines;
    t->log.step_hash = t->log.hash;
}

/* Exactly the lines that a resume from this commit keeps: what followed an unfinished step is written again. */
void trainer_describe_log(const trainer *t, tm_json_writer *w) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, t->unfinished ? t->log.step_hash : t->log.hash);
    tm_jw_field_object(w, "log");
    tm_jw_field_uint(w, "lines", t->unfinished ? t->log.step_lines : t->log.lines);
    tm_jw_field_str(w, "hash", hash);
    tm_jw_object_end(w);
}

/* The first so many lines, hashed as they were when they were written. */
typedef struct recount {
    uint64_t want, lines, hash;
} recount;

static tm_status count_line(void *ctx, const char *line, size_t n) {
    recount *r = ctx;
    if (r->lines == r->want) return TM_OK;
    r->lines++;
    r->hash = tm_hash64(line, n - 1, r->hash); /* without its end, as trainer_count_line */
    return TM_OK;
}

static tm_status refuse_log(trainer *t, const recount *r, int64_t step, bool explicit) {
    const char *path = trainer_path(t, "log.jsonl");
    if (explicit) {
        tm_log(TM_LOG_WARN, "%s is not what was written up to the commit of step %" PRId64 "; it goes on as it is",
               path, step);
        return TM_OK;
    }
    return tm_fail(TM_EINPUT,
                   "%s is not what was written up to the commit of step %" PRId64 ": %s (%" PRIu64 " of %" PRIu64
                   " lines); put it back, or --resume %s goes on without what is missing",
                   path, step, r->lines < r->want ? "it was cut" : "it was changed", r->lines, r->want,
                   t->s.cfg->output_dir);
}

tm_status trainer_check_log(trainer *t, const tm_json *info) {
    const tm_json *log = tm_json_get(info, "log"), *hash = tm_json_get(log, "hash"), *lines = tm_json_get(log, "lines");
    const char *resume = t->s.args->resume;
    char text[20];
    tm_file *in;
    recount r = {0};
    if (!session_is_rank0(&t->s) || t->from.rewound || !log || !tm_json_is(tm_json_get(info, "key"), t->out.key))
        return TM_OK;
    r.want = lines && lines->is_integer && lines->integer >= 0 ? (uint64_t)lines->integer : UINT64_MAX;
    if (tm_path_exists(trainer_path(t, "log.jsonl"))) {
        TM_TRY(tm_file_open(&in, t->path));
        tm_status rc = each_line(in, count_line, &r);
        tm_file_close(in);
        TM_TRY(rc);
    }
    snprintf(text, sizeof text, "%016" PRIx64, r.hash);
    t->log.lines = r.lines; /* a commit may be made before the log is open */
    t->log.hash = r.hash;
    trainer_mark_log(t);
    if (r.lines == r.want && tm_json_is(hash, text)) return TM_OK;
    return refuse_log(t, &r, t->step, resume && strcmp(resume, "auto") != 0);
}

typedef struct cut {
    trainer *t;
    tm_out *out;
} cut;

static tm_status copy_line(void *ctx, const char *line, size_t n) {
    cut *c = ctx;
    if (!keeps(c->t, line, n)) return TM_OK;
    trainer_count_line(c->t, line, n);
    return tm_out_append(c->out, line, n);
}

static tm_status note_commit(void *ctx, const char *line, size_t n) {
    tm_json_doc *doc = NULL;
    if (tm_json_parse(&doc, line, n, "log.jsonl", 0, 0) == TM_OK)
        *(bool *)ctx |= tm_json_is(tm_json_get(tm_json_root(doc), "event"), "commit");
    tm_error_clear();
    tm_json_free(doc);
    return TM_OK;
}

tm_status trainer_log_has_commit(trainer *t, bool *any) {
    tm_file *in;
    *any = false;
    if (!tm_path_exists(trainer_path(t, "log.jsonl"))) return TM_OK;
    TM_TRY(tm_file_open(&in, t->path));
    tm_status rc = each_line(in, note_commit, any);
    tm_file_close(in);
    return rc;
}

tm_status trainer_cut_log(trainer *t) {
    tm_file *in;
    tm_out *out;
    t->log.lines = t->log.hash = 0;
    if (!tm_path_exists(trainer_path(t, "log.jsonl"))) return TM_OK;
    TM_TRY(tm_file_open(&in, t->path));
    tm_status rc = tm_out_create(&out, t->path);
    if (rc == TM_OK) {
        rc = tm_out_end(out, each_line(in, copy_line, &(cut){t, out}));
        trainer_mark_log(t);
    }
    tm_file_close(in);
    return rc;
}

/* Is a commit of this job? Then the counters and the log are set to it. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- is it of this job? ---------------------------------------------------------------------------------------- */

/* Keys that bits do not depend on, and those that are compared in another way (what the files hold, not their names).
 */
static bool is_free(const char *key, bool other_ranks) {
    static const char *const keys[] = {"model",
                                       "train",
                                       "eval",
                                       "format",
                                       "max_steps",
                                       "num_train_epochs",
                                       "per_device_eval_batch_size",
                                       "memory",
                                       "aio",
                                       "output_dir",
                                       "save_steps",
                                       "eval_steps",
                                       "commit_steps",
                                       "commit_minutes",
                                       "logging_steps",
                                       "save_total_limit",
                                       "save_dtype",
                                       "keep_state",
                                       "save_state",
                                       "save_strategy",
                                       "metric_for_best_model",
                                       "greater_is_better",
                                       "load_best_model_at_end",
                                       "strategy",
                                       "strict",
                                       "wall_clock_breakdown",
                                       "zero_optimization"};
    for (size_t i = 0; i < TM_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    /* another number of ranks divides the same batch otherwise */
    return other_ranks && (!strcmp(key, "per_device_train_batch_size") || !strcmp(key, "gradient_accumulation_steps"));
}

static tm_status text_of(const tm_json *node, tm_buf *out) {
    tm_json_writer w;
    if (!node) return tm_buf_printf(out, "nothing");
    tm_jw_init(&w, out, 0);
    tm_jw_node(&w, node);
    return tm_jw_end(&w);
}

static tm_status compare_value(const tm_json *was, const tm_json *is, const char *key, tm_buf *differ) {
    tm_buf a = {0}, b = {0};
    tm_status rc = text_of(was, &a);
    if (rc == TM_OK) rc = text_of(is, &b);
    if (rc == TM_OK && strcmp(a.data, b.data) != 0)
        rc = tm_buf_printf(differ, "%s%s was %s, is %s", differ->len ? "; " : "", key, a.data, b.data);
    tm_buf_free(&a);
    tm_buf_free(&b);
    return rc;
}

/* The members of `is` against those of `was`, then those that only `was` has. Both are our own dumps: three levels. */
static tm_status compare_members(const tm_json *was, const tm_json *is, unsigned depth, bool other_ranks,
                                 tm_buf *differ) {
    for (const tm_json *m = is->child; m; m = m->next) {
        const tm_json *old = tm_json_get(was, m->key);
        if (is_free(m->key, other_ranks)) continue;
        if (depth < 3 && old && old->type == TM_JSON_OBJECT && m->type == TM_JSON_OBJECT)
            TM_TRY(compare_members(old, m, depth + 1, other_ranks, differ));
        else
            TM_TRY(compare_value(old, m, m->key, differ));
    }
    for (const tm_json *m = was->child; m; m = m->next)
        if (!is_free(m->key, other_ranks) && !tm_json_get(is, m->key)) TM_TRY(compare_value(m, NULL, m->key, differ));
    return TM_OK;
}

static tm_status check_config(const trainer *t, const tm_json *info) {
    tm_buf now = {0}, differ = {0};
    tm_json_doc *doc = NULL;
    tm_status rc;
    const tm_json *was = tm_json_get(info, "config");
    TM_GO(tm_config_dump_json(t->cfg, &now, 0));
    TM_GO(tm_json_parse(&doc, now.data, now.len, "configuration", 0, 0));
    if (!was) TM_GO(tm_fail(TM_ECORRUPT, "the commit holds no configuration"));
    TM_GO(compare_members(was, tm_json_root(doc), 0, t->old.other, &differ));
    if (differ.len)
        rc = tm_fail(TM_EINPUT,
                     "the run in %s was started with another configuration: %s; set it back, or start another run in "
                     "another output_dir",
                     t->cfg->output_dir, differ.data);
done:
    tm_json_free(doc);
    tm_buf_free(&now);
    tm_buf_free(&differ);
    return rc;
}

static bool same_hex(const tm_json *info, const char *key, uint64_t now) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, now);
    return tm_json_is(tm_json_get(info, key), text);
}

static tm_status check_numerics(const trainer *t, const tm_json *info) {
    tm_buf now = {0};
    const tm_json *was = tm_json_get(info, "numerics");
    tm_status rc = trainer_numerics(t, &now);
    if (rc == TM_OK && (!was || was->type != TM_JSON_STRING || strcmp(was->text, now.data) != 0)) {
        const char *old = was && was->type == TM_JSON_STRING ? was->text : "unknown";
        if (t->args->allow_numerics_change || t->old.other)
            tm_log(TM_LOG_WARN, "computed with \"%s\" so far, with \"%s\" from here on: other bits", old, now.data);
        else
            rc = tm_fail(TM_EINPUT,
                         "the run was computed with \"%s\", this machine computes with \"%s\", which rounds otherwise; "
                         "--allow-numerics-change goes on all the same",
                         old, now.data);
    }
    tm_buf_free(&now);
    return rc;
}

static int64_t counter(const tm_json *info, const char *key) {
    const tm_json *n = tm_json_get(info, key);
    return n && n->is_integer ? n->integer : -1;
}

static tm_status check_length(const trainer *t, const tm_json *info) {
    int64_t step = counter(info, "step"), total = counter(info, "total_steps"), now = t->cfg->total_steps;
    if (step < 0 || step != (int64_t)tm_commit_step(t->commit) || counter(info, "applied") < 0)
        return tm_fail(TM_ECORRUPT, "the commit's counters do not belong together");
    if (now < step)
        return tm_fail(TM_EINPUT, "the run in %s has done %" PRId64 " steps, max_steps is %" PRId64 "; raise it",
                       t->cfg->output_dir, step, now);
    if (now != total)
        tm_log(TM_LOG_WARN, "the run was to take %" PRId64 " steps, now %" PRId64 ": the learning rate follows that",
               total, now);
    return TM_OK;
}

static tm_status check_finished(trainer *t) {
    earlier e;
    TM_TRY(earlier_read(trainer_path(t, "run.json"), &e));
    tm_json_free(e.doc);
    if (t->rewound || !e.any || !e.finished || t->cfg->total_steps > e.step) return TM_OK;
    if (!e.kept) { /* killed when it was about to remove it */
        tm_commit *c = t->commit;
        t->commit = NULL;
        TM_TRY(tm_commit_remove(c));
    }
    return tm_fail(TM_EINPUT,
                   "%s holds a finished run of %" PRId64 " steps; raise max_steps to go on, give another output_dir, "
                   "or --resume never to start over",
                   t->cfg->output_dir, e.step);
}

tm_status trainer_check_commit(trainer *t) {
    if (!t->commit) return TM_OK;
    const tm_json *info = tm_commit_info(t->commit), *unfinished = tm_json_get(info, "unfinished");
    if (!t->old.other) TM_TRY(check_finished(t));
    TM_TRY(trainer_check_ranks(t, info));
    if (!same_hex(info, "model", t->model_hash))
        return tm_fail(TM_EINPUT, "%s: config.json is not that of the model which the run in %s trains", t->cfg->model,
                       t->cfg->output_dir);
    TM_TRY(check_config(t, info));
    if (!same_hex(info, "data", tm_dataset_fingerprint(data_set(t->train))))
        return tm_fail(TM_EINPUT, "%s: holds other samples than when the run in %s began; put the old file back",
                       t->cfg->data.train, t->cfg->output_dir);
    TM_TRY(check_numerics(t, info));
    TM_TRY(check_length(t, info));
    t->step = counter(info, "step");
    t->committed = t->old.other ? -1 : t->step; /* of this run's own layout there is none yet */
    t->applied = counter(info, "applied");
    t->skipped_in_a_row = counter(info, "skipped_in_a_row");
    t->skipped_at_scale = counter(info, "skipped_at_scale"); /* of an earlier version, -1: a step more */
    t->unfinished = unfinished && unfinished->boolean;
    TM_TRY(trainer_read_scale(t, info));
    return trainer_read_saves(t, info);
}

/* ---- the log --------------------------------------------------------------------------------------------------- */

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

typedef struct cut {
    const trainer *t;
    tm_out *out;
} cut;

static tm_status copy_line(void *ctx, const char *line, size_t n) {
    cut *c = ctx;
    return keeps(c->t, line, n) ? tm_out_append(c->out, line, n) : TM_OK;
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
    if (!tm_path_exists(trainer_path(t, "log.jsonl"))) return TM_OK;
    TM_TRY(tm_file_open(&in, t->path));
    tm_status rc = tm_out_create(&out, t->path);
    if (rc == TM_OK) {
        rc = each_line(in, copy_line, &(cut){t, out});
        if (rc == TM_OK)
            rc = tm_out_commit(out);
        else
            tm_out_abandon(out);
    }
    tm_file_close(in);
    return rc;
}

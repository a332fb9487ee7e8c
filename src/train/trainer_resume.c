/* What a run goes on from: the choice, and whether the commit is of this job. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what OUTPUT_DIR says -------------------------------------------------------------------------------------- */

typedef struct earlier {
    bool any, finished, kept; /* kept: keep_state */
    int64_t step;
    tm_json_doc *doc;
    const tm_json *directories; /* of doc */
} earlier;

static tm_status read_earlier(const char *path, earlier *out) {
    tm_buf text = {0};
    *out = (earlier){0};
    if (!tm_path_exists(path)) return TM_OK;
    tm_status rc = tm_file_slurp(path, 16 * TM_MIB, &text);
    if (rc == TM_OK) rc = tm_json_parse(&out->doc, text.data, text.len, path, 0, 0);
    tm_buf_free(&text);
    if (rc != TM_OK) return rc;
    const tm_json *root = tm_json_root(out->doc), *step = tm_json_get(root, "step");
    out->any = true;
    out->finished = tm_json_is(tm_json_get(root, "status"), "finished");
    out->step = step && step->is_integer ? step->integer : 0;
    const tm_json *kept = tm_json_get(tm_json_get(root, "config"), "keep_state");
    out->kept = kept && kept->boolean;
    out->directories = tm_json_get(root, "run_directories");
    return TM_OK;
}

static const char *first_directory(const earlier *e) {
    const tm_json *d = e->directories ? e->directories->child : NULL;
    return d && d->type == TM_JSON_STRING ? d->text : NULL;
}

/* ---- refusals and leftovers ------------------------------------------------------------------------------------ */

static tm_status refuse_finished(const trainer *t, const earlier *e) {
    return tm_fail(TM_EINPUT,
                   "%s holds a finished run of %" PRId64 " steps whose state was removed (keep_state keeps it); give "
                   "another output_dir, or --resume never to start over",
                   t->cfg->output_dir, e->step);
}

static tm_status refuse_lost(const trainer *t, const char *dir) {
    return tm_fail(TM_EINPUT,
                   "%s holds an interrupted run that cannot continue: %s%s; --resume never starts over, another "
                   "output_dir leaves it alone",
                   t->cfg->output_dir, dir ? dir : "it made no commits", dir ? " is gone" : "");
}

static tm_status refuse_alive(const char *dir, const tm_io_owner *o) {
    return tm_fail(TM_EINPUT, "%s: in use by process %ld on %s, started %s; wait for it or stop it", dir, o->pid,
                   o->host, o->started);
}

static bool is_run_directory(const tm_json *dir, tm_io_owner *o) {
    const char *slash = dir->type == TM_JSON_STRING ? strrchr(dir->text, '/') : NULL;
    if (!slash || strncmp(slash, "/run-", 5) != 0 || !tm_path_is_dir(dir->text)) return false;
    if (tm_io_run_owner(dir->text, o) == TM_OK) return o->is_run;
    tm_error_clear();
    return false;
}

static tm_status none_alive(const earlier *e) {
    tm_io_owner o;
    for (const tm_json *d = e->directories ? e->directories->child : NULL; d; d = d->next)
        if (is_run_directory(d, &o) && o.alive) return refuse_alive(d->text, &o);
    return TM_OK;
}

/* Without a commit nothing in them can be used: killed before the first one, or while they were removed at the end.
 * Taken before removed, so that nobody else has them. */
static tm_status drop_leftovers(const earlier *e) {
    tm_io_owner o;
    for (const tm_json *d = e->directories ? e->directories->child : NULL; d; d = d->next) {
        tm_io_run *run;
        if (!is_run_directory(d, &o)) continue;
        TM_TRY(tm_io_run_reopen(&run, d->text, true, 10000));
        tm_log(TM_LOG_INFO, "%s: removed; it holds no commit", d->text);
        TM_TRY(tm_io_run_remove(run));
    }
    return TM_OK;
}

/* Killed before run.json named its directories: they are known by their names. One that holds a commit is left: that
 * is for `tidemill clean`. */
typedef struct nameless {
    trainer *t;
    const char *path;
} nameless;

static tm_status drop_nameless(void *ctx, const char *name, bool is_dir) {
    const nameless *x = ctx;
    char prefix[40], path[4096], manifest[4200];
    tm_io_run *run;
    tm_io_owner o;
    int n = snprintf(prefix, sizeof prefix, "run-%s-", x->t->run_name);
    if (!is_dir || strncmp(name, prefix, (size_t)n) != 0) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", x->path, name);
    snprintf(manifest, sizeof manifest, "%s/manifest", path);
    bool committed = tm_path_exists(manifest);
    snprintf(manifest, sizeof manifest, "%s/part-of", path);
    if (committed || tm_path_exists(manifest)) {
        tm_log(TM_LOG_WARN, "%s: the commit of a run that was given up; `tidemill clean %s` removes it", path, x->path);
        return TM_OK;
    }
    TM_TRY(tm_io_run_owner(path, &o));
    if (o.alive) return refuse_alive(path, &o);
    if (!o.is_run) return tm_remove_tree(path); /* killed before it made its lock */
    TM_TRY(tm_io_run_reopen(&run, path, true, 0));
    return tm_io_run_remove(run);
}

static tm_status drop_in(trainer *t, const char *path) {
    nameless x = {t, path};
    return tm_path_is_dir(path) ? tm_list_dir(path, drop_nameless, &x) : TM_OK;
}

static tm_status drop_all_nameless(trainer *t) {
    const tm_strings *lists[] = {&t->cfg->param_paths, &t->cfg->optimizer_paths};
    TM_TRY(drop_in(t, t->home));
    for (size_t l = 0; l < TM_COUNT(lists); l++)
        for (uint32_t i = 0; i < lists[l]->n; i++) TM_TRY(drop_in(t, lists[l]->item[i]));
    return TM_OK;
}

/* ---- the choice ------------------------------------------------------------------------------------------------ */

static bool holds_commit(const char *dir) {
    char path[4096];
    snprintf(path, sizeof path, "%s/manifest", dir);
    return tm_path_exists(path);
}

static tm_status from_earlier(trainer *t, const earlier *e) {
    const char *dir = first_directory(e);
    if (!e->any) return TM_OK;
    if (dir && holds_commit(dir)) return tm_commit_open(&t->commit, dir);
    if (!e->finished && (!dir || !tm_path_is_dir(dir))) return refuse_lost(t, dir);
    TM_TRY(none_alive(e));
    if (!e->finished) TM_TRY(tm_remove_tree(trainer_path(t, "run.json"))); /* before what it names goes */
    TM_TRY(drop_leftovers(e));
    TM_TRY(drop_all_nameless(t));
    return e->finished ? refuse_finished(t, e) : TM_OK;
}

static tm_status from_directory(trainer *t, const char *dir) {
    earlier e;
    char path[4096];
    if (!tm_path_is_dir(dir))
        return tm_fail(TM_EINPUT, "--resume %s: no such folder; give auto, never, an output_dir or a run directory",
                       dir);
    snprintf(path, sizeof path, "%s/run.json", dir);
    TM_TRY(read_earlier(path, &e));
    const char *first = e.any ? first_directory(&e) : dir;
    tm_status rc = TM_OK;
    if (!first || !tm_path_is_dir(first))
        rc = tm_fail(TM_EINPUT, "--resume %s: this %s run left no state to go on from", dir,
                     e.finished ? "finished" : "interrupted");
    else
        rc = tm_commit_open(&t->commit, first);
    tm_json_free(e.doc);
    return rc;
}

/* OUTPUT_DIR need not exist yet: its name counts. */
static void name_run(trainer *t) {
    char here[4096] = "";
    const char *dir = t->cfg->output_dir;
    if (*dir != '/' && !getcwd(here, sizeof here)) *here = 0;
    uint64_t h = tm_hash64(here, strlen(here), 0);
    snprintf(t->run_name, sizeof t->run_name, "%012" PRIx64, tm_hash64(dir, strlen(dir), h) >> 16);
}

tm_status trainer_choose_start(trainer *t) {
    const char *resume = t->args->resume ? t->args->resume : "auto";
    earlier e;
    t->committed = -1;
    name_run(t);
    snprintf(t->home, sizeof t->home, "%s/offload", t->cfg->output_dir);
    bool never = strcmp(resume, "never") == 0;
    tm_status rc = read_earlier(trainer_path(t, "run.json"), &e);
    if (rc != TM_OK && never) {
        tm_error_clear(); /* it is to be forgotten anyway */
        rc = TM_OK;
    }
    TM_TRY(rc);
    if (never)
        rc = none_alive(&e);
    else
        rc = strcmp(resume, "auto") == 0 ? from_earlier(t, &e) : from_directory(t, resume);
    tm_json_free(e.doc);
    return rc == TM_OK && !t->commit ? drop_all_nameless(t) : rc;
}

/* ---- what a killed run left in OUTPUT_DIR ------------------------------------------------------------------------ */

/* checkpoint-N.tmp, .tmp-<16 hex digits>-NAME (tm_out), .tokens-<pid>-<n> (data). */
static bool is_half_done(const char *name) {
    size_t n, digits;
    if (strncmp(name, ".tmp-", 5) == 0) return strspn(name + 5, "0123456789abcdef") == 16 && name[21] == '-';
    if (strncmp(name, ".tokens-", 8) == 0) return name[8 + strspn(name + 8, "0123456789")] == '-';
    n = strncmp(name, "checkpoint-", 11) == 0 ? 11 : 0;
    digits = strspn(name + n, "0123456789");
    return n && digits && strcmp(name + n + digits, ".tmp") == 0;
}

static tm_status sweep_one(void *ctx, const char *name, bool is_dir) {
    const trainer *t = ctx;
    char path[4096];
    (void)is_dir;
    if (!is_half_done(name)) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", t->cfg->output_dir, name);
    return tm_remove_tree(path);
}

tm_status trainer_sweep(trainer *t) {
    return tm_list_dir(t->cfg->output_dir, sweep_one, t);
}

/* ---- is it of this job? ---------------------------------------------------------------------------------------- */

/* Keys that bits do not depend on, and those that are compared in another way (what the files hold, not their names).
 */
static bool is_free(const char *key) {
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
                                       "strict",
                                       "wall_clock_breakdown",
                                       "zero_optimization"};
    for (size_t i = 0; i < TM_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
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
static tm_status compare_members(const tm_json *was, const tm_json *is, unsigned depth, tm_buf *differ) {
    for (const tm_json *m = is->child; m; m = m->next) {
        const tm_json *old = tm_json_get(was, m->key);
        if (is_free(m->key)) continue;
        if (depth < 3 && old && old->type == TM_JSON_OBJECT && m->type == TM_JSON_OBJECT)
            TM_TRY(compare_members(old, m, depth + 1, differ));
        else
            TM_TRY(compare_value(old, m, m->key, differ));
    }
    for (const tm_json *m = was->child; m; m = m->next)
        if (!is_free(m->key) && !tm_json_get(is, m->key)) TM_TRY(compare_value(m, NULL, m->key, differ));
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
    TM_GO(compare_members(was, tm_json_root(doc), 0, &differ));
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
    TM_TRY(trainer_numerics(&now));
    tm_status rc = TM_OK;
    if (!was || was->type != TM_JSON_STRING || strcmp(was->text, now.data) != 0) {
        const char *old = was && was->type == TM_JSON_STRING ? was->text : "unknown";
        if (t->args->allow_numerics_change)
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
    TM_TRY(read_earlier(trainer_path(t, "run.json"), &e));
    tm_json_free(e.doc);
    if (!e.any || !e.finished || t->cfg->total_steps > e.step) return TM_OK;
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
    TM_TRY(check_finished(t));
    if (!same_hex(info, "model", t->model_hash))
        return tm_fail(TM_EINPUT, "%s: config.json is not that of the model which the run in %s trains", t->cfg->model,
                       t->cfg->output_dir);
    TM_TRY(check_config(t, info));
    if (!same_hex(info, "data", tm_dataset_fingerprint(data_set(t->train))))
        return tm_fail(TM_EINPUT, "%s: holds other samples than when the run in %s began; put the old file back",
                       t->cfg->data.train, t->cfg->output_dir);
    TM_TRY(check_numerics(t, info));
    TM_TRY(check_length(t, info));
    t->step = t->committed = counter(info, "step");
    t->applied = counter(info, "applied");
    t->skipped_in_a_row = counter(info, "skipped_in_a_row");
    t->unfinished = unfinished && unfinished->boolean;
    return TM_OK;
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
    bool end = tm_json_is(tm_json_get(tm_json_root(doc), "event"), "end");
    tm_json_free(doc);
    return step >= 0 && step <= t->step && !end;
}

static tm_status copy_lines(const trainer *t, tm_file *in, tm_out *out) {
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
            if (keeps(t, line.data + used, length)) TM_GO(tm_out_append(out, line.data + used, length));
            used += length;
        }
        memmove(line.data, line.data + used, line.len - used);
        line.len -= used;
    }
done:
    tm_buf_free(&line);
    return rc;
}

tm_status trainer_cut_log(trainer *t) {
    tm_file *in;
    tm_out *out;
    if (!tm_path_exists(trainer_path(t, "log.jsonl"))) return TM_OK;
    TM_TRY(tm_file_open(&in, t->path));
    tm_status rc = tm_out_create(&out, t->path);
    if (rc == TM_OK) {
        rc = copy_lines(t, in, out);
        if (rc == TM_OK)
            rc = tm_out_commit(out);
        else
            tm_out_abandon(out);
    }
    tm_file_close(in);
    return rc;
}

/* Is a commit, or a run that is over, of this job? Then the counters are set to the commit. */
#include "train/resume/resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- is it of this job? ---------------------------------------------------------------------------------------- */

typedef struct comparison {
    bool other_ranks; /* the number of ranks is another */
    bool best;        /* one of the two chooses a best checkpoint */
} comparison;

/* The table of keys says what bits depend on, and what is compared in another way (what files hold, not their names). */
static bool is_free(const char *path, const comparison *how) {
    tm_config_change change = tm_config_change_of(path);
    if (change == TM_CHANGE_WITHOUT_BEST) return !how->best;
    if (change == TM_CHANGE_ON_OTHER_RANKS) return how->other_ranks;
    return change == TM_CHANGE_FREE;
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

enum { PATH_BYTES = 160 };

static const char *path_of(const char *section, const char *key, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s%s%s", section, *section ? "." : "", key);
    return path;
}

/* The members of `is` in `section` against those of `was`, then those that only `was` has. Both are our own dumps: three
 * levels. */
static tm_status compare_members(const tm_json *was, const tm_json *is, const char *section, const comparison *how,
                                 tm_buf *differ) {
    char path[PATH_BYTES];
    for (const tm_json *m = is->child; m; m = m->next) {
        const tm_json *old = tm_json_get(was, m->key);
        if (is_free(path_of(section, m->key, path), how)) continue;
        if (old && old->type == TM_JSON_OBJECT && m->type == TM_JSON_OBJECT)
            TM_TRY(compare_members(old, m, path, how, differ));
        else
            TM_TRY(compare_value(old, m, m->key, differ));
    }
    for (const tm_json *m = was->child; m; m = m->next)
        if (!is_free(path_of(section, m->key, path), how) && !tm_json_get(is, m->key))
            TM_TRY(compare_value(m, NULL, m->key, differ));
    return TM_OK;
}

static bool tracks_best(const tm_json *config) {
    const tm_json *load = tm_json_get(config, "load_best_model_at_end");
    return (load && load->boolean) || tm_json_get(config, "metric_for_best_model") ||
           tm_json_is(tm_json_get(config, "save_strategy"), "best");
}

/* `was` against this run's configuration: what differs, as text. */
static tm_status compare_config(const trainer *t, const tm_json *was, bool other_ranks, tm_buf *differ) {
    tm_buf now = {0};
    tm_json_doc *doc = NULL;
    tm_status rc;
    TM_GO(tm_config_dump_json(t->s.cfg, &now, 0));
    TM_GO(tm_json_parse(&doc, now.data, now.len, "configuration", 0, 0));
    if (!was || was->type != TM_JSON_OBJECT)
        TM_GO(tm_fail(TM_ECORRUPT, "the commit, or run.json, holds no configuration"));
    const tm_json *is = tm_json_root(doc);
    rc = compare_members(was, is, "", &(comparison){other_ranks, tracks_best(was) || tracks_best(is)}, differ);
done:
    tm_json_free(doc);
    tm_buf_free(&now);
    return rc;
}

static tm_status check_config(const trainer *t, const tm_json *info) {
    tm_buf differ = {0};
    tm_status rc = compare_config(t, tm_json_get(info, "config"), t->from.old.other, &differ);
    if (rc == TM_OK && differ.len)
        rc = tm_fail(TM_EINPUT,
                     "the run in %s was started with another configuration: %s; set it back, or start another run in "
                     "another output_dir",
                     t->s.cfg->output_dir, differ.data);
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
        if (t->s.args->allow_numerics_change || t->from.old.other)
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

static tm_status resolve(trainer *t, int64_t max_steps) {
    t->s.cfg->max_steps = max_steps;
    return session_resolve_steps(&t->s);
}

/* The rates of the steps that both runs have and that are to be done, one by one. */
static tm_status depends_on_length(trainer *t, int64_t step, int64_t total, bool *depends) {
    int64_t given = t->s.cfg->max_steps, now = t->s.cfg->total_steps;
    *depends = resolve(t, total) != TM_OK;
    tm_lr_schedule was = t->s.cfg->schedule;
    tm_error_clear();
    TM_TRY(resolve(t, given));
    for (int64_t s = step; s < total && s < now && !*depends; s++)
        *depends = tm_lr_at(&was, s) != tm_lr_at(&t->s.cfg->schedule, s);
    return TM_OK;
}

/* A run that is over may be made longer in any case: its steps were done. */
static tm_status check_length(trainer *t, const tm_json *info) {
    int64_t step = counter(info, "step"), total = counter(info, "total_steps"), now = t->s.cfg->total_steps;
    bool depends = false;
    if (step < 0 || step != (int64_t)tm_commit_step(t->from.commit) || counter(info, "applied") < 0)
        return tm_fail(TM_ECORRUPT, "the commit's counters do not belong together");
    if (now < step)
        return tm_fail(TM_EINPUT, "the run in %s has done %" PRId64 " steps, max_steps is %" PRId64 "; raise it",
                       t->s.cfg->output_dir, step, now);
    if (now == total) return TM_OK;
    if (step < total && !t->from.rewound) TM_TRY(depends_on_length(t, step, total, &depends));
    if (depends)
        return tm_fail(TM_EINPUT,
                       "the run in %s was to take %" PRId64 " steps, now %" PRId64
                       ", and its learning rate depends on that; set max_steps back (a run that is finished can be "
                       "made longer, with keep_state), or start another run in another output_dir",
                       t->s.cfg->output_dir, total, now);
    tm_log(TM_LOG_WARN, "the run was to take %" PRId64 " steps, now %" PRId64 ": the learning rate follows that", total,
           now);
    return TM_OK;
}

/* ---- a run that is over ------------------------------------------------------------------------------------------ */

static void field_hex(tm_json_writer *w, const char *key, uint64_t v) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    tm_jw_field_str(w, key, text);
}

void trainer_describe_input(const trainer *t, tm_json_writer *w) {
    field_hex(w, "model", t->s.model_hash);
    if (t->s.base_hash) field_hex(w, "base", t->s.base_hash);
    if (t->s.reference_hash) field_hex(w, "reference", t->s.reference_hash);
    field_hex(w, "data", t->s.train ? tm_dataset_fingerprint(data_set(t->s.train)) : 0);
    field_hex(w, "eval", t->s.eval ? tm_dataset_fingerprint(data_set(t->s.eval)) : 0);
    if (t->s.trial) field_hex(w, "tasks", t->s.scores.hash);
}

/* Where the base itself is the reference nothing is said of one. */
static bool same_reference(const trainer *t, const tm_json *info) {
    return t->s.reference_hash ? same_hex(info, "reference", t->s.reference_hash) : !tm_json_get(info, "reference");
}

/* What run.json says of it against this job. */
static tm_status compare_finished(const trainer *t, const earlier *e, tm_buf *differ) {
    const tm_json *root = tm_json_root(e->doc);
    uint32_t ranks = e->by_rank && e->by_rank->count ? (uint32_t)e->by_rank->count : 1;
    if (!same_hex(root, "model", t->s.model_hash)) TM_TRY(tm_buf_printf(differ, "model has another config.json; "));
    if (t->s.base_hash && !same_hex(root, "base", t->s.base_hash))
        TM_TRY(tm_buf_printf(differ, "model has other weights; "));
    if (!same_reference(t, root)) TM_TRY(tm_buf_printf(differ, "the reference model has other weights; "));
    if (!same_hex(root, "data", tm_dataset_fingerprint(data_set(t->s.train))))
        TM_TRY(tm_buf_printf(differ, "data.train holds other samples; "));
    if (!same_hex(root, "eval", t->s.eval ? tm_dataset_fingerprint(data_set(t->s.eval)) : 0))
        TM_TRY(tm_buf_printf(differ, "data.eval holds other samples; "));
    if (t->s.trial && tm_json_get(root, "tasks") && !same_hex(root, "tasks", t->s.scores.hash))
        TM_TRY(tm_buf_printf(differ, "files of eval_tasks hold other questions; "));
    return compare_config(t, tm_json_get(root, "config"), ranks != (t->s.comm ? t->s.ranks.ranks : 1), differ);
}

static tm_status refuse_other(const trainer *t, const earlier *e, const char *differ) {
    return tm_fail(TM_EINPUT,
                   "%s holds a finished run of %" PRId64 " steps of another job: %s; give another output_dir, or "
                   "--resume never to start over",
                   t->s.cfg->output_dir, e->step, differ);
}

static tm_status judge_finished(trainer *t, const earlier *e) {
    char steps[100];
    tm_buf differ = {0};
    const char *resume = t->s.args->resume;
    bool elsewhere = resume && strcmp(resume, "auto") != 0 && *t->from.copy; /* --resume with another run's state */
    tm_status rc = compare_finished(t, e, &differ);
    if (rc == TM_OK && differ.len)
        rc = refuse_other(t, e, differ.data);
    else if (rc == TM_OK && (elsewhere || (t->s.cfg->total_steps > e->step && !t->from.commit && !e->early)))
        rc = earlier_refuse_finished(t, e);
    else if (rc == TM_OK && t->s.cfg->total_steps < e->step) {
        snprintf(steps, sizeof steps, "max_steps gives %" PRId64 " steps", t->s.cfg->total_steps);
        rc = refuse_other(t, e, steps);
    }
    t->from.done = rc == TM_OK && (t->s.cfg->total_steps == e->step || (e->early && !elsewhere));
    tm_buf_free(&differ);
    return rc;
}

static tm_status check_finished(trainer *t) {
    earlier e;
    tm_status rc = TM_OK;
    if (!t->from.finished || t->from.rewound) return TM_OK;
    TM_TRY(earlier_read(trainer_path(t, "run.json"), &e));
    if (e.finished) rc = judge_finished(t, &e);
    tm_json_free(e.doc);
    return rc;
}

/* What it left when it was killed while it removed its state (kept state stays), or a copy made for nothing. */
static tm_status remove_state(trainer *t, const earlier *e) {
    tm_commit *c = t->from.commit;
    t->from.commit = NULL;
    if (c && t->from.old.other)
        tm_commit_close(c);
    else if (c)
        TM_TRY(tm_commit_remove(c));
    if (e->kept) return TM_OK;
    TM_TRY(trainer_remove_old(t));
    if (!session_is_rank0(&t->s)) return TM_OK;
    TM_TRY(earlier_drop(t, e));
    return earlier_drop_nameless(t);
}

tm_status trainer_end_finished(trainer *t) {
    earlier e;
    TM_TRY(earlier_read(trainer_path(t, "run.json"), &e));
    tm_status rc = e.kept && !*t->from.copy ? TM_OK : remove_state(t, &e);
    if (rc == TM_OK && session_is_rank0(&t->s)) rc = trainer_sweep(t); /* killed at its page, after its last word */
    if (rc == TM_OK && session_is_rank0(&t->s))
        tm_log(TM_LOG_INFO, "%s holds the finished run of this job, %" PRId64 " steps: nothing is left to do",
               t->s.cfg->output_dir, e.step);
    tm_json_free(e.doc);
    return rc;
}

tm_status trainer_check_commit(trainer *t) {
    TM_TRY(check_finished(t));
    if (!t->from.commit || t->from.done) return TM_OK;
    const tm_json *info = tm_commit_info(t->from.commit), *unfinished = tm_json_get(info, "unfinished");
    TM_TRY(trainer_check_ranks(t, info));
    if (!same_hex(info, "model", t->s.model_hash))
        return tm_fail(TM_EINPUT, "%s: config.json is not that of the model which the run in %s trains",
                       t->s.cfg->model, t->s.cfg->output_dir);
    TM_TRY(check_config(t, info));
    if (t->s.base_hash && !same_hex(info, "base", t->s.base_hash))
        return tm_fail(TM_EINPUT,
                       "%s: its weights are not those that the run in %s began with, and what it trains is of no use "
                       "with others; put the old model back",
                       t->s.cfg->model, t->s.cfg->output_dir);
    if (!same_reference(t, info))
        return tm_fail(
            TM_EINPUT,
            "%s: the reference model's weights are not those that the run in %s began with; put the old ones back",
            t->s.cfg->reference ? t->s.cfg->reference : t->s.cfg->model, t->s.cfg->output_dir);
    if (!same_hex(info, "data", tm_dataset_fingerprint(data_set(t->s.train))))
        return tm_fail(TM_EINPUT, "%s: holds other samples than when the run in %s began; put the old file back",
                       t->s.cfg->data.train, t->s.cfg->output_dir);
    TM_TRY(check_numerics(t, info));
    TM_TRY(check_length(t, info));
    t->step = counter(info, "step");
    t->applied = counter(info, "applied");
    t->skipped_in_a_row = counter(info, "skipped_in_a_row");
    t->skipped_at_scale = counter(info, "skipped_at_scale"); /* of an earlier version, -1: a step more */
    t->unfinished = unfinished && unfinished->boolean;
    TM_TRY(trainer_read_scale(t, info));
    TM_TRY(trainer_read_saves(t, info));
    trainer_read_patience(t, info);
    TM_TRY(trainer_check_log(t, info));
    t->committed = t->from.old.other ? -1 : t->step; /* of this run's own layout there is none yet */
    return TM_OK;
}

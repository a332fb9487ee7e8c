/* The run before: what OUTPUT_DIR/run.json says of it, why it may be refused, and what of it is cleared away. */
#include "io/run/run.h"
#include "io/file/file.h"
#include "session/data_cache.h"
#include "train/resume/resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

tm_status earlier_read(const char *path, earlier *out) {
    *out = (earlier){0};
    if (!tm_path_exists(path)) return TM_OK;
    TM_TRY(tm_json_load(&out->doc, path, 16 * TM_MIB, 0));
    const tm_json *root = tm_json_root(out->doc), *step = tm_json_get(root, "step");
    out->any = true;
    out->finished = tm_json_is(tm_json_get(root, "status"), "finished");
    out->damaged = tm_json_is(tm_json_get(root, "status"), "damaged");
    const tm_json *early = tm_json_get(root, "stopped_early");
    out->early = early && early->boolean;
    out->starting = tm_json_is(tm_json_get(root, "status"), "starting");
    const tm_json *key = tm_json_get(root, "key");
    if (key && key->type == TM_JSON_STRING && tm_io_is_key(key->text)) memcpy(out->key, key->text, sizeof out->key);
    out->step = step && step->is_integer ? step->integer : 0;
    const tm_json *kept = tm_json_get(tm_json_get(root, "config"), "keep_state");
    out->kept = kept && kept->boolean;
    out->directories = tm_json_get(root, "run_directories");
    out->by_rank = tm_json_get(root, "directories_by_rank");
    return TM_OK;
}

/* Only the status changes: what the run knows of its directories may not be complete yet. */
tm_status earlier_mark_damaged(const char *path) {
    static const char was[] = "\"status\": \"running\"", is[] = "\"status\": \"damaged\"";
    tm_buf text = {0};
    tm_status rc = tm_file_slurp(path, 16 * TM_MIB, &text);
    char *at = rc == TM_OK ? memmem(text.data, text.len, was, sizeof was - 1) : NULL;
    if (at) {
        memcpy(at, is, sizeof is - 1);
        rc = tm_file_write(path, text.data, text.len);
    }
    tm_buf_free(&text);
    return rc;
}

const char *earlier_directory(const earlier *e) {
    const tm_json *d = e->directories ? e->directories->child : NULL;
    return d && d->type == TM_JSON_STRING ? d->text : NULL;
}

tm_status earlier_refuse_finished(const trainer *t, const earlier *e) {
    return tm_fail(TM_EINPUT,
                   "%s holds a finished run of %" PRId64 " steps whose state was removed (keep_state keeps it); give "
                   "another output_dir, or --resume never to start over",
                   t->s.cfg->output_dir, e->step);
}

tm_status earlier_refuse_lost(const trainer *t, const char *lost, const char *state) {
    char full[4096], back[4200] = "", lies[4200] = "";
    snprintf(full, sizeof full, "%s/log.jsonl", t->s.cfg->output_dir);
    bool log = tm_path_exists(full);
    if (trainer_newest_full(t, full, sizeof full))
        snprintf(back, sizeof back, "--resume %s goes back to a full checkpoint, ", full);
    if (state) snprintf(lies, sizeof lies, "--resume %s goes on from its state, ", state);
    return tm_fail(
        TM_EINPUT,
        "%s holds an interrupted run that cannot continue: its log %s, and %s is gone; %sput it back (is its "
        "disk mounted?), %s%s--resume never starts over, another output_dir leaves it alone",
        t->s.cfg->output_dir, log ? "shows commits" : "is gone as well", lost,
        state || t->s.comm ? "" : "if the state lies elsewhere now, --resume with that directory, or ", lies, back);
}

/* A run that committed and has lost its state (a disk that is not mounted) is not started over in silence. What was
 * given up, and what was never committed, is. */
tm_status earlier_refuse_if_lost(trainer *t, const earlier *e) {
    char manifest[4200];
    bool committed = false;
    if (!e->any || e->finished || e->starting) return TM_OK;
    TM_TRY(trainer_log_has_commit(t, &committed));
    if (!committed && tm_path_exists(trainer_path(t, "log.jsonl"))) return TM_OK; /* it is there before "running" is */
    const tm_json *d = e->directories ? e->directories->child : NULL;
    if (!d) return earlier_refuse_lost(t, "the list of its directories in run.json", NULL);
    snprintf(manifest, sizeof manifest, "%s/manifest", d->type == TM_JSON_STRING ? d->text : "");
    while (d && d->type == TM_JSON_STRING && tm_path_is_dir(d->text)) d = d->next;
    if (d) return earlier_refuse_lost(t, d->type == TM_JSON_STRING ? d->text : "a directory of its list", NULL);
    return earlier_refuse_lost(t, manifest, NULL);
}

static tm_status refuse_alive(const char *dir, const tm_io_owner *o) {
    char who[512];
    return tm_fail(TM_EINPUT, "%s: in use by %s; wait for it or stop it", dir, tm_io_owner_say(o, who, sizeof who));
}

static bool is_of_a_run(const trainer *t, const tm_json *dir, tm_io_owner *o) {
    return dir->type == TM_JSON_STRING && trainer_whose(t, dir->text, o) != DIR_NOBODYS;
}

tm_status earlier_none_alive(const trainer *t, const earlier *e, unsigned wait_ms) {
    tm_io_owner o;
    unsigned waited = 0;
    for (const tm_json *d = e->directories ? e->directories->child : NULL; d; d = d->next)
        for (; is_of_a_run(t, d, &o) && o.alive; waited += 20) {
            if (waited >= wait_ms) return refuse_alive(d->text, &o);
            nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        }
    return TM_OK;
}

static bool holds_commit(const char *dir) {
    char path[4200];
    snprintf(path, sizeof path, "%s/part-of", dir);
    return resume_holds_commit(dir) || tm_path_exists(path);
}

/* Ours, taken before it is removed, so that nobody else has it. `tidemill clean` may have been there first. */
static tm_status remove_ours(const trainer *t, const char *dir) {
    tm_io_run *run;
    tm_status rc = tm_io_run_reopen(&run, dir, &t->out.claim, true, STILL_DYING_MS);
    if (rc == TM_OK) {
        tm_log(TM_LOG_INFO, "%s: removed; it holds no commit that this run needs", dir);
        return tm_io_run_remove(run);
    }
    if (tm_path_is_dir(dir)) return rc;
    tm_error_clear();
    return TM_OK;
}

/* Without a commit nothing in them can be used: killed before the first one, or while they were removed at the end. */
tm_status earlier_drop(const trainer *t, const earlier *e) {
    tm_io_owner o;
    for (const tm_json *d = e->directories ? e->directories->child : NULL; d; d = d->next) {
        const char *dir = d->type == TM_JSON_STRING ? d->text : "";
        dir_owner whose = trainer_whose(t, dir, &o);
        if (whose == DIR_ANOTHERS) tm_log(TM_LOG_WARN, "%s: run.json names it, it is another run's: left alone", dir);
        if (whose != DIR_OURS) continue;
        if (resume_holds_commit(dir))
            tm_log(TM_LOG_WARN, "%s: holds a commit, and is left alone; `tidemill clean --all` removes it", dir);
        else
            TM_TRY(remove_ours(t, dir));
    }
    return TM_OK;
}

/* Killed before run.json named its directories: they are known by their names, which begin as OUTPUT_DIR's key does.
 * One that holds a commit is left: that is for `tidemill clean`. */
typedef struct nameless {
    trainer *t;
    const char *path;
} nameless;

static tm_status drop_nameless(void *ctx, const char *name, bool is_dir) {
    const nameless *x = ctx;
    char prefix[40], path[4096];
    tm_io_owner o;
    int n = snprintf(prefix, sizeof prefix, "run-%s", x->t->out.run_hash);
    if (!is_dir || strncmp(name, prefix, (size_t)n) != 0 || (name[n] != '-' && name[n] != 'r')) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", x->path, name);
    dir_owner whose = trainer_whose(x->t, path, &o);
    if (whose == DIR_NOBODYS) return tm_io_run_discard_begun(path); /* killed before it made its owner */
    if (whose == DIR_ANOTHERS) return TM_OK;
    if (holds_commit(path)) {
        tm_log(TM_LOG_WARN,
               "%s: the commit of a run that was given up; this run starts over (--resume with that directory goes on "
               "from it); `tidemill clean --all %s` removes it",
               path, x->path);
        return TM_OK;
    }
    return remove_ours(x->t, path);
}

static tm_status drop_in(trainer *t, const char *path) {
    nameless x = {t, path};
    return tm_path_is_dir(path) ? tm_list_dir(path, drop_nameless, &x) : TM_OK;
}

static bool has_path(const tm_strings *list, const char *path) {
    for (uint32_t i = 0; i < list->n; i++)
        if (strcmp(list->item[i], path) == 0) return true;
    return false;
}

tm_status earlier_drop_nameless(trainer *t) {
    const tm_strings *lists[] = {&t->s.cfg->param_paths, &t->s.cfg->optimizer_paths};
    TM_TRY(drop_in(t, t->out.home));
    for (size_t l = 0; l < TM_COUNT(lists); l++)
        for (uint32_t i = 0; i < lists[l]->n; i++)
            if (l == 0 || !has_path(lists[0], lists[l]->item[i])) TM_TRY(drop_in(t, lists[l]->item[i]));
    return TM_OK;
}

/* ---- what a killed run left in OUTPUT_DIR ------------------------------------------------------------------------ */

/* checkpoint-N.tmp, checkpoint-N.tmp-old, files that were being written, tokens of a process. */
static bool is_half_done(const char *name) {
    size_t n, digits;
    if (tm_out_target(name) || data_cache_name(name) == DATA_TOKENS_OWN) return true;
    n = strncmp(name, "checkpoint-", 11) == 0 ? 11 : 0;
    digits = strspn(name + n, "0123456789");
    const char *end = name + n + digits;
    return n && digits && (strcmp(end, ".tmp") == 0 || strcmp(end, ".tmp-old") == 0);
}

static tm_status sweep_one(void *ctx, const char *name, bool is_dir) {
    const trainer *t = ctx;
    char path[4096];
    (void)is_dir;
    if (!is_half_done(name)) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", t->s.cfg->output_dir, name);
    return tm_remove_tree(path);
}

tm_status trainer_sweep(trainer *t) {
    return tm_list_dir(t->s.cfg->output_dir, sweep_one, t);
}

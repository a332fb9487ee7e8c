/* OUTPUT_DIR as a run's own: it would not replace what is the user's, it is held by one run at a time, it and its run
 * directories know each other by a key, and a start that is refused leaves it as it was. README.md, "Whose is what". */
#include "comm/comm.h"
#include "io/run/run.h"
#include "io/file/file.h"
#include "train/resume/resume.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- what would be replaced ------------------------------------------------------------------------------------ */

static bool same_file(const struct stat *a, const char *path) {
    struct stat b;
    return stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

static bool is_checkpoint(const char *name) {
    const char *digits = name + 11;
    if (strncmp(name, "checkpoint-", 11) != 0) return false;
    size_t n = strspn(digits, "0123456789");
    return n > 0 && (digits[n] == 0 || strncmp(digits + n, ".tmp", 4) == 0);
}

static bool is_model_file(const char *name) {
    const char *dot = strchr(name, '.');
    bool weights = strncmp(name, "model", 5) == 0 || strncmp(name, "adapter_model", 13) == 0;
    return weights && dot && strstr(dot, "safetensors");
}

/* Names that a run writes, replaces or removes in OUTPUT_DIR. */
static bool is_written(const char *name) {
    static const char *const names[] = {
        "run.json",           "log.jsonl",          "offload", "adapter_config.json", "report.html",
        "trainer_state.json", "report_answers.json"};
    if (is_checkpoint(name) || is_model_file(name)) return true;
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return tm_source_is_side_file(name);
}

/* `path` is OUTPUT_DIR, or lies in it where a run writes. What is a folder may be it; of a file its folder may. */
static bool would_replace(const struct stat *output, const char *path) {
    char full[PATH_MAX], name[NAME_MAX + 1];
    if (!path || !realpath(path, full)) return false;
    if (same_file(output, full)) return true;
    for (char *slash; (slash = strrchr(full, '/')) && slash != full;) {
        snprintf(name, sizeof name, "%s", slash + 1);
        *slash = 0;
        if (same_file(output, full)) return is_written(name);
    }
    return false;
}

static tm_status refuse_replacing(const trainer *t, const char *what, const char *path) {
    return tm_fail(TM_EINPUT, "output_dir %s: this run's files would replace %s, %s; give another output_dir",
                   t->s.cfg->output_dir, what, path);
}

static bool holds(const char *dir, const char *name) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return tm_path_exists(path);
}

/* A checkpoint or a run directory of some run. */
static bool is_part_of_a_run(const char *output, char *run, size_t cap) {
    char full[PATH_MAX];
    tm_io_owner o;
    if (!realpath(output, full)) return false;
    bool directory = tm_io_run_owner(full, &o) == TM_OK && *o.key;
    tm_error_clear();
    char *slash = strrchr(full, '/');
    if (!slash || slash == full) return false;
    snprintf(run, cap, "%s", directory ? full : "");
    if (directory) return true;
    *slash = 0;
    snprintf(run, cap, "%s", full);
    return is_checkpoint(slash + 1) && holds(full, "run.json");
}

static tm_status note_model(void *ctx, const char *name, bool is_dir) {
    *(bool *)ctx |= !is_dir && (is_model_file(name) || strcmp(name, "config.json") == 0 ||
                                strcmp(name, "adapter_config.json") == 0);
    return TM_OK;
}

/* A model that no run of ours left there. */
static tm_status holds_foreign_model(const char *output, bool *model) {
    *model = false;
    if (holds(output, "run.json") || holds(output, "log.jsonl")) return TM_OK;
    return tm_list_dir(output, note_model, model);
}

static tm_status refuse_data(const trainer *t, const struct stat *output, const tm_data_items *items,
                             const char *what) {
    for (uint32_t i = 0; i < items->n; i++)
        if (would_replace(output, items->item[i].path)) return refuse_replacing(t, what, items->item[i].path);
    return TM_OK;
}

/* By identity, whatever the names: links and `x/..` lead to the same folder. */
static tm_status refuse_replaced(const trainer *t) {
    const tm_config *c = t->s.cfg;
    struct stat output;
    char run[PATH_MAX];
    bool model;
    if (stat(c->output_dir, &output) != 0 || !S_ISDIR(output.st_mode)) return TM_OK; /* not there: nothing is */
    if (would_replace(&output, c->model)) return refuse_replacing(t, "those of the model", c->model);
    TM_TRY(refuse_data(t, &output, &c->data.train_items, "the training data"));
    TM_TRY(refuse_data(t, &output, &c->data.eval_items, "the evaluation data"));
    for (uint32_t i = 0; i < c->eval_tasks.file.n; i++)
        if (would_replace(&output, c->eval_tasks.file.item[i]))
            return refuse_replacing(t, "questions of eval_tasks", c->eval_tasks.file.item[i]);
    const char *config = t->s.args->config;
    if (config && would_replace(&output, config)) return refuse_replacing(t, "the configuration", config);
    if (is_part_of_a_run(c->output_dir, run, sizeof run)) return refuse_replacing(t, "those of another run", run);
    TM_TRY(holds_foreign_model(c->output_dir, &model));
    return model ? refuse_replacing(t, "a model that no run has written there", c->output_dir) : TM_OK;
}

/* A disk that is not mounted looks like a folder that is missing: to make it would fill the disk below. */
static tm_status refuse_missing(const trainer *t, tm_place place, const tm_strings *paths) {
    if (place != TM_PLACE_NVME && place != TM_PLACE_AUTO) return TM_OK;
    struct stat st;
    for (uint32_t i = 0; i < paths->n; i++)
        if (strcmp(paths->item[i], t->out.home) != 0 && stat(paths->item[i], &st) != 0 && errno == ENOENT)
            return tm_fail(TM_EINPUT, "nvme_path %s: no such directory; mount its disk, or make it: mkdir -p %s",
                           paths->item[i], paths->item[i]);
    return TM_OK;
}

static tm_status check_paths(trainer *t) {
    const tm_config *c = t->s.cfg;
    snprintf(t->out.home, sizeof t->out.home, "%s/offload", c->output_dir);
    TM_TRY(refuse_missing(t, c->param_place, &c->param_paths));
    TM_TRY(refuse_missing(t, c->optimizer_place, &c->optimizer_paths));
    return session_is_rank0(&t->s) ? refuse_replaced(t) : TM_OK;
}

/* ---- held ------------------------------------------------------------------------------------------------------ */

static void note_above(trainer_found *f, const char *path) {
    size_t n = strlen(path);
    char at[4096];
    snprintf(at, sizeof at, "%s", path);
    while (n > 0 && !tm_path_exists(at)) {
        while (n > 0 && at[n - 1] == '/') n--;
        while (n > 0 && at[n - 1] != '/') n--;
        at[n] = 0;
    }
    f->above = n;
}

/* What is there was there before this run, which waits for whoever was at it: noted when nobody else is any more. */
static tm_status lock_output(trainer *t) {
    const char *path = t->s.cfg->output_dir, *resume = t->s.args->resume;
    bool never = resume && strcmp(resume, "never") == 0;
    struct stat st;
    trainer_found f = {.folder = lstat(path, &st) == 0};
    note_above(&f, path);
    TM_TRY(tm_lock_dir(&t->out.lock, path, never ? LOOKED_AT_MS : STILL_DYING_MS));
    if (snprintf(f.path, sizeof f.path, "%s", path) >= (int)sizeof f.path) *f.path = 0;
    f.run_json = lstat(trainer_path(t, "run.json"), &st) == 0; /* a link that leads nowhere is there as well */
    f.log = lstat(trainer_path(t, "log.jsonl"), &st) == 0;
    t->out.found = f;
    return TM_OK;
}

/* A folder that cannot be written to is better known now than after the import. */
static tm_status try_writing(trainer *t) {
    tm_out *file;
    TM_TRY(tm_out_create(&file, trainer_path(t, "run.json")));
    tm_out_abandon(file);
    return TM_OK;
}

static void remove_made(const char *folder, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (tm_remove_tree(path) != TM_OK) tm_log(TM_LOG_WARN, "%s could not be removed", path);
}

/* Files by their names, folders only where nothing is left in them. */
void trainer_undo_output(trainer *t) {
    trainer_found *f = &t->out.found;
    size_t n = strlen(f->path);
    if (!n) return;
    if (!f->run_json) remove_made(f->path, "run.json");
    if (!f->log) remove_made(f->path, "log.jsonl");
    for (bool gone = !f->folder; gone && n > f->above;) {
        gone = tm_remove_empty(f->path);
        while (n > f->above && f->path[n - 1] == '/') n--;
        while (n > f->above && f->path[n - 1] != '/') n--;
        f->path[n] = 0;
    }
}

/* ---- the key --------------------------------------------------------------------------------------------------- */

tm_status trainer_put_run_json(trainer *t, const tm_buf *text) {
    return tm_file_write(trainer_path(t, "run.json"), text->data, text->len);
}

static tm_status write_starting(trainer *t) {
    tm_buf out = {0};
    tm_json_writer w;
    tm_jw_init(&w, &out, 1);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "status", "starting");
    tm_jw_field_str(&w, "key", t->out.key);
    tm_jw_field_str(&w, "version", TIDEMILL_VERSION);
    tm_jw_object_end(&w);
    tm_status rc = tm_jw_end(&w);
    if (rc == TM_OK) rc = tm_buf_append(&out, "\n", 1);
    if (rc == TM_OK) rc = trainer_put_run_json(t, &out);
    tm_buf_free(&out);
    return rc;
}

tm_status trainer_start_over(trainer *t) {
    earlier e;
    bool known = earlier_read(trainer_path(t, "run.json"), &e) == TM_OK && e.starting && strcmp(e.key, t->out.key) == 0;
    tm_error_clear();
    tm_json_free(e.doc);
    return known ? TM_OK : write_starting(t);
}

/* OUTPUT_DIR was copied, and the one that it is a copy of is still there: the state stays that one's. */
static bool is_a_copy(const trainer *t, const earlier *e) {
    char path[PATH_MAX + 32];
    tm_io_owner o;
    earlier theirs;
    const char *dir = earlier_directory(e);
    if (!dir || !tm_path_is_dir(dir) || tm_io_run_owner(dir, &o) != TM_OK) return tm_error_clear(), false;
    if (strcmp(o.key, e->key) != 0 || !*o.of || strcmp(o.of, t->out.here) == 0) return false;
    snprintf(path, sizeof path, "%s/run.json", o.of);
    bool same = earlier_read(path, &theirs) == TM_OK && strcmp(theirs.key, e->key) == 0;
    tm_error_clear();
    tm_json_free(theirs.doc);
    return same;
}

/* --resume RUN_DIRECTORY of a run here, whose run.json is lost: its owner says that it is of this folder. */
static bool adopt(trainer *t, const char *dir) {
    tm_io_owner o;
    if (!tm_path_is_dir(dir) || tm_io_run_owner(dir, &o) != TM_OK) return tm_error_clear(), false;
    if (!*o.key || strcmp(o.of, t->out.here) != 0) return false;
    memcpy(t->out.key, o.key, sizeof t->out.key);
    return true;
}

/* The state that a lost run.json named, if it is found where this run would put it. */
typedef struct lost_state {
    const trainer *t;
    const char *path;
    char found[4096];
} lost_state;

static tm_status note_state(void *ctx, const char *name, bool is_dir) {
    lost_state *x = ctx;
    char dir[4096];
    tm_io_owner o;
    if (!is_dir || strncmp(name, "run-", 4) != 0) return TM_OK;
    snprintf(dir, sizeof dir, "%s/%s", x->path, name);
    bool ours = tm_io_run_owner(dir, &o) == TM_OK && *o.key && strcmp(o.of, x->t->out.here) == 0;
    tm_error_clear();
    if (ours && resume_holds_commit(dir)) snprintf(x->found, sizeof x->found, "%s", dir);
    return TM_OK;
}

static tm_status refuse_lost_run_json(trainer *t) {
    bool committed = false;
    TM_TRY(trainer_log_has_commit(t, &committed));
    if (!committed) return TM_OK;
    lost_state x = {.t = t};
    for (unsigned i = 0; i < t->out.claim.n_paths && !*x.found; i++) {
        x.path = t->out.claim.paths[i];
        if (tm_path_is_dir(x.path)) TM_TRY(tm_list_dir(x.path, note_state, &x));
    }
    return earlier_refuse_lost(t, trainer_path(t, "run.json"), *x.found && !t->s.comm ? x.found : NULL);
}

/* Of the rank that speaks. */
static tm_status find_key(trainer *t, earlier *e) {
    const char *resume = t->s.args->resume ? t->s.args->resume : "auto";
    bool never = strcmp(resume, "never") == 0, automatic = strcmp(resume, "auto") == 0;
    tm_status rc = earlier_read(trainer_path(t, "run.json"), e);
    if (rc != TM_OK && !never) return rc;
    tm_error_clear(); /* it is to be forgotten anyway */
    memcpy(t->out.key, e->key, sizeof t->out.key);
    t->out.copied = *t->out.key && is_a_copy(t, e);
    if (t->out.copied || !*t->out.key) tm_io_make_key(t->out.key);
    if (!e->finished) TM_TRY(try_writing(t));
    if (t->out.found.run_json) return TM_OK;
    if (automatic) TM_TRY(refuse_lost_run_json(t));
    if (!automatic && !never) (void)adopt(t, resume);
    return write_starting(t);
}

static tm_status set_paths(trainer *t) {
    const tm_strings *lists[] = {&t->s.cfg->param_paths, &t->s.cfg->optimizer_paths};
    unsigned n = 0;
    t->out.claim_paths = tm_calloc(lists[0]->n + lists[1]->n + 1, sizeof *t->out.claim_paths);
    if (!t->out.claim_paths) return tm_nomem(sizeof *t->out.claim_paths);
    t->out.claim_paths[n++] = t->out.home;
    for (size_t l = 0; l < TM_COUNT(lists); l++)
        for (uint32_t i = 0; i < lists[l]->n; i++) t->out.claim_paths[n++] = lists[l]->item[i];
    t->out.claim = (tm_io_claim){.key = t->out.key, .of = t->out.here, .paths = t->out.claim_paths, .n_paths = n};
    return TM_OK;
}

static void name_run(trainer *t) {
    snprintf(t->out.run_hash, sizeof t->out.run_hash, "%.12s", t->out.key);
    snprintf(t->out.run_name, sizeof t->out.run_name, "%s", t->out.run_hash);
    if (t->s.comm) snprintf(t->out.run_name, sizeof t->out.run_name, "%sr%u", t->out.run_hash, t->s.ranks.rank);
}

/* Every rank knows it; the first one's word counts. */
static tm_status know_key(trainer *t) {
    earlier e = {0};
    char shared[TM_IO_KEY_CHARS + 2] = "";
    const char *dir = t->s.cfg->output_dir;
    if (!realpath(dir, t->out.here)) snprintf(t->out.here, sizeof t->out.here, "%s", dir);
    tm_status rc = set_paths(t);
    if (rc == TM_OK && session_is_rank0(&t->s)) rc = find_key(t, &e);
    if (rc == TM_OK && !session_is_rank0(&t->s)) {
        rc = earlier_read(trainer_path(t, "run.json"), &e);
        if (rc == TM_OK) memcpy(t->out.key, e.key, sizeof t->out.key);
        if (rc != TM_ENOMEM) rc = TM_OK, tm_error_clear(); /* the first rank says it */
    }
    tm_json_free(e.doc);
    TM_TRY(session_agree(&t->s, rc));
    memcpy(shared, t->out.key, sizeof t->out.key);
    shared[TM_IO_KEY_CHARS + 1] = t->out.copied;
    if (t->s.comm) TM_TRY(tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, shared, sizeof shared));
    memcpy(t->out.key, shared, sizeof t->out.key);
    t->out.copied = shared[TM_IO_KEY_CHARS + 1];
    name_run(t);
    return TM_OK;
}

tm_status trainer_take_output(trainer *t) {
    TM_TRY(session_agree(&t->s, check_paths(t)));
    TM_TRY(session_agree(&t->s, session_is_rank0(&t->s) ? lock_output(t) : TM_OK));
    return know_key(t);
}

/* ---- whose ----------------------------------------------------------------------------------------------------- */

dir_owner trainer_whose(const trainer *t, const char *dir, tm_io_owner *o) {
    *o = (tm_io_owner){0};
    bool there = tm_path_is_dir(dir) && tm_io_run_owner(dir, o) == TM_OK;
    bool ours = there && tm_io_claim_check(&t->out.claim, dir, o) == TM_OK;
    tm_error_clear();
    return ours ? DIR_OURS : there && (*o->key || o->keyless) ? DIR_ANOTHERS : DIR_NOBODYS;
}

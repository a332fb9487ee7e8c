/* tidemill clean: what dead runs left below an offload path, and of their data. */
#include "io/file/file.h"
#include "offload/store/store.h"
#include "tools/clean_internal.h"
#include "tools/tools.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const state_names[] = {"dead", "commit", "in use", "old"};
static const char *const kind_names[] = {"run", "base", "tokens", "reference"};

static tm_status weigh_file(void *ctx, const char *name, bool is_dir) {
    leftover *l = ctx;
    struct stat st;
    char path[4400];
    (void)is_dir;
    snprintf(path, sizeof path, "%s/%s", l->path, name);
    if (lstat(path, &st) != 0) return TM_OK; /* gone meanwhile */
    double age = difftime(time(NULL), st.st_mtime);
    l->bytes += (uint64_t)st.st_blocks * 512;
    if (l->age_seconds < 0 || age < l->age_seconds) l->age_seconds = age > 0 ? age : 0;
    return TM_OK;
}

static bool has(const leftover *l, const char *name) {
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", l->path, name);
    return tm_path_exists(path);
}

/* Or what may become one: ranks prepare together, and the next start puts in place what one had not published. */
static bool holds_commit(const leftover *l) {
    return has(l, "manifest") || has(l, "manifest.next") || has(l, "part-of");
}

static void read_commit(leftover *l) {
    tm_commit *c;
    l->state = LEFT_COMMIT;
    l->step = -1;
    if (tm_commit_look(&c, l->path) != TM_OK) {
        tm_error_clear(); /* damaged, or named by another directory's manifest: still not ours to throw away */
        return;
    }
    const tm_json *output = tm_json_get(tm_commit_info(c), "output_dir");
    l->step = (int64_t)tm_commit_step(c);
    if (output && output->type == TM_JSON_STRING) snprintf(l->output, sizeof l->output, "%s", output->text);
    tm_commit_close(c);
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_run_name(const char *name) {
    return strncmp(name, "run-", 4) == 0;
}

/* Of a base that a run has made, or was making: base-<16 hex digits>[.<pid>.tmp]. */
static bool is_base_name(const char *name) {
    bool named = strncmp(name, "base-", 5) == 0 && strspn(name + 5, "0123456789abcdef") == 16;
    return named && (name[21] == 0 || name[21] == '.');
}

/* ---- bases: what a run has made goes on being of use as long as the run can be gone on with -------------------------- */

typedef struct asked_for {
    const char *folder;
    leftover *base;
} asked_for;

static tm_status look_at_run(void *ctx, const char *name, bool is_dir) {
    asked_for *a = ctx;
    leftover run = {.state = LEFT_DEAD};
    if (!is_dir || !is_run_name(name)) return TM_OK;
    snprintf(run.path, sizeof run.path, "%s/%s", a->folder, name);
    if (tm_io_run_owner(run.path, &run.owner) != TM_OK) return tm_error_clear(), TM_OK;
    if (strcmp(run.owner.key, a->base->owner.key) == 0 && (run.owner.alive || holds_commit(&run)))
        a->base->state = LEFT_COMMIT;
    return TM_OK;
}

/* Its run's directories lie beside it. */
static tm_status look_for_run(leftover *base) {
    char folder[4096];
    char *slash;
    snprintf(folder, sizeof folder, "%s", base->path);
    slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    base->step = -1;
    return tm_list_dir(slash ? folder : ".", look_at_run, &(asked_for){slash ? folder : ".", base});
}

static tm_status look(leftover *l) {
    l->age_seconds = -1;
    TM_TRY(tm_io_run_owner(l->path, &l->owner));
    TM_TRY(tm_list_dir(l->path, weigh_file, l));
    if (l->owner.alive)
        l->state = LEFT_ALIVE;
    else if (l->owner.keyless)
        l->state = LEFT_OLD;
    else if (l->kind == HOLDS_BASE)
        return look_for_run(l);
    else if (holds_commit(l))
        read_commit(l);
    return TM_OK;
}

leftover *clean_place(survey *s) {
    leftover *grown = tm_realloc(s->found, (s->n + 1) * sizeof *grown);
    if (!grown) return NULL;
    s->found = grown;
    grown[s->n] = (leftover){.state = LEFT_DEAD};
    return &grown[s->n];
}

static tm_status add(survey *s, const char *path) {
    leftover *l = clean_place(s);
    if (!l) return tm_nomem((s->n + 1) * sizeof *l);
    if (is_base_name(name_of(path))) l->kind = HOLDS_BASE;
    snprintf(l->path, sizeof l->path, "%s", path);
    tm_status rc = look(l);
    if (rc != TM_OK && !tm_path_is_dir(path) && path != s->path) return tm_error_clear(), TM_OK; /* gone meanwhile */
    TM_TRY(rc);
    const tm_io_owner *o = &l->owner;
    if (o->is_run && (*o->key || o->keyless)) s->n++; /* what has no owner of ours is not ours, whatever its name */
    return TM_OK;
}

static tm_status interval(void *ctx, const char *name, bool is_dir) {
    survey *s = ctx;
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", s->path, name);
    bool named = is_run_name(name) || is_base_name(name);
    if (!is_dir || !named || lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return TM_OK;
    return add(s, path);
}

static tm_status find_all(survey *s) {
    if (is_run_name(name_of(s->path)) || is_base_name(name_of(s->path))) return add(s, s->path);
    TM_TRY(tm_list_dir(s->path, interval, s));
    return clean_find_data(s);
}

static const char *age_text(double s, char *buf, size_t cap) {
    if (s < 0)
        snprintf(buf, cap, "?");
    else if (s < 3600)
        snprintf(buf, cap, "%.0f min", s / 60);
    else if (s < 2 * 86400)
        snprintf(buf, cap, "%.1f h", s / 3600);
    else
        snprintf(buf, cap, "%.1f d", s / 86400);
    return buf;
}

static void print_table(const survey *s) {
    char size[32], age[32], what[1200];
    if (s->n == 0) {
        printf("%s: no run directories\n", s->path);
        return;
    }
    printf("%-8s %12s %10s %8s  %s\n", "state", "size", "age", "pid", "path");
    for (size_t i = 0; i < s->n; i++) {
        const leftover *l = &s->found[i];
        *what = 0;
        if (l->kind >= HOLDS_TOKENS)
            snprintf(what, sizeof what, "  (%s%s)",
                     l->kind == HOLDS_TOKENS ? "tokenised data" : "log-probabilities of a reference model",
                     l->state == LEFT_COMMIT ? ", for a run that can go on" : "");
        else if (l->kind == HOLDS_BASE)
            snprintf(what, sizeof what, "  (a base in four bits of %.1000s%s)", l->owner.of,
                     l->state == LEFT_COMMIT ? ", which can be resumed" : "");
        else if (l->state == LEFT_COMMIT && l->step >= 0)
            snprintf(what, sizeof what, "  (step %" PRId64 " of %s can be resumed)", l->step, l->output);
        else if (l->state == LEFT_COMMIT)
            snprintf(what, sizeof what, "  (part of a commit, or a damaged one)");
        else if (l->state == LEFT_OLD)
            snprintf(what, sizeof what, "  (made before runs had keys: by hand, or with --all)");
        printf("%-8s %12s %10s %8ld  %s%s\n", state_names[l->state], tm_format_size(l->bytes, size, sizeof size),
               age_text(l->age_seconds, age, sizeof age), l->owner.pid, l->path, what);
    }
}

static tm_status print_survey_json(const survey *s, const bool *removed) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_array(&w, "run_directories");
    for (size_t i = 0; i < s->n; i++) {
        const leftover *l = &s->found[i];
        tm_jw_object(&w);
        tm_jw_field_str(&w, "path", l->path);
        tm_jw_field_str(&w, "state", state_names[l->state]);
        tm_jw_field_str(&w, "holds", kind_names[l->kind]);
        tm_jw_field_uint(&w, "bytes", l->bytes);
        tm_jw_field_double(&w, "age_seconds", l->age_seconds);
        tm_jw_field_int(&w, "pid", l->owner.pid);
        tm_jw_field_str(&w, "host", l->owner.host);
        tm_jw_key(&w, "step");
        if (l->state == LEFT_COMMIT && l->step >= 0)
            tm_jw_int(&w, l->step);
        else
            tm_jw_null(&w);
        tm_jw_field_bool(&w, "removed", removed[i]);
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

static bool goes(const leftover *l, bool all) {
    return l->state == LEFT_DEAD || (l->state != LEFT_ALIVE && all);
}

static bool asked(const survey *s, bool all) {
    char size[32], answer[16] = "";
    uint64_t bytes = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (goes(&s->found[i], all)) n++, bytes += s->found[i].bytes;
    if (n == 0 || !isatty(0)) return false;
    fprintf(stderr, "remove %zu %s, %s? [y/N] ", n, n == 1 ? "path" : "paths",
            tm_format_size(bytes, size, sizeof size));
    return fgets(answer, sizeof answer, stdin) && (*answer == 'y' || *answer == 'Y');
}

/* Takes the lock first, and looks again under it: whoever came alive or committed since the table was printed keeps his
 * directory. */
static tm_status remove_one(const leftover *l, bool all, bool *removed) {
    tm_io_run *run;
    tm_io_owner now;
    const tm_io_claim claim = {.key = l->owner.key};
    if (l->kind >= HOLDS_TOKENS) return clean_remove_data(l, all, removed);
    if (l->kind == HOLDS_BASE) return tm_io_shared_remove(l->path, l->owner.key, 0, removed);
    tm_status rc = tm_io_run_reopen(&run, l->path, l->state == LEFT_OLD ? NULL : &claim, true, 0);
    if (rc == TM_OK && !all && holds_commit(l)) {
        tm_io_run_close(run);
        return TM_OK;
    }
    *removed = rc == TM_OK;
    if (rc == TM_OK) return tm_io_run_remove(run);
    tm_error said = *tm_error_get();
    bool left = !tm_path_is_dir(l->path) || (tm_io_run_owner(l->path, &now) == TM_OK && now.alive);
    tm_error_clear();
    if (left) return TM_OK;
    tm_error_set(&said);
    return rc;
}

static tm_status remove_all(const survey *s, bool all, bool *removed) {
    tm_status rc = TM_OK;
    for (size_t i = 0; i < s->n; i++)
        if (goes(&s->found[i], all)) rc = tm_first(rc, remove_one(&s->found[i], all, &removed[i]));
    return rc;
}

static tm_status clean(survey *s, bool yes, bool all, bool json) {
    tm_status rc = find_all(s);
    if (rc != TM_OK) return rc;
    bool *removed = tm_calloc(s->n + 1, sizeof *removed);
    if (!removed) return tm_nomem(s->n);
    if (!json) print_table(s);
    fflush(stdout);
    if (yes || (!json && asked(s, all))) rc = remove_all(s, all, removed);
    if (json) rc = tm_first(rc, print_survey_json(s, removed));
    char size[32];
    for (size_t i = 0; i < s->n && !json; i++)
        if (removed[i])
            printf("removed %s, %s\n", s->found[i].path, tm_format_size(s->found[i].bytes, size, sizeof size));
    tm_free(removed);
    return rc;
}

int tm_cmd_clean(int argc, char **argv) {
    const char *path[1];
    bool yes = false, all = false, json = false;
    const tm_opt opts[] = {
        TM_FLAG("yes", &yes, "remove what dead runs left without asking; what can be resumed stays"),
        TM_FLAG("all", &all,
                "count commits that can be resumed, and what was made before runs had keys, among what goes; a run in "
                "use always stays"),
        TM_FLAG("json", &json, "print one JSON object; nothing is asked"),
    };
    const tm_cli cli = {
        .usage = "clean PATH [--yes] [--all] [--json]",
        .about =
            "Lists the run directories below an offload path (or one of them), and the bases in four bits that runs "
            "have made there; of an OUTPUT_DIR its tokenised data and what lies in tidemill-cache beside it: in use, "
            "holding a commit that can be resumed or needed by such a run, or left by a dead run; removes the last on "
            "--yes or when told so. What has no `owner` file of a run, or lies where no run was, is not listed and "
            "never touched, nor are files that no run makes.",
        .example = "tidemill clean /nvme/offload\ntidemill clean /nvme/offload --yes\ntidemill clean OUTPUT_DIR",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(path, 1, 1),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    survey s = {.path = path[0]};
    tm_status done = clean(&s, yes, all, json);
    tm_free(s.found);
    return done == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

/* Files that runs keep of their data: tokens in OUTPUT_DIR, a reference model's log-probabilities in the folder
 * tidemill-cache beside it. Whose they are is said by their names, and by the run.json with a key that lies with them, or
 * by their first bytes. Whoever writes or needs them has locked his OUTPUT_DIR. */
#include "tools/clean_internal.h"

#include "io/file/file.h"
#include "reference/reference.h"
#include "session/data_cache.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

/* An OUTPUT_DIR of ours, by its run.json: is the run in it one that the same command goes on with? */
static bool is_output(const char *dir, bool *unfinished) {
    char path[4400];
    tm_json_doc *doc;
    snprintf(path, sizeof path, "%s/run.json", dir);
    if (!tm_path_exists(path) || tm_json_load(&doc, path, 16 * TM_MIB, 0) != TM_OK) return tm_error_clear(), false;
    const tm_json *root = tm_json_root(doc), *key = tm_json_get(root, "key");
    bool ours = key && key->type == TM_JSON_STRING && key->len == TM_IO_KEY_CHARS;
    *unfinished = !tm_json_is(tm_json_get(root, "status"), "finished");
    tm_json_free(doc);
    return ours;
}

/* *lock NULL: a process has it; or this file system has no locks, and a second one is given as well. */
static void try_lock(const char *dir, tm_dir_lock **lock) {
    tm_dir_lock *second = NULL;
    tm_status rc = tm_lock_dir(lock, dir, 0);
    if (rc == TM_OK && tm_lock_dir(&second, dir, 0) == TM_OK) {
        tm_unlock_dir(second);
        tm_unlock_dir(*lock);
        *lock = NULL;
    }
    tm_error_clear();
}

static leftover_state state_of_output(const char *dir, bool unfinished) {
    tm_dir_lock *lock;
    try_lock(dir, &lock);
    tm_unlock_dir(lock);
    return !lock ? LEFT_ALIVE : unfinished ? LEFT_COMMIT : LEFT_DEAD;
}

static void folder_of(const char *path, char *folder, size_t cap) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    snprintf(folder, cap, "%.*s", (int)n, path);
    if (n == 0) snprintf(folder, cap, "./");
}

typedef struct beside {
    const char *folder;
    leftover_state state; /* alive before one that can be gone on with */
} beside;

static tm_status look_at_output(void *ctx, const char *name, bool is_dir) {
    beside *b = ctx;
    char path[4400];
    bool unfinished;
    snprintf(path, sizeof path, "%s%s", b->folder, name);
    if (!is_dir || b->state == LEFT_ALIVE || !is_output(path, &unfinished)) return TM_OK;
    leftover_state state = state_of_output(path, unfinished);
    if (state != LEFT_DEAD) b->state = state;
    return TM_OK;
}

/* Of what is in tidemill-cache: which run has use for which file is not known, so any beside it may. */
static tm_status state_of_cache(const char *cache, leftover_state *state) {
    char folder[4400];
    beside b = {folder, LEFT_DEAD};
    folder_of(cache, folder, sizeof folder);
    tm_status rc = tm_list_dir(folder, look_at_output, &b);
    *state = b.state;
    return rc;
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

typedef struct listing {
    survey *s;
    const char *dir;
    leftover_kind kind;
    leftover_state state; /* of what a run can use again */
} listing;

/* *passing: of no use to a later start. */
static bool is_ours(leftover_kind kind, const char *path, const char *name, bool *passing) {
    const char *target = tm_out_target(name), *is = target ? target : name;
    *passing = target || (kind == HOLDS_TOKENS && data_cache_name(name) == DATA_TOKENS_OWN);
    if (kind == HOLDS_TOKENS) return data_cache_name(is) != DATA_TOKENS_NONE;
    return reference_is_name(is) && (target || reference_is_file(path));
}

static bool weigh(leftover *l) {
    struct stat st;
    if (lstat(l->path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    double age = difftime(time(NULL), st.st_mtime);
    l->bytes = (uint64_t)st.st_blocks * 512;
    l->age_seconds = age > 0 ? age : 0;
    return true;
}

static tm_status list_one(void *ctx, const char *name, bool is_dir) {
    const listing *a = ctx;
    leftover *l = clean_place(a->s);
    bool passing;
    if (!l) return tm_nomem(sizeof *l);
    l->kind = a->kind;
    l->step = -1;
    int n = snprintf(l->path, sizeof l->path, "%s/%s", a->dir, name);
    if (is_dir || n >= (int)sizeof l->path || !is_ours(a->kind, l->path, name, &passing) || !weigh(l)) return TM_OK;
    l->state = passing && a->state != LEFT_ALIVE ? LEFT_DEAD : a->state;
    a->s->n++;
    return TM_OK;
}

static tm_status find_references(survey *s, const char *cache) {
    listing a = {s, cache, HOLDS_REFERENCE, LEFT_DEAD};
    struct stat st;
    if (lstat(cache, &st) != 0 || !S_ISDIR(st.st_mode)) return TM_OK;
    TM_TRY(state_of_cache(cache, &a.state));
    return tm_list_dir(cache, list_one, &a);
}

static tm_status find_tokens(survey *s, bool unfinished) {
    listing a = {s, s->path, HOLDS_TOKENS, state_of_output(s->path, unfinished)};
    return tm_list_dir(s->path, list_one, &a);
}

static bool is_cache(const char *path) {
    size_t n = strlen(path), m = sizeof SESSION_CACHE - 1;
    while (n > 1 && path[n - 1] == '/') n--;
    return n >= m && memcmp(path + n - m, SESSION_CACHE, m) == 0 && (n == m || path[n - m - 1] == '/');
}

tm_status clean_find_data(survey *s) {
    char folder[4400], cache[4400 + sizeof SESSION_CACHE];
    bool unfinished;
    if (is_cache(s->path)) return find_references(s, s->path);
    if (!is_output(s->path, &unfinished)) return TM_OK;
    TM_TRY(find_tokens(s, unfinished));
    folder_of(s->path, folder, sizeof folder);
    snprintf(cache, sizeof cache, "%s%s", folder, SESSION_CACHE);
    return find_references(s, cache);
}

/* ---- removing ------------------------------------------------------------------------------------------------------- */

static tm_status remove_file(const leftover *l, bool *removed) {
    tm_status rc = tm_remove_tree(l->path);
    *removed = rc == TM_OK;
    return rc;
}

static tm_status remove_tokens(const leftover *l, bool all, bool *removed) {
    char folder[4400];
    bool unfinished, kept = data_cache_name(strrchr(l->path, '/') + 1) == DATA_TOKENS_KEPT;
    tm_dir_lock *lock;
    folder_of(l->path, folder, sizeof folder);
    try_lock(folder, &lock);
    if (!lock) return TM_OK;
    bool goes = is_output(folder, &unfinished) && (all || !kept || !unfinished);
    tm_status rc = goes ? remove_file(l, removed) : TM_OK;
    tm_unlock_dir(lock);
    return rc;
}

/* A start that came meanwhile has read its file, or makes another. */
static tm_status remove_reference(const leftover *l, bool all, bool *removed) {
    char cache[4400];
    leftover_state state;
    bool kept = reference_is_name(strrchr(l->path, '/') + 1);
    folder_of(l->path, cache, sizeof cache);
    TM_TRY(state_of_cache(cache, &state));
    if (state == LEFT_ALIVE || (state == LEFT_COMMIT && kept && !all)) return TM_OK;
    return remove_file(l, removed);
}

tm_status clean_remove_data(const leftover *l, bool all, bool *removed) {
    return l->kind == HOLDS_TOKENS ? remove_tokens(l, all, removed) : remove_reference(l, all, removed);
}

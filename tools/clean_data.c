/* Files that runs keep of their data: tokens in OUTPUT_DIR, a reference model's log-probabilities in the folder
 * tidemill-cache beside it. Whose they are is said by their names, and by the run.json with a key that lies with them, or
 * by their first bytes. Whoever writes or needs them has locked his OUTPUT_DIR. */
#include "tools/clean_internal.h"

#include "io/file/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const char cache_name[] = "tidemill-cache";

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static const char *behind(const char *name, const char *front) {
    size_t n = strlen(front);
    return name && strncmp(name, front, n) == 0 ? name + n : NULL;
}

static const char *behind_hex(const char *name, size_t digits) {
    return name && strspn(name, "0123456789abcdef") >= digits ? name + digits : NULL;
}

static bool is_end(const char *name) {
    return name && !*name;
}

/* Of a file that was being written: .tmp-<16 hex digits>-NAME (tm_out). */
static const char *without_tmp(const char *name) {
    return behind(behind_hex(behind(name, ".tmp-"), 16), "-");
}

/* .tokens-train-<16 hex digits>, .tokens-eval-<16 hex digits>: what the next start uses. */
static bool are_kept_tokens(const char *name) {
    return is_end(behind_hex(behind(name, ".tokens-train-"), 16)) ||
           is_end(behind_hex(behind(name, ".tokens-eval-"), 16));
}

/* .tokens-<pid>-<number>: of one process. */
static bool are_passing_tokens(const char *name) {
    const char *pid = behind(name, ".tokens-"), *number = NULL;
    size_t n = pid ? strspn(pid, "0123456789") : 0;
    if (n) number = behind(pid + n, "-");
    return number && *number && is_end(number + strspn(number, "0123456789"));
}

static bool is_reference(const char *name) {
    return is_end(behind_hex(behind(name, "reference-"), 16));
}

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

static bool has_magic(const char *path) {
    static const char magic[8] = "tmref1\n"; /* reference_file.c */
    char head[sizeof magic];
    tm_file *f;
    if (tm_file_open(&f, path) != TM_OK) return tm_error_clear(), false;
    bool same = tm_file_size(f) > sizeof head && tm_file_read_at(f, 0, head, sizeof head) == TM_OK &&
                memcmp(head, magic, sizeof magic) == 0;
    tm_error_clear();
    tm_file_close(f);
    return same;
}

/* *passing: of no use to a later start. */
static bool is_ours(leftover_kind kind, const char *path, const char *name, bool *passing) {
    const char *becomes = without_tmp(name);
    *passing = becomes || (kind == HOLDS_TOKENS && are_passing_tokens(name));
    const char *is = becomes ? becomes : name;
    if (kind == HOLDS_TOKENS) return are_kept_tokens(is) || are_passing_tokens(is);
    return is_reference(is) && (becomes || has_magic(path));
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
    size_t n = strlen(path), m = sizeof cache_name - 1;
    while (n > 1 && path[n - 1] == '/') n--;
    return n >= m && memcmp(path + n - m, cache_name, m) == 0 && (n == m || path[n - m - 1] == '/');
}

tm_status clean_find_data(survey *s) {
    char folder[4400], cache[4400 + sizeof cache_name];
    bool unfinished;
    if (is_cache(s->path)) return find_references(s, s->path);
    if (!is_output(s->path, &unfinished)) return TM_OK;
    TM_TRY(find_tokens(s, unfinished));
    folder_of(s->path, folder, sizeof folder);
    snprintf(cache, sizeof cache, "%s%s", folder, cache_name);
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
    bool unfinished, kept = are_kept_tokens(strrchr(l->path, '/') + 1);
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
    bool kept = is_reference(strrchr(l->path, '/') + 1);
    folder_of(l->path, cache, sizeof cache);
    TM_TRY(state_of_cache(cache, &state));
    if (state == LEFT_ALIVE || (state == LEFT_COMMIT && kept && !all)) return TM_OK;
    return remove_file(l, removed);
}

tm_status clean_remove_data(const leftover *l, bool all, bool *removed) {
    return l->kind == HOLDS_TOKENS ? remove_tokens(l, all, removed) : remove_reference(l, all, removed);
}

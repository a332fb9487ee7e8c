/* Models by the names that they have on a hub, where they lie in the user's caches: those of huggingface_hub and of
 * ModelScope, in the layouts that these write. Nothing is fetched, and nothing in a cache is believed: what a name or a file
 * there leads to is below the cache's folder. */
#include "format/format.h"

#include "io/file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 4096, MOST_REF = 128 };

static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

bool tm_hub_is_name(const char *name) {
    size_t owner = strspn(name, plain), rest = name[owner] == '/' ? strspn(name + owner + 1, plain) : 0;
    return owner > 0 && *name != '.' && rest > 0 && name[owner + 1] != '.' && !name[owner + 1 + rest] &&
           !tm_ends_with(name, ".gguf");
}

/* False: it does not fit. */
static bool join(char *out, const char *a, const char *b, const char *c) {
    int n = snprintf(out, LONGEST, "%s%s%s", a, b, c);
    return n > 0 && n < LONGEST;
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* ---- huggingface_hub ----------------------------------------------------------------------------------------------- */

/* HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub: the first that is said. */
static bool hf_cache(char *out) {
    static const char *const roots[][2] = {{"HF_HUB_CACHE", ""},
                                           {"HUGGINGFACE_HUB_CACHE", ""},
                                           {"HF_HOME", "/hub"},
                                           {"XDG_CACHE_HOME", "/huggingface/hub"},
                                           {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < TM_COUNT(roots); i++)
        if (variable(roots[i][0])) return join(out, variable(roots[i][0]), roots[i][1], "");
    return false;
}

/* The commit that refs/main names, a name like those of folders there; "": it names none. */
static void read_ref(const char *repository, char ref[MOST_REF]) {
    char path[LONGEST];
    tm_buf text = {0};
    ref[0] = 0;
    if (!join(path, repository, "/refs/main", "") || tm_path_absent(path)) return;
    if (tm_file_slurp(path, MOST_REF - 1, &text) == TM_OK && text.data) {
        size_t n = strspn(text.data, plain);
        bool end = !text.data[n + strspn(text.data + n, "\r\n")];
        if (n && n < MOST_REF && end && text.data[0] != '.') snprintf(ref, MOST_REF, "%.*s", (int)n, text.data);
    }
    tm_error_clear();
    tm_buf_free(&text);
}

typedef struct snapshots {
    char name[MOST_REF];
    unsigned n;
} snapshots;

static tm_status note_snapshot(void *ctx, const char *name, bool is_dir) {
    snapshots *s = ctx;
    if (!is_dir || *name == '.' || strlen(name) >= sizeof s->name) return TM_OK;
    snprintf(s->name, sizeof s->name, "%s", name);
    s->n++;
    return TM_OK;
}

/* Fetched by a revision alone: the only one is meant. */
static void only_snapshot(const char *folder, char ref[MOST_REF]) {
    snapshots s = {.n = 0};
    if (tm_list_dir(folder, note_snapshot, &s) == TM_OK && s.n == 1) snprintf(ref, MOST_REF, "%s", s.name);
    tm_error_clear();
}

static bool in_hf_cache(const char *name, char *out) {
    char cache[LONGEST], repository[LONGEST], folder[LONGEST], ref[MOST_REF];
    if (!hf_cache(cache) || !join(repository, cache, "/models--", name)) return false;
    char *slash = repository + strlen(repository) - strlen(strchr(name, '/'));
    size_t rest = strlen(slash);
    if (rest + 2 + (size_t)(slash - repository) >= LONGEST) return false;
    memmove(slash + 2, slash + 1, rest);
    memcpy(slash, "--", 2);
    if (!join(folder, repository, "/snapshots", "")) return false;
    read_ref(repository, ref);
    if (!*ref) only_snapshot(folder, ref);
    return *ref && join(out, folder, "/", ref) && tm_path_is_dir(out);
}

/* ---- ModelScope ---------------------------------------------------------------------------------------------------- */

/* A dot in a name is "___" in the folder's, in most versions. */
static void spell(const char *name, bool dots, char *out) {
    size_t n = 0;
    for (; *name && n + 4 < LONGEST; name++)
        if (*name == '.' && !dots)
            n += (size_t)snprintf(out + n, 4, "___");
        else
            out[n++] = *name;
    out[n] = 0;
}

static bool in_modelscope_cache(const char *name, char *out) {
    static const char *const roots[][2] = {
        {"MODELSCOPE_CACHE", ""}, {"MODELSCOPE_CACHE", "/hub"}, {"HOME", "/.cache/modelscope/hub"}};
    static const char *const below[] = {"/models/", "/"};
    char root[LONGEST], spelled[LONGEST];
    for (size_t i = 0; i < TM_COUNT(roots) * TM_COUNT(below) * 2; i++) {
        const char *const *from = roots[i / 4];
        spell(name, i % 2, spelled);
        if (!variable(from[0]) || !join(root, variable(from[0]), from[1], below[i / 2 % 2])) continue;
        if (join(out, root, spelled, "") && tm_path_is_dir(out)) return true;
    }
    return false;
}

const char *tm_hub_find(const char *name, char *buf) {
    if (!tm_hub_is_name(name) || !tm_path_absent(name)) return name;
    return in_hf_cache(name, buf) || in_modelscope_cache(name, buf) ? buf : name;
}

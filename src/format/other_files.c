/* What else lies in a model's folder: code, licences, pictures, processors. It goes along. */
#include "format/source_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_FILES = 1000, LARGEST = 64 << 20, ALL_BYTES = 256 << 20 };

typedef struct others {
    const tm_source *src;
    const char *dir;
    char root[PATH_MAX]; /* of the folder, without links */
    uint32_t files;
    uint64_t bytes;
    uint32_t left; /* not carried along */
    char first[NAME_MAX + 1];
    const char *why; /* the first was not */
} others;

/* Weights of whatever program, and what is beside them. */
static bool is_weights(const char *name) {
    static const char *const endings[] = {".safetensors", ".index.json", ".bin",     ".gguf", ".ggml", ".pt",    ".pth",
                                          ".ckpt",        ".h5",         ".msgpack", ".onnx", ".npz",  ".tflite"};
    for (size_t i = 0; i < TM_COUNT(endings); i++)
        if (tm_ends_with(name, endings[i])) return true;
    return false;
}

/* A run's own, which would be taken for the new run's; an adapter's, with which readers would look for its base. */
static bool is_of_a_run(const char *name) {
    static const char *const names[] = {
        "run.json", "log.jsonl", "trainer_state.json", "adapter_config.json", "report.html", "report_answers.json"};
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return strstr(name, ".tmp") != NULL;
}

/* A hidden file may be anybody's secret. But .gitattributes is a model's own wherever it goes, and two folders are only
 * what those who fetched it keep: nobody misses them. */
static bool stays_hidden(const char *name) {
    return name[0] == '.' && strcmp(name, ".gitattributes") != 0;
}
static bool is_of_a_fetch(const char *name) {
    return strcmp(name, ".git") == 0 || strcmp(name, ".cache") == 0;
}

static void leave(others *o, const char *name, const char *why) {
    if (o->left++ > 0) return;
    snprintf(o->first, sizeof o->first, "%s", name);
    o->why = why;
}

/* What a link leads to lies in the folder, or where Hugging Face's cache keeps the files of its snapshots: in
 * ../../blobs. */
static bool is_inside(const others *o, const char *path) {
    char full[PATH_MAX], blobs[PATH_MAX];
    size_t n = strlen(o->root);
    if (!realpath(path, full)) return false;
    if (strncmp(full, o->root, n) == 0 && full[n] == '/') return true;
    snprintf(blobs, sizeof blobs, "%s", o->root);
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(blobs, '/');
        if (!slash) return false;
        *slash = 0;
    }
    n = strlen(blobs);
    return strncmp(full, blobs, n) == 0 && strncmp(full + n, "/blobs/", 7) == 0;
}

/* NULL: it goes along. */
static const char *objection(const others *o, const char *path, struct stat *st) {
    if (stat(path, st) != 0 || !is_inside(o, path)) return "a link that leads out of the folder";
    if (!S_ISREG(st->st_mode)) return "no file";
    if (st->st_size > LARGEST) return "larger than 64 MiB";
    if (o->files == MOST_FILES || o->bytes + (uint64_t)st->st_size > ALL_BYTES) return "beyond 1,000 files or 256 MiB";
    return NULL;
}

/* What is in `dir` already stays: it may be the user's. */
static tm_status carry(others *o, const char *name, const char *from) {
    struct stat st;
    const char *why = objection(o, from, &st);
    char *to = tm_path_join(o->dir, name);
    if (!to) return tm_nomem(strlen(name));
    tm_status rc = TM_OK;
    if (why)
        leave(o, name, why);
    else if (!tm_path_exists(to)) {
        rc = tm_copy_file(from, to);
        o->files++;
        o->bytes += (uint64_t)st.st_size;
    }
    tm_free(to);
    return rc;
}

static tm_status consider(void *ctx, const char *name, bool is_dir) {
    others *o = ctx;
    if (is_of_a_fetch(name) || is_weights(name) || is_of_a_run(name) || tm_source_is_side_file(name)) return TM_OK;
    if (stays_hidden(name)) return leave(o, name, "hidden"), TM_OK;
    if (is_dir) {
        if (strncmp(name, "checkpoint-", 11) != 0 && strcmp(name, "offload") != 0 && strcmp(name, "runs") != 0)
            leave(o, name, "a folder");
        return TM_OK;
    }
    char *from = tm_path_join(o->src->path, name);
    if (!from) return tm_nomem(strlen(name));
    tm_status rc = carry(o, name, from);
    tm_free(from);
    return rc;
}

static void say_left(const others *o) {
    char what[2 * NAME_MAX + 2];
    size_t n = 0;
    for (const char *c = o->first; *c; c++) what[n++] = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c;
    what[n] = 0;
    if (o->left == 1)
        tm_warn_once("other files", "%s: \"%.200s\" (%s) beside the weights is not carried along", o->src->path, what,
                     o->why);
    else
        tm_warn_once("other files",
                     "%s: %u entries beside the weights are not carried along, the first \"%.200s\" (%s)", o->src->path,
                     o->left, what, o->why);
}

tm_status tm_source_write_other_files(const tm_source *src, const char *dir) {
    others o = {.src = src, .dir = dir};
    if (src->gguf || src->merge || !tm_path_is_dir(src->path) || !realpath(src->path, o.root)) return TM_OK;
    TM_TRY(tm_list_dir(src->path, consider, &o));
    if (o.left > 0) say_left(&o);
    return TM_OK;
}

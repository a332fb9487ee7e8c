/* What identifies tokenised data, and their file in OUTPUT_DIR. */
#include "session/data_cache.h"

#include "io/file/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLES = 16, SAMPLE_BYTES = 4096 };

static void add_u64(uint64_t *key, uint64_t value) {
    *key = tm_hash64(&value, sizeof value, *key);
}

static void add_text(uint64_t *key, const char *text) {
    *key = tm_hash64(text, strlen(text) + 1, *key);
}

static tm_status add_bytes(uint64_t *key, const tm_data_source *source) {
    char bytes[SAMPLE_BYTES];
    for (uint64_t i = 0; i < SAMPLES; i++) {
        size_t n = (size_t)tm_min_u64(source->size, SAMPLE_BYTES);
        uint64_t last = source->size - n;
        TM_TRY(source->read_at(source->ctx, last / (SAMPLES - 1) * i, bytes, n));
        *key = tm_hash64(bytes, n, *key);
    }
    return TM_OK;
}

static tm_status add_file(uint64_t *key, const data_files *f, uint32_t i) {
    const tm_data_files *files = data_files_get(f);
    const char *path = data_files_path(f, i);
    tm_data_source source;
    struct stat st;
    if (stat(path, &st) != 0) return tm_fail_sys(TM_EIO, errno, "stat", path, -1, "%s: its size cannot be asked", path);
    add_u64(key, (uint64_t)st.st_size);
    add_u64(key, (uint64_t)st.st_ino);
    add_u64(key, (uint64_t)st.st_mtim.tv_sec);
    add_u64(key, (uint64_t)st.st_mtim.tv_nsec);
    TM_TRY(files->open(files->ctx, i, &source));
    tm_status rc = add_bytes(key, &source);
    files->close(files->ctx, i);
    return rc;
}

/* A form is told by a name's ending, too. */
static void add_reading(uint64_t *key, const char *path, const tm_reader_opts *how) {
    const char *dot = strrchr(path, '.');
    add_text(key, dot ? dot : "");
    add_u64(key, how->form);
    add_u64(key, how->sample_by);
    for (size_t i = 0; how->columns && i < how->columns->n; i++) {
        add_text(key, how->columns->theirs[i]);
        add_text(key, how->columns->ours[i]);
    }
}

/* Not: what is asked of the index later (shuffle, packing of whole rows, length groups), nor where bytes go. */
static void add_options(uint64_t *key, const tm_dataset_opts *o) {
    const uint64_t all[] = {o->format,
                            o->rows,
                            o->labels_of_prompt,
                            o->overlong,
                            o->truncation,
                            o->concatenate,
                            o->seq_len,
                            o->vocab_size,
                            o->chat != NULL,
                            o->labels.train_on_inputs,
                            o->labels.mask_history,
                            o->labels.thinking,
                            (uint64_t)o->eos_id,
                            o->strict,
                            o->seed,
                            o->is_held_out,
                            o->max_line_bytes};
    for (size_t i = 0; i < TM_COUNT(all); i++) add_u64(key, all[i]);
    *key = tm_hash64(&o->held_out, sizeof o->held_out, *key);
}

tm_status data_cache_key(const data_files *f, const tm_dataset_opts *opts, uint64_t text, uint64_t *key) {
    const tm_data_files *files = data_files_get(f);
    *key = text;
    add_options(key, opts);
    for (uint32_t g = 0; g < files->n_groups; g++) {
        add_u64(key, files->group[g].n_files);
        add_u64(key, files->group[g].samples);
        *key = tm_hash64(&files->group[g].weight, sizeof files->group[g].weight, *key);
    }
    for (uint32_t i = 0; i < files->n; i++) {
        add_reading(key, data_files_path(f, i), &files->how[i]);
        TM_TRY(add_file(key, f, i));
    }
    return TM_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

#define TOKENS ".tokens-"

void data_cache_path(const char *dir, const char *role, uint64_t key, char *path, size_t cap) {
    snprintf(path, cap, "%s/" TOKENS "%s-%016" PRIx64, dir, role, key);
}

void data_cache_own_path(const char *dir, char *path, size_t cap) {
    static unsigned serial;
    snprintf(path, cap, "%s/" TOKENS "%ld-%u", dir, (long)getpid(), serial++);
}

static bool is_of_role(const char *name, const char *role) {
    char begin[32];
    size_t n = (size_t)snprintf(begin, sizeof begin, TOKENS "%s-", role);
    return strncmp(name, begin, n) == 0 && strspn(name + n, "0123456789abcdef") == 16 && !name[n + 16];
}

data_tokens data_cache_name(const char *name) {
    const char *digits = "0123456789", *pid = name + sizeof TOKENS - 1;
    if (is_of_role(name, "train") || is_of_role(name, "eval")) return DATA_TOKENS_KEPT;
    if (strncmp(name, TOKENS, sizeof TOKENS - 1) != 0) return DATA_TOKENS_NONE;
    size_t n = strspn(pid, digits), serial = n && pid[n] == '-' ? strspn(pid + n + 1, digits) : 0;
    return serial && !pid[n + 1 + serial] ? DATA_TOKENS_OWN : DATA_TOKENS_NONE;
}

typedef struct sweep {
    const char *dir, *role, *keep;
} sweep;

static tm_status sweep_one(void *ctx, const char *name, bool is_dir) {
    const sweep *s = ctx;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return !is_dir && is_of_role(name, s->role) && strcmp(path, s->keep) != 0 ? tm_remove_tree(path) : TM_OK;
}

void data_cache_sweep(const char *dir, const char *role, const char *keep) {
    sweep s = {dir, role, keep};
    if (tm_path_is_dir(dir) && tm_list_dir(dir, sweep_one, &s) != TM_OK) tm_error_clear();
}

/* The values in a file: a resumed run, and another run of the same data, reference and settings, takes them instead of asking. */
#include "reference/reference.h"

#include "comm/comm.h"
#include "io/file/file.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char magic[8] = "tmref1\n";
#define NAME "reference-"

bool reference_is_name(const char *name) {
    size_t n = sizeof NAME - 1;
    return strncmp(name, NAME, n) == 0 && strspn(name + n, "0123456789abcdef") == 16 && !name[n + 16];
}

bool reference_is_file(const char *path) {
    char head[sizeof magic];
    tm_file *f;
    if (tm_file_open(&f, path) != TM_OK) return tm_error_clear(), false;
    bool same = tm_file_size(f) > sizeof head && tm_file_read_at(f, 0, head, sizeof head) == TM_OK &&
                memcmp(head, magic, sizeof magic) == 0;
    tm_error_clear();
    tm_file_close(f);
    return same;
}

/* What the values are a function of. */
static uint64_t key_of(const session *s) {
    const tm_config *c = s->cfg;
    const char *numerics = tm_kernels_describe();
    uint64_t of[] = {s->reference_hash,
                     tm_dataset_fingerprint(data_set(s->train)),
                     s->eval ? tm_dataset_fingerprint(data_set(s->eval)) : 0,
                     c->precision,
                     c->data.seq_len,
                     c->data.seed,
                     c->data.shuffle,
                     c->data.group_by_length,
                     (uint64_t)c->total_steps,
                     session_samples_a_step(s, false),
                     session_samples_a_step(s, true),
                     c->micro_batch_size,
                     session_batches(s),
                     !c->reference ? c->quantization.type : 0, /* of the model's own matrices */
                     c->quantization.double_quant,
                     c->quantization.block};
    uint64_t key = tm_hash64(numerics, strlen(numerics), tm_hash64(of, sizeof of, 0));
    return tm_hash64(c->memory.device, strlen(c->memory.device), key);
}

static uint64_t hash_values(const reference_values *v, uint64_t key) {
    for (uint32_t i = 0; i < v->n_tables; i++) key = tm_hash64(v->table[i].value, v->table[i].n * sizeof(float), key);
    return key;
}

/* In the order of the file; `f` or `out`. */
static tm_status pass_values(const reference_values *v, tm_file *f, tm_out *out) {
    uint64_t at = sizeof magic;
    for (uint32_t i = 0; i < v->n_tables; i++) {
        const reference_table *of = &v->table[i];
        if (f) TM_TRY(tm_file_read_at(f, at, of->value, of->n * sizeof(float)));
        if (out) TM_TRY(tm_out_append(out, of->value, of->n * sizeof(float)));
        at += of->n * sizeof(float);
    }
    return TM_OK;
}

/* Whatever is not whole is made again. */
static bool read_file(const reference_values *v, const char *path, uint64_t key) {
    char head[sizeof magic];
    uint64_t hash = 0, bytes = sizeof magic + sizeof hash;
    tm_file *f;
    if (!tm_path_exists(path)) return false;
    for (uint32_t i = 0; i < v->n_tables; i++) bytes += v->table[i].n * sizeof(float);
    tm_status rc = tm_file_open(&f, path);
    if (rc == TM_OK) {
        if (tm_file_size(f) != bytes) rc = TM_ECORRUPT;
        if (rc == TM_OK) rc = tm_file_read_at(f, 0, head, sizeof head);
        if (rc == TM_OK) rc = pass_values(v, f, NULL);
        if (rc == TM_OK) rc = tm_file_read_at(f, bytes - sizeof hash, &hash, sizeof hash);
        tm_file_close(f);
    }
    bool whole = rc == TM_OK && memcmp(head, magic, sizeof head) == 0 && hash == hash_values(v, key);
    if (!whole) tm_log(TM_LOG_WARN, "%s is damaged; it is made again", path);
    tm_error_clear();
    return whole;
}

static tm_status write_file(const reference_values *v, const session *s, const char *path, uint64_t key) {
    char dir[4096];
    tm_out *out;
    uint64_t hash = hash_values(v, key);
    TM_TRY(tm_make_dirs(session_cache_path(s->cfg, "", dir, sizeof dir)));
    TM_TRY(tm_out_create(&out, path));
    tm_status rc = tm_out_append(out, magic, sizeof magic);
    if (rc == TM_OK) rc = pass_values(v, NULL, out);
    if (rc == TM_OK) rc = tm_out_append(out, &hash, sizeof hash);
    return tm_out_end(out, rc);
}

/* Where they are. Returns by what they are known. */
static uint64_t find(const session *s, char *path, size_t cap) {
    char name[40];
    uint64_t key = key_of(s);
    snprintf(name, sizeof name, NAME "%016" PRIx64, key);
    session_cache_path(s->cfg, name, path, cap);
    return key;
}

/* The values are there all the same. */
void reference_keep(const reference_values *v, const session *s) {
    char path[4096];
    uint64_t key = find(s, path, sizeof path);
    if (!session_is_rank0(s) || write_file(v, s, path, key) == TM_OK) return;
    tm_log(TM_LOG_WARN, "the reference's log-probabilities are not kept, and the next start makes them again: %s",
           tm_error_get()->text);
    tm_error_clear();
}

/* The first rank reads; all have the same. */
tm_status reference_take(reference_values *v, session *s, bool *there) {
    char path[4096];
    uint64_t key = find(s, path, sizeof path), found = session_is_rank0(s) && read_file(v, path, key);
    tm_status rc = TM_OK;
    if (s->comm) rc = tm_comm_broadcast(s->comm, TM_COMM_WORLD, 0, &found, sizeof found);
    for (uint32_t i = 0; s->comm && rc == TM_OK && found && i < v->n_tables; i++)
        rc = tm_comm_broadcast(s->comm, TM_COMM_WORLD, 0, v->table[i].value, v->table[i].n * sizeof(float));
    *there = found;
    if (found && rc == TM_OK && !s->args->quiet && session_is_rank0(s))
        tm_log(TM_LOG_INFO, "the reference's log-probabilities are those of %s", path);
    return session_agree(s, rc);
}

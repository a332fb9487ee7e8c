/* An adapter as llama.cpp's LoRA file: what convert_lora_to_gguf.py writes and llama-adapter.cpp reads. */
#include "format/export_internal.h"
#include "format/gguf_internal.h"
#include "format/peft_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 16384 }; /* elements */

typedef struct lora_file {
    const tm_adapter_folder *f;
    const tm_source *base;
    const tm_export_opts *opts;
    tm_gguf_keys keys;
    tm_gguf_writer *w;
    double alpha; /* the file has one: a module's scale is alpha / its rank, and what else it has is in its B */
    float *some;
    uint8_t *narrow;
} lora_file;

/* A module on its way. */
typedef struct lora_piece {
    char name[TM_GGUF_MAX_NAME + 1];
    tm_op op;
    tm_fmt fmt;
    uint32_t rank;
    peft_place at;
} lora_piece;

/* ---- what llama.cpp cannot take ---- */

static tm_status cannot(const lora_file *x, const char *what, const char *name) {
    return tm_fail(TM_EUNSUPPORTED,
                   "%s: '%s' %s, which llama.cpp's adapters cannot say; merge it (tidemill export "
                   "--merge-adapter) and convert the result",
                   tm_st_path(x->f->file), name, what);
}

/* PEFT stores embeddings beside some adapters although nobody trained them. */
static tm_status differs(const lora_file *x, uint32_t i, bool *yes) {
    const tm_adapter_tensor *t = &x->f->tensor[i];
    int64_t w = peft_find_tensor(x->base, t->name);
    float *other = (float *)(void *)x->narrow;
    *yes = w < 0;
    for (uint64_t at = 0, n; at < t->elements && !*yes; at += n) {
        n = tm_min_u64(t->elements - at, AT_ONCE);
        TM_TRY(tm_adapter_folder_read_f32(x->f, i, at, n, x->some));
        TM_TRY(tm_source_read_f32(x->base, (uint32_t)w, at, n, other));
        for (uint64_t e = 0; e < n; e++) *yes |= x->some[e] != other[e];
    }
    return TM_OK;
}

static tm_status check_tensors(const lora_file *x) {
    for (uint32_t i = 0; i < x->f->n; i++) {
        bool other;
        const tm_adapter_tensor *t = &x->f->tensor[i];
        if (t->role == TM_ADAPTER_MAGNITUDE) return cannot(x, "is of DoRA", t->name);
        if (t->role != TM_ADAPTER_WHOLE) continue;
        TM_TRY(differs(x, i, &other));
        if (other) return cannot(x, "is trained whole (modules_to_save, bias)", t->name);
    }
    return TM_OK;
}

/* Of a tied model llama.cpp knows one tensor only, which it would add an embedding's adapter to in both its places. */
static tm_status check_ends(const lora_file *x) {
    for (uint32_t k = 0; k < x->f->n_modules; k++) {
        const peft_module *m = &x->f->module[k];
        if (x->keys.tied && (m->embedding || tm_ends_with(m->name, "lm_head")))
            return cannot(x, "is one with the embedding or the output, which are tied", m->name);
    }
    return TM_OK;
}

/* ---- pieces ---- */

static tm_status make_piece(const lora_file *x, const peft_module *m, lora_piece *p) {
    TM_TRY(peft_place_of(x->f, m, x->base, &p->at));
    const tm_source_tensor *w = tm_source_tensor_get(x->base, p->at.tensor);
    if (!tm_gguf_name_from_hf(x->keys.arch, w->name, p->name, sizeof p->name - 7, &p->op))
        return tm_fail(TM_EUNSUPPORTED, "%s: the tensor '%s' does not belong to a %s", w->file, w->name,
                       x->keys.arch->type);
    uint64_t rows = (uint64_t)(p->op == TM_OP_Q ? x->keys.heads : x->keys.kv_heads) * x->keys.head_dim;
    if ((p->op == TM_OP_Q || p->op == TM_OP_K) && w->shape[0] != rows)
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " rows, but config.json needs %" PRIu64, w->file, w->name,
                       w->shape[0], rows);
    p->rank = peft_plain_rank(x->f, m);
    tm_fmt own = x->f->tensor[m->a].fmt;
    p->fmt = x->opts->to ? x->opts->to->fmt : own == TM_FMT_BF16 || own == TM_FMT_F16 ? own : TM_FMT_F32;
    return TM_OK;
}

/* The embedding's A is stored as its transpose: rows are looked up there. */
static tm_status add_piece(lora_file *x, const peft_module *m) {
    lora_piece p;
    char name[TM_GGUF_MAX_NAME + 8];
    TM_TRY(make_piece(x, m, &p));
    uint64_t a[2] = {p.rank, p.at.in}, b[2] = {p.at.out, p.rank};
    if (m->embedding) a[0] = p.at.in, a[1] = p.rank;
    snprintf(name, sizeof name, "%s.lora_a", p.name);
    TM_TRY(tm_gguf_writer_add(x->w, name, p.fmt, 2, a));
    snprintf(name, sizeof name, "%s.lora_b", p.name);
    return tm_gguf_writer_add(x->w, name, p.fmt, 2, b);
}

static tm_status put(lora_file *x, tm_fmt fmt, const float *v, uint64_t n) {
    for (uint64_t at = 0, take, bytes; at < n; at += take) {
        take = tm_min_u64(n - at, AT_ONCE);
        TM_ASSERT(tm_fmt_bytes(fmt, take, &bytes));
        TM_TRY(tm_fmt_encode(fmt, v + at, take, x->narrow));
        TM_TRY(tm_gguf_writer_data(x->w, x->narrow, bytes));
    }
    return TM_OK;
}

/* Column j of a [rank, in], for each j. */
static tm_status put_turned(lora_file *x, const lora_piece *p, const float *a) {
    for (uint64_t j = 0; j < p->at.in; j++) {
        for (uint32_t r = 0; r < p->rank; r++) x->some[r] = a[r * p->at.in + j];
        TM_TRY(put(x, p->fmt, x->some, p->rank));
    }
    return TM_OK;
}

/* Rows of b, in the order that those of the weight have in GGUF. */
static tm_status put_rows(lora_file *x, const lora_piece *p, const float *b, float factor) {
    bool permuted = (p->op == TM_OP_Q || p->op == TM_OP_K) && (x->keys.arch->flags & TM_ARCH_PERMUTES);
    uint64_t d = x->keys.head_dim;
    for (uint64_t i = 0; i < p->at.out; i++) {
        uint64_t row = permuted ? i / d * d + i % d % 2 * (d / 2) + i % d / 2 : i;
        for (uint32_t r = 0; r < p->rank; r++) x->some[r] = factor * b[row * p->rank + r];
        TM_TRY(put(x, p->fmt, x->some, p->rank));
    }
    return TM_OK;
}

static tm_status write_piece(lora_file *x, const peft_module *m) {
    lora_piece p;
    peft_plain plain;
    TM_TRY(make_piece(x, m, &p));
    TM_TRY(peft_plain_load(&plain, x->f, m, x->base));
    float factor = (float)(m->spec.scale * p.rank / x->alpha);
    tm_status rc = m->embedding ? put_turned(x, &p, plain.a) : put(x, p.fmt, plain.a, p.rank * p.at.in);
    if (rc == TM_OK) rc = put_rows(x, &p, plain.b, factor);
    peft_plain_free(&plain);
    return rc;
}

/* ---- the file ---- */

static void put_text(tm_gguf_writer *w, const char *key, const char *s) {
    tm_gguf_put_string(w, key, s, strlen(s));
}

static void put_keys(lora_file *x) {
    put_text(x->w, "general.architecture", x->keys.arch->type);
    put_text(x->w, "general.type", "adapter");
    put_text(x->w, "adapter.type", "lora");
    tm_gguf_put_f32(x->w, "adapter.lora.alpha", (float)x->alpha);
}

static tm_status read_keys(lora_file *x) {
    size_t len;
    tm_json_doc *doc;
    const char *json = tm_source_config(x->base, &len);
    TM_TRY(tm_json_parse(&doc, json, len, "config.json", 0, 0));
    tm_status rc = tm_gguf_read_config(tm_json_root(doc), &x->keys);
    tm_json_free(doc);
    return rc;
}

static tm_status check_all(lora_file *x) {
    const tm_adapter_folder *f = x->f;
    if (x->opts->to && !tm_written_is_plain(x->opts->to))
        return tm_fail(TM_EINPUT, "an adapter is f32, bf16 or f16 in GGUF, not %s; merge it with --merge-adapter",
                       x->opts->to->name);
    TM_TRY(tm_adapter_folder_check(f, x->base));
    TM_TRY(check_tensors(x));
    TM_TRY(check_ends(x));
    for (uint32_t k = 0; k < f->n_modules; k++)
        if (peft_plain_rank(f, &f->module[k]) > AT_ONCE)
            return tm_fail(TM_EUNSUPPORTED, "%s: '%s' has rank %u", f->path, f->module[k].name, f->module[k].spec.rank);
    if (f->n_modules == 0) return tm_fail(TM_EINPUT, "%s: has no adapter of any module", tm_st_path(f->file));
    x->alpha = f->module[0].spec.scale * peft_plain_rank(f, &f->module[0]);
    return TM_OK;
}

static tm_status write_file(lora_file *x) {
    put_keys(x);
    for (uint32_t k = 0; k < x->f->n_modules; k++) TM_TRY(add_piece(x, &x->f->module[k]));
    TM_TRY(tm_gguf_writer_start(x->w));
    for (uint32_t k = 0; k < x->f->n_modules; k++) {
        TM_TRY(tm_export_stopped(x->opts));
        TM_TRY(write_piece(x, &x->f->module[k]));
        peft_progress(x->f, k, x->opts);
    }
    return TM_OK;
}

tm_status peft_export_gguf(const tm_adapter_folder *f, const tm_source *base, const char *out,
                           const tm_export_opts *opts) {
    tm_status rc;
    lora_file *x = tm_calloc(1, sizeof *x);
    if (!x) return tm_nomem(sizeof *x);
    *x = (lora_file){.f = f, .base = base, .opts = opts};
    x->some = tm_malloc(AT_ONCE * sizeof *x->some);
    x->narrow = tm_malloc(AT_ONCE * sizeof(float));
    rc = x->some && x->narrow ? TM_OK : tm_nomem(AT_ONCE * sizeof(float));
    if (rc != TM_OK) goto done;
    TM_GO(read_keys(x));
    TM_GO(check_all(x));
    TM_GO(tm_gguf_writer_create(&x->w, out));
    TM_GO(write_file(x));
    rc = tm_gguf_writer_commit(x->w);
    x->w = NULL;
done:
    tm_gguf_writer_abandon(x->w);
    TM_FREE_ALL(x->some, x->narrow);
    tm_free(x);
    return rc;
}

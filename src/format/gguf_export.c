/* A tm_source written as GGUF. */
#include "format/gguf_mixture_internal.h"
#include "format/source_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BUFFER_ELEMENTS = 1 << 18, MANY_ELEMENTS = 1 << 19 };

/* ---- keys ---- */

static void put_text(tm_gguf_writer *w, const char *key, const char *s) {
    tm_gguf_put_string(w, key, s, strlen(s));
}

static void put_keys(tm_gguf_writer *w, const tm_gguf_keys *k, const char *name, const tm_written *to) {
    put_text(w, "general.architecture", k->arch->type);
    put_text(w, "general.type", "model");
    put_text(w, "general.name", name);
    tm_gguf_put_u32(w, "general.file_type", to ? to->file_type : 0);
    tm_gguf_put_u32(w, "general.quantization_version", 2);
    tm_gguf_put_keys(w, k);
}

/* ---- tensors ---- */

typedef struct export {
    const tm_source *src;
    tm_gguf_writer *w;
    const tm_export_opts *opts;
    tm_gguf_keys keys;
    tm_gguf_mixture types; /* unless they are the source's */
    uint64_t total_bytes, done_bytes;
    tm_gguf_rope_tensor rope[2];
    uint64_t room; /* elements of the two buffers */
    float *values;
    uint8_t *narrow;
}
export;

/* A tensor on its way. */
typedef struct piece {
    char name[TM_GGUF_MAX_NAME + 1];
    tm_op op;
    tm_fmt fmt;
    uint64_t shape[TM_FMT_MAX_DIMS]; /* in GGUF */
} piece;

/* Buffers that some checkpoints carry along, and a tied output, which is the embedding again. */
static bool left_out(const export *x, const tm_source_tensor *t) {
    static const char *const buffers[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                          "model.position_ids"};
    for (size_t i = 0; i < TM_COUNT(buffers); i++)
        if (tm_ends_with(t->name, buffers[i])) return true;
    return x->keys.tied && strcmp(t->name, "lm_head.weight") == 0;
}

/* The source's own: what it is stored in, where that is written. Norms and biases are f32. */
static tm_status own_fmt(const tm_source_tensor *t, tm_fmt *fmt) {
    *fmt = t->ndim < 2 || t->fmt == TM_FMT_F64 ? TM_FMT_F32 : t->fmt;
    const tm_written *w = tm_written_by_fmt(*fmt);
    if (!w || !w->in_gguf || tm_fmt_get(*fmt)->block == 256)
        return tm_fail(TM_EUNSUPPORTED, "%s: '%s' is %s, which is not written once more; choose a type with --dtype",
                       t->file, t->name, tm_fmt_get(*fmt)->name);
    return TM_OK;
}

static tm_status check_shape(const tm_source_tensor *t, const piece *p, const tm_gguf_keys *k) {
    uint64_t wanted = (uint64_t)(p->op == TM_OP_Q ? k->heads : k->kv_heads) * k->head_dim;
    if (t->ndim < 1 || t->ndim > 2 || t->elements == 0 || (p->op == TM_OP_TRANSPOSE && t->ndim != 2))
        return tm_fail(TM_EINPUT, "%s: '%s' is neither a vector nor a matrix", t->file, t->name);
    if ((p->op == TM_OP_Q || p->op == TM_OP_K) && t->shape[0] != wanted)
        return tm_fail(TM_EINPUT, "%s: '%s' has %" PRIu64 " rows, but config.json needs %" PRIu64, t->file, t->name,
                       t->shape[0], wanted);
    return TM_OK;
}

static tm_status make_piece(const export *x, const tm_source_tensor *t, piece *p) {
    if (!tm_gguf_name_from_hf(x->keys.arch, t->name, p->name, sizeof p->name, &p->op))
        return tm_fail(TM_EUNSUPPORTED, "%s: the tensor '%s' does not belong to a %s", t->file, t->name,
                       x->keys.arch->type);
    TM_TRY(check_shape(t, p, &x->keys));
    bool turned = p->op == TM_OP_TRANSPOSE;
    memcpy(p->shape, t->shape, sizeof p->shape);
    if (turned) p->shape[0] = t->shape[1], p->shape[1] = t->shape[0];
    uint64_t width = p->shape[t->ndim - 1];
    if (!x->opts->to) TM_TRY(own_fmt(t, &p->fmt));
    p->fmt = x->opts->to ? tm_gguf_mixture_of(&x->types, p->name, t->ndim, width) : tm_block_for_rows(p->fmt, width);
    return TM_OK;
}

/* The source's tensor that has this name in GGUF; -1: none. */
static int64_t find_tensor(const export *x, const char *gguf, char name[160]) {
    tm_op op;
    TM_ASSERT(tm_gguf_name_to_hf(x->keys.arch, gguf, name, 160, &op));
    int64_t t = tm_source_find(x->src, name);
    const char *root = x->keys.arch->hf_root;
    if (t < 0 && root && strncmp(name, root, strlen(root)) == 0) t = tm_source_find(x->src, name + strlen(root));
    return t;
}

static tm_status check_ends(const export *x) {
    char name[160];
    int64_t embed = find_tensor(x, "token_embd.weight", name);
    if (embed < 0) return tm_fail(TM_EINPUT, "%s: '%s' is missing", tm_source_path(x->src), name);
    const tm_source_tensor *e = tm_source_tensor_get(x->src, (uint32_t)embed);
    if (!x->keys.tied && find_tensor(x, "output.weight", name) < 0)
        return tm_fail(TM_EINPUT, "%s: '%s' is missing", tm_source_path(x->src), name);
    if (e->ndim != 2 || e->shape[0] != x->keys.vocab_size || e->shape[1] != x->keys.hidden_size)
        return tm_fail(TM_EINPUT, "%s: '%s' is not [%u, %u] as config.json says", e->file, e->name, x->keys.vocab_size,
                       x->keys.hidden_size);
    return TM_OK;
}

/* Which layers have what, before types are chosen. */
static void note_tensors(export *x) {
    char name[TM_GGUF_MAX_NAME + 1];
    tm_op op;
    tm_gguf_mixture_begin(&x->types, x->opts->to, &x->keys);
    x->types.weighed = x->opts->calibrated;
    for (uint32_t i = 0; i < tm_source_tensors(x->src); i++)
        if (tm_gguf_name_from_hf(x->keys.arch, tm_source_tensor_get(x->src, i)->name, name, sizeof name, &op))
            tm_gguf_mixture_note(&x->types, name);
}

static tm_status add_tensors(export *x) {
    TM_TRY(check_ends(x));
    note_tensors(x);
    uint32_t n = tm_gguf_rope_tensors(&x->keys, x->rope);
    for (uint32_t i = 0; i < n; i++)
        TM_TRY(tm_gguf_writer_add(x->w, x->rope[i].name, TM_FMT_F32, 1, (uint64_t[]){x->rope[i].n}));
    for (uint32_t i = 0; i < tm_source_tensors(x->src); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(x->src, i);
        piece p;
        if (left_out(x, t)) continue;
        TM_TRY(make_piece(x, t, &p));
        TM_TRY(tm_gguf_writer_add(x->w, p.name, p.fmt, t->ndim, p.shape));
        x->total_bytes += t->bytes;
    }
    return TM_OK;
}

typedef struct source_run {
    const tm_source *src;
    uint32_t i;
} source_run;

static tm_status read_run(const void *ctx, uint64_t first, uint64_t n, void *dst) {
    const source_run *r = ctx;
    return tm_source_read_f32(r->src, r->i, first, n, dst);
}

/* Rows of query and key heads: of each, row 2i + j is HF's row j * half + i. Elements [first, first + n), broken rows
 * too. */
static tm_status read_permuted(const source_run *run, uint64_t width, uint64_t d, uint64_t first, uint64_t n,
                               float *dst) {
    for (uint64_t done = 0, take; done < n; done += take) {
        uint64_t row = (first + done) / width, in = (first + done) % width;
        uint64_t from = row / d * d + row % d % 2 * (d / 2) + row % d / 2;
        take = tm_min_u64(n - done, width - in);
        TM_TRY(read_run(run, from * width + in, take, dst + done));
    }
    return TM_OK;
}

/* Elements [first, first + n) of source tensor i as GGUF orders and counts them. */
static tm_status read_values(export *x, uint32_t i, const piece *p, uint64_t first, uint64_t n) {
    const source_run run = {x->src, i};
    const tm_transposed turned = {read_run, &run, sizeof(float), p->shape[0], p->shape[1]};
    const tm_source_tensor *t = tm_source_tensor_get(x->src, i);
    if (p->op == TM_OP_TRANSPOSE) return tm_read_transposed(&turned, first, n, x->values);
    if ((p->op == TM_OP_Q || p->op == TM_OP_K) && (x->keys.arch->flags & TM_ARCH_PERMUTES))
        return read_permuted(&run, t->elements / t->shape[0], x->keys.head_dim, first, n, x->values);
    TM_TRY(read_run(&run, first, n, x->values));
    for (uint64_t e = 0; e < n && p->op == TM_OP_ADD_ONE; e++) x->values[e] += 1;
    return TM_OK;
}

/* How much the tensor's columns matter, if that is known. */
static const float *importance_of(const export *x, uint32_t i) {
    const tm_calibrated *c = x->opts->calibrated;
    return c ? c->importance(c->ctx, i) : NULL;
}

/* Whose value it was that cannot be written. */
static tm_status encode(export *x, const tm_source_tensor *t, const piece *p, const tm_encode_by *by, uint64_t n,
                        tm_lost *lost) {
    tm_status rc = tm_encode_runs_by(p->fmt, x->values, n, by, x->narrow, lost);
    if (rc == TM_OK) return TM_OK;
    tm_error e = *tm_error_get();
    tm_error_clear();
    return tm_fail(rc, "%s: '%s': %.500s", t->file, t->name, e.text);
}

static tm_status copy_tensor(export *x, uint32_t i) {
    const tm_source_tensor *t = tm_source_tensor_get(x->src, i);
    tm_lost lost = {0};
    piece p;
    if (left_out(x, t)) return TM_OK;
    TM_TRY(make_piece(x, t, &p));
    tm_encode_by by = {.importance = importance_of(x, i), .width = p.shape[t->ndim - 1]};
    tm_wrote_tensor wrote = {.name = p.name, .type = tm_fmt_get(p.fmt)->name, .elements = t->elements};
    for (uint64_t at = 0, take, bytes; at < t->elements; at += take) {
        take = tm_min_u64(t->elements - at, x->room);
        TM_ASSERT(tm_fmt_bytes(p.fmt, take, &bytes));
        TM_TRY(tm_export_stopped(x->opts));
        TM_TRY(read_values(x, i, &p, at, take));
        by.first = at;
        TM_TRY(encode(x, t, &p, &by, take, &lost));
        TM_TRY(tm_gguf_writer_data(x->w, x->narrow, bytes));
        wrote.bytes += bytes;
    }
    tm_source_forget(x->src, i);
    x->done_bytes += t->bytes;
    if (x->opts->progress) x->opts->progress(x->opts->ctx, x->done_bytes, x->total_bytes);
    wrote.power = lost.values;
    wrote.error = tm_lost_error(&lost);
    tm_export_wrote(x->opts, &wrote);
    return TM_OK;
}

static tm_status copy_tensors(export *x) {
    uint32_t n = tm_gguf_rope_tensors(&x->keys, x->rope);
    for (uint32_t i = 0; i < n; i++) TM_TRY(tm_gguf_writer_data(x->w, x->rope[i].values, x->rope[i].n * sizeof(float)));
    for (uint32_t i = 0; i < tm_source_tensors(x->src); i++) TM_TRY(copy_tensor(x, i));
    return TM_OK;
}

/* ---- the whole ---- */

static tm_status read_keys(export *x) {
    size_t len;
    const char *json = tm_source_config(x->src, &len);
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, json, len, "config.json", 0, 0));
    tm_status rc = tm_gguf_read_config(tm_json_root(doc), &x->keys);
    tm_json_free(doc);
    return rc;
}

/* What the file says that it is in: of the source's own types that of a matrix of the first block. */
static const tm_written *main_type(const export *x) {
    char name[160];
    int64_t t = find_tensor(x, "blk.0.ffn_down.weight", name);
    if (x->opts->to) return x->opts->to;
    return t < 0 ? NULL : tm_written_by_fmt(tm_source_tensor_get(x->src, (uint32_t)t)->fmt);
}

/* A transpose is read in as many ranges as it is wide for each bufferful. */
static tm_status make_buffers(export *x) {
    x->room = x->keys.arch->flags & TM_ARCH_TRANSPOSES ? MANY_ELEMENTS : BUFFER_ELEMENTS;
    x->values = tm_malloc(x->room * sizeof *x->values);
    x->narrow = tm_malloc(x->room * sizeof(float));
    return x->values && x->narrow ? TM_OK : tm_nomem(x->room * sizeof(float));
}

/* The last part of the path without its ending: "models/smol/" is "smol". */
static void base_name(const char *path, char *name, size_t cap) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/') from--;
    snprintf(name, cap, "%.*s", (int)tm_min_u64(end - from, 200), path + from);
    if (!tm_utf8_valid(name, strlen(name))) snprintf(name, cap, "model");
}

tm_status tm_export_gguf(const tm_source *src, const char *out, const tm_export_opts *opts) {
    char name[256];
    tm_status rc;
    export *x = tm_calloc(1, sizeof *x);
    if (!x) return tm_nomem(sizeof *x);
    if (tm_source_is_composite(src))
        TM_GO(
            tm_fail(TM_EUNSUPPORTED,
                    "%s: has other parts than text, which GGUF keeps in a file of its own (llama.cpp: mmproj); name a "
                    "folder as OUT, or convert it with llama.cpp",
                    tm_source_path(src)));
    x->src = src;
    x->opts = opts;
    if (opts->to && !opts->to->in_gguf)
        TM_GO(tm_fail(TM_EINPUT, "%s: GGUF has no %s; name a folder as OUT for that", out, opts->to->name));
    TM_GO(tm_export_check_calibration(opts, true));
    TM_GO(read_keys(x));
    TM_GO(tm_export_calibrate(src, opts, NULL, out));
    TM_GO(make_buffers(x));
    TM_GO(tm_gguf_writer_create(&x->w, out));
    base_name(tm_source_path(src), name, sizeof name);
    put_keys(x->w, &x->keys, name, main_type(x));
    TM_GO(add_tensors(x)); /* first: it checks vocab_size, which sizes tables, against the file */
    TM_GO(tm_gguf_put_vocabulary(x->w, src, x->keys.vocab_size));
    TM_GO(tm_gguf_writer_start(x->w));
    TM_GO(copy_tensors(x));
    rc = tm_gguf_writer_commit(x->w);
    x->w = NULL;
done:
    tm_gguf_writer_abandon(x->w);
    tm_free(x->values);
    tm_free(x->narrow);
    tm_free(x);
    return rc;
}

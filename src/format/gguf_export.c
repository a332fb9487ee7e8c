/* A tm_source written as GGUF. */
#include "format/gguf_internal.h"
#include "format/export_internal.h"
#include "format/source_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BUFFER_ELEMENTS = 16384, MANY_ELEMENTS = 1 << 19 };

/* ---- keys ---- */

static void put_text(tm_gguf_writer *w, const char *key, const char *s) {
    tm_gguf_put_string(w, key, s, strlen(s));
}

/* ggml's numbers of file types */
static uint32_t file_type(tm_fmt fmt) {
    static const struct {
        tm_fmt fmt;
        uint32_t number;
    } rows[] = {{TM_FMT_F16, 1},  {TM_FMT_Q4_0, 2}, {TM_FMT_Q4_1, 3}, {TM_FMT_Q8_0, 7},
                {TM_FMT_Q5_0, 8}, {TM_FMT_Q5_1, 9}, {TM_FMT_BF16, 32}};
    for (size_t i = 0; i < TM_COUNT(rows); i++)
        if (rows[i].fmt == fmt) return rows[i].number;
    return 0;
}

static void put_keys(tm_gguf_writer *w, const tm_gguf_keys *k, const char *name, tm_fmt fmt) {
    put_text(w, "general.architecture", k->arch->type);
    put_text(w, "general.type", "model");
    put_text(w, "general.name", name);
    tm_gguf_put_u32(w, "general.file_type", file_type(fmt));
    tm_gguf_put_u32(w, "general.quantization_version", 2);
    tm_gguf_put_keys(w, k);
}

/* ---- tensors ---- */

typedef struct export {
    const tm_source *src;
    tm_gguf_writer *w;
    const tm_export_opts *opts;
    tm_gguf_keys keys;
    tm_fmt dtype; /* of matrices, unless it is the source's */
    bool as_source;
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

/* Norms and biases stay f32. The output matrix (the embedding, if tied) suffers most from few bits: q8_0, as llama.cpp.
 * Rows that are no whole blocks: f16. */
static tm_status choose_fmt(const export *x, const tm_source_tensor *t, piece *p) {
    tm_fmt *fmt = &p->fmt;
    *fmt = x->as_source ? t->fmt : x->dtype;
    if (t->ndim < 2) *fmt = TM_FMT_F32;
    if (*fmt == TM_FMT_F64) *fmt = TM_FMT_F32;
    bool blocks = tm_fmt_get(*fmt)->block > 1 && !tm_block_is_written(*fmt);
    if (blocks || tm_fmt_get(*fmt)->ggml < 0 || tm_fmt_get(*fmt)->ggml >= 24) {
        if (*fmt != TM_FMT_BF16)
            return tm_fail(TM_EUNSUPPORTED, "%s: '%s' is %s, which is not written to GGUF; choose a type with --dtype",
                           t->file, t->name, tm_fmt_get(*fmt)->name);
    }
    const char *output = x->keys.tied ? "token_embd.weight" : "output.weight";
    if (!x->as_source && tm_fmt_get(*fmt)->block > 1 && strcmp(p->name, output) == 0) *fmt = TM_FMT_Q8_0;
    if (p->shape[t->ndim - 1] % tm_fmt_get(*fmt)->block != 0) *fmt = TM_FMT_F16;
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
    return choose_fmt(x, t, p);
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

static tm_status add_tensors(export *x) {
    TM_TRY(check_ends(x));
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

/* Elements [first, first + n) of source tensor i, or of its transpose, in whole blocks. */
static tm_status copy_run(export *x, uint32_t i, const piece *p, uint64_t first, uint64_t n) {
    const source_run run = {x->src, i};
    const tm_transposed turned = {read_run, &run, sizeof(float), p->shape[0], p->shape[1]};
    for (uint64_t done = 0; done < n;) {
        uint64_t take = tm_min_u64(n - done, x->room), bytes;
        TM_ASSERT(tm_fmt_bytes(p->fmt, take, &bytes));
        TM_TRY(tm_export_stopped(x->opts));
        TM_TRY(p->op == TM_OP_TRANSPOSE ? tm_read_transposed(&turned, first + done, take, x->values)
                                        : read_run(&run, first + done, take, x->values));
        for (uint64_t e = 0; e < take && p->op == TM_OP_ADD_ONE; e++) x->values[e] += 1;
        TM_TRY(tm_fmt_encode(p->fmt, x->values, take, x->narrow));
        TM_TRY(tm_gguf_writer_data(x->w, x->narrow, bytes));
        done += take;
    }
    return TM_OK;
}

static tm_status copy_tensor(export *x, uint32_t i) {
    const tm_source_tensor *t = tm_source_tensor_get(x->src, i);
    piece p;
    if (left_out(x, t)) return TM_OK;
    TM_TRY(make_piece(x, t, &p));
    if ((p.op == TM_OP_Q || p.op == TM_OP_K) && (x->keys.arch->flags & TM_ARCH_PERMUTES)) {
        uint64_t width = t->elements / t->shape[0], d = x->keys.head_dim; /* row 2i + j is HF's row j * half + i */
        for (uint64_t r = 0; r < t->shape[0]; r++)
            TM_TRY(copy_run(x, i, &p, (r / d * d + r % d % 2 * (d / 2) + r % d / 2) * width, width));
    } else
        TM_TRY(copy_run(x, i, &p, 0, t->elements));
    tm_source_forget(x->src, i);
    x->done_bytes += t->bytes;
    if (x->opts->progress) x->opts->progress(x->opts->ctx, x->done_bytes, x->total_bytes);
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

static tm_fmt main_fmt(const export *x) {
    char name[160];
    int64_t t = find_tensor(x, "blk.0.ffn_down.weight", name);
    return !x->as_source ? x->dtype : t < 0 ? TM_FMT_F32 : tm_source_tensor_get(x->src, (uint32_t)t)->fmt;
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
    x->as_source = !opts->has_dtype;
    x->dtype = opts->dtype;
    TM_GO(read_keys(x));
    TM_GO(make_buffers(x));
    TM_GO(tm_gguf_writer_create(&x->w, out));
    base_name(tm_source_path(src), name, sizeof name);
    put_keys(x->w, &x->keys, name, main_fmt(x));
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

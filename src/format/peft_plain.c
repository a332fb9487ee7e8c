/* An adapter as plain LoRA: in memory a module at a time, and as a folder. */
#include "format/export_internal.h"
#include "format/peft_internal.h"

#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 65536 }; /* elements */

/* ---- a module ---- */

/* All modules of a PiSSA adapter, embeddings too, whose second half is zero: one rank and one alpha say it. */
uint32_t peft_plain_rank(const tm_adapter_folder *f, const peft_module *m) {
    return f->config->init == TM_ADAPTER_INIT_PISSA ? 2 * m->spec.rank : m->spec.rank;
}

void peft_plain_free(peft_plain *p) {
    TM_FREE_ALL(p->a, p->b);
    *p = (peft_plain){0};
}

/* b [out][rank] becomes [out][2 rank], less `first` where there is one. */
static void widen(float *b, uint64_t out, uint32_t rank, const float *first) {
    for (uint64_t i = out; i-- > 0;) {
        memmove(b + i * 2 * rank, b + i * rank, rank * sizeof *b);
        for (uint32_t r = 0; r < rank; r++) b[i * 2 * rank + rank + r] = first ? -first[i * rank + r] : 0;
    }
}

static tm_status subtract_first(peft_plain *p, const tm_adapter_folder *f, const peft_module *m,
                                const tm_source *base) {
    peft_place at;
    uint32_t rank = m->spec.rank;
    TM_TRY(peft_place_of(f, m, base, &at));
    float *first = tm_malloc(rank * at.out * sizeof *first);
    tm_status rc = first ? peft_first(f, m, base, &at, p->a + rank * at.in, first) : tm_nomem(rank * at.out);
    if (rc == TM_OK) widen(p->b, at.out, rank, first);
    tm_free(first);
    return rc;
}

tm_status peft_plain_load(peft_plain *p, const tm_adapter_folder *f, const peft_module *m, const tm_source *base) {
    const tm_adapter_tensor *a = &f->tensor[m->a], *b = &f->tensor[m->b];
    uint64_t times = peft_plain_rank(f, m) / m->spec.rank;
    tm_status rc;
    *p = (peft_plain){peft_plain_rank(f, m), tm_calloc(times * a->elements, sizeof(float)),
                      tm_calloc(times * b->elements, sizeof(float))};
    rc = p->a && p->b ? TM_OK : tm_nomem(times * (a->elements + b->elements) * sizeof(float));
    if (rc != TM_OK) goto done;
    TM_GO(tm_adapter_folder_read_f32(f, (uint32_t)m->a, 0, a->elements, p->a));
    TM_GO(tm_adapter_folder_read_f32(f, (uint32_t)m->b, 0, b->elements, p->b));
    if (times == 1) return TM_OK;
    if (peft_is_pissa(f, m))
        TM_GO(subtract_first(p, f, m, base));
    else
        widen(p->b, b->shape[0], m->spec.rank, NULL);
    return TM_OK;
done:
    peft_plain_free(p);
    return rc;
}

void peft_progress(const tm_adapter_folder *f, uint32_t k, const tm_export_opts *opts) {
    uint64_t done = 0, total = 0;
    for (uint32_t i = 0; i < f->n_modules; i++) {
        const tm_adapter_tensor *a = &f->tensor[f->module[i].a], *b = &f->tensor[f->module[i].b];
        total += (a->elements + b->elements) * sizeof(float);
        if (i == k) done = total;
    }
    if (opts->progress) opts->progress(opts->ctx, done, total);
}

/* ---- a folder ---- */

typedef struct plain_folder {
    const tm_adapter_folder *f;
    const tm_source *base;
    tm_adapter_writer *w;
    uint32_t *index; /* of each of the folder's tensors */
    float *values;   /* AT_ONCE */
} plain_folder;

static bool is_part(const tm_adapter_tensor *t) {
    return t->role <= TM_ADAPTER_EMBEDDING_B;
}

static const peft_module *module_of(const tm_adapter_folder *f, const char *name) {
    for (uint32_t k = 0; k < f->n_modules; k++)
        if (strcmp(f->module[k].name, name) == 0) return &f->module[k];
    return NULL;
}

static tm_status add_tensor(plain_folder *p, uint32_t i) {
    const tm_adapter_tensor *t = &p->f->tensor[i];
    uint64_t shape[TM_FMT_MAX_DIMS];
    tm_buf name = {0};
    bool a = t->role == TM_ADAPTER_LORA_A || t->role == TM_ADAPTER_EMBEDDING_A;
    memcpy(shape, t->shape, sizeof shape);
    if (is_part(t)) shape[a ? 0 : 1] = peft_plain_rank(p->f, module_of(p->f, t->module));
    tm_status rc = tm_buf_printf(&name, "%s%s%s", t->frozen ? t->module : t->name, t->frozen ? ".base_layer" : "",
                                 t->frozen ? t->name + strlen(t->module) : "");
    if (rc == TM_OK) rc = tm_adapter_writer_add(p->w, name.data, t->ndim, shape, &p->index[i]);
    tm_buf_free(&name);
    return rc;
}

static tm_status copy_tensor(plain_folder *p, uint32_t i) {
    uint64_t elements = p->f->tensor[i].elements;
    for (uint64_t at = 0, n; at < elements; at += n) {
        n = tm_min_u64(elements - at, AT_ONCE);
        TM_TRY(tm_adapter_folder_read_f32(p->f, i, at, n, p->values));
        TM_TRY(tm_adapter_writer_put_f32(p->w, p->index[i], at, n, p->values));
    }
    return TM_OK;
}

static tm_status copy_module(plain_folder *p, const peft_module *m) {
    peft_plain plain;
    uint64_t times = peft_plain_rank(p->f, m) / m->spec.rank;
    uint32_t a = (uint32_t)m->a, b = (uint32_t)m->b;
    TM_TRY(peft_plain_load(&plain, p->f, m, p->base));
    tm_status rc = tm_adapter_writer_put_f32(p->w, p->index[a], 0, times * p->f->tensor[a].elements, plain.a);
    if (rc == TM_OK) rc = tm_adapter_writer_put_f32(p->w, p->index[b], 0, times * p->f->tensor[b].elements, plain.b);
    peft_plain_free(&plain);
    return rc;
}

static tm_status copy_all(plain_folder *p, const tm_export_opts *opts) {
    for (uint32_t i = 0; i < p->f->n; i++) TM_TRY(add_tensor(p, i));
    for (uint32_t i = 0; i < p->f->n; i++) {
        TM_TRY(tm_export_stopped(opts));
        if (!is_part(&p->f->tensor[i])) TM_TRY(copy_tensor(p, i));
    }
    for (uint32_t k = 0; k < p->f->n_modules; k++) {
        TM_TRY(tm_export_stopped(opts));
        TM_TRY(copy_module(p, &p->f->module[k]));
        peft_progress(p->f, k, opts);
    }
    return TM_OK;
}

/* One type for all: that of all its tensors, or f32. */
static tm_fmt own_dtype(const tm_adapter_folder *f) {
    tm_fmt fmt = f->tensor[0].fmt;
    for (uint32_t i = 1; i < f->n; i++)
        if (f->tensor[i].fmt != fmt) return TM_FMT_F32;
    return fmt == TM_FMT_BF16 || fmt == TM_FMT_F16 ? fmt : TM_FMT_F32;
}

tm_status peft_export_folder(const tm_adapter_folder *f, const tm_source *base, const char *dir,
                             const tm_export_opts *opts) {
    const tm_adapter_json_opts json = {.twice_the_rank = f->config->init == TM_ADAPTER_INIT_PISSA};
    tm_fmt dtype = opts->to ? opts->to->fmt : own_dtype(f);
    tm_status rc;
    plain_folder p = {.f = f, .base = base};
    if (opts->to && !tm_written_is_plain(opts->to))
        return tm_fail(TM_EINPUT, "an adapter's folder holds f32, bf16 or f16, not %s; merge it with --merge-adapter",
                       opts->to->name);
    p.index = tm_calloc(f->n, sizeof *p.index);
    p.values = tm_malloc(AT_ONCE * sizeof *p.values);
    rc = p.index && p.values ? TM_OK : tm_nomem(AT_ONCE * sizeof *p.values);
    if (rc != TM_OK) goto done;
    TM_GO(tm_adapter_writer_create(&p.w, dir, f->config, &json, dtype));
    TM_GO(copy_all(&p, opts));
    rc = tm_adapter_writer_commit(p.w);
    p.w = NULL;
done:
    tm_adapter_writer_abandon(p.w);
    TM_FREE_ALL(p.index, p.values);
    return rc;
}

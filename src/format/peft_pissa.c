/* PiSSA's first A and B: made from a base, kept in a folder, found again. */
#include "format/export_internal.h"
#include "format/peft_internal.h"
#include "adapter/principal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 4200 };

bool peft_is_pissa(const tm_adapter_folder *f, const peft_module *m) {
    return f->config->init == TM_ADAPTER_INIT_PISSA && !m->embedding;
}

/* ---- from the base ---- */

typedef struct base_rows {
    const tm_source *base;
    uint32_t tensor;
    uint64_t width;
    const tm_export_opts *opts; /* NULL: nothing stops it */
} base_rows;

static tm_status read_rows(void *ctx, uint64_t first, uint64_t n, float *dst) {
    const base_rows *r = ctx;
    if (r->opts) TM_TRY(tm_export_stopped(r->opts));
    return tm_source_read_f32(r->base, r->tensor, first * r->width, n * r->width, dst);
}

static tm_status principal_of(const base_rows *from, const tm_principal_opts *o, float *a, float *b) {
    const tm_source_tensor *w = tm_source_tensor_get(from->base, from->tensor);
    const tm_matrix_rows rows = {read_rows, (void *)(uintptr_t)from, w->shape[0], w->shape[1]};
    return tm_principal(&rows, o, a, b);
}

/* ---- of a folder ---- */

static tm_status from_folder(const tm_adapter_folder *f, int64_t t, float *dst) {
    int64_t k = tm_adapter_folder_find(f->first, f->tensor[t].name);
    TM_ASSERT(k >= 0);
    return tm_adapter_folder_read_f32(f->first, (uint32_t)k, 0, f->tensor[t].elements, dst);
}

tm_status peft_first(const tm_adapter_folder *f, const peft_module *m, const tm_source *base, const peft_place *at,
                     float *a, float *b) {
    if (f->first) {
        TM_TRY(from_folder(f, m->a, a));
        return from_folder(f, m->b, b);
    }
    const tm_source_tensor *w = tm_source_tensor_get(base, at->tensor);
    if (f->config->pissa_iterations >= 0)
        tm_warn_once(f->path,
                     "%s: its first A and B were drawn at random and are not in the folder (" TM_PISSA_FIRST
                     "); the singular values of the base are taken for them",
                     f->path);
    const tm_principal_opts o = {.name = w->name, .rank = m->spec.rank, .scale = m->spec.scale, .turned = at->turned};
    return principal_of(&(base_rows){base, at->tensor, w->shape[1], NULL}, &o, a, b);
}

/* ---- made anew ---- */

typedef struct beginning {
    const tm_adapter_config *config;
    const tm_source *base;
    tm_adapter_writer *w;
    tm_export_opts opts;
    uint64_t seed, done_bytes, total_bytes;
} beginning;

/* A matrix that gets an A and a B. */
typedef struct first_of {
    const char *module;
    tm_adapter_spec spec;
    uint32_t tensor, index; /* of the base; of A in the writer, before B */
    bool turned;
    uint64_t in, out;
} first_of;

/* False: nothing of PiSSA's. */
static bool find_first(const tm_adapter_config *config, const tm_source *base, const char *module, first_of *out) {
    bool head;
    *out = (first_of){.module = module};
    int64_t t = peft_weight_of(base, module, &head);
    if (t < 0 || !tm_adapter_module(config, module, &out->spec) || !out->spec.pissa) return false;
    const tm_source_tensor *w = tm_source_tensor_get(base, (uint32_t)t);
    out->tensor = (uint32_t)t;
    out->turned = !head && peft_is_turned(base, w->name);
    out->in = w->shape[out->turned ? 0 : 1];
    out->out = w->shape[out->turned ? 1 : 0];
    return w->ndim == 2;
}

static tm_status add_first(beginning *b, first_of *f) {
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s.lora_A.weight", f->module);
    TM_TRY(tm_adapter_writer_add(b->w, name, 2, (uint64_t[]){f->spec.rank, f->in}, &f->index));
    snprintf(name, sizeof name, "%s.lora_B.weight", f->module);
    b->total_bytes += tm_source_tensor_get(b->base, f->tensor)->bytes;
    return tm_adapter_writer_add(b->w, name, 2, (uint64_t[]){f->out, f->spec.rank}, &(uint32_t){0});
}

/* A, then B. The seed has a say only where something is drawn that makes a difference. */
static tm_status compute_first(const first_of *f, const tm_adapter_config *config, const base_rows *rows, uint64_t seed,
                               float *values) {
    const tm_principal_opts o = {.name = tm_source_tensor_get(rows->base, f->tensor)->name,
                                 .rank = f->spec.rank,
                                 .scale = f->spec.scale,
                                 .iterations = (uint32_t)(config->pissa_iterations + 1),
                                 .seed =
                                     tm_hash64(f->module, strlen(f->module), config->pissa_iterations >= 0 ? seed : 0),
                                 .turned = f->turned};
    return principal_of(rows, &o, values, values + f->spec.rank * f->in);
}

static tm_status make_first(beginning *b, const first_of *f) {
    const tm_source_tensor *w = tm_source_tensor_get(b->base, f->tensor);
    uint64_t n_a = f->spec.rank * f->in, n_b = f->spec.rank * f->out;
    float *values = tm_malloc((n_a + n_b) * sizeof *values);
    if (!values) return tm_nomem((n_a + n_b) * sizeof *values);
    const base_rows rows = {b->base, f->tensor, w->shape[1], &b->opts};
    tm_status rc = compute_first(f, b->config, &rows, b->seed, values);
    if (rc == TM_OK) rc = tm_adapter_writer_put_f32(b->w, f->index, 0, n_a, values);
    if (rc == TM_OK) rc = tm_adapter_writer_put_f32(b->w, f->index + 1, 0, n_b, values + n_a);
    tm_free(values);
    tm_source_forget(b->base, f->tensor);
    b->done_bytes += w->bytes;
    if (b->opts.progress) b->opts.progress(b->opts.ctx, b->done_bytes, b->total_bytes);
    return rc;
}

static tm_status make_all(beginning *b, const char *const *module, size_t n) {
    size_t count = 0;
    first_of *first = tm_calloc(n + 1, sizeof *first);
    tm_status rc = first ? TM_OK : tm_nomem(n * sizeof *first);
    for (size_t i = 0; i < n && rc == TM_OK; i++)
        if (find_first(b->config, b->base, module[i], &first[count])) rc = add_first(b, &first[count++]);
    for (size_t i = 0; i < count && rc == TM_OK; i++) rc = make_first(b, &first[i]);
    tm_free(first);
    return rc;
}

tm_status tm_pissa_begin(const tm_adapter_config *config, const tm_source *base, const char *dir, uint64_t seed,
                         const tm_convert_opts *opts) {
    beginning b = {.config = config, .base = base, .seed = seed};
    tm_adapter_json_opts json = {.base_model = tm_source_path(base), .plain = true};
    const char **module = NULL;
    tm_buf names = {0};
    tm_status rc;
    TM_ASSERT(config->init == TM_ADAPTER_INIT_PISSA);
    if (opts) b.opts = tm_export_opts_of(opts);
    TM_GO(peft_module_names(base, &names, &module, &json.n_modules));
    TM_GO(tm_adapter_check(config, module, json.n_modules));
    json.module = module;
    TM_GO(tm_adapter_writer_create(&b.w, dir, config, &json, TM_FMT_F32));
    TM_GO(make_all(&b, module, json.n_modules));
    rc = tm_adapter_writer_commit(b.w);
    b.w = NULL;
done:
    tm_adapter_writer_abandon(b.w);
    tm_free(module);
    tm_buf_free(&names);
    return rc;
}

/* ---- a module at a time ---- */

struct tm_pissa {
    const tm_adapter_config *config;
    const tm_source *base;
    const tm_adapter_folder *folder;
    uint64_t seed;
    char module[MAX_NAME];
    first_of held; /* of that module */
    float *values; /* A, then B; NULL: of none */
};

tm_status tm_pissa_open(tm_pissa **out, const tm_adapter_config *config, const tm_source *base,
                        const tm_adapter_folder *folder, uint64_t seed) {
    tm_pissa *p = *out = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    p->config = config, p->base = base, p->folder = folder && folder->first ? folder->first : NULL, p->seed = seed;
    if (folder && !p->folder && config->pissa_iterations >= 0)
        tm_log(TM_LOG_WARN,
               "%s: its first A and B were drawn at random and are not in the folder (" TM_PISSA_FIRST
               "); others are taken for them",
               folder->path);
    return TM_OK;
}

void tm_pissa_close(tm_pissa *p) {
    if (p) tm_free(p->values);
    tm_free(p);
}

static tm_status hold_module(tm_pissa *p, const char *module, size_t n) {
    if (p->values && strlen(p->module) == n && memcmp(p->module, module, n) == 0) return TM_OK;
    tm_free(p->values);
    p->values = NULL;
    if (n >= sizeof p->module) return tm_fail(TM_EBUG, "PiSSA of a module with a name of %zu bytes", n);
    memcpy(p->module, module, n);
    p->module[n] = 0;
    if (!find_first(p->config, p->base, p->module, &p->held))
        return tm_fail(TM_EBUG, "PiSSA of '%s', which has none", p->module);
    uint64_t elements = p->held.spec.rank * (p->held.in + p->held.out);
    p->values = tm_malloc(elements * sizeof *p->values);
    if (!p->values) return tm_nomem(elements * sizeof *p->values);
    const base_rows rows = {p->base, p->held.tensor, tm_source_tensor_get(p->base, p->held.tensor)->shape[1], NULL};
    tm_status rc = compute_first(&p->held, p->config, &rows, p->seed, p->values);
    if (rc == TM_OK) return TM_OK;
    tm_free(p->values);
    p->values = NULL;
    return rc;
}

static tm_status read_of_folder(const tm_adapter_folder *f, const char *name, uint64_t first, uint64_t n, float *dst) {
    int64_t t = tm_adapter_folder_find(f, name);
    if (t < 0) return tm_fail(TM_EINPUT, "%s: has no %s; the folder is not whole, or of another model", f->path, name);
    return tm_adapter_folder_read_f32(f, (uint32_t)t, first, n, dst);
}

tm_status tm_pissa_read(tm_pissa *p, const char *module, bool b, uint64_t first, uint64_t n, float *dst) {
    char name[MAX_NAME + 16];
    size_t length = strlen(module);
    snprintf(name, sizeof name, "%s.lora_%s.weight", module, b ? "B" : "A");
    if (p->folder) return read_of_folder(p->folder, name, first, n, dst);
    TM_TRY(hold_module(p, module, length));
    uint64_t n_a = p->held.spec.rank * p->held.in, n_b = p->held.spec.rank * p->held.out;
    TM_TRY(tm_range_check(tm_source_path(p->base), name, first, n, b ? n_b : n_a));
    memcpy(dst, p->values + (b ? n_a : 0) + first, n * sizeof *dst);
    return TM_OK;
}

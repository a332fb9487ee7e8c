/* A base with any number of its adapters. The model has one adapter where any of them has one, of the largest rank; whose
 * values it has is a matter of the pass: they are read into place, with zeros for the ranks and modules that are not
 * there, and B times its scale, the model's being 1. Zeros alone are the base. */
#include "infer/engine_internal.h"

#include <string.h>

/* A module's adapter that has the most ranks. */
static bool adapts(void *ctx, const char *module, tm_adapter_spec *out) {
    const engine_adapters *all = ctx;
    *out = (tm_adapter_spec){.scale = 1};
    for (uint32_t i = 0; i < all->n; i++) {
        tm_adapter_spec one;
        if (!tm_adapter_module(tm_adapter_folder_config(all->folder[i]), module, &one)) continue;
        if (one.rank > out->rank) out->rank = one.rank;
    }
    return out->rank > 0;
}

static tm_status check_sort(const tm_adapter_folder *f) {
    const tm_adapter_config *c = tm_adapter_folder_config(f);
    const char *what = c->use_dora                        ? "use_dora"
                       : c->init == TM_ADAPTER_INIT_PISSA ? "init_lora_weights: pissa"
                       : !tm_adapter_keeps_base(c)        ? "modules_to_save, or bias"
                                                          : NULL;
    if (!what) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED,
                   "%s: has %s, which cannot be mixed with other adapters; name it alone, or merge it: "
                   "tidemill export --merge-adapter",
                   tm_adapter_folder_path(f), what);
}

static tm_status check_names(const engine_adapters *all, const tm_model_config *config, tm_dtype dtype) {
    tm_model *plain = NULL;
    const char **module = NULL;
    tm_buf names = {0};
    size_t n = 0;
    tm_status rc;
    TM_GO(tm_model_create(&plain, config, dtype));
    TM_GO(job_list_modules(plain, &module, &n, &names));
    for (uint32_t i = 0; i < all->n; i++) TM_GO(tm_adapter_check(tm_adapter_folder_config(all->folder[i]), module, n));
done:
    tm_model_free(plain);
    tm_free(module);
    tm_buf_free(&names);
    return rc;
}

tm_status engine_open_adapters(engine_adapters *all, const tm_engine_opts *o, const tm_model_config *config) {
    all->folder = tm_calloc(o->n_adapters + 1, sizeof *all->folder);
    if (!all->folder) return tm_nomem(o->n_adapters * sizeof *all->folder);
    for (; all->n < o->n_adapters; all->n++) {
        TM_TRY(tm_adapter_folder_open(&all->folder[all->n], o->adapters[all->n]));
        tm_status rc = check_sort(all->folder[all->n]);
        if (rc != TM_OK) {
            tm_adapter_folder_close(all->folder[all->n]);
            return rc;
        }
    }
    all->roles = (tm_model_roles){.adapts = adapts, .ctx = all};
    return all->n ? check_names(all, config, o->precision) : TM_OK;
}

void engine_close_adapters(engine_adapters *all) {
    for (uint32_t i = 0; i < all->n; i++) tm_adapter_folder_close(all->folder[i]);
    tm_free(all->folder);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

/* Elements of [R, width] of which the folder has [r, width], r <= R. */
static tm_status read_rows(const tm_adapter_folder *f, uint32_t at, uint64_t first, uint64_t n, float *out) {
    uint64_t have = tm_adapter_folder_get(f, at)->elements, some = first < have ? tm_min_u64(n, have - first) : 0;
    memset(out + some, 0, (n - some) * sizeof *out);
    return some ? tm_adapter_folder_read_f32(f, at, first, some, out) : TM_OK;
}

/* Elements of [rows, R] of which the folder has [rows, r]: a row at a time. */
static tm_status read_columns(const tm_adapter_folder *f, uint32_t at, uint64_t width, uint64_t first, uint64_t n,
                              float *out) {
    uint64_t have = tm_adapter_folder_get(f, at)->shape[1];
    for (uint64_t i = 0, some; i < n; i += some) {
        uint64_t row = (first + i) / width, column = (first + i) % width;
        some = tm_min_u64(width - column, n - i);
        uint64_t real = column < have ? tm_min_u64(some, have - column) : 0;
        memset(out + i, 0, some * sizeof *out);
        if (real) TM_TRY(tm_adapter_folder_read_f32(f, at, row * have + column, real, out + i));
    }
    return TM_OK;
}

static double scale_of(const tm_adapter_folder *f, const char *tensor) {
    char module[512];
    tm_adapter_spec spec = {.scale = 1};
    const char *end = strstr(tensor, ".lora_");
    TM_ASSERT(end && (size_t)(end - tensor) < sizeof module);
    memcpy(module, tensor, (size_t)(end - tensor));
    module[end - tensor] = 0;
    (void)tm_adapter_module(tm_adapter_folder_config(f), module, &spec);
    return spec.scale;
}

static tm_status read_values(void *ctx, const tm_tensor *t, uint64_t first, uint64_t n, float *out) {
    const engine_adapters *all = ctx;
    const tm_adapter_folder *f = all->now ? all->folder[all->now - 1] : NULL;
    int64_t at = f ? tm_adapter_folder_find(f, t->name) : -1;
    bool b = t->role == TM_TENSOR_LORA_B || t->role == TM_TENSOR_EMBEDDING_B;
    if (at < 0) {
        memset(out, 0, n * sizeof *out);
        return TM_OK;
    }
    const tm_adapter_tensor *have = tm_adapter_folder_get(f, (uint32_t)at);
    bool fits = have->ndim == 2 && (b ? have->shape[0] == t->shape[0] && have->shape[1] <= t->shape[1]
                                      : have->shape[1] == t->shape[1] && have->shape[0] <= t->shape[0]);
    if (!fits)
        return tm_fail(TM_EINPUT, "%s: the shape of %s is not that of this model", tm_adapter_folder_path(f), t->name);
    if (!b) return read_rows(f, (uint32_t)at, first, n, out);
    TM_TRY(read_columns(f, (uint32_t)at, t->shape[1], first, n, out));
    float scale = (float)scale_of(f, t->name);
    for (uint64_t i = 0; i < n; i++) out[i] *= scale;
    return TM_OK;
}

void engine_use_adapters(tm_engine *e, job_opts *o) {
    o->roles = &e->adapters.roles;
    o->adapter_values = read_values;
    o->adapter_values_ctx = &e->adapters;
}

tm_status engine_put_adapter(tm_engine *e, uint32_t adapter) {
    if (e->adapters.n == 0 || (e->adapters.placed && e->adapters.now == adapter)) return TM_OK;
    e->adapters.now = adapter;
    e->adapters.placed = true;
    e->adapters.passes = 0;
    return job_run(e->job, e->adapters.plan);
}

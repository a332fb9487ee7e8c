/* What of a model learns, as its adapter's or its freezing's configuration has it: names of tensors and modules, asked
 * for once, before the model's tables are built. */
#include "adapter/principal.h"
#include "job/job.h"

#include <string.h>

/* A model's tensors before anything is frozen, by name, and whether each learns. */
typedef struct role_list {
    const job_opts *opts;
    tm_model *plain;
    uint32_t n;
    uint32_t *by_name; /* tensors in byte order of their names */
    bool *learns;      /* freeze */
    const char **module;
    size_t n_modules;
    tm_buf names; /* of modules */
} role_list;

static uint32_t find_name(const role_list *l, const char *name) {
    uint32_t low = 0, high = l->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(tm_model_tensor(l->plain, l->by_name[middle])->name, name);
        if (order == 0) return l->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

static bool learns(void *ctx, const char *tensor) {
    const role_list *l = ctx;
    if (l->opts->adapter) return tm_adapter_learns(l->opts->adapter, tensor);
    uint32_t t = find_name(l, tensor);
    return t == UINT32_MAX || l->learns[t];
}

static bool adapts(void *ctx, const char *module, tm_adapter_spec *out) {
    const role_list *l = ctx;
    return l->opts->adapter && tm_adapter_module(l->opts->adapter, module, out);
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static size_t stem(const char *tensor) {
    const char *dot = strrchr(tensor, '.');
    return dot ? (size_t)(dot - tensor) : strlen(tensor);
}

/* A module's tensors follow each other in the order of names. */
static void list_modules(const tm_model *m, const uint32_t *order, const char **module, size_t *n, char *names) {
    const char *before = NULL;
    for (uint32_t i = 0; i < tm_model_tensors(m); i++) {
        const tm_tensor *t = tm_model_tensor(m, order[i]);
        size_t k = stem(t->name);
        if (t->role != TM_TENSOR_BASE || (before && stem(before) == k && strncmp(before, t->name, k) == 0)) continue;
        before = t->name;
        module[(*n)++] = memcpy(names, t->name, k);
        names[k] = 0;
        names += k + 1;
    }
}

tm_status job_list_modules(const tm_model *m, const char ***module, size_t *n, tm_buf *names) {
    uint32_t tensors = tm_model_tensors(m), *order;
    size_t bytes = 1;
    *n = 0;
    *module = tm_malloc((tensors + 1) * sizeof **module);
    for (uint32_t i = 0; i < tensors; i++) bytes += strlen(tm_model_tensor(m, i)->name) + 1;
    if (!*module) return tm_nomem(tensors * sizeof **module);
    TM_TRY(tm_buf_reserve(names, bytes));
    TM_TRY(tm_model_sort_names(m, &order));
    list_modules(m, order, *module, n, names->data);
    tm_free(order);
    return TM_OK;
}

int64_t job_saved_tensor(const tm_job *job, uint32_t t) {
    const tm_adapter_folder *saved = job->opts.saved;
    int64_t at = saved ? tm_adapter_folder_find(saved, tm_model_tensor(job->model, t)->name) : -1;
    return at >= 0 && tm_adapter_folder_get(saved, (uint32_t)at)->frozen ? -1 : at;
}

uint64_t job_pissa_bytes(const tm_job *job) {
    uint64_t most = 0;
    for (uint32_t t = 0; t < tm_model_tensors(job->model); t++) {
        const tm_tensor *a = tm_model_tensor(job->model, t), *w = tm_model_tensor(job->model, a->of);
        if (a->role != TM_TENSOR_FIRST_A) continue;
        uint32_t rank = (uint32_t)a->shape[0];
        const tm_principal_opts o = {.rank = rank, .iterations = (uint32_t)(job->opts.adapter->pissa_iterations + 1)};
        uint64_t values = rank * (w->shape[0] + w->shape[1]) * sizeof(float);
        most = tm_max_u64(most, values + tm_principal_bytes(w->shape[0], w->shape[1], &o));
    }
    return most;
}

static tm_status apply_freeze(role_list *l) {
    tm_status rc;
    tm_freeze_tensor *list = tm_malloc((l->n + 1) * sizeof *list);
    l->learns = tm_calloc(l->n + 1, sizeof *l->learns);
    if (!list || !l->learns) TM_GO(tm_nomem(l->n * sizeof *list));
    for (uint32_t i = 0; i < l->n; i++) {
        const tm_tensor *t = tm_model_tensor(l->plain, i);
        list[i] = (tm_freeze_tensor){t->name, t->elements};
    }
    rc = tm_freeze_apply(l->opts->freeze, list, l->n, tm_model_get_config(l->plain)->num_hidden_layers, l->learns);
done:
    tm_free(list);
    return rc;
}

/* PEFT copies what it trains whole: the two ends of a tied model part then, unless it was told to keep them together. */
static bool unties(const role_list *l) {
    const tm_adapter_config *a = l->opts->adapter;
    if (!a || a->ensure_weight_tying || !tm_model_get_config(l->plain)->tie_word_embeddings) return false;
    return tm_adapter_learns(a, tm_model_tensor(l->plain, 0)->name) || tm_adapter_learns(a, "lm_head.weight");
}

static tm_status open_list(role_list *l, const tm_model_config *config) {
    TM_TRY(tm_model_create(&l->plain, config, l->opts->dtype));
    l->n = tm_model_tensors(l->plain);
    TM_TRY(tm_model_sort_names(l->plain, &l->by_name));
    if (!l->opts->adapter) return apply_freeze(l);
    TM_TRY(job_list_modules(l->plain, &l->module, &l->n_modules, &l->names));
    return tm_adapter_check(l->opts->adapter, l->module, l->n_modules);
}

tm_status job_create_model(tm_model **out, const tm_model_config *config, const job_opts *opts) {
    if (!opts->adapter && !opts->freeze) return tm_model_create_roles(out, config, opts->dtype, opts->roles);
    role_list l = {.opts = opts};
    tm_status rc = open_list(&l, config);
    if (rc == TM_OK) {
        tm_model_roles roles = {.learns = learns,
                                .adapts = adapts,
                                .ctx = &l,
                                .dropout = opts->adapter ? opts->adapter->dropout : 0,
                                .seed = opts->seed,
                                .untied = unties(&l)};
        rc = tm_model_create_roles(out, config, opts->dtype, &roles);
    }
    tm_model_free(l.plain);
    TM_FREE_ALL(l.by_name, l.learns, l.module);
    tm_buf_free(&l.names);
    return rc;
}

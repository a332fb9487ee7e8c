/* What of a model learns, as its adapter's or its freezing's configuration has it: names of tensors and modules, asked
 * for once, before the model's tables are built. */
#include "job/job.h"

#include <stdlib.h>
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

static const tm_model *sorted_model;

static int by_name(const void *a, const void *b) {
    return strcmp(tm_model_tensor(sorted_model, *(const uint32_t *)a)->name,
                  tm_model_tensor(sorted_model, *(const uint32_t *)b)->name);
}

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

/* ---- names ------------------------------------------------------------------------------------------------------ */

static size_t stem(const char *tensor) {
    const char *dot = strrchr(tensor, '.');
    return dot ? (size_t)(dot - tensor) : strlen(tensor);
}

/* A module's tensors follow each other in the order of names. */
static tm_status list_modules(role_list *l) {
    const char *before = NULL;
    size_t cap = 0, at = 0;
    l->module = tm_malloc((l->n + 1) * sizeof *l->module);
    if (!l->module) return tm_nomem(l->n * sizeof *l->module);
    for (uint32_t i = 0; i < l->n; i++) cap += strlen(tm_model_tensor(l->plain, i)->name) + 1;
    TM_TRY(tm_buf_reserve(&l->names, cap + 1));
    for (uint32_t i = 0; i < l->n; i++) {
        const char *name = tm_model_tensor(l->plain, l->by_name[i])->name;
        size_t n = stem(name);
        if (before && stem(before) == n && strncmp(before, name, n) == 0) continue;
        before = name;
        l->module[l->n_modules++] = memcpy(l->names.data + at, name, n);
        l->names.data[at + n] = 0;
        at += n + 1;
    }
    return TM_OK;
}

static tm_status list_names(role_list *l) {
    l->n = tm_model_tensors(l->plain);
    l->by_name = tm_malloc((l->n + 1) * sizeof *l->by_name);
    if (!l->by_name) return tm_nomem(l->n * sizeof *l->by_name);
    for (uint32_t i = 0; i < l->n; i++) l->by_name[i] = i;
    sorted_model = l->plain;
    qsort(l->by_name, l->n, sizeof *l->by_name, by_name);
    return TM_OK;
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
    TM_TRY(list_names(l));
    if (!l->opts->adapter) return apply_freeze(l);
    TM_TRY(list_modules(l));
    return tm_adapter_check(l->opts->adapter, l->module, l->n_modules);
}

tm_status job_create_model(tm_model **out, const tm_model_config *config, const job_opts *opts) {
    if (!opts->adapter && !opts->freeze) return tm_model_create_roles(out, config, opts->dtype, opts->roles);
    role_list l = {.opts = opts};
    tm_status rc = open_list(&l, config);
    if (rc == TM_OK) {
        tm_model_roles roles = {.learns = learns, .ctx = &l, .untied = unties(&l)};
        rc = tm_model_create_roles(out, config, opts->dtype, &roles);
    }
    tm_model_free(l.plain);
    TM_FREE_ALL(l.by_name, l.learns, l.module);
    tm_buf_free(&l.names);
    return rc;
}

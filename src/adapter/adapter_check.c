/* Is it an adapter of this model: every name that was said is of something, or the names that there are. */
#include "adapter/adapter_internal.h"

#include <string.h>

typedef struct model_names {
    const char *const *module;
    size_t n;
} model_names;

static tm_status nothing(const tm_adapter_config *a, const char *key, const char *name, const model_names *m) {
    tm_buf leaves = {0};
    tm_status rc = adapter_list_leaves(&leaves, m->module, m->n);
    if (rc == TM_OK)
        rc = tm_fail(TM_EINPUT, "%s%s\"%s\" %s%.80s%s of this model; there are %s", a->own->file ? a->own->file : "",
                     a->own->file ? ": " : "", key, name ? "has \"" : "chooses no module", name ? name : "",
                     name ? "\", which is no module" : "", leaves.data ? leaves.data : "none");
    tm_buf_free(&leaves);
    return rc;
}

/* Each name of a list that a user wrote; a folder's list may be of several models. */
static tm_status check_targets(const tm_adapter_config *a, const model_names *m) {
    tm_adapter_names names = a->target_modules.names;
    for (uint32_t i = 0; i < names.n && !a->own->file; i++) {
        bool found = false;
        for (size_t j = 0; j < m->n && !found; j++)
            found =
                adapter_has_end(tm_adapter_bare_name(m->module[j]), names.item[i]) && !adapter_is_norm(m->module[j]);
        if (!found) return nothing(a, "target_modules", names.item[i], m);
    }
    return TM_OK;
}

static tm_status check_saved(const tm_adapter_config *a, const model_names *m) {
    tm_adapter_names names = a->modules_to_save.names;
    for (uint32_t i = 0; i < names.n; i++) {
        tm_adapter_config one = *a;
        bool found = false;
        one.modules_to_save = (tm_adapter_choice){.names = {&names.item[i], 1}};
        for (size_t j = 0; j < m->n && !found; j++)
            found = adapter_saves_module(&one, tm_adapter_bare_name(m->module[j]));
        if (!found) return nothing(a, "modules_to_save", names.item[i], m);
    }
    return TM_OK;
}

tm_status tm_adapter_check(const tm_adapter_config *a, const char *const *module, size_t n) {
    const model_names m = {module, n};
    size_t adapted = 0;
    for (size_t i = 0; i < n; i++) {
        tm_adapter_spec spec;
        bool yes;
        TM_TRY(adapter_adapts(a, tm_adapter_bare_name(module[i]), &spec, &yes));
        adapted += yes;
    }
    TM_TRY(check_targets(a, &m));
    TM_TRY(check_saved(a, &m));
    return adapted ? TM_OK : nothing(a, "target_modules", NULL, &m);
}

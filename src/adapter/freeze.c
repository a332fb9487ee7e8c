/* What learns where parameters are frozen by name: freeze_parameters and activate_parameters of ms-swift 4
 * (swift/utils/transformers_utils.py), and freeze_trainable_layers of LLaMA-Factory (model/adapter.py). */
#include "adapter/adapter_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tm_freeze {
    tm_freeze_opts opts;
    tm_pattern *frozen, *trainable;
};

static tm_status open_pattern(tm_pattern **out, const char *regex) {
    return regex ? tm_pattern_open(out, regex, strlen(regex), TM_PATTERN_SEARCH) : TM_OK;
}

tm_status tm_freeze_create(tm_freeze **out, const tm_freeze_opts *opts) {
    *out = NULL;
    tm_freeze *f = tm_calloc(1, sizeof *f);
    if (!f) return tm_nomem(sizeof *f);
    f->opts = *opts;
    tm_status rc;
    TM_GO(open_pattern(&f->frozen, opts->freeze_parameters_regex));
    TM_GO(open_pattern(&f->trainable, opts->trainable_parameters_regex));
    *out = f;
    return TM_OK;
done:
    tm_freeze_free(f);
    return rc;
}

void tm_freeze_free(tm_freeze *f) {
    if (!f) return;
    tm_pattern_close(f->frozen);
    tm_pattern_close(f->trainable);
    tm_free(f);
}

/* ---- one tensor ------------------------------------------------------------------------------------------------- */

static bool begins(const char *tensor, const char *prefix) {
    return strncmp(tensor, prefix, strlen(prefix)) == 0;
}

static bool any_begins(tm_adapter_names prefixes, const char *tensor) {
    for (uint32_t i = 0; i < prefixes.n; i++)
        if (begins(tensor, prefixes.item[i])) return true;
    return false;
}

static tm_status finds(const tm_pattern *p, const char *tensor, bool *yes) {
    *yes = false;
    return p ? tm_pattern_finds(p, tensor, yes) : TM_OK;
}

int64_t freeze_layer_of(const char *tensor, const char **path) {
    for (const char *dot = strchr(tensor, '.'); dot; dot = strchr(dot + 1, '.')) {
        size_t n = strspn(dot + 1, "0123456789");
        *path = dot + n + 2;
        if (n && n < 10 && dot[1 + n] == '.') return strtol(dot + 1, NULL, 10);
    }
    return -1;
}

static int64_t layer_of(const char *tensor) {
    const char *path;
    return freeze_layer_of(tensor, &path);
}

static bool in_other_layer(const tm_freeze *f, const char *tensor, uint32_t layers) {
    int64_t n = f->opts.freeze_trainable_layers, layer = layer_of(tensor);
    if (!n) return false;
    return layer < 0 || (n > 0 ? layer < (int64_t)layers - n : layer >= -n);
}

static bool in_first_part(const tm_freeze *f, const tm_freeze_place *place) {
    double ratio = f->opts.freeze_parameters_ratio;
    return ratio > 0 && place->through <= (uint64_t)((double)place->total * ratio);
}

static tm_status learns(const tm_freeze *f, const char *tensor, const tm_freeze_place *place, bool *yes) {
    bool frozen, named;
    TM_TRY(finds(f->frozen, tensor, &frozen));
    TM_TRY(finds(f->trainable, tensor, &named));
    frozen |= in_other_layer(f, tensor, place->layers) || in_first_part(f, place);
    frozen |= any_begins(f->opts.freeze_parameters, tensor);
    *yes = !frozen || named || any_begins(f->opts.trainable_parameters, tensor);
    return TM_OK;
}

bool tm_freeze_learns(const tm_freeze *f, const char *tensor, const tm_freeze_place *place) {
    bool yes = false;
    if (learns(f, tensor, place, &yes) != TM_OK) tm_error_clear(); /* tm_freeze_apply has reported it */
    return yes;
}

/* ---- all of a model --------------------------------------------------------------------------------------------- */

typedef struct model_tensors {
    const tm_freeze_tensor *tensor;
    size_t n;
} model_tensors;

/* Names without what differs from block to block. */
static tm_status nothing(const char *key, const char *said, const model_tensors *m) {
    enum { MOST = 12 };
    tm_buf names = {0};
    size_t shown = 0;
    tm_status rc = TM_OK;
    for (size_t i = 0; i < m->n && shown <= MOST && rc == TM_OK; i++) {
        if (layer_of(m->tensor[i].name) > 0) continue;
        rc = shown == MOST ? tm_buf_printf(&names, ", ...")
                           : tm_buf_printf(&names, "%s%.80s", shown ? ", " : "", m->tensor[i].name);
        shown++;
    }
    if (rc == TM_OK)
        rc = tm_fail(TM_EINPUT, "\"%s\": \"%.80s\" is of no tensor of this model; there are %s", key, said,
                     names.data ? names.data : "none");
    tm_buf_free(&names);
    return rc;
}

static tm_status check_prefixes(const char *key, tm_adapter_names prefixes, const model_tensors *m) {
    for (uint32_t i = 0; i < prefixes.n; i++) {
        bool found = false;
        for (size_t j = 0; j < m->n && !found; j++) found = begins(m->tensor[j].name, prefixes.item[i]);
        if (!found) return nothing(key, prefixes.item[i], m);
    }
    return TM_OK;
}

static tm_status check_pattern(const char *key, const tm_pattern *p, const model_tensors *m) {
    bool found = false;
    for (size_t j = 0; p && j < m->n && !found; j++) TM_TRY(tm_pattern_finds(p, m->tensor[j].name, &found));
    return !p || found ? TM_OK : nothing(key, tm_pattern_text(p), m);
}

static tm_status check_names(const tm_freeze *f, const model_tensors *m) {
    TM_TRY(check_prefixes("freeze_parameters", f->opts.freeze_parameters, m));
    TM_TRY(check_prefixes("trainable_parameters", f->opts.trainable_parameters, m));
    TM_TRY(check_pattern("freeze_parameters_regex", f->frozen, m));
    return check_pattern("trainable_parameters_regex", f->trainable, m);
}

static tm_status apply_in_order(const tm_freeze *f, const model_tensors *m, tm_freeze_place place, uint32_t *order,
                                bool *out) {
    TM_TRY(freeze_order(m->tensor, m->n, order));
    for (size_t i = 0; i < m->n; i++) place.total += m->tensor[i].elements;
    for (size_t i = 0; i < m->n; i++) {
        const tm_freeze_tensor *t = &m->tensor[order[i]];
        place.through += t->elements;
        TM_TRY(learns(f, t->name, &place, &out[order[i]]));
    }
    return TM_OK;
}

tm_status tm_freeze_apply(const tm_freeze *f, const tm_freeze_tensor *tensor, size_t n, uint32_t layers, bool *out) {
    const model_tensors m = {tensor, n};
    TM_TRY(check_names(f, &m));
    uint32_t *order = tm_malloc((n + 1) * sizeof *order);
    if (!order) return tm_nomem(n * sizeof *order);
    tm_status rc = apply_in_order(f, &m, (tm_freeze_place){.layers = layers}, order, out);
    tm_free(order);
    for (size_t i = 0; i < n && rc == TM_OK; i++)
        if (out[i]) return TM_OK;
    if (rc != TM_OK) return rc;
    return tm_fail(TM_EINPUT, "every parameter of the model is frozen; name some in \"trainable_parameters\"");
}

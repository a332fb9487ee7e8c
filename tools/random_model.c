/* See random_model.h. */
#include "tools/random_model.h"

#include <omp.h>
#include <string.h>

enum { AT_ONCE = 4096 /* elements that a thread makes */ };

static tm_status make_values(void *ctx, uint32_t t, uint64_t first, uint64_t n, float *out) {
    const tm_random_model *r = ctx;
#pragma omp parallel for schedule(static) if (n > AT_ONCE)
    for (uint64_t at = 0; at < n; at += AT_ONCE)
        tm_model_init_values(r->model, t, r->seed, first + at, tm_min_u64(AT_ONCE, n - at), out + at);
    return TM_OK;
}

static tm_status describe(tm_random_model *r) {
    tm_model_config config;
    size_t len;
    const char *json = tm_source_config(r->source, &len);
    tm_buf name = {0};
    TM_TRY(tm_buf_printf(&name, "%s/config.json", tm_source_path(r->source)));
    tm_status rc = tm_model_config_parse(&config, json, len, name.data);
    tm_buf_free(&name);
    TM_TRY(rc);
    if (config.composite)
        return tm_fail(TM_EINPUT,
                       "%s: a random model with other parts than text: those have no weights then; name a folder with "
                       "the config.json of the text model alone",
                       tm_source_path(r->source));
    return tm_model_create(&r->model, &config, TM_F32);
}

static tm_status make_tensors(tm_random_model *r) {
    uint32_t n = tm_model_tensors(r->model);
    tm_hf_tensor *list = tm_calloc(n + 1, sizeof *list);
    if (!list) return tm_nomem(n * sizeof *list);
    for (uint32_t i = 0; i < n; i++) {
        const tm_tensor *t = tm_model_tensor(r->model, i);
        list[i] = (tm_hf_tensor){.name = t->name, .ndim = t->ndim};
        memcpy(list[i].shape, t->shape, sizeof t->shape);
    }
    tm_status rc = tm_source_make(r->source, &(tm_made_tensors){list, n, make_values, r});
    tm_free(list);
    return rc;
}

tm_status tm_random_model_open(tm_random_model *r, const char *path, uint64_t seed) {
    tm_status rc;
    *r = (tm_random_model){.seed = seed};
    TM_GO(tm_threads_try((unsigned)omp_get_max_threads() - 1, "threads that make values (fewer: OMP_NUM_THREADS)"));
    TM_GO(tm_source_open_bare(&r->source, path));
    TM_GO(describe(r));
    TM_GO(make_tensors(r));
    return TM_OK;
done:
    tm_random_model_close(r);
    return rc;
}

void tm_random_model_close(tm_random_model *r) {
    tm_source_close(r->source);
    tm_model_free(r->model);
    *r = (tm_random_model){0};
}

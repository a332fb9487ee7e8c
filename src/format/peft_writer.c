/* Writes an adapter's folder. */
#include "format/peft_internal.h"

#include <stdio.h>
#include <string.h>

struct tm_adapter_writer {
    char *dir;
    const tm_adapter_config *config;
    tm_buf json;
    tm_fmt dtype;
    tm_st_writer *weights;
};

void tm_adapter_writer_abandon(tm_adapter_writer *w) {
    if (!w) return;
    tm_st_writer_abandon(w->weights);
    tm_buf_free(&w->json);
    tm_free(w->dir);
    tm_free(w);
}

tm_status tm_adapter_writer_create(tm_adapter_writer **out, const char *dir, const tm_adapter_config *config,
                                   const tm_adapter_json_opts *json, tm_fmt dtype) {
    char *path = NULL;
    tm_status rc;
    TM_ASSERT(dtype == TM_FMT_F32 || dtype == TM_FMT_BF16 || dtype == TM_FMT_F16);
    *out = NULL;
    tm_adapter_writer *w = tm_calloc(1, sizeof *w);
    if (!w) return tm_nomem(sizeof *w);
    w->config = config;
    w->dtype = dtype;
    w->dir = tm_strdup(dir);
    path = tm_path_join(dir, PEFT_WEIGHTS);
    if (!w->dir || !path) {
        rc = tm_nomem(strlen(dir));
        goto done;
    }
    TM_GO(tm_adapter_write_json(config, json, &w->json)); /* made first: it can fail */
    TM_GO(tm_st_writer_create(&w->weights, path));
    *out = w;
    w = NULL;
done:
    tm_adapter_writer_abandon(w);
    tm_free(path);
    return rc;
}

/* PEFT moves what an adapted module had into its base_layer. */
static bool is_base_layer(const tm_adapter_writer *w, const char *name) {
    char module[4200];
    tm_adapter_spec spec;
    if (!tm_ends_with(name, ".bias")) return false;
    snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - strlen(".bias")), name);
    return tm_adapter_module(w->config, module, &spec);
}

tm_status tm_adapter_writer_add(tm_adapter_writer *w, const char *name, uint32_t ndim, const uint64_t *shape,
                                uint32_t *index) {
    tm_buf full = {0};
    bool moved = is_base_layer(w, name);
    tm_status rc;
    TM_GO(tm_buf_printf(&full, PEFT_PREFIX "%.*s%s", (int)(strlen(name) - (moved ? strlen("bias") : 0)), name,
                        moved ? "base_layer.bias" : ""));
    rc = tm_st_writer_add(w->weights, full.data, w->dtype, ndim, shape, index);
done:
    tm_buf_free(&full);
    return rc;
}

tm_status tm_adapter_writer_put_f32(tm_adapter_writer *w, uint32_t t, uint64_t first, uint64_t n, const float *values) {
    return tm_st_writer_write_f32(w->weights, t, first, n, values);
}

static tm_status publish(tm_adapter_writer *w) {
    tm_st_writer *weights = w->weights;
    w->weights = NULL;
    TM_TRY(tm_st_writer_commit(weights));
    return tm_format_write_file(w->dir, PEFT_CONFIG, w->json.data, w->json.len);
}

tm_status tm_adapter_writer_commit(tm_adapter_writer *w) {
    tm_status rc = publish(w);
    tm_adapter_writer_abandon(w);
    return rc;
}

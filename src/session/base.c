/* The model that a run does not change, by what it holds: noticed where it is another one than when the run began. */
#include "session/session.h"

#include <string.h>

enum { SAMPLE = 256 /* elements */ };

/* The first, the middle and the last elements of a tensor: whatever trains or converts a model changes some of those. */
static tm_status hash_tensor(const tm_source *src, uint32_t t, uint64_t *hash) {
    const tm_source_tensor *s = tm_source_tensor_get(src, t);
    uint64_t n = tm_min_u64(SAMPLE, s->elements), at[] = {0, (s->elements - n) / 2, s->elements - n};
    float values[SAMPLE] = {0};
    uint64_t shape[2] = {s->elements, (uint64_t)s->fmt};
    *hash = tm_hash64(s->name, strlen(s->name), *hash);
    *hash = tm_hash64(shape, sizeof shape, *hash);
    for (size_t i = 0; i < TM_COUNT(at) && tm_fmt_get(s->fmt)->readable; i++) {
        TM_TRY(tm_source_read_f32(src, t, at[i], n, values));
        *hash = tm_hash64(values, n * sizeof *values, *hash);
    }
    return TM_OK;
}

tm_status session_hash_model(const char *path, uint64_t *out) {
    tm_source *src;
    uint64_t hash = 0;
    TM_TRY(tm_source_open(&src, path));
    tm_status rc = TM_OK;
    for (uint32_t t = 0; t < tm_source_tensors(src) && rc == TM_OK; t++) rc = hash_tensor(src, t, &hash);
    tm_source_close(src);
    *out = hash ? hash : 1;
    return rc;
}

/* A tm_source without a file: a config.json and its side files, and tensors whose values a caller makes. */
#include "format/source_internal.h"

#include <inttypes.h>
#include <string.h>

static tm_status add_tensor(tm_source *src, const tm_hf_tensor *t, uint32_t number) {
    source_entry e = {.info = {.fmt = TM_FMT_F32, .ndim = t->ndim, .file = src->path}, .made = number + 1};
    memcpy(e.info.shape, t->shape, sizeof t->shape);
    if (!tm_shape_elements(t->shape, t->ndim, &e.info.elements) ||
        !tm_fmt_bytes(TM_FMT_F32, e.info.elements, &e.info.bytes))
        return tm_fail(TM_EINPUT, "%s: the size of '%s' overflows", src->path, t->name);
    e.info.name = (const char *)(uintptr_t)src->names.len; /* an offset until all names are there */
    TM_TRY(tm_buf_append(&src->names, t->name, strlen(t->name) + 1));
    return tm_source_add(src, &e);
}

tm_status tm_source_make(tm_source *bare, const tm_made_tensors *made) {
    TM_ASSERT(bare->n == 0 && bare->names.len == 0);
    bare->made = *made;
    for (uint32_t i = 0; i < made->n; i++) TM_TRY(add_tensor(bare, &made->tensor[i], i));
    for (uint32_t i = 0; i < bare->n; i++)
        bare->entry[i].info.name = bare->names.data + (uintptr_t)bare->entry[i].info.name;
    bare->made.tensor = NULL; /* the caller's */
    return tm_source_sort(bare);
}

tm_status tm_source_read_made(const tm_source *src, const source_entry *s, uint64_t first, uint64_t n, float *dst) {
    TM_TRY(tm_range_check(s->info.file, s->info.name, first, n, s->info.elements));
    return n ? src->made.values(src->made.ctx, s->made - 1, first, n, dst) : TM_OK;
}

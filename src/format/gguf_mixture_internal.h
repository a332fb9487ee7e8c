/* Which type each tensor of a GGUF file has. Not for others. */
#ifndef TIDEMILL_GGUF_MIXTURE_INTERNAL_H
#define TIDEMILL_GGUF_MIXTURE_INTERNAL_H

#include "format/export_internal.h"
#include "format/gguf_internal.h"

typedef struct tm_gguf_mixture {
    const tm_written *to;
    bool tied;    /* the embedding is the output */
    bool weighed; /* by an importance of columns */
    bool seventy; /* of a model of 70 billion parameters, whose values are few */
    int layers;
    bool has_values[TM_KEYS_MAX_LAYERS]; /* a projection of values, by itself or with queries and keys */
} tm_gguf_mixture;

void tm_gguf_mixture_begin(tm_gguf_mixture *m, const tm_written *to, const tm_gguf_keys *k);
/* Every tensor, by its name in GGUF, before the first question. */
void tm_gguf_mixture_note(tm_gguf_mixture *m, const char *name);
/* width: of a row. Vectors are F32. */
tm_fmt tm_gguf_mixture_of(const tm_gguf_mixture *m, const char *name, uint32_t ndim, uint64_t width);

#endif

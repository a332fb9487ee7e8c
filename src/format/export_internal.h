/* The two directions of tm_convert. */
#ifndef TIDEMILL_EXPORT_INTERNAL_H
#define TIDEMILL_EXPORT_INTERNAL_H

#include "format/format_internal.h"

typedef struct tm_export_opts {
    bool has_dtype; /* false: the default of the direction */
    tm_fmt dtype;
    uint64_t max_shard_bytes;
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *ctx;
    const volatile sig_atomic_t *stop; /* may be NULL */
} tm_export_opts;

tm_status tm_export_stopped(const tm_export_opts *opts); /* TM_ESIGNAL if it is to stop */

tm_status tm_export_gguf(const tm_source *src, const char *out, const tm_export_opts *opts);
/* Into DIR, which exists. */
tm_status tm_export_folder(const tm_source *src, const char *dir, const tm_export_opts *opts);

#endif

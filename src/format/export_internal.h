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

tm_export_opts tm_export_opts_of(const tm_convert_opts *o); /* all but the dtype */
TM_MUST_USE tm_status tm_export_dtype(const char *name, tm_export_opts *opts);
/* OUT without slashes at its end, as a new string; TM_EINPUT where something is there already. */
TM_MUST_USE tm_status tm_export_place(const char *out, char **place);
/* Everything beside OUT first; OUT appears when `write` has filled the folder. */
TM_MUST_USE tm_status tm_export_beside(const char *out, tm_status (*write)(const void *ctx, const char *dir),
                                       const void *ctx);
/* To GGUF where OUT ends in .gguf, else as a folder. */
TM_MUST_USE tm_status tm_export_source(const tm_source *src, const char *out, const tm_export_opts *opts);

tm_status tm_export_gguf(const tm_source *src, const char *out, const tm_export_opts *opts);
/* Into DIR, which exists. */
tm_status tm_export_folder(const tm_source *src, const char *dir, const tm_export_opts *opts);

#endif

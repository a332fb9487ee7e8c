/* What writes models: the types that they are written in, and the two directions of tm_convert. */
#ifndef TIDEMILL_EXPORT_INTERNAL_H
#define TIDEMILL_EXPORT_INTERNAL_H

#include "format/format_internal.h"

/* ---- written.c: types that a model is written in ---- */

typedef enum tm_form { TM_FORM_PLAIN, TM_FORM_NF4, TM_FORM_PACKED } tm_form; /* of matrices in a folder */
typedef struct tm_written {
    const char *name, *also; /* for --dtype; `also` NULL: only one */
    tm_fmt fmt;              /* of matrices; in a plain folder, of everything */
    tm_form form;
    uint8_t bits; /* of a packed code */
    tm_pack_method method;
    bool in_folder, in_gguf;
    uint8_t file_type; /* ggml's number of such a file */
    bool more_bits;    /* llama.cpp's M: of some layers values and down projections are Q6_K */
} tm_written;
/* NULL for NULL; TM_EINPUT for a name that there is not, in any case. */
TM_MUST_USE tm_status tm_written_named(const char *name, const tm_written **out);
const tm_written *tm_written_by_fmt(tm_fmt fmt); /* NULL: none */
bool tm_written_is_plain(const tm_written *w);   /* f32, bf16, f16 */

/* ---- encode_runs.c ---- */

typedef struct tm_lost {
    double values, differences; /* sums of squares */
} tm_lost;
/* n values, whole blocks, by all threads; what they lose is added to *lost. Errors as tm_fmt_encode. */
TM_MUST_USE tm_status tm_encode_runs(tm_fmt fmt, const float *values, uint64_t n, void *out, tm_lost *lost);
/* The same where columns matter more or less. */
TM_MUST_USE tm_status tm_encode_runs_by(tm_fmt fmt, const float *values, uint64_t n, const tm_encode_by *by, void *out,
                                        tm_lost *lost);
double tm_lost_error(const tm_lost *lost); /* root mean square of the differences over that of the values */

/* ---- convert.c, export.c, gguf_export.c ---- */

typedef struct tm_export_opts {
    const tm_written *to; /* NULL: the default of the direction */
    uint64_t max_shard_bytes;
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    tm_wrote wrote; /* may be NULL */
    void *ctx;
    const tm_calibrated *calibrated;   /* may be NULL */
    const volatile sig_atomic_t *stop; /* may be NULL */
} tm_export_opts;

tm_status tm_export_stopped(const tm_export_opts *opts); /* TM_ESIGNAL if it is to stop */
void tm_export_wrote(const tm_export_opts *opts, const tm_wrote_tensor *t);

/* Has opts->calibrated run, where there is one. `place`: its file is PLACE.activations. */
TM_MUST_USE tm_status tm_export_calibrate(const tm_source *src, const tm_export_opts *opts, tm_codes *to,
                                          const char *place);
/* TM_EINPUT where the type asks for a calibration, or has no use for one. */
TM_MUST_USE tm_status tm_export_check_calibration(const tm_export_opts *opts, bool gguf);
tm_export_opts tm_export_opts_of(const tm_convert_opts *o); /* all but the type */
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
/* quantised_folder.c: so, in a form that is not plain; `rest`: of all that is not quantised. */
TM_MUST_USE tm_status tm_export_quantised(const tm_source *src, const char *dir, tm_fmt rest,
                                          const tm_export_opts *opts);
const tm_written *tm_export_own_type(const tm_source *src); /* what config.json says; NULL: nothing that is known */

#endif

/* Folders of quantised weights: what their forms share. Not for others. */
#ifndef TIDEMILL_QUANTISED_FOLDER_INTERNAL_H
#define TIDEMILL_QUANTISED_FOLDER_INTERNAL_H

#include "format/export_internal.h"

typedef struct tm_quantised_folder {
    const tm_source *src;
    const tm_export_opts *opts;
    const char *dir;
    tm_fmt rest;           /* of what is not quantised, and of scales */
    const bool *quantised; /* per tensor of the source: a matrix of a block */
} tm_quantised_folder;

/* The names of Linears that are as they were, as a list under this key. */
void tm_quantised_folder_skipped(const tm_quantised_folder *f, tm_json_writer *j, const char *key);
void tm_quantised_folder_progress(const tm_quantised_folder *f, uint32_t done); /* tensors 0 .. done are written */

/* packed.c: weights into DIR, and the value of quantization_config. groups: 128 elements share a scale (64, 32 where rows
 * are no multiple); else a row does. */
TM_MUST_USE tm_status tm_write_packed(const tm_quantised_folder *f, unsigned bits, bool groups, tm_buf *json);

#endif

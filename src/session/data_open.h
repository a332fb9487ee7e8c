/* data_open: data files, scanned. Records need a tokenizer; a lone .safetensors file of rows does not. */
#ifndef TIDEMILL_SESSION_DATA_OPEN_H
#define TIDEMILL_SESSION_DATA_OPEN_H

#include "config/config.h"
#include "data/dataset.h"
#include "session/text.h"

typedef struct data_file data_file;
typedef struct data_opts {
    tm_dataset_opts dataset; /* tokenizer, chat and eos are filled in from `text` */
    const char *spill_dir;   /* where tokens go that do not fit dataset.memory_bytes; NULL: nowhere */
    const char *cache;       /* "train", "eval": those tokens, in a file of that name, are used again; NULL: not */
    bool owns_cache;     /* writes that file, and removes what it wrote unless data_keep says so; else only reads it */
    bool lengths_only;   /* tokens that do not fit are forgotten: no batch will be asked for (tidemill plan) */
    uint64_t most_bytes; /* of a file, its first ones; 0: all of it */
    uint64_t window_bytes; /* that unpacking a file may take; 0: 128 MiB */
} data_opts;
TM_MUST_USE tm_status data_open(data_file **out, const tm_data_items *items, const text_tools *text, const char *model,
                                const data_opts *opts);
bool data_is_rows(const tm_data_items *items); /* a lone .safetensors file */
const char *data_name(const data_file *f);     /* a path, or "PATH and 2 more" */
void data_keep(data_file *f, bool keep);       /* tokens that a later start may open; unsaid: those of an earlier one */
uint64_t data_disk_bytes(const data_file *f);  /* of tokens on disk, of all of the file */
tm_dataset *data_set(data_file *f);
double data_part(const data_file *f); /* of the file that was read; 1: all of it */
void data_close(data_file *f);        /* NULL is fine */

#endif

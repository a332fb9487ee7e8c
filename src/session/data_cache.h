/* data_cache: by what tokenised data that lie on disk are known to be those of a configuration. */
#ifndef TIDEMILL_DATA_CACHE_INTERNAL_H
#define TIDEMILL_DATA_CACHE_INTERNAL_H

#include "data/dataset.h"
#include "session/data_files.h"

/* Of the files (size, time of change, inode, samples of their bytes; not their paths), of how they are read, of every
 * option that has a say in the ids, and of `text`, the hash of tokenizer and template. */
TM_MUST_USE tm_status data_cache_key(const data_files *f, const tm_dataset_opts *opts, uint64_t text, uint64_t *key);
/* "DIR/.tokens-ROLE-KEY" into `path`. */
void data_cache_path(const char *dir, const char *role, uint64_t key, char *path, size_t cap);
/* "DIR/.tokens-PID-N": of this process alone. */
void data_cache_own_path(const char *dir, char *path, size_t cap);
/* What a file of that name is: tokens for the next start, or of one process. */
typedef enum data_tokens { DATA_TOKENS_NONE, DATA_TOKENS_KEPT, DATA_TOKENS_OWN } data_tokens;
data_tokens data_cache_name(const char *name);
/* Files of that role in DIR which are of another key: what they were made of is no more. */
void data_cache_sweep(const char *dir, const char *role, const char *keep);

#endif

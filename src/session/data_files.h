/* data_files: paths and folders of the configuration as the files of a dataset. */
#ifndef TIDEMILL_DATA_FILES_INTERNAL_H
#define TIDEMILL_DATA_FILES_INTERNAL_H

#include "config/config.h"
#include "data/dataset.h"

/* Every item's file, or all data files of its folder in byte order of their names: README and what begins with a dot are
 * none, nor what datasets keeps beside (dataset_info.json, state.json), nor folders in it. An item is a group. */
typedef struct data_files data_files;
/* The item's columns and strings are used until close. `window_bytes`: of tm_reader_opts; `name`: of the whole, for messages. */
TM_MUST_USE tm_status data_files_open(data_files **out, const tm_data_items *items, uint64_t window_bytes,
                                      const char *name);
const tm_data_files *data_files_get(const data_files *f);
const char *data_files_path(const data_files *f, uint32_t i);
void data_files_close(data_files *f); /* NULL is fine */

#endif

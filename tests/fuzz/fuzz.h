/* What every fuzzer holds its parser to, and files that are memory.
 *
 * Between fuzz_begin and fuzz_end a parser takes at most 64 MiB beyond the input and one second of CPU, and gives
 * everything back. Files: whatever is opened by a path that ends in a name given to fuzz_file is those bytes (io's seam
 * is replaced); nothing else can be opened but folders. */
#ifndef TIDEMILL_FUZZ_H
#define TIDEMILL_FUZZ_H

#include "base/base.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(cond) ((cond) ? (void)0 : abort())

void fuzz_begin(size_t input_bytes);
void fuzz_end(void);

/* At most 8 at a time; name and bytes are the caller's, until fuzz_end. */
void fuzz_file(const char *name, const void *bytes, size_t n);
/* A folder with an empty file of each of these names (what is asked of the file system itself finds them). */
const char *fuzz_folder(const char *const *names);

#endif

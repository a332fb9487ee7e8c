/* Any bytes as a file of lines, which gzip or Zstandard may have packed. */
#include "fuzz_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_records("f", data, size, (tm_reader_opts){0});
    return 0;
}

/* Any bytes as CSV; the last one chooses the columns' meaning, so that a seed stays a text. */
#include "fuzz_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const theirs[] = {"a", "b"}, *const ours[] = {"messages", "prompt"};
    static const tm_data_columns columns = {theirs, ours, 2};
    if (size == 0) return 0;
    uint8_t how = data[size - 1];
    fuzz_records(how & 1 ? "f.tsv" : "f.csv", data, size - 1, (tm_reader_opts){.columns = how & 2 ? &columns : NULL});
    return 0;
}

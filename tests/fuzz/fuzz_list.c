/* Any bytes as a .json file, and as text: the last one chooses, so that a seed stays a text. */
#include "fuzz_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const theirs[] = {"turns"}, *const ours[] = {"messages"};
    static const tm_data_columns columns = {theirs, ours, 1};
    if (size == 0) return 0;
    uint8_t how = data[size - 1];
    const tm_reader_opts opts = {.sample_by = (tm_sample_by)(how >> 2 & 3) % 3, .columns = how & 2 ? &columns : NULL};
    fuzz_records(how & 1 ? "f.txt" : "f.json", data, size - 1, opts);
    return 0;
}

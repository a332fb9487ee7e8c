/* The examples of format.h and peft.h. */
#include "format/format.h"
#include "format/peft.h"

tm_status source_example(uint64_t first, uint64_t n, float *values) {
    //@ src/format/format.h tm_source *src;
    return TM_OK;
}

tm_status writer_example(uint64_t B, uint64_t S, uint64_t V, const void *logits, uint64_t bytes) {
    //@ src/format/format.h tm_st_writer *w;
    return TM_OK;
}

tm_status merged_example(tm_source **out) {
    tm_adapter_folder *f;
    tm_source *base, *merged;
    tm_buf path = {0};
    //@ src/format/peft.h TM_TRY(tm_adapter_folder_open
    *out = merged;
    return TM_OK;
}

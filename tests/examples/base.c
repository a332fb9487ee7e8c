/* The examples of base.h. */
#include "base/base.h"

extern bool bad;
extern size_t n;
tm_status open_it(const char *path);
bool read_more(uint64_t *done);

//@ src/base/base.h tm_status load(const char *path) {

void phase_example(uint64_t bytes) {
    tm_phase p;
    uint64_t done = 0;
    //@ src/base/base.h tm_phase_begin(&p, "reading
}

tm_status work(size_t i);
tm_status stop_example(void) {
    //@ src/base/base.h for (size_t i = 0
    return TM_OK;
}

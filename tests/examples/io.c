/* The examples of io.h and run.h. */
#include "io/io.h"
#include "io/run/run.h"

tm_status io_example(void *slab, size_t slab_bytes, uint64_t bytes, void *op);
tm_status io_example(void *slab, size_t slab_bytes, uint64_t bytes, void *op) {
    const tm_io_run_opts run_opts = {0};
    tm_io_req *done[16];
    unsigned n;
    //@ io/io.h tm_io_run *run;
    return TM_OK;
}

tm_status shared_example(const char *dir, const char *beside, const char *key, const char *of);
tm_status shared_example(const char *dir, const char *beside, const char *key, const char *of) {
    tm_io_shared *s;
    bool gone;
    //@ io/run/run.h TM_TRY(tm_io_shared_open(&s, dir));
    return TM_OK;
}

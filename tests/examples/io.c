/* The examples of io.h. */
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

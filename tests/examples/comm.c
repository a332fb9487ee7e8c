/* The examples of comm.h. */
#include "comm/comm.h"
#include "io/io.h"

tm_status comm_example(uint64_t hash, const void *grad, void *mine, const uint64_t *slice_elements,
                       void (*finished)(tm_comm_op *op), void *plan_op, tm_status rc) {
    //@ src/comm/comm.h tm_comm *comm;
    return TM_OK;
}

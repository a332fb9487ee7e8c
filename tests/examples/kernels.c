/* The examples of kernels.h and kernel_table.h. */
#include "kernels/kernel_table.h"
#include "kernels/kernels.h"

tm_status kernels_example(size_t rows, const void *x, const float *weight, void *y) {
    //@ src/kernels/kernels.h TM_TRY(tm_kernels_init(
    return TM_OK;
}

tm_status table_example(tm_gemm_args args) {
    //@ src/kernels/kernel_table.h const tm_kernel_table *k
    return TM_OK;
}

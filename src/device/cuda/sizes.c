/* What plans have to know of this device's kernels without it: part of the program, not of the module. */
#include "device/cuda/sizes.h"

static uint64_t blocks_of(uint64_t n, uint64_t each) {
    return n / each + (n % each != 0);
}

uint64_t cuda_norm_inv_bytes(uint64_t rows) {
    return tm_round_up(rows * sizeof(float), 64);
}

uint64_t cuda_norm_workspace(uint64_t rows, uint64_t n) {
    return cuda_norm_inv_bytes(rows) + tm_round_up(blocks_of(rows, TM_ROW_BLOCK) * n * sizeof(float), 64);
}

uint64_t cuda_attention_workspace(const tm_attention *a, bool backward) {
    return backward ? tm_round_up((uint64_t)a->rows * a->seq * a->heads * sizeof(float), 64) : 0;
}

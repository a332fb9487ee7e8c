/* Sizes of the CUDA device that are known without it (the row "cuda" of device.c). */
#ifndef TIDEMILL_CUDA_SIZES_H
#define TIDEMILL_CUDA_SIZES_H

#include "kernels/kernels.h"

/* Workspaces: other sizes than the host's. */
uint64_t cuda_norm_workspace(uint64_t rows, uint64_t n);
uint64_t cuda_norm_inv_bytes(uint64_t rows); /* the front of it */
uint64_t cuda_attention_workspace(const tm_attention *a, bool backward);

enum {
    /* Rows of a product: each chunk of tokens after the first reads and writes a weight's whole gradient in fp32, 8
     * bytes for 2 * chunk operations; at 650 Tflop/s and 4 TB/s 2,048 rows are 30% of the product's time, 8,192 are 7%.
     */
    CUDA_TOKEN_CHUNK = 8192,
    CUDA_VOCAB_BLOCK = 4096,
    CUDA_SIDE_MIB = 64, /* of the device's memory beside the arena: cuBLASLt's workspace, angles, a counter */
    CUDA_PEERS_WORKSPACE = 16 << 20, /* where there are others to exchange with */
    CUDA_NCCL_MIB = 384,             /* what NCCL takes then: an estimate, not measured */
    CUDA_HOST_MIB = 512,             /* of the host's memory: driver, cuBLASLt, NCCL; an estimate, not measured */
    CUDA_CONTEXT_MIB = 640,          /* what the driver and cuBLASLt take for themselves: an estimate, not measured */
};

#endif

/* NCCL, loaded at run time: the functions as a table, prototypes and constants written out as in driver.h. Only what
 * moves bytes between two devices is used: sums are ours, in the order that they have everywhere. */
#ifndef TIDEMILL_CUDA_NCCL_H
#define TIDEMILL_CUDA_NCCL_H

#include "device/cuda/lt.h"

#define CUDA_NCCL_NUMBERS(N)                                                                                           \
    N(ncclSuccess, 0)                                                                                                  \
    N(ncclUint8, 1)

#ifdef TIDEMILL_NCCL_HEADERS
#include <nccl.h>
#else
typedef unsigned ncclResult_t, ncclDataType_t;
typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;
enum { CUDA_NCCL_NUMBERS(CUDA_NUMBER) };
#endif

/* Beside these: text, ncclGetErrorString, which returns one. */
#define CUDA_NCCL(F)                                                                                                   \
    F(version, ncclGetVersion, (int *version))                                                                         \
    F(unique_id, ncclGetUniqueId, (ncclUniqueId * id))                                                                 \
    F(init, ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank))                               \
    F(destroy, ncclCommDestroy, (ncclComm_t comm))                                                                     \
    F(give_up, ncclCommAbort, (ncclComm_t comm))                                                                       \
    F(group_start, ncclGroupStart, (void))                                                                             \
    F(group_end, ncclGroupEnd, (void))                                                                                 \
    F(send, ncclSend,                                                                                                  \
      (const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))           \
    F(recv, ncclRecv, (void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))

typedef struct cuda_nccl {
    const char *(*text)(ncclResult_t rc);
#define CUDA_NCCL_FIELD(name, symbol, params) ncclResult_t(*name) params;
    CUDA_NCCL(CUDA_NCCL_FIELD)
#undef CUDA_NCCL_FIELD
} cuda_nccl;

/* NULL: not found, or too old; `why` says what was looked for. Loaded once. */
const cuda_nccl *cuda_nccl_load(const char **why);

#endif

/* Compiled where the toolkit is, and never linked: the prototypes and numbers of driver.h and lt.h, and of nccl.h where
 * NCCL's is, beside the libraries' own. A mismatch does not compile. */
#define TIDEMILL_TOOLKIT_HEADERS
#include "device/cuda/driver.h"
#include "device/cuda/lt.h"
#if __has_include(<nccl.h>)
#define TIDEMILL_NCCL_HEADERS
#include "device/cuda/nccl_table.h"
#endif

extern const cuda_driver cuda_prototypes;
const cuda_driver cuda_prototypes = {
#define SAME(name, symbol, params) .name = symbol,
    CUDA_DRIVER(SAME)
#undef SAME
};
extern const cuda_lt cuda_lt_prototypes;
const cuda_lt cuda_lt_prototypes = {.version = cublasLtGetVersion,
#define SAME(name, symbol, params) .name = symbol,
                                    CUDA_LT(SAME)
#undef SAME
};

#ifdef TIDEMILL_NCCL_HEADERS
extern const cuda_nccl cuda_nccl_prototypes;
const cuda_nccl cuda_nccl_prototypes = {.text = ncclGetErrorString,
#define SAME(name, symbol, params) .name = symbol,
                                        CUDA_NCCL(SAME)
#undef SAME
};
_Static_assert(sizeof(ncclUniqueId) == 128, "an id's bytes");
#endif

#define SAME(name, value) _Static_assert((name) == (value), #name);
CUDA_DRIVER_NUMBERS(SAME)
CUDA_LT_NUMBERS(SAME)
#ifdef TIDEMILL_NCCL_HEADERS
CUDA_NCCL_NUMBERS(SAME)
#endif
#undef SAME

/* Compiled where the toolkit is, and never linked: the prototypes and numbers of driver.h and lt.h beside the toolkit's
 * own. A mismatch does not compile. */
#define TIDEMILL_TOOLKIT_HEADERS
#include "device/cuda/driver.h"
#include "device/cuda/lt.h"

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

#define SAME(name, value) _Static_assert((name) == (value), #name);
CUDA_DRIVER_NUMBERS(SAME)
CUDA_LT_NUMBERS(SAME)
#undef SAME

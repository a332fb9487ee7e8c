/* What is said of one module's adapter: of those who choose modules by name, and of the model that has them. */
#ifndef TIDEMILL_BASE_ADAPTER_SPEC_H
#define TIDEMILL_BASE_ADAPTER_SPEC_H

#include <stdbool.h>
#include <stdint.h>

/* y = x W^T + scale (x A^T) B^T, A [rank, in], B [out, rank]. */
typedef struct tm_adapter_spec {
    uint32_t rank;
    double scale; /* alpha / rank, or alpha / sqrt(rank) */
    bool dora;
    bool pissa; /* A and B begin as the base's largest singular values; as what they begin is subtracted from it */
    double
        init_std; /* of A: normal; 0: uniform(-1/sqrt(in), 1/sqrt(in)), as PEFT's (kaiming, a = sqrt 5). B begins at 0 */
} tm_adapter_spec;

#endif

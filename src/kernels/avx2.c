#include "kernels/kernels_internal.h"

void kernels_avx2_override(kernels_table *t) {
    t->isa = "avx2";
}

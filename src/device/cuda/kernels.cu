/* All kernels, one translation unit: nvcc makes one fat binary of it, the tests one object for the host. */
#include "rows.cuh"
#include "norm.cuh"
#include "vocabulary.cuh"
#include "optim.cuh"
#include "gemm.cuh"
#include "attention.cuh"
#include "attention_cache.cuh"
#include "attention_mma.cuh"

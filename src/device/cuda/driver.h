/* The driver, loaded at run time: its functions as a table, which tests replace by a fake (tests/cuda/fake_driver.c).
 * Types and prototypes are written out so that nothing here needs the toolkit; where the toolkit is, prototypes.c
 * compares them with its headers. */
#ifndef TIDEMILL_CUDA_DRIVER_H
#define TIDEMILL_CUDA_DRIVER_H

#include "base/base.h"

/* Numbers of the toolkit's headers. */
#define CUDA_NUMBER(name, value) name = (value),
#define CUDA_DRIVER_NUMBERS(N)                                                                                         \
    N(CUDA_SUCCESS, 0)                                                                                                 \
    N(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                                     \
    N(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                                               \
    N(CUDA_ERROR_INVALID_PTX, 218)                                                                                     \
    N(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                                                  \
    N(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                                                \
    N(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                                                \
    N(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)                                                              \
    N(CU_STREAM_NON_BLOCKING, 1)                                                                                       \
    N(CU_EVENT_BLOCKING_SYNC, 1)                                                                                       \
    N(CU_EVENT_DISABLE_TIMING, 2)                                                                                      \
    N(CU_CTX_SCHED_BLOCKING_SYNC, 4)                                                                                   \
    N(CU_MEMHOSTREGISTER_PORTABLE, 1)

#ifdef TIDEMILL_TOOLKIT_HEADERS
#include <cuda.h>
#else
typedef unsigned CUresult; /* 0: done */
typedef int CUdevice;
typedef unsigned CUdevice_attribute, CUfunction_attribute;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
enum { CUDA_DRIVER_NUMBERS(CUDA_NUMBER) };
#endif

/* name, symbol, parameters */
#define CUDA_DRIVER(F)                                                                                                 \
    F(init, cuInit, (unsigned flags))                                                                                  \
    F(driver_version, cuDriverGetVersion, (int *version))                                                              \
    F(error_name, cuGetErrorName, (CUresult error, const char **name))                                                 \
    F(error_text, cuGetErrorString, (CUresult error, const char **text))                                               \
    F(device_count, cuDeviceGetCount, (int *n))                                                                        \
    F(device_get, cuDeviceGet, (CUdevice * device, int i))                                                             \
    F(device_name, cuDeviceGetName, (char *name, int cap, CUdevice device))                                            \
    F(device_bus, cuDeviceGetPCIBusId, (char *id, int cap, CUdevice device))                                           \
    F(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                           \
    F(device_attribute, cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))             \
    F(context_flags, cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags))                                 \
    F(context_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                \
    F(context_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                \
    F(context_use, cuCtxSetCurrent, (CUcontext context))                                                               \
    F(context_now, cuCtxGetCurrent, (CUcontext * context))                                                             \
    F(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total))                                             \
    F(memory_alloc, cuMemAlloc_v2, (CUdeviceptr * p, size_t bytes))                                                    \
    F(memory_free, cuMemFree_v2, (CUdeviceptr p))                                                                      \
    F(host_register, cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags))                                    \
    F(host_unregister, cuMemHostUnregister, (void *p))                                                                 \
    F(copy_in, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                \
    F(copy_out, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                     \
    F(copy_within, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))            \
    F(memory_set, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))               \
    F(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags))                                              \
    F(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                                           \
    F(stream_wait, cuStreamSynchronize, (CUstream stream))                                                             \
    F(event_create, cuEventCreate, (CUevent * event, unsigned flags))                                                  \
    F(event_destroy, cuEventDestroy_v2, (CUevent event))                                                               \
    F(event_record, cuEventRecord, (CUevent event, CUstream stream))                                                   \
    F(event_wait, cuEventSynchronize, (CUevent event))                                                                 \
    F(module_load, cuModuleLoadData, (CUmodule * module, const void *image))                                           \
    F(module_unload, cuModuleUnload, (CUmodule module))                                                                \
    F(module_function, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))                \
    F(function_set, cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))              \
    F(launch, cuLaunchKernel,                                                                                          \
      (CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,                \
       unsigned threads_z, unsigned shared_bytes, CUstream stream, void **params, void **extra))

typedef struct cuda_driver {
#define CUDA_DRIVER_FIELD(name, symbol, params) CUresult(*name) params;
    CUDA_DRIVER(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
} cuda_driver;

/* TM_EUNSUPPORTED: no driver, or one too old, or it finds no device; says which. Loaded once. */
TM_MUST_USE tm_status cuda_driver_load(const cuda_driver **out);
/* Records TM_ENOMEM or TM_EIO with the driver's own words where rc is not success. */
TM_MUST_USE tm_status cuda_check(const cuda_driver *v, CUresult rc, const char *what);

/* Who holds memory of the device on that bus, for a message: "python 3.1 GiB, Xorg 0.2 GiB"; "" where it cannot be
 * known (no management library, or other people's processes). */
void cuda_holders(const char *bus, char *out, size_t cap);

#endif

/* The kernels' fat binary as bytes of this module; CUDA_IMAGE_FILE is what nvcc made, CUDA_TOOLKIT its version,
 * CUDA_ARCHITECTURES what it was told to make code for. */
#include "device/cuda/cuda_device.h"

const char cuda_toolkit[] = CUDA_TOOLKIT;
const char cuda_architectures[] = CUDA_ARCHITECTURES;

__asm__(".section .rodata\n"
        ".balign 16\n"
        ".globl cuda_image\n"
        ".hidden cuda_image\n"
        "cuda_image:\n"
        ".incbin \"" CUDA_IMAGE_FILE "\"\n"
        ".previous\n");

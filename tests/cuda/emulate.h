/* CUDA's blocks on the host: the other side of src/device/cuda/layer.cuh.
 *
 * A block's threads are fibers of one thread of the host. A fiber runs until it reaches a barrier or an exchange of its
 * warp, or ends; then the next one runs. In which order is chosen by emulate_order: what needs a barrier and has none
 * gives other bits in another order (tests/cuda run every kernel in several). Each array of shared memory is an
 * allocation of its own with NaN in it, so that a sanitizer sees what strays and a result shows what was never written;
 * a block that asks for more than its launch gave is stopped, and so is one whose threads part at a barrier. */
#ifndef TIDEMILL_EMULATE_H
#define TIDEMILL_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum emulate_order_of { EMULATE_FORWARD, EMULATE_BACKWARD, EMULATE_SHUFFLED, EMULATE_ORDERS } emulate_order_of;
void emulate_order(emulate_order_of order);

typedef void (*emulate_kernel)(const void *args);
void emulate_launch(emulate_kernel kernel, const void *args, const uint32_t grid[3], uint32_t threads,
                    uint32_t shared_bytes);
/* The kernel of that number (enum cuda_kernel), compiled for the host. */
emulate_kernel emulate_kernel_of(unsigned kernel);

/* ---- for the layer ---- */

typedef struct emulate_place {
    uint32_t thread, threads, block[3], grid[3];
} emulate_place;
extern emulate_place emulate_here;
void emulate_barrier(void);
uint32_t emulate_shuffle(uint32_t x, uint32_t from_lane);
/* All 32 lanes give `bytes`, and get everyone's, lane by lane. Valid until the lane's next exchange. */
const void *emulate_exchange(const void *mine, size_t bytes);
/* Bytes that are there when this thread waits for all of its own; from NULL: zeros. One that ends first is stopped. */
void emulate_copy(void *to, const void *from, uint32_t bytes);
void emulate_copy_wait(void);
void emulate_stop(const char *why); /* does not return */
/* The i-th array that each thread of the block asks for. */
void *emulate_shared(uint32_t i, size_t bytes);

#ifdef __cplusplus
}

#include <math.h>
#include <string.h>

#define DEVICE static inline __attribute__((unused))
#define UNROLL
#define UNROLL_4
#define ROLLED
#define KERNEL(name, args, ...)                                                                                        \
    static void body_##name(const args a);                                                                             \
    extern "C" void tidemill_##name(const void *p);                                                                    \
    extern "C" void tidemill_##name(const void *p) {                                                                   \
        body_##name(*static_cast<const args *>(p));                                                                    \
    }                                                                                                                  \
    static void body_##name(const args a)

DEVICE uint32_t thread_of_block() {
    return emulate_here.thread;
}
DEVICE uint32_t threads_of_block() {
    return emulate_here.threads;
}
DEVICE uint32_t block_x() {
    return emulate_here.block[0];
}
DEVICE uint32_t block_y() {
    return emulate_here.block[1];
}
DEVICE uint32_t block_z() {
    return emulate_here.block[2];
}
DEVICE uint32_t blocks_x() {
    return emulate_here.grid[0];
}
DEVICE void barrier() {
    emulate_barrier();
}
DEVICE uint32_t shuffle_xor(uint32_t x, unsigned mask) {
    return emulate_shuffle(x, (emulate_here.thread % 32) ^ mask);
}
DEVICE float shuffle_xor(float x, unsigned mask) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = shuffle_xor(bits, mask);
    memcpy(&x, &bits, 4);
    return x;
}
DEVICE uint32_t ballot_of(bool x) {
    uint32_t mine = x, mask = 0;
    const uint32_t *all = static_cast<const uint32_t *>(emulate_exchange(&mine, sizeof mine));
    for (uint32_t l = 0; l < 32; l++) mask |= all[l] << l;
    return mask;
}
DEVICE uint32_t ones_of(uint32_t x) {
    return (uint32_t)__builtin_popcount(x);
}
template <typename X> DEVICE void store_whole(const X &x, X *y) {
    *y = x;
}
DEVICE void atomic_add(unsigned long long *to, unsigned long long x) {
    *to += x;
}

struct shared_pool {
    uint32_t taken = 0;
    template <typename T> T *take(uint32_t n) { return static_cast<T *>(emulate_shared(taken++, n * sizeof(T))); }
};
#endif
#endif

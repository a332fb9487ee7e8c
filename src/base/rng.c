/* Counter-based random numbers: a value is a function of (key, counter), never of how many came before. */
#include "base/base.h"

#include <math.h>

/* Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3, with the multipliers
 * and Weyl constants of Philox4x32. */
void tm_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* 53 bits, in (0, 1]: the logarithm below must stay finite. */
static double unit_open_zero(uint32_t hi, uint32_t lo) {
    uint64_t bits = ((uint64_t)hi << 32 | lo) >> 11;
    return (double)(bits + 1) * 0x1p-53;
}

void tm_philox_normal2(uint64_t key, uint64_t block, double out[2]) {
    uint32_t u[4];
    tm_philox(key, 0, block, u);
    double radius = sqrt(-2.0 * log(unit_open_zero(u[0], u[1])));
    double angle = 6.283185307179586476925286766559 * unit_open_zero(u[2], u[3]);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

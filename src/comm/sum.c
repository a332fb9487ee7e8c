/* Encoding for the wire, and sums in the fixed tree. */
#include "comm/sum_internal.h"

#include <string.h>

/* Values summed at a time: three of these stay in the first cache. A multiple of TM_COMM_QUANT_BLOCK. */
enum { SPAN = 1024 };

static float widen(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* To nearest even; NaN stays a quiet NaN. */
static uint16_t narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16, quiet = bits >> 16 | 0x40U;
    return (uint16_t)((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

bool comm_quantised(tm_comm_wire wire) {
    return wire == TM_COMM_WIRE_Q8 || wire == TM_COMM_WIRE_Q4;
}

void comm_encode(tm_comm_wire wire, const float *x, uint64_t n, void *out) {
    uint16_t *half = out;
    if (comm_quantised(wire)) {
        tm_comm_quantise(wire, x, n, out);
    } else if (wire == TM_COMM_WIRE_BF16) {
        for (uint64_t i = 0; i < n; i++) half[i] = narrow(x[i]);
    } else if (n) {
        memcpy(out, x, n * sizeof *x);
    }
}

void comm_decode(tm_comm_wire wire, const void *in, uint64_t n, uint64_t at, uint64_t m, float *x) {
    const uint16_t *half = in;
    if (comm_quantised(wire)) {
        comm_dequantise_part(wire, in, n, at, m, x);
    } else if (wire == TM_COMM_WIRE_BF16) {
        for (uint64_t i = 0; i < m; i++) x[i] = widen(half[at + i]);
    } else if (m) {
        memcpy(x, (const float *)in + at, m * sizeof *x);
    }
}

void comm_encode_bf16(tm_comm_wire wire, const uint16_t *x, uint64_t n, void *out) {
    float wide[TM_COMM_QUANT_BLOCK];
    for (uint64_t at = 0; at < n; at += TM_COMM_QUANT_BLOCK) {
        uint64_t m = tm_min_u64(TM_COMM_QUANT_BLOCK, n - at);
        for (uint64_t i = 0; i < m; i++) wide[i] = widen(x[at + i]);
        comm_quantise_part(wire, wide, n, at, m, out);
    }
}

void comm_decode_bf16(tm_comm_wire wire, const void *in, uint64_t n, uint16_t *x) {
    float wide[SPAN];
    for (uint64_t at = 0; at < n; at += SPAN) {
        uint64_t m = tm_min_u64(SPAN, n - at);
        comm_dequantise_part(wire, in, n, at, m, wide);
        for (uint64_t i = 0; i < m; i++) x[at + i] = narrow(wide[i]);
    }
}

static void add(float *restrict sum, const float *restrict x, uint64_t m) {
    for (uint64_t i = 0; i < m; i++) sum[i] += x[i];
}

/* Values [at, at + m) of a source: where they lie, or decoded into `room`. */
static const float *values(tm_comm_wire wire, const void *source, uint64_t n, uint64_t at, uint64_t m, float *room) {
    if (wire == TM_COMM_EXACT) return (const float *)source + at;
    comm_decode(wire, source, n, at, m, room);
    return room;
}

void comm_sum_tree(tm_comm_wire wire, const void *const *source, uint32_t plain, const uint32_t *first, uint32_t nodes,
                   uint64_t n, float *out) {
    float total[SPAN], node[SPAN], room[SPAN];
    for (uint64_t at = 0; at < n; at += SPAN) {
        uint64_t m = tm_min_u64(SPAN, n - at);
        for (uint32_t k = 0; k < nodes; k++) {
            float *sum = k ? node : total;
            for (uint32_t i = first[k]; i < first[k + 1]; i++) {
                const float *x = values(i == plain ? TM_COMM_EXACT : wire, source[i], n, at, m, room);
                if (i == first[k])
                    memcpy(sum, x, m * sizeof *x); /* not 0 + x: that would lose a -0 */
                else
                    add(sum, x, m);
            }
            if (k) add(total, node, m);
        }
        memcpy(out + at, total, m * sizeof *out); /* last: out may be a source */
    }
}

void comm_reduce_f64(tm_comm_reduce how, double *into, const double *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        double a = into[i], b = x[i];
        if (how == TM_COMM_SUM || a != a || b != b)
            into[i] = a + b;
        else
            into[i] = how == TM_COMM_MIN ? (b < a ? b : a) : (b > a ? b : a);
    }
}

void comm_reduce_u64(tm_comm_reduce how, uint64_t *into, const uint64_t *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (how == TM_COMM_SUM)
            into[i] += x[i];
        else
            into[i] = how == TM_COMM_MIN ? tm_min_u64(into[i], x[i]) : tm_max_u64(into[i], x[i]);
    }
}

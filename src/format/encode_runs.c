/* Many values to bytes, runs of them side by side, and what they lose by it. */
#include "format/export_internal.h"

#include <math.h>

enum { RUN = 4096 /* elements: whole blocks of any type */ };

static tm_status encode(tm_fmt fmt, const float *values, size_t n, const tm_encode_by *by, uint8_t *out) {
    return by->importance && tm_block_is_weighed(fmt) ? tm_block_encode(fmt, values, n, by, out)
                                                      : tm_fmt_encode(fmt, values, n, out);
}

static tm_status encode_one(tm_fmt fmt, const float *values, size_t n, const tm_encode_by *by, uint8_t *out,
                            tm_lost *lost) {
    float back[RUN];
    *lost = (tm_lost){0};
    TM_TRY(encode(fmt, values, n, by, out));
    tm_fmt_decode(fmt, out, n, back);
    for (size_t i = 0; i < n; i++) {
        double v = (double)values[i], d = v - (double)back[i];
        lost->values += v * v;
        lost->differences += d * d;
    }
    return TM_OK;
}

/* Sums of runs are added in order: the same for any number of threads. What fails fails again here, where its error is
 * seen. */
tm_status tm_encode_runs_by(tm_fmt fmt, const float *values, uint64_t n, const tm_encode_by *by, void *out,
                            tm_lost *lost) {
    enum { AT_ONCE = 64 };
    const tm_fmt_info *t = tm_fmt_get(fmt);
    for (uint64_t first = 0; first < n; first += AT_ONCE * RUN) {
        tm_lost part[AT_ONCE];
        bool failed[AT_ONCE] = {false};
        int64_t runs = (int64_t)tm_min_u64((n - first + RUN - 1) / RUN, AT_ONCE);
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < runs; r++) {
            uint64_t at = first + (uint64_t)r * RUN;
            const tm_encode_by here = {by->importance, by->width, by->first + at};
            failed[r] = encode_one(fmt, values + at, tm_min_u64(RUN, n - at), &here,
                                   (uint8_t *)out + at / t->block * t->block_bytes, &part[r]) != TM_OK;
            if (failed[r]) tm_error_clear();
        }
        for (int64_t r = 0; r < runs; r++) {
            uint64_t at = first + (uint64_t)r * RUN;
            const tm_encode_by here = {by->importance, by->width, by->first + at};
            if (failed[r]) return encode(fmt, values + at, tm_min_u64(RUN, n - at), &here, out);
            lost->values += part[r].values;
            lost->differences += part[r].differences;
        }
    }
    return TM_OK;
}

tm_status tm_encode_runs(tm_fmt fmt, const float *values, uint64_t n, void *out, tm_lost *lost) {
    return tm_encode_runs_by(fmt, values, n, &(tm_encode_by){0}, out, lost);
}

double tm_lost_error(const tm_lost *lost) {
    return lost->values > 0 ? sqrt(lost->differences / lost->values) : 0;
}

/* Numbers as text: sizes with units, shortest decimals. The decimal point is '.' in every locale. And a median. */
#include "base/base_internal.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
    const char *name;
    uint64_t bytes;
} unit;

static bool unit_bytes(const char *name, uint64_t *bytes) {
    static const unit units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", 1ull << 10},
        {"MiB", 1ull << 20},
        {"GiB", 1ull << 30},
        {"TiB", 1ull << 40},
        {"K", 1ull << 10}, /* by itself as cgroups, systemd, Slurm and dd have it */
        {"M", 1ull << 20},
        {"G", 1ull << 30},
        {"T", 1ull << 40},
        {"k", 1ull << 10},
        {"m", 1ull << 20},
        {"g", 1ull << 30},
        {"t", 1ull << 40},
        {"kB", 1000},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
    };
    for (size_t i = 0; i < TM_COUNT(units); i++) {
        if (strcmp(name, units[i].name) == 0) {
            *bytes = units[i].bytes;
            return true;
        }
    }
    return false;
}

/* "12" or "1.5": the fraction is scaled in whole bytes, rounded down. */
static bool scale_decimal(const char *text, size_t digits, const char *fraction, size_t fraction_digits, uint64_t by,
                          uint64_t *out) {
    uint64_t whole = 0, part = 0;
    for (size_t i = 0; i < digits; i++) {
        if (!tm_mul_u64(whole, 10, &whole) || !tm_add_u64(whole, (uint64_t)(text[i] - '0'), &whole)) return false;
    }
    for (size_t i = fraction_digits; i-- > 0;) {
        part = (by * (uint64_t)(fraction[i] - '0') + part) / 10; /* by < 2^40 */
    }
    return tm_mul_u64(whole, by, &whole) && tm_add_u64(whole, part, out);
}

tm_status tm_parse_size(const char *text, uint64_t *bytes) {
    size_t digits = strspn(text, "0123456789");
    bool point = text[digits] == '.';
    const char *fraction = text + digits + point;
    size_t fraction_digits = point ? strspn(fraction, "0123456789") : 0;
    const char *name = fraction + fraction_digits;
    name += strspn(name, " ");
    uint64_t by = 0;
    if (!digits || (point && !fraction_digits) || !unit_bytes(name, &by) || (point && by == 1)) {
        return tm_fail(TM_EINPUT, "\"%.80s\" is not a size; write bytes or a number with KiB, MiB, GiB, kB, MB or GB",
                       text);
    }
    if (!scale_decimal(text, digits, fraction, fraction_digits, by, bytes)) {
        return tm_fail(TM_EINPUT, "size \"%.80s\" is too large", text);
    }
    return TM_OK;
}

const char *tm_format_size(uint64_t bytes, char *buf, size_t cap) {
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(buf, cap, "%u B", (unsigned)bytes);
        return buf;
    }
    double x = (double)bytes / 1024;
    size_t i = 0;
    /* 1023.995 would print as 1024.00 */
    while (x >= 1023.995 && i + 1 < TM_COUNT(names)) {
        x /= 1024;
        i++;
    }
    snprintf(buf, cap, "%.2f %s", x, names[i]);
    return buf;
}

/* ---- shortest decimals ------------------------------------------------------------------------------------------ */

static locale_t c_locale;
static void make_c_locale(void) {
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Switches this thread to the C locale; the result goes to uselocale when done. */
static locale_t enter_c_locale(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_c_locale);
    return uselocale(c_locale);
}

double base_strtod(const char *text) {
    locale_t before = enter_c_locale();
    double x = strtod(text, NULL);
    uselocale(before);
    return x;
}

/* A decimal of DBL_DIG digits survives decimal -> double -> decimal, so if a decimal that short reads back as x, %.15g
 * prints it (without its trailing zeros). Subnormals have fewer digits, so they are tried from 1. */
const char *tm_format_double(double x, char *buf, size_t cap) {
    if (!isfinite(x)) {
        snprintf(buf, cap, "null");
        return buf;
    }
    locale_t before = enter_c_locale();
    for (int digits = x != 0 && fabs(x) < DBL_MIN ? 1 : DBL_DIG; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(buf, cap, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) break;
    }
    uselocale(before);
    return buf;
}

const char *tm_format_float(float x, char *buf, size_t cap) {
    if (!isfinite(x)) {
        snprintf(buf, cap, "null");
        return buf;
    }
    locale_t before = enter_c_locale();
    for (int digits = x != 0 && fabsf(x) < FLT_MIN ? 1 : FLT_DIG; digits <= FLT_DECIMAL_DIG; digits++) {
        snprintf(buf, cap, "%.*g", digits, (double)x);
        if (strtof(buf, NULL) == x) break;
    }
    uselocale(before);
    return buf;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tm_median(double *v, size_t n) {
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

size_t tm_edit_distance(const char *a, const char *b) {
    enum { LONGEST = 64 };
    size_t row[LONGEST + 1], na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST) return SIZE_MAX / 2;
    for (size_t k = 0; k <= nb; k++) row[k] = k;
    for (size_t i = 0; i < na; i++) {
        size_t corner = row[0];
        row[0] = i + 1;
        for (size_t k = 0; k < nb; k++) {
            size_t above = row[k + 1];
            row[k + 1] = tm_min_u64(tm_min_u64(above, row[k]) + 1, corner + (a[i] != b[k]));
            corner = above;
        }
    }
    return row[nb];
}

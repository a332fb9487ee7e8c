#include "machine.h"

#include "base/base.h"
#include "tests/support/forced.h"
#include "tests/support/skip.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TIDEMILL_SANITIZED
enum { PASSES = 1 }; /* slow, and the order of threads changes no address */
#else
enum { PASSES = 3 };
#endif
enum { MOST_BLOCKS = 8192, MOST_TAKES = 4096 };

static void *given[MOST_BLOCKS], *kept[MOST_BLOCKS];
static size_t n_given, n_kept;
static uint64_t seen[MOST_TAKES], random_at;
static size_t n_seen, n_takes;
static int pass_now;

static void forget(void) {
    for (size_t i = 0; i < n_given; i++) machine_free(given[i]);
    for (size_t i = 0; i < n_kept; i++) free(kept[i]);
    n_given = n_kept = 0;
}

bool pass_begin(int pass) {
    if (pass > 0) {
        assert_int_equal(machine_queue()->status, TM_OK);
        assert_true(n_takes > 0); /* or nothing was looked at */
    }
    forget();
    pass_now = pass;
    n_takes = 0;
    random_at = 0;
    if (pass == 0) n_seen = 0;
    if (pass < PASSES) machine_pass(pass);
    return pass < PASSES;
}

void *give_at(const void *host, size_t bytes, size_t off) {
    assert_true(n_given < MOST_BLOCKS);
    char *p = machine_alloc(bytes + off);
    char *fill = scratch(bytes + off);
    memset(fill, 0xff, bytes + off);
    if (host) memcpy(fill + off, host, bytes);
    machine_write(p, fill, bytes + off);
    given[n_given++] = p;
    return p + off;
}
void *give(const void *host, size_t bytes) {
    return give_at(host, bytes, 0);
}

void take(const void *device, void *host, size_t bytes) {
    machine_read(host, device, bytes);
    uint64_t hash = tm_hash64(host, bytes, 0);
    assert_true(n_takes < MOST_TAKES);
    if (pass_now == 0)
        seen[n_seen++] = hash;
    else if (seen[n_takes] != hash)
        fail_msg("pass %d gives other bits than the first (result %zu)", pass_now, n_takes);
    n_takes++;
}

void *scratch(size_t bytes) {
    assert_true(n_kept < MOST_BLOCKS);
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    kept[n_kept++] = p;
    return p;
}

uint32_t random_below(uint32_t n) {
    uint32_t r[4];
    tm_philox(11, 0, random_at++, r);
    return r[0] % n;
}

float *random_floats(size_t n, float size) {
    float *x = scratch(n * sizeof *x);
    uint32_t r[4];
    for (size_t i = 0; i < n; i++) {
        tm_philox(11, 1, random_at++, r);
        x[i] = size * (float)((double)r[0] / 2147483648.0 - 1.0);
    }
    return x;
}

float *odd_floats(size_t n) {
    static const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7fc00001, 0xffa00000, 0x00000001, 0x807fffff, 0x00000000,
                                    0x80000000, 0x7f7fffff, 0xff7fffff, 0x3f7f8000, 0x3f808000, 0x477fefff, 0x477ff000,
                                    0x33000000, 0x33000001, 0x387fe000, 0x38800000, 0x7f7f8000, 0x33c00000};
    float *x = random_floats(n, 4);
    for (size_t i = 0; i < n; i += 3) memcpy(&x[i], &bits[i / 3 % TM_COUNT(bits)], 4);
    return x;
}

size_t elem_size(tm_elem t) {
    return t == TM_ELEM_F32 ? 4 : 2;
}

/* By the CPU's kernels: clang 14 knows no half precision on most CPUs. */
void *stored(tm_elem t, float *x, size_t n) {
    void *out = scratch(n * elem_size(t));
    if (t == TM_ELEM_F32)
        memcpy(out, x, n * sizeof *x);
    else if (t == TM_ELEM_BF16)
        tm_narrow(x, out, n);
    else
        tm_narrow_f16(x, out, n);
    widened(t, out, x, n);
    return out;
}
void widened(tm_elem t, const void *x, float *y, size_t n) {
    if (t == TM_ELEM_F32)
        memcpy(y, x, n * sizeof *y);
    else if (t == TM_ELEM_BF16)
        tm_widen(x, y, n);
    else
        tm_widen_f16(x, y, n);
}

void near_all(const char *what, const float *got, const float *want, const float *size, size_t n, double rel,
              double abs) {
    for (size_t i = 0; i < n; i++) {
        double g = (double)got[i], w = (double)want[i], s = size ? (double)size[i] : fabs(w);
        bool same = (isnan(g) && isnan(w)) || g == w || fabs(g - w) <= rel * s + abs;
        if (!same)
            fail_msg("%s[%zu]: %.9g, expected %.9g (off by %.3g, allowed %.3g)", what, i, g, w, g - w, rel * s + abs);
    }
}

void same_floats(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        if (memcmp(&got[i], &want[i], 4) != 0)
            fail_msg("%s[%zu]: %a, expected %a", what, i, (double)got[i], (double)want[i]);
    }
}

void same_bytes(const char *what, const void *got, const void *want, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)got)[i] != ((const unsigned char *)want)[i])
            fail_msg("%s: byte %zu of %zu is %02x, expected %02x", what, i, bytes, ((const unsigned char *)got)[i],
                     ((const unsigned char *)want)[i]);
}

int run_group(const char *name, const struct CMUnitTest *tests, size_t n) {
    const char *missing = machine_open();
    if (missing) {
        TEST_SKIP_PROGRAM("%s", missing);
    }
    setenv("TIDEMILL_ISA", "ref", 1);
    drop_products_of_one_column();
    if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) {
        fprintf(stderr, "%s\n", tm_error_get()->text);
        return 1;
    }
    (void)cuda_use_queue(machine_queue());
    int failed = _cmocka_run_group_tests(name, tests, n, NULL, NULL);
    forget();
    machine_close();
    tm_kernels_close();
    return failed;
}

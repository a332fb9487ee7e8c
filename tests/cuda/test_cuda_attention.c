/* Attention forward, backward and over a cache of keys and values beside the CPU's `ref`, on odd lengths, heads,
 * windows and masks. */
#include "machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F16 ((tm_elem)CUDA_F16)
static tm_elem host_type(tm_elem t) {
    return t == F16 ? TM_ELEM_F32 : t;
}

typedef struct attention_case {
    uint32_t rows, seq, heads, kv_heads, head_dim, window;
    bool masked, rotated;
} attention_case;

static const attention_case cases[] = {
    {1, 1, 1, 1, 16, 0, false, false},    {2, 63, 2, 1, 64, 0, false, true},    {1, 64, 2, 2, 16, 5, false, true},
    {1, 65, 3, 1, 16, 0, true, false},    {2, 130, 2, 1, 16, 70, true, true},   {1, 97, 2, 1, 128, 0, false, true},
    {1, 97, 1, 1, 80, 64, false, true},   {1, 66, 1, 1, 256, 0, true, true},    {2, 100, 2, 1, 64, 37, true, true},
    {1, 40, 2, 1, 6, 3, true, true},      {1, 201, 2, 1, 64, 0, false, true},   {1, 161, 4, 2, 128, 0, false, false},
    {1, 230, 2, 2, 64, 99, false, false}, {1, 163, 2, 1, 128, 40, false, true},
};

typedef struct sides { /* the same on the host and on the device */
    tm_attention host, device;
} sides;

static uint64_t qkv_columns(const attention_case *c) {
    return (c->heads + 2 * c->kv_heads) * (uint64_t)c->head_dim;
}

static uint8_t *random_mask(const attention_case *c) {
    uint8_t *m = scratch((size_t)c->rows * c->seq);
    for (uint32_t i = 0; i < c->rows * c->seq; i++) m[i] = random_below(3) > 0;
    m[0] = 0; /* the first query sees nothing */
    return m;
}

/* Numbers of type t for the device; for the host too, but fp32 where it has no kernels of that type. */
static void put(tm_elem t, float *x, uint64_t n, const void **host, const void **device) {
    const void *typed = stored(t, x, n);
    *device = give(typed, n * elem_size(t));
    *host = host_type(t) == t ? typed : x;
}

static sides prepare(tm_elem t, const attention_case *c, float size, tm_rope *rope) {
    uint64_t used = (uint64_t)c->rows * c->seq, padded = tm_round_up(used, 64), e = elem_size(t);
    uint64_t nq = padded * qkv_columns(c), no = padded * c->heads * c->head_dim, nl = padded * c->heads;
    sides s;
    s.device = (tm_attention){.type = t, .rows = c->rows, .seq = c->seq, .padded = padded, .heads = c->heads};
    s.device.kv_heads = c->kv_heads, s.device.head_dim = c->head_dim, s.device.window = c->window;
    s.device.scale = (float)(1 / sqrt((double)c->head_dim));
    s.device.rope = rope;
    s.host = s.device;
    s.host.type = host_type(t);
    const void *host, *device;
    put(t, random_floats(nq, size), nq, &host, &device);
    put(t, random_floats(no, 1), no, &s.host.d_o, &s.device.d_o);
    s.host.o = scratch(no * 4), s.device.o = give(NULL, no * e);
    s.host.lse = scratch(nl * 4), s.device.lse = give(NULL, nl * 4);
    tm_attention_fuse(&s.host, host, scratch(nq * 4)), tm_attention_fuse(&s.device, device, give(NULL, nq * e));
    if (c->masked) s.host.key_mask = random_mask(c), s.device.key_mask = give(s.host.key_mask, used);
    s.host.workspace = scratch(tm_attention_workspace(&s.host, true) + tm_attention_workspace(&s.host, false));
    s.device.workspace = give(NULL, cuda_attention_workspace(&s.device, true));
    return s;
}

static void compare(const char *what, tm_elem t, const void *device, const void *host, uint64_t n, double rel,
                    double abs) {
    void *got = scratch(n * elem_size(t));
    float *g = scratch(n * 4), *w = scratch(n * 4);
    take(device, got, n * elem_size(t));
    widened(t, got, g, n), widened(host_type(t), host, w, n);
    near_all(what, g, w, NULL, n, rel, abs);
}

/* The host's o to the device: rounded ones may differ by a unit, which delta would carry on. */
static void same_output(tm_elem t, const sides *s, uint64_t n) {
    float *wide = scratch(n * 4);
    widened(host_type(t), s->host.o, wide, n);
    machine_write(s->device.o, stored(t, wide, n), n * elem_size(t));
    if (host_type(t) != t) memcpy(s->host.o, wide, n * 4);
}

static void run_case(tm_elem t, const attention_case *c, float size) {
    tm_rope rope;
    if (c->rotated) {
        tm_rope_frequencies(&rope, c->head_dim, 10000);
        assert_int_equal(tm_rope_fill(&rope, 100), TM_OK); /* fewer than the longest has */
    }
    sides s = prepare(t, c, size, c->rotated ? &rope : NULL);
    uint64_t no = s.host.padded * c->heads * c->head_dim, nq = s.host.padded * qkv_columns(c);
    double grows = (double)size * (double)size; /* as an exponent's rounding does with it */
    double unit = t == TM_ELEM_F32 ? 0 : t == TM_ELEM_BF16 ? 0x1p-8 : 0x1p-11, rel = grows * (2 * unit + 1e-5);
    /* with tensor cores what is multiplied is rounded too: as much as the sum of sizes, of some units each */
    bool rounded = machine_queue()->tensor_cores && unit > 0 && (c->head_dim == 64 || c->head_dim == 128);
    double abs = rounded ? unit : 0;
    tm_attention_forward(&s.host);
    cuda_attention_forward(&s.device);
    compare("o", t, s.device.o, s.host.o, no, rel, 2e-6 * grows + abs);
    compare("lse", TM_ELEM_F32, s.device.lse, s.host.lse, s.host.padded * c->heads, 2e-6, 2e-6 * grows);
    same_output(t, &s, no);
    tm_attention_backward(&s.host);
    cuda_attention_backward(&s.device);
    compare("d_qkv", t, s.device.d_q, s.host.d_q, nq, rel, 2e-5 * grows + 4 * abs);
    if (c->rotated) tm_rope_free(&rope);
}

static void test_attention(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(cases); i++)
        for (tm_elem t = TM_ELEM_F32; t <= F16; t++)
            if (t != F16 || i % 2) run_case(t, &cases[i], 1);
}

/* Scores of hundreds: probabilities of 0 and 1, nothing overflows. */
static void test_large_scores(void **state) {
    (void)state;
    EACH_ORDER run_case(TM_ELEM_F32, &cases[1], 30);
}

/* A key that is not a number reaches the queries that see it, and no other. */
static void test_nan(void **state) {
    (void)state;
    EACH_ORDER {
        enum { SEQ = 80, D = 16, AT = 70 };
        float *qkv = random_floats(128 * 3 * D, 1), *o = scratch(128 * D * 4);
        qkv[AT * 3 * D + D] = NAN;
        tm_attention a = {.rows = 1, .seq = SEQ, .padded = 128, .heads = 1, .kv_heads = 1, .head_dim = D, .scale = 1};
        a.o = give(NULL, 128 * D * 4), a.lse = give(NULL, 128 * 4);
        tm_attention_fuse(&a, give(qkv, 128 * 3 * D * 4), NULL);
        cuda_attention_forward(&a);
        take(a.o, o, 128 * D * 4);
        for (int s = 0; s < 128; s++)
            for (int d = 0; d < D; d++)
                if ((isnan(o[s * D + d]) != 0) != (s >= AT && s < SEQ))
                    fail_msg("query %d: %g", s, (double)o[s * D + d]);
    }
}

/* ---- a cache of keys and values -------------------------------------------------------------------------------- */

typedef struct cache_case {
    uint32_t seq, heads, kv_heads, head_dim, window;
    uint32_t position[3]; /* of as many rows */
} cache_case;

static const cache_case cached[] = {
    {1, 1, 1, 16, 0, {0, 5, 63}},     {1, 4, 2, 64, 0, {64, 255, 256}}, {1, 3, 1, 6, 0, {300, 0, 1}},
    {1, 2, 1, 80, 70, {69, 70, 290}}, {1, 2, 2, 128, 1, {0, 7, 64}},    {1, 1, 1, 256, 0, {299, 10, 31}},
    {70, 2, 1, 16, 0, {0, 1, 63}},    {65, 3, 1, 64, 5, {0, 64, 130}},  {2, 2, 1, 128, 0, {0, 62, 200}},
    {3, 1, 1, 256, 100, {97, 98, 5}}, {130, 2, 2, 6, 66, {0, 3, 64}},
};

/* Positions before a row's are filled; what lies past its last one is NaN, is never read, and stays as it is. */
static void run_cached(tm_elem t, const cache_case *c) {
    enum { ROWS = 3, CAPACITY = 301 };
    static const uint32_t cache_row[ROWS] = {2, 0, 1}, batch_row[ROWS] = {1, 2, 0};
    const attention_case shape = {ROWS, c->seq, c->heads, c->kv_heads, c->head_dim, c->window, false, false};
    uint64_t entry = 2 * (uint64_t)c->kv_heads * c->head_dim, all = ROWS * CAPACITY * entry;
    sides s = prepare(t, &shape, 1, NULL);
    uint64_t no = s.host.padded * c->heads * c->head_dim, e = elem_size(t);
    double unit = t == TM_ELEM_F32 ? 0 : t == TM_ELEM_BF16 ? 0x1p-8 : 0x1p-11;
    float *x = random_floats(all, 1), *got = scratch(all * 4), *want = scratch(all * 4);
    for (uint64_t i = 0; i < all; i++)
        if (i / entry % CAPACITY >= c->position[batch_row[i / entry / CAPACITY]]) x[i] = NAN;
    const void *host, *device;
    put(t, x, all, &host, &device);
    memcpy(&s.host.kv_cache, &host, sizeof host), memcpy(&s.device.kv_cache, &device, sizeof device);
    s.host.kv_capacity = s.device.kv_capacity = CAPACITY;
    s.host.decode = s.device.decode = c->seq == 1;
    s.host.cache_row = cache_row, s.device.cache_row = give(cache_row, sizeof cache_row);
    s.host.position = c->position, s.device.position = give(c->position, sizeof c->position);
    tm_attention_forward(&s.host);
    cuda_attention_forward(&s.device);
    compare("o", t, s.device.o, s.host.o, no, 2 * unit + 1e-5, 2e-6);
    compare("lse", TM_ELEM_F32, s.device.lse, s.host.lse, s.host.padded * c->heads, 2e-6, 2e-6);
    void *kept = scratch(all * e);
    take(s.device.kv_cache, kept, all * e);
    widened(t, kept, got, all), widened(host_type(t), s.host.kv_cache, want, all);
    same_floats("cache", got, want, all);
}

static void test_cached(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(cached); i++)
        for (tm_elem t = TM_ELEM_F32; t <= F16; t++)
            if (t == i % 3 || i == 1) run_cached(t, &cached[i]);
}

/* The same of a key in a cache. */
static void test_nan_cached(void **state) {
    (void)state;
    EACH_ORDER {
        enum { D = 16, CAPACITY = 4, ENTRY = 2 * D, ALL = 2 * CAPACITY * ENTRY };
        static const uint32_t position[] = {3, 3};
        float *cache = random_floats(ALL, 1), *qkv = random_floats((size_t)64 * 3 * D, 1), o[2 * D];
        tm_attention a = {
            .rows = 2, .seq = 1, .decode = true, .padded = 64, .heads = 1, .kv_heads = 1, .head_dim = D, .scale = 1};
        cache[(CAPACITY + 1) * ENTRY] = NAN;
        a.o = give(NULL, (size_t)64 * D * 4), a.lse = give(NULL, 64 * 4);
        tm_attention_fuse(&a, give(qkv, (size_t)64 * 3 * D * 4), NULL);
        a.kv_cache = give(cache, ALL * 4), a.kv_capacity = CAPACITY, a.position = give(position, sizeof position);
        cuda_attention_forward(&a);
        take(a.o, o, sizeof o);
        for (int i = 0; i < 2 * D; i++) assert_int_equal(isnan(o[i]) != 0, i >= D);
    }
}

/* A row alone has the bits that it has among others. */
static void test_rows_apart(void **state) {
    (void)state;
    EACH_ORDER {
        enum { D = 16, CAPACITY = 40, ENTRY = 2 * D, BOTH = 2 * CAPACITY * ENTRY, O = 64 * D };
        static const uint32_t position[] = {39, 11};
        float *cache = random_floats(BOTH, 1), *qkv = random_floats((size_t)64 * 3 * D, 1), *o = scratch(2 * O * 4);
        tm_attention a = {
            .rows = 2, .seq = 1, .decode = true, .padded = 64, .heads = 1, .kv_heads = 1, .head_dim = D, .scale = 1};
        a.o = give(NULL, O * 4), a.lse = give(NULL, 64 * 4);
        tm_attention_fuse(&a, give(qkv, (size_t)64 * 3 * D * 4), NULL);
        a.kv_cache = give(cache, BOTH * 4), a.kv_capacity = CAPACITY, a.position = give(position, sizeof position);
        cuda_attention_forward(&a);
        take(a.o, o, O * 4);
        a.rows = 1, a.o = give(NULL, O * 4), a.position = give(position + 1, sizeof *position);
        tm_attention_fuse(&a, give(qkv + 3 * D, (size_t)63 * 3 * D * 4), NULL);
        a.kv_cache = give(cache + (size_t)CAPACITY * ENTRY, (size_t)CAPACITY * ENTRY * 4);
        cuda_attention_forward(&a);
        take(a.o, o + O, O * 4);
        same_bytes("a row alone", o + O, o + D, D * 4);
    }
}

/* What it cannot do is an error of the queue's, and nothing is launched. */
static void test_refused(void **state) {
    (void)state;
    tm_attention a = {.rows = 1, .seq = 4, .padded = 64, .heads = 1, .kv_heads = 1, .head_dim = 512, .scale = 1};
    cuda_attention_forward(&a);
    assert_int_equal(machine_queue()->status, TM_EUNSUPPORTED);
    assert_non_null(strstr(tm_error_get()->text, "256 columns"));
    cuda_attention_backward(&a); /* stays refused */
    machine_queue()->status = TM_OK;
    tm_error_clear();
    static const uint32_t begin[4] = {0, 0, 2, 2};
    float qkv[4 * 3];
    a.head_dim = 1, a.begin = begin;
    tm_attention_fuse(&a, qkv, NULL);
    cuda_attention_forward(&a);
    assert_int_equal(machine_queue()->status, TM_EUNSUPPORTED);
    assert_non_null(strstr(tm_error_get()->text, "packed rows"));
    machine_queue()->status = TM_OK;
    tm_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention),  cmocka_unit_test(test_large_scores),
                                       cmocka_unit_test(test_nan),        cmocka_unit_test(test_cached),
                                       cmocka_unit_test(test_nan_cached), cmocka_unit_test(test_rows_apart),
                                       cmocka_unit_test(test_refused)};
    return run_group("cuda attention", tests, TM_COUNT(tests));
}

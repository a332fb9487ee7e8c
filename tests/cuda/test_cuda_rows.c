/* Kernels that work by elements and rows, and products, on odd sizes: beside the CPU's `ref`, bit for bit where the
 * order of operations is the same. */
#include "machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F32 TM_ELEM_F32
#define BF16 TM_ELEM_BF16
#define F16 ((tm_elem)CUDA_F16)
static const tm_elem with_ref[] = {F32, BF16};

/* Half a unit in the last place of a stored result, as a part of it. */
static double rounding(tm_elem t) {
    return t == F32 ? 0 : t == BF16 ? 0x1p-8 : 0x1p-11;
}

/* ---- conversions ---- */

static void test_convert(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 255, 256, 257, 1000};
    EACH_ORDER
    for (size_t s = 0; s < TM_COUNT(sizes); s++)
        for (tm_elem t = F32; t <= F16; t++) {
            size_t n = sizes[s];
            float *x = odd_floats(n), *back = scratch(n * sizeof *back), *wide = scratch(n * sizeof *wide);
            void *narrow = scratch(n * elem_size(t));
            void *dx = give(x, n * 4), *dn = give_at(NULL, n * elem_size(t), elem_size(t)), *dw = give(NULL, n * 4);
            cuda_convert(F32, t, dx, dn, n);
            cuda_convert(t, F32, dn, dw, n);
            take(dn, narrow, n * elem_size(t));
            take(dw, wide, n * 4);
            stored(t, x, n); /* x becomes what was stored */
            widened(t, narrow, back, n);
            same_floats("stored", back, x, n);
            same_floats("widened", wide, x, n);
        }
}

static void test_every_half(void **state) {
    (void)state;
    enum { N = 65536 };
    EACH_ORDER {
        uint16_t *all = scratch(N * 2), *again = scratch(N * 2);
        float *got = scratch(N * 4), *want = scratch(N * 4);
        for (uint32_t i = 0; i < N; i++) all[i] = (uint16_t)i;
        void *d = give(all, N * 2), *wide = give(NULL, N * 4), *narrow = give(NULL, N * 2);
        cuda_convert(F16, F32, d, wide, N);
        cuda_convert(F32, F16, wide, narrow, N);
        take(wide, got, N * 4);
        take(narrow, again, N * 2);
        widened(F16, all, want, N);
        same_floats("half", got, want, N);
        for (uint32_t i = 0; i < N; i++)
            if (again[i] != all[i] && !isnan(want[i])) fail_msg("half %04x comes back as %04x", i, again[i]);
    }
}

static void test_zero(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 3, 4, 7, 1025, 4099};
    EACH_ORDER
    for (size_t s = 0; s < TM_COUNT(sizes); s++)
        for (size_t off = 0; off < 4; off++) {
            size_t n = sizes[s];
            unsigned char *got = scratch(n + 8), *want = scratch(n + 8);
            char *d = give_at(NULL, n + 8, off);
            memset(want, 0xff, n + 8);
            memset(want + 4, 0, n);
            cuda_zero(d + 4, n);
            take(d, got, n + 8);
            same_bytes("zero", got, want, n + 8);
        }
}

/* ---- norm ---- */

typedef struct shape {
    uint64_t rows, n;
} shape;
static const shape shapes[] = {{0, 5}, {1, 1}, {1, 257}, {3, 64}, {65, 33}, {130, 100}, {300, 70}, {2, 4100}};

static void norm_case(tm_elem t, shape s) {
    size_t all = s.rows * s.n;
    float *x = random_floats(all, 3), *w = random_floats(s.n, 2), *dy = random_floats(all, 1),
          *dx0 = random_floats(all, 1);
    void *hx = stored(t, x, all), *hw = stored(t, w, s.n), *hdx = stored(t, dx0, all);
    void *y = scratch(all * elem_size(t)), *want = scratch(all * elem_size(t));
    float *gy = scratch(all * 4), *wy = scratch(all * 4), *dw = random_floats(s.n, 1), *got_dw = scratch(s.n * 4);
    void *dev_x = give(hx, all * elem_size(t)), *dev_w = give(hw, s.n * elem_size(t)),
         *dev_y = give(NULL, all * elem_size(t)), *dev_dy = give(dy, all * 4), *dev_dx = give(hdx, all * elem_size(t)),
         *dev_dw = give(dw, s.n * 4), *work = give(NULL, cuda_norm_workspace(s.rows, s.n));
    bool add = s.n % 2;
    cuda_norm_forward(
        &(tm_norm){.type = t, .rows = s.rows, .n = s.n, .x = dev_x, .weight = dev_w, .eps = 1e-5F, .y = dev_y});
    take(dev_y, y, all * elem_size(t));
    tm_norm_forward(&(tm_norm){.type = t, .rows = s.rows, .n = s.n, .x = hx, .weight = hw, .eps = 1e-5F, .y = want});
    widened(t, y, gy, all), widened(t, want, wy, all);
    near_all("norm", gy, wy, NULL, all, rounding(t) + 1e-6, 1e-7);

    cuda_norm_backward(&(tm_norm){.type = t,
                                  .rows = s.rows,
                                  .n = s.n,
                                  .x = dev_x,
                                  .weight = dev_w,
                                  .eps = 1e-5F,
                                  .dy = dev_dy,
                                  .dx = dev_dx,
                                  .dx_add = add,
                                  .dw = dev_dw,
                                  .dw_add = add,
                                  .workspace = work});
    take(dev_dx, y, all * elem_size(t));
    take(dev_dw, got_dw, s.n * 4);
    void *host_work = scratch(tm_norm_workspace(s.rows, s.n));
    tm_norm_backward(&(tm_norm){.type = t,
                                .rows = s.rows,
                                .n = s.n,
                                .x = hx,
                                .weight = hw,
                                .eps = 1e-5F,
                                .dy = dy,
                                .dx = hdx,
                                .dx_add = add,
                                .dw = dw,
                                .dw_add = add,
                                .workspace = host_work});
    widened(t, y, gy, all), widened(t, hdx, wy, all);
    near_all("dx", gy, wy, NULL, all, rounding(t) + 4e-6, 4e-6);
    near_all("dw", got_dw, dw, NULL, s.n, 1e-6, 2e-6 * (double)(s.rows + 1));
}

/* The same bits wherever an operand lies: columns by fours, or one by one. */
static void norm_moved(tm_elem t) {
    enum { ROWS = 3, N = 4100, ALL = ROWS * N };
    size_t e = elem_size(t);
    float *x = random_floats(ALL, 3), *w = random_floats(N, 2), *dy = random_floats(ALL, 1), *dw[2];
    void *hx = stored(t, x, ALL), *hw = stored(t, w, N), *y[2], *dx[2];
    for (size_t moved = 0; moved < 2; moved++) {
        void *dev_x = give_at(hx, ALL * e, moved * e), *dev_w = give(hw, N * e), *dev_y = give(NULL, ALL * e);
        void *dev_dy = give(dy, ALL * 4), *dev_dx = give(NULL, ALL * e), *dev_dw = give(NULL, N * 4);
        y[moved] = scratch(ALL * e), dx[moved] = scratch(ALL * e), dw[moved] = scratch(N * 4);
        cuda_norm_forward(
            &(tm_norm){.type = t, .rows = ROWS, .n = N, .x = dev_x, .weight = dev_w, .eps = 1e-5F, .y = dev_y});
        cuda_norm_backward(&(tm_norm){.type = t,
                                      .rows = ROWS,
                                      .n = N,
                                      .x = dev_x,
                                      .weight = dev_w,
                                      .eps = 1e-5F,
                                      .dy = dev_dy,
                                      .dx = dev_dx,
                                      .dx_add = false,
                                      .dw = dev_dw,
                                      .dw_add = false,
                                      .workspace = give(NULL, cuda_norm_workspace(ROWS, N))});
        take(dev_y, y[moved], ALL * e), take(dev_dx, dx[moved], ALL * e), take(dev_dw, dw[moved], N * 4);
    }
    same_bytes("norm of a row that lies elsewhere", y[1], y[0], ALL * e);
    same_bytes("its gradient", dx[1], dx[0], ALL * e);
    same_bytes("its weight's", dw[1], dw[0], N * 4);
}

static void test_norm(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++) norm_moved(with_ref[i]);
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++)
        for (size_t s = 0; s < TM_COUNT(shapes); s++) norm_case(with_ref[i], shapes[s]);
}

/* ---- rotary embedding ---- */

static void test_rope(void **state) {
    (void)state;
    static const uint32_t dims[] = {2, 64, 80, 128}; /* a device keeps so many tables */
    tm_rope r[TM_COUNT(dims)];
    for (size_t d = 0; d < TM_COUNT(dims); d++) {
        tm_rope_frequencies(&r[d], dims[d], 10000);
        assert_int_equal(tm_rope_fill(&r[d], 20), TM_OK);
    }
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++)
        for (size_t d = 0; d < TM_COUNT(dims); d++) {
            enum { ROWS = 13, HEADS = 3 };
            tm_elem t = with_ref[i];
            uint32_t first[3] = {5, 0, 2500}; /* cached, and past what is cached */
            uint64_t ld = HEADS * dims[d] + 7, all = ROWS * ld;
            float *x = random_floats(all, 2), *got = scratch(all * 4);
            void *h = stored(t, x, all), *out = scratch(all * elem_size(t));
            void *dev = give(h, all * elem_size(t)), *dev_first = give(first, sizeof first);
            cuda_rope_apply(&r[d], t, 2, ROWS, ld, HEADS, dev, (tm_positions){dev_first, 6, NULL}, d % 2);
            take(dev, out, all * elem_size(t));
            tm_rope_apply(&r[d], t, 2, ROWS, ld, HEADS, h, (tm_positions){first, 6, NULL}, d % 2);
            widened(t, out, got, all), widened(t, h, x, all);
            same_floats("rope", got, x, all);
        }
    for (size_t d = 0; d < TM_COUNT(dims); d++) tm_rope_free(&r[d]);
}

/* ---- gated unit ---- */

static void swiglu_case(tm_elem t, shape s) {
    size_t all = s.rows * s.n;
    float *gu = random_floats(2 * all, 12), *da = random_floats(all, 1);
    float *g1 = scratch(2 * all * 4), *w1 = scratch(2 * all * 4);
    void *h = stored(t, gu, 2 * all), *a = scratch(all * elem_size(t)), *want = scratch(all * elem_size(t));
    void *d = scratch(2 * all * elem_size(t)), *want_d = scratch(2 * all * elem_size(t));
    size_t off = s.rows == 3 ? 4 : 0; /* columns by fours, but not there */
    void *dev = give(h, 2 * all * elem_size(t)), *dev_da = give_at(da, all * 4, off);
    void *dev_a = give(NULL, all * elem_size(t)), *dev_d = give(NULL, 2 * all * elem_size(t));
    double rel = 2 * rounding(t) + 2e-6; /* beside a tie both may be rounded apart: a whole unit */
    cuda_glu_forward(&(tm_glu){.type = t, .rows = s.rows, .width = s.n, .x = dev, .y = dev_a});
    take(dev_a, a, all * elem_size(t));
    tm_glu_forward(&(tm_glu){.type = t, .rows = s.rows, .width = s.n, .x = h, .y = want});
    widened(t, a, g1, all), widened(t, want, w1, all);
    near_all("swiglu", g1, w1, NULL, all, rel, 1e-12);
    cuda_glu_backward(
        &(tm_glu){.type = t, .rows = s.rows, .width = s.n, .x = dev, .dy = dev_da, .dx = dev_d, .y = dev_a});
    take(dev_a, a, all * elem_size(t));
    take(dev_d, d, 2 * all * elem_size(t));
    tm_glu_backward(&(tm_glu){.type = t, .rows = s.rows, .width = s.n, .x = h, .dy = da, .dx = want_d, .y = want});
    widened(t, a, g1, all), widened(t, want, w1, all);
    near_all("swiglu again", g1, w1, NULL, all, rel, 1e-12);
    widened(t, d, g1, 2 * all), widened(t, want_d, w1, 2 * all);
    near_all("d_gate_up", g1, w1, NULL, 2 * all, rel, 1e-4); /* 1 + g (1 - s) cancels */
}

static void test_swiglu(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++)
        for (size_t s = 0; s < TM_COUNT(shapes); s++) swiglu_case(with_ref[i], shapes[s]);
}

/* exp over its range, through silu(-x): the formula in double. */
static void test_exponential(void **state) {
    (void)state;
    enum { N = 4000 };
    EACH_ORDER {
        float *gu = scratch(2 * N * 4), *got = scratch(N * 4), *want = scratch(N * 4);
        for (int i = 0; i < N; i++) {
            gu[i] = -110.0F + 220.0F * (float)i / N;
            gu[N + i] = 1;
            double g = (double)gu[i];
            want[i] = (float)(g / (1 + exp(-g)));
        }
        gu[7] = INFINITY, want[7] = INFINITY;
        gu[8] = NAN, want[8] = NAN;
        void *dev = give(gu, 2 * N * 4), *out = give(NULL, N * 4);
        cuda_glu_forward(&(tm_glu){.type = F32, .rows = 1, .width = N, .x = dev, .y = out});
        take(out, got, N * 4);
        near_all("silu", got, want, NULL, N, 4e-7, 1e-36);
    }
}

/* ---- rows and columns ---- */

static void test_rows(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++)
        for (size_t s = 0; s < TM_COUNT(shapes); s++) {
            tm_elem t = with_ref[i];
            uint64_t rows = shapes[s].rows, n = shapes[s].n, ld = n + 3, all = rows * ld, e = elem_size(t);
            float *x = random_floats(all, 2), *bias = random_floats(n, 2), *sum = random_floats(n, 1),
                  *gs = scratch(n * 4);
            void *h = stored(t, x, all), *hb = stored(t, bias, n), *out = scratch(all * e);
            void *dev = give_at(h, all * e, e), *dev_b = give(hb, n * e), *dev_sum = give(sum, n * 4);
            cuda_column_sum(t, rows, n, dev, ld, dev_sum, s % 2);
            cuda_add_bias(t, rows, n, dev_b, dev, ld);
            take(dev_sum, gs, n * 4);
            take(dev, out, all * e);
            tm_column_sum(t, rows, n, h, ld, sum, s % 2);
            tm_add_bias(t, rows, n, hb, h, ld);
            same_floats("column sum", gs, sum, n);
            same_bytes("bias", out, h, all * e);
        }
}

static void test_gather(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++) {
        enum { ROWS = 7, PADDED = 16, FROM = 31, N = 45 };
        tm_elem t = with_ref[i];
        size_t e = elem_size(t);
        uint32_t row[ROWS] = {30, 0, 4, 5, 29, 6, 17};
        float *x = random_floats(FROM * N, 2), *src = random_floats(ROWS * N, 2), *dst = random_floats(FROM * N, 2);
        float *got = scratch(FROM * N * 4);
        void *h = stored(t, x, FROM * N), *out = scratch(PADDED * N * e), *want = scratch(PADDED * N * e);
        void *dev_row = give(row, sizeof row), *dev = give(h, FROM * N * e), *dev_out = give(NULL, PADDED * N * e);
        void *dev_src = give(src, ROWS * N * 4), *dev_dst = give(dst, FROM * N * 4);
        cuda_gather_rows(t, ROWS, PADDED, N, dev_row, dev, dev_out);
        cuda_scatter_add_rows(ROWS, N, dev_row, dev_src, dev_dst);
        take(dev_out, out, PADDED * N * e);
        take(dev_dst, got, FROM * N * 4);
        tm_gather_rows(t, ROWS, PADDED, N, row, h, want);
        tm_scatter_add_rows(ROWS, N, row, src, dst);
        same_bytes("gather", out, want, PADDED * N * e);
        same_floats("scatter", got, dst, FROM * N);
        cuda_gather_rows(t, 0, 0, N, dev_row, dev, dev_out); /* nothing */
    }
}

/* ---- vocabulary ---- */

enum { EMBED_FIRST = 8, EMBED_COUNT = 9 };
static void embed_case(tm_elem t, size_t rows, size_t padded, size_t n, bool way) {
    size_t e = elem_size(t), table = EMBED_COUNT * n;
    int32_t *ids = scratch(rows * 4);
    for (size_t r = 0; r < rows; r++) ids[r] = (int32_t)random_below(20) - 1; /* some outside, one negative */
    float *w = random_floats(table, 2), *dout = random_floats(rows * n, 2), *grad = random_floats(table, 2);
    float *first = random_floats(padded * n, 1), *got = scratch(table * 4);
    void *hw = stored(t, w, table), *hd = stored(t, dout, rows * n), *want = stored(t, first, padded * n);
    void *out = scratch(padded * n * e), *dev_ids = give(ids, rows * 4), *dev_w = give(hw, table * e);
    void *dev_out = give(want, padded * n * e), *dev_d = give(hd, rows * n * e), *dev_g = give(grad, table * 4);
    cuda_embed_forward(&(tm_embed){.type = t,
                                   .rows = rows,
                                   .padded = padded,
                                   .n = n,
                                   .ids = dev_ids,
                                   .first = EMBED_FIRST,
                                   .count = EMBED_COUNT,
                                   .weight = dev_w,
                                   .out = dev_out,
                                   .clear = way});
    cuda_embed_backward(&(tm_embed){.type = t,
                                    .rows = rows,
                                    .n = n,
                                    .ids = dev_ids,
                                    .first = EMBED_FIRST,
                                    .count = EMBED_COUNT,
                                    .dout = dev_d,
                                    .grad = dev_g,
                                    .grad_add = way});
    take(dev_out, out, padded * n * e);
    take(dev_g, got, table * 4);
    tm_embed_forward(&(tm_embed){.type = t,
                                 .rows = rows,
                                 .padded = padded,
                                 .n = n,
                                 .ids = ids,
                                 .first = EMBED_FIRST,
                                 .count = EMBED_COUNT,
                                 .weight = hw,
                                 .out = want,
                                 .clear = way});
    tm_embed_backward(&(tm_embed){.type = t,
                                  .rows = rows,
                                  .n = n,
                                  .ids = ids,
                                  .first = EMBED_FIRST,
                                  .count = EMBED_COUNT,
                                  .dout = hd,
                                  .grad = grad,
                                  .grad_add = way});
    same_bytes("embedding", out, want, padded * n * e);
    same_floats("embedding's gradient", got, grad, table);
}

static void test_embed(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++)
        for (int way = 0; way < 2; way++) {
            embed_case(with_ref[i], 301, 320, 37, way);
            /* more tokens than a window, more columns than a block */
            embed_case(with_ref[i], CUDA_EMBED_WINDOW + 50, 1100, CUDA_EMBED_COLUMNS + 3, way);
        }
}

/* The vocabulary in two parts; labels inside, outside and none; a row with a logit that is not finite. */
static void head_case(tm_elem t, float odd) {
    enum { TOKENS = 9, ROWS = 6, V0 = 1300, V1 = 41, LD = 1307 };
    uint32_t row[ROWS] = {8, 0, 3, 4, 5, 7};
    int32_t labels[TOKENS] = {0, -100, -100, 1299, 1300, 1340, -100, 17, 1320};
    float *logits = random_floats(ROWS * LD, 30), *part1 = random_floats(ROWS * LD, 30), *c = random_floats(TOKENS, 1);
    tm_head_state *want = scratch(TOKENS * sizeof *want), *got = scratch(TOKENS * sizeof *got);
    logits[2 * LD + 5] = odd;
    for (int i = 0; i < TOKENS; i++) want[i] = (tm_head_state){.max = -INFINITY};
    void *dev_row = give(row, sizeof row), *dev_labels = give(labels, sizeof labels), *dev_c = give(c, TOKENS * 4);
    void *dev_state = give(NULL, TOKENS * sizeof *want), *d0 = give(logits, ROWS * LD * 4),
         *d1 = give(part1, ROWS * LD * 4);
    cuda_head_begin(TOKENS, dev_state);
    cuda_head_update(&(tm_head){.rows = ROWS,
                                .row = dev_row,
                                .first = 0,
                                .count = V0,
                                .logits = d0,
                                .ld = LD,
                                .labels = dev_labels,
                                .state = dev_state});
    cuda_head_update(&(tm_head){.rows = ROWS,
                                .row = dev_row,
                                .first = V0,
                                .count = V1,
                                .logits = d1,
                                .ld = LD,
                                .labels = dev_labels,
                                .state = dev_state});
    take(dev_state, got, TOKENS * sizeof *got);
    tm_head_update(&(tm_head){.rows = ROWS,
                              .row = row,
                              .first = 0,
                              .count = V0,
                              .logits = logits,
                              .ld = LD,
                              .labels = labels,
                              .state = want});
    tm_head_update(&(tm_head){.rows = ROWS,
                              .row = row,
                              .first = V0,
                              .count = V1,
                              .logits = part1,
                              .ld = LD,
                              .labels = labels,
                              .state = want});
    near_all("state", &got->max, &want->max, NULL, TOKENS * 4, 2e-6, 0);
    size_t e = elem_size(t), width = 4 / e;
    float *g0 = scratch(ROWS * LD * 4), *a = scratch(V0 * 4), *b = scratch(V0 * 4);
    cuda_head_gradient(&(tm_head){.type = t,
                                  .rows = ROWS,
                                  .row = dev_row,
                                  .first = 0,
                                  .count = V0,
                                  .logits = d0,
                                  .ld = LD,
                                  .labels = dev_labels,
                                  .state = dev_state,
                                  .coefficient = dev_c});
    take(d0, g0, ROWS * LD * 4);
    tm_head_gradient(&(tm_head){.type = t,
                                .rows = ROWS,
                                .row = row,
                                .first = 0,
                                .count = V0,
                                .logits = logits,
                                .ld = LD,
                                .labels = labels,
                                .state = want,
                                .coefficient = c});
    for (size_t r = 0; r < ROWS; r++) {
        widened(t, (char *)g0 + r * LD * width * e, a, V0), widened(t, (char *)logits + r * LD * width * e, b, V0);
        near_all("logits' gradient", a, b, NULL, V0, rounding(t) + 3e-5, 1e-7);
    }
}

static void test_head(void **state) {
    (void)state;
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(with_ref); i++) {
        head_case(with_ref[i], 1);
        head_case(with_ref[i], NAN);
        head_case(with_ref[i], INFINITY);
    }
}

/* ---- products of our own ---- */

static void product(tm_elem ta, tm_elem tb, tm_elem tc, uint64_t m, uint64_t n, uint64_t k, bool at, bool bt,
                    float beta) {
    uint64_t lda = (at ? m : k) + 1, ldb = (bt ? k : n) + 2, ldc = n + 3;
    uint64_t na = (at ? k : m) * lda, nb = (bt ? n : k) * ldb, nc = m * ldc;
    float *a = random_floats(na, 1), *b = random_floats(nb, 1), *c = random_floats(nc, 1), *got = scratch(nc * 4);
    void *ha = stored(ta, a, na), *hb = stored(tb, b, nb), *hc = stored(tc, c, nc), *out = scratch(nc * elem_size(tc));
    tm_gemm_args g = {.m = m, .n = n, .k = k, .alpha = 1.5F, .beta = beta, .lda = lda, .ldb = ldb, .ldc = ldc};
    g.a_type = ta, g.b_type = tb, g.c_type = tc, g.a_trans = at, g.b_trans = bt;
    g.a = give(ha, na * elem_size(ta)), g.b = give(hb, nb * elem_size(tb)), g.c = give(hc, nc * elem_size(tc));
    cuda_gemm(&g);
    take(g.c, out, nc * elem_size(tc));
    g.a = ha, g.b = hb, g.c = hc;
    tm_gemm(&g);
    widened(tc, out, got, nc), widened(tc, hc, c, nc);
    /* beside a tie both may be rounded apart: a whole unit */
    near_all("product", got, c, NULL, nc, 2 * rounding(tc) + 1e-6, 2e-7 * (double)(k + 8));
}

static void test_gemm(void **state) {
    (void)state;
    static const uint64_t sizes[][3] = {{1, 1, 1}, {64, 64, 16}, {65, 3, 17}, {5, 130, 40}};
    EACH_ORDER
    for (size_t s = 0; s < TM_COUNT(sizes); s++)
        for (unsigned i = 0; i < 16; i++) {
            tm_elem c = i & 8 ? BF16 : F32;
            product(i & 1 ? BF16 : F32, i & 2 ? BF16 : F32, c, sizes[s][0], sizes[s][1], sizes[s][2], i & 2, i & 4,
                    i & 1 ? 0.0F : 0.5F);
        }
}

/* beta = 0: C is not read. */
static void test_gemm_unread(void **state) {
    (void)state;
    EACH_ORDER {
        float a = 2, b = 3, c = NAN;
        void *da = give(&a, 4), *db = give(&b, 4), *dc = give(&c, 4);
        cuda_gemm(&(tm_gemm_args){
            .m = 1, .n = 1, .k = 1, .alpha = 1, .a = da, .b = db, .c = dc, .lda = 1, .ldb = 1, .ldc = 1});
        take(dc, &c, 4);
        assert_true(c == 6.0F);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert),     cmocka_unit_test(test_every_half), cmocka_unit_test(test_zero),
        cmocka_unit_test(test_norm),        cmocka_unit_test(test_rope),       cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_exponential), cmocka_unit_test(test_rows),       cmocka_unit_test(test_gather),
        cmocka_unit_test(test_embed),       cmocka_unit_test(test_head),       cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_gemm_unread)};
    return run_group("cuda rows", tests, TM_COUNT(tests));
}

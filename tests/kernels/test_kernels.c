/* Every kernel on odd sizes, in each ISA's column, against the textbook formula in double; gradients against central
 * differences of that formula. */
#include "kernels/kernels.h"
#include "kernels/kernels_internal.h"
#include "tests/kernels/values.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- conversions ---- */

static uint16_t nearest_even(uint32_t bits) {
    uint32_t high = bits >> 16, rest = bits & 0xffff;
    if (rest > 0x8000 || (rest == 0x8000 && (high & 1))) high++;
    return (uint16_t)high;
}

static void conversions(void **state) {
    (void)state;
    static const uint16_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    float x[37], back[37];
    uint16_t y[37];
    for (uint32_t high = 0; high < 65536; high += 37)
        for (size_t l = 0; l < TM_COUNT(low); l++) {
            for (uint32_t i = 0; i < 37; i++) {
                uint32_t bits = (((high + i) & 0xffff) << 16) | low[l];
                memcpy(&x[i], &bits, 4);
            }
            tm_narrow(x, y, 37);
            tm_widen(y, back, 37);
            for (uint32_t i = 0; i < 37; i++) {
                uint32_t bits, wide;
                memcpy(&bits, &x[i], 4);
                memcpy(&wide, &back[i], 4);
                if (isnan(x[i])) {
                    assert_true(isnan(back[i]));
                    continue;
                }
                assert_int_equal(y[i], nearest_even(bits));
                assert_int_equal(wide, (uint32_t)y[i] << 16);
            }
        }
}

/* Every half, and what lies between it and the next: in the middle, a unit of fp32 below and above. Values by the
 * definition of the format, not by its bits. */
static double half_value(uint32_t half) {
    int e = (int)(half >> 10 & 31);
    double m = half & 1023, v = e == 0 ? ldexp(m, -24) : e == 31 ? INFINITY : ldexp(1024 + m, e - 25);
    return half >> 15 ? -v : v;
}

static void halves(void **state) {
    (void)state;
    enum { EACH = 4 };
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h, out[EACH];
        float wide, x[EACH];
        tm_widen_f16(&in, &wide, 1);
        if ((h & 0x7fff) > 0x7c00) { /* NaN: quiet, the rest of it is kept */
            uint32_t bits;
            memcpy(&bits, &wide, 4);
            assert_int_equal(bits, h >> 15 << 31 | 0x7fc00000U | (h & 0x3ff) << 13);
            tm_narrow_f16(&wide, out, 1);
            assert_int_equal(out[0], h | 0x200);
            continue;
        }
        assert_true((double)wide == half_value(h) && (signbit(wide) != 0) == (h >> 15));
        if ((h & 0x7fff) == 0x7c00) continue;
        double here = half_value(h), next = (h & 0x7fff) == 0x7bff ? copysign(65536, here) : half_value(h + 1);
        float middle = (float)((here + next) / 2); /* exact */
        x[0] = wide, x[1] = nextafterf(middle, (float)here), x[2] = middle, x[3] = nextafterf(middle, (float)next);
        tm_narrow_f16(x, out, EACH);
        assert_int_equal(out[0], h);
        assert_int_equal(out[1], h);
        assert_int_equal(out[2], h % 2 ? h + 1 : h); /* ties to even */
        assert_int_equal(out[3], h + 1);
    }
    static const float out_of_range[] = {INFINITY, -INFINITY, 3e38F, 65520, -65520, 1e-40F, -1e-45F, 0x1p-25F};
    static const uint16_t want[] = {0x7c00, 0xfc00, 0x7c00, 0x7c00, 0xfc00, 0, 0x8000, 0};
    uint16_t got[TM_COUNT(want)];
    tm_narrow_f16(out_of_range, got, TM_COUNT(want));
    assert_memory_equal(got, want, sizeof want);
}

/* ---- norm ---- */

static void norm_formula(const double *x, const double *w, size_t n, double *y) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    double inv = 1.0 / sqrt(sum / (double)n + 1e-5);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * inv * w[i];
}

static void norm_forward(void **state) {
    (void)state;
    static const size_t widths[] = {1, 7, 64, 577, 1024, 2500};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t j = 0; j < TM_COUNT(widths); j++) {
            tm_elem t = types[k];
            size_t n = widths[j], rows = 5;
            double *x = randoms(rows * n, 3), *w = randoms(n, 2), *want = randoms(rows * n, 0);
            void *sx = stored(t, x, rows * n), *sw = stored(t, w, n), *y = malloc(bytes_of(t, rows * n));
            tm_norm_forward(&(tm_norm){.type = t, .rows = rows, .n = n, .x = sx, .weight = sw, .eps = 1e-5F, .y = y});
            for (size_t r = 0; r < rows; r++) norm_formula(x + r * n, w, n, want + r * n);
            all_near(t, y, want, rows * n, tolerance(t), "norm");
            free(x), free(w), free(want), free(sx), free(sw), free(y);
        }
}

/* d sum(dy * norm(x)) / d p, by central differences; p is an element of x or w */
static double norm_slope(double *p, double *x, const double *w, const double *dy, size_t n, double *scratch) {
    double kept = *p, up = 0, down = 0;
    *p = kept + 1e-5;
    norm_formula(x, w, n, scratch);
    for (size_t i = 0; i < n; i++) up += dy[i] * scratch[i];
    *p = kept - 1e-5;
    norm_formula(x, w, n, scratch);
    for (size_t i = 0; i < n; i++) down += dy[i] * scratch[i];
    *p = kept;
    return (up - down) / 2e-5;
}

static void check_norm_backward(tm_elem t, size_t rows, size_t n, bool add) {
    double *x = randoms(rows * n, 3), *w = randoms(n, 2), *dy = randoms(rows * n, 1), *old = randoms(rows * n, 1);
    double *old_w = randoms(n, 1), *scratch = randoms(n, 0);
    void *sx = stored(t, x, rows * n), *sw = stored(t, w, n), *dx = stored(t, old, rows * n);
    float *sdy = stored(TM_ELEM_F32, dy, rows * n), *dw = stored(TM_ELEM_F32, old_w, n);
    void *work = aligned_alloc(64, tm_norm_workspace(rows, n));
    tm_norm_backward(&(tm_norm){.type = t,
                                .rows = rows,
                                .n = n,
                                .x = sx,
                                .weight = sw,
                                .eps = 1e-5F,
                                .dy = sdy,
                                .dx = dx,
                                .dx_add = add,
                                .dw = dw,
                                .dw_add = add,
                                .workspace = work});
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++) {
            double slope = norm_slope(&x[r * n + i], x + r * n, w, dy + r * n, n, scratch);
            near(value(t, dx, r * n + i), slope + (add ? old[r * n + i] : 0), t == TM_ELEM_F32 ? 1e-5 : 5e-3, "dx", i);
        }
    for (size_t i = 0; i < n; i++) { /* the weight's is a sum over rows, each with a root of a sum over n */
        double slope = add ? old_w[i] : 0, size = fabs(slope);
        for (size_t r = 0; r < rows; r++) {
            double term = norm_slope(&w[i], x + r * n, w, dy + r * n, n, scratch);
            slope += term, size += fabs(term);
        }
        within((double)dw[i], slope, gamma_of(rows + n / 2 + 6) * size + 1e-9, "dw", i);
    }
    free(x), free(w), free(dy), free(old), free(old_w), free(scratch);
    free(sx), free(sw), free(dx), free(sdy), free(dw), free(work);
}

static void norm_backward(void **state) {
    (void)state;
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (int add = 0; add < 2; add++) {
            check_norm_backward(types[k], 3, 7, add);
            check_norm_backward(types[k], 130, 33, add);
        }
    check_norm_backward(TM_ELEM_F32, 2, 1100, false);
}

/* ---- rope ---- */

static double frequency(int kind, size_t i, size_t d) {
    double f = pow(10000.0, -2.0 * (double)i / (double)d), wavelength = 2 * M_PI / f;
    if (kind == 1) return f / 4;
    if (kind == 0 || wavelength < 64.0 / 4) return f;
    if (wavelength > 64.0) return f / 8;
    double s = (64.0 / wavelength - 1) / (4 - 1);
    return (1 - s) * f / 8 + s * f;
}

static void check_rope(tm_elem t, int kind, uint32_t d) {
    tm_rope r;
    tm_rope_frequencies(&r, d, 10000.0);
    if (kind == 1) tm_rope_scale_linear(&r, 4);
    if (kind == 2) tm_rope_scale_llama3(&r, 8, 1, 4, 64);
    assert_int_equal(tm_rope_fill(&r, 6), TM_OK); /* positions from 6 on are computed on the way */
    const uint32_t seq = 5, rows = 10, heads = 2, ld = 3 * d + 1, first[] = {0, 9};
    double *x = randoms(rows * ld, 1);
    void *sx = stored(t, x, rows * ld);
    tm_rope_apply(&r, t, 0, rows, ld, heads, sx, (tm_positions){first, seq, NULL}, false);
    for (size_t row = 0; row < rows; row++)
        for (size_t c = 0; c < ld; c++) {
            size_t h = c / d, i = c % d, pair = i % (d / 2);
            double angle = (double)(row % seq + first[row / seq]) * frequency(kind, pair, d), want = x[row * ld + c];
            const double *head = x + row * ld + h * d;
            if (h < heads)
                want = i < d / 2 ? head[pair] * cos(angle) - head[pair + d / 2] * sin(angle)
                                 : head[pair + d / 2] * cos(angle) + head[pair] * sin(angle);
            near(value(t, sx, row * ld + c), want, t == TM_ELEM_F32 ? 3e-6 : 8e-3, "rope", c);
        }
    tm_rope_apply(&r, t, 0, rows, ld, heads, sx, (tm_positions){first, seq, NULL}, true);
    all_near(t, sx, x, rows * ld, t == TM_ELEM_F32 ? 1e-6 : 1.6e-2, "rope back");
    tm_rope_free(&r);
    free(x), free(sx);
}

static void rope(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (size_t k = 0; k < TM_COUNT(types); k++) {
            check_rope(types[k], kind, 2);
            check_rope(types[k], kind, 18);
            check_rope(types[k], kind, 64);
        }
}

/* ---- gated unit ---- */

static double silu(double g) {
    return g / (1 + exp(-g));
}

static void swiglu(void **state) {
    (void)state;
    static const size_t widths[] = {1, 9, 80, 1031};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t j = 0; j < TM_COUNT(widths); j++) {
            tm_elem t = types[k];
            size_t rows = 3, f = widths[j];
            double *gu = randoms(2 * rows * f, 12), *da = randoms(rows * f, 1), *want = randoms(rows * f, 0);
            void *sgu = stored(t, gu, 2 * rows * f), *a = malloc(bytes_of(t, rows * f)),
                 *a2 = malloc(bytes_of(t, rows * f));
            void *dgu = malloc(bytes_of(t, 2 * rows * f));
            float *sda = stored(TM_ELEM_F32, da, rows * f);
            tm_glu_forward(&(tm_glu){.type = t, .rows = rows, .width = f, .x = sgu, .y = a});
            tm_glu_backward(&(tm_glu){.type = t, .rows = rows, .width = f, .x = sgu, .dy = sda, .dx = dgu, .y = a2});
            for (size_t r = 0; r < rows; r++)
                for (size_t i = 0; i < f; i++) {
                    double g = gu[r * 2 * f + i], u = gu[(r * 2 + 1) * f + i], d = da[r * f + i];
                    want[r * f + i] = silu(g) * u;
                    double slope = (silu(g + 1e-5) - silu(g - 1e-5)) / 2e-5;
                    near(value(t, dgu, r * 2 * f + i), d * u * slope, t == TM_ELEM_F32 ? 1e-5 : 5e-3, "dg", i);
                    near(value(t, dgu, (r * 2 + 1) * f + i), d * silu(g), tolerance(t), "du", i);
                }
            all_near(t, a, want, rows * f, tolerance(t), "swiglu");
            all_near(t, a2, want, rows * f, tolerance(t), "swiglu again");
            free(gu), free(da), free(want), free(sgu), free(a), free(a2), free(dgu), free(sda);
        }
}

/* ---- attention ---- */

typedef struct attention_case {
    uint32_t rows, seq, heads, kv_heads, d, window;
    bool masked;
} attention_case;

static size_t qkv_width(const attention_case *c) {
    return (size_t)(c->heads + 2 * c->kv_heads) * c->d;
}
static bool sees(const attention_case *c, const uint8_t *mask, size_t b, size_t i, size_t j) {
    return j <= i && (!c->window || i < j + c->window) && (!mask || mask[b * c->seq + j]);
}

/* o of one query in double; o has d elements */
static void attention_formula(const attention_case *c, const uint8_t *mask, const double *qkv, size_t b, size_t i,
                              size_t head, double *o) {
    size_t w = qkv_width(c), d = c->d, kv = head / (c->heads / c->kv_heads);
    const double *q = qkv + (b * c->seq + i) * w + head * d;
    double top = -INFINITY, sum = 0, *s = malloc(c->seq * sizeof *s);
    for (size_t j = 0; j <= i; j++) {
        const double *k = qkv + (b * c->seq + j) * w + (c->heads + kv) * d;
        s[j] = 0;
        for (size_t e = 0; e < d; e++) s[j] += q[e] * k[e] / sqrt((double)d);
        if (sees(c, mask, b, i, j)) top = fmax(top, s[j]);
    }
    memset(o, 0, d * sizeof *o);
    for (size_t j = 0; j <= i; j++) sum += sees(c, mask, b, i, j) ? exp(s[j] - top) : 0;
    for (size_t j = 0; j <= i; j++) {
        const double *v = qkv + (b * c->seq + j) * w + (c->heads + c->kv_heads + kv) * d;
        for (size_t e = 0; sees(c, mask, b, i, j) && e < d; e++) o[e] += exp(s[j] - top) / sum * v[e];
    }
    free(s);
}

/* sum(dO * O) over everything that an element of batch row b can reach */
static double attention_loss(const attention_case *c, const uint8_t *mask, const double *qkv, const double *d_o,
                             size_t b) {
    double loss = 0, o[512];
    for (size_t i = 0; i < c->seq; i++)
        for (size_t h = 0; h < c->heads; h++) {
            attention_formula(c, mask, qkv, b, i, h, o);
            for (size_t e = 0; e < c->d; e++) loss += o[e] * d_o[((b * c->seq + i) * c->heads + h) * c->d + e];
        }
    return loss;
}

static void check_attention(tm_elem t, attention_case c, size_t samples) {
    size_t used = (size_t)c.rows * c.seq, padded = tm_round_up(used, 64), w = qkv_width(&c), ow = (size_t)c.heads * c.d;
    double *qkv = randoms(padded * w, 1.5), *d_o = randoms(padded * ow, 1), *o = malloc(c.d * sizeof *o);
    uint8_t *mask = c.masked ? malloc(used) : NULL;
    for (size_t i = 0; mask && i < used; i++) mask[i] = i % c.seq != 0 && uniform() < 0.5; /* key 0 is never seen */
    void *sqkv = stored(t, qkv, padded * w), *sdo = stored(t, d_o, padded * ow), *so = malloc(bytes_of(t, padded * ow));
    void *dqkv = malloc(bytes_of(t, padded * w));
    float *lse = malloc(padded * c.heads * sizeof *lse);
    tm_attention a = {.type = t,
                      .rows = c.rows,
                      .seq = c.seq,
                      .padded = padded,
                      .heads = c.heads,
                      .kv_heads = c.kv_heads,
                      .head_dim = c.d,
                      .window = c.window,
                      .scale = (float)(1 / sqrt((double)c.d)),
                      .key_mask = mask,
                      .o = so,
                      .lse = lse,
                      .d_o = sdo};
    tm_attention_fuse(&a, sqkv, dqkv);
    a.workspace = aligned_alloc(
        64, tm_round_up(tm_max_u64(tm_attention_workspace(&a, false), tm_attention_workspace(&a, true)), 64));
    tm_attention_forward(&a);
    tm_attention_backward(&a);
    for (size_t row = 0; row < padded; row++)
        for (size_t h = 0; h < c.heads; h++) {
            memset(o, 0, c.d * sizeof *o);
            if (row < used) attention_formula(&c, mask, qkv, row / c.seq, row % c.seq, h, o);
            for (size_t e = 0; e < c.d; e++) {
                double want = isnan(o[e]) ? 0 : o[e]; /* a query that sees nothing */
                near(value(t, so, (row * c.heads + h) * c.d + e), want, tolerance(t), "o", row);
            }
        }
    for (size_t n = 0; n < samples; n++) {
        size_t at = (size_t)((uniform() + 1) / 2 * (double)(used * w));
        double kept = qkv[at], step = 1e-4;
        if (mask) break;
        qkv[at] = kept + step;
        double up = attention_loss(&c, mask, qkv, d_o, at / w / c.seq);
        qkv[at] = kept - step;
        double down = attention_loss(&c, mask, qkv, d_o, at / w / c.seq);
        qkv[at] = kept;
        near(value(t, dqkv, at), (up - down) / (2 * step), t == TM_ELEM_F32 ? 1e-5 : 2e-2, "dqkv", at % w);
    }
    for (size_t i = used * w; i < padded * w; i++) assert_true(value(t, dqkv, i) == 0);
    for (size_t i = 0; i < used * w; i++) assert_true(isfinite(value(t, dqkv, i)));
    free(qkv), free(d_o), free(o), free(mask), free(sqkv), free(sdo), free(so), free(dqkv), free(lse),
        free(a.workspace);
}

static void attention(void **state) {
    (void)state;
    static const attention_case cases[] = {
        {2, 1, 2, 1, 4, 0, false},    {1, 5, 3, 3, 2, 0, false},   {2, 63, 2, 2, 16, 0, false},
        {1, 64, 3, 1, 18, 0, false},  {1, 65, 2, 1, 64, 7, false}, {3, 130, 4, 2, 24, 64, false},
        {1, 200, 1, 1, 6, 65, false}, {2, 70, 2, 1, 16, 0, true},  {1, 129, 2, 2, 8, 20, true}};
    for (size_t k = 0; k < TM_COUNT(types); k++)
        for (size_t i = 0; i < TM_COUNT(cases); i++) check_attention(types[k], cases[i], 12);
}

/* A masked key must count for nothing: the gradient equals that of a sequence without it. */
static void masked_gradient(void **state) {
    (void)state;
    attention_case c = {1, 90, 2, 1, 16, 0, true};
    size_t w = qkv_width(&c), ow = (size_t)c.heads * c.d, padded = 128;
    double *qkv = randoms(padded * w, 1), *d_o = randoms(padded * ow, 1);
    uint8_t mask[90];
    for (size_t i = 0; i < 90; i++) mask[i] = i % 3 != 1;
    float *sqkv = stored(TM_ELEM_F32, qkv, padded * w), *sdo = stored(TM_ELEM_F32, d_o, padded * ow);
    float *o = malloc(padded * ow * sizeof *o), *dqkv = malloc(padded * w * sizeof *dqkv),
          *lse = malloc(padded * 2 * sizeof *lse);
    tm_attention a = {.rows = 1,
                      .seq = 90,
                      .padded = padded,
                      .heads = 2,
                      .kv_heads = 1,
                      .head_dim = 16,
                      .scale = 0.25F,
                      .key_mask = mask,
                      .o = o,
                      .lse = lse,
                      .d_o = sdo};
    tm_attention_fuse(&a, sqkv, dqkv);
    a.workspace = aligned_alloc(
        64, tm_round_up(tm_max_u64(tm_attention_workspace(&a, false), tm_attention_workspace(&a, true)), 64));
    tm_attention_forward(&a);
    tm_attention_backward(&a);
    for (size_t n = 0; n < 40; n++) {
        size_t at = (size_t)((uniform() + 1) / 2 * (double)(90 * w));
        double kept = qkv[at];
        qkv[at] = kept + 1e-4;
        double up = attention_loss(&c, mask, qkv, d_o, 0);
        qkv[at] = kept - 1e-4;
        double down = attention_loss(&c, mask, qkv, d_o, 0);
        qkv[at] = kept;
        near((double)dqkv[at], (up - down) / 2e-4, 1e-5, "dqkv", at);
    }
    for (size_t i = 0; i < 90; i++)
        for (size_t e = 0; !mask[i] && e < 16; e++)
            assert_true(dqkv[i * w + 2 * 16 + e] == 0 && dqkv[i * w + 3 * 16 + e] == 0);
    free(qkv), free(d_o), free(sqkv), free(sdo), free(o), free(dqkv), free(lse), free(a.workspace);
}

/* ---- head ---- */

static void head(void **state) {
    (void)state;
    enum { ROWS = 4, VOCAB = 101, FIRST = 37 };
    double *logits = randoms(ROWS * VOCAB, 20);
    float *x = stored(TM_ELEM_F32, logits, ROWS * VOCAB), coefficient[8] = {0}, part[ROWS * VOCAB];
    float again[ROWS * VOCAB];
    uint16_t rounded[VOCAB];
    int32_t labels[8] = {-100, 36, -100, 37, 100, -100, 0, -100};
    uint32_t row[ROWS] = {1, 3, 4, 6};
    tm_head_state s[8];
    for (size_t i = 0; i < 8; i++) s[i] = (tm_head_state){.max = -INFINITY};
    for (size_t i = 0; i < ROWS; i++) coefficient[row[i]] = 0.25F * (float)(i + 1);
    for (size_t p = 0; p < 2; p++) {
        size_t first = p ? FIRST : 0, n = p ? VOCAB - FIRST : FIRST;
        for (size_t i = 0; i < ROWS; i++) memcpy(part + i * n, x + i * VOCAB + first, n * sizeof *x);
        tm_head_update(&(tm_head){.rows = ROWS,
                                  .row = row,
                                  .first = (uint32_t)first,
                                  .count = (uint32_t)n,
                                  .logits = part,
                                  .ld = n,
                                  .labels = labels,
                                  .state = s});
    }
    for (size_t i = 0; i < ROWS; i++) {
        double sum = 0;
        for (size_t v = 0; v < VOCAB; v++) sum += exp(logits[i * VOCAB + v]);
        near((double)tm_head_state_lse(&s[row[i]]), log(sum), 1e-6, "lse", i);
        assert_true(s[row[i]].label == x[i * VOCAB + (size_t)labels[row[i]]]);
    }
    for (size_t p = 0; p < 2; p++) {
        size_t first = p ? FIRST : 0, n = p ? VOCAB - FIRST : FIRST;
        for (size_t i = 0; i < ROWS; i++) memcpy(part + i * n, x + i * VOCAB + first, n * sizeof *x);
        tm_head_gradient(&(tm_head){.type = TM_ELEM_F32,
                                    .rows = ROWS,
                                    .row = row,
                                    .first = (uint32_t)first,
                                    .count = (uint32_t)n,
                                    .logits = part,
                                    .ld = n,
                                    .labels = labels,
                                    .state = s,
                                    .coefficient = coefficient});
        for (size_t k = 1; k < TM_COUNT(types); k++) {
            for (size_t i = 0; i < ROWS; i++) memcpy(again + i * n, x + i * VOCAB + first, n * sizeof *x);
            tm_head_gradient(&(tm_head){.type = types[k],
                                        .rows = ROWS,
                                        .row = row,
                                        .first = (uint32_t)first,
                                        .count = (uint32_t)n,
                                        .logits = again,
                                        .ld = n,
                                        .labels = labels,
                                        .state = s,
                                        .coefficient = coefficient});
            for (size_t i = 0; i < ROWS; i++) { /* the same, rounded once, at the front of the row */
                kernels_narrow(types[k], part + i * n, rounded, n);
                assert_memory_equal(again + i * n, rounded, n * sizeof *rounded);
            }
        }
        for (size_t i = 0; i < ROWS; i++)
            for (size_t v = 0; v < n; v++) {
                double p_v = exp(logits[i * VOCAB + first + v] - (double)tm_head_state_lse(&s[row[i]]));
                double want = (double)coefficient[row[i]] * (p_v - (first + v == (size_t)labels[row[i]]));
                near((double)part[i * n + v], want, 2e-6, "dlogits", v);
            }
    }
    for (size_t i = 0; i < ROWS; i++) /* and against slopes of the loss */
        for (size_t v = 0; v < VOCAB; v++) {
            double slope = 0;
            for (int up = 0; up < 2; up++) {
                double sum = 0, step = up ? 1e-4 : -1e-4;
                for (size_t u = 0; u < VOCAB; u++) sum += exp(logits[i * VOCAB + u] + (u == v ? step : 0));
                double nll =
                    log(sum) - logits[i * VOCAB + (size_t)labels[row[i]]] - (v == (size_t)labels[row[i]] ? step : 0);
                slope += (double)coefficient[row[i]] * nll / (2 * step);
            }
            memcpy(part, x + i * VOCAB, VOCAB * sizeof *x);
            tm_head_gradient(&(tm_head){.type = TM_ELEM_F32,
                                        .rows = 1,
                                        .row = &row[i],
                                        .first = 0,
                                        .count = VOCAB,
                                        .logits = part,
                                        .ld = VOCAB,
                                        .labels = labels,
                                        .state = s,
                                        .coefficient = coefficient});
            near((double)part[v], slope, 2e-6, "slope of the loss", v);
        }
    free(logits), free(x);
}

/* ---- rows ---- */

static void embedding(void **state) {
    (void)state;
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        tm_elem t = types[k];
        size_t n = 67, rows = 7, padded = 9;
        int32_t ids[] = {4, 11, 5, 4, 0, 7, 4};
        double *w = randoms(4 * n, 1), *d = randoms(rows * n, 1), *zero = randoms(padded * n, 0);
        void *sw = stored(t, w, 4 * n), *sd = stored(t, d, rows * n), *out = malloc(bytes_of(t, padded * n));
        float *grad = malloc(4 * n * sizeof *grad);
        memset(out, 0xff, padded * n * tm_elem_bytes(t));
        memset(grad, 0xff, 4 * n * sizeof *grad);
        tm_embed_forward(&(tm_embed){.type = t,
                                     .rows = rows,
                                     .padded = padded,
                                     .n = n,
                                     .ids = ids,
                                     .first = 4,
                                     .count = 4,
                                     .weight = sw,
                                     .out = out,
                                     .clear = true}); /* ids 4..7 */
        for (size_t r = 0; r < padded; r++) {
            bool here = r < rows && ids[r] >= 4 && ids[r] < 8;
            const double *want = here ? w + (size_t)(ids[r] - 4) * n : zero;
            for (size_t i = 0; i < n; i++) assert_true(value(t, out, r * n + i) == want[i]);
        }
        tm_embed_backward(&(tm_embed){.type = t,
                                      .rows = rows,
                                      .n = n,
                                      .ids = ids,
                                      .first = 4,
                                      .count = 4,
                                      .dout = sd,
                                      .grad = grad,
                                      .grad_add = false});
        tm_embed_backward(&(tm_embed){.type = t,
                                      .rows = rows,
                                      .n = n,
                                      .ids = ids,
                                      .first = 4,
                                      .count = 4,
                                      .dout = sd,
                                      .grad = grad,
                                      .grad_add = true});
        for (size_t v = 0; v < 4; v++)
            for (size_t i = 0; i < n; i++) {
                double want = 0;
                for (size_t r = 0; r < rows; r++) want += (size_t)ids[r] == v + 4 ? 2 * d[r * n + i] : 0;
                near((double)grad[v * n + i], want, 1e-6, "embedding gradient", i);
            }
        free(w), free(d), free(zero), free(sw), free(sd), free(out), free(grad);
    }
}

static void rows_and_columns(void **state) {
    (void)state;
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        tm_elem t = types[k];
        size_t rows = 70, n = 300, ld = 311;
        double *x = randoms(rows * ld, 1), *b = randoms(n, 1), *want = randoms(n, 0), *g = randoms(2 * ld, 0);
        void *sb = stored(t, b, n), *sx = stored(t, x, rows * ld), *gathered = malloc(bytes_of(t, 3 * ld));
        float *sum = malloc(n * sizeof *sum);
        tm_column_sum(t, rows, n, sx, ld, sum, false);
        tm_column_sum(t, rows, n, sx, ld, sum, true);
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < n; i++) want[i] += 2 * x[r * ld + i];
        all_near(TM_ELEM_F32, sum, want, n, 1e-5, "column sum");
        uint32_t pick[] = {69, 3};
        tm_gather_rows(t, 2, 3, ld, pick, sx, gathered);
        for (size_t i = 0; i < ld; i++) {
            assert_true(value(t, gathered, i) == x[69 * ld + i] && value(t, gathered, ld + i) == x[3 * ld + i]);
            assert_true(value(t, gathered, 2 * ld + i) == 0);
        }
        tm_add_bias(t, rows, n, sb, sx, ld);
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < ld; i++)
                near(value(t, sx, r * ld + i), x[r * ld + i] + (i < n ? b[i] : 0), tolerance(t), "bias", i);
        free(x), free(b), free(want), free(g), free(sb), free(sx), free(gathered), free(sum);
    }
    float src[4] = {1, 2, 3, 4}, dst[6] = {10, 10, 10, 10, 10, 10};
    uint32_t to[] = {2, 0};
    tm_scatter_add_rows(2, 2, to, src, dst);
    static const float want[] = {13, 14, 10, 10, 11, 12};
    assert_memory_equal(dst, want, sizeof want);
}

/* ---- leaf against leaf ---- */

static void exponential(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -87.0F; x < 0.0F; x += 0.000731F) {
        float v[8] = {x, x, x, x, x, x, x, x};
        kernels.softmax_grad(v, 0.0F, 1.0F, 8);
        worst = fmax(worst, fabs((double)v[0] / exp((double)x) - 1));
    }
    printf("%s: exp is right to %.3g\n", kernels.isa, worst);
    assert_true(worst < 1.5e-7);
    float extremes[8] = {-INFINITY, -1e30F, -104.0F, NAN, 0.0F, 88.0F, -87.4F, 1e-30F};
    kernels.softmax_grad(extremes, 0.0F, 1.0F, 8);
    assert_true(extremes[0] == 0 && extremes[1] == 0 && extremes[2] < 1e-38F && isnan(extremes[3]));
    assert_true(extremes[4] == 1.0F && fabs((double)extremes[5] / exp(88.0) - 1) < 2e-7 && extremes[7] == 1.0F);
}

/* The chosen column against double, at every short length, tails included. Bounds are those of rounding: of any order
 * of the sum. */
static void sums(void **state) {
    (void)state;
    for (size_t n = 0; n < 70; n++) {
        double *a = randoms(n, 3), *b = randoms(n, 3), *c = randoms(n, 3);
        float *x = stored(TM_ELEM_F32, a, n), *y = stored(TM_ELEM_F32, b, n), *z = stored(TM_ELEM_F32, c, n);
        double dot = 0, dot3 = 0, exps = 0, dot_size = 0, dot3_size = 0, exp_size = 0, top = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            dot += a[i] * b[i], dot_size += fabs(a[i] * b[i]);
            dot3 += a[i] * b[i] * c[i], dot3_size += fabs(a[i] * b[i] * c[i]);
            exps += exp(a[i] - 3), exp_size += exp(a[i] - 3) * (fabs(a[i] - 3) + 3); /* argument, exponential, sum */
            top = fmax(top, a[i]);
        }
        within((double)kernels.dot(x, y, n), dot, gamma_of(n + 1) * dot_size, "dot", n);
        within((double)kernels.dot3(x, y, z, n), dot3, gamma_of(n + 2) * dot3_size, "dot3", n);
        within((double)kernels.exp_sum(x, 3, n), exps, gamma_of(n + 1) * exp_size, "exp_sum", n);
        assert_true((double)kernels.max(x, n) == top);
        free(a), free(b), free(c), free(x), free(y), free(z);
    }
}

static void elements(void **state) {
    (void)state;
    for (size_t n = 0; n < 70; n++) {
        double *a = randoms(n, 3), *b = randoms(n, 3), *c = randoms(n, 3), *d = randoms(n, 3);
        float *x = stored(TM_ELEM_F32, a, n), *y = stored(TM_ELEM_F32, b, n), *z = stored(TM_ELEM_F32, c, n);
        float *w = stored(TM_ELEM_F32, d, n), *dx = malloc((n + 1) * sizeof *dx), *norm = malloc((n + 1) * sizeof *dx);
        const double f = (double)0.9F, g = (double)0.1F, h = (double)0.3F;
        kernels.norm_apply(x, y, 0.9F, norm, n);
        kernels.norm_grad(x, y, w, 0.9F, 0.1F, dx, z, n);
        for (size_t i = 0; i < n; i++) {
            within((double)norm[i], a[i] * b[i] * f, gamma_of(2) * fabs(a[i] * b[i] * f), "norm_apply", i);
            within((double)dx[i], f * b[i] * d[i] - g * a[i], gamma_of(3) * (fabs(f * b[i] * d[i]) + fabs(g * a[i])),
                   "norm_grad dx", i);
            within((double)z[i], c[i] + d[i] * a[i] * f, gamma_of(3) * (fabs(c[i]) + fabs(d[i] * a[i] * f)),
                   "norm_grad dw", i);
        }
        kernels.axpy(0.3F, x, y, n), kernels.scale(0.3F, w, n);
        for (size_t i = 0; i < n; i++) {
            within((double)y[i], b[i] + h * a[i], gamma_of(2) * (fabs(b[i]) + fabs(h * a[i])), "axpy", i);
            assert_true(w[i] == 0.3F * (float)d[i]);
        }
        free(a), free(b), free(c), free(d), free(x), free(y), free(z), free(w), free(dx), free(norm);
    }
}

/* Bit for bit, ends of every kind, and where the counter carries. */
static void masks(void **state) {
    (void)state;
    enum { BLOCKS = 40 };
    static const uint64_t first[] = {0, 5, UINT32_MAX - 20, UINT32_MAX, (uint64_t)1 << 40};
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t i = 0; i < TM_COUNT(first); i++)
        for (size_t n = 0; n <= BLOCKS; n++) {
            float got[(BLOCKS + 1) * KERNELS_DRAWS], want[BLOCKS * KERNELS_DRAWS];
            const kernels_draw d = {.key = 77 + i, .dropped = (uint32_t)(n * 1638), .kept = 1.5F};
            for (size_t k = 0; k < TM_COUNT(got); k++) got[k] = 7;
            kernels.drop_mask(&d, first[i], n, got);
            ref.drop_mask(&d, first[i], n, want);
            assert_memory_equal(got, want, n * KERNELS_DRAWS * sizeof *got);
            for (size_t k = n * KERNELS_DRAWS; k < TM_COUNT(got); k++) assert_true(got[k] == 7);
        }
}

/* The sum of a row and a column in the order of k: what the columns with vectors give, whatever their width. */
static float in_order(const float *a, size_t step, const float *b, size_t n, size_t k, float sum) {
    for (size_t p = 0; p < k; p++) sum = fmaf(a[p * step], b[p * n], sum);
    return sum;
}

static void small_products(void **state) {
    (void)state;
    for (size_t m = 1; m <= 21; m++)
        for (size_t trans = 0; trans < 2; trans++) {
            size_t n = 48, k = 9;
            double *a = randoms(m * k, 1), *b = randoms(k * n, 1), *c = randoms(m * n, 1);
            float *sa = stored(TM_ELEM_F32, a, m * k), *sb = stored(TM_ELEM_F32, b, k * n),
                  *sc = stored(TM_ELEM_F32, c, m * n);
            float *old = stored(TM_ELEM_F32, c, m * n);
            kernels.small_gemm(m, n, k, sa, trans ? 1 : k, trans ? m : 1, sb, n, sc, n, m % 2);
            for (size_t i = 0; i < m; i++)
                for (size_t j = 0; j < n; j++) {
                    double want = m % 2 ? c[i * n + j] : 0, size = fabs(want);
                    for (size_t p = 0; p < k; p++) {
                        double term = a[trans ? p * m + i : i * k + p] * b[p * n + j];
                        want += term, size += fabs(term);
                    }
                    within((double)sc[i * n + j], want, gamma_of(k + 1) * size, "small_gemm", i);
                    float sum =
                        in_order(sa + i * (trans ? 1 : k), trans ? m : 1, sb + j, n, k, m % 2 ? old[i * n + j] : 0);
                    if (kernels.level >= KERNELS_AVX2) assert_true(sc[i * n + j] == sum);
                }
            float y[9 * 24], *from = sa;
            kernels.transpose(from, k, m, k, y, 24);
            for (size_t p = 0; p < k; p++)
                for (size_t i = 0; i < tm_round_up(m, 8); i++)
                    assert_true(y[p * 24 + i] == (i < m ? sa[i * k + p] : 0));
            free(a), free(b), free(c), free(sa), free(sb), free(sc), free(old);
        }
}

/* What packing moves: every element at its place, widened exactly, NaN and denormals too; and no other place written.
 */
static void moved(void (*widen)(const uint16_t *, float *, size_t), const uint16_t *x, float got, size_t at) {
    float want;
    widen(x, &want, 1);
    if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want))
        fail_msg("element %zu: %.9g, expected %.9g", at, (double)got, (double)want);
}

static void transposes_of_16_bits(void **state) {
    (void)state;
    enum { LD = 41, ROWS = 19, MOST = LD * 24 };
    uint16_t x[LD * ROWS + 1];
    float y[MOST];
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t i = 0; i < TM_COUNT(x); i++) x[i] = (uint16_t)(i * 40503U);
    for (int f16 = 0; f16 < 2; f16++)
        for (size_t rows = 1; rows <= ROWS; rows++)
            for (size_t columns = 0; columns <= LD - 1; columns++) {
                size_t high = tm_round_up(rows, 8);
                for (size_t i = 0; i < MOST; i++) y[i] = 123456;
                (f16 ? kernels.transpose_f16 : kernels.transpose_bf16)(x + 1, LD, rows, columns, y, 24);
                for (size_t j = 0; j < LD; j++)
                    for (size_t i = 0; i < 24; i++)
                        if (j < columns && i < rows)
                            moved(f16 ? ref.widen_f16 : ref.widen, x + 1 + i * LD + j, y[j * 24 + i], j * 24 + i);
                        else
                            assert_true(y[j * 24 + i] == (j < columns && i < high ? 0.0F : 123456.0F));
            }
}

static void deals_of_16_bits(void **state) {
    (void)state;
    enum { LD = 70, ROWS = 5, STRIDE = 100, PANELS = 4 };
    uint16_t x[LD * ROWS + 1];
    float y[PANELS * STRIDE];
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t i = 0; i < TM_COUNT(x); i++) x[i] = (uint16_t)(i * 40503U);
    for (unsigned mix = 0; mix < 4; mix++)
        for (size_t rows = 0; rows <= ROWS; rows++) {
            bool f16 = mix & 1U;
            kernels_deal to = {PANELS, mix & 2U ? 16 : 6, mix & 2U ? 16 : 8, STRIDE};
            for (size_t i = 0; i < TM_COUNT(y); i++) y[i] = 123456;
            (f16 ? kernels.deal_f16 : kernels.deal_bf16)(x + 1, LD, rows, to, y);
            for (size_t j = 0; j < PANELS; j++)
                for (size_t at = 0; at < STRIDE; at++) {
                    size_t p = at / to.width, i = at % to.width;
                    if (p < rows)
                        moved(f16 ? ref.widen_f16 : ref.widen, x + 1 + p * LD + j * to.step + i, y[j * STRIDE + at],
                              at);
                    else
                        assert_true(y[j * STRIDE + at] == 123456.0F);
                }
        }
}

/* Values that arithmetic treats apart, at every place of a vector and its tail: infinities and NaN go where ref puts
 * them, denormals are kept, and neighbours are untouched. */
static bool alike(float got, float want) {
    if (isnan(want)) return isnan(got);
    if (isinf(want) || fpclassify(want) == FP_ZERO) return got == want;
    return fabs((double)got - (double)want) <= 1e-5 * fabs((double)want) + 1e-44;
}

static void special_values(void **state) {
    (void)state;
    static const float special[] = {INFINITY, -INFINITY, NAN, 1e-40F, -1e-45F, 3e38F, -0.0F};
    enum { LONG = 35 };
    kernels_table ref;
    kernels_ref_fill(&ref);
    for (size_t v = 0; v < TM_COUNT(special); v++)
        for (size_t at = 0; at < LONG; at++) {
            float x[LONG + 1], y[2][LONG + 1], z[2][LONG + 1], out[2][LONG + 1], g[2][LONG + 1], u[2][LONG + 1];
            float up[LONG + 1];
            for (size_t i = 0; i <= LONG; i++)
                x[i] = (float)i / 8 - 2, y[0][i] = y[1][i] = z[0][i] = z[1][i] = up[i] = 0.5F;
            x[at + 1] = special[v];
            const kernels_table *k[2] = {&kernels, &ref};
            for (int i = 0; i < 2; i++) { /* from an odd element on: no span is aligned */
                k[i]->axpy(0.5F, x + 1, y[i] + 1, LONG);
                k[i]->norm_apply(x + 1, x + 1, 0.25F, z[i] + 1, LONG);
                memcpy(u[i], x, sizeof x), memcpy(g[i], x, sizeof x), memcpy(out[i], x, sizeof x);
                k[i]->scale(2.0F, u[i] + 1, LONG);
                k[i]->swiglu(x + 1, up + 1, g[i] + 1, LONG);
                if (special[v] < 88.0F || isnan(special[v])) k[i]->softmax_grad(out[i] + 1, 0.0F, 1.0F, LONG);
            }
            for (size_t i = 0; i <= LONG; i++) {
                assert_true(alike(y[0][i], y[1][i]) && alike(z[0][i], z[1][i]) && alike(u[0][i], u[1][i]));
                if (fabs((double)special[v]) < 80) assert_true(alike(g[0][i], g[1][i]));
                assert_true(alike(out[0][i], out[1][i]) || (i > 0 && !isfinite(special[v])));
            }
            float sums[2] = {kernels.dot(x + 1, z[1] + 1, LONG), ref.dot(x + 1, z[1] + 1, LONG)};
            assert_true(alike(sums[0], sums[1]) || isinf(sums[0]));
            if (!isnan(special[v])) assert_true(kernels.max(x + 1, LONG) == ref.max(x + 1, LONG));
        }
}

/* The same in the leaves of gradients, rotation, attention's rows and the small products. What is not finite goes where
 * ref puts it and nowhere else; exponentials may be flushed where they would be denormal. */
enum { SPAN = 40, SPAN_PRODUCTS = 32 };
typedef struct leaf_results {
    float grad[2][SPAN + 1], unit[3][SPAN + 1], turn[2][SPAN + 1], row[3][SPAN + 1], sums[6];
    float product[SPAN_PRODUCTS * 5], tile[GEMM_MR * GEMM_NR], flipped[SPAN * 8];
} leaf_results;

static void run_leaves(const kernels_table *k, const float *x, leaf_results *r) {
    float half[SPAN + 1], panel_a[4 * GEMM_A_LD];
    _Alignas(64) float panel_b[4 * GEMM_NR];
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i <= SPAN; i++) half[i] = 0.5F, r->row[2][i] = 0.25F;
    k->norm_grad(x + 1, half + 1, half + 1, 0.7F, 0.2F, r->grad[0] + 1, r->grad[1] + 1, SPAN);
    k->swiglu_grad(half + 1, half + 1, x + 1, r->unit[0] + 1, r->unit[1] + 1, r->unit[2] + 1, SPAN);
    memcpy(r->turn[0], x, sizeof half), memcpy(r->turn[1], half, sizeof half);
    k->rotate(half + 1, half + 1, false, r->turn[0] + 1, r->turn[1] + 1, SPAN);
    float max = -1, sum = 0.5F;
    memcpy(r->row[0], x, sizeof half), memcpy(r->row[1], x, sizeof half);
    r->sums[0] = k->softmax_row(r->row[0] + 1, 0.5F, &max, &sum, SPAN);
    r->sums[1] = max, r->sums[2] = sum;
    k->softmax_row_grad(r->row[2] + 1, r->row[1] + 1, 0.5F, 1.0F, 0.1F, SPAN);
    r->sums[3] = k->dot3(x + 1, half + 1, half + 1, SPAN), r->sums[4] = k->exp_sum(x + 1, 88.0F, SPAN);
    r->sums[5] = k->dot(x + 1, half + 1, SPAN);
    k->small_gemm(5, SPAN_PRODUCTS, 4, half, 1, 1, x, 1, r->product, SPAN_PRODUCTS, false); /* rows of B overlap */
    k->transpose(x + 1, 1, 7, SPAN - 8, r->flipped, 8);
    for (size_t i = 0; i < TM_COUNT(panel_a); i++) panel_a[i] = 0.5F;
    for (size_t i = 0; i < TM_COUNT(panel_b); i++) panel_b[i] = x[1 + i % SPAN];
    k->gemm_tile(4, panel_a, panel_b, 1.0F, 0.0F, r->tile, GEMM_NR);
}

static bool placed_alike(float got, float want) {
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want || fabs((double)got) > 1e38;
    return isfinite(got) && fabs((double)got - (double)want) <=
                                1e-5 * (fabs((double)want) + 1e-30) + 1.2e-38 + (fabs((double)want) < 100 ? 1e-6 : 0);
}

static void special_gradients(void **state) {
    (void)state;
    static const float special[] = {INFINITY, -INFINITY, NAN, 1e-40F, -1e-45F, 1e38F, -1e38F, -0.0F};
    kernels_table ref;
    kernels_ref_fill(&ref);
    leaf_results got, want;
    for (size_t v = 0; v < TM_COUNT(special); v++)
        for (size_t at = 0; at < SPAN; at++) {
            float x[SPAN + 40];
            for (size_t i = 0; i < TM_COUNT(x); i++) x[i] = (float)(i % 7) / 4 - 0.75F;
            x[at + 1] = special[v];
            run_leaves(&kernels, x, &got), run_leaves(&ref, x, &want);
            const float *a = (const float *)&got, *b = (const float *)&want;
            if (isnan(special[v]) || special[v] == INFINITY) assert_true(isnan(got.sums[2]) && isnan(want.sums[2]));
            for (size_t i = 0; i < sizeof got / sizeof *a; i++) {
                bool row = a + i >= got.row[0] && a + i <= got.row[0] + SPAN,
                     lost = isnan(special[v]) || special[v] == INFINITY;
                bool sum = a + i == got.sums + 1 || a + i == got.sums; /* the row's greatest, and the factor */
                if (lost && (row || sum)) continue;                    /* its sum says that the row is lost */
                if (!placed_alike(a[i], b[i]))
                    fail_msg("%g at %zu: result %zu is %g, of ref %g", (double)special[v], at, i, (double)a[i],
                             (double)b[i]);
            }
        }
}

/* Nothing to do is done without touching anything. */
static void zero_length(void **state) {
    (void)state;
    float x[4] = {1, 2, 3, 4}, before[4];
    memcpy(before, x, sizeof x);
    kernels.axpy(2, x, x, 0), kernels.scale(2, x, 0), kernels.norm_apply(x, x, 2, x, 0);
    kernels.norm_grad(x, x, x, 2, 2, x, x, 0), kernels.swiglu(x, x, x, 0), kernels.swiglu_grad(x, x, x, x, x, x, 0);
    kernels.rotate(x, x, true, x, x, 0), kernels.softmax_grad(x, 0, 1, 0), kernels.widen((uint16_t *)(void *)x, x, 0);
    kernels.widen_f16((uint16_t *)(void *)x, x, 0), kernels.narrow_f16(x, (uint16_t *)(void *)x, 0);
    kernels.narrow(x, (uint16_t *)(void *)x, 0), kernels.small_gemm(0, 16, 1, x, 1, 1, x, 16, x, 16, true);
    kernels.softmax_row_grad(x, x, 1, 0, 0, 0);
    assert_true(kernels.dot(x, x, 0) == 0 && kernels.dot3(x, x, x, 0) == 0 && kernels.exp_sum(x, 0, 0) == 0);
    assert_true(kernels.max(x, 0) == -INFINITY);
    tm_norm_forward(&(tm_norm){.type = TM_ELEM_F32, .rows = 0, .n = 4, .x = x, .weight = x, .eps = 1, .y = x}),
        tm_glu_forward(&(tm_glu){.type = TM_ELEM_BF16, .rows = 0, .width = 4, .x = x, .y = x});
    tm_glu_backward(&(tm_glu){.type = TM_ELEM_F32, .rows = 0, .width = 2, .x = x, .dy = x, .dx = x, .y = x}),
        tm_add_bias(TM_ELEM_F32, 0, 4, x, x, 4);
    tm_gather_rows(TM_ELEM_F32, 0, 0, 4, NULL, x, x), tm_scatter_add_rows(0, 4, NULL, x, x), tm_zero(x, 0);
    tm_head_update(&(tm_head){.rows = 0, .first = 0, .count = 4, .logits = x, .ld = 4}),
        tm_embed_backward(&(tm_embed){
            .type = TM_ELEM_F32, .rows = 0, .n = 4, .first = 0, .count = 0, .dout = x, .grad = x, .grad_add = true});
    assert_memory_equal(x, before, sizeof x);
}

/* A span cut anywhere gives the bits of the whole span, where a leaf works element by element. */
static void any_split(void **state) {
    (void)state;
    enum { LONG = 61 };
    double *a = randoms(LONG, 4), *b = randoms(LONG, 4);
    float *x = stored(TM_ELEM_F32, a, LONG), *w = stored(TM_ELEM_F32, b, LONG);
    for (size_t cut = 0; cut <= LONG; cut++) {
        float whole[4][LONG], parts[4][LONG];
        uint16_t half[2][2][LONG];
        for (int split = 0; split < 2; split++)
            for (size_t from = 0, to = split ? cut : LONG; from < LONG; from = to, to = LONG) {
                float(*y)[LONG] = split ? parts : whole;
                size_t n = to - from;
                for (size_t i = from; i < to; i++) y[2][i] = y[3][i] = 0.25F;
                kernels.swiglu(x + from, w + from, y[0] + from, n);
                kernels.norm_apply(x + from, w + from, 0.7F, y[1] + from, n);
                kernels.axpy(0.3F, x + from, y[2] + from, n);
                kernels.softmax_grad(y[3] + from, 0.5F, 0.3F, n);
                kernels.narrow(x + from, half[split][0] + from, n);
                kernels.narrow_f16(x + from, half[split][1] + from, n);
            }
        assert_memory_equal(whole, parts, sizeof whole);
        assert_memory_equal(half[0], half[1], sizeof half[0]);
    }
    free(a), free(b), free(x), free(w);
}

/* ---- whole column ---- */

static void harmless(kernels_table *t) { /* right, under another name */
    if (kernels_has_avx2()) kernels_avx2_override(t);
    t->isa = "wrong";
}
static void (*right_swiglu)(const float *g, const float *u, float *a, size_t n);
static void swiglu_without_last(const float *g, const float *u, float *a, size_t n) {
    if (n) right_swiglu(g, u, a, n - 1);
}
static void wrong_swiglu(kernels_table *t) {
    harmless(t);
    right_swiglu = t->swiglu;
    t->swiglu = swiglu_without_last;
}
/* A column with one wrong leaf is found out before anything is computed with it, and the next one is used. */
static void wrong_column_is_not_used(void **state) {
    (void)state;
    char *kept = strdup(getenv("TIDEMILL_ISA"));
    kernels_column first = kernels_columns[0];
    kernels_columns[0] = (kernels_column){"wrong", always, wrong_swiglu};
    unsetenv("TIDEMILL_ISA");
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    assert_string_not_equal(tm_kernels_isa(), "wrong");
    setenv("TIDEMILL_ISA", "wrong", 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "swiglu"));
    tm_error_clear();
    kernels_columns[0].override = harmless; /* nothing is wrong any more */
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    assert_string_equal(tm_kernels_isa(), "wrong");
    kernels_columns[0] = first;
    setenv("TIDEMILL_ISA", kept, 1);
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
    free(kept);
}

static void start_errors(void **state) {
    (void)state;
    char *kept = getenv("TIDEMILL_ISA") ? strdup(getenv("TIDEMILL_ISA")) : NULL;
    static const char *const none[] = {"mmx", "avx512bf16", "amx"};
    for (size_t i = 0; i < TM_COUNT(none); i++) {
        setenv("TIDEMILL_ISA", none[i], 1);
        assert_int_equal(tm_kernels_init(1, TM_ELEM_F32), TM_EINPUT);
        assert_non_null(strstr(tm_error_get()->text, none[i]));
        assert_non_null(strstr(tm_error_get()->text, "ref, avx2 or avx512"));
        assert_int_equal(i > 0, strstr(tm_error_get()->text, "oneDNN") != NULL);
        tm_error_clear();
    }
    if (kept)
        setenv("TIDEMILL_ISA", kept, 1);
    else
        unsetenv("TIDEMILL_ISA");
    free(kept);
    setenv("TIDEMILL_GEMM", "mkl", 1);
    assert_int_equal(tm_kernels_init(1, TM_ELEM_F32), TM_EINPUT);
    tm_error_clear();
    unsetenv("TIDEMILL_GEMM");
    assert_int_equal(tm_kernels_init(2, TM_ELEM_F32), TM_OK);
}

static int run_column(const char *isa) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions),
        cmocka_unit_test(halves),
        cmocka_unit_test(norm_forward),
        cmocka_unit_test(norm_backward),
        cmocka_unit_test(rope),
        cmocka_unit_test(swiglu),
        cmocka_unit_test(attention),
        cmocka_unit_test(masked_gradient),
        cmocka_unit_test(head),
        cmocka_unit_test(embedding),
        cmocka_unit_test(rows_and_columns),
        cmocka_unit_test(exponential),
        cmocka_unit_test(sums),
        cmocka_unit_test(elements),
        cmocka_unit_test(masks),
        cmocka_unit_test(small_products),
        cmocka_unit_test(transposes_of_16_bits),
        cmocka_unit_test(deals_of_16_bits),
        cmocka_unit_test(special_values),
        cmocka_unit_test(special_gradients),
        cmocka_unit_test(zero_length),
        cmocka_unit_test(any_split),
        cmocka_unit_test(wrong_column_is_not_used),
        cmocka_unit_test(start_errors),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return run_columns(run_column);
}

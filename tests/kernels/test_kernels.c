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
    for (size_t j = 0; j <= i; j++) sum += s[j] = sees(c, mask, b, i, j) ? exp(s[j] - top) : 0;
    for (size_t j = 0; j <= i; j++) {
        const double *v = qkv + (b * c->seq + j) * w + (c->heads + c->kv_heads + kv) * d;
        for (size_t e = 0; s[j] > 0 && e < d; e++) o[e] += s[j] / sum * v[e];
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
        assert_int_equal(i > 0, strstr(tm_error_get()->text, "TIDEMILL_GEMM=amx or avx512bf16") != NULL);
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
        cmocka_unit_test(wrong_column_is_not_used),
        cmocka_unit_test(start_errors),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(void) {
    return run_columns(run_column);
}

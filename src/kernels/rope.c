/* Rotary position embedding (Su et al. 2021), with the scalings of Hugging Face's modeling_rope_utils. */
#include "kernels/kernels_internal.h"

#include <math.h>

static float wave(const tm_rope *r, uint32_t i, double theta) {
    return powf((float)theta, (float)(2 * i) / (float)r->rotary);
}

void tm_rope_frequencies_part(tm_rope *r, uint32_t head_dim, uint32_t rotary, double theta) {
    TM_ASSERT(rotary % 2 == 0 && rotary <= head_dim && head_dim <= TM_MAX_HEAD_DIM);
    *r = (tm_rope){.head_dim = head_dim, .rotary = rotary, .factor = 1};
    for (uint32_t i = 0; i < rotary / 2; i++) r->inv_freq[i] = 1.0F / wave(r, i, theta);
}

void tm_rope_frequencies(tm_rope *r, uint32_t head_dim, double theta) {
    tm_rope_frequencies_part(r, head_dim, head_dim, theta);
}

void tm_rope_scale_linear(tm_rope *r, double factor) {
    for (uint32_t i = 0; i < r->rotary / 2; i++) r->inv_freq[i] /= (float)factor;
}

void tm_rope_scale_first(tm_rope *r, uint32_t pairs, double factor) {
    for (uint32_t i = 0; i < r->rotary / 2; i++) r->inv_freq[i] = i < pairs ? r->inv_freq[i] / (float)factor : 0;
}

void tm_rope_scale_llama3(tm_rope *r, double factor, double low, double high, double original) {
    for (uint32_t i = 0; i < r->rotary / 2; i++) {
        float freq = r->inv_freq[i];
        double wavelength = 2.0 * M_PI / (double)freq;
        if (wavelength < original / high) continue;
        if (wavelength > original / low) {
            r->inv_freq[i] = (float)((double)freq / factor);
            continue;
        }
        double smooth = (original / wavelength - low) / (high - low);
        r->inv_freq[i] = (float)((1.0 - smooth) * (double)freq / factor + smooth * (double)freq);
    }
}

/* The index of the frequency that turns `turns` times in the original positions. */
static double yarn_index(const tm_rope *r, const tm_yarn *y, double turns) {
    return r->rotary * log(y->original / (turns * 2 * M_PI)) / (2 * log(y->theta));
}

void tm_rope_scale_yarn(tm_rope *r, const tm_yarn *y) {
    double low = yarn_index(r, y, y->beta_fast), high = yarn_index(r, y, y->beta_slow);
    if (y->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, r->rotary - 1.0);
    if (low == high) high += 0.001; /* as the reference keeps the slope finite */
    for (uint32_t i = 0; i < r->rotary / 2; i++) {
        float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1), kept = 1 - ramp;
        float whole = r->inv_freq[i], divided = 1.0F / ((float)y->factor * wave(r, i, y->theta));
        r->inv_freq[i] = divided * (1 - kept) + whole * kept;
    }
}

void tm_rope_scale_each(tm_rope *r, const float *divisor, uint32_t n, double theta) {
    TM_ASSERT(n <= r->rotary / 2);
    for (uint32_t i = 0; i < n; i++) r->inv_freq[i] = 1.0F / (divisor[i] * wave(r, i, theta));
}

/* The angle is rounded to fp32 as the reference rounds it; its sine and cosine are then exact to fp32. */
static void angles(const tm_rope *r, uint32_t position, float *cosine, float *sine) {
    for (uint32_t i = 0; i < r->rotary / 2; i++) {
        double angle = (double)((float)position * r->inv_freq[i]);
        cosine[i] = (float)cos(angle) * r->factor;
        sine[i] = (float)sin(angle) * r->factor;
    }
}

tm_status tm_rope_fill(tm_rope *r, uint32_t positions) {
    uint32_t half = r->rotary / 2, n = positions < TM_ROPE_CACHED ? positions : TM_ROPE_CACHED;
    size_t bytes = (size_t)n * 2 * half * sizeof(float);
    r->table = tm_malloc(bytes);
    if (!r->table) return tm_nomem(bytes);
    for (uint32_t p = 0; p < n; p++)
        angles(r, p, r->table + (size_t)p * 2 * half, r->table + ((size_t)p * 2 + 1) * half);
    r->cached = n;
    return TM_OK;
}

void tm_rope_free(tm_rope *r) {
    tm_free(r->table);
    r->table = NULL;
    r->cached = 0;
}

/* Cosines, then sines of a position: from the table, or computed into buf. */
static const float *angles_of(const tm_rope *r, uint64_t position, float *buf) {
    uint32_t half = r->rotary / 2;
    if (position < r->cached) return r->table + position * 2 * half;
    angles(r, (uint32_t)position, buf, buf + half);
    return buf;
}

/* Pairs that lie side by side are taken apart, turned, and put together. */
static void rotate_pairs(const float *table, uint32_t half, bool inverse, float *x) {
    float buf[TM_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < half; i++) buf[i] = x[2 * i], buf[half + i] = x[2 * i + 1];
    kernels.rotate(table, table + half, inverse, buf, buf + half, half);
    for (uint32_t i = 0; i < half; i++) x[2 * i] = buf[i], x[2 * i + 1] = buf[half + i];
}

static void rotate_f32(const tm_rope *r, const float *table, bool inverse, float *x) {
    uint32_t half = r->rotary / 2;
    if (r->interleaved)
        rotate_pairs(table, half, inverse, x);
    else
        kernels.rotate(table, table + half, inverse, x, x + half, half);
}

static void rotate_head(const tm_rope *r, tm_elem t, const float *table, bool inverse, void *x, uint64_t at) {
    float buf[TM_MAX_HEAD_DIM];
    if (t == TM_ELEM_F32) {
        rotate_f32(r, table, inverse, (float *)x + at);
        return;
    }
    kernels_widen(t, (uint16_t *)x + at, buf, r->rotary);
    rotate_f32(r, table, inverse, buf);
    kernels_narrow(t, buf, (uint16_t *)x + at, r->rotary);
}

void kernels_rotate_back(const tm_rope *r, uint64_t position, float *x) {
    float buf[TM_MAX_HEAD_DIM];
    rotate_f32(r, angles_of(r, position, buf), true, x);
}

void tm_rope_apply(const tm_rope *r, tm_elem t, uint64_t row0, uint64_t rows, uint64_t ld, uint32_t heads, void *x,
                   tm_positions pos, bool inverse) {
    uint32_t d = r->head_dim;
#pragma omp parallel for schedule(static) num_threads(kernels_team()) if (rows > 8)
    for (uint64_t i = 0; i < rows; i++) {
        float buf[TM_MAX_HEAD_DIM];
        const float *table = angles_of(r, tm_position(&pos, row0 + i), buf);
        for (uint32_t h = 0; h < heads; h++) rotate_head(r, t, table, inverse, x, i * ld + (uint64_t)h * d);
    }
}

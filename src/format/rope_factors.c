/* llama3 RoPE scaling in GGUF: not as parameters but as a tensor rope_freqs.weight, what each frequency is divided by.
 *
 * With wavelength w_i = 2 pi theta^(2i/d), original context O, factor F, low and high frequency factors:
 *   O / w_i >= high: 1;   O / w_i <= low: F;   between: 1 / ((1 - s) / F + s), s = (O / w_i - low) / (high - low).
 * Only low / O and high / O matter, so that from the tensor alone O is a matter of taste. */
#include "format/gguf_internal.h"

#include <math.h>
#include <string.h>

static double inverse_wavelength(const tm_gguf_keys *k, uint32_t i) {
    return pow(k->rope_theta, -2.0 * (double)i / (double)k->head_dim) / (2 * 3.14159265358979323846);
}

void tm_llama3_factors(const tm_gguf_keys *k, float *factors) {
    for (uint32_t i = 0; i < k->head_dim / 2; i++) {
        double x = (double)k->rope_original * inverse_wavelength(k, i);
        double s = (x - k->rope_low) / (k->rope_high - k->rope_low);
        factors[i] = x > k->rope_high  ? 1.0f
                     : x < k->rope_low ? (float)k->rope_factor
                                       : (float)(1 / ((1 - s) / k->rope_factor + s));
    }
}

static bool explains(const tm_gguf_keys *k, const float *factors) {
    float mine[512];
    if (!(k->rope_low > 0 && k->rope_high > k->rope_low && k->rope_factor >= 1 && k->rope_original > 0)) return false;
    tm_llama3_factors(k, mine);
    for (uint32_t i = 0; i < k->head_dim / 2; i++)
        if (!(fabsf(mine[i] - factors[i]) <= 2e-4f * factors[i])) return false;
    return true;
}

/* O / w is linear in s, and s follows from the factor: a line through the first and the last factor in between. */
static bool line(tm_gguf_keys *k, const float *factors, double *low, double *high) {
    double x[2] = {0}, s[2] = {0};
    int n = 0, count = 0;
    for (uint32_t i = 0; i < k->head_dim / 2; i++) {
        double f = (double)factors[i];
        if (f < 1.0001 || f > k->rope_factor * 0.9999) continue;
        x[n] = inverse_wavelength(k, i);
        s[n] = (1 / f - 1 / k->rope_factor) / (1 - 1 / k->rope_factor);
        n = 1;
        count++;
    }
    if (count < 2 || s[0] <= s[1]) return false;
    double slope = (x[0] - x[1]) / (s[0] - s[1]);
    *low = x[0] - s[0] * slope; /* low / O and high / O */
    *high = *low + slope;
    return *low > 0;
}

/* Parameters that give these factors. `original` is 0 where the file does not say. */
static bool solve(tm_gguf_keys *k, const float *factors, uint32_t original) {
    double low, high;
    k->rope_factor = 1;
    for (uint32_t i = 0; i < k->head_dim / 2; i++) k->rope_factor = fmax(k->rope_factor, (double)factors[i]);
    k->rope_low = 1;
    k->rope_high = 4;
    k->rope_original = original ? original : 8192; /* as published for Llama 3.1 and later */
    if (explains(k, factors)) return true;
    if (!line(k, factors, &low, &high)) return false;
    if (original) {
        k->rope_low = round(low * original * 64) / 64;
        k->rope_high = round(high * original * 64) / 64;
    } else {
        k->rope_original = (uint32_t)fmin(fmax(round(1 / low), 1), 1e9);
        k->rope_high = round(high / low * 64) / 64;
    }
    return explains(k, factors);
}

tm_status tm_gguf_read_rope_factors(const tm_gguf *g, tm_gguf_keys *k) {
    int64_t t = tm_gguf_tensor_find(g, "rope_freqs.weight");
    float factors[512];
    uint64_t original = 0;
    char key[TM_GGUF_ARCH_KEY];
    if (t < 0) return TM_OK;
    if (tm_gguf_tensor_get(g, (uint32_t)t)->elements != k->head_dim / 2 || k->head_dim > 1024)
        return tm_fail(TM_EINPUT, "%s: 'rope_freqs.weight' must have head_dim / 2 = %u elements", tm_gguf_path(g),
                       k->head_dim / 2);
    TM_TRY(tm_gguf_read_f32(g, (uint32_t)t, 0, k->head_dim / 2, factors));
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "rope.scaling.original_context_length", key), &original,
                        &(bool){false}));
    k->rope = TM_KEYS_ROPE_LLAMA3;
    if (solve(k, factors, original <= 1000000000 ? (uint32_t)original : 0)) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "%s: 'rope_freqs.weight' is no llama3 scaling; other kinds are not supported",
                   tm_gguf_path(g));
}

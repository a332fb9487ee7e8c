/* RoPE scaling that GGUF has as tensors: longrope's two lists of factors, and llama3's rope_freqs.weight, not as
 * parameters but as what each frequency is divided by.
 *
 * With wavelength w_i = 2 pi theta^(2i/d), original context O, factor F, low and high frequency factors:
 *   O / w_i >= high: 1;   O / w_i <= low: F;   between: 1 / ((1 - s) / F + s), s = (O / w_i - low) / (high - low).
 * Only low / O and high / O matter, so that from the tensor alone O is a matter of taste. */
#include "format/gguf_internal.h"

#include <math.h>
#include <string.h>

static double inverse_wavelength(const tm_gguf_keys *k, uint32_t i) {
    return pow(k->rope.theta, -2.0 * (double)i / (double)k->rope.rotary) / (2 * 3.14159265358979323846);
}

static void llama3_factors(const tm_gguf_keys *k, float *factors) {
    for (uint32_t i = 0; i < k->rope.rotary / 2; i++) {
        double x = (double)k->rope.original * inverse_wavelength(k, i);
        double s = (x - k->rope.low) / (k->rope.high - k->rope.low);
        factors[i] = x > k->rope.high  ? 1.0f
                     : x < k->rope.low ? (float)k->rope.factor
                                       : (float)(1 / ((1 - s) / k->rope.factor + s));
    }
}

static bool explains(const tm_gguf_keys *k, const float *factors) {
    float mine[TM_KEYS_MAX_FACTORS];
    if (!(k->rope.low > 0 && k->rope.high > k->rope.low && k->rope.factor >= 1 && k->rope.original > 0)) return false;
    llama3_factors(k, mine);
    for (uint32_t i = 0; i < k->rope.rotary / 2; i++)
        if (!(fabsf(mine[i] - factors[i]) <= 2e-4f * factors[i])) return false;
    return true;
}

/* O / w is linear in s, and s follows from the factor: a line through the first and the last factor in between. */
static bool line(tm_gguf_keys *k, const float *factors, double *low, double *high) {
    double x[2] = {0}, s[2] = {0};
    int n = 0, count = 0;
    for (uint32_t i = 0; i < k->rope.rotary / 2; i++) {
        double f = (double)factors[i];
        if (f < 1.0001 || f > k->rope.factor * 0.9999) continue;
        x[n] = inverse_wavelength(k, i);
        s[n] = (1 / f - 1 / k->rope.factor) / (1 - 1 / k->rope.factor);
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
    k->rope.factor = 1;
    for (uint32_t i = 0; i < k->rope.rotary / 2; i++) k->rope.factor = fmax(k->rope.factor, (double)factors[i]);
    k->rope.low = 1;
    k->rope.high = 4;
    k->rope.original = original ? original : 8192; /* as published for Llama 3.1 and later */
    if (explains(k, factors)) return true;
    if (!line(k, factors, &low, &high)) return false;
    if (original) {
        k->rope.low = round(low * original * 64) / 64;
        k->rope.high = round(high * original * 64) / 64;
    } else {
        k->rope.original = (uint32_t)fmin(fmax(round(1 / low), 1), 1e9);
        k->rope.high = round(high / low * 64) / 64;
    }
    return explains(k, factors);
}

static tm_status check_count(const tm_gguf *g, uint32_t tensor, const tm_gguf_keys *k) {
    const tm_gguf_tensor *t = tm_gguf_tensor_get(g, tensor);
    if (t->elements == k->rope.rotary / 2 && t->elements <= TM_KEYS_MAX_FACTORS && tm_fmt_get(t->fmt)->readable)
        return TM_OK;
    return tm_fail(TM_EINPUT, "%s: '%s' must have head_dim / 2 = %u elements", tm_gguf_path(g), t->name,
                   k->rope.rotary / 2);
}

static tm_status read_llama3(const tm_gguf *g, uint32_t tensor, tm_gguf_keys *k) {
    float factors[TM_KEYS_MAX_FACTORS];
    uint64_t original = 0;
    char key[TM_GGUF_ARCH_KEY];
    TM_TRY(check_count(g, tensor, k));
    TM_TRY(tm_gguf_read_f32(g, tensor, 0, k->rope.rotary / 2, factors));
    TM_TRY(tm_gguf_uint(g, tm_gguf_arch_key(k->arch, "rope.scaling.original_context_length", key), &original,
                        &(bool){false}));
    if (k->rope.kind == TM_GGUF_ROPE_DEFAULT && !(k->arch->flags & (TM_ARCH_LOCAL_ROPE | TM_ARCH_PARTIAL))) {
        k->rope.kind = TM_GGUF_ROPE_LLAMA3;
        if (solve(k, factors, original <= 1000000000 ? (uint32_t)original : 0)) return TM_OK;
    }
    return tm_fail(TM_EUNSUPPORTED, "%s: 'rope_freqs.weight' is no llama3 scaling; other kinds are not supported",
                   tm_gguf_path(g));
}

enum { NEVER = 1000000 };
static const float INFINITE = 1e30f; /* as llama.cpp's converter has it */

/* Gemma 4's layers without a window: 1 where the head is rotated, without end where it is not. */
static tm_status read_proportional(const tm_gguf *g, uint32_t tensor, tm_gguf_keys *k) {
    float factors[TM_KEYS_MAX_FACTORS];
    const tm_gguf_tensor *t = tm_gguf_tensor_get(g, tensor);
    uint32_t half = k->by_layer.global_head_dim / 2, turned = 0;
    bool right = t->elements == half && half <= TM_KEYS_MAX_FACTORS && tm_fmt_get(t->fmt)->readable;
    if (right) TM_TRY(tm_gguf_read_f32(g, tensor, 0, half, factors));
    while (right && turned < half && factors[turned] == 1) turned++;
    for (uint32_t i = turned; right && i < half; i++) right = factors[i] > NEVER;
    if (!right)
        return tm_fail(TM_EINPUT, "%s: 'rope_freqs.weight' is not 1 and then without end, %u in all", tm_gguf_path(g),
                       half);
    k->rope.rotary = 2 * turned;
    return TM_OK;
}

static const char *const tensors[] = {"rope_factors_short.weight", "rope_factors_long.weight", "rope_freqs.weight"};

bool tm_gguf_is_rope_tensor(const char *name) {
    for (size_t i = 0; i < TM_COUNT(tensors); i++)
        if (strcmp(tensors[i], name) == 0) return true;
    return false;
}

tm_status tm_gguf_read_rope_factors(const tm_gguf *g, tm_gguf_keys *k) {
    int64_t t = tm_gguf_tensor_find(g, "rope_freqs.weight");
    if (k->rope.kind == TM_GGUF_ROPE_PROPORTIONAL) {
        k->rope.rotary = k->by_layer.global_head_dim;
        return t < 0 ? TM_OK : read_proportional(g, (uint32_t)t, k);
    }
    if (t >= 0) return read_llama3(g, (uint32_t)t, k);
    for (int f = 0; f < 2 && k->rope.kind == TM_GGUF_ROPE_LONGROPE; f++) {
        t = tm_gguf_tensor_find(g, tensors[f]);
        if (t < 0) return tm_fail(TM_EINPUT, "%s: '%s' is missing", tm_gguf_path(g), tensors[f]);
        TM_TRY(check_count(g, (uint32_t)t, k));
        TM_TRY(tm_gguf_read_f32(g, (uint32_t)t, 0, k->rope.rotary / 2, k->rope.factors[f]));
        for (uint32_t i = 0; i < k->rope.rotary / 2; i++)
            if (!(k->rope.factors[f][i] > 0 && k->rope.factors[f][i] < 3e38f))
                return tm_fail(TM_EINPUT, "%s: '%s' has a factor that is not positive", tm_gguf_path(g), tensors[f]);
    }
    return TM_OK;
}

uint32_t tm_gguf_rope_tensors(const tm_gguf_keys *k, tm_gguf_rope_tensor out[2]) {
    if (k->rope.kind == TM_GGUF_ROPE_LLAMA3) {
        out[0].name = tensors[2];
        out[0].n = k->rope.rotary / 2;
        llama3_factors(k, out[0].values);
        return 1;
    }
    if (k->rope.kind == TM_GGUF_ROPE_PROPORTIONAL) {
        out[0].name = tensors[2];
        out[0].n = k->by_layer.global_head_dim / 2;
        for (uint32_t i = 0; i < out[0].n; i++) out[0].values[i] = i < k->rope.rotary / 2 ? 1 : INFINITE;
        return 1;
    }
    for (int f = 0; f < 2 && k->rope.kind == TM_GGUF_ROPE_LONGROPE; f++) {
        out[f].name = tensors[f];
        out[f].n = k->rope.rotary / 2;
        memcpy(out[f].values, k->rope.factors[f], sizeof out[f].values);
    }
    return k->rope.kind == TM_GGUF_ROPE_LONGROPE ? 2 : 0;
}

/* As transformers and llama.cpp's converter have it: sqrt(1 + ln(positions / original) / ln(original)). */
double tm_longrope_attention_factor(const tm_gguf_keys *k) {
    double original = (double)k->rope.original, times = (double)k->context / original;
    return times > 1 && original > 1 ? sqrt(1 + log(times) / log(original)) : 1;
}

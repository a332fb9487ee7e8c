/* AdamW and the gradient's finish: bit for bit optim's, on every form, option and odd value. */
#include "machine.h"
#include "optim/optim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t sizes[] = {0, 1, 255, 257, 5000};

static cuda_adamw_step step_of(const tm_adamw_step *s) {
    return (cuda_adamw_step){.grad_scale = s->grad_scale,
                             .decay = s->decay,
                             .l2 = s->l2,
                             .one_minus_beta1 = s->one_minus_beta1,
                             .beta1 = s->beta1,
                             .beta2 = s->beta2,
                             .one_minus_beta2 = s->one_minus_beta2,
                             .bc2_sqrt = s->bc2_sqrt,
                             .eps = s->eps,
                             .neg_step_size = s->neg_step_size,
                             .use_l2 = s->use_l2,
                             .lerp_from_end = s->lerp_from_end};
}

static float *moments(size_t n, bool odd) {
    float *v = odd ? odd_floats(n) : random_floats(n, 1);
    for (size_t i = 0; i < n; i++) v[i] = fabsf(v[i]);
    return v;
}

static void adamw_case(const tm_adamw_opts *o, size_t n, bool split, bool odd) {
    tm_adamw_step step;
    tm_adamw_step_init(&step, o, 1e-2, 3, 0.7);
    float *w = odd ? odd_floats(n) : random_floats(n, 2), *g = odd ? odd_floats(n) : random_floats(n, 1);
    float *m = random_floats(n, 1), *v = moments(n, odd), *got = scratch(n * 4);
    uint16_t *hi = scratch(n * 2), *lo = scratch(n * 2), *got16 = scratch(n * 2);
    void *hg = split ? stored(TM_ELEM_BF16, g, n) : g;
    tm_split_f32(w, hi, lo, n);
    cuda_adamw_args a = {.n = n, .step = step_of(&step), .grad_type = split ? CUDA_BF16 : CUDA_F32};
    a.grad = give(hg, n * (split ? 2 : 4));
    a.exp_avg = give_at(m, n * 4, n == 257 ? 4 : 0); /* not by fours there */
    a.exp_avg_sq = give(v, n * 4);
    if (split)
        a.hi = give(hi, n * 2), a.lo = give(lo, n * 2);
    else
        a.weight = give(w, n * 4);
    uint64_t bad = 0, want_bad;
    cuda_adamw(&a, &bad);
    if (split) {
        want_bad = tm_adamw_split(hi, lo, m, v, hg, n, &step);
        take(a.hi, got16, n * 2), same_bytes("hi", got16, hi, n * 2);
        take(a.lo, got16, n * 2), same_bytes("lo", got16, lo, odd ? 0 : n * 2); /* bits of NaN are anybody's */
    } else {
        want_bad = tm_adamw_f32(w, m, v, g, n, &step);
        take(a.weight, got, n * 4), same_floats("weight", got, w, n);
    }
    take(a.exp_avg, got, n * 4), same_floats("exp_avg", got, m, n);
    take(a.exp_avg_sq, got, n * 4), same_floats("exp_avg_sq", got, v, n);
    if (n > 0 && bad != want_bad)
        fail_msg("%llu not finite, expected %llu", (unsigned long long)bad, (unsigned long long)want_bad);
}

static void test_adamw(void **state) {
    (void)state;
    static const tm_adamw_opts options[] = {{0.9, 0.95, 1e-8, 0.1, true, true},
                                            {0.9, 0.999, 1e-6, 0.01, false, true},
                                            {0.4, 0.999, 1e-8, 0, true, false},
                                            {0.3, 0.9, 1e-8, 0.2, false, true}};
    EACH_ORDER
    for (size_t i = 0; i < TM_COUNT(options); i++)
        for (size_t s = 0; s < TM_COUNT(sizes); s++)
            for (int form = 0; form < 4; form++)
                if (form != 3) adamw_case(&options[i], sizes[s], form & 1, form & 2);
}

static void finish_case(tm_elem t, size_t n, bool odd) {
    size_t blocks = (size_t)tm_norm_block_count(n), e = elem_size(t);
    float *sum = odd ? odd_floats(n) : random_floats(n, 1), *g = scratch(n * 4), *w = scratch(n * 4);
    void *want = scratch(n * e), *got = scratch(n * e), *dev = give(sum, n * 4), *out = give(NULL, n * e);
    double *partial = scratch(blocks * 8), *got_partial = scratch(blocks * 8);
    void *dev_partial = give(NULL, blocks * 8);
    cuda_grad_finish(t, dev, out, n, dev_partial);
    take(out, got, n * e);
    take(dev_partial, got_partial, blocks * 8);
    if (t == TM_ELEM_F32)
        tm_grad_finish_f32(sum, want, n, partial);
    else
        tm_grad_finish_bf16(sum, want, n, partial);
    widened(t, got, g, n), widened(t, want, w, n);
    same_floats("gradient", g, w, n);
    for (size_t b = 0; b < blocks; b++)
        if (got_partial[b] != partial[b] && !(isnan(got_partial[b]) && isnan(partial[b])))
            fail_msg("norm of block %zu: %a, expected %a", b, got_partial[b], partial[b]);
}

static void test_finish(void **state) {
    (void)state;
    EACH_ORDER {
        for (tm_elem t = TM_ELEM_F32; t <= TM_ELEM_BF16; t++)
            for (size_t s = 0; s < TM_COUNT(sizes); s++) finish_case(t, sizes[s], s % 2);
        finish_case(TM_ELEM_BF16, TM_NORM_BLOCK + 2049, false);
        finish_case(TM_ELEM_F32, 2 * TM_NORM_BLOCK, false);
    }
}

/* Slices of several ranks, first to last, into one of them. */
static void sum_case(uint32_t ranks, uint32_t me, size_t n) {
    size_t stride = n + 3;
    float *all = random_floats(ranks * stride, 1), *want = scratch(n * 4), *got = scratch(n * 4);
    float *others = scratch((ranks - 1) * stride * 4);
    for (uint32_t r = 0, k = 0; r < ranks; r++)
        if (r != me) memcpy(others + k++ * stride, all + r * stride, n * 4);
    void *dev_own = give(all + me * stride, n * 4), *dev_others = give(others, (ranks - 1) * stride * 4);
    cuda_sum_slices(dev_own, dev_others, stride, ranks, me, dev_own, n);
    take(dev_own, got, n * 4);
    for (size_t i = 0; i < n; i++) {
        want[i] = all[i];
        for (uint32_t r = 1; r < ranks; r++) want[i] += all[r * stride + i];
    }
    same_floats("sum over ranks", got, want, n);
}

static void test_sums(void **state) {
    (void)state;
    EACH_ORDER
    for (uint32_t ranks = 2; ranks < 6; ranks++)
        for (uint32_t me = 0; me < ranks; me++)
            for (size_t s = 0; s < TM_COUNT(sizes); s++) sum_case(ranks, me, sizes[s]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_adamw), cmocka_unit_test(test_finish),
                                       cmocka_unit_test(test_sums)};
    return run_group("cuda optim", tests, TM_COUNT(tests));
}

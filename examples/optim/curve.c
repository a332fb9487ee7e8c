/* Fits y = sin(3x) with a small network (1 -> 16 tanh -> 1), its weights kept as split bf16 + 16 bits, by every
 * optimizer of libtidemill_optim, and prints the error before and after.
 *
 *     cc -O2 curve.c -o curve $(pkg-config --cflags --libs tidemill-optim) -lm && ./curve
 *
 * Shows: the table, options by name, states of the right size, one pass per step or three (Adafactor), the gradient's
 * norm and clip factor. Exit status 1 if one of them did not learn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tidemill/optim/optimizer.h>

enum { HIDDEN = 16, PARAMETERS = 3 * HIDDEN + 1, POINTS = 64, STEPS = 1500 };

/* Mean squared error of the network at `w`, and its gradient. */
static double loss(const float *w, float *gradient) {
    const float *in = w, *bias = w + HIDDEN, *out = w + 2 * HIDDEN;
    double sum = 0;
    memset(gradient, 0, PARAMETERS * sizeof *gradient);
    for (int p = 0; p < POINTS; p++) {
        float x = 2.0f * (float)p / (POINTS - 1) - 1, h[HIDDEN], y = w[3 * HIDDEN];
        for (int i = 0; i < HIDDEN; i++) y += out[i] * (h[i] = tanhf(in[i] * x + bias[i]));
        float error = y - sinf(3 * x), d = 2 * error / POINTS;
        sum += (double)(error * error) / POINTS;
        gradient[3 * HIDDEN] += d;
        for (int i = 0; i < HIDDEN; i++) {
            float inner = d * out[i] * (1 - h[i] * h[i]);
            gradient[i] += inner * x;
            gradient[HIDDEN + i] += inner;
            gradient[2 * HIDDEN + i] += d * h[i];
        }
    }
    return sum;
}

typedef struct training {
    const tm_optimizer *optimizer;
    tm_optim_opts opts;
    tm_optim_tensor tensor; /* one vector of all parameters */
    uint16_t hi[PARAMETERS], lo[PARAMETERS];
} training;

/* Whatever the optimizer keeps, zeroed. */
static void make_states(training *t) {
    t->tensor.shape = (tm_optim_shape){.matrices = 1, .rows = 0, .columns = PARAMETERS};
    for (uint32_t k = 0; k < t->optimizer->n_states; k++) {
        size_t bytes = tm_optim_state_bytes(t->optimizer, &t->opts, k, &t->tensor.shape);
        t->tensor.state[k] = bytes ? calloc(1, bytes) : NULL;
    }
    size_t scratch = tm_optim_scratch_bytes(t->optimizer, &t->tensor.shape);
    t->tensor.scratch = scratch ? malloc(scratch) : NULL;
}
static void free_states(training *t) {
    for (int k = 0; k < TM_OPTIM_STATES; k++) free(t->tensor.state[k]);
    free(t->tensor.scratch);
}

/* One step; returns how many values are not finite. */
static uint64_t update(training *t, const float *gradient, double rate, int64_t number) {
    double partial[1]; /* one block of at most TM_NORM_BLOCK elements */
    tm_norm_blocks_f32(gradient, PARAMETERS, partial);
    double clip = tm_clip_factor(sqrt(tm_sum_blocks(partial, 1)), 1.0);

    tm_optim_step step;
    tm_optim_step_init(&step, t->optimizer, &t->opts, rate, number, clip);
    tm_optim_span span = {
        .weight_hi = t->hi, .weight_lo = t->lo, .grad = gradient, .grad_type = TM_GRAD_F32, .n = PARAMETERS};
    memcpy(span.state, t->tensor.state, sizeof span.state);
    if (t->optimizer->passes == 1) return tm_optim_run(&step, &span);

    uint64_t bad = 0;
    tm_optim_begin(&step, &t->tensor);
    for (uint32_t pass = 0; pass < t->optimizer->passes; pass++) {
        bad += tm_optim_pass(&step, &t->tensor, pass, &span); /* here the tensor is one span */
        tm_optim_turn(&step, &t->tensor, pass);
    }
    return bad;
}

static int fit(const char *name, double rate, const char *key, double value) {
    training t = {.optimizer = tm_optimizer_find(name)};
    float w[PARAMETERS], gradient[PARAMETERS];
    double first = 0;
    if (!t.optimizer) return 1;
    tm_optim_defaults(t.optimizer, &t.opts);
    if (key && !tm_optim_set(t.optimizer, &t.opts, key, value)) return 1;
    if (tm_optim_check(t.optimizer, &t.opts)) return 1;
    make_states(&t);
    for (int i = 0; i < PARAMETERS; i++) w[i] = 0.5f * sinf(12.9898f * (float)(i + 1)); /* fixed, and well mixed */
    tm_split_f32(w, t.hi, t.lo, PARAMETERS);
    for (int64_t s = 1; s <= STEPS; s++) {
        double l = loss(w, gradient);
        if (s == 1) first = l;
        if (update(&t, gradient, rate * (1 - (double)(s - 1) / STEPS), s) != 0) return 1;
        tm_join_f32(t.hi, t.lo, w, PARAMETERS);
    }
    double last = loss(w, gradient);
    free_states(&t);
    printf("%-12s %.4f -> %.6f\n", name, first, last);
    return !(last < first / 50);
}

int main(void) {
    printf("instruction set: %s\n", tm_optim_isa());
    int failed = 0;
    failed += fit("adamw", 0.01, "weight_decay", 0.001);
    failed += fit("adam", 0.01, NULL, 0);
    failed += fit("adamw_8bit", 0.01, "weight_decay", 0.001);
    failed += fit("sgd", 0.05, "momentum", 0.9);
    failed += fit("lion", 0.002, NULL, 0);
    failed += fit("adagrad", 0.1, NULL, 0);
    failed += fit("adafactor", 0, NULL, 0);
    return failed != 0;
}

#include "slopes.h"

#include "world.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A line through a tensor's values. */
typedef struct line {
    run *r;
    uint32_t tensor;
    uint64_t n;
    float *base, *at;
    double *direction; /* [n], of length 1 */
    double distance;   /* of the points that are looked at: this and twice this */
} line;

static double loss_at(const line *l, double distance) {
    uint64_t labels;
    for (uint64_t i = 0; i < l->n; i++) l->at[i] = (float)((double)l->base[i] + distance * l->direction[i]);
    run_set_tensor(l->r, l->tensor, l->at);
    run_forward(l->r, BATCH_OUTER);
    return run_loss(l->r, NULL, &labels);
}

/* Two central differences, extrapolated: what is left goes with the fourth power of the distance. */
static double slope(const line *l) {
    double d[2];
    for (int i = 0; i < 2; i++) {
        double distance = l->distance * (1 + i);
        d[i] = (loss_at(l, distance) - loss_at(l, -distance)) / (2 * distance);
    }
    run_set_tensor(l->r, l->tensor, l->base);
    return (4 * d[0] - d[1]) / 3;
}

static double length(const double *x, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

double steepness(const tm_model *m) {
    return tm_model_get_config(m)->attention_scale == 1 ? 4 : 1;
}

/* Direction 0 is the gradient's own, where what it has too much shows; the others are random, where what it lacks does.
 * Along its own the loss is steep: the points are nearer. */
static void choose_direction(line *l, const float *gradient, unsigned which) {
    for (uint64_t i = 0; i < l->n; i++) {
        double pair[2];
        tm_philox_normal2(100 * l->tensor + which, i / 2, pair);
        l->direction[i] = which ? pair[i % 2] : (double)gradient[i];
    }
    double size = length(l->direction, l->n);
    for (uint64_t i = 0; i < l->n; i++) l->direction[i] = size > 0 ? l->direction[i] / size : 0;
    l->distance = (which ? 0.04 : 0.01) / steepness(l->r->m);
}

/* The largest difference of a slope and the gradient along it, in units of what is allowed. The mean loss, about 6, is
 * right to some 1e-7 in fp32: over the distance between the points that is below 1e-5 (a random direction) and 3e-5.
 * What the extrapolation leaves is below 1e-4 of the slope. Twice that is allowed. */
static double check_tensor(line *l, const float *gradient) {
    enum { DIRECTIONS = 3 };
    double worst = 0;
    for (unsigned which = 0; which < DIRECTIONS; which++) {
        double along = 0;
        choose_direction(l, gradient, which);
        for (uint64_t i = 0; i < l->n; i++) along += (double)gradient[i] * l->direction[i];
        double allowed = (which ? 2e-5 : 6e-5) * steepness(l->r->m) + 2e-4 * fabs(along);
        worst = fmax(worst, fabs(slope(l) - along) / allowed);
    }
    return worst;
}

double check_tensor_slopes(run *r, uint64_t seed, uint32_t t) {
    uint64_t n = tm_model_tensor(r->m, t)->elements;
    float *gradient = malloc(n * sizeof *gradient);
    line l = {.r = r, .tensor = t, .n = n};
    l.base = malloc(n * sizeof *l.base), l.at = malloc(n * sizeof *l.at);
    l.direction = malloc(n * sizeof *l.direction);
    lively_values(tm_model_tensor(r->m, t), seed, l.base);
    run_tensor_grad(r, t, gradient);
    double worst = check_tensor(&l, gradient);
    free(gradient), free(l.base), free(l.at), free(l.direction);
    return worst;
}

double check_slopes(run *r, uint64_t seed, const char *name) {
    double worst = 0;
    for (uint32_t t = 0; t < tm_model_tensors(r->m); t++) {
        if (!tm_model_tensor(r->m, t)->learns) continue;
        double here = check_tensor_slopes(r, seed, t);
        worst = fmax(worst, here);
        if (!(here <= 1)) fail_msg("%s %s: %.3g times what is allowed", name, tm_model_tensor(r->m, t)->name, here);
    }
    return worst;
}

#include "step/objective.h"

#include <string.h>

/* ---- sft: token-weighted cross-entropy. Every label of the step weighs the same, whatever micro-batch it is in ---- */

static double sft_loss(const objective_step *s, const tm_micro_batch *b, const float *nll) {
    double sum = 0;
    (void)s;
    for (uint32_t t = 0; t < b->tokens; t++) sum += (double)nll[t];
    return sum;
}

static void sft_coefficients(const objective_step *s, const tm_micro_batch *b, float *nll) {
    float each = s->labels ? (float)(s->scale / (double)s->labels) : 0;
    for (uint32_t t = 0; t < b->tokens; t++) nll[t] = b->labels[t] >= 0 ? each : 0;
}

static const tm_objective objectives[] = {{"sft", sft_loss, sft_coefficients}};

const tm_objective *tm_objective_find(const char *name) {
    for (size_t i = 0; i < TM_COUNT(objectives); i++)
        if (strcmp(objectives[i].name, name) == 0) return &objectives[i];
    return NULL;
}

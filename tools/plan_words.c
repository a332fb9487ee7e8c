/* The words of `tidemill plan`'s text, one line each: those that this plan uses. */
#include "tools/plan_words.h"

#include <stdio.h>
#include <string.h>

typedef struct word {
    const char *is, *means;
} word;

static const word updates[] = {
    {"U", "gradients wait, rounded, until backward is done and their norm is known; then all weights are updated"},
    {"F", "gradients wait, rounded, and are applied while the next step's forward reads the weights: one pass less"},
    {"B", "each weight is updated as soon as backward has its gradient: nothing waits, and nothing can be clipped"},
};
static const word activations[] = {
    {"keep", "what forward computed stays in memory for backward"},
    {"spill", "what forward computed is kept for backward, in memory or, where that is full, in the offload files"},
    {"recompute", "backward computes each block's forward again from its input"},
    {"mixed", "some blocks keep what forward computed, the others are computed again in backward"},
    {"offload", "what forward computed on the device is copied to the host until backward needs it"},
};
static const word orders[] = {
    {"unit", "a unit (embedding, block, head) does all micro-batches before the next one begins"},
    {"stage", "a stage (a part of a unit, such as attention) does all micro-batches before the next one begins"},
    {"micro-batch", "a micro-batch passes through all units before the next one begins"},
};

static void explain(const word *list, size_t n, const char *kind, const char *used) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].is, used) == 0) printf("  %s %s: %s\n", kind, used, list[i].means);
}

void tm_plan_words(const tm_plan_report *r) {
    printf("\nwords\n");
    explain(updates, TM_COUNT(updates), "update", r->update);
    explain(activations, TM_COUNT(activations), "activations", r->activations);
    explain(orders, TM_COUNT(orders), "by", r->order);
    printf(
        "  peak: most memory the process will have had (VmHWM); least: the smallest budget that train starts with\n");
    if (r->write_bytes_per_step + r->read_bytes_per_step > 0)
        printf("  weight_hi: weights as they are computed with; weight_lo: what they lack of fp32, for the update\n");
    printf("  padding: rows of a micro-batch are filled up to its longest; that is computed and learns nothing\n");
    printf("  wear: what is written to the drives; they are made for so many terabytes in all (TBW)\n");
    printf("  'tidemill help terms' explains every word\n");
}

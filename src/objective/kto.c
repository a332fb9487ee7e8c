/* kto: rows that are each wanted or not, held against a reference and against how far the policy has moved from it altogether
 * (Ethayarajh et al. 2024, arXiv:2402.01306). With r = log p / p_ref of a completion and kl the mean over all mismatched rows of
 * the step of the same, at least 0 and without a gradient:
 *
 *     desirable    w_d (1 - s(beta (r - kl)))
 *     undesirable  w_u (1 - s(beta (kl - r))) */
#include "objective/objective_internal.h"

#include <math.h>

enum { KL_SUM, KL_ROWS };                                                          /* what is shared */
enum { CHOSEN, CHOSEN_ROWS, CHOSEN_LOGP, REJECTED, REJECTED_ROWS, REJECTED_LOGP }; /* what is summed */
static const char *const metric[] = {"rewards/chosen", "rewards/rejected", "rewards/margins",
                                     "logps/chosen",   "logps/rejected",   "kl"};

static void share(const objective_step *s, const objective_batch *b, double *shared) {
    const objective_lane *lane = &b->lane[TM_LANE_MISMATCHED];
    (void)s;
    for (uint32_t row = 0; row < lane->batch->rows; row++) {
        shared[KL_SUM] += objective_row(lane, row).sum - objective_reference_row(b, TM_LANE_MISMATCHED, row);
        shared[KL_ROWS]++;
    }
}

static double kl_of(const objective_step *s) {
    return s->shared[KL_ROWS] > 0 ? fmax(0, s->shared[KL_SUM] / s->shared[KL_ROWS]) : 0;
}

static double run(const objective_step *s, const objective_batch *b, double *sum) {
    const objective_lane *lane = &b->lane[TM_LANE_POLICY];
    double all = 0, kl = kl_of(s), beta = s->spec->beta, n = (double)s->samples;
    for (uint32_t row = 0; row < lane->batch->rows; row++) {
        bool wanted = lane->desirable[row];
        double logp = objective_row(lane, row).sum, ratio = logp - objective_reference_row(b, TM_LANE_POLICY, row);
        double weight = wanted ? s->spec->desirable_weight : s->spec->undesirable_weight;
        double sign = wanted ? 1 : -1, held = objective_sigmoid(beta * sign * (ratio - kl));
        all += weight * (1 - held);
        objective_set_row(lane, row, weight * sign * beta * held * (1 - held) / n * s->scale);
        sum[wanted ? CHOSEN : REJECTED] += beta * ratio;
        sum[wanted ? CHOSEN_ROWS : REJECTED_ROWS]++;
        sum[wanted ? CHOSEN_LOGP : REJECTED_LOGP] += logp;
    }
    objective_clear_tail(lane);
    return all;
}

static void metrics(const objective_step *s, const double *sum, double *value) {
    double chosen = sum[CHOSEN_ROWS] > 0 ? sum[CHOSEN_ROWS] : NAN,
           rejected = sum[REJECTED_ROWS] > 0 ? sum[REJECTED_ROWS] : NAN;
    value[0] = sum[CHOSEN] / chosen;
    value[1] = sum[REJECTED] / rejected;
    value[2] = value[0] - value[1];
    value[3] = sum[CHOSEN_LOGP] / chosen;
    value[4] = sum[REJECTED_LOGP] / rejected;
    value[5] = kl_of(s);
}

const tm_objective objective_kto = {.name = "kto",
                                    .rows = 1,
                                    .by_sample = true,
                                    .reference = true,
                                    .mismatched = true,
                                    .columns = TM_COLUMN_DESIRABLE,
                                    .n_metrics = TM_COUNT(metric),
                                    .metric = metric,
                                    .shares = objective_always,
                                    .share = share,
                                    .run = run,
                                    .metrics = metrics};

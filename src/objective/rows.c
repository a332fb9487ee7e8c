/* Rows of a micro-batch: their log-probabilities and, of pairs, what all losses of pairs do. */
#include "objective/objective_internal.h"

#include <math.h>

/* log s(x) without overflow */
double objective_log_sigmoid(double x) {
    return fmin(x, 0) - log1p(exp(-fabs(x)));
}

double objective_sigmoid(double x) {
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

static bool is_completion(const objective_lane *lane, size_t t) {
    return lane->batch->labels[t] >= 0 && (!lane->completion || lane->completion[t]);
}

row_logp objective_row(const objective_lane *lane, uint32_t row) {
    row_logp out = {0};
    size_t first = (size_t)row * lane->batch->seq;
    for (size_t t = first; t < first + lane->batch->seq; t++)
        if (is_completion(lane, t)) out.sum -= (double)lane->nll[t], out.tokens++;
    return out;
}

void objective_clear_tail(const objective_lane *lane) {
    size_t rows = (size_t)lane->batch->rows * lane->batch->seq;
    for (size_t t = rows; t < lane->batch->tokens; t++) lane->nll[t] = 0;
}

bool objective_always(const tm_objective_spec *spec) {
    (void)spec;
    return true;
}

double tm_objective_logp(const objective_lane *lane, uint32_t row) {
    return objective_row(lane, row).sum;
}

double objective_reference_row(const objective_batch *b, tm_lane_name lane, uint32_t row) {
    bool mismatched = lane == TM_LANE_MISMATCHED;
    const objective_lane *own = &b->lane[mismatched ? TM_LANE_REFERENCE_MISMATCHED : TM_LANE_REFERENCE];
    if (own->batch) return objective_row(own, row).sum;
    TM_ASSERT(b->lane[lane].reference);
    return (double)b->lane[lane].reference[row];
}

void objective_set_row(const objective_lane *lane, uint32_t row, double d) {
    size_t first = (size_t)row * lane->batch->seq;
    for (size_t t = first; t < first + lane->batch->seq; t++) lane->nll[t] = is_completion(lane, t) ? (float)d : 0;
}

double objective_labels_sum(const objective_lane *lane, uint32_t row, uint64_t *labels) {
    size_t first = (size_t)row * lane->batch->seq;
    double sum = 0;
    for (size_t t = first; t < first + lane->batch->seq; t++)
        if (lane->batch->labels[t] >= 0) sum += (double)lane->nll[t], ++*labels;
    return sum;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

const char *const objective_pair_metric[PAIR_METRICS] = {
    "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies",
    "logps/chosen",   "logps/rejected",   "nll_loss"};

void objective_pair_metrics(const objective_step *s, const double *sum, double *value) {
    double n = (double)s->samples;
    double each[PAIR_METRICS] = {sum[PAIR_CHOSEN], sum[PAIR_REJECTED],    sum[PAIR_CHOSEN] - sum[PAIR_REJECTED],
                                 sum[PAIR_RIGHT],  sum[PAIR_LOGP_CHOSEN], sum[PAIR_LOGP_REJECTED]};
    for (int i = 0; i + 1 < PAIR_METRICS; i++) value[i] = n > 0 ? each[i] / n : NAN;
    value[PAIR_METRICS - 1] = s->shared[0] > 0 ? sum[PAIR_NLL] / s->shared[0] : NAN;
}

void objective_share_labels(const objective_step *s, const objective_batch *b, double *shared) {
    const objective_lane *lane = &b->lane[TM_LANE_POLICY];
    uint64_t labels = 0;
    (void)s;
    for (uint32_t row = 0; row < lane->batch->rows; row += 2) (void)objective_labels_sum(lane, row, &labels);
    shared[0] += (double)labels;
}

/* nll[t] += d of all labels of the row */
static void add_to_labels(const objective_lane *lane, uint32_t row, double d) {
    size_t first = (size_t)row * lane->batch->seq;
    for (size_t t = first; t < first + lane->batch->seq; t++)
        if (lane->batch->labels[t] >= 0) lane->nll[t] += (float)d;
}

static pair_terms terms_of(const objective_batch *b, uint32_t row, bool reference) {
    const objective_lane *lane = &b->lane[TM_LANE_POLICY];
    row_logp chosen = objective_row(lane, row), rejected = objective_row(lane, row + 1);
    pair_terms t = {.chosen = chosen.sum,
                    .rejected = rejected.sum,
                    .chosen_tokens = chosen.tokens ? chosen.tokens : 1,
                    .rejected_tokens = rejected.tokens ? rejected.tokens : 1};
    if (reference) t.reference_chosen = objective_reference_row(b, TM_LANE_POLICY, row);
    if (reference) t.reference_rejected = objective_reference_row(b, TM_LANE_POLICY, row + 1);
    return t;
}

pair_loss objective_smoothed(double beta, double smoothing, double z) {
    double d = beta * (-(1 - smoothing) * objective_sigmoid(-z) + smoothing * objective_sigmoid(z));
    double loss = -(1 - smoothing) * objective_log_sigmoid(z) - smoothing * objective_log_sigmoid(-z);
    return (pair_loss){.loss = loss, .d_chosen = d, .d_rejected = -d};
}

double objective_pairs(const objective_step *s, const objective_batch *b, double nll_weight, double *sum,
                       pair_loss (*loss)(const tm_objective_spec *spec, const pair_terms *t)) {
    const objective_lane *lane = &b->lane[TM_LANE_POLICY];
    bool reference = b->lane[TM_LANE_REFERENCE].batch || lane->reference;
    double all = 0, n = (double)s->samples, labels = s->shared[0];
    for (uint32_t row = 0; row + 1 < lane->batch->rows; row += 2) {
        pair_terms t = terms_of(b, row, reference);
        pair_loss l = loss(s->spec, &t);
        uint64_t counted = 0;
        double nll = nll_weight > 0 ? objective_labels_sum(lane, row, &counted) : 0;
        all += l.loss;
        if (labels > 0) all += nll_weight * nll / labels * n;
        objective_set_row(lane, row, -l.d_chosen / n * s->scale);
        objective_set_row(lane, row + 1, -l.d_rejected / n * s->scale);
        if (nll_weight > 0 && labels > 0) add_to_labels(lane, row, nll_weight / labels * s->scale);
        sum[PAIR_CHOSEN] += l.reward_chosen;
        sum[PAIR_REJECTED] += l.reward_rejected;
        sum[PAIR_RIGHT] += l.reward_chosen > l.reward_rejected;
        sum[PAIR_LOGP_CHOSEN] += l.logp_chosen;
        sum[PAIR_LOGP_REJECTED] += l.logp_rejected;
        sum[PAIR_NLL] += nll;
    }
    objective_clear_tail(lane);
    return all;
}

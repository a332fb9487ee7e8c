/* What objectives share: rows of a micro-batch and their log-probabilities. */
#ifndef TIDEMILL_OBJECTIVE_INTERNAL_H
#define TIDEMILL_OBJECTIVE_INTERNAL_H

#include "objective/objective.h"

extern const tm_objective objective_sft, objective_pretrain, objective_dpo, objective_kto, objective_simpo,
    objective_orpo, objective_cpo;

/* A row's log-probability of its completion, and how many tokens it has. */
typedef struct row_logp {
    double sum;
    uint32_t tokens;
} row_logp;
row_logp objective_row(const objective_lane *lane, uint32_t row);
/* As the reference has it: its lane's, or the column's. `lane`: of the policy with those rows. */
double objective_reference_row(const objective_batch *b, tm_lane_name lane, uint32_t row);
/* nll[t] = d of the row's completion, 0 elsewhere. */
void objective_set_row(const objective_lane *lane, uint32_t row, double d);
/* The sum of the nll of all labels of the row, whose number is added to *labels. */
double objective_labels_sum(const objective_lane *lane, uint32_t row, uint64_t *labels);

void objective_clear_tail(const objective_lane *lane); /* nll past the last row */
bool objective_always(const tm_objective_spec *spec);  /* tm_objective.shares */

double objective_sigmoid(double x);
double objective_log_sigmoid(double x);

/* What pairs report, in this order: rewards chosen, rejected, margins, accuracies, logps chosen, rejected, nll_loss. */
enum { PAIR_CHOSEN, PAIR_REJECTED, PAIR_RIGHT, PAIR_LOGP_CHOSEN, PAIR_LOGP_REJECTED, PAIR_NLL };
enum { PAIR_METRICS = 7 };
extern const char *const objective_pair_metric[PAIR_METRICS];
void objective_pair_metrics(const objective_step *s, const double *sum, double *value);

/* A pair's loss as a function of its two log-probabilities, sums over the completion. */
typedef struct pair_terms {
    double chosen, rejected;                     /* of the policy */
    double reference_chosen, reference_rejected; /* 0: there is none */
    uint32_t chosen_tokens, rejected_tokens;     /* at least 1 */
} pair_terms;
typedef struct pair_loss {
    double loss, d_chosen, d_rejected; /* derivatives by the policy's sums */
    double reward_chosen, reward_rejected;
    double logp_chosen, logp_rejected; /* as they are reported */
} pair_loss;
/* -(1 - e) log s(z) - e log s(-z), e = smoothing, of a z that grows by beta with the chosen one's. */
pair_loss objective_smoothed(double beta, double smoothing, double z);
/* All pairs of a micro-batch; `nll_weight`: of the chosen rows' mean nll, whose labels of the step `share` counted. */
double objective_pairs(const objective_step *s, const objective_batch *b, double nll_weight, double *sum,
                       pair_loss (*loss)(const tm_objective_spec *spec, const pair_terms *t));
void objective_share_labels(const objective_step *s, const objective_batch *b, double *shared);
/* What the rows of all objectives of pairs have alike. */
#define OF_PAIRS(word)                                                                                                 \
    .name = word, .rows = 2, .by_sample = true, .n_metrics = PAIR_METRICS, .metric = objective_pair_metric,            \
    .share = objective_share_labels, .metrics = objective_pair_metrics

#endif

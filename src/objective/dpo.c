/* dpo and its variants: pairs whose log-probabilities are held against a reference's (Rafailov et al. 2023, arXiv:2305.18290).
 * With a = log p / p_ref of the chosen completion, b of the rejected one, z = beta (a - b), e = label_smoothing:
 *
 *     sigmoid       -(1 - e) log s(z) - e log s(-z)                    e > 0: conservative (Mitchell 2023)
 *     robust        (-(1 - e) log s(z) + e log s(-z)) / (1 - 2 e)      Chowdhury et al. 2024, arXiv:2403.00409
 *     ipo           (a/na - b/nb - 1/(2 beta))^2                       Azar et al. 2023, arXiv:2310.12036; means over tokens as TRL has them
 *     hinge         max(0, 1 - z)                                      SLiC, arXiv:2305.10425
 *     sigmoid_norm  -log s(beta (a/na - b/nb))
 *     apo_zero      1 - s(beta a) + s(beta b)                          D'Oosterlinck et al. 2024, arXiv:2408.06266
 *
 * Several of them are added up by their weights (MPO, Wang et al. 2024, arXiv:2411.10442). `rpo_alpha` adds so much of the mean nll of the chosen completions (Pang et al. 2024, arXiv:2404.19733). */
#include "objective/objective_internal.h"

#include <math.h>

static pair_loss robust(double beta, double smoothing, double difference) {
    double z = beta * difference, all = 1 - 2 * smoothing;
    double d = beta * (-(1 - smoothing) * objective_sigmoid(-z) - smoothing * objective_sigmoid(z)) / all;
    double loss = (-(1 - smoothing) * objective_log_sigmoid(z) + smoothing * objective_log_sigmoid(-z)) / all;
    return (pair_loss){.loss = loss, .d_chosen = d, .d_rejected = -d};
}

static pair_loss hinge(double beta, double difference) {
    double margin = 1 - beta * difference, d = margin > 0 ? -beta : 0;
    return (pair_loss){.loss = fmax(0, margin), .d_chosen = d, .d_rejected = -d};
}

static pair_loss ipo(double beta, double difference) {
    double off = difference - 1 / (2 * beta);
    return (pair_loss){.loss = off * off, .d_chosen = 2 * off, .d_rejected = -2 * off};
}

static pair_loss apo_zero(double beta, double a, double b) {
    double up = objective_sigmoid(beta * a), down = objective_sigmoid(beta * b);
    return (pair_loss){
        .loss = 1 - up + down, .d_chosen = -beta * up * (1 - up), .d_rejected = beta * down * (1 - down)};
}

/* By one of the losses; what is reported is left out. */
static pair_loss by(tm_preference_loss loss, const tm_objective_spec *spec, const pair_terms *t) {
    double a = t->chosen - t->reference_chosen, b = t->rejected - t->reference_rejected, beta = spec->beta;
    double na = t->chosen_tokens, nb = t->rejected_tokens;
    bool means = loss == TM_LOSS_IPO || loss == TM_LOSS_SIGMOID_NORM;
    pair_loss l = {0};
    switch (loss) {
    case TM_LOSS_SIGMOID:
        l = objective_smoothed(beta, spec->label_smoothing, beta * (a - b));
        break;
    case TM_LOSS_ROBUST:
        l = robust(beta, spec->label_smoothing, a - b);
        break;
    case TM_LOSS_IPO:
        l = ipo(beta, a / na - b / nb);
        break;
    case TM_LOSS_HINGE:
        l = hinge(beta, a - b);
        break;
    case TM_LOSS_SIGMOID_NORM:
        l = objective_smoothed(beta, 0, beta * (a / na - b / nb));
        break;
    case TM_LOSS_APO_ZERO:
        l = apo_zero(beta, a, b);
        break;
    case TM_LOSSES:
        break;
    }
    if (means) l.d_chosen /= na, l.d_rejected /= nb;
    return l;
}

static pair_loss pair(const tm_objective_spec *spec, const pair_terms *t) {
    pair_loss l = {0};
    bool several = false;
    for (int i = 0; i < TM_LOSSES; i++) {
        if (spec->weight[i] == 0) continue;
        pair_loss one = by((tm_preference_loss)i, spec, t);
        l.loss += spec->weight[i] * one.loss;
        l.d_chosen += spec->weight[i] * one.d_chosen;
        l.d_rejected += spec->weight[i] * one.d_rejected;
        several = true;
    }
    if (!several) l = by(spec->loss, spec, t);
    l.reward_chosen = spec->beta * (t->chosen - t->reference_chosen);
    l.reward_rejected = spec->beta * (t->rejected - t->reference_rejected);
    l.logp_chosen = t->chosen, l.logp_rejected = t->rejected;
    return l;
}

static bool shares(const tm_objective_spec *spec) {
    return spec->rpo_alpha > 0;
}

static double run(const objective_step *s, const objective_batch *b, double *sum) {
    return objective_pairs(s, b, s->spec->rpo_alpha, sum, pair);
}

const tm_objective objective_dpo = {OF_PAIRS("dpo"), .reference = true, .shares = shares, .run = run};

/* Pairs without a reference, and the chosen rows' own loss beside them:
 *
 *     cpo     -log s(beta (a - b)) + cpo_alpha nll            a, b sums          Xu et al. 2024, arXiv:2401.08417
 *     simpo   -log s(beta (a/na - b/nb) - gamma) + cpo_alpha nll                 Meng et al. 2024, arXiv:2405.14734
 *
 * With label_smoothing e as (1 - e) of that and e of its mirror image. nll: mean over the tokens of all chosen completions. */
#include "objective/objective_internal.h"

static pair_loss cpo_pair(const tm_objective_spec *spec, const pair_terms *t) {
    pair_loss l = objective_smoothed(spec->beta, spec->label_smoothing, spec->beta * (t->chosen - t->rejected));
    l.reward_chosen = spec->beta * t->chosen, l.reward_rejected = spec->beta * t->rejected;
    l.logp_chosen = t->chosen, l.logp_rejected = t->rejected;
    return l;
}

static pair_loss simpo_pair(const tm_objective_spec *spec, const pair_terms *t) {
    double na = t->chosen_tokens, nb = t->rejected_tokens;
    double a = t->chosen / na, b = t->rejected / nb;
    pair_loss l = objective_smoothed(spec->beta, spec->label_smoothing, spec->beta * (a - b) - spec->simpo_gamma);
    l.d_chosen /= na, l.d_rejected /= nb;
    l.reward_chosen = spec->beta * a, l.reward_rejected = spec->beta * b;
    l.logp_chosen = a, l.logp_rejected = b;
    return l;
}

static bool shares(const tm_objective_spec *spec) {
    return spec->cpo_alpha > 0;
}

static double run_cpo(const objective_step *s, const objective_batch *b, double *sum) {
    return objective_pairs(s, b, s->spec->cpo_alpha, sum, cpo_pair);
}

static double run_simpo(const objective_step *s, const objective_batch *b, double *sum) {
    return objective_pairs(s, b, s->spec->cpo_alpha, sum, simpo_pair);
}

const tm_objective objective_cpo = {OF_PAIRS("cpo"), .shares = shares, .run = run_cpo};
const tm_objective objective_simpo = {OF_PAIRS("simpo"), .shares = shares, .run = run_simpo};

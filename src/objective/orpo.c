/* orpo: odds ratios of pairs beside the chosen rows' own loss, prompt and completion (Hong et al. 2024, arXiv:2403.07691). With a, b
 * the mean log-probabilities of the completions:
 *
 *     nll - beta log s(o),   o = (a - b) - (log(1 - e^a) - log(1 - e^b)) */
#include "objective/objective_internal.h"

#include <math.h>

/* A completion that is certain has no odds; so little is left of it in any case, and that does not change with a. */
static const double LEAST = 1e-12;

static double rest_of(double a) {
    return fmax(-expm1(a), LEAST);
}

/* d times the derivative of a - log(rest of a), 1 / (1 - e^a). */
static double through(double d, double a) {
    return rest_of(a) > LEAST ? d / rest_of(a) : d;
}

static pair_loss pair(const tm_objective_spec *spec, const pair_terms *t) {
    double na = t->chosen_tokens, nb = t->rejected_tokens;
    double a = t->chosen / na, b = t->rejected / nb;
    double odds = (a - b) - (log(rest_of(a)) - log(rest_of(b))), d = -spec->beta * objective_sigmoid(-odds);
    return (pair_loss){.loss = -spec->beta * objective_log_sigmoid(odds),
                       .d_chosen = through(d, a) / na,
                       .d_rejected = through(-d, b) / nb,
                       .reward_chosen = spec->beta * a,
                       .reward_rejected = spec->beta * b,
                       .logp_chosen = a,
                       .logp_rejected = b};
}

static double run(const objective_step *s, const objective_batch *b, double *sum) {
    return objective_pairs(s, b, 1, sum, pair);
}

const tm_objective objective_orpo = {OF_PAIRS("orpo"), .prompt_labels = true, .columns = TM_COLUMN_COMPLETION,
                                     .shares = objective_always, .run = run};

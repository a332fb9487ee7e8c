/* What is said of an objective: of those who choose it by name, and of the objective that computes it. */
#ifndef TIDEMILL_BASE_OBJECTIVE_SPEC_H
#define TIDEMILL_BASE_OBJECTIVE_SPEC_H

#include <stdbool.h>
#include <stdint.h>

typedef enum tm_objective_type {
    TM_OBJECTIVE_SFT,
    TM_OBJECTIVE_PRETRAIN,
    TM_OBJECTIVE_DPO,
    TM_OBJECTIVE_KTO,
    TM_OBJECTIVE_SIMPO,
    TM_OBJECTIVE_ORPO,
    TM_OBJECTIVE_CPO,
    TM_OBJECTIVES
} tm_objective_type;

typedef enum tm_preference_loss { /* of dpo */
                                  TM_LOSS_SIGMOID,
                                  TM_LOSS_ROBUST,
                                  TM_LOSS_IPO,
                                  TM_LOSS_HINGE,
                                  TM_LOSS_SIGMOID_NORM,
                                  TM_LOSS_APO_ZERO,
                                  TM_LOSSES
} tm_preference_loss;

typedef struct tm_objective_spec {
    tm_objective_type type;
    tm_preference_loss loss;
    double weight[TM_LOSSES]; /* of several of them, which are added up; all 0: `loss` alone */
    double beta;
    double label_smoothing;                      /* share of pairs that are believed to be the wrong way round */
    double rpo_alpha, cpo_alpha;                 /* what the chosen rows' own loss weighs beside the pairs' */
    double simpo_gamma;                          /* margin between chosen and rejected, before beta */
    double desirable_weight, undesirable_weight; /* of kto's rows */
} tm_objective_spec;

/* What holds where nothing is said. */
static inline tm_objective_spec tm_objective_defaults(tm_objective_type type) {
    return (tm_objective_spec){.type = type,
                               .beta = type == TM_OBJECTIVE_SIMPO ? 2 : 0.1,
                               .cpo_alpha = type == TM_OBJECTIVE_CPO ? 1 : 0,
                               .simpo_gamma = 1,
                               .desirable_weight = 1,
                               .undesirable_weight = 1};
}

#endif

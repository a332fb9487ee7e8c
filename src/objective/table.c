/* The objectives there are, and what follows from their rows. */
#include "objective/objective_internal.h"

static const tm_objective *const objectives[TM_OBJECTIVES] = {
    [TM_OBJECTIVE_SFT] = &objective_sft,     [TM_OBJECTIVE_PRETRAIN] = &objective_pretrain,
    [TM_OBJECTIVE_DPO] = &objective_dpo,     [TM_OBJECTIVE_KTO] = &objective_kto,
    [TM_OBJECTIVE_SIMPO] = &objective_simpo, [TM_OBJECTIVE_ORPO] = &objective_orpo,
    [TM_OBJECTIVE_CPO] = &objective_cpo};

const tm_objective *tm_objective_of(tm_objective_type type) {
    return objectives[type];
}

uint32_t tm_objective_lanes(const tm_objective *o, bool reference, tm_lane_name lane[TM_LANES]) {
    uint32_t n = 0;
    for (tm_lane_name name = 0; name < TM_LANES; name++) {
        bool there = (o->mismatched || tm_lane_batch(name) == TM_BATCH_ROWS) &&
                     ((o->reference && reference) || !tm_lane_is_bare(name));
        if (there) lane[n++] = name;
    }
    return n;
}

bool tm_objective_shares(const tm_objective *o, const tm_objective_spec *spec) {
    return o->shares && o->shares(spec);
}

double tm_objective_divisor(const tm_objective *o, uint64_t labels, uint64_t samples) {
    return (double)(o->by_sample ? samples : labels);
}

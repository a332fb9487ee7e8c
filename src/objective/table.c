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

uint32_t tm_objective_lanes(const tm_objective *o, bool reference, tm_lane *lane) {
    uint32_t n = 0;
    for (uint8_t bare = 0; bare <= (o->reference && reference); bare++)
        for (uint8_t batch = 0; batch <= o->mismatched; batch++)
            lane[n++] = (tm_lane){.name = (uint8_t)(batch + (bare ? TM_LANE_REFERENCE : TM_LANE_POLICY)),
                                  .batch = batch,
                                  .bare = bare,
                                  .learns = !bare && batch == TM_BATCH_ROWS};
    return n;
}

bool tm_objective_shares(const tm_objective *o, const tm_objective_spec *spec) {
    return o->shares && o->shares(spec);
}

double tm_objective_divisor(const tm_objective *o, uint64_t labels, uint64_t samples) {
    return (double)(o->by_sample ? samples : labels);
}

/* Which rows a reference model is asked about before step 1, and where a row's value is kept. */
#include "session/session.h"

uint64_t session_samples_a_step(const session *s, bool eval) {
    uint32_t samples = eval ? s->cfg->eval_batch_size : s->cfg->micro_batch_size;
    return (uint64_t)samples * s->cfg->accumulation_steps * (s->comm ? s->ranks.ranks : 1);
}

/* Steps whose rows are asked for: of an evaluation all; of own rows one epoch, of mismatched ones, which are others in each
 * epoch, all of the run. */
uint64_t session_reference_steps(const session *s, bool eval, uint32_t batch) {
    uint64_t epoch = tm_dataset_steps_per_epoch(data_set(eval ? s->eval : s->train)),
             all = (uint64_t)s->cfg->total_steps;
    return eval ? epoch : batch == TM_BATCH_MISMATCHED ? all : tm_min_u64(epoch, all);
}

uint64_t session_reference_rows(const session *s, bool eval, uint32_t batch) {
    uint32_t rows = tm_objective_of(s->cfg->objective.type)->rows;
    if (batch == TM_BATCH_MISMATCHED) return session_reference_steps(s, eval, batch) * session_samples_a_step(s, eval);
    return tm_dataset_get_counts(data_set(eval ? s->eval : s->train))->samples * rows;
}

uint32_t session_batches(const session *s) {
    return tm_objective_of(s->cfg->objective.type)->mismatched ? TM_BATCHES : 1;
}

uint64_t session_reference_place(const session *s, bool eval, uint64_t step, uint32_t batch, uint32_t micro_batch,
                                 uint32_t row) {
    uint32_t ranks = s->comm ? s->ranks.ranks : 1, rows = tm_objective_of(s->cfg->objective.type)->rows;
    uint32_t samples = eval ? s->cfg->eval_batch_size : s->cfg->micro_batch_size;
    uint64_t i = ((uint64_t)micro_batch * ranks + s->ranks.rank) * samples + row / rows;
    if (batch == TM_BATCH_MISMATCHED) return step * session_samples_a_step(s, eval) + i;
    return tm_dataset_step_sample(data_set(eval ? s->eval : s->train), step, i) * rows + row % rows;
}

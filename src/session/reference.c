/* Which rows a reference model is asked about before step 1, by what job, and where a row's value is kept. */
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

uint64_t session_reference_bytes(const session *s) {
    double n = 0;
    for (int eval = !s->train; eval <= (s->eval != NULL); eval++)
        for (uint32_t batch = 0; batch < session_batches(s); batch++)
            n += (double)session_reference_rows(s, eval, batch) / data_part(eval ? s->eval : s->train);
    return (uint64_t)n * sizeof(float);
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

/* All of the reference's weights are read where they lie; nothing is written. */
job_opts session_reference_options(const session *s) {
    static const tm_model_roles nothing_learns;
    const tm_config *c = s->cfg;
    job_opts o = session_job_options(s);
    o.model = c->reference ? c->reference : c->model;
    o.weights = c->reference ? NULL : s->weights;
    o.roles = &nothing_learns;
    o.adapter = NULL, o.saved = NULL, o.freeze = NULL, o.objective = NULL;
    o.optimizer = o.reference_column = o.commits = o.init_random = false;
    if (c->reference || s->weights) o.four_bits = TM_FMT_F32; /* else a plan's base is one that is not made yet */
    o.n_paths = 0;
    o.slots = 1;
    return o;
}

job_shape session_reference_shape(const session *s) {
    job_shape shape = s->train || !s->eval ? session_step_shape(s) : session_eval_shape(s);
    if (!s->eval) return shape;
    job_shape eval = session_eval_shape(s);
    shape.rows = eval.rows > shape.rows ? eval.rows : shape.rows;
    shape.seq = eval.seq > shape.seq ? eval.seq : shape.seq;
    shape.tokens = eval.tokens > shape.tokens ? eval.tokens : shape.tokens;
    return shape;
}

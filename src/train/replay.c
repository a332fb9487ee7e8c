/* --replay-every N: each N-th step is computed twice, operation by operation, and the bits are compared before anything
 * is written to a disk or committed. Costs one more computation of that step, nothing of the others. */
#include "planner/cost.h"
#include "train/trainer_internal.h"

/* ---- memory for it: of the budget ------------------------------------------------------------------------------- */

static uint64_t updated_per_token(const tm_unit *u, const tm_slot_use *use, uint32_t n) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const tm_slot *slot = &u->slot[use[i].slot];
        if (use[i].access == TM_UPDATE) bytes += use[i].grad ? slot->grad_bytes : slot->bytes;
    }
    return bytes;
}

static uint64_t updated_by_stage(const trainer *t, const tm_unit *u, const tm_stage *s, uint64_t tokens) {
    uint64_t forward = tokens * updated_per_token(u, s->forward, s->n_forward);
    uint64_t backward = tokens * updated_per_token(u, s->backward, s->n_backward);
    for (uint32_t i = 0; i < s->n_parts; i++)
        if (s->part_gradient[i]) backward += tm_model_part(t->job->model, s->part[i])->elements * sizeof(float);
    return tm_max_u64(forward, backward);
}

/* At most what the largest operation of a step updates. Once the model is open. */
uint64_t trainer_replay_bytes(const trainer *t) {
    const tm_model *m = t->job->model;
    const job_shape shape = session_step_shape(&t->s);
    uint64_t most = (uint64_t)TM_TILE_ELEMENTS * 12;
    tm_device_traits traits;
    if (t->s.args->replay_every <= 0) return 0;
    for (uint32_t i = 0; i < tm_model_units(m); i++)
        for (uint32_t s = 0; s < tm_model_unit(m, i)->n_stages; s++)
            most = tm_max_u64(
                most, updated_by_stage(t, tm_model_unit(m, i), &tm_model_unit(m, i)->stage[s], shape_tokens(&shape)));
    if (job_device_apart(t->s.cfg->memory.device, &traits)) most += TM_EXEC_TWICE_PIECE;
    return most + TM_MIB; /* frames are rounded up */
}

tm_status trainer_replay_start(trainer *t) {
    const tm_plan *plans[] = {t->plans.step, t->plans.first, t->plans.drain};
    if (t->s.args->replay_every <= 0) return TM_OK;
    for (size_t i = 0; i < TM_COUNT(plans); i++)
        if (plans[i]) TM_TRY(tm_exec_twice_room(t->job->tiers.exec, plans[i]));
    return TM_OK;
}

/* Around a run of step `step`'s plans; 0: what comes now is done once (evaluation, export). */
void trainer_replay_step(trainer *t, int64_t step) {
    int64_t every = t->s.args->replay_every;
    if (every > 0) tm_exec_twice(t->job->tiers.exec, step > 0 && step % every == 0, job_op_name, t->job);
}

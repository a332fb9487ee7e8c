/* What the optimizer keeps of a part: how many bytes, how they lie in a tile's objects, what they are before step 1 and
 * as fp32. A row of optim's table keeps up to two states an element; an 8-bit one is a code an element and, for each
 * block of TM_OPTIM_BLOCK, the largest magnitude. Both lie in one object, so that kinds and counters stay those of
 * AdamW:
 *
 *     fp32     exp_avg: n x 4            8-bit     exp_avg: ceil(n / 256) x 4 magnitudes, then n codes
 *
 * Adafactor keeps exp_avg_sq of vectors only; of matrices means of rows and columns, one object for a group of parts
 * (passes.c), of the kind exp_avg_sq too.
 *
 * The fp32 master of a weight is where the precision has it; what computes is always weight_hi:
 *
 *     fp32     weight_hi: n x 4          bf16      weight_hi, weight_lo: n x 2 each, its halves
 *                                        fp16      weight_lo: n x 4; weight_hi: n x 2, its nearest half
 */
#include "job/job.h"

#include <string.h>

enum { SMALL_ELEMENTS = 4096 }; /* bitsandbytes' min_8bit_size */

static bool is_8bit(const tm_optimizer *o) {
    return o->grain == TM_OPTIM_BLOCK;
}

/* Blocks are counted from the part's first element: they are a tensor's own where each of its pieces begins with one.
 */
bool state_is_small(const tm_job *job, uint32_t part) {
    const tm_segment *seg = tm_model_part_segments(job->model, part);
    if (!is_8bit(job->update)) return false;
    for (uint32_t i = 0; i < tm_model_part(job->model, part)->n_segments; i++)
        if (tm_model_tensor(job->model, seg[i].tensor)->elements < SMALL_ELEMENTS ||
            seg[i].part_offset % TM_OPTIM_BLOCK || seg[i].tensor_offset % TM_OPTIM_BLOCK)
            return true;
    return false;
}

const tm_optimizer *state_optimizer(const tm_job *job, uint32_t part) {
    return job->part[part].small ? tm_optimizer_find("adamw") : job->update;
}

static uint64_t optim_bytes(const tm_job *job, const tm_optimizer *o, uint32_t k, uint64_t n) {
    return tm_optim_state_bytes(o, &job->update_opts, k, &(tm_optim_shape){1, 0, n});
}

/* Which of the table's states is a tile's of that kind. */
static uint32_t state_index(const tm_optimizer *o, tm_kind kind) {
    if (kind == TM_KIND_EXP_AVG) return 0;
    return o->passes > 1 ? STATE_FULL : 1;
}

uint64_t state_codes_at(const tm_job *job, uint32_t part, uint64_t n) {
    const tm_optimizer *o = state_optimizer(job, part);
    return is_8bit(o) ? optim_bytes(job, o, 2, n) : 0;
}

uint64_t state_bytes(const tm_job *job, uint32_t part, tm_kind kind, uint64_t n) {
    const tm_optimizer *o = state_optimizer(job, part);
    switch (kind) {
    case TM_KIND_WEIGHT_HI:
    case TM_KIND_GRAD:
        return n * tm_dtype_bytes(job->dtype);
    case TM_KIND_WEIGHT_LO:
        return !job->optimizer || job->dtype == TM_F32 ? 0 : n * (job->dtype == TM_BF16 ? 2 : 4);
    default:
        if (!job->optimizer || (kind == TM_KIND_EXP_AVG_SQ && o->passes > 1 && part_is_factored(job->model, part)))
            return 0;
        return optim_bytes(job, o, state_index(o, kind), n) + state_codes_at(job, part, n);
    }
}

double state_bytes_per_parameter(const tm_job *job) {
    const tm_optim_shape vector = {1, 0, TM_TILE_ELEMENTS}, matrix = {1, 1 << 10, TM_TILE_ELEMENTS >> 10};
    const tm_optim_shape *shape = job->update->passes > 1 ? &matrix : &vector;
    double bytes = 0;
    for (uint32_t k = 0; k < TM_OPTIM_STATES; k++)
        bytes += (double)tm_optim_state_bytes(job->update, &job->update_opts, k, shape);
    return bytes / TM_TILE_ELEMENTS;
}

tm_kind state_master(const tm_job *job) {
    return job->optimizer && job->dtype == TM_F16 ? TM_KIND_WEIGHT_LO : TM_KIND_WEIGHT_HI;
}

bool state_is_split(const tm_job *job) {
    return job->optimizer && job->dtype == TM_BF16;
}

void state_span(const tm_job *job, uint32_t part, void *m, void *v, uint64_t first, uint64_t n, tm_optim_span *out) {
    const tm_optimizer *o = state_optimizer(job, part);
    bool coded = is_8bit(o);
    uint64_t behind = state_codes_at(job, part, n);
    void *object[] = {m, v};
    for (uint32_t k = 0; k < 2; k++) {
        if (!object[k]) continue;
        void **state = &out->state[state_index(o, k ? TM_KIND_EXP_AVG_SQ : TM_KIND_EXP_AVG)];
        *state = coded ? (char *)object[k] + behind + first : (char *)object[k] + first * sizeof(float);
        if (coded) out->state[k + 2] = (float *)object[k] + first / TM_OPTIM_BLOCK;
    }
}

void state_begin(const tm_job *job, uint32_t part, tm_kind kind, void *object, uint64_t n) {
    double start = job->update_opts.initial_accumulator_value;
    if (!object) return;
    memset(object, 0, state_bytes(job, part, kind, n));
    for (uint64_t i = 0; start > 0 && i < n; i++) ((float *)object)[i] = (float)start; /* adagrad */
}

float *state_values(const tm_job *job, uint32_t part, tm_kind kind, void *object, uint64_t all, uint64_t first,
                    uint64_t n, float *room) {
    uint64_t behind = state_codes_at(job, part, all);
    if (behind == 0) return (float *)object + first;
    const uint8_t *code = (const uint8_t *)object + behind;
    tm_optim_widen_8bit(kind == TM_KIND_EXP_AVG, code, object, first, n, room);
    return room;
}

tm_optim_step state_step(const tm_job *job, const step_frame *f, bool small, uint32_t tensor) {
    tm_optim_opts opts = job->update_opts;
    bool one = tensor != UINT32_MAX, plain = one && job->step.no_decay && job->step.no_decay[tensor];
    double rate = one && job->step.rate ? (double)job->step.rate[tensor] : 1;
    tm_optim_step step;
    opts.beta1 = f->beta1;
    opts.beta2 = f->beta2;
    if (plain) opts.weight_decay = 0;
    tm_optim_step_init(&step, small ? tm_optimizer_find("adamw") : job->update, &opts, f->learning_rate * rate,
                       f->number, f->clip);
    return step;
}

double state_learning_rate(const tm_job *job, double scheduled, int64_t step) {
    tm_optim_step s;
    if (!job_updates_in_passes(job)) return scheduled;
    tm_optim_step_init(&s, job->update, &job->update_opts, scheduled, step, 1);
    return s.as.adafactor.lr;
}

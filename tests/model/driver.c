#include "driver.h"

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void must(tm_status s) {
    if (s != TM_OK) {
        tm_log(TM_LOG_ERROR, "%s", tm_error_get()->text);
        abort();
    }
}

/* In huge pages where they are large, as frames are. */
static void *alloc64(uint64_t bytes) {
    uint64_t align = bytes >= 2 * TM_MIB ? 2 * TM_MIB : 64;
    void *p = aligned_alloc(align, tm_round_up(bytes ? bytes : 64, align));
    if (!p) abort();
    if (align > 64) (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0xff, tm_round_up(bytes ? bytes : 64, 64)); /* NaN in fp32 and in bf16 */
    return p;
}

static size_t at(const run *r, uint32_t unit, unsigned batch, unsigned slot) {
    const tm_slot *s = &tm_model_unit(r->m, unit)->slot[slot];
    if (unit > 0 && slot == 0) unit--, slot = 1;
    if (s->bridged) unit = s->of_unit, slot = s->of_slot;
    return ((size_t)unit * r->n_batches + batch) * TM_MAX_SLOTS + slot;
}
static bool *touched(const run *r, uint32_t unit, unsigned batch, bool grad, unsigned slot) {
    return &r->touched[2 * at(r, unit, batch, slot) + grad];
}
void *run_slot(const run *r, uint32_t unit, unsigned batch, unsigned slot) {
    return r->slot[at(r, unit, batch, slot)];
}
void *run_slot_grad(const run *r, uint32_t unit, unsigned batch, unsigned slot) {
    return r->slot_grad[at(r, unit, batch, slot)];
}

static void open_slots(run *r) {
    uint32_t units = tm_model_units(r->m);
    for (uint32_t u = 0; u < units; u++)
        for (unsigned b = 0; b < r->n_batches; b++)
            for (unsigned s = 0; s < TM_MAX_SLOTS; s++) {
                const tm_slot *slot = &tm_model_unit(r->m, u)->slot[s];
                size_t i = at(r, u, b, s);
                if (slot->bridged || (s == 0 && u > 0)) continue;
                if (slot->bytes) r->slot[i] = alloc64((uint64_t)slot->bytes * r->batch[b].tokens);
                if (slot->grad_bytes) r->slot_grad[i] = alloc64((uint64_t)slot->grad_bytes * r->batch[b].tokens);
            }
}

static void size_workspace(run *r) {
    for (uint32_t u = 0; u < tm_model_units(r->m); u++)
        for (uint32_t s = 0; s < tm_model_unit(r->m, u)->n_stages; s++)
            for (unsigned b = 0; b < r->n_batches; b++)
                for (int back = 0; back < 2; back++)
                    r->workspace_bytes = tm_max_u64(
                        r->workspace_bytes, tm_stage_workspace(r->m, u, s, back, r->batch[b].rows, r->batch[b].seq));
    r->workspace = alloc64(r->workspace_bytes + 64);
    memset((char *)r->workspace + r->workspace_bytes, 0x5a, 64);
}

void run_open(run *r, const tm_model *m, unsigned n_batches, const tm_micro_batch *batch) {
    *r = (run){.m = m, .n_batches = n_batches};
    size_t units = tm_model_units(m), parts = tm_model_parts(m), slots = units * n_batches * TM_MAX_SLOTS;
    r->batch = calloc(n_batches, sizeof *r->batch);
    memcpy(r->batch, batch, n_batches * sizeof *batch);
    r->weight = calloc(parts, sizeof *r->weight);
    r->grad = calloc(parts, sizeof *r->grad);
    r->part_fresh = calloc(parts, sizeof *r->part_fresh);
    r->slot = calloc(slots, sizeof *r->slot);
    r->slot_grad = calloc(slots, sizeof *r->slot_grad);
    r->touched = calloc(2 * slots, sizeof *r->touched);
    r->coefficient = calloc(n_batches, sizeof *r->coefficient);
    for (uint32_t p = 0; p < parts; p++) {
        uint64_t n = tm_model_part(m, p)->elements;
        r->weight[p] = alloc64(n * tm_dtype_bytes(tm_model_dtype(m)));
        r->grad[p] = alloc64(n * sizeof(float));
    }
    for (unsigned b = 0; b < n_batches; b++) r->coefficient[b] = calloc(batch[b].tokens, sizeof(float));
    open_slots(r);
    size_workspace(r);
}

void run_close(run *r) {
    for (uint32_t u = 0; u < tm_model_units(r->m); u++)
        for (unsigned b = 0; b < r->n_batches; b++)
            for (unsigned s = u > 0 ? 1 : 0; s < TM_MAX_SLOTS; s++) {
                if (tm_model_unit(r->m, u)->slot[s].bridged) continue;
                free(r->slot[at(r, u, b, s)]);
                free(r->slot_grad[at(r, u, b, s)]);
            }
    for (uint32_t p = 0; p < tm_model_parts(r->m); p++) {
        free(r->weight[p]);
        free(r->grad[p]);
    }
    for (unsigned b = 0; b < r->n_batches; b++) free(r->coefficient[b]);
    for (unsigned u = 0; u < 64; u++) free(r->kv_cache[u]);
    for (size_t i = 0; r->kept && i < (size_t)r->n_batches * tm_model_unit(r->m, tm_model_units(r->m) - 1)->n_stages;
         i++)
        free(r->kept[i]);
    free(r->kept);
    free(r->batch), free(r->weight), free(r->grad), free(r->part_fresh), free(r->slot), free(r->slot_grad);
    free(r->touched), free(r->coefficient), free(r->workspace);
}

void run_set_tensor(run *r, uint32_t tensor, const float *values) {
    const tm_segment *s = tm_model_tensor_segments(r->m, tensor);
    for (uint32_t i = 0; i < tm_model_tensor(r->m, tensor)->n_segments; i++, s++) {
        if (tm_model_dtype(r->m) == TM_F32)
            memcpy((float *)r->weight[s->part] + s->part_offset, values + s->tensor_offset,
                   s->elements * sizeof(float));
        else
            (tm_model_dtype(r->m) == TM_F16 ? tm_narrow_f16 : tm_narrow)(
                values + s->tensor_offset, (uint16_t *)r->weight[s->part] + s->part_offset, s->elements);
    }
}

void run_random_weights(run *r, uint64_t seed) {
    for (uint32_t t = 0; t < tm_model_tensors(r->m); t++) {
        uint64_t n = tm_model_tensor(r->m, t)->elements;
        float *values = malloc(n * sizeof *values);
        tm_model_init_values(r->m, t, seed, 0, n, values);
        run_set_tensor(r, t, values);
        free(values);
    }
}

void run_tensor_grad(const run *r, uint32_t tensor, float *out) {
    const tm_segment *s = tm_model_tensor_segments(r->m, tensor);
    for (uint32_t i = 0; i < tm_model_tensor(r->m, tensor)->n_segments; i++, s++)
        memcpy(out + s->tensor_offset, r->grad[s->part] + s->part_offset, s->elements * sizeof(float));
}

static struct {
    const char *name;
    uint64_t ns[2];
} clocks[32];

void run_clock_reset(void) {
    memset(clocks, 0, sizeof clocks);
}

static void clock_add(const char *name, bool backward, uint64_t ns) {
    unsigned i = 0;
    while (clocks[i].name && strcmp(clocks[i].name, name)) i++;
    clocks[i].name = name;
    clocks[i].ns[backward] += ns;
}

void run_clock_print(void) {
    for (unsigned i = 0; clocks[i].name; i++)
        printf("  %-10s forward %7.1f ms, backward %7.1f ms\n", clocks[i].name, (double)clocks[i].ns[0] * 1e-6,
               (double)clocks[i].ns[1] * 1e-6);
}

static float *kept_logits(run *r, uint32_t unit, uint32_t stage, unsigned b) {
    uint32_t stages = tm_model_unit(r->m, unit)->n_stages;
    uint64_t bytes = tm_head_kept_bytes(r->m, unit, stage, r->batch[b].rows, r->batch[b].seq);
    if (!r->kept) r->kept = calloc((size_t)r->n_batches * stages, sizeof *r->kept);
    float **p = &r->kept[(size_t)b * stages + stage];
    if (!*p && bytes) *p = alloc64(bytes);
    return *p;
}

/* Only what the stage declares is handed over; everything else is NULL. */
static void run_stage(run *r, uint32_t unit, uint32_t stage, unsigned b, bool backward) {
    const tm_unit *u = tm_model_unit(r->m, unit);
    const tm_stage *s = &u->stage[stage];
    tm_stage_args a = {.model = r->m,
                       .unit = unit,
                       .stage = stage,
                       .batch = &r->batch[b],
                       .workspace = r->workspace,
                       .kernels = r->kernels};
    const tm_slot_use *use = backward ? s->backward : s->forward;
    for (unsigned i = 0; i < (backward ? s->n_backward : s->n_forward); i++) {
        bool *seen = touched(r, unit, b, use[i].grad, use[i].slot);
        uint32_t bit = 1U << use[i].slot;
        (use[i].grad ? a.grad : a.slot)[use[i].slot] =
            use[i].grad ? run_slot_grad(r, unit, b, use[i].slot) : run_slot(r, unit, b, use[i].slot);
        if (use[i].access == TM_UPDATE && !*seen) *(use[i].grad ? &a.grad_fresh : &a.slot_fresh) |= bit;
        if (use[i].access != TM_READ) *seen = true;
    }
    for (unsigned i = 0; i < s->n_parts; i++) {
        bool read = backward ? s->part_in_backward[i] : s->part_in_forward[i];
        a.weight[i] = read ? r->weight[s->part[i]] : NULL;
        if (!backward || !s->part_gradient[i]) continue;
        a.weight_grad[i] = r->grad[s->part[i]];
        a.weight_grad_fresh[i] = r->part_fresh[s->part[i]];
        r->part_fresh[s->part[i]] = false;
    }
    if (backward) a.coefficient = r->coefficient[b];
    if (u->kind == TM_UNIT_HEAD && r->keep_logits) a.kept_logits = kept_logits(r, unit, stage, b);
    if (s->uses_kv_cache && !backward && r->kv_capacity)
        a.kv_cache = r->kv_cache[u->kv_unit], a.kv_capacity = r->kv_capacity;
    uint64_t start = tm_now_ns();
    must(backward ? tm_stage_backward(&a) : tm_stage_forward(&a));
    clock_add(s->name, backward, tm_now_ns() - start);
}

static void run_unit(run *r, uint32_t unit, run_order order, bool backward) {
    uint32_t n = tm_model_unit(r->m, unit)->n_stages, outer = order == BATCH_OUTER ? r->n_batches : n;
    uint32_t inner = order == BATCH_OUTER ? n : r->n_batches;
    for (uint32_t i = 0; i < outer; i++)
        for (uint32_t j = 0; j < inner; j++) {
            uint32_t stage = order == BATCH_OUTER ? j : i;
            if (backward && !tm_model_unit(r->m, unit)->stage[n - 1 - stage].has_backward) continue;
            run_stage(r, unit, backward ? n - 1 - stage : stage, order == BATCH_OUTER ? i : j, backward);
        }
}

/* Nothing of a unit has been computed, of values or of gradients; its input, and what is another's, stays. */
static void begin_unit(run *r, uint32_t unit, bool grad) {
    for (unsigned b = 0; b < r->n_batches; b++)
        for (unsigned s = 0; s < TM_MAX_SLOTS; s++) {
            const tm_slot *slot = &tm_model_unit(r->m, unit)->slot[s];
            void *p = grad ? run_slot_grad(r, unit, b, s) : run_slot(r, unit, b, s);
            if (slot->bridged || (s == 0 && unit > 0)) continue;
            *touched(r, unit, b, grad, s) = false;
            if (p) memset(p, 0xff, (uint64_t)(grad ? slot->grad_bytes : slot->bytes) * r->batch[b].tokens);
        }
}

static void begin_pass(run *r, bool grad) {
    for (uint32_t u = 0; u < tm_model_units(r->m); u++) begin_unit(r, u, grad);
}

void run_forward(run *r, run_order order) {
    begin_pass(r, false);
    for (uint32_t u = 0; u < tm_model_units(r->m); u++) run_unit(r, u, order, false);
}

void run_backward(run *r, run_order order) {
    begin_pass(r, true);
    for (uint32_t p = 0; p < tm_model_parts(r->m); p++) {
        r->part_fresh[p] = true;
        memset(r->grad[p], 0xff, tm_model_part(r->m, p)->elements * sizeof(float));
    }
    for (uint32_t u = tm_model_units(r->m); u-- > 0;) {
        if (r->recompute) begin_unit(r, u, false);
        if (r->recompute) run_unit(r, u, order, false);
        run_unit(r, u, order, true);
    }
    for (unsigned i = 0; i < 64; i++) TM_ASSERT(((unsigned char *)r->workspace)[r->workspace_bytes + i] == 0x5a);
}

void run_logits(run *r, unsigned b, float *out) {
    uint32_t head = tm_model_units(r->m) - 1;
    const tm_unit *u = tm_model_unit(r->m, head);
    for (uint32_t s = 1; s < u->n_stages; s++) {
        tm_stage_args a = {.model = r->m, .unit = head, .stage = s, .batch = &r->batch[b]};
        a.slot[2] = run_slot(r, head, b, 2);
        a.slot[4] = run_slot(r, head, b, 4);
        for (unsigned i = 0; i < u->stage[s].n_parts; i++) a.weight[i] = r->weight[u->stage[s].part[i]];
        must(tm_head_logits(&a, 0, r->batch[b].tokens, out, tm_model_get_config(r->m)->vocab_size));
    }
}

double run_loss(run *r, float *first, uint64_t *labels) {
    double sum = 0;
    *labels = 0;
    for (unsigned b = 0; b < r->n_batches; b++) {
        float *nll = malloc(r->batch[b].tokens * sizeof *nll);
        tm_head_nll(&r->batch[b], run_slot(r, tm_model_units(r->m) - 1, b, TM_HEAD_SLOT_STATE), nll);
        for (uint32_t t = 0; t < r->batch[b].rows * r->batch[b].seq; t++) {
            *labels += r->batch[b].labels[t] >= 0;
            sum += (double)nll[t];
        }
        if (b == 0 && first) memcpy(first, nll, r->batch[b].tokens * sizeof *nll);
        free(nll);
    }
    return *labels ? sum / (double)*labels : 0;
}

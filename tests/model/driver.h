/* Runs a model in memory, stage by stage, as the contract of model.h allows: for tests. Every slot and gradient is
 * filled with NaN before a pass, so that reading what no stage wrote shows. */
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#include "model/model.h"

typedef enum run_order { BATCH_OUTER, STAGE_OUTER } run_order; /* inside a unit */

typedef struct run {
    const tm_model *m;
    unsigned n_batches;
    tm_micro_batch *batch;
    void **weight;            /* [parts], compute dtype */
    float **grad;             /* [parts] */
    bool *part_fresh;         /* [parts] */
    void **slot, **slot_grad; /* [units][batches][TM_MAX_SLOTS]; a unit's output is the next one's input */
    bool *touched;            /* [units][batches][2][TM_MAX_SLOTS] in this pass */
    float **coefficient;      /* [batches] */
    void *workspace;
    uint64_t workspace_bytes;
    void *kv_cache[64]; /* per unit, if used */
    uint32_t kv_capacity;
    bool recompute;                 /* backward begins a unit with nothing but its input, and runs its forward again */
    bool keep_logits;               /* the head's logits lie in wait for backward; set before run_forward */
    float **kept;                   /* [batches][stages of the head] */
    const tm_kernel_table *kernels; /* instead of the host's; NULL */
} run;

void run_open(run *r, const tm_model *m, unsigned n_batches, const tm_micro_batch *batch);
void run_close(run *r);
void run_set_tensor(run *r, uint32_t tensor, const float *values); /* rounds to the compute dtype */
void run_random_weights(run *r, uint64_t seed);
void run_forward(run *r, run_order order);
void run_backward(run *r, run_order order); /* r->coefficient is set */
void run_tensor_grad(const run *r, uint32_t tensor, float *out);
void *run_slot(const run *r, uint32_t unit, unsigned batch, unsigned slot);
void *run_slot_grad(const run *r, uint32_t unit, unsigned batch, unsigned slot);
void run_logits(run *r, unsigned batch, float *out); /* [tokens][vocab] */
double run_loss(run *r, float *nll /* of batch 0, or NULL */, uint64_t *labels);

/* Seconds by stage name and pass since the last reset. */
void run_clock_reset(void);
void run_clock_print(void);

#endif

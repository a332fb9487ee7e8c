/* The examples of optim.h and optimizer.h. */
#include "optim/optim.h"
#include "base/base.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

tm_status adamw_example(tm_adamw_opts opts, tm_lr_schedule schedule, int t, double norm, double max_grad_norm,
                        uint16_t *hi, uint16_t *lo, float *exp_avg, float *exp_avg_sq, const uint16_t *grad, size_t n) {
    //@ optim/optim.h tm_adamw_step step;
    return TM_OK;
}

void table_example(float *w, const float *g, float *exp_avg, float *exp_avg_sq, size_t n, int64_t steps,
                   double learning_rate, double clip, double loss_scale) {
    //@ optim/optimizer.h const tm_optimizer *adamw
}

uint64_t passes_example(const tm_optimizer *optimizer, tm_optim_step step, const tm_optim_span *span, uint32_t n_spans,
                        uint64_t rows, uint64_t columns, float *row, float *column, void *scratch) {
    uint64_t bad = 0;
    //@ optim/optimizer.h tm_optim_tensor tensor
    return bad;
}

void update(double grad_scale);
tm_status stop(void);
tm_status scale_example(double norm, double max_norm, tm_loss_scaler scaler) {
    //@ optim/optimizer.h bool overflow
    return TM_OK;
}

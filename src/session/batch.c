#include "session/batch.h"

tm_status session_fill(tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank, uint32_t batch,
                       const job_columns *to, job_batch *out) {
    tm_batch_shape shape;
    const tm_batch_arrays arrays = {.capacity = to->capacity,
                                    .ids = to->ids,
                                    .labels = to->labels,
                                    .key_mask = to->mask,
                                    .begin = to->begin,
                                    .completion = to->completion,
                                    .desirable = to->desirable};
    if (batch == TM_BATCH_MISMATCHED)
        TM_TRY(tm_dataset_batch_mismatched(ds, step, micro_batch, rank, &arrays, &shape));
    else
        TM_TRY(tm_dataset_batch(ds, step, micro_batch, rank, &arrays, &shape));
    *out = (job_batch){.rows = shape.rows,
                       .samples = shape.samples,
                       .seq = shape.seq,
                       .tokens = shape.tokens,
                       .mask_tokens = shape.mask_tokens,
                       .label_tokens = shape.label_tokens};
    return TM_OK;
}

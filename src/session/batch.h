/* batch: the columns of a micro-batch, out of a dataset. */
#ifndef TIDEMILL_SESSION_BATCH_H
#define TIDEMILL_SESSION_BATCH_H

#include "data/dataset.h"
#include "job/job.h"

/* Fills what a job's sinks.fill is asked for: batch `batch` (TM_BATCH_*) of that micro-batch. */
TM_MUST_USE tm_status session_fill(tm_dataset *ds, uint64_t step, uint32_t micro_batch, uint32_t rank, uint32_t batch,
                                   const job_columns *to, job_batch *out);

#endif

/* reference: what a model that does not learn makes of the rows of a run, where the objective holds the policy against it and it
 * is no lane of the same visit (session_reference_column): a log-probability a row, made by a job of its own before step 1. Its
 * weights are read where they lie, forward only, and are gone before the run's own state is there.
 *
 *     reference_values v = {0};
 *     TM_TRY(reference_open(&v, &s));                       // room for the values of the data that the session has open
 *     TM_TRY(reference_take(&v, &s, &there));               // those of another run of the same data, reference and settings
 *     job_opts o = session_reference_options(&s);
 *     if (!there) TM_TRY(reference_make(&v, &s, &o));       // asks
 *     if (!there) reference_keep(&v, &s);
 *     reference_fill(&v, &s, &of, rows, column);            // the column TM_COLUMN_REFERENCE of a micro-batch
 *     reference_free(&v);
 *
 * All but fill and free are collective, and all ranks have the same values. The file lies in tidemill-cache beside OUTPUT_DIR. */
#ifndef TIDEMILL_REFERENCE_H
#define TIDEMILL_REFERENCE_H

#include "session/session.h"

/* By row: tables of training rows and of an evaluation's, of own and of mismatched ones, as far as the session has them. */
typedef struct reference_table {
    bool eval;
    uint32_t batch; /* TM_BATCH_* */
    uint64_t n;
    float *value; /* [n] */
} reference_table;
typedef struct reference_values {
    reference_table table[2 * TM_BATCHES];
    uint32_t n_tables;
} reference_values;

TM_MUST_USE tm_status reference_open(reference_values *v, session *s);
TM_MUST_USE tm_status reference_take(reference_values *v, session *s, bool *there);
/* `o`: session_reference_options, or those with less. TM_EBUDGET: of the host's memory, or the device's (run_reference_start). */
TM_MUST_USE tm_status reference_make(reference_values *v, session *s, const job_opts *o);
void reference_keep(const reference_values *v, const session *s); /* that it cannot be is said, no more */

bool reference_is_name(const char *name); /* of a file that was kept */
bool reference_is_file(const char *path); /* it begins as one */

/* A micro-batch of this rank. */
typedef struct reference_rows {
    bool eval;
    uint64_t step;
    uint32_t micro_batch, batch; /* TM_BATCH_* */
} reference_rows;
void reference_fill(const reference_values *v, const session *s, const reference_rows *of, uint32_t rows, float *to);
void reference_free(reference_values *v);

#endif

/* What a micro-batch is made of: its lanes, and the columns of its batches as they lie in a frame, one after the other. */
#include "job/job.h"

#include <stddef.h>

/* In the order in which they lie. */
static const struct {
    size_t at;       /* in job_columns: a pointer */
    uint8_t bytes;   /* an element */
    bool a_row;      /* else a token */
    uint32_t column; /* TM_COLUMN_*; 0: every job has it */
} columns[] = {
    {offsetof(job_columns, ids), 4, false, 0},
    {offsetof(job_columns, labels), 4, false, 0},
    {offsetof(job_columns, label_row), 4, false, 0},
    {offsetof(job_columns, mask), 1, false, 0},
    {offsetof(job_columns, position), 4, true, 0},
    {offsetof(job_columns, cache_row), 4, true, TM_COLUMN_CACHE_ROW},
    {offsetof(job_columns, cache_from), 4, true, TM_COLUMN_CACHE_ROW},
    {offsetof(job_columns, reference), 4, true, TM_COLUMN_REFERENCE},
    {offsetof(job_columns, begin), 4, false, TM_COLUMN_BEGIN},
    {offsetof(job_columns, completion), 1, false, TM_COLUMN_COMPLETION},
    {offsetof(job_columns, desirable), 1, true, TM_COLUMN_DESIRABLE},
};

static bool has(const tm_job *job, size_t i) {
    return !columns[i].column || (job->columns & columns[i].column);
}

static uint64_t bytes_of(size_t i, uint32_t capacity, uint32_t rows) {
    return tm_round_up((uint64_t)(columns[i].a_row ? rows : capacity) * columns[i].bytes, 4);
}

uint64_t job_columns_bytes(const tm_job *job, uint32_t capacity, uint32_t rows) {
    uint64_t sum = 0;
    for (size_t i = 0; i < TM_COUNT(columns); i++) sum += has(job, i) ? bytes_of(i, capacity, rows) : 0;
    return sum;
}

job_columns job_columns_at(const tm_job *job, void *frame, uint32_t capacity, uint32_t rows) {
    job_columns out = {.capacity = capacity, .rows = rows};
    char *at = frame;
    for (size_t i = 0; i < TM_COUNT(columns); i++) {
        if (!has(job, i)) continue;
        *(void **)(void *)((char *)&out + columns[i].at) = at;
        at += bytes_of(i, capacity, rows);
    }
    return out;
}

void job_set_objective(tm_job *job, const tm_objective_spec *spec, bool reference_column) {
    job->objective_spec = spec ? *spec : tm_objective_defaults(TM_OBJECTIVE_SFT);
    job->objective = tm_objective_of(job->objective_spec.type);
    job->n_lanes = tm_objective_lanes(job->objective, !reference_column, job->lane);
    job->n_batches = job->objective->mismatched ? TM_BATCHES : 1;
    job->columns = job->objective->columns;
    if (job->objective->reference && reference_column) job->columns |= TM_COLUMN_REFERENCE;
}

/* elastic: state read out of commits that were laid out otherwise (elastic.c). */
#ifndef TIDEMILL_ELASTIC_INTERNAL_H
#define TIDEMILL_ELASTIC_INTERNAL_H

#include "step/step.h"

typedef struct elastic elastic;
/* directory[q]: the first run directory of rank q of the run that made the commit. */
tm_status elastic_open(elastic **out, const tm_model *m, const char *const *directory, uint32_t ranks);
void elastic_close(elastic *e); /* NULL is fine */
/* One kind of state of elements `at` of a part, laid out as a tile of them. */
tm_status elastic_read(elastic *e, const tm_job *job, uint32_t part, tm_kind kind, span at, void *to);

/* The means of the group that begins with part `first` (passes.c): every rank has them. */
tm_status elastic_read_means(elastic *e, uint32_t first, void *to, uint64_t bytes);

/* Into a commit's info, and back: which slices it holds. */
void elastic_describe(const job_ranks *r, tm_json_writer *w);
tm_status elastic_shards(const tm_json *info, job_ranks *out);
bool elastic_same(const job_ranks *a, const job_ranks *b);

#endif

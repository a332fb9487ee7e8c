/* generate (private to train): greedy or sampled continuation of several prompts at once. */
#ifndef TIDEMILL_TRAIN_GENERATE_INTERNAL_H
#define TIDEMILL_TRAIN_GENERATE_INTERNAL_H

#include "session/text.h"
#include "step/step.h"

typedef struct gen_opts {
    uint32_t max_new_tokens;
    double temperature;
    uint64_t seed;
    const int32_t *eos;
    uint32_t n_eos;
} gen_opts;
typedef struct gen_row {
    const int32_t *prompt;
    size_t n_prompt;
    int32_t *out; /* room for max_new_tokens; the end token is included when it came */
    size_t n_out;
    bool done, stopped; /* stopped: by an end token */
} gen_row;
TM_MUST_USE tm_status generate_rows(const gen_opts *o, const job_opts *base, uint32_t vocab, gen_row *rows, uint32_t n);

#endif

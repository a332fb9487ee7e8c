/* A golden fixture beside a run of its model. */
#ifndef TEST_FIXTURE_H
#define TEST_FIXTURE_H

#include "driver.h"
#include "safetensors_file.h"

typedef struct fixture {
    const char *folder;
    const char *prefix; /* of names, where there is an adapter; else NULL */
    tm_model_config config;
    st_file golden, weights, adapter;
    tm_json_doc *json; /* golden.json */
    size_t rows, seq;
    int32_t *ids, *labels; /* shifted, padded to a multiple of 64 rows */
    uint8_t *mask;
    uint32_t *begin; /* of packed rows; else NULL */
    uint32_t tokens;
} fixture;

fixture fixture_open(const char *folder, const char *config, const char *weights);
fixture fixture_open_adapter(const char *folder, const char *base);
void fixture_close(fixture *f);
const char *fixture_path(const char *folder, const char *file);              /* until the next call */
double fixture_number(const fixture *f, const char *block, const char *key); /* of golden.json */
tm_micro_batch fixture_batch(const fixture *f);
void fixture_load(run *r, const fixture *f);
void mean_of_labels(run *r, uint64_t labels); /* coefficients */
/* The largest, of rows that are no padding. */
double fixture_difference(const fixture *f, const float *got, const float *want, size_t width);
void check_logits(run *r, const fixture *f, const char *name, double tolerance);
void check_token_nll(run *r, const fixture *f, double tolerance);
void check_loss(run *r, const fixture *f, const char *name, double tolerance, uint64_t *labels);
double check_gradients(const run *r, const fixture *f, double tolerance); /* of what learns; returns their norm */

#endif

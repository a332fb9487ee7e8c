/* A random model of a bare config.json: the values that training with `init: random` begins with. */
#ifndef TIDEMILL_RANDOM_MODEL_H
#define TIDEMILL_RANDOM_MODEL_H

#include "format/format.h"
#include "model/model.h"

/* A source whose tensors are made where they are read: closed by tm_random_model_close. PATH: a folder with no more than
 * its config.json, or a .gguf file, of which only the configuration counts. */
typedef struct tm_random_model {
    tm_source *source;
    tm_model *model;
    uint64_t seed;
} tm_random_model;
TM_MUST_USE tm_status tm_random_model_open(tm_random_model *r, const char *path, uint64_t seed);
void tm_random_model_close(tm_random_model *r);

#endif

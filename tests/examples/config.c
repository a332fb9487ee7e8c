/* The examples of config.h. */
#include "config/config.h"

typedef tm_status (*read_file_fn)(void *ctx, const char *path, tm_buf *out);
typedef struct model_config {
    uint32_t hidden_size;
} model_config;

tm_status config_example(const char *path, const char *const *set, size_t n, read_file_fn slurp, tm_buf text,
                         model_config model, int64_t steps_per_epoch, int64_t step) {
    tm_config *cfg;
    double lr;
    //@ src/config/config.h tm_config_opts opts
    return TM_OK;
}

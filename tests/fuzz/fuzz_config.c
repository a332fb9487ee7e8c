/* Any bytes as a training configuration, as the DeepSpeed file that one names, and as a model's config.json. What must
 * hold: within the limits; refused with a message, or resolved to numbers whose dump is JSON and loads again. */
#include "fuzz.h"

#include "model/model.h"
#include "config/config.h"

#include <string.h>

typedef struct bytes {
    const char *data;
    size_t n;
} bytes;

static tm_status file(void *ctx, const char *path, tm_buf *out) {
    const bytes *b = ctx;
    (void)path;
    return tm_buf_append(out, b->data, b->n);
}

static void load(const char *text, size_t n, bytes named) {
    static const char *const set[] = {"model=m", "output_dir=o", "data.train=d"}; /* which it may name itself */
    tm_config *c = NULL;
    tm_buf dump = {0};
    tm_json_doc *doc = NULL;
    tm_status rc = tm_config_load(&c, text, n,
                                  &(tm_config_opts){.name = "f",
                                                    .set = set,
                                                    .n_set = memmem(text, n, "train\"", 6) ? 2 : 3,
                                                    .read_file = file,
                                                    .read_ctx = &named});
    if (rc == TM_OK) {
        CHECK(tm_config_dump_json(c, &dump, 0) == TM_OK);
        CHECK(tm_json_parse(&doc, dump.data, dump.len, "dump", 0, 0) == TM_OK);
        if (tm_config_resolve_model(c, 64) == TM_OK) (void)!tm_config_resolve_steps(c, 10);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_json_free(doc);
    tm_buf_free(&dump);
    tm_config_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    tm_model_config model;
    fuzz_begin(size);
    load(text, size, (bytes){text, size});
    load("{\"deepspeed\": \"d\"}", 18, (bytes){text, size});
    if (tm_model_config_parse(&model, text, size, "f") == TM_OK) {
        tm_model *m = NULL;
        if (tm_model_create(&m, &model, TM_BF16) == TM_OK) tm_model_free(m);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    fuzz_end();
    return 0;
}

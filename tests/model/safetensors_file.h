/* A safetensors file read whole, for tests of src/model, which must not know src/format. */
#ifndef TEST_SAFETENSORS_FILE_H
#define TEST_SAFETENSORS_FILE_H

#include "base/base.h"

typedef struct st_file {
    char *bytes;
    size_t size;
    tm_json_doc *doc;
    const char *data; /* what data_offsets count from */
} st_file;

st_file st_open(const char *path); /* fails the test if it cannot */
void st_close(st_file *f);
char *read_text(const char *path, size_t *len);
/* Elements of a tensor as fp32 (F32, BF16) or int64 widened to int32 (I64); NULL if absent. Freed with tm_free. */
float *st_floats(const st_file *f, const char *name, size_t *n);
int32_t *st_ints(const st_file *f, const char *name, size_t *n);

#endif

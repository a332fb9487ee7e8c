/* What the tests of src/format share: places, files, SHA-256 (the goldens name bytes by it). */
#ifndef TIDEMILL_FORMAT_TEST_H
#define TIDEMILL_FORMAT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/format.h"
#include "io/io.h"

/* A path in the fixtures, the shared folder, or this process's scratch folder. The string lives until the 16th next
 * call. */
const char *fixture(const char *name);
const char *shared(const char *name);
const char *scratch(const char *name);
int make_scratch(void **state); /* group set-up and tear-down */
int remove_scratch(void **state);

void slurp(const char *path, tm_buf *out);
void write_file(const char *path, const void *bytes, size_t n);
tm_json_doc *parse_file(const char *path);
void sha256_hex(const void *bytes, size_t n, char hex[65]);
/* The pending error has this status and its text contains `text`; clears it. */
void expect_error(tm_status got, tm_status wanted, const char *text);
#define OK(expr) expect_ok((expr), #expr)
void expect_ok(tm_status got, const char *expr);
/* Number of entries of the scratch folder that are left by writers (names with ".tmp"). */
int leftovers(const char *dir);
/* Some values: a fixed pattern of floats that is different at each index. */
float pattern(uint64_t i);
void convert(const char *in, const char *out, const char *dtype);
/* All values of a tensor; the caller frees them. */
float *values_of(const tm_source *src, const char *name, uint64_t *n);
/* The same tensors with the same shapes; values to within `bound` of the largest of their tensor's, those of norms'
 * weights to within `norms` besides. */
void same_model(const char *a_path, const char *b_path, float bound, float norms);
/* Of one tensor: each value to within `bound`, and `relative` times its magnitude in B besides. */
void same_tensor(const tm_source *a, const tm_source *b, const char *name, float bound, float relative);
tm_json_doc *json_in(const char *dir, const char *name);
bool same_json(const tm_json *a, const tm_json *b);
/* A folder of a one-block llama (hidden 32, 2 heads) that has this fixture's tokenizer (NULL: none). */
void make_folder(const char *dir, const char *tokenizer, uint64_t vocab);

#endif

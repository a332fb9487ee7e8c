/* Any bytes as a .safetensors file. What must hold: it opens within the limits or is refused with a message; of a file
 * that opens, every tensor lies in the file, none overlaps another, all are found by name, and all values can be read
 * to their last and no further. */
#include "fuzz.h"

#include "format/format.h"

#include <string.h>

enum { MOST = 4096 };

static void read_values(const tm_st *st, uint32_t i, const tm_st_info *t) {
    static float values[MOST];
    static int64_t integers[MOST];
    static char raw[MOST];
    uint64_t n = tm_min_u64(t->elements, MOST), last = t->elements - n;
    if (tm_fmt_get(t->fmt)->readable) CHECK(tm_st_read_f32(st, i, last, n, values) == TM_OK);
    CHECK(tm_st_read_f32(st, i, last + 1, n, values) != TM_OK || n == 0);
    tm_error_clear();
    (void)!tm_st_read_i64(st, i, last, n, integers);
    tm_error_clear();
    n = tm_min_u64(t->bytes, MOST);
    CHECK(tm_st_read_raw(st, i, t->bytes - n, n, raw) == TM_OK);
    CHECK(tm_st_read_raw(st, i, t->bytes - n + 1, n, raw) != TM_OK || n == 0);
    CHECK(tm_st_read_raw(st, i, UINT64_MAX, 2, raw) != TM_OK);
    tm_error_clear();
}

static void use(const tm_st *st, uint64_t size) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < tm_st_count(st); i++) {
        const tm_st_info *t = tm_st_get(st, i);
        CHECK(t->offset >= end && t->bytes <= size && t->offset <= size - t->bytes);
        CHECK(tm_st_find(st, t->name) == (int64_t)i);
        end = t->offset + t->bytes;
        read_values(st, i, t);
    }
    CHECK(tm_st_find(st, "") < 0 || tm_st_count(st) > 0);
    (void)tm_st_metadata(st, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tm_st *st;
    fuzz_begin(size);
    fuzz_file("f.safetensors", data, size);
    if (tm_st_open(&st, "f.safetensors") == TM_OK)
        use(st, size);
    else
        CHECK(tm_error_get()->text[0] != 0);
    tm_error_clear();
    tm_st_close(st);
    fuzz_end();
    return 0;
}

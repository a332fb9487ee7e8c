/* Any bytes as the quant_state of a 4-bit tensor, beside codes, scales and maps that fit one of 64 elements. What must
 * hold: the folder opens as one tensor whose values can be read, or is refused with a message; whatever shape and block
 * sizes the state claims, nothing is read that is not there. */
#include "fuzz.h"

#include "format/format.h"

#include <stdio.h>
#include <string.h>

enum { ELEMENTS = 64, MAP = 256 * 4 };

/* The header, padded to `n` bytes, with the state's length in it. */
static size_t header(char *out, size_t cap, size_t state) {
    size_t at = ELEMENTS / 2, end = at + 2 + 4 + 64 + MAP;
    return (size_t)snprintf(
        out, cap,
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[32,1],\"data_offsets\":[0,%zu]},"
        "\"w.absmax\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[%zu,%zu]},"
        "\"w.nested_absmax\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%zu,%zu]},"
        "\"w.quant_map\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[%zu,%zu]},"
        "\"w.nested_quant_map\":{\"dtype\":\"F32\",\"shape\":[256],\"data_offsets\":[%zu,%zu]},"
        "\"w.quant_state.bitsandbytes__nf4\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}}",
        at, at, at + 2, at + 2, at + 6, at + 6, at + 70, at + 70, end, state, end, end + state);
}

static size_t make_file(uint8_t *file, size_t cap, const uint8_t *state, size_t n) {
    size_t length = header((char *)file + 8, cap - 8, n), at = 8 + length;
    uint64_t stated = length;
    memcpy(file, &stated, sizeof stated);
    memset(file + at, 0, ELEMENTS / 2 + 6 + 64 + MAP);
    at += ELEMENTS / 2 + 6 + 64 + MAP;
    if (n) memcpy(file + at, state, n);
    return at + n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"config.json", "model.safetensors", NULL};
    static uint8_t file[1 << 16];
    tm_source *src;
    if (size > sizeof file / 2) return 0;
    fuzz_begin(size);
    fuzz_file("config.json", "{}", 2);
    fuzz_file("model.safetensors", file, make_file(file, sizeof file, data, size));
    if (tm_source_open(&src, fuzz_folder(names)) == TM_OK) {
        const tm_source_tensor *t = tm_source_tensor_get(src, 0);
        float v[ELEMENTS];
        tm_source_piece p;
        CHECK(tm_source_tensors(src) == 1 && strcmp(t->name, "w") == 0 && t->fmt == TM_FMT_NF4);
        CHECK(t->elements == ELEMENTS || t->elements == ELEMENTS - 1);
        CHECK(tm_source_read_f32(src, 0, 0, t->elements, v) == TM_OK);
        CHECK(tm_source_piece_of(src, 0, 5, 1, &p) == TM_OK && p.first == 0);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_source_close(src);
    fuzz_end();
    return 0;
}

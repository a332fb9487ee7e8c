/* Any bytes as model.safetensors.index.json, beside two shards. What must hold: it opens within the limits or is
 * refused with a message; nothing outside the folder is asked for; the tensors of a model that opens are those of its
 * shards. */
#include "fuzz.h"

#include "format/format.h"

#include <string.h>

static const char one[] = "\x40\0\0\0\0\0\0\0"
                          "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}         "
                          "xy";
static const char two[] = "\x40\0\0\0\0\0\0\0"
                          "{\"b\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,2]}}        "
                          "xy";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"config.json", "model.safetensors.index.json", NULL};
    tm_source *src;
    fuzz_begin(size);
    fuzz_file("config.json", "{}", 2);
    fuzz_file("model.safetensors.index.json", data, size);
    fuzz_file("1.safetensors", one, sizeof one - 1);
    fuzz_file("2.safetensors", two, sizeof two - 1);
    if (tm_source_open(&src, fuzz_folder(names)) == TM_OK) {
        CHECK(tm_source_tensors(src) <= 2);
        for (uint32_t i = 0; i < tm_source_tensors(src); i++) {
            const tm_source_tensor *t = tm_source_tensor_get(src, i);
            float v[2];
            CHECK(strcmp(t->name, "a") == 0 || strcmp(t->name, "b") == 0);
            CHECK(tm_source_find(src, t->name) == (int64_t)i && t->elements <= 2);
            CHECK(tm_source_read_f32(src, i, 0, t->elements, v) == TM_OK);
        }
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_source_close(src);
    fuzz_end();
    return 0;
}

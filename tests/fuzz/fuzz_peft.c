/* Any bytes as the header of an adapter_model.safetensors, and how many zeros follow it, beside a base of three tensors. What
 * must hold: the folder opens, or is refused with a message; if base and adapter are one model, all of its values can
 * be read, and written as plain LoRA. */
#include "fuzz.h"

#include "format/peft.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 64 };

static const char plain[] =
    "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"target_modules\":[\"up\",\"embed_tokens\",\"lm_head\"]}";
static const char dora[] =
    "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"use_dora\":true,\"target_modules\":[\"up\",\"embed_tokens\"]}";
static const char base[] =
    "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[8,4],\"data_offsets\":[0,128]},"
    "\"model.layers.0.up.weight\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[128,192]},"
    "\"model.layers.0.up.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[192,208]}}";

static size_t make_file(uint8_t *file, const void *header, size_t n, size_t data) {
    uint64_t length = n;
    memcpy(file, &length, 8);
    if (n) memcpy(file + 8, header, n);
    memset(file + 8 + n, 0, data);
    return 8 + n + data;
}

static void read_all(const tm_source *src) {
    float v[MOST];
    for (uint32_t i = 0; i < tm_source_tensors(src); i++) {
        uint64_t n = tm_source_tensor_get(src, i)->elements;
        CHECK(n <= MOST && tm_source_read_f32(src, i, 0, n, v) == TM_OK);
    }
}

static void merge(const char *folder) {
    tm_adapter_folder *f;
    tm_source *src = NULL, *merged = NULL;
    CHECK(tm_source_open(&src, folder) == TM_OK);
    tm_status rc = tm_adapter_folder_open(&f, folder);
    if (rc == TM_OK) rc = tm_source_merge(&merged, src, f);
    if (rc == TM_OK)
        read_all(merged);
    else
        CHECK(tm_error_get()->text[0] != 0);
    tm_error_clear();
    tm_source_close(merged);
    tm_adapter_folder_close(f);
    tm_source_close(src);
}

static void one(const char *text, const uint8_t *data, size_t size, size_t zeros) {
    static const char *const names[] = {"config.json", "model.safetensors", "adapter_config.json",
                                        "adapter_model.safetensors", NULL};
    static uint8_t of_base[1024], of_adapter[1 << 17];
    fuzz_begin(size);
    fuzz_file("config.json", "{}", 2);
    fuzz_file("model.safetensors", of_base, make_file(of_base, base, sizeof base - 1, 208));
    fuzz_file("adapter_config.json", text, strlen(text));
    fuzz_file("adapter_model.safetensors", of_adapter, make_file(of_adapter, data, size, zeros));
    merge(fuzz_folder(names));
    fuzz_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 1 << 15) return 0;
    size_t zeros = data[0] | (size_t)data[1] << 8;
    one(plain, data + 2, size - 2, zeros);
    one(dora, data + 2, size - 2, zeros);
    return 0;
}

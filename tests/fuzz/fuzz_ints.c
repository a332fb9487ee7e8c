/* Any quantization_config, beside codes, scales, zeros and an index of groups of any small shapes. What must hold: the folder
 * opens as one tensor whose values can be read, from the file and from the bytes of its piece alone, or is refused with a
 * message.
 *
 *     byte 0       0: as compressed-tensors has it; else as AutoGPTQ and AutoAWQ
 *     1..7         shapes [a, b], [c, d], [e, f], [g] of codes, scales, zeros, index; 255: it is not there
 *     8..11        what weight_shape says; every fourth of the index, the others
 *     from 12 on   the quantization_config, with one of its own where it is empty */
#include "fuzz.h"

#include "format/format.h"

#include <stdio.h>
#include <string.h>

enum { HEAD = 12, MOST = 40, ROOM = 1 << 17 };

typedef struct file {
    uint8_t bytes[ROOM];
    char header[2000];
    size_t header_len, at; /* at: bytes of data */
    uint8_t data[ROOM / 2];
} file;

static void put(file *f, const char *name, const char *dtype, const uint64_t *shape, int dims, size_t size,
                const void *data) {
    uint64_t bytes = size * shape[0] * (dims > 1 ? shape[1] : 1);
    char shown[48];
    snprintf(shown, sizeof shown, dims > 1 ? "%d,%d" : "%d", (int)shape[0], (int)shape[1]);
    f->header_len += (size_t)snprintf(f->header + f->header_len, sizeof f->header - f->header_len,
                                      "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                      f->header_len > 1 ? "," : "", name, dtype, shown, f->at, f->at + (size_t)bytes);
    if (data) memcpy(f->data + f->at, data, bytes);
    f->at += bytes;
}

static size_t make_file(file *f, const uint8_t *in) {
    static const char *const names[2][4] = {{"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"},
                                            {"qweight", "scales", "qzeros", "g_idx"}};
    static const char *const types[] = {"I32", "F16", "I32", "I32"};
    bool transposed = in[0] != 0;
    int32_t index[256];
    int64_t shape[2] = {in[8], in[9]};
    memset(f, 0, sizeof *f);
    f->header[f->header_len++] = '{';
    for (int i = 0; i < 256; i++) index[i] = (int8_t)in[i % 4 == 0 ? 10 : 11];
    for (int i = 0; i < 3; i++) {
        uint64_t sizes[2] = {in[1 + 2 * i] % MOST, in[2 + 2 * i] % MOST};
        if (in[1 + 2 * i] != 255) put(f, names[transposed][i], types[i], sizes, 2, i == 1 ? 2 : 4, NULL);
    }
    if (in[7] != 255) put(f, names[transposed][3], types[3], (uint64_t[]){in[7], 0}, 1, 4, index);
    if (!transposed) put(f, "weight_shape", "I64", (uint64_t[]){2, 0}, 1, 8, shape);
    f->header[f->header_len++] = '}';
    uint64_t length = f->header_len;
    memcpy(f->bytes, &length, 8);
    memcpy(f->bytes + 8, f->header, length);
    memcpy(f->bytes + 8 + length, f->data, f->at);
    return 8 + length + f->at;
}

/* From just the bytes that it names. */
static void decode(const tm_source *src, uint64_t first, uint64_t n, const uint8_t *all) {
    tm_source_piece p;
    void *raw[TM_PIECE_RANGES] = {NULL};
    float got[1];
    CHECK(tm_source_piece_of(src, 0, first, n, &p) == TM_OK && p.n <= TM_PIECE_RANGES);
    for (uint32_t i = 0; i < p.n; i++) {
        raw[i] = malloc(p.range[i].bytes + 1);
        CHECK(raw[i]);
        memcpy(raw[i], all + p.range[i].offset, p.range[i].bytes);
    }
    CHECK(tm_source_decode(src, 0, &p, (const void *const *)raw, first, n, TM_FMT_F32, got) == TM_OK);
    for (uint32_t i = 0; i < p.n; i++) free(raw[i]);
}

static void read_all(const tm_source *src, const uint8_t *all) {
    static float v[1 << 17];
    const tm_source_tensor *t = tm_source_tensor_get(src, 0);
    CHECK(tm_source_tensors(src) == 1 && strcmp(t->name, "m.weight") == 0 && tm_fmt_is_coded(t->fmt));
    CHECK(t->elements >= 1 && t->elements <= TM_COUNT(v));
    CHECK(tm_source_read_f32(src, 0, 0, t->elements, v) == TM_OK);
    decode(src, 0, 1, all);
    decode(src, t->elements - 1, 1, all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"config.json", "model.safetensors", NULL};
    static file f;
    static char config[1 << 12];
    tm_source *src;
    if (size < HEAD || size - HEAD > sizeof config / 2) return 0;
    fuzz_begin(size);
    int n = snprintf(config, sizeof config, "{\"quantization_config\":%.*s}", (int)(size - HEAD),
                     (const char *)data + HEAD);
    fuzz_file("config.json", config, (size_t)n);
    fuzz_file("model.safetensors", f.bytes, make_file(&f, data));
    if (tm_source_open(&src, fuzz_folder(names)) == TM_OK) {
        if (tm_source_is_coded(src)) read_all(src, f.bytes);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_source_close(src);
    fuzz_end();
    return 0;
}

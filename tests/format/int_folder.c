#include "int_folder.h"
#include "io/file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 19, ITEMS = 8 };

typedef struct item {
    char name[64];
    tm_fmt fmt;
    uint64_t shape[2];
    uint32_t ndim;
    void *bytes;
} item;
typedef struct writing {
    const int_folder *f;
    uint64_t group, groups;
    item of[ITEMS];
    uint32_t n;
} writing;

/* ---- what is stored, by its place in the matrix ---- */

static unsigned code_of(const int_folder *f, uint64_t r, uint64_t c) {
    return (unsigned)((r * 2654435761u + c * 40503u + r * c * 7) >> 5) & ((1u << f->bits) - 1);
}
static int zero_of(const int_folder *f, uint64_t r, uint64_t g) {
    int middle = 1 << (f->bits - 1);
    bool words = f->maker != MAKER_PACKED || f->zeros == ZEROS_WORDS;
    if (!words && f->zeros == ZEROS_NONE) return middle;
    if (f->maker == MAKER_GPTQ && r % 5 == 0) return 0; /* -1 as it is stored: it borrows from its neighbour */
    return (int)((r * 7 + g * 3) % (1u << f->bits));
}
/* Few bits, so that every type has it; F32 has more. */
static float scale_of(const int_folder *f, uint64_t r, uint64_t g) {
    float scale = (float)((r * 5 + g * 11) % 31 + 1) / 256 * (float)(r % 3 == 1 ? -1 : 1);
    return f->scale == TM_FMT_F32 ? scale * 1.0000123F : scale;
}
static uint64_t group_of(const writing *w, uint64_t c) {
    if (!w->f->ordered) return c / w->group;
    return (c * 5 + 3) % w->f->width / w->group; /* 5 and widths have no common factor in these tests */
}

/* ---- packing ---- */

static void *room(uint64_t bytes) {
    void *p = calloc(bytes + 8, 1);
    assert_non_null(p);
    return p;
}

static void put_bits(uint32_t *words, uint64_t word, unsigned place, unsigned bits, unsigned value) {
    words[word] |= (value & ((1u << bits) - 1)) << place * bits;
}

static item *add(writing *w, const char *name, tm_fmt fmt, uint64_t rows, uint64_t columns, void *bytes) {
    item *i = &w->of[w->n++];
    assert_true(w->n <= ITEMS);
    *i = (item){.fmt = fmt, .shape = {rows, columns}, .ndim = columns ? 2 : 1, .bytes = bytes};
    snprintf(i->name, sizeof i->name, "model.up.%s", name);
    return i;
}

static const unsigned awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7}; /* the row of 8 that is in nibble i */

static void add_codes(writing *w) {
    const int_folder *f = w->f;
    uint64_t per = 32 / f->bits, row_words = (f->width + per - 1) / per;
    uint32_t *words = room(f->rows * row_words * 4 + f->width * f->rows);
    for (uint64_t r = 0; r < f->rows && f->maker != MAKER_AWQ; r++)
        for (uint64_t c = 0; c < f->width; c++)
            put_bits(words, f->maker == MAKER_PACKED ? r * row_words + c / per : c / per * f->rows + r,
                     (unsigned)(c % per), f->bits, code_of(f, r, c));
    for (uint64_t c = 0; c < f->width && f->maker == MAKER_AWQ; c++)
        for (uint64_t k = 0; k < f->rows; k++)
            put_bits(words, c * (f->rows / 8) + k / 8, (unsigned)(k % 8), 4,
                     code_of(f, k / 8 * 8 + awq_order[k % 8], c));
    if (f->maker == MAKER_PACKED)
        add(w, "weight_packed", TM_FMT_I32, f->rows, row_words, words);
    else if (f->maker == MAKER_AWQ)
        add(w, "qweight", TM_FMT_I32, f->width, f->rows / 8, words);
    else
        add(w, "qweight", TM_FMT_I32, f->width / per, f->rows, words);
}

static void add_scales(writing *w) {
    const int_folder *f = w->f;
    uint64_t size = tm_fmt_get(f->scale)->block_bytes;
    uint8_t *bytes = room(f->rows * w->groups * size);
    bool packed = f->maker == MAKER_PACKED;
    for (uint64_t r = 0; r < f->rows; r++)
        for (uint64_t g = 0; g < w->groups; g++) {
            float scale = scale_of(f, r, g);
            OK(tm_fmt_encode(f->scale, &scale, 1, bytes + (packed ? r * w->groups + g : g * f->rows + r) * size));
        }
    if (packed)
        add(w, "weight_scale", f->scale, f->rows, w->groups, bytes);
    else
        add(w, "scales", f->scale, w->groups, f->rows, bytes);
}

static void add_zero_bytes(writing *w) {
    int8_t *bytes = room(w->f->rows * w->groups);
    for (uint64_t r = 0; r < w->f->rows; r++)
        for (uint64_t g = 0; g < w->groups; g++)
            bytes[r * w->groups + g] = (int8_t)(zero_of(w->f, r, g) - (1 << (w->f->bits - 1)));
    add(w, "weight_zero_point", TM_FMT_I8, w->f->rows, w->groups, bytes);
}

static void add_zero_words(writing *w) {
    const int_folder *f = w->f;
    uint64_t per = 32 / f->bits, lines = (f->rows + per - 1) / per;
    uint32_t *words = room(lines * w->groups * 4);
    bool packed = f->maker == MAKER_PACKED, awq = f->maker == MAKER_AWQ;
    for (uint64_t k = 0; k < f->rows; k++) {
        uint64_t row = awq ? k / 8 * 8 + awq_order[k % 8] : k;
        for (uint64_t g = 0; g < w->groups; g++)
            put_bits(words, packed ? k / per * w->groups + g : g * lines + k / per, (unsigned)(k % per), f->bits,
                     (unsigned)zero_of(f, row, g));
    }
    /* as a whole word, so that what is 0 borrows */
    for (uint64_t i = 0; i < lines * w->groups && f->maker == MAKER_GPTQ; i++)
        words[i] -= f->bits == 4 ? 0x11111111u : 0x01010101u;
    if (packed)
        add(w, "weight_zero_point", TM_FMT_I32, lines, w->groups, words);
    else
        add(w, "qzeros", TM_FMT_I32, w->groups, lines, words);
}

static void add_index(writing *w) {
    const int_folder *f = w->f;
    if (!f->ordered && !f->plain_index && !f->index_0) return;
    int32_t *index = room(f->width * 4);
    for (uint64_t c = 0; c < f->width; c++) index[c] = (int32_t)group_of(w, c);
    if (f->index_0) index[0] = f->index_0;
    add(w, f->maker == MAKER_PACKED ? "weight_g_idx" : "g_idx", TM_FMT_I32, f->width, 0, index);
}

static void add_rest(writing *w) {
    const int_folder *f = w->f;
    if (f->maker == MAKER_PACKED) {
        int64_t *shape = room(16);
        shape[0] = f->shape_0 ? f->shape_0 : (int64_t)f->rows, shape[1] = (int64_t)f->width;
        add(w, "weight_shape", TM_FMT_I64, 2, 0, shape);
    }
    add_index(w);
    if (f->doubled) add(w, "weight", TM_FMT_F32, 1, 1, room(4));
}

/* ---- the folder ---- */

static bool is_meant(const char *name, const char *end) {
    return end && tm_ends_with(name, end);
}

/* What is wrong with it. */
static void spoil(const int_folder *f, item *i) {
    uint64_t size = tm_fmt_get(i->fmt)->block_bytes, more = 2 * (i->shape[0] + 1) * (i->ndim > 1 ? i->shape[1] : 1) * 8;
    void *bytes = room(more);
    memcpy(bytes, i->bytes, i->shape[0] * (i->ndim > 1 ? i->shape[1] : 1) * size);
    free(i->bytes);
    i->bytes = bytes;
    if (is_meant(i->name, f->longer)) i->shape[0]++;
    if (is_meant(i->name, f->retyped)) i->fmt = i->fmt == TM_FMT_I32 ? TM_FMT_U32 : TM_FMT_F64;
}

static void write_items(const item *of, uint32_t n, const char *path) {
    tm_st_writer *w;
    uint32_t at[ITEMS + 1];
    static const float norm[3] = {1, 2, 3};
    OK(tm_st_writer_create(&w, path));
    for (uint32_t i = 0; i < n; i++) OK(tm_st_writer_add(w, of[i].name, of[i].fmt, of[i].ndim, of[i].shape, &at[i]));
    OK(tm_st_writer_add(w, n == 1 || n > 3 ? "model.norm.weight" : "model.other.weight", TM_FMT_F32, 1, (uint64_t[]){3},
                        &at[n]));
    for (uint32_t i = 0; i < n; i++) {
        uint64_t elements = of[i].shape[0] * (of[i].ndim > 1 ? of[i].shape[1] : 1);
        OK(tm_st_writer_write(w, at[i], 0, of[i].bytes, elements * tm_fmt_get(of[i].fmt)->block_bytes));
    }
    OK(tm_st_writer_write(w, at[n], 0, norm, sizeof norm));
    OK(tm_st_writer_commit(w));
}

static void write_shards(const writing *w, const char *dir) {
    char path[1200], index[2000];
    int n = snprintf(index, sizeof index, "{\"weight_map\":{\"model.norm.weight\":\"1.safetensors\"");
    snprintf(path, sizeof path, "%s/1.safetensors", dir);
    write_items(w->of, 1, path);
    snprintf(path, sizeof path, "%s/2.safetensors", dir);
    write_items(w->of + 1, w->n - 1, path);
    for (uint32_t i = 0; i < w->n; i++)
        n += snprintf(index + n, sizeof index - (size_t)n, ",\"%s\":\"%d.safetensors\"", w->of[i].name, i ? 2 : 1);
    snprintf(index + n, sizeof index - (size_t)n, "}}");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    write_file(path, index, strlen(index));
}

static void write_config(const int_folder *f, const char *dir) {
    char text[1000], path[1200], group[40] = "-1";
    if (f->group) snprintf(group, sizeof group, "%d", (int)f->group);
    if (f->maker == MAKER_PACKED)
        snprintf(
            text, sizeof text,
            "{\"quantization_config\":%s{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
            "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":%u,\"type\":\"int\","
            "\"symmetric\":%s,\"strategy\":\"%s\",\"group_size\":%s}}},\"ignore\":[\"lm_head\"]}}",
            "", f->bits, f->zeros ? "false" : "true", f->group ? "group" : "channel", f->group ? group : "null");
    else
        snprintf(text, sizeof text,
                 "{\"quantization_config\":{\"quant_method\":\"%s\",\"bits\":%u,\"group_size\":%s%s}}",
                 f->maker == MAKER_AWQ ? "awq" : "gptq", f->bits, group,
                 f->maker == MAKER_AWQ       ? ",\"version\":\"gemm\",\"zero_point\":true"
                 : f->maker == MAKER_GPTQ_V2 ? ",\"checkpoint_format\":\"gptq_v2\""
                                             : ",\"desc_act\":true");
    if (f->config) snprintf(text, sizeof text, "{\"quantization_config\":%s}", f->config);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_file(path, text, strlen(text));
}

const float *write_int_folder(const int_folder *f, const char *dir) {
    static float values[MOST];
    writing w = {.f = f, .group = f->group ? f->group : f->width};
    char path[1200];
    w.groups = (f->width + w.group - 1) / w.group;
    assert_true(f->rows * f->width <= MOST);
    add_codes(&w);
    add_scales(&w);
    if (f->maker == MAKER_PACKED && f->zeros == ZEROS_BYTES) add_zero_bytes(&w);
    if (f->maker != MAKER_PACKED || f->zeros == ZEROS_WORDS) add_zero_words(&w);
    add_rest(&w);
    for (uint32_t i = 0; i < w.n; i++) spoil(f, &w.of[i]);
    uint32_t n = 0;
    for (uint32_t i = 0; i < w.n; i++) {
        if (is_meant(w.of[i].name, f->without))
            free(w.of[i].bytes);
        else
            w.of[n++] = w.of[i];
    }
    w.n = n;
    OK(tm_remove_tree(dir));
    OK(tm_make_dirs(dir));
    write_config(f, dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (f->sharded)
        write_shards(&w, dir);
    else
        write_items(w.of, w.n, path);
    for (uint32_t i = 0; i < w.n; i++) free(w.of[i].bytes);
    for (uint64_t r = 0; r < f->rows; r++)
        for (uint64_t c = 0; c < f->width; c++) {
            uint64_t g = group_of(&w, c);
            values[r * f->width + c] = (float)((int)code_of(f, r, c) - zero_of(f, r, g)) * scale_of(f, r, g);
        }
    return values;
}

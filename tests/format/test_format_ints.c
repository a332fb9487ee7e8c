/* Folders of integer codes: compressed-tensors' pack-quantized, AutoGPTQ's, AutoAWQ's. Their values are those that
 * int_folder.c, which writes them from the formats' definitions, says; any range, in place and from the file. What such a
 * folder may lie about is refused. */
#include "int_folder.h"

#include "io/file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char NAME[] = "model.up.weight";

#define PACKED .maker = MAKER_PACKED
static const int_folder forms[] = {
    {PACKED, .bits = 4, .rows = 9, .width = 64, .group = 32, .scale = TM_FMT_BF16},
    {PACKED, .bits = 8, .rows = 70, .width = 96, .group = 32, .scale = TM_FMT_F16},
    {PACKED, .bits = 8, .rows = 7, .width = 37, .scale = TM_FMT_F32},  /* broken words */
    {PACKED, .bits = 4, .rows = 13, .width = 37, .scale = TM_FMT_F32}, /* .. of nibbles */
    {PACKED, .bits = 4, .rows = 11, .width = 1056, .group = 96, .scale = TM_FMT_F16, .zeros = ZEROS_WORDS},
    {PACKED, .bits = 8, .rows = 11, .width = 64, .group = 16, .scale = TM_FMT_BF16, .zeros = ZEROS_WORDS},
    {PACKED, .bits = 4, .rows = 19, .width = 64, .scale = TM_FMT_F32, .zeros = ZEROS_WORDS},
    {PACKED, .bits = 4, .rows = 5, .width = 128, .group = 64, .scale = TM_FMT_F32, .zeros = ZEROS_BYTES},
    {PACKED, .bits = 4, .rows = 130, .width = 576, .group = 64, .scale = TM_FMT_BF16, .ordered = true},
    {PACKED, .bits = 8, .rows = 6, .width = 1024, .group = 8, .scale = TM_FMT_F32, .ordered = true,
     .zeros = ZEROS_WORDS},
    {PACKED, .bits = 4, .rows = 6, .width = 64, .group = 32, .scale = TM_FMT_F32, .index_0 = -1},
    {PACKED, .bits = 4, .rows = 6, .width = 64, .group = 32, .scale = TM_FMT_F32, .sharded = true},
    {.maker = MAKER_GPTQ, .bits = 4, .rows = 16, .width = 64, .group = 32, .scale = TM_FMT_F16, .plain_index = true},
    {.maker = MAKER_GPTQ, .bits = 4, .rows = 200, .width = 1056, .group = 96, .scale = TM_FMT_F16, .ordered = true},
    {.maker = MAKER_GPTQ, .bits = 8, .rows = 12, .width = 640, .group = 128, .scale = TM_FMT_BF16},
    {.maker = MAKER_GPTQ, .bits = 4, .rows = 8, .width = 72, .group = 32, .scale = TM_FMT_F32}, /* a group of 8 */
    {.maker = MAKER_GPTQ_V2, .bits = 4, .rows = 72, .width = 64, .scale = TM_FMT_F16},
    {.maker = MAKER_GPTQ_V2, .bits = 8, .rows = 4, .width = 64, .group = 16, .scale = TM_FMT_F32, .ordered = true},
    {.maker = MAKER_AWQ, .bits = 4, .rows = 8, .width = 32, .group = 32, .scale = TM_FMT_F16},
    {.maker = MAKER_AWQ, .bits = 4, .rows = 200, .width = 1152, .group = 64, .scale = TM_FMT_F16},
    {.maker = MAKER_AWQ, .bits = 4, .rows = 72, .width = 45, .scale = TM_FMT_F32},
    {.maker = MAKER_AWQ, .bits = 4, .rows = 2048, .width = 96, .group = 32, .scale = TM_FMT_F16, .sharded = true},
};

static tm_fmt type_of(const int_folder *f) {
    bool four = f->bits == 4;
    return f->maker == MAKER_AWQ      ? TM_FMT_AWQ4
           : f->maker == MAKER_PACKED ? (four ? TM_FMT_INT4 : TM_FMT_INT8)
                                      : (four ? TM_FMT_GPTQ4 : TM_FMT_GPTQ8);
}

static uint32_t tensor_of(const tm_source *src) {
    int64_t t = tm_source_find(src, NAME);
    assert_true(t >= 0);
    return (uint32_t)t;
}

static void same(const float *got, const float *want, uint64_t n, const char *what, size_t form) {
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("form %zu, %s, %llu: %g, not %g", form, what, (unsigned long long)i, (double)got[i],
                     (double)want[i]);
}

static void the_values_are_those_of_the_definitions(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(forms); i++) {
        const int_folder *f = &forms[i];
        uint64_t n = f->rows * f->width, all;
        const float *want = write_int_folder(f, scratch("ints"));
        tm_source *src;
        OK(tm_source_open(&src, scratch("ints")));
        assert_int_equal(tm_source_tensors(src), f->sharded ? 3 : 2);
        const tm_source_tensor *t = tm_source_tensor_get(src, tensor_of(src));
        assert_true(t->fmt == type_of(f) && t->ndim == 2 && t->shape[0] == f->rows && t->shape[1] == f->width);
        assert_true(tm_source_is_coded(src) && t->elements == n);
        float *got = values_of(src, NAME, &all);
        same(got, want, n, "all", i);
        for (uint64_t first = 0; first < n; first += 1 + n / 97) {
            uint64_t take = tm_min_u64(n - first, first % 700 + 1);
            memset(got, 0xa5, take * sizeof *got);
            OK(tm_source_read_f32(src, tensor_of(src), first, take, got));
            same(got, want + first, take, "a range", i);
        }
        expect_error(tm_source_read_f32(src, tensor_of(src), n, 1, got), TM_EINPUT, "not there");
        expect_error(tm_source_read_native(src, tensor_of(src), 0, 1, got), TM_EUNSUPPORTED,
                     t->fmt == TM_FMT_AWQ4 ? "AWQ4" : "as");
        free(got);
        tm_source_forget(src, tensor_of(src));
        tm_source_close(src);
    }
}

/* ---- in place ---- */

typedef struct bytes_of {
    uint8_t *block[TM_PIECE_RANGES];
    const void *raw[TM_PIECE_RANGES];
} bytes_of;

/* At odd addresses, and not a byte more than was named. */
static bytes_of read_piece(const tm_source_piece *p) {
    bytes_of b = {.block = {NULL}};
    for (uint32_t i = 0; i < p->n; i++) {
        const tm_raw_range *r = &p->range[i];
        FILE *file = fopen(r->path, "rb");
        b.block[i] = malloc(r->bytes + 1);
        assert_true(file && b.block[i] && fseek(file, (long)r->offset, SEEK_SET) == 0);
        assert_int_equal(fread(b.block[i] + 1, 1, r->bytes, file), r->bytes);
        b.raw[i] = b.block[i] + 1;
        fclose(file);
    }
    return b;
}

static void piece_is_right(const tm_source *src, uint64_t first, uint64_t n, const float *want, size_t form) {
    static const tm_fmt types[] = {TM_FMT_F32, TM_FMT_BF16, TM_FMT_F16};
    tm_source_piece p;
    OK(tm_source_piece_of(src, tensor_of(src), first, n, &p));
    assert_true(p.first <= first && first + n <= p.first + p.elements && !p.in_order);
    bytes_of b = read_piece(&p);
    uint8_t *got = malloc(n * 4 + 1), *as = malloc(n * 4 + 1);
    assert_true(got && as);
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        OK(tm_fmt_encode(types[k], want + first, n, as));
        OK(tm_source_decode(src, tensor_of(src), &p, b.raw, first, n, types[k], got));
        if (memcmp(got, as, n * tm_fmt_get(types[k])->block_bytes) != 0)
            fail_msg("form %zu, %llu from %llu, to %s", form, (unsigned long long)n, (unsigned long long)first,
                     tm_fmt_get(types[k])->name);
    }
    free(got);
    free(as);
    for (uint32_t i = 0; i < p.n; i++) free(b.block[i]);
}

static void pieces_decode_alike(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(forms); i++) {
        const int_folder *f = &forms[i];
        uint64_t n = f->rows * f->width;
        const float *want = write_int_folder(f, scratch("ints"));
        tm_source *src;
        tm_source_piece p;
        OK(tm_source_open(&src, scratch("ints")));
        piece_is_right(src, 0, n, want, i);
        for (uint64_t first = 1; first < n; first += 1 + n / 23)
            piece_is_right(src, first, tm_min_u64(n - first, first % 900 + 1), want, i);
        piece_is_right(src, n, 0, want, i);
        OK(tm_source_piece_of(src, tensor_of(src), f->width, 1, &p));
        assert_true(f->maker == MAKER_PACKED ? p.elements == f->width : p.elements == n && p.run > 0);
        tm_source_close(src);
    }
}

/* ---- lies ---- */

#define GPTQ .maker = MAKER_GPTQ, .bits = 4, .rows = 16, .width = 64, .group = 32, .scale = TM_FMT_F16
#define AWQ .maker = MAKER_AWQ, .bits = 4, .rows = 16, .width = 64, .group = 32, .scale = TM_FMT_F16
#define PACK PACKED, .bits = 4, .rows = 16, .width = 64, .group = 32, .scale = TM_FMT_F16
#define CT(rest) "{\"quant_method\":\"compressed-tensors\"," rest "}"
#define GROUPS(weights) CT("\"format\":\"pack-quantized\",\"config_groups\":{\"a\":{\"weights\":" weights "}}")

static void lies_are_refused(void **state) {
    (void)state;
    static const struct {
        int_folder f;
        const char *text;
    } rows[] = {
        {{PACK, .without = "weight_scale"}, "'model.up.weight_packed' is there, but no 'model.up.weight_scale'"},
        {{PACK, .without = "weight_shape"}, "no 'model.up.weight_shape'"},
        {{PACK, .without = "weight_packed"}, "no 'weight_packed' beside it"},
        {{PACK, .zeros = ZEROS_WORDS, .without = "zero_point"}, "no 'model.up.weight_zero_point'"},
        {{PACK, .longer = "weight_packed"}, "other rows than its shape says"},
        {{PACK, .longer = "weight_scale"}, "not as config_groups have it"},
        {{PACK, .longer = "weight_shape"}, "not two sizes"},
        {{PACK, .zeros = ZEROS_WORDS, .longer = "zero_point"}, "neither an I8 a scale nor words"},
        {{PACK, .zeros = ZEROS_BYTES, .longer = "zero_point"}, "neither an I8 a scale nor words"},
        {{PACK, .retyped = "weight_scale"}, "scales are F16, BF16 or F32"},
        {{PACK, .retyped = "weight_packed"}, "not a matrix of I32"},
        {{PACK, .retyped = "weight_shape"}, "not two sizes"},
        {{PACK, .shape_0 = -3}, "its sizes are none"},
        {{PACK, .shape_0 = INT64_MAX}, "other rows"},
        {{PACK, .ordered = true, .longer = "g_idx"}, "not an I32 a column"},
        {{PACK, .ordered = true, .retyped = "g_idx"}, "not an I32 a column"},
        {{PACK, .index_0 = 2}, "column 0 is of group 2, of 2"},
        {{PACK, .index_0 = -2}, "column 0 is of group -2, of 2"},
        {{PACK, .doubled = true}, "'model.up.weight' is there twice"},
        {{PACK, .config = GROUPS("{\"num_bits\":4,\"group_size\":48}")}, "group_size 48 does not divide 64 columns"},
        {{PACK, .config = GROUPS("{\"num_bits\":8,\"group_size\":32}")}, "not as config_groups have it"},
        {{PACK, .config = GROUPS("{\"num_bits\":4,\"strategy\":\"channel\"}")}, "not as config_groups have it"},
        {{PACK, .config = GROUPS("{\"num_bits\":4,\"strategy\":\"group\"}")}, "there is no group_size"},
        {{PACK, .config = GROUPS("{\"num_bits\":4,\"group_size\":0}")}, "group_size is neither"},
        {{PACK, .config = GROUPS("{\"num_bits\":4,\"group_size\":-2}")}, "group_size is neither"},
        {{PACK, .config = GROUPS("{\"num_bits\":4,\"group_size\":\"32\"}")}, "group_size is neither"},
        {{PACK, .config = GROUPS("{\"num_bits\":4,\"group_size\":99999999999}")}, "group_size is neither"},
        {{PACK, .config = GROUPS("{\"group_size\":32}")}, "number of bits is not given"},
        {{PACK, .config = GROUPS("[]")}, "weights is not an object"},
        {{PACK, .config = GROUPS("null")}, "no config_group quantises weights"},
        {{PACK, .config = CT("\"format\":\"pack-quantized\"")}, "there are no config_groups"},
        {{GPTQ, .without = "scales"}, "'model.up.qweight' is there, but no 'model.up.scales'"},
        {{GPTQ, .without = "qzeros"}, "no 'model.up.qzeros'"},
        {{GPTQ, .without = "qweight"}, "no 'qweight' beside it"},
        {{GPTQ, .longer = "scales"}, "not a scale for each group and row"},
        {{GPTQ, .longer = "qzeros"}, "not a zero for each group and row"},
        {{GPTQ, .longer = "qweight"}, "not a scale for each group and row"},
        {{GPTQ, .ordered = true, .longer = "g_idx"}, "not an I32 a column"},
        {{GPTQ, .retyped = "qweight"}, "not a matrix of I32"},
        {{GPTQ, .retyped = "scales"}, "scales are F16, BF16 or F32"},
        {{GPTQ, .retyped = "qzeros"}, "not a zero"},
        {{GPTQ, .index_0 = 2}, "column 0 is of group 2, of 2"},
        {{GPTQ, .index_0 = -1}, "column 0 is of group -1, of 2"},
        {{GPTQ, .doubled = true}, "'model.up.weight' is there twice"},
        {{GPTQ, .config = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":16}"}, "is group_size right?"},
        {{GPTQ, .config = "{\"quant_method\":\"gptq\",\"group_size\":32}"}, "number of bits is not given"},
        {{GPTQ, .config = "{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":32}"}, "not a scale"},
        {{GPTQ, .config = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0}"}, "group_size is neither"},
        {{AWQ, .without = "scales"}, "no 'model.up.scales'"},
        {{AWQ, .without = "qzeros"}, "no 'model.up.qzeros'"},
        {{AWQ, .longer = "qzeros"}, "not a zero"},
        {{AWQ, .longer = "qweight"}, "group_size does not divide its columns"},
        {{AWQ, .config = "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":48}"}, "group_size does not divide"},
        {{AWQ, .config = "{\"quant_method\":\"awq\",\"group_size\":32}"}, "number of bits is not given"},
        {{PACK, .config = "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32}"},
         "no tensor is called '*.qweight'"},
        {{PACK, .config = "null"}, "config.json has no quantization_config"},
        {{GPTQ, .config = "null"}, "config.json has no quantization_config"},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_source *src;
        (void)write_int_folder(&rows[i].f, scratch("ints"));
        expect_error(tm_source_open(&src, scratch("ints")), TM_EINPUT, rows[i].text);
        assert_null(src);
    }
}

/* An index of more groups than its table has room for. */
static void many_groups_with_an_index(void **state) {
    (void)state;
    const int_folder f = {PACKED,     .bits = 4,           .rows = 1,      .width = 2049 * 8,
                          .group = 8, .scale = TM_FMT_F16, .ordered = true};
    tm_source *src;
    (void)write_int_folder(&f, scratch("ints"));
    expect_error(tm_source_open(&src, scratch("ints")), TM_EINPUT, "more than 2048 groups");
}

static void what_is_not_read_is_named(void **state) {
    (void)state;
    static const struct {
        const char *config, *text;
    } rows[] = {
        {CT("\"format\":\"int-quantized\""), "int-quantized"},
        {CT("\"format\":\"nvfp4-pack-quantized\""), "nvfp4-pack-quantized"},
        {CT("\"format\":\"marlin-24\""), "marlin-24"},
        {CT("\"config_groups\":{}"), "this format"},
        {CT("\"format\":\"pack-quantized\",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"),
         "sparse-24-bitmask"},
        {CT("\"format\":\"mixed-precision\",\"config_groups\":{\"a\":{\"format\":\"float-quantized\",\"weights\":{}}}"),
         "float-quantized"},
        {GROUPS("{\"num_bits\":3,\"group_size\":32}"), "number of bits (3)"},
        {GROUPS("{\"num_bits\":4,\"type\":\"float\"}"), "float"},
        {GROUPS("{\"num_bits\":4,\"strategy\":\"block\"}"), "block"},
        {"{\"quant_method\":\"gptq\",\"bits\":3}", "number of bits (3)"},
        {"{\"quant_method\":\"gptq\",\"bits\":2}", "number of bits (2)"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}", "marlin"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"is_marlin_format\":true}", "is_marlin_format"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"pack_dtype\":\"int16\"}", "int16"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"}", "gemv"},
        {"{\"quant_method\":\"awq\",\"bits\":8,\"version\":\"gemm\"}", "number of bits (8)"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"zero_point\":false}", "zero_point"},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const int_folder f = {PACK, .config = rows[i].config};
        tm_source *src;
        (void)write_int_folder(&f, scratch("ints"));
        expect_error(tm_source_open(&src, scratch("ints")), TM_EUNSUPPORTED, rows[i].text);
        OK(tm_source_open_bare(&src, scratch("ints"))); /* its tokenizer is as good as any */
        tm_source_close(src);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_values_are_those_of_the_definitions),
        cmocka_unit_test(pieces_decode_alike),
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(many_groups_with_an_index),
        cmocka_unit_test(what_is_not_read_is_named),
    };
    return cmocka_run_group_tests_name("ints", tests, make_scratch, remove_scratch);
}

/* Folders of quantised weights: compressed-tensors' pack-quantized, read here element by element from its definition
 * (src/format/packed.c has it), and bitsandbytes' NF4, whose bytes are those that bitsandbytes made of the same model. */
#include "format/peft.h"
#include "io/file/file.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tm_status export_as(const char *in, const char *out, const char *dtype) {
    return tm_export(&(tm_export_request){.in = in, .out = out, .convert.dtype = dtype});
}

static void *raw(const tm_st *st, const char *stem, const char *suffix, tm_fmt fmt, uint64_t *n) {
    char name[200];
    snprintf(name, sizeof name, "%s%s", stem, suffix);
    int64_t t = tm_st_find(st, name);
    if (t < 0) fail_msg("'%s' is missing", name);
    const tm_st_info *info = tm_st_get(st, (uint32_t)t);
    assert_int_equal(info->fmt, fmt);
    void *bytes = malloc(info->bytes + 1);
    OK(tm_st_read_raw(st, (uint32_t)t, 0, info->bytes, bytes));
    *n = info->elements;
    return bytes;
}

/* Element e of row r. */
static int code_of(const uint32_t *words, uint64_t row_words, uint64_t r, uint64_t e, unsigned bits) {
    uint32_t word = words[r * row_words + e * bits / 32];
    return (int)(word >> e * bits % 32 & ((1u << bits) - 1)) - (1 << (bits - 1));
}

/* scale: the largest magnitude of its elements over (2^bits - 1) / 2; a code is the nearest, of ties either. Read back it is
 * code times scale. */
static void check_matrix(const tm_st *st, const tm_source *in, const tm_source *back, const char *stem, unsigned bits,
                         uint64_t group) {
    char name[200];
    uint64_t n, n_words, n_scales, n_shape;
    snprintf(name, sizeof name, "%sweight", stem);
    float *x = values_of(in, name, &n);
    float *is = values_of(back, name, &n);
    uint32_t *words = raw(st, stem, "weight_packed", TM_FMT_I32, &n_words);
    float *scale = raw(st, stem, "weight_scale", TM_FMT_F32, &n_scales);
    int64_t *shape = raw(st, stem, "weight_shape", TM_FMT_I64, &n_shape);
    assert_int_equal(n_shape, 2);
    uint64_t rows = (uint64_t)shape[0], width = (uint64_t)shape[1], size = group ? group : width, groups = width / size;
    assert_true(rows * width == n && n_scales == rows * groups && n_words == rows * ((width * bits + 31) / 32));
    for (uint64_t g = 0; g < rows * groups; g++) {
        float largest = 0;
        for (uint64_t e = 0; e < size; e++) largest = fmaxf(largest, fabsf(x[g * size + e]));
        assert_true(scale[g] == largest / ((float)((1 << bits) - 1) / 2));
        for (uint64_t e = 0; e < size; e++) {
            double v = (double)x[g * size + e] / (double)scale[g], top = (1 << (bits - 1)) - 1;
            int code = code_of(words, n_words / rows, g / groups, g % groups * size + e, bits);
            double nearest = v > top ? top : v;
            if (fabs(nearest - code) > 0.5 + 1e-5) fail_msg("%s: %g became %d", stem, v, code);
            assert_true(is[g * size + e] == (float)code * scale[g]);
        }
    }
    free(x);
    free(is);
    free(words);
    free(scale);
    free(shape);
}

static const tm_json *weights_of(tm_json_doc *config) {
    const tm_json *q = tm_json_get(tm_json_root(config), "quantization_config");
    assert_true(tm_json_is(tm_json_get(q, "quant_method"), "compressed-tensors"));
    assert_true(tm_json_is(tm_json_get(q, "format"), "pack-quantized"));
    assert_true(tm_json_is(tm_json_get(q, "ignore")->child, "lm_head"));
    const tm_json *group = tm_json_get(tm_json_get(q, "config_groups"), "group_0");
    assert_true(tm_json_is(tm_json_get(group, "targets")->child, "Linear"));
    return tm_json_get(group, "weights");
}

static void packed_weights_are_those_of_the_definition(void **state) {
    (void)state;
    static const struct {
        const char *dtype, *model;
        unsigned bits;
        uint64_t group;
    } cases[] = {{"int8", "arch_llama", 8, 0},
                 {"int8", "arch_glm4", 8, 0}, /* rows of 37: broken words */
                 {"int4", "arch_qwen2", 4, 32},
                 {"int4", "peft_base", 4, 64}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_source *in, *back;
        tm_st *st;
        unsigned matrices = 0;
        OK(tm_remove_tree(scratch("packed")));
        OK(export_as(fixture(cases[i].model), scratch("packed"), cases[i].dtype));
        tm_json_doc *config = json_in(scratch("packed"), "config.json");
        const tm_json *w = weights_of(config);
        assert_int_equal(tm_json_get(w, "num_bits")->integer, cases[i].bits);
        assert_true(tm_json_is(tm_json_get(w, "strategy"), cases[i].group ? "group" : "channel"));
        if (cases[i].group) assert_int_equal(tm_json_get(w, "group_size")->integer, cases[i].group);
        tm_json_free(config);
        OK(tm_source_open(&in, fixture(cases[i].model)));
        OK(tm_source_open(&back, scratch("packed")));
        OK(tm_st_open(&st, scratch("packed/model.safetensors")));
        for (uint32_t t = 0; t < tm_source_tensors(in); t++) {
            const tm_source_tensor *s = tm_source_tensor_get(in, t);
            char stem[160];
            bool quantised = s->ndim == 2 && strstr(s->name, ".layers.");
            if (tm_st_find(st, s->name) >= 0 ? quantised : !quantised) fail_msg("%s", s->name);
            if (!quantised) continue;
            snprintf(stem, sizeof stem, "%.*s", (int)(strlen(s->name) - strlen("weight")), s->name);
            check_matrix(st, in, back, stem, cases[i].bits, cases[i].group);
            matrices++;
        }
        assert_true(matrices >= 8);
        tm_st_close(st);
        tm_source_close(back);
        tm_source_close(in);
    }
}

/* The fixture has a lm_head of its own, which is its embedding. */
static void same_values(const char *ours, const char *theirs) {
    tm_source *a, *b;
    OK(tm_source_open(&a, ours));
    OK(tm_source_open(&b, theirs));
    assert_true(tm_source_tensors(a) > 16 && tm_source_is_coded(a));
    for (uint32_t i = 0; i < tm_source_tensors(a); i++) same_tensor(a, b, tm_source_tensor_get(a, i)->name, 0, 1e-6f);
    tm_source_close(a);
    tm_source_close(b);
}

/* Codes, scales and scales of scales, against the fixture's folder; and our reader takes ours. */
static void nf4_is_what_bitsandbytes_makes(void **state) {
    (void)state;
    tm_st *ours, *theirs;
    unsigned same = 0;
    OK(export_as(fixture("peft_base"), scratch("nf4"), "nf4"));
    OK(tm_st_open(&ours, scratch("nf4/model.safetensors")));
    OK(tm_st_open(&theirs, fixture("peft_qlora/base_nf4/model.safetensors")));
    for (uint32_t i = 0; i < tm_st_count(theirs); i++) {
        const tm_st_info *a = tm_st_get(theirs, i);
        /* JSON, in another order; the embedding once more */
        if (strstr(a->name, "quant_state") || strcmp(a->name, "lm_head.weight") == 0) continue;
        int64_t t = tm_st_find(ours, a->name);
        if (t < 0) fail_msg("'%s' is missing", a->name);
        const tm_st_info *b = tm_st_get(ours, (uint32_t)t);
        assert_true(a->fmt == b->fmt && a->bytes == b->bytes);
        uint8_t *x = malloc(a->bytes), *y = malloc(a->bytes);
        OK(tm_st_read_raw(theirs, i, 0, a->bytes, x));
        OK(tm_st_read_raw(ours, (uint32_t)t, 0, a->bytes, y));
        bool codes = a->fmt == TM_FMT_U8;
        if (codes && memcmp(x, y, a->bytes) != 0) fail_msg("'%s' has other codes", a->name);
        same += codes;
        free(x);
        free(y);
    }
    assert_true(same >= 14);
    tm_st_close(ours);
    tm_st_close(theirs);
    same_values(scratch("nf4"), fixture("peft_qlora/base_nf4"));
}

static void what_has_no_such_form_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *out, *dtype;
        tm_status status;
        const char *text;
    } cases[] = {{"arch_glm4", "refused", "int4", TM_EUNSUPPORTED, "no multiple of 32; take int8"},
                 {"arch_gpt2", "refused", "int8", TM_EUNSUPPORTED, "GPT-2's matrices"},
                 {"arch_gpt2", "refused", "nf4", TM_EUNSUPPORTED, "GPT-2's matrices"},
                 {"arch_llama", "refused.gguf", "int8", TM_EINPUT, "GGUF has no int8"},
                 {"arch_llama", "refused", "q4_k_m", TM_EINPUT, "nf4"},
                 {"arch_llama", "refused", "int3", TM_EINPUT, "'int3'"},
                 {"peft_lora", "refused", "nf4", TM_EINPUT, "--merge-adapter"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_status rc = export_as(fixture(cases[i].model), scratch(cases[i].out), cases[i].dtype);
        expect_error(rc, cases[i].status, cases[i].text);
        assert_false(tm_path_exists(scratch(cases[i].out)));
        assert_int_equal(leftovers(scratch(".")), 0);
    }
}

/* A file may have it. */
static void a_matrix_without_elements_stays_as_it_is(void **state) {
    (void)state;
    static const char config[] = "{\"model_type\":\"llama\",\"torch_dtype\":\"float32\"}";
    static const char header[] =
        "{\"model.layers.0.mlp.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2,64],\"data_offsets\":[0,512]},"
        "\"model.layers.0.none.weight\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[512,512]}}";
    static const char *const dtypes[] = {"int8", "int4", "nf4"};
    char file[8 + sizeof header - 1 + 512] = {0};
    uint64_t length = sizeof header - 1;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < 128; i++) memcpy(file + 8 + length + 4 * i, &(float){(float)i - 60}, 4);
    OK(tm_make_dirs(scratch("none")));
    write_file(scratch("none/config.json"), config, sizeof config - 1);
    write_file(scratch("none/model.safetensors"), file, sizeof file);
    for (size_t i = 0; i < TM_COUNT(dtypes); i++) {
        const char *out = scratch("none-out"), *model = scratch("none-out/model.safetensors");
        tm_st *st;
        OK(export_as(scratch("none"), out, dtypes[i]));
        OK(tm_st_open(&st, model));
        int64_t t = tm_st_find(st, "model.layers.0.none.weight");
        assert_true(t >= 0 && tm_st_get(st, (uint32_t)t)->elements == 0);
        assert_true(tm_st_count(st) > 2); /* the other one is in parts */
        tm_st_close(st);
        OK(tm_remove_tree(out));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_weights_are_those_of_the_definition),
                                       cmocka_unit_test(a_matrix_without_elements_stays_as_it_is),
                                       cmocka_unit_test(nf4_is_what_bitsandbytes_makes),
                                       cmocka_unit_test(what_has_no_such_form_is_refused)};
    return cmocka_run_group_tests_name("packed", tests, make_scratch, remove_scratch);
}

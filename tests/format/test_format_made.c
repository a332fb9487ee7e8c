/* A model that no file holds: its tensors are in order and read as any others, it is written as a folder and as GGUF, and
 * a caller that fails leaves nothing behind. */
#include "format/peft.h"
#include "io/file/file.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tm_hf_tensor list[11];
static char names[9][64];

/* Those of make_folder's llama, not in order. */
static uint32_t make_list(void) {
    static const char *const stems[] = {
        "input_layernorm",  "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj"};
    list[0] = (tm_hf_tensor){.name = "model.norm.weight", .ndim = 1, .shape = {32}};
    list[1] = (tm_hf_tensor){.name = "model.embed_tokens.weight", .ndim = 2, .shape = {40, 32}};
    for (int i = 0; i < 9; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.0.%s.weight", stems[i]);
        list[2 + i] = (tm_hf_tensor){.name = names[i], .ndim = i < 2 ? 1 : 2, .shape = {32, i < 2 ? 0 : 32}};
    }
    return 11;
}

typedef struct maker {
    int calls, fails_at; /* 0: never */
} maker;

static float value(uint32_t t, uint64_t i) {
    return pattern(i) + (float)t;
}

static tm_status make_values(void *ctx, uint32_t t, uint64_t first, uint64_t n, float *out) {
    maker *m = ctx;
    if (++m->calls == m->fails_at) return tm_fail(TM_EIO, "no more values");
    for (uint64_t i = 0; i < n; i++) out[i] = value(t, first + i);
    return TM_OK;
}

static tm_source *open_made(maker *m) {
    tm_source *src;
    make_folder(scratch("bare"), NULL, 40);
    OK(tm_remove_tree(scratch("bare/model.safetensors")));
    OK(tm_source_open_bare(&src, scratch("bare")));
    OK(tm_source_make(src, &(tm_made_tensors){list, make_list(), make_values, m}));
    return src;
}

static void it_reads_as_any_other(void **state) {
    (void)state;
    maker m = {0};
    tm_source *src = open_made(&m);
    float v[64];
    tm_source_piece p;
    assert_int_equal(tm_source_tensors(src), 11);
    for (uint32_t i = 1; i < 11; i++)
        assert_true(strcmp(tm_source_tensor_get(src, i - 1)->name, tm_source_tensor_get(src, i)->name) < 0);
    int64_t up = tm_source_find(src, "model.layers.0.mlp.up_proj.weight");
    assert_true(up >= 0 && tm_source_find(src, "model.layers.1.mlp.up_proj.weight") < 0);
    const tm_source_tensor *t = tm_source_tensor_get(src, (uint32_t)up);
    assert_true(t->fmt == TM_FMT_F32 && t->ndim == 2 && t->elements == 1024 && t->bytes == 4096);
    OK(tm_source_read_f32(src, (uint32_t)up, 1000, 24, v));
    for (uint64_t i = 0; i < 24; i++) assert_true(v[i] == value(9, 1000 + i)); /* its number in the list */
    OK(tm_source_read_f32(src, (uint32_t)up, 1024, 0, v));
    expect_error(tm_source_read_f32(src, (uint32_t)up, 1000, 25, v), TM_EINPUT, "not there");
    expect_error(tm_source_piece_of(src, (uint32_t)up, 0, 1, &p), TM_EUNSUPPORTED, "in no file");
    OK(tm_source_read_native(src, (uint32_t)up, 5, 3, v));
    assert_true(v[2] == value(9, 7));
    tm_source_forget(src, (uint32_t)up);
    tm_source_close(src);
}

static void it_is_written(void **state) {
    (void)state;
    static const char *const outs[] = {"made", "made.gguf"};
    maker m = {0};
    tm_source *src = open_made(&m), *back;
    float v[1280];
    for (size_t k = 0; k < TM_COUNT(outs); k++) {
        OK(tm_export(&(tm_export_request){.source = src, .out = scratch(outs[k]), .convert.dtype = "f32"}));
        OK(tm_source_open(&back, scratch(outs[k])));
        assert_int_equal(tm_source_tensors(back), 11);
        for (uint32_t i = 0; i < 11; i++) {
            uint64_t n = list[i].shape[0] * (list[i].ndim > 1 ? list[i].shape[1] : 1);
            OK(tm_source_read_f32(back, (uint32_t)tm_source_find(back, list[i].name), 0, n, v));
            for (uint64_t e = 0; e < n; e++) assert_true(v[e] == value(i, e));
        }
        tm_source_close(back);
    }
    tm_source_close(src);
}

/* At each of its calls. */
static void a_caller_that_fails(void **state) {
    (void)state;
    int left = leftovers(scratch("."));
    for (int at = 1, done = 0; !done; at++) {
        maker m = {.fails_at = at};
        tm_source *src = open_made(&m);
        tm_status rc =
            tm_export(&(tm_export_request){.source = src, .out = scratch("failed"), .convert.dtype = "bf16"});
        done = rc == TM_OK;
        if (!done) expect_error(rc, TM_EIO, "no more values");
        assert_true(tm_path_exists(scratch("failed")) == (done != 0));
        assert_int_equal(leftovers(scratch(".")), left);
        assert_true(at <= 12);
        tm_source_close(src);
    }
}

static void lists_that_are_wrong(void **state) {
    (void)state;
    static const struct {
        tm_hf_tensor list[2];
        const char *text;
    } rows[] = {
        {{{.name = "a", .ndim = 1, .shape = {1}}, {.name = "a", .ndim = 1, .shape = {2}}}, "there twice"},
        {{{.name = "a", .ndim = 1, .shape = {1}}, {.name = "b", .ndim = 2, .shape = {1ULL << 40, 1ULL << 40}}},
         "overflows"},
        {{{.name = "a", .ndim = 1, .shape = {1}}, {.name = "b", .ndim = 1, .shape = {1ULL << 63}}}, "overflows"},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        maker m = {0};
        tm_source *src;
        OK(tm_source_open_bare(&src, scratch("bare")));
        expect_error(tm_source_make(src, &(tm_made_tensors){rows[i].list, 2, make_values, &m}), TM_EINPUT,
                     rows[i].text);
        tm_source_close(src);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_reads_as_any_other),
        cmocka_unit_test(it_is_written),
        cmocka_unit_test(a_caller_that_fails),
        cmocka_unit_test(lists_that_are_wrong),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

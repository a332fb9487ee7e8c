/* bitsandbytes' 4-bit folders: the fixture (peft_qlora/base_nf4) reads as the model that it was made of, and converts;
 * other forms of it (one quantisation, FP4, other bytes for storage, shards) read alike; what a state, a companion or a
 * config.json may lie about is refused. */
#include "io/file/file.h"
#include "kernels/nf4.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the fixture ---- */

static const char BASE[] = "peft_qlora/base_nf4", Q_PROJ[] = "model.layers.0.self_attn.q_proj.weight";

static void same_q_proj(const tm_source *src) {
    tm_st *golden;
    uint64_t n;
    float want[64 * 64], *got = values_of(src, Q_PROJ, &n);
    OK(tm_st_open(&golden, fixture("peft_qlora/golden.safetensors")));
    int64_t t = tm_st_find(golden, "dequant.model.layers.0.self_attn.q_proj.weight");
    assert_true(t >= 0 && n == TM_COUNT(want));
    OK(tm_st_read_f32(golden, (uint32_t)t, 0, n, want));
    for (uint64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f)) fail_msg("%d: %g, not %g", (int)i, (double)got[i], (double)want[i]);
    tm_st_close(golden);
    free(got);
}

static void a_folder_is_a_model(void **state) {
    (void)state;
    tm_source *src;
    OK(tm_source_open(&src, fixture(BASE)));
    assert_int_equal(tm_source_tensors(src), 2 * 9 + 3);
    const tm_source_tensor *q = tm_source_tensor_get(src, (uint32_t)tm_source_find(src, Q_PROJ));
    assert_true(q->fmt == TM_FMT_NF4 && q->ndim == 2 && q->shape[0] == 64 && q->shape[1] == 64 && q->bytes == 2048);
    const tm_source_tensor *down =
        tm_source_tensor_get(src, (uint32_t)tm_source_find(src, "model.layers.1.mlp.down_proj.weight"));
    assert_true(down->fmt == TM_FMT_NF4 && down->shape[0] == 64 && down->shape[1] == 128);
    assert_int_equal(tm_source_tensor_get(src, (uint32_t)tm_source_find(src, "lm_head.weight"))->fmt, TM_FMT_F32);
    for (uint32_t i = 0; i < tm_source_tensors(src); i++)
        assert_null(strstr(tm_source_tensor_get(src, i)->name, "quant"));
    assert_true(tm_source_find(src, "model.layers.0.self_attn.q_proj.weight.absmax") < 0);
    same_q_proj(src);
    float v;
    expect_error(tm_source_read_f32(src, (uint32_t)tm_source_find(src, Q_PROJ), 4096, 1, &v), TM_EINPUT, "not there");
    expect_error(tm_source_read_native(src, (uint32_t)tm_source_find(src, Q_PROJ), 0, 1, &v), TM_EUNSUPPORTED, "NF4");
    tm_source_close(src);
}

static void it_converts(void **state) {
    (void)state;
    tm_source *src;
    convert(fixture(BASE), scratch("plain"), NULL);
    same_model(fixture(BASE), scratch("plain"), 0, 0);
    OK(tm_source_open(&src, scratch("plain")));
    same_q_proj(src);
    tm_source_close(src);
    tm_json_doc *config = json_in(scratch("plain"), "config.json");
    assert_null(tm_json_get(tm_json_root(config), "quantization_config"));
    assert_true(tm_json_is(tm_json_get(tm_json_root(config), "model_type"), "llama"));
    tm_json_free(config);
    convert(fixture(BASE), scratch("half"), "bf16");
    same_model(fixture(BASE), scratch("half"), 0x1p-8f, 0);
    convert(fixture(BASE), scratch("plain.gguf"), "f32");
    expect_error(tm_convert(fixture(BASE), scratch("no.gguf"), &(tm_convert_opts){0}), TM_EUNSUPPORTED, "--dtype");
    OK(tm_source_open(&src, scratch("plain.gguf")));
    same_q_proj(src);
    tm_source_close(src);
}

/* ---- other forms, and lies ---- */

enum { ROWS = 3, COLUMNS = 250, N = ROWS * COLUMNS, BLOCKS = (N + 63) / 64 };

/* What a folder with the one tensor w is made of, and how. */
typedef struct form {
    tm_nf4_kind kind;
    bool nested;
    tm_fmt storage;              /* of the codes; U8 where it is 0 */
    const char *state, *config;  /* NULL: as they should be */
    const char *without;         /* a companion that is left out */
    const char *short_of;        /* one that has an element less */
    float in_map, in_nested_map; /* not 0: a value of it */
    bool twice;                  /* another state, of the other kind */
} form;

/* All tensors of a file are added before any is written. */
typedef struct item {
    char name[80];
    tm_fmt fmt;
    uint64_t n;
    const void *bytes;
} item;
typedef struct items {
    const form *f;
    item of[8];
    uint32_t n;
} items;

static void put(items *t, const char *name, tm_fmt fmt, uint64_t n, const void *bytes) {
    if (t->f->without && strcmp(name, t->f->without) == 0) return;
    if (t->f->short_of && strcmp(name, t->f->short_of) == 0) n--;
    item *i = &t->of[t->n++];
    snprintf(i->name, sizeof i->name, "w%s", name);
    i->fmt = fmt, i->n = n, i->bytes = bytes;
}

static void write_items(const items *t, const char *path) {
    tm_st_writer *w;
    uint32_t at[8];
    OK(tm_st_writer_create(&w, path));
    for (uint32_t i = 0; i < t->n; i++)
        OK(tm_st_writer_add(w, t->of[i].name, t->of[i].fmt, 2, (uint64_t[]){t->of[i].n, 1}, &at[i]));
    for (uint32_t i = 0; i < t->n; i++) {
        uint64_t size = t->of[i].n * tm_fmt_get(t->of[i].fmt)->block_bytes;
        if (size) OK(tm_st_writer_write(w, at[i], 0, t->of[i].bytes, size));
    }
    OK(tm_st_writer_commit(w));
}

static const char *state_text(const form *f) {
    static char text[400];
    snprintf(text, sizeof text, "{\"quant_type\":\"%s\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[%d,%d]%s}",
             f->kind == TM_NF4 ? "nf4" : "fp4", ROWS, COLUMNS,
             f->nested ? ",\"nested_blocksize\":256,\"nested_dtype\":\"float32\",\"nested_offset\":0.25" : "");
    return f->state ? f->state : text;
}

/* Codes and scales of the pattern; returns what they stand for. */
static const float *write_form(const form *f) {
    static float x[N], value[N], absmax[BLOCKS], map[16], nested_map[256];
    float nested[BLOCKS];
    uint8_t codes[N / 2 + 4] = {0}, scales[BLOCKS];
    items t = {.f = f};
    for (uint64_t i = 0; i < N; i++) x[i] = pattern(i);
    tm_nf4_quantise(f->kind, 64, x, N, codes, absmax);
    tm_nf4_nest(absmax, BLOCKS, 0.25f, scales, nested);
    memcpy(map, tm_nf4_map(f->kind), sizeof map);
    memcpy(nested_map, tm_nf4_dynamic_map(), sizeof nested_map);
    tm_nf4_blocks b = {.map = map, .codes = codes, .block = 64, .absmax = f->nested ? (void *)scales : (void *)absmax};
    if (f->nested) b.nested_map = nested_map, b.nested_absmax = nested, b.nested_block = 256, b.offset = 0.25f;
    tm_nf4_values(&b, 0, N, TM_ELEM_F32, value);
    if (f->in_map != 0) map[3] = f->in_map;
    if (f->in_nested_map != 0) nested_map[200] = f->in_nested_map;

    OK(tm_remove_tree(scratch("form")));
    OK(tm_make_dirs(scratch("form")));
    const char *config = f->config ? f->config : "{}", *json = state_text(f);
    write_file(scratch("form/config.json"), config, strlen(config));
    tm_fmt storage = f->storage ? f->storage : TM_FMT_U8;
    put(&t, "", storage, (N / 2 + tm_fmt_get(storage)->block_bytes - 1) / tm_fmt_get(storage)->block_bytes, codes);
    put(&t, ".absmax", f->nested ? TM_FMT_U8 : TM_FMT_F32, BLOCKS, f->nested ? (void *)scales : (void *)absmax);
    put(&t, ".quant_map", TM_FMT_F32, 16, map);
    if (f->nested) put(&t, ".nested_absmax", TM_FMT_F32, 1, nested);
    if (f->nested) put(&t, ".nested_quant_map", TM_FMT_F32, 256, nested_map);
    bool nf4 = (f->kind == TM_NF4) != f->twice;
    put(&t, f->kind == TM_NF4 ? ".quant_state.bitsandbytes__nf4" : ".quant_state.bitsandbytes__fp4", TM_FMT_U8,
        strlen(json), json);
    if (f->twice)
        put(&t, nf4 ? ".quant_state.bitsandbytes__nf4" : ".quant_state.bitsandbytes__fp4", TM_FMT_U8, strlen(json),
            json);
    write_items(&t, scratch("form/model.safetensors"));
    return value;
}

static void other_forms_read_alike(void **state) {
    (void)state;
    static const char four[] = "{\"quantization_config\":{\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"fp4\"}}";
    static const form forms[] = {{.kind = TM_NF4},
                                 {.kind = TM_FP4},
                                 {.kind = TM_NF4, .nested = true},
                                 {.kind = TM_FP4, .nested = true, .config = four},
                                 {.kind = TM_NF4, .config = "{\"quantization_config\":null}"},
                                 {.kind = TM_NF4, .nested = true, .storage = TM_FMT_I8}};
    for (size_t i = 0; i < TM_COUNT(forms); i++) {
        const float *want = write_form(&forms[i]);
        tm_source *src;
        uint64_t n;
        OK(tm_source_open(&src, scratch("form")));
        assert_int_equal(tm_source_tensors(src), 1);
        const tm_source_tensor *t = tm_source_tensor_get(src, 0);
        assert_true(t->fmt == (forms[i].kind == TM_NF4 ? TM_FMT_NF4 : TM_FMT_FP4) && t->shape[0] == ROWS &&
                    t->ndim == 2);
        float *got = values_of(src, "w", &n);
        assert_memory_equal(got, want, n * sizeof *got);
        for (uint64_t first = 0; first < N; first += 37) {
            uint64_t take = tm_min_u64(N - first, first % 300 + 1);
            OK(tm_source_read_f32(src, 0, first, take, got));
            assert_memory_equal(got, want + first, take * sizeof *got);
        }
        free(got);
        tm_source_close(src);
    }
}

/* Codes stored as another type's bytes (bnb_4bit_quant_storage), companions in another shard. */
static void storage_and_shards(void **state) {
    (void)state;
    static const char shape[] = "{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[8,94]}";
    uint8_t codes[376];
    tm_source *src;
    float got[752], absmax[12];
    const form none = {0};
    items one = {.f = &none}, two = {.f = &none};
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 29);
    for (int i = 0; i < 12; i++) absmax[i] = (float)(i + 1);
    OK(tm_make_dirs(scratch("shards4")));
    put(&one, "", TM_FMT_BF16, 188, codes);
    put(&two, ".absmax", TM_FMT_F32, 12, absmax);
    put(&two, ".quant_map", TM_FMT_F32, 16, tm_nf4_map(TM_NF4));
    put(&two, ".quant_state.bitsandbytes__nf4", TM_FMT_U8, sizeof shape - 1, shape);
    write_items(&one, scratch("shards4/1.safetensors"));
    write_items(&two, scratch("shards4/2.safetensors"));
    static const char index[] =
        "{\"weight_map\":{\"w\":\"1.safetensors\",\"w.absmax\":\"2.safetensors\",\"w.quant_map\":\"2.safetensors\","
        "\"w.quant_state.bitsandbytes__nf4\":\"2.safetensors\"}}";
    write_file(scratch("shards4/model.safetensors.index.json"), index, sizeof index - 1);
    write_file(scratch("shards4/config.json"), "{}", 2);
    OK(tm_source_open(&src, scratch("shards4")));
    OK(tm_source_read_f32(src, 0, 0, 752, got));
    for (int i = 0; i < 752; i++)
        assert_true(got[i] == tm_nf4_map(TM_NF4)[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * absmax[i / 64]);
    tm_source_close(src);
}

#define STATE(rest) "{\"quant_type\":\"nf4\"," rest "}"
#define SHAPE "\"shape\":[3,250]"

static void lies_are_refused(void **state) {
    (void)state;
    static const struct {
        form f;
        const char *text;
    } rows[] = {
        {{.state = "{"}, "quant_state"},
        {{.state = "[]"}, "not a JSON object"},
        {{.state = "{\"quant_type\":\"fp4\",\"blocksize\":64," SHAPE "}"}, "quant_type"},
        {{.state = "{\"blocksize\":64," SHAPE "}"}, "quant_type"},
        {{.state = STATE(SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":0," SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":16," SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":96," SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":-64," SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":131072," SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":4294967360," SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":\"64\"," SHAPE)}, "blocksize"},
        {{.state = STATE("\"blocksize\":32," SHAPE)}, "absmax"},
        {{.state = STATE("\"blocksize\":64")}, "shape"},
        {{.state = STATE("\"blocksize\":64,\"shape\":[]")}, "shape"},
        {{.state = STATE("\"blocksize\":64,\"shape\":[1,1,1,1,1,1,1,1,750]")}, "shape"},
        {{.state = STATE("\"blocksize\":64,\"shape\":[0,750]")}, "no size"},
        {{.state = STATE("\"blocksize\":64,\"shape\":[-3,-250]")}, "no size"},
        {{.state = STATE("\"blocksize\":64,\"shape\":[3,251]")}, "bytes of codes"},
        {{.state = STATE("\"blocksize\":64,\"shape\":[4294967296,4294967296]")}, "overflows"},
        {{.state = STATE("\"blocksize\":64,\"shape\":[9223372036854775807,2]")}, "overflows"},
        {{.nested = true, .state = STATE("\"blocksize\":64,\"nested_blocksize\":256," SHAPE)}, "nested_offset"},
        {{.nested = true, .state = STATE("\"blocksize\":64,\"nested_offset\":1," SHAPE)}, "nested_blocksize"},
        {{.nested = true, .state = STATE("\"blocksize\":64,\"nested_offset\":1e99,\"nested_blocksize\":256," SHAPE)},
         "nested_offset"},
        {{.nested = true, .state = STATE("\"blocksize\":64,\"nested_offset\":1,\"nested_blocksize\":0," SHAPE)},
         "nested_blocksize"},
        {{.state = STATE("\"blocksize\":64,\"nested_offset\":1,\"nested_blocksize\":256," SHAPE)}, "absmax"},
        {{.nested = true, .state = STATE("\"blocksize\":64," SHAPE)}, "absmax"},
        {{.without = ".absmax"}, "'w.absmax' is missing"},
        {{.without = ".quant_map"}, "'w.quant_map' is missing"},
        {{.without = ""}, "belongs to no tensor"},
        {{.without = ".quant_state.bitsandbytes__nf4"}, "but no 'w.quant_state"},
        {{.nested = true, .without = ".nested_absmax"}, "'w.nested_absmax' is missing"},
        {{.nested = true, .without = ".nested_quant_map"}, "'w.nested_quant_map' is missing"},
        {{.short_of = ".absmax"}, "w.absmax' does not have the 12 elements"},
        {{.short_of = ".quant_map"}, "16 elements"},
        {{.short_of = ""}, "bytes of codes"},
        {{.nested = true, .short_of = ".nested_absmax"}, "1 elements"},
        {{.nested = true, .short_of = ".nested_quant_map"}, "256 elements"},
        {{.in_map = NAN}, "'w.quant_map': value 3 is not finite"},
        {{.nested = true, .in_nested_map = INFINITY}, "'w.nested_quant_map': value 200 is not finite"},
        {{.kind = TM_FP4, .twice = true}, "belongs to no tensor"},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_source *src;
        (void)write_form(&rows[i].f);
        expect_error(tm_source_open(&src, scratch("form")), TM_EINPUT, rows[i].text);
        assert_null(src);
    }
}

/* A state of more than 4 KiB, one of another type. */
static void strange_states(void **state) {
    (void)state;
    static char longer[5000];
    tm_source *src;
    memset(longer, ' ', sizeof longer - 1);
    (void)write_form(&(form){.state = longer});
    expect_error(tm_source_open(&src, scratch("form")), TM_EINPUT, "some bytes of JSON");
    (void)write_form(&(form){.state = ""});
    expect_error(tm_source_open(&src, scratch("form")), TM_EINPUT, "quant_state");
}

static void other_methods_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *config, *text; /* NULL: right */
    } rows[] = {
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\"}", NULL},
        {"{\"load_in_4bit\":true}", NULL},
        {"{\"quant_method\":\"hqq\"}", "hqq"},
        {"{\"quant_method\":\"fp8\"}", "fp8"},
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}", "load_in_8bit"},
        {"{\"quant_method\":\"bitsandbytes\",\"_load_in_8bit\":true}", "load_in_8bit"},
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"int4\"}",
         "bnb_4bit_quant_type"},
        {"{\"bits\":4}", "not named"},
        {"[]", "not named"},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        char config[300];
        tm_source *src;
        snprintf(config, sizeof config, "{\"quantization_config\":%s}", rows[i].config);
        (void)write_form(&(form){.config = config});
        if (rows[i].text)
            expect_error(tm_source_open(&src, scratch("form")), TM_EUNSUPPORTED, rows[i].text);
        else
            OK(tm_source_open(&src, scratch("form")));
        tm_source_close(src);
        OK(tm_source_open_bare(&src, scratch("form"))); /* its tokenizer is as good as any */
        tm_source_close(src);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_a_model),
        cmocka_unit_test(it_converts),
        cmocka_unit_test(other_forms_read_alike),
        cmocka_unit_test(storage_and_shards),
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(strange_states),
        cmocka_unit_test(other_methods_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

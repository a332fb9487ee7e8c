/* safetensors against the goldens of the reference reader, hostile headers, and our own writer read back. */
#include "world.h"
#include "io/file/file.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the malformed files ---- */

static void bad_files_are_refused_with_the_reason(void **state) {
    (void)state;
    /* what of the reference's reason our line must say too */
    static const char *const reason[][2] = {{"header too small", "too few"},
                                            {"header too large", "header too large"},
                                            {"invalid header length", "invalid header length"},
                                            {"expected ident", "does not begin with"},
                                            {"invalid type: sequence", "not a JSON object"},
                                            {"invalid offset for tensor `a`", "invalid offsets of 'a'"},
                                            {"invalid offset for tensor `b`", "invalid offset of 'b'"},
                                            {"invalid shape, data type, or offset", "size of 'a' does not fit"},
                                            {"unknown variant `Q7`", "unknown dtype 'Q7'"},
                                            {"integer `-1`", "not negative"},
                                            {"overflow computing buffer size", "overflows"},
                                            {"incomplete metadata", "byte"}};
    tm_json_doc *doc = parse_file(fixture("safetensors_bad/golden.json"));
    int n = 0;
    for (const tm_json *f = tm_json_get(tm_json_root(doc), "files")->child; f; f = f->next, n++) {
        char name[256];
        snprintf(name, sizeof name, "safetensors_bad/%s.safetensors", f->key);
        assert_non_null(strstr(f->text, "refused"));
        const char *wanted = NULL;
        for (size_t i = 0; i < TM_COUNT(reason) && !wanted; i++)
            if (strstr(f->text, reason[i][0])) wanted = reason[i][1];
        if (!wanted) fail_msg("%s: a reason not foreseen: %s", f->key, f->text);
        tm_st *st;
        expect_error(tm_st_open(&st, fixture(name)), TM_EINPUT, wanted);
        assert_null(st);
    }
    assert_int_equal(n, 16);
    tm_json_free(doc);
}

static void refused(const char *header, size_t data, const char *text) {
    uint64_t len = strlen(header);
    tm_buf file = {0};
    tm_st *st;
    OK(tm_buf_append(&file, &len, 8));
    OK(tm_buf_append(&file, header, len));
    for (size_t i = 0; i < data; i++) OK(tm_buf_append(&file, "x", 1));
    write_file(scratch("refused.safetensors"), file.data, file.len);
    expect_error(tm_st_open(&st, scratch("refused.safetensors")), TM_EINPUT, text);
    tm_buf_free(&file);
}

static void more_bad_headers(void **state) {
    (void)state;
#define T(members) "{\"a\":{" members "}}"
    refused(T("\"dtype\":\"U8\",\"shape\":[1]"), 1, "lacks its two data_offsets");
    refused(T("\"dtype\":\"U8\",\"data_offsets\":[0,1]"), 1, "lacks a shape");
    refused(T("\"shape\":[1],\"data_offsets\":[0,1]"), 1, "lacks a dtype");
    refused(T("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]"), 1, "too long");
    refused(T("\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]"), 1, "not negative");
    refused(T("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"), 1, "too long");
    refused(T("\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]"), 1, "shape");
    refused(T("\"dtype\":\"Q8_0\",\"shape\":[32],\"data_offsets\":[0,34]"), 34, "unknown dtype 'Q8_0'");
    refused(T("\"dtype\":\"u8\",\"shape\":[1],\"data_offsets\":[0,1]"), 1, "unknown dtype 'u8'");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
            2, "a");
    refused("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "NUL");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "strings");
    refused("{\"__metadata__\":[]}", 0, "strings");
    refused("{} {}", 0, "1:4");
    refused("{\"a\":[]}", 0, "object");
    refused(" {}", 0, "'{'");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[18446744073709551615,0]}}", 0, "not negative");
    tm_st *st;
    expect_error(tm_st_open(&st, scratch("absent.safetensors")), TM_EINPUT, "absent.safetensors");
    expect_error(tm_st_open(&st, scratch(".")), TM_EINPUT, "");
}

/* ---- every dtype ---- */

static void check_digest(const tm_st *st, uint32_t i, const tm_json *golden) {
    const tm_st_info *t = tm_st_get(st, i);
    char hex[65];
    char *bytes = malloc(t->bytes + 1);
    assert_non_null(bytes);
    uint64_t half = t->bytes / 2; /* in two pieces, the second first */
    OK(tm_st_read_raw(st, i, half, t->bytes - half, bytes + half));
    OK(tm_st_read_raw(st, i, 0, half, bytes));
    sha256_hex(bytes, t->bytes, hex);
    assert_string_equal(hex, tm_json_get(golden, "sha256")->text);
    const tm_json *shape = tm_json_get(golden, "shape");
    assert_int_equal(t->ndim, shape->count);
    uint32_t d = 0;
    for (const tm_json *s = shape->child; s; s = s->next) assert_int_equal(t->shape[d++], s->integer);
    free(bytes);
}

static void same_floats(const float *a, const float *b, uint64_t n, const char *what) {
    for (uint64_t i = 0; i < n; i++)
        if (isnan(b[i]) ? !isnan(a[i]) : memcmp(&a[i], &b[i], 4) != 0)
            fail_msg("%s[%llu]: %a, golden %a", what, (unsigned long long)i, (double)a[i], (double)b[i]);
}

static void widened_as(const tm_st *st, const char *name, const tm_st *golden, const char *golden_name) {
    int64_t i = tm_st_find(st, name), g = tm_st_find(golden, golden_name);
    assert_true(i >= 0 && g >= 0);
    uint64_t n = tm_st_get(st, (uint32_t)i)->elements;
    float *a = calloc(n, 4), *b = calloc(n, 4);
    assert_true(a && b);
    for (uint64_t at = 0; at < n; at += 7) OK(tm_st_read_f32(st, (uint32_t)i, at, tm_min_u64(7, n - at), a + at));
    OK(tm_st_read_f32(golden, (uint32_t)g, 0, n, b));
    same_floats(a, b, n, name);
    free(a);
    free(b);
}

static void narrowed_as(const tm_st *st, const tm_st *golden, const char *golden_name, tm_fmt fmt) {
    int64_t i = tm_st_find(st, "round_me"), g = tm_st_find(golden, golden_name);
    assert_true(i >= 0 && g >= 0);
    uint64_t n = tm_st_get(st, (uint32_t)i)->elements;
    float values[512], a[512], b[512];
    uint16_t narrow[512];
    assert_int_equal(n, 512);
    OK(tm_st_read_f32(st, (uint32_t)i, 0, n, values));
    OK(tm_fmt_encode(fmt, values, n, narrow));
    tm_fmt_decode(fmt, narrow, n, a);
    OK(tm_st_read_f32(golden, (uint32_t)g, 0, n, b));
    same_floats(a, b, n, golden_name);
}

static void special_is_read_exactly(void **state) {
    (void)state;
    tm_st *st, *golden;
    OK(tm_st_open(&st, fixture("safetensors_special/tensors.safetensors")));
    OK(tm_st_open(&golden, fixture("safetensors_special/golden.safetensors")));
    tm_json_doc *doc = parse_file(fixture("safetensors_special/golden.json"));
    const tm_json *files = tm_json_get(tm_json_root(doc), "files");
    assert_int_equal(tm_st_count(st), files->count);
    for (const tm_json *f = files->child; f; f = f->next) {
        int64_t i = tm_st_find(st, f->key);
        if (i < 0) fail_msg("'%s' was not found", f->key);
        check_digest(st, (uint32_t)i, f);
    }
    for (const tm_json *m = tm_json_get(tm_json_root(doc), "metadata")->child; m; m = m->next)
        assert_string_equal(tm_st_metadata(st, m->key), m->text);
    widened_as(st, "f16", golden, "f16.as_f32");
    widened_as(st, "bf16", golden, "bf16.as_f32");
    widened_as(st, "all_f16", golden, "all_f16.as_f32");
    widened_as(st, "all_bf16", golden, "all_bf16.as_f32");
    narrowed_as(st, golden, "round_me.to_bf16", TM_FMT_BF16);
    narrowed_as(st, golden, "round_me.to_f16", TM_FMT_F16);
    assert_int_equal(tm_st_find(st, "absent"), -1);
    tm_json_free(doc);
    tm_st_close(st);
    tm_st_close(golden);
}

static void ranges_are_checked(void **state) {
    (void)state;
    tm_st *st;
    float f[64];
    int64_t v[300];
    OK(tm_st_open(&st, fixture("safetensors_special/tensors.safetensors")));
    uint32_t f32 = (uint32_t)tm_st_find(st, "f32"), u8 = (uint32_t)tm_st_find(st, "u8");
    uint32_t empty = (uint32_t)tm_st_find(st, "empty"), i8 = (uint32_t)tm_st_find(st, "i8");
    expect_error(tm_st_read_f32(st, f32, 10, 7, f), TM_EINPUT, "'f32' has 16 elements");
    expect_error(tm_st_read_f32(st, f32, UINT64_MAX, 2, f), TM_EINPUT, "not there");
    expect_error(tm_st_read_raw(st, f32, 1, UINT64_MAX, f), TM_EINPUT, "not there");
    expect_error(tm_st_read_i64(st, f32, 0, 1, v), TM_EINPUT, "not a 64-bit integer");
    OK(tm_st_read_f32(st, empty, 0, 0, f));
    expect_error(tm_st_read_f32(st, empty, 0, 1, f), TM_EINPUT, "has 0 elements");
    OK(tm_st_read_i64(st, u8, 0, 256, v));
    int8_t raw[2];
    int64_t wide[2];
    OK(tm_st_read_raw(st, i8, 0, 2, raw));
    OK(tm_st_read_i64(st, i8, 0, 2, wide));
    assert_true(wide[0] == raw[0] && wide[1] == raw[1]);
    tm_st_close(st);
}

/* Every 16-bit pattern: widened by arithmetic on its fields, and back. */
static void sixteen_bits_both_ways(void **state) {
    (void)state;
    for (uint32_t p = 0; p < 65536; p++) {
        uint16_t h = (uint16_t)p, back;
        float f;
        double sign = p & 0x8000 ? -1 : 1;
        int e = (int)(p >> 10 & 31), m = (int)(p & 1023);
        tm_fmt_decode(TM_FMT_F16, &h, 1, &f);
        if (e == 31 && m)
            assert_true(isnan(f));
        else {
            double value = e == 31 ? INFINITY : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
            assert_true((double)f == sign * value && !!signbit(f) == (p >> 15));
            OK(tm_fmt_encode(TM_FMT_F16, &f, 1, &back));
            assert_int_equal(back, h);
        }
        tm_fmt_decode(TM_FMT_BF16, &h, 1, &f);
        OK(tm_fmt_encode(TM_FMT_BF16, &f, 1, &back));
        if (isnan(f))
            assert_true((back & 0x7fff) > 0x7f80);
        else
            assert_int_equal(back, h);
    }
}

/* Halfway between two neighbours goes to the even one, a hair beyond goes up: checked against the neighbours' values.
 */
static void rounding_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t p = 0; p < 0x7bff; p++) {
        uint16_t lo16 = (uint16_t)p, hi16 = (uint16_t)(p + 1), got;
        float lo, hi;
        tm_fmt_decode(TM_FMT_F16, &lo16, 1, &lo);
        tm_fmt_decode(TM_FMT_F16, &hi16, 1, &hi);
        float mid = (lo + hi) / 2, above = nextafterf(mid, INFINITY), below = nextafterf(mid, 0);
        OK(tm_fmt_encode(TM_FMT_F16, &mid, 1, &got));
        assert_int_equal(got, p & 1 ? p + 1 : p);
        OK(tm_fmt_encode(TM_FMT_F16, &above, 1, &got));
        assert_int_equal(got, p + 1);
        OK(tm_fmt_encode(TM_FMT_F16, &below, 1, &got));
        assert_int_equal(got, p);
    }
    const float limits[] = {65519.996f, 65520.0f, -65520.0f, 3e38f, 0x1p-25f, -0x1.8p-25f};
    const uint16_t wanted[] = {0x7bff, 0x7c00, 0xfc00, 0x7c00, 0x0000, 0x8001};
    uint16_t got[6];
    OK(tm_fmt_encode(TM_FMT_F16, limits, 6, got));
    assert_memory_equal(got, wanted, sizeof got);
    const float f[] = {3.4e38f, 0x1.01p0f, 0x1.03p0f, 0x1p-140f, -0x1.010002p0f};
    OK(tm_fmt_encode(TM_FMT_BF16, f, 5, got));
    assert_int_equal(got[0], 0x7f80);
    assert_int_equal(got[1], 0x3f80); /* 1 + 2^-8 is halfway: even */
    assert_int_equal(got[2], 0x3f82); /* 1 + 3 * 2^-8 is halfway: even */
    assert_int_equal(got[3], 0x0000); /* 2^-140 is below half of 2^-133: zero */
    assert_int_equal(got[4], 0xbf81);
}

static void fp8_values(void **state) {
    (void)state;
    /* OCP 8-bit floating point, table of extremes */
    const uint8_t e4m3[] = {0x7e, 0x08, 0x07, 0x01, 0xb8, 0x7f}, e5m2[] = {0x7b, 0x04, 0x03, 0x01, 0x7c, 0x7e};
    float f[6];
    tm_fmt_decode(TM_FMT_F8_E4M3, e4m3, 6, f);
    assert_true(f[0] == 448 && f[1] == 0x1p-6f && f[2] == 0.875f * 0x1p-6f && f[3] == 0x1p-9f && f[4] == -1 &&
                isnan(f[5]));
    tm_fmt_decode(TM_FMT_F8_E5M2, e5m2, 6, f);
    assert_true(f[0] == 57344 && f[1] == 0x1p-14f && f[2] == 0.75f * 0x1p-14f && f[3] == 0x1p-16f && isinf(f[4]) &&
                isnan(f[5]));
}

/* ---- folders ---- */

static void sharded_is_read_through_its_index(void **state) {
    (void)state;
    tm_source *src;
    OK(tm_source_open(&src, fixture("safetensors_sharded")));
    assert_false(tm_source_is_gguf(src));
    tm_json_doc *doc = parse_file(fixture("safetensors_sharded/golden.json"));
    const tm_json *files = tm_json_get(tm_json_root(doc), "files");
    assert_int_equal(tm_source_tensors(src), files->count);
    uint64_t total = 0;
    for (const tm_json *f = files->child; f; f = f->next) {
        int64_t i = tm_source_find(src, f->key);
        if (i < 0) fail_msg("'%s' was not found", f->key);
        const tm_source_tensor *t = tm_source_tensor_get(src, (uint32_t)i);
        assert_non_null(strstr(t->file, tm_json_get(f, "shard")->text));
        total += t->bytes;
        if (t->fmt != TM_FMT_F32 && t->fmt != TM_FMT_F16 && t->fmt != TM_FMT_BF16) continue;
        char hex[65], *bytes = malloc(t->bytes + 1);
        OK(tm_source_read_native(src, (uint32_t)i, 0, t->elements, bytes));
        sha256_hex(bytes, t->bytes, hex);
        assert_string_equal(hex, tm_json_get(f, "sha256")->text);
        free(bytes);
    }
    assert_int_equal(total, tm_json_get(tm_json_root(doc), "total_size")->integer);
    for (uint32_t i = 0; i + 1 < tm_source_tensors(src); i++)
        assert_true(strcmp(tm_source_tensor_get(src, i)->name, tm_source_tensor_get(src, i + 1)->name) < 0);
    size_t len;
    assert_non_null(strstr(tm_source_config(src, &len), "LlamaForCausalLM"));
    tm_buf gen = {0};
    bool found;
    OK(tm_source_file(src, "generation_config.json", &gen, &found));
    assert_true(found && strstr(gen.data, "eos_token_id"));
    OK(tm_source_file(src, "tokenizer.json", &gen, &found));
    assert_false(found);
    tm_buf_free(&gen);
    tm_json_free(doc);
    tm_source_close(src);
}

/* A folder with this index and one shard s.safetensors that holds tensor "a". */
static void folder_with_index(const char *index, tm_status status, const char *text) {
    const char *dir = scratch("indexed");
    tm_st_writer *w;
    uint32_t t;
    OK(tm_make_dirs(dir));
    write_file(scratch("indexed/config.json"), "{}", 2);
    OK(tm_st_writer_create(&w, scratch("indexed/s.safetensors")));
    OK(tm_st_writer_add(w, "a", TM_FMT_F32, 0, NULL, &t));
    OK(tm_st_writer_write_f32(w, t, 0, 1, &(float){1}));
    OK(tm_st_writer_commit(w));
    OK(tm_st_writer_create(&w, scratch("outside.safetensors")));
    OK(tm_st_writer_commit(w));
    write_file(scratch("indexed/model.safetensors.index.json"), index, strlen(index));
    tm_source *src;
    tm_status got = tm_source_open(&src, dir);
    if (status == TM_OK)
        expect_ok(got, index);
    else
        expect_error(got, status, text);
    tm_source_close(src);
    OK(tm_remove_tree(dir));
}

static void hostile_indices(void **state) {
    (void)state;
    folder_with_index("{\"weight_map\":{\"a\":\"s.safetensors\"}}", TM_OK, NULL);
    folder_with_index("{\"weight_map\":{\"a\":\"../outside.safetensors\"}}", TM_EINPUT, "../outside.safetensors");
    folder_with_index("{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", TM_EINPUT, "/etc/x.safetensors");
    folder_with_index("{\"weight_map\":{\"a\":\"s.safetensors\\u0000x\"}}", TM_EINPUT, "must name a file");
    folder_with_index("{\"weight_map\":{\"a\":\"gone.safetensors\"}}", TM_EINPUT, "gone.safetensors");
    folder_with_index("{\"weight_map\":{\"a\":\"model.bin\"}}", TM_EINPUT, "not a .safetensors file");
    folder_with_index("{\"weight_map\":{\"b\":\"s.safetensors\"}}", TM_EINPUT, "'b' is not in s.safetensors");
    folder_with_index("{\"weight_map\":{\"a\":1}}", TM_EINPUT, "must name a file");
    folder_with_index("{\"weight_map\":[]}", TM_EINPUT, "object");
    folder_with_index("{}", TM_EINPUT, "no weight_map");
    folder_with_index("{\"weight_map\":{\"a\":\"s.safetensors\"}", TM_EINPUT, "index.json");
}

static void folders_that_may_not_be_looked_at(void **state) {
    (void)state;
    tm_source *src;
    bool root = geteuid() == 0;
    OK(tm_make_dirs(scratch("closed/model")));
    assert_int_equal(chmod(scratch("closed"), 0), 0);
    bool able = !root || seteuid(65534) == 0;
    tm_status rc = tm_source_open(&src, scratch("closed/model"));
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(scratch("closed"), 0700), 0);
    if (!able) TEST_SKIP("root that may not become another user");
    expect_error(rc, TM_EINPUT, "closed/model: cannot be opened: Permission denied");
}

static void folders_that_are_none(void **state) {
    (void)state;
    tm_source *src;
    expect_error(tm_source_open(&src, scratch("nothing")), TM_EINPUT, "no such model folder");
    OK(tm_make_dirs(scratch("bare")));
    expect_error(tm_source_open(&src, scratch("bare")), TM_EINPUT, "no config.json");
    write_file(scratch("bare/config.json"), "{\"a\":1}", 7);
    expect_error(tm_source_open(&src, scratch("bare")), TM_EINPUT, "neither model.safetensors nor");
    OK(tm_source_open_bare(&src, scratch("bare")));
    assert_string_equal(tm_source_config(src, NULL), "{\"a\":1}");
    tm_source_close(src);
    write_file(scratch("bare/pytorch_model.bin"), "x", 1);
    expect_error(tm_source_open(&src, scratch("bare")), TM_EUNSUPPORTED, "pytorch_model.bin");
    expect_error(tm_source_open(&src, scratch("bare/pytorch_model.bin")), TM_EUNSUPPORTED, "pickled");
}

static void chat_template_from_either_place(void **state) {
    (void)state;
    tm_source *src;
    tm_buf t = {0};
    bool found;
    OK(tm_make_dirs(scratch("chat")));
    write_file(scratch("chat/config.json"), "{}", 2);
    OK(tm_source_open_bare(&src, scratch("chat")));
    OK(tm_source_file(src, "chat_template.jinja", &t, &found));
    assert_false(found);
    const char *list = "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\","
                       "\"template\":\"yes\\n\"}]}";
    write_file(scratch("chat/tokenizer_config.json"), list, strlen(list));
    OK(tm_source_file(src, "chat_template.jinja", &t, &found));
    assert_true(found);
    assert_string_equal(t.data, "yes\n");
    tm_buf_clear(&t);
    write_file(scratch("chat/chat_template.jinja"), "file", 4);
    OK(tm_source_file(src, "chat_template.jinja", &t, &found));
    assert_string_equal(t.data, "file");
    tm_buf_free(&t);
    tm_source_close(src);
}

/* ---- writing ---- */

static void written_is_read_back(void **state) {
    (void)state;
    tm_st_writer *w;
    uint32_t byte, wide, half, none, scalar;
    enum { N = 100000 };
    float *values = malloc(N * sizeof *values), *got = malloc(N * sizeof *got);
    for (uint64_t i = 0; i < N; i++) values[i] = pattern(i);
    OK(tm_st_writer_create(&w, scratch("w.safetensors")));
    OK(tm_st_writer_metadata(w, "note", "\"quoted\"\n"));
    OK(tm_st_writer_add(w, "byte", TM_FMT_U8, 1, (uint64_t[]){3}, &byte));
    OK(tm_st_writer_add(w, "half", TM_FMT_BF16, 2, (uint64_t[]){1000, 100}, &half));
    OK(tm_st_writer_add(w, "wide", TM_FMT_F32, 2, (uint64_t[]){100, 1000}, &wide));
    OK(tm_st_writer_add(w, "none", TM_FMT_F32, 2, (uint64_t[]){0, 7}, &none));
    OK(tm_st_writer_add(w, "s \"x\" \xc3\xbc", TM_FMT_F16, 0, NULL, &scalar));
    OK(tm_st_writer_write_f32(w, wide, 70001, N - 70001, values + 70001)); /* any order */
    OK(tm_st_writer_write(w, byte, 0, "abc", 3));
    OK(tm_st_writer_write_f32(w, half, 0, 33333, values));
    OK(tm_st_writer_write_f32(w, half, 33333, N - 33333, values + 33333));
    OK(tm_st_writer_write_f32(w, scalar, 0, 1, &(float){-1.5f}));
    OK(tm_st_writer_write_f32(w, wide, 0, 70001, values));
    assert_false(tm_path_exists(scratch("w.safetensors")));
    OK(tm_st_writer_commit(w));
    tm_st *st;
    OK(tm_st_open(&st, scratch("w.safetensors")));
    assert_int_equal(tm_st_count(st), 5);
    assert_string_equal(tm_st_metadata(st, "format"), "pt");
    assert_string_equal(tm_st_metadata(st, "note"), "\"quoted\"\n");
    const tm_st_info *t = tm_st_get(st, (uint32_t)tm_st_find(st, "wide"));
    assert_true(t->offset % 8 == 0 && t->ndim == 2 && t->shape[0] == 100 && t->shape[1] == 1000);
    OK(tm_st_read_f32(st, (uint32_t)tm_st_find(st, "wide"), 0, N, got));
    assert_memory_equal(got, values, N * sizeof *got);
    OK(tm_st_read_f32(st, (uint32_t)tm_st_find(st, "half"), 0, N, got));
    for (uint64_t i = 0; i < N; i++) assert_true(fabsf(got[i] - values[i]) <= fabsf(values[i]) * 0x1p-8f);
    OK(tm_st_read_f32(st, (uint32_t)tm_st_find(st, "s \"x\" \xc3\xbc"), 0, 1, got));
    assert_true(got[0] == -1.5f);
    tm_st_close(st);
    free(values);
    free(got);
    assert_int_equal(leftovers(scratch(".")), 0);
}

static void unfinished_files_do_not_appear(void **state) {
    (void)state;
    tm_st_writer *w;
    uint32_t t;
    OK(tm_st_writer_create(&w, scratch("u.safetensors")));
    OK(tm_st_writer_add(w, "a", TM_FMT_F32, 1, (uint64_t[]){2}, &t));
    OK(tm_st_writer_write_f32(w, t, 0, 1, &(float){1}));
    expect_error(tm_st_writer_commit(w), TM_EBUG, "4 of 8 bytes of 'a'");
    OK(tm_st_writer_create(&w, scratch("u.safetensors")));
    OK(tm_st_writer_add(w, "a", TM_FMT_F32, 1, (uint64_t[]){2}, &t));
    OK(tm_st_writer_write_f32(w, t, 0, 1, &(float){1}));
    tm_st_writer_abandon(w);
    OK(tm_st_writer_create(&w, scratch("u.safetensors")));
    OK(tm_st_writer_add(w, "a", TM_FMT_F32, 0, NULL, &t));
    OK(tm_st_writer_add(w, "a", TM_FMT_F32, 0, NULL, &t));
    expect_error(tm_st_writer_write_f32(w, t, 0, 1, &(float){1}), TM_EINPUT, "two tensors are called 'a'");
    tm_st_writer_abandon(w);
    assert_false(tm_path_exists(scratch("u.safetensors")));
    assert_int_equal(leftovers(scratch(".")), 0);
}

/* Writes five tensors in pieces, last first, and reads them through tm_source. */
static void folder_round_trip(tm_fmt dtype, uint64_t limit, bool sharded) {
    const char *dir = scratch("out");
    static const char *const names[] = {"b.weight", "a.weight", "d", "c", "big"};
    tm_hf_tensor tensors[5];
    for (int i = 0; i < 5; i++)
        tensors[i] = (tm_hf_tensor){.name = names[i], .ndim = 2, .shape = {i == 4 ? 90 : 10, 7}};
    tm_hf_writer *w;
    OK(tm_make_dirs(dir));
    write_file(scratch("out/config.json"), "{}", 2);
    OK(tm_hf_writer_create(&w, dir, tensors, 5, dtype, limit));
    for (uint32_t i = 5; i-- > 0;)
        for (uint64_t at = 0, n = tensors[i].shape[0] * 7; at < n; at += 9) {
            float v[9];
            for (uint64_t k = 0; k < 9; k++) v[k] = (float)(int)(at + k) * 0.25f * (i & 1 ? -1.0f : 1.0f);
            OK(tm_hf_writer_put_f32(w, i, at, tm_min_u64(9, n - at), v));
        }
    OK(tm_hf_writer_commit(w));
    assert_int_equal(tm_path_exists(scratch("out/model.safetensors.index.json")), sharded);
    assert_int_equal(tm_path_exists(scratch("out/model.safetensors")), !sharded);
    tm_source *src;
    OK(tm_source_open(&src, dir));
    assert_int_equal(tm_source_tensors(src), 5);
    for (uint32_t i = 0; i < 5; i++) {
        int64_t t = tm_source_find(src, names[i]);
        float v[630];
        assert_int_equal(tm_source_tensor_get(src, (uint32_t)t)->fmt, dtype);
        uint64_t n = tm_source_tensor_get(src, (uint32_t)t)->elements;
        OK(tm_source_read_f32(src, (uint32_t)t, 0, n, v));
        for (uint64_t k = 0; k < n; k++) assert_true(v[k] == (float)(int)k * 0.25f * (i & 1 ? -1.0f : 1.0f));
    }
    tm_source_close(src);
    assert_int_equal(leftovers(dir), 0);
}

static void folders_are_written(void **state) {
    (void)state;
    folder_round_trip(TM_FMT_F32, 0, false);
    folder_round_trip(TM_FMT_F16, 300, true); /* over it: the old single file must go */
    assert_true(tm_path_exists(scratch("out/model-00003-of-00003.safetensors")));
    folder_round_trip(TM_FMT_F32, 1, true); /* a shard for each */
    assert_true(tm_path_exists(scratch("out/model-00005-of-00005.safetensors")));
    folder_round_trip(TM_FMT_F32, 0, false); /* the old index must go */
}

/* ---- hostile bytes ---- */

static void open_mutant(const tm_buf *bytes) {
    tm_st *st;
    write_file(scratch("mutant.safetensors"), bytes->data, bytes->len);
    tm_status rc = tm_st_open(&st, scratch("mutant.safetensors"));
    if (rc == TM_OK) {
        float v[8];
        for (uint32_t i = 0; i < tm_st_count(st); i++) {
            const tm_st_info *t = tm_st_get(st, i);
            if (tm_fmt_get(t->fmt)->readable) OK(tm_st_read_f32(st, i, 0, tm_min_u64(8, t->elements), v));
        }
        tm_st_close(st);
    } else if (rc != TM_EINPUT)
        fail_msg("%s: %s", tm_status_name(rc), tm_error_get()->text);
    tm_error_clear();
}

static void mutants_never_crash(void **state) {
    (void)state;
    tm_buf good = {0};
    slurp(fixture("safetensors_special/tensors.safetensors"), &good);
    size_t whole = good.len;
    for (size_t cut = 0; cut < whole; cut += 64) { /* cut short: always refused */
        tm_st *st;
        write_file(scratch("cut.safetensors"), good.data, cut);
        expect_error(tm_st_open(&st, scratch("cut.safetensors")), TM_EINPUT, "cut.safetensors");
    }
    uint64_t header;
    memcpy(&header, good.data, 8);
    for (size_t at = 0; at < 8 + header; at++) /* each byte of the header in turn */
        for (int k = 0; k < 3; k++) {
            char old = good.data[at];
            const char with[] = {(char)(old ^ 1), '9', (char)0xff};
            good.data[at] = with[k];
            open_mutant(&good);
            good.data[at] = old;
        }
    tm_buf_free(&good);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_files_are_refused_with_the_reason),
                                       cmocka_unit_test(more_bad_headers),
                                       cmocka_unit_test(special_is_read_exactly),
                                       cmocka_unit_test(ranges_are_checked),
                                       cmocka_unit_test(sixteen_bits_both_ways),
                                       cmocka_unit_test(rounding_to_nearest_even),
                                       cmocka_unit_test(fp8_values),
                                       cmocka_unit_test(sharded_is_read_through_its_index),
                                       cmocka_unit_test(hostile_indices),
                                       cmocka_unit_test(folders_that_are_none),
                                       cmocka_unit_test(folders_that_may_not_be_looked_at),
                                       cmocka_unit_test(chat_template_from_either_place),
                                       cmocka_unit_test(written_is_read_back),
                                       cmocka_unit_test(unfinished_files_do_not_appear),
                                       cmocka_unit_test(folders_are_written),
                                       cmocka_unit_test(mutants_never_crash)};
    return cmocka_run_group_tests_name("safetensors", tests, make_scratch, remove_scratch);
}

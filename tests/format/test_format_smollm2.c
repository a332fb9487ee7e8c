/* The pretrained model: read where it lies, and converted. Expectations come from the file's raw blocks, from the
 * golden of transformers' run, and from SHA-256 of what the `gguf` Python package dequantises. */
#include "world.h"
#include "io/file/file.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "models/SmolLM2-135M-Instruct.Q4_1.gguf"

static double half(const uint8_t *p) {
    unsigned h = p[0] | (unsigned)p[1] << 8, e = h >> 10 & 31, m = h & 1023;
    double v = e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

/* Element e of a tensor as stored, from its raw bytes. */
static float element(tm_fmt fmt, const uint8_t *raw, uint64_t e) {
    float f;
    if (fmt == TM_FMT_Q4_1) {
        const uint8_t *b = raw + e / 32 * 20;
        return (float)(half(b) * (b[4 + e % 16] >> (e % 32 / 16 * 4) & 15) + half(b + 2));
    }
    if (fmt == TM_FMT_Q8_0) {
        const uint8_t *b = raw + e / 32 * 34;
        return (float)(half(b) * (int8_t)b[2 + e % 32]);
    }
    assert_int_equal(fmt, TM_FMT_F32);
    memcpy(&f, raw + e * 4, 4);
    return f;
}

static const struct {
    const char *gguf, *hf;
    int heads;          /* of 64 rows, which are permuted; 0: rows in place */
    const char *sha256; /* of the float32 values, by the gguf package and numpy's inverse permutation */
} tensors[] = {
    {"token_embd.weight", "model.embed_tokens.weight", 0,
     "3fd491c8066dd9dc1a2bf6796701526c82817d95c0ecabacdef3013c2b8bbbaa"},
    {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", 9,
     "54b377bbfa2deab945dfdba7fb59e0ca3eb74329358bd1b53b635b3ff37c1a56"},
    {"blk.29.attn_k.weight", "model.layers.29.self_attn.k_proj.weight", 3,
     "8e99b2450d5f3d53731f52790cc82f80b04341e533306bcfee6669ffa3c79921"},
    {"blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight", 0,
     "9d3af8b67d13c727ae5ffe470464163b9cac42eb494525392bd3e79c8db73880"},
    {"blk.13.attn_norm.weight", "model.layers.13.input_layernorm.weight", 0,
     "da2c2306eef3beb77f92a61d47dd58d796d91047eaad5ea4db32cb00209707e4"},
};

static float *read_all(const tm_source *src, const char *name, uint64_t *n) {
    int64_t t = tm_source_find(src, name);
    if (t < 0) fail_msg("'%s' is missing", name);
    *n = tm_source_tensor_get(src, (uint32_t)t)->elements;
    float *v = malloc(*n * sizeof *v);
    assert_non_null(v);
    for (uint64_t at = 0; at < *n; at += 100003)
        OK(tm_source_read_f32(src, (uint32_t)t, at, tm_min_u64(100003, *n - at), v + at));
    return v;
}

static void values_are_those_of_the_blocks(void **state) {
    (void)state;
    tm_source *src;
    tm_gguf *g;
    OK(tm_source_open(&src, shared(MODEL)));
    OK(tm_gguf_open(&g, shared(MODEL)));
    assert_int_equal(tm_source_tensors(src), 272);
    for (size_t i = 0; i < TM_COUNT(tensors); i++) {
        uint64_t n;
        char hex[65];
        float *v = read_all(src, tensors[i].hf, &n);
        uint32_t t = (uint32_t)tm_gguf_tensor_find(g, tensors[i].gguf);
        const tm_gguf_tensor *info = tm_gguf_tensor_get(g, t);
        uint8_t *raw = malloc(info->bytes);
        OK(tm_gguf_read_raw(g, t, 0, info->bytes, raw));
        uint64_t width = info->shape[info->ndim - 1];
        for (uint64_t e = 0; e < n; e++) {
            uint64_t row = e / width, in = row % 64;
            if (tensors[i].heads) row = row - in + in % 32 * 2 + in / 32;
            float wanted = element(info->fmt, raw, row * width + e % width);
            if (memcmp(&v[e], &wanted, 4) != 0) fail_msg("%s[%llu]", tensors[i].hf, (unsigned long long)e);
        }
        sha256_hex(v, n * 4, hex);
        assert_string_equal(hex, tensors[i].sha256);
        free(raw);
        free(v);
    }
    tm_gguf_close(g);
    tm_source_close(src);
}

static const tm_json *in(const tm_json_doc *d, const char *key) {
    const tm_json *v = tm_json_get(tm_json_root(d), key);
    if (!v) fail_msg("'%s' is missing", key);
    return v;
}

/* As published for HuggingFaceTB/SmolLM2-135M-Instruct. */
static void check_folder(void) {
    tm_json_doc *c = parse_file(scratch("smol/config.json"));
    static const struct {
        const char *key, *text;
    } numbers[] = {{"hidden_size", "576"},       {"intermediate_size", "1536"}, {"num_hidden_layers", "30"},
                   {"num_attention_heads", "9"}, {"num_key_value_heads", "3"},  {"max_position_embeddings", "8192"},
                   {"rms_norm_eps", "1e-05"},    {"rope_theta", "100000.0"},    {"vocab_size", "49152"},
                   {"bos_token_id", "1"},        {"eos_token_id", "2"},         {"pad_token_id", "2"}};
    for (size_t i = 0; i < TM_COUNT(numbers); i++) assert_string_equal(in(c, numbers[i].key)->text, numbers[i].text);
    assert_true(in(c, "tie_word_embeddings")->boolean && tm_json_is(in(c, "model_type"), "llama"));
    tm_json_free(c);
    tm_json_doc *t = parse_file(scratch("smol/tokenizer.json"));
    assert_int_equal(in(t, "added_tokens")->count, 17);
    assert_int_equal(tm_json_get(in(t, "model"), "vocab")->count, 49152);
    assert_int_equal(tm_json_get(in(t, "model"), "merges")->count, 48900);
    assert_int_equal(in(t, "post_processor")->type, TM_JSON_NULL);
    tm_json_free(t);
    tm_buf chat = {0};
    slurp(scratch("smol/chat_template.jinja"), &chat);
    assert_non_null(strstr(chat.data, "<|im_start|>"));
    tm_buf_free(&chat);
}

static void the_folder_holds_the_same_model(void **state) {
    (void)state;
    tm_st *st;
    uint64_t before = tm_mem_peak_bytes();
    OK(tm_convert(shared(MODEL), scratch("smol"), &(tm_convert_opts){0}));
    uint64_t peak = tm_mem_peak_bytes();
    if (peak > before) assert_true(peak < 32 * TM_MIB); /* bounded: the weights are 513 MiB */
    OK(tm_st_open(&st, scratch("smol/model.safetensors")));
    assert_int_equal(tm_st_count(st), 272);
    for (size_t i = 0; i < TM_COUNT(tensors); i++) {
        uint32_t t = (uint32_t)tm_st_find(st, tensors[i].hf);
        const tm_st_info *info = tm_st_get(st, t);
        char hex[65], *bytes = malloc(info->bytes);
        assert_int_equal(info->fmt, TM_FMT_F32);
        OK(tm_st_read_raw(st, t, 0, info->bytes, bytes));
        sha256_hex(bytes, info->bytes, hex);
        assert_string_equal(hex, tensors[i].sha256);
        free(bytes);
    }
    tm_st_close(st);
    check_folder();
}

int main(void) {
    if (!tm_path_exists(shared(MODEL))) {
        TEST_SKIP_PROGRAM("%s is not there", shared(MODEL));
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_are_those_of_the_blocks),
                                       cmocka_unit_test(the_folder_holds_the_same_model)};
    return cmocka_run_group_tests_name("smollm2", tests, make_scratch, remove_scratch);
}

/* GGUF read as a model: names, row order, configuration, tokenizers; and files that lie. */
#include "gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tm_json *get(const tm_json_doc *d, const char *key) {
    const tm_json *v = tm_json_get(tm_json_root(d), key);
    if (!v) fail_msg("'%s' is missing", key);
    return v;
}

static tm_json_doc *config_of(const tm_source *src) {
    size_t len;
    tm_json_doc *doc;
    const char *json = tm_source_config(src, &len);
    OK(tm_json_parse(&doc, json, len, "config", 0, 0));
    return doc;
}

static tm_json_doc *file_of(const tm_source *src, const char *name) {
    tm_buf text = {0};
    tm_json_doc *doc;
    bool found;
    OK(tm_source_file(src, name, &text, &found));
    if (!found) fail_msg("%s was not found", name);
    OK(tm_json_parse(&doc, text.data, text.len, name, 0, 0));
    tm_buf_free(&text);
    return doc;
}

/* ---- values ---- */

static void rows_come_in_the_order_of_the_checkpoint(void **state) {
    (void)state;
    gguf_bytes g = {0};
    tm_source *src;
    float v[64], part[64];
    g_llama(&g, 10);
    g_write(&g, scratch("rows.gguf"));
    OK(tm_source_open(&src, scratch("rows.gguf")));
    assert_true(tm_source_is_gguf(src));
    assert_int_equal(tm_source_tensors(src), 11);
    int64_t q = tm_source_find(src, "model.layers.0.self_attn.q_proj.weight");
    assert_true(q >= 0);
    OK(tm_source_read_f32(src, (uint32_t)q, 0, 64, v));
    /* Heads of 4: RoPE turns rows (0, 2) and (1, 3) together, which GGUF stores as 0 2 1 3. */
    static const int where[4] = {0, 2, 1, 3};
    for (int row = 0; row < 8; row++)
        for (int c = 0; c < 8; c++)
            assert_true(v[row * 8 + c] == (float)(2000 + (row / 4 * 4 + where[row % 4]) * 8 + c));
    for (uint64_t first = 0; first < 64; first++)
        for (uint64_t n = 0; n <= 64 - first; n += 5) {
            OK(tm_source_read_f32(src, (uint32_t)q, first, n, part));
            assert_memory_equal(part, v + first, n * 4);
            OK(tm_source_read_native(src, (uint32_t)q, first, n, part));
            assert_memory_equal(part, v + first, n * 4);
        }
    expect_error(tm_source_read_f32(src, (uint32_t)q, 63, 2, part), TM_EINPUT, "not there");
    int64_t up = tm_source_find(src, "model.layers.0.mlp.up_proj.weight");
    assert_true(tm_source_tensor_get(src, (uint32_t)up)->shape[0] == 16);
    OK(tm_source_read_f32(src, (uint32_t)up, 3, 4, v));
    assert_true(v[0] == 8003);
    assert_int_equal(tm_source_find(src, "lm_head.weight"), -1);
    tm_source_close(src);
}

static void configuration_has_both_forms(void **state) {
    (void)state;
    gguf_bytes g = {0};
    tm_source *src;
    g_llama(&g, 10);
    g_kv_f32(&g, "llama.rope.freq_base", 500000.0f);
    g_kv_u32(&g, "tokenizer.ggml.bos_token_id", 1);
    g_kv_u32(&g, "tokenizer.ggml.eos_token_id", 2);
    g_kv_u32(&g, "tokenizer.ggml.eot_token_id", 3);
    g_write(&g, scratch("c.gguf"));
    OK(tm_source_open(&src, scratch("c.gguf")));
    tm_json_doc *c = config_of(src);
    assert_true(tm_json_is(get(c, "architectures")->child, "LlamaForCausalLM"));
    assert_true(tm_json_is(get(c, "model_type"), "llama"));
    static const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"vocab_size", 10},
                 {"hidden_size", 8},
                 {"intermediate_size", 16},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"max_position_embeddings", 64},
                 {"head_dim", 4},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
    for (size_t i = 0; i < TM_COUNT(sizes); i++) assert_int_equal(get(c, sizes[i].key)->integer, sizes[i].value);
    assert_string_equal(get(c, "rms_norm_eps")->text, "1e-05");
    assert_string_equal(get(c, "rope_theta")->text, "500000.0");
    assert_int_equal(get(c, "rope_scaling")->type, TM_JSON_NULL);
    assert_string_equal(tm_json_get(get(c, "rope_parameters"), "rope_theta")->text, "500000.0");
    assert_true(tm_json_is(tm_json_get(get(c, "rope_parameters"), "rope_type"), "default"));
    assert_true(tm_json_is(get(c, "dtype"), "float32") && tm_json_is(get(c, "torch_dtype"), "float32"));
    assert_true(get(c, "tie_word_embeddings")->boolean);
    assert_false(get(c, "attention_bias")->boolean);
    tm_json_doc *gen = file_of(src, "generation_config.json");
    assert_int_equal(get(gen, "eos_token_id")->count, 2); /* end of text, end of turn */
    tm_buf text = {0};
    bool found;
    OK(tm_source_file(src, "tokenizer.json", &text, &found));
    assert_false(found);
    OK(tm_source_file(src, "chat_template.jinja", &text, &found));
    assert_false(found);
    tm_json_free(c);
    tm_json_free(gen);
    tm_source_close(src);
}

static void variants_of_the_llama(void **state) {
    (void)state;
    gguf_bytes g = {0};
    tm_source *src;
    g_llama(&g, 10);
    g_kv_u32(&g, "llama.attention.sliding_window", 32);
    g_f32s(&g, "output.weight", 8, 10, 0);
    g_write(&g, scratch("v.gguf"));
    OK(tm_source_open(&src, scratch("v.gguf")));
    tm_json_doc *c = config_of(src);
    assert_true(tm_json_is(get(c, "model_type"), "mistral"));
    assert_int_equal(get(c, "sliding_window")->integer, 32);
    assert_false(get(c, "tie_word_embeddings")->boolean);
    assert_true(tm_source_find(src, "lm_head.weight") >= 0);
    tm_json_free(c);
    tm_source_close(src);
    g_llama(&g, 10);
    g_kv_text(&g, "llama.rope.scaling.type", "linear");
    g_kv_f32(&g, "llama.rope.scaling.factor", 4.0f);
    g_f32s(&g, "blk.0.attn_q.bias", 8, 0, 0);
    g_write(&g, scratch("v.gguf"));
    OK(tm_source_open(&src, scratch("v.gguf")));
    c = config_of(src);
    assert_true(tm_json_is(tm_json_get(get(c, "rope_scaling"), "rope_type"), "linear"));
    assert_true(tm_json_get(get(c, "rope_parameters"), "factor")->number == 4);
    assert_true(get(c, "attention_bias")->boolean);
    float bias[8];
    int64_t b = tm_source_find(src, "model.layers.0.self_attn.q_proj.bias");
    OK(tm_source_read_f32(src, (uint32_t)b, 0, 8, bias));
    assert_true(bias[1] == 2 && bias[2] == 1 && bias[6] == 5); /* permuted like the rows */
    tm_json_free(c);
    tm_source_close(src);
}

static void what_is_not_read_is_named(void **state) {
    (void)state;
    static const struct {
        const char *key, *text;
        uint32_t number;
        const char *wanted;
    } cases[] = {{"general.architecture", "mamba", 0, "'mamba'"},
                 {"llama.rope.scaling.type", "dynamic", 0, "dynamic"},
                 {"llama.expert_count", NULL, 8, "experts"},
                 {"llama.attention.value_length", NULL, 6, "values of 6"},
                 {"llama.rope.dimension_count", NULL, 2, "2 are rotated"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        gguf_bytes g = {0};
        tm_source *src;
        g_llama(&g, 10);
        if (i == 0) { /* a key may be there once only */
            tm_buf_clear(&g.kv);
            g.n_kv = 0;
        }
        if (cases[i].text)
            g_kv_text(&g, cases[i].key, cases[i].text);
        else
            g_kv_u32(&g, cases[i].key, cases[i].number);
        g_write(&g, scratch("n.gguf"));
        expect_error(tm_source_open(&src, scratch("n.gguf")), TM_EUNSUPPORTED, cases[i].wanted);
    }
    gguf_bytes g = {0};
    tm_source *src;
    uint8_t mxfp4[17] = {0};
    g_llama(&g, 10);
    g_tensor(&g, "output.weight", 2, (uint64_t[]){32, 1}, 39, mxfp4, sizeof mxfp4);
    g_write(&g, scratch("n.gguf"));
    expect_error(tm_source_open(&src, scratch("n.gguf")), TM_EUNSUPPORTED, "'output.weight' has the type MXFP4");
    g_llama(&g, 10);
    g_f32s(&g, "blk.0.ffn_gate_inp.weight", 8, 2, 0);
    g_write(&g, scratch("n.gguf"));
    expect_error(tm_source_open(&src, scratch("n.gguf")), TM_EUNSUPPORTED, "ffn_gate_inp");
    write_file(scratch("n.gguf"), "GGML", 4);
    expect_error(tm_source_open(&src, scratch("n.gguf")), TM_EINPUT, "not a GGUF file");
}

/* ---- tokenizers ---- */

static const char *const bytes_vocab[] = {"<s>",
                                          "a",
                                          "b",
                                          "\xc4\xa0",
                                          "ab",
                                          "\xc4\xa0"
                                          "ab",
                                          "<tool>",
                                          "<e>"};

static void g_bytes_tokenizer(gguf_bytes *g, const char *pre) {
    static const int32_t types[] = {3, 1, 1, 1, 1, 1, 4, 3};
    g_kv_text(g, "tokenizer.ggml.model", "gpt2");
    if (pre) g_kv_text(g, "tokenizer.ggml.pre", pre);
    g_kv_texts(g, "tokenizer.ggml.tokens", bytes_vocab, 8);
    g_key(g, "tokenizer.ggml.token_type", G_ARRAY);
    g_u32(&g->kv, G_I32);
    g_u64(&g->kv, 8);
    for (int i = 0; i < 8; i++) g_u32(&g->kv, (uint32_t)types[i]);
    g_kv_texts(g, "tokenizer.ggml.merges", (const char *const[]){"a b", "\xc4\xa0 ab"}, 2);
    g_kv_u32(g, "tokenizer.ggml.bos_token_id", 0);
    g_kv_u32(g, "tokenizer.ggml.eos_token_id", 7);
    g_kv_text(g, "tokenizer.chat_template", "{{ messages }}\n");
}

static const tm_json *at(const tm_json *array, size_t i) {
    const tm_json *v = array->child;
    while (v && i-- > 0) v = v->next;
    return v;
}

static void byte_level_tokenizer(void **state) {
    (void)state;
    static const char *const pre[] = {"smollm", "gpt-2", NULL, "llama-bpe", "qwen2"};
    for (size_t i = 0; i < TM_COUNT(pre); i++) {
        gguf_bytes g = {0};
        tm_source *src;
        g_llama(&g, 8);
        g_bytes_tokenizer(&g, pre[i]);
        g_write(&g, scratch("b.gguf"));
        OK(tm_source_open(&src, scratch("b.gguf")));
        tm_json_doc *t = file_of(src, "tokenizer.json");
        const tm_json *model = get(t, "model"), *vocab = tm_json_get(model, "vocab"),
                      *merges = tm_json_get(model, "merges");
        assert_int_equal(vocab->count, 8);
        for (int k = 0; k < 8; k++) assert_int_equal(tm_json_get(vocab, bytes_vocab[k])->integer, k);
        assert_int_equal(merges->count, 2);
        assert_true(tm_json_is(at(at(merges, 1), 0), "\xc4\xa0") && tm_json_is(at(at(merges, 1), 1), "ab"));
        const tm_json *added = get(t, "added_tokens");
        assert_int_equal(added->count, 3);
        assert_true(tm_json_is(tm_json_get(at(added, 1), "content"), "<tool>"));
        assert_false(tm_json_get(at(added, 1), "special")->boolean);
        assert_true(tm_json_get(at(added, 2), "special")->boolean && tm_json_get(at(added, 2), "id")->integer == 7);
        const tm_json *p = get(t, "pre_tokenizer");
        bool llama3 = i == 3, qwen2 = i == 4;
        assert_int_equal(tm_json_get(model, "ignore_merges")->boolean, llama3);
        assert_int_equal(get(t, "post_processor")->type, llama3 ? TM_JSON_OBJECT : TM_JSON_NULL); /* adds <s> */
        assert_int_equal(get(t, "normalizer")->type, qwen2 ? TM_JSON_OBJECT : TM_JSON_NULL);
        if (i == 0) {
            const tm_json *parts = tm_json_get(p, "pretokenizers");
            assert_true(tm_json_is(tm_json_get(at(parts, 0), "type"), "Digits"));
            assert_true(tm_json_get(at(parts, 0), "individual_digits")->boolean);
            p = at(parts, 1);
        }
        if (i < 3) {
            assert_true(tm_json_is(tm_json_get(p, "type"), "ByteLevel"));
            assert_true(tm_json_get(p, "use_regex")->boolean && !tm_json_get(p, "add_prefix_space")->boolean);
        } else {
            const tm_json *regex = tm_json_get(tm_json_get(at(tm_json_get(p, "pretokenizers"), 0), "pattern"), "Regex");
            assert_non_null(strstr(regex->text, llama3 ? "\\p{N}{1,3}|" : "\\p{N}|"));
        }
        tm_json_doc *c = file_of(src, "tokenizer_config.json");
        assert_true(tm_json_is(get(c, "eos_token"), "<e>") && tm_json_is(get(c, "bos_token"), "<s>"));
        tm_buf chat = {0};
        bool found;
        OK(tm_source_file(src, "chat_template.jinja", &chat, &found));
        assert_true(found);
        assert_string_equal(chat.data, "{{ messages }}\n");
        tm_buf_free(&chat);
        tm_json_free(c);
        tm_json_free(t);
        tm_source_close(src);
    }
}

/* A SentencePiece vocabulary without merges: every cut of a piece into two pieces, best score first. */
static void merges_are_found_from_scores(void **state) {
    (void)state;
    static const char *const pieces[] = {"<unk>", "<s>", "</s>", "<0x0A>", "ab", "abc", "a", "b", "c", "bc", "<s"};
    static const float scores[] = {0, 0, 0, 0, -1, -2, -10, -11, -12, -1.5f, -13};
    static const int32_t types[] = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1};
    static const char *const wanted[][2] = {{"a", "b"}, {"b", "c"}, {"ab", "c"}, {"a", "bc"}};
    gguf_bytes g = {0};
    tm_source *src;
    g_llama(&g, 11);
    g_kv_text(&g, "tokenizer.ggml.model", "llama");
    g_kv_texts(&g, "tokenizer.ggml.tokens", pieces, 11);
    g_key(&g, "tokenizer.ggml.scores", G_ARRAY);
    g_u32(&g.kv, G_F32);
    g_u64(&g.kv, 11);
    for (int i = 0; i < 11; i++) g_f32(&g.kv, scores[i]);
    g_key(&g, "tokenizer.ggml.token_type", G_ARRAY);
    g_u32(&g.kv, G_I32);
    g_u64(&g.kv, 11);
    for (int i = 0; i < 11; i++) g_u32(&g.kv, (uint32_t)types[i]);
    g_write(&g, scratch("spm.gguf"));
    OK(tm_source_open(&src, scratch("spm.gguf")));
    tm_json_doc *t = file_of(src, "tokenizer.json");
    const tm_json *model = get(t, "model"), *merges = tm_json_get(model, "merges");
    assert_int_equal(merges->count, TM_COUNT(wanted));
    for (size_t i = 0; i < TM_COUNT(wanted); i++)
        assert_true(tm_json_is(at(at(merges, i), 0), wanted[i][0]) && tm_json_is(at(at(merges, i), 1), wanted[i][1]));
    assert_true(tm_json_get(model, "byte_fallback")->boolean && tm_json_get(model, "fuse_unk")->boolean);
    assert_true(tm_json_is(tm_json_get(model, "unk_token"), "<unk>"));
    assert_int_equal(get(t, "added_tokens")->count, 3);
    const tm_json *first = at(tm_json_get(get(t, "normalizer"), "normalizers"), 0);
    assert_true(tm_json_is(tm_json_get(first, "prepend"), "\xe2\x96\x81"));
    const tm_json *bos = at(tm_json_get(get(t, "post_processor"), "single"), 0);
    assert_true(tm_json_is(tm_json_get(tm_json_get(bos, "SpecialToken"), "id"), "<s>"));
    tm_json_free(t);
    tm_source_close(src);
}

/* Gemma 4's: SentencePiece's pieces, but with merges, and no prefix. */
static void a_tokenizer_of_gemma4(void **state) {
    (void)state;
    static const char *const pieces[] = {"<unk>", "<bos>", "<eos>", "<0x0A>", "a", "b", "ab", "\xe2\x96\x81"};
    gguf_bytes g = {0};
    tm_source *src;
    g_llama(&g, 8);
    g_kv_text(&g, "tokenizer.ggml.model", "gemma4");
    g_kv_texts(&g, "tokenizer.ggml.tokens", pieces, 8);
    g_kv_texts(&g, "tokenizer.ggml.merges", (const char *const[]){"a b"}, 1);
    g_key(&g, "tokenizer.ggml.add_space_prefix", G_BOOL);
    OK(tm_buf_append(&g.kv, "", 1));
    g_write(&g, scratch("g4.gguf"));
    OK(tm_source_open(&src, scratch("g4.gguf")));
    tm_json_doc *t = file_of(src, "tokenizer.json");
    const tm_json *model = get(t, "model"), *merge = at(tm_json_get(model, "merges"), 0);
    assert_int_equal(tm_json_get(model, "merges")->count, 1);
    assert_true(tm_json_is(at(merge, 0), "a") && tm_json_is(at(merge, 1), "b"));
    assert_true(tm_json_get(model, "byte_fallback")->boolean && tm_json_is(tm_json_get(model, "unk_token"), "<unk>"));
    assert_int_equal(tm_json_get(get(t, "normalizer"), "normalizers")->count, 1);
    tm_json_free(t);
    tm_source_close(src);
}

static void tokenizer_fails(gguf_bytes *g, tm_status status, const char *text) {
    tm_source *src;
    tm_buf out = {0};
    bool found;
    g_write(g, scratch("tf.gguf"));
    OK(tm_source_open(&src, scratch("tf.gguf"))); /* the weights can still be read */
    expect_error(tm_source_file(src, "tokenizer.json", &out, &found), status, text);
    tm_buf_free(&out);
    tm_source_close(src);
}

static void tokenizers_that_cannot_be(void **state) {
    (void)state;
    gguf_bytes g = {0};
    g_llama(&g, 8);
    g_bytes_tokenizer(&g, "deepseek-llm");
    tokenizer_fails(&g, TM_EUNSUPPORTED, "'deepseek-llm'");
    g_llama(&g, 8);
    g_kv_text(&g, "tokenizer.ggml.model", "bert");
    tokenizer_fails(&g, TM_EUNSUPPORTED, "'bert'");
    g_llama(&g, 8);
    g_kv_text(&g, "tokenizer.ggml.model", "gpt2");
    tokenizer_fails(&g, TM_EINPUT, "tokens is missing");
    g_llama(&g, 8);
    g_kv_text(&g, "tokenizer.ggml.model", "gpt2");
    g_kv_texts(&g, "tokenizer.ggml.tokens", (const char *const[]){"a", "b", "a"}, 3);
    tokenizer_fails(&g, TM_EINPUT, "0 and 2 have the same text");
    g_llama(&g, 8);
    g_kv_text(&g, "tokenizer.ggml.model", "gpt2");
    g_kv_texts(&g, "tokenizer.ggml.tokens", (const char *const[]){"a", "\xff"}, 2);
    tokenizer_fails(&g, TM_EINPUT, "[1] is not UTF-8");
    g_llama(&g, 8);
    g_kv_text(&g, "tokenizer.ggml.model", "gpt2");
    g_kv_texts(&g, "tokenizer.ggml.tokens", (const char *const[]){"a", "b"}, 2);
    g_kv_texts(&g, "tokenizer.ggml.merges", (const char *const[]){"ab"}, 1);
    tokenizer_fails(&g, TM_EINPUT, "merge 0 is not a pair");
    g_llama(&g, 8);
    g_kv_text(&g, "tokenizer.ggml.model", "llama");
    g_kv_texts(&g, "tokenizer.ggml.tokens", (const char *const[]){"a", "b", "</s>"}, 3);
    tokenizer_fails(&g, TM_EINPUT, "neither tokenizer.ggml.scores nor merges");
}

/* ---- files that lie ---- */

static void refused(const tm_buf *file, tm_status status, const char *text) {
    tm_gguf *g;
    write_file(scratch("lie.gguf"), file->data, file->len);
    expect_error(tm_gguf_open(&g, scratch("lie.gguf")), status, text);
    assert_null(g);
}

static void refused_bytes(gguf_bytes *g, tm_status status, const char *text) {
    tm_buf file = {0};
    g_finish(g, &file);
    refused(&file, status, text);
    tm_buf_free(&file);
}

static void counts_that_lie(void **state) {
    (void)state;
    static const uint64_t lies[] = {UINT64_MAX, UINT64_MAX / 2, (uint64_t)1 << 32, 70000};
    gguf_bytes g = {0};
    tm_buf file = {0};
    g_llama(&g, 10);
    g_finish(&g, &file);
    for (size_t i = 0; i < TM_COUNT(lies); i++)
        for (size_t where = 8; where <= 16; where += 8) {
            uint64_t kept;
            memcpy(&kept, file.data + where, 8);
            memcpy(file.data + where, &lies[i], 8);
            refused(&file, TM_EINPUT, where == 8 ? "tensors are more" : "keys are more");
            memcpy(file.data + where, &kept, 8);
        }
    file.data[4] = 1;
    refused(&file, TM_EUNSUPPORTED, "version 1");
    memcpy(file.data + 4, "\0\0\0\3", 4);
    refused(&file, TM_EUNSUPPORTED, "big-endian");
    tm_buf_free(&file);
}

static void lengths_that_lie(void **state) {
    (void)state;
    gguf_bytes g = {0};
    static const uint64_t lies[] = {UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 61, 1 << 20};
    for (size_t i = 0; i < TM_COUNT(lies); i++) {
        g_kv_u32(&g, "k", 1);
        memcpy(g.kv.data, &lies[i], 8); /* a key's length */
        refused_bytes(&g, TM_EINPUT, "a key");
        g_key(&g, "k", G_STRING); /* a string's length */
        g_u64(&g.kv, lies[i]);
        refused_bytes(&g, TM_EINPUT, "past the end");
        g_key(&g, "k", G_ARRAY); /* an array's count: 8 bytes each, so the product wraps */
        g_u32(&g.kv, G_U64);
        g_u64(&g.kv, lies[i]);
        refused_bytes(&g, TM_EINPUT, "past the end");
        g_key(&g, "k", G_ARRAY);
        g_u32(&g.kv, G_STRING);
        g_u64(&g.kv, lies[i]);
        refused_bytes(&g, TM_EINPUT, "past the end");
    }
    g_key(&g, "k", G_ARRAY);
    g_u32(&g.kv, G_ARRAY);
    g_u64(&g.kv, 1);
    refused_bytes(&g, TM_EUNSUPPORTED, "array of arrays");
    g_key(&g, "k", G_ARRAY);
    g_u32(&g.kv, 13);
    g_u64(&g.kv, 0);
    refused_bytes(&g, TM_EINPUT, "unknown type 13");
    g_key(&g, "k", 99);
    refused_bytes(&g, TM_EINPUT, "unknown type 99");
    g_kv_u32(&g, "k", 1);
    g_kv_u32(&g, "k", 2);
    refused_bytes(&g, TM_EINPUT, "'k' is there twice");
    g_kv_u32(&g, "\xff\xfe", 1);
    refused_bytes(&g, TM_EINPUT, "not UTF-8");
    g_kv_u32(&g, "", 1);
    refused_bytes(&g, TM_EINPUT, "name of 0 bytes");
}

static void tensors_that_lie(void **state) {
    (void)state;
    static const struct {
        uint32_t n_dims;
        uint64_t dims[5];
        uint32_t type;
        tm_status status;
        const char *text;
    } cases[] = {
        {0, {0}, 0, TM_EINPUT, "0 dimensions"},
        {5, {1, 1, 1, 1, 1}, 0, TM_EINPUT, "5 dimensions"},
        {2, {0, 4}, 0, TM_EINPUT, "dimension of 0"},
        {2, {UINT64_MAX, 2}, 0, TM_EINPUT, "overflows"},
        {4, {65536, 65536, 65536, 65536}, 0, TM_EINPUT, "overflows"},
        {2, {(uint64_t)1 << 62, 4}, 0, TM_EINPUT, "overflows"},
        {1, {(uint64_t)1 << 63}, 24, TM_EINPUT, "overflows"},
        {1, {(uint64_t)1 << 62}, 0, TM_EINPUT, "past the end"}, /* its bytes fit uint64; 4 * 2^62 does not */
        {2, {33, 32}, 2, TM_EINPUT, "blocks of 32"},
        {2, {32, 1}, 77, TM_EUNSUPPORTED, "type 77"},
        {1, {1000000}, 0, TM_EINPUT, "past the end"},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        gguf_bytes g = {0};
        g_tensor(&g, "t", cases[i].n_dims, cases[i].dims, cases[i].type, "0123456789abcdef", 16);
        const char *text = i == 7 ? "overflows" : cases[i].text;
        refused_bytes(&g, cases[i].status, text);
    }
    gguf_bytes g = {0};
    g_f32s(&g, "t", 8, 0, 0);
    g_f32s(&g, "t", 8, 0, 0);
    refused_bytes(&g, TM_EINPUT, "'t' is there twice");
    g_f32s(&g, "a", 8, 0, 0);
    g_f32s(&g, "b", 8, 0, 0);
    memset(g.table.data + g.table.len - 8, 0, 8); /* b where a is */
    refused_bytes(&g, TM_EINPUT, "overlaps");
    const uint64_t offsets[] = {4, UINT64_MAX - 31, (uint64_t)1 << 63};
    for (size_t i = 0; i < TM_COUNT(offsets); i++) {
        g_f32s(&g, "a", 8, 0, 0);
        memcpy(g.table.data + g.table.len - 8, &offsets[i], 8);
        refused_bytes(&g, TM_EINPUT, i == 0 ? "not a multiple of 32" : "past the end");
    }
    char name[70];
    memset(name, 'n', 69);
    name[69] = 0;
    g_f32s(&g, name, 8, 0, 0);
    refused_bytes(&g, TM_EINPUT, "name of 69 bytes");
}

static void alignments(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 3, 48, 1u << 31};
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        gguf_bytes g = {0};
        g_kv_u32(&g, "general.alignment", bad[i]);
        g_f32s(&g, "t", 8, 0, 0);
        refused_bytes(&g, TM_EINPUT, "power of two");
    }
    gguf_bytes g = {0};
    tm_gguf *file;
    float v[8];
    g.alignment = 256;
    g_kv_u32(&g, "general.alignment", 256);
    g_f32s(&g, "t", 8, 0, 5);
    g_write(&g, scratch("a.gguf"));
    OK(tm_gguf_open(&file, scratch("a.gguf")));
    assert_int_equal(tm_gguf_tensor_get(file, 0)->offset % 256, 0);
    OK(tm_gguf_read_f32(file, 0, 0, 8, v));
    assert_true(v[0] == 5 && v[7] == 12);
    tm_gguf_close(file);
}

/* Opens and reads everything; only clean refusals are allowed. */
static void try_mutant(const tm_buf *file) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                        "generation_config.json"};
    tm_source *src;
    float v[16];
    write_file(scratch("m.gguf"), file->data, file->len);
    tm_status rc = tm_source_open(&src, scratch("m.gguf"));
    for (uint32_t i = 0; rc == TM_OK && i < tm_source_tensors(src); i++)
        rc = tm_source_read_f32(src, i, 0, tm_min_u64(16, tm_source_tensor_get(src, i)->elements), v);
    for (size_t i = 0; rc == TM_OK && i < TM_COUNT(names); i++) {
        tm_buf text = {0};
        bool found;
        rc = tm_source_file(src, names[i], &text, &found);
        tm_buf_free(&text);
    }
    if (rc != TM_OK && rc != TM_EINPUT && rc != TM_EUNSUPPORTED)
        fail_msg("%s: %s", tm_status_name(rc), tm_error_get()->text);
    tm_error_clear();
    tm_source_close(src);
}

static void mutants_never_crash(void **state) {
    (void)state;
    gguf_bytes g = {0};
    tm_buf file = {0};
    g_llama(&g, 8);
    g_bytes_tokenizer(&g, "smollm");
    size_t data = g.data.len;
    g_finish(&g, &file);
    size_t whole = file.len, header = whole - data;
    for (size_t cut = 0; cut < whole; cut += cut < header ? 1 : 64) {
        tm_source *src;
        write_file(scratch("m.gguf"), file.data, cut);
        tm_status rc = tm_source_open(&src, scratch("m.gguf"));
        if (rc != TM_EINPUT) fail_msg("cut at %zu: %s", cut, tm_status_name(rc));
        tm_error_clear();
    }
    for (size_t at_byte = 4; at_byte < header; at_byte++) {
        static const uint8_t with[] = {0x00, 0xff, 0x80, 0x01, 0x20};
        char kept = file.data[at_byte];
        for (size_t k = 0; k < TM_COUNT(with); k++) {
            file.data[at_byte] = (char)(k == 3 ? kept + 1 : with[k]);
            try_mutant(&file);
        }
        file.data[at_byte] = kept;
    }
    tm_buf_free(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_come_in_the_order_of_the_checkpoint),
                                       cmocka_unit_test(configuration_has_both_forms),
                                       cmocka_unit_test(variants_of_the_llama),
                                       cmocka_unit_test(what_is_not_read_is_named),
                                       cmocka_unit_test(byte_level_tokenizer),
                                       cmocka_unit_test(merges_are_found_from_scores),
                                       cmocka_unit_test(a_tokenizer_of_gemma4),
                                       cmocka_unit_test(tokenizers_that_cannot_be),
                                       cmocka_unit_test(counts_that_lie),
                                       cmocka_unit_test(lengths_that_lie),
                                       cmocka_unit_test(tensors_that_lie),
                                       cmocka_unit_test(alignments),
                                       cmocka_unit_test(mutants_never_crash)};
    return cmocka_run_group_tests_name("gguf", tests, make_scratch, remove_scratch);
}

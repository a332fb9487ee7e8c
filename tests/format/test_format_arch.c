/* Every architecture that GGUF is written for: folder -> GGUF -> folder is the same model; names, keys and values in the
 * file are those that llama.cpp looks for; what config.json or a file may lie about is refused. */
#include "gguf_bytes.h"
#include "io/file/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const folders[] = {"arch_llama",        "arch_llama_tied_rope3",
                                      "arch_llama_linear", "arch_llama_yarn",
                                      "arch_mistral",      "arch_qwen2",
                                      "arch_qwen3",        "arch_phi3",
                                      "arch_phi4mini",     "arch_smollm3",
                                      "arch_olmo2",        "arch_granite",
                                      "arch_glm4",         "arch_gemma2",
                                      "arch_gemma3",       "arch_gpt2",
                                      "arch_gemma4"};

static const char *gguf_of(const char *folder) {
    char name[64];
    snprintf(name, sizeof name, "%s.gguf", folder);
    return scratch(name);
}

static int convert_all(void **state) {
    if (make_scratch(state) != 0) return -1;
    for (size_t i = 0; i < TM_COUNT(folders); i++) convert(fixture(folders[i]), gguf_of(folders[i]), NULL);
    return 0;
}

/* ---- there and back ---------------------------------------------------------------------------------------------- */

/* Of config_v4.json's keys these are not in GGUF: ids come with the tokenizer, the rest is of no class that we write. */
static bool is_carried(const char *key) {
    static const char *const not [] = {
        "_sliding_window_pattern",
        "add_cross_attention",
        "bos_token_id",
        "eos_token_id",
        "layer_types",
        "max_window_layers",
        "pad_token_id",
        "pretraining_tp",
        "summary_activation",
        "summary_first_dropout",
        "summary_type",
        "summary_proj_to_labels",
        "summary_use_proj",
        "transformers_version",
        "use_cache",
        "use_bidirectional_attention",
        "dtype",
        "per_layer_config",
    };
    for (size_t i = 0; i < TM_COUNT(not ); i++)
        if (strcmp(not [i], key) == 0) return false;
    return true;
}

/* `type` is what older configurations call `rope_type`. */
static bool same_scaling(const tm_json *wanted, const tm_json *got) {
    if (wanted->type != TM_JSON_OBJECT) return same_json(wanted, got);
    for (const tm_json *v = wanted->child; v; v = v->next) {
        const tm_json *g = tm_json_get(got, v->key);
        if (!g && strcmp(v->key, "type") == 0) g = tm_json_get(got, "rope_type");
        if (!same_json(v, g)) return false;
    }
    return got->count == wanted->count;
}

static void same_keys(const tm_json *wanted, const tm_json *got, const char *folder) {
    for (const tm_json *v = wanted->child; v; v = v->next) {
        const tm_json *g = tm_json_get(got, v->key);
        bool same = strcmp(v->key, "rope_scaling") == 0 ? g && same_scaling(v, g) : same_json(v, g);
        if (is_carried(v->key) && !same) fail_msg("%s: '%s' differs", folder, v->key);
    }
}

static void same_configuration(const char *folder, const char *back) {
    static const char *const patterned[] = {"arch_gemma2", "arch_gemma3", "arch_gemma4", "arch_smollm3"};
    tm_json_doc *v4 = json_in(fixture(folder), "config_v4.json"), *v5 = json_in(fixture(folder), "config.json");
    tm_json_doc *got = json_in(back, "config.json");
    same_keys(tm_json_root(v4), tm_json_root(got), folder);
    same_keys(tm_json_root(v5), tm_json_root(got), folder);
    for (size_t i = 0; i < TM_COUNT(patterned); i++)
        if (strcmp(folder, patterned[i]) == 0)
            assert_true(
                same_json(tm_json_get(tm_json_root(v5), "layer_types"), tm_json_get(tm_json_root(got), "layer_types")));
    tm_json_free(v4);
    tm_json_free(v5);
    tm_json_free(got);
}

/* Norms of Gemma 2 and 3 are stored as 1 + w: half a unit in the last place of that is lost, nothing else. */
static void there_and_back(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(folders); i++) {
        char back[64];
        float norms = strstr(folders[i], "gemma2") || strstr(folders[i], "gemma3") ? 0x1p-24f : 0;
        snprintf(back, sizeof back, "%s.back", folders[i]);
        same_model(fixture(folders[i]), gguf_of(folders[i]), 0, norms);
        convert(gguf_of(folders[i]), scratch(back), NULL);
        same_model(fixture(folders[i]), scratch(back), 0, norms);
        same_configuration(folders[i], scratch(back));
    }
    assert_int_equal(leftovers(scratch(".")), 0);
}

/* config_v4.json in config.json's place gives the same file: the same keys, and the same bytes but for the name. */
static void the_older_form_says_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(folders); i++) {
        tm_buf text = {0}, a = {0}, b = {0};
        char path[64];
        OK(tm_remove_tree(scratch("same")));
        OK(tm_make_dirs(scratch("same")));
        snprintf(path, sizeof path, "%s/config_v4.json", folders[i]);
        slurp(fixture(path), &text);
        write_file(scratch("same/config.json"), text.data, text.len);
        tm_buf_clear(&text);
        snprintf(path, sizeof path, "%s/model.safetensors", folders[i]);
        slurp(fixture(path), &text);
        write_file(scratch("same/model.safetensors"), text.data, text.len);
        (void)remove(scratch("same.gguf"));
        convert(scratch("same"), scratch("same.gguf"), NULL);
        slurp(scratch("same.gguf"), &a);
        slurp(gguf_of(folders[i]), &b);
        tm_gguf *x, *y;
        OK(tm_gguf_open(&x, scratch("same.gguf")));
        OK(tm_gguf_open(&y, gguf_of(folders[i])));
        assert_int_equal(tm_gguf_kvs(x), tm_gguf_kvs(y));
        for (uint32_t k = 0; k < tm_gguf_kvs(x); k++) {
            const tm_gguf_kv *p = tm_gguf_kv_get(x, k), *q = tm_gguf_kv_find(y, p->key);
            if (strcmp(p->key, "general.name") == 0) continue;
            if (!q || p->type != q->type || p->count != q->count ||
                memcmp(a.data + p->offset, b.data + q->offset, p->type == TM_GGUF_STRING ? p->count : 4) != 0)
                fail_msg("%s: '%s' differs", folders[i], p->key);
        }
        tm_gguf_close(x);
        tm_gguf_close(y);
        tm_buf_free(&text);
        tm_buf_free(&a);
        tm_buf_free(&b);
    }
}

/* ---- tensors in the file ----------------------------------------------------------------------------------------- */

typedef enum way { PLAIN, PERMUTED, TRANSPOSED, ONE_MORE } way;

/* What the file has at element e, from HF's values. */
static float in_file(way how, const float *hf, uint64_t rows, uint64_t width, uint64_t head, uint64_t e) {
    uint64_t row = e / width, column = e % width, in_head = row % head;
    if (how == PERMUTED) /* row 2i + j of a head is HF's row j * half + i */
        return hf[(row - in_head + in_head % 2 * (head / 2) + in_head / 2) * width + column];
    if (how == TRANSPOSED) return hf[e % rows * width + e / rows];
    return how == ONE_MORE ? hf[e] + 1 : hf[e];
}

static void tensors_in_the_file(void **state) {
    static const struct {
        const char *folder, *gguf, *hf;
        way how;
        uint64_t head;
    } rows[] = {
        {"arch_llama_tied_rope3", "blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", PERMUTED, 16},
        {"arch_llama_tied_rope3", "blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight", PERMUTED, 16},
        {"arch_llama_linear", "blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight", PERMUTED, 8},
        {"arch_mistral", "blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", PERMUTED, 16},
        {"arch_smollm3", "blk.2.attn_q.weight", "model.layers.2.self_attn.q_proj.weight", PERMUTED, 8},
        {"arch_granite", "blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight", PERMUTED, 8},
        {"arch_qwen2", "blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", PLAIN, 0},
        {"arch_qwen2", "blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias", PLAIN, 0},
        {"arch_qwen3", "blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", PLAIN, 0},
        {"arch_qwen3", "blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight", PLAIN, 0},
        {"arch_phi3", "blk.0.attn_qkv.weight", "model.layers.0.self_attn.qkv_proj.weight", PLAIN, 0},
        {"arch_phi3", "blk.1.ffn_up.weight", "model.layers.1.mlp.gate_up_proj.weight", PLAIN, 0},
        {"arch_olmo2", "blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight", PLAIN, 0},
        {"arch_olmo2", "blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight", PLAIN, 0},
        {"arch_olmo2", "blk.1.attn_k_norm.weight", "model.layers.1.self_attn.k_norm.weight", PLAIN, 0},
        {"arch_glm4", "blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", PLAIN, 0},
        {"arch_glm4", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight", PLAIN, 0},
        {"arch_glm4", "blk.0.post_attention_norm.weight", "model.layers.0.post_self_attn_layernorm.weight", PLAIN, 0},
        {"arch_glm4", "blk.0.post_ffw_norm.weight", "model.layers.0.post_mlp_layernorm.weight", PLAIN, 0},
        {"arch_glm4", "blk.1.attn_q.bias", "model.layers.1.self_attn.q_proj.bias", PLAIN, 0},
        {"arch_gemma2", "blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", ONE_MORE, 0},
        {"arch_gemma2", "blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight", ONE_MORE,
         0},
        {"arch_gemma2", "blk.1.ffn_norm.weight", "model.layers.1.pre_feedforward_layernorm.weight", ONE_MORE, 0},
        {"arch_gemma2", "output_norm.weight", "model.norm.weight", ONE_MORE, 0},
        {"arch_gemma2", "blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", PLAIN, 0},
        {"arch_gemma3", "blk.2.attn_k_norm.weight", "model.layers.2.self_attn.k_norm.weight", ONE_MORE, 0},
        {"arch_gemma4", "blk.2.layer_output_scale.weight", "model.layers.2.layer_scalar", PLAIN, 0},
        {"arch_gemma4", "blk.1.attn_norm.weight", "model.layers.1.input_layernorm.weight", PLAIN, 0},
        {"arch_gemma4", "per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight", PLAIN, 0},
        {"arch_gemma4", "per_layer_model_proj.weight", "model.per_layer_model_projection.weight", PLAIN, 0},
        {"arch_gemma4", "per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", PLAIN, 0},
        {"arch_gemma4", "blk.3.inp_gate.weight", "model.layers.3.per_layer_input_gate.weight", PLAIN, 0},
        {"arch_gemma4", "blk.0.proj.weight", "model.layers.0.per_layer_projection.weight", PLAIN, 0},
        {"arch_gemma4", "blk.0.post_norm.weight", "model.layers.0.post_per_layer_input_norm.weight", PLAIN, 0},
        {"arch_gpt2", "blk.1.attn_qkv.weight", "transformer.h.1.attn.c_attn.weight", TRANSPOSED, 0},
        {"arch_gpt2", "blk.1.attn_qkv.bias", "transformer.h.1.attn.c_attn.bias", PLAIN, 0},
        {"arch_gpt2", "blk.0.attn_output.weight", "transformer.h.0.attn.c_proj.weight", TRANSPOSED, 0},
        {"arch_gpt2", "blk.0.ffn_up.weight", "transformer.h.0.mlp.c_fc.weight", TRANSPOSED, 0},
        {"arch_gpt2", "blk.0.ffn_down.weight", "transformer.h.0.mlp.c_proj.weight", TRANSPOSED, 0},
        {"arch_gpt2", "blk.0.ffn_norm.bias", "transformer.h.0.ln_2.bias", PLAIN, 0},
        {"arch_gpt2", "position_embd.weight", "transformer.wpe.weight", PLAIN, 0},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_source *src;
        tm_gguf *g;
        uint64_t n;
        OK(tm_source_open(&src, fixture(rows[i].folder)));
        OK(tm_gguf_open(&g, gguf_of(rows[i].folder)));
        float *hf = values_of(src, rows[i].hf, &n), *raw = malloc(n * sizeof *raw);
        const tm_source_tensor *t = tm_source_tensor_get(src, (uint32_t)tm_source_find(src, rows[i].hf));
        int64_t at = tm_gguf_tensor_find(g, rows[i].gguf);
        if (at < 0) fail_msg("%s: no '%s'", rows[i].folder, rows[i].gguf);
        const tm_gguf_tensor *u = tm_gguf_tensor_get(g, (uint32_t)at);
        bool turned = rows[i].how == TRANSPOSED;
        uint64_t width = t->ndim > 1 ? t->shape[1] : 1;
        assert_true(u->fmt == TM_FMT_F32 && u->ndim == t->ndim && u->shape[turned] == t->shape[0]);
        if (t->ndim > 1) assert_int_equal(u->shape[!turned], t->shape[1]);
        OK(tm_gguf_read_raw(g, (uint32_t)at, 0, n * 4, raw));
        for (uint64_t e = 0; e < n; e++)
            if (raw[e] != in_file(rows[i].how, hf, t->shape[0], width, rows[i].head ? rows[i].head : 1, e))
                fail_msg("%s: '%s' differs at %llu", rows[i].folder, rows[i].gguf, (unsigned long long)e);
        free(hf);
        free(raw);
        tm_source_close(src);
        tm_gguf_close(g);
    }
}

/* Any range of a transposed matrix, of permuted rows, of a norm that is stored with one added; in float32 and as stored. */
static void every_range(void **state) {
    static const char *const rows[][2] = {{"arch_gpt2", "transformer.h.1.attn.c_attn.weight"},
                                          {"arch_gpt2", "transformer.h.0.mlp.c_proj.weight"},
                                          {"arch_granite", "model.layers.0.self_attn.q_proj.weight"},
                                          {"arch_gemma3", "model.layers.1.input_layernorm.weight"}};
    static const char *const dtypes[] = {"f32", "bf16", "q8_0"};
    (void)state;
    srand(7);
    for (size_t i = 0; i < TM_COUNT(rows) * TM_COUNT(dtypes); i++) {
        const char *const *row = rows[i / TM_COUNT(dtypes)], *dtype = dtypes[i % TM_COUNT(dtypes)];
        tm_source *src;
        uint64_t n;
        (void)remove(scratch("range.gguf"));
        convert(fixture(row[0]), scratch("range.gguf"), dtype);
        OK(tm_source_open(&src, scratch("range.gguf")));
        uint32_t t = (uint32_t)tm_source_find(src, row[1]);
        tm_fmt fmt = tm_source_tensor_get(src, t)->fmt;
        uint32_t size = fmt == TM_FMT_F32 ? 4 : 2;
        float *all = values_of(src, row[1], &n), *part = malloc(n * sizeof *part), *wide = malloc(n * sizeof *wide);
        for (int k = 0; k < 40; k++) {
            uint64_t first = (uint64_t)rand() % n, take = k ? 1 + (uint64_t)rand() % (n - first) : n - first;
            OK(tm_source_read_f32(src, t, first, take, part));
            assert_memory_equal(part, all + first, take * sizeof *part);
            if (fmt != TM_FMT_F32 && fmt != TM_FMT_BF16) continue;
            OK(tm_source_read_native(src, t, first, take, part));
            tm_fmt_decode(fmt, part, take, wide);
            assert_memory_equal(wide, all + first, take * size / size * sizeof *wide);
        }
        assert_int_equal(tm_source_read_f32(src, t, n, 1, part), TM_EINPUT);
        tm_error_clear();
        free(all);
        free(part);
        free(wide);
        tm_source_close(src);
    }
}

/* The published gpt2 leaves "transformer." out of the names and has a buffer of ones and zeros in each layer. */
static void names_without_their_root(void **state) {
    (void)state;
    tm_source *src;
    tm_hf_writer *w;
    tm_hf_tensor t[64] = {0};
    uint32_t n = 0;
    tm_buf text = {0};
    OK(tm_make_dirs(scratch("bare")));
    slurp(fixture("arch_gpt2/config.json"), &text);
    write_file(scratch("bare/config.json"), text.data, text.len);
    OK(tm_source_open(&src, fixture("arch_gpt2")));
    for (; n < tm_source_tensors(src); n++) {
        const tm_source_tensor *s = tm_source_tensor_get(src, n);
        t[n] = (tm_hf_tensor){.name = s->name + strlen("transformer."), .ndim = s->ndim};
        memcpy(t[n].shape, s->shape, sizeof s->shape);
    }
    t[n] = (tm_hf_tensor){.name = "h.0.attn.bias", .ndim = 4, .shape = {1, 1, 2, 2}};
    OK(tm_hf_writer_create(&w, scratch("bare"), t, n + 1, TM_FMT_F32, 0));
    OK(tm_hf_writer_put_f32(w, n, 0, 4, (const float[4]){1, 0, 1, 1}));
    for (uint32_t i = 0; i < n; i++) {
        uint64_t count;
        float *v = values_of(src, tm_source_tensor_get(src, i)->name, &count);
        OK(tm_hf_writer_put_f32(w, i, 0, count, v));
        free(v);
    }
    OK(tm_hf_writer_commit(w));
    convert(scratch("bare"), scratch("bare.gguf"), NULL);
    same_model(fixture("arch_gpt2"), scratch("bare.gguf"), 0, 0);
    tm_source_close(src);
    tm_buf_free(&text);
}

/* ---- keys in the file -------------------------------------------------------------------------------------------- */

/* Names and meanings: gguf-py's constants, llama.cpp's conversion scripts. NAN: the key is not there. */
static void keys_in_the_file(void **state) {
    static const struct {
        const char *folder, *key;
        double value;
    } rows[] = {
        {"arch_llama_linear", "llama.rope.scaling.factor", 3},
        {"arch_llama_yarn", "llama.rope.scaling.factor", 4},
        {"arch_llama_yarn", "llama.rope.scaling.original_context_length", 32},
        {"arch_llama_yarn", "llama.rope.scaling.yarn_beta_fast", 4},
        {"arch_llama_yarn", "llama.rope.scaling.yarn_beta_slow", 0.5},
        {"arch_llama_yarn", "llama.rope.scaling.yarn_attn_factor", NAN},
        {"arch_mistral", "llama.attention.sliding_window", 8},
        {"arch_qwen2", "qwen2.attention.head_count", 4},
        {"arch_qwen3", "qwen3.attention.key_length", 24},
        {"arch_qwen3", "qwen3.attention.sliding_window", NAN},
        {"arch_phi3", "phi3.attention.sliding_window", 0},
        {"arch_phi3", "phi3.rope.dimension_count", 16},
        {"arch_phi4mini", "phi3.rope.dimension_count", 6},
        {"arch_phi4mini", "phi3.rope.scaling.original_context_length", 16},
        {"arch_phi4mini", "phi3.rope.scaling.attn_factor", 1.224744871391589}, /* sqrt(1 + ln 4 / ln 16) */
        {"arch_smollm3", "smollm3.rope.layer_pattern", 3},
        {"arch_olmo2", "olmo2.attention.head_count_kv", 2},
        {"arch_granite", "granite.embedding_scale", 6},
        {"arch_granite", "granite.attention.scale", 0.2f},
        {"arch_granite", "granite.residual_scale", 0.35f},
        {"arch_granite", "granite.logit_scale", 1.7f},
        {"arch_glm4", "glm4.rope.dimension_count", 6},
        {"arch_gemma2", "gemma2.attn_logit_softcapping", 2},
        {"arch_gemma2", "gemma2.final_logit_softcapping", 4},
        {"arch_gemma2", "gemma2.attention.sliding_window", 8},
        {"arch_gemma2", "gemma2.attention.sliding_window_pattern",
         NAN},                                                    /* by turns: what llama.cpp takes for granted */
        {"arch_gemma2", "gemma2.attention.scale", 0.2041241452f}, /* 24^-1/2 */
        {"arch_gemma3", "gemma3.attention.sliding_window_pattern", 2},
        {"arch_gemma3", "gemma3.rope.freq_base", 1000000},
        {"arch_gemma3", "gemma3.rope.freq_base_swa", 10000},
        {"arch_gemma3", "gemma3.rope.scaling.factor", 8},
        {"arch_gemma3", "gemma3.attn_logit_softcapping", NAN},
        {"arch_gemma4", "gemma4.attention.key_length", 12},
        {"arch_gemma4", "gemma4.attention.key_length_swa", 8},
        {"arch_gemma4", "gemma4.attention.head_count_kv", 2},
        {"arch_gemma4", "gemma4.attention.shared_kv_layers", 2},
        {"arch_gemma4", "gemma4.embedding_length_per_layer_input", 6},
        {"arch_gemma4", "gemma4.rope.dimension_count", 12},
        {"arch_gemma4", "gemma4.rope.dimension_count_swa", 8},
        {"arch_gemma4", "gemma4.rope.freq_base", 100000},
        {"arch_gemma4", "gemma4.rope.freq_base_swa", 1000},
        {"arch_gpt2", "gpt2.feed_forward_length", 128},
        {"arch_gpt2", "gpt2.context_length", 48},
        {"arch_gpt2", "gpt2.attention.layer_norm_epsilon", 1e-5f},
        {"arch_gpt2", "gpt2.rope.freq_base", NAN},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_gguf *g;
        double v = 0;
        bool found;
        OK(tm_gguf_open(&g, gguf_of(rows[i].folder)));
        OK(tm_gguf_float(g, rows[i].key, &v, &found));
        if (found == isnan(rows[i].value) || (found && fabs(v - rows[i].value) > 1e-7 * rows[i].value))
            fail_msg("%s is %g, not %g", rows[i].key, found ? v : NAN, rows[i].value);
        tm_gguf_close(g);
    }
}

static void arrays_in_the_file(void **state) {
    static const float factors[] = {1, 1, 1, 1e30f, 1e30f, 1e30f}; /* half of a head of 12 is rotated */
    static const int32_t widths[] = {20, 20, 40, 40};              /* the layers that share keys are twice as wide */
    static const uint8_t windows[] = {1, 0, 1, 0};
    (void)state;
    tm_gguf *g;
    float got[6];
    tm_buf file = {0};
    OK(tm_gguf_open(&g, gguf_of("arch_gemma4")));
    OK(tm_gguf_read_f32(g, (uint32_t)tm_gguf_tensor_find(g, "rope_freqs.weight"), 0, 6, got));
    assert_memory_equal(got, factors, sizeof factors);
    slurp(gguf_of("arch_gemma4"), &file);
    const tm_gguf_kv *kv = tm_gguf_kv_find(g, "gemma4.feed_forward_length");
    assert_true(kv->type == TM_GGUF_ARRAY && kv->element == TM_GGUF_I32 && kv->count == 4);
    assert_memory_equal(file.data + kv->offset, widths, sizeof widths);
    kv = tm_gguf_kv_find(g, "gemma4.attention.sliding_window_pattern");
    assert_true(kv->type == TM_GGUF_ARRAY && kv->element == TM_GGUF_BOOL && kv->count == 4);
    assert_memory_equal(file.data + kv->offset, windows, sizeof windows);
    tm_buf_free(&file);
    tm_gguf_close(g);
}

/* ---- what config.json may say ------------------------------------------------------------------------------------ */

/* The fixture's config.json with one text in it replaced. */
static void write_changed(const char *folder, const char *from, const char *to) {
    char path[64];
    tm_buf text = {0}, changed = {0};
    snprintf(path, sizeof path, "%s/config.json", folder);
    slurp(fixture(path), &text);
    const char *hit = strstr(text.data, from);
    if (!hit) fail_msg("%s has no %s", path, from);
    OK(tm_buf_append(&changed, text.data, (size_t)(hit - text.data)));
    OK(tm_buf_printf(&changed, "%s%s", to, hit + strlen(from)));
    OK(tm_make_dirs(scratch("changed")));
    write_file(scratch("changed/config.json"), changed.data, changed.len);
    tm_buf_clear(&text);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    slurp(fixture(path), &text);
    write_file(scratch("changed/model.safetensors"), text.data, text.len);
    (void)remove(scratch("changed.gguf"));
    tm_buf_free(&text);
    tm_buf_free(&changed);
}

static void configurations_refused(void **state) {
    static const struct {
        const char *folder, *from, *to;
        tm_status status;
        const char *says;
    } rows[] = {
        {"arch_qwen3", "\"silu\"", "\"gelu\"", TM_EUNSUPPORTED, "'hidden_act' of a qwen3 in GGUF is always \"silu\""},
        {"arch_qwen3", "\"use_sliding_window\": false", "\"use_sliding_window\": true", TM_EUNSUPPORTED,
         "'use_sliding_window'"},
        {"arch_qwen2", "\"use_sliding_window\": false", "\"use_sliding_window\": true", TM_EUNSUPPORTED,
         "'use_sliding_window'"},
        {"arch_gpt2", "\"scale_attn_weights\": true", "\"scale_attn_weights\": false", TM_EUNSUPPORTED,
         "'scale_attn_weights'"},
        {"arch_gpt2", "\"gelu_new\"", "7", TM_EUNSUPPORTED, "'activation_function'"},
        {"arch_gpt2", "\"n_embd\": 64", "\"n_embd\": 0", TM_EINPUT, "'n_embd' must be a positive integer"},
        {"arch_gpt2", "\"n_embd\": 64", "\"n_embd\": 32", TM_EINPUT, "is not [288, 32] as config.json says"},
        {"arch_gemma2", "\"full_attention\"", "\"chunked_attention\"", TM_EINPUT, "'layer_types' is not"},
        {"arch_gemma2", "\"full_attention\"", "\"full_attention\", \"full_attention\"", TM_EINPUT, "each of 2 layers"},
        {"arch_gemma2", "\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": 0", TM_EINPUT,
         "'query_pre_attn_scalar' must be a positive number"},
        {"arch_gemma2", "\"attn_logit_softcapping\": 2.0", "\"attn_logit_softcapping\": -2.0", TM_EINPUT,
         "'attn_logit_softcapping' must be a positive number"},
        {"arch_gemma3", "\"linear\"", "\"yarn\"", TM_EUNSUPPORTED, "this RoPE scaling cannot be written"},
        {"arch_gemma3", "\"use_bidirectional_attention\": false", "\"use_bidirectional_attention\": true",
         TM_EUNSUPPORTED, "'use_bidirectional_attention'"},
        {"arch_smollm3", "\"no_rope_layers\": [", "\"no_rope_layers\": [2, ", TM_EINPUT, "'no_rope_layers' is not"},
        {"arch_smollm3", "\"no_rope_layers\": [", "\"no_rope_layers\": 3, \"x\": [", TM_EINPUT,
         "'no_rope_layers' is not"},
        {"arch_phi4mini", "\"long_factor\": [", "\"long_factor\": [1.0, ", TM_EINPUT,
         "'long_factor' is not 3 positive numbers"},
        {"arch_phi4mini", "\"short_factor\": [", "\"short_factor\": null, \"x\": [", TM_EINPUT,
         "'short_factor' is not"},
        {"arch_phi4mini", "\"partial_rotary_factor\": 0.75", "\"partial_rotary_factor\": 0.9", TM_EINPUT,
         "partial_rotary_factor 0.9 of heads of 8"},
        {"arch_phi4mini", "\"partial_rotary_factor\": 0.75", "\"partial_rotary_factor\": 2", TM_EINPUT,
         "partial_rotary_factor 2"},
        {"arch_glm4", "\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"", TM_EUNSUPPORTED,
         "this RoPE scaling"},
        {"arch_glm4", "\"rope_type\": \"default\"", "\"rope_type\": \"llama3\"", TM_EUNSUPPORTED, "this RoPE scaling"},
        {"arch_llama_yarn", "\"beta_fast\": 4.0", "\"beta_fast\": 0", TM_EINPUT, "'beta_fast' must be a positive"},
        {"arch_llama_yarn", "\"beta_fast\": 4.0", "\"truncate\": false", TM_EUNSUPPORTED, "'truncate' false"},
        {"arch_llama_yarn", "\"beta_fast\": 4.0", "\"mscale\": 1.0", TM_EUNSUPPORTED, "'mscale' cannot be written"},
        {"arch_gemma4", "\"enable_moe_block\": false", "\"enable_moe_block\": true", TM_EUNSUPPORTED,
         "'enable_moe_block'"},
        {"arch_gemma4", "\"1\": {", "\"0\": {", TM_EUNSUPPORTED, "per_layer_config of layer 0 cannot"},
        {"arch_gemma4", "\"1\": {", "\"9\": {", TM_EUNSUPPORTED, "per_layer_config of layer 9 cannot"},
        {"arch_gemma4", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 4", TM_EINPUT, "is too large"},
        {"arch_gemma4", "\"proportional\"", "\"linear\"", TM_EUNSUPPORTED, "this RoPE scaling"},
        {"arch_gemma4", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\": 1.5", TM_EINPUT, "more than 1"},
        {"arch_gemma4", "\"head_dim\": 8", "\"head_dim\": 7", TM_EINPUT, "head_dim must be even"},
        {"arch_granite", "\"logits_scaling\": 1.7", "\"logits_scaling\": 0.0", TM_EINPUT, "'logits_scaling' must be"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        write_changed(rows[i].folder, rows[i].from, rows[i].to);
        expect_error(tm_convert(scratch("changed"), scratch("changed.gguf"), &(tm_convert_opts){0}), rows[i].status,
                     rows[i].says);
        assert_false(tm_path_exists(scratch("changed.gguf")));
    }
}

/* Texts that mean the same, or what they mean comes back. `back`: a text of the config.json that comes back. */
static void configurations_taken(void **state) {
    static const struct {
        const char *folder, *from, *to, *back;
    } rows[] = {
        {"arch_llama_yarn", "\"beta_fast\": 4.0", "\"attention_factor\": 1.25", "\"attention_factor\": 1.25"},
        {"arch_llama_yarn", "\"original_max_position_embeddings\"", "\"x\"",
         "\"original_max_position_embeddings\": 128"},
        {"arch_phi4mini", "\"long_factor\"", "\"attention_factor\": 1.5, \"long_factor\"", "\"attention_factor\": 1.5"},
        {"arch_phi4mini", "\"longrope\"", "\"su\"", "\"rope_type\": \"longrope\""},
        {"arch_phi3", "\"sliding_window\": null", "\"sliding_window\": 99", "\"sliding_window\": 99"},
        {"arch_gemma2", "\"tie_word_embeddings\": true", "\"x\": 0", "\"tie_word_embeddings\": true"},
        {"arch_gemma2", "\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": 16",
         "\"query_pre_attn_scalar\": 16"},
        {"arch_gemma2", "\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": 168.5",
         "\"query_pre_attn_scalar\": 168.5"},
        {"arch_gemma2", "\"final_logit_softcapping\": 4.0", "\"final_logit_softcapping\": null",
         "\"final_logit_softcapping\": null"},
        {"arch_gemma2", "\"attn_logit_softcapping\": 2.0", "\"attn_logit_softcapping\": null",
         "\"attn_logit_softcapping\": null"},
        {"arch_gemma4", "\"final_logit_softcapping\": 4.0", "\"final_logit_softcapping\": null",
         "\"final_logit_softcapping\": null"},
        {"arch_gemma3", "\"final_logit_softcapping\": null", "\"final_logit_softcapping\": 5.0",
         "\"final_logit_softcapping\": 5.0"},
        {"arch_gemma2", "\"layer_types\"", "\"x\"", "\"sliding_window_pattern\": 2"},
        {"arch_gemma3", "\"layer_types\"", "\"sliding_window_pattern\": 3, \"x\"", "\"sliding_window_pattern\": 3"},
        {"arch_gemma4", "\"per_layer_config\"", "\"num_global_key_value_heads\": 1, \"global_head_dim\": 12, \"x\"",
         "\"num_global_key_value_heads\": 1"},
        {"arch_gemma4", "\"use_double_wide_mlp\": true", "\"use_double_wide_mlp\": false",
         "\"use_double_wide_mlp\": false"},
        {"arch_gpt2", "\"n_inner\": 128", "\"n_inner\": null", "\"n_inner\": 256"},
        {"arch_gpt2", "\"n_positions\": 48", "\"n_positions\": 47", "\"n_positions\": 47"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_buf text = {0};
        write_changed(rows[i].folder, rows[i].from, rows[i].to);
        OK(tm_remove_tree(scratch("changed.back")));
        convert(scratch("changed"), scratch("changed.gguf"), NULL);
        convert(scratch("changed.gguf"), scratch("changed.back"), NULL);
        slurp(scratch("changed.back/config.json"), &text);
        if (!strstr(text.data, rows[i].back)) fail_msg("row %zu: no %s in\n%s", i, rows[i].back, text.data);
        tm_buf_free(&text);
    }
}

/* Ministral 3 is Llama's file with YaRN and two keys of its own. */
static void ministral(void **state) {
    (void)state;
    static const char own[] = "\"llama_4_scaling_beta\": 0.25, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"rope_type\"";
    static const char *const lies[][2] = {{"\"mscale\": 1.0", "\"mscale\": 0.5"},
                                          {"\"rope_type\": \"yarn\"", "\"rope_type\": \"default\""},
                                          {"\"rope_type\": \"yarn\"", "\"x\": 0"}};
    tm_buf text = {0};
    tm_gguf *g;
    double v = 0;
    write_changed("arch_llama_yarn", "\"rope_type\"", own);
    slurp(scratch("changed/config.json"), &text);
    char *type = strstr(text.data, "\"model_type\": \"llama\"");
    tm_buf changed = {0};
    OK(tm_buf_append(&changed, text.data, (size_t)(type - text.data)));
    OK(tm_buf_printf(&changed, "\"model_type\": \"ministral3\"%s", type + strlen("\"model_type\": \"llama\"")));
    write_file(scratch("changed/config.json"), changed.data, changed.len);
    OK(tm_remove_tree(scratch("changed.back")));
    convert(scratch("changed"), scratch("changed.gguf"), NULL);
    convert(scratch("changed.gguf"), scratch("changed.back"), NULL);
    same_model(scratch("changed"), scratch("changed.back"), 0, 0);
    tm_json_doc *a = json_in(scratch("changed"), "config.json"), *b = json_in(scratch("changed.back"), "config.json");
    assert_true(
        same_json(tm_json_get(tm_json_root(a), "rope_parameters"), tm_json_get(tm_json_root(b), "rope_parameters")));
    assert_true(tm_json_is(tm_json_get(tm_json_root(b), "model_type"), "ministral3"));
    OK(tm_gguf_open(&g, scratch("changed.gguf")));
    OK(tm_gguf_float(g, "mistral3.attention.temperature_scale", &v, NULL));
    assert_true(v == 0.25);
    OK(tm_gguf_float(g, "mistral3.rope.scaling.yarn_log_multiplier", &v, NULL));
    assert_true(v == 1);
    tm_gguf_close(g);
    tm_json_free(a);
    tm_json_free(b);
    for (size_t i = 0; i < TM_COUNT(lies); i++) {
        tm_buf lie = {0};
        const char *hit = strstr(changed.data, lies[i][0]);
        assert_non_null(hit);
        OK(tm_buf_append(&lie, changed.data, (size_t)(hit - changed.data)));
        OK(tm_buf_printf(&lie, "%s%s", lies[i][1], hit + strlen(lies[i][0])));
        write_file(scratch("changed/config.json"), lie.data, lie.len);
        (void)remove(scratch("changed.gguf"));
        expect_error(tm_convert(scratch("changed"), scratch("changed.gguf"), &(tm_convert_opts){0}), TM_EUNSUPPORTED,
                     "cannot be written to GGUF");
        tm_buf_free(&lie);
    }
    tm_buf_free(&text);
    tm_buf_free(&changed);
}

/* Layers in no period: true or false for each, there and back. */
static void patterns_without_a_period(void **state) {
    static const char *const rows[][3] = {{"arch_gemma3", "\"sliding_attention\"", "\"full_attention\""},
                                          {"arch_smollm3", "\"no_rope_layers\": [\n    1,\n    1,\n    0",
                                           "\"no_rope_layers\": [\n    0,\n    1,\n    1"}};
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_gguf *g;
        write_changed(rows[i][0], rows[i][1], rows[i][2]);
        OK(tm_remove_tree(scratch("changed.back")));
        convert(scratch("changed"), scratch("changed.gguf"), NULL);
        convert(scratch("changed.gguf"), scratch("changed.back"), NULL);
        OK(tm_gguf_open(&g, scratch("changed.gguf")));
        const tm_gguf_kv *kv =
            tm_gguf_kv_find(g, i ? "smollm3.rope.layer_pattern" : "gemma3.attention.sliding_window_pattern");
        assert_true(kv && kv->type == TM_GGUF_ARRAY && kv->element == TM_GGUF_BOOL && kv->count == 3);
        tm_json_doc *a = json_in(scratch("changed"), "config.json"),
                    *b = json_in(scratch("changed.back"), "config.json");
        const char *key = i ? "no_rope_layers" : "layer_types";
        assert_true(same_json(tm_json_get(tm_json_root(a), key), tm_json_get(tm_json_root(b), key)));
        assert_null(tm_json_get(tm_json_root(b), "sliding_window_pattern"));
        tm_json_free(a);
        tm_json_free(b);
        tm_gguf_close(g);
    }
}

/* ---- what a file may lie about ----------------------------------------------------------------------------------- */

enum { U32 = 1, F32, TEXT, BOOLS, LONG_FACTORS, SHORT_FACTORS, NOTHING };
typedef struct lie {
    const char *arch, *key;
    int kind;
    double number; /* or how many */
    const char *text;
    tm_status status;
    const char *says;
} lie;

/* Keys and the embedding: enough for a configuration. */
static void g_arch(gguf_bytes *g, const char *arch, const char *without) {
    static const struct {
        const char *key;
        uint32_t v;
    } sizes[] = {{"block_count", 2},          {"context_length", 64},      {"embedding_length", 16},
                 {"feed_forward_length", 16}, {"attention.head_count", 2}, {"attention.head_count_kv", 1}};
    char key[96];
    g_kv_text(g, "general.architecture", arch);
    for (size_t i = 0; i < TM_COUNT(sizes); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].key);
        const char *last = strrchr(sizes[i].key, '.') ? strrchr(sizes[i].key, '.') + 1 : sizes[i].key;
        const char *hit = strstr(without, last);
        if (!hit || (hit[strlen(last)] && hit[strlen(last)] != ' ')) g_kv_u32(g, key, sizes[i].v);
    }
    bool gpt2 = strcmp(arch, "gpt2") == 0;
    snprintf(key, sizeof key, "%s.attention.layer_norm_%sepsilon", arch, gpt2 ? "" : "rms_");
    if (!strstr(key, without)) g_kv_f32(g, key, 1e-5f);
    g_f32s(g, "token_embd.weight", 16, 8, 0);
}

static void g_lie(gguf_bytes *g, const lie *l) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", l->arch, l->key);
    if (l->kind == U32) g_kv_u32(g, key, (uint32_t)l->number);
    if (l->kind == F32) g_kv_f32(g, key, (float)l->number);
    if (l->kind == TEXT) g_kv_text(g, key, l->text);
    if (l->kind == BOOLS) {
        g_key(g, key, G_ARRAY);
        g_u32(&g->kv, G_BOOL);
        g_u64(&g->kv, (uint64_t)l->number);
        for (int i = 0; i < (int)l->number; i++) OK(tm_buf_append(&g->kv, "\1", 1));
    }
    if (l->kind == LONG_FACTORS) g_f32s(g, "rope_factors_long.weight", (uint64_t)l->number, 0, 1);
    if (l->kind == SHORT_FACTORS) {
        g_f32s(g, "rope_factors_long.weight", 4, 0, 1);
        g_f32s(g, "rope_factors_short.weight", 4, 0, (float)l->number);
    }
}

static void lies(void **state) {
    static const lie rows[] = {
        {"qwen3", "block_count", NOTHING, 0, NULL, TM_EINPUT, "'qwen3.block_count' is missing"},
        {"gpt2", "attention.layer_norm", NOTHING, 0, NULL, TM_EINPUT, "'gpt2.attention.layer_norm_epsilon' is missing"},
        {"olmo2", "attention.key_length", TEXT, 0, "8", TM_EINPUT, "is not a number"},
        {"olmo2", "attention.key_length", U32, 0, NULL, TM_EINPUT, "'olmo2.attention.key_length' is 0"},
        {"olmo2", "attention.sliding_window", U32, 8, NULL, TM_EUNSUPPORTED, "a olmo2 with a sliding window"},
        {"granite", "attention.scale", F32, 0, NULL, TM_EINPUT, "'granite.attention.scale' is 0"},
        {"granite", "logit_scale", F32, -1, NULL, TM_EINPUT, "'granite.logit_scale' is -1"},
        {"granite", "residual_scale", TEXT, 0, "x", TM_EINPUT, "'granite.residual_scale' is not a number"},
        {"gemma2", "attention.scale", F32, 1e-9, NULL, TM_EINPUT, "'gemma2.attention.scale' is 1e-09"},
        {"gemma2", "attn_logit_softcapping", F32, -1, NULL, TM_EINPUT, "'gemma2.attn_logit_softcapping' is -1"},
        {"gemma2", "attention.sliding_window_pattern", BOOLS, 3, NULL, TM_EINPUT, "for each of 2 layers"},
        {"gemma2", "attention.sliding_window_pattern", TEXT, 0, "2", TM_EINPUT, "is not a number"},
        {"gemma2", "attention.sliding_window_pattern", U32, 4294967295.0, NULL, TM_EINPUT, "is 4294967295"},
        {"gemma3", "rope.freq_base_swa", F32, 0, NULL, TM_EINPUT, "'gemma3.rope.freq_base_swa' is 0"},
        {"gemma3", "rope.scaling.type", TEXT, 0, "yarn", TM_EUNSUPPORTED, "a gemma3 with RoPE scaling 'yarn'"},
        {"smollm3", "rope.layer_pattern", BOOLS, 1, NULL, TM_EINPUT, "for each of 2 layers"},
        {"glm4", "rope.dimension_count", U32, 3, NULL, TM_EUNSUPPORTED, "3 are rotated"},
        {"glm4", "rope.dimension_count", U32, 10, NULL, TM_EUNSUPPORTED, "10 are rotated"},
        {"glm4", "rope.dimension_count", U32, 0, NULL, TM_EUNSUPPORTED, "0 are rotated"},
        {"qwen3", "rope.dimension_count", U32, 4, NULL, TM_EUNSUPPORTED, "4 are rotated"},
        {"phi3", "x", LONG_FACTORS, 3, NULL, TM_EINPUT, "'rope_factors_short.weight' is missing"},
        {"phi3", "x", SHORT_FACTORS, -2, NULL, TM_EINPUT, "has a factor that is not positive"},
        {"phi3", "rope.scaling.original_context_length", U32, 0, NULL, TM_EINPUT, "original_context_length' is 0"},
        {"qwen3", "x", LONG_FACTORS, 4, NULL, TM_EUNSUPPORTED, "a qwen3 with RoPE scaling 'longrope'"},
        {"llama", "rope.scaling.type", TEXT, 0, "yarn", TM_EINPUT, "'llama.rope.scaling.factor' is missing"},
        {"llama", "rope.scaling.type", TEXT, 0, "dynamic", TM_EUNSUPPORTED, "RoPE scaling 'dynamic'"},
        {"mistral3", "rope.scaling.type", TEXT, 0, "linear", TM_EUNSUPPORTED, "a mistral3 with RoPE scaling 'linear'"},
        {"mamba", "block_count", U32, 1, NULL, TM_EUNSUPPORTED,
         "supported: llama (also Mistral, SmolLM, TinyLlama), qwen2, qwen3, phi3 (also Phi-3.5, Phi-4), smollm3, olmo2,"
         " granite, glm4, gemma2, gemma3, gemma4, mistral3 (Ministral 3, Mistral Small 3), gpt2"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        gguf_bytes g = {0};
        tm_source *src;
        g_arch(&g, rows[i].arch, rows[i].kind == NOTHING || i + 1 == TM_COUNT(rows) ? rows[i].key : "nothing");
        g_lie(&g, &rows[i]);
        g_write(&g, scratch("lie.gguf"));
        expect_error(tm_source_open_bare(&src, scratch("lie.gguf")), rows[i].status, rows[i].says);
    }
}

static void g_array(gguf_bytes *g, const char *key, uint64_t n, const uint32_t *v) {
    g_key(g, key, G_ARRAY);
    g_u32(&g->kv, G_I32);
    g_u64(&g->kv, n);
    for (uint64_t i = 0; i < n; i++) g_u32(&g->kv, v[i]);
}

/* Gemma 4's numbers for each layer, two layers, of which the second is a global one. */
static void numbers_for_each_layer(void **state) {
    static const struct {
        uint32_t n, width[3], kv[2], shared, key_length, frequencies;
        tm_status status;
        const char *says;
    } rows[] = {
        {2, {16, 16}, {2, 1}, 0, 8, 0, TM_OK, ""},
        {2, {16, 32}, {2, 1}, 1, 8, 0, TM_OK, ""},
        {2, {16, 32}, {2, 1}, 0, 8, 0, TM_EUNSUPPORTED, "the width 32 of layer 1's MLP"},
        {2, {16, 17}, {2, 1}, 1, 8, 0, TM_EUNSUPPORTED, "the width 17 of layer 1's MLP"},
        {3, {16, 16, 16}, {2, 1}, 0, 8, 0, TM_EINPUT, "has 3 numbers for 2 layers"},
        {1, {16}, {2, 1}, 0, 8, 0, TM_EINPUT, "has 1 numbers for 2 layers"},
        {2, {0, 16}, {2, 1}, 0, 8, 0, TM_EINPUT, "'gemma4.feed_forward_length'[0] is 0"},
        {2, {16, 4294967295U}, {2, 1}, 0, 8, 0, TM_EINPUT, "'gemma4.feed_forward_length'[1] is -1"},
        {2, {16, 16}, {2, 1}, 2, 8, 0, TM_EINPUT, "2 of 2 layers share keys"},
        {2, {16, 16}, {2, 1}, 0, 7, 0, TM_EUNSUPPORTED, "'gemma4.attention.key_length' 7"},
        {2, {16, 16}, {2, 1}, 0, 8, 3, TM_EINPUT, "'rope_freqs.weight' is not 1 and then without end, 4 in all"},
        {2, {16, 16}, {2, 1}, 0, 8, 4, TM_EINPUT, "'rope_freqs.weight' is not 1"},
    };
    (void)state;
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        gguf_bytes g = {0};
        tm_source *src = NULL;
        g_arch(&g, "gemma4", "feed_forward_length head_count_kv");
        g_array(&g, "gemma4.feed_forward_length", rows[i].n, rows[i].width);
        g_array(&g, "gemma4.attention.head_count_kv", 2, rows[i].kv);
        g_kv_u32(&g, "gemma4.attention.shared_kv_layers", rows[i].shared);
        g_kv_u32(&g, "gemma4.attention.sliding_window_pattern", 2);
        g_kv_u32(&g, "gemma4.attention.key_length", rows[i].key_length);
        g_kv_u32(&g, "gemma4.attention.key_length_swa", 8);
        if (rows[i].frequencies) g_f32s(&g, "rope_freqs.weight", rows[i].frequencies, 0, 1);
        g_write(&g, scratch("layers.gguf"));
        tm_status rc = tm_source_open_bare(&src, scratch("layers.gguf"));
        if (rows[i].status != TM_OK) {
            expect_error(rc, rows[i].status, rows[i].says);
            continue;
        }
        OK(rc);
        assert_non_null(strstr(tm_source_config(src, NULL), "\"num_global_key_value_heads\": 1"));
        tm_source_close(src);
    }
}

/* llama.cpp's converter calls Mistral Small 3's decoder mistral3, too. */
static void mistral3_without_yarn(void **state) {
    (void)state;
    gguf_bytes g = {0};
    tm_source *src;
    g_arch(&g, "mistral3", "nothing");
    g_write(&g, scratch("small.gguf"));
    OK(tm_source_open_bare(&src, scratch("small.gguf")));
    assert_non_null(strstr(tm_source_config(src, NULL), "\"model_type\": \"mistral\""));
    assert_non_null(strstr(tm_source_config(src, NULL), "\"sliding_window\": null"));
    tm_source_close(src);
}

/* More layers than a pattern is kept for. */
static void too_many_layers(void **state) {
    (void)state;
    gguf_bytes g = {0};
    tm_source *src;
    g_arch(&g, "gemma2", "block_count");
    g_kv_u32(&g, "gemma2.block_count", 1025);
    g_write(&g, scratch("many.gguf"));
    expect_error(tm_source_open_bare(&src, scratch("many.gguf")), TM_EUNSUPPORTED, "a gemma2 with 1025 layers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(the_older_form_says_the_same),
        cmocka_unit_test(tensors_in_the_file),
        cmocka_unit_test(every_range),
        cmocka_unit_test(names_without_their_root),
        cmocka_unit_test(keys_in_the_file),
        cmocka_unit_test(arrays_in_the_file),
        cmocka_unit_test(ministral),
        cmocka_unit_test(numbers_for_each_layer),
        cmocka_unit_test(configurations_refused),
        cmocka_unit_test(configurations_taken),
        cmocka_unit_test(patterns_without_a_period),
        cmocka_unit_test(lies),
        cmocka_unit_test(mistral3_without_yarn),
        cmocka_unit_test(too_many_layers),
    };
    if (tm_path_is_dir("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests_name("arch", tests, convert_all, remove_scratch);
}

/* Folder -> GGUF -> folder: what went in comes out, and a failed conversion leaves nothing. */
#include "gguf_bytes.h"
#include "io/file/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tm_fmt fmt_of(const tm_gguf *g, const char *name) {
    int64_t t = tm_gguf_tensor_find(g, name);
    if (t < 0) fail_msg("'%s' is missing", name);
    return tm_gguf_tensor_get(g, (uint32_t)t)->fmt;
}

static void every_type(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        tm_fmt matrix, output; /* of the file; rows of 64: whole blocks */
        float bound;           /* of the error, relative to the largest value of the tensor */
    } cases[] = {{"f32", TM_FMT_F32, TM_FMT_F32, 0},
                 {"bf16", TM_FMT_BF16, TM_FMT_BF16, 0x1p-8f},
                 {"f16", TM_FMT_F16, TM_FMT_F16, 0x1p-10f},
                 {"q8_0", TM_FMT_Q8_0, TM_FMT_Q8_0, 0.5f / 127 + 0x1p-10f},
                 {"q4_0", TM_FMT_Q4_0, TM_FMT_Q8_0, 0.126f},
                 {"q4_1", TM_FMT_Q4_1, TM_FMT_Q8_0, 0.068f},
                 {"q5_0", TM_FMT_Q5_0, TM_FMT_Q8_0, 0.063f},
                 {"q5_1", TM_FMT_Q5_1, TM_FMT_Q8_0, 0.034f},
                 {"q4_k", TM_FMT_Q5_0, TM_FMT_Q8_0, 0.063f},
                 {"q5_k_m", TM_FMT_Q5_1, TM_FMT_Q8_0, 0.063f},
                 {"q6_k", TM_FMT_Q8_0, TM_FMT_Q8_0, 0.5f / 127 + 0x1p-10f}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_gguf *g;
        char name[32];
        snprintf(name, sizeof name, "t_%s.gguf", cases[i].dtype);
        convert(fixture("arch_llama_tied_rope3"), scratch(name), cases[i].dtype);
        OK(tm_gguf_open(&g, scratch(name)));
        assert_int_equal(fmt_of(g, "blk.0.ffn_gate.weight"), cases[i].matrix);
        assert_int_equal(fmt_of(g, "token_embd.weight"), cases[i].output);
        assert_int_equal(fmt_of(g, "output_norm.weight"), TM_FMT_F32);
        tm_gguf_close(g);
        same_model(fixture("arch_llama_tied_rope3"), scratch(name), cases[i].bound, 0);
    }
    tm_gguf *g; /* hidden size 48: no whole blocks, f16 instead; intermediate 64 */
    convert(fixture("arch_llama"), scratch("odd.gguf"), "q4_0");
    OK(tm_gguf_open(&g, scratch("odd.gguf")));
    tm_source *src;
    OK(tm_source_open(&src, fixture("arch_llama")));
    const tm_source_tensor *up =
        tm_source_tensor_get(src, (uint32_t)tm_source_find(src, "model.layers.0.mlp.up_proj.weight"));
    assert_int_equal(fmt_of(g, "blk.0.ffn_up.weight"), up->shape[1] % 32 ? TM_FMT_F16 : TM_FMT_Q4_0);
    tm_source_close(src);
    tm_gguf_close(g);
}

static void sixteen_bit_sources_keep_their_type(void **state) {
    (void)state;
    tm_source *src;
    convert(fixture("arch_llama"), scratch("half"), "bf16");
    tm_json_doc *c = json_in(scratch("half"), "config.json");
    assert_true(tm_json_is(tm_json_get(tm_json_root(c), "dtype"), "bfloat16"));
    assert_true(
        same_json(tm_json_get(tm_json_root(c), "rms_norm_eps"), &(tm_json){.type = TM_JSON_NUMBER, .number = 1e-5}));
    tm_json_free(c);
    convert(scratch("half"), scratch("half.gguf"), NULL);
    OK(tm_source_open(&src, scratch("half.gguf")));
    int64_t t = tm_source_find(src, "model.layers.0.self_attn.q_proj.weight");
    assert_int_equal(tm_source_tensor_get(src, (uint32_t)t)->fmt, TM_FMT_BF16);
    tm_source_close(src);
    same_model(scratch("half"), scratch("half.gguf"), 0, 0);
    convert(scratch("half.gguf"), scratch("half2"), "bf16");
    same_model(scratch("half"), scratch("half2"), 0, 0);
}

static void shards_come_out_as_one_model(void **state) {
    (void)state;
    OK(tm_convert(fixture("arch_llama"), scratch("shards"), &(tm_convert_opts){.max_shard_bytes = 100000}));
    assert_true(tm_path_exists(scratch("shards/model.safetensors.index.json")));
    same_model(fixture("arch_llama"), scratch("shards"), 0, 0);
    tm_buf a = {0}, b = {0};
    slurp(fixture("arch_llama/generation_config.json"), &a);
    slurp(scratch("shards/generation_config.json"), &b);
    assert_string_equal(a.data, b.data);
    tm_buf_free(&a);
    tm_buf_free(&b);
}

/* ---- tokenizers ---- */

static const tm_json *added_by_id(const tm_json *list, int64_t id) {
    for (const tm_json *t = list->child; t; t = t->next)
        if (tm_json_get(t, "id")->integer == id) return t;
    return NULL;
}

/* What is no weight goes along, byte for byte, to a folder. */
static void other_tensors_go_along(void **state) {
    (void)state;
    tm_source *a, *b;
    unsigned others = 0;
    OK(tm_convert(fixture("safetensors_sharded"), scratch("whole"), &(tm_convert_opts){.dtype = "bf16"}));
    OK(tm_source_open(&a, fixture("safetensors_sharded")));
    OK(tm_source_open(&b, scratch("whole")));
    assert_int_equal(tm_source_tensors(a), tm_source_tensors(b));
    for (uint32_t i = 0; i < tm_source_tensors(a); i++) {
        const tm_source_tensor *x = tm_source_tensor_get(a, i), *y = tm_source_tensor_get(b, i);
        uint8_t was[512], is[512];
        assert_string_equal(x->name, y->name);
        if (x->fmt != TM_FMT_I64) continue;
        assert_true(y->fmt == TM_FMT_I64 && x->bytes == y->bytes && x->bytes <= sizeof was);
        OK(tm_source_read_raw(a, i, 0, x->bytes, was));
        OK(tm_source_read_raw(b, i, 0, x->bytes, is));
        assert_memory_equal(was, is, x->bytes);
        others++;
    }
    assert_int_equal(others, 1);
    tm_source_close(a);
    tm_source_close(b);
}

static void same_tokenizer(const tm_json *a, const tm_json *b) {
    const tm_json *ma = tm_json_get(a, "model"), *mb = tm_json_get(b, "model");
    static const char *const model[] = {"type", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "merges"};
    for (size_t i = 0; i < TM_COUNT(model); i++)
        if (!same_json(tm_json_get(ma, model[i]), tm_json_get(mb, model[i]))) fail_msg("model.%s differs", model[i]);
    assert_true(same_json(tm_json_get(a, "pre_tokenizer"), tm_json_get(b, "pre_tokenizer")));
    assert_true(same_json(tm_json_get(a, "normalizer"), tm_json_get(b, "normalizer")));
    const tm_json *vocab = tm_json_get(mb, "vocab"), *added = tm_json_get(b, "added_tokens");
    for (const tm_json *t = tm_json_get(ma, "vocab")->child; t; t = t->next)
        assert_true(same_json(t, tm_json_get(vocab, t->key)));
    const tm_json *mine = tm_json_get(a, "added_tokens");
    assert_int_equal(mine->count, added->count);
    for (const tm_json *t = mine->child; t; t = t->next) {
        const tm_json *u = added_by_id(added, tm_json_get(t, "id")->integer);
        assert_true(u && same_json(tm_json_get(t, "content"), tm_json_get(u, "content")));
        assert_true(same_json(tm_json_get(t, "special"), tm_json_get(u, "special")));
    }
}

/* The part of the post-processor that adds tokens. */
static const tm_json *template_of(const tm_json *t) {
    const tm_json *p = tm_json_get(t, "post_processor"), *list = tm_json_get(p, "processors");
    for (const tm_json *e = list ? list->child : NULL; e; e = e->next)
        if (tm_json_is(tm_json_get(e, "type"), "TemplateProcessing")) return e;
    return tm_json_is(tm_json_get(p, "type"), "TemplateProcessing") ? p : NULL;
}

static void tokenizers_there_and_back(void **state) {
    (void)state;
    static const struct {
        const char *name, *bos;
        uint64_t vocab;
    } cases[] = {{"tok_gpt2", NULL, 510},
                 {"tok_llama3", "<|begin_of_text|>", 507},
                 {"tok_qwen2", NULL, 520},
                 {"tok_spm", "<s>", 530}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        OK(tm_remove_tree(scratch("tok.back")));
        remove(scratch("tok.gguf"));
        make_folder(scratch("tok"), cases[i].name, cases[i].vocab);
        convert(scratch("tok"), scratch("tok.gguf"), NULL);
        convert(scratch("tok.gguf"), scratch("tok.back"), NULL);
        tm_json_doc *a = json_in(scratch("tok"), "tokenizer.json"), *b = json_in(scratch("tok.back"), "tokenizer.json");
        same_tokenizer(tm_json_root(a), tm_json_root(b));
        const tm_json *ta = template_of(tm_json_root(a)), *tb = template_of(tm_json_root(b));
        assert_true(!ta == !tb && !ta == !cases[i].bos);
        if (ta) assert_true(same_json(tm_json_get(ta, "single"), tm_json_get(tb, "single")));
        tm_json_doc *ca = json_in(scratch("tok"), "tokenizer_config.json"),
                    *cb = json_in(scratch("tok.back"), "tokenizer_config.json");
        static const char *const tokens[] = {"bos_token", "eos_token", "pad_token"};
        for (size_t k = 0; k < TM_COUNT(tokens); k++) {
            const tm_json *t = tm_json_get(tm_json_root(ca), tokens[k]);
            if (t) assert_true(same_json(t, tm_json_get(tm_json_root(cb), tokens[k])));
        }
        assert_non_null(tm_json_get(tm_json_get(tm_json_get(tm_json_root(b), "model"), "vocab"),
                                    i == 1   ? "<|eot_id|>"
                                    : i == 3 ? "[PAD529]"
                                             : "[PAD509]")); /* rows without a token */
        tm_json_free(a);
        tm_json_free(b);
        tm_json_free(ca);
        tm_json_free(cb);
    }
}

/* The fixture's tokenizer.json with texts replaced: pairs of from and to, NULL ends them. */
static void make_changed(const char *base, const char *const *pairs, uint64_t vocab) {
    char path[64];
    tm_buf text = {0};
    make_folder(scratch("fam"), base, vocab);
    snprintf(path, sizeof path, "%s/tokenizer.json", base);
    slurp(fixture(path), &text);
    for (; *pairs; pairs += 2) {
        tm_buf changed = {0};
        const char *hit = strstr(text.data, pairs[0]);
        if (!hit) fail_msg("%s has no %s", path, pairs[0]);
        OK(tm_buf_append(&changed, text.data, (size_t)(hit - text.data)));
        OK(tm_buf_printf(&changed, "%s%s", pairs[1], hit + strlen(pairs[0])));
        tm_buf_free(&text);
        text = changed;
    }
    write_file(scratch("fam/tokenizer.json"), text.data, text.len);
    tm_buf_free(&text);
    (void)remove(scratch("fam.gguf"));
    OK(tm_remove_tree(scratch("fam.back")));
}

#define LLAMA3_HEAD                                                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "                             \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*"
#define WORD                                                                                                           \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{"  \
    "M}]+"
#define NAME                                                                                                           \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{"  \
    "M}]*"
#define TAIL " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*"
#define ENDING "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

/* What the families' tokenizers have beside the fixtures': the name in the file, and the same pre_tokenizer back. */
static void tokenizers_of_families(void **state) {
    (void)state;
    static const struct {
        const char *pre, *pairs[5];
    } rows[] = {
        {"llama-bpe", {NULL}},
        {"dbrx", {"\"ignore_merges\": true", "\"ignore_merges\": false"}}, /* Phi-4, OLMo 2, GLM-4 */
        {"tekken", {LLAMA3_HEAD, WORD "|" NAME "|\\\\p{N}|" TAIL}},        /* Ministral */
        {"gpt-4o",                                                         /* Phi-4-mini */
         {LLAMA3_HEAD, WORD ENDING "|" NAME ENDING "|\\\\p{N}{1,3}|" TAIL, "\"ignore_merges\": true",
          "\"ignore_merges\": false"}},
    };
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_gguf *g;
        tm_buf pre = {0};
        bool found;
        make_changed("tok_llama3", rows[i].pairs, 507);
        convert(scratch("fam"), scratch("fam.gguf"), NULL);
        convert(scratch("fam.gguf"), scratch("fam.back"), NULL);
        OK(tm_gguf_open(&g, scratch("fam.gguf")));
        OK(tm_gguf_string(g, "tokenizer.ggml.pre", 64, &pre, &found));
        assert_string_equal(pre.data, rows[i].pre);
        tm_json_doc *a = json_in(scratch("fam"), "tokenizer.json"), *b = json_in(scratch("fam.back"), "tokenizer.json");
        same_tokenizer(tm_json_root(a), tm_json_root(b));
        tm_json_free(a);
        tm_json_free(b);
        tm_buf_free(&pre);
        tm_gguf_close(g);
    }
}

/* tiktoken's, converted, keep what matches instead of cutting there: the same. Other ways to cut are not. */
static void ways_to_cut(void **state) {
    (void)state;
    const char *const inverted[] = {"\"behavior\": \"Isolated\"", "\"behavior\": \"Removed\"", "\"invert\": false",
                                    "\"invert\": true", NULL};
    const char *const merged[] = {"\"behavior\": \"Isolated\"", "\"behavior\": \"MergedWithNext\"", NULL};
    make_changed("tok_llama3", inverted, 507);
    convert(scratch("fam"), scratch("fam.gguf"), NULL);
    make_changed("tok_llama3", merged, 507);
    expect_error(tm_convert(scratch("fam"), scratch("fam.gguf"), &(tm_convert_opts){0}), TM_EUNSUPPORTED,
                 "no name for this pre_tokenizer");
}

/* Gemma's: no prefix, a cut at spaces that never happens, an added token beyond the embedding. */
static void a_tokenizer_as_gemmas(void **state) {
    (void)state;
    static const char replace[] =
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}";
    const char *const pairs[] = {
        "\"normalizer\": {",
        "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}, "
        "\"x\": {",
        "\"pre_tokenizer\": null",
        "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": "
        "\"MergedWithPrevious\", \"invert\": false}",
        "\"added_tokens\": [",
        "\"added_tokens\": [{\"id\": 530, \"content\": \"<image>\", \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": false, \"normalized\": false, \"special\": true},",
        NULL};
    static const char chat[] = "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{% endfor %}\n";
    tm_gguf *g;
    tm_buf text = {0};
    bool prefix = true, found;
    make_changed("tok_spm", pairs, 530);
    write_file(scratch("fam/chat_template.jinja"), chat, sizeof chat - 1);
    convert(scratch("fam"), scratch("fam.gguf"), NULL);
    convert(scratch("fam.gguf"), scratch("fam.back"), NULL);
    OK(tm_gguf_open(&g, scratch("fam.gguf")));
    OK(tm_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &prefix, &found));
    assert_true(found && !prefix);
    tm_gguf_close(g);
    tm_json_doc *a = json_in(scratch("fam"), "tokenizer.json"), *b = json_in(scratch("fam.back"), "tokenizer.json"), *r;
    OK(tm_json_parse(&r, replace, sizeof replace - 1, "replace", 0, 0));
    const tm_json *ma = tm_json_get(tm_json_root(a), "model"), *mb = tm_json_get(tm_json_root(b), "model");
    const tm_json *parts = tm_json_get(tm_json_get(tm_json_root(b), "normalizer"), "normalizers");
    assert_true(same_json(tm_json_get(ma, "merges"), tm_json_get(mb, "merges")));
    assert_true(parts->count == 1 && same_json(parts->child, tm_json_root(r)));
    assert_null(added_by_id(tm_json_get(tm_json_root(b), "added_tokens"), 530));
    slurp(scratch("fam.back/chat_template.jinja"), &text);
    assert_string_equal(text.data, chat);
    tm_buf_free(&text);
    tm_json_free(a);
    tm_json_free(b);
    tm_json_free(r);
}

static void tokenizer_refused(const char *json, tm_status status, const char *text) {
    make_folder(scratch("bt"), NULL, 64);
    write_file(scratch("bt/tokenizer.json"), json, strlen(json));
    expect_error(tm_convert(scratch("bt"), scratch("bt.gguf"), &(tm_convert_opts){0}), status, text);
    assert_false(tm_path_exists(scratch("bt.gguf")));
}

static void tokenizers_that_gguf_cannot_hold(void **state) {
    (void)state;
#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
    tokenizer_refused("{\"model\":{\"type\":\"Unigram\"}}", TM_EUNSUPPORTED, "only BPE");
    tokenizer_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":64}}}", TM_EINPUT,
                      "outside of the model's vocabulary (64)");
    tokenizer_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", TM_EINPUT, "token id -1");
    tokenizer_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1}}}", TM_EINPUT, "same id");
    tokenizer_refused("{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"ab\"]}}", TM_EINPUT,
                      "merge");
    tokenizer_refused("{" BYTES ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[[\"a\"]]}}", TM_EINPUT,
                      "two strings");
    tokenizer_refused("{\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1}}}",
                      TM_EUNSUPPORTED, "GGUF cannot hold");
    tokenizer_refused("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                      "\"Regex\":\"x\"}},"
                      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}}",
                      TM_EUNSUPPORTED, "no name for this pre_tokenizer");
    tokenizer_refused("{\"model\":[", TM_EINPUT, "tokenizer.json:1:10");
}

/* ---- failures ---- */

static void nothing_is_left(const char *in, const char *out, const char *dtype, tm_status status, const char *text) {
    tm_status rc = tm_convert(in, scratch(out), &(tm_convert_opts){.dtype = dtype});
    expect_error(rc, status, text);
    assert_int_equal(leftovers(scratch(".")), 0);
}

static void failures_leave_nothing(void **state) {
    (void)state;
    char good[1024]; /* longer-lived than the helper's strings */
    snprintf(good, sizeof good, "%s", fixture("arch_llama"));
    nothing_is_left(scratch("absent"), "f1", NULL, TM_EINPUT, "absent");
    nothing_is_left(good, "f1", "q8_0", TM_EINPUT, "f32, bf16, f16");
    nothing_is_left(good, "f1.gguf", "q3_k", TM_EINPUT, "'q3_k'");
    nothing_is_left(good, "no/such/place.gguf", NULL, TM_EINPUT, "place.gguf");
    OK(tm_make_dirs(scratch("full")));
    write_file(scratch("full/x"), "x", 1);
    nothing_is_left(good, "full", NULL, TM_EINPUT, "is there already");
    write_file(scratch("there.gguf"), "x", 1);
    nothing_is_left(good, "there.gguf", NULL, TM_EINPUT, "is there already");
    OK(tm_make_dirs(scratch("empty")));
    convert(good, scratch("empty/"), NULL); /* an empty folder is filled */
    assert_true(tm_path_exists(scratch("empty/config.json")));
    make_folder(scratch("mamba"), NULL, 64);
    const char *other = "{\"model_type\":\"mamba\"}";
    write_file(scratch("mamba/config.json"), other, strlen(other));
    nothing_is_left(scratch("mamba"), "f2.gguf", NULL, TM_EUNSUPPORTED, "'mamba'");
    make_folder(scratch("cut"), NULL, 64);
    tm_buf st = {0};
    slurp(scratch("cut/model.safetensors"), &st);
    write_file(scratch("cut/model.safetensors"), st.data, st.len - 100);
    nothing_is_left(scratch("cut"), "f3", NULL, TM_EINPUT, "cut off");
    nothing_is_left(scratch("cut"), "f3.gguf", NULL, TM_EINPUT, "cut off");
    tm_buf_free(&st);
    static const char *const outs[] = {"f1", "f1.gguf", "f2.gguf", "f3", "f3.gguf"};
    for (size_t i = 0; i < TM_COUNT(outs); i++) assert_false(tm_path_exists(scratch(outs[i])));
}

static void a_signal_leaves_nothing(void **state) {
    (void)state;
    const volatile sig_atomic_t stop = 1;
    const char *const outs[] = {"stopped", "stopped.gguf"};
    for (size_t i = 0; i < TM_COUNT(outs); i++) {
        tm_status rc = tm_convert(fixture("arch_llama"), scratch(outs[i]), &(tm_convert_opts){.stop = &stop});
        expect_error(rc, TM_ESIGNAL, "stopped by a signal");
        assert_false(tm_path_exists(scratch(outs[i])));
        assert_int_equal(leftovers(scratch(".")), 0);
    }
}

static void shapes_that_contradict_the_configuration(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *text;
    } cases[] = {
        {"\"vocab_size\":64", "\"vocab_size\":63", "is not [63, 32]"},
        {"\"num_attention_heads\":2", "\"num_attention_heads\":1,\"head_dim\":16", "rows, but config.json needs 16"},
        {"\"num_attention_heads\":2", "\"num_attention_heads\":64", "64 heads in 32 dimensions"},
        {"\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false", "'lm_head.weight' is missing"},
        {"\"hidden_size\":32", "\"hidden_size\":-32", "'hidden_size' must be a positive integer"},
        {"\"rope_theta\":10000.0", "\"rope_scaling\":{\"type\":\"dynamic\"}", "RoPE scaling"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_buf c = {0}, changed = {0};
        make_folder(scratch("ct"), NULL, 64);
        slurp(scratch("ct/config.json"), &c);
        char *hit = strstr(c.data, cases[i].from);
        assert_non_null(hit);
        OK(tm_buf_append(&changed, c.data, (size_t)(hit - c.data)));
        OK(tm_buf_append(&changed, cases[i].to, strlen(cases[i].to)));
        hit += strlen(cases[i].from);
        OK(tm_buf_append(&changed, hit, strlen(hit)));
        write_file(scratch("ct/config.json"), changed.data, changed.len);
        expect_error(tm_convert(scratch("ct"), scratch("ct.gguf"), &(tm_convert_opts){0}),
                     i == 5 ? TM_EUNSUPPORTED : TM_EINPUT, cases[i].text);
        tm_buf_free(&c);
        tm_buf_free(&changed);
    }
}

static void same_files(const char *a_path, const char *b_path) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    tm_source *a, *b;
    OK(tm_source_open_bare(&a, a_path));
    OK(tm_source_open_bare(&b, b_path));
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        bool in_a, in_b;
        tm_buf text = {0};
        OK(tm_source_file(a, names[i], &text, &in_a));
        OK(tm_source_file(b, names[i], &text, &in_b));
        if (in_a != in_b) fail_msg("%s is in one only", names[i]);
        tm_buf_free(&text);
    }
    tm_source_close(a);
    tm_source_close(b);
}

static tm_status remove_if_left(void *ctx, const char *name, bool is_dir) {
    (void)ctx, (void)is_dir;
    return strstr(name, "tmp") ? tm_remove_tree(scratch(name)) : TM_OK;
}

/* Each call in turn fails, once and for ever, until a run meets no fault: always a clean failure, and nothing is left.
 */
static void every_call_may_fail(const char *call, const char *kind, const char *in, const char *out) {
    static const char *const lasting[] = {"once", "sticky"};
    for (size_t s = 0; s < 2; s++)
        for (int i = 1, clean = 0;; i++) {
            char spec[96];
            OK(tm_remove_tree(out));
            snprintf(spec, sizeof spec, "%s:%d:%s:%s", call, i, kind, lasting[s]);
            OK(tm_fault_set(spec));
            tm_status rc = tm_convert(in, out, &(tm_convert_opts){0});
            OK(tm_fault_set(NULL));
            if (rc == TM_OK) { /* past the last call, or a failure that did not matter: then OUT is whole */
                assert_true(i > 1);
                same_model(in, out, 0, 0);
                same_files(in, out);
                if (++clean == 30) break;
                continue;
            }
            clean = 0;
            if (rc == TM_EBUG || tm_error_get()->code != rc || tm_error_get()->text[0] == 0)
                fail_msg("%s: %s", spec, tm_error_get()->text);
            tm_error_clear();
            /* Only the last step, to bring the folder's entry to the disk, may fail with OUT there, and whole. */
            if (tm_path_exists(out) && strcmp(call, "fsync") == 0)
                same_model(in, out, 0, 0);
            else if (tm_path_exists(out))
                fail_msg("%s: OUT is there", spec);
            /* Without memory or descriptors for good, a folder cannot even be listed to be removed. */
            if (s == 1 && (strcmp(call, "alloc") == 0 || strcmp(call, "openat") == 0))
                OK(tm_list_dir(scratch("."), remove_if_left, NULL));
            if (leftovers(scratch("."))) fail_msg("%s: something is left", spec);
            assert_true(i < 100000);
        }
}

static void faults_leave_nothing(void **state) {
    (void)state;
    static const char *const calls[][2] = {{"alloc", "fail"}, {"pread", "eio"},  {"pwrite", "enospc"},
                                           {"fsync", "eio"},  {"rename", "eio"}, {"openat", "eacces"}};
    char folder[1024], gguf[1024], out[1024];
    snprintf(folder, sizeof folder, "%s", scratch("fault"));
    snprintf(gguf, sizeof gguf, "%s", scratch("fault.in.gguf"));
    make_folder(folder, "tok_spm", 530);
    convert(folder, gguf, NULL);
    for (size_t i = 0; i < TM_COUNT(calls); i++) {
        snprintf(out, sizeof out, "%s", scratch("fault.out.gguf"));
        every_call_may_fail(calls[i][0], calls[i][1], folder, out);
        snprintf(out, sizeof out, "%s", scratch("fault.out"));
        every_call_may_fail(calls[i][0], calls[i][1], gguf, out);
        if (i < 2) every_call_may_fail(calls[i][0], calls[i][1], TM_TEST_FIXTURES "/peft_qlora/base_nf4", out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(every_type),
        cmocka_unit_test(sixteen_bit_sources_keep_their_type),
        cmocka_unit_test(shards_come_out_as_one_model),
        cmocka_unit_test(other_tensors_go_along),
        cmocka_unit_test(tokenizers_there_and_back),
        cmocka_unit_test(tokenizers_of_families),
        cmocka_unit_test(ways_to_cut),
        cmocka_unit_test(a_tokenizer_as_gemmas),
        cmocka_unit_test(tokenizers_that_gguf_cannot_hold),
        cmocka_unit_test(failures_leave_nothing),
        cmocka_unit_test(a_signal_leaves_nothing),
        cmocka_unit_test(faults_leave_nothing),
        cmocka_unit_test(shapes_that_contradict_the_configuration)};
    if (tm_path_is_dir("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0); /* thousands of small files, each synced */
    return cmocka_run_group_tests_name("convert", tests, make_scratch, remove_scratch);
}

/* What a folder's config.json, tensors and side files may say on their way to GGUF: each wrong value is refused by its
 * name, each other spelling comes back as what it means. */
#include "world.h"
#include "io/file/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ------------------------------------------------------------------------------------------------- */

typedef struct key {
    const char *key, *value;
} key;

static const key plain[] = {{"model_type", "\"llama\""},    {"vocab_size", "64"},       {"hidden_size", "32"},
                            {"intermediate_size", "32"},    {"num_hidden_layers", "1"}, {"num_attention_heads", "2"},
                            {"tie_word_embeddings", "true"}};

/* The plain keys, but for those that are given (value NULL: left out), then the given ones that are new. */
static void write_config(const char *path, const key given[3]) {
    tm_buf text = {0};
    bool used[3] = {0};
    OK(tm_buf_printf(&text, "{\"eos_token_id\": 2"));
    for (size_t i = 0; i < TM_COUNT(plain); i++) {
        const char *value = plain[i].value;
        for (size_t k = 0; k < 3 && given[k].key; k++)
            if (strcmp(given[k].key, plain[i].key) == 0) value = given[k].value, used[k] = true;
        if (value) OK(tm_buf_printf(&text, ", \"%s\": %s", plain[i].key, value));
    }
    for (size_t k = 0; k < 3 && given[k].key; k++)
        if (!used[k]) OK(tm_buf_printf(&text, ", \"%s\": %s", given[k].key, given[k].value));
    OK(tm_buf_printf(&text, "}"));
    write_file(path, text.data, text.len);
    tm_buf_free(&text);
}

static void test_configurations_refused(void **state) {
    static const struct {
        key given[3];
        tm_status status;
        const char *says;
    } rows[] = {
        {{{"model_type", "\"mamba\""}}, TM_EUNSUPPORTED, "'mamba' cannot be written"},
        {{{"model_type", "5"}}, TM_EUNSUPPORTED, "model_type '' cannot be written"},
        {{{"model_type", NULL}}, TM_EUNSUPPORTED, "model_type '' cannot be written"},
        {{{"vocab_size", NULL}}, TM_EINPUT, "'vocab_size' is missing"},
        {{{"vocab_size", "null"}}, TM_EINPUT, "'vocab_size' is missing"},
        {{{"vocab_size", "\"64\""}}, TM_EINPUT, "'vocab_size' must be a positive integer"},
        {{{"hidden_size", "0"}}, TM_EINPUT, "'hidden_size' must be a positive integer"},
        {{{"intermediate_size", "1.5"}}, TM_EINPUT, "'intermediate_size' must be a positive integer"},
        {{{"num_hidden_layers", "4294967296"}}, TM_EINPUT, "'num_hidden_layers' must be a positive integer"},
        {{{"num_attention_heads", "-2"}}, TM_EINPUT, "'num_attention_heads' must be a positive integer"},
        {{{"num_attention_heads", "64"}}, TM_EINPUT, "64 heads in 32 dimensions"},
        {{{"num_key_value_heads", "{}"}}, TM_EINPUT, "'num_key_value_heads' must be a positive integer"},
        {{{"head_dim", "[]"}}, TM_EINPUT, "'head_dim' must be a positive integer"},
        {{{"head_dim", "7"}}, TM_EINPUT, "head_dim must be even"},
        {{{"max_position_embeddings", "0"}}, TM_EINPUT, "'max_position_embeddings' must be a positive integer"},
        {{{"rms_norm_eps", "0"}}, TM_EINPUT, "'rms_norm_eps' must be a positive number"},
        {{{"rms_norm_eps", "\"x\""}}, TM_EINPUT, "'rms_norm_eps' must be a positive number"},
        {{{"rope_theta", "-1"}}, TM_EINPUT, "'rope_theta' must be a positive number"},
        {{{"rope_parameters", "{\"rope_theta\": []}"}}, TM_EINPUT, "'rope_theta' must be a positive number"},
        {{{"rope_scaling", "{\"type\": \"linear\", \"factor\": 0}"}}, TM_EINPUT, "'factor' must be a positive"},
        {{{"rope_scaling", "{\"type\": \"dynamic\", \"factor\": 2}"}}, TM_EUNSUPPORTED, "this RoPE scaling cannot"},
        {{{"rope_scaling", "{\"rope_type\": \"llama3\", \"low_freq_factor\": \"x\"}"}}, TM_EINPUT, "'low_freq_factor'"},
        {{{"rope_scaling", "{\"rope_type\": \"llama3\", \"high_freq_factor\": 0}"}}, TM_EINPUT, "'high_freq_factor'"},
        {{{"rope_scaling", "{\"rope_type\": \"llama3\", \"low_freq_factor\": 4}"}}, TM_EINPUT, "must exceed"},
        {{{"rope_scaling", "{\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 0}"}},
         TM_EINPUT,
         "'original_max_position_embeddings'"},
        {{{"model_type", "\"mistral\""}, {"sliding_window", "0"}}, TM_EINPUT, "'sliding_window' must be a positive"},
        {{{"tie_word_embeddings", "false"}}, TM_EINPUT, "'lm_head.weight' is missing"},
        {{{"tie_word_embeddings", "1"}}, TM_EINPUT, "'lm_head.weight' is missing"},
        {{{"vocab_size", "65"}}, TM_EINPUT, "is not [65, 32] as config.json says"},
        {{{"hidden_size", "64"}}, TM_EINPUT, "is not [64, 64] as config.json says"},
        {{{"num_key_value_heads", "1"}}, TM_EINPUT, "has 32 rows, but config.json needs 16"},
        {{{"head_dim", "65536"}, {"num_attention_heads", "1"}}, TM_EINPUT, "config.json needs 65536"},
    };
    (void)state;
    make_folder(scratch("cfg"), NULL, 64);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        write_config(scratch("cfg/config.json"), rows[i].given);
        expect_error(tm_convert(scratch("cfg"), scratch("cfg.gguf"), &(tm_convert_opts){0}), rows[i].status,
                     rows[i].says);
        assert_false(tm_path_exists(scratch("cfg.gguf")));
    }
}

/* There and back; what the folder that comes back says of `back`. */
static void test_spellings(void **state) {
#define LLAMA3(rest) "{\"rope_type\": \"llama3\", \"factor\": 8" rest "}"
    static const struct {
        key given[3];
        const char *back, *value; /* "rope_scaling.factor" */
    } rows[] = {
        {{{"rope_theta", "5000"}}, "rope_theta", "5000"},
        {{{"rope_theta", "null"}, {"rope_parameters", "null"}}, "rope_theta", "10000"},
        {{{"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 700}"}}, "rope_theta", "700"},
        {{{"rope_scaling", "{\"rope_type\": null}"}}, "rope_theta", "10000"},
        {{{"rope_scaling", "{\"type\": \"linear\", \"factor\": 4}"}}, "rope_scaling.factor", "4"},
        {{{"rope_scaling", LLAMA3("")}}, "rope_scaling.original_max_position_embeddings", "8192"},
        {{{"model_type", "\"mistral\""}, {"sliding_window", "48"}}, "sliding_window", "48"},
        {{{"model_type", "\"mistral\""}, {"sliding_window", "null"}}, "hidden_size", "32"},
        {{{"num_key_value_heads", "null"}, {"head_dim", "null"}}, "num_key_value_heads", "2"},
        {{{"max_position_embeddings", "99"}, {"rms_norm_eps", "0.5"}}, "max_position_embeddings", "99"},
    };
    (void)state;
    make_folder(scratch("sp"), NULL, 64);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        write_config(scratch("sp/config.json"), rows[i].given);
        OK(tm_remove_tree(scratch("sp.back")));
        (void)remove(scratch("sp.gguf"));
        OK(tm_convert(scratch("sp"), scratch("sp.gguf"), &(tm_convert_opts){0}));
        OK(tm_convert(scratch("sp.gguf"), scratch("sp.back"), &(tm_convert_opts){0}));
        tm_json_doc *doc = parse_file(scratch("sp.back/config.json"));
        const char *dot = strchr(rows[i].back, '.'), *name = rows[i].back;
        const tm_json *v = tm_json_get(tm_json_root(doc), dot ? "rope_scaling" : name);
        if (dot) v = tm_json_get(v, dot + 1);
        if (!v || v->type != TM_JSON_NUMBER || v->number != strtod(rows[i].value, NULL))
            fail_msg("row %zu: %s is not %s", i, name, rows[i].value);
        tm_json_free(doc);
    }
}

/* llama3's factors in other numbers than the published ones: the file keeps only what they come to, and the parameters
 * are found again from that. */
static void test_rope_factors_are_solved(void **state) {
    static const struct {
        const char *given;
        double factor, low, high, original;
    } rows[] = {
        {"{\"rope_type\": \"llama3\", \"factor\": 16, \"low_freq_factor\": 2, \"high_freq_factor\": 8,"
         " \"original_max_position_embeddings\": 4096}",
         16, 2, 8, 4096},
        {"{\"rope_type\": \"llama3\", \"factor\": 32, \"low_freq_factor\": 1, \"high_freq_factor\": 4}", 32, 1, 4,
         8192},
    };
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    (void)state;
    make_folder(scratch("rope"), NULL, 64);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        const double want[] = {rows[i].factor, rows[i].low, rows[i].high, rows[i].original};
        write_config(scratch("rope/config.json"),
                     (key[3]){{"rope_scaling", rows[i].given}, {"rope_theta", "500000"}, {"num_attention_heads", "1"}});
        OK(tm_remove_tree(scratch("rope.back")));
        (void)remove(scratch("rope.gguf"));
        OK(tm_convert(scratch("rope"), scratch("rope.gguf"), &(tm_convert_opts){0}));
        OK(tm_convert(scratch("rope.gguf"), scratch("rope.back"), &(tm_convert_opts){0}));
        tm_json_doc *doc = parse_file(scratch("rope.back/config.json"));
        const tm_json *back = tm_json_get(tm_json_root(doc), "rope_scaling");
        for (size_t k = 0; k < TM_COUNT(keys); k++) {
            const tm_json *v = tm_json_get(back, keys[k]);
            if (!v || v->number < want[k] * 0.999 || v->number > want[k] * 1.001)
                fail_msg("%s: %g, not %g", keys[k], v ? v->number : -1, want[k]);
        }
        tm_json_free(doc);
    }
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void write_one(const char *dir, const tm_hf_tensor *t) {
    tm_hf_writer *w;
    OK(tm_hf_writer_create(&w, dir, t, 1, TM_FMT_F32, 0));
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->ndim; i++) n *= t->shape[i];
    for (uint64_t e = 0; e < n; e++) OK(tm_hf_writer_put_f32(w, 0, e, 1, &(float){1}));
    OK(tm_hf_writer_commit(w));
}

static void test_tensors_refused(void **state) {
    static const struct {
        tm_hf_tensor t;
        tm_status status;
        const char *says;
    } rows[] = {
        {{.name = "model.norm.weight", .ndim = 1, .shape = {32}}, TM_EINPUT, "'model.embed_tokens.weight' is missing"},
        {{.name = "model.embed_tokens.weight", .ndim = 1, .shape = {64}}, TM_EINPUT, "is not [64, 32]"},
        {{.name = "model.embed_tokens.weight", .ndim = 2, .shape = {64, 31}}, TM_EINPUT, "is not [64, 32]"},
    };
    (void)state;
    make_folder(scratch("tensor"), NULL, 64);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        write_one(scratch("tensor"), &rows[i].t);
        expect_error(tm_convert(scratch("tensor"), scratch("tensor.gguf"), &(tm_convert_opts){0}), rows[i].status,
                     rows[i].says);
    }
}

/* ---- the ids of special tokens ----------------------------------------------------------------------------------- */

/* "eos_token_id" as one number, as a list, as what is no id; texts as objects. */
static void test_special_ids(void **state) {
    static const char tokenizer[] = "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{"
                                    "\"type\":\"BPE\",\"unk_token\":"
                                    "\"c\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3},\"merges\":[]}}";
    static const char side[] = "{\"bos_token\": {\"content\": \"b\"}, \"pad_token\": {\"content\": 7}}";
    static const struct {
        const char *generation, *eos, *eot; /* ids as text; NULL: not there */
    } rows[] = {
        {"{\"eos_token_id\": [3, 1, \"x\", 3, 99, 1.5]}", "3", "1"},
        {"{\"eos_token_id\": 0}", "0", "2"}, /* 2: of config.json */
        {"{\"eos_token_id\": {}}", "2", NULL},
    };
    (void)state;
    make_folder(scratch("ids"), NULL, 64);
    write_config(scratch("ids/config.json"), (key[3]){{NULL, NULL}});
    write_file(scratch("ids/tokenizer.json"), tokenizer, sizeof tokenizer - 1);
    write_file(scratch("ids/tokenizer_config.json"), side, sizeof side - 1);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        tm_gguf *g;
        uint64_t eos, eot, bos, unk;
        bool has_eos, has_eot, has_bos, has_unk;
        write_file(scratch("ids/generation_config.json"), rows[i].generation, strlen(rows[i].generation));
        (void)remove(scratch("ids.gguf"));
        OK(tm_convert(scratch("ids"), scratch("ids.gguf"), &(tm_convert_opts){0}));
        OK(tm_gguf_open(&g, scratch("ids.gguf")));
        OK(tm_gguf_uint(g, "tokenizer.ggml.eos_token_id", &eos, &has_eos));
        OK(tm_gguf_uint(g, "tokenizer.ggml.eot_token_id", &eot, &has_eot));
        OK(tm_gguf_uint(g, "tokenizer.ggml.bos_token_id", &bos, &has_bos));
        OK(tm_gguf_uint(g, "tokenizer.ggml.unknown_token_id", &unk, &has_unk));
        assert_true(has_eos && eos == strtoull(rows[i].eos, NULL, 10));
        assert_int_equal(has_eot, rows[i].eot != NULL);
        if (has_eot) assert_int_equal(eot, strtoull(rows[i].eot, NULL, 10));
        assert_true(has_bos && bos == 1 && has_unk && unk == 2);
        tm_gguf_close(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configurations_refused),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_rope_factors_are_solved),
        cmocka_unit_test(test_tensors_refused),
        cmocka_unit_test(test_special_ids),
    };
    if (tm_path_is_dir("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests_name("export", tests, make_scratch, remove_scratch);
}

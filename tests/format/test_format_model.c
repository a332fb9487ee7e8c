/* The config.json that is made of a GGUF file means to the model what the folder's own means. */
#include "world.h"
#include "io/file/file.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const folders[] = {
    "llama",    "llama_tied_rope3", "llama_linear", "llama_yarn", "mistral", "qwen2",  "qwen3",  "phi3",
    "phi4mini", "smollm3",          "olmo2",        "granite",    "glm4",    "gemma2", "gemma3", "gpt2"};

static void config_of(tm_model_config *c, const char *path) {
    tm_source *src;
    size_t len;
    OK(tm_source_open_bare(&src, path));
    const char *json = tm_source_config(src, &len);
    OK(tm_model_config_parse(c, json, len, path));
    tm_source_close(src);
}

#define SAME(member)                                                                                                   \
    if (memcmp(&a->member, &b->member, sizeof a->member) != 0) fail_msg("%s: %s differs", folder, #member)

static void same_rope(const tm_rope_config *a, const tm_rope_config *b, const char *folder) {
    SAME(type);
    SAME(theta);
    SAME(factor);
    SAME(low_freq_factor);
    SAME(high_freq_factor);
    SAME(beta_fast);
    SAME(beta_slow);
    SAME(attention_factor);
    SAME(truncate);
    SAME(rotary);
    SAME(original_max_position);
    SAME(n_factors);
    SAME(short_factor);
    SAME(long_factor);
}

/* All but the ids of tokens, which come with the tokenizer. */
static void same_config(const tm_model_config *a, const tm_model_config *b, const char *folder) {
    assert_string_equal(a->model_type, b->model_type);
    SAME(vocab_size);
    SAME(hidden_size);
    SAME(intermediate_size);
    SAME(num_hidden_layers);
    SAME(num_attention_heads);
    SAME(num_key_value_heads);
    SAME(head_dim);
    SAME(max_position_embeddings);
    SAME(sliding_window);
    SAME(windowed);
    SAME(no_rope);
    SAME(tie_word_embeddings);
    SAME(attention_bias);
    SAME(attention_out_bias);
    SAME(mlp_bias);
    SAME(activation);
    SAME(rms_norm_eps);
    SAME(initializer_range);
    SAME(embedding_scale);
    SAME(residual_scale);
    SAME(attention_scale);
    SAME(logits_scale);
    SAME(attention_softcap);
    SAME(final_softcap);
    SAME(temperature);
    SAME(temperature_every);
    SAME(two_ropes);
    same_rope(&a->rope, &b->rope, folder);
    same_rope(&a->rope_windowed, &b->rope_windowed, folder);
}

static void configurations_mean_the_same(void **state) {
    static tm_model_config folder, file;
    (void)state;
    for (size_t i = 0; i < TM_COUNT(folders); i++) {
        char name[64];
        snprintf(name, sizeof name, "arch_%s", folders[i]);
        (void)remove(scratch("m.gguf"));
        convert(fixture(name), scratch("m.gguf"), NULL);
        config_of(&folder, fixture(name));
        config_of(&file, scratch("m.gguf"));
        same_config(&folder, &file, folders[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(configurations_mean_the_same)};
    if (tm_path_is_dir("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests_name("model", tests, make_scratch, remove_scratch);
}

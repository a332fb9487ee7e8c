/* A model of each family in sizes that are multiples of nothing: config.json. There are more layers than a pattern of
 * windows has, and rows are longer than windows and than what a rotary embedding began with. */
#ifndef TEST_MODEL_FAMILIES_H
#define TEST_MODEL_FAMILIES_H

#define ODD_SIZES "\"vocab_size\":211,\"hidden_size\":42,\"intermediate_size\":29,\"num_attention_heads\":3,"
#define ODD(type, kv_heads, layers, more)                                                                              \
    "{\"model_type\":\"" type "\"," ODD_SIZES "\"num_key_value_heads\":" kv_heads ",\"num_hidden_layers\":" layers     \
    "," more "}"

static const struct family {
    const char *name, *json;
} families[] = {
    {"llama", ODD("llama", "1", "2", "\"head_dim\":10,\"attention_bias\":true,\"mlp_bias\":true")},
    {"mistral", ODD("mistral", "3", "2", "\"head_dim\":10,\"sliding_window\":5,\"tie_word_embeddings\":true")},
    {"qwen2", ODD("qwen2", "1", "2", "\"tie_word_embeddings\":true")},
};

#endif

/* A model of each family in sizes that are multiples of nothing: config.json. There are more layers than a pattern of
 * windows has, and rows are longer than windows and than what a rotary embedding began with. */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#define ODD_SIZES "\"vocab_size\":211,\"hidden_size\":42,\"intermediate_size\":29,\"num_attention_heads\":3,"
#define ODD(type, kv_heads, layers, more)                                                                              \
    "{\"model_type\":\"" type "\"," ODD_SIZES "\"num_key_value_heads\":" kv_heads ",\"num_hidden_layers\":" layers     \
    "," more "}"

#define GEMMA4_ROPES                                                                                                   \
    "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.4,"           \
    "\"rope_theta\":3000},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":100}}"

static const struct family {
    const char *name, *json;
} families[] = {
    {"llama", ODD("llama", "1", "2", "\"head_dim\":10,\"attention_bias\":true,\"mlp_bias\":true")},
    {"mistral", ODD("mistral", "3", "2", "\"head_dim\":10,\"sliding_window\":5,\"tie_word_embeddings\":true")},
    {"qwen2", ODD("qwen2", "1", "2", "\"tie_word_embeddings\":true")},
    {"llama linear", ODD("llama", "3", "2", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}")},
    {"llama3", ODD("llama", "1", "2",
                   "\"rope_theta\":500,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                   "\"high_freq_factor\":4,\"original_max_position_embeddings\":16}")},
    {"llama yarn", ODD("llama", "1", "2",
                       "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"rope_theta\":300,"
                       "\"original_max_position_embeddings\":16}")},
    {"qwen3", ODD("qwen3", "1", "2", "\"head_dim\":10,\"tie_word_embeddings\":true")},
    {"qwen3 apart", ODD("qwen3", "3", "2", "\"head_dim\":10,\"attention_bias\":true")},
    {"gemma2", ODD("gemma2", "1", "3",
                   "\"head_dim\":10,\"query_pre_attn_scalar\":7,\"attn_logit_softcapping\":2.0,"
                   "\"final_logit_softcapping\":4.0,\"sliding_window\":5")},
    {"gemma3", ODD("gemma3_text", "1", "4",
                   "\"head_dim\":10,\"query_pre_attn_scalar\":7,\"sliding_window\":5,\"rope_local_base_freq\":100,"
                   "\"rope_theta\":3000,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},\"layer_types\":["
                   "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\"]")},
    {"gemma3 apart", ODD("gemma3_text", "3", "7", "\"head_dim\":10,\"sliding_window\":5,\"sliding_window_pattern\":3")},
    {"gemma4", ODD("gemma4_text", "1", "4",
                   "\"head_dim\":18,\"global_head_dim\":22,\"sliding_window\":5,\"num_kv_shared_layers\":2,"
                   "\"use_double_wide_mlp\":true,\"final_logit_softcapping\":4.0,\"hidden_size_per_layer_input\":23,"
                   "\"vocab_size_per_layer_input\":523,\"layer_types\":[\"sliding_attention\",\"full_attention\","
                   "\"sliding_attention\",\"full_attention\"]," GEMMA4_ROPES)},
    {"gemma4 keys", ODD("gemma4_text", "3", "3",
                        "\"head_dim\":22,\"global_head_dim\":18,\"num_global_key_value_heads\":1,\"sliding_window\":5,"
                        "\"attention_k_eq_v\":true,\"hidden_size_per_layer_input\":0,\"attention_bias\":true,"
                        "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]," GEMMA4_ROPES)},
    {"phi3", ODD("phi3", "3", "2", "\"sliding_window\":5")},
    {"phi3 longrope", ODD("phi3", "1", "2",
                          "\"partial_rotary_factor\":0.75,\"original_max_position_embeddings\":16,"
                          "\"max_position_embeddings\":96,\"tie_word_embeddings\":true,\"rope_scaling\":{\"type\":"
                          "\"longrope\",\"short_factor\":[1,1.1,1.2,1.3,1.4],\"long_factor\":[1,1.7,2.3,3.1,4.3]}")},
    {"smollm3", ODD("smollm3", "1", "3", "\"no_rope_layers\":[1,0,1],\"attention_bias\":true")},
    {"gpt2", "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_embd\":42,\"n_inner\":29,\"n_head\":3,\"n_layer\":3,"
             "\"n_positions\":90}"},
    {"olmo2", ODD("olmo2", "1", "2", "\"tie_word_embeddings\":false")},
    {"olmo2 apart", ODD("olmo2", "3", "2", "\"attention_bias\":true")},
    {"granite", ODD("granite", "1", "2",
                    "\"embedding_multiplier\":3,\"attention_multiplier\":0.3,\"residual_multiplier\":0.4,"
                    "\"logits_scaling\":1.7,\"tie_word_embeddings\":true")},
    {"glm4", ODD("glm4", "1", "2", "\"head_dim\":12,\"attention_bias\":true,\"partial_rotary_factor\":0.5")},
    {"ministral3", ODD("ministral3", "1", "2",
                       "\"head_dim\":10,\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1000,\"factor\":4,"
                       "\"original_max_position_embeddings\":16,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1,"
                       "\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}")},
    {"starcoder2", ODD("starcoder2", "1", "2", "\"sliding_window\":5")},
    {"stablelm", ODD("stablelm", "3", "2", "\"use_qkv_bias\":true,\"partial_rotary_factor\":0.6")},
    {"seed_oss", ODD("seed_oss", "1", "2", "\"head_dim\":10,\"attention_out_bias\":true,\"mlp_bias\":true")},
};

#endif

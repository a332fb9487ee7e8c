/* SmolLM3: Llama in which some layers have no rotary embedding. */
#include "model/arch_internal.h"

/* no_rope_layers has 1 where a layer HAS it; without the key every no_rope_layer_interval-th layer has none. */
static tm_status parse_smollm3(const model_parser *p, tm_model_config *c) {
    uint32_t every;
    bool window;
    const tm_json *has;
    TM_TRY(model_parse_biases(p, c));
    TM_TRY(model_key_u32(p, "no_rope_layer_interval", 1, INT32_MAX, 4, &every));
    TM_TRY(model_key_layers(p, c, "no_rope_layers", &has));
    for (uint32_t l = 0; l < c->num_hidden_layers; l++, has = has ? has->next : NULL) {
        if (has && (has->type != TM_JSON_NUMBER || (has->number != 0 && has->number != 1)))
            return model_key_bad(p, has, "no_rope_layers", "an array of 0 and 1");
        if (has ? has->number == 0 : (l + 1) % every == 0) model_layer_add(&c->no_rope, l);
    }
    TM_TRY(model_key_bool(p, "use_sliding_window", false, &window));
    return window ? model_parse_window(p, c, 4096, 0) : TM_OK;
}

const model_arch model_arch_smollm3 = {"smollm3",
                                       .kv_heads = 4,
                                       .positions = 32768,
                                       .tied = true,
                                       .parse = parse_smollm3,
                                       .decoder = &model_decoder_llama,
                                       .describe = model_describe_decoder};

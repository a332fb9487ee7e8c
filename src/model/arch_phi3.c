/* Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with q, k, v in one tensor, gate and up in another; a part of each head
 * turns, with factors by length (longrope). */
#include "model/arch_internal.h"

/* A window where there is the key: of all layers. */
static tm_status parse_phi3(const model_parser *p, tm_model_config *c) {
    return model_parse_window(p, c, 0, 0);
}

static const model_decoder phi3 = {
    MODEL_USUAL_NAMES,
    .module = {MODEL_USUAL_NORMS, [MODULE_QKV] = "self_attn.qkv_proj", [MODULE_O] = "self_attn.o_proj",
               [MODULE_GATE_UP] = "mlp.gate_up_proj", [MODULE_DOWN] = "mlp.down_proj"}};

const model_arch model_arch_phi3 = {"phi3",           .positions = 4096,
                                    .epsilon = 1e-5,  .parse = parse_phi3,
                                    .decoder = &phi3, .describe = model_describe_decoder};

/* The frozen base in 4 bits: "quantization", or the names of ms-swift and transformers. */
#include "config/config_internal.h"

#include <string.h>

/* What asks for 4 bits without saying which. */
static const cfg_value *four_bits(cfg_state *s) {
    const cfg_value *bits = cfg_given(s, "quant_bits"), *load = cfg_given(s, "load_in_4bit");
    char x[64];
    if (bits && bits->node->integer != 4 && bits->node->integer != 0)
        cfg_unsupported(s, bits, "\"quant_bits\" %s: a frozen base has 4 bits (nf4, fp4), or lies as its files have it",
                        cfg_show(bits, x, sizeof x));
    if (bits && bits->node->integer == 4) return bits;
    return load && load->node->boolean ? load : NULL;
}

/* Two spellings; `flat` makes a difference beside what asks for 4 bits alone. */
static const cfg_value *either(cfg_state *s, const char *key, const char *flat, bool asked) {
    const cfg_value *own = cfg_given(s, key), *other = cfg_given(s, flat);
    if (own && other && asked && !cfg_same(own->node, other->node)) cfg_mismatch(s, key, own, flat, other);
    return own ? own : asked ? other : NULL;
}

static void check_compute(cfg_state *s) {
    const cfg_value *v = cfg_given(s, "bnb_4bit_compute_dtype");
    if (v && cfg_dtype(s, "bnb_4bit_compute_dtype") != s->cfg->pub.precision)
        cfg_wrong(s, v,
                  "\"bnb_4bit_compute_dtype\" is not \"precision\"; all products are of one type, make them equal");
}

void config_resolve_quantization(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    const cfg_value *section = cfg_raw(s, "quantization"), *bits = four_bits(s);
    bool on = bits || (section && section->node->count > 0) || cfg_given(s, "quantization.type") ||
              cfg_given(s, "quantization.double_quant");
    const cfg_value *type = either(s, "quantization.type", "bnb_4bit_quant_type", bits != NULL);
    const cfg_value *twice = either(s, "quantization.double_quant", "bnb_4bit_use_double_quant", bits != NULL);
    const schema_row *row = &schema_rows[schema_index("quantization.type")];
    c->quantization.type = !on    ? TM_QUANTIZE_NONE
                           : type ? (tm_quantize)schema_choice(row, type->node->text, type->node->len)
                                  : TM_QUANTIZE_NF4;
    c->quantization.double_quant = twice ? twice->node->boolean : true;
    if (bits && c->quantization.type == TM_QUANTIZE_NONE && type)
        cfg_mismatch(s, bits->spelled, bits, type->spelled, type);
    if (bits) check_compute(s);
}

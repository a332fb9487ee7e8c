/* Creation, and the read-only view of the tables. */
#include "model/arch_internal.h"

_Static_assert((int)TM_F32 == (int)TM_ELEM_F32 && (int)TM_BF16 == (int)TM_ELEM_BF16 && (int)TM_F16 == (int)TM_ELEM_F16,
               "compute types are kernel types");

static tm_status prepare_rope(tm_model *m) {
    const tm_model_config *c = &m->config;
    tm_rope_frequencies(&m->rope, c->head_dim, c->rope_theta);
    if (c->rope_type == TM_ROPE_LINEAR) tm_rope_scale_linear(&m->rope, c->rope_factor);
    if (c->rope_type == TM_ROPE_LLAMA3)
        tm_rope_scale_llama3(&m->rope, c->rope_factor, c->rope_low_freq_factor, c->rope_high_freq_factor,
                             c->rope_original_max_position);
    return tm_rope_fill(&m->rope, c->max_position_embeddings);
}

tm_status model_create_fused(tm_model **out, const tm_model_config *config, tm_dtype compute, uint64_t fused_elements) {
    *out = NULL;
    const model_arch *arch = model_arch_find(config->model_type);
    if (!arch) return tm_fail(TM_EBUG, "no architecture \"%s\"", config->model_type);
    tm_model *m = tm_calloc(1, sizeof *m);
    if (!m) return tm_nomem(sizeof *m);
    m->config = *config;
    m->compute = compute;
    m->fused_elements = fused_elements;
    tm_model_set_sizes(m, &(tm_kernel_sizes){0});
    tm_status rc = model_build_tables(m, arch->describe);
    if (rc == TM_OK) rc = prepare_rope(m);
    if (rc != TM_OK) {
        tm_model_free(m);
        return rc;
    }
    *out = m;
    return TM_OK;
}

void tm_model_set_sizes(tm_model *m, const tm_kernel_sizes *sizes) {
    m->sizes = *sizes;
    if (!m->sizes.norm_workspace) m->sizes.norm_workspace = tm_norm_workspace;
    if (!m->sizes.attention_workspace) m->sizes.attention_workspace = tm_attention_workspace;
    m->token_chunk = sizes->token_chunk ? sizes->token_chunk : MODEL_TOKEN_CHUNK;
    m->vocab_block = sizes->vocab_block ? sizes->vocab_block : MODEL_VOCAB_BLOCK;
}

tm_status tm_model_create(tm_model **out, const tm_model_config *config, tm_dtype compute) {
    return model_create_fused(out, config, compute, MODEL_FUSED_ELEMENTS);
}

void tm_model_free(tm_model *m) {
    if (!m) return;
    tm_rope_free(&m->rope);
    model_free_tables(m);
    tm_free(m);
}

const tm_model_config *tm_model_get_config(const tm_model *m) {
    return &m->config;
}
tm_dtype tm_model_dtype(const tm_model *m) {
    return m->compute;
}
uint32_t tm_model_units(const tm_model *m) {
    return m->n_units;
}
const tm_unit *tm_model_unit(const tm_model *m, uint32_t u) {
    return &m->unit[u];
}
uint32_t tm_model_parts(const tm_model *m) {
    return m->n_parts;
}
const tm_part *tm_model_part(const tm_model *m, uint32_t p) {
    return &m->part[p];
}
uint32_t tm_model_tensors(const tm_model *m) {
    return m->n_tensors;
}
const tm_tensor *tm_model_tensor(const tm_model *m, uint32_t t) {
    return &m->tensor[t];
}
uint64_t tm_model_parameters(const tm_model *m) {
    return m->parameters;
}
const tm_segment *tm_model_tensor_segments(const tm_model *m, uint32_t t) {
    return m->by_tensor + m->tensor[t].first_segment;
}
const tm_segment *tm_model_part_segments(const tm_model *m, uint32_t p) {
    return m->by_part + m->part[p].first_segment;
}

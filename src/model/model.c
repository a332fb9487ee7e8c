/* Creation, and the read-only view of the tables. */
#include "base/ordered.h"
#include "model/arch_internal.h"

#include <string.h>

_Static_assert((int)TM_F32 == (int)TM_ELEM_F32 && (int)TM_BF16 == (int)TM_ELEM_BF16 && (int)TM_F16 == (int)TM_ELEM_F16,
               "compute types are kernel types");

static tm_status prepare_rope(const tm_model *m, const model_decoder *d, const tm_rope_config *c, tm_rope *r) {
    tm_rope_frequencies_part(r, c->head_dim, c->rotary, c->theta);
    r->interleaved = d->interleaved;
    r->factor = (float)c->attention_factor;
    if (c->type == TM_ROPE_LINEAR) tm_rope_scale_linear(r, c->factor);
    if (c->type == TM_ROPE_PROPORTIONAL) tm_rope_scale_first(r, c->pairs, c->factor);
    if (c->type == TM_ROPE_LLAMA3)
        tm_rope_scale_llama3(r, c->factor, c->low_freq_factor, c->high_freq_factor, c->original_max_position);
    if (c->type == TM_ROPE_YARN)
        tm_rope_scale_yarn(r, &(tm_yarn){.theta = c->theta,
                                         .factor = c->factor,
                                         .original = c->original_max_position,
                                         .beta_fast = c->beta_fast,
                                         .beta_slow = c->beta_slow,
                                         .truncate = c->truncate});
    if (c->type == TM_ROPE_LONGROPE) tm_rope_scale_each(r, c->short_factor, c->n_factors, c->theta);
    return tm_rope_fill(r, m->config.max_position_embeddings);
}

/* The same, for rows longer than the model was trained on first. */
static tm_status prepare_long(const tm_model *m, const model_decoder *d, const tm_rope_config *c, tm_rope *r) {
    tm_rope_config longer = *c;
    memcpy(longer.short_factor, c->long_factor, sizeof longer.short_factor);
    return prepare_rope(m, d, &longer, r);
}

static tm_status prepare_ropes(tm_model *m, const model_decoder *d) {
    const tm_rope_config *c[] = {&m->config.rope, &m->config.rope_windowed};
    for (unsigned i = 0; !d->no_rotary && i < (m->config.two_ropes ? 2 : 1); i++) {
        TM_TRY(prepare_rope(m, d, c[i], &m->rope[i]));
        if (c[i]->type != TM_ROPE_LONGROPE) continue;
        m->long_rows[i] = c[i]->original_max_position;
        TM_TRY(prepare_long(m, d, c[i], &m->rope[2 + i]));
    }
    return TM_OK;
}

static tm_status create(tm_model **out, const tm_model_config *config, tm_dtype compute, uint64_t fused_elements,
                        const tm_model_roles *roles) {
    *out = NULL;
    const model_arch *arch = model_arch_find(config->model_type);
    if (!arch) return tm_fail(TM_EBUG, "no architecture \"%s\"", config->model_type);
    tm_model *m = tm_calloc(1, sizeof *m);
    if (!m) return tm_nomem(sizeof *m);
    m->config = *config;
    m->compute = compute;
    m->fused_elements = fused_elements;
    m->dropped = roles ? (uint32_t)(roles->dropout * 65536 + 0.5) : 0;
    m->dropout_seed = roles ? roles->seed : 0;
    m->transposed = arch->decoder->transposed;
    tm_model_set_sizes(m, &(tm_kernel_sizes){0});
    tm_status rc = model_build_tables(m, arch, roles);
    if (rc == TM_OK) rc = prepare_ropes(m, arch->decoder);
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

void tm_model_set_positions(tm_model *m, uint32_t positions) {
    m->positions = positions;
}

tm_status tm_model_create(tm_model **out, const tm_model_config *config, tm_dtype compute) {
    return create(out, config, compute, MODEL_FUSED_ELEMENTS, NULL);
}

tm_status tm_model_create_roles(tm_model **out, const tm_model_config *config, tm_dtype compute,
                                const tm_model_roles *roles) {
    return create(out, config, compute, MODEL_FUSED_ELEMENTS, roles);
}

tm_status model_create_fused(tm_model **out, const tm_model_config *config, tm_dtype compute, uint64_t fused_elements) {
    return create(out, config, compute, fused_elements, NULL);
}

void tm_model_free(tm_model *m) {
    if (!m) return;
    for (size_t i = 0; i < TM_COUNT(m->rope); i++) tm_rope_free(&m->rope[i]);
    model_free_tables(m);
    tm_free(m);
}

/* Of a stage that multiplies by no matrix it is 0. */
static void add_width(tm_products *p, uint64_t width, bool *all) {
    if (width == 0) return;
    for (uint32_t i = 0; i < p->n_widths; i++)
        if (p->width[i] == width) return;
    *all &= p->n_widths < TM_PRODUCT_WIDTHS;
    if (*all) p->width[p->n_widths++] = width;
}

tm_products tm_model_products(const tm_model *m, uint64_t tokens) {
    tm_products p = {
        .type = model_elem(m), .rows = tm_min_u64(tokens, m->token_chunk), .hidden = m->config.hidden_size};
    bool all = true;
    add_width(&p, p.hidden, &all);
    for (uint32_t i = 0; i < m->n_stages; i++) {
        const stage_spec *s = &m->spec[i];
        if (s->kind->traits) continue; /* of the vocabulary: in blocks */
        p.inner = tm_max_u64(p.inner, s->row_columns);
        p.apart |= s->columns < s->row_columns;
        add_width(&p, s->columns, &all);
        add_width(&p, s->width, &all);
    }
    if (!all) p.n_widths = 0;
    return p;
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
/* The last by name first. */
static inline bool comes_later(const void *m, uint32_t a, uint32_t b) {
    return strcmp(tm_model_tensor(m, a)->name, tm_model_tensor(m, b)->name) > 0;
}
TM_HEAP(names, uint32_t, comes_later)

tm_status tm_model_sort_names(const tm_model *m, uint32_t **order) {
    size_t n = m->n_tensors;
    uint32_t *o = *order = tm_malloc((n + 1) * sizeof *o);
    if (!o) return tm_nomem(n * sizeof *o);
    for (uint32_t i = 0; i < n; i++) o[i] = i;
    names_make(o, n, m);
    while (n > 0) {
        uint32_t last = names_pop(o, &n, m);
        o[n] = last;
    }
    return TM_OK;
}
uint64_t tm_model_parameters(const tm_model *m) {
    return m->parameters;
}
uint64_t tm_model_learning_parameters(const tm_model *m) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < m->n_tensors; t++) n += m->tensor[t].learns ? m->tensor[t].elements : 0;
    return n;
}
const tm_segment *tm_model_tensor_segments(const tm_model *m, uint32_t t) {
    return m->by_tensor + m->tensor[t].first_segment;
}
static bool stage_packs(const tm_stage *s, uint32_t part) {
    static const stage_code kinds[] = {STAGE_IN, STAGE_OUT, STAGE_GLU_OUT, STAGE_EMBED, STAGE_HEAD};
    bool multiplies = false;
    for (unsigned i = 1; i < s->n_parts; i++)
        if (s->part[i] == part) return false;
    if (s->part[0] != part) return true;
    for (size_t i = 0; i < TM_COUNT(kinds); i++) multiplies |= s->spec->kind == model_stage_kind(kinds[i]);
    return multiplies && !s->spec->transposed && !s->spec->magnitude;
}

bool tm_model_part_packs(const tm_model *m, uint32_t p) {
    for (uint32_t u = 0; u < m->n_units; u++)
        for (uint32_t i = 0; i < m->unit[u].n_stages; i++)
            if (!stage_packs(&m->unit[u].stage[i], p)) return false;
    return true;
}

const tm_segment *tm_model_part_segments(const tm_model *m, uint32_t p) {
    return m->by_part + m->part[p].first_segment;
}

/* Work of a stage: what its seconds are predicted from, and which stages take the same. */
#include "model/model_internal.h"

#include <stdio.h>
#include <string.h>

/* Query-key pairs that causal attention looks at; window 0: none. */
static double attention_pairs(uint32_t window, uint32_t rows, uint32_t seq) {
    double s = seq, w = window && window < seq ? window : s;
    return rows * (w * (w + 1) / 2 + (s - w) * w);
}

tm_load tm_model_load(const tm_model_config *c, uint32_t rows, uint32_t seq, uint32_t tokens) {
    return (tm_load){.rows = rows,
                     .tokens = tokens,
                     .labels = (double)rows * seq,
                     .pairs = attention_pairs(0, rows, seq),
                     .window_pairs = attention_pairs(c->sliding_window, rows, seq)};
}

double model_product_flops(const stage_spec *s, bool backward, const tm_load *load) {
    int products = backward ? !(s->without & WITHOUT_MATRIX) + !(s->without & WITHOUT_PRODUCT) : 1;
    return 2 * load->tokens * (double)(s->width * s->columns) * products + model_adapter_flops(s, backward, load);
}

static double slot_bytes(const tm_unit *u, const tm_slot_use *use, uint32_t n, double tokens) {
    double bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const tm_slot *slot = &u->slot[use[i].slot];
        bytes += tokens * (use[i].grad ? slot->grad_bytes : slot->bytes) * (use[i].access == TM_UPDATE ? 2 : 1);
    }
    return bytes;
}

tm_work tm_stage_work(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, const tm_load *load) {
    const tm_unit *u = &m->unit[unit];
    const tm_stage *s = &u->stage[stage];
    const stage_kind *kind = s->spec->kind;
    if (backward && !s->has_backward) return (tm_work){.flops = 0};
    double tokens = load->tokens, width = (double)tm_dtype_bytes(m->compute);
    tm_work w = {.flops = kind->flops ? kind->flops(s->spec, backward, load) : 0};
    w.bytes = slot_bytes(u, backward ? s->backward : s->forward, backward ? s->n_backward : s->n_forward, tokens);
    for (uint32_t i = 0; i < s->n_parts; i++) {
        double elements = (double)m->part[s->part[i]].elements;
        if (s->spec->rank && i + 1U == s->n_parts) /* of all adapters of the unit it uses its own */
            elements = (double)(s->spec->rank * (s->spec->width + s->spec->columns));
        if (kind->traits & STAGE_LOOKS_UP) /* rows of its share */
            elements = tokens * (double)(s->spec->width * s->spec->columns) / (double)s->spec->row_columns;
        if (backward ? s->part_in_backward[i] : s->part_in_forward[i]) w.bytes += elements * width;
        if (backward && s->part_gradient[i]) w.bytes += elements * 4 * 2;
    }
    return w;
}

static bool turns_plainly(const tm_rope *r) {
    return r->rotary == r->head_dim && !r->interleaved && r->factor == 1;
}

static bool is_scaled(const stage_spec *s) {
    return s->kind == model_stage_kind(STAGE_POST) && s->scalar != NO_VECTOR;
}

static uint32_t needs_of(const tm_model *m, const stage_spec *s) {
    const stage_kind *kind = s->kind;
    bool norm = s->norm != NO_VECTOR && (s->norm_kind != TM_NORM_RMS || kind == model_stage_kind(STAGE_QK) ||
                                         kind == model_stage_kind(STAGE_POST));
    bool turns = s->rope != NO_ROPE && (s->rotated || kind == model_stage_kind(STAGE_ATTENTION));
    bool glu = kind == model_stage_kind(STAGE_GLU_OUT), embed = kind == model_stage_kind(STAGE_EMBED);
    bool embeds = kind == model_stage_kind(STAGE_POSITIONS) || (embed && (s->scale != 1 || s->adds));
    bool adapter = (s->rank && (s->dropped || s->magnitude)) || kind == model_stage_kind(STAGE_EMBED_ADAPTER);
    return (uint32_t)norm << TM_KERNEL_NORMS | (uint32_t)adapter << TM_KERNEL_ADAPTERS |
           (uint32_t)(turns && !turns_plainly(&m->rope[s->rope])) << TM_KERNEL_ROTARY |
           (uint32_t)(glu && (s->plain || s->values != NO_SLOT || s->activation != TM_ACT_SILU))
               << TM_KERNEL_ACTIVATIONS |
           (uint32_t)(s->softcap != 0) << TM_KERNEL_SOFTCAPS |
           (uint32_t)(s->temperature_every != 0) << TM_KERNEL_TEMPERATURE |
           (uint32_t)(kind == model_stage_kind(STAGE_ATTENTION) && s->values != s->in) << TM_KERNEL_APART |
           (uint32_t)embeds << TM_KERNEL_EMBEDDINGS | (uint32_t)(s->head_dim > 256) << TM_KERNEL_WIDE_HEADS |
           (uint32_t)is_scaled(s) << TM_KERNEL_SCALES;
}

uint32_t tm_model_needs(const tm_model *m) {
    uint32_t all = 0;
    for (uint32_t i = 0; i < m->n_stages; i++) all |= needs_of(m, &m->spec[i]);
    return all;
}

/* Without what takes no time: which columns of a factor, and the share of the vocabulary; the first that looks up has
 * more to do than the others. */
static stage_spec comparable(const stage_spec *s) {
    stage_spec w = *s;
    w.up_column = 0;
    if (!(s->kind->traits & STAGE_OF_VOCABULARY)) return w;
    w.column = (s->kind->traits & STAGE_LOOKS_UP) && s->column > 0;
    w.columns = 0;
    return w;
}

static bool same_uses(const tm_slot_use *a, const tm_slot_use *b, unsigned n, unsigned m) {
    return n == m && memcmp(a, b, n * sizeof *a) == 0;
}

bool tm_stage_alike(const tm_stage *a, const tm_stage *b) {
    stage_spec x = comparable(a->spec), y = comparable(b->spec);
    return memcmp(&x, &y, sizeof x) == 0 && same_uses(a->forward, b->forward, a->n_forward, b->n_forward) &&
           same_uses(a->backward, b->backward, a->n_backward, b->n_backward);
}

static bool is_special(const stage_spec *s) {
    return s->up_row || s->kv_apart || s->keys_are_values || s->adds || is_scaled(s);
}

void tm_stage_signature(const tm_stage *stage, char *buf, size_t cap) {
    const stage_spec *s = stage->spec;
    bool more =
        s->norm_kind || s->activation || s->transposed || s->plain || s->norm_whole || s->softcap != 0 || is_special(s);
    int n = snprintf(buf, cap, "%s w%llu c%llu+%llu/%llu n%d b%d t%u a%u k%u d%u s%u", s->kind->name,
                     (unsigned long long)s->width, (unsigned long long)s->column, (unsigned long long)s->columns,
                     (unsigned long long)s->row_columns, s->normed ? 2 : s->norm != NO_VECTOR, s->bias != NO_VECTOR,
                     s->rotated, s->heads, s->kv_heads, s->head_dim, s->window);
    if (more && n > 0 && (size_t)n < cap)
        snprintf(buf + n, cap - (size_t)n, " K%u A%u%s%s%s%s", s->norm_kind, s->activation,
                 s->transposed ? " transposed" : "", s->plain ? " plain" : "", s->norm_whole ? " whole" : "",
                 s->softcap != 0 ? " capped" : "");
    size_t at = strlen(buf);
    if (s->without && at < cap) snprintf(buf + at, cap - at, " f%u", s->without);
    at = strlen(buf);
    if (s->rank && at < cap)
        snprintf(buf + at, cap - at, " rank%u%s%s%s", s->rank, s->first_a ? " pissa" : "", s->magnitude ? " dora" : "",
                 s->dropped ? " drops" : "");
    at = strlen(buf);
    if (is_special(s) && at < cap)
        snprintf(buf + at, cap - at, " u%llu%s%s%s%s%s", (unsigned long long)s->up_row, s->kv_apart ? " apart" : "",
                 s->kv_apart && s->values == NO_SLOT ? " queries" : "", s->keys_are_values ? " keys" : "",
                 s->adds ? " adds" : "", is_scaled(s) ? " scaled" : "");
}

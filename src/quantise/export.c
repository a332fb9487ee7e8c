/* What is asked of the room while a model is written: a walk, and at each block codes for its matrices, or how much
 * columns matter. */
#include "quantise/export_internal.h"

#include <math.h>
#include <string.h>

struct tm_calibration {
    tm_calibration_args args;
    tm_calibrated asked;
    float **importance; /* per tensor of the source; NULL: not known */
    uint32_t n;
};

uint64_t quantise_rows_at_once(uint64_t rows, uint64_t width) {
    enum { ELEMENTS = 1 << 20 };
    return tm_max_u64(1, tm_min_u64(rows, ELEMENTS / width));
}

/* ---- a packed folder ---- */

static tm_status pack_blocks(quantise_job *q) {
    walk *w = &q->w;
    uint32_t blocks = walk_blocks(w);
    for (uint32_t b = 0; b < blocks; b++) {
        bool last = b + 1 == blocks, gptq = q->c->method == TM_PACK_GPTQ;
        TM_TRY(walk_enter(w, b));
        TM_TRY(walk_pass(w, true, !gptq && !last));
        TM_TRY(gptq ? gptq_block(q, !last) : awq_block(q));
        if (gptq && !last) TM_TRY(walk_pass(w, false, true));
    }
    return TM_OK;
}

/* ---- importance ---- */

static tm_status keep_importance(tm_calibration *c, const walk *w) {
    for (uint32_t i = 0; i < w->n_matrices; i++) {
        const walk_matrix *x = &w->matrix[i];
        const walk_input *in = &w->input[x->input];
        float *mean = c->importance[x->source] = tm_malloc(in->width * sizeof *mean);
        if (!mean) return tm_nomem(in->width * sizeof *mean);
        for (uint64_t k = 0; k < in->width; k++) mean[k] = (float)(in->square[k] / (double)w->tokens);
    }
    return TM_OK;
}

static void forget_importance(tm_calibration *c) {
    for (uint32_t i = 0; i < c->n; i++) tm_free(c->importance[i]);
    tm_free(c->importance);
    c->importance = NULL;
    c->n = 0;
}

static tm_status weigh_blocks(tm_calibration *c, quantise_job *q) {
    forget_importance(c);
    c->n = tm_source_tensors(q->c->src);
    c->importance = tm_calloc(c->n + 1, sizeof *c->importance);
    if (!c->importance) return tm_nomem(c->n * sizeof *c->importance);
    for (uint32_t b = 0; b < walk_blocks(&q->w); b++) {
        TM_TRY(walk_enter(&q->w, b));
        TM_TRY(walk_pass(&q->w, true, b + 1 < walk_blocks(&q->w)));
        TM_TRY(keep_importance(c, &q->w));
    }
    return TM_OK;
}

static const float *importance(void *ctx, uint32_t tensor) {
    const tm_calibration *c = ctx;
    return tensor < c->n ? c->importance[tensor] : NULL;
}

/* ---- the whole ---- */

/* In bf16 where the model is in it, and its weights are no more than that. */
static tm_dtype choose_type(const tm_source *src) {
    uint64_t wide = 0, all = 0;
    for (uint32_t i = 0; i < tm_source_tensors(src); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(src, i);
        all += t->elements;
        wide += t->fmt == TM_FMT_BF16 ? 0 : t->elements;
    }
    return 2 * wide < all ? TM_BF16 : TM_F32;
}

static tm_status find_vocabulary(const tm_source *src, uint32_t *vocabulary) {
    tm_model_config c;
    size_t len;
    const char *json = tm_source_config(src, &len);
    TM_TRY(tm_model_config_parse(&c, json, len, "config.json"));
    *vocabulary = c.vocab_size;
    return TM_OK;
}

/* What the process has now, beside what it had and gave back, and what products take. */
static uint64_t fixed_bytes(tm_dtype type) {
    const uint64_t program = 48 * TM_MIB;
    const tm_products products = {.type = (tm_elem)type, .rows = 2048, .hidden = 8192, .inner = 32768};
    uint64_t now = tm_min_u64(tm_mem_resident_peak_bytes(), tm_mem_live_bytes() + program);
    return now + tm_kernels_resident_bytes(&products);
}

/* What a matrix needs, of whatever width (rows are the more the shorter they are), and scales of inputs: those of a block
 * and one that is tried. */
static uint64_t most_scratch(const quantise_job *q) {
    uint64_t most = 0, widest = 0;
    for (uint32_t i = 0; i < tm_source_tensors(q->c->src); i++) {
        if (!tm_codes_wants(q->c->to, i)) continue;
        uint64_t width = tm_source_tensor_get(q->c->src, i)->shape[1];
        most = tm_max_u64(most, quantise_scratch_bytes(q, width));
        widest = tm_max_u64(widest, width);
    }
    return most + (WALK_INPUTS + 1) * tm_round_up(widest * sizeof(float), 64);
}

static tm_status open_walk(const tm_calibration *c, quantise_job *q, const id_rows *rows) {
    const tm_dtype type = choose_type(q->c->src);
    TM_TRY(tm_kernels_init(0, (tm_elem)type));
    uint64_t fixed = fixed_bytes(type), budget = c->args.host_bytes;
    if (budget == UINT64_MAX) budget = fixed + tm_mem_available_bytes() / 5 * 4;
    q->scratch_bytes = q->c->to ? most_scratch(q) : 0;
    walk_opts o = {.src = q->c->src,
                   .rows = rows,
                   .compute = type,
                   .products = q->c->to != NULL,
                   .twice = q->c->method == TM_PACK_GPTQ,
                   .work = !q->c->to                      ? NULL
                           : q->c->method == TM_PACK_GPTQ ? gptq_work
                                                          : awq_work,
                   .room_bytes = budget > fixed ? budget - fixed : 0,
                   .path = q->path.data ? q->path.data : q->c->scratch,
                   .other_bytes = q->scratch_bytes,
                   .at = q->c->at,
                   .ctx = q->c->ctx};
    TM_TRY(walk_open(&q->w, &o, fixed));
    q->scratch = q->scratch_bytes ? tm_malloc(q->scratch_bytes) : NULL;
    return q->scratch || !q->scratch_bytes ? TM_OK : tm_nomem(q->scratch_bytes);
}

static tm_status run(void *ctx, const tm_calibrating *asked) {
    tm_calibration *c = ctx;
    quantise_job q = {.c = asked};
    id_rows rows = {0};
    uint32_t vocabulary;
    tm_status rc;
    if (asked->to) q.o = (nearest_opts){tm_codes_group(asked->to), tm_codes_scale_fmt(asked->to)};
    if (c->args.offload_path) TM_GO(tm_buf_printf(&q.path, "%s/tidemill.activations", c->args.offload_path));
    TM_GO(find_vocabulary(asked->src, &vocabulary));
    TM_GO(id_rows_read(&rows, asked->src, vocabulary, &c->args));
    TM_GO(open_walk(c, &q, &rows));
    rc = asked->to ? pack_blocks(&q) : weigh_blocks(c, &q);
done:
    walk_close(&q.w);
    id_rows_free(&rows);
    tm_free(q.scratch);
    tm_buf_free(&q.path);
    return rc;
}

tm_status tm_calibration_open(tm_calibration **out, const tm_calibration_args *args) {
    tm_calibration *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    c->args = *args;
    c->asked = (tm_calibrated){.run = run, .importance = importance, .ctx = c};
    *out = c;
    return TM_OK;
}

const tm_calibrated *tm_calibration_asked(const tm_calibration *c) {
    return &c->asked;
}

void tm_calibration_close(tm_calibration *c) {
    if (!c) return;
    forget_importance(c);
    tm_free(c);
}

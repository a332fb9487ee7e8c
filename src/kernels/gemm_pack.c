/* The cut of C; packing of the builtin product's operands, those of 16 bits are widened on the way. */
#include "kernels/gemm_pack_internal.h"

#include <string.h>

enum { ROWS = 4, AHEAD = 8 }; /* stored rows that are dealt out together; how far ahead they are asked for */

static const char *element_at(const operand *o, uint64_t row, uint64_t column) {
    return kernels_at_const(o->type, o->x, row * o->ld + column);
}

/* Stored [line][depth]: `rows` lines from `first` on become one panel. */
static void pack_lines(const operand *o, size_t first, size_t rows, size_t width, float *out) {
    const void *x = element_at(o, o->at + first, o->k0);
    if (tm_round_up(rows, 8) < width) memset(out, 0, o->depth * width * sizeof *out);
    if (o->type == TM_ELEM_F32)
        kernels.transpose(x, o->ld, rows, o->depth, out, width);
    else
        (o->type == TM_ELEM_F16 ? kernels.transpose_f16 : kernels.transpose_bf16)(x, o->ld, rows, o->depth, out, width);
}

static void deal(const operand *o, const void *x, size_t rows, kernels_deal to, float *out) {
    if (o->type != TM_ELEM_F32) {
        (o->type == TM_ELEM_F16 ? kernels.deal_f16 : kernels.deal_bf16)(x, o->ld, rows, to, out);
        return;
    }
    const float *from = x;
    for (size_t j = 0; j < to.panels; j++, from += to.step, out += to.stride)
        for (size_t p = 0; p < rows; p++)
            for (size_t i = 0; i < to.width; i += 8)
                memcpy(out + p * to.width + i, from + p * o->ld + i, 8 * sizeof *out);
}

/* A panel that reaches past the end of the stored rows: what they have from `first` on, and zeros. */
static void deal_end(const operand *o, uint64_t row, size_t rows, size_t first, size_t width, float *out) {
    float buf[GEMM_NR];
    for (size_t p = 0; p < rows; p++, out += width) {
        size_t n = o->n - first;
        memset(out, 0, width * sizeof *out);
        memcpy(out, kernels_load(o->type, element_at(o, row + p, o->at + first), 0, buf, n), n * sizeof *out);
    }
}

/* Stored [depth][line]. Whole widths are moved; what is between step and width is never used. */
static void pack_depths(const operand *o, size_t step, size_t width, size_t stride, float *out) {
    kernels_deal whole = {.step = step, .width = width, .stride = stride};
    whole.panels = o->n >= width ? (o->n - width) / step + 1 : 0;
    for (size_t p = 0; p < o->depth; p += ROWS, out += ROWS * width) {
        size_t rows = tm_min_u64(ROWS, o->depth - p);
        for (size_t i = AHEAD; i < AHEAD + ROWS; i++)
            kernels_prefetch(element_at(o, o->k0 + p + i, o->at), o->n * tm_elem_bytes(o->type));
        deal(o, element_at(o, o->k0 + p, o->at), rows, whole, out);
        for (size_t j = whole.panels; j * step < o->n; j++)
            deal_end(o, o->k0 + p, rows, j * step, width, out + j * stride);
    }
}

operand gemm_unpacked(const operand *o, size_t first, size_t n, size_t ld, void *buf) {
    uint64_t line = o->at + first, row = o->by_depth ? o->k0 : line, column = o->by_depth ? line : o->k0;
    for (size_t i = 0; i < (o->by_depth ? o->depth : n); i++)
        tm_packed_values(o->packed, row + i, column, o->by_depth ? n : o->depth, o->type,
                         kernels_at(o->type, buf, i * ld));
    return (operand){.x = buf, .type = o->type, .ld = ld, .by_depth = o->by_depth, .n = n, .depth = o->depth};
}

/* Panels of a packed operand, one decoded after the other. */
static void pack_decoded(const operand *o, size_t step, size_t width, size_t stride, float *out) {
    float buf[GEMM_NR * GEMM_K_CHUNK];
    TM_ASSERT(step <= GEMM_NR);
    for (size_t i = 0; i < o->n; i += step, out += stride) {
        operand some = gemm_unpacked(o, i, tm_min_u64(step, o->n - i), o->by_depth ? GEMM_NR : GEMM_K_CHUNK, buf);
        if (o->by_depth)
            pack_depths(&some, step, width, stride, out);
        else
            pack_lines(&some, 0, some.n, width, out);
    }
}

void gemm_pack(const operand *o, size_t step, size_t width, size_t stride, float *out) {
    TM_ASSERT(o->depth <= GEMM_K_CHUNK);
    if (o->packed) {
        pack_decoded(o, step, width, stride, out);
        return;
    }
    if (o->by_depth) {
        pack_depths(o, step, width, stride, out);
        return;
    }
    for (size_t i = 0; i < o->n; i += step, out += stride) {
        for (size_t next = i + step; next < tm_min_u64(i + 2 * step, o->n); next++)
            kernels_prefetch(element_at(o, o->at + next, o->k0), o->depth * tm_elem_bytes(o->type));
        pack_lines(o, i, tm_min_u64(step, o->n - i), width, out);
    }
}

/* ---- the cut of C ---- */

static uint64_t piece_start(uint64_t n, uint64_t count, uint64_t i, uint64_t grain) {
    return i == count ? n : tm_min_u64(n, i * tm_round_up((n + count - 1) / count, grain));
}

gemm_piece gemm_piece_of(uint64_t n, uint64_t count, uint64_t i, uint64_t grain) {
    uint64_t at = piece_start(n, count, i, grain);
    return (gemm_piece){at, piece_start(n, count, i + 1, grain) - at};
}

gemm_cut gemm_cut_of(const tm_gemm_args *g, unsigned threads, const gemm_limits *l) {
    gemm_cut c = {(g->m + l->m_tile - 1) / l->m_tile, (g->n + l->n_tile - 1) / l->n_tile};
    while (c.tiles_m * c.tiles_n < threads) {
        uint64_t m = g->m / c.tiles_m, n = g->n / c.tiles_n;
        if (m < 2 * l->m_grain && n < 2 * l->n_grain) break;
        *(n >= m ? &c.tiles_n : &c.tiles_m) += 1;
    }
    while (c.tiles_m * c.tiles_n % threads && g->n / (c.tiles_n + 1) >= l->fewest_columns) c.tiles_n++;
    return c;
}

/* Of each matrix one side is `hidden`. Products of activations are `rows` high, those of gradients `rows` deep. */
size_t gemm_most_touched(const tm_products *p, size_t (*touched)(uint64_t m, uint64_t n, uint64_t k)) {
    uint64_t any = UINT64_MAX, rows = p->rows, hidden = p->hidden ? p->hidden : any;
    const size_t each[] = {touched(rows, any, hidden), touched(rows, hidden, any), touched(any, hidden, rows),
                           touched(hidden, any, rows)};
    size_t most = 0;
    for (size_t i = 0; i < TM_COUNT(each); i++) most = tm_max_u64(most, each[i]);
    return most;
}

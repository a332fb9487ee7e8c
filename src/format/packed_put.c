/* Packed weights whose codes somebody else has chosen, and what a calibration is asked for. */
#include "format/packed_internal.h"
#include "format/source_internal.h"

#include <math.h>
#include <string.h>

/* ---- the calibration ---- */

typedef struct asked {
    const tm_export_opts *opts;
    uint64_t bytes; /* of all tensors */
} asked;

static tm_status at(void *ctx, double share) {
    const asked *a = ctx;
    TM_TRY(tm_export_stopped(a->opts));
    if (a->opts->progress) a->opts->progress(a->opts->ctx, (uint64_t)(share * (double)a->bytes), a->bytes);
    return TM_OK;
}

tm_status tm_export_calibrate(const tm_source *src, const tm_export_opts *opts, tm_codes *to, const char *place) {
    asked a = {.opts = opts};
    tm_buf scratch = {0};
    if (!opts->calibrated) return TM_OK;
    for (uint32_t i = 0; i < tm_source_tensors(src); i++) a.bytes += tm_source_tensor_get(src, i)->bytes;
    tm_status rc = tm_buf_printf(&scratch, "%s.activations", place);
    if (rc == TM_OK)
        rc = opts->calibrated->run(opts->calibrated->ctx, &(tm_calibrating){.src = src,
                                                                            .method = opts->to ? opts->to->method : 0,
                                                                            .to = to,
                                                                            .scratch = scratch.data,
                                                                            .at = at,
                                                                            .ctx = &a});
    tm_buf_free(&scratch);
    return rc;
}

tm_status tm_export_check_calibration(const tm_export_opts *opts, bool gguf) {
    bool packs = opts->to && opts->to->method != TM_PACK_NEAREST;
    bool weighs = gguf && opts->to && tm_block_is_weighed(opts->to->fmt);
    if (packs && !opts->calibrated)
        return tm_fail(TM_EINPUT, "%s asks the model what matters: name a text with --calibrate FILE, or take int4",
                       opts->to->name);
    if (opts->calibrated && !packs && !weighs)
        return tm_fail(TM_EINPUT, "--calibrate is for gptq and awq, and for 4 and 5 bits, q6_k of GGUF; not for %s",
                       opts->to ? opts->to->name : "the source's own types");
    return TM_OK;
}

/* ---- what it puts ---- */

bool tm_codes_wants(const tm_codes *p, uint32_t tensor) {
    return p->f->quantised[tensor];
}

uint64_t tm_codes_group(const tm_codes *p) {
    return p->group;
}

tm_fmt tm_codes_scale_fmt(const tm_codes *p) {
    return p->f->rest;
}

static void pack_row(const int8_t *codes, uint64_t width, uint32_t *words) {
    memset(words, 0, width / 8 * sizeof *words);
    for (uint64_t i = 0; i < width; i++) words[i / 8] |= (uint32_t)(codes[i] + 8) << i % 8 * 4;
}

tm_status tm_codes_put(tm_codes *p, uint32_t tensor, uint64_t row, uint64_t rows, const int8_t *codes,
                       const float *scale) {
    const tm_source_tensor *t = tm_source_tensor_get(p->f->src, tensor);
    uint64_t width = t->shape[1], words = tm_codes_words(p, width), groups = tm_codes_groups(p, width),
             bytes = 4 * words;
    TM_ASSERT(p->bits == 4 && width % p->group == 0);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t g = 0; g < groups; g++)
            if (!isfinite(scale[r * groups + g]))
                return tm_fail(TM_EINPUT, "%s: '%s' has values that are not finite or too large for its scales",
                               t->file, t->name);
    for (uint64_t r = 0, n; r < rows; r += n) {
        n = tm_min_u64(PACKED_ROOM / words, rows - r);
        for (uint64_t k = 0; k < n; k++) pack_row(codes + (r + k) * width, width, p->packed + k * words);
        TM_TRY(tm_hf_writer_put_raw(p->w, p->first[tensor] + PACKED_CODES, (row + r) * bytes, p->packed, n * bytes));
    }
    return tm_hf_writer_put_f32(p->w, p->first[tensor] + PACKED_SCALE, row * groups, rows * groups, scale);
}

tm_status tm_codes_end(tm_codes *p, uint32_t i, const tm_lost *lost, double output_error) {
    const tm_source_tensor *t = tm_source_tensor_get(p->f->src, i);
    const int64_t shape[2] = {(int64_t)t->shape[0], (int64_t)t->shape[1]};
    uint64_t scales = t->shape[0] * tm_codes_groups(p, t->shape[1]) * tm_fmt_get(p->f->rest)->block_bytes;
    TM_TRY(tm_hf_writer_put_raw(p->w, p->first[i] + PACKED_SHAPE, 0, shape, sizeof shape));
    tm_export_wrote(p->f->opts, &(tm_wrote_tensor){.name = t->name,
                                                   .type = p->bits == 4 ? "INT4" : "INT8",
                                                   .elements = t->elements,
                                                   .bytes = t->shape[0] * tm_codes_words(p, t->shape[1]) * 4 + scales +
                                                            sizeof shape,
                                                   .power = lost->values,
                                                   .error = tm_lost_error(lost),
                                                   .output_error = output_error});
    return TM_OK;
}

tm_status tm_codes_done(tm_codes *p, uint32_t tensor, double power, double lost, double output_error) {
    p->put[tensor] = true;
    return tm_codes_end(p, tensor, &(tm_lost){power, lost}, output_error);
}

tm_status tm_codes_put_plain(tm_codes *p, uint32_t tensor, float *values) {
    const tm_source_tensor *t = tm_source_tensor_get(p->f->src, tensor);
    const tm_fmt_info *rest = tm_fmt_get(p->f->rest);
    tm_lost lost = {0};
    p->put[tensor] = true;
    TM_ASSERT(!p->f->quantised[tensor] && t->elements * sizeof *values <= PACKED_ROOM * sizeof *p->packed);
    TM_TRY(tm_encode_runs(p->f->rest, values, t->elements, p->packed, &lost));
    TM_TRY(tm_hf_writer_put_f32(p->w, p->first[tensor], 0, t->elements, values));
    tm_export_wrote(p->f->opts, &(tm_wrote_tensor){.name = t->name,
                                                   .type = rest->name,
                                                   .elements = t->elements,
                                                   .bytes = t->elements * rest->block_bytes,
                                                   .power = lost.values,
                                                   .error = tm_lost_error(&lost)});
    return TM_OK;
}

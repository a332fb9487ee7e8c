/* A model written in four bits: a folder of bitsandbytes' 4-bit checkpoint (bnb.c reads it), quantised as bitsandbytes
 * does, with codes and scales exactly its own (kernels/nf4.h). Streams: of one tensor at a time the scales are held. */
#include "format/format_internal.h"
#include "format/source_internal.h"
#include "kernels/nf4.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PIECE = 1 << 20,   /* elements that are read at a time: whole blocks */
    STATE_BYTES = 320, /* of the JSON, spaces behind it: written before its offset is known */
    COMPANIONS = 6,    /* entries of a tensor in four bits, at most */
    NAME_BYTES = 256
};

/* What a tensor in four bits consists of, in the list of the writer: from `first` on. */
typedef enum companion { CODES, ABSMAX, MAP, STATE, NESTED_ABSMAX, NESTED_MAP } companion;

typedef struct quantiser {
    const tm_quantise_opts *o;
    tm_hf_tensor *list;
    uint32_t n;
    uint32_t *first; /* per tensor: its first entry */
    char (*name)[NAME_BYTES];
    tm_hf_writer *w;
    float *values;
    uint8_t *codes;
    uint64_t done, total;
} quantiser;

static uint64_t blocks_of(const quantiser *q, uint64_t elements) {
    return (elements + q->o->block - 1) / q->o->block;
}

static uint64_t nested_of(uint64_t blocks) {
    return (blocks + TM_NF4_NESTED - 1) / TM_NF4_NESTED;
}

uint64_t tm_quantised_bytes(uint64_t elements, uint32_t block, bool double_quant) {
    uint64_t blocks = (elements + block - 1) / block, codes = (elements + 1) / 2 + 16 * sizeof(float) + STATE_BYTES;
    return codes + (double_quant ? blocks + (nested_of(blocks) + 256) * sizeof(float) : blocks * sizeof(float));
}

static tm_nf4_kind kind_of(const quantiser *q) {
    return q->o->fmt == TM_FMT_NF4 ? TM_NF4 : TM_FP4;
}

/* ---- the list of what is written -------------------------------------------------------------------------------- */

static void add_entry(quantiser *q, const char *name, const char *suffix, tm_fmt fmt, uint64_t rows, uint64_t columns) {
    tm_hf_tensor *e = &q->list[q->n];
    snprintf(q->name[q->n], NAME_BYTES, "%s%s", name, suffix);
    *e = (tm_hf_tensor){
        .name = q->name[q->n], .ndim = columns ? 2 : 1, .shape = {rows, columns}, .as_stored = true, .fmt = fmt};
    q->n++;
}

static void add_four_bits(quantiser *q, const tm_quantise_tensor *t) {
    bool dq = q->o->double_quant;
    uint64_t blocks = blocks_of(q, t->elements);
    char state[64];
    snprintf(state, sizeof state, ".quant_state.bitsandbytes__%s", q->o->fmt == TM_FMT_NF4 ? "nf4" : "fp4");
    add_entry(q, t->name, "", TM_FMT_U8, (t->elements + 1) / 2, 1);
    add_entry(q, t->name, ".absmax", dq ? TM_FMT_U8 : TM_FMT_F32, blocks, 0);
    add_entry(q, t->name, ".quant_map", TM_FMT_F32, 16, 0);
    add_entry(q, t->name, state, TM_FMT_U8, STATE_BYTES, 0);
    if (!dq) return;
    add_entry(q, t->name, ".nested_absmax", TM_FMT_F32, nested_of(blocks), 0);
    add_entry(q, t->name, ".nested_quant_map", TM_FMT_F32, 256, 0);
}

static tm_status list_entries(quantiser *q) {
    const tm_quantise_opts *o = q->o;
    q->list = tm_calloc((size_t)o->n * COMPANIONS + 1, sizeof *q->list);
    q->name = tm_calloc((size_t)o->n * COMPANIONS + 1, sizeof *q->name);
    q->first = tm_calloc(o->n + 1, sizeof *q->first);
    if (!q->list || !q->name || !q->first) return tm_nomem((size_t)o->n * COMPANIONS * sizeof *q->name);
    for (uint32_t i = 0; i < o->n; i++) {
        const tm_quantise_tensor *t = &o->tensor[i];
        if (strlen(t->name) + 48 > NAME_BYTES)
            return tm_fail(TM_EUNSUPPORTED, "the tensor name %.60s... is too long", t->name);
        q->first[i] = q->n;
        q->total += t->elements;
        if (t->four_bits) {
            add_four_bits(q, t);
            continue;
        }
        snprintf(q->name[q->n], NAME_BYTES, "%s", t->name);
        q->list[q->n] = (tm_hf_tensor){.name = q->name[q->n], .ndim = t->ndim};
        memcpy(q->list[q->n++].shape, t->shape, sizeof t->shape);
    }
    return TM_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

static tm_status read_piece(quantiser *q, uint32_t i, uint64_t first, uint64_t n) {
    TM_TRY(tm_stop_check());
    TM_TRY(q->o->read(q->o->ctx, i, first, n, q->values));
    uint64_t bad = 0;
    for (uint64_t k = 0; k < n; k++) bad += isfinite(q->values[k]) ? 0 : 1;
    if (bad)
        return tm_fail(TM_EINPUT,
                       "%" PRIu64 " values of %s are not finite; the file is damaged or the model has diverged", bad,
                       q->o->tensor[i].name);
    q->done += n;
    if (q->o->progress) q->o->progress(q->o->progress_ctx, q->done, q->total);
    return TM_OK;
}

static tm_status put_plain(quantiser *q, uint32_t i) {
    uint64_t elements = q->o->tensor[i].elements;
    for (uint64_t at = 0; at < elements; at += PIECE) {
        uint64_t n = tm_min_u64(PIECE, elements - at);
        TM_TRY(read_piece(q, i, at, n));
        TM_TRY(tm_hf_writer_put_f32(q->w, q->first[i], at, n, q->values));
    }
    return TM_OK;
}

/* Codes of a piece, and its scales; runs of whole blocks side by side. */
static void quantise_piece(quantiser *q, uint64_t n, float *absmax) {
    enum { RUN = 1 << 15 };
    int64_t runs = (int64_t)((n + RUN - 1) / RUN);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < runs; r++) {
        uint64_t at = (uint64_t)r * RUN, some = tm_min_u64(RUN, n - at);
        tm_nf4_quantise(kind_of(q), q->o->block, q->values + at, some, q->codes + at / 2, absmax + at / q->o->block);
    }
}

static tm_status put_state(quantiser *q, uint32_t i, float offset) {
    const tm_quantise_tensor *t = &q->o->tensor[i];
    static const char *const dtype[] = {[TM_FMT_F32] = "float32", [TM_FMT_BF16] = "bfloat16", [TM_FMT_F16] = "float16"};
    char text[STATE_BYTES + 1];
    int n =
        snprintf(text, sizeof text,
                 "{\"quant_type\": \"%s\", \"blocksize\": %u, \"dtype\": \"%s\", \"shape\": [%" PRIu64 ", %" PRIu64 "]",
                 q->o->fmt == TM_FMT_NF4 ? "nf4" : "fp4", q->o->block, dtype[q->o->rest], t->shape[0], t->shape[1]);
    if (q->o->double_quant)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %.9g",
                      (int)TM_NF4_NESTED, (double)offset);
    text[n++] = '}';
    memset(text + n, ' ', STATE_BYTES - (size_t)n);
    return tm_hf_writer_put_raw(q->w, q->first[i] + STATE, 0, text, STATE_BYTES);
}

static tm_status put_scales(quantiser *q, uint32_t i, const float *absmax, uint64_t blocks) {
    uint32_t first = q->first[i];
    float offset = 0;
    TM_TRY(tm_hf_writer_put_raw(q->w, first + MAP, 0, tm_nf4_map(kind_of(q)), 16 * sizeof(float)));
    if (!q->o->double_quant) {
        TM_TRY(tm_hf_writer_put_raw(q->w, first + ABSMAX, 0, absmax, blocks * sizeof *absmax));
        return put_state(q, i, 0);
    }
    uint64_t nested = nested_of(blocks);
    uint8_t *codes = tm_malloc(blocks);
    float *scales = tm_malloc(nested * sizeof *scales);
    tm_status rc = codes && scales ? TM_OK : tm_nomem(blocks);
    if (rc == TM_OK) {
        offset = tm_nf4_mean(absmax, blocks);
        tm_nf4_nest(absmax, blocks, offset, codes, scales);
        rc = tm_hf_writer_put_raw(q->w, first + ABSMAX, 0, codes, blocks);
    }
    if (rc == TM_OK) rc = tm_hf_writer_put_raw(q->w, first + NESTED_ABSMAX, 0, scales, nested * sizeof *scales);
    if (rc == TM_OK) rc = tm_hf_writer_put_raw(q->w, first + NESTED_MAP, 0, tm_nf4_dynamic_map(), 256 * sizeof(float));
    if (rc == TM_OK) rc = put_state(q, i, offset);
    tm_free(codes);
    tm_free(scales);
    return rc;
}

static tm_status put_four_bits(quantiser *q, uint32_t i) {
    uint64_t elements = q->o->tensor[i].elements, blocks = blocks_of(q, elements);
    float *absmax = tm_malloc(blocks * sizeof *absmax);
    tm_status rc = absmax ? TM_OK : tm_nomem(blocks * sizeof *absmax);
    for (uint64_t at = 0; at < elements && rc == TM_OK; at += PIECE) {
        uint64_t n = tm_min_u64(PIECE, elements - at);
        rc = read_piece(q, i, at, n);
        if (rc != TM_OK) break;
        quantise_piece(q, n, absmax + at / q->o->block);
        rc = tm_hf_writer_put_raw(q->w, q->first[i] + CODES, at / 2, q->codes, (n + 1) / 2);
    }
    if (rc == TM_OK) rc = put_scales(q, i, absmax, blocks);
    tm_free(absmax);
    return rc;
}

/* ---- config.json -------------------------------------------------------------------------------------------------- */

static const char *torch_name(tm_fmt fmt) {
    return fmt == TM_FMT_BF16 ? "bfloat16" : fmt == TM_FMT_F16 ? "float16" : "float32";
}

bool tm_taken_for_linear(const char *name, uint32_t ndim) {
    return ndim == 2 && tm_ends_with(name, ".weight") && !strstr(name, "embed") && strcmp(name, "lm_head.weight") != 0;
}

static bool is_skipped(const tm_quantise_tensor *t) {
    return !t->four_bits && tm_taken_for_linear(t->name, t->ndim);
}

static void put_skipped(tm_json_writer *j, const tm_quantise_opts *o) {
    bool any = false;
    for (uint32_t i = 0; i < o->n; i++) any |= is_skipped(&o->tensor[i]);
    if (!any) return;
    tm_jw_field_array(j, "llm_int8_skip_modules");
    tm_jw_str(j, "lm_head");
    for (uint32_t i = 0; i < o->n; i++)
        if (is_skipped(&o->tensor[i])) tm_jw_strn(j, o->tensor[i].name, strlen(o->tensor[i].name) - strlen(".weight"));
    tm_jw_array_end(j);
}

tm_status tm_quantise_json(const tm_quantise_opts *o, tm_buf *out) {
    tm_json_writer j;
    tm_jw_init(&j, out, 0);
    tm_jw_object(&j);
    tm_jw_field_str(&j, "quant_method", "bitsandbytes");
    tm_jw_field_bool(&j, "load_in_4bit", true);
    tm_jw_field_str(&j, "bnb_4bit_quant_type", o->fmt == TM_FMT_NF4 ? "nf4" : "fp4");
    tm_jw_field_bool(&j, "bnb_4bit_use_double_quant", o->double_quant);
    tm_jw_field_str(&j, "bnb_4bit_compute_dtype", torch_name(o->rest));
    tm_jw_field_str(&j, "bnb_4bit_quant_storage", "uint8");
    put_skipped(&j, o);
    tm_jw_object_end(&j);
    return tm_jw_end(&j);
}

/* Into an object's last place. */
static tm_status put_config(const quantiser *q, const tm_source *src, const char *dir) {
    tm_buf text = {0};
    size_t len;
    const char *json = tm_source_config(src, &len);
    while (len > 0 && json[len - 1] != '}') len--;
    tm_status rc = len ? tm_buf_append(&text, json, len - 1)
                       : tm_fail(TM_EINPUT, "%s: config.json is not a JSON object", tm_source_path(src));
    if (rc == TM_OK) rc = tm_buf_printf(&text, ",\n  \"quantization_config\": ");
    if (rc == TM_OK) rc = tm_quantise_json(q->o, &text);
    if (rc == TM_OK) rc = tm_buf_printf(&text, "\n}\n");
    if (rc == TM_OK) rc = tm_format_write_file(dir, "config.json", text.data, text.len);
    tm_buf_free(&text);
    return rc;
}

tm_status tm_quantise(const tm_source *src, const char *dir, const tm_quantise_opts *o) {
    quantiser q = {.o = o, .values = tm_malloc(PIECE * sizeof(float)), .codes = tm_malloc(PIECE / 2)};
    tm_status rc;
    TM_ASSERT(o->block >= 32 && (o->block & (o->block - 1)) == 0 && (o->fmt == TM_FMT_NF4 || o->fmt == TM_FMT_FP4));
    if (!q.values || !q.codes) TM_GO(tm_nomem(PIECE * sizeof(float)));
    TM_GO(list_entries(&q));
    TM_GO(tm_make_dirs(dir));
    TM_GO(tm_hf_writer_create(&q.w, dir, q.list, q.n, o->rest, 0));
    for (uint32_t i = 0; i < o->n; i++) TM_GO(o->tensor[i].four_bits ? put_four_bits(&q, i) : put_plain(&q, i));
    rc = tm_hf_writer_commit(q.w);
    q.w = NULL;
    if (rc == TM_OK) rc = put_config(&q, src, dir);
done:
    tm_hf_writer_abandon(q.w);
    TM_FREE_ALL(q.list, q.name, q.first, q.values, q.codes);
    return rc;
}

/* tidemill-bench decode: stored types of a model to what is computed with, on one thread, out of cache and out of
 * memory, beside a copy of what is written. */
#include "bench/bench.h"
#include "format/format.h"
#include "io/file/file.h"
#include "kernels/nf4.h"

#include <stdio.h>
#include <string.h>

enum { SMALL = 1 << 17, LARGE = 1 << 22, TYPES = 3, ROWS = TM_FMT_COUNT + 3 };
static const tm_fmt types[TYPES] = {TM_FMT_F32, TM_FMT_BF16, TM_FMT_F16};

typedef struct result {
    const char *name;
    uint64_t n[2];         /* SMALL, LARGE, or all that there are */
    double rate[2][TYPES]; /* elements a second */
} result;
typedef struct bench {
    int64_t milliseconds;
    tm_source *src;
    uint8_t *raw[TM_PIECE_RANGES], *out;
    float *values;
    result result[ROWS];
    size_t n;
} bench;

/* What is run, on n elements. */
typedef struct work {
    bench *b;
    uint32_t tensor;
    tm_source_piece piece;
    tm_nf4_form form;
} work;
typedef tm_status (*run_fn)(const work *w, uint64_t n, tm_fmt to);

static tm_status decode(const work *w, uint64_t n, tm_fmt to) {
    return tm_source_decode(w->b->src, w->tensor, &w->piece, (const void *const *)w->b->raw, w->piece.first, n, to,
                            w->b->out);
}
static tm_elem elem(tm_fmt to) {
    return to == TM_FMT_F32 ? TM_ELEM_F32 : to == TM_FMT_BF16 ? TM_ELEM_BF16 : TM_ELEM_F16;
}
static tm_status decode_form(const work *w, uint64_t n, tm_fmt to) {
    tm_nf4_decode(&w->form, 0, n, elem(to), w->b->out);
    return TM_OK;
}
static tm_status encode_form(const work *w, uint64_t n, tm_fmt to) {
    (void)to; /* from fp32, whatever the column says */
    return tm_nf4_encode(TM_NF4, true, w->b->values, n, w->b->out);
}
static tm_status copy(const work *w, uint64_t n, tm_fmt to) {
    memcpy(w->b->out, w->b->values, n * tm_elem_bytes(elem(to)));
    return TM_OK;
}

static tm_status measure(bench *b, const char *name, run_fn run, const work *w, uint64_t elements) {
    result *r = &b->result[b->n++];
    r->name = name;
    for (int size = 0; size < 2; size++)
        for (int t = 0; t < TYPES; t++) {
            uint64_t n = tm_min_u64(elements, size ? LARGE : SMALL), best = UINT64_MAX;
            uint64_t end = tm_now_ns() + (uint64_t)b->milliseconds * 1000000;
            for (int i = 0; i < 2 || tm_now_ns() < end; i++) {
                uint64_t start = tm_now_ns();
                TM_TRY(run(w, n, types[t]));
                best = tm_min_u64(best, tm_now_ns() - start);
            }
            r->n[size] = n;
            r->rate[size][t] = (double)n / ((double)best * 1e-9);
        }
    return TM_OK;
}

/* ---- a model's ---- */

static tm_status read_ranges(bench *b, const tm_source_piece *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        tm_file *f;
        tm_free(b->raw[i]);
        b->raw[i] = tm_malloc(p->range[i].bytes + 1);
        if (!b->raw[i]) return tm_nomem(p->range[i].bytes);
        TM_TRY(tm_file_open(&f, p->range[i].path));
        tm_status rc = tm_file_read_at(f, p->range[i].offset, b->raw[i], p->range[i].bytes);
        tm_file_close(f);
        TM_TRY(rc);
    }
    return TM_OK;
}

/* The largest tensor of the type; -1: there is none. */
static int64_t largest(const tm_source *src, tm_fmt fmt) {
    int64_t best = -1;
    for (uint32_t i = 0; i < tm_source_tensors(src); i++) {
        const tm_source_tensor *t = tm_source_tensor_get(src, i);
        if (t->fmt == fmt && (best < 0 || t->elements > tm_source_tensor_get(src, (uint32_t)best)->elements)) best = i;
    }
    return best;
}

static tm_status of_model(bench *b, const char *path) {
    TM_TRY(tm_source_open(&b->src, path));
    for (int f = 0; f < TM_FMT_COUNT; f++) {
        int64_t t = largest(b->src, (tm_fmt)f);
        if (t < 0) continue;
        work w = {.b = b, .tensor = (uint32_t)t};
        uint64_t n = tm_min_u64(tm_source_tensor_get(b->src, w.tensor)->elements, LARGE);
        TM_TRY(tm_source_piece_of(b->src, w.tensor, 0, n, &w.piece));
        TM_TRY(read_ranges(b, &w.piece));
        TM_TRY(measure(b, tm_fmt_get((tm_fmt)f)->name, decode, &w, n));
    }
    return TM_OK;
}

/* ---- our own form ---- */

static tm_status of_form(bench *b) {
    uint8_t *stored = tm_malloc(tm_nf4_bytes(LARGE, true));
    if (!stored) return tm_nomem(tm_nf4_bytes(LARGE, true));
    const work w = {.b = b, .form = {TM_NF4, true, LARGE, stored}};
    tm_status rc = tm_nf4_encode(TM_NF4, true, b->values, LARGE, stored);
    if (rc == TM_OK) rc = measure(b, "NF4 of ours", decode_form, &w, LARGE);
    if (rc == TM_OK) rc = measure(b, "encoding it", encode_form, &w, LARGE);
    if (rc == TM_OK) rc = measure(b, "a copy", copy, &w, LARGE);
    tm_free(stored);
    return rc;
}

/* ---- results ---- */

static void print_table(const bench *b) {
    printf("G elements/s, one thread, %s\n\n%-12s  %26s  %26s\n%-12s", tm_kernels_isa(), "", "131,072 elements at most",
           "4,194,304 elements at most", "to");
    for (int size = 0; size < 2; size++)
        for (int t = 0; t < TYPES; t++) printf(" %8s", tm_fmt_get(types[t])->name);
    printf("\n");
    for (size_t i = 0; i < b->n; i++) {
        printf("%-12s", b->result[i].name);
        for (int k = 0; k < 2 * TYPES; k++) printf(" %8.2f", b->result[i].rate[k / TYPES][k % TYPES] * 1e-9);
        printf("\n");
    }
}

static tm_status print_decode_json(const bench *b) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "isa", tm_kernels_isa());
    tm_jw_field_array(&w, "results");
    for (size_t i = 0; i < b->n; i++)
        for (int k = 0; k < 2 * TYPES; k++) {
            tm_jw_object(&w);
            tm_jw_field_str(&w, "what", b->result[i].name);
            tm_jw_field_str(&w, "to", tm_fmt_get(types[k % TYPES])->name);
            tm_jw_field_uint(&w, "elements", b->result[i].n[k / TYPES]);
            tm_jw_field_double(&w, "elements_per_second", b->result[i].rate[k / TYPES][k % TYPES]);
            tm_jw_object_end(&w);
        }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

static tm_status run_all(bench *b, const char *model, bool json) {
    TM_TRY(tm_kernels_init(1, TM_ELEM_F32));
    b->values = tm_malloc(LARGE * sizeof(float));
    b->out = tm_malloc(LARGE * sizeof(float));
    if (!b->values || !b->out) return tm_nomem(LARGE * 2 * sizeof(float));
    for (size_t i = 0; i < LARGE; i++) b->values[i] = (float)(i * 2654435761U % 20011) / 8192 - 1;
    memset(b->out, 0, LARGE * sizeof(float));
    if (model) TM_TRY(of_model(b, model));
    TM_TRY(of_form(b));
    if (json) return print_decode_json(b);
    print_table(b);
    return TM_OK;
}

int bench_decode(int argc, char **argv) {
    const char *model = NULL;
    bool json = false;
    bench b = {.milliseconds = 50};
    const tm_opt opts[] = {
        TM_OPTION("model", TM_OPT_STRING, &model, "PATH", "a folder or .gguf file: each type that it has"),
        TM_OPTION("milliseconds", TM_OPT_INT, &b.milliseconds, "N", "for each figure; the fastest run counts (50)"),
        TM_FLAG("json", &json, "print one JSON object"),
    };
    const tm_cli cli = {.usage = "decode [--model PATH] [--milliseconds N] [--json]",
                        .about = "Measures how fast stored types become fp32, bf16 and fp16, on one thread.",
                        .example = "tidemill-bench decode --model SmolLM2-135M-Instruct.Q4_1.gguf",
                        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (b.milliseconds < 0 || b.milliseconds > 60000) return tm_cli_wrong("decode", "--milliseconds takes 0 to 60000");
    tm_status status = run_all(&b, model, json);
    tm_source_close(b.src);
    for (int i = 0; i < TM_PIECE_RANGES; i++) tm_free(b.raw[i]);
    tm_free(b.values);
    tm_free(b.out);
    tm_kernels_close();
    return status == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

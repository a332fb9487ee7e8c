/* tidemill bench gemm: products of a training step, each back-end beside the others and beside the machine's peak. */
#include "kernels/gemm.h"
#include "tools/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *what;
    uint64_t m, n, k;
    bool a_trans, b_trans;
} shape;
/* 512 tokens of a hidden size of 768 and of 2048: forward (X W^T), input gradient (dY W), weight gradient (dY^T X); and
 * a product whose every size is odd. */
static const shape shapes[] = {
    {"qkv", 512, 2304, 768, false, true},    {"gate_up", 512, 4096, 768, false, true},
    {"down", 512, 768, 2048, false, true},   {"logits", 512, 2048, 768, false, true},
    {"d_x", 512, 768, 4096, false, false},   {"d_weight", 4096, 768, 512, true, false},
    {"large", 512, 2048, 2048, false, true}, {"odd", 509, 1021, 773, false, true},
};
static const char *const backends[] = {"amx", "avx512bf16", "openblas", "builtin"};
enum { TYPES = 2, MOST_ELEMENTS = 2048 * 2048 };

typedef struct result {
    const shape *s;
    tm_elem type;
    double rate;
    char library[160];
    bool chosen;
} result;
typedef struct args {
    int64_t threads, milliseconds;
    bool json;
} args;
typedef struct bench {
    double peak;
    result result[TM_COUNT(backends) * TM_COUNT(shapes) * TYPES];
    size_t n;
    char chosen[TYPES][160]; /* what training would use */
    float *a, *b, *c;
} bench;

static tm_gemm_args product(const shape *s, tm_elem t, const bench *b) {
    return (tm_gemm_args){.m = s->m,
                          .n = s->n,
                          .k = s->k,
                          .alpha = 1,
                          .a = b->a,
                          .b = b->b,
                          .c = b->c,
                          .lda = s->a_trans ? s->m : s->k,
                          .ldb = s->b_trans ? s->k : s->n,
                          .ldc = s->n,
                          .a_type = t,
                          .b_type = t,
                          .c_type = s->a_trans ? TM_ELEM_F32 : t,
                          .a_trans = s->a_trans,
                          .b_trans = s->b_trans};
}

/* The fastest of the calls that fit into the time, three at least; one where no time is given. */
static double rate_of(const shape *s, tm_elem t, const bench *b, int64_t milliseconds) {
    tm_gemm_args g = product(s, t, b);
    uint64_t best = UINT64_MAX, end = tm_now_ns() + (uint64_t)milliseconds * 1000000;
    if (milliseconds) tm_gemm(&g);
    for (int i = 0; i < (milliseconds ? 3 : 1) || tm_now_ns() < end; i++) {
        uint64_t start = tm_now_ns();
        tm_gemm(&g);
        best = tm_min_u64(best, tm_now_ns() - start);
    }
    return 2e9 * (double)s->m * (double)s->n * (double)s->k / (double)best;
}

/* The same values in both types, small, without denormals. */
static void fill(float *x, tm_elem t) {
    for (size_t i = 0; i < MOST_ELEMENTS; i++) {
        float v = (float)(i % 31) / 16 - 1;
        if (t == TM_ELEM_F32)
            x[i] = v;
        else
            tm_narrow(&v, (uint16_t *)(void *)x + i, 1);
    }
}

static void measure(bench *b, const args *a) {
    for (int t = 0; t < TYPES; t++) {
        fill(b->a, (tm_elem)t), fill(b->b, (tm_elem)t);
        for (size_t i = 0; i < TM_COUNT(shapes); i++) {
            result *r = &b->result[b->n++];
            *r = (result){.s = &shapes[i], .type = (tm_elem)t};
            r->rate = rate_of(&shapes[i], (tm_elem)t, b, a->milliseconds);
            snprintf(r->library, sizeof r->library, "%s", tm_gemm_library());
            r->chosen = !strcmp(r->library, b->chosen[t]);
        }
    }
}

/* Each back-end in turn through the variable that forces it; what cannot be loaded is left out. */
static tm_status measure_all(bench *b, const args *a) {
    char *kept = getenv("TIDEMILL_GEMM") ? tm_strdup(getenv("TIDEMILL_GEMM")) : NULL;
    tm_status rc = TM_OK;
    for (int t = 0; t < TYPES && rc == TM_OK; t++) {
        rc = tm_kernels_init((unsigned)a->threads, (tm_elem)t);
        if (rc == TM_OK) snprintf(b->chosen[t], sizeof b->chosen[t], "%s", tm_gemm_library());
    }
    if (rc == TM_OK) b->peak = tm_kernels_peak_flops();
    for (size_t i = 0; i < TM_COUNT(backends) && rc == TM_OK; i++) {
        setenv("TIDEMILL_GEMM", backends[i], 1);
        if (tm_kernels_init((unsigned)a->threads, TM_ELEM_F32) == TM_OK)
            measure(b, a);
        else if (tm_error_get()->code == TM_ENOMEM)
            rc = TM_ENOMEM;
        else
            tm_error_clear();
    }
    if (kept)
        setenv("TIDEMILL_GEMM", kept, 1);
    else
        unsetenv("TIDEMILL_GEMM");
    tm_free(kept);
    return rc;
}

static const char *type_name(tm_elem t) {
    return t == TM_ELEM_F32 ? "fp32" : "bf16";
}

static void print_table(const bench *b) {
    printf("peak %.1f GFLOP/s (fp32 multiply-adds on registers, %u threads, %s)\n", b->peak * 1e-9,
           tm_kernels_threads(), tm_kernels_isa());
    for (size_t i = 0; i < b->n; i++) {
        const result *r = &b->result[i];
        if (i % (TYPES * TM_COUNT(shapes)) == 0)
            printf("\n%s\n  %-10s %5s %5s %5s  %-5s %9s %8s\n", r->library, "product", "m", "n", "k", "type", "GFLOP/s",
                   "of peak");
        printf("  %-10s %5u %5u %5u  %-5s %9.1f %7.0f%%%s\n", r->s->what, (unsigned)r->s->m, (unsigned)r->s->n,
               (unsigned)r->s->k, type_name(r->type), r->rate * 1e-9, 100 * r->rate / b->peak,
               r->chosen ? "  used" : "");
    }
}

static void result_json(tm_json_writer *w, const result *r) {
    tm_jw_object(w);
    tm_jw_field_str(w, "product", r->s->what);
    tm_jw_field_uint(w, "m", r->s->m), tm_jw_field_uint(w, "n", r->s->n), tm_jw_field_uint(w, "k", r->s->k);
    tm_jw_field_str(w, "type", type_name(r->type));
    tm_jw_field_double(w, "flops_per_second", r->rate);
    tm_jw_field_str(w, "library", r->library);
    tm_jw_field_bool(w, "used", r->chosen);
    tm_jw_object_end(w);
}

static tm_status print_products_json(const bench *b) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "isa", tm_kernels_isa());
    for (int t = 0; t < TYPES; t++) tm_jw_field_str(&w, t == TM_ELEM_F32 ? "library" : "library_16_bits", b->chosen[t]);
    tm_jw_field_uint(&w, "threads", tm_kernels_threads());
    tm_jw_field_double(&w, "peak_flops_per_second", b->peak);
    tm_jw_field_array(&w, "results");
    for (size_t i = 0; i < b->n; i++) result_json(&w, &b->result[i]);
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

static tm_status run(const args *a) {
    const size_t bytes = (size_t)MOST_ELEMENTS * sizeof(float);
    bench *b = tm_calloc(1, sizeof *b);
    if (!b) return tm_nomem(sizeof *b);
    b->a = tm_malloc(bytes), b->b = tm_malloc(bytes), b->c = tm_malloc(bytes);
    tm_status rc = b->a && b->b && b->c ? measure_all(b, a) : tm_nomem(3 * bytes);
    if (rc == TM_OK && a->json) rc = print_products_json(b);
    if (rc == TM_OK && !a->json) print_table(b);
    tm_free(b->a), tm_free(b->b), tm_free(b->c);
    tm_free(b);
    tm_kernels_close();
    return rc;
}

int tm_bench_gemm(int argc, char **argv) {
    args a = {.milliseconds = 100};
    const tm_opt opts[] = {
        TM_OPTION("threads", TM_OPT_INT, &a.threads, "N", "(default: as training)"),
        TM_OPTION("milliseconds", TM_OPT_INT, &a.milliseconds, "N", "for each product; the fastest call counts (100)"),
        TM_FLAG("json", &a.json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "bench gemm [--threads N] [--milliseconds N] [--json]",
        .about = "Measures the matrix products of a training step on every back-end that can be loaded, beside the "
                 "machine's peak.\nTIDEMILL_ISA forces the kernels.",
        .example = "tidemill bench gemm --json",
        TM_CLI_OPTIONS(opts),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (a.threads < 0 || a.threads > 1024) return tm_cli_wrong("bench gemm", "--threads takes 1 to 1024");
    if (a.milliseconds < 0 || a.milliseconds > 60000)
        return tm_cli_wrong("bench gemm", "--milliseconds takes 0 to 60000");
    return run(&a) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

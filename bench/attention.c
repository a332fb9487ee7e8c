/* tidemill-bench attention: causal attention forward and backward by length, beside the machine's peak. */
#include "kernels/gemm.h"
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>

typedef struct args {
    int64_t threads, milliseconds, heads, kv_heads, head_dim, window, most;
    bool json;
} args;
enum { LENGTHS = 8, SHORTEST = 512 };
typedef struct result {
    uint32_t seq;
    tm_elem type;
    double forward, backward;   /* operations a second */
    uint64_t workspace, memory; /* memory: that forward and backward made resident, what they are given included */
} result;
typedef struct bench {
    double peak;
    result result[2 * LENGTHS];
    size_t n;
} bench;

/* Pairs of query and key that see each other. */
static double pairs(double seq, double window) {
    if (window == 0 || window >= seq) return seq * (seq + 1) / 2;
    return window * (window + 1) / 2 + (seq - window) * window;
}

static tm_attention shape(const args *a, uint32_t seq, tm_elem t) {
    return (tm_attention){.type = t,
                          .rows = 1,
                          .seq = seq,
                          .padded = seq,
                          .heads = (uint32_t)a->heads,
                          .kv_heads = (uint32_t)a->kv_heads,
                          .head_dim = (uint32_t)a->head_dim,
                          .window = (uint32_t)a->window,
                          .scale = (float)(1 / sqrt((double)a->head_dim))};
}

static double seconds_of(void (*run)(const tm_attention *), const tm_attention *x, int64_t milliseconds) {
    uint64_t best = UINT64_MAX, end = tm_now_ns() + (uint64_t)milliseconds * 1000000;
    for (int i = 0; i < (milliseconds ? 2 : 1) || tm_now_ns() < end; i++) {
        uint64_t start = tm_now_ns();
        run(x);
        best = tm_min_u64(best, tm_now_ns() - start);
    }
    return (double)best * 1e-9;
}

/* 2 products of 2 d operations a pair forward, 5 backward. */
static void measure(bench *b, const args *a, const tm_attention *x) {
    double operations = pairs(x->seq, x->window) * (double)x->heads * 2 * (double)x->head_dim;
    b->result[b->n++] =
        (result){.seq = x->seq,
                 .type = x->type,
                 .forward = 2 * operations / seconds_of(tm_attention_forward, x, a->milliseconds),
                 .backward = 5 * operations / seconds_of(tm_attention_backward, x, a->milliseconds),
                 .workspace = tm_max_u64(tm_attention_workspace(x, false), tm_attention_workspace(x, true))};
}

static void fill(tm_elem t, void *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float v = (float)(i * 7 % 61) / 32 - 1;
        if (t == TM_ELEM_F32)
            ((float *)x)[i] = v;
        else
            tm_narrow(&v, (uint16_t *)x + i, 1);
    }
}

/* The process's peak counts from here on; what it is now. 0: the system cannot say. */
static uint64_t forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "we");
    if (!f) return 0;
    (void)fputs("5", f);
    (void)fclose(f);
    return tm_mem_resident_peak_bytes();
}

static tm_status one(bench *b, const args *a, uint32_t seq, tm_elem t) {
    uint64_t before = forget_peak();
    tm_attention x = shape(a, seq, t);
    size_t width = (size_t)(a->heads + 2 * a->kv_heads) * (size_t)a->head_dim, out = (size_t)(a->heads * a->head_dim);
    uint64_t scratch = tm_max_u64(tm_attention_workspace(&x, false), tm_attention_workspace(&x, true)), bytes = 0;
    size_t sizes[] = {seq * width * 4, seq * out * 4,   seq * (size_t)a->heads * 4,
                      seq * out * 4,   seq * width * 4, scratch};
    void *block[TM_COUNT(sizes)], *at[TM_COUNT(sizes)];
    bool all = true;
    for (size_t i = 0; i < TM_COUNT(sizes); i++) {
        block[i] = tm_malloc(sizes[i] + 64);
        all = all && block[i];
        at[i] = (void *)(((uintptr_t)block[i] + 63) / 64 * 64);
        bytes += sizes[i];
    }
    if (all) {
        fill(t, at[0], seq * width), fill(t, at[3], seq * out);
        x.o = at[1], x.lse = at[2], x.d_o = at[3], x.workspace = at[5];
        tm_attention_fuse(&x, at[0], at[4]);
        measure(b, a, &x);
        b->result[b->n - 1].memory = tm_mem_resident_peak_bytes() - before;
    }
    for (size_t i = 0; i < TM_COUNT(sizes); i++) tm_free(block[i]);
    return all ? TM_OK : tm_nomem(bytes);
}

static const char *type_name(tm_elem t) {
    return t == TM_ELEM_F32 ? "fp32" : "bf16";
}

static void print_table(const bench *b, const args *a) {
    printf("peak %.1f GFLOP/s (fp32 multiply-adds on registers, %u threads, %s)\n", b->peak * 1e-9,
           tm_kernels_threads(), tm_kernels_isa());
    printf("%u heads of %u, %u of keys and values, window %u; visible pairs count\n\n%9s  %-5s %9s %8s %9s %8s %12s "
           "%12s\n",
           (unsigned)a->heads, (unsigned)a->head_dim, (unsigned)a->kv_heads, (unsigned)a->window, "positions", "type",
           "forward", "of peak", "backward", "of peak", "workspace", "resident");
    for (size_t i = 0; i < b->n; i++) {
        const result *r = &b->result[i];
        char size[32], memory[32];
        printf("%9u  %-5s %9.1f %7.0f%% %9.1f %7.0f%% %12s %12s\n", (unsigned)r->seq, type_name(r->type),
               r->forward * 1e-9, 100 * r->forward / b->peak, r->backward * 1e-9, 100 * r->backward / b->peak,
               tm_format_size(r->workspace, size, sizeof size), tm_format_size(r->memory, memory, sizeof memory));
    }
}

static tm_status print_attention_json(const bench *b, const args *a) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "isa", tm_kernels_isa());
    tm_jw_field_uint(&w, "threads", tm_kernels_threads());
    tm_jw_field_uint(&w, "heads", (uint64_t)a->heads), tm_jw_field_uint(&w, "kv_heads", (uint64_t)a->kv_heads);
    tm_jw_field_uint(&w, "head_dim", (uint64_t)a->head_dim), tm_jw_field_uint(&w, "window", (uint64_t)a->window);
    tm_jw_field_double(&w, "peak_flops_per_second", b->peak);
    tm_jw_field_array(&w, "results");
    for (size_t i = 0; i < b->n; i++) {
        tm_jw_object(&w);
        tm_jw_field_uint(&w, "positions", b->result[i].seq);
        tm_jw_field_str(&w, "type", type_name(b->result[i].type));
        tm_jw_field_double(&w, "forward_flops_per_second", b->result[i].forward);
        tm_jw_field_double(&w, "backward_flops_per_second", b->result[i].backward);
        tm_jw_field_uint(&w, "workspace_bytes", b->result[i].workspace);
        tm_jw_field_uint(&w, "resident_bytes", b->result[i].memory);
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

static tm_status run(const args *a) {
    bench b = {0};
    static const tm_elem types[] = {TM_ELEM_F32, TM_ELEM_BF16};
    tm_status rc = TM_OK;
    for (size_t t = 0; t < TM_COUNT(types) && rc == TM_OK; t++) {
        rc = tm_kernels_init((unsigned)a->threads, types[t]); /* as a run of that type */
        if (rc == TM_OK && t == 0) b.peak = tm_kernels_peak_flops();
        for (uint32_t seq = SHORTEST; rc == TM_OK && seq <= a->most; seq *= 2) rc = one(&b, a, seq, types[t]);
    }
    if (rc == TM_OK && a->json) rc = print_attention_json(&b, a);
    if (rc == TM_OK && !a->json) print_table(&b, a);
    tm_kernels_close();
    return rc;
}

/* -1: all right; else the exit status. */
static int check_args(const args *a) {
    if (a->threads < 0 || a->threads > 1024) return tm_cli_wrong("attention", "--threads takes 1 to 1024");
    if (a->milliseconds < 0 || a->milliseconds > 60000)
        return tm_cli_wrong("attention", "--milliseconds takes 0 to 60000");
    if (a->kv_heads < 1 || a->heads < a->kv_heads || a->heads % a->kv_heads || a->heads > 1024)
        return tm_cli_wrong("attention", "--heads takes a multiple of --kv-heads, 1024 at most");
    if (a->head_dim < 2 || a->head_dim % 2 || a->head_dim > TM_MAX_HEAD_DIM)
        return tm_cli_wrong("attention", "--head-dim takes an even number from 2 to %d", TM_MAX_HEAD_DIM);
    if (a->window < 0 || a->window > INT32_MAX) return tm_cli_wrong("attention", "--window takes 0 or more");
    if (a->most < SHORTEST || a->most > SHORTEST << (LENGTHS - 1))
        return tm_cli_wrong("attention", "--positions takes %d to %d", SHORTEST, SHORTEST << (LENGTHS - 1));
    return -1;
}

int bench_attention(int argc, char **argv) {
    args a = {.milliseconds = 100, .heads = 12, .kv_heads = 12, .head_dim = 64, .most = 4096};
    const tm_opt opts[] = {
        TM_OPTION("heads", TM_OPT_INT, &a.heads, "N", "(12)"),
        TM_OPTION("kv-heads", TM_OPT_INT, &a.kv_heads, "N", "of keys and values (12)"),
        TM_OPTION("head-dim", TM_OPT_INT, &a.head_dim, "N", "(64)"),
        TM_OPTION("window", TM_OPT_INT, &a.window, "N", "keys that a query sees, 0: all before it (0)"),
        TM_OPTION("positions", TM_OPT_INT, &a.most, "N", "the longest row; lengths double from 512 on (4096)"),
        TM_OPTION("threads", TM_OPT_INT, &a.threads, "N", "(default: as training)"),
        TM_OPTION("milliseconds", TM_OPT_INT, &a.milliseconds, "N", "for each figure; the fastest call counts (100)"),
        TM_FLAG("json", &a.json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "attention [--heads N] [--kv-heads N] [--head-dim N] [--window N] [--positions N] [--json]",
        .about = "Measures causal attention, forward and backward, by length, beside the machine's peak.",
        .example = "tidemill-bench attention --kv-heads 4 --positions 16384",
        TM_CLI_OPTIONS(opts),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    rc = check_args(&a);
    if (rc >= 0) return rc;
    return run(&a) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

/* tidemill bench adam: the optimizer's kernel beside plain loops over the same streams, in one run. */
#include "optim/optim.h"
#include "tools/tools.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MAX_STREAMS = 8, PLAIN_WAYS = 4, MAX_ROUNDS = 101, GROUP = 64 /* elements: a line of bytes, four of fp32 */ };

/* One array that the kernel walks: `bytes` of each element; the gradient is only read. */
typedef struct stream {
    char *at;
    uint32_t bytes;
    bool written;
} stream;

/* A plain loop: how it stores, and how much of one stream it does before it turns to the next. */
typedef struct plain_way {
    const char *stores;
    bool streaming;
    uint32_t run; /* elements, a multiple of GROUP */
} plain_way;
static const plain_way ways[PLAIN_WAYS] = {
    {"ordinary", false, GROUP}, {"ordinary", false, 1024}, {"streaming", true, GROUP}, {"streaming", true, 1024}};

typedef struct bench {
    const tm_optimizer *optimizer;
    tm_optim_opts opts;
    tm_optim_span span;
    uint64_t n, side_bytes; /* side: states of a few bytes a block, which are no stream of their own */
    stream stream[MAX_STREAMS];
    uint32_t n_streams;
    int rounds;
    double seconds, plain_seconds[PLAIN_WAYS]; /* medians */
} bench;

/* As the trainer's slab is made: mapped, with huge pages where the kernel has them. Lives until the process ends. */
static char *map(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static tm_status add_array(bench *b, void **out, uint64_t bytes, uint32_t width, bool written) {
    bytes = tm_round_up(bytes, GROUP * 8);
    *out = map(bytes);
    if (!*out) return tm_nomem((size_t)bytes);
    memset(*out, 0, (size_t)bytes);
    if (width) b->stream[b->n_streams++] = (stream){*out, width, written};
    if (!width) b->side_bytes += bytes;
    return TM_OK;
}

static uint64_t bytes_per_element(const bench *b, bool read_only_once) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->n_streams; i++)
        sum += b->stream[i].bytes * (b->stream[i].written && !read_only_once ? 2u : 1u);
    return sum;
}

/* Everyday magnitudes: no subnormals, whatever the number of steps. */
static void fill(bench *b) {
    static const uint16_t pattern[] = {0x3c23, 0xbc01, 0x3b83, 0xbb44,
                                       0x3c51, 0x3b12, 0xbc33}; /* about 0.01, in bf16 */
    tm_optim_span *x = &b->span;
    for (uint64_t i = 0; i < b->n; i++) {
        uint16_t g = pattern[i % TM_COUNT(pattern)];
        if (x->grad_type == TM_GRAD_BF16)
            ((uint16_t *)(uintptr_t)x->grad)[i] = g;
        else
            ((float *)(uintptr_t)x->grad)[i] = 0.01f * (float)(1 + i % 7);
        if (x->weight)
            x->weight[i] = 0.5f;
        else
            x->weight_hi[i] = 0x3f00;
    }
}

static tm_status make_arrays(bench *b, bool split, bool bf16) {
    const tm_optim_shape shape = {1, 0, b->n};
    tm_optim_span *x = &b->span;
    void *p[3] = {NULL};
    if (split) {
        TM_TRY(add_array(b, &p[0], b->n * 2, 2, true));
        TM_TRY(add_array(b, &p[1], b->n * 2, 2, true));
        x->weight_hi = p[0], x->weight_lo = p[1];
    } else {
        TM_TRY(add_array(b, &p[0], b->n * 4, 4, true));
        x->weight = p[0];
    }
    for (uint32_t k = 0; k < b->optimizer->n_states; k++) {
        const tm_optim_state_kind *kind = &b->optimizer->state[k];
        uint64_t bytes = tm_optim_state_bytes(b->optimizer, &b->opts, k, &shape);
        if (bytes) TM_TRY(add_array(b, &x->state[k], bytes, kind->per == TM_PER_ELEMENT ? kind->bytes : 0, true));
    }
    TM_TRY(add_array(b, &p[2], b->n * (bf16 ? 2 : 4), bf16 ? 2 : 4, false));
    x->grad = p[2];
    x->grad_type = bf16 ? TM_GRAD_BF16 : TM_GRAD_F32;
    x->n = (size_t)b->n;
    fill(b);
    return TM_OK;
}

/* One operation on integers for each 16 bytes, which nothing can be faster than. */
typedef uint32_t lanes __attribute__((vector_size(16), may_alias));

static void touch(char *at, size_t bytes, lanes *sum) {
    for (size_t i = 0; i < bytes; i += sizeof(lanes)) *sum += *(lanes *)(at + i);
}
static void change(char *at, size_t bytes, lanes by) {
    for (size_t i = 0; i < bytes; i += sizeof(lanes)) *(lanes *)(at + i) ^= by;
}
static void change_streaming(char *at, size_t bytes, lanes by) {
#ifdef __SSE2__
    for (size_t i = 0; i < bytes; i += sizeof(lanes)) {
        lanes x = *(lanes *)(at + i) ^ by;
        _mm_stream_si128((__m128i *)(void *)(at + i), (__m128i)x);
    }
#else
    change(at, bytes, by);
#endif
}

static volatile uint32_t zero; /* not known to the compiler */

static void plain(const bench *b, const plain_way *way) {
    uint64_t groups = b->n / way->run;
    lanes all = {0};
#pragma omp parallel
    {
        lanes sum = {0};
        const lanes by = {zero, zero, zero, zero}; /* values stay what they are */
#pragma omp for schedule(static)
        for (uint64_t group = 0; group < groups; group++) {
            for (uint32_t s = 0; s < b->n_streams; s++) {
                const stream *x = &b->stream[s];
                size_t bytes = (size_t)way->run * x->bytes;
                char *at = x->at + group * bytes;
                if (!x->written)
                    touch(at, bytes, &sum);
                else if (way->streaming)
                    change_streaming(at, bytes, by);
                else
                    change(at, bytes, by);
            }
        }
#pragma omp critical
        all += sum;
    }
    static volatile uint32_t kept; /* so that nothing is left out */
    kept = all[0] + all[1] + all[2] + all[3];
    (void)kept;
}

static tm_status update(const bench *b, int64_t t) {
    tm_optim_step step;
    tm_optim_step_init(&step, b->optimizer, &b->opts, 1e-5, t, 0.5);
    uint64_t bad = tm_optim_run(&step, &b->span);
    return bad ? tm_fail(TM_EBUG, "bench adam: %llu values are not finite", (unsigned long long)bad) : TM_OK;
}

/* Turn about, so that whatever else the machine does falls on all of them. The first round warms up. */
static tm_status measure(bench *b) {
    double kernel[MAX_ROUNDS], loops[PLAIN_WAYS][MAX_ROUNDS];
    for (int r = -1; r < b->rounds; r++) {
        int at = r < 0 ? 0 : r;
        uint64_t t0 = tm_now_ns();
        TM_TRY(update(b, r + 2));
        kernel[at] = (double)(tm_now_ns() - t0) * 1e-9;
        for (int w = 0; w < PLAIN_WAYS; w++) {
            t0 = tm_now_ns();
            plain(b, &ways[w]);
            loops[w][at] = (double)(tm_now_ns() - t0) * 1e-9;
        }
    }
    b->seconds = tm_median(kernel, (size_t)b->rounds);
    for (int w = 0; w < PLAIN_WAYS; w++) b->plain_seconds[w] = tm_median(loops[w], (size_t)b->rounds);
    return TM_OK;
}

static int best_way(const bench *b) {
    int best = 0;
    for (int w = 1; w < PLAIN_WAYS; w++)
        if (b->plain_seconds[w] < b->plain_seconds[best]) best = w;
    return best;
}
static double stream_rate(const bench *b, double seconds) {
    return (double)(bytes_per_element(b, false) * b->n) / seconds;
}
static double span_rate(const bench *b) {
    return ((double)(bytes_per_element(b, false) * b->n) + 2 * (double)b->side_bytes) / b->seconds;
}

static tm_status print_adam_json(const bench *b) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "optimizer", b->optimizer->name);
    tm_jw_field_str(&w, "form", b->span.weight ? "fp32" : "split");
    tm_jw_field_str(&w, "gradient", b->span.grad_type == TM_GRAD_BF16 ? "bf16" : "fp32");
    tm_jw_field_str(&w, "isa", tm_optim_isa());
    tm_jw_field_uint(&w, "parameters", b->n);
    tm_jw_field_int(&w, "rounds", b->rounds);
    tm_jw_field_double(&w, "seconds", b->seconds);
    tm_jw_field_double(&w, "parameters_per_second", (double)b->n / b->seconds);
    tm_jw_field_double(&w, "bytes_per_second", span_rate(b));
    tm_jw_field_array(&w, "plain_loops");
    for (int i = 0; i < PLAIN_WAYS; i++) {
        tm_jw_object(&w);
        tm_jw_field_str(&w, "stores", ways[i].stores);
        tm_jw_field_uint(&w, "run_elements", ways[i].run);
        tm_jw_field_double(&w, "bytes_per_second", stream_rate(b, b->plain_seconds[i]));
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    tm_jw_field_double(&w, "plain_bytes_per_second", stream_rate(b, b->plain_seconds[best_way(b)]));
    tm_jw_field_double(&w, "ratio", b->plain_seconds[best_way(b)] / b->seconds);
    return tm_cli_print_json(&w);
}

static void print_table(const bench *b) {
    printf("%s, %s weights, %s gradient, %llu parameters, row %s, median of %d\n", b->optimizer->name,
           b->span.weight ? "fp32" : "split", b->span.grad_type == TM_GRAD_BF16 ? "bf16" : "fp32",
           (unsigned long long)b->n, tm_optim_isa(), b->rounds);
    printf("%-34s %7.2f GB/s  %8.1f M parameters/s  %8.2f ms\n", "update", span_rate(b) * 1e-9,
           (double)b->n / b->seconds * 1e-6, b->seconds * 1e3);
    for (int i = 0; i < PLAIN_WAYS; i++) {
        char name[64];
        snprintf(name, sizeof name, "plain loop, %s, runs of %u", ways[i].stores, ways[i].run);
        printf("%-34s %7.2f GB/s\n", name, stream_rate(b, b->plain_seconds[i]) * 1e-9);
    }
    printf("update over the best plain loop: %.3f\n", b->plain_seconds[best_way(b)] / b->seconds);
}

static int choose(const char *option, const char *text, const char *no, const char *yes, bool *out) {
    *out = !strcmp(text, yes);
    if (*out || !strcmp(text, no)) return -1;
    return tm_cli_wrong("bench adam", "--%s is %s or %s, not '%s'", option, no, yes, text);
}

static int choose_optimizer(const char *name, bench *b) {
    const char *names[32];
    size_t n = 0;
    for (const tm_optimizer *o; (o = tm_optimizer_at(n)) && n < TM_COUNT(names); n++) names[n] = o->name;
    b->optimizer = tm_optimizer_find(name);
    if (!b->optimizer) {
        const char *near = tm_cli_suggest(name, names, n, sizeof *names);
        return tm_cli_wrong("bench adam", "there is no optimizer '%s'%s%s", name, near ? "; did you mean " : "",
                            near ? near : "");
    }
    if (b->optimizer->passes > 1)
        return tm_cli_wrong("bench adam", "'%s' takes several passes over a tensor; give one that takes one", name);
    tm_optim_defaults(b->optimizer, &b->opts);
    if (!strcmp(name, "sgd")) b->opts.momentum = 0.9;
    return -1;
}

static tm_status run(bench *b, bool split, bool bf16) {
    uint64_t need = b->n * 16 + TM_MIB, have = tm_mem_available_bytes();
    if (need > have) {
        char x[32], y[32];
        return tm_fail(TM_EBUDGET, "bench adam: %llu parameters need %s, and %s is available; give a smaller --params",
                       (unsigned long long)b->n, tm_format_size(need, x, sizeof x), tm_format_size(have, y, sizeof y));
    }
    TM_TRY(make_arrays(b, split, bf16));
    return measure(b);
}

int tm_bench_adam(int argc, char **argv) {
    const char *form = "fp32", *gradient = NULL, *name = "adamw";
    int64_t params = 64 << 20, rounds = 9;
    bool json = false, split, bf16;
    const tm_opt opts[] = {
        TM_OPTION("params", TM_OPT_INT, &params, "N", "parameters (67108864)"),
        TM_OPTION("form", TM_OPT_STRING, &form, "FORM", "fp32, or split: bf16 weights and the other 16 bits (fp32)"),
        TM_OPTION("gradient", TM_OPT_STRING, &gradient, "TYPE", "fp32 or bf16 (fp32 for fp32, bf16 for split)"),
        TM_OPTION("optimizer", TM_OPT_STRING, &name, "NAME", "another one of the table (adamw)"),
        TM_OPTION("rounds", TM_OPT_INT, &rounds, "N", "times that each is measured (9)"),
        TM_FLAG("json", &json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "bench adam [--params N] [--form fp32|split] [--gradient fp32|bf16] [--optimizer NAME] [--json]",
        .about = "Times the update of parameters that lie in memory, in turn with plain loops that read and write the "
                 "same arrays and compute next to nothing, with ordinary and with streaming stores. Bytes are those "
                 "of the arrays: read once, and written once where they change.",
        .example = "tidemill bench adam --params 64000000 --form split --json",
        TM_CLI_OPTIONS(opts),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    bench b = {0};
    if (params < 1 || params > (int64_t)1 << 36) return tm_cli_wrong("bench adam", "--params takes 1 to 2^36");
    if (rounds < 1 || rounds > MAX_ROUNDS) return tm_cli_wrong("bench adam", "--rounds takes 1 to %d", MAX_ROUNDS);
    if ((rc = choose("form", form, "fp32", "split", &split)) >= 0) return rc;
    if (!gradient) gradient = split ? "bf16" : "fp32";
    if ((rc = choose("gradient", gradient, "fp32", "bf16", &bf16)) >= 0) return rc;
    if ((rc = choose_optimizer(name, &b)) >= 0) return rc;
    b.n = (uint64_t)params;
    b.rounds = (int)rounds;
    if (run(&b, split, bf16) != TM_OK) return tm_cmd_fail();
    if (!json) print_table(&b);
    return json && print_adam_json(&b) != TM_OK ? tm_cmd_fail() : TM_EXIT_DONE;
}

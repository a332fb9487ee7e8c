/* bench_model SHAPE PRECISION [THREADS [ROWS SEQ]]: (KEEP_LOGITS=1: the head's are kept; LORA=RANK: a frozen base with
 * adapters of all matrices, DORA=1, DROPOUT=P) forward and backward of random weights in memory; tokens a second, and
 * where the time goes. Not a test. SHAPE: smollm2 | 12x768 | a config.json. */
#include "driver.h"
#include "kernels/kernels.h"
#include "safetensors_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const shapes[][2] = {
    {"smollm2", "{\"model_type\":\"llama\",\"vocab_size\":49152,\"hidden_size\":576,\"intermediate_size\":1536,"
                "\"num_hidden_layers\":30,\"num_attention_heads\":9,\"num_key_value_heads\":3,\"rope_theta\":100000,"
                "\"tie_word_embeddings\":true,\"max_position_embeddings\":8192}"},
    {"12x768", "{\"model_type\":\"llama\",\"vocab_size\":32000,\"hidden_size\":768,\"intermediate_size\":2048,"
               "\"num_hidden_layers\":12,\"num_attention_heads\":12,\"num_key_value_heads\":12,"
               "\"max_position_embeddings\":2048}"},
};

static void must(tm_status s) {
    if (s == TM_OK) return;
    fprintf(stderr, "%s\n", tm_error_get()->text);
    exit(1);
}

/* Small made-up values: what they are does not matter, and normal ones take half a minute to make. */
static void fill_weights(run *r) {
    for (uint32_t t = 0; t < tm_model_tensors(r->m); t++) {
        uint64_t n = tm_model_tensor(r->m, t)->elements;
        float *values = malloc(n * sizeof *values);
        uint32_t x = t;
        for (uint64_t i = 0; i < n; i++) {
            x = x * 1664525U + 1013904223U;
            values[i] = ((float)(x >> 8) / 16777216.0F - 0.5F) * 0.07F;
        }
        run_set_tensor(r, t, values);
        free(values);
    }
}

static double setting(const char *name) {
    const char *text = getenv(name);
    return text ? atof(text) : 0;
}

static bool adapts(void *ctx, const char *module, tm_adapter_spec *out) {
    (void)ctx;
    *out = (tm_adapter_spec){.rank = (uint32_t)setting("LORA"), .scale = 2, .dora = setting("DORA") > 0};
    return strstr(module, "layers.") || strstr(module, ".h.");
}

static void create(tm_model **m, const tm_model_config *config, tm_dtype compute) {
    const tm_model_roles roles = {.adapts = adapts, .dropout = setting("DROPOUT")};
    must(tm_model_create_roles(m, config, compute, setting("LORA") > 0 ? &roles : NULL));
}

static double seconds(void) {
    return (double)tm_now_ns() * 1e-9;
}
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    const char *shape = argc > 1 ? argv[1] : "smollm2", *precision = argc > 2 ? argv[2] : "fp32", *json = NULL;
    unsigned threads = argc > 3 ? (unsigned)atoi(argv[3]) : 2;
    uint32_t rows = argc > 5 ? (uint32_t)atoi(argv[4]) : 2, seq = argc > 5 ? (uint32_t)atoi(argv[5]) : 256;
    for (size_t i = 0; i < TM_COUNT(shapes); i++)
        if (!strcmp(shapes[i][0], shape)) json = shapes[i][1];
    size_t length;
    if (!json && strstr(shape, ".json")) json = read_text(shape, &length);
    if (!json) return fprintf(stderr, "unknown shape %s\n", shape), 2;
    tm_model_config config;
    tm_model *m;
    must(tm_kernels_init(threads, strcmp(precision, "bf16") ? TM_ELEM_F32 : TM_ELEM_BF16));
    must(tm_model_config_parse(&config, json, strlen(json), shape));
    create(&m, &config, strcmp(precision, "bf16") ? TM_F32 : TM_BF16);
    uint32_t tokens = (uint32_t)tm_round_up((uint64_t)rows * seq, 64);
    int32_t *ids = calloc(tokens, sizeof *ids), *labels = calloc(tokens, sizeof *labels);
    for (uint32_t t = 0; t < tokens; t++) {
        ids[t] = (int32_t)(t * 7919U % config.vocab_size);
        labels[t] = (int32_t)((t + 1) * 7919U % config.vocab_size);
    }
    tm_micro_batch batch = {.rows = rows, .seq = seq, .tokens = tokens, .ids = ids, .labels = labels};
    batch.training = true;
    run r;
    run_open(&r, m, 1, &batch);
    r.keep_logits = getenv("KEEP_LOGITS") != NULL;
    fill_weights(&r);
    for (uint32_t t = 0; t < rows * seq; t++) r.coefficient[0][t] = 1.0F / (float)(rows * seq);
    double best = 1e9, best_forward = 1e9, cpu = 1e9;
    for (int i = 0; i < 3; i++) {
        run_clock_reset();
        double t0 = seconds(), c0 = cpu_seconds();
        run_forward(&r, BATCH_OUTER);
        double t1 = seconds();
        run_backward(&r, BATCH_OUTER);
        double t2 = seconds();
        cpu = cpu_seconds() - c0 < cpu ? cpu_seconds() - c0 : cpu;
        best = t2 - t0 < best ? t2 - t0 : best;
        best_forward = t1 - t0 < best_forward ? t1 - t0 : best_forward;
    }
    uint64_t labels_n;
    double loss = run_loss(&r, NULL, &labels_n);
    double products = 6.0 * (double)rows * seq;
    double weights = (double)tm_model_parameters(m) -
                     (config.tie_word_embeddings ? 0.0 : (double)config.vocab_size * config.hidden_size);
    printf("%s %s %ux%u %s\n", shape, precision, rows, seq, tm_kernels_describe());
    printf("loss %.4f forward %.3f s, both %.3f s, %.1f tokens/s, %.1f GFLOP/s in products alone\n", loss, best_forward,
           best, (double)rows * seq / best, products * weights / best * 1e-9);
    printf("CPU time %.3f s: %.1f GFLOP/s a core\n", cpu, products * weights / cpu * 1e-9);
    run_clock_print();
    tm_products p = tm_model_products(m, (uint64_t)rows * seq);
    printf("peak resident %.1f MB, kernels say %.1f MB\n", (double)tm_mem_resident_peak_bytes() / 1e6,
           (double)tm_kernels_resident_bytes(&p) / 1e6);
    run_close(&r);
    tm_model_free(m);
    tm_kernels_close();
    free(ids), free(labels);
    return 0;
}

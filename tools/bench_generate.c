/* tidemill bench generate */
#include "format/format.h"
#include "infer/engine.h"
#include "tools/tools.h"

#include <stdio.h>

enum { SHORT_PROMPT = 4, MOST_SEQUENCES = 256, READ_BYTES = 256 << 20 };

typedef struct bench_args {
    tm_engine_opts engine;
    const char *precision;
    int64_t prompt, tokens, sequences;
    bool json;
} bench_args;

typedef struct bench {
    const bench_args *args;
    tm_engine *engine;
    uint32_t started, ended;
    uint64_t answered; /* tokens */
    double open_seconds, cold_seconds, first_seconds, decode_seconds;
    uint64_t decoded;
    uint64_t weight_bytes, read_rate;
} bench;

/* Ids that every vocabulary has; no two prompts begin alike, so that none is computed with another. */
static void fill_prompt(int32_t *id, size_t n, uint32_t number) {
    for (size_t i = 0; i < n; i++) id[i] = (int32_t)(3 + (i * 7 + number * 11 + 1) % 200);
}

static void take(void *ctx, const tm_token_event *t) {
    bench *b = ctx;
    if (t->of_prompt || t->id < 0) return;
    b->answered++;
    b->started += t->index == 0;
    b->ended += t->finish != TM_GOES_ON;
}

static tm_status ask(bench *b, size_t prompt, uint32_t tokens, uint32_t number) {
    uint64_t ignored;
    int32_t *id = tm_malloc(prompt * sizeof *id);
    if (!id) return tm_nomem(prompt * sizeof *id);
    fill_prompt(id, prompt, number);
    const tm_request r = {
        .prompt = id, .n_prompt = prompt, .max_new_tokens = tokens, .ignore_eos = true, .take = take, .ctx = b};
    tm_status rc = tm_engine_add(b->engine, &r, &ignored);
    tm_free(id);
    return rc;
}

/* The first token of a long prompt: right after the start, and again. */
static tm_status measure_first(bench *b) {
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t began = tm_now_ns();
        bool busy = true;
        TM_TRY(ask(b, (size_t)b->args->prompt, 1, i));
        while (busy) TM_TRY(tm_engine_step(b->engine, &busy));
        double seconds = tm_seconds(tm_now_ns() - began);
        if (i == 0) b->cold_seconds = b->open_seconds + seconds;
        if (i == 1 || seconds < b->first_seconds) b->first_seconds = seconds;
    }
    return TM_OK;
}

/* Steps in which all sequences answer. */
static tm_status measure_decoding(bench *b) {
    uint32_t n = (uint32_t)b->args->sequences;
    bool busy = true;
    b->started = b->ended = 0;
    for (uint32_t i = 0; i < n; i++) TM_TRY(ask(b, SHORT_PROMPT, (uint32_t)b->args->tokens, 8 + i));
    while (busy) {
        bool all = b->started == n && b->ended == 0;
        uint64_t began = tm_now_ns(), before = b->answered;
        TM_TRY(tm_engine_step(b->engine, &busy));
        if (!all) continue;
        b->decode_seconds += tm_seconds(tm_now_ns() - began);
        b->decoded += b->answered - before;
    }
    return TM_OK;
}

/* What a token has to read: every tensor once, the lookup's table where it is the head's too. */
static tm_status count_weights(bench *b) {
    tm_source *s;
    TM_TRY(tm_source_open(&s, b->args->engine.model));
    bool tied = tm_source_find(s, "lm_head.weight") < 0;
    int64_t table = tm_source_find(s, "model.embed_tokens.weight");
    for (uint32_t i = 0; i < tm_source_tensors(s); i++)
        if (tied || (int64_t)i != table) b->weight_bytes += tm_source_tensor_get(s, i)->bytes;
    tm_source_close(s);
    return TM_OK;
}

static tm_status measure(bench *b) {
    uint64_t began = tm_now_ns();
    TM_TRY(count_weights(b));
    TM_TRY(tm_engine_open(&b->engine, &b->args->engine));
    b->open_seconds = tm_seconds(tm_now_ns() - began);
    TM_TRY(measure_first(b));
    TM_TRY(measure_decoding(b));
    bool room = !b->args->engine.tiers.host_budget; /* a budget is the engine's alone */
    return room ? tm_kernels_read_rate(READ_BYTES, &b->read_rate) : TM_OK;
}

static double tokens_per_second(const bench *b) {
    return b->decode_seconds > 0 ? (double)b->decoded / b->decode_seconds : 0;
}
/* Of weights, a step being a pass over all of them. */
static double bytes_per_second(const bench *b) {
    return tokens_per_second(b) / (double)b->args->sequences * (double)b->weight_bytes;
}

static tm_status print_generation_json(const bench *b) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_uint(&w, "sequences", (uint64_t)b->args->sequences);
    tm_jw_field_uint(&w, "prompt_tokens", (uint64_t)b->args->prompt);
    tm_jw_field_double(&w, "open_seconds", b->open_seconds);
    tm_jw_field_double(&w, "cold_first_token_seconds", b->cold_seconds);
    tm_jw_field_double(&w, "first_token_seconds", b->first_seconds);
    tm_jw_field_double(&w, "tokens_per_second", tokens_per_second(b));
    tm_jw_field_double(&w, "seconds_per_step", (double)b->args->sequences / tokens_per_second(b));
    tm_jw_field_uint(&w, "weight_bytes", b->weight_bytes);
    tm_jw_field_double(&w, "weight_bytes_per_second", bytes_per_second(b));
    tm_jw_field_uint(&w, "memory_bytes_per_second", b->read_rate);
    tm_jw_field_str(&w, "kernels", tm_kernels_describe());
    return tm_cli_print_json(&w);
}

static void print_table(const bench *b) {
    printf("model            %.1f MB of weights, %s\n", (double)b->weight_bytes * 1e-6, tm_kernels_describe());
    printf("first token      %.3f s of %lld tokens; %.3f s with the start\n", b->first_seconds,
           (long long)b->args->prompt, b->cold_seconds);
    printf("decoding         %.1f tokens/s, %lld side by side: %.2f ms a step\n", tokens_per_second(b),
           (long long)b->args->sequences, 1000 * (double)b->args->sequences / tokens_per_second(b));
    printf("weights          %.2f GB/s", bytes_per_second(b) * 1e-9);
    if (b->read_rate) printf(", beside %.2f GB/s of memory read", (double)b->read_rate * 1e-9);
    puts("");
}

static tm_status run(const bench_args *a) {
    bench b = {.args = a};
    tm_status rc = measure(&b);
    if (rc == TM_OK && a->json) rc = print_generation_json(&b);
    if (rc == TM_OK && !a->json) print_table(&b);
    tm_engine_close(b.engine);
    return rc;
}

static int check(bench_args *a) {
    if (a->prompt < 1 || a->prompt > 1 << 20 || a->tokens < 2 || a->tokens > 1 << 20)
        return tm_cli_wrong("bench generate", "--prompt and --tokens take 1 and 2 to 1048576");
    if (a->sequences < 1 || a->sequences > MOST_SEQUENCES)
        return tm_cli_wrong("bench generate", "--sequences takes 1 to 256");
    a->engine.sequences = (uint32_t)a->sequences;
    a->engine.positions = (uint32_t)tm_max_u64((uint64_t)a->prompt + 1, SHORT_PROMPT + (uint64_t)a->tokens);
    if (!a->precision) return -1;
    a->engine.precision_given = true;
    return tm_precision_option("bench generate", a->precision, &a->engine.precision);
}

int tm_bench_generate(int argc, char **argv) {
    bench_args a = {.prompt = 512, .tokens = 64, .sequences = 1};
    tm_engine_opts *e = &a.engine;
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &e->model, "DIR", "model folder or .gguf file"),
        TM_OPTION("sequences", TM_OPT_INT, &a.sequences, "N", "answers side by side (1)"),
        TM_OPTION("tokens", TM_OPT_INT, &a.tokens, "N", "of each answer (64)"),
        TM_OPTION("prompt", TM_OPT_INT, &a.prompt, "N", "tokens of the prompt whose first token is timed (512)"),
        TM_OPTION("precision", TM_OPT_STRING, &a.precision, "fp32|bf16", "arithmetic (default: the model's own type)"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &e->tiers.host_budget, "SIZE", "hard limit of host memory"),
        TM_OPTION("offload-path", TM_OPT_STRING, &e->tiers.offload_path, "PATH",
                  "where the cache goes that does not fit"),
        TM_FLAG("json", &a.json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "bench generate --model DIR [--sequences N] [--tokens N] [--prompt N] [--json]",
        .about =
            "Measures generation: seconds to the first token of a prompt, tokens a second while all sequences answer, "
            "and the bytes of weights that takes a second beside the rate at which memory is read.",
        .example = "tidemill bench generate --model smollm2 --sequences 16",
        TM_CLI_OPTIONS(opts),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    e->model = tm_cmd_model(e->model);
    rc = check(&a);
    if (rc >= 0) return rc;
    return run(&a) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

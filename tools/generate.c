/* tidemill generate */
#include "infer/engine.h"
#include "tools/tools.h"

#include <stdio.h>
#include <unistd.h>

static void put_ids(tm_json_writer *w, const char *key, const int32_t *id, size_t n) {
    tm_jw_field_array(w, key);
    for (size_t i = 0; i < n; i++) tm_jw_int(w, id[i]);
    tm_jw_array_end(w);
}

static void put_fields(tm_json_writer *w, const tm_generated *g) {
    put_ids(w, "prompt_ids", g->prompt_ids, g->n_prompt);
    put_ids(w, "ids", g->ids, g->n_ids);
    tm_jw_field_strn(w, "text", g->text.data ? g->text.data : "", g->text.len);
    tm_jw_field_str(w, "finish_reason", g->finish_reason);
}

/* One answer is the object; with several the first is, and all are in "answers". */
static int print_generated_json(const tm_generated *g, uint32_t n) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    put_fields(&w, g);
    if (n > 1) {
        tm_jw_field_array(&w, "answers");
        for (uint32_t i = 0; i < n; i++) {
            tm_jw_object(&w);
            tm_jw_field_uint(&w, "prompt", g[i].prompt);
            tm_jw_field_uint(&w, "answer", g[i].answer);
            put_fields(&w, &g[i]);
            tm_jw_object_end(&w);
        }
        tm_jw_array_end(&w);
    }
    return tm_cli_print_json(&w) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

static int print_generated(const tm_generated *g, uint32_t n, bool shown) {
    for (uint32_t i = 0; i < n; i++) {
        if (n > 1) printf("== prompt %u, answer %u ==\n", g[i].prompt + 1, g[i].answer + 1);
        puts(!shown && g[i].text.data ? g[i].text.data : "");
    }
    return TM_EXIT_DONE;
}

static void show(void *ctx, const char *text, size_t n) {
    (void)ctx;
    (void)fwrite(text, 1, n, stdout);
    (void)fflush(stdout);
}

enum { MOST_PROMPTS = 64, MOST_ANSWERS = 64 };
typedef struct given {
    tm_generate_args a;
    tm_sampling s;
    const char *precision;
    int64_t max_new, seed, top_k, answers;
    bool json;
} given;

static int check(given *g) {
    tm_generate_args *a = &g->a;
    if (!a->n_prompts == !a->messages) return tm_cli_wrong("generate", "give either --prompt or --messages");
    if (g->max_new < 0 || g->max_new > 1 << 20 || g->top_k < 0 || g->top_k > INT32_MAX || g->answers < 1 ||
        g->answers > MOST_ANSWERS || g->s.temperature < 0)
        return tm_cli_wrong("generate", "a number is out of range");
    a->max_new_tokens = (uint32_t)g->max_new;
    a->answers = (uint32_t)g->answers;
    a->sampling = &g->s;
    g->s.seed = (uint64_t)g->seed;
    g->s.top_k = (uint32_t)g->top_k;
    if (!g->precision) return -1;
    a->precision_given = true;
    return tm_precision_option("generate", g->precision, &a->precision);
}

static int generate(given *g) {
    tm_generated *out;
    uint32_t n;
    bool one = g->a.answers == 1 && (g->a.messages || g->a.n_prompts == 1);
    bool shown = one && !g->json && isatty(STDOUT_FILENO) == 1;
    if (shown) g->a.show = show;
    if (tm_generate_run(&g->a, &out, &n) != TM_OK) return tm_cmd_fail();
    int rc = g->json ? print_generated_json(out, n) : print_generated(out, n, shown);
    tm_generated_free(out, n);
    return rc;
}

int tm_cmd_generate(int argc, char **argv) {
    given g = {.max_new = 256, .answers = 1};
    const char *prompt[MOST_PROMPTS], *stop[TM_ENGINE_STOPS];
    tm_opt_list prompts = {.value = prompt, .cap = MOST_PROMPTS}, stops = {.value = stop, .cap = TM_ENGINE_STOPS};
    tm_generate_args *a = &g.a;
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &a->model, "DIR", "model folder, .gguf file or an adapter's folder"),
        TM_OPTION("prompt", TM_OPT_LIST, &prompts, "TEXT", "raw text to continue; several run side by side"),
        TM_OPTION("messages", TM_OPT_STRING, &a->messages, "FILE",
                  "one object {\"messages\": [...]}; uses the chat template"),
        TM_OPTION("max-new-tokens", TM_OPT_INT, &g.max_new, "N", "longest continuation (256; 0: none)"),
        TM_OPTION("temperature", TM_OPT_DOUBLE, &g.s.temperature, "T", "0 (default) is greedy"),
        TM_OPTION("top-k", TM_OPT_INT, &g.top_k, "K", "draw from the K likeliest (0: all)"),
        TM_OPTION("top-p", TM_OPT_DOUBLE, &g.s.top_p, "P", "draw from the likeliest that have the share P together"),
        TM_OPTION("min-p", TM_OPT_DOUBLE, &g.s.min_p, "P", "draw from what is at least P times as likely as the first"),
        TM_OPTION("typical-p", TM_OPT_DOUBLE, &g.s.typical_p, "P", "draw from the most typical, of the share P"),
        TM_OPTION("repetition-penalty", TM_OPT_DOUBLE, &g.s.repetition_penalty, "X",
                  "divides what was in prompt or answer (1: off)"),
        TM_OPTION("presence-penalty", TM_OPT_DOUBLE, &g.s.presence_penalty, "X", "taken off what was in the answer"),
        TM_OPTION("frequency-penalty", TM_OPT_DOUBLE, &g.s.frequency_penalty, "X", "the same, as often as it was"),
        TM_OPTION("stop", TM_OPT_LIST, &stops, "TEXT", "end before this text; may be repeated"),
        TM_OPTION("n", TM_OPT_INT, &g.answers, "N", "answers to each prompt (1)"),
        TM_OPTION("seed", TM_OPT_INT, &g.seed, "S", "of the draws at a temperature above 0; answer i takes S + i"),
        TM_OPTION("precision", TM_OPT_STRING, &g.precision, "fp32|bf16", "arithmetic (default: the model's own type)"),
        TM_OPTION("adapter", TM_OPT_STRING, &a->tiers.adapter, "DIR",
                  "adapter to run it with, as PEFT's folder has it"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &a->tiers.host_budget, "SIZE", "hard limit of host memory"),
        TM_OPTION("offload-path", TM_OPT_STRING, &a->tiers.offload_path, "PATH",
                  "where goes what does not fit: weights, the cache"),
        TM_OPTION("device", TM_OPT_STRING, &a->tiers.device, "NAME", "cpu (default), cpu-arena, cuda:N"),
        TM_OPTION("device-budget", TM_OPT_SIZE, &a->tiers.device_budget, "SIZE", "hard limit of the device's memory"),
        TM_FLAG("json", &g.json, "print prompt_ids, ids, text and finish_reason as one JSON object"),
    };
    const tm_cli cli = {
        .usage = "generate --model DIR (--prompt TEXT... | --messages FILE) [--max-new-tokens N]",
        .about =
            "Continues prompts or answers a conversation; prints the continuation only, without special tokens, to a "
            "terminal as it comes. Stops at any end token of the model.",
        .example = "tidemill generate --model smollm2 --prompt \"The tide\" --max-new-tokens 20\n"
                   "tidemill generate --model smollm2 --messages ask.json --temperature 0.7 --top-p 0.9 --n 3",
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (tm_cmd_models(&a->model, &a->tiers.adapter) != TM_OK) return tm_cmd_fail();
    a->prompt = prompt, a->n_prompts = (uint32_t)prompts.count;
    a->stop = stop, a->n_stop = (uint32_t)stops.count;
    rc = check(&g);
    return rc >= 0 ? rc : generate(&g);
}

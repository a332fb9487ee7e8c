/* tidemill generate */
#include "tools/tools.h"
#include "infer/infer.h"

#include <stdio.h>

static void put_ids(tm_json_writer *w, const char *key, const int32_t *id, size_t n) {
    tm_jw_field_array(w, key);
    for (size_t i = 0; i < n; i++) tm_jw_int(w, id[i]);
    tm_jw_array_end(w);
}

static int print_generated_json(const tm_generated *g) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    put_ids(&w, "prompt_ids", g->prompt_ids, g->n_prompt);
    put_ids(&w, "ids", g->ids, g->n_ids);
    tm_jw_field_strn(&w, "text", g->text.data ? g->text.data : "", g->text.len);
    tm_jw_field_str(&w, "finish_reason", g->finish_reason);
    return tm_cli_print_json(&w) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

int tm_cmd_generate(int argc, char **argv) {
    const char *precision = "fp32";
    int64_t max_new = 256, seed = 0;
    bool json = false;
    tm_generate_args a = {0};
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &a.model, "DIR", "model folder or .gguf file"),
        TM_OPTION("prompt", TM_OPT_STRING, &a.prompt, "TEXT", "raw text to continue"),
        TM_OPTION("messages", TM_OPT_STRING, &a.messages, "FILE",
                  "one object {\"messages\": [...]}; uses the chat template"),
        TM_OPTION("max-new-tokens", TM_OPT_INT, &max_new, "N", "longest continuation (256; 0: none)"),
        TM_OPTION("temperature", TM_OPT_DOUBLE, &a.temperature, "T", "0 (default) is greedy"),
        TM_OPTION("seed", TM_OPT_INT, &seed, "S", "of the draws at a temperature above 0"),
        TM_OPTION("precision", TM_OPT_STRING, &precision, "fp32|bf16", "arithmetic (default fp32)"),
        TM_OPTION("adapter", TM_OPT_STRING, &a.tiers.adapter, "DIR", "adapter to run it with, as PEFT's folder has it"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &a.tiers.host_budget, "SIZE", "hard limit of host memory"),
        TM_OPTION("offload-path", TM_OPT_STRING, &a.tiers.offload_path, "PATH", "where weights go that do not fit"),
        TM_OPTION("device", TM_OPT_STRING, &a.tiers.device, "NAME", "cpu (default), cpu-arena, cuda:N"),
        TM_OPTION("device-budget", TM_OPT_SIZE, &a.tiers.device_budget, "SIZE", "hard limit of the device's memory"),
        TM_FLAG("json", &json, "print prompt_ids, ids, text and finish_reason as one JSON object"),
    };
    const tm_cli cli = {
        .usage = "generate --model DIR (--prompt TEXT | --messages FILE) [--max-new-tokens N]",
        .about = "Continues a prompt or answers a conversation; prints the continuation only, without special tokens. "
                 "Stops at any end token of the model.",
        .example = "tidemill generate --model smollm2 --prompt \"The tide\" --max-new-tokens 20",
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (!a.prompt == !a.messages) return tm_cli_wrong("generate", "give either --prompt or --messages");
    if (max_new < 0 || max_new > 1 << 20 || a.temperature < 0)
        return tm_cli_wrong("generate", "a number is out of range");
    a.model = tm_cmd_model(a.model);
    a.tiers.adapter = tm_cmd_model(a.tiers.adapter);
    rc = tm_precision_option("generate", precision, &a.precision);
    if (rc >= 0) return rc;
    a.max_new_tokens = (uint32_t)max_new;
    a.seed = (uint64_t)seed;
    tm_generated g;
    if (tm_generate_run(&a, &g) != TM_OK) return tm_cmd_fail();
    if (json)
        rc = print_generated_json(&g);
    else
        puts(g.text.data ? g.text.data : "");
    tm_generated_free(&g);
    return json ? rc : TM_EXIT_DONE;
}

/* tidemill serve */
#include "tools/tools.h"
#include "serve/serve.h"

#include <string.h>

enum { MOST_PORT = 65535, MOST_SEQUENCES = 256, MOST_POSITIONS = 1 << 20, DEFAULT_SEQUENCES = 4 };

typedef struct adapters {
    char *name[TM_SERVE_ADAPTERS]; /* ours */
    const char *folder[TM_SERVE_ADAPTERS];
    uint32_t n;
} adapters;

/* Where the model is an adapter's folder: its base, and the adapter by the folder's name. */
static tm_status take_model(tm_serve_args *args, adapters *a) {
    const char *own = NULL;
    TM_TRY(tm_cmd_models(&args->engine.model, &own));
    if (!own) return TM_OK;
    size_t end = strlen(own);
    while (end > 1 && own[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && own[begin - 1] != '/') begin--;
    a->name[a->n] = tm_strndup(own + begin, end - begin);
    if (!a->name[a->n]) return tm_nomem(end - begin);
    a->folder[a->n++] = own;
    return TM_OK;
}

/* NAME=DIR each. */
static int split_adapters(const tm_opt_list *given, adapters *a) {
    for (size_t i = 0; i < given->count; i++) {
        if (a->n == TM_SERVE_ADAPTERS) return tm_cli_wrong("serve", "more than %d adapters", TM_SERVE_ADAPTERS);
        const char *equals = strchr(given->value[i], '=');
        if (!equals || equals == given->value[i] || !equals[1])
            return tm_cli_wrong("serve", "--adapter is NAME=DIR, not '%s'", given->value[i]);
        a->name[a->n] = tm_strndup(given->value[i], (size_t)(equals - given->value[i]));
        if (!a->name[a->n]) return (void)tm_nomem(strlen(given->value[i])), tm_cmd_fail();
        a->folder[a->n++] = equals + 1;
    }
    return -1;
}

static int check_numbers(int64_t port, int64_t sequences, int64_t positions) {
    if (port < 0 || port > MOST_PORT) return tm_cli_wrong("serve", "--port is from 0 to %d", MOST_PORT);
    if (sequences < 1 || sequences > MOST_SEQUENCES)
        return tm_cli_wrong("serve", "--sequences is from 1 to %d", MOST_SEQUENCES);
    if (positions < 0 || positions > MOST_POSITIONS)
        return tm_cli_wrong("serve", "--positions is from 1 to %d", MOST_POSITIONS);
    return -1;
}

static int run(tm_serve_args *a, const tm_opt_list *given, const char *precision) {
    adapters chosen = {.n = 0};
    int rc = take_model(a, &chosen) == TM_OK ? split_adapters(given, &chosen) : tm_cmd_fail();
    a->engine.precision_given = precision != NULL;
    if (rc < 0 && precision) rc = tm_precision_option("serve", precision, &a->engine.precision);
    a->engine.adapters = chosen.folder;
    a->engine.n_adapters = chosen.n;
    a->names = (const char *const *)chosen.name;
    if (rc < 0) rc = tm_serve_run(a) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
    for (uint32_t i = 0; i < chosen.n; i++) tm_free(chosen.name[i]);
    return rc;
}

int tm_cmd_serve(int argc, char **argv) {
    const char *precision = NULL, *folders[TM_SERVE_ADAPTERS];
    int64_t port = 8000, sequences = DEFAULT_SEQUENCES, positions = 0;
    tm_opt_list given = {.value = folders, .cap = TM_SERVE_ADAPTERS};
    tm_serve_args a = {.host = "127.0.0.1"};
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &a.engine.model, "DIR", "model folder, .gguf file or an adapter's folder"),
        TM_OPTION("adapter", TM_OPT_LIST, &given, "NAME=DIR", "an adapter of it, and its name; may be repeated"),
        TM_OPTION("name", TM_OPT_STRING, &a.name, "NAME", "what requests call the model (the folder's name)"),
        TM_OPTION("host", TM_OPT_STRING, &a.host, "ADDRESS", "where it listens (127.0.0.1: this machine alone)"),
        TM_OPTION("port", TM_OPT_INT, &port, "N", "8000; 0: any that is free"),
        TM_OPTION("api-key", TM_OPT_STRING, &a.api_key, "KEY", "what clients have to send as their key"),
        TM_OPTION("sequences", TM_OPT_INT, &sequences, "N", "answers at a time (4); others wait"),
        TM_OPTION("positions", TM_OPT_INT, &positions, "N",
                  "of prompt and answer together (the model's, at most 4096)"),
        TM_OPTION("precision", TM_OPT_STRING, &precision, "fp32|bf16", "arithmetic (the model's own type)"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &a.engine.tiers.host_budget, "SIZE", "hard limit of host memory"),
        TM_OPTION("offload-path", TM_OPT_STRING, &a.engine.tiers.offload_path, "PATH", "where goes what does not fit"),
        TM_OPTION("device", TM_OPT_STRING, &a.engine.tiers.device, "NAME", "cpu (default), cpu-arena, cuda:N"),
        TM_OPTION("device-budget", TM_OPT_SIZE, &a.engine.tiers.device_budget, "SIZE",
                  "hard limit of the device's memory"),
    };
    const tm_cli cli = {
        .usage = "serve --model DIR [--adapter NAME=DIR]... [--host 127.0.0.1] [--port 8000]",
        .about =
            "Answers OpenAI's clients: /v1/chat/completions, /v1/completions, /v1/models, /health. It is for looking "
            "at "
            "what was trained before it goes to a real server. Ctrl-C or SIGTERM ends it: what runs has ten seconds.",
        .example = "tidemill serve --model smollm2 --adapter lora=out\n"
                   "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{\"model\": "
                   "\"lora\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'",
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc < 0) rc = check_numbers(port, sequences, positions);
    if (rc < 0 && a.api_key && !*a.api_key) rc = tm_cli_wrong("serve", "--api-key is empty");
    if (rc >= 0) return rc;
    a.port = (uint16_t)port;
    a.engine.sequences = (uint32_t)sequences;
    a.engine.positions = (uint32_t)positions;
    return run(&a, &given, precision);
}

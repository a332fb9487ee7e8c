/* tidemill convert IN OUT: GGUF <-> Hugging Face folder, PEFT folder -> llama.cpp's adapter. */
#include "tools/conversion.h"
#include "tools/random_model.h"

#include <string.h>

static int convert_random(const tm_export_request *r, int64_t seed, uint64_t host_budget) {
    tm_random_model model;
    if (tm_random_model_open(&model, r->in, (uint64_t)seed) != TM_OK) return tm_cmd_fail();
    int rc = tm_run_conversion(
        &(tm_conversion){.what = "making",
                         .request = (tm_export_request){.source = model.source, .out = r->out, .convert = r->convert},
                         .host_budget = host_budget});
    tm_random_model_close(&model);
    return rc;
}

int tm_cmd_convert(int argc, char **argv) {
    const char *place[2] = {NULL, NULL}, *dtype = NULL, *base = NULL, *offload = NULL, *init = NULL;
    uint64_t host_budget = UINT64_MAX, shard = 0;
    int64_t seed = -1;
    const tm_opt opts[] = {
        TM_OPTION("dtype", TM_OPT_STRING, &dtype, "TYPE",
                  "f32, bf16, f16; to GGUF q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0; to a folder nf4, int8, "
                  "int4; default: "
                  "f32 to a folder, the source's to GGUF"),
        TM_OPTION("base", TM_OPT_STRING, &base, "DIR", "of an adapter; default: where its adapter_config.json says"),
        TM_OPTION("init", TM_OPT_STRING, &init, "random",
                  "only IN's config.json counts: the model that training with init: random begins with"),
        TM_OPTION("seed", TM_OPT_INT, &seed, "N", "of --init random; default 42"),
        TM_OPTION("max-shard-size", TM_OPT_SIZE, &shard, "SIZE", "of a folder's files; default 50GB"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &host_budget, "SIZE", "limit of host memory; at least 64MiB"),
        TM_OPTION("offload-path", TM_OPT_STRING, &offload, "PATH",
                  "taken, but nothing is offloaded: tensors are streamed")};
    const tm_cli cli = {
        .usage = "convert IN OUT [--dtype TYPE] [--base DIR] [--init random] [--seed N] [--max-shard-size SIZE] "
                 "[--host-budget SIZE] [--offload-path PATH]",
        .about = "Converts a .gguf file or a Hugging Face folder (IN) into a folder, or into GGUF where OUT ends in "
                 ".gguf; the folder of an adapter into GGUF for llama.cpp. OUT appears when it is complete.",
        .example = "tidemill convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2\n"
                   "tidemill convert lora lora.gguf --base smollm2\n"
                   "tidemill convert folder-with-config.json random --init random --dtype bf16",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(place, 2, 2)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (init && strcmp(init, "random") != 0) return tm_cli_wrong("convert", "--init '%s' is not random", init);
    if (seed < -1) return tm_cli_wrong("convert", "--seed must not be negative");
    if (seed >= 0 && !init) return tm_cli_wrong("convert", "--seed is for --init random");
    const tm_export_request r = {.in = tm_cmd_model(place[0]),
                                 .out = place[1],
                                 .base = tm_cmd_model(base),
                                 .convert = {.dtype = dtype, .max_shard_bytes = shard}};
    if (init) return convert_random(&r, seed < 0 ? 42 : seed, host_budget);
    return tm_run_conversion(&(tm_conversion){.what = "converting", .request = r, .host_budget = host_budget});
}

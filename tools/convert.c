/* tidemill convert IN OUT: GGUF <-> Hugging Face folder, PEFT folder -> llama.cpp's adapter. */
#include "tools/conversion.h"

int tm_cmd_convert(int argc, char **argv) {
    const char *place[2] = {NULL, NULL}, *dtype = NULL, *base = NULL, *offload = NULL;
    uint64_t host_budget = UINT64_MAX;
    const tm_opt opts[] = {
        TM_OPTION("dtype", TM_OPT_STRING, &dtype, "TYPE",
                  "f32, bf16, f16, and to GGUF q8_0, q4_0, q4_1; default: f32 to a folder, the source's to GGUF"),
        TM_OPTION("base", TM_OPT_STRING, &base, "DIR", "of an adapter; default: where its adapter_config.json says"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &host_budget, "SIZE", "limit of host memory; at least 64MiB"),
        TM_OPTION("offload-path", TM_OPT_STRING, &offload, "PATH",
                  "taken, but nothing is offloaded: tensors are streamed")};
    const tm_cli cli = {
        .usage = "convert IN OUT [--dtype TYPE] [--base DIR] [--host-budget SIZE] [--offload-path PATH]",
        .about = "Converts a .gguf file or a Hugging Face folder (IN) into a folder, or into GGUF where OUT ends in "
                 ".gguf; the folder of an adapter into GGUF for llama.cpp. OUT appears when it is complete.",
        .example = "tidemill convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2\n"
                   "tidemill convert lora lora.gguf --base smollm2",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(place, 2, 2)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    return tm_run_conversion("converting",
                             (tm_export_request){.in = place[0], .out = place[1], .base = base, .convert.dtype = dtype},
                             host_budget);
}

/* tidemill export SRC OUT: an adapter merged into its base, and models and adapters in other forms. */
#include "tools/conversion.h"

int tm_cmd_export(int argc, char **argv) {
    const char *place[2] = {NULL, NULL}, *dtype = NULL, *base = NULL, *offload = NULL, *eval = NULL;
    uint64_t host_budget = UINT64_MAX;
    bool merge = false, json = false;
    const tm_opt opts[] = {
        TM_FLAG("merge-adapter", &merge, "SRC is an adapter: OUT is its base with the adapter in it"),
        TM_OPTION("base", TM_OPT_STRING, &base, "DIR",
                  "of an adapter, a folder or .gguf file; default: where its adapter_config.json says"),
        TM_OPTION("dtype", TM_OPT_STRING, &dtype, "TYPE",
                  "f32, bf16, f16; to GGUF q8_0, q6_k, q5_k (also q5_k_m), q5_1, q5_0, q4_k (q4_k_m), q4_1, q4_0; to a "
                  "folder "
                  "nf4 (bitsandbytes), int8, int4 (compressed-tensors); "
                  "default: that of config.json, to GGUF the source's"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &host_budget, "SIZE", "limit of host memory; at least 64MiB"),
        TM_OPTION("eval", TM_OPT_STRING, &eval, "FILE",
                  "data, as for `eval`: the perplexity of SRC and OUT is printed, too"),
        TM_OPTION("offload-path", TM_OPT_STRING, &offload, "PATH",
                  "with --eval: where weights go that do not fit; tensors are streamed, they need no place"),
        TM_FLAG("json", &json, "print one JSON object: type, bytes and error of each tensor")};
    const tm_cli cli = {
        .usage = "export SRC OUT [--merge-adapter] [--base DIR] [--dtype TYPE] [--eval FILE] "
                 "[--host-budget SIZE] [--offload-path PATH] [--json]",
        .about = "Writes a model folder, a .gguf file or the folder of an adapter (SRC) as another folder, or as GGUF "
                 "where OUT ends in .gguf. An adapter is merged into its base with --merge-adapter; else it stays one: "
                 "PiSSA becomes plain LoRA of twice the rank. OUT appears when it is complete. Printed is what each "
                 "tensor lost by its type: the root mean square of the differences over that of its values.",
        .example = "tidemill export out merged --merge-adapter --dtype bf16\n"
                   "tidemill export out model.gguf --merge-adapter --base smollm2 --dtype q4_k_m",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(place, 2, 2)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    return tm_run_conversion(&(tm_conversion){.what = "exporting",
                                              .request = (tm_export_request){.in = tm_cmd_model(place[0]),
                                                                             .out = place[1],
                                                                             .base = tm_cmd_model(base),
                                                                             .merge = merge,
                                                                             .dtype_of_config = true,
                                                                             .convert.dtype = dtype},
                                              .host_budget = host_budget,
                                              .report = json ? TM_REPORT_JSON : TM_REPORT_TEXT,
                                              .eval = eval,
                                              .offload = offload});
}

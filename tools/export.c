/* tidemill export SRC OUT: an adapter merged into its base, and models and adapters in other forms. */
#include "quantise/quantise.h"
#include "tools/conversion.h"

/* With a text that has a say in the codes. */
static int export_calibrated(tm_conversion *c, const tm_calibration_args *args) {
    tm_calibration *calibration;
    if (tm_calibration_open(&calibration, args) != TM_OK) return tm_cmd_fail();
    c->request.convert.calibrated = tm_calibration_asked(calibration);
    int rc = tm_run_conversion(c);
    tm_calibration_close(calibration);
    return rc;
}

int tm_cmd_export(int argc, char **argv) {
    const char *place[2] = {NULL, NULL}, *dtype = NULL, *base = NULL, *offload = NULL, *eval = NULL;
    tm_calibration_args calibration = {.rows = 0};
    int64_t rows = 0, seq_len = 0;
    uint64_t host_budget = UINT64_MAX;
    bool merge = false, json = false;
    const tm_opt opts[] = {
        TM_FLAG("merge-adapter", &merge, "SRC is an adapter: OUT is its base with the adapter in it"),
        TM_OPTION("base", TM_OPT_STRING, &base, "DIR",
                  "of an adapter, a folder or .gguf file; default: where its adapter_config.json says"),
        TM_OPTION("dtype", TM_OPT_STRING, &dtype, "TYPE",
                  "f32, bf16, f16; to GGUF q8_0, q6_k, q5_k (also q5_k_m), q5_1, q5_0, q4_k (q4_k_m), q4_1, q4_0; to a "
                  "folder "
                  "nf4 (bitsandbytes), int8, int4, gptq, awq (compressed-tensors); "
                  "default: that of config.json, to GGUF the source's"),
        TM_OPTION("calibrate", TM_OPT_STRING, &calibration.data, "FILE",
                  "text (what eval takes) that the model is run on, for gptq, awq, and GGUF's types of 4 to 6 bits"),
        TM_OPTION("calibrate-rows", TM_OPT_INT, &rows, "N", "rows of it that are used (128, or all there are)"),
        TM_OPTION("calibrate-length", TM_OPT_INT, &seq_len, "N", "tokens of a row (2048)"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &host_budget, "SIZE", "limit of host memory; at least 64MiB"),
        TM_OPTION("eval", TM_OPT_STRING, &eval, "FILE",
                  "data, as for `eval`: the perplexity of SRC and OUT is printed, too"),
        TM_OPTION("offload-path", TM_OPT_STRING, &offload, "PATH",
                  "with --eval: where weights go that do not fit; activations of --calibrate (else beside OUT)"),
        TM_FLAG("json", &json, "print one JSON object: type, bytes and error of each tensor")};
    const tm_cli cli = {
        .usage = "export SRC OUT [--merge-adapter] [--base DIR] [--dtype TYPE] [--calibrate FILE] "
                 "[--eval FILE] [--host-budget SIZE] [--offload-path PATH] [--json]",
        .about =
            "Writes a model folder, a .gguf file or the folder of an adapter (SRC) as another folder, or as GGUF "
            "where OUT ends in .gguf. An adapter is merged into its base with --merge-adapter; else it stays one: "
            "PiSSA becomes plain LoRA of twice the rank. OUT appears when it is complete. Printed is what each "
            "tensor lost by its type: the root mean square of the differences over that of its values; calibrated, "
            "also that of its products.",
        .example = "tidemill export out merged --merge-adapter --dtype bf16\n"
                   "tidemill export out model.gguf --merge-adapter --base smollm2 --dtype q4_k_m\n"
                   "tidemill export smollm2 smollm2-gptq --dtype gptq --calibrate text.jsonl",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(place, 2, 2)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (rows < 0 || rows > 1 << 20 || seq_len < 0 || seq_len > 1 << 20)
        return tm_cli_wrong("export", "a number is out of range");
    tm_conversion c = {.what = "exporting",
                       .request = {.in = tm_cmd_model(place[0]),
                                   .out = place[1],
                                   .base = tm_cmd_model(base),
                                   .merge = merge,
                                   .dtype_of_config = true,
                                   .convert.dtype = dtype},
                       .host_budget = host_budget,
                       .report = json ? TM_REPORT_JSON : TM_REPORT_TEXT,
                       .eval = eval,
                       .offload = offload};
    if (!calibration.data) return tm_run_conversion(&c);
    calibration.model = c.request.in;
    calibration.rows = (uint32_t)rows;
    calibration.seq_len = (uint32_t)seq_len;
    calibration.host_bytes = host_budget;
    calibration.offload_path = offload;
    return export_calibrated(&c, &calibration);
}

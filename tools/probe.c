/* tidemill probe */
#include "tools/tools.h"
#include "infer/infer.h"

#include <string.h>

int tm_precision_option(const char *command, const char *text, tm_dtype *out) {
    if (strcmp(text, "fp32") == 0)
        *out = TM_F32;
    else if (strcmp(text, "bf16") == 0)
        *out = TM_BF16;
    else
        return tm_cli_wrong(command, "--precision %s: fp32 or bf16 is meant", text);
    return -1;
}

int tm_cmd_probe(int argc, char **argv) {
    const char *precision = "fp32";
    tm_probe_args a = {0};
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &a.model, "DIR", "model folder, .gguf file or an adapter's folder"),
        TM_REQUIRED("input", TM_OPT_STRING, &a.input, "FILE",
                    "safetensors with input_ids [B,S], and if wanted labels (-100: ignored, not shifted), "
                    "attention_mask, segment_ids"),
        TM_REQUIRED("output", TM_OPT_STRING, &a.output, "FILE",
                    "safetensors to write: logits, loss, grad.*, grad_norm"),
        TM_OPTION("precision", TM_OPT_STRING, &precision, "fp32|bf16", "arithmetic (default fp32)"),
        TM_FLAG("grads", &a.gradients, "also the gradient of the loss by every parameter"),
        TM_OPTION("adapter", TM_OPT_STRING, &a.tiers.adapter, "DIR", "adapter to run it with, as PEFT's folder has it"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &a.tiers.host_budget, "SIZE", "hard limit of host memory"),
        TM_OPTION("offload-path", TM_OPT_STRING, &a.tiers.offload_path, "PATH", "where weights go that do not fit"),
        TM_OPTION("device", TM_OPT_STRING, &a.tiers.device, "NAME", "cpu (default), cpu-arena, cuda:N"),
        TM_OPTION("device-budget", TM_OPT_SIZE, &a.tiers.device_budget, "SIZE", "hard limit of the device's memory"),
    };
    const tm_cli cli = {
        .usage = "probe --model DIR --input IN.safetensors --output OUT.safetensors [--grads]",
        .about = "Runs a model once over given token ids and writes logits, loss and gradients in fp32.",
        .example = "tidemill probe --model smollm2 --input batch.safetensors --output out.safetensors --grads",
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (tm_cmd_models(&a.model, &a.tiers.adapter) != TM_OK) return tm_cmd_fail();
    rc = tm_precision_option("probe", precision, &a.precision);
    if (rc >= 0) return rc;
    return tm_probe_run(&a) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

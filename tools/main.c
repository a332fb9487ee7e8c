/* The table of commands, and nothing else. */
#include "tools/terms.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

static const tm_command commands[] = {
    {"new", tm_cmd_new, "write a configuration: asks four things, looks at the machine, plans it"},
    {"train", tm_cmd_train, "fine-tune a model whose parameters and Adam states lie on NVMe"},
    {"plan", tm_cmd_plan, "say what a training run would need and how long a step takes, without starting it"},
    {"data", tm_cmd_data, "show what the model will see of the data: counts, lengths, what is left out, samples"},
    {"probe", tm_cmd_probe, "logits, loss and gradients of a model for given token ids"},
    {"eval", tm_cmd_eval, "loss of a model on a data file, or metrics of a configuration's objective"},
    {"generate", tm_cmd_generate, "continue a prompt or answer a conversation"},
    {"serve", tm_cmd_serve, "answer OpenAI's clients, to look at what was trained"},
    {"tokenize", tm_cmd_tokenize, "text to token ids and back, one JSON object per line"},
    {"chat", tm_cmd_chat, "apply a model's chat template to conversations"},
    {"convert", tm_cmd_convert, "GGUF file to Hugging Face folder and back"},
    {"export", tm_cmd_export, "merge an adapter into its base; a model or an adapter in another form"},
    {"bench", tm_cmd_bench, "measure disks, devices, Adam, matrix products and steps"},
    {"tune", tm_cmd_tune, "find the fastest I/O settings of a disk"},
    {"top", tm_cmd_top, "watch a run from another terminal"},
    {"report", tm_cmd_report, "a page of what runs left: curves, planned beside found, where the seconds went"},
    {"inspect", tm_cmd_inspect, "show what a model folder, GGUF or safetensors file holds"},
    {"doctor", tm_cmd_doctor, "check this machine and say what to mend"},
    {"completion", tm_cmd_completion, "what a shell needs to complete options and keys"},
    {"man", tm_cmd_man, "the manual pages"},
    {"clean", tm_cmd_clean, "remove what dead runs left below an offload path"},
};

static const char *const awake[] = {"generate", "chat", "bench generate"};

/* Of ms-swift, LLaMA-Factory, axolotl, mlx-lm. */
static const char *const others[][2] = {
    {"sft", "tidemill train"},
    {"pt", "tidemill train --objective.type pretrain"},
    {"rlhf", "tidemill train --rlhf_type dpo"},
    {"dpo", "tidemill train --rlhf_type dpo"},
    {"lora", "tidemill train --tuner_type lora"},
    {"finetune", "tidemill train"},
    {"fine-tune", "tidemill train"},
    {"infer", "tidemill generate, or chat"},
    {"inference", "tidemill generate, or chat"},
    {"merge", "tidemill export ADAPTER OUT --merge-adapter"},
    {"merge-lora", "tidemill export ADAPTER OUT --merge-adapter"},
    {"fuse", "tidemill export ADAPTER OUT --merge-adapter"},
    {"quantize", "tidemill export MODEL OUT --dtype q4_k_m"},
    {"evaluate", "tidemill eval"},
    {"preprocess", "tidemill data, which shows what the model will see; train prepares it by itself"},
    {"estimate", "tidemill plan"},
    {NULL, NULL},
};

/* `help terms [WORD]`, or a term by itself. */
static bool explain(int argc, char **argv) {
    if (strcmp(argv[0], "terms") != 0) {
        for (size_t i = 0; i < TM_COUNT(commands); i++)
            if (!strcmp(argv[0], commands[i].name)) return false;
        return tm_terms_print(argv[0]);
    }
    if (tm_terms_print(argc > 1 ? argv[1] : NULL)) return true;
    printf("no term has the word '%s'; 'tidemill help terms' lists them\n", argv[1]);
    return true;
}

int main(int argc, char **argv) {
    const tm_program tidemill = {
        .name = "tidemill",
        .about = "Fine-tunes language models that are larger than memory: parameters and Adam states lie in files.",
        .commands = commands,
        .n_commands = TM_COUNT(commands),
        .help = explain,
        .version = tm_cmd_version,
        .others = others,
        .awake = awake,
        .n_awake = TM_COUNT(awake)};
    return tm_program_run(&tidemill, argc, argv);
}

/* The configuration examples of the peers' own documentation, typed as facts of their interfaces; names of models and data
 * are local ones. Each runs, or is refused with the line that says what to do. */
#include "words.h"

/* rows leave out what they do not need */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define FAST " --max_steps 1 --output_dir o --host_budget 300MiB --quiet"
#define RAN " && tail -n1 o/log.jsonl"
#define PAIRS "head -40 $P >p.jsonl; "
#define YAML(name, text) "cat >" name " <<E\n" text "E\n"

/* ---- LLaMA-Factory: examples/train_lora, train_full, train_qlora ---------------------------------------------------- */

#define FACTORY(stage, more)                                                                                           \
    "### model\nmodel_name_or_path: $M\ntrust_remote_code: true\n### method\nstage: " stage "\ndo_train: true\n" more  \
    "### dataset\ntemplate: llama3\ncutoff_len: 512\noverwrite_cache: true\npreprocessing_num_workers: 16\n"           \
    "dataloader_num_workers: 4\n### output\noutput_dir: saves/llama3-8b/lora/sft\nlogging_steps: 10\nsave_steps: "     \
    "500\n"                                                                                                            \
    "plot_loss: true\noverwrite_output_dir: true\nsave_only_model: false\nreport_to: none  # choices: [none, wandb, "  \
    "tensorboard, swanlab, mlflow]\n### train\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"       \
    "num_train_epochs: 3.0\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\nbf16: true\nddp_timeout: 180000000\n"        \
    "resume_from_checkpoint: null\n"
#define FACTORY_LORA "finetuning_type: lora\nlora_rank: 8\nlora_target: all\n"
#define DS_Z3                                                                                                          \
    "cat >ds_z3_config.json <<E\n{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "      \
    "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", \"zero_allow_untested_optimizer\": "  \
    "true, "                                                                                                           \
    "\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"loss_scale_window\": 1000, \"initial_scale_power\": 16, "  \
    "\"hysteresis\": 2, \"min_loss_scale\": 1}, \"bf16\": {\"enabled\": \"auto\"}, \"zero_optimization\": "            \
    "{\"stage\": 3, "                                                                                                  \
    "\"overlap_comm\": false, \"contiguous_gradients\": true, \"sub_group_size\": 1e9, \"reduce_bucket_size\": "       \
    "\"auto\", "                                                                                                       \
    "\"stage3_prefetch_bucket_size\": \"auto\", \"stage3_param_persistence_threshold\": \"auto\", "                    \
    "\"stage3_max_live_parameters\": 1e9, \"stage3_max_reuse_distance\": 1e9, "                                        \
    "\"stage3_gather_16bit_weights_on_model_save\": true}}\nE\n"

static const words_row factory[] = {
    {YAML("sft.yaml",
          FACTORY("sft", FACTORY_LORA "dataset: $D\nlearning_rate: 1.0e-4\n")) "$T train sft.yaml" FAST RAN
                                                                               " && cat o/adapter_config.json",
     0,
     {"state_hash", "\"r\": 8", "\"lora_alpha\": 16"}},
    {YAML("sft.yaml",
          FACTORY("sft", FACTORY_LORA "dataset: $D\nmax_samples: 1000\nlearning_rate: 1.0e-4\n")) "$T train sft.yaml",
     2,
     {"sft.yaml:11:14: \"max_samples\" is refused: say it with the file: dataset: FILE#N"}},
    {PAIRS YAML("dpo.yaml", FACTORY("dpo", FACTORY_LORA
                                    "pref_beta: 0.1\npref_loss: sigmoid  # choices: [sigmoid (dpo), orpo, "
                                    "simpo]\ndataset: p.jsonl\nlearning_rate: 5.0e-6\n")) "$T train dpo.yaml" FAST RAN,
     0,
     {"state_hash"}},
    {YAML("pt.yaml", FACTORY("pt", FACTORY_LORA
                             "dataset: t.txt\nlearning_rate: 1.0e-4\n")) "head -30 $S/docs/GLOSSARY.md >t.txt; $T "
                                                                         "train pt.yaml" FAST RAN,
     0,
     {"state_hash"}},
    {DS_Z3 YAML("full.yaml", FACTORY("sft", "finetuning_type: full\ndeepspeed: ds_z3_config.json  # choices: "
                                            "[ds_z0_config.json, ds_z2_config.json, ds_z3_config.json]\ndataset: $D\n"
                                            "learning_rate: 1.0e-5\n")) "$T train full.yaml" FAST RAN " && ls o",
     0,
     {"state_hash", "model.safetensors"}},
    {YAML("q.yaml",
          FACTORY("sft", FACTORY_LORA
                  "quantization_bit: 4  # choices: [8 (bnb/hqq/eetq), 4 (bnb/hqq), 3 (hqq), 2 (hqq)]\n"
                  "quantization_method: bnb\ndataset: $D\nlearning_rate: 1.0e-4\n")) "$T train q.yaml" FAST RAN,
     0,
     {"state_hash"}},
};

/* ---- axolotl: examples/llama-3 --------------------------------------------------------------------------------------- */

#define AXOLOTL                                                                                                        \
    "base_model: $M\n# Automatically upload checkpoint and final model to HF\n# hub_model_id: "                        \
    "username/custom_model_name\n"                                                                                     \
    "model_type: LlamaForCausalLM\ntokenizer_type: AutoTokenizer\nstrict: false\noutput_dir: ./outputs/out\n"          \
    "sequence_len: 512\nwandb_project:\nwandb_entity:\nwandb_watch:\nwandb_name:\nwandb_log_model:\n"                  \
    "gradient_accumulation_steps: 4\nnum_epochs: 1\nlr_scheduler: cosine\nbf16: auto\ntf32: false\n"                   \
    "resume_from_checkpoint:\nlogging_steps: 1\nflash_attention: true\nsaves_per_epoch: 1\nweight_decay: 0.0\n"        \
    "special_tokens:\n  pad_token: <|end_of_text|>\n"
#define AXOLOTL_LORA                                                                                                   \
    "lora_model_dir:\nlora_r: 16\nlora_alpha: 32\nlora_dropout: 0.05\nlora_target_modules:\n  - gate_proj\n"           \
    "  - down_proj\n  - up_proj\n  - q_proj\n  - v_proj\n  - k_proj\n  - o_proj\n"

static const words_row axolotl[] = {
    {YAML("lora.yml", AXOLOTL AXOLOTL_LORA
          "adapter: lora\nload_in_8bit: false\nload_in_4bit: false\ndatasets:\n  - path: $D\n    type: chat_template\n"
          "dataset_prepared_path: last_run_prepared\nval_set_size: 0.1\nsample_packing: true\neval_sample_packing: "
          "true\n"
          "pad_to_sequence_len: true\nmicro_batch_size: 2\noptimizer: adamw_8bit\nlearning_rate: 0.0002\n"
          "gradient_checkpointing: true\nwarmup_ratio: 0.1\nevals_per_epoch: 4\nloss_watchdog_threshold: 5.0\n"
          "loss_watchdog_patience: 3\n") "$T train lora.yml" FAST RAN,
     0,
     {"state_hash"}},
    {YAML("lora.yml",
          AXOLOTL AXOLOTL_LORA "adapter: lora\nload_in_8bit: true\nload_in_4bit: false\ndatasets:\n  - path: $D\n"
                               "    type: alpaca\nmicro_batch_size: 2\n") "$T train lora.yml",
     2,
     {"\"load_in_8bit\": a frozen base in 8 bits: not supported yet by this version; leave it out"}},
    {YAML(
         "qlora.yml", AXOLOTL
         "adapter: qlora\nload_in_8bit: false\nload_in_4bit: true\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\n"
         "lora_target_linear: true\ndatasets:\n  - path: $D\n    type: alpaca\nval_set_size: 0\nmicro_batch_size: 1\n"
         "optimizer: paged_adamw_32bit\nlearning_rate: 0.0002\nwarmup_steps: 10\nfsdp:\nfsdp_config:\n") "$T train "
                                                                                                         "qlora."
                                                                                                         "yml" FAST RAN,
     0,
     {"state_hash"}},
    {YAML(
         "fft.yaml", AXOLOTL
         "datasets:\n  - path: $D\n    type: alpaca\nval_set_size: 0.05\nsample_packing: true\n"
         "pad_to_sequence_len: true\nmicro_batch_size: 1\noptimizer: paged_adamw_8bit\nlearning_rate: 2e-5\n"
         "gradient_checkpointing: true\ngradient_checkpointing_kwargs:\n  use_reentrant: false\n"
         "warmup_steps: 100\nevals_per_epoch: 2\ndeepspeed: zero1.json\n") "echo '{\"zero_optimization\": {\"stage\": "
                                                                           "1, \"overlap_comm\": true}, \"bf16\": "
                                                                           "{\"enabled\": true}, \"fp16\": "
                                                                           "{\"enabled\": "
                                                                           "\"auto\", \"auto_cast\": false, "
                                                                           "\"loss_scale\": 0}, "
                                                                           "\"gradient_accumulation_steps\": \"auto\", "
                                                                           "\"gradient_clipping\": \"auto\", "
                                                                           "\"train_batch_size\": \"auto\", "
                                                                           "\"train_micro_batch_size_per_gpu\": "
                                                                           "\"auto\", \"wall_clock_breakdown\": "
                                                                           "false}' >zero1.json; "
                                                                           "$T train fft.yaml" FAST RAN,
     0,
     {"state_hash"}},
    {PAIRS YAML("dpo.yml",
                AXOLOTL AXOLOTL_LORA "adapter: lora\nrl: dpo\nchat_template: llama3\ndatasets:\n  - path: p.jsonl\n"
                                     "    type: chat_template.default\n    field_chosen: chosen\n    field_rejected: "
                                     "rejected\nmicro_batch_size: 2\noptimizer: adamw_torch\nlearning_rate: 0.0002\n"
                                     "sample_packing: false\n") "$T train dpo.yml" FAST RAN,
     0,
     {"state_hash"}},
    {"head -30 $S/docs/GLOSSARY.md >t.txt; " YAML(
         "pre.yml", AXOLOTL
         "pretraining_dataset:\n  - path: t.txt\n    type: pretrain\nmax_steps: 200\nmicro_batch_size: 4\noptimizer: "
         "adamw_bnb_8bit\nlearning_rate: 0.0002\n") "$T train pre.yml" FAST RAN,
     0,
     {"state_hash"}},
};

/* ---- ms-swift: README and examples/train ------------------------------------------------------------------------------- */

#define SWIFT                                                                                                          \
    " --torch_dtype bfloat16 --num_train_epochs 1 --per_device_train_batch_size 1 --per_device_eval_batch_size 1 "     \
    "--gradient_accumulation_steps 16 --eval_steps 50 --save_steps 50 --save_total_limit 2 --logging_steps 5 "         \
    "--max_length 512 --warmup_ratio 0.05 --dataloader_num_workers 4"
#define SWIFT_LORA " --learning_rate 1e-4 --lora_rank 8 --lora_alpha 32 --target_modules all-linear"

static const words_row swift[] = {
    {"$T train --model $M --tuner_type lora --dataset $D'#500' $D'#500' --model_author swift --model_name "
     "swift-robot" SWIFT SWIFT_LORA FAST RAN,
     0,
     {"state_hash"}},
    {"$T train --model $M --train_type lora --dataset $D --system 'You are a helpful assistant.'" SWIFT SWIFT_LORA,
     2,
     {"\"system\" is refused: put it into the data: a message of role \"system\""}},
    {PAIRS "$T train --rlhf_type dpo --model $M --tuner_type lora --dataset p.jsonl --rpo_alpha 0.1 --dataset_num_proc "
           "4" SWIFT SWIFT_LORA FAST RAN,
     0,
     {"state_hash"}},
    {"$T train --model $M --tuner_type lora --dataset $D --quant_bits 4 --quant_method bnb --bnb_4bit_compute_dtype "
     "bfloat16 "
     "--bnb_4bit_quant_type nf4 --bnb_4bit_use_double_quant true" SWIFT SWIFT_LORA FAST RAN,
     0,
     {"state_hash"}},
    {"$T train --model $M --tuner_type full --dataset $D --split_dataset_ratio 0.01 --learning_rate 1e-5 --deepspeed "
     "zero3 "
     "--attn_impl flash_attn --use_liger_kernel true --packing true --load_from_cache_file true "
     "--gradient_checkpointing true" SWIFT FAST RAN,
     0,
     {"state_hash"}},
    {"head -30 $S/docs/GLOSSARY.md >t.txt; $T train --stage pt --model $M --train_type full --dataset t.txt "
     "--streaming true --packing true "
     "--save_only_model true --deepspeed zero2" SWIFT FAST RAN,
     0,
     {"state_hash"}},
};

/* ---- HF Trainer with DeepSpeed: transformers' documentation --------------------------------------------------------------- */

#define CLM                                                                                                            \
    "$T train --model_name_or_path $M --train_file $D --do_train --overwrite_output_dir --num_train_epochs 1 "         \
    "--per_device_train_batch_size 1 "
#define AUTOS                                                                                                          \
    "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", \"steps_per_print\": 2000, "          \
    "\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", \"wall_clock_breakdown\": false"
#define AUTO_OPTIMIZER                                                                                                 \
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", "     \
    "\"weight_decay\": \"auto\"}}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": \"auto\", " \
    "\"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\"}}, "
#define FP16                                                                                                           \
    "\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"loss_scale_window\": 1000, \"initial_scale_power\": 16, "  \
    "\"hysteresis\": 2, \"min_loss_scale\": 1}, "
#define ON(what, where, more) "\"offload_" what "\": {\"device\": \"" where "\", \"pin_memory\": true" more "}, "

static const words_row trainer[] = {
    {"cat >ds.json <<E\n{" FP16 AUTO_OPTIMIZER "\"zero_optimization\": {\"stage\": 2, " ON(
         "optimizer", "cpu", "") "\"allgather_partitions\": "
                                 "true, \"allgather_bucket_size\": 2e8, \"overlap_comm\": true, \"reduce_scatter\": "
                                 "true, \"reduce_bucket_size\": 2e8, "
                                 "\"contiguous_gradients\": true}, " AUTOS "}\nE\n" CLM
                                 "--deepspeed ds.json --bf16" FAST RAN,
     0,
     {"state_hash"}},
    {"mkdir nvme; cat >ds.json <<E\n{\"bf16\": {\"enabled\": true}, " AUTO_OPTIMIZER
     "\"zero_optimization\": {\"stage\": 3, " ON("optimizer", "nvme",
                                                 ", \"nvme_path\": \"nvme\", \"buffer_count\": 4, \"fast_init\": false")
         ON("param", "nvme",
            ", \"nvme_path\": \"nvme\", \"buffer_count\": 5, \"buffer_size\": 1e8, \"max_in_cpu\": 1e9") "\"aio\": "
                                                                                                         "{\"block_"
                                                                                                         "size\": "
                                                                                                         "262144, "
                                                                                                         "\"queue_"
                                                                                                         "depth\": 32, "
                                                                                                         "\"thread_"
                                                                                                         "count\": 1, "
                                                                                                         "\"single_"
                                                                                                         "submit\": "
                                                                                                         "false, "
                                                                                                         "\"overlap_"
                                                                                                         "events\": "
                                                                                                         "true}, "
                                                                                                         "\"overlap_"
                                                                                                         "comm\": "
                                                                                                         "true, "
                                                                                                         "\"contiguous_"
                                                                                                         "gradients\": "
                                                                                                         "true, "
                                                                                                         "\"sub_group_"
                                                                                                         "size\": 1e9, "
                                                                                                         "\"reduce_"
                                                                                                         "bucket_"
                                                                                                         "size\": "
                                                                                                         "\"auto\", "
                                                                                                         "\"stage3_"
                                                                                                         "prefetch_"
                                                                                                         "bucket_"
                                                                                                         "size\": "
                                                                                                         "\"auto\", "
                                                                                                         "\"stage3_"
                                                                                                         "param_"
                                                                                                         "persistence_"
                                                                                                         "threshold\": "
                                                                                                         "\"auto\", "
                                                                                                         "\"stage3_max_"
                                                                                                         "live_"
                                                                                                         "parameters\":"
                                                                                                         " 1e9, "
                                                                                                         "\"stage3_max_"
                                                                                                         "reuse_"
                                                                                                         "distance\": "
                                                                                                         "1e9, "
                                                                                                         "\"stage3_"
                                                                                                         "gather_16bit_"
                                                                                                         "weights_on_"
                                                                                                         "model_save\":"
                                                                                                         " true},"
                                                                                                         " " AUTOS
                                                                                                         "}\nE\n" CLM
                                                                                                         "--deepspeed "
                                                                                                         "ds.json" FAST
                                                                                                             RAN,
     0,
     {"state_hash"}},
    {"cat >ds.json <<E\n{" FP16 AUTO_OPTIMIZER "\"zero_optimization\": {\"stage\": 3, " ON("optimizer", "cpu", "") ON(
         "param", "cpu", "") "\"overlap_comm\": true, \"contiguous_gradients\": true, \"sub_group_size\": 1e9}, " AUTOS
                             "}\nE\n" CLM "--deepspeed ds.json --fp16" FAST RAN,
     0,
     {"state_hash"}},
    {"cat >ds.json <<E\n{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-5, \"betas\": [0.8, 0.999], "
     "\"eps\": 1e-8, "
     "\"weight_decay\": 3e-7}}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, "
     "\"warmup_max_lr\": 3e-5, "
     "\"warmup_num_steps\": 500}}, \"zero_optimization\": {\"stage\": 2}, " AUTOS "}\nE\n" CLM
     "--deepspeed ds.json --learning_rate 1e-4",
     2,
     {"--learning_rate=1e-4",
      "does not match optimizer.params.lr 3e-5 (ds.json:1:", "give each setting once, or make them equal"}},
    {"cat >args.json <<E\n{\"model\": \"$M\", \"dataset\": \"$D\", \"output_dir\": \"your-model\", \"learning_rate\": "
     "2e-5, "
     "\"per_device_train_batch_size\": 16, \"per_device_eval_batch_size\": 16, \"num_train_epochs\": 2, "
     "\"weight_decay\": 0.01, "
     "\"eval_strategy\": \"epoch\", \"save_strategy\": \"epoch\", \"load_best_model_at_end\": true, \"val_size\": 0.1, "
     "\"push_to_hub\": false, \"deepspeed\": {\"zero_optimization\": {\"stage\": 1}}}\nE\n$T train args.json" FAST RAN,
     0,
     {"state_hash"}},
    {CLM "--max_train_samples 500", 2, {"\"max_train_samples\" is refused: say it with the file: dataset: FILE#N"}},
};

static void run_or_are_refused(const words_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) words_check(&rows[i]);
}

static void llama_factory(void **state) {
    (void)state;
    run_or_are_refused(factory, TM_COUNT(factory));
}
static void of_axolotl(void **state) {
    (void)state;
    run_or_are_refused(axolotl, TM_COUNT(axolotl));
}
static void ms_swift(void **state) {
    (void)state;
    run_or_are_refused(swift, TM_COUNT(swift));
}
static void hf_trainer(void **state) {
    (void)state;
    run_or_are_refused(trainer, TM_COUNT(trainer));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_factory),
        cmocka_unit_test(of_axolotl),
        cmocka_unit_test(ms_swift),
        cmocka_unit_test(hf_trainer),
    };
    words_begin();
    return cmocka_run_group_tests_name("peers_words", tests, NULL, NULL);
}

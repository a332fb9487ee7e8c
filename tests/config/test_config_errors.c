/* What is refused, with which status, and what the one line says. */
#include "world.h"
#include "tests/support/walk.h"
#include "tests/support/skip.h"

typedef struct bad {
    tm_status status;
    const char *json;    /* of cfg.json; "+" in front: the keys after BASE */
    const char *says[4]; /* all of these */
    const char *set[3];
    const char *ds; /* text of ds.json */
} bad;

/* rows leave out what they do not need */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
static const bad cases[] = {
    /* unknown keys: position, suggestion, section */
    {TM_EINPUT,
     "{\n  \"model\": \"m\",\n  \"learning_rte\": 1\n}",
     {"cfg.json:3:", "unknown key \"learning_rte\" at top level", "did you mean \"learning_rate\"?"}},
    {TM_EINPUT, "+\"seq_len\": 64", {"unknown key \"seq_len\"", "it belongs under \"data\""}},
    {TM_EINPUT, "+\"host_budget\": 64", {"it belongs under \"memory\""}},
    {TM_EINPUT, "+\"memory\": {\"learning_rate\": 1}", {"unknown key \"learning_rate\" in \"memory\"", "at top level"}},
    {TM_EINPUT, "+\"memory\": {\"host_bugdet\": 1}", {"did you mean \"host_budget\"?"}},
    {TM_EINPUT, "+\"zero_optimisation\": {}", {"did you mean \"zero_optimization\"?"}},
    {TM_EINPUT,
     "+\"zero_optimization\": {\"nvme_path\": \"p\"}",
     {"it belongs under \"zero_optimization.offload_param\""}},
    {TM_EINPUT,
     "+\"zero_optimization\": {\"stage3_prefetch_bucketsize\": 1}",
     {"did you mean \"stage3_prefetch_bucket_size\""}},
    {TM_EINPUT, "+\"optimizer\": {\"type\": \"AdamW\", \"lr\": 1}", {"it belongs under \"optimizer.params\""}},
    {TM_EINPUT, "+\"xyzzy_plugh\": 1", {"unknown key \"xyzzy_plugh\" at top level"}},
    {TM_EINPUT, "+\"a\": 1, \"b\": 2", {"2 problems", "\"a\"", "\"b\""}},
    {TM_EINPUT, "+\"Learning-Rate\": 1", {"did you mean \"learning_rate\"?"}},
    /* types and ranges */
    {TM_EINPUT,
     "{\n\"model\": \"m\",\n \"max_steps\": \"ten\"}",
     {"cfg.json:3:15", "\"max_steps\" must be an integer, not \"ten\""}},
    {TM_EINPUT, "+\"max_steps\": 1.5", {"\"max_steps\" must be an integer, not 1.5"}},
    {TM_EINPUT, "+\"max_steps\": \"auto\"", {"\"max_steps\" must be an integer, not \"auto\""}},
    {TM_EINPUT, "+\"learning_rate\": -1", {"\"learning_rate\" must be at least 0, not -1"}},
    {TM_EINPUT, "+\"adam_beta2\": 1", {"\"adam_beta2\" must be below 1"}},
    {TM_EINPUT, "+\"warmup_ratio\": 1.5", {"must be at most 1"}},
    {TM_EINPUT, "+\"per_device_train_batch_size\": 0", {"must be at least 1, not 0"}},
    {TM_EINPUT, "+\"per_device_train_batch_size\": 1e12", {"must be at most"}},
    {TM_EINPUT, "+\"precision\": \"bf61\"", {"one of bf16, fp32, fp16, not \"bf61\"", "did you mean \"bf16\"?"}},
    {TM_EINPUT, "+\"lr_scheduler_type\": \"cosin\"", {"did you mean \"cosine\"?"}},
    {TM_EINPUT, "+\"memory\": 5", {"\"memory\" must be an object, not 5"}},
    {TM_EINPUT, "+\"memory\": {\"host_budget\": \"lots\"}", {"\"memory.host_budget\" must be a size", "\"lots\""}},
    {TM_EINPUT, "+\"memory\": {\"host_budget\": 0}", {"at least 1"}},
    {TM_EINPUT, "+\"memory\": {\"host_budget\": -5}", {"at least 1, not -5"}},
    {TM_EINPUT, "+\"memory\": {\"slots\": 3}", {"must be at most 2"}},
    {TM_EINPUT,
     "+\"memory\": {\"device\": \"gpu\"}",
     {"must be \"cpu\", \"cpu-arena\", \"cuda\" or \"cuda:N\", not \"gpu\""}},
    {TM_EINPUT, "+\"no_decay\": [1]", {"a string or a list of strings"}},
    {TM_EINPUT, "+\"no_decay\": []", {"a string or a list of strings"}},
    {TM_EINPUT, "+\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9]}}", {"two numbers or \"auto\""}},
    {TM_EINPUT, "+\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, 1.0]}}", {"below 1"}},
    {TM_EINPUT, "+\"zero_optimization\": {\"stage\": 4}", {"\"zero_optimization.stage\" must be at most 3"}},
    {TM_EINPUT, "+\"aio\": {\"block_size\": 5000}", {"multiple of 4096"}},
    {TM_EINPUT, "+\"aio\": {\"block_size\": \"unlimited\"}", {"\"aio.block_size\" must be a size"}},
    {TM_EINPUT, "+\"warmup_steps\": 2.5", {"\"warmup_steps\" must be whole"}},
    {TM_EINPUT, "+\"output_dir\": \"\"", {"\"output_dir\" must not be empty"}},
    {TM_EINPUT, "+\"output_dir\": \"a\\u0000b\"", {"NUL byte"}},
    {TM_EINPUT, "+\"num_train_epochs\": 0", {"nothing to train"}},
    {TM_EINPUT, "+\"max_grad_norm\": null", {"\"max_grad_norm\" must be a number, not null"}},
    {TM_EINPUT,
     "{\"model\": \"m\", \"data\": {\"train\": \"x.jsonl\", \"format\": \"safetensors\"}}",
     {"does not end in .safetensors"}},
    /* of options in one text: it is blamed, not what they are options of */
    {TM_EINPUT,
     "+\"seed\": 1",
     {"--set optim_args=nesterov=True: SGD: nesterov needs a momentum"},
     {"optim=sgd", "optim_args=nesterov=True"}},
    {TM_EINPUT, "+\"optim_args\": \"beta1=2\"", {"cfg.json:1:", "at least 0 and less than 1"}, {"optim=adamw"}},
    /* files of data */
    {TM_EINPUT, "+\"val_dataset\": []", {"\"val_dataset\" must be a path, an object with one, or a list of these"}},
    {TM_EINPUT, "+\"val_dataset\": [3]", {"\"val_dataset\" must be a path, an object with one, or a list of these"}},
    {TM_EINPUT, "+\"val_dataset\": [\"a\", \"\"]", {"has an empty path"}},
    {TM_EINPUT, "+\"val_dataset\": \"a.jsonl#0\"", {"a.jsonl#0 is no sample at all"}},
    {TM_EINPUT, "+\"val_dataset\": {\"weight\": 2}", {"an object without a \"path\""}},
    {TM_EINPUT,
     "{\"model\": \"m\", \"output_dir\": \"o\", \"data\": {\"train\": {}}}",
     {"an object without a \"path\""}},
    {TM_EINPUT,
     "{\"model\": \"m\", \"output_dir\": \"o\", \"data\": {\"train\": [{\"pth\": \"a\"}, \"b\"]}}",
     {"\"pth\" is no key of a file", "an object without a \"path\""}},
    {TM_EINPUT, "+\"val_dataset\": {\"path\": \"a\", \"wieght\": 2}", {"\"wieght\" is no key of a file"}},
    {TM_EINPUT, "+\"val_dataset\": {\"path\": \"a\", \"weight\": 0}", {"weight (above 0)"}},
    {TM_EINPUT, "+\"val_dataset\": {\"path\": \"a\", \"weight\": 2, \"samples\": 3}", {"an epoch has; give one"}},
    {TM_EINPUT, "+\"val_dataset\": {\"path\": \"a\", \"sample_by\": \"word\"}", {"one of line, paragraph, document"}},
    {TM_EINPUT, "+\"columns\": {\"q\": 3}", {"a key of the data's and what it is here"}},
    {TM_EINPUT, "+\"columns\": \"q\"", {"\"columns\" must be an object of names, each with another name"}},
    {TM_EINPUT, "+\"val_size\": -1", {"\"val_size\" must be at least 0"}},
    /* syntax */
    {TM_EINPUT, "{\"model\": }", {"cfg.json:1:11"}},
    {TM_EINPUT, "[1]", {"cfg.json:1:1", "is a JSON object"}},
    {TM_EINPUT, "{\"seed\": 1,\n \"seed\": 2}", {"cfg.json:2:", "seed"}},
    {TM_EINPUT, "", {"cfg.json"}},
    /* what must be there */
    {TM_EINPUT, "{}", {"2 problems", "\"model\" is missing", "\"data.train\" is missing"}},
    {TM_EINPUT, "+\"optimizer\": {\"params\": {}}", {"\"optimizer.type\" is missing"}},
    {TM_EINPUT, "+\"scheduler\": {\"params\": {}}", {"\"scheduler.type\" is missing"}},
    {TM_EINPUT, "+\"scheduler\": {}, \"lr_scheduler_type\": \"linear\"", {"\"scheduler.type\" is missing"}},
    {TM_EINPUT,
     "+\"scheduler\": {\"type\": \"WarmupDecayLR\"}",
     {"WarmupDecayLR needs \"scheduler.params.total_num_steps\""}},
    {TM_EINPUT, "+\"scheduler\": {\"type\": \"OneCycle\"}", {"cycle_min_lr", "cycle_max_lr"}},
    {TM_EINPUT, "+\"lr_scheduler_type\": \"cosine_with_min_lr\"", {"min_lr_rate"}},
    {TM_EINPUT, "+\"lr_scheduler_type\": \"warmup_stable_decay\"", {"num_decay_steps"}},
    {TM_EINPUT,
     "+\"lr_scheduler_type\": \"linear\", \"lr_scheduler_kwargs\": {\"num_cycles\": 2}",
     {"\"lr_scheduler_kwargs.num_cycles\" is not an argument of linear"}},
    {TM_EINPUT,
     "+\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, \"cycle_max_lr\": 2,"
     " \"warmup_num_steps\": 5}}",
     {"\"scheduler.params.warmup_num_steps\" is not an argument of OneCycle"}},
    /* contradictions, all of them */
    {TM_EINPUT,
     "+\"learning_rate\": 1e-4, \"weight_decay\": 0.1, \"max_grad_norm\": 1, \"gradient_clipping\": 0.5,"
     " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-4, \"weight_decay\": 0}},"
     " \"train_batch_size\": 7, \"per_device_train_batch_size\": 2, \"gradient_accumulation_steps\": 2",
     {"4 problems:\n  train_batch_size 7 (cfg.json:1:", "learning_rate 1e-4 (cfg.json:1:",
      "does not match optimizer.params.lr 2e-4", "max_grad_norm 1"}},
    {TM_EINPUT,
     "+\"deepspeed\": \"ds.json\", \"gradient_accumulation_steps\": 2, \"learning_rate\": 1e-4",
     {"2 problems", "gradient_accumulation_steps 2 (cfg.json:1:", "(ds.json:2:", "learning_rate"},
     {NULL},
     "{\n\"gradient_accumulation_steps\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}}"},
    {TM_EINPUT,
     "+\"adam_beta2\": 0.95, \"optimizer\": {\"type\": \"AdamW\"}",
     {"adam_beta2 0.95", "optimizer.params.betas 0.999 (DeepSpeed's default"}},
    {TM_EINPUT,
     "+\"weight_decay\": 0.1, \"optimizer\": {\"type\": \"AdamW\"}",
     {"optimizer.params.weight_decay 0 (DeepSpeed's"}},
    {TM_EINPUT, "+\"precision\": \"fp32\", \"bf16\": {\"enabled\": true}", {"precision \"fp32\"", "bf16.enabled true"}},
    {TM_EINPUT, "+\"precision\": \"bf16\", \"bf16\": {\"enabled\": false}", {"bf16.enabled false"}},
    {TM_EINPUT,
     "+\"train_batch_size\": 7, \"train_micro_batch_size_per_gpu\": 2",
     {"7 (cfg.json", "not a multiple of 2"}},
    {TM_EINPUT,
     "+\"train_micro_batch_size_per_gpu\": 2, \"per_device_train_batch_size\": 1",
     {"per_device_train_batch_size 1", "train_micro_batch_size_per_gpu 2"}},
    {TM_EINPUT,
     "+\"learning_rate\": 1e-4, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 1e-3}}",
     {"learning_rate 1e-4", "scheduler.params.warmup_max_lr 1e-3"}},
    {TM_EINPUT,
     "+\"warmup_steps\": 10, \"scheduler\": {\"type\": \"WarmupLR\"}",
     {"warmup_num_steps 1000 (DeepSpeed's"}},
    {TM_EINPUT,
     "+\"lr_scheduler_type\": \"cosine\", \"scheduler\": {\"type\": \"WarmupLR\"}",
     {"lr_scheduler_type \"cosine\"", "scheduler.type \"WarmupLR\""}},
    {TM_EINPUT,
     "+\"max_steps\": 5, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 9}}",
     {"max_steps 5", "scheduler.params.total_num_steps 9"}},
    {TM_EINPUT,
     "{\"model\": \"m\", \"max_length\": 5, \"data\": {\"train\": \"x\", \"seq_len\": 6}}",
     {"max_length 5 (cfg.json:1:", "data.seq_len 6"}},
    {TM_EINPUT,
     "{\"model\": \"a\", \"model_name_or_path\": \"b\", \"dataset\": \"t\"}",
     {"model \"a\"", "model_name_or_path \"b\""}},
    {TM_EINPUT, "+\"strategy\": \"zero2\", \"zero_optimization\": {\"stage\": 3}", {"strategy \"zero2\""}},
    {TM_EINPUT, "+\"strategy\": \"zero1\", \"all_reduce\": \"mpi\"", {"only with strategy ddp"}},
    {TM_EINPUT,
     "+\"strategy\": \"ddp\", \"all_reduce\": \"mpi\", \"communication_data_type\": \"bf16\"",
     {"only with strategy ddp"}},
    {TM_EINPUT,
     "+\"zero_optimization\": {\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"nvme\"}}",
     {"cpu_offload true", "device \"nvme\""}},
    /* the DeepSpeed file */
    {TM_EINPUT, "+\"deepspeed\": \"gone.json\"", {"gone.json: no such file"}},
    {TM_EINPUT, "+\"deepspeed\": 5", {"\"deepspeed\" must be"}},
    {TM_EINPUT, "+\"deepspeed\": \"ds.json\"", {"ds.json:1:"}, {NULL}, "{\"bf16\": }"},
    {TM_EINPUT,
     "+\"deepspeed\": \"ds.json\"",
     {"ds.json:2:", "\"model\" is not a key of DeepSpeed's", "put it into cfg.json"},
     {NULL},
     "{\n\"model\": \"x\"}"},
    {TM_EINPUT,
     "+\"deepspeed\": \"ds.json\"",
     {"ds.json:1:", "unknown key \"zero_optimzation\"", "zero_optimization"},
     {NULL},
     "{\"zero_optimzation\": {}}"},
    /* --set */
    {TM_EINPUT, "+\"seed\": 1", {"--set learning_rte=1", "unknown key", "learning_rate"}, {"learning_rte=1"}},
    {TM_EINPUT, "+\"seed\": 1", {"--set max_steps=ten: \"max_steps\" must be an integer"}, {"max_steps=ten"}},
    {TM_EINPUT, "+\"seed\": 1", {"--set nothing", "key.path=value"}, {"nothing"}},
    {TM_EINPUT,
     "+\"precision\": \"fp16\"",
     {"--set fp16.min_loss_scale=0: fp16: min_loss_scale must be a positive number"},
     {"fp16.min_loss_scale=0"}},
    {TM_EINPUT, "+\"seed\": 1", {"--set =5"}, {"=5"}},
    {TM_EINPUT,
     "+\"learning_rate\": 1e-5, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-5}}",
     {"(--set learning_rate=1)", "optimizer.params.lr"},
     {"learning_rate=1"}},
    {TM_EINPUT,
     "+\"seed\": 1",
     {"--set memory={\"slot\":1}", "unknown key \"slot\" in \"memory\""},
     {"memory={\"slot\":1}"}},
    {TM_EUNSUPPORTED,
     "+\"seed\": 1",
     {"--set pipeline.stages=2: \"pipeline\" is refused", "no pipeline parallelism"},
     {"pipeline.stages=2"}},
    {TM_EINPUT, "+\"seed\": 1", {"unknown key \"of\" in \"seed\""}, {"seed.of=1"}},
    {TM_EINPUT, "+\"seed\": 1", {"unknown key \"bf16\" in \"deepspeed\""}, {"deepspeed.bf16={}"}},
    /* values of the wrong shape, where another shape would do */
    {TM_EINPUT, "+\"no_decay\": [\"norm\", 1]", {"a string or a list of strings"}},
    {TM_EINPUT, "+\"seed\": [1, {}]", {"\"seed\" must be an integer, not [1, ...]"}},
    {TM_EINPUT, "+\"seed\": {\"of\": 1}", {"seed"}},
    {TM_EINPUT,
     "+\"model_name_or_path\": \"another-name-that-goes-on-and-on-and-on-for-longer-than-it-is-shown\"",
     {"model \"m\"", "..."}},
    {TM_EINPUT, "+\"sample_packing\": true, \"group_by_length\": true", {"is for rows of one sample"}},
    {TM_EINPUT, "+\"train_on_inputs\": true, \"mask_history\": true", {"learns the last answer alone"}},
    {TM_EINPUT, "+\"data_seed\": true, \"zero_optimization\": []", {"2 problems", "not true"}},
    {TM_EINPUT, "+\"metric_for_best_model\": 3", {"metric_for_best_model"}},
    {TM_EINPUT, "+\"max_steps\": 3, \"deepspeed\": {\"max_steps\": 4}", {"max_steps"}},
    {TM_EINPUT, "+\"no_decay\": [\"a\", \"b\"]", {"no_decay"}, {"no_decay=[\"a\", \"\"]"}},
    {TM_EINPUT, "+\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}", {"bf16.enabled", "fp16.enabled"}},
    {TM_EINPUT, "+\"optim\": \"sgd\", \"optimizer\": {\"type\": \"AdamW\"}", {"optim \"sgd\"", "optimizer.type"}},
    {TM_EINPUT,
     "+\"optim_args\": \"beta1=0.5\", \"optimizer\": {\"type\": \"AdamW\"}",
     {"beside an \"optimizer\" block"}},
    {TM_EINPUT, "+\"optim_args\": \"momentum=0.9\"", {"AdamW has no option \"momentum\""}},
    {TM_EINPUT, "+\"optim_args\": \"beta1\"", {"must be like"}},
    {TM_EINPUT, "+\"optim_args\": \"beta1=x\"", {"must be like"}},
    {TM_EINPUT, "+\"optim_args\": \"beta1=0.5x\"", {"must be like"}},
    {TM_EINPUT,
     "+\"optimizer\": {\"type\": \"Adafactor\"}, \"memory\": {\"update\": \"F\"}",
     {"\"memory.update\"", "Adafactor adds up squares over whole tensors"}},
    {TM_EINPUT,
     "+\"optimizer\": {\"type\": \"Adafactor\", \"params\": {\"lr\": 1e-3}}",
     {"optimizer.params.lr", "beside relative_step"}},
    {TM_EINPUT,
     "+\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, 0.95], \"beta1\": 0.5}}",
     {"\"beta1\"", "AdamW takes both as \"betas\""}},
    {TM_EINPUT,
     "+\"optimizer\": {\"type\": \"Lion\", \"params\": {\"beta1\": 0.5}}",
     {"\"beta1\"", "Lion takes both as \"betas\""}},
    {TM_EINPUT,
     "+\"optimizer\": {\"type\": \"Adafactor\", \"params\": {\"decay_rate\": 1, \"eps\": 1, \"adam_w_mode\": true}}",
     {"3 problems", "decay_rate", "two numbers", "no option \"adam_w_mode\""}},
    {TM_EINPUT,
     "+\"optimizer\": {\"type\": \"SGD\", \"params\": {\"betas\": [0.9, 0.99], \"eps\": 1, \"adam_w_mode\": true}}",
     {"3 problems", "SGD has no option \"betas\"", "\"eps\"", "\"adam_w_mode\""}},
    {TM_EINPUT, "+\"max_grad_norm\": 2, \"gradient_clipping\": 1", {"max_grad_norm 2", "gradient_clipping 1"}},
    {TM_EINPUT, "+\"save_strategy\": \"best\"", {"save_strategy"}},
    {TM_EINPUT, "+\"load_best_model_at_end\": true", {"load_best_model_at_end"}},
    {TM_EINPUT,
     "+\"val_dataset\": \"e.jsonl\", \"load_best_model_at_end\": true, \"eval_steps\": 3, \"save_steps\": 10",
     {"load_best_model_at_end"}},
    {TM_EINPUT,
     "+\"val_dataset\": \"e.jsonl\", \"load_best_model_at_end\": true, \"eval_steps\": 3, \"save_steps\": 0",
     {"load_best_model_at_end"}},
    {TM_EINPUT, "+\"memory\": {\"device\": \"cuda:x\"}", {"\"cuda:N\", not \"cuda:x\""}},
    {TM_EINPUT,
     "+\"lr_scheduler_type\": \"cosine_with_min_lr\", \"lr_scheduler_kwargs\": {\"min_lr\": 1e-6, \"min_lr_rate\": 1}",
     {"min_lr 1e-6", "min_lr_rate 1"}},
    {TM_EINPUT, "+\"num_train_epochs\": 0.5, \"warmup_steps\": 1e16", {"warmup_steps"}},
    {TM_EINPUT, "+\"train_batch_size\": 9, \"gradient_accumulation_steps\": 2", {"not a multiple of 2"}},
    {TM_EUNSUPPORTED, "+\"optim\": \"galore_adamw\"", {"\"optim\" \"galore_adamw\"", "not supported yet"}},
    {TM_EINPUT,
     "+\"optim\": \"galore_adamw\", \"optimizer\": {\"type\": \"AdamW\"}",
     {"optim \"galore_adamw\"", "optimizer.type \"AdamW\""}},
    {TM_EINPUT,
     "+\"zero_optimization\": {\"offload_param\": {\"nvme_path\": [\"/a\", \"/b\"]}}, \"deepspeed\": \"ds.json\"",
     {"nvme_path", "(ds.json:1:"},
     {NULL},
     "{\"zero_optimization\": {\"offload_param\": {\"nvme_path\": [\"/a\", \"/c\"]}}}"},
    {TM_EINPUT,
     "+\"zero_optimization\": {\"offload_param\": {\"nvme_path\": [\"/a\"]}}, \"deepspeed\": \"ds.json\"",
     {"nvme_path"},
     {NULL},
     "{\"zero_optimization\": {\"offload_param\": {\"nvme_path\": \"/a\"}}}"},
    /* not in this version */
    {TM_EUNSUPPORTED, "+\"objective\": {\"type\": \"grpo\"}", {"\"objective.type\" grpo is not in this version"}},
    {TM_EINPUT,
     "+\"objective\": {\"type\": \"sft\", \"beta\": 0.1, \"loss_type\": \"ipo\"}",
     {"2 problems", "\"objective.beta\" has no effect on objective sft", "\"objective.loss_type\" has no effect"}},
    {TM_EINPUT, "+\"rlhf_type\": \"dpo\", \"beta\": 0", {"\"beta\" 0: nothing would be learned"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": \"robust\", \"label_smoothing\": 0.5",
     {"\"label_smoothing\" 0.5 and loss_type robust"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"sigmoid\", \"bco_pair\"]",
     {"\"loss_type\" must be one of sigmoid", "a list of these", "with sft beside others, not bco_pair"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"sigmoid\", \"sft\"], \"loss_weights\": [1]",
     {"\"loss_weights\" must be a list of numbers, one for each"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"sigmoid\", \"sft\"], \"loss_weights\": [1, -1]",
     {"weights are numbers from 0 to 1e6"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"sigmoid\", \"sft\"], \"loss_weights\": [1, \"2\"]",
     {"weights are numbers from 0 to 1e6"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_weights\": [1]",
     {"\"loss_weights\" must be a list of numbers, one for each loss of the list"}},
    {TM_EINPUT, "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"sft\"]", {"no loss of pairs has a weight"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"ipo\", \"sft\"], \"rpo_alpha\": 1",
     {"\"rpo_alpha\" and sft in \"loss_type\" are the same"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"ipo\", \"robust\"], \"label_smoothing\": 0.5",
     {"\"label_smoothing\" 0.5 and loss_type robust"}},
    {TM_EINPUT,
     "+\"rlhf_type\": \"dpo\", \"loss_type\": [\"ipo\", \"hinge\"], \"label_smoothing\": 0.1",
     {"\"label_smoothing\" has no effect on objective dpo"}},
    {TM_EINPUT, "+\"rlhf_type\": \"orpo\", \"loss_weights\": [1]", {"has no effect on objective orpo"}},
    {TM_EUNSUPPORTED,
     "+\"rlhf_type\": \"dpo\", \"ref_adapters\": [\"a\"]",
     {"\"ref_adapters\" is refused", "--merge-adapter", "objective.reference"}},
    {TM_EINPUT, "+\"memory\": {\"device\": \"cpu-arena\"}", {"memory.device", "add memory.device_budget"}},
    {TM_EINPUT, "+\"memory\": {\"update\": \"B\"}", {"memory.update", "max_grad_norm 1", "set max_grad_norm 0, or"}},
    {TM_EINPUT,
     "+\"memory\": {\"update\": \"B\"}, \"gradient_clipping\": 0.5",
     {"memory.update", "max_grad_norm 0.5", "choose U or F"}},
    {TM_EINPUT,
     "+\"memory\": {\"update\": \"B\"}, \"max_grad_norm\": 0, \"precision\": \"fp16\"",
     {"memory.update", "overflows fp16"}},
    {TM_EINPUT, "+\"fp16\": {\"enabled\": true, \"hysteresis\": 0}", {"fp16.hysteresis", "must be at least 1"}},
    {TM_EINPUT, "+\"fp16\": {\"enabled\": true, \"initial_scale_power\": 200}", {"fp16.initial_scale_power", "127"}},
    {TM_EINPUT,
     "+\"fp16\": {\"enabled\": true, \"min_loss_scale\": 0}",
     {"fp16: min_loss_scale must be a positive number"}},
    {TM_EINPUT, "+\"fp16\": {\"enabled\": true}, \"precision\": \"bf16\"", {"fp16.enabled", "precision", "match"}},
    {TM_EUNSUPPORTED,
     "+\"fp16\": {\"enabled\": true, \"fp16_master_weights_and_grads\": true}",
     {"fp16 master weights"}},
    {TM_EINPUT,
     "{\"model\": \"m\", \"data\": {\"train\": \"t.jsonl\", \"overlong\": \"truncate\", \"truncation\": \"delete\"}}",
     {"data.truncation \"delete\"", "does not match data.overlong"}},
    /* adapters, freezing, quantisation */
    {TM_EINPUT, "+\"tuner_type\": \"adalora\"", {"one of full, lora, qlora, dora, rslora, not \"adalora\""}},
    {TM_EINPUT, "+\"adapter\": {\"peft_type\": \"LOHA\"}", {"one of lora, qlora, dora, rslora, not \"LOHA\""}},
    {TM_EINPUT,
     "+\"tuner_type\": \"full\", \"adapter\": {\"r\": 4}",
     {"cfg.json:1:79: \"adapter\" asks for an adapter, but \"tuner_type\" full (cfg.json:1:60) trains all parameters"}},
    {TM_EINPUT, "+\"train_type\": \"full\", \"lora_rank\": 4", {"\"lora_rank\" asks for an adapter"}},
    {TM_EINPUT, "+\"tuner_type\": \"full\", \"adapters\": [\"a\"]", {"\"adapters\" asks for an adapter"}},
    {TM_EINPUT, "+\"adapter\": {\"rank\": 4}", {"unknown key \"rank\" in \"adapter\""}},
    {TM_EINPUT, "+\"adapter\": {\"lora_alhpa\": 4}", {"did you mean \"lora_alpha\"?"}},
    {TM_EINPUT, "+\"adapter\": {\"r\": 0}", {"\"adapter.r\" must be at least 1, not 0"}},
    {TM_EINPUT, "+\"adapter\": {\"r\": 4}, \"lora_rank\": 8", {"adapter.r 4", "does not match lora_rank 8"}},
    {TM_EINPUT, "+\"adapter\": {\"alpha\": 4, \"lora_alpha\": 8}", {"adapter.alpha 4", "adapter.lora_alpha 8"}},
    {TM_EINPUT, "+\"lora_dropout\": 1", {"\"lora_dropout\" must be a number from 0 to below 1, not 1"}},
    {TM_EINPUT, "+\"lora_rank\": 4, \"lora_alpha\": 0", {"\"lora_alpha\" must be a number above 0, not 0"}},
    {TM_EINPUT, "+\"target_modules\": []", {"a string or a list of strings"}},
    {TM_EINPUT, "+\"target_modules\": \"(\"", {"the regular expression \"(\", character 2"}},
    {TM_EINPUT, "+\"target_regex\": \"[\"", {"cfg.json:1:62", "a class that is not closed"}},
    {TM_EINPUT,
     "+\"target_regex\": \".*\", \"target_modules\": [\"q_proj\"]",
     {"target_regex \".*\"", "does not match target_modules"}},
    {TM_EINPUT, "+\"adapter\": {\"rank_pattern\": {\"q\": 1.5}}", {"\"rank_pattern\": \"q\" must be an integer"}},
    {TM_EINPUT, "+\"adapter\": {\"rank_pattern\": [1]}", {"an object of names, each with a number"}},
    {TM_EINPUT, "+\"adapter\": {\"layers_to_transform\": [1]}", {"\"layers_to_transform\" chooses layers of a list"}},
    {TM_EINPUT, "+\"adapter\": {\"layers_to_transform\": \"x\"}", {"\"layers_to_transform\" must be a list of layers"}},
    {TM_EINPUT, "+\"adapter\": {\"bias\": \"some\"}", {"one of none, all, lora_only, not \"some\""}},
    {TM_EUNSUPPORTED, "+\"adapter\": {\"init_lora_weights\": \"olora\"}", {"there are true, \"gaussian\", \"pissa\""}},
    {TM_EUNSUPPORTED, "+\"init_weights\": \"lora-ga\"", {"\"lora-ga\": there are true"}},
    {TM_EUNSUPPORTED,
     "+\"adapter\": {\"target_parameters\": [\"e\"]}",
     {"adapters of fused experts: not supported yet"}},
    {TM_EUNSUPPORTED, "+\"adapter\": {\"task_type\": \"SEQ_CLS\"}", {"this program has language models"}},
    {TM_EINPUT, "+\"adapter\": {\"path\": \"\"}", {"\"adapter.path\" must name an adapter's folder"}},
    {TM_EINPUT, "+\"adapters\": [\"\"]", {"\"adapters\" must name an adapter's folder"}},
    {TM_EINPUT, "+\"adapter\": {\"path\": \"nowhere\"}", {"nowhere/adapter_config.json: no such file"}},
    {TM_EINPUT,
     "+\"adapters\": [\"lora\"], \"lora_rank\": 4",
     {"\"r\" is 4, but the adapter of lora/adapter_config.json has r 3"}},
    {TM_EINPUT,
     "+\"adapters\": [\"lora\"], \"adapter\": {\"path\": \"x\"}",
     {"adapter.path \"x\"", "does not match adapters"}},
    {TM_EUNSUPPORTED, "+\"adapters\": [\"lora\", \"x\"]", {"\"adapters\" has 2; one adapter is trained"}},
    {TM_EINPUT,
     "+\"tuner_type\": \"dora\", \"adapter\": {\"type\": \"lora\"}",
     {"tuner_type \"dora\"", "adapter.type \"lora\""}},
    {TM_EINPUT,
     "+\"tuner_type\": \"qlora\", \"quantization\": {\"type\": \"none\"}",
     {"tuner_type \"qlora\"", "does not match quantization.type \"none\""}},
    {TM_EINPUT,
     "+\"adapter\": {}, \"quant_bits\": 4, \"bnb_4bit_quant_type\": \"nf4\", \"quantization\": {\"type\": \"fp4\"}",
     {"quantization.type \"fp4\"", "bnb_4bit_quant_type \"nf4\""}},
    {TM_EUNSUPPORTED, "+\"adapter\": {}, \"quant_bits\": 8", {"\"quant_bits\" 8: a frozen base has 4 bits"}},
    {TM_EINPUT, "+\"adapter\": {}, \"quantization\": {\"block\": 128}", {"must be at most 64"}},
    {TM_EINPUT, "+\"quant_bits\": 4", {"a base in 4 bits does not learn: give an \"adapter\""}},
    {TM_EINPUT,
     "+\"tuner_type\": \"lora\", \"quant_bits\": 4, \"bnb_4bit_compute_dtype\": \"float16\"",
     {"\"bnb_4bit_compute_dtype\" is not \"precision\""}},
    {TM_EINPUT,
     "+\"adapter\": {}, \"freeze_parameters\": [\"model.embed\"]",
     {"\"freeze_parameters\" beside an adapter", "modules_to_save"}},
    {TM_EINPUT, "+\"freeze_parameters_ratio\": 1.5", {"must be at most 1"}},
    {TM_EINPUT, "+\"freeze_parameters_regex\": \"(\"", {"cfg.json:1:73", "the regular expression \"(\""}},
    {TM_EINPUT, "+\"freeze_parameters\": [1]", {"a string or a list of strings"}},
    {TM_EUNSUPPORTED, "+\"freeze_llm\": true", {"the language model is what is trained"}},
    {TM_EUNSUPPORTED,
     "+\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}",
     {"bf16 master weights"}},
    {TM_EUNSUPPORTED,
     "+\"zero_optimization\": {\"zeropp_loco_param\": {\"err_beta\": 0.8}}",
     {"quantised communication"}},
    {TM_EUNSUPPORTED, "+\"communication_data_type\": \"fp16\"", {"communication_data_type", "overflows"}},
    {TM_EINPUT,
     "+\"precision\": \"fp32\", \"zero_optimization\": {\"zero_quantized_weights\": true}",
     {"zero_quantized_weights", "fp32"}},
    {TM_EINPUT,
     "+\"precision\": \"fp16\", \"zero_optimization\": {\"zero_quantized_weights\": true}",
     {"zero_quantized_weights", "fp16"}},
    {TM_EINPUT,
     "+\"precision\": \"fp16\", \"zero_optimization\": {\"zero_quantized_gradients\": true}",
     {"zero_quantized_gradients", "fp16 overflowed"}},
    {TM_EUNSUPPORTED,
     "+\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"fp32_optimizer_states\": false}}",
     {"fp32_optimizer_states"}},
    {TM_EUNSUPPORTED, "+\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"amsgrad\": true}}", {"AMSGrad"}},
    /* never */
    {TM_EUNSUPPORTED, "+\"optimizer\": {\"type\": \"OneBitAdam\"}", {"optimizer \"OneBitAdam\" is not supported"}},
    {TM_EINPUT, "+\"optimizer\": {\"type\": \"AdmW\"}", {"unknown optimizer \"AdmW\""}},
    {TM_EUNSUPPORTED, "+\"sparse_attention\": {\"mode\": \"fixed\"}", {"\"sparse_attention\" is refused"}},
    {TM_EUNSUPPORTED, "+\"amp\": {\"enabled\": true}", {"\"amp\" is refused"}},
    {TM_EUNSUPPORTED, "+\"autotuning\": {\"enabled\": true}", {"\"autotuning\" is refused"}},
    {TM_EUNSUPPORTED,
     "+\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"max_grad_norm\": 1}}",
     {"give gradient_clipping"}},
    {TM_EUNSUPPORTED, "+\"resume_from_checkpoint\": true", {"--resume"}},
    {TM_EUNSUPPORTED, "+\"lr_scheduler_type\": \"reduce_lr_on_plateau\"", {"not supported"}},
};

static void each_says_what_where_and_what_to_do(void **state) {
    (void)state;
    unsigned failed = 0;
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        const bad *b = &cases[i];
        char json[2000];
        tm_config *c = NULL;
        const char *text = b->json;
        if (*text == '+') snprintf(json, sizeof json, "{" BASE ", %s}", text + 1), text = json;
        tm_status rc = test_load(&c, text, b->ds, b->set);
        if (rc != b->status) {
            print_error("status %s, not %s, for %s\n  %s\n", tm_status_name(rc), tm_status_name(b->status), text,
                        tm_error_get()->text);
            failed++;
        }
        for (size_t k = 0; k < TM_COUNT(b->says) && b->says[k]; k++) {
            if (strstr(tm_error_get()->text, b->says[k])) continue;
            print_error("\"%s\" is not in\n  %s\n  for %s\n", b->says[k], tm_error_get()->text, text);
            failed++;
        }
        if (getenv("CONFIG_TEST_SHOW")) print_message("%s\n", tm_error_get()->text);
        if (rc == TM_OK)
            tm_config_free(c);
        else
            assert_null(c);
    }
    assert_int_equal(failed, 0);
}

/* What is right or wrong stays so, or memory ran out: no half of a configuration, nothing held. */
static tm_status load_case(void *ctx) {
    const bad *b = ctx;
    char json[2000];
    tm_config *c = NULL;
    const char *text = b->json;
    if (*text == '+') snprintf(json, sizeof json, "{" BASE ", %s}", text + 1), text = json;
    tm_status rc = test_load(&c, text, b->ds, b->set);
    tm_config_free(c);
    if (rc == TM_OK) return TM_EBUG; /* none of them may load */
    return rc == b->status ? TM_OK : rc;
}

static tm_status load_all_kinds(void *ctx) {
    static const char *const set[] = {"memory.update=F", "seed=7", "deepspeed=ds.json", NULL};
    tm_config *c = NULL;
    tm_buf text = {0};
    (void)ctx;
    tm_status rc = test_load(&c,
                             "{" BASE ", \"no_decay\": [\"norm\", \"bias\"], \"fsdp_config\": {\"min_num_params\":"
                             " 5}, \"lr_scheduler_kwargs\": {\"num_cycles\": 1}, \"adapter\": {\"path\": \"lora\", "
                             "\"rank_pattern\": {\"q\": 2},"
                             " \"exclude_modules\": \"a|b\", \"layers_to_transform\": [1, 2]}}",
                             "{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\","
                             " \"nvme_path\": [\"/a\", \"/b\"]}}}",
                             set);
    if (rc == TM_OK) rc = tm_config_dump_json(c, &text, 1);
    if (rc == TM_OK) rc = tm_config_resolve_model(c, 64);
    if (rc == TM_OK) rc = tm_config_resolve_steps(c, 10);
    if (rc == TM_OK) rc = tm_config_help(&text);
    tm_buf_free(&text);
    tm_config_free(c);
    return rc;
}

static void memory_runs_out_anywhere(void **state) {
    (void)state;
#ifndef TIDEMILL_FAULTS
    TEST_SKIP("this build makes no failures (TIDEMILL_FAULTS)");
#endif
    walk w = {.call = "alloc", .kind = "fail", .want = TM_ENOMEM};
    uint64_t failed = walk_all(w, load_all_kinds, NULL);
    assert_true(failed > 30);
    w.may_pass = true; /* of a wrong one: it is still refused, and a suggestion may be missing */
    for (size_t i = 0; i < TM_COUNT(cases); i++) failed += walk_all(w, load_case, (void *)(uintptr_t)&cases[i]);
    assert_true(failed > 1000);
}

/* Nobody said how to read another file, or what this one is called. */
static void without_a_reader(void **state) {
    static const char json[] = "{" BASE ", \"deepspeed\": \"ds.json\"}", bad_json[] = "{";
    tm_config *c;
    (void)state;
    assert_int_equal(tm_config_load(&c, json, sizeof json - 1, &(tm_config_opts){0}), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "configuration:1:"));
    assert_non_null(strstr(tm_error_get()->text, "cannot be read here"));
    assert_int_equal(tm_config_load(&c, bad_json, sizeof bad_json - 1, &(tm_config_opts){0}), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "configuration:1:"));
}

static void switched_off_is_fine(void **state) {
    (void)state;
    tm_config *c = test_ok("{" BASE ", \"adapter\": null, \"fp16\": {\"enabled\": false}, \"bf16\": {\"enabled\": true,"
                           " \"bf16_optimizer_states\": false}, \"amp\": {\"enabled\": \"auto\"},"
                           " \"autotuning\": {\"enabled\": false}, \"packing\": false, \"label_smoothing_factor\": 0,"
                           " \"zero_optimization\": {\"zero_quantized_weights\": false, \"zeropp_loco_param\": null},"
                           " \"flops_profiler\": {\"enabled\": true, \"anything\": [1, {\"x\": 2}]}}");
    assert_int_equal(c->precision, TM_BF16);
    tm_config_free(c);
}

static void ranks_share_a_batch(void **state) {
    (void)state;
    tm_config *c;
    const char *json = "{" BASE ", \"train_batch_size\": 12, \"per_device_train_batch_size\": 3}";
    tm_config_opts two = {.name = "c", .world_size = 2}, five = {.name = "c", .world_size = 5};
    assert_int_equal(tm_config_load(&c, json, strlen(json), &two), TM_OK);
    assert_int_equal(c->accumulation_steps, 2);
    tm_config_free(c);
    assert_int_equal(tm_config_load(&c, json, strlen(json), &five), TM_EINPUT);
    tm_error_clear();
    assert_int_equal(
        tm_config_load(&c, "{\"model\": \"m\"}", 14, &(tm_config_opts){.name = "c", .data_optional = true}), TM_OK);
    assert_null(c->data.train);
    tm_config_free(c);
}

static void late_mismatches(void **state) {
    (void)state;
    tm_config *c = test_ok("{" BASE ", \"warmup_ratio\": 0.1, \"scheduler\": {\"type\": \"WarmupLR\", \"params\":"
                           " {\"warmup_num_steps\": 5}}}");
    tm_error_clear();
    assert_int_equal(tm_config_resolve_steps(c, 100), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "gives 10 of 100 steps"));
    tm_error_clear();
    assert_int_equal(tm_config_resolve_steps(c, 50), TM_OK);
    assert_int_equal(tm_config_resolve_steps(c, 0), TM_EINPUT);
    tm_error_clear();
    tm_config_free(c);
}

/* Every prefix and every one-byte change of a valid file: an error or a configuration, never a crash. */
static void damaged_files(void **state) {
    (void)state;
    const char *json = "{" BASE ", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, 0.99]}},"
                       " \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": [\"a\"]}}}";
    char text[400];
    size_t n = strlen(json);
    tm_config *c;
    for (size_t i = 0; i < n; i++) {
        tm_error_clear();
        assert_int_equal(tm_config_load(&c, json, i, &(tm_config_opts){.name = "c"}), TM_EINPUT);
        static const char change[] = "\"{}[],:0-xe\n";
        for (const char *p = change; *p; p++) {
            memcpy(text, json, n);
            text[i] = *p;
            tm_error_clear();
            if (tm_config_load(&c, text, n, &(tm_config_opts){.name = "c"}) == TM_OK) tm_config_free(c);
        }
    }
    tm_error_clear();
}

int main(void) {
    tm_log_set_level(TM_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_says_what_where_and_what_to_do),
                                       cmocka_unit_test(memory_runs_out_anywhere),
                                       cmocka_unit_test(without_a_reader),
                                       cmocka_unit_test(switched_off_is_fine),
                                       cmocka_unit_test(ranks_share_a_batch),
                                       cmocka_unit_test(late_mismatches),
                                       cmocka_unit_test(damaged_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

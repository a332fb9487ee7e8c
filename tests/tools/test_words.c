/* What people type, and what is answered. */
#include "words.h"

/* rows leave out what they do not need */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define TINY "--model $M --dataset $D --quiet --memory.host_budget 300MiB --logging_steps 1 "

/* Keys as options. */
static const words_row options[] = {
    {"$T train " TINY "--tuner_type lora --lora_rank 4 --target_modules q_proj v_proj --max_steps 2 --output_dir o && "
     "grep -c '\"loss\"' o/log.jsonl && grep '\"r\": 4' o/adapter_config.json",
     0,
     {"2\n"}},
    {"cp $S/examples/tiny/config.json m.json; $T train " TINY "--max_steps 3 --output_dir a >/dev/null; "
     "echo '{\"model\": \"'$M'\", \"max_steps\": 9, \"data\": {\"train\": \"'$D'\"}, \"output_dir\": \"b\"}' >c.json; "
     "$T train -c c.json --quiet --max-steps 3 --host_budget=300MiB; "
     "tail -qn1 a/log.jsonl b/log.jsonl | grep -o 'state_hash[^,}]*' | uniq -c",
     0,
     {"2 state_hash"}},
    {"$T plan --model $M --seq_len 64 --tuner_type full --no-measure | head -1", 0, {"x 1 x 64 tokens"}},
    {"$T data --model $M --dataset $D $D#10 --samples 0", 0, {"1510 samples"}},
    {"head -4 $P >p.jsonl; $T eval --model $M --data p.jsonl --objective.type simpo --seq-len 64 --beta 3 --json",
     0,
     {"\"objective\": \"simpo\""}},
    /* nothing is made */
    {"$T train " TINY "--max_steps 2 --output_dir o --dry-run && ls -A", 0, {"a step", "the run      2 steps"}, "o\n"},
    /* a run's held-out prompts, by what it began with and what it made: an adapter, then all of the model */
    {"$T train " TINY
     "--tuner_type lora --split_dataset_ratio 0.1 --max_steps 2 --output_dir o && $T report o --answers && "
     "grep -o '\"after\"' o/report_answers.json | wc -l && grep -o 'Held-out prompts' o/report.html && "
     "tail -n1 o/log.jsonl | grep -c state_hash",
     0,
     {"3\n", "Held-out prompts", "1\n"}},
    {"$T train " TINY
     "--tuner_type full --split_dataset_ratio 0.1 --max_steps 2 --output_dir o && $T report o --answers && "
     "grep -o '\"before\"' o/report_answers.json | wc -l",
     0,
     {"3\n"}},
    {"$T train " TINY "--max_steps 1 --output_dir o && $T report o --answers", 2, {"has no held-out prompts"}, NULL, 1},
    {"$T train --model $M --dry-run",
     2,
     {"command line: \"data.train\" is missing; give it, for example --dataset"},
     NULL,
     1},
    {"$T train " TINY "--max_steps 2 --host_budget 1 --dry-run", 2, {"memory.host_budget"}, NULL, 1},
    /* wrong ones */
    {"$T generate $M", 2, {"unexpected argument", "; a model is named so: --model "}, NULL, 1},
    {"$T train", 2, {"a configuration is missing", "--model DIR --dataset FILE"}, NULL, 1},
    {"$T train a.json -c b.json", 2, {"two configurations, 'b.json' and 'a.json'"}, NULL, 1},
    {"$T train --lr 1e-4", 2, {"unknown option '--lr'; did you mean '--learning_rate'?"}, NULL, 1},
    {"$T train --quite", 2, {"unknown option '--quite'; did you mean '--quiet'?"}, NULL, 1},
    {"$T train --lora_rank", 2, {"--lora_rank needs a value, an integer"}, NULL, 1},
    {"$T train --model m --dataset d --lora_rank x", 2, {"--lora_rank=x: \"lora_rank\" must be an integer"}, NULL, 1},
    {"$T generate --lora_rank 3 --model m", 2, {"unknown option '--lora_rank'"}, NULL, 1},
    {"$T train -x", 2, {"unknown option '-x'"}, NULL, 1},
};

/* Models of a hub, in caches as huggingface_hub and ModelScope lay them out. */
#define HF                                                                                                             \
    "h=$PWD/hf; r=$h/models--Some--Model; mkdir -p $r/refs $r/blobs $r/snapshots/abc123; printf abc123 "               \
    ">$r/refs/main; "
#define LINKED                                                                                                         \
    "for f in $M/*.json $M/*.jinja $M/*.safetensors; do cp $f $r/blobs/b-$(basename $f); ln -s "                       \
    "../../blobs/b-$(basename $f) "                                                                                    \
    "$r/snapshots/abc123/$(basename $f); done; "
static const words_row names_of_a_hub[] = {
    {HF LINKED "HF_HUB_CACHE=$h $T train --model Some/Model --dataset $D --tuner_type lora --max_steps 1 --quiet "
               "--output_dir o && "
               "grep -o 'snapshots/abc123' o/run.json",
     0,
     {"snapshots/abc123"}},
    {HF LINKED "mkdir home; mv $h home/hub; HF_HOME=$PWD/home $T inspect Some/Model | head -2", 0, {"abc123"}},
    {HF LINKED "mkdir -p home/.cache/huggingface; mv $h home/.cache/huggingface/hub; env -u HF_HOME -u HF_HUB_CACHE -u "
               "XDG_CACHE_HOME HOME=$PWD/home $T generate --model Some/Model --prompt a --max-new-tokens 1 --json",
     0,
     {"finish_reason"}},
    {HF LINKED "rm $r/refs/main; echo '{\"text\": \"a\"}' | HF_HUB_CACHE=$h $T tokenize --model Some/Model",
     0,
     {"\"ids\""}},
    {HF LINKED "printf '../../x' >$r/refs/main; mkdir $r/snapshots/def; HF_HUB_CACHE=$h $T inspect Some/Model",
     2,
     {"nor is it in the caches", "hf download Some/Model"},
     NULL,
     1},
    {HF LINKED "printf ghost >$r/refs/main; HF_HUB_CACHE=$h $T inspect Some/Model",
     2,
     {"hf download Some/Model"},
     NULL,
     1},
    {"mkdir -p ms/models/Some; cp -r $M ms/models/Some/Model-2___5; MODELSCOPE_CACHE=$PWD/ms $T inspect Some/Model-2.5 "
     "| head -2",
     0,
     {"Model-2___5"}},
    {"mkdir -p home/.cache/modelscope/hub/Some; cp -r $M home/.cache/modelscope/hub/Some/Model; HOME=$PWD/home "
     "HF_HUB_CACHE=/nowhere $T plan --model Some/Model --tuner_type full --no-measure | head -1",
     0,
     {"1.0 M parameters"}},
    /* what is here counts before what is there */
    {HF "mkdir Some; cp -r $M Some/Model; HF_HUB_CACHE=$h $T inspect Some/Model | head -2",
     0,
     {"Some/Model"},
     "abc123"},
    /* what is nowhere */
    {"HF_HUB_CACHE=/nowhere HOME=/nowhere $T plan --model Qwen/Qwen2.5-7B-Instruct",
     2,
     {"Qwen/Qwen2.5-7B-Instruct: there is no such model folder", "hf download Qwen/Qwen2.5-7B-Instruct",
      "modelscope download --model Qwen/Qwen2.5-7B-Instruct"},
     NULL,
     1},
    {"$T train --model $M --dataset tatsu-lab/alpaca --max_steps 1",
     2,
     {"tatsu-lab/alpaca: there is no such file", "hf download --repo-type dataset --local-dir data tatsu-lab/alpaca"},
     NULL,
     1},
};

static void models_of_a_hub(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(names_of_a_hub); i++) words_check(&names_of_a_hub[i]);
}

/* What helps. */
static const words_row helps[] = {
    {"$T help train; $T train --help", 0, {"usage: tidemill train", "--KEY VALUE"}},
    {"$T help terms",
     0,
     {"A plan\n", "  weight_hi, weight_lo\n    a weight as it computes (bf16)", "  update U\n", "  wear\n",
      "padding\n"},
     "`"},
    {"$T help terms slot", 0, {"  slot\n    one of the (usually two) places of an extent"}, "  frame"},
    {"$T help spill", 0, {"activations keep, spill, recompute"}},
    {"$T help terms xyzzy", 0, {"no term has the word 'xyzzy'"}},
    {"$T help xyzzy", 2, {"unknown command 'xyzzy'"}, NULL, 1},
    {"$T sft --model m", 2, {"unknown command 'sft'; here it is: tidemill train"}, NULL, 1},
    {"$T merge-lora", 2, {"here it is: tidemill export ADAPTER OUT --merge-adapter"}, NULL, 1},
    {"$T --version --json", 0, {"\"version\": \"", "\"compiler\"", "\"reads\": [", "\"instruction sets\""}},
    {"$T --version --verbose", 2, {"unexpected argument '--verbose'; there is --json"}},
    {"TIDEMILL_MODULES=/nowhere $T doctor --fix", 0, {"# several ranks: ", "\nsudo apt-get install -y"}, "  ok"},
    {"echo >libtidemill_mpi.so; TIDEMILL_MODULES=. $T doctor --fix",
     0,
     {"# several ranks: ", "\nsudo apt-get install -y openmpi-bin\n"},
     "libopenmpi-dev"},
    {"cp $S/hardware/2x24gb.json there.json; $T plan --model $M --tuner_type full --hardware 2x24gb --no-measure",
     0,
     {"device "}},
    {"$T train --num_gpus 2 --model m",
     2,
     {"unknown option '--num_gpus': a launcher starts the ranks: mpirun -n N"},
     NULL,
     1},
    {"$T plan --model $M --tuner_type full --host_budget 1G --no-measure | grep host", 0, {"1.00 GiB"}},
};

/* Will it fit, without a configuration. */
static const words_row tables[] = {
    {"$T plan --model $M --seq_len 64 --no-measure",
     0,
     {"full ", "qlora ", " (least) ", "s/step", "next: tidemill new --model"}},
    {"$T plan --model $M --seq_len 64 --method lora,dpo --chart c.svg --no-measure && grep -c '<polyline' c.svg && "
     "grep '<title>dpo: ' c.svg",
     0,
     {"lora ", "dpo ", "\n2\n"},
     "qlora"},
    {"$T plan --model $M --seq_len 64 --method full --no-measure --json",
     0,
     {"\"method\": \"full\"", "\"minimum_host_bytes\": ", "\"budgets\": [{"}},
    {"$T plan --model $M --seq_len 64 --tuner_type full --no-measure --json", 0, {"\"fits\": true"}},
    {"$T plan --model $M --trainable_parameters model.norm --no-measure --json", 0, {"\"fits\": true"}},
    /* each template of `new` is a method, and what of it is one is the template's own */
    {"for m in $($T new --list | sed -n 's/^  \\([a-z]*\\) .*/\\1/p'); do h=; [ $m != gpu ] || h='--hardware 2x24gb'; "
     "$T plan --model $M --seq_len 64 --method $m $h --no-measure --json | grep -c '\"refused\": null'; done | sort | "
     "uniq -c",
     0,
     {"     11 1\n"}},
    {"$T plan --model $M --seq_len 64 --hardware 2x24gb --no-measure", 0, {"* full ", "* gpu "}},
    {"$T plan --model $M --seq_len 64 --hardware cpu-8core --no-measure", 0, {"qlora"}, "gpu"},
    {"$T plan $S/examples/templates/gpu.json --model $M --dataset $D --hardware cpu-8core --no-measure",
     2,
     {"\"memory.device\": \"cuda\": 8 cores (AVX2), 64 GB, 1 NVMe has no GPU; plan for another machine"},
     NULL,
     1},
    {"learns() { sed 's/.*\"learning_parameters\": \\([0-9]*\\).*/\\1/'; }; for m in full lora dora qlora; do "
     "a=$($T plan --model $M --seq_len 64 --method $m --no-measure --json | learns); "
     "b=$($T plan $S/examples/templates/$m.json --model $M --dataset $D --seq_len 64 --no-measure --json | learns); "
     "[ \"$a\" = \"$b\" ] || echo \"$m: $a, $b\"; done; echo done",
     0,
     {"done"},
     ": "},
    {"$T plan --model $M --seq_len 64 --method lora --lora_rank 1 --no-measure --json | grep -c '\"refused\": null'",
     0,
     {"1\n"}},
    {"$T plan --model $M --method loar", 2, {"unknown method 'loar'; did you mean 'lora'?"}, NULL, 1},
    {"$T plan --model nowhere", 2, {"nowhere: there is no such model folder"}, NULL, 1},
    {"$T plan --model $M --method lora --advise", 2, {"--advise"}, NULL, 1},
};

/* The least of the table is the least with which `train` starts, to the byte. */
static void the_least_is_trains(void **state) {
    (void)state;
    words_check(&(words_row){"l=$($T plan --model $M --seq_len 64 --dataset $D --method lora --no-measure --json | sed "
                             "'s/.*\"minimum_host_bytes\": \\([0-9]*\\).*/\\1/'); "
                             "a=\"--model $M --dataset $D --seq_len 64 --adapter.r 16 --adapter.lora_alpha 32 "
                             "--adapter.lora_dropout 0.05 --max_steps 1 --quiet --output_dir o\"; "
                             "$T train $a --host_budget $l && $T train $a --resume never --host_budget $((l - 1))",
                             2,
                             {"is too small: this job needs at least"},
                             NULL,
                             1});
}

/* What a budget may be is the machine's, not what others leave of it at the moment: a busy machine has the same table. */
static void a_table_is_of_the_machine(void **state) {
    (void)state;
    char memory[64];
    snprintf(memory, sizeof memory, "\"memory_bytes\": %llu,", (unsigned long long)(tm_mem_total_bytes() / 5 * 4));
    words_check(&(words_row){"$T plan --model $M --seq_len 64 --method lora --no-measure --json", 0, {memory}});
}

static void tables_of_methods(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(tables); i++) words_check(&tables[i]);
}

/* Usual mistakes: what, where, what to do; exit 2, and a line a problem. */
#define RUN_IT "$T train --model $M --dataset $D --max_steps 1 --quiet --output_dir o "
/* What a refusal says at its end is printed and done. */
#define PASTED(line)                                                                                                   \
    line " 2>err; grep -o 'to paste: .*' err | cut -c11- >line; cat line; PATH=$(dirname $T):$PATH sh line && "
#define WRITTEN(name, text) "printf '" text "' >" name "; $T train " name
static const words_row mistakes[] = {
    /* keys */
    {WRITTEN("a.json", "{\"model\": \"m\",\n \"learning_rte\": 1}"),
     2,
     {"a.json:2:18: unknown key \"learning_rte\"", "did you mean \"learning_rate\"?"},
     NULL,
     1},
    {WRITTEN("a.json", "{\"batch_size\": 4}"),
     2,
     {"a.json:1:16: unknown key \"batch_size\"", "did you mean \"per_device_train_batch_size\"?"},
     NULL,
     1},
    {WRITTEN("a.yaml", "epochs: 3\n"),
     2,
     {"a.yaml:1:9: unknown key \"epochs\"", "did you mean \"num_train_epochs\"?"},
     NULL,
     1},
    {WRITTEN("a.json", "{\"lr\": 1e-4}"), 2, {"did you mean \"learning_rate\"?"}, NULL, 1},
    {WRITTEN("a.json", "{\"peft_config\": {}}"), 2, {"did you mean \"adapter\"?"}, NULL, 1},
    {WRITTEN("a.json", "{\"host_budget\": \"1G\"}"),
     2,
     {"unknown key \"host_budget\" at top level; it belongs under \"memory\""},
     NULL,
     1},
    {RUN_IT "--num_gpus 2", 2, {"--num_gpus", "mpirun -n N tidemill train"}, NULL, 1},
    /* values */
    {RUN_IT "--learning_rate fast",
     2,
     {"--learning_rate=fast: \"learning_rate\" must be a number, not \"fast\""},
     NULL,
     1},
    {RUN_IT "--lr_scheduler_type cosin", 2, {"did you mean \"cosine\"?"}, NULL, 1},
    {RUN_IT "--memory.device gpu", 2, {"must be \"cpu\", \"cpu-arena\", \"cuda\" or \"cuda:N\", not \"gpu\""}, NULL, 1},
    {RUN_IT "--host_budget lots", 2, {"must be a size (bytes, or like \"3GiB\")"}, NULL, 1},
    {RUN_IT "--host_budget 1000TB", 2, {"is more than there is", "give less, or leave it out"}, NULL, 1},
    {RUN_IT "--host_budget 1MiB",
     2,
     {"is too small: this job needs at least", "raise it (--host-budget ", "; to paste: tidemill train --model "},
     "--host_budget 1MiB --",
     1},
    /* the line that is to be pasted does it: another value in place of what was said, the rest as it was */
    {PASTED("$T train --model $M --dataset $D --max_steps 1 --quiet --set memory.host_budget=1MiB --output_dir \"it's "
            "o\"") "ls",
     0,
     {"it's o"}},
    {PASTED("$T generate --model $M --prompt a --max-new-tokens 1 --json --host-budget=1MiB") "ls",
     0,
     {"generate --model ", "--host-budget ", "finish_reason"}},
    {"echo '{\"model\": \"'$M'\", \"data\": {\"train\": \"'$D'\"}, \"output_dir\": \"o\", \"max_steps\": 1, "
     "\"memory\": "
     "{\"host_budget\": \"2MiB\"}}' >c.json; " PASTED("$T train c.json --quiet") "ls",
     0,
     {"tidemill train c.json --quiet --memory.host_budget ", "MiB", "o\n"}},
    {PASTED("$T plan --model $M --dataset $D --tuner_type lora --max_steps 1 --host_budget 1MiB --no-measure") "true",
     0,
     {"tidemill plan --model ", "a step"}},
    {RUN_IT "--save_strategy sometimes", 2, {"must be one of steps, no, epoch, best"}, NULL, 1},
    /* what contradicts, and what is not here */
    {RUN_IT "--bf16 --fp16", 2, {"bf16", "does not match fp16", "give each setting once"}, NULL, 1},
    {RUN_IT "--tuner_type full --lora_rank 8", 2, {"\"lora_rank\" asks for an adapter", "leave one out"}, NULL, 1},
    {RUN_IT "--train_batch_size 7 --per_device_train_batch_size 2",
     2,
     {"train_batch_size 7", "is not a multiple of 2"},
     NULL,
     1},
    {RUN_IT "--resume_from_checkpoint True", 2, {"--resume auto|never|DIR"}, NULL, 1},
    {RUN_IT "--load_in_8bit", 2, {"not supported yet by this version; leave it out"}, NULL, 1},
    {RUN_IT "--target_modules qproj", 2, {"chooses no module of this model; there are", "q_proj"}, NULL, 1},
    /* files */
    {"$T train --model modle --dataset $D", 2, {"modle: there is no such model folder or .gguf file"}, NULL, 1},
    {"mkdir m; $T train --model m --dataset $D",
     2,
     {"m: has no config.json; name a Hugging Face folder or a .gguf file"},
     NULL,
     1},
    {"$T train $M", 2, {"is no configuration; a model is --model "}, NULL, 1},
    {"$T train there.json", 2, {"there.json: no such file; check the path"}, NULL, 1},
    {"$T train --model $M --dataset trian.jsonl",
     2,
     {"trian.jsonl: there is no such file; \"data.train\" names it"},
     NULL,
     1},
    {"mkdir d; $T train --model $M --dataset d", 2, {"d: the folder has no data file in it"}, NULL, 1},
    {"printf '[{\"text\": \"a\"}, {\"te' >d.json; $T train --model $M --dataset d.json",
     2,
     {"d.json: element 2: the file ends here; it is cut off"},
     NULL,
     1},
    {"echo '{\"question\": \"a\", \"answer\": \"b\"}' >d.jsonl; $T train --model $M --dataset d.jsonl",
     2,
     {"d.jsonl:1: keys {question, answer}", "\"columns\": {\"question\": \"prompt\", \"answer\": \"completion\"}"},
     NULL,
     1},
    {"head -1 $P >d.jsonl; $T train --model $M --dataset d.jsonl",
     2,
     {"are a pair of preferences", "\"objective.type\" dpo, simpo"},
     NULL,
     1},
    {"head -1 $D >d.jsonl; $T train --model $M --dataset d.jsonl --rlhf_type dpo",
     2,
     {"no pair (\"chosen\" and \"rejected\""},
     NULL,
     1},
    {"cp -r $M m; $T train --model m --dataset $D --output_dir m",
     2,
     {"would replace those of the model", "give another output_dir"},
     NULL,
     1},
    {RUN_IT "--offload_optimizer_device nvme --offload_optimizer_nvme_path /nowhere/nv",
     2,
     {"no such directory; mount its disk, or make it: mkdir -p"},
     NULL,
     1},
    {RUN_IT "--deepspeed ds.json", 2, {"ds.json: no such file; check the path"}, NULL, 1},
    /* how it is written */
    {WRITTEN("a.json", "{\"model\": \"m\"\n \"dataset\": \"d\"}"), 2, {"a.json:2:2: expected "}, NULL, 1},
    {WRITTEN("a.yaml", "model: m\n  data: d\n"), 2, {"a.yaml:2:7: no YAML"}, NULL, 1},
    {WRITTEN("a.yaml", "model: m\n\tdata: d\n"), 2, {"a.yaml:2:1: no YAML: found a tab character"}, NULL, 1},
    {"$T trian", 2, {"unknown command 'trian'; did you mean 'train'?"}, NULL, 1},
    {"$T generate --model $M", 2, {"give either --prompt or --messages"}, NULL, 1},
};

static void usual_mistakes(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(mistakes); i++) words_check(&mistakes[i]);
}

static void help_where_it_is_looked_for(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(helps); i++) words_check(&helps[i]);
}

static void options_of_keys(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(options); i++) words_check(&options[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_keys),           cmocka_unit_test(usual_mistakes),
        cmocka_unit_test(a_table_is_of_the_machine), cmocka_unit_test(tables_of_methods),
        cmocka_unit_test(the_least_is_trains),       cmocka_unit_test(help_where_it_is_looked_for),
        cmocka_unit_test(models_of_a_hub),
    };
    words_begin();
    return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}

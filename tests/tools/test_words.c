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
    {"$T plan --model $M --seq_len 64 --no-measure | head -1", 0, {"x 1 x 64 tokens"}},
    {"$T data --model $M --dataset $D $D#10 --samples 0", 0, {"1510 samples"}},
    {"head -4 $P >p.jsonl; $T eval --model $M --data p.jsonl --objective.type simpo --seq-len 64 --beta 3 --json",
     0,
     {"\"objective\": \"simpo\""}},
    /* nothing is made */
    {"$T train " TINY "--max_steps 2 --output_dir o --dry-run && ls -A", 0, {"a step", "the run      2 steps"}, "o\n"},
    {"$T train --model $M --dry-run",
     2,
     {"command line: \"data.train\" is missing; give it, for example --dataset"},
     NULL,
     1},
    {"$T train " TINY "--max_steps 2 --host_budget 1 --dry-run", 2, {"memory.host_budget"}, NULL, 1},
    /* wrong ones */
    {"$T train", 2, {"a configuration is missing", "--model DIR --dataset FILE"}, NULL, 1},
    {"$T train a.json -c b.json", 2, {"two configurations, 'b.json' and 'a.json'"}, NULL, 1},
    {"$T train --lr 1e-4", 2, {"unknown option '--lr'; did you mean '--learning_rate'?"}, NULL, 1},
    {"$T train --quite", 2, {"unknown option '--quite'; did you mean '--quiet'?"}, NULL, 1},
    {"$T train --lora_rank", 2, {"--lora_rank needs a value, an integer"}, NULL, 1},
    {"$T train --model m --dataset d --lora_rank x", 2, {"--lora_rank=x: \"lora_rank\" must be an integer"}, NULL, 1},
    {"$T generate --lora_rank 3 --model m", 2, {"unknown option '--lora_rank'"}, NULL, 1},
    {"$T train -x", 2, {"unknown option '-x'"}, NULL, 1},
};

static void options_of_keys(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(options); i++) words_check(&options[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_keys),
    };
    words_begin();
    return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}

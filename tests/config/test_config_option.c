/* Keys as options of a command: what of the words behind one is its value. */
#include "world.h"

typedef struct option {
    const char *words[8];
    const char *makes; /* NULL: not a key; "!...": refused, and this is said */
    int left;          /* words that are not its own */
} option;

static const option options[] = {
    /* the ways of writing one */
    {{"--lora_rank", "8"}, "--lora_rank=8", 0},
    {{"--lora_rank=8", "c.json"}, "--lora_rank=8", 1},
    {{"--lora-rank", "8", "--x"}, "--lora_rank=8", 1},
    {{"--adapter.r", "8"}, "--adapter.r=8", 0},
    {{"--model="}, "--model=", 0},
    {{"--optim_args=a=b,c=d"}, "--optim_args=a=b,c=d", 0},
    {{"--max_steps", "-1"}, "--max_steps=-1", 0},
    {{"--learning_rate", "1e-4", "c.json"}, "--learning_rate=1e-4", 1},
    {{"--tuner_type", "lora", "more"}, "--tuner_type=lora", 1},
    {{"--deepspeed", "ds.json", "c.json"}, "--deepspeed=ds.json", 1},
    {{"--model", "m.json"}, "--model=m.json", 0},
    /* of our sections the last name does */
    {{"--host_budget", "1GiB"}, "--memory.host_budget=1GiB", 0},
    {{"--seq-len", "64"}, "--data.seq_len=64", 0},
    {{"--buffer_count", "3"}, NULL, 1},
    /* lists */
    {{"--dataset", "a.jsonl", "b c.json", "-c", "d"}, "--dataset=[\"a.jsonl\", \"b c.json\"]", 2},
    {{"--dataset", "a.jsonl", "c.yaml"}, "--dataset=a.jsonl", 1},
    {{"--data", "a.jsonl", "b.jsonl"}, "--data.train=[\"a.jsonl\", \"b.jsonl\"]", 0},
    {{"--data=a.jsonl"}, "--data.train=a.jsonl", 0},
    {{"--data", "{\"seq_len\": 8}"}, "--data={\"seq_len\": 8}", 0},
    {{"--target_modules", "q_proj", "v_proj", "c.json"}, "--target_modules=[\"q_proj\", \"v_proj\"]", 1},
    {{"--target_modules", "[\"q\"]"}, "--target_modules=[\"q\"]", 0},
    {{"--no_decay", "1", "2"}, "--no_decay=[\"1\", \"2\"]", 0},
    {{"--optimizer.params.betas", "0.9", "0.95", "c.json"}, "--optimizer.params.betas=[0.9, 0.95]", 1},
    {{"--loss_weights", "1", "0.5", "--beta", "1"}, "--loss_weights=[1, 0.5]", 2},
    /* switches */
    {{"--packing", "c.json"}, "--packing=true", 1},
    {{"--packing", "True"}, "--packing=true", 0},
    {{"--packing", "false", "c.json"}, "--packing=false", 1},
    {{"--bf16"}, "--bf16=true", 0},
    {{"--bf16", "auto"}, "--bf16=auto", 0},
    {{"--init_lora_weights", "pissa"}, "--init_lora_weights=pissa", 0},
    /* what is known by name alone */
    {{"--do_train", "c.json"}, "--do_train=true", 1},
    {{"--do_train", "--report_to", "none"}, "--do_train=true", 2},
    {{"--report_to", "wandb", "tensorboard", "c.json"}, "--report_to=[\"wandb\", \"tensorboard\"]", 1},
    {{"--resume_from_checkpoint", "None"}, "--resume_from_checkpoint=null", 0},
    /* wrong */
    {{"--lora_rank"}, "!--lora_rank needs a value, an integer", 0},
    {{"--tuner_type", "--bf16"}, "!--tuner_type needs a value, one of full, lora", 1},
    {{"--lr", "1"}, NULL, 1},
    {{"--"}, NULL, 0},
    {{"--="}, NULL, 0},
};

static void options_take_their_words(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(options); i++) {
        const option *o = &options[i];
        tm_buf out = {0};
        bool is_key;
        int n = 0, at = 0;
        while (o->words[n]) n++;
        tm_error_clear();
        tm_status rc = tm_config_option(n, o->words, &at, &out, &is_key);
        bool refused = o->makes && *o->makes == '!';
        if (refused != (rc == TM_EINPUT) || is_key != (o->makes != NULL)) fail_msg("%s: status %d", o->words[0], rc);
        if (refused && !strstr(tm_error_get()->text, o->makes + 1))
            fail_msg("%s: %s", o->words[0], tm_error_get()->text);
        if (o->makes && !refused && strcmp(o->makes, out.data) != 0) fail_msg("%s: %s", o->words[0], out.data);
        if (n - 1 - at != o->left) fail_msg("%s: %d words are left", o->words[0], n - 1 - at);
        tm_buf_free(&out);
    }
    tm_error_clear();
}

/* They lie over the file as --set does, and messages show them as options. */
static void options_are_settings(void **state) {
    (void)state;
    static const char *const set[] = {"--lora_rank=4", "--target_modules=[\"q_proj\",\"k_proj\"]", "--packing=true",
                                      "--memory.host_budget=1GiB", NULL};
    tm_config *c = test_ok_set("{" BASE ", \"lora_rank\": 16, \"packing\": false}", NULL, set);
    assert_int_equal(c->adapter->r, 4);
    assert_true(c->data.packing);
    assert_true(c->memory.host_bytes == TM_GIB);
    tm_config_free(c);
    static const char *const wrong[] = {"--lora_rank=x", NULL}, *const unknown[] = {"--lora_rnk=3", NULL},
                             *const deepspeed[] = {"--deepspeed=ds.json", NULL};
    assert_int_equal(test_load(&c, "{" BASE "}", NULL, wrong), TM_EINPUT);
    assert_string_equal(tm_error_get()->text, "--lora_rank=x: \"lora_rank\" must be an integer, not \"x\"");
    assert_int_equal(test_load(&c, "{" BASE "}", NULL, unknown), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "--lora_rnk=3: unknown key"));
    c = test_ok_set("{" BASE "}", "{\"zero_optimization\": {\"stage\": 2}}", deepspeed);
    assert_int_equal(c->zero_stage, 2);
    tm_config_free(c);
}

static void what_was_meant(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"lr", "learning_rate"},   {"epochs", "num_train_epochs"}, {"batch_size", "per_device_train_batch_size"},
        {"lora_rnk", "lora_rank"}, {"xyzzy_plugh", NULL},          {"peft_config", "adapter"}};
    for (size_t i = 0; i < TM_COUNT(pairs); i++) {
        const char *near = tm_config_suggest(pairs[i][0]);
        if (!pairs[i][1] != !near || (near && strcmp(near, pairs[i][1]) != 0)) fail_msg("%s: %s", pairs[i][0], near);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_take_their_words),
        cmocka_unit_test(options_are_settings),
        cmocka_unit_test(what_was_meant),
    };
    return cmocka_run_group_tests_name("config_option", tests, NULL, NULL);
}

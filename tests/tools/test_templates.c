/* examples/templates: each is written by `new`, accepted by plan, and trains on tiny's model; what is for a GPU is planned. */
#include "words.h"
#include "tests/support/screen.h"
#include "tests/support/skip.h"

/* rows leave out what they do not need */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define NEW(method, data) "$T new --model $M --data " data " --method " method " --where o && "
#define TRAIN(method)                                                                                                  \
    "$T train " method ".json --max_steps 2 --logging_steps 1 --quiet && grep -c learning_rate o/log.jsonl && "
#define LABELLED                                                                                                       \
    "for i in 1 2 3 4 5 6 7 8; do for l in true false; do echo '{\"prompt\": \"a '$i'\", \"completion\": \"b "         \
    "'$l$i'\", "                                                                                                       \
    "\"label\": '$l'}'; done; done >k.jsonl; "

static const struct {
    const char *name;
    words_row row;
} templates[] = {
    {"full", {NEW("full", "$D") TRAIN("full") "ls o", 0, {"2\n", "model.safetensors"}}},
    {"lora",
     {NEW("lora", "$D") TRAIN("lora") "ls o",
      0,
      {"next: tidemill train lora.json", "2\n", "adapter_model.safetensors"}}},
    {"dora", {NEW("dora", "$D") TRAIN("dora") "grep use_dora o/adapter_config.json", 0, {"true"}}},
    {"qlora", {NEW("qlora", "$D") TRAIN("qlora") "ls o", 0, {"adapter_model.safetensors"}}},
    {"dpo", {NEW("dpo", "$P") TRAIN("dpo") "grep -c rewards/margins o/log.jsonl", 0, {"2\n"}}},
    {"simpo", {NEW("simpo", "$P") TRAIN("simpo") "grep -c rewards/margins o/log.jsonl", 0, {"2\n"}}},
    {"orpo", {NEW("orpo", "$P") TRAIN("orpo") "grep -c rewards/margins o/log.jsonl", 0, {"2\n"}}},
    {"kto", {LABELLED NEW("kto", "k.jsonl") TRAIN("kto") "grep -c rewards o/log.jsonl", 0, {"2\n"}}},
    {"pretrain",
     {"cp $S/docs/GLOSSARY.md t.txt; " NEW("pretrain", "t.txt") TRAIN("pretrain") "ls o", 0, {"model.safetensors"}}},
    {"ranks", {NEW("ranks", "$D") TRAIN("ranks") "ls o", 0, {"model.safetensors"}}},
    {"gpu",
     {"$T plan $S/examples/templates/gpu.json --model $M --dataset $D --hardware 2x24gb --no-measure",
      0,
      {"device ", "host "}}},
};

static void each_is_written_and_trains(void **state) {
    (void)state;
    char list[1 << 14];
    for (size_t i = 0; i < TM_COUNT(templates); i++) words_check(&templates[i].row);
    assert_int_equal(words_run("$T new --list", list, sizeof list), 0);
    size_t n = 0;
    for (const char *at = list; !strncmp(at, "  ", 2); at += strcspn(at, "\n") + 1, n++) {
        size_t k = 0, len = strcspn(at + 2, " ");
        while (k < TM_COUNT(templates) && (strncmp(templates[k].name, at + 2, len) || templates[k].name[len])) k++;
        if (k == TM_COUNT(templates)) fail_msg("no row here for the template %.*s", (int)len, at + 2);
    }
    assert_int_equal(n, TM_COUNT(templates));
}

static void several_ranks(void **state) {
    (void)state;
    if (system("command -v mpirun >/dev/null && OMPI_COMM_WORLD_SIZE=1 $T doctor | grep -q 'ok    several ranks'") != 0)
        TEST_SKIP("no MPI");
    words_check(&(words_row){NEW("ranks", "$D") "sh $S/tests/comm/mpirun.sh 2 0 $T train ranks.json --max_steps 2 "
                                                "--quiet --host_budget 300MiB && grep -c learning_rate o/log.jsonl",
                             0,
                             {"2\n"}});
}

static const words_row refused[] = {
    {"$T new </dev/null", 2, {"--model is missing"}, NULL, 1},
    {"$T new --model $M </dev/null", 2, {"--data is missing"}, NULL, 1},
    {"$T new --model $M --data $D --method loar", 2, {"unknown method 'loar'; did you mean 'lora'?"}, NULL, 1},
    {"$T new --model nowhere --data $D; s=$?; ls -A; exit $s", 2, {"nowhere: there is no such model folder"}, "lora"},
    {"$T new --model $M --data nowhere.jsonl; s=$?; ls -A; exit $s",
     2,
     {"nowhere.jsonl: there is no such file"},
     "lora.json"},
    {"touch lora.json; $T new --model $M --data $D",
     2,
     {"lora.json is there already; name another file with --output"},
     NULL,
     1},
    {"echo mine >lora.json.draft; $T new --model $M --data $D; s=$?; cat lora.json.draft; exit $s",
     2,
     {"lora.json.draft is in the way of a draft", "mine\n"},
     NULL,
     1},
    {"$T new --model $M --data $D --output c.yaml", 2, {"c.yaml: what is written is JSON; name it .json"}, NULL, 1},
    {"$T new --model $M --data $D --budget 1", 2, {"is too small: this job needs at least"}, NULL, 1},
    {"ln -s $M 'a \"b\" \\m'; $T new --model 'a \"b\" \\m' --data $D --output c.json && $T plan c.json --no-measure | "
     "head -1",
     0,
     {"1.2 M parameters"}},
    {"$T new --model $M --data $D --budget 100M && grep host_budget lora.json && head -3 lora.json",
     0,
     {"\"100MiB\"", "// planned on this machine"}},
};

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(refused); i++) words_check(&refused[i]);
}

/* On a terminal: what is wrong is asked again, and a line with nothing takes what is in brackets. */
static void it_asks(void **state) {
    (void)state;
    screen s = {.columns = 200};
    char answers[1024], made[256];
    if (!screen_open(&s)) TEST_SKIP("no pseudo terminals");
    snprintf(made, sizeof made, "%s.json", getenv("WORDS"));
    int n = snprintf(answers, sizeof answers, "nowhere\n%s\nn\nn\nn\nn\nn\nn\nn\nn\n%s\nloar\n\n\n", getenv("M"),
                     getenv("D"));
    assert_int_equal(write(s.master, answers, (size_t)n), n);
    pid_t child = fork();
    if (child == 0) {
        dup2(s.slave, 0);
        execl(TM_TEST_BINARY, "tidemill", "new", "--output", made, NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    FILE *f = fopen(made, "r");
    assert_non_null(f);
    char text[4096] = "";
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    assert_int_equal(fclose(f), 0);
    assert_non_null(strstr(text, "\"output_dir\": \"out\""));
    assert_non_null(strstr(text, "\"lora_alpha\": 32"));
    assert_non_null(strstr(text, getenv("M")));
    assert_non_null(strstr(text, getenv("D")));
    assert_int_equal(unlink(made), 0);
    close(s.master);
    close(s.slave);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_written_and_trains),
        cmocka_unit_test(several_ranks),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(it_asks),
    };
    words_begin();
    return cmocka_run_group_tests_name("templates", tests, NULL, NULL);
}

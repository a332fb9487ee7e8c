/* The command line: parsing of options, and what the program answers to wrong ones. */
#include "tools/tools.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
#include <cmocka.h>

typedef struct parsed {
    const char *model, *values[2], *positional[2];
    tm_opt_list set;
    int64_t steps;
    double temperature;
    uint64_t budget;
    bool json;
    int count, rc;
} parsed;

static parsed parse(const char *const *words) {
    static parsed p;
    char *argv[16] = {"probe"};
    int argc = 1;
    p = (parsed){.set = {.value = p.values, .cap = 2}, .steps = -1};
    const tm_opt opts[] = {TM_REQUIRED("model", TM_OPT_STRING, &p.model, "DIR", "model"),
                           TM_OPTION("max-steps", TM_OPT_INT, &p.steps, "N", "steps"),
                           TM_OPTION("temperature", TM_OPT_DOUBLE, &p.temperature, "T", "temperature"),
                           TM_OPTION("host-budget", TM_OPT_SIZE, &p.budget, "SIZE", "limit"),
                           TM_OPTION("set", TM_OPT_LIST, &p.set, "KEY=VALUE", "override"),
                           TM_FLAG("json", &p.json, "json")};
    const tm_cli cli = {.usage = "probe IN [OUT]",
                        .about = "Test.",
                        .opts = opts,
                        .n_opts = TM_COUNT(opts),
                        .positional = p.positional,
                        .min_positional = 1,
                        .max_positional = 2};
    for (; *words; words++) argv[argc++] = (char *)(uintptr_t)*words;
    p.rc = tm_cli_parse(&cli, argc, argv);
    p.count = tm_cli_count(&cli);
    return p;
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

static void test_values(void **state) {
    (void)state;
    parsed p = PARSE("--model", "m", "in", "--max-steps=-3", "--temperature", "0.5", "--host-budget=512MiB", "--set",
                     "a=1", "--json", "--set=b=2", "--", "--out");
    assert_int_equal(p.rc, -1);
    assert_string_equal(p.model, "m");
    assert_int_equal(p.steps, -3);
    assert_true(p.temperature == 0.5);
    assert_int_equal(p.budget, 512 << 20);
    assert_true(p.json);
    assert_int_equal(p.set.count, 2);
    assert_string_equal(p.set.value[0], "a=1");
    assert_string_equal(p.set.value[1], "b=2");
    assert_int_equal(p.count, 2);
    assert_string_equal(p.positional[0], "in");
    assert_string_equal(p.positional[1], "--out");
    p = PARSE("-", "--model=", "--host-budget", "unlimited");
    assert_int_equal(p.rc, -1);
    assert_string_equal(p.model, "");
    assert_string_equal(p.positional[0], "-");
    assert_int_equal(p.count, 1);
    assert_true(p.budget == UINT64_MAX);
    assert_int_equal(p.steps, -1); /* not given: as it was */
}

static void test_refusals(void **state) {
    (void)state;
    assert_int_equal(PARSE("in").rc, 2);                                       /* --model is required */
    assert_int_equal(PARSE("--model", "m").rc, 2);                             /* IN is missing */
    assert_int_equal(PARSE("--model", "m", "in", "out", "more").rc, 2);        /* one too many */
    assert_int_equal(PARSE("--model", "m", "in", "--mod", "x").rc, 2);         /* no abbreviations */
    assert_int_equal(PARSE("--model", "m", "in", "-j").rc, 2);                 /* no short options */
    assert_int_equal(PARSE("in", "--model").rc, 2);                            /* value is missing */
    assert_int_equal(PARSE("--model", "m", "in", "--json=1").rc, 2);           /* flags take none */
    assert_int_equal(PARSE("--model", "m", "in", "--max-steps", "1.5").rc, 2); /* not whole */
    assert_int_equal(PARSE("--model", "m", "in", "--max-steps", "9223372036854775808").rc, 2);
    assert_int_equal(PARSE("--model", "m", "in", "--max-steps", "").rc, 2);
    assert_int_equal(PARSE("--model", "m", "in", "--temperature", "nan").rc, 2);
    assert_int_equal(PARSE("--model", "m", "in", "--host-budget", "-1").rc, 2);
    assert_int_equal(PARSE("--model", "m", "in", "--host-budget", "3 apples").rc, 2);
    assert_int_equal(PARSE("--model", "m", "in", "--set", "a", "--set", "b", "--set", "c").rc, 2);
    assert_int_equal(tm_error_get()->code, TM_OK); /* nothing is left pending */
    assert_int_equal(PARSE("--help").rc, 0);
}

static void test_suggestions(void **state) {
    (void)state;
    static const char *const names[] = {"model", "max-steps", "json"};
    assert_string_equal(tm_cli_suggest("modle", names, 3, sizeof *names), "model");
    assert_string_equal(tm_cli_suggest("max_steps", names, 3, sizeof *names), "max-steps");
    assert_string_equal(tm_cli_suggest("jsn", names, 3, sizeof *names), "json");
    assert_null(tm_cli_suggest("temperature", names, 3, sizeof *names));
    char longest[200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_null(tm_cli_suggest(longest, names, 3, sizeof *names));
}

static void test_exit_status(void **state) {
    (void)state;
    assert_int_equal(tm_exit_status(TM_OK), 0);
    assert_int_equal(tm_exit_status(TM_EINPUT), 2);
    assert_int_equal(tm_exit_status(TM_EUNSUPPORTED), 2);
    assert_int_equal(tm_exit_status(TM_EBUDGET), 2);
    assert_int_equal(tm_exit_status(TM_EIO), 1);
    assert_int_equal(tm_exit_status(TM_ENOSPC), 1);
}

/* ---- the program itself ------------------------------------------------------------------------------------------ */

/* Runs `tidemill ARGUMENTS`, both outputs together; the exit status. */
static int run_with(const char *variables, const char *arguments, char *out, size_t cap) {
    char command[512];
    snprintf(command, sizeof command, "env %s %s %s 2>&1", variables, TM_TEST_BINARY, arguments);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, cap - 1, f);
    out[n] = 0;
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int run(const char *arguments, char *out, size_t cap) {
    return run_with("", arguments, out, cap);
}

static size_t count_lines(const char *text) {
    size_t n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static void test_program(void **state) {
    (void)state;
    char out[16384];
    assert_int_equal(run("--version", out, sizeof out), 0);
    assert_string_equal(out, "tidemill " TIDEMILL_VERSION "\n");
    assert_int_equal(run("--help", out, sizeof out), 0);
    assert_non_null(strstr(out, "  train "));
    assert_int_equal(run("", out, sizeof out), 2);
    assert_int_equal(run("trian", out, sizeof out), 2);
    assert_string_equal(out, "tidemill: unknown command 'trian'; did you mean 'train'?\n");
    assert_int_equal(run("sing", out, sizeof out), 2);
    assert_int_equal(count_lines(out), 1);
    assert_int_equal(run("--version > /dev/full", out, sizeof out),
                     1); /* a result that was not written is no success */
}

/* Every line of an example stands where the first does, and a machine that it names is one that we bring. */
static void check_example(const char *help) {
    const char *line = strstr(help, "\nexample:\n");
    assert_non_null(line);
    for (line += strlen("\nexample:\n"); *line; line += strcspn(line, "\n") + 1) {
        char path[4096];
        const char *machine = strstr(line, "hardware/"), *end = line + strcspn(line, "\n");
        if (strncmp(line, "  ", 2) != 0) fail_msg("not indented: %s", line);
        if (!machine || machine > end) continue;
        (void)snprintf(path, sizeof path, "%s/%.*s", TM_TEST_SOURCE, (int)strcspn(machine, " \n"), machine);
        if (access(path, R_OK) != 0) fail_msg("%s: there is no such file", path);
    }
}

static void test_every_command_answers(void **state) {
    (void)state;
    static const char *const commands[] = {"new",    "top",   "report", "completion", "man",      "train", "plan",
                                           "data",   "probe", "eval",   "generate",   "tokenize", "chat",  "convert",
                                           "export", "bench", "tune",   "inspect",    "doctor",   "clean", "serve"};
    char out[65536], line[64], usage[64];
    for (size_t i = 0; i < TM_COUNT(commands); i++) {
        snprintf(line, sizeof line, "%s --help", commands[i]);
        snprintf(usage, sizeof usage, "usage: tidemill %s", commands[i]);
        int rc = run(line, out, sizeof out);
        if (rc == 2)
            assert_non_null(strstr(out, "is not in this version yet"));
        else if (rc != 0 || !strstr(out, usage) || !strstr(out, "example"))
            fail_msg("'%s' gave %d and: %s", line, rc, out);
        else
            check_example(out);
        snprintf(line, sizeof line, "%s --no-such-option", commands[i]);
        assert_int_equal(run(line, out, sizeof out), 2);
        assert_int_equal(count_lines(out), 1);
    }
}

/* A user's program cannot be made to err: it refuses what the test build obeys, before anything is done. */
static void test_no_faults(void **state) {
    (void)state;
    static const char *const set[] = {"TIDEMILL_FAULT", "TIDEMILL_CHECKSUMS"};
    static const char *const values[] = {"alloc:1:kill:once", "off"};
    char out[4096];
    for (size_t i = 0; i < TM_COUNT(set); i++) {
        assert_int_equal(setenv(set[i], values[i], 1), 0);
        assert_int_equal(run("--version", out, sizeof out), 2);
        assert_int_equal(count_lines(out), 1);
        assert_non_null(strstr(out, set[i]));
        assert_non_null(strstr(out, "unset it"));
        assert_int_equal(setenv(set[i], "", 1), 0); /* as good as unset */
        assert_int_equal(run("--version", out, sizeof out), 0);
        assert_int_equal(unsetenv(set[i]), 0);
    }
}

#ifdef TM_TEST_FAULTY
static void test_faults_of_the_test_build(void **state) {
    (void)state;
    assert_int_equal(setenv("TIDEMILL_FAULT", "alloc:1:kill:once", 1), 0);
    int status = system(TM_TEST_FAULTY " inspect /no/such/file > test_cli.out 2>&1");
    assert_true(status != -1 && WEXITSTATUS(status) == 137); /* the shell's word for SIGKILL */
    assert_int_equal(setenv("TIDEMILL_FAULT", "alloc:1:kill", 1), 0);
    status = system(TM_TEST_FAULTY " --version > test_cli.out 2>&1");
    assert_true(status != -1 && WEXITSTATUS(status) == 2);
    assert_int_equal(unsetenv("TIDEMILL_FAULT"), 0);
    assert_int_equal(remove("test_cli.out"), 0);
}
#endif

/* All that a folder asks for and is not here, and the sizes of a text part. */
static void test_inspect_names_what_is_missing(void **state) {
    (void)state;
    static const char config[] =
        "{\"model_type\": \"new_vl\", \"vision_config\": {}, \"text_config\": {\"model_type\": \"new\", "
        "\"hidden_size\": 48, \"vocab_size\": 9, \"num_experts\": 64, \"hidden_act\": \"relu2\", "
        "\"layer_types\": [\"full_attention\", \"linear_attention\", \"linear_attention\"], "
        "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}}";
    static const char *const missing[] = {"model_type \"new\"", "layer type \"linear_attention\"",
                                          "rope_scaling type \"dynamic\"", "experts", "hidden_act \"relu2\""};
    /* one tensor of no elements */
    static const char header[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}   ";
    const uint64_t length = sizeof header - 1;
    char out[16384];
    tm_json_doc *doc;
    assert_int_equal(system("rm -rf test_cli.model && mkdir test_cli.model"), 0);
    FILE *f = fopen("test_cli.model/config.json", "w");
    assert_non_null(f);
    assert_true(fputs(config, f) >= 0 && fclose(f) == 0);
    f = fopen("test_cli.model/model.safetensors", "w");
    assert_non_null(f);
    assert_true(fwrite(&length, 8, 1, f) == 1 && fwrite(header, length, 1, f) == 1 && fclose(f) == 0);
    assert_int_equal(run("inspect test_cli.model --json", out, sizeof out), 0);
    assert_int_equal(tm_json_parse(&doc, out, strlen(out), "inspect", 0, 0), TM_OK);
    const tm_json *list = tm_json_get(tm_json_root(doc), "missing"), *at = list->child;
    assert_int_equal(list->count, TM_COUNT(missing));
    for (size_t i = 0; i < TM_COUNT(missing); i++, at = at->next) assert_string_equal(at->text, missing[i]);
    assert_int_equal(tm_json_get(tm_json_get(tm_json_root(doc), "config"), "hidden_size")->integer, 48);
    tm_json_free(doc);
    assert_int_equal(run("inspect test_cli.model", out, sizeof out), 0);
    for (size_t i = 0; i < TM_COUNT(missing); i++) assert_non_null(strstr(out, missing[i]));
    assert_int_equal(system("rm -rf test_cli.model"), 0);
}

static void test_doctor(void **state) {
    (void)state;
    char out[16384];
    tm_json_doc *doc;
    size_t n = 0;
    int rc = run("doctor --json", out, sizeof out);
    assert_true(rc == 0 || rc == 1);
    assert_int_equal(tm_json_parse(&doc, out, strlen(out), "doctor", 0, 0), TM_OK);
    const tm_json *check = tm_json_get(tm_json_root(doc), "checks")->child;
    for (; check; check = check->next, n++) {
        bool good = tm_json_is(tm_json_get(check, "status"), "ok");
        assert_int_equal(tm_json_get(check, "advice")->type, good ? TM_JSON_NULL : TM_JSON_STRING);
        if (tm_json_is(tm_json_get(check, "status"), "fail")) assert_int_equal(rc, 1);
    }
    assert_true(n >= 10);
    tm_json_free(doc);
    assert_int_equal(run("doctor /no/such/folder", out, sizeof out), 1);
    assert_non_null(strstr(out, "fail  disk"));
}

/* One rank of two where ranks are not in the build: no job of its own, a line from the first, and what to do. */
static void refuses_ranks(const char *command) {
    char out[4096];
    assert_int_equal(
        run_with("TIDEMILL_MODULES=/nowhere OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", command, out, sizeof out),
        2);
    if (!strstr(out, "tools/deps.sh ranks") || strchr(out, '\n') != out + strlen(out) - 1) fail_msg("%s", out);
    assert_int_equal(
        run_with("TIDEMILL_MODULES=/nowhere OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1", command, out, sizeof out),
        2);
    assert_string_equal(out, "");
}

static void test_no_ranks(void **state) {
    (void)state;
    char out[16384];
    refuses_ranks("bench collective");
    refuses_ranks("train " TM_TEST_SOURCE "/examples/tiny/demo.json");
    (void)run_with("TIDEMILL_MODULES=/nowhere", "doctor", out, sizeof out);
    if (!strstr(out, "warn  several ranks") || !strstr(out, "tools/deps.sh ranks")) fail_msg("%s", out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_exit_status),
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_every_command_answers),
        cmocka_unit_test(test_inspect_names_what_is_missing),
        cmocka_unit_test(test_doctor),
        cmocka_unit_test(test_no_ranks),
        cmocka_unit_test(test_no_faults),
#ifdef TM_TEST_FAULTY
        cmocka_unit_test(test_faults_of_the_test_build),
#endif
    };
    return cmocka_run_group_tests_name("cli", tests, NULL, NULL);
}

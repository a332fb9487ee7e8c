/* `tidemill serve` with a small model: its greedy answers are those of `generate`, its log-probabilities those of `probe`, its
 * memory stays within the budget; what it refuses to start with. */
#include "client.h"
#include "tests/train/run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define COMPLETIONS "/v1/completions"
#define CHAT "/v1/chat/completions"
#define MESSAGES "{\"messages\":[{\"role\":\"user\",\"content\":\"The tide comes in.\"}]"
enum { VOCABULARY = 507 };

/* Random, with larger values than a fresh model has; a tokenizer and a template. */
static const char *make_model(const char *dir) {
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    const char *bare = run_path(dir, "bare"), *model = run_path(dir, "tiny");
    run_copy_model(TM_TEST_FIXTURES "/chat_chatml", bare);
    run_write(run_path(bare, "config.json"),
              "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_"
              "size\":80,"
              "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_hidden_layers\":2,\"head_dim\":16,\"vocab_"
              "size\":507,"
              "\"max_position_embeddings\":256,\"initializer_range\":0.3,\"rms_norm_eps\":1e-5,\"rope_theta\":10000,"
              "\"hidden_act\":\"silu\",\"eos_token_id\":502,\"tie_word_embeddings\":false}");
    run_result r = run((run_opts){0}, "convert", bare, model, "--init", "random", "--seed", "5", NULL);
    RUN_OK(&r);
    run_free(&r);
    for (size_t i = 0; i < TM_COUNT(files); i++) run_copy(run_path(bare, files[i]), run_path(model, files[i]));
    return model;
}

static server start(const char *model, const char *option, const char *value) {
    const char *argv[] = {TM_TEST_BINARY, "serve",       "--model", model,  "--port", "0", "--precision",
                          "fp32",         "--sequences", "3",       option, value,    NULL};
    return server_start(argv, NULL);
}

static tm_json_doc *parsed(const char *text, size_t n) {
    tm_json_doc *doc;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, n, "answer", 0, 0));
    return doc;
}

static void greedy_answers_are_those_of_generate(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = make_model(dir), *messages = run_path(dir, "messages.json");
    run_write(messages, MESSAGES "}");
    run_result g = run((run_opts){0}, "generate", "--model", model, "--messages", messages, "--max-new-tokens", "12",
                       "--json", "--precision", "fp32", NULL);
    RUN_OK(&g);
    tm_json_doc *want = parsed(g.out, g.out_len);
    server s = start(model, NULL, NULL);
    reply r = ask(&s, "POST", CHAT, MESSAGES ",\"temperature\":0,\"max_tokens\":12,\"model\":\"tiny\"}");
    assert_int_equal(r.status, 200);
    tm_json_doc *got = parsed(r.body, r.len);
    const tm_json *message = tm_json_get(tm_json_get(tm_json_root(got), "choices")->child, "message");
    assert_string_equal(tm_json_get(message, "content")->text, tm_json_get(tm_json_root(want), "text")->text);
    assert_int_equal(tm_json_get(tm_json_get(tm_json_root(got), "usage"), "prompt_tokens")->integer,
                     tm_json_get(tm_json_root(want), "prompt_ids")->count);
    server_stop(&s, SIGTERM, 0);
    tm_json_free(got);
    tm_json_free(want);
    reply_free(&r);
    run_free(&g);
}

static tensor logits_of(const char *model, const char *adapter, const char *dir, const int64_t *ids, size_t n) {
    const char *in = run_path(dir, "in.safetensors"), *out = run_path(dir, "out.safetensors");
    tm_st_writer *w;
    uint32_t t;
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, in));
    RUN_EXPECT_STATUS(tm_st_writer_add(w, "input_ids", TM_FMT_I64, 2, (uint64_t[]){1, n}, &t));
    RUN_EXPECT_STATUS(tm_st_writer_write(w, t, 0, ids, n * sizeof *ids));
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    run_result r = run((run_opts){0}, "probe", "--model", model, "--input", in, "--output", out,
                       adapter ? "--adapter" : NULL, adapter, NULL);
    RUN_OK(&r);
    run_free(&r);
    tm_st *st = tensors_open(out);
    tensor logits = tensor_read(st, "logits");
    tm_st_close(st);
    return logits;
}

static double logprob_of(const float *row, size_t vocabulary, int64_t id) {
    double sum = 0, most = row[0];
    for (size_t i = 1; i < vocabulary; i++) most = row[i] > most ? row[i] : most;
    for (size_t i = 0; i < vocabulary; i++) sum += exp(row[i] - most);
    return row[id] - most - log(sum);
}

/* As lm-evaluation-harness asks: ids, echoed, one token more. */
static void logprobs_are_those_of_probe(void **state) {
    static const int64_t ids[] = {64, 300, 7, 12, 499, 88, 88, 3};
    (void)state;
    const char *dir = run_dir(), *model = make_model(dir);
    tensor logits = logits_of(model, NULL, dir, ids, TM_COUNT(ids));
    server s = start(model, NULL, NULL);
    reply r =
        ask(&s, "POST", COMPLETIONS,
            "{\"prompt\":[[64,300,7,12,499,88,88,3]],\"echo\":true,\"logprobs\":2,\"max_tokens\":1,\"temperature\":0}");
    assert_int_equal(r.status, 200);
    tm_json_doc *got = parsed(r.body, r.len);
    const tm_json *of = tm_json_get(tm_json_get(tm_json_root(got), "choices")->child, "logprobs");
    const tm_json *p = tm_json_get(of, "token_logprobs")->child, *top = tm_json_get(of, "top_logprobs")->child;
    assert_int_equal(tm_json_get(of, "token_logprobs")->count, TM_COUNT(ids) + 1);
    assert_int_equal(p->type, TM_JSON_NULL);
    for (size_t i = 1; i < TM_COUNT(ids); i++) {
        double want = logprob_of(logits.v + (i - 1) * VOCABULARY, VOCABULARY, ids[i]);
        p = p->next;
        top = top->next;
        if (fabs(p->number - want) > 1e-4) fail_msg("token %zu: %.7g, probe says %.7g", i, p->number, want);
        assert_true(top->count == 2 || top->count == 3); /* the token itself, if it is not among them */
        assert_true(top->child->number >= p->number);
    }
    server_stop(&s, SIGTERM, 0);
    tm_json_free(got);
    reply_free(&r);
    free(logits.v);
}

/* A base and an adapter of it, which have no tokenizer: ids are asked. */
static const int64_t asked[] = {64, 30, 7, 12, 99, 88};

static const char *make_base(const char *dir) {
    const char *model = run_path(dir, "peft_base");
    run_copy_model(TM_TEST_FIXTURES "/peft_base", model);
    run_copy(TM_TEST_FIXTURES "/chat_chatml/tokenizer.json", run_path(model, "tokenizer.json"));
    return model;
}

/* What the server calls `name` has the log-probabilities of these logits. */
static void has_logits(const server *s, const char *name, tensor logits) {
    reply r =
        ask(s, "POST", COMPLETIONS,
            run_format("{\"model\":\"%s\",\"prompt\":[64,30,7,12,99,88],\"echo\":true,\"logprobs\":0,\"max_tokens\":1}",
                       name));
    if (r.status != 200) fail_msg("%s: %d: %s", name, r.status, r.body);
    tm_json_doc *got = parsed(r.body, r.len);
    const tm_json *choice = tm_json_get(tm_json_root(got), "choices")->child;
    const tm_json *p = tm_json_get(tm_json_get(choice, "logprobs"), "token_logprobs")->child->next;
    size_t vocabulary = logits.n / TM_COUNT(asked);
    for (size_t i = 1; i < TM_COUNT(asked); i++, p = p->next) {
        double want = logprob_of(logits.v + (i - 1) * vocabulary, vocabulary, asked[i]);
        if (fabs(p->number - want) > 1e-4) fail_msg("%s: token %zu: %.7g, probe %.7g", name, i, p->number, want);
    }
    tm_json_free(got);
    reply_free(&r);
    free(logits.v);
}

static void adapters_are_chosen_by_name(void **state) {
    static const char *const adapter[2] = {NULL, TM_TEST_FIXTURES "/peft_lora"}, *const name[2] = {"peft_base", "low"};
    (void)state;
    const char *dir = run_dir(), *model = make_base(dir);
    server s = start(model, "--adapter", "low=" TM_TEST_FIXTURES "/peft_lora");
    for (int k = 0; k < 2; k++) has_logits(&s, name[k], logits_of(model, adapter[k], dir, asked, TM_COUNT(asked)));
    server_stop(&s, SIGTERM, 0);
}

/* An adapter's folder as the model: its base is where it says, and it has its folder's name. */
static void an_adapters_folder_is_a_model(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = make_base(dir), *adapter = run_path(dir, "peft_lora");
    run_copy_model(TM_TEST_FIXTURES "/peft_lora", adapter);
    server s = start(adapter, NULL, NULL);
    has_logits(&s, "peft_lora", logits_of(model, adapter, dir, asked, TM_COUNT(asked)));
    has_logits(&s, "peft_base", logits_of(model, NULL, dir, asked, TM_COUNT(asked)));
    server_stop(&s, SIGTERM, 0);
}

static uint64_t peak_of(pid_t pid) {
    char path[64], line[256];
    unsigned long long kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu", &kib) == 1) break;
    (void)fclose(f);
    return (uint64_t)kib * 1024;
}

/* The least budget that a refusal names is one that it serves within, whatever is asked. */
static void the_least_budget_is_enough(void **state) {
    enum { N = 12 };
    (void)state;
    int fd[N];
    const char *dir = run_dir(), *model = make_model(dir);
    run_result r = run((run_opts){0}, "serve", "--model", model, "--port", "0", "--precision", "fp32", "--sequences",
                       "3", "--host-budget", "1MiB", NULL);
    assert_int_equal(r.status, 2);
    uint64_t least = train_minimum(r.err);
    run_free(&r);
    server s = start(model, "--host-budget", run_format("%llu", (unsigned long long)least));
    for (int i = 0; i < N; i++) {
        fd[i] = dial(&s);
        put_request(fd[i], "POST", CHAT, "",
                    MESSAGES ",\"max_tokens\":40,\"n\":3,\"logprobs\":true,\"top_logprobs\":20}");
    }
    for (int i = 0; i < N; i++) {
        reply a = get_reply(fd[i]);
        assert_int_equal(a.status, 200);
        reply_free(&a);
        (void)close(fd[i]);
    }
    assert_true(peak_of(s.pid) <= least);
    server_stop(&s, SIGTERM, 0);
}

/* With the engine's own check of signals in between. */
static void what_runs_may_end_after_a_signal(void **state) {
    (void)state;
    const char *model = make_model(run_dir());
    server s = start(model, NULL, NULL);
    int fd = dial_begun(&s, CHAT, MESSAGES ",\"max_tokens\":200,\"stream\":true,\"ignore_eos\":true}", 60);
    server_signal_in_stream(&s, fd);
    server_stop(&s, 0, 0);
}

static void refuses(const char *in_line, const char *const *arguments) {
    const char *line;
    run_result r = run_argv(&(run_opts){0}, arguments);
    assert_int_equal(r.status, 2);
    assert_int_equal(run_error_lines(r.err, &line), 1);
    if (!strstr(line, in_line)) fail_msg("%s", line);
    run_free(&r);
}
#define REFUSES(in_line, ...) refuses(in_line, (const char *const[]){"serve", __VA_ARGS__, NULL})

static void what_it_does_not_start_with(void **state) {
    (void)state;
    const char *dir = run_dir(), *model = make_model(dir);
    server s = start(model, NULL, NULL);
    REFUSES("give another --port", "--model", model, "--port", run_format("%u", s.port));
    server_stop(&s, SIGTERM, 0);
    REFUSES("NAME=DIR", "--model", model, "--adapter", "folder");
    REFUSES("a model of that name", "--model", model, "--adapter", "tiny=folder");
    REFUSES("a model of that name", "--model", model, "--adapter", "a=folder", "--adapter", "a=other");
    REFUSES("--port", "--model", model, "--port", "65536");
    REFUSES("--host", "--model", model, "--host", "no.such.host.invalid");
    REFUSES("--api-key", "--model", model, "--api-key", "");
    REFUSES("nowhere", "--model", run_path(dir, "nowhere"), "--port", "0");
    REFUSES("no tokenizer.json", "--model", TM_TEST_FIXTURES "/arch_llama", "--port", "0");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(greedy_answers_are_those_of_generate, run_clean),
        cmocka_unit_test_teardown(logprobs_are_those_of_probe, run_clean),
        cmocka_unit_test_teardown(adapters_are_chosen_by_name, run_clean),
        cmocka_unit_test_teardown(an_adapters_folder_is_a_model, run_clean),
        cmocka_unit_test_teardown(the_least_budget_is_enough, run_clean),
        cmocka_unit_test_teardown(what_runs_may_end_after_a_signal, run_clean),
        cmocka_unit_test_teardown(what_it_does_not_start_with, run_clean),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, run_clean);
}

/* `chat` on a terminal: a conversation with a model, its commands, Ctrl-C. */
#include "run.h"
#include "tests/support/screen.h"

#include <signal.h>
#include <sys/wait.h>

#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

typedef struct talk {
    screen s;
    pid_t pid;
    char out[1 << 16];
    size_t n, seen; /* bytes that came, and those up to the end of what was last expected */
} talk;

enum { PATIENCE_S = 60, TICK_MS = 20 };

/* With the terminal as stdin, stdout and stderr. */
static void begin(talk *t, const char *const *arguments) {
    t->s.columns = 80;
    assert_true(screen_open(&t->s));
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid > 0) return;
    for (int fd = 0; fd < 3; fd++) (void)dup2(t->s.slave, fd);
    (void)setsid();
    (void)setenv("TERM", "dumb", 1);
    (void)execv(TM_TEST_BINARY, (char *const *)(uintptr_t)arguments);
    _exit(127);
}

/* Waits until `text` comes after what was expected before. */
static void expect(talk *t, const char *text) {
    const char *at;
    for (int i = 0; !(at = strstr(t->out + t->seen, text)); i++) {
        struct pollfd p = {.fd = t->s.master, .events = POLLIN};
        if (i == PATIENCE_S * 1000 / TICK_MS) fail_msg("no \"%s\" in: %s", text, t->out + t->seen);
        if (poll(&p, 1, TICK_MS) <= 0) continue;
        ssize_t n = read(t->s.master, t->out + t->n, sizeof t->out - 1 - t->n);
        if (n <= 0) fail_msg("the terminal is closed; no \"%s\" in: %s", text, t->out + t->seen);
        t->n += (size_t)n;
        t->out[t->n] = 0;
    }
    t->seen = (size_t)(at - t->out) + strlen(text);
}

static void type(talk *t, const char *line) {
    assert_int_equal(write(t->s.master, line, strlen(line)), strlen(line));
    assert_int_equal(write(t->s.master, "\r", 1), 1);
}

static int end(talk *t) {
    int status;
    for (int i = 0; waitpid(t->pid, &status, WNOHANG) != t->pid; i++) {
        if (i == PATIENCE_S * 1000 / TICK_MS) {
            (void)kill(t->pid, SIGKILL);
            fail_msg("it does not end after: %s", t->out);
        }
        usleep(TICK_MS * 1000);
    }
    close(t->s.master), close(t->s.slave);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Message n is what `generate` answers to those before it. */
static void is_generated(const tm_json *messages, int n) {
    const char *ask = run_path(run_dir(), "ask.json");
    const tm_json *m = messages->child;
    tm_buf text = {0};
    tm_json_writer w;
    tm_jw_init(&w, &text, 0);
    tm_jw_object(&w);
    tm_jw_field_array(&w, "messages");
    for (int i = 0; i < n; i++, m = m->next) tm_jw_node(&w, m);
    tm_jw_array_end(&w);
    tm_jw_object_end(&w);
    RUN_EXPECT_STATUS(tm_jw_end(&w));
    run_write(ask, text.data);
    run_result r =
        run((run_opts){0}, "generate", "--model", TINY, "--messages", ask, "--max-new-tokens", "12", "--json", NULL);
    RUN_OK(&r);
    tm_json_doc *answer;
    RUN_EXPECT_STATUS(tm_json_parse(&answer, r.out, r.out_len, "answer", 0, 0));
    assert_string_equal(tm_json_get(tm_json_root(answer), "text")->text, tm_json_get(m, "content")->text);
    tm_json_free(answer);
    tm_buf_free(&text);
    run_free(&r);
}

/* The answers are those of `generate --messages`, from the second on too: what was said is a part of it. */
static void test_conversation(void **state) {
    (void)state;
    static talk t;
    const char *dir = run_dir(), *file = run_path(dir, "said.json");
    begin(&t, (const char *const[]){"tidemill", "chat", "--model", TINY, "--system", "Be short.", "--max-new-tokens",
                                    "12", "--context", "400", NULL});
    expect(&t, "> ");
    type(&t, "How are you?");
    expect(&t, "\n> ");
    type(&t, "And why?");
    expect(&t, "\n> ");
    type(&t, run_format("/save %s", file));
    expect(&t, "saved to");
    type(&t, "/nothing");
    expect(&t, "no such command");
    type(&t, "/quit");
    assert_int_equal(end(&t), 0);
    size_t len;
    char *text = run_read(file, &len);
    tm_json_doc *doc;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, len, "said", 0, 0));
    const tm_json *messages = tm_json_get(tm_json_root(doc), "messages"), *m = messages->child, *said[5];
    for (int i = 0; i < 5; i++, m = m->next) said[i] = tm_json_get(m, "content");
    assert_null(m);
    assert_string_equal(said[0]->text, "Be short.");
    assert_string_equal(said[1]->text, "How are you?");
    assert_string_equal(said[3]->text, "And why?");
    is_generated(messages, 2);
    is_generated(messages, 4);
    tm_json_free(doc);
    free(text);
}

/* Ctrl-C ends the answer, what was said of it stays; after /reset there is nothing. */
static void test_interrupted(void **state) {
    (void)state;
    static talk t;
    const char *dir = run_dir(), *file = run_path(dir, "said.json");
    begin(&t, (const char *const[]){"tidemill", "chat", "--model", TINY, "--temperature", "9", "--max-new-tokens",
                                    "100000", "--context", "500", NULL});
    expect(&t, "> ");
    type(&t, "Talk!");
    expect(&t, "Talk!");
    usleep(100000);
    (void)kill(t.pid, SIGINT);
    expect(&t, "\n> ");
    type(&t, "/reset");
    expect(&t, "\n> ");
    type(&t, run_format("/save %s", file));
    expect(&t, "saved to");
    type(&t, "Talk!"); /* Ctrl-D while it answers: the conversation ends behind the answer */
    expect(&t, "Talk!");
    usleep(20000);
    (void)write(t.s.master, "\4", 1);
    assert_int_equal(end(&t), 0);
    size_t len;
    char *text = run_read(file, &len);
    assert_non_null(strstr(text, "[]"));
    free(text);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_conversation, run_clean),
                                       cmocka_unit_test_teardown(test_interrupted, run_clean)};
    return cmocka_run_group_tests_name("train_talk", tests, NULL, NULL);
}

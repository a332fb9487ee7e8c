/* The server around a fake engine (fake_engine.c), as a process, by raw HTTP: what is answered, what hostile and impatient
 * clients do, how it ends. Each test ends it and expects exit status 0, which under AddressSanitizer also says that
 * nothing leaked. */
#include "client.h"
#include "tests/support/skip.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define MODEL TM_TEST_FIXTURES "/chat_chatml"
#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define COMPLETIONS "/v1/completions"
#define CHAT "/v1/chat/completions"
#define POST "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

static server start(const char *sequences, const char *const *env) {
    return server_start((const char *const[]){SERVE_FAKE, MODEL, sequences, NULL}, env);
}
static void expect(const server *s, const char *path, const char *body, int status, const char *in_body) {
    reply r = ask(s, body ? "POST" : "GET", path, body);
    if (r.status != status || !r.whole || !strstr(r.body, in_body))
        fail_msg("%s %s: %d %s", path, body ? body : "", r.status, r.body);
    reply_free(&r);
}
/* The text of all pieces of a stream, after "content": or "text":. */
static void expect_pieces(const reply *r, const char *key, const char *text) {
    char joined[4096] = "";
    size_t n = strlen(key);
    for (const char *at = r->body; (at = strstr(at, key)); at += n) {
        const char *from = at + n, *to = strchr(from, '"');
        assert_non_null(to);
        (void)strncat(joined, from, (size_t)(to - from));
    }
    assert_string_equal(joined, text);
}

/* ---- what is answered ---------------------------------------------------------------------------------------------------- */

static void paths_of_the_api(void **state) {
    (void)state;
    server s = start("2", NULL);
    expect(&s, "/health", NULL, 200, "\"ok\"");
    expect(&s, "/v1/models", NULL, 200, "\"id\": \"low\"");
    expect(&s, "/v1/models/low", NULL, 200, "\"parent\": \"tide\"");
    expect(&s, "/v1/models/high", NULL, 404, "\"model_not_found\"");
    expect(&s, "/v1/embeddings", "{}", 404, "\"error\"");
    expect(&s, CHAT, NULL, 405, "\"error\"");
    expect(&s, "/v1/models", "{}", 405, "\"error\"");
    expect(&s, CHAT, HI ",\"max_tokens\":5}", 200, "\"content\": \"The tide com\"");
    expect(&s, CHAT, HI ",\"max_tokens\":5,\"model\":\"low\"}", 200, "\"content\": \" tide comes\"");
    expect(&s, CHAT, HI ",\"model\":\"high\"}", 404, "\"model_not_found\"");
    expect(&s, CHAT, HI ",\"stop\":\" comes\"}", 200, "\"content\": \"The tide\"");
    expect(&s, CHAT, HI ",\"n\":0}", 400, "\"param\": \"n\"");
    expect(&s, CHAT, HI, 400, "\"error\"");
    expect(&s, COMPLETIONS, "{\"prompt\":\"Hi\",\"max_tokens\":600}", 400, "\"context_length_exceeded\"");
    expect(&s, COMPLETIONS, "{\"prompt\":[[1,2],[100000]]}", 400, "outside the vocabulary");
    expect(&s, COMPLETIONS, "{\"prompt\":[]}", 400, "the prompt is empty");
    expect(&s, COMPLETIONS, "{\"prompt\":\"Hi\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0}", 200,
           "\"text\": \"Hi\"");
    expect(&s, COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"max_tokens\":1}", 200,
           "\"index\": 3, \"text\": \" t\"");
    server_stop(&s, SIGTERM, 0);
}

static void streams(void **state) {
    (void)state;
    server s = start("2", NULL);
    reply r =
        ask(&s, "POST", CHAT, HI ",\"max_tokens\":6,\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.head, "Content-Type: text/event-stream"));
    expect_pieces(&r, "\"content\": \"", "The tide comes");
    assert_int_equal(count_of(r.body, "data: "), 1 + 6 + 1 + 1 + 1);
    assert_non_null(strstr(r.body, "\"completion_tokens\": 6"));
    assert_string_equal(r.body + r.len - 14, "data: [DONE]\n\n");
    reply_free(&r);
    r = ask(&s, "POST", COMPLETIONS, "{\"prompt\":[200000],\"stream\":true}");
    assert_int_equal(r.status, 400); /* refused by the engine, before the stream began */
    reply_free(&r);
    server_stop(&s, SIGTERM, 0);
}

static void a_key_is_asked_for(void **state) {
    (void)state;
    server s = server_start((const char *const[]){SERVE_FAKE, MODEL, "2", "secret", NULL}, NULL);
    static const struct {
        const char *header;
        int status;
    } rows[] = {{"", 401},
                {"Authorization: Bearer secre\r\n", 401},
                {"Authorization: Bearer secretsecret\r\n", 401},
                {"Authorization: Bearer \r\n", 401},
                {"Authorization: Basic secret\r\n", 401},
                {"Authorization: Bearer secret\r\n", 200}};
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        int fd = dial(&s);
        put_request(fd, "POST", CHAT, rows[i].header, HI ",\"max_tokens\":1}");
        reply r = get_reply(fd);
        assert_int_equal(r.status, rows[i].status);
        reply_free(&r);
        (void)close(fd);
    }
    expect(&s, "/health", NULL, 200, "ok");
    expect(&s, "/v1/models", NULL, 401, "invalid_api_key");
    server_stop(&s, SIGTERM, 0);
}

/* ---- many at a time ---------------------------------------------------------------------------------------------------------- */

typedef struct many {
    const server *s;
    unsigned index;
    int status;
    bool right;
} many;

static void *one_of_many(void *arg) {
    many *m = arg;
    bool stream = m->index % 2;
    char body[256];
    (void)snprintf(body, sizeof body, HI ",\"max_tokens\":%u,\"stream\":%s}", 3 + m->index % 5,
                   stream ? "true" : "false");
    int fd = dial(m->s);
    for (int i = 0; i < 3; i++) { /* on one connection */
        put_request(fd, "POST", CHAT, "", body);
        reply r = get_reply(fd);
        m->status = r.status;
        m->right = r.whole && strstr(r.body, stream ? "[DONE]" : "\"The t") != NULL;
        reply_free(&r);
        if (!m->right || m->status != 200) break;
    }
    (void)close(fd);
    return NULL;
}

static void sixty_four_at_a_time(void **state) {
    enum { N = 64 };
    const char *env[] = {"FAKE_STEP_MS=1", NULL};
    pthread_t thread[N];
    many m[N];
    (void)state;
    server s = start("16", env);
    for (unsigned i = 0; i < N; i++) {
        m[i] = (many){.s = &s, .index = i};
        assert_int_equal(pthread_create(&thread[i], NULL, one_of_many, &m[i]), 0);
    }
    for (unsigned i = 0; i < N; i++) {
        (void)pthread_join(thread[i], NULL);
        if (m[i].status != 200 || !m[i].right) fail_msg("client %u: %d", i, m[i].status);
    }
    server_wait_log(&s, ": 200, ", 3 * N); /* a line each; the last is written when its answer has gone */
    assert_int_equal(server_count_log(&s, ": 200, "), 3 * N);
    server_stop(&s, SIGTERM, 0);
}

/* One sequence, and 64 that may wait: of 80 the others are told to come back. */
static void too_many_are_told_to_come_back(void **state) {
    enum { N = 80 };
    const char *env[] = {"FAKE_STEP_MS=20", NULL};
    int fd[N];
    unsigned answered = 0, refused = 0;
    (void)state;
    server s = start("1", env);
    for (unsigned i = 0; i < N; i++) put_request(fd[i] = dial(&s), "POST", CHAT, "", HI ",\"max_tokens\":1}");
    for (unsigned i = 0; i < N; i++) {
        reply r = get_reply(fd[i]);
        answered += r.status == 200;
        refused += r.status == 429 && strstr(r.head, "Retry-After: ") != NULL;
        reply_free(&r);
        (void)close(fd[i]);
    }
    assert_int_equal(answered + refused, N);
    assert_true(answered >= 65 && refused > 0);
    expect(&s, CHAT, HI ",\"max_tokens\":1}", 200, "The");
    server_stop(&s, SIGTERM, 0);
}

/* ---- clients that go away, or take their time ---------------------------------------------------------------------------------- */

static void who_goes_away_cancels_its_request(void **state) {
    const char *env[] = {"FAKE_STEP_MS=10", NULL};
    (void)state;
    server s = start("1", env);
    for (unsigned i = 0; i < 4; i++) {
        static const char *const bodies[] = {HI ",\"max_tokens\":490}", HI ",\"max_tokens\":490,\"stream\":true}"};
        int fd = dial(&s);
        put_request(fd, "POST", CHAT, "", bodies[i % 2]);
        if (i % 2) server_wait_log(&s, "499", i); /* the one before has gone; then this one has begun, or will */
        if (i < 2)
            (void)close(fd);
        else
            (void)shutdown(fd, SHUT_WR); /* half of it: as if the process had ended */
        server_wait_log(&s, "499", i + 1);
        if (i >= 2) (void)close(fd);
    }
    expect(&s, CHAT, HI ",\"max_tokens\":2}", 200, "The t"); /* all 490 would have taken five seconds each */
    server_wait_log(&s, ": 200, ", 1);
    assert_int_equal(server_count_log(&s, ": 200, "), 1);
    server_stop(&s, SIGTERM, 0);
}

static bool closes_within(int fd, int s) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char bytes[4096];
    uint64_t end = tm_now_ns() + (uint64_t)s * 1000000000;
    while (tm_now_ns() < end) {
        if (poll(&p, 1, 100) > 0 && recv(fd, bytes, sizeof bytes, 0) <= 0) return true;
        put(fd, "x", 1); /* a sign of life, and no more */
    }
    return false;
}

static void slow_senders_are_cut(void **state) {
    static const char *const begun[] = {
        "", "P", "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-A: ", (POST "Content-Length: 100000\r\n\r\n{")};
    int fd[TM_COUNT(begun)];
    (void)state;
    server s = start("2", NULL);
    for (size_t i = 0; i < TM_COUNT(begun); i++) put(fd[i] = dial(&s), begun[i], strlen(begun[i]));
    expect(&s, CHAT, HI ",\"max_tokens\":2}", 200, "The t"); /* others do not wait for them */
    for (size_t i = 0; i < TM_COUNT(begun); i++) {
        assert_true(closes_within(fd[i], 20));
        (void)close(fd[i]);
    }
    server_stop(&s, SIGTERM, 0);
}

static void requests_in_one_piece_are_answered_in_order(void **state) {
    (void)state;
    server s = start("4", NULL);
    int fd = dial(&s);
    for (int i = 1; i <= 3; i++) {
        char body[128];
        (void)snprintf(body, sizeof body, HI ",\"max_tokens\":%d}", i);
        put_request(fd, "POST", CHAT, "", body);
    }
    for (int i = 1; i <= 3; i++) {
        char wanted[64];
        reply r = get_reply(fd);
        (void)snprintf(wanted, sizeof wanted, "\"completion_tokens\": %d", i);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body, wanted));
        reply_free(&r);
    }
    (void)close(fd);
    server_stop(&s, SIGTERM, 0);
}

/* ---- bytes that are no request ------------------------------------------------------------------------------------------------- */

static void bytes_that_are_no_request(void **state) {
    static const char *const rows[] = {
        "\r\n\r\n\r\n",
        "GARBAGE\r\n\r\n",
        "GET /v1/models\r\n\r\n",
        "GET  /v1/models HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", /* TLS */
        POST "Content-Length: -1\r\n\r\n{}",
        POST "Content-Length: 99999999999999999999999\r\n\r\n{}",
        POST "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        POST "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        POST "Transfer-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        POST "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
        POST "Content-Length: 10\r\n\r\n\xff\xfe{\"a\":1}\xff",
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", /* no host */
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        "TRACE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /v1/models/%00%ff%2e%2e HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    (void)state;
    server s = start("2", NULL);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        int fd = dial(&s);
        put(fd, rows[i], strlen(rows[i]));
        (void)shutdown(fd, SHUT_WR);
        reply r = get_reply(fd);
        if (r.status != 0 && (r.status < 400 || r.status > 505)) fail_msg("%s: %d", rows[i], r.status);
        reply_free(&r);
        (void)close(fd);
    }
    expect(&s, CHAT, HI ",\"max_tokens\":2}", 200, "The t");
    server_stop(&s, SIGTERM, 0);
}

static void sizes_have_limits(void **state) {
    tm_buf big = {0};
    (void)state;
    server s = start("2", NULL);
    assert_int_equal(tm_buf_append(&big, "GET /", 5), TM_OK);
    while (big.len < 100000) assert_int_equal(tm_buf_append(&big, "aaaaaaaaaaaaaaaa", 16), TM_OK);
    int fd = dial(&s);
    put(fd, big.data, big.len);
    reply r = get_reply(fd);
    assert_true(r.status == 0 || r.status == 413 || r.status == 414 || r.status == 431);
    reply_free(&r);
    (void)close(fd);
    fd = dial(&s); /* announced */
    put(fd, POST "Content-Length: 3000000\r\n\r\n{", strlen(POST "Content-Length: 3000000\r\n\r\n{"));
    r = get_reply(fd);
    assert_int_equal(r.status, 413);
    reply_free(&r);
    (void)close(fd);
    fd = dial(&s); /* not announced */
    put(fd, POST "Transfer-Encoding: chunked\r\n\r\n", strlen(POST "Transfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < 40; i++) {
        put(fd, "10000\r\n", 7);
        put(fd, big.data, 0x10000);
        put(fd, "\r\n", 2);
    }
    put(fd, "0\r\n\r\n", 5);
    r = get_reply(fd);
    assert_int_equal(r.status, 413);
    reply_free(&r);
    (void)close(fd);
    tm_buf_free(&big);
    expect(&s, CHAT, HI ",\"max_tokens\":2}", 200, "The t");
    server_stop(&s, SIGTERM, 0);
}

/* 24 bodies of 1.9 MB that never end are more than all requests may hold: some are refused, and others are served. */
static void bodies_have_room_together(void **state) {
    enum { N = 24, BYTES = 1900000 };
    int fd[N];
    char *body = malloc(BYTES);
    (void)state;
    assert_non_null(body);
    memset(body, ' ', BYTES);
    server s = start("2", NULL);
    for (int i = 0; i < N; i++) {
        fd[i] = dial(&s);
        put(fd[i], POST "Content-Length: 2000000\r\n\r\n", strlen(POST "Content-Length: 2000000\r\n\r\n"));
        put(fd[i], body, BYTES);
    }
    for (int i = 0; i < N; i++) (void)close(fd[i]);
    expect(&s, CHAT, HI ",\"max_tokens\":2}", 200, "The t");
    server_stop(&s, SIGTERM, 0);
    free(body);
}

/* ---- the end ------------------------------------------------------------------------------------------------------------------- */

static void what_runs_may_end(void **state) {
    const char *env[] = {"FAKE_STEP_MS=20", NULL};
    (void)state;
    server s = start("2", env);
    int idle = dial(&s), fd = dial_begun(&s, CHAT, HI ",\"max_tokens\":40,\"stream\":true}", 20);
    server_signal_in_stream(&s, fd);
    (void)close(idle);
    server_stop(&s, 0, 0);
    assert_int_equal(dial(&s), -1);
}

static void what_does_not_end_is_broken_off(void **state) {
    const char *env[] = {"FAKE_STEP_MS=20", NULL};
    (void)state;
    server s = start("1", env);
    int stream = dial_begun(&s, CHAT, HI ",\"max_tokens\":490,\"stream\":true}", 20), body = dial(&s);
    put_request(body, "POST", CHAT, "", HI ",\"max_tokens\":490}");
    for (int i = 0; i < 200; i++) { /* both are there */
        reply r = ask(&s, "GET", "/health", NULL);
        bool both = strstr(r.body, "\"requests\": 2") != NULL;
        reply_free(&r);
        if (both) break;
        (void)poll(NULL, 0, 10);
    }
    assert_int_equal(kill(s.pid, SIGTERM), 0); /* two seconds of grace, of the ten that it would take */
    reply r = get_reply(stream);
    assert_non_null(strstr(r.body, "data: {\"error\": {\"message\": \"the server is stopping\""));
    assert_null(strstr(r.body, "[DONE]"));
    reply_free(&r);
    r = get_reply(body);
    assert_int_equal(r.status, 503);
    reply_free(&r);
    (void)close(stream);
    (void)close(body);
    server_stop(&s, 0, 0);
}

static void a_failed_engine_is_told_to_all(void **state) {
    const char *env[] = {"FAKE_STEP_MS=20", "FAKE_FAIL_AT=5", NULL};
    (void)state;
    server s = start("1", env);
    int fd[2];
    for (int i = 0; i < 2; i++) put_request(fd[i] = dial(&s), "POST", CHAT, "", HI ",\"max_tokens\":490}");
    for (int i = 0; i < 2; i++) {
        reply r = get_reply(fd[i]);
        assert_true(r.status == 500 || r.status == 503);
        reply_free(&r);
        (void)close(fd[i]);
    }
    server_stop(&s, 0, 1);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_of_the_api),
        cmocka_unit_test(streams),
        cmocka_unit_test(a_key_is_asked_for),
        cmocka_unit_test(sixty_four_at_a_time),
        cmocka_unit_test(too_many_are_told_to_come_back),
        cmocka_unit_test(who_goes_away_cancels_its_request),
        cmocka_unit_test(slow_senders_are_cut),
        cmocka_unit_test(requests_in_one_piece_are_answered_in_order),
        cmocka_unit_test(bytes_that_are_no_request),
        cmocka_unit_test(sizes_have_limits),
        cmocka_unit_test(bodies_have_room_together),
        cmocka_unit_test(what_runs_may_end),
        cmocka_unit_test(what_does_not_end_is_broken_off),
        cmocka_unit_test(a_failed_engine_is_told_to_all),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

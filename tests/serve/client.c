/* Servers as processes, and raw HTTP. */
#include "client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_S = 60, TICK_MS = 10 };

static void sleep_ms(long ms) {
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

/* ---- the server ---------------------------------------------------------------------------------------------------------- */

static char *read_log(const server *s) {
    static const size_t room = 4 << 20;
    char *text = malloc(room);
    FILE *f = fopen(s->log, "rb");
    assert_non_null(text);
    assert_non_null(f);
    size_t n = fread(text, 1, room - 1, f);
    (void)fclose(f);
    text[n] = 0;
    return text;
}

unsigned count_of(const char *text, const char *word) {
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word)) n++;
    return n;
}

unsigned server_count_log(const server *s, const char *word) {
    char *text = read_log(s);
    unsigned n = count_of(text, word);
    free(text);
    return n;
}

void server_wait_log(const server *s, const char *word, unsigned lines) {
    for (int i = 0; i < PATIENCE_S * 1000 / TICK_MS; i++) {
        if (server_count_log(s, word) >= lines) return;
        sleep_ms(TICK_MS);
    }
    fail_msg("'%s' did not come %u times in the log: %s", word, lines, read_log(s));
}

static void become(const server *s, const char *const *argv, const char *const *env) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves none behind */
    int log = open(s->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (log < 0 || dup2(log, STDERR_FILENO) < 0) _exit(120);
    for (; env && *env; env++) (void)putenv((char *)(uintptr_t)*env);
    (void)execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(121);
}

static unsigned port_in(const char *log) {
    unsigned port = 0;
    const char *at = strstr(log, "http://127.0.0.1:");
    return at && sscanf(at, "http://127.0.0.1:%u/", &port) == 1 && strchr(at, '\n') ? port : 0;
}

server server_start(const char *const *argv, const char *const *env) {
    server s = {0};
    int status;
    (void)snprintf(s.log, sizeof s.log, "serve-%d.log", (int)getpid());
    (void)unlink(s.log);
    s.pid = fork();
    assert_true(s.pid >= 0);
    if (s.pid == 0) become(&s, argv, env);
    for (int i = 0; i < PATIENCE_S * 1000 / TICK_MS && !s.port; i++) {
        sleep_ms(TICK_MS);
        if (access(s.log, R_OK)) continue;
        char *text = read_log(&s);
        s.port = port_in(text);
        if (waitpid(s.pid, &status, WNOHANG) == s.pid) fail_msg("it ended at once: %s", text);
        free(text);
    }
    assert_true(s.port > 0);
    return s;
}

void server_stop(server *s, int signal, int status) {
    int how = 0;
    if (signal) assert_int_equal(kill(s->pid, signal), 0);
    for (int i = 0; i < PATIENCE_S * 1000 / TICK_MS; i++) {
        if (waitpid(s->pid, &how, WNOHANG) == s->pid) break;
        sleep_ms(TICK_MS);
        if (i + 1 == PATIENCE_S * 1000 / TICK_MS) (void)kill(s->pid, SIGABRT);
    }
    if (!WIFEXITED(how) || WEXITSTATUS(how) != status) fail_msg("status %x: %s", (unsigned)how, read_log(s));
    (void)unlink(s->log);
}

/* ---- HTTP ------------------------------------------------------------------------------------------------------------------ */

int dial(const server *s) {
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to)) return close(fd), -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

void put(int fd, const char *bytes, size_t n) {
    for (ssize_t k; n > 0 && (k = send(fd, bytes, n, MSG_NOSIGNAL)) > 0; bytes += k) n -= (size_t)k;
}

void put_request(int fd, const char *method, const char *path, const char *more_headers, const char *body) {
    char head[1024];
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: test\r\n%sContent-Length: %zu\r\n%s\r\n", method, path,
                     body ? "Content-Type: application/json\r\n" : "", body ? strlen(body) : 0, more_headers);
    put(fd, head, (size_t)n);
    if (body) put(fd, body, strlen(body));
}

/* One byte at a time: what follows belongs to the next reply. */
static bool next_byte(int fd, char *c) {
    return recv(fd, c, 1, 0) == 1;
}

static bool next_line(int fd, tm_buf *line) {
    char c;
    tm_buf_clear(line);
    while (next_byte(fd, &c)) {
        assert_int_equal(tm_buf_append(line, &c, 1), TM_OK);
        if (c == '\n') return true;
    }
    return false;
}

static bool next_bytes(int fd, size_t n, tm_buf *to) {
    assert_int_equal(tm_buf_reserve(to, n + 1), TM_OK);
    for (ssize_t k; n > 0; n -= (size_t)k) {
        if ((k = recv(fd, to->data + to->len, n, 0)) <= 0) return false;
        to->len += (size_t)k;
    }
    to->data[to->len] = 0;
    return true;
}

static bool get_chunks(int fd, tm_buf *body) {
    tm_buf line = {0}, end = {0};
    bool more = true, whole = false;
    while (more && next_line(fd, &line)) {
        size_t n = strtoull(line.data, NULL, 16);
        whole = n == 0;
        more = n > 0 && next_bytes(fd, n, body);
        tm_buf_clear(&end);
        whole = next_bytes(fd, 2, &end) && whole;
    }
    tm_buf_free(&line);
    tm_buf_free(&end);
    return whole;
}

reply get_reply(int fd) {
    reply r = {0};
    tm_buf line = {0}, head = {0}, body = {0};
    while (next_line(fd, &line) && strcmp(line.data, "\r\n") != 0)
        assert_int_equal(tm_buf_append(&head, line.data, line.len), TM_OK);
    const char *length = head.data ? strstr(head.data, "Content-Length: ") : NULL;
    if (head.data) (void)sscanf(head.data, "HTTP/1.%*c %d", &r.status);
    assert_int_equal(tm_buf_append(&body, "", 0), TM_OK);
    if (head.data && strstr(head.data, "Transfer-Encoding: chunked"))
        r.whole = get_chunks(fd, &body);
    else if (length)
        r.whole = next_bytes(fd, strtoull(length + 16, NULL, 10), &body);
    r.head = head.data;
    r.body = body.data;
    r.len = body.len;
    tm_buf_free(&line);
    return r;
}

reply ask(const server *s, const char *method, const char *path, const char *body) {
    int fd = dial(s);
    assert_true(fd >= 0);
    put_request(fd, method, path, "", body);
    reply r = get_reply(fd);
    (void)close(fd);
    return r;
}

int dial_begun(const server *s, const char *path, const char *body, int seconds) {
    int fd = dial(s);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    put_request(fd, "POST", path, "", body);
    assert_int_equal(poll(&p, 1, seconds * 1000), 1);
    return fd;
}

void server_signal_in_stream(const server *s, int fd) {
    assert_int_equal(kill(s->pid, SIGTERM), 0);
    reply r = get_reply(fd);
    assert_true(r.whole);
    assert_non_null(strstr(r.body, "[DONE]"));
    reply_free(&r);
    (void)close(fd);
}

void reply_free(reply *r) {
    TM_FREE_ALL(r->head, r->body);
    *r = (reply){0};
}

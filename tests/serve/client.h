/* client: a server as a process, and raw HTTP to it.
 *
 *     server s = server_start((const char *const[]){"build/tests/serve_fake", model, "4", NULL}, NULL);
 *     reply r = ask(&s, "POST", "/v1/completions", "{\"prompt\": \"a\"}");
 *     assert_int_equal(r.status, 200);
 *     reply_free(&r);
 *     server_stop(&s, SIGTERM, 0);     // and expects that exit status
 */
#ifndef TIDEMILL_TESTS_SERVE_CLIENT_H
#define TIDEMILL_TESTS_SERVE_CLIENT_H

#include "base/base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

typedef struct server {
    pid_t pid;
    unsigned port;
    char log[64]; /* file of its stderr */
} server;
/* `env`: "NAME=value", ended by NULL, or NULL. Returns when it listens; the test fails where it does not. */
server server_start(const char *const *argv, const char *const *env);
void server_stop(server *s, int signal, int status);
/* Waits for so many lines with `word` in its log. */
void server_wait_log(const server *s, const char *word, unsigned lines);
unsigned server_count_log(const server *s, const char *word);

typedef struct reply {
    int status;        /* 0: the connection was closed before there was one */
    char *head, *body; /* NUL-terminated; a chunked body is put together */
    size_t len;
    bool whole; /* all that was announced has come */
} reply;
int dial(const server *s);
void put(int fd, const char *bytes, size_t n); /* what cannot be sent any more is left out */
void put_request(int fd, const char *method, const char *path, const char *more_headers, const char *body);
reply get_reply(int fd); /* of one request; the connection stays open */
reply ask(const server *s, const char *method, const char *path, const char *body);
/* A request on a connection of its own, whose answer has begun within `seconds`. */
int dial_begun(const server *s, const char *path, const char *body, int seconds);
/* SIGTERM comes while a stream is sent to `fd`: it goes on to its end. Closes `fd`. */
void server_signal_in_stream(const server *s, int fd);
void reply_free(reply *r);
unsigned count_of(const char *text, const char *word);

#endif

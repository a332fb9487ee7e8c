/* HTTP by libmicrohttpd, on a thread of ours. The life of a connection: its request is received (handle: begin, receive,
 * finish), becomes a job, and sleeps (suspended) until the job has something to say; its answer is sent; it waits for the
 * next request. A connection that sleeps is not looked at by the library, so that `look_around` asks the socket whether
 * the client has gone. */
#include "serve/http_internal.h"
#include "serve/http_library_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct client {
    struct client *next, **link;
    serve_http *http;
    struct MHD_Connection *connection;
    int fd;
    uint64_t since_ns; /* it has been receiving */
    bool receiving;
    serve_kind kind;
    tm_buf body;
    int refused;    /* status with which the request is answered when it has been received; 0: none */
    serve_job *job; /* from the whole request to the end of its answer */
} client;

struct serve_http {
    const serve_http_opts *o;
    struct MHD_Daemon *daemon;
    client *clients;
    pthread_t thread;
    int events, woken; /* descriptors: of the library's own poll; of those that wake it from other threads */
    atomic_bool stop;
    bool quiet; /* it listens no longer */
    uint64_t requests;
};

bool serve_http_here(void) {
    bool here = http_library_load() == TM_OK;
    if (!here) tm_error_clear();
    return here;
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

static enum MHD_Result reply(client *k, int status, struct MHD_Response *r, const char *type) {
    if (!r) return MHD_NO;
    enum MHD_Result rc = mhd.add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (rc && k->job) rc = mhd.add_response_header(r, "x-request-id", k->job->id);
    if (rc && (status == 429 || status == 503)) rc = mhd.add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "2");
    if (rc && status == 401) rc = mhd.add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (rc && status == 405) rc = mhd.add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD, POST");
    if (rc) rc = mhd.queue_response(k->connection, (unsigned)status, r);
    mhd.destroy_response(r);
    return rc;
}

/* Takes over `body`. */
static enum MHD_Result send_json(client *k, int status, tm_buf *body) {
    struct MHD_Response *r =
        mhd.create_response_from_buffer_with_free_callback(body->len, body->data ? body->data : "", tm_free);
    if (!r) tm_buf_free(body);
    return reply(k, status, r, "application/json");
}

static enum MHD_Result send_error(client *k, int status, const serve_refusal *why, const char *text) {
    tm_buf body = {0};
    tm_status rc = serve_put_error(status, why, text, &body);
    tm_error_clear();
    if (rc == TM_OK) return send_json(k, status, &body);
    tm_buf_free(&body);
    return MHD_NO;
}

static void say_refused(const client *k, int status, const char *text) {
    tm_log(TM_LOG_INFO, "serve: %llu %s: %d, %s", (unsigned long long)k->http->requests,
           k->kind == SERVE_CHAT ? "chat" : "completion", status, text);
}

static enum MHD_Result refuse(client *k, int status, const serve_refusal *why, const char *text) {
    say_refused(k, status, text);
    return send_error(k, status, why, text);
}

/* ---- what is not asked of the engine -------------------------------------------------------------------------------- */

static void put_model(const serve_http_opts *o, const serve_model *m, tm_json_writer *w) {
    tm_jw_object(w);
    tm_jw_field_str(w, "id", m->name);
    tm_jw_field_str(w, "object", "model");
    tm_jw_field_int(w, "created", o->created);
    tm_jw_field_str(w, "owned_by", "tidemill");
    tm_jw_field_str(w, "parent", m->parent);
    tm_jw_field_uint(w, "max_model_len", o->positions);
    tm_jw_object_end(w);
}

static const serve_model *find_model(const serve_http_opts *o, const char *name) {
    for (uint32_t i = 0; i < o->n_models; i++)
        if (strcmp(o->model[i].name, name) == 0) return &o->model[i];
    return NULL;
}

static enum MHD_Result send_written(client *k, tm_json_writer *w, tm_buf *body) {
    if (tm_jw_end(w) == TM_OK) return send_json(k, 200, body);
    tm_error_clear();
    tm_buf_free(body);
    return MHD_NO;
}

static enum MHD_Result list_models(client *k) {
    const serve_http_opts *o = k->http->o;
    tm_buf body = {0};
    tm_json_writer w;
    tm_jw_init(&w, &body, 0);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "object", "list");
    tm_jw_field_array(&w, "data");
    for (uint32_t i = 0; i < o->n_models; i++) put_model(o, &o->model[i], &w);
    tm_jw_array_end(&w);
    tm_jw_object_end(&w);
    return send_written(k, &w, &body);
}

static enum MHD_Result no_model(client *k, const char *name) {
    serve_refusal why = {.code = "model_not_found", .param = "model"};
    char text[256];
    (void)snprintf(text, sizeof text, "there is no model '%.100s' here; /v1/models lists those that there are", name);
    return send_error(k, 404, &why, text);
}

static enum MHD_Result show_model(client *k, const char *name) {
    const serve_model *m = find_model(k->http->o, name);
    tm_buf body = {0};
    tm_json_writer w;
    if (!m) return no_model(k, name);
    tm_jw_init(&w, &body, 0);
    put_model(k->http->o, m, &w);
    return send_written(k, &w, &body);
}

static enum MHD_Result show_health(client *k) {
    bool stops = serve_queue_stops(k->http->o->queue);
    tm_buf body = {0};
    tm_json_writer w;
    if (stops) return send_error(k, 503, NULL, "the server is stopping");
    tm_jw_init(&w, &body, 0);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "status", "ok");
    tm_jw_field_uint(&w, "requests", serve_queue_jobs(k->http->o->queue));
    tm_jw_object_end(&w);
    return send_written(k, &w, &body);
}

/* ---- a request begins ------------------------------------------------------------------------------------------------ */

static const char *header(const client *k, const char *name) {
    return mhd.lookup_connection_value(k->connection, MHD_HEADER_KIND, name);
}

/* In time that does not depend on where they differ. */
static bool same_key(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    unsigned char differ = n != m;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(a[i] ^ b[m ? i % m : 0]);
    return differ == 0;
}

static bool is_allowed(const client *k) {
    static const char bearer[] = "Bearer ";
    const char *key = k->http->o->api_key, *given = header(k, MHD_HTTP_HEADER_AUTHORIZATION);
    if (!key) return true;
    return given && strncasecmp(given, bearer, sizeof bearer - 1) == 0 && same_key(given + sizeof bearer - 1, key);
}

static enum MHD_Result get(client *k, const char *path) {
    static const char models[] = "/v1/models";
    k->receiving = false;
    if (strcmp(path, "/health") == 0) return show_health(k);
    if (strcmp(path, models) == 0) return list_models(k);
    return show_model(k, path + sizeof models);
}

/* A page of another site may post text from a browser, but not this type. */
static bool is_json(const client *k) {
    static const char json[] = "application/json";
    const char *type = header(k, MHD_HTTP_HEADER_CONTENT_TYPE);
    size_t n = sizeof json - 1;
    return type && strncasecmp(type, json, n) == 0 && (!type[n] || type[n] == ';' || type[n] == ' ');
}

static bool is_too_long(const client *k) {
    const char *length = header(k, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length && (strlen(length) > 9 || strtoull(length, NULL, 10) > SERVE_BODY_BYTES);
}

static enum MHD_Result too_long(client *k) {
    char text[96];
    (void)snprintf(text, sizeof text, "a body has at most %d bytes", SERVE_BODY_BYTES);
    return refuse(k, 413, NULL, text);
}

static enum MHD_Result begin_post(client *k) {
    k->http->requests++;
    if (!is_json(k)) return refuse(k, 415, NULL, "the body has to be of the type application/json");
    return is_too_long(k) ? too_long(k) : MHD_YES;
}

static enum MHD_Result begin(client *k, const char *path, const char *method) {
    bool gets = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0, posts = strcmp(method, "POST") == 0;
    bool chat = strcmp(path, "/v1/chat/completions") == 0, health = strcmp(path, "/health") == 0;
    bool generates = chat || strcmp(path, "/v1/completions") == 0;
    bool models = strcmp(path, "/v1/models") == 0 || strncmp(path, "/v1/models/", 11) == 0;
    serve_refusal bad_key = {.code = "invalid_api_key"};
    k->kind = chat ? SERVE_CHAT : SERVE_COMPLETION;
    if (!generates && !models && !health) return send_error(k, 404, NULL, "there is nothing at this path");
    if (generates ? !posts : !gets) return send_error(k, 405, NULL, "this path takes another method");
    if (!health && !is_allowed(k))
        return send_error(k, 401, &bad_key, "the key of --api-key is asked for as a Bearer token");
    return generates ? begin_post(k) : MHD_YES;
}

/* ---- its body -------------------------------------------------------------------------------------------------------- */

static void forget_body(client *k) {
    if (k->body.cap) serve_queue_release(k->http->o->queue, k->body.cap);
    tm_buf_free(&k->body);
}

/* What cannot be kept is read over: an answer can be given only when all has been sent. */
static int receive(client *k, const char *bytes, size_t n) {
    if (k->refused) return k->refused;
    if (k->body.len + n > SERVE_BODY_BYTES) return 413;
    size_t before = k->body.cap;
    if (tm_buf_append(&k->body, bytes, n) != TM_OK) return tm_error_clear(), 503;
    if (serve_queue_hold(k->http->o->queue, k->body.cap - before)) return 0;
    tm_buf_free(&k->body); /* of which `before` bytes are counted */
    if (before) serve_queue_release(k->http->o->queue, before);
    return 429;
}

static enum MHD_Result busy(client *k, serve_put how) {
    serve_refusal why = {.code = "rate_limit_exceeded"};
    if (how == SERVE_STOPPING) return refuse(k, 503, NULL, "the server is stopping");
    return refuse(k, 429, &why, "too many requests are waiting; try again later");
}

/* From another thread, too. The library looks for resumed connections when it is run. */
static void wake(void *ctx) {
    const client *k = ctx;
    const uint64_t one = 1;
    int woken = k->http->woken;
    mhd.resume_connection(k->connection);  /* the client may be gone after this */
    (void)!write(woken, &one, sizeof one); /* full: it is awake */
}

static tm_status make_job(client *k, serve_job **out, serve_refusal *why) {
    const serve_http_opts *o = k->http->o;
    serve_job *job = *out = tm_calloc(1, sizeof *job);
    if (!job) return tm_nomem(sizeof *job);
    tm_status rc = serve_request_parse(&job->request, k->kind, k->body.data ? k->body.data : "", k->body.len, why);
    const char *name = rc == TM_OK && job->request.model ? job->request.model : o->model[0].name;
    const serve_model *m = find_model(o, name);
    if (rc == TM_OK && !m) {
        rc = serve_refuse(why, "model_not_found", "model",
                          "there is no model '%.100s' here; /v1/models lists those that there are", name);
        why->status = 404;
    }
    if (rc == TM_OK) rc = serve_request_encode(&job->request, o->tokenizer, o->chat, o->positions, why);
    if (rc != TM_OK) return rc;
    job->model = m->name;
    job->adapter = (uint32_t)(m - o->model);
    job->asked_ns = tm_now_ns();
    job->wake = wake;
    job->wake_ctx = k;
    (void)snprintf(job->id, sizeof job->id, "%s-%llx-%llu", k->kind == SERVE_CHAT ? "chatcmpl" : "cmpl",
                   (unsigned long long)o->created, (unsigned long long)k->http->requests);
    return TM_OK;
}

static enum MHD_Result refuse_job(client *k, const serve_refusal *why) {
    char text[sizeof tm_error_get()->text];
    (void)snprintf(text, sizeof text, "%s", tm_error_get()->text);
    tm_error_clear();
    return refuse(k, why->status ? why->status : 500, why, text);
}

static enum MHD_Result finish(client *k) {
    serve_refusal why = {0};
    serve_job *job;
    k->receiving = false;
    if (k->refused == 413) return too_long(k);
    if (k->refused) return busy(k, SERVE_FULL);
    tm_status rc = make_job(k, &job, &why);
    forget_body(k);
    serve_put how = rc == TM_OK ? serve_queue_put(k->http->o->queue, job) : SERVE_FULL;
    if (how != SERVE_PUT && job) serve_job_free(job);
    if (rc != TM_OK) return refuse_job(k, &why);
    if (how != SERVE_PUT) return busy(k, how);
    k->job = job;
    mhd.suspend_connection(k->connection);
    serve_job_wait(k->http->o->queue, job);
    return MHD_YES;
}

/* ---- its answer ------------------------------------------------------------------------------------------------------ */

static ssize_t read_stream(void *cls, uint64_t at, char *to, size_t cap) {
    client *k = cls;
    bool ended;
    (void)at;
    size_t n = serve_job_read(k->http->o->queue, k->job, to, cap, &ended);
    if (n) return (ssize_t)n;
    if (ended) return MHD_CONTENT_READER_END_OF_STREAM;
    mhd.suspend_connection(k->connection);
    serve_job_wait(k->http->o->queue, k->job);
    return 0;
}

static enum MHD_Result send_stream(client *k) {
    struct MHD_Response *r = mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, read_stream, k, NULL);
    if (r) (void)mhd.add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    return reply(k, 200, r, "text/event-stream");
}

/* Woken: the job has a status, or its client has gone. */
static enum MHD_Result answer(client *k) {
    bool gone;
    int status = serve_job_status(k->http->o->queue, k->job, &gone);
    if (gone || !status) return MHD_NO;
    if (status == 200 && k->job->request.stream) return send_stream(k);
    tm_buf body = serve_job_body(k->http->o->queue, k->job);
    return send_json(k, status, &body);
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version, const char *bytes, size_t *n, void **request) {
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    client *k = info ? info->socket_context : NULL;
    (void)cls, (void)version;
    if (!k) return MHD_NO; /* there was no memory for it */
    if (!*request) {
        *request = k;
        return begin(k, path, method);
    }
    if (*n) {
        if (strcmp(method, "POST") == 0) k->refused = receive(k, bytes, *n);
        *n = 0;
        return MHD_YES;
    }
    if (k->job) return answer(k);
    return strcmp(method, "POST") == 0 ? finish(k) : get(k, path);
}

/* ---- connections ----------------------------------------------------------------------------------------------------- */

static void await_request(client *k) {
    k->receiving = true;
    k->since_ns = tm_now_ns();
    k->refused = 0;
}

static void completed(void *cls, struct MHD_Connection *c, void **request, enum MHD_RequestTerminationCode how) {
    client *k = *request;
    (void)cls, (void)c, (void)how;
    *request = NULL;
    if (!k) return;
    forget_body(k);
    if (k->job) serve_job_leave(k->http->o->queue, k->job);
    k->job = NULL;
    await_request(k);
}

static client *open_client(serve_http *h, struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    client *k = info ? tm_calloc(1, sizeof *k) : NULL;
    if (!k) return NULL;
    *k = (client){.http = h, .connection = c, .fd = info->connect_fd, .next = h->clients, .link = &h->clients};
    if (k->next) k->next->link = &k->next;
    h->clients = k;
    await_request(k);
    return k;
}

static void close_client(client *k) {
    if (!k) return;
    *k->link = k->next;
    if (k->next) k->next->link = k->link;
    forget_body(k);
    tm_free(k);
}

static void connected(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = open_client(cls, c);
    } else {
        close_client(*context);
        *context = NULL;
    }
}

/* A client that has closed its side is gone: it may wait for its answer still, but that cannot be told from a process
 * that ended. */
static bool has_gone(const client *k) {
    struct pollfd p = {.fd = k->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static void look_around(serve_http *h) {
    uint64_t now = tm_now_ns();
    for (client *k = h->clients, *next; k; k = next) {
        next = k->next;
        if (k->receiving && tm_seconds(now - k->since_ns) > h->o->receive_s) (void)shutdown(k->fd, SHUT_RDWR);
        if (k->job && has_gone(k)) serve_job_abandon(h->o->queue, k->job);
    }
}

static void stop_listening(serve_http *h) {
    int listener = mhd.quiesce_daemon(h->daemon);
    h->quiet = true;
    if (listener >= 0) (void)close(listener);
}

static void wait_for_events(const serve_http *h) {
    struct pollfd p[2] = {{.fd = h->events, .events = POLLIN}, {.fd = h->woken, .events = POLLIN}};
    MHD_UNSIGNED_LONG_LONG ms = SERVE_TICK_MS;
    uint64_t count;
    if (mhd.get_timeout(h->daemon, &ms) != MHD_YES || ms > SERVE_TICK_MS) ms = SERVE_TICK_MS;
    if (poll(p, 2, (int)ms) > 0 && p[1].revents) (void)!read(h->woken, &count, sizeof count);
}

static void *run(void *arg) {
    serve_http *h = arg;
    uint64_t looked = tm_now_ns();
    while (!atomic_load(&h->stop)) {
        wait_for_events(h);
        if (mhd.run(h->daemon) != MHD_YES) (void)poll(NULL, 0, 1); /* out of descriptors, for example */
        if (tm_now_ns() - looked < (uint64_t)SERVE_TICK_MS * 1000000) continue;
        looked = tm_now_ns();
        look_around(h);
        if (!h->quiet && serve_queue_stops(h->o->queue)) stop_listening(h);
    }
    for (client *k = h->clients; k; k = k->next) /* none may sleep when the library ends */
        if (k->job) serve_job_abandon(h->o->queue, k->job);
    (void)mhd.run(h->daemon);
    mhd.stop_daemon(h->daemon);
    return NULL;
}

static void log_library(void *cls, const char *format, va_list args) {
    char text[512];
    (void)cls;
    int n = vsnprintf(text, sizeof text, format, args);
    if (n > 0 && (size_t)n < sizeof text && text[n - 1] == '\n') text[n - 1] = 0;
    tm_log(TM_LOG_DEBUG, "libmicrohttpd: %s", text);
}

static struct MHD_Daemon *start_daemon(serve_http *h) {
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (h->o->ipv6) flags |= MHD_USE_IPv6;
    return mhd.start_daemon(flags, 0, NULL, NULL, handle, h, MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL,
                            MHD_OPTION_LISTEN_SOCKET, h->o->listener, MHD_OPTION_CONNECTION_LIMIT,
                            (unsigned)SERVE_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)SERVE_CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SERVE_IDLE_S,
                            MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_NOTIFY_CONNECTION, connected, h,
                            MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
}

static tm_status start(serve_http *h) {
    h->woken = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->woken < 0) return tm_fail_sys(TM_EIO, errno, "eventfd", "", -1, "the thread of HTTP cannot be woken");
    h->daemon = start_daemon(h);
    if (!h->daemon) return tm_fail_sys(TM_EIO, errno, "MHD_start_daemon", "", -1, "libmicrohttpd cannot be started");
    h->events = mhd.get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    return tm_thread_start(&h->thread, run, h, "the thread of HTTP");
}

static void drop(serve_http *h) {
    if (h->woken >= 0) (void)close(h->woken);
    tm_free(h);
}

tm_status serve_http_start(serve_http **out, const serve_http_opts *opts) {
    *out = NULL;
    TM_TRY(http_library_load());
    serve_http *h = *out = tm_calloc(1, sizeof *h);
    if (!h) return tm_nomem(sizeof *h);
    h->o = opts;
    tm_status rc = start(h);
    if (rc == TM_OK) return TM_OK;
    if (h->daemon) (void)mhd.quiesce_daemon(h->daemon); /* the socket stays the caller's */
    if (h->daemon) mhd.stop_daemon(h->daemon);
    drop(h);
    *out = NULL;
    return rc;
}

void serve_http_stop(serve_http *h) {
    if (!h) return;
    atomic_store(&h->stop, true);
    (void)pthread_join(h->thread, NULL);
    drop(h);
}

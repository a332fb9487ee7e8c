/* A server's life: port, engine, the two threads, the end. */
#include "serve/serve.h"
#include "serve/http_internal.h"
#include "serve/loop_internal.h"
#include "session/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    HELD_BYTES = 32 << 20, /* bodies and requests at a time */
    WAITING = 64,          /* requests beyond those that have a sequence */
    LET_GO_MS = 5000,      /* for clients to read the last of their answers */
    LET_GO_STEP_MS = 20
};

typedef struct server {
    const tm_serve_args *a;
    serve_model model[TM_SERVE_ADAPTERS + 1];
    char name[256]; /* of the base */
    int listener;
    bool ipv6, loopback;
    uint16_t port;
    tm_engine *engine;
    serve_queue *queue;
    serve_http *http;
    serve_http_opts http_opts;
    int64_t created;
    uint64_t stop_ns; /* when a step is broken off; 0: no signal was seen in one */
} server;

/* ---- names ------------------------------------------------------------------------------------------------------------- */

/* As it was said, or the last part of the path, without ".gguf". */
static void name_base(server *s) {
    const char *path = s->a->engine.model;
    size_t n = strlen(path), from;
    while (n > 1 && path[n - 1] == '/') n--;
    if (n > 5 && memcmp(path + n - 5, ".gguf", 5) == 0) n -= 5;
    for (from = n; from > 0 && path[from - 1] != '/';) from--;
    if (s->a->name)
        (void)snprintf(s->name, sizeof s->name, "%s", s->a->name);
    else
        (void)snprintf(s->name, sizeof s->name, "%.*s", (int)(n - from), path + from);
}

static tm_status name_models(server *s) {
    uint32_t n = s->a->engine.n_adapters;
    name_base(s);
    s->model[0].name = s->name;
    if (n > TM_SERVE_ADAPTERS) return tm_fail(TM_EINPUT, "at most %d adapters can be served", TM_SERVE_ADAPTERS);
    for (uint32_t i = 0; i < n; i++) {
        s->model[i + 1] = (serve_model){.name = s->a->names[i], .parent = s->name};
        for (uint32_t k = 0; k <= i; k++)
            if (strcmp(s->model[k].name, s->a->names[i]) == 0)
                return tm_fail(TM_EINPUT, "--adapter %s: there is a model of that name already; give it another",
                               s->a->names[i]);
    }
    return TM_OK;
}

/* ---- the engine, with this room's memory left out of its budget ------------------------------------------------------------ */

static unsigned grace_of(const server *s) {
    return s->a->grace_s ? s->a->grace_s : TM_SERVE_GRACE_S;
}

/* The loop cancels what runs when its time is over; a step that takes longer than that is broken off. */
static bool may_go_on(void *ctx) {
    server *s = ctx;
    uint64_t now = tm_now_ns();
    if (!s->stop_ns) s->stop_ns = now + (uint64_t)(grace_of(s) + 1) * 1000000000;
    return now < s->stop_ns;
}

static tm_status open_engine(server *s) {
    tm_engine_opts o = s->a->engine;
    o.other_bytes += TM_SERVE_BYTES;
    o.may_go_on = may_go_on;
    o.may_go_on_ctx = s;
    TM_TRY(tm_engine_open(&s->engine, &o));
    if (tm_engine_text(s->engine)->tokenizer) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: there is no tokenizer.json, which a server needs", o.model);
}

/* ---- what is said --------------------------------------------------------------------------------------------------------- */

static void say_ready(const server *s) {
    const char *host = s->a->host ? s->a->host : "127.0.0.1";
    const char *open = s->ipv6 ? "[" : "", *close = s->ipv6 ? "]" : "";
    tm_say("tidemill serve is for looking at what was trained before it goes to a real server.\n");
    for (uint32_t i = 0; i < s->http_opts.n_models; i++)
        tm_say("model %s%s%s\n", s->model[i].name, i ? ", an adapter of " : "", i ? s->name : "");
    if (!s->loopback && !s->a->api_key)
        tm_say("warning: whoever reaches this machine can use it; --api-key asks for a key\n");
    tm_say("listening on http://%s%s%s:%u/v1; Ctrl-C stops it\n", open, host, close, (unsigned)s->port);
}

/* ---- its life --------------------------------------------------------------------------------------------------------------- */

static tm_status start_http(server *s) {
    const text_tools *text = tm_engine_text(s->engine);
    s->http_opts = (serve_http_opts){.queue = s->queue,
                                     .listener = s->listener,
                                     .ipv6 = s->ipv6,
                                     .model = s->model,
                                     .n_models = s->a->engine.n_adapters + 1,
                                     .positions = tm_engine_count(s->engine).positions,
                                     .receive_s = s->a->receive_s ? s->a->receive_s : TM_SERVE_RECEIVE_S,
                                     .api_key = s->a->api_key,
                                     .tokenizer = text->tokenizer,
                                     .chat = text->chat,
                                     .created = s->created};
    TM_TRY(serve_listen(s->listener));
    TM_TRY(serve_http_start(&s->http, &s->http_opts));
    s->listener = -1; /* the library's from here on */
    return TM_OK;
}

static tm_status open_server(server *s) {
    uint32_t sequences = s->a->engine.sequences ? s->a->engine.sequences : 1;
    s->port = s->a->port;
    TM_TRY(name_models(s));
    TM_TRY(serve_bind(s->a->host ? s->a->host : "127.0.0.1", &s->port, &s->listener, &s->ipv6));
    s->loopback = serve_is_loopback(s->listener);
    TM_TRY(open_engine(s));
    TM_TRY(serve_queue_open(&s->queue, sequences + WAITING, HELD_BYTES));
    return start_http(s);
}

/* Clients read the end of their answers. */
static void let_go(const server *s) {
    const struct timespec step = {.tv_nsec = LET_GO_STEP_MS * 1000000L};
    for (int ms = 0; ms < LET_GO_MS && serve_queue_jobs(s->queue) > 0; ms += LET_GO_STEP_MS)
        (void)nanosleep(&step, NULL);
}

static void close_server(server *s) {
    if (s->http) let_go(s);
    serve_http_stop(s->http);
    serve_queue_close(s->queue);
    tm_engine_close(s->engine);
    if (s->listener >= 0) (void)close(s->listener);
}

static tm_status run(server *s) {
    TM_TRY(open_server(s));
    const serve_loop_opts loop = {.queue = s->queue,
                                  .engine = s->engine,
                                  .tokenizer = tm_engine_text(s->engine)->tokenizer,
                                  .created = s->created,
                                  .grace_s = grace_of(s)};
    tm_stop_polled(false); /* from here on the loop says where to stop */
    tm_stop_silent(true);
    say_ready(s);
    return serve_loop(&loop);
}

tm_status tm_serve_run(const tm_serve_args *args) {
    server s = {.a = args, .listener = -1, .created = (int64_t)time(NULL)};
    if (!serve_http_here()) return serve_http_start(&s.http, NULL);
    tm_stop_catch();
    tm_status rc = run(&s);
    close_server(&s);
    if (rc != TM_ESIGNAL) return rc;
    tm_error_clear(); /* it came before there was anything to stop */
    return TM_OK;
}

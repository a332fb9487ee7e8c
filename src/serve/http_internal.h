/* http: the thread that speaks HTTP. It reads requests, puts them into the queue and sends what is said there; it never
 * waits for the engine. */
#ifndef TIDEMILL_SERVE_HTTP_INTERNAL_H
#define TIDEMILL_SERVE_HTTP_INTERNAL_H

#include "serve/queue_internal.h"

enum {
    SERVE_CONNECTIONS = 256,
    SERVE_CONNECTION_BYTES = 32 << 10, /* of the library, for headers and what is sent */
    SERVE_IDLE_S = 30,                 /* of a client that reads nothing of its answer */
    SERVE_TICK_MS = 200                /* how soon it is seen that a client has gone, or that it is time to stop */
};

typedef struct serve_model {
    const char *name;
    const char *parent; /* of an adapter: the base's name */
} serve_model;

typedef struct serve_http_opts {
    serve_queue *queue;
    int listener;             /* a socket that listens; closed by the thread */
    bool ipv6;                /* it is of that family */
    const serve_model *model; /* [n_models] the base first, then adapter i at i + 1 */
    uint32_t n_models, positions;
    unsigned receive_s;  /* from a connection's beginning, or the answer before, to the whole request */
    const char *api_key; /* NULL: none is asked for */
    const tm_tokenizer *tokenizer;
    const tm_chat *chat; /* NULL: the model has no template */
    int64_t created;
} serve_http_opts;

typedef struct serve_http serve_http;
bool serve_http_here(void); /* build and machine have it; else serve_http_start fails with TM_EUNSUPPORTED */
/* `opts` and what it points to outlive the thread. */
tm_status serve_http_start(serve_http **out, const serve_http_opts *opts) TM_MUST_USE;
/* Ends the thread; what is not sent by then is lost. No job of the queue is held after it. NULL is fine. */
void serve_http_stop(serve_http *h);

/* A socket that is bound, not yet listening. `port`: 0: any; what it is after. TM_EINPUT with what to do. */
tm_status serve_bind(const char *host, uint16_t *port, int *out, bool *ipv6) TM_MUST_USE;
tm_status serve_listen(int listener) TM_MUST_USE;
bool serve_is_loopback(int listener);

#endif

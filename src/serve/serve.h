/* serve: one model, and adapters of it, behind the paths of OpenAI's API: for looking at what was trained before it goes to
 * a real server.
 *
 *     tm_serve_args a = {.engine = {.model = "smollm2", .sequences = 8}, .host = "127.0.0.1", .port = 8000};
 *     TM_TRY(tm_serve_run(&a));   // until SIGINT or SIGTERM
 *
 * /v1/chat/completions, /v1/completions, /v1/models, /health. What the bodies may say: README.md beside this file.
 * Threads: tm_serve_run owns the engine on the caller's thread, and starts one more, which speaks HTTP. It catches signals
 * (tm_stop_catch), which stay caught. Errors: TM_EINPUT, TM_EBUDGET and TM_EUNSUPPORTED before it listens; after that what
 * the engine failed with. A request that fails is answered, and logged on stderr with a line as every request is. */
#ifndef TIDEMILL_SERVE_H
#define TIDEMILL_SERVE_H

#include "infer/engine.h"

enum { TM_SERVE_ADAPTERS = 32, TM_SERVE_GRACE_S = 10, TM_SERVE_RECEIVE_S = 30 };
/* Memory of requests, answers and connections beside the engine's. */
#define TM_SERVE_BYTES (64 * TM_MIB)

typedef struct tm_serve_args {
    tm_engine_opts engine;    /* .adapters: the folders, in the order of names */
    const char *const *names; /* [engine.n_adapters] by which `model` chooses them */
    const char *name;         /* the base's; NULL: the last part of the model's path */
    const char *host;         /* NULL: "127.0.0.1" */
    uint16_t port;            /* 0: any that is free; it is said on stderr */
    const char *api_key;      /* NULL: everybody is let in */
    unsigned grace_s;         /* after a signal, for requests that run; 0: TM_SERVE_GRACE_S */
    unsigned receive_s;       /* in which a client has sent its request; 0: TM_SERVE_RECEIVE_S */
} tm_serve_args;
TM_MUST_USE tm_status tm_serve_run(const tm_serve_args *args);

#endif

/* loop: the main thread, which owns the engine: takes jobs from the queue, steps, hands events on. */
#ifndef TIDEMILL_SERVE_LOOP_INTERNAL_H
#define TIDEMILL_SERVE_LOOP_INTERNAL_H

#include "serve/queue_internal.h"

enum {
    SERVE_ANSWER_BYTES = 8 << 20, /* of one request's answer, while it is gathered or waits for its reader */
    SERVE_WAIT_MS = 100           /* how soon a signal is noticed where there is nothing to do */
};

typedef struct serve_loop_opts {
    serve_queue *queue;
    tm_engine *engine;
    const tm_tokenizer *tokenizer;
    int64_t created;
    unsigned grace_s; /* after a signal, for what is running */
} serve_loop_opts;
/* Until a signal asks to stop, or the engine fails: then everything that was taken is answered with an error. */
tm_status serve_loop(const serve_loop_opts *opts) TM_MUST_USE;

#endif

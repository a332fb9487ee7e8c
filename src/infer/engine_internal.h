/* What the files of the engine share.
 *
 *   engine.c         life of an engine, requests, the queue
 *   engine_step.c    a step: who takes part in the pass, what becomes of its logits
 *   engine_share.c   which slot a sequence gets, and what of its prompt is in the cache
 *   engine_adapter.c the base's adapters, of which a pass has one
 *   engine_job.c     the job below it: its plans, batches, logits
 *   engine_sample.c  from logits to a token
 *   engine_text.c    from tokens to text that is certain
 *
 * A request is as many sequences as it has answers. A sequence waits in the queue, then has a slot (a row of the cache)
 * until it ends:  waits -> its prompt is computed, chunk by chunk -> a token a step -> ended. */
#ifndef TIDEMILL_ENGINE_INTERNAL_H
#define TIDEMILL_ENGINE_INTERNAL_H

#include "infer/engine.h"
#include "infer/forward_internal.h"
#include "kernels/kernels.h"
#include "planner/start.h"
#include "data/dataset.h"
#include "session/text.h"

/* ---- engine_sample.c -------------------------------------------------------------------------------------------- */

typedef struct sample_room { /* [vocab] each */
    double *p;               /* logits that count, then probabilities; 0: left out */
    double *key;
    uint32_t *order;
    uint8_t *seen;
    uint32_t vocab;
} sample_room;
TM_MUST_USE tm_status sample_open(sample_room *r, uint32_t vocab);
void sample_close(sample_room *r);
uint64_t sample_bytes(uint32_t vocab);

typedef struct sample_history {
    const int32_t *prompt, *answer; /* [n_prompt], [n_answer] */
    size_t n_prompt, n_answer;
} sample_history;
/* The probabilities that a token is drawn by, in r->p. Not for temperature 0. */
void sample_distribution(const tm_sampling *s, const sample_history *h, const float *logits, sample_room *r);
/* The next token: the number h->n_answer of the answer. */
int32_t sample_token(const tm_sampling *s, const sample_history *h, const float *logits, sample_room *r);

/* ---- engine_text.c ---------------------------------------------------------------------------------------------- */

/* An answer's text, as far as it is certain. */
typedef struct answer_text {
    const tm_tokenizer *tokenizer; /* NULL: there is none, and no text */
    const char *const *stop;
    uint32_t n_stop;
    tm_buf pending;     /* certain characters that may become a stop string; what was handed out before goes first */
    size_t handed;      /* bytes of pending that were handed out */
    size_t from, until; /* tokens: what of [from, until) was decoded is in `pending` or gone */
    size_t known;       /* bytes of that */
} answer_text;
void answer_text_open(answer_text *t, const tm_tokenizer *tokenizer, const char *const *stop, uint32_t n_stop);
void answer_text_close(answer_text *t);
/* After another token, or at the end (`last`: nothing is held back): the text that became certain, until the next call.
 * `stopped`: a stop string came. */
typedef struct text_piece {
    const char *at;
    size_t n;
    bool stopped;
} text_piece;
TM_MUST_USE tm_status answer_text_add(answer_text *t, const int32_t *ids, size_t n, bool last, text_piece *out);

/* ---- engine_adapter.c ------------------------------------------------------------------------------------------- */

typedef struct engine_adapters {
    tm_adapter_folder **folder; /* [n] */
    uint32_t n;
    tm_model_roles roles; /* of a model that has the union of them; without any nothing but the base */
    tm_plan *plan;        /* puts values in place; NULL: there are none */
    uint32_t now;         /* whose are: 1 + index; 0: none's */
    bool placed;
    uint32_t passes; /* since then */
} engine_adapters;
TM_MUST_USE tm_status engine_open_adapters(engine_adapters *all, const tm_engine_opts *o,
                                           const tm_model_config *config);
void engine_close_adapters(engine_adapters *all);
void engine_use_adapters(tm_engine *e, job_opts *o);
TM_MUST_USE tm_status engine_put_adapter(tm_engine *e, uint32_t adapter);

/* ---- sequences -------------------------------------------------------------------------------------------------- */

typedef struct engine_request { /* as it was asked: copies */
    uint64_t number;
    uint32_t users; /* sequences that have it */
    tm_request r;
    char *stops; /* the strings, one after the other */
} engine_request;

/* A row of the cache. What was computed of a prompt stays there until another sequence writes over it; tokens of answers
 * do not count, whose bits are others than a prompt's. */
typedef struct engine_slot {
    struct engine_sequence *by; /* NULL: free */
    engine_request *held;       /* whose prompt it begins with; NULL: none's */
    size_t n_held;              /* tokens of it */
    size_t written;             /* positions up to there were written since it was begun anew */
    bool lent;                  /* a row of the pass under way copies from it */
} engine_slot;

typedef struct engine_sequence {
    struct engine_sequence *next; /* in the queue */
    engine_request *of;
    uint32_t answer;
    uint32_t slot;
    uint32_t from;   /* slot that its prompt begins as, until its first pass; UINT32_MAX: none */
    bool begun;      /* it was in a pass */
    size_t computed; /* of the prompt: its keys and values are in the cache */
    int32_t *ids;    /* [n_ids] of the answer; room for all */
    size_t n_ids;
    answer_text text;
    bool cancelled;
} engine_sequence;

/* What is kept of the logits of a token row. */
typedef struct kept_logits {
    tm_head_state state; /* of log-sum-exp, and the label's logit */
    int32_t label;       /* the token that comes next in the prompt; -1: none */
    int32_t best;        /* of the largest logit the lowest id */
    float *all;          /* [vocab] NULL: not wanted */
    tm_alternative top[TM_ENGINE_TOP];
    uint32_t n_top, most_top; /* logits of the largest, in order */
} kept_logits;

/* A row of the pass under way. */
typedef struct pass_row {
    engine_sequence *of;
    uint32_t n;            /* tokens of it */
    uint32_t first_wanted; /* its wanted rows: [first_wanted, first_wanted + n_wanted) */
    uint32_t n_wanted;
} pass_row;
typedef struct engine_pass {
    bool decode;
    uint32_t adapter; /* of all its rows */
    pass_row *row;    /* [n], room for `sequences` */
    uint32_t n, seq;
    uint32_t *wanted; /* [n_wanted] token rows, */
    kept_logits *kept;
    uint32_t n_wanted;
} engine_pass;

struct tm_engine {
    tm_engine_opts opts; /* sequences, positions are set */
    text_tools text;
    uint32_t vocab, chunk; /* chunk: token rows of prompts in a pass, at most */
    engine_adapters adapters;
    tm_adapter_folder *adapter;
    tm_job *job;
    planner_choice choice; /* its plan is that of prompts */
    tm_plan *decode;
    float *logits;                 /* [sequences][vocab] */
    engine_slot *slot;             /* [sequences] */
    engine_sequence *first, *last; /* of the queue */
    engine_pass pass;
    sample_room sample;
    uint64_t requests;
    uint32_t ring, ring_slack; /* positions of the smallest ring of the cache, and what it has beyond its window */
    bool rows_apart;           /* tm_gemm_rows_apart was asked for */
    bool prompts_next;         /* where there are both, passes take turns */
    tm_engine_counts counts;
    tm_status failed;
};

/* ---- engine_job.c ----------------------------------------------------------------------------------------------- */

TM_MUST_USE tm_status engine_open_job(tm_engine *e, uint64_t other_bytes);
TM_MUST_USE tm_status engine_run_pass(tm_engine *e);

/* ---- engine_share.c --------------------------------------------------------------------------------------------- */

/* A free slot for a sequence: the one that begins most like its prompt, else the one of which least is lost. UINT32_MAX:
 * there is none. */
uint32_t engine_choose_slot(const tm_engine *e, const engine_sequence *s);
/* What of its prompt is in the cache, before its first pass. */
typedef struct engine_start {
    size_t computed;
    uint32_t from; /* slot that it is copied from; UINT32_MAX: it is there */
} engine_start;
/* False: more of it is being computed in another slot, or its own is being copied from: it waits for that. */
bool engine_look(const tm_engine *e, const engine_sequence *s, engine_start *out);
void engine_begin(tm_engine *e, engine_sequence *s, const engine_start *at); /* in the pass that is made up */
void engine_hold(tm_engine *e, uint32_t slot, engine_request *q, size_t n);

/* ---- engine_step.c ---------------------------------------------------------------------------------------------- */

/* The sequence ends with that event; it is freed. */
void engine_end(tm_engine *e, engine_sequence *s, tm_token_event *t);

/* ---- engine.c --------------------------------------------------------------------------------------------------- */

void engine_free_sequence(engine_sequence *s);
void engine_drop_request(engine_request *q); /* one user less; NULL is fine */

#endif

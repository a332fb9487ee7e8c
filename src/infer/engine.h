/* engine: sequences of one model that are continued side by side, and prompts whose log-probabilities are wanted.
 *
 *     TM_TRY(tm_engine_open(&e, &(tm_engine_opts){.model = dir, .sequences = 16, .positions = 4096}));
 *     tm_request r = {.prompt = ids, .n_prompt = n, .max_new_tokens = 64, .sampling = {.temperature = 0.7, .top_p = 0.9},
 *                     .take = print_token, .ctx = stdout};
 *     TM_TRY(tm_engine_add(e, &r, &number));
 *     do TM_TRY(tm_engine_step(e, &busy)); while (busy);
 *     tm_engine_close(e);
 *
 * What a sequence answers is a function of its request alone: not of what runs beside it, of the budget, or of when it was
 * added. A step is one forward pass: over some more tokens of prompts, or one token of each sequence that answers.
 * Prompts with a common beginning compute it once while one of them is in the cache.
 *
 * Memory: the key-value cache of `sequences` x `positions`, logits and what plans need are counted, and opening fails where
 * they are more than the budget, and so are tokenizer and template; the cache is paged in files of tiers.offload_path where it
 * does not fit. What requests hold (tm_engine_request_bytes) and what the caller has are in `other_bytes`, or not counted.
 * Threads: an engine belongs to one thread, the one that steps it. `take` is called there, inside tm_engine_step; of the
 * engine's functions it may call tm_engine_cancel.
 * Errors: TM_EINPUT for what a request asks and cannot have, at tm_engine_add; nothing of it was taken then. */
#ifndef TIDEMILL_ENGINE_H
#define TIDEMILL_ENGINE_H

#include "infer/infer.h"

typedef struct tm_engine tm_engine;
struct text_tools;        /* session/text.h */
struct tm_adapter_config; /* adapter/adapter.h */
typedef struct tm_engine_opts {
    const char *model;
    tm_dtype precision;   /* TM_F32, TM_BF16 */
    bool precision_given; /* else the model's own type; of halves bf16 or fp32 on a CPU, TM_F16 on a device */
    uint32_t sequences;   /* side by side, at most; 0: 1 */
    uint32_t positions;   /* of prompt and answer together, at most; 0: the model's, at most 4096 */
    uint32_t chunk;       /* tokens of prompts in a step, at most: bounds memory, and how long answers wait; 0: 512 */
    const char *const
        *adapters; /* [n_adapters] PEFT folders that a request may choose from; tiers.adapter is not used */
    uint32_t n_adapters;
    uint64_t other_bytes; /* of the budget, for what the caller holds beside the engine */
    bool allow_tmpfs;     /* the cache's files may lie in memory */
    bool plan_only;       /* nothing is opened but for tm_engine_least, tm_engine_seconds */
    /* With plan_only, of a model that a run is going to write: its weights are all of `precision`, or this is its adapter. */
    bool to_be_written;
    const struct tm_adapter_config *adapter_like;
    struct text_tools *text; /* the model's, which is the engine's then; NULL: it opens its own */
    /* Asked between operations once a signal came (tm_stop_catch): does the step go on? NULL: it fails with TM_ESIGNAL. */
    bool (*may_go_on)(void *ctx);
    void *may_go_on_ctx;
    tm_tier_args tiers;
} tm_engine_opts;

/* Order: penalties, then temperature, then typical, top-k, top-p, min-p; the draw is keyed by (seed, number of the token), so
 * that it does not depend on what runs beside. */
typedef struct tm_sampling {
    double temperature;             /* 0: greedy, the lowest id wins a tie; the limits below do not count then */
    uint32_t top_k;                 /* 0: all */
    double top_p, min_p, typical_p; /* 0: off */
    double repetition_penalty;      /* Keskar et al. 2019, of prompt and answer; 0 or 1: off */
    double presence_penalty, frequency_penalty; /* OpenAI's, of the answer */
    uint64_t seed;
} tm_sampling;

typedef enum tm_finish { TM_GOES_ON, TM_FINISH_STOP, TM_FINISH_LENGTH, TM_FINISH_CANCELLED } tm_finish;
typedef struct tm_alternative {
    int32_t id;
    float logprob;
} tm_alternative;
/* One token of a prompt (whose log-probabilities were asked) or of an answer; or the end alone, with id -1. */
typedef struct tm_token_event {
    uint64_t request;
    uint32_t answer; /* which of the request's n */
    bool of_prompt;
    size_t index; /* in the prompt, or in the answer */
    int32_t id;
    float logprob;             /* natural log of the model's own softmax: no penalty, no temperature */
    bool greedy;               /* it has the largest logit */
    const tm_alternative *top; /* [n_top] the largest, in order, as many as the request wants */
    uint32_t n_top;
    const char *text; /* of an answer: the bytes that became certain with this token: whole characters, without */
    size_t n_text;    /* special tokens and what may still become a stop string */
    tm_finish finish;
} tm_token_event;

typedef struct tm_request {
    const int32_t *prompt;   /* copied */
    size_t n_prompt;         /* at least 1 */
    uint32_t max_new_tokens; /* 0: the prompt's log-probabilities alone */
    uint32_t answers;        /* 0: 1; answer i draws with seed + i */
    tm_sampling sampling;
    const char *const *stop; /* [n_stop] the answer ends before the first of them, which it does not contain */
    uint32_t n_stop;
    bool ignore_eos;
    uint32_t adapter;  /* 1 + index into adapters; 0: the base alone */
    uint32_t top;      /* alternatives with each token; at most TM_ENGINE_TOP */
    size_t score_from; /* log-probabilities of prompt tokens from here on (at least 1); 0: none */
    void (*take)(void *ctx, const tm_token_event *t);
    void *ctx;
} tm_request;
enum { TM_ENGINE_TOP = 20, TM_ENGINE_STOPS = 16 };

/* Of memory that a request holds while it waits or runs, at most: prompt, and ids and text of its answers. */
uint64_t tm_engine_request_bytes(uint64_t tokens, uint32_t answers); /* tokens: of prompt and answer together */
TM_MUST_USE tm_status tm_engine_open(tm_engine **out, const tm_engine_opts *opts);
/* Waits behind those added before where all sequences are taken. */
TM_MUST_USE tm_status tm_engine_add(tm_engine *e, const tm_request *r, uint64_t *number);
void tm_engine_cancel(tm_engine *e, uint64_t number); /* `take` hears of it in the next step */
/* `busy`: there is more to do. A failure is the engine's end: every request that was taken hears of it as cancelled, and none
 * is taken any more. */
TM_MUST_USE tm_status tm_engine_step(tm_engine *e, bool *busy);
/* What prompts of so many tokens together and answers of so many each, all side by side, will take by the plan: simulated on
 * this machine's profile, where it has one. */
TM_MUST_USE tm_status tm_engine_seconds(tm_engine *e, uint64_t prompt_tokens, uint64_t answer_tokens, double *seconds);
/* Of a host budget, to open it with: exact, or of a model that is to be written a little more. */
uint64_t tm_engine_least(const tm_engine *e);
/* The text tools of the model: tokenizer, chat template, end tokens (session/text.h). */
const struct text_tools *tm_engine_text(const tm_engine *e);
typedef struct tm_engine_counts {
    uint64_t prompt_tokens, shared_tokens, answer_tokens; /* shared: of prompts, not computed again */
    uint32_t running, waiting, positions; /* positions: of prompt and answer together, as they were settled */
    double prefill_seconds, decode_seconds;
} tm_engine_counts;
tm_engine_counts tm_engine_count(const tm_engine *e);
void tm_engine_close(tm_engine *e); /* NULL is fine */

#endif

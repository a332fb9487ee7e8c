/* The main thread: jobs in, steps of the engine, answers out. */
#include "serve/loop_internal.h"

#include <string.h>

typedef struct running running;
typedef struct part { /* one prompt, which is one request of the engine */
    running *run;
    uint32_t prompt, left; /* answers that go on */
    uint64_t number;
    bool cancelled;
} part;
struct running {
    running *next;
    serve_job *job;
    serve_answer *answer;
    part *part; /* [n_parts], as far as they were added */
    uint32_t n_parts, parts_left;
    tm_buf out; /* of this step */
    int failed; /* status; 0: it has not */
    bool begun; /* its status was said */
    serve_refusal why;
    char text[512];
};

typedef struct loop {
    const serve_loop_opts *o;
    running *first;
    bool stopping, broken; /* broken: the engine is */
    uint64_t stop_ns;      /* when the grace ends */
} loop;

/* ---- failures of one request ----------------------------------------------------------------------------------------- */

static void fail_with(running *u, int status, const char *text) {
    if (u->failed) return;
    u->failed = status;
    u->why = (serve_refusal){0};
    memcpy(u->text, text, tm_min_u64(strlen(text), sizeof u->text - 1)); /* zeroed before */
}

/* With what is pending. */
static void fail(running *u, tm_status rc) {
    fail_with(u, rc == TM_EINPUT || rc == TM_EUNSUPPORTED || rc == TM_EBUDGET ? 400 : 500, tm_error_get()->text);
    tm_error_clear();
}

/* ---- events ----------------------------------------------------------------------------------------------------------- */

static void take(void *ctx, const tm_token_event *e) {
    part *p = ctx;
    running *u = p->run;
    bool over = e->finish != TM_GOES_ON;
    if (over && e->finish == TM_FINISH_CANCELLED && !p->cancelled) fail_with(u, 503, "the answer was broken off");
    if (!u->failed && !p->cancelled) {
        tm_status rc = serve_answer_take(u->answer, p->prompt, e, &u->out);
        if (rc != TM_OK) fail(u, rc);
    }
    if (over && --p->left == 0) u->parts_left--;
}

/* ---- a request begins -------------------------------------------------------------------------------------------------- */

/* What is not seeded is drawn otherwise each time. */
static uint64_t seed_of(const serve_job *job) {
    const uint64_t from[2] = {tm_now_ns(), job->asked_ns};
    return job->request.seed_given ? job->request.sampling.seed : tm_hash64(from, sizeof from, 0);
}

static tm_status add_part(loop *l, running *u, uint32_t i) {
    const serve_request *r = &u->job->request;
    const serve_prompt *p = &r->prompt[i];
    const tm_engine_counts counts = tm_engine_count(l->o->engine);
    tm_request ask = {.prompt = p->ids.id,
                      .n_prompt = p->ids.n,
                      .max_new_tokens = serve_request_max_tokens(r, (uint32_t)p->ids.n, counts.positions),
                      .answers = r->answers,
                      .sampling = r->sampling,
                      .stop = (const char *const *)r->stop,
                      .n_stop = r->n_stop,
                      .ignore_eos = r->ignore_eos,
                      .adapter = u->job->adapter,
                      .top = r->logprobs ? r->top : 0,
                      .score_from = r->echo && r->logprobs && p->ids.n > 1 ? 1 : 0,
                      .take = take,
                      .ctx = &u->part[i]};
    ask.sampling.seed = seed_of(u->job) + (r->seed_given ? 0 : (uint64_t)i * r->answers);
    u->part[i] = (part){.run = u, .prompt = i, .left = ask.max_new_tokens ? r->answers : 1};
    TM_TRY(tm_engine_add(l->o->engine, &ask, &u->part[i].number));
    u->n_parts++;
    u->parts_left++;
    return TM_OK;
}

static tm_status start(loop *l, running *u) {
    const serve_names names = {u->job->id, u->job->model, l->o->created};
    const serve_request *r = &u->job->request;
    TM_TRY(serve_answer_open(&u->answer, r, l->o->tokenizer, &names));
    u->part = tm_calloc(r->n_prompts, sizeof *u->part);
    if (!u->part) return tm_nomem(r->n_prompts * sizeof *u->part);
    for (uint32_t i = 0; i < r->n_prompts; i++) TM_TRY(add_part(l, u, i));
    return TM_OK;
}

/* A stream begins when all of it was taken, so that a refusal still has a status of its own. */
static void begin(loop *l, serve_job *job) {
    running *u = tm_calloc(1, sizeof *u);
    if (!u) {
        serve_job_fail(l->o->queue, job);
        serve_job_drop(l->o->queue, job);
        return;
    }
    u->job = job;
    u->next = l->first;
    l->first = u;
    if (l->broken) return fail_with(u, 500, "the engine has failed");
    tm_status rc = start(l, u);
    if (rc != TM_OK) fail(u, rc);
    if (rc != TM_OK || !job->request.stream) return;
    u->begun = true;
    rc = serve_job_say(l->o->queue, job, 200, &u->out, false);
    if (rc != TM_OK) fail(u, rc);
}

/* ---- and ends ----------------------------------------------------------------------------------------------------------- */

static void say_done(const running *u, int status) {
    serve_usage n = {0};
    if (u->answer) n = serve_answer_usage(u->answer);
    tm_log(TM_LOG_INFO, "serve: %s %s: %d, %llu tokens in, %llu out, %.2f s%s%s", u->job->id, u->job->model, status,
           (unsigned long long)n.prompt_tokens, (unsigned long long)n.completion_tokens,
           tm_seconds(tm_now_ns() - u->job->asked_ns), u->failed ? ", " : "", u->failed ? u->text : "");
}

static tm_status last_words(running *u) {
    if (!u->failed) return serve_answer_end(u->answer, &u->out);
    if (u->begun) return serve_put_error_event(u->failed, &u->why, u->text, &u->out);
    tm_buf_clear(&u->out);
    return serve_put_error(u->failed, &u->why, u->text, &u->out);
}

enum { CLIENT_GONE = 499 }; /* nginx's, in the log alone */

static void end(loop *l, running *u) {
    bool gone = serve_job_is_gone(l->o->queue, u->job);
    tm_status rc = gone ? TM_OK : last_words(u);
    if (rc != TM_OK && !u->failed) fail(u, rc), rc = last_words(u);
    if (!gone && rc == TM_OK) rc = serve_job_say(l->o->queue, u->job, u->failed ? u->failed : 200, &u->out, true);
    if (rc != TM_OK) serve_job_fail(l->o->queue, u->job);
    tm_error_clear();
    say_done(u, gone ? CLIENT_GONE : u->failed ? u->failed : 200);
    serve_answer_close(u->answer);
    serve_job_drop(l->o->queue, u->job);
    tm_buf_free(&u->out);
    TM_FREE_ALL(u->part, u);
}

/* ---- between steps -------------------------------------------------------------------------------------------------------- */

static void cancel(loop *l, running *u) {
    for (uint32_t i = 0; i < u->n_parts; i++) {
        part *p = &u->part[i];
        if (p->left && !p->cancelled) tm_engine_cancel(l->o->engine, p->number);
        p->cancelled = true;
    }
}

/* What came of it in this step is handed on. */
static void hand_on(loop *l, running *u) {
    bool stream = u->job->request.stream;
    size_t bytes = stream ? serve_job_unread(l->o->queue, u->job) : serve_answer_bytes(u->answer);
    if (bytes > SERVE_ANSWER_BYTES)
        fail_with(u, 400, "the answer has grown beyond 8 MiB; ask for fewer tokens, answers or log-probabilities");
    if (u->failed || !u->begun || !u->out.len) return;
    tm_status rc = serve_job_say(l->o->queue, u->job, 200, &u->out, false);
    if (rc != TM_OK) fail(u, rc);
}

static void look_after(loop *l) {
    for (running **at = &l->first, *u; (u = *at);) {
        if (u->parts_left && u->answer) hand_on(l, u);
        if (u->failed || serve_job_is_gone(l->o->queue, u->job)) cancel(l, u);
        if (u->parts_left) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        end(l, u);
    }
}

static void notice_signals(loop *l) {
    uint64_t now = tm_now_ns();
    if (!tm_stop_signal()) return;
    if (!l->stopping) {
        l->stopping = true;
        l->stop_ns = now + (uint64_t)l->o->grace_s * 1000000000;
        serve_queue_stop(l->o->queue);
        uint32_t n = serve_queue_jobs(l->o->queue);
        if (n) tm_say("stopping: %u requests have %u s to end; Ctrl-C again to break them off\n", n, l->o->grace_s);
    }
    if (now < l->stop_ns && !tm_stop_at_once()) return;
    for (running *u = l->first; u; u = u->next) fail_with(u, 503, "the server is stopping");
}

static void take_jobs(loop *l, bool busy) {
    for (serve_job *job; (job = serve_queue_take(l->o->queue, busy || l->first ? 0 : SERVE_WAIT_MS));) begin(l, job);
}

/* The engine has failed, and those that it had were told. */
static void break_off(loop *l) {
    tm_error why = *tm_error_get();
    tm_error_clear();
    serve_queue_stop(l->o->queue);
    l->broken = true;
    bool stops = why.code == TM_ESIGNAL;
    for (running *u = l->first; u; u = u->next) {
        fail_with(u, stops ? 503 : 500, stops ? "the server is stopping" : why.text);
        u->parts_left = 0;
    }
    take_jobs(l, true);
    look_after(l);
    tm_error_set(&why);
}

tm_status serve_loop(const serve_loop_opts *opts) {
    loop l = {.o = opts};
    tm_status rc = TM_OK;
    bool busy = false;
    while (rc == TM_OK) {
        notice_signals(&l); /* first: what was put before it was closed is taken after it */
        take_jobs(&l, busy);
        look_after(&l);
        if (l.stopping && !l.first) break;
        if (!l.first && !busy) continue;
        rc = tm_engine_step(opts->engine, &busy);
    }
    if (rc != TM_OK) break_off(&l);
    return rc;
}

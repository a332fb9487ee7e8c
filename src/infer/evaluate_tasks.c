/* Tasks: questions are put to an engine, answers scored and kept. */
#include "infer/engine.h"
#include "infer/evaluate_internal.h"
#include "infer/tasks_internal.h"

#include <math.h>
#include <string.h>

enum { SIDE_BY_SIDE = 16, AHEAD = 2 }; /* AHEAD: requests that wait in the engine, for each that runs */

/* What one sample was answered. */
typedef struct answered {
    uint32_t left; /* requests that have not ended */
    double *logprob;
    bool *greedy;
    tm_buf text;
    tm_status rc;
} answered;

typedef struct asker {
    const tm_task *t;
    task_asks asks;
    answered *sample; /* [t->n] */
    double *value;    /* [t->n][n_metrics] */
    size_t added, scored;
    uint32_t ahead;     /* requests that may wait in the engine */
    tm_append *samples; /* NULL: not kept */
    tm_buf lines;
} asker;

/* ---- answers ---------------------------------------------------------------------------------------------------- */

static void take(void *ctx, const tm_token_event *t) {
    const task_ask *a = ctx;
    answered *to = a->to;
    if (t->of_prompt && t->id >= 0) {
        to->logprob[a->choice] += (double)t->logprob;
        to->greedy[a->choice] &= t->greedy;
    } else if (t->n_text && to->rc == TM_OK) {
        to->rc = tm_buf_append(&to->text, t->text, t->n_text);
    }
    if (t->finish != TM_GOES_ON) to->left--;
}

static tm_status make_room(asker *a) {
    const tm_task *t = a->t;
    size_t requests = 0;
    a->sample = tm_calloc(t->n, sizeof *a->sample);
    a->value = tm_calloc(t->n * t->n_metrics, sizeof *a->value);
    if (!a->sample || !a->value) return tm_nomem(t->n * (sizeof *a->sample + t->n_metrics * sizeof *a->value));
    for (size_t i = 0; i < t->n; i++) {
        uint32_t n = t->sample[i].n_choices;
        answered *s = &a->sample[i];
        s->left = n ? n : 1;
        requests += s->left;
        if (!n) continue;
        s->logprob = tm_calloc(n, sizeof *s->logprob);
        s->greedy = tm_malloc(n * sizeof *s->greedy);
        if (!s->logprob || !s->greedy) return tm_nomem(n * sizeof *s->logprob);
        memset(s->greedy, true, n * sizeof *s->greedy);
    }
    TM_ASSERT(requests == a->asks.n);
    return TM_OK;
}

/* All but the questions, which may be asked again. */
static void drop_answers(asker *a) {
    for (size_t i = 0; a->sample && i < a->t->n; i++) {
        TM_FREE_ALL(a->sample[i].logprob, a->sample[i].greedy);
        tm_buf_free(&a->sample[i].text);
    }
    TM_FREE_ALL(a->sample, a->value);
    tm_buf_free(&a->lines);
    a->sample = NULL;
    a->value = NULL;
    a->added = a->scored = 0;
}

/* ---- asking ----------------------------------------------------------------------------------------------------- */

static tm_status put(asker *a, tm_engine *engine, task_ask *q) {
    const tm_task_drawing *d = &a->t->drawing;
    uint64_t number;
    bool text = a->t->sample[q->sample].n_choices == 0;
    q->to = &a->sample[q->sample];
    /* The choice melts into the context: nothing is left to score, as in the harness. */
    if (!text && q->score_from >= q->ids.n) {
        q->to->left--;
        return TM_OK;
    }
    const tm_request r = {.prompt = q->ids.id,
                          .n_prompt = q->ids.n,
                          .max_new_tokens = text ? d->max_new_tokens : 0,
                          .score_from = text ? 0 : q->score_from,
                          .sampling = {.temperature = d->temperature,
                                       .top_k = d->top_k,
                                       .top_p = d->top_p,
                                       .min_p = d->min_p,
                                       .seed = d->seed + a->t->sample[q->sample].id},
                          .stop = text ? d->stop : NULL,
                          .n_stop = text ? d->n_stop : 0,
                          .take = take,
                          .ctx = q};
    return tm_engine_add(engine, &r, &number);
}

static tm_status put_more(asker *a, tm_engine *engine) {
    while (a->added < a->asks.n && tm_engine_count(engine).waiting < a->ahead)
        TM_TRY(put(a, engine, &a->asks.ask[a->added++]));
    return TM_OK;
}

/* In the order of the file, as far as all before are there. */
static tm_status score_more(asker *a) {
    const tm_task *t = a->t;
    for (; a->scored < t->n && a->sample[a->scored].left == 0; a->scored++) {
        answered *s = &a->sample[a->scored];
        const tm_task_sample *q = &t->sample[a->scored];
        double *value = a->value + a->scored * t->n_metrics;
        const tm_task_answer answer = {.text = s->text.data ? s->text.data : "",
                                       .n_text = s->text.len,
                                       .logprob = s->logprob,
                                       .greedy = s->greedy};
        TM_TRY(s->rc);
        TM_TRY(tm_task_score(t, q, &answer, value));
        a->lines.len = 0;
        if (a->samples) TM_TRY(tm_task_write(t, q, &answer, value, &a->lines));
        if (a->samples) TM_TRY(tm_append_line(a->samples, a->lines.data, a->lines.len));
        tm_buf_free(&s->text);
    }
    return TM_OK;
}

/* All of one task. */
static tm_status answer_all(asker *a, tm_engine *engine, tm_phase *phase, uint64_t before) {
    bool busy = true;
    TM_TRY(make_room(a));
    do {
        TM_TRY(tm_stop_check());
        TM_TRY(put_more(a, engine));
        TM_TRY(tm_engine_step(engine, &busy));
        TM_TRY(score_more(a));
        tm_phase_at(phase, before + a->scored);
    } while (busy || a->added < a->asks.n);
    TM_TRY(score_more(a));
    TM_ASSERT(a->scored == a->t->n);
    return TM_OK;
}

/* ---- what it comes to ------------------------------------------------------------------------------------------- */

static tm_status sum_up(const asker *a, tm_eval_task *out) {
    const tm_task *t = a->t;
    *out = (tm_eval_task){.fewshot = t->fewshot, .samples = t->n, .in_file = t->in_file, .cut = a->asks.cut};
    out->name = tm_strdup(t->name);
    out->metric = tm_calloc(t->n_metrics, sizeof *out->metric);
    if (!out->name || !out->metric) return tm_nomem(t->n_metrics * sizeof *out->metric);
    for (uint32_t i = 0; i < t->n_metrics; i++) {
        tm_eval_metric *m = &out->metric[out->n_metrics++];
        m->value = tm_score_mean(a->value + i, t->n, t->n_metrics);
        m->error = tm_score_mean_stderr(a->value + i, t->n, t->n_metrics);
        m->name = tm_strdup(t->metric[i].name);
        m->filter = tm_strdup(t->metric[i].filter);
        if (!m->name || !m->filter) return tm_nomem(64);
    }
    return TM_OK;
}

static void free_task(tm_eval_task *t) {
    for (uint32_t i = 0; i < t->n_metrics; i++) TM_FREE_ALL(t->metric[i].name, t->metric[i].filter);
    TM_FREE_ALL(t->name, t->metric);
}

void tm_eval_tasks_free(tm_eval_tasks *r) {
    for (size_t i = 0; i < r->n; i++) free_task(&r->task[i]);
    tm_free(r->task);
    *r = (tm_eval_tasks){0};
}

/* ---- all tasks -------------------------------------------------------------------------------------------------- */

static tm_status slurp(void *ctx, const char *path, tm_buf *out) {
    uint64_t *hash = ctx;
    TM_TRY(tm_file_slurp(path, 512 * TM_MIB, out));
    *hash = tm_hash64(out->data ? out->data : "", out->len, *hash);
    return TM_OK;
}

static tm_status open_files(tasks *all, const tm_eval_task_args *a) {
    const tm_task_opts o = {.read = slurp,
                            .ctx = &all->hash,
                            .limit = a->limit,
                            .chat = a->chat,
                            .fewshot_given = a->fewshot_given,
                            .fewshot = a->fewshot,
                            .seed_given = a->seed_given,
                            .seed = a->seed,
                            .max_new_tokens = a->max_new_tokens};
    all->task = tm_calloc(a->n, sizeof(tm_task *));
    all->asker = tm_calloc(a->n, sizeof *all->asker);
    if (!all->task || !all->asker) return tm_nomem(a->n * sizeof *all->asker);
    for (; all->n < a->n; all->n++) {
        TM_TRY(tm_task_open(&all->task[all->n], a->file[all->n], &o));
        for (size_t i = 0; i < all->n; i++)
            if (!strcmp(all->task[i]->name, all->task[all->n]->name)) {
                const char *name = all->task[i]->name;
                tm_status rc =
                    tm_fail(TM_EINPUT, "%s: another task is called %s already; \"task\" of a TASK.json names one",
                            a->file[all->n], name);
                tm_task_close(all->task[all->n]);
                return rc;
            }
    }
    return TM_OK;
}

tm_status tasks_open_text(tasks *all) {
    const tasks_of *of = &all->of;
    tm_source *source = NULL;
    tm_model_config config;
    size_t len;
    tm_status rc;
    TM_GO(tm_source_open_bare(&source, of->model));
    if (of->tokenizer) TM_GO(tm_source_set_tokenizer(source, of->tokenizer));
    const char *json = tm_source_config(source, &len);
    TM_GO(tm_model_config_parse(&config, json, len, of->model));
    TM_GO(text_open(&all->text, source, of->host_bytes));
    if (!all->text.tokenizer) TM_GO(tm_fail(TM_EINPUT, "%s: there is no tokenizer.json, which tasks need", of->model));
    all->positions = config.max_position_embeddings ? config.max_position_embeddings : UINT32_MAX;
done:
    tm_source_close(source);
    return rc;
}

static tm_status encode(tasks *all) {
    for (size_t i = 0; i < all->n; i++) {
        task_asks *asks = &all->asker[i].asks;
        all->asker[i].t = all->task[i];
        TM_TRY(task_encode(all->task[i], &all->text, all->positions, asks));
        all->longest = tm_max_u64(all->longest, asks->longest);
        if (asks->cut)
            tm_log(TM_LOG_WARN,
                   "%s: %llu prompts are longer than the model's %llu positions; their beginnings are left out",
                   all->task[i]->name, (unsigned long long)asks->cut, (unsigned long long)all->positions);
    }
    return TM_OK;
}

tm_status tasks_answer(tasks *all, tm_engine *engine, tm_append *samples, tm_eval_tasks *out) {
    tm_phase phase;
    uint64_t before = 0, total = 0;
    tm_status rc = TM_OK;
    for (size_t i = 0; i < all->n; i++) total += all->task[i]->n;
    out->task = tm_calloc(all->n, sizeof *out->task);
    if (!out->task) return tm_nomem(all->n * sizeof *out->task);
    tm_phase_begin(&phase, "answering", "questions", total);
    for (size_t i = 0; i < all->n && rc == TM_OK; i++) {
        all->asker[i].samples = samples;
        all->asker[i].ahead = AHEAD * all->of.side_by_side;
        rc = answer_all(&all->asker[i], engine, &phase, before);
        if (rc == TM_OK) rc = sum_up(&all->asker[i], &out->task[out->n++]);
        drop_answers(&all->asker[i]);
        before += all->task[i]->n;
    }
    tm_phase_end(&phase);
    return rc;
}

void tasks_close(tasks *all) {
    for (size_t i = 0; i < all->n; i++) {
        drop_answers(&all->asker[i]);
        task_asks_free(&all->asker[i].asks);
        tm_task_close(all->task[i]);
    }
    TM_FREE_ALL(all->task, all->asker);
    text_close(&all->text);
}

/* Of samples, of what is put to the engine, and of answers that wait for one before them. */
static uint64_t held_bytes(const tasks *all) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < all->n; i++) {
        const tm_task *t = all->task[i];
        const task_asks *asks = &all->asker[i].asks;
        bytes += t->bytes + t->n * (sizeof(answered) + t->n_metrics * sizeof(double));
        bytes += asks->cap * sizeof *asks->ask + asks->n * (sizeof(double) + sizeof(bool));
        for (size_t k = 0; k < asks->n; k++) bytes += asks->ask[k].ids.cap * sizeof(int32_t);
    }
    return bytes + (uint64_t)all->of.side_by_side * (1 + AHEAD) * tm_engine_request_bytes(all->longest, 1);
}

tm_status tasks_open(tasks *all, const tasks_of *of, const tm_eval_task_args *a) {
    all->of = *of;
    all->of.side_by_side = a->side_by_side ? a->side_by_side : SIDE_BY_SIDE;
    TM_TRY(open_files(all, a));
    TM_TRY(tasks_open_text(all));
    return encode(all);
}

void tasks_set_engine(tasks *all, tm_engine_opts *o) {
    o->sequences = all->of.side_by_side;
    o->positions = (uint32_t)all->longest;
    o->other_bytes = held_bytes(all);
    o->text = all->text.tokenizer ? &all->text : NULL;
}

tm_status tasks_seconds(const tasks *all, tm_engine *engine, double *seconds) {
    uint64_t prompts = 0, answers = 0, n = all->of.side_by_side;
    for (size_t i = 0; i < all->n; i++) {
        const task_asks *asks = &all->asker[i].asks;
        bool text = all->task[i]->n > 0 && all->task[i]->sample[0].n_choices == 0;
        for (size_t k = 0; k < asks->n; k++) prompts += asks->ask[k].ids.n;
        if (text) answers += (asks->n + n - 1) / n * all->task[i]->drawing.max_new_tokens;
    }
    return tm_engine_seconds(engine, prompts, answers, seconds);
}

tm_status evaluate_tasks(const evaluation *e, tm_eval_tasks *out) {
    const tm_eval_task_args *a = &e->args->tasks;
    const tasks_of of = {.model = e->cfg.model, .host_bytes = e->tiers.host_budget};
    tasks all = {0};
    tm_engine *engine = NULL;
    tm_append *samples = NULL;
    tm_status rc;
    TM_GO(tasks_open(&all, &of, a));
    if (a->samples) TM_GO(tm_append_open(&samples, a->samples, true));
    tm_engine_opts o = {
        .model = e->cfg.model, .precision = e->cfg.precision, .precision_given = true, .tiers = e->tiers};
    tasks_set_engine(&all, &o);
    o.other_bytes += evaluate_held_bytes(e);
    TM_GO(tm_engine_open(&engine, &o));
    TM_GO(tasks_answer(&all, engine, samples, out));
done:
    tm_append_close(samples);
    tm_engine_close(engine);
    tasks_close(&all);
    return rc;
}

/* Tasks inside training: questions are read and encoded before step 1, and asked as often as there are weights to ask. An
 * engine is there only meanwhile, beside the run, with a budget of its own. */
#include "config/config.h"
#include "infer/tasks_internal.h"
#include "kernels/kernels.h"
#include "planner/start.h"
#include "session/session.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

enum { NAME_CHARS = 64 }; /* of a value, with its NUL: a curve of a report has as much */

typedef struct tm_trial {
    const tm_config *c;
    tasks all;
    char (*text)[NAME_CHARS]; /* [n] */
    const char **name;        /* [n] */
    uint32_t n;
    uint64_t text_bytes; /* of the tokenizer, which is there only meanwhile */
} tm_trial;

/* ---- names ------------------------------------------------------------------------------------------------------ */

static tm_status add_name(tm_trial *t, const tm_task *task, const tm_metric *m) {
    char *to = t->text[t->n];
    bool filtered = strcmp(m->filter, "none") != 0;
    int n = snprintf(to, NAME_CHARS, "%s_%s%s%s", task->name, m->name, filtered ? "_" : "", filtered ? m->filter : "");
    if (n >= NAME_CHARS)
        return tm_fail(TM_EINPUT,
                       "eval_tasks: \"%.100s_%.40s\" is a long name for a metric; \"task\" of a TASK.json gives "
                       "a shorter one",
                       task->name, m->name);
    for (uint32_t i = 0; i < t->n; i++)
        if (!strcmp(t->name[i], to))
            return tm_fail(TM_EINPUT, "eval_tasks: two metrics would be called %s; \"task\" of a TASK.json names one",
                           to);
    t->name[t->n++] = to;
    return TM_OK;
}

static tm_status add_names(tm_trial *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->all.n; i++) n += t->all.task[i]->n_metrics;
    t->text = tm_calloc(n, sizeof *t->text);
    t->name = tm_calloc(n, sizeof *t->name);
    if (!t->text || !t->name) return tm_nomem(n * sizeof *t->text);
    for (size_t i = 0; i < t->all.n; i++)
        for (uint32_t k = 0; k < t->all.task[i]->n_metrics; k++)
            TM_TRY(add_name(t, t->all.task[i], &t->all.task[i]->metric[k]));
    return TM_OK;
}

/* ---- the engine ------------------------------------------------------------------------------------------------- */

/* Halves of a run in fp16 are masters of fp32, rounded: those are asked. */
static tm_dtype precision_of(const tm_config *c) {
    return c->precision == TM_BF16 ? TM_BF16 : TM_F32;
}

static tm_engine_opts engine_opts(tm_trial *t, uint64_t host_bytes) {
    job_opts where = {0};
    tm_engine_opts o = {.model = t->c->model,
                        .precision = precision_of(t->c),
                        .precision_given = true,
                        .allow_tmpfs = true, /* a run that has files of its own there was asked already */
                        .tiers = {.host_budget = host_bytes}};
    session_set_paths(t->c, &where);
    if (where.n_paths > 0) o.tiers.offload_path = where.paths[0];
    tasks_set_engine(&t->all, &o);
    return o;
}

static tm_status open_planned(tm_trial *t, uint64_t host_bytes, tm_engine **out) {
    tm_engine_opts o = engine_opts(t, host_bytes);
    o.plan_only = true;
    o.adapter_like = t->c->adapter;
    o.to_be_written = !t->c->adapter;
    if (!o.text) o.other_bytes += t->text_bytes;
    return tm_engine_open(out, &o);
}

/* The products are the run's again, which bits depend on. */
static tm_status close_engine(const tm_trial *t, tm_engine *e, tm_status rc) {
    tm_engine_close(e);
    tm_error said = *tm_error_get();
    tm_error_clear();
    tm_status back = tm_kernels_init(0, (tm_elem)t->c->precision);
    (void)malloc_trim(0);
    if (rc == TM_OK) return back;
    tm_error_clear();
    tm_error_set(&said);
    return rc;
}

/* ---- what training asks for ------------------------------------------------------------------------------------- */

static void trial_close(tm_trial *t) {
    if (!t) return;
    tasks_close(&t->all);
    TM_FREE_ALL(t->text, t->name, t);
}

static tm_status measure(tm_trial *t, tm_scores *about) {
    tm_engine *e = NULL;
    t->text_bytes = t->all.text.bytes;
    tm_status rc = open_planned(t, UINT64_MAX, &e);
    if (rc == TM_OK) about->least_bytes = tm_engine_least(e);
    if (rc == TM_OK) about->run_bytes = about->least_bytes - planner_program_bytes();
    return close_engine(t, e, rc);
}

static tm_status check_adapter(const tm_config *c) {
    if (!c->adapter || c->adapter->init != TM_ADAPTER_INIT_PISSA) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED,
                   "eval_tasks: not inside training with init_lora_weights \"%s\"; score its checkpoints "
                   "with `tidemill eval --task`",
                   c->adapter->init_word);
}

static tm_status trial_open(tm_trial **out, const struct tm_config *c, tm_scores *about) {
    const tasks_of of = {.model = c->model, .tokenizer = c->tokenizer, .host_bytes = session_host_bytes(c)};
    const tm_eval_task_args a = {.file = c->eval_tasks.file.item,
                                 .n = c->eval_tasks.file.n,
                                 .limit = c->eval_tasks.limit,
                                 .chat = c->eval_tasks.apply_chat_template,
                                 .fewshot_given = c->eval_tasks.num_fewshot >= 0,
                                 .fewshot = c->eval_tasks.num_fewshot >= 0 ? (uint32_t)c->eval_tasks.num_fewshot : 0,
                                 .max_new_tokens = c->eval_tasks.max_new_tokens,
                                 .side_by_side = c->eval_tasks.batch_size};
    tm_status rc;
    *about = (tm_scores){0};
    TM_TRY(check_adapter(c));
    tm_trial *t = *out = tm_calloc(1, sizeof *t);
    if (!t) return tm_nomem(sizeof *t);
    t->c = c;
    TM_GO(tasks_open(&t->all, &of, &a));
    TM_GO(add_names(t));
    TM_GO(measure(t, about));
    about->name = t->name;
    about->n = t->n;
    about->hash = t->all.hash;
done:
    if (rc != TM_OK) trial_close(t), *out = NULL;
    return rc;
}

static tm_status trial_seconds(tm_trial *t, uint64_t host_bytes, double *seconds) {
    tm_engine *e = NULL;
    tm_status rc = open_planned(t, host_bytes, &e);
    if (rc == TM_OK) rc = tasks_seconds(&t->all, e, seconds);
    return close_engine(t, e, rc);
}

static void take_values(const tm_eval_tasks *r, double *value) {
    for (size_t i = 0; i < r->n; i++)
        for (uint32_t k = 0; k < r->task[i].n_metrics; k++) *value++ = r->task[i].metric[k].value;
}

static tm_status trial_score(tm_trial *t, const char *folder, uint64_t host_bytes, double *value) {
    tm_eval_tasks r = {0};
    tm_engine *e = NULL;
    tm_status rc = tasks_open_text(&t->all);
    tm_engine_opts o = engine_opts(t, host_bytes);
    *(t->c->adapter ? &o.tiers.adapter : &o.model) = folder;
    if (rc == TM_OK) rc = tm_engine_open(&e, &o);
    if (rc == TM_OK) rc = tasks_answer(&t->all, e, NULL, &r);
    if (rc == TM_OK) take_values(&r, value);
    tm_eval_tasks_free(&r);
    return close_engine(t, e, rc);
}

const tm_scorer tm_task_scorer = {trial_open, trial_seconds, trial_score, trial_close};

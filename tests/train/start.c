#include "start.h"

#include "comm/comm.h"
#include "kernels/kernels.h"
#include "tests/support/walk.h"
#include "job/job.h"
#include "train/trainer_internal.h"

/* ---- one start --------------------------------------------------------------------------------------------------- */

/* As tm_train_run does it, phase by phase. */
static tm_status choose(trainer *t) {
    TM_TRY(session_load_config(&t->s, false));
    trainer_open_scale(t);
    TM_TRY(session_set_strategy(&t->s));
    TM_TRY(session_same_start(&t->s));
    TM_TRY(trainer_take_output(t));
    tm_status rc = trainer_choose_start(t);
    if (rc == TM_OK && session_is_rank0(&t->s)) rc = trainer_sweep(t);
    TM_TRY(session_agree(&t->s, rc));
    TM_TRY(session_agree(&t->s, session_prepare(&t->s, false)));
    TM_TRY(trainer_same_input(t));
    return session_agree(&t->s, trainer_check_commit(t));
}

/* What a job that goes on with other ranks reads from. */
static tm_status open_others(trainer *t) {
    tm_model_config config;
    tm_model *m;
    size_t n;
    if (!t->from.old.other) return TM_OK;
    const char *json = tm_source_config(t->s.source, &n);
    TM_TRY(tm_model_config_parse(&config, json, n, "config.json"));
    TM_TRY(tm_model_create(&m, &config, t->s.cfg->precision));
    tm_status rc = elastic_open(&t->from.elastic, m, t->from.old.directory, t->from.old.ranks);
    elastic_close(t->from.elastic);
    t->from.elastic = NULL;
    tm_model_free(m);
    return rc;
}

static tm_status begin(trainer *t, const start_opts *o) {
    if (o->ranks > 0) {
        TM_TRY(tm_comm_imagine(&t->s.comm, o->ranks, o->ranks, o->rank));
        t->s.ranks = (job_ranks){.comm = t->s.comm, .ranks = o->ranks, .rank = o->rank, .agreed = &t->s.agreed};
    }
    TM_TRY(choose(t));
    TM_TRY(open_others(t));
    return t->from.commit && session_is_rank0(&t->s) ? trainer_cut_log(t) : TM_OK;
}

/* As a run that did not begin: it keeps no copy of a state. */
static void drop_copy(const trainer *t) {
    if (*t->from.copy) walk_gone(t->from.copy);
}

tm_status start_here(const start_opts *o, start_found *out) {
    size_t n = 0;
    while (n < TM_COUNT(o->with.set) && o->with.set[n]) n++;
    const tm_train_args args = {.config = found.config,
                                .set = o->with.set,
                                .n_set = n,
                                .resume = o->with.resume,
                                .allow_numerics_change = o->with.numerics,
                                .quiet = true};
    trainer t = {.s.args = &args, .committed = -1, .from.found_step = -1};
    tm_status rc = begin(&t, o);
    tm_error said = *tm_error_get();
    *out = (start_found){.step = t.from.commit ? t.step : -1, .other = t.from.old.other, .copied = *t.from.copy != 0};
    trainer_close(&t);
    session_close_ranks(&t.s);
    tm_kernels_close();
    tm_unlock_dir(t.out.lock);
    drop_copy(&t);
    if (rc != TM_OK) tm_error_clear(), tm_error_set(&said);
    return rc;
}

/* ---- calls that fail --------------------------------------------------------------------------------------------- */

typedef struct scene {
    const start_opts *o;
    void (*damage)(void);
    tm_status ends;
    start_found want;
    bool known;
} scene;

static bool same(const start_found *a, const start_found *b) {
    return a->step == b->step && a->other == b->other && a->copied == b->copied;
}

/* The refusal of an undisturbed start is no failure. */
static tm_status undisturbed(const scene *s, start_found *got) {
    tm_status rc = start_here(s->o, got);
    if (rc != s->ends) return rc;
    tm_error_clear();
    return TM_OK;
}

/* What the failed one left is enough to go on from. */
static void start_again(const scene *s) {
    tm_error said = *tm_error_get();
    start_found got;
    (void)!tm_fault_set(NULL);
    tm_error_clear();
    if (undisturbed(s, &got) != TM_OK || !same(&got, &s->want))
        fail_msg("after \"%s\": step %d, \"%s\"", said.text, (int)got.step, tm_error_get()->text);
    tm_error_clear(), tm_error_set(&said);
}

static tm_status once(void *ctx) {
    scene *s = ctx;
    start_found got;
    found_put_back();
    if (s->damage) s->damage();
    tm_status rc = undisturbed(s, &got);
    if (!s->known) s->want = got, s->known = rc == TM_OK;
    if (rc == TM_OK && !same(&got, &s->want))
        fail_msg("it goes on from step %d, not %d", (int)got.step, (int)s->want.step);
    if (rc != TM_OK) start_again(s);
    return rc;
}

uint64_t start_walk(const start_opts *o, void (*damage)(void), tm_status ends, const char *call, const char *kind,
                    uint64_t points) {
    scene s = {.o = o, .damage = damage, .ends = ends};
    const walk w = {.call = call,
                    .kind = kind,
                    .want = strcmp(call, "alloc") == 0 ? TM_ENOMEM : TM_EIO,
                    .also = TM_ECORRUPT, /* what to go back to could not be looked for: the damage is what is said */
                    .may_pass = true,
                    .points = points};
    return walk_all(w, once, &s);
}

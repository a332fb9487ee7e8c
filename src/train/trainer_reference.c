/* The reference's log-probabilities, before step 1 (src/reference): that there is room for both its job and the run's own is known
 * before either is begun. */
#include "train/trainer_internal.h"

#include "comm/comm.h"

/* All ranks have the same refusal, and go on asking. */
static void ask_again(trainer *t, tm_error *said) {
    *said = *tm_error_get();
    tm_error_clear();
    t->s.agreed = false;
}

static tm_status refuse(trainer *t, tm_error why) {
    tm_error_clear();
    tm_error_set(&why);
    t->s.agreed = t->s.comm != NULL;
    return TM_EBUDGET;
}

/* The run itself was refused; where the reference takes still more, that is what is said. */
static tm_status refuse_both(trainer *t, const job_refusal *own) {
    run_reference r;
    tm_error said;
    ask_again(t, &said);
    job_opts o = session_reference_options(&t->s);
    job_shape shape = session_reference_shape(&t->s);
    o.plan_only = true;
    tm_status rc = run_reference_start(&t->s, &o, &shape, 1, &r);
    run_reference_end(&r);
    if (rc != TM_OK && rc != TM_EBUDGET) return rc;
    bool more = rc == TM_EBUDGET && r.choice.refusal.limit == own->limit && r.choice.refusal.bytes > own->bytes;
    return refuse(t, more ? *tm_error_get() : said);
}

/* A run that goes on was planned when it began. */
static tm_status check_room(trainer *t) {
    job_refusal own = {.limit = JOB_LIMIT_NONE};
    if (t->from.commit || t->from.old.other) return TM_OK;
    tm_status rc = trainer_plan_job(t, &own);
    return rc == TM_EBUDGET && (!t->s.comm || t->s.agreed) ? refuse_both(t, &own) : rc;
}

tm_status trainer_make_reference(trainer *t) {
    bool there = false;
    if (!session_reference_column(t->s.cfg)) return TM_OK;
    TM_TRY(reference_open(&t->reference, &t->s));
    TM_TRY(reference_take(&t->reference, &t->s, &there));
    if (there) return TM_OK;
    TM_TRY(check_room(t));
    job_opts o = session_reference_options(&t->s);
    TM_TRY(reference_make(&t->reference, &t->s, &o));
    reference_keep(&t->reference, &t->s);
    return TM_OK;
}

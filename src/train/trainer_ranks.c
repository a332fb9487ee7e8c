/* One rank among others: what has to be alike of input and plans, what they tell each other, what each leaves behind. */
#include "comm/comm.h"
#include "job/job.h"
#include "train/trainer_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

void trainer_count_sent(trainer *t, uint64_t sent[2]) {
    tm_comm_stats s;
    if (!t->s.comm) return;
    tm_comm_get_stats(t->s.comm, &s);
    for (int l = 0; l < TM_COMM_LINKS; l++) {
        uint64_t all = 0;
        for (int c = 0; c < TM_COMM_CODES; c++) all += s.sent_bytes[c][l];
        if (t->job) all += t->job->comm.sent_there[l];
        sent[l] = all - t->comm_sent[l];
        t->comm_sent[l] = all;
    }
}

/* The first rank's clock decides when a commit is due by the clock. */
uint32_t trainer_flags(const trainer *t) {
    double minutes = t->s.cfg->commit_minutes, since = (double)(tm_now_ns() - t->life.commit_ns) * 1e-9;
    return (job_stop_signal() ? FLAG_STOP : 0) |
           (minutes > 0 && since >= minutes * 60 && t->s.ranks.rank == 0 ? FLAG_COMMIT : 0);
}

tm_status trainer_same_input(trainer *t) {
    tm_buf numerics = {0};
    if (!t->s.comm) return TM_OK;
    TM_TRY(session_same(&t->s, "the model's config.json", t->s.model_hash));
    TM_TRY(session_same(&t->s, "the model's weights", t->s.base_hash));
    TM_TRY(session_same(&t->s, "the reference model's weights", t->s.reference_hash));
    TM_TRY(session_same(&t->s, "the training data", tm_dataset_fingerprint(data_set(t->s.train))));
    TM_TRY(session_same(&t->s, "the evaluation data", t->s.eval ? tm_dataset_fingerprint(data_set(t->s.eval)) : 0));
    TM_TRY(session_same(&t->s, "the questions of eval_tasks", t->s.scores.hash));
    tm_status rc = session_agree(&t->s, trainer_numerics(t, &numerics));
    if (rc == TM_OK)
        rc = session_same_text(&t->s, "what computes (instruction set, matrix library, threads)", numerics.data,
                               numerics.len);
    tm_buf_free(&numerics);
    return rc;
}

/* The communication operations of a plan, in order. */
static uint64_t hash_plan(const tm_plan *plan, uint64_t hash) {
    uint32_t n = 0;
    const tm_plan_op *op = plan ? tm_plan_ops(plan, &n) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].engine != TM_ENGINE_COMM) continue;
        uint32_t what[] = {op[i].op.code, op[i].op.arg[0]};
        hash = tm_hash64(what, sizeof what, hash);
    }
    return hash;
}

/* What is gathered into memory that a node has once has to lie at one place for all that read it there. */
tm_status trainer_same_plans(trainer *t) {
    if (!t->s.comm) return TM_OK;
    const tm_plan *plans[] = {t->plans.step, t->plans.first, t->plans.drain, t->plans.eval};
    uint64_t operations = 0, places = 0;
    for (size_t i = 0; i < TM_COUNT(plans); i++) {
        const uint64_t frames = plans[i] ? tm_plan_shared_hash(plans[i]) : 0;
        operations = hash_plan(plans[i], operations + i);
        places = tm_hash64(&frames, sizeof frames, places + i);
    }
    TM_TRY(session_same(&t->s, "the plan of operations between ranks", operations));
    return session_same(&t->s, "the place of gathered weights in shared memory", places);
}

/* ---- what ranks leave behind --------------------------------------------------------------------------------- */

static tm_status own_directories(const trainer *t, tm_buf *out) {
    for (unsigned i = 0; tm_store_path(t->job->tiers.store, i); i++) {
        char full[PATH_MAX]; /* the run may go on from another folder */
        const char *path = tm_store_path(t->job->tiers.store, i);
        if (realpath(path, full)) path = full;
        TM_TRY(tm_buf_append(out, path, strlen(path) + 1));
    }
    return TM_OK;
}

/* Texts of all ranks, in order. bytes: [ranks], zeros. */
static tm_status gather_texts(trainer *t, const tm_buf *own, uint64_t *bytes) {
    uint64_t all = 0;
    bytes[t->s.ranks.rank] = own->len;
    TM_TRY(tm_comm_all_reduce_u64(t->s.comm, TM_COMM_WORLD, TM_COMM_SUM, bytes, t->s.ranks.ranks));
    for (uint32_t r = 0; r < t->s.ranks.ranks; r++) all += bytes[r];
    TM_TRY(session_agree(&t->s, tm_buf_reserve(&t->out.directories, all + 1)));
    if (all > 0)
        TM_TRY(tm_comm_run(t->s.comm, &(tm_comm_op){.code = TM_COMM_ALL_GATHER,
                                                    .group = TM_COMM_WORLD,
                                                    .type = TM_COMM_BYTE,
                                                    .send = own->data,
                                                    .recv = t->out.directories.data,
                                                    .counts = bytes}));
    t->out.directories.len = all;
    for (uint32_t r = 0, at = 0; r < t->s.ranks.ranks; at += (uint32_t)bytes[r++])
        for (uint32_t i = 0; i < bytes[r]; i++) t->out.directories_of[r] += t->out.directories.data[at + i] == 0;
    return TM_OK;
}

/* Only when every rank has its own list does any send it. */
static tm_status gather_together(trainer *t) {
    tm_buf own = {0};
    uint64_t *bytes = tm_calloc(t->s.ranks.ranks, sizeof *bytes);
    t->out.directories_of = tm_calloc(t->s.ranks.ranks, sizeof *t->out.directories_of);
    tm_status rc =
        bytes && t->out.directories_of ? own_directories(t, &own) : tm_nomem(t->s.ranks.ranks * 2 * sizeof *bytes);
    rc = session_agree(&t->s, rc);
    if (rc == TM_OK) rc = gather_texts(t, &own, bytes);
    tm_free(bytes);
    tm_buf_free(&own);
    return rc;
}

tm_status trainer_gather_directories(trainer *t) {
    TM_TRY(t->s.comm ? gather_together(t) : own_directories(t, &t->out.directories));
    for (size_t i = 0; i < t->out.directories.len; i++) t->out.n_directories += t->out.directories.data[i] == 0;
    t->out.directory = tm_calloc(t->out.n_directories + 1, sizeof *t->out.directory);
    if (!t->out.directory) return tm_nomem(t->out.n_directories * sizeof *t->out.directory);
    const char *at = t->out.directories.data;
    for (uint32_t i = 0; i < t->out.n_directories; i++, at += strlen(at) + 1) t->out.directory[i] = at;
    return TM_OK;
}

void trainer_describe_ranks(const trainer *t, tm_json_writer *w) {
    elastic_describe(&t->s.ranks, w);
}

/* --resume DIR with a rank's directory. */
tm_status trainer_check_ranks(const trainer *t, const tm_json *info) {
    job_ranks was, now = t->s.ranks;
    TM_TRY(elastic_shards(info, &was));
    if (!t->s.comm) now = (job_ranks){.ranks = 1, .weights = {0, 1}, .own = {0, 1}};
    if (t->from.old.other || elastic_same(&was, &now)) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED,
                   "the commit holds one of %u ranks' share of the state; --resume auto finds the others", was.ranks);
}

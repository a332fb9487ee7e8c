/* The reference's log-probabilities of the rows that the run will use, made before step 1 by a job of its own: the reference's
 * weights are read where they lie, forward only, and are gone before the run's own state is there. They stay in a file beside
 * OUTPUT_DIR, which a resumed run, and another run of the same data, reference and settings, takes instead. */
#include "train/trainer_internal.h"

#include "comm/comm.h"
#include "io/file/file.h"
#include "kernels/kernels.h"
#include "planner/start.h"
#include "session/batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void trainer_fill_reference(const trainer *t, uint64_t step, uint32_t micro_batch, uint32_t batch, uint32_t rows,
                            float *to) {
    const reference_table *of = t->reference.table;
    while (of->eval != t->eval.under_way || of->batch != batch) of++; /* there is one */
    for (uint32_t row = 0; row < rows; row++)
        to[row] = of->value[session_reference_place(&t->s, of->eval, step, batch, micro_batch, row)];
}

/* ---- the pass --------------------------------------------------------------------------------------------------- */

typedef struct reference_pass {
    trainer *t;
    tm_job *job;
    const reference_table *of;
    uint64_t step;
} reference_pass;

static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    reference_pass *p = ctx;
    session *s = &p->t->s;
    tm_dataset *ds = data_set(p->of->eval ? s->eval : s->train);
    (void)batch;
    if (s->comm && mb == 0) {
        tm_step_info info;
        tm_dataset_step_info(ds, p->step, &info);
        p->job->step.labels = info.label_tokens;
        p->job->step.tokens = info.tokens;
        p->job->step.samples = info.samples;
    }
    return session_fill(ds, p->step, mb, s->ranks.rank, p->of->batch, to, out);
}

static tm_status take(void *ctx, uint32_t mb, const tm_micro_batch *b, const float *nll) {
    const reference_pass *p = ctx;
    const objective_lane lane = {.batch = b, .nll = (float *)(uintptr_t)nll}; /* only read */
    for (uint32_t row = 0; row < b->rows; row++)
        p->of->value[session_reference_place(&p->t->s, p->of->eval, p->step, p->of->batch, mb, row)] =
            (float)tm_objective_logp(&lane, row);
    return TM_OK;
}

/* Other ranks' rows are 0 here: the sum of all is what each has. */
static tm_status share(trainer *t, float *value, uint64_t n) {
    enum { CHUNK = 4096 };
    double chunk[CHUNK];
    for (uint64_t at = 0; t->s.comm && at < n; at += CHUNK) {
        uint64_t count = tm_min_u64(CHUNK, n - at);
        for (uint64_t i = 0; i < count; i++) chunk[i] = (double)value[at + i];
        TM_TRY(tm_comm_all_reduce_f64(t->s.comm, TM_COMM_WORLD, TM_COMM_SUM, chunk, count));
        for (uint64_t i = 0; i < count; i++) value[at + i] = (float)chunk[i];
    }
    return TM_OK;
}

static tm_status run_passes(reference_pass *p, const tm_plan *plan, job_phase *phase) {
    const trainer_reference *all = &p->t->reference;
    for (p->of = all->table; p->of < all->table + all->n_tables; p->of++) {
        uint64_t steps = session_reference_steps(&p->t->s, p->of->eval, p->of->batch);
        phase->span = session_samples_a_step(&p->t->s, p->of->eval);
        for (p->step = 0; p->step < steps; p->step++, phase->base += phase->span) TM_TRY(job_run(p->job, plan));
        TM_TRY(share(p->t, p->of->value, p->of->n));
    }
    return TM_OK;
}

static job_shape largest_shape(const session *s) {
    job_shape shape = session_step_shape(s);
    if (!s->eval) return shape;
    job_shape eval = session_eval_shape(s);
    shape.rows = eval.rows > shape.rows ? eval.rows : shape.rows;
    shape.seq = eval.seq > shape.seq ? eval.seq : shape.seq;
    shape.tokens = eval.tokens > shape.tokens ? eval.tokens : shape.tokens;
    return shape;
}

/* All of the reference's weights are read where they lie; nothing is written. */
static job_opts reference_options(const trainer *t) {
    static const tm_model_roles nothing_learns;
    const tm_config *c = t->s.cfg;
    job_opts o = session_job_options(&t->s);
    o.model = c->reference ? c->reference : c->model;
    o.weights = c->reference ? NULL : t->s.weights;
    o.roles = &nothing_learns;
    o.adapter = NULL, o.saved = NULL, o.freeze = NULL, o.objective = NULL;
    o.optimizer = o.reference_column = o.commits = false;
    o.four_bits = TM_FMT_F32;
    o.n_paths = 0;
    o.slots = 1;
    return o;
}

static tm_status check_vocabulary(const trainer *t, const tm_job *job) {
    tm_model_config own;
    char path[4096];
    size_t len;
    const char *json = tm_source_config(t->s.source, &len);
    uint32_t has = tm_model_get_config(job->model)->vocab_size;
    TM_TRY(tm_model_config_parse(&own, json, len, job_config_name(t->s.cfg->model, path, sizeof path)));
    if (has == own.vocab_size) return TM_OK;
    return tm_fail(
        TM_EINPUT,
        "objective.reference: %s has a vocabulary of %u, the model that learns has %u; they must read the same ids",
        t->s.cfg->reference, has, own.vocab_size);
}

/* What fails in a pass on one rank the others do not know of: it ends them all. */
static tm_status make(trainer *t) {
    reference_pass p = {.t = t};
    job_opts o = reference_options(t);
    uint64_t total = 0;
    for (const reference_table *of = t->reference.table; of < t->reference.table + t->reference.n_tables; of++)
        total += session_reference_steps(&t->s, of->eval, of->batch) * session_samples_a_step(&t->s, of->eval);
    tm_status rc = session_agree(&t->s, job_open(&p.job, &o));
    if (rc != TM_OK) {
        job_close(p.job);
        return rc;
    }
    planner_choice c = {0};
    job_phase phase;
    rc = session_agree(&t->s, check_vocabulary(t, p.job));
    p.job->sinks.fill = fill;
    p.job->sinks.take_nll = take;
    p.job->sinks.fill_ctx = p.job->sinks.take_ctx = &p;
    pass_opts way = {.shape = largest_shape(&t->s), .loss = true};
    if (rc == TM_OK) rc = job_start(&(planner_ask){.job = p.job, .name = "reference", .way = &way, .n = 1}, &c);
    job_phase_begin(&phase, p.job, "reference model", "samples", total);
    if (rc == TM_OK) rc = run_passes(&p, c.plan, &phase);
    job_phase_end(&phase);
    planner_drop(&c);
    job_close(p.job);
    return rc;
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static const char magic[8] = "tmref1\n";

/* What the values are a function of. */
static uint64_t key_of(const trainer *t) {
    const tm_config *c = t->s.cfg;
    const char *numerics = tm_kernels_describe();
    uint64_t of[] = {t->s.reference_hash,
                     tm_dataset_fingerprint(data_set(t->s.train)),
                     t->s.eval ? tm_dataset_fingerprint(data_set(t->s.eval)) : 0,
                     c->precision,
                     c->data.seq_len,
                     c->data.seed,
                     c->data.shuffle,
                     c->data.group_by_length,
                     (uint64_t)c->total_steps,
                     session_samples_a_step(&t->s, false),
                     session_samples_a_step(&t->s, true),
                     c->micro_batch_size,
                     session_batches(&t->s),
                     !c->reference ? c->quantization.type : 0, /* of the model's own matrices */
                     c->quantization.double_quant,
                     c->quantization.block};
    uint64_t key = tm_hash64(numerics, strlen(numerics), tm_hash64(of, sizeof of, 0));
    return tm_hash64(c->memory.device, strlen(c->memory.device), key);
}

static uint64_t hash_values(const trainer *t, uint64_t key) {
    for (uint32_t i = 0; i < t->reference.n_tables; i++)
        key = tm_hash64(t->reference.table[i].value, t->reference.table[i].n * sizeof(float), key);
    return key;
}

/* In the order of the file; `f` or `out`. */
static tm_status pass_values(const trainer *t, tm_file *f, tm_out *out) {
    uint64_t at = sizeof magic;
    for (uint32_t i = 0; i < t->reference.n_tables; i++) {
        const reference_table *of = &t->reference.table[i];
        if (f) TM_TRY(tm_file_read_at(f, at, of->value, of->n * sizeof(float)));
        if (out) TM_TRY(tm_out_append(out, of->value, of->n * sizeof(float)));
        at += of->n * sizeof(float);
    }
    return TM_OK;
}

/* Whatever is not whole is made again. */
static bool read_file(trainer *t, const char *path, uint64_t key) {
    char head[sizeof magic];
    uint64_t hash = 0, bytes = sizeof magic + sizeof hash;
    tm_file *f;
    if (!tm_path_exists(path)) return false;
    for (uint32_t i = 0; i < t->reference.n_tables; i++) bytes += t->reference.table[i].n * sizeof(float);
    tm_status rc = tm_file_open(&f, path);
    if (rc == TM_OK) {
        if (tm_file_size(f) != bytes) rc = TM_ECORRUPT;
        if (rc == TM_OK) rc = tm_file_read_at(f, 0, head, sizeof head);
        if (rc == TM_OK) rc = pass_values(t, f, NULL);
        if (rc == TM_OK) rc = tm_file_read_at(f, bytes - sizeof hash, &hash, sizeof hash);
        tm_file_close(f);
    }
    bool whole = rc == TM_OK && memcmp(head, magic, sizeof head) == 0 && hash == hash_values(t, key);
    if (!whole) tm_log(TM_LOG_WARN, "%s is damaged; it is made again", path);
    tm_error_clear();
    return whole;
}

static tm_status write_file(const trainer *t, const char *path, uint64_t key) {
    char dir[4096];
    tm_out *out;
    uint64_t hash = hash_values(t, key);
    TM_TRY(tm_make_dirs(session_cache_path(t->s.cfg, "", dir, sizeof dir)));
    TM_TRY(tm_out_create(&out, path));
    tm_status rc = tm_out_append(out, magic, sizeof magic);
    if (rc == TM_OK) rc = pass_values(t, NULL, out);
    if (rc == TM_OK) rc = tm_out_append(out, &hash, sizeof hash);
    return tm_out_end(out, rc);
}

/* The values are there all the same. */
static void keep_values(const trainer *t, const char *path, uint64_t key) {
    if (!session_is_rank0(&t->s) || write_file(t, path, key) == TM_OK) return;
    tm_log(TM_LOG_WARN, "the reference's log-probabilities are not kept, and the next start makes them again: %s",
           tm_error_get()->text);
    tm_error_clear();
}

/* The first rank reads and writes; all have the same. */
static tm_status take_file(trainer *t, const char *path, uint64_t key, bool *there) {
    uint64_t found = session_is_rank0(&t->s) && read_file(t, path, key);
    if (t->s.comm) TM_TRY(tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, &found, sizeof found));
    *there = found;
    for (uint32_t i = 0; t->s.comm && found && i < t->reference.n_tables; i++)
        TM_TRY(tm_comm_broadcast(t->s.comm, TM_COMM_WORLD, 0, t->reference.table[i].value,
                                 t->reference.table[i].n * sizeof(float)));
    return TM_OK;
}

/* The run itself needs more memory than its reference in all but odd cases: then that is what is named. */
static tm_status refuse(trainer *t) {
    tm_error own = *tm_error_get();
    tm_error_clear();
    t->s.agreed = false; /* all have refused; now they ask again */
    tm_status rc = session_agree(&t->s, trainer_open_job(t));
    if (rc != TM_OK) return rc;
    t->s.agreed = t->s.comm != NULL;
    tm_error_set(&own);
    return TM_EBUDGET;
}

static tm_status open_tables(trainer *t) {
    for (int eval = 0; eval <= (t->s.eval != NULL); eval++)
        for (uint32_t batch = 0; batch < session_batches(&t->s); batch++) {
            reference_table *of = &t->reference.table[t->reference.n_tables++];
            *of = (reference_table){.eval = eval, .batch = batch, .n = session_reference_rows(&t->s, eval, batch)};
            of->value = tm_calloc(of->n + 1, sizeof(float));
            if (!of->value) return tm_nomem(of->n * sizeof(float));
        }
    return TM_OK;
}

tm_status trainer_make_reference(trainer *t) {
    char path[4096], name[40];
    bool there = false;
    if (!session_reference_column(t->s.cfg)) return TM_OK;
    TM_TRY(session_agree(&t->s, open_tables(t)));
    uint64_t key = key_of(t);
    snprintf(name, sizeof name, "reference-%016" PRIx64, key);
    session_cache_path(t->s.cfg, name, path, sizeof path);
    TM_TRY(session_agree(&t->s, take_file(t, path, key, &there)));
    if (there) {
        if (!t->s.args->quiet && session_is_rank0(&t->s))
            tm_log(TM_LOG_INFO, "the reference's log-probabilities are those of %s", path);
        return TM_OK;
    }
    for (uint32_t i = 0; i < t->reference.n_tables; i++) /* of a damaged file */
        memset(t->reference.table[i].value, 0, t->reference.table[i].n * sizeof(float));
    tm_status rc = make(t);
    if (rc == TM_EBUDGET && (!t->s.comm || t->s.agreed)) return refuse(t);
    if (rc == TM_OK) keep_values(t, path, key);
    return rc;
}

void trainer_free_reference(trainer *t) {
    for (uint32_t i = 0; i < t->reference.n_tables; i++) tm_free(t->reference.table[i].value);
    t->reference = (trainer_reference){.n_tables = 0};
}

/* Commits: when they are due, and what a run has to find in one to go on. */
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_DECIDES_SECONDS = 1 }; /* before other ranks do */

void trainer_kill_point(const char *name) {
    if (tm_fault_hit(name, NULL)) (void)raise(SIGKILL);
}

bool trainer_commit_due(const trainer *t) {
    int64_t next = t->step + 1, every = t->s.cfg->commit_steps;
    if (!session_commits(&t->s)) return false;
    bool by_clock = ((t->s.comm ? t->job->step.result.flags : trainer_flags(t)) & FLAG_COMMIT) != 0;
    return next >= t->s.cfg->total_steps || (every > 0 && next % every == 0) || by_clock;
}

/* Rounding depends on it (DESIGN section 10): instruction set, matrix library, threads, type, device. */
tm_status trainer_numerics(const trainer *t, tm_buf *out) {
    static const char *const type[] = {[TM_F32] = "fp32", [TM_BF16] = "bf16", [TM_F16] = "fp16"};
    TM_TRY(tm_buf_printf(out, "%s, %u threads, %s", tm_kernels_describe(), tm_kernels_threads(),
                         type[t->s.cfg->precision]));
    TM_TRY(session_describe_device(&t->s, out));
    if (!t->s.comm) return TM_OK;
    return tm_buf_printf(
        out, ", %u ranks added as %016" PRIx64 "%s%s%s%s", t->s.ranks.ranks, tm_comm_tree_hash(t->s.comm),
        t->s.ranks.mpi_sums ? ", gradients added by MPI" : "", t->s.cfg->quantized_weights ? ", weights in 8 bits" : "",
        t->s.cfg->quantized_gradients ? ", gradients in 4 bits" : "", t->s.cfg->comm_bf16 ? ", gradients in bf16" : "");
}

/* ---- what is written down -------------------------------------------------------------------------------------- */

static void field_int(tm_json_writer *w, const char *key, int64_t v) {
    tm_jw_field_int(w, key, v);
}

static void field_hex(tm_json_writer *w, const char *key, uint64_t v) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    tm_jw_field_str(w, key, text);
}

/* Random numbers, data order and learning rate are functions of seed and counters; the loss scale is state. */
static void counters(tm_json_writer *w, const trainer *t) {
    field_int(w, "step", t->step);
    field_int(w, "total_steps", t->s.cfg->total_steps);
    field_int(w, "applied", t->applied);
    field_int(w, "skipped_in_a_row", t->skipped_in_a_row);
    field_int(w, "skipped_at_scale", t->skipped_at_scale);
    field_int(w, "data_cursor", t->step * (int64_t)t->s.cfg->train_batch_size);
    tm_jw_field_bool(w, "unfinished", t->unfinished);
    trainer_describe_scale(t, w);
}

static tm_status describe(const trainer *t, tm_buf *out) {
    char dir[PATH_MAX];
    tm_buf config = {0}, numerics = {0};
    tm_json_writer w;
    tm_status rc;
    TM_GO(tm_config_dump_json(t->s.cfg, &config, 0));
    TM_GO(trainer_numerics(t, &numerics));
    tm_jw_init(&w, out, 0);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "version", TIDEMILL_VERSION);
    tm_jw_field_str(&w, "output_dir", realpath(t->s.cfg->output_dir, dir) ? dir : t->s.cfg->output_dir);
    tm_jw_field_str(&w, "key", t->out.key);
    if (session_is_rank0(&t->s)) trainer_describe_log(t, &w);
    counters(&w, t);
    if (t->s.comm) trainer_describe_ranks(t, &w);
    trainer_describe_patience(t, &w);
    trainer_describe_saves(t, &w);
    field_hex(&w, "model", t->s.model_hash);
    if (t->s.base_hash) field_hex(&w, "base", t->s.base_hash);
    if (t->s.reference_hash) field_hex(&w, "reference", t->s.reference_hash);
    field_hex(&w, "data", tm_dataset_fingerprint(data_set(t->s.train)));
    tm_jw_field_str(&w, "numerics", numerics.data);
    TM_GO(trainer_describe_choices(t, &w));
    tm_jw_key(&w, "config");
    tm_jw_raw(&w, config.data, config.len);
    tm_jw_object_end(&w);
    rc = tm_jw_end(&w);
done:
    tm_buf_free(&config);
    tm_buf_free(&numerics);
    return rc;
}

tm_status trainer_log_commit(trainer *t, const tm_commit_stats *stats) {
    tm_buf line = {0};
    tm_json_writer w;
    if (!session_is_rank0(&t->s) || !t->log.file) return TM_OK;
    trainer_line_begin(t, &w, &line, "commit");
    field_int(&w, "commit_write_bytes", (int64_t)stats->write_bytes);
    tm_jw_field_double(&w, "seconds", (double)stats->ns * 1e-9);
    return trainer_line_end(t, &w, &line);
}

/* With ranks in four phases (DESIGN section 6): only when all have N on disk does anyone publish it, and only when all
 * have published does anyone overwrite what N - 1 names. */
static tm_status commit_together(trainer *t, const tm_commit_opts *o, tm_commit_stats *stats) {
    tm_store *store = t->job->tiers.store;
    tm_status rc = job_save_resident(t->job);
    if (rc == TM_OK) rc = tm_store_commit_prepare(store, tm_exec_slab(t->job->tiers.exec), o, stats);
    trainer_kill_point("kill_prepared");
    TM_TRY(session_agree(&t->s, rc));
    rc = tm_store_commit_publish(store, stats);
    trainer_kill_point("kill_published");
    return session_agree(&t->s, rc);
}

tm_status trainer_commit(trainer *t) {
    tm_buf info = {0};
    tm_commit_stats stats;
    tm_status rc;
    uint64_t began = tm_now_ns();
    TM_GO(trainer_settle(t));
    if (t->log.file) TM_GO(tm_append_sync(t->log.file)); /* a commit has the lines of its steps */
    TM_GO(describe(t, &info));
    TM_GO(commit_together(t, &(tm_commit_opts){.step = (uint64_t)t->step, .info = info.data, .info_bytes = info.len},
                          &stats));
    t->committed = t->step;
    t->life.commit_ns = tm_now_ns();
    stats.ns = t->life.commit_ns - began; /* with the pending update: a grace has to have room for both */
    t->life.commit_seconds = (double)stats.ns * 1e-9;
    TM_GO(trainer_log_commit(t, &stats));
    rc = trainer_committed_saves(t);
done:
    tm_buf_free(&info);
    return rc;
}

/* A step, once begun, either ends or is lost. It goes on while it and the commit can be expected to end within the
 * grace; a job that only reads state (evaluation, export) stops at once: it is done again. Ranks stop together, between
 * steps, or end one another in the midst of one when there is no time: the first as soon as it expects so, which is one
 * message for all, the others when it has not been heard of by the end of the grace. */
bool trainer_may_go_on(void *ctx) {
    const trainer *t = ctx;
    if (!t->s.comm && (!t->torn || !session_commits(&t->s))) return false;
    uint64_t now = tm_now_ns();
    double since = (double)(now - job_stop_ns()) * 1e-9;
    double grace = t->s.args->grace_seconds > 0 ? t->s.args->grace_seconds : 30;
    double left = t->life.step_ns ? (double)t->life.step_ns * 1e-9 - (double)(now - t->life.step_began_ns) * 1e-9 : 0;
    if (t->s.comm && !session_is_rank0(&t->s)) return since < grace + FIRST_DECIDES_SECONDS;
    return since + fmax(left, 0) + t->life.commit_seconds < grace;
}

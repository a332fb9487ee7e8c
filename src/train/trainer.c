/* The training job: configuration, data and tiers are brought together, then one plan is run once a step. */
#include "step/elastic.h"
#include "train/train.h"
#include "train/trainer.h"

#include "comm/comm.h"
#include "io/file/file.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *trainer_path(trainer *t, const char *name) {
    snprintf(t->path, sizeof t->path, "%s/%s", t->cfg->output_dir, name);
    return t->path;
}

/* ---- configuration ------------------------------------------------------------------------------------------- */

static tm_status slurp(void *ctx, const char *path, tm_buf *out) {
    (void)ctx;
    return tm_file_slurp(path, 16 * TM_MIB, out);
}

tm_status trainer_load_config(trainer *t, bool data_optional) {
    tm_buf text = {0};
    tm_status rc = tm_file_slurp(t->args->config, 16 * TM_MIB, &text);
    if (rc == TM_OK)
        rc = tm_config_load(&t->cfg, text.data, text.len,
                            &(tm_config_opts){.name = t->args->config,
                                              .set = t->args->set,
                                              .n_set = t->args->n_set,
                                              .read_file = slurp,
                                              .world_size = t->comm ? t->ranks.ranks : 1,
                                              .data_optional = data_optional});
    tm_buf_free(&text);
    if (rc == TM_OK) trainer_open_scale(t);
    return rc;
}

tm_status trainer_write_run_json(trainer *t, const char *status) {
    tm_buf out = {0}, config = {0};
    tm_json_writer w;
    tm_status rc;
    TM_GO(tm_config_dump_json(t->cfg, &config, 0));
    tm_jw_init(&w, &out, 1);
    tm_jw_object(&w);
    tm_jw_key(&w, "status");
    tm_jw_str(&w, status);
    tm_jw_field_str(&w, "key", t->key);
    trainer_describe_input(t, &w);
    tm_jw_key(&w, "step");
    tm_jw_int(&w, t->step);
    tm_jw_key(&w, "version");
    tm_jw_str(&w, TIDEMILL_VERSION);
    tm_jw_key(&w, "numerics");
    tm_jw_str(&w, tm_kernels_describe());
    tm_jw_key(&w, "run_directories");
    tm_jw_array(&w);
    for (uint32_t r = 0; r < t->n_directories; r++) tm_jw_str(&w, t->directory[r]);
    tm_jw_array_end(&w);
    tm_jw_key(&w, "directories_by_rank"); /* how many of them */
    tm_jw_array(&w);
    for (uint32_t r = 0; t->comm && r < t->ranks.ranks; r++) tm_jw_uint(&w, t->directories_of[r]);
    tm_jw_array_end(&w);
    tm_jw_key(&w, "config");
    tm_jw_raw(&w, config.data, config.len);
    tm_jw_object_end(&w);
    TM_GO(tm_jw_end(&w));
    TM_GO(tm_buf_append(&out, "\n", 1));
    rc = trainer_put_run_json(t, &out);
done:
    tm_buf_free(&out);
    tm_buf_free(&config);
    return rc;
}

/* ---- data ---------------------------------------------------------------------------------------------------- */

static data_opts dataset_opts(const trainer *t, const tm_model_config *model, bool eval) {
    const tm_config *c = t->cfg;
    return (data_opts){.dataset = {.format = c->data.format,
                                   .overlong = c->data.overlong,
                                   .seq_len = c->data.seq_len,
                                   .vocab_size = model->vocab_size,
                                   .strict = c->data.strict,
                                   .shuffle = c->data.shuffle && !eval,
                                   .seed = c->data.seed},
                       .spill_dir = c->output_dir};
}

static void say_counts(const char *path, const tm_dataset_counts *n) {
    tm_log(TM_LOG_INFO, "%s: %" PRIu64 " samples, %" PRIu64 " tokens, %" PRIu64 " learned, longest %u", path,
           n->samples, n->tokens, n->label_tokens, n->longest);
    if (n->truncated + n->dropped + n->bad + n->no_labels > 0)
        tm_log(TM_LOG_WARN,
               "%s: %" PRIu64 " truncated, %" PRIu64 " dropped, %" PRIu64 " bad lines, %" PRIu64 " without labels",
               path, n->truncated, n->dropped, n->bad, n->no_labels);
}

/* Of a file, to plan: a few seconds. What is beyond is taken to be like it, and its longest row to be of seq_len. */
#define PLAN_READS (64 * TM_MIB)

static bool is_text(const char *path) {
    size_t n = strlen(path);
    return n < 12 || strcmp(path + n - 12, ".safetensors") != 0;
}

static void say_rows(trainer *t) {
    const tm_config *c = t->cfg;
    uint64_t n = t->train ? tm_dataset_get_counts(data_set(t->train))->samples : 0;
    if (!c->data.train || !t->train)
        snprintf(t->rows_basis, sizeof t->rows_basis, "rows of data.seq_len, %u tokens: %s", c->data.seq_len,
                 !c->data.train                   ? "the configuration names no data.train"
                 : !tm_path_exists(c->data.train) ? "data.train is not there"
                                                  : "the model has no tokenizer.json");
    else if (data_part(t->train) < 1)
        snprintf(t->rows_basis, sizeof t->rows_basis,
                 "lengths of the first %" PRIu64 " samples, %.2g%% of data.train; its longest row is taken to be of "
                 "seq_len, %u tokens",
                 n, 100 * data_part(t->train), c->data.seq_len);
    else
        snprintf(t->rows_basis, sizeof t->rows_basis, "lengths of all %" PRIu64 " samples of data.train", n);
}

static int64_t steps_per_epoch(const trainer *t) {
    double steps = (double)tm_dataset_steps_per_epoch(data_set(t->train)) / data_part(t->train);
    return (int64_t)(data_part(t->train) < 1 ? ceil(steps) : steps);
}

static tm_status open_data(trainer *t, const tm_model_config *model, bool lengths_only) {
    tm_config *c = t->cfg;
    data_opts o = dataset_opts(t, model, false);
    o.lengths_only = lengths_only;
    o.most_bytes = lengths_only ? PLAN_READS : 0;
    TM_TRY(data_open(&t->train, c->data.train, &t->text, c->model, &o));
    TM_TRY(tm_dataset_set_batches(data_set(t->train), c->micro_batch_size, c->accumulation_steps,
                                  t->comm ? t->ranks.ranks : 1));
    if (!t->args->quiet) say_counts(c->data.train, tm_dataset_get_counts(data_set(t->train)));
    if (c->data.eval) {
        o = dataset_opts(t, model, true);
        o.lengths_only = lengths_only;
        o.most_bytes = lengths_only ? PLAN_READS : 0;
        TM_TRY(data_open(&t->eval, c->data.eval, &t->text, c->model, &o));
        TM_TRY(tm_dataset_set_batches(data_set(t->eval), c->eval_batch_size, c->accumulation_steps,
                                      t->comm ? t->ranks.ranks : 1));
        if (!t->args->quiet) say_counts(c->data.eval, tm_dataset_get_counts(data_set(t->eval)));
    }
    return tm_config_resolve_steps(c, steps_per_epoch(t));
}

tm_status trainer_fill(void *ctx, uint32_t mb, uint32_t capacity, int32_t *ids, int32_t *labels, uint8_t *mask,
                       uint32_t *position, job_batch *out) {
    trainer *t = ctx;
    tm_batch_shape shape;
    (void)position;
    tm_dataset *ds = data_set(t->evaluating ? t->eval : t->train);
    uint64_t step = t->evaluating ? t->eval_step : (uint64_t)t->step;
    if (t->comm && mb == 0) {
        tm_step_info info;
        tm_dataset_step_info(ds, step, &info);
        t->job->step.labels = info.label_tokens;
        t->job->step.tokens = info.tokens;
    }
    TM_TRY(tm_dataset_batch(ds, step, mb, t->ranks.rank, capacity, ids, labels, mask, &shape));
    *out = (job_batch){.rows = shape.rows,
                       .seq = shape.seq,
                       .tokens = shape.tokens,
                       .mask_tokens = shape.mask_tokens,
                       .label_tokens = shape.label_tokens};
    return TM_OK;
}

static void preview(trainer *t) {
    tm_buf out = {0};
    if (!t->text.tokenizer || t->args->quiet) return;
    uint64_t sample = tm_dataset_order(data_set(t->train), 0, 0);
    if (tm_dataset_preview(data_set(t->train), sample, t->text.tokenizer, isatty(2), &out) == TM_OK)
        tm_say("first sample (what is not learned is %s):\n%s\n", isatty(2) ? "dimmed" : "between ⟦ and ⟧", out.data);
    tm_error_clear();
    tm_buf_free(&out);
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

void trainer_close(trainer *t) {
    trainer_watch *watch = t->watch;
    t->watch = NULL; /* nobody listens any more */
    tm_append_close(t->log);
    bool no_state = t->job && !t->job->keep_state;
    job_close(t->job); /* its executor may still be at a plan's last transfers, and hold a link */
    if (no_state) (void)tm_remove_empty(t->home); /* which an earlier life may have made */
    t->watch = watch;
    trainer_watch_close(t);
    tm_plan_free(t->plan);
    tm_plan_free(t->eval_plan);
    tm_plan_free(t->first_plan);
    tm_plan_free(t->drain_plan);
    data_close(t->train);
    data_close(t->eval);
    text_close(&t->text);
    tm_buf_free(&t->directories);
    tm_free(t->saves.step);
    tm_free(t->directory);
    tm_free(t->directories_of);
    tm_free(t->claim_paths);
    tm_commit_close(t->commit);
    trainer_forget_old(t);
    tm_source_close(t->source);
    tm_config_free(t->cfg);
    t->cfg = NULL;
}

/* What is named has to be there, for a plan too; a plan without data names none. */
static tm_status check_data(const tm_config *c) {
    const char *const files[] = {c->data.train, c->data.eval};
    for (size_t i = 0; i < TM_COUNT(files); i++)
        if (files[i] && !tm_path_exists(files[i]))
            return tm_fail(TM_EINPUT, "%s: there is no such file; \"data.%s\" names it", files[i],
                           i ? "eval" : "train");
    return TM_OK;
}

/* Rotary positions go on, but nothing was learned there. */
static void check_positions(const trainer *t, const tm_model_config *model) {
    if (trainer_speaks(t) && t->cfg->data.seq_len > model->max_position_embeddings)
        tm_warn_once("data.seq_len",
                     "data.seq_len %u is beyond the %u positions of the model (max_position_embeddings): what is later "
                     "in a row is at positions that it was never trained on",
                     t->cfg->data.seq_len, model->max_position_embeddings);
}

tm_status trainer_prepare(trainer *t, bool data_optional) {
    tm_model_config model;
    size_t len;
    TM_TRY(tm_kernels_init(0, (tm_elem)t->cfg->precision));
    if (!data_optional && t->cfg->memory.host_kind == TM_BUDGET_BYTES)
        TM_TRY(tm_address_need(t->cfg->memory.host_bytes, "memory.host_budget"));
    TM_TRY(tm_source_open_bare(&t->source, t->cfg->model));
    const char *json = tm_source_config(t->source, &len);
    t->model_hash = tm_hash64(json, len, 0);
    TM_TRY(tm_model_config_parse(&model, json, len, job_config_name(t->cfg->model, t->path, sizeof t->path)));
    TM_TRY(trainer_check_wrap(t, model.model_type));
    check_positions(t, &model);
    TM_TRY(tm_config_resolve_model(t->cfg, model.hidden_size));
    if (t->cfg->data.train) TM_TRY(check_data(t->cfg));
    bool there = t->cfg->data.train != NULL;
    if (there || !data_optional) TM_TRY(text_open(&t->text, t->source, trainer_host_bytes(t->cfg)));
    if (data_optional && (!there || (!t->text.tokenizer && is_text(t->cfg->data.train)))) {
        t->cfg->total_steps = t->cfg->max_steps;
        say_rows(t);
        text_close(&t->text);
        return TM_OK;
    }
    TM_TRY(open_data(t, &model, data_optional));
    say_rows(t);
    preview(t);
    text_close(&t->text); /* its memory belongs to the frames from here on */
    (void)malloc_trim(0);
    return TM_OK;
}

/* On the way out of a failure: the first error is the one that counts. */
static void discard(const char *path) {
    if (tm_remove_tree(path) != TM_OK) tm_log(TM_LOG_WARN, "%s could not be removed", path);
}

static tm_status check_supported(const trainer *t) {
    if (t->cfg->save_state && !trainer_commits(t))
        return tm_fail(TM_EINPUT, "save_state copies commits, and this job makes none; set commit_steps and "
                                  "memory.slots 2");
    if (t->cfg->memory.slots == 1)
        tm_warn_once("train.slots", "memory.slots is 1: no commits, a run that is interrupted cannot be continued");
    return TM_OK;
}

/* The log ends at the commit, run.json says that the run goes on. */
static tm_status open_outputs(trainer *t) {
    bool resumed = t->committed >= 0;
    TM_TRY(trainer_gather_directories(t));
    if (!trainer_speaks(t)) return TM_OK;
    if (!resumed) TM_TRY(trainer_start_over(t)); /* before the log of what is given up is cut */
    if (resumed) {
        tm_log(TM_LOG_INFO, "going on from step %" PRId64 ", the commit in %s", t->step,
               tm_store_path(t->job->store, 0));
        TM_TRY(trainer_cut_log(t));
    }
    TM_TRY(tm_append_open(&t->log, trainer_path(t, "log.jsonl"), !resumed));
    if (resumed) TM_TRY(trainer_log_event(t, "resume", NULL, NAN));
    TM_TRY(trainer_write_run_json(t, "running"));
    return trainer_remove_old(t);
}

static tm_status open_job(trainer *t) {
    tm_status rc = trainer_open_job(t);
    if (rc == TM_OK) rc = trainer_take_choices(t);
    if (rc == TM_OK && t->old.other) rc = trainer_commit(t); /* from here on it is this run's */
    if (t->job) t->job->keep_state = t->committed >= 0;      /* whatever happens */
    tm_commit_close(t->commit);
    t->commit = NULL;
    elastic_close(t->elastic);
    t->elastic = NULL;
    if (t->job) t->job->opts.elastic = NULL;
    return rc;
}

/* The next start reads all of the commit, and if that is damaged goes back to a full checkpoint by itself. */
static tm_status met_damage(trainer *t, tm_status rc) {
    tm_error said = *tm_error_get();
    if (earlier_mark_damaged(trainer_path(t, "run.json")) != TM_OK)
        tm_log(TM_LOG_WARN, "%s; `--resume auto` would meet the same again", tm_error_get()->text);
    else
        tm_log(TM_LOG_INFO,
               "step %" PRId64 " is committed; the same command reads all of that commit first and, if it is damaged, "
               "goes back to the newest full checkpoint or refuses",
               t->committed);
    tm_error_clear();
    tm_error_set(&said);
    return rc;
}

/* Says what is left, and leaves it. */
static tm_status ended_early(trainer *t, tm_status rc, bool started) {
    if (t->job) t->job->keep_state = t->committed >= 0;
    if (rc == TM_ESIGNAL && !started) t->committed = t->found_step; /* it is as it was */
    if (t->committed < 0) {
        if (started && trainer_speaks(t)) discard(trainer_path(t, "run.json"));
        if (rc != TM_ESIGNAL) return rc;
        tm_error_clear();
        return job_stopped(trainer_commits(t)         ? "; nothing was committed"
                           : t->cfg->memory.slots < 2 ? "; nothing was committed, since memory.slots is 1"
                                                      : "; nothing was committed, since commit_steps and "
                                                        "commit_minutes are 0");
    }
    if (rc == TM_ESIGNAL) {
        if (t->args->resumable) *t->args->resumable = true;
        return trainer_stopped(t);
    }
    char full[4096];
    if (rc == TM_ECORRUPT && !t->comm) return met_damage(t, rc);
    tm_log(TM_LOG_INFO, "step %" PRId64 " is committed, the same command goes on from it", t->committed);
    if (rc == TM_ECORRUPT && trainer_newest_full(t, full, sizeof full))
        tm_log(TM_LOG_WARN, "if what is damaged belongs to that commit, --resume %s goes back to a full checkpoint",
               full);
    return rc;
}

/* A run that did not begin keeps no copy of a state: the next try makes its own, and they would pile up. */
static void drop_copy(const trainer *t) {
    tm_commit *c;
    if (!tm_path_is_dir(t->copy)) return;
    if (tm_commit_open(&c, t->copy, NULL) != TM_OK || tm_commit_remove(c) != TM_OK)
        tm_log(TM_LOG_WARN, "%s could not be removed: %s", t->copy, tm_error_get()->text);
    (void)tm_remove_empty(t->home);
}

/* Each phase ends on all ranks or on none. */
static tm_status prepare_run(trainer *t) {
    tm_status rc = trainer_load_config(t, false);
    if (rc == TM_OK) rc = check_supported(t);
    if (rc == TM_OK) rc = trainer_check_budget(t->cfg);
    if (rc == TM_OK) rc = trainer_find_device(t, false);
    if (rc == TM_OK) rc = trainer_set_strategy(t);
    TM_TRY(trainer_agree(t, rc));
    TM_TRY(trainer_same_start(t));
    TM_TRY(trainer_agree(t, trainer_find_peers(t)));
    TM_TRY(trainer_take_output(t));
    rc = trainer_choose_start(t);
    if (t->commit) t->found_step = (int64_t)tm_commit_step(t->commit);
    if (rc == TM_OK && trainer_speaks(t) && !t->finished) rc = trainer_sweep(t);
    TM_TRY(trainer_agree(t, rc));
    TM_TRY(trainer_agree(t, trainer_prepare(t, false)));
    TM_TRY(trainer_same_input(t));
    TM_TRY(trainer_agree(t, trainer_check_commit(t)));
    if (t->done) return trainer_agree(t, trainer_end_finished(t));
    TM_TRY(trainer_agree(t, open_job(t)));
    TM_TRY(trainer_same_plans(t));
    TM_TRY(trainer_agree(t, trainer_speaks(t) ? trainer_check_room(t) : TM_OK));
    return trainer_agree(t, open_outputs(t));
}

static tm_status run_job(trainer *t) {
    TM_TRY(trainer_run_steps(t));
    TM_TRY(trainer_finish(t));
    t->job->keep_state = t->cfg->keep_state;
    if (!t->args->quiet) trainer_summary(t);
    return trainer_agree(t, TM_OK); /* nobody removes what another may still need */
}

tm_status tm_train_run(const tm_train_args *args) {
    trainer t = {.args = args, .committed = -1, .found_step = -1};
    tm_status rc;
    bool started = false;
    tm_stop_catch();
    tm_stop_polled(true);
    TM_TRY(trainer_open_ranks(&t));
    tm_phase_silence(args->quiet || !trainer_speaks(&t));
    rc = prepare_run(&t);
    started = rc == TM_OK;
    if (rc == TM_OK && !t.done) rc = run_job(&t);
    trainer_end_all(&t, rc); /* does not return where the other ranks go on */
    bool no_copy = rc != TM_OK && !started && *t.copy;
    if (no_copy) t.committed = -1;
    if (rc != TM_OK) rc = ended_early(&t, rc, started);
    if (rc != TM_OK && args->reported) *args->reported = !trainer_speaks(&t);
    tm_error said = *tm_error_get(); /* the first failure, whatever closing meets */
    trainer_close(&t);
    if (no_copy) drop_copy(&t);
    bool speaks = trainer_speaks(&t);
    trainer_close_ranks(&t);
    if (rc != TM_OK && !speaks) tm_comm_let_speak();
    if (rc != TM_OK) tm_error_clear(), tm_error_set(&said);
    if (rc != TM_OK && !started) trainer_undo_output(&t);
    tm_hold_release(t.hold); /* last: until here nobody else begins there */
    return rc;
}

/* The session: the configuration is read, the model's config.json and the data are opened. */
#include "session/session.h"

#include "io/file/file.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static tm_status slurp(void *ctx, const char *path, tm_buf *out) {
    (void)ctx;
    return tm_file_slurp(path, 16 * TM_MIB, out);
}

tm_status session_load_config(session *s, bool data_optional) {
    tm_buf text = {0};
    const char *file = s->args->config;
    tm_status rc = file ? tm_file_slurp(file, 16 * TM_MIB, &text) : tm_buf_printf(&text, "{}");
    if (rc == TM_OK)
        rc = tm_config_load(&s->cfg, text.data, text.len,
                            &(tm_config_opts){.name = file ? file : "command line",
                                              .by_options = !file,
                                              .set = s->args->set,
                                              .n_set = s->args->n_set,
                                              .read_file = slurp,
                                              .find_model = tm_hub_find,
                                              .world_size = s->comm ? s->ranks.ranks : 1,
                                              .data_optional = data_optional});
    tm_buf_free(&text);
    return rc;
}

/* Part of the budget, before there is anything else in it: files by `zstd -19` need 8 MiB. */
static uint64_t window_bytes(const tm_config *c) {
    return tm_min_u64(tm_max_u64(session_host_bytes(c) / 8, 8 * TM_MIB), 128 * TM_MIB);
}

static data_opts dataset_opts(const session *s, const tm_model_config *model, bool eval) {
    const tm_config *c = s->cfg;
    tm_chat_thinking thinking = c->data.enable_thinking ? TM_CHAT_THINKING_ON : TM_CHAT_THINKING_OFF;
    const tm_objective *objective = tm_objective_of(c->objective.type);
    bool rows = data_is_rows(eval ? &c->data.eval_items : &c->data.train_items);
    bool packing = c->data.packing && (!eval || !rows),
         wrapped = packing && c->data.packing_strategy == TM_PACKING_WRAPPED;
    bool pretrain = c->objective.type == TM_OBJECTIVE_PRETRAIN && !rows;
    bool split = pretrain || (packing && c->data.packing_strategy == TM_PACKING_BFD_SPLIT);
    return (data_opts){.dataset = {.format = c->data.format,
                                   .rows = objective->rows == 2    ? TM_ROWS_PAIRS
                                           : objective->mismatched ? TM_ROWS_LABELLED
                                                                   : TM_ROWS_PLAIN,
                                   .labels_of_prompt = objective->prompt_labels,
                                   .overlong = split ? TM_OVERLONG_SPLIT : c->data.overlong,
                                   .truncation = c->data.truncation,
                                   .concatenate = wrapped,
                                   .packing = packing && !wrapped,
                                   .labels = {.train_on_inputs = c->data.train_on_inputs || pretrain,
                                              .mask_history = c->data.mask_history,
                                              .thinking = c->data.thinking_said ? thinking : TM_CHAT_THINKING_UNSAID},
                                   .seq_len = c->data.seq_len,
                                   .vocab_size = model->vocab_size,
                                   .strict = c->data.strict,
                                   .shuffle = c->data.shuffle && !eval,
                                   .held_out = c->data.split,
                                   .is_held_out = eval && c->data.split > 0,
                                   .group_by_length = c->data.group_by_length && !eval,
                                   .seed = c->data.seed},
                       .spill_dir = c->output_dir,
                       .window_bytes = window_bytes(c),
                       .cache = eval ? "eval" : "train",
                       .owns_cache = session_is_rank0(s)};
}

static void say_counts(const char *path, const tm_dataset_counts *n) {
    tm_log(TM_LOG_INFO, "%s: %" PRIu64 " samples, %" PRIu64 " tokens, %" PRIu64 " learned, longest %u", path,
           n->samples, n->tokens, n->label_tokens, n->longest);
    if (n->identical > 0)
        tm_log(TM_LOG_WARN, "%s: %" PRIu64 " pairs whose chosen and rejected answers are the same", path, n->identical);
    if (n->truncated + n->dropped + n->bad + n->no_labels > 0)
        tm_log(TM_LOG_WARN,
               "%s: %" PRIu64 " truncated, %" PRIu64 " dropped, %" PRIu64 " bad lines, %" PRIu64 " without labels",
               path, n->truncated, n->dropped, n->bad, n->no_labels);
    if (n->split) tm_log(TM_LOG_INFO, "%s: %" PRIu64 " were longer than a row and are several", path, n->split);
}

/* Of a file, to plan: a few seconds. What is beyond is taken to be like it, and its longest row to be of seq_len. */
#define PLAN_READS (64 * TM_MIB)

static bool are_there(const tm_data_items *items, const char **absent) {
    bool all = true;
    for (uint32_t i = 0; i < items->n && all; i++) {
        *absent = items->item[i].path;
        all = !tm_path_absent(*absent);
    }
    return all;
}

static void say_rows(session *s) {
    const tm_config *c = s->cfg;
    const char *absent;
    uint64_t n = s->train ? tm_dataset_get_counts(data_set(s->train))->samples : 0;
    if (!c->data.train || !s->train)
        snprintf(s->rows_basis, sizeof s->rows_basis, "rows of data.seq_len, %u tokens: %s", c->data.seq_len,
                 !c->data.train                              ? "the configuration names no data.train"
                 : !are_there(&c->data.train_items, &absent) ? "data.train is not there"
                                                             : "the model has no tokenizer.json");
    else if (data_part(s->train) < 1)
        snprintf(s->rows_basis, sizeof s->rows_basis,
                 "lengths of the first %" PRIu64 " samples, %.2g%% of data.train; its longest row is taken to be of "
                 "seq_len, %u tokens",
                 n, 100 * data_part(s->train), c->data.seq_len);
    else
        snprintf(s->rows_basis, sizeof s->rows_basis, "lengths of all %" PRIu64 " samples of data.train", n);
}

/* Of a file that was read in part: of all of it. */
static double steps_of_all(const session *s, uint64_t steps) {
    double part = data_part(s->train);
    return part < 1 ? ceil((double)steps / part) : (double)steps;
}

tm_status session_resolve_steps(const session *s) {
    const tm_dataset *ds = data_set(s->train);
    double epoch = steps_of_all(s, tm_dataset_steps_per_epoch(ds)), run = ceil(s->cfg->num_train_epochs * epoch);
    if (s->cfg->data.packing && !s->cfg->max_steps)
        run = steps_of_all(s, tm_dataset_steps(ds, s->cfg->num_train_epochs));
    return tm_config_resolve_run_steps(s->cfg, (int64_t)epoch, run);
}

/* The training data, or those of the evaluation, divided into their batches. */
static tm_status open_set(session *s, const data_opts *o, bool eval) {
    const tm_config *c = s->cfg;
    data_file **f = eval ? &s->eval : &s->train;
    TM_TRY(data_open(f, eval ? &c->data.eval_items : &c->data.train_items, &s->text, c->model, o));
    return tm_dataset_set_batches(data_set(*f), eval ? c->eval_batch_size : c->micro_batch_size, c->accumulation_steps,
                                  s->comm ? s->ranks.ranks : 1);
}

/* Does this rank see the OUTPUT_DIR that the first one writes to? */
static bool sees_output(const session *s) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/run.json", s->cfg->output_dir);
    return n > 0 && (size_t)n < sizeof path && tm_path_exists(path);
}

/* Tokens that do not fit memory are made once: the other ranks wait for the first one, and open its file. */
static tm_status open_in_turn(session *s, const data_opts *o, bool eval) {
    if (!s->comm || s->imagined || o->lengths_only) return open_set(s, o, eval);
    bool waits = !session_is_rank0(s) && sees_output(s);
    TM_TRY(session_agree(s, waits ? TM_OK : open_set(s, o, eval)));
    return waits ? open_set(s, o, eval) : TM_OK;
}

static tm_status open_data(session *s, const tm_model_config *model, bool lengths_only) {
    const tm_config *c = s->cfg;
    for (int eval = 0; eval < (c->data.eval ? 2 : 1); eval++) {
        data_opts o = dataset_opts(s, model, eval);
        o.lengths_only = lengths_only;
        o.most_bytes = lengths_only ? PLAN_READS : 0;
        TM_TRY(open_in_turn(s, &o, eval));
        data_file *f = eval ? s->eval : s->train;
        if (!s->args->quiet)
            say_counts(eval && c->data.split > 0 ? "held out" : data_name(f), tm_dataset_get_counts(data_set(f)));
    }
    return session_resolve_steps(s);
}

static void preview(session *s) {
    tm_buf out = {0};
    if (!s->text.tokenizer || s->args->quiet) return;
    uint64_t sample = tm_dataset_order(data_set(s->train), 0, 0);
    if (tm_dataset_preview(data_set(s->train), sample, s->text.tokenizer, isatty(2), &out) == TM_OK)
        tm_say("first sample (what is not learned is %s):\n%s\n", isatty(2) ? "dimmed" : "between ⟦ and ⟧", out.data);
    tm_error_clear();
    tm_buf_free(&out);
}

uint64_t session_data_disk(const session *s) {
    return (s->train ? data_disk_bytes(s->train) : 0) + (s->eval ? data_disk_bytes(s->eval) : 0);
}

void session_keep_data(session *s, bool keep) {
    if (s->train) data_keep(s->train, keep);
    if (s->eval) data_keep(s->eval, keep);
}

static tm_status open_trial(session *s) {
    const tm_config *c = s->cfg;
    if (c->eval_tasks.file.n == 0) return TM_OK;
    if (!s->args->scorer)
        return tm_fail(TM_EUNSUPPORTED, "eval_tasks: this program has nothing that answers questions");
    TM_TRY(s->args->scorer->open(&s->trial, c, &s->scores));
    if (s->args->quiet || !session_is_rank0(s)) return TM_OK;
    char bytes[32];
    tm_log(TM_LOG_INFO,
           "eval_tasks: %u metrics at every evaluation, within %s of the budget, or more where it has more",
           s->scores.n, tm_format_size(s->scores.run_bytes, bytes, sizeof bytes));
    return TM_OK;
}

void session_close(session *s) {
    if (s->trial) s->args->scorer->close(s->trial);
    s->trial = NULL;
    data_close(s->train);
    data_close(s->eval);
    text_close(&s->text);
    tm_source_close(s->source);
    tm_adapter_folder_close(s->saved);
    tm_io_shared_close(s->base);
    s->base = NULL;
    tm_free(s->weights);
    s->weights = NULL;
    tm_config_free(s->cfg);
    s->cfg = NULL;
}

/* What is named has to be there, for a plan too; a plan without data names none. */
static tm_status check_data(const tm_config *c) {
    const tm_data_items *const all[] = {&c->data.train_items, &c->data.eval_items};
    const char *absent;
    for (size_t i = 0; i < TM_COUNT(all); i++)
        if (!are_there(all[i], &absent)) {
            bool hub = tm_hub_is_name(absent) && strchr(absent, '.') == NULL;
            return tm_fail(
                TM_EINPUT, "%s: there is no such file; \"data.%s\" names it%s%s%s", absent, i ? "eval" : "train",
                hub ? ". Data of a hub are not downloaded: hf download --repo-type dataset --local-dir data " : "",
                hub ? absent : "", hub ? ", and name its files" : "");
        }
    return TM_OK;
}

/* Rotary positions go on, but nothing was learned there. */
static tm_status check_positions(const session *s, const tm_model_config *model) {
    TM_TRY(tm_model_check_positions(model, s->cfg->data.seq_len, "data.seq_len"));
    if (session_is_rank0(s) && s->cfg->data.seq_len > model->max_position_embeddings)
        tm_warn_once("data.seq_len",
                     "data.seq_len %u is beyond the %u positions of the model (max_position_embeddings): what is later "
                     "in a row is at positions that it was never trained on",
                     s->cfg->data.seq_len, model->max_position_embeddings);
    return TM_OK;
}

/* What does not learn, and what an adapter starts from. `planning`: weights may be missing. */
static tm_status open_base(session *s, bool planning) {
    const tm_config *c = s->cfg;
    if (session_reference_column(c) && c->init_random && !c->reference)
        return tm_fail(
            TM_EINPUT,
            "objective %s with init \"random\": there is no model to be held against; give objective.reference",
            tm_objective_of(c->objective.type)->name);
    if (session_reference_column(c) && !planning)
        TM_TRY(session_hash_model(c->reference ? c->reference : c->model, &s->reference_hash));
    if (c->adapter_path && !s->saved) TM_TRY(tm_adapter_folder_open(&s->saved, c->adapter_path));
    if (c->freeze && c->quantization.type != TM_QUANTIZE_NONE)
        return tm_fail(TM_EUNSUPPORTED, "\"quantization\" is of a base that an adapter is trained on; leave it out, or "
                                        "freeze_parameters and its kin");
    if ((!c->adapter && !c->freeze) || planning) return TM_OK;
    if (c->init_random && c->quantization.type != TM_QUANTIZE_NONE) {
        s->base_hash = c->seed + 1;
        return TM_OK;
    }
    if (c->init_random)
        return tm_fail(TM_EINPUT,
                       "init \"random\": a model of which only a part learns is read where it lies, and this one lies "
                       "nowhere; make it first: tidemill convert %s DIR --init random",
                       c->model);
    return session_hash_model(c->model, &s->base_hash);
}

/* The model's config.json, and a tokenizer that is not the model's own. */
static tm_status open_model(session *s, tm_model_config *model) {
    char path[4096];
    size_t len;
    TM_TRY(tm_source_open_bare(&s->source, s->cfg->model));
    if (s->cfg->tokenizer) TM_TRY(tm_source_set_tokenizer(s->source, s->cfg->tokenizer));
    const char *json = tm_source_config(s->source, &len);
    s->model_hash = tm_hash64(json, len, 0);
    return tm_model_config_parse(model, json, len, job_config_name(s->cfg->model, path, sizeof path));
}

tm_status session_read_data(session *s, uint64_t most_bytes, tm_data_notice_fn notice, void *ctx) {
    tm_model_config model;
    TM_TRY(open_model(s, &model));
    TM_TRY(check_data(s->cfg));
    TM_TRY(text_open(&s->text, s->source, session_host_bytes(s->cfg)));
    for (int eval = 0; eval < (s->cfg->data.eval ? 2 : 1); eval++) {
        data_opts o = dataset_opts(s, &model, eval);
        o.lengths_only = true;
        o.most_bytes = most_bytes;
        o.dataset.notice = eval && s->cfg->data.split > 0 ? NULL : notice; /* of the same files once */
        o.dataset.notice_ctx = ctx;
        TM_TRY(open_set(s, &o, eval));
    }
    return TM_OK;
}

tm_status session_prepare_evaluation(session *s, uint32_t *vocabulary) {
    tm_model_config model;
    TM_TRY(tm_kernels_init(0, (tm_elem)s->cfg->precision));
    TM_TRY(open_model(s, &model));
    TM_TRY(text_open(&s->text, s->source, session_host_bytes(s->cfg)));
    data_opts o = dataset_opts(s, &model, true);
    o.spill_dir = o.cache = NULL;
    o.dataset.memory_bytes = 256 * TM_MIB;
    *vocabulary = model.vocab_size;
    return open_set(s, &o, true);
}

tm_status session_prepare(session *s, bool data_optional) {
    tm_model_config model;
    TM_TRY(tm_kernels_init(0, (tm_elem)s->cfg->precision));
    if (!data_optional && s->cfg->memory.host_kind == TM_BUDGET_BYTES)
        TM_TRY(tm_address_need(s->cfg->memory.host_bytes, "memory.host_budget"));
    TM_TRY(open_model(s, &model));
    TM_TRY(session_check_wrap(s, model.model_type));
    TM_TRY(check_positions(s, &model));
    if (model.dropout && session_is_rank0(s))
        tm_warn_once(
            "model.dropout",
            "the model's config.json asks for dropout, which is not applied here: results do not depend on chance");
    TM_TRY(tm_config_resolve_model(s->cfg, model.hidden_size));
    TM_TRY(open_base(s, data_optional));
    if (s->cfg->data.train) TM_TRY(check_data(s->cfg));
    TM_TRY(open_trial(s));
    bool there = s->cfg->data.train != NULL;
    if (there || !data_optional) TM_TRY(text_open(&s->text, s->source, session_host_bytes(s->cfg)));
    if (data_optional && (!there || (!s->text.tokenizer && !data_is_rows(&s->cfg->data.train_items)))) {
        s->cfg->total_steps = s->cfg->max_steps;
        say_rows(s);
        text_close(&s->text);
        return TM_OK;
    }
    TM_TRY(open_data(s, &model, data_optional));
    say_rows(s);
    preview(s);
    if (s->eval && !data_optional) TM_TRY(session_label_bytes(s, &s->label_bytes));
    text_close(&s->text); /* its memory belongs to the frames from here on */
    (void)malloc_trim(0);
    return TM_OK;
}

/* What is judged, by what and on what: a configuration, or that of a run, and what was said beside it. */
#include "infer/evaluate_internal.h"
#include "io/file/file.h"

#include <stdio.h>
#include <string.h>

enum { MICRO_BATCHES = 8 }; /* together, where their number is no matter: the weights are read once for all of them */

/* ---- the configuration ------------------------------------------------------------------------------------------- */

/* Where there is none. */
static tm_status plain(const char *model, tm_buf *text) {
    tm_json_writer w;
    tm_jw_init(&w, text, 0);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "model", model);
    tm_jw_field_str(&w, "precision", "fp32");
    tm_jw_field_uint(&w, "gradient_accumulation_steps", MICRO_BATCHES);
    tm_jw_key(&w, "data");
    tm_jw_object(&w);
    tm_jw_field_uint(&w, "seq_len", 2048);
    tm_jw_object_end(&w);
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}

static tm_status slurp(void *ctx, const char *path, tm_buf *out) {
    (void)ctx;
    return tm_file_slurp(path, 16 * TM_MIB, out);
}

/* Of a run: what it was told, and on how many ranks. */
static tm_status read_run(const char *path, tm_buf *text, uint32_t *ranks) {
    tm_buf all = {0};
    tm_json_doc *doc = NULL;
    tm_json_writer w;
    tm_status rc;
    TM_GO(tm_file_slurp(path, 16 * TM_MIB, &all));
    TM_GO(tm_json_parse(&doc, all.data, all.len, path, 0, 0));
    const tm_json *config = tm_json_get(tm_json_root(doc), "config"),
                  *by_rank = tm_json_get(tm_json_root(doc), "directories_by_rank");
    if (!config || config->type != TM_JSON_OBJECT)
        TM_GO(tm_fail(TM_EINPUT, "%s: says nothing of the run's configuration; give --config the file", path));
    if (by_rank && by_rank->count > 1) *ranks = (uint32_t)by_rank->count;
    tm_jw_init(&w, text, 0);
    tm_jw_node(&w, config);
    rc = tm_jw_end(&w);
done:
    tm_json_free(doc);
    tm_buf_free(&all);
    return rc;
}

static tm_status load(evaluation *e, uint32_t *ranks) {
    const tm_eval_args *a = e->args;
    char run[4096];
    tm_buf text = {0};
    tm_config_opts o = {.name = a->config,
                        .set = a->set,
                        .n_set = a->n_set,
                        .read_file = slurp,
                        .find_model = tm_hub_find,
                        .data_optional = true};
    tm_status rc;
    if (!a->config) {
        rc = plain(a->model, &text);
    } else if (tm_path_is_dir(a->config)) {
        snprintf(run, sizeof run, "%s/run.json", a->config);
        o.name = run;
        rc = read_run(run, &text, ranks);
    } else {
        rc = tm_file_slurp(a->config, 16 * TM_MIB, &text);
    }
    o.world_size = *ranks;
    if (rc == TM_OK) rc = tm_config_load(&e->loaded, text.data ? text.data : "", text.len, &o);
    tm_buf_free(&text);
    return rc;
}

/* ---- what is judged ---------------------------------------------------------------------------------------------- */

/* The model and the adapter that were named, else what the run has made, else what the configuration begins with. */
static void choose_model(evaluation *e) {
    const tm_eval_args *a = e->args;
    tm_config *c = &e->cfg;
    bool made = a->config && tm_path_is_dir(a->config), adapter = made && tm_is_adapter_folder(a->config);
    if (a->model)
        c->model = a->model;
    else if (made && !adapter)
        c->model = a->config;
    if (e->tiers.adapter || a->model) return;
    e->tiers.adapter = adapter ? a->config : c->adapter_path;
}

/* Without its adapter, or what the configuration begins with. */
static void choose_reference(evaluation *e) {
    tm_config *c = &e->cfg;
    if (!session_reference_column(c) || c->reference || c->adapter) return;
    c->reference = e->loaded->model;
    if (strcmp(c->reference, c->model) == 0)
        tm_log(
            TM_LOG_WARN,
            "objective %s: %s is held against itself; --set objective.reference=DIR names the model that it began as",
            tm_objective_of(c->objective.type)->name, c->model);
}

/* As data.eval says it: "FILE", or "FILE#100" for so many of its samples. */
static tm_status take_file(evaluation *e, const char *said, tm_data_item *out) {
    const tm_config *c = &e->cfg;
    *out = (tm_data_item){.weight = 1, .columns = c->data.columns, .sample_by = c->data.sample_by};
    size_t len = tm_config_data_path(said, &out->samples);
    if (said[len] && !out->samples) return tm_fail(TM_EINPUT, "--data %s: that is no sample at all", said);
    char *path = tm_strdup(said);
    if (!path) return tm_nomem(len + 1);
    path[len] = 0;
    out->path = e->path[e->n_paths++] = path;
    return TM_OK;
}

static tm_status take_files(evaluation *e) {
    const tm_eval_args *a = e->args;
    tm_config *c = &e->cfg;
    e->item = tm_calloc(a->n_data, sizeof *e->item);
    e->path = tm_calloc(a->n_data, sizeof *e->path);
    if (!e->item || !e->path) return tm_nomem(a->n_data * sizeof *e->item);
    for (size_t i = 0; i < a->n_data; i++) TM_TRY(take_file(e, a->data[i], &e->item[i]));
    c->data.eval = a->data[0];
    c->data.eval_items = (tm_data_items){e->item, (uint32_t)a->n_data};
    c->data.split = 0;
    return TM_OK;
}

static tm_status choose_data(evaluation *e) {
    const tm_eval_args *a = e->args;
    tm_config *c = &e->cfg;
    if (a->n_data) TM_TRY(take_files(e));
    if (a->seq_len) c->data.seq_len = a->seq_len;
    if (a->rows) c->eval_batch_size = a->rows;
    if (c->data.eval) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: names no data.eval; add --data FILE", a->config);
}

/* As in training where the loss is one of a whole step. */
static void choose_batches(evaluation *e, uint32_t ranks) {
    const tm_objective *o = tm_objective_of(e->cfg.objective.type);
    bool whole = tm_objective_shares(o, &e->cfg.objective);
    e->cfg.accumulation_steps = whole ? e->cfg.accumulation_steps * ranks : MICRO_BATCHES;
}

static void choose_tiers(evaluation *e) {
    tm_config *c = &e->cfg;
    if (!e->tiers.device && c->memory.device_given) {
        e->tiers.device = c->memory.device;
        if (!e->tiers.device_budget) e->tiers.device_budget = c->memory.device_bytes;
    }
    c->memory.device = e->tiers.device ? e->tiers.device : "cpu";
    if (!e->tiers.host_budget) {
        if (c->memory.host_kind == TM_BUDGET_BYTES) e->tiers.host_budget = c->memory.host_bytes;
        if (c->memory.host_kind == TM_BUDGET_UNLIMITED) e->tiers.host_budget = UINT64_MAX;
        return;
    }
    c->memory.host_kind = e->tiers.host_budget == UINT64_MAX ? TM_BUDGET_UNLIMITED : TM_BUDGET_BYTES;
    c->memory.host_bytes = e->tiers.host_budget;
}

static tm_status choose(evaluation *e, uint32_t ranks) {
    tm_config *c = &e->cfg;
    choose_model(e);
    if (c->quantization.type != TM_QUANTIZE_NONE && e->args->config)
        tm_log(TM_LOG_WARN, "quantization: %s is read as it lies, not in 4 bits", c->model);
    c->adapter = NULL, c->freeze = NULL, c->init_random = false;
    c->quantization.type = TM_QUANTIZE_NONE;
    if (e->args->precision_given) c->precision = e->args->precision;
    if (e->tiers.adapter) TM_TRY(tm_adapter_folder_open(&e->s.saved, e->tiers.adapter));
    if (e->s.saved) c->adapter = tm_adapter_folder_config(e->s.saved);
    choose_reference(e);
    choose_batches(e, ranks);
    choose_tiers(e);
    return e->data ? choose_data(e) : TM_OK;
}

tm_status evaluate_open(evaluation *e) {
    uint32_t ranks = 1;
    TM_TRY(load(e, &ranks));
    e->cfg = *e->loaded;
    e->tiers = e->args->tiers;
    e->s.args = &e->asked;
    e->s.cfg = &e->cfg;
    e->data = !e->no_data && (e->args->n_data || !e->args->tasks.n);
    TM_TRY(choose(e, ranks));
    if (!e->data) return TM_OK;
    return session_prepare_evaluation(&e->s, &e->vocabulary);
}

uint64_t evaluate_held_bytes(const evaluation *e) {
    return e->s.text.bytes + (e->s.eval ? tm_dataset_memory_bytes(data_set(e->s.eval)) : 0);
}

void evaluate_close(evaluation *e) {
    reference_free(&e->reference);
    e->s.cfg = e->loaded; /* with what it owns */
    session_close(&e->s);
    for (size_t i = 0; i < e->n_paths; i++) tm_free(e->path[i]);
    TM_FREE_ALL(e->item, e->path, e->file);
}

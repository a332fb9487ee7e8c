/* trainer_state.json and README.md, as HF Trainer writes them. */
#include "io/file/file.h"
#include "report/report_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char OURS[] = "<!-- written by tidemill; without this line it stays as it is -->";

/* ---- trainer_state.json ------------------------------------------------------------------------------------------- */

typedef struct history {
    const tm_history *r; /* run.json alone */
    tm_json_writer w;
    tm_buf text; /* what is not in the file yet */
    tm_out *out;
    int64_t until;
    double per_epoch; /* steps; 0: not known */
    uint64_t tokens;
} history;

static void put_epoch(history *h, int64_t step) {
    if (h->per_epoch > 0) tm_jw_field_double(&h->w, "epoch", (double)step / h->per_epoch);
}

/* "loss" of a step as it is, "loss" of an evaluation as "eval_loss". */
static void put_numbers(history *h, const tm_json *line) {
    char name[TM_SERIES_NAME], key[TM_SERIES_NAME + 8];
    bool evaluation = report_is_evaluation(line);
    tm_jw_object(&h->w);
    put_epoch(h, report_step(line));
    for (const tm_json *at = NULL; report_next_number(line, &at, name);) {
        const char *bare = evaluation ? name + strlen(REPORT_EVALUATION) : name;
        snprintf(key, sizeof key, "%s%s", evaluation ? "eval_" : "", bare);
        tm_jw_field_double(&h->w, key, at->number);
    }
    tm_jw_field_int(&h->w, "step", report_step(line));
    tm_jw_object_end(&h->w);
}

static tm_status pour(history *h) {
    TM_TRY(h->w.status);
    TM_TRY(tm_out_append(h->out, h->text.data, h->text.len));
    tm_buf_clear(&h->text);
    return TM_OK;
}

static tm_status put_history(void *ctx, const char *text, size_t n) {
    history *h = ctx;
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, text, n, "log.jsonl", 0, 0));
    const tm_json *line = tm_json_root(doc), *event = tm_json_get(line, "event"), *tokens = tm_json_get(line, "tokens");
    int64_t step = report_step(line);
    bool now = step > 0 && step <= h->until;
    if (now && (!event || report_is_evaluation(line))) put_numbers(h, line);
    if (now && !event && tokens && tokens->is_integer && tokens->integer > 0) h->tokens += (uint64_t)tokens->integer;
    tm_json_free(doc);
    return pour(h);
}

static void put_best(history *h) {
    char path[4200];
    int64_t best = (int64_t)tm_history_number(h->r, "best.step", 0);
    if (best <= 0) {
        tm_jw_field_str(&h->w, "best_metric", NULL);
        tm_jw_field_str(&h->w, "best_model_checkpoint", NULL);
        return;
    }
    snprintf(path, sizeof path, "%s/checkpoint-%lld", tm_history_text(h->r, "config.output_dir", h->r->dir),
             (long long)best);
    tm_jw_field_int(&h->w, "best_global_step", best);
    tm_jw_field_double(&h->w, "best_metric", tm_history_number(h->r, "best.loss", NAN));
    tm_jw_field_str(&h->w, "best_model_checkpoint", path);
}

static void put_whole_number(history *h, const char *key, const char *path, double absent) {
    tm_jw_field_int(&h->w, key, (int64_t)tm_history_number(h->r, path, absent));
}

static tm_status put_state(history *h) {
    char log[4200];
    uint64_t at = 0;
    tm_json_writer *w = &h->w;
    tm_jw_object(w);
    put_best(h);
    put_epoch(h, h->until);
    put_whole_number(h, "eval_steps", "config.eval_steps", 0);
    tm_jw_field_int(w, "global_step", h->until);
    tm_jw_field_bool(w, "is_hyper_param_search", false);
    tm_jw_field_bool(w, "is_local_process_zero", true);
    tm_jw_field_bool(w, "is_world_process_zero", true);
    tm_jw_field_array(w, "log_history");
    snprintf(log, sizeof log, "%s/log.jsonl", h->r->dir);
    TM_TRY(report_lines(log, &at, put_history, h));
    tm_jw_array_end(w);
    put_whole_number(h, "logging_steps", "config.logging_steps", 0);
    put_whole_number(h, "max_steps", "total_steps", (double)h->until);
    tm_jw_field_uint(w, "num_input_tokens_seen", h->tokens);
    tm_jw_field_double(w, "num_train_epochs", tm_history_number(h->r, "config.num_train_epochs", 1));
    put_whole_number(h, "save_steps", "config.save_steps", 0);
    tm_jw_field_object(w, "stateful_callbacks");
    tm_jw_object_end(w);
    tm_jw_field_int(w, "total_flos", 0); /* not counted as HF Trainer counts */
    put_whole_number(h, "train_batch_size", "config.per_device_train_batch_size", 1);
    tm_jw_field_str(w, "trial_name", NULL);
    tm_jw_field_str(w, "trial_params", NULL);
    tm_jw_object_end(w);
    TM_TRY(tm_jw_end(w));
    TM_TRY(tm_buf_append(&h->text, "\n", 1));
    return pour(h);
}

tm_status tm_trainer_state_write(const char *dir, const char *output_dir, int64_t step) {
    char path[4200];
    tm_history r = {.step = step};
    snprintf(r.dir, sizeof r.dir, "%s", output_dir);
    TM_TRY(report_read_run(&r));
    history h = {.r = &r, .until = step, .per_epoch = tm_history_number(&r, "steps_per_epoch", 0)};
    snprintf(path, sizeof path, "%s/trainer_state.json", dir);
    tm_jw_init(&h.w, &h.text, 1);
    tm_status rc = tm_out_create_small(&h.out, path, REPORT_OUT_BYTES);
    if (rc == TM_OK) rc = tm_out_end(h.out, put_state(&h));
    tm_buf_free(&h.text);
    tm_json_free(r.run);
    return rc;
}

/* ---- README.md ---------------------------------------------------------------------------------------------------- */

static bool may_write(const char *path) {
    tm_buf text = {0};
    if (tm_path_absent(path)) return true;
    bool ours = tm_file_slurp(path, 1 << 20, &text) == TM_OK && text.data && strstr(text.data, OURS);
    tm_error_clear(); /* what cannot be read is not ours */
    tm_buf_free(&text);
    return ours;
}

/* A line of YAML or Markdown is not left by what a name holds. */
static tm_status put_plain(tm_buf *b, const char *text) {
    for (const char *c = text; *c; c++) {
        char one = (unsigned char)*c < ' ' || *c == '"' || *c == '`' ? '_' : *c;
        TM_TRY(tm_buf_append(b, &one, 1));
    }
    return TM_OK;
}

static tm_status put_front(tm_buf *b, const tm_history *r) {
    bool adapter = tm_history_fact(r, "config.adapter") != NULL;
    TM_TRY(tm_buf_printf(b, "---\nlibrary_name: %s\npipeline_tag: text-generation\nbase_model: \"",
                         adapter ? "peft" : "transformers"));
    TM_TRY(put_plain(b, tm_history_text(r, "config.model", "")));
    return tm_buf_printf(b, "\"\ntags:\n- tidemill\n- %s\n%s---\n\n%s\n\n",
                         tm_history_text(r, "config.objective.type", "sft"), adapter ? "- lora\n" : "", OURS);
}

static tm_status put_row(tm_buf *b, const char *what, const tm_history *r, const char *path) {
    const tm_json *n = tm_history_fact(r, path);
    if (!n || (n->type != TM_JSON_NUMBER && n->type != TM_JSON_STRING)) return TM_OK;
    TM_TRY(tm_buf_printf(b, "| %s | ", what));
    TM_TRY(put_plain(b, n->text));
    return tm_buf_printf(b, " |\n");
}

static tm_status put_card(tm_buf *b, const tm_history *r) {
    static const char *const rows[][2] = {{"learning rate", "config.optimizer.params.lr"},
                                          {"optimizer", "config.optimizer.type"},
                                          {"schedule", "config.lr_scheduler_type"},
                                          {"samples a micro-batch", "config.per_device_train_batch_size"},
                                          {"gradient accumulation steps", "config.gradient_accumulation_steps"},
                                          {"samples a step", "config.train_batch_size"},
                                          {"sequence length", "config.data.seq_len"},
                                          {"precision", "config.precision"},
                                          {"seed", "config.seed"},
                                          {"version", "version"}};
    const tm_series *loss = tm_history_series(r, "loss"), *eval = tm_history_series(r, "eval/loss");
    TM_TRY(put_front(b, r));
    TM_TRY(tm_buf_printf(b, "# "));
    TM_TRY(put_plain(b, report_last_name(tm_history_text(r, "config.output_dir", r->dir))));
    TM_TRY(tm_buf_printf(b, "\n\nTrained from `"));
    TM_TRY(put_plain(b, tm_history_text(r, "config.model", "?")));
    TM_TRY(tm_buf_printf(b, "` on `"));
    TM_TRY(put_plain(b, tm_history_text(r, "config.data.train", "several files")));
    TM_TRY(tm_buf_printf(b, "`, %lld steps, %llu tokens.\n\n", (long long)r->step, (unsigned long long)r->sums.tokens));
    if (loss) TM_TRY(tm_buf_printf(b, "Loss of the last step: %.4f.", loss->last.value));
    if (eval) TM_TRY(tm_buf_printf(b, " Loss of the last evaluation: %.4f.", eval->last.value));
    TM_TRY(tm_buf_printf(b, "\n\n| setting | value |\n|---|---|\n"));
    for (size_t i = 0; i < TM_COUNT(rows); i++) TM_TRY(put_row(b, rows[i][0], r, rows[i][1]));
    return tm_buf_printf(b, "\nCurves and seconds: `report.html`; each step: `log.jsonl`.\n");
}

tm_status tm_model_card_write(const char *dir, const tm_history *r) {
    char path[4200];
    tm_buf text = {0};
    snprintf(path, sizeof path, "%s/README.md", dir);
    if (!may_write(path)) return TM_OK;
    tm_status rc = put_card(&text, r);
    if (rc == TM_OK) rc = tm_file_write(path, text.data, text.len);
    tm_buf_free(&text);
    return rc;
}

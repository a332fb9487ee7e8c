/* What a sample's answer is worth, and its line among the harness's samples. */
#include "task/task_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- worth ------------------------------------------------------------------------------------------------------ */

static bool is_gold(const tm_task_sample *s, uint32_t choice) {
    for (uint32_t i = 0; i < s->n_gold; i++)
        if (s->gold[i] == choice) return true;
    return false;
}

static bool best_is_gold(const tm_task_sample *s, const tm_task_answer *a, tm_metric_kind kind) {
    const double *length = kind == TM_METRIC_ACC ? NULL : kind == TM_METRIC_ACC_BYTES ? s->bytes : s->characters;
    return is_gold(s, tm_score_best(a->logprob, length, s->n_choices));
}

static double of_choices(const tm_task_sample *s, const tm_task_answer *a, tm_metric_kind kind) {
    bool right = false;
    if (kind != TM_METRIC_EXACT_MATCH && s->n_choices > 1) return best_is_gold(s, a, kind);
    for (uint32_t i = 0; i < s->n_gold; i++) right |= a->greedy[s->gold[i]];
    return right;
}

static tm_status of_text(const tm_task_sample *s, const tm_metric *m, const tm_buf *taken, double *value) {
    bool any = false;
    const char *text = taken->data ? taken->data : "";
    for (uint32_t i = 0; i < s->n_target && !any; i++) {
        const char *target = s->target[i];
        size_t n = strlen(target);
        TM_TRY(m->kind == TM_METRIC_NUMERIC ? tm_score_numeric(text, taken->len, target, n, &any)
                                            : tm_score_exact(&m->compare, text, taken->len, target, n, &any));
    }
    *value = any;
    return TM_OK;
}

/* Says which row it was. */
static tm_status placed(const tm_task *t, const tm_task_sample *s, tm_status rc) {
    if (rc == TM_OK || rc == TM_ENOMEM) return rc;
    tm_error failure = *tm_error_get();
    tm_error_clear();
    return tm_fail(rc, "%s:%llu: %.1500s", t->data, (unsigned long long)s->record, failure.text);
}

tm_status tm_task_score(const tm_task *t, const tm_task_sample *s, const tm_task_answer *a, double *value) {
    for (uint32_t i = 0; i < t->n_metrics; i++) {
        const tm_metric *m = &t->metric[i];
        tm_buf taken = {0};
        if (s->n_choices) {
            value[i] = of_choices(s, a, m->kind);
            continue;
        }
        tm_status rc = tm_score_extract(&t->extract[m->extract], a->text, a->n_text, &taken);
        if (rc == TM_OK) rc = of_text(s, m, &taken, &value[i]);
        tm_buf_free(&taken);
        TM_TRY(placed(t, s, rc));
    }
    return TM_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

static void write_target(tm_json_writer *w, const tm_task_sample *s) {
    char number[16];
    tm_jw_key(w, "target");
    if (s->n_choices && s->n_gold == 1) {
        snprintf(number, sizeof number, "%u", s->gold[0]);
        tm_jw_str(w, number);
    } else if (s->n_choices) {
        tm_jw_array(w);
        for (uint32_t i = 0; i < s->n_gold; i++) tm_jw_uint(w, s->gold[i]);
        tm_jw_array_end(w);
    } else if (s->n_target == 1) {
        tm_jw_str(w, s->target[0]);
    } else {
        tm_jw_array(w);
        for (uint32_t i = 0; i < s->n_target; i++) tm_jw_str(w, s->target[i]);
        tm_jw_array_end(w);
    }
}

static void write_generation(tm_json_writer *w, const tm_task_drawing *d) {
    tm_jw_object(w);
    tm_jw_field_array(w, "until");
    for (uint32_t i = 0; i < d->n_stop; i++) tm_jw_str(w, d->stop[i]);
    tm_jw_array_end(w);
    tm_jw_field_bool(w, "do_sample", d->temperature > 0);
    tm_jw_field_double(w, "temperature", d->temperature);
    tm_jw_field_uint(w, "max_gen_toks", d->max_new_tokens);
    tm_jw_object_end(w);
}

static void write_arguments(tm_json_writer *w, const tm_task *t, const tm_task_sample *s) {
    char name[32];
    tm_jw_field_object(w, "arguments");
    for (uint32_t i = 0; i < (s->n_choices ? s->n_choices : 1); i++) {
        snprintf(name, sizeof name, "gen_args_%u", i);
        tm_jw_field_object(w, name);
        tm_jw_field_str(w, "arg_0", s->n_choices ? s->choice[i].context : s->prompt);
        tm_jw_key(w, "arg_1");
        if (s->n_choices)
            tm_jw_str(w, s->choice[i].text);
        else
            write_generation(w, &t->drawing);
        tm_jw_object_end(w);
    }
    tm_jw_object_end(w);
}

/* [log-likelihood, whether greedy gives it], as the harness has them: texts. */
static void write_likelihood(tm_json_writer *w, const tm_task_answer *a, uint32_t choice) {
    char number[32];
    tm_jw_array(w);
    tm_jw_str(w, tm_format_double(a->logprob[choice], number, sizeof number));
    tm_jw_str(w, a->greedy[choice] ? "True" : "False");
    tm_jw_array_end(w);
}

static tm_status write_answers(tm_json_writer *w, const tm_task *t, const tm_task_sample *s, const tm_task_answer *a,
                               uint32_t extract) {
    tm_buf taken = {0};
    tm_jw_field_array(w, "resps");
    for (uint32_t i = 0; i < (s->n_choices ? s->n_choices : 1); i++) {
        tm_jw_array(w);
        if (s->n_choices)
            write_likelihood(w, a, i);
        else
            tm_jw_strn(w, a->text, a->n_text);
        tm_jw_array_end(w);
    }
    tm_jw_array_end(w);
    tm_jw_field_array(w, "filtered_resps");
    for (uint32_t i = 0; i < s->n_choices; i++) write_likelihood(w, a, i);
    tm_status rc = s->n_choices ? TM_OK : tm_score_extract(&t->extract[extract], a->text, a->n_text, &taken);
    if (!s->n_choices) tm_jw_strn(w, taken.data ? taken.data : "", taken.len);
    tm_jw_array_end(w);
    tm_buf_free(&taken);
    return rc;
}

static void write_values(tm_json_writer *w, const tm_task *t, const char *filter, uint32_t extract,
                         const double *value) {
    tm_jw_field_str(w, "filter", filter);
    tm_jw_field_array(w, "metrics");
    for (uint32_t i = 0; i < t->n_metrics; i++)
        if (t->metric[i].extract == extract) tm_jw_str(w, t->metric[i].name);
    tm_jw_array_end(w);
    for (uint32_t i = 0; i < t->n_metrics; i++)
        if (t->metric[i].extract == extract) tm_jw_field_double(w, t->metric[i].name, value[i]);
}

tm_status tm_task_write(const tm_task *t, const tm_task_sample *s, const tm_task_answer *a, const double *value,
                        tm_buf *out) {
    uint32_t lines = s->n_choices ? 1 : t->n_extracts;
    for (uint32_t e = 0; e < lines; e++) {
        tm_json_writer w;
        tm_jw_init(&w, out, 0);
        tm_jw_object(&w);
        tm_jw_field_uint(&w, "doc_id", s->id);
        tm_jw_key(&w, "doc");
        tm_jw_raw(&w, s->doc, strlen(s->doc));
        write_target(&w, s);
        write_arguments(&w, t, s);
        tm_status rc = write_answers(&w, t, s, a, e);
        write_values(&w, t, s->n_choices ? "none" : t->extract_name[e], e, value);
        tm_jw_field_str(&w, "task", t->name);
        tm_jw_object_end(&w);
        TM_TRY(placed(t, s, tm_first(rc, tm_jw_end(&w))));
        TM_TRY(tm_buf_append(out, "\n", 1));
    }
    return TM_OK;
}

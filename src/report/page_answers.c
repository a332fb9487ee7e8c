/* report.html: what held-out prompts were answered, before and after training. */
#include "io/file/file.h"
#include "report/report_internal.h"

#include <stdio.h>
#include <string.h>

enum { MOST_OF_ANSWERS = 4 << 20 };

static tm_status put_text(tm_buf *b, const char *name, const tm_json *question, const char *key) {
    const tm_json *text = tm_json_get(question, key);
    if (!text || text->type != TM_JSON_STRING) return TM_OK;
    TM_TRY(tm_buf_printf(b, "<dt>%s</dt>", name));
    return report_put_between(b, "<dd>", text->text, "</dd>\n");
}

static tm_status put_question(tm_buf *b, const tm_json *q) {
    if (!tm_json_get(q, "after")) return TM_OK; /* it was not answered */
    TM_TRY(tm_buf_printf(b, "<dl class=\"answer\">\n"));
    TM_TRY(put_text(b, "prompt", q, "prompt"));
    TM_TRY(put_text(b, "wanted", q, "wanted"));
    TM_TRY(put_text(b, "before", q, "before"));
    TM_TRY(put_text(b, "after", q, "after"));
    return tm_buf_printf(b, "</dl>\n");
}

static tm_status put_all(tm_buf *b, const tm_json *answers) {
    const tm_json *why = tm_json_get(answers, "left_out"), *all = tm_json_get(answers, "questions"),
                  *tokens = tm_json_get(answers, "tokens");
    bool told = why && why->type == TM_JSON_STRING;
    if (!told && (!all || !all->child || !tm_json_get(all->child, "after"))) return TM_OK;
    TM_TRY(tm_buf_printf(b, "<h2>Held-out prompts, before and after</h2>\n"));
    if (told) return report_put_between(b, "<p class=\"soft\">", why->text, "</p>\n");
    if (tokens && tokens->is_integer)
        TM_TRY(
            tm_buf_printf(b,
                          "<p class=\"soft\">Samples that were not trained on. Each answer is the likeliest token at "
                          "every place, %lld of them at most.</p>\n",
                          (long long)tokens->integer));
    for (const tm_json *q = all->child; q; q = q->next) TM_TRY(put_question(b, q));
    return TM_OK;
}

tm_status report_put_answers(tm_buf *b, const tm_history *r) {
    char path[4200];
    tm_json_doc *doc;
    snprintf(path, sizeof path, "%s/" TM_REPORT_ANSWERS, r->dir);
    bool over = strcmp(tm_history_text(r, "status", ""), "finished") == 0; /* else they are another run's */
    if (!over || !tm_path_exists(path)) return TM_OK;
    TM_TRY(tm_json_load(&doc, path, MOST_OF_ANSWERS, 0));
    tm_status rc = put_all(b, tm_json_root(doc));
    tm_json_free(doc);
    return rc;
}

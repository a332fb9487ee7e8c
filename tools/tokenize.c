/* tidemill tokenize: {"text"} lines to {"ids"} lines, and back. */
#include "tools/text_model.h"
#include "tools/tools.h"

#include <stdio.h>

typedef struct job {
    text_model model;
    bool special, skip_special;
} job;

static tm_status encode(void *ctx, const tm_json *request, tm_json_writer *w) {
    const job *j = ctx;
    const tm_json *text = tm_json_get(request, "text");
    tm_ids ids = {0};
    if (text == NULL || text->type != TM_JSON_STRING) return tm_fail(TM_EINPUT, "expected {\"text\": \"...\"}");
    tm_status rc = tm_tokenizer_encode(j->model.tokenizer, text->text, text->len, j->special, &ids);
    if (rc == TM_OK) text_put_ids(w, &ids);
    tm_ids_free(&ids);
    return rc;
}

static tm_status read_ids(const job *j, const tm_json *list, tm_ids *out) {
    uint32_t size = tm_tokenizer_vocab_size(j->model.tokenizer);
    if (list == NULL || list->type != TM_JSON_ARRAY) return tm_fail(TM_EINPUT, "expected {\"ids\": [...]}");
    size_t i = 0;
    for (const tm_json *id = list->child; id != NULL; id = id->next, i++) {
        if (id->type != TM_JSON_NUMBER || !id->is_integer || id->integer < 0 || id->integer >= size)
            return tm_fail(TM_EINPUT, "ids[%zu] is no integer in 0..%u", i, size - 1);
        TM_TRY(tm_ids_push(out, (int32_t)id->integer));
    }
    return TM_OK;
}

static tm_status decode(void *ctx, const tm_json *request, tm_json_writer *w) {
    const job *j = ctx;
    tm_ids ids = {0};
    tm_buf text = {0};
    tm_status rc = read_ids(j, tm_json_get(request, "ids"), &ids);
    if (rc == TM_OK) rc = tm_tokenizer_decode(j->model.tokenizer, ids.id, ids.n, j->skip_special, &text);
    if (rc == TM_OK) {
        tm_jw_field_strn(w, "text", text.data == NULL ? "" : text.data, text.len);
    }
    tm_ids_free(&ids);
    tm_buf_free(&text);
    return rc;
}

int tm_cmd_tokenize(int argc, char **argv) {
    const char *model = NULL;
    bool back = false;
    job j = {0};
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &model, "DIR", "folder with tokenizer.json, or .gguf file"),
        TM_FLAG("special", &j.special, "add what the tokenizer's template adds, such as BOS"),
        TM_FLAG("decode", &back, "from {\"ids\": [...]} to {\"text\": \"...\"}"),
        TM_FLAG("skip-special", &j.skip_special, "with --decode: leave special tokens out"),
    };
    const tm_cli cli = {
        .usage = "tokenize --model DIR [--special] [--decode [--skip-special]]",
        .about = "Reads one JSON object a line from stdin, {\"text\": \"...\"}, and prints {\"ids\": [...]}.",
        .example = "echo '{\"text\": \"The tide\"}' | tidemill tokenize --model smollm2",
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (j.skip_special && !back) return tm_cli_wrong("tokenize", "--skip-special needs --decode");
    if (j.special && back) return tm_cli_wrong("tokenize", "--special does not go with --decode");
    tm_status status = text_model_open(&j.model, tm_cmd_model(model), false);
    if (status == TM_OK) status = text_lines(back ? decode : encode, &j);
    text_model_close(&j.model);
    return status == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

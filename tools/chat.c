/* tidemill chat: conversations to text, ids and loss mask. */
#include "tools/text_model.h"
#include "tools/tools.h"

#include <unistd.h>

typedef struct job {
    text_model model;
    tm_chat_labels labels;
    bool color;
} job;

static tm_status answer(void *ctx, const tm_json *request, tm_json_writer *w) {
    const job *j = ctx;
    tm_buf text = {0}, mask = {0};
    tm_ids ids = {0};
    tm_status rc = tm_chat_encode_labels(j->model.chat, request, &j->labels, &text, &ids, &mask);
    if (rc == TM_OK) {
        tm_jw_key(w, "text");
        tm_jw_strn(w, text.data == NULL ? "" : text.data, text.len);
        text_put_ids(w, &ids);
        tm_jw_key(w, "loss_mask");
        tm_jw_array(w);
        for (size_t i = 0; i < mask.len; i++) tm_jw_int(w, mask.data[i]);
        tm_jw_array_end(w);
    }
    tm_buf_free(&text);
    tm_buf_free(&mask);
    tm_ids_free(&ids);
    return rc;
}

static tm_status show(void *ctx, const tm_json *request, tm_buf *out) {
    const job *j = ctx;
    tm_buf mask = {0};
    tm_ids ids = {0};
    tm_status rc = tm_chat_encode_labels(j->model.chat, request, &j->labels, NULL, &ids, &mask);
    if (rc == TM_OK) rc = tm_chat_show(j->model.tokenizer, ids.id, mask.data, ids.n, j->color, out);
    tm_buf_free(&mask);
    tm_ids_free(&ids);
    return rc;
}

int tm_cmd_chat(int argc, char **argv) {
    const char *model = NULL;
    bool shown = false;
    job j = {.color = isatty(STDOUT_FILENO) == 1};
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &model, "DIR",
                    "folder with tokenizer.json and chat template, or .gguf file"),
        TM_FLAG("generation-prompt", &j.labels.generation_prompt, "end with the opening of an assistant's turn"),
        TM_FLAG("train-on-inputs", &j.labels.train_on_inputs, "the mask as data.train_on_inputs makes it"),
        TM_FLAG("mask-history", &j.labels.mask_history, "the mask as data.mask_history makes it"),
        TM_FLAG("show", &shown, "print text, what is not learned dimmed, or between brackets without a terminal"),
    };
    const tm_cli cli = {
        .usage = "chat --model DIR [--generation-prompt] [--train-on-inputs | --mask-history] [--show]",
        .about =
            "Reads one conversation a line from stdin, {\"messages\": [...]} and what a row of data may have beside it "
            "(\"tools\", \"chat_template_kwargs\", ...), and prints {\"text\", \"ids\", \"loss_mask\"}; the mask is 1 "
            "on "
            "assistant text and its end-of-turn token.",
        .example = "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | tidemill chat --model smollm2",
        .opts = opts,
        .n_opts = TM_COUNT(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (j.labels.train_on_inputs && j.labels.mask_history)
        return tm_cli_wrong("chat",
                            "--mask-history learns the last answer alone, --train-on-inputs everything; give one");
    tm_status status = text_model_open(&j.model, tm_cmd_model(model), true);
    if (status == TM_OK) status = shown ? text_lines_shown(show, &j) : text_lines(answer, &j);
    text_model_close(&j.model);
    return status == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

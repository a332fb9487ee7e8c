/* tidemill chat: conversations to text, ids and loss mask. */
#include "tools/text_model.h"
#include "tools/tools.h"

typedef struct job {
    text_model model;
    bool generation_prompt;
} job;

static tm_status answer(void *ctx, const tm_json *request, tm_json_writer *w) {
    const job *j = ctx;
    tm_buf text = {0}, mask = {0};
    tm_ids ids = {0};
    tm_status rc = tm_chat_encode(j->model.chat, request, j->generation_prompt, &text, &ids, &mask);
    if (rc == TM_OK) {
        tm_jw_field_strn(w, "text", text.data == NULL ? "" : text.data, text.len);
        text_put_ids(w, &ids);
        tm_jw_field_array(w, "loss_mask");
        for (size_t i = 0; i < mask.len; i++) tm_jw_int(w, mask.data[i]);
        tm_jw_array_end(w);
    }
    tm_buf_free(&text);
    tm_buf_free(&mask);
    tm_ids_free(&ids);
    return rc;
}

int tm_cmd_chat(int argc, char **argv) {
    const char *model = NULL;
    job j = {0};
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &model, "DIR",
                    "folder with tokenizer.json and chat template, or .gguf file"),
        TM_FLAG("generation-prompt", &j.generation_prompt, "end with the opening of an assistant's turn"),
    };
    const tm_cli cli = {
        .usage = "chat --model DIR [--generation-prompt]",
        .about = "Reads one conversation a line from stdin, {\"messages\": [...]}, and prints {\"text\", \"ids\", "
                 "\"loss_mask\"}; the mask is 1 on assistant text and its end-of-turn token.",
        .example = "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | tidemill chat --model smollm2",
        TM_CLI_OPTIONS(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    tm_status status = text_model_open(&j.model, model, true);
    if (status == TM_OK) status = text_lines(answer, &j);
    text_model_close(&j.model);
    return status == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

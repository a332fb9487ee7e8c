/* tidemill chat: on a terminal a conversation; else conversations to text, ids and loss mask. */
#include "tools/chat_talk.h"
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

/* ---- the command ------------------------------------------------------------------------------------------------ */

typedef struct asked {
    job j; /* of lines */
    bool shown;
    chat_talk_opts talk;
    const char *precision;
    int64_t max_new, positions, seed, top_k;
} asked;

static int print_lines(asked *a) {
    if (a->j.labels.train_on_inputs && a->j.labels.mask_history)
        return tm_cli_wrong("chat",
                            "--mask-history learns the last answer alone, --train-on-inputs everything; give one");
    tm_status rc = text_model_open(&a->j.model, a->talk.engine.model, true);
    if (rc == TM_OK) rc = a->shown ? text_lines_shown(show, &a->j) : text_lines(answer, &a->j);
    text_model_close(&a->j.model);
    return rc == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}

static int talk(asked *a) {
    if (a->max_new < 1 || a->max_new > 1 << 20 || a->positions < 0 || a->positions > 1 << 24 || a->top_k < 0 ||
        a->top_k > INT32_MAX || a->talk.sampling.temperature < 0)
        return tm_cli_wrong("chat", "a number is out of range");
    a->talk.max_new_tokens = (uint32_t)a->max_new;
    a->talk.engine.positions = (uint32_t)a->positions;
    a->talk.sampling.top_k = (uint32_t)a->top_k;
    a->talk.sampling.seed = (uint64_t)a->seed;
    a->talk.engine.precision_given = a->precision != NULL;
    int rc = a->precision ? tm_precision_option("chat", a->precision, &a->talk.engine.precision) : -1;
    return rc >= 0 ? rc : chat_talk(&a->talk);
}

int tm_cmd_chat(int argc, char **argv) {
    asked a = {.j.color = isatty(STDOUT_FILENO) == 1, .max_new = 1024};
    tm_sampling *s = &a.talk.sampling;
    tm_tier_args *tiers = &a.talk.engine.tiers;
    const tm_opt opts[] = {
        TM_REQUIRED("model", TM_OPT_STRING, &a.talk.engine.model, "DIR",
                    "folder with tokenizer.json and chat template, or .gguf file"),
        TM_OPTION("adapter", TM_OPT_STRING, &tiers->adapter, "DIR", "talk: adapter to run it with"),
        TM_OPTION("system", TM_OPT_STRING, &a.talk.system, "TEXT", "talk: what the conversation begins with"),
        TM_OPTION("max-new-tokens", TM_OPT_INT, &a.max_new, "N", "talk: longest answer (1024)"),
        TM_OPTION("context", TM_OPT_INT, &a.positions, "N",
                  "talk: tokens of a conversation (the model's, at most 4096)"),
        TM_OPTION("temperature", TM_OPT_DOUBLE, &s->temperature, "T", "talk: 0 (default) is greedy"),
        TM_OPTION("top-k", TM_OPT_INT, &a.top_k, "K", "talk: as of generate"),
        TM_OPTION("top-p", TM_OPT_DOUBLE, &s->top_p, "P", "talk: as of generate"),
        TM_OPTION("min-p", TM_OPT_DOUBLE, &s->min_p, "P", "talk: as of generate"),
        TM_OPTION("repetition-penalty", TM_OPT_DOUBLE, &s->repetition_penalty, "X", "talk: as of generate"),
        TM_OPTION("seed", TM_OPT_INT, &a.seed, "S", "talk: of the draws"),
        TM_OPTION("precision", TM_OPT_STRING, &a.precision, "fp32|bf16", "talk: arithmetic (the model's own type)"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &tiers->host_budget, "SIZE", "talk: hard limit of host memory"),
        TM_OPTION("offload-path", TM_OPT_STRING, &tiers->offload_path, "PATH",
                  "talk: where goes what does not fit: weights, the cache"),
        TM_FLAG("generation-prompt", &a.j.labels.generation_prompt, "end with the opening of an assistant's turn"),
        TM_FLAG("train-on-inputs", &a.j.labels.train_on_inputs, "the mask as data.train_on_inputs makes it"),
        TM_FLAG("mask-history", &a.j.labels.mask_history, "the mask as data.mask_history makes it"),
        TM_FLAG("show", &a.shown, "print text, what is not learned dimmed, or between brackets without a terminal"),
    };
    const tm_cli cli = {
        .usage = "chat --model DIR [--generation-prompt] [--train-on-inputs | --mask-history] [--show]",
        .about =
            "On a terminal a conversation with the model: /help lists what else there is than talking. From a pipe it "
            "reads one conversation a line, {\"messages\": [...]} and what a row of data may have beside it "
            "(\"tools\", \"chat_template_kwargs\", ...), and prints {\"text\", \"ids\", \"loss_mask\"}; the mask "
            "is 1 on assistant text and its end-of-turn token.",
        .example = "tidemill chat --model smollm2 --temperature 0.7\n"
                   "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | tidemill chat --model smollm2",
        .opts = opts,
        .n_opts = TM_COUNT(opts)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (tm_cmd_models(&a.talk.engine.model, &tiers->adapter) != TM_OK) return tm_cmd_fail();
    return isatty(STDIN_FILENO) == 1 && !a.shown ? talk(&a) : print_lines(&a);
}

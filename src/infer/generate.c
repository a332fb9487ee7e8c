/* Prompts continued: the command. */
#include "infer/engine.h"
#include "io/file/file.h"
#include "session/text.h"

#include <string.h>

/* ---- prompts ---------------------------------------------------------------------------------------------------- */

static tm_status encode_messages(const char *path, const text_tools *text, tm_ids *ids) {
    tm_buf rendered = {0}, mask = {0};
    tm_json_doc *doc = NULL;
    tm_status rc;
    TM_GO(tm_json_load(&doc, path, 64 * TM_MIB, 0));
    const tm_json *messages = tm_json_get(tm_json_root(doc), "messages");
    if (!messages || messages->type != TM_JSON_ARRAY)
        TM_GO(tm_fail(TM_EINPUT, "%s: one object {\"messages\": [...]} is needed", path));
    if (!text->chat) TM_GO(tm_fail(TM_EINPUT, "the model has no chat template; use --prompt"));
    TM_GO(tm_chat_encode(text->chat, tm_json_root(doc), true, &rendered, ids, &mask));
done:
    tm_json_free(doc);
    tm_buf_free(&rendered);
    tm_buf_free(&mask);
    return rc;
}

static tm_status encode(const tm_generate_args *args, const text_tools *text, uint32_t i, tm_generated *out) {
    tm_ids ids = {0};
    tm_status rc;
    if (!text->tokenizer)
        return tm_fail(TM_EINPUT, "%s: there is no tokenizer.json, which generation needs", args->model);
    rc = args->messages ? encode_messages(args->messages, text, &ids)
                        : tm_tokenizer_encode(text->tokenizer, args->prompt[i], strlen(args->prompt[i]), true, &ids);
    out->prompt_ids = ids.id;
    out->n_prompt = ids.n;
    if (rc == TM_OK && ids.n == 0) return tm_fail(TM_EINPUT, "the prompt is empty; give at least one token");
    return rc;
}

static tm_status copy_prompt(const tm_generated *from, tm_generated *to) {
    to->prompt_ids = tm_malloc(from->n_prompt * sizeof *to->prompt_ids);
    if (!to->prompt_ids) return tm_nomem(from->n_prompt * sizeof *to->prompt_ids);
    memcpy(to->prompt_ids, from->prompt_ids, from->n_prompt * sizeof *to->prompt_ids);
    to->n_prompt = from->n_prompt;
    return TM_OK;
}

/* All there is: one more for each answer of a prompt. */
static tm_status read_prompts(const tm_generate_args *args, text_tools *text, uint32_t answers, tm_generated *g,
                              uint32_t n) {
    tm_source *source = NULL;
    tm_status rc;
    TM_GO(tm_source_open_bare(&source, args->model));
    TM_GO(text_open(text, source, args->tiers.host_budget));
    for (uint32_t i = 0; i < n; i++) {
        g[i] = (tm_generated){.prompt = i / answers, .answer = i % answers, .finish_reason = "length"};
        TM_GO(g[i].answer ? copy_prompt(&g[i - g[i].answer], &g[i]) : encode(args, text, g[i].prompt, &g[i]));
        g[i].ids = tm_malloc(((size_t)args->max_new_tokens + 1) * sizeof *g[i].ids);
        if (!g[i].ids) TM_GO(tm_nomem(args->max_new_tokens * sizeof *g[i].ids));
    }
done:
    tm_source_close(source);
    return rc;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* What the answers of a prompt are collected by. */
typedef struct collected {
    const tm_generate_args *args;
    tm_generated *g; /* of the first */
    tm_status rc;
} collected;

static void collect(void *ctx, const tm_token_event *t) {
    collected *c = ctx;
    tm_generated *g = c->g + t->answer;
    if (t->id >= 0) g->ids[g->n_ids++] = t->id;
    if (c->rc == TM_OK) c->rc = tm_buf_append(&g->text, t->text, t->n_text);
    if (t->finish != TM_GOES_ON) g->finish_reason = t->finish == TM_FINISH_STOP ? "stop" : "length";
    if (c->args->show && g->prompt == 0 && g->answer == 0) c->args->show(c->args->show_ctx, t->text, t->n_text);
}

static tm_status ask(tm_engine *e, collected *c, uint32_t answers) {
    const tm_generate_args *args = c->args;
    uint64_t number;
    tm_request r = {.prompt = c->g->prompt_ids,
                    .n_prompt = c->g->n_prompt,
                    .max_new_tokens = args->max_new_tokens,
                    .answers = answers,
                    .stop = args->stop,
                    .n_stop = args->n_stop,
                    .take = collect,
                    .ctx = c};
    if (args->sampling) r.sampling = *args->sampling;
    return tm_engine_add(e, &r, &number);
}

static tm_status answer_all(tm_engine *e, collected *c, uint32_t prompts, uint32_t answers) {
    bool busy = true;
    for (uint32_t i = 0; i < prompts; i++) TM_TRY(ask(e, &c[i], answers));
    while (busy) TM_TRY(tm_engine_step(e, &busy));
    for (uint32_t i = 0; i < prompts; i++)
        if (c[i].rc != TM_OK) return c[i].rc;
    return TM_OK;
}

/* The cache is as large as the prompts ask for. */
static tm_engine_opts engine_opts(const tm_generate_args *args, text_tools *text, const tm_generated *g, uint32_t n) {
    enum { TOGETHER = 32, CHUNK = 512 };
    size_t longest = 0;
    uint64_t bytes = 0; /* here, and of requests: all are put at once */
    for (uint32_t i = 0; i < n; i++) {
        longest = tm_max_u64(longest, g[i].n_prompt);
        bytes += 2 * tm_engine_request_bytes(g[i].n_prompt + args->max_new_tokens, 1);
    }
    return (tm_engine_opts){.model = args->model,
                            .precision = args->precision,
                            .precision_given = args->precision_given,
                            .sequences = (uint32_t)tm_min_u64(n, TOGETHER),
                            .positions = (uint32_t)(longest + args->max_new_tokens),
                            .chunk = (uint32_t)tm_min_u64(longest * n, CHUNK),
                            .text = text,
                            .other_bytes = bytes,
                            .tiers = args->tiers};
}

static tm_status generate(const tm_generate_args *args, text_tools *text, tm_generated *g, uint32_t prompts,
                          uint32_t answers) {
    tm_engine_opts o = engine_opts(args, text, g, prompts * answers);
    tm_engine *e = NULL;
    collected *c = tm_calloc(prompts, sizeof *c);
    tm_status rc = c ? TM_OK : tm_nomem(prompts * sizeof *c);
    for (uint32_t i = 0; c && i < prompts; i++) c[i] = (collected){.args = args, .g = g + (size_t)i * answers};
    if (rc == TM_OK) rc = tm_engine_open(&e, &o);
    if (rc == TM_OK) rc = answer_all(e, c, prompts, answers);
    tm_engine_close(e);
    tm_free(c);
    return rc;
}

tm_status tm_generate_run(const tm_generate_args *args, tm_generated **out, uint32_t *n) {
    uint32_t prompts = args->messages ? 1 : args->n_prompts, answers = args->answers ? args->answers : 1;
    text_tools text = {0};
    tm_generated *g = tm_calloc((size_t)prompts * answers, sizeof *g);
    *out = NULL;
    *n = prompts * answers;
    if (!g) return tm_nomem(*n * sizeof *g);
    tm_status rc = read_prompts(args, &text, answers, g, *n);
    if (rc == TM_OK && args->max_new_tokens > 0) rc = generate(args, &text, g, prompts, answers);
    text_close(&text);
    if (rc != TM_OK)
        tm_generated_free(g, *n);
    else
        *out = g;
    return rc;
}

void tm_generated_free(tm_generated *g, uint32_t n) {
    for (uint32_t i = 0; g && i < n; i++) {
        tm_free(g[i].prompt_ids);
        tm_free(g[i].ids);
        tm_buf_free(&g[i].text);
    }
    tm_free(g);
}

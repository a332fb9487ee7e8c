/* Generation: a prefill pass over the prompts, then one-token passes over a key-value cache that stays resident.
 * Several prompts run side by side; a row's result does not depend on the others. */
#include "data/dataset.h"
#include "infer/forward_internal.h"
#include "infer/generate_internal.h"
#include "io/file/file.h"
#include "planner/start.h"
#include "infer/infer.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct sampler {
    const gen_opts *o;
    tm_job *job;
    gen_row *row;
    uint32_t n, vocab;
    float *logits; /* [n][vocab] */
    uint32_t *position, *last;
    bool prefill;
    uint32_t longest;
    uint32_t step;
    tm_plan *decode; /* one token a row */
} sampler;

static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    sampler *s = ctx;
    (void)batch;
    (void)mb;
    uint32_t seq = s->prefill ? s->longest : 1;
    memset(to->ids, 0, to->capacity * sizeof *to->ids);
    memset(to->mask, 0, to->capacity);
    for (uint32_t i = 0; i < to->capacity; i++) to->labels[i] = TM_LABEL_IGNORE;
    for (uint32_t r = 0; r < s->n; r++) {
        const gen_row *row = &s->row[r];
        to->position[r] = s->prefill ? 0 : s->position[r];
        for (uint32_t i = 0; i < seq; i++) {
            bool real = s->prefill ? i < row->n_prompt : true;
            to->ids[r * seq + i] = !real        ? 0
                                   : s->prefill ? row->prompt[i]
                                   : row->n_out ? row->out[row->n_out - 1]
                                                : row->prompt[0];
            to->mask[r * seq + i] = real;
        }
        s->last[r] = s->prefill ? (uint32_t)row->n_prompt - 1 : 0;
    }
    *out = (job_batch){.rows = s->n, .seq = seq, .tokens = to->capacity};
    return TM_OK;
}

static tm_status take_logits(void *ctx, uint32_t mb, uint32_t first_row, uint32_t rows, uint64_t first_column,
                             uint64_t columns, const float *logits, uint64_t ld) {
    sampler *s = ctx;
    (void)mb;
    for (uint32_t i = 0; i < rows; i++)
        memcpy(s->logits + (size_t)(first_row + i) * s->vocab + first_column, logits + i * ld,
               columns * sizeof *logits);
    return TM_OK;
}

static bool is_eos(const sampler *s, int32_t id) {
    for (uint32_t i = 0; i < s->o->n_eos; i++)
        if (s->o->eos[i] == id) return true;
    return false;
}

/* Greedy at temperature 0 (the lowest id wins a tie); else one draw from softmax(logits / temperature), keyed by (seed,
 * row, step). */
static int32_t choose(const sampler *s, uint32_t row) {
    const float *l = s->logits + (size_t)row * s->vocab;
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->vocab; i++)
        if (l[i] > l[best]) best = i;
    if (s->o->temperature <= 0) return (int32_t)best;
    double sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++) sum += exp(((double)l[i] - (double)l[best]) / s->o->temperature);
    uint32_t r[4];
    tm_philox(s->o->seed, row, s->step, r);
    double u = ((double)r[0] * 4294967296.0 + (double)r[1]) / 18446744073709551616.0 * sum;
    for (uint32_t i = 0; i < s->vocab; i++) {
        u -= exp(((double)l[i] - (double)l[best]) / s->o->temperature);
        if (u < 0) return (int32_t)i;
    }
    return (int32_t)best;
}

/* Takes one token a row. Returns how many rows go on. */
static uint32_t advance(sampler *s) {
    uint32_t running = 0;
    for (uint32_t r = 0; r < s->n; r++) {
        gen_row *row = &s->row[r];
        s->position[r] = (uint32_t)(row->n_prompt + row->n_out);
        if (row->done) {
            s->position[r] = (uint32_t)(row->n_prompt + row->n_out - 1); /* writes its last cache entry again */
            continue;
        }
        int32_t id = choose(s, r);
        row->out[row->n_out++] = id;
        if (is_eos(s, id)) {
            row->done = row->stopped = true;
        } else if (row->n_out >= s->o->max_new_tokens) {
            row->done = true;
        } else {
            running++;
        }
    }
    s->step++;
    return running;
}

static tm_status compile_decode(void *ctx, const tm_job *job, job_account *account, const pass_opts *way) {
    sampler *s = ctx;
    tm_program *p;
    pass_opts one = *way;
    one.shape.seq = 1;
    tm_plan_free(s->decode);
    s->decode = NULL;
    TM_TRY(build_pass(&p, job, "decoding", &one));
    tm_status rc = job_compile_in(job, account, p, true, &s->decode);
    tm_program_free(p);
    return rc;
}

static tm_status run(sampler *s, const job_opts *base) {
    job_opts o = *base;
    planner_choice c = {0};
    tm_status rc;
    o.kv_rows = s->n;
    o.kv_capacity = o.positions = s->longest + s->o->max_new_tokens;
    forward_only(&o);
    o.other_bytes += (uint64_t)s->n * s->vocab * sizeof(float);
    TM_GO(job_open(&s->job, &o));
    s->job->sinks.fill = fill;
    s->job->sinks.take_logits = take_logits;
    s->job->sinks.fill_ctx = s->job->sinks.take_ctx = s;
    s->job->step.last = s->last;
    pass_opts way = {.shape = {.micro_batches = 1, .rows = s->n, .seq = s->longest}, .logits = LOGITS_LAST};
    const planner_ask ask = {
        .job = s->job, .name = "generation", .way = &way, .n = 1, .more = compile_decode, .ctx = s};
    TM_GO(job_start(&ask, &c));
    s->prefill = true;
    TM_GO(job_run(s->job, c.plan));
    s->prefill = false;
    while (advance(s) > 0) TM_GO(job_run(s->job, s->decode));
done:
    planner_drop(&c);
    tm_plan_free(s->decode);
    job_close(s->job);
    return rc;
}

tm_status generate_rows(const gen_opts *o, const job_opts *base, uint32_t vocab, gen_row *rows, uint32_t n) {
    sampler s = {.o = o, .row = rows, .n = n, .vocab = vocab};
    tm_status rc = TM_OK;
    for (uint32_t r = 0; r < n; r++) {
        if (rows[r].n_prompt == 0) return tm_fail(TM_EINPUT, "the prompt is empty; give at least one token");
        if (rows[r].n_prompt > s.longest) s.longest = (uint32_t)rows[r].n_prompt;
    }
    if (o->max_new_tokens == 0) return TM_OK;
    s.logits = tm_malloc((size_t)n * vocab * sizeof *s.logits);
    s.position = tm_calloc(n, sizeof *s.position);
    s.last = tm_calloc(n, sizeof *s.last);
    if (!s.logits || !s.position || !s.last) rc = tm_nomem((size_t)n * vocab * sizeof *s.logits);
    if (rc == TM_OK) rc = run(&s, base);
    tm_free(s.logits);
    tm_free(s.position);
    tm_free(s.last);
    return rc;
}

/* ---- one prompt: the command --------------------------------------------------------------------------------- */

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

static tm_status collect(const text_tools *text, tm_ids *prompt, gen_row *row, tm_generated *out) {
    size_t n = row->n_out - (row->stopped ? 1 : 0); /* the end token is not part of the answer */
    TM_TRY(tm_tokenizer_decode(text->tokenizer, row->out, n, true, &out->text));
    out->prompt_ids = prompt->id;
    out->n_prompt = prompt->n;
    out->ids = row->out;
    out->n_ids = row->n_out;
    out->finish_reason = row->stopped ? "stop" : "length";
    *prompt = (tm_ids){0};
    row->out = NULL;
    return TM_OK;
}

tm_status tm_generate_run(const tm_generate_args *args, tm_generated *out) {
    text_tools text = {0};
    tm_source *source = NULL;
    tm_adapter_folder *adapter = NULL;
    tm_model_config config;
    tm_ids prompt = {0};
    gen_row row = {0};
    size_t len;
    tm_status rc;
    *out = (tm_generated){0};
    TM_GO(tm_kernels_init(0, (tm_elem)args->precision));
    TM_GO(tm_source_open_bare(&source, args->model));
    const char *json = tm_source_config(source, &len);
    TM_GO(tm_model_config_parse(&config, json, len, args->model));
    TM_GO(text_open(&text, source, args->tiers.host_budget));
    if (!text.tokenizer)
        TM_GO(tm_fail(TM_EINPUT, "%s: there is no tokenizer.json, which generation needs", args->model));
    if (args->messages)
        TM_GO(encode_messages(args->messages, &text, &prompt));
    else
        TM_GO(tm_tokenizer_encode(text.tokenizer, args->prompt, strlen(args->prompt), true, &prompt));
    gen_opts o = {.max_new_tokens = args->max_new_tokens,
                  .temperature = args->temperature,
                  .seed = args->seed,
                  .eos = text.eos,
                  .n_eos = text.n_eos};
    row = (gen_row){.prompt = prompt.id, .n_prompt = prompt.n};
    row.out = tm_malloc((o.max_new_tokens + 1) * sizeof *row.out);
    if (!row.out) TM_GO(tm_nomem((o.max_new_tokens + 1) * sizeof *row.out));
    TM_GO(tm_model_check_positions(&config, prompt.n + args->max_new_tokens, "prompt and --max-new-tokens"));
    job_opts base = {.model = args->model, .dtype = args->precision, .slots = 1};
    TM_GO(forward_opts(&base, &args->tiers, &adapter));
    TM_GO(generate_rows(&o, &base, config.vocab_size, &row, 1));
    TM_GO(collect(&text, &prompt, &row, out));
done:
    tm_adapter_folder_close(adapter);
    text_close(&text);
    tm_source_close(source);
    tm_ids_free(&prompt);
    tm_free(row.out);
    return rc;
}

void tm_generated_free(tm_generated *g) {
    tm_free(g->prompt_ids);
    tm_free(g->ids);
    tm_buf_free(&g->text);
}
